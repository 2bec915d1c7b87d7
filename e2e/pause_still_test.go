package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/e2e/fakenvml"
	"sparkrun/internal/newprog"
)

// A copy of this test binary under that name, with the set-uid bit, is a training that
// root owns, as one behind sudo is.
const rootTrainer = "rootrain"

func init() {
	if filepath.Base(os.Args[0]) != rootTrainer {
		return
	}
	if err := syscall.Setuid(0); err != nil {
		fmt.Println("no root:", err)
		os.Exit(1)
	}
	for step := 1; ; step++ {
		fmt.Printf("step %d loss 2.5\n", step)
		if _, err := os.Stat("finish"); err == nil {
			os.Exit(0)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// hotNobody starts a command as another user on a machine whose temperatures a test sets,
// in a folder with a training that root owns.
func hotNobody(t *testing.T, command ...string) *hotRun {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to start something as another user")
	}
	dir := t.TempDir()
	h := &hotRun{t: t, root: heatTree(t)}
	h.zones("78000")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"sparkrun": filepath.Join(bin, "sparkrun"), "nvml.so": fakenvml.Build(t), rootTrainer: self} {
		copyProgram(t, from, filepath.Join(dir, name))
	}
	if err := os.Chmod(filepath.Join(dir, rootTrainer), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // t.TempDir made it for us alone
		t.Fatal(err)
	}
	env := []string{
		"SPARKRUN_TEST_ROOT=" + h.root,
		"SPARKRUN_NVML_LIBRARY=" + filepath.Join(dir, "nvml.so"), "FAKENVML_SCENARIO=" + writeScript(t, dir, "scenario", "at 0s "+heatReady+" temp 80\n"),
	}
	before := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", `shift; exec ./sparkrun "$@"`, "sh"}
	args := []string{"--no-preflight", "--no-retry", "--no-guard", "--telemetry-interval", "100ms", "--max-temp", "88:84", "--"}
	h.proc = launch(t, dir, before, env, nil, append(args, command...)...)
	return h
}

// copyProgram copies a program that is then run. It is not written by ourselves: a process
// that another test starts meanwhile would have it open for writing, and what is open so
// cannot be executed.
func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(to, 0o755); err != nil {
		t.Fatal(err)
	}
}

// warnings are those of --max-temp: beforehand, and in the heat.
func (h *hotRun) warnings() (foreseen, refused []heatEvent) {
	h.t.Helper()
	for _, e := range heatEvents(h.t, h.proc) {
		switch {
		case strings.Contains(e.Msg, "--max-temp does nothing"):
			foreseen = append(foreseen, e)
		case strings.Contains(e.Msg, "the command is not paused although"):
			refused = append(refused, e)
		}
	}
	return foreseen, refused
}

// runsOn demands that a heat is told once, with the reason, and that nothing was paused
// for it, nor is said to have been.
func (h *hotRun) runsOn(reason string) {
	h.t.Helper()
	until(h.t, "the warning", func() bool { _, refused := h.warnings(); return len(refused) > 0 })
	printed := len(h.out.String())
	until(h.t, "steps beyond it", func() bool { return len(h.out.String()) > printed+50 })
	if strings.Contains(h.states(), "T") {
		h.t.Errorf("something is left stopped: %s", h.states())
	}
	h.finish()
	h.told()
	if _, refused := h.warnings(); len(refused) != 1 || refused[0].Level != "warn" || !strings.Contains(refused[0].Msg, reason) || !strings.Contains(refused[0].Msg, "(pid ") {
		h.t.Errorf("want one warning with %q: %+v", reason, refused)
	}
	a := readJSON(h.t, h.file("run.json"))["attempts"].([]any)[0].(map[string]any)
	if a["pauses"] != nil && a["pauses"] != 0.0 || a["paused_s"] != nil && a["paused_s"] != 0.0 {
		h.t.Errorf("run.json has pauses %v, paused_s %v", a["pauses"], a["paused_s"])
	}
}

// TestMaxTempOfAnotherUser: a process that we may not stop runs on, so nothing is paused
// and nobody is told that it was: alone, and as a part of the command.
func TestMaxTempOfAnotherUser(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"the command itself": {"./" + rootTrainer},
		"a part of it":       {"sh", "-c", `echo $$ >pids; ./rootrain & while [ ! -e finish ]; do sleep 0.05; done; wait`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hotNobody(t, command...)
			until(t, "it trains", func() bool { return strings.Contains(h.out.String(), "step 2 ") })
			if b, err := os.ReadFile(filepath.Join(h.dir, "pids")); err == nil {
				h.pids = strings.Fields(string(b))
			}
			until(t, "it is foreseen", func() bool { foreseen, _ := h.warnings(); return len(foreseen) == 1 })
			if foreseen, _ := h.warnings(); foreseen[0].Level != "warn" || !strings.Contains(foreseen[0].Msg, rootTrainer+" (pid ") {
				t.Errorf("%+v", foreseen)
			}
			h.zones("93000")
			h.runsOn(rootTrainer + " (pid ")
			if foreseen, _ := h.warnings(); len(foreseen) != 1 {
				t.Errorf("foreseen %d times", len(foreseen))
			}
		})
	}
}

