package trainers

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// explained is what the tests read of `sparkrun explain --json`.
type explained struct {
	Trainer   *string  `json:"trainer"`
	Launchers []string `json:"launchers"`
	Method    string   `json:"method"`
	Knobs     map[string]struct {
		Value  any    `json:"value"`
		Source string `json:"source"`
	} `json:"knobs"`
	EffectiveBatch *int64 `json:"effective_batch"`
}

// explain asks the binary what it makes of a command.
func explain(t *testing.T, dir, py string, argv ...string) explained {
	t.Helper()
	status, out := runIn(t, dir, py, append([]string{sparkrun(t), "explain", "--json", "--"}, argv...)...)
	if status != 0 {
		t.Fatalf("explain: status %d\n%s", status, out)
	}
	var e explained
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		t.Fatalf("explain: %v\n%s", err, out)
	}
	return e
}

// is demands what explain says of a command.
func (e explained) is(t *testing.T, trainer string, seqLen, micro, batch float64) {
	t.Helper()
	if e.Trainer == nil || *e.Trainer != trainer {
		t.Errorf("explain: trainer %v, want %s", e.Trainer, trainer)
	}
	if e.Knobs["seq_len"].Value != seqLen || e.Knobs["micro_batch"].Value != micro {
		t.Errorf("explain: seq_len %v, micro_batch %v, want %v and %v", e.Knobs["seq_len"], e.Knobs["micro_batch"], seqLen, micro)
	}
	if e.EffectiveBatch == nil || float64(*e.EffectiveBatch) != batch {
		t.Errorf("explain: effective batch %v, want %v", e.EffectiveBatch, batch)
	}
}

// tiny makes model and data in a fresh folder.
func tiny(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if status, out := run(t, dir, python(t), here(t, "make_tiny.py"), dir); status != 0 {
		t.Fatalf("make_tiny.py: status %d\n%s", status, out)
	}
	return dir
}

// savedArguments returns the arguments that the Trainer saved beside a checkpoint of
// the newest output folder that matches, read back by the trainer's own library.
func savedArguments(t *testing.T, py, outputs string) map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(outputs, "checkpoint-*", "training_args.bin"))
	if err != nil || len(files) == 0 {
		t.Fatalf("nothing saved its arguments in %s: %v", outputs, err)
	}
	newest := files[0]
	for _, f := range files {
		if modified(t, f) > modified(t, newest) {
			newest = f
		}
	}
	cmd := exec.CommandContext(t.Context(), py, "-c", `
import json, sys, torch
args = torch.load(sys.argv[1], weights_only=False)
print(json.dumps({k: v for k, v in vars(args).items() if isinstance(v, (int, float, str, bool, type(None)))}))
`, newest)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("reading %s: %v\n%s", newest, err, &stderr)
	}
	var args map[string]any
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], &args); err != nil {
		t.Fatalf("%s: %v\n%s", newest, err, raw)
	}
	return args
}

func modified(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime().UnixNano()
}

// write puts a file of the user's into a folder.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// untouched demands that a file of the user's is as it was, and that nothing of ours
// lies beside it.
func untouched(t *testing.T, path, text string) {
	t.Helper()
	now, err := os.ReadFile(path)
	if err != nil || string(now) != text {
		t.Errorf("the user's own %s was changed: %v\n%s", path, err, now)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".sparkrun-*")); len(left) > 0 {
		t.Errorf("files of ours were left beside the original: %v", left)
	}
}

// lengthBelow demands a length that is shorter than asked for and not below the floor.
func lengthBelow(t *testing.T, what string, got any, asked float64) {
	t.Helper()
	n, ok := got.(float64)
	if !ok || n >= asked || n < 1024 {
		t.Errorf("%s: trained with length %v, want below %v and 1024 at least", what, got, asked)
	}
}

