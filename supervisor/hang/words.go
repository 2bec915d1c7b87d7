package hang

import (
	"fmt"

	"sparkrun/internal/clock"
)

// Words say what has not moved and for how long, as part of a sentence.
func (v Verdict) Words() string {
	gpu := "no GPU in the machine"
	if v.GPUPct.OK {
		gpu = fmt.Sprintf("GPU at %.0f %%", v.GPUPct.V)
	}
	return fmt.Sprintf("for %s neither a step nor any output, %s, %.1f %% of one core used, no byte read, written or carried by its connections (the limit is %s)",
		clock.Span(v.Still), gpu, 100*v.CPUShare, clock.Span(v.Limit))
}
