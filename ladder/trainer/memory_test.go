package trainer

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

func understoodIn(t *testing.T, files map[string]string, argv string) job.Job {
	t.Helper()
	j, err := profiles(t).Understand(strings.Fields(argv), folder(t, files), []string{"PATH=/nowhere"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

const (
	hfModel = "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\nmodel = AutoModelForCausalLM.from_pretrained('some/Thing-8B')\n"
	hfArgs  = "args = TrainingArguments(output_dir='o', per_device_train_batch_size=4)\nTrainer(model=model, args=args).train()\n"
)

// A script without an adapter trains all weights; where it may have one that is not
// understood, or loads the model elsewhere, nothing is told.
func TestMethodOfScripts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"Trainer":              {hfModel + hfArgs, "full"},
		"SFTTrainer":           {"from trl import SFTTrainer, SFTConfig\nSFTTrainer(model='some/Thing-8B', args=SFTConfig(output_dir='o')).train()\n", "full"},
		"SFTTrainer, adapter":  {"from trl import SFTTrainer, SFTConfig\nSFTTrainer(model='some/Thing-8B', peft_config=LoraConfig(r=8), args=SFTConfig(output_dir='o')).train()\n", "lora"},
		"get_peft_model":       {hfModel + "model = get_peft_model(model, cfg)\n" + hfArgs, "lora"},
		"4 bit":                {"from peft import LoraConfig\nbnb = BitsAndBytesConfig(load_in_4bit=True)\n" + hfModel + hfArgs, "qlora"},
		"some other adapter":   {hfModel + "import adapters\nadapters.init(model)\n" + hfArgs, ""},
		"held weights":         {hfModel + "for p in model.model.parameters(): p.requires_grad = False\n" + hfArgs, ""},
		"loaded elsewhere":     {"from mine import model\nfrom transformers import Trainer, TrainingArguments\n" + hfArgs, ""},
		"a loop of one's own":  {"from accelerate import Accelerator\nmodel = AutoModelForCausalLM.from_pretrained('some/Thing-8B')\na = Accelerator()\ndl = DataLoader(ds, batch_size=4)\n", "full"},
		"a loop with adapters": {"import peft\nfrom accelerate import Accelerator\nmodel = AutoModelForCausalLM.from_pretrained('some/Thing-8B')\na = Accelerator()\ndl = DataLoader(ds, batch_size=4)\n", ""},
	} {
		j := understoodIn(t, map[string]string{"t.py": c.text}, "python t.py")
		if got := j.Knobs[job.Method]; got.Value != c.want {
			t.Errorf("%s: %+v, profile %s", name, got, j.Profile)
		}
	}
}

// What another statement of the script decides holds over the default of a call.
func TestOtherStatementsDecide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want, where string }{
		"the default":                    {hfModel + hfArgs, "false", "default of the call"},
		"prepared for k bits":            {hfModel + "model = prepare_model_for_kbit_training(model)\n" + hfArgs, "true", "t.py:3"},
		"prepared, and switched off":     {hfModel + "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)\n" + hfArgs, "false", "default of the call"},
		"the model was told":             {hfModel + "model.gradient_checkpointing_enable()\n" + hfArgs, "true", "t.py:3"},
		"in a comment only":              {hfModel + "# model.gradient_checkpointing_enable()\n" + hfArgs, "false", "default of the call"},
		"told although the arguments no": {hfModel + "model.gradient_checkpointing_enable()\n" + strings.Replace(hfArgs, "output_dir", "gradient_checkpointing=False, output_dir", 1), "true", "t.py:3"},
		"an attribute":                   {hfModel + strings.Replace(hfArgs, "\nTrainer", "\nargs.gradient_checkpointing = True\nTrainer", 1), "true", "t.py:4"},
		"an attribute of another":        {hfModel + strings.Replace(hfArgs, "\nTrainer", "\nmodel.config.gradient_checkpointing = True\nTrainer", 1), "false", "default of the call"},
		"of the trainer's own arguments": {hfModel + strings.Replace(hfArgs, "\nTrainer", "\nt = Trainer(model=model, args=args)\nt.args.gradient_checkpointing = True\nTrainer", 1), "true", "t.py:5"},
		"compared, not set":              {hfModel + strings.Replace(hfArgs, "\nTrainer", "\nif args.gradient_checkpointing == True: pass\nTrainer", 1), "false", "default of the call"},
	} {
		j := understoodIn(t, map[string]string{"t.py": c.text}, "python t.py")
		if got := j.Knobs[job.GradCkpt]; got.Value != c.want || !strings.Contains(got.Where, c.where) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// The shim changes the call, which this would undo: neither value is certain.
	j := understoodIn(t, map[string]string{"t.py": hfModel + strings.Replace(hfArgs, "\nTrainer", "\nargs.per_device_train_batch_size = 16\nTrainer", 1)}, "python t.py")
	if got, known := j.Knobs[job.MicroBatch]; known || !strings.Contains(j.Unclear[job.MicroBatch], "t.py:4 sets it once more") {
		t.Errorf("%+v, %q", got, j.Unclear)
	}
}

