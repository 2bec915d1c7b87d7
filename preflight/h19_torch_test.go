package preflight

import (
	"strings"
	"testing"
)

func TestH19(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		device ask
		tree   string
		said   *TorchAnswer
		status Status
		detail string
		fix    string
	}{
		{"not asked for", gb10, "spark", nil, Skip, "only with --torch (by design)", ""},
		{"could not be asked", gb10, "spark", &TorchAnswer{Refused: "no torch in /x"}, Skip, "no torch in /x (by design)", ""},
		{"crashed", gb10, "spark", &TorchAnswer{Failed: "/x/python was ended by SIGSEGV", Interpreter: "/x/python"}, Warn, "gave no answer: /x/python was ended by SIGSEGV", "cu130"},
		{"hung", gb10, "spark", &TorchAnswer{Failed: "/x/python gave no answer in time (90 s)", Interpreter: "/x/python"}, Warn, "in time (90 s)", "nvidia-smi"},
		{"the runbook's answer", gb10, "spark", &TorchAnswer{Torch: "2.9.0", Available: true, CUDA: "13.0"}, Pass, "says True 13.0", ""},
		{"another CUDA that works", gb10, "spark", &TorchAnswer{Torch: "2.6.0", Available: true, CUDA: "12.8"}, Warn, "needs True 13.0", "cu130"},
		{"another CUDA on another GPU", rtx(12040), "workstation", &TorchAnswer{Torch: "2.6.0", Available: true, CUDA: "12.4"}, Pass, "True 12.4", ""},
		{"does not reach the GPU", gb10, "spark", &TorchAnswer{Torch: "2.9.0", CUDA: "13.0", Problem: "CUDA unknown error"}, Warn, "says False 13.0", "unset CUDA_VISIBLE_DEVICES"},
		{"built without CUDA", gb10, "spark", &TorchAnswer{Torch: "2.9.0+cpu"}, Warn, "says False None", "5. only then the wheel (G1)"},
		{"cannot be imported", gb10, "spark", &TorchAnswer{Broken: "ImportError: undefined symbol: cudaGetDriverEntryPointByVersion"}, Warn, "undefined symbol", "cu130"},
		{"no GPU at all", noLibrary, "laptop", &TorchAnswer{Torch: "2.9.0+cpu"}, Info, "no NVIDIA GPU", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := find(t, Run(t.Context(), Input{Root: "testdata/" + c.tree, Device: c.device, Getenv: env(), Torch: c.said}), "H19")
			if f.Status != c.status || !strings.Contains(f.Detail, c.detail) || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("got %s %q, fix %q", f.Status, f.Detail, f.Fix)
			}
			if f.Status == Warn && f.Cost == "" {
				t.Error("a hint that does not say what it costs")
			}
		})
	}
}
