package preflight

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// unitDirs are where systemd looks for units and their drop-ins, strongest first.
// systemctl set-property writes to the .control folders.
var unitDirs = []string{
	"/etc/systemd/system.control", "/run/systemd/system.control",
	"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
}

// unitSetting is a value and the file it stands in.
type unitSetting struct{ value, file string }

// unitSettings reads settings of a unit from its file and its drop-ins, the way systemd
// merges them: the unit of the strongest folder, then drop-ins in the order of their
// names, of which one in a stronger folder hides those of the same name. also are names
// of drop-in folders that count too and are weaker (user@.service for
// user@1000.service). Of a setting that is given several times, the last one holds.
func unitSettings(v view, unit string, also ...string) map[string]unitSetting {
	out := make(map[string]unitSetting)
	for _, name := range append([]string{unit}, also...) {
		if main := firstUnit(v, name); main != "" {
			readIni(v, main, out)
			break
		}
	}
	// name of the drop-in -> its file
	drops := make(map[string]string)
	for _, owner := range append([]string{unit}, also...) {
		for _, dir := range unitDirs {
			folder := filepath.Join(dir, owner+".d")
			for _, name := range v.root.names(folder) {
				if _, hidden := drops[name]; !hidden && strings.HasSuffix(name, ".conf") {
					drops[name] = filepath.Join(folder, name)
				}
			}
		}
	}
	readDrops(v, drops, out)
	return out
}

func readDrops(v view, drops map[string]string, out map[string]unitSetting) {
	names := make([]string, 0, len(drops))
	for name := range drops {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		readIni(v, drops[name], out)
	}
}

// firstUnit is the file of a unit, "" where it has none.
func firstUnit(v view, name string) string {
	for _, dir := range unitDirs {
		path := filepath.Join(dir, name)
		if there, _ := v.root.exists(path); there {
			return path
		}
	}
	return ""
}

// unitMasked tells that a unit cannot be started: its file is a link to /dev/null, or
// empty.
func unitMasked(v view, unit string) bool {
	for _, dir := range unitDirs {
		path := filepath.Join(dir, unit)
		if v.root.linkTo(path) == "/dev/null" {
			return true
		}
		if st, err := v.root.stat(path); err == nil {
			return st.mode.IsRegular() && st.size == 0
		}
	}
	return false
}

// linkTo is what a link points to, "" where there is none: what it points to need not
// be there, as /dev is not in a recorded tree.
func (r root) linkTo(path string) string {
	dir, err := r.resolve(filepath.Dir(path))
	if err != nil {
		return ""
	}
	target, err := os.Readlink(r.host(filepath.Join(dir, filepath.Base(path))))
	if err != nil {
		return ""
	}
	return target
}

// confSettings reads a file of systemd's own settings, /etc/systemd/NAME or the vendor's,
// and its drop-ins.
func confSettings(v view, name string) map[string]unitSetting {
	out := make(map[string]unitSetting)
	dirs := []string{"/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd"}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if there, _ := v.root.exists(path); there {
			readIni(v, path, out)
			break
		}
	}
	drops := make(map[string]string)
	for _, dir := range dirs {
		folder := filepath.Join(dir, name+".d")
		for _, drop := range v.root.names(folder) {
			if _, hidden := drops[drop]; !hidden && strings.HasSuffix(drop, ".conf") {
				drops[drop] = filepath.Join(folder, drop)
			}
		}
	}
	readDrops(v, drops, out)
	return out
}

// readIni adds the settings of one file; sections are not told apart, since no name
// that is asked for stands in two.
func readIni(v view, path string, out map[string]unitSetting) {
	b, err := v.root.read(path)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' || line[0] == '[' {
			continue
		}
		if name, value, ok := strings.Cut(line, "="); ok {
			out[strings.TrimSpace(name)] = unitSetting{strings.TrimSpace(value), path}
		}
	}
}

// systemdSize reads a size as systemd writes it: 4G, 192M, infinity. Percent are of the
// machine's memory and are not ok here.
func systemdSize(s string) (bytes uint64, ok bool) {
	s = strings.TrimSpace(s)
	if s == "infinity" || s == "max" {
		return 1<<64 - 1, true
	}
	shift := 0
	switch {
	case strings.HasSuffix(s, "K"):
		shift = 10
	case strings.HasSuffix(s, "M"):
		shift = 20
	case strings.HasSuffix(s, "G"):
		shift = 30
	case strings.HasSuffix(s, "T"):
		shift = 40
	}
	if shift > 0 {
		s = s[:len(s)-1]
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !(n >= 0) || n*float64(uint64(1)<<shift) >= 1<<63 {
		return 0, false
	}
	return uint64(n * float64(uint64(1)<<shift)), true
}
