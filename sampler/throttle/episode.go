package throttle

import (
	"fmt"
	"math"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// episode is one stretch of one type.
type episode struct {
	typ, id string
	attempt int
	// since is when it began, until when it was last seen, known when anything
	// about it was last known.
	since, until, known time.Time

	// How it was recognised: reason bits or counters, the G4 signature.
	byPulse, bySign bool
	wasHot          bool
	// quiet: its start was not told; see telling.
	quiet bool
	// raised: it was told again since it is graver than its start said.
	raised bool
	// backS is for how long of it something held the GPU back, where it is no throttling
	// itself.
	backS  float64
	pulses int
	bits   sample.Reasons
	heldS  float64

	// dropPct and plateauW describe a signature, plateauW a cap.
	dropPct, plateauW float64

	// certain: the power firmware itself told its low cap; capW is the lowest it told.
	certain bool
	capW    sample.Num
	// bySys: it was the cap of the whole machine that told it, the lowest of which is sysW.
	bySys bool
	sysW  sample.Num
	// meanUtil is the mean utilisation of a wedge that means told.
	meanUtil sample.Num
	// sources that agreed that it is hot.
	sources string

	maxTemp, maxZone, minClock, minPower, maxPower sample.Num

	// base is the attempt's own step time when it began; steps and stepS are the
	// steps finished since and the time they took.
	base                    sample.Num
	steps, stepS, worstStep float64
}

// see takes a reading that shows the episode going on.
func (e *episode) see(r reading) {
	e.until, e.known = r.t, r.t
	higher(&e.maxTemp, r.temp)
	higher(&e.maxZone, r.zone)
	lower(&e.capW, r.capW)
	lower(&e.sysW, r.sysW)
	higher(&e.maxPower, r.power)
	lower(&e.minPower, r.power)
	lower(&e.minClock, r.clock)
}

func higher(worst *sample.Num, now sample.Num) {
	if now.OK && (!worst.OK || now.V > worst.V) {
		*worst = now
	}
}

func lower(worst *sample.Num, now sample.Num) {
	if now.OK && (!worst.OK || now.V < worst.V) {
		*worst = now
	}
}

func (e *episode) addSteps(n, stepS float64) {
	if outlier(stepS, e.base) {
		return
	}
	e.steps += n
	e.stepS += n * stepS
	e.worstStep = max(e.worstStep, stepS)
}

// lostS is what the steps took longer than at the attempt's own pace, unknown
// without a pace or without steps. A power cap costs nothing: it is the pace. What
// holds the GPU back costs no more than the time in which it did: steps that are longer
// around a pulse of a second have another reason.
func (e *episode) lostS() sample.Num {
	if e.typ == PowerCap || !e.base.OK || e.steps == 0 {
		return sample.Num{}
	}
	lost := max(0, e.stepS-e.steps*e.base.V)
	switch {
	case costly(e.typ):
		lost = min(lost, e.heldS)
	case e.typ == Hot:
		lost = min(lost, e.backS) // being hot alone costs nothing
	}
	return sample.Known(lost)
}

// slower tells whether it made the steps longer, with enough of them to say so.
func (e *episode) slower(cfg Config) bool {
	lost := e.lostS()
	return lost.OK && e.steps >= paceSteps && lost.V >= float64(cfg.Pace.Up)*e.steps*e.base.V
}

// lastStep is the latest step of the attempt and how long it took.
type lastStep struct{ step, stepS sample.Num }

func (l *lastStep) take(r reading) {
	if r.step.OK {
		l.step = r.step
	}
	if r.stepS.OK {
		l.stepS = r.stepS
	}
}

// put tells in each event, of pace as well, at which step it was and how long that
// one took, where there are steps and the event does not say so itself.
func (l *lastStep) put(events []event.Event) []event.Event {
	for _, e := range events {
		for key, n := range map[string]sample.Num{"step": l.step, "step_time_s": l.stepS} {
			if _, there := e.Data[key]; !there && e.Data != nil {
				put(e.Data, key, n)
			}
		}
	}
	return events
}

// start is the event of the reading that decided it.
func (e *episode) start(r reading, level event.Level) event.Event {
	data := e.data()
	put(data, "temp_c", r.temp)
	put(data, "temp_zone_c", r.zone)
	put(data, "power_w", r.power)
	put(data, "clock_sm_mhz", r.clock)
	put(data, "util_gpu_pct", r.util)
	if r.bits.OK {
		data["reasons"] = hex(sample.Reasons(r.bits.V))
	}
	put(data, "step", r.step)
	put(data, "step_time_s", r.stepS)
	put(data, "baseline_step_time_s", e.base)
	e.grounds(data)
	if e.plateauW > 0 {
		put(data, "plateau_w", sample.Known(e.plateauW))
	}
	return event.Event{
		T: r.t, Attempt: e.attempt, Kind: event.ThrottleStart, Level: level,
		Label: e.typ + " start", Msg: e.startWords(r), Data: data,
	}
}

// end is the event of the moment t at which it was found to be over.
func (e *episode) end(t time.Time, how string, level event.Level) event.Event {
	data := e.data()
	data["until"] = clock.Machine(e.until)
	data["ended"] = how
	put(data, "duration_s", sample.Known(e.until.Sub(e.since).Seconds()))
	put(data, "worst_temp_c", e.maxTemp)
	put(data, "worst_temp_zone_c", e.maxZone)
	put(data, "min_clock_sm_mhz", e.minClock)
	put(data, "min_power_w", e.minPower)
	put(data, "max_power_w", e.maxPower)
	put(data, "baseline_step_time_s", e.base)
	if costly(e.typ) {
		put(data, "throttled_s", sample.Known(e.heldS))
		data["pulses"] = e.pulses
	} else if e.backS > 0 {
		put(data, "throttled_s", sample.Known(e.backS))
	}
	if e.typ != PowerCap {
		data["steps"] = int(e.steps)
		if e.steps > 0 {
			put(data, "worst_step_time_s", sample.Known(e.worstStep))
		}
		put(data, "lost_s", e.lostS())
	}
	e.grounds(data)
	if e.bits != 0 {
		data["reasons"] = hex(e.bits)
	}
	return event.Event{
		T: t, Attempt: e.attempt, Kind: event.ThrottleEnd, Level: level,
		Label: e.typ + " end", Msg: e.endWords(how), Data: data,
	}
}

func (e *episode) data() map[string]any {
	return map[string]any{"type": e.typ, "id": e.id, "since": clock.Machine(e.since)}
}

// grounds adds what the episode rests on.
func (e *episode) grounds(data map[string]any) {
	switch {
	case pulsed(e.typ):
		data["evidence"] = e.evidence()
	case e.typ == Hot:
		data["sources"] = e.sources
	case e.typ == LowCap, e.typ == PowerWedge:
		put(data, "power_cap_pl1_w", e.capW)
		put(data, "power_cap_sys_w", e.sysW)
	}
	switch e.typ {
	case LowCap:
		data["certain"] = e.certain
	case PowerWedge:
		data["evidence"] = "every-sample"
		if e.meanUtil.OK {
			data["evidence"] = "means"
		}
	}
}

// evidence names what the episode rests on.
func (e *episode) evidence() string {
	var out []string
	if e.bits != 0 {
		out = append(out, "bits")
	}
	if e.byPulse && e.bits == 0 {
		out = append(out, "counters")
	}
	if e.bySign {
		out = append(out, "signature")
	}
	return strings.Join(out, "+")
}

// put writes a number with at most three decimals; what is unknown stays out.
func put(data map[string]any, key string, n sample.Num) {
	if n.OK {
		data[key] = math.Round(n.V*1000) / 1000
	}
}

func hex(r sample.Reasons) string { return fmt.Sprintf("0x%x", uint64(r)) }
