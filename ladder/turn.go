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
	// smaller is set where the effective batch becomes smaller.
	smaller bool
	note    Note
	// advice goes with a refusal that the user can lift.
	advice string
}

func (t turn) ok() bool { return len(t.step) > 0 }

func no(kind, format string, args ...any) turn {
	return turn{note: Note{Kind: kind, Why: fmt.Sprintf(format, args...)}}
}

// noLength is the answer for trainers of images.
var noLength = no(notApplicable, "images have no length, and their resolution is never touched")

// ended says that an action has nothing left to give.
func ended(format string, args ...any) turn {
	t := no(notApplicable, format, args...)
	t.ended = true
	return t
}

// state is the situation as an action sees it.
type state struct {
	s   Situation
	now job.Knobs
	// phase is where the last attempt died.
	phase string
	// only says what helps against the last death; nil where everything may.
	only *helps
	// triedOnce is set where a cut has already been answered by another death of the
	// same sort.
	triedOnce bool
	// halved counts how often the length was halved so far.
	halved int
	// rungs are the ladder's, taken those of a list of attempts that have been taken.
	rungs []rung
	taken map[string]bool
}

// most bounds the numbers that are taken for a length or a batch: more is a mistake,
// and products of them stay whole.
const most = 1 << 31

// number returns a whole-number setting in force, 0 if it is not known.
func (st *state) number(k job.Knob) int64 {
	n, err := strconv.ParseInt(st.now[k].Value, 10, 64)
	if err != nil || n < 1 || n > most {
		return 0
	}
	return n
}

func (st *state) change(k job.Knob, to, reason string) trainer.Change {
	return trainer.Change{Knob: k, From: st.now[k].Value, To: to, Reason: reason}
}

// do returns what one action of a rung does to the settings in force.
func (st *state) do(action string, r rung) turn {
	if action == settingsOf {
		return st.settings(r)
	}
	if b := st.only; b != nil {
		switch {
		case action == microBatch && slices.Contains(b.Turns, evalBatch):
			return st.evalBatch()
		case !st.helps(action):
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
		return st.sixteenBit(r)
	}
	return no(notApplicable, "sparkrun does not know the action %q", action)
}

// helps says whether an action can help against the last death.
func (st *state) helps(action string) bool {
	b := st.only
	return b == nil || slices.Contains(b.Turns, action) || slices.Contains(b.Once, action) && !st.triedOnce
}

// floor is how short a rung may make the length.
func (st *state) floor(r rung) int64 { return max(r.Floor, st.s.Floor, st.s.Job.Floor) }

// shorten halves the length, at most r.Halvings times and not below the floor.
func (st *state) shorten(r rung) turn {
	if st.s.Job.Image {
		return noLength
	}
	w, t := st.reach(job.SeqLen)
	n, value, floor := st.number(job.SeqLen), st.now[job.SeqLen].Value, st.floor(r)
	switch {
	case !w.ok:
		return t
	case st.s.Exact:
		return no(refused, "--exact: a shorter length changes what is learned")
	case w.half && value == Half:
		return ended("the length was halved by the shim, which has not told how long it is")
	case w.half:
		return turn{
			step: []trainer.Change{st.change(job.SeqLen, Half, "half the length")},
			why:  "length / 2, by the shim (its value is not known; tokens per optimizer step at most half); " + st.longRows(),
		}
	case n == 0:
		return no(notApplicable, "the length is %s, which is no number that can be halved", value)
	case st.halved >= r.Halvings:
		return ended("the length was halved %d times already", st.halved)
	case n/2 < floor:
		return ended("length %d is at its end: half of it is below %d", n, floor)
	case !st.allowed(job.SeqLen, n/2):
		return no(refused, "half of length %d is %d, and the command takes only %s", n, n/2, strings.Join(st.choices(job.SeqLen), ", "))
	}
	step := []trainer.Change{st.change(job.SeqLen, strconv.FormatInt(n/2, 10), "half the length")}
	acc, said := st.number(job.Accumulation), ""
	toAcc := acc
	if st.packed() && st.number(job.MicroBatch) == 1 && acc > 0 && !st.global() {
		// One packed row is the whole pass: half its length is half of what a step
		// learns from.
		toAcc, said = st.keepTokens(acc)
	}
	if toAcc != acc {
		step = append(step, st.change(job.Accumulation, strconv.FormatInt(toAcc, 10), "as many tokens in a step as before"))
	}
	parts := []string{st.planned(toAcc == acc)}
	if text := st.tokens(n, n/2, acc, toAcc); text != "" {
		parts = []string{text, parts[0]}
	}
	why := fmt.Sprintf("length %d -> %d", n, n/2)
	if toAcc != acc {
		why += fmt.Sprintf(" with accumulation %d -> %d", acc, toAcc)
	}
	why += w.shimmed() + " (" + strings.Join(parts, ", ") + said + "); " + st.longRows()
	return turn{step: step, why: why}
}

// longRows says what becomes of rows that are longer than the new length.
func (st *state) longRows() string {
	if say := st.s.Job.LongRows; say != "" {
		return "rows longer than that " + say
	}
	return "what becomes of longer rows is the script's affair"
}

// keepTokens doubles accumulation where the user allows it, and else says that it could.
func (st *state) keepTokens(acc int64) (to int64, said string) {
	w, t := st.reach(job.Accumulation)
	switch {
	case !st.s.Allow[AllowKeepTokens]:
		return acc, "; --allow " + AllowKeepTokens + " doubles accumulation with it"
	case !w.ok:
		return acc, "; tokens are not kept: " + t.note.Why
	case 2*acc > most || !st.allowed(job.Accumulation, 2*acc):
		return acc, fmt.Sprintf("; tokens are not kept: the command does not take accumulation %d", 2*acc)
	}
	return 2 * acc, ""
}

// checkpointing turns activation checkpointing on.
func (st *state) checkpointing() turn {
	w, t := st.reach(job.GradCkpt)
	if !w.ok {
		return t
	}
	value := st.now[job.GradCkpt].Value
	on, err := strconv.ParseBool(value)
	switch {
	case err != nil:
		return no(notApplicable, "activation checkpointing is %s, which is neither on nor off", value)
	case on:
		return ended("activation checkpointing is on already")
	}
	return turn{
		step: []trainer.Change{st.change(job.GradCkpt, "True", "activations are computed again instead of kept")},
		why:  "activation checkpointing on" + w.shimmed() + " (slower steps, the same training)",
	}
}

func orUnknown(text string) string {
	if text == "" {
		return "(unknown)"
	}
	return text
}
