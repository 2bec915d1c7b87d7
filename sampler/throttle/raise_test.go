package throttle

import (
	"math"
	"strings"
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// A throttle that goes on is graver than its first second said. That is told once, and
// only of what lasts.
func TestThrottleThatGoesOnIsRaisedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bits    float64
		from    float64
		lit     func(s float64) bool
		updates string // the times of updates in ten minutes, with their level
	}{
		"held for 160 s":              {0x20, 3600, func(s float64) bool { return s < 160 }, "120 thermal-throttle update warn"},
		"braked for 160 s":            {0x80, 3600, func(s float64) bool { return s < 160 }, "120 hw-brake update warn"},
		"held for nine minutes":       {0x40, 3600, func(s float64) bool { return s < 540 }, "120 thermal-throttle update warn"},
		"held for a minute and a bit": {0x20, 3600, func(s float64) bool { return s < 70 }, ""},
		"a second in each 50":         {0x20, 3600, func(s float64) bool { return math.Mod(s, 50) < 1 && s < 500 }, ""},
		"of a day, it is little":      {0x20, 24 * 3600, func(s float64) bool { return s < 160 }, ""},
	} {
		d := New(config(t))
		got := play(d, 0, int(c.from), light, nil)
		got = append(got, play(d, int(c.from), int(c.from)+590, light, func(s float64, x *sample.Sample) {
			if c.lit(s - c.from) {
				x.ReasonBits = sample.Known(c.bits)
			}
		})...)
		var updates []event.Event
		for _, e := range got {
			if e.Kind == event.ThrottleUpdate {
				e.T = e.T.Add(-at(c.from).Sub(t0))
				updates = append(updates, e)
			}
		}
		if o := outline(updates); o != c.updates {
			t.Errorf("%s: %q, want %q\n%s", name, o, c.updates, outline(got))
		}
	}
}

// A plateau with a throttle in the middle was at its cap for the rest of the time.
func TestCapWordsLeaveOutWhatWasThrottled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		held       int
		want, word string
	}{
		"throttled": {160, "power cap for 6.7 min", "held back for 2.7 min"},
		"never":     {0, "power cap for 9.3 min", ""},
	} {
		d := New(config(t))
		play(d, 0, 560, healthy, func(s float64, x *sample.Sample) {
			if int(s) >= 200 && int(s) < 200+c.held {
				x.ReasonBits, x.PowerW, x.ClockSMMHz = sample.Known(0x20), sample.Known(70), sample.Known(1700)
			}
		})
		for _, e := range d.Finish(at(560)) {
			if e.Data["type"] != PowerCap {
				continue
			}
			if !strings.Contains(e.Msg, c.want) || !strings.Contains(e.Msg, c.word) || (c.held == 0) != (e.Data["throttled_s"] == nil) {
				t.Errorf("%s: %q %v", name, e.Msg, e.Data)
			}
		}
		if sum := d.Summary().ByType[PowerCap]; sum.ThrottledS != 0 || sum.Episodes != 1 {
			t.Errorf("%s: a cap is no throttling: %+v", name, sum)
		}
	}
}

// Pulses of one reading each have no length, but their episodes last as long as they
// held the GPU back.
func TestSecondsOfShortPulses(t *testing.T) {
	t.Parallel()
	for _, every := range []float64{70, 130} {
		d := New(config(t))
		play(d, 0, 7200, light, func(s float64, x *sample.Sample) {
			if math.Mod(s, every) == 10 {
				x.ReasonBits = sample.Known(0x20)
			}
		})
		d.Finish(at(7200))
		if sum := d.Summary().ByType[ThermalThrottle]; sum.Seconds < sum.ThrottledS || sum.ThrottledS < 50 || sum.Episodes < 50 {
			t.Errorf("each %g s: %+v", every, sum)
		}
	}
}
