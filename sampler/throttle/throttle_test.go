package throttle

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

var t0 = time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC)

// at returns the time s seconds into the run.
func at(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

// healthy is what a saturated GB10 reads: at the cap, normal clocks, no reason.
func healthy(s float64) *sample.Sample {
	k := sample.Known
	return &sample.Sample{
		T: at(s), Mono: time.Duration(s * float64(time.Second)), Attempt: 1,
		GPU: sample.GPU{
			TempC: k(74), PowerW: k(92), ClockSMMHz: k(2230), UtilPct: k(97), ReasonBits: k(0x4),
			CtrSWThermalNS: k(0), CtrHWThermalNS: k(0), CtrHWPowerNS: k(0), CtrSWPowerNS: k(s * 1e9),
		},
	}
}

// light is a load that is at no limit.
func light(s float64) *sample.Sample {
	x := healthy(s)
	x.TempC, x.PowerW, x.ClockSMMHz, x.UtilPct, x.ReasonBits = sample.Known(60), sample.Known(55), sample.Known(2405), sample.Known(70), sample.Known(0)
	return x
}

func config(t testing.TB) Config {
	t.Helper()
	cfg, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// play feeds one sample a second from..to, each made by make and then changed.
func play(d *Detector, from, to int, make func(float64) *sample.Sample, change func(s float64, x *sample.Sample)) []event.Event {
	var out []event.Event
	for s := from; s < to; s++ {
		x := make(float64(s))
		if change != nil {
			change(float64(s), x)
		}
		out = append(out, d.Sample(x)...)
	}
	return out
}

// steps puts a step of that length on the samples.
func steps(stepS float64) func(float64, *sample.Sample) {
	return func(s float64, x *sample.Sample) {
		x.Step, x.StepTimeS = sample.Known(math.Floor(s/stepS)), sample.Known(stepS)
	}
}

// outline writes events as "seconds label level" lines, to compare.
func outline(events []event.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, fmt.Sprintf("%g %s %s", e.T.Sub(t0).Seconds(), e.Label, e.Level))
	}
	return strings.Join(out, "\n")
}

func check(t *testing.T, got []event.Event, want ...string) {
	t.Helper()
	if g, w := outline(got), strings.Join(want, "\n"); g != w {
		t.Fatalf("events:\n%s\nwant:\n%s", g, w)
	}
}

func TestHealthyPlateauIsInformationOnce(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 6*3600, healthy, func(s float64, x *sample.Sample) {
		// An evaluation of two minutes each half hour, and a checkpoint.
		if m := math.Mod(s, 1800); s > 600 && m < 120 {
			x.UtilPct, x.PowerW = sample.Known(35), sample.Known(30)
		}
	})
	check(t, got, "60 power-cap start info")
	for _, word := range []string{"not a bug", "nothing to change"} {
		if !strings.Contains(got[0].Msg, word) {
			t.Errorf("message %q lacks %q", got[0].Msg, word)
		}
	}
	for _, word := range []string{"batch", "precision"} {
		if strings.Contains(got[0].Msg, word) {
			t.Errorf("message %q advises to re-tune", got[0].Msg)
		}
	}
	if got[0].Data["since"] != "2026-07-14T22:00:00.000Z" {
		t.Errorf("since %v", got[0].Data["since"])
	}
	check(t, d.Finish(at(6*3600)), "21600 power-cap end info")
	s := d.Summary()
	if s.ThrottledShare.Or(-1) != 0 || s.LostS.OK {
		t.Errorf("a cap is no throttling: %+v", s)
	}
}

func TestCapEndsWhenTheLoadChangesForGood(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 300, healthy, nil)
	got = append(got, play(d, 300, 2000, light, nil)...)
	if len(got) != 2 || got[1].Label != "power-cap end" || got[1].Data["ended"] != EndedQuiet {
		t.Fatalf("events:\n%s", outline(got))
	}
	// The plateau lasted as long as it was seen, not as long as it took to be sure.
	if d := got[1].Data["duration_s"].(float64); d < 290 || d > 330 {
		t.Errorf("duration %g", d)
	}
}

