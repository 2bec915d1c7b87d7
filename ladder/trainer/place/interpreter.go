package place

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/treefs"
)

// Environ turns NAME=value words into a map; the last one wins, as it does in
// the C library's putenv but not in every getenv: such an environment is broken
// anyway.
func Environ(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			m[name] = value
		}
	}
	return m
}

// lookPath finds a program as execvp would on that PATH, from that folder. It
// returns "" if there is none.
func lookPath(r treefs.Root, name, path, dir string) string {
	if name == "" {
		return ""
	}
	if strings.Contains(name, "/") {
		return executable(r, absolute(dir, name))
	}
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = "."
		}
		if found := executable(r, filepath.Join(absolute(dir, d), name)); found != "" {
			return found
		}
	}
	return ""
}

func executable(r treefs.Root, path string) string {
	if !r.Executable(path) {
		return ""
	}
	return path
}

// Interpreter returns the absolute path of the Python that runs the trainer,
// unresolved: a virtual environment is known by the path of its symlink. It is ""
// where there is none, or where it lies in a container. env is what the command
// is started with.
func (p *Place) Interpreter(env map[string]string) string {
	if p.Container != nil || p.Unsure != "" {
		return ""
	}
	around := p.Surroundings(env)
	path, ok := around["PATH"]
	if !ok {
		path = "/bin:/usr/bin" // what execvp takes without one
	}
	if p.first != "" {
		path = p.first + string(filepath.ListSeparator) + path
	}
	if python := p.toolPython(around); python != "" {
		return python
	}
	look := func(word string) string {
		relative := !filepath.IsAbs(word)
		if relative && (p.OtherPath && !strings.Contains(word, "/") || p.Dir == "") {
			return ""
		}
		return lookPath(p.root, word, path, p.Dir)
	}
	if p.Python != "" {
		return unshim(p.root, look(p.Python), around, path, p.Dir)
	}
	if p.anyPython {
		if p.first == "" {
			return ""
		}
		return executable(p.root, filepath.Join(p.first, "python"))
	}
	word := p.Program
	switch {
	case p.via != "":
		word = p.via
	case word == "":
		word = p.Script
	}
	file := look(word)
	if file == "" {
		return ""
	}
	python := shebang(p.root.For(file), file)
	if python == "" {
		return ""
	}
	return unshim(p.root, look(python), around, path, p.Dir)
}

// unshim returns the interpreter behind a shim of pyenv, a shell script that
// picks a version by PYENV_VERSION, the nearest .python-version or the global
// one. Where it cannot follow, it returns the shim.
func unshim(r treefs.Root, file string, env map[string]string, path, dir string) string {
	shims := filepath.Dir(file)
	if filepath.Base(shims) != "shims" || !bytes.Contains(r.Head(file, 1024), []byte("pyenv")) {
		return file
	}
	root := filepath.Dir(shims)
	versions := env["PYENV_VERSION"]
	for d := dir; versions == "" && d != ""; d = filepath.Dir(d) {
		versions = string(r.Head(filepath.Join(d, ".python-version"), 1024))
		if d == filepath.Dir(d) {
			break
		}
	}
	if strings.TrimSpace(versions) == "" {
		versions = string(r.Head(filepath.Join(root, "version"), 1024))
	}
	if strings.TrimSpace(versions) == "" {
		versions = "system"
	}
	name := filepath.Base(file)
	for _, v := range strings.FieldsFunc(versions, func(r rune) bool { return r == ':' || r == ' ' || r == '\n' || r == '\r' }) {
		if v == "system" {
			var others []string
			for _, d := range filepath.SplitList(path) {
				if absolute(dir, d) != shims {
					others = append(others, d)
				}
			}
			if found := lookPath(r, name, strings.Join(others, string(filepath.ListSeparator)), dir); found != "" {
				return found
			}
			continue
		}
		if found := executable(r, filepath.Join(root, "versions", pyenvVersion(r, root, v), "bin", name)); found != "" {
			return found
		}
	}
	return file
}

