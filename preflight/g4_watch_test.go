package preflight

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/sample"
)

// gpuAt makes a reading of a GPU whose driver gives all there is.
func gpuAt(temp, power, clock, util float64, bits sample.Reasons) sample.GPU {
	return sample.GPU{
		TempC: sample.Known(temp), PowerW: sample.Known(power), ClockSMMHz: sample.Known(clock), UtilPct: sample.Known(util),
		ReasonBits: sample.Known(float64(bits)), CtrSWThermalNS: sample.Known(0), CtrHWThermalNS: sample.Known(0), CtrHWPowerNS: sample.Known(0),
	}
}

// watchOf makes an observation of so many minutes, with a reading every 5 s.
func watchOf(minutes float64, at func(s float64) sample.GPU) *Observed {
	d := time.Duration(minutes * float64(time.Minute))
	o := &Observed{Asked: d, Took: d, Step: 5 * time.Second, Device: gb10Device}
	for t := time.Duration(0); t <= d; t += o.Step {
		o.Readings = append(o.Readings, WatchReading{At: t, GPU: at(t.Seconds())})
	}
	return o
}

func judgedWatch(t *testing.T, o *Observed) Finding {
	t.Helper()
	return find(t, Run(t.Context(), Input{Root: "testdata/spark", Device: gb10, Observed: o}), "G4")
}

