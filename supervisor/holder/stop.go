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
// A second stop goes to term at once with a short wait, a third to kill. A first
// one while the guard's SIGTERM is at work is handed on and shortens nothing:
// what the command does then is save. When the command itself ends, its descendants get a moment (settle), then SIGTERM
// and SIGKILL. An empty tree after the command's end is the way out of every
// phase.
//
// Where the command is only a client of the work (Spec.AwaitTree), its end
// begins nothing:
//
//	run    -- child ---->  await    no time runs
//	await  -- stop(s) -->  term     SIGTERM to the tree, the request's grace as wait
//	grace  -- child ---->  settle   then term with what is left of the grace

type stopPhase int

const (
	phaseRun stopPhase = iota
	// phaseAwait is phaseRun after the command's own end, with AwaitTree.
	phaseAwait
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
	// awaitTree is Spec.AwaitTree.
	awaitTree bool
	// guardTerm is whether it was the guard that began phaseTerm.
	guardTerm bool
	// graceEnd is when the grace of the first request is over, with awaitTree.
	graceEnd time.Duration
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
	// evGuardTerm and evGuardKill are the guard's: SIGTERM to the whole tree
	// without a grace before it, and SIGKILL. They count as no request, since a
	// user who asks for a stop then asks for the first time.
	evGuardTerm
	evGuardKill
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
		switch {
		case s.phase == phaseRun && s.awaitTree:
			s.phase = phaseAwait
		case s.phase == phaseRun || s.phase == phaseGrace:
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
	case evGuardTerm:
		switch s.phase {
		case phaseRun, phaseAwait, phaseGrace, phaseSettle:
			s.phase, s.deadline, s.guardTerm = phaseTerm, now+w.Term, true
			return s, []stopAction{actTerm}
		}
	case evGuardKill:
		if s.phase != phaseKill {
			s.phase, s.deadline = phaseKill, now+w.Kill
			return s, []stopAction{actKill}
		}
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
		if s.awaitTree {
			s.graceEnd = s.deadline
		}
		return s, []stopAction{actForward}
	case s.phase == phaseAwait:
		// Nobody is left to hand the signal on, so the work gets it itself, with
		// the time that was meant for it.
		s.phase, s.deadline = phaseTerm, now+e.grace
		return s, []stopAction{actTerm}
	case s.phase == phaseTerm && s.guardTerm && s.requests == 1:
		// The guard sees to it that the machine lives, and may still hurry: the
		// user's first word takes no time from a checkpoint that is being saved.
		s.deadline = max(s.deadline, now+e.grace)
		if s.childGone || e.sig == syscall.SIGTERM {
			return s, nil // the tree has had its SIGTERM, and a second one reads as "at once"
		}
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
	if s.phase == phaseRun || s.phase == phaseAwait {
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
		// With AwaitTree those left are the work, and the grace is theirs.
		s.phase, s.deadline = phaseTerm, max(now+w.Leftover, s.graceEnd)
		return s, []stopAction{actTerm}
	case phaseTerm:
		s.phase, s.deadline = phaseKill, now+w.Kill
		return s, []stopAction{actKill}
	case phaseKill:
		s.phase = phaseGaveUp
	}
	return s, nil
}
