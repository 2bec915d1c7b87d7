package holder

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// TestLeash: a pause ends at its limit, and when there has been no supervisor for a
// while in one piece.
func TestLeash(t *testing.T) {
	t.Parallel()
	type look struct {
		at         time.Duration
		supervised bool
	}
	const limit = 10 * time.Minute
	for name, tt := range map[string]struct {
		looks []look
		want  time.Duration // of the look that ends it, 0 for none
	}{
		"a supervisor that stays":     {[]look{{1, true}, {limit - 1, true}, {limit, true}}, limit},
		"one that goes":               {[]look{{1, true}, {time.Second, false}, {5 * time.Second, false}, {6 * time.Second, false}}, 6 * time.Second},
		"one that is back in time":    {[]look{{time.Second, false}, {5 * time.Second, true}, {7 * time.Second, false}, {11 * time.Second, false}}, 0},
		"none from the first look on": {[]look{{aloneLimit, false}, {2 * aloneLimit, false}}, 2 * aloneLimit},
		"the limit is the lower":      {[]look{{limit - 1, false}, {limit, false}}, limit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := leash{until: limit}
			got := time.Duration(0)
			for _, k := range tt.looks {
				if l.broken(k.at, k.supervised) {
					got = k.at
					break
				}
			}
			if got != tt.want {
				t.Errorf("ended at %s, want %s", got, tt.want)
			}
		})
	}
}

// treeStates are the states of an attempt's processes, one letter each.
func treeStates(t *testing.T, c *Client) string {
	t.Helper()
	st, err := c.Status()
	if err != nil {
		t.Fatal(err)
	}
	s := ""
	for _, p := range st.Tree {
		s += string(p.State)
	}
	return s
}

// TestABoundedPause: with real processes, one of them in a session of its own and one
// that ignores everything. Whoever asks for the state again and again does not make the
// pause longer.
func TestABoundedPause(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		role  string
		limit time.Duration
		leave bool
		least time.Duration
	}{
		"by its limit":                 {RoleSupervisor, 700 * time.Millisecond, false, 700 * time.Millisecond},
		"by the supervisor's end":      {RoleSupervisor, time.Hour, true, aloneLimit},
		"without any other supervisor": {"test", time.Hour, false, aloneLimit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := `setsid sh -c 'while :; do read x </dev/null; done' & (trap "" TERM INT HUP; while :; do read x </dev/null; done) & echo up; while :; do read x </dev/null; done`
			a := start(t, baseSpec(shortDir(t), "sh", "-c", script), nil)
			a.says("up")
			c, other := a.dial(tt.role), a.dial("other")
			until(t, "three processes", func() bool { return len(treeStates(t, other)) == 3 })
			began := time.Now()
			if err := c.PauseFor(tt.limit); err != nil {
				t.Fatal(err)
			}
			until(t, "all are stopped", func() bool { return treeStates(t, other) == "TTT" })
			if tt.leave {
				c.Close()
			}
			until(t, "all go on", func() bool { return !strings.Contains(treeStates(t, other), "T") })
			if took := time.Since(began); took < tt.least || took > tt.least+3*time.Second {
				t.Errorf("it stood still for %s, want %s", took, tt.least)
			}
			if st, err := other.Status(); err != nil || st.Paused {
				t.Errorf("still said to be paused: %+v, %v", st.Paused, err)
			}
			if err := other.Stop("KILL", 0); err != nil {
				t.Fatal(err)
			}
			a.end()
		})
	}
}

