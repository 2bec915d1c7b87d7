package oom

import (
	"math"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
)

// phase says what the job was doing when h was printed, or at the end where h is nil:
// from the frames of its traceback, else from what was printed before it, else from
// the steps and from what the guard knew.
func (t *Table) phase(ev *Evidence, h *Hit) Phase {
	o := &ev.Output
	if h != nil && h.Phase != "" {
		step := max(ev.LastStep, o.LastAdvance.Step)
		// The optimizer makes its state in the first step; later a death there is
		// one of training.
		if h.Phase == PhaseOptimizer && step > 2 {
			return PhaseTrain
		}
		if h.generic && t.linePhase(o, h) == PhaseEval {
			return PhaseEval
		}
		return h.Phase
	}
	if p := t.linePhase(o, h); p != "" {
		return p
	}
	switch {
	case ev.StepsDone, ev.LastStep > 0, o.Advances > 0, ev.GuardPhase == "run":
		return PhaseTrain
	case ev.GuardPhase == "load":
		return PhaseLoad
	}
	return PhaseUnknown
}

// linePhase is what the newest line before h tells, back to the last advance; empty if
// none does. The advance's own line counts: a profile may take the bar of an evaluation
// for one.
func (t *Table) linePhase(o *Output, h *Hit) Phase {
	end := o.Lines + 1
	if h != nil {
		end = h.Line
	} else if n := len(o.Tail); n > 0 {
		end = o.Tail[n-1].N + 1
	}
	for i := len(o.Tail) - 1; i >= 0; i-- {
		l := &o.Tail[i]
		if l.N >= end {
			continue
		}
		if end-l.N > 400 {
			break
		}
		text, _ := t.unprefix(printable(l.Text))
		for _, p := range t.PhaseLines {
			if p.Re.MatchString(text) {
				return p.Phase
			}
		}
		if o.Advances > 0 && l.N <= o.LastAdvance.N {
			break
		}
	}
	return ""
}

// messageSizes reads the numbers of the deciding line, and of the few lines below
// that belong to it.
func (t *Table) messageSizes(into map[string]int64, ev *Evidence, h *Hit) {
	o := &ev.Output
	ours := func(pid int) bool { return mine(ev, pid) }
	t.sizes(into, h.Text, ours)
	tensorSize(into, h.Text)
	// Where the message itself has no numbers, the allocator's warning above it may.
	if into["requested"] == 0 {
		defer func() {
			for i := len(o.Hits) - 1; i >= 0 && into["requested"] == 0; i-- {
				if w := &o.Hits[i]; w.seq < h.seq && w.Stream == h.Stream && !past(o, w) {
					t.sizes(into, w.Text, ours)
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
			t.sizes(into, text, ours)
		}
	}
}

var tensorShape = lazyre.New(`with shape\[([\d,]+)\] and type (\w+)`)

// tensorSize computes what TensorFlow asked for: it names the shape and the type.
func tensorSize(into map[string]int64, text string) {
	m := tensorShape.FindStringSubmatch(text)
	if m == nil || into["requested"] != 0 {
		return
	}
	n, ok := map[string]int64{
		"float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "float64": 8,
		"int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "complex64": 8,
	}[m[2]]
	if !ok {
		return
	}
	for _, d := range strings.Split(m[1], ",") {
		v, err := strconv.ParseInt(d, 10, 62)
		if err != nil || v < 0 || (v > 0 && n > math.MaxInt64/v) {
			return
		}
		n *= v
	}
	into["requested"] = n
}
