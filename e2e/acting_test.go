package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
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

// actingThermal are thresholds of seconds, with which a second of thermal bits is worth a
// warning.
const actingThermal = `
gap_s: 6
merge_s: 0.5
thermal: {warn_share: 0.0001, share_floor_s: 0.1, report_s: 0.3}
power_cap: {for_s: 1, quiet_s: 4}
power_wedge: {for_s: 1}
low_cap: {window_s: 1, for_s: 300, cap_for_s: 200, quiet_s: 2}
slowdown: {window_s: 0.5, quiet_s: 3}
`

// startActing starts a training under these flags on a GPU that is well: testdata/heat's
// train.py with a plan, or a program of its own.
func startActing(t *testing.T, dir string, env, flags []string, plan string, program ...string) *proc {
	t.Helper()
	data, err := filepath.Abs("testdata/heat")
	if err != nil {
		t.Fatal(err)
	}
	env = append(slices.Clone(env),
		"SPARKRUN_TEST_ROOT="+heatTree(t),
		"SPARKRUN_NVML_LIBRARY="+fakenvml.Build(t), "FAKENVML_SCENARIO="+writeScript(t, dir, "scenario", "at 0s "+heatReady+"\n"),
		fmt.Sprintf("FAKENVML_T0=%.3f", float64(time.Now().UnixMilli())/1000))
	if len(program) == 0 {
		program = []string{"python3", filepath.Join(data, "train.py"), writeScript(t, dir, "plan", plan)}
	}
	args := slices.Concat([]string{
		"--no-preflight", "--no-guard", "--telemetry-interval", "100ms", "--interval", "1s",
		"--thermal-config", writeScript(t, dir, "thermal.yaml", actingThermal),
	}, flags, []string{"--"}, program)
	return startEnv(t, dir, env, args...)
}

const wedged = "\nfake temp 46 sm 507 power 11 util 98\n"

