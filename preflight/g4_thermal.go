package preflight

import (
	"fmt"
	"slices"
	"strings"

	"sparkrun/internal/sample"
)

// judgeThermal is G4: temperature and power, at this instant in the columns and units
// nvidia-smi prints, or over the time of `--watch`. One reading decides nothing: whether
// the machine throttles shows only after ten minutes under load. Two things show at once:
// caps of the power firmware that no healthy machine has, and the look of the low-power
// wedge, which an observation of a minute then decides.
func judgeThermal(f facts) Finding {
	const absent = "G4 SKIP: nvidia-smi not available"
	if !f.gpuHere() {
		found := f.noGPU()
		found.Line = absent
		return found
	}
	if found, low := lowCaps(f); low {
		return found
	}
	if f.in.Observed != nil {
		return judgeObserved(f.in.Observed, f)
	}
	a := f.gpu
	switch {
	case a.late:
		return Finding{Status: Skip, Detail: fmt.Sprintf("no answer within %g s", f.limit.Seconds()), Fix: "nvidia-smi, to see whether the driver answers at all"}
	case !a.ok():
		return Finding{Status: Skip, Detail: "temperature and power not readable: " + a.why(), Line: absent}
	case !a.gpu.TempC.OK && !a.gpu.PowerW.OK:
		return Finding{Status: Skip, Detail: "the driver gives neither temperature nor power"}
	}
	temp, power := a.gpu.TempC, a.gpu.PowerW
	found := Finding{
		Status: Info,
		Detail: fmt.Sprintf("GPU temperature and power: %s, %s", reading(temp, "%.0f C"), reading(power, "%.1f W")),
		Line:   fmt.Sprintf("G4 INFO: %s, %s", reading(temp, "%.0f"), reading(power, "%.2f W")),
	}
	found.Evidence = snapshotEvidence(a.gpu)
	if bits := slowBits(a.gpu); bits != 0 {
		found.Detail += "; the GPU slows itself at this instant (" + strings.Join(SlowReasons(bits), ", ") + "): preflight --watch 15m tells whether that matters"
	}
	if heat := aboutHeat(); describes(heat, a.dev) && wedged(a.gpu, heat) == isSo {
		found.Detail += fmt.Sprintf("; that looks like the low-power wedge (%.0f %% busy at %.0f MHz, cool, no reason given): preflight --watch 1m under the same load decides", a.gpu.UtilPct.V, a.gpu.ClockSMMHz.V)
	}
	return found
}

// snapshotEvidence are the readings that temperature and power are to be seen beside.
func snapshotEvidence(g sample.GPU) []string {
	var out []string
	for _, v := range []struct {
		n    sample.Num
		form string
	}{{g.ClockSMMHz, "SM clock %.0f MHz"}, {g.UtilPct, "utilisation %.0f %%"}} {
		if v.n.OK {
			out = append(out, fmt.Sprintf(v.form, v.n.V))
		}
	}
	if g.ReasonBits.OK {
		out = append(out, fmt.Sprintf("clocks event reasons 0x%x", uint64(g.ReasonBits.V)))
	}
	return out
}

// unplug is the only cure of a failed power negotiation.
const unplug = "sudo shutdown -h now\nthen unplug the power supply from the wall and from the unit for a minute, also other USB-C devices; a reboot does not help\nif it comes back every time: the power supply, else the unit (NVIDIA support)"

// lowCaps: the power firmware holds the machine far below its rating. That shows in its
// caps also when nothing runs.
func lowCaps(f facts) (Finding, bool) {
	caps := f.hardware.capsW
	if !f.spark() || len(caps) == 0 {
		return Finding{}, false
	}
	var low []string
	for label, floor := range aboutHost().PowerCaps.FloorW {
		if w, ok := caps[label]; ok && w < floor {
			low = append(low, fmt.Sprintf("%s %.0f W", label, w))
		}
	}
	if len(low) == 0 {
		return Finding{}, false
	}
	slices.Sort(low)
	evidence := append([]string{"read from the spbm driver; healthy is pl1 140 W, syspl1 231 W"}, snapshotEvidence(f.gpu.gpu)...)
	if o := f.in.Observed; o != nil {
		evidence = append(evidence, "watched: "+judgeObserved(o, f).Detail)
	}
	return Finding{
		Status:   Warn,
		Detail:   "the power firmware caps the machine at " + strings.Join(low, ", ") + ": a failed USB-C power negotiation, many times slower than a healthy machine",
		Evidence: evidence,
		Fix:      unplug,
	}, true
}

// describes tells whether the rules about power are of this GPU.
func describes(t thermalTable, dev sample.Device) bool {
	return dev.Name == "" || slices.ContainsFunc(t.Platforms, func(word string) bool { return strings.Contains(dev.Name, word) })
}

// slowBits are the reasons that mean the GPU is held back by heat or by its hardware. The
// software power cap is not among them: it is the platform at its normal limit.
func slowBits(g sample.GPU) sample.Reasons {
	if !g.ReasonBits.OK || g.ReasonBits.V < 0 {
		return 0
	}
	return sample.Reasons(g.ReasonBits.V) & (sample.ReasonSWThermal | sample.ReasonAnyHardwareStop)
}

// SlowReasons names the bits by which a GPU says that heat or its hardware holds it back.
func SlowReasons(bits sample.Reasons) []string {
	var out []string
	for _, b := range []struct {
		bit  sample.Reasons
		word string
	}{
		{sample.ReasonHWSlowdown, "hardware slowdown"},
		{sample.ReasonSWThermal, "software thermal slowdown"},
		{sample.ReasonHWThermal, "hardware thermal slowdown"},
		{sample.ReasonHWPowerBrake, "hardware power brake"},
	} {
		if bits&b.bit != 0 {
			out = append(out, b.word)
		}
	}
	return out
}

// truth is of a condition that may be impossible to tell.
type truth int

const (
	notKnown truth = iota
	isNot
	isSo
)

// wedged tells whether one reading looks like the low-power wedge: busy, yet slow and cool
// without a reason. Each of the four can rule it out alone; all must be known to say yes.
func wedged(g sample.GPU, t thermalTable) truth {
	w := t.Wedge
	switch {
	case g.UtilPct.OK && g.UtilPct.V < w.UtilPct,
		g.ClockSMMHz.OK && g.ClockSMMHz.V >= w.ClockMHz,
		g.PowerW.OK && g.PowerW.V >= w.PowerW,
		slowBits(g) != 0:
		return isNot
	case g.UtilPct.OK && g.ClockSMMHz.OK && g.PowerW.OK && g.ReasonBits.OK:
		return isSo
	}
	return notKnown
}

// reading writes a number, or what nvidia-smi writes for one it does not have.
func reading(n sample.Num, format string) string {
	if !n.OK {
		return "[N/A]"
	}
	return fmt.Sprintf(format, n.V)
}
