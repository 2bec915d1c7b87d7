package throttle

import (
	"math"
	"strings"
	"testing"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// slowFrom..slowTo is when the jobs below are slower.
const slowFrom, slowTo = 3600.0, 7200.0

func during(change func(x *sample.Sample, sec float64)) func(float64, *sample.Sample) {
	return func(s float64, x *sample.Sample) {
		if s >= slowFrom && s < slowTo {
			change(x, s-slowFrom)
		}
	}
}

func TestCauseOfASlowdown(t *testing.T) {
	t.Parallel()
	k := sample.Known
	for name, c := range map[string]struct {
		around func(float64, *sample.Sample)
		want   string
		word   string
		others string // labels of what else is told
	}{
		"nothing":              {nil, CauseUnknown, "nothing that was measured explains it", ""},
		"memory is waited for": {during(func(x *sample.Sample, _ float64) { x.PSIMemSome10 = k(31) }), CauseMemory, "wait for memory 31 % of the time", ""},
		"swap": {func(s float64, x *sample.Sample) {
			x.SwapInPages.V += 5000 * min(max(0, s-slowFrom), slowTo-slowFrom)
		}, CauseMemory, "19.5 MiB a second go to and from swap", ""},
		"little memory left": {during(func(x *sample.Sample, _ float64) { x.MemAvailableKiB = k(2e6) }), CauseMemory, "1.6 % of the memory is available", ""},
		"somebody on the GPU": {during(func(x *sample.Sample, _ float64) {
			x.GPUOtherMiB = k(9000)
			x.Processes = append(x.Processes, sample.GPUProcess{PID: 4711, UsedMiB: k(9000)})
		}), CauseGPUProcess, "pid 4711 (vllm serve) with 8.8 GiB", ""},
		"somebody who grew": {func(s float64, x *sample.Sample) {
			x.GPUOtherMiB = k(300)
			if s >= slowFrom && s < slowTo {
				x.GPUOtherMiB = k(9000)
			}
			x.Processes = append(x.Processes, sample.GPUProcess{PID: 900, UsedMiB: x.GPUOtherMiB})
		}, CauseGPUProcess, "pid 900 (an old server) with 8.8 GiB", ""},
		"somebody who does not tell": {during(func(x *sample.Sample, _ float64) {
			x.GPUOtherMiB = sample.Num{}
			x.Processes = append(x.Processes, sample.GPUProcess{PID: 4711})
		}), CauseGPUProcess, "pid 4711 (vllm serve)", ""},
		"somebody listed with one reading in ten": {func(s float64, x *sample.Sample) {
			if s >= slowFrom && s < slowTo {
				x.GPUOtherMiB = k(9000)
				x.Processes = append(x.Processes, sample.GPUProcess{PID: 4711, UsedMiB: k(9000)})
			}
			if int(s)%10 != 7 {
				x.Processes, x.GPUOtherMiB, x.GPUTreeMiB = nil, sample.Num{}, sample.Num{}
			}
		}, CauseGPUProcess, "pid 4711 (vllm serve) with 8.8 GiB", ""},
		"somebody who was there all along": {func(_ float64, x *sample.Sample) {
			x.GPUOtherMiB = k(9000)
			x.Processes = append(x.Processes, sample.GPUProcess{PID: 900, UsedMiB: k(9000)})
		}, CauseUnknown, "pid 900 (an old server) holds 8.8 GiB on the GPU as before, and may have become busy", ""},
		"a clock that fell, no reasons known": {func(s float64, x *sample.Sample) {
			x.ReasonBits, x.CtrSWThermalNS, x.CtrHWThermalNS, x.CtrHWPowerNS = sample.Num{}, sample.Num{}, sample.Num{}, sample.Num{}
			if s >= slowFrom && s < slowTo {
				x.ClockSMMHz, x.TempC = k(1200), k(44)
			}
		}, CauseClock, "97 % busy, 44 C, 92 W, and no reason is given", ""},
		"a clock that fell, power not known": {func(s float64, x *sample.Sample) {
			x.PowerW = sample.Num{}
			if s >= slowFrom && s < slowTo {
				x.ClockSMMHz = k(611)
			}
		}, CauseClock, "the clock is at 611 MHz against 22", ""},
		"a clock that sags as it warms up":    {during(func(x *sample.Sample, _ float64) { x.ClockSMMHz = k(2060) }), CauseUnknown, "clock 2060 MHz against 2230", ""},
		"a clock that falls while it waits":   {during(func(x *sample.Sample, _ float64) { x.ClockSMMHz, x.UtilPct, x.PowerW = k(1500), k(50), k(50) }), CauseInput, "50 % busy against 97", ""},
		"a utilisation that is stuck at zero": {during(func(x *sample.Sample, _ float64) { x.UtilPct = k(0) }), CauseUnknown, "GPU 0 % busy against 97", ""},
		"a worker of its own": {during(func(x *sample.Sample, _ float64) {
			x.Processes = append(x.Processes, sample.GPUProcess{PID: 7, UsedMiB: k(500)})
		}), CauseUnknown, "", ""},
		"loaders": {during(func(x *sample.Sample, _ float64) { x.UtilPct = k(60) }), CauseInput, "60 % busy against 97 before) while its processes keep 1.0 processors busy", ""},
		"the disk": {during(func(x *sample.Sample, _ float64) {
			x.UtilPct, x.PSIIOFull10, x.TreeCPUS = k(55), k(44), sample.Num{}
		}), CauseInput, "waits for the disk 44 % of the time", ""},
		"the network": {func(s float64, x *sample.Sample) {
			x.TreeCPUS = sample.Num{}
			x.TreeNetB.V += 3e6 * min(max(0, s-slowFrom), slowTo-slowFrom)
			if s >= slowFrom && s < slowTo {
				x.UtilPct = k(40)
			}
		}, CauseInput, "2.9 MiB a second come over the network", ""},
		"an idle GPU and nothing else": {during(func(x *sample.Sample, _ float64) { x.UtilPct, x.TreeCPUS = k(40), sample.Num{} }), CauseUnknown, "GPU 40 % busy against 97", ""},
		"no figures at all": {func(_ float64, x *sample.Sample) {
			*x = sample.Sample{T: x.T, Mono: x.Mono, Attempt: x.Attempt, Step: x.Step, StepTimeS: x.StepTimeS}
		}, CauseUnknown, "nothing that was measured explains it", ""},
	} {
		d := New(config(t))
		d.Names = func(pid int) string { return map[int]string{4711: "vllm serve", 900: "an old server"}[pid] }
		j := training{step: constant(1), around: c.around}.slower(1.5, slowFrom, slowTo)
		got := ofPace(j.play(d, hours(3)))
		if labels(got) != once {
			t.Errorf("%s:\n%s", name, outline(got))
			continue
		}
		for _, e := range got {
			if e.Data["cause"] != c.want {
				t.Errorf("%s: %s: %v, want %s (%v)", name, e.Label, e.Data["cause"], c.want, e.Data["evidence"])
			}
		}
		if why := got[0].Data["evidence"].(string); !strings.Contains(why, c.word) {
			t.Errorf("%s: %q lacks %q", name, why, c.word)
		}
		if c.want == CauseGPUProcess && strings.Contains(c.word, "4711") && (got[0].Data["gpu_pid"] != 4711 || got[0].Data["gpu_process"] != "vllm serve") {
			t.Errorf("%s: %v", name, got[0].Data)
		}
		if share, ok := got[1].Data["cause_share"].(float64); !ok || share < 0.9 {
			t.Errorf("%s: share %v", name, got[1].Data["cause_share"])
		}
	}
}

// A GPU that throttles and steps that get longer are one thing: one warning.
func TestThrottleIsTheCause(t *testing.T) {
	t.Parallel()
	hot := during(func(x *sample.Sample, _ float64) {
		x.ReasonBits, x.TempC, x.ClockSMMHz = sample.Known(0x20), sample.Known(86), sample.Known(1500)
	})
	d := New(config(t))
	got := training{step: constant(1), around: hot}.slower(1.5, slowFrom, slowTo).play(d, hours(3))
	var warned []string
	pace := ofPace(got)
	if labels(pace) != once {
		t.Fatalf("%s", outline(got))
	}
	for _, e := range got {
		if e.Level == event.Warn && e.Kind == event.ThrottleStart {
			warned = append(warned, e.Label)
		}
	}
	for _, e := range pace {
		if e.Data["cause"] != ThermalThrottle {
			t.Errorf("%s: %v", e.Label, e.Data)
		}
	}
	if len(warned) != 1 {
		t.Errorf("warned of %v, want one", warned)
	}
	if !strings.Contains(pace[0].Msg, "the clock is at 1500 MHz against 22") {
		t.Errorf("%q", pace[0].Msg)
	}
}

// Pulses of a second now and then explain nothing, whatever kind they are: the cause is
// what else there is, and is warned of.
func TestRarePulsesAreNotTheCause(t *testing.T) {
	t.Parallel()
	for name, bits := range map[string]float64{"software thermal": 0x20, "hardware thermal": 0x40, "hardware slowdown": 0x8, "power brake": 0x80} {
		for _, neighbour := range []bool{false, true} {
			d := New(config(t))
			d.Names = func(pid int) string { return map[int]string{4711: "vllm serve"}[pid] }
			// They were not there before: without undisturbed steps there is no pace.
			around := during(func(x *sample.Sample, s float64) {
				if math.Mod(s, 50) < 1 {
					x.ReasonBits = sample.Known(bits)
				}
				if neighbour {
					x.GPUOtherMiB = sample.Known(30 * 1024)
					x.Processes = append(x.Processes, sample.GPUProcess{PID: 4711, UsedMiB: sample.Known(30 * 1024)})
				}
			})
			want := CauseUnknown
			if neighbour {
				want = CauseGPUProcess
			}
			got := ofPace(training{step: constant(1), around: around}.slower(2, slowFrom, slowTo).play(d, hours(3)))
			if labels(got) != once || got[0].Data["cause"] != want || got[1].Data["cause"] != want || got[0].Level != event.Warn {
				t.Errorf("%s, %v: %s %v", name, neighbour, outline(got), got[0].Data)
			}
		}
	}
}

// A brake that holds the GPU back for more than a tenth of the time, or its clock down,
// is the cause.
func TestBrakeIsTheCause(t *testing.T) {
	t.Parallel()
	for name, around := range map[string]func(x *sample.Sample, s float64){
		"all the time": func(x *sample.Sample, _ float64) { x.ReasonBits = sample.Known(0x80) },
		"a fifth of it": func(x *sample.Sample, s float64) {
			if math.Mod(s, 10) < 2 {
				x.ReasonBits = sample.Known(0x80)
			}
		},
		"by its clock": func(x *sample.Sample, s float64) {
			x.ClockSMMHz = sample.Known(1900)
			if math.Mod(s, 50) < 1 {
				x.ReasonBits = sample.Known(0x8)
			}
		},
	} {
		got := ofPace(training{step: constant(1), around: during(around)}.slower(1.5, slowFrom, slowTo).play(New(config(t)), hours(3)))
		if labels(got) != once || got[0].Data["cause"] != HWBrake || got[1].Data["cause"] != HWBrake {
			t.Errorf("%s: %s %v", name, outline(got), got)
		}
	}
}

func TestWedgeIsTheCause(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: constant(1), around: during(func(x *sample.Sample, s float64) {
		w := wedged(s)
		x.TempC, x.PowerW, x.ClockSMMHz, x.ReasonBits = w.TempC, w.PowerW, w.ClockSMMHz, w.ReasonBits
	})}.slower(2.5, slowFrom, slowTo)
	got := j.play(d, hours(3))
	pace := ofPace(got)
	if labels(pace) != once || pace[0].Data["cause"] != PowerWedge || pace[0].Level != event.Info {
		t.Errorf("%s", outline(got))
	}
}

