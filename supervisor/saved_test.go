package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/job"
)

// ended is an attempt of the run that made some steps.
func ended(r *run, steps int64) *attempt {
	a := r.newAttempt(1)
	a.knobs, a.job = r.job.Knobs, r.job
	a.start = r.began
	a.end = time.Now()
	a.haveStep, a.first.N, a.last.N = steps > 0, min(steps, 1), steps
	return a
}

// opaqueWork is a workplace of which it is not known where the command saves.
func opaqueWork(t *testing.T) (*run, string) {
	t.Helper()
	return workplaceOf(t, "print('trains')\n", nil, "python3", "train.py")
}

func refused(t *testing.T, k kept, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("a retry is allowed: %+v", k)
	}
	for _, p := range append(parts, "--allow restart") {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q is not said: %v", p, err)
		}
	}
}

// TestWhatWasSavedAnywhereIsMoved: whatever it is called, at any depth, and behind links.
func TestWhatWasSavedAnywhereIsMoved(t *testing.T) {
	t.Parallel()
	r, dir := opaqueWork(t)
	disk := real(t.TempDir())
	put(t, filepath.Join(disk, "old.txt"), "mine")
	for _, l := range []string{"checkpoints", "out/ckpt"} {
		if err := os.Symlink(disk, filepath.Join(dir, l)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("..", filepath.Join(dir, "out", "circle")); err != nil {
		t.Fatal(err)
	}
	loose := []string{
		"model.pt", "checkpoint.pth.tar", "last.pkl", "arrays.npz", "final.h5", "epoch=1.tar", "out/x.keras", "checkpoint-3/model.safetensors",
		"checkpoints/step_5/state.bin", "checkpoints/last.ckpt",
	}
	deep := []string{"outputs/adapter/adapter_model.safetensors", "log/a/b/c/d/model.pt"}
	for _, name := range append(slices.Clone(loose), deep...) {
		put(t, filepath.Join(dir, name), "weights")
	}
	put(t, filepath.Join(dir, "outputs", "adapter", "adapter_config.json"), "{}")
	put(t, filepath.Join(dir, "big.unknown"), strings.Repeat("x", largeFile))
	put(t, filepath.Join(dir, "metrics.json"), "{}")
	k, err := r.keepOutput(ended(r, 5), 2, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(append(slices.Clone(loose), deep...), "big.unknown", "outputs/adapter/adapter_config.json") {
		there(t, false, filepath.Join(dir, name))
	}
	there(t, true, filepath.Join(dir, "attempt-1-beef", "model.pt"), filepath.Join(dir, "attempt-1-beef", "checkpoint-3", "model.safetensors"),
		filepath.Join(dir, "attempt-1-beef", "outputs", "adapter", "adapter_config.json"), filepath.Join(dir, "attempt-1-beef", "log", "a", "b", "c", "d", "model.pt"),
		filepath.Join(disk, "attempt-1-beef", "step_5", "state.bin"), filepath.Join(disk, "attempt-1-beef", "last.ckpt"),
		filepath.Join(disk, "old.txt"), filepath.Join(dir, "metrics.json"), filepath.Join(dir, "train.py"), filepath.Join(dir, "out", "old.txt"))
	if said := strings.Join(k.said, "\n"); !strings.Contains(said, "may be overwritten") || !strings.Contains(said, "metrics.json") {
		t.Errorf("what stays is not named: %s", said)
	}
}

// workAt is a workplace with files of last week's.
func workAt(t *testing.T, old ...string) (*run, string) {
	t.Helper()
	r, dir := opaqueWork(t)
	for _, name := range old {
		put(t, filepath.Join(dir, name), "from last week")
	}
	time.Sleep(30 * time.Millisecond) // the kernel's tick
	r.began = time.Now()
	time.Sleep(30 * time.Millisecond)
	return r, dir
}

func TestFilesWrittenOverInPlace(t *testing.T) {
	t.Parallel()
	t.Run("a checkpoint is what the attempt saved", func(t *testing.T) {
		t.Parallel()
		r, dir := workAt(t, "model.pt", "results.csv", "checkpoint-5/model.safetensors")
		put(t, filepath.Join(dir, "model.pt"), "attempt 1")
		put(t, filepath.Join(dir, "results.csv"), strings.Repeat("row\n", 1<<19))
		put(t, filepath.Join(dir, "checkpoint-5", "model.safetensors"), "attempt 1")
		k, err := r.keepOutput(ended(r, 5), 2, false)
		if err != nil || len(k.moved) != 2 {
			t.Fatalf("%+v %v", k, err)
		}
		there(t, true, filepath.Join(dir, "attempt-1-beef", "model.pt"), filepath.Join(dir, "attempt-1-beef", "checkpoint-5", "model.safetensors"), filepath.Join(dir, "results.csv"))
	})
	t.Run("half of a checkpoint is older", func(t *testing.T) {
		t.Parallel()
		r, dir := workAt(t, "checkpoint-5/model.safetensors", "checkpoint-5/optimizer.pt")
		put(t, filepath.Join(dir, "checkpoint-5", "model.safetensors"), "attempt 1")
		k, err := r.keepOutput(ended(r, 5), 2, false)
		refused(t, k, err, "checkpoint-5", "older files")
		there(t, true, filepath.Join(dir, "checkpoint-5", "model.safetensors"), filepath.Join(dir, "checkpoint-5", "optimizer.pt"))
	})
	t.Run("anything else that is large", func(t *testing.T) {
		t.Parallel()
		r, dir := workAt(t, "index.faiss", "model.pt")
		put(t, filepath.Join(dir, "index.faiss"), strings.Repeat("x", largeFile))
		put(t, filepath.Join(dir, "model.pt"), "attempt 1")
		k, err := r.keepOutput(ended(r, 5), 2, false)
		refused(t, k, err, "index.faiss")
		there(t, true, filepath.Join(dir, "model.pt"))
		r.o.Allow = []string{AllowRestart}
		if _, err := r.keepOutput(ended(r, 5), 2, false); err != nil {
			t.Errorf("--allow restart: %v", err)
		}
		there(t, true, filepath.Join(dir, "attempt-1-beef", "index.faiss"), filepath.Join(dir, "attempt-1-beef", "model.pt"))
	})
}

// TestTooMuchToLookThrough is no permission.
func TestTooMuchToLookThrough(t *testing.T) {
	t.Parallel()
	r, dir := opaqueWork(t)
	for i := range findsMost + 1 {
		put(t, filepath.Join(dir, "many", fmt.Sprint(i%7), fmt.Sprint(i)), "x")
	}
	a := ended(r, 5)
	k, err := r.keepOutput(a, 2, false)
	refused(t, k, err, "too much to look through")
	r.o.Allow = []string{AllowRestart}
	if _, err := r.keepOutput(a, 2, false); err != nil {
		t.Error(err)
	}
}

// TestADataSetIsNoHindrance: a folder with many names in which nothing has come or gone
// costs next to nothing, and what was saved below it is seen all the same.
func TestADataSetIsNoHindrance(t *testing.T) {
	t.Parallel()
	r, dir := opaqueWork(t)
	for i := range crowdMost + 10 {
		put(t, filepath.Join(dir, "data", fmt.Sprint(i, ".jpg")), "x")
	}
	put(t, filepath.Join(dir, "data", "sub", "old.txt"), "x")
	put(t, filepath.Join(dir, "data", "weights.pt"), "old")
	time.Sleep(30 * time.Millisecond)
	r.began = time.Now()
	time.Sleep(30 * time.Millisecond)
	put(t, filepath.Join(dir, "data", "sub", "checkpoint-2", "model.safetensors"), "x")
	put(t, filepath.Join(dir, "data", "weights.pt"), "new")
	k := r.seek()
	if err := k.in(dir); err != nil || len(k.finds) != 2 {
		t.Fatalf("%v %+v", err, k.finds)
	}
	if k.stats > 100 {
		t.Errorf("%d files were looked at", k.stats)
	}
}

// TestWithoutBirthTimes: file systems that do not tell when a file came into being.
func TestWithoutBirthTimes(t *testing.T) {
	t.Parallel()
	t.Run("with a list from before", func(t *testing.T) {
		t.Parallel()
		r, dir := workAt(t, "checkpoint-9/model.safetensors", "new.txt")
		r.noBirth = true
		r.noteBefore()
		put(t, filepath.Join(dir, "checkpoint-5", "model.safetensors"), "x")
		put(t, filepath.Join(dir, "checkpoint-5", "config.json"), "{}")
		put(t, filepath.Join(dir, "saved", "a.unknown"), strings.Repeat("x", largeFile))
		if _, err := r.keepOutput(ended(r, 5), 2, false); err != nil {
			t.Fatal(err)
		}
		there(t, true, filepath.Join(dir, "attempt-1-beef", "checkpoint-5", "config.json"), filepath.Join(dir, "attempt-1-beef", "saved", "a.unknown"), filepath.Join(dir, "checkpoint-9", "model.safetensors"))
		there(t, false, filepath.Join(dir, "checkpoint-5"))
	})
	t.Run("without one", func(t *testing.T) {
		t.Parallel()
		r, dir := workAt(t)
		r.noBirth = true
		put(t, filepath.Join(dir, "checkpoint-5", "model.safetensors"), "x")
		put(t, filepath.Join(dir, "checkpoint-5", "config.json"), "{}")
		if _, err := r.keepOutput(ended(r, 5), 2, false); err != nil {
			t.Fatal(err)
		}
		there(t, true, filepath.Join(dir, "attempt-1-beef", "checkpoint-5", "config.json"), filepath.Join(dir, "attempt-1-beef", "checkpoint-5", "model.safetensors"))
		put(t, filepath.Join(dir, "a.unknown"), strings.Repeat("x", largeFile))
		k, err := r.keepOutput(ended(r, 5), 2, false)
		refused(t, k, err, "a.unknown")
	})
}

// TestSavedInTheFolderOfTheRuns: only runs are passed over in it.
func TestSavedInTheFolderOfTheRuns(t *testing.T) {
	t.Parallel()
	r, dir := opaqueWork(t)
	other := filepath.Join(dir, "sparkrun-runs", "20251231-235959-y-abcd")
	put(t, filepath.Join(other, "run.json"), "{}")
	put(t, filepath.Join(other, "attempts", "1", "x.pt"), "x")
	put(t, filepath.Join(r.dir.Path, "attempts", "1", "x.pt"), "x")
	put(t, filepath.Join(dir, "sparkrun-runs", "model.pt"), "x")
	put(t, filepath.Join(dir, "sparkrun-runs", "exp", "checkpoint-1", "model.safetensors"), "x")
	if _, err := r.keepOutput(ended(r, 5), 2, false); err != nil {
		t.Fatal(err)
	}
	aside := filepath.Join(dir, "sparkrun-runs", "attempt-1-beef")
	there(t, true, filepath.Join(other, "attempts", "1", "x.pt"), filepath.Join(r.dir.Path, "attempts", "1", "x.pt"), filepath.Join(aside, "model.pt"), filepath.Join(aside, "exp", "checkpoint-1", "model.safetensors"))
}

// TestAKnobThatTheCommandDoesNotRead turns nothing.
func TestAKnobThatTheCommandDoesNotRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		argv   []string
		turns  string
	}{
		"not read":         {"print(1)\n", []string{"python3", "train.py"}, ""},
		"in a placeholder": {"print(1)\n", []string{"python3", "train.py", "--o={output_dir}"}, "out-a2"},
		"read by name":     {"import os\nos.environ['SPARKRUN_KNOB_OUTPUT_DIR']\n", []string{"python3", "train.py"}, "out-a2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, dir := workplaceOf(t, c.script, map[string]string{"output_dir": "out"}, c.argv...)
			put(t, filepath.Join(dir, "out", "checkpoint-5", "model.safetensors"), "x")
			put(t, filepath.Join(dir, "elsewhere", "model.pt"), "x")
			k, err := r.keepOutput(ended(r, 5), 2, false)
			if err != nil {
				t.Fatal(err)
			}
			if c.turns != "" {
				if k.change == nil || k.change.To != c.turns {
					t.Errorf("%+v", k)
				}
				// Nobody has used it.
				r.removeOurs()
				there(t, false, filepath.Join(dir, c.turns))
				there(t, true, filepath.Join(dir, "out", "checkpoint-5"))
				return
			}
			if k.change != nil {
				t.Errorf("%+v", k.change)
			}
			there(t, true, filepath.Join(dir, "out", "attempt-1-beef", "checkpoint-5"), filepath.Join(dir, "attempt-1-beef", "elsewhere", "model.pt"))
		})
	}
}

