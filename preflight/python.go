package preflight

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/leash"
)

// This file finds the folders from which an interpreter would import, without
// starting it: a stopped start costs nothing, and the verdict must not depend
// on what some sitecustomize does.

// venue is where an interpreter imports from.
type venue struct {
	// interp is the interpreter behind a pyenv shim, else the one asked about.
	interp string
	// sites are the folders in the order of sys.path.
	sites []string
	// exact is false where only the interpreter itself could tell: it is a
	// wrapper script, or cannot be read.
	exact bool
	// broken says what is wrong with its virtual environment.
	broken string
}

var pythonName = lazyre.New(`^python(3\.\d+t?)$`)

// venueOf follows the rules of CPython's getpath and site modules as far as
// they decide where packages lie. isolated are Python's options that take folders away:
// any of E (no PYTHON* variables), s (no user site), I (both).
func venueOf(r tree, interp string, getenv func(string) string, dir, isolated string) venue {
	interp = pyenvTarget(r, interp, getenv, dir)
	head, err := r.readMax(interp, 4)
	if err != nil || string(head) != "\x7fELF" {
		return venue{interp: interp, broken: brokenVenv(r, interp)}
	}
	if strings.ContainsAny(isolated, "EI") {
		inner := getenv
		getenv = func(name string) string {
			if strings.HasPrefix(name, "PYTHON") {
				return ""
			}
			return inner(name)
		}
	}
	v := venue{interp: interp, exact: true}
	for _, p := range filepath.SplitList(getenv("PYTHONPATH")) {
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		v.sites = append(v.sites, p)
	}
	user := getenv("PYTHONNOUSERSITE") == "" && !strings.ContainsAny(isolated, "sI")
	// A virtual environment is recognised by the path as it was called: the
	// link in its bin folder is not followed.
	for _, prefix := range []string{filepath.Dir(interp), filepath.Dir(filepath.Dir(interp))} {
		cfg, err := r.read(filepath.Join(prefix, "pyvenv.cfg"))
		if err != nil {
			continue
		}
		v.broken = brokenVenv(r, interp)
		keys := venvConfig(cfg)
		v.sites = append(v.sites, sitePackages(r, prefix, "")...)
		if !strings.EqualFold(keys["include-system-site-packages"], "true") {
			return v.withLinks(r)
		}
		if home := keys["home"]; home != "" {
			version := keys["version"]
			if version == "" {
				version = keys["version_info"]
			}
			v.sites = append(v.sites, baseSites(r, filepath.Dir(home), minor(version), user, getenv("HOME"))...)
		}
		return v.withLinks(r)
	}
	real, err := r.resolve(interp)
	if err != nil {
		return venue{interp: interp}
	}
	version := ""
	if m := pythonName.FindStringSubmatch(filepath.Base(real)); m != nil {
		version = m[1]
	}
	prefix := filepath.Dir(filepath.Dir(real))
	if home, _, _ := strings.Cut(getenv("PYTHONHOME"), ":"); filepath.IsAbs(home) {
		prefix = filepath.Clean(home)
	}
	v.sites = append(v.sites, baseSites(r, prefix, version, user, getenv("HOME"))...)
	return v.withLinks(r)
}

// brokenVenv says what is wrong with the virtual environment that an interpreter belongs
// to, "" where there is none or it looks whole: the Python that it was made with may be
// gone, after an upgrade of the system or of a package manager.
func brokenVenv(r tree, interp string) string {
	for _, prefix := range []string{filepath.Dir(interp), filepath.Dir(filepath.Dir(interp))} {
		cfg, err := r.read(filepath.Join(prefix, "pyvenv.cfg"))
		if err != nil {
			continue
		}
		home := venvConfig(cfg)["home"]
		switch there, err := r.exists(interp); {
		case err != nil:
			return ""
		case !there && home != "":
			return fmt.Sprintf("the virtual environment %s is broken: the Python that it was made with (in %s) is gone", prefix, home)
		case !there:
			return fmt.Sprintf("the virtual environment %s is broken: %s leads nowhere", prefix, interp)
		}
		if there, err := r.exists(home); filepath.IsAbs(home) && err == nil && !there {
			return fmt.Sprintf("the virtual environment %s is broken: the Python that it was made with (in %s) is gone", prefix, home)
		}
		return ""
	}
	return ""
}

