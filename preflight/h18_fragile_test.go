package preflight

import (
	"strings"
	"testing"

	"sparkrun/configs"
	"sparkrun/internal/job"
)

func TestH18(t *testing.T) {
	t.Parallel()
	s := loadedStack(t)
	trl := func(j job.Job) *job.Job { j.Profile = "trl"; return &j }
	for _, c := range []struct {
		name     string
		job      *job.Job
		packages map[string]string
		inside   bool
		nvfp4    string
		value    string
		proof    string
	}{
		{name: "nothing", job: trl(job.Job{}), packages: map[string]string{"torch": "2.9.0", "peft": "0.19.1"}, value: "pass"},
		{name: "no command", packages: map[string]string{"llamafactory": "0.9"}, value: "pass"},
		{name: "LLaMA-Factory", job: &job.Job{Profile: "llama-factory"}, value: "info: LLaMA-Factory: more fragile than the rest on this machine", proof: "TRL or PEFT"},
		{name: "NeMo in its container", job: &job.Job{Profile: "nemo-automodel"}, inside: true, value: "pass"},
		{name: "NeMo outside", job: &job.Job{Profile: "nemo-automodel"}, value: "info: NeMo: more fragile", proof: "nemo-automodel"},
		{name: "xformers", job: trl(job.Job{}), packages: map[string]string{"xformers": "0.0.33"}, value: "info: xformers 0.0.33: ", proof: "TORCH_CUDA_ARCH_LIST=12.1"},
		{name: "xformers of an image", job: trl(job.Job{Container: &job.Container{Image: "x"}}), packages: map[string]string{"xformers": "0.0.33"}, value: "pass"},
		{name: "a release of vLLM", packages: map[string]string{"vllm": "0.13.0+cu130"}, value: "info: vLLM release 0.13.0+cu130: ", proof: "wheels.vllm.ai/nightly/cu130"},
		{name: "a nightly vLLM", packages: map[string]string{"vllm": "0.13.1.dev12+g1a2b3c.cu130"}, value: "pass"},
		{name: "a vLLM without a version", packages: map[string]string{"vllm": "source"}, value: "pass"},
		{name: "two", packages: map[string]string{"transformer_engine": "2.8.0", "flash_attn": "2.8.3"}, value: "info: Transformer Engine 2.8.0, flash-attn 2.8.3: ", proof: "NVFP4BlockScaling"},
		{name: "NVFP4 outside", nvfp4: "train.py:3: NVFP4BlockScaling", value: "info: NVFP4 outside a container: ", proof: "train.py:3"},
		{name: "NVFP4 inside", nvfp4: "train.py:3: NVFP4BlockScaling", inside: true, value: "pass"},
	} {
		f := facts{stack: s, platform: DGXSpark, job: c.job, getenv: env(), python: pythonFacts{packages: c.packages}}
		if c.inside {
			f.container.marker = "/.dockerenv"
		}
		got := judgeFragile(fragileSeen{c.nvfp4}, f)
		if !strings.HasPrefix(got.Value(), c.value) || !strings.Contains(strings.Join(got.Evidence, "\n"), c.proof) {
			t.Errorf("%s: %q %q", c.name, got.Value(), got.Evidence)
		}
	}
	if got := judgeFragile(fragileSeen{}, facts{stack: s, platform: GenericNVIDIA}); !got.ByDesign {
		t.Errorf("another machine: %q", got.Value())
	}
}

// A profile that is renamed would be fragile no longer.
func TestProfilesOfFragileSoftwareExist(t *testing.T) {
	t.Parallel()
	for _, r := range loadedStack(t).Fragile {
		for _, profile := range r.Profiles {
			text, err := configs.FS.ReadFile("trainers/" + profile + ".yaml")
			if err != nil || !strings.Contains("\n"+string(text), "\nname: "+profile+"\n") {
				t.Errorf("%s: no profile %s: %v", r.What, profile, err)
			}
		}
	}
}
