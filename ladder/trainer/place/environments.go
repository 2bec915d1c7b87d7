package place

import (
	"crypto/sha256"
	"encoding/base64"
	"path/filepath"
	"slices"
	"strings"

	toml "github.com/pelletier/go-toml/v2"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/treefs"
)

// This file finds the environments that poetry, pipenv, pixi, hatch and others make for a
// project, by the rules of each, from names of folders and its settings: none of them is
// started, which would take a second and might install something.

// managed returns the folder of programs of the environment in which a tool starts a
// command, "" where there is none yet or it cannot be told.
func (f *finder) managed(tool string, o options) string {
	around := f.around()
	switch tool {
	case "uv":
		return f.uvEnv(o, around)
	case "poetry":
		return f.poetryEnv(o, around)
	case "pipenv":
		return f.pipenvEnv(around)
	case "pdm":
		return f.pdmEnv(o)
	case "pixi":
		return f.pixiEnv(o)
	case "hatch":
		return f.hatchEnv(o, around)
	case "pyenv":
		return f.pyenvEnv(around)
	case "conda", "mamba", "micromamba":
		// Without a name it is the environment that is switched on.
		return f.pythonIn(around["CONDA_PREFIX"])
	}
	return ""
}

// upwards returns the nearest folder, from dir on, in which one of the files lies.
func upwards(r treefs.Root, dir string, names ...string) string {
	for d := dir; filepath.IsAbs(d); d = filepath.Dir(d) {
		for _, name := range names {
			if r.IsFile(filepath.Join(d, name)) {
				return d
			}
		}
		if d == "/" {
			break
		}
	}
	return ""
}

// uvEnv is what `uv run` takes where an option leads away from the project's .venv.
func (f *finder) uvEnv(o options, around map[string]string) string {
	layered := []string{"--isolated", "--with", "-w", "--with-editable", "--with-requirements", "-p", "--python"}
	if o.on(layered) {
		return "" // an environment for this command alone
	}
	dir := f.p.Dir
	if project, ok := o.last([]string{"--project"}); ok {
		if !filepath.IsAbs(project) && dir == "" {
			return ""
		}
		dir = absolute(dir, project)
	}
	active := f.pythonIn(around["VIRTUAL_ENV"])
	project := dir != "" && upwards(f.p.root, dir, "pyproject.toml") != ""
	switch {
	case o.on([]string{"--active"}):
		return active
	case !project || o.on([]string{"--no-project"}):
		if active != "" {
			return active
		}
	}
	return f.venvOf(dir)
}

// poetryEnv follows poetry's order: the environment that is switched on, the project's
// .venv, its own folder of environments.
func (f *finder) poetryEnv(o options, around map[string]string) string {
	if bin := f.pythonIn(around["VIRTUAL_ENV"]); bin != "" {
		return bin
	}
	if prefix := around["CONDA_PREFIX"]; prefix != "" && around["CONDA_DEFAULT_ENV"] != "base" {
		if bin := f.pythonIn(prefix); bin != "" {
			return bin
		}
	}
	dir := f.p.Dir
	if project, ok := o.last([]string{"-P", "--project"}); ok {
		dir = absolute(dir, project)
	}
	root := upwards(f.p.root, dir, "pyproject.toml")
	if root == "" {
		return ""
	}
	config := poetryConfig(f.p.root, root, around)
	if config.inProject != "false" {
		if bin := f.pythonIn(filepath.Join(root, ".venv")); bin != "" || config.inProject == "true" {
			return bin
		}
	}
	name := projectName(f.p.root, root)
	if name == "" || config.path == "" {
		return ""
	}
	name = cleanName(poetryUnclean, strings.ToLower(name)) + "-" + pathHash(real(f.p.root, root))
	// Which of several Pythons was chosen last stands in envs.toml.
	var chosen map[string]struct {
		Minor string `toml:"minor"`
	}
	if data := f.p.root.Head(filepath.Join(config.path, "envs.toml"), maxProject); data != nil && toml.Unmarshal(data, &chosen) == nil {
		if minor := chosen[name].Minor; minor != "" {
			return f.pythonIn(filepath.Join(config.path, name+"-py"+minor))
		}
	}
	return f.onlyOne(filepath.Join(config.path, name+"-py*"))
}

// onlyOne is the one environment that a pattern fits; of several none can be told.
func (f *finder) onlyOne(pattern string) string {
	found := f.p.root.Glob(pattern)
	if len(found) != 1 {
		return ""
	}
	return f.pythonIn(found[0])
}

type poetrySettings struct {
	// path is the folder of environments, inProject true, false or "" for not told.
	path, inProject string
}