// LLaMA-Factory: settings in a YAML file, overrides as key=value behind it.
func TestLLaMAFactory(t *testing.T) {
	py, dir := environment(t, "llama-factory"), tiny(t)
	var rows []map[string]string
	data, err := os.ReadFile(filepath.Join(dir, "data", "train.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		var row struct{ Text string }
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, map[string]string{"instruction": row.Text[:2000], "input": "", "output": row.Text})
	}
	raw, err := json.Marshal(rows)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "rows.json", string(raw))
	write(t, dir, "dataset_info.json", `{"tiny": {"file_name": "rows.json", "columns": {"prompt": "instruction", "response": "output"}}}`)
	const text = `# A tiny model on the CPU.
model_name_or_path: model
stage: sft
do_train: true
finetuning_type: full
dataset_dir: .
dataset: tiny
template: empty
cutoff_len: 4096  # more than the limit allows
output_dir: out
per_device_train_batch_size: 2
gradient_accumulation_steps: 1
max_steps: 2
logging_steps: 1
save_steps: 2
report_to: none
use_cpu: true
bf16: false
flash_attn: disabled
include_num_input_tokens_seen: all
`
	config := write(t, dir, "sft.yaml", text)
	cmd := []string{"llamafactory-cli", "train", "sft.yaml"}
	explain(t, dir, py, cmd...).is(t, "llama-factory", 4096, 2, 2)
	status, out := runIn(t, dir, py, append([]string{"prlimit", "--data=" + dataLimit, sparkrun(t), "--"}, cmd...)...)
	finishedShorter(t, dir, status, out)
	// The length is not among the Trainer's own arguments, but the tokens it has seen
	// are in its state.
	lengthBelow(t, "LLaMA-Factory", tokensPerRow(t, filepath.Join(dir, "out*"), 2), 4096)
	batchIs(t, savedArguments(t, py, filepath.Join(dir, "out*")), 2)
	untouched(t, config, text)
}

// Axolotl: its own options behind the config, which drops rows over the length unless it
// is told to cut them.
func TestAxolotl(t *testing.T) {
	py, dir := environment(t, "axolotl"), tiny(t)
	const text = `base_model: model
datasets:
  - path: data/train.jsonl
    ds_type: json
    type: completion
    field: text
sequence_len: 4096  # more than the limit allows
micro_batch_size: 2
gradient_accumulation_steps: 1
max_steps: 2
learning_rate: 1e-4
optimizer: adamw_torch
lr_scheduler: cosine
output_dir: out
logging_steps: 1
save_steps: 2
bf16: false
fp16: false
tf32: false
flash_attention: false
eager_attention: true
special_tokens:
  pad_token: <pad>
`
	config := write(t, dir, "sft.yml", text)
	cmd := []string{"axolotl", "train", "sft.yml", "--launcher", "python"}
	explain(t, dir, py, cmd...).is(t, "axolotl", 4096, 2, 2)
	status, out := runIn(t, dir, py, append([]string{"prlimit", "--data=" + dataLimit, sparkrun(t), "--"}, cmd...)...)
	finishedShorter(t, dir, status, out)
	// Its length is no argument of the Trainer's, but it counts the tokens of its rows.
	lengthBelow(t, "axolotl", tokensPerRow(t, filepath.Join(dir, "out*"), 2), 4096)
	// Every row is longer than that: had they been dropped and not cut, none would have
	// been left to train on.
	batchIs(t, savedArguments(t, py, filepath.Join(dir, "out*")), 2)
	untouched(t, config, text)
}

