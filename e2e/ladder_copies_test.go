package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Changed copies of config files and checkpoints lie beside the user's own while they are
// in use. However a run ends, they are gone after it, or after the next start.

// configScript dies for want of memory with a long block and waits with a shorter one, as
// long as there is a file wait.
const configScript = `
# parser = HfArgumentParser((ModelArguments, TrainingArguments))
import json, os, sys, time
with open(sys.argv[1]) as f:
    n = json.load(f)["block_size"]
print("block", n, flush=True)
if n > 1024:
    while os.path.exists("hold"):
        time.sleep(0.01)
    raise MemoryError
while os.path.exists("wait"):
    time.sleep(0.01)
`

const configText = `{"block_size": 2048,  "output_dir": "out"}`

func configured(t *testing.T, more map[string]string) string {
	t.Helper()
	dir := folder(t, map[string]string{"run_clm.py": configScript, "c.json": configText})
	put(t, dir, more)
	return dir
}

func noCopies(t *testing.T, p *proc) {
	t.Helper()
	if left := leftCopies(t, p.dir); len(left) > 0 {
		t.Errorf("left: %v\nstderr %s", left, p.err)
	}
	if b, err := os.ReadFile(filepath.Join(p.dir, "c.json")); err == nil && string(b) != configText {
		t.Errorf("the user's file is now %q", b)
	}
}

