// Package selftest measures what sampling costs on this machine and how exact it is: it
// runs the sampler and its sensors process as a run does, outside of any, and says whether
// the goals are met.
package selftest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/sampler"
)

// The goals of Run: what sampling may cost a training, and how exact it is.
const (
	jitterGoalMS = 5.0
	driftGoalMS  = 5.0
	cpuGoalPct   = 0.3
	pssGoalMiB   = 30.0
)

// Options are those of Run.
type Options struct {
	// Exe is our own binary, for the sensors process.
	Exe string
	// For is how long is sampled; Tick is the time between rows, a second by default.
	For, Tick time.Duration
}

// Report is what sampling costs on this machine and what it gives, schema
// sparkrun.selftest/1.
type Report struct {
	Schema string  `json:"schema"`
	ForS   float64 `json:"for_s"`
	TickS  float64 `json:"tick_s"`
	// Ticks were taken, Missed were not.
	Ticks  int `json:"ticks"`
	Missed int `json:"missed"`
	// How much later than its turn a row was taken, against the most punctual one.
	JitterP50MS float64 `json:"jitter_p50_ms"`
	JitterP99MS float64 `json:"jitter_p99_ms"`
	JitterMaxMS float64 `json:"jitter_max_ms"`
	// DriftMS is by how much rows came later at the end than at the beginning.
	DriftMS float64 `json:"drift_ms"`
	// Processes are this one and the sensors process; the shares are of one core.
	Processes []Process  `json:"processes"`
	CPUPct    sample.Num `json:"cpu_pct"`
	PSSMiB    sample.Num `json:"pss_mib"`
	// BusyPct is how busy the machine's processors were: jitter on a full machine is that of
	// a full machine.
	BusyPct sample.Num `json:"busy_pct"`
	// Answered, Partly, Absent and Failed name readings by their column in telemetry.csv:
	// those in every row but the first, in some, and in none. Failed says which source
	// failed and why.
	Answered []string          `json:"answered"`
	Partly   map[string]int    `json:"partly,omitempty"`
	Absent   []string          `json:"absent"`
	Failed   map[string]string `json:"failed,omitempty"`
	GPU      string            `json:"gpu"`
	// Folder is where the files were written, and how long the disk took for them.
	Folder    string  `json:"folder"`
	Syncs     int     `json:"syncs"`
	SyncP50MS float64 `json:"sync_p50_ms"`
	SyncMaxMS float64 `json:"sync_max_ms"`
	// Events are what the sampler found worth telling.
	Events []string `json:"events"`
	// Beyond says which goals were missed; empty is good.
	Beyond []string `json:"beyond"`
}

// Process is the cost of one process.
type Process struct {
	Name   string     `json:"name"`
	PID    int        `json:"pid"`
	CPUPct sample.Num `json:"cpu_pct"`
	PSSMiB sample.Num `json:"pss_mib"`
}

// test is a self-test under way.
type test struct {
	tick time.Duration

	mu     sync.Mutex
	first  time.Time
	turns  int64
	missed int
	late   []float64 // ms after the first row's schedule
	rows   int
	busy   []float64
	cells  map[string]int
	failed map[string]string
	syncs  []float64 // ms
	events []string
}

// Run samples as a run does, with a sensors process of its own and in a folder for
// temporary files that is removed after, and reports what that costs. An error means that
// nothing could be measured; goals that were missed are in the report.
func Run(ctx context.Context, o Options) (Report, error) {
	if o.Tick == 0 {
		o.Tick = sampler.DefaultTick
	}
	if o.For < 3*o.Tick {
		return Report{}, fmt.Errorf("a self-test takes at least %v", 3*o.Tick)
	}
	dir, err := os.MkdirTemp("", "sparkrun-self-test-")
	if err != nil {
		return Report{}, fmt.Errorf("making a folder for the self-test: %w", err)
	}
	defer os.RemoveAll(dir)
	t := &test{tick: o.Tick, cells: map[string]int{}, failed: map[string]string{}}
	var child func() int
	var ready sync.WaitGroup
	ready.Add(1)
	samp, err := sampler.Start(ctx, sampler.Options{
		Exe: o.Exe, Clock: clock.Start(), Dir: dir, Tick: o.Tick, Root: "/",
		// This process and its child stand for a training.
		Tree: func() []int {
			ready.Wait()
			return slices.DeleteFunc([]int{os.Getpid(), child()}, func(pid int) bool { return pid == 0 })
		},
		Events: t.event, OnSample: t.sample, OnSync: t.sync,
	})
	if err != nil {
		return Report{}, fmt.Errorf("the self-test: %w", err)
	}
	child = samp.ChildPID
	ready.Done()
	defer samp.Stop()

	// What starting costs is not what sampling costs.
	begin, done := context.WithTimeout(ctx, 5*time.Second)
	_, _ = samp.First(begin)
	done()
	settle := time.NewTimer(o.Tick)
	defer settle.Stop()
	end := time.NewTimer(o.Tick + o.For)
	defer end.Stop()
	select {
	case <-settle.C:
	case <-ctx.Done():
		return Report{}, interrupted(ctx)
	}
	pids := map[string]int{"sampler": os.Getpid(), "sensors": samp.ChildPID()}
	before, start := map[string]time.Duration{}, time.Now()
	for name, pid := range pids {
		before[name], _ = processCPU(pid)
	}
	t.begin()
	select {
	case <-end.C:
	case <-ctx.Done():
		return Report{}, interrupted(ctx)
	}
	length := time.Since(start)
	r := t.report()
	r.ForS, r.Folder = length.Seconds(), dir
	for _, name := range []string{"sampler", "sensors"} {
		p := Process{Name: name, PID: pids[name]}
		if used, ok := processCPU(p.PID); ok && p.PID != 0 {
			p.CPUPct = sample.Known(100 * (used - before[name]).Seconds() / length.Seconds())
		}
		p.PSSMiB = pssMiB(p.PID)
		r.Processes = append(r.Processes, p)
	}
	if samp.ChildPID() != pids["sensors"] {
		r.Beyond = append(r.Beyond, "the sensors process was started again")
	}
	r.GPU = deviceName(ctx, samp)
	samp.Stop()
	r.judge()
	return r, nil
}

