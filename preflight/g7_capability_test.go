package preflight

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sparkrun/internal/job"
)

func TestG7WhereNVFP4IsAskedFor(t *testing.T) {
	t.Parallel()
	const literal = "G7 PASS: SM121 hardware capability confirmed (partial — verify the kernel target arch (sm_121a) manually, see gotcha-checks.md G7)"
	const untold = "info: NVFP4 is asked for, and it is not told whether its kernels are built for sm_121a; FP8 does not depend on that"
	// The target's name lies across two parts of the reading.
	built := strings.Repeat("\x00", 1<<20-3) + "sm_121a" + strings.Repeat("\x01", 100)
	for _, c := range []struct {
		name  string
		line  string
		knobs []string
		files map[string]string
		env   []string
		path  string
		value string
		proof string
	}{
		{name: "not asked for", line: "python train.py --output_dir /runs/nvfp4-against-fp8", value: "pass"},
		{name: "a setting", line: "python train.py --quantization nvfp4", value: untold, proof: "NVFP4 is asked for: --quantization = nvfp4"},
		{name: "a setting of another name", line: "python train.py --kernels=NVFP4", value: untold, proof: "kernels"},
		{name: "switched off", line: "python train.py --load_in_nvfp4 false", value: "pass"},
		{name: "the model's name", line: "python train.py", knobs: []string{"model", "nvidia/Qwen3-32B-NVFP4"}, value: untold, proof: "the model nvidia/Qwen3-32B-NVFP4"},
		{
			name: "the model's files", line: "python train.py", knobs: []string{"model", "base"}, value: untold, proof: "/home/ada/base/hf_quant_config.json",
			files: map[string]string{"home/ada/base/hf_quant_config.json": `{"quantization": {"quant_algo": "NVFP4"}}`},
		},
		{
			name: "the model's files, behind a mount", line: "python train.py", knobs: []string{"model", "/models/x"}, path: "/data/x", value: untold, proof: "/data/x/config.json",
			files: map[string]string{"data/x/config.json": `{"quantization_config": {"format": "nvfp4-pack-quantized"}}`},
		},
		{
			name: "the script", line: "python train.py", value: untold, proof: "train.py:3: NVFP4BlockScaling",
			files: map[string]string{"home/ada/train.py": "from transformer_engine.common import recipe\n# recipe.NVFP4BlockScaling is no use here\nr = recipe.NVFP4BlockScaling()\n"},
		},
		{name: "behind a comment", line: "python train.py", value: "pass", files: map[string]string{"home/ada/train.py": "x = 1 # NVFP4BlockScaling\n"}},
		{
			name: "a model's files, by a flag that no profile knows", line: "python train.py --model_name_or_path /data/x", value: untold, proof: "/data/x/config.json",
			files: map[string]string{"data/x/config.json": `{"quantization_config": {"format": "nvfp4-pack-quantized"}}`},
		},
		{name: "built for it", line: "python train.py --quantization nvfp4", files: map[string]string{venvSite + "vllm/_C.abi3.so": built}, value: "pass", proof: "sm_121a is named in /" + venvSite + "vllm/_C.abi3.so"},
		{
			name: "built for others", line: "python train.py --quantization nvfp4", value: untold, proof: "2 built extensions do not name sm_121a",
			files: map[string]string{venvSite + "vllm/_C.abi3.so": "sm_100a sm_121", venvSite + "flashinfer/a.so": "x", venvSite + "vllm/notes.txt": "sm_121a"},
		},
		{name: "to be built for it", line: "python train.py --quantization nvfp4", env: []string{"TORCH_CUDA_ARCH_LIST", "9.0;12.1a"}, value: "info: NVFP4 is asked for, and what is built here is built for sm_121a"},
		{
			name: "to be built for others", line: "python train.py --quantization nvfp4", env: []string{"TORCH_CUDA_ARCH_LIST", "9.0 12.1+PTX"},
			value: "warn: NVFP4 is asked for, and TORCH_CUDA_ARCH_LIST (9.0 12.1+PTX) does not build for sm_121a: about 32 % slower than FP8", proof: "TORCH_CUDA_ARCH_LIST=9.0 12.1+PTX in the environment",
		},
		{
			name: "in a container, by its flags", line: "docker run --gpus all -e TORCH_CUDA_ARCH_LIST=12.0 img python train.py --quantization nvfp4", env: []string{"TORCH_CUDA_ARCH_LIST", "12.1a"},
			value: "warn: NVFP4 is asked for, and TORCH_CUDA_ARCH_LIST (12.0) does not build for sm_121a: about 32 % slower than FP8",
		},
		{
			name: "in a container, the host's does not count", line: "docker run --gpus all img python train.py --quantization nvfp4", env: []string{"TORCH_CUDA_ARCH_LIST", "12.0"},
			value: untold, proof: "no built extension was looked at",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var j *job.Job
			argv := strings.Fields(c.line)
			if argv[0] == "docker" {
				j = clientJob(t, argv)
			} else {
				j = &job.Job{Argv: argv, Dir: "/home/ada", Interpreter: venvPython, Script: "train.py", Knobs: job.Knobs{}}
			}
			for i := 0; i+1 < len(c.knobs); i += 2 {
				j.Knobs[job.Knob(c.knobs[i])] = job.Setting{Value: c.knobs[i+1]}
			}
			files := packages()
			for name, text := range c.files {
				files[name] = text
			}
			f := checkOnSpark(t, Input{Getenv: env(c.env...), Job: j, ModelPath: func() string { return c.path }}, files, lookCapability, judgeCapability)
			if f.Value() != c.value || f.Status == Pass && f.Line != literal {
				t.Errorf("%q\n%s", f.Value(), f.Line)
			}
			if all := strings.Join(f.Evidence, "\n"); !strings.Contains(all, c.proof) {
				t.Errorf("evidence %q lacks %q", all, c.proof)
			}
			if f.Status == Warn && !strings.Contains(f.Fix, "use FP8") {
				t.Errorf("fix %q", f.Fix)
			}
		})
	}
	r := Run(t.Context(), Input{Root: "testdata/laptop", Getenv: env(), Device: noLibrary, Job: &job.Job{Argv: []string{"python", "x.py", "--quantization", "nvfp4"}}})
	if f := find(t, r, "G7"); f.Value() != "skip: no NVIDIA GPU on this machine (by design)" {
		t.Errorf("a laptop: %q", f.Value())
	}
}

func TestExtensionsAreReadInPartOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	late := strings.Repeat("x", 3<<20) + "sm_121a"
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("site/a/1.so", late)
	write("site/a/2.so", "sm_121a")
	if err := syscall.Mkfifo(filepath.Join(dir, "site/a/0.so"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := nvfp4Facts{Target: "sm_121a", Extensions: []string{"a/*.so"}, ReadOneMiB: 2, ReadAllMiB: 10}
	look := func(ctx context.Context, n nvfp4Facts) (string, int) {
		return builtFor(ctx, rootOf(dir), []string{"/nowhere", "/site"}, n)
	}
	if file, looked := look(t.Context(), n); file != "/site/a/2.so" || looked != 2 {
		t.Errorf("%q, %d looked at", file, looked)
	}
	n.ReadOneMiB = 4
	if file, looked := look(t.Context(), n); file != "/site/a/1.so" || looked != 1 {
		t.Errorf("all of it: %q, %d looked at", file, looked)
	}
	n.ReadOneMiB, n.ReadAllMiB = 2, 2
	if file, looked := look(t.Context(), n); file != "" || looked != 1 {
		t.Errorf("no more than that of all: %q, %d looked at", file, looked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.ReadAllMiB = 10
	if file, looked := look(ctx, n); file != "" || looked != 0 {
		t.Errorf("the time is up: %q, %d looked at", file, looked)
	}
}
