package follow

import (
	"bytes"
	"time"
)

const (
	// barsMax is how many bars are told apart at a time.
	barsMax = 16
	// plainEvery is the shortest time between two lines of something that is
	// drawn again but counts nothing.
	plainEvery = time.Second
	// nestedFor is how long after a cursor move upwards the line ends of a
	// program still belong to its bars: nested bars move down with '\n'.
	nestedFor = 5 * time.Second
)

// Folder makes of a progress bar, which a program draws many times a second, one
// line per visible step. It gives out every line that ends in '\n', every new
// count of a bar, and of other redrawn text at most one line a second; the last
// state before a line goes on is never left out.
type Folder struct {
	out func(t time.Time, text []byte)

	bars  []bar // most recently seen first
	last  []byte
	lastT time.Time
	// held is the newest state that was not given out.
	held   []byte
	heldT  time.Time
	isHeld bool
	nested time.Time
	buf    []byte
}

// bar is a bar as told by what stands before its count and by its total.
type bar struct{ name, total, n string }

// NewFolder returns a folder that gives lines to out, cleaned (see Clean). text is
// valid until out returns.
func NewFolder(out func(t time.Time, text []byte)) *Folder { return &Folder{out: out} }

// Line takes the next line, as the Splitter emits it.
func (f *Folder) Line(l Line) {
	text := Clean(f.buf, l.Text)
	if len(text) > 0 && (len(l.Text) == 0 || &text[0] != &l.Text[0]) {
		f.buf = text
	}
	up := bytes.IndexByte(l.Text, esc) >= 0 && movesUp(l.Text)
	if up {
		f.nested = l.T
	}
	end := l.End
	if end == '\n' && !f.nested.IsZero() && l.T.Sub(f.nested) < nestedFor {
		if _, _, _, ok := count(text); ok {
			end = '\r'
		} else if len(bytes.TrimSpace(text)) == 0 {
			return // a move down, not an empty line
		}
	}
	if end != '\r' {
		f.ended(l, text)
		return
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return // wiped, or only a return to the front
	}
	if name, n, total, ok := count(text); ok {
		if f.seen(name, n, total) {
			f.hold(l.T, text)
			return
		}
		f.give(l.T, text)
		return
	}
	switch {
	case bytes.Equal(text, f.last):
		f.isHeld = false
	case !f.lastT.IsZero() && l.T.Sub(f.lastT) < plainEvery:
		f.hold(l.T, text)
	default:
		f.give(l.T, text)
		f.lastT = l.T
	}
}

// ended gives out a line that will not be drawn over.
func (f *Folder) ended(l Line, text []byte) {
	if l.Redraw && len(bytes.TrimSpace(text)) == 0 {
		// Nothing was drawn over the state before: that is the line. If it was
		// given out there is nothing to add.
		f.flush()
		f.last = f.last[:0]
		return
	}
	if !l.Redraw {
		f.flush()
	}
	f.isHeld = false
	f.out(l.T, text)
	f.last = f.last[:0]
}

func (f *Folder) give(t time.Time, text []byte) {
	f.isHeld = false
	f.last = append(f.last[:0], text...)
	f.out(t, text)
}

func (f *Folder) hold(t time.Time, text []byte) {
	f.held = append(f.held[:0], text...)
	f.heldT, f.isHeld = t, true
}

func (f *Folder) flush() {
	if f.isHeld {
		f.isHeld = false
		f.out(f.heldT, f.held)
	}
}

// Close gives out the last state, if it is still held.
func (f *Folder) Close() { f.flush() }

// seen says whether the bar stood at n already, and remembers it.
func (f *Folder) seen(name, n, total []byte) bool {
	for i, b := range f.bars {
		if b.name != string(name) || b.total != string(total) {
			continue
		}
		same := b.n == string(n)
		if !same {
			b.n = string(n)
		}
		copy(f.bars[1:i+1], f.bars[:i])
		f.bars[0] = b
		return same
	}
	if len(f.bars) < barsMax {
		f.bars = append(f.bars, bar{})
	}
	copy(f.bars[1:], f.bars)
	f.bars[0] = bar{name: string(name), total: string(total), n: string(n)}
	return false
}

// count finds the count of a bar as tqdm and Keras draw it: "n/total [" or, with
// no total, "nit [". name is what stands before the bar, which with the total
// tells bars apart.
func count(text []byte) (name, n, total []byte, ok bool) {
	for from := 0; ; {
		i := bytes.IndexByte(text[from:], '[')
		if i < 0 {
			return nil, nil, nil, false
		}
		i += from
		from = i + 1
		left := bytes.TrimRight(text[:i], " ")
		if len(left) == i {
			continue // "x[0]" is no bar
		}
		start := bytes.LastIndexAny(left, " |") + 1
		if n, total, ok = counter(left[start:]); !ok {
			continue
		}
		name = left[:start]
		if k := bytes.IndexAny(name, "%|"); k >= 0 {
			name = bytes.TrimRight(name[:k], " 0123456789")
		}
		return name, n, total, true
	}
}

// counter takes "n/total" and "nit" apart.
func counter(w []byte) (n, total []byte, ok bool) {
	if n, found := bytes.CutSuffix(w, []byte("it")); found {
		return n, nil, isNumber(n)
	}
	n, total, ok = bytes.Cut(w, []byte("/"))
	return n, total, ok && isNumber(n) && (isNumber(total) || string(total) == "?" || string(total) == "Unknown")
}

// isNumber takes digits with a point and a unit, as in 1.25G.
func isNumber(w []byte) bool {
	if len(w) == 0 || w[0] < '0' || w[0] > '9' {
		return false
	}
	for i, c := range w {
		switch {
		case c >= '0' && c <= '9', c == '.', c == ',':
		case i == len(w)-1 && bytes.IndexByte([]byte("kKMGTB"), c) >= 0:
		default:
			return false
		}
	}
	return true
}

// movesUp looks for a cursor-up sequence, CSI n A.
func movesUp(text []byte) bool {
	for {
		i := bytes.Index(text, []byte{esc, '['})
		if i < 0 {
			return false
		}
		text = text[i+2:]
		k := 0
		for k < len(text) && text[k] >= '0' && text[k] <= '9' {
			k++
		}
		if k < len(text) && text[k] == 'A' {
			return true
		}
	}
}