// TestAScriptThatGoesElsewhere: a relative output folder is not where its name says.
func TestAScriptThatGoesElsewhere(t *testing.T) {
	t.Parallel()
	parser := "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
	argv := []string{"python3", "train.py", "--output_dir", "out"}
	for name, line := range map[string]string{
		"chdir": "os.chdir(os.path.dirname(__file__))\n", "hydra": "import hydra\n", "a notebook": "%cd work\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := workplaceOf(t, parser+line, nil, argv...)
			k, err := r.keepOutput(ended(r, 5), 2, false)
			if err != nil || k.change == nil || k.change.To != "out-beef-a2" {
				t.Fatalf("%+v %v", k, err)
			}
			// Nothing was done yet.
			r, _ = workplaceOf(t, parser+line, nil, argv...)
			if k, err := r.keepOutput(ended(r, 0), 2, false); err != nil || k.change != nil {
				t.Errorf("%+v %v", k, err)
			}
			// It cannot be turned: what lies in the script's folder is moved.
			r, dir := workplaceOf(t, line, map[string]string{"output_dir": "out"}, "python3", "train.py")
			put(t, filepath.Join(dir, "work", "out", "checkpoint-1", "model.safetensors"), "x")
			if _, err := r.keepOutput(ended(r, 5), 2, false); err != nil {
				t.Fatal(err)
			}
			there(t, false, filepath.Join(dir, "work", "out", "checkpoint-1"))
		})
	}
	t.Run("seen in another folder", func(t *testing.T) {
		t.Parallel()
		r, dir := workplaceOf(t, parser, nil, argv...)
		a := ended(r, 5)
		put(t, filepath.Join(dir, "work", "out", "checkpoint-1", "model.safetensors"), "x")
		a.prints.cwds = map[string]bool{dir: true, filepath.Join(dir, "work"): true}
		if k, err := r.keepOutput(a, 2, false); err != nil || k.change == nil {
			t.Errorf("%+v %v", k, err)
		}
	})
	t.Run("saving was due", func(t *testing.T) {
		t.Parallel()
		r, _ := workplaceOf(t, parser, nil, append(argv, "--save_steps", "10")...)
		if k, err := r.keepOutput(ended(r, 9), 2, false); err != nil || k.change != nil {
			t.Errorf("before it was due: %+v %v", k, err)
		}
		if k, err := r.keepOutput(ended(r, 10), 2, false); err != nil || k.change == nil || k.change.To != "out-beef-a2" {
			t.Errorf("%+v %v", k, err)
		}
		r, _ = workplaceOf(t, "print(1)\n", map[string]string{"output_dir": "out", "save_steps": "10"}, "python3", "train.py")
		k, err := r.keepOutput(ended(r, 10), 2, false)
		refused(t, k, err, "saving was due")
	})
	t.Run("the output names one that is not found", func(t *testing.T) {
		t.Parallel()
		r, dir := opaqueWork(t)
		a := ended(r, 5)
		a.prints.say("/nowhere/checkpoint-5")
		k, err := r.keepOutput(a, 2, false)
		refused(t, k, err, "/nowhere/checkpoint-5")
		put(t, filepath.Join(dir, "checkpoint-5", "model.safetensors"), "x")
		if k, err := r.keepOutput(a, 2, false); err != nil || len(k.moved) != 1 {
			t.Errorf("%+v %v", k, err)
		}
	})
}

