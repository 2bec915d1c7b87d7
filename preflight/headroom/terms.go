package headroom

import (
	"fmt"
	"math"
	"strings"
)

// weights is the memory of the weights in the form that they will have.
type weights struct {
	weighed
	// least is the least that they can take; stored what they take as they are on disk.
	least, stored float64
	exact         bool
	how           string
}

// weights reckons the weights. Under QLoRA the linear layers are packed; embeddings, norms
// and the output layer keep 16 bit (and some preparations make that 32).
func (p *plan) weights() weights {
	t := p.t
	per := t.DTypes[p.dtype]
	sixteen := p.params * t.DTypes["bf16"]
	stored := p.stored()
	w := weights{stored: stored, exact: p.Model.Exact && p.weightTold && p.Nodes <= 1 && !p.MayQuantise && !p.MayOffload}
	switch {
	case p.Method == Full && p.MixedPrecision == On:
		// Autocast keeps 32 bit and casts for the pass; Megatron keeps both.
		per = t.Mixed.WeightBytes + t.Mixed.CastBytes
		held := (p.params - p.trained) * t.DTypes["bf16"]
		w.weighed = weighed{held + p.trained*per, held + p.trained*t.Mixed.WeightBytes, held + p.trained*per}
		w.least = held + p.trained*t.Mixed.WeightBytes
		w.how = fmt.Sprintf("%s parameters in 32 bit, and in 16 for the pass", count(p.trained))
		if held > 0 {
			w.how += fmt.Sprintf("; %s are held in 16", count(p.params-p.trained))
		}
	case p.Method == Full || p.Model.Quantised == "" && p.Method == LoRA:
		w.weighed = fixed(p.params * per)
		if p.Method == Full && p.dtype != "fp32" && p.MixedPrecision == NotTold {
			// Many trainers keep trained weights in 32 bit whatever they compute in.
			w.high = (p.params-p.trained)*per + p.trained*t.Mixed.WeightBytes
		}
		if p.Method == Full && p.loads32 && p.MixedPrecision == NotTold {
			w.high += p.trained * t.Mixed.CastBytes
		}
		if p.may32 {
			w.high = p.params * t.DTypes["fp32"]
		}
		w.least = p.params * math.Min(per, t.DTypes["bf16"])
		w.how = fmt.Sprintf("%s parameters in %s, %g bytes each", count(p.params), p.dtype, per)
	case p.Model.Quantised != "":
		// Ready-made: it is loaded as it is stored. Versions without kernels for a format
		// unpack it, and then they say so.
		w.weighed = weighed{stored, stored, stored}
		switch p.Model.Quantised {
		case "mxfp4", "nvfp4", "fp8", "compressed-tensors":
			w.high = math.Max(stored, sixteen)
			p.note("%s weights are unpacked to 16 bit (%s) by trainers that have no kernels for them", p.Model.Quantised, GB(bytesOf(sixteen)))
		}
		w.least = stored
		w.exact = w.exact && p.Model.TensorBytes > 0
		w.how = fmt.Sprintf("%s parameters as they are stored (%s)", count(p.params), p.Model.Quantised)
	default:
		bits, least := p.packedBits()
		packed, rest := float64(p.parts.Linears), math.Max(0, p.params-float64(p.parts.Linears))
		two := t.DTypes["bf16"]
		w.weighed = fixed(packed*bits/8 + rest*two)
		w.high = packed*bits/8 + rest*t.DTypes["fp32"]
		w.least = packed*least/8 + rest*two
		if e := float64(p.parts.Experts); e > 0 {
			p.note("experts that are stored as one tensor are not quantised by some versions of bitsandbytes: then they stay in 16 bit, %s", GB(bytesOf(e*two)))
			w.high += math.Max(0, e*(two-bits/8))
		}
		w.exact = w.exact && p.Model.Parts.Known()
		w.how = fmt.Sprintf("%s in %g bit with their scales, %s (embeddings, norms, output) in 16", count(packed), least, count(rest))
	}
	if p.Model.Experts > 1 {
		w.how += fmt.Sprintf("; all %d experts, whatever a token passes", p.Model.Experts)
	}
	return w
}

