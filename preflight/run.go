package preflight

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"sparkrun/internal/job"
)

// facts are everything the checks judge. They are gathered side by side first,
// each within the limit; a judgement then costs nothing and cannot hang.
type facts struct {
	job     *job.Job
	machine string
	limit   time.Duration
	// busy: more processes want to run than there are processors.
	busy     bool
	stack    stack
	platform string
	in       Input
	// getenv is the trainer's environment; see environment.
	getenv func(string) string
	now    time.Time

	hardware hardware
	gpu      gpuAnswer
	// python is the interpreter of the command, or of the shell, and what it would
	// import; torch the torch among it. Both describe the image where the command starts
	// one and it can be told.
	python    pythonFacts
	torch     torchBuild
	image     imageFacts
	memory    memory
	container container
	// plan is what the command is reckoned to need.
	plan planned
}

// gpuHere tells whether this machine has an NVIDIA GPU that its driver serves,
// or should serve.
func (f facts) gpuHere() bool { return f.platform != Generic }

// spark tells whether this machine is the one the gotchas are about.
func (f facts) spark() bool { return f.platform == DGXSpark }

// Run looks at the machine and returns the report. It returns after at most
// about two limits even if the driver and the file system hang, and it never
// fails: what could not be read is a skip that says so.
func Run(ctx context.Context, in Input) Report {
	start := time.Now()
	f, seen := gather(ctx, in)
	r := Report{
		Platform: f.platform,
		Machine:  in.Machine,
	}
	if f.gpu.ok() {
		r.GPU, r.Driver = f.gpu.dev.Name, f.gpu.dev.DriverVersion
	}
	f.memory.report(&r)
	f.plan.report(&r, f.budget())
	for _, c := range checks {
		found := judgeOne(c, seen, f)
		if c.id == "G9" {
			found = withProbe(found, in.ProbeProblem)
		}
		r.Findings = append(r.Findings, finish(found, c.id, c.title))
	}
	for _, c := range hostChecks {
		r.Host = append(r.Host, finish(judgeOne(c, seen, f), c.id, c.title))
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
	f.Detail = short(oneLine(f.Detail), detailMost)
	if f.Line == "" {
		f.Line = id + " " + strings.ToUpper(string(f.Status)) + ": " + f.Detail
	}
	f.Line = short(oneLine(f.Line), detailMost)
	f.Cost = oneLine(f.Cost)
	for i, e := range f.Evidence {
		f.Evidence[i] = short(oneLine(e), evidenceMost)
	}
	if f.Fix != "" {
		lines := strings.Split(strings.TrimSpace(f.Fix), "\n")
		for i, line := range lines {
			lines[i] = oneLine(line)
		}
		f.Fix = strings.Join(lines, "\n")
	}
	for i, r := range f.Repairs {
		f.Repairs[i].Effect = oneLine(r.Effect)
	}
	return f
}

// Names, versions and titles of others may be of any length; in characters. Details of ours
// have some hundreds, evidence such as a PATH has more.
const (
	detailMost   = 1000
	evidenceMost = 4000
)

// short cuts a text behind so many characters, and says so.
func short(s string, most int) string {
	if len(s) <= most {
		return s
	}
	n := 0
	for at := range s {
		if n == most {
			return s[:at] + "..."
		}
		n++
	}
	return s
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

// judgeOne judges what a look saw; a look that was late is a skip that says so.
func judgeOne(c check, seen map[string]any, f facts) Finding {
	if c.look == nil {
		return c.judge(nil, f)
	}
	what, ok := seen[c.id]
	if !ok {
		return f.late(c)
	}
	return c.judge(what, f)
}

// late is the finding of a check whose look took longer than its limit. It says nothing
// against the machine where an answer would have been for information, or could not have
// mattered for this machine and command.
func (f facts) late(c check) Finding {
	found := f.noAnswer()
	if c.optional != nil && c.optional(f) {
		found = byDesign(found.Detail + "; it would be for information")
	}
	return found
}

// noAnswer is the finding where something did not come in time.
func (f facts) noAnswer() Finding {
	return Finding{Status: Skip, Detail: f.noAnswerWithin()}
}

func (f facts) noAnswerWithin() string {
	s := fmt.Sprintf("no answer within %g s", f.lookLimit().Seconds())
	if f.busy {
		s += ", on a machine that has more to do than processors"
	}
	return s
}

// lookLimit bounds a look. A machine that is busy gets the whole limit: there a look that
// costs 30 ms of a processor takes many times that, and it is no sign of a fault.
func (f facts) lookLimit() time.Duration {
	if f.in.LookLimit > 0 && !f.busy {
		return min(f.in.LookLimit, f.limit)
	}
	return f.limit
}

// busyNow tells that more processes want to run than there are processors: over the last
// minute, or at this instant.
func busyNow(r root, processors int) bool {
	b, err := r.read("/proc/loadavg")
	if err != nil {
		return false
	}
	words := strings.Fields(string(b))
	if len(words) < 4 {
		return false
	}
	load, err := strconv.ParseFloat(words[0], 64)
	if err == nil && load > float64(processors) {
		return true
	}
	now, _, _ := strings.Cut(words[3], "/")
	n, err := strconv.Atoi(now)
	return err == nil && n > processors
}

// gather makes all readings side by side, each within its limit. The map has what the
// looks of the checks saw, by number; one that was late is not in it.
func gather(ctx context.Context, in Input) (facts, map[string]any) {
	r := rootOf(in.Root)
	getenv := in.Getenv
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	getenv = environment(in.Job, getenv)
	f := facts{job: in.Job, machine: in.Machine, limit: in.Limit, in: in, getenv: getenv, now: in.Now}
	if f.limit <= 0 {
		f.limit = DefaultLimit
	}
	if f.now.IsZero() {
		f.now = time.Now()
	}
	// The table is part of the binary, and a test reads it.
	s, _ := loadStack()
	f.stack = s
	v := view{root: r, getenv: getenv, job: in.Job, stack: s, in: in, now: f.now}
	if in.ModelPath != nil {
		v.modelOnce = sync.OnceValue(in.ModelPath)
	}
	f.busy = r.live() && busyNow(r, runtime.NumCPU())
	v.busy = f.busy
	// Several checks want to know what the command asks for; its files are read once.
	shared, stop := context.WithTimeout(ctx, f.lookLimit())
	defer stop()
	v.over = func() bool { return shared.Err() != nil }
	unshared := v
	v.askedOnce = sync.OnceValue(func() request { return readAsked(unshared) })
	swap := in.SwapBefore
	if r.live() && swap.at.IsZero() {
		swap = readSwap(r)
	}
	lookLimit := f.lookLimit()
	v.processesOnce = sync.OnceValue(func() processStats { return readStats(shared, r) })

	var wg sync.WaitGroup
	gpuKnown, hardwareKnown := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		defer close(gpuKnown)
		// The driver's own time is a little shorter, so that what is known of one that
		// hangs is not lost.
		a, ok := within(ctx, f.limit+deviceGrace, func(ctx context.Context) gpuAnswer { return askDevice(ctx, f.limit, in.Device) })
		if !ok {
			a = gpuAnswer{asked: in.Device != nil, late: true}
		}
		// On a busy machine it may be that nobody came to ask it.
		if a.late && !f.busy {
			a.installed, _ = within(ctx, lookLimit, func(context.Context) bool { return libraryThere(r, getenv) })
		}
		if in.Getenv != nil {
			a.named = in.Getenv(nvmlLibraryEnv)
		}
		f.gpu = a
	})
	wg.Go(func() {
		defer close(hardwareKnown)
		f.hardware, _ = within(ctx, lookLimit, func(context.Context) hardware { return readHardware(r, s) })
	})
	wg.Go(func() {
		start := time.Now()
		p, ok := within(ctx, lookLimit, func(ctx context.Context) pythonFacts { return readPython(ctx, v) })
		if !ok {
			p.torch = torchBuild{state: torchUndetermined, late: true}
		}
		f.python, f.torch, f.image = p, p.torch, p.image
		// Only where the answer matters and the folders did not give it is the
		// interpreter itself asked: a start costs some tens of milliseconds. It is not
		// put off until a driver has answered that takes its time.
		unsure := p.torch.state == torchUndetermined || p.torch.state == torchAbsent && in.Job != nil
		if !r.live() || !unsure || p.torch.late {
			return
		}
		<-hardwareKnown
		select {
		case <-gpuKnown:
			if platformOf(f.hardware, f.gpu, s) == Generic {
				return
			}
		case <-time.After(driverQuick):
		}
		limit := max(lookLimit-time.Since(start), lookLimit/2)
		b, ok := within(ctx, limit, func(ctx context.Context) torchBuild { return askForTorch(ctx, r, p.torch, in.Job) })
		if ok {
			f.torch = b
		} else {
			f.torch.state, f.torch.late = torchUndetermined, true
		}
	})
	wg.Go(func() {
		m, ok := within(ctx, lookLimit, func(context.Context) memory { return readMemory(r) })
		if !ok {
			m.err = errLate
		}
		f.memory = m
	})
	wg.Go(func() {
		c, ok := within(ctx, lookLimit, func(context.Context) container { return readContainer(r) })
		if !ok {
			c.err = errLate
		}
		f.container = c
	})
	wg.Go(func() {
		p, ok := within(ctx, lookLimit, func(ctx context.Context) planned { return readPlan(ctx, v) })
		if !ok {
			p.why = "the model's files gave no answer in time"
		}
		f.plan = p
	})
	seen := make(map[string]any)
	var mu sync.Mutex
	for _, list := range [][]check{checks, hostChecks} {
		for _, c := range list {
			if c.look == nil {
				continue
			}
			wg.Go(func() {
				what, ok := within(ctx, lookLimit, func(ctx context.Context) any { return c.look(ctx, v) })
				if ok {
					mu.Lock()
					seen[c.id] = what
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if g3, ok := seen["G3"].(headroomSeen); ok && r.live() {
		g3.swapRate = readSwap(r).since(swap, time.Duration(g3.table.Swap.IntervalMS)*time.Millisecond)
		seen["G3"] = g3
	}
	f.platform = platformOf(f.hardware, f.gpu, f.stack)
	f.plan.findStart(ctx, in, f.budget(), min(f.limit, stepLimit))
	return f, seen
}

const (
	// deviceGrace is how much longer than its own time the question to the driver is
	// waited for.
	deviceGrace = 20 * time.Millisecond
	// driverQuick is how soon a machine without an NVIDIA driver has said so.
	driverQuick = 100 * time.Millisecond
)

// stepLimit bounds the search for the step to start from: the ladder asks it in some
// milliseconds, unless the command's files lie on a mount that does not answer.
const stepLimit = 150 * time.Millisecond

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
