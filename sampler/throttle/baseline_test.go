package throttle

import (
	"fmt"
	"math"
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// beside adds a neighbour on the GPU, with 30 GiB.
func beside(x *sample.Sample) {
	x.GPUOtherMiB = sample.Known(30000)
	x.Processes = append(x.Processes, sample.GPUProcess{PID: 4242, UsedMiB: sample.Known(30000)})
}

// withNames is a detector that knows the training's own process, and the neighbour.
func withNames(t *testing.T) *Detector {
	d := New(config(t))
	d.Names = func(pid int) string { return map[int]string{4242: "vllm serve"}[pid] }
	return d
}

// ramp is a pace that falls by a part within so many minutes, and stays there.
func ramp(part, minutes float64) func(float64) float64 {
	return func(s float64) float64 { return 1 + part*min(1, s/60/minutes) }
}

// A slow state that begins while the attempt's own pace is still being learned must not
// become that pace.
func TestEarlySlowStateIsNotTheBaseline(t *testing.T) {
	t.Parallel()
	for _, from := range few([]float64{130, 200, 240, 300, 330, 450, 600, 1500}) {
		d := withNames(t)
		j := training{step: jitter(1, 0.02, 2)}.slower(2.5, from, 1e9)
		j.around = func(s float64, x *sample.Sample) {
			if s > from {
				beside(x)
			}
		}
		got := ofPace(j.play(d, hours(4)))
		if labels(got) != once || got[0].Level != event.Warn || got[0].Data["cause"] != CauseGPUProcess || got[0].Data["gpu_pid"] != 4242 {
			t.Errorf("from %g: %s", from, outline(got))
			continue
		}
		if late := got[0].T.Sub(at(from)).Seconds(); late > 600 {
			t.Errorf("from %g: told %g s late", from, late)
		}
		// What was learned as its own pace is of the slow state after all.
		if off := math.Abs(sinceOf(got[0]) - from); off > 90 {
			t.Errorf("from %g: since %g s off", from, off)
		}
		if lost, want := got[1].Data["lost_s"].(float64), (hours(4)-from)*0.6; math.Abs(lost-want) > 0.1*want {
			t.Errorf("from %g: lost %g s, want %g", from, lost, want)
		}
		if p := d.Summary().Pace; p.BaselineS.V > 1.15 || p.Slower.V < 2.1 {
			t.Errorf("from %g: %+v", from, p)
		}
	}
}

// It comes back: the pace that goes on being learned is the fast one.
func TestEarlySlowStateThatEnds(t *testing.T) {
	t.Parallel()
	for _, to := range []float64{1200, 3000} {
		d := New(config(t))
		got := ofPace(training{step: jitter(1, 0.02, 2)}.slower(2.5, 240, to).play(d, hours(3)))
		if labels(got) != once || got[1].Data["ended"] != EndedRecovered {
			t.Errorf("to %g: %s", to, outline(got))
		}
		if b := d.Summary().Pace.BaselineS; math.Abs(b.V-1) > 0.03 {
			t.Errorf("to %g: baseline %g", to, b.V)
		}
	}
}

// Heat comes slowly, over the very minutes in which the pace is learned.
func TestRampsOfTheFirstHour(t *testing.T) {
	t.Parallel()
	for _, part := range []float64{0.15, 0.3, 0.6} {
		for _, minutes := range few([]float64{10, 5, 20, 45}) {
			if part < 0.2 && minutes < 10 {
				continue // over before the pace it began with was seen
			}
			pace := ramp(part, minutes)
			j := jitter(1, 0.02, uint64(minutes))
			got := ofPace(training{step: func(i int, s float64) float64 { return j(i, s) * pace(s) }}.play(New(config(t)), hours(4)))
			if labels(got) != once {
				t.Errorf("+%g in %g min: %s", part, minutes, outline(got))
			}
		}
	}
	// With all that heat changes: it is told, and that it is heat.
	for _, minutes := range []float64{5, 10, 30} {
		pace := ramp(0.6, minutes)
		j := training{step: func(_ int, s float64) float64 { return pace(s) }, around: func(s float64, x *sample.Sample) {
			f := min(1, s/60/minutes)
			x.TempC, x.ClockSMMHz, x.PowerW = sample.Known(60+26*f), sample.Known(2400-700*f), sample.Known(95-25*f)
		}}
		throttled, slowed := 0, 0
		for _, e := range j.play(New(config(t)), hours(4)) {
			if e.Kind == event.ThrottleEnd && e.Data["type"] == Slowdown && e.Data["cause"] != ThermalThrottle && e.Data["cause"] != CauseClock {
				t.Errorf("in %g min: %v", minutes, e.Data)
			}
			switch {
			case e.Kind != event.ThrottleStart || e.Level != event.Warn:
			case e.Data["type"] == ThermalThrottle:
				throttled++
			case e.Data["type"] == Slowdown:
				slowed++
			}
		}
		if throttled != 1 || slowed != 1 {
			t.Errorf("in %g min: %d times thermal-throttle, %d slowdown", minutes, throttled, slowed)
		}
	}
}

// What a healthy machine does in its first hour is no slowdown: its clock sags by 9 %,
// its first steps compile, its steps scatter.
func TestHealthyFirstHours(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	for _, step := range []float64{2, 12, 60, 300} {
		for _, part := range []float64{0.02, 0.1, 0.2} {
			for seed := range uint64(12 / raceSlack) {
				j, sag := jitter(step, part, seed*17+uint64(step)), ramp(0.09, 5+4*float64(seed))
				compiling := float64(seed % 3 * 10)
				d := New(cfg)
				d.attempt = 1
				x := healthy(0)
				var out []event.Event
				for i, s := 0, 0.0; s < max(hours(2), 100*step); i++ {
					took := j(i, s) * sag(s)
					if float64(i) < compiling {
						took *= 4
					}
					s += took
					x.T = at(s)
					d.pace.last = finished{1, took}
					d.judgePace(&out, x, reading{t: x.T})
				}
				if len(out) > 0 {
					t.Errorf("steps of %g s, jitter %g, seed %d: %s\n%s", step, part, seed, outline(out), out[0].Msg)
				}
				if !d.slow.base.known() {
					t.Errorf("steps of %g s: no baseline", step)
				}
			}
		}
	}
}

// Steps of minutes have a baseline and a slowdown within a night.
func TestSlowdownOfLongSteps(t *testing.T) {
	t.Parallel()
	for step, within := range map[float64]float64{60: 0.3, 120: 0.6, 300: 1.3, 600: 2.5} {
		j := training{every: 10, step: jitter(step, 0.02, 3)}.slower(2, hours(3), hours(9))
		got := ofPace(j.play(New(config(t)), hours(9)))
		if labels(got) != once {
			t.Errorf("steps of %g s: %s", step, outline(got))
			continue
		}
		if late := got[0].T.Sub(at(hours(3))).Hours(); late < 0 || late > within {
			t.Errorf("steps of %g s: told %.1f h late", step, late)
		}
	}
	// A drift of hours over which the pace is learned.
	drift := ramp(0.6, 300)
	got := ofPace(training{every: 10, step: func(_ int, s float64) float64 { return 120 * drift(s) }}.play(New(config(t)), hours(10)))
	if labels(got) != once || got[1].Data["worst_slower_pct"].(float64) < 45 {
		t.Errorf("drift: %s", outline(got))
	}
}

func TestLevel(t *testing.T) {
	t.Parallel()
	repeat := func(v ...float64) (out []float64) {
		for i := 0; i+1 < len(v); i += 2 {
			for range int(v[i+1]) {
				out = append(out, v[i])
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		blocks     []float64
		pace       float64
		sdAtMost   float64
		sdAtLeast  float64
		withinPace float64
	}{
		"one pace":                  {repeat(2, 12), 2, 0, 0, 0},
		"slower from the third on":  {repeat(1, 3, 2.5, 9), 1, 0.01, 0, 0},
		"and one in between":        {repeat(1, 3, 1.7, 1, 2.5, 8), 1, 0.01, 0, 0},
		"too few to tell":           {repeat(1, 3, 2.5, 4), 2.5, 0, 0, 0},
		"faster later":              {repeat(3, 3, 2, 9), 2, 1, 0.2, 0},
		"slow for a while":          {repeat(1, 4, 2, 4, 1, 5), 1, 9, 0.3, 0},
		"to and fro":                {[]float64{1, 3, 3, 1, 3, 3, 1, 3, 3, 1, 3, 3}, 3, 0, 0, 0},
		"always slower":             {[]float64{1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8}, 1.1, 0.01, 0, 1e-9},
		"the first ones compile":    {repeat(9, 1, 1, 3, 2, 12), 1, 0.01, 0, 0},
		"warmer by a few per cent ": {[]float64{1, 1.01, 1.02, 1.03, 1.04, 1.04, 1.04, 1.04, 1.04, 1.04}, 1.01, 0.02, 0, 0.02},
	} {
		pace, sd := level(c.blocks)
		if math.Abs(pace-c.pace) > c.withinPace || sd > c.sdAtMost || sd < c.sdAtLeast {
			t.Errorf("%s: %g, scatter %g", name, pace, sd)
		}
	}
}

// Ratios that are told are those of the steps, however long: the steps of a block are
// clipped only to judge it.
func TestRatiosThatAreTold(t *testing.T) {
	t.Parallel()
	for _, factor := range []float64{1.5, 4, 60} {
		for name, j := range map[string]training{
			"":            {step: constant(1), every: 4},
			" by a token": {step: varied(0.7, 1.3), tokens: func(i int) float64 { return 5000 * varied(0.7, 1.3)(i, 0) }},
		} {
			d := New(config(t))
			got := ofPace(j.slower(factor, hours(1.5), 1e9).play(d, hours(3.5)))
			if labels(got) != once {
				t.Errorf("%g times%s: %s", factor, name, outline(got))
				continue
			}
			want := 100 * (factor - 1)
			if pct := got[1].Data["worst_slower_pct"].(float64); math.Abs(pct/want-1) > 0.12 {
				t.Errorf("%g times%s: %g %% at worst", factor, name, pct)
			}
			lost := hours(2) * (1 - 1/factor)
			if v := got[1].Data["lost_s"].(float64); math.Abs(v/lost-1) > 0.12 {
				t.Errorf("%g times%s: lost %g s, want %g", factor, name, v, lost)
			}
			if p := d.Summary().Pace; math.Abs(p.Slower.V/factor-1) > 0.12 {
				t.Errorf("%g times%s: %+v", factor, name, p)
			}
			if name == "" {
				words := fmt.Sprintf("a step takes %.0f %% longer than before (%s against 1.00 s)", got[0].Data["slower_pct"], stepWords(got[0].Data["step_time_s"].(float64)))
				if slower := got[0].Data["slower_pct"].(float64); got[0].Msg[:len(words)] != words || math.Abs(got[0].Data["step_time_s"].(float64)-1-slower/100) > 0.01 {
					t.Errorf("%q, want %q", got[0].Msg, words)
				}
			}
		}
	}
}
