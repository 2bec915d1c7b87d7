package proctree

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestASignalReachesOnlyWhomItIsMeantFor(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, ok := Read(cmd.Process.Pid)
	if !ok {
		t.Fatal("the process is not in the table")
	}
	before := p
	before.Start--
	for _, sig := range []syscall.Signal{0, unix.SIGKILL} {
		if err := before.Signal(sig); !errors.Is(err, unix.ESRCH) {
			t.Errorf("signal %d to one that had the number before: %v", sig, err)
		}
	}
	if err := p.Signal(0); err != nil {
		t.Errorf("asked whether it may be signalled: %v", err)
	}
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != unix.SIGTERM {
		t.Errorf("it ended with %s", cmd.ProcessState)
	}
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
		t.Errorf("signalled after its end: %v", err)
	}
}
