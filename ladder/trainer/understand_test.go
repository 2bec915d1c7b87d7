package trainer

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
)

func TestUnderstandFindsTheTrainer(t *testing.T) {
	t.Parallel()
	cases := []struct {
		argv    string
		at      int
		script  string
		profile string
		note    string
	}{
		{argv: "python train.py --max_length 10", at: 1, script: "train.py", profile: "hf-trainer"},
		{argv: "env -u X -C /tmp A=1 B=2 python3 -um mod.train --max_length 10", at: 9, script: "mod.train", profile: "hf-trainer"},
		{argv: "nohup nice -n10 ionice -c2 -n 7 timeout -k 5 --signal=TERM 10h stdbuf -oL python -W ignore -Ou train.py --seq_len 2", at: 18, script: "train.py", profile: "argparse"},
		{argv: "taskset -c 0-3 numactl --cpunodebind=0 -m 0 trl sft --packing", at: 7, profile: "trl"},
		{argv: "/opt/x/bin/trl grpo --max_length 3", at: 0, profile: "trl"},
		{argv: "python -m llamafactory.cli train x.yaml", at: 2, script: "llamafactory.cli", profile: "llama-factory"},
		{argv: "llamafactory-cli export x.yaml", at: 0, note: "no trainer profile"},
		{argv: "nice --bogus python train.py", at: 0, note: "option --bogus of nice"},
		{argv: "env -S python train.py", at: 0, note: "env -S"},
		{argv: "python -c pass", at: 0, note: "python -c"},
		{argv: "python -Z train.py", at: 0, note: "option -Z of Python"},
		{argv: "python - x", at: 0, note: "standard input"},
		{argv: "torchrun --nproc-per-node 2 train.py --max_length 4096", at: 3, script: "train.py", profile: "hf-trainer"},
		{argv: "python -m accelerate.commands.launch train.py --max_length 4096", at: 3, script: "train.py", profile: "hf-trainer"},
		{argv: "bash -c x", at: 2, note: "no trainer profile"},
		{argv: "./a.out", at: 0, note: "no trainer profile"},
		{argv: "nice", at: 0, note: "ends where a program should stand"},
		{argv: "timeout 10", at: 1, note: "ends where a program should stand"},
	}
	s := profiles(t)
	dir := t.TempDir()
	for _, c := range cases {
		t.Run(c.argv, func(t *testing.T) {
			t.Parallel()
			j, err := s.Understand(strings.Fields(c.argv), dir, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			notes := strings.Join(j.Notes, "\n")
			script := filepath.Base(j.Script)
			if j.Script == "" {
				script = ""
			}
			if j.TrainerAt != c.at || script != c.script || j.Profile != c.profile || !strings.Contains(notes, c.note) {
				t.Errorf("at %d script %q profile %q notes %q", j.TrainerAt, j.Script, j.Profile, notes)
			}
		})
	}
}

func TestUnderstandContainersAndNodes(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		"hosts":  "# two\nspark-1 slots=1\n\nspark-2 slots=1\n",
		"a.yaml": "num_machines: 2\nmixed_precision: bf16\n",
	})
	cases := []struct {
		argv, env string
		want      *job.Container
		nodes     int
	}{
		{argv: "docker run --rm -it --gpus all -v /a:/b -eX=1 --shm-size=8g img:1 python train.py", want: &job.Container{Engine: "docker", Verb: "run", Image: "img:1"}},
		{argv: "sudo -E docker --context x container exec -w /w c1 python t.py", want: &job.Container{Engine: "docker", Verb: "exec", Image: "c1"}},
		{argv: "podman run -d --replace --name n quay.io/x sh", want: &job.Container{Engine: "podman", Verb: "run", Image: "quay.io/x"}},
		{argv: "docker compose run trainer", want: &job.Container{Engine: "docker", Verb: "compose"}},
		{argv: "docker-compose up", want: &job.Container{Engine: "docker", Verb: "compose"}},
		{argv: "torchrun --nnodes 1:4 t.py --nnodes 9", nodes: 4},
		{argv: "torchrun --nnodes=2 t.py", nodes: 2},
		{argv: "python -m torch.distributed.run --nnodes 2 t.py", nodes: 2},
		{argv: "accelerate launch --num_machines 3 t.py", nodes: 3},
		{argv: "accelerate launch --config_file a.yaml t.py", nodes: 2},
		{argv: "deepspeed --hostfile hosts t.py", nodes: 2},
		{argv: "deepspeed --hostfile=gone t.py", nodes: 2},
		{argv: "mpirun -np 2 -H a,b python t.py", nodes: 2},
		{argv: "trl sft --num_machines 2 --packing", nodes: 2},
		{argv: "python t.py --max_length 1", env: "NNODES=2", nodes: 2},
		{argv: "env NNODES=2 llamafactory-cli train x.yaml", nodes: 2},
		{argv: "env -u NNODES python t.py", env: "NNODES=2", nodes: 0},
		{argv: "python t.py", env: "WORLD_SIZE=4 LOCAL_WORLD_SIZE=4", nodes: 1},
		{argv: "python t.py", env: "WORLD_SIZE=2", nodes: 2},
		{argv: "python t.py", env: "NNODES=", nodes: 0},
	}
	s := profiles(t)
	for _, c := range cases {
		t.Run(c.argv+" "+c.env, func(t *testing.T) {
			t.Parallel()
			j, err := s.Understand(strings.Fields(c.argv), dir, strings.Fields(c.env), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, j.Container); diff != "" {
				t.Errorf("container (-want +got):\n%s", diff)
			}
			if j.Nodes != c.nodes {
				t.Errorf("nodes %d, want %d", j.Nodes, c.nodes)
			}
		})
	}
}

