package runlog

import (
	"fmt"
	"testing"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// nightManifest is run.json of a usual night: a shell's environment, a TRL
// command, three attempts.
func nightManifest(id string) *Manifest {
	env := map[string]string{
		"PATH": "/home/ada/.venv/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/home/ada", "SHELL": "/bin/bash", "LANG": "C.UTF-8", "TERM": "xterm-256color", "PWD": "/home/ada/night",
		"HF_HOME": "/data/hf_home", "HF_TOKEN": "hf_abcdefghij0123456789", "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
		"PIP_INDEX_URL": "https://ada:pw@pypi.example.org/simple", "LESSOPEN": "| /usr/bin/lesspipe %s",
		"SSH_CONNECTION": "192.0.2.7 51234 192.0.2.9 22", "NVIDIA_REQUIRE_CUDA": "cuda>=9.0 brand=tesla,driver>=470,driver<471",
		"LS_COLORS": "rs=0:di=01;34:ln=01;36:mh=00:pi=40;33:so=01;35:do=01;35:bd=40;33;01:cd=40;33;01:or=40;31;01:mi=00:su=37;41:sg=30;43:ca=00:tw=30;42:ow=34;42:st=37;44:ex=01;32:*.tar=01;31:*.tgz=01;31:*.arc=01;31:*.arj=01;31:*.zip=01;31:*.z=01;31:*.gz=01;31",
	}
	for i := range 50 {
		env[fmt.Sprintf("SOME_SETTING_%02d", i)] = "/opt/vendor/share/something/with/a/path:and another word"
	}
	m := &Manifest{
		ID: id, Name: "train", Argv: []string{"python", "train.py", "--config", "conf/night.yaml", "--max_length", "4096", "--hub_token", "hf_abcdefghij0123456789"},
		Cwd: "/home/ada/night", Env: env, State: StateRunning, Packages: map[string]string{}, Start: Start{T: time.Unix(1.8e9, 0)},
	}
	for _, p := range []string{"torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "triton"} {
		m.Packages[p] = "1.2.3"
	}
	for n := range 3 {
		a := AttemptRecord{
			N: n + 1, Rungs: []string{"drop-caches", "shorter-packing"}, Knobs: job.Knobs{}, Log: "attempts/1/output.log",
			Verdict: &VerdictSummary{Verdict: "oom", Kind: "cuda-allocator", Quote: "torch.OutOfMemoryError: CUDA out of memory."},
			Steps:   Span{First: sample.Known(1), Last: sample.Known(340)},
			Changes: []Change{{Layer: "argv", Where: "--max_length", Before: "4096", After: "2048"}, {Layer: "config", Where: "conf/night.yaml:7 max_length", Before: "4096", After: "2048"}},
		}
		for _, k := range []job.Knob{job.SeqLen, job.MicroBatch, job.Accumulation, job.EvalBatch, job.LearningRate, job.OutputDir, job.Method, job.DType} {
			a.Knobs[k] = job.Setting{Value: "4096", Source: job.FromConfig, Where: "conf/night.yaml:7"}
		}
		m.Attempts = append(m.Attempts, a)
	}
	return m
}

// BenchmarkEncode is the CPU cost of one Save, without its syncs.
func BenchmarkEncode(b *testing.B) {
	m := nightManifest("20260714-100000-train-beef")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.encode(nil); err != nil {
			b.Fatal(err)
		}
	}
}
