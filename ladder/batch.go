package ladder

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/ladder/trainer"
	"sparkrun/ladder/trainer/shim"
)

// Families of batch arithmetic, as job.Job names them.
const (
	perDevice   = "per-device"
	globalBatch = "global"
)

// global says that the rows of an optimizer step are a setting of their own, so that
// accumulation follows from it and is not touched.
func (st *state) global() bool {
	switch st.s.Job.Family {
	case globalBatch:
		return true
	case perDevice:
		return st.number(job.Accumulation) == 0 && st.number(job.GlobalBatch) > 0
	}
	return st.number(job.GlobalBatch) > 0
}

// ownLoops is the profile of scripts with a training loop of their own.
const ownLoops = "argparse"

// ownLoop says that a setting is a constant of a training loop of the script's own. Such a
// script works out its steps and its schedule from its batch, its accumulation and the
// length of its loader, each read where it likes: none can be changed behind its back, and
// the batch alone only as a smaller effective batch.
func (st *state) ownLoop(k job.Knob) bool {
	set := st.now[k]
	return set.Source == job.FromScript && (st.s.Job.Profile == ownLoops || shim.OwnLoop(set.Where))
}

// loopKeeps is why the accumulation of such a loop stays.
const loopKeeps = "the script's own training loop works out its steps and its schedule from it"

// selfShrinks leaves the batch to a trainer that makes it smaller by itself.
func selfShrinks(how string) turn {
	return no(notApplicable, "the trainer makes its batch smaller by itself (%s), and two ladders are never run at once", how)
}

// splitBatch lowers the micro-batch to its largest proper divisor and raises
// accumulation by the same factor, so that the effective batch stays exactly the
// same.
func (st *state) splitBatch() turn {
	if why := st.s.Job.SelfShrinks; why != "" {
		return selfShrinks(why)
	}
	w, t := st.reach(job.MicroBatch)
	if !w.ok {
		return t
	}
	if w.half {
		if st.now[job.MicroBatch].Value == Half {
			return ended("the micro-batch was halved by the shim, which has not told how large it is")
		}
		why := "micro-batch / 2 with accumulation x 2, by the shim (their values are not known; the effective batch stays the same"
		if st.s.Allow[AllowSmallerBatch] && !st.s.Exact {
			why += ", but in a training loop of the script's own it falls, as --allow " + AllowSmallerBatch + " says"
		}
		return turn{
			step: []trainer.Change{st.change(job.MicroBatch, Half, "fewer rows at once")},
			why:  why + ")",
		}
	}
	n := st.number(job.MicroBatch)
	switch n {
	case 0:
		return no(notApplicable, "the micro-batch is %s, which is no number that can be made smaller", st.now[job.MicroBatch].Value)
	case 1:
		return ended("the micro-batch is 1 already")
	}
	if st.global() {
		return st.splitOfGlobal(n, w)
	}
	acc := st.number(job.Accumulation)
	if acc == 0 || st.ownLoop(job.MicroBatch) || st.ownLoop(job.Accumulation) {
		return st.smallerBatch(n, max(acc, 1), w)
	}
	wa, t := st.reach(job.Accumulation)
	if !wa.ok {
		return t
	}
	tooLarge := false
	for _, to := range properDivisors(n) {
		up, ok := product(acc, n/to)
		if !ok || up > most {
			tooLarge = true
			continue
		}
		if !st.allowed(job.MicroBatch, to) || !st.allowed(job.Accumulation, up) {
			continue
		}
		step := []trainer.Change{
			st.change(job.MicroBatch, strconv.FormatInt(to, 10), "fewer rows at once"),
			st.change(job.Accumulation, strconv.FormatInt(up, 10), "the effective batch stays the same"),
		}
		w.shim = w.shim || wa.shim
		why := fmt.Sprintf("micro-batch %d -> %d with accumulation %d -> %d%s", n, to, acc, up, w.shimmed())
		return turn{step: step, why: why + st.sameRows(n, acc)}
	}
	if tooLarge && len(st.choices(job.MicroBatch))+len(st.choices(job.Accumulation)) == 0 {
		return no(notApplicable, "accumulation %d is too large to be raised", acc)
	}
	return st.noChoice(job.MicroBatch, n)
}

