package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
	"sparkrun/internal/job"
	"sparkrun/ladder/trainer"
	"sparkrun/supervisor/guard"
)

// runFlags are the settings of a run, as flags.
type runFlags struct {
	name, runsDir, ladder, dropCaches, cgroup, thermalConfig, minFree string
	guardFloor, guardSoft, guardCotenant                              string
	shim, resume, onDivergence                                        string
	interval, telemetryInterval, grace, gateLimit, hangAfter          time.Duration
	maxAttempts                                                       int
	noRetry, exact, force, strict, noPreflight, noPTY, quiet          bool
	noGuard, loadDropCaches                                           bool
	allow, deny, knobs, profiles                                      []string
	heat                                                              heatFlags
}

func (f *runFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.name, "name", "", "name of the run (default: the script's base name)")
	set.StringVar(&f.runsDir, "runs-dir", "", "folder for run folders (default ./sparkrun-runs)")
	set.DurationVar(&f.interval, "interval", 30*time.Second, "time between rows of thermal.csv, at least 1s")
	set.DurationVar(&f.telemetryInterval, "telemetry-interval", time.Second, "time between rows of telemetry.csv, 100ms to 10m")
	set.DurationVar(&f.grace, "grace", 30*time.Second, "time a stopped command has to end by itself")
	set.StringVar(&f.ladder, "ladder", "spark", "ladder to go down: spark, preserving, or a file")
	set.IntVar(&f.maxAttempts, "max-attempts", 8, "most attempts in one run")
	set.BoolVar(&f.noRetry, "no-retry", false, "never try again; the verdict is given all the same")
	set.BoolVar(&f.exact, "exact", false, "only changes that leave the training the same")
	set.StringSliceVar(&f.allow, "allow", nil, "allow what needs consent: a rung as bf16-lora, or smaller-batch, keep-tokens, restart")
	set.StringSliceVar(&f.deny, "deny", nil, "leave a rung out, as bf16-lora")
	set.StringArrayVar(&f.knobs, "knob", nil, "tell a knob of the command, as seq_len=4096; {seq_len} in the command stands for it")
	set.StringSliceVar(&f.profiles, "profiles", nil, "folder with trainer profiles of your own (*.yaml)")
	set.StringVar(&f.shim, "shim", "auto", "for values written in the script's code: auto (from attempt 2 on, where needed), always or never")
	set.StringVar(&f.resume, "resume", "auto", "checkpoint that a retry goes on from: auto (the newest complete one), never, or a path")
	set.StringVar(&f.onDivergence, "on-divergence", "warn", "when the loss is NaN, infinite or zero: warn, or stop the command")
	set.StringVar(&f.dropCaches, "drop-caches", "auto", "page cache dropped between attempts: auto, system, files or never")
	set.StringVar(&f.cgroup, "cgroup", "", "existing cgroup folder the command is put into (v1 memory or v2)")
	set.BoolVar(&f.noGuard, "no-guard", false, "do not end the command before memory runs out")
	set.StringVar(&f.guardFloor, "guard-floor", "3%", "memory left at which the guard acts: a share of the total, or a size as 4GiB")
	set.StringVar(&f.guardSoft, "guard-soft", defaultSoft, "memory left below which a fall that leads to the floor is acted on")
	set.StringVar(&f.guardCotenant, "guard-on-cotenant", "kill", "when another process took the memory: kill (end the command, start it again unchanged) or warn")
	set.BoolVar(&f.loadDropCaches, "load-drop-caches", false, "drop the page cache while the model loads and MemFree is low (needs root)")
	set.DurationVar(&f.gateLimit, "gate-limit", time.Hour, "longest wait before a retry for memory that another process holds")
	set.DurationVar(&f.hangAfter, "hang-after", 3*time.Minute, "time without step and output after an out-of-memory line before the command is ended, three steps at least; 0 never")
	set.StringVar(&f.minFree, "min-free", "2GiB", "disk space that the run's files leave free")
	set.StringVar(&f.thermalConfig, "thermal-config", "", "file with throttle thresholds in place of the built-in ones")
	f.heat.add(set)
	set.BoolVar(&f.force, "force", false, "start although preflight says blocked")
	set.BoolVar(&f.strict, "strict", false, "do not start on preflight warnings either")
	set.BoolVar(&f.noPreflight, "no-preflight", false, "skip the checks")
	set.BoolVar(&f.noPTY, "no-pty", false, "give the command a pipe instead of a terminal")
	set.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing of our own but warnings and errors")
}

// settingsFile lies beside the job and holds its settings.
const settingsFile = "sparkrun.yaml"

// origin says where a setting's value comes from.
type origin struct{ name, value, from string }

