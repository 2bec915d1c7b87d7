package supervisor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/ladder"
	"sparkrun/ladder/oom"
	"sparkrun/preflight/headroom"
	"sparkrun/supervisor/gate"
	"sparkrun/supervisor/guard"
	"sparkrun/supervisor/hygiene"
	"sparkrun/supervisor/runlog"
)

// judge decides why an attempt ended and what follows. It runs on a goroutine
// of its own; the loop takes over its result.
func (r *run) judge(ctx context.Context, a *attempt) {
	ev := r.gather(a)
	told := r.readShim(a)
	v := r.withException(r.table().Decide(ev), ev, told)
	r.writeVerdict(a, v)
	a.decided = v
	close(a.judged)
	e := a.exit.Load()
	status := a.status()
	// A command that saves when it is asked to end, and then says that all is well, is not
	// through for that.
	success := status == 0 && v.Answer == oom.NotOOM && (a.endedFor() == nil || ev.TrainingFinished || ev.Output.Finished)
	text := verdictText(v)
	level := event.Info
	if !success {
		level = event.Warn
		if v.Quote != "" {
			text += ": " + clip(v.Quote, 200)
		}
	}
	if success {
		text = "succeeded"
	}
	r.log.Event(event.Event{
		T: a.lastMoment(), Attempt: a.n, Kind: event.Verdict, Level: level, Msg: text,
		Data: map[string]any{"verdict": v.Answer, "kind": v.Kind, "reason": v.Reason, "confidence": v.Confidence, "phase": v.Phase},
	})
	past := ladder.Past{
		Attempt: a.n, Rungs: a.rungs, Knobs: told.inForce(a.knobs), NotApplied: told.notTurned(),
		Answer: string(v.Answer), Kind: v.Kind, Cause: v.Cause, Reason: v.Reason, Phase: string(v.Phase), Confidence: string(v.Confidence), Lever: v.Lever,
		Duration: a.end.Sub(a.start), Quote: v.Quote, Exception: exceptionOf(v),
		PeakKiB: a.peakKiB(), CoTenant: coTenant(e), Finished: ev.TrainingFinished || ev.Output.Finished,
	}
	if b, ok := v.Sizes["requested"]; ok && b > 0 {
		past.RequestedBytes = sample.Known(float64(b))
	}
	if success {
		past.Answer = ladder.AnswerSuccess
	}
	a.mu.Lock()
	past.Step, past.PlannedSteps = a.last.N, a.total
	a.mu.Unlock()
	// All that the decision needs of the disk is read here: the loop that takes it
	// must never hang with one.
	learned := r.job
	if told.used {
		learned = r.set.Learn(learned, told.rec)
		if why := told.unreached(a.n); why != "" {
			learned.ShimRefused = why
		}
	}
	a.setJob(past.Knobs)
	seen := r.look(learned)
	past.Progressed = newestComplete(r.checkpoints(a)) != ""
	missing := sample.Num{}
	if b, ok := v.Sizes["requested"]; ok && b > 0 {
		missing = sample.Known(float64(b) / 1024)
		if free, ok := v.Sizes["free"]; ok {
			missing = sample.Known(float64(max(b-free, 0)) / 1024)
		}
	}
	r.post(Input{}, func() {
		if r.m.State != Verdict {
			return // stopped meanwhile; finish has taken the verdict over
		}
		a.missing, a.shim, r.looked, r.job = missing, told, seen, learned
		a.mu.Lock()
		a.knobs = past.Knobs
		a.mu.Unlock()
		r.past = append(r.past, past)
		r.attemptEnded(a, v, r.endOf(a), event.Info)
		r.step(ctx, r.afterVerdict(a, status))
	})
}

// exceptionOf is the error that an attempt died of, as the ladder compares it;
// "" where it died of a signal or a record from outside.
func exceptionOf(v oom.Verdict) string {
	for _, it := range v.Evidence {
		if it.Source == "output" && it.Weight != oom.Note {
			return it.Text
		}
	}
	return ""
}

// afterVerdict is the input that follows a verdict.
func (r *run) afterVerdict(a *attempt, status int) Input {
	in := r.decide(a, status)
	if in.Retry && a.box.plan.Again != "" {
		in = Input{Kind: Judged, Status: status, Reason: "not tried again: " + a.box.plan.Again}
	}
	return in
}

