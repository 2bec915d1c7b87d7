package trainer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
	"sparkrun/internal/newprog"
)

// folder makes a working folder with the files of a case in it.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := newprog.Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func profiles(t *testing.T) *Set {
	t.Helper()
	s, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	hfScript = `
from dataclasses import dataclass, field
from typing import Optional
from transformers import HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Args:
    model: Optional[str] = None
    max_seq_length: Optional[int] = field(
        default=2048, metadata={"help": "longest row"}
    )
    per_device_eval_batch_size: int = 4  # own default
    stride: int = 4 * 16

parser = HfArgumentParser((Args, TrainingArguments))
args = parser.parse_json_file(sys.argv[1]) if sys.argv[1:] else parser.parse_args_into_dataclasses()
trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
`
	plainScript = `
import argparse
p = argparse.ArgumentParser()
p.add_argument("--seq-length", type=int, default=2048, choices=[512, 1024, 2048, 4096])
p.add_argument("-b", "--batch_size", type=int, default=8)
p.add_argument('--grad_accum', type=int,
               default=1)
p.add_argument("--packing", action="store_true")
`
	trlScript = `from trl import ModelConfig, SFTConfig, TrlParser
parser = TrlParser((SFTConfig, ModelConfig))
`
)

// parts writes the changes of a rewrite as "layer|where|before|after".
func parts(rw Rewrite) []string {
	var out []string
	for _, c := range rw.Changes {
		out = append(out, strings.Join([]string{c.Layer, c.Where, c.Before, c.After}, "|"))
	}
	return out
}