// What is trained for is told by subcommand, module, recipe, setting or class, and never
// by the name of a data set or folder.
func TestObjective(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"sft.yaml":  "model_name_or_path: a/b-8B\nstage: sft\ndataset: dpo_mix\noutput_dir: saves/grpo\n",
		"dpo.yaml":  "model_name_or_path: a/b-8B\nstage: dpo\noutput_dir: saves/sft\n",
		"rm.yaml":   "model_name_or_path: a/b-8B\nstage: rm\noutput_dir: saves\n",
		"ax.yml":    "base_model: a/b-8B\noutput_dir: ./dpo\n",
		"axdpo.yml": "base_model: a/b-8B\nrl: dpo\n",
		"t.py":      "from trl import GRPOTrainer, GRPOConfig\nfrom transformers import TrainingArguments\nGRPOTrainer(model='a/b-8B', args=GRPOConfig(output_dir='o')).train()\n",
		"two.py":    "from trl import SFTTrainer, SFTConfig, DPOTrainer, DPOConfig\nSFTTrainer(model='a/b-8B', args=SFTConfig(output_dir='o')).train()\nDPOTrainer(model='o', args=DPOConfig(output_dir='p')).train()\n",
		"train.py":  "import argparse\n", "train_dpo.py": "import argparse\n",
	}
	for argv, want := range map[string]string{
		"trl sft --model_name_or_path a/b-8B --dataset_name argilla/dpo-mix-7k --output_dir out/qwen-grpo --run_name sft-before-dpo": "sft",
		"trl dpo --model_name_or_path a/b-8B":                                         "dpo",
		"trl grpo --model_name_or_path a/b-8B":                                        "grpo",
		"trl rloo --model_name_or_path a/b-8B":                                        "rloo",
		"trl reward --model_name_or_path a/b-8B":                                      "reward",
		"python -m trl.scripts.kto --model_name_or_path a/b-8B":                       "kto",
		"python -m openrlhf.cli.train_dpo --pretrain a/b-8B":                          "dpo",
		"llamafactory-cli train sft.yaml":                                             "sft",
		"llamafactory-cli train dpo.yaml":                                             "dpo",
		"llamafactory-cli train rm.yaml":                                              "rm",
		"axolotl train ax.yml":                                                        "",
		"axolotl train axdpo.yml":                                                     "dpo",
		"swift rlhf --rlhf_type grpo --model a/b-8B":                                  "grpo",
		"swift rlhf --model a/b-8B":                                                   "dpo",
		"swift sft --model a/b-8B --dataset dpo":                                      "",
		"tune run lora_dpo_single_device --config llama3_1/8B_lora_dpo_single_device": "dpo",
		"python t.py":                        "grpo",
		"python two.py":                      "dpo",
		"python train_dpo.py --batch_size 4": "dpo",
		"python train.py --batch_size 4 --output_dir dpo --prompt dpo": "",
		"dpo-wrapper python train.py --batch_size 4":                   "",
	} {
		if j := understoodIn(t, files, argv); j.Objective != want {
			t.Errorf("%s: %q, want %q (%s)", argv, j.Objective, want, j.Profile)
		}
	}
}

// The model is found wherever a trainer takes it.
func TestModelIsFound(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"us.py":   "from unsloth import FastLanguageModel\nm, t = FastLanguageModel.from_pretrained('a/b-8B', max_seq_length=2048)\n",
		"tt.toml": "[model]\nname = \"llama3\"\nhf_assets_path = \"a/b-8B\"\n",
	}
	for _, argv := range []string{
		"trl grpo --model_name_or_path a/b-8B", "trl rloo --model_name_or_path a/b-8B", "python us.py",
		"litgpt finetune_lora a/b-8B --train.micro_batch_size 4", "litgpt finetune_lora --checkpoint_dir a/b-8B",
		"python -m torchtitan.train --job.config_file tt.toml",
	} {
		if j := understoodIn(t, files, argv); j.Knobs[job.Model].Value != "a/b-8B" {
			t.Errorf("%s: %+v (%s)", argv, j.Knobs[job.Model], j.Profile)
		}
	}
	if j := understoodIn(t, files, "litgpt finetune_lora --train.micro_batch_size 4"); j.Knobs[job.Model].Value != "" {
		t.Errorf("%+v", j.Knobs[job.Model])
	}
}

