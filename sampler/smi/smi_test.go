package smi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/newprog"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml"
)

const (
	deviceRow = "NVIDIA GB10, GPU-00000000-1111-2222-3333-444444444444, 580.142, 12.1, [N/A]"
	// idle is a row in the order of fields.
	idle = "52, 10.80, 2405, [N/A], 0, P0, 0x0000000000000001, 0, 0, 0, 0"
	load = "71, 96.52, 2210, [N/A], 97, P0, 0x0000000000000004, 1000, 0, 0, 0"
)

// fake writes an nvidia-smi: three shell fragments that answer the question for
// the device, for processes, and the loop. Every call's arguments go to a file.
func fake(t *testing.T, device, apps, loop string) (exe, calls string) {
	t.Helper()
	dir := t.TempDir()
	exe, calls = filepath.Join(dir, Command), filepath.Join(dir, "calls")
	script := fmt.Sprintf(`#!/bin/sh
echo "$*" >>'%s'
case "$*" in
*--loop-ms=*) echo $$ >'%s/pid'
%s ;;
*--query-gpu=name,*) %s ;;
*--query-compute-apps=*) %s ;;
*) echo "Invalid combination of input arguments."; exit 1 ;;
esac
`, calls, dir, loop, device, apps)
	if err := newprog.Write(exe, []byte(script)); err != nil {
		t.Fatal(err)
	}
	return exe, calls
}

func say(rows ...string) string {
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "echo '%s'\n", row)
	}
	return b.String()
}

// forever prints rows and then waits like a loop between two rows.
func forever(rows ...string) string { return say(rows...) + "exec sleep 60" }

func open(t *testing.T, exe string) *Reader {
	t.Helper()
	r, err := Open(exe, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); r.ended.Wait() })
	return r
}

// until reads until it is as wanted.
func until(t *testing.T, r *Reader, what string, want func(*sample.GPU) bool) sample.GPU {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		var g sample.GPU
		r.Read(&g, 20*time.Millisecond)
		if want(&g) {
			return g
		}
	}
	t.Fatalf("not within 10 s: %s", what)
	return sample.GPU{}
}

func TestOneLineIsOneReading(t *testing.T) {
	t.Parallel()
	exe, calls := fake(t, say(deviceRow), say("3150, 218", "6330, 96073"), "echo '"+idle+"'; read hold <\"$(dirname \"$0\")/go\"; "+forever(load))
	gate := filepath.Join(filepath.Dir(exe), "go")
	// A pipe that nobody has opened: the fake waits between its two rows.
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, exe)
	first := until(t, r, "the first row", func(g *sample.GPU) bool { return g.TempC.OK })
	if first.TempC.V != 52 || first.PowerW.V != 10.8 || first.UtilPct != sample.Known(0) || first.ReasonBits.V != 1 ||
		first.PState != sample.Known(0) || first.EnergyJ.OK || !first.Fallback || first.T <= 0 || len(first.Failed) != 0 {
		t.Errorf("first reading %+v", first)
	}
	// The same row is no second reading.
	var again sample.GPU
	r.Read(&again, 50*time.Millisecond)
	if again.TempC.OK || len(again.Failed) != 0 {
		t.Errorf("without a row: %+v", again)
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := until(t, r, "the second row", func(g *sample.GPU) bool { return g.TempC.OK })
	if second.TempC.V != 71 || second.CtrSWPowerNS.V != 1e6 || second.T <= first.T {
		t.Errorf("second reading %+v", second)
	}
	procs := first.Processes
	if procs == nil {
		procs = second.Processes
	}
	if len(procs) != 2 || procs[1].PID != 6330 {
		t.Errorf("processes %+v %+v", first.Processes, second.Processes)
	}
	d := r.Device()
	if d.Source != "nvidia-smi" || d.Name != "NVIDIA GB10" || !slices.Equal(d.Absent, []string{"clock_mem_mhz", "energy_j", "memory_total_mib"}) {
		t.Errorf("device %+v", d)
	}
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "--format=csv,noheader,nounits --id=0") || !strings.HasPrefix(line, "--query-") {
			t.Errorf("called with %s", line)
		}
	}
	if !strings.Contains(string(text), "--loop-ms=50 ") {
		t.Errorf("calls:\n%s", text)
	}
}

// Each row comes when it is there, whatever stands around it.
func TestRowsAmongOtherLines(t *testing.T) {
	t.Parallel()
	exe, _ := fake(t, "echo; echo '"+deviceRow+"'", "exit 3",
		forever("temperature.gpu, power.draw [W], clocks.sm", "", "WARNING: something about an infoROM", load))
	g := until(t, open(t, exe), "the row", func(g *sample.GPU) bool { return g.TempC.OK })
	if g.TempC.V != 71 || g.Processes != nil {
		t.Errorf("%+v", g)
	}
}

