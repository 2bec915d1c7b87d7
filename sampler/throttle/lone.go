package throttle

import (
	"math"
	"time"
)

// A step with an evaluation or a checkpoint in it costs what that takes, whatever the
// GPU does. What an episode cost is counted without: such a step counts as long as
// those around it. One far longer step that nobody called by name waits for the next
// one: where that is as long, the steps have become slow, and both count.

const (
	// longPart is how many times longer than the one before a step must be to be looked
	// at, longSigmas how many standard deviations of the job's own steps it must be.
	// (Own choices.)
	longPart, longSigmas = 1.5, 6
	// againPart: a step of at least this part of the one that waits is as long as that.
	againPart = 0.5
)

// loneSteps tells the steps that stand alone from slow ones.
type loneSteps struct {
	before  float64 // seconds of the latest step that counted, zero for none
	waiting bool
	at      time.Time
	step    finished
}

// take takes finished steps and returns those that can be counted now, with their time.
// limit is how many times longer than the one before may stand alone; marked says that
// an evaluation or a checkpoint was seen in it.
func (l *loneSteps) take(f finished, t time.Time, limit float64, marked bool, count func(finished, time.Time)) {
	if l.waiting {
		if f.stepS < againPart*l.step.stepS {
			l.step.stepS = l.before
		}
		l.flush(count)
	}
	switch {
	case l.before > 0 && f.stepS > longPart*l.before && marked:
		f.stepS = l.before
	case l.before > 0 && f.stepS > limit*l.before:
		l.waiting, l.at, l.step = true, t, f
		return
	}
	l.before = f.stepS
	count(f, t)
}

// flush counts what waits as it is.
func (l *loneSteps) flush(count func(finished, time.Time)) {
	if l.waiting {
		l.waiting = false
		l.before = l.step.stepS
		count(l.step, l.at)
	}
}

// end counts what waits when no other step will come: nothing says that it was slow.
func (l *loneSteps) end(count func(finished, time.Time)) {
	if l.waiting {
		l.step.stepS = l.before
	}
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
