package place

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// spread is what the launchers of a command say about machines and processes.
type spread struct {
	// nodes is the highest number of machines that anything names.
	nodes int
	// procs is the number of processes on this machine, total that on all; told is
	// true where something speaks of them without a number (auto).
	procs, total int
	told         bool
	// launched is true behind a launcher of processes; one where it starts one unless
	// told otherwise.
	launched, one bool
}

func (s *spread) atLeast(n int) { s.nodes = max(s.nodes, n) }

// launch reads what a launcher's options say about machines and processes.
func (f *finder) launch(pre *front, o options) {
	for _, v := range o.all(pre.Nodes) {
		f.atLeast(count(v))
	}
	for _, v := range o.all(pre.Rank) {
		if n := count(v); n > 0 {
			f.atLeast(n + 1)
		}
	}
	for _, v := range o.all(pre.Hosts) {
		f.atLeast(len(strings.Split(v, ",")))
	}
	for _, v := range o.all(pre.Procs) {
		f.procs, f.told = count(v), true
	}
	for _, v := range o.all(pre.Total) {
		f.total, f.told = count(v), true
	}
	hostfiles := o.all(pre.Hostfile)
	if len(hostfiles) == 0 && pre.HostfileDefault != "" && f.p.Container == nil && f.p.root.IsFile(pre.HostfileDefault) {
		hostfiles = []string{pre.HostfileDefault}
	}
	for _, v := range hostfiles {
		f.atLeast(f.hostLines(v))
	}
	for _, v := range o.all(pre.Include) {
		f.include(v)
	}
	f.one = f.one || pre.OneProc
	f.launched = f.launched || len(pre.Procs)+len(pre.Total) > 0
	configs := o.all(pre.Config)
	if len(configs) == 0 && pre.ConfigDefault != "" && !o.on(pre.ConfigUnless) {
		if file := f.defaultConfig(pre.ConfigDefault); file != "" {
			f.p.LauncherDefault = file
			configs = []string{file}
		}
	}
	for _, v := range configs {
		f.config(v)
	}
}

// defaultConfig is the config file that accelerate reads by itself, "" if there is
// none, or a container hides it.
func (f *finder) defaultConfig(file string) string {
	path := cacheDir(f.around(), file)
	if path == "" || f.p.Container != nil {
		return ""
	}
	host, ok := f.p.HostPath(path)
	if !ok || !f.p.root.IsFile(host) {
		return ""
	}
	return host
}

// cacheDir is where accelerate keeps its default config.
func cacheDir(env map[string]string, file string) string {
	home := env["HOME"]
	expand := func(path string) string {
		if rest, ok := strings.CutPrefix(path, "~"); ok && home != "" && (rest == "" || rest[0] == '/') {
			return home + rest
		}
		return path
	}
	if hf := env["HF_HOME"]; hf != "" {
		return filepath.Join(expand(hf), strings.TrimPrefix(file, "huggingface/"))
	}
	if cache := env["XDG_CACHE_HOME"]; cache != "" {
		return filepath.Join(expand(cache), file)
	}
	if home != "" {
		return filepath.Join(home, ".cache", file)
	}
	return ""
}

// count reads N or MIN:MAX; 0 is unknown.
func count(text string) int {
	if strings.HasPrefix(text, "-") {
		return 0
	}
	most := 0
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '-' }) {
		n, err := strconv.Atoi(strings.ReplaceAll(part, "_", ""))
		if err != nil || n < 0 || n > 1<<20 {
			return 0
		}
		most = max(most, n)
	}
	return most
}

const maxHostfile = 1 << 20

// hostLines counts the hosts of a host file. One that cannot be read is taken
// for more than one machine: nobody writes a host file for a single one.
func (f *finder) hostLines(path string) int {
	file, ok := f.p.HostPath(path)
	if !ok {
		return 2
	}
	data := f.p.root.For(file).Head(file, maxHostfile)
	if data == nil {
		return 2
	}
	n := 0
	for _, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' {
			n++
		}
	}
	return n
}

// include reads DeepSpeed's selection, HOST[:SLOT,SLOT][@HOST...].
func (f *finder) include(text string) {
	hosts := strings.Split(text, "@")
	f.atLeast(len(hosts))
	if _, slots, ok := strings.Cut(hosts[0], ":"); ok && len(hosts) == 1 {
		f.procs, f.told = len(strings.Split(slots, ",")), true
	}
}

