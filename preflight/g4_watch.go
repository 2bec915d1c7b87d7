package preflight

import (
	"fmt"
	"math"
	"strings"
	"time"

	"sparkrun/internal/sample"
)

// Observed is what `--watch` saw of the GPU. It is judged by G4.
type Observed struct {
	// Asked is how long the GPU was to be observed, Took how long it was, Step the time
	// between two readings.
	Asked, Took, Step time.Duration
	// Device is the GPU as the driver described it.
	Device sample.Device
	// Readings are in the order of time. One in which the driver did not answer knows no
	// temperature, power or clock.
	Readings []WatchReading
	// Interrupted tells that the user ended it before Asked was over.
	Interrupted bool
	// Trouble are sentences about what went wrong meanwhile.
	Trouble []string
}

// WatchReading is one reading of an observation.
type WatchReading struct {
	// At is the time since the first reading.
	At  time.Duration
	GPU sample.GPU
}

// watched is what the readings amount to.
type watched struct {
	// known counts the readings with power and utilisation.
	known int
	// observedS is for how long the state was known, loadS for how much of it under load,
	// deafS for how long the driver did not answer.
	observedS, loadS, deafS  float64
	temp, power, clock, util spread // under load; over all where there was none

	// heldS is for how long heat or hardware held the GPU back, by bits or counters.
	heldS float64
	bits  sample.Reasons
	// dropPct is how far power was below its plateau of plateauW, for droppedS while hot:
	// the runbook's signature. 0 where it never was for long enough.
	dropPct, plateauW, droppedS float64
	// wedgeS and lowS are the longest stretches of the wedge and of the low cap; 0 where
	// they were too short. recovered: it worked normally after the wedge.
	wedgeS, lowS float64
	recovered    bool
	// capW is the mean power at the platform's own cap; 0 where it was never there.
	capW float64
	// riseC is by how much the temperature has risen in the last minutes under load.
	riseC float64
}

// spread is the range and mean of readings.
type spread struct{ n, sum, min, max float64 }

func (s *spread) add(v sample.Num) {
	if !v.OK || math.IsNaN(v.V) || math.IsInf(v.V, 0) {
		return
	}
	if s.n == 0 {
		s.min, s.max = v.V, v.V
	}
	s.n, s.sum, s.min, s.max = s.n+1, s.sum+v.V, min(s.min, v.V), max(s.max, v.V)
}

func (s spread) mean() float64 { return s.sum / max(1, s.n) }

// weigh goes through the readings once. Each stands for the time to the next one, but for
// no longer than a gap.
func (o *Observed) weigh(t thermalTable, h hostTable) watched {
	var w watched
	step := max(o.Step.Seconds(), 0.001)
	gap := max(t.GapS, 3*step)
	ours := describes(t, o.Device)
	wedge, low := &stretch{gap: gap, step: step}, &stretch{gap: gap, step: step}
	count := counterRule{}
	sign := newSignature(t, gap, step)
	plateau := newTrail(t.PowerCap.ForS, gap, step)
	var all [4]spread
	last := math.Inf(-1)
	for _, r := range o.Readings {
		g, at := r.GPU, r.At.Seconds()
		if at <= last {
			continue
		}
		dt := at - last
		if dt > gap {
			dt = 0
		}
		if !g.PowerW.OK || !g.UtilPct.OK {
			if !g.TempC.OK && !g.ClockSMMHz.OK {
				w.deafS += step
			}
			continue
		}
		last = at
		w.known++
		w.observedS += dt
		for i, v := range []sample.Num{g.TempC, g.PowerW, g.ClockSMMHz, g.UtilPct} {
			all[i].add(v)
		}
		loaded := g.UtilPct.V >= h.Watch.LoadPct
		if loaded {
			w.loadS += dt
			w.temp.add(g.TempC)
			w.power.add(g.PowerW)
			w.clock.add(g.ClockSMMHz)
			w.util.add(g.UtilPct)
		}
		held := count.judge(g, at, dt, t.Thermal.CounterMS)
		w.heldS += held
		w.bits |= slowBits(g)
		is := isNot
		if ours && held == 0 {
			is = wedged(g, t)
		}
		wedge.add(at, is)
		if is == isNot && wedge.longest >= t.Wedge.ForS && g.UtilPct.V >= t.Wedge.UtilPct && slowBits(g) == 0 {
			w.recovered = true
		}
		low.add(at, truthOf(ours && is != isSo && held == 0 && lowCap(g, h.Watch.LowCap)))
		sign.add(at, g, is == isSo)
		plateau.add(at, g.PowerW.V, g.UtilPct.V, g.ClockSMMHz.Or(0))
		if p := t.PowerCap; ours && held == 0 && plateau.full() && plateau.mean(1) >= p.UtilPct && plateau.mean(2) >= p.ClockMHz &&
			plateau.mean(0) >= p.MinW && plateau.mean(0) <= p.MaxW {
			w.capW = plateau.mean(0)
		}
	}
	if wedge.longest >= t.Wedge.ForS {
		w.wedgeS = wedge.longest
	}
	if low.longest >= h.Watch.LowCap.ForS {
		w.lowS = low.longest
	}
	w.riseC = o.rise(t, h)
	w.dropPct, w.plateauW, w.droppedS = sign.dropPct, sign.plateauW, sign.droppedS
	if w.power.n == 0 {
		w.temp, w.power, w.clock, w.util = all[0], all[1], all[2], all[3]
	}
	return w
}

