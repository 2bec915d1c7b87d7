package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

type ask = func(context.Context) (sample.Device, sample.GPU, error)

func answers(dev sample.Device, gpu sample.GPU) ask {
	return func(context.Context) (sample.Device, sample.GPU, error) { return dev, gpu, nil }
}

var gb10Device = sample.Device{Source: "nvml", Name: "NVIDIA GB10", CapMajor: 12, CapMinor: 1, Count: 1}

func TestG3(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, meminfo string
		status        Status
		line          string
		headroom      int // -1 is unknown
	}{
		{"small machine keeps a twentieth", "MemTotal: 8000000 kB\nMemFree: 1000000 kB\nMemAvailable: 4000000 kB\n", Info, "G3 INFO: free/used (GB): 0 3", 3},
		{"less than the reserve is nothing", "MemTotal: 127600600 kB\nMemFree: 900000 kB\nMemAvailable: 2000000 kB\n", Info, "G3 INFO: free/used (GB): 0 119", 0},
		// The script printed nothing at all when it could not read.
		{"no MemAvailable", "MemTotal: 127600600 kB\nMemFree: 900000 kB\n", Skip, "", -1},
		{"garbage", "what\n", Skip, "", -1},
	} {
		r := Run(t.Context(), Input{Root: copyTree(t, "spark", map[string]string{"proc/meminfo": c.meminfo}), Device: gb10})
		f := find(t, r, "G3")
		if f.Status != c.status || c.line != "" && f.Line != c.line {
			t.Errorf("%s: %q", c.name, f.Line)
		}
		if c.status == Skip && (f.ByDesign || !strings.HasPrefix(f.Line, "G3 SKIP: ")) {
			t.Errorf("%s: an unreadable memory must count: %q", c.name, f.Line)
		}
		got := -1
		if r.HeadroomGB != nil {
			got = *r.HeadroomGB
		}
		if got != c.headroom {
			t.Errorf("%s: headroom %d, want %d", c.name, got, c.headroom)
		}
	}
}

func TestG3NamesPageCacheAndHugePages(t *testing.T) {
	t.Parallel()
	text := "MemTotal: 127600600 kB\nMemFree: 60000000 kB\nMemAvailable: 90000000 kB\nCached: 14000000 kB\nShmem: 1000000 kB\nHugePages_Total: 512\nHugePages_Free: 500\nHugepagesize: 2048 kB\n"
	f := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark", map[string]string{"proc/meminfo": text}), Device: gb10}), "G3")
	all := strings.Join(f.Evidence, "\n")
	if !strings.Contains(all, "page cache 13.3 GB") || !strings.Contains(all, "huge pages set aside 512, free 500") {
		t.Errorf("evidence:\n%s", all)
	}
	if strings.Contains(f.Detail, "by design") || f.Status != Info {
		t.Errorf("page cache is information: %+v", f)
	}
}

func TestG4(t *testing.T) {
	t.Parallel()
	warm := sample.GPU{TempC: sample.Known(68), PowerW: sample.Known(97.31)}
	for _, c := range []struct {
		name     string
		tree     string
		device   ask
		line     string
		byDesign bool
	}{
		{"reading", "spark", answers(gb10Device, warm), "G4 INFO: 68, 97.31 W", false},
		{"power unknown", "spark", answers(gb10Device, sample.GPU{TempC: sample.Known(68)}), "G4 INFO: 68, [N/A]", false},
		// The script passed "[N/A], [N/A]" off as a reading.
		{"neither known", "spark", answers(gb10Device, sample.GPU{}), "G4 SKIP: the driver gives neither temperature nor power", false},
		{"no GPU", "laptop", noLibrary, "G4 SKIP: nvidia-smi not available", true},
		{"no way to ask", "spark", nil, "G4 SKIP: nvidia-smi not available", false},
		// The script printed two lines when nvidia-smi failed on stdout.
		{"error", "spark", func(context.Context) (sample.Device, sample.GPU, error) {
			return sample.Device{}, sample.GPU{}, errors.New("NVIDIA-SMI has failed")
		}, "G4 SKIP: nvidia-smi not available", false},
	} {
		r := Run(t.Context(), Input{Root: filepath.Join("testdata", c.tree), Device: c.device})
		if f := find(t, r, "G4"); f.Line != c.line || f.ByDesign != c.byDesign {
			t.Errorf("%s: %q, by design %t", c.name, f.Line, f.ByDesign)
		}
		if n := strings.Count(r.Lines(), "G4 "); n != 1 {
			t.Errorf("%s: %d lines for G4", c.name, n)
		}
	}
}

