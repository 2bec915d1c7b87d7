package preflight

import (
	"context"
	"strings"
	"testing"
)

func TestH17(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		env      []string
		packages []string
		value    string
		fix      string
	}{
		{name: "none", value: "pass"},
		{name: "a search for an error", env: []string{"CUDA_LAUNCH_BLOCKING", "1"}, value: "warn: CUDA_LAUNCH_BLOCKING=1: every kernel is waited for", fix: "unset CUDA_LAUNCH_BLOCKING"},
		{name: "switched off", env: []string{"CUDA_LAUNCH_BLOCKING", "0", "TRITON_INTERPRET", "False"}, value: "pass"},
		{name: "0 does not switch this off", env: []string{"PYTORCH_NO_CUDA_MEMORY_CACHING", "0"}, value: "warn: PYTORCH_NO_CUDA_MEMORY_CACHING=0: each tensor is taken from the driver anew"},
		{
			name: "no longer read", env: []string{"HF_HUB_ENABLE_HF_TRANSFER", "1"}, packages: []string{"huggingface_hub-1.23.0"},
			value: "info: HF_HUB_ENABLE_HF_TRANSFER=1: deprecated: huggingface_hub from 1.0 on ignores it, and from 1.23 on prints a FutureWarning", fix: "export HF_XET_HIGH_PERFORMANCE=1",
		},
		{name: "still read", env: []string{"HF_HUB_ENABLE_HF_TRANSFER", "1"}, packages: []string{"huggingface_hub-0.36.0"}, value: "pass"},
		{name: "read by what is not there", env: []string{"HF_HUB_ENABLE_HF_TRANSFER", "1"}, value: "pass"},
		{name: "not set to something true", env: []string{"HF_HUB_ENABLE_HF_TRANSFER", "0"}, packages: []string{"huggingface_hub-1.23.0"}, value: "pass"},
		{
			name: "the worse of two", env: []string{"HF_HUB_ENABLE_HF_TRANSFER", "1", "CUDA_LAUNCH_BLOCKING", "1", "TORCH_DISTRIBUTED_DEBUG", "DETAIL"}, packages: []string{"huggingface_hub-1.23.0"},
			value: "warn: HF_HUB_ENABLE_HF_TRANSFER=1: ", fix: "unset CUDA_LAUNCH_BLOCKING",
		},
	} {
		f := checkOnSpark(t, Input{Getenv: env(c.env...), Job: pythonJob(venvPython)}, packages(c.packages...), lookVariables, judgeVariables)
		if !strings.HasPrefix(f.Value(), c.value) || !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%s: %q, fix %q", c.name, f.Value(), f.Fix)
		}
		if f.Status == Warn && (f.Cost == "" || f.Fix == "") {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
	f := checkOnSpark(t, Input{Getenv: env(), Job: pythonJob(venvPython)}, packages("huggingface_hub-1.23.0"), lookVariables, judgeVariables)
	if f.Status != Pass || !strings.Contains(strings.Join(f.Evidence, "\n"), "HF_XET_HIGH_PERFORMANCE=1") {
		t.Errorf("the reminder: %+v", f)
	}
}

// What the command itself sets counts like what is around it, and goes before that.
func TestH17OfTheCommandItself(t *testing.T) {
	t.Parallel()
	set := pythonJob(venvPython)
	set.Env = map[string]string{"CUDA_LAUNCH_BLOCKING": "1"}
	f := checkOnSpark(t, Input{Getenv: env(), Job: set}, nil, lookVariables, judgeVariables)
	if f.Status != Warn || !strings.Contains(f.Fix, "take CUDA_LAUNCH_BLOCKING out of the command") {
		t.Errorf("set by the command: %+v", f)
	}
	gone := pythonJob(venvPython)
	gone.EnvUnset = []string{"CUDA_LAUNCH_BLOCKING"}
	if f := checkOnSpark(t, Input{Getenv: env("CUDA_LAUNCH_BLOCKING", "1"), Job: gone}, nil, lookVariables, judgeVariables); f.Status != Pass {
		t.Errorf("taken away by the command: %+v", f)
	}
	inside := clientJob(t, strings.Fields("docker run img bash -c x"))
	inside.Env, inside.EnvCleared = set.Env, true
	f = judgeVariables(variablesSeen{}, facts{stack: loadedStack(t), platform: DGXSpark, job: inside, getenv: env()})
	if f.Status != Warn || !strings.Contains(f.Fix, "out of the command") {
		t.Errorf("exported inside a container: %+v", f)
	}
}

func TestH17OfContainers(t *testing.T) {
	t.Parallel()
	s := loadedStack(t)
	getenv := env("CUDA_LAUNCH_BLOCKING", "1")
	for _, c := range []struct {
		name, line string
		image      imageFacts
		value, fix string
	}{
		{"the host's do not reach it", "docker run img", imageFacts{}, "pass", ""},
		{"passed on", "docker run -e CUDA_LAUNCH_BLOCKING img", imageFacts{}, "warn: CUDA_LAUNCH_BLOCKING=1: every kernel is waited for", "take CUDA_LAUNCH_BLOCKING out of the flags of docker"},
		{"all passed on", "podman run --env-host img", imageFacts{}, "warn: CUDA_LAUNCH_BLOCKING=1: every kernel is waited for", "unset"},
		{"of the image", "docker run img", imageFacts{known: true, facts: ImageFacts{Env: map[string]string{"CUDA_LAUNCH_BLOCKING": "1"}}}, "warn: CUDA_LAUNCH_BLOCKING=1: every kernel is waited for", "out of the image"},
		{"switched off by a flag", "docker run -e CUDA_LAUNCH_BLOCKING=0 img", imageFacts{known: true, facts: ImageFacts{Env: map[string]string{"CUDA_LAUNCH_BLOCKING": "1"}}}, "pass", ""},
		{"a file that is not there", "docker run --env-file nowhere img", imageFacts{}, "info: the file of --env-file cannot be read: ", ""},
	} {
		j := clientJob(t, strings.Fields(c.line))
		seen := lookVariables(context.Background(), view{root: rootOf(t.TempDir()), getenv: getenv, job: j, stack: s})
		f := judgeVariables(seen, facts{stack: s, platform: DGXSpark, job: j, getenv: getenv, image: c.image})
		if !strings.HasPrefix(f.Value(), c.value) || !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%s: %q, fix %q", c.name, f.Value(), f.Fix)
		}
	}
}