func TestWatch(t *testing.T) {
	t.Parallel()
	healthy := gpuAt(72, 110, 2300, 97, 0)
	plateau := gpuAt(78, 92, 2240, 97, sample.ReasonSWPowerCap)
	wedge := gpuAt(44, 9, 507, 98, 0)
	hot := gpuAt(83, 74, 2050, 97, 0)
	idle := gpuAt(38, 4, 208, 0, sample.ReasonIdle)
	var silent sample.GPU
	silent.Failed = map[string]string{"nvml": "no answer for 12 s"}
	for _, c := range []struct {
		name    string
		minutes float64
		at      func(s float64) sample.GPU
		status  Status
		says    []string
		not     []string
	}{
		{"healthy", 15, func(float64) sample.GPU { return healthy }, Pass, []string{"no throttling", "15 min under load"}, nil},
		{"at the platform's cap", 15, func(float64) sample.GPU { return plateau }, Info, []string{"power-cap", "92 W", "no fault"}, []string{"throttl"}},
		{"still getting warmer at full power", 12, func(s float64) sample.GPU { return gpuAt(60+s/40, 110, 2300, 97, 0) }, Pass, []string{"no throttling", "still rises (8 C in 5 min)", "no fault so far"}, nil},
		{"idle", 15, func(float64) sample.GPU { return idle }, Info, []string{"no load", "nothing to judge"}, nil},
		{"three minutes are too short", 3, func(float64) sample.GPU { return healthy }, Info, []string{"too short to judge", "10 min under load are needed"}, nil},
		// Half of the time nothing ran: what counts is the time under load.
		{"15 minutes, 6 of them loaded", 15, func(s float64) sample.GPU {
			if s < 360 {
				return healthy
			}
			return idle
		}, Info, []string{"too short to judge"}, nil},
		{"wedge within a minute", 1, func(float64) sample.GPU { return wedge }, Warn, []string{"power-wedge", "65 s"}, []string{"too short"}},
		{"one normal reading is no wedge", 1, func(s float64) sample.GPU {
			if s == 30 {
				return healthy
			}
			return wedge
		}, Info, []string{"too short"}, []string{"wedge"}},
		{"slow with a reason is no wedge", 1, func(float64) sample.GPU { return gpuAt(88, 30, 900, 98, sample.ReasonHWThermal) }, Warn, []string{"thermal-throttle", "hardware thermal slowdown"}, []string{"wedge"}},
		{"wedge that went away", 15, func(s float64) sample.GPU {
			if s < 300 {
				return wedge
			}
			return healthy
		}, Warn, []string{"power-wedge", "5 min", "worked normally later on"}, nil},
		{"weak adapter", 15, func(float64) sample.GPU { return gpuAt(55, 52, 1500, 98, 0) }, Warn, []string{"low-cap", "52 W"}, []string{"wedge"}},
		{"locked clocks are no low cap for nine minutes", 9, func(float64) sample.GPU { return gpuAt(55, 52, 1900, 98, 0) }, Info, []string{"too short"}, []string{"low-cap"}},
		// The pulses of GPUs under bursts: between two readings, kept by the counter alone.
		{"pulses by the counter, 2 % of the time", 15, func(s float64) sample.GPU {
			g := healthy
			g.CtrSWThermalNS = sample.Known(s / 50 * 1e9)
			return g
		}, Warn, []string{"thermal-throttle", "2.0 %", "by its counters"}, nil},
		{"pulses too rare to matter", 15, func(s float64) sample.GPU {
			g := healthy
			g.CtrSWThermalNS = sample.Known(s / 500 * 1e9)
			return g
		}, Pass, []string{"too little to matter"}, nil},
		// A driver that was loaded anew begins at zero.
		{"a counter that falls", 15, func(s float64) sample.GPU {
			g := healthy
			g.CtrHWThermalNS = sample.Known(1e12)
			if s > 400 {
				g.CtrHWThermalNS = sample.Known(0)
			}
			return g
		}, Pass, []string{"no throttling"}, nil},
		{"below its own plateau while hot", 30, func(s float64) sample.GPU {
			if s < 600 {
				return gpuAt(74, 96, 2300, 97, 0)
			}
			return hot
		}, Warn, []string{"thermal-throttle", "23 % below its own plateau of 96 W", "83 C"}, nil},
		{"below its plateau and cool", 30, func(s float64) sample.GPU {
			if s < 600 {
				return gpuAt(74, 96, 2300, 97, 0)
			}
			return gpuAt(70, 74, 2050, 97, 0)
		}, Info, []string{"power-cap"}, []string{"thermal"}},
		{"less load explains less power", 30, func(s float64) sample.GPU {
			if s < 600 {
				return gpuAt(82, 96, 2300, 97, 0)
			}
			return gpuAt(82, 60, 2300, 70, 0)
		}, Info, []string{"power-cap"}, []string{"thermal"}},
		{"a driver that hangs for a minute", 15, func(s float64) sample.GPU {
			if s >= 300 && s < 360 {
				return silent
			}
			return healthy
		}, Pass, []string{"no throttling", "gave no answer for 60 s in between"}, nil},
		{"a driver that hangs", 2, func(float64) sample.GPU { return silent }, Skip, []string{"no reading in 2 min", "no answer for 12 s"}, nil},
	} {
		f := judgedWatch(t, watchOf(c.minutes, c.at))
		if f.Status != c.status {
			t.Errorf("%s: %s: %s", c.name, f.Status, f.Detail)
		}
		for _, w := range c.says {
			if !strings.Contains(f.Detail, w) {
				t.Errorf("%s: %q lacks %q", c.name, f.Detail, w)
			}
		}
		for _, w := range c.not {
			if strings.Contains(f.Detail, w) {
				t.Errorf("%s: %q says %q", c.name, f.Detail, w)
			}
		}
		if f.Status == Warn && f.Fix == "" {
			t.Errorf("%s: no fix", c.name)
		}
		if f.Status == Info && f.Fix != "" {
			t.Errorf("%s: nobody reads the fix of an information: %q", c.name, f.Fix)
		}
		if strings.Contains(f.Fix, "batch") && !strings.Contains(f.Fix, "no need to change batch") {
			t.Errorf("%s: a power plateau is no reason to tune: %q", c.name, f.Fix)
		}
	}
}

