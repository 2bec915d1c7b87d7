package supervisor

import (
	"context"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// actor does something about heat or pace, or keeps account of it. Its methods are
// called one at a time.
type actor interface {
	// sampled takes a reading and the events that the detector made of it. It must not
	// block: the sampler waits for it.
	sampled(s *sample.Sample, events []event.Event)
	// stop undoes what would outlive the run. It is called once, with no bound of its
	// own and whoever is in a hurry, and must return within seconds.
	stop()
}

// startActing makes the actors that this run has. A new one is nil where it was not
// asked for.
func (r *run) startActing(life context.Context) {
	r.startOnEvent(life) // first: what the others say at once is told as well
	go r.followCaps(life)
	// The clock first: what outlives the run is undone before anybody else is waited for.
	for _, a := range []actor{r.newCapClocks(life), r.newMaxTemp(life), r.newOnWedge(life), r.newMaxSlowdown(life), r.newEnergy(life)} {
		if a != nil {
			r.actors = append(r.actors, a)
		}
	}
}

// act hands a reading to the actors.
func (r *run) act(s *sample.Sample, events []event.Event) {
	for _, a := range r.actors {
		a.sampled(s, events)
	}
}

// stopActingMost is more than any of them takes to undo what it has done.
const stopActingMost = undoLimit + 5*time.Second

// stopActing ends them; the command is over.
func (r *run) stopActing() {
	for _, a := range r.actors {
		a.stop()
	}
}
