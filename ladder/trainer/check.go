package trainer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
	"sparkrun/internal/lazyre"
	"sparkrun/ladder/trainer/checkpoint"
)

// styles are the parsers of command lines that profiles may name.
var styles = []string{"hf", "argparse", "click", "typer", "fire", "dotted", "dotlist", "hydra", "configurator", "none"}

// problem is one thing wrong with a profile, and where: names of keys, and
// indexes as [0].
type problem struct {
	path []string
	text string
}

// parseProfile decodes and checks one profile. It returns everything that is
// wrong with it.
func parseProfile(file string, data []byte) (*profile, []error) {
	var p profile
	type at struct {
		line int
		text string
	}
	var all []at
	if err := configs.Decode(file, data, &p); err != nil {
		keys, others := decodeProblems(file, data, err)
		if len(others) > 0 {
			return nil, others // what else is there would be told of a half-read profile
		}
		for _, k := range keys {
			all = append(all, at(k))
		}
	}
	p.file = file
	found := p.check()
	if len(found)+len(all) == 0 {
		return &p, nil
	}
	for _, f := range found {
		all = append(all, at{lineOf(data, f.path), f.text})
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].line < all[j].line })
	var errs []error
	for _, a := range all {
		errs = append(errs, fmt.Errorf("%s:%d: %s", file, a.line, a.text))
	}
	return nil, errs
}

var (
	decodeLine   = lazyre.New(`^line (\d+): (.*)$`)
	unknownField = lazyre.New(`^field (\S+) not found in type \S+$`)
)

// unknownKey is a key that profiles do not have, on its line.
type unknownKey struct {
	line int
	text string
}

// decodeProblems lists all that the decoder found, of which Decode names the
// first only. Where that is nothing but keys that profiles do not have, the rest was
// read, and they are returned apart.
func decodeProblems(file string, data []byte, first error) (keys []unknownKey, others []error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	var te *yaml.TypeError
	if err := dec.Decode(&profile{}); !errors.As(err, &te) || errors.Is(err, io.EOF) {
		return nil, []error{first}
	}
	apart := true
	for _, e := range te.Errors {
		m := decodeLine.FindStringSubmatch(e)
		if m == nil {
			continue
		}
		line, _ := strconv.Atoi(m[1]) // digits by the pattern
		text := m[2]
		if field := unknownField.FindStringSubmatch(text); field != nil {
			text = fmt.Sprintf("there is no key %s here", field[1])
			keys = append(keys, unknownKey{line, text})
		} else {
			apart = false
		}
		others = append(others, fmt.Errorf("%s:%d: %s", file, line, text))
	}
	switch {
	case len(others) == 0:
		return nil, []error{first}
	case apart:
		return keys, nil
	}
	return nil, others
}

// checker collects problems.
type checker struct {
	p     *profile
	found []problem
}

func (c *checker) wrong(path []string, format string, args ...any) {
	c.found = append(c.found, problem{path, fmt.Sprintf(format, args...)})
}

// oneOf demands that value is among of; an empty entry there allows none.
func (c *checker) oneOf(path []string, value string, of []string) {
	if slices.Contains(of, value) {
		return
	}
	var named []string
	for _, s := range of {
		if s != "" {
			named = append(named, s)
		}
	}
	c.wrong(path, "%s is %q, but must be one of %s", dotted(path), value, strings.Join(named, ", "))
}

// knob demands that a name is a knob of the profile.
func (c *checker) knob(path []string, what, name string) {
	if _, ok := c.p.Knobs[name]; !ok {
		c.wrong(path, "%s names %s, which is not among the knobs", what, name)
	}
}

