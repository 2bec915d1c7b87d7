package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// Word is the subcommand that a sampler's command line has.
const Word = "sample"

const (
	// termWait is how long a sampler may take to end by itself: it brings its last row to
	// the disk. killWait is how long one that was killed is waited for.
	termWait = 5 * time.Second
	killWait = 2 * time.Second
	// glance is the time between two looks at what is waited for.
	glance = 10 * time.Millisecond
)

// process is one process for good: a pid is used again, a pidfd and a start time are not.
type process struct {
	pid   int
	start uint64
	fd    int // -1 on a kernel without pidfds
}

// hold takes hold of a process; false where there is none.
func hold(pid int) (*process, bool) {
	if pid <= 0 {
		return nil, false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		fd = -1
	}
	p, ok := proctree.Read(pid)
	if !ok || p.State == 'Z' || p.State == 'X' || errors.Is(err, unix.ESRCH) {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, false
	}
	return &process{pid: pid, start: p.Start, fd: fd}, true
}

func (p *process) release() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// alive says whether it still runs; a zombie holds no file and writes no row.
func (p *process) alive() bool {
	now, ok := proctree.Read(p.pid)
	return ok && now.Start == p.start && now.State != 'Z' && now.State != 'X'
}

func (p *process) signal(sig unix.Signal) error {
	if p.fd >= 0 {
		if err := unix.PidfdSendSignal(p.fd, sig, nil, 0); !proctree.NoPidfd(err) {
			return err
		}
	}
	if !p.alive() {
		return unix.ESRCH
	}
	return unix.Kill(p.pid, sig)
}

// stop ends it, and waits until it is gone.
func (p *process) stop() error {
	for _, s := range []struct {
		sig  unix.Signal
		wait time.Duration
	}{{unix.SIGTERM, termWait}, {unix.SIGKILL, killWait}} {
		if err := p.signal(s.sig); errors.Is(err, unix.ESRCH) {
			return nil
		} else if err != nil {
			return fmt.Errorf("the existing sampler (pid %d) cannot be stopped: %w", p.pid, err)
		}
		for until := time.Now().Add(s.wait); time.Now().Before(until); time.Sleep(glance) {
			if !p.alive() {
				return nil
			}
		}
	}
	return fmt.Errorf("the existing sampler (pid %d) does not end, not even of SIGKILL (a disk that hangs?)", p.pid)
}

// inode names a file for good.
type inode struct{ dev, ino uint64 }

func inodeOf(f *os.File) (inode, bool) {
	if f == nil {
		return inode{}, false
	}
	info, err := f.Stat()
	if err != nil {
		return inode{}, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}, false
	}
	return inode{st.Dev, st.Ino}, true
}

// owner returns the uid of a process as the kernel shows it.
func owner(pid int) (int, bool) {
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid), &st) != nil {
		return 0, false
	}
	return int(st.Uid), true
}

// isSampler says whether a process is a sampler of ours that has one of the files open, or
// with locked holds its lock: it belongs to this user, runs our program with our
// subcommand, and the kernel shows the file among those it has open. The order matters: the
// files of a stranger are not looked at, since looking at one on a dead mount hangs.
func isSampler(pid int, files []inode, locked bool) bool {
	if uid, ok := owner(pid); !ok || uid != os.Geteuid() || pid == self() {
		return false
	}
	if !ourProgram(pid) {
		return false
	}
	proc := "/proc/" + strconv.Itoa(pid)
	entries, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return false
	}
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(proc, "fd", e.Name()), &st) != nil || !slices.Contains(files, inode{st.Dev, st.Ino}) {
			continue
		}
		if !locked || hasLock(filepath.Join(proc, "fdinfo", e.Name())) {
			return true
		}
	}
	return false
}

// hasLock says whether an open file holds a lock, as the kernel shows it.
func hasLock(fdinfo string) bool {
	b, err := os.ReadFile(fdinfo)
	return err == nil && bytes.Contains(b, []byte("FLOCK"))
}

// ourProgram says whether a process runs our program, this file or one of its name (an
// upgrade puts another in its place), as a sampler.
func ourProgram(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	args, err := os.ReadFile(dir + "/cmdline")
	if err != nil || !slices.ContainsFunc(bytes.Split(args, []byte{0}), func(a []byte) bool { return string(a) == Word }) {
		return false
	}
	mine, err1 := os.Stat("/proc/self/exe")
	its, err2 := os.Stat(dir + "/exe")
	if err1 == nil && err2 == nil && os.SameFile(mine, its) {
		return true
	}
	return program("self") != "" && program("self") == program(strconv.Itoa(pid))
}

// program is the name of the file that a process runs.
func program(pid string) string {
	path, err := os.Readlink("/proc/" + pid + "/exe")
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(path, " (deleted)"))
}

// find returns the sampler with the given pid if it has one of the files open, or else the
// one that holds a lock of them: another start has them open for a moment as well.
func find(pid int, files []inode) (*process, bool) {
	check := func(pid int, locked bool) (*process, bool) {
		p, ok := hold(pid)
		if !ok {
			return nil, false
		}
		// Held before it is looked at and still there after: what was seen is its own.
		if !isSampler(pid, files, locked) || !p.alive() {
			p.release()
			return nil, false
		}
		return p, true
	}
	if p, ok := check(pid, false); ok {
		return p, true
	}
	for _, other := range proctree.All() {
		if p, ok := check(other.PID, true); ok {
			return p, true
		}
	}
	return nil, false
}

// writes says whether a process that is none of ours has a file of this path open, as the
// nvidia-smi of the runbook's script has its log. It reads names only.
func writes(pid int, path string) bool {
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return false
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && to == real
	})
}

// describe names a process for a sentence.
func describe(pid int) string {
	name := "?"
	if p, ok := proctree.Read(pid); ok {
		name = p.Comm
	}
	if uid, ok := owner(pid); ok && uid != os.Geteuid() {
		return fmt.Sprintf("pid %d (%s, of the user with uid %d)", pid, name, uid)
	}
	return fmt.Sprintf("pid %d (%s)", pid, name)
}