func TestThermalBitsStartAtOnceAndPulsesMerge(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 700, light, func(s float64, x *sample.Sample) {
		if s == 100 || s == 130 || s == 175 {
			x.ReasonBits, x.TempC = sample.Known(0x20), sample.Known(80+s/100)
		}
	})
	check(t, got, "100 thermal-throttle start info", "235 thermal-throttle end info")
	start, end := got[0].Data, got[1].Data
	if start["id"] != end["id"] || start["type"] != ThermalThrottle || end["type"] != ThermalThrottle {
		t.Errorf("start %v and end %v do not belong together", start, end)
	}
	if start["reasons"] != "0x20" || start["temp_c"] != 81.0 || start["evidence"] != "bits" {
		t.Errorf("start data %v", start)
	}
	if end["pulses"] != 3 || end["until"] != "2026-07-14T22:02:55.000Z" || end["throttled_s"] != 3.0 || end["worst_temp_c"] != 81.75 || end["ended"] != EndedQuiet {
		t.Errorf("end data %v", end)
	}
	if !strings.Contains(got[0].Msg, "software thermal slowdown") {
		t.Errorf("message %q", got[0].Msg)
	}
	s := d.Summary()
	if th := s.ByType[ThermalThrottle]; th.Episodes != 1 || th.Pulses != 3 || th.Seconds != 75 || th.ThrottledS != 3 {
		t.Errorf("summary %+v", th)
	}
	if share := s.ThrottledShare.Or(-1); math.Abs(share-3.0/699) > 1e-9 {
		t.Errorf("share %g", share)
	}
}

// Pulses further apart are episodes of their own, but soon after a line they wait for
// the next one, which has them all.
func TestPulsesFurtherApartAreTwoEpisodes(t *testing.T) {
	t.Parallel()
	pulses := func(s float64, x *sample.Sample) {
		if s == 100 || s == 200 || s == 250 || s == 2000 {
			x.ReasonBits = sample.Known(0x40)
		}
	}
	d := New(config(t))
	got := play(d, 0, 2100, light, pulses)
	check(t, got, "100 thermal-throttle start info", "160 thermal-throttle end info", "760 thermal-throttle update info",
		"2000 thermal-throttle start info", "2060 thermal-throttle end info")
	update := got[2]
	if update.Kind != event.ThrottleUpdate || update.Data["id"] != got[0].Data["id"] || got[3].Data["id"] == got[0].Data["id"] {
		t.Errorf("%+v does not belong to the first start, or the last one does", update)
	}
	if update.Data["episodes"] != 2 || update.Data["pulses"] != 3 || update.Data["throttled_s"] != 3.0 || !strings.Contains(update.Msg, "3 pulses in 11 min, 3 s in all") {
		t.Errorf("%q %v", update.Msg, update.Data)
	}
	ended := update.Data["episodes_ended"].([]map[string]any)
	if len(ended) != 1 || ended[0]["since"] != "2026-07-14T22:03:20.000Z" || ended[0]["until"] != "2026-07-14T22:04:10.000Z" || ended[0]["pulses"] != 2 {
		t.Errorf("ended %v", ended)
	}
	if th := d.Summary().ByType[ThermalThrottle]; th.Episodes != 3 || th.Pulses != 4 || th.ThrottledS != 4 {
		t.Errorf("summary %+v", th)
	}
	// What was kept is not lost with the run.
	d = New(config(t))
	got = append(play(d, 0, 300, light, pulses), d.Finish(at(300))...)
	check(t, got, "100 thermal-throttle start info", "160 thermal-throttle end info", "300 thermal-throttle update info")
}

func TestHardwareBitsAreNamedInWords(t *testing.T) {
	t.Parallel()
	for bits, words := range map[float64]string{
		0x40: "the GPU slows itself: hardware thermal slowdown",
		0x68: "the GPU slows itself: hardware slowdown, software thermal slowdown, hardware thermal slowdown",
		0x08: "not for heat: hardware slowdown",
		0x80: "not for heat: hardware power brake",
		0x88: "not for heat: hardware slowdown, hardware power brake",
	} {
		d := New(config(t))
		x := light(0)
		x.ReasonBits = sample.Known(bits)
		got := d.Sample(x)
		if len(got) != 1 || !strings.Contains(got[0].Msg, words+" (") {
			t.Errorf("0x%x: %v", int(bits), got)
		}
	}
}

