package oom

import "strings"

// phase says what the job was doing when h was printed: from the frames of its
// traceback, else from what was printed before it.
func (t *Table) phase(ev *Evidence, h *Hit) Phase {
	o := &ev.Output
	steps := ev.StepsDone || ev.LastStep > 0 || o.Advances > 0
	if h.Phase != "" {
		step := max(ev.LastStep, o.LastAdvance.Step)
		// The optimizer makes its state in the first step; later a death there is
		// one of training.
		if h.Phase == PhaseOptimizer && step > 2 {
			return PhaseTrain
		}
		return h.Phase
	}
	for i := len(o.Tail) - 1; i >= 0; i-- {
		l := &o.Tail[i]
		if l.N >= h.Line {
			continue
		}
		if l.N <= o.LastAdvance.N && o.Advances > 0 || h.Line-l.N > 400 {
			break
		}
		for _, p := range t.PhaseLines {
			if p.Re.MatchString(l.Text) {
				return p.Phase
			}
		}
	}
	if steps {
		return PhaseTrain
	}
	return PhaseUnknown
}

// messageSizes reads the numbers of the deciding line, and of the few lines below
// that belong to it.
func (t *Table) messageSizes(into map[string]int64, o *Output, h *Hit) {
	t.sizes(into, h.Text)
	// Where the message itself has no numbers, the allocator's warning above it may.
	if into["requested"] == 0 {
		defer func() {
			for i := len(o.Hits) - 1; i >= 0 && into["requested"] == 0; i-- {
				if w := &o.Hits[i]; w.Line < h.Line && w.Stream == h.Stream && !past(o, w) {
					t.sizes(into, w.Text)
				}
			}
		}()
	}
	const below = 12
	for i := range o.Tail {
		l := &o.Tail[i]
		if l.N <= h.Line || l.N > h.Line+below {
			continue
		}
		text, stream := t.Clean(l.Text)
		if strings.HasPrefix(strings.TrimSpace(text), "Traceback") {
			return
		}
		if stream == h.Stream {
			t.sizes(into, text)
		}
	}
}