func (r *run) decide(a *attempt, status int) Input {
	s := r.situation(nil)
	if r.past[len(r.past)-1].Answer == ladder.AnswerSuccess {
		return Input{Kind: Judged, Status: status, Success: true, AsAsked: !a.differs()}
	}
	if a.lossWords() != "" {
		// What went wrong first was no matter of memory, and a smaller step does not
		// mend it. The summary says of every failure how the loss had diverged.
		reason := "not tried again"
		if words := a.endedWords(); words != "" {
			reason = words + "; " + reason
		}
		return Input{Kind: Judged, Status: status, Reason: reason}
	}
	if w := a.endedFor(); w != nil && w.name == wedgeEnd {
		return Input{Kind: Judged, Status: status, Reason: w.words}
	}
	if r.lad.WantsDrop(s) {
		return Input{Kind: Judged, Retry: true, Status: status}
	}
	d := r.lad.Next(s)
	if d.Act == "retry" {
		return Input{Kind: Judged, Retry: true, Status: status}
	}
	return r.stopInput(a, d, status)
}

// stopInput turns the ladder's stop into the machine's input.
func (r *run) stopInput(a *attempt, d ladder.Decision, status int) Input {
	r.tellNotes(a, d, event.Warn)
	r.mu.Lock()
	r.advice = append(append([]string{}, d.Advice...), a.decided.Advice...)
	r.mu.Unlock()
	return Input{Kind: Judged, Status: status, Exhausted: d.Status75, Reason: d.Why}
}

// tellNotes says why rungs were passed over. While another one is taken that is
// for the log; at the end a person wants to see it.
func (r *run) tellNotes(a *attempt, d ladder.Decision, level event.Level) {
	for _, n := range d.Notes {
		msg := n.Rung + " not applicable: " + n.Why
		if n.Kind == "not-applicable" && strings.HasPrefix(n.Why, "dropping ") {
			msg = n.Rung + " was done and earns no attempt of its own: " + n.Why
		}
		if n.Kind == "refused" {
			msg = n.Rung + " refused: " + n.Why
		}
		r.log.Event(event.Event{Attempt: a.n, Kind: event.RungRefused, Level: level, Msg: msg, Data: map[string]any{"rung": n.Rung, "how": n.Kind}})
	}
}

// situation is what the ladder decides on.
func (r *run) situation(drop *ladder.Drop) ladder.Situation {
	params, from, quantised := r.model()
	s := ladder.Situation{
		Job: r.job, Past: r.past, Drop: drop, MaxAttempts: r.o.MaxAttempts,
		NoRetry: r.o.NoRetry, Exact: r.o.Exact,
		Allow: setOf(r.o.Allow), Deny: setOf(r.o.Deny),
		CanDrop: r.dropWay() != "never", Floor: r.job.Floor,
		ContainerEnds: r.containerEnds(),
		ModelParams:   params, ModelFrom: from, ModelQuantised: quantised, Shim: r.o.Shim, Fixed: r.fixedKnobs(),
	}
	if r.att != nil {
		s.CanResume = r.canResume(r.att)
	}
	s.AgainAfter = map[string]int{}
	if r.o.HangRestart {
		s.AgainAfter["hang"] = 1
	}
	if r.o.Heat.SlowFactor > 0 {
		s.AgainAfter["slowdown"] = slowRestarts
	}
	if r.start0.Known {
		available, total := int64(r.start0.AvailKiB)*1024, int64(r.start0.TotalKiB)*1024
		s.BudgetBytes = sample.Known(float64(available))
		s.SixteenBit = r.sixteenBit(headroom.Budget(available, total))
	}
	return s
}

