package modelsize

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Arch is the shape of a decoder, from its config.json. A field that is not told is 0
// and means "not known", never "none", unless its comment says otherwise.
type Arch struct {
	// Type is the model_type: qwen3, llama, gpt_oss...; "" is not told.
	Type string `json:"model_type,omitempty"`
	// Hidden is the width of the residual stream, Layers how many blocks there are.
	Hidden int64 `json:"hidden,omitempty"`
	Layers int64 `json:"layers,omitempty"`
	// Heads and KVHeads count the heads of queries and of keys and values, HeadDim is
	// the width of one.
	Heads   int64 `json:"heads,omitempty"`
	KVHeads int64 `json:"kv_heads,omitempty"`
	HeadDim int64 `json:"head_dim,omitempty"`
	// Intermediate is the inner width of a dense block's MLP, MoEIntermediate that of
	// one expert, SharedIntermediate that of all shared experts of a layer together (0:
	// none).
	Intermediate       int64 `json:"intermediate,omitempty"`
	MoEIntermediate    int64 `json:"moe_intermediate,omitempty"`
	SharedIntermediate int64 `json:"shared_intermediate,omitempty"`
	// DenseLayers is how many layers of a mixture have a plain MLP (0: none).
	DenseLayers int64 `json:"dense_layers,omitempty"`
	// Matrices is how many matrices an MLP has: 3 where it is gated, else 2.
	Matrices int64 `json:"matrices,omitempty"`
	// Vocab is the number of rows of the output layer.
	Vocab int64 `json:"vocab,omitempty"`
	// Tied says that the output layer is the embedding.
	Tied bool `json:"tied,omitempty"`
	// MaxPositions is the longest row the model was made for, SlidingWindow how far
	// back its local layers look (0: all the way).
	MaxPositions  int64 `json:"max_positions,omitempty"`
	SlidingWindow int64 `json:"sliding_window,omitempty"`
}

// Known says whether enough is told to reckon activations.
func (a Arch) Known() bool { return a.Hidden > 0 && a.Layers > 0 && a.Vocab > 0 }

// Parts splits the parameters by what a quantiser does with them. All 0 where neither
// the headers nor the config tell; their sum is Size.Params otherwise.
type Parts struct {
	// Embeddings are the input embeddings, Head the output layer where it is stored on
	// its own (see Arch.Tied); both keep 16 bit under QLoRA.
	Embeddings int64 `json:"embeddings,omitempty"`
	Head       int64 `json:"head,omitempty"`
	// Linears are the weights that are quantised, experts included; Experts the part of
	// them that are experts'.
	Linears int64 `json:"linears,omitempty"`
	Experts int64 `json:"experts,omitempty"`
	// Other are norms, biases and whatever else.
	Other int64 `json:"other,omitempty"`
}

// Known says whether the split is known.
func (p Parts) Known() bool { return p.Linears > 0 }

// Gated says whether an MLP of the model has three matrices.
func (a Arch) Gated() bool { return a.Matrices != 2 }

// QueryWidth is the width of all queries together, KeyWidth that of all keys, as far as
// they are known; where nothing is told, those of plain attention.
func (a Arch) QueryWidth() int64 {
	if a.Heads > 0 && a.HeadDim > 0 {
		return a.Heads * a.HeadDim
	}
	return a.Hidden
}

// KeyWidth is the width of all keys together.
func (a Arch) KeyWidth() int64 {
	if a.KVHeads > 0 && a.HeadDim > 0 {
		return a.KVHeads * a.HeadDim
	}
	return a.QueryWidth()
}

