package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/lazyre"
	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/sampler/kmsg"
	"sparkrun/supervisor/guard"
)

// kernelLog keeps what the kernel said during the run, within bounds: the ring
// in the kernel may be flooded over by then, so it is followed from the start.
type kernelLog struct {
	mu    sync.Mutex
	lines []oom.KernelRecord
	err   string
	// daemons says why the daemons that kill could not be followed, "" if they
	// are.
	daemons string
	// xids counts the driver's errors by number: one fault writes hundreds.
	xids map[int]int
	ours func(pid int) bool
}

// kernelKeep is how many records are kept; an out-of-memory report with its
// list of tasks has some hundreds.
const kernelKeep = 5000

// followKernel begins to follow the kernel log. It is open when it returns, so
// that nothing a child causes can come before.
func followKernel(ctx context.Context, clk clock.Clock, env []string, sink event.Sink, ours func(pid int) bool) *kernelLog {
	k := &kernelLog{ours: ours, xids: map[int]int{}}
	kmsg.FollowDaemons(ctx, env, func(l sample.KernelLine) { k.add(clk, l, sink) }, func(why string) {
		k.mu.Lock()
		k.daemons = why
		k.mu.Unlock()
		sink(event.Event{Kind: event.SensorAbsent, Level: event.Info, Msg: why})
	})
	log, err := kmsg.Open()
	if err != nil {
		k.fail(err, sink)
		return k
	}
	go func() {
		defer log.Close()
		err := log.Follow(ctx, func(l sample.KernelLine) { k.add(clk, l, sink) }, func(n uint64) {
			sink(event.Event{Kind: event.SensorGap, Level: event.Warn, Msg: fmt.Sprintf("the kernel log ran over: %d records were not seen", n)})
		})
		if err != nil && ctx.Err() == nil {
			k.fail(err, sink)
		}
	}()
	return k
}

func (k *kernelLog) fail(err error, sink event.Sink) {
	k.mu.Lock()
	k.err = err.Error()
	k.mu.Unlock()
	sink(event.Event{Kind: event.SensorAbsent, Level: event.Info, Msg: "the kernel log cannot be followed: " + err.Error() + "; verdicts do without it"})
}

func (k *kernelLog) add(clk clock.Clock, l sample.KernelLine, sink event.Sink) {
	rec := oom.KernelRecord{T: clk.At(l.Boot), Text: l.Text}
	k.mu.Lock()
	if len(k.lines) >= kernelKeep {
		k.lines = append(k.lines[:0], k.lines[kernelKeep/2:]...)
	}
	k.lines = append(k.lines, rec)
	k.mu.Unlock()
	switch {
	case isKill(l.Text):
		e := event.Event{T: rec.T, Kind: event.KernelOOM, Level: event.Info, Msg: "a process not known to be this job's was killed for memory: " + l.Text}
		if m := killedPID.FindStringSubmatch(l.Text); m != nil {
			if pid, err := strconv.Atoi(m[1]); err == nil && k.ours(pid) {
				e.Level, e.Msg = event.Warn, "kernel: "+l.Text
			}
		}
		sink(e)
	case isDaemonKill(l.Text):
		sink(event.Event{T: rec.T, Kind: event.KernelOOM, Level: event.Info, Msg: l.Text})
	default:
		k.xid(rec, sink)
	}
}

// xid tells the first driver error of each number; the rest are counted.
func (k *kernelLog) xid(rec oom.KernelRecord, sink event.Sink) {
	n, ok := kmsg.Xid(rec.Text)
	if !ok {
		return
	}
	k.mu.Lock()
	k.xids[n]++
	first := k.xids[n] == 1
	k.mu.Unlock()
	if first {
		sink(event.Event{T: rec.T, Kind: event.KernelXid, Level: event.Warn, Msg: "kernel: " + rec.Text, Data: map[string]any{"xid": n}})
	}
}

// isDaemonKill says whether a daemon that watches memory tells of a kill.
func isDaemonKill(text string) bool {
	return strings.HasPrefix(text, "systemd-oomd[") && strings.Contains(text, "Killed ") ||
		strings.HasPrefix(text, "earlyoom[") && strings.Contains(text, "sending SIG") ||
		strings.HasPrefix(text, "slurm") && strings.Contains(text, "oom")
}

