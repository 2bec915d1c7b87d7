package preflight

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
)

// proc is a process of a recorded tree.
type proc struct {
	pid, ppid int
	argv      []string
	comm      string
	rssMiB    int64
	sharedMiB int64
	env       []string
	cgroup    string
	cwd       string
	uid       int // 0 leaves it out
}

func (p proc) files() map[string]string {
	dir := fmt.Sprintf("proc/%d/", p.pid)
	comm := p.comm
	if comm == "" && len(p.argv) > 0 {
		comm = filepath.Base(p.argv[0])
		comm = comm[:min(15, len(comm))]
	}
	cmdline := ""
	if len(p.argv) > 0 {
		cmdline = strings.Join(p.argv, "\x00") + "\x00"
	}
	out := map[string]string{
		dir + "stat":    fmt.Sprintf("%d (%s) S %d 1 1 0 -1 4194304 900 0 0 0 5 3 0 0 20 0 4 0 1200 22288000 %d 18446744073709551615 0 0 0 0\n", p.pid, comm, p.ppid, p.rssMiB<<20/4096),
		dir + "cmdline": cmdline,
		dir + "status":  fmt.Sprintf("Name:\t%s\nRssAnon:\t%8d kB\nRssFile:\t%8d kB\nRssShmem:\t       0 kB\n", comm, (p.rssMiB-p.sharedMiB)<<10, p.sharedMiB<<10),
		dir + "cgroup":  p.cgroup,
	}
	if p.uid > 0 {
		out[dir+"status"] += fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", p.uid)
	}
	if p.cgroup == "" {
		out[dir+"cgroup"] = "0::/user.slice/user-1000.slice/session-2.scope\n"
	}
	if p.env != nil {
		out[dir+"environ"] = strings.Join(p.env, "\x00") + "\x00"
	}
	if p.cwd != "" {
		out[dir+"cwd"] = "-> " + p.cwd
	}
	return out
}

func overlay(procs ...proc) map[string]string {
	out := map[string]string{}
	for _, p := range procs {
		for name, text := range p.files() {
			out[name] = text
		}
	}
	return out
}

// self makes pid our own process.
func self(pid int) map[string]string {
	return map[string]string{"proc/self/stat": proc{pid: pid, ppid: 1, comm: "sparkrun"}.files()[fmt.Sprintf("proc/%d/stat", pid)]}
}

func merged(maps ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// gb10Holding is a GB10 on which these processes hold GPU memory.
func gb10Holding(procs ...sample.GPUProcess) ask {
	return func(ctx context.Context) (sample.Device, sample.GPU, error) {
		dev, gpu, err := gb10(ctx)
		gpu.Processes = append([]sample.GPUProcess{}, procs...)
		return dev, gpu, err
	}
}

func mib(pid int, n float64) sample.GPUProcess {
	return sample.GPUProcess{PID: pid, UsedMiB: sample.Known(n)}
}

// words is a command line as a shell would split it.
func argvOf(text string) []string { return strings.Fields(text) }

func TestServersTable(t *testing.T) {
	t.Parallel()
	s, err := loadServers()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.DateOnly, s.AsOf); err != nil {
		t.Errorf("as_of: %v", err)
	}
	// These figures stand in the runbook.
	if s.Coexist.Fraction != 0.5 || s.Coexist.JobGB != 4 {
		t.Errorf("coexistence %+v", s.Coexist)
	}
	for _, p := range s.Programs {
		if p.Kind == kindServer && p.Cap == "" {
			t.Errorf("%s: nothing says how it is capped", p.Name)
		}
	}
}

