package holder

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"sparkrun/internal/clock"
	"sparkrun/supervisor/guard"
)

// The stop order, one row per step.
func TestStopOrder(t *testing.T) {
	t.Parallel()
	w := Waits{}.withDefaults()
	const s = time.Second
	type step struct {
		at    time.Duration
		event stopEvent
		phase stopPhase
		acts  []stopAction
	}
	stop := func(sig syscall.Signal, grace time.Duration) stopEvent {
		return stopEvent{kind: evStop, sig: sig, grace: grace}
	}
	childEnds, empty, tick := stopEvent{kind: evChild}, stopEvent{kind: evEmpty}, stopEvent{kind: evTime}
	forward, term, kill := []stopAction{actForward}, []stopAction{actTerm}, []stopAction{actKill}

	tests := map[string][]step{
		"ends by itself": {
			{0, tick, phaseRun, nil},
			{5 * s, childEnds, phaseSettle, nil},
			{5 * s, empty, phaseGone, nil},
		},
		"no child yet is not the end": {
			{0, empty, phaseRun, nil},
		},
		"every wait runs out": {
			{0, stop(unix.SIGINT, 30*s), phaseGrace, forward},
			{29 * s, tick, phaseGrace, nil},
			{30 * s, tick, phaseTerm, term},
			{39 * s, tick, phaseTerm, nil},
			{40 * s, tick, phaseKill, kill},
			{41 * s, tick, phaseKill, kill},
			{55 * s, tick, phaseGaveUp, nil},
			{60 * s, stop(unix.SIGKILL, 0), phaseGaveUp, nil},
		},
		"obeys the first signal": {
			{0, stop(unix.SIGTERM, 30*s), phaseGrace, forward},
			{2 * s, childEnds, phaseSettle, nil},
			{2 * s, empty, phaseGone, nil},
		},
		"leaves descendants": {
			{0, childEnds, phaseSettle, nil},
			{100 * time.Millisecond, tick, phaseSettle, nil},
			{200 * time.Millisecond, tick, phaseTerm, term},
			{5*s + 199*time.Millisecond, tick, phaseTerm, nil},
			{5*s + 200*time.Millisecond, tick, phaseKill, kill},
			{5*s + 220*time.Millisecond, empty, phaseGone, nil},
		},
		"descendants end in time": {
			{0, childEnds, phaseSettle, nil},
			{100 * time.Millisecond, empty, phaseGone, nil},
		},
		"second stop shortens the grace": {
			{0, stop(unix.SIGINT, 30*s), phaseGrace, forward},
			{1 * s, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{4*s - 1, tick, phaseTerm, nil},
			{4 * s, tick, phaseKill, kill},
		},
		"third stop kills": {
			{0, stop(unix.SIGINT, 30*s), phaseGrace, forward},
			{1 * s, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{2 * s, stop(unix.SIGINT, 30*s), phaseKill, kill},
			{3 * s, stop(unix.SIGINT, 30*s), phaseKill, nil},
			{17 * s, tick, phaseGaveUp, nil},
		},
		"second stop after SIGTERM shortens that wait": {
			{0, stop(unix.SIGINT, 1*s), phaseGrace, forward},
			{1 * s, tick, phaseTerm, term},
			{2 * s, stop(unix.SIGINT, 1*s), phaseTerm, term},
			{5 * s, tick, phaseKill, kill},
		},
		"a second stop never lengthens": {
			{0, stop(unix.SIGINT, 1*s), phaseGrace, forward},
			{1 * s, tick, phaseTerm, term},
			{10 * s, stop(unix.SIGINT, 1*s), phaseTerm, term},
			{11 * s, tick, phaseKill, kill},
		},
		"no grace": {
			{0, stop(unix.SIGINT, 0), phaseGrace, forward},
			{0, tick, phaseTerm, term},
		},
		"SIGKILL is no request": {
			{0, stop(unix.SIGKILL, 30*s), phaseKill, kill},
			{0, childEnds, phaseKill, nil},
			{0, empty, phaseGone, nil},
		},
		"child ends while the tree is being terminated": {
			{0, stop(unix.SIGTERM, 1*s), phaseGrace, forward},
			{1 * s, tick, phaseTerm, term},
			{2 * s, childEnds, phaseTerm, nil},
			{11 * s, tick, phaseKill, kill},
		},
		"the guard asks": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, stopEvent{kind: evGuardTerm}, phaseTerm, nil},
			{2 * s, stopEvent{kind: evGuardKill}, phaseKill, kill},
			{2 * s, stopEvent{kind: evGuardKill}, phaseKill, nil},
			{17 * s, tick, phaseGaveUp, nil},
			{18 * s, stopEvent{kind: evGuardKill}, phaseGaveUp, nil},
		},
		"the guard asks and nobody obeys": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{10 * s, tick, phaseKill, kill},
		},
		"the guard does not wait for the user's grace": {
			{0, stop(unix.SIGINT, 30*s), phaseGrace, forward},
			{1 * s, stopEvent{kind: evGuardTerm}, phaseTerm, term},
		},
		"a user after the guard": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, stop(unix.SIGINT, 30*s), phaseTerm, forward},
			{10 * s, tick, phaseTerm, nil},
			{30 * s, tick, phaseTerm, nil},
			{31 * s, tick, phaseKill, kill},
		},
		"a user after the guard, with less grace than the guard's": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, stop(unix.SIGINT, 2*s), phaseTerm, forward},
			{9 * s, tick, phaseTerm, nil},
			{10 * s, tick, phaseKill, kill},
		},
		"a user after the guard, twice": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, stop(unix.SIGINT, 30*s), phaseTerm, forward},
			{2 * s, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{5*s - 1, tick, phaseTerm, nil},
			{5 * s, tick, phaseKill, kill},
		},
		"a user after the guard, three times": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, stop(unix.SIGINT, 30*s), phaseTerm, forward},
			{2 * s, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{2 * s, stop(unix.SIGINT, 30*s), phaseKill, kill},
		},
		"the guard's SIGTERM is not repeated by the user's first": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, stop(unix.SIGTERM, 30*s), phaseTerm, nil},
			{31 * s, tick, phaseKill, kill},
		},
		"the guard hurries after a user's first": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, stop(unix.SIGINT, 30*s), phaseTerm, forward},
			{2 * s, stopEvent{kind: evGuardKill}, phaseKill, kill},
		},
		"a user's SIGKILL after the guard": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, stop(unix.SIGKILL, 30*s), phaseKill, kill},
		},
		"a user after the guard, the command is gone": {
			{0, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{1 * s, childEnds, phaseTerm, nil},
			{1 * s, stop(unix.SIGINT, 5*s), phaseTerm, nil},
			{10 * s, tick, phaseKill, kill},
		},
		"a second request after the guard took over the first": {
			{0, stop(unix.SIGINT, 30*s), phaseGrace, forward},
			{1 * s, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{2 * s, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{5 * s, tick, phaseKill, kill},
		},
		"stop while descendants settle": {
			{0, childEnds, phaseSettle, nil},
			{0, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{3 * s, tick, phaseKill, kill},
		},
	}
	await := map[string][]step{
		"a client ends and the work goes on for hours": {
			{0, childEnds, phaseAwait, nil},
			{0, tick, phaseAwait, nil},
			{9999 * s, tick, phaseAwait, nil},
			{9999 * s, empty, phaseGone, nil},
		},
		"a stop without a client": {
			{0, childEnds, phaseAwait, nil},
			{60 * s, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{90*s - 1, tick, phaseTerm, nil},
			{90 * s, tick, phaseKill, kill},
			{91 * s, empty, phaseGone, nil},
		},
		"a second and a third stop without a client": {
			{0, childEnds, phaseAwait, nil},
			{0, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{1 * s, stop(unix.SIGINT, 30*s), phaseTerm, term},
			{2 * s, stop(unix.SIGINT, 30*s), phaseKill, kill},
		},
		"SIGKILL without a client": {
			{0, childEnds, phaseAwait, nil},
			{0, stop(unix.SIGKILL, 30*s), phaseKill, kill},
		},
		"the guard without a client": {
			{0, childEnds, phaseAwait, nil},
			{1 * s, stopEvent{kind: evGuardTerm}, phaseTerm, term},
			{2 * s, stopEvent{kind: evGuardKill}, phaseKill, kill},
		},
		"the guard kills without a client": {
			{0, childEnds, phaseAwait, nil},
			{1 * s, stopEvent{kind: evGuardKill}, phaseKill, kill},
		},
		"a client that a stop ends leaves its work the grace": {
			{0, stop(unix.SIGINT, 30*s), phaseGrace, forward},
			{1 * s, childEnds, phaseSettle, nil},
			{1*s + 200*time.Millisecond, tick, phaseTerm, term},
			{30*s - 1, tick, phaseTerm, nil},
			{30 * s, tick, phaseKill, kill},
		},
		"a client that hands the signal on": {
			{0, stop(unix.SIGINT, 30*s), phaseGrace, forward},
			{5 * s, childEnds, phaseSettle, nil},
			{5*s + 10*time.Millisecond, empty, phaseGone, nil},
		},
	}
	for name, steps := range await {
		tests[name] = steps
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			st := stopState{awaitTree: await[name] != nil}
			for i, x := range steps {
				var acts []stopAction
				st, acts = w.next(st, x.event, x.at)
				if st.phase != x.phase || !cmp.Equal(acts, x.acts) {
					t.Fatalf("step %d at %s: phase %v actions %v, want %v %v", i, x.at, st.phase, acts, x.phase, x.acts)
				}
			}
		})
	}
}

// Whatever happens, the order ends within the sum of its waits after the first
// stop, and never goes back to a gentler phase.
func TestStopOrderAlwaysEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := Waits{}.withDefaults()
		st := stopState{awaitTree: rapid.Bool().Draw(t, "await")}
		grace := time.Duration(rapid.IntRange(0, 60).Draw(t, "grace")) * time.Second
		now := time.Duration(0)
		st, _ = w.next(st, stopEvent{kind: evStop, sig: unix.SIGINT, grace: grace}, now)
		limit := grace + w.Settle + w.Leftover + w.Term + w.Short + w.Kill + 8*time.Second
		for !st.phase.over() {
			before := st.phase
			kind := stopEventKind(rapid.IntRange(int(evStop), int(evGuardKill)).Draw(t, "event"))
			st, _ = w.next(st, stopEvent{kind: kind, sig: unix.SIGINT, grace: grace}, now)
			if st.phase < before {
				t.Fatalf("from %v back to %v", before, st.phase)
			}
			now += time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond
			if now > limit {
				// Time events are drawn at random: give it the one it is due.
				if st, _ = w.next(st, stopEvent{kind: evTime}, now+limit); st.phase == before {
					t.Fatalf("still %v after %s", st.phase, now)
				}
				now += limit
			}
		}
	})
}

