package preflight

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
)

// viewOf is a view of a tree with the files given, for a command typed in /home/ada.
func viewOf(t *testing.T, j *job.Job, files map[string]string, kv ...string) view {
	t.Helper()
	if j.Dir == "" {
		j.Dir = "/home/ada"
	}
	return view{root: rootOf(copyTree(t, "", files)), getenv: env(kv...), job: j}
}

func command(line string) *job.Job { return &job.Job{Argv: strings.Fields(line)} }

// shown writes settings as "where name=value", with the meaning where it differs.
func shown(list []setting) string {
	var out []string
	for _, s := range list {
		value := s.value
		if s.computed {
			value += "?"
		}
		if s.means != strings.ToLower(s.value) {
			value += ">" + s.means
		}
		out = append(out, fmt.Sprintf("%s %s=%s", s.where, s.name, value))
	}
	return strings.Join(out, ", ")
}

func TestAskedInWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, subject, want string }{
		{"trl sft --attn_implementation sdpa", "attention", "--attn_implementation --attn_implementation=sdpa"},
		{"trl sft --attn-implementation=sdpa", "attention", "--attn-implementation --attn-implementation=sdpa"},
		{"automodel c.yml --model.attn_implementation eager", "attention", "--model.attn_implementation --model.attn_implementation=eager"},
		{"python -m v +model.override_config.attn_implementation=flash_attention_2", "attention", "+model.override_config.attn_implementation +model.override_config.attn_implementation=flash_attention_2"},
		{"llamafactory-cli train c.yml flash_attn=fa2", "attention", "flash_attn flash_attn=fa2>flash_attention_2"},
		{"python t.py --flash_attn --x 1", "attention", "--flash_attn --flash_attn=true>flash_attention_2"},
		{"python t.py --use_flash_attn False", "attention", ""},
		{"python t.py --attn_implementation eager --attn_implementation sdpa", "attention", "--attn_implementation --attn_implementation=sdpa, --attn_implementation --attn_implementation=eager"},
		{"vllm serve m --tensor-parallel-size 2", "tensor_parallel", "--tensor-parallel-size --tensor-parallel-size=2"},
		{"vllm serve m -tp 2", "tensor_parallel", "-tp -tp=2"},
		{"python -m x a.rollout.tensor_model_parallel_size=2", "rollout", "a.rollout.tensor_model_parallel_size a.rollout.tensor_model_parallel_size=2"},
		{"python t.py --tp -1", "tensor_parallel", "--tp --tp=-1"},
		{"python t.py --tp $TP", "tensor_parallel", "--tp --tp=$TP?"},
		{`python t.py --model_kwargs {"attn_implementation":"sdpa","n":[1,2]}`, "attention", "--model_kwargs model_kwargs.attn_implementation=sdpa"},
		{`python t.py parallel={"tp":4}`, "tensor_parallel", "parallel parallel.tp=4"},
		{"env WORLD_SIZE=2 python t.py", "world_size", "WORLD_SIZE WORLD_SIZE=2"},
		{"python t.py --dataloader_num_workers 4", "num_workers", "--dataloader_num_workers --dataloader_num_workers=4"},
		{"python t.py --my_own 7", "my_own", "--my_own --my_own=7"},
		{"python t.py --step_size 2 http://x?tp_size=2 --http://y=1", "tensor_parallel", ""},
		{"python t.py --", "tensor_parallel", ""},
	} {
		r := readAsked(viewOf(t, command(c.line), nil))
		if got := shown(r.named(c.subject)); got != c.want {
			t.Errorf("%s: %s\n got %s\nwant %s", c.line, c.subject, got, c.want)
		}
	}
	quoted := &job.Job{Argv: []string{"bash", "-lc", `cd x && TP=2 torchrun t.py --tp-size 2 --attn_implementation "sdpa" --other "$A"`}}
	r := readAsked(viewOf(t, quoted, nil))
	if got := shown(r.named("tensor_parallel")) + ", " + shown(r.named("attention")) + ", " + shown(r.named("other")); got != "--tp-size --tp-size=2, TP TP=2, --attn_implementation --attn_implementation=sdpa, --other --other=$A?" {
		t.Errorf("bash -lc: %s", got)
	}
}

func TestAskedInFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		job     job.Job
		files   map[string]string
		subject string
		want    string
		unread  string
	}{
		{"the trainer's config", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "a: 1\nmodel:\n  # attn: x\n  attn_implementation: \"sdpa\"\n"}, "attention", "c.yaml:4 model.attn_implementation=sdpa", ""},
		{"JSON with brackets in lists", job.Job{ConfigFile: "c.json"}, map[string]string{"home/ada/c.json": "{\n\"stages\": [{\"tp_size\": 2}]\n}"}, "tensor_parallel", "c.json:2 stages[0].tp_size=2", ""},
		{"TOML", job.Job{ConfigFile: "c.toml"}, map[string]string{"home/ada/c.toml": "[parallel]\ntp = 2\n"}, "tensor_parallel", "c.toml:2 parallel.tp=2", ""},
		{"nested and short", job.Job{Argv: []string{"x", "conf/c.yml"}}, map[string]string{"home/ada/conf/c.yml": "parallel: {tp: 2, pp: 1}\n"}, "tensor_parallel", "conf/c.yml:1 parallel.tp=2", ""},
		{"null, off and 1 are kept", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "tp_size: 1\nx: {tp_size: null}\ntensor_parallel: false\n"}, "tensor_parallel", "c.yaml:1 tp_size=1, c.yaml:2 x.tp_size=null, c.yaml:3 tensor_parallel=false", ""},
		{"an interpolation", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "tp_size: ${oc.env:TP}\n"}, "tensor_parallel", "c.yaml:1 tp_size=${oc.env:TP}?", ""},
		{"lists", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "lora_target_modules:\n  - q_proj\n  - v_proj\n"}, "lora_target_modules", "c.yaml:2 lora_target_modules=q_proj,v_proj", ""},
		{"duplicate keys", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "tp_size: 1\ntp_size: 4\n"}, "tensor_parallel", "c.yaml:1 tp_size=1, c.yaml:2 tp_size=4", ""},
		{"a file in a file", job.Job{ConfigFile: "c/c.yaml"}, map[string]string{"home/ada/c/c.yaml": "deepspeed: ds.json\n", "home/ada/c/ds.json": `{"autotp_size": 2}`}, "tensor_parallel", "c/ds.json:1 autotp_size=2", ""},
		{"a file that names itself", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "base: c.yaml\ntp_size: 2\n"}, "tensor_parallel", "c.yaml:2 tp_size=2", ""},
		{"a folder of files", job.Job{Argv: []string{"x", "--config-dir", "conf"}}, map[string]string{"home/ada/conf/a.yaml": "x: 1\n", "home/ada/conf/model/b.yml": "tp_size: 2\n", "home/ada/conf/.git/c.yaml": "tp_size: 3\n"}, "tensor_parallel", "conf/model/b.yml:1 tp_size=2", ""},
		{"the value of a flag", job.Job{Argv: []string{"x", "--deepspeed=ds.json", "--config_name", "default"}}, map[string]string{"home/ada/ds.json": `{"tp_size":2}`}, "tensor_parallel", "ds.json:1 tp_size=2", ""},
		{"data is no config", job.Job{Argv: []string{"x", "--dataset", "data.json", "--file", "d.yaml", "x.json", "big.json"}}, map[string]string{"home/ada/data.json": `{"tp_size":2}`, "home/ada/big.json": strings.Repeat(`[1]`, 90_000), "home/ada/x.json": `[{"tp_size": 2}]`}, "tensor_parallel", "", ""},
		{"one JSON file", job.Job{Argv: []string{"python", "t.py", "c.json"}}, map[string]string{"home/ada/c.json": `{"tp_size":2}`}, "tensor_parallel", "c.json:1 tp_size=2", ""},
		{"a folder of a model", job.Job{Argv: []string{"x", "--base", "m"}}, map[string]string{"home/ada/m/tokenizer.json": strings.Repeat(`{}`, 150_000), "home/ada/m/config.json": `{"tp_size":2}`}, "tensor_parallel", "m/config.json:1 tp_size=2", ""},
		{"what was read through a mount", job.Job{Argv: []string{"docker", "run", "img", "x", "/w/c.yaml"}, ConfigFile: "/w/c.yaml", Container: &job.Container{}, Read: map[string]string{"/srv/c.yaml": ""}}, map[string]string{"srv/c.yaml": "tp_size: 2\n"}, "tensor_parallel", "/srv/c.yaml:1 tp_size=2", ""},
		{"inside a container", job.Job{Argv: []string{"docker", "run", "img", "x", "c.yaml"}, ConfigFile: "c.yaml", Container: &job.Container{}}, map[string]string{"home/ada/c.yaml": "tp_size: 2\n"}, "tensor_parallel", "", "c.yaml: inside the container, where it cannot be seen"},
		{"not there", job.Job{ConfigFile: "c.yaml"}, nil, "tensor_parallel", "", "c.yaml: there is no such file"},
		{"torn", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "a: [1,\n"}, "tensor_parallel", "", "c.yaml: line"},
		{"torn JSON", job.Job{ConfigFile: "c.json"}, map[string]string{"home/ada/c.json": `{"tp_size": 2`}, "tensor_parallel", "", "c.json: line 1"},
		{"binary", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "\x00\xff\xfe"}, "tensor_parallel", "", "c.yaml: line 1: not UTF-8"},
		{"huge", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": strings.Repeat("a: 1\n", 60_000)}, "tensor_parallel", "", "c.yaml: larger than 256 KiB"},
		{"a folder in the way", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml/x": ""}, "tensor_parallel", "", "c.yaml: a folder, not a file"},
		{"nothing in it", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": "# nothing\n"}, "tensor_parallel", "", ""},
		{"cut to nothing", job.Job{ConfigFile: "c.yaml"}, map[string]string{"home/ada/c.yaml": ""}, "tensor_parallel", "", "c.yaml: empty, or no regular file"},
		{
			"the script",
			job.Job{Script: "t.py"},
			map[string]string{"home/ada/t.py": "import x\n# attn_implementation='eager'\nm = X.from_pretrained('a', attn_implementation=\"sdpa\")\ns = \"attn_implementation='no'\"\n"},
			"attention", "t.py:3 attn_implementation=sdpa", "",
		},
		{"a name in the script", job.Job{Script: "t.py"}, map[string]string{"home/ada/t.py": "A = 'sdpa'\nm = f(attn_implementation=A)\n"}, "attention", "t.py:1 attn_implementation=sdpa", ""},
		{"worked out in the script", job.Job{Script: "t.py"}, map[string]string{"home/ada/t.py": "m = f(attn_implementation=args.attn)\n"}, "attention", "t.py:1 attn_implementation=?", ""},
		{"a declared default", job.Job{Script: "t.py"}, map[string]string{"home/ada/t.py": "p.add_argument('--attn_implementation', type=str,\n  default='sdpa')\np.add_argument('--n', default=1)\n"}, "attention", "t.py:2 --attn_implementation=sdpa", ""},
		{"a dict in the script", job.Job{Script: "t.py"}, map[string]string{"home/ada/t.py": "kw = {'attn_implementation': 'sdpa'}\n"}, "attention", "t.py:1 attn_implementation=sdpa", ""},
		{"short names mean other things in scripts", job.Job{Script: "t.py"}, map[string]string{"home/ada/t.py": "tp = 5\nfp = 2\nf(tp=tp)\n"}, "tensor_parallel", "", ""},
		{"no script there", job.Job{Script: "t.py"}, nil, "attention", "", "t.py: there is no such file"},
		{"a program", job.Job{Script: "t"}, map[string]string{"home/ada/t": "\x7fELF\x00attn_implementation='x'"}, "attention", "", ""},
		{"a shell script", job.Job{Argv: []string{"bash", "run.sh"}}, map[string]string{"home/ada/run.sh": "#!/bin/bash\nset -e\ntorchrun t.py \\\n  --tp_size 2 c.yaml\n", "home/ada/c.yaml": "tp_size: 3\n"}, "tensor_parallel", "run.sh:4 --tp_size=2, c.yaml:1 tp_size=3", ""},
		{"a torn shell script", job.Job{Argv: []string{"bash", "run.sh"}}, map[string]string{"home/ada/run.sh": "if x; then\n"}, "tensor_parallel", "", "run.sh: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := readAsked(viewOf(t, &c.job, c.files))
			if got := shown(r.named(c.subject)); got != c.want {
				t.Errorf("%s:\n got %s\nwant %s", c.subject, got, c.want)
			}
			unread := strings.Join(r.unread, "; ")
			if c.unread == "" && unread != "" || !strings.HasPrefix(unread, c.unread) {
				t.Errorf("unread %q, want %q", unread, c.unread)
			}
		})
	}
}

