package headroom

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
)

// FromJob makes the Spec of a command from its knobs. What the command does not tell is
// left empty for Estimate to assume. model may be empty.
func FromJob(j *job.Job, model modelsize.Size) Spec {
	s := Spec{Model: model}
	if j == nil {
		return s
	}
	text := func(k job.Knob) string { return strings.TrimSpace(j.Knobs[k].Value) }
	number := func(k job.Knob) int64 {
		n, err := strconv.ParseInt(text(k), 10, 64)
		if err != nil || n < 1 {
			return 0
		}
		return n
	}
	s.ModelName = text(job.Model)
	s.Method = methodOf(text(job.Method))
	s.WeightDType = text(job.DType)
	s.Optimizer = text(job.Optimizer)
	s.Rank = number(job.LoRARank)
	for t := range strings.SplitSeq(text(job.LoRATargets), ",") {
		if t = strings.Trim(strings.TrimSpace(t), `[]"' `); t != "" {
			s.Targets = append(s.Targets, t)
		}
	}
	s.MicroBatch, s.SeqLen, s.Accumulation = number(job.MicroBatch), number(job.SeqLen), number(job.Accumulation)
	if on, ok := truth(text(job.GradCkpt)); ok {
		s.GradCheckpoint = SwitchOf(on)
	}
	s.Packed, _ = truth(text(job.Packing))
	s.Attention = text(job.Attention)
	s.Nodes, s.Image = int64(j.Nodes), j.Image
	if four, ok := truth(text(job.LoadIn4Bit)); ok && four && (s.Method == LoRA || s.Method == "") {
		s.Method = QLoRA
	}
	s.Bits, s.MayQuantise = quantisedBy(j)
	if s.Bits > 4 && s.Method == LoRA {
		s.Method = QLoRA
	}
	s.Objective, s.MayOffload = j.Objective, offloads(j)
	s.fromMemory(j.Memory)
	if j.Unclear[job.DType] != "" {
		s.LoadDType = ""
	}
	// Unsloth's loss never holds all logits.
	if strings.HasPrefix(j.Profile, "unsloth") {
		s.FusedLoss = On
	}
	if s.Method == "" && text(job.LoRARank) != "" {
		s.Method = LoRA
		s.Assumed = append(s.Assumed, "method lora, since it has a rank")
	}
	return s
}

// fromMemory takes the settings that only the memory depends on.
func (s *Spec) fromMemory(m job.Knobs) {
	text := func(k job.Knob) string { return strings.TrimSpace(m[k].Value) }
	switch on, ok := truth(text("fused_loss")); {
	case ok:
		s.FusedLoss = SwitchOf(on)
	case text("fused_loss") == "perhaps":
		s.MayFuse = true
	}
	if on, ok := truth(text("master_weights")); ok {
		s.MixedPrecision = SwitchOf(on)
	}
	s.LoadDType = text("load_dtype")
	if kind := text("optimizer_kind"); kind != "" {
		s.Optimizer = kind
	}
	if n, err := strconv.ParseInt(text("trained_layers"), 10, 64); err == nil && n > -1<<20 && n < 1<<20 {
		s.TrainedLayers = n
		if n != 0 && s.Method == "" {
			s.Method = Full
		}
	}
	if on, _ := truth(text("block_wise")); on {
		// What is in work is kept in 32 bit beside the weights.
		s.BlockWise, s.MixedPrecision = true, On
	}
}

// quantisedBy says in how many bits the command loads the weights (0: not told, or 4), and
// whether it may quantise them in a way that no knob tells. A block rests on that: what is
// read from code, or taken for the default, is not certain enough.
func quantisedBy(j *job.Job) (bits int64, may bool) {
	told := func(k job.Knob) string {
		if set, ok := j.Memory[k]; ok {
			return set.Value
		}
		return j.Knobs[k].Value
	}
	if on, ok := truth(told("load_in_8bit")); ok && on {
		bits = 8
	}
	for _, k := range []job.Knob{"quantization_bit", "quant_bits", "quantize"} {
		if n, err := strconv.ParseInt(strings.TrimSpace(told(k)), 10, 64); err == nil && n > 1 && n <= 8 {
			bits = n
		}
	}
	if m, ok := j.Knobs[job.Method]; ok && (m.Source == job.FromScript || m.Source == job.FromDefault) {
		may = true
	}
	at := min(max(j.TrainerAt, 0), len(j.Argv))
	for name, value := range flags(j.Argv[at:]) {
		may = may || bits == 0 && quantises(name, value)
	}
	return bits, may
}

