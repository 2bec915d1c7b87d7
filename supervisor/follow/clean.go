package follow

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi/parser"
)

const (
	esc = 0x1b
	can = 0x18
	sub = 0x1a
)

// backspaceMax is the longest text in which backspaces are obeyed: moving in a
// long one costs its square, and bars are short.
const backspaceMax = 16 << 10

// Clean returns text as it can be shown and kept: control sequences (colours,
// cursor moves, titles) are left out, other control characters are written as
// escapes such as \x00, a backspace lets what follows write over what was there.
// Tabs and bytes that are not UTF-8 stay. A sequence without an end is no
// sequence: its text stays.
//
// Without anything to clean the result is text itself, otherwise it is appended
// to dst[:0].
func Clean(dst, text []byte) []byte {
	i := plain(text)
	if i == len(text) {
		return text
	}
	dst = append(dst[:0], text[:i]...)
	cur := len(dst) // where the cursor stands; before the end after a backspace
	long := len(text)
	text = text[i:]
	for len(text) > 0 {
		c := text[0]
		n := 1
		switch {
		case c == esc:
			if k := sequence(text); k > 1 {
				text = text[k:]
				continue
			}
			dst, cur = overwrite(dst, cur, []byte(`\x1b`))
		case c == '\b':
			for cur > 0 && long < backspaceMax {
				cur--
				if utf8.RuneStart(dst[cur]) {
					break
				}
			}
		case c == '\a':
		case c == '\t' || c >= ' ' && c < 0x7f:
			if cur == len(dst) {
				n = max(plain(text), 1)
			}
			dst, cur = overwrite(dst, cur, text[:n])
		case c < ' ' || c == 0x7f:
			dst, cur = overwrite(dst, cur, escaped(`\x`, c))
		default:
			r, k := utf8.DecodeRune(text)
			n = k
			switch {
			case r == utf8.RuneError && k == 1 && c < 0xa0:
				// A terminal in an 8-bit mode takes these for control
				// sequences.
				dst, cur = overwrite(dst, cur, escaped(`\x`, c))
			case r >= 0x80 && r < 0xa0:
				dst, cur = overwrite(dst, cur, escaped(`\u00`, byte(r)))
			default:
				dst, cur = overwrite(dst, cur, text[:n])
			}
		}
		text = text[n:]
	}
	return dst
}

// sequence returns how long the control sequence at the front of text is; 0 or 1
// is none, since text ends before it does. Only the library's state table is used: the rest of
// it measures character widths, whose tables cost each of our processes tens of
// milliseconds at its start.
func sequence(text []byte) int {
	state := parser.GroundState
	for i, c := range text {
		// An ESC inside breaks the sequence off, unless it begins the end of a
		// string. Looking further would cost the square of a hostile line.
		if c == esc && i > 0 && !(i+1 < len(text) && text[i+1] == '\\') {
			return i
		}
		state, _ = parser.Table.Transition(state, c)
		if i > 0 && state == parser.GroundState {
			return i + 1
		}
	}
	return 0
}

func escaped(prefix string, c byte) []byte {
	const hex = "0123456789abcdef"
	return append([]byte(prefix), hex[c>>4], hex[c&0xf])
}

// overwrite writes b at the cursor: over as many characters as it has, if there
// are any.
func overwrite(dst []byte, cur int, b []byte) ([]byte, int) {
	if cur == len(dst) {
		dst = append(dst, b...)
		return dst, len(dst)
	}
	end := cur
	for range utf8.RuneCount(b) {
		if end < len(dst) {
			_, k := utf8.DecodeRune(dst[end:])
			end += k
		}
	}
	return slices.Replace(dst, cur, end, b...), cur + len(b)
}

// plain returns how many bytes from the front need no cleaning.
func plain(b []byte) int {
	i := 0
	for {
		// Eight bytes at a time: the usual line is printable ASCII.
		for ; i+8 <= len(b); i += 8 {
			const ones, highs = 0x0101010101010101, 0x8080808080808080
			w := binary.LittleEndian.Uint64(b[i:])
			below := (w - ones*0x20) & ^w // < 0x20
			del := (w ^ ones*0x7f) - ones // == 0x7f
			if (below|del&^(w^ones*0x7f)|w)&highs != 0 {
				break
			}
		}
		if i == len(b) {
			return i
		}
		c := b[i]
		switch {
		case c == '\t' || c >= ' ' && c < 0x7f:
			i++
		case c < 0x80:
			return i
		default:
			r, k := utf8.DecodeRune(b[i:])
			if r >= 0x80 && r < 0xa0 || r == utf8.RuneError && k == 1 && c < 0xa0 {
				return i
			}
			i += k
		}
	}
}
