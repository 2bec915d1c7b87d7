package oom

import (
	"bytes"
	"regexp/syntax"
	"slices"
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
	// out holds, by state, the ways whose first set has a text that ends there;
	// pythonText stands for a mark.
	out  [][]int32
	ways []wayOf
}

type wayOf struct {
	pattern int32
	rest    [][]string // the other sets, which are looked for afterwards
}

const pythonText = int32(-1)

// newPrefilter builds the automaton for patterns, each given by the ways in which
// it can match.
func newPrefilter(patterns [][]way, marks []string) *prefilter {
	f := &prefilter{classes: 1}
	type lit struct {
		s  string
		id int32
	}
	var all []lit
	for i, ways := range patterns {
		for _, w := range ways {
			for _, l := range w[0] {
				all = append(all, lit{strings.ToLower(l), int32(len(f.ways))})
			}
			of := wayOf{pattern: int32(i)}
			for _, set := range w[1:] {
				lower := make([]string, len(set))
				for j, l := range set {
					lower[j] = strings.ToLower(l)
				}
				of.rest = append(of.rest, lower)
			}
			f.ways = append(f.ways, of)
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

// sieve is the scratch space of scans.
type sieve struct {
	ways  []int32
	lower []byte
}

// scan returns in found the patterns that can match s, each possibly more than
// once, and tells whether s can belong to a traceback.
func (f *prefilter) scan(s string, sv *sieve, found []int32) (_ []int32, python bool) {
	if f == nil {
		return found, false // a table that could not be read knows nothing
	}
	next, class := f.next, &f.class
	at := uint32(0)
	sv.ways = sv.ways[:0]
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
				sv.ways = append(sv.ways, id)
			}
		}
	}
	// A long line can hit the same text a hundred thousand times.
	slices.Sort(sv.ways)
	sv.ways = slices.Compact(sv.ways)
	lowered := false
	for _, id := range sv.ways {
		w := &f.ways[id]
		if len(w.rest) > 0 && !lowered {
			sv.lower, lowered = appendLower(sv.lower[:0], s), true
		}
		if len(w.rest) == 0 || containsAll(sv.lower, w.rest) {
			found = append(found, w.pattern)
		}
	}
	return found, python
}

func appendLower(b []byte, s string) []byte {
	from := len(b)
	b = append(b, s...)
	for i, c := range b[from:] {
		if 'A' <= c && c <= 'Z' {
			b[from+i] = c | 0x20
		}
	}
	return b
}

// containsAll tells whether of each set one text is in b.
func containsAll(b []byte, sets [][]string) bool {
	for _, set := range sets {
		if !slices.ContainsFunc(set, func(l string) bool { return bytes.Contains(b, []byte(l)) }) {
			return false
		}
	}
	return true
}

// scanAny tells whether any pattern can match.
func (f *prefilter) scanAny(s string) bool {
	var sv sieve
	found, _ := f.scan(s, &sv, nil)
	return len(found) > 0
}

// way is one way in which an expression can match: of each of its sets one text
// must be in the line.
type way [][]string

// The most ways of a pattern and sets of a way; what goes beyond is left out, which
// only makes the filter let more through.
const (
	maxWays = 40
	maxSets = 6
)

// waysOf returns the ways in which all the expressions together can match, nil if
// nothing is known of one.
func waysOf(exprs ...string) []way {
	ways := []way{{}}
	for _, expr := range exprs {
		re, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			return nil
		}
		ways = both(ways, waysFor(re))
	}
	out := ways[:0]
	for _, w := range ways {
		w = slices.DeleteFunc(w, func(set []string) bool { return shortest(set) < 2 })
		if !slices.ContainsFunc(w, func(set []string) bool { return shortest(set) >= 3 }) {
			return nil
		}
		slices.SortStableFunc(w, func(a, b []string) int { return rarity(b) - rarity(a) })
		out = append(out, w[:min(len(w), maxSets)])
	}
	return out
}

// everyday are texts that ordinary lines hold too.
var everyday = []string{"memory", "error", "exit", "step", "batch", "loss", "device", "worker", "fail"}

// rarity says how seldom a set stops at a line that means nothing: long texts do,
// and words of everyday do not.
func rarity(set []string) int {
	n := shortest(set)
	for _, l := range set {
		for _, w := range everyday {
			if strings.Contains(w, strings.ToLower(l)) {
				return min(n, 2)
			}
		}
	}
	return n
}

// both combines ways that are all needed.
func both(a, b []way) []way {
	if len(a)*len(b) > maxWays {
		return a
	}
	out := make([]way, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			out = append(out, append(slices.Clip(x), y...))
		}
	}
	return out
}

func waysFor(re *syntax.Regexp) []way {
	if n := required(re); n.exact != nil {
		if shortest(n.exact) == 0 {
			return []way{{}}
		}
		return []way{{n.exact}}
	}
	switch re.Op {
	case syntax.OpCapture:
		return waysFor(re.Sub[0])
	case syntax.OpPlus:
		return waysFor(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return waysFor(re.Sub[0])
		}
	case syntax.OpAlternate:
		var out []way
		for _, sub := range re.Sub {
			out = append(out, waysFor(sub)...)
		}
		if len(out) <= maxWays {
			return out
		}
		if best := required(re).best(); best != nil {
			return []way{{best}}
		}
	case syntax.OpConcat:
		// Runs of texts that are known exactly become one set.
		ways, run := []way{{}}, []string{""}
		flush := func() {
			if shortest(run) > 0 {
				ways = both(ways, []way{{run}})
			}
			run = []string{""}
		}
		for _, sub := range re.Sub {
			n := required(sub)
			if n.exact != nil && len(n.exact)*len(run) <= maxExact {
				var product []string
				for _, a := range run {
					for _, b := range n.exact {
						product = append(product, a+b)
					}
				}
				run = product
				continue
			}
			flush()
			ways = both(ways, waysFor(sub))
		}
		flush()
		return ways
	}
	return []way{{}}
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
