package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const sftYAML = `# mine
model_name_or_path: Qwen/Qwen2.5-0.5B
max_length: 4096   # long
per_device_train_batch_size: 8
load_in_4bit: true
use_peft: true
gradient_checkpointing: true
optim: adamw_8bit
output_dir: out
`

// canary is a program that leaves a file if it is ever run.
const canary = "#!/usr/bin/env python3\nopen(__file__ + '.was-run', 'w')\n"

// TestExplainKeys: every key of the contract is there, with the value and the place it
// was read from, and nothing is run or written for it.
func TestExplainKeys(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		"sft.yaml": sftYAML, "bin/trl": canary,
		"out/checkpoint-3/trainer_state.json": `{"global_step": 3}`, "out/checkpoint-3/model.safetensors": "torn",
	})
	if err := os.Chmod(filepath.Join(dir, "bin", "trl"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	e := explainJSON(t, dir, "--", filepath.Join(dir, "bin", "trl"), "sft", "--config", "sft.yaml", "--packing", "True", "--resume_from_checkpoint", "out/checkpoint-3")
	if diff := changed(before, contents(t, dir)); len(diff) > 0 {
		t.Errorf("explain has changed or run something: %v", diff)
	}

	var raw map[string]json.RawMessage
	if err := json.Unmarshal(e.raw, &raw); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"schema", "trainer", "launchers", "knobs", "method", "effective_batch", "rungs"} {
		if v, there := raw[key]; !there || string(v) == "null" {
			t.Errorf("%s is %s", key, v)
		}
	}
	if e.Schema != "sparkrun.explain/1" || e.trainer() != "trl" || e.Method != "qlora" || e.EffectiveBatch == nil || *e.EffectiveBatch != 8 {
		t.Errorf("schema %q, trainer %q, method %q, effective batch %v", e.Schema, e.trainer(), e.Method, e.EffectiveBatch)
	}
	if e.Launchers == nil || len(e.Launchers) != 0 {
		t.Errorf("launchers %#v, want an empty list", e.Launchers)
	}
	got := map[string]string{}
	for name, k := range e.Knobs {
		got[name] = fmt.Sprintf("%T %v %s", k.Value, k.Value, k.Source)
	}
	want := map[string]string{
		"seq_len": "float64 4096 config:sft.yaml:3", "packing": "bool true argv", "micro_batch": "float64 8 config:sft.yaml:4",
		"grad_accum": "float64 1 default", "load_in_4bit": "bool true config:sft.yaml:5", "grad_checkpointing": "bool true config:sft.yaml:7",
		"optimizer": "string adamw_8bit config:sft.yaml:8", "output_dir": "string out config:sft.yaml:9", "resume": "string out/checkpoint-3 argv",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("knobs (-want +got):\n%s", d)
	}
	if e.Checkpoint != nil || len(e.Broken) != 1 || !strings.HasSuffix(e.Broken[0].Path, "checkpoint-3") || e.Broken[0].Why == "" {
		t.Errorf("the torn checkpoint: complete %v, broken %v", e.Checkpoint, e.Broken)
	}
	var rungs []map[string]json.RawMessage
	if err := json.Unmarshal(raw["rungs"], &rungs); err != nil {
		t.Fatal(err)
	}
	for _, r := range rungs {
		for _, key := range []string{"name", "allowed", "reason", "argv", "files", "env"} {
			if _, there := r[key]; !there {
				t.Errorf("a rung without %s: %s", key, r["name"])
			}
		}
	}
	cuts := e.allowed("length")
	if len(cuts) != 2 || !slices.Contains(cuts[0].Argv, "2048") || !slices.Contains(cuts[1].Argv, "1024") || cuts[0].Argv[1] != "sft" {
		t.Errorf("the length's rungs: %+v", cuts)
	}
	if why := e.why("full-to-lora"); why == "" {
		t.Error("a refused rung has no reason")
	}
}

