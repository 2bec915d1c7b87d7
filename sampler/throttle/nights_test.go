package throttle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"testing"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// night is a job with all that a healthy one does beside its steps: evaluations and
// checkpoints, with or without a line that tells of them, waiting for data, lines that
// stand for many steps, sensors that scatter and drop out. It may be slowed for a time.
type night struct {
	step                 func(i int, s float64) float64
	tokens               func(i int) float64
	print                int
	every                float64
	evalEvery, saveEvery int // steps
	evalS, saveS         float64
	marks                bool
	waitS                float64 // for data, in each step
	upload               float64 // by how many times steps are longer for two minutes behind a save
	drop                 float64 // part of the readings
	hours                float64
	// sick changes the samples between from and to, sec seconds after from, and steps
	// are factor times as long; busy says that the GPU computes. lost is what that cost.
	from, to, factor float64
	sick             func(x *sample.Sample, sec float64, busy bool)
	lost             float64
}

func (j *night) play(d *Detector) []event.Event {
	type phase struct {
		to   float64
		util float64
	}
	type mark struct {
		t    float64
		kind string
	}
	var phases []phase
	var marks []mark
	rng := rand.New(rand.NewPCG(11, 99))
	saved := math.Inf(-1)
	job := training{tokens: j.tokens, print: j.print, every: j.every}
	job.step = func(i int, s float64) float64 {
		t := s
		if j.evalEvery > 0 && i > 0 && i%j.evalEvery == 0 {
			t += j.evalS * (0.97 + 0.06*rng.Float64())
			phases, marks = append(phases, phase{t, 80}), append(marks, mark{t, MarkEval})
		}
		if j.saveEvery > 0 && i > 0 && i%j.saveEvery == 0 {
			marks = append(marks, mark{t + 0.5, MarkCheckpoint})
			t += j.saveS * (0.9 + 0.2*rng.Float64())
			saved = t
			phases = append(phases, phase{t, 0})
		}
		if j.waitS > 0 {
			t += j.waitS
			phases = append(phases, phase{t, 0})
		}
		length := j.step(i, s)
		if j.upload > 0 && t-saved < 120 {
			length *= j.upload
		}
		if s >= j.from && s < j.to {
			j.lost += length * (j.factor - 1)
			length *= j.factor
		}
		t += length
		phases = append(phases, phase{t, 96})
		return t - s
	}
	job.before = func(s float64, d *Detector) {
		for ; len(marks) > 0 && marks[0].t <= s; marks = marks[1:] {
			if j.marks {
				d.Mark(at(marks[0].t), marks[0].kind)
			}
		}
	}
	job.around = func(s float64, x *sample.Sample) {
		for len(phases) > 1 && phases[0].to <= s {
			phases = phases[1:]
		}
		k := sample.Known
		x.UtilPct = k(math.Round(min(100, phases[0].util+rng.NormFloat64())))
		switch phases[0].util {
		case 96:
			x.TempC, x.PowerW, x.ClockSMMHz = k(72+rng.NormFloat64()), k(88+2*rng.NormFloat64()), k(2300+15*rng.NormFloat64())
		case 80:
			x.TempC, x.PowerW, x.ClockSMMHz, x.ReasonBits = k(64+rng.NormFloat64()), k(58+4*rng.NormFloat64()), k(2400), k(0)
		default:
			x.TempC, x.PowerW, x.ClockSMMHz, x.UtilPct, x.ReasonBits = k(55+rng.NormFloat64()), k(13+rng.NormFloat64()), k(2411), k(0), k(0)
		}
		for z := range 7 {
			x.Zones = append(x.Zones, sample.Temperature{Name: strconv.Itoa(z), C: k(x.TempC.V + 3 + 4*rng.Float64())})
		}
		if j.sick != nil && s >= j.from && s < j.to {
			j.sick(x, s-j.from, x.UtilPct.V > 45)
		}
		if rng.Float64() < j.drop {
			x.GPU = sample.GPU{}
		}
	}
	return job.play(d, hours(j.hours))
}

