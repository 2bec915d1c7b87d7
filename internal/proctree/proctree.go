// Package proctree reads the process table: who is whose child, since when, and
// how much memory they hold. It reads /proc itself, since a process may vanish
// between two reads and that must be no error.
package proctree

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
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
}

// Read returns one process; ok is false when it is gone.
func Read(pid int) (Proc, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Proc{}, false
	}
	return parseStat(b)
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
	p.Start, err = strconv.ParseUint(string(f[19]), 10, 64)
	return p, err == nil
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

// RSSKiB returns the resident memory of a process (VmRSS); ok is false when it
// is gone or is a kernel thread.
func RSSKiB(pid int) (kib uint64, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0, false
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseUint(string(f[1]), 10, 64)
	if err != nil {
		return 0, false
	}
	return pages * uint64(os.Getpagesize()) / 1024, true
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
