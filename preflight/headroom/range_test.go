package headroom

import (
	"fmt"
	"strings"
	"testing"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
)

// Where nobody tells a type, weights are loaded in the one of the library: 32 bit with
// some, as the files are with others; where that is not known, the range has both. What is
// told, quantised or not clear goes before it, and no guess ever makes a block.
func TestTypeThatNobodyTells(t *testing.T) {
	t.Parallel()
	half := models["Qwen3-32B"]
	single := half
	single.DType, single.Bytes, single.TensorBytes = "F32", 4*half.Params, 4*half.Params
	packed := quantised(half, "bnb-4bit")
	weights := float64(half.Params)
	for name, c := range map[string]struct {
		model           modelsize.Size
		method          string
		dtype, load     string
		four            string
		bytes, high     float64 // of each parameter; 0 is not looked at
		loads32, blocks bool
		note            string
	}{
		"32 bit":                     {half, "lora", "", "float32", "", 4, 4, true, false, "in 16 bit (dtype bfloat16"},
		"32 bit, all weights":        {half, "full", "", "float32", "", 4, 0, true, false, ""},
		"told":                       {half, "lora", "bfloat16", "float32", "", 2, 2, false, false, ""},
		"told to be the files'":      {single, "lora", "auto", "", "", 4, 4, false, false, ""},
		"as the files":               {half, "lora", "", "auto", "", 2, 2, false, false, ""},
		"as the files, in 32 bit":    {single, "lora", "", "auto", "", 4, 4, false, false, ""},
		"perhaps":                    {half, "lora", "", "perhaps", "", 2, 4, false, false, "some versions of the libraries load them in 32 bit"},
		"not known":                  {half, "lora", "", "", "", 2, 2, false, false, ""},
		"quantised while loading":    {half, "lora", "", "float32", "true", 0, 0, false, false, ""},
		"stored quantised":           {packed, "lora", "", "float32", "", 0, 0, false, false, ""},
		"a word that is not a type":  {half, "lora", "", "told", "", 2, 2, false, false, ""},
		"70B in 32 bit, by a guess":  {exact(57e9, models["Llama-70B"].Arch), "lora", "", "float32", "", 4, 4, true, false, ""},
		"70B in 16 bit, as is known": {exact(60e9, models["Llama-70B"].Arch), "lora", "bfloat16", "", "", 2, 2, false, true, ""},
	} {
		j := job.Job{Knobs: job.Knobs{
			job.Method: {Value: c.method, Source: job.FromArgv}, job.SeqLen: {Value: "1024"}, job.MicroBatch: {Value: "1"},
			job.DType: {Value: c.dtype}, job.LoadIn4Bit: {Value: c.four}, job.LoRATargets: {Value: "q_proj"}, job.LoRARank: {Value: "8"},
		}, Memory: job.Knobs{"load_dtype": {Value: c.load}}}
		s := FromJob(&j, c.model)
		e := mustEstimate(t, s)
		size := float64(c.model.Params)
		if got := float64(e.Term(TermWeights)) / size; c.bytes > 0 && got != c.bytes || c.bytes == 0 && got > 1 {
			t.Errorf("%s: %g bytes for each parameter, want %g", name, got, c.bytes)
		}
		// What else the range has is less than half a byte of each.
		if c.high > 0 {
			if more := float64(e.High-e.Peak) / size; more < c.high-c.bytes || more > c.high-c.bytes+0.5 {
				t.Errorf("%s: the range goes %g bytes for each parameter higher, want %g", name, more, c.high-c.bytes)
			}
		}
		if o := Judge(e, 115e9); o.Blocks != c.blocks || e.Loads32 != c.loads32 {
			t.Errorf("%s: %+v, loads in 32 bit %v", name, o, e.Loads32)
		}
		if notes := strings.Join(e.Notes, "\n"); !strings.Contains(notes, c.note) || c.note == "" && !c.loads32 && strings.Contains(notes, "the type of the weights") {
			t.Errorf("%s: notes %q", name, e.Notes)
		}
	}
	// The cure comes before all rungs, where it is one.
	j := job.Job{Knobs: job.Knobs{job.Method: {Value: "lora"}, job.SeqLen: {Value: "4096"}}, Memory: job.Knobs{"load_dtype": {Value: "float32"}}}
	s := FromJob(&j, half)
	if r, err := FirstRung(s, 115e9); err != nil || r.Name != "" || !strings.Contains(r.Words, "tell the type of the weights (dtype bfloat16") || float64(r.Peak) > 3*weights {
		t.Errorf("start from %+v, %v", r, err)
	}
	if r, err := FirstRung(s, 50e9); err != nil || strings.Contains(r.Words, "tell the type") {
		t.Errorf("where it is none: %+v, %v", r, err)
	}
	// A type that is set in a way which is not understood is none that nobody told.
	j.Unclear = map[job.Knob]string{job.DType: "worked out in the code"}
	if e := mustEstimate(t, FromJob(&j, half)); e.Loads32 {
		t.Errorf("not clear: %+v", e.Assumed)
	}
}

