package supervisor

import (
	"testing"

	"pgregory.net/rapid"

	"sparkrun/supervisor/runlog"
)

// drive feeds inputs and returns where the machine ends and what it asked for.
func drive(ins ...Input) (Machine, []Action) {
	m := Machine{State: Preflight}
	var all []Action
	for _, in := range ins {
		var acts []Action
		m, acts = Next(m, in)
		all = append(all, acts...)
	}
	return m, all
}

func TestMachinePaths(t *testing.T) {
	t.Parallel()
	begin, ok, up := Input{Kind: Begin}, Input{Kind: PreflightOK}, Input{Kind: ChildStarted}
	stop := func(sig string) Input { return Input{Kind: StopAsked, Signal: sig} }
	ended := func(status int) Input { return Input{Kind: ChildEnded, Status: status} }
	tests := []struct {
		name   string
		in     []Input
		state  State
		status int
		by     runlog.EndedBy
	}{
		{"success", []Input{begin, ok, up, ended(0), {Kind: Judged, Success: true}}, Succeeded, 0, runlog.ByChild},
		{"child fails", []Input{begin, ok, up, ended(3), {Kind: Judged, Status: 3}}, Failed, 3, runlog.ByChild},
		{"blocked", []Input{begin, {Kind: PreflightStop}}, Blocked, 78, runlog.BySparkrun},
		{"not found at exec", []Input{begin, ok, {Kind: NotStarted, Status: 127}}, Failed, 127, runlog.BySparkrun},
		{"holder did not come up", []Input{begin, ok, {Kind: NotStarted, Status: 125}}, Errored, 125, runlog.BySparkrun},
		{"one rung down", []Input{
			begin, ok, up, ended(1), {Kind: Judged, Status: 1, Retry: true}, {Kind: GateOpen, Changed: true}, up, ended(0), {Kind: Judged, Success: true},
		}, SucceededChanged, 0, runlog.ByChild},
		{"drop only is no change", []Input{
			begin, ok, up, ended(1), {Kind: Judged, Status: 1, Retry: true}, {Kind: GateOpen}, up, ended(0), {Kind: Judged, Success: true},
		}, Succeeded, 0, runlog.ByChild},
		{"ladder used up", []Input{begin, ok, up, ended(1), {Kind: Judged, Status: 1, Exhausted: true}}, Exhausted, 75, runlog.ByChild},
		{"gate finds no rung", []Input{begin, ok, up, ended(1), {Kind: Judged, Status: 1, Retry: true}, {Kind: Judged, Status: 1, Exhausted: true}}, Exhausted, 75, runlog.ByChild},
		{"engine", []Input{begin, ok, up, {Kind: ChildEnded, Status: 125, Container: true}, {Kind: Judged, Status: 125}}, Failed, 125, runlog.ByEngine},
		{"stopped in preflight", []Input{begin, stop("SIGINT")}, Stopped, 130, runlog.ByUser},
		{"stopped while starting", []Input{begin, ok, stop("SIGTERM"), up, ended(143)}, Stopped, 143, runlog.ByUser},
		{"stopped while starting, never there", []Input{begin, ok, stop("SIGTERM"), {Kind: NotStarted, Status: 127}}, Stopped, 143, runlog.ByUser},
		{"stopped and saved", []Input{begin, ok, up, stop("SIGINT"), ended(0)}, Stopped, 0, runlog.ByUser},
		{"stopped by force", []Input{begin, ok, up, stop("SIGINT"), stop("SIGINT"), {Kind: ChildEnded, Status: 137, Escalated: true}}, Stopped, 130, runlog.ByUser},
		{"stopped at the verdict of a death that is none of memory", []Input{begin, ok, up, ended(1), stop("SIGQUIT"), {Kind: Judged, Status: 1}}, Failed, 1, runlog.ByChild},
		{"stopped at the verdict of a success", []Input{begin, ok, up, ended(0), stop("SIGINT"), {Kind: Judged, Success: true}}, Succeeded, 0, runlog.ByChild},
		{"stopped at the verdict instead of a retry", []Input{begin, ok, up, ended(1), stop("SIGQUIT"), {Kind: Judged, Status: 1, Retry: true}}, Stopped, 131, runlog.ByUser},
		{"stopped twice at the verdict", []Input{begin, ok, up, ended(1), stop("SIGQUIT"), stop("SIGINT")}, Stopped, 131, runlog.ByUser},
		{"ended by itself before the signal came", []Input{begin, ok, up, stop("SIGINT"), {Kind: ChildEnded, Unasked: true}, {Kind: Judged, Success: true}}, Succeeded, 0, runlog.ByChild},
		{"stopped at the gate", []Input{begin, ok, up, ended(1), {Kind: Judged, Status: 1, Retry: true}, stop("SIGTERM")}, Stopped, 143, runlog.ByUser},
		{"ended before its start was told", []Input{begin, ok, ended(0), up, {Kind: Judged, Success: true}}, Succeeded, 0, runlog.ByChild},
		{"status 0 that hides a death", []Input{begin, ok, up, ended(0), {Kind: Judged}}, Failed, 0, runlog.ByChild},
		{"status 0 that hides a death by memory on every rung", []Input{begin, ok, up, ended(0), {Kind: Judged, Exhausted: true}}, Exhausted, 75, runlog.ByChild},
		{"the guard ends it, no retry", []Input{begin, ok, up, {Kind: ChildEnded, Status: 137, By: runlog.ByGuard}, {Kind: Judged, Status: 137}}, Failed, 76, runlog.ByGuard},
		{"the guard ends every attempt", []Input{begin, ok, up, {Kind: ChildEnded, Status: 137, By: runlog.ByGuard}, {Kind: Judged, Status: 137, Exhausted: true}}, Exhausted, 75, runlog.ByGuard},
		{"the guard ends one, the next fits", []Input{
			begin, ok, up, {Kind: ChildEnded, Status: 137, By: runlog.ByGuard}, {Kind: Judged, Status: 137, Retry: true}, {Kind: GateOpen, Changed: true}, up, ended(0), {Kind: Judged, Success: true},
		}, SucceededChanged, 0, runlog.ByChild},
		{"a hang, no retry", []Input{begin, ok, up, {Kind: Watched}, {Kind: ChildEnded, Status: 143, By: runlog.ByLimit}, {Kind: Judged, Status: 143}}, Failed, 124, runlog.ByLimit},
		{"stopped by a user while a hang is ended", []Input{begin, ok, up, {Kind: Watched}, stop("SIGINT"), {Kind: ChildEnded, Status: 143, Escalated: true, By: runlog.ByLimit}}, Stopped, 130, runlog.ByUser},
		{"stopped by a user while a hang is ended, which the command calls a success", []Input{begin, ok, up, {Kind: Watched}, stop("SIGINT"), {Kind: ChildEnded, Status: 0, By: runlog.ByLimit}}, Stopped, 130, runlog.ByUser},
		{"a hang in a stop is no news", []Input{begin, ok, up, stop("SIGTERM"), {Kind: Watched}, ended(143)}, Stopped, 143, runlog.ByUser},
		{"lost", []Input{begin, ok, up, {Kind: AttemptLost}}, Lost, 125, runlog.BySparkrun},
		{"late verdict after a stop", []Input{begin, ok, up, ended(1), stop("SIGINT"), {Kind: Judged, Retry: true}}, Stopped, 130, runlog.ByUser},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, _ := drive(tt.in...)
			if m.State != tt.state || m.Status != tt.status || m.EndedBy != tt.by {
				t.Errorf("got %s, status %d, ended by %s; want %s, %d, %s", m.State, m.Status, m.EndedBy, tt.state, tt.status, tt.by)
			}
		})
	}
}

