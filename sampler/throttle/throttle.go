// Package throttle turns samples and step times into events about heat, power
// and pace, in separate words for separate things: power-cap (the platform's
// own limit, no fault), thermal-throttle (the GPU slows itself because of heat),
// hw-brake (the hardware slows it for another reason), power-wedge (the low-power
// state that only pulling the plug cures), low-cap (a lower limit than the
// platform's: a weak adapter, a clock lock), hot (close to where machines turned
// themselves off); and slow-start and slowdown for the pace.
//
// It is pure: no clock, no file, no goroutine. Samples come in time order, and
// each event carries the time of the sample that decided it, so that it can be
// found in telemetry.csv and lands within run.log's reorder window. Where the
// condition began earlier, data.since says when.
//
// A reading that is unknown starts nothing and ends nothing by itself; only when
// nothing has been known for Config.GapS, or for the type's own QuietS where that is
// longer, does an open episode end, as "unknown".
package throttle

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// The types of episode about heat and power, as data.type spells them.
const (
	PowerCap        = "power-cap"
	ThermalThrottle = "thermal-throttle"
	HWBrake         = "hw-brake"
	PowerWedge      = "power-wedge"
	LowCap          = "low-cap"
	Hot             = "hot"
)

// How an episode ended, as data.ended of the end event.
const (
	EndedQuiet     = "quiet"         // no sign of it for the merge window, or the type's own quiet time
	EndedRecovered = "recovered"     // the GPU was seen working normally
	EndedUnknown   = "unknown"       // readings stopped coming
	EndedAttempt   = "attempt-ended" // the next attempt began
	EndedRun       = "run-ended"     // Finish was called
)

// Detector follows one run. Its zero value is not usable; see New. It is not
// safe for use by several goroutines at once.
type Detector struct {
	cfg Config
	// otherGPU: it is known not to be a platform of Config.Platforms.
	otherGPU bool

	attempt int
	last    time.Time     // time of the last sample
	known   time.Time     // time of the last sample with a GPU reading
	gpuT    time.Duration // GPU.T of that reading
	spacing spacing
	// clockCap is our own limit of the SM clock in MHz, zero for none.
	clockCap float64

	pulses  pulseRule
	sign    signatureRule
	wedge   wedgeRule
	lowCap  lowCapRule
	plateau capRule
	dieHot  held // hot by the die alone
	pace    pace
	// paceFrom is when the first step was taken for the attempt's own pace.
	paceFrom time.Time
	backlog  backlog
	lone     loneSteps
	// slow follows the pace: slow-start and slowdown. Names tells whose another
	// process on the GPU is; see its type.
	slow  slowness
	Names NamesFunc

	// steps is the attempt's latest step, which each event tells.
	steps lastStep

	open map[string]*episode
	told map[string]*telling
	// news is when what came after a gap was last told as news, by type.
	news map[string]time.Time
	// sum holds the closed episodes, throttledS and cost the open ones as well; heldNow
	// is what of throttledS the present sample has added.
	sum                 Summary
	throttledS, heldNow float64
	cost                cost
}

// Summary is what the whole run so far amounts to.
type Summary struct {
	// ByType has an entry for each type that occurred.
	ByType map[string]TypeSummary
	// LostS is the training time lost to throttling in seconds, from step times
	// against the same attempt's own pace; unknown when no pace was known.
	LostS sample.Num
	// ThrottledShare is the part of the observed time, 0 to 1, in which the GPU
	// was held back, whatever by. The platform's power cap does not count, and being
	// hot alone neither. Unknown when nothing was observed.
	ThrottledShare sample.Num
	// ObservedS is for how many seconds the GPU's state was known.
	ObservedS float64
	// Pace is this attempt's own pace, the last one's at the end.
	Pace PaceSummary
}

// TypeSummary adds up the episodes of one type, the open one included.
type TypeSummary struct {
	Episodes int
	// Seconds is the length of the episodes, ThrottledS the part of it in which
	// the GPU was really held back (pulses are shorter than their episode).
	Seconds    float64
	ThrottledS float64
	// LostS and LostSteps are what the episodes cost against the attempt's own pace;
	// unknown where no pace was known.
	LostS, LostSteps sample.Num
	// Pulses counts the separate times the GPU said so.
	Pulses int
	// WorstTempC is the hottest of the GPU's die, WorstZoneC of the machine's zones.
	WorstTempC, WorstZoneC sample.Num
}

// New returns a detector for one run.
func New(cfg Config) *Detector {
	d := &Detector{cfg: cfg, open: make(map[string]*episode), told: make(map[string]*telling), news: make(map[string]time.Time)}
	d.sum.ByType = make(map[string]TypeSummary)
	d.reset()
	return d
}

