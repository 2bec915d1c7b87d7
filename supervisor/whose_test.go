package supervisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/proctree"
	"sparkrun/ladder/trainer/checkpoint"
	"sparkrun/ladder/trainer/progress"
	"sparkrun/supervisor/runlog"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// stranger is a process of somebody else's in a folder: it belongs to init, as what
// another terminal has started does not belong to us.
func stranger(t *testing.T, dir, script string) int {
	t.Helper()
	// The shell between ends, so that what it started has another parent.
	cmd := exec.Command("setsid", "sh", "-c", script+` & echo $! > "$PIDFILE"`)
	file := filepath.Join(t.TempDir(), "pid")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PIDFILE="+file)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	for _, c := range strings.TrimSpace(string(b)) {
		pid = pid*10 + int(c-'0')
	}
	t.Cleanup(func() {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	})
	return pid
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// TestWhatSomebodyElseMayHaveWrittenIsNotMoved: another training in the same folder, now
// or earlier in the run.
func TestWhatSomebodyElseMayHaveWrittenIsNotMoved(t *testing.T) {
	t.Parallel()
	r, dir := opaqueWork(t)
	a := ended(r, 5)
	pid := stranger(t, dir, "exec sleep 60 > /dev/null 2> errors")
	until(t, "sleep", func() bool { p, ok := proctree.Read(pid); return ok && p.Comm == "sleep" })
	put(t, filepath.Join(dir, "other", "checkpoint-10", "model.safetensors"), "x")
	k, err := r.keepOutput(a, 2, false)
	refused(t, k, err, "checkpoint-10", "sleep")
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
	until(t, "its end", func() bool { p, ok := proctree.Read(pid); return !ok || p.State == 'Z' })
	k, err = r.keepOutput(a, 2, false)
	refused(t, k, err, "sleep") // it was there
	there(t, true, filepath.Join(dir, "other", "checkpoint-10", "model.safetensors"))

	// What the training itself was seen at is moved all the same, and nothing beside it.
	mine := filepath.Join(dir, "mine", "checkpoint-5")
	put(t, filepath.Join(mine, "model.safetensors"), "x")
	a.prints.wrote = map[string]bool{filepath.Join(mine, "model.safetensors"): true, filepath.Join(dir, "other", "checkpoint-10", "model.safetensors"): true}
	if _, err = r.keepOutput(a, 2, false); err != nil {
		t.Fatal(err)
	}
	there(t, true, filepath.Join(dir, "mine", "attempt-1-beef", "checkpoint-5", "model.safetensors"))

	// Somebody in a folder beside it is of no concern, nor who is in it and writes nothing:
	// a shell, a notebook's kernel.
	r, dir = opaqueWork(t)
	stranger(t, t.TempDir(), "exec sleep 60 > /dev/null 2> errors")
	stranger(t, dir, "exec sleep 60 > /dev/null 2>&1")
	// Nor the pipeline that sparkrun stands in.
	mate := exec.Command("sh", "-c", "exec sleep 60 > log")
	mate.Dir = dir
	if err := mate.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mate.Process.Kill(); _ = mate.Wait() })
	until(t, "its log", func() bool { return exists(filepath.Join(dir, "log")) })
	put(t, filepath.Join(dir, "model.pt"), "x")
	if k, err := r.keepOutput(ended(r, 5), 2, false); err != nil || len(k.moved) != 1 {
		t.Errorf("%+v %v", k, err)
	}
}

// TestFootprint: folders and open files of real processes.
func TestFootprint(t *testing.T) {
	t.Parallel()
	dir := real(t.TempDir())
	put(t, filepath.Join(dir, "read.txt"), "x")
	cmd := exec.Command("sh", "-c", "mkdir in; cd in; exec 3> saved.pt 4< ../read.txt; echo; exec sleep 60")
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var f footprint
	f.look([]proctree.Proc{{PID: cmd.Process.Pid}})
	cwds, wrote, _ := f.at()
	if !slices.Equal(cwds, []string{filepath.Join(dir, "in")}) || !slices.Equal(wrote, []string{filepath.Join(dir, "in", "saved.pt")}) {
		t.Errorf("%v %v", cwds, wrote)
	}
	if who := openAt(filepath.Join(dir, "in")); !strings.Contains(who, "pid") {
		t.Errorf("nobody is seen at an open file: %q", who)
	}
	if who := openAt(filepath.Join(dir, "read.txt")); who != "" {
		t.Errorf("%q only reads", who)
	}
}

