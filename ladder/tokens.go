package ladder

import (
	"fmt"
	"math"
	"strconv"

	"sparkrun/internal/job"
)

// product multiplies whole numbers; false where one is not known or the result is too
// large to be one.
func product(factors ...int64) (int64, bool) {
	p := int64(1)
	for _, f := range factors {
		if f < 1 || p > math.MaxInt64/f {
			return 0, false
		}
		p *= f
	}
	return p, true
}

// procs is how many processes train, where the command says so; 1 otherwise.
func (st *state) procs() int64 { return min(max(int64(st.s.Job.Procs), 1), most) }

// rows counts the rows of one optimizer step with a micro-batch and accumulation over
// all processes that the command names; false where they are not known.
func (st *state) rows(micro, accumulation int64) (int64, bool) {
	if g := st.number(job.GlobalBatch); g > 0 && (st.global() || accumulation == 0) {
		return g, true
	}
	return product(micro, accumulation, st.procs())
}

// packed says whether rows are packed to the length, so that each has just so many
// tokens.
func (st *state) packed() bool {
	on, err := strconv.ParseBool(st.now[job.Packing].Value)
	return err == nil && on
}

// tokens says the tokens of one optimizer step before and after a change of length and
// accumulation; "" where they are not known.
func (st *state) tokens(length, toLength, accumulation, toAccumulation int64) string {
	if g := st.number(job.GlobalBatch); st.global() && g >= length*max(st.number(job.MicroBatch), 1) {
		return "" // some trainers count the global batch in tokens, and this may be one
	}
	before, ok1 := st.rows(st.number(job.MicroBatch), accumulation)
	after, ok2 := st.rows(st.number(job.MicroBatch), toAccumulation)
	if !ok1 || !ok2 {
		return ""
	}
	a, ok1 := product(length, before)
	b, ok2 := product(toLength, after)
	if !ok1 || !ok2 {
		return ""
	}
	most := "at most "
	if st.packed() {
		most = ""
	}
	if a == b {
		return fmt.Sprintf("tokens per optimizer step %s%d as before", most, a)
	}
	return fmt.Sprintf("tokens per optimizer step %s%d -> %d", most, a, b)
}

// planned says how many optimizer steps the training has before and after. Packed rows
// double when the length halves: shorter is true of a cut whose steps still see as many
// rows.
func (st *state) planned(shorter bool) string {
	if n := st.number(job.MaxSteps); n > 0 {
		return fmt.Sprintf("planned steps %d as before", n)
	}
	_, err := strconv.ParseBool(st.now[job.Packing].Value)
	unsure, twice := shorter && err != nil, shorter && st.packed()
	for i := len(st.s.Past) - 1; i >= 0; i-- {
		n := st.s.Past[i].PlannedSteps
		switch {
		case n <= 0 || len(changed(st.s.knobs(i), st.now)) > 0:
			continue
		case unsure:
			return fmt.Sprintf("planned steps %d -> unknown", n)
		case twice:
			return fmt.Sprintf("planned steps %d -> about %d", n, 2*n)
		}
		return fmt.Sprintf("planned steps %d as before", n)
	}
	switch {
	case unsure:
		return "planned steps unknown"
	case twice:
		return "planned steps unknown, about twice as many as before"
	}
	return "planned steps unknown, as many as before"
}
