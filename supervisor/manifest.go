package supervisor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/hostfacts"
	"sparkrun/internal/job"
	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer"
	"sparkrun/preflight"
	"sparkrun/supervisor/runlog"
)

// newManifest is run.json as it stands at the start.
func (r *run) newManifest() *runlog.Manifest {
	m := &runlog.Manifest{
		ID: r.dir.ID, Name: runlog.Name(r.o.Argv, r.o.Name), Argv: r.o.Argv, Cwd: r.o.Dir,
		Env: r.secrets.Env(r.o.Env), Interpreter: r.asked.Interpreter, Nodes: r.asked.Nodes,
		Start: runlog.StartOf(r.clk), Version: r.o.Version, SupervisorPID: os.Getpid(),
		Host: runlog.Host{CPUs: runtime.NumCPU()},
	}
	m.Host.Name, _ = os.Hostname()
	m.Host.BootID = bootID()
	if b, err := os.ReadFile("/sys/class/dmi/id/product_name"); err == nil {
		m.Host.Machine = strings.TrimSpace(string(b))
	}
	if info, err := meminfo.Read("/"); err == nil {
		m.Host.MemTotalKiB = int64(info["MemTotal"])
	}
	return m
}

// copyFolders are those in which runs of this command put copies: beside its config file,
// and in and beside its output folder.
func (r *run) copyFolders() []string {
	folders := map[string]bool{}
	if path, ok := r.onHost(r.asked.ConfigFile); ok && r.asked.ConfigFile != "" {
		folders[filepath.Dir(path)] = true
	}
	if out := r.set.OutputFolder(r.asked); out != "" {
		folders[out], folders[filepath.Dir(out)] = true, true
	}
	return sortedFiles(folders)
}

// tidy removes what a run that died left in folders.
func (r *run) tidy(folders []string) {
	host, err := os.Hostname()
	if err != nil {
		return
	}
	for _, dir := range folders {
		removed, kept := removeLeftovers(r.places, dir, host)
		for _, name := range removed {
			r.log.Event(event.Event{Kind: event.Hygiene, Level: event.Info, Msg: "removed a copy that a run which died had left: " + name})
		}
		for name, to := range kept {
			r.log.Event(event.Event{Kind: event.Hygiene, Level: event.Warn, Msg: keptWords(name, to), Data: map[string]any{"path": name, "to": to}})
		}
	}
}

// findOut fills in what takes a moment to find out.
func (r *run) findOut(ctx context.Context) {
	git, ok := runlog.Git(r.o.Dir)
	hashes := r.hashes
	pkgs := preflight.Packages(r.asked.Interpreter)
	facts, err := hostfacts.Read(ctx)
	if err != nil {
		r.diag.Warn("host facts incomplete", "err", err)
	}
	r.mu.Lock()
	r.found.facts = facts
	if ok {
		r.found.git = &git
	}
	r.found.hashes, r.found.packages = hashes, pkgs
	r.mu.Unlock()
}

// setPending writes down what is about to be done.
func (r *run) setPending(acts []Action) {
	r.man.Pending = nil
	for _, a := range acts {
		switch a {
		case DoStart:
			p := &runlog.Pending{Attempt: r.m.Attempt, Effect: "start"}
			if r.next != nil {
				p.Rungs, p.Changes = r.next.rungs, changesOf(r.next.rewrite)
			}
			r.man.Pending = p
		case DoStop, DoHurry:
			r.man.Pending = &runlog.Pending{Attempt: r.m.Attempt, Effect: "stop"}
		case DoGate:
			r.man.Pending = &runlog.Pending{Attempt: r.m.Attempt, Effect: "gate"}
		case DoJudge:
			r.man.Pending = &runlog.Pending{Attempt: r.m.Attempt, Effect: "judge"}
		}
	}
}

// changesOf is what an attempt did differently, in run.json's form.
func changesOf(rw trainer.Rewrite) []runlog.Change {
	var out []runlog.Change
	for _, c := range rw.Changes {
		out = append(out, runlog.Change{Layer: c.Layer, Where: c.Where, Before: c.Before, After: c.After})
	}
	return out
}

