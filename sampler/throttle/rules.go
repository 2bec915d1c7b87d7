package throttle

import (
	"math"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// reading is what a sample says about the GPU, or nothing.
type reading struct {
	t time.Time
	// dt is the time since the last reading; zero for the first.
	dt time.Duration

	temp, power, clock, util, bits sample.Num
	// counters are software thermal, hardware thermal and hardware power brake, in
	// nanoseconds.
	counters [3]sample.Num
	// zone is the hottest zone, zone2 the hottest that reads something else, zone3 the
	// third of all, whatever they read.
	zone, zone2, zone3 sample.Num
	// capW is the power firmware's cap of the SoC, socW what it uses of it, sysW its cap
	// of the whole machine.
	capW, socW, sysW sample.Num
	cpuBusy          sample.Num
	step             sample.Num
	stepS            sample.Num
}

// read takes the readings out of a sample. A reading that was seen before (the
// sensor hangs and its last answer is repeated) is no reading.
func (d *Detector) read(s *sample.Sample) reading {
	r := reading{t: s.T, step: finite(s.Step), stepS: finite(s.StepTimeS), cpuBusy: finite(s.CPUBusyPct)}
	if s.GPU.T != 0 && s.GPU.T == d.gpuT {
		return r
	}
	r.temp, r.power, r.clock, r.util = finite(s.TempC), finite(s.PowerW), finite(s.ClockSMMHz), finite(s.UtilPct)
	if bits := finite(s.ReasonBits); bits.V >= 0 {
		r.bits = bits
	}
	r.counters = [3]sample.Num{finite(s.CtrSWThermalNS), finite(s.CtrHWThermalNS), finite(s.CtrHWPowerNS)}
	r.zone, r.zone2, r.zone3 = hottestZones(s)
	r.capW, r.socW, r.sysW = firmwareCaps(s)
	if r.known() || r.zone.OK {
		d.gpuT = s.GPU.T
	}
	if r.known() {
		if !d.known.IsZero() {
			r.dt = s.T.Sub(d.known)
		}
	}
	return r
}

// finite takes what is no number for unknown.
func finite(n sample.Num) sample.Num {
	if math.IsNaN(n.V) || math.IsInf(n.V, 0) {
		return sample.Num{}
	}
	return n
}

// known tells whether anything is known of the GPU itself.
func (r reading) known() bool { return r.pulseKnown() || r.loadKnown() }

func (r reading) pulseKnown() bool {
	return r.bits.OK || r.counters[0].OK || r.counters[1].OK || r.counters[2].OK
}

func (r reading) loadKnown() bool { return r.util.OK && r.power.OK }

// answer is a condition that may be impossible to tell.
type answer int

const (
	unknown answer = iota
	no
	yes
)

// held is since when a condition has been true without a break, in n readings.
type held struct {
	on          bool
	n           int
	since, last time.Time
}

// step takes the next answer. An unknown one changes nothing; a gap since the
// last known one starts anew.
func (h *held) step(t time.Time, a answer, gap time.Duration) {
	switch a {
	case no:
		h.on = false
	case yes:
		if !h.on || t.Sub(h.last) > gap {
			h.on, h.since, h.n = true, t, 0
		}
		h.last = t
		h.n++
	}
}

func (h *held) forAt(t time.Time) time.Duration {
	if !h.on {
		return 0
	}
	return t.Sub(h.since)
}

// ownCap tells whether a clock is at our own limit: what is there is our doing.
// Locked clocks settle some MHz below the limit.
func ownCap(r reading, cfg Config, clockCap float64) bool {
	return clockCap > 0 && r.clock.OK && r.clock.V >= float64(cfg.OwnCapPart)*clockCap
}

// capRule is the plateau at the platform's limit, judged by means: utilisation
// dips for an instant between steps.
type capRule struct {
	win *window // power, utilisation, clock, whether the firmware speaks against it
	// told is how many plateaus of the attempt have been told.
	told int
	// backS is for how long the GPU was held back since the plateau was last seen.
	backS float64
}

// quiet is for how long a plateau must not have been seen to be over. One that comes
// back is given longer each time: power that swings around the lower limit, or a long
// evaluation each hour, is no plateau of its own each time.
func (c *capRule) quiet(cfg Config) time.Duration {
	return time.Duration(max(1, c.told)) * seconds(cfg.PowerCap.QuietS)
}

func newCapRule(cfg Config) capRule {
	return capRule{win: newWindow(seconds(cfg.PowerCap.ForS))}
}

func (c *capRule) judge(r reading, cfg Config, gap time.Duration, throttled bool) answer {
	if !r.loadKnown() || !r.clock.OK {
		return unknown
	}
	elsewhere := 0.0
	if notAtCap(r, cfg) {
		elsewhere = 1
	}
	c.win.add(r.t, gap, r.power.V, r.util.V, r.clock.V, elsewhere)
	if c.win.full() && !throttled && c.in(c.win.mean, cfg.PowerCap) && c.win.mean(3) < 0.5 {
		return yes
	}
	return no
}

// notAtCap tells that the power firmware itself speaks against the platform's own cap:
// it allows less than that, or the SoC uses less than what it allows while the driver
// does not give its cap as the reason.
func notAtCap(r reading, cfg Config) bool {
	if firmwareLow(r, cfg) {
		return true
	}
	capped := sample.Reasons(r.bits.Or(0))&sample.ReasonSWPowerCap != 0
	return r.capW.OK && r.socW.OK && r.socW.V < float64(cfg.LowCap.CapUsed)*r.capW.V && !capped
}

// in tells whether power, utilisation and clock, given by column, are a plateau's.
func (c *capRule) in(v func(int) float64, rule PowerCapRule) bool {
	return v(0) >= float64(rule.MinW) && v(0) <= float64(rule.MaxW) && v(1) >= float64(rule.UtilPct) && v(2) >= float64(rule.ClockMHz)
}

func (d *Detector) judgeCap(out *[]event.Event, r reading) {
	throttled := d.open[ThermalThrottle] != nil || d.open[HWBrake] != nil || d.open[LowCap] != nil
	state := d.plateau.judge(r, d.cfg, d.gap(), throttled)
	e := d.open[PowerCap]
	d.plateau.backS += d.heldNow
	switch {
	case state == yes && e == nil:
		win := d.plateau.win
		if !d.plateau.in(win.oldest, d.cfg.PowerCap) || !d.plateau.in(win.newest, d.cfg.PowerCap) {
			return // the mean has something of before in it, or it is over
		}
		e = d.newEpisode(PowerCap, win.start(), r)
		e.see(r)
		e.plateauW = d.plateau.win.mean(0)
		d.plateau.told++
		d.plateau.backS = 0
		d.tellStart(out, e, r)
	case state == yes:
		e.backS += d.plateau.backS
		d.plateau.backS = 0
		e.see(r)
	case state == no && e != nil:
		e.known = r.t
		if r.t.Sub(e.until) >= d.plateau.quiet(d.cfg) {
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}
