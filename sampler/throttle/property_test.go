package throttle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// drawRun draws a run of stretches in which each reading is one of a few values or
// unknown. No steps: pace has properties of its own.
func drawRun(t *rapid.T, every float64) []*sample.Sample {
	num := func(name string, values ...float64) sample.Num {
		v := rapid.SampledFrom(append(values, -1)).Draw(t, name)
		return sample.Num{V: v, OK: v != -1}
	}
	var out []*sample.Sample
	s, counter := 0.0, 0.0
	for range rapid.IntRange(1, 14).Draw(t, "stretches") {
		x := sample.Sample{Attempt: 1, CPUBusyPct: num("cpu", 5, 5, 90), GPU: sample.GPU{
			TempC: num("temp", 50, 75, 82, 86, 92), PowerW: num("power", 12, 30, 55, 60, 92), ClockSMMHz: num("clock", 611, 1200, 1700, 1900, 2200),
			UtilPct: num("util", 0, 60, 97, 97), ReasonBits: num("bits", 0, 0, 0, 0x4, 0x8, 0x20, 0x80), CapSoCW: num("cap", 60, 140, 140),
			CapSysW: num("cap of the machine", 30, 231, 231), ZoneMaxC: num("zone", 70, 88, 92),
		}}
		drawLoad(t, &x)
		moving := rapid.Float64Range(0, 0.5).Draw(t, "counter's slope")
		if rapid.Bool().Draw(t, "still") {
			moving = 0
		}
		for range rapid.SampledFrom([]int{1, 2, 20, 70, 130, 650}).Draw(t, "samples") {
			y := x
			s += every
			counter += moving * every * 1e9
			y.T, y.CtrHWThermalNS = at(s), sample.Known(counter)
			if !x.ReasonBits.OK {
				y.CtrHWThermalNS = sample.Num{}
			}
			out = append(out, &y)
		}
	}
	return out
}

// drawLoad replaces some loads by those that the rules are about, which independent
// values seldom are.
func drawLoad(t *rapid.T, x *sample.Sample) {
	load := rapid.SampledFrom([][4]float64{{}, {}, {12, 611, 97, 0}, {12, 611, 88, 0}, {60, 1700, 97, 0}, {92, 2200, 97, 0x4}}).Draw(t, "load")
	for i, n := range []*sample.Num{&x.PowerW, &x.ClockSMMHz, &x.UtilPct, &x.ReasonBits} {
		if load[0] > 0 {
			*n = sample.Known(load[i])
		}
	}
}

func run(cfg Config, samples []*sample.Sample) (d *Detector, out []event.Event) {
	d = New(cfg)
	for _, x := range samples {
		out = append(out, d.Sample(x)...)
	}
	return d, out
}

// What starts is there in the sample that started it, with every reading that it
// takes; and it has been there for as long as the rule asks for.
func TestNothingStartsFromTheUnknownOrTooEarly(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		samples := drawRun(t, 1)
		_, events := run(cfg, samples)
		// before tells whether all samples of the last s seconds are known to be so. Means
		// over a minute may hide a few at both ends.
		before := func(now time.Time, s Limit, is func(x *sample.Sample) bool) bool {
			known, not := 0, 0
			first := time.Time{}
			for _, x := range samples {
				if x.T.After(now) || now.Sub(x.T) > seconds(s) {
					continue
				}
				if first.IsZero() {
					first = x.T
				}
				if is(x) {
					known++
				} else {
					not++
				}
			}
			return known > 1 && now.Sub(first) >= seconds(s) && not <= int(float64(cfg.GapS))
		}
		for _, e := range events {
			if e.Kind != event.ThrottleStart {
				continue
			}
			typ := e.Data["type"].(string)
			seen[typ]++
			x := samples[int(math.Round(e.T.Sub(t0).Seconds()))-1]
			busy := func(x *sample.Sample) bool { return x.UtilPct.V >= 90 && x.PowerW.OK && x.ClockSMMHz.OK }
			ok := false
			switch typ {
			case ThermalThrottle, HWBrake:
				ok = x.ReasonBits.OK || x.CtrHWThermalNS.OK
			case PowerWedge:
				if e.Data["evidence"] == "means" {
					// Whoever is busy in all that time is slow.
					slow := x.UtilPct.V >= 50 && x.PowerW.OK && x.PowerW.V < 40 && x.ClockSMMHz.OK && x.ClockSMMHz.V < 1400
					ok = slow && before(e.T, cfg.Wedge.MeanForS, func(x *sample.Sample) bool {
						return !x.UtilPct.OK || !x.PowerW.OK || !x.ClockSMMHz.OK || x.UtilPct.V < 50 || x.PowerW.V < 40 && x.ClockSMMHz.V < 1400
					})
					seen["means"]++
					break
				}
				ok = before(e.T, cfg.Wedge.ForS, func(x *sample.Sample) bool {
					return busy(x) && x.PowerW.V < 40 && x.ClockSMMHz.V < 1400 && x.ReasonBits.OK
				}) && busy(x) && x.ReasonBits.OK
			case LowCap:
				length := cfg.LowCap.ForS
				if e.Data["certain"] == true {
					length = cfg.LowCap.CapForS
				}
				ok = before(e.T, length, busy) && busy(x)
			case PowerCap:
				ok = before(e.T, cfg.PowerCap.ForS, busy) && busy(x)
			case Hot:
				ok = x.ZoneMaxC.V >= 91 && x.TempC.V >= 85
				if e.Data["sources"] == hotAlone {
					ok = before(e.T, cfg.Hot.DieForS, func(x *sample.Sample) bool { return x.TempC.V >= 90 || !x.TempC.OK }) && x.TempC.V >= 90 && (!x.ZoneMaxC.OK || x.ZoneMaxC.V >= 87)
				}
			}
			if !ok {
				t.Fatalf("%s at %v: %s", e.Label, e.T.Sub(t0), e.Msg)
			}
		}
	})
	for _, typ := range append([]string{"means"}, types...) {
		if seen[typ] == 0 {
			t.Errorf("no run reached %s: %v", typ, seen)
		}
	}
}

