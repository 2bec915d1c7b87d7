package trainer

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/treefs"
	"sparkrun/ladder/trainer/place"
)

// scriptHead is how much of a script is read: its flags are declared near the
// top, and a data file given as a script must not fill memory.
const scriptHead = 200 << 10

// source returns the beginning of the trainer's Python source, where it can be
// found without asking Python, and the path of that file on this machine.
func source(root treefs.Root, p *place.Place, interpreter string) (text, file string) {
	var files []string
	switch {
	case p.Script != "":
		if file, ok := p.HostPath(p.Script); ok {
			files = append(files, file)
		}
	case p.Module != "":
		rel := strings.ReplaceAll(p.Module, ".", "/")
		var folders []string
		if p.Dir != "" {
			folders = append(folders, p.Dir)
		}
		for _, dir := range append(folders, place.SitePackages(root, interpreter)...) {
			files = append(files, filepath.Join(dir, rel+".py"), filepath.Join(dir, rel, "__main__.py"))
		}
	case strings.Contains(p.Program, "/"):
		// A program with a shebang of Python is a script.
		if file, ok := p.HostPath(p.Program); ok && pythonShebang(root, file) {
			files = append(files, file)
		}
	}
	for _, file := range files {
		if head := root.For(file).Head(file, scriptHead); head != nil {
			return string(head), file
		}
	}
	return "", ""
}

// pythonShebang says whether the first line of a file names Python.
func pythonShebang(root treefs.Root, file string) bool {
	line, _, _ := strings.Cut(string(root.For(file).Head(file, 1024)), "\n")
	return strings.HasPrefix(line, "#!") && strings.Contains(line, "python")
}

// declaration is what a script's text says of one of its flags.
type declaration struct {
	// value is the default, "" if it is not a literal.
	value string
	// known is set for every declaration that was read.
	known bool
	// toggle marks action="store_true": the flag takes no value. dual marks a flag
	// with a --no- form and no value.
	toggle, dual bool
	// choices are the values allowed, none if any is.
	choices []string
	// none says that the default is None, or that there is none.
	none bool
	// config is FILE:LINE of a config file written in Python that sets it.
	config string
	// typed is the flag in the script's own spelling, shorts its short forms.
	typed  string
	shorts []string
}

