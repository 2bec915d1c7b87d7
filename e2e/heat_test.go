package e2e

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/e2e/fakenvml"
)

// heatCase is a plan that testdata/heat/train.py plays under a sparkrun whose GPU is
// fakenvml and whose other sensors are a recorded tree, with thresholds of seconds.
type heatCase struct {
	name string
	// fake is what the GPU says from before the run on.
	fake string
	plan string
	// spbm: the power firmware's driver is there, with a cap of 140 W.
	spbm bool
	// tree is the recorded one, where a case makes its own.
	tree string
	// before is a program that sparkrun is started through; env and args are what it has in
	// addition.
	before, env, args []string
	// want are the events about heat, pace and sensors, exactly these and no others, as
	// heatLine writes them; data has words that the events at the same places must have.
	want []string
	data []string
	// beside starts a process next to the training; PID in the plan is its number.
	beside bool
	check  func(t *testing.T, p *proc, events []heatEvent)
}

// heatEvent is a line of events.jsonl.
type heatEvent struct {
	T     string         `json:"t"`
	Kind  string         `json:"kind"`
	Level string         `json:"level"`
	Msg   string         `json:"msg"`
	Data  map[string]any `json:"data"`
}

func (e heatEvent) text(key string) string {
	s, _ := e.Data[key].(string)
	return s
}

// line is "thermal-throttle start info", or "nvml gap start warn" for a sensor.
func (e heatEvent) line() string {
	area, what, _ := strings.Cut(e.Kind, ".")
	if area == "throttle" {
		return e.text("type") + " " + what + " " + e.Level
	}
	if e.Kind == "kernel.xid" {
		return fmt.Sprint("xid ", e.Data["xid"], " ", e.Level)
	}
	return strings.Join([]string{e.text("source"), what, e.text("state"), e.Level}, " ")
}

// heatTree is a machine's /proc and /sys as the sampler reads them: a Spark under
// training that is well. A plan can change what a file says, but not its length.
func heatTree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	put := func(name, text string) { putTree(t, root, name, strings.ReplaceAll(text, `\n`, "\n")) }
	for i, c := range []int{78400, 71000, 72500, 71800, 76200, 78400, 72100} {
		zone := fmt.Sprintf("sys/class/thermal/thermal_zone%d/", i)
		put(zone+"type", "acpitz")
		put(zone+"temp", strconv.Itoa(c))
	}
	for name, text := range map[string]string{
		"hwmon0/name": "acpitz", "hwmon0/temp1_input": "78400",
		"hwmon1/name": "nvme", "hwmon1/temp1_label": "Composite", "hwmon1/temp1_input": "51850", "hwmon1/temp1_crit": "84850",
		"hwmon2/name": "mlx5", "hwmon2/temp1_label": "asic", "hwmon2/temp1_input": "55000",
	} {
		put("sys/class/hwmon/"+name, text)
	}
	put("sys/devices/system/cpu/cpufreq/policy0/affected_cpus", "0 1 2 3")
	put("sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "2808000")
	put("proc/stat", "cpu  1000 0 500 90000 10 0 5 0 0 0")
	put("proc/loadavg", "1.02 0.98 0.90 2/1200 4242")
	put("proc/meminfo", strings.Join([]string{
		"MemTotal:       127600536 kB", "MemFree:        61200000 kB", "MemAvailable:   80200000 kB",
		"Cached:         20100000 kB", "Shmem:            200000 kB", "SwapTotal:      16777212 kB", "SwapFree:       16777212 kB",
	}, `\n`))
	put("proc/vmstat", `pswpin 00000\npswpout 00000\noom_kill 0`)
	for _, name := range []string{"cpu", "io", "memory"} {
		put("proc/pressure/"+name, pressureFile("00.10", "00.00"))
	}
	return root
}

