package supervisor

import (
	"maps"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"sparkrun/internal/clock"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder/trainer/progress"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/runlog"
)

// sftJob is a job of which all is known that decides its pace.
func sftJob() job.Job {
	return job.Job{
		Argv: []string{"python", "/home/user/sft.py", "--dataset_name", "mine/rows", "--output_dir", "out", "--learning_rate", "1e-4"}, TrainerAt: 1,
		Script: "/home/user/sft.py", Profile: "trl", Procs: 1,
		Knobs: job.Knobs{
			job.Model: {Value: "m-8b"}, job.Method: {Value: "lora"}, job.SeqLen: {Value: "4096"}, job.Packing: {Value: "true"},
			job.MicroBatch: {Value: "4"}, job.Accumulation: {Value: "2"}, job.OutputDir: {Value: "out"}, job.LearningRate: {Value: "1e-4"},
		},
	}
}

func TestPaceKeyTellsJobsApart(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"script": "ds = load_dataset('x')\nlr = 3\n"}
	base := paceKey(sftJob(), "spark-1", "NVIDIA GB10", texts)
	knob := func(k job.Knob, v string) func(*job.Job) {
		return func(j *job.Job) { j.Knobs[k] = job.Setting{Value: v} }
	}
	for name, c := range map[string]struct {
		change    func(*job.Job)
		host, gpu string
		texts     map[string]string
		same      bool
	}{
		"nothing":                  {same: true},
		"a folder to save in":      {change: func(j *job.Job) { j.Argv[5] = "out2"; knob(job.OutputDir, "out2")(j) }, same: true},
		"the learning rate":        {change: func(j *job.Job) { j.Argv[7] = "2e-4"; knob(job.LearningRate, "2e-4")(j) }, same: true},
		"the number of steps":      {change: knob(job.MaxSteps, "400"), same: true},
		"the script elsewhere":     {change: func(j *job.Job) { j.Script = "/srv/sft.py" }, same: true},
		"another line of it":       {texts: map[string]string{"script": "ds = load_dataset('x')\nlr = 4\n"}, same: true},
		"the model":                {change: knob(job.Model, "m-3b")},
		"the method":               {change: knob(job.Method, "full")},
		"the length":               {change: knob(job.SeqLen, "2048")},
		"the micro-batch":          {change: knob(job.MicroBatch, "2")},
		"the accumulation":         {change: knob(job.Accumulation, "4")},
		"packing":                  {change: knob(job.Packing, "false")},
		"attention":                {change: knob(job.Attention, "flash_attention_2")},
		"checkpointing":            {change: knob(job.GradCkpt, "true")},
		"devices":                  {change: func(j *job.Job) { j.Procs = 2 }},
		"machines":                 {change: func(j *job.Job) { j.Nodes = 2 }},
		"the trainer":              {change: func(j *job.Job) { j.Profile = "axolotl" }},
		"another script":           {change: func(j *job.Job) { j.Script = "/home/user/dpo.py" }},
		"an image":                 {change: func(j *job.Job) { j.Container = &job.Container{Engine: "docker", Image: "pytorch:25.11"} }},
		"the data of the command":  {change: func(j *job.Job) { j.Argv[3] = "mine/longer-rows" }},
		"the data by another flag": {change: func(j *job.Job) { j.Argv = append(j.Argv, "--input_path", "/mnt/long") }},
		"a data file by itself":    {change: func(j *job.Job) { j.Argv = append(j.Argv, "/mnt/long.jsonl") }},
		"the log's folder":         {change: func(j *job.Job) { j.Argv = append(j.Argv, "--logging_dir", "runs/b.txt", "--log_file=out.txt") }, same: true},
		"a file in the output":     {change: func(j *job.Job) { j.Argv = append(j.Argv, "out/train.txt") }, same: true},
		"epochs": {change: func(j *job.Job) {
			j.Argv = append(j.Argv, "--num_train_epochs", "3", "--do_train", "--train_shuffle=True")
		}, same: true},
		"the data of the script": {texts: map[string]string{"script": "ds = load_dataset('y')\nlr = 3\n"}},
		"the machine":            {host: "spark-2"},
		"the GPU":                {gpu: "NVIDIA GeForce RTX 4090"},
	} {
		j := sftJob()
		j.Argv = append([]string(nil), j.Argv...)
		if c.change != nil {
			c.change(&j)
		}
		host, gpu, with := "spark-1", "NVIDIA GB10", texts
		if c.host != "" {
			host = c.host
		}
		if c.gpu != "" {
			gpu = c.gpu
		}
		if c.texts != nil {
			with = c.texts
		}
		if got := paceKey(j, host, gpu, with); maps.Equal(got, base) != c.same {
			t.Errorf("%s: the same job: %v, want %v\n%v\n%v", name, !c.same, c.same, got, base)
		}
	}
}