// TestExplainText: a person is told the same, and again nothing is run.
func TestExplainText(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{"sft.yaml": sftYAML, "trl": canary})
	if err := os.Chmod(filepath.Join(dir, "trl"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	cmd := exec.Command(filepath.Join(bin, "sparkrun"), "explain", "--", "bash", "-c", "cd . && nice -n 5 ./trl sft --config sft.yaml")
	cmd.Dir, cmd.Env = dir, testEnv(dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if diff := changed(before, contents(t, dir)); len(diff) > 0 {
		t.Errorf("explain has changed or run something: %v", diff)
	}
	for _, text := range []string{
		"trl", "bash", "nice", "qlora", "4096", "sft.yaml:3", "8 rows in one optimizer step", "none found",
		"--max_length 2048", "cd . && nice -n 5 ./trl sft --config sft.yaml --max_length 1024",
	} {
		if !bytes.Contains(out, []byte(text)) {
			t.Errorf("the text does not hold %q:\n%s", text, out)
		}
	}
}

// TestExplainRunsNothing: neither the command nor a launcher, an interpreter or an engine
// is started to find out about it.
func TestExplainRunsNothing(t *testing.T) {
	t.Parallel()
	dir := constants(t)
	put(t, dir, map[string]string{"train.sh": "python3 train.py\n"})
	programs := []string{"python3", "python", "bash", "sh", "docker", "podman", "git", "accelerate", "torchrun", "uv", "poetry", "conda", "nvidia-smi", "env", "trl", "llamafactory-cli", "pip"}
	for _, name := range programs {
		put(t, dir, map[string]string{"bin/" + name: "#!/bin/sh\ntouch \"$0.was-run\"\nexec /usr/bin/env -i PATH=/usr/bin:/bin " + name + " \"$@\"\n"})
		if err := os.Chmod(filepath.Join(dir, "bin", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := contents(t, dir)
	for _, argv := range [][]string{
		{"python3", "train.py"},
		{"python3", "-m", "trl.scripts.sft", "--max_length", "4096"},
		{"accelerate", "launch", "train.py"},
		{"torchrun", "train.py"},
		{"uv", "run", "train.py"},
		{"poetry", "run", "python", "train.py"},
		{"conda", "run", "-n", "x", "python", "train.py"},
		{"bash", "train.sh"},
		{"bash", "-c", "cd . && python3 train.py"},
		{"docker", "run", "-v", dir + ":/w", "-w", "/w", "image", "python", "train.py"},
		{"docker", "exec", "box", "python", "train.py"},
		{"docker", "compose", "run", "train", "python", "train.py"},
		{"podman", "run", "image", "trl", "sft", "--max_length", "4096"},
	} {
		cmd := exec.Command(filepath.Join(bin, "sparkrun"), append([]string{"explain", "--json", "--"}, argv...)...)
		cmd.Dir, cmd.Env = dir, append(testEnv(dir), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", argv, err, out)
		}
		if diff := changed(before, contents(t, dir)); len(diff) > 0 {
			t.Fatalf("%v has run or written: %v", argv, diff)
		}
	}
}

// TestExplainCompose: what compose starts stands in its own file, so the words stay, and
// the shim comes in by -e and -v.
func TestExplainCompose(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := explainJSON(t, dir, "--", "docker", "compose", "run", "--rm", "trainer", "python3", "train.py", "--max_length", "4096")
	cuts := e.allowed("length")
	if len(cuts) == 0 || !cuts[0].Shim {
		t.Fatalf("rungs %+v, refused with %q, notes %v", cuts, e.why("length"), e.Notes)
	}
	argv := cuts[0].Argv
	at := slices.Index(argv, "trainer")
	if got := strings.Join(argv[at:], " "); at < 0 || got != "trainer python3 train.py --max_length 4096" {
		t.Fatalf("what is started is %q in %q", got, argv)
	}
	for i := 4; i < at; i += 2 {
		if argv[i] != "-e" && argv[i] != "-v" {
			t.Errorf("%q was added to compose run: %q", argv[i], argv)
		}
	}
	if added := strings.Join(argv[4:at], " "); !strings.Contains(added, "SPARKRUN_SHIM_PLAN=") || !strings.Contains(added, ":ro") {
		t.Errorf("the shim is not in %q", added)
	}
}

// TestExplainUnknown: of a command that nobody knows, nothing is claimed.
func TestExplainUnknown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, argv := range [][]string{
		{"/bin/true"}, {"no-such-program", "--epochs", "3"}, {"python3", "missing.py"}, {"ssh", "box", "trl", "sft", "--max_length", "4096"}, {"make", "train"},
	} {
		e := explainJSON(t, dir, append([]string{"--"}, argv...)...)
		if e.Trainer != nil || e.Method != "unknown" || e.EffectiveBatch != nil {
			t.Errorf("%v: trainer %v, method %s, effective batch %v", argv, e.trainer(), e.Method, e.EffectiveBatch)
		}
		for name, k := range e.Knobs {
			if k.Value != nil {
				t.Errorf("%v: %s is %v", argv, name, k.Value)
			}
		}
		for _, r := range e.Rungs {
			if r.Allowed && !r.Shim {
				t.Errorf("%v: %s (%s) would be taken: %s", argv, r.Name, r.Action, r.Reason)
			}
			if r.Reason == "" {
				t.Errorf("%v: %s (%s) has no reason", argv, r.Name, r.Action)
			}
		}
	}
	if e := explainJSON(t, dir, "--", "/bin/true"); !bytes.Contains(e.raw, []byte(`"trainer": null`)) || !bytes.Contains(e.raw, []byte(`"effective_batch": null`)) {
		t.Errorf("what is not known is not null:\n%s", e.raw)
	}
}

const runCLM = "# parser = HfArgumentParser((ModelArguments, TrainingArguments))\n"

// badInput is one way in which people write a command or its config; a rung is right
// when it makes the command or copy that is wanted, or says why not.
type badInput struct {
	name  string
	files map[string]string
	argv  []string
	// length is what is read; 0 for not known. Then no rung may turn it.
	length float64
	// cut is the command of the first cut, copy the text of the changed copy that it
	// reads.
	cut, copy string
	// refused is part of the reason, or of a note, where nothing is cut; instead is what
	// is still turned then.
	refused, instead string
}

var badInputs = []badInput{
	{
		name: "a flag twice", argv: []string{"trl", "sft", "--max_length", "8192", "--max_length", "4096"}, length: 4096,
		cut: "trl sft --max_length 8192 --max_length 2048",
	},
	{
		name: "a flag twice in two forms", argv: []string{"trl", "sft", "--max_length=8192", "--per_device_train_batch_size", "2", "--max_length", "4096"}, length: 4096,
		cut: "trl sft --max_length=8192 --per_device_train_batch_size 2 --max_length 2048",
	},
	{
		name: "the last one wins", argv: []string{"trl", "sft", "--max_length", "4096", "--max_length=2048"}, length: 2048,
		cut: "trl sft --max_length 4096 --max_length=1024",
	},
	{name: "abbreviated", argv: []string{"trl", "sft", "--max_len", "4096"}, length: 4096, cut: "trl sft --max_len 2048"},
	{
		name: "abbreviated twice over", argv: []string{"trl", "sft", "--max_len", "8192", "--max_length=4096"}, length: 4096,
		cut: "trl sft --max_len 8192 --max_length=2048",
	},
	{name: "an equals sign", argv: []string{"trl", "sft", "--max_length=4096"}, length: 4096, cut: "trl sft --max_length=2048"},
	{name: "hyphens", argv: []string{"trl", "sft", "--max-length", "4096"}, length: 4096, cut: "trl sft --max-length 2048"},
	{name: "underscores in a number", argv: []string{"trl", "sft", "--max_length", "4_096"}, length: 4096, cut: "trl sft --max_length 2048"},
	{
		name: "underscores in a YAML number", files: map[string]string{"c.yaml": "max_length: 4_096\n"},
		argv: []string{"trl", "sft", "--config", "c.yaml"}, length: 4096, cut: "trl sft --config c.yaml --max_length 2048",
	},
	{
		name: "an anchor", files: map[string]string{"c.yaml": "stage: sft\nlen: &l 4096\ncutoff_len: *l\n"},
		argv: []string{"llamafactory-cli", "train", "c.yaml"}, length: 4096, cut: "llamafactory-cli train c.yaml cutoff_len=2048",
	},
	{
		name: "a merge", files: map[string]string{"c.yaml": "base: &b\n  cutoff_len: 4096\n<<: *b\nstage: sft\n"},
		argv: []string{"llamafactory-cli", "train", "c.yaml"}, length: 4096, cut: "llamafactory-cli train c.yaml cutoff_len=2048",
	},
	{
		// Only a copy changes ai-toolkit, so the batch of a shared block has to be
		// changed for this user of it alone.
		name: "a merge in a copy", files: map[string]string{"c.yaml": aiToolkit("defaults: &d\n  batch_size: 4\n  steps: 10\n", "\n        <<: *d\n        gradient_accumulation_steps: 1\n")},
		argv: []string{"python3", "run.py", "c.yaml"},
		cut:  "python3 run.py COPY", copy: aiToolkit("defaults: &d\n  batch_size: 4\n  steps: 10\n", "\n        <<: *d\n        gradient_accumulation_steps: 2\n        batch_size: 2\n"),
	},
	{
		name: "CRLF", files: map[string]string{"run_clm.py": runCLM, "c.json": "{\r\n\t\"block_size\"\t:\t4096,\r\n\t\"per_device_train_batch_size\": 2\r\n}\r\n"},
		argv: []string{"python3", "run_clm.py", "c.json"}, length: 4096,
		cut: "python3 run_clm.py COPY", copy: "{\r\n\t\"block_size\"\t:\t2048,\r\n\t\"per_device_train_batch_size\": 2\r\n}\r\n",
	},
	{
		name: "CRLF in YAML", files: map[string]string{"c.yaml": "stage: sft\r\ncutoff_len: 4096\r\n"},
		argv: []string{"llamafactory-cli", "train", "c.yaml"}, length: 4096, cut: "llamafactory-cli train c.yaml cutoff_len=2048",
	},
	{
		name: "a tab behind a key", files: map[string]string{"c.yaml": "stage: sft\ncutoff_len:\t4096\n"},
		argv: []string{"llamafactory-cli", "train", "c.yaml"}, length: 4096, cut: "llamafactory-cli train c.yaml cutoff_len=2048",
	},
	{
		name: "a tab as indentation", files: map[string]string{"c.yaml": "stage: sft\n\tcutoff_len: 4096\n"},
		argv: []string{"llamafactory-cli", "train", "c.yaml"}, refused: "tab",
	},
	{
		name: "a key twice", files: map[string]string{"run_clm.py": runCLM, "c.json": `{"block_size": 4096, "block_size": 2048}`},
		argv: []string{"python3", "run_clm.py", "c.json"}, length: 2048, refused: "stands on line 1 too", instead: "micro-batch",
	},
	{
		name: "a path after cd", files: map[string]string{"sub/run_clm.py": runCLM, "sub/c.json": `{"block_size": 4096}`},
		argv: []string{"bash", "-c", "cd sub && python3 run_clm.py c.json"}, length: 4096,
		cut: "bash -c cd sub && python3 run_clm.py COPY", copy: `{"block_size": 2048}`,
	},
	{
		name: "a cd that nobody can follow", files: map[string]string{"sub/run_clm.py": runCLM, "sub/c.json": `{"block_size": 4096}`},
		argv: []string{"bash", "-c", `cd "$WHERE" && python3 run_clm.py c.json`}, refused: "c.json",
	},
	{
		name: "text before the flags", argv: []string{"bash", "-c", "echo 'a  b' ; trl sft  --max_length 4096"}, length: 4096,
		cut: "bash -c echo 'a  b' ; trl sft  --max_length 2048",
	},
	{name: "no number", argv: []string{"trl", "sft", "--max_length", "long"}, refused: `"long" is not a whole number`, instead: "micro-batch"},
}

// aiToolkit is a config of ai-toolkit with something above and something in its
// training block.
func aiToolkit(above, train string) string {
	return above + "job: extension\nconfig:\n  name: x  # mine\n  process:\n    - type: sd_trainer\n      train:" + train + "      model: {name_or_path: m}\n"
}

// TestExplainBadInput: whatever people write is read right and changed right, or
// refused with the reason. The copies are read back from a real attempt.
func TestExplainBadInput(t *testing.T) {
	t.Parallel()
	for _, c := range badInputs {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t, c.files)
			before := contents(t, dir)
			e := explainJSON(t, dir, append([]string{"--"}, c.argv...)...)
			if diff := changed(before, contents(t, dir)); len(diff) > 0 {
				t.Errorf("explain has written: %v", diff)
			}
			if got := e.Knobs["seq_len"].Value; c.length > 0 && got != c.length || c.length == 0 && got != nil {
				t.Errorf("the length is read as %v, want %v\n%s", got, c.length, e.raw)
			}
			cuts := e.allowed("length")
			if c.length == 0 && c.cut != "" {
				cuts = e.allowed("micro-batch")
			}
			if c.cut == "" {
				if len(cuts) > 0 {
					t.Errorf("it would be cut: %+v", cuts)
				}
				if said := e.why("length") + strings.Join(e.Notes, "; "); !strings.Contains(said, c.refused) || said == "" {
					t.Errorf("refused with %q, want something of %q", said, c.refused)
				}
				for _, action := range []string{"micro-batch", "full-to-lora"} {
					if n := len(e.allowed(action)); (n > 0) != (action == c.instead) {
						t.Errorf("%d rungs of %s, where %q is what is left: %s", n, action, c.instead, e.why(action))
					}
				}
				return
			}
			if len(cuts) == 0 {
				t.Fatalf("no rung: %s; notes %v", e.why("length"), e.Notes)
			}
			argv := strings.Join(cuts[0].Argv, " ")
			want := c.cut
			if c.copy != "" {
				if len(cuts[0].Files) != 1 {
					t.Fatalf("files %+v, want one copy", cuts[0].Files)
				}
				f := cuts[0].Files[0]
				if filepath.Dir(f.Path) != filepath.Dir(f.Original) {
					t.Errorf("the copy %s is not beside %s", f.Path, f.Original)
				}
				want = strings.Replace(want, "COPY", filepath.Base(f.Path), 1)
			}
			if argv != want {
				t.Errorf("the first cut is\n  %s\nwant\n  %s", argv, want)
			}
		})
	}
}

// TestCopiesByteForByte runs the commands of the list that are changed by a copy: what
// the trainer reads in attempt 2 is the user's file with one value changed and every
// other byte as it was.
func TestCopiesByteForByte(t *testing.T) {
	t.Parallel()
	for _, c := range badInputs {
		if c.copy == "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t, c.files)
			// The trainer keeps what it was given to read and dies the first time.
			reader := runCLM + "import os, shutil, sys\nattempt = os.environ['SPARKRUN_ATTEMPT']\n" +
				"shutil.copy(sys.argv[-1], os.environ['KEEP'] + attempt)\nif attempt == '1':\n    raise MemoryError\n"
			put(t, dir, map[string]string{"run_clm.py": reader, "run.py": reader})
			if _, there := c.files["sub/run_clm.py"]; there {
				put(t, dir, map[string]string{"sub/run_clm.py": reader})
			}
			before := contents(t, dir)
			keep := filepath.Join(t.TempDir(), "read-")
			p := sparkrun(t, dir, []string{"KEEP=" + keep}, append([]string{"--runs-dir", t.TempDir(), "--"}, c.argv...)...).is(0)
			if got, err := os.ReadFile(keep + "2"); err != nil || string(got) != c.copy {
				t.Errorf("attempt 2 read (%v)\n%q\nwant\n%q", err, got, c.copy)
			}
			after := contents(t, dir)
			for name := range after {
				if strings.Contains(name, "__pycache__") || strings.HasPrefix(name, "/home") || strings.HasPrefix(name, "/state") {
					delete(after, name)
				}
			}
			for _, name := range []string{"", "/sub"} { // their times change as copies come and go
				delete(before, name)
				delete(after, name)
			}
			if diff := changed(before, after); len(diff) > 0 {
				t.Errorf("of the user's files: %v\nstderr %s", diff, p.err)
			}
		})
	}
}