// flags are the flags of a command and its name=value, in small letters, each with its
// value or the word behind it. Other words are values or names: data sets and folders may
// be called anything.
func flags(argv []string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i, w := range argv {
			name, value, pair := strings.Cut(strings.ToLower(w), "=")
			if !strings.HasPrefix(name, "-") && !pair {
				continue
			}
			if !pair && i+1 < len(argv) && !strings.HasPrefix(argv[i+1], "-") {
				value = strings.ToLower(argv[i+1])
			}
			if !yield(strings.TrimLeft(name, "-+"), value) {
				return
			}
		}
	}
}

// offloads says whether the command may keep weights on a disk: DeepSpeed does so where
// its file says it, which is not read.
func offloads(j *job.Job) bool {
	if _, off := truth(j.Memory["deepspeed"].Value); !off && j.Memory["deepspeed"].Value != "" || slices.Contains(j.Launchers, "deepspeed") {
		return true
	}
	accelerate := slices.Contains(j.Launchers, "accelerate")
	for name, value := range flags(j.Argv) {
		name = strings.ReplaceAll(name, "_", "-")
		switch value {
		case "false", "none", "no", "0", "null":
			continue
		}
		disk := strings.Contains(name, "offload") && (strings.Contains(value, "nvme") || strings.Contains(value, "disk"))
		if disk || strings.Contains(name, "deepspeed") || strings.Contains(name, "nvme") || accelerate && name == "config-file" {
			return true
		}
	}
	return false
}

// quantises says whether a flag may mean that weights are quantised: by its name, or, of
// one that tells a type, by its value.
func quantises(name, value string) bool {
	if strings.Contains(name, "adam") || strings.Contains(name, "optim") {
		return false // 8-bit optimizers
	}
	says := func(text string) bool {
		for _, part := range []string{"8bit", "quant", "int8", "fp8", "nf4", "hqq"} {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	switch value {
	case "false", "none", "no", "0", "null":
		return false
	}
	return says(name) || (strings.Contains(name, "type") || strings.Contains(name, "precision")) && says(value)
}

// truth reads a yes or no; ok is false for everything else.
func truth(word string) (on, ok bool) {
	switch strings.ToLower(word) {
	case "true", "1", "yes", "on", "unsloth", "full":
		return true, true
	case "false", "0", "no", "off", "none":
		return false, true
	}
	return false, false
}

// OfParams makes a model of so many parameters of which nothing else is known: Estimate
// assumes the shape of a usual dense model.
func OfParams(params int64) (modelsize.Size, error) {
	if params < minParams || params > maxParams {
		return modelsize.Size{}, fmt.Errorf("%w: a model of %s parameters is none; write 8B, 0.6B or 350M", ErrUnknown, count(float64(params)))
	}
	return modelsize.Size{Params: params, From: "given"}, nil
}

const (
	minParams = 1e6
	maxParams = 1e14
)

// ParseParams reads a number of parameters as people write it: 70B, 0.6b, 350M, 1.2T,
// 8000000000.
func ParseParams(text string) (int64, error) {
	word := strings.TrimSpace(text)
	unit := 1.0
	if n := len(word); n > 0 {
		switch word[n-1] {
		case 'k', 'K':
			unit = 1e3
		case 'm', 'M':
			unit = 1e6
		case 'b', 'B', 'g', 'G':
			unit = 1e9
		case 't', 'T':
			unit = 1e12
		}
		if unit > 1 {
			word = strings.TrimSpace(word[:n-1])
		}
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(word, "_", ""), 64)
	if err != nil || math.IsNaN(v) || v*unit < minParams || v*unit > maxParams {
		return 0, fmt.Errorf("%q is no number of parameters; write 8B, 0.6B or 350M", text)
	}
	return int64(math.Round(v * unit)), nil
}
