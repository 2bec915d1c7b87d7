//go:build linux && cgo && (amd64 || arm64)

package nvml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/e2e/fakenvml"
	"sparkrun/internal/sample"
)

// answer is what the test binary prints when it is started as a reader: one
// process can load one library only.
type answer struct {
	Err    string
	Kind   Kind
	Device sample.Device
	GPU    sample.GPU
	// Series are all readings, and Dead what was said of the device after each, where
	// it reads for a while.
	Series []sample.GPU
	Dead   []string
}

const (
	reader = "NVML_TEST_READER"
	// readFor is how long it reads; empty is once.
	readFor = "NVML_TEST_FOR"
)

func TestMain(m *testing.M) {
	if os.Getenv(reader) == "" {
		os.Exit(m.Run())
	}
	var a answer
	r, err := Open()
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			fmt.Fprintf(os.Stderr, "Open's error is a %T\n", err)
			os.Exit(1)
		}
		a.Err, a.Kind = e.Text, e.Kind
	} else {
		long, _ := time.ParseDuration(os.Getenv(readFor))
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			a.GPU = sample.GPU{}
			r.Read(&a.GPU)
			if long == 0 {
				break
			}
			dead := ""
			if e := r.Dead(); e != nil {
				dead = e.Text
			}
			a.Series, a.Dead = append(a.Series, a.GPU), append(a.Dead, dead)
			if time.Since(began) > long {
				break
			}
		}
		a.Device = r.Device()
		r.Close()
	}
	_ = json.NewEncoder(os.Stdout).Encode(a)
	os.Exit(0)
}

// read starts a reader process under the environment.
func read(t *testing.T, env ...string) answer {
	t.Helper()
	return readWith(t, os.Args[0], env...)
}

func readWith(t *testing.T, exe string, env ...string) answer {
	t.Helper()
	cmd := exec.Command(exe)
	cmd.Env = slices.Concat(os.Environ(), []string{reader + "=1"}, env)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the reader ended: %v\n%s", err, stderr.Bytes())
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return a
}

// scenario writes a scenario and returns the environment that plays it.
func scenario(t *testing.T, lines ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scenario")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"FAKENVML_SCENARIO=" + path}
}

func TestReadingsOfAGB10(t *testing.T) {
	t.Parallel()
	env := append(scenario(t,
		"at 0s temp 71 power 96.5 sm 2210 util 97 pstate 0 reasons 0x4",
		"at 0s ctr_swpower 1000 ctr_swthermal 2000 ctr_hwthermal 3000 ctr_hwpower 4000",
		"at 0s reasons 0x0 energy 12345 power 0 proc 4242 2048 proc 77 na",
	), LibraryEnv+"="+fakenvml.Build(t))
	a := read(t, env...)
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	d := a.Device
	if d.Source != "nvml" || d.Name != "NVIDIA GB10" || d.CUDADriver != 13000 || d.CapMajor != 12 || d.CapMinor != 1 ||
		d.Count != 1 || d.DriverVersion == "" || d.UUID == "" || d.MemoryTotalMiB.OK {
		t.Errorf("device = %+v", d)
	}
	if want := []string{"clock_mem_mhz", "memory_total_mib"}; !slices.Equal(d.Absent, want) {
		t.Errorf("absent = %v, want %v", d.Absent, want)
	}
	g := a.GPU
	for _, c := range []struct {
		name string
		got  sample.Num
		want sample.Num
	}{
		{"temperature", g.TempC, sample.Known(71)},
		{"power", g.PowerW, sample.Known(0)},
		{"SM clock", g.ClockSMMHz, sample.Known(2210)},
		{"memory clock", g.ClockMemMHz, sample.Num{}},
		{"utilisation", g.UtilPct, sample.Known(97)},
		{"P-state", g.PState, sample.Known(0)},
		{"reasons", g.ReasonBits, sample.Known(0)},
		{"SW power counter", g.CtrSWPowerNS, sample.Known(1000)},
		{"SW thermal counter", g.CtrSWThermalNS, sample.Known(2000)},
		{"HW thermal counter", g.CtrHWThermalNS, sample.Known(3000)},
		{"HW power counter", g.CtrHWPowerNS, sample.Known(4000)},
		{"energy", g.EnergyJ, sample.Known(12.345)},
	} {
		if c.got != c.want {
			t.Errorf("%s = %+v, want %+v", c.name, c.got, c.want)
		}
	}
	if want := []sample.GPUProcess{{PID: 4242, UsedMiB: sample.Known(2048)}, {PID: 77}}; !slices.Equal(g.Processes, want) {
		t.Errorf("processes = %+v, want %+v", g.Processes, want)
	}
	if len(g.Failed) != 0 {
		t.Errorf("failed = %v", g.Failed)
	}
}