func (p *profile) check() []problem {
	c := &checker{p: p}
	if p.Name == "" {
		c.wrong([]string{"name"}, "a profile needs a name")
	} else if !profileName.MatchString(p.Name) {
		c.wrong([]string{"name"}, "name is %q: use lower case letters, digits and -", p.Name)
	}
	r := p.Recognise
	if len(r.Programs)+len(r.Modules)+len(r.Scripts)+len(r.Text)+len(r.Flags)+len(r.ConfigKeys) == 0 {
		c.wrong([]string{"recognise"}, "nothing to recognise the trainer by: give programs, modules, scripts, text, flags or config_keys")
	}
	c.oneOf([]string{"family"}, p.Family, []string{"per-device", "global"})
	for i, f := range p.Families {
		at := []string{"families", index(i)}
		c.condition(at, "families", f.When)
		c.oneOf(append(at, "family"), f.Family, []string{"per-device", "global"})
	}
	c.oneOf([]string{"parser", "style"}, p.Parser.Style, styles)
	c.oneOf([]string{"parser", "module_style"}, p.Parser.ModuleStyle, append([]string{""}, styles...))
	if p.Checkpoints != "" && !checkpoint.Known(p.Checkpoints) {
		c.oneOf([]string{"checkpoints"}, p.Checkpoints, checkpoint.Layouts())
	}
	if p.Floor < 0 {
		c.wrong([]string{"floor"}, "floor is negative")
	}
	for i, form := range p.Config {
		c.config([]string{"config", index(i)}, form)
	}
	for _, name := range sortedKeys(p.Knobs) {
		c.spec(name, p.Knobs[name])
	}
	c.method()
	c.rest()
	c.knobNames()
	c.bareNames()
	return c.found
}

var profileName = lazyre.New(`^[a-z0-9][a-z0-9-]*$`)

func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

func (c *checker) config(path []string, form configForm) {
	c.oneOf(append(path, "form"), form.Form, []string{"flag", "single", "first", "positional", "name"})
	if len(form.Valued) > 0 && form.Form != "positional" && form.Form != "name" {
		c.wrong(append(path, "valued"), "valued belongs to form: positional or name")
	}
	if (form.Form == "flag") != (len(form.flags()) > 0) {
		c.wrong(path, "flag belongs to form: flag, and only there")
	}
	c.oneOf(append(path, "override"), form.Override, []string{"flags", "dotlist", "dotted", "click", "hydra", "none"})
	c.oneOf(append(path, "keys"), form.Keys, []string{"", "flat", "nested"})
	if form.Wins && form.Override != "none" {
		c.wrong(append(path, "wins"), "a file that beats the command line has override: none")
	}
}