// snapshot is run.json as it stands now: a copy that nobody changes any more.
func (r *run) snapshot() *runlog.Manifest {
	m := *r.man
	m.State = r.m.State
	r.mu.Lock()
	m.Git, m.Hashes, m.Packages = r.found.git, r.found.hashes, r.found.packages
	m.Host.GPU, m.Host.Driver = r.found.gpu, r.found.driver
	f := r.found.facts
	m.Host.OS, m.Host.Kernel, m.Host.CPU, m.Host.Virtual = f.OS, f.Kernel, f.CPU, f.Virtual
	r.mu.Unlock()
	m.Attempts = make([]runlog.AttemptRecord, 0, len(r.all))
	for _, a := range r.all {
		m.Attempts = append(m.Attempts, r.record(a))
	}
	return &m
}

// saveWait is how long an effect waits for its state to be on the disk. A disk
// that takes longer is in trouble, and the training must not wait for it.
const saveWait = 300 * time.Millisecond

// saveManifest hands run.json to the writer and waits for it as long as wait.
func (r *run) saveManifest(wait time.Duration) bool {
	done := r.saver.put(r.snapshot())
	if wait <= 0 {
		return false
	}
	select {
	case <-done:
		return true
	case <-time.After(wait):
		return false
	}
}

// saver writes run.json on a goroutine of its own, the newest version only: the
// loop owns the run and must never hang with a disk.
type saver struct {
	next chan saveJob
}

type saveJob struct {
	m    *runlog.Manifest
	done chan struct{}
}

// startSaver begins; fail is told about a failure, once until one succeeds.
func startSaver(d *runlog.Dir, fail func(error)) *saver {
	s := &saver{next: make(chan saveJob, 1)}
	go func() {
		failed := false
		for job := range s.next {
			err := d.Save(job.m)
			if err != nil && !failed {
				fail(err)
			}
			failed = err != nil
			close(job.done)
		}
	}()
	return s
}

// put replaces what waits to be written; the channel it returns is closed when
// it, or something newer, is on the disk or refused. Only one goroutine at a
// time may call it.
func (s *saver) put(m *runlog.Manifest) <-chan struct{} {
	job := saveJob{m: m, done: make(chan struct{})}
	select {
	case old := <-s.next:
		defer close(old.done)
	default:
	}
	s.next <- job
	return job.done
}

// withoutHalves are the settings without those of which nothing is known but that the
// shim was to halve them.
func withoutHalves(k job.Knobs) job.Knobs {
	out := k.Clone()
	maps.DeleteFunc(out, func(_ job.Knob, s job.Setting) bool { return s.Value == ladder.Half })
	return out
}

// record is one attempt as run.json has it.
func (r *run) record(a *attempt) runlog.AttemptRecord {
	a.mu.Lock()
	defer a.mu.Unlock()
	rec := runlog.AttemptRecord{
		N: a.n, Rungs: a.rungs, Knobs: withoutHalves(a.knobs), Changes: changesOf(a.rewrite),
		Start: runlog.MomentOf(r.clk, a.start), Log: filepath.Join("attempts", fmt.Sprint(a.n), "output.log"),
		Loss: runlog.Span{First: a.lossA, Last: a.lossB},
	}
	if a.started.HolderPID != 0 {
		rec.Holder = &runlog.Holder{PID: a.started.HolderPID, ChildPID: a.started.ChildPID, ChildStart: a.started.ChildStart}
	}
	if a.haveStep {
		rec.Steps = runlog.Span{First: sample.Known(float64(a.first.N)), Last: sample.Known(float64(a.last.N))}
	}
	if !a.end.IsZero() {
		end := runlog.MomentOf(r.clk, a.end)
		rec.End, rec.DurationS, rec.EndKind = &end, sample.Known(a.end.Sub(a.start).Seconds()), a.endKind
	}
	if e := a.exit.Load(); e != nil {
		x := &runlog.Exit{Signal: e.Signal, Status: e.Status()}
		if e.Signal == "" {
			code := e.Code
			x.Code = &code
		}
		rec.Exit = x
	}
	rec.Pauses, rec.PausedS = r.pausesOf(a.n)
	rec.Heat, rec.Energy = r.account().attempt(a.n)
	if a.verdict.Answer != "" {
		v := a.verdict
		rec.Verdict = &runlog.VerdictSummary{Verdict: string(v.Answer), Kind: v.Kind, Reason: v.Reason, Confidence: string(v.Confidence), Quote: v.Quote}
	}
	return rec
}