func TestPowerIsInWattsAndCountersRunWhileTheirBitIsSet(t *testing.T) {
	t.Parallel()
	env := append(scenario(t, "at 0s power 97.31 reasons 0x24"), LibraryEnv+"="+fakenvml.Build(t), "FAKENVML_T0=0")
	g := read(t, env...).GPU
	if g.PowerW != sample.Known(97.31) {
		t.Errorf("power = %+v", g.PowerW)
	}
	if g.CtrSWPowerNS.V < 1e18 || g.CtrSWThermalNS.V < 1e18 || g.CtrHWThermalNS != sample.Known(0) {
		t.Errorf("counters = %+v %+v %+v", g.CtrSWPowerNS, g.CtrSWThermalNS, g.CtrHWThermalNS)
	}
	if g.ReasonBits != sample.Known(0x24) {
		t.Errorf("reasons = %+v", g.ReasonBits)
	}
}

func TestWhatAGB10ClaimsToHaveIsNotItsMemory(t *testing.T) {
	t.Parallel()
	env := append(scenario(t, "at 0s memory 8128 mem 10501 count 2"), LibraryEnv+"="+fakenvml.Build(t))
	a := read(t, env...)
	if a.Device.MemoryTotalMiB.OK || a.GPU.ClockMemMHz != sample.Known(10501) || a.Device.Count != 2 ||
		!slices.Equal(a.Device.Absent, []string{"memory_total_mib"}) {
		t.Errorf("device %+v, memory clock %+v", a.Device, a.GPU.ClockMemMHz)
	}
}

func TestMemoryOfAGPU(t *testing.T) {
	t.Parallel()
	unknown := sample.Num{}
	for _, c := range []struct {
		name           string
		total, machine float64
		want           sample.Num
	}{
		{"NVIDIA H200", 143_771, 2_000_000, sample.Known(143_771)},
		{"NVIDIA GeForce RTX 4090", 24_564, 0, sample.Known(24_564)},
		{"NVIDIA GB10", 124_610, 124_610, unknown},
		{"NVIDIA N1X", 8128, 122_571, unknown},
		{"NVIDIA something new", 124_600, 124_610, unknown},
		{"NVIDIA something new", 0, 124_610, unknown},
	} {
		if got := memoryTotal(c.name, c.total, c.machine); got != c.want {
			t.Errorf("%s with %v of %v MiB: %+v", c.name, c.total, c.machine, got)
		}
	}
}

// NVML says "not available" in several ways; none of them is a reading.
func TestValuesThatAreNone(t *testing.T) {
	t.Parallel()
	g := read(t, append(scenario(t,
		"at 0s temp 4294967295 power 4294967.295 sm 4294967295 util 4294967295 pstate 32",
		"at 0s ctr_swthermal 9223372036854775000 energy 9223372036854775000",
	), LibraryEnv+"="+fakenvml.Build(t))...).GPU
	for name, n := range map[string]sample.Num{
		"temperature": g.TempC, "power": g.PowerW, "clock": g.ClockSMMHz, "utilisation": g.UtilPct, "P-state": g.PState,
		"counter": g.CtrSWThermalNS, "energy": g.EnergyJ,
	} {
		if n.OK {
			t.Errorf("%s = %v", name, n.V)
		}
	}
	if len(g.Failed) != 0 || !g.ReasonBits.OK || !g.CtrSWPowerNS.OK {
		t.Errorf("failed %v, reasons %+v", g.Failed, g.ReasonBits)
	}
	// Zero is a reading: a GPU at idle is used to 0 %.
	idle := read(t, append(scenario(t, "at 0s util 0 sm 2411 power 4.5"), LibraryEnv+"="+fakenvml.Build(t))...).GPU
	if idle.UtilPct != sample.Known(0) || idle.ClockSMMHz != sample.Known(2411) {
		t.Errorf("idle: %+v", idle)
	}
}

