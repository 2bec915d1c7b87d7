package supervisor

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// TestTerminalWait: who waits for the terminal is found by its system call, and where that
// cannot be seen by what it has made of the terminal.
func TestTerminalWait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script, text  string
		known, hidden bool // whether it asks, by what can be seen
	}{
		"an editor":                   {"echo up; read -e -p '(Pdb) ' x", "(Pdb) ", true, true},
		"a plain read":                {"echo up; read x", "> ", true, true},
		"a plain read with no prompt": {"echo up; read x", "loading", true, true},
		"a pipe, and a colon":         {"exec 3< <(exec sleep 100); echo up; read -t 100 -u 3 x", "Saving to hub: ", false, false},
		"sleeps, and a colon":         {"echo up; exec sleep 100", "Saving to hub: ", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master, tty, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer master.Close()
			cmd := exec.Command("bash", "--norc", "-c", c.script)
			cmd.Env = append(os.Environ(), "TERM=xterm")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			tty.Close()
			defer func() {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				_ = cmd.Wait()
			}()
			if line, err := bufio.NewReader(master).ReadString('\n'); err != nil || !strings.HasPrefix(line, "up") {
				t.Fatalf("%q, %v", line, err)
			}
			dir := "/proc/" + strconv.Itoa(cmd.Process.Pid)
			var known, hidden, seen bool
			deadline := time.Now().Add(10 * time.Second)
			for time.Now().Before(deadline) {
				var w waiting
				w, seen = waitedFiles(dir)
				known = seen && asksBy(dir, w, true, []byte(c.text), "")
				hidden = asksBy(dir, waiting{}, false, []byte(c.text), "")
				if (known == c.known || !seen) && hidden == c.hidden {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if seen && known != c.known || hidden != c.hidden {
				t.Errorf("%v, and %v where its system call cannot be seen; it waits in %s", known, hidden, waitsIn(dir))
			}
		})
	}
}

// TestPipeWait: the system call says which pipe is read; without it the given one may be.
func TestPipeWait(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command("bash", "-c", "exec 3< <(exec sleep 100); read -u 3 x")
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	dir := "/proc/" + strconv.Itoa(cmd.Process.Pid)
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(waitsIn(dir), "pipe_read") {
		if time.Now().After(deadline) {
			t.Fatalf("it waits in %q", waitsIn(dir))
		}
		time.Sleep(time.Millisecond)
	}
	given := pipeOf(r)
	if !asksBy(dir, waiting{}, false, nil, given) {
		t.Error("which pipe it reads is not known, and it is taken for hung")
	}
	if on, known := waitedFiles(dir); known && asksBy(dir, on, true, nil, given) {
		t.Errorf("it reads another pipe: %+v", on)
	}
	if !asksBy(dir, waiting{reads: true, fds: []int{0}}, true, nil, given) {
		t.Error("it reads the given pipe")
	}
}