// A wedge is told a minute after it began; wherever in a block that was, it is the cause
// from then on and not from where it was told.
func TestWedgeIsTheCauseFromItsBeginning(t *testing.T) {
	t.Parallel()
	for late := 0.0; late < 70; late += 7 {
		in := func(s float64) bool { return s >= slowFrom+late }
		d := New(config(t))
		got := training{
			step: func(_ int, s float64) float64 { return map[bool]float64{true: 3, false: 1}[in(s)] },
			around: func(s float64, x *sample.Sample) {
				if w := wedged(s); in(s) {
					x.TempC, x.PowerW, x.ClockSMMHz, x.ReasonBits = w.TempC, w.PowerW, w.ClockSMMHz, w.ReasonBits
				}
			},
		}.play(d, slowFrom+900)
		for _, e := range ofPace(got) {
			if e.Data["cause"] != PowerWedge || e.Level != event.Info {
				t.Errorf("a wedge %.0f s into a block: %s\n%v", late, outline(got), e.Data)
			}
		}
		if pace := ofPace(got); labels(pace) != once {
			t.Errorf("a wedge %.0f s into a block: %s", late, outline(got))
		}
	}
}

// The cause can become plain only later: the end tells it, and what was thought.
func TestCauseIsCorrected(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: constant(1), around: during(func(x *sample.Sample, s float64) {
		if s > 400 {
			x.PSIMemSome10 = sample.Known(40)
		}
	})}.slower(1.5, slowFrom, slowTo)
	got := ofPace(j.play(d, hours(3)))
	if labels(got) != once || got[0].Data["cause"] != CauseUnknown {
		t.Fatalf("%s %v", outline(got), got[0].Data)
	}
	end := got[1].Data
	if share := end["cause_share"].(float64); end["cause"] != CauseMemory || end["cause_at_start"] != CauseUnknown || share < 0.8 || share > 0.95 {
		t.Errorf("%v", end)
	}
	// A throttle that is recognised late but began with it explains all of it.
	d = New(config(t))
	j = training{step: constant(1), around: during(func(x *sample.Sample, s float64) {
		x.PowerW, x.ClockSMMHz, x.TempC = sample.Known(70), sample.Known(1900), sample.Known(84)
	})}.slower(1.5, slowFrom, slowTo)
	got = ofPace(j.play(d, hours(3)))
	if end := got[1].Data; labels(got) != once || end["cause"] != ThermalThrottle || end["cause_share"] != 1.0 {
		t.Errorf("%s %v", outline(got), end)
	}
}

