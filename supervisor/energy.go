package supervisor

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/sampler/energy"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/runlog"
)

// account keeps what each attempt has used, and what heat and pace have cost it.
type account struct {
	r *run

	mu    sync.Mutex
	meter *energy.Meter
	// begun and ended are the attempts whose begin and end the meter was told.
	begun, ended int
	// seen is the attempt of the latest sample, base the detector's summary when it began
	// and latest the newest: it counts through all attempts.
	seen         int
	base, latest throttle.Summary
	hottest      map[int]sample.Num
	heat         map[int]runlog.Heat
	// causes are seconds lost, by attempt, type and likely cause.
	causes map[int]map[string]map[string]float64
}

// gapReadings is how many readings may be missing before energy is not estimated over
// them, and energyGap the least of that time.
const (
	gapReadings = 2.5
	energyGap   = 5 * time.Second
)

// newEnergy makes the actor that keeps account. Every run has one.
func (r *run) newEnergy(context.Context) actor {
	gap := max(energyGap, time.Duration(gapReadings*float64(r.o.TelemetryInterval)))
	a := &account{
		r: r, meter: energy.New(gap),
		hottest: map[int]sample.Num{}, heat: map[int]runlog.Heat{}, causes: map[int]map[string]map[string]float64{},
	}
	r.log.Subscribe(a.told)
	return a
}

// account is the run's, nil before there is one.
func (r *run) account() *account {
	for _, a := range r.actors {
		if acc, ok := a.(*account); ok {
			return acc
		}
	}
	return nil
}

// sampled takes a reading.
func (a *account) sampled(s *sample.Sample, _ []event.Event) {
	a.r.mu.Lock()
	sum := a.r.detector.Summary()
	a.r.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follow(a.r.live.Load())
	a.meter.Sample(s)
	a.attemptAt(s.Attempt, sum)
	for _, t := range []sample.Num{s.TempC, s.ZoneMaxC} {
		if was := a.hottest[s.Attempt]; t.OK && (!was.OK || t.V > was.V) {
			a.hottest[s.Attempt] = t
		}
	}
}

// follow tells the meter when the attempt whose child is there began and ended.
func (a *account) follow(at *attempt) {
	if at == nil {
		return
	}
	if at.n > a.begun {
		a.begun = at.n
		a.meter.Begin(at.n, at.start)
	}
	if a.ended >= at.n {
		return
	}
	switch e := at.exit.Load(); {
	case e != nil && e.Boot > 0:
		a.ended = at.n
		a.meter.End(a.r.clk.At(e.Boot))
	case e != nil, at.lost.Load():
		a.ended = at.n
		a.meter.End(a.r.clk.Now())
	}
}

// attemptAt takes the detector's summary at a sample of attempt n.
func (a *account) attemptAt(n int, sum throttle.Summary) {
	if n != a.seen {
		// What the detector closed of the attempt before is in sum already, and so is what
		// it made of the new one's first reading: only the pace is the old one's for certain.
		last := a.latest
		last.ByType = maps.Clone(last.ByType)
		for _, typ := range []string{throttle.SlowStart, throttle.Slowdown} {
			if t, ok := sum.ByType[typ]; ok {
				if last.ByType == nil {
					last.ByType = map[string]throttle.TypeSummary{}
				}
				last.ByType[typ] = t
			}
		}
		last.Pace = a.latest.Pace
		a.keep(last)
		a.seen, a.base = n, last
	}
	a.latest = sum
}

// keep notes the attempt's part of a summary.
func (a *account) keep(sum throttle.Summary) {
	if h, ok := heatOf(a.base, sum); ok && a.seen > 0 {
		a.heat[a.seen] = h
	}
}

// told takes the cause of a slow stretch at its end. It is called for every event, by any
// goroutine.
func (a *account) told(e event.Event) {
	if e.Kind != event.ThrottleEnd {
		return
	}
	typ, _ := e.Data["type"].(string)
	cause, _ := e.Data["cause"].(string)
	lost, _ := e.Data["lost_s"].(float64)
	if cause == "" || typ != throttle.Slowdown && typ != throttle.SlowStart {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	types := a.causes[e.Attempt]
	if types == nil {
		types = map[string]map[string]float64{}
		a.causes[e.Attempt] = types
	}
	if types[typ] == nil {
		types[typ] = map[string]float64{}
	}
	types[typ][cause] += lost
}

// readingMost is the longest that the end of a run waits for a reading, readingLook how often
// it looks.
const (
	readingMost = 2 * time.Second
	readingLook = 20 * time.Millisecond
)

// awaitReading waits for the reading behind the last attempt's end: without one, nobody knows what
// its last moment used, or a short attempt at all. It waits an interval of telemetry at most,
// not beyond readingMost after that end, and not at all where the GPU is not read or readings are
// further apart than that.
func (a *account) awaitReading(leave <-chan struct{}) {
	if a == nil || a.r.o.TelemetryInterval > readingMost {
		return
	}
	at := a.r.live.Load()
	if at == nil || at.end.IsZero() {
		return
	}
	// A reading is taken a moment before its row, and a row a moment after it is due.
	most := min(readingMost, a.r.o.TelemetryInterval+readingMost/4)
	for a.r.clk.Now().Sub(at.end) < most && a.awaits() {
		select {
		case <-leave:
			return
		case <-time.After(readingLook):
		}
	}
}

// awaits says whether a reading would tell more of an attempt that is over.
func (a *account) awaits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follow(a.r.live.Load())
	// An attempt that nobody has read anything of for long will not be read now.
	return a.meter.Awaits(a.r.clk.Now().Add(-readingMost))
}