// Hardware slowdown alone of a die that hot is heat, unless the power brake is named.
func TestHardwareSlowdownOfAHotDieIsHeat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bits, temp float64
		want       string
	}{
		{0x8, 92, "0 thermal-throttle start info"},
		{0x8, 85, "0 thermal-throttle start info"},
		{0x8, 84, "0 hw-brake start info"},
		{0x88, 92, "0 hw-brake start info"},
	} {
		x := light(0)
		x.ReasonBits, x.TempC = sample.Known(c.bits), sample.Known(c.temp)
		got := New(config(t)).Sample(x)
		check(t, got, c.want)
		if hot := strings.HasPrefix(got[0].Msg, "the GPU slows itself: hardware slowdown"); hot != strings.Contains(c.want, "thermal") {
			t.Errorf("0x%x at %g C: %q", int(c.bits), c.temp, got[0].Msg)
		}
	}
}

// Half a load at normal clocks is enough to see that a wedge is over; a dip in the
// utilisation at its clock is not.
func TestWedgeIsOverAtHalfALoad(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 700, wedged, func(s float64, x *sample.Sample) {
		if math.Mod(s, 100) > 90 {
			x.UtilPct = sample.Known(55)
		}
	})
	got = append(got, play(d, 700, 1000, light, nil)...)
	check(t, got, "60 power-wedge start warn", "700 power-wedge end warn")
	if got[1].Data["ended"] != EndedRecovered || got[1].Data["throttled_s"] != 699.0 {
		t.Errorf("end %v", got[1].Data)
	}
}

func TestBitsThatAreNoThrottle(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	for i, bits := range []float64{0, 0x1, 0x2, 0x4, 0x10, 0x100, 0x107} {
		x := light(float64(i))
		x.ReasonBits = sample.Known(bits)
		if got := d.Sample(x); len(got) != 0 {
			t.Errorf("0x%x: %v", int(bits), got)
		}
	}
}

// Pulses of a second fall between two readings, or the bits never show them: the
// counters keep them.
func TestCountersAloneShowPulses(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	var got []event.Event
	for s := 0; s <= 300; s += 10 {
		x := light(float64(s))
		x.CtrHWThermalNS = sample.Known(7e9) // long ago, before this run
		if s >= 50 {
			x.CtrHWThermalNS = sample.Known(7.8e9)
		}
		if s >= 90 {
			x.CtrHWThermalNS = sample.Known(8.2e9)
		}
		got = append(got, d.Sample(x)...)
	}
	check(t, got, "50 thermal-throttle start info", "150 thermal-throttle end info")
	if got[0].Data["evidence"] != "counters" || !strings.Contains(got[0].Msg, "0.8 s since the last reading, by its counters") {
		t.Errorf("%q %v", got[0].Msg, got[0].Data)
	}
	if got[1].Data["throttled_s"] != 1.2 || got[1].Data["pulses"] != 2 {
		t.Errorf("end %v", got[1].Data)
	}
}

func TestCountersThatFallOrCreepAreNoPulse(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 200, light, func(s float64, x *sample.Sample) {
		x.CtrSWThermalNS = sample.Known(5e9 + s*1e5) // a tenth of a millisecond a second
		if s > 100 {
			x.CtrSWThermalNS = sample.Known(0) // the driver was loaded anew
		}
	})
	check(t, got)
}

func TestThermalIsAWarningAboveOnePercentOfTheTime(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 3600, light, func(s float64, x *sample.Sample) {
		if math.Mod(s, 300) >= 290 {
			x.ReasonBits = sample.Known(0x20)
		}
	})
	if len(got) < 4 || got[0].Level != event.Info || got[1].Level != event.Warn || got[2].Level != event.Warn {
		t.Errorf("events:\n%s", outline(got))
	}
}

