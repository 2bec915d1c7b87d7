package supervisor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer"
	"sparkrun/preflight"
	"sparkrun/preflight/headroom"
)

// firstStep asks the run's own ladder for the change to start from, as `sparkrun plan`
// does. It works on copies: a preflight may leave a call behind.
func firstStep(o Options, set *trainer.Set, lad ladder.Ladder, j job.Job) func(headroom.Spec, headroom.Estimate, preflight.Budget) *preflight.Step {
	j.Knobs = j.Knobs.Clone()
	return func(spec headroom.Spec, est headroom.Estimate, b preflight.Budget) *preflight.Step {
		r := &run{o: o, set: set, lad: lad, job: j, asked: j, looked: &looked{fixed: set.Fixed(j)}}
		r.modelRead(spec.Model)
		return r.planStart(j, PlanOptions{Options: o}, spec, est, b)
	}
}

// planStart finds the change to start from for an estimate that is tight or over: where
// there is a command, a step of the run's own ladder, so that the same change is proposed
// which a death would lead to; else one of the runbook's. Of a shell script the ladder
// sees the script alone, and what it starts is changed by hand. nil is nothing to say.
func (r *run) planStart(typed job.Job, o PlanOptions, spec headroom.Spec, est headroom.Estimate, b preflight.Budget) *preflight.Step {
	r.job = typed
	if typed.Inner == nil {
		r.job.Knobs = tell(typed.Knobs, o.Told)
	}
	rung, err := headroom.FirstRung(spec, b.Bytes)
	if err != nil || rung.Words == "" {
		return nil
	}
	elsewhere := b.Elsewhere(est)
	if rung.Name == headroom.Smaller && elsewhere != "" {
		return &preflight.Step{Words: elsewhere, Knobs: map[string]string{}, Changes: []string{}}
	}
	if len(o.Argv) == 0 || headroom.OnlyLoading(est, b.Bytes) || est.Impossible != "" || rung.Name == "" && (est.MethodAssumed || est.Loads32) {
		s := preflight.StepOf(rung)
		return &s
	}
	on := false
	if with, off := headroom.Checkpointed(spec); off && rung.Knobs[string(job.GradCkpt)] != "" {
		// No rung, and before all of them.
		spec, on = with, true
		if est, err = with.Estimate(); err != nil {
			return nil
		}
		o.Told = maps.Clone(o.Told)
		if o.Told == nil {
			o.Told = map[job.Knob]string{}
		}
		o.Told[job.GradCkpt] = "true"
		if typed.Inner == nil {
			r.job.Knobs = tell(r.job.Knobs, map[job.Knob]string{job.GradCkpt: "true"})
		}
	}
	if rung.Name == headroom.Checkpointing {
		s := preflight.StepOf(rung)
		s.ByHand = true
		if err := r.makeLine(&s, trained(typed), o, nil); err != nil {
			s.Line, s.Changes = "", []string{}
		}
		return &s
	}
	for again := true; again; {
		var start *preflight.Step
		if start, again = r.tryStart(typed, o, spec, est, b); start != nil {
			if on {
				start.Knobs[string(job.GradCkpt)] = "true"
				start.Words = headroom.CheckpointingWords + "; then " + start.Words
			}
			return start
		}
	}
	return r.byHand(typed, o, rung, b)
}

// preview walks the ladder down as if every attempt died in a budget.
func (r *run) preview(b preflight.Budget) []ladder.RungView {
	s := r.situation(nil)
	// Nothing has died: whether a retry could follow is no matter.
	s.NoRetry, s.ContainerEnds, s.Job.Nodes = false, true, 0
	s.BudgetBytes, s.SixteenBit = sample.Known(float64(b.Available)), r.sixteenBit(b.Bytes)
	return r.lad.Preview(s)
}

