package preflight

import (
	"sparkrun/internal/sample"
)

// fewest is of how many readings a stretch is made at least: one alone decides nothing,
// however long the step.
const fewest = 3

// stretch follows a condition and keeps the longest time it held without a break. A
// reading in which it is not known changes nothing; after a gap it begins anew.
type stretch struct {
	gap, step   float64
	on          bool
	since, last float64
	n           int
	longest     float64
}

func (s *stretch) add(at float64, a truth) {
	switch a {
	case isNot:
		s.on = false
	case isSo:
		if !s.on || at-s.last > s.gap {
			s.on, s.since, s.n = true, at, 0
		}
		s.last = at
		if s.n++; s.n >= fewest {
			// Each reading stands for the time to the next.
			s.longest = max(s.longest, at-s.since+s.step)
		}
	}
}

// counterRule adds up for how long heat or hardware held the GPU back: by the driver's
// counters, which also keep what is over between two readings, else by the bits.
type counterRule struct {
	was [3]sample.Num
	at  [3]float64
}

func (c *counterRule) judge(g sample.GPU, at, dt, leastMS float64) (heldS float64) {
	for i, now := range [3]sample.Num{g.CtrSWThermalNS, g.CtrHWThermalNS, g.CtrHWPowerNS} {
		if !now.OK {
			continue
		}
		// A smaller value is a driver that was loaded anew.
		if was := c.was[i]; was.OK && now.V-was.V >= leastMS*1e6 {
			heldS = max(heldS, min((now.V-was.V)/1e9, at-c.at[i]))
		}
		c.was[i], c.at[i] = now, at
	}
	if heldS == 0 && slowBits(g) != 0 {
		heldS = dt
	}
	return heldS
}

// trail is a window of the last seconds, of up to three figures.
type trail struct {
	lengthS, gap, step float64
	at                 []float64
	v                  [][3]float64
	sum                [3]float64
}

func newTrail(lengthS, gap, step float64) *trail {
	return &trail{lengthS: lengthS, gap: gap, step: step}
}

func (t *trail) clear() { t.at, t.v, t.sum = nil, nil, [3]float64{} }

func (t *trail) add(at float64, v ...float64) {
	if n := len(t.at); n > 0 && at-t.at[n-1] > t.gap {
		t.clear()
	}
	var three [3]float64
	copy(three[:], v)
	t.at, t.v = append(t.at, at), append(t.v, three)
	for i, x := range three {
		t.sum[i] += x
	}
	for len(t.at) > 1 && at-t.at[0] >= t.lengthS {
		for i, x := range t.v[0] {
			t.sum[i] -= x
		}
		t.at, t.v = t.at[1:], t.v[1:]
	}
}

// full tells that the window covers its length.
func (t *trail) full() bool {
	n := len(t.at)
	return n > 0 && t.at[n-1]-t.at[0]+t.step >= t.lengthS-t.step/2
}

func (t *trail) mean(i int) float64 { return t.sum[i] / float64(max(1, len(t.at))) }

// signature is the runbook's rule made testable: power well below its own plateau, for
// long, under load, while hot.
type signature struct {
	table thermalTable
	// now is the present, best the plateau, taken under load only.
	now, best     *trail
	plateau       float64
	held          *stretch
	tempAt        float64
	below, counts float64

	dropPct, plateauW, droppedS float64
}

func newSignature(t thermalTable, gap, step float64) *signature {
	s := t.Signature
	return &signature{
		table: t, now: newTrail(s.WindowS, gap, step), best: newTrail(s.PlateauS, gap, step),
		held: &stretch{gap: gap, step: step},
	}
}

func (s *signature) add(at float64, g sample.GPU, wedged bool) {
	if !g.TempC.OK {
		return
	}
	rule := s.table.Signature
	s.now.add(at, g.PowerW.V, g.UtilPct.V, g.TempC.V)
	power, temp := s.now.mean(0), s.now.mean(2)
	if !s.now.full() || s.now.mean(1) < rule.UtilPct {
		s.best.clear()
		s.held.add(at, isNot)
		return
	}
	s.best.add(at, g.PowerW.V)
	if s.best.full() {
		s.plateau = max(s.plateau, s.best.mean(0))
	}
	if wedged || s.plateau == 0 || power > (1-rule.PowerDrop)*s.plateau {
		s.held.add(at, isNot)
		return
	}
	if !s.held.on {
		s.tempAt, s.below, s.counts = temp, 0, 0
	}
	s.held.add(at, isSo)
	s.below, s.counts = s.below+power, s.counts+1
	long := at - s.held.since + s.held.step
	hot := temp >= rule.TempC || temp >= s.tempAt+rule.RiseC
	if hot && long >= rule.ForS {
		s.dropPct, s.plateauW, s.droppedS = 100*(1-s.below/s.counts/s.plateau), s.plateau, long
	}
}
