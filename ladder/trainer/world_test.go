package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
	"sparkrun/internal/newprog"
)

// nanoGPT's accumulation counts for all processes: each has its share, and what is
// written is the whole again.
func TestAccumulationOfAllProcesses(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"train.py": "gradient_accumulation_steps = 5 * 8\nbatch_size = 16\nblock_size = 1024\ninit_from = 'scratch'\nexec(open('configurator.py').read())\n"})
	for _, c := range []struct {
		argv      string
		share     string
		effective int64
		want      string
	}{
		{"python train.py", "40", 640, "--batch_size=8 --gradient_accumulation_steps=80"},
		{"torchrun --nproc_per_node=4 train.py", "10", 640, "--batch_size=8 --gradient_accumulation_steps=80"},
		{"torchrun --nproc_per_node=4 train.py --gradient_accumulation_steps=8", "2", 128, "--gradient_accumulation_steps=16 --batch_size=8"},
		{"torchrun --nproc_per_node=3 train.py", "", 0, ""},
		{"torchrun --nproc_per_node=gpu train.py", "", 0, ""},
	} {
		j := understand(t, s, dir, c.argv)
		if got := j.Knobs[job.Accumulation].Value; got != c.share {
			t.Errorf("%s: accumulation %q, want %q", c.argv, got, c.share)
			continue
		}
		eff := j.EffectiveBatch()
		if c.share == "" {
			if eff != nil || j.Unclear[job.Accumulation] == "" {
				t.Errorf("%s: effective batch %v, unclear %q", c.argv, eff, j.Unclear)
			}
			continue
		}
		if eff == nil || *eff != c.effective {
			t.Errorf("%s: effective batch %v, want %d", c.argv, eff, c.effective)
		}
		var acc int64
		if _, err := fmt.Sscan(c.share, &acc); err != nil {
			t.Fatal(err)
		}
		r, err := s.Rewrite(j, Request{Changes: []Change{to(job.MicroBatch, "16", "8"), to(job.Accumulation, c.share, fmt.Sprint(2*acc))}})
		if err != nil || !strings.HasSuffix(strings.Join(r.Argv, " "), c.want) {
			t.Errorf("%s: %q, %v", c.argv, r.Argv, err)
			continue
		}
		again, err := s.Understand(r.Argv, dir, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if e := again.EffectiveBatch(); e == nil || *e != c.effective {
			t.Errorf("%s: effective batch %v after the cut", c.argv, e)
		}
	}
}

const dsScript = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"

// accelerate reads a config of its own where it is named none: machines and processes,
// and what DeepSpeed is told there.
func TestAccelerateDefaultConfig(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	const ds = "num_machines: 1\nnum_processes: 2\n# kept\ndeepspeed_config:\n  gradient_accumulation_steps: 2\n"
	dir := folder(t, map[string]string{
		"t.py": dsScript, "hf/accelerate/default_config.yaml": ds,
		".cache/huggingface/accelerate/default_config.yaml": "num_machines: 3\nnum_processes: 3\n",
		"x/huggingface/accelerate/default_config.yaml":      "num_machines: 1\nnum_processes: 5\n",
		"own.yaml": "num_processes: 7\n",
	})
	for _, c := range []struct {
		argv         string
		env          []string
		nodes, procs int
	}{
		{"accelerate launch t.py", []string{"HF_HOME=" + dir + "/hf", "HOME=" + dir}, 1, 2},
		{"accelerate launch t.py", []string{"HF_HOME=~/hf", "HOME=" + dir}, 1, 2},
		{"accelerate launch t.py", []string{"XDG_CACHE_HOME=" + dir + "/x", "HOME=" + dir}, 1, 5},
		{"accelerate launch t.py", []string{"HOME=" + dir}, 3, 1},
		{"accelerate launch --num_processes 4 t.py", []string{"HF_HOME=" + dir + "/hf"}, 1, 4},
		{"accelerate launch --config_file own.yaml t.py", []string{"HF_HOME=" + dir + "/hf"}, 0, 7},
		{"accelerate launch --cpu t.py", []string{"HF_HOME=" + dir + "/hf"}, 0, 0},
		{"env HF_HOME=" + dir + "/hf accelerate launch t.py", nil, 1, 2},
		{"docker run -v " + dir + ":/d -w /d img accelerate launch t.py", []string{"HF_HOME=" + dir + "/hf"}, 0, 0},
		{"trl sft --max_length 8", []string{"HOME=" + dir}, 3, 1},
		{"trl sft --num_processes 6", []string{"HF_HOME=" + dir + "/hf"}, 1, 6},
		{"axolotl train c.yml --launcher torchrun", []string{"HOME=" + dir}, 0, 0},
		{"trl env", []string{"HOME=" + dir}, 0, 0},
	} {
		j := understand(t, s, dir, c.argv, c.env...)
		if j.Nodes != c.nodes || j.Procs != c.procs {
			t.Errorf("%s %v: %d machines and %d processes, want %d and %d", c.argv, c.env, j.Nodes, j.Procs, c.nodes, c.procs)
		}
	}
	env := []string{"HF_HOME=" + dir + "/hf"}
	cut := []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "2", "4")}
	j := understand(t, s, dir, "accelerate launch --mixed_precision bf16 t.py --gradient_accumulation_steps 2", env...)
	r, err := s.Rewrite(j, Request{Changes: cut, RunID: "r", Attempt: 2, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "hf/accelerate/.sparkrun-r-a2-default_config.yaml")
	if got, want := strings.Join(r.Argv, " "), "accelerate launch --config_file "+copied+" --mixed_precision bf16 t.py --gradient_accumulation_steps 4 --per_device_train_batch_size 4"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if len(r.Files) != 1 || r.Files[0].Path != copied || string(r.Files[0].Content) != strings.Replace(ds, "steps: 2", "steps: 4", 1) {
		t.Errorf("%+v", r.Files)
	}
	// The trainer's own launcher reads the same file, and no copy can be named.
	j = understand(t, s, dir, "trl sft --gradient_accumulation_steps 2", env...)
	if _, err := s.Rewrite(j, Request{Changes: cut, RunID: "r", Attempt: 2, Env: env}); err == nil || !strings.Contains(err.Error(), "default_config.yaml:5") {
		t.Errorf("%v", err)
	}
}

