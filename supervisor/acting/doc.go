// Package acting owns the decisions about what is done about heat and pace, where a user
// asked for it: when a command is paused and goes on (pause.go), when the GPU's clock is
// held down, when a run is ended for the wedge or for a slow pace, and which events are
// handed to a user's own command (told.go).
//
// Everything here is a function from values to values. Who reads sensors, stops processes
// and starts commands is package supervisor.
package acting
