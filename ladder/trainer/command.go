package trainer

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// command is a command line as far as it is understood: where the trainer
// stands in it, which profile fits, and every flag and setting found.
type command struct {
	place
	words []string
	prof  *profile
	text  string
	decl  map[string]declaration
	flags *flagNames
	// proven says that the parser is certain to take all flags of the profile.
	proven bool
	opts   []option
	doc    *document
	// pairs are key=value words behind a config file, by index in words.
	pairs map[int]string
	// blind is set when settings stand in a file that cannot be read: then no
	// default holds.
	blind string
	// version is that of the profile's package, "" if unknown.
	version string
}

// spot is one place where the value of a knob stands.
type spot struct {
	opt  *option
	pair int // index in words, -1 for none
	key  string
	line int // in the config file, 0 for none
	flag string
}

// found is the value of a knob, as the trainer will see it.
type found struct {
	value string
	// origin is "argv", "config" or "default".
	origin, where string
	// spots hold every place that says the same; empty for a default.
	spots []spot
	// name is the spelling to use where the knob must be added.
	name   string
	toggle bool
}

// inspect reads a command line. interpreter is the Python that will run it, ""
// if unknown.
func (s *Set) inspect(words []string, dir string) *command {
	c := &command{place: s.words.find(words, dir), words: words}
	if c.container != nil || c.launcher != nil || c.unsure != "" || !c.seen() {
		return c
	}
	c.text = c.scriptText()
	c.prof = s.recognise(c)
	if c.prof == nil {
		return c
	}
	r := c.prof.Recognise
	if (c.program != "" && len(r.Subcommands) > 0 && slices.Contains(r.Programs, filepath.Base(c.program))) ||
		(c.module != "" && len(r.ModuleSubcommands) > 0 && slices.Contains(r.Modules, c.module)) {
		c.args++
	}
	p := c.prof.Parser
	c.proven = p.Always || mentions(c.text, p.Text)
	c.decl = declared(c.text, c.proven && p.Style == "hf")
	c.flags = c.prof.known(c.decl)
	if !c.proven {
		c.flags.abbreviations = false
	}
	c.opts = c.flags.options(words, c.args)
	c.openConfig()
	return c
}

