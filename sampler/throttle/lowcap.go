package throttle

import (
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// firmwareCaps returns the power firmware's cap of the SoC in watts, what the SoC uses
// of it and the cap of the whole machine, as far as a power driver tells.
func firmwareCaps(s *sample.Sample) (capW, socW, sysW sample.Num) {
	capW, sysW = finite(s.CapSoCW), finite(s.CapSysW)
	for _, p := range s.Powers {
		switch p.Label {
		case "pl1":
			socW = finite(p.W)
			if !capW.OK {
				capW = finite(p.CapW)
			}
		case "syspl1":
			if !sysW.OK {
				sysW = finite(p.CapW)
			}
		}
	}
	if capW.V <= 0 {
		capW = sample.Num{}
	}
	if sysW.V <= 0 {
		sysW = sample.Num{}
	}
	return capW, socW, sysW
}

// firmwareLow tells that the power firmware itself says that it allows less than is
// normal.
func firmwareLow(r reading, cfg Config) bool { return socLow(r, cfg) || sysLow(r, cfg) }

func socLow(r reading, cfg Config) bool { return r.capW.OK && r.capW.V < float64(cfg.LowCap.CapW) }

func sysLow(r reading, cfg Config) bool { return r.sysW.OK && r.sysW.V < float64(cfg.LowCap.SysCapW) }

// lowCapRule is a limit below the platform's: busy, at half the power, with clocks
// below normal. It is judged by means, since utilisation dips between steps, of those
// readings in which the GPU is busy, and over so long that no phase of a training looks
// like it.
type lowCapRule struct {
	win *window // the columns below
	// caps is what the firmware says itself.
	caps held
	// from is where the window began in which the readings of the GPU first showed it,
	// zero where they do not; forS for how many seconds they have since then, seen when
	// they last did.
	from, seen time.Time
	forS       float64
}

// The columns of lowCapRule.win. Those of busy are zero in readings that are not.
const (
	lowPower = iota
	lowUtil
	lowClock
	lowBusy // 1 in a busy reading
	lowBusyPower
	lowBusyUtil
	lowBusyClock
)

// ofBusy is the mean of the busy readings for power, utilisation or clock.
func (l *lowCapRule) ofBusy(i int) float64 {
	return l.win.mean(lowBusyPower+i) / l.win.mean(lowBusy)
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
	now := 0.0
	if r.util.V >= float64(c.UtilPct) {
		now = 1
	}
	l.win.add(r.t, gap, r.power.V, r.util.V, r.clock.V, now, now*r.power.V, now*r.util.V, now*r.clock.V)
	busy := l.win.full() && l.win.mean(lowBusy) > 0 && l.win.mean(lowBusy) >= float64(c.BusyShare)

	caps := no
	switch {
	case !r.capW.OK && !r.sysW.OK:
		caps = unknown
	case busy && !explained && firmwareLow(r, cfg):
		caps = yes
	}
	// Where either begins, the oldest reading of the window must show it as well: the
	// mean still has something of before in it.
	if caps == yes && !l.caps.on && l.win.oldest(lowUtil) < float64(c.UtilPct) {
		caps = no
	}
	l.caps.step(r.t, caps, gap)
	sign := l.follow(r, cfg, busy, !explained && !ownCap(r, cfg, clockCap) && !l.elsewhere(r, cfg))

	switch {
	case caps == yes && l.caps.forAt(r.t) >= seconds(c.CapForS):
		return yes, l.caps.since, true
	case sign == yes && seconds(Limit(l.forS)) >= seconds(c.ForS):
		return yes, l.from, caps == yes
	case caps == yes || sign == yes:
		return yes, time.Time{}, false
	}
	return no, time.Time{}, false
}

// follow tells whether the readings of the GPU show it now, and adds up for how long
// they have. possible says that nothing else explains them. While the GPU is not busy
// they show nothing: a pause of up to QuietS neither counts nor ends it.
func (l *lowCapRule) follow(r reading, cfg Config, busy, possible bool) answer {
	c := cfg.LowCap
	if !l.from.IsZero() && r.t.Sub(l.seen) >= seconds(c.QuietS) {
		l.forget()
	}
	switch {
	case !possible || busy && !l.in(l.ofBusy, cfg):
		l.forget()
		return no
	case !busy:
		return no
	case !l.from.IsZero():
		if dt := r.t.Sub(l.seen); dt <= r.dt {
			l.forS += dt.Seconds()
		}
	case !l.in(l.win.oldest, cfg):
		return no
	default:
		l.from = l.win.start()
		l.forS = r.t.Sub(l.from).Seconds()
	}
	l.seen = r.t
	return yes
}

// forget makes it last anew.
func (l *lowCapRule) forget() { l.from, l.seen, l.forS = time.Time{}, time.Time{}, 0 }

// in tells whether power, utilisation and clock, given by column, show it. Below MinW
// it is the wedge where the clock is the wedge's as well.
func (l *lowCapRule) in(v func(int) float64, cfg Config) bool {
	c := cfg.LowCap
	return v(lowPower) <= float64(c.MaxW) && v(lowUtil) >= float64(c.UtilPct) && v(lowClock) < float64(c.ClockMHz) &&
		(v(lowPower) >= float64(c.MinW) || v(lowClock) >= float64(cfg.Wedge.ClockMHz))
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
	return l.win.full() && l.win.mean(lowUtil) >= float64(c.UtilPct) && l.win.mean(lowPower) > float64(c.MaxW)
}

func (d *Detector) judgeLowCap(out *[]event.Event, r reading, p pulses) {
	explained := p.any() || d.open[ThermalThrottle] != nil || d.open[HWBrake] != nil || d.open[PowerWedge] != nil || d.wedge.held.on
	state, since, certain := d.lowCap.judge(r, d.cfg, d.gap(), explained, d.clockCap)
	e := d.open[LowCap]
	switch {
	case e == nil:
		if since.IsZero() || r.util.V < float64(d.cfg.LowCap.UtilPct) || !certain && !d.lowCap.in(d.lowCap.win.newest, d.cfg) {
			return
		}
		e = d.newEpisode(LowCap, since, r)
		d.owe(e)
		e.certain, e.bySys = certain, certain && !socLow(r, d.cfg)
		e.see(r)
		e.pulses = 1
		s := r.t.Sub(e.since).Seconds()
		if since.Equal(d.lowCap.from) {
			s = d.lowCap.forS // without the pauses
		}
		d.hold(e, s)
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
		case d.lowCap.recovered(d.cfg) && !firmwareLow(r, d.cfg):
			d.lowCap.forget()
			d.lowCap.caps = held{} // it must last anew
			d.end(out, e, r.t, EndedRecovered)
		case r.t.Sub(e.until) >= seconds(d.cfg.LowCap.QuietS):
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}
