package oom

import (
	"slices"

	"sparkrun/internal/lazyre"
)

// A broken loop prints the same message a million times, with other numbers in it.
// What a line's shape matched once need not be tried again.

// The bounds of what is remembered.
const (
	maxShapes = 1024
	shapeMax  = 2 << 10 // longer lines are tried each time
)

// longNumber finds the numbers that an expression names and that a shape would hide.
var longNumber = lazyre.New(`\d{4,}`)

// shape is what the lines of one shape match.
type shape struct {
	ids      []string // shared by the hits of the shape, never changed
	ignored  bool
	finished bool
}

// appendShape appends the line with the numbers that no pattern asks for made the
// same: times of the day, fractions that are not zero, and numbers of four digits or
// more, of which only those of eight and more are told apart. Short numbers may be
// signals, statuses and codes and are kept as they are, and so is what named holds.
func appendShape(b []byte, s string, named map[string]bool) []byte {
	for i := 0; i < len(s); {
		if !digit(s[i]) {
			b = append(b, s[i])
			i++
			continue
		}
		// The whole of 12:00:07 or 1.5 or 2.9.1.
		end, dots, colons, nonzero := i, 0, 0, false
	number:
		for end < len(s) {
			c := s[end]
			switch {
			case digit(c):
				nonzero = nonzero || c != '0'
			case (c == '.' || c == ':') && end+1 < len(s) && digit(s[end+1]):
				if c == '.' {
					dots++
				} else {
					colons++
				}
			default:
				break number
			}
			end++
		}
		switch {
		case colons == 2:
			b = append(b, "1:1:1"...)
		case colons == 0 && dots > 0 && nonzero:
			b = append(b, "1.1"...)
		case colons == 0 && dots == 0 && end-i >= 8 && !named[s[i:end]]:
			b = append(b, "11111111"...)
		case colons == 0 && dots == 0 && end-i >= 4 && !named[s[i:end]]:
			b = append(b, "1111"...)
		default:
			b = append(b, s[i:end]...)
		}
		i = end
	}
	return b
}

// match tries the patterns that the prefilter left, or remembers what they said of
// such a line.
func (s *Scanner) match(clean string, inTraceback bool, h *Hit) (ignored bool) {
	var m shape
	if len(clean) > shapeMax {
		m = s.t.tryPatterns(clean, inTraceback, s.sorted())
	} else {
		where := byte('-')
		if inTraceback {
			where = '+'
		}
		s.key = appendShape(append(s.key[:0], where), clean, s.t.numbers)
		var known bool
		if m, known = s.shapes[string(s.key)]; !known {
			m = s.t.tryPatterns(clean, inTraceback, s.sorted())
			if len(s.shapes) >= maxShapes {
				clear(s.shapes)
			}
			s.shapes[string(s.key)] = m
		}
	}
	s.finished = s.finished || m.finished
	if m.ignored {
		h.IDs, h.Exception = nil, ""
		return true
	}
	h.IDs = m.ids
	return false
}

// sorted are the patterns that the prefilter left, in the order of the table: the
// more particular pattern stands first there.
func (s *Scanner) sorted() []int32 {
	slices.Sort(s.found)
	s.found = slices.Compact(s.found)
	return s.found
}

// tryPatterns matches the line against the patterns.
func (t *Table) tryPatterns(clean string, inTraceback bool, found []int32) (m shape) {
	for _, id := range found {
		p := &t.Patterns[id]
		// Inside a traceback stand source lines: they quote messages that were
		// never printed.
		if inTraceback && p.Role != roleWeak {
			continue
		}
		if !p.matches(clean) {
			continue
		}
		switch p.Role {
		case roleIgnore:
			m.ignored = true
			return m
		case roleFinished:
			m.finished = true
			continue
		}
		m.ids = append(m.ids, p.ID)
	}
	return m
}