// TestTornCheckpointsInUse are not moved.
func TestTornCheckpointsInUse(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "out")
	a := ended(r, 5)
	old := time.Now().Add(-time.Hour)
	torn := filepath.Join(dir, "out", "checkpoint-6")
	file := filepath.Join(torn, "model.safetensors")
	put(t, file, "torn")
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	if err := r.moveTorn(a, []string{torn}); err == nil || !strings.Contains(err.Error(), "has it open") {
		t.Errorf("%v", err)
	}
	there(t, true, file)
	f.Close()

	// Somebody writes to it at short intervals, with nothing open in between.
	if err := os.Chtimes(file, time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				_ = os.Chtimes(file, time.Now(), time.Now())
			}
		}
	}()
	began := time.Now()
	if err := r.moveTorn(a, []string{torn}); err == nil || !strings.Contains(err.Error(), "writing to it") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > settleMost+2*time.Second {
		t.Errorf("it took %v", took)
	}
	close(stop)
	<-done
	there(t, true, file)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	if err := r.moveTorn(a, []string{torn}); err != nil {
		t.Error(err)
	}
	there(t, true, filepath.Join(dir, "out", "attempt-1-beef", "checkpoint-6", "model.safetensors"))
}

// TestTwoRunsInOneFolder know of each other, whoever came first, and take up nothing.
func TestTwoRunsInOneFolder(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	enter := func(r *run, dir, id string) *attempt {
		r.places = runlog.Places{Getenv: func(string) string { return "" }, Home: home, Cwd: dir}
		r.dir.ID = id
		a := ended(r, 5)
		r.markOutput(a)
		return a
	}
	one, dir := workplace(t, "out")
	a := enter(one, dir, "20260101-000000-x-beef")
	two, _ := workplace(t, filepath.Join(dir, "out")) // by another name
	b := enter(two, dir, "20260101-000001-x-cafe")
	far, farDir := workplace(t, "out")
	enter(far, farDir, "20260101-000002-x-feed")
	if one.sharedWith("out") != "" || far.sharedWith("out") != "" {
		t.Error("nobody was there")
	}
	if got := two.sharedWith(filepath.Join(dir, "out")); got != "run 20260101-000000-x-beef" {
		t.Errorf("the second one knows of %q", got)
	}
	one.markOutput(a)
	if got := one.sharedWith("out"); got != "run 20260101-000001-x-cafe" {
		t.Errorf("the first one knows of %q", got)
	}
	if cps := one.checkpoints(a); cps != nil {
		t.Errorf("%+v", cps)
	}
	put(t, filepath.Join(dir, "out", "checkpoint-5", "model.safetensors"), "x")
	k, err := one.keepOutput(a, 2, false)
	if err != nil || k.change == nil || k.change.To != "out-beef-a2" || !strings.Contains(k.said[0], "cafe") {
		t.Errorf("%+v %v", k, err)
	}
	// One that is gone does not count.
	two.unmark()
	one.unmark()
	one.marks.with = nil
	one.markOutput(a)
	if got := one.sharedWith("out"); got != "" {
		t.Errorf("it still knows of %q", got)
	}
	one.unmark()
	_ = b
}

