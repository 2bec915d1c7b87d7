package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// realAttempt is one with the real libraries.
func realAttempt(t *testing.T, p Plan) *attempt {
	t.Helper()
	python := os.Getenv("SPARKRUN_TRAINERS_PYTHON")
	if python == "" {
		t.Skip("needs SPARKRUN_TRAINERS_PYTHON, a Python with torch and TRL (e2e/trainers/setup.sh makes one)")
	}
	a := newAttempt(t, p)
	a.python = python
	tiny, err := filepath.Abs("../../../e2e/trainers")
	if err != nil {
		t.Fatal(err)
	}
	a.libs = []string{tiny}
	a.env = []string{
		"HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false", "OMP_NUM_THREADS=1", "HF_HOME=" + filepath.Join(a.work, "hf"),
		"HF_DATASETS_DISABLE_PROGRESS_BARS=1", "CUDA_VISIBLE_DEVICES=",
	}
	return a
}

// trains runs a script of real libraries with the shim and demands its last line.
func (a *attempt) trains(want, text string) Record {
	a.t.Helper()
	got := a.run(true, a.script(text))
	rec := a.record()
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if got.status != 0 || lines[len(lines)-1] != want {
		a.t.Errorf("status %d; printed %s\nwant %s\n%s", got.status, got.stdout, want, got.stderr)
	}
	if len(rec.Trouble) > 0 {
		a.t.Errorf("trouble %q", rec.Trouble)
	}
	return rec
}

// sft is the usual script with its values in the code. It prints what TRL saved of them.
const sft = `
import torch, make_tiny
from datasets import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

tokenizer = make_tiny.make_tokenizer()
make_tiny.make_model(tokenizer).save_pretrained("model")
model = AutoModelForCausalLM.from_pretrained("model", quantization_config=BitsAndBytesConfig(load_in_4bit=True))
args = SFTConfig(output_dir="out", max_length=4096, per_device_train_batch_size=8, max_steps=1, report_to="none", use_cpu=True, bf16=False)
rows = Dataset.from_dict({"text": make_tiny.text_rows(16, 2500)})
trainer = SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
trainer.train()
saved = torch.load("out/checkpoint-1/training_args.bin", weights_only=False)
print(saved.max_length, saved.per_device_train_batch_size, saved.gradient_accumulation_steps, model.dtype,
      max(len(r) for r in trainer.train_dataset["input_ids"]))
`

func TestRealTRLWithValuesInTheCode(t *testing.T) {
	t.Parallel()
	p := Plan{Clamps: append(shorter().Clamps, Clamp{Knob: job.LoadIn4Bit, To: "false"}, Clamp{Knob: job.DType, To: "bfloat16"})}
	a := realAttempt(t, p)
	rec := a.trains("2048 4 2 torch.bfloat16 2048", sft)
	if missing := Applied(p, rec); missing != nil {
		t.Errorf("not applied: %v in %+v", missing, rec.Seen)
	}
	learned := Learned(rec)
	if learned[job.SeqLen].Value != "4096" || learned[job.MicroBatch].Value != "8" || learned[job.LoadIn4Bit].Value != "true" {
		t.Errorf("learned %+v", learned)
	}
	if got := rec.Processes[0].Libraries; got["trl"] == "" || got["transformers"] == "" || got["torch"] == "" {
		t.Errorf("libraries %v", got)
	}
}