func mentions(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// recognise picks the profile that the strongest sign points to: the program,
// the module, the script's name, its text, the flags in argv, and last the flags
// that the script declares.
func (s *Set) recognise(c *command) *profile {
	rest := c.words[c.args:]
	sub := ""
	if len(rest) > 0 {
		sub = rest[0]
	}
	signs := []func(recognise) bool{
		func(r recognise) bool {
			return c.program != "" && slices.Contains(r.Programs, filepath.Base(c.program)) &&
				(len(r.Subcommands) == 0 || slices.Contains(r.Subcommands, sub))
		},
		func(r recognise) bool {
			return c.module != "" && slices.Contains(r.Modules, c.module) &&
				(len(r.ModuleSubcommands) == 0 || slices.Contains(r.ModuleSubcommands, sub))
		},
		func(r recognise) bool { return c.script != "" && slices.Contains(r.Scripts, filepath.Base(c.script)) },
		func(r recognise) bool { return mentions(c.text, r.Text) },
		func(r recognise) bool {
			for _, w := range rest {
				name, _, _ := strings.Cut(w, "=")
				if strings.HasPrefix(name, "--") && slices.Contains(r.Flags, normalise(name[2:])) {
					return true
				}
			}
			return false
		},
	}
	for _, fits := range signs {
		for _, p := range s.profiles {
			if fits(p.Recognise) {
				return p
			}
		}
	}
	return s.byDeclarations(c.text)
}

// dispatches are words of scripts of which one parser takes a flag that another
// refuses, or that hand on what they do not know: where a flag may go cannot be
// told from its declaration.
var dispatches = []string{"add_subparsers(", "REMAINDER", "@click.group", ".group("}

// byDeclarations picks a profile for a script none of whose flags is typed: one
// of its names must be declared in the script, and of several profiles the one
// that knows the most of its settings fits. The user's own come first.
func (s *Set) byDeclarations(text string) *profile {
	if text == "" || mentions(text, dispatches) {
		return nil
	}
	decl := declared(text, false)
	var best *profile
	most := 0
	for _, p := range s.profiles {
		if !slices.ContainsFunc(p.Recognise.Flags, func(name string) bool { _, ok := decl[name]; return ok }) {
			continue
		}
		if p.user {
			return p
		}
		known := 0
		for _, k := range p.Knobs {
			if slices.ContainsFunc(k.Names, func(name string) bool { _, ok := decl[name]; return ok }) {
				known++
			}
		}
		if known > most {
			best, most = p, known
		}
	}
	return best
}

// openConfig finds and reads the config file that the command names, and the
// script's .args file.
func (c *command) openConfig() {
	args := c.words[c.args:]
	for _, form := range c.prof.Config {
		if len(form.Text) > 0 && !mentions(c.text, form.Text) {
			continue
		}
		at := -1
		switch form.Form {
		case "flag":
			// Two words only: TRL does not see --config=FILE.
			for i := range c.opts {
				if o := &c.opts[i]; o.name == form.Flag && o.at >= 0 && o.hasNext && !o.inline {
					at = o.at + 1
				}
			}
		case "single":
			if len(args) == 1 {
				at = c.args
			}
		case "first":
			if len(args) > 0 {
				at = c.args
			}
		}
		if at < 0 || len(form.Extensions) > 0 && !slices.Contains(form.Extensions, filepath.Ext(c.words[at])) {
			continue
		}
		doc, err := openDocument(c.words[at], c.dir, at, form)
		c.doc = doc
		if err != nil {
			c.blind = err.Error()
		}
		if form.Override == "dotlist" {
			c.readPairs(at + 1)
			c.opts = nil // flags do not mix with this form
		}
		break
	}
	if c.doc == nil && len(args) > 0 && slices.Contains([]string{".json", ".yaml", ".yml", ".toml"}, filepath.Ext(args[0])) && args[0][0] != '-' {
		c.blind = args[0] + " is given in a way that profile " + c.prof.Name + " does not know"
	}
	if c.prof.Parser.Style == "hf" && c.script != "" {
		c.readArgsFile()
	}
}

func (c *command) readPairs(from int) {
	c.pairs = map[int]string{}
	for i := from; i < len(c.words); i++ {
		key, _, ok := strings.Cut(c.words[i], "=")
		if ok && key != "" && key[0] != '-' {
			c.pairs[i] = key
		}
	}
}

// readArgsFile reads SCRIPT.args, whose words HfArgumentParser puts before those
// of the command line.
func (c *command) readArgsFile() {
	if !c.proven || !mentions(c.text, []string{"HfArgumentParser("}) {
		return
	}
	path := absolute(c.dir, c.script)
	data := readHead(strings.TrimSuffix(path, filepath.Ext(path))+".args", maxConfig)
	if data == nil {
		return
	}
	early := c.flags.options(strings.Fields(string(data)), 0)
	for i := range early {
		early[i].at = -1
	}
	c.opts = append(early, c.opts...)
}

// knob returns what the trainer will take for the knob of that name. It is
// false where that is not known; why then says what a person should know.
func (c *command) knob(name string) (f found, ok bool, why string) {
	spec, ok := c.prof.Knobs[name]
	if !ok {
		return f, false, ""
	}
	f.name = c.spelling(spec)
	values := map[string]string{}
	for _, n := range spec.Names {
		d, isDeclared := c.decl[n]
		s, value, origin, where := c.lookup(n, spec.Kind, d.toggle)
		if s == nil {
			continue
		}
		f.toggle = isDeclared && d.toggle
		f.origin, f.where, f.value = origin, where, value
		f.spots = append(f.spots, *s)
		values[value] = n
	}
	if len(values) > 1 {
		return f, false, fmt.Sprintf("%s say different things, so neither is turned", joinFlags(spotNames(f.spots)))
	}
	if len(f.spots) > 0 {
		v, err := parseValue(spec.Kind, f.value)
		if err != nil {
			return f, false, fmt.Sprintf("%s: %v", f.where, err)
		}
		f.value = v
		return f, true, ""
	}
	if c.blind != "" {
		return f, false, ""
	}
	// Nowhere given: the default of the script's own declaration, else of the
	// library.
	for _, n := range spec.Names {
		d, is := c.decl[n]
		if !is {
			continue
		}
		f.toggle, f.name = d.toggle, n
		v, err := parseValue(spec.Kind, d.value)
		if d.value == "" || err != nil {
			return f, false, ""
		}
		f.value, f.origin, f.where = v, "default", "declared in "+filepath.Base(c.scriptName())
		return f, true, ""
	}
	if c.own(spec) || !c.proven || spec.Default == "" {
		return f, false, ""
	}
	v, err := parseValue(spec.Kind, spec.Default)
	if err != nil {
		return f, false, ""
	}
	f.value, f.origin, f.where = v, "default", "default of "+c.prof.Name
	return f, true, ""
}

func spotNames(spots []spot) []string {
	names := make([]string, len(spots))
	for i, s := range spots {
		names[i] = s.flag
	}
	return names
}

func (c *command) scriptName() string {
	switch {
	case c.script != "":
		return c.script
	case c.module != "":
		return c.module
	}
	return c.program
}

// lookup finds the last and strongest mention of one spelling.
func (c *command) lookup(name, kind string, toggle bool) (s *spot, value, origin, where string) {
	if c.doc != nil {
		if e, ok := c.doc.get(name); ok && !e.null {
			s = &spot{pair: -1, key: name, line: e.line, flag: name}
			value, origin, where = e.value, "config", fmt.Sprintf("%s:%d", c.doc.typed, e.line)
		}
	}
	for i := 0; i < len(c.words) && len(c.pairs) > 0; i++ {
		if c.pairs[i] != name {
			continue
		}
		_, v, _ := strings.Cut(c.words[i], "=")
		if v == "null" {
			s = nil
			continue
		}
		key, line := "", 0
		if s != nil {
			key, line = s.key, s.line
		}
		s = &spot{pair: i, key: key, line: line, flag: name}
		value, origin, where = v, "argv", name+"="
	}
	for i := range c.opts {
		o := &c.opts[i]
		if o.name != name {
			continue
		}
		v, ok := o.value(kind, toggle)
		if !ok {
			continue
		}
		s = &spot{opt: o, pair: -1, flag: name}
		value, origin, where = v, "argv", o.typed
		if o.at < 0 {
			origin, where = "config", ".args file "+o.typed
		}
	}
	return s, value, origin, where
}

// spelling returns the name to use where a knob must be added: the one the
// script declares, else the one that fits the installed version.
func (c *command) spelling(spec knobSpec) string {
	for _, n := range spec.Names {
		if _, ok := c.decl[n]; ok {
			return n
		}
	}
	if c.version != "" {
		for _, n := range spec.Names {
			since, until := spec.Since[n], spec.Until[n]
			if (since == "" || !older(c.version, since)) && (until == "" || older(c.version, until)) {
				return n
			}
		}
	}
	return spec.Names[0]
}

// takes says whether the knob's flag can be added to the command.
func (c *command) takes(name string) bool {
	spec, ok := c.prof.Knobs[name]
	if !ok {
		return false
	}
	for _, n := range spec.Names {
		if s, _, _, _ := c.lookup(n, spec.Kind, false); s != nil {
			return true
		}
		if _, ok := c.decl[n]; ok {
			return true
		}
	}
	return c.proven && !c.own(spec) && c.blind == ""
}

// own says whether the flag belongs to the script and not to its parser's
// library.
func (c *command) own(spec knobSpec) bool {
	return spec.Own || len(spec.Needs) > 0 && c.program == "" && c.text != "" && !mentions(c.text, spec.Needs)
}
