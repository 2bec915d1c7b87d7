package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/internal/treefs"
	"sparkrun/ladder/trainer"
	"sparkrun/preflight"
	"sparkrun/sampler"
	"sparkrun/supervisor/gate"
	"sparkrun/supervisor/runlog"
)

// preflight checks the machine and tells the loop what came of it.
func (r *run) preflight(ctx context.Context) {
	defer close(r.checked)
	r.log.Event(event.Event{Kind: event.RunStart, Level: event.Info, Msg: "run folder " + r.dir.Path, Data: map[string]any{"id": r.dir.ID, "dir": r.dir.Path}})
	if r.dir.Note != "" {
		r.log.Event(event.Event{Kind: event.RunStart, Level: event.Warn, Msg: r.dir.Note})
	}
	var rep preflight.Report
	if r.o.NoPreflight {
		rep = preflight.Skipped("/", "--no-preflight")
	} else {
		// A copy: a look that is left behind on a dead mount must not share what the loop
		// goes on with.
		j := r.job
		j.Knobs = j.Knobs.Clone()
		in := preflightInput(r.set, &j, r.o, r.device)
		in.FirstStep = firstStep(r.o, r.set, r.lad, j)
		in.LookLimit = lookLimit
		in.SwapBefore = r.swapBefore
		in.ModelRead = r.modelRead
		rep = preflight.Run(ctx, in).Redacted(r.secrets.Text)
	}
	r.writeReport(rep)
	if r.o.NoPreflight {
		r.measureModel(lookLimit)
	}
	if r.looked == nil {
		r.looked = r.look(r.job)
	}
	if r.o.NoPreflight {
		r.post(Input{Kind: PreflightOK}, r.announce)
		return
	}
	for _, f := range rep.Blocking() {
		r.log.Event(event.Event{Kind: event.PreflightFinding, Level: event.Error, Msg: findingWords(f), Data: map[string]any{"id": f.ID, "status": f.Status, "fix": f.Fix}})
	}
	if n := len(rep.Hints()); n > 0 {
		r.log.Event(event.Event{Kind: event.PreflightFinding, Level: event.Info, Msg: hintWords(n, r.o.Prog, rep.Hints()), Data: map[string]any{"hints": n}})
	}
	for _, f := range rep.Warnings() {
		r.log.Event(event.Event{Kind: event.PreflightFinding, Level: event.Warn, Msg: findingWords(f), Data: map[string]any{"id": f.ID, "status": f.Status, "fix": f.Fix}})
	}
	stop := ""
	switch {
	case rep.Verdict == preflight.Blocked && !r.o.Force:
		stop = "blocked by preflight"
	case rep.Verdict == preflight.ReadyWithWarnings && r.o.Strict && !r.o.Force:
		stop = "stopped by --strict on preflight warnings"
	}
	if stop != "" {
		if fs := append(rep.Blocking(), rep.Warnings()...); len(fs) > 0 {
			fix := fs[0].Fix
			r.post(Input{Kind: PreflightStop, Reason: stop}, func() { r.advice = []string{fix} })
			return
		}
		r.post(Input{Kind: PreflightStop, Reason: stop}, nil)
		return
	}
	r.post(Input{Kind: PreflightOK}, r.announce)
}

func (r *run) writeReport(rep preflight.Report) {
	b, err := ReportJSON(rep)
	if err == nil {
		err = WriteReport(r.dir.File("env-report.json"), b)
	}
	if err != nil {
		r.log.Event(event.Event{Kind: event.Internal, Level: event.Error, Msg: "env-report.json: " + err.Error()})
	}
}

func findingWords(f preflight.Finding) string {
	s := fmt.Sprintf("%s %s: %s", f.ID, f.Status, f.Detail)
	if f.Fix != "" {
		s += "; fix: " + strings.ReplaceAll(f.Fix, "\n", "; ")
	}
	return s
}

// hintWords is the one line about advice that does not concern this run alone.
func hintWords(n int, prog string, hints []preflight.Finding) string {
	var ids []string
	for _, f := range hints {
		ids = append(ids, f.ID)
	}
	s := "s"
	if n == 1 {
		s = ""
	}
	return fmt.Sprintf("%d host hint%s (%s): %s preflight -- COMMAND", n, s, strings.Join(ids, ", "), prog)
}

// meetGPU waits for the sensors process to say which GPU there is, and passes it
// on to whoever needs it: rules that describe one platform, and run.json.
func (r *run) meetGPU(ctx context.Context) {
	dev, err := r.samp.Device(ctx)
	if err != nil {
		return // the sampler has told it
	}
	r.mu.Lock()
	r.detector.Device(dev)
	r.found.gpu, r.found.driver = dev.Name, dev.DriverVersion
	r.mu.Unlock()
	if _, ok := r.samp.First(ctx); ok {
		held := gate.GPUSizes(r.gpuHolders())
		r.mu.Lock()
		r.gpuHeld = held
		r.mu.Unlock()
	}
}

