package ladder

import (
	"fmt"
	"slices"
	"strconv"

	"sparkrun/internal/job"
)

// way is how a knob can be turned.
type way struct {
	ok bool
	// shim says that only the shim turns it; half that its value is not known, so that
	// the shim can only halve what it sees.
	shim, half bool
}

// reach says how a knob can be turned, or in the turn why it cannot.
func (st *state) reach(k job.Knob) (way, turn) {
	j := st.s.Job
	typed, name := j.Knobs[k], the(k)
	known := typed.Value != ""
	switch {
	case j.Unsure != "":
		return way{}, no(notApplicable, "the command is not changed: %s", j.Unsure)
	case st.s.Fixed[k] != "":
		return way{}, no(refused, "%s cannot be turned: %s", name, st.s.Fixed[k])
	case k == job.Accumulation && st.ownLoop(k):
		return way{}, no(refused, "%s stands in the script's code, and %s", name, loopKeeps)
	case !known && (j.Opaque == "" || !halvable[k]):
		return way{}, no(notApplicable, "%s is not a setting that sparkrun can turn here", name)
	case known && typed.Source != job.FromScript:
		return way{ok: true}, turn{}
	}
	// Only the shim is left.
	what := name + " stands in the script's code"
	if typed.Where != "" {
		what += " (" + typed.Where + ")"
	}
	if !known {
		what = fmt.Sprintf("%s is not seen (%s)", name, j.Opaque)
	}
	switch at, stuck := st.s.stuck[k]; {
	case j.ShimRefused != "":
		return way{}, no(refused, "%s, and the shim cannot reach it: %s", what, j.ShimRefused)
	case st.s.Shim == ShimNever:
		t := no(refused, "%s, where only the shim reaches it (--shim never)", what)
		t.advice = reachWithShim
		return way{}, t
	case stuck:
		return way{}, no(notApplicable, "the shim did not reach %s in attempt %d, so that is not tried again", name, at)
	}
	return way{ok: true, shim: true, half: !known}, turn{}
}

// reachWithShim is the advice where --shim never is what bars a rung.
const reachWithShim = "--shim auto lets sparkrun turn what stands in the script's code"

// the names a knob in the middle of a sentence.
func the(k job.Knob) string {
	switch k {
	case job.GradCkpt, job.LoadIn4Bit, job.Accumulation:
		return words[k]
	}
	return "the " + words[k]
}

// halvable are the knobs that the shim can make smaller without knowing them.
var halvable = map[job.Knob]bool{job.SeqLen: true, job.MicroBatch: true, job.EvalBatch: true}

// byShim says whether a change of the knob is the shim's to make.
func (st *state) byShim(k job.Knob) bool {
	set := st.s.Job.Knobs[k]
	return set.Source == job.FromScript || set.Value == "" && st.s.Job.Opaque != ""
}

// shimmed ends a sentence about a change that the shim makes.
func (w way) shimmed() string {
	if w.shim {
		return ", by the shim"
	}
	return ""
}

// allowed says whether the command takes this value for the knob.
func (st *state) allowed(k job.Knob, value int64) bool {
	choices := st.s.Job.Knobs[k].Choices
	if value < st.s.Job.Knobs[k].Min {
		return false
	}
	return len(choices) == 0 || slices.ContainsFunc(choices, func(c string) bool {
		n, err := strconv.ParseInt(c, 10, 64)
		return err == nil && n == value
	})
}

// turnable says whether the job has any setting that a rung could turn.
func turnable(s Situation) bool {
	for _, k := range []job.Knob{job.SeqLen, job.MicroBatch, job.Method, job.GradCkpt} {
		if s.Job.Knobs[k].Value != "" {
			return true
		}
	}
	return s.Job.Opaque != "" && s.Job.ShimRefused == "" && s.Shim != ShimNever
}
