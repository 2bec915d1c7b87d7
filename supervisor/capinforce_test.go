package supervisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"sparkrun/internal/sample"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/acting"
)

// wedgeSeen says whether a run's detector takes these clocks for the wedge.
func wedgeSeen(r *run, mhz float64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := false
	from := time.Now()
	for i := range 200 {
		s := &sample.Sample{T: from.Add(time.Duration(i) * time.Second)}
		s.GPU.T = time.Duration(i) * time.Second
		s.UtilPct, s.ClockSMMHz, s.PowerW, s.TempC = sample.Known(98), sample.Known(mhz), sample.Known(33), sample.Known(60)
		s.ReasonBits = sample.Known(0)
		for _, e := range r.detector.Sample(s) {
			seen = seen || e.Data["type"] == throttle.PowerWedge
		}
	}
	return seen
}

// Every run knows the caps in force, whoever has set them and whether that one lives.
func TestLookCaps(t *testing.T) {
	t.Parallel()
	lease := func(boot string, mhz int) acting.Lease {
		return acting.Lease{Schema: acting.LeaseSchema, Run: "other", Boot: boot, MHz: mhz}
	}
	for name, tt := range map[string]struct {
		leave func(t *testing.T, f clockFolder)
		want  int64
		wedge bool // at 1000 MHz
	}{
		"no folder": {func(*testing.T, clockFolder) {}, 0, true},
		"none": {func(t *testing.T, f clockFolder) {
			if err := os.MkdirAll(f.dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}, 0, true},
		"one that lives": {func(t *testing.T, f clockFolder) {
			if err := os.MkdirAll(f.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			held, err := f.take(lease(bootID(), 1000))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { held.Close() })
		}, 1000, false},
		"one that died":  {func(t *testing.T, f clockFolder) { deadLease(t, f, "dead", lease(bootID(), 1000)) }, 1000, false},
		"far above":      {func(t *testing.T, f clockFolder) { deadLease(t, f, "dead", lease(bootID(), 2200)) }, 2200, true},
		"of before":      {func(t *testing.T, f clockFolder) { deadLease(t, f, "dead", lease("another", 1000)) }, 0, true},
		"cannot be read": {func(t *testing.T, f clockFolder) { deadLease(t, f, "dead", acting.Lease{}) }, 600, false},
		"not one of ours": {func(t *testing.T, f clockFolder) {
			deadLease(t, f, "dead", lease(bootID(), 1000))
			if err := os.Rename(filepath.Join(f.dir, "dead.json"), filepath.Join(f.dir, "dead.txt")); err != nil {
				t.Fatal(err)
			}
		}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := coolRun(t, t.TempDir())
			tt.leave(t, r.clockFolder())
			r.lookCaps()
			if got := r.caps.mhz.Load(); got != tt.want {
				t.Errorf("%d MHz in force, want %d", got, tt.want)
			}
			if got := wedgeSeen(r, 1000); got != tt.wedge {
				t.Errorf("taken for the wedge: %v", got)
			}
		})
	}
}

// It follows: one that is set later, and one that is lifted.
func TestFollowCaps(t *testing.T) {
	t.Parallel()
	r, _ := coolRun(t, t.TempDir())
	go r.followCaps(t.Context())
	until := func(want int64) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); r.caps.mhz.Load() != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("in force %d, want %d", r.caps.mhz.Load(), want)
			}
		}
	}
	deadLease(t, r.clockFolder(), "other", acting.Lease{Schema: acting.LeaseSchema, Boot: bootID(), MHz: 1300})
	until(1300)
	if err := os.Remove(filepath.Join(r.clockFolder().dir, "other.json")); err != nil {
		t.Fatal(err)
	}
	until(0)
}
