package supervisor

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/job"
)

func TestTrackersOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		argv  string
		env   []string
		texts []string
		want  string // letters: W M T C S, and H for transformers
	}{
		{"none", "python train.py --lr 1", nil, []string{"import torch"}, ""},
		{"a flag", "python t.py --report_to wandb tensorboard --lr 1", nil, nil, "WT"},
		{"a flag with =", "python t.py --report-to=mlflow --x wandb", nil, nil, "M"},
		{"key=value", "llamafactory-cli train c.yaml report_to=swanlab", nil, nil, "S"},
		{"yaml", "x c.yaml", nil, []string{"a: 1\nreport_to: wandb\n"}, "W"},
		{"yaml list", "x c.yaml", nil, []string{"report_to:\n  - wandb\n  - mlflow\nother: tensorboard\n"}, "WM"},
		{"json", "x c.json", nil, []string{`{"report_to": ["wandb"], "b": 2}`}, "W"},
		{"a script", "python t.py", nil, []string{`args = SFTConfig(output_dir="o", report_to="comet_ml")`}, "CH"},
		{"an import", "python t.py", nil, []string{"import wandb\nwandb.init()\n"}, "W"},
		{"the environment", "python t.py", []string{"WANDB_PROJECT=p", "MLFLOW_TRACKING_URI="}, nil, "W"},
		{"none said", "python t.py --report_to none", []string{"WANDB_API_KEY=k"}, nil, ""},
		{"axolotl", "axolotl train c.yml", nil, []string{"wandb_project: spark\nwandb_entity:\n"}, "W"},
		{"axolotl without", "axolotl train c.yml", nil, []string{"wandb_project:\nwandb_entity:\n"}, ""},
		{"nanoGPT", "python train.py --wandb_log=True", nil, nil, "W"},
		{"nanoGPT without", "python train.py --wandb_log=False", nil, []string{"wandb_log = False\n"}, ""},
		{"two runs in one process", "python t.py", nil, []string{"import wandb\nfor f in range(5):\n    wandb.init()\nwandb.init()\n"}, ""},
		{"a sweep", "python t.py", nil, []string{"import wandb\nwandb.init()\nwandb.agent(i)\n"}, ""},
		{"a search", "python t.py --report_to wandb", nil, []string{"trainer.hyperparameter_search()"}, ""},
		{"the old Comet", "python t.py", []string{"COMET_API_KEY=k"}, []string{"from transformers import TrainingArguments\nimport comet_ml\ncomet_ml.Experiment()"}, "H"},
		{"a logger class", "python t.py", nil, []string{"logger = TensorBoardLogger('logs')"}, "T"},
	} {
		got := trackersOf(job.Job{Argv: strings.Fields(c.argv), Knobs: job.Knobs{}}, c.env, c.texts...)
		letters := ""
		for _, x := range []struct {
			on     bool
			letter string
		}{{got.WandB, "W"}, {got.MLflow, "M"}, {got.TensorBoard, "T"}, {got.Comet, "C"}, {got.SwanLab, "S"}, {got.Transformers, "H"}} {
			if x.on {
				letters += x.letter
			}
		}
		if letters != c.want {
			t.Errorf("%s: %q, want %q", c.name, letters, c.want)
		}
	}
}