// TestSavedOutsideOfTheWorkingFolder is seen where the training had it open.
func TestSavedOutsideOfTheWorkingFolder(t *testing.T) {
	t.Parallel()
	r, _ := opaqueWork(t)
	far := real(t.TempDir())
	put(t, filepath.Join(far, "checkpoint-7", "optim", "x.pt"), "x")
	put(t, filepath.Join(far, "log.txt"), "x")
	a := ended(r, 5)
	a.prints.wrote = map[string]bool{filepath.Join(far, "checkpoint-7", "optim", "x.pt"): true, filepath.Join(far, "log.txt"): true}
	if _, err := r.keepOutput(a, 2, false); err != nil {
		t.Fatal(err)
	}
	there(t, true, filepath.Join(far, "attempt-1-beef", "checkpoint-7", "optim", "x.pt"), filepath.Join(far, "log.txt"))
}

// TestOutputInsideAContainer: a new container has a new folder, one that lives on has not.
func TestOutputInsideAContainer(t *testing.T) {
	t.Parallel()
	train := []string{"trl", "sft", "--output_dir", "/root/out"}
	for name, c := range map[string]struct {
		argv    []string
		steps   int64
		turns   bool
		refuses bool
	}{
		"run":             {append([]string{"docker", "run", "img"}, train...), 5, true, false},
		"exec":            {append([]string{"docker", "exec", "box"}, train...), 5, true, false},
		"exec, no step":   {append([]string{"docker", "exec", "box"}, train...), 0, false, false},
		"exec, not known": {[]string{"docker", "exec", "box", "./train"}, 5, false, true},
		"run, not known":  {[]string{"docker", "run", "--rm", "img", "./train"}, 5, false, false},
		"run on a volume": {[]string{"docker", "run", "--rm", "-v", "models:/out", "img", "./train"}, 5, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := workplaceOf(t, "", nil, c.argv...)
			k, err := r.keepOutput(ended(r, c.steps), 2, false)
			if c.refuses {
				refused(t, k, err)
				return
			}
			if err != nil || (k.change != nil) != c.turns || c.turns && k.change.To != "/root/out-beef-a2" {
				t.Errorf("%+v %v %+v", k.change, err, r.job.Knobs[job.OutputDir])
			}
		})
	}
}

