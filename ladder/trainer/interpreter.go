package trainer

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// environ turns NAME=value words into a map; the last one wins, as it does in
// the C library's putenv but not in every getenv: such an environment is broken
// anyway.
func environ(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			m[name] = value
		}
	}
	return m
}

// surroundings applies what stands in front of the trainer to the environment.
func (p *place) surroundings(env map[string]string) map[string]string {
	m := map[string]string{}
	if !p.cleared {
		for k, v := range env {
			m[k] = v
		}
	}
	for _, name := range p.unset {
		delete(m, name)
	}
	for k, v := range p.set {
		m[k] = v
	}
	return m
}

// lookPath finds a program as execvp would on that PATH, from that folder. It
// returns "" if there is none.
func lookPath(name, path, dir string) string {
	if name == "" {
		return ""
	}
	if strings.Contains(name, "/") {
		return executable(absolute(dir, name))
	}
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = "."
		}
		if found := executable(filepath.Join(absolute(dir, d), name)); found != "" {
			return found
		}
	}
	return ""
}

func executable(path string) string {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() || unix.Access(path, unix.X_OK) != nil {
		return ""
	}
	return path
}

// interpreter returns the absolute path of the Python that runs the trainer,
// unresolved: a virtual environment is known by the path of its symlink.
func (p *place) interpreter(env map[string]string) string {
	if p.otherPath || p.container != nil {
		return ""
	}
	path, ok := env["PATH"]
	if !ok {
		path = "/bin:/usr/bin" // what execvp takes without one
	}
	if p.python != "" {
		return unshim(lookPath(p.python, path, p.dir), env, path, p.dir)
	}
	word := p.program
	if word == "" {
		word = p.script
	}
	if word == "" {
		return ""
	}
	file := lookPath(word, path, p.dir)
	if file == "" {
		return ""
	}
	python := shebang(file)
	if python == "" {
		return ""
	}
	return unshim(lookPath(python, path, p.dir), env, path, p.dir)
}

// unshim returns the interpreter behind a shim of pyenv, a shell script that
// picks a version by PYENV_VERSION, the nearest .python-version or the global
// one. Where it cannot follow, it returns the shim.
func unshim(file string, env map[string]string, path, dir string) string {
	shims := filepath.Dir(file)
	if filepath.Base(shims) != "shims" || !bytes.Contains(readHead(file, 1024), []byte("pyenv")) {
		return file
	}
	root := filepath.Dir(shims)
	versions := env["PYENV_VERSION"]
	for d := dir; versions == ""; d = filepath.Dir(d) {
		versions = string(readHead(filepath.Join(d, ".python-version"), 1024))
		if d == filepath.Dir(d) {
			break
		}
	}
	if strings.TrimSpace(versions) == "" {
		versions = string(readHead(filepath.Join(root, "version"), 1024))
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
			if found := lookPath(name, strings.Join(others, string(filepath.ListSeparator)), dir); found != "" {
				return found
			}
			continue
		}
		if found := executable(filepath.Join(root, "versions", v, "bin", name)); found != "" {
			return found
		}
	}
	return file
}

// shebang returns the Python that the first lines of a script name: an absolute
// path, or a bare name where env looks it up. Other programs give "".
func shebang(file string) string {
	head := readHead(file, 1024)
	if !bytes.HasPrefix(head, []byte("#!")) {
		return ""
	}
	lines := strings.SplitN(string(head[2:]), "\n", 3)
	fields := strings.Fields(lines[0])
	if len(fields) == 0 {
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

// readHead returns up to n bytes from the start of a regular file, nothing if
// it cannot be read.
func readHead(path string, n int64) []byte {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, n))
	if err != nil {
		return nil
	}
	return data
}

// installedVersion reads the version of a distribution from the folder names of
// the interpreter's site-packages. No Python is run.
func installedVersion(interpreter, dist string) string {
	if interpreter == "" || dist == "" {
		return ""
	}
	root := filepath.Dir(filepath.Dir(interpreter))
	for _, pattern := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages"} {
		found, err := filepath.Glob(filepath.Join(root, pattern, dist+"-*.dist-info"))
		if err != nil || len(found) == 0 {
			continue
		}
		name := filepath.Base(found[len(found)-1])
		return strings.TrimSuffix(strings.TrimPrefix(name, dist+"-"), ".dist-info")
	}
	return ""
}

// older says whether version a comes before b, by their leading numbers. An
// unknown version is not older than anything.
func older(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(bs); i++ {
		var x int64
		if i < len(as) {
			n, err := parseInt(as[i])
			if err != nil {
				return false
			}
			x = n
		}
		y, err := parseInt(bs[i])
		if err != nil {
			return false
		}
		if x != y {
			return x < y
		}
	}
	return false
}
