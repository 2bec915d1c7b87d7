package throttle

import (
	"fmt"
	"strings"
	"time"

	"sparkrun/internal/clock"
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
	case e.typ == PowerWedge && e.meanUtil.OK:
		return fmt.Sprintf("for %s the GPU was busy (%.0f %% on average) but slow and cool without a reason that would explain it (%s%s): the low-power wedge, unless you locked the clocks yourself; shut down, unplug from the wall and from the unit for a minute, a reboot does not help", short(r.t.Sub(e.since).Seconds()), e.meanUtil.V, state(r), e.capWords())
	case e.typ == PowerWedge:
		return fmt.Sprintf("the GPU is busy (%.0f %%) but slow and cool without a reason (%s%s): the low-power wedge, unless you locked the clocks yourself; shut down, unplug from the wall and from the unit for a minute, a reboot does not help", r.util.V, state(r), e.capWords())
	case e.typ == LowCap && e.bySys:
		return fmt.Sprintf("the power firmware allows the whole machine only %.0f W, where 231 W are normal (%s): a fault of the adapter or its negotiation; use the machine's own 240 W adapter, shut down and unplug it from the wall and from the unit for a minute", e.sysW.V, state(r))
	case e.typ == LowCap && e.certain:
		return fmt.Sprintf("the power firmware allows the chip only %.0f W, where 140 W are normal (%s): a fault of the adapter or its negotiation; use the machine's own 240 W adapter, shut down and unplug it from the wall and from the unit for a minute", e.capW.V, state(r))
	case e.typ == LowCap:
		return fmt.Sprintf("the GPU is busy (%.0f %%) but for %s below its usual power and clocks without a reason (%s%s): a clock lock (nvidia-smi -rgc lifts it), or an adapter that gives too little", r.util.V, short(r.t.Sub(e.since).Seconds()), state(r), e.capWords())
	case e.typ == Hot && e.sources == hotAlone:
		return fmt.Sprintf("the GPU's die is at %.0f C and no zone speaks against it (%s): machines have turned themselves off at less without a word; improve cooling or lower the load", r.temp.V, state(r))
	case e.typ == Hot:
		second := "another zone agrees"
		switch e.sources {
		case hotDie:
			second = "the GPU's die agrees"
		case hotThree:
			second = "two other zones agree"
		}
		return fmt.Sprintf("the hottest zone is at %.0f C and %s (%s): machines have turned themselves off from here on without a word; improve cooling or lower the load", r.zone.V, second, state(r))
	case e.typ == HWBrake && e.bits != 0:
		return fmt.Sprintf("the hardware slows the GPU, not for heat: %s (%s); look at the power adapter and its cable", bitNames(e.bits), state(r))
	case e.typ == HWBrake:
		return fmt.Sprintf("the hardware braked the GPU for %s since the last reading, by its power brake counter; no reason bit is set now (%s); look at the power adapter and its cable", short(e.heldS), state(r))
	case e.bits != 0:
		return fmt.Sprintf("the GPU slows itself: %s (%s)", bitNames(e.bits), state(r))
	case e.byPulse:
		return fmt.Sprintf("the GPU slowed itself for %s since the last reading, by its counters; no reason bit is set now (%s)", short(e.heldS), state(r))
	}
	pace := ""
	if e.base.OK && e.steps > 0 {
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
		out = fmt.Sprintf("at the platform's power cap for %s", short(max(0, e.until.Sub(e.since).Seconds()-e.backS)))
		if e.backS >= 1 {
			out += fmt.Sprintf(", and held back for %s within that time (%s in all)", short(e.backS), length)
		}
	case PowerWedge:
		out = fmt.Sprintf("in the low-power wedge for %s", length)
	case LowCap:
		out = fmt.Sprintf("below the platform's power for %s", length)
	case Hot:
		var most []string
		if e.maxZone.OK {
			most = append(most, fmt.Sprintf("%.0f C in a zone", e.maxZone.V))
		}
		if e.maxTemp.OK {
			most = append(most, fmt.Sprintf("%.0f C of the die", e.maxTemp.V))
		}
		out = fmt.Sprintf("hot for %s, at most %s", length, strings.Join(most, " and "))
	default:
		word := "throttled"
		if e.typ == HWBrake {
			word = "braked"
		}
		out = fmt.Sprintf("%s for %s", word, short(e.heldS))
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
	out += lostWords(e.lostS())
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

// capWords tell the firmware's cap of the SoC where it is known.
func (e *episode) capWords() string {
	if !e.capW.OK {
		return ""
	}
	return fmt.Sprintf(", the firmware's cap is %.0f W", e.capW.V)
}

// words is the line that sums up what went on since the start of the first episode.
func (l telling) words(t time.Time, share float64) string {
	length := short(t.Sub(l.since).Seconds())
	out := fmt.Sprintf("%d pulses in %s, %s in all", l.pulses, length, short(l.heldS))
	if l.pulses < 2 {
		out = fmt.Sprintf("it goes on for %s now, held back for %s of it", length, short(l.heldS))
	}
	out += fmt.Sprintf(" (%.1f %% of the time observed)", 100*share)
	if l.maxTemp.OK {
		out += fmt.Sprintf(", at most %.0f C", l.maxTemp.V)
	}
	return out + lostWords(l.lost)
}

// lostWords say what it cost, where it cost anything.
func lostWords(lost sample.Num) string {
	if lost.V < 0.5 {
		return ""
	}
	return fmt.Sprintf(", about %s of training lost", short(lost.V))
}

// short writes seconds as a person would.
func short(s float64) string { return clock.Span(time.Duration(s * float64(time.Second))) }