// runSettings are the names of the settings of a run: what may stand in the environment
// and in the settings files. Flags that one subcommand has alone come from its command
// line and from nowhere else, or a file that is good for one command would end another.
var runSettings = sync.OnceValue(func() map[string]bool {
	var f runFlags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.add(set)
	names := map[string]bool{}
	set.VisitAll(func(fl *pflag.Flag) { names[fl.Name] = true })
	return names
})

// hideSettings leaves in a subcommand's help only those settings of a run that are shown.
// All of them are there, since the files and the environment may hold them.
func hideSettings(set *pflag.FlagSet, shown ...string) {
	set.VisitAll(func(fl *pflag.Flag) { fl.Hidden = !slices.Contains(shown, fl.Name) })
}

// resolve fills every setting of a run that was not given as a flag from the environment,
// then ./sparkrun.yaml, then the user's config.yaml. It returns where each value
// comes from, in order of name.
func resolve(f *pflag.FlagSet, e environment, dir string) ([]origin, error) {
	local, err := readSettings(filepath.Join(dir, settingsFile))
	if err != nil {
		return nil, err
	}
	user, err := readSettings(filepath.Join(configFolder(e), "config.yaml"))
	if err != nil {
		return nil, err
	}
	for _, s := range []settings{local, user} {
		for name := range s.lines {
			if name == trainer.LocalKey && s.path == local.path {
				continue // read with the other profiles
			}
			if !runSettings()[name] {
				return nil, fmt.Errorf("%s: no setting is called %q; %q lists them", s.at(name), name, progName()+" config")
			}
		}
	}
	var out []origin
	var firstErr error
	f.VisitAll(func(fl *pflag.Flag) {
		if !runSettings()[fl.Name] {
			return
		}
		from := "built-in"
		env := "SPARKRUN_" + strings.ToUpper(strings.ReplaceAll(fl.Name, "-", "_"))
		set := func(values []string, file, where string) {
			from = file
			for _, v := range values {
				if err := fl.Value.Set(v); err != nil && firstErr == nil {
					firstErr = fmt.Errorf("%s: %q is no value for %s, which is %s", where, v, fl.Name, kindOfFlag(fl))
				}
			}
		}
		switch {
		case fl.Changed:
			from = "flag --" + fl.Name
		case e.getenv(env) != "":
			set([]string{e.getenv(env)}, env, env)
		case local.values[fl.Name] != nil:
			set(local.values[fl.Name], local.path, local.at(fl.Name))
		case user.values[fl.Name] != nil:
			set(user.values[fl.Name], user.path, user.at(fl.Name))
		}
		out = append(out, origin{fl.Name, fl.Value.String(), from})
	})
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out, firstErr
}

// configFolder is where the user's own settings and profiles lie. It is called
// sparkrun-train because another program owns the plain name.
func configFolder(e environment) string {
	base := e.getenv("XDG_CONFIG_HOME")
	if base == "" || !filepath.IsAbs(base) {
		base = filepath.Join(e.getenv("HOME"), ".config")
	}
	return filepath.Join(base, "sparkrun-train")
}

type settings struct {
	path   string
	values map[string][]string
	lines  map[string]int
}

// at names the place of a setting: FILE:LINE.
func (s settings) at(name string) string {
	if n := s.lines[name]; n > 0 {
		return fmt.Sprintf("%s:%d", s.path, n)
	}
	return s.path
}

// kindOfFlag says in a person's words what a setting's value is.
func kindOfFlag(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int":
		return "a whole number"
	case "duration":
		return "a time as 30s, 5m or 2h"
	case "bool":
		return "true or false"
	}
	return "a " + f.Value.Type()
}

// readSettings reads a settings file: flag names as keys; a list or a map (for
// knob) where a flag may be given several times. A file that is not there, or
// has comments only, sets nothing.
func readSettings(path string) (settings, error) {
	s := settings{path: path, values: map[string][]string{}, lines: map[string]int{}}
	data, err := configs.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("reading settings: %w", err)
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		return s, nil
	}
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) == nil && doc.IsZero() {
		return s, nil // nothing but comments
	}
	raw := map[string]yaml.Node{}
	if err := configs.Decode(path, data, &raw); err != nil {
		return s, err
	}
	for name, node := range raw {
		s.lines[name] = node.Line
		if name == trainer.LocalKey {
			s.values[name] = nil
			continue
		}
		words, err := settingWords(&node)
		if err != nil {
			return s, fmt.Errorf("%s:%d: %s: %w", path, node.Line, name, err)
		}
		if words != nil {
			s.values[name] = words
		}
	}
	return s, nil
}