// rise compares the last minute with the one a plateau's length before it: 0 unless both
// were under load.
func (o *Observed) rise(t thermalTable, h hostTable) float64 {
	if len(o.Readings) == 0 {
		return 0
	}
	end := o.Readings[len(o.Readings)-1].At.Seconds()
	var now, before spread
	for _, r := range o.Readings {
		if !r.GPU.UtilPct.OK || r.GPU.UtilPct.V < h.Watch.LoadPct {
			continue
		}
		switch ago := end - r.At.Seconds(); {
		case ago <= t.Signature.WindowS:
			now.add(r.GPU.TempC)
		case ago >= t.Signature.PlateauS && ago <= t.Signature.PlateauS+t.Signature.WindowS:
			before.add(r.GPU.TempC)
		}
	}
	if now.n == 0 || before.n == 0 {
		return 0
	}
	return now.mean() - before.mean()
}

func truthOf(b bool) truth {
	if b {
		return isSo
	}
	return isNot
}

func lowCap(g sample.GPU, c lowCapRule) bool {
	return g.UtilPct.V >= c.UtilPct && g.PowerW.V >= c.MinW && g.PowerW.V < c.MaxW && g.ClockSMMHz.OK && g.ClockSMMHz.V < c.ClockMHz
}

// judgeObserved is G4 of an observation, in the words that a run uses. What decides in
// less time than the runbook's ten minutes is said all the same: the wedge after a minute
// in every reading, and what the GPU itself says of heat.
func judgeObserved(o *Observed, f facts) Finding {
	t, h := aboutHeat(), aboutHost()
	w := o.weigh(t, h)
	found := Finding{Evidence: w.evidence(o)}
	if w.known == 0 && w.deafS == 0 && len(o.Readings) > 0 {
		by := byDesign("the driver of this GPU gives no power or no utilisation: nothing to judge by")
		by.Evidence = found.Evidence
		return by
	}
	if w.known == 0 {
		found.Status = Skip
		found.Detail = fmt.Sprintf("the driver gave no reading in %s of watching", spanWords(o.Took.Seconds()))
		if why := o.whyDeaf(); why != "" {
			found.Detail += ": " + why
		}
		found.Fix = "timeout 20 nvidia-smi, and reboot if that hangs too"
		return found
	}
	share := w.heldS / max(w.observedS, t.Thermal.ShareFloorS)
	seen := fmt.Sprintf("watched for %s, %s under load", spanWords(w.observedS), spanWords(w.loadS))
	switch {
	case w.wedgeS > 0:
		found.Status = Warn
		found.Detail = fmt.Sprintf("power-wedge: busy for %s, yet at most %.0f MHz and %.0f W, cool and without a reason, unless you locked the clocks yourself", spanWords(w.wedgeS), t.Wedge.ClockMHz, t.Wedge.PowerW)
		if w.recovered {
			found.Detail += "; it worked normally later on"
		}
		found.Fix = unplug
	case w.heldS > 0 && share > t.Thermal.WarnShare:
		found.Status = Warn
		found.Detail = fmt.Sprintf("thermal-throttle: the GPU slowed itself for %s (%.1f %% of the time)%s, at most %.0f C", spanWords(w.heldS), 100*w.heldS/max(w.observedS, w.heldS), w.bitWords(), w.temp.max)
		found.Fix = cooling
	case w.dropPct > 0:
		found.Status = Warn
		found.Detail = fmt.Sprintf("thermal-throttle: power was %.0f %% below its own plateau of %.0f W for %s while hot, at most %.0f C", w.dropPct, w.plateauW, spanWords(w.droppedS), w.temp.max)
		found.Fix = cooling
	case w.lowS > 0:
		found.Status = Warn
		found.Detail = fmt.Sprintf("low-cap: busy for %s at %.0f W and %.0f MHz, below the plateau of a healthy machine", spanWords(w.lowS), w.power.mean(), w.clock.mean())
		found.Fix = "sudo nvidia-smi -rgc, in case somebody locked the clocks\nuse the power supply that came with the unit; if that is in use:\n" + unplug
	case w.loadS == 0:
		found.Status = Info
		found.Detail = fmt.Sprintf("no load in %s of watching: nothing to judge (%s); watch while a representative load runs", spanWords(w.observedS), w.figures())
	case w.loadS+o.Step.Seconds() < h.Watch.EnoughS:
		found.Status = Info
		found.Detail = fmt.Sprintf("%s: too short to judge, %s under load are needed; so far %s", seen, spanWords(h.Watch.EnoughS), w.soFar())
	case w.capW > 0:
		found.Status = Info
		found.Detail = fmt.Sprintf("power-cap: the GPU holds %.0f W at normal clocks (%s), the platform's own cap, not a bug and no fault; nothing to change; %s", w.capW, w.figures(), seen)
	default:
		found.Status = Pass
		found.Detail = fmt.Sprintf("%s: %s (%s)", seen, w.soFar(), w.figures())
	}
	if found.Status != Warn && w.riseC >= t.Signature.RiseC {
		found.Detail += fmt.Sprintf("; the temperature still rises (%.0f C in %s): no fault so far, watch longer", w.riseC, spanWords(t.Signature.PlateauS))
	}
	if w.deafS > 0 {
		found.Detail += fmt.Sprintf("; the driver gave no answer for %s in between", spanWords(w.deafS))
	}
	if o.Interrupted {
		found.Detail += fmt.Sprintf("; ended by you after %s of %s", spanWords(o.Took.Seconds()), spanWords(o.Asked.Seconds()))
	}
	return found
}