func TestLostPaceIsAWarningAndIsAddedUp(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	play(d, 0, 60, light, steps(2))
	got := play(d, 60, 180, light, func(s float64, x *sample.Sample) {
		x.Step, x.StepTimeS = sample.Known(30+math.Floor((s-60)/4)), sample.Known(4)
		if math.Mod(s, 10) < 6 && s < 120 {
			x.ReasonBits = sample.Known(0x20)
		}
	})
	check(t, got, "60 thermal-throttle start info", "175 thermal-throttle end warn")
	if got[0].Data["baseline_step_time_s"] != 2.0 || got[1].Data["worst_step_time_s"] != 4.0 {
		t.Errorf("%v\n%v", got[0].Data, got[1].Data)
	}
	// 28 steps took 2 s longer, but the GPU was held back for 36 s only.
	if lost := got[1].Data["lost_s"].(float64); lost != 36 {
		t.Errorf("lost %g s", lost)
	}
	if lost := d.Summary().LostS; lost.Or(-1) != 36 {
		t.Errorf("summary: lost %v", lost)
	}
}

// What holds the GPU back costs no more than the time in which it does: steps that are
// slow all along have another reason than a pulse of a second, and it warns of nothing.
func TestPulsesCostNoMoreThanTheyHeld(t *testing.T) {
	t.Parallel()
	for bits, typ := range map[float64]string{0x20: ThermalThrottle, 0x80: HWBrake} {
		d := New(config(t))
		play(d, 0, 60, light, steps(2))
		got := notOfPace(play(d, 60, 12060, light, func(s float64, x *sample.Sample) {
			x.Step, x.StepTimeS = sample.Known(30+math.Floor((s-60)/3)), sample.Known(3)
			if math.Mod(s, 130) == 0 {
				x.ReasonBits = sample.Known(bits)
			}
		}))
		got = append(got, notOfPace(d.Finish(at(12060)))...)
		if len(got) < 15 {
			t.Fatalf("events:\n%s", outline(got))
		}
		for _, e := range got {
			lost, _ := e.Data["lost_s"].(float64)
			if held, there := e.Data["throttled_s"].(float64); e.Level != event.Info || there && lost > held {
				t.Errorf("%s %s: %s", e.Label, e.Level, e.Msg)
			}
		}
		s := d.Summary()
		if sum := s.ByType[typ]; sum.LostS.Or(-1) > sum.ThrottledS || s.LostS.Or(-1) > sum.ThrottledS || sum.Pulses != 92 {
			t.Errorf("%+v", s)
		}
	}
	// At the true cost nothing changes: half an hour held back, steps a quarter longer.
	d := New(config(t))
	play(d, 0, 60, light, steps(2))
	play(d, 60, 1860, light, func(s float64, x *sample.Sample) {
		x.Step, x.StepTimeS, x.ReasonBits = sample.Known(30+math.Floor((s-60)/2.5)), sample.Known(2.5), sample.Known(0x20)
	})
	if lost := d.Summary().ByType[ThermalThrottle].LostS.V; lost < 350 || lost > 365 {
		t.Errorf("lost %g s of 1800, want a fifth", lost)
	}
}

// Each event says at which step it was and how long that took, where there are steps.
func TestEachEventHasItsStep(t *testing.T) {
	t.Parallel()
	// around makes states of several types one after the other, each to its end; in the
	// last one the run ends.
	around := func(s float64, x *sample.Sample) {
		x.Zones = []sample.Temperature{{C: sample.Known(80)}, {C: sample.Known(79)}}
		switch {
		case s > 4000 && s < 5000:
			x.ReasonBits = sample.Known(0x20)
		case s > 7000 && s < 8000, s > 20000:
			x.PowerW, x.ClockSMMHz, x.ReasonBits = sample.Known(12), sample.Known(611), sample.Known(0)
		case s > 10000 && s < 11000:
			x.PowerW, x.ClockSMMHz, x.ReasonBits = sample.Known(58), sample.Known(1700), sample.Known(0)
			x.TempC = sample.Known(60)
		case s > 13000 && s < 14000:
			x.TempC, x.Zones = sample.Known(80), []sample.Temperature{{C: sample.Known(95)}, {C: sample.Known(92)}}
		}
	}
	j := training{step: constant(1), around: around}.slower(3, 4000, 5000).slower(3, 7000, 8000).slower(3, 20000, 30000)
	seen := map[string]bool{}
	d := New(config(t))
	for _, e := range j.play(d, 21000) {
		seen[e.Label] = true
		if e.T.Sub(t0) < 60*time.Second {
			continue
		}
		step, _ := e.Data["step"].(float64)
		if stepS, _ := e.Data["step_time_s"].(float64); step < 50 || step > e.T.Sub(t0).Seconds() || stepS < 0.9 || stepS > 3.1 {
			t.Errorf("%s at %v: step %v of %v s", e.Label, e.T.Sub(t0), e.Data["step"], e.Data["step_time_s"])
		}
	}
	for _, typ := range []string{ThermalThrottle, PowerWedge, LowCap, PowerCap, Hot, Slowdown} {
		if !seen[typ+" start"] || !seen[typ+" end"] {
			t.Errorf("no start or no end of %s: %v", typ, seen)
		}
	}
	if !seen[ThermalThrottle+" update"] {
		t.Error("no update")
	}
	// Without steps there are none to tell; those of the attempt before are not of this one.
	for _, e := range append(play(New(config(t)), 0, 700, wedged, nil), play(d, 22000, 22700, wedged, func(_ float64, x *sample.Sample) { x.Attempt = 2 })...) {
		if e.Data["step"] != nil || e.Data["step_time_s"] != nil {
			t.Errorf("%s: %v", e.Label, e.Data)
		}
	}
}

