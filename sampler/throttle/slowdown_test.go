package throttle

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// hours in seconds.
func hours(h float64) float64 { return h * 3600 }

func TestPaceOfEvenAndUnevenJobsIsQuiet(t *testing.T) {
	t.Parallel()
	spikes := func(every int, length float64) func(int, float64) float64 {
		return func(i int, _ float64) float64 {
			if i > 0 && i%every == 0 {
				return length
			}
			return 1
		}
	}
	// Rows sorted into buckets: stretches of short and of long steps.
	bucket := func(i int) float64 { return 1 + 2*float64(i/100%2) }
	for name, c := range fewOf(map[string]struct {
		training
		length float64
	}{
		"even":                                {training{step: constant(2)}, hours(14)},
		"fast steps":                          {training{step: constant(0.03)}, hours(2)},
		"slow steps":                          {training{step: jitter(95, 0.05, 1)}, hours(30)},
		"a line each ten steps":               {training{step: jitter(1.4, 0.1, 2), print: 10}, hours(10)},
		"step times of a bar":                 {training{step: jitter(0.12, 0.03, 3), smooth: true}, hours(6)},
		"a checkpoint each 500 steps":         {training{step: spikes(500, 45)}, hours(10)},
		"a long one each 500":                 {training{step: spikes(500, 900)}, hours(10)},
		"a small one each 20":                 {training{step: spikes(20, 6)}, hours(10)},
		"checkpoints between lines":           {training{step: spikes(500, 60), print: 10}, hours(10)},
		"an epoch each 300":                   {training{step: spikes(300, 25)}, hours(10)},
		"the first 20 steps compile":          {training{step: func(i int, _ float64) float64 { return map[bool]float64{true: 9, false: 1}[i < 20] }}, hours(8)},
		"the first 20 long ones":              {training{step: func(i int, _ float64) float64 { return map[bool]float64{true: 240, false: 30}[i < 20] }}, hours(10)},
		"faster later":                        {training{step: func(_ int, s float64) float64 { return map[bool]float64{true: 3, false: 2}[s < hours(3)] }}, hours(8)},
		"the clock sags as it warms up":       {training{step: func(_ int, s float64) float64 { return 1 + 0.09*min(1, s/600) }}, hours(14)},
		"buckets of lengths":                  {training{step: func(i int, _ float64) float64 { return bucket(i) }}, hours(10)},
		"buckets of lengths, tokens told":     {training{step: func(i int, _ float64) float64 { return bucket(i / 10) }, tokens: func(i int) float64 { return 1024 * bucket(i/10) }}, hours(10)},
		"rows of any length, tokens told":     {training{step: varied(1, 4), tokens: func(i int) float64 { return 900 * varied(1, 4)(i, 0) }}, hours(10)},
		"longer rows later, tokens told":      {training{step: func(i int, _ float64) float64 { return 1 + math.Floor(float64(i)/9000) }, tokens: func(i int) float64 { return 2048 * (1 + math.Floor(float64(i)/9000)) }}, hours(12)},
		"longer rows later, tokens by digits": {training{step: func(i int, _ float64) float64 { return 1 + math.Floor(float64(i)/9000) }, tokens: func(i int) float64 { return 2048 * (1 + math.Floor(float64(i)/9000)) }, told: digits(4), print: 10}, hours(12)},
		"sampled each ten minutes":            {training{step: jitter(3, 0.05, 4), every: 600}, hours(100)},
		"sampled ten times a second":          {training{step: jitter(0.7, 0.05, 5), every: 0.1}, hours(1)},
	}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := New(config(t))
			if raceSlack > 1 {
				c.length = max(c.length/4, min(c.length, hours(4)))
			}
			if got := ofPace(c.play(d, c.length)); len(got) != 0 {
				t.Errorf("%s: %s\n%s", labels(got), outline(got), got[0].Msg)
			}
			if !d.slow.base.known() {
				t.Error("no baseline, so that nothing was judged")
			}
		})
	}
}

// varied draws a length of step i between lo and hi, the same for each i.
func varied(lo, hi float64) func(int, float64) float64 {
	return func(i int, _ float64) float64 {
		h := uint64(i)*0x9e3779b97f4a7c15 + 0x1234567
		h ^= h >> 29
		h *= 0xbf58476d1ce4e5b9
		h ^= h >> 32
		return lo + (hi-lo)*float64(h%1000)/1000
	}
}

// digits prints a number with so many digits.
func digits(n int) func(float64) float64 {
	return func(v float64) float64 {
		var out float64
		if _, err := fmt.Sscan(fmt.Sprintf("%.*e", n-1, v), &out); err != nil {
			return 0
		}
		return out
	}
}

