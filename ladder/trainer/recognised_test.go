package trainer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkrun/internal/job"
	"sparkrun/internal/newprog"
)

// The config file is found wherever it stands among the options, and where none is
// found no default is believed.
func TestConfigAmongOptions(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"lora.yml": "adapter: qlora\nload_in_4bit: true\nmicro_batch_size: 8\ngradient_accumulation_steps: 2\n", "b.yml": "micro_batch_size: 1\n",
		"run.py": "", "config/flux.yaml": "config: {process: [{train: {batch_size: 4}}]}\n", "flux.yaml": "config: {process: [{train: {batch_size: 2}}]}\n",
		"ds.json": "{}",
	})
	docker := "docker run -v " + dir + ":/d -w /d img "
	for _, c := range []struct{ argv, micro, acc string }{
		{"axolotl train lora.yml", "8", "2"},
		{"axolotl train --micro-batch-size 4 lora.yml", "4", "2"},
		{"axolotl train --micro-batch-size=4 lora.yml", "4", "2"},
		{"axolotl train --launcher torchrun lora.yml", "8", "2"},
		{"axolotl train --debug lora.yml", "8", "2"},
		{"axolotl train --no-sample-packing lora.yml", "8", "2"},
		{"axolotl train --sequence-len 4096 lora.yml", "8", "2"},
		{"axolotl train --deepspeed ds.json lora.yml", "8", "2"},
		{"axolotl train -- lora.yml", "8", "2"},
		{"axolotl train lora.yml -- --num_processes 2", "8", "2"},
		{docker + "axolotl train --debug lora.yml", "8", "2"},
		{"accelerate launch -m axolotl.cli.train --micro_batch_size=4 lora.yml", "4", "2"},
		{"accelerate launch -m axolotl.cli.train lora.yml --micro_batch_size=4", "4", "2"},
		{"axolotl train", "", ""},
		{"axolotl train --micro-batch-size 4", "4", ""},
		{"axolotl train --what b.yml lora.yml", "", ""},
		{"axolotl train gone.yml", "", ""},
		{"python run.py flux", "4", "1"},
		{"python run.py -r flux", "4", "1"},
		{"python run.py -n x flux", "4", "1"},
		{"python run.py --name x -r flux", "4", "1"},
		{"python run.py flux.yaml", "2", "1"},
		{"python run.py flux flux.yaml", "", ""},
		{"tune run lora_finetune_single_device batch_size=4", "4", ""},
	} {
		j := understand(t, s, dir, c.argv)
		if j.Profile == "" || j.Knobs[job.MicroBatch].Value != c.micro || j.Knobs[job.Accumulation].Value != c.acc {
			t.Errorf("%s: %s, micro-batch %q and accumulation %q, want %q and %q (%q)", c.argv, j.Profile, j.Knobs[job.MicroBatch].Value, j.Knobs[job.Accumulation].Value, c.micro, c.acc, j.Notes)
		}
	}
	j := understand(t, s, dir, "axolotl train --micro-batch-size 8 lora.yml")
	r, err := s.Rewrite(j, Request{Changes: []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "2", "4")}})
	if want := "axolotl train --micro-batch-size 4 lora.yml --gradient-accumulation-steps 4"; err != nil || strings.Join(r.Argv, " ") != want {
		t.Errorf("%q, %v", r.Argv, err)
	}
	// The copy of a file found by name is typed so that it is found again.
	j = understand(t, s, dir, "python run.py -r flux")
	r, err = s.Rewrite(j, Request{Changes: []Change{to(job.MicroBatch, "4", "2"), to(job.Accumulation, "1", "2")}, RunID: "r", Attempt: 2})
	if want := "python run.py -r config/.sparkrun-r-a2-flux.yaml"; err != nil || strings.Join(r.Argv, " ") != want || r.Files[0].Path != filepath.Join(dir, "config/.sparkrun-r-a2-flux.yaml") {
		t.Errorf("%q %v, %v", r.Argv, r.Files, err)
	}
}

