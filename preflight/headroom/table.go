package headroom

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"sparkrun/configs"
	"sparkrun/internal/sample"
)

// table is configs/memory.yaml.
type table struct {
	AsOf      string             `yaml:"as_of"`
	Refresh   string             `yaml:"refresh"`
	DTypes    map[string]float64 `yaml:"dtypes"`
	Formats   map[string]float64 `yaml:"formats"`
	LeastBits float64            `yaml:"least_bits"`
	// Unpacked are formats that are unpacked where all weights are trained.
	Unpacked   []string    `yaml:"unpacked"`
	Optimizers []optimizer `yaml:"optimizers"`
	Assume     struct {
		Method       string `yaml:"method"`
		DType        string `yaml:"dtype"`
		Optimizer    string `yaml:"optimizer"`
		Rank         int64  `yaml:"rank"`
		MicroBatch   int64  `yaml:"micro_batch"`
		SeqLen       int64  `yaml:"seq_len"`
		Attention    string `yaml:"attention"`
		MaxPositions int64  `yaml:"max_positions"`
		MaxBatch     int64  `yaml:"max_batch"`
		// GradCheckpointing is whether activations are checkpointed.
		GradCheckpointing bool `yaml:"grad_checkpointing"`
	} `yaml:"assume"`
	Adapter struct {
		WeightBytes   float64 `yaml:"weight_bytes"`
		GradientBytes float64 `yaml:"gradient_bytes"`
		// FusedExperts are types of mixtures whose experts are no linear layers.
		FusedExperts []string `yaml:"fused_experts"`
	} `yaml:"adapter"`
	Mixed struct {
		WeightBytes   float64 `yaml:"weight_bytes"`
		GradientBytes float64 `yaml:"gradient_bytes"`
		CastBytes     float64 `yaml:"cast_bytes"`
	} `yaml:"mixed"`
	Activations struct {
		Hidden         float64  `yaml:"hidden"`
		Query          float64  `yaml:"query"`
		Key            float64  `yaml:"key"`
		Inner          float64  `yaml:"inner"`
		InnerPlain     float64  `yaml:"inner_plain"`
		QKNorm         float64  `yaml:"qk_norm"`
		QKNormTypes    []string `yaml:"qk_norm_types"`
		ExpertHidden   float64  `yaml:"expert_hidden"`
		EagerScores    float64  `yaml:"eager_scores"`
		LoRAInputs     float64  `yaml:"lora_inputs"`
		AutocastHidden float64  `yaml:"autocast_hidden"`
		Backward       float64  `yaml:"backward"`
		WithoutScores  []string `yaml:"without_scores"`
		WithScores     []string `yaml:"with_scores"`
	} `yaml:"activations"`
	Logits struct {
		Bytes       float64 `yaml:"bytes"`
		Low         float64 `yaml:"low"`
		High        float64 `yaml:"high"`
		FusedHidden float64 `yaml:"fused_hidden"`
		FusedHead   float64 `yaml:"fused_head"`
	} `yaml:"logits"`
	Dequantisation struct {
		Copies float64 `yaml:"copies"`
	} `yaml:"dequantisation"`
	Generation struct {
		Completions int64 `yaml:"completions"`
	} `yaml:"generation"`
	Runtime struct {
		GB     float64 `yaml:"gb"`
		LowGB  float64 `yaml:"low_gb"`
		HighGB float64 `yaml:"high_gb"`
	} `yaml:"runtime"`
	Allocator struct {
		Share float64 `yaml:"share"`
		High  float64 `yaml:"high"`
	} `yaml:"allocator"`
	Rows struct {
		Low float64 `yaml:"low"`
	} `yaml:"rows"`
	Margin struct {
		Share float64 `yaml:"share"`
		GB    float64 `yaml:"gb"`
	} `yaml:"margin"`
	Reserve struct {
		GiB   float64 `yaml:"gib"`
		Share float64 `yaml:"share"`
	} `yaml:"reserve"`
	FarAbove float64 `yaml:"far_above"`
	Near     float64 `yaml:"near"`
	Fit      struct {
		Tokens int64 `yaml:"tokens"`
		Rows   int64 `yaml:"rows"`
	} `yaml:"fit"`
	FirstRung struct {
		Halvings int   `yaml:"halvings"`
		Floor    int64 `yaml:"floor"`
	} `yaml:"first_rung"`
	Shapes struct {
		Vocab     int64   `yaml:"vocab"`
		HeadDim   int64   `yaml:"head_dim"`
		TiedBelow float64 `yaml:"tied_below"`
		Sizes     []shape `yaml:"sizes"`
	} `yaml:"shapes"`
	Anchors []anchorRow `yaml:"anchors"`
}

