package throttle

import (
	"fmt"
	"math"
	"testing"

	"sparkrun/internal/sample"
)

// What a state cost counts from where it began, however late it could be told: a wedge
// in every sample, one by its means, and a low cap.
func TestLostFromTheBeginning(t *testing.T) {
	t.Parallel()
	const from, to = 3600.0, 7200.0
	for name, c := range map[string]struct {
		typ    string
		clock  float64
		power  float64
		rests  bool // it loads data in each ten seconds
		factor float64
	}{
		"every sample": {PowerWedge, 611, 15, false, 3},
		"by means":     {PowerWedge, 611, 15, true, 3},
		"low cap":      {LowCap, 1600, 60, false, 3},
		"low, a bit":   {LowCap, 1600, 60, false, 1.3},
	} {
		for _, every := range []float64{1, 10} {
			t.Run(fmt.Sprintf("%s, each %g s", name, every), func(t *testing.T) {
				t.Parallel()
				d := New(config(t))
				j := training{step: jitter(1, 0.02, 9), every: every, around: func(s float64, x *sample.Sample) {
					k := sample.Known
					x.ReasonBits = k(0)
					if s < from || s >= to {
						return
					}
					x.TempC, x.PowerW, x.ClockSMMHz = k(44), k(c.power), k(c.clock)
					if c.rests && math.Mod(s, 100) > 85 {
						x.UtilPct, x.PowerW = k(20), k(12)
					}
				}}.slower(c.factor, from, to)
				want := (to - from) * (1 - 1/c.factor)
				for _, e := range j.play(d, 9000) {
					if e.Data["type"] != c.typ || e.Data["until"] == nil {
						continue
					}
					lost, ok := e.Data["lost_s"].(float64)
					if !ok || math.Abs(lost/want-1) > 0.06 {
						t.Errorf("lost %v, want %g: %v", e.Data["lost_s"], want, e.Data)
					}
					made, _ := e.Data["steps"].(int)
					if math.Abs(float64(made)/((to-from)/c.factor)-1) > 0.05 {
						t.Errorf("%d steps of %g", made, (to-from)/c.factor)
					}
					if all := d.Summary().LostS; math.Abs(all.V/want-1) > 0.06 {
						t.Errorf("in all %v, want %g", all, want)
					}
					return
				}
				t.Error("no end")
			})
		}
	}
}

// Before there is a settled pace, the one to compare with is that from before.
func TestLostOfAnEarlyWedge(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: constant(1), around: func(s float64, x *sample.Sample) {
		if s >= 200 {
			x.TempC, x.PowerW, x.ClockSMMHz, x.ReasonBits = sample.Known(44), sample.Known(60), sample.Known(1600), sample.Known(0)
		}
	}}.slower(3, 200, 9000)
	for _, e := range j.play(d, 3800) {
		if e.Data["type"] == LowCap && e.Data["until"] != nil {
			if lost, ok := e.Data["lost_s"].(float64); !ok || math.Abs(lost-2400) > 120 {
				t.Errorf("%v", e.Data)
			}
			return
		}
	}
	t.Error("no end")
}
