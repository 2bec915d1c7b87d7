package throttle

import (
	"math"
	"slices"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// History is the pace of this machine's earlier runs of the same job.
type History struct {
	// Known is false where there is no earlier run to compare with.
	Known bool
	// StepTimeS is the median seconds of a step, TokensPerS the median rate.
	StepTimeS, TokensPerS sample.Num
	// SlowStepTimeS and SlowTokensPerS are the pace of the slowest fifth of those
	// runs, where there are enough of them to tell: what is no slower is not slow.
	SlowStepTimeS, SlowTokensPerS sample.Num
	// Runs is how many runs they come from, From the newest of them.
	Runs int
	From string
}

// SetHistory gives the pace of earlier runs to compare the next attempt's first
// steps with. It is called before they are made; a comparison that was made is not
// made again.
func (d *Detector) SetHistory(h History) { d.slow.history = h }

// firstSteps follows the first steps of an attempt until they can be compared.
type firstSteps struct {
	made float64 // steps, undisturbed ones
	// steps are the latest ones; they are let go once compared. look is how many
	// there must be for the next look at them.
	steps []firstStep
	look  int
	sum   firstStep
	// tokens in tokenSec seconds, printed by grain.
	tokens, tokenSec, grain float64
	rate                    sample.Num
	compared                string
}

// firstStep is n steps that took sec seconds.
type firstStep struct{ n, sec float64 }

// firstMost is how many step times are looked at before what is too close to tell
// is taken for normal.
const firstMost = 512

// count takes tokens and the seconds of their steps.
func (f *firstSteps) count(tokens, sec, grain float64) {
	if f.compared != "" || len(f.steps) == 0 {
		return
	}
	if f.grain == 0 || grain < f.grain {
		f.grain = grain
	}
	f.tokens += tokens
	f.tokenSec += sec
	if f.tokens >= tokenGrains*f.grain && f.tokenSec > 0 {
		f.rate = sample.Known(f.tokens / f.tokenSec)
	}
}

// again starts to gather anew.
func (f *firstSteps) again() {
	f.steps, f.look, f.sum = f.steps[:0], 0, firstStep{}
	f.tokens, f.tokenSec, f.grain, f.rate = 0, 0, 0, sample.Num{}
}

// steadySteps says whether the two halves of what was gathered go at one pace, and
// how far the mean over it may be off, as a part of it.
func (f *firstSteps) steadySteps() (steady bool, off float64) {
	per := make([]float64, len(f.steps))
	for i, s := range f.steps {
		per[i] = s.sec / s.n
	}
	half := len(per) / 2
	a, b := median(per[:half]), median(per[half:])
	all := median(per)
	if all <= 0 {
		return false, 0
	}
	far := make([]float64, len(per))
	for i, v := range per {
		far[i] = math.Abs(v - all)
	}
	sd := 1.4826 * median(far) / all
	off = sd / math.Sqrt(float64(len(per)))
	return math.Abs(a-b) <= all*max(0.05, 4*off), off
}

// judgeStart compares the first steady steps with those of earlier runs.
func (d *Detector) judgeStart(out *[]event.Event, s *sample.Sample, r reading, n, sec float64) {
	c := &d.slow.course
	f := &c.first
	cfg := d.cfg.SlowStart
	if f.compared != "" || f.made <= float64(cfg.SettleSteps) {
		return
	}
	f.steps = append(f.steps, firstStep{n, sec})
	f.sum.n += n
	f.sum.sec += sec
	if len(f.steps) < max(2*blockTimes, f.look) || f.sum.n < float64(cfg.Steps) || f.sum.sec < float64(d.cfg.Slowdown.WindowS)/2 {
		return
	}
	steady, off := f.steadySteps()
	if !steady {
		f.again()
		return
	}
	f.look = len(f.steps) + len(f.steps)/2
	h := d.slow.history
	speed, slowest, byToken := h.speed(f)
	limit := float64(cfg.Speed)
	switch {
	case !speed.OK:
		f.compared = ComparedNone
	case speed.V >= limit || slowest.OK && slowest.V >= 1:
		f.compared = ComparedNormal
	case speed.V*(1+2*off) >= limit && len(f.steps) < firstMost:
		return // too close to tell: more steps decide
	case speed.V*(1+2*off) >= limit:
		f.compared = ComparedNormal
	default:
		f.compared = ComparedSlow
		d.beginStart(out, s, r, 1/speed.V, byToken)
	}
	f.steps = nil
}

// speed is how fast the gathered steps are as a part of the earlier runs' speed,
// slowest the same against the slowest of them.
func (h History) speed(f *firstSteps) (speed, slowest sample.Num, byToken bool) {
	if !h.Known {
		return speed, slowest, false
	}
	if f.rate.OK && h.TokensPerS.OK && h.TokensPerS.V > 0 {
		speed = sample.Known(f.rate.V / h.TokensPerS.V)
		if h.SlowTokensPerS.OK && h.SlowTokensPerS.V > 0 {
			slowest = sample.Known(f.rate.V / h.SlowTokensPerS.V)
		}
		return speed, slowest, true
	}
	per := f.sum.sec / f.sum.n
	if h.StepTimeS.OK && h.StepTimeS.V > 0 && per > 0 {
		speed = sample.Known(h.StepTimeS.V / per)
		if h.SlowStepTimeS.OK {
			slowest = sample.Known(h.SlowStepTimeS.V / per)
		}
	}
	return speed, slowest, false
}

// beginStart tells a slow start.
func (d *Detector) beginStart(out *[]event.Event, s *sample.Sample, r reading, ratio float64, byToken bool) {
	c := &d.slow.course
	h := d.slow.history
	sum := c.first.sum
	e := &paceEpisode{
		typ: SlowStart, id: episodeID(SlowStart, s.T), attempt: d.attempt, until: s.T,
		since: s.T.Add(-seconds(Limit(sum.sec))),
		base:  h.StepTimeS, baseTokens: h.TokensPerS, byToken: byToken,
		runs: h.Runs, from: h.From,
	}
	e.steps, e.sec, e.want, e.now, e.worst = sum.n, sum.sec, sum.sec/ratio, ratio, ratio
	// Nothing earlier of this attempt to compare with: only what is plain by itself.
	none := environment{}
	none.gauge[gGPUOther] = mean{0, 1}
	e.told = clue{now: &c.cur.env, base: &none, others: c.procs, names: d.Names, noMarks: true}.find(d.cfg.Slowdown)
	e.level = event.Warn
	if c.warned[e.told.cause] {
		e.level = event.Info
	}
	c.start = e
	*out = append(*out, e.startEvent(r))
}

// goOnStart takes a block into an open slow start.
func (d *Detector) goOnStart(out *[]event.Event, s *sample.Sample, k *block) {
	c := &d.slow.course
	e := c.start
	ratio := 0.0
	switch {
	case e.byToken && k.perToken() > 0:
		ratio = k.perToken() * e.baseTokens.V
	case !e.byToken && e.base.OK:
		ratio = k.perStep() / e.base.V
	}
	if ratio <= 0 {
		return
	}
	// Half-way back is back: on the edge it would come and go.
	if limit := (1/float64(d.cfg.SlowStart.Speed) + 1) / 2; ratio < limit {
		e.wait(k, ratio, k.all()/ratio)
		if e.good >= 2 && s.T.Sub(e.until) >= seconds(d.cfg.Slowdown.QuietS) {
			d.endStart(out, s.T, EndedRecovered)
		}
		return
	}
	e.resume()
	e.add(k, ratio, k.all()/ratio)
	e.until = s.T
}

func (d *Detector) endStart(out *[]event.Event, t time.Time, how string) {
	c := &d.slow.course
	e := c.start
	c.start = nil
	d.slow.count(e)
	*out = append(*out, e.endEvent(t, how))
}

// slowFifthMost bounds by how many times the slowest fifth of earlier runs may be
// slower than their median: beyond that those were bad runs, and no measure. (Own
// choice.)
const slowFifthMost = 1.5

// HistoryOf returns the pace that runs had, the newest last: their medians (the faster
// one of two in the middle), and the slowest fifth where there are at least five.
// Figures that are not known are left out.
func HistoryOf(stepTimesS, tokensPerS []float64, from string) History {
	h := History{Runs: max(len(stepTimesS), len(tokensPerS)), From: from}
	if n := len(stepTimesS); n > 0 {
		sorted := slices.Sorted(slices.Values(stepTimesS))
		h.StepTimeS = sample.Known(sorted[(n-1)/2])
		if n >= 5 {
			h.SlowStepTimeS = sample.Known(min(sorted[n-1-n/5], slowFifthMost*h.StepTimeS.V))
		}
	}
	if n := len(tokensPerS); n > 0 {
		sorted := slices.Sorted(slices.Values(tokensPerS))
		h.TokensPerS = sample.Known(sorted[n/2])
		if n >= 5 {
			h.SlowTokensPerS = sample.Known(max(sorted[n/5], h.TokensPerS.V/slowFifthMost))
		}
	}
	h.Known = h.StepTimeS.OK || h.TokensPerS.OK
	return h
}