// Split reckons the parameters of a decoder of this shape with so many experts in a layer
// (0: none); nothing where the shape does not say enough. Norms and biases are left out:
// they are less than a thousandth.
func (a Arch) Split(experts int64) Parts {
	if !a.Known() {
		return Parts{}
	}
	h, layers := float64(a.Hidden), float64(a.Layers)
	q, kv := float64(a.QueryWidth()), float64(a.KeyWidth())
	attention := 2*h*q + 2*h*kv
	inner := float64(a.Intermediate)
	matrices := 3.0
	if !a.Gated() {
		matrices = 2
	}
	dense := matrices * h * inner
	linears := layers * (attention + dense)
	var own float64
	if experts > 1 {
		each := float64(a.MoEIntermediate)
		if each == 0 {
			each = inner
		}
		sparse := math.Max(0, layers-float64(a.DenseLayers))
		own = sparse * 3 * h * each * float64(experts)
		linears = layers*attention + math.Min(layers, float64(a.DenseLayers))*dense + own + sparse*3*h*float64(a.SharedIntermediate) + sparse*h*float64(experts)
	}
	embeddings := float64(a.Vocab) * h
	head := 0.0
	switch {
	case !a.Gated():
		// Older ones also learn the positions, and tie unless they say otherwise.
		embeddings += float64(a.MaxPositions) * h
	case !a.Tied:
		head = embeddings
	}
	if embeddings+head+linears > maxParams {
		return Parts{}
	}
	return Parts{Embeddings: int64(embeddings), Head: int64(head), Linears: int64(linears), Experts: int64(own)}
}

// Sum is the number of all parameters.
func (p Parts) Sum() int64 { return p.Embeddings + p.Head + p.Linears + p.Other }

// maxParams is more than any model has; a number above it is a mistake in a file.
const maxParams = 1e15

