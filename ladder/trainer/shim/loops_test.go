package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// alone is the plan of a rung that lowers the batch of a loop and nothing else.
func alone() Plan { return Plan{Clamps: shorter().Clamps[1:2], SmallerBatch: true} }

// What a loop derives from its batch, its accumulation and its loader stays in step: either
// all of it is the script's, or the script has seen the smaller batch.
func TestLoopsOfTheScriptsOwn(t *testing.T) {
	t.Parallel()
	const (
		accelerate = `
from accelerate import Accelerator
from torch.utils.data import DataLoader
a = Accelerator(gradient_accumulation_steps=3)
loader = DataLoader([], batch_size=8, shuffle=True)
print(loader.batch_size, a.gradient_accumulation_steps)
`
		plain = "from torch.utils.data import DataLoader\nprint(DataLoader([], 8).batch_size, 1)"
		fit   = `
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader
class Model:
    def train_dataloader(self): return DataLoader([], batch_size=8)
t = Trainer(accumulate_grad_batches=3)
t.fit(Model())
print(t.loader.batch_size, t.accumulate_grad_batches)
`
		passed = `
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader
t = Trainer(accumulate_grad_batches=3)
t.fit(None, DataLoader([], batch_size=8))
print(t.loader.batch_size, t.accumulate_grad_batches)
`
	)
	both := shorter()
	both.SmallerBatch = true
	halved := halve(0)
	halved.SmallerBatch = true
	for _, script := range []struct{ name, text, kept, lower string }{
		{"accelerate", accelerate, "8 3", "4 3"},
		{"plain", plain, "8 1", "4 1"},
		{"Lightning, loader of the model", fit, "8 3", "4 3"},
		{"Lightning, loader passed", passed, "8 3", "4 3"},
	} {
		for _, c := range []struct {
			name  string
			plan  Plan
			lower bool
		}{
			{"an exact step", shorter(), false},
			{"an exact step, smaller allowed", both, false},
			{"halved", halve(0), false},
			{"halved, smaller allowed", halved, true},
			{"the batch alone, smaller allowed", alone(), true},
			{"the batch alone", Plan{Clamps: alone().Clamps}, false},
			{"nothing asked", Plan{}, false},
		} {
			t.Run(script.name+", "+c.name, func(t *testing.T) {
				t.Parallel()
				a := newAttempt(t, c.plan, "base", "lightning")
				want := script.kept
				if c.lower {
					want = script.lower
				}
				rec := a.prints(want, script.text)
				for _, s := range rec.Seen {
					if s.Knob == job.Accumulation && s.Changed() {
						t.Errorf("%+v", s)
					}
					if s.Knob == job.MicroBatch && (s.Changed() != c.lower || !OwnLoop(s.Where) || (s.Why == "") != (c.lower || len(c.plan.Clamps) == 0)) {
						t.Errorf("%+v", s)
					}
				}
				// A rung that nothing took is not applied, one that was taken is.
				plan := Plan{}
				for _, clamp := range c.plan.Clamps {
					if clamp.Knob != job.SeqLen {
						plan.Clamps = append(plan.Clamps, clamp)
					}
				}
				missing := Applied(plan, rec)
				if c.lower && missing != nil || !c.lower && len(missing) != len(plan.Clamps) {
					t.Errorf("missing %v of %+v", missing, plan.Clamps)
				}
			})
		}
	}
	t.Run("arguments turned already", func(t *testing.T) {
		t.Parallel()
		a := newAttempt(t, shorter(), "base")
		a.prints("4 2", `
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import TrainingArguments
args = TrainingArguments()
a = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
print(DataLoader([], batch_size=args.per_device_train_batch_size).batch_size, a.gradient_accumulation_steps)
`)
	})
}

// schedule is a plain accelerate loop as people write it: its planned steps come from the
// length of its loader and from a constant of its own.
const schedule = `
import math, torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
ACC, EPOCHS = 2, 2
accelerator = Accelerator(gradient_accumulation_steps=ACC, cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loader = DataLoader(TensorDataset(torch.ones(317, 4)), batch_size=8, shuffle=True)
total = EPOCHS * math.ceil(len(loader) / ACC)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: max(0.0, 1 - n / total))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
steps = 0
for epoch in range(EPOCHS):
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean() * 1e-9)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
print(steps, total, scheduler.get_last_lr()[0])
`

