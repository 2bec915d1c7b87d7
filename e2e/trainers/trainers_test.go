// Package trainers runs sparkrun on real trainers: torch, transformers and TRL on the
// CPU, with a tiny model made on the spot. A length that does not fit the memory limit
// has to end in a finished run at a shorter one.
//
// The tests need a Python with these packages, named in SPARKRUN_TRAINERS_PYTHON;
// setup.sh makes one. SPARKRUN_BIN names a built binary, else one is built.
package trainers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is far more than a run takes (about 25 s): importing torch on a cold disk is slow.
const patience = 5 * time.Minute

// runFile is what the tests read of run.json (schema sparkrun.run/1).
type runFile struct {
	Schema     string `json:"schema"`
	Result     string `json:"result"`
	ExitStatus int    `json:"exit_status"`
	Attempts   []struct {
		N       int `json:"n"`
		Verdict *struct {
			Verdict string `json:"verdict"`
			Kind    string `json:"kind"`
		} `json:"verdict"`
	} `json:"attempts"`
}

// python returns the interpreter with the trainers, or skips.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("SPARKRUN_TRAINERS_PYTHON")
	if path == "" {
		t.Skip("needs SPARKRUN_TRAINERS_PYTHON, a Python with torch and TRL (e2e/trainers/setup.sh makes one)")
	}
	return path
}

// built is the folder of the binary under test, "" until one was built.
var built string

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sparkrun-trainers-")
	if err != nil {
		return "", err
	}
	built = dir
	bin := filepath.Join(dir, "sparkrun")
	if out, err := exec.Command("go", "build", "-o", bin, "sparkrun/cmd/sparkrun").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building sparkrun: %w\n%s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(status)
}

// sparkrun returns the binary under test.
func sparkrun(t *testing.T) string {
	t.Helper()
	if given := os.Getenv("SPARKRUN_BIN"); given != "" {
		return given
	}
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// here returns the path of a file of this folder. Looking at it makes it count for go
// test's cache, which does not see what a child reads.
func here(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// run starts a command in dir with the trainer's programs in PATH and no network, and
// returns its exit status and all it printed.
func run(t *testing.T, dir string, argv ...string) (int, string) {
	t.Helper()
	return runIn(t, dir, python(t), argv...)
}

// environment returns the interpreter of another trainer's environment, which setup.sh
// has made beside the first.
func environment(t *testing.T, name string) string {
	t.Helper()
	venvs := filepath.Dir(filepath.Dir(filepath.Dir(python(t))))
	path := filepath.Join(venvs, "venv-"+name, "bin", "python")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the environment of %s is missing, make it with e2e/trainers/setup.sh: %v", name, err)
	}
	return path
}

// runIn is run with the programs beside another interpreter in PATH.
func runIn(t *testing.T, dir, py string, argv ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	// A kill would leave the holder with the training behind.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(os.Environ(),
		"PATH="+filepath.Dir(py)+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"PYTHONPATH="+filepath.Dir(here(t, "make_tiny.py")),
		"GLOO_SOCKET_IFNAME=lo",
		"AXOLOTL_DO_NOT_TRACK=1",
		"HOME="+dir,
		"XDG_STATE_HOME="+filepath.Join(dir, "state"),
		"XDG_CONFIG_HOME="+filepath.Join(dir, "config"),
		"HF_HOME="+filepath.Join(dir, "hf"),
		"HF_HUB_OFFLINE=1",
		"TOKENIZERS_PARALLELISM=false",
		"OMP_NUM_THREADS=1", // a thread costs memory, and spins while it waits for the other
		"SPARKRUN_RUNS_DIR="+filepath.Join(dir, "runs"),
		// The test machine's cache belongs to everybody on it.
		"SPARKRUN_DROP_CACHES=never",
	)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, &out)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// finishedShorter demands the story of the main job from the run directory: the first
// attempt out of memory, the last one through, at another length than asked for.
func finishedShorter(t *testing.T, dir string, status int, output string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("output of the run:\n%s", output)
		}
	}()
	if status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "runs", "latest", "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r runFile
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatalf("run.json: %v", err)
	}
	if r.Schema != "sparkrun.run/1" || r.Result != "succeeded-changed" || r.ExitStatus != 0 {
		t.Errorf("run.json: schema %q, result %q, exit_status %d", r.Schema, r.Result, r.ExitStatus)
	}
	if len(r.Attempts) < 2 {
		t.Fatalf("%d attempts in run.json, want 2 at least:\n%s", len(r.Attempts), raw)
	}
	for _, a := range r.Attempts[:len(r.Attempts)-1] {
		if a.Verdict == nil || a.Verdict.Verdict != "oom" {
			t.Errorf("verdict of attempt %d: %+v, want oom", a.N, a.Verdict)
		}
	}
	last := filepath.Join(dir, "runs", "latest", "attempts", fmt.Sprint(len(r.Attempts)), "output.log")
	if log, err := os.ReadFile(last); err != nil || !bytes.Contains(log, []byte("'train_runtime'")) {
		t.Errorf("the last attempt did not print the Trainer's closing line: %v\n%s", err, log)
	}
}

