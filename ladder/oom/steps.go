package oom

import (
	"slices"
	"strconv"
	"strings"
)

// Steps finds advances in output that no trainer profile reads: bars, and lines
// with a step and a loss. It is for logs that somebody brings along; a run knows
// its steps from the profile.
type Steps struct {
	t     *Table
	seen  map[string]*float64
	never map[string]bool // by a bar's description: it is no step
	key   []byte
	desc  []byte
	// eval says that an evaluation goes on; bar is the total of the training's bar,
	// which is the last one that counted before it.
	eval  bool
	bar   string
	sieve sieve
	found []int32
}

// NewSteps returns a Steps that has seen nothing.
func (t *Table) NewSteps() *Steps {
	return &Steps{t: t, seen: make(map[string]*float64), never: make(map[string]bool)}
}

// maxCounters bounds the counters, and the descriptions, that are told apart.
const maxCounters = 4096

// Advance tells whether a counter grew on the raw line, and its new value where
// that is a whole number.
func (s *Steps) Advance(raw string) (step int64, grew bool) {
	s.found, _ = s.t.steps.scan(raw, &s.sieve, s.found[:0])
	if len(s.found) == 0 {
		return 0, false
	}
	text, stream := s.t.unprefix(printable(shorten(raw)))
	return s.advance(text, stream, s.found)
}

// advance is Advance on a line without prefixes, with the patterns that the
// prefilter left. A bar that a message stands behind is still there.
func (s *Steps) advance(text, stream string, found []int32) (step int64, grew bool) {
	slices.Sort(found)
	last := int32(-1)
	for _, i := range found {
		if i == last {
			continue
		}
		last = i
		p := &s.t.Progress[i]
		switch p.Builtin {
		case "bar":
			b, ok := parseBar(text)
			if !ok {
				continue
			}
			desc := s.fold(b.desc)
			if s.prepares(desc) || s.eval && desc == "" && b.total != s.bar {
				return 0, false
			}
			step, grew := s.count(i, stream, desc, b.total, b.n, p.First)
			if grew {
				s.eval = false
				if desc == "" && s.bar != b.total {
					s.bar = strings.Clone(b.total)
				}
			}
			return step, grew
		case "step":
			word, n, ok := parseStep(text)
			if !ok {
				continue
			}
			return s.count(i, stream, word, "", n, p.First)
		}
		if p.Never {
			continue
		}
		m := p.Re.FindStringSubmatchIndex(text)
		if m == nil {
			continue
		}
		if p.Eval {
			s.eval = true
			return 0, false
		}
		if p.Always {
			s.eval = false
			return 0, true
		}
		group := func(g int) string {
			if g < 0 || m[2*g] < 0 {
				return ""
			}
			return text[m[2*g]:m[2*g+1]]
		}
		n, err := strconv.ParseFloat(group(p.n), 64)
		if err != nil {
			continue
		}
		return s.count(i, stream, group(p.desc), group(p.total), n, p.First)
	}
	return 0, false
}

// count remembers a counter's value and tells whether it grew.
func (s *Steps) count(pattern int32, stream, desc, total string, n float64, first bool) (step int64, grew bool) {
	s.key = strconv.AppendInt(s.key[:0], int64(pattern), 10)
	for _, part := range []string{stream, desc, total} {
		s.key = append(append(s.key, '|'), part...)
	}
	last := s.seen[string(s.key)]
	if last == nil {
		if len(s.seen) >= maxCounters {
			clear(s.seen)
		}
		s.seen[string(s.key)] = &n
		grew = first && n > 0
	} else {
		grew = n > *last
		*last = n
	}
	if !grew || n >= 1<<53 {
		return 0, false
	}
	return int64(n), true
}

// fold writes the numbers of a description alike: many hold the epoch and the losses,
// which change at every step.
func (s *Steps) fold(desc string) string {
	if !strings.ContainsAny(desc, "0123456789") {
		return desc
	}
	s.desc = s.desc[:0]
	for i := 0; i < len(desc); i++ {
		c := desc[i]
		if digit(c) {
			if i > 0 && digit(desc[i-1]) {
				continue
			}
			c = '0'
		}
		s.desc = append(s.desc, c)
	}
	return string(s.desc)
}

// prepares tells by its description that a bar is one of the preparation or of an
// evaluation.
func (s *Steps) prepares(desc string) bool {
	if desc == "" {
		return false
	}
	never, known := s.never[desc]
	if known {
		return never
	}
	for i := range s.t.Progress {
		p := &s.t.Progress[i]
		never = never || p.Never && p.Re.MatchString(desc)
	}
	if len(s.never) >= maxCounters {
		clear(s.never)
	}
	s.never[strings.Clone(desc)] = never
	return never
}
