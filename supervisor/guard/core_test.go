package guard

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/meminfo"
)

const (
	mib = 1 << 10
	gb  = 1 << 20 // KiB in a GiB
	// sparkKiB is MemTotal of a DGX Spark.
	sparkKiB = 127600512
)

// world is a machine whose memory follows a function of time.
type world struct {
	total uint64
	host  func(t float64) float64 // GiB available after t seconds
	// limit and room, if set, are a cgroup above the child.
	limit uint64
	room  func(t float64) float64
	swap  func(t float64) (free, total uint64)
	psi   func(t float64) float64
	// run is when the first step is over, in seconds.
	run     float64
	growth  func(t float64) Growth
	options Options
	end     float64
	// ends is how long the tree lives after a SIGTERM, 0 for obeying at once.
	ends float64
}

// fate is what became of the job.
type fate struct {
	acts  []Decision
	at    []float64
	least float64 // GiB, until the end
	polls int
	tells told
	ended bool
}

func (f fate) first() do {
	if len(f.acts) == 0 {
		return doNothing
	}
	return f.acts[0].do
}

// live plays a world with the polls that the guard asks for.
func (w world) live() fate {
	f := fate{least: math.Inf(1)}
	var s State
	start := 100 * time.Second
	deadline := math.Inf(1)
	for t := 0.0; t < w.end; {
		avail := w.host(t)
		r := Reading{
			At: start + time.Duration(t*float64(time.Second)), SwapTotalKiB: meminfo.Unknown, SwapFreeKiB: meminfo.Unknown,
			Run: t >= w.run,
		}
		r.Levels[0] = Level{AvailKiB: uint64(max(avail, 0) * gb), TotalKiB: w.total, OK: true}
		f.least = min(f.least, avail)
		if w.limit > 0 {
			r.Levels[1] = Level{AvailKiB: uint64(max(w.room(t), 0) * gb), TotalKiB: w.limit, OK: true}
		}
		if w.swap != nil {
			r.SwapFreeKiB, r.SwapTotalKiB = w.swap(t)
		}
		if w.psi != nil {
			r.PSIFull, r.HasPSI = uint32(w.psi(t)*100), true
		}
		if w.growth != nil {
			r.Growth = w.growth(t)
		}
		var d Decision
		s, d = Policy{w.options}.Next(s, r)
		f.polls++
		for _, tell := range d.Tell {
			f.tells |= tell
		}
		if d.do != doNothing {
			f.acts, f.at = append(f.acts, d), append(f.at, t)
		}
		switch d.do {
		case doKill:
			f.ended = true
			return f
		case doTerm:
			deadline = t + w.ends
		}
		if t >= deadline {
			f.ended = true
			return f
		}
		t += d.Wait.Seconds()
	}
	return f
}

// ramp goes through points of (second, GiB) in straight lines.
func ramp(points ...float64) func(float64) float64 {
	return func(t float64) float64 {
		for i := 2; i < len(points); i += 2 {
			t0, v0, t1, v1 := points[i-2], points[i-1], points[i], points[i+1]
			if t < t1 {
				return v0 + (v1-v0)*max(t-t0, 0)/(t1-t0)
			}
		}
		return points[len(points)-1]
	}
}

// saw swings between high and low: down in fall seconds, up in rise.
func saw(high, low, fall, rise float64) func(float64) float64 {
	return func(t float64) float64 {
		t = math.Mod(t, fall+rise)
		if t < fall {
			return high - (high-low)*t/fall
		}
		return low + (high-low)*(t-fall)/rise
	}
}

// stairs takes step GiB every some seconds, from a level down.
func stairs(from, step, every float64) func(float64) float64 {
	return func(t float64) float64 { return max(from-step*math.Floor(t/every), 0) }
}

// bursts is a job that takes memory and gives it back: calm at base, then down by
// each peak at a speed, held and given back at once.
func bursts(base, speed, hold, rest, offset float64, peaks []float64) (func(float64) float64, float64) {
	at := offset
	points := []float64{0, base, offset, base}
	for _, p := range peaks {
		points = append(points, at+p/speed, base-p, at+p/speed+hold, base-p, at+p/speed+hold+0.001, base)
		at += p/speed + hold + 0.001 + rest
		points = append(points, at, base)
	}
	return ramp(points...), at
}