func (c *checker) spec(name string, k knobSpec) {
	path := []string{"knobs", name}
	if !validName(name) {
		c.wrong(path, "knob name %q: use lower case letters, digits and _", name)
	}
	if len(k.Names)+len(k.Keys)+len(k.Calls)+len(k.FallbackCalls)+len(k.FlagNames)+len(k.Defaults) == 0 && k.Default == "" {
		c.wrong(path, "knob %s has no names", name)
	}
	if !slices.Contains([]string{"int", "float", "bool", "str", "list"}, k.Kind) {
		c.wrong(append(path, "kind"), "knob %s has kind %q, but must be int, float, bool, str or list", name, k.Kind)
	} else if k.Default != "" {
		if _, err := parseValue(k.Kind, k.Default); err != nil {
			c.wrong(append(path, "default"), "knob %s: default: %v", name, err)
		}
	}
	for _, m := range []struct {
		what string
		of   map[string]string
	}{{"since", k.Since}, {"until", k.Until}} {
		for _, n := range sortedKeys(m.of) {
			if !slices.Contains(k.Names, n) {
				c.wrong(append(path, m.what), "knob %s: %s tells of %s, which is not among its names", name, m.what, n)
			}
		}
	}
	for _, call := range slices.Concat(k.Calls, k.FallbackCalls) {
		if i := strings.LastIndexByte(call, '.'); i < 1 || i == len(call)-1 {
			c.wrong(append(path, "calls"), "knob %s: calls are CALL.keyword, as in SFTConfig.max_length, not %q", name, call)
		}
	}
	for _, call := range k.DefaultCalls {
		if !slices.Contains(k.Calls, call) {
			c.wrong(append(path, "default_calls"), "knob %s: default_calls tells of %s, which is not among its calls", name, call)
		}
	}
	for i, d := range k.Defaults {
		at := append(path, "defaults", index(i))
		if len(d.When) > 0 || len(d.Text) == 0 && d.Since == "" {
			c.condition(at, "defaults", d.When)
		}
		if d.Since != "" && d.Package == "" && c.p.Package == "" {
			c.wrong(at, "knob %s: since needs the package whose version it tells of", name)
		}
		if _, err := parseValue(k.Kind, d.Value); err != nil {
			c.wrong(at, "knob %s: defaults: %v", name, err)
		}
	}
	for i, r := range k.SetBy {
		at := append(path, "set_by", index(i))
		if _, err := parseValue(k.Kind, r.Value); err != nil || r.Call == "" || r.Value == "" {
			c.wrong(at, "knob %s: set_by needs a call and a value of kind %s", name, k.Kind)
		}
	}
	if k.Positional && k.Kind != "str" {
		c.wrong(append(path, "positional"), "knob %s: a bare word is of kind str", name)
	}
	for i, v := range k.Void {
		c.when(append(path, "void", index(i)), "void", v)
	}
	for i, v := range k.UnknownWhen {
		c.when(append(path, "unknown_when", index(i)), "unknown_when", v)
	}
	for i, m := range k.Mins {
		at := append(path, "mins", index(i))
		if m.Min < 1 || m.Why == "" || len(m.When)+len(m.Text) == 0 {
			c.wrong(at, "knob %s: mins needs min, why, and a condition: when or text", name)
		}
		if len(m.When) > 0 {
			c.condition(at, "mins", m.When)
		}
	}
	if k.AllProcesses && k.Kind != "int" {
		c.wrong(append(path, "all_processes"), "knob %s: only a whole number can be shared by all processes", name)
	}
	c.oneOf(append(path, "off"), k.Off, []string{"", "remove", "null", "false"})
	for what, other := range map[string]string{"multiple_of": k.MultipleOf, "divides": k.Divides} {
		if other != "" {
			c.knob(append(path, what), what, other)
		}
	}
	if f := k.Formula; f != nil {
		at := append(path, "formula")
		c.oneOf(append(at, "op"), f.Op, []string{"ceil_div", "divide", "product", "same"})
		if len(f.Of) == 0 || f.Op == "same" && len(f.Of) != 1 {
			c.wrong(at, "knob %s: formula needs `of`, a list of knobs and numbers (one for same)", name)
		}
		for _, of := range f.Of {
			if _, err := parseInt(of); err != nil && of != "world" {
				c.knob(at, "formula", of)
			}
		}
	}
}

// when checks a rule of conditions and its sentence.
func (c *checker) when(path []string, what string, r voidRule) {
	if r.Why == "" {
		c.wrong(path, "%s needs why: a sentence that says the reason", what)
	}
	c.condition(path, what, r.When)
}

func (c *checker) condition(path []string, what string, when map[string]string) {
	if len(when) == 0 {
		c.wrong(path, "%s has an empty condition", what)
	}
	for _, name := range sortedKeys(when) {
		if name != commandName {
			c.knob(path, what, name)
		}
	}
}

func (c *checker) method() {
	m := c.p.Method
	c.oneOf([]string{"method", "otherwise"}, m.Otherwise, []string{"", "full", "lora", "qlora"})
	for _, name := range sortedKeys(m.Scripts) {
		c.oneOf([]string{"method", "scripts", name}, m.Scripts[name], []string{"full", "lora", "qlora"})
	}
	for _, name := range sortedKeys(m.Recipes) {
		c.oneOf([]string{"method", "recipes", name}, m.Recipes[name], []string{"full", "lora", "qlora"})
	}
	for _, l := range []struct {
		what string
		of   []map[string]string
	}{{"quantised_when", m.QuantisedWhen}, {"lora_when", m.LoRAWhen}, {"full_when", m.FullWhen}} {
		for i, w := range l.of {
			c.condition([]string{"method", l.what, index(i)}, "method", w)
		}
	}
	for _, t := range []struct {
		what    string
		of      map[string]string
		refused string
	}{{"to_lora", m.ToLoRA, m.ToLoRARefused}, {"to_16bit", m.To16Bit, m.To16BitRefused}} {
		for _, name := range sortedKeys(t.of) {
			c.knob([]string{"method", t.what}, "method", name)
		}
		if len(t.of) > 0 && t.refused != "" {
			c.wrong([]string{"method", t.what + "_refused"}, "method has both %s and %s_refused", t.what, t.what)
		}
	}
	for _, name := range m.Optional {
		c.knob([]string{"method", "optional"}, "method", name)
	}
}

