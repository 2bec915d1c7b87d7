package trainer

import (
	"strconv"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// A script is recognised by the flags that it declares, when none is typed.
func TestDeclaredFlagsAreRecognised(t *testing.T) {
	t.Parallel()
	const head = "import argparse\np = argparse.ArgumentParser()\n"
	declare := func(lines ...string) string { return head + strings.Join(lines, "\n") + "\na = p.parse_args()\n" }
	for _, c := range []struct {
		name, script, profile, knobs, halved string
	}{
		{
			"the length alone", declare(`p.add_argument("--max_length", type=int, default=2048)`),
			"hf-trainer", "seq_len=2048", "python3 train.py --seed 1 --max_length 1024",
		},
		{
			"with dashes", declare(`p.add_argument("--seq-len", "-s", type=int, default=4_096, help="length (tokens)")`),
			"argparse", "seq_len=4096", "python3 train.py --seed 1 --seq-len 2048",
		},
		{
			"the profile that knows more of them", declare(
				`p.add_argument("--max_length", type=int, default=8192)`,
				`p.add_argument("--batch_size", type=int, default=4)`,
				`p.add_argument("--grad_accum", type=int, default=2)`),
			"argparse", "seq_len=8192 micro_batch=4 accumulation=2", "python3 train.py --seed 1 --max_length 4096",
		},
		{
			"the names of TrainingArguments", declare(
				`p.add_argument("--per_device_train_batch_size", type=int, default=4)`,
				`p.add_argument("--max_seq_length", type=int, default=1024 * 4)`),
			"hf-trainer", "micro_batch=4", "",
		},
		{
			"click", "import click\n@click.command()\n@click.option('--seq-length', default=2048, show_default=True)\ndef main(seq_length): pass\n",
			"argparse", "seq_len=2048", "python3 train.py --seed 1 --seq-length 1024",
		},
		{"a computed default", declare(`p.add_argument("--max_length", type=int, default=DEFAULT_LENGTH)`), "hf-trainer", "", ""},
		{"no default", declare(`p.add_argument("--max_length", type=int)`), "hf-trainer", "", ""},
		{"other names", declare(`p.add_argument("--length", type=int, default=2048)`, `p.add_argument("--seed", type=int, default=1)`), "", "", ""},
		{"a positional", declare(`p.add_argument("max_length", type=int, default=2048)`), "", "", ""},
		{"a comment", declare(`# p.add_argument("--max_length", type=int, default=2048)`), "", "", ""},
		{"nothing declared", "MAX_LENGTH = 2048\n", "", "", ""},
		{
			"several parsers", declare(`s = p.add_subparsers()`, `t = s.add_parser("train")`, `t.add_argument("--max_length", type=int, default=2048)`),
			"", "", "",
		},
		{
			"words handed on", declare(`p.add_argument("--max_length", type=int, default=2048)`, `p.add_argument("rest", nargs=argparse.REMAINDER)`),
			"", "", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, dir := profiles(t), folder(t, map[string]string{"train.py": c.script})
			j, err := s.Understand([]string{"python3", "train.py", "--seed", "1"}, dir, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range []job.Knob{job.SeqLen, job.MicroBatch, job.Accumulation} {
				if v, ok := j.Knobs[k]; ok {
					got = append(got, string(k)+"="+v.Value)
					if v.Source != job.FromDefault || v.Where != "declared in train.py" {
						t.Errorf("%s: %+v", k, v)
					}
				}
			}
			if j.Profile != c.profile || strings.Join(got, " ") != c.knobs {
				t.Errorf("profile %q, knobs %v, notes %q", j.Profile, got, j.Notes)
			}
			if c.halved == "" {
				return
			}
			n, err := parseInt(j.Knobs[job.SeqLen].Value)
			if err != nil {
				t.Fatal(err)
			}
			changes := []Change{{Knob: job.SeqLen, From: j.Knobs[job.SeqLen].Value, To: strconv.FormatInt(n/2, 10)}}
			r, err := s.Rewrite(j, Request{Changes: changes, RunID: "20260101-000000-x-beef", Attempt: 2, AttemptDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Join(r.Argv, " ") != c.halved {
				t.Errorf("the halved command is %q", r.Argv)
			}
		})
	}
}

// Where a flag of the user's is typed, its own sign decides as before.
func TestTypedFlagsComeBeforeDeclaredOnes(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{"train.py": `p.add_argument("--batch_size", default=4)
p.add_argument("--max_length", default=2048)
`})
	j, err := profiles(t).Understand([]string{"python3", "train.py", "--max_length", "512"}, dir, nil, nil)
	if err != nil || j.Profile != "hf-trainer" || j.Knobs[job.SeqLen].Value != "512" {
		t.Errorf("%q %+v %v", j.Profile, j.Knobs, err)
	}
}