// device asks the sampler for the GPU.
func (r *run) device(ctx context.Context) (sample.Device, sample.GPU, error) {
	if r.samp == nil {
		return sample.Device{}, sample.GPU{}, errors.New("the sampler did not start")
	}
	dev, err := r.samp.Device(ctx)
	if err != nil {
		return dev, sample.GPU{}, err
	}
	if dev.Source == "none" {
		return dev, sample.GPU{}, nil
	}
	gpu, _ := r.samp.First(ctx)
	return dev, gpu, nil
}

// lookLimit bounds one look of a check on the way to a run: all of preflight has 300 ms
// there (CONTRACTS section 10). The driver alone may take longer, since a warning that it
// hangs must not come from a driver that is merely waking up.
const lookLimit = 250 * time.Millisecond

// preflightInput is what the checks of this machine are given. set is nil where there is
// no command.
func preflightInput(set *trainer.Set, j *job.Job, o Options, device func(context.Context) (sample.Device, sample.GPU, error)) preflight.Input {
	var uts unix.Utsname
	machine := runtime.GOARCH
	if unix.Uname(&uts) == nil {
		machine = unix.ByteSliceToString(uts.Machine[:])
	}
	if j != nil && j.Inner != nil {
		j = j.Inner // what the shell script starts
	}
	in := preflight.Input{
		Job: j, Getenv: func(n string) string { return lookupEnv(o.Env, n) }, Root: "/", Device: device, Machine: machine,
		OwnPIDs: []int{os.Getpid()}, NoDrop: o.DropCaches == "never",
	}
	if j != nil {
		in.Images = imagesOf(set, o, j)
		in.ModelPath = func() string { return modelFolder(set, *j, j.Knobs[job.Model].Value) }
	}
	return in
}

// PreflightOptions are the settings of `sparkrun preflight`.
type PreflightOptions struct {
	// Root is a recorded tree to look at in place of this machine; empty for this one.
	Root string
	// Watch is how long the GPU is observed (G4), every Step; zero does not.
	Watch, Step time.Duration
	// Bandwidth measures the memory bandwidth (G5).
	Bandwidth bool
	// Torch imports the command's torch and asks it for the GPU (H19).
	Torch bool
	// ProbeImage starts the command's image once to read what is in it (G1, G9).
	ProbeImage bool
	// Show is told what is being done, for a terminal; nil tells nobody.
	Show func(string)
}

const (
	// aloneLimit bounds a preflight without opt-in checks.
	aloneLimit = 5 * time.Second
	// understandLimit bounds the reading of the command's own files, and of a tree's.
	understandLimit = 5 * time.Second
	// endedLimit is what is left for one reading after a signal: all ends within a second.
	endedLimit = 400 * time.Millisecond
)

// PreflightAlone is `sparkrun preflight`: the checks without a run.
func PreflightAlone(ctx context.Context, o Options, po PreflightOptions) (preflight.Report, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	if po.Show == nil {
		po.Show = func(string) {}
	}
	swapBefore := preflight.ReadSwap()
	device := func(ctx context.Context) (sample.Device, sample.GPU, error) { return sampler.Probe(ctx, o.Exe) }
	var recorded *preflight.Recorded
	if po.Root != "" {
		var err error
		if recorded, err = answered(ctx, "--root "+po.Root, func() (*preflight.Recorded, error) { return preflight.ReadRecorded(po.Root) }); err != nil {
			var se *StatusErr
			if errors.As(err, &se) {
				return preflight.Report{}, err
			}
			return preflight.Report{}, failf(StatusError, "--root %s: %w", po.Root, err)
		}
		if po.Watch > 0 || po.Bandwidth || po.ProbeImage || po.Torch {
			return preflight.Report{}, failf(StatusError, "--root looks at a recorded tree: --watch, --bandwidth, --torch and --probe-image need the machine itself")
		}
		device, o.Env, o.root = recorded.Ask, recorded.Environ(), po.Root
	}
	r, err := understood(ctx, o)
	if err != nil {
		return preflight.Report{}, err
	}
	in := preflightInput(nil, nil, o, device)
	if r != nil {
		in = preflightInput(r.set, &r.job, o, device)
		in.FirstStep = firstStep(o, r.set, r.lad, r.job)
		if recorded == nil {
			if in.CannotStart, err = cannotStart(ctx, o); err != nil {
				return preflight.Report{}, err
			}
			in.Program, in.Slip = o.Argv[0], in.Job.Slip
		}
	}
	in.SwapBefore = swapBefore
	if recorded != nil {
		if r != nil {
			showBorrowed(po, r.job)
		}
		in.Root, in.Recorded, in.Machine, in.Now = po.Root, recorded, recorded.Machine, recorded.Time
		in.Images, in.ModelPath, in.OwnPIDs = nil, nil, nil
	}
	if po.ProbeImage && (r == nil || r.job.Container == nil) {
		return preflight.Report{}, failf(StatusError, "--probe-image looks into the image of a command, and the command starts no container")
	}
	askMore(ctx, &in, o, po)
	if recorded == nil && preflight.Skipped("/", "").Platform == preflight.DGXSpark {
		in.Playbooks = RefreshPlaybooksBeside(o)
	}
	// What Ctrl-C ended is judged all the same, by what can still be read at once.
	if ctx.Err() != nil {
		in.Limit = endedLimit
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aloneLimit)
	defer cancel()
	return preflight.Run(ctx, in).Redacted(runlog.NewRedactor(o.Env).Text), nil
}

