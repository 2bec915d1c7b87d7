package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// paceCases are about steps that become slower, and what else happened then.
func paceCases() []heatCase {
	slow := `
train 0.2 until slowdown-
train 0.2 6`
	pressed := "tree proc/pressure/memory " + pressureFile("34.50", "12.00")
	return []heatCase{
		{
			// The heat's own episode stays information until it has cost pace; the slowdown
			// names it.
			name: "slowdown by heat",
			plan: pace + `
fake temp 85 sm 1700 power 55 reasons 0x20` + slow + `
fake temp 74 sm 2400 power 62 reasons 0x0
train 0.1 until "ended":"recovered"
train 0.1 5`,
			want: []string{"thermal-throttle start info", "slowdown start warn", "thermal-throttle end warn", "slowdown end warn"},
			data: []string{"", "cause=thermal-throttle baseline_step_time_s=0.1", "ended=quiet", "cause=thermal-throttle ended=recovered"},
			check: func(t *testing.T, _ *proc, events []heatEvent) {
				if lost, _ := events[3].Data["lost_s"].(float64); lost < 1 {
					t.Errorf("lost_s %v", events[3].Data["lost_s"])
				}
				if steps, _ := events[3].Data["lost_steps"].(float64); steps < 10 {
					t.Errorf("lost_steps %v", events[3].Data["lost_steps"])
				}
			},
		},
		{
			// One warning of one thing.
			name: "slowdown by a wedge",
			plan: pace + `
fake temp 46 sm 507 power 11 util 98
train 0.3 until slowdown-
train 0.3 3`,
			want: []string{"power-wedge start warn", "slowdown start info", "slowdown end info", "power-wedge end warn"},
			data: []string{"", "cause=power-wedge", "cause=power-wedge ended=run-ended", "ended=run-ended"},
		},
		{
			// A neighbour takes the memory: everything waits for pages.
			name: "slowdown by a memory hog",
			plan: pace + pressed + slow,
			want: []string{"slowdown start warn", "slowdown end warn"},
			data: []string{"cause=memory-pressure", "cause=memory-pressure ended=run-ended"},
			check: func(t *testing.T, _ *proc, events []heatEvent) {
				if !strings.Contains(events[0].Msg, "processes wait for memory") {
					t.Errorf("%q", events[0].Msg)
				}
			},
		},
		{
			name: "slowdown by another process on the GPU", beside: true,
			plan: "fake proc 1 200\n" + pace + "fake proc PID 9000" + slow,
			want: []string{"slowdown start warn", "slowdown end warn"},
			data: []string{"cause=gpu-process", "cause=gpu-process"},
			check: func(t *testing.T, _ *proc, events []heatEvent) {
				pid, _ := events[0].Data["gpu_pid"].(float64)
				if words := fmt.Sprintf("pid %.0f (%s) with 8.8 GiB", pid, events[0].text("gpu_process")); pid < 2 || !strings.Contains(events[0].text("gpu_process"), "sleep") || !strings.Contains(events[0].Msg, words) {
					t.Errorf("%v, %q, want %q", events[0].Data, events[0].Msg, words)
				}
			},
		},
		{
			name: "slowdown by a slow disk",
			plan: pace + "fake util 45 power 40\ntree proc/pressure/io " + pressureFile("61.00", "48.00") + slow,
			want: []string{"slowdown start warn", "slowdown end warn"},
			data: []string{"cause=input-starvation", "cause=input-starvation"},
		},
		{
			// What a checkpoint does beside the training is no fault.
			name: "slowdown behind a checkpoint",
			plan: pace + "say saving checkpoint to out/checkpoint-45" + slow,
			want: []string{"slowdown start info", "slowdown end info"},
			data: []string{"cause=checkpoint", "cause=checkpoint"},
		},
		{
			name: "slowdown behind an evaluation",
			plan: pace + "say {'eval_loss': 2.1, 'eval_runtime': 3.5}" + slow,
			want: []string{"slowdown start info", "slowdown end info"},
			data: []string{"cause=eval", "cause=eval"},
		},
		{
			name: "slowdown for no reason",
			plan: pace + slow,
			want: []string{"slowdown start warn", "slowdown end warn"},
			data: []string{"cause=unknown", "cause=unknown"},
			check: func(t *testing.T, _ *proc, events []heatEvent) {
				if words := "clock 2405 MHz against 2405"; !strings.Contains(events[0].Msg, words) {
					t.Errorf("%q, want the figures: %q", events[0].Msg, words)
				}
			},
		},
		{
			// Long steps one at a time: an evaluation nobody recognised, a new epoch.
			name: "long steps now and then",
			plan: pace + strings.Repeat("train 0.8 1\ntrain 0.1 12\n", 3),
		},
	}
}

