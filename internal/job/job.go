// Package job holds what sparkrun understands of the command it was given: a
// value, filled by ladder/trainer and passed on to preflight, the ladder and the
// run's records. It imports nothing of ours.
package job

import "sort"

// Knob names a training setting that a rung can turn.
type Knob string

// The knobs sparkrun knows by name. A user may tell it others with --knob; they
// reach the command but no rung turns them.
const (
	SeqLen       Knob = "seq_len"         // tokens in one row: max_length, cutoff_len, block_size
	Packing      Knob = "packing"         // true when rows are packed to seq_len
	MicroBatch   Knob = "micro_batch"     // rows in one forward pass on one device
	Accumulation Knob = "accumulation"    // micro-batches in one optimizer step
	EvalBatch    Knob = "eval_batch"      // rows in one evaluation pass
	LoadIn4Bit   Knob = "load_in_4bit"    // true for QLoRA
	Method       Knob = "method"          // full, lora or qlora
	LoRALR       Knob = "lora_lr"         // learning rate to take when method becomes lora
	OutputDir    Knob = "output_dir"      // where the trainer saves
	NumWorkers   Knob = "num_workers"     // data loader processes
	LearningRate Knob = "learning_rate"   // never turned unasked
	GlobalBatch  Knob = "global_batch"    // rows in one optimizer step, for trainers that fix it
	DType        Knob = "dtype"           // of the weights: bfloat16, float32
	ResumeFrom   Knob = "resume_from"     // checkpoint asked for
	TruncPolicy  Knob = "truncation"      // what the trainer does with rows over seq_len
	MaxSteps     Knob = "max_steps"       // optimizer steps in the whole run
	SaveSteps    Knob = "save_steps"      // optimizer steps between checkpoints
	GradCkpt     Knob = "grad_checkpoint" // activation checkpointing on
	Optimizer    Knob = "optimizer"       // its name in the trainer's words
	Epochs       Knob = "epochs"          // passes over the data
	Model        Knob = "model"           // name or folder of the base model
	Attention    Knob = "attention"       // its implementation, in the trainer's words: sdpa, flash_attention_2
	LoRARank     Knob = "lora_rank"       // rank of the adapter
	LoRATargets  Knob = "lora_targets"    // modules that get an adapter, joined by commas; or a word for them: all, all-linear
)

// Source says where the value of a knob comes from.
type Source string

// The sources, weakest last.
const (
	FromUser    Source = "user"    // --knob on sparkrun's own command line
	FromArgv    Source = "argv"    // a flag of the command
	FromConfig  Source = "config"  // the command's config file
	FromScript  Source = "script"  // written in the script's code: only the shim turns it
	FromDefault Source = "default" // the trainer's own default
)

// Setting is the value of one knob and where it stands.
type Setting struct {
	Value  string `json:"value"`
	Source Source `json:"source"`
	// Where is the flag, or FILE:LINE of the config or script, or the profile that
	// states the default.
	Where string `json:"where,omitempty"`
	// Choices are the values that the command allows, none if any is.
	Choices []string `json:"choices,omitempty"`
	// Min is the smallest value that the trainer takes, 0 if any is; MinWhy says why.
	Min    int64  `json:"min,omitempty"`
	MinWhy string `json:"min_why,omitempty"`
}

// Knobs maps a knob to its setting. A knob that is not known is not in it.
type Knobs map[Knob]Setting

// Clone returns a copy.
func (k Knobs) Clone() Knobs {
	c := make(Knobs, len(k))
	for n, s := range k {
		c[n] = s
	}
	return c
}

// Names returns the knobs in order of their name.
func (k Knobs) Names() []Knob {
	names := make([]Knob, 0, len(k))
	for n := range k {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool { return names[i] < names[j] })
	return names
}

// Container is set where the command is itself a container client.
type Container struct {
	// Engine is docker or podman; Verb run, exec or compose.
	Engine string `json:"engine"`
	Verb   string `json:"verb"`
	// Image is the image named, or the container for exec; empty if it could
	// not be told.
	Image string `json:"image,omitempty"`
}

