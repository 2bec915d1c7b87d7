package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sparkrun/internal/job"
)

// template is a way to give length, micro-batch and accumulation to a trainer. In the
// command and the files, L, M, A and G stand for their values; in flags the words that
// say them, each of which may be left out where the file says it too.
type template struct {
	profile, argv string
	files         map[string]string
	flags         map[string]string
	global        bool
}

var templates = []template{
	{
		profile: "trl", argv: "trl sft --config c.yaml", files: map[string]string{"c.yaml": "# mine\nmax_length: @L\nper_device_train_batch_size: @M  # rows\ngradient_accumulation_steps: @A\n"},
		flags: map[string]string{"L": "--max_length @L", "M": "--per-device-train-batch-size=@M", "A": "--gradient_accumulation_steps @A"},
	},
	{
		profile: "llama-factory", argv: "llamafactory-cli train c.yaml", files: map[string]string{"c.yaml": "cutoff_len: @L\r\nper_device_train_batch_size: @M\r\ngradient_accumulation_steps: @A\r\n"},
		flags: map[string]string{"L": "cutoff_len=@L", "M": "per_device_train_batch_size=@M", "A": "gradient_accumulation_steps=@A"},
	},
	{
		profile: "axolotl", argv: "axolotl train c.yml", files: map[string]string{"c.yml": "base_model: m\nsequence_len: @L\nmicro_batch_size: @M\ngradient_accumulation_steps: @A\n"},
		flags: map[string]string{"L": "--sequence-len @L", "M": "--micro-batch-size=@M", "A": "--gradient-accumulation-steps @A"},
	},
	{
		profile: "torchtune", argv: "tune run lora_finetune_single_device --config c.yaml", files: map[string]string{"c.yaml": "tokenizer:\n  max_seq_len: @L\nbatch_size: @M\ngradient_accumulation_steps: @A\n"},
		flags: map[string]string{"L": "tokenizer.max_seq_len=@L", "M": "batch_size=@M", "A": "gradient_accumulation_steps=@A"},
	},
	{profile: "hf-trainer", argv: "python t.py c.json", files: map[string]string{"t.py": hfScript, "c.json": "{\n\t\"max_seq_length\" : @L,\n\t\"per_device_train_batch_size\":@M, \"gradient_accumulation_steps\": @A }"}},
	{
		profile: "kohya", argv: "accelerate launch --num_processes 1 flux_train_network.py --dataset_config d.toml", files: map[string]string{"d.toml": "[general]\nshuffle_caption = true\n\n[[datasets]]\nbatch_size = @M # rows\nresolution = 512\n"},
		flags: map[string]string{"A": "--gradient_accumulation_steps @A"},
	},
	{profile: "ai-toolkit", argv: "python run.py config/x.yaml", files: map[string]string{"config/x.yaml": "job: extension\nconfig:\n  name: n\n  process:\n    - type: sd_trainer\n      train:\n        batch_size: @M\n        gradient_accumulation_steps: @A\n"}},
	{
		profile: "argparse", argv: "python p.py", files: map[string]string{"p.py": plainScript},
		flags: map[string]string{"M": "-b @M", "A": "--grad_accum=@A"},
	},
	{
		profile: "hf-trainer", argv: "docker run --rm -v $DIR:/w -w /w img accelerate launch t.py", files: map[string]string{"t.py": hfScript},
		flags: map[string]string{"L": "--max_seq_length=@L", "M": "--per_device_train_batch_size @M", "A": "--gradient_acc @A"},
	},
	{profile: "hf-trainer", argv: "python s.py", files: map[string]string{"s.py": "from trl import SFTConfig\nSFTConfig(\n    max_length=@L,\n    per_device_train_batch_size = @M,\n    gradient_accumulation_steps=@A)\n"}},
	{
		profile: "megatron-lm", argv: "torchrun --nproc_per_node 1 pretrain_gpt.py", global: true,
		flags: map[string]string{"L": "--seq-length @L", "M": "--micro-batch-size @M", "G": "--global-batch-size @G"},
	},
	{
		profile: "litgpt", argv: "litgpt finetune_lora m --config c.yaml", global: true, files: map[string]string{"c.yaml": "train:\n  max_seq_length: @L\n  micro_batch_size: @M\n  global_batch_size: @G\n"},
		flags: map[string]string{"L": "--train.max_seq_length @L", "M": "--train.micro_batch_size=@M"},
	},
}

