package trainer

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sparkrun/internal/job"
)

// TestRewriteChangesOnlyWhatItSays draws command lines with the flags in every
// spelling, among others, and checks the rewritten one word by word.
func TestRewriteChangesOnlyWhatItSays(t *testing.T) {
	s := profiles(t)
	dir := folder(t, map[string]string{"train.py": hfScript, "sft.py": trlScript})
	rapid.Check(t, func(t *rapid.T) {
		flags := []struct {
			knob job.Knob
			name string
		}{{job.SeqLen, "max_seq_length"}, {job.MicroBatch, "per_device_train_batch_size"}, {job.Accumulation, "gradient_accumulation_steps"}}
		script := "train.py"
		if rapid.Bool().Draw(t, "trl") {
			script, flags[0].name = "sft.py", "max_length"
		}
		var groups [][]string
		for _, f := range flags {
			for range rapid.IntRange(0, 2).Draw(t, f.name) {
				name := "--" + f.name
				if rapid.Bool().Draw(t, "hyphens") {
					name = "--" + strings.ReplaceAll(f.name, "_", "-")
				}
				v := strconv.Itoa(rapid.IntRange(1, 99999).Draw(t, "value"))
				if rapid.Bool().Draw(t, "inline") {
					groups = append(groups, []string{name + "=" + v})
				} else {
					groups = append(groups, []string{name, v})
				}
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "others") {
			groups = append(groups, rapid.SampledFrom([][]string{
				{"--bf16"}, {"--packing", "False"}, {"--run_name", "max_length"}, {"--seed=3"}, {"-x", "1"}, {"--learning-rate", "1e-5"},
			}).Draw(t, "other"))
		}
		words := []string{"python", script}
		for _, g := range rapid.Permutation(groups).Draw(t, "order") {
			words = append(words, g...)
		}
		j, err := s.Understand(words, dir, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var changes []Change
		for _, f := range flags {
			from, ok := j.Knobs[f.knob]
			if !ok {
				t.Fatalf("%s is not known in %q: %q", f.knob, words, j.Notes)
			}
			if rapid.Bool().Draw(t, "change "+f.name) {
				changes = append(changes, Change{Knob: f.knob, From: from.Value, To: strconv.Itoa(rapid.IntRange(100000, 200000).Draw(t, "to"))})
			}
		}
		got, err := s.Rewrite(j, Request{Changes: changes, RunID: "r", Attempt: 2})
		if err != nil {
			t.Fatal(err)
		}
		again, err := s.Understand(got.Argv, dir, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, set := range j.Knobs {
			want := set.Value
			for _, c := range changes {
				if c.Knob == name {
					want = c.To
				}
			}
			if v := again.Knobs[name].Value; v != want {
				t.Fatalf("%q -> %q: %s is %q, want %q", words, got.Argv, name, v, want)
			}
		}
		if len(got.Diff) != len(changes) {
			t.Fatalf("%d lines of diff for %d changes: %q", len(got.Diff), len(changes), got.Diff)
		}
		// The parts say what stood there and what stands there now.
		if len(got.Changes) != len(got.Diff) {
			t.Fatalf("%d changes for %d lines of diff", len(got.Changes), len(got.Diff))
		}
		for _, c := range got.Changes {
			if c.Layer != LayerArgv || !stands(got.Argv, c.Where, c.After) {
				t.Fatalf("%q -> %q: %+v is not in the new command", words, got.Argv, c)
			}
			if before := c.Before != ""; before != stands(words, c.Where, c.Before) {
				t.Fatalf("%q -> %q: %+v does not say what stood in the old command", words, got.Argv, c)
			}
		}
		// Every word that is new carries a new value or names an added flag.
		for i, w := range got.Argv {
			if i < len(words) && w == words[i] {
				continue
			}
			_, inline, _ := strings.Cut(w, "=")
			isNew := slices.ContainsFunc(changes, func(c Change) bool { return w == c.To || inline == c.To })
			if !isNew && i < len(words) {
				t.Fatalf("%q -> %q: word %d changed unasked", words, got.Argv, i)
			}
		}
	})
}

// stands says whether a flag has a value in argv, or is there at all where the
// value is empty.
func stands(argv []string, flag, value string) bool {
	for i, w := range argv {
		name, inline, cut := strings.Cut(w, "=")
		if name == flag && (value == "" || cut && inline == value || !cut && i+1 < len(argv) && argv[i+1] == value) {
			return true
		}
	}
	return false
}

// Whatever the words are, nothing panics, a command without changes stays as it is, and
// what is rewritten carries what was asked for.
func TestAnyWords(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{
		"t.py": hfScript, "p.py": plainScript, "k.py": constScript, "c.yaml": "cutoff_len: 4096\nper_device_train_batch_size: 8\n",
		"bad.yaml": "a: [\n", "c.toml": "[[datasets]]\nbatch_size = 4\n", "run.sh": "python t.py\n", "c.json": `{"max_seq_length": 2048}`,
	})
	words := []string{
		"python", "python3", "-m", "-u", "t.py", "p.py", "k.py", "c.yaml", "bad.yaml", "c.toml", "c.json", "gone.yaml", "env", "A=1", "nice", "-n", "5",
		"torchrun", "accelerate", "launch", "--nnodes", "2", "bash", "-c", "python t.py --max_seq_length 4096", "run.sh", "docker", "run", "-v", dir + ":/w", "-w", "/w",
		"img", "trl", "sft", "llamafactory-cli", "train", "axolotl", "tune", "--config", "--max_length", "--max_seq_length=4096", "4096", "8", "-b", "-b8", "--",
		"--per_device_train_batch_size", "cutoff_len=4096", "=", "--=", "-", "", "~x", "+a=", "--no_packing", "--packing", "\x00", "{seq_len}", "--deepspeed", "swift", "=4",
		"-m=x", "scripts.base_train", "--device-batch-size=8", "composer", "litgpt", "finetune_lora", "automodel", "run.py", "unsloth",
	}
	rapid.Check(t, func(t *rapid.T) {
		argv := rapid.SliceOfN(rapid.SampledFrom(words), 1, 9).Draw(t, "argv")
		j, err := s.Understand(argv, dir, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		same, err := s.Rewrite(j, Request{RunID: "r", Attempt: 1, AttemptDir: dir})
		if err != nil || !slices.Equal(same.Argv, argv) || len(same.Files) > 0 {
			t.Fatalf("%q unchanged became %q, %v", argv, same.Argv, err)
		}
		fixed := s.Fixed(j)
		for k, set := range j.Knobs {
			n, err := parseInt(set.Value)
			if err != nil || n < 2 {
				continue
			}
			got, err := s.Rewrite(j, Request{Changes: []Change{{Knob: k, From: set.Value, To: strconv.FormatInt(n/2, 10)}}, RunID: "r", Attempt: 2, AttemptDir: dir})
			if err != nil {
				if fixed[k] == "" {
					t.Fatalf("%q: %s was said to be turnable, but %v", argv, k, err)
				}
				continue
			}
			if fixed[k] != "" {
				t.Fatalf("%q: %s was changed though %s", argv, k, fixed[k])
			}
			if len(got.Changes) == 0 || len(got.Diff) != len(got.Changes) {
				t.Fatalf("%q: %s changed without a word about it: %q", argv, k, got.Diff)
			}
		}
		s.OutputFolder(j)
		s.TrainerLogs(j)
		s.NewProgress(j)
		s.CanResume(j)
	})
}
