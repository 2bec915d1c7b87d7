package host

import (
	"fmt"
	"sync"
	"time"
)

const (
	// deadline is how long one file may take. It is less than the time by which
	// readings are taken before the row they stand in.
	deadline = 150 * time.Millisecond
	// patient is how long one file may take while sensors are looked for: what
	// is missed there is missed for longer. Once one hangs it is the deadline.
	patient = 500 * time.Millisecond
	// budget is how long all files together may take.
	budget = time.Second
	// helpers is how many read on at the same time after one reader has hung:
	// where one file hangs others often do.
	helpers = 4
	// maxHung bounds the readers, each a thread, that hang at one time.
	maxHung = 32
	// patience is how long a file hangs before that is said: one late answer
	// on a busy machine is no news.
	patience = time.Second
	// A file that has come back late is asked again after laterMin, then after
	// twice that, up to laterMax: waiting for it at every tick would make all
	// readings late.
	laterMin = time.Second
	laterMax = time.Minute
)

// sensor is one file that gives a number. Its value belongs to whoever calls
// pool.read; the rest is guarded by the pool.
type sensor struct {
	// name is what people are told, and the key of sample.GPU.Failed.
	name string
	// ask returns the number; it may block.
	ask func() (int64, bool)
	// end frees what ask holds.
	end func()

	value int64
	ok    bool
	// good is set once it has given a number that makes sense.
	good bool

	// hung is set from when the answer was given up until it comes.
	hung  bool
	since time.Time
	// late counts the answers in a row that came too late, again is when the
	// next question may be asked.
	late  int
	again time.Time
}

// pool reads sensors of which each may block for good. As long as nothing
// hangs there is one reader at a time; a reader that hangs is left alone with
// its file and another takes over the rest.
type pool struct {
	deadline, budget, patient time.Duration

	mu   sync.Mutex
	hung int
	// slow holds the paths that ask has given up.
	slow map[string]bool
}

func newPool() *pool {
	return &pool{deadline: deadline, budget: budget, patient: patient, slow: make(map[string]bool)}
}

// read asks all sensors that do not hang and returns after the budget at the
// latest. Those that gave no number have ok unset. It reports whether all could
// be asked.
func (p *pool) read(sensors []*sensor) bool {
	r := &round{pool: p, done: make(chan struct{})}
	now := time.Now()
	p.mu.Lock()
	for _, s := range sensors {
		s.ok = false
		if !s.hung && !now.Before(s.again) {
			r.todo = append(r.todo, s)
		}
	}
	if len(r.todo) == 0 || p.hung >= maxHung {
		p.mu.Unlock()
		return len(r.todo) == 0
	}
	r.start(1)
	p.mu.Unlock()

	timer := time.NewTimer(p.deadline)
	defer timer.Stop()
	for end := now.Add(p.budget); ; {
		select {
		case <-r.done:
			return true
		case t := <-timer.C:
			next, more := r.giveUp(t, end)
			if !more {
				p.mu.Lock()
				defer p.mu.Unlock()
				return len(r.todo) == 0
			}
			timer.Reset(time.Until(next))
		}
	}
}

// trouble says why a sensor gives nothing; "" where there is no more to say
// than that it gave no number this time.
func (p *pool) trouble(s *sensor, now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case s.hung && (s.late > 0 || now.Sub(s.since) >= patience):
		return fmt.Sprintf("no answer for %.0f s", now.Sub(s.since).Seconds())
	case !s.hung && s.late > 1:
		return fmt.Sprintf("it answers later than after %v, asked again every %v", p.deadline, s.pause())
	}
	return ""
}

// pause is how long a late sensor is left alone. Call with the lock held.
func (s *sensor) pause() time.Duration { return min(laterMin<<min(s.late-1, 10), laterMax) }

// drop frees what a sensor holds, unless it hangs: then it has to be kept.
func (p *pool) drop(s *sensor) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.hung {
		return false
	}
	s.end()
	return true
}