// What holds comes first: the user's word, then argv, the file, the script, the
// environment.
func TestAskedInTheOrderOfWhatHolds(t *testing.T) {
	t.Parallel()
	j := &job.Job{
		Argv: []string{"python", "t.py", "--num_nodes", "2"}, Script: "t.py", ConfigFile: "c.yaml",
		Knobs: job.Knobs{"machines": {Value: "1", Source: job.FromUser}, job.Attention: {Value: "sdpa", Source: job.FromArgv}},
	}
	r := readAsked(viewOf(t, j, map[string]string{"home/ada/c.yaml": "nnodes: 3\n", "home/ada/t.py": "nnodes = 4\n"}, "NNODES", "5"))
	want := "--knob machines nnodes=1, --num_nodes --num_nodes=2, c.yaml:1 nnodes=3, t.py:1 nnodes=4, variable NNODES nnodes=5"
	if got := shown(r.named("machines")); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if got := asked(view{}, "attention"); got != nil {
		t.Errorf("without a command: %v", got)
	}
}

// A pipe in place of a config blocks a reader for ever, and one that nobody may read is
// not one without settings.
func TestAskedOfFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	v := viewOf(t, &job.Job{ConfigFile: "pipe.yaml"}, map[string]string{"home/ada/x": ""})
	if err := syscall.Mkfifo(filepath.Join(string(v.root), "home/ada/pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan request, 1)
	go func() { done <- readAsked(v) }()
	select {
	case r := <-done:
		if len(r.unread) != 1 || !strings.HasPrefix(r.unread[0], "pipe.yaml: ") {
			t.Errorf("a pipe: %q", r.unread)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("waits for a pipe")
	}
	if os.Getuid() == 0 {
		return // nothing is forbidden to root
	}
	path := filepath.Join(string(v.root), "home/ada/c.yaml")
	if err := os.WriteFile(path, []byte("tp: 2\n"), 0); err != nil {
		t.Fatal(err)
	}
	v.job = &job.Job{ConfigFile: "c.yaml", Dir: "/home/ada"}
	if r := readAsked(v); len(r.unread) != 1 || r.unread[0] != "c.yaml: permission denied" {
		t.Errorf("a forbidden file: %q", r.unread)
	}
}

func TestAskedTable(t *testing.T) {
	t.Parallel()
	table, err := loadAsked()
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Files) == 0 || len(table.UnslothLoader) == 0 {
		t.Errorf("table without files or loaders: %+v", table)
	}
	for name, s := range table.Subjects {
		if s.About == "" || len(s.Names) == 0 {
			t.Errorf("%s: no about, or no names", name)
		}
		for _, n := range append(append([]string{}, s.Names...), s.Keys...) {
			if n == "" || n != plain(n) {
				t.Errorf("%s: %s is not written as names are compared", name, n)
			}
		}
		for k := range s.Values {
			if k != plain(k) {
				t.Errorf("%s: value %s", name, k)
			}
		}
	}
}

func TestSettingsAsNumbers(t *testing.T) {
	t.Parallel()
	type answer struct {
		N   int64
		OK  bool
		Off bool
	}
	for value, want := range map[string]answer{
		"2": {2, true, false}, "1_000": {1000, true, false}, " 3 ": {3, true, false}, "0": {0, true, true},
		"auto": {}, "False": {0, false, true}, "null": {0, false, true}, "": {0, false, true}, "2.0": {},
	} {
		n, ok := setting{value: value}.number()
		if diff := cmp.Diff(want, answer{n, ok, setting{value: value}.off()}); diff != "" {
			t.Errorf("%q: %s", value, diff)
		}
	}
	if c := (setting{value: "", computed: true}); c.off() {
		t.Error("what is not known is not off")
	}
}