// Whatever the trainer and wherever the values stand: after a change of length and
// batch, the new command, read again, has exactly these changes, and the effective
// batch is what it was.
func TestEffectiveBatchStays(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		tm := rapid.SampledFrom(templates).Draw(t, "template")
		micro := rapid.SampledFrom([]int{2, 3, 4, 6, 8, 12, 16}).Draw(t, "micro")
		values := map[string]string{
			"L": strconv.Itoa(rapid.SampledFrom([]int{512, 1024, 2048, 4096, 8192}).Draw(t, "length")),
			"M": strconv.Itoa(micro),
			"A": strconv.Itoa(rapid.IntRange(1, 32).Draw(t, "accumulation")),
			"G": strconv.Itoa(micro * rapid.IntRange(1, 8).Draw(t, "global")),
		}
		inFiles := map[string]string{}
		fill := func(text string, values map[string]string) string {
			for k, v := range values {
				text = strings.ReplaceAll(text, "@"+k, v)
			}
			return text
		}
		dir, err := os.MkdirTemp(root, "job")
		if err != nil {
			t.Fatal(err)
		}
		argv := strings.ReplaceAll(tm.argv, "$DIR", dir)
		for _, k := range []string{"M", "L", "G", "A"} {
			flag := tm.flags[k]
			if flag == "" {
				continue
			}
			inFile := false
			for _, text := range tm.files {
				inFile = inFile || strings.Contains(text, "@"+k)
			}
			if !inFile || rapid.Bool().Draw(t, "flag "+k) {
				argv += " " + fill(flag, values)
				inFiles[k] = "77" // where a flag says it too, the file says something else
			}
		}
		for k, v := range values {
			if inFiles[k] == "" {
				inFiles[k] = v
			}
		}
		for name, text := range tm.files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(fill(text, inFiles)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		j, err := s.Understand(strings.Fields(argv), dir, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if j.Profile != tm.profile {
			t.Fatalf("%s: profile %q, want %q (%q)", argv, j.Profile, tm.profile, j.Notes)
		}
		var changes []Change
		if set, ok := j.Knobs[job.SeqLen]; ok && rapid.Bool().Draw(t, "cut") {
			n, _ := parseInt(set.Value)
			changes = append(changes, to(job.SeqLen, set.Value, strconv.FormatInt(n/2, 10)))
		}
		old, _ := parseInt(j.Knobs[job.MicroBatch].Value)
		if old != int64(micro) {
			t.Fatalf("%s: micro-batch %v, want %d", argv, j.Knobs[job.MicroBatch], micro)
		}
		part := old / smallestFactor(old)
		if rapid.Bool().Draw(t, "batch") {
			changes = append(changes, to(job.MicroBatch, strconv.FormatInt(old, 10), strconv.FormatInt(part, 10)))
			if !tm.global {
				acc, err := parseInt(j.Knobs[job.Accumulation].Value)
				if err != nil {
					t.Fatalf("%s: accumulation: %v (%v)", argv, err, j.Knobs)
				}
				changes = append(changes, to(job.Accumulation, strconv.FormatInt(acc, 10), strconv.FormatInt(acc*old/part, 10)))
			}
		}
		got, err := s.Rewrite(j, Request{Changes: changes, RunID: "r", Attempt: 2, AttemptDir: filepath.Join(dir, "a")})
		if err != nil {
			t.Fatalf("%s: %v", argv, err)
		}
		after := settings(t, s, j, got)
		want := map[job.Knob]string{}
		for k, set := range j.Knobs {
			want[k] = set.Value
		}
		for _, ch := range append(changes, s.Companions(j, changes)...) {
			if _, known := want[ch.Knob]; known {
				want[ch.Knob] = ch.To
			}
		}
		if tm.profile == "axolotl" && want[job.EvalBatch] != after[job.EvalBatch] {
			want[job.EvalBatch] = want[job.MicroBatch] // it follows
		}
		for k, v := range want {
			if after[k] != v {
				t.Fatalf("%s\n%q\n%s is %q, want %q", argv, got.Argv, k, after[k], v)
			}
		}
		batch := func(m map[job.Knob]string) int64 {
			m1, _ := parseInt(m[job.MicroBatch])
			a1, _ := parseInt(m[job.Accumulation])
			return m1 * a1
		}
		before := map[job.Knob]string{}
		for k, set := range j.Knobs {
			before[k] = set.Value
		}
		if tm.global && after[job.GlobalBatch] != before[job.GlobalBatch] || !tm.global && batch(after) != batch(before) {
			t.Fatalf("%s\n%q\nthe effective batch changed: %v -> %v", argv, got.Argv, before, after)
		}
	})
}

// settings reads the command of an attempt, with what the shim would do to it.
func settings(t *rapid.T, s *Set, j job.Job, r Rewrite) map[job.Knob]string {
	over := files{}
	for _, f := range r.Files {
		over[f.Path] = f.Content
	}
	again, err := s.understand(r.Argv, j.Dir, nil, nil, over)
	if err != nil {
		t.Fatal(err)
	}
	m := map[job.Knob]string{}
	for k, set := range again.Knobs {
		m[k] = set.Value
	}
	if r.Shim != nil {
		for _, c := range r.Shim.Clamps {
			if again.Knobs[c.Knob].Value != c.From {
				t.Fatal(fmt.Sprintf("clamp %+v of %+v", c, again.Knobs[c.Knob]))
			}
			m[c.Knob] = c.To
		}
	}
	return m
}

func smallestFactor(n int64) int64 {
	for p := int64(2); p*p <= n; p++ {
		if n%p == 0 {
			return p
		}
	}
	return n
}
