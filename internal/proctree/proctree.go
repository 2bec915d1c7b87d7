// Package proctree reads the process table: who is whose child, since when, and
// how much memory they hold. It reads /proc itself, since a process may vanish
// between two reads and that must be no error.
package proctree

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Proc is one process at one instant.
type Proc struct {
	PID  int
	PPID int
	// Start is the start time in clock ticks since boot: with PID it names a
	// process for good, since pids are used again.
	Start uint64
	// State is the letter of /proc/PID/stat: R, S, D, Z, T...
	State byte
	Comm  string
	PGID  int
	SID   int
	// Kernel is whether it is a thread of the kernel, which opens no files.
	Kernel bool
}

// kernelThread is PF_KTHREAD among the flags of /proc/PID/stat.
const kernelThread = 0x00200000

// Read returns one process; ok is false when it is gone.
func Read(pid int) (Proc, bool) {
	return parseStat(readProc("/proc/" + strconv.Itoa(pid) + "/stat"))
}

// parseStat parses /proc/PID/stat. The command name stands in parentheses and
// may itself hold spaces and parentheses, so the last ")" ends it.
func parseStat(b []byte) (Proc, bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Proc{}, false
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	if err != nil {
		return Proc{}, false
	}
	f := bytes.Fields(b[end+1:])
	// f[0] is field 3 (state); start time is field 22.
	if len(f) < 20 {
		return Proc{}, false
	}
	p := Proc{PID: pid, State: f[0][0], Comm: string(b[open+1 : end])}
	p.PPID, _ = strconv.Atoi(string(f[1]))
	p.PGID, _ = strconv.Atoi(string(f[2]))
	p.SID, _ = strconv.Atoi(string(f[3]))
	if flags, err := strconv.ParseUint(string(f[6]), 10, 64); err == nil {
		p.Kernel = flags&kernelThread != 0
	}
	p.Start, err = strconv.ParseUint(string(f[19]), 10, 64)
	return p, err == nil
}

// CPU returns the CPU time that a process has used, its ended children left out; 0
// for one that is gone.
func CPU(pid int) time.Duration {
	b := readProc("/proc/" + strconv.Itoa(pid) + "/stat")
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 13 {
		return 0
	}
	// f[0] is field 3; user and system time are fields 14 and 15, in hundredths of a
	// second on every Linux (USER_HZ).
	user, err1 := strconv.ParseInt(string(f[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(f[12]), 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// All returns every process that could be read.
func All() []Proc {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	procs := make([]Proc, 0, len(names))
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if p, ok := Read(pid); ok {
			procs = append(procs, p)
		}
	}
	return procs
}

// Descendants returns every process below root, root itself left out, parents
// before children.
func Descendants(root int) []Proc {
	children := make(map[int][]Proc)
	for _, p := range All() {
		children[p.PPID] = append(children[p.PPID], p)
	}
	var out []Proc
	queue := []int{root}
	seen := map[int]bool{root: true}
	for len(queue) > 0 {
		next := children[queue[0]]
		queue = queue[1:]
		for _, p := range next {
			if seen[p.PID] {
				continue
			}
			seen[p.PID] = true
			out = append(out, p)
			queue = append(queue, p.PID)
		}
	}
	return out
}

// Walk returns the processes below root as Descendants does, by the kernel's own
// lists of children instead of a look at every process of the machine: much
// cheaper, and good for sampling. A process forked or reparented at that moment
// may be missed, so whoever means to end a tree asks Descendants. On a kernel
// without these lists (CONFIG_PROC_CHILDREN) it is Descendants.
func Walk(root int) []Proc {
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		return Descendants(root)
	}
	var out []Proc
	queue := []int{root}
	seen := map[int]bool{root: true}
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		for _, child := range children(pid) {
			if seen[child] {
				continue
			}
			seen[child] = true
			if p, ok := Read(child); ok {
				out = append(out, p)
				queue = append(queue, child)
			}
		}
	}
	return out
}

// children returns the children of a process: each thread has a list of its own.
func children(pid int) []int {
	task := "/proc/" + strconv.Itoa(pid) + "/task"
	d, err := os.Open(task)
	if err != nil {
		return nil
	}
	defer d.Close()
	tids, _ := d.Readdirnames(-1)
	var out []int
	for _, tid := range tids {
		b := readProc(task + "/" + tid + "/children")
		for _, f := range bytes.Fields(b) {
			if n, err := strconv.Atoi(string(f)); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// readProc reads a small file of /proc with three system calls: os.ReadFile
// makes nine of it, which counts when it is done a thousand times a second. It
// returns nil where the process is gone.
func readProc(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 4096)
	for {
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return buf
		}
		if buf = buf[:len(buf)+n]; len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
	}
}

// WithEnv returns the processes whose environment holds exactly the entry
// "NAME=value". Processes of other users cannot be read and are left out.
func WithEnv(entry string) []Proc {
	want := []byte(entry)
	var out []Proc
	for _, p := range All() {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "environ"))
		if err != nil {
			continue
		}
		for _, e := range bytes.Split(b, []byte{0}) {
			if bytes.Equal(e, want) {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

// Here tells whether processes can be seen at all.
func Here() bool {
	_, ok := Read(os.Getpid())
	return ok
}
