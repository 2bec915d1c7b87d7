package oom

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// The bounds of what a Scanner keeps.
const (
	ringLines   = 2000 // the last lines, whatever they say
	ringLineMax = 2 << 10
	firstHits   = 200 // matching lines of the whole output, and again of the burst
	lastHits    = 1000
	hitTextMax  = 2 << 10
	maxStreams  = 256
	maxFrames   = 80
)

// Hit is one line that means something.
type Hit struct {
	Line   int
	Offset int64
	T      time.Time
	Text   string // cleaned, at most 2 KiB
	Stream string // rank or actor, empty for plain output
	IDs    []string
	// Exception is the class where the line is an exception at line start;
	// Traceback says that frames stood above it. Chain is "handling" or "cause"
	// where Python says that it came up while another one was handled, or was
	// raised from it.
	Exception string
	Traceback bool
	Chain     string
	// Phase is read from the frames; Cleanup says that they are of clean-up code.
	Phase   Phase
	Cleanup bool
	// advances and own count the advances before it, of all streams and of its
	// own.
	advances, own int64
}

// Output is what a Scanner kept of the output.
type Output struct {
	// Tail are the last lines, raw, each at most 2 KiB.
	Tail []Line
	Hits []Hit
	// Lines counts all lines, Advances those on which a step counter grew.
	Lines    int
	Advances int64
	// LastAdvance is the newest of them, without its text.
	LastAdvance Line
	// Finished says that the trainer reported its end. TornNULs counts the NUL
	// bytes at the end of the last line: a file system after a power loss.
	Finished bool
	TornNULs int
	// streams counts advances by stream.
	streams map[string]int64
}

// Scanner reads output line by line, in bounded memory. It is not safe for
// concurrent use.
type Scanner struct {
	t    *Table
	ring []slot
	n    int // lines seen

	first, burst []Hit
	last         []Hit
	lastN        int

	streams     map[string]*stream
	open        int // streams inside a traceback
	advances    int64
	lastAdvance Line
	finished    bool
	torn        int
	found       []int32
}

type slot struct {
	line Line
	text []byte
}

// stream follows the tracebacks of one rank.
type stream struct {
	advances int64
	in       bool // inside a traceback
	foreign  int  // lines inside it that are not of it
	frames   []string
	chain    string
}

// NewScanner returns a scanner that has seen nothing.
func (t *Table) NewScanner() *Scanner {
	return &Scanner{t: t, ring: make([]slot, ringLines), streams: make(map[string]*stream)}
}

// Feed takes the next line.
func (s *Scanner) Feed(l Line) {
	text := l.Text
	if l.N == 0 {
		l.N = s.n + 1
	}
	s.keep(l)
	if strings.HasSuffix(text, "\x00") {
		s.torn = len(text) - len(strings.TrimRight(text, "\x00"))
	} else if text != "" {
		s.torn = 0
	}
	text = printable(shorten(text))
	if l.Advance {
		_, name := s.t.strip(text)
		s.stream(name).advances++
		s.advances++
		s.burst = s.burst[:0]
		l.Text = ""
		s.lastAdvance = l
	}
	var python bool
	s.found, python = s.t.pre.scan(text, s.found[:0])
	if len(s.found) == 0 && !python && s.open == 0 {
		return
	}
	clean, name := s.t.strip(text)
	st := s.stream(name)
	h := Hit{Line: l.N, Offset: l.Offset, T: l.T, Stream: name, advances: s.advances, own: st.advances}
	inTraceback := s.python(st, clean, &h)
	if len(s.found) > 0 {
		if ignored := s.match(clean, inTraceback, &h); ignored {
			return
		}
	}
	if len(h.IDs) == 0 && h.Exception == "" {
		return
	}
	h.Text = strings.Clone(clean[:min(len(clean), hitTextMax)])
	h.Stream = strings.Clone(name)
	s.add(h)
}

// match tries the patterns that the prefilter left.
func (s *Scanner) match(clean string, inTraceback bool, h *Hit) (ignored bool) {
	// In the order of the table: the more particular pattern stands first there.
	slices.Sort(s.found)
	s.found = slices.Compact(s.found)
	for _, id := range s.found {
		p := &s.t.Patterns[id]
		// Inside a traceback stand source lines: they quote messages that were
		// never printed.
		if inTraceback && p.Role != roleWeak {
			continue
		}
		if !p.Re.MatchString(clean) {
			continue
		}
		switch p.Role {
		case roleIgnore:
			h.IDs, h.Exception = nil, ""
			return true
		case roleFinished:
			s.finished = true
			continue
		}
		h.IDs = append(h.IDs, p.ID)
	}
	return false
}

var (
	exceptionLine = regexp.MustCompile(`^([A-Za-z_][\w.]*(?:\([\w.]+\))?)(?:: |:?\s*$)`)
	exceptionName = regexp.MustCompile(`(?:Error|Exception|Interrupt|Exit|OutOfResources)(?:\(\w+\))?$`)
)

