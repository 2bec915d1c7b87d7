// Package energy adds up the joules of a run's attempts, in all, by step, by token and
// above the idle machine, from the readings of a sample.
//
// Three rails are kept apart, since they are different things: the GPU by NVML (its energy
// counter; where that does not count, power times time, which is an estimate), the SoC by
// the power firmware's counter, and the whole machine by the firmware's power. The
// firmware's own figure of the GPU is held against NVML's, which is known to read low on
// a GB10.
//
// It is pure: no clock, no file, no goroutine. Nothing is invented: a counter bridges a
// time without readings, an estimate does not; a counter that fell begins anew; what is
// not known for a time is missing in Amount.KnownS.
package energy

import (
	"math"
	"time"

	"sparkrun/internal/sample"
)

// Figures is the energy of an attempt, or of all.
type Figures struct {
	// GPU is NVML's rail, GPUFirmware the same rail as the power firmware sees it, SoC
	// processors and GPU, Machine the whole machine on the DC side.
	GPU, GPUFirmware, SoC, Machine Amount
	// Ratio is GPUFirmware over GPU, where both are known for the same time.
	Ratio sample.Num
	// IdleW is the GPU's power in the seconds before the attempt first used it, unknown where
	// it was not idle then or not watched; AboveIdleJ what was used beyond it. For all attempts, IdleW is
	// their mean, and both are unknown unless each attempt has them.
	IdleW, AboveIdleJ sample.Num
	// Steps is how many steps were made between the first and the last that were seen, in
	// StepsJ joules of GPU; Tokens and TokensJ the same. What no reading covers is in
	// neither.
	Steps, StepsJ, Tokens, TokensJ float64
	// Resets counts how often NVML's counter began anew.
	Resets int
}

// Known says whether anything at all is known.
func (f Figures) Known() bool {
	return f.GPU.J.OK || f.GPUFirmware.J.OK || f.SoC.J.OK || f.Machine.J.OK
}

// PerStep is joules of GPU for a step, loading left out.
func (f Figures) PerStep() sample.Num { return over(f.StepsJ, f.Steps) }

// PerToken is joules of GPU for a token, loading left out.
func (f Figures) PerToken() sample.Num { return over(f.TokensJ, f.Tokens) }

// IdleShare is which part of the GPU's energy, 0 to 1, it would have used idle.
func (f Figures) IdleShare() sample.Num {
	if !f.AboveIdleJ.OK || f.GPU.J.V <= 0 {
		return sample.Num{}
	}
	return sample.Known(1 - f.AboveIdleJ.V/f.GPU.J.V)
}

func over(j, n float64) sample.Num {
	if n <= 0 || j <= 0 {
		return sample.Num{}
	}
	return sample.Known(j / n)
}

// tally is one attempt.
type tally struct {
	n int
	f Figures
	// waits: it has not used the GPU yet.
	waits bool
	steps units
	toks  units
}

// figures are those of the attempt so far.
func (a *tally) figures() Figures {
	f := a.f
	f.Steps, f.StepsJ, f.Tokens, f.TokensJ = a.steps.n, a.steps.j, a.toks.n, a.toks.j
	if f.GPU.J.OK && f.IdleW.OK {
		f.AboveIdleJ = sample.Known(max(0, f.GPU.J.V-f.IdleW.V*f.GPU.KnownS))
	}
	f.Ratio = ratio(f)
	return f
}

// sameTime is by how much two rails' times may differ to be compared, ratioFor the least
// of both in seconds.
const (
	sameTime = 0.05
	ratioFor = 30
)

func ratio(f Figures) sample.Num {
	a, b := f.GPUFirmware, f.GPU
	if !a.J.OK || !b.J.OK || b.J.V <= 0 || b.KnownS < ratioFor || math.Abs(a.KnownS-b.KnownS) > sameTime*b.KnownS {
		return sample.Num{}
	}
	return sample.Known(a.J.V / b.J.V)
}

