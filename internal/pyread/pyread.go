// Package pyread finds constants in the text of a Python script: which keyword of
// which call is given which literal value, and on which line. It only reads text:
// nothing is executed, and what it is not sure of it leaves open.
package pyread

import (
	"sort"
	"strconv"
	"strings"
)

// MaxSize is how much of a script is read, in bytes: settings stand near the top, and
// a data file given as a script must not fill the memory.
const MaxSize = 200 << 10

// Constant is a keyword argument of a call in a script.
type Constant struct {
	// Call is the dotted name that is called, import aliases resolved: SFTConfig,
	// FastLanguageModel.from_pretrained, trl.SFTConfig where the script says so.
	Call string
	// Keyword is the name of the argument; for an argument without one its position
	// from 0, in digits.
	Keyword string
	// Value is the value as print() of Python shows it: 4096, 0.0002, True, None, text
	// without quotes. Empty if it is not known.
	Value string
	// Literal says that the value is known.
	Literal bool
	// Text marks a string, to tell "True" from True.
	Text bool
	// Items are the strings of a list, tuple or set that is written out, or that the
	// variable in its place was given; nil for anything else.
	Items []string
	// Name is the variable or other expression of dotted names that stands in the
	// place of the value, empty where the value itself stands there.
	Name string
	// Line is where the keyword stands and ValueLine where the value is written, both
	// from 1. They differ for a variable. ValueLine is 0 if the value is not known.
	Line, ValueLine int
}

// Is says whether the call is the one of a dotted name: of itself, or with the
// modules it lies in in front. SFTConfig is also trl.SFTConfig.
func (c Constant) Is(call string) bool {
	return call != "" && (c.Call == call || strings.HasSuffix(c.Call, "."+call))
}

// Constants returns the arguments of all calls in a script, in the order of the text.
// Of a script over MaxSize the rest is not looked at.
func Constants(text string) []Constant {
	s := newScript(text)
	s.calls()
	return s.constants()
}

func newScript(text string) *script {
	t := lex(text[:min(len(text), MaxSize)])
	ns := bindings(t)
	return &script{t: t, ns: ns, r: &reader{t: t, ns: ns, busy: map[string]bool{}, done: map[string]result{}}}
}

// calls reads the arguments of all calls.
func (s *script) calls() {
	for i := range s.t {
		if is(s.t, i, "(") && s.t[i].pair > i {
			if call := s.callee(i); call != "" {
				s.arguments(call, i+1, s.t[i].pair, 0, 0)
			}
		}
	}
}

// constants returns what was found in the order of the text.
func (s *script) constants() []Constant {
	sort.SliceStable(s.found, func(a, b int) bool { return s.found[a].at < s.found[b].at })
	out := make([]Constant, 0, len(s.found))
	for _, f := range s.found {
		out = append(out, f.Constant)
	}
	return out
}

type script struct {
	t     []token
	ns    names
	r     *reader
	found []found
}

type found struct {
	Constant
	at int
}

// callee returns the dotted name before an opening bracket, with aliases resolved;
// empty if no call of a name stands there.
func (s *script) callee(open int) string {
	from := open
	for from > 0 && s.t[from-1].kind == name && !keywords[s.t[from-1].text] {
		if from--; !is(s.t, from-1, ".") {
			break
		}
		from--
	}
	if from == open || is(s.t, from-1, "def") || is(s.t, from-1, "class") {
		return ""
	}
	if is(s.t, from, ".") { // of what a call or an index gave
		return dotted(s.t, from+1, open)
	}
	word := dotted(s.t, from, open)
	if word == "" {
		return ""
	}
	return s.ns.resolve(s.t, word)
}

// maxUnpacked bounds dicts that are unpacked into dicts, maxFound what is returned in
// all.
const (
	maxUnpacked = 4
	maxFound    = 50_000
)

// uncounted is the position of an argument behind others whose number is not known.
const uncounted = -1 << 30

