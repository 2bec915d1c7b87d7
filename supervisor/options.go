// Package supervisor owns one run from start to end: it prepares the run
// directory, starts each attempt under a holder, follows what the child prints,
// judges a death and goes down the ladder. The attempt loop is the pure state
// machine of machine.go; the goroutine of run.go owns it and everything that
// changes with it.
package supervisor

import (
	"os"
	"time"

	"sparkrun/supervisor/guard"
)

// Options is one call of sparkrun, with every setting resolved.
type Options struct {
	// Argv is the command exactly as typed; Dir and Env are where and with what
	// it runs.
	Argv []string
	Dir  string
	Env  []string

	// Prog is the name this binary was called by, which may be another one.
	Prog string
	// Self is sparkrun's own command line without its name, to show how the run
	// can be started again.
	Self []string

	Stdin, Stdout, Stderr *os.File
	// Exe is our own binary, for the holder and the sensors.
	Exe     string
	Version string

	Name     string
	RunsDir  string
	Interval time.Duration // between rows of thermal.csv
	Grace    time.Duration // between a forwarded signal and SIGTERM

	Ladder      string // name or file
	MaxAttempts int
	NoRetry     bool
	Exact       bool
	Allow, Deny []string
	Knobs       map[string]string

	Force, Strict, NoPreflight bool
	NoPTY                      bool
	Quiet                      bool

	// Shim is "auto" (from the second attempt on, where nothing else turns a setting),
	// "always" or "never".
	Shim string
	// Resume is "auto", "never", or the path of a checkpoint to go on from.
	Resume string
	// OnDivergence is "warn" or "stop".
	OnDivergence string

	DropCaches  string // "auto", "system", "files" or "never"
	Cgroup      string
	MinFree     uint64 // bytes the file system of the run must keep free
	ProfileDirs []string
	// ProfileFile is the settings file beside the job, which may hold profiles under
	// "trainers:"; empty for none.
	ProfileFile   string
	ThermalConfig string

	// HangAfter is how long an attempt may stand still after an out-of-memory line,
	// three of its steps at least; 0 waits for ever.
	HangAfter time.Duration
	// Guard holds the memory guard's limits; GateLimit is how long a retry waits
	// for memory that somebody else holds.
	Guard     guard.Options
	GateLimit time.Duration

	// TelemetryInterval is the time between rows of telemetry.csv.
	TelemetryInterval time.Duration

	// HangTimeout is how long an attempt may stand still altogether: 0 takes it from its
	// own step time, below 0 never ends it. HangRestart goes on once from the checkpoint.
	HangTimeout time.Duration
	HangRestart bool
	// Heat is what is done about heat and pace beside telling of them; OnEvent is a shell
	// command that is given events.
	Heat    Heat
	OnEvent string

	// SensorRoot is a recorded tree of /proc and /sys that the sampler reads in place of
	// this machine's, for tests; empty for this machine.
	SensorRoot string

	// root is the recorded tree in which the command's files are looked up; empty for
	// this machine. Only preflight sets it.
	root string
}

// Heat is what is done about heat and pace, all of it only where asked for.
type Heat struct {
	// PauseC and ResumeC are temperatures of the machine at which the command is paused
	// and goes on, 0 for never; MaxPause is the longest pause.
	PauseC, ResumeC float64
	MaxPause        time.Duration
	// StopOnWedge ends the run in the low-power wedge.
	StopOnWedge bool
	// CapClocksMHz is the clock to which the GPU is held when throttling persists; 0 never.
	CapClocksMHz int
	// SlowFactor times the pace's baseline for SlowFor ends the attempt, which goes on from
	// its checkpoint; 0 never.
	SlowFactor float64
	SlowFor    time.Duration
}

// Result is how a run ended.
type Result struct {
	State  State
	Status int
	RunDir string
}