func TestAnOldNvidiaSmiKnowsFewerFields(t *testing.T) {
	t.Parallel()
	exe, _ := fake(t, say(deviceRow), "", `case "$*" in
*clocks_event_reasons_counters.*)
  name=${*##*clocks_event_reasons_counters.}; name=${name%% *}
  echo "Field \"clocks_event_reasons_counters.$name\" is not a valid field to query."; exit 2 ;;
*clocks_event_reasons.active*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
esac
`+forever("71, 96.52, 2210, 10501, 97, P0, 0x4"))
	r := open(t, exe)
	g := until(t, r, "a row", func(g *sample.GPU) bool {
		if len(g.Failed) != 0 {
			t.Errorf("meanwhile %v", g.Failed)
		}
		return g.TempC.OK
	})
	if g.ReasonBits.V != 4 || g.ClockMemMHz.V != 10501 || g.CtrSWPowerNS.OK {
		t.Errorf("%+v", g)
	}
	want := []string{"ctr_hwpower_ns", "ctr_hwthermal_ns", "ctr_swpower_ns", "ctr_swthermal_ns", "energy_j", "memory_total_mib"}
	if d := r.Device(); !slices.Equal(d.Absent, want) {
		t.Errorf("absent %v", d.Absent)
	}
}

func TestAFailureOnStdoutIsTheReason(t *testing.T) {
	t.Parallel()
	const said = "NVIDIA-SMI has failed because it could not communicate, and so on"
	exe, _ := fake(t, say(deviceRow), "", "echo '"+said+"'; exit 9")
	r := open(t, exe)
	g := until(t, r, "the failure", func(g *sample.GPU) bool { return len(g.Failed) != 0 })
	if !strings.Contains(g.Failed["nvml"], said) || g.TempC.OK {
		t.Errorf("%+v", g)
	}
	// A GPU that is lost while the loop runs on.
	lost := strings.TrimSuffix(strings.Repeat("[GPU is lost], ", len(fields)), ", ")
	exe, _ = fake(t, say(deviceRow), "", "echo '"+load+"'; sleep 0.3; "+forever(lost, lost))
	r = open(t, exe)
	until(t, r, "a row", func(g *sample.GPU) bool { return g.TempC.OK })
	g = until(t, r, "the loss", func(g *sample.GPU) bool { return len(g.Failed) != 0 })
	if !strings.Contains(g.Failed["nvml"], "GPU is lost") || g.TempC.OK {
		t.Errorf("%+v", g)
	}
}

func TestOneThatEndsIsStartedAgain(t *testing.T) {
	t.Parallel()
	exe, _ := fake(t, say(deviceRow), "", `if [ -e "$0.again" ]; then `+forever(load)+`; fi
touch "$0.again"; echo '`+idle+`'; exit 0`)
	r := open(t, exe)
	until(t, r, "the first row", func(g *sample.GPU) bool { return g.TempC.V == 52 })
	g := until(t, r, "its end", func(g *sample.GPU) bool { return len(g.Failed) != 0 })
	if g.Failed["nvml"] != "nvidia-smi ended by itself" {
		t.Errorf("%v", g.Failed)
	}
	until(t, r, "a row of the next one", func(g *sample.GPU) bool { return g.TempC.V == 71 && len(g.Failed) == 0 })
}

func TestOneThatHangsIsToldAndEnded(t *testing.T) {
	t.Parallel()
	exe, _ := fake(t, say(deviceRow), "exec sleep 60", forever(load))
	r := open(t, exe)
	until(t, r, "a row", func(g *sample.GPU) bool { return g.TempC.OK })
	g := until(t, r, "silence", func(g *sample.GPU) bool { return len(g.Failed) != 0 })
	if !strings.Contains(g.Failed["nvml"], "printed nothing for") || g.TempC.OK {
		t.Errorf("%+v", g)
	}
	pid := loopPID(t, exe)
	r.Close()
	gone(t, pid)
	done := make(chan struct{})
	go func() { r.ended.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("a goroutine of the reader does not end")
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		device string
		kind   nvml.Kind
		text   string
	}{
		"no driver": {"echo \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\"; exit 9", nvml.NoDriver, "communicate"},
		"no GPU":    {"echo 'No devices were found'; exit 6", nvml.NoDevice, "No devices were found"},
		"silent":    {"exit 4", nvml.Other, "exit status 4"},
		"nonsense":  {"echo hello", nvml.Other, "hello"},
		"on stderr": {"echo 'cannot open shared library' >&2; exit 12", nvml.NoLibrary, "shared library"},
	} {
		exe, _ := fake(t, c.device, "", "exit 1")
		r, err := Open(exe, time.Second)
		var e *nvml.Error
		if r != nil || !errors.As(err, &e) || e.Kind != c.kind || !strings.Contains(e.Text, c.text) {
			t.Errorf("%s: %v, %#v", name, err, e)
		}
	}
	if _, err := Open("/nonexistent/nvidia-smi", time.Second); err == nil || !strings.Contains(err.Error(), "cannot be started") {
		t.Errorf("no program: %v", err)
	}
}

func loopPID(t *testing.T, exe string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// gone waits for the end of a process.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if p, ok := proctree.Read(pid); !ok || p.State == 'Z' {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d does not end", pid)
		}
	}
}
