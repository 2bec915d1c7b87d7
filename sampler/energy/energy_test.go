package energy

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/sample"
)

var t0 = time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

var no = sample.Num{}

func k(v float64) sample.Num { return sample.Known(v) }

// night plays readings into a meter, one a second.
type night struct {
	m *Meter
	s float64
	// counter is NVML's energy; watts its power, on while it counts.
	counter, watts float64
	counts, blind  bool
	attempt        int
	util           float64
	step, tokens   sample.Num
	more           func(*sample.Sample)
}

func newNight(counts bool) *night {
	return &night{m: New(5 * time.Second), counter: 1e6, watts: 10, counts: counts}
}

func (n *night) run(seconds int) {
	for range seconds {
		n.s++
		n.counter += n.watts
		if n.blind {
			continue
		}
		x := sample.Sample{T: at(n.s), Attempt: n.attempt, Step: n.step, Tokens: n.tokens}
		x.PowerW, x.UtilPct = k(n.watts), k(n.util)
		if n.counts {
			x.EnergyJ = k(n.counter)
		}
		if n.more != nil {
			n.more(&x)
		}
		n.m.Sample(&x)
	}
}

func (n *night) begin() {
	n.attempt++
	n.m.Begin(n.attempt, at(n.s))
	n.util, n.watts = 95, 90
}

func (n *night) end() { n.m.End(at(n.s)); n.util, n.watts = 0, 10 }

func near(t *testing.T, what string, got sample.Num, want float64) {
	t.Helper()
	if !got.OK || math.Abs(got.V-want) > 1e-6*math.Max(1, math.Abs(want)) {
		t.Errorf("%s: %+v, want %v", what, got, want)
	}
}

func TestAttemptsByTheCounter(t *testing.T) {
	t.Parallel()
	n := newNight(true)
	n.run(10)
	n.begin()
	n.run(60) // loading
	for i := range 20 {
		n.step, n.tokens = k(float64(100+i)), k(float64(4096*(i+1)))
		n.run(10)
	}
	n.end()
	n.run(40) // the gate
	n.begin()
	n.step, n.tokens = no, no
	n.run(100)
	n.end()
	n.run(5)

	f := n.m.Attempt(1)
	near(t, "joules", f.GPU.J, 90*260)
	if !f.GPU.Counted() || f.GPU.KnownS != 260 || f.Resets != 0 {
		t.Errorf("%+v", f)
	}
	near(t, "a step", f.PerStep(), 900)
	near(t, "a token", f.PerToken(), 900.0/4096)
	near(t, "idle", f.IdleW, 10)
	near(t, "above idle", f.AboveIdleJ, 80*260)
	if f.Steps != 19 {
		t.Errorf("%v steps", f.Steps)
	}
	second := n.m.Attempt(2)
	near(t, "second", second.GPU.J, 90*100)
	if second.PerStep().OK || second.PerToken().OK {
		t.Error("a step without steps")
	}
	sum := n.m.Total()
	near(t, "total", sum.GPU.J, 90*360) // not the gate
	near(t, "total above idle", sum.AboveIdleJ, 80*360)
	near(t, "idle share", sum.IdleShare(), 1.0/9)
	near(t, "a step of all", sum.PerStep(), 900)
	if f := n.m.Attempt(3); f.Known() {
		t.Errorf("an attempt that never was: %+v", f)
	}
}

// TestBoundariesLieBetweenReadings: an attempt begins and ends when it does, not when
// somebody looks.
func TestBoundariesLieBetweenReadings(t *testing.T) {
	t.Parallel()
	for _, counts := range []bool{true, false} {
		n := newNight(counts)
		n.watts = 50
		n.run(5)
		n.m.Begin(1, at(n.s+0.25))
		n.attempt = 1
		n.run(10)
		n.m.End(at(n.s + 0.5))
		n.run(1)
		f := n.m.Attempt(1)
		near(t, "joules", f.GPU.J, 50*10.25)
		if math.Abs(f.GPU.KnownS-10.25) > 1e-9 || f.GPU.Counted() != counts {
			t.Errorf("counter %v: %+v", counts, f.GPU)
		}
	}
}

