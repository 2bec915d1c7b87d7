package pyread

import (
	"slices"
	"strings"
)

// binding is one place where a script gives a name a meaning.
type binding struct {
	// from and to are the tokens of the expression that is assigned; to is 0 where the
	// meaning is not an expression: a parameter, a loop variable, a change in place.
	from, to int
	// imported is the dotted name that an import binds.
	imported string
}

// names are all names that a script binds, in any scope. A name that is bound once has
// one meaning wherever it has any.
type names map[string][]binding

// keywords never name a call or a variable.
var keywords = map[string]bool{}

func init() {
	for _, w := range strings.Fields(`False None True and as assert async await break class continue def del elif else
		except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield`) {
		keywords[w] = true
	}
}

// compound begin a statement that may hold another one behind its colon.
var compound = map[string]bool{
	"if": true, "elif": true, "else": true, "for": true, "while": true, "with": true,
	"try": true, "except": true, "finally": true, "async": true, "def": true, "class": true,
}

// maxOneLine bounds statements in statements on one line, maxNear how far a loop or a
// lambda is read for its variables.
const (
	maxOneLine = 10
	maxNear    = 1000
)

// bindings reads every binding of a script.
func bindings(t []token) names {
	ns := names{}
	dynamic := false
	for from := 0; from < len(t); {
		to := from
		for to < len(t) && t[to].kind != newline {
			to = skip(t, to)
		}
		to = min(to, len(t))
		ns.statement(t, from, to)
		from = to + 1
	}
	star := -1
	importing := false
	for i := range t {
		if t[i].kind == newline {
			importing = false
		}
		importing = importing || is(t, i, "import")
		ns.anywhere(t, i, importing)
		if is(t, i, "exec") && is(t, i+1, "(") || is(t, i, "globals") && is(t, i+1, "(") {
			dynamic = true
		}
		if is(t, i, "import") && is(t, i+1, "*") {
			star = i
		}
	}
	for n, all := range ns {
		// exec() and globals() may change any name, an import of everything those before.
		if dynamic || len(all) == 1 && all[0].to > 0 && all[0].from < star {
			ns[n] = append(all, binding{})
		}
	}
	return ns
}

// skip returns the index behind a token, or behind the closing bracket of an opening
// one.
func skip(t []token, i int) int {
	if p := t[i].pair; p > i {
		return p + 1
	}
	return i + 1
}

// is says whether a token is an operator or a name, no string.
func is(t []token, i int, text string) bool {
	return i >= 0 && i < len(t) && t[i].text == text && (t[i].kind == op || t[i].kind == name)
}

// bind adds a binding. More than two say no more than two do.
func (ns names) bind(name string, b binding) {
	if all := ns[name]; len(all) < 2 {
		ns[name] = append(all, b)
	}
}

func (ns names) unknown(name string) { ns.bind(name, binding{}) }

// statement reads the assignments and imports of one statement.
func (ns names) statement(t []token, from, to int) {
	for range maxOneLine {
		if from >= to || t[from].kind != name && t[from].kind != op {
			return
		}
		if !compound[t[from].text] {
			ns.simple(t, from, to)
			return
		}
		if t[from].text == "def" || t[from].text == "class" {
			ns.targets(t, from+1, min(from+2, to))
		}
		// if x: a = 1
		colon := from
		for colon < to && !is(t, colon, ":") {
			colon = skip(t, colon)
		}
		from = colon + 1
	}
	ns.targets(t, from, to)
}

func (ns names) simple(t []token, from, to int) {
	switch t[from].text {
	case "import", "from":
		ns.imports(t, from, to)
		return
	case "del":
		ns.targets(t, from+1, to)
		return
	}
	var equals []int
	colon := -1
	for i := from; i < to; i = skip(t, i) {
		switch {
		case is(t, i, "="):
			equals = append(equals, i)
		case is(t, i, ":") && colon < 0 && len(equals) == 0:
			colon = i
		case t[i].kind == op && len(t[i].text) > 1 && strings.HasSuffix(t[i].text, "=") &&
			!slices.Contains([]string{"==", "!=", "<=", ">="}, t[i].text):
			ns.targets(t, from, i)
			return
		case is(t, i, "lambda") && len(equals) > 0:
			i = to // its defaults are no targets
		}
		if i >= to {
			break
		}
	}
	if len(equals) == 0 {
		return
	}
	value := equals[len(equals)-1] + 1
	for _, e := range equals {
		end := e
		if colon > from && colon < e && from == colon-1 {
			end = colon // an annotation
		}
		if end == from+1 && t[from].kind == name {
			ns.bind(t[from].text, binding{from: value, to: to})
		} else {
			ns.targets(t, from, end)
		}
		from = e + 1
	}
}