// units counts steps or tokens, and the joules from one count to the next.
type units struct {
	on     bool
	last   float64
	at     time.Time
	j0, s0 float64
	n, j   float64
}

// take notes that v were done at t, when the attempt's energy was gpu. What lies between
// two counts is left out where the energy in it is not known.
func (u *units) take(v sample.Num, t time.Time, gpu Amount) {
	if !v.OK || math.IsNaN(v.V) || math.IsInf(v.V, 0) || u.on && v.V == u.last {
		return
	}
	if u.on && v.V > u.last {
		took, known := t.Sub(u.at).Seconds(), gpu.KnownS-u.s0
		if j := gpu.J.Or(0) - u.j0; gpu.J.OK && j > 0 && math.Abs(known-took) <= sameTime*took {
			u.n += v.V - u.last
			u.j += j
		}
	}
	u.on, u.last, u.at, u.j0, u.s0 = true, v.V, t, gpu.J.Or(0), gpu.KnownS
}

// Meter follows one run. Its zero value is not usable; see New. It is not safe for use by
// several goroutines at once.
type Meter struct {
	gpu, gpuFirmware, soc, machine rail

	last     time.Time // of the latest reading
	idle     idle
	cuts     []cut
	now      *tally // of the attempt that runs
	begun    int
	attempts []*tally
}

// cut is the beginning of attempt n, or with n 0 the end of the one that runs.
type cut struct {
	at time.Time
	n  int
}

// New returns a meter. Readings further apart than gap are a gap.
func New(gap time.Duration) *Meter {
	r := rail{gap: gap}
	return &Meter{gpu: r, gpuFirmware: r, soc: r, machine: r}
}

// Begin tells that attempt n began at t, and that one before is over.
func (m *Meter) Begin(n int, t time.Time) { m.cuts = append(m.cuts, cut{t, n}) }

// End tells that the attempt ended at t.
func (m *Meter) End(t time.Time) { m.cuts = append(m.cuts, cut{t, 0}) }

// firmwareGPU is the power firmware's channel of the GPU.
const firmwareGPU = "gpu"

// Sample takes the next sample. One without a reading of energy or power, or one that is
// not later than the last, tells nothing.
func (m *Meter) Sample(s *sample.Sample) {
	t := s.T.Add(-s.GPUAge)
	gpu := value{finite(s.EnergyJ), finite(s.PowerW)}
	soc := value{joules: finite(s.EnergySoCJ)}
	machine := value{watts: finite(s.PowerSys)}
	var firmware value
	for _, p := range s.Powers {
		if p.Label == firmwareGPU {
			firmware.watts = finite(p.W)
		}
	}
	if !m.last.IsZero() && !t.After(m.last) {
		return
	}
	if !(gpu.joules.OK || gpu.watts.OK || soc.joules.OK || machine.watts.OK || firmware.watts.OK) {
		return
	}
	rails := []struct {
		r    *rail
		v    value
		into func(*Figures) *Amount
	}{
		{&m.gpu, gpu, func(f *Figures) *Amount { return &f.GPU }},
		{&m.gpuFirmware, firmware, func(f *Figures) *Amount { return &f.GPUFirmware }},
		{&m.soc, soc, func(f *Figures) *Amount { return &f.SoC }},
		{&m.machine, machine, func(f *Figures) *Amount { return &f.Machine }},
	}
	from := m.last // since when the attempt that runs has what this reading adds
	n := 0
	for _, c := range m.cuts {
		if c.at.After(t) {
			break
		}
		n++
		at := c.at
		if at.Before(m.last) {
			at = m.last
		}
		for _, r := range rails {
			m.count(r.into, r.r.cut(at, t, r.v))
		}
		m.turn(c)
		from = at
	}
	m.cuts = m.cuts[n:]
	resets := m.gpu.resets
	var before Amount
	if m.now != nil {
		before = m.now.f.GPU
	}
	for _, r := range rails {
		m.count(r.into, r.r.take(t, r.v))
	}
	m.last = t
	unused := s.UtilPct.OK && s.UtilPct.V == 0
	switch {
	case m.now == nil && (unused || s.Attempt <= m.begun):
		// (One that is being started may load the GPU before its beginning is told.)
		m.idle.see(t, unused, gpu.watts)
	case m.now != nil && m.now.waits:
		// A process that has memory of the GPU keeps it awake, whatever it does.
		if m.now.waits = unused && s.GPUTreeMiB.OK && s.GPUTreeMiB.V == 0; m.now.waits {
			m.idle.see(t, true, gpu.watts)
		}
		m.now.f.IdleW = m.idle.before(t)
	}
	if m.now == nil {
		return
	}
	m.now.f.Resets += m.gpu.resets - resets
	if s.Attempt == m.now.n {
		at, gpu := t, m.now.f.GPU
		if !from.IsZero() && from.Before(t) && s.StepT.Before(t) && !s.StepT.IsZero() {
			// The step was made between two readings, and is seen at the later one.
			if at = s.StepT; at.Before(from) {
				at = from
			}
			gpu = before.towards(gpu, part(at.Sub(from), t.Sub(from)))
		}
		m.now.steps.take(finite(s.Step), at, gpu)
		m.now.toks.take(finite(s.Tokens), at, gpu)
	}
}

