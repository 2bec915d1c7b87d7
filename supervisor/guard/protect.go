package guard

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Protection is how well this process is kept going when memory is short.
type Protection struct {
	// Locked is whether its memory cannot be paged out; LockError says why not.
	Locked    bool   `json:"memory_locked"`
	LockError string `json:"memory_locked_why_not,omitempty"`
	// OOMScoreAdj is how gladly the kernel's OOM killer takes it: -1000 is never.
	OOMScoreAdj int `json:"oom_score_adj"`
	// Nice is the priority of the guard's thread: -20 is the best.
	Nice int `json:"nice"`
}

// protect does what the privileges allow. It must come after the command was
// started: the command inherits scores and priorities.
func protect() Protection {
	var p Protection
	if err := lockMemory(); err != nil {
		p.LockError = err.Error()
	} else {
		p.Locked = true
	}
	p.OOMScoreAdj = lowerOOMScore()
	raiseOthers()
	return p
}

var errLimited = errors.New("it needs CAP_IPC_LOCK or an unlimited RLIMIT_MEMLOCK (ulimit -l unlimited); the kill path was touched instead")

// lockMemory keeps this process from being paged out. Under a finite limit it
// must not even be tried: the Go runtime's own allocations would fail later.
func lockMemory() error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return err
	}
	if r.Cur != unix.RLIM_INFINITY && !hasCapability(unix.CAP_IPC_LOCK) {
		return errLimited
	}
	// ONFAULT: what is never used takes no memory. MCL_CURRENT stays in the set
	// because with it the kernel refuses at once where a capability holds only
	// inside a user namespace.
	err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) {
		return errLimited
	}
	return err
}

func hasCapability(c int) bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && set&(1<<c) != 0
		}
	}
	return false
}

// lowerOOMScore makes this process the last choice of the OOM killer, as far as
// it may, and returns the score it has then.
func lowerOOMScore() int {
	const path = "/proc/self/oom_score_adj"
	have := 0
	if b, err := os.ReadFile(path); err == nil {
		have, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	for _, want := range []int{-1000, -900, -500, 0} {
		if want >= have {
			break
		}
		if os.WriteFile(path, []byte(strconv.Itoa(want)), 0) == nil {
			return want
		}
	}
	return have
}

// raiseOthers gives the threads that have no better one a good priority: the
// guard's cannot run Go code while they hold the runtime's processors and wait
// for a CPU themselves. Later threads inherit it.
func raiseOthers() {
	const good = -10
	names, _ := os.ReadDir("/proc/self/task")
	for _, n := range names {
		tid, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		// The system call answers 20 minus the nice value.
		if v, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && 20-v > good {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, good)
		}
	}
}

// raisePriority gives the calling thread the best priority it may have, and
// returns it.
func raisePriority() int {
	self := unix.Gettid()
	for _, nice := range []int{-20, -15, -10, -5, -1} {
		if unix.Setpriority(unix.PRIO_PROCESS, self, nice) == nil {
			return nice
		}
	}
	v, err := unix.Getpriority(unix.PRIO_PROCESS, self)
	if err != nil {
		return 0
	}
	return 20 - v
}
