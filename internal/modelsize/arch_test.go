package modelsize

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// The shapes of public families of models, in the words of each.
func TestArch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config string
		want   Arch
		params float64 // as its maker counts them
	}{
		"qwen3, tied": {
			`{"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": true, "max_position_embeddings": 40960, "sliding_window": null, "use_sliding_window": false}`,
			Arch{Type: "qwen3", Hidden: 1024, Layers: 28, Heads: 16, KVHeads: 8, HeadDim: 128, Intermediate: 3072, Matrices: 3, Vocab: 151936, Tied: true, MaxPositions: 40960},
			0.596e9,
		},
		"llama, not tied": {
			`{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": false, "max_position_embeddings": 131072}`,
			Arch{Type: "llama", Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, Intermediate: 14336, Matrices: 3, Vocab: 128256, MaxPositions: 131072},
			8.03e9,
		},
		"gpt2": {
			`{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024, "n_inner": null}`,
			Arch{Type: "gpt2", Hidden: 768, Layers: 12, Heads: 12, KVHeads: 12, HeadDim: 64, Intermediate: 3072, Matrices: 2, Vocab: 50257, Tied: true, MaxPositions: 1024},
			0.124e9,
		},
		"a mixture": {
			`{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": false, "max_position_embeddings": 40960}`,
			Arch{Type: "qwen3_moe", Hidden: 2048, Layers: 48, Heads: 32, KVHeads: 4, HeadDim: 128, Intermediate: 6144, MoEIntermediate: 768, Matrices: 3, Vocab: 151936, MaxPositions: 40960},
			30.5e9,
		},
		"a mixture with shared experts and dense layers": {
			`{"model_type": "deepseek_v3", "hidden_size": 1024, "num_hidden_layers": 10, "num_attention_heads": 8, "intermediate_size": 4096, "moe_intermediate_size": 256, "n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 4, "first_k_dense_replace": 3, "vocab_size": 1000}`,
			Arch{Type: "deepseek_v3", Hidden: 1024, Layers: 10, Heads: 8, KVHeads: 8, HeadDim: 128, Intermediate: 4096, MoEIntermediate: 256, SharedIntermediate: 512, DenseLayers: 3, Matrices: 3, Vocab: 1000},
			10*4*1024*1024 + 3*3*1024*4096 + 7*3*1024*256*16 + 7*3*1024*512 + 7*1024*16 + 2*1000*1024,
		},
		"a model of text and images": {
			`{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 10240, "vocab_size": 262208, "sliding_window": 1024, "max_position_embeddings": 131072}}`,
			Arch{Type: "gemma3_text", Hidden: 2560, Layers: 34, Heads: 8, KVHeads: 4, HeadDim: 256, Intermediate: 10240, Matrices: 3, Vocab: 262208, Tied: true, MaxPositions: 131072, SlidingWindow: 1024},
			3.88e9,
		},
		"one that leaves sizes to the library": {
			`{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240, "sliding_window": 1024}}`,
			Arch{Type: "gemma3_text", Hidden: 2560, Layers: 34, Heads: 8, KVHeads: 4, HeadDim: 256, Intermediate: 10240, Matrices: 3, Vocab: 262208, Tied: true, MaxPositions: 131072, SlidingWindow: 1024},
			3.88e9,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "config.json"), c.config)
			s := mustRead(t, Place{}, dir)
			if s.Arch != c.want || len(s.Notes) != 0 || s.Exact {
				t.Errorf("%+v\nwant %+v", s, c.want)
			}
			if math.Abs(float64(s.Params)/c.params-1) > 0.01 || s.Parts.Sum() != s.Params {
				t.Errorf("%d parameters (%+v), want %g", s.Params, s.Parts, c.params)
			}
		})
	}
}

