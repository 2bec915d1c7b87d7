package throttle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/sample"
)

// The causes of a slowdown, as data.cause spells them, beside the types of
// throttling (thermal-throttle, hw-brake, power-wedge, low-cap).
const (
	CauseMemory     = "memory-pressure"  // memory is short, or pages go to swap
	CauseGPUProcess = "gpu-process"      // somebody else uses the GPU
	CauseInput      = "input-starvation" // the GPU waits between steps for its input
	CauseCheckpoint = "checkpoint"       // the steps behind a checkpoint are the slow ones
	CauseEval       = "eval"             // the same behind an evaluation
	CauseClock      = "clock-drop"       // the GPU's clock fell under load, nobody says why
	CauseUnknown    = "unknown"
)

// throttleCauses are the episodes that explain a slowdown by themselves, the
// surest first.
var throttleCauses = [...]string{PowerWedge, LowCap, HWBrake, ThermalThrottle}

// Gauges are read, counters grow; both as Sample has them.
const (
	gUtil = iota
	gClock
	gTemp
	gPSIMem
	gPSIIO
	gPSICPU
	gMemShare
	gGPUOther
	gPower
	gauges
)

const (
	cTreeCPU = iota
	cTreeRead
	cTreeNet
	cSwap
	counters
)

// mean is a mean of which more values can be added.
type mean struct{ v, n float64 }

func (m *mean) add(v, weight float64) {
	if weight > 0 {
		m.n += weight
		m.v += (v - m.v) * weight / m.n
	}
}

func (m mean) known() bool { return m.n > 0 }

// environment is what else was going on while steps were made: means of gauges,
// rates of counters a second.
type environment struct {
	gauge [gauges]mean
	rate  [counters]mean
	// openS is for how many seconds each of throttleCauses had an episode, heldS how
	// long the GPU was really held back, marked how long behind a checkpoint or an
	// evaluation, all of secs.
	openS                        [len(throttleCauses)]float64
	heldS, checkpoint, eval, sec float64
	// signS is the part of the thermal episodes that rests on the G4 signature alone.
	signS float64
	// marks are how many checkpoints and evaluations were seen, see markIndex.
	marks [2]int
	// slowMarked and slowElse are what steps took too long, behind such a mark and
	// otherwise.
	slowMarked, slowElse float64
}

// blend takes another environment in as one more of most at most.
func (e *environment) blend(o *environment, most float64) {
	for i := range e.gauge {
		blend(&e.gauge[i], o.gauge[i], most)
	}
	for i := range e.rate {
		blend(&e.rate[i], o.rate[i], most)
	}
	// Of these only the shares count.
	e.sec += o.sec
	e.checkpoint += o.checkpoint
	e.eval += o.eval
	if e.sec > most*3600 {
		e.sec, e.checkpoint, e.eval = e.sec/2, e.checkpoint/2, e.eval/2
	}
}

func blend(to *mean, from mean, most float64) {
	if from.known() {
		to.n = min(to.n, most-1)
		to.add(from.v, 1)
	}
}

// merge adds another environment, weighed by its length.
func (e *environment) merge(o *environment) {
	for i := range e.gauge {
		e.gauge[i].add(o.gauge[i].v, o.gauge[i].n)
	}
	for i := range e.rate {
		e.rate[i].add(o.rate[i].v, o.rate[i].n)
	}
	for i := range e.openS {
		e.openS[i] += o.openS[i]
	}
	e.heldS += o.heldS
	e.signS += o.signS
	for i, n := range o.marks {
		e.marks[i] += n
	}
	e.checkpoint += o.checkpoint
	e.eval += o.eval
	e.sec += o.sec
	e.slowMarked += o.slowMarked
	e.slowElse += o.slowElse
}

// surroundings follows what a sample says beside the steps.
type surroundings struct {
	count [counters]sample.Num
	heldS float64
}

