package ladder

import (
	"fmt"
	"slices"

	"sparkrun/internal/job"
)

// settle answers everything that does not depend on the rungs: what must not be
// tried again, and what is tried again with the same settings. It is false where
// the rungs decide.
func (l Ladder) settle(s Situation) (Decision, bool) {
	stop := func(name, why string) (Decision, bool) {
		return Decision{Act: "stop", Stop: name, Why: why, Knobs: l.newState(s).now}, true
	}
	if len(s.Past) == 0 {
		return stop(StopSuccess, "nothing has run yet")
	}
	last := s.Past[len(s.Past)-1]
	switch last.Answer {
	case AnswerSuccess, "":
		return stop(StopSuccess, "the command succeeded")
	}
	if l.finished(s) {
		d, _ := stop(StopFinished, "the trainer had reported the end of the training, so it is not started again: what failed came after that")
		d.Advice = []string{"the training itself is done: take its last checkpoint and repeat only what came after it"}
		return d, true
	}
	watched := last.Answer == AnswerNotOOM && s.AgainAfter[last.Reason] > 0
	switch {
	case last.Answer == AnswerOOM, last.Answer == AnswerUnsure, watched:
	default:
		return l.notMemory(s), true
	}
	if s.NoRetry {
		return stop(StopNoRetry, "retries are off (--no-retry)")
	}
	if c := s.Job.Container; c != nil && !s.ContainerEnds {
		return stop(StopNoRungs, fmt.Sprintf("the training runs inside a container of %s, and whether its processes are gone is not known: nothing is started beside them", c.Engine))
	}
	if s.Job.Nodes > 1 {
		return stop(StopNoRungs, fmt.Sprintf("the job spans %d machines, and all of them would have to change together: no retry", s.Job.Nodes))
	}
	limit := s.MaxAttempts
	if limit <= 0 {
		limit = defaultMaxAttempts
	}
	if len(s.Past) >= limit {
		d, _ := stop(StopMaxAttempts, fmt.Sprintf("%d attempts were made, the most allowed (--max-attempts)", len(s.Past)))
		d.Status75 = allOOM(s.Past)
		return d, true
	}
	if watched {
		return l.afterWatch(s), true
	}
	if last.Answer == AnswerUnsure {
		if l.count(s, func(p Past) bool { return p.Answer == AnswerUnsure }) > l.rules.Again.Unsure {
			return stop(StopUnsureAgain, "once more it is not certain that memory was the reason")
		}
		return l.again(s, AgainUnsure, "it is not certain that memory was the reason: one retry with the same settings"), true
	}
	if l.coTenant(last) {
		if d, ok := l.afterCoTenant(s); ok {
			return d, true
		}
	}
	if advice, ok := l.noRung(s); ok {
		d, _ := stop(StopNoLever, "no rung helps against this: "+advice)
		d.Advice = []string{advice}
		for _, r := range l.rungs {
			d.Notes = append(d.Notes, Note{r.Name, notApplicable, "no setting of the ladder acts on a death of this kind (" + kindOf(last) + ")"})
		}
		return d, true
	}
	if last.Lost && l.count(s, func(p Past) bool { return p.Lost && p.Answer == AnswerOOM }) > l.rules.Lost.Retries {
		d, _ := stop(StopLostAgain, "the machine froze or lost power again although the settings had become smaller: it is not risked once more")
		d.Advice = []string{"start it by hand with clearly less: half the length and a micro-batch of 1, or a smaller model"}
		return d, true
	}
	if why, ok := l.sameDeath(s); ok {
		d, _ := stop(StopNotMemory, why)
		d.Advice = []string{"look at what does not depend on length or batch: a cache or list that grows, an evaluation or a callback at that step, one row of the data, another process"}
		return d, true
	}
	return Decision{}, false
}

// again is a retry with the same settings.
func (l Ladder) again(s Situation, because, why string) Decision {
	d := l.newState(s).retry(nil, nil, why, nil)
	d.Again = because
	return d
}

// afterWatch goes on from the checkpoint after an attempt that a watch ended, where the
// user asked for that: never from the beginning, which would end the same way a second
// time and lose what was trained.
func (l Ladder) afterWatch(s Situation) Decision {
	last := s.Past[len(s.Past)-1]
	d := Decision{Act: "stop", Stop: StopNotOOM, Knobs: l.newState(s).now}
	most := s.AgainAfter[last.Reason]
	switch n := l.count(s, func(p Past) bool { return p.Answer == AnswerNotOOM && p.Reason == last.Reason }); {
	case n > most:
		d.Why = fmt.Sprintf("ended for the same reason (%s) %d times: not started again", last.Reason, n)
	case !s.CanResume:
		d.Why = fmt.Sprintf("ended by a watch (%s), and there is no complete checkpoint to go on from: not started again", last.Reason)
	case last.Reason == "slowdown" && !last.Progressed:
		d.Why = "ended for its slowness, and it had saved nothing since its start: not started again"
	default:
		return l.again(s, AgainWatch, fmt.Sprintf("ended by a watch (%s): once more from the newest checkpoint, with the same settings", last.Reason))
	}
	return d
}

