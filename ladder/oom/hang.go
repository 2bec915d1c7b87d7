package oom

import (
	"fmt"
	"time"

	"sparkrun/internal/clock"
)

// hangFloor is the least time without an advance and without new output after
// which a job that ran out of memory counts as hung.
const hangFloor = 3 * time.Minute

// Quiet describes a job that may hang after an out-of-memory line.
type Quiet struct {
	// Pending says that such a line stands in the burst since the last advance
	// (Scanner.Pending); Since is the time since it was printed.
	Pending bool
	Since   time.Duration
	// SinceOutput is the time since the last byte of output, SinceAdvance the
	// time since the last advance, or since the start where there was none.
	SinceOutput, SinceAdvance time.Duration
	// MedianStep is the job's usual time for a step; 0 = unknown.
	MedianStep time.Duration
	// Floor replaces the three minutes where it is set.
	Floor time.Duration
	// Alive says that the command still runs.
	Alive bool
}

// HangAfter is how long a job must stand still after an out-of-memory line before
// it counts as hung: three steps, and three minutes at least.
func HangAfter(median time.Duration) time.Duration { return max(3*median, hangFloor) }

// Hung tells whether the job hangs after an out-of-memory line, with a sentence
// that says why. Output of any kind keeps it alive: a trainer that skips every
// update still prints, and such a waste is for a warning.
func Hung(q Quiet) (hung bool, why string) {
	limit := HangAfter(q.MedianStep)
	if q.Floor > 0 {
		limit = max(3*q.MedianStep, q.Floor)
	}
	if !q.Alive || !q.Pending || min(q.Since, q.SinceOutput, q.SinceAdvance) < limit {
		return false, ""
	}
	return true, fmt.Sprintf("an out-of-memory line was printed %s ago, and for %s there was neither a step nor any output (the limit is %s)",
		clock.Span(q.Since), clock.Span(min(q.SinceOutput, q.SinceAdvance)), clock.Span(limit))
}
