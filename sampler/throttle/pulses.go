package throttle

import (
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// pulse is what one reading says of reason bits and counters of one kind.
type pulse struct {
	known bool
	hot   bool
	bits  sample.Reasons
	// heldS is for how long the GPU was held back since the last reading.
	heldS float64
}

// pulses are the two kinds: heat, and the hardware for any other reason.
type pulses struct{ thermal, brake pulse }

func (p pulses) known() bool { return p.thermal.known || p.brake.known }
func (p pulses) any() bool   { return p.thermal.hot || p.brake.hot }

// pulseRule sees pulses, also those that begin and end between two readings: the
// counters keep them.
type pulseRule struct {
	counters [3]counter // software thermal, hardware thermal, hardware power brake
	// thermalAt is when heat was last given as the reason; lit says of which kinds a
	// bit was set in the last reading, at that time.
	thermalAt time.Time
	lit       [2]bool
	litAt     time.Time
}

// firstPulse is what the first reading with a bit stands for at most: pulses are
// about a second wide, and between readings a minute apart nobody looked.
const firstPulse = time.Second

func (p *pulseRule) judge(r reading, cfg Config, gap time.Duration) pulses {
	var out pulses
	if !r.pulseKnown() {
		return out
	}
	out.thermal.known = r.bits.OK || r.counters[0].OK || r.counters[1].OK
	out.brake.known = r.bits.OK || r.counters[2].OK
	for i := range p.counters {
		s, moved := p.counters[i].advance(r.counters[i], r.t, gap, cfg.Thermal.CounterMS)
		if !moved {
			continue
		}
		kind := &out.thermal
		if i == 2 {
			kind = &out.brake
		}
		kind.hot, kind.heldS = true, max(kind.heldS, s)
	}
	bits := sample.Reasons(r.bits.Or(0))
	out.thermal.bits, out.brake.bits = bits&sample.ReasonAnyThermal, bits&sample.ReasonHWPowerBrake
	if slowed := bits & sample.ReasonHWSlowdown; slowed != 0 {
		// The hardware halves the clock or worse, for heat or for power. It is heat where
		// heat is given as a reason, now or a moment ago.
		late := !p.thermalAt.IsZero() && r.t.Sub(p.thermalAt) < seconds(cfg.MergeS)
		// Of a die as hot as that it is heat as well, where the power brake is not named.
		late = late || r.temp.OK && r.temp.V >= float64(cfg.Hot.DieC)
		if out.thermal.hot || out.thermal.bits != 0 || late && out.brake.bits == 0 {
			out.thermal.bits |= slowed
		} else {
			out.brake.bits |= slowed
		}
	}
	if out.thermal.hot || out.thermal.bits&sample.ReasonAnyThermal != 0 {
		p.thermalAt = r.t
	}
	for i, kind := range []*pulse{&out.thermal, &out.brake} {
		lit := kind.bits != 0
		if lit && !kind.hot {
			kind.heldS = p.litFor(i, r, gap).Seconds()
		}
		kind.hot = kind.hot || lit
		p.lit[i] = lit
	}
	p.litAt = r.t
	return out
}

// litFor is for how long a bit that is set now has been so since the last reading.
func (p *pulseRule) litFor(kind int, r reading, gap time.Duration) time.Duration {
	switch {
	case r.dt > gap:
		return 0
	case p.lit[kind] && p.litAt.Add(r.dt).Equal(r.t):
		return r.dt
	}
	return min(r.dt, firstPulse)
}

// counter is one of the driver's counters of time held back, in nanoseconds.
type counter struct {
	v         sample.Num
	at        time.Time
	unsettled bool
}

const (
	// A counter cannot count faster than time goes on. Drivers update it in lumps, so
	// that it may be ahead of the readings by counterLump.
	counterSlope = 1.1
	counterLump  = 2 * time.Second
)

// advance takes the counter's value at t and returns by how many seconds it moved,
// if by at least leastMS. A counter that fell or ran ahead of time is another one
// (the driver was loaded anew) or no answer, and tells something only when it has
// been seen to go on from there; one that was not seen for the gap does not tell
// when it moved.
func (c *counter) advance(now sample.Num, t time.Time, gap time.Duration, leastMS Limit) (s float64, moved bool) {
	if !now.OK {
		return 0, false
	}
	was, elapsed, unsettled := c.v, t.Sub(c.at), c.unsettled
	c.v, c.at, c.unsettled = now, t, false
	if !was.OK || elapsed > gap {
		return 0, false
	}
	s = (now.V - was.V) / 1e9
	if s < 0 || s > counterSlope*elapsed.Seconds()+counterLump.Seconds() {
		c.unsettled = true
		return 0, false
	}
	if unsettled || s < float64(leastMS)/1e3 {
		return 0, false
	}
	return min(s, elapsed.Seconds()), true
}

// judgeThermal follows what gives heat as the reason (bits and counters) and the G4
// signature: they are three views of one thing and make one episode together.
func (d *Detector) judgeThermal(out *[]event.Event, r reading, p pulse) {
	explained := d.open[PowerWedge] != nil || d.open[LowCap] != nil || d.open[HWBrake] != nil || d.otherwiseSlow()
	signed := d.sign.judge(r, d.cfg, d.gap(), explained, d.pace.baseline(d.cfg))
	e := d.open[ThermalThrottle]
	if e == nil && !p.hot && signed {
		e = d.newEpisode(ThermalThrottle, d.sign.held.since, r)
		// Steps since the onset already count for what it cost, as far as they did not for
		// pulses in that time.
		e.steps, e.stepS, e.worstStep = d.sign.free, d.sign.freeS, d.sign.worst
		if d.cost.steps == 0 && e.steps > 0 {
			d.cost.add(e.steps, e.stepS/e.steps, e.base)
		}
		e.dropPct = 100 * (1 - d.sign.power/d.sign.plateau)
		e.plateauW = d.sign.plateau
		d.hold(e, r.t.Sub(e.since).Seconds())
		d.note(e, r, p, signed)
		d.tellStart(out, e, r)
		return
	}
	d.followPulses(out, ThermalThrottle, r, p, signed)
}

// judgeBrake follows what slows the GPU in hardware without heat as the reason.
func (d *Detector) judgeBrake(out *[]event.Event, r reading, p pulse) {
	d.followPulses(out, HWBrake, r, p, false)
}

// followPulses opens, continues and ends the episode of a type made of pulses.
func (d *Detector) followPulses(out *[]event.Event, typ string, r reading, p pulse, signed bool) {
	e := d.open[typ]
	switch {
	case e == nil && p.hot:
		e = d.newEpisode(typ, r.t, r)
		d.note(e, r, p, signed)
		d.tellStart(out, e, r)
	case e == nil:
	case p.hot || signed:
		d.note(e, r, p, signed)
	case e.byPulse && p.known || e.bySign && r.loadKnown():
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

// pulseLevel is a warning only where it matters: above the share of the time, or
// with lost pace. A pulse now and then costs nothing.
func (d *Detector) pulseLevel(e *episode) event.Level {
	if d.pulseShare(e.typ, e) > float64(d.cfg.Thermal.WarnShare) || e.bySign || e.slower(d.cfg) {
		return event.Warn
	}
	return event.Info
}

// pulseShare is the part of the time observed so far in which the GPU was held back
// by that type, in what has ended and in the open episode e if there is one.
func (d *Detector) pulseShare(typ string, e *episode) float64 {
	heldS := d.sum.ByType[typ].ThrottledS
	if e != nil {
		heldS += e.heldS
	}
	return heldS / max(d.sum.ObservedS, float64(d.cfg.Thermal.ShareFloorS))
}
