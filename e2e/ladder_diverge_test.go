package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lossScript prints losses as the Trainer logs them, then ends as asked: well, by waiting
// for ever, or for want of memory.
const lossScript = `
# parser = HfArgumentParser((TrainingArguments,))
import argparse, os, time
p = argparse.ArgumentParser()
p.add_argument("--max_length", type=int)
p.add_argument("--losses")
p.add_argument("--end")
a = p.parse_args()
open("starts", "a").write("started\n")
for i, loss in enumerate(a.losses.split(","), 1):
    print("{'loss': %s, 'grad_norm': 1.0, 'learning_rate': 0.0001, 'epoch': %.2f}" % (loss, i / 100), flush=True)
if a.end == "wait":
    while True:
        time.sleep(0.05)
if a.end == "hang":
    time.sleep(600)
if a.end == "oom":
    raise MemoryError
`

func losses(t *testing.T, flags []string, losses, end string) *proc {
	t.Helper()
	dir := folder(t, map[string]string{"train.py": lossScript})
	argv := append([]string{"--grace", "5s"}, flags...)
	return sparkrun(t, dir, nil, append(argv, "--", "python3", "train.py", "--max_length", "4096", "--losses", losses, "--end", end)...)
}

// TestDivergenceWarns: three logged losses that are no numbers are told, with the causes;
// the command goes on and its status stays, but nobody is told that all is well.
func TestDivergenceWarns(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]string{
		"not a number": "2.5,nan,nan,nan,nan", "infinite": "2.5,inf,inf,inf", "zero": "0.0,0.0,0.0,0.0", "quoted": "'2.5','nan','nan','nan'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := losses(t, nil, bad, "well").is(0)
			m := p.manifest()
			if m.Result != "diverged" || m.Divergence == "" || len(m.Attempts) != 1 {
				t.Errorf("result %q, divergence %q, %d attempts", m.Result, m.Divergence, len(m.Attempts))
			}
			p.says("result: NOT GOOD, the loss diverged", "look in this order: ")
			if said := p.events("divergence"); len(said) != 1 {
				t.Errorf("told %d times: %v", len(said), said)
			}
			b, err := os.ReadFile(p.file("summary.txt"))
			if err != nil || !strings.Contains(string(b), "NOT GOOD") || strings.Contains(string(b), "exactly as asked\n") {
				t.Errorf("summary.txt (%v): %s", err, b)
			}
		})
	}
}

// TestNoDivergence: one bad step that recovers is what fp16 does by design.
func TestNoDivergence(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]string{
		"one step": "2.5,nan,2.4,2.3", "two steps twice": "nan,nan,2.4,nan,nan,2.3", "small": "0.0001,0.0001,0.0001,0.0001",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := losses(t, nil, good, "well").is(0)
			if m := p.manifest(); m.Result != "succeeded" || m.Divergence != "" {
				t.Errorf("result %q, divergence %q", m.Result, m.Divergence)
			}
			p.saysNot("NOT GOOD")
		})
	}
}

// TestDivergenceStops: asked to, it ends the command, with a status of its own.
func TestDivergenceStops(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := losses(t, []string{"--on-divergence", "stop"}, "2.5,nan,nan,nan", "wait").is(76)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	m := p.manifest()
	if m.Result != "diverged" && m.State != "failed" || len(m.Attempts) != 1 || m.Attempts[0].Verdict.Verdict == "oom" {
		t.Errorf("state %s, result %s, attempts %+v", m.State, m.Result, m.Attempts)
	}
	p.says("ending the command", "the loss had diverged")
	if left := processesOf(p.id()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestNoLadderAfterDivergence: a run whose loss is broken is not repaired by a shorter
// length, whatever it dies of in the end.
func TestNoLadderAfterDivergence(t *testing.T) {
	t.Parallel()
	p := losses(t, nil, "2.5,nan,nan,nan", "oom")
	m := p.manifest()
	if p.status() == 0 || len(m.Attempts) != 1 || p.starts() != 1 || m.Attempts[0].Verdict.Verdict != "oom" {
		t.Errorf("status %d, %d starts, attempts %+v\nstderr %s", p.status(), p.starts(), m.Attempts, p.err)
	}
	p.says("diverged")
	if said := p.events("rung.announce"); len(said) > 1 {
		t.Errorf("a rung was announced: %v", said)
	}

	// The same death with a good loss does go down the ladder.
	if q := losses(t, []string{"--max-attempts", "2"}, "2.5,2.4,2.3,2.2", "oom").is(75); q.starts() != 2 {
		t.Errorf("%d starts without a divergence, want 2\nstderr %s", q.starts(), q.err)
	}
}

// TestDivergenceFromTheTrainersLog: a trainer that shows nothing of its loss on the screen
// is read by its own log file, beside what it prints.
func TestDivergenceFromTheTrainersLog(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{"sft.yaml": "stage: sft\noutput_dir: out\n", "llamafactory-cli": `#!/usr/bin/env python3
import json, os, sys, time
out = "out"
os.makedirs(out, exist_ok=True)
for step in range(1, 6):
    with open(os.path.join(out, "trainer_log.jsonl"), "a") as f:
        json.dump({"current_steps": step, "total_steps": 5, "loss": float("nan"), "lr": 1e-4, "epoch": step / 5, "percentage": 20.0 * step}, f)
        f.write("\n")
time.sleep(0.3)
`})
	if err := os.Chmod(filepath.Join(dir, "llamafactory-cli"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := sparkrun(t, dir, []string{fmt.Sprintf("PATH=%s:%s", dir, os.Getenv("PATH"))}, "--quiet", "--", "llamafactory-cli", "train", "sft.yaml").is(0)
	p.says("NOT GOOD") // also to somebody who wants to hear of nothing but trouble
	if m := p.manifest(); m.Result != "diverged" {
		t.Errorf("result %q, divergence %q\nstderr %s", m.Result, m.Divergence, p.err)
	}
}

// TestHangAfterDivergence: each of the two is told once.
func TestHangAfterDivergence(t *testing.T) {
	t.Parallel()
	p := losses(t, []string{"--hang-timeout", "3s"}, "2.5,nan,nan,nan", "hang").is(124)
	m := p.manifest()
	if len(m.Attempts) != 1 || m.Attempts[0].Verdict.Reason != "hang" || m.Divergence == "" {
		t.Errorf("divergence %q, attempts %+v", m.Divergence, m.Attempts)
	}
	line := strings.Join(p.events("run.end"), "\n")
	if n := strings.Count(line, m.Divergence); n != 1 {
		t.Errorf("the loss is told %d times: %s", n, line)
	}
	if !strings.Contains(line, "not tried again; the loss had diverged: ") || !strings.Contains(line, "exit status 124: for ") {
		t.Errorf("result line %s", line)
	}
}
