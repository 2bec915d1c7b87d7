package headroom

import (
	"fmt"
	"strconv"
)

// Rung is the change to start from instead of finding it at the first death.
type Rung struct {
	// Name is the rung of the built-in ladder (shorter-packing, bf16-lora), Checkpointing,
	// "smaller-model" where none is enough, "" where nothing has to change.
	// Checkpointing is no rung, and goes before them: it leaves the training the same. With
	// another name and grad_checkpoint among Knobs it goes with that rung.
	Name string `json:"name"`
	// Knobs are the settings to start with, by the names of package job. A new micro-batch
	// comes with the accumulation that keeps the effective batch, where that is known.
	Knobs map[string]string `json:"knobs,omitempty"`
	// Words says it to a person.
	Words string `json:"words"`
	// Peak is the estimate with that change, in bytes.
	Peak int64 `json:"peak_bytes"`
}

// FirstRung says which rung of the runbook's ladder to start from: shorter rows, then a
// smaller batch, then another method. Like the ladder it keeps what was changed before.
// It takes the first that fits with the margin, else the first that fits at all.
func FirstRung(s Spec, budget int64) (Rung, error) {
	t, err := loadTable()
	if err != nil {
		return Rung{}, err
	}
	e, err := s.Estimate()
	if err != nil {
		return Rung{}, err
	}
	now := e.Spec
	now.Assumed = nil
	switch {
	case Judge(e, budget).Verdict == Fits:
		return Rung{Words: "start as it is", Peak: e.Peak}, nil
	case e.Impossible != "":
		return Rung{Name: Smaller, Peak: e.Peak, Words: "it cannot be done as asked: " + e.Impossible}, nil
	case OnlyLoading(e, budget):
		return Rung{Peak: e.Peak, Words: LoadingWords}, nil
	case e.MethodAssumed:
		if own, err := now.Estimate(); err == nil && Judge(own, budget).Verdict == Fits {
			return Rung{Peak: e.Peak, Words: fmt.Sprintf("find out first how it is trained, and tell it (--method full, lora or qlora): an adapter fits as it is, all weights would take about %s", GB(e.AllWeights))}, nil
		}
	}
	if e.Loads32 {
		with := now
		with.WeightDType = "bf16"
		if own, err := with.Estimate(); err == nil && Judge(own, budget).Verdict == Fits {
			return Rung{Peak: own.Peak, Words: fmt.Sprintf("tell the type of the weights (%s): nothing does, so they are loaded in 32 bit; then about %s", In16Bit, GB(own.Peak))}, nil
		}
	}
	if with, ok := Checkpointed(now); ok {
		on, err := with.Estimate()
		if err != nil {
			return Rung{}, err
		}
		knobs := map[string]string{"grad_checkpoint": "true"}
		if o := Judge(on, budget); o.Verdict == Fits || o.Left >= Margin(budget) && on.Peak < e.Peak {
			return Rung{Name: Checkpointing, Knobs: knobs, Words: CheckpointingWords, Peak: on.Peak}, nil
		}
		rung, err := FirstRung(with, budget)
		if err != nil {
			return Rung{}, err
		}
		if rung.Name != "" && rung.Name != Smaller {
			for k, v := range rung.Knobs {
				knobs[k] = v
			}
			rung.Knobs, rung.Words = knobs, CheckpointingWords+"; then "+rung.Words
			return rung, nil
		}
		if e.Peak > budget {
			rung.Words += fmt.Sprintf(" (activation checkpointing is off; with it, it takes about %s, not %s)", GB(on.Peak), GB(e.Peak))
			return rung, nil
		}
	}
	rungs := t.rungs(now)
	var steps []Candidate
	for _, step := range rungs {
		steps = append(steps, Candidate{Spec: step.spec, Other: step.rung.Name != "shorter-packing"})
	}
	at, peak, err := Pick(e, budget, steps)
	switch {
	case err != nil:
		return Rung{}, err
	case at >= 0:
		rung := rungs[at].rung
		rung.Peak = peak
		return rung, nil
	case e.Peak <= budget:
		words := "start as it is and watch it: nothing that leaves the training as it is makes it fit better"
		for _, step := range rungs {
			if step.rung.Name != "bf16-lora" {
				continue
			}
			if with, err := step.spec.Estimate(); err == nil && Judge(with, budget).Verdict == Fits {
				words += fmt.Sprintf("; LoRA in 16 bit, which is a different experiment, would take about %s", GB(with.Peak))
			}
		}
		return Rung{Words: words, Peak: e.Peak}, nil
	}
	why := "a smaller model, or more machines: no rung of the ladder makes this fit"
	if now.Method != QLoRA {
		packed := now
		packed.Method, packed.WeightDType = QLoRA, ""
		if with, err := packed.Estimate(); err == nil && Judge(with, budget).Verdict != Over {
			why += fmt.Sprintf("; QLoRA would take about %s, which is no rung, for it is another experiment", GB(with.Peak))
		}
	}
	return Rung{Name: Smaller, Words: why, Peak: e.Peak}, nil
}

