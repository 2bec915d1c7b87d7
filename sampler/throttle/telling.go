package throttle

import (
	"fmt"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// Pulses of a second come each few seconds or minutes for a whole night on a machine
// that is a little too warm. Each would make two lines. So after a line, the next one
// about the same type waits for ThermalRule.ReportS: what began and ended meanwhile
// is counted, and told in one line with the count and the total. Only what lasts and
// is more serious than the last line said does not wait.

// telling is what has been said about one type of pulses, and what has not.
type telling struct {
	// id and since are of the episode that was told last; at and level are of the last
	// line about it or what followed.
	id    string
	since time.Time
	at    time.Time
	level event.Level
	// What has ended since then, the episode itself included.
	episodes, pulses int
	heldS            float64
	lost             sample.Num
	until            time.Time
	maxTemp          sample.Num
	// kept are the episodes that have ended since the last line and were not told, the
	// first keptMost of them; untold is how many there are.
	kept   []map[string]any
	untold int
	// untoldS is for how long those held the GPU back.
	untoldS float64
}

// keptMost bounds what one line carries. With the built-in thresholds there can be
// ten in the time between two lines.
const keptMost = 32

// pulsed tells whether the type is made of pulses.
func pulsed(typ string) bool { return typ == ThermalThrottle || typ == HWBrake }

// tellStart writes the start of an episode, or keeps it for later.
func (d *Detector) tellStart(out *[]event.Event, e *episode, r reading) {
	level := d.level(e)
	if pulsed(e.typ) {
		l := d.told[e.typ]
		if l != nil && !e.quiet && (r.t.Sub(l.at) < seconds(d.cfg.Thermal.ReportS) || l.untold > 0) {
			e.quiet = true // what has been counted since the last line goes on; see update
			return
		}
		e.quiet = false
		d.told[e.typ] = &telling{id: e.id, since: e.since, at: r.t, level: level}
		if l != nil && l.untold > 0 {
			// One line of the two.
			ev := e.start(r, level)
			ev.Data["episodes_ended"] = l.kept
			ev.Msg += fmt.Sprintf("; before it, since the last line, %d more of %s in all", l.untold, short(l.untoldS))
			*out = append(*out, ev)
			return
		}
	}
	*out = append(*out, e.start(r, level))
}

// tellEnd writes the end of an episode whose start was told.
func (d *Detector) tellEnd(out *[]event.Event, e *episode, t time.Time, how string, level event.Level) {
	if l := d.told[e.typ]; l != nil && pulsed(e.typ) {
		l.count(e)
		if e.quiet {
			l.untold++
			l.untoldS += e.heldS
			if len(l.kept) < keptMost {
				l.kept = append(l.kept, e.kept(how))
			}
			return
		}
		l.at, l.level = t, level
		// What is seen after a gap is news, but not each time where readings drop out again
		// and again.
		if last, was := d.news[e.typ]; how == EndedUnknown && (!was || t.Sub(last) >= seconds(d.cfg.Thermal.ReportS)) {
			delete(d.told, e.typ)
			d.news[e.typ] = t
		}
	}
	*out = append(*out, e.end(t, how, level))
}

func (l *telling) count(e *episode) {
	l.episodes++
	l.pulses += e.pulses
	l.heldS += e.heldS
	l.until = e.until
	higher(&l.maxTemp, e.maxTemp)
	if lost := e.lostS(); lost.OK {
		l.lost = sample.Known(l.lost.Or(0) + lost.V)
	}
}

// kept is what a line that sums up says of an episode that had no lines of its own.
func (e *episode) kept(how string) map[string]any {
	data := map[string]any{
		"id": e.id, "since": clock.Machine(e.since), "until": clock.Machine(e.until), "ended": how,
		"pulses": e.pulses, "evidence": e.evidence(),
	}
	put(data, "throttled_s", sample.Known(e.heldS))
	put(data, "worst_temp_c", e.maxTemp)
	if e.bits != 0 {
		data["reasons"] = hex(e.bits)
	}
	return data
}

// louder tells whether a is more serious than b.
func louder(a, b event.Level) bool { return a != event.Info && b == event.Info }

// update writes what is due: a line each ReportS while pulses go on. An episode whose
// start was kept gets it after all where it lasts and is more serious than what was
// said; one whose start was told gets a line that says so.
func (d *Detector) update(out *[]event.Event, r reading) {
	for _, typ := range types {
		l, e := d.told[typ], d.open[typ]
		switch {
		case l == nil:
		case e != nil && e.quiet && e.until.Sub(e.since) >= seconds(d.cfg.MergeS) && louder(d.level(e), l.level):
			d.tellStart(out, e, r)
		case e != nil && d.raises(e, l):
			e.raised = true // once: it is graver than its start said
			d.tellUpdate(out, typ, r.t, e)
		case r.t.Sub(l.at) >= seconds(d.cfg.Thermal.ReportS) && (e != nil || l.untold > 0):
			d.tellUpdate(out, typ, r.t, e)
		}
	}
}

// raises tells that an open episode has become graver than its start said, and that no
// slowdown warns of it or may do so with its next block: that would be two warnings of
// one thing.
func (d *Detector) raises(e *episode, l *telling) bool {
	lasts := e.until.Sub(e.since) >= 2*seconds(d.cfg.MergeS)
	return lasts && !e.quiet && !e.raised && d.slow.suspect == nil && louder(d.level(e), l.level) && !d.warnedOf(e.typ)
}

// warnedOf tells that a slowdown has warned of the type.
func (d *Detector) warnedOf(typ string) bool {
	down := d.slow.down
	return down != nil && down.told.cause == typ && down.level == event.Warn
}

// tellRest writes what was kept.
func (d *Detector) tellRest(out *[]event.Event, t time.Time) {
	for _, typ := range types {
		if l := d.told[typ]; l != nil && l.untold > 0 {
			d.tellUpdate(out, typ, t, nil)
		}
	}
}

// tellUpdate writes one line with the count and the total since the last start, the
// open episode e included if there is one.
func (d *Detector) tellUpdate(out *[]event.Event, typ string, t time.Time, e *episode) {
	l := d.told[typ]
	now := *l
	share := d.pulseShare(typ, e)
	level := event.Info
	if share > float64(d.cfg.Thermal.WarnShare) {
		level = event.Warn
	}
	if e != nil {
		now.count(e)
		level = d.level(e)
	}
	if d.warnedOf(typ) {
		level = event.Info
	}
	l.at, l.level, l.untold, l.untoldS, l.kept = t, level, 0, 0, nil
	data := map[string]any{
		"type": typ, "id": now.id, "since": clock.Machine(now.since), "until": clock.Machine(now.until),
		"episodes": now.episodes, "pulses": now.pulses,
	}
	put(data, "duration_s", sample.Known(now.until.Sub(now.since).Seconds()))
	put(data, "throttled_s", sample.Known(now.heldS))
	put(data, "share_pct", sample.Known(100*share))
	put(data, "worst_temp_c", now.maxTemp)
	put(data, "lost_s", now.lost)
	if len(now.kept) > 0 {
		data["episodes_ended"] = now.kept
	}
	*out = append(*out, event.Event{
		T: t, Attempt: d.attempt, Kind: event.ThrottleUpdate, Level: level,
		Label: typ + " update", Msg: now.words(t, share), Data: data,
	})
}