// python follows tracebacks. It fills the exception fields of h, and reports
// whether the line is a frame or source line of a traceback.
func (s *Scanner) python(st *stream, clean string, h *Hit) bool {
	trimmed := strings.TrimLeft(clean, " \t")
	indented := len(trimmed) < len(clean)
	switch {
	case strings.HasPrefix(trimmed, "Traceback (most recent call last)"),
		strings.HasPrefix(trimmed, "╭─") && strings.Contains(trimmed, "Traceback"):
		s.openTraceback(st)
		st.frames = st.frames[:0]
		return true
	case indented && strings.HasPrefix(trimmed, `File "`):
		s.openTraceback(st)
		if len(st.frames) == maxFrames {
			st.frames = append(st.frames[:0], st.frames[1:]...)
		}
		st.frames = append(st.frames, strings.Clone(trimmed[:min(len(trimmed), 400)]))
		return true
	case strings.HasPrefix(trimmed, "During handling of the above"):
		st.chain = "handling"
		return true
	case strings.Contains(trimmed, "was the direct cause of the following"):
		st.chain = "cause"
		return true
	}
	if st.in && (indented || clean == "" || strings.HasPrefix(clean, "│") || strings.HasPrefix(clean, "╰")) {
		return indented
	}
	m := exceptionLine.FindStringSubmatch(clean)
	if m == nil || (!st.in && !exceptionName.MatchString(m[1])) {
		if st.in {
			// Other output between the frames: the traceback is still open, but
			// not for ever.
			if st.foreign++; st.foreign > 50 {
				s.closeTraceback(st)
			}
		}
		return false
	}
	h.Exception, h.Traceback, h.Chain = strings.Clone(m[1]), st.in, st.chain
	for _, p := range s.t.Phases {
		if h.Phase == "" && anyMatch(p.Re.Regexp, st.frames) {
			h.Phase = p.Phase
		}
	}
	for _, c := range s.t.CleanupFrames {
		h.Cleanup = h.Cleanup || anyMatch(c.Re.Regexp, st.frames)
	}
	st.chain = ""
	st.frames = st.frames[:0]
	s.closeTraceback(st)
	return false
}

func anyMatch(re *regexp.Regexp, lines []string) bool {
	for _, l := range lines {
		if re.MatchString(l) {
			return true
		}
	}
	return false
}

func (s *Scanner) openTraceback(st *stream) {
	st.foreign = 0
	if !st.in {
		st.in = true
		s.open++
	}
}

func (s *Scanner) closeTraceback(st *stream) {
	if st.in {
		st.in = false
		s.open--
	}
}

func (s *Scanner) stream(name string) *stream {
	if st := s.streams[name]; st != nil {
		return st
	}
	if len(s.streams) >= maxStreams {
		name = ""
		if st := s.streams[name]; st != nil {
			return st
		}
	}
	st := &stream{}
	s.streams[strings.Clone(name)] = st
	return st
}

// add keeps a hit: the first ones, the first ones since the last advance, and the
// last ones.
func (s *Scanner) add(h Hit) {
	switch {
	case len(s.first) < firstHits:
		s.first = append(s.first, h)
	case len(s.burst) < firstHits:
		s.burst = append(s.burst, h)
	}
	if len(s.last) < lastHits {
		s.last = append(s.last, h)
	} else {
		s.last[s.lastN%lastHits] = h
	}
	s.lastN++
}

// keep puts the raw line into the ring.
func (s *Scanner) keep(l Line) {
	sl := &s.ring[s.n%ringLines]
	s.n++
	text := l.Text
	sl.text = sl.text[:0]
	if len(text) > ringLineMax {
		sl.text = append(sl.text, text[:ringLineMax/2]...)
		text = text[len(text)-ringLineMax/2:]
	}
	sl.text = append(sl.text, text...)
	l.Text = ""
	sl.line = l
}

// Output returns what a verdict needs. The scanner may go on afterwards.
func (s *Scanner) Output() Output {
	o := Output{
		Lines: s.n, Advances: s.advances, LastAdvance: s.lastAdvance,
		Finished: s.finished, TornNULs: s.torn,
		streams: make(map[string]int64, len(s.streams)),
	}
	for name, st := range s.streams {
		o.streams[name] = st.advances
	}
	for i := max(0, s.n-ringLines); i < s.n; i++ {
		sl := &s.ring[i%ringLines]
		l := sl.line
		l.Text = string(sl.text)
		o.Tail = append(o.Tail, l)
	}
	// The three lists overlap and each is in order of lines.
	at := 0
	put := func(h Hit) {
		if h.Line > at {
			o.Hits = append(o.Hits, h)
			at = h.Line
		}
	}
	for _, h := range s.first {
		put(h)
	}
	for _, h := range s.burst {
		put(h)
	}
	for i := max(0, s.lastN-lastHits); i < s.lastN; i++ {
		put(s.last[i%lastHits])
	}
	return o
}
