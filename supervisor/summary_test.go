package supervisor

import (
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
	"sparkrun/sampler/energy"
	"sparkrun/supervisor/acting"
	"sparkrun/supervisor/runlog"
)

func TestSummaryFitsEightLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 14, 3, 4, 5, 0, time.UTC)
	f := Facts{
		State: Exhausted, Status: 75, FirstStep: 1, LastStep: 40, StepTotal: 100,
		FirstLoss: sample.Known(2.5), LastLoss: sample.Known(1.25), Checkpoint: "out/checkpoint-40",
		Gate: time.Minute, LowestKiB: sample.Known(3 << 20), LowestAt: at, HottestC: sample.Known(83),
		RunDir: "/runs/x", Next: "something", Advice: "do this", Took: 5 * time.Hour,
		Heat: &runlog.Heat{ThrottledS: sample.Known(90), ThrottledShare: sample.Known(0.025), LostS: sample.Known(60), LostSteps: sample.Known(12)},
	}
	for n := 1; n <= 9; n++ {
		f.Attempts = append(f.Attempts, AttemptFacts{N: n, End: at, Took: time.Minute, Died: true, How: "exit 1", Verdict: "oom (cuda-allocator)", Quote: strings.Repeat("long ", 100)})
		lines := Summary(f)
		if len(lines) > MaxSummaryLines {
			t.Fatalf("%d attempts: %d lines\n%s", n, len(lines), strings.Join(lines, "\n"))
		}
		all := strings.Join(lines, "\n")
		for _, want := range []string{"status 75", "loss 2.5 to 1.25", "checkpoint-40", "waiting for memory", "throttled 2.5 % of the time (90 s), about 12 steps lost (60 s)", "lowest MemAvailable 3.0 GiB", "hottest 83 C", "/runs/x", "do this", "next: something", "attempt " + string(rune('0'+n)) + " died 03:04:05 (exit 1): oom (cuda-allocator): long"} {
			if !strings.Contains(all, want) {
				t.Errorf("%d attempts: %q is missing in\n%s", n, want, all)
			}
		}
	}
}

func TestSummarySaysWhetherItIsStillTheExperiment(t *testing.T) {
	t.Parallel()
	f := Facts{State: SucceededChanged, Attempts: []AttemptFacts{{N: 1, Died: true}, {N: 2}}, Changes: []string{"length 4096 -> 2048"}}
	if got := Summary(f)[0]; !strings.Contains(got, "succeeded in 2 attempts, but not as asked: length 4096 -> 2048") {
		t.Error(got)
	}
	f.State = Succeeded
	if got := Summary(f)[0]; !strings.Contains(got, "exactly as asked") {
		t.Error(got)
	}
}

func TestSummaryWithoutReadings(t *testing.T) {
	t.Parallel()
	all := strings.Join(Summary(Facts{State: Failed, Status: 1, Attempts: []AttemptFacts{{N: 1, Died: true}}}), "\n")
	for _, never := range []string{"MemAvailable", "hottest", "loss", "0 C", "throttled", "energy", " J"} {
		if strings.Contains(all, never) {
			t.Errorf("%q although nothing was read:\n%s", never, all)
		}
	}
}

