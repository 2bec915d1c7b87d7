package ladder

import (
	"fmt"
	"slices"
	"strings"

	"sparkrun/internal/job"
)

// Forecast is the start line: every rung that may fire, in order, with the
// values it would go through. It is made by letting the rungs act on a job that
// always dies in training.
func (l Ladder) Forecast(j job.Job, s Situation) string {
	s.Job, s.Past, s.Drop = j, nil, nil
	switch {
	case s.NoRetry:
		return "no retries (--no-retry)"
	case j.Container != nil && !s.ContainerEnds:
		return fmt.Sprintf("no retries: the training runs inside a container of %s, and whether its processes are gone cannot be known", j.Container.Engine)
	case j.Container != nil:
		text := fmt.Sprintf("the settings inside the container of %s are out of reach", j.Container.Engine)
		if s.CanDrop && l.dropRung(s) != "" {
			return "may: drop caches; " + text
		}
		return "no rung can fire: " + text
	case j.Nodes > 1:
		return fmt.Sprintf("no retries: the job spans %d machines, and all of them would have to change together", j.Nodes)
	}
	st := l.newState(s)
	var parts, refusals []string
	for _, r := range l.rungs {
		if s.Deny[r.Name] {
			continue
		}
		if slices.Contains(r.Does, dropCaches) {
			if s.CanDrop {
				parts = append(parts, "drop caches")
			}
			continue
		}
		for _, a := range r.Does {
			if text := st.all(a, r); text != "" {
				parts = append(parts, text)
				continue
			}
			if t := st.do(a, r); t.note.Kind == refused && !s.Exact {
				refusals = append(refusals, "not "+r.Name+": "+t.note.Why)
			}
		}
	}
	text := "no rung can fire"
	if len(parts) > 0 {
		text = "may: " + strings.Join(parts, ", ")
	}
	if !turnable(j) {
		text += "; no setting of the command is known (tell them: --knob seq_len=4096 -- COMMAND --len {seq_len})"
	}
	if len(refusals) > 0 {
		text += "; " + strings.Join(refusals, "; ")
	}
	return text
}

// all lets one action act until it has nothing left, and says what it went
// through.
func (st *state) all(action string, r rung) string {
	knob := map[string]job.Knob{length: job.SeqLen, microBatch: job.MicroBatch}[action]
	values := []string{st.now[knob].Value}
	for {
		t := st.do(action, r)
		if !t.ok() {
			break
		}
		for _, c := range t.step {
			set := st.now[c.Knob]
			set.Value = c.To
			st.now[c.Knob] = set
		}
		if action == length {
			st.halved++
		}
		values = append(values, st.now[knob].Value)
	}
	if len(values) == 1 {
		return ""
	}
	switch action {
	case length:
		return "length " + strings.Join(values, " -> ")
	case microBatch:
		return "micro-batch " + strings.Join(values, " -> ") + " (same effective batch)"
	case gradCkpt:
		return "activation checkpointing"
	case fullToLoRA:
		return "then LoRA (a different experiment; --deny " + r.Name + ")"
	}
	return "then LoRA in 16 bit (a different experiment; --deny " + r.Name + ")"
}
