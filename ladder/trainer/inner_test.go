package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
	"sparkrun/internal/newprog"
)

// A shell script that says plainly what it starts is read for the checks, in the
// environment and folder that it makes; one that does not is not guessed at. The command
// itself stays what it is.
func TestWhatAShellScriptStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"venv/bin/python":        "\x7fELF",
		"train.py":               "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments(output_dir='o', per_device_train_batch_size=3)\nTrainer(args=args)\n",
		"run.sh":                 "#!/bin/bash\n# the night's run\nset -euo pipefail\nsource venv/bin/activate\nexport HF_HOME=$HOME/hf\nexport CUDA_LAUNCH_BLOCKING=1\n\npython train.py \\\n  --learning_rate 1e-4\n",
		"sub/run.sh":             "#!/bin/sh\ncd ..\nexec venv/bin/python train.py\n",
		"outer.sh":               "#!/usr/bin/env bash\nbash run.sh\n",
		"itself.sh":              "#!/bin/bash\nbash itself.sh\n",
		"args.sh":                "#!/bin/sh\nexec venv/bin/python train.py \"$@\"\n",
		"variables.sh":           "#!/bin/bash\nvenv/bin/python train.py --lr $LR\n",
		"loop.sh":                "#!/bin/bash\nfor i in 1 2; do venv/bin/python train.py; done\n",
		"last.sh":                "#!/bin/bash\nvenv/bin/python train.py\necho done\n",
		"torn.sh":                "#!/bin/bash\nif true; then\n",
		"noext":                  "#!/bin/bash\nvenv/bin/python train.py\n",
		"other.sh":               "#!/usr/bin/perl\nprint 1;\n",
		"docker.sh":              "#!/bin/bash\ndocker run --gpus all img python train.py\n",
		"knob.sh":                "#!/bin/bash\nvenv/bin/python train.py --x '{micro_batch}'\n",
		"inside/run.sh":          "#!/bin/bash\nexport CUDA_VISIBLE_DEVICES=2\npython train.py\n",
		"venv/bin/activate":      "",
		"venv/pyvenv.cfg":        "",
		"venv/lib/python3.12/.x": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := newprog.Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	python := filepath.Join(dir, "venv/bin/python")
	s := profiles(t)
	for _, c := range []struct {
		argv   []string
		from   string // "" is not read
		python string
		env    map[string]string
	}{
		{[]string{"bash", "run.sh"}, "run.sh", python, map[string]string{"CUDA_LAUNCH_BLOCKING": "1", "HF_HOME": "/home/ada/hf"}},
		{[]string{"./run.sh"}, "./run.sh", python, map[string]string{"CUDA_LAUNCH_BLOCKING": "1"}},
		{[]string{"env", "A=1", "bash", "-x", "run.sh", "word"}, "run.sh", python, map[string]string{"A": "1", "CUDA_LAUNCH_BLOCKING": "1"}},
		{[]string{"./noext"}, "./noext", python, nil},
		{[]string{"env", "-C", "sub", "./run.sh"}, "./run.sh", python, nil},
		{[]string{"bash", "outer.sh"}, "run.sh", python, map[string]string{"CUDA_LAUNCH_BLOCKING": "1"}},
		{[]string{"bash", "docker.sh"}, "docker.sh", "", nil},
		{[]string{"docker", "run", "-v", dir + "/inside:/w", "-w", "/w", "img", "bash", "run.sh"}, "run.sh", "", map[string]string{"CUDA_VISIBLE_DEVICES": "2"}},
		{[]string{"bash", "args.sh"}, "args.sh", python, nil},
		{[]string{"./args.sh", "--note", "it's $X"}, "./args.sh", python, nil},
		{[]string{"docker", "run", "img", "bash", "run.sh"}, "", "", nil},
		{[]string{"bash", "itself.sh"}, "", "", nil},
		{[]string{"bash", "variables.sh"}, "", "", nil},
		{[]string{"bash", "loop.sh"}, "", "", nil},
		{[]string{"bash", "last.sh"}, "", "", nil},
		{[]string{"bash", "torn.sh"}, "", "", nil},
		{[]string{"bash", "missing.sh"}, "", "", nil},
		{[]string{"bash", "knob.sh"}, "knob.sh", python, nil},
		{[]string{"make", "train"}, "", "", nil},
		{[]string{python, "train.py"}, "", "", nil},
	} {
		j, err := s.Understand(c.argv, dir, []string{"HOME=/home/ada", "PATH=/usr/bin:/bin"}, map[string]string{"micro_batch": "7"})
		if err != nil {
			t.Fatal(err)
		}
		if c.from == "" {
			if j.Inner != nil {
				t.Errorf("%q: read as %q", c.argv, j.Inner.Argv)
			}
			continue
		}
		in := j.Inner
		if in == nil {
			t.Errorf("%q was not read: %s", c.argv, j.Opaque)
			continue
		}
		if in.From != c.from || in.Interpreter != c.python || in.Inner != nil || in.Opaque != "" {
			t.Errorf("%q: from %q, interpreter %q, opaque %q", c.argv, in.From, in.Interpreter, in.Opaque)
		}
		for name, want := range c.env {
			if got, _, _ := in.LookupEnv(name); got != want {
				t.Errorf("%q: %s is %q, want %q", c.argv, name, got, want)
			}
		}
		if j.Opaque == "" || len(j.Knobs) > 1 || j.Interpreter != "" {
			t.Errorf("%q: the script itself was taken apart: %+v", c.argv, j)
		}
		if n := len(c.argv); c.argv[0] == "./args.sh" && !strings.Contains(in.Argv[len(in.Argv)-1], `train.py --note 'it'\''s $X'`) {
			t.Errorf("%q: %q", c.argv[:n], in.Argv)
		}
		if c.python != "" && c.from != "knob.sh" {
			if set := in.Knobs[job.MicroBatch]; set.Value != "3" {
				t.Errorf("%q: batch %+v", c.argv, set)
			}
		}
	}
}
