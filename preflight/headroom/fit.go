package headroom

import (
	"errors"
	"fmt"
)

// Sized is the largest that fits of one method.
type Sized struct {
	Method Method `json:"method"`
	// SeqLen is the longest row at the given batch, Batch the largest at the given length;
	// 0: not even the smallest fits.
	SeqLen int64 `json:"seq_len"`
	Batch  int64 `json:"batch"`
	// AtBatch and AtSeqLen are the batch and the length that were held.
	AtBatch  int64 `json:"at_batch"`
	AtSeqLen int64 `json:"at_seq_len"`
	// PeakSeqLen and PeakBatch are the estimates there, in bytes.
	PeakSeqLen int64 `json:"peak_seq_len_bytes"`
	PeakBatch  int64 `json:"peak_batch_bytes"`
	// LimitSeqLen and LimitBatch say what ended the search: "the budget", "the model's
	// longest row".
	LimitSeqLen string `json:"limit_seq_len"`
	LimitBatch  string `json:"limit_batch"`
	// Why says why nothing fits.
	Why string `json:"why,omitempty"`
}

// Fit finds for each method the longest row (in steps of 256 tokens) and the largest
// micro-batch that Judge says of a budget in bytes to fit, so with the margin and the
// upper end; never above the model's longest row.
func Fit(s Spec, budget int64) ([]Sized, error) {
	t, err := loadTable()
	if err != nil {
		return nil, err
	}
	var all []Sized
	for _, m := range []Method{Full, LoRA, QLoRA} {
		one := s
		one.Method = m
		sized, err := t.fitOne(one, budget)
		if err != nil {
			return nil, err
		}
		all = append(all, sized)
	}
	return all, nil
}

func (t *table) fitOne(s Spec, budget int64) (Sized, error) {
	first, err := s.Estimate()
	if err != nil {
		return Sized{}, err
	}
	// What was assumed for the first estimate is held for the others.
	s.MicroBatch, s.SeqLen = first.Spec.MicroBatch, first.Spec.SeqLen
	out := Sized{Method: s.Method, AtBatch: s.MicroBatch, AtSeqLen: s.SeqLen, LimitSeqLen: "the budget", LimitBatch: "the budget"}
	longest, what := t.Assume.MaxPositions, "no model goes further"
	if m := s.Model.Arch.MaxPositions; m > 0 {
		longest, what = m, "the model's longest row"
	}
	try := func(batch, length int64) (Estimate, error) {
		one := s
		one.MicroBatch, one.SeqLen = batch, length
		return one.Estimate()
	}
	var failed error
	// largest finds the largest step of 0..most that fits; larger never takes less.
	largest := func(most int64, at func(int64) (Estimate, error)) (int64, int64) {
		fits := func(n int64) (int64, bool) {
			e, err := at(n)
			failed = errors.Join(failed, err)
			return e.Peak, err == nil && Judge(e, budget).Verdict == Fits
		}
		low, high := int64(0), most+1
		var there int64
		for high-low > 1 {
			mid := low + (high-low)/2
			if v, ok := fits(mid); ok {
				low, there = mid, v
			} else {
				high = mid
			}
		}
		return low, there
	}
	steps := max(1, longest/t.Fit.Tokens)
	n, v := largest(steps, func(n int64) (Estimate, error) { return try(s.MicroBatch, n*t.Fit.Tokens) })
	if out.SeqLen, out.PeakSeqLen = n*t.Fit.Tokens, v; n == steps {
		out.LimitSeqLen = what
	}
	rows := t.Assume.MaxBatch / t.Fit.Rows
	n, v = largest(rows, func(n int64) (Estimate, error) { return try(n*t.Fit.Rows, s.SeqLen) })
	if out.Batch, out.PeakBatch = n*t.Fit.Rows, v; n == rows {
		out.LimitBatch = "larger ones are not looked at"
	}
	if failed != nil {
		return Sized{}, failed
	}
	if out.SeqLen == 0 && out.Batch == 0 {
		least, err := try(1, t.Fit.Tokens)
		if err != nil {
			return Sized{}, err
		}
		still := first.Peak - first.rowBytes()
		switch {
		case least.Impossible != "":
			out.Why = least.Impossible
		case still > budget:
			out.Why = fmt.Sprintf("what does not depend on the rows takes %s", GB(still))
		case OnlyLoading(least, budget):
			out.Why = fmt.Sprintf("the 16-bit weights (%s) are quantised while they are loaded, and both forms of them do not fit", GB(least.wholeBytes))
			ready := s
			ready.Model.Quantised, ready.Model.Bytes, ready.Model.TensorBytes = "bnb-4bit", 0, 0
			if with, err := t.fitOne(ready, budget); err == nil && with.SeqLen > 0 && with.Batch > 0 {
				out.Why += fmt.Sprintf("; of a copy that is quantised already (-bnb-4bit), %d tokens at batch %d or %d rows of %d", with.SeqLen, with.AtBatch, with.Batch, with.AtSeqLen)
			}
		case least.Peak <= budget:
			out.Why = fmt.Sprintf("a row of %d tokens takes %s (%s to %s), which is tight", t.Fit.Tokens, GB(least.Peak), GB(least.Low), GB(least.High))
		default:
			out.Why = fmt.Sprintf("not even a row of %d tokens fits", t.Fit.Tokens)
		}
	}
	return out, nil
}

// rowBytes is what goes with the rows.
func (e Estimate) rowBytes() int64 {
	return e.Term(TermActivations) + e.Term(TermLogits) + e.Term(TermAllocator) + e.Term(TermGeneration)
}