func TestStepsBehindACheckpoint(t *testing.T) {
	t.Parallel()
	// Each twenty minutes a checkpoint is written beside the training, from the second
	// hour on: the steps behind it are slow for a hundred seconds.
	behind := func(s float64) bool { return s > 3600 && math.Mod(s, 1200) < 200 }
	for kind, want := range map[string]string{MarkCheckpoint: CauseCheckpoint, MarkEval: CauseEval} {
		d := New(config(t))
		j := training{
			step: func(_ int, s float64) float64 { return map[bool]float64{true: 2.5, false: 1}[behind(s)] },
			before: func(s float64, d *Detector) {
				if behind(s) && !behind(s-1) {
					d.Mark(at(s), kind)
				}
			},
		}
		got := ofPace(j.play(d, 4700))
		if labels(got) != once || got[0].Data["cause"] != want || got[0].Level != event.Info {
			t.Errorf("%s: %s", kind, outline(got))
		}
	}
	// Checkpoints that were there before, and cost nothing then, are not the cause.
	d := New(config(t))
	j := training{step: constant(1), before: func(s float64, d *Detector) {
		if math.Mod(s, 300) == 0 {
			d.Mark(at(s), MarkCheckpoint)
		}
	}}.slower(1.5, slowFrom, slowTo)
	if got := ofPace(j.play(d, hours(3))); labels(got) != once || got[0].Data["cause"] != CauseUnknown {
		t.Errorf("%s", outline(got))
	}
}