// TestGrowingPeaksAreNoReason: sequences of other lengths make other peaks. A job
// whose bursts end above the hard floor is left alone, on a machine as long as the
// hard floor is not too late for their speed, and below a cgroup's limit always.
func TestGrowingPeaksAreNoReason(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.SampledFrom([]uint64{sparkKiB, 24 * gb, 8 * gb, gb}).Draw(t, "total")
		options := Options{HardPct: rapid.SampledFrom([]float64{3, 10, 45}).Draw(t, "hard"), SoftPct: 90}
		hardKiB, _ := options.floors(true, total)
		hard, all := float64(hardKiB)/gb, float64(total)/gb
		cgroup := rapid.Bool().Draw(t, "cgroup")
		// Half the hard floor within react is what has to be ended early.
		fastest := hard / 2 / react.Seconds()
		if cgroup {
			fastest = 30
		}
		speed := rapid.Float64Range(0.02, 0.99).Draw(t, "speed") * fastest
		base := hard + (all-hard)*rapid.Float64Range(0.05, 0.9).Draw(t, "base")
		deepest := (base - hard) * 0.999
		var peaks []float64
		for range rapid.IntRange(1, 12).Draw(t, "bursts") {
			peaks = append(peaks, deepest*rapid.Float64Range(0.02, 1).Draw(t, "peak"))
		}
		if rapid.Bool().Draw(t, "growing") {
			slices.Sort(peaks)
		}
		host, end := bursts(base, speed, rapid.Float64Range(0, 1).Draw(t, "hold"), rapid.Float64Range(0.05, 2).Draw(t, "rest"),
			rapid.Float64Range(0, 3).Draw(t, "offset"), peaks)
		w := world{total: total, host: host, run: rapid.Float64Range(0, 5).Draw(t, "run"), end: min(end, 600), options: options}
		if cgroup {
			w.limit, w.room, w.host, w.total = total, host, ramp(0, 100), sparkKiB
		}
		if f := w.live(); len(f.acts) > 0 {
			t.Fatalf("%.2f s: %+v", f.at[0], f.acts[0])
		}
	})
}

// TestPeaksThatWereEnded are two jobs that a straight line drawn on over a second
// ended, at every phase of the guard's polls.
func TestPeaksThatWereEnded(t *testing.T) {
	t.Parallel()
	gib := func(mibs ...float64) []float64 {
		for i := range mibs {
			mibs[i] /= 1024
		}
		return mibs
	}
	for offset := 0.0; offset < 1; offset += 0.037 {
		for speed := 0.1; speed < 4; speed *= 1.3 {
			room, end := bursts(324.0/1024, speed, 0.2, 0.2, 1+offset, gib(100, 100, 100, 150, 150, 180, 200, 280))
			w := world{total: sparkKiB, host: ramp(0, 100), limit: 1000 * mib, room: room, run: 0.5, end: end}
			if f := w.live(); len(f.acts) > 0 {
				t.Fatalf("limit, %.2f GiB/s at %.3f s: %+v", speed, offset, f.acts[0])
			}
			host, end := bursts(22.0, speed, 0.2, 0.2, 1+offset, gib(300, 400, 600, 800, 1000, 1200, 1500))
			w = world{total: 24685000, host: host, run: 0.5, end: end, options: Options{HardKiB: 20946 * mib, SoftKiB: 23246 * mib}}
			if f := w.live(); len(f.acts) > 0 {
				t.Fatalf("host, %.2f GiB/s at %.3f s: %+v", speed, offset, f.acts[0])
			}
		}
	}
}

// TestTheMeasuredFallLeavesTimeToReact: a tenth of a second to spare after the
// 250 ms that a signal may take, wherever the polls fall.
func TestTheMeasuredFallLeavesTimeToReact(t *testing.T) {
	t.Parallel()
	for _, speed := range []float64{8, 10, 12, 14.2, 16, 20} {
		for offset := 0.0; offset < 0.6; offset += 0.007 {
			for _, from := range []float64{34, 60, 110} {
				down := from / speed
				w := world{total: sparkKiB, host: ramp(0, from, 20+offset, from, 20+offset+down, 0, 60, 0), run: 5, end: 60}
				f := w.live()
				if f.first() != doKill || f.least < 0.35*min(speed, 14.2) {
					t.Fatalf("%g GiB/s from %g at %.3f s: %.2f GiB left, %+v", speed, from, offset, f.least, f.acts)
				}
			}
		}
	}
}

