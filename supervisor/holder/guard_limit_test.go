package holder

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkrun/supervisor/guard"
)

// limited makes a memory cgroup, v1 or v2.
func limited(t *testing.T, mib int) string {
	t.Helper()
	name := fmt.Sprintf("guardtest-%d-%s", os.Getpid(), strings.ToLower(filepath.Base(t.Name())))
	dir, file := filepath.Join("/sys/fs/cgroup", name), "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		dir, file = filepath.Join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes"
	} else if b, _ := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control"); !strings.Contains(string(b), "memory") {
		t.Skip("no memory cgroup can be made here")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("a memory cgroup needs root: %v", err)
	}
	t.Cleanup(func() {
		until(t, "the cgroup can be removed", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(mib<<20)), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAMemoryLimitIsJudgedByItself: three percent of 1 GiB, not of the machine. The slow
// part of the fill takes well over the second that the guard measures a speed by.
func TestAMemoryLimitIsJudgedByItself(t *testing.T) {
	t.Parallel()
	dir := limited(t, 1024)
	usage := filepath.Join(dir, "memory.current")
	if _, err := os.Stat(usage); err != nil {
		usage = filepath.Join(dir, "memory.usage_in_bytes")
	}
	var a *attempt
	unhurried(t, func() string {
		spec := fillSpec(t, guard.Options{}, "deaf", "until:"+usage+":984", "70@2.5")
		spec.Cgroup = dir
		spec.Waits.Term = time.Hour // what ends it is the guard
		a = start(t, spec, nil)
		e := a.end()
		g := e.Guard
		if g == nil || g.Source != dir || g.TotalKiB != 1<<20 || g.FloorKiB != 1<<20*3/100 {
			t.Fatalf("guard %+v signal %s output %q", g, e.Signal, a.log())
		}
		// Slow enough for a SIGTERM; it is not obeyed, and half the floor is the end.
		if g.First != "SIGTERM" || stopsOf(e) != "SIGTERM>tree SIGKILL>tree" {
			return fmt.Sprintf("first %s stops %q: %+v", g.First, stopsOf(e), g)
		}
		return ""
	})
	rows := readBlackbox(t, a.dir)
	if used := column(t, rows[len(rows)-1], "cgroup_current_kib"); used > 1<<20 {
		t.Errorf("%v KiB used of 1 GiB", used)
	}
}

// TestGrowingPeaksInAMemoryLimit: each step takes more than any before, and gives
// it back.
func TestGrowingPeaksInAMemoryLimit(t *testing.T) {
	t.Parallel()
	dir := limited(t, 1000)
	spec := fillSpec(t, guard.Options{SoftPct: 30}, "700", "burst:80", "burst:100", "burst:100", "burst:150", "burst:150", "burst:180", "burst:200", "burst:230")
	spec.Cgroup = dir
	a := start(t, spec, nil)
	c := a.dial(RoleSupervisor)
	if err := c.Floors(Floors{Phase: guard.PhaseRun}); err != nil {
		t.Fatal(err)
	}
	a.says("full")
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	if r := readGuard(t, a.dir); e.Guard != nil || r.Action != nil || r.Phase != guard.PhaseRun {
		t.Errorf("guard %+v, phase %s", r.Action, r.Phase)
	}
}

// TestStepsInAMemoryLimitGetASIGTERM: 37 MiB/s in steps, six seconds from half the
// floor.
func TestStepsInAMemoryLimitGetASIGTERM(t *testing.T) {
	t.Parallel()
	dir := limited(t, 1024)
	// Well above the floor at first, also with what the race detector takes: the fill
	// itself is no slow step.
	args := []string{"350"}
	for range 30 {
		args = append(args, "step:15:400")
	}
	unhurried(t, func() string {
		spec := fillSpec(t, guard.Options{HardPct: 45, SoftPct: 50}, args...)
		spec.Cgroup = dir
		e := start(t, spec, nil).end()
		if e.Guard == nil || e.Guard.Host() {
			t.Fatalf("guard %+v signal %s", e.Guard, e.Signal)
		}
		if e.Guard.First != "SIGTERM" || stopsOf(e) != "SIGTERM>tree" || e.Signal != "SIGTERM" {
			return fmt.Sprintf("guard %+v stops %q signal %s", e.Guard, stopsOf(e), e.Signal)
		}
		return ""
	})
}

// unhurried gives what rests on the speed of a fill three tries: on a machine with more
// to do than it can, the steps of a slow fill come in one go, and that is no slow fill.
func unhurried(t *testing.T, try func() (wrong string)) {
	t.Helper()
	for n := 1; ; n++ {
		wrong := try()
		if wrong == "" {
			return
		}
		if n == 3 {
			t.Error(wrong)
			return
		}
		t.Logf("once more: %s", wrong)
	}
}

func TestPageCacheInAMemoryLimitIsNoDanger(t *testing.T) {
	t.Parallel()
	dir := limited(t, 64)
	data := t.TempDir()
	// Twice: what is read again becomes active, and is still only cache.
	spec := baseSpec(shortDir(t), "sh", "-c", fmt.Sprintf("dd if=/dev/zero of=%s/f bs=1M count=150 2>/dev/null; sync; cat %[1]s/f %[1]s/f %[1]s/f >/dev/null; echo done", data))
	spec.Cgroup = dir
	a := start(t, spec, nil)
	e := a.end()
	if e.Guard != nil || e.Status() != 0 {
		t.Errorf("guard %+v status %d", e.Guard, e.Status())
	}
	if _, err := os.Stat(filepath.Join(a.dir, blackboxName)); !notExist(err) {
		t.Error("a success has a black box")
	}
	if r := readGuard(t, a.dir); len(r.Sources) < 2 || r.Sources[1].Name != dir {
		t.Errorf("the limit was not watched: %+v", r.Sources)
	}
}
