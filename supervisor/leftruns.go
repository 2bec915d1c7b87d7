package supervisor

import (
	"context"

	"sparkrun/internal/event"
	"sparkrun/supervisor/gate"
	"sparkrun/supervisor/postmortem"
)

// tellLost says what became of earlier runs on this machine that have no end: the
// power was cut under them, or the machine froze. It also notes how much memory
// this boot has when nothing of ours runs yet, and then removes what such runs have left
// in folders: while one is looked at it seems to be running. A clock that one has left
// capped is set free.
func (r *run) tellLost(ctx context.Context, folders []string) {
	defer close(r.lookedBack)
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		r.restoreClocks(ctx)
	}()
	defer func() { <-freed }()
	held := gate.Sizes("/")
	r.mu.Lock()
	r.holders = held
	r.mu.Unlock()
	for _, rec := range postmortem.Recover(ctx, postmortem.RecoverOptions{Places: r.places, Skip: r.dir.ID}) {
		r.log.Event(event.Event{
			Kind: event.Hygiene, Level: event.Warn, Msg: rec.Text,
			Data: map[string]any{"run": rec.ID, "dir": rec.Dir, "attempt": rec.Attempt, "what": rec.What, "verdict": rec.Verdict.Answer},
		})
	}
	r.tidy(folders)
	if r.start0.Known {
		if err := gate.NoteIdle(r.stateDir(), bootID(), r.start0.AvailKiB); err != nil {
			r.diag.Debug("the idle value of this boot is not kept", "err", err)
		}
	}
}

// stateDir is where what outlives a run is kept.
func (r *run) stateDir() string { return r.places.State() }
