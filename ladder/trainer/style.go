package trainer

import (
	"strings"

	"sparkrun/internal/edit"
	"sparkrun/internal/lazyre"
)

// mention is one place in the trainer's own words that gives a setting.
type mention struct {
	// name is the full name with underscores; typed is the word as it stands,
	// without =value: --max-length, -b, cutoff_len.
	name, typed string
	// at is the index of the word; -1 for a flag of an .args file.
	at int
	// pair is set for key=value words, prefix is Hydra's +, ++ or ~ in front.
	pair   bool
	prefix string
	// next is the value, or the word behind that can be it.
	next    string
	hasNext bool
	// inline is set where the value stands in the same word, behind sep.
	inline bool
	sep    string
	// rest are the words behind next that are no flags: more items of a list.
	rest []string
	// negated is set for --no_name, --no-name and --noname.
	negated bool
}

// arguments is what a trainer's parser is known to take.
type arguments struct {
	style string
	// names are normalised; bools are those of them that a no in front may negate.
	names, bools map[string]bool
	// knobs are the names of settings, whose values are no words of their own.
	knobs         map[string]bool
	shorts        map[string]string // -b -> batch_size
	abbreviations bool
	// foreign are names that the parser at hand does not have, so that no
	// abbreviation means them.
	foreign map[string]bool
	// unclear are names that a typed abbreviation may mean, by that abbreviation.
	unclear map[string]string
}

// onlyDeclared is for a script that is not certain to take the profile's flags: of
// those, argparse takes abbreviations of the ones that it declares.
func (a *arguments) onlyDeclared(text string, decl map[string]declaration) {
	a.abbreviations = a.style != "click" && a.style != "typer" && strings.Contains(text, "add_argument(") &&
		!strings.Contains(text, "allow_abbrev") && !mentions(text, dispatches)
	for n := range a.names {
		if _, is := decl[n]; !is {
			a.foreign[n] = true
		}
	}
}

// flagStyle says whether settings are flags (--name) or key=value words.
func flagStyle(style string) bool {
	return style != "dotlist" && style != "hydra" && style != "none"
}

// hyphenStyle says whether the parser knows names with hyphens only.
func hyphenStyle(style string) bool { return style == "click" || style == "typer" }

// normalise writes a flag's name with underscores: HfArgumentParser takes both
// spellings, and of the other parsers none has two flags that differ in this.
func normalise(name string) string { return strings.ReplaceAll(name, "-", "_") }

// resolve returns the full name of a typed flag. Like argparse it takes a prefix
// that fits one name only; of others it notes what they may mean.
func (a *arguments) resolve(typed string) (name string, negated, ok bool) {
	raw := strings.TrimPrefix(typed, "--")
	if hyphenStyle(a.style) && strings.Contains(raw, "_") {
		return "", false, false // handed on to a launcher, or refused
	}
	name = normalise(raw)
	if a.names[name] {
		return name, false, true
	}
	switch a.style {
	case "hf", "click", "typer", "argparse":
		if rest, is := strings.CutPrefix(name, "no_"); is && a.bools[rest] {
			return rest, true, true
		}
	case "fire":
		if rest, is := strings.CutPrefix(name, "no"); is && a.bools[rest] {
			return rest, true, true
		}
	}
	if !a.abbreviations || name == "" {
		return "", false, false
	}
	var full []string
	for n := range a.names {
		if strings.HasPrefix(n, name) && !a.foreign[n] {
			full = append(full, n)
		}
	}
	if len(full) == 1 {
		return full[0], false, true
	}
	for _, n := range full {
		a.unclear[n] = typed
	}
	return "", false, false
}

// pairKey is the key of a key=value word.
var pairKey = lazyre.New(`^(\+\+|\+|~)?([A-Za-z_][\w./@\[\]-]*)$`)

// read finds the settings in words[from:].
func (a *arguments) read(words []string, from int) []mention {
	switch {
	case a.style == "none":
		return nil
	case !flagStyle(a.style):
		return readPairs(words, from)
	}
	return a.readFlags(words, from)
}

