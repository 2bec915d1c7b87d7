package preflight

import (
	"path/filepath"
	"slices"
	"strings"
)

// installer is the beginning of a command line that installs packages for a Python, up to
// the word install: an environment that uv made has no pip, and the system's own Python of
// newer distributions takes no packages.
func installer(t tree, interp string) string {
	python := shellWord(interp)
	for _, prefix := range []string{filepath.Dir(interp), filepath.Dir(filepath.Dir(interp))} {
		cfg, err := t.read(filepath.Join(prefix, "pyvenv.cfg"))
		if err != nil {
			continue
		}
		var own []string
		for _, site := range sitePackages(t, prefix, "") {
			own = append(own, t.names(site)...)
		}
		installed := slices.ContainsFunc(own, func(name string) bool { return strings.HasSuffix(name, ".dist-info") })
		switch uv := venvConfig(cfg)["uv"]; {
		case slices.Contains(own, "pip"):
		case uv != "":
			return "uv pip install --python " + python
		case installed:
			return python + " -m ensurepip && " + python + " -m pip install"
		}
		return python + " -m pip install"
	}
	if real, err := t.resolve(interp); err == nil {
		lib := filepath.Join(filepath.Dir(filepath.Dir(real)), "lib")
		for _, name := range t.names(lib) {
			if !strings.HasPrefix(name, "python3.") {
				continue
			}
			if there, err := t.exists(filepath.Join(lib, name, "EXTERNALLY-MANAGED")); err == nil && there {
				return python + " -m venv venv && venv/bin/python -m pip install"
			}
		}
	}
	return python + " -m pip install"
}

// installs is how packages are installed for the command's Python; inside an image pip is
// its own.
func (f facts) installs() string {
	switch {
	case f.clientRuns():
		return "pip install"
	case f.python.installer != "":
		return f.python.installer
	}
	return "python3 -m pip install"
}