// Our own limit, put on in mid-run, is no fault.
func TestOwnLimitIsTheCause(t *testing.T) {
	t.Parallel()
	d := New(config(t))
	j := training{step: constant(1), around: during(func(x *sample.Sample, _ float64) { x.ClockSMMHz, x.PowerW = sample.Known(1485), sample.Known(60) })}.slower(1.5, slowFrom, slowTo)
	j.before = func(s float64, d *Detector) {
		if s == slowFrom {
			d.SetClockCap(1500)
		}
	}
	got := ofPace(j.play(d, slowTo))
	if labels(got) != once || got[0].Level != event.Info || got[0].Data["cause"] != CauseClock || !strings.Contains(got[0].Msg, "sparkrun's own limit is 1500 MHz") {
		t.Errorf("%s %q", outline(got), got[0].Msg)
	}
}

func TestTally(t *testing.T) {
	t.Parallel()
	f := func(cause string) finding { return finding{cause: cause, why: "because of " + cause} }
	for name, c := range map[string]struct {
		add   []finding
		sec   []float64
		want  string
		share float64
	}{
		"one":                     {[]finding{f("a")}, []float64{60}, "a", 1},
		"the longer":              {[]finding{f("a"), f("b"), f("a")}, []float64{60, 90, 60}, "a", 120.0 / 210},
		"a known one before more": {[]finding{f(CauseUnknown), f("a")}, []float64{60, 40}, "a", 0.4},
		"unknown for most":        {[]finding{f(CauseUnknown), f("a")}, []float64{80, 20}, CauseUnknown, 0.8},
		"no time":                 {[]finding{f("a")}, []float64{0}, "a", 0},
	} {
		var tally causeTally
		for i, f := range c.add {
			tally.add(f, c.sec[i])
		}
		got, share := tally.top()
		if got.cause != c.want || math.Abs(share-c.share) > 1e-9 {
			t.Errorf("%s: %s %g", name, got.cause, share)
		}
	}
}