// readPairs finds key=value words.
func readPairs(words []string, from int) []mention {
	var found []mention
	for i := from; i < len(words); i++ {
		key, value, ok := strings.Cut(words[i], "=")
		m := pairKey.FindStringSubmatch(key)
		if m == nil || !ok && m[1] != "~" {
			continue
		}
		p := mention{name: normalise(m[2]), typed: m[2], at: i, pair: true, prefix: m[1], next: value, hasNext: true, inline: true, sep: "="}
		if p.prefix == "~" {
			p.next = "null"
		}
		found = append(found, p)
	}
	return found
}

// readFlags finds the flags. Like argparse it takes a word that starts with --
// for a flag wherever it stands, and stops at a bare --.
func (a *arguments) readFlags(words []string, from int) []mention {
	var found []mention
	for i := from; i < len(words); i++ {
		w := words[i]
		if w == "--" {
			break
		}
		m := mention{at: i, typed: w, sep: "="}
		var value string
		switch {
		case strings.HasPrefix(w, "--"):
			m.typed, value, m.inline = strings.Cut(w, "=")
			var ok bool
			if m.name, m.negated, ok = a.resolve(m.typed); !ok {
				continue
			}
		case len(w) > 1 && w[0] == '-':
			// -b 8, -b8 and -b=8.
			name, ok := a.shorts[w]
			if !ok && len(w) > 2 {
				if name, ok = a.shorts[w[:2]]; ok {
					m.typed, value, m.inline, m.sep = w[:2], w[2:], true, ""
					if value[0] == '=' {
						value, m.sep = value[1:], "="
					}
				}
			}
			if !ok {
				continue
			}
			m.name = name
		default:
			continue
		}
		if m.inline {
			m.next, m.hasNext = value, true
		} else if a.style != "configurator" && i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") {
			m.next, m.hasNext = words[i+1], true
			for _, w := range words[i+2:] {
				if strings.HasPrefix(w, "-") {
					break
				}
				m.rest = append(m.rest, w)
			}
		}
		found = append(found, m)
	}
	return found
}

// shape is how a flag takes its value.
type shape int

const (
	takesValue shape = iota
	// toggle flags stand by themselves: there is true, not there is false.
	toggle
	// dual flags stand by themselves and have a --no- form.
	dual
	// mayValue flags stand by themselves or take true or false.
	mayValue
	// loose flags are those of a plain parser whose declaration is not seen: read as
	// mayValue, written as toggle unless a value stands behind them.
	loose
)

// shapeOf returns how the flag of a knob takes its value.
func shapeOf(style, kind string, d declaration) shape {
	switch {
	case kind != "bool":
		return takesValue
	case d.toggle:
		return toggle
	case d.dual || hyphenStyle(style):
		return dual
	case style == "argparse" && !d.known:
		return loose
	case style == "hf", style == "fire", style == "dotted":
		return mayValue
	}
	return takesValue
}

// value returns the value that the mention gives to a knob. It is false where it
// has none.
func (m *mention) value(sh shape) (string, bool) {
	switch {
	case m.negated:
		return "false", true
	case sh == toggle || sh == dual:
		if m.inline {
			return m.next, true
		}
		return "true", true
	case sh == mayValue || sh == loose:
		if m.takesNext(sh) || m.inline {
			return m.next, true
		}
		return "true", true
	}
	return m.next, m.hasNext
}

// takesNext says whether the word behind the mention is its value.
func (m *mention) takesNext(sh shape) bool {
	if !m.hasNext || m.inline {
		return false
	}
	switch sh {
	case takesValue:
		return true
	case mayValue, loose:
		_, ok := edit.AsBool(m.next)
		return ok && !m.negated
	}
	return false
}

// spell writes a value in the words of a style's parser.
func spell(style, kind, value string) string {
	if kind != "bool" {
		return value
	}
	on, ok := edit.AsBool(value)
	if !ok {
		return value
	}
	switch style {
	case "dotted", "hydra", "click", "typer":
		if on {
			return "true"
		}
		return "false"
	}
	if on {
		return "True"
	}
	return "False"
}

// edits collects changes to words by index, so that the indexes stay good until
// all of them are known.
type edits struct {
	replace map[int][]string
	added   []string
}

// apply returns the changed words. What is added goes to the end, or before a
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