// Rows that are packed are full: the lower end has no shorter ones.
func TestPackedRowsAreFull(t *testing.T) {
	t.Parallel()
	j := job.Job{Knobs: job.Knobs{job.Method: {Value: "lora"}, job.SeqLen: {Value: "8192"}, job.Packing: {Value: "false"}}}
	loose := mustEstimate(t, FromJob(&j, models["Qwen3-8B"]))
	j.Knobs[job.Packing] = job.Setting{Value: "True"}
	full := mustEstimate(t, FromJob(&j, models["Qwen3-8B"]))
	rows := loose.Term(TermLogits)*12/16 + loose.Term(TermActivations)
	if full.Peak != loose.Peak || full.High != loose.High || full.Low-loose.Low < rows/2 || full.Low >= full.Peak {
		t.Errorf("packed %s to %s, else %s to %s", GB(full.Low), GB(full.High), GB(loose.Low), GB(loose.High))
	}
}

// A word for all linear layers may mean the experts' too: the range has both, and PEFT's
// own word counts them; of mixtures whose experts never are layers the range has the one.
func TestAdaptersOfExperts(t *testing.T) {
	t.Parallel()
	m := models["Qwen3-30B-A3B"]
	// Three matrices of 2048 x 768 for each of 128 experts in 48 layers, of rank 16, 16
	// bytes each: 4 and 4 for weight and gradient, 8 for AdamW.
	experts := int64(48 * 128 * 3 * 16 * (2048 + 768) * 16)
	of := func(m modelsize.Size, targets ...string) Estimate {
		return mustEstimate(t, Spec{Model: m, Method: LoRA, Rank: 16, Targets: targets, WeightDType: "bf16", MicroBatch: 1, SeqLen: 1024, GradCheckpoint: On, Attention: "sdpa"})
	}
	attention := of(m, "q_proj", "k_proj", "v_proj", "o_proj")
	for _, c := range []struct {
		targets []string
		with    int64
	}{{nil, 0}, {[]string{"all"}, 0}, {[]string{"all-linear"}, experts}} {
		e := of(m, c.targets...)
		// Inputs of adapted layers are kept for them.
		more := e.Term(TermActivations) + e.Term(TermAllocator) - attention.Term(TermActivations) - attention.Term(TermAllocator)
		if e.Peak != attention.Peak+c.with+more || e.High < attention.High+experts || e.High > attention.High+experts+2*more || e.Low < attention.Low || e.Low > attention.Low+more ||
			!strings.Contains(strings.Join(e.Notes, "\n"), ": "+GB(experts)+", which is "+map[bool]string{true: "in", false: "not in"}[c.with > 0]) {
			t.Errorf("%q: %s (%s to %s), want %s; %q", c.targets, GB(e.Peak), GB(e.Low), GB(e.High), GB(attention.Peak+c.with), e.Notes)
		}
	}
	if e := of(m, "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"); e.Term(TermAdapter)-attention.Term(TermAdapter) != experts/4 {
		t.Errorf("named: %s", GB(e.Term(TermAdapter)))
	}
	m.Arch.Type = "gpt_oss"
	if e, few := of(m, "all-linear"), of(m, "q_proj", "k_proj", "v_proj", "o_proj"); e.High != few.High {
		t.Errorf("experts that are no layers: to %s, want %s", GB(e.High), GB(few.High))
	}
}

