package supervisor

import (
	"strings"
	"testing"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/supervisor/guard"
	"sparkrun/supervisor/holder"
)

func TestGuardText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		act  guard.Action
		want []string
		not  string
	}{
		{"hard floor", guard.Action{Why: guard.WhyHardFloor, Source: guard.SourceHost, AvailKiB: 3 << 20, FloorKiB: 4 << 20, First: "SIGKILL"}, []string{"3.0 GiB", "floor 4.0 GiB", "SIGKILL"}, "cgroup"},
		{"predicted", guard.Action{Why: guard.WhyPredicted, Source: guard.SourceHost, AvailKiB: 9 << 20, FloorKiB: 4 << 20, SlopeKiBs: 5 << 20, First: "SIGTERM"}, []string{"falling by 5.0 GiB/s", "SIGTERM"}, "cgroup"},
		{"swap", guard.Action{Why: guard.WhySwapThrash, Source: guard.SourceHost, AvailKiB: 9 << 20, First: "SIGTERM"}, []string{"swapping"}, "floor"},
		{"cgroup", guard.Action{Why: guard.WhyHardFloor, Source: "/sys/fs/cgroup/job", AvailKiB: 1 << 20, First: "SIGKILL"}, []string{"in the cgroup /sys/fs/cgroup/job"}, ""},
		{"co-tenant", guard.Action{Why: guard.WhyHardFloor, CoTenant: true, Outsider: "ollama", OutsiderPID: 77, OutsiderGrewKiB: 40 << 20, First: "SIGKILL"}, []string{"ollama (pid 77)", "40.0 GiB"}, ""},
		{"warned", guard.Action{Why: guard.WhyHardFloor, CoTenant: true, Outsider: "ollama", Warned: true}, []string{"goes on", "ollama"}, "ending"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := guardText(&tt.act)
			for _, w := range tt.want {
				if !strings.Contains(got, w) {
					t.Errorf("%q says nothing of %q", got, w)
				}
			}
			if tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("%q speaks of %q", got, tt.not)
			}
		})
	}
}

func TestGuardEvidenceNamesAnOutsiderOnlyWhereItGrewMost(t *testing.T) {
	t.Parallel()
	r := &run{clk: clock.Start()}
	if g := r.guardEvidence(nil); g != nil {
		t.Fatalf("evidence %v without an action", g)
	}
	act := &guard.Action{Boot: clock.Boottime(), Why: guard.WhyHardFloor, AvailKiB: 5, FloorKiB: 6, Outsider: "chrome", OutsiderPID: 9, OutsiderGrewKiB: 100, TreeGrewKiB: 5000}
	if g := r.guardEvidence(act); g.Outsider != "" || g.AvailKiB != sample.Known(5) || g.Warned {
		t.Errorf("got %+v", g)
	}
	act.CoTenant = true
	if g := r.guardEvidence(act); g.Outsider != "chrome" || g.OutsiderPID != 9 {
		t.Errorf("got %+v", g)
	}
	warned := *act
	warned.Warned = true
	for name, tt := range map[string]struct {
		e    *holder.Exit
		want bool
	}{
		"no exit": {nil, false}, "no action": {&holder.Exit{}, false}, "acted": {&holder.Exit{Guard: act}, true}, "warned": {&holder.Exit{Guard: &warned}, false},
	} {
		if got := guardEnded(tt.e); got != tt.want {
			t.Errorf("%s: ended %v, want %v", name, got, tt.want)
		}
	}
}

func TestXidIsToldOncePerNumber(t *testing.T) {
	t.Parallel()
	var told []event.Event
	k := &kernelLog{xids: map[int]int{}, ours: func(int) bool { return false }}
	clk := clock.Start()
	for _, text := range []string{
		"NVRM: Xid (PCI:000f:01:00): 31, pid=4242, name=python3, Ch 00000010",
		"NVRM: Xid (PCI:000f:01:00): 31, pid=4242, name=python3, Ch 00000011",
		"NVRM: Xid (PCI:000f:01:00): 119, pid=4242, name=python3, Timeout after 6s",
		"usb 1-1: new device", "NVRM: a line without a number",
	} {
		k.add(clk, sample.KernelLine{Boot: clock.Boottime(), Text: text}, func(e event.Event) { told = append(told, e) })
	}
	if len(told) != 2 || told[0].Kind != event.KernelXid || told[1].Data["xid"] != 119 {
		t.Errorf("told %v", told)
	}
	if lines, _ := k.since(time.Time{}); len(lines) != 5 {
		t.Errorf("%d records kept, want all 5", len(lines))
	}
}

func TestNear(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b int64
		want bool
	}{{-1, -1, true}, {-1, 0, false}, {0, 1024, true}, {0, 64 << 10, false}, {5 << 20, 5<<20 + 1, true}} {
		if got := near(tt.a, tt.b); got != tt.want {
			t.Errorf("near(%d, %d) = %v", tt.a, tt.b, got)
		}
	}
}