// TestCheckpointsOfStepsNotCome are somebody else's.
func TestCheckpointsOfStepsNotCome(t *testing.T) {
	t.Parallel()
	r, _ := workplace(t, "out")
	bar := func(first, last int64, stepTime float64, on int64) *attempt {
		a := ended(r, 0)
		a.haveStep, a.goesOn, a.stepTime = true, on, sample.Known(stepTime)
		a.first, a.last = progress.Step{N: first, Bar: true}, progress.Step{N: last, Bar: true}
		return a
	}
	cps := []checkpoint.Checkpoint{{Path: "/o/checkpoint-900", Step: 900}}
	for name, c := range map[string]struct {
		a    *attempt
		want string
	}{
		"far behind":             {bar(1, 60, 2, 0), "checkpoint-900"},
		"as far":                 {bar(1, 900, 2, 0), ""},
		"quick steps":            {bar(1, 500, 0.02, 0), ""},
		"seldom told":            {bar(500, 500, 2, 0), ""},
		"counts from the resume": {bar(1, 60, 2, 850), ""},
		"no bar":                 {ended(r, 60), ""},
		"no step":                {ended(r, 0), ""},
	} {
		r.all = []*attempt{c.a}
		if got := r.foreign(c.a, cps); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	// Without a bar, by logged losses.
	a := ended(r, 8)
	a.stepTime = sample.Known(0.001)
	for perLog, want := range map[int64]int64{0: 0, 1: 8 + 10 + 3, 50: 8 + 10 + 150} {
		if n, ok := a.reached(perLog); n != want || ok != (want > 0) {
			t.Errorf("%d steps a log: %d %v", perLog, n, ok)
		}
	}
	r, _ = workplaceOf(t, "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n", nil, "python3", "train.py", "--output_dir", "out", "--logging_steps", "1")
	a = ended(r, 8)
	r.all = []*attempt{a}
	if got := r.foreign(a, cps); got != "checkpoint-900" {
		t.Errorf("by logs: %q", got)
	}
}

func TestHandsResume(t *testing.T) {
	t.Parallel()
	const handed = "trainer.train(resume_from_checkpoint=a.resume_from_checkpoint)\n"
	for text, want := range map[string]bool{
		"": false, "main()": false,
		"trainer.train()": false,
		"p.add_argument('--resume_from_checkpoint')\ntrainer.train()": false,
		handed: true,
		"trainer.train(a.resume_from_checkpoint)":                                                          true,
		"trainer.train(\n    resume_from_checkpoint=training_args.resume,\n)":                              true,
		"model.train()\n" + handed:                                                                         true,
		"# trainer.train()\n" + handed:                                                                     true,
		"if a.resume_from_checkpoint == '':\n    print()\n" + handed:                                       true,
		"trainer.train(resume_from_checkpoint=(get(a)))":                                                   false,
		"trainer.train(resume_from_checkpoint=a.resume_from_checkpoint or None)":                           false,
		"trainer.train(resume_from_checkpoint=a.resume_from_checkpoint if c else None)":                    false,
		"a.resume_from_checkpoint = None\n" + handed:                                                       false,
		"setattr(a, k, None)\n" + handed:                                                                   false,
		handed + "trainer.train()":                                                                         false,
		"model.train()\nrun(cfg)":                                                                          false,
		"t.fit(model, loader)":                                                                             false,
		"t.fit(model, loader, ckpt_path=a.ckpt)":                                                           true,
		"ckpt = a.resume_from_checkpoint\ntrainer.train(ckpt)":                                             true,
		"ckpt = a.resume_from_checkpoint  # path\ntrainer.train(resume_from_checkpoint=ckpt)":              true,
		"ckpt = a.resume_from_checkpoint\nif ckpt and not ok(ckpt):\n    ckpt = None\ntrainer.train(ckpt)": false,
		"ckpt = None\nif a.resume:\n    ckpt = a.resume\ntrainer.train(ckpt)":                              false,
		"ckpt = a.resume_from_checkpoint if c else None\ntrainer.train(ckpt)":                              false,
		"ckpt = find()\ntrainer.train(ckpt)":                                                               false,
		"if checkpoint:\n    trainer.train(checkpoint)\nelse:\n    trainer.train()\n":                      false,
		"trainer.train(": false,
	} {
		if got := handsResume(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestAnUnsureResumeDoesNotSaveThere: where the script cannot be relied on, what it goes on
// from is out of its reach.
func TestAnUnsureResumeDoesNotSaveThere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script, out, path string
	}{
		"ignores it":       {"trainer.train()\n", "out-a2", "out/checkpoint-4"},
		"hands it on":      {"trainer.train(resume_from_checkpoint=a.resume)\n", "", "out/checkpoint-4"},
		"may drop it":      {"c = a.resume\nif not done(c):\n    c = None\ntrainer.train(c)\n", "out-a2", "out/checkpoint-4"},
		"cannot be turned": {"#knob\ntrainer.train()\n", "", "out/attempt-1-beef/checkpoint-4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			knobs, argv := map[string]string(nil), []string{"python3", "train.py", "--output_dir", "out"}
			if strings.HasPrefix(c.script, "#knob") {
				knobs, argv = map[string]string{"output_dir": "out"}, argv[:2]
			} else {
				c.script = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n" + c.script
			}
			r, dir := workplaceOf(t, c.script, knobs, argv...)
			r.job.Resume = job.Resume{How: "path", Layout: checkpoint.HF}
			put(t, filepath.Join(dir, "out", "checkpoint-4", "model.safetensors"), "x")
			a := ended(r, 5)
			r.all = []*attempt{a}
			path := filepath.Join(dir, "out", "checkpoint-4")
			choice := resumeChoice{Path: path, From: checkpoint.Checkpoint{Path: path, Step: 4}}
			k, err := r.keepApart(a, 2, &choice)
			if err != nil || (k.change != nil) != (c.out != "") || k.change != nil && k.change.To != c.out || choice.Path != filepath.Join(dir, c.path) || choice.From.Path != choice.Path {
				t.Errorf("%+v %v %s", k, err, choice.Path)
			}
			there(t, true, choice.Path)
		})
	}
}