// Job is the command as sparkrun understands it.
type Job struct {
	// Argv is the command exactly as typed; Dir its working folder.
	Argv []string `json:"argv"`
	Dir  string   `json:"dir"`

	// TrainerAt is the index in Argv of the first word of the trainer itself,
	// behind prefixes such as env and python -u; the words from there on are
	// the trainer's own and are the ones a rung changes.
	TrainerAt int `json:"trainer_at"`
	// Interpreter is the absolute path of the Python that will run the trainer,
	// as found on the command's own PATH; empty when there is none or when it
	// lives inside an image.
	Interpreter string `json:"interpreter,omitempty"`
	// Script is the path of the script, or of the module after -m with Module
	// set; empty for other programs.
	Script string `json:"script,omitempty"`
	Module bool   `json:"module,omitempty"`
	// ConfigFile is the trainer's config file named in Argv, as typed.
	ConfigFile string `json:"config_file,omitempty"`

	Container *Container `json:"container,omitempty"`
	// Nodes is how many machines the command says it spans; 0 is not told.
	Nodes int `json:"nodes,omitempty"`

	// Launchers are what stands in front of the trainer, outermost first: docker,
	// bash, env, accelerate, uv.
	Launchers []string `json:"launchers,omitempty"`
	// TrainerDir is the folder the trainer starts in, as this machine names it;
	// empty where that lies inside a container only.
	TrainerDir string `json:"trainer_dir,omitempty"`
	// Procs is how many processes train on this machine, one for each device; 0 is
	// not told.
	Procs int `json:"procs,omitempty"`
	// Unsure says why the trainer's place in the command is not certain: nothing of
	// it is changed then.
	Unsure string `json:"unsure,omitempty"`
	// Opaque says why the trainer's own words are not seen or left alone although
	// the shim can reach the processes: a shell script, compose run.
	Opaque string `json:"opaque,omitempty"`
	// ShimRefused says why the shim cannot reach the trainer; empty where it can.
	ShimRefused string `json:"shim_refused,omitempty"`
	// Image is set for trainers of images, which have no length.
	Image bool `json:"image,omitempty"`
	// Family is "per-device" (effective batch = micro-batch x accumulation x
	// devices) or "global" (the effective batch is a setting of its own); empty
	// where no profile fits.
	Family string `json:"family,omitempty"`
	// Floor is the shortest length the profile allows a rung to go to; 0 says
	// nothing.
	Floor int64 `json:"floor,omitempty"`
	// SelfShrinks says how the trainer makes its batch smaller by itself; empty where
	// it does not. Two ladders at once are never run.
	SelfShrinks string `json:"self_shrinks,omitempty"`
	// Resume is what the trainer makes of a checkpoint.
	Resume Resume `json:"resume"`
	// LongRows ends the sentence "rows longer than that ..." for a shorter SeqLen; empty
	// where that is not known.
	LongRows string `json:"long_rows,omitempty"`
	// Unclear are settings that the command gives in a way which is not understood, each
	// with the reason: they are set, but their value is not known.
	Unclear map[Knob]string `json:"unclear,omitempty"`
	// Env is what the command itself sets in the trainer's environment: env NAME=VALUE, an
	// export in the text of a shell, docker run -e. EnvUnset are variables that it takes
	// away, or sets to what is not known beforehand. EnvCleared tells that nothing of the
	// environment around reaches the trainer: a container, sudo, env -i. See Getenv. None
	// of it is recorded: a value may be a secret.
	Env        map[string]string `json:"-"`
	EnvUnset   []string          `json:"-"`
	EnvCleared bool              `json:"-"`
	// Memory are settings that no rung turns and only the memory of the training depends
	// on, by the names of the profiles: fused_loss, master_weights, trained_layers.
	Memory Knobs `json:"-"`
	// Objective is what is trained for, in the trainer's words: sft, dpo, grpo, reward; ""
	// where nothing tells. Names of files and data sets never do.
	Objective string `json:"-"`
	// Read are the files that were read to understand the command, each with a hash of
	// what was in it.
	Read map[string]string `json:"-"`

	// Profile names the trainer profile that recognised the command; empty when
	// none did.
	Profile string `json:"profile,omitempty"`
	Knobs   Knobs  `json:"knobs"`
	// Inner is the command that a shell script starts, where the script is one that can be
	// read like the text of sh -c; nil for other commands. Nothing of it is ever changed:
	// it is what the checks before a run look at. From is, of such an Inner, the script as
	// the command names it.
	Inner *Job   `json:"-"`
	From  string `json:"-"`
	// NoInner is why the command that a shell script starts is not known: part of a
	// sentence, "" where it is or nothing more is to be said.
	NoInner string `json:"-"`

	// Notes are sentences about what was not understood, to be said at the
	// start and not at the first death. Slip is the one of them about a word of the command
	// that names nothing: a script that is not there, a subcommand nearly known; empty
	// where none does.
	Notes []string `json:"notes,omitempty"`
	Slip  string   `json:"-"`
}

// Resume says how a trainer is asked to go on from a checkpoint.
type Resume struct {
	// How is "path" (resume_from is given the checkpoint), "auto" (it takes up what
	// lies in its output folder by itself) or "never".
	How string `json:"how,omitempty"`
	// Why says why it is never.
	Why string `json:"why,omitempty"`
	// Layout is the checkpoint layout of the output folder (package checkpoint).
	Layout string `json:"layout,omitempty"`
}
