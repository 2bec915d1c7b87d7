package headroom

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"sparkrun/internal/modelsize"
)

// plan is a Spec with everything filled in, as the terms are reckoned from.
type plan struct {
	Spec
	t   *table
	opt optimizer
	// params are the parameters in memory: an output layer that is tied to the embedding is
	// there once, also where the files have it twice.
	params float64
	parts  modelsize.Parts
	arch   modelsize.Arch
	dtype  string
	// weightTold says that method and type were told, so that the form of the weights is
	// no guess.
	weightTold bool
	adapter    adapter
	// methodAssumed says that nobody told how it is trained; impossible why it cannot be as
	// it is told.
	methodAssumed bool
	impossible    string
	// trained are the parameters that are trained; layers the blocks that keep activations.
	trained, layers float64
	// loads32 says that weights are loaded in 32 bit since nobody tells a type, may32 that
	// they may be.
	loads32, may32 bool
	// assumedCheckpoint says that nobody told whether activations are checkpointed.
	assumedCheckpoint bool
	// likeDense says that the shape is that of a usual dense model: its MLP stands for all
	// that a token passes.
	likeDense bool
	assumed   []string
	notes     []string
}

func (p *plan) assume(format string, args ...any) {
	p.assumed = append(p.assumed, fmt.Sprintf(format, args...))
}

func (p *plan) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// fill makes a plan of a Spec: what is not told is assumed, and said.
func (t *table) fill(s Spec) (*plan, error) {
	switch {
	case s.Image:
		return nil, fmt.Errorf("%w: a model of images is trained, and only language models are reckoned", ErrUnknown)
	case s.Model.Params <= 0:
		return nil, fmt.Errorf("%w: the size of the model is not known; give --model FOLDER or --params 8B", ErrUnknown)
	}
	for what, n := range map[string]int64{"micro-batch": s.MicroBatch, "row length": s.SeqLen, "adapter rank": s.Rank, "gradient accumulation": s.Accumulation, "number of completions": s.Completions, "width in bits": s.Bits, "memory of a server": s.ServerBytes} {
		if n < 0 {
			return nil, fmt.Errorf("%w: a %s of %d cannot be", ErrUnknown, what, n)
		}
	}
	p := &plan{Spec: s, t: t, assumed: append([]string(nil), s.Assumed...)}
	p.shape()
	p.method()
	p.weightType()
	p.rows()
	p.optimizer()
	p.whatTrains()
	if p.Method != Full {
		if p.Rank == 0 {
			p.Rank = t.Assume.Rank
			p.assume("adapter rank %d", p.Rank)
		}
		p.adapter = p.adapters()
	}
	p.notes = append(p.notes, s.Model.Notes...)
	if s.Model.Path != "" && !s.Model.Exact {
		p.note("the size of the model is %s", s.Model.From)
	}
	if s.Nodes > 1 {
		p.note("it runs on %d machines: each is reckoned as if it held everything; FSDP and ZeRO share weights, gradients and optimizer", s.Nodes)
	}
	return p, nil
}

// shape takes the shape of the model, or that of a usual one of its size.
func (p *plan) shape() {
	p.arch, p.parts = p.Model.Arch, p.Model.Parts
	if p.arch.Known() {
		if p.arch.Intermediate == 0 {
			p.arch.Intermediate = 4 * p.arch.Hidden
		}
	} else {
		p.likeDense = true
		like := float64(p.Model.Params)
		active := float64(p.Model.ActiveParams)
		if n := p.Model; active == 0 && n.Experts > 1 && n.ActiveExperts > 0 {
			active = like / float64(n.Experts) * float64(n.ActiveExperts)
		}
		if active > 0 && active < like {
			// A mixture is as wide as a dense model between what it has and what it uses.
			like = math.Sqrt(like * active)
		}
		kind := p.arch.Type
		p.arch = p.t.archOf(like)
		p.arch.Type = kind
		p.assume("the shape of a usual dense model of %s: width %d, %d layers, vocabulary %d", count(like), p.arch.Hidden, p.arch.Layers, p.arch.Vocab)
	}
	if !p.parts.Known() {
		experts := p.Model.Experts
		if p.likeDense {
			experts = 0
		}
		p.parts = divide(p.Model.Params, p.arch, experts)
	}
	p.params = float64(p.Model.Params)
	if p.arch.Tied && p.parts.Head > 0 && p.parts.Head < p.Model.Params {
		p.params -= float64(p.parts.Head)
		p.parts.Head = 0
	}
	if p.objective() == "reward" && p.parts.Head > 0 && p.parts.Head < p.Model.Params {
		p.params -= float64(p.parts.Head) // one number for each row stands in its place
		p.parts.Head = 0
	}
}