// TestATermHasItsTime: a child that takes memory in steps has most of the time
// that is mathematically left for it, wherever the polls fall.
func TestATermHasItsTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		every := rapid.Float64Range(0.1, 0.5).Draw(t, "every")
		left := rapid.Float64Range(4, 20).Draw(t, "seconds") // from the floor to its half
		half := 0.45 / 2                                     // GiB
		step := half / left * every
		room := stairs(0.9-rapid.Float64Range(0, 0.1).Draw(t, "from"), step, every)
		f := world{
			total: sparkKiB, host: ramp(0, 100), limit: gb, room: room, run: 1, end: 200, ends: 1e9,
			options: Options{HardPct: 45, SoftPct: 50},
		}.live()
		if len(f.acts) != 2 || f.acts[0].do != doTerm || f.acts[1].do != doKill {
			t.Fatalf("%+v at %v", f.acts, f.at)
		}
		if got := f.at[1] - f.at[0]; got < left-2.6 {
			t.Fatalf("%.1f s of %.1f", got, left)
		}
	})
}

// TestEndings are the series in which the guard has to act, with the least that
// may be left when the (first) signal goes out.
func TestEndings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		world
		first do
		why   string
		least float64 // GiB
		// second is what follows a SIGTERM that is not obeyed.
		second do
	}{
		"the fall that was measured: 34 to 12.7 GiB in 1.5 s, and on": {
			world: world{total: sparkKiB, host: ramp(0, 110, 30, 110, 30, 34, 40, 34, 42.4, 0, 60, 0), run: 10, end: 60},
			first: doKill, why: WhyPredicted, least: 2,
		},
		"the same while loading": {
			world: world{total: sparkKiB, host: ramp(0, 110, 40, 34, 42.4, 0, 60, 0), run: 1e9, end: 60},
			first: doKill, why: WhyHardFloor, least: 1,
		},
		"30 GiB/s from plenty": {
			world: world{total: sparkKiB, host: ramp(0, 100, 20, 100, 23.4, 0, 60, 0), run: 1, end: 60},
			first: doKill, why: WhyPredicted, least: 1,
		},
		"a slow leak gets a SIGTERM": {
			world: world{total: sparkKiB, host: ramp(0, 20, 2000, 0, 3000, 0), run: 1, end: 3000},
			first: doTerm, why: WhyHardFloor, least: 3.5, // ten seconds of 10 MiB/s: it has settled there
		},
		"a slow leak that does not obey": {
			world: world{total: sparkKiB, host: ramp(0, 20, 2000, 0, 3000, 0), run: 1, end: 3000, ends: 1e9},
			first: doTerm, why: WhyHardFloor, least: 1.8, second: doKill,
		},
		"a SIGTERM that makes it worse": {
			world: world{total: sparkKiB, host: ramp(0, 20, 1700, 3, 1705, 0, 3000, 0), run: 1, end: 3000, ends: 1e9},
			first: doTerm, why: WhyHardFloor, least: 1.8, second: doKill,
		},
		"8 GB": {
			world: world{total: 8 * gb, host: ramp(0, 6, 10, 6, 12, 0, 60, 0), run: 1, end: 60},
			first: doKill, why: WhyPredicted, least: 0.1,
		},
		"8 GB, slowly": {
			world: world{total: 8 * gb, host: ramp(0, 6, 600, 0, 900, 0), run: 1, end: 900},
			first: doTerm, least: 0.2,
		},
		"the limit of a container, the host has plenty": {
			world: world{
				total: sparkKiB, host: ramp(0, 100), limit: 512 * mib, room: ramp(0, 0.4, 10, 0.4, 10.4, 0, 60, 0), run: 1, end: 60,
			},
			first: doKill, why: WhyHardFloor, least: 100,
		},
		"a limit of a container that is filled in small steps": {
			world: world{
				total: sparkKiB, host: ramp(0, 100), limit: gb, room: stairs(0.75, 15.0/1024, 0.4), run: 1, end: 60, ends: 1e9,
				options: Options{HardPct: 45, SoftPct: 50},
			},
			first: doTerm, why: WhyHardFloor, least: 100, second: doKill,
		},
		"swap thrash": {
			world: world{
				total: sparkKiB, host: ramp(0, 12, 60, 9), run: 1, end: 60,
				psi:  func(t float64) float64 { return 8 * t },
				swap: func(t float64) (uint64, uint64) { return uint64(max(16-t, 0) * gb), 16 * gb },
			},
			first: doTerm, why: WhySwapThrash, least: 9,
		},
		"a new low, far steeper than any swing": {
			world: world{
				total: sparkKiB, run: 5, end: 200,
				host: func(t float64) float64 {
					if t < 120 {
						return saw(14, 9, 2, 3)(t)
					}
					return max(14-12*(t-120), 0)
				},
			},
			first: doKill, why: WhyPredicted, least: 2.5,
		},
		"settled near the floor, then gone": {
			world: world{
				total: sparkKiB, run: 5, end: 300,
				host: func(t float64) float64 {
					if t < 200 {
						return saw(6, 4.2, 1, 1)(t)
					}
					return max(6-3*(t-200), 0)
				},
			},
			first: doKill, least: 1.5,
		},
		"settled near the floor, then a leak": {
			world: world{
				total: sparkKiB, run: 5, end: 900,
				host: func(t float64) float64 {
					if t < 200 {
						return saw(6, 4.2, 1, 1)(t)
					}
					return max(5-0.01*(t-200), 0)
				},
			},
			first: doTerm, why: WhyHardFloor, least: 3.4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := c.live()
			if f.first() != c.first || c.why != "" && f.acts[0].Why != c.why {
				t.Fatalf("%+v at %v", f.acts, f.at)
			}
			if f.least < c.least {
				t.Errorf("%.2f GiB left in the end, want %.2f; acts %+v", f.least, c.least, f.acts)
			}
			if !f.ended {
				t.Error("it was not ended")
			}
			if c.second != doNothing && (len(f.acts) < 2 || f.acts[1].do != c.second) {
				t.Errorf("after the SIGTERM: %+v", f.acts)
			}
		})
	}
}

