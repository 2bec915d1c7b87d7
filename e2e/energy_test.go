package e2e

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkrun/e2e/fakenvml"
)

// powerPlan is a scenario that grows while the run goes on: what the GPU draws from when.
type powerPlan struct {
	t     *testing.T
	path  string
	t0    time.Time
	lines []string
	at    []time.Time
	watts []float64
}

const idleWatts, workWatts = 12.0, 80.0

func newPowerPlan(t *testing.T, dir, more string) *powerPlan {
	t.Helper()
	p := &powerPlan{t: t, path: filepath.Join(dir, "scenario"), t0: time.Now()}
	p.lines = []string{fmt.Sprintf("at 0s temp 55 power %v sm 2411 util 0 pstate 0 reasons 0x0 %s", idleWatts, more)}
	p.at, p.watts = []time.Time{p.t0}, []float64{idleWatts}
	p.write()
	return p
}

func (p *powerPlan) env(lib string) []string {
	return []string{
		"SPARKRUN_NVML_LIBRARY=" + lib, "FAKENVML_SCENARIO=" + p.path,
		fmt.Sprintf("FAKENVML_T0=%.3f", float64(p.t0.UnixMilli())/1000),
	}
}

func (p *powerPlan) write() {
	p.t.Helper()
	if err := os.WriteFile(p.path+".new", []byte(strings.Join(p.lines, "\n")+"\n"), 0o644); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(p.path+".new", p.path); err != nil {
		p.t.Fatal(err)
	}
}

// soon lets something happen in a moment, and waits for it: what has been counted by then
// must not change.
func (p *powerPlan) soon(words string) time.Time {
	p.t.Helper()
	at := time.Now().Add(400 * time.Millisecond).Truncate(time.Millisecond)
	p.lines = append(p.lines, fmt.Sprintf("at %.3fs %s", at.Sub(p.t0).Seconds(), words))
	p.write()
	time.Sleep(time.Until(at))
	return at
}

func (p *powerPlan) draw(watts, util float64) {
	p.t.Helper()
	at := p.soon(fmt.Sprintf("power %v util %v", watts, util))
	p.at, p.watts = append(p.at, at), append(p.watts, watts)
}

// joules is what was drawn from a to b.
func (p *powerPlan) joules(a, b time.Time) float64 {
	sum := 0.0
	for i, from := range p.at {
		to := b
		if i+1 < len(p.at) && p.at[i+1].Before(b) {
			to = p.at[i+1]
		}
		if from.Before(a) {
			from = a
		}
		sum += p.watts[i] * max(0, to.Sub(from).Seconds())
	}
	return sum
}

// energyTrainer loads, makes 24 steps, says so, and leaves when it is told to. It is out of
// memory with rows of more than 2048 tokens.
const energyTrainer = `import argparse, os, sys, time
p = argparse.ArgumentParser()
p.add_argument("--max_length", type=int)
p.add_argument("--output_dir")
a = p.parse_args()
n = os.environ["SPARKRUN_ATTEMPT"]
def wait(name):
    open("at-" + name + n, "w").close()
    while not os.path.exists("go-" + name + n):
        time.sleep(0.02)
wait("start")
for i in range(1, 25):
    time.sleep(0.1)
    print("{'loss': 2.0, 'step': %d, 'num_tokens': %d, 'epoch': 0.1}" % (i, 4096 * i), flush=True)
    print("step %d/24 loss 2.0" % i, flush=True)
    if i == 12:
        wait("half")
wait("end")
if a.max_length > 2048:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 119.70 GiB of which 1.25 GiB is free.")
`

type energyRun struct {
	Attempts []struct {
		Start, End struct{ T time.Time }
		Energy     *energyFigures
	}
	Summary struct{ Energy *energyFigures }
}

