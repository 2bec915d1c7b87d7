package throttle

import (
	"fmt"
	"math"
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// braked is a job of steps of so many seconds that a brake makes factor times slower
// between two times, wherever in a step that begins; it adds to lost what that costs.
func braked(step, factor, from, to float64, lost *float64) training {
	next := jitter(step, 0.03, 3)
	return training{step: func(i int, s float64) float64 {
		const dt = 0.25
		t := s
		for work := next(i, s); work > 0; t += dt {
			rate := 1.0
			if t >= from && t < to {
				rate = 1 / factor
				*lost += dt * (1 - rate)
			}
			work -= dt * rate
		}
		return t - s
	}, around: func(s float64, x *sample.Sample) {
		if s >= from && s < to {
			x.ReasonBits, x.ClockSMMHz, x.PowerW = sample.Known(0x80), sample.Known(2300/factor), sample.Known(60)
		}
	}}
}

// A brake that is over within one long step has cost what that step took longer, and the
// next one, as fast as ever, does not say that it was something else.
func TestOneLongStepUnderABrake(t *testing.T) {
	t.Parallel()
	for _, step := range []float64{12, 60} {
		for _, factor := range few([]float64{3, 2}) {
			for late := range 4 {
				t.Run(fmt.Sprintf("%g s, %g times, %d", step, factor, late), func(t *testing.T) {
					t.Parallel()
					d, lost := New(config(t)), 0.0
					from := 7200 + float64(late)*step/4
					braked(step, factor, from, from+1.5*step, &lost).play(d, hours(3))
					got := d.Summary()
					if sum := got.LostS; !sum.OK || math.Abs(sum.V/lost-1) > 0.25 {
						t.Errorf("lost %v in all, want %g", sum, lost)
					}
					if own := got.ByType[HWBrake].LostS; !own.OK || math.Abs(own.V/lost-1) > 0.25 {
						t.Errorf("the brake cost %v, want %g", own, lost)
					}
				})
			}
		}
	}
}

// Where each step has an evaluation or a checkpoint in it, that is why none is long: a
// brake costs what it costs.
func TestMarksInEachStepHideNoBrake(t *testing.T) {
	t.Parallel()
	for _, step := range []float64{2, 12} {
		for _, kind := range []string{MarkEval, MarkCheckpoint} {
			d, lost := New(config(t)), 0.0
			j := braked(step, 2, 7205, 9005, &lost)
			var ends []float64
			was := j.step
			j.step = func(i int, s float64) float64 {
				length := was(i, s)
				ends = append(ends, s+length-0.3)
				return length
			}
			j.before = func(s float64, d *Detector) {
				for ; len(ends) > 0 && ends[0] <= s; ends = ends[1:] {
					d.Mark(at(ends[0]), kind)
				}
			}
			j.play(d, hours(3))
			if sum := d.Summary().LostS; !sum.OK || math.Abs(sum.V/lost-1) > 0.1 {
				t.Errorf("%g s, %s: lost %v, want %g", step, kind, sum, lost)
			}
		}
	}
}

// What comes again and gets worse each time by less than is news is told all the same: the
// last one told is what it is held against.
func TestWhatGetsWorseLittleByLittleIsTold(t *testing.T) {
	t.Parallel()
	for _, marks := range []bool{true, false} {
		j := night{step: jitter(2, 0.02, 8), saveEvery: 900, saveS: 20, marks: marks, hours: 8}
		slow, saved, factor := j.step, math.Inf(-1), 1.2
		j.step = func(i int, s float64) float64 {
			if i > 0 && i%900 == 0 {
				saved = s
				factor *= 1.06
			}
			if s-saved < 300 {
				return factor * slow(i, s)
			}
			return slow(i, s)
		}
		last := 1.0
		for _, e := range ofPace(j.play(New(config(t)))) {
			if e.Kind == event.ThrottleStart {
				last = 1 + e.Data["slower_pct"].(float64)/100
			}
		}
		if last < factor/1.3 {
			t.Errorf("marks %v: the last told was %g times slower, and it became %g times", marks, last, factor)
		}
	}
}