// The regular expressions of the runbook match "ctrl" as trl, an editor with train.py open
// and our own child, and miss most servers.
func TestCommandLinesAreKnownByTheirWords(t *testing.T) {
	t.Parallel()
	s, err := loadServers()
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"vllm serve Qwen/Qwen3-14B":                                               "vLLM",
		"/opt/venv/bin/python3.12 /opt/venv/bin/vllm serve m":                     "vLLM",
		"python3 -u -X faulthandler -m vllm.entrypoints.openai.api_server --port": "vLLM",
		"VLLM::EngineCore":                                              "vLLM",
		"VLLM::EngineCore_DP0":                                          "vLLM",
		"VLLM::Worker_TP0":                                              "vLLM",
		"trl vllm-serve --model m":                                      "vLLM",
		"python -m sglang.launch_server --model-path m":                 "SGLang",
		"sglang::scheduler":                                             "SGLang",
		"/usr/local/bin/ollama serve":                                   "Ollama",
		"/usr/local/bin/ollama runner --model /x --port 1":              "Ollama",
		"./build/bin/llama-server -m x.gguf -ngl 99":                    "llama.cpp",
		"python3 -m llama_cpp.server --model x":                         "llama.cpp",
		"text-generation-launcher --model-id m":                         "Text Generation Inference",
		"/opt/conda/bin/python /opt/conda/bin/text-generation-server x": "Text Generation Inference",
		"tritonserver --model-repository=/models":                       "Triton Inference Server",
		"/usr/bin/python3 /usr/local/bin/trtllm-serve m --port 8355":    "TensorRT-LLM",
		"python main.py --listen @/home/ada/ComfyUI":                    "ComfyUI",
		"python /srv/ComfyUI/main.py":                                   "ComfyUI",
		"python -m ipykernel_launcher -f /tmp/kernel-1.json":            "notebook",
		"/usr/bin/python3 /usr/bin/jupyter-lab --port 11000":            "notebook",
		"python train.py":                                               "training",
		"python -m debugpy --listen 5678 train.py":                      "training",
		"python -m torch.distributed.run train.py":                      "training",
		"/v/bin/python /v/bin/torchrun --nproc_per_node 1 x.py":         "training",
		"/v/bin/python /v/bin/accelerate launch x.py":                   "training",
		"/v/bin/python3 /v/bin/llamafactory-cli train x.yaml":           "training",
		"/v/bin/python3 /v/bin/axolotl train x.yaml":                    "training",
		"/v/bin/python3 /v/bin/swift sft --model m":                     "training",
		"/v/bin/python3 /v/bin/trl sft --model m":                       "training",
		"python flux_train_network.py":                                  "training",
		"python3 Llama3_8B_LoRA_finetuning.py":                          "training",
		"python run.py config.yaml @/home/ada/ai-toolkit":               "training",
		"/home/ada/.local/bin/python /home/ada/.local/bin/sparkrun run": "spark-arena's sparkrun",
		"uvicorn open_webui.main:app":                                   "Open WebUI",
		"/usr/lib/xorg/Xorg :1":                                         "desktop",

		"vim train.py":                   "",
		"ctrl sft":                       "",
		"grep -r vllm serve":             "",
		"tail -f train.log":              "",
		"less /var/log/ollama.log":       "",
		"git checkout train.py":          "",
		"docker run vllm/vllm-openai":    "",
		"bash -c python train.py":        "",
		"python -c import vllm":          "",
		"python -m pytest test_train.py": "",
		"python manage.py train":         "",
		"python main.py @/home/ada/game": "",
		"python":                         "",
		"vllm --help":                    "",
		"ollama list":                    "",
		"swift build":                    "",
		"accelerate config":              "",
		"sparkrun -- python train.py":    "",
		"/usr/bin/rsync train.py host:":  "",
		"python constrain.py":            "",
		"node /srv/app/server.js":        "",
		"sh launch_train.sh":             "",
	} {
		line, cwd, _ := strings.Cut(line, " @")
		got := ""
		if p := s.find(s.parse(strings.Fields(line)), func() string { return cwd }); p != nil {
			got = p.Name
		}
		if got != want {
			t.Errorf("%q is %q, want %q", line, got, want)
		}
	}
}

func TestG6OfRecordedTrees(t *testing.T) {
	t.Parallel()
	for tree, want := range map[string]string{
		"spark":          "G6 PASS: no server or training of anybody else",
		"spark-ngc":      "G6 PASS: no server or training of anybody else in this container",
		"spark-podman":   "G6 PASS: no server or training of anybody else in this container",
		"spark-retained": "G6 PASS: no server or training of anybody else",
		"laptop":         "G6 PASS: no server or training of anybody else",
		"workstation":    "G6 PASS: no server or training of anybody else",
		// vLLM may stay (0.5), Ollama has no cap.
		"spark-loaded": "G6 WARN: Ollama (pid 7001) holds 22.",
	} {
		rec, err := ReadRecorded(filepath.Join("testdata", tree))
		if err != nil {
			t.Fatal(err)
		}
		f := find(t, Run(t.Context(), Input{Root: "testdata/" + tree, Recorded: rec, Device: rec.ask}), "G6")
		if !strings.HasPrefix(f.Line, want) {
			t.Errorf("%s: %q\n%s", tree, f.Line, strings.Join(f.Evidence, "\n"))
		}
	}
}

// ask answers as the tree's driver did.
func (r *Recorded) ask(context.Context) (sample.Device, sample.GPU, error) {
	if r.Device == nil {
		return sample.Device{Source: "none", ErrKind: "no-library"}, sample.GPU{}, nil
	}
	return *r.Device, r.GPU, nil
}

