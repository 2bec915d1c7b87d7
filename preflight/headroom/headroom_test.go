package headroom

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/sample"
)

func mustEstimate(t *testing.T, s Spec) Estimate {
	t.Helper()
	e, err := s.Estimate()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func near(got int64, want, slack float64) bool { return math.Abs(float64(got)-want) <= want*slack }

// The runbook's own table: decimal GB before activations.
func TestRunbookTable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		params                           float64
		bf16, nf4, adamw, adamw8, atLoad float64
	}{
		{7e9, 14, 3.5, 84, 42, 28},
		{9e9, 18, 4.5, 108, 54, 36},
		{14e9, 28, 7, 168, 84, 56},
		{27e9, 54, 13.5, 324, 162, 108},
		{70e9, 140, 35, 840, 420, 280},
	} {
		model, err := OfParams(int64(c.params))
		if err != nil {
			t.Fatal(err)
		}
		still := func(e Estimate) int64 {
			return e.Term(TermWeights) + e.Term(TermGradients) + e.Term(TermOptimizer)
		}
		full := mustEstimate(t, Spec{Model: model, Method: Full, Optimizer: "adamw_torch"})
		eight := mustEstimate(t, Spec{Model: model, Method: Full, Optimizer: "adamw_8bit"})
		lora := mustEstimate(t, Spec{Model: model, Method: LoRA})
		four := mustEstimate(t, Spec{Model: model, Method: QLoRA})
		if !near(lora.Term(TermWeights), c.bf16*1e9, 1e-9) || !near(still(full), c.adamw*1e9, 1e-9) || !near(still(eight), c.adamw8*1e9, 1e-9) {
			t.Errorf("%g: lora %s, full %s, 8 bit %s", c.params, GB(lora.Term(TermWeights)), GB(still(full)), GB(still(eight)))
		}
		if got := lora.Term(TermWeights) + lora.Term(TermLoad); !near(got, c.atLoad*1e9, 1e-9) {
			t.Errorf("%g: while loading %s", c.params, GB(got))
		}
		// The runbook leaves out scales and what stays in 16 bit: it is the lower bound.
		if got := float64(four.Term(TermWeights)) / 1e9; got < c.nf4 || got > c.nf4*1.5 {
			t.Errorf("%g: in 4 bit %.1f GB, the runbook has %.1f", c.params, got, c.nf4)
		}
		if a := four.Term(TermGradients) + four.Term(TermOptimizer); float64(a) > 0.04*c.bf16*1e9 {
			t.Errorf("%g: gradients and optimizer of an adapter take %s", c.params, GB(a))
		}
	}
}

// Each optimizer by the names that trainers have for it.
func TestOptimizers(t *testing.T) {
	t.Parallel()
	table, err := loadTable()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"adamw_torch": 8, "adamw_torch_fused": 8, "AdamW": 8, "torch.optim.AdamW": 8, "paged_adamw_32bit": 8, "adamw_hf": 8, "adam": 8,
		"adamw_8bit": 2, "adamw_bnb_8bit": 2, "paged_adamw_8bit": 2, "bitsandbytes.optim.PagedAdamW8bit": 2, "adamw-torch-8bit": 2, "adamw_torch_4bit": 1,
		"adafactor": 0.05, "muon": 4, "sgd": 4, "lion_8bit": 1, "lion_32bit": 4, "galore_adamw": 2, "lomo": 0, "adalomo": 0, "rmsprop": 4,
		"schedule_free_adamw": 8, "ademamix": 12, "prodigy": 16,
	} {
		if o, ok := table.optimizerOf(name); !ok || o.Bytes != want {
			t.Errorf("%s: %+v, want %g", name, o, want)
		}
	}
	e := mustEstimate(t, Spec{Model: modelsize.Size{Params: 8e9}, Method: Full, Optimizer: "quux"})
	if e.Term(TermOptimizer) != 64e9 || !slices.ContainsFunc(e.Assumed, func(s string) bool { return strings.Contains(s, "quux keeps as much state as AdamW") }) {
		t.Errorf("an unknown optimizer: %v", e.Assumed)
	}
}

