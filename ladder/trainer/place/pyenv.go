package place

import (
	"fmt"
	"os"
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
	if executable(filepath.Join(bin, "python")) == "" {
		return ""
	}
	return bin
}

// venv returns the folder of programs of the project's .venv, as uv finds it.
func (f *finder) venv() string {
	around := f.around()
	if root := around["UV_PROJECT_ENVIRONMENT"]; root != "" {
		return f.pythonIn(root)
	}
	for d := f.p.Dir; d != ""; d = filepath.Dir(d) {
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
	for line := range strings.Lines(string(readHead(file, maxProject))) {
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
	var roots []string
	if root := around["MAMBA_ROOT_PREFIX"]; root != "" {
		roots = append(roots, root)
	}
	for _, exe := range []string{around["CONDA_EXE"], lookPath(program, around["PATH"], f.p.Dir)} {
		if exe == "" {
			continue
		}
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		roots = append(roots, filepath.Dir(filepath.Dir(exe)))
	}
	if home := around["HOME"]; home != "" {
		for _, d := range []string{"miniforge3", "miniconda3", "anaconda3", "micromamba", ".conda"} {
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
		file, path, _ := strings.Cut(t, ":")
		for d := f.p.Dir; d != ""; d = filepath.Dir(d) {
			data := readHead(filepath.Join(d, file), maxProject)
			if data != nil {
				var doc map[string]any
				if err := toml.Unmarshal(data, &doc); err != nil {
					return fmt.Sprintf("%s cannot be read, so %s may be a task of %s: %v", filepath.Join(d, file), word, pre.Name, err)
				}
				if hasKey(doc, strings.Split(path, "."), word) {
					return fmt.Sprintf("%s is a task of %s (%s): what it starts is not seen", word, pre.Name, filepath.Join(d, file))
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

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
