package preflight

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// namesakeSeen are the programs called sparkrun on the PATH, in its order.
type namesakeSeen struct {
	found []namesake
	// self is this program's own file; "" where it cannot be told.
	self string
}

// namesake is one program called sparkrun.
type namesake struct {
	path string // as the PATH names it
	ours bool
	// what says in a few words what it is; binary that it may be another version of ours.
	what   string
	binary bool
}

func lookNamesake(_ context.Context, v view) namesakeSeen {
	var seen namesakeSeen
	self, err := v.root.resolve("/proc/self/exe")
	if err == nil && self != "/proc/self/exe" {
		// The kernel's word for a file that was replaced while it runs.
		seen.self = strings.TrimSuffix(self, " (deleted)")
	}
	known := make(map[string]bool)
	for _, dir := range filepath.SplitList(v.shell("PATH")) {
		if !filepath.IsAbs(dir) {
			continue // it depends on where one stands
		}
		path := filepath.Join(dir, "sparkrun")
		if !v.root.executable(path) {
			continue
		}
		real, err := v.root.resolve(path)
		if err != nil || known[real] {
			continue
		}
		known[real] = true
		n := namesake{path: path, ours: seen.self != "" && (real == seen.self || v.root.sameFile(real, seen.self))}
		if !n.ours {
			n.what, n.binary = whatProgram(v, real)
		}
		seen.found = append(seen.found, n)
	}
	return seen
}

// whatProgram looks into a file, which is never started.
func whatProgram(v view, path string) (what string, binary bool) {
	b, err := v.root.read(path)
	switch {
	case err != nil:
		return "another program, which may not be read", false
	case bytes.HasPrefix(b, []byte("#!")):
		line, _, _ := strings.Cut(string(b), "\n")
		if strings.Contains(line, "python") && bytes.Contains(b, []byte("sparkrun")) {
			return "the inference launcher of the Python package sparkrun", false
		}
		return "a script", false
	case bytes.HasPrefix(b, []byte("\x7fELF")):
		return "another binary, perhaps another version of this one", true
	}
	return "another program", false
}

// judgeNamesake is H15: there is an inference launcher of the same name for the same
// machine. Who types the name in the morning must know which of the two answers.
func judgeNamesake(seen namesakeSeen, f facts) Finding {
	var a advice
	var other *namesake // the first of them
	for i := range seen.found {
		n := &seen.found[i]
		if n.ours {
			a.saw("%s: this program", n.path)
			continue
		}
		a.saw("%s: %s", n.path, n.what)
		if other == nil {
			other = n
		}
	}
	switch {
	case other == nil:
		return a.finding(Pass, "no other program of this name on the PATH")
	case seen.self == "":
		return a.finding(Info, fmt.Sprintf("%s is on the PATH; whether it is this program cannot be told", other.path))
	case seen.found[0].ours:
		return a.finding(Info, fmt.Sprintf("sparkrun is this program; %s (%s) is hidden behind it and must be called by its path", other.path, other.what))
	}
	if seen.found[0].binary {
		return a.finding(Info, fmt.Sprintf("sparkrun on the PATH is %s: %s", seen.found[0].path, seen.found[0].what))
	}
	detail := fmt.Sprintf("sparkrun on the PATH is %s: %s", other.path, other.what)
	link := "a folder of the PATH"
	if home := f.shell("HOME"); filepath.IsAbs(home) {
		link = filepath.Join(home, ".local/bin")
	}
	a.warn(detail, "who types sparkrun later gets the other program, whose words mean something else",
		fmt.Sprintf("give this one a name of its own and use that:\nln -s %s %s/sparkrun-train", shellWord(seen.self), link))
	return a.finding(Pass, "")
}
