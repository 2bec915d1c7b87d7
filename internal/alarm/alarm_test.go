package alarm

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// both runs a test with a timerfd and, as on a kernel that has none to give, without.
func both(t *testing.T, f func(t *testing.T, k *clock)) {
	for name, kernel := range map[string]bool{"timerfd": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newClock(kernel)
			if kernel != (k.fd >= 0) {
				t.Fatalf("timerfd is %d", k.fd)
			}
			f(t, k)
		})
	}
}

func (k *clock) set(t *Timer, d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reset(t, max(time.Since(k.born)+d, 1))
}

func (k *clock) unset(t *Timer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(t)
}

func rings(t *testing.T, timer *Timer) {
	t.Helper()
	select {
	case <-timer.C:
	case <-time.After(10 * time.Second):
		t.Fatal("the timer never rang")
	}
}

func TestEachRingsOnceAndNotBeforeItsTime(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k *clock) {
		var all sync.WaitGroup
		// The longest first: an earlier one is set while the kernel waits for it.
		for d := 120 * time.Millisecond; d >= -20*time.Millisecond; d -= 10 * time.Millisecond {
			timer := New()
			began := time.Now()
			k.set(timer, d)
			all.Go(func() {
				rings(t, timer)
				if took := time.Since(began); took < d {
					t.Errorf("set to %v, rang after %v", d, took)
				}
			})
		}
		all.Wait()
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.timers) != 0 {
			t.Errorf("%d timers are still set", len(k.timers))
		}
	})
}

func TestSetAnewAndUnset(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k *clock) {
		later, never, rung := New(), New(), New()
		k.set(later, 10*time.Millisecond)
		k.set(never, 10*time.Millisecond)
		k.set(rung, 0)
		k.set(later, 80*time.Millisecond)
		began := time.Now()
		k.unset(never)
		for len(rung.c) == 0 {
			time.Sleep(time.Millisecond)
		}
		k.unset(rung) // takes back what nobody has taken
		rings(t, later)
		if took := time.Since(began); took < 70*time.Millisecond {
			t.Errorf("one that was set anew rang after %v", took)
		}
		if len(never.c)+len(rung.c) != 0 {
			t.Error("one that was unset rang")
		}
		// The same one again, after it rang and after it was unset.
		k.set(later, 0)
		rings(t, later)
		k.set(never, 0)
		rings(t, never)
	})
}

func TestAWaitIsOneWaking(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k *clock) {
		const waits = 20
		for range waits {
			timer, never := New(), New()
			k.set(never, time.Hour)
			k.set(timer, 7*time.Millisecond)
			rings(t, timer)
			k.unset(never)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		// One that was on its way while the timer was set anew may come in between.
		if k.rang > waits+2 {
			t.Errorf("woken %d times for %d timers", k.rang, waits)
		}
	})
}

func TestALostTimerfdIsReplaced(t *testing.T) {
	t.Parallel()
	k := newClock(true)
	timer := New()
	k.set(timer, 50*time.Millisecond)
	k.abandon()
	rings(t, timer)
	k.set(timer, 10*time.Millisecond)
	rings(t, timer)
}

func TestATimerfdThatCannotBeSetIsReplaced(t *testing.T) {
	t.Parallel()
	k := newClock(true)
	other, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	if err := unix.Dup3(other, k.fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	timer, second := New(), New()
	k.set(timer, 20*time.Millisecond)
	k.set(second, 10*time.Millisecond)
	rings(t, second)
	rings(t, timer)
	k.set(timer, 10*time.Millisecond)
	rings(t, timer)
}

func TestTheProcessHasOne(t *testing.T) {
	t.Parallel()
	timer := After(time.Millisecond)
	rings(t, timer)
	timer.Reset(time.Hour)
	timer.Stop()
	timer.Reset(time.Millisecond)
	rings(t, timer)
	began := time.Now()
	Sleep(20 * time.Millisecond)
	Sleep(-time.Second)
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Errorf("slept for %v", took)
	}
}
