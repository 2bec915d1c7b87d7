package energy

import (
	"time"

	"sparkrun/internal/sample"
)

// mostWatts is more than any one GPU or such a machine draws. A counter that ran faster
// was loaded anew, or counts something else.
const mostWatts = 2000

// Amount is energy on one rail.
type Amount struct {
	// J is joules, unknown where no reading told anything.
	J sample.Num
	// KnownS is for how many seconds it is known, EstimatedS the part of them in which
	// it is power times time and no counter's figure.
	KnownS, EstimatedS float64
}

// Counted says that a counter told it, but for what is too little to matter.
func (a Amount) Counted() bool { return a.J.OK && a.EstimatedS <= estimatePart*a.KnownS }

// estimatePart is the part of the time that may be estimated without a word: a counter
// moves in steps of its own, and the last moments of an attempt have no reading behind them.
const estimatePart = 0.05

func (a *Amount) add(b Amount) {
	if b.J.OK {
		a.J = sample.Known(a.J.Or(0) + b.J.V)
	}
	a.KnownS += b.KnownS
	a.EstimatedS += b.EstimatedS
}

// towards is the amount at part (0 to 1) of the way from a to b.
func (a Amount) towards(b Amount, part float64) Amount {
	if b.J.OK {
		b.J = sample.Known(a.J.Or(0) + (b.J.V-a.J.Or(0))*part)
	}
	b.KnownS = a.KnownS + (b.KnownS-a.KnownS)*part
	b.EstimatedS = a.EstimatedS + (b.EstimatedS-a.EstimatedS)*part
	return b
}

// value is one reading of a rail; each part may be unknown.
type value struct{ joules, watts sample.Num }

// rail turns the readings of one rail into increments.
type rail struct {
	gap time.Duration
	// counted is the counter when it last moved, at that time; on says that there is one.
	on      bool
	counted float64
	moved   time.Time
	// since is what has been estimated after that: the counter replaces it once it moves.
	since Amount

	powered bool
	watts   float64
	at      time.Time
	resets  int
}

// take returns what a reading at t adds. It may take back what was estimated before.
func (r *rail) take(t time.Time, v value) Amount {
	inc := r.integral(t, v.watts)
	if !v.joules.OK {
		return r.keep(inc)
	}
	c := v.joules.V
	switch {
	case !r.on:
	case c == r.counted:
		// Not moved: it counts in steps, or does not count at all.
		return r.keep(inc)
	case r.follows(t, c):
		whole := Amount{J: sample.Known(c - r.counted), KnownS: t.Sub(r.moved).Seconds()}
		inc = Amount{J: sample.Known(whole.J.V - r.since.J.Or(0)), KnownS: whole.KnownS - r.since.KnownS, EstimatedS: -r.since.EstimatedS}
	default:
		// The driver was loaded anew: what it had counted last is gone.
		r.resets++
	}
	r.on, r.counted, r.moved, r.since = true, c, t, Amount{}
	// What is estimated from here on must not begin before.
	r.powered = r.powered && v.watts.OK
	return inc
}

// keep remembers an estimate that the counter may replace.
func (r *rail) keep(inc Amount) Amount {
	if r.on {
		r.since.add(inc)
	}
	return inc
}

// follows says whether a counter can have come to c at t.
func (r *rail) follows(t time.Time, c float64) bool {
	d := c - r.counted
	return d > 0 && d <= mostWatts*(t.Sub(r.moved).Seconds()+1)
}

// integral is power times time since the last reading of power. Over a gap nobody knows
// what the power was.
func (r *rail) integral(t time.Time, watts sample.Num) Amount {
	if !watts.OK {
		return Amount{}
	}
	var inc Amount
	if dt := t.Sub(r.at); r.powered && dt > 0 && dt <= r.gap {
		s := dt.Seconds()
		inc = Amount{J: sample.Known((r.watts + watts.V) / 2 * s), KnownS: s, EstimatedS: s}
	}
	r.powered, r.watts, r.at = true, watts.V, t
	return inc
}

// cut returns what belongs before the instant b, where v is the next reading, at t. After
// it the rail stands at b.
func (r *rail) cut(b, t time.Time, v value) Amount {
	var mid value
	if dt := t.Sub(r.at); r.powered && v.watts.OK && dt > 0 && dt <= r.gap && !b.Before(r.at) {
		mid.watts = sample.Known(r.watts + (v.watts.V-r.watts)*part(b.Sub(r.at), dt))
	}
	if dt := t.Sub(r.moved); r.on && v.joules.OK && dt <= r.gap && !b.Before(r.moved) && r.follows(t, v.joules.V) {
		mid.joules = sample.Known(r.counted + (v.joules.V-r.counted)*part(b.Sub(r.moved), dt))
	}
	inc := r.take(b, mid)
	if !mid.joules.OK {
		// A counter cannot say what part of a long time lies before b.
		r.on, r.since = false, Amount{}
	}
	if !mid.watts.OK {
		r.powered = false
	}
	return inc
}

func part(a, b time.Duration) float64 { return min(1, a.Seconds()/b.Seconds()) }
