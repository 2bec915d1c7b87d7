package holder

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/cores"
)

// caught are the signals that would end or stop the holder, or that it acts on.
// They are caught and never ignored: an ignored signal stays ignored in the
// command. SIGXFSZ comes with a file size limit, and then the write fails too.
var caught = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGTSTP, unix.SIGPIPE,
	unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTTIN, unix.SIGTTOU, unix.SIGXCPU, unix.SIGXFSZ,
}

// mostCores lets one goroutine fill the ring while another empties it.
const mostCores = 2

// HoldMain is the holder process ("sparkrun __hold"). It returns when the
// attempt is over and exit.json is written, or when nothing was started. What
// it has to say goes over the start pipe, the socket and the files; the exit
// status is 0 if exit.json was written.
func HoldMain(_ []string) int {
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, caught...)
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, unix.SIGCHLD)

	have := closeInherited()
	pipe := os.NewFile(startFD, "start")
	if pipe == nil {
		return 125
	}
	spec, err := readSpec(pipe)
	if err != nil {
		tell(pipe, answer{Err: startError(StageSpec, "", err)})
		return 125
	}
	stdin := -1
	switch {
	case spec.Stdin == StdinInherit:
		stdin = stdinFD
	case have:
		unix.Close(stdinFD)
	}
	clock.Lead(spec.Clock.Boot)
	h, started, err := bringUp(spec, stdin)
	if stdin >= 0 {
		unix.Close(stdin)
	}
	if err != nil {
		tell(pipe, answer{Err: startError(StageHolder, "", err)})
		return 125
	}
	// A supervisor that has died meanwhile does not get it: the command runs,
	// and the files say so.
	tell(pipe, answer{Started: &started})
	pipe.Close()
	cores.Rest(mostCores)
	if h.run(sigs, chld) {
		return 0
	}
	return 125
}

// closeInherited closes what leaked in from the supervisor's own parent and
// keeps the start pipe and the command's stdin from leaking on. Descriptors of
// our own runtime are close-on-exec, inherited ones cannot be. It returns whether
// stdinFD is an inherited one.
func closeInherited() (stdin bool) {
	for _, fd := range openFDs() {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if fd < startFD || err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if fd == startFD || fd == stdinFD {
			unix.CloseOnExec(fd)
			stdin = stdin || fd == stdinFD
			continue
		}
		unix.Close(fd)
	}
	return stdin
}

func readSpec(pipe *os.File) (Spec, error) {
	line, err := bufio.NewReader(pipe).ReadBytes('\n')
	if err != nil {
		return Spec{}, fmt.Errorf("reading what to run: %w", err)
	}
	var spec Spec
	if err := json.Unmarshal(line, &spec); err != nil {
		return Spec{}, fmt.Errorf("reading what to run: %w", err)
	}
	switch {
	case spec.V != Version:
		return Spec{}, fmt.Errorf("the supervisor speaks version %d of the start protocol, this holder %d", spec.V, Version)
	case spec.Path == "" || len(spec.Argv) == 0:
		return Spec{}, errors.New("there is no command to run")
	case !filepath.IsAbs(spec.Dir):
		return Spec{}, fmt.Errorf("the attempt directory %q is no absolute path", spec.Dir)
	}
	switch spec.Stdin {
	case StdinPTY:
		if !spec.PTY {
			return Spec{}, errors.New("stdin cannot be the terminal where there is none")
		}
	case StdinInherit, StdinNull:
	default:
		return Spec{}, fmt.Errorf("stdin %q is none of pty, inherit, null", spec.Stdin)
	}
	if err := spec.Guard.Check(); err != nil {
		return Spec{}, err
	}
	spec.Waits = spec.Waits.withDefaults()
	if spec.Clock.Wall.IsZero() {
		spec.Clock = clock.Start()
	} else {
		spec.Clock = clock.Restore(spec.Clock.Wall, spec.Clock.Boot)
	}
	return spec, nil
}

func tell(pipe *os.File, a answer) {
	_ = json.NewEncoder(pipe).Encode(a)
}

// bringUp opens everything and starts the command, in the order in which a
// failure leaves least behind.
func bringUp(spec Spec, stdin int) (_ *hold, started Started, err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, Started{}, startError(StageHolder, "", fmt.Errorf("becoming the parent of orphans: %w", err))
	}
	r, err := newRing()
	if err != nil {
		return nil, Started{}, startError(StageHolder, "", fmt.Errorf("allocating the output buffer: %w", err))
	}
	h := newHold(spec, r)
	if h.disk, err = openDisk(spec.Dir, r, spec.MinFree, h.onGap); err != nil {
		return nil, Started{}, err
	}
	if spec.Socket != "" {
		if ln, lerr := listen(spec.Socket); lerr != nil {
			started.SocketErr = lerr.Error()
		} else {
			h.serve(ln)
			defer func() {
				if err != nil {
					h.srv.close()
				}
			}()
		}
	}
	if h.src, err = openSource(spec); err != nil {
		return nil, Started{}, startError(StagePTY, "", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, Started{}, startError(StagePTY, os.DevNull, err)
	}
	defer null.Close()
	out := h.src.child.Fd()
	stdio := [3]uintptr{null.Fd(), out, out}
	switch spec.Stdin {
	case StdinPTY:
		stdio[0] = out
	case StdinInherit:
		stdio[0] = uintptr(stdin)
	}
	h.cgroup = openCgroup(spec.Cgroup)
	h.child, started.Notes, err = execStep(spec, stdio, spec.PTY)
	h.src.handedOver()
	if err != nil {
		return nil, Started{}, err
	}
	h.watch()
	started.HolderPID, started.ChildPID, started.ChildStart = syscall.Getpid(), h.child.pid, h.child.start
	return h, started, nil
}