const (
	dockerID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	runID    = "20260714-220000-train-ab12"
)

func TestG6(t *testing.T) {
	t.Parallel()
	vllm := func(flags string) []proc {
		return []proc{
			{pid: 700, ppid: 1, argv: argvOf("/v/bin/python3 /v/bin/vllm serve m " + flags), rssMiB: 3000, sharedMiB: 500},
			{pid: 710, ppid: 700, argv: []string{"VLLM::EngineCore"}, rssMiB: 4000, sharedMiB: 500},
			// One of its workers, of no known name.
			{pid: 711, ppid: 700, argv: argvOf("/v/bin/python3 -c import_resource_tracker"), rssMiB: 10},
		}
	}
	for _, c := range []struct {
		name   string
		procs  []proc
		gpu    []sample.GPUProcess
		files  map[string]string
		own    []int
		status Status
		detail string // a part of it
		proof  string // a part of the evidence
		fix    string // a part of the fix
	}{
		{
			name: "capped at a half", procs: vllm("--gpu-memory-utilization 0.3"), gpu: []sample.GPUProcess{mib(710, 30000)},
			status: Info, detail: "vLLM (pid 700) holds 38.3 GB (31.5 GB of it GPU memory), capped at 0.3 of the memory (--gpu-memory-utilization 0.3), 45.4 GB at most",
			proof: "3 processes",
		},
		{
			name: "capped too high", procs: vllm("--gpu_memory_utilization=0.8"), gpu: []sample.GPUProcess{mib(710, 30000)},
			status: Warn, detail: "capped at 0.8 of the memory (--gpu_memory_utilization 0.8), 109.6 GB at most", fix: "--gpu-memory-utilization 0.5 or less; or stop it: kill 700",
		},
		{
			name: "the last flag counts", procs: vllm("--gpu-memory-utilization 0.9 --gpu-memory-utilization 0.2"), gpu: []sample.GPUProcess{mib(710, 20000)},
			status: Info, detail: "0.2 of the memory",
		},
		{
			name: "no cap", procs: vllm(""), gpu: []sample.GPUProcess{mib(710, 100)},
			status: Warn, detail: "no cap set: it takes up to 0.92 of the memory by itself",
		},
		{
			name: "a cap that is no number", procs: vllm("--gpu-memory-utilization lots"), gpu: []sample.GPUProcess{mib(710, 100)},
			status: Warn, detail: "no cap set", proof: "--gpu-memory-utilization lots (not understood)",
		},
		{
			name: "a cap of more than everything", procs: vllm("--gpu-memory-utilization 90"), gpu: []sample.GPUProcess{mib(710, 100)},
			status: Warn, detail: "no cap set",
		},
		{
			name: "settings in a file", procs: vllm("--config serve.yaml"), status: Warn, detail: "cap not told: it may stand in serve.yaml",
		},
		{
			name: "Ollama, idle, as a service", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("/usr/local/bin/ollama serve"), rssMiB: 60, env: []string{"OLLAMA_KEEP_ALIVE=24h"}, cgroup: "0::/system.slice/ollama.service\n"}},
			status: Info, detail: "Ollama (pid 800) holds 0.1 GB, no cap: it takes memory with the next request", proof: "OLLAMA_KEEP_ALIVE=24h",
		},
		{
			name: "Ollama with a model loaded", procs: []proc{
				{pid: 800, ppid: 1, argv: argvOf("/usr/local/bin/ollama serve"), rssMiB: 60, cgroup: "0::/system.slice/ollama.service\n"},
				{pid: 801, ppid: 800, argv: argvOf("/usr/local/bin/ollama runner --model /x --port 3"), rssMiB: 900, cgroup: "0::/system.slice/ollama.service\n"},
			}, gpu: []sample.GPUProcess{mib(801, 5000)},
			status: Warn, detail: "Ollama (pid 800) holds 6.2 GB", fix: "sudo systemctl stop ollama.service",
		},
		{
			name: "another user's", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("python train.py"), rssMiB: 9000, uid: 1001}}, files: map[string]string{"proc/self/status": "Name:\tsparkrun\nUid:\t1000\t1000\t1000\t1000\n"},
			status: Warn, detail: "training train.py (pid 800)", fix: "sudo kill 800 (it is another user's, with the number 1001)",
		},
		{
			name: "another user's, in a unit of theirs", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("python train.py"), rssMiB: 9000, uid: 1001, cgroup: "0::/user.slice/user-1001.slice/user@1001.service/app.slice/train.service\n"}}, files: map[string]string{"proc/self/status": "Name:\tsparkrun\nUid:\t1000\t1000\t1000\t1000\n"},
			status: Warn, detail: "training train.py (pid 800)", fix: "sudo kill 800",
		},
		{
			name: "our own user's", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("python train.py"), rssMiB: 9000, uid: 1000}}, files: map[string]string{"proc/self/status": "Name:\tsparkrun\nUid:\t1000\t1000\t1000\t1000\n"},
			status: Warn, detail: "training train.py (pid 800)", fix: "train.py (pid 800): stop it, if it is not needed: kill 800",
		},
		{
			name: "Ollama that leaves 100 GB", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("/usr/local/bin/ollama serve"), rssMiB: 60, env: []string{"OLLAMA_GPU_OVERHEAD=100000000000"}}},
			status: Info, detail: "capped (OLLAMA_GPU_OVERHEAD 100000000000), 28.6 GB at most",
		},
		{
			name: "llama.cpp allocates at its start", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("llama-server -m x.gguf -c 8192"), rssMiB: 300}}, gpu: []sample.GPUProcess{mib(800, 20000)},
			status: Info, detail: "takes what it needs at its start",
		},
		{
			name: "llama.cpp with models to choose from", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("llama-server --models-dir /m -c 8192"), rssMiB: 300}},
			status: Info, detail: "no cap: it takes memory with the next request",
		},
		{
			name: "ComfyUI of somebody whose folder is hidden", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("/home/bob/ComfyUI/venv/bin/python main.py --listen"), rssMiB: 1500}}, gpu: []sample.GPUProcess{mib(800, 14000)},
			status: Warn, detail: "ComfyUI (pid 800)",
		},
		{
			name: "in a container", procs: []proc{{pid: 800, ppid: 790, argv: argvOf("/v/bin/python3 -m sglang.launch_server --model-path m"), rssMiB: 2000, cgroup: "0::/system.slice/docker-" + dockerID + ".scope\n"}},
			status: Warn, detail: "SGLang (pid 800)", proof: "container 0123456789ab (docker)", fix: "docker stop 0123456789ab",
		},
		{
			name: "in podman", procs: []proc{{pid: 800, ppid: 790, argv: argvOf("tritonserver"), rssMiB: 2000, cgroup: "0::/machine.slice/libpod-" + dockerID + ".scope/container\n"}},
			status: Warn, detail: "Triton Inference Server (pid 800)", fix: "podman stop 0123456789ab",
		},
		{
			name: "a training of somebody else", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("python train.py --token secret"), rssMiB: 9000}}, gpu: []sample.GPUProcess{mib(800, 40000)},
			status: Warn, detail: "training train.py (pid 800) holds 51.4 GB", fix: "kill 800",
		},
		{
			name: "a training that holds next to nothing", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("python train.py"), rssMiB: 90}},
			status: Info, detail: "which is little",
		},
		{
			name: "a notebook left open", procs: []proc{
				{pid: 800, ppid: 1, argv: argvOf("/v/bin/python /v/bin/jupyter-lab"), rssMiB: 150},
				{pid: 810, ppid: 800, argv: argvOf("/v/bin/python -m ipykernel_launcher -f /k.json"), rssMiB: 600},
			}, gpu: []sample.GPUProcess{mib(810, 500)},
			status: Warn, detail: "notebook jupyter-lab (pid 800) holds 1.3 GB (0.5 GB of it GPU memory)", fix: "shut the kernel down",
		},
		{
			name: "a notebook that holds nothing", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("/v/bin/python /v/bin/jupyter-lab"), rssMiB: 150}},
			status: Pass, detail: "no server or training of anybody else",
		},
		{
			name: "a desktop", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("/usr/bin/gnome-shell"), rssMiB: 300}}, gpu: []sample.GPUProcess{mib(800, 300)},
			status: Pass, proof: "desktop gnome-shell (pid 800)",
		},
		{
			name: "no known name, on the GPU", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("/opt/sim/solver --input x"), rssMiB: 100}}, gpu: []sample.GPUProcess{mib(800, 9000)},
			status: Warn, detail: "solver (pid 800) holds 9.5 GB",
		},
		{
			name: "no known name, large", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("java -Xmx60g"), rssMiB: 30000}},
			status: Warn, detail: "java (pid 800) holds 31.5 GB",
		},
		{
			name: "GPU memory of unknown size", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("python train.py"), rssMiB: 2000}}, gpu: []sample.GPUProcess{{PID: 800}},
			status: Warn, detail: "GPU memory of unknown size",
		},
		{
			name: "our own tree", procs: []proc{
				{pid: 500, ppid: 1, argv: argvOf("/v/bin/python /v/bin/jupyter-lab"), rssMiB: 5000},
				{pid: 510, ppid: 500, argv: argvOf("python train.py"), rssMiB: 5000},
				{pid: 520, ppid: 510, argv: argvOf("sparkrun -- python train.py"), rssMiB: 50},
				{pid: 530, ppid: 520, argv: argvOf("python train.py"), rssMiB: 5000},
				{pid: 600, ppid: 1, argv: argvOf("sparkrun __hold " + runID + " 1"), rssMiB: 50},
				{pid: 610, ppid: 600, argv: argvOf("python train.py"), rssMiB: 50000},
			}, gpu: []sample.GPUProcess{mib(610, 40000), mib(510, 40000)}, files: self(520), own: []int{600},
			status: Pass,
		},
		{
			name: "another run", procs: []proc{
				{pid: 600, ppid: 1, argv: argvOf("/usr/bin/sparkrun-train __hold " + runID + " 1"), rssMiB: 50},
				{pid: 610, ppid: 600, argv: argvOf("/v/bin/python /v/bin/accelerate launch train.py"), rssMiB: 500},
				{pid: 620, ppid: 610, argv: argvOf("python train.py"), rssMiB: 5000},
			}, gpu: []sample.GPUProcess{mib(620, 40000)},
			status: Warn, detail: "another run of sparkrun, " + runID + " (pid 600) holds 47", fix: "kill 610",
		},
		{
			name: "another run in a container", procs: []proc{
				{pid: 600, ppid: 1, argv: argvOf("sparkrun __hold " + runID + " 1"), rssMiB: 50},
				{pid: 610, ppid: 600, argv: argvOf("docker run img python train.py"), rssMiB: 30},
				{pid: 700, ppid: 690, argv: argvOf("python train.py"), rssMiB: 5000, env: []string{"SPARKRUN_RUN_ID=" + runID}, cgroup: "0::/docker/" + dockerID + "\n"},
			}, gpu: []sample.GPUProcess{mib(700, 40000)},
			status: Warn, detail: "another run of sparkrun, " + runID + " (pid 600) holds 47", proof: "3 processes",
		},
		{
			name: "a forged run ID", procs: []proc{{pid: 700, ppid: 1, argv: argvOf("python train.py"), rssMiB: 5000, env: []string{"SPARKRUN_RUN_ID=\x1b[2Jx"}}},
			status: Warn, detail: "training train.py (pid 700)",
		},
		{
			name: "names with control characters", procs: []proc{{pid: 700, ppid: 1, comm: "a) S 1\n\x1b[2J", argv: []string{"\x1b]0;x\aevil\n"}, rssMiB: 50000}},
			status: Warn, detail: "evil? (pid 700)",
		},
		{
			name: "the GPU's processes are outside this container", procs: []proc{{pid: 710, ppid: 1, argv: argvOf("python train.py"), rssMiB: 50}},
			gpu: []sample.GPUProcess{mib(710, 30000)}, files: map[string]string{".dockerenv": ""},
			status: Warn, detail: "a process that cannot be seen from here (pid 710 of the machine) holds 31.5 GB of GPU memory",
		},
		{
			name: "a container that sees the machine's processes", procs: []proc{{pid: 2, ppid: 0, comm: "kthreadd"}, {pid: 710, ppid: 1, argv: argvOf("python train.py"), rssMiB: 50}},
			gpu: []sample.GPUProcess{mib(710, 30000)}, files: map[string]string{".dockerenv": ""},
			status: Warn, detail: "training train.py (pid 710)",
		},
		{
			name: "a server inside a training", procs: []proc{
				{pid: 700, ppid: 1, argv: argvOf("/v/bin/python /v/bin/trl grpo --use_vllm"), rssMiB: 5000},
				{pid: 710, ppid: 700, argv: []string{"VLLM::EngineCore"}, rssMiB: 5000},
			},
			status: Warn, detail: "training trl (pid 700) holds 10.5 GB",
		},
		{
			name: "a training in a notebook's terminal", procs: []proc{
				{pid: 700, ppid: 1, argv: argvOf("/v/bin/python /v/bin/jupyter-lab"), rssMiB: 150},
				{pid: 705, ppid: 700, argv: argvOf("bash"), rssMiB: 5},
				{pid: 710, ppid: 705, argv: argvOf("python train.py"), rssMiB: 50000},
			},
			status: Warn, detail: "training train.py (pid 710) holds 52.4 GB",
		},
		{
			name: "two servers", procs: append(vllm("--gpu-memory-utilization 0.2"), proc{pid: 900, ppid: 1, argv: argvOf("llama-server -m x -c 1"), rssMiB: 3000}),
			gpu: []sample.GPUProcess{mib(710, 15000)}, status: Info, detail: "and 1 more",
		},
		{
			name: "two servers of which each could stay", procs: append(vllm("--gpu-memory-utilization 0.4"), proc{pid: 900, ppid: 1, argv: argvOf("python -m sglang.launch_server --mem-fraction-static 0.3"), rssMiB: 3000}),
			status: Warn, detail: "and 1 more",
		},
		{
			name: "a browser", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("/usr/bin/firefox"), rssMiB: 3000}, {pid: 801, ppid: 800, argv: argvOf("/usr/bin/firefox -contentproc"), rssMiB: 2000}},
			status: Pass, proof: "desktop firefox (pid 800): 2 processes, resident 5.2 GB",
		},
		{
			name: "spark-arena's launcher", procs: []proc{{pid: 800, ppid: 1, argv: argvOf("/v/bin/python /v/bin/sparkrun run x"), rssMiB: 2000}},
			status: Pass, proof: "spark-arena's sparkrun (pid 800)",
		},
		{
			name: "a ring of parents", procs: []proc{{pid: 700, ppid: 701, argv: argvOf("python train.py"), rssMiB: 2000}, {pid: 701, ppid: 700, argv: argvOf("python train.py"), rssMiB: 2000}},
			status: Warn, detail: "training train.py",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := copyTree(t, "spark", merged(overlay(c.procs...), c.files))
			f := find(t, Run(t.Context(), Input{Root: dir, Getenv: env(), Device: gb10Holding(c.gpu...), OwnPIDs: c.own}), "G6")
			proof := strings.Join(f.Evidence, "\n")
			if f.Status != c.status || !strings.Contains(f.Detail, c.detail) || !strings.Contains(proof, c.proof) || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("%s: %s\nfix %q\n%s", f.Status, f.Detail, f.Fix, proof)
			}
			if f.Status == Warn && f.Fix == "" {
				t.Error("a warning without a fix")
			}
			if all := f.Line + f.Fix + proof; strings.Contains(all, "secret") || strings.ContainsAny(all, "\x1b\a\x00") {
				t.Errorf("what must not be shown: %q", all)
			}
		})
	}
}

