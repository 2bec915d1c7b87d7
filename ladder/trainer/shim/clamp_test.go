package shim

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
)

// shorter is the plan of a rung on a script that is known.
func shorter() Plan {
	return Plan{Clamps: []Clamp{
		{Knob: job.SeqLen, From: "4096", To: "2048"},
		{Knob: job.MicroBatch, From: "8", To: "4"},
		{Knob: job.Accumulation, From: "1", To: "2"},
	}}
}

// halve is the plan of a rung on a script that is not.
func halve(floor int64) Plan {
	return Plan{Clamps: []Clamp{
		{Knob: job.SeqLen, Halve: 1, Floor: floor},
		{Knob: job.MicroBatch, Halve: 1},
	}}
}

const (
	today = `
from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="o", max_length=4096, per_device_train_batch_size=8)
trainer = SFTTrainer(model="m", args=args)
trainer.train()
print(args.max_length, trainer.cut_at, trainer.made_with, args.train_batch_size)
`
	both = `
from trl import SFTConfig, SFTTrainer
args = SFTConfig(max_seq_length=4096, per_device_train_batch_size=8)
trainer = SFTTrainer(args=args)
print(args.max_length, trainer.cut_at, trainer.made_with)
`
	old = `
from transformers import TrainingArguments
from trl import SFTTrainer
trainer = SFTTrainer("m", TrainingArguments(per_device_train_batch_size=8), max_seq_length=4096, max_prompt_length=3000)
print(trainer.max_seq_length, trainer.max_prompt_length, trainer.made_with)
`
)

func TestClampsEveryShapeOfTRL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, lib, script, want string }{
		{"length in the config", "trl-1", today, "2048 2048 (4, 2) 4"},
		{"both names", "trl-0.17", both, "2048 2048 (4, 2)"},
		{"length in the trainer", "trl-0.9", old, "2048 1500 (4, 2)"},
		{"unsloth in the place of TRL", "trl-1", `
import unsloth
from trl import SFTConfig, SFTTrainer
model, _ = unsloth.FastLanguageModel.from_pretrained("m", max_seq_length=4096)
trainer = SFTTrainer(model=model, args=SFTConfig(max_length=4096, per_device_train_batch_size=8))
print(model.max_seq_length, trainer.cut_at, trainer.made_with, trainer.by_unsloth)
`, "2048 2048 (4, 2) True"},
		{"no length at all", "trl-1", strings.Replace(today, "max_length=4096", "max_length=None", 1), "2048 2048 (4, 2) 4"},
		{"shorter already", "trl-1", strings.Replace(today, "max_length=4096", "max_length=512", 1), "512 512 (4, 2) 4"},
		{"smaller already", "trl-1", strings.Replace(today, "batch_size=8", "batch_size=2", 1), "2048 2048 (2, 1) 2"},
		{"another batch", "trl-1", strings.Replace(today, "batch_size=8", "batch_size=6, gradient_accumulation_steps=3", 1), "2048 2048 (3, 6) 3"},
		{"a prime", "trl-1", strings.Replace(today, "batch_size=8", "batch_size=7", 1), "2048 2048 (1, 7) 1"},
		{"parts of a row", "trl-1", `
from trl import DPOConfig
a = DPOConfig(max_length=4096, max_prompt_length=1024)
print(a.max_length, a.max_prompt_length)
`, "2048 512"},
		{"set afterwards", "trl-1", `
from trl import SFTConfig, SFTTrainer
args = SFTConfig()
args.max_length = 4096
args.per_device_train_batch_size = 16
trainer = SFTTrainer(args=args)
print(trainer.cut_at, trainer.made_with)
`, "2048 (4, 4)"},
		{"only the batch set afterwards", "trl-1", `
from trl import SFTConfig, SFTTrainer
args = SFTConfig(per_device_train_batch_size=8)
args.per_device_train_batch_size = 12
print(SFTTrainer(args=args).made_with)
`, "(4, 3)"},
		{"only the accumulation set afterwards", "trl-1", `
from trl import SFTConfig, SFTTrainer
args = SFTConfig(per_device_train_batch_size=8)
args.gradient_accumulation_steps = 5
print(SFTTrainer(args=args).made_with, SFTTrainer(args=args).made_with)
`, "(4, 10) (4, 10)"},
		{"made from plain arguments", "trl-1", `
from transformers import TrainingArguments
from trl import SFTTrainer
trainer = SFTTrainer(args=TrainingArguments())
print(trainer.cut_at, trainer.made_with)
`, "1024 (4, 2)"},
		{"classes of the script", "trl-1", `
from dataclasses import dataclass
import pickle
from trl import SFTConfig, SFTTrainer
@dataclass
class Mine(SFTConfig):
    more: int = 1
    def __post_init__(self):
        super().__post_init__()
class MyTrainer(SFTTrainer):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
args = pickle.loads(pickle.dumps(Mine(max_length=4096)))
print(MyTrainer(args=args).cut_at, MyTrainer(args=args).made_with, "_sparkrun_shim" in vars(args))
`, "2048 (4, 2) False"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter(), "base", c.lib, "unsloth")
			a.prints(c.want, c.script)
		})
	}
}

