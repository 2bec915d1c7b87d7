package throttle

import (
	"math"
	"testing"

	"sparkrun/internal/sample"
)

// watchPace plays a job and returns each block of it once, compared with first.
func watchPace(j training, d *Detector, length float64, first Baseline) []Slowness {
	var out []Slowness
	look := func() {
		if s := d.Slowness(first); s.Block > 0 && (len(out) == 0 || s.Block != out[len(out)-1].Block) {
			out = append(out, s)
		}
	}
	was := j.before
	j.before = func(s float64, d *Detector) {
		if was != nil {
			was(s, d)
		}
		look()
	}
	j.play(d, length)
	look()
	return out
}

// worstOf is the highest ratio of blocks, 0 where none is known.
func worstOf(all []Slowness) float64 {
	worst := 0.0
	for _, s := range all {
		worst = max(worst, s.Slower.V)
	}
	return worst
}

func TestSlownessIsTheFactor(t *testing.T) {
	t.Parallel()
	for name, factor := range map[string]float64{"a third": 1.33, "twice": 2, "more than is clipped": 5, "a wedge": 11} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := New(config(t))
			all := watchPace(training{step: jitter(2, 0.03, 1)}.slower(factor, hours(1), hours(9)), d, hours(3), Baseline{})
			last := all[len(all)-1]
			if math.Abs(last.Slower.V/factor-1) > 0.06 {
				t.Errorf("%g times, want %g", last.Slower.V, factor)
			}
			if last.Seconds < 60 || last.Steps < 5 || last.Attempt != 1 {
				t.Errorf("the block is %+v", last)
			}
			if first := all[0]; first.Block != 1 || first.Slower.OK {
				t.Errorf("the first block is compared with nothing: %+v", first)
			}
		})
	}
}

// What is no slowdown: a long step now and then, a pause, lengths that differ.
func TestSlownessOfWhatIsNone(t *testing.T) {
	t.Parallel()
	every := func(n int, long float64) func(int, float64) float64 {
		return func(i int, _ float64) float64 {
			if i > 0 && i%n == 0 {
				return long
			}
			return 1
		}
	}
	paused := training{step: func(_ int, s float64) float64 {
		if s >= hours(1) && s < hours(1)+1 {
			return 1200
		}
		return 1
	}, before: func(s float64, d *Detector) {
		switch s {
		case hours(1):
			d.Paused(true)
		case hours(1) + 1190:
			d.Paused(false)
		}
	}}
	for name, j := range map[string]training{
		"nothing at all":             {step: jitter(1, 0.05, 3)},
		"an evaluation nobody named": {step: every(300, 200)},
		"one in each block":          {step: every(60, 25)},
		"a pause of twenty minutes":  paused,
		"longer rows, tokens told":   {step: varied(1, 4), tokens: func(i int) float64 { return 900 * varied(1, 4)(i, 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := New(config(t))
			all := watchPace(j, d, hours(3), Baseline{})
			if worst := worstOf(all); worst > 1.3 || worst == 0 {
				t.Errorf("up to %g times", worst)
			}
		})
	}
}

// An attempt that is slow from its first step has no pace of its own to tell it: the one
// before has.
func TestSlownessAgainstAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	if d.Baseline().Known() {
		t.Fatal("a baseline before the first step")
	}
	if s := d.Slowness(Baseline{}); s.Block != 0 || s.Slower.OK {
		t.Fatalf("slowness of nothing: %+v", s)
	}
	training{step: jitter(2, 0.03, 1)}.open(d, hours(1))
	first := d.Baseline()
	if !first.Known() {
		t.Fatal("no baseline after an hour")
	}
	second := func(d *Detector, first Baseline) []Slowness {
		j := training{step: jitter(4, 0.03, 2), around: func(_ float64, x *sample.Sample) {
			x.Attempt = 2
			x.T, x.Mono = x.T.Add(at(hours(1)).Sub(at(0))), x.Mono+at(hours(1)).Sub(at(0))
		}}
		return watchPace(j, d, hours(1), first)
	}
	var ofSecond []Slowness
	for _, s := range second(d, first) {
		if s.Attempt == 2 {
			ofSecond = append(ofSecond, s)
		}
	}
	for i, s := range ofSecond {
		if i == 0 {
			if s.Slower.OK {
				t.Error("the first steps are compared with steady ones")
			}
			continue
		}
		if math.Abs(s.Slower.V-2) > 0.15 {
			t.Errorf("block %d: %g times", s.Block, s.Slower.V)
		}
	}
	if len(ofSecond) < 20 {
		t.Fatalf("%d blocks", len(ofSecond))
	}
	// Without the first one, slow is normal.
	d = New(config(t))
	if worst := worstOf(second(d, Baseline{})); worst > 1.2 {
		t.Errorf("by itself %g times", worst)
	}
}

// A baseline that was kept stays what it was, whatever the attempt learns later.
func TestBaselineIsKept(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: func(_ int, s float64) float64 {
		if s < hours(1) {
			return 3
		}
		return 1 // three times as fast: the attempt gets a new baseline
	}}
	var first Baseline
	j.before = func(s float64, d *Detector) {
		if s == hours(0.5) {
			first = d.Baseline()
		}
	}
	j.play(d, hours(2))
	if first.b.step != 3 || d.Baseline().b.step != 1 {
		t.Errorf("kept %g, now %g", first.b.step, d.Baseline().b.step)
	}
}

// Slow steps behind a checkpoint that is written beside the training are excused.
func TestSlownessBehindCheckpoints(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	behind := func(s float64) bool { return s > hours(1) && math.Mod(s, 1200) < 200 }
	j := training{
		step: func(_ int, s float64) float64 { return map[bool]float64{true: 2.5, false: 1}[behind(s)] },
		before: func(s float64, d *Detector) {
			if behind(s) && !behind(s-1) {
				d.Mark(at(s), MarkCheckpoint)
			}
		},
	}
	excused, not := 0, 0
	for _, s := range watchPace(j, d, hours(4), Baseline{}) {
		switch {
		case s.Slower.V < 1.5:
		case s.Excused:
			excused++
		default:
			not++
		}
	}
	// The first block of each is not known to be one yet.
	if excused == 0 || not > excused {
		t.Errorf("%d excused, %d not", excused, not)
	}
}
