package holder

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// parseSignal takes "INT", "SIGINT" or "2".
func parseSignal(name string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	up := strings.ToUpper(name)
	if !strings.HasPrefix(up, "SIG") {
		up = "SIG" + up
	}
	if s := unix.SignalNum(up); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("there is no signal %q", name)
}

// signalName is the name of a signal, SIG34 and so on for those without one.
func signalName(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return "SIG" + strconv.Itoa(int(s))
}

// signalTree sends sig to every descendant of this process and returns those
// that got it. Members that were stopped before are woken after a signal that
// ends, since a stopped process handles nothing but SIGKILL.
func signalTree(sig syscall.Signal) []proctree.Proc {
	var hit []proctree.Proc
	for _, p := range proctree.Descendants(os.Getpid()) {
		// A zombie leader may have running threads, so it is signalled too.
		if p.Signal(sig) != nil {
			continue
		}
		if p.State == 'T' && sig != syscall.SIGKILL && sig != syscall.SIGSTOP && sig != syscall.SIGCONT {
			_ = p.Signal(syscall.SIGCONT)
		}
		if p.State != 'Z' {
			hit = append(hit, p)
		}
	}
	return hit
}

// killTree sends SIGKILL until a scan shows nothing new, since a tree that
// forks while it is read is never read whole, or a few rounds are over: the
// caller comes again.
func killTree() []proctree.Proc {
	type id struct {
		pid   int
		start uint64
	}
	seen := map[id]bool{}
	var hit []proctree.Proc
	for range 16 {
		fresh := false
		for _, p := range signalTree(syscall.SIGKILL) {
			if k := (id{p.PID, p.Start}); !seen[k] {
				seen[k], fresh = true, true
				hit = append(hit, p)
			}
		}
		if !fresh {
			break
		}
	}
	return hit
}

// wakeTree sends SIGCONT to every descendant but those in except: one that is about to
// stop does not look it yet.
func wakeTree(except map[procID]bool) {
	for _, p := range proctree.Descendants(os.Getpid()) {
		if !except[idOf(p)] {
			_ = p.Signal(syscall.SIGCONT)
		}
	}
}

// cgroup is the command's own cgroup; the zero value is none.
type cgroup struct {
	dir string
	// kill is whether cgroup.kill may be used: the file exists (v2) and the
	// group was empty before the command joined, so that nobody else is hit.
	kill bool
}

func openCgroup(dir string) cgroup {
	if dir == "" {
		return cgroup{}
	}
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil || len(strings.TrimSpace(string(procs))) > 0 {
		return cgroup{dir: dir}
	}
	return cgroup{dir: dir, kill: unix.Access(filepath.Join(dir, "cgroup.kill"), unix.W_OK) == nil}
}

// killAll ends the whole group at once where it can.
func (c cgroup) killAll() {
	if !c.kill {
		return
	}
	if f, err := os.OpenFile(filepath.Join(c.dir, "cgroup.kill"), os.O_WRONLY, 0); err == nil {
		_, _ = f.WriteString("1")
		f.Close()
	}
}
