package sampler

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/event"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
)

// fakeSMI writes an nvidia-smi that prints the rows of a GB10 and then waits; its
// pid goes to the file pid beside it.
func fakeSMI(t *testing.T) (exe string) {
	t.Helper()
	dir := t.TempDir()
	exe = filepath.Join(dir, "nvidia-smi")
	writeFile(t, exe, `#!/bin/sh
case "$*" in
*--loop-ms=*)
  echo $$ >'`+dir+`/pid'
  while echo '52, 10.80, 2405, [N/A], 0, P0, 0x0000000000000001, 0, 0, 0, 0'; do sleep 0.02; done ;;
*--query-gpu=name,*) echo 'NVIDIA GB10, GPU-00000000-1111-2222-3333-444444444444, 580.142, 12.1, [N/A]' ;;
*) echo '3150, 218' ;;
esac
`)
	if err := os.Chmod(exe, 0o700); err != nil {
		t.Fatal(err)
	}
	return exe
}

func TestNvidiaSmiStandsInForALibraryThatIsNotThere(t *testing.T) {
	t.Parallel()
	exe := fakeSMI(t)
	s := machine{lib: "/nonexistent/libnvidia-ml.so.1", root: spark(t), flags: []string{"-nvidia-smi", exe}}.start(t)
	first := s.until("the device", func(r record) bool { return r.Device != nil && !r.Pending }).Device
	if first.Source != "nvidia-smi" || first.Name != "NVIDIA GB10" || !strings.Contains(first.Err, "the readings are those of nvidia-smi") ||
		!slices.Contains(first.Absent, "energy_j") || slices.Contains(first.Absent, "temp_zone_max_c") {
		t.Errorf("device %+v", first)
	}
	// Processes are asked for less often, and stand in one reading.
	g := s.until("a reading with processes", func(r record) bool { return r.GPU != nil && r.GPU.TempC.OK && r.GPU.Processes != nil }).GPU
	if !g.Fallback || len(g.Processes) != 1 || g.PowerW.V != 10.8 || g.ClockSMMHz.V != 2405 || g.UtilPct != sample.Known(0) || g.ZoneMaxC.V != 78.5 || g.T <= 0 {
		t.Errorf("reading %+v", g)
	}

	// It is killed with the sensors process.
	text, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := proctree.Read(pid); !ok {
		t.Fatal("nvidia-smi does not run")
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if p, ok := proctree.Read(pid); !ok || p.State == 'Z' {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nvidia-smi outlives the sensors process")
		}
	}
}

func TestWhenNvidiaSmiIsNotRead(t *testing.T) {
	t.Parallel()
	exe := fakeSMI(t)
	onPath := []string{"PATH=" + filepath.Dir(exe) + ":" + os.Getenv("PATH")}
	for name, m := range map[string]machine{
		"switched off":                  {lib: "/nonexistent/libnvidia-ml.so.1", flags: []string{"-nvidia-smi", "off"}, env: onPath},
		"a library that was asked for":  {lib: "/nonexistent/libnvidia-ml.so.1", env: onPath},
		"a library that finds no GPU":   {scenario: []string{"at 0s count 0"}, env: onPath},
		"a library without its driver":  {env: append([]string{"FAKENVML_INIT_RC=9"}, onPath...)},
		"an nvidia-smi that is missing": {lib: "/nonexistent/libnvidia-ml.so.1", flags: []string{"-nvidia-smi", "/nonexistent/nvidia-smi"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m.root = spark(t)
			s := m.start(t)
			if d := s.until("the device", func(r record) bool { return r.Device != nil && !r.Pending }).Device; d.Source != "none" || d.Err == "" {
				t.Errorf("device %+v", d)
			}
			if g := s.until("a reading", func(r record) bool { return r.GPU != nil }).GPU; g.TempC.OK || g.ZoneMaxC.V != 78.5 || len(g.Failed) != 0 {
				t.Errorf("reading %+v", g)
			}
		})
	}
}

func TestAFallbackIsToldOnce(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{Tick: time.Hour, Interval: time.Hour})
	d := sample.Device{Source: "nvidia-smi", Name: "NVIDIA GB10", Err: "no library; the readings are those of nvidia-smi"}
	for range 3 {
		r.hear(&record{Device: &d})
	}
	n := 0
	for _, e := range r.all(event.SensorAbsent) {
		if strings.Contains(e.Msg, "NVML cannot be read: no library") && e.Level == event.Info {
			n++
		}
	}
	if n != 1 {
		t.Errorf("told %d times: %+v", n, r.all(""))
	}
}

