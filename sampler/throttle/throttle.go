// Package throttle turns samples and step times into events about heat, power
// and pace, in separate words for separate things: power-cap (the platform's
// own limit, no fault), thermal-throttle (the GPU slows itself because of heat
// or a hardware brake), power-wedge (the low-power state that only pulling the
// plug cures).
//
// It is pure: no clock, no file, no goroutine. Samples come in time order, and
// each event carries the time of the sample that decided it, so that it can be
// found in telemetry.csv and lands within run.log's reorder window. Where the
// condition began earlier, data.since says when.
//
// A reading that is unknown starts nothing and ends nothing by itself; only
// when nothing has been known for Config.GapS does an open episode end, as
// "unknown".
package throttle

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// The types of episode in this version, as data.type spells them.
const (
	PowerCap        = "power-cap"
	ThermalThrottle = "thermal-throttle"
	PowerWedge      = "power-wedge"
)

// How an episode ended, as data.ended of the end event.
const (
	EndedQuiet     = "quiet"         // no sign of it for the merge window
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

	pulses  pulseRule
	sign    signatureRule
	wedge   wedgeRule
	plateau capRule
	pace    pace

	open map[string]*episode
	// sum holds the closed episodes, throttledS the open ones as well.
	sum        Summary
	throttledS float64
}

// Summary is what the whole run so far amounts to.
type Summary struct {
	// ByType has an entry for each type that occurred.
	ByType map[string]TypeSummary
	// LostS is the training time lost to throttling in seconds, from step times
	// against the same attempt's own pace; unknown when no pace was known.
	LostS sample.Num
	// ThrottledShare is the part of the observed time, 0 to 1, in which the GPU
	// was throttled or wedged. Power caps do not count. Unknown when nothing
	// was observed.
	ThrottledShare sample.Num
	// ObservedS is for how many seconds the GPU's state was known.
	ObservedS float64
}

// TypeSummary adds up the episodes of one type, the open one included.
type TypeSummary struct {
	Episodes int
	// Seconds is the length of the episodes, ThrottledS the part of it in which
	// the GPU was really held back (pulses are shorter than their episode).
	Seconds    float64
	ThrottledS float64
	// Pulses counts the separate times the GPU said so.
	Pulses     int
	WorstTempC sample.Num
}

// New returns a detector for one run.
func New(cfg Config) *Detector {
	d := &Detector{cfg: cfg, open: make(map[string]*episode)}
	d.sum.ByType = make(map[string]TypeSummary)
	d.reset()
	return d
}

// reset forgets what belongs to one attempt: its plateau and its pace. The
// counters are the driver's and go on.
func (d *Detector) reset() {
	d.sign = newSignatureRule(d.cfg)
	d.wedge = wedgeRule{}
	d.plateau = newCapRule(d.cfg)
	d.pace = pace{}
}

// Device tells the detector which GPU it is. Rules that describe one platform
// (power-cap and power-wedge) are left out on other GPUs. Without this call, or
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

// Sample takes the next sample and returns the events it decides, all with the
// sample's own time. A sample that is not later than the last is ignored.
func (d *Detector) Sample(s *sample.Sample) []event.Event {
	if !d.last.IsZero() && !s.T.After(d.last) {
		return nil
	}
	var out []event.Event
	if s.Attempt != d.attempt {
		out = d.closeAll(s.T, EndedAttempt)
		d.attempt = s.Attempt
		d.reset()
	}
	d.last = s.T

	r := d.read(s)
	d.observeStep(r)
	d.expire(&out, r)
	p := d.pulses.judge(r, d.cfg)
	d.judgeThermal(&out, r, p)
	if !d.otherGPU {
		d.judgeWedge(&out, r, p)
		d.judgeCap(&out, r)
	}
	if r.known() {
		if dt := r.t.Sub(d.known); !d.known.IsZero() && dt <= d.gap() {
			d.sum.ObservedS += dt.Seconds()
		}
		d.known = r.t
	}
	return out
}

