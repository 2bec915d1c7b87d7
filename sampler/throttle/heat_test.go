package throttle

import (
	"math"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

func TestZonesThatReadTheSameAreOneSource(t *testing.T) {
	t.Parallel()
	zones := func(c ...float64) *sample.Sample {
		x := &sample.Sample{}
		for _, v := range c {
			x.Zones = append(x.Zones, sample.Temperature{Name: "acpitz", C: sample.Known(v)})
		}
		return x
	}
	only := &sample.Sample{GPU: sample.GPU{ZoneMaxC: sample.Known(80)}}
	missing := zones(50)
	missing.Zones[0].C = sample.Num{}
	missing.ZoneMaxC = sample.Known(77)
	for name, c := range map[string]struct {
		x                    *sample.Sample
		first, second, third sample.Num
	}{
		"all differ":           {zones(70, 90, 88), sample.Known(90), sample.Known(88), sample.Known(70)},
		"two at the top":       {zones(91.2, 79.3, 89.8, 91.2), sample.Known(91.2), sample.Known(89.8), sample.Known(89.8)},
		"rising":               {zones(70, 71, 72, 73), sample.Known(73), sample.Known(72), sample.Known(71)},
		"all the same":         {zones(60, 60, 60), sample.Known(60), sample.Num{}, sample.Known(60)},
		"not plausible":        {zones(60, 65535, -274, math.NaN(), 59), sample.Known(60), sample.Known(59), sample.Num{}},
		"none":                 {&sample.Sample{}, sample.Num{}, sample.Num{}, sample.Num{}},
		"only the hottest":     {only, sample.Known(80), sample.Num{}, sample.Num{}},
		"nothing of the zones": {missing, sample.Known(77), sample.Num{}, sample.Num{}},
	} {
		if first, second, third := hottestZones(c.x); first != c.first || second != c.second || third != c.third {
			t.Errorf("%s: %v, %v and %v, want %v, %v and %v", name, first, second, third, c.first, c.second, c.third)
		}
	}
}

func TestHotTakesTwoSources(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	k, none := sample.Known, sample.Num{}
	for name, c := range map[string]struct {
		zone, zone2, die sample.Num
		on               bool
		want             answer
		sources          string
	}{
		"zone and die":               {k(91), k(80), k(85), false, yes, hotDie},
		"zone and zone":              {k(91), k(87), k(80), false, yes, hotZones},
		"zone and zone, die unknown": {k(91), k(87), none, false, yes, hotZones},
		"a zone alone":               {k(103), k(86.9), k(84), false, no, ""},
		"a zone alone, no die":       {k(103), none, none, false, no, ""},
		"the die alone":              {k(90.9), k(90), k(95), false, no, ""},
		"zones, but a cool die":      {k(95), k(94), k(74.9), false, no, ""},
		"no zones":                   {none, none, k(95), false, unknown, ""},
		"cooler, but still on":       {k(87), k(80), k(70), true, yes, ""},
		"below the lower limit":      {k(86.9), k(86), k(85), true, no, ""},
		"stuck zone, cool die":       {k(95), k(94), k(60), true, no, ""},
		"zones lost":                 {none, none, k(80), true, unknown, ""},
	} {
		a, sources := hotAnswer(reading{zone: c.zone, zone2: c.zone2, temp: c.die}, cfg, c.on)
		if a != c.want || sources != c.sources {
			t.Errorf("%s: %v %q, want %v %q", name, a, sources, c.want, c.sources)
		}
	}
}

func TestHeatAloneIsNoThrottling(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 900, light, func(s float64, x *sample.Sample) {
		steps(2)(s, x)
		if s > 300 && s < 500 {
			x.TempC, x.ZoneMaxC = sample.Known(88), sample.Known(96)
		} else {
			x.ZoneMaxC = sample.Known(70)
		}
	})
	check(t, got, "301 hot start warn", "799 hot end info")
	if !strings.Contains(got[0].Msg, "hottest zone is at 96 C and the GPU's die agrees") || !strings.Contains(got[1].Msg, "at most 96 C in a zone and 88 C of the die") {
		t.Errorf("%q\n%q", got[0].Msg, got[1].Msg)
	}
	only := New(config(t)) // zones alone say nothing of the GPU
	only.Sample(&sample.Sample{T: at(1), GPU: sample.GPU{ZoneMaxC: sample.Known(60)}})
	only.Sample(&sample.Sample{T: at(2), GPU: sample.GPU{ZoneMaxC: sample.Known(61)}})
	if s := only.Summary(); s.ObservedS != 0 || s.ThrottledShare.OK {
		t.Errorf("without a GPU: %+v", s)
	}
	s := d.Summary()
	if s.ThrottledShare.Or(-1) != 0 || s.LostS.OK || s.ByType[Hot].WorstZoneC.V != 96 || s.ByType[Hot].Episodes != 1 || s.ByType[Hot].ThrottledS != 0 {
		t.Errorf("%+v", s)
	}
}

