package place

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The names were compared with those that poetry 2.5.1, pipenv 2026.10.3 and hatch 1.18.2
// made.
func TestPathHash(t *testing.T) {
	t.Parallel()
	// By Python's hashlib and base64.
	if got := pathHash("/home/ada/project"); got != "a_r9kkbP" {
		t.Errorf("%q", got)
	}
	if got := cleanName(poetryUnclean, "my $proj"); got != "my__proj" {
		t.Errorf("%q", got)
	}
	if got := cleanName(pipenvUnclean, "a(b)[c] "+strings.Repeat("x", 60)); got != "a_b__c__"+strings.Repeat("x", 34) {
		t.Errorf("%q", got)
	}
}

// Every tool's environment is found where the tool keeps it, and none where it would
// make one.
func TestManagedInterpreter(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in := func(path ...string) string { return filepath.Join(append([]string{root}, path...)...) }
	py := func(path ...string) string {
		path = append(path, "bin", "python")
		write(t, in(path...), "", 0o755)
		return in(path...)
	}
	project := func(name, file, text string) string {
		write(t, in(name, file), text, 0o644)
		if err := os.MkdirAll(in(name, "src"), 0o755); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	cache, data := in("home/.cache/pypoetry/virtualenvs"), in("home/.local/share")
	rel := func(path string) string { return strings.TrimPrefix(path, root+"/") }

	po := project("po", "pyproject.toml", "[tool.poetry]\nname = \"My Proj\"\n")
	poetry := py(rel(cache), "my_proj-"+pathHash(po)+"-py3.12")
	two := project("two", "pyproject.toml", "[project]\nname = \"two\"\n")
	py(rel(cache), "two-"+pathHash(two)+"-py3.11")
	chosen := py(rel(cache), "two-"+pathHash(two)+"-py3.12")
	write(t, filepath.Join(cache, "envs.toml"), "[two-"+pathHash(two)+"]\nminor = \"3.12\"\npatch = \"3.12.3\"\n", 0o644)
	several := project("several", "pyproject.toml", "[project]\nname = \"several\"\n")
	py(rel(cache), "several-"+pathHash(several)+"-py3.11")
	py(rel(cache), "several-"+pathHash(several)+"-py3.12")
	inproj := project("inproj", "pyproject.toml", "[project]\nname = \"inproj\"\n")
	inside := py("inproj/.venv")
	elsewhere := project("else", "pyproject.toml", "[project]\nname = \"else\"\n")
	write(t, filepath.Join(elsewhere, "poetry.toml"), "cache-dir = \""+in("pc")+"\"\n[virtualenvs]\nin-project = false\n", 0o644)
	py("else/.venv")
	other := py("pc/virtualenvs", "else-"+pathHash(elsewhere)+"-py3.13")
	torn := project("torn", "pyproject.toml", "[project\nname = 3")

	pip := project("pip (1)", "Pipfile", "")
	pipenv := py(rel(data), "virtualenvs", "pip__1_-"+pathHash(filepath.Join(pip, "Pipfile")))
	named := project("named", "Pipfile", "")
	write(t, filepath.Join(named, ".venv"), "shared\n", 0o644)
	shared := py(rel(data), "virtualenvs/shared")

	pdm := project("pdm", "pyproject.toml", "[project]\nname=\"pdm\"\n")
	noted := py("pythons/3.12")
	write(t, filepath.Join(pdm, ".pdm-python"), noted+"\n", 0o644)

	pixi := project("pixi", "pixi.toml", "")
	pixiDefault, pixiGPU := py("pixi/.pixi/envs/default"), py("pixi/.pixi/envs/gpu")

	hatch := project("hatch", "pyproject.toml", "[project]\nname=\"My_Hatch\"\n")
	hatchDefault := py(rel(data), "hatch/env/virtual/my-hatch", pathHash(hatch), "my-hatch")
	hatchGPU := py(rel(data), "hatch/env/virtual/my-hatch", pathHash(hatch), "gpu")

	uvx := py(rel(data), "uv/tools/trl")
	axolotl := py(rel(data), "uv/tools/axolotl-cli")

	v39 := py("home/.pyenv/versions/3.9.18")
	py("home/.pyenv/versions/3.11.7")
	v3110 := py("home/.pyenv/versions/3.11.10")
	write(t, in("home/.pyenv/shims/python"), "#!/usr/bin/env bash\nexec pyenv exec python\n", 0o755)
	write(t, in("home/.pyenv/version"), "3.11\n", 0o644)
	old := project("old", ".python-version", "3.9.18\n")

	condaNamed, condaNoted := py("envs/x"), py("far/envs/noted")
	write(t, in("home/.conda/environments.txt"), in("gone/envs/noted")+"\n"+in("far/envs/noted")+"\n", 0o644)
	active := py("active")

	member := project("ws", "pyproject.toml", "[project]\nname=\"ws\"\n")
	workspace := py("ws/envs/gpu")
	plain := in("plain")
	if err := os.MkdirAll(plain, 0o755); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct{ line, dir, env, want string }{
		{line: "poetry run python t.py", dir: po, want: poetry},
		{line: "poetry run python t.py", dir: po + "/src", want: poetry},
		{line: "poetry -C ROOT/po run python t.py", dir: plain, want: poetry},
		{line: "poetry run python t.py", dir: po, env: "VIRTUAL_ENV=ROOT/active", want: active},
		{line: "poetry run python t.py", dir: po, env: "CONDA_PREFIX=ROOT/active CONDA_DEFAULT_ENV=base", want: poetry},
		{line: "poetry run python t.py", dir: two, want: chosen},
		{line: "poetry run python t.py", dir: several, want: ""},
		{line: "poetry run python t.py", dir: inproj, want: inside},
		{line: "poetry run python t.py", dir: elsewhere, want: other},
		{line: "poetry run python t.py", dir: torn, want: ""},
		{line: "poetry run python t.py", dir: plain, want: ""},
		{line: "poetry run python t.py", dir: po, env: "POETRY_VIRTUALENVS_PATH=ROOT/nothing", want: ""},
		{line: "pipenv run python t.py", dir: pip, want: pipenv},
		{line: "pipenv run python t.py", dir: pip + "/src", want: pipenv},
		{line: "pipenv run python t.py", dir: named, want: shared},
		{line: "pipenv run python t.py", dir: pip, env: "PIPENV_PYTHON=3.9", want: ""},
		{line: "pdm run python t.py", dir: pdm, want: noted},
		{line: "pdm run t.py", dir: pdm, want: noted},
		{line: "pixi run python t.py", dir: pixi, want: pixiDefault},
		{line: "pixi run -e gpu python t.py", dir: pixi + "/src", want: pixiGPU},
		{line: "pixi run -e gone python t.py", dir: pixi, want: ""},
		{line: "pixi run --manifest-path ROOT/pixi/pixi.toml python t.py", dir: plain, want: pixiDefault},
		{line: "hatch run python t.py", dir: hatch, want: hatchDefault},
		{line: "hatch -e gpu run python t.py", dir: hatch, want: hatchGPU},
		{line: "hatch run python t.py", dir: plain, want: ""},
		{line: "uvx trl sft --model x", dir: plain, want: uvx},
		{line: "uvx --from axolotl_cli axolotl train x.yaml", dir: plain, want: axolotl},
		{line: "uvx --with torch trl sft", dir: plain, want: ""},
		{line: "uvx trl@0.20 sft", dir: plain, want: ""},
		{line: "uvx gone sft", dir: plain, want: ""},
		{line: "pyenv exec python t.py", dir: plain, want: v3110},
		{line: "pyenv exec python t.py", dir: old, want: v39},
		{line: "conda run -n x python t.py", dir: plain, env: "CONDA_ENVS_PATH=ROOT/nowhere:ROOT/envs", want: condaNamed},
		{line: "conda run -n noted python t.py", dir: plain, want: condaNoted},
		{line: "micromamba run python t.py", dir: plain, env: "CONDA_PREFIX=ROOT/active", want: active},
		{line: "uv run --project ROOT/inproj t.py", dir: plain, want: inside},
		{line: "uv run --active t.py", dir: inproj, env: "VIRTUAL_ENV=ROOT/active", want: active},
		{line: "uv run t.py", dir: inproj, env: "VIRTUAL_ENV=ROOT/active", want: inside},
		{line: "uv run t.py", dir: plain, env: "VIRTUAL_ENV=ROOT/active", want: active},
		{line: "uv run --with trl t.py", dir: inproj, env: "VIRTUAL_ENV=ROOT/active", want: ""},
		{line: "uv run t.py", dir: member + "/src", env: "UV_PROJECT_ENVIRONMENT=envs/gpu", want: workspace},
	} {
		t.Run(c.line+" in "+rel(c.dir)+" "+c.env, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"PATH": "/nowhere", "HOME": in("home")}
			for _, kv := range strings.Fields(strings.ReplaceAll(c.env, "ROOT", root)) {
				name, value, _ := strings.Cut(kv, "=")
				env[name] = value
			}
			p := table(t).Find(split(t, strings.ReplaceAll(c.line, "ROOT", root)), c.dir, env)
			if got := p.Interpreter(env); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