// Finish closes what is still open, at the run's time t or at the last sample's
// where that is later. The detector can go on afterwards.
func (d *Detector) Finish(t time.Time) []event.Event {
	if t.Before(d.last) {
		t = d.last
	}
	return d.closeAll(t, EndedRun)
}

// Summary returns what the run so far amounts to.
func (d *Detector) Summary() Summary {
	s := d.sum
	s.ByType = maps.Clone(d.sum.ByType)
	for _, e := range d.open {
		s.add(e)
	}
	if s.ObservedS > 0 {
		s.ThrottledShare = sample.Known(min(1, d.throttledS/s.ObservedS))
	}
	return s
}

// add counts one episode in.
func (s *Summary) add(e *episode) {
	t := s.ByType[e.typ]
	t.Episodes++
	t.Seconds += e.until.Sub(e.since).Seconds()
	t.ThrottledS += e.heldS
	t.Pulses += e.pulses
	if e.maxTemp.OK && e.maxTemp.V > t.WorstTempC.Or(e.maxTemp.V-1) {
		t.WorstTempC = e.maxTemp
	}
	s.ByType[e.typ] = t
	if lost := e.lostS(); lost.OK {
		s.LostS = sample.Known(s.LostS.Or(0) + lost.V)
	}
}

func (d *Detector) gap() time.Duration { return seconds(d.cfg.GapS) }

func seconds(l Limit) time.Duration { return time.Duration(float64(l) * float64(time.Second)) }

// expire ends the episodes that nothing has been known about for the gap.
func (d *Detector) expire(out *[]event.Event, r reading) {
	for _, typ := range types {
		if e := d.open[typ]; e != nil && r.t.Sub(e.known) > d.gap() {
			d.end(out, e, r.t, EndedUnknown)
		}
	}
}

