package holder

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// stepFD is the exec step's end of its socket pair.
const stepFD = 3

// stepTimeout bounds the exec step: its working directory may hang.
const stepTimeout = 40 * time.Second

// stepReport is what the exec step sends: Ready once it is prepared, Err when
// something failed, before or after that. The end of the stream after Ready is
// the kernel closing the descriptor in a successful execve.
type stepReport struct {
	Ready bool        `json:"ready,omitempty"`
	Notes []string    `json:"notes,omitempty"`
	Err   *StartError `json:"err,omitempty"`
}

// ExecMain is the exec step ("sparkrun __exec"): it becomes the command. It
// returns, with an exit status, only when that failed.
//
// It is a process of its own so that what belongs to the command alone (its
// cgroup, its OOM score, default signals) never touches the holder.
func ExecMain(_ []string) int {
	pipe := os.NewFile(stepFD, "step")
	// The descriptors of the command are 0, 1 and 2: all others close with the
	// execve, the pipe too, which is how the holder learns of its success.
	closeOnExec(stepFD)
	in := bufio.NewReader(pipe)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return 125
	}
	send := func(r stepReport) bool {
		return json.NewEncoder(pipe).Encode(r) == nil
	}
	var spec Spec
	if err := json.Unmarshal(line, &spec); err != nil {
		send(stepReport{Err: startError(StageStep, "", err)})
		return 125
	}
	notes, err := prepare(spec)
	if err != nil {
		send(stepReport{Err: startError(StageStep, "", err)})
		return 125
	}
	if !send(stepReport{Ready: true, Notes: notes}) {
		return 125
	}
	// The word to go comes from a holder that is alive and will stay: without
	// it nothing would read the output.
	if _, err := in.ReadByte(); err != nil {
		return 125
	}
	failed := become(spec)
	send(stepReport{Err: failed})
	return failed.Status()
}

// prepare makes this process what the command is to find.
func prepare(spec Spec) (notes []string, err error) {
	if spec.Cgroup != "" {
		path := filepath.Join(spec.Cgroup, "cgroup.procs")
		if err := writeExisting(path, "0"); err != nil {
			return nil, startError(StageCgroup, spec.Cgroup, err)
		}
	}
	if spec.OOMScoreAdj >= 0 {
		if err := raiseOOMScore(spec.OOMScoreAdj); err != nil {
			notes = append(notes, "the OOM score of the command is unchanged: "+err.Error())
		}
	}
	if spec.Cwd != "" {
		if err := os.Chdir(spec.Cwd); err != nil {
			return nil, startError(StageCwd, spec.Cwd, err)
		}
	}
	return notes, nil
}

func writeExisting(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}

// raiseOOMScore sets oom_score_adj to at least adj: a user who gave the whole
// session a higher one meant it.
func raiseOOMScore(adj int) error {
	const path = "/proc/self/oom_score_adj"
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	have, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if have >= adj {
		return nil
	}
	return writeExisting(path, strconv.Itoa(adj))
}

// become resets what Go changed or the caller left and executes the command.
// RLIMIT_NOFILE needs no care: Go raises the soft limit at its start and gives
// the inherited one back both when it forks and in syscall.Exec.
func become(spec Spec) *StartError {
	// Masks belong to threads, and the thread that calls execve survives.
	runtime.LockOSThread()
	resetSignals()
	err := syscall.Exec(spec.Path, spec.Argv, spec.Env)
	e := startError(StageExec, spec.Path, err)
	if st, err := os.Stat(spec.Path); err == nil {
		e.Exists, e.IsDir = true, st.IsDir()
		e.Interpreter = interpreter(spec.Path)
	}
	return e
}

