package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/guard"
	"sparkrun/supervisor/holder"
)

// The guard itself runs in the holder. Here is what the supervisor has to do with
// it: telling it what only sensors and log know, and noting what it does.

// tellGuard hands the guard what it cannot see by itself: that the first step is
// done, and how GPU memory is shared out. Memory of a GPU is in nobody's RSS.
func (a *attempt) tellGuard() {
	if a.client == nil {
		return
	}
	a.mu.Lock()
	f := holder.Floors{Phase: "load", GPUTreeKiB: -1, GPUOtherKiB: -1}
	// Where no steps are recognised, loading is over some time.
	if a.haveStep || time.Since(a.start) > loadAtMost {
		f.Phase = "run"
	}
	if s := a.lastSample; s != nil {
		f.GPUTreeKiB, f.GPUOtherKiB = mib(s.GPUTreeMiB), mib(s.GPUOtherMiB)
		most := 0.0
		for _, p := range s.Processes {
			if _, ours := a.tree[p.PID]; !ours && p.UsedMiB.OK && p.UsedMiB.V > most {
				most, f.GPUOtherName = p.UsedMiB.V, commOf(p.PID)
			}
		}
	}
	told := a.told
	same := told.Phase == f.Phase && near(told.GPUTreeKiB, f.GPUTreeKiB) && near(told.GPUOtherKiB, f.GPUOtherKiB) && told.GPUOtherName == f.GPUOtherName
	// Again now and then: the guard forgets figures that nobody confirms.
	same = same && time.Since(a.toldAt) < tellEvery
	if !same {
		a.told, a.toldAt = f, time.Now()
	}
	a.mu.Unlock()
	if !same {
		_ = a.client.Floors(f) // a holder that is gone guards nothing any more
	}
}

// tellEvery is less than the guard's own patience with figures (10 s); loadAtMost is
// how long a job without recognised steps counts as loading.
const (
	tellEvery  = 4 * time.Second
	loadAtMost = 30 * time.Minute
)

// hardFloorKiB is the guard's floor for this machine where the user has named one, 0
// otherwise: the built-in one gives way to a machine that starts with less.
func (r *run) hardFloorKiB() uint64 {
	o := r.o.Guard
	switch {
	case o.Off:
		return 0
	case o.HardKiB > 0:
		return o.HardKiB
	case o.HardPct > 0 && o.HardPct != guard.DefaultHardPct:
		return uint64(float64(r.start0.TotalKiB) * o.HardPct / 100)
	}
	return 0
}

// near says that two sizes in KiB differ by less than what matters to the guard.
func near(a, b int64) bool { return a == b || a >= 0 && b >= 0 && max(a-b, b-a) < 64<<10 }

func mib(n sample.Num) int64 {
	if !n.OK {
		return -1
	}
	return int64(n.V) << 10
}

func commOf(pid int) string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil {
		return "process " + strconv.Itoa(pid)
	}
	return strings.TrimSpace(string(b))
}

// onGuard notes what the guard did.
func (r *run) onGuard(a *attempt, p holder.Push) {
	if n := p.Note; n != nil {
		level := event.Info
		if n.Kind == "near" {
			level = event.Warn
		}
		r.log.Event(event.Event{T: r.clk.At(n.Boot), Attempt: a.n, Kind: event.GuardNote, Level: level, Msg: n.Text, Data: withKind(n.Data, n.Kind)})
	}
	if act := p.Guard; act != nil {
		a.mu.Lock()
		if a.acted == nil || a.acted.Warned {
			a.acted = act
		}
		a.mu.Unlock()
		kind, level := event.GuardAct, event.Error
		if act.Warned {
			kind, level = event.MemoryLow, event.Warn
		}
		r.log.Event(event.Event{
			T: r.clk.At(act.Boot), Attempt: a.n, Kind: kind, Level: level, Msg: guardText(act),
			Data: map[string]any{
				"why": act.Why, "source": act.Source, "available_kib": act.AvailKiB, "floor_kib": act.FloorKiB,
				"outsider": act.Outsider, "outsider_grew_kib": act.OutsiderGrewKiB, "tree_grew_kib": act.TreeGrewKiB,
				"co_tenant": act.CoTenant, "signal": act.First, "reaction_us": act.ReactionUS,
			},
		})
	}
}

func withKind(data map[string]any, kind string) map[string]any {
	out := map[string]any{"note": kind}
	for k, v := range data {
		out[k] = v
	}
	return out
}

// guardText says in one sentence what the guard did and why.
func guardText(act *guard.Action) string {
	left := guard.Size(act.AvailKiB) + " of memory left"
	purpose := " before the machine freezes"
	if !act.Host() {
		left += " in the cgroup " + act.Source
		purpose = " before its memory limit is reached"
	}
	switch act.Why {
	case guard.WhyPredicted:
		left += fmt.Sprintf(", falling by %s/s towards the floor of %s", guard.Size(uint64(max(act.SlopeKiBs, 0))), guard.Size(act.FloorKiB))
	case guard.WhySwapThrash:
		left += " and the machine is busy swapping"
	default:
		left += fmt.Sprintf(" (floor %s)", guard.Size(act.FloorKiB))
	}
	who := ""
	if act.CoTenant {
		who = fmt.Sprintf("; not this job but %s (pid %d) took it, %s in the last minute", act.Outsider, act.OutsiderPID, guard.Size(uint64(max(act.OutsiderGrewKiB, 0))))
	}
	if act.Warned {
		return left + who + "; the command goes on (--guard-on-cotenant warn)"
	}
	return left + who + ": ending the command with " + act.First + purpose
}

// guardEvidence is the guard's action in the verdict's words.
func (r *run) guardEvidence(act *guard.Action) *oom.GuardAction {
	if act == nil {
		return nil
	}
	g := &oom.GuardAction{
		T: r.clk.At(act.Boot), Why: act.Why, Limit: limitOf(act),
		AvailKiB: sample.Known(float64(act.AvailKiB)), FloorKiB: sample.Known(float64(act.FloorKiB)),
		TreeGrewKiB: sample.Known(float64(act.TreeGrewKiB)), Warned: act.Warned,
	}
	if act.CoTenant {
		g.Outsider, g.OutsiderPID, g.OutsiderGrewKiB = act.Outsider, act.OutsiderPID, sample.Known(float64(act.OutsiderGrewKiB))
	}
	return g
}

// limitOf names the cgroup whose limit was meant, "" for the machine's memory.
func limitOf(act *guard.Action) string {
	if act.Host() {
		return ""
	}
	return act.Source
}

// guardEnded says whether it was the guard that ended the attempt.
func guardEnded(e *holder.Exit) bool {
	return e != nil && e.Guard != nil && !e.Guard.Warned
}

// guardActed says whether the guard told that it ended the attempt.
func (r *run) guardActed(a *attempt) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acted != nil && !a.acted.Warned
}

// coTenant is the name of the process that took the memory, "" where it was the
// job itself.
func coTenant(e *holder.Exit) string {
	if guardEnded(e) && e.Guard.CoTenant {
		return e.Guard.Outsider
	}
	return ""
}