// grouped are rows sorted by length within every n steps, the longest first.
func grouped(mean float64, n int) func(int, float64) float64 {
	return func(i int, _ float64) float64 { return mean * (1.8 - 1.6*float64(i%n)/float64(n)) }
}

// A healthy night gives nothing but its plateau, whatever the job does beside its steps.
func TestHealthyNights(t *testing.T) {
	t.Parallel()
	for _, step := range []float64{2, 60} {
		long := max(1, 12/step) // evaluations are as far apart in time for all
		waves := func(part, period float64) func(int, float64) float64 {
			next := jitter(step, 0.02, 3)
			return func(i int, s float64) float64 { return next(i, s) * (1 + part*math.Sin(2*math.Pi*s/period)) }
		}
		nights := map[string]night{
			"evaluations":               {step: jitter(step, 0.03, 1), evalEvery: 500, evalS: 120, marks: true},
			"evaluations, not told":     {step: jitter(step, 0.03, 2), evalEvery: 500, evalS: 120},
			"long evaluations":          {step: jitter(step, 0.03, 3), evalEvery: 500, evalS: 900},
			"saves of a minute":         {step: jitter(step, 0.03, 4), saveEvery: int(50 * long), saveS: 60},
			"both, often":               {step: jitter(step, 0.05, 5), saveEvery: int(50 * long), saveS: 60, evalEvery: int(100 * long), evalS: 100},
			"a line each ten, not told": {step: jitter(step, 0.05, 6), print: 10, evalEvery: int(125 * long), evalS: 100, saveEvery: int(62 * long), saveS: 30},
			"a line each ten":           {step: jitter(step, 0.05, 6), print: 10, evalEvery: int(125 * long), evalS: 100, saveEvery: int(62 * long), saveS: 30, marks: true},
			"a line each 100":           {step: jitter(step, 0.05, 7), print: 100, evalEvery: 500, evalS: 120},
			"lengths of any kind":       {step: jitter(step, 0.5, 8)},
			"sorted rows":               {step: grouped(step, 50)},
			"sorted rows, tokens told":  {step: grouped(step, 150), tokens: func(i int) float64 { return math.Round(4000 * grouped(1, 150)(i, 0)) }},
			"waits for data":            {step: jitter(step, 0.1, 9), waitS: 0.3 * step},
			"day and night":             {step: waves(0.04, 86400), hours: 30},
			"fans":                      {step: waves(0.05, 1200)},
			"readings drop out":         {step: jitter(step, 0.12, 10), drop: 0.2},
			"a sample each minute":      {step: jitter(step, 0.05, 11), every: 60, evalEvery: 500, evalS: 100, saveEvery: 250, saveS: 30, marks: true, hours: 40},
		}
		for name, j := range fewOf(nights) {
			t.Run(fmt.Sprintf("%s, steps of %g s", name, step), func(t *testing.T) {
				t.Parallel()
				if j.hours == 0 {
					j.hours = 10
				}
				j.hours /= min(raceSlack, 4)
				d := New(config(t))
				for _, e := range j.play(d) {
					if e.Data["type"] != PowerCap {
						t.Errorf("%v %s %s: %s", e.T.Sub(t0), e.Label, e.Level, e.Msg)
					}
				}
				if !d.slow.base.known() && step*float64(max(1, j.print)) < 300 {
					t.Error("no baseline, so that nothing was judged")
				}
			})
		}
	}
}

