package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/sampler/kmsg"
)

// kernelLog keeps what the kernel said during the run, within bounds: the ring
// in the kernel may be flooded over by then, so it is followed from the start.
type kernelLog struct {
	mu    sync.Mutex
	lines []oom.KernelRecord
	err   string
	ours  func(pid int) bool
}

// kernelKeep is how many records are kept; an out-of-memory report with its
// list of tasks has some hundreds.
const kernelKeep = 5000

// followKernel begins to follow the kernel log. It is open when it returns, so
// that nothing a child causes can come before.
func followKernel(ctx context.Context, clk clock.Clock, sink event.Sink, ours func(pid int) bool) *kernelLog {
	k := &kernelLog{ours: ours}
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
	case strings.Contains(l.Text, "NVRM: Xid"):
		sink(event.Event{T: rec.T, Kind: event.KernelXid, Level: event.Warn, Msg: "kernel: " + l.Text})
	}
}

// killedPID finds whom an out-of-memory record names.
var killedPID = regexp.MustCompile(`Kill(?:ed)? process (\d+)`)

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
	ev := oom.Evidence{Signals: a.stops, Start: a.start, End: a.end, TreePIDs: map[int]string{}}
	killed := false
	if e := a.exit.Load(); e != nil {
		ev.Exit = oom.Exit{Known: true, Code: e.Code, Signal: e.Signal, T: a.end}
		killed = e.Signal == "SIGKILL"
		for _, p := range e.Orphans {
			ws := unix.WaitStatus(p.Status)
			one := oom.Reaped{PID: p.PID, Comm: p.Comm, Code: ws.ExitStatus()}
			if ws.Signaled() {
				one.Signal = unix.SignalName(ws.Signal())
			}
			ev.Reaped = append(ev.Reaped, one)
			ev.TreePIDs[p.PID] = p.Comm
			killed = killed || one.Signal == "SIGKILL"
		}
	}
	// The kernel writes its record before the signal arrives, but its log is
	// read by another goroutine: give that a moment.
	if killed && len(a.stops) == 0 {
		for i := 0; i < 25 && !r.kernel.sawKill(a.start.Add(-time.Second)); i++ {
			time.Sleep(10 * time.Millisecond)
		}
	}
	ev.Kernel, ev.KernelErr = r.kernel.since(a.start.Add(-time.Second))
	ev.KernelReadable = ev.KernelErr == ""
	if !ev.KernelReadable {
		ev.Unreadable = append(ev.Unreadable, "kernel log: "+ev.KernelErr)
	}
	if n, err := meminfo.OOMKills("/"); err == nil {
		ev.VMOOMKillDelta = grown(a.vmKills, sample.Known(float64(n)))
	} else {
		ev.Unreadable = append(ev.Unreadable, err.Error())
	}
	if a.cgroup.dir != "" {
		ev.CgroupPath = cgroupName(a.cgroup.dir)
		ev.CgroupOOMKillDelta = grown(a.cgroup.kills, readCgroupKills(a.cgroup.dir))
	} else if killed {
		// The cgroup is shared with us and the user's shell; its count is
		// evidence only together with a kill of our own.
		ev.CgroupOOMKillDelta = grown(a.ownCG.kills, readCgroupKills(a.ownCG.dir))
	}
	if r.samp != nil {
		ev.Samples = r.samp.Window(time.Minute)
	} else {
		ev.Unreadable = append(ev.Unreadable, "memory samples: the sampler did not start")
	}
	ev.ShmUsedPct, ev.DiskFreeMinKiB = diskFigures(r.o.Dir)
	a.mu.Lock()
	defer a.mu.Unlock()
	for pid, comm := range a.tree {
		ev.TreePIDs[pid] = comm
	}
	if a.started.ChildPID != 0 {
		if _, ok := ev.TreePIDs[a.started.ChildPID]; !ok {
			ev.TreePIDs[a.started.ChildPID] = filepath.Base(a.rewrite.Argv[0])
		}
	}
	ev.Output = a.output
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

// diskFigures returns the use of /dev/shm in percent and the free space of the
// working folder in KiB, both at this moment.
func diskFigures(dir string) (shmPct, freeKiB sample.Num) {
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil && st.Blocks > 0 {
		shmPct = sample.Known(100 * float64(st.Blocks-st.Bfree) / float64(st.Blocks))
	}
	if unix.Statfs(dir, &st) == nil {
		freeKiB = sample.Known(float64(st.Bavail) * float64(st.Bsize) / 1024)
	}
	return shmPct, freeKiB
}

// cgroupCount is the number of OOM kills a cgroup has seen.
type cgroupCount struct {
	dir   string
	kills sample.Num
}

// readCgroupKills reads the OOM kill count of a cgroup folder, v2 or v1.
func readCgroupKills(dir string) sample.Num {
	if dir == "" {
		return sample.Num{}
	}
	for _, name := range []string{"memory.events", "memory.oom_control"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(b), "\n") {
			if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
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
