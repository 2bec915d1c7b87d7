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
	"sparkrun/internal/sample"
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
	// Line is the runbook's literal result line, such as
	// "G1 PASS: torch built against CUDA 13.0".
	Line string
	// ByDesign marks a skip that says nothing against this machine: the check
	// does not apply here, or is never made unasked.
	ByDesign bool
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
	// Limit bounds how long any one check may take; zero means DefaultLimit.
	Limit time.Duration
}

// DefaultLimit is how long one check may take. Answers come within some tens of
// milliseconds; a wedged driver has been seen to block for minutes.
const DefaultLimit = time.Second

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
	return r.filter(func(f Finding) bool { return f.Status == Fail })
}

// Warnings returns the findings a person should read although the run goes on:
// warnings and skips that are not by design.
func (r Report) Warnings() []Finding {
	return r.filter(func(f Finding) bool {
		return f.Status == Warn || f.Status == Skip && !f.ByDesign
	})
}

func (r Report) filter(keep func(Finding) bool) []Finding {
	var out []Finding
	for _, list := range [][]Finding{r.Findings, r.Host} {
		for _, f := range list {
			if keep(f) {
				out = append(out, f)
			}
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
