package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sparkrun/internal/proctree"
	"sparkrun/preflight"
)

// fixMark is a variable by which the processes of a repair are known, wherever in the tree
// of processes they end up.
const fixMark = "SPARKRUN_FIX"

// errCutShort is wrapped by the error of a command that was interrupted after its start.
var errCutShort = errors.New("was interrupted")

// run runs one change with its output shown. Its process stays in the terminal's
// foreground: sudo reads a password from there. Interrupted, the command and all it has
// started are asked to end, since a package manager in its middle must not be killed, and
// killed when their patience is over.
func (f fixer) run(ctx context.Context, c preflight.Change) error {
	if ctx.Err() != nil {
		return errors.New("interrupted before it was started")
	}
	argv := f.argv(c)
	f.say("\n$ %s", f.command(c))
	cmd := exec.Command(argv[0], argv[1:]...)
	mark := fmt.Sprintf("%s=%d-%d", fixMark, os.Getpid(), time.Now().UnixNano())
	cmd.Dir, cmd.Env = f.o.Dir, append(slices.Clone(f.o.Env), mark)
	if f.o.Stdin != nil && f.o.terminal(f.o.Stdin) {
		cmd.Stdin = f.o.Stdin
	}
	cmd.Stdout, cmd.Stderr = f.o.Stdout, f.o.Stderr
	cmd.WaitDelay = f.o.patience
	err := cmd.Start()
	if err == nil {
		fam := family{mark: mark}
		fam.first, _ = proctree.Read(cmd.Process.Pid) // not waited for yet, so the number is its own
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err = <-ended:
		case <-ctx.Done():
			return f.endEarly(fam, cmd.Process.Pid, ended)
		}
	}
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		// It ended well; something that it started keeps its output open.
		return nil
	case errors.Is(err, exec.ErrNotFound) && argv[0] == "sudo":
		return errors.New("it needs root and there is no sudo here: run it as root")
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w, and has ended (%w): what of it is done is not known", errCutShort, err)
	}
	return err
}

// endEarly ends a command that was interrupted and says what became of it. A command that
// ends well all the same is done.
func (f fixer) endEarly(fam family, pid int, ended <-chan error) error {
	all := fam.signal(nil, syscall.SIGTERM)
	asked := time.NewTimer(f.o.patience)
	defer asked.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	killed := time.NewTimer(time.Hour)
	killed.Stop()
	defer killed.Stop()
	var err error
	over, forced := false, false
	for {
		select {
		case err = <-ended:
			over, ended = true, nil
		case <-look.C:
		case <-asked.C:
			all = fam.signal(all, syscall.SIGKILL)
			// What hangs in the kernel, or is another user's, does not end of that.
			forced = true
			killed.Reset(time.Second)
			continue
		case <-killed.C:
			left := strings.Join(fam.left(all), ", ")
			if left == "" {
				left = "process " + strconv.Itoa(pid)
			}
			return fmt.Errorf("%w and may still be running: %s", errCutShort, left)
		}
		// A shell that ends leaves what it has started.
		if !over || len(fam.left(all)) > 0 {
			continue
		}
		switch {
		case forced:
			return fmt.Errorf("%w, and was killed when it did not end within %g s: what of it is done is not known", errCutShort, f.o.patience.Seconds())
		case !proctree.Here():
			return fmt.Errorf("%w; whether all it started has ended cannot be told without /proc", errCutShort)
		case err == nil, errors.Is(err, exec.ErrWaitDelay):
			return nil
		}
		return fmt.Errorf("%w, and has ended (%w): what of it is done is not known", errCutShort, err)
	}
}

// family is a process with all it has started: by the tree, and by a variable of its
// environment where its parent is gone.
type family struct {
	first proctree.Proc
	mark  string
}

// signal sends a signal to all of a family, and to those that were known of it before; it
// returns all that are known now.
func (f family) signal(known []proctree.Proc, sig syscall.Signal) []proctree.Proc {
	all := f.members(known)
	for _, p := range all {
		if alive(p) {
			_ = p.Signal(sig) // one that is gone, or not ours, is seen to afterwards
		}
	}
	return all
}

func (f family) members(known []proctree.Proc) []proctree.Proc {
	all := slices.Clone(known)
	add := func(list ...proctree.Proc) {
		for _, p := range list {
			if p.PID != os.Getpid() && !slices.ContainsFunc(all, func(q proctree.Proc) bool { return q.PID == p.PID && q.Start == p.Start }) {
				all = append(all, p)
			}
		}
	}
	// Minutes after its end the number of the first may be a stranger's.
	if p, ok := proctree.Read(f.first.PID); ok && p.Start == f.first.Start {
		add(p)
		add(proctree.Descendants(p.PID)...)
	}
	add(proctree.WithEnv(f.mark)...)
	return all
}

// left names those of a family that have not ended.
func (f family) left(known []proctree.Proc) []string {
	var out []string
	for _, p := range f.members(known) {
		if alive(p) {
			out = append(out, "process "+strconv.Itoa(p.PID)+" ("+cleanLine(p.Comm, 32)+")")
		}
	}
	return out
}

func alive(p proctree.Proc) bool {
	now, ok := proctree.Read(p.PID)
	return ok && now.Start == p.Start && now.State != 'Z' && now.State != 'X'
}
