// Package checkpoint owns what trainers save: the layouts of their checkpoints,
// the test whether one is complete, and the copy that makes it safe to resume
// from one with another micro-batch.
//
// No trainer checks a checkpoint before it takes it up, most take the one with
// the highest number, and saving is a peak of memory: the newest one is just the
// one that a death for want of memory leaves half written. So a checkpoint is
// complete here only if its own files prove it: the state parses and names the
// same step, every shard that an index lists is there, and every tensor file is as
// long as its header or its archive directory says. Tensor data is never read.
//
// Nothing here changes a file of the user's. What is read is bounded, so that a
// huge folder, a torn file, a pipe with the name of a weight file or a link that
// leads in circles costs a moment and no more; only a file system that hangs can
// hang it.
package checkpoint

import (
	"slices"
	"time"
)

// The layouts that List knows.
const (
	HF         = "hf"         // checkpoint-N folders of the Hugging Face Trainer
	Torchtune  = "torchtune"  // epoch_N and step_N folders beside recipe_state
	AutoModel  = "automodel"  // epoch_E_step_S folders of NeMo AutoModel
	Megatron   = "megatron"   // iter_NNNNNNN folders and a file that names the last
	Verl       = "verl"       // global_step_N folders and a file that names the last
	Lightning  = "lightning"  // *.ckpt files and folders, wherever a logger puts them
	NanoGPT    = "nanogpt"    // one ckpt.pt, written over in place
	NanoChat   = "nanochat"   // model_N.pt, meta_N.json and optim_N_rankR.pt
	Kohya      = "kohya"      // NAME-...-state folders, only with --save_state
	Diffusers  = "diffusers"  // checkpoint-N folders of accelerate
	AIToolkit  = "ai-toolkit" // NAME_NNNNNNNNN.safetensors and optimizer.pt
	LitGPT     = "litgpt"     // step-NNNNNNNN/lit_model.pth
	Torchtitan = "torchtitan" // step-N folders of torch.distributed.checkpoint
	NeMo       = "nemo"       // NAME--...step=N... folders of NeMo 2
	OpenRLHF   = "openrlhf"   // global_stepN folders of DeepSpeed and a file latest
	Composer   = "composer"   // ep1-ba100-rank0.pt files
	None       = "none"       // nothing that could be resumed
)

// aliases are other names of a layout.
var aliases = map[string]string{
	"": None, "axolotl": HF, "ms-swift": HF, "swift": HF, "llama-factory": HF, "trl": HF, "unsloth": HF,
	"nemo-automodel": AutoModel, "megatron-lm": Megatron, "megatron-bridge": Megatron, "nemo2": NeMo,
	"accelerate": Diffusers,
}

// Layouts returns the names of the layouts, sorted.
func Layouts() []string {
	names := make([]string, 0, len(layouts))
	for n := range layouts {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Known says whether List knows a layout, or another name of one.
func Known(layout string) bool { _, ok := layouts[canonical(layout)]; return ok }

func canonical(layout string) string {
	if a, ok := aliases[layout]; ok {
		return a
	}
	return layout
}

// Unknown stands in for a number of steps that a checkpoint does not tell.
const Unknown = -1

// Checkpoint is one checkpoint found.
type Checkpoint struct {
	// Path is the folder or file that a trainer is asked to resume from, absolute
	// where the folder given to List was.
	Path string `json:"path"`
	// Step is the optimizer step it was saved at, Unknown where nothing tells.
	Step int64 `json:"step"`
	// Complete says that everything in it that a resume reads is there, as far as
	// the files themselves can tell.
	Complete bool `json:"complete"`
	// Why says what is missing or torn where Complete is false, and what a resume
	// would lose where it is true and something would be lost; else empty.
	Why string `json:"why,omitempty"`
	// Note is worth saying but decides nothing: a size that differs much from the
	// complete one before.
	Note string `json:"note,omitempty"`
	// Writing says that it is not complete and was written to within the last
	// seconds: it may only not be complete yet.
	Writing bool `json:"writing,omitempty"`
	// HasOptimizer says that the optimizer's state is in it, so that a resume goes
	// on where it was; without it the weights are good and the momenta start anew.
	HasOptimizer bool `json:"has_optimizer"`
	// Bytes is the size of its tensor files, 0 where it is not known.
	Bytes int64 `json:"bytes,omitempty"`
	// T is when its newest file was written.
	T time.Time `json:"t"`

	// order stands in for Step between checkpoints that do not tell theirs.
	order int64
}

// Resumable says that a resume from it would go on where it was.
func (c Checkpoint) Resumable() bool { return c.Complete && c.HasOptimizer }

// NewestComplete returns the complete checkpoint with the most steps.
func NewestComplete(all []Checkpoint) (Checkpoint, bool) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Complete {
			return all[i], true
		}
	}
	return Checkpoint{}, false
}

// HalfWritten returns the checkpoints behind the newest complete one, which are
// not complete: the ones to skip and to name. List's order is taken for granted.
func HalfWritten(all []Checkpoint) []Checkpoint {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Complete {
			return slices.Clone(all[i+1:])
		}
	}
	return slices.Clone(all)
}
