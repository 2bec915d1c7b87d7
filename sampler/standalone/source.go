package standalone

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"sparkrun/sampler"
	"sparkrun/sampler/nvml"
)

const (
	// answerWait is how long the first answer may take: a driver may have to be loaded.
	answerWait = 8 * time.Second
	// The sensors process is started again after restartMin, doubling up to restartMax.
	restartMin = time.Second
	restartMax = time.Minute
	// sayAgain is how soon the same trouble is told again when it comes back.
	sayAgain = 10 * time.Minute
)

// source keeps the sensors process running and passes on what it says.
type source struct {
	answers chan sampler.Answer
	// broken is why there is no sensors process, while await listens.
	broken chan error
	cancel context.CancelFunc
	done   chan struct{}
	note   func(string)
	told   time.Time
}

func newSource(ctx context.Context, exe string, step time.Duration, note func(string)) *source {
	// The source ends with Run and not with the signal: the last row wants a reading.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &source{
		answers: make(chan sampler.Answer), broken: make(chan error, 1),
		cancel: cancel, done: make(chan struct{}), note: note,
	}
	go s.keep(ctx, exe, step)
	return s
}

func (s *source) close() {
	s.cancel()
	<-s.done
}

func (s *source) keep(ctx context.Context, exe string, step time.Duration) {
	defer close(s.done)
	backoff := restartMin
	for {
		began := time.Now()
		heard := false
		err := sampler.Stream(ctx, exe, step, func(a sampler.Answer) {
			if !heard && !s.told.IsZero() {
				s.note("the sensors are read again")
			}
			heard = true
			select {
			case s.answers <- a:
			case <-ctx.Done():
			}
		})
		if ctx.Err() != nil {
			return
		}
		select {
		case s.broken <- err:
		default:
		}
		if s.told.IsZero() || time.Since(s.told) > sayAgain {
			s.told = time.Now()
			s.note(fmt.Sprintf("no readings until it has been started again: %v", err))
		}
		if time.Since(began) > restartMax {
			backoff = restartMin
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, restartMax)
	}
}

// await returns the first answer that has something to write: of the GPU, or with wide of
// any sensor once it is known that there is no GPU.
func (s *source) await(ctx context.Context, wide bool) (sampler.Answer, error) {
	timer := time.NewTimer(answerWait)
	defer timer.Stop()
	var last sampler.Answer
	var broken error
	for {
		select {
		case a := <-s.answers:
			last = a
			switch known, host := gpuAnswers(&a), hostAnswers(&a); {
			case known, wide && host && !a.Pending && a.Device.Source == "none":
				return a, nil
			case !a.Pending && a.Device.Source == "none":
				return a, noSensor(&a, wide)
			}
		case broken = <-s.broken:
		case <-ctx.Done():
			return last, ErrEnded
		case <-timer.C:
			switch {
			case wide && hostAnswers(&last):
				return last, nil
			case last.Device.Source == "" && broken != nil:
				return last, fmt.Errorf("%w: %w", ErrNoSensor, broken)
			case last.Device.Source == "":
				return last, fmt.Errorf("%w: the sensors process has said nothing for %v", ErrNoSensor, answerWait)
			case last.Pending:
				return last, fmt.Errorf("%w: the NVIDIA driver has not answered for %v (does nvidia-smi?)", ErrNoSensor, answerWait)
			}
			return last, fmt.Errorf("%w: the GPU tells neither temperature nor power%s", ErrNoSensor, why(&last))
		}
	}
}

// gpuAnswers says whether there is a figure for a row of the runbook's two columns.
func gpuAnswers(a *sampler.Answer) bool {
	return a.Device.Source != "none" && (a.GPU.TempC.OK || a.GPU.PowerW.OK)
}

// hostAnswers says whether any sensor outside the GPU answered.
func hostAnswers(a *sampler.Answer) bool {
	g := &a.GPU
	return g.ZoneMaxC.OK || g.NVMeC.OK || g.PowerSys.OK || g.CPUMHz.OK || len(g.Zones)+len(g.Chips)+len(g.Powers) > 0
}

// noSensor says why nothing can be read, with the runbook's words where they are true.
func noSensor(a *sampler.Answer, wide bool) error {
	reason := a.Device.Err
	if nvml.Kind(a.Device.ErrKind) == nvml.NoLibrary && os.Getenv(nvml.LibraryEnv) == "" {
		if _, err := exec.LookPath("nvidia-smi"); err != nil {
			reason = "nvidia-smi not found, and " + reason
		}
	}
	hint := ""
	if !wide && hostAnswers(a) {
		hint = "; --wide writes what the other sensors say"
	}
	return fmt.Errorf("%w: %s%s", ErrNoSensor, reason, hint)
}

func why(a *sampler.Answer) string {
	if reason := a.GPU.Failed["nvml"]; reason != "" {
		return ": " + reason
	}
	return ""
}
