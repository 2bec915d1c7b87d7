package oom

import "strings"

// maxScan bounds how much of one line is looked at: the ends, since a message
// stands at the start or behind the last carriage return.
const maxScan = 64 << 10

// Clean returns a line without what terminals, launchers and loggers put around
// it: colours, NULs, everything before the last carriage return, rank and logger
// prefixes, in whatever order they are nested. stream names the rank or actor
// that the prefixes speak of; it is empty for a plain line.
func (t *Table) Clean(raw string) (text, stream string) {
	return t.strip(printable(shorten(raw)))
}

// shorten cuts a line that is too long to look at, keeping both ends.
func shorten(s string) string {
	if len(s) <= maxScan {
		return s
	}
	// Only what follows the last carriage return is visible. Redraws are cut
	// first, so that a line of a million of them keeps its last state.
	s = strings.TrimRight(s, "\r")
	s = s[strings.LastIndexByte(s, '\r')+1:]
	if len(s) <= maxScan {
		return s
	}
	return s[:maxScan/2] + s[len(s)-maxScan/2:]
}

// printable removes control sequences, NULs and what a carriage return has
// overwritten. A plain line is returned as it is.
func printable(s string) string {
	// IndexByte is vectorised and LastIndexByte is not: ask first whether there
	// is anything to look for.
	if strings.IndexByte(s, '\r') >= 0 || strings.HasSuffix(s, "\n") {
		s = strings.TrimRight(s, "\r\n")
		s = s[strings.LastIndexByte(s, '\r')+1:]
	}
	if strings.IndexByte(s, 0x1b) < 0 && strings.IndexByte(s, 0) < 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		switch s[i] {
		case 0:
			i++
		case 0x1b:
			i += sequence(s[i:])
		default:
			b.WriteByte(s[i])
			i++
		}
	}
	return b.String()
}

// sequence returns the length of the control sequence that s begins with.
func sequence(s string) int {
	if len(s) < 2 {
		return len(s)
	}
	switch s[1] {
	case '[': // CSI: parameters, then one final byte
		for i := 2; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				return i + 1
			}
			if s[i] < 0x20 || s[i] > 0x7e {
				return i
			}
		}
		return len(s)
	case ']': // OSC: to BEL or ST
		for i := 2; i < len(s); i++ {
			if s[i] == 0x07 {
				return i + 1
			}
			if s[i] == 0x1b {
				if i+1 < len(s) && s[i+1] == '\\' {
					return i + 2
				}
				return i
			}
		}
		return len(s)
	case '(', ')': // character set
		return min(3, len(s))
	}
	return 2
}

// strip takes prefixes off until none is left, and a bar that a message stands
// behind.
func (t *Table) strip(s string) (text, stream string) {
	text, stream = t.unprefix(s)
	return t.unbar(text, stream)
}

// unbar takes off the bar that text begins with, and the prefixes behind it.
func (t *Table) unbar(text, stream string) (rest, _ string) {
	for range 8 {
		rest, ok := cutBar(text)
		if !ok || rest == "" {
			break
		}
		var inner string
		if text, inner = t.unprefix(rest); inner != "" {
			stream = join(stream, inner)
		}
	}
	return text, stream
}

// join names a stream inside another one; what is nested too deep is left out.
func join(a, b string) string {
	switch {
	case b == "" || len(a) > 80:
		return a
	case a == "":
		return b
	}
	return a + "/" + b
}

// unprefix takes prefixes off until none is left.
func (t *Table) unprefix(s string) (text, stream string) {
	// A prefix never makes a line longer, so this ends; the bound is for lines
	// made of nothing but prefixes.
	for range 16 {
		if s == "" {
			break
		}
		cut := false
		for _, i := range t.byFirst[s[0]] {
			p := &t.Prefixes[i]
			if p.Builtin == "rank" {
				name, end := rankPrefix(s)
				if end == 0 {
					continue
				}
				s, stream, cut = s[end:], join(stream, name), true
				break
			}
			if p.must != "" && !strings.Contains(s, p.must) {
				continue
			}
			m := p.Re.FindStringSubmatchIndex(s)
			if m == nil || m[1] == 0 || (p.KeepEmpty && m[1] == len(s)) {
				continue
			}
			for g := 1; g < len(m)/2; g++ {
				if m[2*g] >= 0 {
					stream = join(stream, s[m[2*g]:m[2*g+1]])
				}
			}
			// Begin again with the first one: the order of the table holds at
			// every level.
			s, cut = s[m[1]:], true
			break
		}
		if !cut {
			break
		}
	}
	return s, stream
}

// rankPrefix reads "[rank3]: ", which stands on every line of a distributed job,
// and returns the length of it, 0 if it is not there.
func rankPrefix(s string) (name string, end int) {
	const open = "[rank"
	if !strings.HasPrefix(s, open) {
		return "", 0
	}
	at := len(open)
	for at < len(s) && digit(s[at]) {
		at++
	}
	if at == len(open) || !strings.HasPrefix(s[at:], "]:") {
		return "", 0
	}
	end = at + 2
	if end < len(s) && (s[end] == ' ' || s[end] == '\t') {
		end++
	}
	return s[1:at], end
}