// daemonsErr says why the daemons could not be followed.
func (k *kernelLog) daemonsErr() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.daemons
}

// killedPID finds whom an out-of-memory record names.
var killedPID = lazyre.New(`Kill(?:ed)? process (\d+)`)

// isKill says whether a record tells of an out-of-memory kill.
func isKill(text string) bool { return strings.Contains(text, "ut of memory: Kill") }

// since returns the records from t on.
func (k *kernelLog) since(t time.Time) ([]oom.KernelRecord, string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []oom.KernelRecord
	for _, l := range k.lines {
		if !l.T.Before(t) {
			out = append(out, l)
		}
	}
	return out, k.err
}

// sawKill says whether an out-of-memory kill was recorded since t.
func (k *kernelLog) sawKill(t time.Time) bool {
	lines, _ := k.since(t)
	for _, l := range lines {
		if isKill(l.Text) {
			return true
		}
	}
	return false
}

// grown returns how much a count grew; unknown unless both ends are known.
func grown(from, to sample.Num) sample.Num {
	if !from.OK || !to.OK || to.V < from.V {
		return sample.Num{}
	}
	return sample.Known(to.V - from.V)
}

// gather collects the evidence of an attempt that has ended.
func (r *run) gather(a *attempt) oom.Evidence {
	ev := oom.Evidence{Signals: a.stops, Start: a.start, End: a.end, Tree: map[int]oom.TreeProc{}, Nodes: r.job.Nodes}
	killed := false
	// A number is not given away before its process is reaped: those reaped here were
	// ours to the end, however long ago they were last looked at.
	reaped := map[int]string{}
	e := a.exit.Load()
	if e != nil {
		ev.Exit = oom.Exit{Known: true, Code: e.Code, Signal: e.Signal, T: a.end}
		if n := a.engineStatus; n != nil && *n != e.Status() {
			// The client died of something else than its container.
			ev.Exit.Code, ev.Exit.Signal = *n, ""
		}
		killed = e.Signal == "SIGKILL" || e.Status() == 137
		ev.Guard = r.guardEvidence(e.Guard)
		if e.AddressLimit > 0 {
			a.limits.note(e.AddressLimit)
		}
		for _, p := range e.Orphans {
			ws := unix.WaitStatus(p.Status)
			one := oom.Reaped{PID: p.PID, Comm: p.Comm, Code: ws.ExitStatus()}
			if ws.Signaled() {
				one.Signal = unix.SignalName(ws.Signal())
			}
			ev.Reaped = append(ev.Reaped, one)
			reaped[p.PID] = p.Comm
			killed = killed || one.Signal == "SIGKILL"
		}
	}
	// The kernel writes its record before the signal arrives, but its log is
	// read by another goroutine: give that a moment.
	if killed && len(a.stops) == 0 && ev.Guard == nil {
		for i := 0; i < 25 && !r.kernel.sawKill(a.start); i++ {
			time.Sleep(10 * time.Millisecond)
		}
	}
	// Not a moment earlier: the attempt before may have died in the same cgroup.
	ev.Kernel, ev.KernelErr = r.kernel.since(a.start)
	ev.KernelReadable = ev.KernelErr == ""
	if !ev.KernelReadable {
		ev.Unreadable = append(ev.Unreadable, "kernel log: "+ev.KernelErr)
	}
	if why := r.kernel.daemonsErr(); why != "" {
		ev.Unreadable = append(ev.Unreadable, why)
	}
	if n, err := meminfo.OOMKills("/"); err == nil {
		ev.VMOOMKillDelta = grown(a.vmKills, sample.Known(float64(n)))
	} else {
		ev.Unreadable = append(ev.Unreadable, err.Error())
	}
	if a.cgroup.dir != "" {
		ev.CgroupPaths = []string{cgroupName(a.cgroup.dir)}
		ev.CgroupOOMKillDelta = grown(a.cgroup.kills, readCgroupKills(a.cgroup.dir))
		ev.CgroupOOMEvents = grown(a.cgroup.ooms, readCgroupOOMs(a.cgroup.dir))
	} else if killed {
		// The cgroup is shared with us and the user's shell; its count is
		// evidence only together with a kill of our own.
		ev.CgroupOOMKillDelta = grown(a.ownCG.kills, readCgroupKills(a.ownCG.dir))
		ev.CgroupOOMEvents = grown(a.ownCG.ooms, readCgroupOOMs(a.ownCG.dir))
	}
	if r.samp != nil {
		ev.Samples = r.samp.Window(time.Minute)
	} else {
		ev.Unreadable = append(ev.Unreadable, "memory samples: the sampler did not start")
	}
	a.space.lookShm() // before anything of it is removed
	ev.ShmUsedPct, ev.DiskFreeMinKiB = a.space.worst()
	ev.AddressLimitKiB = a.limits.addressKiB()
	if ev.AllocConf = lookupEnv(r.o.Env, "PYTORCH_ALLOC_CONF"); ev.AllocConf == "" {
		ev.AllocConf = lookupEnv(r.o.Env, "PYTORCH_CUDA_ALLOC_CONF")
	}
	a.box.evidence(&ev)
	a.mu.Lock()
	defer a.mu.Unlock()
	for pid, p := range a.tree {
		ev.Tree[pid] = p
	}
	if pid := a.started.ChildPID; pid != 0 {
		if _, ok := ev.Tree[pid]; !ok {
			ev.Tree[pid] = oom.TreeProc{Comm: filepath.Base(a.rewrite.Argv[0])}
		}
		reaped[pid] = ev.Tree[pid].Comm
	}
	for pid, comm := range reaped {
		p := ev.Tree[pid]
		if p.Comm == "" {
			p.Comm = comm
		}
		p.Last = a.end
		ev.Tree[pid] = p
	}
	ev.Output = a.output
	if ev.Guard == nil && e == nil {
		ev.Guard = r.guardEvidence(a.acted)
	}
	// "load" is also what a job without recognised steps stays in: then only the
	// output can tell that it was loading.
	if ev.Guard != nil && a.haveStep {
		ev.GuardPhase = guard.PhaseRun
	}
	ev.StepsDone = a.haveStep
	ev.LastStep = a.last.N
	ev.TrainingFinished = a.finished
	return ev
}

