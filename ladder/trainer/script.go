package trainer

import (
	"path/filepath"
	"regexp"
	"strings"
)

// scriptHead is how much of a script is read: its flags are declared near the
// top, and a data file given as a script must not fill memory.
const scriptHead = 200 << 10

// scriptText returns the beginning of the trainer's Python source, where it can
// be found without asking Python.
func (p *place) scriptText() string {
	switch {
	case p.script != "":
		return string(readHead(absolute(p.dir, p.script), scriptHead))
	case p.module != "":
		rel := strings.ReplaceAll(p.module, ".", "/")
		for _, name := range []string{rel + ".py", rel + "/__main__.py"} {
			if text := readHead(filepath.Join(p.dir, name), scriptHead); text != nil {
				return string(text)
			}
		}
	case strings.Contains(p.program, "/"):
		file := absolute(p.dir, p.program)
		if shebang(file) != "" {
			return string(readHead(file, scriptHead))
		}
	}
	return ""
}

// declaration is what a script's text says of one of its flags.
type declaration struct {
	// value is the default, "" if it is not a literal.
	value string
	// toggle marks action="store_true": the flag takes no value.
	toggle bool
	// choices are the values allowed, none if any is.
	choices []string
}

var (
	addArgument = regexp.MustCompile(`(?s)\b(?:add_argument|option)\(\s*((?:["']-{1,2}[\w-]+["']\s*,?\s*)+)`)
	// A script may declare its flags through a function of its own that puts the
	// dashes in front.
	joinsDashes  = regexp.MustCompile(`["']--["']\s*\+`)
	ownDeclare   = regexp.MustCompile(`\b(?:flag|option|opt|add_flag|add_option|add_opt)\(\s*["']([a-z_]\w*)["']`)
	longFlag     = regexp.MustCompile(`["']--([A-Za-z][\w-]*)["']`)
	argDefault   = regexp.MustCompile(`\bdefault\s*=\s*(?:["']([^"']*)["']|([\w.+-]+))\s*[,)]`)
	argChoices   = regexp.MustCompile(`(?s)\bchoices\s*=\s*[\[(]([^\])]*)[\])]`)
	argToggle    = regexp.MustCompile(`\baction\s*=\s*["']store_true["']`)
	dataField    = regexp.MustCompile(`(?m)^[ \t]+([a-z_]\w*)\s*:\s*[^=\n()]+=[ \t]*(.*)$`)
	fieldDefault = regexp.MustCompile(`^field\(\s*(?:.*\b)?default\s*=\s*(?:["']([^"']*)["']|([\w.+-]+))\s*[,)]`)
	pyLiteral    = regexp.MustCompile(`^(?:["']([^"']*)["']|([\w.+-]+))\s*(?:#.*)?$`)
)

// declared reads the flags that a script declares: add_argument("--x") of
// argparse and, where fields is set, the fields of its dataclasses.
func declared(text string, fields bool) map[string]declaration {
	m := map[string]declaration{}
	if fields {
		for _, f := range dataField.FindAllStringSubmatchIndex(text, -1) {
			name, rest := text[f[2]:f[3]], text[f[4]:f[5]]
			if strings.HasPrefix(rest, "field(") {
				// The default may stand on a later line of the call.
				call := callText(text[f[4]:])
				m[name] = declaration{value: literal(fieldDefault.FindStringSubmatch(strings.Join(strings.Fields(call), " ")))}
				continue
			}
			m[name] = declaration{value: literal(pyLiteral.FindStringSubmatch(rest))}
		}
	}
	if joinsDashes.MatchString(text) {
		for _, at := range ownDeclare.FindAllStringSubmatchIndex(text, -1) {
			if commented(text, at[0]) {
				continue
			}
			m[text[at[2]:at[3]]] = declarationOf(callText(text[at[0]:]))
		}
	}
	for _, at := range addArgument.FindAllStringSubmatchIndex(text, -1) {
		if commented(text, at[0]) {
			continue
		}
		d := declarationOf(callText(text[at[0]:]))
		for _, name := range longFlag.FindAllStringSubmatch(text[at[2]:at[3]], -1) {
			m[normalise(name[1])] = d
		}
	}
	return m
}

// commented says whether the line of text[at] is a comment: a flag that was
// taken out that way is one the script refuses.
func commented(text string, at int) bool {
	line := text[strings.LastIndexByte(text[:at], '\n')+1 : at]
	return strings.HasPrefix(strings.TrimLeft(line, " \t"), "#")
}

// declarationOf reads the keywords of one call that declares a flag.
func declarationOf(call string) declaration {
	d := declaration{
		value:  literal(argDefault.FindStringSubmatch(call)),
		toggle: argToggle.MatchString(call),
	}
	if c := argChoices.FindStringSubmatch(call); c != nil {
		for _, v := range strings.Split(c[1], ",") {
			if v = strings.Trim(strings.TrimSpace(v), `"'`); v != "" {
				d.choices = append(d.choices, v)
			}
		}
	}
	if d.toggle && d.value == "" {
		d.value = "false"
	}
	return d
}

// literal returns the default that one of the patterns above found, "" for
// None, for a name and for anything computed.
func literal(m []string) string {
	if m == nil {
		return ""
	}
	if m[1] != "" {
		return m[1]
	}
	v := m[2]
	switch v {
	case "None":
		return ""
	case "True", "False":
		return strings.ToLower(v)
	}
	if _, err := parseValue("float", strings.ReplaceAll(v, "_", "")); err != nil {
		return ""
	}
	return v
}

// maxCall bounds the text of one call.
const maxCall = 4 << 10

// callText returns a call from its name to its closing bracket. Strings with a
// space or an equals sign in them, which are help texts, come out empty, and
// comments not at all. A call that does not end gives nothing.
func callText(text string) string {
	text = text[:min(len(text), maxCall)]
	var b strings.Builder
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"', '\'':
			end, inside := stringAt(text, i)
			if end < 0 {
				return ""
			}
			if strings.ContainsAny(inside, " =\n") {
				inside = ""
			}
			b.WriteByte(c)
			b.WriteString(inside)
			b.WriteByte(c)
			i = end - 1
			continue
		case '#':
			n := strings.IndexByte(text[i:], '\n')
			if n < 0 {
				return ""
			}
			i += n - 1
			continue
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				b.WriteByte(')')
				return b.String()
			}
		}
		b.WriteByte(text[i])
	}
	return ""
}

// stringAt returns the end of the Python string that starts at text[i], and
// what is in it; -1 if it does not end.
func stringAt(text string, i int) (end int, inside string) {
	quote := text[i : i+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(text[i:], triple) {
		quote = triple
	}
	for at := i + len(quote); at < len(text); at++ {
		if text[at] == '\\' {
			at++
			continue
		}
		if strings.HasPrefix(text[at:], quote) {
			return at + len(quote), text[i+len(quote) : at]
		}
		if len(quote) == 1 && text[at] == '\n' {
			return -1, ""
		}
	}
	return -1, ""
}

// normalise writes a flag's name with underscores, as HfArgumentParser takes
// both spellings.
func normalise(name string) string { return strings.ReplaceAll(name, "-", "_") }