// take adds one sample, dt after the last.
func (p *surroundings) take(e *environment, s *sample.Sample, r reading, dt time.Duration, d *Detector) {
	sec := dt.Seconds()
	share := sample.Num{}
	if s.MemTotalKiB.OK && s.MemTotalKiB.V > 0 && s.MemAvailableKiB.OK {
		share = sample.Known(s.MemAvailableKiB.V / s.MemTotalKiB.V)
	}
	for i, v := range [gauges]sample.Num{
		gUtil: r.util, gClock: r.clock, gTemp: r.temp, gPSIMem: finite(s.PSIMemSome10), gPSIIO: finite(s.PSIIOFull10),
		gPSICPU: finite(s.PSICPUSome10), gMemShare: finite(share), gGPUOther: finite(s.GPUOtherMiB), gPower: r.power,
	} {
		if v.OK {
			e.gauge[i].add(v.V, 1)
		}
	}
	swap := sample.Num{}
	if in, out := finite(s.SwapInPages), finite(s.SwapOutPages); in.OK && out.OK {
		swap = sample.Known(in.V + out.V)
	}
	for i, now := range [counters]sample.Num{cTreeCPU: finite(s.TreeCPUS), cTreeRead: finite(s.TreeReadB), cTreeNet: finite(s.TreeNetB), cSwap: swap} {
		was := p.count[i]
		p.count[i] = now
		if was.OK && now.OK && now.V >= was.V && sec > 0 {
			e.rate[i].add((now.V-was.V)/sec, sec)
		}
	}
	e.sec += sec
	for i, typ := range throttleCauses {
		if d.open[typ] != nil {
			e.openS[i] += sec
		}
	}
	if ep := d.open[ThermalThrottle]; ep != nil && ep.signOnly() {
		e.signS += sec
	}
	e.heldS += min(max(0, d.throttledS-p.heldS), sec)
	p.heldS = d.throttledS
}

// finding is a cause with what speaks for it.
type finding struct {
	cause, why string
	// pid is the other process on the GPU, zero where it is not known; name says
	// whose it is.
	pid  int
	name string
	// own: it is our own doing.
	own bool
}

// mark tells whether it is something that the training itself does now and then.
func (f finding) mark() bool { return f.cause == CauseCheckpoint || f.cause == CauseEval }

// markIndex is the place of a kind of mark in arrays.
func markIndex(kind string) int {
	if kind == MarkEval {
		return 1
	}
	return 0
}

// clue is what the cause is told from.
type clue struct {
	now, base *environment
	others    []sample.GPUProcess
	known     map[int]bool // pids that were there before
	names     NamesFunc
	// ratio is how many times longer the work took; zero where that is not known.
	ratio float64
	// free is how many checkpoints and evaluations cost nothing before; with noMarks
	// none is looked at.
	free    [2]int
	noMarks bool
	// clockCap is our own limit of the clock in MHz, zero for none.
	clockCap float64
}

// find returns the likeliest cause. What the GPU says of itself comes first, then
// what the whole machine suffers from, then what this training does itself. The G4
// signature is the GPU's word only where nothing else is known: a neighbour and swap
// cost power as well.
func (c clue) find(rule SlowdownRule) finding {
	for _, look := range []func(SlowdownRule) (finding, bool){c.throttled, c.memory, c.gpuProcess, c.signed, c.clockFell, c.marked, c.starved} {
		if f, ok := look(rule); ok {
			return f
		}
	}
	return finding{cause: CauseUnknown, why: c.unknownWords() + c.residents(rule)}
}

func (c clue) throttled(SlowdownRule) (finding, bool) {
	for i, typ := range throttleCauses {
		open := c.now.openS[i]
		if typ == ThermalThrottle {
			open -= c.now.signS
		}
		if c.now.sec <= 0 || open < 0.5*c.now.sec {
			continue
		}
		// Pulses of a second now and then make an episode, and cost nothing.
		held := c.now.heldS >= 0.1*c.now.sec
		if now, base := c.now.gauge[gClock], c.base.gauge[gClock]; pulsed(typ) && !held && now.known() && base.known() && now.v > 0.95*base.v {
			continue
		}
		return c.episode(typ), true
	}
	return finding{}, false
}

// signed is the thermal throttle that only the G4 signature shows.
func (c clue) signed(SlowdownRule) (finding, bool) {
	if c.now.sec <= 0 || c.now.signS < 0.5*c.now.sec {
		return finding{}, false
	}
	return c.episode(ThermalThrottle), true
}

// episode is the finding that an episode of that type explains it.
func (c clue) episode(typ string) finding {
	why := "there is a " + typ + " episode at the same time"
	if now, base := c.now.gauge[gClock], c.base.gauge[gClock]; now.known() && base.known() && base.v > 0 {
		why += fmt.Sprintf(", the clock is at %.0f MHz against %.0f before", now.v, base.v)
	}
	return finding{cause: typ, why: why}
}

