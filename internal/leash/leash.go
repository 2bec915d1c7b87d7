// Package leash runs helper programs, such as a user's interpreter that is asked one
// question, so that nothing of them outlives whoever asked. A helper has a process group
// of its own, and that whole group is killed when the context ends, when the helper itself
// ends, and when this process ends in whatever way, SIGKILL included.
package leash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/regular"
)

const (
	// outputDelay is how long the output of a helper is read on after its end: a process
	// that left the group may hold the pipe.
	outputDelay = 200 * time.Millisecond
	// killDelay is how long a killed helper is waited for. One that hangs in the kernel,
	// on a dead mount, does not even die of SIGKILL.
	killDelay = time.Second
)

// ErrStuck is in the error of a helper that was killed and is still there.
var ErrStuck = errors.New("it was killed and does not end (a dead mount, or a driver that hangs?)")

// Run runs cmd, made by exec.Command, to its end as cmd.Run does. It returns soon after
// ctx is done at the latest; the error wraps ctx.Err() then. Output is written to
// cmd.Stdout and cmd.Stderr by nobody after it has returned.
func Run(ctx context.Context, cmd *exec.Cmd) error { return wait(ctx, cmd, false) }

// RunClient is Run for the client of a container engine: what it has left running when it
// ended by itself, such as the process that holds a user's namespaces, is the engine's.
func RunClient(ctx context.Context, cmd *exec.Cmd) error { return wait(ctx, cmd, true) }

func wait(ctx context.Context, cmd *exec.Cmd, leaves bool) error {
	if err := reach(ctx, cmd); err != nil {
		return err
	}
	var gates []*gate
	cmd.Stdout, gates = behindGate(cmd.Stdout, gates)
	cmd.Stderr, gates = behindGate(cmd.Stderr, gates)
	done := make(chan error, 1)
	go func() { done <- run(ctx, cmd, leaves) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		t := time.NewTimer(killDelay)
		defer t.Stop()
		select {
		case err = <-done:
		case <-t.C:
			err = ErrStuck
		}
	}
	for _, g := range gates {
		g.shut()
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// maxOutput bounds what Output keeps; an answer of a helper has some kilobytes.
const maxOutput = 1 << 20

// ErrTooMuch is in the error of Output where a program printed more than is kept. It is
// not listened to any further, so that writing on ends most programs.
var ErrTooMuch = errors.New("it printed far more than an answer has")

// Output is Run that returns what the program printed, at most a MiB of it.
func Output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var out buffer
	cmd.Stdout = &out
	err := Run(ctx, cmd)
	if out.over {
		err = errors.Join(ErrTooMuch, err)
	}
	return out.b, err
}

type buffer struct {
	b    []byte
	over bool
}

func (b *buffer) Write(p []byte) (int, error) {
	if n := maxOutput - len(b.b); len(p) > n {
		b.b, b.over = append(b.b, p[:n]...), true
		return n, ErrTooMuch
	}
	b.b = append(b.b, p...)
	return len(p), nil
}

// run owns the process from start to end. The thread is held for so long: the kernel
// takes the end of the thread that started a process for the end of its parent.
func run(ctx context.Context, cmd *exec.Cmd, leaves bool) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = outputDelay
	if err := cmd.Start(); err != nil {
		return err
	}
	g := &group{id: cmd.Process.Pid}
	stop := context.AfterFunc(ctx, g.kill)
	unguard := guard(g.id)
	awaitEnd(g.id)
	stop()
	// The leader is not reaped yet, so that the number of its group is nobody else's.
	if !leaves {
		g.kill()
	}
	g.gone()
	unguard()
	return cmd.Wait()
}

// awaitEnd waits for the end of a process without reaping it.
func awaitEnd(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// group is a process group that is killed as long as it is certainly ours.
type group struct {
	mu    sync.Mutex
	id    int
	ended bool
}

func (g *group) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		_ = syscall.Kill(-g.id, syscall.SIGKILL) // an empty group is what is wanted
	}
}

func (g *group) gone() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
}

// guard starts a watchdog that kills the group when this process is gone: it reads from
// a pipe whose other end nobody else holds. Without a shell, what is left is the signal
// that the leader alone gets. The function returned ends it.
func guard(id int) func() {
	r, w, err := os.Pipe()
	if err != nil {
		return func() {}
	}
	cmd := exec.Command("/bin/sh", "-c", "read x; kill -KILL -"+strconv.Itoa(id))
	cmd.Dir, cmd.Env, cmd.Stdin = "/", []string{}, r
	// A session of its own: no signal of a terminal reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	r.Close()
	if err != nil {
		w.Close()
		return func() {}
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed by us
		w.Close()
	}
}

// reach makes sure that the program and its folder answer at all. A start on a dead mount
// hangs where no context reaches it, and no other process can be started meanwhile.
func reach(ctx context.Context, cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		// What is wrong with them is told by the start.
		_, _ = regular.Read(cmd.Path, 2)
		if cmd.Dir != "" {
			_, _ = os.Stat(cmd.Dir)
		}
	}()
	select {
	case <-answered:
		return ctx.Err()
	case <-ctx.Done():
		return fmt.Errorf("%s, or the folder it would start in, gives no answer (a dead mount?): %w", cmd.Path, ctx.Err())
	}
}

// gate passes output on until it is shut.
type gate struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
}

// behindGate puts a gate before a writer that exec would write to; a file is handed to
// the process as it is.
func behindGate(w io.Writer, gates []*gate) (io.Writer, []*gate) {
	if w == nil {
		return nil, gates
	}
	if _, ok := w.(*os.File); ok {
		return w, gates
	}
	for _, g := range gates {
		if g.w == w {
			return g, gates
		}
	}
	g := &gate{w: w}
	return g, append(gates, g)
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return len(p), nil
	}
	return g.w.Write(p)
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
