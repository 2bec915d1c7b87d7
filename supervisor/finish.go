package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder"
	"sparkrun/ladder/oom"
	"sparkrun/preflight"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/runlog"
)

// attemptEnded takes the verdict over and notes in the log how the attempt
// ended. It is called once, on the loop.
func (r *run) attemptEnded(a *attempt, v oom.Verdict, end runlog.EndKind, level event.Level) {
	a.mu.Lock()
	a.verdict, a.endKind = v, end
	a.mu.Unlock()
	r.log.Event(event.Event{
		T: a.lastMoment(), Attempt: a.n, Kind: event.AttemptEnd, Level: level,
		Msg:  fmt.Sprintf("attempt %d ended after %s: %s", a.n, human(a.end.Sub(a.start)), a.howEnded()),
		Data: map[string]any{"end": end, "duration_s": a.end.Sub(a.start).Seconds()},
	})
}

// noteDrop adds up what dropping caches has brought. The old sum may be being
// written to disk at this moment, so it is not changed but replaced.
func (r *run) noteDrop(d *ladder.Drop) {
	var sum runlog.Dropped
	if r.man.Dropped != nil {
		sum = *r.man.Dropped
	}
	sum.Times++
	sum.FreedKiB += d.FreedKiB
	r.man.Dropped = &sum
}

// writeVerdict writes attempts/N/verdict.json.
func (r *run) writeVerdict(a *attempt, v oom.Verdict) { r.writeSmall(a, verdictFile, v) }

const verdictFile = "verdict.json"

// lastVerdict is the verdict of an attempt that none was made for: it was
// stopped, lost or never came to be. It is written to disk and returned.
func (r *run) lastVerdict(a *attempt) (oom.Verdict, runlog.EndKind) {
	if a.judging {
		// Stopped while it was being judged: that verdict is the one.
		<-a.judged
		return a.decided, r.endOf(a)
	}
	v, end := plainVerdict(oom.NotOOM, "not-started", oom.High), runlog.EndNotStarted
	switch {
	case r.m.State == Stopped && a.exit.Load() != nil:
		v, end = r.table().Decide(r.gather(a)), runlog.EndStopped
		if a.endedFor() != nil {
			end = r.endOf(a) // the user came second: the run's end is theirs, the attempt's is not
		}
	case r.m.State == Lost && r.guardActed(a):
		v, end = r.table().Decide(r.gather(a)), runlog.EndLost
	case r.m.State == Lost:
		v, end = plainVerdict(oom.Unsure, "lost", oom.Low), runlog.EndLost
		v.Evidence = append(v.Evidence, oom.Item{Source: "process", Weight: oom.Weak, Text: r.m.Reason, T: a.end})
	default:
		v.Quote = r.m.Reason
		v.Evidence = append(v.Evidence, oom.Item{Source: "process", Weight: oom.Decides, Text: r.m.Reason, T: a.end})
	}
	r.writeVerdict(a, v)
	return v, end
}

// plainVerdict is a verdict that rests on something else than the evidence of a
// death.
func plainVerdict(answer oom.Answer, reason string, c oom.Confidence) oom.Verdict {
	return oom.Verdict{
		Schema: oom.Schema, Answer: answer, Reason: reason, Phase: oom.PhaseUnknown, Confidence: c,
		Evidence: []oom.Item{}, Sizes: map[string]int64{}, Advice: []string{}, Unreadable: []string{},
	}
}

// endOf is the end of an attempt that no user stopped.
func (r *run) endOf(a *attempt) runlog.EndKind {
	e := a.exit.Load()
	switch {
	case a.ending == runlog.ByGuard:
		return runlog.EndGuard
	case a.endedFor() != nil && a.endedFor().kind != "":
		return a.endedFor().kind
	case e != nil && e.Signal != "":
		return runlog.EndSignaled
	}
	return runlog.EndExited
}