// Two reasons at the same time hold the GPU back once and lose a step once.
func TestOverlappingEpisodesCountOnce(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	play(d, 0, 60, light, steps(2))
	play(d, 60, 120, light, func(s float64, x *sample.Sample) {
		x.Step, x.StepTimeS = sample.Known(30+math.Floor((s-60)/4)), sample.Known(4)
		x.ReasonBits = sample.Known(0xA0)
	})
	d.Finish(at(120))
	s := d.Summary()
	thermal, brake := s.ByType[ThermalThrottle], s.ByType[HWBrake]
	if thermal.ThrottledS != 60 || brake.ThrottledS != 60 || thermal.LostS.V != brake.LostS.V || thermal.LostS.V < 25 {
		t.Errorf("thermal %+v, brake %+v", thermal, brake)
	}
	if steps := thermal.LostSteps; math.Abs(steps.V-thermal.LostS.V/2) > 1e-9 {
		t.Errorf("lost steps %v of 2 s each, lost %v", steps, thermal.LostS)
	}
	if s.LostS != thermal.LostS || math.Abs(s.ThrottledShare.V-60.0/119) > 1e-9 {
		t.Errorf("in all lost %v, share %v", s.LostS, s.ThrottledShare)
	}
}

// A run that was wedged from its first step has no pace of its own to compare with.
func TestNoLostTimeWithoutAPaceFromBefore(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 300, wedged, steps(11))
	got = append(got, d.Finish(at(300))...)
	check(t, got, "60 power-wedge start warn", "300 power-wedge end warn")
	if lost, there := got[1].Data["lost_s"]; there || d.Summary().LostS.OK {
		t.Errorf("lost %v", lost)
	}
	// After an hour of normal steps there is one, and the cost is known.
	d = New(config(t))
	play(d, 0, 3600, light, steps(4))
	got = notOfPace(play(d, 3600, 3900, wedged, func(s float64, x *sample.Sample) {
		x.Step, x.StepTimeS = sample.Known(900+math.Floor((s-3600)/12)), sample.Known(12)
	}))
	check(t, got, "3660 power-wedge start warn")
	end := d.Finish(at(3900))
	for _, e := range end {
		if e.Data["type"] == PowerWedge && (e.Data["lost_s"] == nil || e.Data["lost_s"].(float64) < 140) {
			t.Errorf("%v", e.Data)
		}
	}
}

func TestLowCapWords(t *testing.T) {
	t.Parallel()
	low := func(s float64) *sample.Sample {
		x := light(s)
		x.PowerW, x.ClockSMMHz, x.UtilPct = sample.Known(58), sample.Known(1700), sample.Known(97)
		return x
	}
	d := New(config(t))
	got := play(d, 0, 601, low, nil)
	check(t, got, "600 low-cap start warn")
	if !strings.Contains(got[0].Msg, "clock lock (nvidia-smi -rgc") || !strings.Contains(got[0].Msg, "adapter") || got[0].Data["certain"] != false {
		t.Errorf("%q %v", got[0].Msg, got[0].Data)
	}
	d = New(config(t))
	got = play(d, 0, 200, low, func(_ float64, x *sample.Sample) { x.CapSoCW = sample.Known(60) })
	check(t, got, "180 low-cap start warn")
	if !strings.Contains(got[0].Msg, "only 60 W, where 140 W are normal") || got[0].Data["power_cap_pl1_w"] != 60.0 {
		t.Errorf("%q %v", got[0].Msg, got[0].Data)
	}
}