// What each setting changes, in the terms.
func TestTerms(t *testing.T) {
	t.Parallel()
	base := func() Spec {
		return Spec{
			Model: models["Qwen3-8B"], Method: LoRA, WeightDType: "bf16", Optimizer: "adamw", Rank: 16,
			MicroBatch: 2, SeqLen: 1024, GradCheckpoint: On, Attention: "sdpa", Objective: "sft",
		}
	}
	with := func(change func(*Spec)) Estimate {
		s := base()
		change(&s)
		return mustEstimate(t, s)
	}
	plain := with(func(*Spec) {})
	if len(plain.Assumed) != 1 || !strings.HasPrefix(plain.Assumed[0], "adapters on all linear layers") {
		t.Errorf("told everything but the targets, assumed %q", plain.Assumed)
	}
	// 16 x (in + out) over q, k, v, o, gate, up, down of 36 layers: what PEFT prints.
	if got, want := plain.Term(TermAdapter), int64(43646976*4); got != want {
		t.Errorf("adapter %d, want %d", got, want)
	}
	if got, want := plain.Term(TermLogits), int64(2*1024*151936*16); got != want {
		t.Errorf("logits %d, want %d", got, want)
	}
	if e := with(func(s *Spec) { s.Targets = []string{"q_proj", "v_proj"} }); e.Term(TermAdapter) >= plain.Term(TermAdapter)/2 || len(e.Assumed) != 0 {
		t.Errorf("two targets: %s, %q", GB(e.Term(TermAdapter)), e.Assumed)
	}
	for _, all := range [][]string{{"all-linear"}, {"all"}, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, {`.*regex.*`}} {
		if e := with(func(s *Spec) { s.Targets = all }); e.Term(TermAdapter) != plain.Term(TermAdapter) {
			t.Errorf("%q: %s", all, GB(e.Term(TermAdapter)))
		}
	}
	if e := with(func(s *Spec) { s.GradCheckpoint = Off }); e.Steady <= plain.Steady+10e9 {
		t.Errorf("without checkpointing %s, with it %s", GB(e.Steady), GB(plain.Steady))
	}
	flash := with(func(s *Spec) { s.Attention = "flash_attention_2"; s.GradCheckpoint = Off })
	eager := with(func(s *Spec) { s.Attention = "eager"; s.GradCheckpoint = Off })
	// 36 layers x 2 rows x 32 heads x 1024 x 1024 pairs x 6 bytes.
	if got, want := eager.Term(TermActivations)-flash.Term(TermActivations), int64(36*2*32*1024*1024*6); got != want {
		t.Errorf("eager adds %d, want %d", got, want)
	}
	if e := with(func(s *Spec) { s.FusedLoss = On }); e.Term(TermLogits) >= plain.Term(TermLogits)/10 {
		t.Errorf("fused loss: %s", GB(e.Term(TermLogits)))
	}
	if e := with(func(s *Spec) { s.Objective = "dpo" }); e.Term(TermLogits) != 2*plain.Term(TermLogits) || e.Term(TermReference) != 0 {
		t.Errorf("dpo on an adapter: %+v", e.Terms)
	}
	if e := with(func(s *Spec) { s.Objective, s.Method = "dpo", Full }); e.Term(TermReference) != e.Term(TermWeights) {
		t.Errorf("dpo on all weights: %+v", e.Terms)
	}
	if e := with(func(s *Spec) { s.Objective, s.ServerBytes = "grpo", 30e9 }); e.Term(TermServer) != 30e9 || e.Term(TermGeneration) == 0 {
		t.Errorf("grpo: %+v", e.Terms)
	}
	full := with(func(s *Spec) { s.Method = Full })
	mixed := with(func(s *Spec) { s.Method, s.MixedPrecision = Full, On })
	pure := with(func(s *Spec) { s.Method, s.MixedPrecision = Full, Off })
	n := float64(models["Qwen3-8B"].Params)
	for what, c := range map[string][2]float64{
		"told bf16": {float64(full.Term(TermWeights) + full.Term(TermGradients) + full.Term(TermOptimizer)), 12},
		"mixed":     {float64(mixed.Term(TermWeights) + mixed.Term(TermGradients) + mixed.Term(TermOptimizer)), 18},
		"pure":      {float64(pure.Term(TermWeights) + pure.Term(TermGradients) + pure.Term(TermOptimizer)), 8},
	} {
		if got := c[0] / n; math.Abs(got-c[1]) > 0.001 {
			t.Errorf("%s: %.3f bytes for a parameter, want %g", what, got, c[1])
		}
	}
	if full.Low > int64(9*n) || full.High < int64(16*n) {
		t.Errorf("the range of a full fine-tune is %s to %s", GB(full.Low), GB(full.High))
	}
	if full.Checkpoint != int64(2*n)+int64(8*n) {
		t.Errorf("checkpoint %s (%s)", GB(full.Checkpoint), full.CheckpointHow)
	}
	if plain.Checkpoint != int64(43646976*(4+8)) {
		t.Errorf("checkpoint of an adapter %d (%s)", plain.Checkpoint, plain.CheckpointHow)
	}
}

// A tied output layer that the files have twice is in memory once.
func TestTiedHead(t *testing.T) {
	t.Parallel()
	m := models["Qwen3-0.6B"]
	head := m.Arch.Vocab * m.Arch.Hidden
	twice := m
	twice.Params += head
	twice.Parts = modelsize.Parts{Embeddings: head, Head: head, Linears: m.Params - head}
	s := Spec{Model: m, Method: Full}
	one := mustEstimate(t, s)
	s.Model = twice
	if two := mustEstimate(t, s); two.Term(TermWeights) != one.Term(TermWeights) {
		t.Errorf("%s and %s", GB(one.Term(TermWeights)), GB(two.Term(TermWeights)))
	}
}

func TestMixtures(t *testing.T) {
	t.Parallel()
	s := Spec{Model: models["Qwen3-30B-A3B"], Method: LoRA, MicroBatch: 1, SeqLen: 2048, GradCheckpoint: Off, FusedLoss: On, Rank: 16}
	e := mustEstimate(t, s)
	if e.Term(TermWeights) != 2*s.Model.Params {
		t.Errorf("weights %s: all experts are there", GB(e.Term(TermWeights)))
	}
	dense := s
	dense.Model = models["Qwen3-32B"]
	if d := mustEstimate(t, dense); e.Term(TermActivations) >= d.Term(TermActivations)/2 {
		t.Errorf("activations %s, those of a dense model of the size %s: only active experts count", GB(e.Term(TermActivations)), GB(d.Term(TermActivations)))
	}
	attention := e.Term(TermAdapter)
	s.Targets = []string{"q_proj", "gate_proj", "up_proj", "down_proj"}
	if x := mustEstimate(t, s); x.Term(TermAdapter) < 20*attention {
		t.Errorf("adapters on 128 experts take %s, on the attention %s", GB(x.Term(TermAdapter)), GB(attention))
	}
}

