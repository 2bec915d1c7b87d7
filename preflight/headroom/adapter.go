package headroom

import (
	"fmt"
	"slices"
	"strings"
)

// adapter is what LoRA adds.
type adapter struct {
	params float64
	// least leaves the layers of experts out and most counts them, where it is not known
	// whether they have one.
	least, most float64
	// inputs is the width of the inputs of all adapted layers of a block together.
	inputs float64
	how    string
}

// bytes is so many bytes for each of its parameters.
func (a adapter) bytes(each float64) weighed {
	return weighed{a.params * each, a.least * each, a.most * each}
}

// linear is a kind of linear layer in a block.
type linear struct {
	names     []string
	in, out   float64
	attention bool
	// times is how many of them a block has, active how many of these a token passes.
	times, active float64
	expert        bool
}

// linears are the linear layers of a block of the model.
func (p *plan) linears() []linear {
	h, q, kv := float64(p.arch.Hidden), float64(p.arch.QueryWidth()), float64(p.arch.KeyWidth())
	list := []linear{
		{names: []string{"q_proj", "wq", "query", "qkv", "c_attn", "w_pack"}, in: h, out: q, attention: true, times: 1, active: 1},
		{names: []string{"k_proj", "wk", "key", "qkv", "c_attn", "w_pack"}, in: h, out: kv, attention: true, times: 1, active: 1},
		{names: []string{"v_proj", "wv", "value", "qkv", "c_attn", "w_pack"}, in: h, out: kv, attention: true, times: 1, active: 1},
		{names: []string{"o_proj", "wo", "out_proj", "dense", "c_proj"}, in: q, out: h, attention: true, times: 1, active: 1},
	}
	inner, times, active, expert := float64(p.arch.Intermediate), 1.0, 1.0, false
	if p.Model.Experts > 1 && !p.likeDense {
		times, active, expert = float64(p.Model.Experts), p.activeExperts(), true
		if m := p.arch.MoEIntermediate; m > 0 {
			inner = float64(m)
		}
	}
	list = append(list,
		linear{names: []string{"up_proj", "w3", "fc1", "c_fc", "dense_h_to_4h", "gate_up_proj"}, in: h, out: inner, times: times, active: active, expert: expert},
		linear{names: []string{"down_proj", "w2", "fc2", "dense_4h_to_h"}, in: inner, out: h, times: times, active: active, expert: expert})
	if p.arch.Gated() {
		list = append(list, linear{names: []string{"gate_proj", "w1", "gate_up_proj"}, in: h, out: inner, times: times, active: active, expert: expert})
	}
	return list
}

// activeExperts is how many experts a token passes.
func (p *plan) activeExperts() float64 {
	if p.Model.ActiveExperts > 0 {
		return float64(p.Model.ActiveExperts)
	}
	return min(2, float64(p.Model.Experts))
}

// everywhere are the words of trainers for all linear layers; those that PEFT is handed
// as they are come with the experts in most of its versions.
var everywhere = map[string]bool{"all-linear": true, "all_linear": true, "all": false, "all_linear_layers": false}

// adapters reckons the adapter of the plan: r x (in + out) for each layer it stands on.
func (p *plan) adapters() adapter {
	told := map[string]bool{}
	all, experts := len(p.Targets) == 0, false
	for _, t := range p.Targets {
		t = strings.ToLower(strings.TrimSpace(t))
		if with, is := everywhere[t]; is {
			all, experts = true, experts || with
		}
		// The last part of a path names the layer.
		if at := strings.LastIndexAny(t, "./"); at >= 0 {
			t = t[at+1:]
		}
		told[t] = true
	}
	may := all && !slices.Contains(p.t.Adapter.FusedExperts, p.arch.Type)
	if len(p.Targets) == 0 {
		p.assume("adapters on all linear layers%s", map[bool]string{true: " but the experts"}[p.Model.Experts > 1])
	}
	var a adapter
	matched := false
	layers, rank := float64(p.arch.Layers), float64(p.Rank)
	for _, l := range p.linears() {
		on := all && !l.expert
		for _, n := range l.names {
			on = on || told[n]
		}
		size := layers * l.times * rank * (l.in + l.out)
		switch {
		case on:
			a.least += size
		case !may || !l.expert:
			continue
		}
		if a.most += size; on || experts {
			a.params += size
		}
		matched = matched || on
		a.inputs += l.active * l.in
	}
	if !matched {
		// Names that are not known here, or a pattern.
		p.Targets = nil
		a = p.adapters()
		return a
	}
	if more := a.most - a.least; more > 0 {
		each := p.t.Adapter.WeightBytes + p.t.Adapter.GradientBytes + p.opt.Bytes
		what := "which is not in the figure"
		if experts {
			what = "which is in the figure"
		}
		p.note("a word for all linear layers means those of the experts too with some versions of transformers and PEFT: %s, %s", GB(bytesOf(more*each)), what)
	}
	a.how = fmt.Sprintf("%s parameters of rank %d", count(a.params), p.Rank)
	return a
}