func TestSlowdownIsToldOnce(t *testing.T) {
	t.Parallel()
	bucket := func(i int) float64 { return 1 + 2*float64(i/100%2) }
	for name, c := range fewOf(map[string]struct {
		training
		from, to, length float64
		factor           float64
		within           float64 // how late it may be told
	}{
		"twice as long":               {training{step: constant(2)}, hours(2), hours(3), hours(5), 2, 200},
		"a fifth longer":              {training{step: jitter(1, 0.05, 1)}, hours(2), hours(3), hours(5), 1.2, 200},
		"with much jitter":            {training{step: jitter(1, 0.2, 2)}, hours(2), hours(4), hours(6), 1.4, 300},
		"a minute a step":             {training{step: jitter(60, 0.03, 3)}, hours(10), hours(16), hours(24), 3, 3600},
		"a line each ten steps":       {training{step: constant(1.5), print: 10}, hours(2), hours(3), hours(5), 1.6, 300},
		"fast steps":                  {training{step: jitter(0.04, 0.1, 4)}, hours(1), hours(2), hours(3), 1.3, 200},
		"a hundred times":             {training{step: constant(1)}, hours(2), hours(4), hours(6), 100, 1300},
		"to the end":                  {training{step: constant(1)}, hours(2), hours(9), hours(5), 1.5, 200},
		"in the seventh minute":       {training{step: constant(1)}, 400, hours(1), hours(2), 1.5, 200},
		"buckets, tokens told":        {training{step: func(i int, _ float64) float64 { return bucket(i / 10) }, tokens: func(i int) float64 { return 1024 * bucket(i/10) }}, hours(3), hours(5), hours(9), 1.5, 500},
		"even lengths, tokens told":   {training{step: constant(1), tokens: func(int) float64 { return 8192 }}, hours(3), hours(5), hours(9), 1.5, 200},
		"tokens by digits, late":      {training{step: constant(1), tokens: func(int) float64 { return 8192 }, told: digits(4), print: 10}, hours(20), hours(25), hours(30), 1.5, 2500},
		"sampled each minute":         {training{step: jitter(3, 0.05, 5), every: 60}, hours(6), hours(8), hours(12), 1.5, 1200},
		"with checkpoints in between": {training{step: func(i int, _ float64) float64 { return map[bool]float64{true: 40, false: 1}[i%300 == 299] }}, hours(2), hours(4), hours(6), 1.5, 300},
	}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := New(config(t))
			got := ofPace(c.slower(c.factor, c.from, c.to).play(d, c.length))
			if labels(got) != once {
				t.Fatalf("%s\n%s", labels(got), outline(got))
			}
			start, end := got[0], got[1]
			if start.Level != event.Warn || start.Data["id"] != end.Data["id"] || start.Data["cause"] != CauseUnknown {
				t.Errorf("start %v %v", start.Level, start.Data)
			}
			if late := start.T.Sub(at(c.from)).Seconds(); late < 0 || late > c.within {
				t.Errorf("told %g s late", late)
			}
			// It began where it began, give or take the block it began in.
			if off := sinceOf(start) - c.from; math.Abs(off) > c.within/2+60 {
				t.Errorf("since %g s off", off)
			}
			lasted := min(c.to, c.length) - c.from
			want := lasted * (1 - 1/c.factor)
			if lost := end.Data["lost_s"].(float64); math.Abs(lost-want) > 0.1*want+c.factor*40 {
				t.Errorf("lost %g s, want %g", lost, want)
			}
			how := EndedRecovered
			if c.to > c.length {
				how = EndedRun
			}
			if end.Data["ended"] != how {
				t.Errorf("ended %v, want %s", end.Data["ended"], how)
			}
			if d.Summary().ByType[Slowdown].Episodes != 1 {
				t.Errorf("summary %+v", d.Summary().ByType)
			}
		})
	}
}

// A drift of a percent or two an hour is no step, but the sum of it is a slowdown.
func TestSlowDriftIsSeen(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: func(_ int, s float64) float64 { return 1 + 0.02*s/3600 }}
	got := ofPace(j.play(d, hours(14)))
	if labels(got) != once {
		t.Fatalf("%s", outline(got))
	}
	// At two percent an hour a tenth is reached after five hours.
	if h := got[0].T.Sub(t0).Hours(); h < 4.8 || h > 6 {
		t.Errorf("told after %g hours", h)
	}
}

// A break of two minutes is none: it goes on.
func TestSlowdownThatComesBackSoonIsOne(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: func(_ int, s float64) float64 {
		if s >= 3600 && s < 7200 && math.Mod(s, 600) > 120 {
			return 2
		}
		return 1
	}}
	got := ofPace(j.play(d, hours(4)))
	if labels(got) != once {
		t.Fatalf("%s", outline(got))
	}
}