// count gives an increment to the attempt that runs.
func (m *Meter) count(into func(*Figures) *Amount, inc Amount) {
	if m.now != nil {
		into(&m.now.f).add(inc)
	}
}

// turn makes the attempt of a cut the one that runs.
func (m *Meter) turn(c cut) {
	m.now = nil
	if c.n == 0 {
		m.idle = idle{}
		return
	}
	m.now, m.begun = &tally{n: c.n, waits: true}, c.n
	m.now.f.IdleW = m.idle.before(c.at)
	m.attempts = append(m.attempts, m.now)
}

// Awaits says whether the next reading belongs to an attempt in part, and there was one after
// since: what is used up to an end is known only by a reading behind it.
func (m *Meter) Awaits(since time.Time) bool {
	return m.last.After(since) && (m.now != nil || len(m.cuts) > 0)
}

// Attempt returns what is known of attempt n so far.
func (m *Meter) Attempt(n int) Figures {
	for _, a := range m.attempts {
		if a.n == n {
			return a.figures()
		}
	}
	return Figures{}
}

// Total returns what is known of all attempts together. What was used between them is in
// none.
func (m *Meter) Total() Figures {
	var sum Figures
	idleJ, above, all := 0.0, 0.0, true
	for _, a := range m.attempts {
		f := a.figures()
		sum.GPU.add(f.GPU)
		sum.GPUFirmware.add(f.GPUFirmware)
		sum.SoC.add(f.SoC)
		sum.Machine.add(f.Machine)
		sum.Steps, sum.StepsJ = sum.Steps+f.Steps, sum.StepsJ+f.StepsJ
		sum.Tokens, sum.TokensJ = sum.Tokens+f.Tokens, sum.TokensJ+f.TokensJ
		sum.Resets += f.Resets
		if !f.GPU.J.OK {
			continue
		}
		all = all && f.AboveIdleJ.OK
		idleJ += f.IdleW.Or(0) * f.GPU.KnownS
		above += f.AboveIdleJ.Or(0)
	}
	if all && sum.GPU.KnownS > 0 {
		sum.IdleW, sum.AboveIdleJ = sample.Known(idleJ/sum.GPU.KnownS), sample.Known(above)
	}
	sum.Ratio = ratio(sum)
	return sum
}

// finite drops what is no reading.
func finite(n sample.Num) sample.Num {
	if !n.OK || math.IsNaN(n.V) || math.IsInf(n.V, 0) || n.V < 0 {
		return sample.Num{}
	}
	return n
}
