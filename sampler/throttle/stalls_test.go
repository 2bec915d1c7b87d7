package throttle

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// stalled makes each n-th step as long as long, from a time on.
func stalled(n int, long, from float64) func(int, float64) float64 {
	return func(i int, s float64) float64 {
		if s >= from && i%n == 0 {
			return long
		}
		return 1
	}
}

// Long steps that stand alone make no slow block, and cost half of the time.
func TestStallsAreASlowdown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n    int
		long float64
	}{"20 s each 40 steps": {40, 20}, "90 s each 70 steps": {70, 90}, "45 s each 120 steps": {120, 45}} {
		d := New(config(t))
		got := ofPace(training{step: stalled(c.n, c.long, hours(2))}.play(d, hours(6)))
		if labels(got) != once || got[0].Level != event.Warn {
			t.Errorf("%s: %s", name, outline(got))
			continue
		}
		ratio := (float64(c.n-1) + c.long) / float64(c.n)
		lost := hours(4) * (1 - 1/ratio)
		if v := got[1].Data["lost_s"].(float64); math.Abs(v/lost-1) > 0.15 || got[0].T.Sub(at(hours(2))).Minutes() > 40 {
			t.Errorf("%s: lost %g s, want %g; told at %v", name, v, lost, got[0].T.Sub(t0))
		}
		if p := d.Summary().Pace; math.Abs(p.NowS.V/ratio-1) > 0.2 || math.Abs(p.Slower.V/ratio-1) > 0.2 {
			t.Errorf("%s: %+v, want %g", name, p, ratio)
		}
		if !strings.Contains(got[0].Msg, "long steps in") {
			t.Errorf("%q", got[0].Msg)
		}
	}
}

// Stalls that come so often that blocks of steps show them cost all their time as well,
// and so do those on the edge of it.
func TestFrequentStallsCostAllTheirTime(t *testing.T) {
	t.Parallel()
	type stall struct {
		n    int
		long float64
	}
	for _, c := range few([]stall{{10, 6}, {12, 8}, {15, 10}, {20, 10}, {20, 15}, {8, 5}, {10, 15}, {25, 20}, {30, 12}, {5, 4}}) {
		for _, scatter := range []float64{0, 0.03} {
			name := fmt.Sprintf("%g s each %d steps, scatter %g", c.long, c.n, scatter)
			d := New(config(t))
			was, even := stalled(c.n, c.long, hours(2)), jitter(1, scatter, 5)
			j := training{step: func(i int, s float64) float64 { return was(i, s) * even(i, s) }}
			all := []Slowness{}
			j.before = func(s float64, d *Detector) {
				if s > hours(3) {
					all = append(all, d.Slowness(Baseline{}))
				}
			}
			got := ofPace(j.play(d, hours(6)))
			if labels(got) != once || got[0].Level != event.Warn {
				t.Errorf("%s: %s", name, outline(got))
				continue
			}
			ratio := (float64(c.n-1) + c.long) / float64(c.n)
			lost := hours(4) * (1 - 1/ratio)
			if v := got[1].Data["lost_s"].(float64); math.Abs(v/lost-1) > 0.15 {
				t.Errorf("%s: lost %g s, want %g", name, v, lost)
			}
			if v := got[0].Data["slower_pct"].(float64); math.Abs((1+v/100)/ratio-1) > 0.15 {
				t.Errorf("%s: told %g %%, want %g", name, v, 100*(ratio-1))
			}
			if p := d.Summary().Pace; math.Abs(p.Slower.V/ratio-1) > 0.15 || math.Abs(p.NowS.V/ratio-1) > 0.15 {
				t.Errorf("%s: %+v, want %g", name, p, ratio)
			}
			sec, times := 0.0, 0.0
			for _, s := range all {
				sec += s.Seconds
				times += s.Seconds * s.Slower.V
			}
			if math.Abs(times/sec/ratio-1) > 0.15 {
				t.Errorf("%s: slowness %g, want %g", name, times/sec, ratio)
			}
		}
	}
}

// Stalls that were always there are the pace, and so cost nothing where it becomes
// slower: only what is added does.
func TestFrequentStallsOfBefore(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	worst := worstOf(watchPace(training{step: stalled(10, 6, 0)}, d, hours(3), Baseline{}))
	if worst > 1.15 {
		t.Errorf("slowness %g", worst)
	}
	d = New(config(t))
	got := ofPace(training{step: stalled(10, 6, 0)}.slower(1.6, hours(2), hours(4)).play(d, hours(5)))
	if lost := hours(2) * (1 - 1/1.6); labels(got) != once || math.Abs(got[1].Data["lost_s"].(float64)/lost-1) > 0.1 {
		t.Errorf("%v, want %g", got, lost)
	}
}