// pyenvVersion is the version that a name stands for: 3.11 is the newest 3.11.x that is
// installed, as pyenv has it since 2.4.
func pyenvVersion(r treefs.Root, root, name string) string {
	name = strings.TrimPrefix(name, "python-")
	if r.IsDir(filepath.Join(root, "versions", name)) {
		return name
	}
	if strings.ContainsAny(name, "*?[\\") {
		return name
	}
	best := ""
	for _, path := range r.Glob(filepath.Join(root, "versions", name+".*")) {
		if v := filepath.Base(path); best == "" || Older(best, v) {
			best = v
		}
	}
	if best == "" {
		return name
	}
	return best
}

// shebangName returns the program that the first line of a script names, without
// its folder, looking through env; "" if there is none.
func shebangName(r treefs.Root, file string) string {
	head := r.Head(file, 1024)
	line, _, _ := strings.Cut(string(head), "\n")
	first := shebangWord(line)
	if first == "" {
		return ""
	}
	return filepath.Base(first)
}

// shebangWord returns the program that a #! line names, looking through env.
func shebangWord(line string) string {
	rest, ok := strings.CutPrefix(line, "#!")
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 {
		return ""
	}
	first := fields[0]
	if filepath.Base(first) == "env" {
		rest := fields[1:]
		for len(rest) > 0 && (strings.HasPrefix(rest[0], "-") || strings.Contains(rest[0], "=")) {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return ""
		}
		first = rest[0]
	}
	return first
}

// shebang returns the Python that the first lines of a script name: an absolute
// path, or a bare name where env looks it up. Other programs give "".
func shebang(r treefs.Root, file string) string {
	lines := strings.SplitN(string(r.Head(file, 1024)), "\n", 3)
	first := shebangWord(lines[0])
	if pythonName.MatchString(filepath.Base(first)) {
		return first
	}
	// pip's form for interpreters whose path is too long for a shebang:
	// '''exec' "/path/to/python" "$0" "$@"
	if filepath.Base(first) == "sh" && len(lines) > 1 {
		if rest, ok := strings.CutPrefix(lines[1], "'''exec' "); ok {
			if quoted, ok := strings.CutPrefix(rest, `"`); ok {
				first, _, _ = strings.Cut(quoted, `"`)
			} else {
				first, _, _ = strings.Cut(rest, " ")
			}
			if pythonName.MatchString(filepath.Base(first)) {
				return first
			}
		}
	}
	return ""
}

// SitePackages returns the folders in which the interpreter finds installed
// packages, by their usual names beside it, as r's machine names them. No Python is run.
func SitePackages(r treefs.Root, interpreter string) []string {
	if interpreter == "" {
		return nil
	}
	root := filepath.Dir(filepath.Dir(interpreter))
	var dirs []string
	for _, pattern := range []string{"lib/python3*/site-packages", "local/lib/python3*/dist-packages", "lib/python3*/dist-packages"} {
		dirs = append(dirs, r.Glob(filepath.Join(root, pattern))...)
	}
	return dirs
}

// InstalledVersion reads the version of a distribution from the folder names of
// the interpreter's site-packages. No Python is run.
func InstalledVersion(r treefs.Root, interpreter, dist string) string {
	if dist == "" {
		return ""
	}
	for _, dir := range SitePackages(r, interpreter) {
		found := r.Glob(filepath.Join(dir, dist+"-*.dist-info"))
		if len(found) == 0 {
			continue
		}
		name := filepath.Base(found[len(found)-1])
		return strings.TrimSuffix(strings.TrimPrefix(name, dist+"-"), ".dist-info")
	}
	return ""
}

// Older says whether version a comes before b, by their leading numbers. An
// unknown version is not older than anything.
func Older(a, b string) bool {
	x, errA := leading(a)
	y, errB := leading(b)
	if errA != nil || errB != nil {
		return false
	}
	return slices.Compare(x, y) < 0
}

// leading returns the numbers a version starts with, without zeros at the end.
func leading(version string) ([]int, error) {
	var numbers []int
	for _, part := range strings.Split(version, ".") {
		digits := part
		if at := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' }); at >= 0 {
			digits = part[:at]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			break // 1.2.dev0
		}
		numbers = append(numbers, n)
		if digits != part {
			break // 1.2rc1
		}
	}
	if len(numbers) == 0 {
		return nil, errors.New("no version")
	}
	for len(numbers) > 0 && numbers[len(numbers)-1] == 0 {
		numbers = numbers[:len(numbers)-1]
	}
	return numbers, nil
}