// On a machine whose GPU does not share the memory, or that has none, a server counts by
// what it holds.
func TestG6ElsewhereThanOnASpark(t *testing.T) {
	t.Parallel()
	ollama := func(rss int64) map[string]string {
		return overlay(proc{pid: 800, ppid: 1, argv: argvOf("ollama serve"), rssMiB: rss})
	}
	for _, c := range []struct {
		name   string
		rss    int64
		device ask
		gpu    []sample.GPUProcess
		status Status
	}{
		{"idle on a laptop", 60, noLibrary, nil, Info},
		{"2 GiB of 16", 2048, noLibrary, nil, Info},
		{"6 GiB of 16", 6144, noLibrary, nil, Warn},
		{"idle beside a card", 60, rtx(12040), nil, Info},
		{"on the card", 60, rtx(12040), []sample.GPUProcess{mib(800, 9000)}, Warn},
	} {
		device := func(ctx context.Context) (sample.Device, sample.GPU, error) {
			dev, gpu, err := c.device(ctx)
			gpu.Processes = c.gpu
			return dev, gpu, err
		}
		f := find(t, Run(t.Context(), Input{Root: copyTree(t, "laptop", ollama(c.rss)), Getenv: env(), Device: device}), "G6")
		if f.Status != c.status {
			t.Errorf("%s: %s", c.name, f.Line)
		}
	}
}

