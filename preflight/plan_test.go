package preflight

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/sample"
	"sparkrun/preflight/headroom"
)

// shape is a decoder whose files a test makes.
type shape struct {
	hidden, layers, intermediate, vocab int64
}

// About 8 and about 70 billion parameters.
var (
	small = shape{4096, 32, 14336, 128256}
	large = shape{8192, 80, 28672, 128256}
)

// writeModel makes a folder with a model in bfloat16: headers, and holes where the
// tensors are. One shard for each group of layers.
func writeModel(t *testing.T, dir string, s shape) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": %d, "num_hidden_layers": %d, "num_attention_heads": %d, "num_key_value_heads": 8, "intermediate_size": %d, "vocab_size": %d, "max_position_embeddings": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}`,
		s.hidden, s.layers, s.hidden/128, s.intermediate, s.vocab)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	const shards = 4
	index := map[string]string{}
	for n := range int64(shards) {
		tensors := map[string][]int64{}
		if n == 0 {
			tensors["model.embed_tokens.weight"] = []int64{s.vocab, s.hidden}
		}
		if n == shards-1 {
			tensors["lm_head.weight"] = []int64{s.vocab, s.hidden}
			tensors["model.norm.weight"] = []int64{s.hidden}
		}
		for l := n * s.layers / shards; l < (n+1)*s.layers/shards; l++ {
			at := fmt.Sprintf("model.layers.%d.", l)
			for name, dims := range map[string][]int64{
				"self_attn.q_proj": {s.hidden, s.hidden}, "self_attn.k_proj": {1024, s.hidden}, "self_attn.v_proj": {1024, s.hidden}, "self_attn.o_proj": {s.hidden, s.hidden},
				"mlp.gate_proj": {s.intermediate, s.hidden}, "mlp.up_proj": {s.intermediate, s.hidden}, "mlp.down_proj": {s.hidden, s.intermediate},
				"input_layernorm": {s.hidden}, "post_attention_layernorm": {s.hidden},
			} {
				tensors[at+name+".weight"] = dims
			}
		}
		file := fmt.Sprintf("model-%05d-of-%05d.safetensors", n+1, shards)
		header, end := map[string]any{}, int64(0)
		for name, dims := range tensors {
			size := int64(2)
			for _, d := range dims {
				size *= d
			}
			header[name] = map[string]any{"dtype": "BF16", "shape": dims, "data_offsets": []int64{end, end + size}}
			end += size
			index[name] = file
		}
		text, err := json.Marshal(header)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, 8+int64(len(text))+end); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{}, "weight_map": index})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func trainJob(pairs ...string) *job.Job {
	j := pythonJob("/usr/bin/python3")
	j.Profile, j.TrainerDir, j.Knobs = "trl", "/home/ada", job.Knobs{}
	for i := 0; i+1 < len(pairs); i += 2 {
		j.Knobs[job.Knob(pairs[i])] = job.Setting{Value: pairs[i+1], Source: job.FromArgv}
	}
	return j
}

