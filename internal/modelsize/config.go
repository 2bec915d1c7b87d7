package modelsize

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
)

// maxConfig bounds the configuration files of a model; a real one has a few KiB.
const maxConfig = 4 << 20

// readSmall reads a regular file of at most so many bytes. Opening a pipe without a
// writer would wait for ever.
func readSmall(path string, most int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, fmt.Errorf("%s is larger than %d KiB", path, most>>10)
	}
	return data, err
}

func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// config is what a model's config.json says about its size. Names differ between
// families of models; the first that is there counts.
type config struct {
	there bool
	// dtype is BF16, F16, F32... in the words of safetensors.
	dtype string
	// quantised is the format, bits the width of one weight where it is told.
	quantised string
	bits      int64
	experts   int64
	active    int64
	fields    map[string]any
}

// readConfig reads config.json and what quantisers write beside it. A missing or
// unreadable file is an empty config: the weights speak for themselves.
func readConfig(dir string) config {
	var c config
	fields := object(dir, "config.json")
	c.there = fields != nil
	quant, _ := fields["quantization_config"].(map[string]any)
	// Models of several kinds of input keep the language model's sizes apart.
	for _, inner := range []string{"text_config", "llm_config", "language_config"} {
		nested, ok := fields[inner].(map[string]any)
		if !ok {
			continue
		}
		if quant == nil {
			quant, _ = nested["quantization_config"].(map[string]any)
		}
		merged := map[string]any{}
		for k, v := range fields {
			merged[k] = v
		}
		for k, v := range nested {
			merged[k] = v
		}
		fields = merged
		break
	}
	c.fields = fields
	c.dtype = dtypeWord(c.text("dtype", "torch_dtype"))
	c.experts = c.number("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
	if c.experts > 1 {
		c.active = c.number("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k")
	} else {
		c.experts = 0
	}
	if quant == nil {
		for _, name := range []string{"quantize_config.json", "quant_config.json", "hf_quant_config.json"} {
			if quant = object(dir, name); quant != nil {
				break
			}
		}
	}
	c.quantised, c.bits = quantisation(quant)
	return c
}

// object reads a JSON object; nil where there is none that can be read.
func object(dir, name string) map[string]any {
	data, err := readSmall(dir+string(os.PathSeparator)+name, maxConfig)
	if err != nil {
		return nil
	}
	var fields map[string]any
	if json.Unmarshal(data, &fields) != nil {
		return nil
	}
	return fields
}

func (c config) text(names ...string) string {
	for _, n := range names {
		if s, ok := c.fields[n].(string); ok && s != "" {
			return s
		}
	}
	return ""
}

// number returns the first of the fields that is a whole number from 1 to 2^40; 0
// where none is.
func (c config) number(names ...string) int64 {
	for _, n := range names {
		if v, ok := c.fields[n].(float64); ok && v >= 1 && v <= 1<<40 && v == math.Trunc(v) {
			return int64(v)
		}
	}
	return 0
}

// quantisation names the format of pre-quantised weights.
func quantisation(q map[string]any) (format string, bits int64) {
	if q == nil {
		return "", 0
	}
	word := func(m map[string]any, name string) string {
		s, _ := m[name].(string)
		return strings.ToLower(s)
	}
	if v, ok := q["bits"].(float64); ok && v >= 1 && v <= 16 {
		bits = int64(v)
	}
	if v, ok := q["w_bit"].(float64); ok && v >= 1 && v <= 16 {
		return "awq", int64(v)
	}
	method := word(q, "quant_method")
	switch method {
	case "bitsandbytes":
		if on, _ := q["load_in_8bit"].(bool); on {
			return "bnb-8bit", 8
		}
		return "bnb-4bit", 4
	case "compressed-tensors":
		switch f := word(q, "format"); {
		case strings.HasPrefix(f, "nvfp4"):
			return "nvfp4", 4
		case f == "float-quantized" || f == "naive-quantized":
			return "fp8", 8
		}
		return "compressed-tensors", groupBits(q)
	case "", "modelopt", "modelopt_fp4":
		inner, ok := q["quantization"].(map[string]any) // hf_quant_config.json
		if !ok {
			inner = q
		}
		switch algo := word(inner, "quant_algo"); {
		case strings.Contains(algo, "nvfp4"):
			return "nvfp4", 4
		case strings.Contains(algo, "fp8"):
			return "fp8", 8
		case algo != "":
			return algo, bits
		}
		if method == "" && bits > 0 {
			return "gptq", bits // quantize_config.json of the first quantisers
		}
	}
	return method, bits
}

// groupBits is the width that the groups of compressed-tensors agree on.
func groupBits(q map[string]any) int64 {
	groups, _ := q["config_groups"].(map[string]any)
	var bits int64
	for _, g := range groups {
		group, _ := g.(map[string]any)
		weights, _ := group["weights"].(map[string]any)
		n, ok := weights["num_bits"].(float64)
		if !ok || n < 1 || n > 16 || bits != 0 && bits != int64(n) {
			return 0
		}
		bits = int64(n)
	}
	return bits
}

// dtypeWord turns torch's word for a type into that of safetensors.
func dtypeWord(word string) string {
	switch strings.TrimPrefix(word, "torch.") {
	case "bfloat16":
		return "BF16"
	case "float16", "half":
		return "F16"
	case "float32", "float":
		return "F32"
	}
	return ""
}

// estimate reckons the parameters of a decoder from the sizes in its config; 0 where
// they do not say enough.
func (c config) estimate() int64 {
	h := c.number("hidden_size", "n_embd", "d_model", "dim")
	layers := c.number("num_hidden_layers", "n_layer", "num_layers", "n_layers")
	vocab := c.number("vocab_size")
	if h == 0 || layers == 0 || vocab == 0 {
		return 0
	}
	heads := c.number("num_attention_heads", "n_head", "n_heads")
	kv := c.number("num_key_value_heads", "multi_query_group_num")
	width := c.number("head_dim")
	if heads == 0 {
		heads = 1
	}
	if kv == 0 || kv > heads {
		kv = heads
	}
	if width == 0 {
		width = h / heads
	}
	fh := float64(h)
	attention := fh*float64(heads)*float64(width)*2 + fh*float64(kv)*float64(width)*2
	// Newer models have three matrices in a layer (gate, up, down), older ones two.
	inner, matrices := float64(c.number("intermediate_size", "ffn_hidden_size")), 3.0
	if inner == 0 {
		inner, matrices = 4*fh, 2
		if n := c.number("n_inner"); n > 0 {
			inner = float64(n)
		}
	}
	mlp := matrices * fh * inner
	if c.experts > 1 {
		each := float64(c.number("moe_intermediate_size", "expert_ffn_hidden_size"))
		if each == 0 {
			each = inner
		}
		shared := float64(c.number("n_shared_experts", "moe_num_shared_experts")) * each
		if n := c.number("shared_expert_intermediate_size"); n > 0 {
			shared = float64(n)
		}
		mlp = 3*fh*(each*float64(c.experts)+shared) + fh*float64(c.experts)
	}
	embeddings := float64(vocab) * fh
	if tied, ok := c.fields["tie_word_embeddings"].(bool); (!ok || !tied) && matrices == 3 {
		embeddings *= 2
	}
	// Older ones also learn the positions.
	if matrices == 2 {
		embeddings += float64(c.number("n_positions", "max_position_embeddings")) * fh
	}
	total := embeddings + float64(layers)*(attention+mlp)
	if total > 1e15 {
		return 0
	}
	return int64(total)
}
