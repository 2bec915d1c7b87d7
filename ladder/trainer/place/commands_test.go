package place

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/commands.txt anew; read the difference")

// split cuts a line of the test data into words: bare words, '...' and "...".
func split(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	var b strings.Builder
	in, open := false, byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case open != 0 && c == open:
			open = 0
		case open != 0:
			b.WriteByte(c)
		case c == '\'' || c == '"':
			open, in = c, true
		case c == ' ':
			if in {
				words = append(words, b.String())
				b.Reset()
			}
			in = false
		default:
			b.WriteByte(c)
			in = true
		}
	}
	if open != 0 {
		t.Fatalf("a quote is open in %s", line)
	}
	if in {
		words = append(words, b.String())
	}
	return words
}

func table(t testing.TB) *Table {
	t.Helper()
	tab, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// summary is a place in lines, only what is not empty.
func summary(p *Place, root string) string {
	var b strings.Builder
	add := func(name, format string, args ...any) {
		text := strings.ReplaceAll(fmt.Sprintf(format, args...), root, "ROOT")
		fmt.Fprintf(&b, "  %s: %s\n", name, text)
	}
	if len(p.Launchers) > 0 {
		add("behind", "%s", strings.Join(p.Launchers, " "))
	}
	switch {
	case p.Script != "":
		add("script", "%s %q", p.Script, p.Words[min(p.Args, len(p.Words)):])
	case p.Module != "":
		add("module", "%s %q", p.Module, p.Words[min(p.Args, len(p.Words)):])
	case p.Program != "":
		add("program", "%s %q", p.Program, p.Words[min(p.Args, len(p.Words)):])
	}
	if p.Python != "" {
		add("python", "%s", p.Python)
	}
	if p.Container != nil {
		add("container", "%s %s %s", p.Container.Engine, p.Container.Verb, p.Container.Image)
	}
	for _, m := range p.Mounts {
		ro := ""
		if m.ReadOnly {
			ro = " (read-only)"
		}
		add("mount", "%s at %s%s", m.Host, m.Inside, ro)
	}
	if p.Workdir != "" {
		add("workdir", "%s", p.Workdir)
	}
	if p.Dir != root {
		add("dir", "%s", p.Dir)
	}
	if len(p.LauncherArgs) > 0 {
		add("launcher args", "%s", strings.Join(p.LauncherArgs, " "))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Set)) {
		add("set", "%s=%s", name, p.Set[name])
	}
	if len(p.Unset) > 0 {
		add("unset", "%s", strings.Join(p.Unset, " "))
	}
	if p.Cleared {
		add("environment", "not ours")
	}
	if p.Nodes > 0 {
		add("nodes", "%d", p.Nodes)
	}
	if p.Procs > 0 {
		add("procs", "%d", p.Procs)
	}
	for _, n := range p.Notes {
		add("note", "%s", n)
	}
	for _, x := range [][2]string{{"unsure", p.Unsure}, {"opaque", p.Opaque}, {"shim refused", p.ShimRefused}} {
		if x[1] != "" {
			add(x[0], "%s", x[1])
		}
	}
	return b.String()
}

// project is a folder with what the test data refers to.
func project(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"hosts":          "# two machines\nspark-1 slots=1\n\nspark-2 slots=1\n",
		"one.yaml":       "compute_environment: LOCAL_MACHINE\nnum_machines: 1\nnum_processes: 2\nmixed_precision: bf16\n",
		"two.yaml":       "machine_rank: 0\nnum_machines: '2'\nnum_processes: 2\n",
		"train.sh":       "#!/bin/bash\npython train.py\n",
		"go":             "#!/usr/bin/env bash\npython train.py\n",
		"run.py":         "#!/usr/bin/env python3\n",
		"pixi.toml":      "[tasks]\ntrain = \"python train.py\"\n[feature.gpu.tasks]\nbig = {cmd = \"python big.py\"}\n",
		"pyproject.toml": "[tool.pdm.scripts]\nfit = \"python fit.py\"\n[tool.hatch.envs.gpu.scripts]\nfit = \"python fit.py\"\n",
		"job.env":        "# tracker\nWANDB_PROJECT=spark\nHF_HOME\nPYTHONPATH=/opt/lib\n",
		"sub/keep":       "",
	} {
		write(t, filepath.Join(root, name), text, 0o644)
	}
	return root
}