// A sick night gives one event of its kind, with what it cost, whether or not somebody
// tells of the evaluations and checkpoints in it.
func TestSickNights(t *testing.T) {
	t.Parallel()
	k := sample.Known
	gpu := func(bits, temp, clock, power float64) func(*sample.Sample, float64, bool) {
		return func(x *sample.Sample, _ float64, busy bool) {
			if busy {
				x.ReasonBits, x.TempC, x.ClockSMMHz, x.PowerW = k(bits), k(temp), k(clock), k(power)
			}
		}
	}
	sicknesses := map[string]struct {
		factor     float64
		typ, cause string // of what is told beside the slowdown, and its cause
		sick       func(*sample.Sample, float64, bool)
	}{
		"thermal": {1.4, ThermalThrottle, ThermalThrottle, gpu(0x24, 85, 1650, 70)},
		"brake":   {2, HWBrake, HWBrake, gpu(0x80, 60, 1000, 50)},
		"wedge":   {3.5, PowerWedge, PowerWedge, gpu(0, 44, 611, 14)},
		"low cap": {1.35, LowCap, LowCap, gpu(0, 58, 1700, 58)},
		"clock":   {1.3, "", CauseClock, gpu(0, 66, 1800, 72)},
		"nothing": {1.4, "", CauseUnknown, func(*sample.Sample, float64, bool) {}},
		"memory":  {1.6, "", CauseMemory, func(x *sample.Sample, _ float64, _ bool) { x.PSIMemSome10 = k(24) }},
		"neighbour": {1.9, "", CauseGPUProcess, func(x *sample.Sample, _ float64, _ bool) {
			x.GPUOtherMiB = k(9000)
			x.Processes = append(x.Processes, sample.GPUProcess{PID: 4711, UsedMiB: k(9000)})
		}},
	}
	jobs := map[string]func() night{
		"plain":                   func() night { return night{step: jitter(2, 0.03, 3)} },
		"long steps":              func() night { return night{step: jitter(60, 0.03, 3)} },
		"long steps that scatter": func() night { return night{step: jitter(60, 0.15, 3)} },
		"evaluations": func() night {
			return night{step: jitter(2, 0.03, 3), evalEvery: 750, evalS: 100, saveEvery: 375, saveS: 30, marks: true}
		},
		"evaluations, not told": func() night {
			return night{step: jitter(2, 0.03, 3), evalEvery: 750, evalS: 100, saveEvery: 375, saveS: 30}
		},
		"evaluations, long steps": func() night {
			return night{step: jitter(12, 0.03, 3), evalEvery: 300, evalS: 100, saveEvery: 150, saveS: 30}
		},
		"a line each ten": func() night {
			return night{step: jitter(2, 0.03, 3), print: 10, evalEvery: 750, evalS: 100, saveEvery: 375, saveS: 30, marks: true}
		},
		"a line each ten, not told": func() night {
			return night{step: jitter(2, 0.03, 3), print: 10, evalEvery: 750, evalS: 100, saveEvery: 375, saveS: 30}
		},
		"long steps, a line each ten": func() night {
			return night{step: jitter(12, 0.03, 3), print: 10, evalEvery: 300, evalS: 100, saveEvery: 150, saveS: 30}
		},
		"a line each hundred":           func() night { return night{step: jitter(0.4, 0.03, 3), print: 100} },
		"a sample each half a minute":   func() night { return night{step: jitter(2, 0.03, 3), every: 30} },
		"saves with long steps between": func() night { return night{step: jitter(12, 0.03, 3), saveEvery: 100, saveS: 40, marks: true} },
	}
	var names []string
	for name := range sicknesses {
		for job := range jobs {
			names = append(names, name+"/"+job)
		}
	}
	sort.Strings(names)
	for i, name := range names {
		if raceSlack > 1 && i%16 != 0 {
			continue
		}
		var sickness, job string
		for job = range jobs {
			if n := len(name) - len(job); n > 0 && name[n-1:] == "/"+job {
				sickness = name[:n-1]
				break
			}
		}
		s := sicknesses[sickness]
		if s.factor < 1.35 && job == "long steps that scatter" {
			continue // within what that job scatters by
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := jobs[job]()
			j.hours, j.from, j.to, j.factor, j.sick = 5, hours(2), hours(4), s.factor, s.sick
			d := New(config(t))
			d.Names = func(pid int) string { return map[int]string{4711: "vllm serve"}[pid] }
			starts := map[any]int{}
			for _, e := range j.play(d) {
				typ := e.Data["type"]
				switch {
				case typ == PowerCap:
				case typ != Slowdown && typ != s.typ:
					t.Errorf("%v %s: %s", e.T.Sub(t0), e.Label, e.Msg)
				case e.Kind == event.ThrottleStart:
					starts[typ]++
				case e.Kind == event.ThrottleEnd:
					lost, _ := e.Data["lost_s"].(float64)
					if math.Abs(lost/j.lost-1) > 0.18 {
						t.Errorf("%s: lost %g, want %g", typ, lost, j.lost)
					}
					if since := sinceOf(e); math.Abs(since-j.from) > 400 {
						t.Errorf("%s: since %g, want %g", typ, since, j.from)
					}
					if until, err := time.Parse(time.RFC3339, e.Data["until"].(string)); err != nil || math.Abs(until.Sub(at(j.to)).Seconds()) > 400 {
						t.Errorf("%s: until %v, want %v", typ, until, at(j.to))
					}
					if typ != Slowdown {
						continue
					}
					if e.Data["cause"] != s.cause {
						t.Errorf("cause %v, want %s: %v", e.Data["cause"], s.cause, e.Data)
					}
					if worst, _ := e.Data["worst_slower_pct"].(float64); math.Abs((worst/100+1)/s.factor-1) > 0.3 {
						t.Errorf("at worst %g %%, want %g", worst, 100*(s.factor-1))
					}
				}
			}
			if starts[Slowdown] != 1 || s.typ != "" && starts[s.typ] != 1 {
				t.Errorf("told %v", starts)
			}
		})
	}
}