// TestSurvivals are the healthy jobs that absolute floors are known to kill.
func TestSurvivals(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]world{
		"a load that doubles for a moment and peaks just above the floor": {
			total: sparkKiB, host: ramp(0, 110, 20, 60, 25, 3.9, 25.5, 3.9, 27, 60, 200, 60), run: 60, end: 200,
		},
		"a load at 14 GiB/s that ends above the floor": {
			total: sparkKiB, host: ramp(0, 110, 5, 110, 12.4, 5, 200, 5), run: 60, end: 200,
		},
		"steps that swing by 10 GiB in half a second, the first one seen": {
			total: sparkKiB, host: saw(16, 6, 0.5, 1.5), run: 4, end: 600,
		},
		"swings that go a little deeper now and then": {
			total: sparkKiB, run: 4, end: 600,
			host: func(t float64) float64 {
				low := 6.0
				if int(t/2)%25 == 24 {
					low = 5.2
				}
				return saw(16, low, 0.5, 1.5)(t)
			},
		},
		"settled just above the floor": {
			total: sparkKiB, host: func(t float64) float64 { return 4.3 + 0.3*math.Sin(9*t) }, run: 4, end: 900,
		},
		"settled just above it, touching it for a moment": {
			total: sparkKiB, run: 4, end: 900,
			host: func(t float64) float64 {
				if t > 100 && math.Mod(t, 50) < 0.4 {
					return 3.2
				}
				return 4.3 + 0.3*math.Sin(9*t)
			},
		},
		"started when somebody else had nearly all": {
			total: sparkKiB, host: ramp(0, 3.9, 30, 2.7, 600, 2.7), run: 10, end: 600,
		},
		"one steep moment below the soft floor": {
			total: sparkKiB, host: ramp(0, 20, 30, 20, 30.1, 14, 100, 14, 100.05, 12, 300, 12), run: 4, end: 300,
		},
		"a slow fall that ends": {
			total: sparkKiB, host: ramp(0, 60, 600, 4.2, 1200, 4.2), run: 4, end: 1200,
		},
		"pressure without swap": {
			total: sparkKiB, host: ramp(0, 10), run: 1, end: 60,
			psi:  func(float64) float64 { return 90 },
			swap: func(float64) (uint64, uint64) { return 0, 0 },
		},
		"pressure of disks, swap untouched": {
			total: sparkKiB, host: ramp(0, 10), run: 1, end: 60,
			psi:  func(float64) float64 { return 60 },
			swap: func(float64) (uint64, uint64) { return 15 * gb, 16 * gb },
		},
		"swap that fills with plenty left": {
			total: sparkKiB, host: ramp(0, 50), run: 1, end: 60,
			psi:  func(float64) float64 { return 90 },
			swap: func(t float64) (uint64, uint64) { return uint64(max(16-t, 0) * gb), 16 * gb },
		},
		"8 GB, used well": {
			total: 8 * gb, host: func(t float64) float64 { return 0.6 + 0.2*math.Sin(5*t) }, run: 4, end: 600,
		},
		"a container limit larger than the host's share of it": {
			total: sparkKiB, host: ramp(0, 90), limit: 16 * gb, room: saw(3, 1, 1, 1), run: 4, end: 300,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if f := w.live(); len(f.acts) > 0 {
				t.Errorf("%.2f s: %+v", f.at[0], f.acts[0])
			}
		})
	}
}