// What comes and goes in step with the blocks, so that no two in a row are slow, is told
// by the time that all steps took.
func TestAlternatingPaceIsASlowdown(t *testing.T) {
	t.Parallel()
	for _, c := range few([]struct{ half, factor, scatter float64 }{{60, 3, 0}, {60, 4, 0}, {60, 2, 0}, {60, 3, 0.02}, {61, 3, 0}, {30, 3, 0}, {45, 3, 0}, {90, 3, 0}}) {
		even := jitter(1, c.scatter, 3)
		j := training{step: func(i int, s float64) float64 {
			if s >= hours(1) && s < hours(2.5) && math.Mod(s, 2*c.half) < c.half {
				return c.factor * even(i, s)
			}
			return even(i, s)
		}}
		got := ofPace(j.play(New(config(t)), hours(3.5)))
		if labels(got) != once || got[0].Level != event.Warn || got[1].Data["ended"] != EndedRecovered {
			t.Errorf("%+v: %s", c, outline(got))
			continue
		}
		if late := got[0].T.Sub(at(hours(1))).Minutes(); late > 35 {
			t.Errorf("%+v: told after %g min", c, late)
		}
		if want, v := hours(1.5)*0.5*(1-1/c.factor), got[1].Data["lost_s"].(float64); math.Abs(v/want-1) > 0.15 {
			t.Errorf("%+v: lost %g s, want %g", c, v, want)
		}
	}
	// One slow minute in ten is no such thing.
	for _, period := range []float64{600, 300} {
		got := ofPace(training{step: func(_ int, s float64) float64 {
			if s >= hours(2) && math.Mod(s, period) < 60 {
				return 1.6
			}
			return 1
		}}.play(New(config(t)), hours(4)))
		if strings.Contains(message(got), "come and go") {
			t.Errorf("one in %g s: %s", period, outline(got))
		}
	}
}

// message is all that events say.
func message(events []event.Event) string {
	out := ""
	for _, e := range events {
		out += e.Msg + "\n"
	}
	return out
}

// A slow state with a checkpoint in it costs what its steps do.
func TestCheckpointsInASlowdownCostNothing(t *testing.T) {
	t.Parallel()
	j := training{step: func(i int, _ float64) float64 {
		switch i % 300 {
		case 299:
			return 60
		case 285:
			return 4
		}
		return 1
	}}
	got := ofPace(j.slower(1.4, hours(2), hours(4)).play(New(config(t)), hours(6)))
	want := hours(2) * 270 / 363 * (1 - 1/1.4)
	if labels(got) != once || math.Abs(got[1].Data["lost_s"].(float64)/want-1) > 0.15 {
		t.Errorf("%v, want %g", got, want)
	}
}

// A loader that fetches its shards leaves the GPU idle; it ends, and is told to.
func TestStallsOfALoader(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	was := stalled(60, 60, hours(2))
	idle := [2]float64{}
	j := training{step: func(i int, s float64) float64 {
		v := was(i, s)
		if s > hours(4) {
			return 1
		}
		if v > 1 {
			idle = [2]float64{s, s + v}
		}
		return v
	}}
	read := 0.0
	j.around = func(s float64, x *sample.Sample) {
		if s >= idle[0] && s < idle[1] {
			x.UtilPct, x.PowerW = sample.Known(3), sample.Known(30)
			read += 200e6
		}
		x.TreeReadB = sample.Known(read)
	}
	got := ofPace(j.play(d, hours(6)))
	if labels(got) != once || got[0].Data["cause"] != CauseInput || got[1].Data["ended"] != EndedRecovered {
		t.Errorf("%s %v", outline(got), got)
	}
}

// What was always there, what comes seldom, and what a mark explains is no stall.
func TestNoStalls(t *testing.T) {
	t.Parallel()
	for name, j := range fewOf(map[string]training{
		"all along":                    {step: stalled(40, 20, 0)},
		"an evaluation each 500 steps": {step: stalled(500, 400, hours(1))},
		"one each twenty minutes":      {step: stalled(1200, 600, hours(1))},
		"a checkpoint each 100 steps":  {step: stalled(100, 12, 0)},
		"a log each 50":                {step: stalled(50, 4, hours(1))},
	}) {
		d := New(config(t))
		if got := ofPace(j.play(d, hours(6))); len(got) != 0 {
			t.Errorf("%s: %s\n%s", name, outline(got), got[0].Msg)
		}
	}
}
