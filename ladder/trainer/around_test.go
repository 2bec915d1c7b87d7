package trainer

import (
	"os"
	"path/filepath"
	"testing"

	"sparkrun/internal/job"
)

// What a command sets for its trainer, in whatever way, is the trainer's environment.
func TestUnderstandTellsTheEnvironmentOfTheTrainer(t *testing.T) {
	t.Parallel()
	s := profiles(t)
	around := []string{"HOME=/home/ada", "HF_HOME=/old", "A=1", "EMPTY="}
	bash := func(text string) []string { return []string{"bash", "-c", text} }
	run := func(words ...string) []string { return append([]string{"docker", "run"}, words...) }
	for name, c := range map[string]struct {
		argv []string
		want map[string]string // "-" is not set, "=" as it is around
	}{
		"env":                       {[]string{"env", "-u", "A", "HF_HOME=/new", "python", "t.py"}, map[string]string{"HF_HOME": "/new", "A": "-", "HOME": "="}},
		"env -i":                    {[]string{"env", "-i", "B=2", "python", "t.py"}, map[string]string{"B": "2", "HOME": "-"}},
		"in front, in a shell":      {bash("CUDA_VISIBLE_DEVICES= python t.py"), map[string]string{"CUDA_VISIBLE_DEVICES": "", "HF_HOME": "="}},
		"exported":                  {bash("export CUDA_VISIBLE_DEVICES=2; python t.py"), map[string]string{"CUDA_VISIBLE_DEVICES": "2"}},
		"exported from another one": {bash("export HF_HOME=$HOME/hf; python t.py"), map[string]string{"HF_HOME": "/home/ada/hf"}},
		"of a value not known":      {bash("export HF_HOME=$(pick); python t.py"), map[string]string{"HF_HOME": "-", "A": "="}},
		"added to":                  {bash("export A=$(x):$A; python t.py"), map[string]string{"A": "="}},
		"not known, then known":     {bash("export A=$(x); export A=3; python t.py"), map[string]string{"A": "3"}},
		"unset, then set":           {bash("unset A; export A=3; python t.py"), map[string]string{"A": "3"}},
		"of the shell alone":        {bash("B=2; python t.py"), map[string]string{"B": "="}},
		"a container":               {run("-e", "B=2", "-e", "A", "--env=EMPTY", "img", "python", "t.py"), map[string]string{"B": "2", "A": "1", "EMPTY": "", "HOME": "-"}},
		"a shell in a container":    {run("img", "bash", "-c", "export CUDA_VISIBLE_DEVICES=2; python t.py"), map[string]string{"CUDA_VISIBLE_DEVICES": "2", "HOME": "-"}},
	} {
		j, err := s.Understand(c.argv, "/home/ada", around, nil)
		if err != nil {
			t.Fatal(err)
		}
		for variable, want := range c.want {
			value, set, told := j.LookupEnv(variable)
			got := value
			switch {
			case !told:
				got = "="
			case !set:
				got = "-"
			}
			if got != want {
				t.Errorf("%s: %s is %q, want %q", name, variable, got, want)
			}
		}
	}
}

// The interpreter, an environment and what is installed come from the recorded tree; the
// command's own files too, where it has them.
func TestUnderATree(t *testing.T) {
	t.Parallel()
	dir, here := t.TempDir(), t.TempDir()
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "usr/bin/python3.12"), "\x7fELF", 0o755)
	if err := os.MkdirAll(filepath.Join(dir, "home/ada/venv/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/bin/python3.12", filepath.Join(dir, "home/ada/venv/bin/python")); err != nil {
		t.Fatal(err)
	}
	text := func(n string) string {
		return "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments(output_dir='o', per_device_train_batch_size=" + n + ")\nTrainer(args=args)\n"
	}
	write(filepath.Join(dir, "home/ada/train.py"), text("3"), 0o644)
	write(filepath.Join(here, "mine.py"), text("5"), 0o644)
	s := profiles(t).Under(dir)
	batch := func(argv []string, path string) (job.Job, string) {
		j, err := s.Understand(argv, "/home/ada", []string{"PATH=" + path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return j, j.Knobs[job.MicroBatch].Value
	}
	const venv = "/home/ada/venv/bin/python"
	if j, n := batch([]string{venv, "train.py"}, "/usr/bin"); j.Interpreter != venv || n != "3" {
		t.Errorf("interpreter %q, batch %q", j.Interpreter, n)
	}
	if j, _ := batch([]string{"python", "train.py"}, "/home/ada/venv/bin"); j.Interpreter != venv {
		t.Errorf("interpreter %q from the tree's PATH", j.Interpreter)
	}
	// This machine has a shell; the tree has none.
	if j, _ := batch([]string{"bash", "-c", "python train.py"}, "/bin:/usr/bin"); j.Interpreter != "" {
		t.Errorf("interpreter %q of this machine", j.Interpreter)
	}
	if _, n := batch([]string{venv, filepath.Join(here, "mine.py")}, "/usr/bin"); n != "5" {
		t.Errorf("batch %q of a script that only this machine has", n)
	}
	if j, err := profiles(t).Understand([]string{venv, "train.py"}, "/home/ada", nil, nil); err != nil || j.Interpreter != "" {
		t.Errorf("without a tree: %q %v", j.Interpreter, err)
	}
}
