// Package event defines what sparkrun finds worth telling: a time, a kind, a
// level, a sentence and data. Events become lines of events.jsonl and the
// "TIMESTAMP # kind: text" lines of run.log.
package event

import "time"

// Kind names an event as area.word. The set is a contract (others parse it).
type Kind string

// The kinds of schema sparkrun.events/1.
const (
	RunStart         Kind = "run.start"
	RunEnd           Kind = "run.end"
	RunAdopt         Kind = "run.adopt"
	RunStop          Kind = "run.stop"
	PreflightFinding Kind = "preflight.finding"
	AttemptStart     Kind = "attempt.start"
	AttemptEnd       Kind = "attempt.end"
	Verdict          Kind = "verdict"
	RungAnnounce     Kind = "rung.announce"
	RungRefused      Kind = "rung.refused"
	RungNotApplied   Kind = "rung.not-applied"
	GateWait         Kind = "gate.wait"
	GateOpen         Kind = "gate.open"
	GuardAct         Kind = "guard.act"
	GuardNote        Kind = "guard.note"
	MemoryLow        Kind = "memory.low"
	ThrottleStart    Kind = "throttle.start"
	ThrottleEnd      Kind = "throttle.end"
	// ThrottleUpdate says how an episode goes on: of pulses count and total, at most one
	// line in ten minutes; of a slowdown that its cause was another than it looked.
	ThrottleUpdate Kind = "throttle.update"
	Checkpoint     Kind = "checkpoint"
	ResumeChoice   Kind = "resume.choice"
	Divergence     Kind = "divergence"
	Hang           Kind = "hang"
	Pause          Kind = "pause"
	Continue       Kind = "continue"
	SensorGap      Kind = "sensor.gap"
	SensorAbsent   Kind = "sensor.absent"
	KernelOOM      Kind = "kernel.oom"
	KernelXid      Kind = "kernel.xid"
	DiskFull       Kind = "disk.full"
	OutputGap      Kind = "output.gap"
	TerminalLost   Kind = "terminal.lost"
	ClockStep      Kind = "clock.step"
	Hygiene        Kind = "hygiene"
	Internal       Kind = "internal"
)

// Level says how loud an event is.
type Level string

// Info is for the record, Warn for something a person may want to act on,
// Error for something that was lost or ended.
const (
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Event is one thing worth telling.
type Event struct {
	// T is the run's time (clock.Clock) at which it happened, not at which it
	// was noticed. Zero means now; the run log fills it in.
	T time.Time
	// Attempt counts from 1; 0 is outside any attempt.
	Attempt int
	Kind    Kind
	Level   Level
	// Msg is one sentence, without newline.
	Msg string
	// Data is for programs; keys carry their unit (temp_c, lost_s).
	Data map[string]any
	// Label, if set, is what run.log shows in place of the kind: throttle
	// events show their type there, as "thermal-throttle start".
	Label string
}

// Sink takes events. It never blocks for long and never fails.
type Sink func(Event)
