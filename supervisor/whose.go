package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// Whose a file is that came into being during the run: it is moved aside only if the
// training was seen at it, or if nobody else was at work in that folder.

const (
	// printsMost bounds the files that are remembered, cwdsMost the folders.
	printsMost = 10000
	cwdsMost   = 256
	// fdsEvery is how often open files are looked at, othersEvery other people's
	// processes.
	fdsEvery    = time.Second
	othersEvery = 5 * time.Second
	// othersShare bounds what that costs: a look that takes 3 ms, as at 200 processes
	// with 20 files each, is made every 15 s.
	othersShare = 5000
)

// footprint is where the processes of an attempt were seen at work.
type footprint struct {
	mu   sync.Mutex
	cwds map[string]bool
	// wrote are the files that they had open for writing, said the checkpoints that
	// the output names, as the trainer sees them.
	wrote, said map[string]bool
	// others are the folders in which somebody else wrote a file, with the name of that process; unsure is set where not everything could be kept.
	others map[string]string
	unsure bool

	lastFDs time.Time // of look alone
}

// look takes in where the processes of the tree are and what they write. It belongs to
// one goroutine.
func (f *footprint) look(procs []proctree.Proc) {
	fds := time.Since(f.lastFDs) > fdsEvery
	if fds {
		f.lastFDs = time.Now()
	}
	var cwds []string
	var files []string
	for _, p := range procs {
		if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID)); err == nil {
			cwds = append(cwds, cwd)
		}
		if fds {
			files = append(files, writes(p.PID, func(path string) bool { return f.knows(path) })...)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	add(&f.cwds, cwds, cwdsMost)
	add(&f.wrote, files, printsMost)
}

func (f *footprint) knows(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrote[path]
}

// say takes in the name of a checkpoint that the output tells.
func (f *footprint) say(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add(&f.said, []string{path}, printsMost)
}

func add(set *map[string]bool, names []string, most int) {
	if *set == nil {
		*set = map[string]bool{}
	}
	for _, n := range names {
		if len(*set) < most {
			(*set)[n] = true
		}
	}
}

// at returns copies of what is known.
func (f *footprint) at() (cwds, wrote, said []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sortedFiles(f.cwds), sortedFiles(f.wrote), sortedFiles(f.said)
}

// writes returns the files of disks that a process has open for writing, but for those
// that are known.
func writes(pid int, known func(string) bool) []string {
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	d := os.NewFile(uintptr(dir), "fd")
	defer d.Close()
	names, _ := d.Readdirnames(printsMost)
	var out []string
	link := make([]byte, unix.PathMax)
	for _, n := range names {
		// The mode of the link is that of the opening, and costs less than fdinfo: most
		// of what a training has open it only reads.
		var st unix.Stat_t
		if unix.Fstatat(dir, n, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&0o200 == 0 {
			continue
		}
		size, err := unix.Readlinkat(dir, n, link)
		if err != nil {
			continue
		}
		path := string(link[:size])
		if !strings.HasPrefix(path, "/") || strings.HasSuffix(path, " (deleted)") || known(path) {
			continue
		}
		if within0("/dev", path) || within0("/proc", path) || within0("/sys", path) || slices.Contains(out, path) {
			continue
		}
		out = append(out, path)
	}
	return out
}

// within0 is within for names alone, without links.
func within0(folder, path string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// watchOthers looks now and then who else is at work on this machine, and where.
func (r *run) watchOthers(done <-chan struct{}, a *attempt) {
	for {
		began := time.Now()
		r.lookAtOthers(a)
		select {
		case <-done:
			return
		case <-time.After(max(othersEvery, othersShare*time.Since(began))):
		}
	}
}

// lookAtOthers takes in where processes write files that belong neither to the attempt nor
// to sparkrun, its pipeline and what started it. Who only has its working folder there, as
// a second shell has, is at work on nothing.
func (r *run) lookAtOthers(a *attempt) {
	all := proctree.All()
	parent := make(map[int]int, len(all))
	for _, p := range all {
		parent[p.PID] = p.PPID
	}
	self, group := os.Getpid(), unix.Getpgrp()
	mine := map[int]bool{}
	for pid := self; pid > 0 && !mine[pid]; pid = parent[pid] {
		mine[pid] = true
	}
	holder := a.started.HolderPID
	below := func(pid int) bool {
		for range 64 {
			if pid == self || holder > 0 && pid == holder {
				return true
			}
			up, ok := parent[pid]
			if !ok || up == 0 {
				return false
			}
			pid = up
		}
		return false
	}
	boxed := map[int]bool{}
	for _, p := range a.box.processes() {
		boxed[p.PID] = true
	}
	a.mu.Lock()
	ours := make(map[int]uint64, len(a.starts))
	for pid, start := range a.starts {
		ours[pid] = start
	}
	a.mu.Unlock()
	f := &a.prints
	for _, p := range all {
		if start, ok := ours[p.PID]; p.Kernel || mine[p.PID] || boxed[p.PID] || ok && start == p.Start || looksOn[p.Comm] || p.PGID == group || below(p.PID) {
			continue
		}
		name := fmt.Sprintf("%s (pid %d)", p.Comm, p.PID)
		for _, path := range writes(p.PID, func(string) bool { return false }) {
			if st, err := statOf(path, true); err == nil && st.regular() {
				f.meet(filepath.Dir(path), name)
			}
		}
	}
}

// looksOn are programs that show what others write and save nothing.
var looksOn = map[string]bool{
	"tee": true, "tail": true, "less": true, "more": true, "watch": true, "top": true, "htop": true, "btop": true, "nvtop": true, "tensorboard": true,
}

func (f *footprint) meet(dir, name string) {
	if dir == "/" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.others == nil {
		f.others = map[string]string{}
	}
	if _, known := f.others[dir]; !known && len(f.others) >= printsMost {
		f.unsure = true
		return
	}
	f.others[dir] = name
}

// otherAt names somebody else who was at work at or below a folder; "" where nobody was
// seen.
func (f *footprint) otherAt(folder string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unsure {
		return "somebody"
	}
	for _, dir := range sortedKeysOf(f.others) {
		if within0(folder, dir) {
			return f.others[dir]
		}
	}
	return ""
}

func sortedKeysOf(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// openAt names a process that has a file at or below a path open for writing; "" where
// none is seen.
func openAt(path string) string {
	path = real(path)
	for _, p := range proctree.All() {
		for _, file := range writes(p.PID, func(string) bool { return false }) {
			if within0(path, file) {
				return fmt.Sprintf("%s (pid %d)", p.Comm, p.PID)
			}
		}
	}
	return ""
}

// openFiles are all the files that any process has open for writing.
func openFiles() []string {
	var out []string
	for _, p := range proctree.All() {
		out = append(out, writes(p.PID, func(string) bool { return false })...)
	}
	return out
}