// Names of steps that are no rungs of the ladder.
const (
	Checkpointing = "checkpointing"
	Smaller       = "smaller-model"
)

// CheckpointingWords says the step Checkpointing.
const CheckpointingWords = "switch activation checkpointing on, which costs time and leaves the training the same"

// Checkpointed is the training with activation checkpointing; ok is false where that is
// not known to be off.
func Checkpointed(s Spec) (with Spec, ok bool) {
	if s.GradCheckpoint != Off {
		return s, false
	}
	s.GradCheckpoint = On
	return s, true
}

// LoadingWords is what helps where only the loading is tight.
const LoadingWords = "a copy of the model that is quantised already (its name ends in -bnb-4bit): what is tight is the loading, and neither length nor batch changes that"

// OnlyLoading says that a training fits once its model is there, and that no rung acts on
// what is tight: the loading.
func OnlyLoading(e Estimate, budget int64) bool {
	return Judge(e, budget).Verdict == Tight && budget-e.Peak >= Margin(budget) && e.High <= budget
}

// Candidate is a step of a ladder, as the training after it. Other says that it is not
// the training that was asked for.
type Candidate struct {
	Spec  Spec
	Other bool
}

// Pick chooses the step to start from for an estimate that is tight or over: the first
// that fits with the margin, else the first that fits at all. A plan that fits, if
// barely, is not made another experiment. It returns the index of the step and the peak
// with it, -1 where none helps.
func Pick(e Estimate, budget int64, steps []Candidate) (at int, peak int64, err error) {
	fits := e.Peak <= budget
	barely := budget-e.Peak < Margin(budget)
	near, last := -1, -1
	var nearPeak, lastPeak int64
	for i, step := range steps {
		if fits && step.Other {
			continue
		}
		with, err := step.Spec.Estimate()
		if err != nil {
			return -1, 0, err
		}
		o := Judge(with, budget)
		if o.Verdict == Fits {
			return i, with.Peak, nil
		}
		// What is not tight for want of room in a step is tight for another reason, which
		// no further step changes.
		switch {
		case o.Verdict != Tight:
		case near < 0 && barely && o.Left >= Margin(budget):
			near, nearPeak = i, with.Peak
		case !fits:
			last, lastPeak = i, with.Peak
		}
	}
	if near >= 0 {
		return near, nearPeak, nil
	}
	return last, lastPeak, nil
}

// change is a step down and the training after it.
type change struct {
	spec Spec
	rung Rung
}

// rungs lists the steps of the built-in ladder that change a training, in its order.
func (t *table) rungs(s Spec) []change {
	var steps []change
	knobs := map[string]string{}
	words := ""
	add := func(name, text string) {
		if words != "" {
			words += ", then "
		}
		words += text
		own := map[string]string{}
		for k, v := range knobs {
			own[k] = v
		}
		steps = append(steps, change{s, Rung{Name: name, Knobs: own, Words: words}})
	}
	for range t.FirstRung.Halvings {
		half := s.SeqLen / 2
		if half < t.FirstRung.Floor {
			break
		}
		s.SeqLen = half
		knobs["seq_len"] = strconv.FormatInt(half, 10)
		words = "" // only the last length counts
		add("shorter-packing", fmt.Sprintf("rows of %d tokens", half))
	}
	shorter := words
	rows, accumulation := s.MicroBatch, s.Accumulation
	for s.MicroBatch > 1 {
		d := divisor(s.MicroBatch)
		times := rows / d
		s.MicroBatch = d
		knobs["micro_batch"] = strconv.FormatInt(d, 10)
		// Nobody says that there is an accumulation.
		text := fmt.Sprintf("micro-batch %d (the effective batch stays only with %d times the gradient accumulation)", d, times)
		if accumulation > 0 && accumulation < 1<<40 {
			s.Accumulation = accumulation * times
			knobs["accumulation"] = strconv.FormatInt(s.Accumulation, 10)
			text = fmt.Sprintf("micro-batch %d with accumulation %d", d, s.Accumulation)
		}
		words = shorter
		add("shorter-packing", text)
	}
	switch {
	case s.Method == Full:
		s.Method, s.Rank, s.Targets, s.MixedPrecision = LoRA, 0, nil, Off
	case s.Method == QLoRA && s.Model.Quantised == "":
		s.Method = LoRA
		knobs["load_in_4bit"] = "false"
	default:
		return steps
	}
	knobs["method"] = string(LoRA)
	add("bf16-lora", "LoRA in 16 bit, which is a different experiment")
	return steps
}

// divisor is the largest proper divisor of a number above 1.
func divisor(n int64) int64 {
	for d := int64(2); d*d <= n && d < 1<<20; d++ {
		if n%d == 0 {
			return n / d
		}
	}
	return 1
}
