package acting

import "sparkrun/internal/event"

// toldKinds are handed on at every level: they say how the night goes.
var toldKinds = map[event.Kind]bool{
	event.ThrottleStart: true, event.ThrottleUpdate: true, event.ThrottleEnd: true,
	event.Pause: true, event.Continue: true, event.Hang: true,
	event.AttemptStart: true, event.AttemptEnd: true, event.RunEnd: true,
}

// Told says whether an event is handed to the command of --on-event: every warning and
// error, and the kinds that say how a run goes.
func Told(e event.Event) bool {
	return e.Level == event.Warn || e.Level == event.Error || toldKinds[e.Kind]
}

// Letter is an event on its way to the command.
type Letter struct {
	Kind    event.Kind
	Level   event.Level
	Attempt int
	// Line is the event as JSON.
	Line []byte
}

// QueueMost is how many letters wait at most.
const QueueMost = 64

// Queue holds letters in order. The zero value is empty. It is for one goroutine at a
// time.
type Queue struct {
	waiting []Letter
	dropped int
}

// Put adds a letter. Where the queue is full the oldest one goes: what is true now is
// worth more than what was.
func (q *Queue) Put(l Letter) {
	if len(q.waiting) >= QueueMost {
		q.waiting = append(q.waiting[:0], q.waiting[1:]...)
		q.dropped++
	}
	q.waiting = append(q.waiting, l)
}

// Take returns the oldest letter, and how many were dropped since the last one was taken.
// The end of the run is kept back until open is true.
func (q *Queue) Take(open bool) (l Letter, dropped int, ok bool) {
	if len(q.waiting) == 0 || q.waiting[0].Kind == event.RunEnd && !open {
		return Letter{}, 0, false
	}
	l, dropped = q.waiting[0], q.dropped
	q.waiting, q.dropped = q.waiting[1:], 0
	return l, dropped, true
}

// Cut drops everything but the end of the run.
func (q *Queue) Cut() {
	kept := q.waiting[:0]
	for _, l := range q.waiting {
		if l.Kind == event.RunEnd {
			kept = append(kept, l)
		} else {
			q.dropped++
		}
	}
	q.waiting = kept
}

// Left is how many letters are waiting or were dropped since the last one was taken.
func (q *Queue) Left() int { return len(q.waiting) + q.dropped }
