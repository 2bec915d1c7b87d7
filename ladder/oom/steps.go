package oom

import "strconv"

// Steps finds advances in output that no trainer profile reads: bars, and lines
// with a step and a loss. It is for logs that somebody brings along; a run knows
// its steps from the profile.
type Steps struct {
	t    *Table
	seen map[string]float64
}

// NewSteps returns a Steps that has seen nothing.
func (t *Table) NewSteps() *Steps { return &Steps{t: t, seen: make(map[string]float64)} }

// maxCounters bounds the counters that are told apart.
const maxCounters = 4096

// Advance tells whether a counter grew on the raw line, and its new value where
// that is a whole number.
func (s *Steps) Advance(raw string) (step int64, grew bool) {
	if !s.t.steps.scanAny(raw) {
		return 0, false
	}
	// The prefix that takes a bar off a message must not take the bar itself.
	text, stream := s.t.Clean(raw)
	for i := range s.t.Progress {
		p := &s.t.Progress[i]
		m := p.Re.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		if p.Always || p.Never {
			return 0, p.Always
		}
		group := func(name string) string {
			if g := p.Re.SubexpIndex(name); g >= 0 {
				return m[g]
			}
			return ""
		}
		n, err := strconv.ParseFloat(group("n"), 64)
		if err != nil {
			continue
		}
		key := strconv.Itoa(i) + "|" + stream + "|" + group("desc") + "|" + group("total")
		last, known := s.seen[key]
		if !known && len(s.seen) >= maxCounters {
			clear(s.seen)
		}
		s.seen[key] = n
		if n > last && (known || p.First) {
			return int64(n), true
		}
		return 0, false
	}
	return 0, false
}