// config reads an accelerate config. Options win over it.
func (f *finder) config(path string) {
	file, ok := f.p.HostPath(path)
	if !ok {
		return
	}
	var c map[string]any
	if yaml.Unmarshal(f.p.root.For(file).Head(file, maxProject), &c) != nil {
		return
	}
	number := func(key string) int { return count(fmt.Sprint(c[key])) }
	f.atLeast(number("num_machines"))
	if rank := number("machine_rank"); rank > 0 {
		f.atLeast(rank + 1)
	}
	if n := number("num_processes"); !f.told && n > 0 {
		f.total = n
	}
}

// count returns machines and processes on this one, with what the trainer's own
// words and the environment say.
func (f *finder) count(env map[string]string) (nodes, procs int) {
	p := f.p
	if p.Program != "" && p.Args <= len(p.Words) {
		f.trainerWords(p.Words[p.Args:])
	}
	for _, e := range f.t.NodeEnv {
		n := count(env[e.Name])
		switch {
		case e.Rank && n > 0:
			n++
		case e.Rank:
			continue
		case e.Per != "":
			if per := count(env[e.Per]); per > 1 {
				n /= per
			}
		}
		f.atLeast(n)
	}
	nodes = f.nodes
	procs = f.procs
	if procs == 0 && f.total > 0 {
		if n := max(nodes, 1); f.total%n == 0 {
			procs = f.total / n
		}
	}
	if procs == 0 && !f.told {
		for _, name := range f.t.ProcEnv {
			if n := count(env[name]); n > 0 {
				return nodes, n
			}
			if env[name] != "" {
				return nodes, 0
			}
		}
		if f.one || (p.Script != "" || p.Module != "") && !f.launched && nodes <= 1 {
			procs = 1
		}
	}
	return nodes, procs
}

// trainerWords looks for what a trainer hands to a launcher of its own.
func (f *finder) trainerWords(words []string) {
	t := f.t
	for i, w := range words {
		if !strings.HasPrefix(w, "--") {
			continue
		}
		name, value, inline := strings.Cut(w, "=")
		name = strings.ReplaceAll(name, "_", "-")
		if !inline && i+1 < len(words) {
			value = words[i+1]
		}
		switch {
		case slices.Contains(t.TrainerNodes, name):
			f.atLeast(count(value))
		case slices.Contains(t.TrainerProcs, name):
			f.procs, f.told = count(value), true
		case slices.Contains(t.TrainerTotal, name):
			f.total, f.told = count(value), true
		case slices.Contains(t.TrainerConfig, name):
			f.p.LauncherFixed = value
		}
	}
	launch := t.TrainerDefault
	other := slices.ContainsFunc(words, func(w string) bool {
		name, _, _ := strings.Cut(w, "=")
		return slices.Contains(launch.Unless, strings.ReplaceAll(name, "_", "-"))
	})
	if f.p.LauncherFixed == "" && !other && followedBy(launch.Programs[filepath.Base(f.p.Program)], words) {
		f.p.LauncherFixed = f.defaultConfig(launch.Config)
	}
	if f.p.LauncherFixed == "" {
		return
	}
	if host, ok := f.p.HostPath(f.p.LauncherFixed); ok && !f.p.root.For(host).IsFile(host) && filepath.Ext(host) == "" && f.p.Container == nil {
		// The name of a config that comes with the trainer.
		f.p.LauncherFixed = f.installed(t.TrainerConfigs, f.p.LauncherFixed)
		if f.p.LauncherFixed == "" {
			f.told = true
			return
		}
	}
	f.config(f.p.LauncherFixed)
}

// installed finds a config of that name in a folder of the installed packages.
func (f *finder) installed(folder, name string) string {
	for _, dir := range SitePackages(f.p.root, f.p.Interpreter(f.env)) {
		for _, ext := range []string{".yaml", ".yml"} {
			if file := filepath.Join(dir, folder, name+ext); f.p.root.IsFile(file) {
				return file
			}
		}
	}
	return ""
}

// followedBy says whether the words start with one of the subcommands.
func followedBy(subcommands, words []string) bool {
	return len(words) > 0 && slices.Contains(subcommands, words[0])
}