func TestRewriteArgv(t *testing.T) {
	t.Parallel()
	toLength := func(from, to string) []Change { return []Change{{Knob: job.SeqLen, From: from, To: to}} }
	toBatch := func(m0, m1, a0, a1 string) []Change {
		return []Change{{Knob: job.MicroBatch, From: m0, To: m1}, {Knob: job.Accumulation, From: a0, To: a1}}
	}
	unquantised := []Change{{Knob: job.Method, From: "qlora", To: "lora"}, {Knob: job.LoadIn4Bit, From: "true", To: "False"}}
	cases := []struct {
		name    string
		files   map[string]string
		argv    string
		user    map[string]string
		changes []Change
		profile string
		want    string
		diff    []string
		// parts are the Changes, each "layer|where|before|after".
		parts []string
	}{
		{
			name: "underscore and space", argv: "python train.py --max_length 4096 --seed 1", changes: toLength("4096", "2048"),
			profile: "hf-trainer", want: "python train.py --max_length 2048 --seed 1", diff: []string{"--max_length 4096 -> 2048"},
			parts: []string{"argv|--max_length|4096|2048"},
		},
		{
			name: "hyphen and equals", argv: "python3.12 -u -X dev train.py --max-seq-length=4_096", changes: toLength("4096", "2048"),
			profile: "hf-trainer", want: "python3.12 -u -X dev train.py --max-seq-length=2048", diff: []string{"--max-seq-length=4_096 -> 2048"},
			parts: []string{"argv|--max-seq-length|4_096|2048"},
		},
		{
			name: "the last one wins and is the one replaced", argv: "python train.py --block_size 8192 --block_size 4096",
			changes: toLength("4096", "2048"), profile: "hf-trainer",
			want: "python train.py --block_size 8192 --block_size 2048", diff: []string{"--block_size 4096 -> 2048"},
			parts: []string{"argv|--block_size|4096|2048"},
		},
		{
			name: "abbreviation", files: map[string]string{"train.py": hfScript},
			argv: "python train.py --per_device_tr 8 --gradient_acc=2", changes: toBatch("8", "4", "2", "4"), profile: "hf-trainer",
			want:  "python train.py --per_device_tr 4 --gradient_acc=4",
			diff:  []string{"--per_device_tr 8 -> 4", "--gradient_acc=2 -> 4"},
			parts: []string{"argv|--per_device_tr|8|4", "argv|--gradient_acc|2|4"},
		},
		{
			name: "defaults are written out", files: map[string]string{"train.py": hfScript},
			argv: "python train.py --output_dir out", changes: toBatch("8", "4", "1", "2"), profile: "hf-trainer",
			want:  "python train.py --output_dir out --per_device_train_batch_size 4 --gradient_accumulation_steps 2",
			diff:  []string{"--per_device_train_batch_size 4 (added; default 8)", "--gradient_accumulation_steps 2 (added; default 1)"},
			parts: []string{"argv|--per_device_train_batch_size||4", "argv|--gradient_accumulation_steps||2"},
		},
		{
			name: "the length that the script declares", files: map[string]string{"train.py": hfScript},
			argv: "python train.py", changes: toLength("2048", "1024"), profile: "hf-trainer",
			want: "python train.py --max_seq_length 1024", diff: []string{"--max_seq_length 1024 (added; default 2048)"},
			parts: []string{"argv|--max_seq_length||1024"},
		},
		{
			name: "before a bare double dash", files: map[string]string{"train.py": hfScript},
			argv: "python train.py --bf16 -- rest", changes: toLength("2048", "1024"), profile: "hf-trainer",
			want: "python train.py --bf16 --max_seq_length 1024 -- rest", diff: []string{"--max_seq_length 1024 (added; default 2048)"},
			parts: []string{"argv|--max_seq_length||1024"},
		},
		{
			name: "plain argparse keeps the script's spelling", files: map[string]string{"t.py": plainScript},
			argv: "python t.py --batch_size 8", changes: append(toLength("2048", "1024"), toBatch("8", "4", "1", "2")...),
			profile: "argparse", want: "python t.py --batch_size 4 --seq-length 1024 --grad_accum 2",
			diff:  []string{"--seq-length 1024 (added; default 2048)", "--batch_size 8 -> 4", "--grad_accum 2 (added; default 1)"},
			parts: []string{"argv|--seq-length||1024", "argv|--batch_size|8|4", "argv|--grad_accum||2"},
		},
		{
			name: "trl without a length", argv: "trl sft --model_name_or_path m --per_device_train_batch_size 4",
			changes: append(toLength("1024", "512"), toBatch("4", "2", "1", "2")...), profile: "trl",
			want:  "trl sft --model_name_or_path m --per_device_train_batch_size 2 --max_length 512 --gradient_accumulation_steps 2",
			diff:  []string{"--max_length 512 (added; default 1024)", "--per_device_train_batch_size 4 -> 2", "--gradient_accumulation_steps 2 (added; default 1)"},
			parts: []string{"argv|--max_length||512", "argv|--per_device_train_batch_size|4|2", "argv|--gradient_accumulation_steps||2"},
		},
		{
			name: "trl config is overridden, not touched", files: map[string]string{"c/sft.yaml": "# mine\nmax_seq_length: 4096\npacking: true\n"},
			argv: "trl sft --config c/sft.yaml", changes: toLength("4096", "2048"), profile: "trl",
			want: "trl sft --config c/sft.yaml --max_seq_length 2048", diff: []string{"--max_seq_length 2048 (over c/sft.yaml:2 max_seq_length: 4096)"},
			parts: []string{"argv|--max_seq_length||2048"},
		},
		{
			name: "trl script by its text, 4-bit off with its dtype", files: map[string]string{"sft.py": trlScript},
			argv: "env A=1 nice -n 5 python sft.py --load_in_4bit --use_peft --max_length 4096", changes: unquantised, profile: "trl",
			want:  "env A=1 nice -n 5 python sft.py --load_in_4bit False --use_peft --max_length 4096 --dtype bfloat16",
			diff:  []string{"--load_in_4bit -> --load_in_4bit False", "--dtype bfloat16 (added; not set)"},
			parts: []string{"argv|--load_in_4bit|true|False", "argv|--dtype||bfloat16"},
		},
		{
			name: "4-bit with a value", files: map[string]string{"sft.py": trlScript},
			argv:    "python sft.py --use_peft --load_in_4bit True --torch_dtype auto",
			changes: unquantised, profile: "trl",
			want:  "python sft.py --use_peft --load_in_4bit False --torch_dtype bfloat16",
			diff:  []string{"--load_in_4bit True -> False", "--torch_dtype auto -> bfloat16"},
			parts: []string{"argv|--load_in_4bit|True|False", "argv|--torch_dtype|auto|bfloat16"},
		},
		{
			name: "trl to lora", argv: "trl sft --learning_rate 2e-5",
			changes: []Change{{Knob: job.Method, From: "full", To: "lora"}, {Knob: job.LearningRate, From: "2e-5", To: "2e-4"}},
			profile: "trl", want: "trl sft --learning_rate 2e-4 --use_peft True",
			diff:  []string{"--learning_rate 2e-5 -> 2e-4", "--use_peft True (added; default false)"},
			parts: []string{"argv|--learning_rate|2e-5|2e-4", "argv|--use_peft||True"},
		},
		{
			name: "llama-factory dotlist", files: map[string]string{"c.yaml": "stage: sft\ncutoff_len: 4096\n"},
			argv:    "llamafactory-cli train c.yaml learning_rate=1e-4 cutoff_len=8192",
			changes: append(toLength("8192", "4096"), toBatch("8", "4", "1", "2")...), profile: "llama-factory",
			want:  "llamafactory-cli train c.yaml learning_rate=1e-4 cutoff_len=4096 per_device_train_batch_size=4 gradient_accumulation_steps=2",
			diff:  []string{"cutoff_len=8192 -> 4096", "per_device_train_batch_size=4 (added; default 8)", "gradient_accumulation_steps=2 (added; default 1)"},
			parts: []string{"argv|cutoff_len|8192|4096", "argv|per_device_train_batch_size||4", "argv|gradient_accumulation_steps||2"},
		},
		{
			name: "llama-factory appended over the file", files: map[string]string{"c.yaml": "stage: sft\ncutoff_len: 4096\nquantization_bit: 4\n"},
			argv: "llamafactory-cli train c.yaml", changes: append(toLength("4096", "2048"), Change{Knob: job.Method, From: "qlora", To: "lora"}),
			profile: "llama-factory", want: "llamafactory-cli train c.yaml cutoff_len=2048 bf16=True quantization_bit=null",
			diff:  []string{"cutoff_len=2048 (over c.yaml:2 cutoff_len: 4096)", "bf16=True (added; default false)", "quantization_bit=null (over c.yaml:3 quantization_bit: 4)"},
			parts: []string{"argv|cutoff_len||2048", "argv|bf16||True", "argv|quantization_bit||null"},
		},
		{
			name: "llama-factory flags", argv: "llamafactory-cli train --stage sft --quantization_bit 4 --cutoff_len 4096",
			changes: append(toLength("4096", "2048"), Change{Knob: job.Method, From: "qlora", To: "lora"}), profile: "llama-factory",
			want:  "llamafactory-cli train --stage sft --cutoff_len 2048 --bf16 True",
			diff:  []string{"--cutoff_len 4096 -> 2048", "--bf16 True (added; default false)", "--quantization_bit 4 (removed)"},
			parts: []string{"argv|--cutoff_len|4096|2048", "argv|--bf16||True", "argv|--quantization_bit|4|"},
		},
		{
			name: "placeholders", user: map[string]string{"seq_len": "4096", "micro_batch": "8"},
			argv:    "./train --len {seq_len} --tag n{seq_len}-{{seq_len}}-{other} --bs={micro_batch}",
			changes: append(toLength("4096", "2048"), Change{Knob: job.MicroBatch, From: "8", To: "4"}),
			want:    "./train --len 2048 --tag n2048-{seq_len}-{other} --bs=4",
			diff:    []string{"{seq_len} 4096 -> 2048", "{micro_batch} 8 -> 4"},
			parts:   []string{"argv|{seq_len}|4096|2048", "argv|{micro_batch}|8|4"},
		},
		{
			name: "a user's knob without a placeholder goes by environment", user: map[string]string{"seq_len": "4096"},
			argv: "./train", changes: toLength("4096", "2048"), want: "./train", diff: []string{"SPARKRUN_KNOB_SEQ_LEN 4096 -> 2048"},
			parts: []string{"env|SPARKRUN_KNOB_SEQ_LEN|4096|2048"},
		},
		{
			name: "a placeholder and a flag side by side", user: map[string]string{"seq_len": "4096"},
			argv:    "python train.py --max_length {seq_len} --per_device_train_batch_size 8 --gradient_accumulation_steps 1",
			changes: append(toLength("4096", "2048"), toBatch("8", "4", "1", "2")...), profile: "hf-trainer",
			want:  "python train.py --max_length 2048 --per_device_train_batch_size 4 --gradient_accumulation_steps 2",
			diff:  []string{"{seq_len} 4096 -> 2048", "--per_device_train_batch_size 8 -> 4", "--gradient_accumulation_steps 1 -> 2"},
			parts: []string{"argv|{seq_len}|4096|2048", "argv|--per_device_train_batch_size|8|4", "argv|--gradient_accumulation_steps|1|2"},
		},
		{
			name: ".args file", files: map[string]string{"train.py": hfScript, "train.args": "--max_seq_length 4096\n--bf16"},
			argv: "python train.py", changes: toLength("4096", "2048"), profile: "hf-trainer",
			want: "python train.py --max_seq_length 2048", diff: []string{"--max_seq_length 2048 (added; was 4096)"},
			parts: []string{"argv|--max_seq_length||2048"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t, c.files)
			s := profiles(t)
			j, err := s.Understand(strings.Fields(c.argv), dir, nil, c.user)
			if err != nil {
				t.Fatal(err)
			}
			if j.Profile != c.profile {
				t.Errorf("profile %q, want %q", j.Profile, c.profile)
			}
			for _, ch := range c.changes {
				if got := j.Knobs[ch.Knob].Value; got != ch.From {
					t.Errorf("%s is %q, want %q (notes %q)", ch.Knob, got, ch.From, j.Notes)
				}
			}
			before, err := s.Rewrite(j, Request{RunID: "r", Attempt: 1})
			if err != nil {
				t.Fatal(err)
			}
			if len(c.user) == 0 && strings.Join(before.Argv, " ") != c.argv {
				t.Errorf("attempt 1 runs %q, not the command as typed", before.Argv)
			}
			got, err := s.Rewrite(j, Request{Changes: c.changes, RunID: "r", Attempt: 2})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, strings.Join(got.Argv, " ")); diff != "" {
				t.Errorf("argv (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.diff, got.Diff); diff != "" {
				t.Errorf("diff (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.parts, parts(got)); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			if len(got.Files) != 0 {
				t.Errorf("files written: %v", got.Files)
			}
			if strings.Join(j.Argv, " ") != c.argv {
				t.Errorf("the job's own argv changed: %q", j.Argv)
			}
			// Reading the new command gives the new settings.
			if c.user != nil {
				return
			}
			again, err := s.Understand(got.Argv, dir, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, ch := range c.changes {
				want := ch.To
				if ch.Knob == job.LoadIn4Bit {
					want = "false"
				}
				if v := again.Knobs[ch.Knob].Value; v != want {
					t.Errorf("read back, %s is %q, want %q", ch.Knob, v, want)
				}
			}
		})
	}
}

func TestRewriteConfigFile(t *testing.T) {
	t.Parallel()
	text := "{\n  \"model_name_or_path\": \"m\",\r\n  \"max_seq_length\" : 4096 ,\n  \"max_steps\": 10\n}\n"
	dir := folder(t, map[string]string{"train.py": hfScript, "conf/c.json": text})
	s := profiles(t)
	j, err := s.Understand([]string{"python", "train.py", "conf/c.json"}, dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := j.Knobs[job.SeqLen]; got.Value != "4096" || got.Where != "conf/c.json:3" || got.Source != job.FromConfig {
		t.Errorf("length read as %+v", got)
	}
	changes := []Change{
		{Knob: job.SeqLen, From: "4096", To: "2048"},
		{Knob: job.MicroBatch, From: "8", To: "4"},
		{Knob: job.Accumulation, From: "1", To: "2"},
	}
	got, err := s.Rewrite(j, Request{Changes: changes, RunID: "20260101-000000-x-beef", Attempt: 2})
	if err != nil {
		t.Fatal(err)
	}
	name := ".sparkrun-20260101-000000-x-beef-a2-c.json"
	want := strings.Replace(text, "4096", "2048", 1)
	want = strings.Replace(want, "\"max_steps\": 10", "\"max_steps\": 10,\n  \"per_device_train_batch_size\": 4,\n  \"gradient_accumulation_steps\": 2", 1)
	if diff := cmp.Diff([]File{{
		Path: filepath.Join(dir, "conf", name), Content: []byte(want), Mode: 0o600, Original: filepath.Join(dir, "conf/c.json"),
	}}, got.Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"python", "train.py", "conf/" + name}, got.Argv); diff != "" {
		t.Errorf("argv (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"conf/c.json:3 max_seq_length: 4096 -> 2048",
		"conf/c.json per_device_train_batch_size: 4 (added; default 8)",
		"conf/c.json gradient_accumulation_steps: 2 (added; default 1)",
	}, got.Diff); diff != "" {
		t.Errorf("diff (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"config|conf/c.json:3 max_seq_length|4096|2048",
		"config|conf/c.json per_device_train_batch_size||4",
		"config|conf/c.json gradient_accumulation_steps||2",
	}, parts(got)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if now, err := os.ReadFile(filepath.Join(dir, "conf/c.json")); err != nil || string(now) != text {
		t.Errorf("the user's file was touched: %q, %v", now, err)
	}
}

// Flags that are switched on and off by standing there: what is added, what is
// taken away, and a "no" that becomes a yes.
func TestRewriteSwitches(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"t.py": plainScript, "hf.py": hfScript})
	for _, c := range []struct {
		argv, to, want string
		parts          []string
	}{
		{"python t.py --batch_size 8", "true", "python t.py --batch_size 8 --packing", []string{"argv|--packing||true"}},
		{"python t.py --packing --batch_size 8", "false", "python t.py --batch_size 8", []string{"argv|--packing|true|"}},
		{"python t.py --packing --batch_size 8", "true", "python t.py --packing --batch_size 8", nil},
		{"python hf.py --gradient_checkpointing --bf16", "False", "python hf.py --gradient_checkpointing False --bf16", []string{"argv|--gradient_checkpointing|true|False"}},
		{"python hf.py --no_gradient_checkpointing", "True", "python hf.py --gradient_checkpointing True", []string{"argv|--no_gradient_checkpointing|false|True"}},
		{"python hf.py --gradient-checkpointing=False", "True", "python hf.py --gradient-checkpointing=True", []string{"argv|--gradient-checkpointing|False|True"}},
	} {
		j, err := s.Understand(strings.Fields(c.argv), dir, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		knob := job.Packing
		if strings.Contains(c.argv, "checkpointing") {
			knob = job.GradCkpt
		}
		got, err := s.Rewrite(j, Request{Changes: []Change{{Knob: knob, From: j.Knobs[knob].Value, To: c.to}}, RunID: "r", Attempt: 2})
		if err != nil {
			t.Errorf("%s: %v", c.argv, err)
			continue
		}
		if w := strings.Join(got.Argv, " "); w != c.want {
			t.Errorf("%s: got %s, want %s", c.argv, w, c.want)
		}
		if diff := cmp.Diff(c.parts, parts(got)); diff != "" {
			t.Errorf("%s: changes (-want +got):\n%s", c.argv, diff)
		}
	}
}

// A change is JSON under the names that run.json has for its parts.
func TestChangedAsJSON(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(Changed{LayerConfig, "c.yaml:2 max_length", "4096", ""})
	if want := `{"layer":"config","where":"c.yaml:2 max_length","before":"4096","after":""}`; err != nil || string(b) != want {
		t.Errorf("got %s, %v, want %s", b, err, want)
	}
}

func TestRewriteRefuses(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"t.py": plainScript})
	j, err := s.Understand([]string{"python", "t.py", "--batch_size", "8"}, dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{Knob: job.SeqLen, From: "2048", To: "700"}, "allows only 512, 1024, 2048, 4096"},
		{Change{Knob: job.EvalBatch, From: "8", To: "4"}, "no flag for it"},
		{Change{Knob: job.GlobalBatch, From: "8", To: "4"}, "no knob global_batch"},
		{Change{Knob: job.Method, From: "full", To: "lora"}, "does not know"},
	} {
		got, err := s.Rewrite(j, Request{Changes: []Change{c.change}, RunID: "r", Attempt: 2})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.change.Knob, err, c.want)
		}
		if got.Argv != nil {
			t.Errorf("%s: a refused rewrite returned a command", c.change.Knob)
		}
	}
}