// TestAFloorHalvedAtTheStartIsWholeAgain: who stood close to it then is gone.
func TestAFloorHalvedAtTheStartIsWholeAgain(t *testing.T) {
	t.Parallel()
	// 3 % of a Spark are 3.65 GiB.
	for name, c := range map[string]struct {
		host  func(float64) float64
		whole bool
		ends  bool
	}{
		"memory comes back, and falls slowly":     {ramp(0, 3.9, 20, 3.9, 22, 40, 60, 40, 400, 3.3, 500, 3.3), true, true},
		"memory comes back for four seconds only": {ramp(0, 3.9, 20, 3.9, 20.1, 40, 24, 40, 24.5, 7, 60, 3.3, 100, 3.3), false, false},
		"again and again, but never for long":     {func(t float64) float64 { return min(3.9+6*max(t-20, 0), saw(9, 3, 2, 2)(max(t-21, 0))) }, false, false},
		"memory stays below twice the floor":      {ramp(0, 3.9, 20, 7, 60, 7, 400, 3.3, 500, 3.3), false, false},
		"it was never close":                      {ramp(0, 40, 300, 40), false, false},
	} {
		f := world{total: sparkKiB, run: 1e9, end: 500, host: c.host}.live()
		if (f.tells&tellWhole != 0) != c.whole || (len(f.acts) > 0) != c.ends {
			t.Errorf("%s: told %b, acts %+v at %v", name, f.tells, f.acts, f.at)
		}
	}
}

// TestWordsOfAGuardThatIsOff: it ends nothing, so no word of a floor.
func TestWordsOfAGuardThatIsOff(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, root, map[string]string{"proc/meminfo": "MemTotal: 127600512 kB\nMemFree: 4000000 kB\nMemAvailable: 4200000 kB\n"})
	for _, off := range []bool{true, false} {
		g := opened(t, Config{Root: root, Child: 1, Options: Options{Off: off}})
		for len(g.events) > 0 {
			<-g.events // what this root does not have
		}
		g.poll(time.Hour)
		if len(g.events) == 0 {
			t.Fatalf("off %v: nothing told", off)
		}
		n := (<-g.events).Text()
		if off && (n.Kind != NoteNear || n.Text != "memory is low: only 4.0 GiB of 121.7 GiB of memory left (the guard is off)") {
			t.Errorf("off: %+v", n)
		}
		if !off && (n.Kind != NoteFloorLearned || !strings.Contains(n.Text, "halved")) {
			t.Errorf("on: %+v", n)
		}
	}
	low := raw{told: tellNear, source: SourceHost, avail: 5 * gb, total: 100 * gb, hard: 3 * gb}
	if n := (Event{Kind: EventNote, raw: low}).Text(); n.Text != "only 5.0 GiB of 100.0 GiB of memory left: the guard ends the training below 3.0 GiB" {
		t.Errorf("%+v", n)
	}
	low.told = tellWhole
	if n := (Event{Kind: EventNote, raw: low}).Text(); n.Kind != NoteFloorLearned || !strings.Contains(n.Text, "whole again, 3.0 GiB") {
		t.Errorf("%+v", n)
	}
}

func TestATouchThatLastsIsALeak(t *testing.T) {
	t.Parallel()
	f := world{total: sparkKiB, run: 4, end: 400, host: ramp(0, 20, 60, 4.4, 150, 4.4, 151, 3.4, 400, 3.4)}.live()
	if f.first() != doTerm || f.at[0] < 160 || f.at[0] > 163 || f.tells&tellTouch == 0 {
		t.Errorf("%+v at %v, told %b", f.acts, f.at, f.tells)
	}
}