// TestCopiesAfterCtrlC: stopped while an attempt with a copy runs, and at every moment
// while one is being prepared.
func TestCopiesAfterCtrlC(t *testing.T) {
	t.Parallel()
	t.Run("while it runs", func(t *testing.T) {
		t.Parallel()
		p := start(t, configured(t, map[string]string{"wait": ""}), "--no-preflight", "--", "python3", "run_clm.py", "c.json")
		until(t, "attempt 2 with a shorter block", fileHas(p.file("attempts/2/output.log"), "block 1024"))
		if n := len(leftCopies(t, p.dir)); n != 1 {
			t.Errorf("%d copies are in use, want 1", n)
		}
		_ = p.cmd.Process.Signal(unix.SIGINT)
		if got := p.wait(20 * time.Second); got != 130 {
			t.Errorf("status %d, want 130\nstderr %s", got, p.err)
		}
		noCopies(t, p)
	})
	for i := range 6 {
		t.Run(fmt.Sprint("while it is prepared ", i), func(t *testing.T) {
			t.Parallel()
			p := start(t, configured(t, map[string]string{"hold": "", "wait": ""}), "--no-preflight", "--", "python3", "run_clm.py", "c.json")
			until(t, "attempt 1", fileHas(p.file("attempts/1/output.log"), "block 2048"))
			if err := os.Remove(filepath.Join(p.dir, "hold")); err != nil {
				t.Fatal(err)
			}
			// From the end of the first attempt to the start of the second is less
			// than a tenth of a second.
			until(t, "the end of attempt 1", func() bool { _, err := os.Stat(p.file("attempts/1/exit.json")); return err == nil })
			time.Sleep(time.Duration(i) * 20 * time.Millisecond)
			_ = p.cmd.Process.Signal(unix.SIGINT)
			p.wait(20 * time.Second)
			if m := p.manifest(); m.State != "stopped" || m.EndedBy != "user" {
				t.Errorf("state %s, ended by %s\nstderr %s", m.State, m.EndedBy, p.err)
			}
			noCopies(t, p)
			if left := processesOf(p.id()); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestCopiesAfterCtrlCAtTheGate: the gate waits for memory that somebody else has taken;
// nothing was prepared that could be left behind.
func TestCopiesAfterCtrlCAtTheGate(t *testing.T) {
	// Not parallel: what one test hoards is another one's free memory.
	dir := configured(t, nil)
	put(t, dir, map[string]string{"run_clm.py": strings.Replace(configScript, `os.path.exists("hold")`, `not os.path.exists("hoarding")`, 1)})
	p := start(t, dir, "--no-preflight", "--", "python3", "run_clm.py", "c.json")
	until(t, "attempt 1", fileHas(p.file("attempts/1/output.log"), "block 2048"))
	hoard(t, dir)
	until(t, "gate", fileHas(p.file("run.json"), `"state": "gate"`))
	_ = p.cmd.Process.Signal(unix.SIGINT)
	if got := p.wait(20 * time.Second); got != 130 {
		t.Errorf("status %d, want 130\nstderr %s", got, p.err)
	}
	noCopies(t, p)
	if m := p.manifest(); m.State != "stopped" || len(m.Attempts) != 1 {
		t.Errorf("state %s, %d attempts", m.State, len(m.Attempts))
	}
}

// TestCopiesAfterSIGKILL: a sparkrun that was killed leaves its training running and the
// copy with it; another start takes neither away. Once the training is over, the next
// start removes what is left.
func TestCopiesAfterSIGKILL(t *testing.T) {
	t.Parallel()
	waiting := strings.Replace(savingScript, "        if step < 4:\n", `        import time
        print("from step", step, flush=True)
        while os.environ["SPARKRUN_ATTEMPT"] == "2" and os.path.exists("wait"):
            time.sleep(0.01)
        if step < 4:
`, 1)
	for name, c := range map[string]struct {
		dir  func(t *testing.T) string
		env  []string
		argv []string
		// up is what attempt 2 prints once it uses its copy, fits what makes the same
		// command succeed at once.
		up   string
		fits []string
	}{
		"config": {
			dir:  func(t *testing.T) string { return configured(t, map[string]string{"wait": ""}) },
			argv: []string{"python3", "run_clm.py", "c.json"}, up: "block 1024",
		},
		"checkpoint": {
			dir: func(t *testing.T) string {
				dir := saving(t)
				put(t, dir, map[string]string{"train.py": waiting, "wait": ""})
				return dir
			},
			env: append(quietPython, "LIMIT=48"), argv: []string{"python3", "train.py", "--per_device_train_batch_size", "4"},
			up: "from step 4", fits: append(quietPython, "LIMIT=200"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startEnv(t, c.dir(t), c.env, append([]string{"--no-preflight", "--"}, c.argv...)...)
			until(t, "attempt 2 with its copy", fileHas(p.file("attempts/2/output.log"), c.up))
			id := p.id()
			_ = p.cmd.Process.Signal(syscall.SIGKILL)
			p.wait(5 * time.Second)
			if len(leftCopies(t, p.dir)) != 1 || len(processesOf(id)) == 0 {
				t.Fatalf("copies %v, processes %v: want one copy in use", leftCopies(t, p.dir), processesOf(id))
			}
			// Somebody starts it again while the old one still trains.
			again := append([]string{"--no-retry", "--"}, c.argv...)
			sparkrun(t, p.dir, c.fits, again...)
			if len(leftCopies(t, p.dir)) != 1 {
				t.Fatal("the copy was taken away from the training that uses it")
			}
			if err := os.Remove(filepath.Join(p.dir, "wait")); err != nil {
				t.Fatal(err)
			}
			until(t, "the end of the training", func() bool { return len(processesOf(id)) == 0 && !hasHolder(id) })
			if len(leftCopies(t, p.dir)) != 1 {
				t.Fatal("nobody was there to remove the copy, but it is gone")
			}
			q := sparkrun(t, p.dir, c.fits, again...)
			if left := leftCopies(t, p.dir); len(left) > 0 {
				t.Errorf("after the next start: %v\nstderr %s", left, q.err)
			}
			q.says("removed a copy that a run which died had left")
			if name == "checkpoint" {
				b, err := os.ReadFile(filepath.Join(p.dir, "out", "checkpoint-4", "trainer_state.json"))
				if err != nil || !strings.Contains(string(b), `"global_step": 4`) {
					t.Errorf("the user's checkpoint: %v %s", err, b)
				}
			}
		})
	}
}
