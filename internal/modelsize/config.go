package modelsize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sparkrun/internal/regular"
)

// maxConfig bounds the configuration files of a model; a real one has a few KiB.
const maxConfig = 4 << 20

// readSmall reads a regular file of at most so many bytes. Opening a pipe without a
// writer would wait for ever.
func (p Place) readSmall(path string, most int64) ([]byte, error) {
	f, err := p.openRegular(path)
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

func (p Place) openRegular(path string) (*os.File, error) {
	at, err := p.Root.Path(path)
	if err != nil {
		return nil, err
	}
	f, _, err := regular.Open(at)
	if errors.Is(err, regular.ErrNot) || errors.Is(err, syscall.EISDIR) {
		info, statErr := p.Root.Stat(path)
		if statErr != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s is %s and no regular file", path, kindOfFile(info.Mode()))
	}
	return f, err
}

// kindOfFile says what stands where a file should.
func kindOfFile(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// config is what a model's config.json says about its size. Names differ between
// families of models; the first that is there counts.
type config struct {
	there bool
	dir   string
	// dtype is BF16, F16, F32... in the words of safetensors.
	dtype string
	// quantised is the format, bits the width of one weight where it is told.
	quantised string
	bits      int64
	experts   int64
	active    int64
	fields    map[string]any
	arch      Arch
	notes     []string
	// fault is the first of notes for which config.json cannot be loaded.
	fault string
}

// readConfig reads config.json and what quantisers write beside it. A missing or
// unreadable file is an empty config: the weights speak for themselves.
func (p Place) readConfig(dir string) config {
	var c config
	fields, note := p.readObject(dir, "config.json")
	if note != "" {
		c.notes = append(c.notes, note)
		if fields == nil {
			c.fault = note
		}
	}
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
	kind, _ := fields["model_type"].(string)
	for k, v := range leftOut[kind] {
		if old, there := fields[k]; !there || old == nil {
			fields[k] = v
		}
	}
	c.fields = fields
	c.dtype = dtypeWord(c.text("dtype", "torch_dtype"))
	c.dir = dir
	c.experts = c.size("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
	if c.experts > 1 {
		c.active = c.size("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k")
	} else {
		c.experts = 0
	}
	if quant == nil {
		for _, name := range []string{"quantize_config.json", "quant_config.json", "hf_quant_config.json"} {
			if quant = p.object(dir, name); quant != nil {
				break
			}
		}
	}
	c.quantised, c.bits = quantisation(quant)
	c.arch = c.readArch()
	return c
}

// leftOut are sizes that the configs of published models leave to the defaults of
// transformers (5.24): those of Gemma 3 have no vocab_size, and the 4B one no heads.
var leftOut = map[string]map[string]float64{
	"gemma3_text": {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072},
}

// object reads a JSON object; nil where there is none that can be read.
func (p Place) object(dir, name string) map[string]any {
	fields, _ := p.readObject(dir, name)
	return fields
}

// readObject is object, with a sentence about what is wrong with the file, "" for nothing
// and for a file that is not there.
func (p Place) readObject(dir, name string) (fields map[string]any, note string) {
	path := filepath.Join(dir, name)
	data, err := p.readSmall(path, maxConfig)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ""
	case err != nil && strings.Contains(err.Error(), path):
		return nil, "config of the model: " + err.Error()
	case err != nil:
		return nil, fmt.Sprintf("%s cannot be read: %v", path, err)
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Sprintf("%s is no JSON object that can be read: %v", path, err)
	}
	if key := twice(data); key != "" {
		note = fmt.Sprintf("%s has the key %.80q twice: the last one counts", path, key)
	}
	return fields, note
}

// twice returns the first key that an object of the text has twice, "" where none has.
// The text is valid JSON.
func twice(data []byte) string {
	d := json.NewDecoder(bytes.NewReader(data))
	// One set of keys for each object that is open, nil for an array; whether the next
	// string is a key.
	var open []map[string]bool
	key := false
	for {
		t, err := d.Token()
		if err != nil {
			return ""
		}
		top := func() map[string]bool {
			if len(open) == 0 {
				return nil
			}
			return open[len(open)-1]
		}
		switch t {
		case json.Delim('{'):
			open, key = append(open, map[string]bool{}), true
			continue
		case json.Delim('['):
			open, key = append(open, nil), false
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
			key = top() != nil
			continue
		}
		keys := top()
		if name, ok := t.(string); ok && key && keys != nil {
			if keys[name] {
				return name
			}
			keys[name], key = true, false
			continue
		}
		key = keys != nil
	}
}

func (c config) text(names ...string) string {
	for _, n := range names {
		if s, ok := c.fields[n].(string); ok && s != "" {
			return s
		}
	}
	return ""
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
