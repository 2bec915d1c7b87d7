package place

import (
	"os"
	"path/filepath"
	"testing"
)

// A path with .. behind a symbolic link leads where the kernel leads, and a shell's cd
// where the shell leads.
func TestPathsThroughLinks(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"a/b/real/c.yaml", "a/b/up.yaml", "up.yaml"} {
		write(t, filepath.Join(root, file), "x: 1\n", 0o600)
	}
	if err := os.Symlink("a/b/real", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	tab := table(t)
	for _, c := range []struct{ line, name, want string }{
		{"python t.py", "link/c.yaml", "link/c.yaml"},
		{"python t.py", "link/../up.yaml", "a/b/up.yaml"},
		{"python t.py", root + "/link/../up.yaml", "a/b/up.yaml"},
		{"python t.py", "./link/./../../b/up.yaml", "a/b/up.yaml"},
		{"python t.py", "link/../../../up.yaml", "up.yaml"},
		{"python t.py", "a/../up.yaml", "up.yaml"},
		{"python t.py", "gone/../up.yaml", "up.yaml"},
		{"env -C link python t.py", "../up.yaml", "a/b/up.yaml"},
		{"env -C link/.. python t.py", "up.yaml", "a/b/up.yaml"},
		{"bash -c 'cd link && python t.py'", "../up.yaml", "a/b/up.yaml"},
		{"bash -c 'cd link && cd .. && python t.py'", "up.yaml", "up.yaml"},
		{"bash -c 'cd link/.. && python t.py'", "up.yaml", "up.yaml"},
		{"bash -c 'cd -P link/.. && python t.py'", "up.yaml", "a/b/up.yaml"},
	} {
		p := tab.Find(split(t, c.line), root, nil)
		got, ok := p.HostPath(c.name)
		want := filepath.Join(root, c.want)
		if !ok || got != want {
			t.Errorf("%s: %s is %s, want %s", c.line, c.name, got, want)
			continue
		}
		// What the kernel opens is that file.
		if p.Dir == "" || filepath.IsAbs(c.name) || c.name == "gone/../up.yaml" {
			continue
		}
		a, errA := os.Stat(p.Dir + "/" + c.name)
		b, errB := os.Stat(got)
		if errA != nil || errB != nil || !os.SameFile(a, b) {
			t.Errorf("%s: the kernel opens another file for %s than %s (%v, %v)", c.line, c.name, got, errA, errB)
		}
	}
	// In a container only its own files tell where a link leads.
	p := tab.Find(split(t, "docker run -v "+root+":/d -w /d img python t.py"), root, nil)
	for name, ok := range map[string]bool{"link/c.yaml": true, "link/../up.yaml": false, "/d/link/../up.yaml": false, "a/../up.yaml": true, "../d/up.yaml": true} {
		if _, got := p.HostPath(name); got != ok {
			t.Errorf("in a container: %s: %v, want %v", name, got, ok)
		}
	}
}

// The folder is given up where an earlier command may change it in a way that is not
// seen, and kept where it cannot.
func TestFolderBehindEarlierCommands(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "env.sh"), "export A=1\n# cd is not done here\n", 0o600)
	write(t, filepath.Join(root, "go.sh"), "if true; then\n  cd /tmp\nfi\n", 0o600)
	write(t, filepath.Join(root, "more.sh"), ". ./go.sh\n", 0o600)
	tab := table(t)
	for text, want := range map[string]string{
		`eval "cd w"`:                       "?",
		"command cd w":                      "w",
		"builtin cd w":                      "w",
		"command -v nvidia-smi":             "",
		"source ./env.sh":                   "",
		". ./env.sh":                        "",
		"source go.sh":                      "?",
		"source more.sh":                    "?",
		"source gone.sh":                    "?",
		"source /x/bin/activate":            "",
		"source ~/c/etc/profile.d/conda.sh": "",
		`eval "$(conda shell.bash hook)"`:   "",
		`eval "$(make-env)"`:                "?",
		"cd w || exit 1":                    "w",
		"cd w || true":                      "?",
		"[ -f x ] || echo no":               "",
		"[ -f env.sh ] && source ./env.sh":  "",
		"source go.sh || true":              "?",
		"set -e":                            "",
	} {
		p := tab.Find([]string{"bash", "-c", text + "; python t.py"}, root, map[string]string{"HOME": root})
		dir := filepath.Join(root, want)
		if want == "?" {
			dir = ""
		}
		if p.Dir != dir || (p.Dir == "") != (len(p.Notes) == 1) || p.Script != "t.py" {
			t.Errorf("%s: folder %q, want %q (%q, %s)", text, p.Dir, dir, p.Notes, p.Unsure+p.Opaque)
		}
	}
}

// Earlier commands of the shell may write what the trainer reads.
func TestRewritten(t *testing.T) {
	t.Parallel()
	tab := table(t)
	for text, want := range map[string]struct{ script, config bool }{
		"sed -i s/8/4/ sft.yaml":                    {false, true},
		"sed -i s/8/4/ t.py":                        {true, true},
		"cp base.yaml sft.yaml":                     {false, true},
		"cp base.yaml conf/sft.yaml":                {false, true},
		"echo x > sft.yaml":                         {false, true},
		"echo x >> ./sft.yaml":                      {false, true},
		"cat sft.yaml":                              {false, false},
		"cat a.yaml > $OUT":                         {false, true},
		"python make.py":                            {false, true},
		"python make.py --out=sft.yaml":             {false, true},
		"(python make.py)":                          {false, true},
		"pip install -r requirements.txt":           {false, false},
		"python -m pip install x":                   {false, false},
		"[ -d out ] || mkdir out":                   {false, false},
		"mkdir -p out && export A=1":                {false, false},
		"axolotl preprocess sft.yaml":               {false, false},
		"python -m axolotl.cli.preprocess sft.yaml": {false, false},
		"if true; then envsubst < a > sft.yaml; fi": {false, true},
		"hf download org/model && nvidia-smi":       {false, false},
	} {
		p := tab.Find([]string{"bash", "-c", text + "; python t.py sft.yaml"}, "/w", nil)
		if p.Script != "t.py" {
			t.Errorf("%s: %s", text, p.Unsure+p.Opaque)
		}
		if got := p.Rewritten(tab, "/w/t.py", false) != ""; got != want.script {
			t.Errorf("%s: script %v, want %v", text, got, want.script)
		}
		if got := p.Rewritten(tab, "/w/sft.yaml", true) != ""; got != want.config {
			t.Errorf("%s: config %v, want %v", text, got, want.config)
		}
	}
	if p := tab.Find([]string{"python", "t.py"}, "/w", nil); p.Rewritten(tab, "/w/t.py", true) != "" {
		t.Error("a command without a shell")
	}
}

// A program stands where a launcher expects a script.
func TestProgramBehindALauncher(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "train"), "import x\n", 0o600)
	tab := table(t)
	for line, noted := range map[string]bool{
		"uv run accelerate launch --num_processes 2 llamafactory-cli train sft.yaml": true,
		"torchrun llamafactory-cli train":                                            true,
		"accelerate launch t.py":                                                     false,
		"torchrun train":                                                             false,
		"accelerate launch -m axolotl.cli.train":                                     false,
	} {
		if p := tab.Find(split(t, line), root, nil); (len(p.Notes) > 0) != noted {
			t.Errorf("%s: %q", line, p.Notes)
		}
	}
}
