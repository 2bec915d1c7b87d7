package trainer

import (
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// What becomes of longer rows is said by the profile, and a length whose cut loses rows
// is not turned.
func TestLongRows(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"reward.py": "from trl import RewardConfig, RewardTrainer\nRewardConfig(max_length=2048, per_device_train_batch_size=4)\n",
		"kto.py":    "from trl import KTOConfig\nKTOConfig(max_length=2048, per_device_train_batch_size=4)\n",
		"cli.py":    "from trl import RewardConfig, ModelConfig, TrlParser\nTrlParser((RewardConfig, ModelConfig))\n",
		"a.yml":     "micro_batch_size: 1\ngradient_accumulation_steps: 1\n",
		"own.py":    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--max_length', type=int, default=2048)\np.add_argument('--batch_size', type=int, default=4)\n",
	})
	for argv, want := range map[string]struct {
		rows  string
		fixed bool
	}{
		"trl reward --max_length 2048":        {"are cut", true},
		"python -m trl.scripts.reward":        {"are cut", true},
		"python cli.py --max_length 2048":     {"are cut", true},
		"python reward.py":                    {"", true},
		"trl kto --max_length 2048":           {"are cut, and dropped where the prompt alone is longer", false},
		"python kto.py":                       {"are cut, and dropped where the prompt alone is longer", false},
		"trl sft --max_length 2048":           {"are cut", false},
		"trl sft --max_length 2048 --packing": {"are cut, or go on in the next pack (packing_strategy wrapped)", false},
		"axolotl train a.yml":                 {"are cut", false},
		"python own.py":                       {"", false},
	} {
		j := understand(t, s, dir, argv)
		_, fixed := s.Fixed(j)[job.SeqLen]
		if j.LongRows != want.rows || fixed != want.fixed || j.Knobs[job.SeqLen].Value == "" {
			t.Errorf("%s: %q, fixed %v; want %+v (%s)", argv, j.LongRows, s.Fixed(j), want, j.Profile)
		}
	}
}

// KTO compares the rows of a micro-batch: it must have two.
func TestSmallestMicroBatch(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"kto.py": "from trl import KTOConfig\nKTOConfig(max_length=2048, per_device_train_batch_size=4)\n",
		"a.yml":  "rl: kto\nmicro_batch_size: 4\ngradient_accumulation_steps: 1\n", "l.yaml": "stage: kto\nper_device_train_batch_size: 4\n",
	})
	for argv, least := range map[string]int64{
		"trl kto --per_device_train_batch_size 4": 2,
		"trl sft --per_device_train_batch_size 4": 0,
		"python kto.py": 2,
		"swift rlhf --rlhf_type kto --per_device_train_batch_size 4": 2,
		"swift rlhf --rlhf_type dpo --per_device_train_batch_size 4": 0,
		"axolotl train a.yml":                                         2,
		"llamafactory-cli train l.yaml":                               2,
		"python -m openrlhf.cli.train_kto --micro_train_batch_size 4": 2,
		"python -m openrlhf.cli.train_sft --micro_train_batch_size 4": 0,
	} {
		j := understand(t, s, dir, argv)
		set := j.Knobs[job.MicroBatch]
		if set.Value != "4" || set.Min != least || (set.MinWhy == "") != (least == 0) {
			t.Errorf("%s: %+v, want at least %d", argv, set, least)
		}
		for _, v := range []string{"2", "1"} {
			change := []Change{to(job.MicroBatch, "4", v)}
			if acc, ok := j.Knobs[job.Accumulation]; ok {
				n, err := parseInt(acc.Value)
				if err != nil {
					t.Fatal(err)
				}
				change = append(change, to(job.Accumulation, acc.Value, map[string]string{"2": itoa(2 * n), "1": itoa(4 * n)}[v]))
			}
			_, err := s.Rewrite(j, Request{Changes: change, RunID: "r", Attempt: 2, AttemptDir: dir + "/a"})
			if refused := err != nil; refused != (v == "1" && least == 2) {
				t.Errorf("%s to %s: %v", argv, v, err)
			}
		}
	}
}

// A loss over the rows of a micro-batch, and scripts that shrink their batch, are seen
// whatever profile the script has.
func TestWordsOfAnyScript(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	const plain = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch_size', type=int, default=8)\np.add_argument('--grad_accum', type=int, default=1)\n"
	scripts := map[string]string{
		"argparse": plain, "hf-trainer": "from transformers import TrainingArguments\nTrainingArguments(per_device_train_batch_size=8)\n",
		"unsloth-script": "from unsloth import FastLanguageModel\nfrom trl import SFTConfig\nSFTConfig(per_device_train_batch_size=8)\n",
		"trl":            "from trl import TrlParser, SFTConfig\nTrlParser((SFTConfig,))\n",
	}
	for name, text := range scripts {
		for line, want := range map[string]struct{ shrinks, fixed bool }{
			"": {false, false},
			"from accelerate.utils import find_executable_batch_size": {true, false},
			"from lightning.pytorch.callbacks import BatchSizeFinder": {true, false},
			"loss = losses.MultipleNegativesRankingLoss(model)":       {false, true},
			"trainer = SentenceTransformerTrainer(model)":             {false, true},
		} {
			dir := folder(t, map[string]string{"t.py": text + line + "\n"})
			j := understand(t, s, dir, "python t.py")
			why := s.Fixed(j)[job.MicroBatch]
			if j.Profile != name || (j.SelfShrinks != "") != want.shrinks || strings.Contains(why, "compares the rows") != want.fixed {
				t.Errorf("%s with %q: %s, shrinks %q, micro-batch fixed %q", name, line, j.Profile, j.SelfShrinks, why)
			}
		}
	}
}

