package sampler

import (
	"context"
	"encoding/csv"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// run is a sampler under test and what it says.
type run struct {
	*Sampler
	t       *testing.T
	dir     string
	samples chan sample.Sample

	mu     sync.Mutex
	events []event.Event
	news   chan struct{}
}

func startRun(t *testing.T, opts Options) *run {
	t.Helper()
	r := &run{t: t, dir: t.TempDir(), samples: make(chan sample.Sample, 10_000), news: make(chan struct{}, 100_000)}
	opts.Clock, opts.Dir = clock.Start(), r.dir
	opts.OnSample = func(s *sample.Sample) { r.samples <- *s }
	opts.Events = func(e event.Event) {
		r.mu.Lock()
		r.events = append(r.events, e)
		r.mu.Unlock()
		r.news <- struct{}{}
	}
	s, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Sampler = s
	t.Cleanup(s.Stop)
	return r
}

// until waits for a sample.
func (r *run) until(what string, want func(sample.Sample) bool) sample.Sample {
	r.t.Helper()
	limit := time.After(15 * time.Second)
	for {
		select {
		case s := <-r.samples:
			if want(s) {
				return s
			}
		case <-limit:
			r.t.Fatalf("no sample within 15 s: %s", what)
		}
	}
}

// event waits for an event.
func (r *run) event(kind event.Kind, text string) event.Event {
	r.t.Helper()
	limit := time.After(15 * time.Second)
	for {
		for _, e := range r.all(kind) {
			if strings.Contains(e.Msg, text) {
				return e
			}
		}
		select {
		case <-r.news:
		case <-limit:
			r.t.Fatalf("no event %s with %q within 15 s, but %+v", kind, text, r.all(""))
		}
	}
}

func (r *run) all(kind event.Kind) []event.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []event.Event
	for _, e := range r.events {
		if kind == "" || e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// telemetry returns the rows of the finished file by column name.
func (r *run) telemetry() []map[string]string {
	r.t.Helper()
	rows, err := csv.NewReader(strings.NewReader(content(r.t, r.dir, "telemetry.csv"))).ReadAll()
	if err != nil {
		r.t.Fatal(err)
	}
	if !slices.Equal(rows[0], sample.Header) {
		r.t.Fatalf("header %v", rows[0])
	}
	var out []map[string]string
	for _, cells := range rows[1:] {
		m := make(map[string]string)
		for i, name := range rows[0] {
			m[name] = cells[i]
		}
		out = append(out, m)
	}
	return out
}

func (r *run) thermal() []string {
	return strings.Split(strings.TrimSuffix(content(r.t, r.dir, "thermal.csv"), "\n"), "\n")
}

var thermalForm = regexp.MustCompile(`^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, (\d+|\[N/A\]), (\d+\.\d\d W|\[N/A\])$`)

func TestARunHasBothFiles(t *testing.T) {
	t.Parallel()
	cgroup := t.TempDir()
	writeFile(t, filepath.Join(cgroup, "memory.current"), "1048576\n")
	r := startRun(t, Options{
		Exe:      machine{scenario: []string{"at 0s temp 68 power 97.31 sm 2200 util 99 reasons 0x4 proc 1 100 proc " + itoa(os.Getpid()) + " 2048"}}.exe(t),
		Tick:     50 * time.Millisecond,
		Interval: 200 * time.Millisecond,
		Root:     procWith(t, spark(t)),
		Tree:     func() []int { return []int{os.Getpid(), 1 << 30} },
		Progress: func() (int, sample.Num, sample.Num, time.Time) {
			return 2, sample.Known(340), sample.Known(1.25), time.Time{}
		},
		Tokens:    func() sample.Num { return sample.Known(4096) },
		CgroupDir: func() string { return cgroup },
	})
	d, err := r.Device(t.Context())
	if err != nil || d.Name != "NVIDIA GB10" {
		t.Errorf("device %+v, %v", d, err)
	}
	if g, ok := r.First(t.Context()); !ok || g.TempC.V != 68 {
		t.Errorf("first reading %+v %v", g, ok)
	}
	if pid := r.ChildPID(); pid == 0 || unix.Kill(pid, 0) != nil {
		t.Errorf("pid of the sensors process: %d", pid)
	}
	for range 20 {
		r.until("a reading", func(s sample.Sample) bool { return s.TempC.OK })
	}
	last, ok := r.Last()
	if !ok || last.Attempt != 2 || last.MemAvailableKiB.V != 3000 || last.GPUTreeMiB.V != 2048 || last.GPUOtherMiB.V != 100 || last.CgroupKiB.V != 1024 {
		t.Errorf("last = %+v", last)
	}
	if w := r.Window(time.Minute); len(w) < 20 || w[len(w)-1].T.Before(w[0].T) {
		t.Errorf("window of %d", len(w))
	}
	r.Stop()
	r.Stop()
	if pid := r.ChildPID(); pid != 0 {
		t.Errorf("the sensors process %d is still there", pid)
	}

	rows := r.telemetry()
	known := 0
	for i, row := range rows {
		if i > 0 && row["t"] <= rows[i-1]["t"] {
			t.Errorf("row %d at %s after %s", i, row["t"], rows[i-1]["t"])
		}
		if row["temp_gpu_c"] == "" {
			continue
		}
		known++
		for name, want := range map[string]string{
			"attempt": "2", "step": "340", "step_time_s": "1.25", "temp_gpu_c": "68", "power_gpu_w": "97.31",
			"temp_zone_max_c": "78.5", "temp_nvme_c": "", "clock_sm_mhz": "2200", "clock_mem_mhz": "", "util_gpu_pct": "99",
			"reasons_hex": "0x4", "mem_available_kib": "3000", "psi_mem_some10": "1.5", "psi_mem_full10": "0.25",
			"gpu_tree_mib": "2048", "gpu_other_mib": "100", "cgroup_current_kib": "1024", "vm_oom_kill": "7", "load1": "0.64",
			"psi_cpu_some10": "3.25", "psi_io_full10": "4.5", "swap_in_pages": "11", "swap_out_pages": "12", "tokens": "4096",
		} {
			if row[name] != want {
				t.Errorf("row %d: %s = %q, want %q", i, name, row[name], want)
			}
		}
	}
	// The tree's figures may be left out for what they cost.
	trees := slices.DeleteFunc(rows, func(row map[string]string) bool { return row["tree_procs"] == "" })
	if len(trees) == 0 {
		t.Error("no row has figures of the tree")
	}
	for i, row := range trees {
		if row["tree_procs"] != "1" || row["tree_cpu_s"] == "" || row["tree_read_b"] == "" || row["tree_write_b"] == "" || row["tree_net_b"] == "" {
			t.Errorf("row of the tree: %v", row)
		}
		if i > 0 && number(t, row["tree_cpu_s"]) < number(t, trees[i-1]["tree_cpu_s"]) {
			t.Errorf("CPU time fell from %s to %s", trees[i-1]["tree_cpu_s"], row["tree_cpu_s"])
		}
	}
	if known < 20 {
		t.Errorf("%d of %d rows have a reading", known, len(rows))
	}

	lines := r.thermal()
	if lines[0] != "timestamp,temperature.gpu,power.draw" {
		t.Errorf("header %q", lines[0])
	}
	for i, line := range lines[1:] {
		if !thermalForm.MatchString(line) || !strings.HasSuffix(line, ", 68, 97.31 W") {
			t.Errorf("row %q", line)
		}
		if i > 0 && line[:23] <= lines[i][:23] {
			t.Errorf("row %q after %q", line, lines[i])
		}
	}
	if len(lines) < 5 {
		t.Errorf("%d lines in thermal.csv", len(lines))
	}
	if gaps := r.all(event.SensorGap); len(gaps) != 0 {
		t.Errorf("gaps: %+v", gaps)
	}
	if absent := r.all(event.SensorAbsent); len(absent) != 1 || !strings.Contains(absent[0].Msg, "this machine does not report: clock_mem_mhz, ") || !strings.Contains(absent[0].Msg, "power_sys_w, temp_nvme_c") {
		t.Errorf("absent: %+v", absent)
	}
}

func number(t *testing.T, cell string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(cell, 64)
	if err != nil {
		t.Error(err)
	}
	return v
}

func itoa(n int) string { return sample.Known(float64(n)).CSV(0) }

// procWith adds a /proc to a root.
func procWith(t *testing.T, root string) string {
	t.Helper()
	for name, text := range map[string]string{
		"meminfo":         "MemTotal: 4000 kB\nMemFree: 1000 kB\nMemAvailable: 3000 kB\nCached: 500 kB\nShmem: 20 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
		"pressure/memory": "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=1\n",
		"pressure/cpu":    "some avg10=3.25 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"pressure/io":     "some avg10=9.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=4.50 avg60=0.00 avg300=0.00 total=1\n",
		"vmstat":          "nr_free_pages 1\npswpin 11\npswpout 12\noom_kill 7\n",
		"loadavg":         "0.64 0.60 0.50 1/100 42\n",
		"stat":            "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 100 0 100 700 100 0 0 0 0 0\nintr 1\n",
	} {
		writeFile(t, filepath.Join(root, "proc", name), text)
	}
	return root
}

func TestAKilledSensorsProcessIsAGap(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{
		Exe: machine{scenario: []string{"at 0s temp 68"}}.exe(t), Tick: 50 * time.Millisecond, Interval: time.Hour, Root: spark(t),
	})
	if _, ok := r.First(t.Context()); !ok {
		t.Fatal("no reading")
	}
	first := r.ChildPID()
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	began := r.event(event.SensorGap, "sensor readings stopped")
	if !strings.Contains(began.Msg, "signal: killed") || began.Level != event.Warn {
		t.Errorf("gap = %+v", began)
	}
	r.until("a row without a reading", func(s sample.Sample) bool { return s.T.After(began.T) && !s.TempC.OK })
	r.until("a reading again", func(s sample.Sample) bool { return s.T.After(began.T) && s.TempC.OK })
	if pid := r.ChildPID(); pid == 0 || pid == first {
		t.Errorf("pid %d, was %d", pid, first)
	}
	over := r.event(event.SensorGap, "came back after")
	if lost, ok := over.Data["lost_s"].(float64); !ok || lost < 0.5 || lost > 3 {
		t.Errorf("gap over = %+v", over)
	}
	if n := len(r.all(event.SensorGap)); n != 2 {
		t.Errorf("%d gap events: %+v", n, r.all(event.SensorGap))
	}
	if absent := r.all(event.SensorAbsent); len(absent) != 2 {
		t.Errorf("what is absent was told again: %+v", absent)
	}
}

func TestAMachineWithoutAGPUIsToldOnce(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{
		Exe:  machine{lib: "/nonexistent/libnvidia-ml.so.1"}.exe(t),
		Tick: 20 * time.Millisecond, Interval: 100 * time.Millisecond, Root: procWith(t, spark(t)),
	})
	if d, err := r.Device(t.Context()); err != nil || d.Source != "none" || d.ErrKind != "no-library" {
		t.Errorf("device %+v, %v", d, err)
	}
	for range 30 {
		r.until("the zones", func(s sample.Sample) bool { return s.ZoneMaxC.V == 78.5 && !s.TempC.OK && s.MemAvailableKiB.OK })
	}
	r.Stop()
	for _, row := range r.thermal()[1:] {
		if !strings.HasSuffix(row, ", [N/A], [N/A]") {
			t.Errorf("row %q", row)
		}
	}
	absent := r.all(event.SensorAbsent)
	if len(absent) != 2 || absent[0].Level != event.Info || !strings.Contains(absent[0].Msg, "no GPU readings: ") {
		t.Errorf("absent: %+v", absent)
	}
	if gaps := r.all(event.SensorGap); len(gaps) != 0 {
		t.Errorf("gaps: %+v", gaps)
	}
}

