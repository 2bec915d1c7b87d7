package preflight

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sparkrun/configs"
	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
)

// setting is one value that the command gives, and where it stands.
type setting struct {
	// name is the setting's name as it is written there, with the keys around it:
	// attn_implementation, model.tp_size, --tensor-parallel-size.
	name string
	// value is the value as written, without quotes: "2", "true", "True", "sdpa", "auto";
	// "null" for none. A list is its items joined by ",". A flag without a value is
	// "true". It is "" with computed set.
	value string
	// means is the value in the words of configs/asked.yaml where the subject gives it
	// others (fa2 is flash_attention_2), in small letters; else the same as value.
	means string
	// where is the flag, FILE:LINE, or "variable NAME" of the environment.
	where string
	// from is job.FromUser, job.FromArgv, job.FromConfig or job.FromScript; variables of
	// the environment count as argv.
	from job.Source
	// computed: the script's code, a shell variable or an interpolation of a config
	// (${...}) gives the value, which is not known here.
	computed bool
}

// number is the value as a whole number. ok is false for anything else ("auto", false).
func (s setting) number() (n int64, ok bool) {
	n, err := strconv.ParseInt(strings.ReplaceAll(strings.TrimSpace(s.value), "_", ""), 10, 64)
	return n, err == nil && !s.computed
}

// off tells that the value says no or nothing: false, null, none, 0, empty.
func (s setting) off() bool {
	switch strings.ToLower(strings.TrimSpace(s.value)) {
	case "false", "no", "off", "null", "none", "0", "~", "":
		return !s.computed
	}
	return false
}

// said is the setting as a reading: where it stands, and what there.
func (s setting) said() string {
	value := s.value
	if s.computed {
		value = "worked out there"
	}
	switch {
	case strings.HasPrefix(s.where, "variable "), s.where == s.name:
		return fmt.Sprintf("%s = %s", s.where, value)
	}
	return fmt.Sprintf("%s = %s (%s)", s.name, value, s.where)
}

// asked returns what the command asks for under one subject of configs/asked.yaml
// (attention, tensor_parallel, ...) or, for any other word, under the setting of that
// very name (save_total_limit). It looks at sparkrun's own --knob, argv, the command's
// config files, the script's text and then the subject's environment variables, in this
// order, which is the order of what holds: the first one found counts. It reads files
// through v only, and never fails: what could not be read is request.unread. A check
// calls it in its look, not in its judge.
func asked(v view, name string) []setting { return readAsked(v).named(name) }

// request is all that the command says of settings.
type request struct {
	// settings are all settings found, in the order of what holds.
	settings []setting
	// unread says of each config file or script that could not be read, or not to its
	// end, which and why: what is not found may stand there.
	unread []string
	// files are the config files and scripts that were read.
	files []string
	// imports are the modules that the script imports, calls the dotted names that it
	// calls with arguments.
	imports, calls []string
	getenv         func(string) string
}

// readAsked reads all settings of the command at once, for a look that needs several
// subjects or goes by values (any value that is nvfp4).
func readAsked(v view) request {
	if v.askedOnce != nil {
		return v.askedOnce()
	}
	r := request{getenv: v.trainer}
	if v.job == nil {
		return r
	}
	// The table is part of the binary, and a test reads it.
	table, _ := loadAsked()
	a := &asking{v: v, table: table, seen: make(map[string]bool)}
	a.knobs()
	words := append([][]string{v.job.Argv}, a.shellWords(v.job.Argv)...)
	for _, w := range words {
		a.words(w, job.FromArgv, func(flag string, _ int) string { return flag })
	}
	a.files(words)
	a.script()
	r.settings, r.unread, r.files, r.imports, r.calls = a.settings, a.unread, a.opened, a.imports, a.calls
	return r
}

// named returns the settings of one subject.
func (r request) named(name string) []setting {
	table, _ := loadAsked()
	s, known := table.Subjects[name]
	if !known {
		s = subject{Names: plains([]string{name})}
	}
	var out []setting
	for _, found := range r.settings {
		if kept, ok := s.match(found); ok {
			out = append(out, kept)
		}
	}
	for _, key := range s.Env {
		if value := r.getenv(key); value != "" {
			if kept, ok := s.match(setting{name: s.Names[0], value: value, where: "variable " + key, from: job.FromArgv}); ok {
				out = append(out, kept)
			}
		}
	}
	return out
}