// TestMachineHolds: whatever happens in whatever order, nothing is started after
// a stop was asked for, a final state stays, the end comes once, and no attempt
// is started while another one may live.
func TestMachineHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kinds := []InputKind{Begin, PreflightOK, PreflightStop, ChildStarted, NotStarted, StopAsked, ChildEnded, AttemptLost, Watched, Judged, GateOpen}
		m := Machine{State: Preflight}
		finishes, live := 0, false
		for range rapid.IntRange(1, 40).Draw(t, "n") {
			in := Input{
				Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Status: rapid.SampledFrom([]int{0, 1, 127, 137}).Draw(t, "status"),
				Signal: "SIGINT", Retry: rapid.Bool().Draw(t, "retry"), Exhausted: rapid.Bool().Draw(t, "exhausted"),
			}
			before := m
			var acts []Action
			m, acts = Next(m, in)
			if before.State.Final() && (m != before || len(acts) > 0) {
				t.Fatalf("final state %s moved on %s", before.State, in.Kind)
			}
			for _, a := range acts {
				switch a {
				case DoFinish:
					finishes++
				case DoStart:
					if live {
						t.Fatalf("started while an attempt may live, on %s in %s", in.Kind, before.State)
					}
					if m.StopCount > 0 {
						t.Fatalf("started after a stop was asked for, on %s in %s", in.Kind, before.State)
					}
					live = true
				}
			}
			if in.Kind == ChildEnded || in.Kind == NotStarted || in.Kind == AttemptLost {
				live = false
			}
			if m.State.Final() != (finishes == 1) || finishes > 1 {
				t.Fatalf("state %s after %d ends", m.State, finishes)
			}
		}
	})
}
