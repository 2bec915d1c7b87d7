package throttle

import (
	"slices"
	"time"

	"sparkrun/internal/sample"
)

const (
	// paceKept is how many undisturbed steps the baseline is the median of.
	paceKept = 101
	// paceSteps is how many steps an episode needs before they say something.
	paceSteps = 3
	// paceOutlier: a step this many times slower than the baseline is an
	// evaluation, a checkpoint or a pause, not a slow step. Throttled and wedged
	// machines have been seen 2.5 to 5 times slower.
	paceOutlier = 10
)

// pace is this attempt's own step time.
type pace struct {
	step   sample.Num
	stepAt time.Time
	// last is what the latest reading finished: no steps where it showed none.
	last finished

	kept    []float64 // ring of the latest undisturbed step times
	at      int
	median  sample.Num
	changed bool
	// settled is the step time of the attempt's settled baseline, which is better
	// than the median of the latest steps; slow says that the steps now are slower
	// than it, and teach nothing.
	settled sample.Num
	slow    bool
}

// finished are steps that came to their end: how many, and the seconds of one.
type finished struct{ n, stepS float64 }

// next tells whether a reading shows a step that the last one did not: how many
// steps it is further, and how long one of them took, in seconds.
func (p *pace) next(r reading) (n, stepS float64, ok bool) {
	p.last = finished{}
	if !r.step.OK {
		return 0, 0, false
	}
	was, at := p.step, p.stepAt
	if !was.OK || was.V != r.step.V {
		p.step, p.stepAt = r.step, r.t
	}
	// A smaller number is a resume from a checkpoint: nothing was finished.
	if !r.stepS.OK || r.stepS.V <= 0 || was.OK && r.step.V <= was.V {
		return 0, 0, false
	}
	n = 1
	// Several steps at once are believed only if there was time for them: a
	// resume also jumps ahead.
	if further := r.step.V - was.V; was.OK && further*r.stepS.V <= 2*r.t.Sub(at).Seconds() {
		n = max(n, further)
	}
	p.last = finished{n, r.stepS.V}
	return n, r.stepS.V, true
}

// learn adds an undisturbed step.
func (p *pace) learn(stepS float64) {
	if p.slow {
		return
	}
	if len(p.kept) < paceKept {
		p.kept = append(p.kept, stepS)
	} else {
		p.kept[p.at] = stepS
		p.at = (p.at + 1) % paceKept
	}
	p.changed = true
}

// baseline returns the step time of this attempt, unknown before there were
// enough steps.
func (p *pace) baseline(cfg Config) sample.Num {
	if p.settled.OK {
		return p.settled
	}
	if p.changed && len(p.kept) >= int(cfg.Pace.Steps) {
		p.median = sample.Known(median(p.kept))
		p.changed = false
	}
	return p.median
}

func outlier(stepS float64, base sample.Num) bool {
	return base.OK && stepS > paceOutlier*base.V
}

// median returns the middle one of values, which are left as they are; zero
// without any.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// spread returns how far values scatter around mid, as a standard deviation: by
// their median distance, and by how far the highest tenth lies above where that is
// more. The middle alone does not show lengths that come in stretches.
func spread(values []float64, mid float64) float64 {
	far := make([]float64, len(values))
	for i, v := range values {
		far[i] = max(v-mid, mid-v)
	}
	sorted := slices.Sorted(slices.Values(values))
	high := 0.0
	if n := len(sorted); n > 0 {
		high = sorted[n-1-n/10] - mid
	}
	return max(1.4826*median(far), high/1.28)
}