// reset forgets what belongs to one attempt: its plateau and its pace. The
// counters are the driver's and go on.
func (d *Detector) reset() {
	d.sign = newSignatureRule(d.cfg)
	d.wedge = newWedgeRule(d.cfg)
	d.steps = lastStep{}
	d.lowCap = newLowCapRule(d.cfg)
	d.paceFrom = time.Time{}
	clear(d.told)
	clear(d.news)
	d.plateau = newCapRule(d.cfg)
	d.pace = pace{}
	d.backlog = nil
	d.lone = loneSteps{heldS: d.throttledS}
}

// Device tells the detector which GPU it is. Rules that describe one platform
// (power-cap, power-wedge and low-cap) are left out on other GPUs. Without this call, or
// without a name, they apply.
func (d *Detector) Device(dev sample.Device) {
	if dev.Name == "" {
		return
	}
	d.otherGPU = true
	for _, word := range d.cfg.Platforms {
		if strings.Contains(dev.Name, word) {
			d.otherGPU = false
		}
	}
}

// SetClockCap tells the detector that we ourselves limit the SM clock to mhz, or no
// longer do (zero). Clocks at our own limit are no wedge and no low-cap, and power
// that falls with them is no sign of heat.
func (d *Detector) SetClockCap(mhz float64) {
	mhz = finite(sample.Known(mhz)).V
	if mhz == d.clockCap {
		return
	}
	d.clockCap = max(0, mhz)
	d.sign = newSignatureRule(d.cfg)
}

// Sample takes the next sample and returns the events it decides, all with the
// sample's own time. A sample that is not later than the last is ignored.
func (d *Detector) Sample(s *sample.Sample) []event.Event {
	if !d.last.IsZero() && !s.T.After(d.last) {
		return nil
	}
	var out []event.Event
	if s.Attempt != d.attempt {
		out = d.steps.put(d.closeAll(s.T, EndedAttempt))
		d.attempt = s.Attempt
		d.reset()
	}
	if !d.last.IsZero() {
		d.spacing.take(s.T.Sub(d.last))
	}
	d.last, d.heldNow = s.T, 0

	r := d.read(s)
	d.steps.take(r)
	d.observeStep(r)
	d.expire(&out, r)
	p := d.pulses.judge(r, d.cfg, d.gap())
	d.judgeThermal(&out, r, p.thermal)
	d.judgeBrake(&out, r, p.brake)
	if !d.otherGPU {
		d.judgeWedge(&out, r, p)
		d.judgeLowCap(&out, r, p)
		d.judgeCap(&out, r)
	}
	d.judgeHot(&out, r)
	d.update(&out, r)
	d.judgePace(&out, s, r)
	if r.known() {
		if dt := r.t.Sub(d.known); !d.known.IsZero() && dt <= d.gap() {
			d.sum.ObservedS += dt.Seconds()
		}
		d.known = r.t
	}
	return d.steps.put(out)
}

// Finish closes what is still open, at the run's time t or at the last sample's
// where that is later. The detector can go on afterwards.
func (d *Detector) Finish(t time.Time) []event.Event {
	if t.Before(d.last) {
		t = d.last
	}
	return d.steps.put(d.closeAll(t, EndedRun))
}

// Summary returns what the run so far amounts to.
func (d *Detector) Summary() Summary {
	s := d.sum
	s.ByType = maps.Clone(d.sum.ByType)
	for _, e := range d.open {
		s.add(e)
	}
	s.LostS = d.cost.total()
	if s.ObservedS > 0 {
		s.ThrottledShare = sample.Known(min(1, d.throttledS/s.ObservedS))
	}
	d.sumPace(&s)
	return s
}

// add counts one episode in.
func (s *Summary) add(e *episode) {
	t := s.ByType[e.typ]
	t.Episodes++
	// A pulse in a single reading has no length, and held the GPU back all the same.
	t.Seconds += max(e.until.Sub(e.since).Seconds(), e.heldS)
	t.ThrottledS += e.heldS
	t.Pulses += e.pulses
	higher(&t.WorstTempC, e.maxTemp)
	higher(&t.WorstZoneC, e.maxZone)
	if lost := e.lostS(); lost.OK {
		t.LostS = sample.Known(t.LostS.Or(0) + lost.V)
		t.LostSteps = sample.Known(t.LostSteps.Or(0) + lost.V/e.base.V)
	}
	s.ByType[e.typ] = t
}

// gap is how long nothing may be known before it is a gap: GapS, or more where
// somebody looks more seldom.
func (d *Detector) gap() time.Duration { return d.spacing.gap(seconds(d.cfg.GapS)) }

func seconds(l Limit) time.Duration { return time.Duration(float64(l) * float64(time.Second)) }