// judgeThermal follows the reason bits, the counters and the G4 signature: they
// are three views of one thing and make one episode together.
func (d *Detector) judgeThermal(out *[]event.Event, r reading, p pulse) {
	signed := d.sign.judge(r, d.cfg, d.open[PowerWedge] != nil, d.pace.baseline(d.cfg))
	e := d.open[ThermalThrottle]
	if p.hot || signed {
		if e == nil {
			since := r.t
			if !p.hot {
				since = d.sign.held.since
			}
			e = d.newEpisode(ThermalThrottle, since, r)
			if signed && !p.hot {
				// Steps since the onset already count for what it cost.
				e.steps, e.stepS, e.worstStep = d.sign.steps, d.sign.stepS, d.sign.worst
				e.dropPct = 100 * (1 - d.sign.power/d.sign.plateau)
				e.plateauW = d.sign.plateau
				d.hold(e, r.t.Sub(since).Seconds())
			}
			d.note(e, r, p, signed)
			*out = append(*out, e.start(r, d.thermalLevel(e)))
			return
		}
		d.note(e, r, p, signed)
		return
	}
	if e == nil {
		return
	}
	if e.byPulse && p.known || e.bySign && r.loadKnown() {
		e.known = r.t
		e.wasHot = false
		if r.t.Sub(e.until) >= seconds(d.cfg.MergeS) {
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}

// note adds one hot reading to an episode.
func (d *Detector) note(e *episode, r reading, p pulse, signed bool) {
	held := p.heldS
	if signed && r.dt <= d.gap() && e.bySign {
		held = max(held, r.dt.Seconds())
	}
	if p.hot {
		e.byPulse = true
		if !e.wasHot {
			e.pulses++
		}
		e.bits |= p.bits
	}
	e.wasHot = p.hot
	e.bySign = e.bySign || signed
	e.see(r)
	d.hold(e, held)
}

// hold adds time in which the GPU was held back.
func (d *Detector) hold(e *episode, s float64) {
	e.heldS += s
	if e.typ != PowerCap {
		d.throttledS += s
	}
}

// thermalLevel is a warning only where it matters: above the share of the time,
// or with lost pace. A pulse now and then costs nothing.
func (d *Detector) thermalLevel(e *episode) event.Level {
	heldS := d.sum.ByType[ThermalThrottle].ThrottledS + e.heldS
	over := heldS > float64(d.cfg.Thermal.WarnShare)*max(d.sum.ObservedS, float64(d.cfg.Thermal.ShareFloorS))
	if over || e.bySign || e.slower(d.cfg) {
		return event.Warn
	}
	return event.Info
}

func (d *Detector) judgeWedge(out *[]event.Event, r reading, p pulse) {
	state := d.wedge.judge(r, d.cfg, p)
	e := d.open[PowerWedge]
	if e == nil {
		if state == yes && d.wedge.held.forAt(r.t) >= seconds(d.cfg.Wedge.ForS) {
			e = d.newEpisode(PowerWedge, d.wedge.held.since, r)
			e.see(r)
			e.pulses = 1
			d.hold(e, r.t.Sub(e.since).Seconds())
			*out = append(*out, e.start(r, event.Warn))
		}
		return
	}
	switch {
	case state == yes:
		e.see(r)
		if r.dt <= d.gap() {
			d.hold(e, r.dt.Seconds())
		}
	case state == no:
		e.known = r.t
		switch {
		case d.wedge.recovered(r, d.cfg):
			d.end(out, e, r.t, EndedRecovered)
		case r.t.Sub(e.until) >= seconds(d.cfg.MergeS):
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}

func (d *Detector) judgeCap(out *[]event.Event, r reading) {
	state := d.plateau.judge(r, d.cfg, d.open[ThermalThrottle] != nil)
	e := d.open[PowerCap]
	switch {
	case state == yes && e == nil:
		e = d.newEpisode(PowerCap, d.plateau.win.start(), r)
		e.see(r)
		e.plateauW = d.plateau.win.mean(0)
		*out = append(*out, e.start(r, event.Info))
	case state == yes:
		e.see(r)
	case state == no && e != nil:
		e.known = r.t
		if r.t.Sub(e.until) >= seconds(d.cfg.PowerCap.QuietS) {
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}

// types in the order in which their events are written.
var types = []string{ThermalThrottle, PowerWedge, PowerCap}

func (d *Detector) newEpisode(typ string, since time.Time, r reading) *episode {
	e := &episode{
		typ: typ, id: typ + "-" + strconv.FormatInt(r.t.UnixMilli(), 10),
		attempt: d.attempt, since: since, until: r.t, known: r.t,
		base: d.pace.baseline(d.cfg),
	}
	d.open[typ] = e
	return e
}

func (d *Detector) closeAll(t time.Time, how string) []event.Event {
	var out []event.Event
	for _, typ := range types {
		if e := d.open[typ]; e != nil {
			d.end(&out, e, t, how)
		}
	}
	return out
}

func (d *Detector) end(out *[]event.Event, e *episode, t time.Time, how string) {
	level := event.Info
	switch e.typ {
	case ThermalThrottle:
		level = d.thermalLevel(e)
	case PowerWedge:
		level = event.Warn
	}
	delete(d.open, e.typ)
	d.sum.add(e)
	*out = append(*out, e.end(t, how, level))
}

// observeStep gives a finished step to the pace, or to what slowed it.
func (d *Detector) observeStep(r reading) {
	n, stepS, ok := d.pace.next(r)
	if !ok {
		return
	}
	disturbed := d.sign.held.on
	if d.sign.held.on {
		d.sign.addSteps(n, stepS, d.pace.baseline(d.cfg))
	}
	for _, typ := range types {
		if e := d.open[typ]; e != nil && typ != PowerCap {
			disturbed = true
			e.addSteps(n, stepS)
		}
	}
	if !disturbed {
		d.pace.learn(stepS)
	}
}