func TestMissingSymbolsCostTheirReadingOnly(t *testing.T) {
	t.Parallel()
	for _, symbol := range []string{
		"nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues", "nvmlErrorString", "nvmlSystemGetDriverVersion",
		"nvmlDeviceGetComputeRunningProcesses_v3",
	} {
		a := read(t, LibraryEnv+"="+fakenvml.Build(t, fakenvml.Omit(symbol)))
		if a.Err != "" || !a.GPU.TempC.OK {
			t.Errorf("without %s: %s, temperature %+v", symbol, a.Err, a.GPU.TempC)
		}
		if symbol == "nvmlDeviceGetPowerUsage" && (a.GPU.PowerW.OK || !slices.Contains(a.Device.Absent, "power_gpu_w")) {
			t.Errorf("without %s: power %+v, absent %v", symbol, a.GPU.PowerW, a.Device.Absent)
		}
		if symbol == "nvmlDeviceGetComputeRunningProcesses_v3" && a.GPU.Processes == nil {
			t.Error("the older call for processes was not used")
		}
	}
	a := read(t, LibraryEnv+"="+fakenvml.Build(t, fakenvml.Minimal))
	if a.Err != "" || !a.GPU.TempC.OK || a.GPU.UtilPct.OK || a.GPU.Processes != nil || len(a.GPU.Failed) != 0 {
		t.Errorf("a minimal library: %+v", a)
	}
	if len(a.Device.Absent) != 13 {
		t.Errorf("absent = %v", a.Device.Absent)
	}
}

func TestAnOldDriverCallsThemThrottleReasons(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t, fakenvml.Omit("nvmlDeviceGetCurrentClocksEventReasons"))
	a := read(t, append(scenario(t, "at 0s reasons 0x40"), LibraryEnv+"="+lib)...)
	if a.GPU.ReasonBits != sample.Known(0x40) {
		t.Errorf("reasons = %+v", a.GPU.ReasonBits)
	}
}

func TestWaysOfNotBeingThere(t *testing.T) {
	t.Parallel()
	lib := LibraryEnv + "=" + fakenvml.Build(t)
	for name, c := range map[string]struct {
		env  []string
		kind Kind
	}{
		"no library":         {[]string{LibraryEnv + "=/nonexistent/libnvidia-ml.so.1"}, NoLibrary},
		"relative path":      {[]string{LibraryEnv + "=libnvidia-ml.so.1"}, NoLibrary},
		"driver not loaded":  {[]string{lib, "FAKENVML_INIT_RC=9"}, NoDriver},
		"version mismatch":   {[]string{lib, "FAKENVML_INIT_RC=18"}, NoDriver},
		"no permission":      {[]string{lib, "FAKENVML_INIT_RC=4"}, Other},
		"unknown code":       {[]string{lib, "FAKENVML_INIT_RC=4711"}, Other},
		"no GPU":             {append(scenario(t, "at 0s count 0"), lib), NoDevice},
		"GPU lost":           {append(scenario(t, "at 0s fail all 15"), lib), Lost},
		"GPU wants a reset":  {append(scenario(t, "at 0s fail all 16"), lib), ResetRequired},
		"bad test scenarios": {append(scenario(t, "at 0s tmp 15"), lib), Other},
	} {
		a := read(t, c.env...)
		if a.Kind != c.kind || a.Err == "" {
			t.Errorf("%s: kind %q, want %q (%s)", name, a.Kind, c.kind, a.Err)
		}
	}
}