// A DeepSpeed file that the launcher names must agree with the trainer's numbers too.
func TestDeepSpeedFileOfTheLauncher(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	const numbers = `{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 2}}`
	dir := folder(t, map[string]string{
		"t.py": dsScript, "ds.json": numbers, "auto.json": `{"train_micro_batch_size_per_gpu": "auto"}`,
		"acc.yaml":  "num_processes: 1\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n",
		"acc2.yaml": "num_processes: 1\ndeepspeed_config:\n  deepspeed_config_file: auto.json\n",
	})
	cut := []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "1", "2")}
	for argv, want := range map[string]struct{ argv, files string }{
		"accelerate launch --use_deepspeed --deepspeed_config_file ds.json t.py": {"accelerate launch --use_deepspeed --deepspeed_config_file .sparkrun-r-a2-ds.json t.py", "ds.json"},
		"accelerate launch --config_file acc.yaml t.py":                          {"accelerate launch --config_file .sparkrun-r-a2-acc.yaml t.py", "acc.yaml ds.json"},
		"accelerate launch --config_file acc2.yaml t.py":                         {"accelerate launch --config_file acc2.yaml t.py", ""},
	} {
		r, err := s.Rewrite(understand(t, s, dir, argv), Request{Changes: cut, RunID: "r", Attempt: 2})
		if err != nil {
			t.Errorf("%s: %v", argv, err)
			continue
		}
		if got := strings.Join(r.Argv, " "); !strings.HasPrefix(got, want.argv+" ") {
			t.Errorf("%s: %s", argv, got)
		}
		var files []string
		for _, f := range r.Files {
			files = append(files, filepath.Base(f.Original))
			if base := filepath.Base(f.Original); base == "ds.json" && string(f.Content) != `{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}` {
				t.Errorf("%s: %s", argv, f.Content)
			} else if base == "acc.yaml" && !strings.Contains(string(f.Content), `deepspeed_config_file: ".sparkrun-r-a2-ds.json"`) {
				t.Errorf("%s: %s", argv, f.Content)
			}
		}
		for _, f := range strings.Fields(want.files) {
			if !strings.Contains(strings.Join(files, " "), f) {
				t.Errorf("%s: no copy of %s among %v", argv, f, files)
			}
		}
		if want.files == "" && len(files) > 0 {
			t.Errorf("%s: %v", argv, files)
		}
	}
}

// What a config puts into the environment counts for machines and processes, unless it
// is there already.
func TestEnvironmentFromTheConfig(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	const swift = "per_device_train_batch_size: 4\nENV:\n  NPROC_PER_NODE: 2\n"
	dir := folder(t, map[string]string{
		"s.yaml": swift, "n.yaml": "ENV: {NNODES: 2}\n", "t.yaml": "env:\n  NNODES: \"2\"\nmax_length: 8\n", "lf.yaml": "stage: sft\n",
		"env/lib/python3.11/site-packages/trl/accelerate_configs/zero2.yaml": "num_processes: 8\nnum_machines: 1\n",
	})
	python := filepath.Join(dir, "env/bin")
	if err := os.MkdirAll(python, 0o750); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"python": "\x7fELF", "trl": "#!" + python + "/python\n"} {
		if err := newprog.Write(filepath.Join(python, name), []byte(text)); err != nil { //nolint:gosec // a program of the test
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		argv         string
		env          []string
		nodes, procs int
		acc          string
	}{
		{"swift sft s.yaml", nil, 0, 2, "2"},
		{"swift sft s.yaml", []string{"NPROC_PER_NODE=4"}, 0, 4, "1"},
		{"docker run -v " + dir + ":/d -w /d img swift sft s.yaml", nil, 0, 2, "2"},
		{"swift sft n.yaml", nil, 2, 0, "8"},
		{"trl sft --config t.yaml", nil, 2, 0, "1"},
		{"llamafactory-cli train lf.yaml", []string{"NPROC_PER_NODE=2"}, 0, 1, "1"},
		{"llamafactory-cli train lf.yaml", []string{"NPROC_PER_NODE=2", "FORCE_TORCHRUN=1"}, 0, 2, "1"},
		{"trl sft --accelerate_config zero2", []string{"PATH=" + python}, 1, 8, "1"},
		{"trl sft --accelerate_config fsdp1", []string{"PATH=" + python}, 0, 0, "1"},
		{"swift rlhf --rlhf_type grpo", nil, 0, 0, "1"},
		{"swift rlhf --rlhf_type dpo", nil, 0, 0, "16"},
	} {
		j := understand(t, s, dir, c.argv, c.env...)
		if j.Nodes != c.nodes || j.Procs != c.procs || j.Knobs[job.Accumulation].Value != c.acc {
			t.Errorf("%s %v: %d machines, %d processes, accumulation %q; want %d, %d, %q", c.argv, c.env, j.Nodes, j.Procs, j.Knobs[job.Accumulation].Value, c.nodes, c.procs, c.acc)
		}
	}
}

func itoa(n int64) string { return fmt.Sprint(n) }
