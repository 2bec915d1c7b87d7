package throttle

import (
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// training plays a job: it makes steps one after the other, prints a line every
// so many of them, and is sampled at an interval.
type training struct {
	// step is how long step i, begun s seconds into the run, takes.
	step func(i int, s float64) float64
	// tokens are those of step i; nil where they are not told.
	tokens func(i int) float64
	// told is how tokens are printed; nil prints all digits.
	told func(float64) float64
	// print is after how many steps a line comes, 0 for each.
	print int
	// every is the sampling interval in seconds, 0 for one.
	every float64
	// around changes each sample; before is called with the detector before it.
	around func(s float64, x *sample.Sample)
	before func(s float64, d *Detector)
	// smooth rounds step times as a bar does.
	smooth bool
}

// play runs the job for so many seconds, to its end.
func (j training) play(d *Detector, length float64) []event.Event {
	return append(j.open(d, length), d.Finish(at(length))...)
}

// open runs the job for so many seconds.
func (j training) open(d *Detector, length float64) []event.Event {
	every, lines := max(j.every, 0), max(j.print, 1)
	if every == 0 {
		every = 1
	}
	var (
		out             []event.Event
		i               int     // finished
		ends            float64 // of the step under way
		printed         int
		printedAt       = 0.0
		stepS           sample.Num
		tokens, counted float64
		x               sample.Sample
		k               = sample.Known
		tokensKnown     = j.tokens != nil
		wasPrinted      = 0
	)
	ends = j.step(0, 0)
	for s := 0.0; s <= length; s += every {
		for ends <= s {
			if tokensKnown {
				tokens += j.tokens(i)
			}
			i++
			if i%lines == 0 {
				if wasPrinted > 0 {
					v := (ends - printedAt) / float64(i-wasPrinted)
					if j.smooth {
						v = math.Round(v*100) / 100
					}
					stepS = k(v)
				}
				printed, printedAt, wasPrinted, counted = i, ends, i, tokens
			}
			ends += j.step(i, ends)
		}
		x = *healthy(s)
		x.MemTotalKiB, x.MemAvailableKiB = k(125e6), k(60e6)
		x.PSIMemSome10, x.PSIIOFull10, x.PSICPUSome10 = k(0), k(0.2), k(1)
		x.SwapInPages, x.SwapOutPages = k(1000), k(2000)
		x.GPUOtherMiB, x.GPUTreeMiB = k(0), k(40000)
		x.Processes = []sample.GPUProcess{{PID: 100, UsedMiB: k(40000)}}
		x.TreeCPUS, x.TreeReadB, x.TreeNetB = k(s), k(1e5*s), k(1e3*s)
		if printed > 0 {
			x.Step, x.StepTimeS = k(float64(printed)), stepS
			if tokensKnown {
				v := counted
				if j.told != nil {
					v = j.told(v)
				}
				x.Tokens = k(v)
			}
		}
		if j.around != nil {
			j.around(s, &x)
		}
		if j.before != nil {
			j.before(s, d)
		}
		out = append(out, d.Sample(&x)...)
	}
	return out
}

// constant is a job of even steps.
func constant(s float64) func(int, float64) float64 { return func(int, float64) float64 { return s } }

// jitter scatters step times around s, lognormal, by that part.
func jitter(s, part float64, seed uint64) func(int, float64) float64 {
	rng := rand.New(rand.NewPCG(seed, 7))
	return func(int, float64) float64 { return s * math.Exp(part*rng.NormFloat64()-part*part/2) }
}

// slower makes steps longer by a factor between two times.
func (j training) slower(factor, from, to float64) training {
	was := j.step
	j.step = func(i int, s float64) float64 {
		if s >= from && s < to {
			return factor * was(i, s)
		}
		return was(i, s)
	}
	return j
}

// ofPace are the events about pace.
func ofPace(events []event.Event) []event.Event {
	var out []event.Event
	for _, e := range events {
		if typ := e.Data["type"]; typ == Slowdown || typ == SlowStart {
			out = append(out, e)
		}
	}
	return out
}

// notOfPace are all but those.
func notOfPace(events []event.Event) []event.Event {
	var out []event.Event
	for _, e := range events {
		if len(ofPace([]event.Event{e})) == 0 {
			out = append(out, e)
		}
	}
	return out
}

// labels are what happened, in order.
func labels(events []event.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, e.Label)
	}
	return strings.Join(out, ", ")
}

const once = Slowdown + " start, " + Slowdown + " end"

func sinceOf(e event.Event) float64 {
	t, err := time.Parse(time.RFC3339, e.Data["since"].(string))
	if err != nil {
		return math.NaN()
	}
	return t.Sub(t0).Seconds()
}
