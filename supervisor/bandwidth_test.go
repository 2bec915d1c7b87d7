package supervisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkrun/preflight"
)

// torchDouble is a torch in pure Python: a GPU whose copies take the time that %RATE%
// bytes a second would.
const torchDouble = `
import time
__version__ = "9.9.0"
float32 = "float32"
class Tensor:
    def __init__(self, n): self.n = n
    def clone(self):
        time.sleep(self.n * 8 / RATE)
        return Tensor(self.n)
    def numel(self): return self.n
    def element_size(self): return 4
def ones(n, dtype, device):
    assert device == "cuda:0" and dtype == float32
    return Tensor(n)
class cuda:
    is_available = staticmethod(lambda: AVAILABLE)
    get_device_name = staticmethod(lambda i: "NVIDIA Double")
    mem_get_info = staticmethod(lambda i: (FREE, FREE))
    synchronize = staticmethod(lambda: None)
    max_memory_allocated = staticmethod(lambda i: 12)
    empty_cache = staticmethod(lambda: None)
RATE, AVAILABLE, FREE = 1e12, True, 10**12
`

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	return path
}

// double returns an environment in which torch is the double, with more lines.
func double(t *testing.T, more string) []string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "torch")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "__init__.py"), []byte(torchDouble+more+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), "PYTHONPATH="+filepath.Dir(dir))
}

func TestMeasureBandwidth(t *testing.T) {
	t.Parallel()
	interp := python(t)
	const tooLittle = "too little memory free"
	for _, c := range []struct {
		name, more string
		elements   int64
		failed     string
		bytes      int64
	}{
		{"a figure", "", 1e9, "", 4e9},
		{"as much as is free", "FREE = 6 * 10**9", 0, "", 4 * (36e8 / 12)},
		{"never more than the most", "", 0, "", 4e9},
		{"too little free", "FREE = 10**6", 0, tooLittle, 0},
		{"no CUDA device", "AVAILABLE = False", 1e9, "torch 9.9.0 finds no CUDA device", 0},
		{"a torch that does not import", "raise ImportError('libcudart.so.12: cannot open')", 1e9, "ImportError: libcudart.so.12", 0},
		{"out of memory", "def ones(*a, **k): raise RuntimeError('CUDA out of memory')", 1e9, "RuntimeError: CUDA out of memory", 0},
		{"a torch that ends Python", "import os; os._exit(3)", 1e9, "ended with status 3", 0},
		{"a torch that crashes", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 1e9, "was ended by SIGSEGV", 0},
		{"a torch that is talkative", "print('hello'); print('sparkrun-bandwidth: x')", 1e9, "", 4e9},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := measureBandwidth(t.Context(), preflight.BandwidthPlan{
				Interpreter: interp, Dir: t.TempDir(), Elements: c.elements, Most: 1e9, Copies: 3, Limit: time.Minute,
			}, double(t, c.more))
			if c.failed != "" {
				got := b.Failed
				if c.failed == tooLittle {
					got = b.Refused // it was not tried
				}
				if !strings.Contains(got, c.failed) || (b.Failed == "") == (b.Refused == "") || b.GBps != 0 {
					t.Errorf("%+v", b)
				}
				return
			}
			// The double sleeps, so that only the upper bound is sharp.
			if b.Refused+b.Failed != "" || b.GBps <= 0 || b.GBps > 1000 || b.Bytes != c.bytes || b.Copies != 3 || b.Device != "NVIDIA Double" || b.Torch != "9.9.0" || b.PeakBytes != 12 || b.Interpreter != interp {
				t.Errorf("%+v", b)
			}
		})
	}
}

// A torch that hangs is ended with what it started, and so is one when the user gives up.
func TestMeasureBandwidthEndsWhatHangs(t *testing.T) {
	t.Parallel()
	interp := python(t)
	hangs := func(pidFile string) []string {
		return double(t, "import subprocess, os\np = subprocess.Popen(['sleep', '600'])\nopen('"+pidFile+".new', 'w').write(str(p.pid))\nos.rename('"+pidFile+".new', '"+pidFile+"')\ntime.sleep(600)")
	}
	plan := preflight.BandwidthPlan{Interpreter: interp, Dir: "/", Elements: 1, Most: 1, Copies: 1}
	// However busy the machine is: until Python was given the time to start its child.
	for limit := 1500 * time.Millisecond; ; limit *= 2 {
		pidFile := filepath.Join(t.TempDir(), "pid")
		plan.Limit = limit
		b := measureBandwidth(t.Context(), plan, hangs(pidFile))
		want := preflight.Bandwidth{Failed: fmt.Sprintf("%s gave no answer in time (%g s)", interp, limit.Seconds()), Interpreter: interp}
		if *b != want {
			t.Fatalf("%+v", b)
		}
		if _, err := os.Stat(pidFile); err == nil || limit > 30*time.Second {
			gone(t, pidFile)
			break
		}
	}

	pidFile := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(pidFile); err == nil {
				cancel()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	plan.Limit = time.Minute
	if b := measureBandwidth(ctx, plan, hangs(pidFile)); *b != (preflight.Bandwidth{Refused: "interrupted", Interpreter: interp}) {
		t.Errorf("%+v", b)
	}
	gone(t, pidFile)
}

func TestReadBandwidth(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                        "none",
		"sparkrun-bandwidth:{}\n":                 "none", // not at the start of a line of its own
		"\nsparkrun-bandwidth:{}":                 "none", // torn
		"\nsparkrun-bandwidth:{\n":                "none",
		"\nsparkrun-bandwidth:{}\n":               "the measurement gave no figure",
		"\nsparkrun-bandwidth:[1]\n":              "none",
		"\nsparkrun-bandwidth:{\"gbps\":-3}\n":    "the measurement gave no figure",
		"\nsparkrun-bandwidth:{\"gbps\":\"x\"}\n": "none",
		"\nsparkrun-bandwidth:{\"gbps\":3}\nsparkrun-bandwidth:{\"gbps\":4}\nx": "",
	} {
		b, ok := readBandwidth(text)
		got := "none"
		if ok {
			got = b.Refused + b.Failed
		}
		if got != want || ok && want == "" && b.GBps != 4 {
			t.Errorf("%q: %+v", text, b)
		}
	}
}

// The real torch of a CPU: the figure would be one of the machine's memory.
func TestMeasureBandwidthRefusesATorchWithoutCUDA(t *testing.T) {
	t.Parallel()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Skip(err)
	}
	interp := filepath.Join(home, ".cache/sparkrun-ci/venv/bin/python")
	if _, err := os.Stat(interp); err != nil || testing.Short() {
		t.Skip("the environment with a real torch is not there (.ci makes it)")
	}
	b := measureBandwidth(t.Context(), preflight.BandwidthPlan{Interpreter: interp, Dir: t.TempDir(), Elements: 1e9, Most: 1e9, Copies: 20, Limit: time.Minute}, os.Environ())
	if !strings.Contains(b.Failed, "finds no CUDA device") {
		t.Errorf("%+v", b)
	}
	// And beforehand, by its files alone.
	in := preflight.Input{Root: "/", Getenv: func(n string) string {
		if n == "PATH" {
			return filepath.Dir(interp)
		}
		return os.Getenv(n)
	}}
	if b := MeasureBandwidth(t.Context(), in, os.Environ()); b.Refused == "" {
		t.Errorf("%+v", b)
	}
}
