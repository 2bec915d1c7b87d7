package sampler

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// sinceNow is a clock that begins at 0 now.
func sinceNow() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

// bubbled is a waiter for the time of a test.
func bubbled() waiter {
	c := make(chan struct{}, 1)
	timer := time.AfterFunc(time.Hour, func() { c <- struct{}{} })
	timer.Stop()
	return waiter{due: c, reset: func(d time.Duration) { timer.Reset(d) }, stop: func() { timer.Stop() }}
}

func TestTicksDoNotDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		n := 0
		every(ctx, bubbled(), sinceNow(), 0, time.Second, func(missed int) {
			if want := start.Add(time.Duration(n) * time.Second); !time.Now().Equal(want) || missed != 0 {
				t.Errorf("tick %d at %v, missed %d, want %v", n, time.Now(), missed, want)
			}
			n++
			// Every tick does 17 ms of work; a night of that would be minutes.
			time.Sleep(17 * time.Millisecond)
			if n == 8*3600 {
				cancel()
			}
		})
		if n != 8*3600 {
			t.Errorf("%d ticks", n)
		}
	})
}

func TestMissedTicksAreCountedAndNotMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		var at []time.Duration
		var missed []int
		every(ctx, bubbled(), sinceNow(), 0, time.Second, func(m int) {
			at, missed = append(at, time.Since(start)), append(missed, m)
			switch len(at) {
			case 2:
				time.Sleep(3500 * time.Millisecond)
			case 5:
				cancel()
			}
		})
		wantAt := []time.Duration{0, time.Second, 4500 * time.Millisecond, 5 * time.Second, 6 * time.Second}
		if wantMissed := []int{0, 0, 2, 0, 0}; !slices.Equal(at, wantAt) || !slices.Equal(missed, wantMissed) {
			t.Errorf("ticks at %v missed %v, want %v %v", at, missed, wantAt, wantMissed)
		}
	})
}

func TestAlign(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ now, base, d, want time.Duration }{
		{1000, 0, 300, 1200},
		{1200, 0, 300, 1200},
		{1000, 5000, 300, 1100},
		{1000, 1000, 300, 1000},
	} {
		if got := align(c.now, c.base, c.d); got != c.want {
			t.Errorf("align(%d, %d, %d) = %d, want %d", c.now, c.base, c.d, got, c.want)
		}
	}
}

// TestASuspendedMachineMissesTicks: the clock jumps while the timers stand still.
func TestASuspendedMachineMissesTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		var slept atomic.Int64
		now := func() time.Duration { return time.Since(start) + time.Duration(slept.Load()) }
		var at []time.Duration
		var missed []int
		time.AfterFunc(75*time.Second, func() { slept.Store(int64(time.Hour)) })
		every(ctx, bubbled(), now, 0, 10*time.Minute, func(m int) {
			at, missed = append(at, now()), append(missed, m)
			if len(at) == 3 {
				cancel()
			}
		})
		// Six ticks passed in the hour; the next one that was due is made up for as soon as
		// the timers look, and those after it are on time.
		wantAt := []time.Duration{0, time.Hour + 90*time.Second, time.Hour + 10*time.Minute}
		if wantMissed := []int{0, 5, 0}; !slices.Equal(at, wantAt) || !slices.Equal(missed, wantMissed) {
			t.Errorf("ticks at %v missed %v, want %v %v", at, missed, wantAt, wantMissed)
		}
	})
}

func TestSensorsAreReadForEachRow(t *testing.T) {
	t.Parallel()
	s, m := time.Second, time.Minute
	for _, c := range []struct{ tick, interval, want time.Duration }{
		{s, 30 * s, s},
		{100 * time.Millisecond, 30 * s, 100 * time.Millisecond},
		{2 * s, 5 * s, 2 * s},
		{5 * s, 30 * s, 5 * s},
		{10 * m, 30 * s, 30 * s},
		{45 * s, 30 * s, 15 * s},
		{30 * s, 30 * s, 30 * s},
		// Rows that hardly ever coincide: a second does for both.
		{7 * s, 30 * s, s},
		{10 * m, s, s},
	} {
		if got := sensorStep(c.tick, c.interval); got != c.want {
			t.Errorf("rows every %v and %v: sensors every %v, want %v", c.tick, c.interval, got, c.want)
		}
	}
}

func TestGaps(t *testing.T) {
	t.Parallel()
	t0 := time.Unix(1_800_000_000, 0)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	g := make(gaps)
	if ended, _ := g.ok("nvml", at(0)); ended {
		t.Error("a gap ended that never began")
	}
	if !g.fail("nvml", at(1)) {
		t.Error("the first failure is no gap")
	}
	if g.fail("nvml", at(2)) || g.fail("nvml", at(3)) {
		t.Error("an event per tick")
	}
	if !g.fail("host", at(3)) {
		t.Error("sources are not apart")
	}
	for s := 4; s < 7; s++ {
		if ended, _ := g.ok("nvml", at(s)); ended {
			t.Errorf("over after %d s of answers", s-4)
		}
	}
	if ended, lasted := g.ok("nvml", at(7)); !ended || lasted != 3*time.Second {
		t.Errorf("ended %v, lasted %v, want 3 s", ended, lasted)
	}
}

func TestAFlappingSensorMakesFewEvents(t *testing.T) {
	t.Parallel()
	g := make(gaps)
	t0 := time.Unix(1_800_000_000, 0)
	events := 0
	for s := range 12 * 3600 {
		now := t0.Add(time.Duration(s) * time.Second)
		// 20 s there, 20 s away, all night.
		if s/20%2 == 0 {
			if ended, _ := g.ok("temp_gpu_c", now); ended {
				events++
			}
		} else if g.fail("temp_gpu_c", now) {
			events++
		}
	}
	if events < 2 || events > 12 {
		t.Errorf("%d events in a night", events)
	}
}