// full reports whether as many readers hang as may.
func (p *pool) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hung >= maxHung
}

// awaited reports whether the sensor's last answer has not come, or too late.
func (p *pool) awaited(s *sensor) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.hung || s.late > 0
}

// round is one pass over the sensors. Everything in it is guarded by the pool.
type round struct {
	*pool
	todo    []*sensor
	readers []*reader
	working int
	// closed is set when the answers are no longer waited for.
	closed bool
	done   chan struct{}
}

// reader is one goroutine of a round; at is the sensor it asks.
type reader struct {
	at    *sensor
	since time.Time
}

// start starts readers. Call with the lock held.
func (r *round) start(n int) {
	for range n {
		w := &reader{}
		r.readers = append(r.readers, w)
		r.working++
		go r.work(w)
	}
}

func (r *round) work(w *reader) {
	for {
		s := r.next(w)
		if s == nil {
			return
		}
		v, ok := s.ask()
		if !r.answered(w, s, v, ok) {
			return
		}
	}
}

func (r *round) next(w *reader) *sensor {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if len(r.todo) == 0 {
		r.working--
		w.at = nil
		if r.working == 0 {
			r.closed = true
			close(r.done)
		}
		return nil
	}
	s := r.todo[0]
	r.todo = r.todo[1:]
	w.at, w.since = s, time.Now()
	return s
}

// answered files an answer, and reports whether the reader may go on. An answer
// that was given up says nothing but that the sensor has come back.
func (r *round) answered(w *reader, s *sensor, v int64, ok bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.hung {
		s.value, s.ok, s.late = v, ok, 0
		w.at = nil
		return !r.closed
	}
	s.hung = false
	r.hung--
	s.late++
	s.again = time.Now()
	if s.late > 1 {
		s.again = s.again.Add(s.pause())
	}
	return false
}

// giveUp leaves the readers alone that are over their time, and starts others
// for the rest. It returns when to look again, and whether there is anything to
// wait for.
func (r *round) giveUp(now, end time.Time) (next time.Time, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return now, false
	}
	over := !now.Before(end)
	gone := 0
	next = end
	for _, w := range r.readers {
		switch {
		case w.at == nil || w.at.hung:
		case over || now.Sub(w.since) >= r.deadline:
			w.at.hung, w.at.since = true, w.since
			w.at = nil
			r.working--
			r.hung++
			gone++
		default:
			if t := w.since.Add(r.deadline); t.Before(next) {
				next = t
			}
		}
	}
	if gone > 0 && !over {
		n := min(helpers-r.working, len(r.todo), maxHung-r.hung-r.working)
		r.start(max(n, 0))
		if t := now.Add(r.deadline); n > 0 && t.Before(next) {
			next = t
		}
	}
	if over || r.working == 0 {
		r.closed = true
		return now, false
	}
	return next, true
}

// outcome is how a question ended.
type outcome int

const (
	answered outcome = iota
	// late is one that was given up now, hanging one that was given up before.
	late
	hanging
)

// ask runs f, which belongs to path, and waits for it for so long and no longer.
// It is for what is asked while looking for sensors: f gives its answer by
// returning it.
func ask[T any](p *pool, path string, f func() T) (answer T, how outcome) {
	p.mu.Lock()
	if p.slow[path] || p.hung >= maxHung {
		p.mu.Unlock()
		return answer, hanging
	}
	wait := p.patient
	if p.hung > 0 {
		wait = p.deadline
	}
	p.mu.Unlock()
	came := make(chan T, 1)
	go func() {
		v := f()
		p.mu.Lock()
		defer p.mu.Unlock()
		came <- v
		if p.slow[path] {
			delete(p.slow, path)
			p.hung--
		}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case answer = <-came:
		return answer, answered
	case <-timer.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// It may have come between the two.
	select {
	case answer = <-came:
		return answer, answered
	default:
		p.slow[path] = true
		p.hung++
		return answer, late
	}
}