// However the option for the data is called, other rows are another job.
func TestPaceKeyTellsDataApart(t *testing.T) {
	t.Parallel()
	key := func(words ...string) runlog.PaceKey {
		j := sftJob()
		j.Argv = append([]string{"python", "/home/user/sft.py"}, words...)
		return paceKey(j, "h", "g", nil)
	}
	for _, flag := range []string{"--input_path", "--train", "--text_dir", "--corpus", "--train_file", "--prompts", "--shards", "--dataset", "--ds-jsonl"} {
		if maps.Equal(key(flag, "/mnt/short.txt"), key(flag, "/mnt/long.txt")) || maps.Equal(key(flag+"=/mnt/short"), key(flag+"=/mnt/long")) {
			t.Errorf("%s: the same job with other data", flag)
		}
		if !maps.Equal(key(flag, "/mnt/short.txt"), key(flag, "/mnt/short.txt", "--seed", "3")) {
			t.Errorf("%s: another job with the same data", flag)
		}
	}
	if maps.Equal(key("short.txt"), key("long.txt")) || maps.Equal(key("--x", "short.csv"), key("--x", "long.csv")) {
		t.Error("files with rows: the same job with other data")
	}
	script := func(text string) runlog.PaceKey {
		return paceKey(sftJob(), "h", "g", map[string]string{"script": text})
	}
	if maps.Equal(script("rows = open('short.txt')"), script("rows = open('long.txt')")) {
		t.Error("a script: the same job with other data")
	}
}

// What is not understood must not make two jobs one.
func TestPaceKeyOfAnUnknownCommand(t *testing.T) {
	t.Parallel()
	cmd := func(words ...string) job.Job { return job.Job{Argv: words, Script: "train.py", Knobs: job.Knobs{}} }
	a := paceKey(cmd("python", "train.py", "--bs", "8"), "h", "g", nil)
	for name, c := range map[string]struct {
		k    runlog.PaceKey
		same bool
	}{
		"the same":       {paceKey(cmd("python", "train.py", "--bs", "8"), "h", "g", nil), true},
		"another word":   {paceKey(cmd("python", "train.py", "--bs", "4"), "h", "g", nil), false},
		"words moved":    {paceKey(cmd("python", "train.py", "--b", "s8"), "h", "g", nil), false},
		"another script": {paceKey(cmd("python", "train.py", "--bs", "8"), "h", "g", map[string]string{"script": "x = 1"}), false},
	} {
		if maps.Equal(a, c.k) != c.same {
			t.Errorf("%s: %v against %v", name, c.k, a)
		}
	}
	for k, v := range paceKey(cmd("python", "train.py", "--token", "hf_secretsecret", "--data", "hf_secretsecret"), "h", "g", nil) {
		if k != "command" && k != "data" && v != "train.py" && len(v) > 3 {
			t.Errorf("%s holds %q of the command", k, v)
		}
	}
}

func TestWorthNoting(t *testing.T) {
	t.Parallel()
	good := func() throttle.Summary {
		return throttle.Summary{ByType: map[string]throttle.TypeSummary{}, ThrottledShare: sample.Known(0), Pace: throttle.PaceSummary{BaselineS: sample.Known(2), Steps: 50}}
	}
	for name, c := range map[string]struct {
		change func(*throttle.Summary)
		want   bool
	}{
		"a healthy run":            {func(*throttle.Summary) {}, true},
		"nothing known of heat":    {func(s *throttle.Summary) { s.ThrottledShare = sample.Num{} }, true},
		"a power cap":              {func(s *throttle.Summary) { s.ByType[throttle.PowerCap] = throttle.TypeSummary{Episodes: 1} }, true},
		"a pulse now and then":     {func(s *throttle.Summary) { s.ThrottledShare = sample.Known(0.002) }, true},
		"few steps":                {func(s *throttle.Summary) { s.Pace.Steps = 49 }, false},
		"no pace":                  {func(s *throttle.Summary) { s.Pace.BaselineS = sample.Num{} }, false},
		"slower than earlier ones": {func(s *throttle.Summary) { s.Pace.Compared = throttle.ComparedSlow }, false},
		"slower than its own pace for most of it": {func(s *throttle.Summary) {
			s.ByType[throttle.Slowdown] = throttle.TypeSummary{Episodes: 1, Seconds: 400}
		}, false},
		"slower for a moment": {func(s *throttle.Summary) {
			s.ByType[throttle.Slowdown] = throttle.TypeSummary{Episodes: 1, Seconds: 30}
		}, true},
		"throttled":               {func(s *throttle.Summary) { s.ThrottledShare = sample.Known(0.2) }, false},
		"wedged":                  {func(s *throttle.Summary) { s.ByType[throttle.PowerWedge] = throttle.TypeSummary{Episodes: 1} }, false},
		"less power than healthy": {func(s *throttle.Summary) { s.ByType["low-cap"] = throttle.TypeSummary{Episodes: 1} }, false},
	} {
		s := good()
		c.change(&s)
		if why, ok := worthNoting(s); ok != c.want || ok != (why == "") {
			t.Errorf("%s: %v %q", name, ok, why)
		}
	}
}