// divide splits so many parameters as a model of this shape has them.
func divide(params int64, a modelsize.Arch, experts int64) modelsize.Parts {
	split := a.Split(experts)
	// Embeddings of a shape that does not go with the size must not eat the model up.
	if most := params / 2; split.Embeddings+split.Head > most {
		split.Embeddings, split.Head = most, 0
	}
	split.Linears = params - split.Embeddings - split.Head
	split.Experts = min(split.Experts, split.Linears)
	split.Other = 0
	return split
}

func (p *plan) method() {
	told := methodOf(string(p.Method))
	p.weightTold = told != ""
	if told == "" {
		told = Method(p.t.Assume.Method)
		if p.Method != "" {
			p.note("the method %q is not known here", string(p.Method))
		}
		p.methodAssumed = true // Estimate says what else it could be
	}
	p.Method = told
	switch format := p.Model.Quantised; {
	case format == "" || p.Method != Full:
	case slices.Contains(p.t.Unpacked, format):
		p.note("all weights of a quantised model (%s) cannot be trained as they are: they are unpacked to 16 bit", format)
	default:
		p.impossible = fmt.Sprintf("weights that are stored in %s cannot all be trained: take the model in 16 bit, or train an adapter (--method lora)", format)
	}
}

// whatTrains finds what of the model is trained.
func (p *plan) whatTrains() {
	layers := float64(max(p.arch.Layers, 1))
	p.trained, p.layers = p.params, layers
	if p.Method != Full {
		p.TrainedLayers, p.BlockWise = 0, false
		return
	}
	block := float64(p.parts.Linears) / layers
	switch n := math.Abs(float64(p.TrainedLayers)); {
	case p.BlockWise:
		p.trained = math.Min(p.params, math.Max(block, math.Max(float64(p.parts.Embeddings), float64(p.parts.Head))))
		p.note("one block after the other is trained: gradients and optimizer are those of the largest")
	case n > 0 && n < layers:
		p.trained = math.Min(p.params, block*n)
		if p.TrainedLayers > 0 {
			p.layers = n // the blocks below need no gradient
		}
		p.note("%g of %g blocks are trained; the others are held", n, layers)
	}
}

// In16Bit is how a command is told to load its weights in 16 bit.
const In16Bit = "dtype bfloat16, in older versions torch_dtype"

func (p *plan) weightType() {
	p.dtype = dtypeOf(p.WeightDType)
	if autocast(p.WeightDType) && p.MixedPrecision == NotTold {
		p.MixedPrecision = On
	}
	switch load := p.LoadDType; {
	case p.dtype != "" || p.Method == QLoRA || p.Model.Quantised != "":
	case strings.EqualFold(p.WeightDType, "auto"), p.WeightDType == "" && load == "auto":
		if p.Model.DType == "F32" {
			p.dtype = "fp32"
			p.assume("weights in fp32, as the files have them")
		}
	case p.WeightDType == "" && dtypeOf(load) != "":
		p.dtype = dtypeOf(load)
		p.loads32 = p.dtype == "fp32"
		p.assume("weights in %s, which the installed libraries load where no type is told", p.dtype)
	case p.WeightDType == "" && load == "perhaps":
		p.may32 = true
	}
	switch per := p.t.DTypes["fp32"] - p.t.DTypes["bf16"]; {
	case p.loads32:
		p.note("nothing tells the type of the weights: in 16 bit (%s) they take %s less", In16Bit, GB(bytesOf(p.params*per)))
	case p.may32:
		p.note("nothing tells the type of the weights, and some versions of the libraries load them in 32 bit then, which takes %s more: %s", GB(bytesOf(p.params*per)), In16Bit)
	}
	if p.dtype == "" {
		p.dtype = p.t.Assume.DType
		// 32 bit are as many files as people train in 16: what stands in them says little.
		if p.Method != Full || p.MixedPrecision == NotTold {
			p.assume("weights in %s", p.dtype)
		}
	}
	if p.dtype == "fp32" && p.Method == QLoRA {
		p.dtype = "bf16" // 32 bit are what it computes in at most: the weights are packed
	}
	if p.MixedPrecision == On && p.Method != Full {
		p.MixedPrecision = Off // frozen weights stay as they are loaded
	}
}