// An evaluation in the middle of a throttle is no slow step.
func TestOutliersAreNoLostPace(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	play(d, 0, 60, light, steps(1))
	got := play(d, 60, 130, light, func(s float64, x *sample.Sample) {
		steps(1)(s, x)
		if s == 60 {
			x.ReasonBits = sample.Known(0x20)
		}
		if s == 70 {
			x.StepTimeS = sample.Known(300)
		}
	})
	if lost := got[len(got)-1].Data["lost_s"]; lost != 0.0 {
		t.Errorf("lost %v", lost)
	}
}

func wedged(s float64) *sample.Sample {
	x := healthy(s)
	x.TempC, x.PowerW, x.ClockSMMHz, x.ReasonBits = sample.Known(44), sample.Known(12.4), sample.Known(611), sample.Known(0)
	return x
}

func TestWedge(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 600, wedged, nil)
	got = append(got, play(d, 600, 603, healthy, nil)...)
	check(t, got, "60 power-wedge start warn", "600 power-wedge end warn")
	for _, word := range []string{"unplug", "wall", "minute", "reboot does not help"} {
		if !strings.Contains(got[0].Msg, word) {
			t.Errorf("message %q lacks %q", got[0].Msg, word)
		}
	}
	if got[0].Data["since"] != "2026-07-14T22:00:00.000Z" || got[1].Data["ended"] != EndedRecovered || got[1].Data["duration_s"] != 599.0 {
		t.Errorf("%v\n%v", got[0].Data, got[1].Data)
	}
	if share := d.Summary().ThrottledShare.Or(-1); share < 0.99 {
		t.Errorf("share %g of a run that was wedged from the start", share)
	}
}

// Each of these is what a wedge is not.
func TestNoWedge(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(float64, *sample.Sample){
		"one fast sample in each minute": func(s float64, x *sample.Sample) {
			if math.Mod(s, 59) == 0 {
				x.ClockSMMHz = sample.Known(2300)
			}
		},
		"idle":              func(_ float64, x *sample.Sample) { x.UtilPct = sample.Known(0) },
		"idle at high rate": func(_ float64, x *sample.Sample) { x.UtilPct, x.ClockSMMHz = sample.Known(0), sample.Known(2411) },
		"no utilisation":    func(_ float64, x *sample.Sample) { x.UtilPct = sample.Num{} },
		"nothing on reasons": func(_ float64, x *sample.Sample) {
			x.ReasonBits, x.CtrSWThermalNS, x.CtrHWThermalNS, x.CtrHWPowerNS = sample.Num{}, sample.Num{}, sample.Num{}, sample.Num{}
		},
		"power not low": func(_ float64, x *sample.Sample) { x.PowerW = sample.Known(41) },
	} {
		d := New(config(t))
		if got := play(d, 0, 400, wedged, change); len(got) != 0 {
			t.Errorf("%s:\n%s", name, outline(got))
		}
	}
	d := New(config(t))
	got := play(d, 0, 400, wedged, func(_ float64, x *sample.Sample) { x.ReasonBits = sample.Known(0x40) })
	check(t, got, "0 thermal-throttle start info", "120 thermal-throttle update warn")
}