// subject is one entry of configs/asked.yaml.
type subject struct {
	About    string            `yaml:"about"`
	Names    []string          `yaml:"names"`
	Keys     []string          `yaml:"keys"`
	Switches map[string]string `yaml:"switches"`
	Values   map[string]string `yaml:"values"`
	Env      []string          `yaml:"env"`
}

// askedTable is configs/asked.yaml.
type askedTable struct {
	Subjects      map[string]subject `yaml:"subjects"`
	Files         []string           `yaml:"files"`
	UnslothLoader []string           `yaml:"unsloth_loader"`
}

// loadAsked reads the built-in table once. It cannot fail in a binary whose tests
// passed.
var loadAsked = sync.OnceValues(func() (askedTable, error) {
	var t askedTable
	if err := configs.BuiltIn("asked.yaml", &t); err != nil {
		return askedTable{}, fmt.Errorf("reading the built-in table of settings: %w", err)
	}
	// As names are compared.
	t.Files = plains(t.Files)
	for name, s := range t.Subjects {
		s.Names, s.Keys = plains(s.Names), plains(s.Keys)
		t.Subjects[name] = s
	}
	return t, nil
})

var listIndex = lazyre.New(`\[[^\]]*\]`)

// plain writes a name as the table does: small letters, _ for -, without dashes in front
// and without the places in lists.
func plain(name string) string {
	name = strings.TrimLeft(name, "-+~")
	if strings.Contains(name, "[") {
		name = listIndex.ReplaceAllString(name, "")
	}
	return strings.ToLower(strings.ReplaceAll(name, "-", "_"))
}

func plains(names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, plain(n))
	}
	return out
}

// endsIn tells whether a path is a name, or has it as its last keys.
func endsIn(path string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		return path == n || strings.HasSuffix(path, "."+n)
	})
}

// match tells whether a setting is of the subject, and gives its value the meaning that
// it has there.
func (s subject) match(found setting) (setting, bool) {
	path := plain(found.name)
	last := path[strings.LastIndexByte(path, '.')+1:]
	value, is := s.Switches[last]
	if !is && !endsIn(path, s.Names) && (found.from == job.FromScript || !endsIn(path, s.Keys)) {
		return setting{}, false
	}
	word := strings.ToLower(strings.TrimSpace(found.value))
	found.means = cmp.Or(s.Values[strings.ReplaceAll(word, "-", "_")], word)
	if is {
		switch word {
		case "true", "yes", "on", "1":
			found.means = value
			return found, true
		case "false", "no", "off", "0", "null", "none":
			return found, false // that one is not asked for; which is, nobody says
		}
	}
	return found, true
}

// asking gathers settings.
type asking struct {
	v        view
	table    askedTable
	settings []setting
	unread   []string
	imports  []string
	calls    []string
	// opened are the files that were read, in order.
	opened []string
	// seen are the files that were looked at, by path; folders counts those listed.
	seen    map[string]bool
	folders int
}

// maxSettings bounds what is kept of one command: a data file taken for settings has
// more.
const maxSettings = 20_000

func (a *asking) add(s setting) {
	if len(a.settings) < maxSettings {
		a.settings = append(a.settings, s)
	}
}

// knobs takes in what the user told sparkrun itself.
func (a *asking) knobs() {
	for _, name := range a.v.job.Knobs.Names() {
		k := a.v.job.Knobs[name]
		if k.Source != job.FromUser {
			continue
		}
		// The knob's name is that of a subject; a name of it is what matches.
		written := string(name)
		if s, is := a.table.Subjects[written]; is && len(s.Names) > 0 {
			written = s.Names[0]
		}
		a.add(setting{name: written, value: k.Value, where: "--knob " + string(name), from: job.FromUser})
	}
}

// display names a file for people as the command does: relative to its folder where it
// lies below that.
func (a *asking) display(path string) string {
	for _, dir := range []string{a.v.dir(), a.v.job.Dir} {
		if dir == "" {
			continue
		}
		if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
			return rel
		}
	}
	return path
}
