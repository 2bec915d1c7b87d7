package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childScript ends by itself on SIGTERM and SIGINT unless told to be stubborn,
// has a grandchild and a daemon that left its session, and says when it is up.
const childScript = `
import os, signal, subprocess, sys, time
stubborn = "stubborn" in sys.argv
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["setsid", "sh", "-c", "trap '' HUP TERM; while :; do sleep 1; done"])
if stubborn:
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(s, lambda n, f: print("ignored", n, flush=True))
print("up", flush=True)
while True:
    time.sleep(0.1)
`

func writeScript(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSignalTable: every signal to the supervisor, at every stage. No process is
// left except under SIGKILL, where the holder keeps the child on purpose; the
// exit status is right, and so is what is on disk.
func TestSignalTable(t *testing.T) {
	signals := []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGKILL}
	for _, sig := range signals {
		name := unix.SignalName(sig)
		t.Run(name+"/while it runs", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := start(t, dir, "--no-preflight", "--", "python3", writeScript(t, dir, "train.py", childScript))
			until(t, "child up", fileHas(p.file("attempts/1/output.log"), "up"))
			until(t, "state running", fileHas(p.file("run.json"), `"state": "running"`))
			ends := deliver(t, p, sig)
			if sig == unix.SIGKILL {
				p.wait(5 * time.Second)
				if len(processesOf(p.id())) == 0 {
					t.Fatal("the training died with the supervisor")
				}
				// It goes on under its holder, and its end is on disk.
				pid := int(readJSON(t, p.file("run.json"))["supervisor_pid"].(float64))
				if pid != p.cmd.Process.Pid {
					t.Errorf("supervisor_pid %d", pid)
				}
				for _, line := range processesOf(p.id()) {
					killChild(line)
				}
				until(t, "exit.json", func() bool { _, err := os.Stat(p.file("attempts/1/exit.json")); return err == nil })
				return
			}
			if got := p.wait(20 * time.Second); got != 128+int(ends) {
				t.Errorf("status %d, want %d; stderr %s", got, 128+int(ends), p.err)
			}
			checkStopped(t, p, stoppedByUser)
		})
		t.Run(name+"/before the child starts", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			// Preflight asks the GPU library, which blocks: the child is not there yet.
			p := startEnv(t, dir, blockedNVML(t, dir), "--", "python3", writeScript(t, dir, "train.py", childScript))
			until(t, "state preflight", fileHas(p.file("run.json"), `"state": "preflight"`))
			ends := deliver(t, p, sig)
			if got := p.wait(20 * time.Second); got != 128+int(ends) {
				t.Errorf("status %d, want %d; stderr %s", got, 128+int(ends), p.err)
			}
			if left := processesOf(p.id()); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if sig != unix.SIGKILL {
				checkStopped(t, p)
			}
		})
		t.Run(name+"/between attempts", func(t *testing.T) {
			// Not parallel: what one test hoards is another one's free memory.
			dir := t.TempDir()
			p := start(t, dir, "--no-preflight", "--", "python3", writeScript(t, dir, "train.py", hoardScript), "--max_length", "4096")
			until(t, "child up", fileHas(p.file("attempts/1/output.log"), "waiting"))
			hoard(t, dir)
			until(t, "gate", fileHas(p.file("run.json"), `"state": "gate"`))
			ends := deliver(t, p, sig)
			if got := p.wait(20 * time.Second); got != 128+int(ends) {
				t.Errorf("status %d, want %d; stderr %s", got, 128+int(ends), p.err)
			}
			if sig != unix.SIGKILL {
				// The attempt had died before anybody stopped anything.
				checkStopped(t, p, diedOfMemory)
			}
		})
		t.Run(name+"/while stopping", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := start(t, dir, "--no-preflight", "--grace", "60s", "--", "python3", writeScript(t, dir, "train.py", childScript), "stubborn")
			until(t, "child up", fileHas(p.file("attempts/1/output.log"), "up"))
			until(t, "state running", fileHas(p.file("run.json"), `"state": "running"`))
			_ = p.cmd.Process.Signal(unix.SIGINT)
			until(t, "first signal forwarded", fileHas(p.file("attempts/1/output.log"), "ignored 2"))
			deliver(t, p, sig)
			if sig == unix.SIGKILL {
				p.wait(5 * time.Second)
				if len(processesOf(p.id())) == 0 {
					t.Fatal("the holder did not keep the child")
				}
				return // the holder ends it after the grace
			}
			// The first signal decides the status, whatever came later.
			if got := p.wait(30 * time.Second); got != 128+int(unix.SIGINT) {
				t.Errorf("status %d, want 130; stderr %s", got, p.err)
			}
			checkStopped(t, p, stoppedByUser)
		})
	}
}

