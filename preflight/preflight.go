// Package preflight owns the look at the machine before anything is started:
// the ten numbered gotchas of the DGX Spark runbook (G1 to G10, numbers that
// never change), the host checks of our own (H1 and on), the verdict over them
// and env-report.json.
//
// It reads and never changes anything, imports no torch, and waits for no
// driver longer than a deadline. Each check is a pure function of the facts
// that were gathered first, one file per check.
package preflight

import (
	"context"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/sample"
	"sparkrun/preflight/headroom"
)

// Status is the outcome of one check, as env-report.json spells it.
type Status string

// The outcomes. Pass, Info and a Skip by design leave the verdict "ready".
const (
	Pass Status = "pass"
	Fail Status = "fail"
	Warn Status = "warn"
	Skip Status = "skip"
	Info Status = "info"
)

// Verdicts of a report.
const (
	Ready             = "ready"
	ReadyWithWarnings = "ready-with-warnings"
	Blocked           = "blocked"
)

// Platforms of a report.
const (
	DGXSpark      = "dgx-spark"
	GenericNVIDIA = "generic-nvidia"
	Generic       = "generic"
)

// Finding is the result of one check.
type Finding struct {
	// ID is the check's number: G1 to G10 of the runbook, H1 and on for the
	// host checks of our own.
	ID string
	// Title names the subject in a few words, for a person.
	Title  string
	Status Status
	// Detail is one line: the reading, the reason of a skip, what is wrong. For
	// a skip by design it ends in "(by design)".
	Detail string
	// Evidence is what the finding rests on, one reading a line.
	Evidence []string
	// Fix is what to do, as one or more lines of commands or plain words. Only
	// findings that a person should act on have one.
	Fix string
	// Cost is what happens to the user if nothing is done, in one sentence; host checks
	// that advise something have one.
	Cost string
	// Repairs are the commands that `sparkrun preflight --fix` offers to run. They are
	// the Fix in a form that a machine may carry out: safe, and undone as easily.
	Repairs []Repair
	// Line is the runbook's literal result line, such as
	// "G1 PASS: torch built against CUDA 13.0".
	Line string
	// ByDesign marks a skip that says nothing against this machine: the check
	// does not apply here, or is never made unasked.
	ByDesign bool
}

// Repair is one change to the machine that the user may ask for.
type Repair struct {
	// Command is what is run with `sh -c`; Effect says in a few words what it changes.
	Command string
	Effect  string
	// Root tells that it needs root.
	Root bool
}

// Input is everything a preflight depends on.
type Input struct {
	// Job is the command that is about to run; nil for a preflight without one.
	Job *job.Job
	// Getenv reads the environment that the command will get. Nil means an
	// empty environment.
	Getenv func(string) string
	// Root is the folder under which /proc, /sys, /etc and the interpreter are
	// looked up: "/" (also when empty) for this machine, or a recorded tree. No
	// process is ever started under a root other than "/".
	Root string
	// Device asks the GPU for its identity and one reading. Nil where there is
	// no way to ask. It may hang; Run waits no longer than Limit.
	Device func(context.Context) (sample.Device, sample.GPU, error)
	// Machine is what uname -m says, such as aarch64.
	Machine string
	// Limit bounds how long the driver and any one check may take; zero means
	// DefaultLimit.
	Limit time.Duration
	// LookLimit bounds a look of one check at disk and processes, where that must be
	// shorter than Limit; zero means Limit.
	LookLimit time.Duration
	// Recorded are the answers that Root has no file for; nil for this machine.
	Recorded *Recorded
	// Now is the time of the preflight; zero means time.Now.
	Now time.Time

	// Images asks the engine for what an image says of itself. Nil where there is no
	// way to ask.
	Images func(ctx context.Context, engine, ref string) (ImageFacts, error)
	// SwapBefore is an earlier reading of this machine's swap counters; the longer ago the
	// better it tells whether the machine is swapping. The zero value is none.
	SwapBefore SwapReading
	// ModelPath is the folder of the base model as this machine sees it, where that
	// differs from the name in the command (a mount of a container); else "". It may hang
	// with that folder's file system. Nil is "".
	ModelPath func() string
	// ModelRead is told what the model's files say, as soon as that is known: where they
	// lie on a slow disk that may be after Run has returned. Nil tells nobody.
	ModelRead func(modelsize.Size)
	// FirstStep asks the run's own ladder for the change to start from, for a plan that is
	// tight or over; nil of it where nothing can be said. Nil: the runbook's ladder.
	FirstStep func(headroom.Spec, headroom.Estimate, Budget) *Step
	// OwnPIDs are processes of sparkrun's own and their children: never somebody else.
	OwnPIDs []int
	// NoDrop tells that the page cache will not be dropped whatever the right
	// (--drop-caches never).
	NoDrop bool
	// Observed is what `--watch` saw (G4); Bandwidth what `--bandwidth` measured (G5).
	// Nil where it was not asked for.
	Observed  *Observed
	Bandwidth *Bandwidth
	// ProbeProblem is why the command's image, asked for by `--probe-image`, gave no
	// answer (G9); empty where it did or was not asked.
	ProbeProblem string
	// Playbooks waits until the upstream issues have been asked for anew, at most until
	// its context is done (G8); nil where nobody asks.
	Playbooks func(context.Context)
	// CannotStart is why a run would end before it has started anything, in its words (H20):
	// the command is not there, or may not be executed; "" where it can be started, or
	// nobody looked. Slip is a word of the command that names nothing (job.Job.Slip). A run
	// tells both by itself and leaves them empty.
	// Program is the word of the command that was looked for: Job may be what a script starts.
	CannotStart, Program string
	Slip                 string
	// Torch is what the command's torch said of the GPU (H19, `--torch`); nil likewise.
	Torch *TorchAnswer
}

