package supervisor

import (
	"context"
	"time"

	"sparkrun/internal/event"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/runlog"
)

// watchEnd is why a watch of ours ends an attempt that runs.
type watchEnd struct {
	// name is the verdict's reason and who sent the signals: hang, divergence,
	// power-wedge or slowdown (those that ladder/oom knows as such).
	name string
	// by says who ended the run, if nothing follows; kind how the attempt ended, empty
	// for the child's own way.
	by   runlog.EndedBy
	kind runlog.EndKind
	// grace lies between the first signal and the next.
	grace time.Duration
	// how is that end in two or three words, for a list of attempts; words is what was
	// seen, in a sentence's part.
	how, words string
	// kept names the file of the run directory that shows what was seen, "" for none.
	kept string
	// at is when it was decided.
	at time.Time
}

// slowRestarts is how often a run goes on from its checkpoint after --max-slowdown.
const slowRestarts = 2

// endWatched ends an attempt for what a watch of ours saw, if it is still the one that
// runs; e is told then, and only then. It may be called from any goroutine, and does
// not wait.
func (r *run) endWatched(a *attempt, why watchEnd, e event.Event) {
	go r.post(Input{}, func() {
		if r.m.State != Running || r.att != a || a.watched.Load() != nil {
			return
		}
		why.at = r.clk.Now()
		a.watched.Store(&why)
		e.Attempt = a.n
		r.log.Event(e)
		r.step(context.Background(), Input{Kind: Watched}) // nothing of it can be cancelled
	})
}

// beginEnd sends the first signal.
func (r *run) beginEnd() {
	w := r.att.watched.Load()
	r.att.stops = append(r.att.stops, oom.SignalSent{Name: "SIGTERM", By: w.name, T: r.clk.Now(), Why: w.words})
	r.att.order(stopOrder{"SIGTERM", w.grace})
}

// endedWords are the words of the watch that ended an attempt, with what helps; "" where it
// ended otherwise, or for its loss, which is told apart from that.
func (a *attempt) endedWords() string {
	w := a.endedFor()
	if w == nil || w.words == a.lossWords() {
		return ""
	}
	return w.words
}

// endedFor is the watch that ended an attempt, nil where it ended otherwise.
func (a *attempt) endedFor() *watchEnd {
	w := a.watched.Load()
	if w == nil || a.ending != w.by {
		return nil
	}
	return w
}