// Weights that a command may keep on a disk are never certain not to fit; memory of the
// host is the same memory here.
func TestOffloadIsNoBlock(t *testing.T) {
	t.Parallel()
	m := exact(70553706496, models["Llama-70B"].Arch)
	for name, c := range map[string]struct {
		j      job.Job
		blocks bool
	}{
		"plainly":                 {job.Job{Argv: []string{"trl", "sft", "--use_peft"}}, true},
		"a DeepSpeed file":        {job.Job{Argv: []string{"trl", "sft", "--deepspeed", "z3.json"}}, false},
		"none":                    {job.Job{Argv: []string{"trl", "sft", "--deepspeed", "none"}}, true},
		"in a config":             {job.Job{Memory: job.Knobs{"deepspeed": {Value: "z3.json"}}}, false},
		"in a config, none":       {job.Job{Memory: job.Knobs{"deepspeed": {Value: "false"}}}, true},
		"the launcher":            {job.Job{Argv: []string{"deepspeed", "t.py"}, Launchers: []string{"deepspeed"}}, false},
		"accelerate, to a disk":   {job.Job{Argv: []string{"accelerate", "launch", "--offload_param_device=nvme", "t.py"}, Launchers: []string{"accelerate"}}, false},
		"accelerate, to the host": {job.Job{Argv: []string{"accelerate", "launch", "--offload-param-device", "cpu", "t.py"}, Launchers: []string{"accelerate"}}, true},
		"accelerate's file":       {job.Job{Argv: []string{"accelerate", "launch", "--config_file", "a.yaml", "t.py"}, Launchers: []string{"accelerate"}}, false},
		"another's file":          {job.Job{Argv: []string{"x", "--config_file", "a.yaml"}}, true},
		"a folder of the name":    {job.Job{Argv: []string{"trl", "sft", "--output_dir", "/nvme/out"}}, true},
	} {
		c.j.Knobs = job.Knobs{job.Method: {Value: "lora", Source: job.FromArgv}}
		if o := Judge(mustEstimate(t, FromJob(&c.j, m)), 115e9); o.Blocks != c.blocks || o.Verdict != Over {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// Where only the quantising on the way is in the way, what fits of a quantised copy is said.
func TestFitOfAQuantisedCopy(t *testing.T) {
	t.Parallel()
	s := Spec{Model: exact(70553706496, models["Llama-70B"].Arch), SeqLen: 2048, MicroBatch: 1, WeightDType: "bf16"}
	all, err := Fit(s, 115e9)
	if err != nil {
		t.Fatal(err)
	}
	s.Model = models["Llama-70B"]
	ready, err := Fit(s, 115e9)
	if err != nil {
		t.Fatal(err)
	}
	got, want := all[2], ready[2]
	if got.SeqLen != 0 || want.SeqLen == 0 || !strings.HasSuffix(got.Why, fmt.Sprintf("%d tokens at batch 1 or %d rows of 2048", want.SeqLen, want.Batch)) {
		t.Errorf("%+v\nof the copy %+v", got, want)
	}
	if small, err := Fit(s, 20e9); err != nil || strings.Contains(small[2].Why, "copy") {
		t.Errorf("where that does not fit either: %+v, %v", small[2], err)
	}
}
