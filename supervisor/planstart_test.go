package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/newprog"
	"sparkrun/preflight"
	"sparkrun/preflight/headroom"
)

// The step to start from is one that this run may take, for `sparkrun plan` and for the
// checks alike.
func TestStartFromTheRunsOwnLadder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*Options)
		budget int64
		rung   string
		byHand bool
		want   string // in words and line
		never  string
	}{
		{"the ladder", func(*Options) {}, 82e9, "shorter-packing", false, "seq_len 8192 -> 2048, micro_batch 4 -> 1, grad_accum 8 -> 32", ""},
		{"its line", func(*Options) {}, 115e9, "shorter-packing", false, " cutoff_len=2048", ""},
		{"only what leaves the training the same", func(o *Options) { o.Exact = true }, 60e9, "smaller-model", false, "without --exact: ", "$ "},
		{"a rung is left out", func(o *Options) { o.Deny = []string{"shorter-packing"} }, 115e9, "smaller-model", false, "without --deny shorter-packing: ", "cutoff_len"},
		{"consent is missing", func(*Options) {}, 60e9, "bf16-lora", true, "needs a learning rate of its own", ""},
		{"consent", func(o *Options) { o.Allow = []string{"bf16-lora"} }, 60e9, "bf16-lora", false, "finetuning_type=lora", "by hand"},
		{"nothing helps", func(*Options) {}, 5e9, "smaller-model", false, "a smaller model", ""},
	} {
		o := planDir(t)
		c.change(&o)
		r, err := understood(t.Context(), o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		model := modelsize.Size{Params: 8e9, From: "guessed from its name"}
		spec := headroom.FromJob(&r.job, model)
		est, err := spec.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		b := preflight.Budget{Known: true, Bytes: c.budget, Available: c.budget, Total: c.budget}
		s := firstStep(o, r.set, r.lad, r.job)(spec, est, b)
		if s == nil {
			t.Errorf("%s: nothing", c.name)
			continue
		}
		if all := s.Words + "\n" + s.Line; s.Rung != c.rung || s.ByHand != c.byHand || !strings.Contains(all, c.want) || c.never != "" && strings.Contains(all, c.never) {
			t.Errorf("%s: %+v", c.name, s)
		}
		p, err := Plan(t.Context(), PlanOptions{Options: o, Budget: c.budget})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(s, p.Start); diff != "" {
			t.Errorf("%s: the checks and the plan differ (-checks +plan):\n%s", c.name, diff)
		}
	}
}

