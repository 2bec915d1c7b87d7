package trainer

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"sparkrun/internal/edit"
	"sparkrun/internal/job"
	"sparkrun/ladder/trainer/place"
)

// spot is one place where the value of a knob stands: a mention in the command's
// words, or an entry of a config file.
type spot struct {
	m     *mention
	doc   *document
	entry edit.Entry
	// name is the spelling of a flag that overrides it.
	name  string
	value string
	shape shape
}

// found is the value of a knob, as the trainer will see it.
type found struct {
	value    string
	origin   job.Source
	where    string
	choices  []string
	spots    []spot
	name     string // the spelling to use where the knob must be added
	shape    shape
	computed bool // worked out in the script's code
	inCode   bool // only the shim can turn it
	formula  bool // worked out from other knobs
	declared bool // by the script
	// share is the number of processes that the setting is divided by, 0 for none.
	share int64
}

// result is an answer of knob.
type result struct {
	f   found
	ok  bool
	why string
}

// knobs reads the settings of one command, each once.
type knobs struct {
	c    *command
	memo map[string]*result
}

func (c *command) knobs() *knobs { return &knobs{c: c, memo: map[string]*result{}} }

// get returns what the trainer will take for the knob of that name. It is false
// where that is not known; why then says what a person should know.
func (k *knobs) get(name string) (f found, ok bool, why string) {
	if r, ok := k.memo[name]; ok {
		return r.f, r.ok, r.why
	}
	k.memo[name] = &result{} // a formula that leads back here finds nothing
	f, ok, why = k.read(name)
	f, ok, why = k.otherwiseSet(name, f, ok, why)
	if spec := k.c.prof.Knobs[name]; ok && spec.AllProcesses {
		f, ok, why = k.shareOf(f)
	}
	k.memo[name] = &result{f, ok, why}
	return f, ok, why
}

// shareOf is what one process has of a setting that counts for all of them.
func (k *knobs) shareOf(f found) (found, bool, string) {
	n, err := parseInt(f.value)
	world := k.c.world
	switch {
	case err != nil:
		return f, false, ""
	case world < 1:
		return f, false, fmt.Sprintf("%s (%s) counts for all processes together, and how many there are is not told", f.value, f.where)
	case n%world != 0:
		return f, false, fmt.Sprintf("%s (%s) cannot be shared evenly by %d processes", f.value, f.where, world)
	case world > 1:
		f.share = world
		f.where += fmt.Sprintf(", %d for %d processes", n, world)
		f.value = strconv.FormatInt(n/world, 10)
	}
	return f, true, ""
}

// whole turns the share of one process into the setting of all.
func (f found) whole(value string) string {
	n, err := parseInt(value)
	if f.share < 1 || err != nil || n > 1<<40 {
		return value
	}
	return strconv.FormatInt(n*f.share, 10)
}

func (k *knobs) read(name string) (f found, ok bool, why string) {
	c := k.c
	spec, is := c.prof.Knobs[name]
	if !is {
		return f, false, ""
	}
	if spec.WhenBlind && c.blind == "" {
		return f, false, ""
	}
	for _, r := range spec.UnknownWhen {
		if k.holds(r.When) {
			return f, false, r.Why
		}
	}
	f.name = c.spelling(spec)
	f.shape = c.shapeOf(spec, f.name)
	f.choices, f.declared = c.choices(spec)
	spots, isNull, why := c.spots(spec)
	if why != "" {
		return f, false, why
	}
	if spots = c.heard(name, spec, spots, f); len(spots) > 0 {
		f.spots = spots
		if spots = set(name, spec, spots); len(spots) == 0 {
			f, ok, why := k.defaultOf(name, spec, f)
			if ok && plainCount[name] {
				f.where += fmt.Sprintf("; %s %s is taken for not set", joinSpots(f.spots), f.spots[0].value)
			}
			return f, ok, why
		}
		last := spots[0]
		f.value, f.shape = last.value, last.shape
		f.origin, f.where = last.origin()
		for _, s := range spots[1:] {
			if !sameValue(spec.Kind, s.value, last.value) {
				return f, false, fmt.Sprintf("%s say different things, so neither is turned", joinSpots(spots))
			}
		}
		v, err := readValue(spec.Kind, f.value)
		if err != nil {
			return f, false, fmt.Sprintf("%s: %v", f.where, err)
		}
		f.value = v
		return f, v != "", ""
	}
	if len(spec.Names)+len(spec.Keys)+len(spec.Calls)+len(spec.FlagNames) == 0 {
		f.value, f.origin, f.where = spec.Default, job.FromDefault, "always so in "+c.prof.Name
		for _, d := range spec.Defaults {
			if k.applies(d) {
				f.value, f.where = d.Value, "default of "+c.prof.Name+" with these settings"
				break
			}
		}
		return f, f.value != "", ""
	}
	if isNull && spec.NullIsOff {
		return f, false, ""
	}
	if v, src, ok, why := c.written(spec, &f); ok && unset(name, spec, v) {
		return f, false, ""
	} else if ok || why != "" {
		f.value, f.origin, f.where, f.inCode = v, job.FromScript, src, ok
		return f, ok, why
	}
	if c.blind != "" {
		return f, false, ""
	}
	if spec.Positional {
		if w := c.bareWord(); w != "" {
			f.value, f.origin, f.where = w, job.FromArgv, w
			return f, true, ""
		}
	}
	return k.defaultOf(name, spec, f)
}