func TestOnWedgeStop(t *testing.T) {
	t.Parallel()
	// One that saves when it is asked to end and says that all is well is ended all the same.
	for name, wrap := range map[string]string{"killed": "", "says success": `import runpy, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			plan := pace + wedged + "train 0.1 until never\n"
			var program []string
			if wrap != "" {
				player, err := filepath.Abs("testdata/heat/train.py")
				if err != nil {
					t.Fatal(err)
				}
				program = []string{"python3", writeScript(t, dir, "train.py", wrap), player, writeScript(t, dir, "plan", plan)}
			}
			p := startActing(t, dir, nil, []string{"--on-wedge", "stop"}, plan, program...)
			if got := p.wait(60 * time.Second); got != 76 {
				t.Fatalf("status %d, want 76\nstdout %s\nstderr %s", got, p.out, p.err)
			}
			m := p.manifest()
			if len(m.Attempts) != 1 || m.EndedBy != "sparkrun" || m.Attempts[0].EndKind != "wedge" || m.Attempts[0].Verdict.Reason != "power-wedge" || m.Attempts[0].Verdict.Verdict != "not-oom" {
				t.Errorf("run.json: %+v", m)
			}
			p.says("low-power wedge (98 % busy, 507 MHz, 11.0 W, 46 C)")
			for _, where := range []string{strings.Join(p.events("run.stop"), "\n"), strings.Join(p.events("run.end"), "\n"), p.err.String()} {
				if !strings.Contains(where, "unplug from the wall and from the unit for a minute; a reboot does not help") {
					t.Errorf("no word of the cure in %q", where)
				}
			}
			if said := p.events("run.stop"); len(said) != 1 {
				t.Errorf("run.stop: %q", said)
			}
		})
	}
}

// A Ctrl-C while sparkrun ends the attempt for what a watch saw: status and end of the run are
// the user's, end kind and verdict of the attempt say what was seen, and the result line has
// both, with the cure.
func TestCtrlCWhileAWatchEndsIt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flags               []string
		kind, reason, words string
		plan                string
	}{
		"wedge": {[]string{"--on-wedge", "stop"}, "wedge", "power-wedge", "a reboot does not help", pace + wedged + "train 0.1 until never\n"},
		"hang":  {[]string{"--hang-timeout", "3s"}, "hang", "hang", "neither a step nor any output", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			player, err := filepath.Abs("testdata/heat/train.py")
			if err != nil {
				t.Fatal(err)
			}
			script := writeScript(t, dir, "train.py", `import os, runpy, signal, sys, time
def save(*_):
    open("saving", "w").close()
    while not os.path.exists("saved"):
        time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.argv = sys.argv[1:]
if len(sys.argv) > 1:
    runpy.run_path(sys.argv[0], run_name="__main__")
for i in range(1, 6):
    print("step %d loss 2.5" % i, flush=True)
time.sleep(600)
`)
			program := []string{"python3", script}
			if tt.plan != "" {
				program = append(program, player, writeScript(t, dir, "plan", tt.plan))
			}
			var p *proc
			if tt.plan != "" {
				p = startActing(t, dir, nil, tt.flags, "", program...)
			} else { // no GPU, which would be busy
				p = start(t, dir, slices.Concat([]string{"--no-preflight", "--no-guard"}, tt.flags, []string{"--"}, program)...)
			}
			until(t, "the save", fileHas(filepath.Join(dir, "saving"), ""))
			_ = p.cmd.Process.Signal(unix.SIGINT)
			until(t, "the stop", fileHas(p.file("events.jsonl"), `"signal":"SIGINT"`))
			touch(t, dir, "saved")
			if got := p.wait(60 * time.Second); got != 130 {
				t.Errorf("status %d, want 130\nstderr %s", got, p.err)
			}
			m := p.manifest()
			if len(m.Attempts) != 1 || m.Result != "stopped" || m.EndedBy != "user" || m.Attempts[0].EndKind != tt.kind || m.Attempts[0].Verdict.Reason != tt.reason {
				t.Errorf("run.json: %+v", m)
			}
			line := strings.Join(p.events("run.end"), "\n")
			for _, want := range []string{"stopped by SIGINT", "exit status 130; sparkrun had begun to end the attempt: ", tt.words} {
				if strings.Count(line, want) != 1 {
					t.Errorf("%q is not told once: %s", want, line)
				}
			}
		})
	}
}

func TestOnWedgeWarn(t *testing.T) {
	t.Parallel()
	p := startActing(t, t.TempDir(), nil, nil, pace+wedged+"train 0.1 until power-wedge\ntrain 0.1 10\n")
	if got := p.wait(60 * time.Second); got != 0 {
		t.Fatalf("status %d\nstderr %s", got, p.err)
	}
	if said := p.events("run.stop"); len(said) != 0 {
		t.Errorf("run.stop: %q", said)
	}
}

// fakeSMI is an nvidia-smi that writes down how it was called.
func fakeSMI(t *testing.T, body string) (env []string, calls func() string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "calls")
	script := "#!/bin/sh\necho \"$*\" >>" + log + "\n" + body + "\n"
	if err := newprog.Write(filepath.Join(dir, "nvidia-smi"), []byte(script)); err != nil {
		t.Fatal(err)
	}
	return []string{"PATH=" + dir + ":" + os.Getenv("PATH")}, func() string {
		b, _ := os.ReadFile(log) // not there: no call
		return strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", "; ")
	}
}

// sets is what the tool says when it has locked the clocks.
const sets = `echo 'GPU clocks set to "(gpuClkMin 300, gpuClkMax 1800)" for GPU 0000000F:01:00.0'; echo 'All done.'`

// throttles are two episodes of heat that are worth a warning each.
const throttles = pace + `
fake temp 85 sm 1900 reasons 0x20
train 0.1 10
fake temp 74 sm 2400 reasons 0x0
train 0.1 until "ended":"quiet"
train 0.1 12
fake temp 85 sm 1900 reasons 0x20
train 0.1 10
fake temp 74 sm 2400 reasons 0x0
`

// asRoot passes a test over where clocks cannot be capped.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("locking clocks takes root")
	}
}

// leases are those of the runs below a folder's state.
func leases(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(filepath.Join(dir, "state"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(filepath.Dir(path)) == "clocks" && filepath.Ext(path) == ".json" {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestCapClocks(t *testing.T) {
	t.Parallel()
	asRoot(t)
	for name, end := range map[string]string{"to the end": "", "stopped": "SIGINT"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			env, calls := fakeSMI(t, sets)
			plan := throttles + "train 0.1 until capped at 1800\ntrain 0.1 5\n"
			if end != "" {
				plan += "train 0.1 until never\n"
			}
			p := startActing(t, dir, env, []string{"--cap-clocks", "1800"}, plan)
			if end != "" {
				until(t, "the cap", fileHas(p.file("events.jsonl"), "capped at 1800"))
				if got := leases(t, dir); len(got) != 1 {
					t.Errorf("leases %v", got)
				}
				_ = p.cmd.Process.Signal(unix.SIGINT)
			}
			got := p.wait(90 * time.Second)
			if want := map[string]int{"": 0, "SIGINT": 130}[end]; got != want {
				t.Fatalf("status %d, want %d\nstdout %s\nstderr %s", got, want, p.out, p.err)
			}
			if got := calls(); got != "-lgc 300,1800; -rgc" {
				t.Errorf("nvidia-smi was called: %s", got)
			}
			if got := leases(t, dir); len(got) != 0 {
				t.Errorf("leases %v", got)
			}
			said := strings.Join(p.events("hygiene"), "\n")
			for _, want := range []string{"thermal throttling came back (2 times): the GPU's clock is capped at 1800 MHz (it worked at 24", "free again"} {
				if !strings.Contains(said, want) {
					t.Errorf("nothing is said of %q: %s", want, said)
				}
			}
		})
	}
}

// What is not asked for, or cannot be, is never called.
func TestCapClocksNot(t *testing.T) {
	t.Parallel()
	asRoot(t)
	for name, tt := range map[string]struct {
		flags []string
		smi   string
		calls string
		says  string
	}{
		"not asked for":       {nil, sets, "", ""},
		"would lower nothing": {[]string{"--cap-clocks", "2410"}, sets, "", "would lower nothing"},
		"refused":             {[]string{"--cap-clocks", "1800"}, "echo 'The current user does not have permission to change clocks'; exit 4", "-lgc 300,1800", "refuses (status 4): The current user does not have permission"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			env, calls := fakeSMI(t, tt.smi)
			p := startActing(t, dir, env, tt.flags, throttles+"train 0.1 20\n")
			if got := p.wait(90 * time.Second); got != 0 {
				t.Fatalf("status %d\nstderr %s", got, p.err)
			}
			if got := calls(); got != tt.calls {
				t.Errorf("nvidia-smi was called: %q, want %q", got, tt.calls)
			}
			said := p.events("hygiene")
			if n := strings.Count(strings.Join(said, "\n"), tt.says); tt.says != "" && n != 1 || tt.says == "" && strings.Contains(strings.Join(said, "\n"), "clock") {
				t.Errorf("said %d times: %q", n, said)
			}
			if n := len(p.events("throttle.start")); n < 2 {
				t.Errorf("%d throttle.start: the scenario is not what was meant", n)
			}
			if got := leases(t, dir); len(got) != 0 {
				t.Errorf("leases %v", got)
			}
		})
	}
}

// What is far above any clock under load is refused at the start.
func TestCapClocksRange(t *testing.T) {
	t.Parallel()
	for mhz, status := range map[string]int{"599": 125, "600": 0, "2411": 0, "2412": 125, "3003": 125} {
		p := start(t, t.TempDir(), "--no-preflight", "--cap-clocks", mhz, "--", "true")
		if got := p.wait(30 * time.Second); got != status {
			t.Errorf("%s MHz: status %d, want %d\nstderr %s", mhz, got, status, p.err)
		}
		if status != 0 {
			p.says("600 to 2411")
		}
	}
}

// slowGPU runs at a clock, busy and with little power.
func slowGPU(mhz string) string { return "\nfake temp 60 sm " + mhz + " power 33 util 98\n" }

// Clocks that sparkrun itself has capped are no wedge: beside the run that holds the cap, and
// in one after a crash whose cap cannot be set free. Clocks far below the cap are one.
func TestOnWedgeStopBesideACap(t *testing.T) {
	t.Parallel()
	asRoot(t)
	dir := t.TempDir()
	env, calls := fakeSMI(t, `case $1 in -rgc) echo no; exit 3;; *) echo ok;; esac`)
	p := startActing(t, dir, env, []string{"--cap-clocks", "1000", "--runs-dir", filepath.Join(dir, "first")}, throttles+"train 0.1 until never\n")
	until(t, "the cap", fileHas(p.file("events.jsonl"), "capped at 1000"))
	other := func(name, mhz string, want int) *proc {
		d := t.TempDir()
		if err := os.Symlink(filepath.Join(dir, "state"), filepath.Join(d, "state")); err != nil {
			t.Fatal(err)
		}
		q := startActing(t, d, env, []string{"--on-wedge", "stop"}, pace+slowGPU(mhz)+"train 0.1 60\n")
		if got := q.wait(60 * time.Second); got != want {
			t.Errorf("%s: status %d, want %d\nstderr %s", name, got, want, q.err)
		}
		for _, line := range q.events("throttle.start") {
			if want == 0 && strings.Contains(line, "power-wedge") {
				t.Errorf("%s: %s", name, line)
			}
		}
		return q
	}
	other("beside", "1000", 0)
	other("beside, in the wedge", "507", 76)

	id := p.id()
	_ = p.cmd.Process.Kill()
	<-p.done
	for _, line := range processesOf(id) {
		killChild(line)
	}
	other("after", "1000", 0).says("could not be set free")
	if got := calls(); !strings.HasPrefix(got, "-lgc 300,1000; -rgc") {
		t.Errorf("calls %s", got)
	}
}

// A second Ctrl-C hurries the end, and not at the price of a clock that stays capped, or
// without a word of it.
func TestCapClocksTwoStops(t *testing.T) {
	t.Parallel()
	asRoot(t)
	for name, tt := range map[string]struct {
		rgc    string
		says   string
		leases int
	}{
		"takes its time": {"sleep 1.5; echo freed >>$(dirname $0)/calls", "free again", 0},
		"hangs":          {"sleep 100", "still capped at 1800 MHz: nvidia-smi -rgc did not end in time", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			env, calls := fakeSMI(t, "case $1 in -rgc) "+tt.rgc+";; *) echo ok;; esac")
			p := startActing(t, dir, env, []string{"--cap-clocks", "1800"}, throttles+"train 0.1 until never\n")
			until(t, "the cap", fileHas(p.file("events.jsonl"), "capped at 1800"))
			_ = p.cmd.Process.Signal(unix.SIGINT)
			until(t, "the end", func() bool { return strings.Contains(calls(), "-rgc") })
			began := time.Now()
			for range 3 {
				_ = p.cmd.Process.Signal(unix.SIGINT)
				time.Sleep(100 * time.Millisecond)
			}
			if got := p.wait(60 * time.Second); got != 130 {
				t.Errorf("status %d\nstderr %s", got, p.err)
			}
			if took := time.Since(began); took > 16*time.Second {
				t.Errorf("it took %s", took)
			}
			if got := calls(); tt.leases == 0 && !strings.HasSuffix(got, "-rgc; freed") {
				t.Errorf("calls %s", got)
			}
			if got := leases(t, dir); len(got) != tt.leases {
				t.Errorf("leases %v", got)
			}
			p.says(tt.says)
			if said := strings.Join(p.events("hygiene"), "\n"); !strings.Contains(said, tt.says) {
				t.Errorf("not in events.jsonl: %s", said)
			}
		})
	}
}

// A clock that a killed run has left capped is set free by the next start, and not under
// a run that lives.
func TestCapClocksAfterACrash(t *testing.T) {
	t.Parallel()
	asRoot(t)
	dir := t.TempDir()
	env, calls := fakeSMI(t, sets)
	p := startActing(t, dir, env, []string{"--cap-clocks", "1800", "--runs-dir", filepath.Join(dir, "first")}, throttles+"train 0.1 until never\n")
	until(t, "the cap", fileHas(p.file("events.jsonl"), "capped at 1800"))

	other := func(name string) *proc {
		o := startEnv(t, dir, env, "--no-preflight", "--runs-dir", filepath.Join(dir, name), "--", "true")
		if got := o.wait(60 * time.Second); got != 0 {
			t.Fatalf("status %d\nstderr %s", got, o.err)
		}
		return o
	}
	o := other("beside")
	if got := calls(); got != "-lgc 300,1800" {
		t.Errorf("beside a run that lives nvidia-smi was called: %s", got)
	}
	o.saysNot("clock")

	id := p.id()
	_ = p.cmd.Process.Kill()
	<-p.done
	for _, line := range processesOf(id) {
		killChild(line)
	}
	var lease struct {
		Schema string `json:"schema"`
		Run    string `json:"run"`
		MHz    int    `json:"mhz"`
		Boot   string `json:"boot_id"`
	}
	left := leases(t, dir)
	if len(left) != 1 {
		t.Fatalf("leases %v", left)
	}
	readInto(t, left[0], &lease)
	if lease.Schema != "sparkrun.clocks/1" || lease.Run != id || lease.MHz != 1800 || lease.Boot == "" {
		t.Errorf("lease %+v", lease)
	}

	other("after").says("run " + id + " died and left the GPU's clock capped at 1800 MHz; it is free again")
	if got := calls(); got != "-lgc 300,1800; -rgc" {
		t.Errorf("nvidia-smi was called: %s", got)
	}
	if got := leases(t, dir); len(got) != 0 {
		t.Errorf("leases %v", got)
	}
	other("later").saysNot("clock")

	// One of before the machine was started anew is only removed.
	old, err := json.Marshal(map[string]any{"schema": "sparkrun.clocks/1", "run": "r", "pid": 1, "boot_id": "another", "mhz": 1800})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left[0], old, 0o600); err != nil {
		t.Fatal(err)
	}
	other("rebooted").saysNot("clock")
	if got := calls(); got != "-lgc 300,1800; -rgc" || len(leases(t, dir)) != 0 {
		t.Errorf("calls %s, leases %v", got, leases(t, dir))
	}
}

// slowingScript trains until there is a file finish, and slowly while there is a file slow.
// It saves at multiples of SAVE steps, and ends in good order when it is asked to.
const slowingScript = `
# parser = HfArgumentParser((TrainingArguments,))
import argparse
import os
import signal
import sys
import time
from trl import SFTConfig, SFTTrainer