// poetryConfig reads poetry's settings: the environment, the project's poetry.toml, the
// user's config.toml.
func poetryConfig(r treefs.Root, root string, around map[string]string) poetrySettings {
	home := around["HOME"]
	config := poetrySettings{path: around["POETRY_VIRTUALENVS_PATH"], inProject: strings.ToLower(around["POETRY_VIRTUALENVS_IN_PROJECT"])}
	if config.inProject == "1" {
		config.inProject = "true"
	}
	cache := around["POETRY_CACHE_DIR"]
	user := around["POETRY_CONFIG_DIR"]
	if user == "" {
		user = filepath.Join(xdg(around, "XDG_CONFIG_HOME", ".config"), "pypoetry")
	}
	for _, file := range []string{filepath.Join(root, "poetry.toml"), filepath.Join(user, "config.toml")} {
		var doc struct {
			CacheDir    string `toml:"cache-dir"`
			VirtualEnvs struct {
				InProject any    `toml:"in-project"`
				Path      string `toml:"path"`
			} `toml:"virtualenvs"`
		}
		if data := r.Head(file, maxProject); data == nil || toml.Unmarshal(data, &doc) != nil {
			continue
		}
		if b, ok := doc.VirtualEnvs.InProject.(bool); ok && config.inProject == "" {
			config.inProject = map[bool]string{true: "true", false: "false"}[b]
		}
		if config.path == "" {
			config.path = doc.VirtualEnvs.Path
		}
		if cache == "" {
			cache = doc.CacheDir
		}
	}
	if cache == "" {
		cache = filepath.Join(xdg(around, "XDG_CACHE_HOME", ".cache"), "pypoetry")
	}
	if config.path == "" {
		config.path = "{cache-dir}/virtualenvs"
	}
	config.path = strings.ReplaceAll(config.path, "{cache-dir}", cache)
	if rest, ok := strings.CutPrefix(config.path, "~/"); ok {
		config.path = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(config.path) {
		config.path = ""
	}
	return config
}

// xdg is one of the user's folders.
func xdg(around map[string]string, name, below string) string {
	if dir := around[name]; filepath.IsAbs(dir) {
		return dir
	}
	if home := around["HOME"]; filepath.IsAbs(home) {
		return filepath.Join(home, below)
	}
	return ""
}

// pipenvEnv follows pipenv: what is switched on, the project's .venv, its own folder.
func (f *finder) pipenvEnv(around map[string]string) string {
	if around["PIPENV_IGNORE_VIRTUALENVS"] == "" {
		if bin := f.pythonIn(around["VIRTUAL_ENV"]); bin != "" {
			return bin
		}
	}
	file := around["PIPENV_PIPFILE"]
	if file == "" {
		if root := upwards(f.p.root, f.p.Dir, "Pipfile"); root != "" {
			file = filepath.Join(root, "Pipfile")
		}
	}
	file = absolute(f.p.Dir, file)
	root := filepath.Dir(file)
	if !f.p.root.IsFile(file) || !filepath.IsAbs(root) {
		return ""
	}
	dot := filepath.Join(root, ".venv")
	if bin := f.pythonIn(dot); bin != "" {
		return bin
	}
	home := around["WORKON_HOME"]
	if home == "" {
		home = filepath.Join(xdg(around, "XDG_DATA_HOME", ".local/share"), "virtualenvs")
	}
	if !filepath.IsAbs(home) {
		return ""
	}
	// .venv may be a file with the name or path of the environment.
	if text := strings.TrimSpace(string(f.p.root.Head(dot, 4096))); text != "" {
		if strings.Contains(text, "/") {
			return f.pythonIn(absolute(root, text))
		}
		return f.pythonIn(filepath.Join(home, text))
	}
	name := around["PIPENV_CUSTOM_VENV_NAME"]
	if name == "" {
		name = cleanName(pipenvUnclean, filepath.Base(root)) + "-" + pathHash(file)
		if python := around["PIPENV_PYTHON"]; python != "" {
			name += "-" + filepath.Base(python)
		}
	}
	return f.pythonIn(filepath.Join(home, name))
}

// pdmEnv is the Python that pdm has noted for the project.
func (f *finder) pdmEnv(o options) string {
	if o.on([]string{"--venv"}) {
		return ""
	}
	dir := f.p.Dir
	if project, ok := o.last([]string{"-p", "--project"}); ok {
		dir = absolute(dir, project)
	}
	root := upwards(f.p.root, dir, ".pdm-python", "pyproject.toml")
	if root == "" {
		return ""
	}
	python := strings.TrimSpace(string(f.p.root.Head(filepath.Join(root, ".pdm-python"), 4096)))
	if !filepath.IsAbs(python) || executable(f.p.root, python) == "" {
		return f.pythonIn(filepath.Join(root, ".venv"))
	}
	return filepath.Dir(python)
}

// pixiEnv is one of the project's environments below .pixi.
func (f *finder) pixiEnv(o options) string {
	name, ok := o.last([]string{"-e", "--environment"})
	if !ok {
		name = "default"
	}
	root := upwards(f.p.root, f.p.Dir, "pixi.toml", "pyproject.toml")
	if manifest, ok := o.last([]string{"--manifest-path", "-m"}); ok {
		if root = absolute(f.p.Dir, manifest); !f.p.root.IsDir(root) {
			root = filepath.Dir(root)
		}
	}
	if !filepath.IsAbs(root) || name == "" || strings.Contains(name, "/") {
		return ""
	}
	return f.pythonIn(filepath.Join(root, ".pixi", "envs", name))
}

// hatchEnv is one of hatch's virtual environments, in its folder of data or the project's.
func (f *finder) hatchEnv(o options, around map[string]string) string {
	env, ok := o.last([]string{"-e", "--env"})
	if !ok {
		if env = around["HATCH_ENV"]; env == "" {
			env = "default"
		}
	}
	dir := f.p.Dir
	root := upwards(f.p.root, dir, "pyproject.toml", "hatch.toml")
	if root == "" || strings.Contains(env, "/") {
		return ""
	}
	name := projectName(f.p.root, root)
	if name == "" {
		return ""
	}
	// Names of projects are compared in this form.
	name = strings.ToLower(separators.ReplaceAllString(name, "-"))
	venv := env
	if env == "default" {
		venv = name
	}
	data, ok := o.last([]string{"--data-dir"})
	if !ok {
		if data = around["HATCH_DATA_DIR"]; data == "" {
			data = filepath.Join(xdg(around, "XDG_DATA_HOME", ".local/share"), "hatch")
		}
	}
	for _, place := range []string{
		around["HATCH_ENV_TYPE_VIRTUAL_PATH"],
		filepath.Join(data, "env", "virtual", name, pathHash(root), venv),
		filepath.Join(root, ".hatch", venv),
	} {
		if filepath.IsAbs(place) {
			if bin := f.pythonIn(place); bin != "" {
				return bin
			}
		}
	}
	return ""
}

// pyenvEnv is the version that `pyenv exec` takes.
func (f *finder) pyenvEnv(around map[string]string) string {
	root := around["PYENV_ROOT"]
	if root == "" && around["HOME"] != "" {
		root = filepath.Join(around["HOME"], ".pyenv")
	}
	if root == "" {
		return ""
	}
	shim := executable(f.p.root, filepath.Join(root, "shims", "python"))
	if shim == "" {
		return ""
	}
	python := unshim(f.p.root, shim, around, around["PATH"], f.p.Dir)
	if python == shim {
		return ""
	}
	return filepath.Dir(python)
}

// toolPython is the Python of a program that uvx runs, where the program is installed as
// a tool: uvx takes that unless it is asked for something else.
func (p *Place) toolPython(around map[string]string) string {
	n := slices.IndexFunc(p.layers, func(l layer) bool { return l.name == "uvx" })
	if n < 0 || p.Python != "" || p.Program == "" || strings.ContainsAny(p.Program, "/@") {
		return ""
	}
	name := p.Program
	head := p.layers[n].head
	for i, w := range head {
		option, value, inline := strings.Cut(w, "=")
		switch option {
		case "--from":
			if name = value; !inline {
				if i+1 >= len(head) {
					return ""
				}
				name = head[i+1]
			}
		case "--isolated", "--with", "-w", "--with-editable", "--with-requirements", "-p", "--python":
			return ""
		}
	}
	if !toolName.MatchString(name) {
		return "" // a version, a folder, an address
	}
	dir := around["UV_TOOL_DIR"]
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(xdg(around, "XDG_DATA_HOME", ".local/share"), "uv", "tools")
	}
	if !filepath.IsAbs(dir) {
		return ""
	}
	return executable(p.root, filepath.Join(dir, strings.ToLower(separators.ReplaceAllString(name, "-")), "bin", "python"))
}

