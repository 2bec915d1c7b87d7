package cores

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestProcessorsFollowWhatFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		have := 20
		var sets []int
		k := throttle{set: func(n int) int {
			was := have
			have = n
			sets = append(sets, n)
			return was
		}}
		// flow moves so many bursts, one every d.
		flow := func(bursts int, d time.Duration) {
			for range bursts {
				time.Sleep(d)
				k.look(time.Now())
			}
			synctest.Wait()
		}
		expect := func(when string, n int) {
			t.Helper()
			if have != n {
				t.Errorf("%s: %d processors, want %d (so far %v)", when, have, n, sets)
			}
		}
		flow(10, time.Millisecond)
		expect("before it rests nothing is changed", 20)
		k.rest(4)
		expect("at rest", 1)
		flow(20, 150*time.Millisecond)
		expect("with a slow flow", 1)
		flow(1, time.Millisecond)
		expect("at once when it is fast", 4)
		flow(100, 50*time.Millisecond)
		expect("as long as it is fast", 4)
		flow(40, 150*time.Millisecond)
		expect("some time after it was", 1)
		flow(2, time.Millisecond)
		k.rest(4)
		expect("resting twice changes nothing", 4)
		k.work()
		expect("at work", 20)
		time.Sleep(10 * calm)
		synctest.Wait()
		expect("the timer of a flow that is over does nothing", 20)
		if want := []int{1, 4, 1, 4, 20}; !slices.Equal(sets, want) {
			t.Errorf("set to %v, want %v", sets, want)
		}
	})
}

func TestOneProcessorStaysOne(t *testing.T) {
	t.Parallel()
	have := 1
	k := throttle{set: func(n int) int { was := have; have = n; return was }}
	k.rest(4)
	now := time.Now()
	for range 5 {
		now = now.Add(time.Millisecond)
		k.look(now)
	}
	if have != 1 {
		t.Errorf("%d processors", have)
	}
	k.work()
	if have != 1 {
		t.Errorf("%d processors after it", have)
	}
}