// Taking readings away from a run in which nothing began does not make anything begin.
func TestForgettingStartsNothing(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	rapid.Check(t, func(t *rapid.T) {
		var samples []*sample.Sample
		for _, x := range drawRun(t, 1) {
			// Normal readings, whatever was drawn.
			y := *x
			y.TempC, y.PowerW, y.ClockSMMHz = sample.Known(70), sample.Known(60), sample.Known(2300)
			y.ReasonBits, y.CtrHWThermalNS, y.ZoneMaxC, y.CapSoCW = sample.Known(0), sample.Known(0), sample.Known(80), sample.Known(140)
			y.CapSysW = sample.Known(231)
			samples = append(samples, &y)
		}
		fields := rapid.SliceOfN(rapid.IntRange(0, 7), 1, 4).Draw(t, "fields")
		for i, x := range samples {
			if i%rapid.SampledFrom([]int{1, 2, 3, 50}).Draw(t, "every") != 0 {
				continue
			}
			for _, f := range fields {
				*[]*sample.Num{&x.TempC, &x.PowerW, &x.ClockSMMHz, &x.UtilPct, &x.ReasonBits, &x.CtrHWThermalNS, &x.ZoneMaxC, &x.CapSoCW}[f] = sample.Num{}
			}
		}
		if _, got := run(cfg, samples); len(got) != 0 {
			t.Fatalf("events:\n%s", outline(got))
		}
	})
}

// With all times longer by the same factor, the same happens, later by that factor.
func TestTimeScales(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Thermal.WarnShare = 1 // a pulse's first second does not scale, and with it what is a warning
	rapid.Check(t, func(t *rapid.T) {
		by := rapid.SampledFrom([]float64{2, 5}).Draw(t, "factor")
		scaled := cfg
		for _, l := range []*Limit{
			&scaled.GapS, &scaled.MergeS, &scaled.Thermal.CounterMS, &scaled.Thermal.ShareFloorS, &scaled.Thermal.ReportS,
			&scaled.Signature.PlateauS, &scaled.Signature.WindowS, &scaled.Signature.ForS, &scaled.PowerCap.ForS, &scaled.PowerCap.QuietS,
			&scaled.Wedge.ForS, &scaled.Wedge.MeanForS, &scaled.Wedge.QuietS, &scaled.Hot.DieForS,
			&scaled.LowCap.WindowS, &scaled.LowCap.ForS, &scaled.LowCap.CapForS, &scaled.LowCap.QuietS, &scaled.Hot.QuietS,
		} {
			*l *= Limit(by)
		}
		samples := drawRun(t, 1)
		var later []*sample.Sample
		for _, x := range samples {
			y := *x
			y.T = t0.Add(time.Duration(by * float64(x.T.Sub(t0))))
			y.CtrHWThermalNS.V *= by
			later = append(later, &y)
		}
		lines := func(events []event.Event, by float64) string {
			var out []string
			for _, e := range events {
				since, err := time.Parse(time.RFC3339, e.Data["since"].(string))
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, fmt.Sprintf("%.3f %s since %.3f", e.T.Sub(t0).Seconds()/by, e.Label, since.Sub(t0).Seconds()/by))
			}
			return strings.Join(out, "\n")
		}
		_, now := run(cfg, samples)
		_, then := run(scaled, later)
		if a, b := lines(now, 1), lines(then, by); a != b {
			t.Fatalf("as it is:\n%s\n%g times slower:\n%s", a, by, b)
		}
	})
}