func interrupted(ctx context.Context) error {
	return fmt.Errorf("the self-test was interrupted: %w", context.Cause(ctx))
}

func deviceName(ctx context.Context, samp *sampler.Sampler) string {
	soon, done := context.WithTimeout(ctx, time.Second)
	defer done()
	d, err := samp.Device(soon)
	switch {
	case err != nil:
		return "unknown: " + err.Error()
	case d.Source == "none":
		return "none: " + d.Err
	}
	return d.Name + " by " + d.Source
}

// begin forgets what came while it started.
func (t *test) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.first, t.turns, t.missed, t.rows, t.late, t.syncs, t.busy = time.Time{}, 0, 0, 0, nil, nil, nil
	clear(t.cells)
}

func (t *test) event(e event.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, string(e.Kind)+": "+e.Msg)
}

func (t *test) sync(_ string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.syncs = append(t.syncs, took.Seconds()*1000)
}

// notReadings are the columns that say nothing about a machine at rest.
var notReadings = []string{"t", "mono_s", "attempt", "step", "step_time_s", "cgroup_current_kib", "missed", "tokens"}

func (t *test) sample(s *sample.Sample) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first.IsZero() {
		t.first, t.turns = s.T, 0
	} else {
		t.turns += int64(s.Missed) + 1
		t.missed += s.Missed
	}
	t.late = append(t.late, (s.T.Sub(t.first)-time.Duration(t.turns)*t.tick).Seconds()*1000)
	t.rows++
	if s.CPUBusyPct.OK {
		t.busy = append(t.busy, s.CPUBusyPct.V)
	}
	for i, cell := range s.Row() {
		if cell != "" {
			t.cells[sample.Header[i]]++
		}
	}
	for source, why := range s.Failed {
		t.failed[source] = why
	}
}

// report says what was seen, without the cost.
func (t *test) report() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := Report{
		Schema: "sparkrun.selftest/1", TickS: t.tick.Seconds(), Ticks: t.rows, Missed: t.missed,
		Answered: []string{}, Absent: []string{}, Partly: map[string]int{}, Failed: t.failed,
		Events: slices.Clone(t.events), Syncs: len(t.syncs),
	}
	if len(t.late) > 0 {
		third := max(len(t.late)/3, 1)
		r.DriftMS = percentile(t.late[len(t.late)-third:], 50) - percentile(t.late[:third], 50)
		punctual := slices.Min(t.late)
		late := make([]float64, len(t.late))
		for i, v := range t.late {
			late[i] = v - punctual
		}
		r.JitterP50MS, r.JitterP99MS, r.JitterMaxMS = percentile(late, 50), percentile(late, 99), slices.Max(late)
	}
	if len(t.syncs) > 0 {
		r.SyncP50MS, r.SyncMaxMS = percentile(t.syncs, 50), slices.Max(t.syncs)
	}
	if len(t.busy) > 0 {
		r.BusyPct = sample.Known(percentile(t.busy, 50))
	}
	for _, name := range sample.Header {
		if slices.Contains(notReadings, name) {
			continue
		}
		switch n := t.cells[name]; {
		case n == 0:
			r.Absent = append(r.Absent, name)
		case n == t.rows:
			r.Answered = append(r.Answered, name)
		default:
			r.Partly[name] = n
		}
	}
	return r
}

