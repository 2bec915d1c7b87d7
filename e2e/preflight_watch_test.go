package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/e2e/fakenvml"
	"sparkrun/internal/sample"
	"sparkrun/preflight"
	"sparkrun/supervisor"
)

// watchExe is the built binary on a machine whose driver plays a scenario.
func watchExe(t *testing.T, scenario ...string) string {
	t.Helper()
	dir := t.TempDir()
	file := writeScript(t, dir, "scenario", strings.Join(scenario, "\n")+"\n")
	path := writeScript(t, dir, "sparkrun", fmt.Sprintf("#!/bin/sh\nexport SPARKRUN_NVML_LIBRARY='%s' FAKENVML_SCENARIO='%s'\nexec '%s' \"$@\"\n",
		fakenvml.Build(t), file, filepath.Join(bin, "sparkrun")))
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// judgeSlowly judges an observation as if it had taken factor times as long, on a Spark.
// The driver's counters run in real time, so they are stretched as well.
func judgeSlowly(t *testing.T, o *preflight.Observed, factor time.Duration) preflight.Finding {
	t.Helper()
	o.Asked, o.Took, o.Step = o.Asked*factor, o.Took*factor, o.Step*factor
	for i := range o.Readings {
		r := &o.Readings[i]
		r.At *= factor
		for _, n := range []*sample.Num{&r.GPU.CtrSWThermalNS, &r.GPU.CtrHWThermalNS, &r.GPU.CtrHWPowerNS} {
			n.V *= float64(factor)
		}
	}
	rep := preflight.Run(t.Context(), preflight.Input{
		Root: t.TempDir(), Observed: o,
		Device: func(context.Context) (sample.Device, sample.GPU, error) { return o.Device, sample.GPU{}, nil },
	})
	i := slices.IndexFunc(rep.Findings, func(f preflight.Finding) bool { return f.ID == "G4" })
	return rep.Findings[i]
}

// TestWatchGPU observes the GPU through the real library, sensors process and all, for
// about two seconds that stand for a quarter of an hour.
func TestWatchGPU(t *testing.T) {
	t.Parallel()
	const factor = 450
	for _, c := range []struct {
		name     string
		scenario []string
		status   preflight.Status
		says     string
	}{
		{"healthy", []string{"at 0s temp 70 power 110 sm 2300 util 97 reasons 0x0"}, preflight.Pass, "no throttling"},
		{"plateau", []string{"at 0s temp 78 power 92 sm 2240 util 97 reasons 0x4"}, preflight.Info, "power-cap"},
		{"wedge", []string{"at 0s temp 44 power 9 sm 507 util 98 reasons 0x0"}, preflight.Warn, "power-wedge"},
		{"heat", []string{"at 0s temp 84 power 80 sm 1990 util 97 reasons 0x0", "at 0.5s reasons 0x20"}, preflight.Warn, "software thermal slowdown"},
		{"idle", []string{"at 0s temp 36 power 4 sm 208 util 0 reasons 0x1"}, preflight.Info, "nothing to judge"},
		{"weak adapter", []string{"at 0s temp 55 power 52 sm 1500 util 98 reasons 0x0"}, preflight.Warn, "low-cap"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var shown lines
			o := supervisor.WatchGPU(t.Context(), supervisor.Options{Exe: watchExe(t, c.scenario...)}, 2*time.Second, 20*time.Millisecond, shown.add)
			if n := len(o.Readings); n < 10 || n > 110 || o.Interrupted || len(o.Trouble) > 0 {
				t.Fatalf("%d readings, interrupted %t, trouble %q", n, o.Interrupted, o.Trouble)
			}
			// As if for a quarter of an hour; a reading every 9 s.
			if f := judgeSlowly(t, o, factor); f.Status != c.status || !strings.Contains(f.Detail, c.says) {
				t.Errorf("%s: %s\n%s", f.Status, f.Detail, strings.Join(f.Evidence, "\n"))
			}
			if all := shown.all(); len(all) < 10 || !strings.Contains(all[len(all)-1], " W ") || !strings.Contains(all[0], "Ctrl-C") {
				t.Errorf("shown: %q", all)
			}
		})
	}
}

// lines keeps what was shown.
type lines struct {
	mu   sync.Mutex
	text []string
	any  chan struct{}
}

