// Package headroom reckons how much memory a training will take and whether that fits:
// weights, gradients, optimizer, activations, logits, what loading takes for a while,
// and what is always there. It owns the accounting, the anchors it is compared with and
// the bar chart of it. It touches no file and no machine: values go in, values come out,
// and every number that is not the user's comes from configs/memory.yaml. Sizes are in
// bytes inside and in decimal gigabytes when shown.
package headroom

import (
	"errors"

	"sparkrun/internal/modelsize"
)

// Method is how a model is trained.
type Method string

// The methods.
const (
	Full  Method = "full"  // all weights
	LoRA  Method = "lora"  // an adapter on weights in 16 bit
	QLoRA Method = "qlora" // an adapter on quantised weights
)

// Switch is a setting that is on, off or not told.
type Switch int8

// The states of a Switch.
const (
	NotTold Switch = iota
	On
	Off
)

// SwitchOf makes a told Switch.
func SwitchOf(on bool) Switch {
	if on {
		return On
	}
	return Off
}

// Spec is the training to reckon. Fields that are empty or 0 are not told: Estimate
// assumes something for each and says so in Estimate.Assumed.
type Spec struct {
	// Model is what is known of the base model (modelsize.Place.Read, or OfParams).
	Model modelsize.Size
	// ModelName is its name as the user wrote it, for the text only.
	ModelName string
	Method    Method
	// WeightDType is the type the weights are trained in: bf16, fp16 or fp32, in any of
	// the spellings of trainers.
	WeightDType string
	// LoadDType is the type that the weights are loaded in where WeightDType is not told:
	// float32, auto (as in the files), perhaps (one of the two); "" is not known.
	LoadDType string
	// Bits is the width of weights that are quantised while they are loaded (QLoRA); 0 is not
	// told and taken for 4.
	Bits int64
	// MayQuantise says that the command may quantise weights in a way that is not
	// understood: then nothing is certain of their form.
	MayQuantise bool
	// MayOffload says that the command may keep weights on a disk: then nothing is certain
	// not to fit.
	MayOffload bool
	// Optimizer is its name in the words of any trainer: adamw_torch_fused,
	// paged_adamw_8bit, adafactor, muon...
	Optimizer string
	// Rank is the rank of the adapter, Targets the linear layers it stands on ("all-linear",
	// or names such as q_proj).
	Rank    int64
	Targets []string
	// MicroBatch is the rows of one forward pass on one device, SeqLen the tokens of one.
	MicroBatch, SeqLen int64
	// Packed says that rows are filled up to SeqLen.
	Packed bool
	// GradCheckpoint is activation checkpointing.
	GradCheckpoint Switch
	// Attention is the implementation: eager, sdpa, flash_attention_2...
	Attention string
	// Objective is sft, dpo, grpo, reward, pretrain...
	Objective string
	// MixedPrecision says that weights are kept in 32 bit and computed with in 16 (autocast,
	// Megatron's master weights).
	MixedPrecision Switch
	// FusedLoss says that the logits are never all there at once (Liger, Unsloth, cut
	// cross entropy).
	FusedLoss Switch
	// MayFuse says that FusedLoss depends on a version that is not known.
	MayFuse bool
	// TrainedLayers is how many of the last blocks are trained, the others being held; below
	// 0 of the first; 0 is all. BlockWise says that one block after the other is trained.
	TrainedLayers int64
	BlockWise     bool
	// Accumulation is how many micro-batches make one optimizer step, Completions how many
	// GRPO generates at once.
	Accumulation, Completions int64
	// Nodes is on how many machines it runs; Image that a model of images is trained.
	Nodes int64
	Image bool
	// ServerBytes is what an inference server takes that shares the memory (GRPO's vLLM);
	// 0 is not told.
	ServerBytes int64
	// Assumed are sentences about what the caller has assumed; Estimate adds its own.
	Assumed []string
}

// ErrUnknown is wrapped by the errors of trainings of which too little is known to say
// anything; the text says what to give.
var ErrUnknown = errors.New("the memory cannot be reckoned")