func TestOwnCapIsTakenBack(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	d.SetClockCap(math.NaN())
	d.SetClockCap(1300)
	slow := func(s float64, x *sample.Sample) { x.ClockSMMHz, x.PowerW = sample.Known(1280), sample.Known(33) }
	check(t, play(d, 0, 300, wedged, slow))
	d.SetClockCap(0)
	check(t, play(d, 300, 400, wedged, slow), "360 power-wedge start warn")
}

// Our own limit costs power and steps, in the heat that it was set for: not G4.
func TestOwnCapIsNoSignature(t *testing.T) {
	t.Parallel()
	for mhz, want := range map[float64]string{2000: "", 0: "thermal-throttle start"} {
		d := New(config(t))
		play(d, 0, 1000, healthy, steps(2))
		d.SetClockCap(mhz)
		got := play(d, 1000, 3000, heating(1000), func(s float64, x *sample.Sample) {
			x.Step, x.StepTimeS = sample.Known(500+math.Floor((s-1000)/2.5)), sample.Known(2.5)
		})
		found := ""
		for _, e := range got {
			if e.Data["type"] == ThermalThrottle && e.Kind == event.ThrottleStart {
				found = e.Label
			}
		}
		if found != want {
			t.Errorf("limit %g: %q, want %q", mhz, found, want)
		}
	}
}

// The firmware's low cap is said by the wedge where it is one, also before it is sure.
func TestWedgeComesBeforeLowCap(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Wedge.ForS = 300
	got := play(New(cfg), 0, 900, wedged, func(_ float64, x *sample.Sample) { x.CapSoCW = sample.Known(20) })
	check(t, got, "300 power-wedge start warn")
	if got[0].Data["power_cap_pl1_w"] != 20.0 || !strings.Contains(got[0].Msg, "the firmware's cap is 20 W") {
		t.Errorf("%q %v", got[0].Msg, got[0].Data)
	}
	// Where nothing is known of the reasons it cannot be a wedge; the cap tells.
	got = play(New(config(t)), 0, 900, wedged, func(_ float64, x *sample.Sample) {
		x.CapSoCW = sample.Known(20)
		x.ReasonBits, x.CtrSWThermalNS, x.CtrHWThermalNS, x.CtrHWPowerNS = sample.Num{}, sample.Num{}, sample.Num{}, sample.Num{}
	})
	check(t, got, "180 low-cap start warn")
}

// The cost of a sustained throttle is told although the last line is not ten minutes
// old: it gets its own start when it has lasted.
func TestWhatLastsGetsItsOwnStart(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	got := play(d, 0, 900, light, func(s float64, x *sample.Sample) {
		if s == 100 || s == 300 || s >= 400 && s < 700 {
			x.ReasonBits = sample.Known(0x20)
		}
	})
	got = append(got, d.Finish(at(900))...)
	// What was kept is told by the start, in one line.
	check(t, got, "100 thermal-throttle start info", "160 thermal-throttle end info",
		"460 thermal-throttle start warn", "759 thermal-throttle end warn")
	if got[2].Data["since"] != "2026-07-14T22:06:40.000Z" || got[3].Data["duration_s"] != 299.0 || !strings.Contains(got[2].Msg, "1 more of 1 s in all") {
		t.Errorf("%q %v\n%v", got[2].Msg, got[2].Data, got[3].Data)
	}
	if ended := got[2].Data["episodes_ended"].([]map[string]any); len(ended) != 1 || ended[0]["since"] != "2026-07-14T22:05:00.000Z" {
		t.Errorf("ended %v", ended)
	}
}

