package throttle

import (
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// wedgeRule is the low-power wedge: busy, yet slow and cool without a reason. It is
// told in two ways: in every sample for a minute, and over ten minutes in those samples
// in which the GPU is busy at all. A training that loads data or waits for a moment in
// each minute never shows it in every sample.
type wedgeRule struct {
	held held
	win  *window
}

// The columns of wedgeRule.win. Those of busy are zero in readings that are not.
const (
	wedgeUtil      = iota
	wedgeExplained // the part of the time in which a reason was given, 1 if unknown
	wedgeBusy      // 1 in a busy reading
	wedgeBusyUtil
	wedgeBusyClock
)

// explainedMost is the part of the time in which the GPU may have given a reason, and
// still is in the wedge: a pulse of a second each minute explains no tenth of the
// clock.
const explainedMost = 0.1 + 1e-9 // a tenth, however the sum was rounded

func newWedgeRule(cfg Config) wedgeRule {
	return wedgeRule{win: newWindow(seconds(cfg.Wedge.MeanForS))}
}

// judge tells whether this reading shows the wedge, and follows for how long all did.
func (w *wedgeRule) judge(r reading, cfg Config, gap time.Duration, p pulses, clockCap float64) answer {
	a := w.answer(r, cfg, p, clockCap)
	w.held.step(r.t, a, gap)
	return a
}

func (w *wedgeRule) answer(r reading, cfg Config, p pulses, clockCap float64) answer {
	c := cfg.Wedge
	switch {
	case !r.pulseKnown() && !r.util.OK && !r.power.OK && !r.clock.OK:
		return unknown
	case r.util.OK && r.util.V < float64(c.UtilPct),
		r.clock.OK && r.clock.V >= float64(c.ClockMHz),
		r.power.OK && r.power.V >= float64(c.PowerW),
		ownCap(r, cfg, clockCap),
		p.any():
		return no
	case r.util.OK && r.clock.OK && r.power.OK && p.known():
		return yes
	}
	return unknown
}

// busyFrom is the utilisation in percent from which a reading counts as busy for the
// means.
func (c WedgeRule) busyFrom() float64 { return float64(min(c.MeanUtilPct, c.UtilPct)) }

// slow tells whether a reading is as those in the wedge are, without asking for a reason
// and for full utilisation.
func (w *wedgeRule) slow(r reading, cfg Config, clockCap float64) bool {
	c := cfg.Wedge
	return r.loadKnown() && r.clock.OK && r.util.V >= c.busyFrom() && r.clock.V < float64(c.ClockMHz) &&
		r.power.V < float64(c.PowerW) && !ownCap(r, cfg, clockCap)
}

// take adds a reading to the means and tells whether they show the wedge.
func (w *wedgeRule) take(r reading, cfg Config, gap time.Duration, p pulses, clockCap float64) bool {
	if !r.loadKnown() || !r.clock.OK {
		return false
	}
	c := cfg.Wedge
	explained := 0.0
	switch held := max(p.thermal.heldS, p.brake.heldS); {
	case !p.known(), p.any() && r.dt <= 0:
		explained = 1
	case p.any():
		explained = min(1, held/r.dt.Seconds())
	}
	if r.temp.OK && r.temp.V >= float64(cfg.Signature.TempC) {
		explained = 1 // heat may be it, and the wedge is cool
	}
	busy := 0.0
	if r.util.V >= c.busyFrom() {
		busy = 1
		if !w.slow(r, cfg, clockCap) {
			w.win.clear() // one that reaches normal figures is not stuck
			return false
		}
	}
	w.win.add(r.t, gap, r.util.V, explained, busy, busy*r.util.V, busy*r.clock.V)
	if !w.win.full() || len(w.win.points) <= wedgeReadings || w.win.mean(wedgeUtil) < c.busyFrom() || w.win.mean(wedgeExplained) > explainedMost {
		return false
	}
	part := w.win.mean(wedgeBusy)
	if part <= 0 {
		return false
	}
	clock := min(c.MeanClockMHz, c.ClockMHz)
	if w.win.mean(wedgeBusyUtil)/part >= float64(c.UtilPct) {
		clock = c.ClockMHz
	}
	return w.win.mean(wedgeBusyClock)/part < float64(clock)
}

// recovered tells that the GPU is busy and works normally again; being idle
// proves nothing.
func (w *wedgeRule) recovered(r reading, cfg Config) bool {
	c := cfg.Wedge
	return r.util.OK && r.util.V >= c.busyFrom() &&
		(r.clock.OK && r.clock.V >= float64(c.ClockMHz) || r.power.OK && r.power.V >= float64(c.PowerW))
}

// wedgeReadings are needed at least: with a sample a minute two say too little.
const wedgeReadings = 3

func (d *Detector) judgeWedge(out *[]event.Event, r reading, p pulses) {
	w := &d.wedge
	state := w.judge(r, d.cfg, d.gap(), p, d.clockCap)
	byMean := w.take(r, d.cfg, d.gap(), p, d.clockCap)
	slow := w.slow(r, d.cfg, d.clockCap) && !p.any()
	e := d.open[PowerWedge]
	switch {
	case e == nil && state == yes && w.held.n >= wedgeReadings && w.held.forAt(r.t) >= seconds(d.cfg.Wedge.ForS):
		d.openWedge(out, r, w.held.since, sample.Num{})
	case e == nil && byMean && slow && w.win.oldest(wedgeBusy) > 0:
		d.openWedge(out, r, w.win.start(), sample.Known(w.win.mean(wedgeUtil)))
	case e == nil:
	case state == yes || slow:
		e.see(r)
		if r.dt <= d.gap() {
			d.hold(e, r.dt.Seconds())
		}
	case state == no:
		e.known = r.t
		switch {
		case w.recovered(r, d.cfg):
			d.end(out, e, r.t, EndedRecovered)
		case r.t.Sub(e.until) >= seconds(d.cfg.Wedge.QuietS):
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}

// openWedge begins an episode; util is the mean utilisation where means told it.
func (d *Detector) openWedge(out *[]event.Event, r reading, since time.Time, util sample.Num) {
	e := d.newEpisode(PowerWedge, since, r)
	d.owe(e)
	e.meanUtil = util
	e.see(r)
	e.pulses = 1
	s := r.t.Sub(e.since).Seconds()
	if util.OK {
		s *= d.wedge.win.mean(wedgeBusy)
	}
	d.hold(e, s)
	d.tellStart(out, e, r)
}
