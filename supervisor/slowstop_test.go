package supervisor

import (
	"os"
	"strings"
	"testing"

	"sparkrun/internal/proctree"
	"sparkrun/supervisor/gate"
)

// An attempt that is slow because a neighbour has taken the memory is not ended: the gate,
// which counts what the neighbour took as the attempt's own, would keep the next one out.
func TestTooTightToStartAgain(t *testing.T) {
	t.Parallel()
	const g = 1 << 20
	goal := func(start, best, peak uint64) gate.Goal {
		return gate.Goal{StartKiB: start * g, BestIdleKiB: best * g, PeakKiB: peak * g}
	}
	for name, tt := range map[string]struct {
		goal       gate.Goal
		avail, own uint64
		known      bool
		says       string
	}{
		"nobody else":                     {goal(118, 0, 45), 73, 45, true, ""},
		"a neighbour took what was left":  {goal(118, 0, 100), 18, 40, true, "with this one ended about 58.0 GiB would be available, and the next one would wait for 116.0 GiB, or at least for the 100.0 GiB by"},
		"a neighbour, and room enough":    {goal(118, 0, 55), 63, 45, true, ""},
		"a neighbour that has gone again": {goal(118, 0, 100), 73, 45, true, ""},
		"the boot has had more":           {goal(118, 122, 100), 73, 45, true, ""},
		"what it holds is not known":      {goal(118, 0, 100), 18, 0, true, "about 18.0 GiB"},
		"shared memory counted often":     {goal(118, 0, 100), 18, 4000, true, ""},
		"the peak is not known":           {goal(118, 0, 0), 18, 40, true, "wait for 116.0 GiB; something"},
		"nothing known of the start":      {goal(0, 0, 0), 18, 40, true, ""},
		"meminfo cannot be read":          {goal(118, 0, 100), 0, 40, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := gate.Reading{AvailKiB: tt.avail * g, TotalKiB: 122 * g, Known: tt.known}
			got := tightWords(tt.goal, now, tt.own*g)
			if tt.says == "" && got != "" || !strings.Contains(got, tt.says) {
				t.Errorf("%q, want %q", got, tt.says)
			}
		})
	}
}

// TestOwnMemory: what the attempt's processes hold, and on the GPU's side what has come since
// the start where NVML says nothing of it.
func TestOwnMemory(t *testing.T) {
	t.Parallel()
	r, _ := coolRun(t, t.TempDir())
	if got := r.ownKiB(gate.Reading{}); got != 0 {
		t.Errorf("%d KiB of no attempt", got)
	}
	me, ok := proctree.Read(os.Getpid())
	if !ok {
		t.Fatal("this process is not known")
	}
	a := r.newAttempt(1)
	a.starts[me.PID] = me.Start
	r.live.Store(a)
	own := r.ownKiB(gate.Reading{})
	if own < 1<<10 || own > 16<<20 {
		t.Errorf("%d KiB of this process", own)
	}
	const g = 1 << 20
	r.start0.UnaccountedKiB = 10 * g
	with := r.ownKiB(gate.Reading{UnaccountedKnown: true, UnaccountedKiB: 50 * g})
	if with < 40*g || with > 40*g+16<<20 {
		t.Errorf("%d KiB with the GPU's", with)
	}
	if got := r.ownKiB(gate.Reading{UnaccountedKnown: true, UnaccountedKiB: 5 * g}); got > 16<<20 {
		t.Errorf("%d KiB where less is booked to nobody than before", got)
	}
	a.starts[me.PID]++ // the number is somebody else's by now
	if got := r.ownKiB(gate.Reading{}); got != 0 {
		t.Errorf("%d KiB of somebody else's process", got)
	}
}
