package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/preflight"
	"sparkrun/sampler"
	"sparkrun/supervisor/gate"
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
		rep = preflightReport(ctx, &r.job, r.o, r.device)
	}
	r.writeReport(rep)
	r.measureModel()
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
	for _, f := range rep.Warnings() {
		r.log.Event(event.Event{Kind: event.PreflightFinding, Level: event.Warn, Msg: findingWords(f), Data: map[string]any{"id": f.ID, "status": f.Status, "fix": f.Fix}})
	}
	stop := ""
	switch {
	case rep.Verdict == preflight.Blocked && !r.o.Force:
		stop = "preflight says blocked (--force starts all the same)"
	case rep.Verdict == preflight.ReadyWithWarnings && r.o.Strict && !r.o.Force:
		stop = "preflight has warnings and --strict was given"
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

func preflightReport(ctx context.Context, j *job.Job, o Options, device func(context.Context) (sample.Device, sample.GPU, error)) preflight.Report {
	var uts unix.Utsname
	machine := runtime.GOARCH
	if unix.Uname(&uts) == nil {
		machine = unix.ByteSliceToString(uts.Machine[:])
	}
	return preflight.Run(ctx, preflight.Input{
		Job: j, Getenv: func(n string) string { return lookupEnv(o.Env, n) }, Root: "/", Device: device, Machine: machine,
	})
}

// PreflightAlone is `sparkrun preflight`: the checks without a run.
func PreflightAlone(ctx context.Context, o Options) (preflight.Report, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var j *job.Job
	if len(o.Argv) > 0 {
		set, err := loadProfiles(o)
		if err != nil {
			return preflight.Report{}, err
		}
		got, err := set.Understand(o.Argv, o.Dir, o.Env, o.Knobs)
		if err != nil {
			return preflight.Report{}, failf(StatusError, "%w", err)
		}
		j = &got
	}
	return preflightReport(ctx, j, o, func(ctx context.Context) (sample.Device, sample.GPU, error) {
		return sampler.Probe(ctx, o.Exe)
	}), nil
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
