package oom

import (
	"regexp/syntax"
	"strings"
	"unicode"
)

// A regular expression costs microseconds a line, and a training night prints
// millions of lines that mean nothing. Each pattern therefore gives up the texts
// of which one must be in a matching line, and all of them together become one
// automaton (Aho and Corasick) that looks at each byte once.

// pythonTexts mark the lines from which tracebacks are followed.
var pythonTexts = []string{
	"error", "exception", "interrupt", "traceback (most recent call last)",
	`file "`, "during handling of the above", "was the direct cause of",
	"exit:", "outofresources",
}

// prefilter says which patterns can match a line at all. Letters are compared
// without case.
type prefilter struct {
	class   [256]uint8
	classes int
	// next maps row+class to the next state's row; the low bit of an entry says
	// that the state reports something.
	next []uint32
	// out holds, by state, the patterns whose text ends there; pythonText stands for a mark.
	out [][]int32
}

const pythonText = int32(-1)

func newPrefilter(lits [][]string, marks []string) *prefilter {
	f := &prefilter{classes: 1}
	type lit struct {
		s  string
		id int32
	}
	all := make([]lit, 0, 4*len(lits))
	for i, ls := range lits {
		for _, l := range ls {
			all = append(all, lit{strings.ToLower(l), int32(i)})
		}
	}
	for _, l := range marks {
		all = append(all, lit{l, pythonText})
	}
	for _, l := range all {
		for i := 0; i < len(l.s); i++ {
			c := l.s[i]
			if f.class[c] == 0 {
				f.class[c] = uint8(f.classes)
				f.classes++
				if 'a' <= c && c <= 'z' {
					f.class[c-'a'+'A'] = f.class[c]
				}
			}
		}
	}
	// The trie, then its failure links, folded into one table.
	trie := [][]int32{make([]int32, f.classes)}
	f.out = [][]int32{nil}
	for _, l := range all {
		s := int32(0)
		for i := 0; i < len(l.s); i++ {
			c := f.class[l.s[i]]
			if trie[s][c] == 0 {
				trie[s][c] = int32(len(trie))
				trie = append(trie, make([]int32, f.classes))
				f.out = append(f.out, nil)
			}
			s = trie[s][c]
		}
		f.out[s] = append(f.out[s], l.id)
	}
	fail := make([]int32, len(trie))
	queue := make([]int32, 0, len(trie))
	for _, s := range trie[0] {
		if s != 0 {
			queue = append(queue, s)
		}
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		f.out[s] = append(f.out[s], f.out[fail[s]]...)
		for c, n := range trie[s] {
			if n == 0 {
				trie[s][c] = trie[fail[s]][c]
				continue
			}
			fail[n] = trie[fail[s]][c]
			queue = append(queue, n)
		}
	}
	f.next = make([]uint32, len(trie)*f.classes)
	for s := range trie {
		for c, n := range trie[s] {
			v := uint32(int(n)*f.classes) << 1
			if f.out[n] != nil {
				v |= 1
			}
			f.next[s*f.classes+c] = v
		}
	}
	return f
}

// scan appends to hits the patterns that can match s, each possibly more than
// once, and tells whether s can belong to a traceback.
func (f *prefilter) scan(s string, hits []int32) (found []int32, python bool) {
	next, class := f.next, &f.class
	at := uint32(0)
	for i := 0; i < len(s); i++ {
		v := next[at+uint32(class[s[i]])]
		at = v >> 1
		if v&1 == 0 {
			continue
		}
		for _, id := range f.out[int(at)/f.classes] {
			if id == pythonText {
				python = true
			} else {
				hits = append(hits, id)
			}
		}
	}
	return hits, python
}

// scanAny tells whether any pattern can match.
func (f *prefilter) scanAny(s string) bool {
	at := uint32(0)
	for i := 0; i < len(s); i++ {
		v := f.next[at+uint32(f.class[s[i]])]
		at = v >> 1
		if v&1 != 0 {
			return true
		}
	}
	return false
}

// literals returns lower-case texts of which at least one is in every match of
// the expression, or nil if there are none.
func literals(expr string) []string {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil
	}
	return required(re).best()
}