// Ready-made quantised models are loaded as they are stored.
func TestQuantised(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"bnb-4bit", "bnb-8bit", "gptq", "awq", "mxfp4", "nvfp4", "fp8", "compressed-tensors", "of-tomorrow"} {
		m := quantised(models["Llama-8B"], format)
		m.TensorBytes, m.Bytes = 5_700_000_000, 5_700_100_000
		e := mustEstimate(t, Spec{Model: m, Method: QLoRA})
		if e.Term(TermWeights) != m.TensorBytes || !e.WeightsExact || e.Term(TermLoad) != m.Bytes || e.Term(TermDequant) == 0 {
			t.Errorf("%s: %+v", format, e)
		}
		m.TensorBytes, m.Bytes, m.Exact = 0, 0, false
		if e := mustEstimate(t, Spec{Model: m, Method: LoRA}); e.Term(TermWeights) < 4e9 || e.Term(TermWeights) > 12e9 || e.WeightsExact {
			t.Errorf("%s by name: %s", format, GB(e.Term(TermWeights)))
		}
		// All of them cannot be trained, but for those that loaders unpack.
		full := Spec{Model: m, Method: Full, WeightDType: "bf16", MixedPrecision: Off}
		e = mustEstimate(t, full)
		rung, err := FirstRung(full, 1e12)
		o := Judge(e, 1e12)
		if format == "mxfp4" {
			if o.Verdict != Fits || e.Term(TermWeights) != 2*m.Params || len(e.Notes) == 0 || err != nil || rung.Words != "start as it is" {
				t.Errorf("%s, all weights: %+v %q %+v, %v", format, o, e.Notes, rung, err)
			}
			continue
		}
		if o.Verdict != Over || o.Blocks || !strings.Contains(o.Why, "cannot be done as asked: weights that are stored in "+format) || err != nil || !strings.Contains(rung.Words, "cannot be done as asked") {
			t.Errorf("%s, all weights: %+v %+v, %v", format, o, rung, err)
		}
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	good := modelsize.Size{Params: 8e9}
	for name, s := range map[string]Spec{
		"nothing":         {},
		"an image":        {Model: good, Image: true},
		"negative batch":  {Model: good, MicroBatch: -1},
		"negative length": {Model: good, SeqLen: -1},
		"negative rank":   {Model: good, Rank: -5},
		"negative params": {Model: modelsize.Size{Params: -3}},
	} {
		if e, err := s.Estimate(); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
		if _, err := Fit(s, 1e11); err == nil {
			t.Errorf("%s: fits", name)
		}
		if _, err := FirstRung(s, 1e11); err == nil {
			t.Errorf("%s: a rung", name)
		}
	}
	e := mustEstimate(t, Spec{Model: good})
	if all := strings.Join(e.Assumed, "\n"); !strings.Contains(all, "shape of a usual dense model of 8B") || !strings.Contains(all, "method lora") ||
		!strings.Contains(all, "micro-batch 1") || !strings.Contains(all, "rows of 2048") || !strings.Contains(all, "checkpointing on (without it about ") || !strings.Contains(all, "optimizer adamw") {
		t.Errorf("assumed %q", e.Assumed)
	}
}

