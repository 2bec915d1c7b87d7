package headroom

import (
	"fmt"
	"math"

	"sparkrun/internal/sample"
)

// Verdict says whether an estimate fits a budget.
type Verdict string

// The verdicts.
const (
	Fits  Verdict = "fits"
	Tight Verdict = "tight" // within the margin, or within the range of the estimate
	Over  Verdict = "over"
)

// Outcome is an estimate held against a budget.
type Outcome struct {
	Verdict Verdict `json:"verdict"`
	// Blocks says that it cannot be: the weights alone, counted and in the form they will
	// have, are larger than the budget. No estimate blocks.
	Blocks bool `json:"blocks"`
	// Left is the budget less the peak in bytes, below 0 where it is over.
	Left int64 `json:"left_bytes"`
	// Why is one line with the figures.
	Why string `json:"why"`
}

// Reserve is what stays with the operating system and the driver of so much memory, in
// bytes: the runbook's "a few GB", less on small machines.
func Reserve(totalBytes int64) int64 {
	t, err := loadTable()
	if err != nil || totalBytes <= 0 {
		return 0
	}
	return min(bytesOf(t.Reserve.GiB*(1<<30)), bytesOf(float64(totalBytes)*t.Reserve.Share))
}

// Budget is what a training may take: MemAvailable less the reserve; never below 0. All in
// bytes. MemAvailable already counts the page cache that can be reclaimed; swap never
// counts.
func Budget(availableBytes, totalBytes int64) int64 {
	return max(0, availableBytes-Reserve(totalBytes))
}

// Margin is the thin margin of a budget in bytes: what is nearer than that is tight.
func Margin(budget int64) int64 {
	t, err := loadTable()
	if err != nil || budget <= 0 {
		return 0
	}
	return max(bytesOf(t.Margin.GB*gigabyte), bytesOf(float64(budget)*t.Margin.Share))
}

// Judge holds an estimate against a budget in bytes.
func Judge(e Estimate, budget int64) Outcome {
	budget = max(0, budget)
	o := Outcome{Left: budget - e.Peak}
	margin := Margin(budget)
	peak := fmt.Sprintf("about %s (%s to %s)", GB(e.Peak), GB(e.Low), GB(e.High))
	least := e.WeightsLeast
	if least == 0 {
		least = e.Weights
	}
	switch {
	case e.Impossible != "":
		o.Verdict = Over
		o.Why = "cannot be done as asked: " + e.Impossible
	case e.WeightsExact && least > budget:
		o.Verdict, o.Blocks = Over, true
		o.Why = fmt.Sprintf("the weights alone take %s, counted in their files, and %s may be used", GB(least), GB(budget))
	case e.Peak > budget:
		o.Verdict = Over
		o.Why = fmt.Sprintf("%s, %s more than the %s that may be used", peak, GB(e.Peak-budget), GB(budget))
	case o.Left < margin:
		o.Verdict = Tight
		o.Why = fmt.Sprintf("%s of %s: within the margin of %s", peak, GB(budget), GB(margin))
	case e.loadsTight(budget):
		// Where 72B and 8x7B ran out of memory, all weights in 16 bit and the packed ones
		// would not have fitted side by side.
		o.Verdict = Tight
		o.Why = fmt.Sprintf("%s of %s, but the 16-bit weights (%s) are quantised while they are loaded, which has run out of memory on this machine for want of room for both", peak, GB(budget), GB(e.wholeBytes))
	case e.MethodAssumed && e.High > budget:
		o.Verdict = Tight
		o.Why = fmt.Sprintf("%s of %s for an adapter; how it is trained is not told, and all weights would take about %s", peak, GB(budget), GB(e.AllWeights))
	case e.High > budget:
		o.Verdict = Tight
		o.Why = fmt.Sprintf("%s of %s: the upper end of the range does not fit", peak, GB(budget))
	default:
		o.Verdict = Fits
		o.Why = fmt.Sprintf("%s of %s", peak, GB(budget))
	}
	return o
}

// loadsTight says that weights are quantised while they are loaded, and that both forms of
// them would not fit side by side.
func (e Estimate) loadsTight(budget int64) bool {
	return e.quantisedWhileLoading && plus(e.wholeBytes, e.atLoad) > budget
}

// NeedsCaches says that an estimate fits the budget but not what is free (MemFree in
// bytes): the kernel must give back page cache for it. Unknown is no.
func NeedsCaches(e Estimate, budget int64, free sample.Num) bool {
	return free.OK && e.Peak <= budget && float64(e.Peak) > free.V
}

// Anchor is a training that somebody has observed on this machine. It guarantees nothing.
type Anchor struct {
	// Class is the class of models: "70B", "27B"; Method how it was trained.
	Class  string `json:"class"`
	Method Method `json:"method"`
	// Objective is dpo or grpo; "" is plain fine-tuning.
	Objective string `json:"objective,omitempty"`
	// GB is the memory observed, in decimal gigabytes; often nobody has told it.
	GB sample.Num `json:"gb"`
	// Fits says in words what was observed.
	Fits   string `json:"fits"`
	Date   string `json:"date"`
	Note   string `json:"note"`
	Source string `json:"source"`
}

// String is the anchor in one line.
func (a Anchor) String() string {
	s := fmt.Sprintf("%s %s", a.Class, a.Method)
	if a.Objective != "" {
		s += " " + a.Objective
	}
	if a.GB.OK {
		s += fmt.Sprintf(" %g GB", a.GB.V)
	}
	return fmt.Sprintf("%s, %s (%s, %s): %s", s, a.Fits, a.Source, a.Date, a.Note)
}

// Closest returns the anchor nearest to a training: the same method and kind of model,
// near in size; false where none is near.
func Closest(s Spec) (Anchor, bool) {
	t, err := loadTable()
	if err != nil || s.Model.Params <= 0 {
		return Anchor{}, false
	}
	method := methodOf(string(s.Method))
	if method == "" {
		method = Method(t.Assume.Method)
	}
	best, found := Anchor{}, false
	distance := math.Log(t.Near)
	for _, r := range t.Anchors {
		d := math.Abs(math.Log(float64(s.Model.Params) / r.Params))
		if Method(r.Method) != method || r.MoE != (s.Model.Experts > 1 || s.Model.ActiveParams > 0) || r.Objective != objectiveOf(s.Objective) ||
			r.Quantised && s.Model.Quantised == "" {
			continue
		}
		if d < distance || !found && d == distance {
			best, found, distance = r.anchor(), true, d
		}
	}
	return best, found
}

// FarAbove says that an estimate is far above its anchor, so that dtype and method should
// be looked at again, in one sentence; "" where it is not.
func FarAbove(e Estimate, a Anchor) string {
	t, err := loadTable()
	if err != nil || !a.GB.OK || float64(e.Peak) <= a.GB.V*gigabyte*t.FarAbove {
		return ""
	}
	return fmt.Sprintf("%s is far above the %g GB that were observed of %s %s: check the type of the weights, the method, and the length of the rows", GB(e.Peak), a.GB.V, a.Class, a.Method)
}
