package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What an earlier attempt has saved is there after the run, byte for byte, whatever the
// script does.

// marked is the saving script, which leaves a mark of its attempt in every checkpoint.
func marked(t *testing.T, changes ...string) string {
	t.Helper()
	script := strings.Replace(savingScript, "    def training_step", `    def save(self, step, rows):
        super().save(step, rows)
        with open(os.path.join(a.output_dir, "checkpoint-%d" % step, "by"), "a") as f:
            f.write(os.environ["SPARKRUN_ATTEMPT"])

    def training_step`, 1)
	r := strings.NewReplacer(changes...)
	if len(changes) > 0 && r.Replace(script) == script {
		t.Fatal("nothing was changed in the script")
	}
	return withLibraries(t, folder(t, map[string]string{"train.py": r.Replace(script), "wandb.py": ""}))
}

// marks are the marks in all checkpoints of a step below a folder.
func marks(t *testing.T, dir, step string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "by" && filepath.Base(filepath.Dir(path)) == "checkpoint-"+step {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			all = append(all, string(b))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// intoCopy makes the script save beside what it goes on from.
const (
	intoCopyAt = "a = p.parse_args()\n"
	intoCopy   = intoCopyAt + "if a.resume_from_checkpoint:\n    a.output_dir = os.path.dirname(a.resume_from_checkpoint)\n"
)

// TestSavedIntoTheCopy: a script that saves beside the checkpoint that it was handed, and
// that is a copy of ours.
func TestSavedIntoTheCopy(t *testing.T) {
	t.Parallel()
	dir := marked(t, intoCopyAt, intoCopy)
	p := sparkrun(t, dir, append(quietPython, "LIMIT=48"), "--", "python3", "train.py", "--per_device_train_batch_size", "4").is(0)
	if got := marks(t, dir, "6"); got != "2" {
		t.Errorf("checkpoint-6 has marks %q\nstderr %s", got, p.err)
	}
	if left := leftCopies(t, dir); len(left) > 0 {
		t.Errorf("copies are left: %v", left)
	}
	p.says("what is not ours is kept as")
}

// TestSavedIntoTheCopyBeforeSIGKILL: the same, and the run that made the copy is gone.
func TestSavedIntoTheCopyBeforeSIGKILL(t *testing.T) {
	t.Parallel()
	dir := marked(t, intoCopyAt, intoCopy, "trainer.train(resume_from_checkpoint=a.resume_from_checkpoint)\n", `trainer.train(resume_from_checkpoint=a.resume_from_checkpoint)
import time
print("it has saved", flush=True)
while os.path.exists("wait"):
    time.sleep(0.01)
`)
	put(t, dir, map[string]string{"wait": ""})
	p := startEnv(t, dir, append(quietPython, "LIMIT=48"), "--no-preflight", "--", "python3", "train.py", "--per_device_train_batch_size", "4")
	until(t, "attempt 2", fileHas(p.file("attempts/2/output.log"), "it has saved"))
	id := p.id()
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	p.wait(5 * time.Second)
	if err := os.Remove(filepath.Join(dir, "wait")); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the training", func() bool { return len(processesOf(id)) == 0 && !hasHolder(id) })
	q := sparkrun(t, dir, append(quietPython, "LIMIT=200"), "--no-retry", "--", "python3", "train.py", "--per_device_train_batch_size", "4", "--output_dir", "out").is(0)
	if got := marks(t, dir, "6"); !strings.Contains(got, "2") {
		t.Errorf("checkpoint-6 has marks %q\nstderr %s", got, q.err)
	}
	if left := leftCopies(t, dir); len(left) > 0 {
		t.Errorf("copies are left: %v", left)
	}
	q.says("what is not ours is kept as")
}

// TestAScriptThatGoesElsewhere: what it calls out is not below the working folder, and it
// cannot go on from a checkpoint.
func TestAScriptThatGoesElsewhere(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][]string{
		"said in the script": {intoCopyAt, intoCopyAt + "import sys\nsys.path.insert(0, os.getcwd())\nos.chdir('work')\n"},
		// What goes elsewhere is not in the script.
		"done by another file": {intoCopyAt, intoCopyAt + "import sys\nsys.path.insert(0, os.getcwd())\nimport goes\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := marked(t, append(change, "trainer.train(resume_from_checkpoint=a.resume_from_checkpoint)", "trainer.train()", "p.add_argument(\"--resume_from_checkpoint\")\n", "",
				"limit(int", "import time\nlimit(int")...)
			put(t, dir, map[string]string{"work/keep": "", "goes.py": "import os, time\nos.chdir('work')\ntime.sleep(1.5)\n"})
			p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--shim", "never", "--", "python3", "train.py", "--max_length", "4096", "--per_device_train_batch_size", "2").is(0)
			if got := marks(t, dir, "4"); got != "1 2" && got != "2 1" {
				t.Errorf("checkpoint-4 has marks %q\nstderr %s", got, p.err)
			}
		})
	}
}

// TestAScriptThatIgnoresTheCheckpoint it was handed begins at 0 and does not write over it.
func TestAScriptThatIgnoresTheCheckpoint(t *testing.T) {
	t.Parallel()
	dir := marked(t, "trainer.train(resume_from_checkpoint=a.resume_from_checkpoint)", "trainer.train()")
	p := sparkrun(t, dir, append(quietPython, "LIMIT=100"), "--shim", "never", "--", "python3", "train.py", "--max_length", "4096", "--per_device_train_batch_size", "2").is(0)
	if got := marks(t, dir, "4"); got != "1 2" && got != "2 1" {
		t.Errorf("checkpoint-4 has marks %q\nstderr %s", got, p.err)
	}
}

// unknownScript saves what TARGETS names and dies for want of memory in the first attempt.
const unknownScript = `
import os

n = os.environ["SPARKRUN_ATTEMPT"]
for t in os.environ["TARGETS"].split():
    os.makedirs(os.path.dirname(t) or ".", exist_ok=True)
    with open(t, "w") as f:
        f.write("weights of attempt " + n)
class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"
if n == "1":
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 119.64 GiB of which 1.00 GiB is free. Process 1 has 1 GiB memory in use.")
`

// TestWhatAnUnknownScriptSaved is there after the second attempt, wherever it was saved.
func TestWhatAnUnknownScriptSaved(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	targets := []string{"checkpoint.pth.tar", "last.pkl", "a/arrays.npz", "epoch=1.tar", "outputs/adapter/adapter.bin", "runs/a/b/c/d/model.pt", "big/checkpoint-1/model.safetensors"}
	dir := folder(t, map[string]string{"train.py": unknownScript, "checkpoint.pth.tar": "from last week"})
	if err := os.Symlink(disk, filepath.Join(dir, "big")); err != nil {
		t.Fatal(err)
	}
	p := sparkrun(t, dir, append(quietPython, "TARGETS="+strings.Join(targets, " ")), "--runs-dir", filepath.Join(dir, "runs"), "--knob", "seq_len=4096", "--", "python3", "train.py", "--len={seq_len}").is(0)
	for _, name := range targets {
		found := map[string]bool{}
		for _, root := range []string{dir, disk} {
			_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.Name() == filepath.Base(name) {
					b, _ := os.ReadFile(path)
					found[string(b)] = true
				}
				return nil
			})
		}
		if !found["weights of attempt 1"] || !found["weights of attempt 2"] {
			t.Errorf("of %s there is %v\nstderr %s", name, found, p.err)
		}
	}
}
