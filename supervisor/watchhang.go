package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/supervisor/hang"
)

// watchHang ends an attempt in which nothing moves any more.
func (r *run) watchHang(ctx context.Context, a *attempt) {
	if r.o.HangTimeout < 0 {
		return
	}
	cfg, err := hang.Load()
	if err != nil { // a broken binary: the run goes on without
		r.log.Event(event.Event{Kind: event.Internal, Level: event.Error, Msg: "hangs are not looked for: " + err.Error()})
		return
	}
	w := hangWatch{r: r, a: a, cfg: cfg, watch: hang.New(cfg, r.o.HangTimeout), every: hang.Every(r.o.HangTimeout), began: monotonic(), told: map[hang.State]bool{}}
	defer w.close()
	tick := alarm.After(clock.Beat(w.every))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Reset(clock.Beat(w.every))
		}
		if a.exit.Load() == nil && w.look(ctx) {
			return
		}
	}
}

// hangWatch looks at one attempt again and again.
type hangWatch struct {
	r     *run
	a     *attempt
	cfg   hang.Config
	watch *hang.Watch
	every time.Duration
	// work and reports are the accounts of the training's processes and of those that
	// report on it.
	work, reports proctree.Account
	sockets       proctree.SocketAccount
	net           proctree.NetAccount
	wakes         proctree.WakeAccount
	// told are the states that were told since something moved last.
	told map[hang.State]bool
	// spared is why the attempt was not ended although nothing moved, as told.
	spared string
	// understood is how much was printed when a line without an end was understood.
	understood int64
	noGPU      *bool
	began      time.Duration // by CLOCK_MONOTONIC
}

func (w *hangWatch) close() {
	w.work.Close()
	w.reports.Close()
	w.sockets.Close()
	w.net.Close()
}

// look takes one look, and is true once the end of the attempt was asked for.
func (w *hangWatch) look(ctx context.Context) bool {
	l, procs := w.read(ctx)
	v := w.watch.Look(l)
	if restsFor(v.Still, v.Limit) && w.understood != l.Printed {
		w.understood = l.Printed
		w.r.takePending(w.a)
	}
	if v.Moved != "" {
		if v.State == hang.Moves && (len(w.told) > 0 || w.spared != "") {
			w.event(event.Info, "the command goes on: "+v.Moved, v)
		}
		clear(w.told)
		w.spared = ""
	}
	switch v.State {
	case hang.Warned:
		w.once(v, event.Warn, "the command may hang: "+v.Words()+"; no step was seen yet, so it is not ended for that")
	case hang.Elsewhere:
		w.once(v, event.Info, "the command stands still, but it has not worked on this machine, as the client of a training elsewhere; it is not ended for that: "+v.Words())
	case hang.Blind:
		w.once(v, event.Info, fmt.Sprintf("for %s neither a step nor any output; whether the command hangs cannot be told: %s", clock.Span(v.Limit), v.Unknown))
	case hang.Hung:
		return w.hung(ctx, v, procs)
	}
	return false
}

// hung keeps what the processes stand in, looks once more, and asks for the end.
func (w *hangWatch) hung(ctx context.Context, v hang.Verdict, procs []proctree.Proc) bool {
	if why := w.spare(procs); why != "" {
		if w.spared != why {
			w.spared = why
			w.event(event.Warn, "the command stands still and is not ended: "+why+": "+v.Words(), v)
		}
		return false
	}
	r, a := w.r, w.a
	name, err := r.writeStacks(ctx, a, v, procs)
	if err != nil {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Warn, Msg: "what the command stood in is not kept: " + err.Error()})
	}
	// That took seconds, in which it may have gone on.
	l, procs := w.read(ctx)
	if again := w.watch.Look(l); again.State != hang.Hung || w.spare(procs) != "" || ctx.Err() != nil {
		return false
	}
	e := w.made(event.Error, "the command hangs, ending it: "+v.Words(), v)
	if name != "" {
		e.Msg += "; where it stood is in " + name
		e.Data["stacks"] = name
	}
	end := hangEnd(v.Words())
	end.kept = name
	r.endWatched(a, end, e)
	return true
}

// once tells a state one time.
func (w *hangWatch) once(v hang.Verdict, level event.Level, text string) {
	if !w.told[v.State] {
		w.told[v.State] = true
		w.event(level, text, v)
	}
}

func (w *hangWatch) event(level event.Level, text string, v hang.Verdict) {
	w.r.log.Event(w.made(level, text, v))
}

func (w *hangWatch) made(level event.Level, text string, v hang.Verdict) event.Event {
	data := map[string]any{"still_s": v.Still.Seconds(), "limit_s": v.Limit.Seconds(), "cpu_share": v.CPUShare, "gpu_pct": v.GPUPct}
	w.a.mu.Lock()
	if w.a.haveStep {
		data["step"] = w.a.last.N
	}
	w.a.mu.Unlock()
	return event.Event{Attempt: w.a.n, Kind: event.Hang, Level: level, Msg: text, Data: data}
}

