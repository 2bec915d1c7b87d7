package supervisor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer/checkpoint"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/acting"
	"sparkrun/supervisor/gate"
	"sparkrun/supervisor/guard"
	"sparkrun/supervisor/runlog"
)

// newMaxSlowdown makes the actor of --max-slowdown.
func (r *run) newMaxSlowdown(life context.Context) actor {
	h := r.o.Heat
	if h.SlowFactor <= 0 {
		return nil
	}
	return &maxSlowdown{r: r, life: life, rule: acting.Slow{Factor: h.SlowFactor, For: h.SlowFor}}
}

// maxSlowdown ends an attempt that has become too slow, where it can go on from a
// checkpoint: a process that is started anew has other memory, other clocks, another
// place on the processors.
type maxSlowdown struct {
	r    *run
	life context.Context //nolint:containedctx // it lives as long as the run
	rule acting.Slow
	// wedge is followed since no restart cures it.
	wedge acting.Wedge

	// kept is the pace of the first attempt with these settings, the attempt keptOf: one
	// that begins slow must not take that for normal.
	kept     throttle.Baseline
	keptOf   int
	keptWith string
	// attempt and block are those looked at last.
	attempt, block int

	// looking is set while it is found out whether the attempt could go on, next is when
	// that is asked again, told the attempt whose refusal was told.
	looking atomic.Bool
	next    time.Time
	told    atomic.Int64
}

// lookAgain is how often it is found out whether there is a checkpoint by now.
const lookAgain = time.Minute

func (m *maxSlowdown) sampled(s *sample.Sample, events []event.Event) {
	r := m.r
	m.wedge.Take(events)
	a := r.live.Load()
	if a == nil || a.n != s.Attempt || a.exit.Load() != nil {
		return
	}
	if a.n != m.attempt {
		m.attempt, m.block = a.n, 0
		if with := settingsOf(a.theJob().Knobs); with != m.keptWith {
			m.kept, m.keptWith = throttle.Baseline{}, with
		}
	}
	r.mu.Lock()
	pace := r.detector.Slowness(m.kept)
	if pace.Attempt == a.n && pace.Block != m.block {
		m.block = pace.Block
		if b := r.detector.Baseline(); b.Known() && (!m.kept.Known() || m.keptOf == a.n) {
			m.kept, m.keptOf = b, a.n
		}
	}
	r.mu.Unlock()
	if pace.Attempt != a.n || !m.rule.Take(pace) || a.watched.Load() != nil || s.T.Before(m.next) || m.looking.Swap(true) {
		return
	}
	m.next = s.T.Add(max(min(lookAgain, m.rule.For/2), time.Second))
	rule, wedged := m.rule, m.wedge.In // as they are now
	go func() {
		defer m.looking.Store(false)
		m.consider(a, &rule, wedged)
	}()
}

func (m *maxSlowdown) stop() {}

// settingsOf are the settings that decide how long a step takes, as one text.
func settingsOf(k job.Knobs) string {
	var out []string
	for _, name := range k.Names() {
		if name != job.OutputDir && name != job.ResumeFrom {
			out = append(out, string(name)+"="+k[name].Value)
		}
	}
	return strings.Join(out, " ")
}

// consider ends the attempt if it could go on, and else tells once why it is let run.
// The disk is read here, the decision is the loop's.
func (m *maxSlowdown) consider(a *attempt, rule *acting.Slow, wedged bool) {
	r := m.r
	j, ok := ask(m.life, r, func() (job.Job, bool) { return r.job, r.m.State == Running && r.att == a })
	if !ok {
		return
	}
	seen := r.lookWith(j, r.savedBy(a))
	other := ""
	if out := r.set.OutputFolder(a.theJob()); out != "" {
		if dir, err := r.markFolder(out); err == nil {
			other = otherMark(dir, r.dir.ID)
		}
	}
	tight := r.tooTight(a)
	why, ok := ask(m.life, r, func() (string, bool) { return r.wouldGoOn(a, seen), r.m.State == Running && r.att == a })
	if !ok {
		return
	}
	switch {
	case wedged:
		why = "it is the low-power wedge, which a new start does not cure: " + acting.WedgeCure
	case other != "":
		why = "run " + other + " saves in its folder too"
	case why == "":
		why = tight
	}
	words := rule.Words()
	data := map[string]any{
		"type": throttle.Slowdown, "ratio": rule.Ratio(), "lasted_s": rule.Lasted().Seconds(),
		"limit_factor": rule.Factor, "limit_s": rule.For.Seconds(),
	}
	if why != "" {
		if m.told.Swap(int64(a.n)) != int64(a.n) {
			r.log.Event(event.Event{Attempt: a.n, Kind: event.RunStop, Level: event.Warn, Msg: words + ", but it is let run: " + why, Data: data})
		}
		return
	}
	from, _ := checkpoint.NewestResumable(j.Resume.Layout, seen.saved.all)
	back := "its newest complete checkpoint"
	if from.Step != checkpoint.Unknown {
		back = fmt.Sprintf("the checkpoint of step %d", from.Step)
		data["checkpoint_step"] = from.Step
	}
	r.endWatched(a, watchEnd{
		name: slowEnd, by: runlog.BySparkrun, kind: runlog.EndStopped, grace: r.o.Grace,
		how: "ended: it had become too slow", words: words,
	}, event.Event{
		Kind: event.RunStop, Level: event.Warn, Msg: "ending the attempt, to go on from " + back + ": " + words, Data: data,
	})
}