// trainedLength returns the length of the rows that the newest checkpoint was trained
// on, from what TRL counted: tokens seen / (steps x rows a step).
func trainedLength(t *testing.T, outputs string, rows int) int {
	t.Helper()
	states, err := filepath.Glob(filepath.Join(outputs, "checkpoint-*", "trainer_state.json"))
	if err != nil || len(states) == 0 {
		t.Fatalf("no complete checkpoint matches %s: %v", outputs, err)
	}
	raw, err := os.ReadFile(states[len(states)-1])
	if err != nil {
		t.Fatal(err)
	}
	var state struct {
		LogHistory []struct {
			NumTokens float64 `json:"num_tokens"`
			Step      int     `json:"step"`
		} `json:"log_history"`
	}
	if err := json.Unmarshal(raw, &state); err != nil || len(state.LogHistory) == 0 {
		t.Fatalf("%s: %v\n%s", states[len(states)-1], err, raw)
	}
	first := state.LogHistory[0]
	return int(first.NumTokens) / (first.Step * rows)
}

// The script that people write: flags through TrlParser, the error torch's own.
func TestScriptEndsAtAShorterLength(t *testing.T) {
	py, bin, dir := python(t), sparkrun(t), t.TempDir()
	here(t, "make_tiny.py")
	status, out := run(t, dir, bin, "--", py, here(t, "tiny_sft.py"),
		"--max_length", "4096", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1",
		"--max_steps", "3", "--logging_steps", "1", "--save_steps", "2", "--output_dir", "out",
		"--report_to", "none", "--use_cpu", "True", "--bf16", "False",
		"--memory_limit", "1300")
	finishedShorter(t, dir, status, out)
	if !strings.Contains(out, "DefaultCPUAllocator: can't allocate memory") {
		t.Errorf("the first attempt did not die of torch's allocation error")
	}
	if got := trainedLength(t, filepath.Join(dir, "out*"), 2); got >= 4096 || got < 1024 {
		t.Errorf("the last checkpoint was trained on rows of %d tokens, want fewer than 4096", got)
	}
	batchIs(t, savedArguments(t, py, filepath.Join(dir, "out*")), 2)
}

// `trl sft` itself: the knobs are in a YAML file, the training is a grandchild.
func TestTRLCommandEndsAtAShorterLength(t *testing.T) {
	py, bin, dir := python(t), sparkrun(t), t.TempDir()
	if status, out := run(t, dir, py, here(t, "make_tiny.py"), dir); status != 0 {
		t.Fatalf("make_tiny.py: status %d\n%s", status, out)
	}
	config := filepath.Join(dir, "sft.yaml")
	original := []byte(`# A tiny model on the CPU.
model_name_or_path: model
dataset_name: data
attn_implementation: eager

max_length: 4096  # more than the limit allows
per_device_train_batch_size: 2
gradient_accumulation_steps: 1
max_steps: 3
logging_steps: 1
save_steps: 2
output_dir: out
report_to: none
use_cpu: true
bf16: false
`)
	if err := os.WriteFile(config, original, 0o644); err != nil {
		t.Fatal(err)
	}
	// trl has no limit of its own, so all of sparkrun lives under one (RLIMIT_DATA). torch
	// with its CUDA libraries has 2.1 GB of writable memory mapped before it trains.
	status, out := run(t, dir, "prlimit", "--data=3300000000", bin, "--", "trl", "sft", "--config", "sft.yaml")
	finishedShorter(t, dir, status, out)
	if got := trainedLength(t, filepath.Join(dir, "out*"), 2); got >= 4096 || got < 1024 {
		t.Errorf("the last checkpoint was trained on rows of %d tokens, want fewer than 4096", got)
	}
	batchIs(t, savedArguments(t, py, filepath.Join(dir, "out*")), 2)
	now, err := os.ReadFile(config)
	if err != nil || !bytes.Equal(now, original) {
		t.Errorf("the user's own sft.yaml was changed: %v\n%s", err, now)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".sparkrun-*")); len(left) > 0 {
		t.Errorf("rewritten configs were left beside the original: %v", left)
	}
}