// finish writes the end of the run: every file true and closed, then the
// summary, then the terminal as it was. It runs beside the loop, which has
// nothing left to own but signals: one of them closes leave, and then nobody is
// waited for any more. Whatever touches a disk has a bound.
func (r *run) finish(leave <-chan struct{}) {
	if a := r.att; a != nil {
		if a.gating {
			bounded(leave, 5*time.Second, func() { <-a.gated })
		}
		if a.end.IsZero() {
			a.end = r.clk.Now()
		}
		if a.verdict.Answer == "" {
			v, end := plainVerdict(oom.Unsure, "not-judged", oom.Low), runlog.EndStopped
			got := make(chan func(), 1)
			bounded(leave, 5*time.Second, func() {
				v, end := r.lastVerdict(a)
				got <- func() { r.attemptEnded(a, v, end, event.Info) }
			})
			select {
			case apply := <-got:
				apply()
			default:
				r.attemptEnded(a, v, end, event.Warn)
			}
		}
	}
	if a := r.att; a != nil && a.exit.Load() != nil && a.verdict.Reason != "success" {
		// Nobody comes after this one: what it left would stay until the next boot.
		bounded(leave, 7*time.Second, func() { r.cleanUp(context.Background(), a) })
	}
	// A command of a moment must not hide what became of last night's run.
	bounded(leave, 3*time.Second, func() { <-r.lookedBack })
	bounded(leave, 2*time.Second, func() {
		<-r.checked
		if _, err := os.Stat(r.dir.File("env-report.json")); errors.Is(err, os.ErrNotExist) {
			r.writeReport(preflight.Skipped("/", "the run was stopped before preflight was through"))
		}
	})
	if r.samp != nil {
		bounded(leave, readingMost, func() { r.account().awaitReading(leave) })
		r.samp.Stop()
	}
	bounded(nil, stopActingMost, r.stopActing) // a capped clock outlives us: not even for somebody in a hurry
	end := r.clk.Now()
	r.mu.Lock()
	for _, e := range r.detector.Finish(end) {
		r.log.Event(e)
	}
	heat := r.detector.Summary()
	r.mu.Unlock()
	r.account().finished(heat)
	bounded(leave, 2*time.Second, func() { r.keepPace(heat) })
	bounded(leave, 3*time.Second, func() { r.progFile.Close() })
	bounded(leave, 3*time.Second, r.removeOurs)
	saved := r.savedCheckpoints(leave)
	facts := r.facts(end, saved)
	facts.Heat, facts.Energy = r.account().total()
	lines := Summary(facts)
	bounded(leave, time.Second, r.describe)

	status := r.m.Status
	moment := runlog.MomentOf(r.clk, end)
	r.man.OtherExperiment, r.man.Divergence = r.otherExperiment(), facts.Diverged
	result := string(r.m.State)
	if facts.Diverged != "" && (r.m.State == Succeeded || r.m.State == SucceededChanged) {
		result = ResultDiverged
	}
	r.man.Result, r.man.ExitStatus, r.man.EndedBy, r.man.End, r.man.Pending = result, &status, r.m.EndedBy, &moment, nil
	r.man.Summary = runlog.Summary{LowestMemAvailableKiB: facts.LowestKiB, HottestC: facts.HottestC, LostS: sample.Known(lostTime(facts).Seconds())}
	r.man.Summary.Heat, r.man.Summary.Energy = facts.Heat, runlog.EnergyOf(facts.Energy)
	if heat.ObservedS > 0 {
		r.man.Summary.ThrottleS = sample.Known(throttledSeconds(heat))
	}
	r.log.Event(event.Event{T: end, Kind: event.RunEnd, Level: event.Info, Msg: strings.TrimPrefix(lines[0], "result: "), Data: map[string]any{"state": r.m.State, "exit_status": status, "ended_by": r.m.EndedBy}})
	bounded(leave, 5*time.Second, func() {
		if err := r.log.Close(); err != nil {
			r.screen.Say("sparkrun: " + err.Error())
		}
	})
	// Last, when nobody else takes what the reserve gives back; on a full disk
	// the very last version goes into the second one.
	bounded(leave, time.Second, r.dir.ReleaseReserve)
	if !r.saveManifest(3 * time.Second) {
		r.screen.Say("sparkrun: run.json could not be written to the end: the disk does not answer")
	}
	bounded(leave, time.Second, r.dir.ReleaseLast)
	// For the morning, when the terminal is gone.
	bounded(leave, time.Second, func() {
		_ = runlog.WriteFile(r.dir.File("summary.txt"), []byte(strings.Join(r.redactAll(lines), "\n")+"\n")) // the terminal has them all the same
	})
	r.tellEnd(leave)
	r.endLife()
	r.unlock()
	close(r.screenq)
	r.drain(leave)
	r.term.close()
	if !r.o.Quiet || result != string(Succeeded) {
		for _, l := range lines {
			r.screen.Say("sparkrun: " + l)
		}
	}
	// A short moment even for somebody in a hurry: these lines are the point.
	bounded(nil, 300*time.Millisecond, func() { r.screen.Drain(2 * time.Second) })
	bounded(leave, 3*time.Second, func() { r.screen.Drain(2 * time.Second) })
}

const (
	// drainEvery is how often drain looks.
	drainEvery = 100 * time.Millisecond
	// stuckLooks is how often in a row a terminal may have taken nothing (3 s),
	// unreadLooks how often there may be nothing for it to take (15 s): the output is
	// still being read then, from a disk that is slow or on a machine that is busy.
	stuckLooks  = 30
	unreadLooks = 150
)