// TestExplainReadOnlyFolder: where no copy can be made beside the original it goes into
// the attempt's folder, but not if the file refers to others by their place.
func TestExplainReadOnlyFolder(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{"run_clm.py": runCLM})
	for name, text := range map[string]string{
		"plain": `{"block_size": 4096, "output_dir": "/tmp/x"}`, "refers": `{"block_size": 4096, "train_file": "./rows.jsonl"}`,
		"includes": `{"block_size": 4096, "include": "rows.jsonl"}`,
	} {
		t.Run(name, func(t *testing.T) {
			ro := filepath.Join(dir, name)
			readOnly(t, ro, map[string]string{"c.json": text, "rows.jsonl": "{}\n"})
			e := explainJSON(t, dir, "--", "python3", "run_clm.py", name+"/c.json")
			cuts := e.allowed("length")
			if name == "plain" {
				if len(cuts) == 0 || len(cuts[0].Files) != 1 || strings.HasPrefix(cuts[0].Files[0].Path, ro) {
					t.Fatalf("want a copy somewhere else: %+v, %s", cuts, e.why("length"))
				}
				return
			}
			if why := e.why("length"); len(cuts) > 0 || !strings.Contains(why, "train_file") && !strings.Contains(why, "include") {
				t.Errorf("cuts %+v, refused with %q", cuts, why)
			}
		})
	}
}

// readOnly makes a folder in which nobody may write, not even root.
func readOnly(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		put(t, dir, files)
		if err := os.Chmod(dir, 0o555); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(dir, 0o755) })
		return
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("root writes everywhere, and no read-only mount can be made: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	put(t, dir, files)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}
