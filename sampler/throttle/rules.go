package throttle

import (
	"math"
	"time"

	"sparkrun/internal/sample"
)

// reading is what a sample says about the GPU, or nothing.
type reading struct {
	t time.Time
	// dt is the time since the last reading; zero for the first.
	dt time.Duration

	temp, power, clock, util, bits sample.Num
	// counters are the thermal and hardware ones, in nanoseconds.
	counters [3]sample.Num
	step     sample.Num
	stepS    sample.Num
}

// read takes the readings out of a sample. A reading that was seen before (the
// sensor hangs and its last answer is repeated) is no reading.
func (d *Detector) read(s *sample.Sample) reading {
	r := reading{t: s.T, step: finite(s.Step), stepS: finite(s.StepTimeS)}
	if s.GPU.T != 0 && s.GPU.T == d.gpuT {
		return r
	}
	r.temp, r.power, r.clock, r.util = finite(s.TempC), finite(s.PowerW), finite(s.ClockSMMHz), finite(s.UtilPct)
	if bits := finite(s.ReasonBits); bits.V >= 0 {
		r.bits = bits
	}
	r.counters = [3]sample.Num{finite(s.CtrSWThermalNS), finite(s.CtrHWThermalNS), finite(s.CtrHWPowerNS)}
	if r.known() {
		d.gpuT = s.GPU.T
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

// held is since when a condition has been true without a break.
type held struct {
	on          bool
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
			h.on, h.since = true, t
		}
		h.last = t
	}
}

func (h *held) forAt(t time.Time) time.Duration {
	if !h.on {
		return 0
	}
	return t.Sub(h.since)
}

// throttleBits are the reasons that mean the GPU is held back by heat or by its
// hardware. The software power cap (0x4) is not among them: it is the platform
// at its normal limit.
const throttleBits = sample.ReasonSWThermal | sample.ReasonAnyHardwareStop

// pulse is what one reading says of reason bits and counters.
type pulse struct {
	known bool
	hot   bool
	bits  sample.Reasons
	// counted: only the counters tell; heldS is for how long.
	counted bool
	heldS   float64
}

// pulseRule sees pulses, also those that begin and end between two readings: the
// counters keep them.
type pulseRule struct {
	counters [3]sample.Num
	at       [3]time.Time
}

func (p *pulseRule) judge(r reading, cfg Config) pulse {
	out := pulse{known: r.pulseKnown()}
	if !out.known {
		return out
	}
	var advanced float64
	for i, now := range r.counters {
		if !now.OK {
			continue
		}
		if was := p.counters[i]; was.OK {
			// A smaller value is a driver that was loaded anew.
			ns := now.V - was.V
			if ns >= float64(cfg.Thermal.CounterMS)*1e6 {
				advanced = max(advanced, min(ns/1e9, r.t.Sub(p.at[i]).Seconds()))
				out.counted = true
			}
		}
		p.counters[i], p.at[i] = now, r.t
	}
	out.bits = sample.Reasons(r.bits.Or(0)) & throttleBits
	out.hot = out.counted || out.bits != 0
	switch {
	case out.counted:
		out.heldS = advanced
	case out.bits != 0 && r.dt <= seconds(cfg.GapS):
		out.heldS = r.dt.Seconds()
	}
	out.counted = out.counted && out.bits == 0
	return out
}

// wedgeRule is the low-power wedge: busy, yet slow and cool without a reason.
type wedgeRule struct{ held held }

func (w *wedgeRule) judge(r reading, cfg Config, p pulse) answer {
	a := w.answer(r, cfg, p)
	w.held.step(r.t, a, seconds(cfg.GapS))
	return a
}

func (w *wedgeRule) answer(r reading, cfg Config, p pulse) answer {
	c := cfg.Wedge
	switch {
	case !r.known():
		return unknown
	case r.util.OK && r.util.V < float64(c.UtilPct),
		r.clock.OK && r.clock.V >= float64(c.ClockMHz),
		r.power.OK && r.power.V >= float64(c.PowerW),
		p.hot:
		return no
	case r.util.OK && r.clock.OK && r.power.OK && p.known:
		return yes
	}
	return unknown
}

