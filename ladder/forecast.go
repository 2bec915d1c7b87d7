package ladder

import (
	"slices"
	"strings"

	"sparkrun/internal/job"
)

// Forecast is the start line: every rung that may fire, in order, with the
// values it would go through, and what is refused with the reason. It is made by
// letting the rungs act on a job that always dies in training.
func (l Ladder) Forecast(j job.Job, s Situation) string {
	s.Job = j
	if s.NoRetry {
		return "no retries (--no-retry)"
	}
	if why := s.barred(); why != "" {
		return "no retries: " + why
	}
	steps := l.walk(s)
	var parts, refusals []string
	for i := 0; i < len(steps); {
		n := i + 1
		for n < len(steps) && steps[n].view.Name == steps[i].view.Name && steps[n].view.Action == steps[i].view.Action {
			n++
		}
		if text := spoken(steps[i:n]); steps[i].view.Allowed {
			parts = append(parts, text)
		} else if steps[i].view.Kind == refused && !s.Exact && !s.Deny[steps[i].view.Name] && steps[i].view.Action != dropCaches {
			refusals = append(refusals, text)
		}
		i = n
	}
	text := "no rung can fire"
	if len(parts) > 0 {
		text = "may: " + strings.Join(parts, ", ")
	}
	switch {
	case j.Unsure != "":
		text += "; no setting is changed: " + j.Unsure
	case !turnable(s) && j.Opaque == "":
		text += "; no setting of the command is known (tell them: --knob seq_len=4096 -- COMMAND --len {seq_len})"
	case !turnable(s):
		text += "; the settings of the command are not seen (" + j.Opaque + ")"
	}
	if j.Image && j.Unsure == "" {
		text += "; images: the resolution is never touched"
	}
	if j.SelfShrinks != "" && j.Unsure == "" {
		text += "; the batch is left to the trainer: " + j.SelfShrinks
	}
	if refusals = slices.Compact(refusals); len(refusals) > 0 {
		text += "; " + strings.Join(refusals, "; ")
	}
	return text
}

// spoken says what one action of a rung goes through, or why it is not taken.
func spoken(steps []preview) string {
	first := steps[0].view
	if !first.Allowed {
		switch first.Action {
		case length, microBatch, gradCkpt:
			return actionWords[first.Action] + " stays: " + first.Reason
		}
		return "not " + first.Name + ": " + first.Reason
	}
	by := ""
	if slices.ContainsFunc(steps, func(p preview) bool { return p.byShim }) {
		by = "by the shim"
	}
	switch first.Action {
	case dropCaches:
		return "drop caches"
	case length:
		return walked(job.SeqLen, steps) + brackets(by)
	case microBatch:
		same := "same effective batch"
		if steps[0].turn.smaller {
			same = "a smaller effective batch"
		}
		return walked(job.MicroBatch, steps) + brackets(same, by)
	case gradCkpt:
		return actionWords[gradCkpt] + brackets(by)
	case settingsOf:
		other := ""
		if first.OtherExperiment {
			other = "a different experiment; --deny " + first.Name
		}
		return first.Name + ": " + moves(steps[0].before, steps[0].now, " ") + brackets(by, other)
	case fullToLoRA:
		return "then LoRA" + brackets(by, "a different experiment; --deny "+first.Name)
	}
	return "then LoRA in 16 bit" + brackets(by, "a different experiment; --deny "+first.Name)
}

// actionWords are actions in a person's words.
var actionWords = map[string]string{length: words[job.SeqLen], microBatch: words[job.MicroBatch], gradCkpt: words[job.GradCkpt]}

// walked says the values that a knob goes through: "length 4096 -> 2048 -> 1024".
func walked(k job.Knob, steps []preview) string {
	text := words[k] + " " + steps[0].before[k].Value
	for _, p := range steps {
		if p.now[k].Value == Half {
			return words[k] + " / 2"
		}
		text += " -> " + p.now[k].Value
	}
	return text
}

// brackets puts what is not empty in brackets.
func brackets(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}
