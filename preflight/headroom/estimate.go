package headroom

import (
	"fmt"
	"math"
)

// The names of the terms, in the order in which they are shown.
const (
	TermWeights     = "weights"
	TermReference   = "reference model"
	TermAdapter     = "adapter"
	TermGradients   = "gradients"
	TermOptimizer   = "optimizer"
	TermActivations = "activations"
	TermLogits      = "logits"
	TermDequant     = "dequantisation"
	TermGeneration  = "generation"
	TermServer      = "server"
	TermAllocator   = "allocator"
	TermRuntime     = "runtime"
	TermLoad        = "load transient"
)

// Term is one part of the memory.
type Term struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// How says in one line how Bytes came about.
	How string `json:"how"`
	// Exact says that Bytes was counted and not reckoned.
	Exact bool `json:"exact"`
	// Reclaimable says that the kernel takes this back by itself when memory is wanted
	// (mapped pages of files): it is shown, and counts in Load but not in Peak.
	Reclaimable bool `json:"reclaimable,omitempty"`
	// Loading says that it is there only while the model is loaded.
	Loading bool `json:"loading,omitempty"`
}

// Estimate is the memory that a training is reckoned to take, all in bytes.
type Estimate struct {
	// Spec is the training with everything that was assumed filled in.
	Spec  Spec   `json:"-"`
	Terms []Term `json:"terms"`
	// Steady is the peak of a training step; Load the peak while the model is loaded, the
	// pages of its files included; Peak the larger of Steady and of Load less what the
	// kernel takes back by itself.
	Steady int64 `json:"steady_bytes"`
	Load   int64 `json:"load_bytes"`
	Peak   int64 `json:"peak_bytes"`
	// Low and High are the range that Peak is in most likely.
	Low  int64 `json:"low_bytes"`
	High int64 `json:"high_bytes"`
	// WeightsExact says that the weights were counted in the headers of their files, all
	// of which are there, and that their form was told; Weights is what they take in it.
	WeightsExact bool  `json:"weights_exact"`
	Weights      int64 `json:"weights_bytes"`
	// WeightsLeast is the least that they can take, without scales and whatever was assumed
	// of their type: what cannot fit is held against this.
	WeightsLeast int64 `json:"weights_least_bytes"`
	// Assumed are sentences about what was not told, Notes about what to know.
	Assumed []string `json:"assumed"`
	Notes   []string `json:"notes,omitempty"`
	// Checkpoint is the size of one saved checkpoint with the state of the optimizer.
	Checkpoint    int64  `json:"checkpoint_bytes"`
	CheckpointHow string `json:"checkpoint_how"`

	// MethodAssumed says that nobody told how it is trained: Peak is that of an adapter, High
	// that of all weights, and Checkpoint stands for one of the two. AllWeights is the peak of
	// those.
	MethodAssumed bool  `json:"-"`
	AllWeights    int64 `json:"-"`
	// Loads32 says that the weights are loaded in 32 bit for want of a word about their type.
	Loads32 bool `json:"-"`
	// Impossible says why it cannot be trained as it is told; "" where it can.
	Impossible string `json:"-"`

	// quantisedWhileLoading says that 16-bit files are quantised on the way, which has run
	// out of memory where the whole of them did not fit.
	quantisedWhileLoading bool
	// wholeBytes is what the weights take in 16 bit; atLoad what is there when they have
	// been loaded, without the pages of their files.
	wholeBytes, atLoad int64
}

// Term returns the bytes of the term of that name; 0 where it has none.
func (e Estimate) Term(name string) int64 {
	for _, t := range e.Terms {
		if t.Name == name {
			return t.Bytes
		}
	}
	return 0
}

// Estimate reckons the memory. The error wraps ErrUnknown where too little is known or a
// number cannot be.
func (s Spec) Estimate() (Estimate, error) {
	t, err := loadTable()
	if err != nil {
		return Estimate{}, err
	}
	p, err := t.fill(s)
	if err != nil {
		return Estimate{}, err
	}
	e := p.estimate()
	if p.methodAssumed {
		all := s
		all.Method, all.Rank, all.Targets = Full, 0, nil
		if other, err := all.Estimate(); err == nil {
			e.MethodAssumed, e.AllWeights = true, other.Peak
			e.High = max(e.High, other.High)
			e.Assumed = append(e.Assumed, fmt.Sprintf("method %s; all weights would take about %s", p.Method, GB(other.Peak)))
		}
	}
	return e, nil
}

// parts of a step, in bytes: what stands still, and what goes with the rows.
type weighed struct {
	value, low, high float64
}

func fixed(v float64) weighed { return weighed{v, v, v} }

