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

// hottestZones returns the hottest zone and the hottest of those that read something
// else, so that no sensor speaks twice.
func hottestZones(s *sample.Sample) (first, second sample.Num) {
	plausible := func(n sample.Num) sample.Num {
		if n = finite(n); n.OK && (n.V < zoneLeastC || n.V > zoneMostC) {
			return sample.Num{}
		}
		return n
	}
	for _, z := range s.Zones {
		higher(&first, plausible(z.C))
	}
	if !first.OK {
		return plausible(s.ZoneMaxC), sample.Num{}
	}
	for _, z := range s.Zones {
		if c := plausible(z.C); c.OK && c.V < first.V-zoneStep {
			higher(&second, c)
		}
	}
	return first, second
}

// Which sources agreed, as data.sources says.
const (
	hotDie   = "zone+die"
	hotZones = "two-zones"
)

// judgeHot tells when the machine is as hot as others were that turned themselves
// off. One sensor alone says nothing.
func (d *Detector) judgeHot(out *[]event.Event, r reading) {
	e := d.open[Hot]
	state, sources := hotAnswer(r, d.cfg, e != nil)
	switch {
	case state == yes && e == nil:
		e = d.newEpisode(Hot, r.t, r)
		e.sources = sources
		e.see(r)
		d.tellStart(out, e, r)
	case state == yes:
		e.see(r)
		if e.sources != hotDie && sources != "" {
			e.sources = sources
		}
	case state == no && e != nil:
		e.known = r.t
		if r.t.Sub(e.until) >= seconds(d.cfg.Hot.QuietS) {
			d.end(out, e, r.t, EndedQuiet)
		}
	}
}

// hotAnswer judges one reading. To begin, the hottest zone must be at its limit and a
// second source agree; to go on, it must not have come down to the lower limit. A die
// that is far cooler than the zone speaks against it in any case.
func hotAnswer(r reading, cfg Config, on bool) (a answer, sources string) {
	c := cfg.Hot
	if !r.zone.OK {
		return unknown, ""
	}
	if r.temp.OK && r.zone.V-r.temp.V > float64(c.DieBelowC) || r.zone.V < float64(c.ZoneOffC) {
		return no, ""
	}
	switch {
	case r.zone.V < float64(c.ZoneC):
	case r.temp.OK && r.temp.V >= float64(c.DieC):
		return yes, hotDie
	case r.zone2.OK && r.zone2.V >= float64(c.ZoneOffC):
		return yes, hotZones
	}
	if on {
		return yes, ""
	}
	return no, ""
}