// A GPU that has fallen off the bus: readings stop, one device record says so,
// and it is looked for again at a slow pace.
func TestAGPUThatIsLost(t *testing.T) {
	t.Parallel()
	s := machine{
		scenario: []string{"at 0s temp 60", "at 0.4s fail all 15", "at 2s fail all 0 temp 45"},
		root:     spark(t), flags: []string{"-reopen", "300ms"},
	}.start(t)
	s.until("a reading before", func(r record) bool { return r.GPU != nil && r.GPU.TempC.V == 60 })
	lost := 0
	var last record
	r := s.until("a reading after", func(r record) bool {
		if r.Device != nil {
			last = r
			if r.Device.Source == "none" {
				lost++
				if r.Device.ErrKind != "lost" || r.Device.Name != "NVIDIA GB10" || !strings.Contains(r.Device.Err, "fallen off the bus") {
					t.Errorf("device %+v", r.Device)
				}
			}
		}
		if r.GPU != nil && lost > 0 && last.Device.Source == "none" {
			if r.GPU.TempC.OK || !strings.Contains(r.GPU.Failed["nvml"], "fallen off the bus") || r.GPU.ZoneMaxC.V != 78.5 {
				t.Errorf("while it is lost: %+v", r.GPU)
			}
		}
		return r.GPU != nil && r.GPU.TempC.V == 45
	})
	if lost != 1 || last.Device.Source != "nvml" || len(r.GPU.Failed) != 0 {
		t.Errorf("told %d times, at last %+v, %+v", lost, last.Device, r.GPU)
	}
}

func TestALostGPUIsOneGap(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{
		Exe: machine{
			scenario: []string{"at 0s temp 60", "at 1s fail all 15"}, flags: []string{"-reopen", "300ms"},
		}.exe(t),
		Tick: 50 * time.Millisecond, Interval: time.Hour, Root: spark(t),
	})
	e := r.event(event.SensorGap, "GPU readings stopped")
	if !strings.Contains(e.Msg, "fallen off the bus") || e.Level != event.Warn {
		t.Errorf("%+v", e)
	}
	for range 20 {
		r.until("a row without a reading", func(s sample.Sample) bool { return !s.TempC.OK && s.ZoneMaxC.V == 78.5 })
	}
	for _, e := range r.all("") {
		if strings.Contains(e.Msg, "no GPU readings") {
			t.Errorf("told twice: %+v", e)
		}
	}
	if gaps := r.all(event.SensorGap); len(gaps) != 1 {
		t.Errorf("gaps %+v", gaps)
	}
}

func TestAZoneThatHangsCostsItsReadingOnly(t *testing.T) {
	t.Parallel()
	root := spark(t)
	fifo := filepath.Join(root, "sys/class/thermal/thermal_zone2/temp")
	writeFile(t, filepath.Join(filepath.Dir(fifo), "type"), "acpitz\n")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s := machine{scenario: []string{"at 0s temp 60", "at 2s block 1s"}, root: root, flags: []string{"-deadline", "200ms"}}.start(t)
	const key = "host/thermal_zone2/temp"
	g := s.until("the zone's name", func(r record) bool { return r.GPU != nil && r.GPU.Failed[key] != "" }).GPU
	if g.TempC.V != 60 || g.ZoneMaxC.V != 78.5 || len(g.Zones) != 3 || g.Zones[2].C.OK || g.Zones[2].Name != "thermal_zone2" || len(g.Failed) != 1 {
		t.Errorf("reading %+v", g)
	}
	// Both sources hang at the same time.
	g = s.until("no answer of the driver", func(r record) bool { return r.GPU != nil && r.GPU.Failed["nvml"] != "" }).GPU
	if g.ZoneMaxC.V != 78.5 || g.Failed[key] == "" {
		t.Errorf("reading %+v", g)
	}
	s.until("the driver again", func(r record) bool { return r.GPU != nil && r.GPU.TempC.V == 60 && r.GPU.Failed["nvml"] == "" })
}