func TestHistoryOfRuns(t *testing.T) {
	t.Parallel()
	k := sample.Known
	if h := historyOf(nil); h.Known || h.Runs != 0 {
		t.Errorf("%+v of nothing", h)
	}
	h := historyOf([]runlog.PaceRun{{ID: "a", StepTimeS: k(2)}, {ID: "b", StepTimeS: k(4), TokensPerS: k(100)}, {ID: "c", StepTimeS: k(3)}})
	if want := (throttle.History{Known: true, StepTimeS: k(3), TokensPerS: k(100), Runs: 3, From: "c"}); h != want {
		t.Errorf("%+v, want %+v", h, want)
	}
}

// A run's pace is there for the next run of the same job, and for no other.
func TestPaceIsNotedAndMetAgain(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	cfg, err := throttle.Load()
	if err != nil {
		t.Fatal(err)
	}
	newRun := func() (*run, *attempt) {
		r := &run{asked: sftJob(), clk: clock.Start(), dir: &runlog.Dir{ID: "20260714-220000-sft-ab12"}, detector: throttle.New(cfg), diag: hclog.NewNullLogger()}
		if r.set, err = loadProfiles(Options{}); err != nil {
			t.Fatal(err)
		}
		r.places = runlog.Places{Getenv: func(n string) string { return map[string]string{"XDG_STATE_HOME": state}[n] }}
		r.found.gpu = "NVIDIA GB10"
		a := r.newAttempt(1)
		a.job, a.haveStep = sftJob(), true
		r.att, r.nowN = a, 1
		return r, a
	}
	r, a := newRun()
	key := r.paceKeyOf(a, "NVIDIA GB10")
	r.keepPace(throttle.Summary{Pace: throttle.PaceSummary{BaselineS: sample.Known(2), Steps: 49}})
	if runs, err := r.places.PaceRuns(key); len(runs) != 0 || err != nil {
		t.Fatalf("a short run was noted: %v %v", runs, err)
	}
	r.keepPace(throttle.Summary{Pace: throttle.PaceSummary{BaselineS: sample.Known(2), TokensPerS: sample.Known(900), Steps: 400}})
	runs, err := r.places.PaceRuns(key)
	if err != nil || len(runs) != 1 || runs[0].ID != r.dir.ID || runs[0].StepTimeS.V != 2 || runs[0].TokensPerS.V != 900 || time.Since(runs[0].T) > time.Hour {
		t.Fatalf("%v %v", runs, err)
	}
	// The next attempt has another length: nothing to compare it with.
	r, a = newRun()
	a.job.Knobs[job.SeqLen] = job.Setting{Value: "2048"}
	if runs, err := r.places.PaceRuns(r.paceKeyOf(a, "NVIDIA GB10")); len(runs) != 0 || err != nil {
		t.Errorf("%v %v", runs, err)
	}
	if r.asked.Knobs[job.SeqLen].Value != "4096" {
		t.Error("the job as asked was changed")
	}
}

func TestGPUNames(t *testing.T) {
	t.Parallel()
	r := &run{secrets: runlog.NewRedactor(nil)}
	name := r.gpuNames()
	if got := name(os.Getpid()); got == "" {
		t.Error("this process has no name")
	}
	if got := name(1 << 22); got != "" {
		t.Errorf("a process that is none is called %q", got)
	}
	a := r.newAttempt(1)
	a.started.ChildPID = os.Getpid()
	r.live.Store(a)
	if got := name(os.Getpid()); got != "" {
		t.Errorf("the training's own process is called %q", got)
	}
}

func TestMarkPaceTakesOnlyWhatIsNoStep(t *testing.T) {
	t.Parallel()
	cfg, err := throttle.Load()
	if err != nil {
		t.Fatal(err)
	}
	r := &run{detector: throttle.New(cfg)}
	// It must not wait for itself, nor touch what is none of its business.
	r.markPace(progress.Step{N: 3, Advance: true}, time.Now())
	r.markPace(progress.Step{Eval: true}, time.Now())
	r.markPace(progress.Step{Checkpoint: "out/checkpoint-3"}, time.Now())
	if got := r.detector.Summary().Pace; got.BaselineS.OK || got.Steps != 0 {
		t.Errorf("%+v", got)
	}
}
