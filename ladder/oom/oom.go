// Package oom decides why a training attempt died: out of memory, not out of
// memory, or unsure. It owns the decision and the reading of what a trainer
// printed; what the lines mean is data, in configs/oom.yaml.
//
// A Scanner takes the output as it streams by and keeps, in bounded memory, what
// a verdict needs. Decide is a function from an Evidence value to a Verdict and
// touches nothing else. Evidence counts in this order: signals that we or the
// user sent, kernel and cgroup records of the job's own processes, the final
// burst of output, the exit status, the memory samples of the last minute. A
// keyword search never decides: a word about memory in a log is a mention until
// the process has died of it.
package oom

import (
	"time"

	"sparkrun/internal/sample"
)

// Schema names the version of verdict.json.
const Schema = "sparkrun.verdict/1"

// Line is one line that the child printed, as the observers of its output see
// it.
type Line struct {
	// N counts lines from 1; Offset is the logical byte offset of the first
	// byte; T is zero when the time is not known.
	N      int
	Offset int64
	T      time.Time
	// Text is the raw line without its terminator. The scanner copies what it
	// keeps.
	Text string
	// Advance says that a step counter grew on this line. A bar that is drawn
	// again with the same count is no advance. Step is the counter, if known.
	Advance bool
	Step    int64
}

// SignalSent is a signal to the job that did not come from the outside world.
type SignalSent struct {
	Name string // "SIGINT", "SIGKILL"...
	// By is "user", "sparkrun" (a stop that somebody asked for), "limit" (the time
	// limit), "guard" (the memory guard) or "hang" (nothing moved any more).
	By string
	// T tells a signal that ended the job from one that swept up after it: those
	// later than Exit.T are left out.
	T time.Time
}

// Exit is the wait status of the command itself. The zero value is unknown:
// still alive, hung, or lost with the machine.
type Exit struct {
	Known  bool
	Code   int
	Signal string // "SIGKILL", or empty if it exited by itself
	T      time.Time
}

// Reaped is the wait status of another process of the tree.
type Reaped struct {
	PID    int
	Comm   string
	Code   int
	Signal string
}

// KernelRecord is one line of the kernel log, or of a daemon that kills
// (systemd-oomd, earlyoom, slurmstepd, kubelet).
type KernelRecord struct {
	T    time.Time // zero when not known
	Text string
}

// Evidence is everything a verdict is made from.
type Evidence struct {
	Signals []SignalSent
	Exit    Exit
	Reaped  []Reaped
	// TreePIDs names every process ever seen in the tree. nil means that the
	// tree is not known, as for a log somebody brings along; a kill record then
	// counts as ours unless the status speaks against it.
	TreePIDs map[int]string

	Kernel         []KernelRecord
	KernelReadable bool
	KernelErr      string // why it could not be read

	// VMOOMKillDelta is the growth of vmstat's oom_kill: a kill anywhere on the
	// machine. CgroupOOMKillDelta counts kills in the job's own cgroup.
	VMOOMKillDelta     sample.Num
	CgroupOOMKillDelta sample.Num
	// CgroupPath is the job's own cgroup, as the kernel names it; empty or "/"
	// when it has none of its own.
	CgroupPath string

	// Samples are those of the last minute, oldest first.
	Samples []sample.Sample
	Output  Output

	// StepsDone says that optimizer steps were seen; LastStep is the counter of
	// the last one. TrainingFinished says that the trainer reported its end.
	StepsDone        bool
	LastStep         int64
	TrainingFinished bool

	// ShmUsedPct is the highest use of /dev/shm in percent; DiskFreeMinKiB the
	// least free space seen where the job writes.
	ShmUsedPct     sample.Num
	DiskFreeMinKiB sample.Num

	Start, End time.Time
	// Unreadable names sources that could not be read, with the reason.
	Unreadable []string
}

// death is when the attempt ended, zero if nobody knows.
func (ev *Evidence) death() time.Time {
	if ev.Exit.T.IsZero() {
		return ev.End
	}
	return ev.Exit.T
}

// Answer is the verdict in one word.
type Answer string

// The three answers. Only OOM may be retried freely, Unsure once, NotOOM never.
const (
	OOM    Answer = "oom"
	NotOOM Answer = "not-oom"
	Unsure Answer = "unsure"
)

// Confidence says how sure the answer is.
type Confidence string

// The confidences. High means that no other reading of the evidence is left.
const (
	High   Confidence = "high"
	Medium Confidence = "medium"
	Low    Confidence = "low"
)

// Phase says what the job was doing.
type Phase string

// The phases. A death while loading cannot be cured by length or batch, one in
// evaluation only by the evaluation batch.
const (
	PhaseLoad      Phase = "load"
	PhaseTrain     Phase = "train"
	PhaseEval      Phase = "eval"
	PhaseSave      Phase = "save"
	PhaseOptimizer Phase = "optimizer-init"
	PhaseUnknown   Phase = "unknown"
)

// Weight says what a piece of evidence did to the verdict.
type Weight string

// The weights, strongest first.
const (
	Decides  Weight = "decides"
	Supports Weight = "supports"
	Against  Weight = "against"
	Weak     Weight = "weak"
	Note     Weight = "note"
)

// Item is one piece of evidence.
type Item struct {
	// Source is "signal", "kernel", "systemd-oomd", "earlyoom", "cgroup", "vmstat",
	// "output", "exit", "process", "memory", "shm" or "disk".
	Source string `json:"source"`
	Weight Weight `json:"weight"`
	Text   string `json:"text"`
	// Line is the line of output.log, counted from 1; T the time of a record
	// that has no line.
	Line int       `json:"line,omitempty"`
	T    time.Time `json:"t,omitzero"`
}

// Verdict says why an attempt died. Its JSON is verdict.json.
type Verdict struct {
	Schema string `json:"schema"`
	Answer Answer `json:"verdict"`
	// Kind is set for an oom (and for what an unsure one would be), Reason for
	// the others.
	Kind       string     `json:"kind,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	Phase      Phase      `json:"phase"`
	Confidence Confidence `json:"confidence"`
	// Evidence is in order of weight.
	Evidence []Item `json:"evidence"`
	// Sizes are bytes: requested, free, total, allocated, reserved,
	// reserved_unallocated, other_processes, anon_rss, shmem_rss...
	Sizes map[string]int64 `json:"sizes"`
	// Advice are short sentences, most useful first.
	Advice []string `json:"advice"`
	// Unreadable names the sources that could not be read.
	Unreadable []string `json:"unreadable"`
	// Quote is the one line to show in a summary.
	Quote string `json:"quote,omitempty"`
	// Step is the last step seen before the death, if there was one.
	Step *int64 `json:"step,omitempty"`
}