// cannotStart says why a run of the command would end before anything is started; "" where
// it would not.
func cannotStart(ctx context.Context, o Options) (string, error) {
	return answered(ctx, "the command's program", func() (string, error) {
		_, err := lookCommand(o.Argv[0], o.Dir, o.Env)
		if err == nil {
			return "", nil
		}
		return strings.TrimSuffix(err.Error(), "; nothing was started"), nil
	})
}

// askMore does what is done only when it is asked for. What a signal ended, or kept from
// being begun, is told.
func askMore(ctx context.Context, in *preflight.Input, o Options, po PreflightOptions) {
	step := func(wanted bool, what, finding string, do, interrupted func()) {
		if !wanted {
			return
		}
		if ctx.Err() == nil {
			po.Show(what)
			do()
		}
		if ctx.Err() != nil {
			po.Show("interrupted: " + finding)
			interrupted()
		}
	}
	step(po.ProbeImage, "starting the image once, without network and GPU, to read which packages it has", "what the image has is not known (G9)", func() {
		if _, err := ProbeImage(ctx, o); err != nil {
			in.ProbeProblem = err.Error()
		}
	}, func() { in.ProbeProblem = preflight.Interrupted })
	if po.Watch > 0 {
		in.Observed = WatchGPU(ctx, o, po.Watch, po.Step, po.Show)
	}
	step(po.Torch, "importing the command's torch to ask it for the GPU", "what torch says is not known (H19)", func() {
		in.Torch = AskTorch(ctx, *in, o.Env)
	}, func() {
		if in.Torch == nil || in.Torch.Refused != "" {
			in.Torch = &preflight.TorchAnswer{Refused: preflight.Interrupted}
		}
	})
	step(po.Bandwidth, "measuring the memory bandwidth", "there is no figure (G5)", func() {
		in.Bandwidth = MeasureBandwidth(ctx, *in, o.Env)
	}, func() {
		if in.Bandwidth == nil || in.Bandwidth.Refused != "" {
			in.Bandwidth = &preflight.Bandwidth{Refused: preflight.Interrupted}
		}
	})
}

// showBorrowed says which files of the command are this machine's, since the recorded tree
// has none of that name.
func showBorrowed(po PreflightOptions, j job.Job) {
	var files []string
	for at := &j; at != nil; at = at.Inner {
		for path := range at.Read {
			if treefs.Of(po.Root).For(path).Live() {
				files = append(files, path)
			}
		}
	}
	if slices.Sort(files); len(files) > 0 {
		po.Show("--root: read from this machine, since the tree does not have it: " + strings.Join(files, ", "))
	}
}

// understood is the command as a run would understand it, with the ladder it would go
// down; nil where there is none. A file of the command's that does not answer is waited
// for no longer than understandLimit.
func understood(ctx context.Context, o Options) (*run, error) {
	if len(o.Argv) == 0 {
		return nil, nil
	}
	return answered(ctx, "the command's program, script or settings", func() (*run, error) {
		r := &run{o: o}
		return r, r.understandCommand()
	})
}

// answered returns what f returns, or an error when that has not come within
// understandLimit or before ctx is done. f is left behind then.
func answered[T any](ctx context.Context, what string, f func() (T, error)) (v T, err error) {
	type answer struct {
		v   T
		err error
	}
	got := make(chan answer, 1)
	go func() {
		v, err := f()
		got <- answer{v, err}
	}()
	late := time.NewTimer(understandLimit)
	defer late.Stop()
	select {
	case a := <-got:
		return a.v, a.err
	case <-late.C:
		return v, failf(StatusError, "%s gave no answer within %g s: on a mount whose server is gone?", what, understandLimit.Seconds())
	case <-ctx.Done():
		return v, failf(StatusError, "interrupted before %s had been read", what)
	}
}

// ReportJSON is env-report.json.
func ReportJSON(r preflight.Report) ([]byte, error) { return r.JSON(time.Now()) }

// WriteReport writes env-report.json atomically.
func WriteReport(path string, data []byte) error { return preflight.WriteReport(path, data) }

// announce says at the start what may be done later, so that nobody reads it
// for the first time in the morning.
func (r *run) announce() {
	msg := r.lad.Forecast(r.job, r.situation(nil))
	if why := r.noRetry(); why != "" {
		msg = "no retries: " + why
	}
	if r.o.NoRetry {
		msg = "no retries (--no-retry); a death gets its verdict all the same"
	}
	if msg != "" {
		r.log.Event(event.Event{Kind: event.RungAnnounce, Level: event.Info, Msg: msg})
	}
	for _, n := range r.job.Notes {
		r.log.Event(event.Event{Kind: event.RungAnnounce, Level: event.Info, Msg: n})
	}
}