// Absurd numbers stop at the largest there is; nothing wraps.
func TestSaturates(t *testing.T) {
	t.Parallel()
	huge := int64(math.MaxInt64)
	m := modelsize.Size{Params: huge, Bytes: huge, TensorBytes: huge, Exact: true, Experts: huge, ActiveExperts: huge, Arch: modelsize.Arch{
		Hidden: huge, Layers: huge, Heads: 1 << 28, KVHeads: 1 << 28, HeadDim: 1 << 28, Intermediate: huge, Vocab: huge, MoEIntermediate: huge, SharedIntermediate: huge, MaxPositions: huge, Matrices: 3,
	}}
	for _, method := range []Method{Full, LoRA, QLoRA} {
		for _, objective := range []string{"sft", "dpo", "grpo"} {
			s := Spec{Model: m, Method: method, Objective: objective, Rank: huge, MicroBatch: huge, SeqLen: huge, ServerBytes: huge, Completions: huge, Accumulation: huge, Attention: "eager"}
			e := mustEstimate(t, s)
			for _, term := range e.Terms {
				if term.Bytes < 0 {
					t.Errorf("%s %s: %s %d", method, objective, term.Name, term.Bytes)
				}
			}
			if e.Peak != huge || e.Steady != huge || e.Load < 0 || e.Low < 0 || e.High != huge || e.Checkpoint < 0 {
				t.Errorf("%s %s: %+v", method, objective, e)
			}
			if o := Judge(e, 1e11); o.Verdict != Over || o.Left >= 0 {
				t.Errorf("%+v", o)
			}
			if _, err := FirstRung(s, 1e11); err != nil {
				t.Error(err)
			}
			_ = e.Chart(1e11, 80, true)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	e := Estimate{Peak: 100e9, Low: 90e9, High: 105e9, Weights: 60e9, WeightsLeast: 50e9}
	for _, c := range []struct {
		budget  int64
		change  func(*Estimate)
		verdict Verdict
		blocks  bool
		why     string
	}{
		{120e9, nil, Fits, false, "about 100 GB (90.0 GB to 105 GB) of 120 GB"},
		{106e9, nil, Fits, false, ""},
		{105.1e9, nil, Tight, false, "within the margin of 5.3 GB"},
		{100e9, nil, Tight, false, ""},
		{99e9, nil, Over, false, "1.0 GB more than"},
		{0, nil, Over, false, ""},
		{-5, nil, Over, false, ""},
		{49e9, nil, Over, false, ""}, // an estimate never blocks
		{49e9, func(e *Estimate) { e.WeightsExact = true }, Over, true, "the weights alone take 50.0 GB"},
		{51e9, func(e *Estimate) { e.WeightsExact = true }, Over, false, ""},
		{120e9, func(e *Estimate) { e.High = 130e9 }, Tight, false, "the upper end of the range does not fit"},
	} {
		own := e
		if c.change != nil {
			c.change(&own)
		}
		if o := Judge(own, c.budget); o.Verdict != c.verdict || o.Blocks != c.blocks || !strings.Contains(o.Why, c.why) {
			t.Errorf("%d: %+v", c.budget, o)
		}
	}
	if !NeedsCaches(e, 110e9, sample.Known(99e9)) || NeedsCaches(e, 110e9, sample.Known(101e9)) || NeedsCaches(e, 99e9, sample.Known(1)) || NeedsCaches(e, 110e9, sample.Num{}) {
		t.Error("NeedsCaches")
	}
}

// Only weights that were counted, in a form that was told, block.
func TestBlocks(t *testing.T) {
	t.Parallel()
	m := exact(70553706496, models["Llama-70B"].Arch)
	m.Parts = modelsize.Parts{Embeddings: 1050673152, Head: 1050673152, Linears: 68452360192}
	spark := int64(115e9)
	for name, c := range map[string]struct {
		spec   Spec
		blocks bool
	}{
		"16-bit LoRA of 70B":  {Spec{Model: m, Method: LoRA}, true},
		"all weights":         {Spec{Model: m, Method: Full, Optimizer: "adafactor"}, true},
		"QLoRA":               {Spec{Model: m, Method: QLoRA}, false},
		"no method told":      {Spec{Model: m}, false},
		"two machines":        {Spec{Model: m, Method: LoRA, Nodes: 2}, false},
		"not counted":         {Spec{Model: modelsize.Size{Params: 70e9}, Method: LoRA}, false},
		"in 32 bit it blocks": {Spec{Model: m, Method: LoRA, WeightDType: "float32"}, true},
	} {
		e := mustEstimate(t, c.spec)
		if o := Judge(e, spark); o.Blocks != c.blocks {
			t.Errorf("%s: %+v", name, o)
		}
	}
	// Told 32 bit, 40B would take 160 GB; in 16 bit, which is one flag away, it fits: no block.
	small := exact(40e9, models["Qwen3-32B"].Arch)
	if o := Judge(mustEstimate(t, Spec{Model: small, Method: LoRA, WeightDType: "float32"}), spark); o.Blocks || o.Verdict != Over {
		t.Errorf("%+v", o)
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	// An idle Spark, and a machine of 16 GiB.
	if got, want := Budget(120425308*1024, 125513720*1024), int64(120425308*1024-4<<30); got != want {
		t.Errorf("%d, want %d", got, want)
	}
	if got, want := Reserve(16<<30), int64(16<<30)/20; got != want {
		t.Errorf("%d, want %d", got, want)
	}
	if Budget(1<<30, 125513720*1024) != 0 || Budget(-5, 0) != 0 || Reserve(-1) != 0 {
		t.Error("less than nothing is nothing")
	}
}

func TestClosest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s    Spec
		want string
	}{
		"70B QLoRA":       {Spec{Model: models["Llama-70B"], Method: QLoRA}, "70B"},
		"27B":             {Spec{Model: models["Dense-27B"], Method: LoRA}, "27B"},
		"9B full":         {Spec{Model: models["Dense-9B"], Method: Full}, "9B"},
		"8B full":         {Spec{Model: models["Qwen3-8B"], Method: Full}, "8B"},
		"NVFP4 mixture":   {Spec{Model: models["MoE-120B"], Method: LoRA}, "120B mixture"},
		"mixture, 16 bit": {Spec{Model: modelsize.Size{Params: 120e9, Experts: 64}, Method: LoRA}, ""},
		"3B full":         {Spec{Model: modelsize.Size{Params: 3e9}, Method: Full}, ""},
		"nothing":         {Spec{}, ""},
	} {
		a, ok := Closest(c.s)
		if a.Class != c.want || ok != (c.want != "") {
			t.Errorf("%s: %+v", name, a)
		}
		if ok && (a.Date == "" || a.String() == "") {
			t.Errorf("%s: %+v", name, a)
		}
	}
	a, _ := Closest(Spec{Model: models["Qwen3-8B"], Method: LoRA})
	if FarAbove(Estimate{Peak: 60e9}, a) == "" || FarAbove(Estimate{Peak: 30e9}, a) != "" || FarAbove(Estimate{Peak: 60e9}, Anchor{}) != "" {
		t.Error("FarAbove")
	}
	if tab, err := loadTable(); err != nil || len(tab.Anchors) < 5 {
		t.Error("anchors")
	}
}

func TestFirstRung(t *testing.T) {
	t.Parallel()
	qwen := models["Qwen3-8B"]
	lora := Spec{Model: qwen, Method: LoRA, MicroBatch: 8, SeqLen: 4096, GradCheckpoint: On, Accumulation: 2}
	for _, c := range []struct {
		name   string
		spec   Spec
		budget int64
		rung   string
		knobs  map[string]string
		words  string
	}{
		{"fits", lora, 300e9, "", nil, "start as it is"},
		{"half the length", lora, 105e9, "shorter-packing", map[string]string{"seq_len": "2048"}, "rows of 2048 tokens"},
		{"then the batch", lora, 45e9, "shorter-packing", map[string]string{"seq_len": "1024", "micro_batch": "4", "accumulation": "4"}, "rows of 1024 tokens, then micro-batch 4 with accumulation 4"},
		{"then the method", Spec{Model: qwen, Method: Full, Optimizer: "adamw", MicroBatch: 1, SeqLen: 1024}, 60e9, "bf16-lora", map[string]string{"method": "lora"}, "different experiment"},
		{"nothing helps", Spec{Model: models["Qwen2.5-72B"], Method: LoRA, SeqLen: 1024}, 115e9, "smaller-model", nil, "QLoRA would take"},
	} {
		r, err := FirstRung(c.spec, c.budget)
		if err != nil || r.Name != c.rung || !strings.Contains(r.Words, c.words) || r.Peak == 0 {
			t.Errorf("%s: %+v, %v", c.name, r, err)
			continue
		}
		for k, v := range c.knobs {
			if r.Knobs[k] != v {
				t.Errorf("%s: %v", c.name, r.Knobs)
			}
		}
		if r.Name == "shorter-packing" || r.Name == "bf16-lora" {
			own := c.spec
			for k, v := range r.Knobs {
				n, _ := strconv.ParseInt(v, 10, 64)
				switch k {
				case "seq_len":
					own.SeqLen = n
				case "micro_batch":
					own.MicroBatch = n
				case "method":
					own.Method, own.Rank = Method(v), 0
				}
			}
			if e := mustEstimate(t, own); e.Peak != r.Peak || Judge(e, c.budget).Verdict == Over {
				t.Errorf("%s: the knobs give %s, the rung says %s", c.name, GB(e.Peak), GB(r.Peak))
			}
		}
	}
	// QLoRA that was quantised while loading is never sent to 16 bit if that cannot fit.
	if r, err := FirstRung(Spec{Model: models["Qwen2.5-72B"], Method: QLoRA, SeqLen: 1024, MicroBatch: 1}, 40e9); err != nil || r.Name != "smaller-model" {
		t.Errorf("%+v, %v", r, err)
	}
}

// The recommendation takes the steps that the ladder will take.
func TestRungsAreTheLadders(t *testing.T) {
	t.Parallel()
	data, err := configs.FS.ReadFile("ladder.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Ladders []struct {
			Name  string
			Rungs []struct {
				Name     string
				Does     []string
				Halvings int
				Floor    int64
			}
		}
	}
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	table, err := loadTable()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range doc.Ladders {
		if l.Name != "spark" {
			continue
		}
		var names []string
		for _, r := range l.Rungs {
			names = append(names, r.Name)
			if r.Name == "shorter-packing" && (r.Halvings != table.FirstRung.Halvings || r.Floor != table.FirstRung.Floor || !slices.Equal(r.Does, []string{"length", "micro-batch"})) {
				t.Errorf("%+v, memory.yaml has %+v", r, table.FirstRung)
			}
		}
		if !slices.Equal(names, []string{"drop-caches", "shorter-packing", "bf16-lora"}) {
			t.Errorf("the rungs are %v", names)
		}
		return
	}
	t.Error("no ladder spark")
}

