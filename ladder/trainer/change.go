package trainer

import (
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/ladder/trainer/shim"
)

// Change is one knob that the next attempt has different from the command as
// typed.
type Change struct {
	Knob job.Knob `json:"knob"`
	// From is the value in the command as typed, or its default; To the value
	// that Rewrite puts in its place: "null" takes the setting away, Half leaves it
	// to the shim to halve a value that is not known.
	From string `json:"from"`
	To   string `json:"to"`
	// Reason is one short clause for the log: why this knob, why this value.
	Reason string `json:"reason,omitempty"`
}

// File is a file that an attempt needs: a changed copy of a config file, or one of
// the shim's. The caller creates it (O_EXCL, Mode) with the folders above it, and
// removes a copy when the run ends.
type File struct {
	// Path is absolute.
	Path    string
	Content []byte
	Mode    fs.FileMode
	// Original is the absolute path of the user's file, which is never touched; empty
	// for the shim's.
	Original string
}

// Rewrite is the command of one attempt: the whole argv, what is added to its
// environment, and the files it needs. Diff says the same in words, one exact
// change a line, and Changes the same in parts, one for each line of Diff.
type Rewrite struct {
	Argv []string
	// Env holds NAME=VALUE words to add: SPARKRUN_KNOB_* with the values in
	// force, and what makes Python load the shim.
	Env   []string
	Files []File
	// Dirs are folders that must be there before the command starts. A container's
	// user, who is often another one, writes into the last.
	Dirs []string
	// Shim is the plan of the shim, nil in an attempt without it.
	Shim    *shim.Plan
	Diff    []string
	Changes []Changed
}

// Layers of a Changed.
const (
	LayerArgv   = "argv"
	LayerConfig = "config"
	LayerEnv    = "env"
	LayerShim   = "shim"
)

// Changed is one place that a rewrite has changed, in the words of the command
// and its files. A flag that stands by itself, without a value, reads as "true",
// and one with a "no" before its name as "false". The word of argv that names a
// changed config file's copy is not among the changes: File says where the copy
// is.
type Changed struct {
	// Layer is LayerArgv, LayerConfig, LayerEnv or LayerShim.
	Layer string `json:"layer"`
	// Where is the flag as typed (--max_length), the name of a key=value word
	// (cutoff_len), FILE:LINE KEY of a config file (FILE KEY for a key that is
	// added to it), the variable's name, {placeholder}, or FILE:LINE KNOB of code
	// that the shim changes (KNOB where the line is not known).
	Where string `json:"where"`
	// Before is what stood there, empty for something added: a flag that only
	// overrides a default or a file has no Before. After is empty for something
	// removed.
	Before string `json:"before"`
	After  string `json:"after"`
}

// OutputSuffix returns the change that gives an attempt that starts over an
// output folder of its own, so that it never writes where an earlier attempt
// saved: X becomes X-a2. It is false where the output folder is not known.
func OutputSuffix(j job.Job, attempt int) (Change, bool) {
	set, ok := j.Knobs[job.OutputDir]
	if !ok || set.Value == "" || attempt < 2 {
		return Change{}, false
	}
	trimmed := strings.TrimRight(set.Value, "/")
	if trimmed == "" || filepath.Base(trimmed) == "." || filepath.Base(trimmed) == ".." {
		return Change{}, false
	}
	return Change{
		Knob: job.OutputDir, From: set.Value, To: trimmed + "-a" + strconv.Itoa(attempt),
		Reason: "this attempt starts over and must not write where an earlier one saved",
	}, true
}
