package guard

import (
	"math"
	"time"

	"sparkrun/internal/meminfo"
)

// Next is the decision: what to do about a reading, and what to remember.
func (p Policy) Next(s State, r Reading) (State, Decision) {
	if !s.begun {
		s.begun, s.quiet = true, r.At
	}
	if r.Run && !s.run {
		s.run = true
		for i := range s.src {
			s.src[i].swing.forgetFalls()
		}
	}
	d := Decision{Wait: maxPoll, Left: -1, Since: s.quiet}
	worst, least := -1, math.Inf(1)
	var opinions [maxSources]opinion
	late := false
	for i := range r.Levels {
		l := r.Levels[i]
		if !l.OK || l.TotalKiB == 0 {
			continue
		}
		o := p.look(&s, &d, i, l, &r)
		opinions[i] = o
		late = late || o.late
		d.Wait = min(d.Wait, pollAfter(i, l.AvailKiB, o.hard))
		if l.AvailKiB < o.soft {
			d.Wait = min(d.Wait, lowPoll)
		}
		if i == 0 && r.Run && o.slope > 0 {
			d.Wait = min(d.Wait, pollAfter(i, l.AvailKiB, o.hard/2+uint64(o.slope*react.Seconds())))
		}
		if !o.act {
			continue
		}
		// Where several have a reason, the one with the least time decides.
		left := o.toHalf
		if left < 0 {
			left = math.MaxFloat64
		}
		if worst < 0 || left < least {
			worst, least = i, left
		}
	}
	if s.thrashing(p, &r, opinions[0]) && worst < 0 {
		worst = 0
		opinions[0].act, opinions[0].why = true, WhySwapThrash
	}
	if s.acted != doNothing {
		d.Wait = minPoll
	}
	if p.Off {
		return s, d
	}
	if worst < 0 && s.acted == doNothing {
		s.quiet = r.At
		d.Since = r.At
		return s, d
	}
	if worst < 0 {
		worst = lowest(&r, &opinions)
	}
	if worst < 0 {
		return s, d
	}
	opinions[worst].late = late
	p.decide(&s, &d, worst, opinions[worst], &r)
	return s, d
}

// lowest is the source that is nearest to its floor; after a SIGTERM it is what
// the rest depends on.
func lowest(r *Reading, opinions *[maxSources]opinion) int {
	at, least := -1, math.Inf(1)
	for i, l := range r.Levels {
		if !l.OK || l.TotalKiB == 0 {
			continue
		}
		if margin := (float64(l.AvailKiB) - float64(opinions[i].hard)) / float64(l.TotalKiB); margin < least {
			at, least = i, margin
		}
	}
	return at
}

// look judges one source.
func (p Policy) look(s *State, d *Decision, i int, l Level, r *Reading) opinion {
	m := &s.src[i]
	hard, soft := p.floors(i == 0, l.TotalKiB)
	given := i == 0 && p.HardKiB > 0 || p.HardPct > 0 && p.HardPct != DefaultHardPct
	if !m.seen {
		m.seen = true
		// A floor that the machine is at before the job has taken anything says
		// nothing about the job. One that the user named is meant.
		if !given && l.AvailKiB < hard+hard/4 {
			m.lowered = true
			d.Tell[i] |= tellLowered
		}
	}
	if m.lowered && m.cameBack(r.At, l.AvailKiB, hard) {
		m.lowered = false
		d.Tell[i] |= tellWhole
	}
	if m.lowered {
		hard /= 2
	}
	m.recent.add(r.At, l.AvailKiB)
	slope, fast := m.recent.slope()
	m.swing.add(r.At, l.AvailKiB, l.TotalKiB, slope, fast)
	o := opinion{
		hard: hard, soft: soft, slope: slope,
		toHard: secondsTo(l.AvailKiB, hard, slope), toHalf: secondsTo(l.AvailKiB, hard/2, m.recent.long()),
	}
	// One allocation makes a steep moment: only what cannot be waited for is
	// asked of it.
	soon := secondsTo(l.AvailKiB, hard/2, fast)
	o.late = o.toHalf >= 0 && o.toHalf < horizon.Seconds() || soon >= 0 && soon < react.Seconds()
	o.urgent = l.AvailKiB < hard/2 || slope > 0 && m.swing.ahead(l.AvailKiB, slope, horizon) <= float64(hard/2)
	settled := m.settled(r.At, l.AvailKiB, hard)
	m.follow(d, i, l, hard, soft, settled, r.At)
	switch {
	case l.AvailKiB < hard:
		// Where the job lives this close to the floor, touching it is no news.
		if settled && !o.urgent && !o.late && r.At-m.belowSince < touch {
			if !m.toldTouch {
				m.toldTouch = true
				d.Tell[i] |= tellTouch
			}
			break
		}
		o.act, o.why = true, WhyHardFloor
	case i > 0:
		// A cgroup's limit stops its job and not the machine: there is nothing to
		// be early for.
	case r.Run && l.AvailKiB < soft && slope > 0 && m.swing.newLow(l.AvailKiB):
		// Bursts end, and the next one may go deeper than any before. So a fall
		// is a reason only if the hard floor would be too late to end it.
		if m.swing.ahead(l.AvailKiB, slope, react) <= float64(hard/2) {
			o.act, o.why = true, WhyPredicted
		}
	}
	return o
}

