package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
	"sparkrun/sampler"
)

// TestMain lets this binary be the sensors process, as sparkrun is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == sampler.SensorsArg {
		os.Exit(sampler.SensorsMain(os.Args[2:], os.Stdout))
	}
	os.Exit(m.Run())
}

// TestRun measures a machine without a GPU for a second, ten times as fast as a run samples: the goals are for a
// machine that is not testing, but all of the report has to be there.
func TestRun(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("SPARKRUN_NVML_LIBRARY", filepath.Join(temp, "none.so"))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{Exe: exe, Tick: 100 * time.Millisecond, For: 1500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if r.Ticks+r.Missed < 12 || r.Ticks+r.Missed > 18 || r.ForS < 1 || r.Syncs == 0 {
		t.Errorf("ticks %d, missed %d in %.1f s, %d syncs", r.Ticks, r.Missed, r.ForS, r.Syncs)
	}
	if len(r.Processes) != 2 || !r.CPUPct.OK || r.CPUPct.V <= 0 || !r.PSSMiB.OK || r.PSSMiB.V < 1 {
		t.Errorf("cost: %+v", r)
	}
	for _, p := range r.Processes {
		if p.PID == 0 || !p.CPUPct.OK || !p.PSSMiB.OK {
			t.Errorf("process %+v", p)
		}
	}
	if !slices.Contains(r.Answered, "mem_available_kib") || !slices.Contains(r.Absent, "clock_mem_mhz") {
		t.Errorf("answered %v, absent %v", r.Answered, r.Absent)
	}
	if !strings.HasPrefix(r.GPU, "none: ") {
		t.Errorf("gpu %q", r.GPU)
	}
	if left, err := filepath.Glob(filepath.Join(temp, "*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	var text bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ticks ", "jitter ", "cpu ", "memory ", "answered ", "absent ", "disk ", "result "} {
		if !strings.Contains("\n"+text.String(), "\n"+want) {
			t.Errorf("no line %q in\n%s", want, text.String())
		}
	}
	b, err := json.Marshal(r)
	if err != nil || !bytes.Contains(b, []byte(`"schema":"sparkrun.selftest/1"`)) || !bytes.Contains(b, []byte(`"beyond":[`)) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestAnInterruptedTestLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("enough"))
	defer cancel()
	if _, err := Run(ctx, Options{Tick: 50 * time.Millisecond, For: time.Hour}); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("error %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Run(t.Context(), Options{For: time.Second}); err == nil {
		t.Error("a second is enough for rows a second apart")
	}
}

// seen takes samples at the given lateness of their seconds, in ms.
func seen(late ...float64) *test {
	t := &test{tick: time.Second, cells: map[string]int{}, failed: map[string]string{}}
	t0 := time.Unix(1_800_000_000, 0)
	for i, ms := range late {
		s := sample.Sample{T: t0.Add(time.Duration(i)*time.Second + time.Duration(ms*1e6)), MemAvailableKiB: sample.Known(1)}
		if i > 0 {
			s.TempC = sample.Known(60)
		}
		t.sample(&s)
	}
	return t
}

func TestJitterAndDrift(t *testing.T) {
	t.Parallel()
	// The first row is late itself.
	r := seen(2, 0, 1, 0, 1, 0).report()
	if r.JitterMaxMS != 2 || r.JitterP50MS != 0 || r.DriftMS != 0 || r.Ticks != 6 {
		t.Errorf("%+v", r)
	}
	if !slices.Contains(r.Answered, "mem_available_kib") || r.Partly["temp_gpu_c"] != 5 || !slices.Contains(r.Absent, "power_gpu_w") || slices.Contains(r.Absent, "tokens") {
		t.Errorf("readings: %+v", r)
	}
	if r := seen(0, 1, 2, 3, 4, 5, 6, 7, 8).report(); r.DriftMS != 6 {
		t.Errorf("drift %v", r.DriftMS)
	}
	missed := seen(0, 0)
	missed.sample(&sample.Sample{T: missed.first.Add(5 * time.Second), Missed: 3})
	if r := missed.report(); r.Missed != 3 || r.JitterMaxMS != 0 {
		t.Errorf("missed: %+v", r)
	}
	if r := seen().report(); r.Ticks != 0 || r.JitterMaxMS != 0 {
		t.Errorf("nothing: %+v", r)
	}
}

func TestGoals(t *testing.T) {
	t.Parallel()
	cost := func(cpu, mib sample.Num) Report {
		r := seen(0, 1, 0, 1).report()
		r.Processes = []Process{{Name: "sampler", PID: 1, CPUPct: cpu, PSSMiB: mib}, {Name: "sensors", PID: 2, CPUPct: sample.Known(0.1), PSSMiB: sample.Known(10)}}
		return r
	}
	for name, c := range map[string]struct {
		change func(*Report)
		r      Report
		want   string
	}{
		"good":           {func(*Report) {}, cost(sample.Known(0.1), sample.Known(12)), ""},
		"dear":           {func(*Report) {}, cost(sample.Known(0.25), sample.Known(12)), "0.35 % of one core"},
		"large":          {func(*Report) {}, cost(sample.Known(0.1), sample.Known(25)), "35.0 MiB"},
		"unknown memory": {func(*Report) {}, cost(sample.Known(0.1), sample.Num{}), ""},
		"unknown cost":   {func(*Report) {}, cost(sample.Num{}, sample.Known(12)), "not known"},
		"missed":         {func(r *Report) { r.Missed = 2 }, cost(sample.Known(0.1), sample.Known(12)), "2 ticks were missed"},
		"late":           {func(r *Report) { r.JitterP99MS = 7 }, cost(sample.Known(0.1), sample.Known(12)), "p99 of the jitter is 7.0 ms"},
		"drifting":       {func(r *Report) { r.DriftMS = -6 }, cost(sample.Known(0.1), sample.Known(12)), "drifts by -6.0 ms"},
		"stuck":          {func(r *Report) { r.Failed["nvml"] = "no answer for 3 s" }, cost(sample.Known(0.1), sample.Known(12)), "nvml: no answer"},
	} {
		c.change(&c.r)
		c.r.judge()
		if got := strings.Join(c.r.Beyond, "; "); c.want == "" && got != "" || !strings.Contains(got, c.want) || len(c.r.Beyond) > 1 {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestProcessCPUSeesEndedThreads(t *testing.T) {
	t.Parallel()
	before, ok := processCPU(os.Getpid())
	if !ok {
		t.Fatal("no clock of this process")
	}
	for until := time.Now().Add(30 * time.Millisecond); time.Now().Before(until); {
	}
	if after, _ := processCPU(os.Getpid()); after <= before {
		t.Errorf("%v after %v", after, before)
	}
	if _, ok := processCPU(0); ok {
		t.Error("a clock of no process")
	}
}