// count returns how many attempts of the run are of a sort.
func (l Ladder) count(s Situation, is func(Past) bool) int {
	n := 0
	for _, p := range s.Past {
		if is(p) {
			n++
		}
	}
	return n
}

// coTenant says whether another process took the memory.
func (l Ladder) coTenant(p Past) bool {
	c := l.rules.CoTenant
	return p.Answer == AnswerOOM && (slices.Contains(c.Kinds, p.Kind) || slices.Contains(c.Levers, p.Lever))
}

// afterCoTenant waits and starts again unchanged, so many times in a row: no rung is
// spent on what the job did not do. It is false where only a message spoke of other
// processes and waiting has not helped: then the rungs decide.
func (l Ladder) afterCoTenant(s Situation) (Decision, bool) {
	row := 0
	for i := len(s.Past) - 1; i >= 0 && l.coTenant(s.Past[i]); i-- {
		row++
	}
	who := "another process"
	if name := s.Past[len(s.Past)-1].CoTenant; name != "" {
		who += " (" + name + ")"
	}
	seen := slices.Contains(l.rules.CoTenant.Kinds, s.Past[len(s.Past)-1].Kind)
	most := l.rules.CoTenant.ByMessage
	if seen {
		most = l.rules.Again.CoTenant
	}
	if row <= most {
		return l.again(s, AgainCoTenant, who+" took the memory, so no rung is spent: the same settings again when memory is back"), true
	}
	if !seen {
		// It was there before and stays: what is left is to need less.
		return Decision{}, false
	}
	d := Decision{Act: "stop", Stop: StopCoTenant, Knobs: l.newState(s).now}
	d.Why = fmt.Sprintf("%s took the memory %d times in a row: waiting does not help any more", who, row)
	d.Advice = []string{"end " + who + " or move it elsewhere; the job itself needs no change"}
	return d, true
}

// finished says whether the training itself was done in some attempt.
func (l Ladder) finished(s Situation) bool {
	return slices.ContainsFunc(s.Past, func(p Past) bool {
		return p.Finished || p.Answer == AnswerOOM && slices.Contains(l.rules.Finished.Levers, p.Lever)
	})
}

// noRung returns what to do instead where no rung acts on the last death.
func (l Ladder) noRung(s Situation) (advice string, ok bool) {
	p := s.Past[len(s.Past)-1]
	if advice, ok = l.rules.NoRungKinds[p.Kind]; ok {
		return advice, true
	}
	for _, n := range l.rules.NoRungLevers {
		switch {
		case n.Lever != p.Lever,
			len(n.Kinds) > 0 && !slices.Contains(n.Kinds, p.Kind),
			len(n.Causes) > 0 && !slices.Contains(n.Causes, p.Cause):
			continue
		}
		return n.Advice, true
	}
	return "", false
}

// kindOf names a death: its kind, else its lever.
func kindOf(p Past) string {
	if p.Kind != "" {
		return p.Kind
	}
	return p.Lever
}

// newState looks at the settings in force and at the way that led to them.
func (l Ladder) newState(s Situation) *state {
	st := &state{s: s, now: s.Job.Knobs.Clone(), rungs: l.rungs, taken: map[string]bool{}}
	length := st.number(job.SeqLen)
	for i, p := range s.Past {
		for _, r := range p.Rungs {
			st.taken[r] = true
		}
		if p.Knobs != nil {
			st.now = p.Knobs.Clone()
		}
		n := st.number(job.SeqLen)
		if n > 0 && n < length {
			st.halved++
		}
		length = n
		st.phase = s.Past[i].Phase
	}
	if len(s.Past) == 0 {
		return st
	}
	last := s.Past[len(s.Past)-1]
	only, ok := l.rules.Phases[last.Phase]
	if !ok {
		only, ok = l.rules.Kinds[last.Kind]
	}
	if ok {
		st.only = &only
		for i, p := range s.Past {
			if sameKind(p, last) && smaller(s.knobs(i), st.now) {
				st.triedOnce = true
			}
		}
	}
	return st
}
