package supervisor

import (
	"testing"
	"time"
)

// TestQuietStandsStillInAPause: the time of a pause is no silence, what was printed while
// it began is not put into the future, and what never came is measured from the start.
func TestQuietStandsStillInAPause(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 7, 14, 10, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	var q quiet
	q.line(at(10), true, false)  // a step
	q.line(at(20), false, true)  // an out-of-memory line
	q.line(at(101), false, true) // printed while the pause began
	q.resumed(at(100), at(400))
	got := q.at(at(450), start, 0)
	for name, d := range map[string][2]time.Duration{
		"since the step":                {got.SinceAdvance, 140 * time.Second},
		"since the out-of-memory line":  {got.Since, 130 * time.Second},
		"since what it printed in it":   {got.SinceOutput, 50 * time.Second},
		"since a start without a sound": {new(quiet).after(at(100), at(400)).at(at(450), start, 0).SinceOutput, 150 * time.Second},
	} {
		if d[0] != d[1] {
			t.Errorf("%s: %s, want %s", name, d[0], d[1])
		}
	}
	// One that is over before it began, by a clock's whim, changes nothing.
	q.resumed(at(500), at(499))
	if again := q.at(at(450), start, 0); again != got {
		t.Errorf("%+v, want %+v", again, got)
	}
}

func (q *quiet) after(began, end time.Time) *quiet {
	q.resumed(began, end)
	return q
}

// TestWorkStandsStillInAPause: what computed before a pause still does after it.
func TestWorkStandsStillInAPause(t *testing.T) {
	t.Parallel()
	now := time.Now()
	w := work{cpu: time.Second, at: now.Add(-10 * time.Minute), last: now.Add(-10*time.Minute - time.Second), looks: 5}
	if w.busy(now, 3*time.Second) {
		t.Fatal("silence of ten minutes is work")
	}
	w = w.resumed(10 * time.Minute)
	if !w.busy(now, 3*time.Second) || !w.at.IsZero() || w.looks != 5 {
		t.Errorf("%+v", w)
	}
	if (work{}).resumed(time.Minute).busy(now, time.Hour) {
		t.Error("what never computed is busy")
	}
}
