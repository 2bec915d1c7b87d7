package throttle

import (
	"math"
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// A slow state that happens to begin behind a checkpoint is not the checkpoint's doing,
// and is a warning when that has become plain.
func TestSlowStateBehindACheckpoint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, every, from float64
		kind               string
		clock              float64
		start              event.Level
		cause              string // at the end
	}{
		"each ten minutes, all along":      {600, 600, hours(2) + 5, MarkCheckpoint, 0, event.Warn, CauseUnknown},
		"each half hour, all along":        {1800, 1800, hours(2) + 10, MarkCheckpoint, 0, event.Warn, CauseUnknown},
		"well behind one":                  {1800, 1800, hours(2) + 400, MarkCheckpoint, 0, event.Warn, CauseUnknown},
		"the first one":                    {hours(2), hours(2), hours(2) + 5, MarkCheckpoint, 0, event.Info, CauseUnknown},
		"evaluations that begin with it":   {hours(2) - 200, 240, hours(2), MarkEval, 0, event.Info, CauseUnknown},
		"the first one, and a lower clock": {hours(2), hours(2), hours(2) + 5, MarkCheckpoint, 1500, event.Warn, CauseClock},
	} {
		d := New(config(t))
		j := training{step: constant(1), every: 4}.slower(2, c.from, hours(7))
		j.before = func(s float64, d *Detector) {
			if s >= c.first && math.Mod(s-c.first, c.every) == 0 {
				d.Mark(at(s), c.kind)
			}
		}
		j.around = func(s float64, x *sample.Sample) {
			if c.clock > 0 && s >= c.from && s < hours(7) {
				x.ClockSMMHz = sample.Known(c.clock)
			}
		}
		got := ofPace(j.play(d, hours(8)))
		want := once
		if c.start == event.Info {
			want = Slowdown + " start, " + Slowdown + " update, " + Slowdown + " end"
		}
		if labels(got) != want || got[0].Level != c.start {
			t.Errorf("%s: %s", name, outline(got))
			continue
		}
		end := got[len(got)-1]
		if end.Level != event.Warn || end.Data["cause"] != c.cause || end.Data["lost_s"].(float64) < hours(2.2) {
			t.Errorf("%s: %s %v", name, outline(got), end.Data)
		}
		if u := got[1]; u.Kind == event.ThrottleUpdate && (u.Level != event.Warn || u.T.Sub(got[0].T).Minutes() > 11 || u.Data["id"] != end.Data["id"] || u.Data["cause"] != c.cause) {
			t.Errorf("%s: %v %v", name, u.Level, u.Data)
		}
	}
}

// Where each step has a mark, it says nothing of them; an evaluation whose line came with
// that of the step before it lies in the next one.
func TestMarksAtEachStep(t *testing.T) {
	t.Parallel()
	for _, every := range []float64{1, 20} {
		j := training{step: constant(1)}.slower(3, hours(2), hours(5))
		j.before = func(s float64, d *Detector) {
			if math.Mod(s, every) == 0 {
				d.Mark(at(s), MarkEval)
			}
		}
		got := ofPace(j.play(New(config(t)), hours(6)))
		if labels(got) != once || got[1].Level != event.Warn || got[1].Data["lost_s"].(float64) < hours(1.3) {
			t.Errorf("each %g s: %s", every, outline(got))
		}
	}
}
