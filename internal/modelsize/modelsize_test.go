package modelsize

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// failer is what the helpers need of testing.T and rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// part is a tensor of a file made for a test.
type part struct {
	dtype string
	shape []int64
}

// header writes the header of tensors that lie one behind the other.
func header(t failer, parts map[string]part) (text []byte, data int64) {
	t.Helper()
	doc := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		p := parts[name]
		n := int64(1)
		for _, d := range p.shape {
			n *= d
		}
		size := (n*bitsOf[p.dtype] + 7) / 8
		doc[name] = map[string]any{"dtype": p.dtype, "shape": p.shape, "data_offsets": []int64{data, data + size}}
		data += size
	}
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return text, data
}

// weights writes a file with these tensors: the header is real, the data is a hole.
func weights(t failer, path string, parts map[string]part) {
	t.Helper()
	text, data := header(t, parts)
	write(t, path, string(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))+string(text))
	if err := os.Truncate(path, int64(8+len(text))+data); err != nil {
		t.Fatal(err)
	}
}

func write(t failer, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t failer, p Place, name string) Size {
	t.Helper()
	s, err := p.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWeightsAreCounted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, config string
		parts        map[string]part
		params       int64
		exact        bool
		dtype, quant string
	}{
		{
			"plain", `{"torch_dtype": "bfloat16"}`,
			map[string]part{"embed.weight": {"BF16", []int64{100, 8}}, "norm.weight": {"F32", []int64{8}}, "scale": {"BF16", nil}, "mask": {"BOOL", []int64{64, 64}}, "rotary_emb.inv_freq": {"F32", []int64{4}}},
			809, true, "BF16", "",
		},
		{
			"bitsandbytes, 4 bit", `{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}`,
			map[string]part{
				"q.weight": {"U8", []int64{32, 1}}, "q.weight.absmax": {"U8", []int64{1}}, "q.weight.quant_map": {"F32", []int64{16}},
				"q.weight.nested_absmax": {"F32", []int64{1}}, "q.weight.nested_quant_map": {"F32", []int64{256}},
				"q.weight.quant_state.bitsandbytes__nf4": {"U8", []int64{80}}, "norm.weight": {"BF16", []int64{8}},
			},
			72, true, "U8", "bnb-4bit",
		},
		{
			"bitsandbytes without a word in the config", "",
			map[string]part{"q.weight": {"U8", []int64{32, 1}}, "q.weight.quant_state.bitsandbytes__fp4": {"U8", []int64{80}}},
			64, true, "U8", "bnb-4bit",
		},
		{
			"bitsandbytes, 8 bit", `{"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true}}`,
			map[string]part{"q.weight": {"I8", []int64{8, 8}}, "q.SCB": {"F32", []int64{8}}, "q.weight_format": {"U8", nil}},
			64, true, "I8", "bnb-8bit",
		},
		{
			"gptq", `{"quantization_config": {"quant_method": "gptq", "bits": 4}}`,
			map[string]part{"q.qweight": {"I32", []int64{8, 64}}, "q.qzeros": {"I32", []int64{1, 8}}, "q.scales": {"F16", []int64{1, 64}}, "q.g_idx": {"I32", []int64{64}}, "q.bias": {"F16", []int64{64}}},
			64*64 + 64, true, "I32", "gptq",
		},
		{
			"gptq, 8 bit", `{"quantization_config": {"quant_method": "gptq", "bits": 8}}`,
			map[string]part{"q.qweight": {"I32", []int64{16, 64}}, "q.g_idx": {"I32", []int64{64}}},
			64 * 64, true, "I32", "gptq",
		},
		{
			"awq of unknown width", "",
			map[string]part{"q.qweight": {"I32", []int64{64, 8}}, "q.scales": {"F16", []int64{1, 64}}},
			64 * 64, false, "I32", "awq",
		},
		{
			"mxfp4", `{"quantization_config": {"quant_method": "mxfp4"}, "num_local_experts": 32, "num_experts_per_tok": 4}`,
			map[string]part{"mlp.experts.down_proj_blocks": {"U8", []int64{2, 4, 1, 16}}, "mlp.experts.down_proj_scales": {"U8", []int64{2, 4, 1}}, "mlp.experts.down_proj_bias": {"BF16", []int64{2, 4}}},
			256 + 8, true, "U8", "mxfp4",
		},
		{
			"fp8 in blocks", `{"quantization_config": {"quant_method": "fp8"}}`,
			map[string]part{"q.weight": {"F8_E4M3", []int64{16, 16}}, "q.weight_scale_inv": {"F32", []int64{1, 1}}},
			256, true, "F8_E4M3", "fp8",
		},
		{
			"nvfp4", `{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}`,
			map[string]part{"q.weight": {"U8", []int64{16, 8}}, "q.weight_scale": {"F8_E4M3", []int64{16, 1}}, "q.weight_scale_2": {"F32", nil}, "q.input_scale": {"F32", nil}},
			256, true, "U8", "nvfp4",
		},
		{
			"compressed-tensors", `{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}}`,
			map[string]part{"q.weight_packed": {"I32", []int64{64, 8}}, "q.weight_scale": {"BF16", []int64{64, 1}}, "q.weight_shape": {"I64", []int64{2}}},
			64 * 64, true, "I32", "compressed-tensors",
		},
		{
			"a format of tomorrow", `{"quantization_config": {"quant_method": "xq", "bits": 2}}`,
			map[string]part{"q.codes": {"U8", []int64{16}}, "n.weight": {"BF16", []int64{8}}},
			72, false, "U8", "xq",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "model.safetensors")
			weights(t, file, c.parts)
			if c.config != "" {
				write(t, filepath.Join(dir, "config.json"), c.config)
			}
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			s := mustRead(t, Place{}, dir)
			if s.Params != c.params || s.Exact != c.exact || s.DType != c.dtype || s.Quantised != c.quant || s.Bytes != info.Size() || s.Path != dir || s.From == "" {
				t.Errorf("%+v", s)
			}
			if strings.Contains(c.config, "num_local_experts") && (s.Experts != 32 || s.ActiveExperts != 4) {
				t.Errorf("experts: %+v", s)
			}
		})
	}
}