// TestMaxTempOfAClient: a client in a script is told of when it runs, and not stopped: what
// it waits for would go on.
func TestMaxTempOfAClient(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ client, script, reason string }{
		"docker":  {"docker", "docker run --rm image python3 train.py", "docker run (pid "},
		"podman":  {"podman", "podman run --rm image python3 train.py", "podman run (pid "},
		"nerdctl": {"nerdctl", "nerdctl exec box python3 train.py", "nerdctl exec (pid "},
		"srun":    {"srun", "srun -n 1 python3 train.py", "srun (pid "},
		"ssh":     {"ssh", "ssh spark2 python3 train.py", "ssh spark2 (pid "},
	} {
		for how, command := range map[string][]string{"in a script": {"sh", "tr.sh"}, "in the command": {"sh", "-c", tt.script + "; true"}} {
			if how == "in the command" && name != "docker" {
				continue
			}
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				h := &hotRun{t: t, root: heatTree(t)}
				h.zones("78000")
				fake := fmt.Sprintf("#!/bin/sh\necho $$ >%[1]s/pids\ni=0\nwhile [ ! -e %[1]s/finish ]; do i=$((i+1)); echo step $i loss 2.5; sleep 0.05; done\n", dir)
				if err := newprog.Write(filepath.Join(dir, tt.client), []byte(fake)); err != nil {
					t.Fatal(err)
				}
				writeScript(t, dir, "tr.sh", tt.script+"\ntrue\n")
				env := []string{
					"PATH=" + dir + ":" + os.Getenv("PATH"), "SPARKRUN_TEST_ROOT=" + h.root,
					"SPARKRUN_NVML_LIBRARY=" + fakenvml.Build(t), "FAKENVML_SCENARIO=" + writeScript(t, dir, "scenario", "at 0s "+heatReady+" temp 80\n"),
				}
				h.proc = startEnv(t, dir, env, append([]string{"--no-preflight", "--no-retry", "--no-guard", "--telemetry-interval", "100ms", "--max-temp", "88:84", "--"}, command...)...)
				until(t, "the client is there", func() bool {
					b, err := os.ReadFile(filepath.Join(dir, "pids"))
					h.pids = strings.Fields(string(b))
					return err == nil && len(h.pids) == 1
				})
				until(t, "it is foreseen", func() bool { foreseen, _ := h.warnings(); return len(foreseen) == 1 })
				if foreseen, _ := h.warnings(); !strings.Contains(foreseen[0].Msg, tt.reason) {
					t.Errorf("%+v", foreseen)
				}
				h.zones("93000")
				h.runsOn(tt.reason)
			})
		}
	}
}

// TestMaxTempWokenFromOutside: another program that wakes the command, or a part of it, is
// seen within a look: the pause ends for all of it, is told with its true length, and the
// next one comes since it is still hot. Whoever does it again has his way for a minute.
func TestMaxTempWokenFromOutside(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"all of it": 2, "a part": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHot(t)
			wake := func() {
				t.Helper()
				for _, pid := range h.pids[:n] {
					if err := unix.Kill(atoi(t, pid), unix.SIGCONT); err != nil {
						t.Fatal(err)
					}
				}
			}
			told := func(n int) {
				t.Helper()
				until(t, fmt.Sprintf("event %d is told", n), func() bool { words, _ := h.events(); return len(words) >= n })
			}
			h.zones("93000")
			told(1) // before that the holder may stop it once more
			h.paused()
			wake()
			woken := time.Now()
			told(2)
			if took := time.Since(woken); took > 5*time.Second {
				t.Errorf("seen after %s", took)
			}
			told(3) // it is paused again
			h.paused()
			wake()
			told(4)
			h.running()
			readings := func() int {
				b, err := os.ReadFile(h.file("telemetry.csv"))
				if err != nil {
					t.Fatal(err)
				}
				return strings.Count(string(b), "\n")
			}
			before := readings()
			until(t, "20 hot readings more", func() bool { return readings() > before+20 })
			h.running()
			h.finish()
			e := h.told("pause", "continue continued-elsewhere", "pause", "continue continued-elsewhere")
			if e == nil {
				return
			}
			if s, _ := e[1].Data["paused_s"].(float64); s <= 0 || s > 10 || e[1].Level != "warn" || !strings.Contains(e[1].Msg, "another program has woken python3 (pid "+h.pids[0]+")") {
				t.Errorf("%s %s %v", e[1].Level, e[1].Msg, e[1].Data)
			}
			if strings.Contains(e[1].Msg, "no other pause") || !strings.Contains(e[3].Msg, "no other pause for a minute") {
				t.Errorf("%s\n%s", e[1].Msg, e[3].Msg)
			}
		})
	}
}