// settingWords returns what stands in the file for a setting, word for word as
// it would be typed behind the flag: 1e-4 stays 1e-4. Nil is a setting left
// empty.
func settingWords(n *yaml.Node) ([]string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	words := []string{}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, one := range n.Content {
			word, err := settingWord(one)
			if err != nil {
				return nil, err
			}
			words = append(words, word)
		}
		return words, nil
	case yaml.MappingNode:
		// Decoded, so that merged maps count and a key that stands twice is told.
		pairs := map[string]yaml.Node{}
		if err := n.Decode(&pairs); err != nil {
			return nil, errors.New(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:")), " "))
		}
		for name, one := range pairs {
			word, err := settingWord(&one)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			words = append(words, name+"="+word)
		}
		sort.Strings(words)
		return words, nil
	}
	if n.Tag == "!!null" {
		return nil, nil
	}
	return []string{n.Value}, nil
}

func settingWord(n *yaml.Node) (string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind != yaml.ScalarNode:
		return "", errors.New("a list or a map has single values only, not lists and maps again")
	case n.Tag == "!!null":
		return "", errors.New("an entry is empty")
	}
	return n.Value, nil
}

// profileDirs returns the folders of the user's own trainer profiles. The one
// beside the settings may be missing; one that was named must be there.
func profileDirs(e environment, named []string) ([]string, error) {
	dirs := []string{filepath.Join(configFolder(e), "trainers")}
	for _, dir := range named {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("--profiles %s: there is no such folder; it should hold trainer profiles (*.yaml)", dir)
		case err != nil:
			return nil, fmt.Errorf("--profiles: the folder cannot be looked at: %w", err)
		case !info.IsDir():
			return nil, fmt.Errorf("--profiles %s: it is no folder; name the one that the profiles lie in", dir)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// parseKnobs reads the NAME=VALUE pairs of --knob.
func parseKnobs(pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" || value == "" {
			return nil, fmt.Errorf("--knob %s: write it as NAME=VALUE, as in --knob %s=4096", p, job.SeqLen)
		}
		for _, c := range name {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
				return nil, fmt.Errorf("--knob %s: a knob's name has small letters, digits and _ only", p)
			}
		}
		out[name] = value
	}
	return out, nil
}

// defaultSoft is the soft floor where none is named.
const defaultSoft = "13%"

// guardOptions reads the flags of the memory guard.
func (f *runFlags) guardOptions() (guard.Options, error) {
	o := guard.Options{Off: f.noGuard, OnCotenant: f.guardCotenant, LoadDropCaches: f.loadDropCaches}
	if o.OnCotenant != "kill" && o.OnCotenant != "warn" {
		return o, fmt.Errorf("--guard-on-cotenant %s: kill or warn", o.OnCotenant)
	}
	var err error
	if o.HardPct, o.HardKiB, err = parseFloor(f.guardFloor); err != nil {
		return o, fmt.Errorf("--guard-floor: %w", err)
	}
	if o.SoftPct, o.SoftKiB, err = parseFloor(f.guardSoft); err != nil {
		return o, fmt.Errorf("--guard-soft: %w", err)
	}
	if f.guardSoft == defaultSoft {
		o.SoftPct = max(o.SoftPct, o.HardPct) // who raises the floor alone means just that
	}
	if err := o.Check(); err != nil {
		return o, fmt.Errorf("--guard-floor %s, --guard-soft %s: %w", f.guardFloor, f.guardSoft, err)
	}
	return o, nil
}

// parseFloor reads a share of the total memory ("3%") or a size ("4GiB").
func parseFloor(s string) (pct float64, kib uint64, err error) {
	if num, ok := strings.CutSuffix(strings.TrimSpace(s), "%"); ok {
		pct, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
		if err != nil || !(pct > 0 && pct < 100) {
			return 0, 0, fmt.Errorf("%q is no share; write it as 3%% (above 0, below 100) or as a size, 4GiB; --no-guard turns the guard off", s)
		}
		return pct, 0, nil
	}
	b, err := parseSize(s)
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("%w, or as a share of the memory, 3%%", err)
	case b < 1<<20:
		return 0, 0, fmt.Errorf("%s is less than 1MiB; --no-guard turns the guard off", s)
	}
	return 0, b / 1024, nil
}

// parseSize reads a number of bytes: 500MB, 2GiB, 1048576.
func parseSize(s string) (uint64, error) {
	units := []struct {
		suffix string
		factor float64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}, {"", 1}}
	for _, u := range units {
		num, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		var v float64
		var rest string
		if n, _ := fmt.Sscanf(strings.TrimSpace(num)+" ", "%g%s", &v, &rest); n != 1 || !(v >= 0 && v <= 1e15) { // NaN too
			break
		}
		return uint64(v * u.factor), nil
	}
	return 0, fmt.Errorf("%q is no size; write it as 2GiB or 500MB", s)
}
