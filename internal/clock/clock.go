// Package clock owns the one clock of a run and the one way time is written.
//
// A run takes wall time and UTC offset once, at its start, and counts on with
// CLOCK_BOOTTIME, which goes on during suspend and never steps. A daylight
// saving change or an NTP step during the night therefore moves nothing in the
// run's files; the step itself is an event (see Step).
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Layout is the format nvidia-smi gives its timestamp column: local time with
// milliseconds. Every line a person reads carries it, so that sort -m merges
// run.log and thermal.csv into one timeline.
const Layout = "2006/01/02 15:04:05.000"

// Clock is the time base of one run. The zero value is not usable; call Start
// or Restore.
type Clock struct {
	// Wall is the wall time at run start, in a fixed zone with the UTC offset
	// that held at that moment.
	Wall time.Time
	// Boot is CLOCK_BOOTTIME at run start.
	Boot time.Duration
}

// Start takes the time now and returns the clock of a new run.
func Start() Clock {
	return Clock{Wall: fixed(time.Now()), Boot: Boottime()}
}

// Restore returns the clock of a run that is taken over: wall and boot are the
// values its manifest keeps.
func Restore(wall time.Time, boot time.Duration) Clock {
	return Clock{Wall: fixed(wall), Boot: boot}
}

func fixed(t time.Time) time.Time {
	name, offset := t.Zone()
	return t.Round(0).In(time.FixedZone(name, offset))
}

// Now returns the run's time now.
func (c Clock) Now() time.Time { return c.At(Boottime()) }

// At returns the run's time at a CLOCK_BOOTTIME instant.
func (c Clock) At(boot time.Duration) time.Time { return c.Wall.Add(boot - c.Boot) }

// Mono returns how long the run has been going at t.
func (c Clock) Mono(t time.Time) time.Duration { return t.Sub(c.Wall) }

// Step returns how far the machine's wall clock has moved against the run's
// clock since the run started: positive when it was set forward.
func (c Clock) Step() time.Duration {
	return time.Now().Round(0).Sub(c.Now())
}

// Boottime returns CLOCK_BOOTTIME: time since boot, suspend included.
func Boottime() time.Duration {
	var ts unix.Timespec
	// The call cannot fail on Linux >= 2.6.39 with a valid clock id.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

// Format writes t as a person or nvidia-smi would, to the millisecond.
func Format(t time.Time) string { return t.Format(Layout) }

// AppendFormat appends Format(t) to b without allocating.
func AppendFormat(b []byte, t time.Time) []byte { return t.AppendFormat(b, Layout) }

// Machine writes t for machine files: RFC 3339 with milliseconds and offset.
func Machine(t time.Time) string { return t.Format("2006-01-02T15:04:05.000Z07:00") }