// placeholder is a knob's name in a path of a profile.
var placeholder = lazyre.New(`\{([^{}]*)\}`)

func (c *checker) rest() {
	p := c.p
	if t := p.Truncation; t.Set != "" || len(t.Drops) > 0 || t.Say != "" {
		at := []string{"truncation"}
		if t.Set == "" || len(t.Drops) == 0 || t.Say == "" {
			c.wrong(at, "truncation needs drops, set and say")
		}
		c.knob(at, "truncation", "truncation")
	}
	for i, r := range p.SelfShrinks {
		c.when([]string{"self_shrinks", index(i)}, "self_shrinks", r)
	}
	for i, r := range p.LongRows {
		at := []string{"long_rows", index(i)}
		if r.Say == "" {
			c.wrong(at, "long_rows needs say: what becomes of rows that are too long")
		}
		if len(r.When) > 0 {
			c.condition(at, "long_rows", r.When)
		}
	}
	for i, r := range p.LeaveAlone {
		if len(r.Flags) == 0 || r.Why == "" {
			c.wrong([]string{"leave_alone", index(i)}, "leave_alone needs flags and why: a sentence that says the reason")
		}
	}
	if p.DeepSpeed {
		c.knob([]string{"deepspeed"}, "deepspeed", "deepspeed")
	}
	c.oneOf([]string{"resume", "how"}, p.Resume.How, []string{"", "never", "text", "always", "auto"})
	c.oneOf([]string{"resume", "value"}, p.Resume.Value, []string{"", "path", "name", "step", "dir", "none", "latest"})
	for _, name := range sortedKeys(p.Resume.Also) {
		c.knob([]string{"resume", "also"}, "resume", name)
	}
	if p.Resume.How == "always" && !p.Resume.fromFolder() {
		c.knob([]string{"resume"}, "resume: {how: always}", "resume_from")
	}
	if p.Resume.Source != "" && p.Resume.How != "text" {
		c.wrong([]string{"resume", "source"}, "resume: source belongs to how: text")
	}
	if p.Resume.How == "never" && p.Resume.Why == "" {
		c.wrong([]string{"resume"}, "resume: {how: never} needs why: a sentence that says the reason")
	}
	for what, text := range map[string]string{"default": p.Output.Default, "folder": p.Output.Folder} {
		c.placeholders([]string{"output", what}, text)
	}
	for i, l := range p.Logs {
		if l.Path == "" {
			c.wrong([]string{"logs", index(i)}, "logs: a log needs its path")
		}
		c.placeholders([]string{"logs", index(i)}, l.Path)
	}
}

func (c *checker) placeholders(path []string, text string) {
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		c.knob(path, dotted(path), m[1])
	}
}

// lineOf returns the line of the key at path, or of the nearest parent there
// is.
func lineOf(data []byte, path []string) int {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) == 0 {
		return 1
	}
	node, line := doc.Content[0], 1
	for _, key := range path {
		var next *yaml.Node
		switch node.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(node.Content); i += 2 {
				if node.Content[i].Value == key {
					line, next = node.Content[i].Line, node.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			for i, item := range node.Content {
				if index(i) == key {
					line, next = item.Line, item
				}
			}
		}
		if next == nil {
			break
		}
		node = next
	}
	return line
}

// dotted writes a place in a profile as people do: config[1].override.
func dotted(path []string) string {
	return strings.ReplaceAll(strings.Join(path, "."), ".[", "[")
}
