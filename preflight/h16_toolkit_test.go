package preflight

import (
	"context"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

func TestH16(t *testing.T) {
	t.Parallel()
	toolkit := func(version, dir string) map[string]string {
		return map[string]string{
			"usr/local/cuda":                             "-> " + dir,
			"usr/local/" + dir + "/version.json":         `{"cuda": {"name": "CUDA SDK", "version": "` + version + `"}, "nvcc": {"version": "1"}}`,
			"usr/local/" + dir + "/bin/nvcc":             elf,
			"usr/local/" + dir + "/bin/ptxas":            elf,
			"usr/local/" + dir + "/include/cuda_fp4.hpp": "",
		}
	}
	with := func(list ...map[string]string) map[string]string {
		out := make(map[string]string)
		for _, m := range list {
			maps.Copy(out, m)
		}
		return out
	}
	cuda13 := toolkit("13.0.2", "cuda-13.0")
	old := packages("triton-3.5.1")
	const export = "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"
	const unset = "warn: triton 3.5.1 does not know sm_121a, and TRITON_PTXAS_PATH is not set"
	for _, c := range []struct {
		name     string
		files    map[string]string
		env      []string
		commands map[string]string
		value    string
		fix      string
	}{
		{name: "no toolkit", value: "pass"},
		{name: "the machine's own", files: cuda13, value: "pass"},
		{name: "by the folder's name", files: with(cuda13, map[string]string{"usr/local/cuda-13.0/version.json": "torn {"}), value: "pass"},
		{
			name: "Ubuntu's own in front", files: with(cuda13, map[string]string{"usr/bin/nvcc": elf}), commands: map[string]string{"/usr/bin/nvcc --version": "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.0, V12.0.140\n"},
			value: "info: nvcc is of CUDA 12.0, and this machine's is 13: it does not build for this GPU", fix: "export PATH=/usr/local/cuda/bin:$PATH",
		},
		{name: "an old one alone", files: toolkit("12.8.1", "cuda-12.8"), value: "info: nvcc is of CUDA 12.8.1, and this machine's is 13: it does not build for this GPU", fix: "install the CUDA 13 toolkit"},
		{name: "a version that nothing tells", files: map[string]string{"usr/bin/nvcc": elf}, value: "pass"},
		{name: "an old Triton", files: with(cuda13, old), value: unset, fix: export},
		{name: "a nightly", files: with(cuda13, packages("pytorch_triton-3.5.0+git7416ffcb")), value: "warn: triton 3.5.0+git7416ffcb does not know sm_121a, and TRITON_PTXAS_PATH is not set", fix: export},
		{name: "a newer Triton", files: with(cuda13, packages("triton-3.6.0")), value: "pass"},
		{name: "told where", files: with(cuda13, old), env: []string{"TRITON_PTXAS_PATH", "/usr/local/cuda/bin/ptxas"}, value: "pass"},
		{name: "told a place where nothing is", files: with(cuda13, old), env: []string{"TRITON_PTXAS_PATH", "/opt/ptxas"}, value: "warn: TRITON_PTXAS_PATH is /opt/ptxas in the environment, and no program is there", fix: export},
		{
			name: "told an old one", files: with(cuda13, old, map[string]string{"opt/cuda-12.8/bin/ptxas": elf}), env: []string{"TRITON_PTXAS_PATH", "/opt/cuda-12.8/bin/ptxas"},
			value: "warn: TRITON_PTXAS_PATH is a ptxas of CUDA 12.8, which does not know sm_121a", fix: export,
		},
		{name: "no newer ptxas", files: old, value: "warn: triton 3.5.1 does not know sm_121a, and there is no newer ptxas at /usr/local/cuda/bin/ptxas", fix: "install the CUDA 13 toolkit, then\n" + export},
		{name: "an old toolkit", files: with(toolkit("12.8.1", "cuda-12.8"), old), value: "warn: triton 3.5.1 does not know sm_121a, and there is no newer ptxas at /usr/local/cuda/bin/ptxas", fix: "nvcr.io"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := Input{Getenv: env(c.env...), Job: pythonJob(venvPython), Recorded: &Recorded{Commands: c.commands}}
			f := checkOnSpark(t, in, with(packages(), c.files), lookToolkit, judgeToolkit)
			if !strings.HasPrefix(f.Value(), c.value) || f.Status == Pass && c.value != "pass" || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("%q, fix %q", f.Value(), f.Fix)
			}
			if f.Status == Warn && (f.Cost == "" || f.Fix == "") {
				t.Errorf("no cost or fix: %+v", f)
			}
		})
	}
	if f := find(t, Run(t.Context(), Input{Root: filepath.Join("testdata", "laptop"), Getenv: env(), Device: noLibrary}), "H16"); !f.ByDesign {
		t.Errorf("a laptop: %q", f.Value())
	}
}

// An image is judged by what it says of itself.
func TestH16OfImages(t *testing.T) {
	t.Parallel()
	s := loadedStack(t)
	j := clientJob(t, strings.Fields("docker run --gpus all img python train.py"))
	flagged := clientJob(t, strings.Fields("docker run --gpus all -e TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas img python train.py"))
	base := facts{stack: s, platform: DGXSpark, job: j, getenv: env("TRITON_PTXAS_PATH", "/the/hosts/own"), python: pythonFacts{packages: map[string]string{"triton": "3.5.1"}}}
	known := base
	known.image = imageFacts{ref: "img", known: true, facts: ImageFacts{Env: map[string]string{"PATH": "/bin"}}}
	set := known
	set.image.facts.Env = map[string]string{"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}
	typed := known
	typed.job = flagged
	ngc := known
	ngc.torch.version = "2.10.0a0+b558c986e8.nv25.11"
	for name, c := range map[string]struct {
		f    facts
		want string
	}{
		"not asked":     {base, "info: triton 3.5.1 in the image needs TRITON_PTXAS_PATH, which the image may set"},
		"not set":       {known, "warn: triton 3.5.1 in the image does not know sm_121a, and TRITON_PTXAS_PATH is not set"},
		"by the image":  {set, "pass"},
		"by a flag":     {typed, "pass"},
		"NVIDIA's own":  {ngc, "pass"},
		"on no Spark":   {facts{stack: s, platform: Generic, job: j, getenv: env()}, "skip: no NVIDIA GPU on this machine (by design)"},
		"nothing known": {facts{stack: s, platform: DGXSpark, job: j, getenv: env()}, "pass"},
	} {
		seen := lookToolkit(context.Background(), view{root: rootOf(t.TempDir()), getenv: c.f.getenv, job: c.f.job, stack: s})
		if f := judgeToolkit(seen, c.f); f.Value() != c.want {
			t.Errorf("%s: %q", name, f.Value())
		} else if f.Status == Warn && !strings.HasPrefix(f.Fix, "add behind `docker run`: -e TRITON_PTXAS_PATH=") {
			t.Errorf("%s: %q", name, f.Fix)
		}
	}
}