func TestHeatIsOneLine(t *testing.T) {
	t.Parallel()
	k := sample.Known
	amount := func(j, known, estimated float64) energy.Amount {
		return energy.Amount{J: k(j), KnownS: known, EstimatedS: estimated}
	}
	night := []AttemptFacts{{N: 1, Took: 8 * time.Hour}}
	full := energy.Figures{
		GPU: amount(1.9*3.6e6, 8*3600, 0), IdleW: k(10), AboveIdleJ: k(1.9 * 3.6e6 * 0.96), Ratio: k(1.4),
		Steps: 10000, StepsJ: 6.4e6, Tokens: 2e7, TokensJ: 6.2e6,
	}
	for name, c := range map[string]struct {
		f    Facts
		want string
	}{
		"nothing": {Facts{Attempts: night}, ""},
		"no GPU, but a pace": {
			Facts{Heat: &runlog.Heat{BaselineS: k(2), Compared: "no baseline yet"}},
			"heat, pace, energy: against earlier runs: no baseline yet",
		},
		"a good night": {
			Facts{Attempts: night, HottestC: k(79), Heat: &runlog.Heat{ThrottledS: k(0), ThrottledShare: k(0), Compared: "normal"}, Energy: full},
			"heat, pace, energy: hottest 79 C; not throttled; 1.9 kWh on the GPU rail (NVML), 640 J a step, 0.31 J a token, 4.0 % of it idle draw; the firmware's GPU channel says 1.40 times that",
		},
		"a bad one": {
			Facts{Heat: &runlog.Heat{
				ThrottledS: k(3600), ThrottledShare: k(0.125), LostS: k(1200), LostSteps: k(400),
				Types: map[string]runlog.HeatType{
					"thermal-throttle": {Episodes: 3, ThrottledS: k(3000)}, "hw-brake": {Episodes: 1, ThrottledS: k(700)},
					"power-cap": {Episodes: 1, ThrottledS: k(9000)}, "hot": {Episodes: 1, ThrottledS: k(9)},
					"slow-start": {Episodes: 1, Seconds: k(600), LostS: k(200), LostSteps: k(66), Causes: map[string]float64{"unknown": 200}},
					"slowdown":   {Episodes: 2, Seconds: k(3600), LostS: k(1200), LostSteps: k(400), Causes: map[string]float64{"thermal-throttle": 1000, "unknown": 200}},
				},
			}},
			"heat, pace, energy: throttled 12 % of the time (60 min: hw-brake, thermal-throttle), about 400 steps lost (20 min); " +
				"slow-start for 10 min, about 66 steps lost (3.3 min), cause unknown; 2 times slowdown for 60 min, about 400 steps lost (20 min), mostly by thermal-throttle",
		},
		"a slowdown by what was told": {
			Facts{Heat: &runlog.Heat{
				ThrottledS: k(3600), ThrottledShare: k(0.5), LostS: k(1200), LostSteps: k(400),
				Types: map[string]runlog.HeatType{
					"power-wedge": {Episodes: 1, ThrottledS: k(3600)},
					"slowdown":    {Episodes: 1, Seconds: k(3600), LostS: k(1200), LostSteps: k(400), Causes: map[string]float64{"power-wedge": 1200}},
					"slow-start":  {Episodes: 1, Seconds: k(60), LostS: k(6), LostSteps: k(2), Causes: map[string]float64{"gpu-process": 6}},
				},
			}},
			"heat, pace, energy: throttled 50 % of the time (60 min: power-wedge), about 400 steps lost (20 min); " +
				"slow-start for 60 s, about 2 steps lost (6 s), by gpu-process; slowdown for 60 min, the same steps, by power-wedge",
		},
		"a slowdown that cost more than what was held back": {
			Facts{Heat: &runlog.Heat{
				ThrottledS: k(2250), ThrottledShare: k(0.125), LostS: k(2249), LostSteps: k(2249),
				Types: map[string]runlog.HeatType{
					"thermal-throttle": {Episodes: 1, ThrottledS: k(2250)},
					"slowdown":         {Episodes: 1, Seconds: k(18000), LostS: k(5999), LostSteps: k(5999), Causes: map[string]float64{"thermal-throttle": 5999}},
				},
			}},
			"heat, pace, energy: throttled 12 % of the time (38 min: thermal-throttle), about 2249 steps lost (37 min); " +
				"slowdown for 5 h, about 5999 steps lost (100 min), by thermal-throttle",
		},
		"readings that stopped": {
			Facts{Attempts: night, HottestC: k(78), Heat: &runlog.Heat{ObservedS: k(2 * 3600), ThrottledS: k(0), ThrottledShare: k(0), Compared: "normal"}},
			"heat, pace, energy: hottest 78 C; not throttled in the 25 % of the time that the GPU was read",
		},
		"throttled, as far as it was read": {
			Facts{Attempts: night, Heat: &runlog.Heat{ObservedS: k(4 * 3600), ThrottledS: k(3600), ThrottledShare: k(0.25), LostS: k(60), LostSteps: k(1), Types: map[string]runlog.HeatType{
				"thermal-throttle": {Episodes: 1, ThrottledS: k(3600)},
			}}},
			"heat, pace, energy: throttled 25 % of the 50 % of the time that the GPU was read (60 min: thermal-throttle), about 1 step lost (60 s)",
		},
		"hot": {
			Facts{Attempts: night, HottestC: k(93), Heat: &runlog.Heat{ObservedS: k(8 * 3600), ThrottledS: k(0), ThrottledShare: k(0), Types: map[string]runlog.HeatType{"hot": {Episodes: 1, Seconds: k(190)}}}},
			"heat, pace, energy: hottest 93 C; too hot for 3.2 min; not throttled",
		},
		"paused": {
			Facts{HottestC: k(92), Pauses: 3, Paused: 9 * time.Minute},
			"heat, pace, energy: hottest 92 C; paused 3 times for 9 min in all",
		},
		"wedged from the first step": {
			Facts{Heat: &runlog.Heat{ThrottledS: k(300), ThrottledShare: k(1)}},
			"heat, pace, energy: throttled 100 % of the time (5 min), what it cost is not known: no pace from before it",
		},
		"an estimate with holes": {
			Facts{Attempts: []AttemptFacts{{Took: 1000 * time.Second}}, Energy: energy.Figures{GPU: amount(48000, 600, 600), Ratio: k(1.1)}},
			"heat, pace, energy: about 48 kJ on the GPU rail (estimate from NVML's power), known for 60 % of the time",
		},
		"a counter that began anew in a short run": {
			Facts{Attempts: []AttemptFacts{{Took: 4 * time.Second}}, Energy: energy.Figures{GPU: amount(320, 4, 1), Resets: 1}},
			"heat, pace, energy: about 320 J on the GPU rail (NVML's counter; for 25 % of the time an estimate from its power)",
		},
		"a counter that moves in steps": {
			Facts{Attempts: night, Energy: energy.Figures{GPU: amount(48000, 600, 30)}},
			"heat, pace, energy: 48 kJ on the GPU rail (NVML), known for 2.1 % of the time",
		},
		"only the firmware": {Facts{Energy: energy.Figures{SoC: amount(523.4, 4, 0)}}, "heat, pace, energy: 523 J of the SoC (firmware)"},
	} {
		if got := heatLine(c.f); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

// TestSummaryNamesTheSourceThatRunJSONHas: whatever part of it was estimated.
func TestSummaryNamesTheSourceThatRunJSONHas(t *testing.T) {
	t.Parallel()
	words := map[string]string{
		runlog.FromCounter: "(NVML)", runlog.FromPower: "(estimate from NVML's power)", runlog.FromBoth: "(NVML's counter; for ",
	}
	seen := map[string]bool{}
	for estimated := range 101 {
		f := energy.Figures{GPU: energy.Amount{J: sample.Known(5000), KnownS: 100, EstimatedS: float64(estimated)}}
		source := runlog.EnergyOf(f).GPUSource
		seen[source] = true
		if got := heatLine(Facts{Energy: f}); !strings.Contains(got, words[source]) || strings.HasPrefix(got, "heat, pace, energy: about") == (source == runlog.FromCounter) {
			t.Errorf("%d %% estimated is %q: %s", estimated, source, got)
		}
	}
	if len(seen) != len(words) {
		t.Errorf("only %v", seen)
	}
}

// TestLostTimeIsCountedOnce: whatever is not training, and of a failed attempt nothing twice.
func TestLostTimeIsCountedOnce(t *testing.T) {
	t.Parallel()
	lost := sample.Known
	for name, c := range map[string]struct {
		f    Facts
		want time.Duration
	}{
		"nothing":            {Facts{Attempts: []AttemptFacts{{N: 1, Took: time.Hour}}}, 0},
		"the gate":           {Facts{Gate: time.Minute}, time.Minute},
		"paused":             {Facts{Attempts: []AttemptFacts{{N: 1, Took: time.Hour, Paused: 5 * time.Minute}}}, 5 * time.Minute},
		"slower":             {Facts{Attempts: []AttemptFacts{{N: 1, Took: time.Hour, LostS: lost(90)}}}, 90 * time.Second},
		"paused and slower":  {Facts{Attempts: []AttemptFacts{{N: 1, Took: time.Hour, Paused: time.Minute, LostS: lost(30)}}}, 90 * time.Second},
		"the last one dying": {Facts{Attempts: []AttemptFacts{{N: 1, Died: true, Took: time.Hour, Paused: time.Minute}}}, time.Minute},
		"all of it": {Facts{Gate: time.Minute, Attempts: []AttemptFacts{
			{N: 1, Died: true, Took: time.Hour, Paused: 20 * time.Minute, LostS: lost(600)},
			{N: 2, Took: time.Hour, Paused: 2 * time.Minute, LostS: lost(60)},
		}}, time.Hour + 4*time.Minute},
	} {
		if got := lostTime(c.f); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestSummarySaysWhatToDoAboutHeat: the advice of the worst that was seen, where nothing else
// has said it, in eight lines.
func TestSummarySaysWhatToDoAboutHeat(t *testing.T) {
	t.Parallel()
	k := sample.Known
	heat := func(types map[string]runlog.HeatType) Facts {
		return Facts{
			State: Succeeded, Attempts: []AttemptFacts{{N: 1, Took: time.Hour}},
			Heat: &runlog.Heat{ObservedS: k(3600), ThrottledS: k(600), ThrottledShare: k(1. / 6), Types: types},
		}
	}
	long, pulse := runlog.HeatType{Episodes: 1, Seconds: k(600), ThrottledS: k(600)}, runlog.HeatType{Episodes: 1, Seconds: k(1), ThrottledS: k(1)}
	paused := heat(map[string]runlog.HeatType{"hot": long})
	paused.Pauses = 2
	ended := heat(map[string]runlog.HeatType{"power-wedge": long})
	ended.State, ended.Reason = Failed, "the GPU is in the low-power wedge: "+acting.WedgeCure
	other := heat(map[string]runlog.HeatType{"hw-brake": long})
	other.Advice = "raise that limit"
	for name, c := range map[string]struct {
		f    Facts
		want string // "" for no advice
	}{
		"wedge, before all else":        {heat(map[string]runlog.HeatType{"power-wedge": long, "hot": long, "hw-brake": long}), "advice: the GPU was in the low-power wedge: shut down, unplug"},
		"low cap":                       {heat(map[string]runlog.HeatType{"low-cap": long}), "nvidia-smi -rgc"},
		"hot":                           {heat(map[string]runlog.HeatType{"hot": long}), "--max-temp 88:84"},
		"hot, and paused already":       {paused, "improve cooling or lower the load"},
		"brake":                         {heat(map[string]runlog.HeatType{"hw-brake": long}), "power adapter"},
		"heat":                          {heat(map[string]runlog.HeatType{"thermal-throttle": long}), "improve cooling"},
		"one pulse in an hour":          {heat(map[string]runlog.HeatType{"thermal-throttle": pulse, "hw-brake": pulse}), ""},
		"the platform's cap, no fault":  {heat(map[string]runlog.HeatType{"power-cap": long, "slowdown": long}), ""},
		"the result has said it":        {ended, ""},
		"another piece of advice first": {other, "advice: raise that limit"},
		"nothing known":                 {Facts{State: Succeeded}, ""},
	} {
		lines := Summary(c.f)
		var got []string
		for _, l := range lines {
			if strings.HasPrefix(l, "advice: ") {
				got = append(got, l)
			}
		}
		switch {
		case len(lines) > MaxSummaryLines || len(got) > 1:
			t.Errorf("%s: %d lines, %q", name, len(lines), got)
		case c.want == "" && len(got) > 0, c.want != "" && (len(got) == 0 || !strings.Contains(got[0], c.want)):
			t.Errorf("%s: %q, want %q", name, got, c.want)
		case name == "hot, and paused already" && strings.Contains(got[0], "--max-temp"):
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestStepsAreToldInThreeDigits: a third more is seen.
func TestStepsAreToldInThreeDigits(t *testing.T) {
	t.Parallel()
	for s, want := range map[float64]string{0.0126: "(13 ms a step)", 0.0983: "(98 ms a step)", 0.13: "(0.13 s a step)", 1.254: "(1.25 s a step)", 12.34: "(12.3 s a step)", 119: "(119 s a step)", 600: "(10 min a step)"} {
		if got := Summary(Facts{State: Failed, LastStep: 9, StepTimeS: sample.Known(s)})[1]; !strings.Contains(got, want) {
			t.Errorf("%g: %s", s, got)
		}
	}
}
