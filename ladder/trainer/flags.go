package trainer

import (
	"sort"
	"strings"
)

// option is one long flag of the trainer's argv.
type option struct {
	// name is the full name with underscores; typed is the word as it stands,
	// without =value.
	name, typed string
	// at is the index of the word in argv; -1 for a flag of an .args file.
	at int
	// next is the word behind it, if that can be its value.
	next    string
	hasNext bool
	// inline is set for --name=value.
	inline bool
	// negated is set for --no_name.
	negated bool
}

// flagNames is what a trainer's parser is known to take.
type flagNames struct {
	names         map[string]bool
	bools         map[string]bool
	abbreviations bool
}

// resolve returns the full name of a typed flag. Like argparse it takes a prefix
// that fits one name only.
func (f *flagNames) resolve(typed string) (name string, negated, ok bool) {
	name = normalise(strings.TrimPrefix(typed, "--"))
	if f.names[name] {
		return name, false, true
	}
	if rest, is := strings.CutPrefix(name, "no_"); is && f.bools[rest] {
		return rest, true, true
	}
	if !f.abbreviations || name == "" {
		return "", false, false
	}
	full := ""
	for n := range f.names {
		if strings.HasPrefix(n, name) {
			if full != "" {
				return "", false, false
			}
			full = n
		}
	}
	return full, false, full != ""
}

// options reads the flags of words[from:]. Like argparse it takes a word that
// starts with -- for a flag wherever it stands, and stops at a bare --.
func (f *flagNames) options(words []string, from int) []option {
	var opts []option
	for i := from; i < len(words); i++ {
		w := words[i]
		if w == "--" {
			break
		}
		if !strings.HasPrefix(w, "--") {
			continue
		}
		o := option{at: i, typed: w}
		var value string
		o.typed, value, o.inline = strings.Cut(w, "=")
		name, negated, ok := f.resolve(o.typed)
		if !ok {
			continue
		}
		o.name, o.negated = name, negated
		if o.inline {
			o.next, o.hasNext = value, true
		} else if i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") {
			o.next, o.hasNext = words[i+1], true
		}
		opts = append(opts, o)
	}
	return opts
}

// value returns the value that the option gives to a knob of that kind. It is
// false where the option has none.
func (o *option) value(kind string, toggle bool) (string, bool) {
	if kind == "bool" {
		switch {
		case o.negated:
			return "false", true
		case o.hasNext && (o.inline || !toggle):
			if _, ok := parseBool(o.next); ok || o.inline {
				return o.next, true
			}
		}
		return "true", true
	}
	return o.next, o.hasNext
}

// takesNext says whether the word behind the option is its value.
func (o *option) takesNext(kind string, toggle bool) bool {
	if !o.hasNext || o.inline {
		return false
	}
	if kind != "bool" {
		return true
	}
	_, ok := parseBool(o.next)
	return ok && !toggle && !o.negated
}

// known collects the flags that the profile and the script's text name.
func (p *profile) known(decl map[string]declaration) *flagNames {
	f := &flagNames{names: map[string]bool{}, bools: map[string]bool{}, abbreviations: p.Parser.Abbreviations}
	for _, k := range p.Knobs {
		for _, n := range k.Names {
			f.names[n] = true
			if k.Kind == "bool" && p.Parser.Style == "hf" {
				f.bools[n] = true
			}
		}
	}
	for _, c := range p.Config {
		if c.Flag != "" {
			f.names[c.Flag] = true
		}
	}
	for _, n := range p.Flags {
		f.names[n] = true
	}
	for n := range decl {
		f.names[n] = true
	}
	return f
}

// edits collects changes to an argv by index, so that the indexes stay good
// until all of them are known.
type edits struct {
	replace map[int][]string
	added   []string
}

// apply returns the changed argv. What is added goes to the end, or before a
// bare -- behind the trainer's first argument.
func (e *edits) apply(words []string, args int) []string {
	end := len(words)
	for i := args; i < len(words); i++ {
		if words[i] == "--" {
			end = i
			break
		}
	}
	out := make([]string, 0, len(words)+len(e.added))
	for i, w := range words {
		if i == end {
			out = append(out, e.added...)
		}
		if with, ok := e.replace[i]; ok {
			out = append(out, with...)
			continue
		}
		out = append(out, w)
	}
	if end == len(words) {
		out = append(out, e.added...)
	}
	return out
}

// joinFlags lists flags for a message.
func joinFlags(names []string) string {
	s := make([]string, len(names))
	for i, n := range names {
		s[i] = "--" + n
	}
	sort.Strings(s)
	return strings.Join(s, " and ")
}