// optimizer is a line of the table: bytes of state for each trained parameter.
type optimizer struct {
	Name  string   `yaml:"name"`
	Words []string `yaml:"words"`
	Bytes float64  `yaml:"bytes"`
	// Embeddings is what embeddings and norms have instead, where that differs.
	Embeddings float64 `yaml:"embeddings"`
	Why        string  `yaml:"why"`
	// Follows says that the state has the type of the weights.
	Follows bool `yaml:"follows"`
}

// shape is the shape of a usual dense model of so many parameters.
type shape struct {
	Params       float64 `yaml:"params"`
	Hidden       float64 `yaml:"hidden"`
	Layers       float64 `yaml:"layers"`
	Heads        float64 `yaml:"heads"`
	KVHeads      float64 `yaml:"kv_heads"`
	Intermediate float64 `yaml:"intermediate"`
}

// anchorRow is an anchor of the table.
type anchorRow struct {
	Class     string   `yaml:"class"`
	Params    float64  `yaml:"params"`
	Method    string   `yaml:"method"`
	Objective string   `yaml:"objective"`
	MoE       bool     `yaml:"moe"`
	Quantised bool     `yaml:"quantised"`
	GB        *float64 `yaml:"gb"`
	Fits      string   `yaml:"fits"`
	Date      string   `yaml:"date"`
	Note      string   `yaml:"note"`
	Source    string   `yaml:"source"`
}

func (r anchorRow) anchor() Anchor {
	a := Anchor{Class: r.Class, Method: Method(r.Method), Objective: r.Objective, Fits: r.Fits, Date: r.Date, Note: r.Note, Source: r.Source}
	if r.GB != nil {
		a.GB = sample.Known(*r.GB)
	}
	return a
}

// loadTable reads the built-in table once. It cannot fail in a binary whose tests passed;
// a caller that sees the error has a broken build.
var loadTable = sync.OnceValues(func() (*table, error) {
	data, err := configs.FS.ReadFile("memory.yaml")
	if err != nil {
		return nil, fmt.Errorf("reading the built-in memory table: %w", err)
	}
	return readTable("configs/memory.yaml", data)
})