// baseSites are the folders of an interpreter that is no virtual environment.
func baseSites(r tree, prefix, version string, user bool, home string) []string {
	var sites []string
	if user && home != "" {
		sites = append(sites, sitePackages(r, filepath.Join(home, ".local"), version)...)
	}
	// Debian and Ubuntu: pip installs below /usr/local, apt below /usr.
	if prefix == "/usr" || prefix == "/" {
		prefix = "/usr"
		sites = append(sites, libFolders(r, "/usr/local", version, "dist-packages")...)
		sites = append(sites, "/usr/lib/python3/dist-packages")
		sites = append(sites, libFolders(r, "/usr", version, "dist-packages")...)
	}
	// NGC images build Python into /usr/local/lib with Debian's layout.
	if prefix == "/usr/local" {
		sites = append(sites, libFolders(r, prefix, version, "dist-packages")...)
	}
	return append(sites, sitePackages(r, prefix, version)...)
}

func sitePackages(r tree, prefix, version string) []string {
	return libFolders(r, prefix, version, "site-packages")
}

// libFolders returns prefix/lib{,64}/pythonX.Y/leaf, for the version given or,
// when it is unknown, for every version there, newest first.
func libFolders(r tree, prefix, version, leaf string) []string {
	var out []string
	for _, lib := range []string{"lib", "lib64"} {
		var versions []string
		for _, name := range r.names(filepath.Join(prefix, lib)) {
			m := pythonName.FindStringSubmatch(name)
			if m != nil && (version == "" || m[1] == version) {
				versions = append(versions, name)
			}
		}
		sort.Slice(versions, func(i, j int) bool { return newer(versions[i], versions[j]) })
		for _, name := range versions {
			dir := filepath.Join(prefix, lib, name, leaf)
			if ok, _ := r.exists(dir); ok {
				out = append(out, dir)
			}
		}
	}
	return out
}

var digits = lazyre.New(`\d+`)

// newer orders 3.13 before 3.9, with or without a name in front.
func newer(a, b string) bool {
	na, nb := digits.FindAllString(a, -1), digits.FindAllString(b, -1)
	for i := 0; i < len(na) && i < len(nb); i++ {
		x, _ := strconv.Atoi(na[i])
		y, _ := strconv.Atoi(nb[i])
		if x != y {
			return x > y
		}
	}
	return len(na) > len(nb)
}

// minor cuts 3.12.3 or 3.12.3.final.0 to 3.12.
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return ""
	}
	return parts[0] + "." + parts[1]
}

// venvConfig reads the "key = value" lines of pyvenv.cfg.
func venvConfig(b []byte) map[string]string {
	keys := make(map[string]string)
	for _, line := range strings.Split(string(b), "\n") {
		if k, v, ok := strings.Cut(line, "="); ok {
			keys[strings.ToLower(strings.TrimSpace(k))] = strings.TrimSpace(v)
		}
	}
	return keys
}

// maxLinks bounds the .pth files and editable installs of one folder that are read: a
// folder with more is none that a person made.
const maxLinks = 200

// editable is one package of an editable install, in the module that setuptools leaves
// beside the packages: 'torch': '/home/ada/pytorch/torch'.
var editable = lazyre.New(`['"]([A-Za-z_][A-Za-z0-9_]*)['"]\s*:\s*['"](/[^'"\n]+)['"]`)

// withLinks adds the folders named by .pth files, as editable installs leave
// them. Lines that run code are left to the interpreter, but for the mapping of an
// editable install.
func (v venue) withLinks(r tree) venue {
	for _, site := range v.sites[:len(v.sites):len(v.sites)] {
		read := 0
		for _, name := range r.names(site) {
			if strings.HasPrefix(name, ".") || read == maxLinks {
				continue
			}
			switch {
			case strings.HasSuffix(name, ".pth"):
				read++
				b, err := r.read(filepath.Join(site, name))
				if err != nil {
					continue
				}
				v.sites = append(v.sites, linkedFolders(string(b), site)...)
			case strings.HasPrefix(name, "__editable___") && strings.HasSuffix(name, "_finder.py"):
				read++
				b, err := r.read(filepath.Join(site, name))
				if err != nil {
					continue
				}
				for _, m := range editable.FindAllSubmatch(b, maxLinks) {
					// The mapping is from a package to its folder.
					if path := filepath.Clean(string(m[2])); filepath.Base(path) == string(m[1]) {
						v.sites = append(v.sites, filepath.Dir(path))
					}
				}
			}
		}
	}
	return v
}

