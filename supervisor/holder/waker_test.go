package holder

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// stoppedProc is a process that is stopped, as by SIGSTOP of anybody.
func stoppedProc(t *testing.T) proctree.Proc {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed by us
	})
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var p proctree.Proc
	until(t, "it is stopped", func() bool {
		p, _ = proctree.Read(cmd.Process.Pid)
		return p.State == 'T'
	})
	return p
}

func stands(p proctree.Proc) bool {
	now, ok := proctree.Read(p.PID)
	return ok && now.Start == p.Start && now.State == 'T'
}

// TestWakerWakes: the holder's death, the supervisor's without a word of the holder's, and
// a pause that nobody ends. It wakes what the pause has stopped, and nothing whose pid has
// been used again.
func TestWakerWakes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit        time.Duration
		kill, leave  bool
		least, atEnd time.Duration
	}{
		"the holder dies":                   {time.Hour, true, false, 0, 3 * time.Second},
		"the holder dies with the others":   {time.Hour, true, true, 0, 3 * time.Second},
		"the supervisor dies, nobody wakes": {time.Hour, false, true, wakerMore, wakerMore + 5*time.Second},
		"nobody ends it":                    {100 * time.Millisecond, false, false, wakerMore, wakerMore + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holder := exec.Command("sleep", "1000")
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = holder.Process.Kill()
				_ = holder.Wait() // killed by us, here or before
			})
			ours, foreign := stoppedProc(t), stoppedProc(t)
			began := time.Now()
			w, err := StartWaker(Status{HolderPID: holder.Process.Pid, Stopped: []procID{idOf(ours), {uint64(foreign.PID), foreign.Start + 1}}}, tt.limit)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Release)
			// What ends everything of a name must leave it.
			until(t, "its name", func() bool {
				p, _ := proctree.Read(w.proc.Pid)
				return p.Comm == wakerName
			})
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", w.proc.Pid))
			if err != nil || strings.Contains(string(args), "sparkrun") {
				t.Errorf("command line %q, %v", args, err)
			}
			for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
				if err := w.proc.Signal(sig); err != nil {
					t.Errorf("it did not live through a signal before %v: %v", sig, err)
				}
			}
			if tt.kill {
				if err := holder.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			if tt.leave {
				w.end.Close()
			}
			until(t, "it goes on", func() bool { return !stands(ours) })
			if took := time.Since(began); took < tt.least || took > tt.atEnd {
				t.Errorf("it stood still for %s, want %s to %s", took, tt.least, tt.atEnd)
			}
			if !stands(foreign) {
				t.Error("a process was woken that only has the pid of another")
			}
		})
	}
}

// TestWakerLetGo: after a pause that is over it is gone and wakes nobody, unless it is told to.
func TestWakerLetGo(t *testing.T) {
	t.Parallel()
	p := stoppedProc(t)
	order := Status{HolderPID: os.Getpid(), Stopped: []procID{idOf(p)}}
	w, err := StartWaker(order, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pid := w.proc.Pid
	w.Release()
	until(t, "it is gone", func() bool { _, ok := proctree.Read(pid); return !ok })
	if !stands(p) {
		t.Error("it woke somebody")
	}
	// As long after its start as a real pause is.
	released, err := StartWaker(order, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if w, err = StartWaker(order, time.Hour); err != nil {
		t.Fatal(err)
	}
	time.Sleep(replyTimeout + 100*time.Millisecond)
	pid = released.proc.Pid
	released.Release()
	began := time.Now()
	until(t, "it is gone", func() bool { _, ok := proctree.Read(pid); return !ok })
	if took := time.Since(began); !stands(p) || took > wakerMore/2 {
		t.Errorf("let go late, it woke somebody (%v), or stayed for %s", !stands(p), took)
	}
	began = time.Now()
	w.Wake()
	until(t, "it wakes when it is told to", func() bool { return !stands(p) })
	if took := time.Since(began); took > wakerMore/2 {
		t.Errorf("told to wake, it took %s", took)
	}
	if w, err := StartWaker(Status{HolderPID: os.Getpid()}, time.Hour); err == nil {
		w.Release()
		t.Error("started for a pause that has stopped nothing")
	}
}

// TestStatusOfAPause names what the pause has stopped, and not what was stopped before.
func TestStatusOfAPause(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", `sleep 1000 & kill -STOP $!; echo up; while :; do read x </dev/null; done`), nil)
	a.says("up")
	c := a.dial(RoleSupervisor)
	until(t, "one is stopped", func() bool { return strings.Count(treeStates(t, c), "T") == 1 })
	if err := c.PauseFor(time.Hour); err != nil {
		t.Fatal(err)
	}
	st, err := c.Status()
	if err != nil || len(st.Stopped) != 1 || st.Stopped[0][0] != uint64(st.ChildPID) || st.Stopped[0][1] != st.ChildStart {
		t.Errorf("stopped %v of %+v, %v", st.Stopped, st.Tree, err)
	}
	if err := c.Continue(); err != nil {
		t.Fatal(err)
	}
	if st, err := c.Status(); err != nil || len(st.Stopped) != 0 {
		t.Errorf("stopped %v after the pause, %v", st.Stopped, err)
	}
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	a.end()
}