// packedBits is the width of one weight that is quantised while it is loaded, with its
// share of the scales and without.
func (p *plan) packedBits() (bits, least float64) {
	switch {
	case p.Bits == 0 || p.Bits == 4:
		return p.t.Formats["nf4"], p.t.LeastBits
	case p.Bits == 8:
		return p.t.Formats["bnb-8bit"], 8
	}
	// Other widths keep scales as gptq does.
	least = math.Min(float64(p.Bits), 16)
	return least + p.t.Formats["gptq"] - p.t.LeastBits, least
}

// stored is what the weights take as they are on disk.
func (p *plan) stored() float64 {
	switch {
	case p.Model.TensorBytes > 0:
		return float64(p.Model.TensorBytes)
	case p.Model.Bytes > 0:
		return float64(p.Model.Bytes)
	case p.Model.Quantised == "":
		return p.params * p.t.DTypes["bf16"]
	}
	bits, ok := p.t.Formats[p.Model.Quantised]
	if !ok {
		bits = p.t.Formats["compressed-tensors"]
	}
	packed := float64(p.parts.Linears)
	return packed*bits/8 + math.Max(0, p.params-packed)*p.t.DTypes["bf16"]
}

// term is a term with how it came about.
type term struct {
	weighed
	how string
}

// gradients are those of the trained parameters.
func (p *plan) gradients() term {
	t := p.t
	switch {
	case p.Method != Full:
		return term{p.adapter.bytes(t.Adapter.GradientBytes), "of the adapter only"}
	case strings.Contains(strings.ToLower(p.opt.Name), "lomo"):
		return term{fixed(0), ""} // used up layer by layer
	case p.MixedPrecision == On || p.dtype == "fp32":
		return term{fixed(p.trained * t.Mixed.GradientBytes), "one for each trained parameter, in 32 bit"}
	}
	per := t.DTypes[p.dtype]
	w := fixed(p.trained * per)
	if p.MixedPrecision == NotTold {
		w.high = p.trained * t.Mixed.GradientBytes
	}
	return term{w, fmt.Sprintf("one for each trained parameter, in %s", p.dtype)}
}

// state is the optimizer's.
func (p *plan) state() term {
	trained, what := p.trained, "parameters"
	if p.Method != Full {
		trained, what = p.adapter.params, "parameters of the adapter"
	}
	v := trained * p.opt.Bytes
	how := fmt.Sprintf("%s: %s, %g bytes for each of the %s", p.opt.Name, p.opt.Why, p.opt.Bytes, what)
	if p.opt.Embeddings > 0 && p.Method == Full {
		apart := math.Min(trained, float64(p.parts.Embeddings+p.parts.Head+p.parts.Other))
		v = (trained-apart)*p.opt.Bytes + apart*p.opt.Embeddings
	}
	w := fixed(v)
	if p.Method != Full {
		w = p.adapter.bytes(p.opt.Bytes)
	}
	if p.opt.Follows && p.Method == Full && p.dtype != "fp32" {
		switch p.MixedPrecision {
		case Off:
			// Purely in 16 bit: torch's optimizers keep their state in the type of the weights.
			w = fixed(v * p.t.DTypes[p.dtype] / p.t.DTypes["fp32"])
			how += ", and half of that since the weights are purely in 16 bit"
		case NotTold:
			w.low = v * p.t.DTypes[p.dtype] / p.t.DTypes["fp32"]
		}
	}
	return term{w, how}
}

// active are the activations of a step.
type active struct {
	// kept stays from the forward to the backward pass; block is that of the one block that
	// is worked out anew, 0 without checkpointing.
	kept, block float64
	how         string
}

