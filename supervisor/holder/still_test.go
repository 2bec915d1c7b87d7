package holder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/newprog"
	"sparkrun/internal/proctree"
)

// impatient is the run ID of a holder that waits for no process to stand still, busy that
// of one for which the time for it is over after the first look.
const (
	impatient = "20260101-000000-impatient-abcd"
	busy      = "20260101-000000-busy-abcd"
)

func init() {
	if len(os.Args) < 3 {
		return
	}
	switch os.Args[1] {
	case "__hold":
		switch os.Args[2] {
		case impatient:
			pauseWithin, pauseLooks = 0, 0
		case busy:
			pauseWithin = 0
		}
	case "fake-root":
		os.Exit(fakeRoot(os.Args[2]))
	case "fake-pauser":
		os.Exit(fakePauser(os.Args[2]))
	}
}

// fakeRoot is root's for as long as there is no file finish in dir.
func fakeRoot(dir string) int {
	if err := syscall.Setuid(0); err != nil {
		return 1
	}
	if err := os.WriteFile(filepath.Join(dir, "root.up"), nil, 0o644); err != nil {
		return 1
	}
	for range 3000 {
		if _, err := os.Stat(filepath.Join(dir, "finish")); err == nil {
			return 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 1
}

// fakePauser runs as another user than root: it holds a command that has a process of
// root's in it, asks for a pause of each kind, and prints what came of it.
func fakePauser(dir string) int {
	script := fmt.Sprintf(`%[1]s/program fake-root %[1]s & sleep 1000 & while :; do read x </dev/null; done`, dir)
	h, _, err := Start(filepath.Join(dir, "plain"), baseSpec(dir, "sh", "-c", script), nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	c, err := Dial(filepath.Join(dir, "s"), RoleSupervisor)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for range 1500 {
		if _, err = os.Stat(filepath.Join(dir, "root.up")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, pause := range []func() error{c.Pause, func() error { return c.PauseFor(time.Hour) }} {
		err = errors.Join(err, c.Continue())
		refused := pause()
		st, err := c.Status()
		states := ""
		for _, p := range st.Tree {
			states += string(p.State)
		}
		fmt.Printf("paused %v, stopped %d of %d, status %v: %v\n", st.Paused, strings.Count(states, "T"), len(states), err, refused)
	}
	_ = os.WriteFile(filepath.Join(dir, "finish"), nil, 0o644)
	fmt.Println(err, c.Stop("KILL", 0))
	<-h.Wait()
	return 0
}

// TestAPauseIsWholeOrNone: a process of another user cannot be stopped, so nothing is, and
// whoever asked hears which it was and why.
func TestAPauseIsWholeOrNone(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user as well")
	}
	dir := shortDir(t)
	program, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "program")
	if err := newprog.Write(path, program); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	// Without the bit, for those that are to stay another user's.
	plain := filepath.Join(dir, "plain")
	if err := newprog.Write(plain, program); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	out, err := asNobody(t, plain, "fake-pauser", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 3 || lines[2] != "<nil> <nil>" {
		t.Fatalf("%s", out)
	}
	for _, l := range lines[:2] {
		if !strings.HasPrefix(l, "paused false, stopped 0 of 3, status <nil>: program (pid ") || !strings.HasSuffix(l, "runs on: it belongs to uid 0, and uid 65534 may not stop it") {
			t.Errorf("%s", l)
		}
	}
}

// TestRuns: who counts as running, and who as ended.
func TestRuns(t *testing.T) {
	t.Parallel()
	proc := func(pid int) proctree.Proc {
		p, ok := proctree.Read(pid)
		if !ok {
			t.Fatalf("no process %d", pid)
		}
		return p
	}
	if me := proc(os.Getpid()); !runs(me) || ended(me) || stopPending(me.PID) {
		t.Errorf("%+v does not run", me)
	}
	child, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Kill() }()
	until(t, "it sleeps", func() bool { return proc(child.Pid).State == 'S' })
	if p := proc(child.Pid); !runs(p) || ended(p) {
		t.Errorf("%+v does not run", p)
	}
	if err := child.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "it is stopped", func() bool { return proc(child.Pid).State == 'T' })
	if p := proc(child.Pid); runs(p) || ended(p) {
		t.Errorf("%+v runs", p)
	}
	if err := child.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, "it is a zombie", func() bool { return proc(child.Pid).State == 'Z' })
	if p := proc(child.Pid); runs(p) || !ended(p) {
		t.Errorf("%+v: runs %v, ended %v", p, runs(p), ended(p))
	}
	if _, err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if stopPending(child.Pid) {
		t.Error("a process that is gone is about to stop")
	}
	for _, st := range "tDXx" {
		if runs(proctree.Proc{PID: os.Getpid(), State: byte(st)}) {
			t.Errorf("%c runs", st)
		}
	}
}

// TestAPauseIsUndone: what does not stand still in time is no pause, and what has been
// stopped by then is woken at once; but for what the command had stopped itself.
func TestAPauseIsUndone(t *testing.T) {
	t.Parallel()
	a, pids := startSleeperOf(t, impatient)
	c := a.dial(RoleSupervisor)
	for range 3 {
		if err := c.PauseFor(time.Hour); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("sleep (pid %d) runs on: it does not stop", pids[1])) {
			t.Errorf("%v", err)
		}
		if st, err := c.Status(); err != nil || st.Paused || len(st.Awake) > 0 {
			t.Errorf("paused %v, awake %+v, %v", st.Paused, st.Awake, err)
		}
		until(t, "they go on", func() bool { return !strings.Contains(statesOf(pids[:2]), "T") })
		if s := statesOf(pids[2:]); s != "T" {
			t.Errorf("its sleeper is %s", s)
		}
	}
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	a.end()
}