func setOf(names []string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

// dropWay resolves --drop-caches auto: the whole cache where we may and nobody
// else uses the machine's memory, else the job's own files.
func (r *run) dropWay() string {
	if r.o.DropCaches != "auto" {
		return r.o.DropCaches
	}
	if !gate.CanDropSystem() {
		return "files"
	}
	if r.samp != nil {
		if s, ok := r.samp.Last(); ok && s.GPUOtherMiB.OK && s.GPUOtherMiB.V > 0 {
			return "files"
		}
	}
	return "system"
}

// passGate cleans up after the dead attempt, waits for memory, drops caches, asks
// the ladder again with what that achieved, and prepares the next attempt.
func (r *run) passGate(ctx context.Context, a *attempt) {
	defer close(a.gated)
	began := time.Now()
	r.cleanUp(ctx, a)
	stop := r.waitForMemory(ctx, a)
	var drop *ladder.Drop
	if ctx.Err() == nil && stop == "" && r.lad.WantsDrop(r.situation(nil)) {
		drop = r.drop(ctx, a)
	}
	var next *attempt
	var in Input
	switch {
	case ctx.Err() != nil:
	case stop != "":
		in = Input{Kind: Judged, Status: a.status(), Reason: stop}
	default:
		next, in = r.afterGate(ctx, a, drop)
	}
	waited := time.Since(began)
	r.post(Input{}, func() {
		r.gate += waited
		if drop != nil && drop.Done {
			r.noteDrop(drop)
		}
		if r.m.State != Gate || in.Kind == "" {
			return // stopped meanwhile
		}
		r.next = next
		r.step(ctx, in)
	})
}

// waitForMemory is the gate: it returns why the run has to end here, "" where the
// next attempt may start.
func (r *run) waitForMemory(ctx context.Context, a *attempt) (stop string) {
	g := r.gateGoal(a)
	if coTenant(a.exit.Load()) != "" {
		// Resumed unchanged: with less than this to spare the guard ends it again.
		g.ReserveKiB = r.softFloorKiB()
	}
	r.mu.Lock()
	holders, gpuHeld := r.holders, r.gpuHeld
	r.mu.Unlock()
	res := gate.Wait(ctx, gate.Options{
		Goal: g, Root: "/", Ours: r.livesOn, GPU: r.gpuHolders, Before: holders, GPUBefore: gpuHeld,
		Say: func(rd gate.Reading, d gate.Decision) {
			r.log.Event(event.Event{
				Attempt: a.n, Kind: event.GateWait, Level: event.Info, Msg: "waiting for memory to come back: " + d.Why,
				Data: map[string]any{"available_kib": rd.AvailKiB, "wanted_kib": d.WantKiB, "holders": d.Holders},
			})
		},
	})
	if ctx.Err() != nil {
		return ""
	}
	d, level := res.Decision, event.Info
	if d.Verdict != gate.Open {
		level = event.Warn
	}
	if d.Verdict == gate.Stop {
		level = event.Error
	}
	// Open at once is the rule and worth no line on the terminal.
	if res.Waited > time.Second || d.Verdict != gate.Open {
		r.log.Event(event.Event{
			Attempt: a.n, Kind: event.GateOpen, Level: level, Msg: d.Why,
			Data: map[string]any{"verdict": d.Verdict.String(), "wanted_kib": d.WantKiB, "waited_s": res.Waited.Seconds(), "holders": d.Holders, "reboot_gib": d.RebootGiB},
		})
	}
	if d.Verdict == gate.Stop {
		return d.Why
	}
	return ""
}

// gateGoal is what the gate would wait for behind an attempt.
func (r *run) gateGoal(a *attempt) gate.Goal {
	return gate.Goal{
		StartKiB: r.start0.AvailKiB, BestIdleKiB: r.bestIdle(), PeakKiB: uint64(a.peakKiB().Or(0)),
		StartShmemKiB: r.start0.ShmemKiB, StartUnaccountedKiB: r.start0.UnaccountedKiB, Limit: r.o.GateLimit,
	}
}

// softFloorKiB is where the guard begins to look ahead.
func (r *run) softFloorKiB() uint64 {
	o := r.o.Guard
	switch {
	case o.Off:
		return 0
	case o.SoftKiB > 0:
		return o.SoftKiB
	case o.SoftPct > 0:
		return uint64(float64(r.start0.TotalKiB) * o.SoftPct / 100)
	}
	return uint64(float64(r.start0.TotalKiB) * guard.DefaultSoftPct / 100)
}

// bestIdle is the most MemAvailable this boot has shown at the start of a run, in
// KiB; 0 where nothing is known.
func (r *run) bestIdle() uint64 {
	return gate.LoadIdle(r.stateDir(), bootID())
}

// gpuHolders are the processes that hold GPU memory, as the sensors see them; nil
// where that is not known.
func (r *run) gpuHolders() []gate.Holder {
	if r.samp == nil {
		return nil
	}
	s, ok := r.samp.Last()
	if !ok || s.Processes == nil {
		return nil
	}
	out := []gate.Holder{}
	for _, p := range s.Processes {
		h := gate.Holder{PID: p.PID, How: "gpu", Comm: commOf(p.PID), Ours: r.livesOn(p.PID)}
		_, h.Alive = proctree.Read(p.PID)
		if p.UsedMiB.OK {
			h.KiB = uint64(p.UsedMiB.V) << 10
		}
		out = append(out, h)
	}
	return out
}

// cleanUp removes what the dead attempt left in shared memory and among the
// processes, and says so.
func (r *run) cleanUp(ctx context.Context, a *attempt) {
	a.mu.Lock()
	tree := map[int]string{}
	for pid, p := range a.tree {
		tree[pid] = p.Comm
	}
	seen := maps.Clone(a.shm)
	a.mu.Unlock()
	if a.cleaned.Swap(true) {
		return
	}
	// Files carry the machine's time, which may have been set since.
	step := r.clk.Step()
	found := hygiene.Clean(ctx, hygiene.Options{
		Before: a.before, Start: a.start.Add(step), End: a.end.Add(step), UID: os.Getuid(), Entry: "SPARKRUN_RUN_ID=" + r.dir.ID, Root: "/", Tree: tree, Seen: seen, Ports: masterPort(r.o.Env),
	})
	for _, f := range found {
		level := event.Info
		if !f.Removed {
			level = event.Warn
		}
		msg := "removed what the attempt had left: " + f.What
		if !f.Removed {
			msg = "left as it is: " + f.What + ": " + f.Why
		}
		r.log.Event(event.Event{
			Attempt: a.n, Kind: event.Hygiene, Level: level, Msg: msg,
			Data: map[string]any{"what": f.Kind, "kib": f.KiB, "pid": f.PID, "removed": f.Removed},
		})
	}
}

// masterPort is the port that the ranks of a job meet at, where the environment
// names one.
func masterPort(env []string) []int {
	n, err := strconv.Atoi(lookupEnv(env, "MASTER_PORT"))
	if err != nil || n <= 0 || n > 65535 {
		return nil
	}
	return []int{n}
}

// status is the exit status that a shell would show for the attempt.
func (a *attempt) status() int {
	if a.engineStatus != nil {
		return *a.engineStatus
	}
	return a.exit.Load().Status()
}

func (r *run) drop(ctx context.Context, a *attempt) *ladder.Drop {
	way := r.dropWay()
	what := "the page cache of the whole machine (sync, drop_caches, compact_memory)"
	var files []string
	if way == "files" {
		a.mu.Lock()
		files = sortedFiles(a.mapped)
		a.mu.Unlock()
		what = fmt.Sprintf("the cached pages of %d files this job had mapped", len(files))
	}
	if way == "files" && len(files) == 0 {
		why := "no file of this job is known to be in the page cache, and the whole cache may not be dropped here (root, and nobody else on the GPU)"
		r.log.Event(event.Event{Attempt: a.n, Kind: event.RungRefused, Level: event.Info, Msg: "drop-caches not applicable: " + why, Data: map[string]any{"rung": "drop-caches", "how": "not-applicable"}})
		return &ladder.Drop{How: "none", MissingKiB: a.missing, Err: why}
	}
	r.log.Event(event.Event{
		Attempt: a.n, Kind: event.RungAnnounce, Level: event.Info, Msg: "drop-caches: dropping " + what,
		Data: map[string]any{"rung": "drop-caches", "how": way, "files": len(files)},
	})
	res := gate.Drop(ctx, way, files)
	d := &ladder.Drop{Done: res.Err == nil, FreedKiB: res.FreedKiB, How: res.How, MissingKiB: a.missing}
	msg := fmt.Sprintf("drop-caches: freed %.1f GiB", float64(max(res.FreedKiB, 0))/(1<<20))
	level := event.Info
	if res.Err != nil {
		d.Err = res.Err.Error()
		msg, level = "drop-caches was not done: "+d.Err, event.Warn
	}
	r.log.Event(event.Event{Attempt: a.n, Kind: event.RungAnnounce, Level: level, Msg: msg, Data: map[string]any{"rung": "drop-caches", "freed_kib": res.FreedKiB}})
	return d
}

func verdictText(v oom.Verdict) string {
	what := v.Reason
	if v.Kind != "" {
		what = v.Kind
	}
	if what == "" {
		return string(v.Answer)
	}
	return fmt.Sprintf("%s (%s), %s confidence", v.Answer, what, v.Confidence)
}

// howEnded says how the child ended, as "exit 1" or "SIGKILL".
func (a *attempt) howEnded() string {
	e := a.exit.Load()
	switch {
	case a.endKind == runlog.EndNotStarted:
		return "never started"
	case e == nil:
		return "end not seen"
	case a.ending == runlog.ByGuard:
		return "ended by the memory guard"
	case a.endedFor() != nil:
		return a.endedFor().how
	}
	if e.Signal != "" {
		return e.Signal
	}
	return fmt.Sprintf("exit %d", e.Code)
}