// types in the order in which their events are written.
var types = []string{ThermalThrottle, HWBrake, PowerWedge, LowCap, PowerCap, Hot}

// costly tells whether an episode of the type holds the GPU back. At the platform's
// own cap the GPU is as fast as it gets, and a hot machine need not be slower.
func costly(typ string) bool { return typ != PowerCap && typ != Hot }

func (d *Detector) newEpisode(typ string, since time.Time, r reading) *episode {
	e := &episode{
		typ: typ, id: typ + "-" + strconv.FormatInt(r.t.UnixMilli(), 10),
		attempt: d.attempt, since: since, until: r.t, known: r.t,
	}
	// A pace that was only ever seen within the episode is none to compare with.
	if d.paceFrom.Before(since) {
		e.base = d.pace.baseline(d.cfg)
	}
	d.open[typ] = e
	return e
}

// hold adds time in which the GPU was held back. Two reasons at once count once.
func (d *Detector) hold(e *episode, s float64) {
	e.heldS += s
	if costly(e.typ) && s > d.heldNow {
		d.throttledS += s - d.heldNow
		d.cost.heldS += s - d.heldNow
		d.heldNow = s
	}
}

// level says how loud an episode is at this point.
func (d *Detector) level(e *episode) event.Level {
	switch e.typ {
	case ThermalThrottle, HWBrake:
		return d.pulseLevel(e)
	case PowerCap:
		return event.Info
	}
	return event.Warn
}

// lostAfter is for how long nothing may be known about a type before what is open ends
// as unknown: the gap, or as long as it may not be seen without being over. Readings
// that drop out for a moment would tell the same state again and again.
func (d *Detector) lostAfter(typ string) time.Duration {
	quiet := time.Duration(0)
	switch typ {
	case PowerWedge:
		quiet = seconds(d.cfg.Wedge.QuietS)
	case LowCap:
		quiet = seconds(d.cfg.LowCap.QuietS)
	case PowerCap:
		quiet = seconds(d.cfg.PowerCap.QuietS)
	case Hot:
		quiet = seconds(d.cfg.Hot.QuietS)
	}
	return max(d.gap(), quiet)
}

// expire ends the episodes that nothing has been known about for too long.
func (d *Detector) expire(out *[]event.Event, r reading) {
	for _, typ := range types {
		if e := d.open[typ]; e != nil && r.t.Sub(e.known) > d.lostAfter(typ) {
			d.end(out, e, r.t, EndedUnknown)
		}
	}
}

func (d *Detector) closeAll(t time.Time, how string) []event.Event {
	var out []event.Event
	d.lone.end(time.Time{}, t, d.throttledS, d.countStep)
	d.closePace(&out, t, how)
	for _, typ := range types {
		if e := d.open[typ]; e != nil {
			d.end(&out, e, t, how)
		}
	}
	d.tellRest(&out, t)
	d.cost.close()
	return out
}

func (d *Detector) end(out *[]event.Event, e *episode, t time.Time, how string) {
	if costly(e.typ) {
		d.lone.end(e.since, t, d.throttledS, d.countStep)
	}
	level := d.level(e)
	if e.typ == Hot {
		level = event.Info // it is over; a wedge may come back
	}
	delete(d.open, e.typ)
	d.sum.add(e)
	d.tellEnd(out, e, t, how, level)
}

// observeStep gives a finished step to the pace, or to what slowed it.
func (d *Detector) observeStep(r reading) {
	n, stepS, ok := d.pace.next(r)
	if !d.slowed() {
		d.cost.close()
	}
	if ok {
		f := finished{n, stepS}
		d.lone.take(f, r.t, d.longFrom(), d.throttledS, d.slow.marked(f, r.t), d.countStep)
	}
}

// slowed tells that something holds the GPU back now.
func (d *Detector) slowed() bool {
	for typ := range d.open {
		if costly(typ) {
			return true
		}
	}
	return false
}

// countStep counts steps that were finished at t.
func (d *Detector) countStep(f finished, t time.Time) {
	n, stepS := f.n, f.stepS
	slowed, base := false, sample.Num{}
	for _, typ := range types {
		if e := d.open[typ]; e != nil && costly(typ) {
			slowed = true
			if !base.OK {
				base = e.base
			}
		}
	}
	d.backlog.take(t, n, stepS, d.pace.baseline(d.cfg), !slowed)
	falling := d.sign.held.on
	if falling {
		d.sign.addSteps(n, stepS, d.pace.baseline(d.cfg), !slowed)
	}
	for _, e := range d.open {
		e.addSteps(n, stepS)
	}
	switch {
	case slowed:
		d.cost.add(n, stepS, base)
	case !falling:
		if d.paceFrom.IsZero() {
			d.paceFrom = t
		}
		d.pace.learn(stepS)
	}
}