type energyFigures struct {
	GPU       float64  `json:"gpu_j"`
	KnownFor  float64  `json:"gpu_known_s"`
	Source    string   `json:"gpu_source"`
	Estimate  bool     `json:"gpu_estimate"`
	Idle      *float64 `json:"gpu_idle_w"`
	AboveIdle *float64 `json:"gpu_above_idle_j"`
	PerStep   *float64 `json:"gpu_j_per_step"`
	PerToken  *float64 `json:"gpu_j_per_token"`
	SoC       *float64 `json:"soc_j"`
	Resets    int      `json:"counter_resets"`
}

// startEnergy starts a run whose GPU follows plan.
func startEnergy(t *testing.T, dir string, plan *powerPlan, length string) *proc {
	t.Helper()
	writeScript(t, dir, "train.py", energyTrainer)
	return startEnv(t, dir, plan.env(fakenvml.Build(t)), "--no-preflight", "--no-guard", "--telemetry-interval", "100ms",
		"--", "python3", "train.py", "--max_length", length, "--output_dir", "out")
}

// play leads attempt n through its work; half is what happens in the middle of it.
func (p *powerPlan) play(dir string, n int, half func()) {
	p.t.Helper()
	at := func(name string) {
		until(p.t, fmt.Sprintf("attempt %d at its %s", n, name), func() bool {
			_, err := os.Stat(filepath.Join(dir, fmt.Sprintf("at-%s%d", name, n)))
			return err == nil
		})
	}
	goOn := func(name string) { writeScript(p.t, dir, fmt.Sprintf("go-%s%d", name, n), "") }
	at("start")
	p.draw(workWatts, 95)
	goOn("start")
	at("half")
	half()
	goOn("half")
	at("end")
	p.draw(idleWatts, 0)
	goOn("end")
}