// Flags with which the command is another thing than one training.
func TestLeftAlone(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"a.yml": "micro_batch_size: 8\ngradient_accumulation_steps: 2\n"})
	for argv, alone := range map[string]bool{
		"axolotl train a.yml --sweep s.yml": true, "axolotl train --cloud=c.yml a.yml": true, "axolotl train a.yml -- --sweep x": false, "axolotl train a.yml": false,
	} {
		j := understand(t, s, dir, argv)
		_, err := s.Rewrite(j, Request{Changes: []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "2", "4")}})
		if (j.Unsure != "") != alone || (err != nil) != alone {
			t.Errorf("%s: %q, %v", argv, j.Unsure, err)
		}
	}
}

// The name of a config that comes with torchtune, a word for the component and the
// recipe tell the method though the config is not at hand.
func TestMethodOfTorchtune(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"my_full.yaml": "model:\n  _component_: torchtune.models.llama3_1.lora_llama3_1_8b\nbatch_size: 2\n",
	})
	for argv, want := range map[string]string{
		"lora_finetune_single_device --config llama3_2/3B_lora_single_device":   "lora",
		"lora_finetune_distributed --config llama3_1/8B_lora":                   "lora",
		"lora_finetune_single_device --config llama3_1/8B_qlora_single_device":  "qlora",
		"lora_finetune_single_device --config llama3/8B_dora":                   "lora",
		"lora_finetune_single_device --config llama3/8B_qdora_single_device":    "qlora",
		"full_finetune_single_device --config llama3_1/8B_full_single_device":   "full",
		"full_finetune_distributed --config=mine":                               "full",
		"lora_finetune_single_device --config mine":                             "",
		"ppo_full_finetune_single_device --config mistral/7B_full_ppo_low_mem":  "full",
		"lora_finetune_single_device --config my_full.yaml":                     "lora",
		"lora_finetune_single_device --config a_qlora_x model=m.lora_llama3_8b": "lora",
		"lora_finetune_single_device --config my_full.yaml model=m.qlora_x_8b":  "qlora",
	} {
		if got := understand(t, s, dir, "tune run "+argv).Knobs[job.Method].Value; got != want {
			t.Errorf("%s: method %q, want %q", argv, got, want)
		}
	}
	// For others a config that cannot be read may say the contrary of what is typed.
	for _, argv := range []string{"trl sft --config gone.yaml --use_peft", "llamafactory-cli train gone.yaml finetuning_type=lora", "axolotl train gone.yml --adapter lora"} {
		if got := understand(t, s, dir, argv).Knobs[job.Method].Value; got != "" {
			t.Errorf("%s: method %q", argv, got)
		}
	}
}

// Numbers of 0 and less say "not set", wherever they stand.
func TestCountsThatAreNotSet(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	const head = "import argparse\np = argparse.ArgumentParser()\n"
	dir := folder(t, map[string]string{
		"scripts/base_train.py": head + "p.add_argument('--device-batch-size', type=int, default=32)\np.add_argument('--resume-from-step', type=int, default=-1)\n" +
			"p.add_argument('--save-every', type=int, default=-1)\np.add_argument('--num-iterations', type=int, default=0)\np.add_argument('--max-seq-len', type=int, default=-1)\n",
		"const.py": "from trl import SFTConfig\nSFTConfig(max_steps=-1, save_steps=0, max_length=0, per_device_train_batch_size=4)\n",
		"u.yaml":   "training: {max_steps: 0, save_steps: -1}\n",
	})
	for argv, knobs := range map[string][]job.Knob{
		"python -m scripts.base_train":                       {job.ResumeFrom, job.SaveSteps, job.MaxSteps, job.SeqLen},
		"python scripts/base_train.py --resume-from-step -1": {job.ResumeFrom, job.SaveSteps},
		"python const.py":                                    {job.MaxSteps, job.SaveSteps, job.SeqLen},
		"unsloth train -c u.yaml":                            {job.MaxSteps, job.SaveSteps},
	} {
		j := understand(t, s, dir, argv)
		if j.Knobs[job.MicroBatch].Value == "" {
			t.Errorf("%s: %+v", argv, j.Knobs)
		}
		for _, k := range knobs {
			if set, known := j.Knobs[k]; known {
				t.Errorf("%s: %s is %+v", argv, k, set)
			}
		}
	}
	if got := understand(t, s, dir, "python -m scripts.base_train --resume-from-step 120").Knobs[job.ResumeFrom].Value; got != "120" {
		t.Errorf("a step that is typed: %q", got)
	}
}

