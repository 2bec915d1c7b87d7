package preflight

import (
	"fmt"

	"sparkrun/internal/sample"
)

// judgeThermal is G4: temperature and power at this instant, in the columns and
// units nvidia-smi prints. One reading decides nothing: whether the machine
// throttles shows only after ten minutes under load.
func judgeThermal(f facts) Finding {
	const absent = "G4 SKIP: nvidia-smi not available"
	if !f.gpuHere() {
		found := byDesign("no NVIDIA GPU on this machine")
		found.Line = absent
		return found
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
	return Finding{
		Status: Info,
		Detail: fmt.Sprintf("GPU temperature and power: %s, %s", reading(temp, "%.0f C"), reading(power, "%.1f W")),
		Line:   fmt.Sprintf("G4 INFO: %s, %s", reading(temp, "%.0f"), reading(power, "%.2f W")),
	}
}

// reading writes a number, or what nvidia-smi writes for one it does not have.
func reading(n sample.Num, format string) string {
	if !n.OK {
		return "[N/A]"
	}
	return fmt.Sprintf(format, n.V)
}
