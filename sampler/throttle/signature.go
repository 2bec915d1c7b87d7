package throttle

import (
	"time"

	"sparkrun/internal/sample"
)

// signatureRule is the runbook's G4 over time.
type signatureRule struct {
	now  *window // power, utilisation, temperature over window_s
	best *window // power and clock over plateau_s, under load only
	// clocks is the clock over window_s.
	clocks *window
	// plateau is the highest mean so far; zero before there is one. clock is the mean
	// of the clock in that time. power is the present mean, tempAt the temperature when
	// power fell.
	plateau, clock, power, tempAt float64
	held                          held

	// Steps since power fell, and those of them that no episode has counted.
	steps, stepS, worst float64
	free, freeS         float64
}

func newSignatureRule(cfg Config) signatureRule {
	return signatureRule{
		now:  newWindow(seconds(cfg.Signature.WindowS)),
		best: newWindow(seconds(cfg.Signature.PlateauS)), clocks: newWindow(seconds(cfg.Signature.WindowS)),
	}
}

// judge tells whether the signature is there. base is the attempt's pace: where it
// is not known, lower power may be another phase of the work, and nothing is said.
// explained says that something else is known to make the steps slower. Heat holds
// the GPU back by its clock: with a clock that did not fall, it is not heat.
func (g *signatureRule) judge(r reading, cfg Config, gap time.Duration, explained bool, base sample.Num) bool {
	if !r.loadKnown() || !r.temp.OK || !r.clock.OK {
		return false
	}
	c := cfg.Signature
	g.now.add(r.t, gap, r.power.V, r.util.V, r.temp.V)
	g.clocks.add(r.t, gap, r.clock.V, 0, 0)
	if !g.now.full() {
		g.set(r.t, no, gap)
		return false
	}
	g.power = g.now.mean(0)
	temp := g.now.mean(2)
	loaded := g.now.mean(1) >= float64(c.UtilPct)
	if !loaded {
		g.best.clear()
		g.set(r.t, no, gap)
		return false
	}
	g.best.add(r.t, gap, r.power.V, r.clock.V, 0)
	if g.best.full() && g.best.mean(0) > g.plateau {
		g.plateau, g.clock = g.best.mean(0), g.best.mean(1)
	}
	low := g.power <= (1-float64(c.PowerDrop))*g.plateau && g.clocks.mean(0) <= (1-float64(c.ClockDrop))*g.clock
	if explained || g.plateau == 0 || !low {
		g.set(r.t, no, gap)
		return false
	}
	if !g.held.on {
		g.tempAt = temp
	}
	g.set(r.t, yes, gap)
	hot := temp >= float64(c.TempC) || temp >= g.tempAt+float64(c.RiseC)
	slow := base.OK && g.steps >= paceSteps && g.stepS/g.steps >= (1+float64(cfg.Pace.Up))*base.V
	// The mean lags behind: what is at its plateau again now is over.
	still := r.power.V <= (1-float64(c.PowerDrop))*g.plateau
	return hot && slow && still && g.held.forAt(r.t) >= seconds(c.ForS)
}

func (g *signatureRule) set(t time.Time, a answer, gap time.Duration) {
	was := g.held.since
	g.held.step(t, a, gap)
	if !g.held.on || g.held.since != was {
		g.steps, g.stepS, g.worst, g.free, g.freeS = 0, 0, 0, 0, 0
	}
}

// addSteps takes finished steps; free ones were in no episode that held the GPU back.
func (g *signatureRule) addSteps(n, stepS float64, base sample.Num, free bool) {
	if outlier(stepS, base) {
		return
	}
	g.steps += n
	g.stepS += n * stepS
	if free {
		g.free += n
		g.freeS += n * stepS
	}
	g.worst = max(g.worst, stepS)
}

// signOnly tells that nothing but the signature shows a thermal throttle.
func (e *episode) signOnly() bool { return e.typ == ThermalThrottle && e.bySign && !e.byPulse }