// tryStart chooses among the steps of the ladder. It is to be asked again where a step
// was found to be one that cannot be made in this command.
func (r *run) tryStart(typed job.Job, o PlanOptions, spec headroom.Spec, est headroom.Estimate, b preflight.Budget) (start *preflight.Step, again bool) {
	var views []ladder.RungView
	var steps []headroom.Candidate
	for _, v := range r.preview(b) {
		if !v.Allowed || len(v.Changes) == 0 || slices.ContainsFunc(v.Changes, func(c trainer.Change) bool { return c.To == ladder.Half }) {
			continue
		}
		j := trained(r.job)
		j.Knobs = changed(tell(j.Knobs, o.Told), v.Changes)
		views = append(views, v)
		steps = append(steps, headroom.Candidate{Spec: headroom.FromJob(&j, spec.Model), Other: v.OtherExperiment})
	}
	for len(views) > 0 {
		at, peak, err := headroom.Pick(est, b.Bytes, steps)
		if err != nil || at < 0 {
			return nil, false
		}
		v := views[at]
		start := &preflight.Step{
			Rung: v.Name, Words: startWords(typed, v), Knobs: map[string]string{}, Peak: peak,
			Changes: []string{}, OtherExperiment: v.OtherExperiment,
		}
		for _, c := range v.Changes {
			start.Knobs[string(c.Knob)] = c.To
		}
		if err = r.makeLine(start, typed, o, v.Changes); err == nil {
			return start, false
		}
		if r.refuseStep(v.Step, err) {
			return nil, true
		}
		views, steps = slices.Delete(views, at, at+1), slices.Delete(steps, at, at+1)
	}
	return nil, false
}

// byHand is what is left where no step that the ladder may take with this command is
// enough: the runbook's step, to be made by hand, or what a consent would open.
func (r *run) byHand(typed job.Job, o PlanOptions, rung headroom.Rung, b preflight.Budget) *preflight.Step {
	s := preflight.StepOf(rung)
	if rung.Name == "" || len(rung.Knobs) == 0 {
		return &s
	}
	none := "no step that ladder " + r.lad.Name + " may take here makes it fit"
	in := trained(typed)
	if in.From != "" {
		none = "a run changes nothing of what " + in.From + " says"
	} else if why := refusals(r.preview(b), rung.Name); why != "" {
		none += " (" + why + ")"
	}
	// A step keeps the changes of those before it.
	takes := []string{rung.Name}
	if rung.Knobs[string(job.SeqLen)]+rung.Knobs[string(job.MicroBatch)] != "" {
		takes = append(takes, "shorter-packing")
	}
	forbidden := ""
	for _, name := range takes {
		if slices.Contains(o.Deny, name) {
			forbidden = "--deny " + name
		}
	}
	if o.Exact {
		forbidden = "--exact"
	}
	if forbidden != "" {
		return &preflight.Step{
			Rung: "smaller-model", Words: none + "; without " + forbidden + ": " + rung.Name + ", " + rung.Words + ", about " + headroom.GB(rung.Peak),
			Knobs: map[string]string{}, Changes: []string{},
		}
	}
	s.ByHand, s.Words = true, rung.Words+"; by hand, for "+none
	if _, batch := rung.Knobs[string(job.MicroBatch)]; batch && rung.Knobs[string(job.Accumulation)] == "" {
		return &s // a line would make the effective batch smaller
	}
	var changes []trainer.Change
	for _, k := range slices.Sorted(maps.Keys(rung.Knobs)) {
		changes = append(changes, trainer.Change{Knob: job.Knob(k), From: r.job.Knobs[job.Knob(k)].Value, To: rung.Knobs[k]})
	}
	if err := r.makeLine(&s, in, o, changes); err != nil {
		s.Line, s.Changes = "", []string{}
	}
	return &s
}