p = argparse.ArgumentParser()
p.add_argument("--output_dir", default="out")
p.add_argument("--resume_from_checkpoint")
a = p.parse_args()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


class Trainer(SFTTrainer):
    def training_step(self, step, rows):
        time.sleep(0.3 if os.path.exists("slow") else 0.1)
        print("step", step + 1, flush=True)
        if os.path.exists("finish"):
            self.args.max_steps = step + 1


trainer = Trainer(args=SFTConfig(output_dir=a.output_dir, max_steps=100000, save_steps=int(os.environ["SAVE"]), logging_steps=1))
trainer.train(resume_from_checkpoint=a.resume_from_checkpoint)
`

// paceKnown waits until an attempt's own pace is known: many steps of it.
func paceKnown(t *testing.T, p *proc, attempt int) {
	t.Helper()
	until(t, "forty steps", func() bool {
		b, err := os.ReadFile(p.file(fmt.Sprintf("attempts/%d/output.log", attempt)))
		return err == nil && strings.Count(string(b), "step ") > 45
	})
}

func touch(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestMaxSlowdown: an attempt that becomes too slow goes on from its checkpoint. One that
// is slow from its first step is measured by the first one's pace. After two of that it is
// let run, with a word.
func TestMaxSlowdown(t *testing.T) {
	t.Parallel()
	dir := withLibraries(t, folder(t, map[string]string{"train.py": slowingScript}))
	p := startActing(t, dir, append(quietPython, "SAVE=10"), []string{"--max-slowdown", "1.6:0.05"}, "", "python3", "train.py")
	paceKnown(t, p, 1)
	touch(t, dir, "slow")
	until(t, "a second attempt", fileHas(p.file("events.jsonl"), "attempt 2: "))
	until(t, "a third attempt", fileHas(p.file("events.jsonl"), "attempt 3: "))
	until(t, "the word that it is let run", fileHas(p.file("events.jsonl"), "it is let run"))
	touch(t, dir, "finish")
	if got := p.wait(60 * time.Second); got != 0 {
		t.Fatalf("status %d\nstdout %s\nstderr %s", got, p.out, p.err)
	}
	m := p.manifest()
	if len(m.Attempts) != 3 || m.Result != "succeeded" {
		t.Fatalf("run.json: %+v", m)
	}
	for i, a := range m.Attempts[:2] {
		if a.Verdict.Reason != "slowdown" || a.Verdict.Verdict != "not-oom" || a.EndKind != "stopped" || len(a.Rungs) != 0 {
			t.Errorf("attempt %d: %+v", i+1, a)
		}
	}
	starts := p.begun()
	for i := 1; i < 3; i++ {
		if starts[i].FromStep <= starts[i-1].FromStep || resumedFrom(starts[i]) == "" || starts[i].Micro != starts[0].Micro {
			t.Errorf("start %d: %+v from %q", i+1, starts[i], resumedFrom(starts[i]))
		}
	}
	said := p.events("run.stop")
	if len(said) != 3 || !strings.Contains(said[0], "ending the attempt, to go on from the checkpoint of step") ||
		!strings.Contains(said[1], "ending the attempt") || !strings.Contains(said[2], "let run: ended for the same reason (slowdown) 3 times") {
		t.Errorf("run.stop: %q", said)
	}
	if !strings.Contains(said[0], "times as long as before, and --max-slowdown allows 1.6 times for 3 s") {
		t.Errorf("run.stop: %q", said[0])
	}
}

// TestMaxSlowdownCannotGoOn: what could not go on is let run, and told once. As soon as it
// has saved it is ended after all.
func TestMaxSlowdownCannotGoOn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		save, flag string
		says       string
	}{
		"nothing saved": {"100000", "--resume=auto", "it has saved no checkpoint since its start"},
		"no retry":      {"10", "--no-retry", "retries are off"},
		"no resume":     {"10", "--resume=never", "no complete checkpoint to go on from"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := withLibraries(t, folder(t, map[string]string{"train.py": slowingScript}))
			p := startActing(t, dir, append(quietPython, "SAVE="+tt.save), []string{"--max-slowdown", "1.6:0.05", tt.flag}, "", "python3", "train.py")
			paceKnown(t, p, 1)
			touch(t, dir, "slow")
			until(t, "the word", fileHas(p.file("events.jsonl"), "it is let run"))
			lines, err := os.ReadFile(p.file("attempts/1/output.log"))
			if err != nil {
				t.Fatal(err)
			}
			until(t, "more steps, in which it is looked at again", func() bool {
				now, err := os.ReadFile(p.file("attempts/1/output.log"))
				return err == nil && strings.Count(string(now), "step ") > strings.Count(string(lines), "step ")+10
			})
			touch(t, dir, "finish")
			if got := p.wait(60 * time.Second); got != 0 {
				t.Fatalf("status %d\nstdout %s\nstderr %s", got, p.out, p.err)
			}
			if m := p.manifest(); len(m.Attempts) != 1 {
				t.Errorf("%d attempts", len(m.Attempts))
			}
			if said := p.events("run.stop"); len(said) != 1 || !strings.Contains(said[0], tt.says) {
				t.Errorf("run.stop: %q", said)
			}
		})
	}
}
