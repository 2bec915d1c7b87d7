// Package vm runs sparkrun on an arm64 Linux machine with systemd, cgroup v2 and the
// memory controller, where running out of memory and losing power are real. The machine
// is emulated by QEMU from an image that image.sh builds of Debian packages; the checks
// themselves are made inside it by e2e/vm/guest.
//
// $SPARKRUN_VM says how much of it: smoke is one boot, full is everything.
package vm

import (
	"os"
	"testing"
	"time"
)

// wanted skips a test that was not asked for.
func wanted(t *testing.T, levels ...string) {
	t.Helper()
	got := os.Getenv("SPARKRUN_VM")
	for _, l := range levels {
		if got == l {
			return
		}
	}
	switch got {
	case "":
		t.Skip("an emulated machine is only booted where SPARKRUN_VM=smoke or SPARKRUN_VM=full says so")
	case "smoke", "full":
		t.Skipf("not part of SPARKRUN_VM=%s", got)
	default:
		t.Fatalf("SPARKRUN_VM=%s: it is smoke or full", got)
	}
}

// TestSmoke is one boot: the kills of a memory cgroup, cgroup.kill, PSI, a kernel log
// that may not be read, the page cache dropped with and without root, and the guard.
func TestSmoke(t *testing.T) {
	wanted(t, "smoke", "full")
	boot(t, machine{plan: "smoke", mib: 1024}).judge(15 * time.Minute)
}

// TestMemory exhausts the whole machine again and again, with the guard and without.
func TestMemory(t *testing.T) {
	wanted(t, "full")
	boot(t, machine{plan: "memory", mib: 1024}).judge(40 * time.Minute)
}

// TestReset takes the machine down in the middle of a run, by its reset button and in
// order, and looks at what the next boot finds: four boots of one machine.
func TestReset(t *testing.T) {
	wanted(t, "full")
	boot(t, machine{plan: "reset", mib: 1024}).judge(30 * time.Minute)
}