func TestCounterThatBeginsAnew(t *testing.T) {
	t.Parallel()
	n := newNight(true)
	n.run(5)
	n.begin()
	n.run(50)
	n.counter = 0 // the driver is loaded anew
	n.run(50)
	f := n.m.Attempt(1)
	near(t, "joules", f.GPU.J, 90*100)
	if f.Resets != 1 || f.GPU.EstimatedS != 1 || !f.GPU.Counted() {
		t.Errorf("%+v", f)
	}
	// One over a gap leaves out what nobody saw, and does not make it up.
	n.blind = true
	n.run(60)
	n.counter, n.blind = 5, false
	n.run(40)
	f = n.m.Attempt(1)
	near(t, "joules", f.GPU.J, 90*139)
	if f.Resets != 2 || f.GPU.KnownS != 139 {
		t.Errorf("%+v", f)
	}
	// A leap is none of a GPU's.
	n.counter += 1e9
	n.run(10)
	f = n.m.Attempt(1)
	near(t, "joules", f.GPU.J, 90*149)
	if f.Resets != 3 {
		t.Errorf("%+v", f)
	}
}

func TestGapsAreBridgedByTheCounterAlone(t *testing.T) {
	t.Parallel()
	for _, counts := range []bool{true, false} {
		n := newNight(counts)
		n.run(5)
		n.begin()
		n.step = k(1)
		n.run(20)
		n.step = k(2)
		n.run(10)
		n.blind = true
		n.run(400)
		n.blind = false
		n.step = k(40)
		n.run(10)
		n.step = k(41)
		n.run(10)
		f := n.m.Attempt(1)
		want, steps := 90*450.0, 40.0
		if !counts {
			// The first second too is power that was never read at its beginning.
			want, steps = 10.0*1/2+90*1.0/2+90*(29+19), 2
		}
		near(t, "joules", f.GPU.J, want)
		if f.Steps != steps {
			t.Errorf("counter %v: %v steps, want %v", counts, f.Steps, steps)
		}
		near(t, "a step", f.PerStep(), map[bool]float64{true: 90 * 440.0 / 40, false: 90 * 30.0 / 2}[counts])
	}
}

// TestCounterThatStandsStill counts nothing; what power says is told as the estimate it is.
func TestCounterThatStandsStill(t *testing.T) {
	t.Parallel()
	n := newNight(false)
	n.more = func(s *sample.Sample) { s.EnergyJ = k(77) }
	n.run(5)
	n.begin()
	n.run(100)
	f := n.m.Attempt(1)
	near(t, "joules", f.GPU.J, 90*99.0+50)
	if f.GPU.Counted() || f.GPU.EstimatedS != 100 {
		t.Errorf("%+v", f.GPU)
	}
}

// TestCounterInSteps: one that moves every ten seconds takes the place of the estimates.
func TestCounterInSteps(t *testing.T) {
	t.Parallel()
	n := newNight(false)
	n.more = func(s *sample.Sample) {
		s.EnergyJ = k(math.Floor(n.counter/900) * 900)
		s.PowerW = k(60) // reads low
	}
	n.run(5)
	n.begin()
	n.run(201)
	f := n.m.Attempt(1)
	if !f.GPU.Counted() || math.Abs(f.GPU.J.V-90*201) > 2*900 {
		t.Errorf("%+v", f.GPU)
	}
}

func TestIdleIsUnknownUnlessSeen(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(n *night){
		"two readings": func(n *night) { n.run(2) },
		"work before":  func(n *night) { n.run(5); n.util = 40; n.run(1) },
		"no utilisation": func(n *night) {
			n.more = func(s *sample.Sample) { s.UtilPct = no }
			n.run(10)
		},
		"long ago": func(n *night) { n.run(10); n.blind = true; n.run(20); n.blind = false },
	} {
		n := newNight(true)
		before(n)
		n.begin()
		n.run(10)
		if f := n.m.Attempt(1); f.IdleW.OK || f.AboveIdleJ.OK || !f.GPU.J.OK {
			t.Errorf("%s: %+v", name, f)
		}
		if f := n.m.Total(); f.IdleW.OK || f.AboveIdleJ.OK || f.IdleShare().OK {
			t.Errorf("%s: total %+v", name, f)
		}
	}
	// Before the attempt takes memory of the GPU it is as idle as it was.
	for tree, want := range map[sample.Num]sample.Num{k(0): k(10), k(700): no, no: no} {
		n := newNight(true)
		n.more = func(s *sample.Sample) { s.GPUTreeMiB = tree }
		n.m.Begin(1, at(0.5))
		n.attempt = 1
		n.run(10)
		n.util, n.watts = 90, 90
		n.run(50)
		if got := n.m.Attempt(1).IdleW; got != want {
			t.Errorf("with %v MiB: idle %v, want %v", tree, got, want)
		}
	}
	// Work of the attempt itself that is seen before its beginning is told spoils nothing.
	n := newNight(true)
	n.run(10)
	n.attempt, n.util, n.watts = 1, 90, 90
	n.run(1)
	n.m.Begin(1, at(10.1))
	n.run(10)
	near(t, "idle", n.m.Attempt(1).IdleW, 10)
}