func TestTrackerEnv(t *testing.T) {
	t.Parallel()
	const id = "20260105-101010-sft-ab12"
	all := trackers{WandB: true, MLflow: true, TensorBoard: true, Comet: true, SwanLab: true, Transformers: true, OutputDir: "out"}
	first := trackerEnv(nil, id, all)
	forms := []*regexp.Regexp{
		regexp.MustCompile(`^WANDB_RUN_ID=20260105-101010-sft-ab12$`), regexp.MustCompile(`^WANDB_RESUME=allow$`),
		regexp.MustCompile(`^TENSORBOARD_LOGGING_DIR=out/runs/20260105-101010-sft-ab12$`),
		regexp.MustCompile(`^COMET_EXPERIMENT_KEY=[0-9a-z]{32}$`), regexp.MustCompile(`^SWANLAB_RUN_ID=[0-9a-z]{21}$`), regexp.MustCompile(`^SWANLAB_RESUME=allow$`),
	}
	if len(first) != len(forms) {
		t.Fatalf("%q", first)
	}
	for i, f := range forms {
		if !f.MatchString(first[i]) {
			t.Errorf("%q, want %s", first[i], f)
		}
	}
	if again := trackerEnv(nil, id, all); !slices.Equal(again, first) {
		t.Errorf("another attempt: %q", again)
	}
	if other := trackerEnv(nil, "20260105-101010-sft-ab13", all); other[0] == first[0] || other[3] == first[3] || other[4] == first[4] {
		t.Errorf("another run: %q", other)
	}
	if none := trackerEnv(nil, id, trackers{OutputDir: "out"}); none != nil {
		t.Errorf("no tracker: %q", none)
	}
	user := []string{"WANDB_RUN_ID=mine", "TENSORBOARD_LOGGING_DIR=tb", "COMET_MODE=create", "SWANLAB_RESUME=must"}
	if got := trackerEnv(user, id, all); got != nil {
		t.Errorf("the user's own: %q", got)
	}
	if got := trackerEnv([]string{"WANDB_RUN_ID="}, id, trackers{WandB: true}); len(got) != 2 {
		t.Errorf("an empty one is none: %q", got)
	}
	for _, own := range []string{"WANDB_RESUME=must", "WANDB_SWEEP_ID=s", "WANDB_DISABLED=true"} {
		if got := trackerEnv([]string{own}, id, trackers{WandB: true}); got != nil {
			t.Errorf("%s: %q", own, got)
		}
	}
	if got := trackerEnv(nil, id, trackers{TensorBoard: true, Transformers: true, OutputDir: "out", LogDir: true}); got != nil {
		t.Errorf("a log folder of the job's own: %q", got)
	}
	run := strings.Repeat("ab", 16)
	for _, c := range []struct {
		sees trackers
		env  []string
		want []string
	}{
		{trackers{MLflow: true}, nil, nil},
		{trackers{MLflow: true, MLflowRun: run}, nil, []string{"MLFLOW_RUN_ID=" + run}},
		{trackers{MLflow: true, MLflowRun: run, Changed: true}, nil, nil},
		{trackers{MLflow: true, MLflowRun: run, Changed: true, Transformers: true}, nil, []string{"MLFLOW_RUN_ID=" + run, "MLFLOW_MAX_LOG_PARAMS=0"}},
		{trackers{MLflow: true, MLflowRun: run}, []string{"MLFLOW_RUN_ID=x"}, nil},
	} {
		if got := trackerEnv(c.env, id, c.sees); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.sees, got, c.want)
		}
	}
	for _, odd := range []string{"", "a/b c#d", strings.Repeat("x", 200) + "-ab12", "--x"} {
		got := wandbID("r" + odd)
		if len(got) > maxWandB || notInID.MatchString(got) || got == "" {
			t.Errorf("%q: %q", odd, got)
		}
	}
}

func TestMLflowRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	began := time.Now().Add(-time.Minute)
	run := func(store, id string, at time.Time) {
		path := filepath.Join(dir, store, "0", id, "artifacts")
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, store, "0", id, "meta.yaml"), []byte("run_id: "+id), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if got := mlflowRun(dir, nil, began); got != "" {
		t.Errorf("no folder: %q", got)
	}
	old, fresh, other := strings.Repeat("0a", 16), strings.Repeat("1b", 16), strings.Repeat("2c", 16)
	run("mlruns", old, began.Add(-time.Hour))
	run("mlruns", "not-a-run", time.Now())
	run("mlruns", fresh, time.Now())
	run("there", other, time.Now())
	for uri, want := range map[string]string{
		"": fresh, "file://" + filepath.Join(dir, "there"): other, "there": other, filepath.Join(dir, "there"): other,
		"http://127.0.0.1:5000": "", "sqlite:///mlflow.db": "", "databricks://x": "", "gone": "",
	} {
		if got := mlflowRun(dir, []string{"MLFLOW_TRACKING_URI=" + uri}, began); got != want {
			t.Errorf("%q: %q, want %q", uri, got, want)
		}
	}
	run("mlruns", other, time.Now())
	if got := mlflowRun(dir, nil, began); got != "" {
		t.Errorf("two that may be it: %q", got)
	}
}
