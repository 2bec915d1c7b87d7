package acting

import (
	"fmt"
	"testing"

	"sparkrun/internal/event"
)

func TestTold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind  event.Kind
		level event.Level
		want  bool
	}{
		{event.RunStart, event.Info, false},
		{event.RunEnd, event.Info, true},
		{event.Checkpoint, event.Info, false},
		{event.Checkpoint, event.Warn, true},
		{event.KernelXid, event.Error, true},
		{event.ThrottleStart, event.Info, true},
		{event.Continue, event.Info, true},
		{event.AttemptEnd, event.Info, true},
		{event.Hygiene, event.Info, false},
	} {
		if got := Told(event.Event{Kind: tt.kind, Level: tt.level}); got != tt.want {
			t.Errorf("%s %s: %v", tt.kind, tt.level, got)
		}
	}
}

// TestQueue: in order, the oldest goes when it is full, and the end of the run waits for
// its time.
func TestQueue(t *testing.T) {
	t.Parallel()
	var q Queue
	if _, _, ok := q.Take(true); ok {
		t.Error("an empty queue gives a letter")
	}
	put := func(kind event.Kind, n int) { q.Put(Letter{Kind: kind, Line: fmt.Append(nil, n)}) }
	for n := range QueueMost + 3 {
		put(event.Hang, n)
	}
	for n := range QueueMost {
		l, dropped, ok := q.Take(false)
		want := 0
		if n == 0 {
			want = 3
		}
		if !ok || string(l.Line) != fmt.Sprint(n+3) || dropped != want {
			t.Fatalf("letter %d is %q, %d dropped, %v", n, l.Line, dropped, ok)
		}
	}
	put(event.AttemptEnd, 1)
	put(event.RunEnd, 2)
	if l, _, ok := q.Take(false); !ok || l.Kind != event.AttemptEnd {
		t.Errorf("%v, %v", l.Kind, ok)
	}
	if l, _, ok := q.Take(false); ok {
		t.Errorf("the end came too early: %v", l.Kind)
	}
	if l, _, ok := q.Take(true); !ok || l.Kind != event.RunEnd {
		t.Errorf("%v, %v", l.Kind, ok)
	}
	put(event.Hang, 1)
	put(event.RunEnd, 2)
	q.Cut()
	if q.Left() != 2 {
		t.Errorf("left %d", q.Left())
	}
	if l, dropped, ok := q.Take(true); !ok || l.Kind != event.RunEnd || dropped != 1 {
		t.Errorf("%v, %d dropped, %v", l.Kind, dropped, ok)
	}
}
