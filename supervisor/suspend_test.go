package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSuspendedWhileProcessesStart: a Ctrl-Z that reaches children before they have become
// their programs leaves none of them, and so not this process, half-way.
func TestSuspendedWhileProcessesStart(t *testing.T) {
	t.Parallel()
	if os.Getenv("SUSPEND_TEST") != "" {
		suspendOften()
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSuspendedWhileProcessesStart$")
	cmd.Env = append(os.Environ(), "SUSPEND_TEST=1", "GOMAXPROCS=4", "GOGC=off")
	// A group that has a parent in its session: in one without, no terminal stops anything.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%v\n%s", err, &out)
		}
	case <-time.After(20 * time.Second):
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		t.Errorf("a start that was stopped half-way is never over: %v\n%s", <-done, &out)
	}
}

// suspendOften is the process of the test, with a group of its own.
func suspendOften() {
	caught := make(chan os.Signal, 64)
	signal.Notify(caught, unix.SIGTSTP)
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-over:
				return
			default:
				_ = exec.Command("true").Run()
			}
		}
	}()
	for i := range 100 {
		// At another moment of a start each time.
		for at := time.Now(); time.Since(at) < time.Duration(i%20)*50*time.Microsecond; {
		}
		_ = unix.Kill(0, unix.SIGTSTP)
		<-caught
		if !forksDone(10 * time.Second) {
			fmt.Printf("after %d signals a process is still being started\n", i)
			os.Exit(1)
		}
		syscall.ForkLock.Unlock()
		// Those that had become their programs are stopped, and go on as with fg.
		_ = unix.Kill(0, unix.SIGCONT)
	}
	close(over)
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		_ = unix.Kill(0, unix.SIGCONT)
		if len(halfStarted()) == 0 {
			break
		}
	}
	os.Exit(0)
}