var (
	addArgument = lazyre.New(`(?s)\b(?:add_argument|option)\(\s*((?:["']-{1,2}[\w-]+(?:/-{1,2}[\w-]+)?["']\s*,?\s*)+)`)
	// A script may declare its flags through a function of its own that puts the
	// dashes in front.
	joinsDashes  = lazyre.New(`["']--["']\s*\+`)
	ownDeclare   = lazyre.New(`\b(?:flag|option|opt|add_flag|add_option|add_opt)\(\s*["']([a-z_]\w*)["']`)
	longFlag     = lazyre.New(`["']--([A-Za-z][\w-]*)(/--no[\w-]*)?["']`)
	shortFlag    = lazyre.New(`["'](-[A-Za-z])["']`)
	argDefault   = lazyre.New(`\bdefault\s*=\s*(?:["']([^"']*)["']|([\w.+-]+))\s*[,)]`)
	argChoices   = lazyre.New(`(?s)\bchoices\s*=\s*[\[(]([^\])]*)[\])]`)
	argToggle    = lazyre.New(`\baction\s*=\s*["']store_true["']|\bis_flag\s*=\s*True\b`)
	argDual      = lazyre.New(`\baction\s*=\s*[\w.]*\bBooleanOptionalAction\b`)
	dataField    = lazyre.New(`(?m)^[ \t]+([a-z_]\w*)\s*:\s*[^=\n()]+=[ \t]*(.*)$`)
	fieldDefault = lazyre.New(`^field\(\s*(?:.*\b)?default\s*=\s*(?:["']([^"']*)["']|([\w.+-]+))\s*[,)]`)
	pyLiteral    = lazyre.New(`^(?:["']([^"']*)["']|([\w.+-]+))\s*(?:#.*)?$`)
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
				found := fieldDefault.FindStringSubmatch(strings.Join(strings.Fields(call), " "))
				m[name] = declaration{known: true, value: literal(found), none: isNone(found)}
				continue
			}
			found := pyLiteral.FindStringSubmatch(rest)
			m[name] = declaration{known: true, value: literal(found), none: isNone(found)}
		}
	}
	if joinsDashes.MatchString(text) {
		for _, at := range ownDeclare.FindAllStringSubmatchIndex(text, -1) {
			if commented(text, at[0]) {
				continue
			}
			name := text[at[2]:at[3]]
			d := declarationOf(callText(text[at[0]:]))
			d.typed = "--" + name
			m[normalise(name)] = d
		}
	}
	for _, at := range addArgument.FindAllStringSubmatchIndex(text, -1) {
		if commented(text, at[0]) {
			continue
		}
		d := declarationOf(callText(text[at[0]:]))
		for _, s := range shortFlag.FindAllStringSubmatch(text[at[2]:at[3]], -1) {
			d.shorts = append(d.shorts, s[1])
		}
		for _, name := range longFlag.FindAllStringSubmatch(text[at[2]:at[3]], -1) {
			d.typed = "--" + name[1]
			if name[2] != "" {
				d.dual, d.toggle = true, false
			}
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
	found := argDefault.FindStringSubmatch(call)
	d := declaration{
		known:  true,
		dual:   argDual.MatchString(call),
		value:  literal(found),
		none:   isNone(found) || call != "" && !strings.Contains(call, "default"),
		toggle: argToggle.MatchString(call),
	}
	if c := argChoices.FindStringSubmatch(call); c != nil {
		for _, v := range strings.Split(c[1], ",") {
			if v = strings.Trim(strings.TrimSpace(v), `"'`); v != "" {
				d.choices = append(d.choices, v)
			}
		}
	}
	if (d.toggle || d.dual) && d.value == "" {
		d.value = "false"
	}
	return d
}

// isNone says whether the default that was found is None.
func isNone(m []string) bool { return m != nil && m[1] == "" && m[2] == "None" }

// moduleConstant is NAME = LITERAL at the start of a line, or a product of two whole
// numbers.
var moduleConstant = lazyre.New(`(?m)^([a-z_]\w*)[ \t]*=[ \t]*(?:["']([^"'\n]*)["']|([\w.+-]+)(?:[ \t]*\*[ \t]*(\d+))?)[ \t]*(?:#.*)?$`)

// constants reads the settings that a module has at its top level. file, if given, is
// the name of the file, for the place of each.
func constants(text, file string) map[string]declaration {
	m := map[string]declaration{}
	for _, at := range moduleConstant.FindAllStringSubmatchIndex(text, -1) {
		part := func(i int) string {
			if at[2*i] < 0 {
				return ""
			}
			return text[at[2*i]:at[2*i+1]]
		}
		d := declaration{known: true}
		switch {
		case at[4] >= 0:
			d.value = part(2)
		case part(4) != "":
			a, errA := parseInt(part(3))
			b, errB := parseInt(part(4))
			if errA != nil || errB != nil || a > 1<<30 || b > 1<<30 {
				continue
			}
			d.value = strconv.FormatInt(a*b, 10)
		default:
			d.value = literal([]string{"", "", part(3)})
		}
		if file != "" {
			d.config = fmt.Sprintf("%s:%d", file, 1+strings.Count(text[:at[0]], "\n"))
		}
		m[part(1)] = d
	}
	return m
}

// readConstants takes the settings of a script whose configurator changes the names
// at its top level: those of the script, then those of a config written the same way.
func (c *command) readConstants() {
	if c.style != "configurator" {
		return
	}
	add := func(m map[string]declaration) {
		for n, d := range m {
			if _, is := c.decl[n]; is || d.config == "" {
				c.decl[n] = d
			}
		}
	}
	for n, d := range constants(c.text, "") {
		c.decl[n] = d
	}
	for _, w := range c.words[c.args:] {
		if strings.HasPrefix(w, "-") || filepath.Ext(w) != ".py" {
			continue
		}
		host, ok := c.place.HostPath(w)
		text := ""
		if ok {
			text = string(c.head(host, scriptHead))
		}
		if text == "" {
			c.blind = w + " cannot be read"
			continue
		}
		c.saw(host, []byte(text))
		if c.config == "" {
			c.config = w
		}
		add(constants(text, w))
	}
	if c.text == "" && c.blind == "" {
		c.blind = c.scriptName() + " cannot be read"
	}
	for n := range c.decl {
		c.takes.names[n] = true
	}
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