func TestSensorsThatHangAreToldByName(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{Tick: time.Hour, Interval: time.Hour})
	r.until("the first row", func(sample.Sample) bool { return true })
	for second, failed := range []map[string]string{
		{"host/hwmon2/temp1_input (nvme Composite)": "no answer for 1 s", "nvml": "no answer for 2 s"},
		{"nvml": "no answer for 3 s", "host": "no answer for 2 s"},
		{"nvml": "no answer for 4 s"},
		{"nvml": "no answer for 5 s"},
		{"nvml": "no answer for 6 s"},
		{"nvml": "no answer for 7 s"},
	} {
		at := r.opts.Clock.Boot + time.Duration(second-20)*time.Second
		r.hear(&record{GPU: &sample.GPU{T: at, Failed: failed}})
	}
	var got []string
	for _, e := range r.all(event.SensorGap) {
		got = append(got, r.opts.Clock.Mono(e.T).String()+" "+e.Msg)
	}
	slices.Sort(got[:2])
	want := []string{
		"-20s GPU readings stopped: no answer for 2 s",
		"-20s readings of hwmon2/temp1_input (nvme Composite) stopped: no answer for 1 s",
		"-19s host temperature readings stopped: no answer for 2 s",
		"-15s host temperature readings came back after 1 s",
		"-15s readings of hwmon2/temp1_input (nvme Composite) came back after 2 s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSensorsFile(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{Tick: time.Hour, Interval: 30 * time.Second})
	r.until("the first row", func(sample.Sample) bool { return true })
	f := newSensorsFile(r.Sampler, r.opts.Clock.Boot+r.ahead())
	path := filepath.Join(r.dir, "sensors.jsonl")
	at := func(seconds float64, g sample.GPU) {
		g.T = r.opts.Clock.Boot + time.Duration(seconds*float64(time.Second))
		f.take(&g)
	}
	zones := []sample.Temperature{{Name: "thermal_zone0", C: sample.Known(90.3), CritC: sample.Known(104)}, {Name: "thermal_zone1"}}
	at(-1, sample.GPU{})
	at(0.2, sample.GPU{Zones: zones})
	for s := 1; s < 30; s++ {
		at(float64(s), sample.GPU{Zones: zones})
	}
	if f.file == nil {
		t.Fatal("no file")
	}
	at(30.2, sample.GPU{Zones: zones})
	chips := []sample.Temperature{{Name: "nvme", Label: "Composite", C: sample.Known(61.85)}}
	at(31.2, sample.GPU{Zones: zones, Chips: chips})
	at(32.2, sample.GPU{Zones: zones, Chips: chips})
	at(33.2, sample.GPU{}) // the host as a whole did not answer
	at(60.2, sample.GPU{Zones: zones, Chips: chips, Powers: []sample.Power{{Label: "pl1", W: sample.Known(139.7), CapW: sample.Known(140)}}})
	f.close()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var mono []string
	for _, line := range lines {
		var l struct {
			T     string
			MonoS float64 `json:"mono_s"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if _, err := time.Parse(time.RFC3339Nano, l.T); err != nil {
			t.Error(err)
		}
		mono = append(mono, fmt.Sprint(l.MonoS))
	}
	if got := strings.Join(mono, " "); got != "0.2 30.2 31.2 60.2" {
		t.Errorf("lines at %s:\n%s", got, text)
	}
	for i, want := range map[int]string{
		0: `"zones":[{"name":"thermal_zone0","c":90.3,"crit_c":104},{"name":"thermal_zone1","c":null,"crit_c":null}],"chips":[],"powers":[]}`,
		3: `"chips":[{"name":"nvme","label":"Composite","c":61.85,"crit_c":null}],"powers":[{"label":"pl1","w":139.7,"cap_w":140}]}`,
	} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d is %s", i, lines[i])
		}
	}
}

// The whole way from the files to the file.
func TestSensorsOfARun(t *testing.T) {
	t.Parallel()
	r := startRun(t, Options{
		Exe:  machine{scenario: []string{"at 0s temp 68"}}.exe(t),
		Tick: 20 * time.Millisecond, Interval: 100 * time.Millisecond, Root: spark(t),
	})
	for range 20 {
		r.until("the zones", func(s sample.Sample) bool { return len(s.Zones) == 2 && s.Zones[1].C.V == 78.5 })
	}
	r.Stop()
	text, err := os.ReadFile(filepath.Join(r.dir, "sensors.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), `"name":"thermal_zone1","c":78.5`); n < 2 || !strings.HasSuffix(string(text), "}\n") {
		t.Errorf("%d lines:\n%s", n, text)
	}
	// Without any sensor there is no file.
	bare := startRun(t, Options{
		Exe: machine{scenario: []string{"at 0s temp 68"}}.exe(t), Tick: 20 * time.Millisecond, Interval: 100 * time.Millisecond, Root: t.TempDir(),
	})
	for range 5 {
		bare.until("a reading", func(s sample.Sample) bool { return s.TempC.OK })
	}
	bare.Stop()
	if _, err := os.Stat(filepath.Join(bare.dir, "sensors.jsonl")); err == nil {
		t.Error("an empty sensors.jsonl")
	}
}

// At slow sampling the process is silent for long between two readings.
func TestSilenceIsMeasuredInTicks(t *testing.T) {
	t.Parallel()
	for _, tick := range []time.Duration{MinTick, DefaultTick, 30 * time.Second, MaxTick} {
		if limit := quietLimit(tick); limit <= 2*tick || limit < silence {
			t.Errorf("with a reading every %v the process is ended after %v", tick, limit)
		}
	}
}