// refusals says why the rung of that name is not taken, or where there is none, the others.
func refusals(views []ladder.RungView, name string) string {
	own := slices.ContainsFunc(views, func(v ladder.RungView) bool { return !v.Allowed && v.Name == name })
	var why []string
	for _, v := range views {
		if v.Allowed || own && v.Name != name {
			continue
		}
		if text := v.Name + ": " + v.Reason; !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	return strings.Join(why, "; ")
}

// startWords says all that a step and those before it change.
func startWords(typed job.Job, v ladder.RungView) string {
	var words []string
	for _, c := range v.Changes {
		from := typed.Knobs[c.Knob].Value
		if from == "" {
			from = "(not set)"
		}
		words = append(words, fmt.Sprintf("%s %s -> %s", knobName(c.Knob), from, c.To))
	}
	text := strings.Join(words, ", ")
	if v.OtherExperiment {
		text += ", which is a different experiment"
	}
	return text
}

func changed(knobs job.Knobs, changes []trainer.Change) job.Knobs {
	out := knobs.Clone()
	for _, c := range changes {
		set := out[c.Knob]
		set.Value = c.To
		out[c.Knob] = set
	}
	return out
}

// makeLine makes the command line with the changes, and with what the flags told beside
// them. A change that needs a copy of a file or the shim is said in words: it is the
// user's to make.
func (r *run) makeLine(start *preflight.Step, typed job.Job, o PlanOptions, changes []trainer.Change) error {
	all, byHand := []trainer.Change{}, []string{}
	for _, k := range slices.Sorted(maps.Keys(o.Told)) {
		known := typed.Knobs[k].Value
		// What the command does not show it was only told: that is no change.
		if k == job.Model || known == "" || known == o.Told[k] || slices.ContainsFunc(changes, func(c trainer.Change) bool { return c.Knob == k }) {
			continue
		}
		if ok, why := r.set.CanTurn(typed, k); !ok {
			byHand = append(byHand, fmt.Sprintf("%s %s -> %s: %s", knobName(k), known, o.Told[k], why))
			continue
		}
		all = append(all, trainer.Change{Knob: k, From: known, To: o.Told[k], Reason: "told by --" + PlanFlags[k]})
	}
	users := len(all) == 0
	for _, c := range changes {
		c.From = typed.Knobs[c.Knob].Value
		all = append(all, c)
		users = users && typed.Knobs[c.Knob].Source == job.FromUser
	}
	rw, err := r.set.Rewrite(typed, trainer.Request{
		Changes: all, Env: o.Env, RunID: "plan", Attempt: 1, Shim: o.Shim, SmallerBatch: r.smallerBatch(), AttemptDir: o.Dir,
	})
	if err != nil {
		return err
	}
	start.Changes = append(append(start.Changes, rw.Diff...), byHand...)
	if model, known := o.Told[job.Model], typed.Knobs[job.Model].Value; model != "" && known != "" && model != known {
		byHand = append(byHand, "model "+known+" -> "+model)
		start.Changes = append(start.Changes, byHand[len(byHand)-1])
	}
	// A line that leaves something out would be another training than the one reckoned, and
	// what stands in a script is the user's to change there.
	if typed.From != "" || len(byHand) > 0 || rw.Shim != nil || slices.ContainsFunc(rw.Files, func(f trainer.File) bool { return f.Original != "" }) {
		for i, c := range start.Changes {
			start.Changes[i] = strings.TrimSuffix(c, " (by the shim)") // by whom, the reader decides
		}
		return nil
	}
	words := []string{o.Prog}
	for _, k := range slices.Sorted(maps.Keys(o.Knobs)) {
		value := o.Knobs[k]
		for _, c := range all {
			if string(c.Knob) == k {
				value = c.To
			}
		}
		words = append(words, "--knob", k+"="+value)
	}
	argv := rw.Argv
	if users {
		argv = o.Argv // its placeholders take the new values
	}
	start.Line = strings.Join([]string{shellLine(words), "--", shellLine(argv)}, " ")
	return nil
}
