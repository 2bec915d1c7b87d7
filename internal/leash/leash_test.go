package leash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sparkrun/internal/deadmount"
)

// The test binary is also the process that asks a helper and is killed meanwhile.
func TestMain(m *testing.M) {
	if script := os.Getenv("LEASH_TEST_ASK"); script != "" {
		err := Run(context.Background(), exec.Command("/bin/sh", "-c", script))
		fmt.Println(err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// family is a helper with a child of its own; both write their numbers to files.
func family(dir string) string {
	return fmt.Sprintf("trap '' HUP INT TERM QUIT; cd %s; sh -c 'trap \"\" HUP INT TERM; echo $$ >c.new; mv c.new child; while :; do sleep 1; done' & echo $$ >h.new; mv h.new helper; wait", dir)
}

func numbers(t *testing.T, dir string) []int {
	t.Helper()
	var pids []int
	for _, name := range []string{"helper", "child"} {
		var text string
		until(t, name, func() bool {
			b, err := os.ReadFile(filepath.Join(dir, name))
			text = strings.TrimSpace(string(b))
			return err == nil
		})
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// gone tells that a process has ended, reaped or not.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.HasPrefix(string(b[strings.LastIndexByte(string(b), ')')+1:]), " Z")
}

// TestEndsWithItsParent: whatever signal ends the process that asks, nothing of the
// helper is left.
func TestEndsWithItsParent(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			parent := exec.Command(os.Args[0])
			parent.Env = append(os.Environ(), "LEASH_TEST_ASK="+family(dir))
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			pids := numbers(t, dir)
			_ = parent.Process.Signal(sig)
			_ = parent.Wait() // killed by us
			for _, pid := range pids {
				until(t, fmt.Sprintf("end of process %d", pid), func() bool { return gone(pid) })
			}
		})
	}
}

func TestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, exec.Command("/bin/sh", "-c", family(dir))) }()
	pids := numbers(t, dir)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for _, pid := range pids {
		until(t, fmt.Sprintf("end of process %d", pid), func() bool { return gone(pid) })
	}
}

// TestLeavesNothingAfterItsEnd: a helper that ended well takes what it started with it.
func TestLeavesNothingAfterItsEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := strings.Replace(family(dir), "; wait", "; while [ ! -e child ]; do sleep 0.01; done; echo said; exit 3", 1)
	start := time.Now()
	out, err := Output(t.Context(), exec.Command("/bin/sh", "-c", script))
	var exit *exec.ExitError
	if string(out) != "said\n" || !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("%q, %v", out, err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	for _, pid := range numbers(t, dir) {
		until(t, fmt.Sprintf("end of process %d", pid), func() bool { return gone(pid) })
	}
}

// TestTellsTheEnd: status, signal and a failed start are those of the helper.
func TestTellsTheEnd(t *testing.T) {
	t.Parallel()
	if err := Run(t.Context(), exec.Command("/bin/true")); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), exec.Command("/bin/sh", "-c", "kill -SEGV $$"))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSEGV {
		t.Errorf("the helper's own end is not told: %v", err)
	}
	err = Run(t.Context(), exec.Command("/nonexistent/program"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestDeadMount: a program or a folder that gives no answer costs the context's time, and
// other helpers are started meanwhile.
func TestDeadMount(t *testing.T) {
	t.Parallel()
	dead := deadmount.New(t)
	in := exec.Command("/bin/true")
	in.Dir = dead
	for _, cmd := range []*exec.Cmd{exec.Command(filepath.Join(dead, "python")), in} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- Run(ctx, cmd) }()
		if err := Run(t.Context(), exec.Command("/bin/true")); err != nil {
			t.Error(err)
		}
		select {
		case err := <-done:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("it hangs")
		}
	}
}

// A program that prints without an end is not kept in memory, and ends.
func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := Output(ctx, exec.Command("yes"))
	if !errors.Is(err, ErrTooMuch) || ctx.Err() != nil || len(out) != maxOutput {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	if out, err := Output(ctx, exec.Command("head", "-c", "1048576", "/dev/zero")); err != nil || len(out) != maxOutput {
		t.Errorf("as much as is kept: %d bytes, %v", len(out), err)
	}
}