// What only the memory depends on.
func TestMemorySettings(t *testing.T) {
	t.Parallel()
	lf := func(text string) map[string]string {
		return map[string]string{"c.yaml": "model_name_or_path: a/b-8B\nstage: sft\n" + text}
	}
	installed := func(version string) map[string]string {
		return map[string]string{
			"env/bin/python": "", "env/pyvenv.cfg": "home = /usr/bin\n",
			"env/lib/python3.12/site-packages/trl-" + version + ".dist-info/METADATA": "Name: trl\nVersion: " + version + "\n",
			"t.py": "from trl import SFTTrainer, SFTConfig\nSFTTrainer(model='a/b-8B', args=SFTConfig(output_dir='o')).train()\n",
			"h.py": hfModel + hfArgs, "typed.py": hfModel + hfArgs + "model = model.to(torch.bfloat16)\n",
		}
	}
	with := func(files map[string]string, name, version string) map[string]string {
		files["env/lib/python3.12/site-packages/"+name+"-"+version+".dist-info/METADATA"] = "Name: " + name + "\nVersion: " + version + "\n"
		return files
	}
	for _, c := range []struct {
		files map[string]string
		argv  string
		want  map[string]string // "" is not told
	}{
		{lf("finetuning_type: full\n"), "llamafactory-cli train c.yaml", map[string]string{"master_weights": "true", "trained_layers": "", "block_wise": "false", "optimizer_kind": "", "fused_loss": "false"}},
		{lf("finetuning_type: full\npure_bf16: true\nenable_liger_kernel: true\n"), "llamafactory-cli train c.yaml", map[string]string{"master_weights": "false", "fused_loss": "true"}},
		{lf("finetuning_type: freeze\n"), "llamafactory-cli train c.yaml", map[string]string{"master_weights": "true", "trained_layers": "2"}},
		{lf("finetuning_type: freeze\nfreeze_trainable_layers: 4\n"), "llamafactory-cli train c.yaml", map[string]string{"trained_layers": "4"}},
		{lf("finetuning_type: full\nuse_galore: true\n"), "llamafactory-cli train c.yaml", map[string]string{"optimizer_kind": "galore"}},
		{lf("finetuning_type: full\nuse_apollo: true\n"), "llamafactory-cli train c.yaml", map[string]string{"optimizer_kind": "apollo"}},
		{lf("finetuning_type: full\nuse_badam: true\n"), "llamafactory-cli train c.yaml", map[string]string{"block_wise": "true", "master_weights": "false"}},
		{lf("finetuning_type: lora\nquantization_bit: 8\n"), "llamafactory-cli train c.yaml", map[string]string{"quantization_bit": "8"}},
		{lf("finetuning_type: lora\ndeepspeed: z3.json\n"), "llamafactory-cli train c.yaml", map[string]string{"deepspeed": "z3.json"}},
		{nil, "trl sft --model_name_or_path a/b-8B", map[string]string{"fused_loss": "perhaps", "deepspeed": ""}},
		{nil, "trl sft --model_name_or_path a/b-8B --use_liger_kernel", map[string]string{"fused_loss": "true"}},
		{installed("1.6.0"), "env/bin/python -m trl.scripts.sft --model_name_or_path a/b-8B", map[string]string{"fused_loss": "false"}},
		{installed("1.9.0"), "env/bin/python -m trl.scripts.sft --model_name_or_path a/b-8B", map[string]string{"fused_loss": "true"}},
		{installed("1.9.0"), "env/bin/python -m trl.scripts.sft --model_name_or_path a/b-8B --loss_type nll", map[string]string{"fused_loss": "false"}},
		{installed("1.9.0"), "env/bin/python -m trl.scripts.dpo --model_name_or_path a/b-8B", map[string]string{"fused_loss": "false"}},
		{installed("1.16.0"), "env/bin/python -m trl.scripts.dpo --model_name_or_path a/b-8B", map[string]string{"fused_loss": "true"}},
		{installed("1.16.0"), "env/bin/python t.py", map[string]string{"fused_loss": "true"}},
		{installed("0.24.0"), "env/bin/python t.py", map[string]string{"fused_loss": "false"}},
		{installed("1.16.0"), "env/bin/python h.py", map[string]string{"fused_loss": ""}},
		// The type that weights are loaded in where none is told.
		{nil, "trl sft --model_name_or_path a/b-8B", map[string]string{"load_dtype": "perhaps"}},
		{installed("1.16.0"), "env/bin/python -m trl.scripts.sft --model_name_or_path a/b-8B", map[string]string{"load_dtype": "float32"}},
		{installed("0.29.1"), "env/bin/python t.py", map[string]string{"load_dtype": "float32"}},
		{with(installed("0.24.0"), "transformers", "5.6.0"), "env/bin/python -m trl.scripts.sft --model_name_or_path a/b-8B", map[string]string{"load_dtype": "auto"}},
		{with(installed("0.24.0"), "transformers", "4.56.2"), "env/bin/python -m trl.scripts.sft --model_name_or_path a/b-8B", map[string]string{"load_dtype": "float32"}},
		{with(installed("1.16.0"), "transformers", "5.24.0"), "env/bin/python h.py", map[string]string{"load_dtype": "auto"}},
		{with(installed("0.24.0"), "transformers", "4.56.2"), "env/bin/python h.py", map[string]string{"load_dtype": "float32"}},
		{installed("0.24.0"), "env/bin/python h.py", map[string]string{"load_dtype": "perhaps"}},
		{with(installed("0.24.0"), "transformers", "4.56.2"), "env/bin/python typed.py", map[string]string{"load_dtype": "told"}},
		{lf("finetuning_type: lora\n"), "llamafactory-cli train c.yaml", map[string]string{"load_dtype": ""}},
	} {
		j := understoodIn(t, c.files, c.argv)
		for _, k := range slices.Sorted(maps.Keys(c.want)) {
			if got := j.Memory[job.Knob(k)].Value; got != c.want[k] {
				t.Errorf("%s %q: %s = %q, want %q (%s)", c.argv, c.files["c.yaml"], k, got, c.want[k], j.Profile)
			}
		}
	}
}