func TestRealTrainerHalvedAndResumed(t *testing.T) {
	t.Parallel()
	script := `
import torch, make_tiny
from datasets import Dataset
from transformers import Trainer, TrainingArguments, DataCollatorForLanguageModeling
tokenizer = make_tiny.make_tokenizer()
def cut(row):
    return tokenizer(row["text"], truncation=True, max_length=512)
rows = Dataset.from_dict({"text": make_tiny.text_rows(16, 600)}).map(cut, remove_columns=["text"], num_proc=2)
args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=%d, save_steps=1, report_to="none", use_cpu=True)
trainer = Trainer(model=make_tiny.make_model(tokenizer), args=args, train_dataset=rows, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False))
trainer.train()
saved = torch.load("out/checkpoint-%d/training_args.bin", weights_only=False)
print(saved.per_device_train_batch_size, saved.gradient_accumulation_steps, max(len(r) for r in rows["input_ids"]), trainer.state.log_history[-1]["step"], len(trainer.state.log_history))
`
	p := Plan{Clamps: []Clamp{{Knob: job.SeqLen, Halve: 1, Floor: 256}, {Knob: job.MicroBatch, Halve: 1}}}
	a := realAttempt(t, p)
	rec := a.trains("2 2 256 2 1", fmt.Sprintf(script, 2, 2))
	if missing := Applied(p, rec); missing != nil {
		t.Errorf("not applied: %v in %+v", missing, rec.Seen)
	}
	p.Clamps = append(p.Clamps, Clamp{Knob: job.ResumeFrom, To: filepath.Join(a.work, "out", "checkpoint-2")})
	a.plan, a.dir = p, filepath.Join(t.TempDir(), "3")
	install(t, p, a.dir)
	rec = a.trains("2 2 256 3 1", fmt.Sprintf(script, 3, 3)+`
assert trainer.state.global_step == 3 and trainer.state.train_batch_size == 2, vars(trainer.state)
`)
	if missing := Applied(p, rec); missing != nil {
		t.Errorf("not applied: %v in %+v", missing, rec.Seen)
	}
}

func TestRealCacheOfDatasetsDoesNotGiveBackLongRows(t *testing.T) {
	t.Parallel()
	a := realAttempt(t, shorter())
	script := a.script(`
import json, os
import make_tiny
from datasets import load_dataset
tokenizer = make_tiny.make_tokenizer()
if not os.path.exists("rows.jsonl"):
    with open("rows.jsonl", "w") as f:
        for text in make_tiny.text_rows(4, 5000): f.write(json.dumps({"text": text}) + "\n")
rows = load_dataset("json", data_files="rows.jsonl")["train"]
def cut(row): return {"ids": tokenizer(row["text"], truncation=True, max_length=4096)["input_ids"]}
def count(row): return {"n": len(row["text"])}
print(max(len(r) for r in rows.map(cut)["ids"]), len(rows.map(count)))
`)
	for _, c := range []struct {
		shim bool
		want string
	}{{false, "4096 4"}, {true, "2048 4"}, {false, "4096 4"}} {
		if got := a.run(c.shim, script); strings.TrimSpace(got.stdout) != c.want {
			t.Errorf("shim %v: printed %q, want %q\n%s", c.shim, got.stdout, c.want, got.stderr)
		}
	}
}

func TestRealPeft(t *testing.T) {
	t.Parallel()
	a := realAttempt(t, Plan{Clamps: []Clamp{{Knob: job.LoadIn4Bit, To: "false"}}})
	a.trains("torch.bfloat16 False", `
import torch, make_tiny
from peft import prepare_model_for_kbit_training
model = prepare_model_for_kbit_training(make_tiny.make_model(make_tiny.make_tokenizer()).to(torch.bfloat16))
p = next(model.parameters())
print(p.dtype, p.requires_grad)
`)
}

func TestRealExceptionsOfRanks(t *testing.T) {
	t.Parallel()
	a := realAttempt(t, shorter())
	text := `
import os
from trl import SFTConfig
args = SFTConfig(output_dir="out", max_length=4096, use_cpu=True, bf16=False, report_to="none")
raise MemoryError("rank %s has %d rows" % (os.environ["RANK"], args.per_device_train_batch_size))
`
	got := a.run(true, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", a.script(text))
	if got.status == 0 {
		t.Errorf("%+v", got)
	}
	rec := a.record()
	var messages []string
	for _, e := range rec.Exceptions {
		if e.Type == "MemoryError" {
			messages = append(messages, e.Message)
		}
	}
	// The launcher ends the second rank when it sees the first one dead.
	if len(messages) == 0 || !strings.HasSuffix(messages[0], " has 4 rows") {
		t.Errorf("exceptions %+v, trouble %q\n%s", rec.Exceptions, rec.Trouble, got.stderr)
	}
}