func (p *plan) rows() {
	a := p.t.Assume
	if p.MicroBatch == 0 {
		p.MicroBatch = a.MicroBatch
		p.assume("micro-batch %d", p.MicroBatch)
	}
	if p.SeqLen == 0 {
		p.SeqLen = a.SeqLen
		if m := p.arch.MaxPositions; m > 0 && m < p.SeqLen {
			p.SeqLen = m
		}
		p.assume("rows of %d tokens", p.SeqLen)
	}
	if m := p.arch.MaxPositions; m > 0 && p.SeqLen > m {
		p.note("rows of %d tokens are longer than the %d the model was made for", p.SeqLen, m)
	}
	if p.GradCheckpoint == NotTold {
		p.GradCheckpoint = SwitchOf(a.GradCheckpointing)
		p.assumedCheckpoint = true
	}
	if p.Attention == "" {
		p.Attention = a.Attention
		p.assume("attention %s", p.Attention)
	}
	switch p.objective() {
	case "dpo", "reward":
		p.note("preference training passes two rows for each of the batch")
	case "grpo":
		if p.Completions == 0 {
			p.Completions = p.t.Generation.Completions
			p.assume("%d completions at once", p.Completions)
		}
		if p.ServerBytes == 0 {
			p.note("an inference server beside the training (vLLM) is not in this: what it takes comes on top")
		}
	}
}

// objective is dpo for all that compare pairs of rows, reward for those that give each
// row one number, grpo for all that generate, "" for the rest.
func (p *plan) objective() string { return objectiveOf(p.Objective) }

func objectiveOf(word string) string {
	w := strings.ToLower(word)
	switch {
	case strings.Contains(w, "dpo"), strings.Contains(w, "orpo"), strings.Contains(w, "kto"), strings.Contains(w, "cpo"), strings.Contains(w, "simpo"), strings.Contains(w, "preference"):
		return "dpo"
	case w == "reward", w == "rm":
		return "reward"
	case strings.Contains(w, "grpo"), strings.Contains(w, "ppo"), strings.Contains(w, "rloo"), strings.Contains(w, "gspo"), strings.Contains(w, "dapo"), w == "rl":
		return "grpo"
	}
	return ""
}

// reference says whether a second, frozen copy of the weights is kept: an adapter that is
// switched off is the reference itself, and reference-free losses need none.
func (p *plan) reference() bool {
	if p.Method != Full {
		return false
	}
	w := strings.ToLower(p.Objective)
	return p.objective() == "dpo" && !strings.Contains(w, "orpo") && !strings.Contains(w, "cpo") && !strings.Contains(w, "simpo")
}

func (p *plan) optimizer() {
	name := p.Optimizer
	if name == "" {
		name = p.t.Assume.Optimizer
		p.assume("optimizer %s", name)
	}
	found, ok := p.t.optimizerOf(name)
	if !ok {
		found, _ = p.t.optimizerOf(p.t.Assume.Optimizer)
		p.assume("%.40s keeps as much state as %s", name, found.Name)
	}
	p.Optimizer, p.opt = name, found
	if strings.Contains(strings.ToLower(name), "paged") {
		p.note("a paged optimizer saves nothing here: there is one memory for CPU and GPU")
	}
}

// eager says whether the attention holds its scores, for all pairs of tokens.
func (p *plan) eager() bool {
	w := strings.ToLower(p.Attention)
	for _, word := range p.t.Activations.WithoutScores {
		if strings.Contains(w, word) {
			return false
		}
	}
	return true
}

// rowsAtOnce is how many rows one pass takes.
func (p *plan) rowsAtOnce() float64 {
	n := float64(p.MicroBatch)
	if o := p.objective(); o == "dpo" || o == "reward" {
		n *= 2
	}
	return n
}

// tokens is how many tokens one pass takes.
func (p *plan) tokens() float64 { return p.rowsAtOnce() * float64(p.SeqLen) }

// archOf is the shape of a usual dense model, interpolated so that it never shrinks with
// the size.
func (t *table) archOf(params float64) modelsize.Arch {
	sizes := t.Shapes.Sizes
	at := 0
	for at < len(sizes)-2 && params > sizes[at+1].Params {
		at++
	}
	a, b := sizes[at], sizes[at+1]
	part := math.Log(params/a.Params) / math.Log(b.Params/a.Params)
	// Beyond the ends of the table it goes on growing and shrinking as between the last two.
	part = math.Max(-2, math.Min(part, 3))
	mix := func(x, y float64) int64 { return max(1, int64(x*math.Pow(y/x, part))) }
	arch := modelsize.Arch{
		Hidden: mix(a.Hidden, b.Hidden), Layers: mix(a.Layers, b.Layers), Heads: mix(a.Heads, b.Heads),
		KVHeads: mix(a.KVHeads, b.KVHeads), HeadDim: t.Shapes.HeadDim, Intermediate: mix(a.Intermediate, b.Intermediate),
		Matrices: 3, Vocab: t.Shapes.Vocab, Tied: params < t.Shapes.TiedBelow,
	}
	arch.KVHeads = min(arch.KVHeads, arch.Heads)
	return arch
}