func (l *lines) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, s)
	if l.any != nil && len(l.text) > 2 {
		close(l.any)
		l.any = nil
	}
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.text)
}

func TestWatchGPUEnds(t *testing.T) {
	t.Parallel()
	t.Run("by Ctrl-C", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := make(chan struct{})
		shown := lines{any: seen}
		go func() {
			<-seen
			cancel()
		}()
		o := supervisor.WatchGPU(ctx, supervisor.Options{Exe: watchExe(t, "at 0s temp 70 power 92 sm 2240 util 97")}, time.Hour, 20*time.Millisecond, shown.add)
		if !o.Interrupted || len(o.Readings) == 0 || o.Took > time.Minute {
			t.Errorf("interrupted %t after %s with %d readings", o.Interrupted, o.Took, len(o.Readings))
		}
	})
	t.Run("at once without a driver", func(t *testing.T) {
		t.Parallel()
		exe := writeScript(t, t.TempDir(), "sparkrun", fmt.Sprintf("#!/bin/sh\nSPARKRUN_NVML_LIBRARY=/nonexistent/x exec '%s' \"$@\"\n", filepath.Join(bin, "sparkrun")))
		if err := os.Chmod(exe, 0o700); err != nil {
			t.Fatal(err)
		}
		o := supervisor.WatchGPU(t.Context(), supervisor.Options{Exe: exe}, time.Hour, 20*time.Millisecond, nil)
		if o.Took > time.Minute || o.Interrupted || o.Device.ErrKind == "" {
			t.Errorf("%+v", o)
		}
	})
	t.Run("with a driver that never answers", func(t *testing.T) {
		t.Parallel()
		var shown lines
		o := supervisor.WatchGPU(t.Context(), supervisor.Options{Exe: watchExe(t, "at 0s block 60s")}, 500*time.Millisecond, 50*time.Millisecond, shown.add)
		if o.Took > 20*time.Second {
			t.Errorf("it took %s", o.Took)
		}
		o.Device = sample.Device{Source: "nvml", Name: "NVIDIA GB10", Count: 1}
		if f := judgeSlowly(t, o, 1); f.Status != preflight.Skip || f.ByDesign || !strings.Contains(f.Detail, "no reading") {
			t.Errorf("%s: %s", f.Status, f.Detail)
		}
	})
	t.Run("with a sensors process that dies once", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		inner := watchExe(t, "at 0s temp 70 power 92 sm 2240 util 97")
		exe := writeScript(t, dir, "sparkrun", fmt.Sprintf("#!/bin/sh\nif mkdir '%s/once' 2>/dev/null; then echo torn >&2; exit 3; fi\nexec '%s' \"$@\"\n", dir, inner))
		if err := os.Chmod(exe, 0o700); err != nil {
			t.Fatal(err)
		}
		o := supervisor.WatchGPU(t.Context(), supervisor.Options{Exe: exe}, 300*time.Millisecond, 20*time.Millisecond, nil)
		if len(o.Readings) == 0 || len(o.Trouble) != 1 || !strings.Contains(o.Trouble[0], "torn") {
			t.Errorf("%d readings, trouble %q", len(o.Readings), o.Trouble)
		}
	})
}

// TestPreflightWatch: the command judges what was seen also where Ctrl-C ends it.
func TestPreflightWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeScript(t, dir, "scenario", "at 0s temp 44 power 9 sm 507 util 98 reasons 0x0\n")
	env := []string{"SPARKRUN_NVML_LIBRARY=" + fakenvml.Build(t), "FAKENVML_SCENARIO=" + file}
	p := startEnv(t, dir, env, "preflight", "--no-report", "--watch", "1h", "--watch-step", "20ms")
	until(t, "readings", func() bool { return strings.Count(p.err.String(), " MHz ") > 2 })
	_ = p.cmd.Process.Signal(unix.SIGINT)
	p.wait(20 * time.Second)
	// The table wraps its lines; the other checks are made although Ctrl-C came.
	if out := strings.Join(strings.Fields(p.out.String()), " "); !strings.Contains(out, "too short to judge") || !strings.Contains(out, "ended by you") || !strings.Contains(out, "headroom") {
		t.Errorf("stdout:\n%s\nstderr:\n%s", out, p.err)
	}
}
