package trainer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// A file that was changed since the command was understood: what is known may be wrong,
// so nothing is changed.
func TestFilesThatChanged(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	cut := []Change{to(job.MicroBatch, "8", "4"), to(job.Accumulation, "1", "2")}
	for argv, file := range map[string]string{
		"llamafactory-cli train c.yaml":                "c.yaml",
		"python hf.py --per_device_train_batch_size 8": "hf.py",
		"python nano.py conf.py":                       "conf.py",
		"trl sft --config c.yaml":                      "c.yaml",
	} {
		for _, gone := range []bool{false, true} {
			dir := folder(t, map[string]string{
				"c.yaml": "per_device_train_batch_size: 8\n", "hf.py": hfScript, "conf.py": "batch_size = 8\n",
				"nano.py": "gradient_accumulation_steps = 1\nbatch_size = 2\nblock_size = 1024\nexec(open('configurator.py').read())\n",
			})
			j := understand(t, s, dir, argv)
			if _, err := s.Rewrite(j, Request{Changes: cut, RunID: "r", Attempt: 2}); err != nil || len(s.Changed(j)) > 0 {
				t.Errorf("%s: %v, changed %q", argv, err, s.Changed(j))
			}
			path := filepath.Join(dir, file)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if gone {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, append(data, "# new\n"...), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Changed(j); !slices.Equal(got, []string{path}) {
				t.Errorf("%s: changed %q", argv, got)
			}
			if r, err := s.Rewrite(j, Request{Changes: cut, RunID: "r", Attempt: 2}); err == nil || !strings.Contains(err.Error(), file+" is not what it was") {
				t.Errorf("%s: %q, %v", argv, r.Argv, err)
			}
		}
	}
}

// What an earlier command of the shell may write is not believed.
func TestConfigWrittenByTheShell(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	dir := folder(t, map[string]string{"sft.yaml": "per_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n", "t.py": hfScript})
	for text, micro := range map[string]string{
		"sed -i s/8/4/ sft.yaml && llamafactory-cli train sft.yaml":                       "",
		"echo a >> sft.yaml; llamafactory-cli train sft.yaml":                             "",
		"python make.py && llamafactory-cli train sft.yaml":                               "",
		"python make.py && llamafactory-cli train sft.yaml per_device_train_batch_size=4": "4",
		"pip install x && llamafactory-cli train sft.yaml":                                "8",
		"export A=1; llamafactory-cli train sft.yaml":                                     "8",
		"python make.py && python t.py --per_device_train_batch_size 2":                   "2",
	} {
		j := understand(t, s, dir, "bash -c "+strings.ReplaceAll(text, " ", "~"))
		if got := j.Knobs[job.MicroBatch].Value; got != micro {
			t.Errorf("%s: micro-batch %q, want %q (%q)", text, got, micro, j.Notes)
		}
		if acc, known := j.Knobs[job.Accumulation]; micro != "8" && known && strings.Contains(text, "sft.yaml") {
			t.Errorf("%s: accumulation %+v", text, acc)
		}
	}
	j := understand(t, s, dir, "bash -c sed~-i~s/8/4/~t.py~&&~python~t.py~--per_device_train_batch_size~8")
	if j.Unsure == "" {
		t.Errorf("a script that is changed first: %+v", j.Knobs)
	}
}