// TestAPauseIsNoShield: a paused tree is ended by each signal of a stop, with the time to
// save something.
func TestAPauseIsNoShield(t *testing.T) {
	t.Parallel()
	for sig, status := range map[string]int{"INT": 3, "TERM": 4, "KILL": 128 + int(unix.SIGKILL)} {
		t.Run(sig, func(t *testing.T) {
			t.Parallel()
			script := fmt.Sprintf(`trap 'echo saved; exit %d' INT; trap 'echo saved; exit %d' TERM; (trap "" INT; exec sleep 1000) & echo up; while :; do read x </dev/null; done`, 3, 4)
			a := start(t, baseSpec(shortDir(t), "sh", "-c", script), nil)
			a.says("up")
			c := a.dial(RoleSupervisor)
			if err := c.PauseFor(time.Hour); err != nil {
				t.Fatal(err)
			}
			until(t, "all are stopped", func() bool { return strings.Trim(treeStates(t, c), "T") == "" })
			if err := c.Stop(sig, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			e := a.end()
			if e.Status() != status || sig != "KILL" && !strings.Contains(string(a.log()), "saved") {
				t.Errorf("status %d, want %d; output %q", e.Status(), status, a.log())
			}
			if len(e.Survivors) > 0 {
				t.Errorf("survivors %+v", e.Survivors)
			}
		})
	}
}

// TestABadPause: a limit that is none is refused, and so is a pause of what ends.
func TestABadPause(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), self(t), "fake-deaf", "TERM"), nil)
	a.says("deaf")
	c := a.dial(RoleSupervisor)
	if err := c.PauseFor(-time.Second); err == nil {
		t.Error("a pause of less than nothing was made")
	}
	if st, err := c.Status(); err != nil || st.Paused {
		t.Errorf("paused: %v, %v", st.Paused, err)
	}
	if err := c.Stop("TERM", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := c.PauseFor(time.Hour); err == nil {
		t.Error("what is being stopped was paused")
	}
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	a.end()
}

// statesOf are the states of processes, one letter each, - for one that is gone.
func statesOf(pids []int) string {
	s := ""
	for _, pid := range pids {
		if p, ok := proctree.Read(pid); ok {
			s += string(p.State)
		} else {
			s += "-"
		}
	}
	return s
}

// pidsFrom waits for a file of so many pids in a folder.
func pidsFrom(t *testing.T, path string, n int) (pids []int) {
	t.Helper()
	until(t, "the pids", func() bool {
		b, _ := os.ReadFile(path)
		pids = nil
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return false
			}
			pids = append(pids, pid)
		}
		return len(pids) == n
	})
	return pids
}

// startSleeper starts a command that has a worker, and another one that it has stopped
// itself; pids are its own and those two.
func startSleeper(t *testing.T) (a *attempt, pids []int) {
	t.Helper()
	return startSleeperOf(t, "20260101-000000-test-abcd")
}

func startSleeperOf(t *testing.T, run string) (a *attempt, pids []int) {
	t.Helper()
	dir := shortDir(t)
	spec := baseSpec(dir, "sh", "-c", `sleep 1000 & w=$!; sleep 1001 & s=$!; kill -STOP $s; cd "$0"; echo "$$ $w $s" >pids.new; mv pids.new pids; while :; do read x </dev/null; done`, dir)
	spec.RunID = run
	a = start(t, spec, nil)
	pids = pidsFrom(t, filepath.Join(dir, "pids"), 3)
	until(t, "the one is stopped", func() bool { return statesOf(pids[2:]) == "T" })
	return a, pids
}

