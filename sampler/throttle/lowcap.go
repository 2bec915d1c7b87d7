package throttle

import (
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// socCap returns the power firmware's cap of the SoC in watts and what the SoC uses
// of it, as far as a power driver tells.
func socCap(s *sample.Sample) (capW, socW sample.Num) {
	capW = finite(s.CapSoCW)
	for _, p := range s.Powers {
		if p.Label == "pl1" {
			socW = finite(p.W)
			if !capW.OK {
				capW = finite(p.CapW)
			}
		}
	}
	if capW.V <= 0 {
		capW = sample.Num{}
	}
	return capW, socW
}

// lowCapRule is a limit below the platform's: busy, at half the power, with clocks
// below normal. It is judged by means, since utilisation dips between steps, and over
// so long that no phase of a training looks like it.
type lowCapRule struct {
	win *window // power, utilisation, clock
	// sign are the readings of the GPU, caps what the firmware says itself.
	sign, caps held
	from       time.Time // where the window began in which sign was first there
}

func newLowCapRule(cfg Config) lowCapRule {
	return lowCapRule{win: newWindow(seconds(cfg.LowCap.WindowS))}
}

// judge returns whether a low cap shows now, since when if it has for long enough to
// say so, and whether the firmware itself told. explained says that something else
// is known to hold the GPU back.
func (l *lowCapRule) judge(r reading, cfg Config, gap time.Duration, explained bool, clockCap float64) (a answer, since time.Time, certain bool) {
	c := cfg.LowCap
	if !r.loadKnown() || !r.clock.OK {
		return unknown, time.Time{}, false
	}
	l.win.add(r.t, gap, r.power.V, r.util.V, r.clock.V)
	busy := l.win.full() && l.win.mean(1) >= float64(c.UtilPct)

	caps := no
	switch {
	case !r.capW.OK:
		caps = unknown
	case busy && !explained && r.capW.V < float64(c.CapW):
		caps = yes
	}
	sign := no
	if busy && !explained && !ownCap(r, cfg, clockCap) && !l.elsewhere(r, cfg) && l.in(l.win.mean, c) {
		sign = yes
	}
	// Where either begins, the oldest reading of the window must show it as well: the
	// mean still has something of before in it.
	if sign == yes && !l.sign.on && !l.in(l.win.oldest, c) {
		sign = no
	}
	if caps == yes && !l.caps.on && l.win.oldest(1) < float64(c.UtilPct) {
		caps = no
	}
	was := l.sign
	l.sign.step(r.t, sign, gap)
	if l.sign.on && (!was.on || was.since != l.sign.since) {
		l.from = l.win.start()
	}
	l.caps.step(r.t, caps, gap)

	switch {
	case caps == yes && l.caps.forAt(r.t) >= seconds(c.CapForS):
		return yes, l.caps.since, true
	case sign == yes && r.t.Sub(l.from) >= seconds(c.ForS):
		return yes, l.from, caps == yes
	case caps == yes || sign == yes:
		return yes, time.Time{}, false
	}
	return no, time.Time{}, false
}

// in tells whether power, utilisation and clock, given by column, show it.
func (l *lowCapRule) in(v func(int) float64, c LowCapRule) bool {
	return v(0) >= float64(c.MinW) && v(0) <= float64(c.MaxW) && v(1) >= float64(c.UtilPct) && v(2) < float64(c.ClockMHz)
}

// elsewhere tells whether the watts or the clock are explained by what is no fault of
// the supply: the SoC is at its normal cap, which the processors share; they are so
// busy that they may be, where nobody tells; or the die is so hot that heat may be it.
func (l *lowCapRule) elsewhere(r reading, cfg Config) bool {
	c := cfg.LowCap
	if r.temp.OK && r.temp.V >= float64(cfg.Signature.TempC) {
		return true
	}
	if r.capW.OK {
		return r.capW.V >= float64(c.CapW) && r.socW.OK && r.socW.V >= float64(c.CapUsed)*r.capW.V
	}
	return r.cpuBusy.OK && r.cpuBusy.V >= float64(c.CPUPct)
}

// recovered tells that the GPU gets more than that again. Normal clocks alone prove
// nothing: light work reaches them within a low cap.
func (l *lowCapRule) recovered(cfg Config) bool {
	c := cfg.LowCap
	return l.win.full() && l.win.mean(1) >= float64(c.UtilPct) && l.win.mean(0) > float64(c.MaxW)
}

func (d *Detector) judgeLowCap(out *[]event.Event, r reading, p pulses) {
	explained := p.any() || d.open[ThermalThrottle] != nil || d.open[HWBrake] != nil || d.open[PowerWedge] != nil || d.wedge.held.on
	state, since, certain := d.lowCap.judge(r, d.cfg, d.gap(), explained, d.clockCap)
	e := d.open[LowCap]
	switch {
	case e == nil:
		if since.IsZero() || r.util.V < float64(d.cfg.LowCap.UtilPct) || !certain && !d.lowCap.in(d.lowCap.win.newest, d.cfg.LowCap) {
			return
		}
		e = d.newEpisode(LowCap, since, r)
		e.certain = certain
		e.see(r)
		e.pulses = 1
		d.hold(e, r.t.Sub(e.since).Seconds())
		d.tellStart(out, e, r)
	case state == yes:
		e.see(r)
		e.certain = e.certain || certain
		if r.dt <= d.gap() {
			d.hold(e, r.dt.Seconds())
		}
	case state == no:
		e.known = r.t
		switch {
		case d.lowCap.recovered(d.cfg) && (!r.capW.OK || r.capW.V >= float64(d.cfg.LowCap.CapW)):
			d.lowCap.sign, d.lowCap.caps = held{}, held{} // it must last anew
			d.end(out, e, r.t, EndedRecovered)
		case r.t.Sub(e.until) >= seconds(d.cfg.LowCap.QuietS):
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}