// cameBack is whether more than twice the hard floor has been left for a while:
// what stood close to it at the start has gone, and from now on the whole floor
// can be kept.
func (m *memory) cameBack(at time.Duration, avail, hard uint64) bool {
	if avail <= 2*hard {
		m.plenty = false
		return false
	}
	if !m.plenty {
		m.plenty, m.plentyAt = true, at
	}
	return at-m.plentyAt >= backAfter
}

// settled is whether the job has lived within twice the hard floor for a
// minute.
func (m *memory) settled(at time.Duration, avail, hard uint64) bool {
	if avail <= 2*hard {
		if !m.near {
			m.near, m.nearSince = true, at
		}
		m.nearLast = at
	} else if m.near && at-m.nearLast > nearGap {
		m.near = false
	}
	return m.near && at-m.nearSince >= settleAfter
}

// follow keeps the times below the floors and makes the notes of them.
func (m *memory) follow(d *Decision, i int, l Level, hard, soft uint64, settled bool, at time.Duration) {
	if l.AvailKiB >= hard {
		m.below = false
	} else if !m.below {
		m.below, m.belowSince = true, at
	}
	switch {
	case l.AvailKiB < soft && !m.told && !settled && (m.toldAt == 0 || at-m.toldAt > tellAgain):
		m.told, m.toldAt = true, at
		d.Tell[i] |= tellNear
	case l.AvailKiB > soft+l.TotalKiB/50:
		m.told = false
	}
}

// decide turns a reason into what is done about it.
func (p Policy) decide(s *State, d *Decision, i int, o opinion, r *Reading) {
	l := r.Levels[i]
	d.Source, d.Why = i, o.why
	d.Avail, d.Floor, d.Total = l.AvailKiB, o.hard, l.TotalKiB
	d.Slope, d.Left = o.slope, o.toHard
	d.CoTenant = r.coTenant(i, s.warned)
	switch s.acted {
	case doKill:
		if r.At-s.killAt >= killAgain {
			d.do, d.Again, s.killAt = doKill, true, r.At
		}
		return
	case doTerm:
		// The reason was given with the SIGTERM: what is asked now is only
		// whether its time is over.
		if o.late {
			d.do = doKill
		}
	default:
		switch {
		case d.CoTenant && p.OnCotenant == CotenantWarn && l.AvailKiB >= o.hard/2 && (l.AvailKiB >= o.hard || !o.late && !o.urgent):
			if s.warned {
				return
			}
			s.warned = true
			d.do = doWarn
			return
		case o.late || o.urgent:
			d.do = doKill
		default:
			// It is asked again at every look whether its time is over.
			d.do = doTerm
		}
	}
	if d.do == doNothing {
		return
	}
	d.Wait = minPoll
	s.acted = d.do
	if d.do == doKill {
		s.killAt = r.At
	}
}

// coTenant is whether somebody outside the tree surely took more of source i
// than the tree did: what has gone since the process table was looked at is held
// against the tree, unless a warning has been given already.
func (r *Reading) coTenant(i int, warned bool) bool {
	g := &r.Growth
	if !g.Known || g.In&(1<<i) == 0 || g.OutsiderKiB < max(int64(r.Levels[i].TotalKiB/100), noiseKiB) {
		return false
	}
	since := int64(0)
	if host := r.Levels[0]; host.OK && !warned && g.AvailKiB > host.AvailKiB {
		since = int64(g.AvailKiB - host.AvailKiB)
	}
	return g.OutsiderKiB > g.TreeKiB+since
}

// thrashing is whether everything has stood still for memory for some seconds
// while swap runs out. In the load phase only the hard floor acts.
func (s *State) thrashing(p Policy, r *Reading, host opinion) bool {
	l := r.Levels[0]
	t := &s.thrash
	if !r.Run || !l.OK || !r.HasPSI || r.PSIFull <= thrashPSI || l.AvailKiB >= host.soft ||
		r.SwapTotalKiB == meminfo.Unknown || r.SwapTotalKiB == 0 || r.SwapFreeKiB == meminfo.Unknown {
		*t = thrash{}
		return false
	}
	if !t.on {
		*t = thrash{on: true, since: r.At, swap: r.SwapFreeKiB}
	}
	gone := r.SwapFreeKiB < r.SwapTotalKiB/10
	falling := r.SwapFreeKiB+r.SwapTotalKiB/100 < t.swap
	return r.At-t.since >= thrashFor && (gone || falling)
}

// secondsTo is the time until a falling level is reached: 0 below it, -1 where
// it does not fall.
func secondsTo(avail, level uint64, slope float64) float64 {
	switch {
	case avail <= level:
		return 0
	case slope <= 0:
		return -1
	}
	return float64(avail-level) / slope
}

// pollAfter is how long nothing can happen.
func pollAfter(source int, avail, hard uint64) time.Duration {
	rate := uint64(hostRate)
	if source > 0 {
		rate = cgroupRate
	}
	left := avail - min(hard, avail)
	return min(max(time.Duration(float64(left)/float64(rate)*float64(time.Second)), minPoll), maxPoll)
}
