package clock

import (
	"sync/atomic"
	"time"
)

// born is an instant of this process, and lead how much later (in nanoseconds) the beats
// that it goes by begin.
var (
	born = time.Now()
	lead atomic.Int64
)

// behindRows is how much later than the rows of a run all else happens: the row comes
// first, and at its time.
const behindRows = time.Millisecond

// Lead makes the beats of this process begin just after an instant of CLOCK_BOOTTIME, from
// which rows are counted: all else then happens in the wake of a row.
func Lead(boot time.Duration) {
	lead.Store(int64(time.Since(born) - (Boottime() - boot) + behindRows))
}

// Beat returns the time until the next whole number of d since this process, or what
// leads it, began. What looks at something again and again sleeps until then: a
// hundred such sleepers wake the machine once and not a hundred times, and it is the waking
// that costs.
func Beat(d time.Duration) time.Duration {
	since := (time.Since(born) - time.Duration(lead.Load())) % d
	if since < 0 {
		since += d
	}
	return d - since
}