func TestRecordOfAClampedTraining(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base", "trl-1")
	rec := a.prints("2048 2048 (4, 2) 4", today)
	saw(t, rec, Seen{Knob: job.SeqLen, Where: "SFTConfig.max_length", Before: "4096", After: "2048"})
	saw(t, rec, Seen{Knob: job.SeqLen, Where: "SFTConfig.max_length", Before: "4096", After: "2048", Final: true})
	saw(t, rec, Seen{Knob: job.MicroBatch, Where: "SFTConfig.per_device_train_batch_size", Before: "8", After: "4", Final: true})
	saw(t, rec, Seen{Knob: job.Accumulation, Where: "SFTConfig.gradient_accumulation_steps", Before: "1", After: "2", Final: true})
	if missing := Applied(a.plan, rec); missing != nil {
		t.Errorf("not applied: %v", missing)
	}
	learned := Learned(rec)
	for knob, want := range map[job.Knob]string{
		job.SeqLen: "4096", job.MicroBatch: "8", job.Accumulation: "1", job.Packing: "false", job.EvalBatch: "8",
		job.Optimizer: "adamw_torch", job.OutputDir: "o", job.Epochs: "3.0", job.SaveSteps: "500", job.GradCkpt: "false",
	} {
		if got := learned[knob]; got.Value != want || got.Source != job.FromScript || got.Where == "" {
			t.Errorf("%s: learned %+v, want %s", knob, got, want)
		}
	}
	if _, ok := learned[job.MaxSteps]; ok {
		t.Error("max_steps -1 is not a number of steps")
	}
	if len(rec.Processes) != 1 {
		t.Fatalf("processes %+v", rec.Processes)
	}
	want := map[string]string{"transformers": "4.50.0", "trl": "1.9.0"}
	if diff := cmp.Diff(want, rec.Processes[0].Libraries); diff != "" {
		t.Error(diff)
	}
}

func TestNothingIsHalvedTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, script, want string }{
		{"once", today, "2048 2048 (4, 2) 4"},
		{"the floor", strings.Replace(today, "max_length=4096", "max_length=1500", 1), "1500 1500 (4, 2) 4"},
		{"odd", strings.Replace(today, "batch_size=8", "batch_size=5", 1), "2048 2048 (1, 5) 1"},
		{"copies", `
import copy, dataclasses, pickle
from trl import SFTConfig, SFTTrainer
args = SFTConfig(max_length=4096)
for a in (args, copy.deepcopy(args), dataclasses.replace(args, max_steps=3), SFTConfig(**args.to_dict()), pickle.loads(pickle.dumps(args))):
    t = SFTTrainer(args=a)
    print(t.cut_at, t.made_with)
`, strings.Repeat("2048 (4, 2)\n", 5)},
		{"a child that gets a copy", `
import subprocess, sys
from trl import SFTConfig
args = SFTConfig(max_length=4096)
code = "from trl import SFTConfig; a = SFTConfig(max_length=%d, per_device_train_batch_size=%d); print(a.max_length, a.per_device_train_batch_size)"
print(subprocess.check_output([sys.executable, "-c", code % (args.max_length, args.per_device_train_batch_size)]).decode().strip())
`, "2048 4"},
		{"spawned with a copy", `
import multiprocessing
from trl import SFTConfig, SFTTrainer
def work(args):
    t = SFTTrainer(args=args)
    print(t.cut_at, t.made_with, flush=True)
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        p = multiprocessing.get_context(method).Process(target=work, args=(SFTConfig(max_length=4096),))
        p.start()
        p.join()
`, strings.Repeat("2048 (4, 2)\n", 3)},
		{"the tokenizer gets the arguments' length", `
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig
args = SFTConfig(max_length=4096)
print(len(PreTrainedTokenizerBase()("w " * 9000, truncation=True, max_length=args.max_length)))
print(len(PreTrainedTokenizerBase()("w " * 9000, truncation=True, max_length=4096)))
`, "2048\n2048"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, halve(1024), "base", "trl-1")
			a.prints(c.want, c.script)
		})
	}
}

func TestArgumentsOfAnEarlierAttemptAreNotHalvedAgain(t *testing.T) {
	t.Parallel()
	first := newAttempt(t, halve(1024), "base", "trl-1")
	file := filepath.Join(t.TempDir(), "training_args.bin")
	first.prints("", fmt.Sprintf(`
import pickle
from trl import SFTConfig
with open(%q, "wb") as f: pickle.dump(SFTConfig(max_length=4096), f)
`, file))
	second := newAttempt(t, halve(1024), "base", "trl-1")
	rec := second.prints("2048 (4, 2)", fmt.Sprintf(`
import pickle
from trl import SFTTrainer
t = SFTTrainer(args=pickle.load(open(%q, "rb")))
print(t.cut_at, t.made_with)
`, file))
	saw(t, rec, Seen{Knob: job.Accumulation, Where: "SFTConfig.gradient_accumulation_steps", Before: "1", After: "2", Final: true})
}

func TestBatchAndAccumulationChangeTogetherOrNeitherDoes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, script, want, why string }{
		{"auto_find_batch_size", "from trl import SFTConfig as C\na = C(auto_find_batch_size=True)", "8 1", "auto_find_batch_size"},
		{"generations", "from trl import GRPOConfig as C\na = C()", "8 1", "generations"},
		{"numbers for DeepSpeed", `from trl import SFTConfig as C
a = C(deepspeed={"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": "auto"})`, "8 1", "train_micro_batch_size_per_gpu"},
		{"auto for DeepSpeed", `from trl import SFTConfig as C
a = C(deepspeed={"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"})`, "4 2", ""},
		{"accumulation that cannot be set", `from trl import SFTConfig as C
class F(C):
    def __setattr__(self, name, value):
        if name == "gradient_accumulation_steps" and hasattr(self, name) and value != 1:
            raise RuntimeError("frozen")
        super().__setattr__(name, value)
a = F()`, "8 1", "frozen"},
		{"a batch that cannot be set", `from trl import SFTConfig as C
class F(C):
    def __setattr__(self, name, value):
        super().__setattr__(name, 8 if name == "per_device_train_batch_size" else value)
a = F()`, "8 1", "cannot be set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, shorter(), "base", "trl-1")
			got := a.run(true, a.script(c.script+"\nprint(a.per_device_train_batch_size, a.gradient_accumulation_steps)"))
			if strings.TrimSpace(got.stdout) != c.want || got.stderr != "" {
				t.Errorf("printed %q, want %q; stderr %s", got.stdout, c.want, got.stderr)
			}
			rec := a.record()
			told := strings.Join(rec.Trouble, "\n")
			for _, s := range rec.Seen {
				if s.Knob == job.MicroBatch {
					told += s.Why
				}
			}
			if !strings.Contains(told, c.why) {
				t.Errorf("the reason %q is not told in %q", c.why, told)
			}
			if missing := len(Applied(a.plan, rec)) > 1; missing != (c.why != "") {
				t.Errorf("applied: missing %v", Applied(a.plan, rec))
			}
		})
	}
}