func stopsOf(e Exit) string {
	var b strings.Builder
	for _, s := range e.Stops {
		fmt.Fprintf(&b, "%s>%s ", s.Signal, s.To)
	}
	return strings.TrimSpace(b.String())
}

func TestStopWithRealProcesses(t *testing.T) {
	t.Parallel()
	t.Run("interrupt reaches the foreground group", func(t *testing.T) {
		t.Parallel()
		a := start(t, baseSpec(shortDir(t), "python3", "-c", "import time\ntry:\n print('up',flush=True)\n time.sleep(100)\nexcept KeyboardInterrupt:\n print('saved',flush=True)\n raise SystemExit(3)"), nil)
		a.says("up")
		if err := a.dial("test").Stop("INT", 20*time.Second); err != nil {
			t.Fatal(err)
		}
		e := a.end()
		if e.Status() != 3 || stopsOf(e) != "SIGINT>fg" || !strings.HasSuffix(string(a.log()), "saved\n") {
			t.Errorf("status %d stops %q output %q", e.Status(), stopsOf(e), a.log())
		}
	})
	t.Run("terminate goes to the command alone", func(t *testing.T) {
		t.Parallel()
		script := `trap "trap '' TERM; echo caught; wait; exit 6" TERM; ` + self(t) + " fake-usr1 & p=$!; sleep 0.01; while ! kill -0 $p; do :; done; wait $p; exit 1"
		spec := baseSpec(shortDir(t), "sh", "-c", script)
		a := start(t, spec, nil)
		a.says("ready")
		if err := a.dial("test").Stop("TERM", 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		e := a.end()
		// The worker got its SIGTERM only with the tree.
		if got := string(a.log()); got != "ready\ncaught\ngot SIGTERM\n" || e.Status() != 6 {
			t.Errorf("output %q status %d", got, e.Status())
		}
		if stopsOf(e) != "SIGTERM>child SIGTERM>tree" {
			t.Errorf("stops %q", stopsOf(e))
		}
	})
	t.Run("deaf to everything", func(t *testing.T) {
		t.Parallel()
		a := start(t, baseSpec(shortDir(t), self(t), "fake-deaf", "INT", "TERM"), nil)
		a.says("deaf")
		if err := a.dial("test").Stop("INT", 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		e := a.end()
		if e.Signal != "SIGKILL" || e.Status() != 137 || stopsOf(e) != "SIGINT>fg SIGTERM>tree SIGKILL>tree" {
			t.Errorf("exit %+v", e)
		}
		if len(e.Ended) != 0 || len(e.Survivors) != 0 {
			t.Errorf("ended %v survivors %v", e.Ended, e.Survivors)
		}
	})
	t.Run("three requests do not wait", func(t *testing.T) {
		t.Parallel()
		spec := baseSpec(shortDir(t), self(t), "fake-deaf", "INT", "TERM")
		spec.Waits.Term, spec.Waits.Short = time.Hour, time.Hour
		a := start(t, spec, nil)
		a.says("deaf")
		c := a.dial("test")
		for range 3 {
			if err := c.Stop("INT", time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if e := a.end(); e.Signal != "SIGKILL" || stopsOf(e) != "SIGINT>fg SIGTERM>tree SIGKILL>tree" {
			t.Errorf("exit %+v", e)
		}
	})
	t.Run("a stopped command is woken", func(t *testing.T) {
		t.Parallel()
		spec := baseSpec(shortDir(t), self(t), "fake-usr1")
		spec.Waits.Term = time.Hour
		a := start(t, spec, nil)
		a.says("ready")
		if err := unix.Kill(a.st.ChildPID, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := a.dial("test").Stop("TERM", time.Hour); err != nil {
			t.Fatal(err)
		}
		if e := a.end(); e.Status() != 7 {
			t.Errorf("status %d", e.Status())
		}
	})
	t.Run("without a socket", func(t *testing.T) {
		t.Parallel()
		for sig, want := range map[syscall.Signal]string{unix.SIGINT: "SIGINT>fg", unix.SIGTERM: "SIGTERM>child", unix.SIGQUIT: "SIGQUIT>fg"} {
			spec := baseSpec(shortDir(t), "sh", "-c", "ulimit -c 0; echo up; exec sleep 1000")
			spec.Socket = ""
			a := start(t, spec, nil)
			a.says("up")
			if err := a.h.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if e := a.end(); e.Status() != 128+int(sig) || stopsOf(e) != want {
				t.Errorf("%v: status %d stops %q", sig, e.Status(), stopsOf(e))
			}
		}
	})
	t.Run("a supervisor decides about signals to the holder", func(t *testing.T) {
		t.Parallel()
		a := start(t, baseSpec(shortDir(t), self(t), "fake-usr1"), nil)
		a.says("ready")
		c := a.dial(RoleSupervisor)
		if err := a.h.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		// The reply comes after the signal was handled, or it is still to come:
		// either way nothing may have been sent.
		if err := c.Signal("USR1", ToChild); err != nil {
			t.Fatal(err)
		}
		a.says("got SIGUSR1")
		if st, err := c.Status(); err != nil || st.Stopping != "" {
			t.Errorf("stopping %q, %v", st.Stopping, err)
		}
		if err := c.Stop("TERM", time.Hour); err != nil {
			t.Fatal(err)
		}
		if e := a.end(); e.Status() != 7 || stopsOf(e) != "SIGUSR1>child SIGTERM>child" {
			t.Errorf("status %d stops %q", e.Status(), stopsOf(e))
		}
	})
}

// A daemon that forks twice into a session of its own, deaf to SIGTERM, must
// not outlive the attempt; neither must its output be lost.
func TestDescendantsAreEnded(t *testing.T) {
	t.Parallel()
	script := `(setsid ` + self(t) + ` fake-deaf TERM HUP INT & ) ; (setsid sleep 1000 & ); while [ "$(ps -e -o args= | grep -c '[f]ake-deaf TERM HUP INT')" = 0 ]; do sleep 0.01; done; sleep 0.2; exit 2`
	a, e := runSh(t, script, nil)
	if e.Status() != 2 || !e.Drained || !strings.Contains(string(a.log()), "deaf") {
		t.Errorf("status %d drained %v output %q", e.Status(), e.Drained, a.log())
	}
	got := map[string]string{}
	for _, p := range e.Ended {
		got[p.Comm] = p.Signal
		if alive(p.PID) {
			t.Errorf("%s (%d) still runs", p.Comm, p.PID)
		}
	}
	if got["sleep"] != "SIGTERM" || len(got) != 2 {
		t.Errorf("ended %+v", e.Ended)
	}
	killed := 0
	for _, s := range got {
		if s == "SIGKILL" {
			killed++
		}
	}
	if killed != 1 {
		t.Errorf("ended %+v, want one by SIGKILL", e.Ended)
	}
	if e.OrphansTotal < 2 || len(e.Survivors) != 0 {
		t.Errorf("orphans %+v survivors %+v", e.Orphans, e.Survivors)
	}
}

// A reader at the end of a pipe, as in `> >(tee log)`, gets its moment.
func TestDescendantsThatEndThemselvesAreLeftAlone(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), "python3", "-c", `import os,subprocess
p=subprocess.Popen(["sh","-c","cat; echo tail"],stdin=subprocess.PIPE)
p.stdin.write(b"body\n"); p.stdin.flush()
os._exit(0)`)
	// On a terminal the kernel would send SIGHUP when its session leader ends.
	spec.PTY, spec.Stdin = false, StdinNull
	spec.Waits.Settle = 5 * time.Second
	a := start(t, spec, nil)
	e := a.end()
	if got := string(a.log()); got != "body\ntail\n" || len(e.Ended) != 0 {
		t.Errorf("output %q ended %+v", got, e.Ended)
	}
}

// TestAClientsWorkIsWaitedFor is podman run -d, and one whose client is killed:
// the command has ended, and what it started is the training.
func TestAClientsWorkIsWaitedFor(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, work string, change func(*Spec)) (*attempt, *Client) {
		t.Helper()
		// A session of its own, as conmon has: the terminal's end is not its.
		spec := baseSpec(shortDir(t), "sh", "-c", "setsid sh -c '"+work+"' </dev/null >/dev/null 2>&1 & until [ -e up ]; do sleep 0.01; done; exit 3")
		spec.AwaitTree, spec.Cwd = true, spec.Dir
		if change != nil {
			change(&spec)
		}
		a := start(t, spec, nil)
		c := a.dial(RoleSupervisor)
		until(t, "the client has ended", func() bool { st, err := c.Status(); return err == nil && st.Exited })
		// Longer than settle, and every wait after it, would have taken.
		time.Sleep(spec.Waits.Settle + spec.Waits.Leftover + 100*time.Millisecond)
		st, err := c.Status()
		if err != nil || st.Stopping != "" || st.TreeTotal == 0 {
			t.Fatalf("%+v, %v", st, err)
		}
		if _, err := ReadExit(a.dir); !notExist(err) {
			t.Fatalf("the attempt is over: %v", err)
		}
		return a, c
	}
	const deaf, obeys = `trap "" TERM; : >up; while :; do sleep 0.02; done`, `trap "exit 0" TERM; : >up; while :; do sleep 0.02; done`

	t.Run("to its end", func(t *testing.T) {
		t.Parallel()
		a, c := begin(t, ": >up; until [ -e go ]; do sleep 0.01; done", nil)
		if err := c.Pause(); err != nil {
			t.Error(err)
		}
		if err := c.Continue(); err != nil {
			t.Error(err)
		}
		asked := clock.Boottime()
		if err := os.WriteFile(filepath.Join(a.dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if e := a.end(); e.Code != 3 || len(e.Stops) > 0 || len(e.Ended) > 0 || e.OrphansTotal == 0 || e.Boot < asked {
			t.Errorf("%+v", e)
		}
	})
	t.Run("a stop", func(t *testing.T) {
		t.Parallel()
		a, c := begin(t, obeys, nil)
		if err := c.Stop("INT", time.Hour); err != nil {
			t.Fatal(err)
		}
		if e := a.end(); stopsOf(e) != "SIGTERM>tree" || len(e.Survivors) > 0 {
			t.Errorf("stops %q, %+v", stopsOf(e), e)
		}
	})
	t.Run("a stop of the deaf", func(t *testing.T) {
		t.Parallel()
		a, c := begin(t, deaf, nil)
		if err := c.Stop("INT", 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if e := a.end(); stopsOf(e) != "SIGTERM>tree SIGKILL>tree" || len(e.Survivors) > 0 || e.Code != 3 {
			t.Errorf("stops %q, %+v", stopsOf(e), e)
		}
	})
	for name, low := range map[string]struct {
		work  string
		stops string
	}{"the guard": {obeys, "SIGTERM>tree"}, "the guard, of the deaf": {deaf, "SIGTERM>tree SIGKILL>tree"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, c := begin(t, low.work, nil)
			if err := c.Floors(Floors{Options: &guard.Options{HardKiB: 1 << 40}}); err != nil {
				t.Fatal(err)
			}
			e := a.end()
			if e.Guard == nil || stopsOf(e) != low.stops || e.Stops[0].By != ByGuard || len(e.Survivors) > 0 {
				t.Errorf("guard %+v, stops %q, %+v", e.Guard, stopsOf(e), e)
			}
		})
	}
}

// TestAnEndOfWorkByTheGuard: its kill was faster than the word of it.
func TestAnEndOfWorkByTheGuard(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{true, false} {
		h := newHold(Spec{AwaitTree: true}, nil)
		h.stop.phase, h.stop.childGone, h.orphanKilled = phaseGone, true, killed
		h.guardActs(guard.EventKill, &guard.Action{Boot: clock.Boottime(), First: "SIGKILL"})
		if (h.exit.Guard != nil) != killed {
			t.Errorf("killed %v: guard %+v", killed, h.exit.Guard)
		}
	}
}

func TestForkingTreeIsKilled(t *testing.T) {
	t.Parallel()
	// Each process replaces itself as fast as it can and ignores SIGTERM.
	script := `trap '' TERM INT; echo up; f() { (f) & sleep 0.002; (sleep 50) & exit 0; }; (f) & (f) & wait; sleep 1000`
	spec := baseSpec(shortDir(t), "sh", "-c", script)
	a := start(t, spec, nil)
	a.says("up")
	c := a.dial("test")
	until(t, "the tree is large", func() bool { st, err := c.Status(); return err == nil && st.TreeTotal > 20 })
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); len(e.Survivors) != 0 {
		t.Errorf("survivors %+v", e.Survivors)
	}
}

func TestPauseAndContinue(t *testing.T) {
	t.Parallel()
	script := "sh -c 'echo $$; while :; do sleep 0.01; done' & echo up; while :; do sleep 0.01; done"
	a := start(t, baseSpec(shortDir(t), "sh", "-c", script), nil)
	a.says("up")
	c := a.dial("test")
	states := func() string {
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
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	// A shell whose new child was stopped between vfork and execve waits in D.
	until(t, "all are stopped", func() bool { t.Log(states()); return !strings.ContainsAny(states(), "RS") })
	if st, _ := c.Status(); !st.Paused {
		t.Error("not reported as paused")
	}
	if err := c.Continue(); err != nil {
		t.Fatal(err)
	}
	until(t, "all run", func() bool { return !strings.Contains(states(), "T") })
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	// A paused tree can be stopped.
	if err := c.Stop("TERM", time.Hour); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); e.Status() != 143 {
		t.Errorf("status %d", e.Status())
	}
}

// With job control the foreground group is not the command's own.
func TestSignalTargets(t *testing.T) {
	t.Parallel()
	script := `import os,signal,sys,time
def say(who):
    signal.signal(signal.SIGUSR1, lambda *a: os.write(1, (who+" usr1\n").encode()))
say("child")
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid=os.fork()
if pid==0:
    os.setpgid(0,0); os.tcsetpgrp(0,os.getpid()); say("fg"); os.write(1,b"fg ready\n")
    while True: time.sleep(1)
while True: time.sleep(1)`
	a := start(t, baseSpec(shortDir(t), "python3", "-c", script), nil)
	a.says("fg ready")
	c := a.dial("test")
	for _, x := range []struct{ to, want string }{
		{ToForeground, "fg ready\nfg usr1\n"},
		{ToChild, "fg ready\nfg usr1\nchild usr1\n"},
	} {
		if err := c.Signal("USR1", x.to); err != nil {
			t.Fatal(err)
		}
		a.says(x.want)
	}
	if err := c.Signal("SIGUSR1", ToTree); err != nil {
		t.Fatal(err)
	}
	until(t, "both got it again", func() bool { return strings.Count(string(a.log()), "usr1") == 4 })
	for _, bad := range [][2]string{{"NOSUCH", ToChild}, {"USR1", "moon"}} {
		if err := c.Signal(bad[0], bad[1]); err == nil {
			t.Errorf("signal %v was taken", bad)
		}
	}
	if err := c.Signal("KILL", ToTree); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); e.Signal != "SIGKILL" {
		t.Errorf("signal %q", e.Signal)
	}
}

func TestSignalNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]syscall.Signal{"INT": unix.SIGINT, "SIGTERM": unix.SIGTERM, "sigusr1": unix.SIGUSR1, "9": unix.SIGKILL, "34": 34} {
		if got, err := parseSignal(name); err != nil || got != want {
			t.Errorf("parseSignal(%q) = %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "0", "65", "SIG", "-1", "INTR"} {
		if got, err := parseSignal(name); err == nil {
			t.Errorf("parseSignal(%q) = %v", name, got)
		}
	}
	if signalName(34) != "SIG34" {
		t.Error(signalName(34))
	}
}

// While a stop is under way the output still flows: a command blocked in a
// write would never see the signal.
func TestOutputIsDrainedWhileStopping(t *testing.T) {
	t.Parallel()
	script := "trap 'exec " + self(t) + " fake-flood 3000000' TERM; echo up; while :; do sleep 0.01; done"
	a := start(t, baseSpec(shortDir(t), "sh", "-c", script), nil)
	a.says("up")
	if err := a.dial("test").Stop("TERM", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); e.Status() != 0 || e.Offset != 3000003 || len(a.log()) != 3000003 {
		t.Errorf("status %d offset %d log %d", e.Status(), e.Offset, len(a.log()))
	}
}

func TestHolderIsSmall(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", "echo up; read x"), nil)
	a.says("up")
	for fd := range 3 {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", a.st.HolderPID, fd)); err != nil || to != os.DevNull {
			t.Errorf("descriptor %d of the holder is %s, %v", fd, to, err)
		}
	}
	sid, err := unix.Getsid(a.st.HolderPID)
	if err != nil || sid != a.st.HolderPID {
		t.Errorf("session %d of holder %d, %v", sid, a.st.HolderPID, err)
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(a.st.HolderPID) + "/environ")
	if err != nil || strings.Contains(string(env), "MARK") || strings.Contains(string(env), "PATH") {
		t.Errorf("environment of the holder: %q, %v", env, err)
	}
	if err := a.dial("test").Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	a.end()
}