func TestAReadingThatFailsIsNamedAndAskedAgain(t *testing.T) {
	t.Parallel()
	a := read(t, append(scenario(t, "at 0s fail temp 999 fail counters 10"), LibraryEnv+"="+fakenvml.Build(t))...)
	for _, name := range []string{"temp_gpu_c", "ctr_swpower_ns", "ctr_hwpower_ns"} {
		if a.GPU.Failed[name] == "" {
			t.Errorf("%s is not named in %v", name, a.GPU.Failed)
		}
	}
	if a.GPU.TempC.OK || !a.GPU.PowerW.OK || slices.Contains(a.Device.Absent, "temp_gpu_c") {
		t.Errorf("reading = %+v, absent %v", a.GPU, a.Device.Absent)
	}
}

// What has answered before is not given up for one "not supported".
func TestAReadingThatGoesAwayComesBack(t *testing.T) {
	t.Parallel()
	a := read(t, append(scenario(t, "at 0s util 97 power 80", "at 0.7s util na fail power 3", "at 1.4s util 96 fail power 0"), LibraryEnv+"="+fakenvml.Build(t), readFor+"=2s")...)
	gone := 0
	for _, g := range a.Series {
		if !g.UtilPct.OK {
			gone++
			if g.Failed["util_gpu_pct"] == "" {
				t.Fatalf("it is not named in %v", g.Failed)
			}
		}
	}
	if gone == 0 || a.GPU.UtilPct.V != 96 || !a.GPU.PowerW.OK || slices.Contains(a.Device.Absent, "util_gpu_pct") {
		t.Errorf("gone in %d of %d readings, at the end %+v, absent %v", gone, len(a.Series), a.GPU, a.Device.Absent)
	}
}

// A device of which no reading is left is one failure, and is back when they are.
func TestADeviceWithoutAnyReading(t *testing.T) {
	t.Parallel()
	a := read(t, append(scenario(t, "at 0s util 97 power 80", "at 0.7s fail all 999", "at 1.4s fail all 0"), LibraryEnv+"="+fakenvml.Build(t), readFor+"=2s")...)
	dead := 0
	for i, g := range a.Series {
		if a.Dead[i] == "" {
			continue
		}
		if dead++; len(g.Failed) != 1 || g.Failed["nvml"] == "" {
			t.Fatalf("failed = %v", g.Failed)
		}
	}
	if dead == 0 || a.Dead[len(a.Dead)-1] != "" || !a.GPU.PowerW.OK {
		t.Errorf("dead in %d of %d readings, at the end %+v", dead, len(a.Series), a.GPU)
	}
}

func TestALostGPUIsOneFailure(t *testing.T) {
	t.Parallel()
	a := read(t, append(scenario(t, "at 0s fail power 15"), LibraryEnv+"="+fakenvml.Build(t))...)
	if len(a.GPU.Failed) != 1 || a.GPU.Failed["nvml"] == "" || a.GPU.UtilPct.OK {
		t.Errorf("failed = %v, utilisation %+v", a.GPU.Failed, a.GPU.UtilPct)
	}
}

// A program that counts on lazy binding dies before main under these.
func TestEagerBindingDoesNotKill(t *testing.T) {
	t.Parallel()
	lib := LibraryEnv + "=" + fakenvml.Build(t, fakenvml.Minimal)
	if a := read(t, lib, "LD_BIND_NOW=1"); a.Err != "" {
		t.Errorf("LD_BIND_NOW=1: %s", a.Err)
	}
	exe := filepath.Join(t.TempDir(), "once")
	build := exec.Command("go", "build", "-ldflags=-extldflags=-Wl,-z,now", "-o", exe, "./testdata/once")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	once := exec.Command(exe)
	once.Env = append(os.Environ(), lib)
	if out, err := once.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("NVIDIA GB10")) {
		t.Errorf("linked with -z now: %v\n%s", err, out)
	}
}
