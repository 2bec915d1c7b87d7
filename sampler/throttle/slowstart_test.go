package throttle

import (
	"strings"
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

func TestHistoryOf(t *testing.T) {
	t.Parallel()
	k := sample.Known
	if h := HistoryOf(nil, nil, ""); h.Known {
		t.Errorf("%+v of nothing", h)
	}
	h := HistoryOf([]float64{2, 9, 3}, nil, "a")
	if want := (History{Known: true, StepTimeS: k(3), Runs: 3, From: "a"}); h != want {
		t.Errorf("%+v, want %+v", h, want)
	}
	h = HistoryOf([]float64{1, 2, 3, 4, 5}, []float64{50, 40, 30, 20, 10}, "b")
	if h.StepTimeS != k(3) || h.TokensPerS != k(30) || h.SlowStepTimeS != k(4) || h.SlowTokensPerS != k(20) {
		t.Errorf("%+v", h)
	}
}

// One bad run, or two, among the earlier ones must not make a slow start normal.
func TestBadRunsAreNoMeasure(t *testing.T) {
	t.Parallel()
	inverse := func(all []float64) (out []float64) {
		for _, v := range all {
			out = append(out, 8192/v)
		}
		return out
	}
	for name, c := range map[string]struct {
		runs []float64
		now  float64
		want string
	}{
		"one":               {[]float64{1}, 3, ComparedSlow},
		"one of two":        {[]float64{1, 3}, 3, ComparedSlow},
		"two of five":       {[]float64{1, 1, 1, 3, 3}, 3, ComparedSlow},
		"runs that differ":  {[]float64{1, 1.1, 1.2, 1.3, 1.4}, 1.35, ComparedNormal},
		"as the faster one": {[]float64{1, 3}, 1.05, ComparedNormal},
		"most are slow":     {[]float64{1, 3, 3, 3, 3}, 3, ComparedNormal},
	} {
		for what, h := range map[string]History{"steps": HistoryOf(c.runs, nil, "x"), "tokens": HistoryOf(nil, inverse(c.runs), "x")} {
			d := New(config(t))
			d.SetHistory(h)
			training{step: constant(c.now), tokens: func(int) float64 { return 8192 }}.play(d, 1800)
			if got := d.Summary().Pace.Compared; got != c.want {
				t.Errorf("%s of %s: %q, want %q", name, what, got, c.want)
			}
		}
	}
}

func TestStartAgainstEarlierRuns(t *testing.T) {
	t.Parallel()
	k := sample.Known
	steps := func(s float64) History {
		return History{Known: true, StepTimeS: k(s), Runs: 3, From: "20260713-220000-train-ab12"}
	}
	tokens := func(v float64) History { return History{Known: true, StepTimeS: k(99), TokensPerS: k(v), Runs: 3} }
	compiles := func(i int, s float64) float64 {
		if i < 20 {
			return 4
		}
		return jitter(1, 0.05, 1)(i, s)
	}
	for name, c := range map[string]struct {
		training
		h    History
		want string // compared
		slow bool
	}{
		"no earlier run":              {training{step: constant(2)}, History{}, ComparedNone, false},
		"as fast":                     {training{step: constant(2)}, steps(2), ComparedNormal, false},
		"faster":                      {training{step: constant(2)}, steps(3), ComparedNormal, false},
		"a fifth slower in time":      {training{step: constant(2.4)}, steps(2), ComparedNormal, false},
		"below 80 % of the speed":     {training{step: constant(2.6)}, steps(2), ComparedSlow, true},
		"much slower":                 {training{step: jitter(5, 0.1, 3)}, steps(2), ComparedSlow, true},
		"compiling at first":          {training{step: compiles}, steps(1), ComparedNormal, false},
		"compiling, and slower":       {training{step: compiles}, steps(0.7), ComparedSlow, true},
		"a line each ten steps":       {training{step: constant(2.6), print: 10}, steps(2), ComparedSlow, true},
		"slower steps of more tokens": {training{step: constant(4), tokens: func(int) float64 { return 8192 }}, tokens(2048), ComparedNormal, false},
		"fewer tokens a second":       {training{step: constant(4), tokens: func(int) float64 { return 8192 }}, tokens(4000), ComparedSlow, true},
		"as slow as some of them":     {training{step: constant(3)}, History{Known: true, StepTimeS: k(2), SlowStepTimeS: k(3.1), Runs: 8}, ComparedNormal, false},
		"slower than those too":       {training{step: constant(4)}, History{Known: true, StepTimeS: k(2), SlowStepTimeS: k(3.1), Runs: 8}, ComparedSlow, true},
		"too few steps":               {training{step: constant(600)}, steps(60), "", false},
		"a history of zero":           {training{step: constant(2)}, History{Known: true, StepTimeS: k(0)}, ComparedNone, false},
	} {
		d := New(config(t))
		d.SetHistory(c.h)
		got := ofPace(c.play(d, hours(2)))
		if p := d.Summary().Pace.Compared; p != c.want {
			t.Errorf("%s: compared %q, want %q", name, p, c.want)
		}
		want := ""
		if c.slow {
			want = "slow-start start, slow-start end"
		}
		if labels(got) != want {
			t.Errorf("%s:\n%s", name, outline(got))
			continue
		}
		if !c.slow {
			continue
		}
		if got[0].Level != event.Warn || got[1].Data["ended"] != EndedRun || got[1].Data["lost_s"].(float64) <= 0 {
			t.Errorf("%s: %v %v", name, got[0].Level, got[1].Data)
		}
	}
}

func TestSlowStartWordsAndEnd(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	d.SetHistory(History{Known: true, StepTimeS: sample.Known(2), Runs: 4, From: "20260713-220000-train-ab12"})
	// Something slows it for the first half hour.
	j := training{step: func(_ int, s float64) float64 { return map[bool]float64{true: 3, false: 2}[s < 1800] }}
	got := ofPace(j.play(d, hours(2)))
	if labels(got) != "slow-start start, slow-start end" {
		t.Fatalf("%s", outline(got))
	}
	start, end := got[0], got[1]
	if late := start.T.Sub(t0).Seconds(); late > 200 {
		t.Errorf("told after %g s", late)
	}
	for _, w := range []string{"50 % longer than in the 4 earlier runs of this job on this machine", "3.00 s against 2.00 s"} {
		if !strings.Contains(start.Msg, w) {
			t.Errorf("%q lacks %q", start.Msg, w)
		}
	}
	if start.Data["runs"] != 4 || start.Data["newest_run"] != "20260713-220000-train-ab12" || end.Data["ended"] != EndedRecovered {
		t.Errorf("%v\n%v", start.Data, end.Data)
	}
	if lost := end.Data["lost_s"].(float64); lost < 500 || lost > 620 {
		t.Errorf("lost %g s of about 580", lost)
	}
	if s := d.Summary().ByType[SlowStart]; s.Episodes != 1 || !s.LostSteps.OK {
		t.Errorf("%+v", s)
	}
}

// A machine that is wedged from the start says so, and warns once.
func TestSlowStartOfAWedgedMachine(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	d.SetHistory(History{Known: true, StepTimeS: sample.Known(2), Runs: 4})
	j := training{step: constant(5), around: func(s float64, x *sample.Sample) {
		w := wedged(s)
		x.TempC, x.PowerW, x.ClockSMMHz, x.ReasonBits = w.TempC, w.PowerW, w.ClockSMMHz, w.ReasonBits
	}}
	got := j.play(d, 3000)
	check(t, got, "60 power-wedge start warn", "205 slow-start start info", "3000 slow-start end info", "3000 power-wedge end warn")
	if got[1].Data["cause"] != PowerWedge {
		t.Errorf("cause %v", got[1].Data)
	}
}
