package sampler

import (
	"context"
	"time"
)

// every calls f at start, start+d, start+2d, ... until ctx ends. The times are
// absolute: a late call does not move those after it. Calls whose time had
// passed altogether are not made up for; f hears how many were missed since
// the last one.
func every(ctx context.Context, start time.Time, d time.Duration, f func(missed int)) {
	timer := time.NewTimer(time.Until(start))
	defer timer.Stop()
	for next := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		n, missed := due(time.Since(start), d, next)
		f(missed)
		next = n + 1
		timer.Reset(time.Until(start.Add(time.Duration(next) * d)))
	}
}

// due says which tick it is at elapsed, when next is the first one not taken
// yet, and how many have been missed before it.
func due(elapsed, d time.Duration, next int64) (tick int64, missed int) {
	tick = max(int64(elapsed/d), next)
	return tick, int(tick - next)
}

// align returns the first instant at or after now that lies a whole number of
// d from base.
func align(now, base, d time.Duration) time.Duration {
	rest := (now - base) % d
	if rest < 0 {
		rest += d
	}
	if rest == 0 {
		return now
	}
	return now + d - rest
}
