package progress

import (
	"math"
	"strconv"
	"time"

	"sparkrun/internal/sample"
)

// clock tells how long a step takes from when the lines came.
type clock struct {
	// anchorN is the first step that came at anchorT: many lines can share the time
	// of one reading.
	anchorN int64
	anchorT time.Time
	last    time.Time // when a step came last
	// disturbed is set when something other than training went on since the last
	// step; paused when it did before this one.
	disturbed, paused bool
	// sumT and sumN are seconds and steps, the older the less they weigh.
	sumT, sumN float64
	// rate is seconds a step as the trainer smooths it.
	rate sample.Num
	// micro adds up the seconds of micro-batches; began is set once a whole step's
	// are in it.
	micro  float64
	began  bool
	microN int64
	// elapsed is the trainer's own clock, in milliseconds at elapsedN.
	elapsed  sample.Num
	elapsedN int64
	counted  rateOf
}

// fade is how much one step weighs of what it weighed one step later: the mean over
// about the last hundred.
const fade = 0.99

// step takes the time of a new step and returns the seconds of one.
func (c *clock) step(n int64, t time.Time) (per sample.Num) {
	c.paused, c.disturbed = c.disturbed, false
	if t.After(c.last) {
		c.last = t
	}
	if c.anchorT.IsZero() {
		c.anchorN, c.anchorT, c.paused = n, t, false
		return per
	}
	if !t.After(c.anchorT) {
		c.disturbed = c.paused
		return per
	}
	steps, seconds := float64(n-c.anchorN), t.Sub(c.anchorT).Seconds()
	c.anchorN, c.anchorT = n, t
	if steps <= 0 {
		return per
	}
	keep := math.Pow(fade, steps)
	c.sumT, c.sumN = c.sumT*keep+seconds, c.sumN*keep+steps
	if !c.paused {
		per = sample.Known(seconds / steps)
	}
	return per
}

// mean is seconds a step over the last hundred or so, evaluations and checkpoints
// included.
func (c *clock) mean() sample.Num {
	if c.sumN == 0 || c.sumT <= 0 {
		return sample.Num{}
	}
	return sample.Known(c.sumT / c.sumN)
}

// microBatch adds the seconds of a micro-batch before which n steps were done, and
// returns those of the whole step where the number has grown.
func (c *clock) microBatch(n int64, first bool, seconds float64) float64 {
	c.micro += seconds
	if first {
		c.began = true
	}
	if n == c.microN && c.began {
		return 0
	}
	whole := c.micro
	if !c.began {
		whole = 0
	}
	if n != c.microN {
		c.began, c.micro = true, 0
	}
	c.microN = n
	return whole
}

// since takes the trainer's own clock and returns the seconds of one step.
func (c *clock) since(n int64, ms float64) float64 {
	before, beforeN := c.elapsed, c.elapsedN
	c.elapsed, c.elapsedN = sample.Known(ms), n
	if !before.OK || n <= beforeN || ms <= before.V {
		return 0 // it was set back after warming up
	}
	return (ms - before.V) / 1000 / float64(n-beforeN)
}

// rateOf works out how fast a counter grows.
type rateOf struct {
	from, to  float64
	fromT     time.Time
	toT       time.Time
	hasWindow bool
}

// add takes a count. A rough one, of which only some digits are told, is held
// against one at least a fiftieth lower.
func (r *rateOf) add(v float64, rough bool, t time.Time) sample.Num {
	if r.toT.IsZero() || v < r.to {
		*r = rateOf{from: v, to: v, fromT: t, toT: t}
		return sample.Num{}
	}
	if rough && v < r.to*1.02 {
		if !r.hasWindow || !t.After(r.fromT) {
			return sample.Num{}
		}
		return sample.Known((v - r.from) / t.Sub(r.fromT).Seconds())
	}
	if v == r.to || !t.After(r.toT) {
		return sample.Num{}
	}
	r.from, r.fromT, r.hasWindow = r.to, r.toT, true
	r.to, r.toT = v, t
	return sample.Known((v - r.from) / t.Sub(r.fromT).Seconds())
}

func parseFloat(text string) (float64, bool) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil && !math.IsInf(v, 0) {
		return 0, false
	}
	return v, true
}