const cooling = "improve cooling: free the vents, a cooler room (at most 30 C), nothing on top\nor cap the clocks for the night: sudo nvidia-smi -lgc 300,2200 (undo: sudo nvidia-smi -rgc)\nno need to change batch or precision"

// soFar says what of the milder things was seen.
func (w watched) soFar() string {
	if w.heldS > 0 {
		return fmt.Sprintf("the GPU slowed itself for %s%s, too little to matter", spanWords(w.heldS), w.bitWords())
	}
	return "no throttling"
}

func (w watched) bitWords() string {
	if words := SlowReasons(w.bits); len(words) > 0 {
		return ", " + strings.Join(words, ", ")
	}
	if w.heldS > 0 {
		return ", by its counters"
	}
	return ""
}

// figures are the readings in a few words.
func (w watched) figures() string {
	var out []string
	if w.temp.n > 0 {
		out = append(out, fmt.Sprintf("at most %.0f C", w.temp.max))
	}
	out = append(out, fmt.Sprintf("%.0f W", w.power.mean()))
	if w.clock.n > 0 {
		out = append(out, fmt.Sprintf("%.0f MHz", w.clock.mean()))
	}
	return strings.Join(out, ", ")
}

func (w watched) evidence(o *Observed) []string {
	out := []string{fmt.Sprintf("%d readings, %d with power and utilisation, every %g s", len(o.Readings), w.known, o.Step.Seconds())}
	for _, v := range []struct {
		name, unit string
		spread
	}{{"temperature", "C", w.temp}, {"power", "W", w.power}, {"SM clock", "MHz", w.clock}, {"utilisation", "%", w.util}} {
		if v.n > 0 {
			out = append(out, fmt.Sprintf("%s %.0f to %.0f %s, mean %.0f", v.name, v.min, v.max, v.unit, v.mean()))
		}
	}
	return append(out, o.Trouble...)
}

// whyDeaf is the last reason for which there was no reading.
func (o *Observed) whyDeaf() string {
	for i := len(o.Readings) - 1; i >= 0; i-- {
		if why := o.Readings[i].GPU.Failed["nvml"]; why != "" {
			return why
		}
	}
	if len(o.Trouble) > 0 {
		return o.Trouble[len(o.Trouble)-1]
	}
	return o.Device.Err
}

// spanWords writes seconds as a person would.
func spanWords(s float64) string {
	switch {
	case s < 9.95:
		return fmt.Sprintf("%.2g s", s)
	case s < 100:
		return fmt.Sprintf("%.0f s", s)
	case s < 5400:
		return fmt.Sprintf("%.0f min", s/60)
	case s < 10*3600:
		return fmt.Sprintf("%.1f h", s/3600)
	case s < 48*3600:
		return fmt.Sprintf("%.0f h", s/3600)
	}
	return fmt.Sprintf("%.0f days", s/86400)
}