func TestFromJob(t *testing.T) {
	t.Parallel()
	set := func(pairs ...string) job.Knobs {
		k := job.Knobs{}
		for i := 0; i < len(pairs); i += 2 {
			k[job.Knob(pairs[i])] = job.Setting{Value: pairs[i+1]}
		}
		return k
	}
	model := modelsize.Size{Params: 8e9}
	j := job.Job{
		Argv: []string{"trl", "dpo", "--model_name_or_path", "x/y-8B"}, Objective: "dpo",
		Knobs: set("model", "x/y-8B", "method", "lora", "load_in_4bit", "True", "micro_batch", "4", "seq_len", "2048", "accumulation", "8", "optimizer", "adamw_8bit",
			"dtype", "bfloat16", "grad_checkpoint", "true", "attention", "sdpa", "lora_rank", "32", "lora_targets", "[q_proj, 'v_proj']"),
	}
	s := FromJob(&j, model)
	if s.Method != QLoRA || s.MicroBatch != 4 || s.SeqLen != 2048 || s.Accumulation != 8 || s.Rank != 32 || s.GradCheckpoint != On || s.Objective != "dpo" ||
		!slices.Equal(s.Targets, []string{"q_proj", "v_proj"}) || s.ModelName != "x/y-8B" || s.Model.Params != 8e9 {
		t.Errorf("%+v", s)
	}
	for name, c := range map[string]struct {
		j    job.Job
		want func(Spec) bool
	}{
		"nothing":             {job.Job{}, func(s Spec) bool { return s.Method == "" && s.MicroBatch == 0 && s.GradCheckpoint == NotTold }},
		"words":               {job.Job{Knobs: set("micro_batch", "auto", "seq_len", "-1", "lora_rank", "1e9")}, func(s Spec) bool { return s.MicroBatch == 0 && s.SeqLen == 0 && s.Rank == 0 }},
		"unsloth":             {job.Job{Profile: "unsloth-script", Knobs: set("grad_checkpoint", "unsloth")}, func(s Spec) bool { return s.FusedLoss == On && s.GradCheckpoint == On }},
		"images":              {job.Job{Image: true}, func(s Spec) bool { return s.Image }},
		"a rank says LoRA":    {job.Job{Knobs: set("lora_rank", "8")}, func(s Spec) bool { return s.Method == LoRA && len(s.Assumed) == 1 }},
		"names tell nothing":  {job.Job{Script: "x.py", Argv: []string{"trl", "sft", "--dataset_name", "argilla/dpo-mix-7k", "--output_dir", "out/qwen-grpo", "--run_name=sft-before-dpo"}}, func(s Spec) bool { return s.Objective == "" }},
		"blocks":              {job.Job{Memory: set("trained_layers", "2", "master_weights", "true")}, func(s Spec) bool { return s.Method == Full && s.TrainedLayers == 2 && s.MixedPrecision == On }},
		"galore":              {job.Job{Knobs: set("optimizer", "adamw_torch"), Memory: set("optimizer_kind", "galore", "master_weights", "false")}, func(s Spec) bool { return s.Optimizer == "galore" && s.MixedPrecision == Off }},
		"block-wise":          {job.Job{Memory: set("block_wise", "true", "master_weights", "false")}, func(s Spec) bool { return s.BlockWise && s.MixedPrecision == On }},
		"a fused loss":        {job.Job{Memory: set("fused_loss", "true")}, func(s Spec) bool { return s.FusedLoss == On }},
		"perhaps a fused one": {job.Job{Memory: set("fused_loss", "perhaps")}, func(s Spec) bool { return s.FusedLoss == NotTold && s.MayFuse }},
		"TrainerAt is absurd": {job.Job{Argv: []string{"x"}, TrainerAt: 99}, func(s Spec) bool { return s.Objective == "" }},
		"full in 4 bit":       {job.Job{Knobs: set("method", "full", "load_in_4bit", "true")}, func(s Spec) bool { return s.Method == Full }},
	} {
		if s := FromJob(&c.j, model); !c.want(s) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s := FromJob(nil, model); s.Model.Params != 8e9 {
		t.Errorf("%+v", s)
	}
}

func TestParseParams(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"70B": 70e9, "0.6b": 6e8, "350M": 350e6, "8000000000": 8e9, " 1.2T ": 1.2e12, "8 B": 8e9, "8_000_000_000": 8e9, "7e9": 7e9,
		"": 0, "B": 0, "x": 0, "-8B": 0, "0": 0, "NaN": 0, "inf": 0, "1e30": 0, "1e300B": 0, "8BB": 0, "12": 0,
	} {
		got, err := ParseParams(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, n := range []int64{0, -1, 5, math.MaxInt64} {
		if _, err := OfParams(n); !errors.Is(err, ErrUnknown) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// A table with a mistake is refused with its line, or with what is wrong.
func TestTableIsChecked(t *testing.T) {
	t.Parallel()
	good, err := configs.FS.ReadFile("memory.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for change, want := range map[[2]string]string{
		{"runtime:\n", "runtme:\n"}:                            `memory.yaml:\d+: field runtme not found`,
		{"  gb: 3.0", "  gb: 0"}:                               `runtime.gb must be above 0`,
		{"  gb: 3.0", "  gb: .nan"}:                            `runtime.gb must be above 0`,
		{"hidden: 2048, layers: 28", "hidden: 1, layers: 28"}:  `shapes must grow`,
		{"    fits: fits at packs", "    fit: fits at packs"}:  `memory.yaml:\d+: field fit not found`,
		{"  method: lora\n  dtype", "  method: dora\n  dtype"}: `unknown method`,
		{"    date: \"2025-12\"\n", ""}:                        `needs params, a method, a date`,
	} {
		text := strings.Replace(string(good), change[0], change[1], 1)
		if text == string(good) {
			t.Errorf("%q is not in the table", change[0])
			continue
		}
		if _, err := readTable("memory.yaml", []byte(text)); err == nil || !regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("%q: %v", change[1], err)
		}
	}
}

// The errors that docs/plan.md lists are those of this version.
func TestDocumented(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->"
	path := filepath.Join("..", "..", "docs", "plan.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(data), begin)
	was, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("docs/plan.md has lost the place of its table")
	}
	now := measuredTable(t)
	if was == now {
		return
	}
	if os.Getenv("SPARKRUN_UPDATE") == "" {
		t.Fatalf("docs/plan.md lists other errors; rewrite it with SPARKRUN_UPDATE=1 and read the diff. Now:\n%s", now)
	}
	if err := os.WriteFile(path, []byte(head+begin+now+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What is tight for its loading is told so, not sent to shorter rows.
func TestLoadingIsNoRung(t *testing.T) {
	t.Parallel()
	s := Spec{Model: models["Qwen2.5-72B"], Method: QLoRA, MicroBatch: 1, SeqLen: 4096}
	o := Judge(mustEstimate(t, s), 115e9)
	r, err := FirstRung(s, 115e9)
	if o.Verdict != Tight || err != nil || r.Name != "" || !strings.Contains(r.Words, "quantised already") {
		t.Errorf("%+v %+v, %v", o, r, err)
	}
	s.Model.Quantised = "bnb-4bit"
	s.Model.TensorBytes = 41e9
	if o := Judge(mustEstimate(t, s), 115e9); o.Verdict != Fits {
		t.Errorf("%+v", o)
	}
}

// Weights of which a command may make something else never block.
func TestMayQuantise(t *testing.T) {
	t.Parallel()
	m := exact(70553706496, models["Llama-70B"].Arch)
	lora := func(source job.Source) job.Knobs {
		return job.Knobs{job.Method: {Value: "lora", Source: source}}
	}
	for name, c := range map[string]struct {
		j      job.Job
		blocks bool
	}{
		"told by a flag":         {job.Job{Knobs: lora(job.FromArgv), Argv: []string{"trl", "sft", "--use_peft", "--optim", "adamw_8bit"}}, true},
		"told by a file":         {job.Job{Knobs: lora(job.FromConfig)}, true},
		"in 8 bit by a flag":     {job.Job{Knobs: lora(job.FromArgv), Argv: []string{"trl", "sft", "--load_in_8bit", "true"}}, false},
		"some quantisation":      {job.Job{Knobs: lora(job.FromArgv), Argv: []string{"x", "--quantization=hqq"}}, false},
		"read from code":         {job.Job{Knobs: lora(job.FromScript)}, false},
		"the trainer's default":  {job.Job{Knobs: lora(job.FromDefault)}, false},
		"told in bits":           {job.Job{Knobs: job.Knobs{job.Method: {Value: "lora", Source: job.FromConfig}, "quantization_bit": {Value: "8"}}}, false},
		"8 bit in the file":      {job.Job{Knobs: job.Knobs{job.Method: {Value: "qlora", Source: job.FromConfig}, "load_in_8bit": {Value: "true"}}}, false},
		"a data set of the name": {job.Job{Knobs: lora(job.FromArgv), Argv: []string{"trl", "sft", "--dataset_name", "mine-int8-quant"}}, true},
		"a type of weights":      {job.Job{Knobs: lora(job.FromArgv), Argv: []string{"x", "--weight_dtype", "int8"}}, false},
		"a key":                  {job.Job{Knobs: lora(job.FromArgv), Argv: []string{"x", "model.quantization=nf4"}}, false},
		"switched off":           {job.Job{Knobs: lora(job.FromArgv), Argv: []string{"x", "--load_in_8bit", "false"}}, true},
		"a folder with the word": {job.Job{Knobs: lora(job.FromArgv), Argv: []string{"trl", "sft", "--output_dir", "runs/quant"}}, true},
	} {
		s := FromJob(&c.j, m)
		e := mustEstimate(t, s)
		if o := Judge(e, 115e9); o.Blocks != c.blocks {
			t.Errorf("%s: %+v, %+v", name, s, o)
		}
		if strings.Contains(name, "bits") || strings.Contains(name, "8 bit in the file") {
			if got := e.Term(TermWeights); s.Method != QLoRA || got < 70e9 || got > 80e9 {
				t.Errorf("%s: weights %s", name, GB(got))
			}
		}
	}
}

// A method that nobody tells is anything from an adapter to all weights: such a plan fits
// where both do.
func TestMethodNotTold(t *testing.T) {
	t.Parallel()
	s := Spec{Model: models["Llama-8B"], WeightDType: "bf16", Optimizer: "adamw", MicroBatch: 1, SeqLen: 2048, GradCheckpoint: On, Attention: "sdpa"}
	e := mustEstimate(t, s)
	lora, full := s, s
	lora.Method, full.Method = LoRA, Full
	small, large := mustEstimate(t, lora), mustEstimate(t, full)
	if !e.MethodAssumed || small.MethodAssumed || e.Peak != small.Peak || e.Low != small.Low || e.High != large.High || e.AllWeights != large.Peak {
		t.Errorf("%s (%s to %s), lora %s, full to %s", GB(e.Peak), GB(e.Low), GB(e.High), GB(small.Peak), GB(large.High))
	}
	if all := strings.Join(e.Assumed, "\n"); !strings.Contains(all, "method lora; all weights would take about "+GB(large.Peak)) {
		t.Errorf("assumed %q", e.Assumed)
	}
	if o := Judge(small, 115e9); o.Verdict != Fits {
		t.Errorf("told LoRA: %+v", o)
	}
	o := Judge(e, 115e9)
	if o.Verdict != Tight || !strings.Contains(o.Why, "how it is trained is not told") {
		t.Errorf("%+v", o)
	}
	if r, err := FirstRung(s, 115e9); err != nil || r.Name != "" || !strings.Contains(r.Words, "--method full, lora or qlora") {
		t.Errorf("%+v, %v", r, err)
	}
	if o := Judge(e, large.High+Margin(large.High)+1e9); o.Verdict != Fits {
		t.Errorf("where all weights fit as well: %+v", o)
	}
}

// Activation checkpointing that is off goes before every rung: it leaves the training the
// same.
func TestCheckpointingFirst(t *testing.T) {
	t.Parallel()
	full := Spec{Model: models["Qwen3-32B"], Method: Full, WeightDType: "bf16", Optimizer: "adamw", MicroBatch: 4, SeqLen: 8192, GradCheckpoint: Off, Attention: "sdpa", Accumulation: 2}
	lora := full
	lora.Method, lora.Rank, lora.MicroBatch, lora.SeqLen = LoRA, 16, 1, 2048
	for _, c := range []struct {
		name, rung, words string
		spec              Spec
		budget            int64
	}{
		{"it is enough", Checkpointing, "switch activation checkpointing on", lora, 115e9},
		{"and another rung", "bf16-lora", "leaves the training the same; then ", full, 115e9},
		{"nothing is enough", Smaller, "checkpointing is off; with it", full, 20e9},
	} {
		e := mustEstimate(t, c.spec)
		r, err := FirstRung(c.spec, c.budget)
		if err != nil || r.Name != c.rung || !strings.Contains(r.Words, c.words) || c.rung != Smaller && (r.Knobs["grad_checkpoint"] != "true" || r.Peak >= e.Peak || r.Peak > c.budget) {
			t.Errorf("%s: %s, %+v, %v", c.name, GB(e.Peak), r, err)
		}
	}
	on := lora
	on.GradCheckpoint = On
	if r, _ := FirstRung(on, 60e9); strings.Contains(r.Words, "checkpointing") {
		t.Errorf("it is on: %+v", r)
	}
}

// What is tight by its upper end only is told what else there is.
func TestTightByTheUpperEnd(t *testing.T) {
	t.Parallel()
	s := Spec{Model: models["Qwen3-8B"], Method: Full, WeightDType: "bf16", Optimizer: "adamw", MicroBatch: 1, SeqLen: 1024, GradCheckpoint: On, Attention: "sdpa"}
	e := mustEstimate(t, s)
	budget := e.Peak + Margin(e.Peak) + 2e9
	r, err := FirstRung(s, budget)
	if o := Judge(e, budget); o.Verdict != Tight || err != nil || r.Name != "" || !strings.Contains(r.Words, "LoRA in 16 bit, which is a different experiment, would take about") {
		t.Errorf("%+v %+v, %v", o, r, err)
	}
}

// A reward model has one number for each row and no output over the vocabulary.
func TestReward(t *testing.T) {
	t.Parallel()
	s := Spec{Model: models["Qwen3-8B"], Method: Full, WeightDType: "bf16", Optimizer: "adamw", MicroBatch: 2, SeqLen: 1024, GradCheckpoint: On, Objective: "sft"}
	sft := mustEstimate(t, s)
	for _, word := range []string{"reward", "rm"} {
		s.Objective = word
		e := mustEstimate(t, s)
		head := 2 * models["Qwen3-8B"].Arch.Vocab * models["Qwen3-8B"].Arch.Hidden
		if e.Term(TermLogits) != 0 || e.Term(TermReference) != 0 || e.Term(TermWeights) != sft.Term(TermWeights)-head || e.Term(TermActivations) <= sft.Term(TermActivations) {
			t.Errorf("%s: %+v", word, e.Terms)
		}
	}
}

// Blocks that are held have no gradients and no optimizer.
func TestTrainedLayers(t *testing.T) {
	t.Parallel()
	s := Spec{Model: models["Llama-8B"], Method: Full, WeightDType: "bf16", Optimizer: "adamw", MicroBatch: 1, SeqLen: 2048, GradCheckpoint: Off, MixedPrecision: On, FusedLoss: On}
	all := mustEstimate(t, s)
	s.TrainedLayers = 2
	last := mustEstimate(t, s)
	s.TrainedLayers = -2
	first := mustEstimate(t, s)
	s.TrainedLayers, s.BlockWise = 0, true
	block := mustEstimate(t, s)
	for name, e := range map[string]Estimate{"last": last, "first": first, "block-wise": block} {
		if e.Term(TermOptimizer)*10 > all.Term(TermOptimizer) || e.Term(TermGradients)*10 > all.Term(TermGradients) || e.Term(TermWeights) < 2*s.Model.Params || e.Checkpoint > 3*s.Model.Params*2 {
			t.Errorf("%s: %+v", name, e.Terms)
		}
	}
	if last.Term(TermActivations)*10 > all.Term(TermActivations) || first.Term(TermActivations) != all.Term(TermActivations) {
		t.Errorf("activations %s, of the first %s, of all %s", GB(last.Term(TermActivations)), GB(first.Term(TermActivations)), GB(all.Term(TermActivations)))
	}
	if block.Term(TermOptimizer) <= last.Term(TermOptimizer) {
		t.Error("the embeddings are a block of their own")
	}
}

// A loss that may work in pieces widens the range downwards; in 32 bit the text does not
// speak of 16.
func TestLosses(t *testing.T) {
	t.Parallel()
	s := Spec{Model: models["Qwen3-8B"], Method: LoRA, WeightDType: "bf16", Optimizer: "adamw", Rank: 16, MicroBatch: 8, SeqLen: 4096, GradCheckpoint: On}
	whole := mustEstimate(t, s)
	s.MayFuse = true
	may := mustEstimate(t, s)
	s.FusedLoss = On
	fused := mustEstimate(t, s)
	if may.Peak != whole.Peak || may.High != whole.High || may.Low >= whole.Low || fused.High >= whole.Peak {
		t.Errorf("%s (%s), perhaps %s (%s), fused %s", GB(whole.Peak), GB(whole.Low), GB(may.Peak), GB(may.Low), GB(fused.Peak))
	}
	full := s
	full.Method, full.MixedPrecision = Full, Off
	if with := mustEstimate(t, full); with.Term(TermLogits)-fused.Term(TermLogits) != 4*s.Model.Arch.Vocab*s.Model.Arch.Hidden {
		t.Errorf("a trained output layer has a gradient in 32 bit: %s", GB(with.Term(TermLogits)))
	}
	s.FusedLoss, s.WeightDType = NotTold, "float32"
	for _, term := range mustEstimate(t, s).Terms {
		if term.Name == TermLogits && strings.Contains(term.How, "16 bit") {
			t.Error(term.How)
		}
	}
}