func TestSpacing(t *testing.T) {
	t.Parallel()
	least := 30 * time.Second
	for name, c := range map[string]struct {
		seen []time.Duration
		want time.Duration
	}{
		"nothing":             {nil, least},
		"one suspend":         {[]time.Duration{2 * time.Hour}, least},
		"a second":            {[]time.Duration{time.Second, time.Second, 2 * time.Hour, time.Second}, least},
		"a minute":            {[]time.Duration{time.Minute, time.Minute}, 150 * time.Second},
		"a suspend in it":     {[]time.Duration{time.Minute, 2 * time.Hour, time.Minute}, 150 * time.Second},
		"never more than ten": {[]time.Duration{time.Hour, time.Hour, time.Hour, time.Hour, time.Hour}, 25 * time.Minute},
	} {
		var s spacing
		for _, d := range c.seen {
			s.take(d)
		}
		if got := s.gap(least); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestUpdatesAreOfTheirKind(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	for _, e := range play(d, 0, 1300, light, func(_ float64, x *sample.Sample) { x.ReasonBits = sample.Known(0x20) }) {
		if strings.HasSuffix(e.Label, " update") != (e.Kind == event.ThrottleUpdate) || e.Kind == event.ThrottleUpdate && e.Level != event.Warn {
			t.Errorf("%s is a %s %s", e.Label, e.Level, e.Kind)
		}
	}
}

// A neighbour on the GPU while the machine is hot: what that costs is none of the heat's.
func TestHeatDoesNotClaimWhatOthersCost(t *testing.T) {
	t.Parallel()
	for _, bits := range []float64{0, 0x20} {
		d := New(config(t))
		j := training{step: constant(1), around: func(s float64, x *sample.Sample) {
			if s >= 3600 && s < 7200 {
				x.ZoneMaxC, x.TempC = sample.Known(93), sample.Known(86)
			}
			if s >= 5000 && s < 5600 {
				x.ReasonBits = sample.Known(bits)
			}
		}}.slower(1.5, 3600, 7200)
		for _, e := range j.play(d, hours(3)) {
			if e.Data["type"] != Hot || e.Data["until"] == nil {
				continue
			}
			want := 0.0
			if bits != 0 {
				want = 600
			}
			if lost := e.Data["lost_s"].(float64); lost > want+5 || bits != 0 && lost < want-5 {
				t.Errorf("bits %g: lost %g, want %g: %s", bits, lost, want, e.Msg)
			}
		}
	}
}

// Cool zones speak against a hot die also where the die itself is not read for a while.
func TestCoolZonesEndAHotDie(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	for s := range 27 {
		x := healthy(float64(s))
		x.TempC, x.ZoneMaxC = sample.Known(92), sample.Known(88)
		if s >= 5 && s < 25 {
			x.TempC, x.ZoneMaxC = sample.Num{}, sample.Known(70)
		}
		for _, e := range d.Sample(x) {
			t.Errorf("%s: %s", e.Label, e.Msg)
		}
	}
}

// A tenth of the time is a tenth, however the sum of it is rounded.
func TestATenthExplainsNoWedge(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	for _, by := range []float64{1, 2, 3, 7} {
		w := newWedgeRule(cfg)
		w.win.span = time.Duration(by * float64(w.win.span))
		dt := time.Duration(by * float64(time.Second))
		k := sample.Known
		var p pulses
		p.thermal = pulse{known: true, hot: true, heldS: by * 0.1}
		told := false
		for i := range 700 {
			r := reading{t: t0.Add(time.Duration(i) * dt), dt: dt, power: k(12), clock: k(611), util: k(97), bits: k(0)}
			told = w.take(r, cfg, time.Minute, p, 0)
		}
		if !told {
			t.Errorf("every %v: no wedge", dt)
		}
	}
}
