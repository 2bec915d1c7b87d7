package throttle

import (
	"math"
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// One stall that nobody knows the cause of must not hide what comes after it.
func TestUnknownStallHidesNothing(t *testing.T) {
	t.Parallel()
	k := sample.Known
	later := func(s float64) bool { return s > hours(3) && s < hours(6) }
	for name, c := range map[string]struct {
		factor float64
		around func(x *sample.Sample)
		cause  string
	}{
		"memory":               {2, func(x *sample.Sample) { x.PSIMemSome10 = k(40) }, CauseMemory},
		"a neighbour":          {2.5, beside, CauseGPUProcess},
		"a clock that fell":    {1.6, func(x *sample.Sample) { x.ClockSMMHz = k(1300) }, CauseClock},
		"nothing, for longer":  {2, func(*sample.Sample) {}, CauseUnknown},
		"nothing, much slower": {9, func(*sample.Sample) {}, CauseUnknown},
	} {
		d := withNames(t)
		j := training{step: constant(1), every: 4}.slower(4, hours(1), hours(1)+300).slower(c.factor, hours(3), hours(6))
		j.around = func(s float64, x *sample.Sample) {
			if later(s) {
				c.around(x)
			}
		}
		got := ofPace(j.play(d, hours(7)))
		if labels(got) != once+", "+once || got[2].Level != event.Warn || got[2].Data["cause"] != c.cause || got[3].Data["cause"] != c.cause {
			t.Errorf("%s: %s", name, outline(got))
			continue
		}
		if want := hours(3) * (1 - 1/c.factor); math.Abs(got[3].Data["lost_s"].(float64)/want-1) > 0.1 || math.Abs(sinceOf(got[2])-hours(3)) > 90 {
			t.Errorf("%s: %v", name, got[3].Data)
		}
	}
}

// A slow state that comes and goes is told once and counted each time.
func TestRepeatedSlowdownIsCounted(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{every: 4, step: func(_ int, s float64) float64 {
		return map[bool]float64{true: 3, false: 1}[s > hours(2) && math.Mod(s, 1800) < 480]
	}}
	if got := ofPace(j.play(d, hours(8))); labels(got) != once {
		t.Errorf("%s", outline(got))
	}
	if s := d.Summary().ByType[Slowdown]; s.Episodes < 11 || s.LostS.V < 11*290 || s.Seconds < 11*420 {
		t.Errorf("%+v", s)
	}
	// One that lasts for hours is told each time.
	d = New(config(t))
	j.step = func(_ int, s float64) float64 {
		return map[bool]float64{true: 2, false: 1}[s > hours(1) && math.Mod(s, hours(5)) < hours(2)]
	}
	if got := ofPace(j.play(d, hours(13))); labels(got) != once+", "+once+", "+once {
		t.Errorf("%s", outline(got))
	}
	// After half a day it is news again.
	d = New(config(t))
	j.step = func(_ int, s float64) float64 {
		return map[bool]float64{true: 3, false: 1}[s > hours(2) && math.Mod(s, hours(9)) < 480]
	}
	if got := ofPace(j.play(d, hours(20))); labels(got) != once+", "+once {
		t.Errorf("%s", outline(got))
	}
}
