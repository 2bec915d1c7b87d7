package oom

import (
	"regexp"
	"strings"
	"time"

	"sparkrun/internal/lazyre"
)

// The bounds of what a Scanner keeps.
const (
	ringLines   = 2000 // the last lines, whatever they say
	ringLineMax = 2 << 10
	firstHits   = 200 // matching lines of the whole output, and again of the burst
	lastHits    = 1000
	hitTextMax  = 2 << 10
	maxStreams  = 256
	maxFrames   = 2048 // frames whose meaning is remembered
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
	// generic says that the frames stand in other phases too.
	generic bool
	// Cause is read from the frames: "pinned", "offload"...
	Cause string
	// seq counts what was fed: several pieces of a long line have one N.
	seq int
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
	// streams counts advances by stream; advanced has the times of the last ones.
	streams  map[string]int64
	advanced []time.Time
}

// advancedAfter counts the advances after t, as far as they are remembered.
func (o *Output) advancedAfter(t time.Time) int {
	n := 0
	for _, a := range o.advanced {
		if a.After(t) {
			n++
		}
	}
	if len(o.advanced) > 0 {
		return n
	}
	// The times were looked up afterwards, for the lines that were kept.
	for i := range o.Tail {
		if l := &o.Tail[i]; l.Advance && l.T.After(t) {
			n++
		}
	}
	return n
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
	frames      map[string]uint64 // see frame
	open        int               // streams inside a traceback
	advances    int64
	lastAdvance Line
	finished    bool
	torn        int
	sieve       sieve
	found       []int32
	steps       []int32
	advanced    [16]time.Time    // of the last advances
	shapes      map[string]shape // see match
	key         []byte
	pending     *Hit // what Pending said
	doubt       bool // and whether it must look again
}

// shownNULs are NUL bytes as viewers and copies write them.
const shownNULs = `\0\0\0\0\0\0\0\0`

type slot struct {
	line Line
	text []byte
}

// stream follows the tracebacks of one rank.
type stream struct {
	advances int64
	in       bool   // inside a traceback
	foreign  int    // lines inside it that are not of it
	marks    uint64 // what the frames so far say; see Table.frameMarks
	chain    string
}

// NewScanner returns a scanner that has seen nothing.
func (t *Table) NewScanner() *Scanner {
	return &Scanner{t: t, streams: make(map[string]*stream), frames: make(map[string]uint64), shapes: make(map[string]shape)}
}

// Feed takes the next line. Its text may be of any length and hold any bytes;
// whoever reads a stream without newlines should cut it at 64 KiB, best behind a
// carriage return, and give the pieces the same N.
func (s *Scanner) Feed(l Line) { s.feed(l, nil) }