func TestRulesOfThePlatformAreLeftOutElsewhere(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	d.Device(sample.Device{Name: "NVIDIA GeForce RTX 4070 Laptop GPU"})
	check(t, append(play(d, 0, 200, healthy, nil), play(d, 200, 400, wedged, nil)...))
	d = New(config(t))
	d.Device(sample.Device{Name: "NVIDIA GB10"})
	check(t, play(d, 0, 200, healthy, nil), "60 power-cap start info")
}

// heating is the runbook's G4: at the plateau first, then power falls while the
// temperature climbs.
func heating(from float64) func(float64) *sample.Sample {
	return func(s float64) *sample.Sample {
		x := healthy(s)
		if s >= from {
			x.PowerW, x.ClockSMMHz = sample.Known(74), sample.Known(2010)
			x.TempC = sample.Known(min(86, 74+(s-from)/60))
		}
		return x
	}
}

func TestSignatureOverTime(t *testing.T) {
	t.Parallel()
	pace := func(s float64, x *sample.Sample) {
		x.Step, x.StepTimeS = sample.Known(math.Floor(s/2)), sample.Known(2)
		if s >= 1000 {
			x.Step, x.StepTimeS = sample.Known(500+math.Floor((s-1000)/2.5)), sample.Known(2.5)
		}
	}
	d := New(config(t))
	got := notOfPace(play(d, 0, 3000, heating(1000), pace))
	// The plateau at the cap ends ten minutes after the throttle took its place.
	check(t, got, "60 power-cap start info", "1631 thermal-throttle start warn", "2230 power-cap end info",
		"2231 thermal-throttle update warn", "2831 thermal-throttle update warn")
	e := got[1]
	if late := e.T.Sub(at(1000)); late < 10*time.Minute || late > 12*time.Minute {
		t.Errorf("recognised after %v", late)
	}
	since, err := time.Parse(time.RFC3339, e.Data["since"].(string))
	if err != nil || since.Sub(at(1000)).Abs() > time.Minute {
		t.Errorf("since %v", e.Data["since"])
	}
	if e.Data["evidence"] != "signature" || !strings.Contains(e.Msg, "G4") || !strings.Contains(e.Msg, "25 % slower") {
		t.Errorf("%q %v", e.Msg, e.Data)
	}
	// Power comes back: it ends a minute later, and what it cost is known.
	end := notOfPace(play(d, 3000, 3300, healthy, func(s float64, x *sample.Sample) {
		x.Step, x.StepTimeS = sample.Known(1300+math.Floor((s-3000)/2)), sample.Known(2)
	}))
	check(t, end, "3059 thermal-throttle end warn", "3059 power-cap start info")
	if lost := end[0].Data["lost_s"].(float64); lost < 350 || lost > 420 {
		t.Errorf("lost %g s, want about 800 steps of 0.5 s", lost)
	}
}

func TestNoSignature(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make   func(float64) *sample.Sample
		change func(float64, *sample.Sample)
	}{
		"power at its plateau while the temperature climbs": {healthy, func(s float64, x *sample.Sample) { x.TempC = sample.Known(min(88, 60+s/60)) }},
		"cool":              {heating(1000), func(_ float64, x *sample.Sample) { x.TempC = sample.Known(65) }},
		"less load":         {heating(1000), func(s float64, x *sample.Sample) { x.UtilPct = sample.Known(97 - 30*math.Min(1, math.Floor(s/1000))) }},
		"pace as before":    {heating(1000), steps(2)},
		"eight minutes":     {heating(1000), func(s float64, x *sample.Sample) { set(x, s > 1480, 92) }},
		"temperature lost":  {heating(1000), func(_ float64, x *sample.Sample) { x.TempC = sample.Num{} }},
		"plateau too short": {heating(60), nil},
	} {
		d := New(config(t))
		for _, e := range play(d, 0, 3000, c.make, c.change) {
			if e.Data["type"] == ThermalThrottle {
				t.Errorf("%s: %s at %v", name, e.Label, e.T.Sub(t0))
			}
		}
	}
}

func set(x *sample.Sample, when bool, powerW float64) {
	if when {
		x.PowerW = sample.Known(powerW)
	}
}

