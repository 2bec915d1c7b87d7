package throttle

import (
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// A machine at 81 C with less power than before is not throttled by heat while its clock
// is what it was: a neighbour, swap and longer rows cost power as well.
func TestSignatureIsNoOtherCause(t *testing.T) {
	t.Parallel()
	k := sample.Known
	rows := 0.0
	longer := training{every: 4, step: func(_ int, s float64) float64 { return map[bool]float64{true: 2, false: 1}[s > hours(2)] }}
	longer.tokens = func(int) float64 {
		rows++
		return map[bool]float64{true: 16384, false: 8192}[rows > hours(2)]
	}
	for name, c := range map[string]struct {
		training
		factor float64
		change func(x *sample.Sample)
		cause  string
	}{
		"a neighbour": {training{step: constant(1), every: 4}, 1.8, func(x *sample.Sample) {
			x.PowerW, x.ClockSMMHz = k(80), k(2300)
			beside(x)
		}, CauseGPUProcess},
		"a neighbour, and a lower clock": {training{step: constant(1), every: 4}, 1.8, func(x *sample.Sample) {
			x.PowerW, x.ClockSMMHz = k(78), k(2080)
			beside(x)
		}, CauseGPUProcess},
		"swap":        {training{step: constant(1), every: 4}, 1.5, func(x *sample.Sample) { x.PowerW, x.UtilPct, x.PSIMemSome10 = k(78), k(93), k(30) }, CauseMemory},
		"longer rows": {longer, 1, func(x *sample.Sample) { x.PowerW = k(81) }, ""},
		"longer rows, and a lower clock": {longer, 1, func(x *sample.Sample) {
			x.PowerW, x.ClockSMMHz = k(81), k(2090)
		}, ""},
	} {
		rows = 0
		d := withNames(t)
		j := c.slower(c.factor, hours(2), hours(5))
		j.around = func(s float64, x *sample.Sample) {
			x.TempC = k(81)
			if s > hours(2) && s < hours(5) {
				c.change(x)
			}
		}
		var pace []event.Event
		for _, e := range j.play(d, hours(6)) {
			switch e.Data["type"] {
			case ThermalThrottle:
				t.Errorf("%s: %s at %v: %s", name, e.Label, e.T.Sub(t0), e.Msg)
			case Slowdown:
				pace = append(pace, e)
				if e.Data["cause"] != c.cause {
					t.Errorf("%s: %s %v", name, e.Label, e.Data)
				}
			}
		}
		if c.cause != "" && labels(pace) != once {
			t.Errorf("%s: %s", name, outline(pace))
		}
		if s := d.Summary(); s.ThrottledShare.V > 0 {
			t.Errorf("%s: throttled for %g of the time", name, s.ThrottledShare.V)
		}
	}
}
