// Package cores decides how many processors the Go runtime of this process may use at
// once. A process that mostly waits does best with one: with more, each thing that happens
// wakes a second thread to look for work that is not there, and nearly all of what an idle
// supervisor costs a training is such waking. One through which much flows needs more.
package cores

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// burst bytes within the time of quick are much: from about 2.5 MB/s on one processor
	// is busy enough that a second one pays.
	burst = 256 << 10
	quick = 100 * time.Millisecond
	// calm is how long less than that must flow until one processor is enough again.
	calm = 2 * time.Second
	// alert is how many there are at least while something must not wait its turn.
	alert = 2
)

// throttle is the state of this process.
type throttle struct {
	// moved counts bytes up to burst.
	moved atomic.Int64

	mu sync.Mutex
	// most may be used while much flows, full by who does not rest.
	most, full int
	// resting is whether one processor is enough as long as little flows, up whether
	// much does.
	resting, up bool
	// alarmed is whether something must not wait its turn.
	alarmed     bool
	began, last time.Time
	// set is runtime.GOMAXPROCS.
	set func(int) int
}

var own = throttle{set: runtime.GOMAXPROCS}

// Rest is for a process that has begun to wait: one processor from now on, and most of
// them, though no more than there were, while much flows (see Moved).
func Rest(most int) { own.rest(most) }

// Work gives all processors back, to a process that has something to reckon.
func Work() { own.work() }

// Alert says whether there is something in this process that must not wait until another
// goroutine gives the only processor up: one that reads a table keeps it for milliseconds,
// and one that waits for a page of its own memory keeps it until the disk has given that.
// It may wait for a collection to end.
func Alert(yes bool) { own.alert(yes) }

// Moved says that n bytes went through this process. It may be called for every read.
func Moved(n int) {
	if own.moved.Add(int64(n)) >= burst {
		own.look(time.Now())
	}
}

func (t *throttle) rest(most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.resting {
		return
	}
	t.resting, t.up = true, false
	t.full = t.set(1)
	t.most = min(t.full, most)
	if n := t.quiet(); n > 1 {
		t.set(n)
	}
}

// quiet is how many processors are enough while little flows.
func (t *throttle) quiet() int {
	if t.alarmed {
		return min(t.full, alert)
	}
	return 1
}

func (t *throttle) alert(yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alarmed == yes {
		return
	}
	t.alarmed = yes
	if t.resting && !(t.up && t.most >= alert) && t.full > 1 {
		t.set(t.quiet())
	}
}

func (t *throttle) work() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.resting {
		t.resting, t.up = false, false
		t.set(t.full)
	}
}

// look is called when burst bytes have come.
func (t *throttle) look(now time.Time) {
	// Who finds somebody else looking has nothing to add.
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	t.moved.Store(0)
	fast := now.Sub(t.began) < quick
	t.began = now
	if !fast {
		return
	}
	t.last = now
	if t.resting && !t.up && t.most > 1 {
		t.up = true
		t.set(max(t.most, t.quiet()))
		time.AfterFunc(calm, t.settle)
	}
}

// settle goes back to one processor when little has flowed for a while.
func (t *throttle) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.up:
	case time.Since(t.last) < calm:
		time.AfterFunc(calm, t.settle)
	default:
		t.up = false
		t.set(t.quiet())
	}
}