// TestComposeSavesInTheProject: what lies in the working folder is found there.
func TestComposeSavesInTheProject(t *testing.T) {
	t.Parallel()
	r, dir := workplaceOf(t, "", nil, "docker", "compose", "run", "--rm", "train")
	k, err := r.keepOutput(ended(r, 5), 2, false)
	refused(t, k, err, "its container")
	put(t, filepath.Join(dir, "models", "checkpoint-3", "model.safetensors"), "x")
	if k, err := r.keepOutput(ended(r, 5), 2, false); err != nil || len(k.moved) != 1 {
		t.Errorf("%+v %v", k, err)
	}
	r, _ = workplaceOf(t, "", nil, "docker", "compose", "run", "--rm", "train")
	if _, err := r.keepOutput(ended(r, 0), 2, false); err != nil {
		t.Errorf("before any step: %v", err)
	}
}

func TestFindsAreNeverSplitFromTheirCheckpoint(t *testing.T) {
	t.Parallel()
	yes, no := func(string) bool { return true }, func(string) bool { return false }
	in := []find{{path: "/w/checkpoint-1/a.bin", box: "/w/checkpoint-1", named: true, like: true}, {path: "/w/checkpoint-1/b.json", box: "/w/checkpoint-1", named: true, like: true}}
	if k := decideKeeping(in, false, "", no, yes, nil); !slices.Equal(k.move, []string{"/w/checkpoint-1"}) || k.refuse != "" {
		t.Errorf("%+v", k)
	}
	if k := decideKeeping(in, false, "somebody", yes, no, nil); len(k.move) != 0 || k.refuse == "" {
		t.Errorf("%+v", k)
	}
}