// targets takes every name in a target that is not a plain name for changed.
func (ns names) targets(t []token, from, to int) {
	for i := from; i < to; i++ {
		if t[i].kind == name && !is(t, i-1, ".") {
			ns.unknown(t[i].text)
		}
	}
}

// imports reads import a.b as c, d and from m import x as y, z.
func (ns names) imports(t []token, from, to int) {
	plain := t[from].text == "import"
	i := from + 1
	if !plain {
		for i < to && !is(t, i, "import") {
			i++
		}
		i++
	}
	for i < to {
		if t[i].kind != name {
			i++
			continue
		}
		dotted := t[i].text
		for i++; i+1 < to && is(t, i, ".") && t[i+1].kind == name; i += 2 {
			dotted += "." + t[i+1].text
		}
		bound, _, _ := strings.Cut(dotted, ".")
		imported := bound
		if is(t, i, "as") && i+1 < to {
			bound, imported = t[i+1].text, dotted
			i += 2
		} else if !plain {
			imported = dotted
		}
		if all := ns[bound]; len(all) == 1 && all[0].imported == imported {
			continue // once more under try
		}
		ns.bind(bound, binding{imported: imported})
	}
}

// changers are the methods that change a dict or list in place.
var changers = map[string]bool{"update": true, "pop": true, "popitem": true, "setdefault": true, "clear": true, "append": true, "extend": true}

// anywhere reads what binds a name in the middle of an expression too.
func (ns names) anywhere(t []token, i int, importing bool) {
	switch {
	case t[i].kind != name:
		return
	case t[i].text == "for":
		end := i + 1
		for end < min(len(t), i+maxNear) && !is(t, end, "in") && !is(t, end, "for") && t[end].kind != newline {
			end++
		}
		ns.targets(t, i+1, end)
	case t[i].text == "as" && i+1 < len(t) && t[i+1].kind == name && !importing:
		ns.unknown(t[i+1].text)
	case is(t, i+1, ":="):
		ns.unknown(t[i].text)
	case t[i].text == "lambda":
		for j := i + 1; j < min(len(t), i+maxNear) && !is(t, j, ":") && !is(t, j, "lambda") && t[j].kind != newline; j = skip(t, j) {
			if t[j].kind == name && (j == i+1 || is(t, j-1, ",") || is(t, j-1, "*") || is(t, j-1, "**")) {
				ns.unknown(t[j].text)
			}
		}
	case t[i].text == "def" && i+2 < len(t):
		open := i + 2
		if is(t, open, "[") {
			open = skip(t, open)
		}
		if open >= len(t) || !is(t, open, "(") || t[open].pair < 0 {
			return
		}
		for j := open + 1; j < t[open].pair; j = skip(t, j) {
			if t[j].kind == name && (j == open+1 || is(t, j-1, ",") || is(t, j-1, "*") || is(t, j-1, "**")) {
				ns.unknown(t[j].text)
			}
		}
	case is(t, i+1, ".") && i+3 < len(t) && changers[t[i+2].text] && is(t, i+3, "(") && !is(t, i-1, "."):
		ns.unknown(t[i].text)
	}
}

// dotted returns the dotted name that the tokens are, "" if they are something else.
func dotted(t []token, from, to int) string {
	if from >= to || to > len(t) || (to-from)%2 == 0 {
		return ""
	}
	var b strings.Builder
	for i := from; i < to; i++ {
		if (i-from)%2 == 1 {
			if !is(t, i, ".") {
				return ""
			}
		} else if t[i].kind != name || keywords[t[i].text] {
			return ""
		}
		b.WriteString(t[i].text)
	}
	return b.String()
}

// resolve follows imports under other names and plain assignments of names.
func (ns names) resolve(t []token, word string) string {
	for range 8 {
		first, rest, more := strings.Cut(word, ".")
		all := ns[first]
		if len(all) != 1 {
			return word
		}
		to := all[0].imported
		if to == "" {
			to = dotted(t, all[0].from, all[0].to)
		}
		if to == "" || to == first {
			return word
		}
		if word = to; more {
			word += "." + rest
		}
		if all[0].imported != "" {
			return word
		}
	}
	return word
}
