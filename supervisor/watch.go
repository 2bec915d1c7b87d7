package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/runlog"
)

// quiet is what tells a hang from work, fed by the line reader.
type quiet struct {
	mu sync.Mutex
	// advance is the time of the last step, printed of the last output, pendingAt
	// of the out-of-memory line that stands since then, zero while there is none.
	advance, printed, pendingAt time.Time
	offset                      int64
	// paused is how long the attempt has been paused in all: no silence of its own.
	paused time.Duration
	steps  []time.Duration // the last ones
	next   int
	// early is guarded by the stepMu of the attempt, said by the mu of the attempt.
	early *early
	said  saidOver
}

// stepsKept bounds the step times that the median is taken of.
const stepsKept = 63

// line takes one line of output; pending says that an out-of-memory line stands
// and no step has followed it.
func (q *quiet) line(t time.Time, advance, pending bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.printed = t
	switch {
	case advance:
		q.advance, q.pendingAt = t, time.Time{}
	case !pending:
		q.pendingAt = time.Time{}
	case q.pendingAt.IsZero():
		q.pendingAt = t
	}
}

func (q *quiet) step(s sample.Num) {
	if !s.OK || s.V <= 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	d := time.Duration(s.V * float64(time.Second))
	if len(q.steps) < stepsKept {
		q.steps = append(q.steps, d)
		return
	}
	q.steps[q.next] = d
	q.next = (q.next + 1) % stepsKept
}

// resumed takes note of a pause that is over: what stood still by our doing does not hang.
func (q *quiet) resumed(began, end time.Time) {
	if !end.After(began) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.paused += end.Sub(began)
	for _, t := range []*time.Time{&q.advance, &q.printed, &q.pendingAt} {
		switch {
		case t.IsZero() || t.After(end):
		case t.Before(began):
			*t = t.Add(end.Sub(began))
		default: // the pause takes a moment to reach everybody
			*t = end
		}
	}
}

// at is how things stand. offset is what the child has printed by now: a line
// without an end is output too.
func (q *quiet) at(now, start time.Time, offset int64) oom.Quiet {
	q.mu.Lock()
	defer q.mu.Unlock()
	if offset != q.offset {
		q.offset, q.printed = offset, now
	}
	since := func(t time.Time) time.Duration {
		if t.IsZero() {
			t = start.Add(q.paused)
		}
		return now.Sub(t)
	}
	return oom.Quiet{Pending: !q.pendingAt.IsZero(), Since: since(q.pendingAt), SinceOutput: since(q.printed), SinceAdvance: since(q.advance), MedianStep: q.medianStep(), Alive: true}
}

// median is the usual time for a step, 0 for unknown.
func (q *quiet) median() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.medianStep()
}

func (q *quiet) medianStep() time.Duration {
	if len(q.steps) == 0 {
		return 0
	}
	sorted := slices.Clone(q.steps)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

// watchQuiet ends an attempt in which nothing moves any more after an
// out-of-memory line: other ranks would wait for half an hour, a driver for ever.
func (r *run) watchQuiet(ctx context.Context, a *attempt) {
	if r.o.HangAfter <= 0 {
		return
	}
	var worked work
	warned := false
	every := min(time.Second, max(r.o.HangAfter/4, 50*time.Millisecond))
	tick := alarm.After(clock.Beat(every))
	defer tick.Stop()
	var pausedAt time.Time // when this pause was first seen
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Reset(clock.Beat(every))
		}
		switch paused := r.pausedNow(); {
		case paused:
			if pausedAt.IsZero() {
				pausedAt = time.Now()
			}
			continue
		case !pausedAt.IsZero():
			worked, pausedAt = worked.resumed(time.Since(pausedAt)), time.Time{}
		}
		q := a.quiet.at(r.clk.At(clock.Boottime()), a.start, a.printed.Load())
		q.Floor, q.Alive = r.o.HangAfter, a.exit.Load() == nil
		hung, why := oom.Hung(q)
		if !hung {
			if q.Pending {
				worked = a.works(worked)
			}
			continue
		}
		// Something that computes may be a silent evaluation, or ranks that spin
		// while they wait for a dead one: it gets ten times as long.
		if worked = a.works(worked); worked.looks < 2 {
			continue // whether it computes is not known yet
		}
		if worked.busy(time.Now(), r.o.HangAfter) {
			if !warned {
				warned = true
				r.log.Event(event.Event{Attempt: a.n, Kind: event.Hang, Level: event.Warn, Msg: "the command may hang, but its processes still compute: " + why + fmt.Sprintf("; it is ended after %d times as long", busyPatience)})
			}
			q.Floor *= busyPatience
			if hung, why = oom.Hung(q); !hung {
				continue
			}
		}
		r.endWatched(a, hangEnd(why), event.Event{
			Kind: event.Hang, Level: event.Error, Msg: "the command hangs, ending it: " + why,
			Data: map[string]any{"since_s": q.Since.Seconds(), "median_step_s": q.MedianStep.Seconds()},
		})
		return
	}
}

// busyPatience is how many times longer silence is borne from a tree that computes.
const busyPatience = 10

// work is the CPU time of the tree, looked at while an out-of-memory line stands.
type work struct {
	cpu  time.Duration // of all processes, at the last look
	at   time.Time     // of the last look
	last time.Time     // when it was last seen to compute
	// looks counts them: one alone says nothing.
	looks int
}

