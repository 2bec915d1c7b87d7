// Package alarm has timers that cost less than those of package time, for what a process
// does again and again for days.
//
// A timer of the runtime makes a process that is otherwise asleep wake about a dozen times:
// its thread waits in epoll, which counts whole milliseconds, for a little less than the
// time that is left, and then once more for a little too long, and the runtime's monitor
// meanwhile polls to see why the timer is not being served. Here one timerfd is set to the
// earliest of all times, and its expiry is an event as any input is: one waking, at the
// nanosecond that was asked for.
package alarm

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Timer is one timer. C gets a value when its time has come; one that was not taken does
// not wait behind another.
type Timer struct {
	C <-chan struct{}
	c chan struct{}
	// at is when it is due, since the clock's birth; 0 for one that is not set.
	at time.Duration
}

// clock is what all timers of a process hang on.
type clock struct {
	mu     sync.Mutex
	born   time.Time
	timers []*Timer      // those that are set; there are few
	fd     int           // the timerfd, -1 where there is none
	file   *os.File      // the same
	armed  time.Duration // what the timerfd is set to, 0 for nothing
	rang   int           // how often it has woken this process
	// plain serves where the kernel has no timerfd to give.
	plain *time.Timer
}

var own = sync.OnceValue(func() *clock { return newClock(true) })

func newClock(kernel bool) *clock {
	k := &clock{born: time.Now(), fd: -1}
	// The goroutine of open may find at once that it is not to be read.
	k.mu.Lock()
	defer k.mu.Unlock()
	if kernel {
		k.open()
	}
	if k.fd < 0 {
		k.plain = time.AfterFunc(time.Hour, k.ring)
		k.plain.Stop()
	}
	return k
}

// open makes the timerfd, and the goroutine that reads it.
func (k *clock) open() {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	if f.SetReadDeadline(time.Time{}) != nil {
		// It cannot be waited for in the poller, and a thread of its own would cost
		// what this is to save.
		f.Close()
		return
	}
	k.fd, k.file = fd, f
	go func() {
		b := make([]byte, 8)
		for {
			if _, err := f.Read(b); err != nil && !errors.Is(err, unix.EAGAIN) {
				k.abandon()
				return
			}
			k.ring()
		}
	}()
}

// abandon goes on without a timerfd that can no longer be read.
func (k *clock) abandon() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forsake()
}

// forsake is abandon for who holds the lock.
func (k *clock) forsake() {
	if k.fd >= 0 {
		k.fd = -1
		k.plain = time.AfterFunc(0, k.ring)
		k.file.Close()
	}
}

// New returns a timer that is not set.
func New() *Timer {
	c := make(chan struct{}, 1)
	return &Timer{C: c, c: c}
}

// After returns a timer that is set to d from now. Stop gives it back.
func After(d time.Duration) *Timer {
	t := New()
	t.Reset(d)
	return t
}

// Sleep waits for d.
func Sleep(d time.Duration) {
	if d > 0 {
		<-After(d).C
	}
}

// Reset sets the timer to d from now, at once for d of 0 or less. What it had in C from
// before is gone.
func (t *Timer) Reset(d time.Duration) {
	k := own()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reset(t, max(time.Since(k.born)+d, 1))
}

// Stop unsets the timer and empties C.
func (t *Timer) Stop() {
	k := own()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(t)
}

func (k *clock) reset(t *Timer, at time.Duration) {
	set := t.at != 0
	select {
	case <-t.c:
	default:
	}
	t.at = at
	if !set {
		k.timers = append(k.timers, t)
	}
	k.arm()
}

func (k *clock) drop(t *Timer) {
	select {
	case <-t.c:
	default:
	}
	if t.at == 0 {
		return
	}
	t.at = 0
	for i, other := range k.timers {
		if other == t {
			last := len(k.timers) - 1
			k.timers[i], k.timers[last] = k.timers[last], nil
			k.timers = k.timers[:last]
			break
		}
	}
	k.arm()
}

// ring sends to the timers that are due and sets the next time.
func (k *clock) ring() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed, k.rang = 0, k.rang+1
	now := time.Since(k.born)
	kept := k.timers[:0]
	for _, t := range k.timers {
		if t.at > now {
			kept = append(kept, t)
			continue
		}
		t.at = 0
		select {
		case t.c <- struct{}{}:
		default:
		}
	}
	clear(k.timers[len(kept):])
	k.timers = kept
	k.arm()
}

// arm sets the timerfd to the earliest time. The call costs a fraction of a waking for
// nothing.
func (k *clock) arm() {
	var first time.Duration
	for _, t := range k.timers {
		if first == 0 || t.at < first {
			first = t.at
		}
	}
	if first == k.armed {
		return
	}
	k.armed = first
	if k.fd < 0 {
		if first == 0 {
			k.plain.Stop()
		} else {
			k.plain.Reset(first - time.Since(k.born))
		}
		return
	}
	var spec unix.ItimerSpec // zero unsets it
	if first != 0 {
		// Counted from now: of two clocks, one might ring before the time of the other,
		// again and again until that comes.
		spec.Value = unix.NsecToTimespec(int64(max(first-time.Since(k.born), 1)))
	}
	if unix.TimerfdSettime(k.fd, 0, &spec, nil) != nil {
		k.forsake() // a filter of system calls may know one of them and not the other
	}
}
