package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// savingScript takes flags, saves every second step, and meets long rows from step 5 on:
// there it dies where they do not fit, and leaves a checkpoint half written, as a death
// while saving does.
const savingScript = `
# parser = HfArgumentParser((TrainingArguments,))
import argparse
import os
import wandb
from transformers.trainer import limit
from trl import SFTConfig, SFTTrainer

p = argparse.ArgumentParser()
p.add_argument("--max_length", type=int, default=1024)
p.add_argument("--per_device_train_batch_size", type=int, default=8)
p.add_argument("--gradient_accumulation_steps", type=int, default=1)
p.add_argument("--output_dir", default="out")
p.add_argument("--resume_from_checkpoint")
a = p.parse_args()


class Trainer(SFTTrainer):
    def training_step(self, step, rows):
        if step < 4:
            return
        try:
            super().training_step(step, rows)
        except MemoryError:
            os.makedirs(os.path.join(a.output_dir, "checkpoint-5"), exist_ok=True)
            with open(os.path.join(a.output_dir, "checkpoint-5", "model.safetensors"), "w") as f:
                f.write("torn")
            raise


trainer = Trainer(
    args=SFTConfig(
        output_dir=a.output_dir,
        max_length=a.max_length,
        per_device_train_batch_size=a.per_device_train_batch_size,
        gradient_accumulation_steps=a.gradient_accumulation_steps,
        max_steps=6,
        save_steps=2,
        logging_steps=1,
    )
)
limit(int(os.environ["LIMIT"]))
trainer.train(resume_from_checkpoint=a.resume_from_checkpoint)
`

func saving(t *testing.T) string {
	t.Helper()
	return withLibraries(t, folder(t, map[string]string{"train.py": savingScript, "wandb.py": ""}))
}

// checkpointNames are the names in an output folder.
func checkpointNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// sameRun demands that all starts have the same WANDB_RUN_ID, and that each was told its
// attempt.
func sameRun(t *testing.T, starts []begun) {
	t.Helper()
	for i, s := range starts {
		if s.WandB == "" || s.WandB != starts[0].WandB {
			t.Errorf("start %d has WANDB_RUN_ID %q, the first one %q", i+1, s.WandB, starts[0].WandB)
		}
		if s.Attempt != fmt.Sprint(i+1) || (s.Rung == "none") != (i == 0) {
			t.Errorf("start %d was told attempt %q, rung %q", i+1, s.Attempt, s.Rung)
		}
	}
}

func resumedFrom(s begun) string {
	if s.Resumed == nil {
		return ""
	}
	return *s.Resumed
}

// TestResume: a job that dies in the middle goes on from its newest complete checkpoint,
// past a half-written one, in the folder where that lies.
func TestResume(t *testing.T) {
	t.Parallel()
	dir := saving(t)
	p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--", "python3", "train.py", "--max_length", "4096", "--per_device_train_batch_size", "2").is(0)
	starts := p.begun()
	if got := sizes(starts); got != "4096x2x1 2048x2x1" {
		t.Fatalf("it trained with %s\nstderr %s", got, p.err)
	}
	sameRun(t, starts)
	if s := starts[1]; s.FromStep != 4 || filepath.Base(resumedFrom(s)) != "checkpoint-4" || s.OutputDir != "out" {
		t.Errorf("the second start: %+v from %q", s, resumedFrom(s))
	}
	p.says("checkpoint-5 is skipped", "it goes on from checkpoint-4 (step 4)")
	if got := checkpointNames(t, filepath.Join(dir, "out")); !slices.Equal(got, []string{"checkpoint-2", "checkpoint-4", "checkpoint-5", "checkpoint-6"}) {
		t.Errorf("in the output folder: %v", got)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "out", "checkpoint-5", "model.safetensors")); err != nil || string(b) != "torn" {
		t.Errorf("the half-written checkpoint was touched: %v %q", err, b)
	}
	if said := p.events("resume.choice"); len(said) != 1 || !strings.Contains(said[0], "trainer_state.json is missing") {
		t.Errorf("resume.choice: %v", said)
	}
}

// TestResumeWithSmallerBatch: the trainer of these releases takes its micro-batch from
// the checkpoint, so it is given a copy with the new one, which is gone at the end.
func TestResumeWithSmallerBatch(t *testing.T) {
	t.Parallel()
	dir := saving(t)
	p := sparkrun(t, dir, append(quietPython, "LIMIT=48"), "--", "python3", "train.py", "--per_device_train_batch_size", "4").is(0)
	starts := p.begun()
	if got := sizes(starts); got != "1024x4x1 1024x2x2" {
		t.Fatalf("it trained with %s\nstderr %s", got, p.err)
	}
	sameRun(t, starts)
	s := starts[1]
	if want := ".sparkrun-" + p.id() + "-a2-checkpoint-4/checkpoint-4"; s.FromStep != 4 || !strings.HasSuffix(resumedFrom(s), want) || s.AskedMicro != 2 {
		t.Errorf("the second start: %+v from %q, want %s", s, resumedFrom(s), want)
	}
	if left := leftCopies(t, dir); len(left) > 0 {
		t.Errorf("copies are left: %v", left)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "out", "checkpoint-4", "trainer_state.json")); err != nil || !strings.Contains(string(b), `"train_batch_size": 4`) {
		t.Errorf("the user's checkpoint was changed: %v %s", err, b)
	}
	p.says("train_batch_size 2 instead of 4")
}

