package supervisor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/preflight"
	"sparkrun/sampler"
)

const (
	// watchStep is the runbook's time between two readings of an observation.
	watchStep = 5 * time.Second
	// watchMost is how many readings an observation keeps at most: a longer one is read
	// less often.
	watchMost = 50_000
	// watchSlack is how long the last reading may be late: the sensors process gives a
	// driver up after 1.5 s.
	watchSlack = 2 * time.Second
	// A sensors process that ended is started again after watchAgain, doubling up to
	// watchAgainMost.
	watchAgain     = 500 * time.Millisecond
	watchAgainMost = 30 * time.Second
)

// WatchGPU observes the GPU for d, with a reading every step (zero: every 5 s), and
// returns what it saw; preflight judges it (preflight.Input.Observed). The end of ctx, such
// as Ctrl-C, ends it early. show is told each reading in a few words; nil tells nobody.
//
// It never fails: a driver that hangs, a sensors process that dies and a machine without a
// GPU are told in the result. Where there is no driver to wait for it returns at once.
func WatchGPU(ctx context.Context, o Options, d, step time.Duration, show func(string)) *preflight.Observed {
	if show == nil {
		show = func(string) {}
	}
	if step <= 0 {
		step = watchStep
	}
	step = max(step, d/watchMost)
	w := gpuWatch{show: show, seen: &preflight.Observed{Asked: d, Step: step}}
	show(fmt.Sprintf("observing the GPU for %s, a reading every %s; Ctrl-C ends it, and what was seen until then is judged", watchTime(d), step))

	within, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan sampler.Answer)
	trouble := make(chan error)
	go stream(within, o.Exe, step, answers, trouble)

	start := time.Now()
	over := time.NewTimer(d + step + watchSlack)
	defer over.Stop()
	for {
		select {
		case a := <-answers:
			w.take(a)
			if w.nothingToCome() || w.at+step/2 >= d && len(w.seen.Readings) > 0 {
				return w.end(start)
			}
		case err := <-trouble:
			w.trouble(err)
		case <-over.C:
			return w.end(start)
		case <-ctx.Done():
			w.seen.Interrupted = true
			return w.end(start)
		}
	}
}

// stream keeps a sensors process going until ctx ends.
func stream(ctx context.Context, exe string, step time.Duration, answers chan<- sampler.Answer, trouble chan<- error) {
	again := watchAgain
	for {
		start := time.Now()
		err := sampler.Stream(ctx, exe, step, func(a sampler.Answer) {
			select {
			case answers <- a:
			case <-ctx.Done():
			}
		})
		if ctx.Err() != nil {
			return
		}
		select {
		case trouble <- err:
		case <-ctx.Done():
			return
		}
		if time.Since(start) > watchAgainMost {
			again = watchAgain
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
		again = min(2*again, watchAgainMost)
	}
}

// gpuWatch is an observation under way.
type gpuWatch struct {
	seen *preflight.Observed
	show func(string)
	// first is the time of the first reading on CLOCK_BOOTTIME, at how far the last is
	// behind it.
	first, at time.Duration
	// hangs tells that the driver has not answered at the last reading.
	hangs bool
}

func (w *gpuWatch) take(a sampler.Answer) {
	if !a.Pending {
		w.seen.Device = a.Device
	}
	g := a.GPU
	at := g.T
	if at == 0 {
		at = clock.Boottime()
	}
	if len(w.seen.Readings) == 0 {
		w.first = at
	}
	w.at = at - w.first
	why := g.Failed["nvml"]
	if a.Pending && why == "" {
		why = a.Device.Err
	}
	if w.hangs = why != "" && !g.TempC.OK && !g.PowerW.OK; w.hangs {
		w.show(w.clock() + "  the driver does not answer: " + why)
	} else {
		w.show(w.clock() + "  " + readingWords(g))
	}
	// Who holds memory is asked elsewhere, and 50000 lists of it are much.
	g.Processes = nil
	w.seen.Readings = append(w.seen.Readings, preflight.WatchReading{At: w.at, GPU: g})
}

// nothingToCome tells that there is no driver that could answer later.
func (w *gpuWatch) nothingToCome() bool {
	switch w.seen.Device.ErrKind {
	case "no-library", "no-driver", "no-device":
		return w.seen.Device.Source == "none"
	}
	return false
}

func (w *gpuWatch) trouble(err error) {
	text := err.Error()
	w.show(w.clock() + "  " + text)
	// One that dies over and over is told once.
	if n := len(w.seen.Trouble); n == 0 || w.seen.Trouble[n-1] != text {
		w.seen.Trouble = append(w.seen.Trouble, text)
	}
}

func (w *gpuWatch) end(start time.Time) *preflight.Observed {
	w.seen.Took = time.Since(start)
	return w.seen
}

func (w *gpuWatch) clock() string {
	return fmt.Sprintf("%s of %s", watchTime(w.at), watchTime(w.seen.Asked))
}

// watchTime writes minutes and seconds.
func watchTime(d time.Duration) string {
	s := int(d.Seconds() + 0.5)
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// readingWords is one reading in columns.
func readingWords(g sample.GPU) string {
	var out []string
	for _, v := range []struct {
		n    sample.Num
		form string
	}{{g.TempC, "%3.0f C"}, {g.PowerW, "%5.1f W"}, {g.ClockSMMHz, "%4.0f MHz"}, {g.UtilPct, "%3.0f %%"}} {
		if v.n.OK {
			out = append(out, fmt.Sprintf(v.form, v.n.V))
		}
	}
	if len(out) == 0 {
		return "no reading"
	}
	if bits := sample.Reasons(g.ReasonBits.Or(0)); bits&(sample.ReasonSWThermal|sample.ReasonAnyHardwareStop) != 0 {
		out = append(out, "slows itself: "+strings.Join(preflight.SlowReasons(bits), ", "))
	}
	return strings.Join(out, "  ")
}