// drain waits until the screen has shown what the child printed. A terminal that
// does not take it is waited for only as long as it takes something. Looks are
// counted and not the time: where this process hardly runs, no terminal is to blame.
func (r *run) drain(leave <-chan struct{}) {
	written, _ := r.screen.Progress()
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for looks := 0; ; {
		select {
		case <-r.shown:
			return
		case <-leave:
			return
		case <-tick.C:
		}
		looks++
		now, waiting := r.screen.Progress()
		if now != written {
			written, looks = now, 0
		}
		if looks > unreadLooks || waiting && looks > stuckLooks {
			return
		}
	}
}

// bounded runs f and waits for it no longer than d, or until leave is closed. A
// disk that hangs costs one goroutine, never the end of the run.
func bounded(leave <-chan struct{}, d time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	select {
	case <-done:
	case <-leave:
	case <-time.After(d):
	}
}

// savedCheckpoints looks for the newest complete checkpoint of the run.
func (r *run) savedCheckpoints(leave <-chan struct{}) string {
	found := make(chan string, 1)
	bounded(leave, 3*time.Second, func() {
		newest := ""
		for _, a := range r.all {
			if cp := newestComplete(r.checkpoints(a)); cp != "" {
				newest = cp
			}
		}
		found <- newest
	})
	select {
	case cp := <-found:
		return cp
	default:
		return ""
	}
}

// lostTime is the time that is not training, each second once: what a failed attempt was
// paused, or slower, is in its length.
func lostTime(f Facts) time.Duration {
	d := f.Gate
	for _, a := range f.Attempts {
		if a.Died && a.N < len(f.Attempts) {
			d += a.Took
			continue
		}
		// What heat cost, and not how long the GPU was held back: under a light throttle
		// nearly all of the time is training.
		d += a.Paused + secondsOf(a.LostS)
	}
	return d
}

// facts collects what the summary tells.
func (r *run) facts(end time.Time, checkpoint string) Facts {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := Facts{
		Checkpoint: checkpoint, OutputKnown: r.job.Knobs[job.OutputDir].Value != "",
		State: r.m.State, Status: r.m.Status, EndedBy: string(r.m.EndedBy), Reason: r.m.Reason,
		Gate:      r.gate,
		LowestKiB: r.lowest, LowestAt: r.lowestAt, HottestC: r.hottest,
		RunDir: r.dir.Path, Took: end.Sub(r.clk.Wall),
	}
	for _, a := range r.all {
		n, took := r.pausesOf(a.n)
		paused := secondsOf(sample.Known(took))
		f.Pauses += n
		f.Paused += paused
		var lost sample.Num
		if h, _ := r.account().attempt(a.n); h != nil {
			lost = h.LostS
		}
		a.mu.Lock()
		died := a.verdict.Answer != "" && !(a.verdict.Answer == oom.NotOOM && a.exit.Load() != nil && a.exit.Load().Status() == 0) && a.endKind != runlog.EndStopped
		what := string(a.verdict.Answer)
		switch {
		case a.verdict.Kind != "" && a.verdict.Reason != "":
			what += " (" + a.verdict.Kind + ", " + a.verdict.Reason + ")"
		case a.verdict.Kind+a.verdict.Reason != "":
			what += " (" + a.verdict.Kind + a.verdict.Reason + ")"
		}
		f.Attempts = append(f.Attempts, AttemptFacts{
			N: a.n, End: a.end, Took: a.end.Sub(a.start), Died: died,
			How: a.howEnded(), Verdict: what, Quote: a.verdict.Quote, Paused: paused, LostS: lost,
		})
		if a.haveStep || a.lossB.OK {
			f.FirstStep, f.LastStep, f.StepTotal = a.first.N, a.last.N, a.total
			f.FirstLoss, f.LastLoss = a.lossA, a.lossB
			f.StepTimeS, f.EtaS = a.stepTime, a.eta
		}
		a.mu.Unlock()
	}
	if a := r.att; a != nil {
		f.Changes, f.OtherExperiment = changesWords(a.inEffect()), r.otherExperiment()
		f.Diverged, f.Watched = a.lossWords(), a.endedWords()
		if out, asked := a.knobs[job.OutputDir].Value, r.job.Knobs[job.OutputDir].Value; out != asked {
			f.Output = out
		}
	}
	f.Next, f.Advice = r.nextCommand(checkpoint), r.adviceLine()
	return f
}

// ResultDiverged is the result of a run that came to its end with a loss that is of no
// use.
const ResultDiverged = "diverged"

// throttledSeconds is how long the GPU was held back by anything but the
// platform's own power cap.
func throttledSeconds(s throttle.Summary) float64 {
	// Types overlap; the share counts such time once.
	return s.ThrottledShare.Or(0) * s.ObservedS
}
