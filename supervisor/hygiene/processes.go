package hygiene

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/supervisor/gate"
)

const (
	// defaultGrace is what a leftover has between SIGTERM and SIGKILL, endWithin
	// the bound on ending them all.
	defaultGrace = 2 * time.Second
	endWithin    = 5 * time.Second
	// rescan is how often new ones are looked for while they end.
	rescan = 100 * time.Millisecond
)

var errGone = unix.ESRCH

// victim is a leftover process being ended.
type victim struct {
	proc
	name   string
	why    string
	fd     int // pidfd, -1 where there is none
	gpu    []string
	ports  []listener
	killed bool
	ended  bool
	err    error
}

// processes ends what is left of the tree and tells; it returns whether there was
// anything.
func (c *cleaner) processes(ctx context.Context) bool {
	if name, value, ok := strings.Cut(c.o.Entry, "="); !ok || name == "" || value == "" {
		c.tab.look()
		return false // an entry that many have names nobody
	}
	victims := map[key]*victim{}
	defer func() {
		for _, v := range victims {
			if v.fd >= 0 {
				unix.Close(v.fd)
			}
		}
	}()
	began := time.Now()
	deadline := began.Add(max(endWithin, c.o.Grace+endWithin/2))
	for {
		c.tab.look()
		for _, p := range c.leftovers() {
			if victims[p.key()] == nil {
				victims[p.key()] = c.meet(p)
			}
		}
		if c.o.DryRun || len(victims) == 0 {
			break
		}
		left := 0
		for _, v := range victims {
			if c.end(v, time.Since(began) >= c.o.Grace); !v.ended {
				left++
			}
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
		if left == 0 {
			if c.more(victims) {
				continue
			}
			break
		}
		limit := rescan
		if due := time.Until(began.Add(c.o.Grace)); due > 0 {
			limit = min(limit, due+time.Millisecond)
		}
		await(ctx, victims, limit)
	}
	order := make([]*victim, 0, len(victims))
	for _, v := range victims {
		order = append(order, v)
	}
	slices.SortFunc(order, func(a, b *victim) int { return a.pid - b.pid })
	for _, v := range order {
		c.report(v)
	}
	c.stuck(victims)
	return len(victims) > 0
}

// more says whether others appeared while the last were ending.
func (c *cleaner) more(victims map[key]*victim) bool {
	c.tab.look()
	return slices.ContainsFunc(c.leftovers(), func(p proc) bool { return victims[p.key()] == nil })
}

// leftovers are the processes of the run that live: those that carry its entry
// in their environment, and below them those without any environment to go by.
// A process that carries another environment is somebody's own start (su, a new
// login) and is left alone, whoever its parent is.
func (c *cleaner) leftovers() []proc {
	ours := map[int]bool{}
	for pid, p := range c.tab.procs {
		ours[pid] = p.env == envOurs
	}
	var out []proc
	for pid, p := range c.tab.procs {
		if p.gone() || c.protected(pid) {
			continue
		}
		if ours[pid] || p.env == envNone && (c.below(p, ours) || c.seen(p)) {
			out = append(out, p)
		}
	}
	return out
}

// below says whether a living process of the run is above p, with none between
// that is known to be another's.
func (c *cleaner) below(p proc, ours map[int]bool) bool {
	for range 64 { // the table is no snapshot: it may hold a circle
		up, ok := c.tab.procs[p.ppid]
		switch {
		case !ok || up.pid <= 1 || c.protected(up.pid):
			return false
		case ours[up.pid]:
			return true
		case up.env != envNone:
			return false
		}
		p = up
	}
	return false
}

// seen says whether a process without an environment is one the attempt was seen
// to have: same pid, name and user, and started during the attempt, so that a
// pid used again does not cost somebody else a process.
func (c *cleaner) seen(p proc) bool {
	comm, ok := c.o.Tree[p.pid]
	if !ok || comm != p.comm || c.o.Start.IsZero() || p.ppid == 2 {
		return false
	}
	if c.tab.detail(&p); p.uid != c.o.UID {
		return false
	}
	born, ok := started(p.start)
	// The clock tick is coarse: a hundredth of a second.
	return ok && !born.Before(c.o.Start.Add(-tick)) && !born.After(c.o.End)
}

// tick is the grain of start times: USER_HZ is 100 on every supported machine.
const tick = 10 * time.Millisecond

// started converts a start time in ticks since boot to the wall clock.
func started(ticks uint64) (time.Time, bool) {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return time.Time{}, false
	}
	return time.Now().Add(time.Duration(ticks)*tick - time.Duration(boot.Nano())), true
}