// sameRows says what stays the same, in brackets.
func (st *state) sameRows(micro, accumulation int64) string {
	rows, ok := st.rows(micro, accumulation)
	if !ok {
		return " (the effective batch stays the same)"
	}
	parts := []string{fmt.Sprintf("the effective batch stays %d", rows)}
	if seq := st.number(job.SeqLen); seq > 0 {
		if text := st.tokens(seq, seq, accumulation, accumulation); text != "" {
			parts = append(parts, text)
		}
	}
	return " (" + strings.Join(append(parts, st.planned(false)), ", ") + ")"
}

// splitOfGlobal lowers the micro-batch alone, to a divisor that the global batch can
// be made of. Where the global batch is not told, the profile vouches that it is no
// multiple of the micro-batch.
func (st *state) splitOfGlobal(n int64, w way) turn {
	g := st.number(job.GlobalBatch)
	for _, to := range properDivisors(n) {
		if !st.madeOf(g, n, to) || !st.allowed(job.MicroBatch, to) {
			continue
		}
		why := fmt.Sprintf("micro-batch %d -> %d%s", n, to, w.shimmed())
		step := []trainer.Change{st.change(job.MicroBatch, strconv.FormatInt(to, 10), "fewer rows at once")}
		if g == 0 {
			kept := "the trainer keeps its global batch"
			if told := st.now[job.GlobalBatch].Value; told != "" {
				kept += ", " + told
			}
			return turn{step: step, why: why + " (" + kept + "; " + st.planned(false) + ")"}
		}
		return turn{step: step, why: why + st.sameRows(to, 0)}
	}
	if len(st.choices(job.MicroBatch)) > 0 || st.s.Job.Knobs[job.MicroBatch].Min > 0 {
		return st.noChoice(job.MicroBatch, n)
	}
	return no(refused, "no smaller micro-batch than %d divides the global batch %d", n, g)
}

// madeOf says whether a global batch can be made of micro-batches of a size, where it
// was made of those of size now before. A batch of 0 is one that the trainer works out.
func (st *state) madeOf(batch, now, to int64) bool {
	procs := st.procs()
	if now > 0 && batch%(now*procs) != 0 {
		// It trained like that, so the processes share models and do not multiply the
		// batch (tensor or pipeline parallel).
		procs = 1
	}
	return batch%(to*procs) == 0
}

// smallerBatch lowers the micro-batch where nothing can be raised in its place: that
// is another effective batch, so it needs the user's word. acc is the accumulation that
// stays.
func (st *state) smallerBatch(n, acc int64, w way) turn {
	own := st.ownLoop(job.MicroBatch) || st.ownLoop(job.Accumulation)
	switch {
	case st.s.Exact && own:
		return no(refused, "--exact: in the script's own training loop a smaller micro-batch changes the effective batch")
	case st.s.Exact:
		return no(refused, "--exact: without a gradient accumulation setting a smaller micro-batch changes the effective batch")
	case st.s.Job.Unclear[job.Accumulation] != "":
		return no(refused, "the micro-batch is %d, and gradient accumulation is set but not understood (%s), so what a smaller micro-batch would do to the effective batch is not known", n, st.s.Job.Unclear[job.Accumulation])
	case !st.s.Allow[AllowSmallerBatch]:
		why := "but no gradient accumulation setting is known, so a smaller one would change the effective batch"
		if own {
			why = "and the script's own training loop works out its steps and its schedule from the batch and the accumulation in its code, so no other split of them is exact"
		}
		t := no(refused, "the micro-batch is %d, %s (--allow %s, or with flags of your own: --knob micro_batch=%d --knob accumulation=%d and the placeholders {micro_batch} and {accumulation})", n, why, AllowSmallerBatch, n, acc)
		t.advice = fmt.Sprintf("--allow %s lets the micro-batch fall although the effective batch falls with it", AllowSmallerBatch)
		return t
	}
	keeps := "no accumulation setting"
	if own {
		keeps = "the script's own training loop keeps its accumulation"
	}
	for _, to := range properDivisors(n) {
		if !st.allowed(job.MicroBatch, to) {
			continue
		}
		procs := st.procs()
		falls := fmt.Sprintf("falls to 1/%d", n/to)
		if rows, ok := product(n, acc, procs); ok {
			falls = fmt.Sprintf("falls from %d to %d", rows, rows/n*to)
		}
		parts := []string{fmt.Sprintf("%s: the effective batch %s, allowed by --allow %s", keeps, falls, AllowSmallerBatch)}
		if tokens, ok := product(n, acc, st.number(job.SeqLen)); ok {
			parts = append(parts, fmt.Sprintf("tokens per optimizer step at most %d -> %d", tokens, tokens/n*to))
		}
		if steps := st.number(job.MaxSteps); steps > 0 {
			parts = append(parts, fmt.Sprintf("planned steps %d as before, so fewer rows in all", steps))
		} else {
			parts = append(parts, fmt.Sprintf("planned steps unknown, %d times as many as before", n/to))
		}
		return turn{
			smaller: true,
			step:    []trainer.Change{st.change(job.MicroBatch, strconv.FormatInt(to, 10), "fewer rows at once")},
			why:     fmt.Sprintf("micro-batch %d -> %d%s (%s)", n, to, w.shimmed(), strings.Join(parts, ", ")),
		}
	}
	return st.noChoice(job.MicroBatch, n)
}