// TestRestartMovesWhatIsRefused, but for what somebody holds open, which is named.
func TestRestartMovesWhatIsRefused(t *testing.T) {
	t.Parallel()
	r, dir := workAt(t, "checkpoint-5/optimizer.pt", "checkpoint-5/model.safetensors")
	r.o.Allow = []string{AllowRestart}
	stranger(t, dir, "exec sleep 60 > other.pt 2>&1")
	until(t, "its file", func() bool { return exists(filepath.Join(dir, "other.pt")) })
	put(t, filepath.Join(dir, "checkpoint-5", "model.safetensors"), "attempt 1")
	put(t, filepath.Join(dir, "exp", "checkpoint-7", "model.safetensors"), "attempt 1")
	k, err := r.keepOutput(ended(r, 5), 2, false)
	if err != nil {
		t.Fatal(err)
	}
	there(t, true, filepath.Join(dir, "checkpoint-5", "optimizer.pt"), filepath.Join(dir, "other.pt"))
	there(t, false, filepath.Join(dir, "checkpoint-5", "model.safetensors"), filepath.Join(dir, "exp", "checkpoint-7", "model.safetensors"))
	if said := strings.Join(k.said, "\n"); !strings.Contains(said, "overwritten: "+filepath.Join(dir, "other.pt")) {
		t.Errorf("what stays is not named: %s", said)
	}
}

func TestErrScanIsTold(t *testing.T) {
	t.Parallel()
	r, dir := opaqueWork(t)
	path := dir
	for range scanDepth + 2 {
		path = filepath.Join(path, "d")
	}
	put(t, filepath.Join(path, "x.pt"), "x")
	if err := r.seek().in(dir); !errors.Is(err, errScan) {
		t.Errorf("%v", err)
	}
}
