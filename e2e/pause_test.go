package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/e2e/fakenvml"
	"sparkrun/internal/newprog"
)

// hotRun is a training of two processes on a machine whose temperatures a test sets.
type hotRun struct {
	*proc
	t    *testing.T
	root string
	pids []string
}

// twoProcesses trains until there is a file finish; worker is a process of its own
// session, as a data loader's may be. On SIGINT it says that it has saved.
const twoProcesses = `
import os, signal, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.02)"], start_new_session=True)
def saved(*_):
    worker.kill()
    print("saved", flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, saved)
with open("pids.new", "w") as f:
    f.write(f"{os.getpid()} {worker.pid}")
os.rename("pids.new", "pids")
step = 0
while not os.path.exists("finish"):
    step += 1
    print(f"step {step} loss 2.5", flush=True)
    time.sleep(0.05)
    if os.path.exists("silent"):
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
        while not os.path.exists("finish"):
            time.sleep(0.02)
        print(f"step {step + 1} loss 2.4\nstep {step + 2} loss 2.3", flush=True)
worker.kill()
`

// startHot starts it with --max-temp 91:87 and these other flags; the GPU's own sensor
// says 80 C.
func startHot(t *testing.T, flags ...string) *hotRun {
	t.Helper()
	dir := t.TempDir()
	h := &hotRun{t: t, root: heatTree(t)}
	if err := os.RemoveAll(filepath.Join(h.root, "sys/class/hwmon")); err != nil { // has the zones a second time
		t.Fatal(err)
	}
	h.zones("78000")
	env := []string{
		"SPARKRUN_TEST_ROOT=" + h.root,
		"SPARKRUN_NVML_LIBRARY=" + fakenvml.Build(t), "FAKENVML_SCENARIO=" + writeScript(t, dir, "scenario", "at 0s "+heatReady+" temp 80\n"),
	}
	args := append([]string{"--no-preflight", "--no-retry", "--no-guard", "--telemetry-interval", "100ms", "--max-temp", "91:87"}, flags...)
	h.proc = startEnv(t, dir, env, append(args, "--", "python3", writeScript(t, dir, "train.py", twoProcesses))...)
	until(t, "the training is there", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "pids"))
		h.pids = strings.Fields(string(b))
		return err == nil && len(h.pids) == 2
	})
	return h
}

// zones sets every zone to so many thousandths of a degree.
func (h *hotRun) zones(mC string) {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.root, "sys/class/thermal/thermal_zone*/temp"))
	if err != nil || len(files) == 0 {
		h.t.Fatalf("no zones in the tree: %v", err)
	}
	for _, f := range files {
		if err := os.WriteFile(f+".new", []byte(mC+"\n"), 0o644); err != nil {
			h.t.Fatal(err)
		}
		if err := os.Rename(f+".new", f); err != nil { // whole at any time
			h.t.Fatal(err)
		}
	}
}

// states are the letters of the two processes in /proc.
func (h *hotRun) states() string {
	s := ""
	for _, pid := range h.pids {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		if i := bytes.LastIndexByte(b, ')'); err == nil && i+2 < len(b) {
			s += string(b[i+2])
		} else {
			s += "-"
		}
	}
	return s
}

func (h *hotRun) paused() {
	h.t.Helper()
	until(h.t, "both processes are stopped", func() bool { return h.states() == "TT" })
}

func (h *hotRun) running() {
	h.t.Helper()
	until(h.t, "both processes go on", func() bool { return !strings.ContainsAny(h.states(), "T-") })
}

func (h *hotRun) finish() {
	h.t.Helper()
	writeScript(h.t, h.dir, "finish", "")
	if got := h.wait(30 * time.Second); got != 0 {
		h.t.Errorf("status %d\nstdout %s\nstderr %s", got, h.out, h.err)
	}
}

// events are the pauses and their ends: "pause", "continue cooled".
func (h *hotRun) events() (words []string, all []heatEvent) {
	h.t.Helper()
	for _, e := range heatEvents(h.t, h.proc) {
		if e.Kind == "pause" || e.Kind == "continue" {
			words = append(words, strings.TrimSpace(e.Kind+" "+e.text("why")))
			all = append(all, e)
		}
	}
	return words, all
}

func (h *hotRun) told(want ...string) []heatEvent {
	h.t.Helper()
	got, all := h.events()
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		h.t.Errorf("events %q, want %q", got, want)
		for _, e := range all {
			h.t.Logf("%s: %s %v", e.Kind, e.Msg, e.Data)
		}
		return nil
	}
	return all
}

