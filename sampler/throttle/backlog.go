package throttle

import (
	"time"

	"sparkrun/internal/sample"
)

// A wedge is told a minute or ten after it began, a low cap later than that. What the
// steps took longer in that time has been lost to it as well, so finished steps are
// remembered for as long as an episode can begin before it is told.

// backlogFor is for how long steps are remembered, backlogPart how many seconds of them
// are kept as one.
const (
	backlogFor  = time.Hour
	backlogPart = 5 * time.Second
)

// someSteps are steps that were finished within a few seconds of from.
type someSteps struct {
	from            time.Time
	n, stepS, worst float64
	free, freeS     float64    // those of them that no episode has counted as lost
	base            sample.Num // the attempt's pace then
}

// backlog are the attempt's latest steps, the earliest first.
type backlog []someSteps

// take adds n steps finished at t; base is the attempt's pace then, and free says that
// nothing that holds the GPU back was open.
func (b *backlog) take(t time.Time, n, stepS float64, base sample.Num, free bool) {
	if outlier(stepS, base) {
		return
	}
	if k := len(*b); k == 0 || t.Sub((*b)[k-1].from) >= backlogPart {
		*b = append(*b, someSteps{from: t, base: base})
	}
	p := &(*b)[len(*b)-1]
	p.n += n
	p.stepS += n * stepS
	p.worst = max(p.worst, stepS)
	if free {
		p.free += n
		p.freeS += n * stepS
	}
	for t.Sub((*b)[0].from) > backlogFor {
		*b = (*b)[1:]
	}
}

// owe gives an episode that began before it is told the steps since then, and the pace
// from before it: what was learned since is of the slow steps.
func (d *Detector) owe(e *episode) {
	for _, p := range d.backlog {
		if p.from.After(e.since) {
			break
		}
		if p.base.OK && !d.pace.settled.OK {
			e.base = p.base
		}
	}
	for _, p := range d.backlog {
		if !p.from.After(e.since) {
			continue
		}
		e.steps += p.n
		e.stepS += p.stepS
		e.worstStep = max(e.worstStep, p.worst)
		if p.free > 0 {
			d.cost.add(p.free, p.freeS/p.free, e.base)
		}
	}
}