// Where a setting goes: to the flag that the script declares and not into a file of
// another program; below the subcommand's key; into a file named without its end.
func TestWhereSettingsGo(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"ds.py":   "import argparse\np = argparse.ArgumentParser()\np.add_argument('--max_length', type=int, default=4096)\np.add_argument('--deepspeed_config')\n",
		"ds.json": `{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "max_length": 7}`,
		"pl.py":   "from lightning.pytorch.cli import LightningCLI\nLightningCLI(M, D)\n", "fit.yaml": "fit:\n  data:\n    batch_size: 8\n  trainer:\n    accumulate_grad_batches: 2\n",
		"flat.yaml": "data:\n  batch_size: 8\n", "train_network.py": "", "k.toml": "train_batch_size = 8\n",
	})
	for _, c := range []struct {
		argv    string
		changes []Change
		want    string
	}{
		{"python ds.py --deepspeed_config ds.json", []Change{to(job.SeqLen, "4096", "2048")}, "python ds.py --deepspeed_config ds.json --max_length 2048"},
		{"python pl.py --config fit.yaml fit", []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "2", "4")}, "python pl.py --config fit.yaml fit --data.batch_size 4 --trainer.accumulate_grad_batches 4"},
		{"python pl.py fit --config flat.yaml", []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "1", "2")}, "python pl.py fit --config flat.yaml --data.batch_size 4 --trainer.accumulate_grad_batches 2"},
		{"python train_network.py --config_file k", []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "1", "2")}, "python train_network.py --config_file k --train_batch_size 4 --gradient_accumulation_steps 2"},
	} {
		j := understand(t, s, dir, c.argv)
		for _, ch := range c.changes {
			if got := j.Knobs[ch.Knob].Value; got != ch.From {
				t.Errorf("%s: %s is %q, want %q (%q)", c.argv, ch.Knob, got, ch.From, j.Notes)
			}
		}
		r, err := s.Rewrite(j, Request{Changes: c.changes, RunID: "r", Attempt: 2})
		if err != nil || strings.Join(r.Argv, " ") != c.want || len(r.Files) > 0 {
			t.Errorf("%s: %q, %v", c.argv, r.Argv, err)
		}
	}
}

// Why nothing is known is said: the error of the file, where it decides on the profile
// and where it does not, and a value that is set but no number.
func TestReasonsAreCarried(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"run.py": "", "at.yaml": "config:\n\tprocess: 1\n", "bad.yaml": "stage: sft\ncutoff_len: 2048\n\tx: 1\n",
		"hf.py": dsScript, "hf.json": `{"per_device_train_batch_size": 8}`, "m.py": "from transformers import TrainingArguments\n",
	})
	has := func(notes []string, text string) bool { return strings.Contains(strings.Join(notes, "\n"), text) }
	if j := understand(t, s, dir, "python run.py at.yaml"); !has(j.Notes, "at.yaml: line 2") || !has(j.Notes, "ai-toolkit") {
		t.Errorf("%q", j.Notes)
	}
	j := understand(t, s, dir, "llamafactory-cli train bad.yaml")
	if _, why := s.CanTurn(j, job.SeqLen); !has(j.Notes, "bad.yaml: line 2") || !strings.Contains(why, "bad.yaml: line 2") {
		t.Errorf("%q, %q", j.Notes, why)
	}
	j = understand(t, s, dir, "python m.py --per_device_train_batch_size 8 --gradient_accumulation_steps 0x10")
	if j.Unclear[job.Accumulation] == "" || j.Knobs[job.Accumulation].Value != "" {
		t.Errorf("%+v, %+v", j.Unclear, j.Knobs)
	}
	if j := understand(t, s, dir, "python hf.py hf.json"); j.Knobs[job.MicroBatch].Value != "" {
		t.Errorf("a file that the script does not read: %+v", j.Knobs)
	}
}

// A flag that counts a whole step is not taken for the micro-batch where another counts
// that.
func TestBatchBesideAMicroBatch(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"t.py": "import argparse\n", "hf.py": dsScript})
	for argv, want := range map[string]struct{ profile, micro string }{
		"python t.py --train_batch_size 128":                                                     {"argparse", "128"},
		"python t.py --train_batch_size 128 --micro_train_batch_size 8":                          {"argparse", ""},
		"python t.py --train_batch_size 128 --train_micro_batch_size_per_gpu=8":                  {"argparse", ""},
		"python t.py --train_batch_size 128 --micro_batch_size 8":                                {"argparse", ""},
		"python -m openrlhf.cli.train_ppo_ray --micro_train_batch_size 8 --train_batch_size 128": {"openrlhf", "8"},
		"python hf.py --per_gpu_train_batch_size 16":                                             {"hf-trainer", ""},
		"python hf.py": {"hf-trainer", "8"},
		"llamafactory-cli train --per_gpu_train_batch_size 16": {"llama-factory", ""},
		"trl sft --per_gpu_train_batch_size 16":                {"trl", ""},
		"python run_clm.py --per_gpu_train_batch_size=16":      {"hf-examples", ""},
	} {
		j := understand(t, s, dir, argv)
		if got := j.Knobs[job.MicroBatch].Value; j.Profile != want.profile || got != want.micro {
			t.Errorf("%s: %s, micro-batch %q, want %+v", argv, j.Profile, got, want)
		}
	}
}