// defaultOf is the value of a knob that stands nowhere: the default of the script's
// own declaration, else of the library.
func (k *knobs) defaultOf(name string, spec knobSpec, f found) (found, bool, string) {
	c := k.c
	for _, n := range spec.Names {
		d, is := c.decl[normalise(n)]
		if !is {
			continue
		}
		f.name, f.shape = n, c.shapeOf(spec, n)
		off := unset(name, spec, d.value)
		if (d.none || off) && spec.Default != "" {
			break
		}
		v, err := readValue(spec.Kind, d.value)
		if d.value == "" || err != nil || off {
			return f, false, ""
		}
		f.value, f.origin, f.where = v, job.FromDefault, "declared in "+c.scriptName()
		if d.config != "" {
			f.origin, f.where = job.FromConfig, d.config
		}
		return f, true, ""
	}
	if f.computed {
		return f, false, ""
	}
	if spec.Default != "" && !c.proven {
		if at, ok := c.called(spec.defaultCalls()); ok {
			f.value, f.origin, f.inCode = spec.Default, job.FromScript, true
			f.where = fmt.Sprintf("default of the call at %s:%d", c.scriptPath(), at.Line)
			return f, true, ""
		}
	}
	if (c.own(spec) || !c.proven) && !c.declaredNone(name, spec) {
		return f, false, ""
	}
	for _, d := range spec.Defaults {
		if k.applies(d) {
			f.value, f.origin, f.where = d.Value, job.FromDefault, "default of "+c.prof.Name+" with these settings"
			return f, true, ""
		}
	}
	if spec.Formula != nil {
		if v, ok := k.formula(*spec.Formula); ok {
			f.value, f.origin, f.where, f.formula = v, job.FromDefault, "default of "+c.prof.Name+", worked out from other settings", true
			return f, true, ""
		}
		if spec.Default == "" {
			return f, false, ""
		}
	}
	if spec.Default == "" {
		return f, false, ""
	}
	v, err := parseValue(spec.Kind, spec.Default)
	if err != nil {
		return f, false, ""
	}
	f.value, f.origin, f.where = v, job.FromDefault, "default of "+c.prof.Name
	return f, true, ""
}

// holds asks a condition of single knobs, so that a knob's default may rest on others.
func (k *knobs) holds(when map[string]string) bool {
	values := map[string]string{}
	for name := range when {
		if f, ok, _ := k.get(name); ok {
			values[name] = f.value
		}
	}
	values[commandName] = k.c.name()
	return holds(when, values)
}

// declaredNone says whether the script declares the knob without a value, so that the
// profile knows what holds then.
func (c *command) declaredNone(name string, spec knobSpec) bool {
	for _, n := range spec.Names {
		if d, is := c.decl[normalise(n)]; is {
			return d.none || unset(name, spec, d.value)
		}
	}
	return false
}

// counted are the knobs of which 0 and less mean that they are not set.
var counted = map[string]bool{
	"seq_len": true, "micro_batch": true, "accumulation": true, "eval_batch": true, "global_batch": true,
	"max_steps": true, "save_steps": true, "resume_from": true,
}

// plainCount are those of counted that people rarely mean so: it is said of them.
var plainCount = map[string]bool{"seq_len": true, "micro_batch": true, "accumulation": true, "global_batch": true}

// set leaves out the spots that say that a count is not set.
func set(name string, spec knobSpec, spots []spot) []spot {
	var out []spot
	for _, s := range spots {
		if !unset(name, spec, s.value) {
			out = append(out, s)
		}
	}
	return out
}

// unset says whether a value says that a count is not set.
func unset(name string, spec knobSpec, value string) bool {
	if !counted[name] || spec.Kind == "str" {
		return false
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(value, "_", ""), 64)
	return err == nil && n <= 0
}

// readValue is parseValue, where a number is also a truth value: 0 is false.
func readValue(kind, text string) (string, error) {
	if kind == "bool" {
		if n, err := parseInt(text); err == nil {
			return strconv.FormatBool(n > 0), nil
		}
	}
	return parseValue(kind, text)
}