var (
	toolName      = lazyre.New(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	separators    = lazyre.New(`[-_.]+`)
	poetryUnclean = lazyre.New("[ $`!*@\"\\\\\r\n\t]")
	pipenvUnclean = lazyre.New("[ &$`!*@\"()\\[\\]\\\\\r\n\t]")
)

// cleanName is the readable part of an environment's name.
func cleanName(unclean *lazyre.RE, name string) string {
	name = unclean.ReplaceAllString(name, "_")
	if r := []rune(name); len(r) > 42 {
		name = string(r[:42])
	}
	return name
}

// pathHash is the other part: eight letters of the hash of a path.
func pathHash(path string) string {
	sum := sha256.Sum256([]byte(path))
	return base64.URLEncoding.EncodeToString(sum[:])[:8]
}

// real follows links, as far as the path exists.
func real(r treefs.Root, path string) string {
	if p, err := r.Real(path); err == nil {
		return p
	}
	return path
}

// projectName is the name that a project file gives the project.
func projectName(r treefs.Root, root string) string {
	var doc struct {
		Project struct{ Name string }
		Tool    struct{ Poetry struct{ Name string } }
	}
	data := r.Head(filepath.Join(root, "pyproject.toml"), maxProject)
	if data == nil || toml.Unmarshal(data, &doc) != nil {
		return ""
	}
	if doc.Tool.Poetry.Name != "" {
		return doc.Tool.Poetry.Name
	}
	return doc.Project.Name
}