// resetSignals sets every disposition to its default, ignored ones (nohup, a
// careless parent) included, and empties the mask of the calling thread. The
// runtime's own handlers go too: nothing but execve may follow.
func resetSignals() {
	// An all-zero struct sigaction is SIG_DFL without flags on every
	// architecture; its size differs.
	var dfl [64]byte
	const setSize = 8
	for sig := 1; sig <= 64; sig++ {
		// SIGKILL and SIGSTOP answer EINVAL.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&dfl)), 0, setSize, 0, 0)
	}
	var none [setSize]byte
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&none)), 0, setSize, 0, 0)
}

// interpreter returns the program of a #! line, "" when there is none.
func interpreter(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, 256)
	n, _ := f.Read(b)
	line, _, _ := bytes.Cut(b[:n], []byte("\n"))
	rest, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return ""
	}
	word, _, _ := strings.Cut(strings.TrimSpace(string(rest)), " ")
	return word
}

// closeOnExec marks every descriptor from first on.
func closeOnExec(first int) {
	if unix.CloseRange(uint(first), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	for _, fd := range openFDs() {
		if fd >= first {
			unix.CloseOnExec(fd)
		}
	}
}

// openFDs lists the open descriptors.
func openFDs() []int {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	fds := make([]int, 0, len(names))
	for _, n := range names {
		if fd, err := strconv.Atoi(n); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// child is the command as the holder knows it.
type child struct {
	pid   int
	start uint64
	pidfd int // -1 where the kernel has none
}

// execStep starts the exec step on the given standard descriptors and waits
// until it has become the command. On error the step is gone and reaped.
func execStep(spec Spec, stdio [3]uintptr, isPTY bool) (child, []string, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return child{}, nil, startError(StageStep, "", err)
	}
	_ = unix.SetNonblock(pair[0], true)
	pipe := os.NewFile(uintptr(pair[0]), "step")
	defer pipe.Close()

	c := child{pidfd: -1}
	// Not os.StartProcess: see reapNext. The binary is named by /proc, since
	// its file may have been replaced by an upgrade meanwhile.
	c.pid, err = syscall.ForkExec("/proc/self/exe", []string{os.Args[0], "__exec", spec.RunID}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{stdio[0], stdio[1], stdio[2], uintptr(pair[1])},
		// fd 1 is the terminal also where stdin is inherited.
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: isPTY, Ctty: 1, PidFD: &c.pidfd},
	})
	unix.Close(pair[1])
	if err != nil {
		return child{}, nil, startError(StageStep, "", fmt.Errorf("starting the exec step: %w", err))
	}
	notes, err := c.talk(pipe, spec)
	if err != nil {
		_ = syscall.Kill(c.pid, syscall.SIGKILL)
		var ws syscall.WaitStatus
		for {
			if _, werr := syscall.Wait4(c.pid, &ws, 0, nil); werr != syscall.EINTR {
				break
			}
		}
		if c.pidfd >= 0 {
			unix.Close(c.pidfd)
		}
		return child{}, nil, startError(StageStep, "", err)
	}
	// Not reaped yet, even if it is over already: its entry is there.
	if p, ok := proctree.Read(c.pid); ok {
		c.start = p.Start
	}
	return c, notes, nil
}

func (c child) talk(pipe *os.File, spec Spec) ([]string, error) {
	if err := pipe.SetDeadline(time.Now().Add(stepTimeout)); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(pipe).Encode(spec); err != nil {
		return nil, fmt.Errorf("sending the command to the exec step: %w", err)
	}
	in := json.NewDecoder(pipe)
	var r stepReport
	if err := in.Decode(&r); err != nil {
		return nil, fmt.Errorf("the exec step ended or hung before it was ready: %w", err)
	}
	if r.Err != nil {
		return nil, r.Err
	}
	if _, err := pipe.Write([]byte("\n")); err != nil {
		return nil, fmt.Errorf("telling the exec step to go on: %w", err)
	}
	var after stepReport
	err := in.Decode(&after)
	switch {
	case err == nil && after.Err != nil:
		return nil, after.Err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("executing %q hangs: %w", spec.Path, err)
	}
	return r.Notes, nil
}