// formula works a default out.
func (k *knobs) formula(spec formulaSpec) (string, bool) {
	if spec.Op == "same" {
		f, ok, _ := k.get(spec.Of[0])
		return f.value, ok
	}
	var values []int64
	for _, of := range spec.Of {
		n, err := parseInt(of)
		switch {
		case err == nil:
		case of == "world":
			n = k.c.world
		default:
			f, ok, _ := k.get(of)
			if !ok {
				return "", false
			}
			if n, err = parseInt(f.value); err != nil {
				return "", false
			}
		}
		if n < 1 || n > 1<<40 {
			return "", false
		}
		values = append(values, n)
	}
	out := values[0]
	for _, v := range values[1:] {
		switch {
		case spec.Op == "product":
			if out > (1<<62)/v {
				return "", false
			}
			out *= v
		case spec.Op == "divide" && out%v != 0:
			return "", false
		default:
			out = (out + v - 1) / v
		}
	}
	return strconv.FormatInt(max(out, spec.Min), 10), true
}

// sameValue compares two values as the trainer would read them.
func sameValue(kind, a, b string) bool {
	x, err := readValue(kind, a)
	y, err2 := readValue(kind, b)
	return err == nil && err2 == nil && x == y || a == b
}

// origin says where a spot's value comes from.
func (s *spot) origin() (job.Source, string) {
	switch {
	case s.doc != nil:
		return job.FromConfig, fmt.Sprintf("%s:%d", s.doc.typed, s.entry.Line)
	case s.m.at < 0:
		return job.FromConfig, ".args file " + s.m.typed
	case s.m.pair:
		return job.FromArgv, s.m.typed + "="
	}
	return job.FromArgv, s.m.typed
}

// joinSpots lists spots for a message.
func joinSpots(spots []spot) string {
	var names []string
	for i := range spots {
		s := &spots[i]
		if s.doc != nil {
			_, where := s.origin()
			names = append(names, where+" "+s.entry.Path)
			continue
		}
		names = append(names, s.m.typed)
	}
	sort.Strings(names)
	return strings.Join(names, " and ")
}

// spots finds every place that gives the knob its value. Of two that mean the same
// setting the one that the trainer takes is left. why says why none can be read.
func (c *command) spots(spec knobSpec) (spots []spot, isNull bool, why string) {
	for _, n := range spec.Names {
		if typed := c.takes.unclear[normalise(n)]; typed != "" {
			return nil, false, fmt.Sprintf("%s may mean it or another flag", typed)
		}
	}
	words := map[string]*spot{} // by normalised name
	var order []string
	for _, n := range slices.Concat(spec.FlagNames, spec.Names) {
		nn := normalise(n)
		if _, twice := words[nn]; twice {
			continue
		}
		for i := range c.found {
			m := &c.found[i]
			if m.name != nn {
				continue
			}
			sh := c.shapeOf(spec, n)
			if v, ok := m.value(sh); ok {
				if spec.Kind == "list" {
					v = joined(strings.Join(append([]string{v}, m.rest...), " "))
				}
				if _, again := words[nn]; !again {
					order = append(order, nn)
				}
				words[nn] = &spot{m: m, name: n, value: v, shape: sh}
			}
		}
	}
	if !flagStyle(c.style) {
		order = onlyPairs(order, words)
	}
	var inFiles, winning []spot
	for _, d := range c.docs {
		if d.form.OnlyKeys && len(spec.Keys) == 0 {
			continue
		}
		for _, key := range spec.keys() {
			for _, e := range d.all(key) {
				s := spot{doc: d, entry: e, name: c.flagOf(spec, key), value: e.Value, shape: c.shapeOf(spec, key)}
				if e.Kind == edit.List && spec.Kind == "list" {
					s.value = d.items(e.Path)
				}
				if e.Kind == edit.Null {
					isNull = true
				}
				if d.form.Wins {
					if e.Kind != edit.Null {
						winning = append(winning, s)
					}
					continue
				}
				shadow := c.shadow(d, spec, key, words)
				if shadow == nil {
					// Of the same key in two files the later one holds.
					for i := range inFiles {
						if inFiles[i].doc != d && inFiles[i].entry.Path == e.Path {
							inFiles = append(inFiles[:i], inFiles[i+1:]...)
							break
						}
					}
					if e.Kind != edit.Null {
						inFiles = append(inFiles, s)
					}
				} else if d.form.Override == "dotted" && shadow.m.at < d.word && e.Kind != edit.Null {
					// A file named behind the flag wins over it.
					inFiles = append(inFiles, s)
					shadow.value = "null"
				}
			}
		}
	}
	if len(winning) > 0 {
		spots = winning
	} else {
		for _, nn := range order {
			if s := words[nn]; s.value == "null" {
				isNull = true
			} else {
				spots = append(spots, *s)
			}
		}
		spots = append(spots, inFiles...)
	}
	for i := range spots {
		if s := &spots[i]; s.doc != nil && s.entry.Kind != edit.Scalar && !(s.entry.Kind == edit.List && spec.Kind == "list") {
			_, where := s.origin()
			return nil, false, fmt.Sprintf("%s: %s is %s", where, s.entry.Path, s.entry.Kind)
		}
	}
	return spots, isNull, ""
}