// What is uploaded behind each checkpoint slows the steps there, each time anew: that is
// told once in some hours, as information.
func TestUploadsBehindCheckpointsAreToldOnce(t *testing.T) {
	t.Parallel()
	for _, step := range []float64{2, 12} {
		for _, factor := range few([]float64{1.5, 1.15}) {
			j := night{step: jitter(step, 0.02, 8), saveEvery: int(1800 / step), saveS: 20, upload: factor, marks: true, hours: 9}
			d := New(config(t))
			got := ofPace(j.play(d))
			starts := 0
			for _, e := range got {
				if e.Level != event.Info || e.Data["cause"] != CauseCheckpoint {
					t.Errorf("%g s, %g times: %s: %s", step, factor, e.Level, e.Msg)
				}
				if e.Kind == event.ThrottleStart {
					starts++
				}
			}
			if n := d.Summary().ByType[Slowdown].Episodes; starts > 2 || factor > 1.2 && (starts == 0 || n < 6) {
				t.Errorf("%g s, %g times: told %d times, counted %d", step, factor, starts, n)
			}
		}
	}
}

// Where long steps scatter, the first blocks of a slow state are within doubt: they are no
// scatter that would hide the rest of it.
func TestScatterDoesNotHideASlowState(t *testing.T) {
	t.Parallel()
	for _, seed := range few([]uint64{306, 9, 12, 15, 18, 21, 105, 205}) {
		for _, factor := range []float64{1.5, 1.6} {
			j := night{step: jitter(60, 0.15, seed), hours: 4, from: hours(2), to: hours(4), factor: factor}
			late := math.Inf(1)
			for _, e := range ofPace(j.play(New(config(t)))) {
				if s := e.T.Sub(t0).Seconds(); e.Kind == event.ThrottleStart && s > j.from {
					late = min(late, s-j.from)
				}
			}
			if late > 2700 {
				t.Errorf("seed %d, %g times: told %g s late", seed, factor, late)
			}
		}
	}
}