func TestASensorsProcessThatCannotStart(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{Exe: "/nonexistent/sparkrun", Tick: 20 * time.Millisecond, Interval: time.Hour})
	r.event(event.SensorGap, "cannot be started")
	for range 10 {
		r.until("a row", func(s sample.Sample) bool { return s.MemAvailableKiB.OK && !s.TempC.OK })
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := r.Device(ctx); err == nil || d.Source != "none" {
		t.Errorf("device %+v, %v", d, err)
	}
	if _, ok := r.First(ctx); ok {
		t.Error("a reading from nowhere")
	}
	r.Stop()
	if lines := r.thermal(); len(lines) != 2 || !strings.HasSuffix(lines[1], ", [N/A], [N/A]") {
		t.Errorf("thermal.csv: %q", lines)
	}
}

func TestASensorsProcessOfNonsense(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "sparkrun")
	writeFile(t, exe, "#!/bin/sh\necho 'symbol lookup error: undefined symbol: nvmlInit_v2' >&2\necho nonsense\nexit 127\n")
	if err := os.Chmod(exe, 0o700); err != nil {
		t.Fatal(err)
	}
	r := startRun(t, Options{Exe: exe, Tick: 20 * time.Millisecond, Interval: time.Hour})
	e := r.event(event.SensorGap, "which is no record")
	if !strings.Contains(e.Msg, "symbol lookup error") {
		t.Errorf("gap = %+v", e)
	}
}