// Names of tensors of many families, and what each is to a quantiser.
func TestKindOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]partKind{
		"model.embed_tokens.weight": embeddingPart, "transformer.wte.weight": embeddingPart, "wpe.weight": embeddingPart, "embedding.word_embeddings.weight": embeddingPart,
		"lm_head.weight": headPart, "output.weight": headPart, "embed_out.weight": headPart,
		"model.layers.0.self_attn.q_proj.weight": linearPart, "model.layers.0.mlp.down_proj.weight": linearPart, "transformer.h.0.attn.c_attn.weight": linearPart,
		"model.layers.3.mlp.experts.17.up_proj.weight": expertPart, "model.layers.3.mlp.experts.gate_up_proj_blocks": expertPart, "model.layers.3.block_sparse_moe.experts.1.w2.weight": expertPart,
		"model.layers.3.mlp.shared_expert.up_proj.weight": linearPart, "model.layers.3.mlp.shared_experts.up_proj.weight": linearPart,
		"model.layers.3.mlp.gate.weight": otherPart, "model.layers.3.block_sparse_moe.gate.weight": otherPart, "model.layers.3.mlp.router.weight": otherPart,
		"model.norm.weight": otherPart, "model.layers.0.input_layernorm.weight": otherPart, "transformer.h.0.ln_1.weight": otherPart, "model.layers.0.self_attn.q_proj.bias": otherPart,
	} {
		if got := kindOf(name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

func TestPartsAreCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	weights(t, filepath.Join(dir, "model.safetensors"), map[string]part{
		"model.embed_tokens.weight": {"BF16", []int64{100, 16}}, "lm_head.weight": {"BF16", []int64{100, 16}}, "model.norm.weight": {"BF16", []int64{16}},
		"model.layers.0.self_attn.q_proj.weight": {"BF16", []int64{16, 16}}, "model.layers.0.self_attn.q_proj.bias": {"BF16", []int64{16}},
		"model.layers.0.mlp.experts.0.up_proj.weight": {"BF16", []int64{32, 16}}, "model.layers.0.mlp.gate.weight": {"BF16", []int64{2, 16}},
	})
	want := Parts{Embeddings: 1600, Head: 1600, Linears: 256 + 512, Experts: 512, Other: 16 + 16 + 32}
	s := mustRead(t, Place{}, dir)
	if s.Parts != want || s.Parts.Sum() != s.Params || s.TensorBytes != 2*s.Params || s.TensorBytes >= s.Bytes {
		t.Errorf("%+v", s)
	}
	// The same, and the config says that the output layer is the embedding: in memory once.
	write(t, filepath.Join(dir, "config.json"), `{"tie_word_embeddings": true}`)
	if tied := mustRead(t, Place{}, dir); tied.TensorBytes != s.TensorBytes-3200 || tied.Params != s.Params || tied.Bytes != s.Bytes {
		t.Errorf("%+v", tied)
	}
}

// Sizes that the config does not tell, or not in words that are understood, are taken from
// the tensors; never from those of another tower, of another model, or of a mixture.
func TestShapeFromTheTensors(t *testing.T) {
	t.Parallel()
	dense := map[string]part{
		"language_model.model.embed_tokens.weight":                  {"BF16", []int64{1000, 64}},
		"language_model.model.layers.0.mlp.down_proj.weight":        {"BF16", []int64{64, 256}},
		"language_model.model.layers.0.mlp.gate_proj.weight":        {"BF16", []int64{256, 64}},
		"language_model.model.layers.2.self_attn.q_proj.weight":     {"BF16", []int64{64, 64}},
		"vision_tower.encoder.layers.9.mlp.down_proj.weight":        {"BF16", []int64{32, 512}},
		"vision_tower.embeddings.word_embeddings.weight":            {"BF16", []int64{9000, 32}},
		"language_model.model.layers.1.mlp.down_proj.weight.absmax": {"F32", []int64{7000, 7000}},
	}
	mixture := map[string]part{"model.layers.0.mlp.experts.0.up_proj.weight": {"BF16", []int64{32, 64}}}
	maps.Copy(mixture, dense)
	seen := Arch{Hidden: 64, Layers: 3, Vocab: 1000, Intermediate: 256, Matrices: 3}
	told := Arch{Type: "thing", Hidden: 64, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 16, Intermediate: 200, Matrices: 3, Vocab: 1000}
	for name, c := range map[string]struct {
		config  string
		tensors map[string]part
		want    Arch
	}{
		"no vocabulary":            {`{"model_type": "thing", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 200}`, dense, told},
		"nothing that is a size":   {`{"model_type": "thing", "hidden_size": "64", "num_hidden_layers": true, "vocab_size": [1]}`, dense, Arch{Type: "thing", Hidden: 64, Layers: 3, Vocab: 1000, Intermediate: 256, Matrices: 3}},
		"torn":                     {`{"model_type": `, dense, seen},
		"everything is told":       {`{"model_type": "thing", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 200, "vocab_size": 999}`, dense, func() Arch { a := told; a.Vocab = 999; return a }()},
		"of another width":         {`{"model_type": "thing", "hidden_size": 32, "num_hidden_layers": 3}`, dense, Arch{}},
		"a mixture":                {`{"model_type": "thing"}`, mixture, Arch{}},
		"a mixture, by its config": {`{"model_type": "thing", "num_experts": 8}`, dense, Arch{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			weights(t, filepath.Join(dir, "model.safetensors"), c.tensors)
			write(t, filepath.Join(dir, "config.json"), c.config)
			s := mustRead(t, Place{}, dir)
			if s.Arch != c.want || !s.Exact {
				t.Errorf("%+v\nwant %+v", s.Arch, c.want)
			}
		})
	}
}

// A config that is wrong is said to be, by name, and the weights count all the same.
func TestWrongConfigs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ config, note string }{
		"a key twice":             {`{"hidden_size": 64, "vocab_size": 100, "hidden_size": 32}`, `config.json has the key "hidden_size" twice`},
		"a key twice inside":      {`{"a": [{"b": 1}, {"b": 2}], "rope": {"x": 1, "x": 2}}`, `config.json has the key "x" twice`},
		"negative":                {`{"hidden_size": -64}`, "hidden_size is -64, which is no such size"},
		"1e30":                    {`{"num_hidden_layers": 1e30}`, "num_hidden_layers is 1e+30, which is no such size"},
		"a word":                  {`{"vocab_size": "many"}`, "vocab_size is many, which is no such size"},
		"a part":                  {`{"vocab_size": 1.5}`, "vocab_size is 1.5"},
		"a list":                  {`{"intermediate_size": [1, 2]}`, "intermediate_size is [1 2]"},
		"torn":                    {`{"hidden_size": 64,`, "config.json is no JSON object"},
		"an array":                {`[1]`, "config.json is no JSON object"},
		"more than the weights":   {`{"hidden_size": 65536, "num_hidden_layers": 1000, "vocab_size": 100000, "num_attention_heads": 8}`, "its sizes are not used"},
		"so large that it wraps":  {`{"hidden_size": 268435456, "num_hidden_layers": 268435456, "vocab_size": 268435456, "num_attention_heads": 268435456, "head_dim": 268435456}`, ""},
		"nothing wrong, a list":   {`{"layer_types": ["a", "a", "b"], "x": {"y": [{"z": 1}, {"z": 1}]}}`, ""},
		"a string is no key":      {`{"a": "b", "b": "a", "c": ["a", "a"]}`, ""},
		"0 is none, not a size":   {`{"sliding_window": 0}`, ""},
		"deeply nested, no panic": {`{"a": ` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "config.json"), c.config)
			weights(t, filepath.Join(dir, "model.safetensors"), map[string]part{"a.weight": {"BF16", []int64{10, 10}}})
			s := mustRead(t, Place{}, dir)
			if all := strings.Join(s.Notes, "\n"); s.Params != 100 || !s.Exact || c.note == "" && all != "" && !strings.Contains(name, "wraps") || !strings.Contains(all, c.note) {
				t.Errorf("%+v", s)
			}
			if s.Parts.Sum() != s.Params {
				t.Errorf("%+v", s.Parts)
			}
		})
	}
	// Without weights the same mistakes are an error that says so.
	dir := filepath.Join(t.TempDir(), "model")
	write(t, filepath.Join(dir, "config.json"), `{"hidden_size": 64,`)
	if _, err := Read(dir); err == nil {
		t.Error("a torn config is a model")
	}
}

func TestMissingShardIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "model.safetensors.index.json"), `{"metadata": {"total_size": 300}, "weight_map": {"a": "model-00001-of-00003.safetensors", "b": "model-00002-of-00003.safetensors", "c": "model-00003-of-00003.safetensors"}}`)
	write(t, filepath.Join(dir, "config.json"), `{"torch_dtype": "bfloat16"}`)
	weights(t, filepath.Join(dir, "model-00001-of-00003.safetensors"), map[string]part{"a": {"BF16", []int64{5, 10}}})
	s := mustRead(t, Place{}, dir)
	if s.Exact || len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "names model-00002-of-00003.safetensors, which is not there (2 of 3 files are missing)") {
		t.Errorf("%+v", s)
	}
	// One of them is torn: that is an error which names it.
	weights(t, filepath.Join(dir, "model-00002-of-00003.safetensors"), map[string]part{"b": {"BF16", []int64{5, 10}}})
	weights(t, filepath.Join(dir, "model-00003-of-00003.safetensors"), map[string]part{"c": {"BF16", []int64{5, 10}}})
	if err := os.Truncate(filepath.Join(dir, "model-00003-of-00003.safetensors"), 90); err != nil {
		t.Fatal(err)
	}
	if s, err := Read(dir); err == nil || !strings.Contains(err.Error(), "model-00003-of-00003.safetensors is torn") {
		t.Errorf("%+v, %v", s, err)
	}
}

