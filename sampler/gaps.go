package sampler

import "time"

// A gap that is over must stay over for this long before it is reported as
// over; the time doubles with every gap of the same source, up to the second
// figure, so that a sensor that comes and goes all night makes a handful of
// events and not thousands.
const (
	gapQuiet    = 3 * time.Second
	gapQuietMax = 5 * time.Minute
)

// gaps keeps, per source, since when it does not answer. It is a function from
// what happened to what is worth an event; times are the run's.
type gaps map[string]*gap

type gap struct {
	open    bool
	since   time.Time
	backAt  time.Time
	reports int
}

// fail notes that a source did not answer at t, and reports whether a gap began
// that is worth an event.
func (g gaps) fail(source string, t time.Time) (began bool) {
	x := g[source]
	if x == nil {
		x = &gap{}
		g[source] = x
	}
	x.backAt = time.Time{}
	if x.open {
		return false
	}
	x.open, x.since = true, t
	x.reports++
	return true
}

// ok notes that a source answered at t, and reports whether a gap is over and
// how long it was.
func (g gaps) ok(source string, t time.Time) (ended bool, lasted time.Duration) {
	x := g[source]
	if x == nil || !x.open {
		return false, 0
	}
	if x.backAt.IsZero() {
		x.backAt = t
	}
	if t.Sub(x.backAt) < x.quiet() {
		return false, 0
	}
	x.open = false
	return true, x.backAt.Sub(x.since)
}

func (x *gap) quiet() time.Duration {
	return min(gapQuiet<<min(x.reports-1, 10), gapQuietMax)
}