// readTable reads a table and looks for numbers that would make every estimate wrong.
func readTable(name string, data []byte) (*table, error) {
	var t table
	if err := configs.Decode(name, data, &t); err != nil {
		return nil, fmt.Errorf("reading the memory table: %w", err)
	}
	for what, v := range map[string]float64{
		"dtypes.fp32": t.DTypes["fp32"], "dtypes.bf16": t.DTypes["bf16"], "dtypes.fp16": t.DTypes["fp16"], "dtypes.int8": t.DTypes["int8"],
		"formats.nf4": t.Formats["nf4"], "formats.bnb-8bit": t.Formats["bnb-8bit"], "formats.gptq": t.Formats["gptq"], "formats.compressed-tensors": t.Formats["compressed-tensors"], "least_bits": t.LeastBits,
		"adapter.weight_bytes": t.Adapter.WeightBytes, "adapter.gradient_bytes": t.Adapter.GradientBytes,
		"mixed.weight_bytes": t.Mixed.WeightBytes, "mixed.gradient_bytes": t.Mixed.GradientBytes, "mixed.cast_bytes": t.Mixed.CastBytes,
		"activations.hidden": t.Activations.Hidden, "activations.query": t.Activations.Query, "activations.key": t.Activations.Key,
		"activations.inner": t.Activations.Inner, "activations.inner_plain": t.Activations.InnerPlain, "activations.qk_norm": t.Activations.QKNorm,
		"activations.expert_hidden": t.Activations.ExpertHidden, "activations.eager_scores": t.Activations.EagerScores,
		"activations.lora_inputs": t.Activations.LoRAInputs, "activations.autocast_hidden": t.Activations.AutocastHidden,
		"activations.backward": t.Activations.Backward, "logits.bytes": t.Logits.Bytes, "logits.low": t.Logits.Low, "logits.high": t.Logits.High,
		"logits.fused_hidden": t.Logits.FusedHidden, "logits.fused_head": t.Logits.FusedHead, "dequantisation.copies": t.Dequantisation.Copies,
		"runtime.gb": t.Runtime.GB, "runtime.low_gb": t.Runtime.LowGB, "runtime.high_gb": t.Runtime.HighGB,
		"allocator.share": t.Allocator.Share, "allocator.high": t.Allocator.High, "rows.low": t.Rows.Low,
		"margin.share": t.Margin.Share, "margin.gb": t.Margin.GB, "reserve.gib": t.Reserve.GiB, "reserve.share": t.Reserve.Share,
		"far_above": t.FarAbove, "near": t.Near, "shapes.tied_below": t.Shapes.TiedBelow,
		"assume.rank": float64(t.Assume.Rank), "assume.micro_batch": float64(t.Assume.MicroBatch), "assume.seq_len": float64(t.Assume.SeqLen),
		"assume.max_positions": float64(t.Assume.MaxPositions), "assume.max_batch": float64(t.Assume.MaxBatch),
		"generation.completions": float64(t.Generation.Completions), "fit.tokens": float64(t.Fit.Tokens), "fit.rows": float64(t.Fit.Rows),
		"first_rung.halvings": float64(t.FirstRung.Halvings), "first_rung.floor": float64(t.FirstRung.Floor),
		"shapes.vocab": float64(t.Shapes.Vocab), "shapes.head_dim": float64(t.Shapes.HeadDim),
	} {
		if !(v > 0) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%s: %s must be above 0", name, what)
		}
	}
	if _, err := time.Parse(time.DateOnly, t.AsOf); err != nil || t.Refresh == "" {
		return nil, fmt.Errorf("%s: as_of must be a day, as 2026-07-14, and refresh say when the figures are to be looked at again", name)
	}
	if len(t.Activations.WithoutScores) == 0 || len(t.Activations.WithScores) == 0 {
		return nil, fmt.Errorf("%s: activations names no implementations of attention", name)
	}
	if len(t.Optimizers) == 0 || len(t.Shapes.Sizes) < 2 || len(t.Anchors) == 0 {
		return nil, fmt.Errorf("%s: optimizers, shapes or anchors are missing", name)
	}
	for _, o := range t.Optimizers {
		if o.Name == "" || len(o.Words) == 0 || o.Why == "" || o.Bytes < 0 || o.Embeddings < 0 {
			return nil, fmt.Errorf("%s: optimizer %q needs a name, words, a reason and bytes of 0 or more", name, o.Name)
		}
	}
	for i := 1; i < len(t.Shapes.Sizes); i++ {
		a, b := t.Shapes.Sizes[i-1], t.Shapes.Sizes[i]
		// Larger models must not be narrower, or a larger model would take less memory.
		if a.Params <= 0 || b.Params <= a.Params || a.Hidden <= 0 || b.Hidden < a.Hidden || a.Layers <= 0 || b.Layers < a.Layers ||
			a.Heads <= 0 || b.Heads < a.Heads || a.KVHeads <= 0 || b.KVHeads < a.KVHeads || a.Intermediate <= 0 || b.Intermediate < a.Intermediate {
			return nil, fmt.Errorf("%s: shapes must grow from one to the next, and the one of %g parameters does not", name, b.Params)
		}
	}
	for _, a := range t.Anchors {
		if a.Class == "" || a.Params <= 0 || methodOf(a.Method) == "" || a.Date == "" || a.Fits == "" || a.Source == "" {
			return nil, fmt.Errorf("%s: the anchor of class %q needs params, a method, a date, what fits, and a source", name, a.Class)
		}
	}
	if methodOf(t.Assume.Method) == "" || t.DTypes[t.Assume.DType] == 0 {
		return nil, fmt.Errorf("%s: assume has an unknown method or dtype", name)
	}
	return &t, nil
}

// methodOf reads a method; "" is none that is known.
func methodOf(word string) Method {
	switch m := Method(strings.ToLower(strings.TrimSpace(word))); m {
	case Full, LoRA, QLoRA:
		return m
	}
	return ""
}

// optimizerOf finds the line of an optimizer by the words in its name.
func (t *table) optimizerOf(name string) (optimizer, bool) {
	plain := strings.ReplaceAll(strings.ToLower(name), "-", "_")
	for _, o := range t.Optimizers {
		for _, w := range o.Words {
			if strings.Contains(plain, w) {
				return o, true
			}
		}
	}
	return optimizer{}, false
}

// dtypeOf turns the words of trainers into those of the table; "" where they are none of
// a type ("auto").
func dtypeOf(word string) string {
	w := strings.TrimPrefix(strings.ToLower(strings.TrimSpace(word)), "torch.")
	switch w {
	case "bf16", "bfloat16", "bf16_mixed", "bf16-mixed", "amp_bf16", "bf16-true":
		return "bf16"
	case "fp16", "f16", "float16", "half", "fp16-mixed", "16", "16-mixed", "16-true", "amp_fp16":
		return "fp16"
	case "fp32", "f32", "float32", "float", "32", "32-true", "no":
		return "fp32"
	}
	return ""
}

// autocast says whether a word for a type means 32-bit weights that are computed with in 16.
func autocast(word string) bool {
	w := strings.ToLower(strings.TrimSpace(word))
	return strings.HasSuffix(w, "mixed") || strings.HasPrefix(w, "amp_")
}