func TestG7(t *testing.T) {
	t.Parallel()
	other := gb10Device
	other.CapMinor = 0
	none := gb10Device
	none.CapMajor, none.CapMinor = 0, 0
	for _, c := range []struct {
		name   string
		tree   string
		device ask
		line   string
	}{
		{"confirmed", "spark", gb10, "G7 PASS: SM121 hardware capability confirmed (partial — verify the kernel target arch (sm_121a) manually, see gotcha-checks.md G7)"},
		{"unexpected", "spark", answers(other, sample.GPU{}), "G7 WARN: unexpected capability (12, 0)"},
		// The script blamed torch for a GPU that did not answer.
		{"no answer", "spark", noLibrary, "G7 SKIP: capability not readable: libnvidia-ml.so.1 is not installed"},
		{"not given", "spark", answers(none, sample.GPU{}), "G7 SKIP: the driver does not give the capability"},
		{"another GPU", "laptop", rtx(12040), "G7 SKIP: not a DGX Spark (by design)"},
		{"no GPU", "laptop", noLibrary, "G7 SKIP: no NVIDIA GPU on this machine (by design)"},
	} {
		f := find(t, Run(t.Context(), Input{Root: filepath.Join("testdata", c.tree), Device: c.device, Machine: "aarch64"}), "G7")
		if f.Line != c.line {
			t.Errorf("%s: %q", c.name, f.Line)
		}
	}
	f := find(t, Run(t.Context(), Input{Root: "testdata/spark", Device: gb10, Machine: "x86_64"}), "G7")
	if !strings.Contains(strings.Join(f.Evidence, "\n"), "this machine is x86_64") {
		t.Errorf("a GB10 in an x86 machine passes unremarked: %q", f.Evidence)
	}
}

func TestG9(t *testing.T) {
	t.Parallel()
	const unknown = "G9 UNKNOWN: no container marker matched — this does not prove a bare host (cgroup v2 and some runtimes hide the marker); verify manually before assuming bare-host, prefer an NGC or Unsloth container if unsure"
	for _, c := range []struct {
		name  string
		files map[string]string
		line  string
		value string
	}{
		{"docker", map[string]string{".dockerenv": ""}, "G9 PASS: running inside a container (Docker/Podman marker file present)", "pass"},
		{"podman", map[string]string{"run/.containerenv": "engine=\"podman\"\n"}, "G9 PASS: running inside a container (Docker/Podman marker file present)", "pass"},
		{"kubernetes", map[string]string{"proc/1/cgroup": "0::/kubepods/besteffort/pod1\n"}, "G9 PASS: running inside a container (cgroup marker present)", "pass"},
		{"containerd", map[string]string{"proc/1/cgroup": "3:pids:/\n2:cpu:/system.slice/containerd.service/x\n"}, "G9 PASS: running inside a container (cgroup marker present)", "pass"},
		{"no marker", nil, unknown, "info: unknown: no container marker matched, which does not prove a bare host"},
	} {
		f := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark", c.files), Device: gb10}), "G9")
		if f.Line != c.line || f.Value() != c.value {
			t.Errorf("%s: %q, %q", c.name, f.Line, f.Value())
		}
	}
	dir := copyTree(t, "spark", nil)
	if err := os.Remove(filepath.Join(dir, "proc/1/cgroup")); err != nil {
		t.Fatal(err)
	}
	if f := find(t, Run(t.Context(), Input{Root: dir, Device: gb10}), "G9"); f.Line != "G9 SKIP: /proc/1/cgroup not readable" || f.ByDesign {
		t.Errorf("not readable: %+v", f)
	}
}

func TestContainerCommandsAreNotJudgedByTheHost(t *testing.T) {
	t.Parallel()
	const unnamed = "skip: inside an image that the command does not name (by design)"
	for _, c := range []struct {
		c        job.Container
		want, g9 string
	}{
		{job.Container{Engine: "docker", Verb: "run", Image: "nvcr.io/nvidia/pytorch:25.09-py3"}, "skip: inside image nvcr.io/nvidia/pytorch:25.09-py3 (by design)", "info: running inside nvcr.io/nvidia/pytorch:25.09-py3"},
		{job.Container{Engine: "podman", Verb: "exec", Image: "trainer"}, "skip: inside container trainer (by design)", "info: running inside container trainer"},
		{job.Container{Engine: "docker", Verb: "compose"}, unnamed, unnamed},
	} {
		// The host's own torch is of the wrong kind: it must not matter.
		r := Run(t.Context(), Input{Root: copyTree(t, "spark", torchCUDA12), Getenv: env(), Device: gb10, Job: &job.Job{Container: &c.c, Interpreter: venvPython}})
		for id, want := range map[string]string{"G1": c.want, "G2": c.want, "G9": c.g9} {
			if got := find(t, r, id).Value(); got != want {
				t.Errorf("%s: %q, want %q", id, got, want)
			}
		}
		if r.Verdict != Ready {
			t.Errorf("verdict %q", r.Verdict)
		}
	}
}