func TestUnknownReadingsNeitherStartNorEnd(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	none := func(s float64) *sample.Sample { return &sample.Sample{T: at(s), Attempt: 1} }
	hot := light(10)
	hot.ReasonBits = sample.Known(0x20)
	got := d.Sample(hot)
	got = append(got, play(d, 11, 40, none, nil)...)
	check(t, got, "10 thermal-throttle start info")
	got = play(d, 40, 60, none, nil)
	check(t, got, "41 thermal-throttle end info")
	if got[0].Data["ended"] != EndedUnknown || got[0].Data["until"] != "2026-07-14T22:00:10.000Z" {
		t.Errorf("end %v", got[0].Data)
	}
	// What is hot again after the gap is a new episode.
	hot.T = at(60)
	check(t, d.Sample(hot), "60 thermal-throttle start info")
}

// A sensor that hangs repeats its last answer; that proves nothing about now.
func TestRepeatedReadingIsUnknown(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 100, wedged, func(s float64, x *sample.Sample) {
		x.GPU.T = time.Duration(min(s, 5)) * time.Second // nothing new after five seconds
	})
	check(t, got)
}

// A suspend, or a sampler that was away, is a gap: conditions do not go on over
// it, and what was open ends as unknown.
func TestTimeGoesOnOverGaps(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	check(t, play(d, 0, 50, wedged, nil))
	check(t, play(d, 7200, 7259, wedged, nil))
	check(t, play(d, 7260, 7262, wedged, nil), "7260 power-wedge start warn")
	got := d.Sample(wedged(9000))
	check(t, got, "9000 power-wedge end warn")
	if got[0].Data["ended"] != EndedUnknown {
		t.Errorf("end %v", got[0].Data)
	}
	if s := d.Summary(); s.ObservedS > 200 {
		t.Errorf("%g s observed: the gaps were counted", s.ObservedS)
	}
}

func TestNextAttemptClosesAndHasItsOwnPlateau(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	play(d, 0, 1000, healthy, nil)
	got := play(d, 1000, 2500, heating(1000), func(_ float64, x *sample.Sample) { x.Attempt, x.TempC = 2, sample.Known(84) })
	check(t, got, "1000 power-cap end info", "1060 power-cap start info")
	if got[0].Attempt != 1 || got[0].Data["ended"] != EndedAttempt || got[1].Attempt != 2 {
		t.Errorf("%+v", got)
	}
}

func TestSamplesOutOfOrderAreIgnored(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	d.Sample(light(10))
	hot := light(9)
	hot.ReasonBits = sample.Known(0x20)
	check(t, d.Sample(hot))
	hot.T = at(10)
	check(t, d.Sample(hot))
}

func TestFinishIsNeverBeforeTheLastSample(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	hot := light(10)
	hot.ReasonBits = sample.Known(0x20)
	d.Sample(hot)
	check(t, d.Finish(at(3)), "10 thermal-throttle end info")
	check(t, d.Finish(at(20)))
}