// evalBatch lowers the batch of evaluation, which changes no result.
func (st *state) evalBatch() turn {
	w, t := st.reach(job.EvalBatch)
	if !w.ok {
		t.note.Why = "it died in evaluation, and " + t.note.Why
		return t
	}
	const because = "it died in evaluation"
	if w.half {
		if st.now[job.EvalBatch].Value == Half {
			return ended("it died in evaluation, and the evaluation batch was halved by the shim, which has not told how large it is")
		}
		return turn{
			step: []trainer.Change{st.change(job.EvalBatch, Half, because)},
			why:  "it died in evaluation: evaluation batch / 2, by the shim (the training stays the same)",
		}
	}
	n := st.number(job.EvalBatch)
	switch n {
	case 0:
		return no(notApplicable, "it died in evaluation, and the evaluation batch is %s, which is no number that can be made smaller", st.now[job.EvalBatch].Value)
	case 1:
		return ended("it died in evaluation, and the evaluation batch is 1 already")
	}
	for _, to := range properDivisors(n) {
		if !st.allowed(job.EvalBatch, to) {
			continue
		}
		return turn{
			step: []trainer.Change{st.change(job.EvalBatch, strconv.FormatInt(to, 10), because)},
			why:  fmt.Sprintf("it died in evaluation: evaluation batch %d -> %d%s (the training stays the same)", n, to, w.shimmed()),
		}
	}
	return st.noChoice(job.EvalBatch, n)
}

func (st *state) choices(k job.Knob) []string { return st.s.Job.Knobs[k].Choices }

// noChoice refuses a cut whose values the command would not take.
func (st *state) noChoice(k job.Knob, n int64) turn {
	what := words[k]
	choices := st.choices(k)
	if set := st.s.Job.Knobs[k]; set.Min > 0 && len(choices) == 0 {
		return no(refused, "the %s %d cannot be divided: its parts must be at least %d, since %s", what, n, set.Min, set.MinWhy)
	}
	if k == job.MicroBatch && len(choices) == 0 {
		k, choices = job.Accumulation, st.choices(job.Accumulation)
	}
	return no(refused, "the %s %d cannot be divided: the command takes only %s for %s", what, n, strings.Join(choices, ", "), words[k])
}

// properDivisors returns the divisors of n below n, largest first. n is a number of
// state.number, so this is quick.
func properDivisors(n int64) []int64 {
	var small, large []int64
	for d := int64(1); d <= n/d; d++ {
		if n%d != 0 {
			continue
		}
		if d < n {
			small = append(small, d)
		}
		if q := n / d; q < n && q != d {
			large = append(large, q)
		}
	}
	slices.Reverse(small)
	return append(large, small...)
}