// Without tokens nobody can know that rows became longer. It is told, but the same
// again is not.
func TestSameSlowdownWithoutACauseIsToldOnce(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: func(_ int, s float64) float64 { return map[bool]float64{true: 2, false: 1}[math.Mod(s, 7200) > 5400] }}
	if got := ofPace(j.play(d, hours(24))); labels(got) != once {
		t.Fatalf("%s", outline(got))
	}
}

func TestPausesAndGapsAreNoSlowSteps(t *testing.T) {
	t.Parallel()
	// Three pauses in a row, each within one step: that step is as long as the pause.
	stands := func(s float64) bool { return s > 3600 && s < 7200 && math.Mod(s, 120) < 100 }
	j := training{
		step: func(_ int, s float64) float64 {
			if next := s + 1; stands(next) {
				return 1 + 100 - math.Mod(next, 120)
			}
			return 1
		},
		before: func(s float64, d *Detector) { d.Paused(stands(s)) },
	}
	d := New(config(t))
	if got := ofPace(j.play(d, hours(3))); len(got) != 0 {
		t.Errorf("pauses: %s\n%s", outline(got), got[0].Msg)
	}
	// The machine sleeps for an hour, again and again.
	d = New(config(t))
	var got []event.Event
	step, clock := 0.0, 0.0
	for s := 0; s < 40000; s++ {
		x := light(clock)
		x.Step, x.StepTimeS = sample.Known(step), sample.Known(1)
		if s%40 == 0 && s > 4000 {
			x.StepTimeS = sample.Known(3600)
		}
		got = append(got, d.Sample(x)...)
		step++
		clock++
		if s%40 == 39 && s > 4000 {
			clock += 3600
		}
	}
	if got = ofPace(got); len(got) != 0 {
		t.Errorf("sleep: %s\n%s", outline(got), got[0].Msg)
	}
}

func TestMarkedStepsAreNoSlowSteps(t *testing.T) {
	t.Parallel()
	// An evaluation of 90 s after each 30 steps from the second hour on: most of the
	// time, and no slow step.
	evalAt := func(i int, s float64) bool { return s > 3600 && i%30 == 29 }
	j := training{step: func(i int, s float64) float64 {
		if evalAt(i, s) {
			return 91
		}
		return 1
	}}
	last := -1.0
	j.around = func(_ float64, x *sample.Sample) {
		if x.Step.OK {
			last = x.Step.V
		}
	}
	told := -1.0
	j.before = func(s float64, d *Detector) {
		if i := int(last); s > 3600 && i%30 == 29 && last != told {
			d.Mark(at(s), MarkEval)
			told = last
		}
	}
	d := New(config(t))
	if got := ofPace(j.play(d, hours(4))); len(got) != 0 {
		t.Errorf("%s\n%s", outline(got), got[0].Msg)
	}
}

func TestAnotherAttemptHasItsOwnPace(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	training{step: constant(1)}.open(d, hours(1))
	// Attempt 2 resumes at another length: three times slower from its start.
	j := training{step: constant(3), around: func(s float64, x *sample.Sample) {
		x.Attempt, x.T = 2, x.T.Add(time.Hour)
	}}
	got := ofPace(j.open(d, hours(1)))
	if len(got) != 0 {
		t.Fatalf("%s", outline(got))
	}
	if p := d.Summary().Pace; p.BaselineS.Or(0) != 3 || p.Compared != ComparedNone || p.Steps < 1100 {
		t.Errorf("pace %+v", p)
	}
	// What is open ends with its attempt.
	d = New(config(t))
	got = ofPace(training{step: constant(1)}.slower(2, 3000, 1e9).open(d, hours(1)))
	got = append(got, ofPace(j.open(d, 600))...)
	if labels(got) != once || got[1].Data["ended"] != EndedAttempt || got[1].Attempt != 1 {
		t.Errorf("%s %v", outline(got), got)
	}
}