// onlyPairs leaves out the flags where there is a key=value word, which beats them.
func onlyPairs(order []string, words map[string]*spot) []string {
	if !slices.ContainsFunc(order, func(n string) bool { return words[n].m.pair }) {
		return order
	}
	var pairs []string
	for _, n := range order {
		if words[n].m.pair {
			pairs = append(pairs, n)
		} else {
			delete(words, n)
		}
	}
	return pairs
}

// shadow returns the mention that overrides a key of a file, nil if none does.
func (c *command) shadow(d *document, spec knobSpec, key string, words map[string]*spot) *spot {
	if d.form.Override == "none" && len(words) > 0 && d.form.Form == "single" {
		return nil // cannot be: the file is the only argument
	}
	if s, ok := words[normalise(key)]; ok {
		return s
	}
	if len(spec.Keys) > 0 {
		for _, n := range spec.Names {
			if s, ok := words[normalise(n)]; ok {
				return s
			}
		}
	}
	return nil
}

func (s knobSpec) keys() []string {
	if len(s.Keys) > 0 {
		return s.Keys
	}
	return s.Names
}

// flagOf returns the flag that overrides a key.
func (c *command) flagOf(spec knobSpec, key string) string {
	for _, n := range spec.Names {
		if normalise(n) == normalise(key) {
			return n
		}
	}
	return c.spelling(spec)
}

func (c *command) shapeOf(spec knobSpec, name string) shape {
	return shapeOf(c.style, spec.Kind, c.decl[normalise(name)])
}

// choices are the values that the script, else the profile, allows.
func (c *command) choices(spec knobSpec) (values []string, declared bool) {
	for _, n := range spec.Names {
		if d := c.decl[normalise(n)]; len(d.choices) > 0 {
			return d.choices, true
		}
	}
	return spec.Choices, false
}

// spelling returns the name to use where a knob must be added: the one the
// script declares, else the one that fits the installed version.
func (c *command) spelling(spec knobSpec) string {
	for _, n := range spec.Names {
		if _, ok := c.decl[normalise(n)]; ok {
			return n
		}
	}
	if c.version != "" {
		for _, n := range spec.Names {
			since, until := spec.Since[n], spec.Until[n]
			if (since == "" || !place.Older(c.version, since)) && (until == "" || place.Older(c.version, until)) {
				return n
			}
		}
	}
	if len(spec.Names) == 0 {
		return ""
	}
	if len(spec.Since)+len(spec.Until) > 0 && c.version == "" {
		told := c.dialect()
		for _, n := range spec.Names {
			if told.meets(spec.Since[n], spec.Until[n]) {
				return n
			}
		}
	}
	return spec.Names[0]
}

// flag writes the name of a knob as a flag that the parser takes.
func (c *command) flag(name string) string {
	if d := c.decl[normalise(name)]; d.typed != "" {
		return d.typed
	}
	if hyphenStyle(c.style) {
		name = strings.ReplaceAll(name, "_", "-")
	}
	return "--" + name
}

// accepts says whether the knob can be added to the command or to its config file.
func (c *command) accepts(spec knobSpec) bool {
	if c.blind != "" {
		return false
	}
	for _, n := range spec.Names {
		if _, ok := c.decl[normalise(n)]; ok && (c.proven || !mentions(c.text, dispatches)) {
			return true
		}
	}
	if !c.proven || c.own(spec) {
		return false
	}
	d := c.editable()
	return len(spec.Names) > 0 && c.style != "none" || d != nil && (!d.form.OnlyKeys || len(spec.Keys) > 0)
}

// editable is the config file that takes settings which no flag can give, nil if
// there is none.
func (c *command) editable() *document {
	for _, d := range c.docs {
		if d.form.Override == "none" && !d.form.Wins {
			return d
		}
	}
	return nil
}

// own says whether the flag belongs to the script and not to its parser's
// library.
func (c *command) own(spec knobSpec) bool {
	return spec.Own || len(spec.Needs) > 0 && c.place.Program == "" && c.text != "" && !mentions(c.text, spec.Needs)
}