func TestOtherKnobsOfArguments(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, Plan{Clamps: []Clamp{
		{Knob: job.Packing, To: "false"},
		{Knob: job.GradCkpt, To: "true"},
		{Knob: job.EvalBatch, To: "1"},
		{Knob: job.NumWorkers, To: "0"},
		{Knob: job.OutputDir, From: "o", To: "o-attempt2"},
	}}, "base", "trl-1")
	rec := a.prints(`False True {'use_reentrant': False} 1 8 0 None o-attempt2
other`, `
from trl import SFTConfig
a = SFTConfig(output_dir="./o", packing=True, dataloader_num_workers=4, dataloader_prefetch_factor=2)
print(a.packing, a.gradient_checkpointing, a.gradient_checkpointing_kwargs, a.per_device_eval_batch_size, a.per_device_train_batch_size,
      a.dataloader_num_workers, a.dataloader_prefetch_factor, a.output_dir)
print(SFTConfig(output_dir="other").output_dir)
`)
	if missing := Applied(a.plan, rec); missing != nil {
		t.Errorf("not applied: %v in %+v", missing, rec.Seen)
	}
	if got := Learned(rec)[job.OutputDir].Value; got != "./o" {
		t.Errorf("learned output folder %q", got)
	}
}

func TestSuffixOfTheOutputFolder(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, Plan{Suffix: "-attempt2"}, "base", "trl-1")
	a.prints("runs/a-attempt2 runs/a-attempt2 o-attempt2", `
import dataclasses
from trl import SFTConfig
a = SFTConfig(output_dir="runs/a/")
print(a.output_dir, dataclasses.replace(a).output_dir, SFTConfig(output_dir="o").output_dir)
`)
}

func TestTokensKeptByMoreAccumulation(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, Plan{Clamps: []Clamp{
		{Knob: job.SeqLen, From: "4096", To: "2048"},
		{Knob: job.MicroBatch, From: "8", To: "4"},
		{Knob: job.Accumulation, From: "1", To: "4"},
	}}, "base", "trl-1")
	a.prints("4 4\n4 4", `
import dataclasses
from trl import SFTConfig
a = SFTConfig(max_length=4096)
for a in (a, dataclasses.replace(a)):
    print(a.per_device_train_batch_size, a.gradient_accumulation_steps)
`)
}

func TestResume(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, folder, want string }{
		{"the first trainer", "", "CKPT None"},
		{"the one that saves there", "second", "None CKPT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			checkpoint := t.TempDir()
			a := newAttempt(t, Plan{Clamps: []Clamp{{Knob: job.ResumeFrom, To: checkpoint}}, ResumeFolder: c.folder}, "base", "trl-1")
			rec := a.prints(strings.ReplaceAll(c.want, "CKPT", checkpoint), `
from trl import SFTConfig, SFTTrainer
print(*[SFTTrainer(args=SFTConfig(output_dir=o)).train() for o in ("first", "./second")])
`)
			if missing := Applied(a.plan, rec); missing != nil {
				t.Errorf("not applied: %+v", rec.Seen)
			}
		})
	}
	t.Run("a checkpoint that is not there", func(t *testing.T) {
		t.Parallel()
		a := newAttempt(t, Plan{Clamps: []Clamp{{Knob: job.ResumeFrom, To: "/nowhere/checkpoint-5"}}}, "base", "trl-1")
		got := a.run(true, a.script("from trl import SFTConfig, SFTTrainer\nprint(SFTTrainer(args=SFTConfig()).train(True))"))
		if strings.TrimSpace(got.stdout) != "True" || len(a.record().Trouble) != 1 {
			t.Errorf("printed %q, trouble %q", got.stdout, a.record().Trouble)
		}
		if missing := Applied(a.plan, a.record()); len(missing) != 1 {
			t.Errorf("missing %v", missing)
		}
	})
}

