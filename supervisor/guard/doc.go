// Package guard owns the decision to end a training before the machine freezes,
// and everything that decision needs: it reads the memory that is left itself,
// without allocating, predicts where it goes, ends the child's tree by
// descriptors opened beforehand, and keeps the last minute at full rate.
//
// It runs inside the holder, on a thread of its own, whether a supervisor is
// there or not. A GB10 that runs out of memory rarely kills a process: it
// stands still until somebody pulls the plug, and memory has been seen to fall
// by 14 GiB a second. So the guard imports nothing that can hang, and nothing
// on the way from reading to signal allocates memory.
//
// The decision (Policy.Next) is a function from a state and a reading to a
// state and a decision; everything that touches the machine is around it.
package guard