func TestUnderstandKnobs(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		files map[string]string
		argv  string
		want  map[job.Knob]string
		not   []job.Knob
		note  string
		// fixed are known and not to be turned; shrinks is why the trainer shrinks its
		// batch by itself.
		fixed   []job.Knob
		shrinks string
	}{
		{
			name: "an unread script is believed only what argv says", argv: "python gone.py --max_length 4096 --per_device_train_batch_size 8",
			want: map[job.Knob]string{job.SeqLen: "4096", job.MicroBatch: "8"},
			not:  []job.Knob{job.Accumulation, job.EvalBatch, job.Method},
		},
		{
			name: "defaults of the parser and of the script", files: map[string]string{"t.py": hfScript}, argv: "python t.py",
			want: map[job.Knob]string{job.SeqLen: "2048", job.MicroBatch: "8", job.Accumulation: "1", job.EvalBatch: "4"},
			not:  []job.Knob{job.Method, job.LoadIn4Bit, job.Packing},
		},
		{
			name: "constants in the code", files: map[string]string{"t.py": "from trl import SFTConfig\nSFTConfig(max_length=4096, per_device_train_batch_size=8)\n"},
			argv: "python t.py", want: map[job.Knob]string{job.SeqLen: "4096", job.MicroBatch: "8", job.Accumulation: "1"},
		},
		{
			name: "trl", argv: "trl sft --load_in_4bit --use_peft",
			want: map[job.Knob]string{job.SeqLen: "1024", job.MicroBatch: "8", job.Accumulation: "1", job.Method: "qlora", job.LoadIn4Bit: "true"},
		},
		{name: "trl full", argv: "trl sft", want: map[job.Knob]string{job.Method: "full", job.Packing: "false"}},
		{name: "trl lora", argv: "trl sft --use_peft", want: map[job.Knob]string{job.Method: "lora"}},
		{name: "a negated boolean", argv: "trl sft --no_packing", want: map[job.Knob]string{job.Packing: "false"}},
		{
			name: "padding_free without packing has no length", argv: "trl sft --padding_free True",
			want: map[job.Knob]string{job.SeqLen: "1024", job.MicroBatch: "8"}, fixed: []job.Knob{job.SeqLen}, note: "does not apply the maximum length",
		},
		{
			name: "a trainer that shrinks by itself", argv: "trl sft --auto_find_batch_size",
			want: map[job.Knob]string{job.MicroBatch: "8"}, shrinks: "two ladders at once",
		},
		{
			name: "grpo", files: map[string]string{"g.py": "TrlParser((GRPOConfig,))"}, argv: "python g.py",
			fixed: []job.Knob{job.MicroBatch}, note: "GRPO",
		},
		{
			name: "a script of TRL's parser without its model flags", files: map[string]string{"s.py": "TrlParser((SFTConfig,))"}, argv: "python s.py",
			want: map[job.Knob]string{job.SeqLen: "1024", job.MicroBatch: "8"}, not: []job.Knob{job.LoadIn4Bit}, fixed: []job.Knob{job.Method},
		},
		{
			name: "a config file in a form that is not known", files: map[string]string{"t.py": hfScript, "c.toml": ""}, argv: "python t.py c.toml",
			not: []job.Knob{job.SeqLen, job.MicroBatch, job.Accumulation}, note: "c.toml is given in a way",
		},
		{
			name: "help texts that look like code", files: map[string]string{"t.py": "p.add_argument('--batch_size', type=int, help='rows :( default=3, # x')\np.add_argument('--lr', default=1)\np.add_argument('--grad_accum', # default=9,\n  default=2)\n"},
			argv: "python t.py --seq_len 2048", want: map[job.Knob]string{job.Accumulation: "2", job.LearningRate: "1"}, not: []job.Knob{job.MicroBatch},
		},
		{
			name: "two lengths that differ", argv: "python gone.py --max_length 4096 --max_seq_length 2048",
			not: []job.Knob{job.SeqLen}, note: "say different things",
		},
		{name: "two lengths that agree", argv: "python gone.py --max_length 4096 --max_seq_length 4096", want: map[job.Knob]string{job.SeqLen: "4096"}},
		{name: "no number", argv: "python gone.py --max_length auto", not: []job.Knob{job.SeqLen}, note: `"auto" is not a whole number`},
		{
			name: "config with merges and null", files: map[string]string{"c.yaml": "base: &b {max_length: 8192, packing: yes}\n<<: *b\nper_device_train_batch_size: null\ngradient_accumulation_steps: 4\n"},
			argv: "trl sft --config c.yaml",
			want: map[job.Knob]string{job.SeqLen: "8192", job.Packing: "true", job.MicroBatch: "8", job.Accumulation: "4"},
		},
		{
			name: "--config=FILE is not seen by trl", files: map[string]string{"c.yaml": "max_length: 8192\n"},
			argv: "trl sft --config=c.yaml", want: map[job.Knob]string{job.SeqLen: "1024"},
		},
		{
			name: "a config that cannot be read leaves no default", argv: "trl sft --config gone.yaml --max_length 4096",
			want: map[job.Knob]string{job.SeqLen: "4096"}, not: []job.Knob{job.MicroBatch, job.Accumulation, job.Method}, note: "cannot be read",
		},
		{
			name: "a value that is no single word", files: map[string]string{"c.yaml": "cutoff_len: ${oc.env:LEN}\nper_device_train_batch_size: [1]\n"},
			argv: "llamafactory-cli train c.yaml", not: []job.Knob{job.SeqLen, job.MicroBatch},
		},
		{
			name: "llama-factory", files: map[string]string{"c.yaml": "finetuning_type: full\ncutoff_len: 4096\n"}, argv: "llamafactory-cli train c.yaml bf16=true",
			want: map[job.Knob]string{job.SeqLen: "4096", job.Method: "full", job.LearningRate: "5e-05"},
		},
		{
			name: "tokenised data", files: map[string]string{"c.yaml": "tokenized_path: d\n"}, argv: "llamafactory-cli train c.yaml",
			fixed: []job.Knob{job.SeqLen}, note: "already tokenised",
		},
		{
			name: "yaml as the only argument", files: map[string]string{"t.py": hfScript + "parser.parse_yaml_file(x)", "c.yaml": "max_seq_length: 4096\n"},
			argv: "python t.py c.yaml", want: map[job.Knob]string{job.SeqLen: "4096", job.MicroBatch: "8"},
		},
		{
			name: "an abbreviation that fits two flags is not read", files: map[string]string{"t.py": hfScript},
			argv: "python t.py --max_s 9", not: []job.Knob{job.SeqLen, job.MaxSteps}, note: "--max_s may mean it or another flag",
		},
		{
			name: "micro-batch without accumulation", files: map[string]string{"t.py": "p.add_argument('--batch_size', default=4)"},
			argv: "python t.py --batch_size 8", want: map[job.Knob]string{job.MicroBatch: "8"}, not: []job.Knob{job.Accumulation},
		},
		{
			name: "flags declared through a function", files: map[string]string{"t.py": `s = ["--" + name]` + "\nflag(\"max_length\", type=at_least(2), default=1024, help=\"x\")\nflag('per_device_train_batch_size', default=8)\nflag(\"gradient_accumulation_steps\", default=2 * 2)\n"},
			argv: "python t.py --max_length 4096", want: map[job.Knob]string{job.SeqLen: "4096", job.MicroBatch: "8"}, not: []job.Knob{job.Accumulation},
		},
	}
	s := profiles(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j, err := s.Understand(strings.Fields(c.argv), folder(t, c.files), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, want := range c.want {
				if got := j.Knobs[k].Value; got != want {
					t.Errorf("%s = %q, want %q", k, got, want)
				}
			}
			for _, k := range c.not {
				if got, ok := j.Knobs[k]; ok {
					t.Errorf("%s is %+v, but must not be known", k, got)
				}
			}
			fixed := s.Fixed(j)
			for _, k := range c.fixed {
				if fixed[k] == "" || j.Knobs[k].Value == "" {
					t.Errorf("%s is %+v and can be turned: %q", k, j.Knobs[k], fixed)
				}
			}
			for k := range c.want {
				if fixed[k] != "" && !slices.Contains(c.fixed, k) && k != job.Method {
					t.Errorf("%s cannot be turned: %s", k, fixed[k])
				}
			}
			if !strings.Contains(j.SelfShrinks, c.shrinks) || (j.SelfShrinks == "") != (c.shrinks == "") {
				t.Errorf("shrinks by itself: %q", j.SelfShrinks)
			}
			if notes := strings.Join(j.Notes, "\n"); !strings.Contains(notes, c.note) {
				t.Errorf("notes %q lack %q", notes, c.note)
			}
		})
	}
}