func TestRails(t *testing.T) {
	t.Parallel()
	n := newNight(true)
	n.more = func(s *sample.Sample) {
		s.EnergySoCJ, s.PowerSys = k(500+130*n.s), k(165)
		s.Powers = []sample.Power{{Label: "pl1", W: k(130)}, {Label: "gpu", W: k(1.4 * n.watts)}}
	}
	n.run(5)
	n.begin()
	n.run(1) // the power climbs
	n.run(100)
	f := n.m.Attempt(1)
	near(t, "GPU", f.GPU.J, 90*101)
	near(t, "SoC", f.SoC.J, 130*101)
	near(t, "machine", f.Machine.J, 165*101)
	if !f.SoC.Counted() || f.Machine.Counted() || f.GPUFirmware.Counted() {
		t.Errorf("%+v", f)
	}
	if r := f.Ratio; !r.OK || math.Abs(r.V-1.4) > 0.02 {
		t.Errorf("ratio %+v", r)
	}
	if r := n.m.Total().Ratio; r != f.Ratio {
		t.Errorf("ratio of all %+v", r)
	}
	// Where one of the two was not read for long, they are of different times.
	more := n.more
	n.more = func(s *sample.Sample) { more(s); s.Powers = nil }
	n.run(100)
	if r := n.m.Attempt(1).Ratio; r.OK {
		t.Errorf("ratio of different times %+v", r)
	}
}

func TestNothingIsNothing(t *testing.T) {
	t.Parallel()
	m := New(5 * time.Second)
	m.Begin(1, at(0))
	for i := range 50 {
		s := sample.Sample{T: at(float64(i)), Attempt: 1, Step: k(float64(i))}
		s.PowerW, s.EnergyJ = k(math.NaN()), k(-1)
		m.Sample(&s)
	}
	m.End(at(50))
	for _, f := range []Figures{m.Attempt(1), m.Total()} {
		if f.Known() || f.PerStep().OK || f.IdleShare().OK || f.Ratio.OK {
			t.Errorf("%+v", f)
		}
	}
}

// TestAwaitsTheReadingBehindTheEnd: only that one tells what the last moment used, and where
// nothing is read there is nothing to wait for.
func TestAwaitsTheReadingBehindTheEnd(t *testing.T) {
	t.Parallel()
	blind := New(5 * time.Second)
	blind.Begin(1, at(0))
	blind.End(at(1))
	if blind.Awaits(at(-9)) {
		t.Error("a machine without a reading is waited for")
	}
	for _, counts := range []bool{true, false} {
		n := newNight(counts)
		n.run(3)
		if n.m.Awaits(at(n.s - 2)) {
			t.Error("no attempt is waited for")
		}
		n.begin()
		n.watts = 10
		n.m.End(at(n.s + 0.9)) // a run of a moment
		if !n.m.Awaits(at(n.s-2)) || n.m.Attempt(1).Known() {
			t.Error("what nobody has read yet is not waited for")
		}
		if n.m.Awaits(at(n.s + 1)) {
			t.Error("a GPU that has gone silent is waited for")
		}
		n.run(1)
		if n.m.Awaits(at(n.s - 2)) {
			t.Error("there is nothing more to know, and it is waited for")
		}
		near(t, "joules", n.m.Attempt(1).GPU.J, 9)
	}
}

// TestStepsThatFall: a second stage counts from one again.
func TestStepsThatFall(t *testing.T) {
	t.Parallel()
	n := newNight(true)
	n.begin()
	for _, step := range []float64{10, 11, 12, 1, 2} {
		n.step = k(step)
		n.run(10)
	}
	if f := n.m.Attempt(1); f.Steps != 3 || f.StepsJ != 3*900 {
		t.Errorf("%+v", f)
	}
}

