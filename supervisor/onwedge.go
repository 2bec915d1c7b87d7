package supervisor

import (
	"context"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/supervisor/acting"
	"sparkrun/supervisor/runlog"
)

// newOnWedge makes the actor of --on-wedge stop.
func (r *run) newOnWedge(context.Context) actor {
	if !r.o.Heat.StopOnWedge {
		return nil
	}
	return &onWedge{r: r}
}

// onWedge ends the run in the low-power wedge: nothing but pulling the plug cures it, and
// each hour in it is an hour at a fifth of the speed.
type onWedge struct {
	r     *run
	wedge acting.Wedge
	// asked is when an end was last asked for.
	asked time.Time
}

// askAgain is how often an end is asked for that was refused, as by an attempt that is
// only starting.
const askAgain = 10 * time.Second

func (w *onWedge) sampled(s *sample.Sample, events []event.Event) {
	w.wedge.Take(events)
	a := w.r.live.Load()
	if !w.wedge.In || a == nil || a.exit.Load() != nil || a.watched.Load() != nil || s.T.Sub(w.asked) < askAgain {
		return
	}
	w.asked = s.T
	go w.end(a, w.wedge, s.T)
}

// end ends the attempt, unless the clock is one that sparkrun has capped itself: another
// run may have done it since the last look. The disk is read here.
func (w *onWedge) end(a *attempt, wedge acting.Wedge, t time.Time) {
	r := w.r
	bounded(nil, capsMost, r.lookCaps)
	if wedge.Capped(float64(r.caps.mhz.Load()), float64(r.heat.OwnCapPart)) {
		return
	}
	words := wedge.Words() + ": " + acting.WedgeCure
	r.endWatched(a, watchEnd{
		name: wedgeEnd, by: runlog.BySparkrun, kind: runlog.EndWedge, grace: r.o.Grace,
		how: "ended in the low-power wedge", words: words,
	}, event.Event{
		T: t, Kind: event.RunStop, Level: event.Error, Msg: "ending the run (--on-wedge stop): " + words,
		Data: map[string]any{"type": "power-wedge", "id": wedge.ID},
	})
}

func (w *onWedge) stop() {}

// wedgeEnd and slowEnd are names of watchEnd.
const (
	wedgeEnd = "power-wedge"
	slowEnd  = "slowdown"
)
