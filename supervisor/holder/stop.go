package holder

import (
	"syscall"
	"time"
)

// The stop order, written down once as a function from state and event to
// state and actions:
//
//	run    -- stop(s) -->  grace    forward s
//	grace  -- time ----->  term     SIGTERM to the tree
//	term   -- time ----->  kill     SIGKILL to the tree, again while any is left
//	kill   -- time ----->  gave up  survivors are reported
//
// A second stop goes to term at once with a short wait, a third to kill. When
// the command itself ends, its descendants get a moment (settle), then SIGTERM
// and SIGKILL. An empty tree after the command's end is the way out of every
// phase.

type stopPhase int

const (
	phaseRun stopPhase = iota
	phaseGrace
	phaseSettle
	phaseTerm
	phaseKill
	phaseGone
	phaseGaveUp
)

// String is the word that Status.Stopping shows.
func (p stopPhase) String() string {
	switch p {
	case phaseGrace:
		return "grace"
	case phaseSettle:
		return "settle"
	case phaseTerm:
		return "term"
	case phaseKill:
		return "kill"
	case phaseGone, phaseGaveUp:
		return "over"
	}
	return ""
}

func (p stopPhase) over() bool { return p == phaseGone || p == phaseGaveUp }

// stopState is where the stop order is. Times are CLOCK_MONOTONIC-like: since
// any fixed instant.
type stopState struct {
	phase stopPhase
	// requests counts the stop requests so far.
	requests int
	// deadline is when time runs out for this phase.
	deadline time.Duration
	// childGone is whether the command itself has been reaped.
	childGone bool
}

type stopEventKind int

const (
	// evStop is a request to stop, with sig and grace.
	evStop stopEventKind = iota
	// evChild says that the command has been reaped.
	evChild
	// evEmpty says that no descendant is left at all.
	evEmpty
	// evTime says that time has passed.
	evTime
)

type stopEvent struct {
	kind  stopEventKind
	sig   syscall.Signal
	grace time.Duration
}

type stopAction int

const (
	// actForward sends the request's signal on.
	actForward stopAction = iota
	// actTerm sends SIGTERM to the tree, actKill SIGKILL.
	actTerm
	actKill
)

// next is the stop order.
func (w Waits) next(s stopState, e stopEvent, now time.Duration) (stopState, []stopAction) {
	if s.phase.over() {
		return s, nil
	}
	switch e.kind {
	case evStop:
		s.requests++
		return w.onStop(s, e, now)
	case evChild:
		s.childGone = true
		if s.phase == phaseRun || s.phase == phaseGrace {
			s.phase, s.deadline = phaseSettle, now+w.Settle
		}
	case evEmpty:
		// Without any child of ours there is no tree; the command's own end is
		// always reported first.
		if s.childGone {
			s.phase = phaseGone
		}
	case evTime:
		return w.onTime(s, now)
	}
	return s, nil
}

func (w Waits) onStop(s stopState, e stopEvent, now time.Duration) (stopState, []stopAction) {
	toKill := func() (stopState, []stopAction) {
		s.phase, s.deadline = phaseKill, now+w.Kill
		return s, []stopAction{actKill}
	}
	switch {
	case s.phase == phaseKill:
		return s, nil
	case e.sig == syscall.SIGKILL, s.requests >= 3:
		return toKill()
	case s.phase == phaseRun:
		s.phase, s.deadline = phaseGrace, now+e.grace
		return s, []stopAction{actForward}
	case s.phase == phaseTerm:
		// SIGTERM was sent; ask again, wait less.
		s.deadline = min(s.deadline, now+w.Short)
		return s, []stopAction{actTerm}
	default: // grace, settle
		s.phase, s.deadline = phaseTerm, now+w.Short
		return s, []stopAction{actTerm}
	}
}

func (w Waits) onTime(s stopState, now time.Duration) (stopState, []stopAction) {
	if s.phase == phaseRun {
		return s, nil
	}
	if now < s.deadline {
		if s.phase == phaseKill {
			// New ones may have been forked since.
			return s, []stopAction{actKill}
		}
		return s, nil
	}
	switch s.phase {
	case phaseGrace:
		s.phase, s.deadline = phaseTerm, now+w.Term
		return s, []stopAction{actTerm}
	case phaseSettle:
		s.phase, s.deadline = phaseTerm, now+w.Leftover
		return s, []stopAction{actTerm}
	case phaseTerm:
		s.phase, s.deadline = phaseKill, now+w.Kill
		return s, []stopAction{actKill}
	case phaseKill:
		s.phase = phaseGaveUp
	}
	return s, nil
}