// meet notes what can only be asked while the process lives.
func (c *cleaner) meet(p proc) *victim {
	c.tab.detail(&p)
	v := &victim{proc: p, fd: -1, name: gate.Name(c.o.Root, p.pid)}
	switch p.env {
	case envOurs:
		v.why = "carries " + shown(c.o.Entry)
	default:
		v.why = "was started by the attempt"
	}
	inodes := map[uint64]bool{}
	for _, link := range c.tab.links(p.pid) {
		if strings.HasPrefix(link, "/dev/nvidia") && !slices.Contains(v.gpu, link) {
			v.gpu = append(v.gpu, link)
		}
		if n, ok := socketInode(link); ok {
			inodes[n] = true
		}
	}
	slices.Sort(v.gpu)
	if len(inodes) > 0 {
		for _, l := range c.tab.sockets(strconv.Itoa(p.pid)) {
			if l.state == tcpListen && inodes[l.inode] && !slices.ContainsFunc(v.ports, func(o listener) bool { return o.port == l.port }) {
				v.ports = append(v.ports, l)
			}
		}
	}
	return v
}

// end sends the signal that is due and notes whether the process has gone.
func (c *cleaner) end(v *victim, kill bool) {
	now, ok := c.tab.read(v.pid)
	if !ok || now.start != v.start || now.gone() {
		v.ended = true
		return
	}
	first := false
	if v.fd < 0 {
		fd, err := unix.PidfdOpen(v.pid, 0)
		switch {
		case errors.Is(err, unix.ESRCH):
			v.ended = true
			return
		case err != nil:
			v.err = fmt.Errorf("getting hold of process %d: %w", v.pid, err)
			return
		}
		v.fd, first = fd, true
		// The descriptor names one process; only now is it known to be the one.
		if now, ok = c.tab.read(v.pid); !ok || now.start != v.start {
			v.ended = true
			return
		}
	}
	switch {
	case kill && !v.killed:
		v.killed = true
		v.err = send(v.fd, unix.SIGKILL)
	case first:
		if v.err = send(v.fd, unix.SIGTERM); v.err == nil {
			_ = send(v.fd, unix.SIGCONT) // a stopped one could not obey
		}
	}
	if errors.Is(v.err, errGone) {
		v.ended, v.err = true, nil
	}
}

func send(pidfd int, sig unix.Signal) error {
	return unix.PidfdSendSignal(pidfd, sig, nil, 0)
}

// await returns when one of them has ended or the time is up.
func await(ctx context.Context, victims map[key]*victim, limit time.Duration) {
	fds := make([]unix.PollFd, 0, len(victims))
	for _, v := range victims {
		if !v.ended && v.fd >= 0 {
			fds = append(fds, unix.PollFd{Fd: int32(v.fd), Events: unix.POLLIN})
		}
	}
	if ctx.Err() == nil {
		// An interrupted poll is a poll that returned early.
		_, _ = unix.Poll(fds, int(max(1, limit.Milliseconds())))
	}
}

// report tells of a leftover and of the ports it held.
func (c *cleaner) report(v *victim) {
	what := fmt.Sprintf("%s (pid %d)", v.name, v.pid)
	if len(v.gpu) > 0 {
		what += ", with " + strings.Join(v.gpu[:min(3, len(v.gpu))], " ") + " open"
	}
	f := Finding{Kind: "process", What: what, KiB: v.anonKiB, PID: v.pid, Removed: v.ended, Why: v.why}
	switch {
	case v.ended:
	case c.o.DryRun:
		f.Why += "; it would be ended"
	case v.err != nil:
		f.Why += "; it could not be ended: " + v.err.Error()
	case v.killed:
		f.Why += "; it hangs in the kernel and could not be ended, not even by SIGKILL"
	default:
		f.Why += "; it was still ending when the wait was given up"
	}
	c.tell(f)
	for _, l := range v.ports {
		p := Finding{Kind: "port", What: l.String(), PID: v.pid, Why: "was held by " + what}
		if c.o.DryRun || !v.ended {
			p.Why = "is held by " + what
		} else {
			p.Removed = !c.tab.listening(l.port)
			if !p.Removed {
				p.Why += ", and is held by somebody else now"
			}
		}
		c.tell(p)
	}
}

// stuck tells of processes of the attempt whose memory map is locked for good, so
// that nothing about them can be read.
func (c *cleaner) stuck(victims map[key]*victim) {
	for k := range c.tab.hung {
		p, ok := c.tab.procs[k.pid]
		if !ok || p.key() != k || victims[k] != nil {
			continue
		}
		c.tab.detail(&p)
		if comm, seen := c.o.Tree[p.pid]; seen && comm == p.comm && p.uid == c.o.UID {
			c.tell(Finding{
				Kind: "process", What: fmt.Sprintf("%s (pid %d)", shown(p.comm), p.pid), KiB: p.anonKiB, PID: p.pid,
				Why: "was seen in the attempt and hangs in the kernel: its environment cannot be read, so it was left alone",
			})
		}
	}
}

// links returns where the descriptors of a process point to. The links are read,
// never followed: what they lead to may lie on a dead network mount.
func (t *table) links(pid int) []string {
	dir := t.path(pid, "fd")
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	out := make([]string, 0, len(names))
	for _, n := range names {
		if link, err := os.Readlink(dir + "/" + n); err == nil {
			out = append(out, link)
		}
	}
	return out
}
