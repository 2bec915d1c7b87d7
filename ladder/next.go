package ladder

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/job"
	"sparkrun/ladder/trainer"
)

// turned are the knobs that a ladder changes. Output folder and resume are the
// supervisor's.
var turned = []job.Knob{
	job.SeqLen, job.MicroBatch, job.Accumulation, job.EvalBatch, job.GradCkpt, job.Method, job.LoadIn4Bit, job.LearningRate,
}

// defaultMaxAttempts holds where the situation names no limit.
const defaultMaxAttempts = 8

// WantsDrop says whether caches are to be dropped before Next is asked again
// with what that freed: before every retry after an out-of-memory death, since
// each attempt has filled the page cache anew.
func (l Ladder) WantsDrop(s Situation) bool {
	s = s.inForce()
	if _, settled := l.settle(s); settled {
		return false
	}
	return s.CanDrop && l.dropRung(s) != ""
}

// dropRung names the rung that drops caches, "" if there is none or it is
// denied.
func (l Ladder) dropRung(s Situation) string {
	for _, r := range l.rungs {
		if slices.Contains(r.Does, dropCaches) && !s.Deny[r.Name] {
			return r.Name
		}
	}
	return ""
}

// Next decides what follows the last attempt of the situation. It is pure: the
// same situation gives the same decision. Where trainer.Rewrite then refuses the
// changes, the last of Rungs belongs into Deny and Next is asked again.
func (l Ladder) Next(s Situation) Decision {
	s = s.inForce()
	d := l.next(s)
	s.mark(&d)
	return d
}

func (l Ladder) next(s Situation) Decision {
	if d, settled := l.settle(s); settled {
		return d
	}
	st := l.newState(s)
	var (
		notes   []Note
		advice  []string
		carried []string
		said    []string
	)
	for _, r := range l.rungs {
		if s.Deny[r.Name] {
			notes = append(notes, Note{r.Name, refused, "--deny " + r.Name})
			continue
		}
		if slices.Contains(r.Does, dropCaches) {
			alone, why := l.drop(s)
			if s.Drop != nil && s.Drop.Done {
				carried = append(carried, r.Name)
				said = append(said, why)
			}
			if alone {
				d := st.retry(carried, nil, why, notes)
				d.Again = AgainDropped
				return d
			}
			kind := notApplicable
			if s.Drop == nil || !s.Drop.Done {
				kind = refused
			}
			notes = append(notes, Note{r.Name, kind, why})
			continue
		}
		for _, a := range r.Does {
			t := st.do(a, r)
			if t.ok() {
				return st.retry(append(carried, r.Name), t.step, strings.Join(append(said, t.why), "; "), notes)
			}
			t.note.Rung = r.Name
			notes = append(notes, t.note)
			if t.advice != "" && !slices.Contains(advice, t.advice) {
				advice = append(advice, t.advice)
			}
		}
	}
	return l.end(st, notes, advice)
}

// end is the decision where no rung is left.
func (l Ladder) end(st *state, notes []Note, advice []string) Decision {
	s := st.s
	d := Decision{Act: "stop", Notes: notes, Knobs: st.now, Status75: allOOM(s.Past)}
	switch {
	case s.Job.Unsure != "":
		// Nothing was turned, so the ladder is not used up either.
		d.Status75 = false
		d.Stop = StopNoRungs
		d.Why = fmt.Sprintf("the command is not changed (%s): only the same settings could be tried again", s.Job.Unsure)
		d.Advice = append(d.Advice, "start the trainer in a way that sparkrun sees through, or tell it the knobs (--knob seq_len=4096 -- COMMAND --len {seq_len})")
	case !turnable(s):
		d.Stop = StopNoRungs
		d.Why = "no setting of this command is known to sparkrun, so nothing can be made smaller"
		if s.Job.Opaque != "" && s.Job.ShimRefused == "" {
			d.Advice = append(d.Advice, reachWithShim)
		}
		d.Advice = append(d.Advice, "tell sparkrun where length and batch go, as in: sparkrun --knob seq_len=4096 --knob micro_batch=8 --knob accumulation=1 -- COMMAND --len {seq_len} --bs {micro_batch} --accum {accumulation}")
	case st.only != nil && len(st.only.Turns) == 0:
		d.Stop = StopNothingLeft
		d.Why = st.only.Why
		d.Advice = append(d.Advice, st.only.Advice)
	case st.phase == phaseEval:
		d.Stop = StopNothingLeft
		d.Why = "it died in evaluation, and the evaluation batch cannot be made smaller"
		d.Advice = append(d.Advice, st.only.Advice)
	default:
		d.Stop = StopUsedUp
		d.Why = "the ladder is used up: every rung was taken, refused or cannot help"
		d.Advice = advice
		if st.only != nil {
			d.Advice = append(d.Advice, st.only.Advice)
		}
		if s.Job.Knobs[job.Method].Value == "qlora" && st.diedInTraining() {
			d.Advice = append(d.Advice, "that QLoRA ran out of memory is no proof that the model does not fit: 4-bit weights are unpacked into buffers that come and go, and LoRA in bfloat16 has none of them where its weights fit")
		}
		d.Advice = append(d.Advice, "take a smaller model, or spread this one over more machines")
	}
	return d
}