// putTree writes a file of a recorded tree.
func putTree(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// pressureFile is one of /proc/pressure; the figures have five signs.
func pressureFile(some, full string) string {
	return fmt.Sprintf(`some avg10=%s avg60=0.10 avg300=0.10 total=1000\nfull avg10=%s avg60=0.00 avg300=0.00 total=100`, some, full)
}

// heatReady is a GPU under training that is well and below its cap.
const heatReady = "temp 66 power 62 sm 2405 util 96 pstate 0 reasons 0x0 ctr_swthermal 0 ctr_hwthermal 0 ctr_hwpower 0"

// pace are steps enough for the attempt's own pace.
const pace = "begin 0.1\ntrain 0.1 45\n"

// heatRuns is how many runs go on at the same time: they wait more than they work.
const heatRuns = 10

// TestHeat: each plan gives exactly its events.
func TestHeat(t *testing.T) {
	t.Parallel()
	cases := slices.Concat(paceCases(), heatCases()) // the longest first
	runs := make([]*proc, len(cases))
	// Where -run names one of them, the others are not begun.
	one := strings.Contains(flag.Lookup("test.run").Value.String(), "/")
	begin := func(i int) {
		if i < len(cases) && !one {
			runs[i] = startHeat(t, t.TempDir(), cases[i])
		}
	}
	for i := range heatRuns {
		begin(i)
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if one {
				runs[i] = startHeat(t, t.TempDir(), c)
			}
			p := runs[i]
			p.t = t
			checkHeat(t, p, c)
		})
		begin(i + heatRuns)
	}
}

// startHeat starts the run of a case in a folder.
func startHeat(t *testing.T, dir string, c heatCase) *proc {
	t.Helper()
	root := c.tree
	if root == "" {
		root = heatTree(t)
	}
	data, err := filepath.Abs("testdata/heat")
	if err != nil {
		t.Fatal(err)
	}
	if c.spbm {
		putTree(t, root, "sys/class/hwmon/hwmon3/name", "spbm")
		for i, channel := range []string{"gpu 63000000", "pl1 98000000 140000000", "syspl1 120000000 231000000", "sys_total 131000000"} {
			base := fmt.Sprintf("sys/class/hwmon/hwmon3/power%d_", i+1)
			for j, word := range strings.Fields(channel) {
				putTree(t, root, base+[]string{"label", "input", "cap"}[j], word)
			}
		}
	}
	plan := c.plan
	if c.beside {
		other := exec.Command("sleep", "600")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = other.Process.Kill()
			_ = other.Wait()
		})
		plan = strings.ReplaceAll(plan, "PID", strconv.Itoa(other.Process.Pid))
	}
	fake := c.fake
	if fake == "" {
		fake = heatReady
	}
	env := []string{
		"SPARKRUN_TEST_ROOT=" + root,
		"SPARKRUN_NVML_LIBRARY=" + fakenvml.Build(t), "FAKENVML_SCENARIO=" + writeScript(t, dir, "scenario", "at 0s "+fake+"\n"),
		fmt.Sprintf("FAKENVML_T0=%.3f", float64(time.Now().UnixMilli())/1000),
	}
	args := slices.Concat([]string{
		"--no-preflight", "--no-retry", "--no-guard", "--telemetry-interval", "100ms", "--interval", "1s",
		"--thermal-config", filepath.Join(data, "thermal.yaml"),
	}, c.args, []string{"--", "python3", filepath.Join(data, "train.py"), writeScript(t, dir, "plan", plan)})
	return launch(t, dir, c.before, slices.Concat(env, c.env), nil, args...)
}

// checkHeat waits for the end of a run and looks at all it has told.
func checkHeat(t *testing.T, p *proc, c heatCase) {
	t.Helper()
	if got := p.wait(90 * time.Second); got != 0 {
		t.Errorf("status %d, want 0; stdout %s\nstderr %s", got, p.out, p.err)
	}
	all := heatEvents(t, p)
	var events []heatEvent
	var got []string
	for _, e := range all {
		area, what, _ := strings.Cut(e.Kind, ".")
		if area == "throttle" || e.Kind == "sensor.gap" || e.Kind == "kernel.xid" {
			events = append(events, e)
			got = append(got, e.line())
		}
		// What this machine does not have is told once, and is no trouble. Those without
		// a list are about logs.
		if absent, ok := e.Data["absent"].([]any); ok && what == "absent" {
			for _, a := range absent {
				if !slices.Contains([]any{"clock_mem_mhz", "memory_total_mib", "energy_soc_j", "power_cap_pl1_w", "power_cap_sys_w", "power_sys_w"}, a) {
					t.Errorf("said to be absent: %v", a)
				}
			}
		}
	}
	if diff := cmp.Diff(c.want, got); diff != "" {
		t.Errorf("events (- wanted, + found):\n%s", diff)
		for _, e := range events {
			t.Logf("%s %s: %s %v", e.T, e.line(), e.Msg, e.Data)
		}
		return
	}
	for i, want := range c.data {
		for _, word := range strings.Fields(want) {
			key, value, _ := strings.Cut(word, "=")
			if have := fmt.Sprint(events[i].Data[key]); have != value {
				t.Errorf("%s: %s is %s, want %s (%s)", events[i].line(), key, have, value, events[i].Msg)
			}
		}
	}
	inPairs(t, events, strings.Contains(c.plan, "begin"))
	inLog(t, p, events)
	inManifest(t, p, events)
	if c.check != nil {
		c.check(t, p, events)
	}
}

