package shim

import (
	"time"

	"sparkrun/internal/job"
)

// RecordSchema is the schema of attempts/N/shim.json.
const RecordSchema = "sparkrun.shim/1"

// Record is what the processes of one attempt told, merged.
type Record struct {
	Schema string `json:"schema"`
	// Loaded is set when at least one Python process has loaded the shim.
	Loaded bool `json:"loaded"`
	// Processes are those that imported a library the shim knows, in the order in
	// which they started. Others load the shim and tell nothing.
	Processes []Process `json:"processes,omitempty"`
	// Seen is every knob that a library was given; equal ones of several ranks are
	// one.
	Seen []Seen `json:"seen,omitempty"`
	// Exception is the first uncaught exception that ended the main thread of a
	// process, nil if there was none. Exceptions are all, the earliest first, those
	// that ended other threads too.
	Exception  *Exception  `json:"exception,omitempty"`
	Exceptions []Exception `json:"exceptions,omitempty"`
	// Trouble is what went wrong inside the shim; the training was left as it was
	// there.
	Trouble []string `json:"trouble,omitempty"`
	// Skipped names record files that could not be read, and why.
	Skipped []string `json:"skipped,omitempty"`
}

// Process is one Python process.
type Process struct {
	// PID is the number the process has inside its container, if it is in one.
	PID int `json:"pid"`
	// Start is field 22 of /proc/PID/stat: clock ticks since the machine started;
	// 0 is unknown.
	Start  int64  `json:"start,omitempty"`
	Python string `json:"python,omitempty"`
	// Argv is the command with what looks like a secret taken out.
	Argv []string `json:"argv,omitempty"`
	// Rank is the process's RANK, empty where there is none.
	Rank string `json:"rank,omitempty"`
	// Libraries are the versions of the libraries that the shim knows and the
	// process has imported; an empty version is unknown.
	Libraries map[string]string `json:"libraries,omitempty"`
}

// Seen is one knob as one library took it. Values are as Python prints them, but
// true, false and nothing for None.
type Seen struct {
	Knob job.Knob `json:"knob"`
	// Where is the class and attribute, or the call and keyword:
	// SFTConfig.max_length, tokenizer(max_length=).
	Where string `json:"where"`
	// Before is the script's value, After the one in force.
	Before string `json:"before"`
	After  string `json:"after"`
	// Final is set where a trainer was about to use the value, as opposed to a
	// place that only holds it.
	Final bool `json:"final,omitempty"`
	// Why says why a value that the plan names was left alone.
	Why string `json:"why,omitempty"`
}

// Exception is an uncaught exception.
type Exception struct {
	// Type is the class, with its module unless it is Python's own:
	// torch.OutOfMemoryError, MemoryError.
	Type    string `json:"type"`
	Message string `json:"message"`
	// Frames are the last of the traceback, innermost last: FILE:LINE:FUNCTION.
	Frames []string `json:"frames,omitempty"`
	// Memory is in bytes: mem_available of the machine; allocated, reserved,
	// max_allocated, max_reserved, device_free and device_total of torch's current
	// device. num_ooms and num_alloc_retries are counts. What could not be told is
	// not in it.
	Memory map[string]int64 `json:"memory,omitempty"`
	Time   time.Time        `json:"time"`
	PID    int              `json:"pid"`
	Rank   string           `json:"rank,omitempty"`
	// Thread is the name of the thread it ended, empty for the main one.
	Thread string `json:"thread,omitempty"`
}

// Changed says whether the value in force is not the script's.
func (s Seen) Changed() bool { return s.Before != s.After }

// Unreached says why a further attempt of the same command would have the shim in vain,
// "" where some process has loaded it. It tells that only of an attempt that came as far
// as a Python process and whose record Read could read.
func (r Record) Unreached() string {
	if r.Loaded {
		return ""
	}
	return "no Python process of the attempt loaded the shim: something between the command and Python takes PYTHONPATH or " + PlanVar + " out of the environment, or Python is started with -I, -E or -S"
}
