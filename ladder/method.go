package ladder

import (
	"fmt"
	"strconv"

	"sparkrun/internal/job"
	"sparkrun/internal/shellread"
	"sparkrun/ladder/trainer"
)

// lora goes from full fine-tuning to LoRA, which is another experiment: it needs
// a learning rate of its own or the user's word.
func (st *state) lora(r rung) turn {
	method := st.now[job.Method].Value
	switch {
	case method != "" && method != "full":
		t := no(notApplicable, "it is not a full fine-tune")
		t.ended = method == "lora"
		return t
	}
	if w, t := st.reach(job.Method); !w.ok {
		return t
	}
	switch {
	case st.s.Exact:
		return no(refused, "--exact: LoRA is a different experiment")
	case st.byShim(job.Method):
		return no(refused, "the script trains all weights in its own code, and the shim cannot make LoRA of that")
	}
	step := []trainer.Change{st.change(job.Method, "lora", "LoRA in 16 bit instead of all weights")}
	lr := r.set[job.LearningRate]
	if lr == "" {
		lr = st.now[job.LoRALR].Value
	}
	noRate := st.s.Fixed[job.LearningRate]
	if noRate == "" && st.byShim(job.LearningRate) {
		noRate = "it stands in code that only the shim reaches, which leaves it alone"
	}
	switch {
	case lr != "" && lr != st.now[job.LearningRate].Value && noRate != "":
		if !st.s.Allow[r.Name] {
			return no(refused, "the learning rate of LoRA cannot be set: %s (--allow %s keeps the present one)", noRate, r.Name)
		}
		return turn{step: step, why: "full fine-tune -> LoRA in 16 bit, the learning rate as it is since it cannot be set (" + anew + "; allowed by --allow " + r.Name + ")"}
	case lr != "":
		// Where the learning rate cannot be set, trainer.Rewrite refuses the
		// whole rung.
		if lr != st.now[job.LearningRate].Value {
			step = append(step, st.change(job.LearningRate, lr, "LoRA needs a learning rate of its own"))
		}
		return turn{step: step, why: fmt.Sprintf("full fine-tune -> LoRA in 16 bit, learning rate %s -> %s (%s)", orUnknown(st.now[job.LearningRate].Value), lr, anew)}
	case st.s.Allow[r.Name]:
		return turn{step: step, why: "full fine-tune -> LoRA in 16 bit, the learning rate as it is (" + anew + "; allowed by --allow " + r.Name + ")"}
	}
	t := no(refused, "LoRA is a different experiment and needs a learning rate of its own (--knob lora_lr=..., or --allow %s to keep the present one)", r.Name)
	t.advice = "to go on with LoRA: sparkrun --knob lora_lr=" + loraRate(st.now[job.LearningRate].Value) + " -- " + shellread.Line(st.s.Job.Argv)
	return t
}

// anew is what LoRA in place of all weights means for the run.
const anew = "a different experiment: it starts over, in a folder of its own"

// loraRate proposes ten times the rate of full fine-tuning, the usual relation.
func loraRate(full string) string {
	v, err := strconv.ParseFloat(full, 64)
	if err != nil || v <= 0 || v > 1e-3 {
		return "1e-4"
	}
	return strconv.FormatFloat(v*10, 'g', 3, 64)
}

// sixteenBit takes the quantisation away from a LoRA run: only where that still fits,
// since the weights become four times as large, and only after a death in training.
func (st *state) sixteenBit(r rung) turn {
	s := st.s
	switch method := st.now[job.Method].Value; method {
	case "lora":
		return ended("it trains LoRA in 16 bit already")
	case "", "qlora":
	default:
		return no(notApplicable, "the model is not quantised")
	}
	w, t := st.reach(job.Method)
	if set := st.now[job.LoadIn4Bit]; w.ok && set.Value != "" {
		var by way
		by, t = st.reach(job.LoadIn4Bit)
		w = way{ok: by.ok, shim: w.shim || by.shim}
	}
	if !w.ok {
		return t
	}
	step := []trainer.Change{st.change(job.Method, "lora", "16-bit weights have no dequantisation buffers")}
	if set := st.now[job.LoadIn4Bit]; set.Value != "" {
		step = append(step, st.change(job.LoadIn4Bit, falseLike(set.Value), "16-bit weights"))
	}
	switch {
	case s.Exact:
		return no(refused, "--exact: unquantised LoRA is a different experiment")
	case !st.diedInTraining():
		return no(refused, "it did not die in training: weights of 16 bit are larger, and only the buffers of dequantising, which training has, become smaller")
	case s.ModelQuantised != "" && !s.Allow[r.Name]:
		return no(refused, "the model's own files are quantised (%s), so that 16 bit would need another model (--allow %s if the trainer takes the 16-bit one by itself)", s.ModelQuantised, r.Name)
	}
	sum, refusal := st.sixteenBitFits(step)
	if refusal != "" {
		return no(refused, "%s", refusal)
	}
	return turn{
		step: step,
		why:  fmt.Sprintf("quantised LoRA -> LoRA in bfloat16%s (%s; a different experiment)", w.shimmed(), sum),
	}
}

// sixteenBitFits says of a step to 16-bit weights by what reckoning they fit, or why not.
// Where the training can be reckoned, that counts; else the weights alone.
func (st *state) sixteenBitFits(step []trainer.Change) (sum, refusal string) {
	s := st.s
	from := ""
	if s.ModelFrom != "" {
		from = "; parameters " + s.ModelFrom
	}
	if s.SixteenBit != nil {
		knobs := st.now.Clone()
		for _, c := range step {
			set := knobs[c.Knob]
			set.Value = c.To
			knobs[c.Knob] = set
		}
		if e, ok := s.SixteenBit(knobs); ok {
			gb := func(n int64) string { return gigabytes(float64(n)) }
			sum = fmt.Sprintf("about %s (%s to %s) by the estimate of a budget of %s%s", gb(e.Peak), gb(e.Low), gb(e.High), gb(e.Budget), from)
			if e.Peak > e.Budget {
				return "", "LoRA in 16 bit does not fit: " + sum
			}
			return sum, ""
		}
	}
	need, times := s.ModelParams.V*2, ""
	if s.LoadDoubles == nil || *s.LoadDoubles {
		need, times = need*2, " x 2 copies while loading"
	}
	sum = fmt.Sprintf("%s parameters x 2 bytes%s = %s of a budget of %s%s", billions(s.ModelParams.V), times, gigabytes(need), gigabytes(s.BudgetBytes.V), from)
	switch {
	case !s.ModelParams.OK || s.ModelParams.V <= 0:
		return "", "the size of the model is not known, so nothing says that its weights fit in 16 bit"
	case !s.BudgetBytes.OK:
		return "", "the memory budget is not known, so nothing says that the weights fit in 16 bit"
	case need > s.BudgetBytes.V:
		return "", "the weights do not fit in 16 bit: " + sum
	}
	return sum, ""
}

// diedInTraining says whether the last death came in training itself. Where no phase is
// known, steps must have been seen. Without a death the question is what may come.
func (st *state) diedInTraining() bool {
	if len(st.s.Past) == 0 {
		return true
	}
	last := st.s.Past[len(st.s.Past)-1]
	switch last.Phase {
	case "train":
		return true
	case "", "unknown":
		return last.Step > 0
	}
	return false
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

func billions(n float64) string {
	if n < 1e9 {
		return strconv.FormatFloat(n/1e6, 'f', 0, 64) + " million"
	}
	return strconv.FormatFloat(n/1e9, 'f', 1, 64) + " billion"
}