// resumed is the work after a pause of so long, in which there could be none.
func (w work) resumed(after time.Duration) work {
	if !w.last.IsZero() {
		w.last = w.last.Add(after)
	}
	w.at = time.Time{} // the pause is no part of what is measured
	return w
}

// workShare of one core is work; a rank that sleeps and polls needs less.
const workShare = 0.05

// works looks at the tree's CPU time.
func (a *attempt) works(w work) work {
	now := time.Now()
	if now.Sub(w.at) < 500*time.Millisecond {
		return w
	}
	var cpu time.Duration
	for _, p := range append(proctree.Walk(a.started.HolderPID), a.box.processes()...) {
		if p.PID != a.started.HolderPID {
			cpu += proctree.CPU(p.PID)
		}
	}
	if !w.at.IsZero() && float64(cpu-w.cpu) > workShare*float64(now.Sub(w.at)) {
		w.last = now
	}
	w.cpu, w.at = cpu, now
	w.looks++
	return w
}

// busy says that the tree has computed within that time: a pause, as for a disk, is no
// end of the work.
func (w work) busy(now time.Time, within time.Duration) bool {
	return !w.last.IsZero() && now.Sub(w.last) < max(within, 2*time.Second)
}

// hangGrace is what the child of a command that hangs has from its SIGTERM until all
// processes get one; SIGKILL comes ten seconds after that. A rank that still runs may
// write its traceback.
const hangGrace = 5 * time.Second

// hangEnd is the end of an attempt that hangs.
func hangEnd(why string) watchEnd {
	return watchEnd{name: "hang", by: runlog.ByLimit, kind: runlog.EndHang, grace: hangGrace, how: "hung and was ended", words: why}
}

// limits are what the child may use at most.
type limits struct {
	mu      sync.Mutex
	address sample.Num // RLIMIT_AS in KiB, unknown when there is none
}

// read looks at the limits of a process. They are looked at again and again, since
// a program may set its own; the lowest that was seen counts.
func (l *limits) read(pid int) {
	var lim unix.Rlimit
	if pid <= 0 || unix.Prlimit(pid, unix.RLIMIT_AS, nil, &lim) != nil {
		return
	}
	l.note(lim.Cur)
}

// note takes a limit in bytes, as getrlimit gives it.
func (l *limits) note(bytes uint64) {
	if bytes == unix.RLIM_INFINITY {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if kib := float64(bytes) / 1024; !l.address.OK || kib < l.address.V {
		l.address = sample.Known(kib)
	}
}

func (l *limits) addressKiB() sample.Num {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.address
}

// space is how full shared memory and the disks were at their worst. What filled
// them is often gone with the process that died of it.
type space struct {
	mu      sync.Mutex
	shmPct  sample.Num
	freeKiB sample.Num
	// pid is a process whose /dev/shm is the job's own: one in the container.
	pid int
}

// watch looks again and again until ctx ends. It is a goroutine of its own since
// a mount that does not answer holds it for good.
func (s *space) watch(ctx context.Context, dirs []string) {
	tick := alarm.After(clock.Beat(time.Second))
	defer tick.Stop()
	for n := 0; ; n++ {
		s.lookShm()
		if n%2 == 0 {
			s.lookDisks(dirs)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Reset(clock.Beat(time.Second))
		}
	}
}

func (s *space) lookShm() {
	s.mu.Lock()
	path := "/dev/shm"
	if s.pid != 0 {
		path = filepath.Join("/proc", strconv.Itoa(s.pid), "root/dev/shm")
	}
	s.mu.Unlock()
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil || st.Blocks == 0 {
		return
	}
	pct := 100 * float64(st.Blocks-st.Bfree) / float64(st.Blocks)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shmPct.OK || pct > s.shmPct.V {
		s.shmPct = sample.Known(pct)
	}
}

func (s *space) lookDisks(dirs []string) {
	for _, dir := range dirs {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) != nil {
			continue
		}
		free := float64(st.Bavail) * float64(st.Bsize) / 1024
		s.mu.Lock()
		if !s.freeKiB.OK || free < s.freeKiB.V {
			s.freeKiB = sample.Known(free)
		}
		s.mu.Unlock()
	}
}

func (s *space) worst() (shmPct, freeKiB sample.Num) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shmPct, s.freeKiB
}

func (s *space) inside(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

// writesTo are the folders that the job writes to, as far as is known.
func (r *run) writesTo(a *attempt) []string {
	dirs := []string{r.o.Dir, r.dir.Path}
	tmp := lookupEnv(r.o.Env, "TMPDIR")
	if tmp == "" {
		tmp = os.TempDir()
	}
	dirs = append(dirs, tmp)
	if out := a.knobs[job.OutputDir].Value; out != "" {
		if !filepath.IsAbs(out) {
			out = filepath.Join(r.o.Dir, out)
		}
		dirs = append(dirs, out)
	}
	return dirs
}

// sampled remembers the least MemAvailable while the attempt ran.
func (a *attempt) sampled(s *sample.Sample) {
	if !s.MemAvailableKiB.OK || a.exit.Load() != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.lowest.OK || s.MemAvailableKiB.V < a.lowest.V {
		a.lowest = s.MemAvailableKiB
	}
	a.lastSample = s
}

// peakKiB is the most memory the attempt is known to have used: what went from
// MemAvailable, which GPU memory counts into on unified memory.
func (a *attempt) peakKiB() sample.Num {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.lowest.OK || a.baseKiB == 0 || float64(a.baseKiB) < a.lowest.V {
		return sample.Num{}
	}
	return sample.Known(float64(a.baseKiB) - a.lowest.V)
}