// Activation checkpointing that is off comes first, by itself or with a rung; on a machine
// that others use, they come before a smaller model.
func TestStartWithCheckpointing(t *testing.T) {
	t.Parallel()
	config := "base_model: some/Thing-8B\nadapter: lora\nlora_r: 16\nlora_target_linear: true\nsequence_len: 8192\nmicro_batch_size: 4\ngradient_accumulation_steps: 2\nbf16: true\noutput_dir: o\n"
	for _, c := range []struct {
		name   string
		budget int64
		rung   string
		want   []string
	}{
		{"it is enough", 200e9, headroom.Checkpointing, []string{"leaves the training the same", "--gradient-checkpointing"}},
		{"and another rung", 60e9, "shorter-packing", []string{"leaves the training the same; then seq_len 8192 -> ", "--gradient-checkpointing", "--sequence-len"}},
		{"no step is enough", 10e9, headroom.Smaller, []string{"activation checkpointing is off; with it"}},
	} {
		o := planDir(t)
		if err := os.WriteFile(filepath.Join(o.Dir, "a.yml"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		o.Argv = []string{"axolotl", "train", "a.yml"}
		p, err := Plan(t.Context(), PlanOptions{Options: o, Budget: c.budget})
		if err != nil || p.Start == nil {
			t.Errorf("%s: %+v, %v", c.name, p.Start, err)
			continue
		}
		all := p.Start.Words + "\n" + p.Start.Line
		for _, want := range c.want {
			if p.Start.Rung != c.rung || !strings.Contains(all, want) {
				t.Errorf("%s: no %q in %+v", c.name, want, p.Start)
			}
		}
		if c.rung != headroom.Smaller && (p.Start.Knobs["grad_checkpoint"] != "true" || p.Start.Peak >= p.Estimate.Peak) {
			t.Errorf("%s: %+v", c.name, p.Start)
		}
	}
	o := planDir(t)
	r, err := understood(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	spec := headroom.FromJob(&r.job, modelsize.Size{Params: 8e9})
	spec.SeqLen, spec.MicroBatch = 1024, 1
	est, err := spec.Estimate()
	if err != nil {
		t.Fatal(err)
	}
	used := preflight.Budget{Known: true, Bytes: 15e9, Available: 19e9, Total: 130e9}
	if s := firstStep(o, r.set, r.lad, r.job)(spec, est, used); s == nil || s.Rung != "" || !strings.Contains(s.Words, "with the machine to itself it fits") {
		t.Errorf("beside others: %+v", s)
	}
}

// A command whose accumulation is not known is not given a line that would make its
// effective batch smaller.
func TestNoLineWithAnotherBatch(t *testing.T) {
	t.Parallel()
	o := planDir(t)
	o.Argv = []string{"./train"}
	o.Knobs = map[string]string{"micro_batch": "8", "seq_len": "1024", "model": "some/Thing-8B", "method": "lora"}
	p, err := Plan(t.Context(), PlanOptions{Options: o, Budget: 24e9})
	if err != nil {
		t.Fatal(err)
	}
	s := p.Start
	if s == nil || !s.ByHand || s.Line != "" || len(s.Changes) != 0 || !strings.Contains(s.Words, "the effective batch stays only with 8 times the gradient accumulation") {
		t.Errorf("%+v", s)
	}
}

// A shell script that says what it starts is planned like that command, also where flags
// tell more; what would have to change is named, and no line is made of it. The checks say
// the same.
func TestWhatAScriptStartsIsPlanned(t *testing.T) {
	t.Parallel()
	o := planDir(t)
	for name, text := range map[string]string{
		"run.sh":   "#!/bin/bash\nset -e\nexec llamafactory-cli train sft.yaml \"$@\"\n",
		"outer.sh": "#!/bin/sh\nbash run.sh\n",
		"code.sh":  "#!/bin/sh\npython3 train.py\n",
		"train.py": "from trl import SFTConfig, SFTTrainer\nfrom peft import LoraConfig\nargs = SFTConfig(output_dir='o', per_device_train_batch_size=4, gradient_accumulation_steps=2, max_length=8192)\nSFTTrainer(model='some/Thing-8B', args=args, peft_config=LoraConfig(r=8)).train()\n",
	} {
		if err := newprog.Write(filepath.Join(o.Dir, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	llama := []string{"llamafactory-cli", "train", "sft.yaml"}
	for _, c := range []struct {
		script, same []string
		told         map[job.Knob]string
		budget       int64
		rung, change string
	}{
		{[]string{"bash", "run.sh"}, llama, nil, 115e9, "shorter-packing", "cutoff_len=2048 "},
		{[]string{"./run.sh"}, llama, nil, 115e9, "shorter-packing", "cutoff_len=2048 "},
		{[]string{"bash", "outer.sh"}, llama, nil, 115e9, "shorter-packing", "cutoff_len=2048 "},
		{[]string{"bash", "run.sh"}, llama, map[job.Knob]string{job.SeqLen: "4096"}, 100e9, "shorter-packing", "cutoff_len=1024 "},
		{[]string{"bash", "run.sh", "finetuning_type=lora"}, append(llama, "finetuning_type=lora"), nil, 30e9, "shorter-packing", "cutoff_len=2048 "},
		{[]string{"bash", "code.sh"}, []string{"python3", "train.py"}, nil, 60e9, "shorter-packing", "train.py:3: seq_len 8192 -> 2048"},
	} {
		name := strings.Join(c.script, " ")
		o.Argv = c.script
		got, err := Plan(t.Context(), PlanOptions{Options: o, Budget: c.budget, Told: c.told})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		direct := o
		direct.Argv = c.same
		want, err := Plan(t.Context(), PlanOptions{Options: direct, Budget: c.budget, Told: c.told})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Estimate, got.Estimate, cmpopts.IgnoreUnexported(headroom.Estimate{})); diff != "" {
			t.Errorf("%s: not the estimate of what it starts (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(want.Inputs, got.Inputs); diff != "" {
			t.Errorf("%s: settings (-want +got):\n%s", name, diff)
		}
		if got.Trainer == nil || *got.Trainer != *want.Trainer || !strings.Contains(strings.Join(got.Notes, "\n"), "the command that ") {
			t.Errorf("%s: trainer %v, notes %q", name, got.Trainer, got.Notes)
		}
		s := got.Start
		if s == nil || s.Rung != c.rung || !s.ByHand || s.Line != "" || !strings.Contains(strings.Join(s.Changes, "\n"), c.change) || strings.Contains(strings.Join(s.Changes, "\n"), "shim") {
			t.Errorf("%s: start from %+v", name, s)
			continue
		}
		if c.told != nil {
			continue // the checks have no flags
		}
		r, err := understood(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		spec := headroom.FromJob(r.job.Inner, modelsize.Size{Params: 8e9, From: "guessed from its name"})
		est, err := spec.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		b := preflight.Budget{Known: true, Bytes: c.budget, Available: c.budget, Total: c.budget}
		if diff := cmp.Diff(firstStep(o, r.set, r.lad, r.job)(spec, est, b), s); diff != "" {
			t.Errorf("%s: the checks and the plan differ (-checks +plan):\n%s", name, diff)
		}
	}
	o.Argv = []string{"bash", "loop.sh"}
	if err := newprog.Write(filepath.Join(o.Dir, "loop.sh"), []byte("#!/bin/sh\nfor i in 1 2; do llamafactory-cli train sft.yaml; done\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := Plan(t.Context(), PlanOptions{Options: o, Budget: 115e9}); err == nil || !strings.Contains(err.Error(), "plan the training command that it starts") {
		t.Errorf("a script that does not say what it starts: %v", err)
	}
}

// The ladder takes the way from QLoRA to LoRA in 16 bit where the plan of that very command
// fits, and not where it does not: 32B fits a Spark although its weights would not fit
// twice, and weights that fit say nothing of rows that do not.
func TestLadderAndPlanAgreeOn16Bit(t *testing.T) {
	t.Parallel()
	const config = "model_name_or_path: some/Thing-%s\nstage: sft\nfinetuning_type: lora\n%scutoff_len: %d\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\noutput_dir: out\n"
	b := preflight.Budget{Known: true, Bytes: 115e9, Available: 119e9, Total: 130e9}
	for _, c := range []struct {
		params string
		length int
		fits   bool
	}{
		{"8B", 1024, true}, {"32B", 1024, true}, {"70B", 1024, false}, {"8B", 32768, false}, {"47B", 1024, true}, {"56B", 1024, false},
	} {
		o := planDir(t)
		put := func(quantised string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(o.Dir, "sft.yaml"), []byte(fmt.Sprintf(config, c.params, quantised, c.length)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		put("")
		want, err := Plan(t.Context(), PlanOptions{Options: o, Budget: b.Bytes})
		if err != nil {
			t.Fatal(err)
		}
		put("quantization_bit: 4\n")
		o.Deny = []string{"shorter-packing"}
		r, err := understood(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		r.looked = &looked{fixed: r.set.Fixed(r.job)}
		r.measureModel(modelWait)
		taken, reason := false, ""
		for _, v := range r.preview(b) {
			if v.Action == "4bit-to-16bit" {
				taken, reason = v.Allowed, v.Reason
			}
		}
		if taken != c.fits || taken != (want.Estimate.Peak <= b.Bytes) || !strings.Contains(reason, "about "+headroom.GB(want.Estimate.Peak)[:2]) {
			t.Errorf("%s, rows of %d: taken %v (%s); the plan has %s of %s", c.params, c.length, taken, reason, headroom.GB(want.Estimate.Peak), headroom.GB(b.Bytes))
		}
	}
}

// Weights that are loaded in 32 bit only because nobody tells their type are the first
// thing to change.
func TestStartWithTheType(t *testing.T) {
	t.Parallel()
	o := planDir(t)
	for name, text := range map[string]string{
		"env/bin/python": "", "env/pyvenv.cfg": "home = /usr/bin\n",
		"env/lib/python3.12/site-packages/trl-1.16.0.dist-info/METADATA": "Name: trl\nVersion: 1.16.0\n",
	} {
		path := filepath.Join(o.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := newprog.Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	o.Argv = strings.Fields("env/bin/python -m trl.scripts.sft --model_name_or_path some/Thing-32B --use_peft --max_length 1024 --per_device_train_batch_size 1")
	p, err := Plan(t.Context(), PlanOptions{Options: o, Budget: 115e9})
	if err != nil {
		t.Fatal(err)
	}
	if p.Outcome.Verdict != headroom.Over || p.Outcome.Blocks || p.Start == nil || !strings.Contains(p.Start.Words, "tell the type of the weights") || p.Start.Peak > 80e9 {
		t.Errorf("%+v, start from %+v", p.Outcome, p.Start)
	}
	o.Argv = append(o.Argv, "--dtype", "bfloat16")
	if p, err = Plan(t.Context(), PlanOptions{Options: o, Budget: 115e9}); err != nil || p.Outcome.Verdict != headroom.Fits {
		t.Errorf("with it: %+v, %v", p.Outcome, err)
	}
}

// Where a script does not say what it starts, or is not there, the error says what in it
// keeps the plan from knowing.
func TestWhyAScriptIsNotPlanned(t *testing.T) {
	t.Parallel()
	o := planDir(t)
	for name, text := range map[string]string{
		"variable.sh": "M=some/Thing-8B\ntrl sft --model_name_or_path $M\n",
		"loop.sh":     "for i in 1 2; do trl sft; done\n",
		"outer.sh":    "bash done.sh\n",
		"done.sh":     "trl sft\necho done\n",
	} {
		if err := os.WriteFile(filepath.Join(o.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for script, want := range map[string]string{
		"variable.sh": "since its last command has an expansion ($M)",
		"loop.sh":     "since its last command is not a simple one",
		"outer.sh":    "since its last command is echo",
		"nosuch.sh":   "(nosuch.sh: no such file)",
	} {
		o.Argv = []string{"bash", script}
		if _, err := Plan(t.Context(), PlanOptions{Options: o}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", script, err, want)
		}
	}
}