// linkedFolders are the folders that a .pth file names.
func linkedFolders(text, site string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || strings.HasPrefix(line, "import ") || strings.HasPrefix(line, "import\t") || strings.ContainsRune(line, 0) {
			continue
		}
		if !filepath.IsAbs(line) {
			line = filepath.Join(site, line)
		}
		if out = append(out, line); len(out) == maxLinks {
			break
		}
	}
	return out
}

// pyenvTarget returns the interpreter behind a pyenv shim, by pyenv's own rules
// (PYENV_VERSION, .python-version upwards from the working folder, the global
// version file). Anything that is no shim, or cannot be told, comes back as it
// is. Asking pyenv itself would take a tenth of a second.
func pyenvTarget(r tree, shim string, getenv func(string) string, dir string) string {
	bin := filepath.Dir(shim)
	if filepath.Base(bin) != "shims" {
		return shim
	}
	base, name := filepath.Dir(bin), filepath.Base(shim)
	installed := r.names(filepath.Join(base, "versions"))
	for _, want := range pyenvVersions(r, base, getenv, dir) {
		if want == "system" {
			for _, p := range filepath.SplitList(getenv("PATH")) {
				if path := filepath.Join(p, name); p != "" && p != bin && r.executable(path) {
					return path
				}
			}
			continue
		}
		best := ""
		for _, have := range installed {
			// "3.11" stands for the newest 3.11.x.
			if have == want || strings.HasPrefix(have, want+".") && (best == "" || newer(have, best)) {
				best = have
			}
			if have == want {
				break
			}
		}
		if best == "" {
			continue
		}
		if path := filepath.Join(base, "versions", best, "bin", name); r.executable(path) {
			return path
		}
	}
	return shim
}

func pyenvVersions(r tree, base string, getenv func(string) string, dir string) []string {
	if v := getenv("PYENV_VERSION"); v != "" {
		return strings.Split(v, ":")
	}
	for filepath.IsAbs(dir) {
		if v := pyenvFile(r, filepath.Join(dir, ".python-version")); len(v) > 0 {
			return v
		}
		if dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	if v := pyenvFile(r, filepath.Join(base, "version")); len(v) > 0 {
		return v
	}
	return []string{"system"}
}

func pyenvFile(r tree, path string) []string {
	b, err := r.read(path)
	if err != nil {
		return nil
	}
	var out []string
	for _, line := range strings.Split(string(b), "\n") {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			out = append(out, strings.TrimPrefix(word, "python-"))
		}
	}
	return out
}

// findProgram looks a program up on the PATH of the environment given.
func findProgram(r tree, name string, getenv func(string) string) string {
	if filepath.IsAbs(name) { // found before, as nvcc is
		if r.executable(name) {
			return name
		}
		return ""
	}
	for _, p := range filepath.SplitList(getenv("PATH")) {
		if filepath.IsAbs(p) && r.executable(filepath.Join(p, name)) {
			return filepath.Join(p, name)
		}
	}
	return ""
}

// locate asks the interpreter where it would import torch from. find_spec does
// not import it, and modules of the working folder, which -c puts first, have no part in
// it. The marker keeps apart what a sitecustomize may print.
const (
	locate       = `import sys; sys.path[:] = [p for p in sys.path if p]; import importlib.util as u; s = u.find_spec("torch"); print("sparkrun-torch:" + (s.origin or "" if s else ""))`
	locateMarker = "sparkrun-torch:"
)

// askInterpreter starts the interpreter once and returns the path of torch's
// __init__.py, "" when it would find none; ok is false without an answer.
func askInterpreter(ctx context.Context, interp, dir string) (path string, ok bool) {
	cmd := exec.Command(interp, "-c", locate)
	cmd.Dir = dir
	out, err := leash.Output(ctx, cmd)
	if err != nil {
		return "", false
	}
	for _, line := range strings.Split(string(out), "\n") {
		if path, ok := strings.CutPrefix(line, locateMarker); ok {
			return strings.TrimSpace(path), true
		}
	}
	return "", false
}