// A header of 10 GB is refused by its length, whether the file has that much or not.
func TestHeaderOf10GB(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{100, 20e9} {
		dir := t.TempDir()
		file := filepath.Join(dir, "model.safetensors")
		write(t, file, string(binary.LittleEndian.AppendUint64(nil, 10e9))+"{")
		if err := os.Truncate(file, size); err != nil {
			t.Skipf("this file system has no files of %d bytes: %v", size, err)
		}
		begin := time.Now()
		if s, err := Read(dir); err == nil || !strings.Contains(err.Error(), file) || time.Since(begin) > 5*time.Second {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// Sixty shards are read in the time that the way to a run has for it.
func TestManyShards(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shards := map[string]map[string]part{}
	var index strings.Builder
	index.WriteString(`{"metadata": {"total_size": 1}, "weight_map": {`)
	for layer := range 120 {
		file := fmt.Sprintf("model-%05d-of-00060.safetensors", layer/2+1)
		if shards[file] == nil {
			shards[file] = map[string]part{}
		}
		for i, name := range []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"} {
			tensor := fmt.Sprintf("model.layers.%d.%s.weight", layer, name)
			shards[file][tensor] = part{"BF16", []int64{int64(256 * (i + 1)), 256}}
			fmt.Fprintf(&index, "%q: %q, ", tensor, file)
		}
	}
	text := strings.TrimSuffix(index.String(), ", ") + "}}"
	write(t, filepath.Join(dir, "model.safetensors.index.json"), text)
	for file, parts := range shards {
		weights(t, filepath.Join(dir, file), parts)
	}
	// The time of this thread alone, since the machine may have more to do than this.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spent := func() time.Duration {
		var use unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &use); err != nil {
			t.Fatal(err)
		}
		return time.Duration(use.Utime.Nano() + use.Stime.Nano())
	}
	best := time.Hour
	for range 5 {
		begin := spent()
		s := mustRead(t, Place{}, dir)
		best = min(best, spent()-begin)
		if s.Params != 120*256*256*(1+2+3+4+5+6+7) || !s.Exact {
			t.Fatalf("%+v", s)
		}
	}
	// 50 ms are meant; the race detector takes its part.
	t.Logf("60 shards, 840 tensors in %v of a processor", best)
	if best > 500*time.Millisecond {
		t.Errorf("60 shards take %v", best)
	}
}

// The parts of whatever shape are those of a model: none below 0, and none where it is
// larger than any.
func TestSplit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := func(name string) int64 {
			return rapid.OneOf(rapid.Int64Range(0, 1<<16), rapid.Int64Range(0, maxSize), rapid.Just(int64(math.MaxInt64))).Draw(t, name)
		}
		a := Arch{
			Hidden: size("hidden"), Layers: size("layers"), Heads: min(size("heads"), maxSize), KVHeads: min(size("kv"), maxSize), HeadDim: min(size("dim"), maxSize),
			Intermediate: size("inner"), MoEIntermediate: size("moe"), SharedIntermediate: size("shared"), DenseLayers: size("dense"),
			Matrices: rapid.SampledFrom([]int64{2, 3}).Draw(t, "matrices"), Vocab: size("vocab"), Tied: rapid.Bool().Draw(t, "tied"), MaxPositions: size("positions"),
		}
		p := a.Split(rapid.Int64Range(0, 1<<20).Draw(t, "experts"))
		if p.Embeddings < 0 || p.Head < 0 || p.Linears < 0 || p.Experts < 0 || p.Experts > p.Linears+1 || p.Sum() < 0 || p.Sum() > maxParams {
			t.Fatalf("%+v of %+v", p, a)
		}
	})
}
