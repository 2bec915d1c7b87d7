package place

import (
	"fmt"
	"path/filepath"
	"strings"

	toml "github.com/pelletier/go-toml/v2"
)

// path applies what a prefix does to PATH: a virtual or conda environment that is
// there is put first, another PATH that is not known is said to be so.
func (f *finder) path(pre *front, o options) {
	p := f.p
	bin := ""
	if p.Container == nil {
		name, byName := o.last(pre.EnvName)
		prefix, byPrefix := o.last(pre.EnvPrefix)
		switch {
		case byPrefix:
			bin = f.pythonIn(prefix)
		case byName:
			bin = f.condaEnv(pre.Name, name)
		case pre.Venv && !o.on(pre.VenvUnless):
			bin = f.venv()
		}
		if bin == "" && !byPrefix && !byName {
			bin = f.managed(pre.Name, o)
		}
	}
	switch {
	case bin != "":
		p.first, p.OtherPath = bin, false
	case pre.OtherPath:
		p.first, p.OtherPath = "", true
	}
}

// pythonIn returns the folder of programs of a Python environment, "" if there is
// none.
func (f *finder) pythonIn(root string) string {
	if root == "" || (!filepath.IsAbs(root) && f.p.Dir == "") {
		return ""
	}
	bin := filepath.Join(absolute(f.p.Dir, root), "bin")
	if executable(f.p.root, filepath.Join(bin, "python")) == "" {
		return ""
	}
	return bin
}

// venv returns the folder of programs of the project's .venv, as uv finds it.
func (f *finder) venv() string { return f.venvOf(f.p.Dir) }

// venvOf is venv for a project that a folder lies in. A relative
// UV_PROJECT_ENVIRONMENT starts at the project's root.
func (f *finder) venvOf(dir string) string {
	around := f.around()
	if env := around["UV_PROJECT_ENVIRONMENT"]; env != "" {
		root := dir
		if project := upwards(f.p.root, dir, "pyproject.toml"); project != "" && !filepath.IsAbs(env) {
			root = project
		}
		if root == "" && !filepath.IsAbs(env) {
			return ""
		}
		return f.pythonIn(absolute(root, env))
	}
	for d := dir; d != ""; d = filepath.Dir(d) {
		if bin := f.pythonIn(filepath.Join(d, ".venv")); bin != "" {
			return bin
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	return ""
}

// inline says whether the script names its own packages (PEP 723): uv makes an
// environment for it alone.
func (f *finder) inline() bool {
	file, ok := f.p.HostPath(f.p.Script)
	if !ok {
		return false
	}
	for line := range strings.Lines(string(f.p.root.For(file).Head(file, maxProject))) {
		if strings.TrimRight(line, " \r\n") == "# /// script" {
			return true
		}
	}
	return false
}

// condaEnv returns the folder of programs of a conda environment by its name.
func (f *finder) condaEnv(program, name string) string {
	if strings.Contains(name, "/") {
		return f.pythonIn(name)
	}
	around := f.around()
	home := around["HOME"]
	for _, list := range []string{around["CONDA_ENVS_PATH"], around["CONDA_ENVS_DIRS"]} {
		for _, dir := range strings.FieldsFunc(list, func(r rune) bool { return r == ':' || r == ',' }) {
			if bin := f.pythonIn(filepath.Join(dir, name)); bin != "" {
				return bin
			}
		}
	}
	var roots []string
	if root := around["MAMBA_ROOT_PREFIX"]; root != "" {
		roots = append(roots, root)
	}
	for _, exe := range []string{around["CONDA_EXE"], around["MAMBA_EXE"], lookPath(f.p.root, program, around["PATH"], f.p.Dir)} {
		if exe == "" {
			continue
		}
		if real, err := f.p.root.Real(exe); err == nil {
			exe = real
		}
		roots = append(roots, filepath.Dir(filepath.Dir(exe)))
	}
	if home != "" {
		for _, d := range []string{"miniforge3", "mambaforge", "miniconda3", "anaconda3", "micromamba", ".local/share/mamba", ".conda"} {
			roots = append(roots, filepath.Join(home, d))
		}
	}
	for _, root := range roots {
		env := filepath.Join(root, "envs", name)
		if name == "base" || name == "root" {
			env = root
		}
		if bin := f.pythonIn(env); bin != "" {
			return bin
		}
	}
	if home == "" {
		return ""
	}
	// conda notes every environment that it has made, wherever it lies.
	for line := range strings.Lines(string(f.p.root.Head(filepath.Join(home, ".conda", "environments.txt"), maxProject))) {
		if env := strings.TrimSpace(line); filepath.IsAbs(env) && filepath.Base(env) == name && filepath.Base(filepath.Dir(env)) == "envs" {
			if bin := f.pythonIn(env); bin != "" {
				return bin
			}
		}
	}
	return ""
}

// maxProject bounds a project file: the largest seen have some tens of KiB.
const maxProject = 1 << 20

// task says why the first word may be no program but a task of the project.
func (f *finder) task(pre *front, rest []string) string {
	if len(rest) == 0 {
		return ""
	}
	word := rest[0]
	if pre.Prefixed != "" && strings.Contains(word, pre.Prefixed) && !strings.Contains(word, "/") {
		return fmt.Sprintf("%s runs %s in an environment of that name, which is not looked into", pre.Name, word)
	}
	if len(pre.Tasks) == 0 || strings.Contains(word, "/") {
		return ""
	}
	if f.p.Container != nil && f.p.Dir == "" {
		return ""
	}
	for _, t := range pre.Tasks {
		file, keys, _ := strings.Cut(t, ":")
		for d := f.p.Dir; d != ""; d = filepath.Dir(d) {
			path := filepath.Join(d, file)
			data := f.p.root.For(path).Head(path, maxProject)
			if data != nil {
				var doc map[string]any
				if err := toml.Unmarshal(data, &doc); err != nil {
					return fmt.Sprintf("%s cannot be read, so %s may be a task of %s: %v", path, word, pre.Name, err)
				}
				if hasKey(doc, strings.Split(keys, "."), word) {
					return fmt.Sprintf("%s is a task of %s (%s): what it starts is not seen", word, pre.Name, path)
				}
				break
			}
			if d == filepath.Dir(d) {
				break
			}
		}
	}
	return ""
}

// hasKey says whether the table at path, where * is any key, has the key.
func hasKey(v any, path []string, key string) bool {
	m, ok := v.(map[string]any)
	if !ok {
		return false
	}
	if len(path) == 0 {
		_, ok := m[key]
		return ok
	}
	if path[0] != "*" {
		return hasKey(m[path[0]], path[1:], key)
	}
	for _, next := range m {
		if hasKey(next, path[1:], key) {
			return true
		}
	}
	return false
}

// absolute joins a path to the folder it is relative to.
func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
