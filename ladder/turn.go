package ladder

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/ladder/trainer"
)

// Kinds of Note.
const (
	refused       = "refused"
	notApplicable = "not-applicable"
)

// evalBatch stands in for the micro-batch in evaluation, in the table of phases.
const evalBatch = "eval-batch"

// phaseEval is the phase whose batch is another setting.
const phaseEval = "eval"

// turn is what one action makes of the settings in force: either a step down
// with its reason, or a note that says why there is none.
type turn struct {
	step []trainer.Change
	why  string
	// ended is set where the action applies to this job but has nothing left to
	// give.
	ended bool
	note  Note
	// advice goes with a refusal that the user can lift.
	advice string
}

func (t turn) ok() bool { return len(t.step) > 0 }

func no(kind, format string, args ...any) turn {
	return turn{note: Note{Kind: kind, Why: fmt.Sprintf(format, args...)}}
}

// state is the situation as an action sees it.
type state struct {
	s     Situation
	now   job.Knobs
	phase string
	// only says what helps against the last death; nil where everything may.
	only *helps
	// triedOnce is set where a cut has already been answered by another death of the
	// same sort.
	triedOnce bool
	// halved counts how often the length was halved so far.
	halved int
}

// number returns a whole-number setting in force, 0 if it is not known.
func (st *state) number(k job.Knob) int64 {
	n, err := strconv.ParseInt(st.now[k].Value, 10, 64)
	if err != nil || n < 1 {
		return 0
	}
	return n
}

func (st *state) change(k job.Knob, to, reason string) trainer.Change {
	return trainer.Change{Knob: k, From: st.now[k].Value, To: to, Reason: reason}
}

// do returns what one action of a rung does to the settings in force.
func (st *state) do(action string, r rung) turn {
	if st.s.Job.Container != nil {
		return no(notApplicable, "the settings inside the container are out of reach")
	}
	if b := st.only; b != nil {
		switch {
		case action == microBatch && slices.Contains(b.Turns, evalBatch):
			return st.evalBatch()
		case slices.Contains(b.Turns, action):
		case slices.Contains(b.Once, action) && !st.triedOnce:
		default:
			return no(notApplicable, "%s", b.Why)
		}
	}
	switch action {
	case length:
		return st.shorten(r)
	case microBatch:
		return st.splitBatch()
	case gradCkpt:
		return st.checkpointing()
	case fullToLoRA:
		return st.lora(r)
	case fourTo16Bit:
		return st.sixteenBit()
	}
	return no(notApplicable, "sparkrun does not know the action %q", action)
}

// shorten halves the length, at most r.Halvings times and not below the floor.
func (st *state) shorten(r rung) turn {
	n := st.number(job.SeqLen)
	floor := max(r.Floor, st.s.Floor)
	switch {
	case n == 0:
		return no(notApplicable, "the sequence length is not a setting that sparkrun can turn here")
	case st.s.Exact:
		return no(refused, "--exact: a shorter length changes what is learned")
	case st.halved >= r.Halvings:
		t := no(notApplicable, "the length was halved %d times already", st.halved)
		t.ended = true
		return t
	case n/2 < floor:
		t := no(notApplicable, "length %d is at its end: half of it is below %d", n, floor)
		t.ended = true
		return t
	}
	to := n / 2
	why := fmt.Sprintf("length %d -> %d", n, to)
	if micro, acc := st.number(job.MicroBatch), st.number(job.Accumulation); micro > 0 && acc > 0 {
		most := "at most "
		if on, err := strconv.ParseBool(st.now[job.Packing].Value); err == nil && on {
			most = ""
		}
		why += fmt.Sprintf(" (tokens per optimizer step %s%d -> %d)", most, n*micro*acc, to*micro*acc)
	} else if g := st.number(job.GlobalBatch); g > 0 {
		why += fmt.Sprintf(" (tokens per optimizer step at most %d -> %d)", n*g, to*g)
	}
	why += "; rows longer than that are cut or packed anew"
	return turn{step: []trainer.Change{st.change(job.SeqLen, strconv.FormatInt(to, 10), "half the length")}, why: why}
}

