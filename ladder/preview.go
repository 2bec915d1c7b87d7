package ladder

import (
	"fmt"
	"slices"

	"sparkrun/internal/job"
	"sparkrun/ladder/trainer"
)

// Preview walks the whole ladder down as if every attempt died in training: each
// action of each rung in the order in which it would be taken, and those that would
// not be with the reason. Nothing runs and nothing is read. Past deaths of the
// situation do not count.
func (l Ladder) Preview(s Situation) []RungView {
	steps := l.walk(s)
	views := make([]RungView, len(steps))
	for i, w := range steps {
		views[i] = w.view
	}
	return views
}

// preview is one step of a walk with what it is made of.
type preview struct {
	view RungView
	turn turn
	// before and now are the settings in force without it and with it.
	before, now job.Knobs
	// byShim says that the step itself, and not one before it, needs the shim.
	byShim bool
}

// walk is Preview, with more than a reader needs.
func (l Ladder) walk(s Situation) []preview {
	s.Past, s.Drop = nil, nil
	barred := s.barred()
	st := l.newState(s)
	var all []preview
	passed := make([][]preview, len(l.rungs)) // attempts of a list that are not taken
	for i := 0; i < len(l.rungs); i++ {
		r := l.rungs[i]
		if i == 0 && len(all) > 0 && r.set == nil {
			continue // a list with drop-caches at its head, once more
		}
		passed[i] = nil
		for _, a := range r.Does {
			t, shut := closed(s, r, a, barred)
			if a == dropCaches && !shut {
				all = append(all, preview{view: RungView{Name: r.Name, Action: a, Allowed: true, Reason: "between attempts, with the same settings"}, before: st.now, now: st.now})
				continue
			}
			if !shut {
				t = st.do(a, r)
			}
			p := preview{view: RungView{Name: r.Name, Action: a, Kind: t.note.Kind, Reason: t.note.Why}, turn: t, before: st.now, now: st.now}
			switch {
			case t.ok() || st.taken[r.Name]:
			case r.set != nil:
				passed[i] = []preview{p}
			default:
				all = append(all, p)
			}
			for ; t.ok(); t = st.do(a, r) {
				all = append(all, st.take(r, a, t))
				if r.set != nil {
					st.taken[r.Name] = true
					i = -1 // as Next does: what was passed over may be open now
				}
			}
		}
	}
	return append(all, slices.Concat(passed...)...)
}

// take lets a step act on the state and says what it was.
func (st *state) take(r rung, action string, t turn) preview {
	d := st.retry(nil, t.step, t.why, nil)
	needs := func(c trainer.Change) bool { return st.byShim(c.Knob) }
	p := preview{turn: t, byShim: slices.ContainsFunc(t.step, needs), before: st.now, now: d.Knobs, view: RungView{
		Name: r.Name, Action: action, Allowed: true, Reason: t.why, Step: t.step, Changes: d.Changes,
		OtherExperiment: st.s.otherMethod(d.Knobs),
		Shim:            slices.ContainsFunc(d.Changes, needs),
	}}
	if action == length {
		st.halved++
		if t.step[0].To == Half && r.Halvings > 1 {
			p.view.Reason += fmt.Sprintf(" (again once the shim has seen its value, %d times in all)", r.Halvings)
		}
	}
	st.now = d.Knobs
	return p
}

// barred says why no attempt follows the first at all; "" where one may.
func (s Situation) barred() string {
	j := s.Job
	switch {
	case s.NoRetry:
		return "retries are off (--no-retry)"
	case j.Container != nil && !s.ContainerEnds:
		return fmt.Sprintf("the training runs inside a container of %s, and whether its processes are gone cannot be known", j.Container.Engine)
	case j.Nodes > 1:
		return fmt.Sprintf("the job spans %d machines, and all of them would have to change together", j.Nodes)
	}
	return ""
}

// closed answers for a rung that is not to be asked at all.
func closed(s Situation, r rung, action, barred string) (turn, bool) {
	switch {
	case barred != "":
		return no(refused, "%s", barred), true
	case s.Deny[r.Name]:
		return no(refused, "--deny %s", r.Name), true
	case action == dropCaches && !s.CanDrop:
		return no(refused, "caches are not to be dropped (--drop-caches never)"), true
	}
	return turn{}, false
}