func TestSixteenBitInsteadOfFour(t *testing.T) {
	t.Parallel()
	lora := Plan{Clamps: []Clamp{{Knob: job.LoadIn4Bit, From: "true", To: "false"}, {Knob: job.DType, To: "bfloat16"}}}
	for _, c := range []struct{ name, script, want string }{
		{"transformers, a configuration", `
from transformers import PreTrainedModel
import torch
class Four:
    load_in_4bit = True
m = PreTrainedModel.from_pretrained("m", quantization_config=Four(), torch_dtype="float32")
print(m.is_loaded_in_4bit, m.loaded_with)
`, "False {'quantization_config': None, 'torch_dtype': 'torch.bfloat16'}"},
		{"transformers, keywords", `
from transformers import PreTrainedModel
import torch
m = PreTrainedModel.from_pretrained("m", load_in_4bit=True, bnb_4bit_quant_type="nf4")
print(m.is_loaded_in_4bit, m.loaded_with)
`, "False {'torch_dtype': 'torch.bfloat16'}"},
		{"unsloth's default", `
import torch, unsloth
m, _ = unsloth.FastLanguageModel.from_pretrained("m", 2048)
print(m.load_in_4bit, m.dtype, m.max_seq_length)
`, "False torch.bfloat16 2048"},
		{"peft upcasts nothing", `
import peft
class P:
    requires_grad = True
class M:
    p = P(); asked = 0; ckpt = 0
    def parameters(self): return [self.p]
    def enable_input_require_grads(self): self.asked = 1
    def gradient_checkpointing_enable(self, **k): self.ckpt = 1
m = peft.prepare_model_for_kbit_training(M())
print(hasattr(m, "upcast"), m.p.requires_grad, m.asked, m.ckpt)
M.is_loaded_in_8bit = True
print(hasattr(peft.prepare_model_for_kbit_training(M()), "upcast"))
`, "False False 1 1\nTrue"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, lora, "base", "trl-1", "unsloth")
			rec := a.prints(c.want, c.script)
			if missing := Applied(lora, rec); missing != nil && !strings.Contains(c.name, "peft") {
				t.Errorf("not applied: %v, %+v", missing, rec.Seen)
			}
		})
	}
}

func TestRowsOfTheScriptsOwnTokenising(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, shorter(), "base")
	rec := a.prints("2048\n77\n2048\n9000\n2048\n('f', [('sparkrun_seq_len', '2048/'), ('x', 1)])", `
import datasets
from transformers import PreTrainedTokenizerBase
tokenize, text = PreTrainedTokenizerBase(), "w " * 9000
print(len(tokenize(text, truncation=True, max_length=4096)))
print(len(tokenize(text, truncation=True, max_length=77)))
print(len(tokenize(text, truncation=True)))
print(len(tokenize(text)))
print(len(tokenize.encode_plus(text, truncation=True, max_length=4096)))
print(datasets.update_fingerprint("f", len, {"x": 1}))
`)
	saw(t, rec, Seen{Knob: job.SeqLen, Where: "tokenizer(max_length=)", Before: "4096", After: "2048"})
	if missing := Applied(Plan{Clamps: shorter().Clamps[:1]}, rec); missing != nil {
		t.Errorf("missing %v", missing)
	}
}