// retry is the decision to start again with a step down, or with none.
func (st *state) retry(rungs []string, step []trainer.Change, why string, notes []Note) Decision {
	knobs := st.now.Clone()
	for _, c := range step {
		set := knobs[c.Knob]
		set.Value = c.To
		knobs[c.Knob] = set
	}
	d := Decision{Act: "retry", Rungs: rungs, Step: step, Knobs: knobs, Why: why, Notes: notes}
	for _, k := range turned {
		from, to := st.s.Job.Knobs[k].Value, knobs[k].Value
		if from == to {
			continue
		}
		c := trainer.Change{Knob: k, From: from, To: to, Reason: "from an earlier rung"}
		for _, fresh := range step {
			if fresh.Knob == k {
				c.Reason = fresh.Reason
			}
		}
		d.Changes = append(d.Changes, c)
	}
	return d
}

// drop says whether the drop that was made earns an attempt of its own, and
// what came of it.
func (l Ladder) drop(s Situation) (alone bool, why string) {
	d := s.Drop
	switch {
	case d == nil && !s.CanDrop:
		return false, "caches are not to be dropped (--drop-caches never)"
	case d == nil:
		return false, "caches were not dropped"
	case !d.Done:
		return false, "caches were not dropped: " + orUnknown(d.Err)
	}
	freed := float64(d.FreedKiB) / (1 << 20)
	what := fmt.Sprintf("dropping caches freed %s GiB", strconv.FormatFloat(max(freed, 0), 'f', 1, 64))
	if d.How == "files" {
		what = strings.Replace(what, "dropping caches", "dropping this job's files from the cache", 1)
	}
	last := s.Past[len(s.Past)-1]
	name := l.dropRung(s)
	// One at the start, and one more after each death that left a new
	// checkpoint behind to go on from.
	tried := false
	for _, p := range s.Past {
		tried = tried || len(p.Rungs) == 1 && p.Rungs[0] == name
	}
	short := time.Duration(l.rules.Drop.ShortAttemptMin * float64(time.Minute))
	switch {
	case last.Lost:
		return false, what + ", but the machine froze or lost power: the next attempt has to need less"
	case slices.Contains(l.rules.Drop.NeverAlone, last.Kind) && !(last.Progressed && s.CanResume):
		return false, what + ", which had counted as available already: the next attempt has to need less"
	case tried && !(last.Progressed && s.CanResume):
		return false, what + ", which did not help by itself before"
	case freed < l.rules.Drop.MinFreedGiB:
		return false, what + ", too little for an attempt of its own"
	case d.MissingKiB.OK && float64(d.FreedKiB) < d.MissingKiB.V:
		return false, what + fmt.Sprintf(", less than the %.1f GiB that were missing", d.MissingKiB.V/(1<<20))
	case last.Duration >= short && !s.CanResume && !l.rules.Phases[last.Phase].Alone:
		return false, what + fmt.Sprintf(", but the attempt ran %s and cannot resume, so the next one does more", clock.Span(last.Duration))
	}
	if s.CanResume && last.Progressed {
		return true, what + ": resuming with the same settings"
	}
	return true, what + ": the same settings again"
}

func allOOM(past []Past) bool {
	for _, p := range past {
		if p.Answer != AnswerOOM {
			return false
		}
	}
	return len(past) > 0
}
