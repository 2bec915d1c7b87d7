package trainer

import (
	"io/fs"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// Change is one knob that the next attempt has different from the command as
// typed.
type Change struct {
	Knob job.Knob `json:"knob"`
	// From is the value in the command as typed, or its default; To the value
	// that Rewrite puts in its place.
	From string `json:"from"`
	To   string `json:"to"`
	// Reason is one short clause for the log: why this knob, why this value.
	Reason string `json:"reason,omitempty"`
}

// File is a changed copy of a config file that an attempt needs. The caller
// creates it (O_EXCL, Mode), and removes it when the run ends.
type File struct {
	// Path is absolute.
	Path    string
	Content []byte
	Mode    fs.FileMode
	// Original is the absolute path of the user's file, which is never touched.
	Original string
}

// Rewrite is the command of one attempt: the whole argv, what is added to its
// environment, and the files it needs. Diff says the same in words, one exact
// change a line, and Changes the same in parts, one for each line of Diff.
type Rewrite struct {
	Argv []string
	// Env holds NAME=VALUE words to add: SPARKRUN_KNOB_* with the values in
	// force.
	Env     []string
	Files   []File
	Diff    []string
	Changes []Changed
}

// Layers of a Changed.
const (
	LayerArgv   = "argv"
	LayerConfig = "config"
	LayerEnv    = "env"
)

// Changed is one place that a rewrite has changed, in the words of the command
// and its files. A flag that stands by itself, without a value, reads as "true",
// and one with a "no" before its name as "false". The word of argv that names a
// changed config file's copy is not among the changes: File says where the copy
// is.
type Changed struct {
	// Layer is LayerArgv, LayerConfig or LayerEnv.
	Layer string `json:"layer"`
	// Where is the flag as typed (--max_length), the name of a key=value word
	// (cutoff_len), FILE:LINE KEY of a config file (FILE KEY for a key that is
	// added to it), the variable's name, or {placeholder}.
	Where string `json:"where"`
	// Before is what stood there, empty for something added: a flag that only
	// overrides a default or a file has no Before. After is empty for something
	// removed.
	Before string `json:"before"`
	After  string `json:"after"`
}

// Step is what one line of output says about the training.
type Step struct {
	// N is the last optimizer step known, Total how many there will be; 0 is
	// unknown. Where a trainer prints losses without a step number and no bar,
	// N is reckoned from logging_steps or, failing that, counts the log lines.
	N, Total int64
	// Loss and LR are known only on lines that carry them. A loss that is NaN
	// or infinite is left unknown here and sets NonFinite.
	Loss, LR  sample.Num
	NonFinite bool
	// Advance is set when N is larger than on every line before.
	Advance bool
	// StepTimeS is seconds per optimizer step: wall clock between two advances,
	// else the rate that the bar shows.
	StepTimeS sample.Num
	// Tokens counts tokens seen since the start of training, as the trainer
	// reports them.
	Tokens sample.Num
	// Checkpoint is the path of a checkpoint that the line says is being saved.
	// It is not complete until Checkpoints says so.
	Checkpoint string
	// Finished is set when the trainer says that training is over.
	Finished bool
	// Bar is set when the line is a progress bar.
	Bar bool
}

// Checkpoint is one checkpoint folder found.
type Checkpoint struct {
	Path     string
	Step     int64
	Complete bool
	// Why says what is missing where Complete is false, or what a resume would
	// lose where it is true; else empty.
	Why string
	// T is when the last file of it was written.
	T time.Time
}
