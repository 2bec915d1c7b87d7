package throttle

import (
	"math"
	"time"
)

// A step with an evaluation or a checkpoint in it costs what that takes, whatever the
// GPU does. What an episode cost is counted without: such a step counts as long as
// those around it. One far longer step that nobody called by name waits for the next
// one: where that is as long, the steps have become slow, and both count. Where it alone
// was held back, and neither of those around it, that is why it was long.

const (
	// longPart is how many times longer than the one before a step must be to be looked
	// at, longSigmas how many standard deviations of the job's own steps it must be.
	// (Own choices.)
	longPart, longSigmas = 1.5, 6
	// againPart: a step of at least this part of the one that waits is as long as that.
	againPart = 0.5
	// heldMore: a step that was held back for this many times the part of its time of those
	// around it is long for that.
	heldMore = 2
)

// loneSteps tells the steps that stand alone from slow ones.
type loneSteps struct {
	before  float64 // seconds of the latest step that counted, zero for none
	waiting bool
	at      time.Time
	step    finished
	// heldS is for how long the GPU had been held back in all when the latest step was
	// finished; held is that of the step that waits, part and partBefore are the part of
	// its time and of the one before it.
	heldS, held, part, partBefore float64
	// marked is how many steps in a row counted as short as the one before for a mark.
	marked int
}

// take takes finished steps and returns those that can be counted now, with their time.
// limit is how many times longer than the one before may stand alone; heldS is for how
// long the GPU has been held back in all, in seconds; marked says that an evaluation or a
// checkpoint was seen in it.
func (l *loneSteps) take(f finished, t time.Time, limit, heldS float64, marked bool, count func(finished, time.Time)) {
	held := max(0, heldS-l.heldS)
	part := heldPart(held, f.n*f.stepS)
	if l.waiting {
		if f.stepS < againPart*l.step.stepS {
			l.standsAlone(part)
		}
		l.flush(count)
	}
	was := l.part
	l.heldS, l.held, l.part = heldS, held, part
	long := marked && l.before > 0 && f.stepS > longPart*l.before
	if !long {
		l.marked = 0
	}
	switch {
	case long && l.marked < unmarkedMost:
		// Where each step has a mark, one says nothing of them.
		l.marked++
		f.stepS = l.before
	case l.before > 0 && f.stepS > limit*l.before:
		l.waiting, l.at, l.step, l.partBefore = true, t, f, was
		return
	}
	l.before = f.stepS
	count(f, t)
}

// heldPart is which part of sec seconds held seconds are.
func heldPart(held, sec float64) float64 {
	if sec <= 0 {
		return 0
	}
	return min(1, held/sec)
}

// standsAlone decides about a step that waits and behind which it was faster again; the
// GPU was held back for the part after of the time since.
func (l *loneSteps) standsAlone(after float64) {
	least := l.before
	if l.held > 0 && l.part >= heldMore*max(l.partBefore, after) {
		least = min(l.step.stepS, l.before+l.held/l.step.n)
	}
	l.step.stepS = least
}

// flush counts what waits as it is.
func (l *loneSteps) flush(count func(finished, time.Time)) {
	if l.waiting {
		l.waiting = false
		l.before = l.step.stepS
		count(l.step, l.at)
	}
}

// end counts what waits when what held the GPU back since is over at t, or no other step
// will come: nothing says then that it was slow. A step from before since still waits.
func (l *loneSteps) end(since, t time.Time, heldS float64, count func(finished, time.Time)) {
	if !l.waiting || l.at.Before(since) {
		return
	}
	l.standsAlone(heldPart(heldS-l.heldS, t.Sub(l.at).Seconds()))
	l.flush(count)
}

// longFrom is how many times longer than the one before a step of this attempt may be
// without standing alone.
func (d *Detector) longFrom() float64 {
	b := &d.slow.base
	if d.slow.attempt != d.attempt || !b.known() || !b.even {
		return stepClip
	}
	return max(longPart, 1+longSigmas*math.Sqrt(b.variance))
}

// marked tells that a checkpoint or an evaluation was seen while finished steps were
// made; the line of a step and that of an evaluation behind it may come within one
// sample.
func (c *course) marked(f finished, t time.Time) bool {
	during := time.Duration(f.n*f.stepS*float64(time.Second)) + 2*c.usual
	return !c.markT.IsZero() && t.Sub(c.markT) <= during
}
