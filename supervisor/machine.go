package supervisor

import (
	"fmt"

	"sparkrun/supervisor/runlog"
)

// State is where a run stands.
type State = runlog.State

// The states, short for the names that run.json gives them.
const (
	Preflight = runlog.StatePreflight
	Starting  = runlog.StateStarting
	Running   = runlog.StateRunning
	Stopping  = runlog.StateStopping
	Verdict   = runlog.StateVerdict
	Gate      = runlog.StateGate

	Succeeded        = runlog.StateSucceeded
	SucceededChanged = runlog.StateSucceededChanged
	Failed           = runlog.StateFailed
	Exhausted        = runlog.StateExhausted
	Blocked          = runlog.StateBlocked
	Stopped          = runlog.StateStopped
	Errored          = runlog.StateError
	Lost             = runlog.StateLost
)

// Exit statuses that sparkrun itself gives; any other is the child's own.
const (
	StatusOK         = 0
	StatusExhausted  = 75
	StatusGuard      = 76
	StatusBlocked    = 78
	StatusLimit      = 124
	StatusError      = 125
	StatusCannotExec = 126
	StatusNotFound   = 127
)

// Machine is the whole state of the attempt loop: a value. Next is the only
// thing that changes it.
type Machine struct {
	State   State
	Attempt int
	// StopSignal is the first signal a user sent, "" while there is none;
	// StopCount counts all of them.
	StopSignal string
	StopCount  int
	// Changed says that the attempt under way is not the experiment that was
	// asked for: length, method or data seen differ.
	Changed bool
	// Status and EndedBy are set when State is final.
	Status  int
	EndedBy runlog.EndedBy
	// Reason says in words why the run ended as it did.
	Reason string
}

// Input is something that happened. Exactly the fields its Kind names are set.
type Input struct {
	Kind InputKind
	// Signal names the signal of StopAsked, as SIGINT.
	Signal string
	// Status is the exit status a shell would show: of NotStarted, ChildEnded.
	Status int
	// Escalated says, of ChildEnded, that the child did not go by itself after
	// the first signal.
	Escalated bool
	// Unasked says, of ChildEnded, that it went before any signal of ours.
	Unasked bool
	// Retry, Changed and Exhausted are what Judged and GateOpen decided.
	Retry     bool
	Changed   bool
	Exhausted bool
	// AsAsked says, of a success, that no change that was announced for the attempt was
	// really made.
	AsAsked bool
	// Success says, of Judged, that the training is through: status 0 alone may
	// hide a death.
	Success bool
	// Container says, of ChildEnded, that the command is a container client,
	// whose 125 to 127 may be the engine's own.
	Container bool
	// By says, of ChildEnded, that sparkrun itself ended the attempt: ByGuard for
	// want of memory, ByLimit because it hung, BySparkrun for another watch (a loss
	// that diverged, the power wedge, a slowdown). Empty where it was the child.
	By     runlog.EndedBy
	Reason string
}

// InputKind names what can happen to a run.
type InputKind string

// The inputs.
const (
	Begin         InputKind = "begin"
	PreflightOK   InputKind = "preflight-ok"
	PreflightStop InputKind = "preflight-stop"
	ChildStarted  InputKind = "child-started"
	NotStarted    InputKind = "not-started"
	StopAsked     InputKind = "stop-asked"
	ChildEnded    InputKind = "child-ended"
	AttemptLost   InputKind = "attempt-lost"
	Watched       InputKind = "watched" // a watch of ours ends the attempt: it hangs, its loss diverged
	Judged        InputKind = "judged"
	GateOpen      InputKind = "gate-open"
)

// Action is something to be done because of an input. Its end comes back as an
// input; the machine never waits.
type Action string

// The actions.
const (
	DoPreflight Action = "preflight"
	DoStart     Action = "start"
	DoStop      Action = "stop"   // forward the signal, start the grace
	DoHurry     Action = "hurry"  // shorten the grace
	DoEnd       Action = "end"    // end an attempt for what a watch saw
	DoJudge     Action = "judge"  // evidence -> verdict -> next rung
	DoGate      Action = "gate"   // wait for memory, drop caches
	DoCancel    Action = "cancel" // give up what is under way in verdict or gate
	DoFinish    Action = "finish" // write the end, print the summary
)

// signalNumber maps the signals a user can stop a run with.
var signalNumber = map[string]int{"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGTERM": 15, "SIGKILL": 9}

