package holder

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/ownexe"
)

// The descriptors a holder starts with, besides /dev/null on 0, 1 and 2.
const (
	startFD = 3
	stdinFD = 4
)

// startTimeout bounds a whole Start: directories on a network file system that
// hangs must not hang the caller for good.
const startTimeout = 60 * time.Second

// Holder is a holder process that this process has started.
type Holder struct {
	proc *os.Process
	gone chan struct{}
}

// answer is the one line a holder sends back on the start pipe.
type answer struct {
	Started *Started    `json:"started,omitempty"`
	Err     *StartError `json:"err,omitempty"`
}

// Start runs exe as a holder and waits until the command has been executed or
// could not be. stdin is used, and must be set, with StdinInherit only; the
// caller may close it afterwards. The error is a *StartError.
//
// The holder gets a session of its own and an environment of its own: a
// variable such as LD_BIND_NOW or GODEBUG in the user's is meant for the
// command.
func Start(exe string, spec Spec, stdin *os.File) (*Holder, Started, error) {
	if spec.V == 0 {
		spec.V = Version
	}
	if spec.Stdin == StdinInherit && stdin == nil {
		return nil, Started{}, &StartError{Stage: StageSpec, Detail: "stdin is to be inherited but none was given"}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, Started{}, startError(StageHolder, "", err)
	}
	// Non-blocking before it is wrapped, so that deadlines work.
	_ = unix.SetNonblock(pair[0], true)
	ours, theirs := os.NewFile(uintptr(pair[0]), "start"), os.NewFile(uintptr(pair[1]), "start")
	defer ours.Close()
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, Started{}, startError(StageHolder, os.DevNull, err)
	}
	defer null.Close()

	files := []*os.File{null, null, null, theirs}
	if spec.Stdin == StdinInherit {
		files = append(files, stdin)
	}
	proc, err := os.StartProcess(ownexe.Path(exe), []string{exe, "__hold", spec.RunID, strconv.Itoa(spec.Attempt)}, &os.ProcAttr{
		Env:   holderEnv(),
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, Started{}, startError(StageHolder, exe, err)
	}
	// Else the end of file that tells of a dead holder would never come.
	theirs.Close()
	h := &Holder{proc: proc, gone: make(chan struct{})}
	go func() {
		// How the holder itself ended says nothing: exit.json does.
		_, _ = proc.Wait()
		close(h.gone)
	}()

	started, err := handshake(ours, spec)
	if err != nil {
		_ = proc.Kill()
		<-h.gone
		return nil, Started{}, startError(StageHolder, exe, err)
	}
	return h, started, nil
}

func handshake(pipe *os.File, spec Spec) (Started, error) {
	if err := pipe.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		return Started{}, fmt.Errorf("setting a deadline on the start pipe: %w", err)
	}
	if err := json.NewEncoder(pipe).Encode(spec); err != nil {
		return Started{}, fmt.Errorf("sending the command to the holder: %w", err)
	}
	line, err := bufio.NewReader(pipe).ReadBytes('\n')
	if err != nil {
		return Started{}, fmt.Errorf("the holder ended or hung before it answered: %w", err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return Started{}, fmt.Errorf("reading the holder's answer: %w", err)
	}
	if a.Err != nil {
		return Started{}, a.Err
	}
	if a.Started == nil {
		return Started{}, fmt.Errorf("the holder's answer is empty")
	}
	return *a.Started, nil
}

// holderEnv is the whole environment of a holder: a small heap, few threads,
// and the time zone its timestamps are written in.
func holderEnv() []string {
	env := []string{"GOMEMLIMIT=16MiB", "GOGC=25", "GOMAXPROCS=2"}
	for _, name := range []string{"TZ", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// PID returns the holder's process ID.
func (h *Holder) PID() int { return h.proc.Pid }

// Wait returns a channel that is closed once the holder process is gone and
// reaped. Whether the attempt is over is told by ReadExit alone.
func (h *Holder) Wait() <-chan struct{} { return h.gone }

// Signal sends sig to the holder itself, which is the way to stop an attempt
// that has no socket: SIGINT, SIGQUIT and SIGTERM each start or shorten a stop.
// The error is os.ErrProcessDone when the holder is gone.
func (h *Holder) Signal(sig os.Signal) error { return h.proc.Signal(sig) }