// A browser on a machine without a GPU is no reason to wait, unless it has most of it.
func TestG6OfADesktop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rss     int64
		verdict string
	}{"a third of 16 GB": {5200, Ready}, "most of it": {10000, ReadyWithWarnings}} {
		files := overlay(proc{pid: 800, ppid: 1, argv: argvOf("/usr/bin/firefox"), rssMiB: c.rss})
		r := Run(t.Context(), Input{Root: copyTree(t, "laptop", files), Getenv: env(), Device: noLibrary})
		if r.Verdict != c.verdict {
			t.Errorf("%s: %s: %+v", name, r.Verdict, find(t, r, "G6"))
		}
	}
}

// The fraction that a server is told to take leaves what the command needs, and is never
// what it takes already.
func TestTheCapLeavesWhatIsNeeded(t *testing.T) {
	t.Parallel()
	table, err := loadServers()
	if err != nil {
		t.Fatal(err)
	}
	const gb = int64(1e9)
	for _, c := range []struct {
		name, program string
		caps          caps
		gpu           int64 // held
		need, room    int64 // 0 is not known
		want          string
		lacks         int64
	}{
		{"nothing known", "vLLM", caps{is: capFraction, value: 0.9}, 0, 0, 0, "--gpu-memory-utilization 0.5 or less", 0},
		{"nothing known, at a half", "vLLM", caps{is: capFraction, value: 0.5}, 0, 0, 0, "--gpu-memory-utilization 0.25 or less", 0},
		// It may take 4 GB more than there are, and 6 are needed.
		{"more than all is promised", "SGLang", caps{is: capFraction, value: 0.85}, 80 * gb, 6 * gb, 1, "--mem-fraction-static 0.75 or less", 4 * gb},
		// 100 GB in all, of which it may take 50: 45 are left and 60 needed.
		{"15 GB too little", "vLLM", caps{is: capFraction, value: 0.5}, 50 * gb, 60 * gb, 45 * gb, "--gpu-memory-utilization 0.35 or less", 0},
		{"a small command", "vLLM", caps{is: capFraction, value: 0.9}, 90 * gb, 20 * gb, 5 * gb, "--gpu-memory-utilization 0.75 or less", 0},
		{"without a cap", "SGLang", caps{byDefault: 0.85}, 80 * gb, 40 * gb, 10 * gb, "--mem-fraction-static 0.5 or less", 0},
		{"more than there is", "vLLM", caps{is: capFraction, value: 0.5}, 50 * gb, 94 * gb, 45 * gb, "", 0},
		{"a share of what was free", "LMDeploy", caps{is: capFreeFraction, value: 0.3}, 0, 60 * gb, 45 * gb, "--cache-max-entry-count 0.15 or less", 0},
		{"no fraction at all", "Ollama", caps{}, 0, 60 * gb, 45 * gb, "ollama stop MODEL", 0},
	} {
		var p *program
		for i := range table.Programs {
			if table.Programs[i].Name == c.program {
				p = &table.Programs[i]
			}
		}
		h := holder{root: &process{pid: 7, uid: -1}, program: p, caps: c.caps, gpu: c.gpu}
		s := survey{table: table, total: 100 * gb, lacks: c.lacks}
		if c.need > 0 {
			s.need, s.room = sample.Known(float64(c.need)), sample.Known(float64(c.room))
		}
		got, ok := h.capFix(s)
		if ok != (c.want != "") || !strings.Contains(got, c.want) || strings.Contains(got, "{") {
			t.Errorf("%s: %q %t, want %q", c.name, got, ok, c.want)
		}
		if fix := h.fix(s); !ok && !strings.Contains(fix, "no cap leaves enough for this command: stop it for that time: kill 7") {
			t.Errorf("%s: %q", c.name, fix)
		}
	}
}

