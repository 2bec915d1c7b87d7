package engine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// signalAll signals the processes and returns those it may not signal.
func signalAll(procs []proctree.Proc, sig syscall.Signal) (refused []proctree.Proc) {
	for _, p := range procs {
		err := p.Signal(sig)
		if errors.Is(err, unix.EPERM) {
			refused = append(refused, p)
			continue
		}
		if err == nil && p.State == 'T' && sig != syscall.SIGKILL {
			_ = p.Signal(syscall.SIGCONT) // a stopped process handles nothing
		}
	}
	return refused
}

// live leaves out what has ended and waits for its parent only.
func live(procs []proctree.Proc) []proctree.Proc {
	var out []proctree.Proc
	for _, p := range procs {
		if p.State != 'Z' && p.State != 'X' {
			out = append(out, p)
		}
	}
	return out
}

// stillAlive is the error for processes that did not end.
func stillAlive(what string, procs []proctree.Proc) error {
	var names []string
	for _, p := range procs {
		if len(names) == 5 {
			names = append(names, "...")
			break
		}
		names = append(names, fmt.Sprintf("%s %d (%c)", brief(p.Comm), p.PID, p.State))
	}
	if len(names) == 0 {
		return fmt.Errorf("%s still runs", what)
	}
	return fmt.Errorf("%s still runs: %s", what, strings.Join(names, ", "))
}

// userHZ is the unit of start times in /proc/PID/stat: 100 a second on every
// architecture Go runs on.
const userHZ = 100

// ticksNow is the present instant in the unit of proctree.Proc.Start.
func ticksNow() uint64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return uint64(time.Duration(ts.Nano()) / (time.Second / userHZ))
}

// innerPID is the number a process has in its own pid namespace.
func innerPID(pid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("reading the process's own number: %w", err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			if len(f) > 0 {
				return strconv.Atoi(f[len(f)-1])
			}
		}
	}
	return 0, errors.New("the kernel does not tell the process's number in its container (NSpid)")
}