// stop takes the end of an attempt that no sample came after.
func (a *account) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follow(a.r.live.Load())
}

// finished takes the detector's last summary.
func (a *account) finished(sum throttle.Summary) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latest = sum
}

// attempt is what run.json says of attempt n, as it stands.
func (a *account) attempt(n int) (*runlog.Heat, *runlog.Energy) {
	if a == nil {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n == a.seen {
		a.keep(a.latest)
	}
	h, known := a.heat[n]
	h.HottestC = a.hottest[n]
	h.Types = withCauses(h.Types, a.causes[n])
	if !known && !h.HottestC.OK {
		return nil, runlog.EnergyOf(a.meter.Attempt(n))
	}
	return &h, runlog.EnergyOf(a.meter.Attempt(n))
}

// total is what run.json says of all attempts.
func (a *account) total() (*runlog.Heat, energy.Figures) {
	if a == nil {
		return nil, energy.Figures{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keep(a.latest)
	h, known := heatOf(throttle.Summary{}, a.latest)
	causes := map[string]map[string]float64{}
	for n, types := range a.causes {
		if n == 0 {
			continue
		}
		for typ, by := range types {
			if causes[typ] == nil {
				causes[typ] = map[string]float64{}
			}
			for cause, s := range by {
				causes[typ][cause] += s
			}
		}
	}
	h.Types = withCauses(h.Types, causes)
	// Attempts differ in their pace: what each lost is in its own steps.
	h.LostSteps = sample.Num{}
	for _, at := range a.heat {
		if at.LostSteps.OK {
			h.LostSteps = sample.Known(h.LostSteps.Or(0) + at.LostSteps.V)
		}
	}
	for _, c := range a.hottest {
		if c.OK && (!h.HottestC.OK || c.V > h.HottestC.V) {
			h.HottestC = c
		}
	}
	if !known && !h.HottestC.OK {
		return nil, a.meter.Total()
	}
	return &h, a.meter.Total()
}

// heatOf is what came between two summaries; false where nothing is known.
func heatOf(from, to throttle.Summary) (runlog.Heat, bool) {
	h := runlog.Heat{LostS: increase(from.LostS, to.LostS), BaselineS: round(to.Pace.BaselineS), Compared: to.Pace.Compared}
	if s := to.ObservedS - from.ObservedS; s > 0 {
		held := max(0, throttledSeconds(to)-throttledSeconds(from))
		h.ObservedS, h.ThrottledS = round(sample.Known(s)), round(sample.Known(held))
		h.ThrottledShare = sample.Known(math.Round(min(1, held/s)*1e5) / 1e5)
	}
	if h.LostS.OK && to.Pace.BaselineS.OK && to.Pace.BaselineS.V > 0 {
		h.LostSteps = sample.Known(math.Round(h.LostS.V/to.Pace.BaselineS.V*10) / 10)
	}
	for typ, t := range to.ByType {
		was := from.ByType[typ]
		if t.Episodes == was.Episodes && t.Seconds <= was.Seconds {
			continue
		}
		if h.Types == nil {
			h.Types = map[string]runlog.HeatType{}
		}
		one := runlog.HeatType{
			Episodes: t.Episodes - was.Episodes, Pulses: t.Pulses - was.Pulses, Seconds: round(sample.Known(t.Seconds - was.Seconds)),
			LostS: increase(was.LostS, t.LostS), LostSteps: increase(was.LostSteps, t.LostSteps),
		}
		if holdsBack(typ) {
			one.ThrottledS = round(sample.Known(t.ThrottledS - was.ThrottledS))
		}
		h.Types[typ] = one
	}
	return h, h.ObservedS.OK || h.BaselineS.OK || h.Compared != "" || len(h.Types) > 0
}

// holdsBack says whether an episode of the type is the GPU's being held back.
func holdsBack(typ string) bool {
	switch typ {
	case throttle.Slowdown, throttle.SlowStart, throttle.PowerCap, throttle.Hot:
		return false
	}
	return true
}

// increase is by how much a sum that began unknown has grown.
func increase(from, to sample.Num) sample.Num {
	if !to.OK || from.OK && from.V == to.V {
		// Nothing was added that anybody could tell.
		return sample.Num{}
	}
	return round(sample.Known(max(0, to.V-from.Or(0))))
}

func withCauses(types map[string]runlog.HeatType, causes map[string]map[string]float64) map[string]runlog.HeatType {
	if len(types) == 0 {
		return nil
	}
	out := maps.Clone(types)
	for typ, by := range causes {
		if t, ok := out[typ]; ok {
			t.Causes = map[string]float64{}
			for cause, s := range by {
				t.Causes[cause] = round(sample.Known(s)).V
			}
			out[typ] = t
		}
	}
	return out
}

// round leaves milliseconds and millijoules.
func round(n sample.Num) sample.Num {
	if n.OK {
		n.V = math.Round(n.V*1000) / 1000
	}
	return n
}

// topCause is the likely cause that cost most, and whether there were others.
func topCause(by map[string]float64) (cause string, others bool) {
	for _, name := range slices.Sorted(maps.Keys(by)) {
		if cause == "" || by[name] > by[cause] {
			cause = name
		}
	}
	return cause, len(by) > 1
}