func TestPlanOfACommand(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "spark", map[string]string{"proc/meminfo": idle})
	writeModel(t, filepath.Join(dir, "models/eight"), small)
	writeModel(t, filepath.Join(dir, "home/ada/seventy"), large)
	cache := filepath.Join(dir, "home/ada/.cache/huggingface/hub/models--meta--Eight")
	writeModel(t, filepath.Join(cache, "snapshots/abc"), small)
	if err := os.MkdirAll(filepath.Join(cache, "refs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cache, "refs/main"), []byte("abc"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		job     *job.Job
		path    string
		verdict string
		status  Status
		want    string // in detail, evidence and fix
	}{
		{"LoRA on 8B", trainJob("model", "/models/eight", "method", "lora", "micro_batch", "1", "seq_len", "2048"), "", Ready, Info, "the plan takes about"},
		{"a model of the cache", trainJob("model", "meta/Eight", "method", "lora", "micro_batch", "1", "seq_len", "2048"), "", Ready, Info, "8.03B parameters (counted in"},
		{"the weights cannot fit", trainJob("model", "seventy", "method", "lora", "micro_batch", "1", "seq_len", "2048"), "", Blocked, Fail, "the weights alone take 141 GB"},
		{"the same, on several devices", func() *job.Job {
			j := trainJob("model", "seventy", "method", "lora", "micro_batch", "1", "seq_len", "2048")
			j.Procs = 2
			return j
		}(), "", ReadyWithWarnings, Warn, "the weights alone take 141 GB"},
		{"the same, quantised while loading", trainJob("model", "seventy", "method", "qlora", "micro_batch", "1", "seq_len", "1024"), "", ReadyWithWarnings, Warn, "start from: a copy of the model that is quantised already"},
		{"over by an estimate", trainJob("model", "/models/eight", "method", "full", "optimizer", "adamw_torch", "micro_batch", "4", "seq_len", "8192"), "", ReadyWithWarnings, Warn, "start from: "},
		{"a name alone never blocks", trainJob("model", "meta/Llama-70B", "method", "lora", "micro_batch", "1", "seq_len", "2048"), "", ReadyWithWarnings, Warn, "a smaller model, or more machines"},
		{"a mount of a container", trainJob("model", "/inside/model", "method", "lora", "micro_batch", "1", "seq_len", "2048"), "/home/ada/seventy", Blocked, Fail, "the weights alone take 141 GB"},
		{"no size anywhere", trainJob("model", "nobody/nothing"), "", Ready, Info, "the plan is not reckoned: the size of the model is not known"},
		{"no model", trainJob(), "", Ready, Info, "the plan is not reckoned: the command does not say which model it trains"},
	} {
		r := Run(t.Context(), Input{Root: dir, Getenv: env(), Device: gb10With([]sample.GPUProcess{}), Machine: "aarch64", Job: c.job, ModelPath: func() string { return c.path }})
		f := find(t, r, "G3")
		all := f.Detail + "\n" + strings.Join(f.Evidence, "\n") + "\n" + f.Fix
		if f.Status != c.status || !strings.Contains(all, c.want) {
			t.Errorf("%s: %s %q\n%s", c.name, f.Status, f.Detail, all)
		}
		if (c.verdict == Blocked) != (r.Verdict == Blocked) {
			t.Errorf("%s: verdict %s", c.name, r.Verdict)
		}
		if known := !strings.Contains(all, "not reckoned"); known != (r.Plan != nil) {
			t.Errorf("%s: plan of the report %+v", c.name, r.Plan)
		}
		if r.Plan == nil {
			continue
		}
		if (r.Plan.Start != nil) == (f.Status == Info) || r.Plan.Outcome == nil || r.Plan.Budget.Bytes < 1e11 {
			t.Errorf("%s: start from %+v, outcome %+v", c.name, r.Plan.Start, r.Plan.Outcome)
		}
		js, err := json.Marshal(r.Plan)
		if err != nil || !strings.Contains(string(js), `"peak_bytes"`) {
			t.Errorf("%s: %s, %v", c.name, js, err)
		}
		if text := r.Plan.text(Look{Width: 60}); !strings.Contains(text, "peak about") || strings.Contains(text, "\x1b") {
			t.Errorf("%s: text\n%s", c.name, text)
		}
	}
}

func TestPlanOfTornFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		tear func(dir string) error
		want string
	}{
		{"a shard is missing", func(dir string) error { return os.Remove(filepath.Join(dir, "model-00003-of-00004.safetensors")) }, "model-00003-of-00004.safetensors"},
		{"a header of ten gigabytes", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "model-00001-of-00004.safetensors"), binary.LittleEndian.AppendUint64(nil, 10<<30), 0o644)
		}, "model-00001-of-00004.safetensors"},
		{"cut off", func(dir string) error {
			return os.Truncate(filepath.Join(dir, "model-00002-of-00004.safetensors"), 100)
		}, "model-00002-of-00004.safetensors"},
		{"a config that is none", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"hidden_size": -4, "num_hidden_layers": 1e30`), 0o644)
		}, "config.json"},
	} {
		dir := copyTree(t, "spark", map[string]string{"proc/meminfo": idle})
		model := filepath.Join(dir, "home/ada/seventy")
		writeModel(t, model, large)
		if err := c.tear(model); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		r := Run(t.Context(), Input{Root: dir, Getenv: env(), Device: gb10With([]sample.GPUProcess{}), Job: trainJob("model", "seventy", "method", "lora", "micro_batch", "1", "seq_len", "512")})
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: took %v", c.name, took)
		}
		f := find(t, r, "G3")
		all := f.Detail + "\n" + strings.Join(f.Evidence, "\n")
		if f.Status == Fail && c.name != "a config that is none" || !strings.Contains(all, c.want) {
			t.Errorf("%s: %s\n%s", c.name, f.Status, all)
		}
	}
}

func TestNoPlanForImages(t *testing.T) {
	t.Parallel()
	j := trainJob("model", "black/FLUX-12B")
	j.Image = true
	if p := readPlan(t.Context(), view{root: rootOf(t.TempDir()), getenv: env(), job: j}); p.known || !strings.Contains(p.why, "images") {
		t.Errorf("%+v", p)
	}
	if _, ok := (planned{}).need(); ok {
		t.Error("a plan of nothing needs something")
	}
	if _, _, ok := (planned{}).checkpoint(); ok {
		t.Error("a plan of nothing has checkpoints")
	}
}

// A checkpoint of which nobody tells whether it holds an adapter or all weights has no
// size, and a plan that cannot be made has none.
func TestCheckpointOfAnAssumedMethod(t *testing.T) {
	t.Parallel()
	eight := modelsize.Size{Params: 8e9}
	packed := eight
	packed.Quantised = "gptq"
	for _, c := range []struct {
		spec headroom.Spec
		want bool
	}{
		{headroom.Spec{Model: eight}, false},
		{headroom.Spec{Model: eight, Method: headroom.Full}, true},
		{headroom.Spec{Model: eight, Method: headroom.LoRA}, true},
		{headroom.Spec{Model: packed, Method: headroom.Full}, false},
	} {
		est, err := c.spec.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		p := planned{known: true, spec: c.spec, est: est}
		if size, how, ok := p.checkpoint(); ok != c.want {
			t.Errorf("%q: %d, %s, %v", c.spec.Method, size, how, ok)
		}
	}
}

// A plan that would fit the whole machine is sent to those who use it, not to a smaller
// model; on an idle one nobody has anything.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	est, err := headroom.Spec{Model: modelsize.Size{Params: 8e9}, Method: headroom.LoRA, MicroBatch: 8, SeqLen: 4096, GradCheckpoint: headroom.On}.Estimate()
	if err != nil {
		t.Fatal(err)
	}
	large, err := headroom.Spec{Model: modelsize.Size{Params: 70e9}, Method: headroom.LoRA}.Estimate()
	if err != nil {
		t.Fatal(err)
	}
	total := 2 * est.High
	half := Budget{Known: true, Total: total, Bytes: est.Peak - 5e9}
	for name, c := range map[string]struct {
		b    Budget
		est  headroom.Estimate
		want bool
	}{
		"half is used":     {half, est, true},
		"too large anyway": {Budget{Known: true, Total: 130e9, Bytes: 60e9}, large, false},
		"it fits now":      {Budget{Known: true, Total: total, Bytes: total - 10e9}, est, false},
		"an idle machine":  {Budget{Known: true, Total: est.Peak + 6e9, Bytes: est.Peak - 1e9}, est, false},
		"not known":        {Budget{Total: total}, est, false},
	} {
		if got := c.b.Elsewhere(c.est); (got != "") != c.want || c.want && (!strings.Contains(got, "G6") || !strings.Contains(got, "with the machine to itself it fits")) {
			t.Errorf("%s: %q", name, got)
		}
	}
	smaller := Step{Rung: headroom.Smaller, Words: "a smaller model"}
	p := planned{known: true, spec: est.Spec, est: est, start: &smaller}
	if fix := p.fixOfWarn(half); strings.Contains(fix, "a smaller model") || !strings.Contains(fix, "G6") {
		t.Error(fix)
	}
	p = planned{known: true, spec: large.Spec, est: large, start: &smaller}
	if fix := p.fixOfWarn(Budget{Known: true, Total: 130e9, Bytes: 60e9}); !strings.Contains(fix, "a smaller model") || strings.Contains(fix, "G6") {
		t.Error(fix)
	}
}

func TestBudgetNow(t *testing.T) {
	t.Parallel()
	spark := copyTree(t, "", map[string]string{"proc/meminfo": idle})
	b, err := BudgetNow(spark, sample.Device{}, sample.GPU{})
	if err != nil || b.GPU || b.Bytes != 120900000*1024-4<<30 || b.Reserve != 4<<30 || *b.Free != 118200000*1024 || *b.Cache != (2600000+120000+210000-21000)*1024 {
		t.Errorf("%+v, %v", b, err)
	}
	unified := sample.Device{Source: "nvml", Name: "NVIDIA GB10", Count: 1}
	if same, err := BudgetNow(spark, unified, sample.GPU{}); err != nil || same.Bytes != b.Bytes {
		t.Errorf("unified memory: %+v, %v", same, err)
	}
	card := sample.Device{Source: "nvml", Name: "NVIDIA RTX 4090", Count: 1, MemoryTotalMiB: sample.Known(24564)}
	held := sample.GPU{Processes: []sample.GPUProcess{{PID: 1, UsedMiB: sample.Known(4564)}, {PID: 2}}}
	if b, err := BudgetNow(spark, card, held); err != nil || !b.GPU || b.Bytes != 20000<<20 || b.Reserve != 0 {
		t.Errorf("a card: %+v, %v", b, err)
	}
	card.Count = 2
	if b, err := BudgetNow(spark, card, held); err == nil || b.Known {
		t.Errorf("two cards: %+v", b)
	}
	for name, text := range map[string]string{"torn": "MemTo", "old": "MemTotal: 100 kB\nMemFree: 50 kB\n"} {
		if b, err := BudgetNow(copyTree(t, "", map[string]string{"proc/meminfo": text}), sample.Device{}, sample.GPU{}); err == nil || b.Known {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// What is wrong with the files of a model is a warning that names the file, unless the
// trainer makes it whole by itself.
func TestFilesOfTheModel(t *testing.T) {
	t.Parallel()
	const shard = "model-00003-of-00004.safetensors"
	remove := func(dir string) error { return os.Remove(filepath.Join(dir, shard)) }
	config := func(text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o644) }
	}
	instead := func(make func(string) error) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, "config.json")
			if err := os.Remove(path); err != nil {
				return err
			}
			return make(path)
		}
	}
	for _, c := range []struct {
		name   string
		tear   func(dir string) error
		model  string
		env    []string
		status Status
		want   string // in the detail
	}{
		{"whole", func(string) error { return nil }, "/models/eight", nil, Info, "the plan takes about"},
		{"a shard is missing", remove, "/models/eight", nil, Warn, shard + ", which is not there (1 of 4 files are missing)"},
		{"the same in the cache", remove, "meta/Eight", nil, Info, "the trainer fetches the rest when it starts"},
		{"the same in the cache, offline", remove, "meta/Eight", []string{"HF_HUB_OFFLINE", "1"}, Warn, shard},
		{"all are missing", func(dir string) error {
			for n := 1; n <= 4; n++ {
				if err := os.Remove(filepath.Join(dir, fmt.Sprintf("model-%05d-of-00004.safetensors", n))); err != nil {
					return err
				}
			}
			return os.Remove(filepath.Join(dir, "config.json"))
		}, "/models/eight", nil, Warn, "4 of 4 files are missing"},
		{"a config that is a pipe", instead(func(path string) error { return unix.Mkfifo(path, 0o600) }), "/models/eight", nil, Warn, "config.json is a named pipe"},
		{"a config that is a folder", instead(func(path string) error { return os.Mkdir(path, 0o700) }), "meta/Eight", nil, Warn, "config.json is a folder"},
		{"a width below zero", config(`{"hidden_size": -4096}`), "/models/eight", nil, Warn, "hidden_size is -4096"},
	} {
		dir := copyTree(t, "spark", map[string]string{"proc/meminfo": idle})
		for _, model := range []string{"models/eight", "home/ada/.cache/huggingface/hub/models--meta--Eight/snapshots/abc"} {
			writeModel(t, filepath.Join(dir, model), small)
			if err := c.tear(filepath.Join(dir, model)); err != nil {
				t.Fatal(err)
			}
		}
		r := Run(t.Context(), Input{
			Root: dir, Getenv: env(c.env...), Device: gb10With([]sample.GPUProcess{}), Machine: "aarch64",
			Job: trainJob("model", c.model, "method", "lora", "micro_batch", "1", "seq_len", "512"),
		})
		f := find(t, r, "G3")
		if f.Status != c.status || !strings.Contains(f.Detail, c.want) || (f.Fix != "") != (f.Status == Warn) {
			t.Errorf("%s: %s %q, fix %q", c.name, f.Status, f.Detail, f.Fix)
		}
		// What fits is told all the same, where the size is known.
		if all := f.Detail + strings.Join(f.Evidence, "\n"); r.Plan != nil && !strings.Contains(all, "the plan takes about") {
			t.Errorf("%s: %q", c.name, all)
		}
	}
}

// The run's own ladder has the word, with the budget that counts, and only where a change
// is needed; one that does not answer is not waited for.
func TestStepOfTheLadder(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "spark", map[string]string{"proc/meminfo": idle})
	asked := make(chan Budget, 1)
	own := Step{Rung: "shorter-packing", Words: "seq_len 8192 -> 4096", Knobs: map[string]string{"seq_len": "4096"}, Peak: 50 * testGB, Line: "sparkrun -- x --max_length 4096", Changes: []string{}}
	in := Input{
		Root: dir, Getenv: env(), Device: gb10With([]sample.GPUProcess{}),
		FirstStep: func(_ headroom.Spec, est headroom.Estimate, b Budget) *Step {
			if est.Peak <= b.Bytes {
				t.Errorf("asked for a plan of %d in %d", est.Peak, b.Bytes)
			}
			asked <- b
			return &own
		},
	}
	over := trainJob("model", "meta/Eight-8B", "method", "full", "optimizer", "adamw_torch", "micro_batch", "4", "seq_len", "8192")
	in.Job = over
	r := Run(t.Context(), in)
	f := find(t, r, "G3")
	if r.Plan == nil || r.Plan.Start == nil || r.Plan.Start.Words != own.Words || !strings.Contains(f.Fix, "start from: shorter-packing: seq_len 8192 -> 4096; then about 50.0 GB\n"+own.Line+"\n") {
		t.Errorf("%+v, fix %q", r.Plan, f.Fix)
	}
	if b := <-asked; b.Bytes != r.Plan.Budget.Bytes || b.Available <= b.Bytes {
		t.Errorf("asked with %+v", b)
	}
	in.Job = trainJob("model", "meta/Eight-8B", "method", "lora", "micro_batch", "1", "seq_len", "512")
	if r := Run(t.Context(), in); len(asked) != 0 || r.Plan.Start != nil {
		t.Error("the ladder is asked for a plan that fits")
	}
	hang := make(chan struct{})
	defer close(hang)
	in.Job, in.FirstStep = over, func(headroom.Spec, headroom.Estimate, Budget) *Step { <-hang; return nil }
	began := time.Now()
	r = Run(t.Context(), in)
	if f := find(t, r, "G3"); f.Status != Warn || r.Plan.Start != nil || !strings.Contains(f.Fix, "sparkrun plan -- COMMAND") || time.Since(began) > 5*time.Second {
		t.Errorf("%s, fix %q, after %v", f.Status, f.Fix, time.Since(began))
	}
}
