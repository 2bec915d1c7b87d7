package throttle

import (
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// A temperature outside of these is no temperature of a running machine.
const (
	zoneLeastC = -40
	zoneMostC  = 150
	// zoneStep: zones that read the same to this many degrees may be one sensor. Their
	// names do not tell: they all have the same, and have been seen to swap values.
	zoneStep = 0.05
)

// hottestZones returns the hottest zone, the hottest of those that read something
// else, so that no sensor speaks twice, and the third of all, whatever they read.
func hottestZones(s *sample.Sample) (first, second, third sample.Num) {
	plausible := func(n sample.Num) sample.Num {
		if n = finite(n); n.OK && (n.V < zoneLeastC || n.V > zoneMostC) {
			return sample.Num{}
		}
		return n
	}
	var next sample.Num // the second of all
	for _, z := range s.Zones {
		c := plausible(z.C)
		switch {
		case !c.OK:
		case !first.OK || c.V > first.V:
			first, next, third = c, first, next
		case !next.OK || c.V > next.V:
			next, third = c, next
		default:
			higher(&third, c)
		}
	}
	if !first.OK {
		return plausible(s.ZoneMaxC), sample.Num{}, sample.Num{}
	}
	for _, z := range s.Zones {
		if c := plausible(z.C); c.OK && c.V < first.V-zoneStep {
			higher(&second, c)
		}
	}
	return first, second, third
}

// Which sources agreed, as data.sources says.
const (
	hotDie   = "zone+die"
	hotZones = "two-zones"
	hotThree = "three-zones" // that may read alike, or be far above the die
	hotAlone = "die"         // very hot for some time, and no zone speaks against it
)

// judgeHot tells when the machine is as hot as others were that turned themselves
// off. One zone alone says nothing.
func (d *Detector) judgeHot(out *[]event.Event, r reading) {
	e := d.open[Hot]
	state, sources := hotAnswer(r, d.cfg, e != nil)
	die := dieAnswer(r, d.cfg, e != nil)
	d.dieHot.step(r.t, die, d.gap())
	if e != nil {
		e.backS += d.heldNow
	}
	alone := die == yes && d.dieHot.n >= dieReadings && d.dieHot.forAt(r.t) >= seconds(d.cfg.Hot.DieForS)
	switch {
	case state == yes:
	case alone:
		state, sources = yes, hotAlone
	case state == unknown && die == no:
		state = no // without zones the die decides
	}
	switch {
	case state == yes && e == nil:
		since := r.t
		if sources == hotAlone {
			since = d.dieHot.since
		}
		e = d.newEpisode(Hot, since, r)
		e.sources = sources
		e.see(r)
		d.tellStart(out, e, r)
	case state == yes:
		e.see(r)
		if hotRank[sources] > hotRank[e.sources] {
			e.sources = sources
		}
	case state == no && e != nil:
		e.known = r.t
		if r.t.Sub(e.until) >= seconds(d.cfg.Hot.QuietS) {
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}

// dieReadings are needed at least of a die that is hot by itself.
const dieReadings = 3

// dieAnswer judges the die alone. Zones run above it: where the hottest one is cooler
// than the die, one of the two is wrong.
func dieAnswer(r reading, cfg Config, on bool) answer {
	c := cfg.Hot
	least := float64(c.DieAloneC)
	if on {
		least = float64(min(c.DieC, c.DieAloneC))
	}
	switch {
	case !r.temp.OK && r.zone.OK && r.zone.V < min(least-zoneStep, float64(c.ZoneOffC)):
		return no // it would speak against any die that is hot
	case !r.temp.OK:
		return unknown
	case r.zone.OK && r.zone.V < r.temp.V-zoneStep && r.zone.V < float64(c.ZoneOffC):
		return no
	case r.temp.V >= least:
		return yes
	}
	return no
}

// hotRank orders what agreed: the surest is kept.
var hotRank = map[string]int{hotAlone: 1, hotThree: 2, hotZones: 3, hotDie: 4}

// hotAnswer judges one reading. To begin, the hottest zone must be at its limit and a
// second source agree; to go on, it must not have come down to the lower limit. A die
// that is far cooler speaks against a zone, but not against three of them: the
// processors can be hot while the GPU rests. Zones that read alike may be one sensor and
// a maximum made of it, so that three are needed of them, and no cool die.
func hotAnswer(r reading, cfg Config, on bool) (a answer, sources string) {
	c := cfg.Hot
	if !r.zone.OK {
		return unknown, ""
	}
	cool := r.temp.OK && r.zone.V-r.temp.V > float64(c.DieBelowC)
	differ := r.zone2.OK && r.zone2.V >= float64(c.ZoneOffC)
	three := r.zone3.OK && r.zone3.V >= float64(c.ZoneOffC) && (differ || !cool)
	if cool && !three || r.zone.V < float64(c.ZoneOffC) {
		return no, ""
	}
	switch {
	case r.zone.V < float64(c.ZoneC):
	case r.temp.OK && r.temp.V >= float64(c.DieC):
		return yes, hotDie
	case differ && !cool:
		return yes, hotZones
	case three:
		return yes, hotThree
	}
	if on {
		return yes, ""
	}
	return no, ""
}
