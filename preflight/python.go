package preflight

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
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
}

var pythonName = regexp.MustCompile(`^python(3\.\d+t?)$`)

// venueOf follows the rules of CPython's getpath and site modules as far as
// they decide where packages lie.
func venueOf(r root, interp string, getenv func(string) string, dir string) venue {
	interp = pyenvTarget(r, interp, getenv, dir)
	head, err := r.read(interp)
	if err != nil || !strings.HasPrefix(string(head), "\x7fELF") {
		return venue{interp: interp}
	}
	v := venue{interp: interp, exact: true}
	for _, p := range filepath.SplitList(getenv("PYTHONPATH")) {
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		v.sites = append(v.sites, p)
	}
	user := getenv("PYTHONNOUSERSITE") == ""
	// A virtual environment is recognised by the path as it was called: the
	// link in its bin folder is not followed.
	for _, prefix := range []string{filepath.Dir(interp), filepath.Dir(filepath.Dir(interp))} {
		cfg, err := r.read(filepath.Join(prefix, "pyvenv.cfg"))
		if err != nil {
			continue
		}
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
	v.sites = append(v.sites, baseSites(r, filepath.Dir(filepath.Dir(real)), version, user, getenv("HOME"))...)
	return v.withLinks(r)
}

// baseSites are the folders of an interpreter that is no virtual environment.
func baseSites(r root, prefix, version string, user bool, home string) []string {
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

func sitePackages(r root, prefix, version string) []string {
	return libFolders(r, prefix, version, "site-packages")
}

// libFolders returns prefix/lib{,64}/pythonX.Y/leaf, for the version given or,
// when it is unknown, for every version there, newest first.
func libFolders(r root, prefix, version, leaf string) []string {
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

var digits = regexp.MustCompile(`\d+`)

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

// withLinks adds the folders named by .pth files, as editable installs leave
// them. Lines that run code are left to the interpreter.
func (v venue) withLinks(r root) venue {
	for _, site := range v.sites[:len(v.sites):len(v.sites)] {
		for _, name := range r.names(site) {
			if !strings.HasSuffix(name, ".pth") || strings.HasPrefix(name, ".") {
				continue
			}
			b, err := r.read(filepath.Join(site, name))
			if err != nil {
				continue
			}
			for _, line := range strings.Split(string(b), "\n") {
				line = strings.TrimSpace(line)
				if line == "" || line[0] == '#' || strings.HasPrefix(line, "import ") || strings.HasPrefix(line, "import\t") {
					continue
				}
				if !filepath.IsAbs(line) {
					line = filepath.Join(site, line)
				}
				v.sites = append(v.sites, line)
			}
		}
	}
	return v
}

// pyenvTarget returns the interpreter behind a pyenv shim, by pyenv's own rules
// (PYENV_VERSION, .python-version upwards from the working folder, the global
// version file). Anything that is no shim, or cannot be told, comes back as it
// is. Asking pyenv itself would take a tenth of a second.
func pyenvTarget(r root, shim string, getenv func(string) string, dir string) string {
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

func pyenvVersions(r root, base string, getenv func(string) string, dir string) []string {
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

func pyenvFile(r root, path string) []string {
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
func findProgram(r root, name string, getenv func(string) string) string {
	for _, p := range filepath.SplitList(getenv("PATH")) {
		if filepath.IsAbs(p) && r.executable(filepath.Join(p, name)) {
			return filepath.Join(p, name)
		}
	}
	return ""
}

// locate asks the interpreter where it would import torch from. find_spec does
// not import it. The marker keeps apart what a sitecustomize may print.
const (
	locate       = `import importlib.util as u; s = u.find_spec("torch"); print("sparkrun-torch:" + (s.origin or "" if s else ""))`
	locateMarker = "sparkrun-torch:"
)

// askInterpreter starts the interpreter once and returns the path of torch's
// __init__.py, "" when it would find none; ok is false without an answer.
func askInterpreter(ctx context.Context, interp, dir string) (path string, ok bool) {
	cmd := exec.CommandContext(ctx, interp, "-c", locate)
	cmd.Dir = dir
	// A shim starts further processes: the whole group must go at the deadline.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 50 * time.Millisecond
	out, err := cmd.Output()
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