func TestWatchEndedEarly(t *testing.T) {
	t.Parallel()
	o := watchOf(2, func(float64) sample.GPU { return gpuAt(44, 9, 507, 98, 0) })
	o.Asked, o.Interrupted = 15*time.Minute, true
	f := judgedWatch(t, o)
	if f.Status != Warn || !strings.Contains(f.Detail, "power-wedge") || !strings.Contains(f.Detail, "ended by you after 2 min of 15 min") {
		t.Errorf("%s: %s", f.Status, f.Detail)
	}
	if !strings.Contains(f.Fix, "unplug") || !strings.Contains(f.Fix, "a reboot does not help") {
		t.Errorf("fix %q", f.Fix)
	}
	o = &Observed{Asked: time.Minute, Step: time.Second, Interrupted: true, Took: time.Second, Trouble: []string{"the sensors process ended"}}
	if f := judgedWatch(t, o); f.Status != Skip || f.ByDesign || !strings.Contains(f.Detail, "the sensors process ended") {
		t.Errorf("nothing seen: %+v", f)
	}
}

// The rules about power are of the GB10: 90 W or 1200 MHz mean something else elsewhere.
func TestWatchOfAnotherGPU(t *testing.T) {
	t.Parallel()
	device := rtx(12040)
	run := func(o *Observed) Finding {
		o.Device, _, _ = device(t.Context())
		return find(t, Run(t.Context(), Input{Root: "testdata/laptop", Device: device, Observed: o}), "G4")
	}
	if f := run(watchOf(15, func(float64) sample.GPU { return gpuAt(44, 9, 507, 98, 0) })); f.Status != Pass {
		t.Errorf("a laptop GPU at 9 W: %s: %s", f.Status, f.Detail)
	}
	if f := run(watchOf(15, func(float64) sample.GPU { return gpuAt(90, 70, 1200, 98, sample.ReasonSWThermal) })); f.Status != Warn || !strings.Contains(f.Detail, "software thermal slowdown") {
		t.Errorf("heat is heat anywhere: %s: %s", f.Status, f.Detail)
	}
	noPower := func(float64) sample.GPU { return sample.GPU{TempC: sample.Known(60)} }
	if f := run(watchOf(1, noPower)); f.Status != Skip || !f.ByDesign {
		t.Errorf("a GPU that gives no power: %+v", f)
	}
}

// However long the step: one reading decides nothing, and the wedge needs a minute.
func TestFewReadingsDecideNothing(t *testing.T) {
	t.Parallel()
	wedge := gpuAt(44, 9, 507, 98, 0)
	o := &Observed{Asked: 2 * time.Minute, Took: 2 * time.Minute, Step: time.Minute, Device: gb10Device}
	for i := range 2 {
		o.Readings = append(o.Readings, WatchReading{At: time.Duration(i) * time.Minute, GPU: wedge})
	}
	if f := judgedWatch(t, o); f.Status != Info {
		t.Errorf("two readings: %s: %s", f.Status, f.Detail)
	}
	o.Readings = append(o.Readings, WatchReading{At: 2 * time.Minute, GPU: wedge})
	if f := judgedWatch(t, o); f.Status != Warn {
		t.Errorf("three readings a minute apart: %s: %s", f.Status, f.Detail)
	}
}

// Hostile readings: out of order, with gaps, absurd and unknown figures. Nothing panics,
// times add up to no more than was watched, and no single kind of reading but the
// wedge's makes a wedge.
func TestWatchWeighsAnything(t *testing.T) {
	t.Parallel()
	num := rapid.OneOf(
		rapid.Just(sample.Num{}),
		rapid.Map(rapid.Float64Range(-10, 4000), sample.Known),
		rapid.Map(rapid.Float64(), sample.Known),
	)
	rapid.Check(t, func(t *rapid.T) {
		o := &Observed{Step: time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "step")), Device: gb10Device}
		var at time.Duration
		for range rapid.IntRange(0, 60).Draw(t, "n") {
			at += time.Duration(rapid.Int64Range(-int64(time.Second), int64(2*time.Minute)).Draw(t, "dt"))
			o.Readings = append(o.Readings, WatchReading{At: at, GPU: sample.GPU{
				TempC: num.Draw(t, "temp"), PowerW: num.Draw(t, "power"), ClockSMMHz: num.Draw(t, "clock"), UtilPct: num.Draw(t, "util"),
				ReasonBits: num.Draw(t, "bits"), CtrSWThermalNS: num.Draw(t, "counter"),
			}})
		}
		w := o.weigh(aboutHeat(), aboutHost())
		span := 0.0
		if len(o.Readings) > 0 {
			span = slices.MaxFunc(o.Readings, func(a, b WatchReading) int { return int(a.At - b.At) }).At.Seconds() + 1
		}
		if w.observedS > span+1 || w.loadS > w.observedS+1e-6 || w.known > len(o.Readings) {
			t.Fatalf("observed %g s, loaded %g s in %g s", w.observedS, w.loadS, span)
		}
		f := judgeObserved(o, facts{platform: DGXSpark})
		if f.Detail == "" || strings.Contains(f.Detail, "NaN") || strings.Contains(f.Detail, "%!") {
			t.Fatalf("detail %q", f.Detail)
		}
	})
}