// Rules that could never hold are refused.
func TestMemoryRulesAreChecked(t *testing.T) {
	t.Parallel()
	head := "name: x\nrecognise: {programs: [x]}\nfamily: per-device\nparser: {style: hf}\nknobs:\n"
	for text, want := range map[string]string{
		"  grad_checkpoint: {names: [g], kind: bool, set_by: [{call: f}]}\n":                     "set_by needs a call and a value",
		"  grad_checkpoint: {names: [g], kind: bool, set_by: [{call: f, value: perhaps}]}\n":     "set_by needs a call and a value",
		"  seq_len: {names: [g], kind: int, positional: true}\n":                                 "a bare word is of kind str",
		"  fused_loss: {kind: bool, defaults: [{since: \"1\", value: \"true\"}]}\n":              "since needs the package",
		"  fused_loss: {kind: bool, defaults: [{value: \"true\"}]}\n":                            "empty condition",
		"  fused_loss: {kind: bool, defaults: [{since: \"1\", package: trl, value: perhaps}]}\n": "defaults:",
	} {
		_, problems := parseProfile("x.yaml", []byte(head+text))
		found := false
		for _, p := range problems {
			found = found || strings.Contains(p.Error(), want)
		}
		if !found {
			t.Errorf("%s: %v", text, problems)
		}
	}
	if _, problems := parseProfile("x.yaml", []byte(head+"  fused_loss: {kind: bool, defaults: [{since: \"1\", package: trl, value: \"true\"}]}\n")); len(problems) > 0 {
		t.Error(problems)
	}
}

// A count of 0 or less is no setting, and that the default stands in its place is said.
func TestCountThatIsNone(t *testing.T) {
	t.Parallel()
	files := map[string]string{"c.yaml": "model_name_or_path: a/b-8B\nstage: sft\nper_device_train_batch_size: -4\ncutoff_len: 2048\nmax_steps: -1\n"}
	for _, c := range []struct {
		argv        string
		knob        job.Knob
		value, want string
	}{
		{"llamafactory-cli train c.yaml", job.MicroBatch, "8", "; c.yaml:3 per_device_train_batch_size -4 is taken for not set"},
		{"llamafactory-cli train c.yaml", job.SeqLen, "2048", ""},
		{"trl sft --model_name_or_path a/b-8B --max_length 0", job.SeqLen, "1024", "; --max_length 0 is taken for not set"},
		{"trl sft --model_name_or_path a/b-8B --max_steps -1", job.SeqLen, "1024", ""},
	} {
		set := understoodIn(t, files, c.argv).Knobs[c.knob]
		if set.Value != c.value || !strings.HasSuffix(set.Where, c.want) || c.want == "" && strings.Contains(set.Where, "taken for not set") {
			t.Errorf("%s: %+v, want %s%s", c.argv, set, c.value, c.want)
		}
	}
}