func heatEvents(t *testing.T, p *proc) []heatEvent {
	t.Helper()
	f, err := os.Open(p.file("events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []heatEvent
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e heatEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("events.jsonl: %v: %s", err, lines.Text())
		}
		out = append(out, e)
	}
	return out
}

// inPairs demands that each start has one end with its id, later than it, and the step
// that was under way with its time.
func inPairs(t *testing.T, events []heatEvent, steps bool) {
	t.Helper()
	open := map[string]heatEvent{}
	for _, e := range events {
		id := e.text("id")
		switch e.Kind {
		case "throttle.start":
			if _, twice := open[id]; twice || id == "" {
				t.Errorf("a start with the id %q of another", id)
			}
			open[id] = e
			if _, ok := e.Data["step"].(float64); steps && !ok {
				t.Errorf("%s has no step: %v", e.line(), e.Data)
			}
			if s, ok := e.Data["step_time_s"].(float64); steps && (!ok || s < 0.05 || s > 1) {
				t.Errorf("%s has step_time_s %v", e.line(), e.Data["step_time_s"])
			}
		case "throttle.end":
			s, ok := open[id]
			if !ok {
				t.Errorf("%s ends %q, which did not begin", e.line(), id)
			}
			delete(open, id)
			if e.T <= s.T || e.text("since") != s.text("since") || e.text("until") < e.text("since") || e.text("until") > e.T {
				t.Errorf("%s at %s, since %s until %s, of a start at %s since %s", e.line(), e.T, e.text("since"), e.text("until"), s.T, s.text("since"))
			}
		}
	}
	for id := range open {
		t.Errorf("%s has no end", id)
	}
}

// inLog demands each event in run.log with the time it has in events.jsonl, and each
// event about heat at the time of a row of telemetry.csv. Only what the end of the run
// ends is of that moment.
func inLog(t *testing.T, p *proc, events []heatEvent) {
	t.Helper()
	log, err := os.ReadFile(p.file("run.log"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, row := range rowsWith(p, ",") {
		at, _, _ := strings.Cut(row, ",")
		rows[at] = true
	}
	for _, e := range events {
		at, err := time.Parse("2006-01-02T15:04:05.000Z07:00", e.T)
		if err != nil {
			t.Fatal(err)
		}
		label := e.Kind
		if strings.HasPrefix(e.Kind, "throttle.") {
			label = e.text("type") + " " + strings.TrimPrefix(e.Kind, "throttle.")
			if !rows[e.T] && e.text("ended") != "run-ended" {
				t.Errorf("%s at %s: telemetry.csv has no such row", e.line(), e.T)
			}
		}
		line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(at.Format("2006/01/02 15:04:05.000")+" # "+label+": "+e.Msg) + `$`)
		if n := len(line.FindAll(log, -1)); n != 1 {
			t.Errorf("%d lines of run.log are %q", n, line)
		}
	}
}

// inManifest demands that run.json adds up the same episodes.
func inManifest(t *testing.T, p *proc, events []heatEvent) {
	t.Helper()
	var m struct{ Summary struct{ Heat heatRecord } }
	b, err := os.ReadFile(p.file("run.json"))
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]int{}, map[string]int{}
	for _, e := range events {
		if e.Kind == "throttle.start" {
			want[e.text("type")]++
		}
	}
	for typ, h := range m.Summary.Heat.Types {
		got[typ] = h.Episodes
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("episodes (- events.jsonl, + run.json):\n%s", diff)
	}
}

// heatRecord is the part of run.json that is about heat and pace.
type heatRecord struct {
	Types    map[string]struct{ Episodes int }
	Compared string
}