func TestRealScheduleOfAnAccelerateLoop(t *testing.T) {
	t.Parallel()
	halved := halve(0)
	halved.SmallerBatch = true
	for _, c := range []struct {
		name, want string
		plan       Plan
	}{
		{"an exact step", "40 40 0.0", shorter()},
		{"halved", "40 40 0.0", halve(0)},
		// Twice the steps of half the rows, and a schedule that ends with them.
		{"halved, smaller allowed", "80 80 0.0", halved},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			realAttempt(t, c.plan).trains(c.want, schedule)
		})
	}
}

// The Trainer works out its steps from the arguments after they were turned: they and the
// schedule are the script's, with a last batch that is not full too.
func TestRealScheduleOfTheTrainer(t *testing.T) {
	t.Parallel()
	const script = `
import make_tiny
from datasets import Dataset
from transformers import Trainer, TrainingArguments
tokenizer = make_tiny.make_tokenizer()
with open("told", "w") as told:
    for rows in 61, 70, 72, 25:
        data = Dataset.from_dict({"input_ids": [[5] * 8] * rows, "labels": [[5] * 8] * rows})
        for more in {"num_train_epochs": 2}, {"num_train_epochs": 1.5}, {"max_steps": 5}:
            args = TrainingArguments(output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=3, save_strategy="no",
                logging_steps=1, lr_scheduler_type="linear", warmup_steps=1, report_to="none", use_cpu=True, disable_tqdm=True, **more)
            trainer = Trainer(model=make_tiny.make_model(tokenizer), args=args, train_dataset=data)
            trainer.train()
            rates = [round(l["learning_rate"] * 1e6, 3) for l in trainer.state.log_history if "learning_rate" in l]
            print(rows, more, trainer.state.global_step, trainer.state.max_steps, rates, file=told)
print(args.per_device_train_batch_size, args.gradient_accumulation_steps)
`
	exact := Plan{Clamps: []Clamp{{Knob: job.MicroBatch, From: "8", To: "4"}, {Knob: job.Accumulation, From: "3", To: "6"}}}
	told := map[string]string{}
	for want, p := range map[string]Plan{"8 3": {}, "4 6": exact, "2 12": {Clamps: []Clamp{{Knob: job.MicroBatch, Halve: 2}}}} {
		a := realAttempt(t, p)
		a.trains(want, script)
		text, err := os.ReadFile(filepath.Join(a.work, "told"))
		if err != nil {
			t.Fatal(err)
		}
		told[want] = string(text)
	}
	if strings.Count(told["8 3"], "\n") != 12 || told["4 6"] != told["8 3"] || told["2 12"] != told["8 3"] {
		t.Errorf("steps and learning rates differ:\n%s\n%s\n%s", told["8 3"], told["4 6"], told["2 12"])
	}
}

// Lightning's own number of steps fits a batch that was lowered with leave, and nothing is
// changed without.
func TestRealLightningLoop(t *testing.T) {
	t.Parallel()
	// Lightning has an environment of its own, beside the other.
	python := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(os.Getenv("SPARKRUN_TRAINERS_PYTHON")))), "venv-lightning", "bin", "python")
	if _, err := os.Stat(python); err != nil || os.Getenv("SPARKRUN_TRAINERS_PYTHON") == "" {
		t.Skip("needs SPARKRUN_TRAINERS_PYTHON, and the environment of Lightning that e2e/trainers/setup.sh makes beside it")
	}
	const script = `
import warnings, logging
warnings.filterwarnings("ignore")
import torch, lightning
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
from torch.utils.data import DataLoader, TensorDataset
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean() * 1e-9
    def configure_optimizers(self):
        self.total = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: max(0.0, 1 - n / self.total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
trainer = lightning.Trainer(max_epochs=2, accumulate_grad_batches=2, accelerator="cpu", devices=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
model = Model()
trainer.fit(model, DataLoader(TensorDataset(torch.ones(317, 4)), batch_size=8, shuffle=True))
print(trainer.global_step, model.total, trainer.lr_scheduler_configs[0].scheduler.get_last_lr()[0])
`
	for want, p := range map[string]Plan{"40 40 0.0": shorter(), "80 80 0.0": alone()} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, p)
			a.python, a.env = python, []string{"CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1"}
			a.trains(want, script)
		})
	}
}