// TestAPauseLeavesSleepersAsleep: what the command had stopped itself is not woken by the
// end of a pause, whatever that is, nor by one that was none; and a stop wakes it, so that
// it can end.
func TestAPauseLeavesSleepersAsleep(t *testing.T) {
	t.Parallel()
	a, pids := startSleeper(t)
	c := a.dial(RoleSupervisor)
	goesOn := func(after string) {
		t.Helper()
		until(t, "the other two go on after "+after, func() bool { return !strings.Contains(statesOf(pids[:2]), "T") })
		if s := statesOf(pids[2:]); s != "T" {
			t.Errorf("after %s its sleeper is %s", after, s)
		}
	}
	stands := func() {
		t.Helper()
		if err := c.PauseFor(time.Hour); err != nil {
			t.Fatal(err)
		}
		until(t, "all three stand still", func() bool { return statesOf(pids) == "TTT" })
	}
	stands()
	if err := c.Continue(); err != nil {
		t.Fatal(err)
	}
	goesOn("a pause")
	if err := c.Continue(); err != nil {
		t.Fatal(err)
	}
	goesOn("an end of no pause")
	stands()
	stands() // a second order, with another limit
	if err := c.Continue(); err != nil {
		t.Fatal(err)
	}
	goesOn("a pause ordered twice")
	if err := c.PauseFor(300 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	until(t, "the limit", func() bool { st, err := c.Status(); return err == nil && !st.Paused })
	goesOn("a pause that came to its limit")
	stands()
	if err := c.Stop("TERM", time.Minute); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); e.Status() != 128+int(unix.SIGTERM) || len(e.Survivors) > 0 {
		t.Errorf("%+v", e)
	}
}

// TestAwake: whom another program wakes in a pause is named; one that the command had
// stopped itself, too.
func TestAwake(t *testing.T) {
	t.Parallel()
	a, pids := startSleeper(t)
	c := a.dial(RoleSupervisor)
	if err := c.PauseFor(time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if st, err := c.Status(); err != nil || !st.Paused || len(st.Awake) > 0 {
			t.Fatalf("paused %v, awake %+v, %v", st.Paused, st.Awake, err)
		}
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		until(t, "it is seen", func() bool {
			st, err := c.Status()
			return err == nil && st.Paused && len(st.Awake) == 1 && st.Awake[0].PID == pid
		})
		if err := c.PauseFor(time.Hour); err != nil { // again, all of it
			t.Fatal(err)
		}
		until(t, "all three stand still", func() bool { return statesOf(pids) == "TTT" })
	}
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	a.end()
}

// TestAPauseOfWhatForks: a tree that starts processes all the time stands still as a whole
// when the pause is said to be made, also where a look takes all the time there is for it.
func TestAPauseOfWhatForks(t *testing.T) {
	t.Parallel()
	script := `work() { while :; do /bin/true; (: ; :); done; }; work & work & echo up; work`
	for name, id := range map[string]string{"idle machine": "", "busy machine": busy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := baseSpec(shortDir(t), "sh", "-c", script)
			if id != "" {
				spec.RunID = id
			}
			a := start(t, spec, nil)
			a.says("up")
			c := a.dial(RoleSupervisor)
			for range 20 {
				if err := c.PauseFor(time.Hour); err != nil {
					t.Fatal(err)
				}
				st, err := c.Status()
				if err != nil || !st.Paused || len(st.Awake) > 0 || len(st.Tree) < 3 {
					t.Fatalf("paused %v, awake %+v, tree %+v, %v", st.Paused, st.Awake, st.Tree, err)
				}
				if err := c.Continue(); err != nil {
					t.Fatal(err)
				}
				until(t, "they go on", func() bool {
					st, err := c.Status()
					return err == nil && !strings.Contains(treeStates(t, c), "T") && !st.Paused
				})
			}
			if err := c.Stop("KILL", 0); err != nil {
				t.Fatal(err)
			}
			a.end()
		})
	}
}

// TestNotStill: who runs on is named, and not without end.
func TestNotStill(t *testing.T) {
	t.Parallel()
	p := proctree.Proc{PID: os.Getpid(), Comm: "train"}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, "train (pid %d) runs on: it does not stop"},
		{unix.EPERM, "train (pid %d) runs on: it may not be stopped"},
		{unix.EINVAL, "train (pid %d) runs on: invalid argument"},
	} {
		if got, want := runsOn(p, tt.err), fmt.Sprintf(tt.want, p.PID); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := notStill([]string{"a", "b", "c", "d", "e"}).Error(); got != "a; b; c; and 2 more" {
		t.Error(got)
	}
}