// judge adds up the cost and says which goals were missed.
func (r *Report) judge() {
	r.CPUPct, r.PSSMiB = sample.Known(0), sample.Known(0)
	for _, p := range r.Processes {
		r.CPUPct = sum(r.CPUPct, p.CPUPct)
		r.PSSMiB = sum(r.PSSMiB, p.PSSMiB)
	}
	beyond := func(missed bool, format string, args ...any) {
		if missed {
			r.Beyond = append(r.Beyond, fmt.Sprintf(format, args...))
		}
	}
	beyond(r.Ticks == 0, "no row was taken")
	beyond(r.Missed > 0, "%d ticks were missed", r.Missed)
	beyond(r.JitterP99MS >= jitterGoalMS, "p99 of the jitter is %.1f ms, not below %g ms", r.JitterP99MS, jitterGoalMS)
	beyond(math.Abs(r.DriftMS) >= driftGoalMS, "the schedule drifts by %.1f ms, not less than %g ms", r.DriftMS, driftGoalMS)
	beyond(!r.CPUPct.OK, "what it costs is not known")
	beyond(r.CPUPct.OK && r.CPUPct.V >= cpuGoalPct, "sampling takes %.2f %% of one core, not less than %g %%", r.CPUPct.V, cpuGoalPct)
	beyond(r.PSSMiB.OK && r.PSSMiB.V >= pssGoalMiB, "sampling takes %.1f MiB, not less than %g MiB", r.PSSMiB.V, pssGoalMiB)
	for _, source := range slices.Sorted(maps.Keys(r.Failed)) {
		beyond(true, "%s: %s", source, r.Failed[source])
	}
	if r.Beyond == nil {
		r.Beyond = []string{}
	}
}

func sum(a, b sample.Num) sample.Num {
	if !a.OK || !b.OK {
		return sample.Num{}
	}
	return sample.Known(a.V + b.V)
}

// percentile is by nearest rank.
func percentile(v []float64, p float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[max(int(math.Ceil(p/100*float64(len(s))))-1, 0)]
}

// Text writes the report as a person reads it.
func (r *Report) Text(w io.Writer) error {
	var b bytes.Buffer
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s "+format+"\n", append([]any{what}, args...)...)
	}
	pct := func(n sample.Num) string { return textOf(n, 2, " %") }
	mib := func(n sample.Num) string { return textOf(n, 1, " MiB") }
	line("sampled", "%.0f s, a row every %v, on a machine that was %s busy", r.ForS, time.Duration(r.TickS*float64(time.Second)), textOf(r.BusyPct, 0, " %"))
	line("ticks", "%d taken, %d missed", r.Ticks, r.Missed)
	line("jitter", "p50 %.2f ms, p99 %.2f ms, max %.2f ms (goal: p99 below %g ms)", r.JitterP50MS, r.JitterP99MS, r.JitterMaxMS, jitterGoalMS)
	line("drift", "%+.2f ms (goal: below %g ms)", r.DriftMS, driftGoalMS)
	var cpu, pss []string
	for _, p := range r.Processes {
		cpu = append(cpu, p.Name+" "+pct(p.CPUPct))
		pss = append(pss, p.Name+" "+mib(p.PSSMiB))
	}
	line("cpu", "%s, together %s of one core (goal: below %g %%)", strings.Join(cpu, ", "), pct(r.CPUPct), cpuGoalPct)
	line("memory", "%s, together %s (goal: below %g MiB)", strings.Join(pss, ", "), mib(r.PSSMiB), pssGoalMiB)
	line("gpu", "%s", r.GPU)
	line("answered", "%s", listed(r.Answered))
	for _, name := range slices.Sorted(maps.Keys(r.Partly)) {
		line("partly", "%s in %d of %d rows", name, r.Partly[name], r.Ticks)
	}
	line("absent", "%s", listed(r.Absent))
	for _, source := range slices.Sorted(maps.Keys(r.Failed)) {
		line("failed", "%s: %s", source, r.Failed[source])
	}
	line("disk", "%d syncs in %s, p50 %.1f ms, max %.1f ms", r.Syncs, r.Folder, r.SyncP50MS, r.SyncMaxMS)
	for _, e := range r.Events {
		line("event", "%s", e)
	}
	if len(r.Beyond) == 0 {
		line("result", "within all goals")
	}
	for _, s := range r.Beyond {
		line("result", "not within the goals: %s", s)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func textOf(n sample.Num, prec int, unit string) string {
	if !n.OK {
		return "unknown"
	}
	return strconv.FormatFloat(n.V, 'f', prec, 64) + unit
}

// processCPU is the CPU time of a process and of all threads it ever had, in nanoseconds:
// the kernel has a clock for it, whose number is made of the pid.
func processCPU(pid int) (time.Duration, bool) {
	const perProcess = 2 // CPUCLOCK_SCHED, not per thread
	var ts unix.Timespec
	if pid <= 0 || unix.ClockGettime(int32(^pid<<3|perProcess), &ts) != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}

// pssMiB is a process's memory, what it shares with others divided among them.
func pssMiB(pid int) sample.Num {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return sample.Num{}
	}
	_, rest, found := bytes.Cut(text, []byte("\nPss:"))
	f := bytes.Fields(rest)
	if !found || len(f) == 0 {
		return sample.Num{}
	}
	kib, err := strconv.ParseFloat(string(f[0]), 64)
	if err != nil {
		return sample.Num{}
	}
	return sample.Known(kib / 1024)
}