// splitBatch lowers the micro-batch to its largest proper divisor and raises
// accumulation by the same factor, so that the effective batch stays exactly the
// same.
func (st *state) splitBatch() turn {
	n := st.number(job.MicroBatch)
	switch n {
	case 0:
		return no(notApplicable, "the micro-batch is not a setting that sparkrun can turn here")
	case 1:
		t := no(notApplicable, "the micro-batch is 1 already")
		t.ended = true
		return t
	}
	to := largestDivisor(n)
	step := []trainer.Change{st.change(job.MicroBatch, strconv.FormatInt(to, 10), "fewer rows at once")}
	if g := st.number(job.GlobalBatch); g > 0 {
		return turn{step: step, why: fmt.Sprintf("micro-batch %d -> %d (the effective batch stays %d)", n, to, g)}
	}
	acc := st.number(job.Accumulation)
	if acc == 0 {
		return no(notApplicable, "the micro-batch is %d, but no gradient accumulation setting is known, so a smaller one would change the effective batch (with flags of your own: --knob micro_batch=%d --knob accumulation=1 and the placeholders {micro_batch} and {accumulation})", n, n)
	}
	if acc > (1<<62)/(n/to) {
		return no(notApplicable, "accumulation %d is too large to be raised", acc)
	}
	up := acc * (n / to)
	step = append(step, st.change(job.Accumulation, strconv.FormatInt(up, 10), "the effective batch stays the same"))
	why := fmt.Sprintf("micro-batch %d -> %d with accumulation %d -> %d (the effective batch stays %d)", n, to, acc, up, n*acc)
	if seq := st.number(job.SeqLen); seq > 0 {
		why = strings.TrimSuffix(why, ")") + fmt.Sprintf(", tokens per optimizer step at most %d as before)", seq*n*acc)
	}
	return turn{step: step, why: why}
}

// evalBatch lowers the batch of evaluation, which changes no result.
func (st *state) evalBatch() turn {
	n := st.number(job.EvalBatch)
	switch n {
	case 0:
		return no(notApplicable, "it died in evaluation, and the evaluation batch is not a setting that sparkrun can turn here")
	case 1:
		t := no(notApplicable, "it died in evaluation, and the evaluation batch is 1 already")
		t.ended = true
		return t
	}
	to := largestDivisor(n)
	return turn{
		step: []trainer.Change{st.change(job.EvalBatch, strconv.FormatInt(to, 10), "it died in evaluation")},
		why:  fmt.Sprintf("it died in evaluation: evaluation batch %d -> %d (the training stays the same)", n, to),
	}
}

// largestDivisor returns the largest divisor of n below n; n is at least 2.
func largestDivisor(n int64) int64 {
	for d := int64(2); d <= n/d; d++ {
		if n%d == 0 {
			return n / d
		}
	}
	return 1
}

// checkpointing turns activation checkpointing on.
func (st *state) checkpointing() turn {
	set, ok := st.now[job.GradCkpt]
	on, err := strconv.ParseBool(set.Value)
	switch {
	case !ok || err != nil:
		return no(notApplicable, "activation checkpointing is not a setting that sparkrun can turn here")
	case on:
		t := no(notApplicable, "activation checkpointing is on already")
		t.ended = true
		return t
	}
	return turn{
		step: []trainer.Change{st.change(job.GradCkpt, "True", "activations are computed again instead of kept")},
		why:  "activation checkpointing on (slower steps, the same training)",
	}
}