// need is what is known of the texts an expression matches: all of them (exact),
// or parts of which one must occur (parts).
type need struct{ exact, parts []string }

func (n need) best() []string {
	if shortest(n.exact) > 0 {
		return n.exact
	}
	return n.parts
}

const maxExact = 48

func required(re *syntax.Regexp) need {
	switch re.Op {
	case syntax.OpLiteral:
		return need{exact: []string{strings.ToLower(string(re.Rune))}}
	case syntax.OpCharClass:
		var set []string
		for i := 0; i+1 < len(re.Rune); i += 2 {
			if re.Rune[i+1]-re.Rune[i] > 3 {
				return need{}
			}
			for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
				set = union(set, []string{string(unicode.ToLower(r))})
			}
		}
		if len(set) > 4 {
			return need{}
		}
		return need{exact: set}
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText,
		syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return need{exact: []string{""}}
	case syntax.OpCapture:
		return required(re.Sub[0])
	case syntax.OpQuest:
		if sub := required(re.Sub[0]); sub.exact != nil {
			return need{exact: union([]string{""}, sub.exact)}
		}
		return need{}
	case syntax.OpPlus:
		return need{parts: required(re.Sub[0]).best()}
	case syntax.OpRepeat:
		if re.Min > 0 {
			return need{parts: required(re.Sub[0]).best()}
		}
		return need{}
	case syntax.OpConcat:
		return requiredConcat(re.Sub)
	case syntax.OpAlternate:
		return requiredAlternate(re.Sub)
	default:
		return need{}
	}
}

func requiredConcat(subs []*syntax.Regexp) need {
	cur, whole := []string{""}, true
	var best []string
	consider := func(set []string) {
		if shortest(set) > shortest(best) {
			best = set
		}
	}
	for _, sub := range subs {
		n := required(sub)
		if n.exact != nil && len(n.exact)*len(cur) <= maxExact {
			var product []string
			for _, a := range cur {
				for _, b := range n.exact {
					product = append(product, a+b)
				}
			}
			cur = product
			continue
		}
		whole = false
		consider(cur)
		cur = []string{""}
		if n.exact != nil {
			cur = n.exact
		} else {
			consider(n.parts)
		}
	}
	if whole {
		return need{exact: cur}
	}
	consider(cur)
	return need{parts: best}
}

func requiredAlternate(subs []*syntax.Regexp) need {
	var exact, parts []string
	allExact, allParts := true, true
	for _, sub := range subs {
		n := required(sub)
		allExact = allExact && n.exact != nil
		exact = union(exact, n.exact)
		b := n.best()
		allParts = allParts && b != nil
		parts = union(parts, b)
	}
	switch {
	case allExact && len(exact) <= maxExact:
		return need{exact: exact}
	case allParts:
		return need{parts: parts}
	}
	return need{}
}

func union(a, b []string) []string {
	for _, s := range b {
		known := false
		for _, t := range a {
			known = known || t == s
		}
		if !known {
			a = append(a, s)
		}
	}
	return a
}

// shortest returns the length of the shortest text, 0 for none.
func shortest(set []string) int {
	if len(set) == 0 {
		return 0
	}
	n := len(set[0])
	for _, s := range set {
		n = min(n, len(s))
	}
	return n
}

// firstBytes returns the bytes that a match of an expression can begin with.
func firstBytes(expr string) (set [256]bool) {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return set
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return set
	}
	seen := make(map[uint32]bool)
	var walk func(pc uint32)
	walk = func(pc uint32) {
		if seen[pc] {
			return
		}
		seen[pc] = true
		in := &prog.Inst[pc]
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			walk(in.Out)
			walk(in.Arg)
		case syntax.InstCapture, syntax.InstEmptyWidth, syntax.InstNop:
			walk(in.Out)
		case syntax.InstFail:
		case syntax.InstMatch:
			for i := range set {
				set[i] = true
			}
		default: // the rune instructions
			for r := rune(0); r < 128; r++ {
				set[r] = set[r] || in.MatchRune(r)
			}
			for i := 128; i < 256; i++ {
				set[i] = true
			}
		}
	}
	walk(uint32(prog.Start))
	return set
}
