package hygiene

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// readWait bounds every read that takes a lock of the process: one that is stuck
// in a driver may hold that lock for ever, and then the read never returns.
const readWait = 500 * time.Millisecond

// readMost bounds how much of a file is read: far above the environment that the
// kernel lets a program start with by default.
const readMost = 8 << 20

// envIs says what the environment of a process tells.
type envIs int

const (
	envUnknown envIs = iota // cannot be read: another user's, or stuck
	envNone                 // empty, or overwritten by a program that changes its title
	envOurs
	envOther
)

// proc is one process of the table.
type proc struct {
	pid, ppid int
	start     uint64
	state     byte
	comm      string
	uid       int // real user; -1 unknown
	anonKiB   uint64
	env       envIs
	run       string // SPARKRUN_RUN_ID of another run, where it has one
	hung      bool   // its environment could not be read in time
}

// gone says that it has ended: a zombie only waits for its parent.
func (p proc) gone() bool { return p.state == 'Z' || p.state == 'X' }

// key names a process for good.
type key struct {
	pid   int
	start uint64
}

func (p proc) key() key { return key{p.pid, p.start} }

// table is the process table with what tells whose a process is.
type table struct {
	root  string
	entry []byte
	procs map[int]proc
	above map[int]bool // sparkrun's own parent and on
	hung  map[key]bool // never asked again
}

func newTable(root, entry string) *table {
	return &table{root: root, entry: []byte(entry), hung: map[key]bool{}}
}

func (t *table) path(pid int, name string) string {
	return filepath.Join(t.root, "proc", strconv.Itoa(pid), name)
}

// look reads the table anew.
func (t *table) look() {
	t.procs = map[int]proc{}
	for _, pid := range t.pids() {
		p, ok := t.read(pid)
		if !ok {
			continue
		}
		t.environ(&p)
		t.procs[pid] = p
	}
	t.above = map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !t.above[pid]; pid = t.procs[pid].ppid {
		t.above[pid] = true
	}
}

func (t *table) pids() []int {
	d, err := os.Open(filepath.Join(t.root, "proc"))
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// read reads what takes no lock of the process.
func (t *table) read(pid int) (proc, bool) {
	b, err := readSmall(t.path(pid, "stat"))
	if err != nil {
		return proc{}, false
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return proc{}, false
	}
	f := bytes.Fields(b[end+1:])
	if len(f) < 20 { // state is field 3, the start time field 22
		return proc{}, false
	}
	p := proc{pid: pid, state: f[0][0], comm: string(b[open+1 : end]), uid: -1}
	p.ppid, _ = strconv.Atoi(string(f[1]))
	p.start, err = strconv.ParseUint(string(f[19]), 10, 64)
	return p, err == nil
}

// detail adds the user and the memory, which are asked of few. They stay unknown
// where the process is gone.
func (t *table) detail(p *proc) {
	b, err := readSmall(t.path(p.pid, "status"))
	if err != nil {
		return
	}
	p.anonKiB = 0
	// The name of the process stands first, with its newlines escaped.
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if len(f) == 0 {
			continue
		}
		switch name {
		case "Uid":
			if uid, err := strconv.Atoi(f[0]); err == nil {
				p.uid = uid
			}
		case "RssAnon", "RssShmem":
			if n, err := strconv.ParseUint(f[0], 10, 64); err == nil {
				p.anonKiB += n
			}
		}
	}
}

// environ reads whose the process is.
func (t *table) environ(p *proc) {
	if t.hung[p.key()] {
		p.hung = true
		return
	}
	type answer struct {
		b   []byte
		err error
	}
	a, ok := within(readWait, func() answer {
		b, err := readSmall(t.path(p.pid, "environ"))
		return answer{b, err}
	})
	if !ok {
		t.hung[p.key()], p.hung = true, true
		return
	}
	if a.err != nil {
		return
	}
	p.env = envNone
	id, _, _ := bytes.Cut(t.entry, []byte("="))
	id = append(bytes.Clone(id), '=')
	for entry := range bytes.SplitSeq(a.b, []byte{0}) {
		if len(t.entry) > 0 && bytes.Equal(entry, t.entry) {
			p.env = envOurs
			return
		}
		// A title written over the environment has no assignments.
		if i := bytes.IndexByte(entry, '='); i > 0 && !bytes.ContainsAny(entry[:i], " \t") {
			p.env = envOther
		}
		if len(id) > 1 && bytes.HasPrefix(entry, id) {
			p.run = string(entry[len(id):])
		}
	}
}

// within calls f and returns its answer, or false when there is none in time;
// the call is left behind then.
func within[T any](limit time.Duration, f func() T) (T, bool) {
	got := make(chan T, 1)
	go func() { got <- f() }()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case v := <-got:
		return v, true
	case <-t.C:
		var none T
		return none, false
	}
}

// readSmall reads a file of /proc with as few system calls as that takes: it is
// done for every process of the machine.
func readSmall(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 4096)
	for len(buf) < readMost {
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return buf, nil
		}
		if buf = buf[:len(buf)+n]; len(buf) == cap(buf) {
			buf = slices.Grow(buf, len(buf))
		}
	}
	return buf, nil
}

// isGone says that a process vanished while it was looked at.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errGone)
}
