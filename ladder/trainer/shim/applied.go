package shim

import (
	"slices"
	"strconv"

	"sparkrun/internal/job"
)

// Applied returns the knobs of the plan that no process has changed as asked: as
// far as they go, the rung was not applied.
func Applied(p Plan, r Record) (missing []job.Knob) {
	for _, c := range p.Clamps {
		if !c.applied(r.Seen) {
			missing = append(missing, c.Knob)
		}
	}
	return missing
}

func (c Clamp) applied(all []Seen) bool {
	changed, finals, small := false, 0, 0
	for _, s := range all {
		if s.Knob != c.Knob {
			continue
		}
		changed = changed || c.reached(s)
		if s.Final {
			finals++
			if c.reached(s) || !s.Changed() && c.within(s.After) {
				small++
			}
		}
	}
	if c.Knob == job.SeqLen && finals > 0 && small == 0 {
		// A model or a tokenizer took the shorter length, and the trainer did not.
		return false
	}
	return changed
}

// reached says whether s is a change to what the clamp asks for.
func (c Clamp) reached(s Seen) bool {
	switch c.Knob {
	case job.ResumeFrom, job.OutputDir:
		return s.After == c.To
	case job.DType:
		return s.Changed() && s.After == c.To
	case job.Accumulation:
		return s.Changed()
	}
	if !s.Changed() {
		return false
	}
	return c.Halve > 0 || s.After == c.To || c.within(s.After)
}

// within says whether a size is not over the value to go to.
func (c Clamp) within(after string) bool {
	n, err := strconv.ParseInt(after, 10, 64)
	limit, limitErr := strconv.ParseInt(c.To, 10, 64)
	return err == nil && limitErr == nil && n > 0 && n <= limit
}

// ownLoop are the places of a batch and an accumulation that belong to a training loop of
// the script's own, as configs/shim/sparkrun_shim/loops.py names them.
var ownLoop = []string{
	"DataLoader(batch_size=)", "Accelerator(gradient_accumulation_steps=)", "Trainer.accumulate_grad_batches",
}

// OwnLoop says whether a setting was seen (Seen.Where) in a training loop of the script's
// own. The shim leaves accumulation as it is there, and lowers the batch only with
// Plan.SmallerBatch and without a clamp on accumulation.
func OwnLoop(where string) bool { return slices.Contains(ownLoop, where) }

// learned are the knobs that Learned returns.
var learned = []job.Knob{
	job.SeqLen, job.Packing, job.MicroBatch, job.Accumulation, job.EvalBatch, job.LoadIn4Bit, job.DType,
	job.GradCkpt, job.Optimizer, job.OutputDir, job.ResumeFrom, job.MaxSteps, job.Epochs, job.SaveSteps,
	job.LearningRate, job.NumWorkers, job.Model,
}

// Learned returns the settings of the script's own code as the libraries got them,
// before any clamp. Where a knob was given several times, what a trainer was about
// to use counts, and of several lengths the longest.
func Learned(r Record) job.Knobs {
	knobs := job.Knobs{}
	best := map[job.Knob]Seen{}
	for _, s := range r.Seen {
		if s.Before == "" || !slices.Contains(learned, s.Knob) {
			continue
		}
		if old, ok := best[s.Knob]; ok && !s.before(old) {
			continue
		}
		best[s.Knob] = s
		knobs[s.Knob] = job.Setting{Value: s.Before, Source: job.FromScript, Where: s.Where}
	}
	return knobs
}

// before says whether s says more about the training than old, which came first.
func (s Seen) before(old Seen) bool {
	if s.Final != old.Final {
		return s.Final
	}
	switch s.Knob {
	case job.SeqLen:
		a, errA := strconv.ParseInt(s.Before, 10, 64)
		b, errB := strconv.ParseInt(old.Before, 10, 64)
		return errA == nil && (errB != nil || a > b)
	case job.LoadIn4Bit:
		// One model of several in 4 bit makes it such a job.
		return s.Before == "true" && old.Before != "true"
	}
	return false
}