// recovered tells that the GPU is busy and works normally again; being idle
// proves nothing.
func (w *wedgeRule) recovered(r reading, cfg Config) bool {
	c := cfg.Wedge
	return r.util.OK && r.util.V >= float64(c.UtilPct) &&
		(r.clock.OK && r.clock.V >= float64(c.ClockMHz) || r.power.OK && r.power.V >= float64(c.PowerW))
}

// capRule is the plateau at the platform's limit, judged by means: utilisation
// dips for an instant between steps.
type capRule struct{ win *window }

func newCapRule(cfg Config) capRule {
	return capRule{win: newWindow(seconds(cfg.PowerCap.ForS), seconds(cfg.GapS))}
}

func (c *capRule) judge(r reading, cfg Config, throttled bool) answer {
	if !r.loadKnown() || !r.clock.OK {
		return unknown
	}
	c.win.add(r.t, r.power.V, r.util.V, r.clock.V)
	rule := cfg.PowerCap
	power, util, clock := c.win.mean(0), c.win.mean(1), c.win.mean(2)
	if c.win.full() && !throttled && util >= float64(rule.UtilPct) && clock >= float64(rule.ClockMHz) &&
		power >= float64(rule.MinW) && power <= float64(rule.MaxW) {
		return yes
	}
	return no
}

// signatureRule is the runbook's G4 over time.
type signatureRule struct {
	now  *window // power, utilisation, temperature over window_s
	best *window // power over plateau_s, under load only
	// plateau is the highest mean so far; zero before there is one. power is
	// the present mean, tempAt the temperature when power fell.
	plateau, power, tempAt float64
	held                   held

	// Steps since power fell.
	steps, stepS, worst float64
}

func newSignatureRule(cfg Config) signatureRule {
	gap := seconds(cfg.GapS)
	return signatureRule{
		now:  newWindow(seconds(cfg.Signature.WindowS), gap),
		best: newWindow(seconds(cfg.Signature.PlateauS), gap),
	}
}

// judge tells whether the signature is there. base is the attempt's pace; where
// it is known, the steps must be slower as well.
func (g *signatureRule) judge(r reading, cfg Config, wedged bool, base sample.Num) bool {
	if !r.loadKnown() || !r.temp.OK {
		return false
	}
	c := cfg.Signature
	g.now.add(r.t, r.power.V, r.util.V, r.temp.V)
	if !g.now.full() {
		g.set(r.t, no, cfg)
		return false
	}
	g.power = g.now.mean(0)
	temp := g.now.mean(2)
	loaded := g.now.mean(1) >= float64(c.UtilPct)
	if !loaded {
		g.best.clear()
		g.set(r.t, no, cfg)
		return false
	}
	g.best.add(r.t, r.power.V, 0, 0)
	if g.best.full() {
		g.plateau = max(g.plateau, g.best.mean(0))
	}
	if wedged || g.plateau == 0 || g.power > (1-float64(c.PowerDrop))*g.plateau {
		g.set(r.t, no, cfg)
		return false
	}
	if !g.held.on {
		g.tempAt = temp
	}
	g.set(r.t, yes, cfg)
	hot := temp >= float64(c.TempC) || temp >= g.tempAt+float64(c.RiseC)
	slow := !base.OK || g.steps < paceSteps || g.stepS/g.steps >= (1+float64(cfg.Pace.Up))*base.V
	return hot && slow && g.held.forAt(r.t) >= seconds(c.ForS)
}

func (g *signatureRule) set(t time.Time, a answer, cfg Config) {
	was := g.held.since
	g.held.step(t, a, seconds(cfg.GapS))
	if !g.held.on || g.held.since != was {
		g.steps, g.stepS, g.worst = 0, 0, 0
	}
}

func (g *signatureRule) addSteps(n, stepS float64, base sample.Num) {
	if outlier(stepS, base) {
		return
	}
	g.steps += n
	g.stepS += n * stepS
	g.worst = max(g.worst, stepS)
}
