package proctree

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Totals is what a tree of processes holds now and has used so far.
type Totals struct {
	// Procs and RSSKiB are those of the processes named at the last reading. Pages that
	// they share are counted once per process, as top does.
	Procs  int
	RSSKiB uint64
	// CPU is the CPU time of all processes that were ever seen in the tree, in the
	// kernel's hundredths of a second. It never falls.
	CPU time.Duration
	// ReadB and WriteB are the bytes that they read and wrote: of files, pipes and
	// sockets as the calls count them, or of the disk where that is more, as with files
	// that are mapped. They never fall.
	ReadB, WriteB uint64
	// IOKnown is false while a process of the tree does not let us see its bytes (one of
	// another user, or a kernel without the accounting): ReadB and WriteB are then only
	// what the others moved.
	IOKnown bool
}

// Account adds up what a tree of processes uses over the lives of its processes. The
// kernel keeps the figures per process, and those of an ended one go to the parent that
// waited for it, or to nobody; here what was seen is never lost and never counted twice.
// The files of a process stay open, which makes a reading cheap and sure to be of the same
// process. An Account belongs to one goroutine; its zero value is ready.
type Account struct {
	procs map[int]*accounted
	round uint64
	files int
	// ticks, readB and writeB are the totals.
	ticks, readB, writeB uint64
	gone                 []*accounted
	// due is what ended processes had whose heir is not known: it comes once more with
	// anybody's figures, in this round or the next.
	due, dueBefore counters
	buf            [2048]byte
	// figures reads a process in tests.
	figures func(*accounted) bool
}

// keptFiles bounds the files that are kept open; those of further processes are opened at
// each reading.
const keptFiles = 128

// counters are the kernel's figures that only grow. Those of the children that a process
// has waited for are in its I/O; its CPU time has them apart.
type counters struct {
	own, children                            uint64 // CPU ticks
	readChars, writeChars, readDisk, wroteDk uint64
}

// accounted is one process under account.
type accounted struct {
	pid, ppid int
	start     uint64
	named     uint64 // the round in which it was last named
	stat, io  int    // descriptors, -1 for none
	rssKiB    uint64
	hidden    bool // its I/O is not for us to see
	state     byte
	threads   uint64
	now, last counters
	// due is what ended children had. It has been counted, and comes once more with
	// this process's own figures, in this round or the next; dueBefore is that of the
	// round before.
	due, dueBefore counters
}

// Read takes the figures of the processes. pids are those that are in the tree now; one
// that is no longer named counts for as long as it lives.
func (a *Account) Read(pids []int) Totals {
	if a.procs == nil {
		a.procs = make(map[int]*accounted)
	}
	a.round++
	a.gone = a.gone[:0]
	for pid, p := range a.procs {
		if !a.look(p) {
			a.gone = append(a.gone, p)
			a.release(p)
			delete(a.procs, pid)
		}
	}
	a.dueBefore, a.due = a.due, counters{}
	a.inherit()
	a.due.children, a.due.own = a.due.children+a.due.own, 0
	t := Totals{IOKnown: true}
	for _, pid := range pids {
		p := a.procs[pid]
		if p == nil {
			if p = a.begin(pid); p == nil {
				continue
			}
			a.procs[pid] = p
		}
		if p.named != a.round {
			p.named = a.round
			t.Procs++
			t.RSSKiB += p.rssKiB
		}
	}
	for _, p := range a.procs {
		a.credit(p)
		t.IOKnown = t.IOKnown && !p.hidden
	}
	t.CPU = time.Duration(a.ticks) * 10 * time.Millisecond
	t.ReadB, t.WriteB = a.readB, a.writeB
	return t
}

// Close gives the files back; the account begins anew after it.
func (a *Account) Close() {
	for _, p := range a.procs {
		a.release(p)
	}
	*a = Account{}
}

// begin takes a process under account; nil where it is gone.
func (a *Account) begin(pid int) *accounted {
	p := &accounted{pid: pid, stat: -1, io: -1}
	if a.files+2 <= keptFiles && a.figures == nil {
		dir := "/proc/" + strconv.Itoa(pid)
		p.stat, _ = openFile(dir + "/stat")
		p.io, _ = openFile(dir + "/io")
		for _, fd := range []int{p.stat, p.io} {
			if fd >= 0 {
				a.files++
			}
		}
	}
	if !a.look(p) {
		a.release(p)
		return nil
	}
	return p
}

func (a *Account) release(p *accounted) {
	for _, fd := range []*int{&p.stat, &p.io} {
		if *fd >= 0 {
			unix.Close(*fd)
			a.files--
		}
		*fd = -1
	}
}

// look reads a process's figures; false says that it is gone.
func (a *Account) look(p *accounted) bool {
	if a.figures != nil {
		return a.figures(p)
	}
	b, err := a.read(p.pid, p.stat, "/stat")
	if err != nil || !p.parseStat(b) {
		return false
	}
	b, err = a.read(p.pid, p.io, "/io")
	switch {
	case err == nil:
		p.parseIO(b)
		p.hidden = false
	case p.over():
		// What is left of it belongs to root. It moves nothing any more, and what it had
		// is counted, or comes to the parent that waits for it.
		p.hidden = false
	case errors.Is(err, unix.ENOENT):
		// Gone since, or a kernel that does not count I/O per process.
		if b, err = a.read(p.pid, p.stat, "/stat"); err != nil || !p.parseStat(b) {
			return false
		}
		p.hidden = true
	case !errors.Is(err, unix.ESRCH):
		p.hidden = true
	}
	return true
}

