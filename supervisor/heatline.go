package supervisor

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/sample"
	"sparkrun/sampler/energy"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/acting"
	"sparkrun/supervisor/runlog"
)

// heatLine is the summary's line about heat, pace and energy, "" where nothing is known.
func heatLine(f Facts) string {
	var parts []string
	if f.HottestC.OK {
		parts = append(parts, fmt.Sprintf("hottest %.0f C", f.HottestC.V))
	}
	if f.Heat != nil {
		if t := f.Heat.Types[throttle.Hot]; t.Episodes > 0 && t.Seconds.OK {
			parts = append(parts, "too hot for "+human(secondsOf(t.Seconds)))
		}
		parts = append(parts, throttleWords(*f.Heat, attemptsTook(f))...)
		parts = append(parts, slowWords(*f.Heat)...)
	}
	switch {
	case f.Pauses == 1:
		parts = append(parts, "paused once for "+human(f.Paused))
	case f.Pauses > 1:
		parts = append(parts, fmt.Sprintf("paused %d times for %s in all", f.Pauses, human(f.Paused)))
	}
	parts = append(parts, energyWords(f.Energy, attemptsTook(f))...)
	if len(parts) == 0 {
		return ""
	}
	return "heat, pace, energy: " + strings.Join(parts, "; ")
}

// attemptsTook is how long all attempts were.
func attemptsTook(f Facts) time.Duration {
	var d time.Duration
	for _, a := range f.Attempts {
		d += a.Took
	}
	return d
}

// throttleWords tell how much of the time the GPU was held back, and what that cost; took
// is how long all attempts were. What was not read was not watched, and is no good news.
func throttleWords(h runlog.Heat, took time.Duration) []string {
	if !h.ThrottledS.OK || !h.ThrottledShare.OK {
		return nil
	}
	of := "the time"
	if part, ok := knownPart(h.ObservedS.Or(took.Seconds()), took); ok {
		of = fmt.Sprintf("the %s of the time that the GPU was read", part)
	}
	if h.ThrottledS.V <= 0 {
		if of != "the time" {
			return []string{"not throttled in " + of}
		}
		return []string{"not throttled"}
	}
	s := fmt.Sprintf("throttled %s of %s (%s", percent(h.ThrottledShare.V), of, human(secondsOf(h.ThrottledS)))
	var types []string
	for _, typ := range slices.Sorted(maps.Keys(h.Types)) {
		if holdsBack(typ) && h.Types[typ].ThrottledS.V > 0 {
			types = append(types, typ)
		}
	}
	if len(types) > 0 {
		s += ": " + strings.Join(types, ", ")
	}
	return []string{s + "), " + costWords(h.LostS, h.LostSteps)}
}

// costWords say what something cost in steps.
func costWords(lostS, steps sample.Num) string {
	switch {
	case !lostS.OK:
		return "what it cost is not known: no pace from before it"
	case steps.OK && steps.V >= 1:
		s := "s"
		if math.Round(steps.V) == 1 {
			s = ""
		}
		return fmt.Sprintf("about %.0f step%s lost (%s)", steps.V, s, human(secondsOf(lostS)))
	case lostS.V >= 0.5:
		return fmt.Sprintf("about %s lost", human(secondsOf(lostS)))
	}
	return "no step lost"
}

// slowWords tell of slow starts and slowdowns, with the cause.
func slowWords(h runlog.Heat) []string {
	var out []string
	for _, typ := range []string{throttle.SlowStart, throttle.Slowdown} {
		t, ok := h.Types[typ]
		if !ok || t.Episodes == 0 {
			continue
		}
		what := typ
		if t.Episodes > 1 {
			what = fmt.Sprintf("%d times %s", t.Episodes, typ)
		}
		s := fmt.Sprintf("%s for %s, ", what, human(secondsOf(t.Seconds)))
		switch cause, others := topCause(t.Causes); {
		case !others && h.LostS.OK && h.Types[cause].ThrottledS.V > 0 && t.LostS.V < 1.1*h.LostS.V:
			s += "the same steps, by " + cause
		case cause == "" || cause == throttle.CauseUnknown && !others:
			s += costWords(t.LostS, t.LostSteps) + ", cause unknown"
		case others:
			s += costWords(t.LostS, t.LostSteps) + ", mostly by " + cause
		default:
			s += costWords(t.LostS, t.LostSteps) + ", by " + cause
		}
		out = append(out, s)
	}
	if h.Compared == throttle.ComparedNone {
		out = append(out, "against earlier runs: "+throttle.ComparedNone)
	}
	return out
}

// ratioTold is by how much the firmware's figure of the GPU must differ from NVML's to be
// told. NVML has been measured to read 18 to 44 % low.
const ratioTold = 0.2