// deliver sends a cell's signal and returns the one that ends the run. A hangup
// takes the terminal only: the run must have noticed it and still be there, with
// all that it had; then SIGTERM ends it.
func deliver(t *testing.T, p *proc, sig syscall.Signal) syscall.Signal {
	t.Helper()
	lost := fileHas(p.file("events.jsonl"), "terminal.lost")
	if lost() {
		t.Fatalf("the terminal was lost before any signal; stderr %s", p.err)
	}
	before := trainers(p.id())
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("%s: %v", unix.SignalName(sig), err)
	}
	if sig != unix.SIGHUP {
		return sig
	}
	until(t, "terminal lost noted", lost)
	select {
	case <-p.done:
		t.Fatalf("SIGHUP ended sparkrun with %s; stderr %s", p.cmd.ProcessState, p.err)
	default:
	}
	if now := trainers(p.id()); !slices.Equal(now, before) {
		t.Errorf("SIGHUP ended the training: %v, now %v", before, now)
	}
	if m := readJSON(t, p.file("run.json")); m["exit_status"] != nil {
		t.Errorf("after SIGHUP the run is over: state %v", m["state"])
	}
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatalf("SIGTERM: %v", err)
	}
	return unix.SIGTERM
}

// trainers returns the live processes of a run that are the training script
// itself; what it has started comes and goes.
func trainers(id string) []string {
	return slices.DeleteFunc(processesOf(id), func(line string) bool { return !strings.Contains(line, "train.py") })
}

// hoardScript dies of memory as soon as somebody else has taken memory, so that
// the gate has something to wait for.
const hoardScript = `
import os, time
print("waiting", flush=True)
while not os.path.exists("hoarding"):
    time.sleep(0.01)
raise MemoryError
`

// hoard takes memory that was free when the attempt started and holds it until
// the test ends.
func hoard(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("python3", "-c", `import time; b = b"\1" * (3500 << 20); open("hoarding", "w"); time.sleep(60)`)
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed: its status means nothing
	})
}

func killChild(line string) {
	var pid int
	for _, f := range []byte(line) {
		if f < '0' || f > '9' {
			break
		}
		pid = pid*10 + int(f-'0')
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// judgement is what verdict.json must say of one attempt.
type judgement struct{ verdict, reason string }

var (
	// stoppedByUser: the stop came before the death, and is its cause.
	stoppedByUser = judgement{"not-oom", "user"}
	// diedOfMemory: the death came first; a stop after it changes nothing.
	diedOfMemory = judgement{"oom", ""}
)

// checkStopped demands what a stopped run leaves: no process, a final state, all
// files, and of each attempt the verdict it was stopped or died with.
func checkStopped(t *testing.T, p *proc, attempts ...judgement) {
	t.Helper()
	until(t, "no process left", func() bool { return len(processesOf(p.id())) == 0 })
	m := readJSON(t, p.file("run.json"))
	if m["state"] != "stopped" || m["ended_by"] != "user" {
		t.Errorf("state %v ended_by %v", m["state"], m["ended_by"])
	}
	if got, _ := m["attempts"].([]any); len(got) != len(attempts) {
		t.Errorf("%d attempts in run.json, want %d", len(got), len(attempts))
	}
	p.complete(len(attempts))
	for i, want := range attempts {
		v := readJSON(t, p.file("attempts/"+strconv.Itoa(i+1)+"/verdict.json"))
		got := judgement{}
		got.verdict, _ = v["verdict"].(string)
		got.reason, _ = v["reason"].(string)
		if got != want {
			t.Errorf("attempt %d is judged %+v, want %+v: %v", i+1, got, want, v["evidence"])
		}
	}
}
