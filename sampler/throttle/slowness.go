package throttle

import (
	"slices"

	"sparkrun/internal/sample"
)

// Baseline is an attempt's own pace, kept to measure a later attempt by that has the
// same settings. Its zero value is none.
type Baseline struct{ b baseline }

// Known says whether there is one.
func (b Baseline) Known() bool { return b.b.known() && b.b.step > 0 }

// Slowness is how the latest whole block of steps compares. Time in which the training
// was paused, and long steps with a checkpoint or an evaluation in them, are in no
// block.
type Slowness struct {
	// Attempt is whose block it is, Block counts its whole blocks from 1; 0 before
	// there is one.
	Attempt, Block int
	// Seconds is how long its steps took, Steps how many they were.
	Seconds, Steps float64
	// Slower is how many times longer a step (or a token, where rows differ in length)
	// took than at the pace it was compared with, unknown where nothing can be said. While
	// stalls are a slowdown it is what all steps of the last ten minutes took, if more.
	Slower sample.Num
	// Excused is set where the slow steps are those behind a checkpoint or an
	// evaluation, which is being written or uploaded beside the training.
	Excused bool
}

// Slowness compares the latest block with the attempt's own pace and with first, an
// earlier attempt's, if that is known: the worse of the two counts. The first block of
// an attempt is compared with its own alone: it has the first steps in it.
func (d *Detector) Slowness(first Baseline) Slowness {
	c := &d.slow.course
	k := &c.latest
	out := Slowness{Attempt: c.attempt, Block: c.blocks, Seconds: k.all(), Steps: k.n}
	if c.blocks == 0 {
		return Slowness{Attempt: c.attempt}
	}
	take := func(j judgement) {
		if v := slower(k, j); v.OK && (!out.Slower.OK || v.V > out.Slower.V) {
			out.Slower = v
		}
	}
	take(c.judged)
	if first.Known() && c.blocks > 1 {
		take(first.b.judge(k, d.cfg))
	}
	if e := c.down; e != nil {
		f, _ := e.cause()
		out.Excused = f.cause == CauseCheckpoint || f.cause == CauseEval
		// Stalls farther apart than a block is long show in no block.
		if v := c.stalls.slower; e.stalls && v.OK && (!out.Slower.OK || v.V > out.Slower.V) {
			out.Slower = v
		}
	}
	return out
}

// clippedFrom is the ratio from which the steps of a block may have been clipped, see
// stepClip. Below it a long time in the block is one that stands alone.
const clippedFrom = 1.5

// slower is the ratio of a block with its slowest time left out, and with all of its
// time where many steps were clipped or stand alone.
func slower(k *block, j judgement) sample.Num {
	if !j.known || k.sec <= 0 {
		return sample.Num{}
	}
	return finite(sample.Known(told(k, j)))
}

// Baseline returns the present attempt's own pace; the zero value before there is one.
func (d *Detector) Baseline() Baseline {
	b := d.slow.base
	if !b.known() {
		return Baseline{}
	}
	// What it learns later is written beside or into these.
	b.kept, b.late = slices.Clone(b.kept), nil
	b.pids, b.env = nil, environment{}
	return Baseline{b}
}