func TestCotenants(t *testing.T) {
	t.Parallel()
	falling := ramp(0, 30, 10, 30, 12, 3, 14, 1, 60, 1)
	server := Growth{Known: true, TreeKiB: 2 * gb, OutsiderKiB: 25 * gb, Name: "vllm", PID: 9, In: 1}
	grew := func(g Growth) func(float64) Growth { return func(float64) Growth { return g } }
	w := world{total: sparkKiB, host: falling, run: 1, end: 60, growth: grew(server)}
	if f := w.live(); f.first() != doKill || !f.acts[0].CoTenant {
		t.Errorf("kill: %+v", f.acts)
	}
	w.options.OnCotenant = CotenantWarn
	f := w.live()
	if len(f.acts) != 2 || f.acts[0].do != doWarn || f.acts[1].do != doKill || !f.acts[1].CoTenant || f.acts[1].Avail >= f.acts[1].Floor {
		t.Errorf("warn: %+v", f.acts)
	}
	// Where there is time, half the floor is waited for.
	slow := w
	slow.host = ramp(0, 30, 10, 30, 12, 4, 60, 1)
	if f := slow.live(); len(f.acts) != 2 || f.acts[0].do != doWarn || f.acts[1].do != doKill || f.acts[1].Avail >= f.acts[1].Floor/2+f.acts[1].Floor/20 {
		t.Errorf("warn, slowly: %+v", f.acts)
	}
	mine, quiet, far := server, server, server
	mine.TreeKiB = 26 * gb
	quiet.OutsiderKiB, quiet.TreeKiB = 1000*mib, 0
	far.In = 0
	stale := server
	stale.AvailKiB = 40 * gb // most of it has gone since
	for name, g := range map[string]Growth{"seen long ago": stale, "the tree grew more": mine, "noise": quiet, "unknown": {}, "elsewhere": far} {
		w.growth = grew(g)
		if f := w.live(); f.first() != doKill || f.acts[0].CoTenant {
			t.Errorf("%s: %+v", name, f.acts)
		}
	}
	// Somebody on the host is no reason for the room in our container.
	c := world{
		total: sparkKiB, host: ramp(0, 90), limit: 8 * gb, room: ramp(0, 4, 5, 4, 9, 0, 60, 0), run: 1, end: 60, growth: grew(server),
	}
	if f := c.live(); len(f.acts) == 0 || f.acts[0].Source != 1 || f.acts[0].CoTenant {
		t.Errorf("container: %+v", f.acts)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"soft below hard": {HardPct: 20, SoftPct: 10}, "negative": {HardPct: -1}, "too much": {HardPct: 60, SoftPct: 80},
		"not a number": {HardPct: math.NaN()}, "absolute": {HardKiB: 10, SoftKiB: 5}, "word": {OnCotenant: "ask"},
	} {
		if o.Check() == nil {
			t.Errorf("%s: no error for %+v", name, o)
		}
	}
	for name, o := range map[string]Options{"none": {}, "hard alone": {HardKiB: 90 * gb}, "both": {HardPct: 5, SoftPct: 20, OnCotenant: "warn"}} {
		if err := o.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if hard, soft := (Options{HardKiB: 90 * gb}).floors(true, sparkKiB); hard != 90*gb || soft != hard {
		t.Errorf("%d %d", hard, soft)
	}
	if hard, _ := (Options{HardKiB: 90 * gb}).floors(false, 512*mib); hard != 15728 {
		t.Errorf("a container limit was judged with the host's floor: %d", hard)
	}
	f := world{total: sparkKiB, host: ramp(0, 30, 3, 0, 60, 0), run: 0, end: 60, options: Options{Off: true}}.live()
	if len(f.acts) > 0 {
		t.Errorf("off: %+v", f.acts)
	}
}

// drawReading is any reading, also an impossible one.
func drawReading(t *rapid.T, at time.Duration) Reading {
	r := Reading{
		At: at, Run: rapid.Bool().Draw(t, "run"), HasPSI: rapid.Bool().Draw(t, "has psi"),
		PSIFull: rapid.Uint32Range(0, 10000).Draw(t, "psi"), SwapTotalKiB: 16 * gb,
		SwapFreeKiB: rapid.Uint64Range(0, 16*gb).Draw(t, "swap"),
	}
	for i := range rapid.IntRange(1, maxSources).Draw(t, "sources") {
		total := rapid.SampledFrom([]uint64{sparkKiB, 8 * gb, 512 * mib, 1, 0}).Draw(t, "total")
		share := rapid.SampledFrom([]uint64{0, 1, 2, 3, 4, 10, 14, 50, 100}).Draw(t, "share")
		r.Levels[i] = Level{AvailKiB: total / 100 * share, TotalKiB: total, OK: rapid.Bool().Draw(t, "ok")}
	}
	r.Growth = Growth{
		Known: rapid.Bool().Draw(t, "known"), TreeKiB: rapid.Int64Range(-gb, 100*gb).Draw(t, "tree"),
		OutsiderKiB: rapid.Int64Range(0, 100*gb).Draw(t, "out"), In: rapid.Uint8().Draw(t, "in"),
	}
	return r
}

// Whatever it reads: there is always a next poll in time, a signal always has a
// reason that the reading shows, and real want is never let pass.
func TestDecisionsHaveReasons(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{Options{OnCotenant: rapid.SampledFrom([]string{"", "warn"}).Draw(t, "cotenant"), Off: rapid.IntRange(0, 9).Draw(t, "off") == 0}}
		var s State
		at := time.Hour
		var acted do
		for range rapid.IntRange(1, 40).Draw(t, "polls") {
			at += time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond
			r := drawReading(t, at)
			lowered := s.src // as it was before
			var d Decision
			s, d = p.Next(s, r)
			if d.Wait < minPoll || d.Wait > maxPoll {
				t.Fatalf("next poll after %s", d.Wait)
			}
			var belowSoft, belowHard, belowHalf bool
			for i, l := range r.Levels {
				if !l.OK || l.TotalKiB == 0 {
					continue
				}
				hard, soft := p.floors(i == 0, l.TotalKiB)
				belowSoft = belowSoft || l.AvailKiB < soft
				belowHard = belowHard || l.AvailKiB < hard
				if !lowered[i].seen || lowered[i].lowered {
					hard /= 2
				}
				belowHalf = belowHalf || l.AvailKiB < hard/2
			}
			switch {
			case p.Off && d.do != doNothing:
				t.Fatalf("off, and yet %+v", d)
			case acted == doNothing && d.do != doNothing && !belowSoft:
				t.Fatalf("above every soft floor, and yet %+v", d)
			case acted == doNothing && d.do != doNothing && !r.Run && !belowHard:
				t.Fatalf("loading, above every hard floor, and yet %+v", d)
			case !p.Off && acted != doKill && belowHalf && d.do != doKill:
				t.Fatalf("below half a hard floor, and only %+v after %v", d, acted)
			case acted == doKill && d.do == doTerm, d.do == doWarn && acted > doWarn:
				t.Fatalf("%v after %v", d.do, acted)
			}
			if d.do != doNothing {
				acted = max(acted, d.do)
				if d.Source >= maxSources || !r.Levels[d.Source].OK {
					t.Fatalf("a source that was not read: %+v", d)
				}
			}
		}
	})
}