func TestG4LooksLikeTheWedge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		gpu   sample.GPU
		wedge bool
	}{
		{"wedge", gpuAt(44, 7.9, 495, 99, 0), true},
		{"milder form", gpuAt(50, 30, 1300, 95, 0), true},
		{"idle at its lowest clock", gpuAt(36, 4, 208, 0, sample.ReasonIdle), false},
		{"normal load", gpuAt(70, 92, 2300, 97, 0), false},
		{"slow with a reason", gpuAt(90, 30, 900, 97, sample.ReasonSWThermal), false},
		{"clock not known", sample.GPU{TempC: sample.Known(44), PowerW: sample.Known(8), UtilPct: sample.Known(99), ReasonBits: sample.Known(0)}, false},
	} {
		r := Run(t.Context(), Input{Root: "testdata/spark", Device: answers(gb10Device, c.gpu)})
		f := find(t, r, "G4")
		if f.Status != Info || strings.Contains(f.Detail, "low-power wedge") != c.wedge || strings.Contains(f.Detail, "--watch 1m") != c.wedge {
			t.Errorf("%s: %s: %s", c.name, f.Status, f.Detail)
		}
		if want := fmt.Sprintf("G4 INFO: %.0f, %.2f W", c.gpu.TempC.V, c.gpu.PowerW.V); f.Line != want {
			t.Errorf("%s: line %q, want the runbook's %q", c.name, f.Line, want)
		}
	}
}

// spbmChip is a hwmon folder of the power firmware's driver; the numbers of its files move.
func spbmChip(caps map[string]string) map[string]string {
	const dir = "sys/class/hwmon/hwmon3"
	files := map[string]string{dir + "/name": "spbm\n", dir + "/power1_label": "sys_total\n", dir + "/power1_input": "28000000\n"}
	n := 9
	for label, uw := range caps {
		n++
		files[fmt.Sprintf("%s/power%d_label", dir, n)] = label + "\n"
		files[fmt.Sprintf("%s/power%d_cap", dir, n)] = uw + "\n"
	}
	return files
}

func TestG4PowerCaps(t *testing.T) {
	t.Parallel()
	spark := newLab(t, "spark")
	for _, c := range []struct {
		name   string
		caps   map[string]string
		status Status
		says   string
	}{
		{"healthy", map[string]string{"pl1": "140000000", "syspl1": "231000000"}, Info, ""},
		{"failed negotiation", map[string]string{"pl1": "20000000", "syspl1": "30000000", "pl2": "20000000"}, Warn, "pl1 20 W, syspl1 30 W"},
		// All ones is the driver's way to say nothing.
		{"no value", map[string]string{"pl1": "4294967295", "syspl1": "what"}, Info, ""},
	} {
		// Nothing runs on it: the caps show all the same.
		dir := spark.with(spbmChip(c.caps))
		f := find(t, Run(t.Context(), Input{Root: dir, Device: gb10}), "G4")
		if f.Status != c.status || !strings.Contains(f.Detail, c.says) {
			t.Errorf("%s: %s: %s", c.name, f.Status, f.Detail)
		}
		if c.status == Warn && !strings.Contains(f.Fix, "unplug the power supply from the wall and from the unit") {
			t.Errorf("%s: fix %q", c.name, f.Fix)
		}
	}
}