// TestMaxTempPauses: a hot machine stops the whole tree, a cool one wakes it, and both
// are written down with their temperatures and the time.
func TestMaxTempPauses(t *testing.T) {
	t.Parallel()
	h := startHot(t)
	h.zones("92500")
	h.paused()
	h.zones("89000") // between the two limits: it stays paused
	until(t, "the run knows 89 C", func() bool {
		b, err := os.ReadFile(h.file("telemetry.csv"))
		return err == nil && bytes.Contains(b, []byte(",80,89,"))
	})
	if s := h.states(); s != "TT" {
		t.Errorf("states %s between the two limits", s)
	}
	h.zones("86500")
	h.running()
	h.zones("93000")
	h.paused()
	h.zones("80000")
	h.running()
	h.finish()
	events := h.told("pause", "continue cooled", "pause", "continue cooled")
	if events == nil {
		return
	}
	if e := events[0]; e.Data["temp_zone_max_c"] != 92.5 || e.Data["temp_gpu_c"] != 80.0 || e.Level != "warn" || !strings.Contains(e.Msg, "92.5 C") {
		t.Errorf("pause: %s %s %v", e.Level, e.Msg, e.Data)
	}
	total := 0.0
	for _, e := range []heatEvent{events[1], events[3]} {
		s, _ := e.Data["paused_s"].(float64)
		if total += s; s <= 0 || s > 20 || e.Level != "info" {
			t.Errorf("continue: %s %s %v", e.Level, e.Msg, e.Data)
		}
	}
	if e := events[1]; e.Data["temp_zone_max_c"] != 86.5 || e.Data["began_temp_zone_max_c"] != 92.5 {
		t.Errorf("continue: %v", e.Data)
	}
	a := readJSON(t, h.file("run.json"))["attempts"].([]any)[0].(map[string]any)
	if s, _ := a["paused_s"].(float64); a["pauses"] != 2.0 || s < total-0.01 || s > total+0.01 {
		t.Errorf("run.json has pauses %v and paused_s %v, want 2 and %g", a["pauses"], a["paused_s"], total)
	}
}

// TestAPauseIsNoHang: silence after an out-of-memory line is borne for 3 s, and those of a
// pause do not count.
func TestAPauseIsNoHang(t *testing.T) {
	t.Parallel()
	h := startHot(t, "--hang-after", "3s")
	writeScript(t, h.dir, "silent", "")
	until(t, "the out-of-memory line", func() bool { return strings.Contains(h.out.String(), "CUDA out of memory") })
	h.zones("93000")
	h.paused()
	began := time.Now()
	until(t, "it was silent for longer than is borne", func() bool { return time.Since(began) > 6*time.Second })
	if s := h.states(); s != "TT" {
		t.Errorf("states %s; stderr %s", s, h.err)
	}
	writeScript(t, h.dir, "finish", "") // to be found as soon as it goes on
	h.zones("80000")
	h.finish()
	h.told("pause", "continue cooled")
	if fileHas(h.file("events.jsonl"), `"kind":"hang"`)() {
		t.Error("told of a hang")
	}
}

// TestMaxTempNeedsTwo: a zone that the die does not agree with stops nothing.
func TestMaxTempNeedsTwo(t *testing.T) {
	t.Parallel()
	h := startHot(t)
	h.zones("101500")
	until(t, "the run knows 101.5 C", func() bool {
		b, err := os.ReadFile(h.file("telemetry.csv"))
		return err == nil && bytes.Count(b, []byte(",80,101.5,")) > 4
	})
	h.finish()
	h.told()
}

// TestMaxTempGoesOn: what ends a pause beside a cool machine. None of these is an end of
// the training.
func TestMaxTempGoesOn(t *testing.T) {
	t.Parallel()
	t.Run("the limit", func(t *testing.T) {
		t.Parallel()
		h := startHot(t, "--max-pause", "3s")
		h.zones("93000")
		h.paused()
		h.running()
		h.finish() // sooner than the next pause may come
		if e := h.told("pause", "continue limit"); e != nil {
			if s, _ := e[1].Data["paused_s"].(float64); s < 2.9 || s > 10 || e[1].Level != "warn" || !strings.Contains(e[1].Msg, "did not help") {
				t.Errorf("%s %s %v", e[1].Level, e[1].Msg, e[1].Data)
			}
		}
	})
	t.Run("a sensor that goes", func(t *testing.T) {
		t.Parallel()
		h := startHot(t)
		h.zones("93000")
		h.paused()
		if err := os.Rename(filepath.Join(h.root, "sys/class/thermal"), filepath.Join(h.root, "gone")); err != nil {
			t.Fatal(err)
		}
		h.running()
		h.finish()
		h.told("pause", "continue sensor-gone")
	})
	t.Run("a death", func(t *testing.T) {
		t.Parallel()
		h := startHot(t)
		h.zones("93000")
		h.paused()
		for _, pid := range h.pids {
			_ = unix.Kill(atoi(t, pid), unix.SIGKILL)
		}
		if got := h.wait(30 * time.Second); got != 137 {
			t.Errorf("status %d\nstderr %s", got, h.err)
		}
		h.told("pause", "continue ending")
	})
}