// TestHeatSlowStart: the second run of a job is compared with the first, and is told to
// be slow below 80 % of its speed; the first has nothing to be compared with.
func TestHeatSlowStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	play := func(compared string, c heatCase) {
		c.check = func(t *testing.T, p *proc, _ []heatEvent) {
			a := readJSON(t, p.file("run.json"))["attempts"].([]any)[0].(map[string]any)
			if heat, _ := a["heat"].(map[string]any); heat["compared"] != compared {
				t.Errorf("compared: %v, want %q", heat, compared)
			}
		}
		t.Run(c.name, func(t *testing.T) { checkHeat(t, startHeat(t, dir, c), c) })
	}
	noted := func() int {
		files, _ := filepath.Glob(filepath.Join(dir, "state/sparkrun-train/pace/*.json"))
		return len(files)
	}
	play("no baseline yet", heatCase{name: "first", plan: "begin 0.06\ntrain 0.06 75"})
	if n := noted(); n != 1 {
		t.Fatalf("%d jobs noted after the first run", n)
	}
	play("slow", heatCase{
		name: "slower", plan: "begin 0.1\ntrain 0.1 until slow-start\ntrain 0.1 10",
		want: []string{"slow-start start warn", "slow-start end warn"},
		data: []string{"baseline_step_time_s=0.06 runs=1", "ended=run-ended"},
	})
	// A tenth slower is within what one run differs from another.
	play("normal", heatCase{name: "as usual", plan: "begin 0.066\ntrain 0.066 40"})
	if n := noted(); n != 1 {
		t.Errorf("%d jobs noted in the end: the three were one", n)
	}
}

// TestHeatMemoryHog: the memory pressure of a real neighbour, which has too little memory
// for the file it works on.
func TestHeatMemoryHog(t *testing.T) {
	if _, err := os.ReadFile("/proc/pressure/memory"); err != nil {
		t.Skipf("this kernel does not tell memory pressure: %v", err)
	}
	cg := memoryCgroup(t, 30<<20)
	dir := t.TempDir()
	c := heatCase{
		tree: heatTree(t),
		plan: pace + "append " + filepath.Join(dir, "go") + " now\npressed 8\n" + "train 0.2 until slowdown-\ntrain 0.2 6",
		want: []string{"slowdown start warn", "slowdown end warn"},
		data: []string{"cause=memory-pressure", "cause=memory-pressure"},
	}
	recorded := filepath.Join(c.tree, "proc/pressure/memory")
	if err := os.Remove(recorded); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/pressure/memory", recorded); err != nil {
		t.Fatal(err)
	}
	hog := exec.Command("python3", writeScript(t, dir, "hog.py", hogScript), cg, filepath.Join(dir, "go"), filepath.Join(dir, "data"))
	hog.Stderr = os.Stderr
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	// Before the folder of its group is removed.
	t.Cleanup(func() {
		_ = hog.Process.Kill()
		_ = hog.Wait()
	})
	checkHeat(t, startHeat(t, dir, c), c)
}

const hogScript = `
import mmap, os, sys, time
group, go, data = sys.argv[1:]
# First, so that the file's pages count for the group.
with open(os.path.join(group, "cgroup.procs"), "w") as f:
    f.write(str(os.getpid()))
with open(data, "wb") as f:
    for _ in range(80):
        f.write(os.urandom(1 << 20))
    f.flush()
    os.fsync(f.fileno())
while not os.path.exists(go):
    time.sleep(0.02)
end, n = time.monotonic() + 60, 0
with open(data, "rb") as f:
    pages = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    while time.monotonic() < end:
        for i in range(0, len(pages), 4096):
            n += pages[i]
`