// One setting that makes another not know its value, and effective batches of verl.
func TestBatchesOfVerl(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := t.TempDir()
	for argv, want := range map[string]struct {
		micro     string
		effective int64
	}{
		"verl.trainer.fsdp_sft_trainer data.micro_batch_size=8":                                                                         {"", 256},
		"verl.trainer.fsdp_sft_trainer data.micro_batch_size=null data.micro_batch_size_per_gpu=2":                                      {"2", 256},
		"verl.trainer.fsdp_sft_trainer data.train_batch_size=64":                                                                        {"4", 64},
		"verl.trainer.main_ppo data.train_batch_size=1024 actor_rollout_ref.actor.ppo_mini_batch_size=128":                              {"", 128},
		"verl.trainer.main_ppo data.train_batch_size=1024 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4":                       {"4", 256},
		"verl.trainer.main_ppo actor_rollout_ref.actor.ppo_mini_batch_size=48 +actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16": {"16", 48},
	} {
		j := understand(t, s, dir, "python -m "+argv)
		eff := j.EffectiveBatch()
		if got := j.Knobs[job.MicroBatch].Value; got != want.micro || eff == nil || *eff != want.effective {
			t.Errorf("%s: micro-batch %q, effective batch %v; want %+v", argv, got, eff, want)
		}
	}
}

// A method that the user tells is never changed where no profile knows how, and that is
// said at the start.
func TestMethodWithoutAProfile(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"t.py": dsScript})
	for _, c := range []struct {
		argv  string
		user  map[string]string
		noted bool
	}{
		{"./train", map[string]string{"method": "qlora"}, true},
		{"./train --m {method}", map[string]string{"method": "qlora"}, true},
		{"./train --q {load_in_4bit}", map[string]string{"method": "qlora", "load_in_4bit": "true"}, false},
		{"python t.py", map[string]string{"method": "full"}, false},
	} {
		j, err := s.Understand(strings.Fields(c.argv), dir, nil, c.user)
		if err != nil {
			t.Fatal(err)
		}
		noted := slices.ContainsFunc(j.Notes, func(n string) bool { return strings.Contains(n, "the method is believed and never changed") })
		fixed := s.Fixed(j)[job.Method]
		if noted != c.noted || c.noted && !strings.Contains(fixed, "no trainer profile fits") {
			t.Errorf("%s: notes %q, fixed %q", c.argv, j.Notes, fixed)
		}
		if c.noted {
			if _, err := s.Rewrite(j, Request{Changes: []Change{to(job.Method, "qlora", "lora")}}); err == nil {
				t.Errorf("%s: the method was changed", c.argv)
			}
		}
	}
}