// ms-swift: flags only, a folder of its own for each start, rows over the length deleted
// unless it is told to cut them.
func TestSwift(t *testing.T) {
	py, dir := environment(t, "ms-swift"), tiny(t)
	data, err := os.ReadFile(filepath.Join(dir, "data", "train.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		var row struct{ Text string }
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(&b).Encode(map[string]any{"messages": []map[string]string{
			// Short enough for the length asked for, too long for half of it: rows that
			// are deleted and not cut would leave nothing to train on.
			{"role": "user", "content": row.Text[:100]}, {"role": "assistant", "content": strings.Join(strings.Fields(row.Text)[:3000], " ")},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "rows.jsonl", b.String())
	cmd := []string{
		"swift", "sft", "--model", "model", "--model_type", "llama", "--template", "dummy", "--dataset", "rows.jsonl",
		"--tuner_type", "full", "--max_length=4096", "--per_device_train_batch_size", "2",
		"--gradient_accumulation_steps", "1", "--max_steps", "2", "--logging_steps", "1", "--save_steps", "2",
		"--output_dir", "out", "--report_to", "none", "--use_cpu", "true", "--torch_dtype", "float32", "--bf16", "false", "--attn_impl", "eager",
	}
	explain(t, dir, py, cmd...).is(t, "ms-swift", 4096, 2, 2)
	status, out := runIn(t, dir, py, append([]string{"prlimit", "--data=2750000000", sparkrun(t), "--"}, cmd...)...)
	finishedShorter(t, dir, status, out)
	files, err := filepath.Glob(filepath.Join(dir, "out*", "v*", "checkpoint-*", "args.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no saved args.json: %v", err)
	}
	raw, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		t.Fatal(err)
	}
	var saved map[string]any
	if err := json.Unmarshal(raw, &saved); err != nil {
		t.Fatalf("%s: %v", files[0], err)
	}
	lengthBelow(t, "ms-swift", saved["max_length"], 4096)
	if saved["truncation_strategy"] != "right" || saved["per_device_train_batch_size"] != 2.0 {
		t.Errorf("truncation_strategy %v, micro-batch %v: want right and 2", saved["truncation_strategy"], saved["per_device_train_batch_size"])
	}
}

// batchIs demands the rows of one optimizer step on one device, however they are split.
func batchIs(t *testing.T, args map[string]any, rows float64) {
	t.Helper()
	micro, _ := args["per_device_train_batch_size"].(float64)
	acc, _ := args["gradient_accumulation_steps"].(float64)
	if micro*acc != rows {
		t.Errorf("micro-batch %v x accumulation %v, want %v in all", args["per_device_train_batch_size"], args["gradient_accumulation_steps"], rows)
	}
}

// tokensPerRow is the length of the rows of the newest checkpoint, from what the trainer
// counted.
func tokensPerRow(t *testing.T, outputs string, rows int) any {
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
			Tokens float64 `json:"tokens/total"`
			Step   float64 `json:"step"`
		} `json:"log_history"`
		Seen  float64 `json:"num_input_tokens_seen"`
		Steps float64 `json:"global_step"`
	}
	if err := json.Unmarshal(raw, &state); err != nil || len(state.LogHistory) == 0 || state.LogHistory[0].Step == 0 {
		t.Fatalf("%s: %v\n%s", states[len(states)-1], err, raw)
	}
	if state.Seen > 0 && state.Steps > 0 {
		return state.Seen / (state.Steps * float64(rows))
	}
	first := state.LogHistory[0]
	return first.Tokens / (first.Step * float64(rows))
}

// accelerate and torchrun in front of the script, with two processes each.
func TestLaunchers(t *testing.T) {
	for name, launcher := range map[string][]string{
		"accelerate": {"accelerate", "launch", "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"},
		"torchrun":   {"torchrun", "--standalone", "--nproc_per_node=2"},
	} {
		t.Run(name, func(t *testing.T) {
			py, dir := python(t), t.TempDir()
			cmd := append(append([]string{}, launcher...), here(t, "tiny_sft.py"),
				"--max_length", "4096", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1",
				"--max_steps", "2", "--logging_steps", "1", "--save_steps", "2", "--output_dir", "out",
				"--report_to", "none", "--use_cpu", "True", "--bf16", "False", "--memory_limit", "1300")
			e := explain(t, dir, py, cmd...)
			e.is(t, "trl", 4096, 2, 4)
			if len(e.Launchers) == 0 || e.Launchers[0] != name {
				t.Errorf("explain: launchers %v, want %s first", e.Launchers, name)
			}
			status, out := run(t, dir, append([]string{sparkrun(t), "--"}, cmd...)...)
			finishedShorter(t, dir, status, out)
			args := savedArguments(t, py, filepath.Join(dir, "out*"))
			lengthBelow(t, name, args["max_length"], 4096)
			batchIs(t, args, 2)
		})
	}
}

// LightningCLI: a micro-batch in the data's settings, accumulation in the trainer's. The
// rows have no length of the ladder's, so the batch is what is left, and it stays the
// same as a whole.
func TestLightningCLI(t *testing.T) {
	py, dir := environment(t, "lightning"), t.TempDir()
	const text = `# More rows at once than the limit allows.
data:
  batch_size: 8
  seq_len: 1024
trainer:
  accelerator: cpu
  max_steps: 2
  accumulate_grad_batches: 1
  logger: false
  default_root_dir: out
`
	config := write(t, dir, "fit.yaml", text)
	cmd := []string{"env", "LIMIT_MIB=90", py, here(t, "tiny_lightning.py"), "fit", "--config", "fit.yaml"}
	e := explain(t, dir, py, cmd...)
	if e.Trainer == nil || *e.Trainer != "lightning-cli" || e.EffectiveBatch == nil || *e.EffectiveBatch != 8 {
		t.Errorf("explain: trainer %v, effective batch %v, want lightning-cli and 8", e.Trainer, e.EffectiveBatch)
	}
	status, out := runIn(t, dir, py, append([]string{sparkrun(t), "--"}, cmd...)...)
	if status != 0 {
		t.Fatalf("status %d\n%s", status, out)
	}
	// LightningCLI saves the settings in force beside its checkpoints.
	saved, err := filepath.Glob(filepath.Join(dir, "*", "config.yaml"))
	if len(saved) == 0 {
		saved, err = filepath.Glob(filepath.Join(dir, "config.yaml"))
	}
	if err != nil || len(saved) == 0 {
		t.Fatalf("no saved config.yaml in %s: %v\n%s", dir, err, out)
	}
	raw, err := os.ReadFile(saved[len(saved)-1])
	if err != nil {
		t.Fatal(err)
	}
	micro, acc := setting(string(raw), "batch_size"), setting(string(raw), "accumulate_grad_batches")
	if micro == "8" || map[string]string{"4": "2", "2": "4", "1": "8"}[micro] != acc {
		t.Errorf("batch_size %s with accumulate_grad_batches %s: want a product of 8 and a smaller micro-batch\n%s", micro, acc, raw)
	}
	untouched(t, config, text)
}

// setting returns the value of a key of a YAML file, wherever it stands.
func setting(text, key string) string {
	for _, line := range strings.Split(text, "\n") {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// A job that dies in the middle goes on from its newest checkpoint: half-written ones
// are passed over, and what is done is not done again.
func TestResumesAfterDyingInTheMiddle(t *testing.T) {
	py, dir := python(t), t.TempDir()
	cmd := []string{
		py, here(t, "tiny_trainer.py"), "--max_length", "4096", "--short_rows", "8", "--per_device_train_batch_size", "2",
		"--max_steps", "6", "--save_steps", "2", "--logging_steps", "1", "--output_dir", "out",
		"--report_to", "none", "--use_cpu", "True", "--memory_limit", "600", "--torn", "5",
	}
	torn := filepath.Join(dir, "out", "checkpoint-5")
	status, out := run(t, dir, append([]string{sparkrun(t), "--"}, cmd...)...)
	if status != 0 {
		t.Fatalf("status %d\n%s", status, out)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "out", "script.json"))
	if err != nil {
		t.Fatalf("the last attempt has not written into the folder that was asked for: %v\n%s", err, out)
	}
	var saved struct {
		MaxLength float64 `json:"max_length"`
		Resumed   string  `json:"resumed"`
	}
	if err := json.Unmarshal(raw, &saved); err != nil {
		t.Fatal(err)
	}
	lengthBelow(t, "the script", saved.MaxLength, 4096)
	if !strings.Contains(saved.Resumed, "checkpoint-4") {
		t.Errorf("the last attempt went on from %q, want checkpoint-4", saved.Resumed)
	}
	if !strings.Contains(out, "checkpoint-5") {
		t.Errorf("the checkpoint that is not complete was not named:\n%s", out)
	}
	args := savedArguments(t, py, filepath.Join(dir, "out"))
	if n := args["max_steps"]; n != 6.0 {
		t.Errorf("max_steps %v, want 6", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "out", "checkpoint-6", "trainer_state.json")); err != nil {
		t.Errorf("the run did not come to its last step: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(torn, "model.safetensors")); err != nil || string(got) != "torn" {
		t.Errorf("the half-written checkpoint of the user was touched: %v", err)
	}
}

// The script with constants in it walks down the whole ladder without being edited.
func TestConstantsWalkDownTheWholeLadder(t *testing.T) {
	py, dir := environment(t, "bitsandbytes"), tiny(t)
	script, err := os.ReadFile(here(t, "constants_sft.py"))
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, dir, "constants_sft.py", string(script))
	e := explain(t, dir, py, "env", "LIMIT_MIB=20", "python", "constants_sft.py")
	if e.Method != "qlora" || e.Knobs["seq_len"].Value != 4096.0 || e.Knobs["seq_len"].Source != "script" ||
		e.Knobs["micro_batch"].Value != 8.0 || e.EffectiveBatch == nil || *e.EffectiveBatch != 8 {
		t.Errorf("explain: %+v", e)
	}
	status, out := runIn(t, dir, py, sparkrun(t), "--max-attempts", "9", "--", "env", "LIMIT_MIB=20", "python", "constants_sft.py")
	if status != 75 {
		t.Errorf("status %d, want 75: every attempt out of memory\n%s", status, out)
	}
	type inForce struct {
		MaxLength    int    `json:"max_length"`
		Micro        int    `json:"micro_batch"`
		Accumulation int    `json:"accumulation"`
		Quantised    bool   `json:"quantised"`
		DType        string `json:"dtype"`
	}
	var got []inForce
	raw, err := os.ReadFile(filepath.Join(dir, "settings.jsonl"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		var s inForce
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		got = append(got, s)
	}
	want := []inForce{
		{4096, 8, 1, true, ""},
		{2048, 8, 1, true, ""},
		{1024, 8, 1, true, ""},
		{1024, 4, 2, true, ""},
		{1024, 2, 4, true, ""},
		{1024, 1, 8, true, ""},
		{1024, 1, 8, false, "torch.bfloat16"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d starts, want %d:\n%s\n%s", len(got), len(want), raw, out)
	}
	for i := range want {
		if want[i].DType == "" {
			got[i].DType = ""
		}
		if got[i] != want[i] {
			t.Errorf("start %d ran with %+v, want %+v", i+1, got[i], want[i])
		}
	}
	untouched(t, path, string(script))
}

// The same script comes through at the first setting that fits.
func TestConstantsEndInAFinishedRun(t *testing.T) {
	py, dir := environment(t, "bitsandbytes"), tiny(t)
	script, err := os.ReadFile(here(t, "constants_sft.py"))
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, dir, "constants_sft.py", string(script))
	status, out := runIn(t, dir, py, sparkrun(t), "--", "env", "LIMIT_MIB=1500", "python", "constants_sft.py")
	finishedShorter(t, dir, status, out)
	args := savedArguments(t, py, filepath.Join(dir, "out*"))
	lengthBelow(t, "the script", args["max_length"], 4096)
	batchIs(t, args, 8)
	untouched(t, path, string(script))
}

// dataLimit is the writable memory (RLIMIT_DATA) that all of sparkrun and the trainer
// lives under where the trainer has no limit of its own: torch with its CUDA libraries
// has 2.1 GB mapped before it trains.
const dataLimit = "3300000000"