// readArch reads the shape from the fields of a config. Names differ between families of
// models; the first that is there counts.
func (c *config) readArch() Arch {
	a := Arch{
		Type:          c.text("model_type"),
		Hidden:        c.size("hidden_size", "n_embd", "d_model", "dim"),
		Layers:        c.size("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
		Heads:         c.size("num_attention_heads", "n_head", "n_heads"),
		KVHeads:       c.size("num_key_value_heads", "multi_query_group_num"),
		HeadDim:       c.size("head_dim"),
		Vocab:         c.size("vocab_size"),
		MaxPositions:  c.size("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"),
		SlidingWindow: c.size("sliding_window"),
		Matrices:      3,
	}
	if on, ok := c.fields["use_sliding_window"].(bool); ok && !on {
		a.SlidingWindow = 0
	}
	if a.Heads == 0 && a.Hidden > 0 {
		a.Heads = 1
	}
	if a.KVHeads == 0 || a.KVHeads > a.Heads {
		a.KVHeads = a.Heads
	}
	if a.HeadDim == 0 && a.Heads > 0 {
		a.HeadDim = a.Hidden / a.Heads
	}
	// Newer models have three matrices in a layer (gate, up, down), older ones two.
	a.Intermediate = c.size("intermediate_size", "ffn_hidden_size")
	if a.Intermediate == 0 {
		a.Intermediate, a.Matrices = c.size("n_inner"), 2
		if a.Intermediate == 0 {
			a.Intermediate = 4 * a.Hidden
		}
	}
	tied, told := c.fields["tie_word_embeddings"].(bool)
	a.Tied = tied || !told && a.Hidden > 0 && (a.Matrices == 2 || tiedFamilies[a.Type])
	if c.experts > 1 {
		a.MoEIntermediate = c.size("moe_intermediate_size", "expert_ffn_hidden_size")
		each := a.MoEIntermediate
		if each == 0 {
			each = a.Intermediate
		}
		a.SharedIntermediate = c.size("n_shared_experts", "moe_num_shared_experts", "num_shared_experts") * each
		if n := c.size("shared_expert_intermediate_size"); n > 0 {
			a.SharedIntermediate = n
		}
		a.DenseLayers = c.size("first_k_dense_replace")
	}
	return a
}

// tiedFamilies tie the output layer to the embedding without saying so in their config.
var tiedFamilies = map[string]bool{"gemma": true, "gemma2": true, "gemma3": true, "gemma3_text": true}

// always are the sizes without which there is no model.
var always = []string{"hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head", "vocab_size", "intermediate_size"}

// maxSize is more than any size of a shape is.
const maxSize = 1 << 28

// size is number for the sizes of a shape. A value that cannot be one is noted.
func (c *config) size(names ...string) int64 {
	for _, n := range names {
		v, there := c.fields[n]
		if !there || v == nil {
			continue
		}
		f, ok := v.(float64)
		switch {
		case ok && f == 0:
			continue // some configs write 0 for "none"
		case ok && f >= 1 && f <= maxSize && f == math.Trunc(f):
			return int64(f)
		}
		note := fmt.Sprintf("%s: %s is %.60s, which is no such size", filepath.Join(c.dir, "config.json"), n, fmt.Sprint(v))
		c.notes = append(c.notes, note)
		// -1 means "none" to some, but not for what every model has.
		if f < 0 && c.fault == "" && slices.Contains(always, n) {
			c.fault = note
		}
	}
	return 0
}

// estimate reckons the parameters of a decoder from the sizes in its config; 0 where they
// do not say enough.
func (c config) estimate() int64 { return c.arch.Split(c.experts).Sum() }

// layerName has the number of a block in the name of a tensor.
var layerName = regexp.MustCompile(`(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,4})\.`)

// otherTowers are words in the names of tensors that are not the language model's.
var otherTowers = []string{"vision", "visual", "audio"}

// shape is what the tensors themselves say of a decoder, for configs that leave sizes to
// the defaults of a library (Gemma 3 has no vocab_size) or cannot be read. Nothing of a
// mixture, whose blocks are not alike.
func (c *count) shape() Arch {
	a := Arch{Matrices: 2}
	for _, t := range c.files {
		name := strings.ToLower(t.name)
		if slices.ContainsFunc(otherTowers, func(w string) bool { return strings.Contains(name, w) }) {
			continue
		}
		kind := kindOf(t.name)
		plain := t.dims == 2 && (t.dtype == "BF16" || t.dtype == "F16" || t.dtype == "F32") && t.first <= maxSize && t.last <= maxSize
		switch {
		case kind == expertPart:
			return Arch{}
		case plain && (kind == embeddingPart || kind == headPart) && t.first > a.Vocab:
			a.Vocab, a.Hidden = t.first, t.last
		case plain && strings.HasSuffix(name, "mlp.down_proj.weight"):
			a.Intermediate = max(a.Intermediate, t.last)
		case strings.HasSuffix(name, "mlp.gate_proj.weight"), strings.HasSuffix(name, "mlp.gate_up_proj.weight"):
			a.Matrices = 3
		}
		if m := layerName.FindStringSubmatch(name); m != nil {
			n, _ := strconv.ParseInt(m[1], 10, 64) // four digits at most
			a.Layers = max(a.Layers, n+1)
		}
	}
	return a
}

// with fills in what is not told by what was seen in the tensors, where the two go
// together.
func (a Arch) with(seen Arch) Arch {
	switch {
	case a.Known() || !seen.Known() || a.Hidden > 0 && a.Hidden != seen.Hidden:
		return a
	case a.Hidden == 0:
		// The other sizes are no use without it, and were made of it.
		seen.Type, seen.MaxPositions, seen.SlidingWindow, seen.Tied = a.Type, a.MaxPositions, a.SlidingWindow, a.Tied
		return seen
	}
	if a.Layers == 0 {
		a.Layers = seen.Layers
	}
	if a.Vocab == 0 {
		a.Vocab = seen.Vocab
	}
	return a
}

// describe adds what the config tells to a size. A shape that does not go with the
// weights is that of something else: it is not used.
func (c config) describe(s Size) Size {
	s.Notes = append(s.Notes, c.notes...)
	s.Fault = c.fault
	if c.experts == 0 {
		c.arch = c.arch.with(s.Arch)
	}
	s.Arch = Arch{}
	split := c.arch.Split(c.experts)
	told := split.Sum()
	if told > 0 && s.Exact && s.Params > 0 && (told/4 > s.Params || told < s.Params/10) {
		s.Notes = append(s.Notes, fmt.Sprintf("config.json describes a model of %d parameters and the weights have %d: its sizes are not used", told, s.Params))
		s.Arch = Arch{Type: c.arch.Type}
		return s
	}
	if c.arch.Known() {
		s.Arch = c.arch
	}
	if !s.Parts.Known() && told > 0 && s.Params > 0 {
		// The sizes of the parts as the config has them, the rest as it must be.
		s.Parts = split
		if rest := s.Params - split.Embeddings - split.Head; rest > 0 {
			s.Parts.Linears = rest
			s.Parts.Experts = min(s.Parts.Experts, rest)
		} else {
			s.Parts = Parts{}
		}
	}
	return s
}