func TestStrangeStepNumbersAndTimes(t *testing.T) {
	t.Parallel()
	k := sample.Known
	for name, change := range fewOf(map[string]func(s float64, x *sample.Sample){
		"numbers jump ahead":  func(s float64, x *sample.Sample) { x.Step.V += 1e6 * math.Floor(s/500) },
		"numbers fall back":   func(s float64, x *sample.Sample) { x.Step.V = math.Mod(x.Step.V, 700) },
		"times of zero":       func(s float64, x *sample.Sample) { x.StepTimeS = k(0) },
		"times of NaN":        func(s float64, x *sample.Sample) { x.StepTimeS = k(math.NaN()) },
		"now and then NaN":    func(s float64, x *sample.Sample) { set2(x, math.Mod(s, 3) == 0, math.NaN()) },
		"now and then -1":     func(s float64, x *sample.Sample) { set2(x, math.Mod(s, 3) == 0, -1) },
		"now and then a lot":  func(s float64, x *sample.Sample) { set2(x, math.Mod(s, 400) == 0, 1e300) },
		"infinite":            func(s float64, x *sample.Sample) { x.StepTimeS = k(math.Inf(1)) },
		"tokens that fall":    func(s float64, x *sample.Sample) { x.Tokens = k(1e6 - s) },
		"tokens NaN":          func(s float64, x *sample.Sample) { x.Tokens = k(math.NaN()) },
		"tokens once an hour": func(s float64, x *sample.Sample) { x.Tokens = k(1e7 * math.Floor(s/3600)) },
		"no steps":            func(s float64, x *sample.Sample) { x.Step = sample.Num{} },
		"a step for ever":     func(s float64, x *sample.Sample) { x.Step = k(min(x.Step.V, 3000)) },
	}) {
		d := New(config(t))
		j := training{step: constant(1), around: change}
		if got := ofPace(j.play(d, hours(2))); len(got) != 0 {
			t.Errorf("%s: %s", name, outline(got))
		}
		for typ, s := range d.Summary().ByType {
			if math.IsNaN(s.LostS.V) || math.IsInf(s.LostS.V, 0) {
				t.Errorf("%s: %s lost %v", name, typ, s.LostS)
			}
		}
	}
}

// A unit that throttles for a second in each minute all night has a pace as well.
func TestPaceOfAUnitThatPulses(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: constant(1), around: func(s float64, x *sample.Sample) {
		if math.Mod(s, 45) == 0 {
			x.ReasonBits = sample.Known(0x20)
		}
	}}.slower(1.5, 7200, 9000)
	got := ofPace(j.play(d, hours(4)))
	if labels(got) != once || got[0].Data["cause"] != CauseUnknown {
		t.Errorf("%s", outline(got))
	}
	if p := d.Summary().Pace; p.Steps < 9000 || p.BaselineS.Or(0) != 1 {
		t.Errorf("pace %+v", p)
	}
}

func set2(x *sample.Sample, on bool, v float64) {
	if on {
		x.StepTimeS = sample.Known(v)
	}
}

// A week of a job with any jitter gives no alarm.
func TestNoFalseAlarmInAWeek(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	rapid.Check(t, func(rt *rapid.T) {
		part := rapid.Float64Range(0.03, 0.2).Draw(rt, "jitter")
		length := math.Exp(rapid.Float64Range(math.Log(0.5), math.Log(90)).Draw(rt, "log step"))
		seed := rapid.Uint64().Draw(rt, "seed")
		d := New(cfg)
		d.attempt = 1
		next := jitter(length, part, seed)
		x := healthy(0)
		var out []event.Event
		clock, i := 0.0, 0
		every := max(20, length)
		for clock < 7*86400/raceSlack {
			// One step time in twenty seconds is less than there is: the pace alone is fed.
			clock += every
			i++
			x.T = at(clock)
			n := max(1, math.Floor(every/length))
			d.pace.last = finished{n, next(i, clock)}
			d.judgePace(&out, x, reading{t: x.T})
		}
		if len(out) != 0 {
			rt.Fatalf("%s\n%s", outline(out), out[0].Msg)
		}
		if !d.slow.base.known() {
			rt.Fatal("no baseline")
		}
	})
}

func TestPaceCostsLittleASample(t *testing.T) { // not parallel: it counts allocations
	d := New(config(t))
	x := healthy(0)
	var out []event.Event
	allocs := testing.AllocsPerRun(20000, func() {
		x.T = x.T.Add(time.Second)
		d.pace.last = finished{1, 1}
		d.judgePace(&out, x, reading{t: x.T})
	})
	if allocs >= 1 {
		t.Errorf("%g allocations a sample", allocs)
	}
}

func TestSlowdownWords(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: constant(2)}.slower(1.5, hours(2), hours(3))
	got := ofPace(j.play(d, hours(4)))
	start, end := got[0], got[1]
	for _, w := range []string{"a step takes 50 % longer than before (3.00 s against 2.00 s)", "cause unknown", "clock 2230 MHz against 2230"} {
		if !strings.Contains(start.Msg, w) {
			t.Errorf("start %q lacks %q", start.Msg, w)
		}
	}
	for _, w := range []string{"at worst by 50 %", "steps)", "cause is unknown", "the pace is back"} {
		if !strings.Contains(end.Msg, w) {
			t.Errorf("end %q lacks %q", end.Msg, w)
		}
	}
	for _, w := range []string{"batch", "precision"} {
		if strings.Contains(start.Msg+end.Msg, w) {
			t.Errorf("it advises to re-tune: %q", w)
		}
	}
	if start.Data["baseline_step_time_s"] != 2.0 || start.Data["step_time_s"].(float64) < 2.7 || start.Data["step"] == nil || end.Data["worst_slower_pct"] != 50.0 {
		t.Errorf("%v\n%v", start.Data, end.Data)
	}
}
