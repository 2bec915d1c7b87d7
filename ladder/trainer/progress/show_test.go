package progress

import (
	"fmt"
	"strings"

	"sparkrun/internal/sample"
)

// show writes a step as the goldens have it.
func show(s Step) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d", s.N, s.Total)
	for _, f := range []struct {
		on   bool
		word string
	}{{s.Advance, "+"}, {s.Bar, " bar"}, {s.Eval, " eval"}, {s.NonFinite, " nonfinite"}, {s.GradNonFinite, " gradnonfinite"}, {s.Finished, " finished"}, {s.ZeroOK, " zero-ok"}} {
		if f.on {
			b.WriteString(f.word)
		}
	}
	for _, f := range []struct {
		name string
		n    sample.Num
	}{{"loss", s.Loss}, {"lr", s.LR}, {"grad", s.GradNorm}, {"t", s.StepTimeS}, {"tok", s.Tokens}, {"tok/s", s.TokensPerS}} {
		if f.n.OK {
			fmt.Fprintf(&b, " %s=%.6g", f.name, f.n.V)
		}
	}
	if (s.Loss.OK || s.NonFinite) && s.LossN != s.N {
		fmt.Fprintf(&b, " of=%d", s.LossN)
	}
	if s.Checkpoint != "" {
		b.WriteString(" saving " + s.Checkpoint)
	}
	return b.String()
}