func readEnergy(t *testing.T, p *proc) energyRun {
	t.Helper()
	b, err := os.ReadFile(p.file("run.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r energyRun
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// stepTimes are when the steps of an attempt were seen.
func stepTimes(t *testing.T, p *proc, attempt int) (first, last time.Time, n int) {
	t.Helper()
	f, err := os.Open(p.file("progress.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var s struct {
			T       time.Time
			Attempt int
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if s.Attempt != attempt {
			continue
		}
		if n == 0 {
			first = s.T
		}
		last = s.T
		n++
	}
	return first, last, n
}

func about(t *testing.T, what string, got *float64, want, part float64) {
	t.Helper()
	if got == nil || math.Abs(*got-want) > part*want {
		have := "nothing"
		if got != nil {
			have = fmt.Sprint(*got)
		}
		t.Errorf("%s: %s, want about %.4g", what, have, want)
	}
}

func summaryText(t *testing.T, p *proc) string {
	t.Helper()
	b, err := os.ReadFile(p.file("summary.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestEnergyByTheCounter: joules of each attempt, a step and a token, and above idle, with a
// counter that begins anew in the middle of the second attempt.
func TestEnergyByTheCounter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plan := newPowerPlan(t, dir, "energy 123456789")
	p := startEnergy(t, dir, plan, "4096")
	plan.play(dir, 1, func() {})
	plan.play(dir, 2, func() { plan.soon("energy 7") })
	if got := p.wait(60 * time.Second); got != 0 {
		t.Fatalf("status %d; stderr %s", got, p.err)
	}
	r := readEnergy(t, p)
	if len(r.Attempts) != 2 || r.Attempts[0].Energy == nil || r.Attempts[1].Energy == nil || r.Summary.Energy == nil {
		t.Fatalf("%+v", r)
	}
	sum := 0.0
	for i, a := range r.Attempts {
		e := a.Energy
		name := fmt.Sprintf("attempt %d: ", i+1)
		took := a.End.T.Sub(a.Start.T).Seconds()
		// What comes before a run's first reading is not known: the GPU is idle then.
		want := plan.joules(a.Start.T, a.End.T) - idleWatts*(took-e.KnownFor)
		about(t, name+"joules", &e.GPU, want, 0.02)
		about(t, name+"idle", e.Idle, idleWatts, 0.01)
		about(t, name+"above idle", e.AboveIdle, want-idleWatts*e.KnownFor, 0.03)
		first, last, n := stepTimes(t, p, i+1)
		step := plan.joules(first, last) / float64(n-1)
		about(t, name+"a step", e.PerStep, step, 0.04)
		about(t, name+"a token", e.PerToken, step/4096, 0.04)
		if e.SoC != nil {
			t.Errorf("%sthere is no firmware to tell of the SoC: %v", name, *e.SoC)
		}
		if e.Resets != i {
			t.Errorf("%s%d resets", name, e.Resets)
		}
		sum += e.GPU
	}
	if e := r.Attempts[0].Energy; e.Source != "counter" || e.Estimate {
		t.Errorf("source %s, estimate %v", e.Source, e.Estimate)
	}
	about(t, "total", &r.Summary.Energy.GPU, sum, 0.001)
	about(t, "total above idle", r.Summary.Energy.AboveIdle, *r.Attempts[0].Energy.AboveIdle+*r.Attempts[1].Energy.AboveIdle, 0.001)
	text := summaryText(t, p)
	for _, want := range []string{" J on the GPU rail (NVML)", " J a step", " a token", " of it idle draw"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n > 8 {
		t.Errorf("%d lines\n%s", n, text)
	}
	about(t, "from telemetry", &r.Attempts[0].Energy.GPU, telemetryJoules(t, p, "1", r.Attempts[0].End.T), 0.1)
}

// telemetryJoules is what telemetry.csv says of an attempt.
func telemetryJoules(t *testing.T, p *proc, attempt string, end time.Time) float64 {
	t.Helper()
	f, err := os.Open(p.file("telemetry.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	var first, last float64
	for _, row := range rows[1:] {
		at, err := time.Parse(time.RFC3339, row[column["t"]])
		if err != nil {
			t.Fatal(err)
		}
		j, err := strconv.ParseFloat(row[column["energy_j"]], 64)
		if err != nil || row[column["attempt"]] != attempt || at.After(end) {
			continue
		}
		if first == 0 {
			first = j
		}
		last = j
	}
	return last - first
}

// TestEnergyWithoutACounter is an estimate, and says so.
func TestEnergyWithoutACounter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plan := newPowerPlan(t, dir, "fail energy 3")
	p := startEnergy(t, dir, plan, "1024")
	plan.play(dir, 1, func() {})
	if got := p.wait(60 * time.Second); got != 0 {
		t.Fatalf("status %d; stderr %s", got, p.err)
	}
	a := readEnergy(t, p).Attempts[0]
	if a.Energy == nil {
		t.Fatal("no energy")
	}
	about(t, "joules", &a.Energy.GPU, plan.joules(a.Start.T, a.End.T), 0.1)
	if !a.Energy.Estimate || a.Energy.Source != "power" || a.Energy.Resets != 0 {
		t.Errorf("%+v", *a.Energy)
	}
	if text := summaryText(t, p); !strings.Contains(text, "energy: ") || !strings.Contains(text, "(estimate from NVML's power)") {
		t.Errorf("summary\n%s", text)
	}
}

// TestEnergyWithoutAGPU is not spoken of.
func TestEnergyWithoutAGPU(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--telemetry-interval", "100ms", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.1; done")
	until(t, "rows", func() bool { return len(rowsWith(p, ",")) > 5 })
	writeScript(t, dir, "go", "")
	if got := p.wait(20 * time.Second); got != 0 {
		t.Fatalf("status %d; stderr %s", got, p.err)
	}
	r := readEnergy(t, p)
	if r.Attempts[0].Energy != nil || r.Summary.Energy != nil {
		t.Errorf("%+v", r)
	}
	if text := summaryText(t, p); strings.Contains(text, " J ") || strings.Contains(text, "GPU rail") {
		t.Errorf("summary\n%s", text)
	}
}

// TestHeatInRunJSON: how much of the time was throttled, what it cost in steps and why the
// pace fell stand in run.json and in the summary; the firmware's rails beside NVML's.
func TestHeatInRunJSON(t *testing.T) {
	t.Parallel()
	root := heatTree(t)
	for name, text := range map[string]string{
		"name": "spbm", "power1_label": "sys_total", "power1_input": "165000000", "power2_label": "gpu", "power2_input": "100000000",
	} {
		dir := filepath.Join(root, "sys/class/hwmon/hwmon3")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		writeScript(t, dir, name, text+"\n")
	}
	p := startHeat(t, t.TempDir(), heatCase{tree: root, plan: pace + `
fake temp 85 sm 1700 power 55 reasons 0x20
train 0.2 until slowdown-
train 0.2 12
fake temp 74 sm 2400 power 62 reasons 0x0
train 0.1 until "ended":"recovered"
train 0.1 5`})
	if got := p.wait(90 * time.Second); got != 0 {
		t.Fatalf("status %d; stderr %s", got, p.err)
	}
	type heatFigures struct {
		Hottest    float64 `json:"hottest_c"`
		ThrottledS float64 `json:"throttled_s"`
		Share      float64 `json:"throttled_share"`
		LostS      float64 `json:"lost_s"`
		LostSteps  float64 `json:"lost_steps"`
		Compared   string
		Types      map[string]struct {
			Episodes int
			Causes   map[string]float64 `json:"lost_s_by_cause"`
		}
	}
	type rails struct {
		GPU      float64 `json:"gpu_j"`
		Known    float64 `json:"gpu_known_s"`
		Firmware float64 `json:"gpu_firmware_j"`
		Machine  float64 `json:"machine_j"`
	}
	var r struct {
		Attempts []struct {
			Heat   heatFigures
			Energy rails
		}
		Summary struct{ Heat heatFigures }
	}
	b, err := os.ReadFile(p.file("run.json"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || len(r.Attempts) != 1 {
		t.Fatalf("%v\n%s", err, b)
	}
	for name, h := range map[string]heatFigures{"the attempt": r.Attempts[0].Heat, "all": r.Summary.Heat} {
		if h.Hottest != 85 || h.ThrottledS < 1 || h.Share <= 0.02 || h.Share >= 0.9 || h.LostS < 1 || h.LostSteps < 10 || h.LostSteps > 400 || h.Compared != "no baseline yet" {
			t.Errorf("%s: %+v", name, h)
		}
		if h.Types["thermal-throttle"].Episodes != 1 || h.Types["slowdown"].Episodes != 1 || h.Types["slowdown"].Causes["thermal-throttle"] < 1 {
			t.Errorf("%s: %+v", name, h.Types)
		}
	}
	e := r.Attempts[0].Energy
	about(t, "machine", &e.Machine, 165*e.Known, 0.1)
	about(t, "GPU by the firmware", &e.Firmware, 100*e.Known, 0.1)
	if e.GPU < 50*e.Known || e.GPU > 65*e.Known {
		t.Errorf("GPU by NVML: %+v", e)
	}
	text := summaryText(t, p)
	for _, want := range []string{"hottest 85 C; throttled ", ": thermal-throttle), about ", " steps lost (", "; slowdown for ", "by thermal-throttle; against earlier runs: no baseline yet; "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

// TestEnergyOfTheLastMoment: what an attempt uses between the last reading while it runs and
// its end is in its figure, and the end of the run does not take long for it.
func TestEnergyOfTheLastMoment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plan := newPowerPlan(t, dir, "energy 5000")
	p := startEnv(t, dir, plan.env(fakenvml.Build(t)), "--no-preflight", "--no-guard", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done")
	read := func() (times []time.Time) {
		f, err := os.Open(p.file("telemetry.csv"))
		if err != nil {
			return nil
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			cells := strings.Split(lines.Text(), ",")
			if at, err := time.Parse(time.RFC3339, cells[0]); err == nil && len(cells) > 19 && cells[19] != "" {
				times = append(times, at)
			}
		}
		return times
	}
	until(t, "two readings in the attempt", func() bool { return len(read()) >= 2 })
	first := read()[0]
	time.Sleep(500 * time.Millisecond) // rows are a second apart: it ends between two
	writeScript(t, dir, "go", "")
	if got := p.wait(30 * time.Second); got != 0 {
		t.Fatalf("status %d; stderr %s", got, p.err)
	}
	var r struct {
		End      struct{ T time.Time }
		Attempts []struct {
			End    struct{ T time.Time }
			Energy *struct {
				GPU   float64 `json:"gpu_j"`
				Known float64 `json:"gpu_known_s"`
			}
		}
	}
	b, err := os.ReadFile(p.file("run.json"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || len(r.Attempts) != 1 || r.Attempts[0].Energy == nil {
		t.Fatalf("%v\n%s", err, b)
	}
	a := r.Attempts[0]
	want := a.End.T.Sub(first).Seconds()
	if a.Energy.Known < want-0.05 || a.Energy.Known > want+1 {
		t.Errorf("known for %v s; it was read for %v s before its end", a.Energy.Known, want)
	}
	about(t, "joules", &a.Energy.GPU, idleWatts*a.Energy.Known, 0.1)
}

// TestRecoveredRunHasItsHeat: sparkrun is killed while the command is paused for heat. The
// next start gives run.json what the attempt's own files say, and the pause its end.
func TestRecoveredRunHasItsHeat(t *testing.T) {
	t.Parallel()
	h := startHot(t)
	until(t, "running", fileHas(h.file("run.json"), `"state": "running"`))
	h.zones("93000")
	h.paused()
	until(t, "the heat is on the disk", func() bool {
		return fileHas(h.file("events.jsonl"), `"kind":"pause"`)() && len(rowsWith(h.proc, ",93,")) > 10
	})
	dir := filepath.Join(h.dir, "sparkrun-runs", h.id())
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-h.done
	h.running() // the holder has woken it
	writeScript(t, h.dir, "finish", "")
	until(t, "the training comes to its end", func() bool { _, err := os.Stat(filepath.Join(dir, "attempts/1/exit.json")); return err == nil })
	until(t, "everything gone", func() bool { return len(processesOf(filepath.Base(dir))) == 0 && !hasHolder(filepath.Base(dir)) })
	next := start(t, h.dir, "--no-preflight", "--", "sh", "-c", `until grep -q "has no e[n]d" "$SPARKRUN_RUN_DIR/events.jsonl"; do sleep 0.05; done`)
	next.wait(30 * time.Second)
	var r struct {
		State    string
		Attempts []struct {
			Heat   map[string]any
			Energy *energyFigures
			Pauses int
			Paused float64 `json:"paused_s"`
		}
		Summary struct {
			Hottest float64 `json:"hottest_c"`
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || r.State != "lost" || len(r.Attempts) != 1 {
		t.Fatalf("%v\n%s", err, b)
	}
	a := r.Attempts[0]
	if a.Heat["hottest_c"] != 93.0 || a.Heat["throttled_s"] != nil || r.Summary.Hottest != 93 || a.Pauses != 1 || a.Paused < 0.5 || a.Paused > 30 {
		t.Errorf("%+v\n%+v", a, r.Summary)
	}
	if a.Energy == nil || a.Energy.GPU <= 0 {
		t.Errorf("energy %+v", a.Energy)
	}
	if !fileHas(filepath.Join(dir, "events.jsonl"), `"kind":"continue"`)() {
		t.Error("the pause has no end in events.jsonl")
	}
}