// A machine that is well says nothing of a wedge, a low cap or heat in simulated weeks of
// loads of any kind, at any spacing, with readings that drop out: bursts, light work,
// long pauses, busy processors, noise. The clock of what is busy is normal, that of
// what is not may be anything.
func TestHealthyLoadsAreQuiet(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 5))
		every := []float64{2, 5, 10, 60}[seed]
		d := New(config(t))
		util, busyShare, cpu, watts, clock, dropped := 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
		left := 0.0
		for s := every; s < 4*86400/min(raceSlack, racedOf); s += every {
			if left -= every; left <= 0 {
				left = 60 * math.Exp(4*r.Float64())
				util, busyShare, cpu, watts, clock = 100*r.Float64(), r.Float64(), 100*r.Float64(), 15+80*r.Float64(), 2150+350*r.Float64()
				dropped = 0.3 * r.Float64() * r.Float64()
			}
			x := healthy(s)
			x.ReasonBits, x.CPUBusyPct = sample.Known(0), sample.Known(cpu)
			x.UtilPct, x.PowerW, x.ClockSMMHz = sample.Known(math.Round(util)), sample.Known(watts*(0.8+0.4*r.Float64())), sample.Known(clock+30*r.NormFloat64())
			if r.Float64() > busyShare {
				x.UtilPct, x.PowerW, x.ClockSMMHz = sample.Known(45*r.Float64()), sample.Known(5+20*r.Float64()), sample.Known(200+2200*r.Float64())
			}
			x.TempC = sample.Known(48 + x.PowerW.V/4)
			for range 7 {
				x.Zones = append(x.Zones, sample.Temperature{C: sample.Known(x.TempC.V + 5*r.Float64())})
			}
			x.Zones[int(s)%7].C.V += 14 * r.Float64()
			if seed%2 == 1 {
				x.CapSoCW, x.CapSysW = sample.Known(140), sample.Known(231)
			}
			if r.Float64() < dropped {
				x.GPU = sample.GPU{}
			}
			for _, e := range d.Sample(x) {
				if e.Data["type"] != PowerCap {
					t.Errorf("%s at %v: %s", e.Label, e.T.Sub(t0), e.Msg)
				}
			}
		}
	}
}

// threadTime is the processor time that this thread has used.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// A day at one sample a second must cost less than a second, of the processor's time
// and at best of three: others use this machine as well.
func TestADayIsQuick(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	best := time.Duration(math.MaxInt64)
	for range 3 {
		d := New(config(t))
		x := healthy(0)
		x.Zones = make([]sample.Temperature, 7)
		x.Powers = []sample.Power{{Label: "gpu", W: sample.Known(91.7)}, {Label: "pl1", W: sample.Known(139.7), CapW: sample.Known(140)}}
		x.CapSoCW = sample.Known(140)
		begin := threadTime(t)
		for s := range 86400 {
			y := *x
			v := float64(s)
			y.T, y.Mono = at(v), time.Duration(s)*time.Second
			y.GPU.T = y.Mono + 1
			y.PowerW.V += math.Mod(v*7, 5)
			y.Step, y.StepTimeS, y.Tokens = sample.Known(math.Floor(v/2)), sample.Known(2), sample.Known(math.Floor(v/2)*8192)
			for i := range y.Zones {
				y.Zones[i].C = sample.Known(76 + float64(i) + math.Mod(v, 3))
			}
			if s%3600 < 2 {
				y.ReasonBits = sample.Known(0x20)
			}
			d.Sample(&y)
		}
		best = min(best, threadTime(t)-begin)
		if best < raceSlack*time.Second/2 {
			break
		}
	}
	t.Logf("a day: %v", best)
	if best > raceSlack*time.Second {
		t.Errorf("a day of samples took %v, more than a second", best)
	}
}