// arguments reads what stands between the brackets of a call.
func (s *script) arguments(call string, from, to, position, depth int) {
	for from < to && len(s.found) < maxFound {
		end := s.comma(from, to)
		switch {
		case is(s.t, from, "**"):
			s.unpack(call, from+1, end, depth)
		case is(s.t, from, "*"):
			position = uncounted
		case s.t[from].kind == name && is(s.t, from+1, "=") && from+1 < end:
			s.add(call, s.t[from].text, from, from+2, end)
		case from < end && position >= 0:
			if !s.comprehension(from, end) {
				s.add(call, strconv.Itoa(position), from, from, end)
			}
			position++
		}
		from = end + 1
	}
}

// comma returns the index of the next comma, or to.
func (s *script) comma(from, to int) int {
	for i := from; i < to; i = skip(s.t, i) {
		if is(s.t, i, ",") {
			return i
		}
	}
	return to
}

func (s *script) comprehension(from, to int) bool {
	for i := from; i < to; i = skip(s.t, i) {
		if is(s.t, i, "for") {
			return true
		}
	}
	return false
}

func (s *script) add(call, keyword string, at, from, to int) {
	c := Constant{Call: call, Keyword: keyword, Line: s.t[at].line, Name: dotted(s.t, from, to)}
	if v, line, ok := s.r.read(from, to); ok {
		c.Value, c.Literal, c.ValueLine = printed(v), true, line
		_, c.Text = v.(string)
	} else {
		c.Items = s.items(from, to)
	}
	s.found = append(s.found, found{c, at})
}

// items reads a list, tuple or set of strings.
func (s *script) items(from, to int) []string {
	if to == from+1 && s.t[from].kind == name {
		all := s.ns[s.t[from].text]
		if len(all) != 1 || all[0].to == 0 {
			return nil
		}
		from, to = all[0].from, all[0].to
	}
	if to-from < 3 || s.t[from].pair != to-1 || s.t[from].kind != op {
		return nil
	}
	var out []string
	for i := from + 1; i < to-1; {
		end := s.comma(i, to-1)
		v, _, ok := s.r.read(i, end)
		text, is := v.(string)
		if !ok || !is {
			return nil
		}
		out = append(out, text)
		i = end + 1
	}
	return out
}

// unpack reads ** of a dict that is written out: {"a": 1}, dict(a=1), or a name with
// that meaning only.
func (s *script) unpack(call string, from, to, depth int) {
	if depth >= maxUnpacked || from >= to {
		return
	}
	if to == from+1 && s.t[from].kind == name {
		all := s.ns[s.t[from].text]
		if len(all) == 1 && all[0].to > 0 {
			s.unpack(call, all[0].from, all[0].to, depth+1)
		}
		return
	}
	switch {
	case is(s.t, from, "{") && s.t[from].pair == to-1:
		for i := from + 1; i < to-1 && len(s.found) < maxFound; {
			end := s.comma(i, to-1)
			switch {
			case is(s.t, i, "**"):
				s.unpack(call, i+1, end, depth+1)
			case s.t[i].kind == str && s.t[i].literal && isName(s.t[i].text) && is(s.t, i+1, ":"):
				s.add(call, s.t[i].text, i, i+2, end)
			}
			i = end + 1
		}
	case is(s.t, from, "dict") && is(s.t, from+1, "(") && s.t[from+1].pair == to-1 && len(s.ns["dict"]) == 0:
		s.arguments(call, from+2, to-1, uncounted, depth+1)
	}
}

// Called returns the line, from 1, of the first call of a dotted name, also one without
// arguments: of itself, or of whatever stands in front (model.to is also to). Of a script
// over MaxSize the rest is not looked at.
func Called(text, call string) (line int, ok bool) {
	s := newScript(text)
	for i := range s.t {
		if is(s.t, i, "(") && s.t[i].pair > i && (Constant{Call: s.callee(i)}).Is(call) {
			return s.t[i].line, true
		}
	}
	return 0, false
}