// Next is the attempt loop as a pure function: what state follows on an input,
// and what is to be done. An input that means nothing in a state (a late timer,
// a second exit) changes nothing.
//
//	preflight -> starting -> running -> verdict -> gate -> starting ...
//	                 |          |          |         |
//	                 +---- stopping        +---------+--> final states
func Next(m Machine, in Input) (Machine, []Action) {
	if m.State.Final() {
		return m, nil
	}
	if in.Kind == StopAsked {
		return onStop(m, in)
	}
	switch m.State {
	case Preflight:
		switch in.Kind {
		case Begin:
			return m, []Action{DoPreflight}
		case PreflightOK:
			if m.StopSignal != "" {
				return m.endStopped()
			}
			m.State, m.Attempt = Starting, 1
			return m, []Action{DoStart}
		case PreflightStop:
			return m.end(Blocked, StatusBlocked, runlog.BySparkrun, in.Reason)
		}
	case Starting:
		switch in.Kind {
		case ChildStarted:
			if m.StopSignal != "" {
				m.State = Stopping
				return m, []Action{DoStop}
			}
			m.State = Running
			return m, nil
		case NotStarted:
			if m.StopSignal != "" {
				return m.endStopped()
			}
			state := Failed
			if in.Status == StatusError {
				state = Errored
			}
			return m.end(state, in.Status, runlog.BySparkrun, in.Reason)
		case ChildEnded, AttemptLost:
			// Its start was not yet told; its end says that there was one.
			m.State = Running
			if m.StopSignal != "" {
				m.State = Stopping
			}
			return Next(m, in)
		}
	case Running, Stopping:
		switch in.Kind {
		case ChildEnded:
			if m.State == Stopping && !in.Unasked {
				status := in.Status
				if in.Escalated || in.By != "" { // what it made of our own end is no status to speak of
					status = 128 + signalNumber[m.StopSignal]
				}
				return m.end(Stopped, status, runlog.ByUser, "stopped by "+m.StopSignal)
			}
			m.State = Verdict
			m.Status = in.Status
			m.EndedBy = runlog.ByChild
			switch {
			case in.By != "":
				m.EndedBy = in.By
			case in.Container && in.Status >= 125 && in.Status <= 127:
				m.EndedBy = runlog.ByEngine
			}
			return m, []Action{DoJudge}
		case AttemptLost:
			return m.end(Lost, StatusError, runlog.BySparkrun, in.Reason)
		case Watched:
			if m.State == Running {
				return m, []Action{DoEnd}
			}
		}
	case Verdict:
		if in.Kind == Judged {
			return onJudged(m, in)
		}
	case Gate:
		switch in.Kind {
		case GateOpen:
			m.State = Starting
			m.Attempt++
			m.Changed = in.Changed
			return m, []Action{DoStart}
		case Judged: // the gate measured the machine, and the ladder has no rung that fits
			return onJudged(m, in)
		}
	}
	return m, nil
}

// onJudged is what follows a verdict.
func onJudged(m Machine, in Input) (Machine, []Action) {
	switch {
	case in.Retry && m.StopSignal != "":
		return m.endStopped()
	case in.Retry:
		m.State = Gate
		return m, []Action{DoGate}
	case in.Success && m.Changed && !in.AsAsked:
		return m.end(SucceededChanged, in.Status, m.EndedBy, in.Reason)
	case in.Success:
		return m.end(Succeeded, in.Status, m.EndedBy, in.Reason)
	case in.Exhausted:
		return m.end(Exhausted, StatusExhausted, m.EndedBy, in.Reason)
	}
	// What sparkrun ended has no status of its own to speak of.
	status := in.Status
	switch m.EndedBy {
	case runlog.ByGuard:
		status = StatusGuard
	case runlog.ByLimit:
		status = StatusLimit
	case runlog.BySparkrun:
		status = StatusGuard // one more watch that ended it
	}
	return m.end(Failed, status, m.EndedBy, in.Reason)
}

// onStop is a user's wish to end the run, in any state that is not final.
func onStop(m Machine, in Input) (Machine, []Action) {
	m.StopCount++
	if m.StopSignal == "" {
		m.StopSignal = in.Signal
	}
	switch m.State {
	case Verdict:
		// The child has ended by itself. What came of it is still to be said;
		// only the next attempt is what was stopped. Asked twice, nobody waits.
		if m.StopCount == 1 {
			return m, nil
		}
		fallthrough
	case Preflight, Gate:
		next, acts := m.endStopped()
		return next, append([]Action{DoCancel}, acts...)
	case Starting:
		// The child may exist by now: its start is awaited (it is quick), then
		// stopped in order, so that nothing is left behind.
		return m, nil
	case Running:
		m.State = Stopping
		return m, []Action{DoStop}
	case Stopping:
		return m, []Action{DoHurry}
	}
	return m, nil
}

func (m Machine) endStopped() (Machine, []Action) {
	return m.end(Stopped, 128+signalNumber[m.StopSignal], runlog.ByUser, "stopped by "+m.StopSignal)
}

func (m Machine) end(s State, status int, by runlog.EndedBy, reason string) (Machine, []Action) {
	m.State, m.Status, m.EndedBy, m.Reason = s, status, by, reason
	return m, []Action{DoFinish}
}

// String shows a machine in one line, for our own log.
func (m Machine) String() string {
	return fmt.Sprintf("%s attempt=%d status=%d stop=%s", m.State, m.Attempt, m.Status, m.StopSignal)
}