// over says that a process has ended, and only its parent has not asked for it yet. One
// whose first thread alone has ended looks the same but for the number of threads.
func (p *accounted) over() bool {
	return (p.state == 'Z' || p.state == 'X') && p.threads <= 1
}

// read reads a small file of a process, by its descriptor or, without one, its name.
func (a *Account) read(pid, fd int, name string) ([]byte, error) {
	if fd < 0 {
		var err error
		if fd, err = openFile("/proc/" + strconv.Itoa(pid) + name); err != nil {
			return nil, err
		}
		defer unix.Close(fd)
	}
	for {
		n, err := unix.Pread(fd, a.buf[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return a.buf[:n], nil
	}
}

// parseStat takes the figures from /proc/PID/stat. It is false for another process than
// before: a number is used again.
func (p *accounted) parseStat(b []byte) bool {
	b = b[bytes.LastIndexByte(b, ')')+1:]
	// Field 3, the state, comes next. ppid is field 4; user and system time are 14 and
	// 15, those of ended children 16 and 17; threads are 20, the start is 22, resident
	// pages are 24.
	var f [25]uint64
	i := 2
	for n := 0; n < len(b) && i < len(f)-1; {
		for n < len(b) && b[n] == ' ' {
			n++
		}
		i++
		for ; n < len(b) && b[n] != ' '; n++ {
			// A field that is no number, as the state or -1, is not asked for.
			if b[n] >= '0' && b[n] <= '9' {
				f[i] = f[i]*10 + uint64(b[n]-'0')
			}
		}
	}
	if i < len(f)-1 || p.start != 0 && p.start != f[22] {
		return false
	}
	p.start, p.ppid = f[22], int(f[4])
	p.state, p.threads = 0, f[20]
	if state := bytes.TrimLeft(b, " "); len(state) > 0 {
		p.state = state[0]
	}
	p.now.own, p.now.children = f[14]+f[15], f[16]+f[17]
	p.rssKiB = f[24] * uint64(os.Getpagesize()) / 1024
	return true
}

// parseIO takes the figures from /proc/PID/io.
func (p *accounted) parseIO(b []byte) {
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 0 {
			continue
		}
		var v uint64
		for _, c := range line[colon+1:] {
			if c >= '0' && c <= '9' {
				v = v*10 + uint64(c-'0')
			}
		}
		switch string(line[:colon]) {
		case "rchar":
			p.now.readChars = v
		case "wchar":
			p.now.writeChars = v
		case "read_bytes":
			p.now.readDisk = v
		case "write_bytes":
			p.now.wroteDk = v
		}
	}
}

// inherit tells the nearest living forefather of each ended process what may come to it:
// the kernel adds the figures of a child to those of the parent that waits for it.
func (a *Account) inherit() {
	for _, p := range a.gone {
		if heir := a.procs[p.ppid]; heir != nil {
			heir.due.add(p.last)
			continue
		}
		// A parent that ended as well has handed on what it got, or has left this one to
		// whoever adopts orphans: which of them, nobody tells.
		if slices.ContainsFunc(a.gone, func(q *accounted) bool { return q.pid == p.ppid }) {
			a.due.add(p.last)
		}
	}
}

func (c *counters) add(o counters) {
	c.own += o.own
	c.children += o.children
	c.readChars += o.readChars
	c.writeChars += o.writeChars
	c.readDisk += o.readDisk
	c.wroteDk += o.wroteDk
}

// credit adds what a process has used since the last reading to the totals.
func (a *Account) credit(p *accounted) {
	due, before := p.due, p.dueBefore
	// Both parts of an ended child's CPU time come as one.
	due.children, before.children = due.children+due.own, before.children+before.own
	grew := func(now, last uint64, from ...*uint64) uint64 {
		if now <= last {
			return 0
		}
		d := now - last
		for _, from := range from {
			take := min(*from, d)
			*from -= take
			d -= take
		}
		return d
	}
	if p.now.own > p.last.own {
		a.ticks += p.now.own - p.last.own
	}
	a.ticks += grew(p.now.children, p.last.children, &before.children, &due.children, &a.dueBefore.children, &a.due.children)
	a.readB += max(
		grew(p.now.readChars, p.last.readChars, &before.readChars, &due.readChars, &a.dueBefore.readChars, &a.due.readChars),
		grew(p.now.readDisk, p.last.readDisk, &before.readDisk, &due.readDisk, &a.dueBefore.readDisk, &a.due.readDisk))
	a.writeB += max(
		grew(p.now.writeChars, p.last.writeChars, &before.writeChars, &due.writeChars, &a.dueBefore.writeChars, &a.due.writeChars),
		grew(p.now.wroteDk, p.last.wroteDk, &before.wroteDk, &due.wroteDk, &a.dueBefore.wroteDk, &a.due.wroteDk))
	due.own = 0
	p.dueBefore, p.due = due, counters{}
	p.last = p.now
}

func openFile(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
