package ladder

import (
	"slices"
	"strings"
	"testing"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

func TestMethodRung(t *testing.T) {
	t.Parallel()
	const quantised = "seq_len=1024 method=qlora load_in_4bit=true"
	once := false
	// The training as it would be, in 16 bit, is what is asked for.
	peak := func(bytes int64) func(job.Knobs) (Reckoned, bool) {
		return func(k job.Knobs) (Reckoned, bool) {
			if k[job.Method].Value != "lora" || k[job.LoadIn4Bit].Value != "false" || k[job.SeqLen].Value != "1024" {
				t.Errorf("reckoned with %v", k)
			}
			return Reckoned{Peak: bytes, Low: bytes - 10e9, High: bytes + 10e9, Budget: 106e9}, true
		}
	}
	fits := func(s *Situation) { s.ModelParams, s.BudgetBytes = sample.Known(8e9), sample.Known(110e9) }
	for _, c := range []struct {
		name, knobs string
		set         func(*Situation)
		steps, say  string
	}{
		{"fits", quantised, fits, "method qlora->lora, load_in_4bit true->false", "LoRA in bfloat16 (8.0 billion parameters x 2 bytes x 2 copies while loading = 32.0 GB of a budget of 110.0 GB"},
		{"where from", quantised, func(s *Situation) { fits(s); s.ModelFrom = "guessed from its name" }, "method qlora->lora, load_in_4bit true->false", "parameters guessed from its name"},
		{"70B", quantised, func(s *Situation) { fits(s); s.ModelParams = sample.Known(70e9) }, "", "refused: the weights do not fit in 16 bit: 70.0 billion parameters x 2 bytes x 2 copies while loading = 280.0 GB of a budget of 110.0 GB"},
		{"30B, loaded twice", quantised, func(s *Situation) { fits(s); s.ModelParams = sample.Known(30e9) }, "", "= 120.0 GB of a budget of 110.0 GB"},
		{"30B, loaded once", quantised, func(s *Situation) { fits(s); s.ModelParams, s.LoadDoubles = sample.Known(30e9), &once }, "method qlora->lora, load_in_4bit true->false", "30.0 billion parameters x 2 bytes = 60.0 GB of"},
		{"reckoned, and it fits although it would not twice", quantised, func(s *Situation) { fits(s); s.ModelParams = sample.Known(32.8e9); s.SixteenBit = peak(78e9) }, "method qlora->lora, load_in_4bit true->false", "LoRA in bfloat16 (about 78.0 GB (68.0 GB to 88.0 GB) by the estimate of a budget of 106.0 GB; a different experiment)"},
		{"reckoned, and its rows do not fit although the weights would", quantised, func(s *Situation) { fits(s); s.SixteenBit = peak(130e9) }, "", "refused: LoRA in 16 bit does not fit: about 130.0 GB (120.0 GB to 140.0 GB) by the estimate of a budget of 106.0 GB"},
		{"that cannot be reckoned", quantised, func(s *Situation) {
			fits(s)
			s.SixteenBit = func(job.Knobs) (Reckoned, bool) { return Reckoned{}, false }
		}, "method qlora->lora, load_in_4bit true->false", "8.0 billion parameters x 2 bytes x 2 copies"},
		{"of unknown size", quantised, func(s *Situation) { fits(s); s.ModelParams = sample.Num{} }, "", "refused: the size of the model is not known"},
		{"of unknown budget", quantised, func(s *Situation) { fits(s); s.BudgetBytes = sample.Num{} }, "", "refused: the memory budget is not known"},
		{"files of 4 bit", quantised, func(s *Situation) { fits(s); s.ModelQuantised = "bnb-4bit" }, "", "refused: the model's own files are quantised (bnb-4bit)"},
		{"files of 4 bit, allowed", quantised, func(s *Situation) {
			fits(s)
			s.ModelQuantised, s.Allow = "bnb-4bit", map[string]bool{"bf16-lora": true}
		}, "method qlora->lora, load_in_4bit true->false", ""},
		{"died somewhere, after steps", quantised, func(s *Situation) { fits(s); s.Past[0].Phase, s.Past[0].Step = "unknown", 3 }, "method qlora->lora, load_in_4bit true->false", ""},
		{"died somewhere, before a step", quantised, func(s *Situation) { fits(s); s.Past[0].Phase = "unknown" }, "", "refused: it did not die in training"},
		{"died loading", quantised, func(s *Situation) { fits(s); s.Past[0].Phase = "load" }, "", "not-applicable: it died while loading"},
		{"died in the optimizer's first step", quantised, func(s *Situation) { fits(s); s.Past[0].Phase = "optimizer-init" }, "", "not-applicable: the optimizer's state did not fit"},
		{"exact", quantised, func(s *Situation) { fits(s); s.Exact = true }, "", "--exact: unquantised LoRA"},
		{"the trainer cannot", quantised, func(s *Situation) {
			fits(s)
			s.Fixed = map[job.Knob]string{job.Method: "quantisation is another script of the playbook"}
		}, "", "refused: the method cannot be turned: quantisation is another script of the playbook"},
		{"in the script, no shim", "", func(s *Situation) {
			fits(s)
			s.Job.Knobs, s.Shim = coded("seq_len=1024 method=qlora load_in_4bit=True"), ShimNever
		}, "", "the method stands in the script's code (train.py:8), where only the shim reaches it"},
		{"lora", "seq_len=1024 method=lora", nil, "", "it trains LoRA in 16 bit already"},
		{"full, in the script", "", func(s *Situation) { s.Job.Knobs = coded("seq_len=1024 method=full lora_lr=1e-4") }, "", "the shim cannot make LoRA of that"},
		{"full, the trainer cannot", "seq_len=1024 method=full lora_lr=1e-4", func(s *Situation) {
			s.Fixed = map[job.Knob]string{job.Method: "another recipe is needed"}
		}, "", "refused: the method cannot be turned: another recipe is needed"},
		{"full, after a death in the optimizer", "seq_len=1024 method=full lora_lr=1e-4 learning_rate=1e-5", func(s *Situation) { s.Past[0].Phase = "optimizer-init" }, "method full->lora, learning_rate 1e-5->1e-4", "starts over, in a folder of its own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := died(c.knobs)
			if c.set != nil {
				c.set(&s)
			}
			d := spark(t).Next(s)
			if steps(d) != c.steps {
				t.Errorf("%s: %s\n%s", steps(d), d.Why, notes(d))
			}
			if said := d.Why + "\n" + notes(d); !strings.Contains(said, c.say) {
				t.Errorf("%q lacks %q", said, c.say)
			}
		})
	}
}

