package preflight

import (
	"strings"
	"testing"

	"sparkrun/internal/job"
)

func TestG10(t *testing.T) {
	t.Parallel()
	type conf = map[string]string
	at := func(text string) conf { return conf{"home/ada/c.yaml": text} }
	for _, c := range []struct {
		name   string
		line   string
		nodes  int
		files  conf
		env    []string
		device ask
		want   string
	}{
		{"no tensor parallelism", "torchrun t.py", 2, nil, nil, gb10, "pass: "},
		{"a value in argv", "torchrun t.py --tensor-parallel-size 2", 2, nil, nil, gb10, "fail: tensor parallelism 2 (--tensor-parallel-size) over 2 machines of 1 GPU"},
		{"a value in YAML", "torchrun t.py c.yaml", 2, at("parallel: {tp: 2}\n"), nil, gb10, "fail: tensor parallelism 2 (c.yaml:1) over 2 machines"},
		{"tensor_model_parallel_size", "torchrun t.py c.yaml", 2, at("a:\n  tensor_model_parallel_size: 4\n"), nil, gb10, "fail: tensor parallelism 4 (c.yaml:2)"},
		{"three machines", "torchrun t.py tp_size=2", 3, nil, nil, gb10, "fail: tensor parallelism 2 (tp_size) over 3 machines"},
		{"harmless 1", "torchrun t.py c.yaml", 2, at("tp_size: 1\n"), nil, gb10, "pass: "},
		{"harmless false", "torchrun t.py c.yaml", 2, at("tensor_parallel: false\nautotp_size: 0\n"), nil, gb10, "pass: "},
		{"a word", "torchrun t.py c.yaml", 2, at("tp_size: auto\n"), nil, gb10, "warn: tp_size = auto (c.yaml:1) over 2 machines"},
		{"worked out elsewhere", "torchrun t.py --tp_size $TP", 2, nil, nil, gb10, "warn: --tp_size = worked out there over 2 machines"},
		{"config torn", "torchrun t.py c.yaml", 2, at("a: [\n"), nil, gb10, "warn: a job of 2 machines, and not all of its settings can be read (c.yaml: "},
		{"config not there", "torchrun t.py c.yaml", 2, nil, nil, gb10, "warn: a job of 2 machines"},
		{"an unread config hides no failure", "torchrun t.py --tp_size 2 c.yaml", 2, at("a: [\n"), nil, gb10, "fail: "},
		{"WORLD_SIZE", "python t.py --tp_size 2", 0, nil, []string{"WORLD_SIZE", "2"}, gb10, "fail: "},
		{"WORLD_SIZE of one", "python t.py --tp_size 2", 0, nil, []string{"WORLD_SIZE", "1"}, gb10, "info: one machine, 1 GPU: tensor parallelism 2 (--tp_size)"},
		{"NNODES", "python t.py --tp_size 2", 0, nil, []string{"NNODES", "2"}, gb10, "fail: "},
		{"the launcher says one", "torchrun --nnodes 1 t.py --tp_size 2", 1, nil, []string{"WORLD_SIZE", "2"}, gb10, "info: one machine"},
		{"one machine", "python t.py", 0, nil, nil, gb10, "skip: one machine (by design)"},
		{"one machine, harmless", "python t.py --tp_size 1", 0, nil, nil, gb10, "skip: one machine (by design)"},
		{"one machine, config torn", "python t.py c.yaml", 0, at("a: [\n"), nil, gb10, "skip: one machine (by design)"},
		{"a rollout engine beside the training", "python t.py --vllm_tensor_parallel_size 2", 0, nil, nil, gb10, "skip: one machine (by design)"},
		{"no GPU", "torchrun t.py --tp_size 2", 2, nil, nil, noLibrary, "skip: no NVIDIA GPU on this machine (by design)"},
		{"another machine", "torchrun t.py --tp_size 2", 2, nil, nil, rtx(13000), "skip: not a DGX Spark (by design)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tree := "spark"
			if strings.HasPrefix(c.want, "skip: n") {
				tree = "laptop"
			}
			files := conf{"home/ada/t.py": "import torch\n"}
			for k, v := range c.files {
				files[k] = v
			}
			j := &job.Job{Argv: strings.Fields(c.line), Dir: "/home/ada", Nodes: c.nodes, Script: "t.py"}
			f := find(t, Run(t.Context(), Input{Root: copyTree(t, tree, files), Getenv: env(c.env...), Device: c.device, Job: j}), "G10")
			if got := string(f.Status) + ": " + f.Detail; !strings.HasPrefix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			if (f.Status == Fail || f.Status == Warn) && f.Fix == "" {
				t.Error("no fix")
			}
		})
	}
}

func TestG10ReadsTheValueAndNotTheWord(t *testing.T) {
	t.Parallel()
	j := &job.Job{Argv: strings.Fields("torchrun t.py c.yaml"), Dir: "/home/ada", Nodes: 2}
	f := find(t, Run(t.Context(), Input{
		Root: copyTree(t, "spark", map[string]string{"home/ada/c.yaml": "tp_size: 1 # tp_size: 2\nnote: \"tp_size: 2\"\n"}), Getenv: env(), Device: gb10, Job: j,
	}), "G10")
	if f.Status != Pass || !strings.Contains(strings.Join(f.Evidence, "\n"), "tp_size = 1 (c.yaml:1), which is no tensor parallelism") {
		t.Errorf("%+v", f)
	}
}

// What is to be changed is named with a value that the setting takes.
func TestG10NamesValuesThatExist(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"torchrun t.py --tp_plan auto":            "leave --tp_plan out (--tp_plan)\n",
		"torchrun t.py --tensor_parallel true":    "leave --tensor_parallel out (--tensor_parallel)\n",
		"torchrun t.py --tensor_parallel_size 2":  "set --tensor_parallel_size to 1 (--tensor_parallel_size)\n",
		"torchrun t.py --tensor_parallel_size $N": "see that --tensor_parallel_size stays at 1, or leave it out (--tensor_parallel_size)\n",
	} {
		j := &job.Job{Argv: strings.Fields(line), Dir: "/home/ada", Nodes: 2}
		f := find(t, Run(t.Context(), Input{Root: "testdata/spark", Getenv: env(), Device: gb10, Job: j}), "G10")
		if !strings.HasPrefix(f.Fix, want) {
			t.Errorf("%s: fix %q, want %q", line, f.Fix, want)
		}
	}
}