// energyWords tell what was used, on which rail and by which source; took is how long all
// attempts were.
func energyWords(f energy.Figures, took time.Duration) []string {
	g := f.GPU
	if !g.J.OK || g.J.V <= 0 {
		switch {
		case f.SoC.J.OK && f.SoC.J.V > 0:
			return []string{joules(f.SoC.J.V) + " of the SoC (firmware)"}
		case f.Machine.J.OK && f.Machine.J.V > 0:
			return []string{"about " + joules(f.Machine.J.V) + " of the machine (estimate from the firmware's power)"}
		}
		return nil
	}
	s := joules(g.J.V) + " on the GPU rail (NVML)"
	switch runlog.EnergySource(g) {
	case runlog.FromPower:
		s = "about " + joules(g.J.V) + " on the GPU rail (estimate from NVML's power)"
	case runlog.FromBoth:
		s = fmt.Sprintf("about %s on the GPU rail (NVML's counter; for %s of the time an estimate from its power)", joules(g.J.V), percent(g.EstimatedS/g.KnownS))
	}
	if part, ok := knownPart(g.KnownS, took); ok {
		s += fmt.Sprintf(", known for %s of the time", part)
	}
	if p := f.PerStep(); p.OK {
		s += ", " + joules(p.V) + " a step"
	}
	if p := f.PerToken(); p.OK {
		s += ", " + joules(p.V) + " a token"
	}
	if p := f.IdleShare(); p.OK {
		s += ", " + percent(p.V) + " of it idle draw"
	}
	out := []string{s}
	if f.Ratio.OK && math.Abs(f.Ratio.V-1) > ratioTold {
		out = append(out, fmt.Sprintf("the firmware's GPU channel says %.2f times that", f.Ratio.V))
	}
	return out
}

// heatAdvice is what helps against what the run has suffered from, the worst first; "" where
// there is nothing, or the result has said it.
func heatAdvice(f Facts) string {
	if f.Heat == nil || strings.Contains(f.Reason+f.Watched, acting.WedgeCure) {
		return ""
	}
	h := *f.Heat
	held := func(typ string) bool {
		// A pulse of a second in a night is no reason to do something.
		return h.Types[typ].ThrottledS.Or(0) > heldMuch*h.ObservedS.Or(0)
	}
	switch {
	case h.Types[throttle.PowerWedge].Episodes > 0:
		return "the GPU was in the low-power wedge: " + acting.WedgeCure
	case h.Types[throttle.LowCap].Episodes > 0:
		return "the GPU did not get its usual power: sudo nvidia-smi -rgc, in case the clocks are locked; else the machine's own 240 W adapter, and unplug it from the wall and from the unit for a minute"
	case h.Types[throttle.Hot].Episodes > 0:
		s := "it was so hot that machines have turned themselves off: improve cooling or lower the load"
		if f.Pauses == 0 {
			s += "; --max-temp 88:84 pauses the command in time"
		}
		return s
	case held(throttle.HWBrake):
		return "the hardware slowed the GPU, not for heat: look at the power adapter, its cable and the wall socket"
	case held(throttle.ThermalThrottle):
		return "the GPU slowed itself for heat: improve cooling; --cap-clocks MHZ holds a clock that it can keep"
	}
	return ""
}

// heldMuch is the part of the time from which on a throttle is worth advice, as it is worth
// a warning (thermal.warn_share of configs/thermal.yaml).
const heldMuch = 0.01

// knownPart is known seconds as a part of the time that all attempts took, not ok where
// that is nearly all of it.
func knownPart(known float64, took time.Duration) (string, bool) {
	t := took.Seconds()
	return percent(known / t), known < 0.9*t && t-known > 5
}

func secondsOf(n sample.Num) time.Duration { return time.Duration(n.V * float64(time.Second)) }

// percent writes a part of one.
func percent(v float64) string {
	switch p := 100 * v; {
	case p < 0.1:
		return "under 0.1 %"
	case p < 10:
		return fmt.Sprintf("%.1f %%", p)
	default:
		return fmt.Sprintf("%.0f %%", p)
	}
}

// joules writes energy as a person would say it, in three digits.
func joules(j float64) string {
	switch {
	case j >= 360e3:
		return digits(j/3.6e6) + " kWh"
	case j >= 1000:
		return digits(j/1000) + " kJ"
	case j >= 0.01:
		return digits(j) + " J"
	}
	return digits(j*1000) + " mJ"
}

// digits writes v with three of them, or all that stand before the point.
func digits(v float64) string {
	decimals := 0
	if v > 0 && v < 100 {
		decimals = min(2-int(math.Floor(math.Log10(v))), 6)
	}
	s := fmt.Sprintf("%.*f", decimals, v)
	if decimals > 0 {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}