// feed takes the next line and, where steps is given, finds out whether it is an
// advance.
func (s *Scanner) feed(l Line, steps *Steps) {
	text := l.Text
	if l.N == 0 {
		l.N = s.n + 1
	}
	s.keep(l)
	switch {
	case strings.HasSuffix(text, "\x00"):
		s.torn = len(text) - len(strings.TrimRight(text, "\x00"))
	case strings.HasSuffix(text, shownNULs):
		s.torn = len(shownNULs) / 2 // somebody made them visible
	case text != "":
		s.torn = 0
	}
	text = printable(shorten(text))
	var python bool
	if steps == nil {
		s.found, python = s.t.pre.scan(text, &s.sieve, s.found[:0])
		s.steps = s.steps[:0]
	} else {
		s.found, python = s.t.both.scan(text, &s.sieve, s.found[:0])
		s.split()
	}
	if len(s.found) == 0 && len(s.steps) == 0 && !python && s.open == 0 && !l.Advance {
		return
	}
	clean, name := s.t.unprefix(text)
	if len(s.steps) > 0 {
		l.Step, l.Advance = steps.advance(clean, name, s.steps)
		kept := &s.ring[(s.n-1)%ringLines].line
		kept.Step, kept.Advance = l.Step, l.Advance
	}
	if l.Advance {
		s.advance(name, l)
	}
	if len(s.found) == 0 && !python && s.open == 0 {
		return
	}
	clean, name = s.t.unbar(clean, name)
	st := s.stream(name)
	if len(s.found) == 0 && !python && !st.in {
		return // another stream's traceback is open
	}
	h := Hit{Line: l.N, Offset: l.Offset, T: l.T, Stream: name, seq: s.n, advances: s.advances, own: st.advances}
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

// split takes the patterns of steps out of what the prefilter for both left.
func (s *Scanner) split() {
	s.steps = s.steps[:0]
	first, rest := int32(len(s.t.Patterns)), s.found[:0]
	for _, id := range s.found {
		if id >= first {
			s.steps = append(s.steps, id-first)
		} else {
			rest = append(rest, id)
		}
	}
	s.found = rest
}

// advance notes that a step counter of the stream grew.
func (s *Scanner) advance(name string, l Line) {
	s.stream(name).advances++
	s.advances++
	s.doubt = s.doubt || s.pending != nil
	s.burst = s.burst[:0]
	s.advanced[s.advances%int64(len(s.advanced))] = l.T
	l.Text = ""
	s.lastAdvance = l
}

// frame notes what a frame of the open traceback says. Tracebacks repeat, and so do
// their frames.
func (s *Scanner) frame(st *stream, text string) {
	text = text[:min(len(text), 400)]
	m, known := s.frames[text]
	if !known {
		if len(s.frames) >= maxFrames {
			clear(s.frames)
		}
		m = s.t.frameMarks(text)
		s.frames[strings.Clone(text)] = m
	}
	st.marks = s.t.deeper(st.marks, m)
}

// deeper adds what a frame says to what those around it say. Some trainers hand the
// whole step to the optimizer as a closure: what is done inside of it is training, and
// the optimizer's own state had no part in it.
func (t *Table) deeper(marks, frame uint64) uint64 {
	for i := range t.Phases {
		if t.Phases[i].Phase == PhaseTrain && !t.Phases[i].Generic && frame&(1<<i) != 0 {
			for k := range t.Phases {
				if t.Phases[k].Phase == PhaseOptimizer {
					marks &^= 1 << k
				}
			}
			break
		}
	}
	return marks | frame
}

// frameMarks returns a bit for each of the phases, then of the causes, then of the
// clean-up frames that the frame matches.
func (t *Table) frameMarks(frame string) (marks uint64) {
	bit := uint64(1)
	note := func(re *regexp.Regexp) {
		if re.MatchString(frame) {
			marks |= bit
		}
		bit <<= 1
	}
	for i := range t.Phases {
		note(t.Phases[i].Re.Regexp)
	}
	for i := range t.CauseFrames {
		note(t.CauseFrames[i].Re.Regexp)
	}
	for i := range t.CleanupFrames {
		note(t.CleanupFrames[i].Re.Regexp)
	}
	return marks
}

// marked fills in what the frames above an exception say: of each the first entry
// of the table that any frame matches.
func (t *Table) marked(marks uint64, h *Hit) {
	for i := range t.Phases {
		if marks&1 != 0 && h.Phase == "" {
			h.Phase, h.generic = t.Phases[i].Phase, t.Phases[i].Generic
		}
		marks >>= 1
	}
	for i := range t.CauseFrames {
		if marks&1 != 0 && h.Cause == "" {
			h.Cause = t.CauseFrames[i].Cause
		}
		marks >>= 1
	}
	h.Cleanup = marks != 0
}

var (
	// IPython writes the class in front of the heading, and frames without indent.
	notebookHead  = lazyre.New(`^[A-Za-z_][\w.]* {2,}Traceback \(most recent call last\)`)
	notebookFrame = lazyre.New(`^(?:File .+:\d+|Cell In ?\[|Input In \[|<ipython-input|-+> ?\d+ )`)
	methodOf      = lazyre.New(` in (?:\w+\.)+`)

	exceptionLine = lazyre.New(`^([A-Za-z_][\w.]*(?:\([\w.]+\))?)(?:: |:?\s*$)`)
	// className is what may stand below frames although it has none of the usual
	// endings: a name in a module, or one of several capitals. Other processes print
	// single words in between.
	className     = lazyre.New(`\.|^[A-Z][a-z0-9]+[A-Z]`)
	exceptionName = lazyre.New(`(?:Error|Exception|Interrupt|Exit|OutOfResources)(?:\(\w+\))?$`)
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
		st.marks = 0
		return true
	case strings.HasSuffix(clean, "Traceback (most recent call last)") && notebookHead.MatchString(clean):
		s.openTraceback(st)
		st.marks = 0
		return true
	case indented && strings.HasPrefix(trimmed, `File "`):
		s.openTraceback(st)
		s.frame(st, trimmed)
		return true
	case st.in && strings.HasPrefix(clean, "│") && strings.Contains(clean, ".py:"):
		s.frame(st, strings.Trim(clean, "│ "))
		return true
	case st.in && notebookFrame.MatchString(clean):
		// "File ~/x.py:88, in Trainer.train(self)": the phases know plain names.
		s.frame(st, methodOf.ReplaceAllString(clean, " in "))
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
	if m == nil || (!exceptionName.MatchString(m[1]) && !(st.in && className.MatchString(m[1]))) {
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
	s.t.marked(st.marks, h)
	st.chain = ""
	st.marks = 0
	s.closeTraceback(st)
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
	s.stir(&h)
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
	if len(s.ring) < ringLines {
		s.ring = append(s.ring, slot{})
	}
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
	o := s.hits()
	for i := max(0, s.n-ringLines); i < s.n; i++ {
		sl := &s.ring[i%ringLines]
		l := sl.line
		l.Text = string(sl.text)
		o.Tail = append(o.Tail, l)
	}
	return o
}

// hits is Output without the last lines.
func (s *Scanner) hits() Output {
	o := Output{
		Lines: s.n, Advances: s.advances, LastAdvance: s.lastAdvance,
		Finished: s.finished, TornNULs: s.torn,
		streams: make(map[string]int64, len(s.streams)),
	}
	for name, st := range s.streams {
		o.streams[name] = st.advances
	}
	for _, t := range s.advanced {
		if !t.IsZero() {
			o.advanced = append(o.advanced, t)
		}
	}
	// The three lists overlap and each is in order.
	at := 0
	put := func(h Hit) {
		if h.seq > at {
			o.Hits = append(o.Hits, h)
			at = h.seq
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

// Pending returns the out-of-memory line that stands in the burst since the last
// advance, if there is one that nothing has taken back: a job that then stands
// still hangs (see Hung). It may be asked after every line: the burst is judged
// anew only where a line could have changed the answer.
func (s *Scanner) Pending() (Hit, bool) {
	if s.doubt {
		s.doubt = false
		o := s.hits()
		r := s.t.read(&o)
		s.pending = nil
		if (r.state == fatal || r.state == doubtful) && r.hit != nil && s.t.classify(r.hit).level != levelMention && !past(&o, r.hit) {
			s.pending = r.hit
		}
	}
	if s.pending == nil {
		return Hit{}, false
	}
	return *s.pending, true
}

// stir notes whether a new hit can change what Pending says.
func (s *Scanner) stir(h *Hit) {
	switch c := s.t.classify(h); c.role {
	case "", roleWeak, roleConsequence, roleCleanup, roleLauncher:
	case roleFatal:
		s.doubt = s.doubt || s.pending == nil && c.level != levelMention
	default:
		s.doubt = s.doubt || s.pending != nil
	}
}
