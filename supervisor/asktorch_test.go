package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkrun/preflight"
)

// A torch of a few lines stands for the real one, which takes seconds; how the question
// is put and what becomes of the answer is the same.
func TestAskTorch(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("needs python3 on PATH: %v", err)
	}
	const sees = `
__version__ = "2.9.0"
class version: cuda = "13.0"
class cuda:
    def is_available(): return True
    def get_device_name(i): return "NVIDIA GB10"
`
	const blind = `
import warnings
__version__ = "2.9.0"
class version: cuda = None
class cuda:
    def is_available():
        warnings.warn("CUDA initialization: found no driver")
        return False
`
	for _, c := range []struct {
		name, torch string
		limit       time.Duration
		want        preflight.TorchAnswer
		failed      string
	}{
		{"sees the GPU", "print('loud')" + sees, time.Minute, preflight.TorchAnswer{Torch: "2.9.0", Available: true, CUDA: "13.0", Device: "NVIDIA GB10"}, ""},
		{"does not", blind, time.Minute, preflight.TorchAnswer{Torch: "2.9.0", Problem: "CUDA initialization: found no driver"}, ""},
		{"cannot be imported", "raise ImportError('undefined symbol: x')", time.Minute, preflight.TorchAnswer{Broken: "ImportError: undefined symbol: x"}, ""},
		{"ends the process", "import os; os._exit(3)", time.Minute, preflight.TorchAnswer{}, "ended with status 3"},
		{"crashes", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", time.Minute, preflight.TorchAnswer{}, "was ended by SIGSEGV"},
		{"hangs, with a child", "import subprocess; subprocess.run(['sleep', '300'])", 2 * time.Second, preflight.TorchAnswer{}, "no answer in time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "torch.py"), []byte(c.torch), 0o644); err != nil {
				t.Fatal(err)
			}
			env := append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
			got := *askTorch(context.Background(), preflight.TorchPlan{Interpreter: python, Dir: dir, Limit: c.limit}, env)
			if !strings.Contains(got.Failed, c.failed) || (got.Failed == "") != (c.failed == "") {
				t.Errorf("failed %q, want %q", got.Failed, c.failed)
			}
			got.Failed, got.Interpreter = "", ""
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