// lora goes from full fine-tuning to LoRA, which is another experiment: it needs
// a learning rate of its own or the user's word.
func (st *state) lora(r rung) turn {
	switch {
	case st.now[job.Method].Value == "":
		return no(notApplicable, "the training method is not a setting that sparkrun can turn here")
	case st.now[job.Method].Value != "full":
		t := no(notApplicable, "it is not a full fine-tune")
		t.ended = st.now[job.Method].Value == "lora"
		return t
	case st.s.Exact:
		return no(refused, "--exact: LoRA is a different experiment")
	}
	step := []trainer.Change{st.change(job.Method, "lora", "LoRA in 16 bit instead of all weights")}
	lr := st.now[job.LoRALR].Value
	switch {
	case lr != "":
		// Where the learning rate cannot be set, trainer.Rewrite refuses the
		// whole rung.
		step = append(step, st.change(job.LearningRate, lr, "LoRA needs a learning rate of its own"))
		return turn{step: step, why: fmt.Sprintf("full fine-tune -> LoRA in 16 bit, learning rate %s -> %s (a different experiment)", orUnknown(st.now[job.LearningRate].Value), lr)}
	case st.s.Allow[r.Name]:
		return turn{step: step, why: "full fine-tune -> LoRA in 16 bit, the learning rate as it is (a different experiment, allowed by --allow " + r.Name + ")"}
	}
	t := no(refused, "LoRA is a different experiment and needs a learning rate of its own (--knob lora_lr=..., or --allow %s to keep the present one)", r.Name)
	t.advice = "to go on with LoRA: sparkrun --knob lora_lr=" + loraRate(st.now[job.LearningRate].Value) + " -- " + shellWords(st.s.Job.Argv)
	return t
}

// loraRate proposes ten times the rate of full fine-tuning, the usual relation.
func loraRate(full string) string {
	v, err := strconv.ParseFloat(full, 64)
	if err != nil || v <= 0 || v > 1e-3 {
		return "1e-4"
	}
	return strconv.FormatFloat(v*10, 'g', 3, 64)
}

func orUnknown(text string) string {
	if text == "" {
		return "(unknown)"
	}
	return text
}

// sixteenBit takes the quantisation away from a LoRA run: only where the
// weights then still fit, since it usually costs memory.
func (st *state) sixteenBit() turn {
	s := st.s
	switch {
	case st.now[job.Method].Value == "":
		return no(notApplicable, "the training method is not a setting that sparkrun can turn here")
	case st.now[job.Method].Value == "lora":
		t := no(notApplicable, "it trains LoRA in 16 bit already")
		t.ended = true
		return t
	case st.now[job.Method].Value != "qlora":
		return no(notApplicable, "the model is not quantised")
	case s.Exact:
		return no(refused, "--exact: unquantised LoRA is a different experiment")
	case !s.ModelParams.OK || s.ModelParams.V <= 0:
		return no(refused, "the size of the model is not known, so nothing says that its weights fit in 16 bit")
	case !s.BudgetBytes.OK:
		return no(refused, "the memory budget is not known, so nothing says that the weights fit in 16 bit")
	}
	need := s.ModelParams.V * 2
	if need > s.BudgetBytes.V {
		return no(refused, "the weights take %s in 16 bit, the budget is %s", gigabytes(need), gigabytes(s.BudgetBytes.V))
	}
	step := []trainer.Change{st.change(job.Method, "lora", "16-bit weights have no dequantisation buffers")}
	if set, ok := st.now[job.LoadIn4Bit]; ok && set.Value != "" {
		step = append(step, st.change(job.LoadIn4Bit, falseLike(set.Value), "16-bit weights"))
	}
	return turn{
		step: step,
		why:  fmt.Sprintf("quantised LoRA -> LoRA in 16 bit (weights %s of a budget of %s; a different experiment)", gigabytes(need), gigabytes(s.BudgetBytes.V)),
	}
}

// falseLike writes false the way the user wrote true.
func falseLike(word string) string {
	if no, ok := map[string]string{"1": "0", "true": "false", "yes": "no", "on": "off"}[word]; ok {
		return no
	}
	return "False"
}

func gigabytes(bytes float64) string {
	return strconv.FormatFloat(bytes/1e9, 'f', 1, 64) + " GB"
}

// shellWords writes a command so that a shell reads it back.
func shellWords(argv []string) string {
	words := make([]string, len(argv))
	for i, w := range argv {
		plain := w != "" && strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-") == ""
		if plain {
			words[i] = w
		} else {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
