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

func TestWhatMustNotWaitHasASecondProcessor(t *testing.T) {
	for _, test := range []struct {
		name       string
		have, most int
		do         func(k *throttle)
		want       int
	}{
		{"alert at rest", 20, 4, func(k *throttle) { k.rest(4); k.alert(true) }, 2},
		{"alert before it rests", 20, 4, func(k *throttle) { k.alert(true); k.rest(4) }, 2},
		{"told twice", 20, 4, func(k *throttle) { k.rest(4); k.alert(true); k.alert(true) }, 2},
		{"the alert is over", 20, 4, func(k *throttle) { k.rest(4); k.alert(true); k.alert(false) }, 1},
		{"over before it rests", 20, 4, func(k *throttle) { k.alert(true); k.alert(false); k.rest(4) }, 1},
		{"much flows", 20, 4, func(k *throttle) { k.rest(4); k.flow(); k.alert(true) }, 4},
		{"an alert ends while much flows", 20, 4, func(k *throttle) { k.rest(4); k.alert(true); k.flow(); k.alert(false) }, 4},
		{"no more flows", 20, 4, func(k *throttle) { k.rest(4); k.alert(true); k.flow(); k.still() }, 2},
		{"neither", 20, 4, func(k *throttle) { k.rest(4); k.alert(true); k.flow(); k.alert(false); k.still() }, 1},
		{"at work", 20, 4, func(k *throttle) { k.rest(4); k.work(); k.alert(true) }, 20},
		{"there is but one", 1, 4, func(k *throttle) { k.rest(4); k.alert(true) }, 1},
		{"two at most", 2, 2, func(k *throttle) { k.rest(2); k.alert(true); k.flow() }, 2},
		{"it rests with one at most", 8, 1, func(k *throttle) { k.rest(1); k.alert(true); k.flow() }, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				have := test.have
				k := throttle{set: func(n int) int { was := have; have = n; return was }}
				test.do(&k)
				if have != test.want {
					t.Errorf("%d processors, want %d", have, test.want)
				}
			})
		})
	}
}

// flow lets much go through; still lets time pass after it.
func (t *throttle) flow() {
	for range 3 {
		time.Sleep(time.Millisecond)
		t.look(time.Now())
	}
}

func (t *throttle) still() {
	time.Sleep(10 * calm)
	synctest.Wait()
}