func (p *plan) estimate() Estimate {
	e := Estimate{}
	var low, high float64
	add := func(name string, w weighed, exact bool, how string, args ...any) {
		if w.value <= 0 && w.high <= 0 {
			return
		}
		low, high = low+w.low, high+w.high
		e.Terms = append(e.Terms, Term{Name: name, Bytes: bytesOf(w.value), Exact: exact, How: fmt.Sprintf(how, args...)})
	}

	weights := p.weights()
	add(TermWeights, weights.weighed, weights.exact, "%s", weights.how)
	if p.reference() {
		add(TermReference, weighed{weights.low, 0, weights.value}, false, "the frozen model that the losses are compared with")
	}
	if p.Method != Full {
		add(TermAdapter, p.adapter.bytes(p.t.Adapter.WeightBytes), false, "%s in 32 bit", p.adapter.how)
	}
	grads := p.gradients()
	add(TermGradients, grads.weighed, false, "%s", grads.how)
	state := p.state()
	add(TermOptimizer, state.weighed, false, "%s", state.how)

	act, logits := p.activations(), p.logits()
	// A block is worked out anew after the logits have gone: the larger of the two counts.
	block := math.Max(0, act.block-logits.value)
	dynamic := act.kept + block + logits.value
	rows := p.t.Rows.Low
	if p.Packed {
		rows = 1
	}
	add(TermActivations, weighed{act.kept + block, (act.kept + math.Max(0, act.block-logits.low)) * rows, act.kept + block}, false, "%s", act.how)
	add(TermLogits, weighed{logits.value, logits.low * rows, logits.high}, false, "%s", logits.how)
	if v, how := p.dequantised(); v > 0 {
		add(TermDequant, fixed(v), false, "%s", how)
	}
	if v, how := p.generated(); v > 0 {
		add(TermGeneration, weighed{v, v * rows, v}, false, "%s", how)
	}
	if p.ServerBytes > 0 {
		add(TermServer, fixed(float64(p.ServerBytes)), false, "an inference server beside it")
	}
	share := p.t.Allocator
	add(TermAllocator, weighed{dynamic * share.Share, 0, (dynamic + logits.high - logits.value) * share.High}, false,
		"%.0f %% of activations and logits that torch keeps in pieces", share.Share*100)
	r := p.t.Runtime
	add(TermRuntime, weighed{r.GB * gigabyte, r.LowGB * gigabyte, r.HighGB * gigabyte}, false, "CUDA, Python, libraries, data workers")

	for _, t := range e.Terms {
		e.Steady = plus(e.Steady, t.Bytes)
	}
	load := p.load(weights)
	e.Terms = append(e.Terms, load)
	e.atLoad = plus(bytesOf(weights.value), bytesOf(r.GB*gigabyte))
	e.Load = plus(e.atLoad, load.Bytes)
	e.Peak = max(e.Steady, e.atLoad)
	e.quantisedWhileLoading = p.Method == QLoRA && p.Model.Quantised == ""
	e.wholeBytes = bytesOf(p.params * p.t.DTypes["bf16"])
	if e.quantisedWhileLoading {
		p.note("the weights are quantised while they are loaded from 16-bit files: %s pass through memory on the way, and all of them at once with some versions. A copy that is quantised already (-bnb-4bit) does not need that", GB(e.wholeBytes))
	}
	e.Low, e.High = min(bytesOf(low), e.Peak), max(bytesOf(high), e.Peak)

	e.Weights, e.WeightsLeast = bytesOf(weights.value), bytesOf(weights.least)
	e.WeightsExact = weights.exact
	e.Checkpoint, e.CheckpointHow = p.checkpoint(state.value)
	e.Impossible, e.Loads32 = p.impossible, p.loads32
	if p.assumedCheckpoint {
		other := *p
		other.GradCheckpoint = SwitchOf(p.GradCheckpoint != On)
		there := other.activations()
		if p.GradCheckpoint == On {
			p.assume("activation checkpointing on (without it about %s more)", GB(bytesOf((there.kept-act.kept-block)*(1+share.Share))))
		} else {
			p.assume("activation checkpointing off")
		}
	}
	e.Spec, e.Assumed, e.Notes = p.Spec, append([]string{}, p.assumed...), p.notes
	return e
}

// load is what loading takes beside the weights themselves: their files are mapped, and
// every page that is read stays until the kernel takes it back.
func (p *plan) load(w weights) Term {
	files := float64(p.Model.Bytes)
	how := "pages of the files, once more beside the copy; the kernel takes them back"
	if files <= 0 {
		files = p.params * p.t.DTypes["bf16"]
		if p.Model.Quantised != "" {
			files = w.stored
		}
		how += " (the size of the files is reckoned)"
	}
	return Term{Name: TermLoad, Bytes: bytesOf(files), How: how, Reclaimable: true, Loading: true}
}

// checkpoint is the size of one saved checkpoint.
func (p *plan) checkpoint(state float64) (size int64, how string) {
	if p.Method == Full {
		per := p.t.DTypes[p.dtype]
		if p.MixedPrecision == On {
			per = p.t.Mixed.WeightBytes
		}
		if p.trained < p.params {
			per = p.t.DTypes[p.dtype]
		}
		return plus(bytesOf(p.params*per), bytesOf(state)), fmt.Sprintf("weights (%s) and optimizer (%s)", GB(bytesOf(p.params*per)), GB(bytesOf(state)))
	}
	own := p.adapter.params * p.t.Adapter.WeightBytes
	return plus(bytesOf(own), bytesOf(state)), fmt.Sprintf("adapter (%s) and optimizer (%s)", GB(bytesOf(own)), GB(bytesOf(state)))
}