// clockFell finds a clock that is down under load, so far that it explains a good part
// of what was lost. Between steps that wait for input the clock falls as well, and the
// utilisation with it.
func (c clue) clockFell(rule SlowdownRule) (finding, bool) {
	now, base := c.now.gauge[gClock], c.base.gauge[gClock]
	if !now.known() || !base.known() || now.v <= 0 || now.v > (1-float64(rule.ClockDrop))*base.v {
		return finding{}, false
	}
	if base.v/now.v-1 < (c.ratio-1)/3 {
		return finding{}, false
	}
	util, was := c.now.gauge[gUtil], c.base.gauge[gUtil]
	if util.known() && was.known() && util.v < (1-float64(rule.UtilDrop))*was.v {
		return finding{}, false
	}
	f := finding{cause: CauseClock, why: fmt.Sprintf("the clock is at %.0f MHz against %.0f before", now.v, base.v)}
	for _, g := range []struct {
		i    int
		form string
	}{{gUtil, "%.0f %% busy"}, {gTemp, "%.0f C"}, {gPower, "%.0f W"}} {
		if m := c.now.gauge[g.i]; m.known() {
			f.why += ", " + fmt.Sprintf(g.form, m.v)
		}
	}
	if c.clockCap > 0 && now.v <= 1.02*c.clockCap && base.v > 1.02*c.clockCap {
		f.own = true
		f.why += fmt.Sprintf(": sparkrun's own limit is %.0f MHz", c.clockCap)
	} else {
		f.why += ", and no reason is given"
	}
	return f, true
}

func (c clue) memory(rule SlowdownRule) (finding, bool) {
	var why []string
	if now := c.now.gauge[gPSIMem]; now.known() && now.v >= max(float64(rule.PSIMemPct), 2*c.base.gauge[gPSIMem].v) {
		why = append(why, fmt.Sprintf("processes wait for memory %.0f %% of the time", now.v))
	}
	if now := c.now.rate[cSwap]; now.known() && now.v >= max(float64(rule.SwapPagesS), 2*c.base.rate[cSwap].v) {
		why = append(why, fmt.Sprintf("%.1f MiB a second go to and from swap", now.v*pageKiB/1024))
	}
	if now, base := c.now.gauge[gMemShare], c.base.gauge[gMemShare]; now.known() && now.v < float64(rule.MemLowShare) && (!base.known() || base.v > 1.5*now.v) {
		why = append(why, fmt.Sprintf("only %.1f %% of the memory is available", 100*now.v))
	}
	return finding{cause: CauseMemory, why: strings.Join(why, ", ")}, len(why) > 0
}

// pageKiB is the size of a page as /proc/vmstat counts swapped ones on the
// machines this is for. It is only shown, never judged by.
const pageKiB = 4

// gpuProcess finds somebody else on the GPU who was not there before, or who
// holds clearly more of it.
func (c clue) gpuProcess(rule SlowdownRule) (finding, bool) {
	now, base := c.now.gauge[gGPUOther], c.base.gauge[gGPUOther]
	if !now.known() || !base.known() {
		return c.newcomer(rule)
	}
	grew := now.v - base.v
	var who *sample.GPUProcess
	name := ""
	// The new one that holds most; of the training's own nothing is said.
	for i, p := range c.others {
		if c.known[p.PID] || p.UsedMiB.OK && p.UsedMiB.V > now.v*1.5+float64(rule.GPUOtherMiB) || who != nil && p.UsedMiB.V <= who.UsedMiB.V {
			continue
		}
		words := ""
		if c.names != nil {
			if words = c.names(p.PID); words == "" {
				continue
			}
		}
		who, name = &c.others[i], words
	}
	if who == nil && grew >= float64(rule.GPUOtherMiB) && c.names != nil {
		// Nobody new: the one that holds most of what others hold.
		for i, p := range c.others {
			if who == nil || p.UsedMiB.V > who.UsedMiB.V {
				if words := c.names(p.PID); words != "" {
					who, name = &c.others[i], words
				}
			}
		}
	}
	f := finding{cause: CauseGPUProcess}
	switch {
	case who == nil && grew < float64(rule.GPUOtherMiB), who != nil && grew < max(16, 0.3*who.UsedMiB.V):
		return finding{}, false
	case who == nil:
		f.why = fmt.Sprintf("other processes hold %.1f GiB more on the GPU than before", grew/1024)
	default:
		f.pid, f.name = who.PID, name
		f.why = fmt.Sprintf("another process uses the GPU: pid %d", who.PID)
		if name != "" {
			f.why += " (" + name + ")"
		}
		if who.UsedMiB.OK {
			f.why += fmt.Sprintf(" with %.1f GiB", who.UsedMiB.V/1024)
		}
	}
	return f, true
}

