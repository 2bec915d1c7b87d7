package progress

import (
	"fmt"
	"strconv"
	"strings"
)

// Facts are what is known of a run when its loss goes wrong; empty is unknown.
type Facts struct {
	// DType is the type of the training: bfloat16, float16, float32 or a short name
	// of those.
	DType string
	// Method is full, lora or qlora.
	Method string
	// LearningRate is the peak one, as written; Packing is "true" or "false".
	LearningRate, Packing string
}

// The kinds of finding.
const (
	LossNotFinite = "loss-not-finite"
	LossZero      = "loss-zero"
	GradNotFinite = "grad-norm-not-finite"
)

// Finding is what Divergence saw.
type Finding struct {
	// Diverged is set for a divergence; otherwise it is a note.
	Diverged bool
	// Kind is LossNotFinite, LossZero or GradNotFinite.
	Kind string
	// N is the step of the first of the losses that led here.
	N int64
	// Why is one sentence.
	Why string
	// Causes are the three to check, in the runbook's order: the first that explains
	// it is the one. Empty for a note.
	Causes []string
}

// Divergence watches the logged losses of one attempt. Its zero value knows no facts.
type Divergence struct {
	// Facts are what the causes are held against; they may be set at any time.
	Facts Facts

	some     bool // a loss was logged
	lastN    int64
	lastLoss float64 // the last finite loss that is not 0, 0 for none
	nonzero  bool

	nan, zero, grad streak
}

// streak counts logged steps in a row.
type streak struct {
	n    int
	from int64
	told bool
}

func (s *streak) see(bad bool, n int64) {
	if !bad {
		s.n = 0
		return
	}
	if s.n == 0 {
		s.from = n
	}
	s.n++
}

// Feed takes a step. It is true once for each kind of finding: a loss that is NaN or
// infinite, or exactly 0, on three logged steps in a row is a divergence, a gradient
// norm that is not finite beside a finite loss a note. A single bad step is none: the
// loss scaling of float16 skips those.
func (d *Divergence) Feed(s Step) (Finding, bool) {
	if s.Eval || !s.Loss.OK && !s.NonFinite {
		return Finding{}, false
	}
	if d.some && s.LossN == d.lastN {
		return Finding{}, false // the same step drawn again
	}
	d.some, d.lastN = true, s.LossN
	t, err := loadTable()
	if err != nil || t.Divergence.Logged < 1 {
		return Finding{}, false
	}
	v := &t.Divergence
	zero := s.Loss.OK && s.Loss.V == 0
	if s.Loss.OK && !zero {
		d.lastLoss, d.nonzero = s.Loss.V, true
	}
	// Zeros behind a very small loss are that loss, rounded by who printed it.
	memorised := d.nonzero && d.lastLoss < v.Memorised && d.lastLoss > -v.Memorised
	d.nan.see(s.NonFinite, s.LossN)
	d.zero.see(zero && !s.ZeroOK && !memorised, s.LossN)
	d.grad.see(s.GradNonFinite && !s.NonFinite, s.LossN)
	switch {
	case d.nan.due(v.Logged):
		return d.found(v, LossNotFinite, &d.nan, "the loss is NaN or infinite"), true
	case d.zero.due(v.Logged):
		return d.found(v, LossZero, &d.zero, "the loss is exactly 0"), true
	case d.grad.due(v.Logged):
		return Finding{
			Kind: GradNotFinite, N: d.grad.from,
			Why: fmt.Sprintf("the gradient norm has been NaN or infinite on %d logged steps in a row since step %d, beside a finite loss", d.grad.n, d.grad.from),
		}, true
	}
	return Finding{}, false
}

// due is true once, when the streak is long enough.
func (s *streak) due(logged int) bool {
	if s.told || s.n < logged {
		return false
	}
	s.told = true
	return true
}

func (d *Divergence) found(v *divergence, kind string, s *streak, what string) Finding {
	f := Finding{
		Diverged: true, Kind: kind, N: s.from,
		Why: fmt.Sprintf("%s on %d logged steps in a row since step %d", what, s.n, s.from),
	}
	for i, c := range v.Causes {
		f.Causes = append(f.Causes, fmt.Sprintf("%d. %s%s", i+1, c.Text, d.says(v, c.ID)))
	}
	return f
}

// says adds what this run's own settings say of a cause.
func (d *Divergence) says(v *divergence, id string) string {
	f := &d.Facts
	switch id {
	case "dtype":
		switch dtype := strings.TrimPrefix(strings.ToLower(f.DType), "torch."); dtype {
		case "float16", "fp16", "half", "16", "16-mixed", "16-true", "fp16-mixed", "fp16-true":
			return " (this run trains in " + f.DType + ": look here first)"
		case "bfloat16", "bf16", "bf16-mixed", "bf16-true", "float32", "fp32", "float", "32", "32-true":
			return " (this run trains in " + f.DType + ": not this)"
		}
	case "learning-rate":
		lr, err := strconv.ParseFloat(f.LearningRate, 64)
		high, known := v.HighLR[f.Method]
		switch {
		case err != nil || !known:
		case lr >= high:
			return fmt.Sprintf(" (this run: %s for %s, which is high)", f.LearningRate, f.Method)
		default:
			return fmt.Sprintf(" (this run: %s for %s)", f.LearningRate, f.Method)
		}
	case "packing":
		switch strings.ToLower(f.Packing) {
		case "true":
			return " (this run packs)"
		case "false":
			return " (this run does not pack: look at the labels)"
		}
	}
	return ""
}