// For any series: ends follow their starts, ids pair up, times never go back and
// are those of samples, the data can be written as JSON, and a series in which
// nothing is known says nothing.
func TestAnySeries(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	// Short windows, so that random series reach every rule.
	cfg.MergeS, cfg.PowerCap.ForS, cfg.PowerCap.QuietS, cfg.Wedge.ForS = 5, 5, 8, 5
	cfg.Wedge.MeanForS, cfg.Wedge.QuietS, cfg.Hot.DieForS = 9, 8, 3
	cfg.Signature.PlateauS, cfg.Signature.WindowS, cfg.Signature.ForS = 6, 3, 6
	cfg.LowCap.WindowS, cfg.LowCap.ForS, cfg.LowCap.CapForS, cfg.LowCap.QuietS, cfg.Hot.QuietS, cfg.Thermal.ReportS = 3, 6, 4, 8, 5, 12
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := New(cfg)
		num := func(name string, values ...float64) sample.Num {
			v := rapid.SampledFrom(append(values, -1)).Draw(t, name)
			return sample.Num{V: v, OK: v != -1}
		}
		open, ids, last := map[any]any{}, map[any]bool{}, time.Time{}
		take := func(events []event.Event, now time.Time) {
			for _, e := range events {
				seen[e.Label]++
				if e.T.Before(last) || !e.T.Equal(now) {
					t.Fatalf("%s at %v, the sample is of %v and the last event of %v", e.Label, e.T, now, last)
				}
				last = e.T
				if strings.ContainsAny(e.Msg, "\n\r") || e.Msg == "" || strings.Contains(e.Msg, "NaN") {
					t.Fatalf("message %q", e.Msg)
				}
				lost, _ := e.Data["lost_s"].(float64)
				if held, there := e.Data["throttled_s"].(float64); there && lost > held+0.001 {
					t.Fatalf("%s: lost %g s, held back for %g", e.Label, lost, held)
				}
				if _, err := json.Marshal(e.Data); err != nil {
					t.Fatalf("data %v: %v", e.Data, err)
				}
				typ, id := e.Data["type"], e.Data["id"]
				switch e.Kind {
				case event.ThrottleStart:
					if open[typ] != nil || ids[id] {
						t.Fatalf("start of %v while %v is open, or its id was used", id, open[typ])
					}
					open[typ], ids[id] = id, true
				case event.ThrottleUpdate:
					if !ids[id] {
						t.Fatalf("update of %v, which never began", id)
					}
				case event.ThrottleEnd:
					if open[typ] != id {
						t.Fatalf("end of %v, open is %v", id, open[typ])
					}
					delete(open, typ)
				}
			}
		}
		s, anyKnown, events, attempt := 0.0, false, 0, 1
		n := rapid.IntRange(0, 40).Draw(t, "stretches")
		for range n {
			x := sample.Sample{GPU: sample.GPU{
				TempC: num("temp", 50, 75, 86, 92), PowerW: num("power", 12, 30, 60, 74, 92, 300, math.NaN()), ClockSMMHz: num("clock", 611, 1900, 2200),
				UtilPct: num("util", 0, 60, 97), ReasonBits: num("bits", 0, 0, 0x4, 0x20, 0x88),
			}}
			drawLoad(t, &x)
			x.CtrSWThermalNS = num("counter", 0, 0, 3e6, 9e9)
			x.CapSoCW, x.CPUBusyPct, x.CapSysW = num("cap", 20, 60, 140), num("cpu", 5, 90), num("cap of the machine", 30, 231)
			x.ZoneMaxC = num("zone", 70, 88, 95)
			x.StepTimeS = num("step time", 1, 3, 500, math.Inf(1))
			step := rapid.Float64Range(0, 50).Draw(t, "step")
			every := rapid.SampledFrom([]float64{1, 1, 1, 0.5, 20, 100, 0}).Draw(t, "every")
			attempt += rapid.SampledFrom([]int{0, 0, 0, 0, 1}).Draw(t, "attempt")
			anyKnown = anyKnown || x.TempC.OK || x.PowerW.OK || x.ClockSMMHz.OK || x.UtilPct.OK || x.ReasonBits.OK || x.CtrSWThermalNS.OK || x.ZoneMaxC.OK
			for range rapid.IntRange(1, 15).Draw(t, "samples") {
				s += every
				step++
				y := x
				y.T, y.Attempt, y.Step = at(s), attempt, sample.Known(math.Floor(step))
				got := d.Sample(&y)
				events += len(got)
				take(got, y.T)
			}
		}
		if !anyKnown && events > 0 {
			t.Fatal("events although nothing was ever known")
		}
		end := at(s + 1)
		take(d.Finish(end), end)
		if len(open) != 0 {
			t.Fatalf("still open after Finish: %v", open)
		}
		sum := d.Summary()
		if sum.ThrottledShare.OK && (sum.ThrottledShare.V < 0 || sum.ThrottledShare.V > 1) || sum.LostS.Or(0) < 0 {
			t.Fatalf("summary %+v", sum)
		}
	})
	for _, typ := range types {
		if seen[typ+" start"] == 0 {
			t.Errorf("no series reached %s: %v", typ, seen)
		}
	}
}

func BenchmarkDay(b *testing.B) {
	cfg := config(b)
	for b.Loop() {
		d := New(cfg)
		play(d, 0, 86400, healthy, steps(2))
	}
}