// newcomer finds somebody new on the GPU where nobody knows how much others hold in
// all: one process that does not tell its memory is enough for that.
func (c clue) newcomer(rule SlowdownRule) (finding, bool) {
	if c.names == nil || len(c.known) == 0 {
		return finding{}, false // which ones are the training's own is not known
	}
	for _, p := range c.others {
		if c.known[p.PID] || p.UsedMiB.OK && p.UsedMiB.V < float64(rule.GPUOtherMiB) {
			continue
		}
		if name := c.names(p.PID); name != "" {
			why := fmt.Sprintf("another process uses the GPU: pid %d (%s)", p.PID, name)
			return finding{cause: CauseGPUProcess, why: why, pid: p.PID, name: name}, true
		}
	}
	return finding{}, false
}

// residents are the words for others on the GPU who were there before: one that holds
// its memory and was idle may have become busy, which no figure of it shows.
func (c clue) residents(rule SlowdownRule) string {
	if c.names == nil {
		return ""
	}
	var who *sample.GPUProcess
	name := ""
	for i, p := range c.others {
		if !c.known[p.PID] || !p.UsedMiB.OK || p.UsedMiB.V < float64(rule.GPUOtherMiB) || who != nil && p.UsedMiB.V <= who.UsedMiB.V {
			continue
		}
		if words := c.names(p.PID); words != "" {
			who, name = &c.others[i], words
		}
	}
	if who == nil {
		return ""
	}
	return fmt.Sprintf("; pid %d (%s) holds %.1f GiB on the GPU as before, and may have become busy", who.PID, name, who.UsedMiB.V/1024)
}

// marked tells whether the slow steps are those behind a checkpoint or an
// evaluation, and the others are not.
func (c clue) marked(SlowdownRule) (finding, bool) {
	kind := MarkCheckpoint
	if c.now.eval > c.now.checkpoint {
		kind = MarkEval
	}
	// Those that cost nothing before cost nothing now.
	if c.noMarks || c.free[markIndex(kind)] >= freeMarks {
		return finding{}, false
	}
	all := c.now.slowMarked + c.now.slowElse
	if all <= 0 || c.now.slowMarked < 0.7*all || c.now.sec <= 0 {
		return finding{}, false
	}
	share := func(e *environment) float64 {
		if e.sec <= 0 {
			return 0
		}
		return min(1, (e.checkpoint+e.eval)/e.sec)
	}
	if share(c.base) > 0.5*share(c.now) {
		return finding{}, false // there were as many before, and they cost nothing
	}
	if kind == MarkEval {
		return finding{cause: CauseEval, why: "the slow steps are those right behind an evaluation"}, true
	}
	return finding{cause: CauseCheckpoint, why: "the slow steps are those right behind a checkpoint"}, true
}

// freeMarks is how many checkpoints, or evaluations, show that they cost nothing.
const freeMarks = 2