func TestH1AndThePlatform(t *testing.T) {
	t.Parallel()
	dead := func(kind, text string) ask {
		return answers(sample.Device{Source: "none", ErrKind: kind, Err: text}, sample.GPU{})
	}
	nouveau := map[string]string{
		"sys/bus/pci/devices/0000_01_00_0/vendor": "0x10de\n",
		"sys/bus/pci/devices/0000_01_00_0/class":  "0x030000\n",
		"sys/bus/pci/devices/0000_01_00_0/device": "0x2786\n",
	}
	for _, c := range []struct {
		name     string
		tree     string
		files    map[string]string
		device   ask
		platform string
		status   Status
		verdict  string
	}{
		{"answers", "spark", nil, gb10, DGXSpark, Pass, Ready},
		{"module not loaded", "spark", nil, dead("no-driver", "driver not loaded"), DGXSpark, Fail, Blocked},
		{"fell off the bus", "spark", nil, dead("lost", "GPU is lost"), DGXSpark, Fail, Blocked},
		{"library and module of different versions", "spark", nil, dead("other", "Driver/library version mismatch"), DGXSpark, Fail, Blocked},
		{"unclear error", "spark", nil, dead("other", "unknown error"), DGXSpark, Warn, ReadyWithWarnings},
		{"library not in this container", "spark", nil, noLibrary, DGXSpark, Warn, ReadyWithWarnings},
		{"another GPU", "laptop", nouveau, rtx(12040), GenericNVIDIA, Pass, Ready},
		{"another GPU, driver dead", "laptop", nouveau, dead("no-driver", "driver not loaded"), GenericNVIDIA, Fail, Blocked},
		{"card without NVIDIA's driver", "laptop", nouveau, noLibrary, Generic, Skip, Ready},
		{"library without a card", "laptop", nil, dead("no-driver", "driver not loaded"), Generic, Skip, Ready},
		{"no GPU", "laptop", nil, noLibrary, Generic, Skip, Ready},
		{"a driver that serves nothing", "laptop", nil, answers(sample.Device{Source: "nvml"}, sample.GPU{}), Generic, Skip, Ready},
		{"an OEM box", "laptop", nil, gb10, DGXSpark, Pass, Ready},
	} {
		// Without a PATH no Python is found, so that G1 has nothing to judge.
		r := Run(t.Context(), Input{Root: copyTree(t, c.tree, c.files), Device: c.device})
		f := find(t, r, "H1")
		if r.Platform != c.platform || f.Status != c.status || r.Verdict != c.verdict {
			t.Errorf("%s: platform %s, H1 %s (%s), verdict %s", c.name, r.Platform, f.Status, f.Detail, r.Verdict)
		}
		if f.Status == Fail && f.Fix == "" {
			t.Errorf("%s: no fix", c.name)
		}
	}
}

// A wedged driver blocks for minutes, and a FIFO or a dead file server for ever;
// neither may hold up the run longer than the limit.
func TestNothingIsWaitedForBeyondTheLimit(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "spark", torchCUDA12)
	fifo := filepath.Join(dir, venvTorch, "version.py")
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	hang := func(context.Context) (sample.Device, sample.GPU, error) {
		<-release // deaf to its context, as a cgo call is
		return sample.Device{}, sample.GPU{}, nil
	}
	// Long enough for the other readings, on a machine that has other things to do.
	const limit = time.Second
	done := make(chan Report, 1)
	go func() {
		done <- Run(t.Context(), Input{Root: dir, Getenv: env(), Device: hang, Limit: limit, Job: pythonJob(venvPython)})
	}()
	var r Report
	select {
	case r = <-done:
	case <-time.After(30 * limit):
		t.Fatal("preflight waits for the driver")
	}
	for id, want := range map[string]string{"G4": "G4 SKIP: no answer within 1 s", "G7": "G7 SKIP: no answer within 1 s"} {
		if f := find(t, r, id); f.Line != want || f.ByDesign {
			t.Errorf("%s: %q", id, f.Line)
		}
	}
	if h := find(t, r, "H1"); h.Status != Warn {
		t.Errorf("H1 of a driver that does not answer: %+v", h)
	}
	if r.Platform != DGXSpark || r.Verdict != ReadyWithWarnings {
		t.Errorf("platform %s, verdict %s", r.Platform, r.Verdict)
	}
}

// The wrapped path has 300 ms for everything; reading folders must be a small
// part of it.
func BenchmarkRun(b *testing.B) {
	in := Input{Root: "testdata/spark-ngc", Getenv: env(), Device: gb10, Job: pythonJob("/usr/bin/python3")}
	for b.Loop() {
		Run(b.Context(), in)
	}
}

func TestStackTable(t *testing.T) {
	t.Parallel()
	s, err := loadStack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.DateOnly, s.AsOf); err != nil {
		t.Errorf("as_of: %v", err)
	}
	// These stand in the runbook's literal lines as well.
	if s.Spark.CUDAMajor != 13 || s.Spark.Capability != [2]int{12, 1} || s.Spark.GPUName == "" || s.Spark.PCIDevice == "" {
		t.Errorf("table %+v", s.Spark)
	}
}
