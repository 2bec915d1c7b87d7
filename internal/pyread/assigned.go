package pyread

// Given are all values that a script gives to names.
type Given struct {
	// Constants are, in the order of the text, the arguments of calls as the function
	// Constants returns them, and with an empty Call what names are given elsewhere:
	// assignments (a = 1), fields of a class (a: int = 1), attributes (x.a = 1), keys
	// (x["a"] = 1), and the entries of dicts that are written out ({"a": 1}). Keyword is
	// the last name. What a class field is given by field(default=...) counts as well.
	Constants []Constant
	// Imports are the modules that the script imports, in the order of the text: unsloth
	// for import unsloth and for from unsloth import x, unsloth.models for import
	// unsloth.models as m.
	Imports []string
}

// Read returns all values that a script gives to names. Of a script over MaxSize the
// rest is not looked at.
func Read(text string) Given {
	s := newScript(text)
	s.calls()
	s.assigned()
	return Given{Constants: s.constants(), Imports: imports(s.t)}
}

// assigned reads what names are given outside of the brackets of calls.
func (s *script) assigned() {
	t := s.t
	for from := 0; from < len(t) && len(s.found) < maxFound; {
		to := from
		for to < len(t) && t[to].kind != newline {
			to = skip(t, to)
		}
		to = min(to, len(t))
		s.assignments(from, to)
		from = to + 1
	}
	for i := range t {
		if is(t, i, "{") && t[i].pair > i {
			s.entries(i+1, t[i].pair)
		}
	}
}

// assignments reads the targets of one statement, behind what stands in front of it on
// the line (if x: a = 1).
func (s *script) assignments(from, to int) {
	for range maxOneLine {
		if from >= to || !compound[s.t[from].text] || s.t[from].kind != name {
			break
		}
		for from < to && !is(s.t, from, ":") {
			from = skip(s.t, from)
		}
		from++
	}
	var equals []int
	for i := from; i < to; i = skip(s.t, i) {
		if is(s.t, i, "lambda") {
			break
		}
		if is(s.t, i, "=") {
			equals = append(equals, i)
		}
	}
	if len(equals) == 0 {
		return
	}
	value := equals[len(equals)-1] + 1
	for _, e := range equals {
		if word, at := s.target(from, e); word != "" {
			s.give(word, at, value, to)
		}
		from = e + 1
	}
}

// target is the name that an assignment gives a value: the name, the last attribute or
// the key in brackets; "" for several at once.
func (s *script) target(from, to int) (word string, at int) {
	for i := from; i < to; i = skip(s.t, i) {
		if is(s.t, i, ":") { // an annotation
			to = i
			break
		}
		if is(s.t, i, ",") {
			return "", 0
		}
	}
	last := to - 1
	switch {
	case last < from:
		return "", 0
	case s.t[last].kind == name && !keywords[s.t[last].text]:
		return s.t[last].text, last
	case is(s.t, last, "]") && s.t[last].pair == last-2 && s.t[last-1].kind == str && s.t[last-1].literal:
		return s.t[last-1].text, last - 1
	}
	return "", 0
}

// give adds what a name is given. field(default=x) of a data class gives x.
func (s *script) give(word string, at, from, to int) {
	if to-from > 3 && is(s.t, to-1, ")") && s.t[to-1].pair > from {
		open := s.t[to-1].pair
		if called := dotted(s.t, from, open); called == "field" || called == "dataclasses.field" || called == "Field" || called == "pydantic.Field" {
			for i := open + 1; i < to-1; {
				end := s.comma(i, to-1)
				if is(s.t, i, "default") && is(s.t, i+1, "=") {
					from, to = i+2, end
					break
				}
				i = end + 1
			}
		}
	}
	s.add("", word, at, from, to)
}

// entries reads the keys of a dict that is written out.
func (s *script) entries(from, to int) {
	for i := from; i < to && len(s.found) < maxFound; {
		end := s.comma(i, to)
		if s.t[i].kind == str && s.t[i].literal && is(s.t, i+1, ":") {
			s.add("", s.t[i].text, i, i+2, end)
		}
		i = end + 1
	}
}

// imports reads import a.b as c, d and from m import x.
func imports(t []token) []string {
	var out []string
	add := func(from int) int {
		word, i := "", from
		for i < len(t) && (t[i].kind == name && !keywords[t[i].text] || is(t, i, ".")) {
			word += t[i].text
			i++
		}
		if word != "" && word[0] != '.' {
			out = append(out, word)
		}
		return i
	}
	begins := true // at the beginning of a statement
	for i := 0; i < len(t); i++ {
		switch {
		case begins && is(t, i, "from") && i+1 < len(t):
			add(i + 1)
		case begins && is(t, i, "import"):
			for j := i + 1; j < len(t) && t[j].kind != newline; j++ {
				if j == i+1 || is(t, j-1, ",") {
					add(j)
				}
			}
		}
		begins = t[i].kind == newline || is(t, i, ":")
	}
	return out
}
