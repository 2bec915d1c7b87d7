package follow

import (
	"bytes"
	"time"
)

// lineMax is from when a line that does not end is cut.
const lineMax = 1 << 20

// Line is a line of the output, or one state of a line that is drawn again.
type Line struct {
	// Offset is the logical offset of Text.
	Offset int64
	// T is when the line was complete.
	T time.Time
	// Text is without its end and otherwise as printed. It is valid until emit
	// returns.
	Text []byte
	// End is '\n', '\r', or 0: cut off by the end of the output, by lost bytes
	// or by its length.
	End byte
	// Redraw says that on a screen this text was drawn over the line before it,
	// which ended in '\r'.
	Redraw bool
}

// Splitter cuts output into lines. A line ends at '\n', at '\r', or at one of the
// pairs that terminals and programs make of them ("\r\n", "\r\r\n").
type Splitter struct {
	timeAt func(int64) time.Time
	emit   func(Line)

	tail     []byte // the beginning of the line, from earlier chunks
	tailAt   int64  // its logical offset
	next     int64  // the offset behind the last chunk
	crs      int    // '\r' seen (0 to 2) whose meaning the next byte decides
	redraw   bool
	started  bool
	t        time.Time // holds for offsets from tFrom to tTo
	tFrom    int64
	tTo      int64
	chunkEnd int64
}

// NewSplitter returns a splitter that calls emit for every line. timeAt tells when
// the byte at a logical offset was printed; it must not fall as offsets rise.
func NewSplitter(timeAt func(offset int64) time.Time, emit func(Line)) *Splitter {
	return &Splitter{timeAt: timeAt, emit: emit, tTo: -1}
}

// Write takes the next chunk. Where bytes are missing before it, the line that
// they interrupt ends.
func (s *Splitter) Write(c Chunk) {
	if s.started && (c.Missing > 0 || c.Offset != s.next) {
		s.cut()
	}
	if len(s.tail) == 0 && s.crs == 0 {
		s.tailAt = c.Offset
	}
	s.started = true
	s.next = c.Offset + int64(len(c.Data))
	s.chunkEnd = s.next
	data := c.Data
	at := c.Offset // of data
	// The next '\r' is looked for once and remembered: most output has none.
	cr := bytes.IndexByte(data, '\r')
	for len(data) > 0 {
		if s.crs > 0 {
			if used := s.afterCR(data[0], at); used {
				data, at = data[1:], at+1
				cr--
				if cr < 0 {
					cr = bytes.IndexByte(data, '\r')
				}
			}
			continue
		}
		ahead := data
		if cr >= 0 {
			ahead = data[:cr]
		}
		end := bytes.IndexByte(ahead, '\n')
		if end < 0 {
			end = cr
		}
		if end < 0 {
			s.hold(data, at)
			return
		}
		if data[end] == '\n' {
			s.line(data[:end], at, at+int64(end), '\n')
			s.tailAt = at + int64(end) + 1
		} else {
			s.hold(data[:end], at)
			s.crs = 1
		}
		data, at = data[end+1:], at+int64(end)+1
		if cr >= 0 {
			if cr -= end + 1; cr < 0 {
				cr = bytes.IndexByte(data, '\r')
			}
		}
	}
}

// afterCR decides what the held '\r' were, now that c follows at offset at. It
// says whether c belongs to them.
func (s *Splitter) afterCR(c byte, at int64) (used bool) {
	switch {
	case c == '\n':
		s.flush(at, '\n')
		s.crs = 0
		s.tailAt = at + 1
		return true
	case c == '\r' && s.crs == 1:
		s.crs = 2
		return true
	case c == '\r':
		// Three in a row: the first was an end of its own.
		s.flush(at-2, '\r')
		s.tailAt = at - 1
		return true
	}
	s.endCRs(at)
	return false
}

// endCRs ends the lines of held '\r' that no '\n' follows; at is the offset
// behind them.
func (s *Splitter) endCRs(at int64) {
	for ; s.crs > 0; s.crs-- {
		s.flush(at-int64(s.crs), '\r')
		s.tailAt = at - int64(s.crs) + 1
	}
}

// flush emits the held tail as a line that ends at offset end.
func (s *Splitter) flush(end int64, how byte) {
	s.out(s.tail, s.tailAt, end, how)
	s.tail = s.tail[:0]
	if cap(s.tail) > lineMax/4 {
		s.tail = nil // one long line must not cost its size for ever
	}
}

// line emits tail and text as one line.
func (s *Splitter) line(text []byte, at, end int64, how byte) {
	if len(s.tail) == 0 && len(text) <= lineMax {
		s.out(text, at, end, how)
		return
	}
	s.hold(text, at)
	s.flush(end, how)
}

// hold adds text to the tail, cutting where the line grows too long.
func (s *Splitter) hold(text []byte, at int64) {
	if len(s.tail) == 0 {
		s.tailAt = at
	}
	for len(s.tail)+len(text) > lineMax {
		n := lineMax - len(s.tail)
		s.tail = append(s.tail, text[:n]...)
		text, at = text[n:], at+int64(n)
		s.flush(at-1, 0)
		s.tailAt = at
	}
	s.tail = append(s.tail, text...)
}

func (s *Splitter) out(text []byte, at, end int64, how byte) {
	s.emit(Line{Offset: at, T: s.time(end), Text: text, End: how, Redraw: s.redraw})
	s.redraw = how == '\r'
}

// time asks for the time of an offset, and seldom: a chunk mostly arrived at one
// instant, and where both ends of a range have the same time, so has the middle.
func (s *Splitter) time(off int64) time.Time {
	if off >= s.tFrom && off <= s.tTo {
		return s.t
	}
	s.t, s.tFrom, s.tTo = s.timeAt(off), off, off
	for span := s.chunkEnd - 1 - off; span > 0; span /= 8 {
		if s.timeAt(off + span).Equal(s.t) {
			s.tTo = off + span
			break
		}
	}
	return s.t
}

// cut ends the line in hand without an end.
func (s *Splitter) cut() {
	s.endCRs(s.next)
	if len(s.tail) > 0 {
		s.flush(s.next-1, 0)
	}
	s.redraw = false
}

// Close emits the unterminated last line, if there is one.
func (s *Splitter) Close() { s.cut() }
