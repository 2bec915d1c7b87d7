package throttle

import "time"

// repeated remembers a slowdown without a known cause, or one behind a checkpoint or
// an evaluation, from which the attempt came back by itself. Where rows have several
// lengths and no tokens are told, or each checkpoint is uploaded beside the training,
// the same comes again and again: the first is told, the others are only counted.
type repeated struct {
	// worst and length are those of what was told: what gets worse little by little would
	// else be no news each time anew.
	worst  float64 // how many times longer its steps took
	length time.Duration
	until  time.Time
}

const (
	// What is that much slower than before, or lasts that much longer, or longer than
	// againMost, is news, and what comes after againFor as well. (Own choices.)
	againWorse  = 1.1
	againLonger = 1.5
	againSlack  = 10 * time.Minute
	againMost   = time.Hour
	againFor    = 6 * time.Hour
)

// memory is what came again and again, by its cause.
type memory map[string]*repeated

// of is what is remembered of a cause, nothing at first.
func (m *memory) of(cause string) *repeated {
	if *m == nil {
		*m = memory{}
	}
	if (*m)[cause] == nil {
		(*m)[cause] = &repeated{}
	}
	return (*m)[cause]
}

// seen notes a slowdown that is over at t.
func (a *repeated) seen(e *paceEpisode, t time.Time) {
	if t.Sub(a.until) > againFor {
		*a = repeated{}
	}
	if a.until = t; !e.muted {
		a.worst, a.length = max(a.worst, e.worst), max(a.length, e.until.Sub(e.since))
	}
}

// is tells whether a slowdown that begins at t for the reason f is the same again.
func (m *memory) is(e *paceEpisode, f finding, t time.Time) bool {
	a := m.of(f.cause)
	return a.worst > 0 && t.Sub(a.until) <= againFor && m.still(e, t)
}

// still tells whether it is at t: no longer, no slower, and nothing else is known of it.
func (m *memory) still(e *paceEpisode, t time.Time) bool {
	f, _ := e.causes.top()
	a := m.of(f.cause)
	longest := min(againMost, time.Duration(againLonger*float64(a.length))+againSlack)
	return a.worst > 0 && e.worst <= againWorse*a.worst && t.Sub(e.since) <= longest
}
