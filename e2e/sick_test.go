package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/e2e/fakenvml"
)

// TestSickSensors: a library with nearly every symbol missing, a driver that
// hangs and a sensors process that is killed cost readings, never the run.
func TestSickSensors(t *testing.T) {
	t.Parallel()
	plain := "at 0s temp 60 power 80 sm 2300 util 90 reasons 0x0 pstate 0\n"
	tests := []struct {
		name     string
		lib      func(t *testing.T) string
		scenario string
		kill     bool
		event    string
	}{
		{"missing symbols", func(t *testing.T) string { return fakenvml.Build(t, fakenvml.Minimal) }, plain, false, "sensor.absent"},
		{"absent library", func(*testing.T) string { return "/nonexistent/libnvidia-ml.so.1" }, plain, false, "sensor.absent"},
		{"no library at all", func(t *testing.T) string { return writeScript(t, t.TempDir(), "junk.so", "not a library") }, plain, false, "sensor.absent"},
		{"calls that block", func(t *testing.T) string { return fakenvml.Build(t) }, plain + "at 1s block 30s\n", false, "sensor.gap"},
		{"killed sensors process", func(t *testing.T) string { return fakenvml.Build(t) }, plain, true, "sensor.gap"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			env := []string{"SPARKRUN_NVML_LIBRARY=" + tt.lib(t), "FAKENVML_SCENARIO=" + writeScript(t, dir, "scenario", tt.scenario)}
			p := startEnv(t, dir, env, "--no-preflight", "--", "sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.1; done; exit 4")
			until(t, "child up", fileHas(p.file("attempts/1/output.log"), "up"))
			if tt.kill {
				until(t, "a row with readings", func() bool { return len(rowsWith(p, ",60,")) > 0 })
				for _, pid := range childrenOf(p.cmd.Process.Pid, "__sensors") {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
			until(t, tt.event, fileHas(p.file("events.jsonl"), tt.event))
			rows := len(rowsWith(p, ","))
			until(t, "telemetry goes on", func() bool { return len(rowsWith(p, ",")) > rows+1 })
			writeScript(t, dir, "go", "")
			if got := p.wait(20 * time.Second); got != 4 {
				t.Errorf("status %d, want the child's 4; stderr %s", got, p.err)
			}
			p.complete(1)
		})
	}
}

// rowsWith returns the telemetry rows that contain text.
func rowsWith(p *proc, text string) []string {
	b, err := os.ReadFile(p.file("telemetry.csv"))
	if err != nil {
		return nil
	}
	var out []string
	for _, line := range strings.Split(string(b), "\n")[1:] {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

// childrenOf returns the pids of a process's children whose command line names
// word.
func childrenOf(parent int, word string) []int {
	var out []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(b), word) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(f), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			out = append(out, pid)
		}
	}
	return out
}

// TestLostHolder: the holder is killed. The run ends as lost with 125, what it
// left running is ended, and the disk says so.
func TestLostHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--", "python3", writeScript(t, dir, "train.py", childScript), "stubborn")
	until(t, "child up", fileHas(p.file("attempts/1/output.log"), "up"))
	until(t, "state running", fileHas(p.file("run.json"), `"state": "running"`))
	for _, pid := range childrenOf(p.cmd.Process.Pid, "__hold") {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if got := p.wait(20 * time.Second); got != 125 {
		t.Errorf("status %d, want 125; stderr %s", got, p.err)
	}
	if left := processesOf(p.id()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	m := readJSON(t, p.file("run.json"))
	a := m["attempts"].([]any)[0].(map[string]any)
	if m["state"] != "lost" || a["end_kind"] != "lost" {
		t.Errorf("state %v, end %v", m["state"], a["end_kind"])
	}
	p.complete(1)
}

// TestSupervisorKilled: the training goes on under its holder to its own end, and
// all it printed and its exit status are on disk.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--", "sh", "-c", "echo before; while [ ! -e go ]; do sleep 0.1; done; echo after; exit 9")
	until(t, "child up", fileHas(p.file("attempts/1/output.log"), "before"))
	until(t, "state running", fileHas(p.file("run.json"), `"state": "running"`))
	_ = p.cmd.Process.Kill()
	p.wait(5 * time.Second)
	writeScript(t, dir, "go", "")
	until(t, "exit.json", func() bool { _, err := os.Stat(p.file("attempts/1/exit.json")); return err == nil })
	if code := readJSON(t, p.file("attempts/1/exit.json"))["code"]; code != 9.0 {
		t.Errorf("code %v in exit.json", code)
	}
	if !fileHas(p.file("attempts/1/output.log"), "after")() {
		t.Error("what was printed after the supervisor's death is missing")
	}
	// The seam for taking a run over: state and attempt are on disk.
	m := readJSON(t, p.file("run.json"))
	if m["state"] != "running" || m["supervisor_pid"] == nil || m["start"].(map[string]any)["boot_ns"] == nil {
		t.Errorf("run.json cannot be taken over from: %v", m["state"])
	}
}

// TestRunFolderRemoved: somebody removes the run directory under the run. The
// training goes on, and its status is passed on.
func TestRunFolderRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--", "sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.1; done; echo done; exit 6")
	until(t, "child up", fileHas(p.file("attempts/1/output.log"), "up"))
	until(t, "state running", fileHas(p.file("run.json"), `"state": "running"`))
	if err := os.RemoveAll(filepath.Join(dir, "sparkrun-runs")); err != nil {
		t.Fatal(err)
	}
	writeScript(t, dir, "go", "")
	if got := p.wait(20 * time.Second); got != 6 {
		t.Errorf("status %d, want the child's 6; stderr %s", got, p.err)
	}
}
