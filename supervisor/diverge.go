package supervisor

import (
	"fmt"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/ladder/trainer/progress"
	"sparkrun/supervisor/runlog"
)

// A loss that is not a number is no matter of memory: it is told when it shows, no
// rung follows it, and a run that ends well with it is not called a success.

// divergence starts the watch over an attempt's loss.
func (r *run) divergence(a *attempt) progress.Divergence {
	return progress.Divergence{Facts: progress.Facts{
		DType: a.knobs[job.DType].Value, Method: a.knobs[job.Method].Value,
		LearningRate: a.knobs[job.LearningRate].Value, Packing: a.knobs[job.Packing].Value,
	}}
}

// watchLoss feeds the watch with a step; a.mu is held by nobody.
func (r *run) watchLoss(a *attempt, s progress.Step, t time.Time) {
	f, ok := a.diverge.Feed(s)
	if !ok {
		return
	}
	e := event.Event{T: t, Attempt: a.n, Kind: event.Divergence, Level: event.Info, Msg: f.Why, Data: map[string]any{"type": f.Kind, "step": f.N}}
	if !f.Diverged {
		r.log.Event(e)
		return
	}
	a.mu.Lock()
	first := a.diverged == ""
	if first {
		a.diverged = f.Why
	}
	a.mu.Unlock()
	e.Level = event.Error
	e.Data["causes"] = f.Causes
	e.Msg = "divergence: " + f.Why + "; look in this order: " + strings.Join(f.Causes, "; ")
	r.log.Event(e)
	if !first || r.o.OnDivergence != "stop" {
		return
	}
	r.endWatched(a, watchEnd{name: "divergence", by: runlog.BySparkrun, grace: r.o.Grace, how: "ended: the loss had diverged", words: f.Why}, event.Event{
		Kind: event.Divergence, Level: event.Error,
		Msg: fmt.Sprintf("ending the command, which has %s to end by itself (--on-divergence stop)", human(r.o.Grace)),
	})
}

// lossWords says how the loss diverged, "" if it did not.
func (a *attempt) lossWords() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.diverged
}