func atoi(t *testing.T, s string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCtrlCWhilePaused: the command gets its signal, awake, and time to save.
func TestCtrlCWhilePaused(t *testing.T) {
	t.Parallel()
	h := startHot(t)
	h.zones("93000")
	h.paused()
	if err := h.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if got := h.wait(30 * time.Second); got != 130 {
		t.Errorf("status %d\nstderr %s", got, h.err)
	}
	if !strings.Contains(h.out.String(), "saved") {
		t.Errorf("the command had no time to save: %s", h.out)
	}
	h.told("pause", "continue ending")
	if m := readJSON(t, h.file("run.json")); m["state"] != "stopped" {
		t.Errorf("state %v", m["state"])
	}
}

// TestSparkrunDiesWhilePaused: the holder wakes the training, which does not stand still
// for ever.
func TestSparkrunDiesWhilePaused(t *testing.T) {
	t.Parallel()
	h := startHot(t)
	h.zones("93000")
	h.paused()
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-h.done
	h.running()
	writeScript(t, h.dir, "finish", "")
	until(t, "the training comes to its end", func() bool { _, err := os.Stat(h.file("attempts/1/exit.json")); return err == nil })
	if e := readJSON(t, h.file("attempts/1/exit.json")); e["code"] != 0.0 {
		t.Errorf("exit %v", e)
	}
}

// TestNobodyIsLeftWhilePaused: sparkrun and its holder are killed together, as by a "pkill
// -9 sparkrun", and the training does not stand still for ever.
func TestNobodyIsLeftWhilePaused(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"sparkrun", "its holder"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			h := startHot(t)
			holder := parent(h.pids[0])
			h.zones("93000")
			h.paused()
			until(t, "the pause is told", func() bool { words, _ := h.events(); return len(words) == 1 })
			pids := []int{h.cmd.Process.Pid, atoi(t, holder)}
			if first != "sparkrun" {
				pids[0], pids[1] = pids[1], pids[0]
			}
			for _, pid := range pids {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			<-h.done
			// Whether it gets through without anybody who takes its output is its own matter.
			until(t, "nothing is stopped", func() bool { return !strings.Contains(h.states(), "T") })
		})
	}
}

// TestHolderHangsWhilePaused: the command goes on when it is cool, though its holder does
// not take the order.
func TestHolderHangsWhilePaused(t *testing.T) {
	t.Parallel()
	h := startHot(t)
	holder := atoi(t, parent(h.pids[0]))
	h.zones("93000")
	h.paused()
	until(t, "the pause is told", func() bool { words, _ := h.events(); return len(words) == 1 })
	if err := unix.Kill(holder, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(holder, unix.SIGCONT) }()
	h.zones("80000")
	// A question to the holder takes ten seconds to fail, and one or two may be under way.
	for deadline := time.Now().Add(60 * time.Second); strings.ContainsAny(h.states(), "T-"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it stands still: %s", h.states())
		}
	}
	if err := unix.Kill(holder, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.finish()
	h.told("pause", "continue cooled")
}

// parent is the pid of a process's parent.
func parent(pid string) string {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))[1]
}

// TestMaxTempWarns: what a pause would end, cannot reach or comes too late for is said at
// the start, and what is as it should be is not.
func TestMaxTempWarns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"torchrun", "docker", "accelerate"} {
		if err := newprog.Write(filepath.Join(dir, name), []byte("#!/bin/sh\nexit 0\n")); err != nil {
			t.Fatal(err)
		}
	}
	two := []string{"torchrun", "--nproc_per_node", "2", "train.py"}
	one := []string{"python3", "-c", "pass"}
	for name, tt := range map[string]struct {
		flags   []string
		command []string
		want    string
	}{
		"processes that wait for each other": {nil, two, "10 minutes with NCCL"},
		"as many as there are GPUs":          {nil, []string{"torchrun", "--nproc_per_node", "gpu", "train.py"}, "a process for each GPU"},
		"accelerate for several GPUs":        {nil, []string{"accelerate", "launch", "--multi_gpu", "train.py"}, "10 minutes with NCCL"},
		"a pause that they bear":             {[]string{"--max-pause", "5m"}, two, ""},
		"a container":                        {nil, []string{"docker", "run", "--rm", "image", "python3", "train.py"}, "a command in a container is not paused"},
		"one process":                        {nil, one, ""},
		"where machines died":                {[]string{"--max-temp", "91:87"}, one, "turned themselves off at 91.2 C"},
		"where they should turn off":         {[]string{"--max-temp", "104:90"}, one, "a pause at 104 C may come too late"},
		"readings that come seldom":          {[]string{"--telemetry-interval", "10m"}, one, "a pause comes up to 20m after"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := slices.Concat([]string{"--no-preflight", "--no-retry", "--max-temp", "88:84"}, tt.flags, []string{"--"}, tt.command)
			p := startEnv(t, t.TempDir(), []string{"PATH=" + dir + ":" + os.Getenv("PATH")}, args...)
			p.wait(30 * time.Second)
			n := 0
			for _, e := range heatEvents(t, p) {
				if strings.HasPrefix(e.Msg, "--max-temp") {
					n++
					if e.Level != "warn" || !strings.Contains(e.Msg, tt.want) {
						t.Errorf("%s: %s", e.Level, e.Msg)
					}
				}
			}
			if want := min(len(tt.want), 1); n != want {
				t.Errorf("said %d times something of --max-temp, want %d; stderr %s", n, want, p.err)
			}
		})
	}
}