// TestNeverBelowNothing: whatever is read, energy is not negative, no longer known than
// there was time, and the total is the sum.
func TestNeverBelowNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := New(5 * time.Second)
		num := rapid.Custom(func(t *rapid.T) sample.Num {
			return rapid.SampledFrom([]sample.Num{no, k(0), k(1), k(90), k(91), k(500), k(1e6), k(-5), k(math.Inf(1))}).Draw(t, "value")
		})
		now, n := 0.0, 0
		for range rapid.IntRange(1, 60).Draw(t, "rows") {
			now += rapid.SampledFrom([]float64{0, 0.1, 1, 4, 6, 700}).Draw(t, "dt")
			switch rapid.IntRange(0, 9).Draw(t, "turn") {
			case 0:
				n++
				m.Begin(n, at(now-rapid.Float64Range(-2, 2).Draw(t, "early")))
			case 1:
				m.End(at(now - 0.5))
			}
			s := sample.Sample{T: at(now), Attempt: n, Step: num.Draw(t, "step")}
			s.EnergyJ, s.PowerW, s.UtilPct = num.Draw(t, "joules"), num.Draw(t, "watts"), num.Draw(t, "util")
			m.Sample(&s)
		}
		sum := 0.0
		for i := 1; i <= n; i++ {
			f := m.Attempt(i)
			for _, a := range []Amount{f.GPU, f.SoC} {
				if a.J.V < -1e-6 || a.KnownS < -1e-6 || a.KnownS > now+3 || a.EstimatedS < -1e-6 || a.EstimatedS > a.KnownS+1e-6 {
					t.Fatalf("attempt %d: %+v", i, a)
				}
			}
			if p := f.PerStep(); p.OK && p.V < 0 || f.AboveIdleJ.V < 0 || f.AboveIdleJ.V > f.GPU.J.V+1e-6 {
				t.Fatalf("%+v", f)
			}
			sum += f.GPU.J.V
		}
		if got := m.Total().GPU.J.V; math.Abs(got-sum) > 1e-6 {
			t.Fatalf("total %v, sum %v", got, sum)
		}
	})
}

// TestStepsBetweenReadings: a step is made when it is, not when somebody looks. What the
// GPU used before the first and after the last one is not in a step, however seldom it is
// read.
func TestStepsBetweenReadings(t *testing.T) {
	t.Parallel()
	n := newNight(true)
	n.run(5)
	n.begin()
	steps := 0
	told := time.Time{}
	n.more = func(x *sample.Sample) { x.StepT = told }
	n.watts = 10
	n.run(7) // loading
	n.watts = 90
	// 0.3, 0.7, 1.1 ... s after the loading, the last one at 7.9 s: the reading at 8 s sees it.
	begin := n.s
	for n.s < begin+8 {
		for 0.3+0.4*float64(steps) <= n.s+1-begin {
			told = at(begin + 0.3 + 0.4*float64(steps))
			steps++
		}
		n.step, n.tokens = k(float64(steps)), k(float64(4096*steps))
		n.run(1)
	}
	n.watts = 900 // whatever comes then
	n.run(20)
	n.end()
	n.run(1)
	f := n.m.Attempt(1)
	// The readings see steps 2 (at 0.7 s) to 20.
	if steps != 20 || f.Steps != 18 {
		t.Fatalf("%d steps, %v counted", steps, f.Steps)
	}
	near(t, "a step", f.PerStep(), 90*0.4)
	near(t, "a token", f.PerToken(), 90*0.4/4096)
}

// TestStepsToldEarlyOrLate: a step from before the last reading, or after this one, is
// taken for one at that reading, and one at an attempt's first reading for one there.
func TestStepsToldEarlyOrLate(t *testing.T) {
	t.Parallel()
	for name, shift := range map[string]float64{"early": -1.5, "late": 0.5} {
		n := newNight(true)
		n.run(1)
		n.more = func(x *sample.Sample) { x.StepT = x.T.Add(time.Duration(shift * float64(time.Second))) }
		n.m.Begin(1, at(2)) // at the very moment of a reading
		n.attempt, n.watts = 1, 90
		for i := range 50 {
			n.step = k(float64(i + 1))
			n.run(1)
		}
		f := n.m.Attempt(1)
		if f.Steps < 48 {
			t.Errorf("%s: %v steps", name, f.Steps)
		}
		near(t, name, f.PerStep(), 90)
	}
}
