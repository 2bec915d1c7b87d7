package holder

import (
	"fmt"
	"time"

	"sparkrun/internal/clock"
)

const (
	// leashEvery is how often a pause with a bound is looked at.
	leashEvery = time.Second
	// aloneLimit is how long a tree that a supervisor has paused stands still without
	// one: long enough for a connection that is made again, and no more.
	aloneLimit = 5 * time.Second
)

// leash bounds a pause: a training must not stand still for ever since whoever was to
// wake it has died, or hangs itself. Times are CLOCK_BOOTTIME.
type leash struct {
	until time.Duration
	// look is when it is looked at again: an instant, since requests that come more often
	// than that must not put it off for ever.
	look time.Duration
	// alone is since when there is no supervisor, 0 while there is one.
	alone time.Duration
}

// broken says whether the pause is over, and keeps account of who is there.
func (l *leash) broken(now time.Duration, supervised bool) bool {
	switch {
	case supervised:
		l.alone = 0
	case l.alone == 0:
		l.alone = now
	}
	return now >= l.until || l.alone != 0 && now-l.alone >= aloneLimit
}

// pause stops the tree, with a bound in seconds where there is one.
func (h *hold) pause(limit *float64) error {
	if h.stop.phase != phaseRun && h.stop.phase != phaseAwait {
		return fmt.Errorf("the command is being stopped and cannot be paused")
	}
	var l *leash
	if limit != nil {
		if *limit <= 0 {
			return fmt.Errorf("a pause of %g s is none", *limit)
		}
		now := clock.Boottime()
		l = &leash{until: now + inSeconds(*limit), look: now}
	}
	// A second pause knows what the first one has stopped.
	if !h.paused {
		h.still = newStill()
	}
	guardWaits := func() bool { return len(h.guard.Events()) > 0 }
	if err := h.still.stop(guardWaits); err != nil {
		// Half a pause is none: what runs on heats the machine, and what waits for the rest
		// may take it for dead.
		h.wake()
		return err
	}
	h.paused, h.leash = true, l
	return nil
}

// wake undoes a pause. What the command itself had stopped before stays stopped.
func (h *hold) wake() {
	asleep := h.still.asleep
	h.paused, h.leash, h.still = false, nil, still{}
	wakeTree(asleep)
}

// holdLeash ends a pause whose bound is over.
func (h *hold) holdLeash() {
	if h.leash == nil {
		return
	}
	now := clock.Boottime()
	if h.leash.broken(now, h.srv != nil && h.srv.supervised()) {
		h.wake()
		return
	}
	h.leash.look = min(now+leashEvery, h.leash.until)
}