func write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// TestCommands takes apart the command lines of testdata/commands.txt: "$ " and a
// command line, environment in front of it as NAME=VALUE, and what is found in it.
// ROOT is the folder the command starts in. Each is also put together again,
// unchanged and with other words.
func TestCommands(t *testing.T) {
	t.Parallel()
	const file = "testdata/commands.txt"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tab, root := table(t), project(t)
	var out bytes.Buffer
	n := 0
	for _, line := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(line, "#") || line == "" {
			fmt.Fprintln(&out, line)
			continue
		}
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		n++
		words := split(t, strings.ReplaceAll(command, "ROOT", root))
		env := map[string]string{"HOME": "/home/me", "PATH": "/usr/bin:/bin"}
		for len(words) > 0 && assignment.MatchString(words[0]) {
			name, value, _ := strings.Cut(words[0], "=")
			env[name] = value
			words = words[1:]
		}
		p := tab.Find(words, root, env)
		fmt.Fprintf(&out, "%s\n%s", line, summary(p, root))
		checkCommand(t, tab, p, words, root, env)
	}
	if n < 80 {
		t.Errorf("only %d command lines", n)
	}
	got := bytes.TrimRight(out.Bytes(), "\n")
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := string(data); string(got) != want {
		g, w := strings.Split(string(got), "\n"), strings.Split(want, "\n")
		for i := range g {
			if i >= len(w) || g[i] != w[i] {
				t.Fatalf("%s:%d: got\n%s\nwant\n%s", file, i+1, strings.Join(g[max(0, i-3):min(len(g), i+4)], "\n"),
					strings.Join(w[max(0, min(i, len(w))-3):min(len(w), i+4)], "\n"))
			}
		}
		t.Fatalf("%s has more lines than there should be", file)
	}
}

// checkCommand puts a command together again.
func checkCommand(t *testing.T, tab *Table, p *Place, words []string, root string, env map[string]string) {
	t.Helper()
	argv, hostEnv, err := p.Command(p.Words, nil, nil)
	if err != nil || !slices.Equal(argv, words) || len(hostEnv) > 0 {
		t.Errorf("%q: unchanged it becomes %q, %q, %v", words, argv, hostEnv, err)
	}
	if !p.Seen() {
		return
	}
	changed := append(slices.Clone(p.Words), "--learning_rate", "it's 5e-5", "--bf16=true")
	changed[p.Args-1] += "x.py"
	argv, _, err = p.Command(changed, nil, nil)
	if err != nil {
		t.Errorf("%q: %v", words, err)
		return
	}
	again := tab.Find(argv, root, env)
	if !slices.Equal(again.Words, changed) || !slices.Equal(again.Launchers, p.Launchers) || again.Args != p.Args {
		t.Errorf("%q becomes %q, in which %q is found behind %q, not %q", words, argv, again.Words, again.Launchers, changed)
	}
	// The shim's environment reaches the trainer, or it is said that it does not.
	argv, hostEnv, err = p.Command(p.Words, []string{"PYTHONPATH=/run/shim", "SPARKRUN_SHIM_PLAN=/run/plan.json"}, nil)
	if (err != nil) != (p.ShimRefused != "") && p.Container == nil && p.Python == "" {
		t.Errorf("%q: %v, but shim refused: %q", words, err, p.ShimRefused)
	}
	if err != nil {
		return
	}
	given := maps.Clone(env)
	maps.Copy(given, Environ(hostEnv))
	again = tab.Find(argv, root, given)
	around := again.Surroundings(given)
	if !strings.HasPrefix(around["PYTHONPATH"]+":", "/run/shim:") || around["SPARKRUN_SHIM_PLAN"] != "/run/plan.json" {
		t.Errorf("%q becomes %q, where the trainer gets PYTHONPATH=%s", words, argv, around["PYTHONPATH"])
	}
	if !slices.Equal(again.Words, p.Words) {
		t.Errorf("%q becomes %q with environment: other words", words, argv)
	}
}