// TRL's own scripts hand the checkpoint over since some release: the installed one is
// asked; where none is at hand the shim does it.
func TestResumeOfTRL(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"new/lib/python3.11/site-packages/trl/scripts/sft.py": "trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)\n",
		"old/lib/python3.11/site-packages/trl/scripts/sft.py": "trainer.train()\n",
		"out/checkpoint-5/x": "",
	})
	for _, v := range []string{"new", "old"} {
		bin := filepath.Join(dir, v, "bin")
		if err := os.MkdirAll(bin, 0o750); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"python": "\x7fELF", "trl": "#!" + bin + "/python\n"} {
			if err := newprog.Write(filepath.Join(bin, name), []byte(text)); err != nil { //nolint:gosec // a program of the test
				t.Fatal(err)
			}
		}
	}
	cp := filepath.Join(dir, "out/checkpoint-5")
	for _, c := range []struct{ path, argv, how, why string }{
		{"new", "trl sft --max_length 8", "path", ""},
		{"new", "python -m trl.scripts.sft --max_length 8", "path", ""},
		{"old", "trl sft --max_length 8", "never", "does not hand"},
		{"new", "trl reward --max_length 8", "never", "not at hand"},
		{"none", "trl sft --max_length 8", "never", "not at hand"},
	} {
		env := []string{"PATH=" + filepath.Join(dir, c.path, "bin")}
		j := understand(t, s, dir, c.argv, env...)
		if j.Resume.How != c.how || !strings.Contains(j.Resume.Why, c.why) || !s.ResumeByShim(j) {
			t.Errorf("%s with %s: %+v", c.argv, c.path, j.Resume)
		}
		byShim := c.how == "never"
		r, err := s.Rewrite(j, Request{Resume: cp, ShimResume: byShim, AttemptDir: filepath.Join(dir, "a"), RunID: "r", Attempt: 2, Env: env})
		if err != nil || (r.Shim != nil) != byShim || !byShim && !strings.HasSuffix(strings.Join(r.Argv, " "), "--resume_from_checkpoint "+cp) {
			t.Errorf("%s with %s: %q, shim %v, %v", c.argv, c.path, r.Argv, r.Shim != nil, err)
		}
	}
}

// Trainers that take what lies in their folder are told to, and only where that is the
// checkpoint that was chosen.
func TestResumeFromTheFolder(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"ckpt/global_step20/x": "", "ckpt/global_step10/x": "", "ckpt/latest": "global_step20\n", "other/global_step20/x": "", "other/latest": "global_step20",
		"c.yaml": "global_train_batch_size: 8\nsave_folder: out\n", "auto.yaml": "global_train_batch_size: 8\nsave_folder: out\nautoresume: true\n",
		"out/ep0-ba100-rank0.pt": "", "train/train.py": "",
		"gpt.py": "init_from = 'scratch'\nout_dir = 'gpt'\nbatch_size = 4\nblock_size = 1024\ngradient_accumulation_steps = 4\nexec(open('configurator.py').read())\n", "gpt/ckpt.pt": "",
	})
	for _, c := range []struct{ argv, from, want, err string }{
		{"python -m openrlhf.cli.train_sft --ckpt_path ckpt", "ckpt/global_step20", "python -m openrlhf.cli.train_sft --ckpt_path ckpt --load_checkpoint", ""},
		{"python -m openrlhf.cli.train_sft --ckpt.path ckpt", "ckpt/global_step20", "python -m openrlhf.cli.train_sft --ckpt.path ckpt --ckpt.load_enable", ""},
		{"python -m openrlhf.cli.train_sft --ckpt_path ckpt", "ckpt/global_step10", "", `the file latest names ("global_step20")`},
		{"python -m openrlhf.cli.train_sft --ckpt_path ckpt", "other/global_step20", "", "is not in the output folder"},
		{"composer train/train.py c.yaml", "out/ep0-ba100-rank0.pt", "composer train/train.py c.yaml load_path=$DIR/out/ep0-ba100-rank0.pt save_overwrite=True", ""},
		{"composer train/train.py auto.yaml", "out/ep0-ba100-rank0.pt", "", "autoresume"},
		{"python gpt.py", "gpt/ckpt.pt", "python gpt.py --init_from=resume", ""},
		{"python gpt.py", "out/ckpt.pt", "", "is not in the output folder"},
	} {
		j := understand(t, s, dir, c.argv)
		r, err := s.Rewrite(j, Request{Resume: filepath.Join(dir, c.from), RunID: "r", Attempt: 2})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %q, %v, want %q", c.argv, r.Argv, err, c.err)
			}
			continue
		}
		if got := strings.ReplaceAll(strings.Join(r.Argv, " "), dir, "$DIR"); err != nil || got != c.want || j.Resume.How != "path" {
			t.Errorf("%s: %q, %v, %+v", c.argv, got, err, j.Resume)
		}
	}
}
