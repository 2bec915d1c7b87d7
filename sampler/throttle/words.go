package throttle

import (
	"fmt"
	"strings"
	"time"

	"sparkrun/internal/sample"
)

var bitWords = []struct {
	bit  sample.Reasons
	word string
}{
	{sample.ReasonHWSlowdown, "hardware slowdown"},
	{sample.ReasonSWThermal, "software thermal slowdown"},
	{sample.ReasonHWThermal, "hardware thermal slowdown"},
	{sample.ReasonHWPowerBrake, "hardware power brake"},
}

// bitNames says in words what a mask of reasons means.
func bitNames(bits sample.Reasons) string {
	var out []string
	for _, b := range bitWords {
		if bits&b.bit != 0 {
			out = append(out, b.word)
		}
	}
	return strings.Join(out, ", ")
}

// state is the reading in a few words, as far as it is known.
func state(r reading) string {
	var out []string
	for _, v := range []struct {
		n    sample.Num
		form string
	}{{r.temp, "%.0f C"}, {r.power, "%.1f W"}, {r.clock, "%.0f MHz"}} {
		if v.n.OK {
			out = append(out, fmt.Sprintf(v.form, v.n.V))
		}
	}
	if len(out) == 0 {
		return "no other reading"
	}
	return strings.Join(out, ", ")
}

func (e *episode) startWords(r reading) string {
	switch {
	case e.typ == PowerCap:
		return fmt.Sprintf("the GPU holds %.0f W at normal clocks (%s): the platform's own power cap, not a bug and no fault; nothing to change", e.plateauW, state(r))
	case e.typ == PowerWedge:
		return fmt.Sprintf("the GPU is busy (%.0f %%) but slow and cool without a reason (%s): the low-power wedge, unless you locked the clocks yourself; shut down, unplug from the wall and from the unit for a minute, a reboot does not help", r.util.V, state(r))
	case e.bits != 0:
		return fmt.Sprintf("the GPU slows itself: %s (%s)", bitNames(e.bits), state(r))
	case e.byPulse:
		return fmt.Sprintf("the GPU slowed itself for %s since the last reading, by its counters; no reason bit is set now (%s)", short(e.heldS), state(r))
	}
	pace := ""
	if e.base.OK && e.steps >= paceSteps {
		pace = fmt.Sprintf(", steps %.0f %% slower", 100*(e.stepS/e.steps/e.base.V-1))
	}
	return fmt.Sprintf("power is %.0f %% below this attempt's plateau of %.0f W for %s while hot (%s)%s: treat as thermal throttling (G4), improve cooling or shorten the run",
		e.dropPct, e.plateauW, short(r.t.Sub(e.since).Seconds()), state(r), pace)
}

func (e *episode) endWords(how string) string {
	length := short(e.until.Sub(e.since).Seconds())
	var out string
	switch e.typ {
	case PowerCap:
		out = fmt.Sprintf("at the platform's power cap for %s", length)
	case PowerWedge:
		out = fmt.Sprintf("in the low-power wedge for %s", length)
	default:
		out = fmt.Sprintf("throttled for %s", short(e.heldS))
		switch {
		case e.pulses > 1:
			out += fmt.Sprintf(" in %d pulses within %s", e.pulses, length)
		case e.pulses == 1 && !e.bySign:
			out += " in one pulse"
		}
		if e.maxTemp.OK {
			out += fmt.Sprintf(", at most %.0f C", e.maxTemp.V)
		}
	}
	if lost := e.lostS(); lost.OK {
		out += fmt.Sprintf(", about %s of training lost", short(lost.V))
	}
	switch how {
	case EndedRecovered:
		out += "; the GPU works normally again"
	case EndedUnknown:
		out += "; what came after is unknown, the readings stopped"
	case EndedAttempt:
		out += "; it lasted to the end of the attempt"
	case EndedRun:
		out += "; it lasted to the end of the run"
	}
	return out
}

// short writes seconds as a person would.
func short(s float64) string {
	switch {
	case s < 10:
		return fmt.Sprintf("%.1f s", s)
	case s < 600:
		return fmt.Sprintf("%.0f s", s)
	}
	d := time.Duration(s * float64(time.Second)).Round(time.Minute)
	if d < time.Hour {
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}