// From the method rung on the run is another experiment and stays it; only the way from
// all weights to LoRA starts over, until LoRA has checkpoints of its own.
func TestAnotherExperiment(t *testing.T) {
	t.Parallel()
	l := spark(t)
	s := died("seq_len=2048 method=full lora_lr=1e-4 learning_rate=1e-5")
	d := l.Next(s)
	if d.OtherExperiment || d.StartOver || d.NewFolder {
		t.Fatalf("a shorter length: %+v", d)
	}
	s = then(s, d)
	d = l.Next(s)
	if steps(d) != "method full->lora, learning_rate 1e-5->1e-4" || !d.OtherExperiment || !d.StartOver || !d.NewFolder {
		t.Fatalf("%+v", d)
	}
	lora := then(s, d)
	unsure := func(progressed bool) Decision {
		s := lora
		s.Past = slices.Clone(lora.Past)
		p := &s.Past[len(s.Past)-1]
		p.Answer, p.Progressed = AnswerUnsure, progressed
		return l.Next(s)
	}
	if d := unsure(false); d.Again != AgainUnsure || !d.OtherExperiment || !d.StartOver || !d.NewFolder {
		t.Errorf("again, without a checkpoint of LoRA: %+v", d)
	}
	if d := unsure(true); d.Again != AgainUnsure || !d.OtherExperiment || d.StartOver || !d.NewFolder {
		t.Errorf("again, with one: %+v", d)
	}
	if d := l.Next(lora); d.Act != "stop" || !d.OtherExperiment || d.StartOver || d.NewFolder {
		t.Errorf("the end: %+v", d)
	}
	lora.Past[len(lora.Past)-1].Answer = AnswerSuccess
	if d := l.Next(lora); d.Stop != StopSuccess || !d.OtherExperiment {
		t.Errorf("success: %+v", d)
	}
	// Quantised LoRA may go on from its adapter; the supervisor decides.
	s = died("seq_len=1024 method=qlora")
	s.ModelParams, s.BudgetBytes = sample.Known(1e9), sample.Known(110e9)
	if d := l.Next(s); !d.OtherExperiment || d.StartOver || !d.NewFolder {
		t.Errorf("%+v", d)
	}
	// A step that did not apply made no other experiment.
	s = inCode("seq_len=1024 method=qlora load_in_4bit=True")
	s.ModelParams, s.BudgetBytes = sample.Known(1e9), sample.Known(110e9)
	d = l.Next(s)
	s = then(s, d)
	s.Past[1].NotApplied = []job.Knob{job.LoadIn4Bit}
	if d := l.Next(s); d.Act != "stop" || d.OtherExperiment || d.Knobs[job.Method].Value != "qlora" {
		t.Errorf("%+v", d)
	}
}
