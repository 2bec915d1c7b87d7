package sampler

import (
	"context"
	"time"

	"sparkrun/internal/alarm"
)

// longestWait is the longest that a schedule sleeps at a time. A timer stands still while
// the machine is suspended: after that a tick that is due is late by so much at most.
const longestWait = 30 * time.Second

// waiter wakes a schedule.
type waiter struct {
	due   <-chan struct{}
	reset func(time.Duration)
	stop  func()
}

// alarms returns a waiter for the machine's own time.
func alarms() waiter {
	a := alarm.New()
	return waiter{due: a.C, reset: a.Reset, stop: a.Stop}
}

// every calls f at start, start+d, start+2d, ... by the clock now, until ctx ends. The
// times are absolute: a late call does not move those after it. Calls whose time had
// passed altogether are not made up for; f hears how many were missed since the last one.
// The clock goes on during suspend.
func every(ctx context.Context, w waiter, now func() time.Duration, start, d time.Duration, f func(missed int)) {
	wait := func(next int64) time.Duration { return min(start+time.Duration(next)*d-now(), longestWait) }
	w.reset(wait(0))
	defer w.stop()
	for next := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-w.due:
		}
		if elapsed := now() - start; elapsed >= time.Duration(next)*d {
			n, missed := due(elapsed, d, next)
			f(missed)
			next = n + 1
		}
		w.reset(wait(next))
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

// sensorStep is the time between readings of the sensors where telemetry has a row every
// tick and thermal.csv one every interval: each row is to find a reading that is fresh.
func sensorStep(tick, interval time.Duration) time.Duration {
	if tick <= maxAge {
		// Rows of thermal.csv wait for the next one.
		return tick
	}
	step, rest := tick, interval
	for rest > 0 {
		step, rest = rest, step%rest
	}
	if step < maxAge {
		return time.Second
	}
	return step
}