// starved tells whether the GPU waits between steps while something else works:
// the loaders' processors, the disk, the network.
func (c clue) starved(rule SlowdownRule) (finding, bool) {
	now, base := c.now.gauge[gUtil], c.base.gauge[gUtil]
	if !now.known() || !base.known() || base.v < 20 || now.v > (1-float64(rule.UtilDrop))*base.v {
		return finding{}, false
	}
	// A GPU that draws what it drew is not idle: the utilisation has been seen stuck.
	if p, was := c.now.gauge[gPower], c.base.gauge[gPower]; now.v < 0.25*base.v && p.known() && was.known() && p.v > 0.9*was.v {
		return finding{}, false
	}
	var why []string
	higher := func(now, base mean, times, least float64) bool {
		return now.known() && now.v >= least && now.v >= times*base.v
	}
	if n := c.now.rate[cTreeRead]; higher(n, c.base.rate[cTreeRead], 1.5, 1<<20) {
		why = append(why, fmt.Sprintf("it reads %.1f MiB a second", n.v/(1<<20)))
	}
	if n := c.now.gauge[gPSIIO]; higher(n, c.base.gauge[gPSIIO], 2, float64(rule.PSIIOPct)) {
		why = append(why, fmt.Sprintf("everything waits for the disk %.0f %% of the time", n.v))
	}
	if n := c.now.gauge[gPSICPU]; higher(n, c.base.gauge[gPSICPU], 1.5, float64(rule.PSICPUPct)) {
		why = append(why, fmt.Sprintf("processes wait for a processor %.0f %% of the time", n.v))
	}
	if n := c.now.rate[cTreeNet]; higher(n, c.base.rate[cTreeNet], 1.5, 1<<18) {
		why = append(why, fmt.Sprintf("%.1f MiB a second come over the network", n.v/(1<<20)))
	}
	// Per step the processors then do as much as before, or more; of a slower GPU
	// they would do less a second.
	if n := c.now.rate[cTreeCPU]; higher(n, c.base.rate[cTreeCPU], 0.95, 0.5) {
		why = append(why, fmt.Sprintf("its processes keep %.1f processors busy", n.v))
	}
	if len(why) == 0 {
		return finding{}, false
	}
	f := fmt.Sprintf("the GPU waits between steps (%.0f %% busy against %.0f before) while ", now.v, base.v)
	return finding{cause: CauseInput, why: f + strings.Join(why, ", ")}, true
}

// unknownWords are what can be said where no cause was found.
func (c clue) unknownWords() string {
	var out []string
	for _, g := range []struct {
		i    int
		form string
	}{{gClock, "clock %.0f MHz against %.0f"}, {gUtil, "GPU %.0f %% busy against %.0f"}, {gTemp, "%.0f C against %.0f"}} {
		if now, base := c.now.gauge[g.i], c.base.gauge[g.i]; now.known() && base.known() {
			out = append(out, fmt.Sprintf(g.form, now.v, base.v))
		}
	}
	if len(out) == 0 {
		return "nothing that was measured explains it"
	}
	return "nothing that was measured explains it: " + strings.Join(out, ", ")
}

// causeTally adds up for how long each cause held.
type causeTally struct {
	seconds map[string]float64
	last    finding
	best    map[string]finding
}

func (t *causeTally) add(f finding, sec float64) {
	if t.seconds == nil {
		t.seconds, t.best = map[string]float64{}, map[string]finding{}
	}
	t.seconds[f.cause] += sec
	t.last = f
	if old, ok := t.best[f.cause]; !ok || old.pid == 0 || f.pid != 0 {
		t.best[f.cause] = f
	}
}

// move gives time without a cause, or with a clock that only fell, to a cause that was found to have begun as early.
func (t *causeTally) move(to string) {
	for _, from := range []string{CauseUnknown, CauseClock} {
		if sec := t.seconds[from]; sec > 0 && to != CauseUnknown && to != from {
			t.seconds[to] += sec
			delete(t.seconds, from)
		}
	}
}

// marked tells whether some of it was put down to a checkpoint or an evaluation.
func (t *causeTally) marked() bool {
	return t.seconds[CauseCheckpoint]+t.seconds[CauseEval] > 0
}

// unmark gives the time that was put down to a checkpoint or an evaluation to what it is.
func (t *causeTally) unmark(to finding) {
	for _, from := range []string{CauseCheckpoint, CauseEval} {
		if sec := t.seconds[from]; sec > 0 && to.cause != from {
			t.seconds[to.cause] += sec
			delete(t.seconds, from)
		}
	}
	if _, ok := t.best[to.cause]; !ok {
		t.best[to.cause] = to
	}
}

// top returns the cause that held longest with its share of the time. Unknown
// is the answer only where it held for most of it.
func (t *causeTally) top() (finding, float64) {
	var all, most float64
	cause := CauseUnknown
	names := make([]string, 0, len(t.seconds))
	for c, sec := range t.seconds {
		all += sec
		names = append(names, c)
	}
	slices.Sort(names)
	for _, c := range names {
		if c != CauseUnknown && t.seconds[c] > most {
			cause, most = c, t.seconds[c]
		}
	}
	if all <= 0 {
		return t.last, 0
	}
	if u := t.seconds[CauseUnknown]; u > 0.7*all {
		cause, most = CauseUnknown, u
	}
	return t.best[cause], most / all
}