// cgroupName returns a cgroup folder as the kernel names it in its records:
// the path below the hierarchy's root.
func cgroupName(dir string) string {
	for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if rest, ok := strings.CutPrefix(filepath.Clean(dir), root+"/"); ok {
			return "/" + rest
		}
	}
	return dir
}

// cgroupCount is the number of OOM kills a cgroup has seen.
type cgroupCount struct {
	dir   string
	kills sample.Num
	// ooms is how often the limit itself had been the reason (v2 only).
	ooms sample.Num
}

// readCgroupKills reads the OOM kill count of a cgroup folder, v2 or v1.
func readCgroupKills(dir string) sample.Num { return readCgroupCount(dir, "oom_kill ") }

// readCgroupOOMs reads how often a v2 cgroup ran into its limit for good. A kill for
// the whole machine's memory does not count here, and does as an oom_kill.
func readCgroupOOMs(dir string) sample.Num { return readCgroupCount(dir, "oom ") }

func readCgroupCount(dir, key string) sample.Num {
	if dir == "" {
		return sample.Num{}
	}
	for _, name := range []string{"memory.events", "memory.oom_control"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(b), "\n") {
			if v, ok := strings.CutPrefix(line, key); ok {
				if n, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
					return sample.Known(n)
				}
			}
		}
	}
	return sample.Num{}
}

// ownMemoryCgroup returns the folder of the memory cgroup this process is in,
// which the child inherits; "" when it cannot be told or is the root, whose
// count says nothing about us.
func ownMemoryCgroup() string {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	v2 := ""
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 || f[2] == "/" {
			continue
		}
		if f[0] == "0" {
			v2 = filepath.Join("/sys/fs/cgroup", f[2])
			continue
		}
		for _, c := range strings.Split(f[1], ",") {
			if c == "memory" {
				return filepath.Join("/sys/fs/cgroup/memory", f[2])
			}
		}
	}
	return v2
}
