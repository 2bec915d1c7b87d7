package preflight

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"sparkrun/internal/job"
)

// facts are everything the checks judge. They are gathered side by side first,
// each within the limit; a judgement then costs nothing and cannot hang.
type facts struct {
	job      *job.Job
	machine  string
	limit    time.Duration
	stack    stack
	platform string

	hardware  hardware
	gpu       gpuAnswer
	torch     torchBuild
	memory    memory
	container container
}

// gpuHere tells whether this machine has an NVIDIA GPU that its driver serves,
// or should serve.
func (f facts) gpuHere() bool { return f.platform != Generic }

// spark tells whether this machine is the one the gotchas are about.
func (f facts) spark() bool { return f.platform == DGXSpark }

// checks lists the gotchas in order; hostChecks those of our own.
var (
	checks = []struct {
		id, title string
		judge     func(facts) Finding
	}{
		{"G1", "CUDA 12/13 ABI", judgeCUDAABI},
		{"G2", "flash-attn and Unsloth", judgeAttention},
		{"G3", "UMA headroom", judgeHeadroom},
		{"G4", "temperature and power", judgeThermal},
		{"G5", "memory bandwidth", judgeBandwidth},
		{"G6", "who else uses the memory", judgeContention},
		{"G7", "SM121 capability", judgeCapability},
		{"G8", "known playbook issues", judgePlaybooks},
		{"G9", "container or bare pip", judgeContainer},
		{"G10", "parallelism of two Sparks", judgeParallelism},
	}
	hostChecks = []struct {
		id, title string
		judge     func(facts) Finding
	}{
		{"H1", "NVIDIA driver", judgeDriver},
	}
)

// Run looks at the machine and returns the report. It returns after at most
// about two limits even if the driver and the file system hang, and it never
// fails: what could not be read is a skip that says so.
func Run(ctx context.Context, in Input) Report {
	start := time.Now()
	f := gather(ctx, in)
	r := Report{
		Platform: f.platform,
		Machine:  in.Machine,
	}
	if f.gpu.ok() {
		r.GPU, r.Driver = f.gpu.dev.Name, f.gpu.dev.DriverVersion
	}
	f.memory.report(&r)
	for _, c := range checks {
		r.Findings = append(r.Findings, finish(c.judge(f), c.id, c.title))
	}
	for _, c := range hostChecks {
		r.Host = append(r.Host, finish(c.judge(f), c.id, c.title))
	}
	r.Verdict = verdict(r.Findings, r.Host)
	r.Took = time.Since(start)
	return r
}

// finish numbers a finding, gives it a result line where the check has no
// literal of its own, and keeps control characters of foreign text (image
// names, paths) out of everything that is printed.
func finish(f Finding, id, title string) Finding {
	f.ID, f.Title = id, title
	f.Detail = oneLine(f.Detail)
	if f.Line == "" {
		f.Line = id + " " + strings.ToUpper(string(f.Status)) + ": " + f.Detail
	}
	f.Line = oneLine(f.Line)
	for i, e := range f.Evidence {
		f.Evidence[i] = oneLine(e)
	}
	return f
}

// oneLine replaces what is not printable by "?".
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

func gather(ctx context.Context, in Input) facts {
	r := rootOf(in.Root)
	getenv := in.Getenv
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	f := facts{job: in.Job, machine: in.Machine, limit: in.Limit}
	if f.limit <= 0 {
		f.limit = DefaultLimit
	}
	// The table is part of the binary, and a test reads it.
	s, _ := loadStack()
	f.stack = s

	var wg sync.WaitGroup
	wg.Go(func() {
		a, ok := within(ctx, f.limit, func(ctx context.Context) gpuAnswer { return askDevice(ctx, in.Device) })
		if !ok {
			a = gpuAnswer{asked: in.Device != nil, late: true}
		}
		f.gpu = a
	})
	wg.Go(func() {
		f.hardware, _ = within(ctx, f.limit, func(context.Context) hardware { return readHardware(r, s) })
	})
	wg.Go(func() {
		b, ok := within(ctx, f.limit, func(context.Context) torchBuild { return lookForTorch(r, in.Job, getenv) })
		if !ok {
			b = torchBuild{state: torchUndetermined, late: true}
		}
		f.torch = b
	})
	wg.Go(func() {
		m, ok := within(ctx, f.limit, func(context.Context) memory { return readMemory(r) })
		if !ok {
			m.err = errLate
		}
		f.memory = m
	})
	wg.Go(func() {
		c, ok := within(ctx, f.limit, func(context.Context) container { return readContainer(r) })
		if !ok {
			c.err = errLate
		}
		f.container = c
	})
	wg.Wait()
	f.platform = platformOf(f.hardware, f.gpu, f.stack)

	// Only where the answer matters and the folders did not give it is the
	// interpreter itself asked: a start costs some tens of milliseconds.
	unsure := f.torch.state == torchUndetermined || f.torch.state == torchAbsent && in.Job != nil
	if r.live() && f.gpuHere() && unsure && !f.torch.late {
		// A copy: a call that is left behind must not share f.
		before := f.torch
		b, ok := within(ctx, f.limit, func(ctx context.Context) torchBuild { return askForTorch(ctx, r, before, in.Job) })
		if ok {
			f.torch = b
		} else {
			f.torch.state, f.torch.late = torchUndetermined, true
		}
	}
	return f
}

// errLate is the reason of a reading that did not come in time.
var errLate = errors.New("no answer in time")

// within runs f and waits for its result no longer than limit. A call that does
// not return is left behind: nothing can stop a read from a dead file server or
// a call into a wedged driver.
func within[T any](ctx context.Context, limit time.Duration, f func(context.Context) T) (result T, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan T, 1)
	go func() { done <- f(ctx) }()
	select {
	case result = <-done:
		return result, true
	case <-ctx.Done():
		return result, false
	}
}

// lookForTorch reads folders only.
func lookForTorch(r root, j *job.Job, getenv func(string) string) torchBuild {
	var interp, dir string
	switch {
	case j == nil:
		dir = getenv("PWD")
		if interp = findProgram(r, "python3", getenv); interp == "" {
			return torchBuild{state: torchNoPython}
		}
	case j.Container != nil, j.Interpreter == "":
		return torchBuild{state: torchNotAsked}
	default:
		interp, dir = j.Interpreter, j.Dir
	}
	v := venueOf(r, interp, getenv, dir)
	b := findTorch(r, v)
	b.interp, b.real = interp, v.interp
	return b
}

// askForTorch asks the interpreter where lookForTorch found nothing.
func askForTorch(ctx context.Context, r root, b torchBuild, j *job.Job) torchBuild {
	dir := ""
	if j != nil {
		dir = j.Dir
	}
	path, ok := askInterpreter(ctx, b.real, dir)
	if !ok {
		return b
	}
	found := torchBuild{state: torchAbsent}
	if path != "" {
		if t, ok := readTorch(r, filepath.Dir(path)); ok {
			found = t
		}
	}
	found.interp, found.real = b.interp, b.real
	return found
}
