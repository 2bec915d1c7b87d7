package proctree

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

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

// withoutCalls runs f in a thread for which system calls fail with errno, as under the
// filter of an engine.
func withoutCalls(t *testing.T, errno syscall.Errno, calls []uint32, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()                                                     // for good: the thread ends with the goroutine
		prog := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
		for _, nr := range calls {
			prog = append(prog,
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: nr},
				unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
		}
		prog = append(prog, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
		fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestASignalIsSentWithoutPidfds(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string][]uint32{
		"neither": {unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL},
		"no open": {unix.SYS_PIDFD_OPEN}, "no send": {unix.SYS_PIDFD_SEND_SIGNAL},
	} {
		for _, errno := range []syscall.Errno{unix.ENOSYS, unix.EPERM} {
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
			withoutCalls(t, errno, calls, func() {
				if err := before.Signal(unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
					t.Errorf("%s, %v: to one that had the number before: %v", name, errno, err)
				}
				if err := p.Signal(unix.SIGTERM); err != nil {
					t.Errorf("%s, %v: %v", name, errno, err)
					_ = syscall.Kill(p.PID, unix.SIGKILL)
				}
			})
			_ = cmd.Wait()
			if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != unix.SIGTERM {
				t.Errorf("%s, %v: it ended with %s", name, errno, cmd.ProcessState)
			}
		}
	}
}
