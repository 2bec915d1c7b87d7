package engine

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sparkrun/internal/proctree"
)

// TestTheFirstProcessIsSignalledFirst: a shell whose child is killed before it goes on to
// its own end, with status 0. So it comes first, however the processes were found.
func TestTheFirstProcessIsSignalledFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*Container{"exec": {ExecID: "x"}, "container": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("sh", "-c", "for i in 1 2 3 4 5 6; do sleep 300 & echo $!; done; wait")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			var pids []string
			for lines := bufio.NewScanner(out); len(pids) < 6 && lines.Scan(); {
				pids = append([]string{lines.Text()}, pids...)
			}
			first, ok := proctree.Read(cmd.Process.Pid)
			if !ok {
				t.Fatal("the shell is gone")
			}
			c.PID, c.start = first.PID, first.Start
			if c.ExecID == "" {
				// A cgroup may list them in any order.
				dir := t.TempDir()
				list := strings.Join(append(pids, fmt.Sprint(c.PID)), "\n")
				if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(list), 0o600); err != nil {
					t.Fatal(err)
				}
				c.Dirs = []string{dir}
			}
			for range 20 {
				procs, err := c.Processes(context.Background())
				if err != nil || len(procs) != 7 || procs[0].PID != c.PID {
					t.Fatalf("%d is to be the first of %v, %v", c.PID, procs, err)
				}
			}
			if err := c.Kill(within(t)); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
				t.Errorf("the first process ended with %s", cmd.ProcessState)
			}
		})
	}
}
