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
	// limit), "guard" (the memory guard), or a watch that was asked to: "hang" (nothing
	// moved any more), "power-wedge", "slowdown" or "divergence".
	By string
	// T tells a signal that ended the job from one that swept up after it: those
	// later than Exit.T are left out.
	T time.Time
	// Why is what was seen, as part of a sentence, where a watch sent it; may be empty.
	Why string
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

// TreeProc is one process of the job's tree. A kernel record names a pid, and pids
// are used again: the name and the times tell whose it was.
type TreeProc struct {
	// Comm is the process name; the kernel keeps 15 bytes of it. Empty = unknown.
	Comm string
	// First and Last are when it was first and last seen; zero = unknown.
	First, Last time.Time
}

// GuardAction is what the memory guard did (guard.json).
type GuardAction struct {
	T time.Time
	// Why is "hard-floor", "predicted" or "swap-thrash".
	Why string
	// Limit is the cgroup whose limit it acted for, "" for the machine's memory.
	Limit string
	// AvailKiB is what was left when it acted, FloorKiB the floor it acted for.
	AvailKiB, FloorKiB sample.Num
	// Outsider names a process outside the tree; empty unless it grew more than the
	// tree in the last minute, and by enough to matter on this machine. The growths
	// are over that minute.
	Outsider                     string
	OutsiderPID                  int
	OutsiderGrewKiB, TreeGrewKiB sample.Num
	// Warned says that it only told and did not end the job.
	Warned bool
}

// ContainerEnd is what a container engine says about the end of a container. Its
// OOMKilled is a hint, wrong in both directions: false where only a child was
// killed, true where a harmless child was.
type ContainerEnd struct {
	Engine    string // "docker", "podman"
	OOMKilled bool
	Known     bool // whether the engine answered
	ExitCode  int
	Error     string // the engine's own error text for the container, if any
}

// Lost says that the machine went away under the attempt.
type Lost struct {
	// BootChanged: the boot id is another one than when the attempt began.
	BootChanged bool
	// Clean: the previous boot ended in an orderly shutdown; CleanKnown tells
	// whether its journal could be read.
	Clean, CleanKnown bool
	// JournalTail are the last lines of the previous boot's journal, oldest first.
	JournalTail []KernelRecord
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
	// Tree holds every process ever seen in the tree, by pid. nil means that the
	// tree is not known, as for a log somebody brings along; a kill record then
	// counts as far as something ties it to the log or the status (see tie).
	Tree map[int]TreeProc

	Kernel         []KernelRecord
	KernelReadable bool
	KernelErr      string // why it could not be read

	// VMOOMKillDelta is the growth of vmstat's oom_kill: a kill anywhere on the
	// machine. CgroupOOMKillDelta counts kills in the job's own cgroup.
	VMOOMKillDelta     sample.Num
	CgroupOOMKillDelta sample.Num
	// CgroupOOMEvents is the growth of memory.events' oom (cgroup v2): how often the
	// cgroup hit its own limit. 0 beside a kill says that the machine's memory was the
	// reason.
	CgroupOOMEvents sample.Num
	// CgroupPaths are the job's own cgroups as the kernel names them, those of its
	// containers included; empty when it has none of its own. "/" is not one.
	CgroupPaths []string

	// Guard is what the memory guard did, nil if nothing. Container is what an
	// engine said, nil where there is no container. Lost is nil while the machine
	// lives.
	Guard *GuardAction
	// GuardPhase is what the guard knew of the job: "load" as long as no step was
	// seen, "run" afterwards, empty where nobody knows. Text that says more comes
	// first.
	GuardPhase string
	Container  *ContainerEnd
	Lost       *Lost

	// AllocConf is PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF) as the command was
	// given it; empty when it was not set, or when nobody knows.
	AllocConf string

	// AddressLimitKiB is RLIMIT_AS of the command (ulimit -v), unknown when there
	// is none.
	AddressLimitKiB sample.Num

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

	// Nodes is how many machines the command says the job spans; 0 is not told.
	Nodes int

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
	// "output", "exit", "process", "memory", "shm", "disk", "guard", "container",
	// "boot", "limit", "command", "shim", or the name of another daemon or batch system.
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
	Kind   string `json:"kind,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Cause tells apart what has the same kind and needs another lever:
	// "fragmentation", "co-tenant", "pinned", "driver-memory", "address-limit",
	// "worker", "map-count"...; empty where nothing more is known.
	Cause      string     `json:"cause,omitempty"`
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
	// Lever is the first thing that helps, by kind, as a stable word: see the
	// table of levers in configs/oom.yaml. "none" where no setting helps.
	Lever string `json:"lever"`
	// Quote is the one line to show in a summary.
	Quote string `json:"quote,omitempty"`
	// Step is the last step seen before the death, if there was one.
	Step *int64 `json:"step,omitempty"`
}