func TestUnderstandUserKnobs(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	j, err := s.Understand([]string{"./train", "--len", "{seq_len}"}, t.TempDir(), nil,
		map[string]string{"seq_len": "4096", "lora_lr": "1e-4", "load_in_4bit": "true", "mine": "x y"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"SPARKRUN_KNOB_LOAD_IN_4BIT=true", "SPARKRUN_KNOB_LORA_LR=1e-4", "SPARKRUN_KNOB_METHOD=qlora",
		"SPARKRUN_KNOB_MINE=x y", "SPARKRUN_KNOB_SEQ_LEN=4096",
	}
	if diff := cmp.Diff(want, KnobEnv(j)); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got := j.Knobs[job.SeqLen]; got.Source != job.FromUser || got.Where != "{seq_len}" {
		t.Errorf("length is %+v", got)
	}
	re, err := s.Rewrite(j, Request{Changes: []Change{{Knob: job.Method, From: "qlora", To: "lora"}, {Knob: job.LoadIn4Bit, From: "true", To: "false"}}, RunID: "r", Attempt: 2})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(re.Env, "SPARKRUN_KNOB_LOAD_IN_4BIT=false") || !slices.Contains(re.Env, "SPARKRUN_KNOB_METHOD=lora") {
		t.Errorf("environment of the next attempt: %q", re.Env)
	}
	for _, bad := range []map[string]string{
		{"seq_len": "long"},
		{"seq_len": "0"},
		{"micro_batch": "-1"},
		{"Seq": "1"},
		{"": "1"},
		{"a-b": "1"},
		{"load_in_4bit": "maybe"},
		{"lora_lr": "fast"},
		{"method": "magic"},
	} {
		if _, err := s.Understand([]string{"./train"}, "/", nil, bad); err == nil || !strings.Contains(err.Error(), "--knob") {
			t.Errorf("%v: %v, want an error about --knob", bad, err)
		}
	}
	if _, err := s.Understand(nil, "/", nil, nil); err == nil {
		t.Error("no command was accepted")
	}
}

func TestInterpreter(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		"venv/bin/python":   "",
		"venv/bin/python3":  "",
		"venv/bin/trl":      "#!PLACE/venv/bin/python3\nimport sys\n",
		"venv/bin/long":     "#!/bin/sh\n'''exec' \"PLACE/venv/bin/python\" \"$0\" \"$@\"\n' '''\n",
		"other/bin/python3": "",
		"train.py":          "#!/usr/bin/env -S python3 -u\n",
		"run.sh":            "#!/bin/bash\n",
	})
	for _, name := range []string{"venv/bin/trl", "venv/bin/long"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(string(data), "PLACE", dir)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := profiles(t)
	path := "PATH=" + dir + "/venv/bin"
	for argv, want := range map[string]string{
		"python train.py":           "venv/bin/python",
		"python3.99 train.py":       "",
		"venv/bin/python3 train.py": "venv/bin/python3",
		"trl sft":                   "venv/bin/python3",
		"long x":                    "venv/bin/python",
		"./train.py":                "venv/bin/python3",
		"./run.sh":                  "",
		"env PATH=" + dir + "/other/bin ./train.py": "other/bin/python3",
		"env PATH=other/bin python3 x.py":           "other/bin/python3",
		"env -C venv bin/python x.py":               "venv/bin/python",
		"sudo python train.py":                      "",
		"docker run img python train.py":            "",
	} {
		j, err := s.Understand(strings.Fields(argv), dir, []string{path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want != "" {
			want = filepath.Join(dir, want)
		}
		if j.Interpreter != want {
			t.Errorf("%s: interpreter %q, want %q", argv, j.Interpreter, want)
		}
	}
}

func TestInterpreterBehindPyenv(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		"pyenv/shims/python3":               "#!/usr/bin/env bash\nexec pyenv exec python3 \"$@\"\n",
		"pyenv/version":                     "3.11.9\n",
		"pyenv/versions/3.11.9/bin/python3": "",
		"pyenv/versions/3.12.1/bin/python3": "",
		"job/.python-version":               "3.12.1\n",
		"other/x":                           "",
		"usr/bin/python3":                   "",
	})
	s := profiles(t)
	path := "PATH=" + dir + "/pyenv/shims:" + dir + "/usr/bin"
	for _, c := range []struct{ dir, env, want string }{
		{"other", "A=1", "pyenv/versions/3.11.9/bin/python3"},
		{"job", "A=1", "pyenv/versions/3.12.1/bin/python3"},
		{"job", "PYENV_VERSION=gone:3.11.9", "pyenv/versions/3.11.9/bin/python3"},
		{"job", "PYENV_VERSION=system", "usr/bin/python3"},
		{"job", "PYENV_VERSION=gone", "pyenv/shims/python3"},
	} {
		j, err := s.Understand([]string{"python3", "x.py"}, filepath.Join(dir, c.dir), []string{path, c.env}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(dir, c.want); j.Interpreter != want {
			t.Errorf("%+v: %s, want %s", c, j.Interpreter, want)
		}
	}
}

func TestSpellingFollowsTheInstalledVersion(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	for version, want := range map[string]string{"0.15.2": "--max_seq_length", "0.18.0": "--max_length", "1.9.0": "--max_length"} {
		dir := folder(t, map[string]string{
			"bin/python3": "",
			"bin/trl":     "#!/usr/bin/env python3\n",
			"lib/python3.12/site-packages/trl-" + version + ".dist-info/METADATA": "",
		})
		j, err := s.Understand([]string{"trl", "sft"}, dir, []string{"PATH=" + dir + "/bin"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Rewrite(j, Request{Changes: []Change{{Knob: job.SeqLen, From: "1024", To: "512"}}, RunID: "r", Attempt: 2})
		if err != nil {
			t.Fatal(err)
		}
		if got.Argv[2] != want {
			t.Errorf("trl %s: %q, want %s", version, got.Argv, want)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	knobs := map[string]string{"seq_len": "4096", "b": "{seq_len}"}
	for in, want := range map[string]string{
		"{seq_len}": "4096", "x{seq_len}y{seq_len}": "x4096y4096", "{{seq_len}}": "{seq_len}", "{{{seq_len}}}": "{{seq_len}}",
		"{other}": "{other}", "{{other}}": "{{other}}", "{seq_len": "{seq_len", "{}": "{}", "{ seq_len }": "{ seq_len }",
		"{b}": "{seq_len}", "${seq_len}": "$4096", `{"a":{seq_len}}`: `{"a":4096}`, "": "", "{{{": "{{{", "}}{{": "}}{{",
	} {
		got, err := Expand([]string{in}, knobs)
		if err != nil || got[0] != want {
			t.Errorf("%q gives %q, %v, want %q", in, got, err, want)
		}
	}
	for _, w := range []string{"{seq_len}", "{{x}}"} {
		if got, err := Expand([]string{w}, nil); err != nil || got[0] != w {
			t.Errorf("without knobs %q became %q, %v", w, got, err)
		}
	}
}

func TestLoadUserProfiles(t *testing.T) {
	t.Parallel()
	good := "name: hf-trainer\nrecognise: {programs: [mine]}\nfamily: per-device\nparser: {always: true, style: argparse}\n" +
		"knobs:\n  seq_len: {names: [len], kind: int, default: \"4096\"}\nfloor: 2048\n"
	dir := folder(t, map[string]string{"a.yaml": good, "note.txt": "x", ".b.yaml": "x"})
	s, err := Load([]string{dir, filepath.Join(dir, "gone")})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"argparse", "hf-trainer", "llama-factory", "trl"} {
		if !slices.Contains(s.Names(), name) {
			t.Errorf("names %q lack %s", s.Names(), name)
		}
	}
	j, err := s.Understand([]string{"mine"}, dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if j.Profile != "hf-trainer" || j.Knobs[job.SeqLen].Value != "4096" || s.Floor(j) != 2048 {
		t.Errorf("the user's profile does not hold: %+v", j)
	}

	bad := map[string]string{
		"bogus: 1\nname: x\n": ":1: there is no key bogus",
		"name: x\nrecognise: {programs: [a]}\nparser: {style: hf}\nfamily: odd\n":                      `:4: family is "odd"`,
		strings.Replace(good, "kind: int", "kind: number", 1):                                          `:6: knob seq_len has kind "number"`,
		strings.Replace(good, `"4096"`, "many", 1):                                                     ":6: knob seq_len: default",
		strings.Replace(good, "programs: [mine]", "", 1):                                               ":2: nothing to recognise",
		strings.Replace(good, "floor: 2048", "floor: -1", 1):                                           ":7: floor is negative",
		strings.Replace(good, "names: [len], kind: int, default: \"4096\"", "names: [], kind: int", 1): ":6: knob seq_len has no names",
		good + "method: {to_lora: {peft: x}}\n":                                                        ":8: method names peft",
		good + "config: [{form: flag, override: none}]\n":                                              ":8: flag belongs to",
		strings.Replace(good, "name: hf-trainer", "name: ''", 1):                                       ":1: a profile needs a name",
		"":      ": the file is empty",
		"a: [1": ":",
	}
	for _, text := range slices.Sorted(maps.Keys(bad)) {
		dir := folder(t, map[string]string{"p.yaml": text})
		_, err := Load([]string{dir})
		if err == nil || !strings.HasPrefix(err.Error(), filepath.Join(dir, "p.yaml")+bad[text]) {
			t.Errorf("%q: %v, want %s", text, err, bad[text])
		}
	}
}

func TestOutputSuffixAndResume(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"t.py": hfScript, "plain.py": "x"})
	for argv, want := range map[string]struct {
		to     string
		resume bool
	}{
		"python t.py --output_dir out/":                     {"out-a2", true},
		"python t.py":                                       {"", true},
		"trl sft --output_dir /x/o":                         {"/x/o-a2", false},
		"llamafactory-cli train --stage sft --output_dir .": {"", true},
		"python plain.py --max_length 3 --output_dir o":     {"o-a2", false},
	} {
		j, err := s.Understand(strings.Fields(argv), dir, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ch, ok := OutputSuffix(j, 2)
		if ok != (want.to != "") || ch.To != want.to {
			t.Errorf("%s: suffix %+v, want %q", argv, ch, want.to)
		}
		if got := s.CanResume(j); got != want.resume {
			t.Errorf("%s: can resume %v", argv, got)
		}
		if ok {
			if _, err := s.Rewrite(j, Request{Changes: []Change{ch}, RunID: "r", Attempt: 2}); err != nil {
				t.Errorf("%s: %v", argv, err)
			}
		}
	}
}
