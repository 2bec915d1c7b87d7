package supervisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"sparkrun/internal/clock"
	"sparkrun/ladder/trainer"
	"sparkrun/supervisor/runlog"
)

// workplace is a working folder with a run in it and things of the user's.
func workplace(t *testing.T, output string) (*run, string) {
	t.Helper()
	argv := []string{"python3", "train.py"}
	if output != "" {
		argv = append(argv, "--output_dir", output)
	}
	// Flags of the library, so that the folder is a setting that can be turned.
	return workplaceOf(t, "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n", nil, argv...)
}

// workplaceOf is one with another script, command and knobs of the user's.
func workplaceOf(t *testing.T, script string, knobs map[string]string, argv ...string) (*run, string) {
	t.Helper()
	dir := real(t.TempDir())
	put(t, filepath.Join(dir, "out", "old.txt"), "from last week")
	put(t, filepath.Join(dir, "out", "runs", "lastweek.tfevents"), "x")
	runDir := filepath.Join(dir, "sparkrun-runs", "20260101-000000-x-beef")
	put(t, filepath.Join(runDir, "run.json"), "{}")
	log, err := runlog.OpenLog(&runlog.Dir{Path: runDir, ID: filepath.Base(runDir)}, clock.Start())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	// Creation times have the kernel's tick as their grain.
	time.Sleep(30 * time.Millisecond)
	set, err := trainer.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{
		o: Options{Dir: dir, Argv: argv, Knobs: knobs}, began: time.Now(), log: log, set: set, diag: hclog.NewNullLogger(),
		dir: &runlog.Dir{Path: runDir, ID: filepath.Base(runDir)},
	}
	put(t, filepath.Join(dir, "train.py"), script)
	if r.job, err = set.Understand(argv, dir, nil, knobs); err != nil {
		t.Fatal(err)
	}
	r.asked = r.job
	time.Sleep(30 * time.Millisecond)
	return r, dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func there(t *testing.T, want bool, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if _, err := os.Lstat(p); (err == nil) != want {
			t.Errorf("%s: there=%v, want %v", p, err == nil, want)
		}
	}
}

func TestOutputThatNobodyWroteIsKeptAsItIs(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "out")
	k, err := r.keepOutput(r.newAttempt(1), 2, false)
	if err != nil || k.change != nil || len(k.said) > 0 {
		t.Errorf("%+v %v", k, err)
	}
	there(t, true, filepath.Join(dir, "out", "old.txt"))
}

// Another training method never shares a folder, also where nothing was saved yet.
func TestAnotherMethodHasAFolderOfItsOwn(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "out")
	k, err := r.keepOutput(r.newAttempt(1), 2, true)
	if err != nil || k.change == nil || k.change.To != "out-a2" {
		t.Errorf("%+v %v", k, err)
	}
	there(t, true, filepath.Join(dir, "out", "old.txt"), filepath.Join(dir, "out-a2"))
}

func TestOutputThroughALinkIsSeen(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "link")
	if err := os.Symlink("out", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "out", "checkpoint-5", "model.safetensors"), "x")
	k, err := r.keepOutput(r.newAttempt(1), 2, false)
	if err != nil || k.change == nil || k.change.To != "link-a2" {
		t.Errorf("%+v %v", k, err)
	}
}

func TestNewFilesInAnOldFolderAreSeen(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "out")
	put(t, filepath.Join(dir, "out", "runs", "today.tfevents"), "x")
	if k, err := r.keepOutput(r.newAttempt(1), 2, false); err != nil || k.change == nil {
		t.Errorf("%+v %v", k, err)
	}
}

// TestOnlyWhatTheRunMadeIsMoved: in a folder the user works in, and below it.
func TestOnlyWhatTheRunMadeIsMoved(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, ".")
	put(t, filepath.Join(dir, "checkpoint-5", "model.safetensors"), "x")
	put(t, filepath.Join(dir, "notes.txt"), "written by hand while it ran")
	a := r.newAttempt(1)
	for range 2 { // a second look finds nothing more, and does not trip over the first
		if _, err := r.keepOutput(a, 2, false); err != nil {
			t.Fatal(err)
		}
	}
	there(t, true, filepath.Join(dir, "train.py"), filepath.Join(dir, "notes.txt"), filepath.Join(dir, "out", "old.txt"),
		filepath.Join(r.dir.Path, "run.json"), filepath.Join(dir, "attempt-1-beef", "checkpoint-5", "model.safetensors"))
	there(t, false, filepath.Join(dir, "checkpoint-5"))
}

func TestOldFoldersAreNeverMoved(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "out")
	put(t, filepath.Join(dir, "out", "runs", "today.tfevents"), "x")
	put(t, filepath.Join(dir, "out", "new", "a.txt"), "x")
	if _, err := r.moveAside(r.newAttempt(1), []string{filepath.Join(dir, "out")}, true); err != nil {
		t.Fatal(err)
	}
	there(t, true, filepath.Join(dir, "out", "old.txt"), filepath.Join(dir, "out", "runs", "lastweek.tfevents"))
	there(t, false, filepath.Join(dir, "out", "new"))
}

// TestAFolderAroundTheWorkIsNotAnOutput: whatever names lead there.
func TestAFolderAroundTheWorkIsNotAnOutput(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "")
	link := filepath.Join(t.TempDir(), "other-name")
	if err := os.Symlink(filepath.Dir(dir), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Dir(dir), link, dir, filepath.Join(link, filepath.Base(dir))} {
		if !r.userWorksIn(path) {
			t.Errorf("%s holds the working folder and is taken for an output", path)
		}
	}
	if r.userWorksIn(filepath.Join(dir, "out")) {
		t.Error("an output folder is taken for the user's own")
	}
}