// activations reckons what the backward pass needs. Without checkpointing that is all
// that every block made; with it the inputs of the blocks, and one block at a time.
func (p *plan) activations() active {
	a, t := p.arch, p.t.Activations
	h, q, kv := float64(a.Hidden), float64(a.QueryWidth()), float64(a.KeyWidth())
	inner := float64(a.Intermediate)
	token := t.Hidden*h + t.Query*q + t.Key*kv
	if p.Model.Experts > 1 && !p.likeDense {
		n := p.activeExperts()
		if m := float64(a.MoEIntermediate); m > 0 {
			inner = m
		}
		inner = inner*n + float64(a.SharedIntermediate)
		token += t.ExpertHidden * h * n
	}
	if a.Gated() {
		token += t.Inner * inner
	} else {
		token += t.InnerPlain * inner
	}
	for _, kind := range t.QKNormTypes {
		if a.Type == kind {
			token += t.QKNorm * (q + kv)
			break
		}
	}
	if p.Method != Full {
		token += t.LoRAInputs * p.adapter.inputs
	}
	if p.Method == Full && p.MixedPrecision == On {
		token += t.AutocastHidden * h
	} else if p.dtype == "fp32" {
		token *= 2
	}
	tokens, layers := p.tokens(), p.layers
	each := token * tokens
	how := fmt.Sprintf("%g layers, %s tokens", layers, count(tokens))
	if p.eager() {
		// Scores of all pairs of tokens, for each head, in each block.
		each += t.EagerScores * float64(max(a.Heads, 1)) * float64(p.SeqLen) * tokens
		how += fmt.Sprintf(", and the scores of %s attention for all pairs of them", p.Attention)
	}
	if p.GradCheckpoint != On {
		return active{kept: each * layers, how: how + ", all kept"}
	}
	width := p.t.DTypes["bf16"]
	if p.dtype == "fp32" || p.Method == Full && p.MixedPrecision == On {
		width = p.t.DTypes["fp32"]
	}
	return active{kept: width * h * tokens * layers, block: each * t.Backward, how: how + ", checkpointed: the inputs of all, and one at a time anew"}
}

// logits reckons the output over the vocabulary.
func (p *plan) logits() term {
	tokens, t := p.tokens(), p.t.Logits
	if p.objective() == "reward" {
		return term{fixed(0), ""} // one number for each row
	}
	all := tokens * float64(p.arch.Vocab)
	pieces := tokens * float64(p.arch.Hidden) * t.FusedHidden
	if p.Method == Full {
		pieces += float64(p.arch.Vocab) * float64(p.arch.Hidden) * t.FusedHead
	}
	pieces = math.Min(all*t.Bytes, pieces)
	if p.FusedLoss == On {
		return term{fixed(pieces), "in pieces (fused loss)"}
	}
	w := weighed{all * t.Bytes, all * t.Low, all * t.High}
	if p.MayFuse && p.FusedLoss == NotTold {
		w.low = math.Min(w.low, pieces)
	}
	// Without 16 bit there is one copy less to be made, and what was in 16 is twice as large.
	what := "16 bit, 32 bit, and their gradients"
	if p.dtype == "fp32" && p.MixedPrecision != On {
		what = "logits and log-probabilities in 32 bit, and their gradients"
	}
	return term{w, fmt.Sprintf("%s tokens x %d words x %g bytes: %s", count(tokens), p.arch.Vocab, t.Bytes, what)}
}

// dequantised is what one matrix takes while it is used unpacked.
func (p *plan) dequantised() (bytes float64, how string) {
	if p.Method == Full || p.Method == LoRA && p.Model.Quantised == "" {
		return 0, ""
	}
	var largest float64
	for _, l := range p.linears() {
		largest = math.Max(largest, l.in*l.out)
	}
	copies := p.t.Dequantisation.Copies
	return largest * p.t.DTypes["bf16"] * copies, fmt.Sprintf("the largest matrix in 16 bit, %g times", copies)
}

// generated is what generating completions takes: keys and values of all that are in work.
func (p *plan) generated() (bytes float64, how string) {
	if p.objective() != "grpo" {
		return 0, ""
	}
	v := float64(p.Completions) * float64(p.SeqLen) * float64(p.arch.Layers) * 2 * float64(p.arch.KeyWidth()) * p.t.DTypes["bf16"]
	return v, fmt.Sprintf("keys and values of %d completions", p.Completions)
}