func TestWithoutSensors(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{Tick: 20 * time.Millisecond, Interval: 30 * time.Millisecond})
	if d, err := r.Device(t.Context()); err != nil || d.Source != "none" {
		t.Errorf("device %+v, %v", d, err)
	}
	for range 5 {
		r.until("a row", func(s sample.Sample) bool { return s.MemTotalKiB.OK })
	}
	r.Stop()
	if len(r.thermal()) < 3 || len(r.telemetry()) < 5 {
		t.Errorf("%d and %d rows", len(r.thermal())-1, len(r.telemetry()))
	}
}

func TestStopDoesNotWaitForWhatHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	r := startRun(t, Options{Tick: 20 * time.Millisecond, Interval: time.Hour, Tree: func() []int { <-release; return nil }})
	start := time.Now()
	r.Stop()
	if took := time.Since(start); took > 3*stopWait {
		t.Errorf("Stop took %v", took)
	}
}

func TestAnUnusableDirectoryIsAnEvent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var mu sync.Mutex
	var events []event.Event
	s, err := Start(t.Context(), Options{
		Clock: clock.Start(), Dir: filepath.Join(dir, "gone"), Tick: 10 * time.Millisecond, Interval: time.Hour,
		Events: func(e event.Event) { mu.Lock(); events = append(events, e); mu.Unlock() },
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if w := s.Window(time.Minute); len(w) > 20 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.Stop()
	mu.Lock()
	defer mu.Unlock()
	n := 0
	for _, e := range events {
		if e.Kind == event.Internal && strings.Contains(e.Msg, "telemetry.csv cannot be written") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d events: %+v", n, events)
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{
		"no directory":      {Clock: clock.Start()},
		"no clock":          {Dir: "x"},
		"negative interval": {Clock: clock.Start(), Dir: "x", Interval: -1},
	} {
		if _, err := Start(t.Context(), opts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