func TestFolders(t *testing.T) {
	t.Parallel()
	one := map[string]part{"a.weight": {"BF16", []int64{10, 10}}}
	two := map[string]part{"b.weight": {"BF16", []int64{5, 10}}}
	const index = `{"metadata": {"total_size": 300}, "weight_map": {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}}`
	const llama = `{"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true, "torch_dtype": "bfloat16"}`
	for _, c := range []struct {
		name   string
		fill   func(t *testing.T, dir string)
		params int64
		exact  bool
		fails  string
	}{
		{"shards of an index, and others", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "model.safetensors.index.json"), index)
			weights(t, filepath.Join(dir, "model-00001-of-00002.safetensors"), one)
			weights(t, filepath.Join(dir, "model-00002-of-00002.safetensors"), two)
			weights(t, filepath.Join(dir, "consolidated.safetensors"), one)
		}, 150, true, ""},
		{"a shard that has not come yet", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "model.safetensors.index.json"), index)
			write(t, filepath.Join(dir, "config.json"), llama)
			weights(t, filepath.Join(dir, "model-00001-of-00002.safetensors"), one)
			if err := os.Symlink("../gone", filepath.Join(dir, "model-00002-of-00002.safetensors")); err != nil {
				t.Fatal(err)
			}
		}, 150, false, ""},
		{"an index that leads out of the folder", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "model.safetensors.index.json"), `{"weight_map": {"a": "../../etc/passwd.safetensors"}}`)
		}, 0, false, "cannot be one of its weights"},
		{"an index that is torn", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "model.safetensors.index.json"), index[:50])
		}, 0, false, "index.json"},
		{"files of another name", func(t *testing.T, dir string) {
			weights(t, filepath.Join(dir, "x.safetensors"), one)
			weights(t, filepath.Join(dir, "adapter_model.safetensors"), two)
		}, 100, true, ""},
		{"torch's own files", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "config.json"), `{"torch_dtype": "float16"}`)
			write(t, filepath.Join(dir, "pytorch_model-00001-of-00002.bin"), strings.Repeat("x", 160))
			write(t, filepath.Join(dir, "pytorch_model-00002-of-00002.bin"), strings.Repeat("x", 40))
		}, 100, false, ""},
		{"only a config", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "config.json"), llama) }, 6400 + 2*(64*64*2+64*32*2+3*64*128), false, ""},
		{"a pipeline", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "model_index.json"), "{}")
			weights(t, filepath.Join(dir, "transformer", "diffusion_pytorch_model.safetensors"), one)
			weights(t, filepath.Join(dir, "vae", "diffusion_pytorch_model.safetensors"), two)
			write(t, filepath.Join(dir, "scheduler", "scheduler_config.json"), "{}")
		}, 150, true, ""},
		{"nothing", func(*testing.T, string) {}, 0, false, "is not known"},
		{"an adapter", func(t *testing.T, dir string) {
			weights(t, filepath.Join(dir, "base", "model.safetensors"), one)
			weights(t, filepath.Join(dir, "adapter_model.safetensors"), two)
			write(t, filepath.Join(dir, "adapter_config.json"), `{"base_model_name_or_path": "`+filepath.Join(dir, "base")+`"}`)
		}, 100, true, ""},
		{"an adapter on itself", func(t *testing.T, dir string) {
			weights(t, filepath.Join(dir, "adapter_model.safetensors"), two)
			write(t, filepath.Join(dir, "adapter_config.json"), `{"base_model_name_or_path": "`+dir+`/."}`)
		}, 0, false, "is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "model")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			c.fill(t, dir)
			s, err := Read(dir)
			switch {
			case c.fails != "":
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%+v, %v", s, err)
				}
			case err != nil || s.Params != c.params || s.Exact != c.exact:
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// A model of the cache is found as the trainer's own libraries find it.
func TestCache(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	model := filepath.Join(home, ".cache", "huggingface", "hub", "models--acme--Small-1B")
	write(t, filepath.Join(model, "refs", "main"), "c2\n")
	weights(t, filepath.Join(model, "blobs", "b1"), map[string]part{"a": {"BF16", []int64{3}}})
	weights(t, filepath.Join(model, "blobs", "b2"), map[string]part{"a": {"BF16", []int64{7}}})
	for commit, blob := range map[string]string{"c1": "b1", "c2": "b2"} {
		if err := os.MkdirAll(filepath.Join(model, "snapshots", commit), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../blobs/"+blob, filepath.Join(model, "snapshots", commit, "model.safetensors")); err != nil {
			t.Fatal(err)
		}
	}
	four := filepath.Join(home, ".cache", "huggingface", "hub", "models--acme--Other-2B-bnb-4bit", "snapshots", "c")
	weights(t, filepath.Join(four, "model.safetensors"), map[string]part{"q": {"U8", []int64{10}}, "q.quant_state.bitsandbytes__nf4": {"U8", []int64{4}}})
	env := func(vars map[string]string) Place {
		return Place{Getenv: func(n string) string { return vars[n] }}
	}
	for _, vars := range []map[string]string{
		{"HOME": home},
		{"HOME": "/nowhere", "HF_HOME": filepath.Join(home, ".cache", "huggingface")},
		{"HF_HUB_CACHE": filepath.Join(home, ".cache", "huggingface", "hub"), "HF_HOME": "/nowhere"},
		{"HOME": "/nowhere", "XDG_CACHE_HOME": filepath.Join(home, ".cache")},
		{"HOME": home, "HF_HOME": "~/.cache/huggingface"},
	} {
		if s := mustRead(t, env(vars), "acme/Small-1B"); s.Params != 7 || !s.Exact {
			t.Errorf("%v: %+v", vars, s)
		}
	}
	// refs/main is gone: the newest snapshot, whichever it is, and no error.
	if err := os.Remove(filepath.Join(model, "refs", "main")); err != nil {
		t.Fatal(err)
	}
	if s := mustRead(t, env(map[string]string{"HOME": home}), "acme/Small-1B"); s.Params != 3 && s.Params != 7 {
		t.Errorf("%+v", s)
	}
	// refs/main of somebody with ideas.
	write(t, filepath.Join(model, "refs", "main"), "../../../../..")
	if s := mustRead(t, env(map[string]string{"HOME": home}), "acme/Small-1B"); s.Params != 3 && s.Params != 7 {
		t.Errorf("%+v", s)
	}
	// The 4-bit copy has the parameters of the model, not its files.
	s := mustRead(t, env(map[string]string{"HOME": home}), "acme/Other-2B")
	if s.Params != 20 || !s.Exact || s.Quantised != "" || s.Bytes != 0 || !strings.Contains(s.From, "acme/Other-2B-bnb-4bit") {
		t.Errorf("%+v", s)
	}
	if s := mustRead(t, env(map[string]string{"HOME": home}), "acme/Absent-3B"); s.Params != 3e9 || s.Exact || s.Path != "" {
		t.Errorf("%+v", s)
	}
	// A folder beside the job goes before the cache.
	dir := t.TempDir()
	weights(t, filepath.Join(dir, "acme", "Small-1B", "model.safetensors"), map[string]part{"a": {"F32", []int64{2}}})
	p := env(map[string]string{"HOME": home})
	p.Dir = dir
	if s := mustRead(t, p, "acme/Small-1B"); s.Params != 2 {
		t.Errorf("%+v", s)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	p := Place{Getenv: func(string) string { return "" }, Dir: t.TempDir()}
	for name, want := range map[string][2]float64{
		"meta-llama/Llama-3.1-8B":              {8e9, 0},
		"meta-llama/Llama-3.1-8B-Instruct":     {8e9, 0},
		"models/llama2-70b":                    {70e9, 0},
		"Qwen/Qwen2.5-0.5B":                    {0.5e9, 0},
		"Qwen/Qwen3-30B-A3B-Instruct-2507":     {30e9, 3e9},
		"unsloth/Qwen3-0.6B-unsloth-bnb-4bit":  {0.6e9, 0},
		"HuggingFaceTB/SmolLM2-135M":           {135e6, 0},
		"mistralai/Mixtral-8x7B-v0.1":          {56e9, 0},
		"openai/gpt-oss-20b":                   {20e9, 0},
		"/data/models/Yi-34B/":                 {34e9, 0},
		"meta-llama/Llama-4-Scout-17B-16E":     {0, 0},
		"google/gemma-3n-E4B-it":               {0, 0},
		"microsoft/phi-2":                      {0, 0},
		"some-4bit-model":                      {0, 0},
		"gpt2":                                 {0, 0},
		"acme/\x00-7B":                         {0, 0},
		"deepseek-ai/DeepSeek-R1-Distill-1.5B": {1.5e9, 0},
	} {
		s, err := p.Read(name)
		if float64(s.Params) != want[0] || float64(s.ActiveParams) != want[1] || s.Exact || (err == nil) != (want[0] > 0) {
			t.Errorf("%q: %+v, %v", name, s, err)
		}
		if err != nil && !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if s := mustRead(t, p, "unsloth/Llama-3-8b-bnb-4bit"); s.Quantised != "bnb-4bit" {
		t.Errorf("%+v", s)
	}
}

// Weights that are not what they say are an error at once and cost no memory.
func TestHostileHeaders(t *testing.T) {
	t.Parallel()
	good := map[string]part{"a": {"BF16", []int64{4, 4}}}
	text, _ := header(t, good)
	frame := func(n uint64, body string) string {
		return string(binary.LittleEndian.AppendUint64(nil, n)) + body
	}
	own := func(body string) string { return frame(uint64(len(body)), body) }
	tensor := func(rest string) string { return own(`{"a":{` + rest + `}}`) }
	for name, content := range map[string]string{
		"empty":             "",
		"seven bytes":       "1234567",
		"a huge header":     frame(1<<62, string(text)),
		"minus one":         frame(1<<64-1, string(text)),
		"longer than file":  frame(uint64(len(text))+200, string(text)),
		"data missing":      own(string(text)),
		"data cut":          own(string(text)) + strings.Repeat("x", 31),
		"data too long":     own(string(text)) + strings.Repeat("x", 33),
		"no JSON":           own("hello"),
		"an array":          own("[]"),
		"torn JSON":         own(`{"a":{"dtype":"BF16","shape":[1]`),
		"negative shape":    tensor(`"dtype":"BF16","shape":[-1],"data_offsets":[0,0]`),
		"overflowing shape": tensor(`"dtype":"BF16","shape":[4294967296,4294967296],"data_offsets":[0,0]`),
		"shape is text":     tensor(`"dtype":"BF16","shape":"x","data_offsets":[0,0]`),
		"ends before start": tensor(`"dtype":"BF16","shape":[0],"data_offsets":[8,0]`),
		"size is wrong":     tensor(`"dtype":"BF16","shape":[4],"data_offsets":[0,4]`) + "xxxx",
		"offsets overflow":  own(`{"a":{"dtype":"?","shape":[],"data_offsets":[0,9223372036854775807]},"b":{"dtype":"?","shape":[],"data_offsets":[0,9223372036854775807]}}`),
		"two in one place":  own(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`) + "xxxx",
		"deeply nested":     own(`{"a":` + strings.Repeat("[", 20000) + `}`),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "model.safetensors"), content)
			if s, err := Read(dir); err == nil || errors.Is(err, ErrUnknown) {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	// Headers of a size that nobody has are not even read: the file is a hole of 1 GiB.
	dir := t.TempDir()
	file := filepath.Join(dir, "model.safetensors")
	write(t, file, frame(1<<29, "{"))
	if err := os.Truncate(file, 1<<30); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "too much") {
		t.Errorf("%v", err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
		t.Errorf("%d MiB for a header that is refused", got>>20)
	}
	// A pipe is not waited for.
	dir = t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "model.safetensors"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := Read(filepath.Join(dir, "model.safetensors")); err == nil {
		t.Error("a pipe named itself is read")
	}
}

// Whatever stands in a header, reading it ends and never panics; what is counted is
// what was written.
func TestHeaders(t *testing.T) {
	t.Parallel()
	types := sortedKeys(bitsOf)
	rapid.Check(t, func(t *rapid.T) {
		parts := map[string]part{}
		var want int64
		for i := range rapid.IntRange(1, 5).Draw(t, "tensors") {
			p := part{dtype: rapid.SampledFrom([]string{"F32", "F16", "BF16", "F64"}).Draw(t, "type")}
			n := int64(1)
			for range rapid.IntRange(0, 3).Draw(t, "dims") {
				d := int64(rapid.IntRange(0, 9).Draw(t, "dim"))
				p.shape = append(p.shape, d)
				n *= d
			}
			if p.shape == nil {
				p.shape = []int64{}
			}
			want += n
			parts[fmt.Sprintf("layer.%d.weight", i)] = p
		}
		text, end := header(t, parts)
		got, stop, err := readHeader(strings.NewReader(string(text)))
		if err != nil || stop != end {
			t.Fatalf("%v, %d of %d", err, stop, end)
		}
		c := count{files: got}
		if s := c.size(config{}, ""); s.Params != want || !s.Exact {
			t.Fatalf("%+v, want %d", s, want)
		}
		// The same with bytes changed.
		bad := slices.Clone(text)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			bad[rapid.IntRange(0, len(bad)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		if got, _, err := readHeader(strings.NewReader(string(bad))); err == nil {
			c := count{files: got}
			if s := c.size(config{quantised: "xq", bits: int64(rapid.IntRange(0, 16).Draw(t, "bits"))}, ""); s.Params < 0 {
				t.Fatalf("%+v", s)
			}
		}
		// And of types nobody has yet.
		raw := fmt.Sprintf(`{"a":{"dtype":%q,"shape":[2],"data_offsets":[0,%d]}}`, rapid.SampledFrom(append(types, "F5", "")).Draw(t, "other"), rapid.IntRange(0, 20).Draw(t, "end"))
		if got, _, err := readHeader(strings.NewReader(raw)); err == nil {
			c := count{files: got}
			_ = c.size(config{}, "")
		}
	})
}

// Read is Place.Read on this machine.
func Read(path string) (Size, error) { return Place{}.Read(path) }