// DefaultLimit is how long one check may take. Answers come within some tens of
// milliseconds; a wedged driver has been seen to block for minutes. With one that hangs
// the whole preflight is still done within a second.
const DefaultLimit = 900 * time.Millisecond

// Report is the outcome of one preflight.
type Report struct {
	// Platform is DGXSpark, GenericNVIDIA or Generic.
	Platform string
	// Findings holds G1 to G10, all ten, in order.
	Findings []Finding
	// Host holds the host checks of our own, in order.
	Host []Finding
	// HeadroomGB is what a job can count on, in whole decimal gigabytes:
	// MemAvailable less Reserve, rounded down. Nil when MemAvailable is unknown.
	HeadroomGB *int
	// Verdict is Ready, ReadyWithWarnings or Blocked.
	Verdict string

	// Memory figures behind HeadroomGB, in KiB. MemFree is what
	// cudaMemGetInfo sees; Reserve is what is left to the OS and the driver.
	MemTotalKiB     sample.Num
	MemAvailableKiB sample.Num
	MemFreeKiB      sample.Num
	ReserveKiB      sample.Num

	// Machine is Input.Machine; GPU and Driver are empty when unknown.
	Machine string
	GPU     string
	Driver  string
	// Plan is what the command is reckoned to need; nil where nothing is known of it.
	Plan *Planned
	// Took is how long the whole preflight lasted.
	Took time.Duration
}

// Skipped is the report of a preflight that was not made, for a reason such as
// "--no-preflight". Nobody looked, so its verdict is ReadyWithWarnings. Only the
// platform is told, as far as the PCI bus and the maker's name say it, read from
// under root ("/", also when empty, is this machine; see Input.Root): no driver
// is asked, which takes some tens of microseconds, at most DefaultLimit.
func Skipped(root, reason string) Report {
	s, _ := loadStack() // part of the binary, and a test reads it
	hw, _ := within(context.Background(), DefaultLimit, func(context.Context) hardware { return readHardware(rootOf(root), s) })
	return skipped(platformOf(hw, gpuAnswer{}, s), reason)
}

func skipped(platform, reason string) Report {
	r := Report{Platform: platform}
	for _, c := range checks {
		r.Findings = append(r.Findings, finish(Finding{Status: Skip, Detail: reason}, c.id, c.title))
	}
	r.Verdict = verdict(r.Findings, nil)
	return r
}

// Blocking returns the findings that make the verdict Blocked, gotchas first.
func (r Report) Blocking() []Finding {
	var out []Finding
	for _, list := range [][]Finding{r.Findings, r.Host} {
		for _, f := range list {
			if f.Status == Fail {
				out = append(out, f)
			}
		}
	}
	return out
}

// Warnings returns the gotchas a person should read although the run goes on: warnings
// and skips that are not by design. Host findings are Hints.
func (r Report) Warnings() []Finding {
	var out []Finding
	for _, f := range r.Findings {
		if f.Status == Warn || f.Status == Skip && !f.ByDesign {
			out = append(out, f)
		}
	}
	return out
}

// Hints returns the host findings that advise something; they never change the verdict.
func (r Report) Hints() []Finding {
	var out []Finding
	for _, f := range r.Host {
		if f.Status == Warn {
			out = append(out, f)
		}
	}
	return out
}

// ExitStatus is the exit status of "sparkrun preflight": 0 ready, 1
// ready-with-warnings, 2 blocked.
func (r Report) ExitStatus() int {
	switch r.Verdict {
	case Ready:
		return 0
	case ReadyWithWarnings:
		return 1
	}
	return 2
}