// TestResumeNever: nothing is taken up, and nothing is written where the first attempt has
// saved.
func TestResumeNever(t *testing.T) {
	t.Parallel()
	dir := saving(t)
	p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--resume", "never", "--", "python3", "train.py", "--max_length", "4096", "--per_device_train_batch_size", "2").is(0)
	starts := p.begun()
	if got := sizes(starts); got != "4096x2x1 2048x2x1" {
		t.Fatalf("it trained with %s\nstderr %s", got, p.err)
	}
	sameRun(t, starts)
	if s := starts[1]; s.FromStep != 0 || s.Resumed != nil || s.OutputDir != "out-a2" {
		t.Errorf("the second start: %+v from %q", s, resumedFrom(s))
	}
	if got := checkpointNames(t, filepath.Join(dir, "out")); !slices.Equal(got, []string{"checkpoint-2", "checkpoint-4", "checkpoint-5"}) {
		t.Errorf("in the first output folder: %v", got)
	}
	if got := checkpointNames(t, filepath.Join(dir, "out-a2")); !slices.Equal(got, []string{"checkpoint-2", "checkpoint-4", "checkpoint-6"}) {
		t.Errorf("in the second output folder: %v", got)
	}
	p.says("--resume never")
}

// TestResumePath: the first attempt goes on from a checkpoint that the user names, and one
// that is not complete is refused before anything starts, with what is missing.
func TestResumePath(t *testing.T) {
	t.Parallel()
	dir := saving(t)
	sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--no-retry", "--quiet", "--", "python3", "train.py", "--max_length", "4096", "--per_device_train_batch_size", "2").is(1)
	before := contents(t, filepath.Join(dir, "out"))

	e := explainJSON(t, dir, "--", "python3", "train.py", "--max_length", "4096")
	if e.Checkpoint == nil || e.Checkpoint.Step != 4 || len(e.Broken) != 1 || !strings.Contains(e.Broken[0].Path, "checkpoint-5") {
		t.Errorf("explain: newest complete %+v, broken %+v", e.Checkpoint, e.Broken)
	}

	args := []string{"--", "python3", "train.py", "--output_dir", "new"}
	for path, why := range map[string]string{
		"out/checkpoint-5": "trainer_state.json is missing", "out/checkpoint-9": "checkpoint-9", "train.py": "train.py",
	} {
		p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), append([]string{"--runs-dir", filepath.Join(dir, "refused"), "--resume", path}, args...)...).is(125)
		p.says("--resume " + path)
		p.says(why)
	}
	if starts := begunIn(t, dir); len(starts) != 1 {
		t.Fatalf("something was started: %+v", starts)
	}

	p := sparkrun(t, dir, append(quietPython, "LIMIT=200"), append([]string{"--resume", "out/checkpoint-2"}, args...)...).is(0)
	starts := p.begun()
	if s := starts[len(starts)-1]; len(starts) != 2 || s.FromStep != 2 || filepath.Base(resumedFrom(s)) != "checkpoint-2" || s.Attempt != "1" || s.OutputDir != "new" {
		t.Errorf("%d starts, the last %+v from %q", len(starts), s, resumedFrom(s))
	}
	if diff := changed(before, contents(t, filepath.Join(dir, "out"))); len(diff) > 0 {
		t.Errorf("of the checkpoints: %v", diff)
	}
}

// TestResumeByShim: a script that never asks for a checkpoint is handed one by the shim,
// and where there is no shim it starts over; in a folder of its own in both cases.
func TestResumeByShim(t *testing.T) {
	t.Parallel()
	script := strings.Replace(savingScript, "trainer.train(resume_from_checkpoint=a.resume_from_checkpoint)", "trainer.train()", 1)
	script = strings.Replace(script, "p.add_argument(\"--resume_from_checkpoint\")\n", "", 1)
	for mode, want := range map[string]int{"auto": 4, "never": 0} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dir := saving(t)
			put(t, dir, map[string]string{"train.py": script})
			p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--shim", mode, "--", "python3", "train.py", "--max_length", "4096", "--per_device_train_batch_size", "2").is(0)
			starts := p.begun()
			if got := sizes(starts); got != "4096x2x1 2048x2x1" {
				t.Fatalf("it trained with %s\nstderr %s", got, p.err)
			}
			s := starts[1]
			// Until the shim is known to be loaded, what it was to go on from is safe from it.
			if s.FromStep != want || s.OutputDir != "out-a2" {
				t.Errorf("the second start: %+v from %q\nstderr %s", s, resumedFrom(s), p.err)
			}
			if mode == "never" {
				p.says("it starts from the beginning")
			}
		})
	}
}