// A job whose swings never go below the soft floor, or that is loading and never
// goes below the hard one, is left alone however steep they are.
func TestSwingsAboveTheFloorsAreNoReason(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		run := rapid.Bool().Draw(t, "run")
		_, soft := Options{}.floors(true, sparkKiB)
		hard, _ := Options{}.floors(true, sparkKiB)
		floor := hard
		if run {
			floor = soft
		}
		low := float64(floor)/gb + rapid.Float64Range(0.01, 20).Draw(t, "margin")
		high := low + rapid.Float64Range(0, 80).Draw(t, "swing")
		w := world{
			total: sparkKiB, host: saw(high, low, rapid.Float64Range(0.02, 5).Draw(t, "fall"), rapid.Float64Range(0.02, 5).Draw(t, "rise")),
			run: 1e9, end: 60,
		}
		if run {
			w.run = 0
		}
		if f := w.live(); len(f.acts) > 0 {
			t.Fatalf("%.2f s: %+v", f.at[0], f.acts[0])
		}
	})
}

// Any fall, up to twice as fast as one was ever seen, is ended above zero.
func TestFallsAreEndedAboveZero(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.SampledFrom([]uint64{sparkKiB, 64 * gb, 24 * gb}).Draw(t, "total")
		start := float64(total) / gb * rapid.Float64Range(0.2, 0.9).Draw(t, "start")
		speed := rapid.Float64Range(0.05, 28).Draw(t, "GiB/s")
		calm := rapid.Float64Range(0, 5).Draw(t, "calm")
		down := start / speed
		w := world{total: total, host: ramp(0, start, calm, start, calm+down, 0, calm+down+5, 0), run: 1e9, end: calm + down + 5}
		if rapid.Bool().Draw(t, "run") {
			w.run = 0
		}
		f := w.live()
		if !f.ended || f.least <= 0 {
			t.Fatalf("from %.1f at %.2f GiB/s: ended %v with %.2f left, %+v", start, speed, f.ended, f.least, f.acts)
		}
	})
}