// ask asks the loop something; ok is false where the run is over meanwhile, or by the
// answer's own word.
func ask[T any](life context.Context, r *run, what func() (T, bool)) (T, bool) {
	type answer struct {
		v  T
		ok bool
	}
	got := make(chan answer, 1)
	r.post(Input{}, func() {
		v, ok := what()
		got <- answer{v, ok}
	})
	select {
	case a := <-got:
		return a.v, a.ok
	case <-r.over:
	case <-life.Done():
	}
	var none T
	return none, false
}

// tooTight says why a new start would wait for memory for long, and then perhaps not come,
// if the attempt were ended now; "" where it would not. What it is slow for may be a
// neighbour that has taken the memory. It reads the machine.
func (r *run) tooTight(a *attempt) string {
	now := gate.Read("/")
	return tightWords(r.gateGoal(a), now, r.ownKiB(now))
}

// tightWords asks the gate what it would say at its limit of the memory that there would
// be. What it waits for counts a neighbour's memory as the attempt's own.
func tightWords(g gate.Goal, now gate.Reading, ownKiB uint64) string {
	if !now.Known {
		return "" // the gate opens then
	}
	then := now
	// No more comes back than there was.
	then.AvailKiB = max(now.AvailKiB, min(now.AvailKiB+ownKiB, g.StartKiB))
	g.Limit = time.Second
	then.At = g.Limit
	d := gate.Judge(g, []gate.Reading{then})
	if d.Verdict != gate.Stop {
		return ""
	}
	needs := ""
	if g.PeakKiB > 0 {
		needs = ", or at least for the " + guard.Size(g.PeakKiB) + " by which it fell in this attempt"
	}
	return fmt.Sprintf("a new start would wait for memory and might never come: with this one ended about %s would be available, and the next one would wait for %s%s; something else has taken the rest",
		guard.Size(then.AvailKiB), guard.Size(d.WantKiB), needs)
}

// ownKiB is the memory that the attempt would give back: what its processes hold, and on
// the GPU's side no more than the kernel books to nobody.
func (r *run) ownKiB(now gate.Reading) uint64 {
	var own, gpu, gpuOthers uint64
	for pid, kib := range gate.Sizes("/") {
		if r.livesOn(pid) {
			own += kib
		}
	}
	if !now.UnaccountedKnown {
		return own
	}
	held := r.gpuHolders()
	sized := held != nil
	for _, h := range held {
		switch {
		case !h.Ours:
			gpuOthers += h.KiB
		case h.KiB == 0:
			sized = false
		default:
			gpu += h.KiB
		}
	}
	if !sized {
		// How much of it is ours is not told: what has come since the run's start, without
		// what is known to be somebody else's.
		come := now.UnaccountedKiB - min(now.UnaccountedKiB, r.start0.UnaccountedKiB)
		gpu = come - min(come, gpuOthers)
	}
	return own + min(gpu, now.UnaccountedKiB)
}

// savedBy is what an attempt has saved since its own start.
func (r *run) savedBy(a *attempt) savedBy {
	s := savedBy{by: map[string]*attempt{}}
	start := a.start.Add(r.clk.Step())
	for _, c := range r.checkpoints(a) {
		if c.T.After(start) {
			s.all = append(s.all, c)
			s.by[c.Path] = a
		}
	}
	slices.SortStableFunc(s.all, func(a, b checkpoint.Checkpoint) int { return int(a.Step - b.Step) })
	return s
}

// wouldGoOn says why the run would not go on if the attempt were ended now for its
// slowness; "" where it would. It asks those who would decide then. Loop only.
func (r *run) wouldGoOn(a *attempt, seen *looked) string {
	if _, ok := checkpoint.NewestResumable(r.job.Resume.Layout, seen.saved.all); !ok {
		return "it has saved no checkpoint since its start from which it could go on"
	}
	if why := a.lossWords(); why != "" {
		return "the loss has diverged: " + why
	}
	if a.box.plan.Again != "" {
		return a.box.plan.Again
	}
	if why := seen.notAsRead(); why != "" {
		return why
	}
	if name := r.foreign(a, seen.saved.all); name != "" {
		return "somebody else saves in its folder: " + name + " is of a step that it has not come to"
	}
	before := r.looked
	r.looked = seen
	defer func() { r.looked = before }()
	s := r.situation(nil)
	a.mu.Lock()
	past := ladder.Past{
		Attempt: a.n, Rungs: a.rungs, Knobs: a.knobs, Answer: ladder.AnswerNotOOM, Reason: slowEnd, Progressed: true,
		Step: a.last.N, PlannedSteps: a.total, Finished: a.finished, Duration: r.clk.Now().Sub(a.start),
	}
	a.mu.Unlock()
	s.Past = append(slices.Clip(slices.Clone(s.Past)), past)
	if d := r.lad.Next(s); d.Act != "retry" {
		return d.Why
	}
	return ""
}
