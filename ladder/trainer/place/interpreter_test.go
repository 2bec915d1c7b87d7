package place

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestInterpreter(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	py := func(path string) string {
		path = filepath.Join(root, path)
		write(t, path, "", 0o755)
		return path
	}
	sys, venv, uv := py("usr/bin/python"), py("venv/bin/python"), py("proj/.venv/bin/python")
	conda, sub := py("conda/envs/trl/bin/python"), py("proj/sub/bin/python")
	base := py("conda/bin/python")
	write(t, filepath.Join(root, "conda/bin/conda"), "#!"+base+"\n", 0o755)
	write(t, filepath.Join(root, "venv/bin/activate"), "", 0o644)
	write(t, filepath.Join(root, "usr/bin/trl"), "#!"+venv+"\n", 0o755)
	write(t, filepath.Join(root, "usr/bin/tune"), "#!/usr/bin/env -S python -u\n", 0o755)
	write(t, filepath.Join(root, "usr/bin/torchrun"), "#!/bin/sh\n'''exec' \""+venv+"\" \"$0\" \"$@\"\n' '''\n", 0o755)
	write(t, filepath.Join(root, "usr/bin/tool"), "#!/bin/bash\n", 0o755)
	write(t, filepath.Join(root, "proj/t.py"), "#!/usr/bin/env python\n", 0o755)
	write(t, filepath.Join(root, "proj/inline.py"), "# /// script\n# dependencies = [\"trl\"]\n# ///\n", 0o644)
	pyenv := py(".pyenv/versions/3.11/bin/python")
	write(t, filepath.Join(root, ".pyenv/shims/python"), "#!/usr/bin/env bash\nexec pyenv exec python\n", 0o755)
	write(t, filepath.Join(root, "proj/.python-version"), "3.11\n", 0o644)

	path := filepath.Join(root, "usr/bin")
	cases := []struct{ line, path, want string }{
		{line: "python t.py", want: sys},
		{line: "env PATH=ROOT/venv/bin python t.py", want: venv},
		{line: "env -i PATH=ROOT/venv/bin python t.py", want: venv},
		{line: "ROOT/venv/bin/python t.py", want: venv},
		{line: "env -C sub bin/python ../t.py", want: sub},
		{line: "trl sft", want: venv},
		{line: "tune run", want: sys},
		{line: "torchrun t.py", want: venv},
		{line: "python -m torch.distributed.run t.py", want: sys},
		{line: "./t.py", want: sys},
		{line: "tool", want: ""},
		{line: "python3 t.py", want: ""},
		{line: "sudo python t.py", want: ""},
		{line: "sudo ROOT/venv/bin/python t.py", want: venv},
		{line: "docker run img python t.py", want: ""},
		{line: "uv run t.py", want: uv},
		{line: "uv run python t.py", want: uv},
		{line: "uv run --with trl t.py", want: ""},
		{line: "uv run inline.py", want: ""},
		{line: "uv run --directory / t.py", want: ""},
		{line: "env UV_PROJECT_ENVIRONMENT=ROOT/venv uv run -m mod", want: venv},
		{line: "conda run -n trl python t.py", path: "conda/bin", want: conda},
		{line: "conda run -n gone python t.py", path: "conda/bin", want: ""},
		{line: "conda run -p ROOT/conda/envs/trl python t.py", want: conda},
		{line: "bash -c 'source ROOT/venv/bin/activate && python t.py'", want: venv},
		{line: "bash -c '. ../venv/bin/activate; python t.py'", want: venv},
		{line: "bash -c 'source gone/bin/activate && python t.py'", want: ""},
		{line: "bash -c 'conda activate trl && python t.py'", path: "conda/bin", want: conda},
		{line: "bash -lc 'python t.py'", want: ""},
		{line: "bash -c 'export PATH=ROOT/venv/bin:$PATH; python t.py'", want: venv},
		{line: "bash -c 'export PATH=$(x):$PATH; python t.py'", want: ""},
		{line: "bash -c '. ROOT/venv/bin/activate; export PATH=/opt/cuda/bin:$PATH; python t.py'", want: venv},
		{line: "bash -lc 'export PATH=/opt/cuda/bin:$PATH; python t.py'", want: ""},
		{line: "bash -c 'export PATH=ROOT/venv/bin; python t.py'", want: venv},
		{line: "python t.py", path: ".pyenv/shims", want: pyenv},
		{line: "bash train.sh", want: ""},
	}
	tab := table(t)
	for _, c := range cases {
		t.Run(c.line+c.path, func(t *testing.T) {
			t.Parallel()
			words := split(t, strings.ReplaceAll(c.line, "ROOT", root))
			env := map[string]string{"PATH": path, "HOME": "/nowhere"}
			if c.path != "" {
				env["PATH"] = filepath.Join(root, c.path) + ":" + path
			}
			p := tab.Find(words, filepath.Join(root, "proj"), env)
			if got := p.Interpreter(env); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestInstalledVersion(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	python := filepath.Join(root, "bin/python")
	for _, d := range []string{"trl-0.25.1.dist-info", "trl_extra-9.dist-info", "torch-2.9.0+cu130.dist-info"} {
		write(t, filepath.Join(root, "lib/python3.12/site-packages", d, "METADATA"), "", 0o644)
	}
	for dist, want := range map[string]string{"trl": "0.25.1", "torch": "2.9.0+cu130", "gone": "", "": ""} {
		if got := InstalledVersion("", python, dist); got != want {
			t.Errorf("%s: %q, want %q", dist, got, want)
		}
	}
	if dirs := SitePackages("", python); len(dirs) != 1 || filepath.Base(dirs[0]) != "site-packages" {
		t.Errorf("%q", dirs)
	}
	if InstalledVersion("", "", "trl") != "" || SitePackages("", "") != nil {
		t.Error("no interpreter has packages")
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"0.15", "0.20", true},
		{"0.20.1", "0.20", false},
		{"0.20", "0.20.0", false},
		{"4.9", "4.45", true},
		{"2.9.0+cu130", "2.9.1", true},
		{"5.0.0rc1", "5.0.0", false},
		{"1.0.dev3", "1.0.1", true},
		{"", "1", false},
		{"x", "1", false},
		{"1", "x", false},
	} {
		if got := Older(c.a, c.b); got != c.want {
			t.Errorf("Older(%q, %q) = %v", c.a, c.b, got)
		}
	}
}