// TestOptionsOfOneMachine: shares and sizes are held against each other.
func TestOptionsOfOneMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		Options
		total uint64
		want  string
	}{
		"built-in":                    {Options{}, sparkKiB, ""},
		"the flags' own":              {Options{HardPct: 3, SoftPct: 13}, sparkKiB, ""},
		"the floor alone raised":      {Options{HardKiB: 60 * gb, SoftPct: 13}, sparkKiB, ""},
		"a size over a share":         {Options{HardPct: 3, SoftKiB: 8 * gb}, sparkKiB, ""},
		"unknown":                     {Options{HardKiB: 900 * gb}, 0, ""},
		"soft size below hard share":  {Options{HardPct: 3, SoftKiB: gb}, sparkKiB, "soft floor of 1.0 GiB lies below its hard floor of 3.7 GiB"},
		"soft share below hard size":  {Options{HardKiB: 60 * gb, SoftPct: 20}, sparkKiB, "lies below"},
		"the floor above all":         {Options{HardKiB: 200 * gb}, sparkKiB, "the guard's floor of 200.0 GiB"},
		"the floor is all":            {Options{HardKiB: sparkKiB}, sparkKiB, "ended at once"},
		"the soft floor above all":    {Options{SoftKiB: 200 * gb}, sparkKiB, "soft floor of 200.0 GiB is more"},
		"what Check finds, it finds":  {Options{HardPct: -1}, sparkKiB, "makes no sense"},
		"and on an unknown machine":   {Options{HardPct: -1}, 0, "makes no sense"},
		"sizes below a GiB are whole": {Options{HardKiB: 600 * mib, SoftKiB: 900 * mib}, 512 * mib, "floor of 600 MiB"},
	} {
		err := c.CheckFor(c.total)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWordsOfALimit: no word of a machine that freezes where a cgroup's limit is
// meant, small sizes are no "0.0 GiB", and each source is told of by itself.
func TestWordsOfALimit(t *testing.T) {
	t.Parallel()
	for tell := tellNear; tell <= tellWhole; tell <<= 1 {
		for _, off := range []bool{false, true} {
			r := raw{told: tell, source: "/sys/fs/cgroup/job", avail: 310 * mib, total: 1000 * mib, hard: 30 * mib, soft: 130 * mib, off: off}
			n := (Event{Kind: EventNote, raw: r}).Text()
			if strings.Contains(n.Text, "machine") || strings.Contains(n.Text, "freez") || strings.Contains(n.Text, "GiB") ||
				!strings.Contains(n.Text, "310 MiB") || !strings.Contains(n.Text, "/sys/fs/cgroup/job") {
				t.Errorf("%b: %s", tell, n.Text)
			}
		}
	}
	for source, host := range map[string]bool{"": true, SourceHost: true, "/sys/fs/cgroup/job": false} {
		if (Action{Source: source}).Host() != host {
			t.Errorf("%q", source)
		}
	}
	// Both run low in one reading.
	var s State
	r := Reading{At: time.Hour}
	r.Levels[0] = Level{AvailKiB: 10 * gb, TotalKiB: 100 * gb, OK: true}
	r.Levels[2] = Level{AvailKiB: gb / 33, TotalKiB: gb, OK: true}
	_, d := Policy{}.Next(s, r)
	if d.Tell[0] != tellNear || d.Tell[1] != 0 || d.Tell[2] != tellNear|tellLowered {
		t.Errorf("%b", d.Tell)
	}
}
