package proctree

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	rest := " S 7 8 9 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 98765 100 200 18446744073709551615"
	for _, comm := range []string{"python3", "a b", "x) S (", "((", ""} {
		p, ok := parseStat([]byte("42 (" + comm + ")" + rest))
		want := Proc{PID: 42, PPID: 7, Start: 98765, State: 'S', Comm: comm, PGID: 8, SID: 9}
		if !ok || p != want {
			t.Errorf("%q: %+v %v", comm, p, ok)
		}
	}
	for _, torn := range []string{"", "42", "42 (x", "42 (x)", "42 (x) S 7", "x (x)" + rest} {
		if p, ok := parseStat([]byte(torn)); ok {
			t.Errorf("%q read as %+v", torn, p)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a b) S 7 8 9 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 98765 1 2"))
	f.Fuzz(func(_ *testing.T, b []byte) { parseStat(b) })
}

// TestLiveTree: a grandchild is found below us, by parent and by environment,
// with its memory; what has gone is not found.
func TestLiveTree(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", "sleep 60 & read x")
	cmd.Env = append(os.Environ(), "PROCTREE_TEST=yes it is")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var sleeper Proc
	for sleeper.PID == 0 {
		for _, p := range Descendants(cmd.Process.Pid) {
			if p.Comm == "sleep" {
				sleeper = p
			}
		}
	}
	walked := false
	for _, p := range Walk(cmd.Process.Pid) {
		walked = walked || p.PID == sleeper.PID && p.Start == sleeper.Start && p.Comm == sleeper.Comm
	}
	if !walked {
		t.Errorf("Walk does not find %+v", sleeper)
	}
	found := false
	for _, p := range WithEnv("PROCTREE_TEST=yes it is") {
		found = found || p.PID == sleeper.PID
	}
	if !found {
		t.Error("not found by its environment")
	}
	if len(WithEnv("PROCTREE_TEST=yes")) != 0 {
		t.Error("found by a part of its environment")
	}
	_ = exec.Command("kill", "-9", strconv.Itoa(sleeper.PID)).Run()
	in.Close()
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if p, ok := Read(cmd.Process.Pid); ok {
		t.Errorf("still there: %+v", p)
	}
}

func TestCPU(t *testing.T) {
	t.Parallel()
	before := CPU(os.Getpid())
	for began := time.Now(); CPU(os.Getpid()) < before+50*time.Millisecond; {
		if time.Since(began) > 20*time.Second {
			t.Fatal("no CPU time is seen to pass in a busy loop")
		}
	}
	if got := CPU(1 << 30); got != 0 {
		t.Errorf("a process that is not there used %s", got)
	}
}