// read takes the figures of one look, and the processes that they are of.
func (w *hangWatch) read(ctx context.Context) (hang.Look, []proctree.Proc) {
	a := w.a
	l := hang.Look{At: monotonic(), Boot: clock.Boottime(), Printed: a.printed.Load()}
	l.Age = l.At - w.began
	if !a.offsetsKnown.Load() {
		// Without the holder's word the file says what was printed.
		if st, err := os.Stat(filepath.Join(a.dir, "output.log")); err == nil {
			l.Printed = max(l.Printed, st.Size())
		}
	}
	l.Median = a.quiet.median()
	a.mu.Lock()
	l.Step, l.Stepped = a.last.N, a.haveStep
	l.Over = a.quiet.said.over || a.total > 0 && a.haveStep && a.last.N >= a.total
	a.mu.Unlock()
	procs, tree := w.tree()
	l.Tree = tree
	var work, reports []int
	var training, beside []proctree.Proc
	for _, p := range procs {
		l.Stopped = l.Stopped || p.State == 'T' || p.State == 't' || frozen(p.PID)
		if w.cfg.Reporter(p.Comm) {
			reports, beside = append(reports, p.PID), append(beside, p)
			continue
		}
		work = append(work, p.PID)
		training = append(training, p)
	}
	l.Work, l.Reports = usage(&w.work, work), usage(&w.reports, reports)
	l.NoGPU = w.without(ctx)
	l.GPUPct = w.gpu()
	if w.watch.Moves(l) {
		return l, procs
	}
	carried, err := w.sockets.Read(training, beside)
	l.Sockets, l.Inner, l.Told = hang.Bytes{N: carried.OutB, OK: err == nil}, hang.Bytes{N: carried.InnerB, OK: err == nil}, hang.Bytes{N: carried.BesideB, OK: err == nil}
	l.Shared = carried.Rest
	l.Net.N, l.Net.OK = w.net.Read(work)
	if l.Local = talk(carried.Local); l.Local != hang.Nobody {
		talkers := slices.DeleteFunc(training, func(p proctree.Proc) bool { return !carried.Talkers[p.PID] })
		woken, ok := w.wakes.Read(talkers, w.cfg.Poller)
		l.Received, l.Polled = hang.Bytes{N: woken.Received, OK: ok}, hang.Bytes{N: woken.Polled, OK: ok}
	}
	return l, procs
}

func talk(l proctree.Local) hang.Talk {
	switch l {
	case proctree.LocalNone:
		return hang.Nobody
	case proctree.LocalInner:
		return hang.Inside
	}
	return hang.Outside
}

// tree are the processes of the attempt now; ok is false where they are not all known.
func (w *hangWatch) tree() (procs []proctree.Proc, ok bool) {
	a := w.a
	procs = proctree.Walk(a.started.HolderPID)
	ok = len(procs) > 0
	if a.box.client {
		inside := a.box.processes()
		ok = ok && len(inside) > 0
		for _, p := range inside {
			if now, there := proctree.Read(p.PID); there && now.Start == p.Start {
				procs = append(procs, now)
			}
		}
	}
	return procs, ok
}

func usage(acc *proctree.Account, pids []int) hang.Usage {
	t := acc.Read(pids)
	return hang.Usage{CPU: t.CPU, Disk: hang.Bytes{N: t.ReadB + t.WriteB, OK: t.IOKnown}}
}

// gpu is the GPU's mean utilisation since the last look.
func (w *hangWatch) gpu() sample.Num {
	if w.r.samp == nil {
		return sample.Num{}
	}
	tick := max(w.r.o.TelemetryInterval, 100*time.Millisecond)
	sum, n := 0.0, 0
	for _, s := range w.r.samp.Window(max(w.every, 3*tick)) {
		if s.UtilPct.OK {
			sum += s.UtilPct.V
			n++
		}
	}
	if n == 0 {
		return sample.Num{}
	}
	return sample.Known(sum / float64(n))
}

// without says whether the machine has no GPU at all: one whose driver does not answer is
// one.
func (w *hangWatch) without(ctx context.Context) bool {
	if w.noGPU != nil {
		return *w.noGPU
	}
	if w.r.samp == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	d, err := w.r.samp.Device(ctx)
	if err != nil {
		return false // not known yet
	}
	none := d.Source == "none"
	for _, name := range []string{"/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/nvhost-gpu", "/dev/dxg", "/dev/kfd", "/dev/accel"} {
		if _, err := os.Stat(name); err == nil {
			none = false
		}
	}
	w.noGPU = &none
	return none
}

// monotonic is CLOCK_MONOTONIC, which stands still while the machine is suspended.
func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail with a valid clock
	return time.Duration(ts.Nano())
}

// frozen says whether a process's cgroup is frozen, as the pause of a container does it.
func frozen(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	for _, line := range strings.Split(string(b), "\n") {
		dir, ok := strings.CutPrefix(line, "0::")
		if !ok || dir == "/" {
			continue
		}
		events, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", dir, "cgroup.events"))
		if err == nil && slices.Contains(strings.Split(string(events), "\n"), "frozen 1") {
			return true
		}
	}
	return false
}