// The rule with numbers: the command must fit beside all that the capped servers may take.
func TestCoexistence(t *testing.T) {
	t.Parallel()
	table, err := loadServers()
	if err != nil {
		t.Fatal(err)
	}
	server := &table.Programs[0]
	capped := func(c float64, gb int64) holder {
		return holder{program: server, root: &process{pid: 7}, rss: gb * 1e9, caps: caps{is: capFraction, value: c}}
	}
	for _, c := range []struct {
		name     string
		h        holder
		need     sample.Num
		platform string
		roomGB   float64
		want     bool
	}{
		{"fits beside it", capped(0.8, 100), sample.Known(3e9), DGXSpark, 5, true},
		{"does not fit", capped(0.3, 30), sample.Known(60e9), DGXSpark, 50, false},
		{"need unknown, a half", capped(0.5, 60), sample.Num{}, DGXSpark, 50, true},
		{"need unknown, more than a half", capped(0.51, 60), sample.Num{}, DGXSpark, 50, false},
		{"no cap", holder{program: server, root: &process{}, rss: 1e6}, sample.Known(1e9), DGXSpark, 100, false},
		{"no cap and little, on another machine", holder{program: server, root: &process{}, small: true}, sample.Known(1e9), GenericNVIDIA, 100, true},
	} {
		s := survey{table: table, total: 128e9, room: sample.Known(c.roomGB * 1e9), need: c.need, share: c.h.caps.value}
		if got := s.coexists(c.h, c.platform); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
	// Without any figure of the memory only the fraction counts.
	for share, want := range map[float64]bool{0.4: true, 0.3 + 0.2: true, 0.6: false} {
		if s := (survey{table: table, share: share}); s.coexists(capped(share, 3), DGXSpark) != want {
			t.Errorf("without MemTotal, %g", share)
		}
	}
}

func TestG6WithoutProcesses(t *testing.T) {
	t.Parallel()
	f := find(t, Run(t.Context(), Input{Root: t.TempDir(), Device: gb10}), "G6")
	if f.Status != Skip || f.ByDesign {
		t.Errorf("no /proc: %+v", f)
	}
	dir := copyTree(t, "", map[string]string{"proc/meminfo": "MemTotal: 1 kB\n", "proc/77/stat": "77 (x", "proc/78/cmdline": "vllm\x00serve\x00", "proc/99/stat": ""})
	f = find(t, Run(t.Context(), Input{Root: dir, Device: gb10}), "G6")
	if f.Status != Skip || f.ByDesign || !strings.Contains(f.Detail, "no process can be seen") {
		t.Errorf("torn files: %+v", f)
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][3]string{
		"0::/system.slice/docker-" + dockerID + ".scope":                                            {"docker", dockerID, ""},
		"12:pids:/docker/" + dockerID + "\n0::/x":                                                   {"docker", dockerID, ""},
		"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + dockerID + ".scope": {"podman", dockerID, ""},
		"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + dockerID + ".scope":              {"kubernetes", dockerID, ""},
		"0::/system.slice/ollama.service":                                                           {"", "", "ollama.service"},
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/comfy.service":                  {"", "", "--user comfy.service"},
		"0::/user.slice/user-1000.slice/session-2.scope":                                            {"", "", ""},
		"0::/system.slice/ssh.service":                                                              {"", "", ""},
		"0::/system.slice/a b;reboot.service":                                                       {"", "", ""},
		"":                                                                                          {"", "", ""},
		"garbage":                                                                                   {"", "", ""},
		"0::/docker/short":                                                                          {"", "", ""},
	} {
		engine, id, unit := owner(text)
		if got := [3]string{engine, id, unit}; got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// This machine itself: our own test binary is found among its processes, and is ours.
func TestReadProcessesOfThisMachine(t *testing.T) {
	t.Parallel()
	s, err := loadServers()
	if err != nil {
		t.Fatal(err)
	}
	tab := readProcesses(t.Context(), "/", s)
	me := tab.byPID[os.Getpid()]
	if tab.err != nil || tab.self != os.Getpid() || me == nil || me.ppid != os.Getppid() || me.rss == 0 {
		t.Fatalf("self %d, me %+v, err %v", tab.self, me, tab.err)
	}
	// A server that runs for a moment, under the name that vLLM gives to its worker.
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Args = []string{"VLLM::EngineCore", "-test.run=^TestHelperWaits$"}
	cmd.Env = append(os.Environ(), "PREFLIGHT_TEST_WAITS=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	if p := readProcesses(t.Context(), "/", s).byPID[cmd.Process.Pid]; p == nil || p.program == nil || p.program.Name != "vLLM" || p.ppid != os.Getpid() {
		t.Errorf("the server is %+v", p)
	}
	own := contention{tab}.own(facts{}, tab.children())
	if !own[os.Getpid()] || !own[os.Getppid()] {
		t.Error("we are somebody else")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if tab := readProcesses(ctx, "/", s); !tab.cut || len(tab.byPID) > 0 {
		t.Error("it goes on although its time is over")
	}
}

// TestHelperWaits is a process for the test above: it waits until its stdin is closed.
func TestHelperWaits(t *testing.T) {
	if os.Getenv("PREFLIGHT_TEST_WAITS") != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

// A look at 500 processes must cost less than 40 ms on two slow cores.
func BenchmarkReadProcesses(b *testing.B) {
	dir := b.TempDir()
	for i := range 500 {
		p := proc{pid: 1000 + i, ppid: 1, argv: argvOf("/usr/lib/some/daemon --with several --words of=its own"), rssMiB: 20}
		if i%25 == 0 {
			p.argv = argvOf("python train.py")
		}
		for name, text := range p.files() {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				b.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	s, err := loadServers()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if tab := readProcesses(b.Context(), rootOf(dir), s); len(tab.byPID) != 500 {
			b.Fatal(len(tab.byPID))
		}
	}
}

// readProcesses reads /proc. A process that ends meanwhile is left out.
func readProcesses(ctx context.Context, r root, t servers) processTable {
	return detailed(ctx, r, t, readStats(ctx, r))
}
