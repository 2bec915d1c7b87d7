package progress

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"sparkrun/internal/sample"
)

// bar is one drawing of a progress bar:
//
//	name: 25%|███▌    | 7/28 [00:42<01:46,  5.06s/it, loss=0.9]
//	Epoch 0/9 ━━━━╺━━━━ 307/938 0:00:01 • 0:00:02 289.04it/s loss: 0.198
type bar struct {
	// name is the description in front, empty where there is none.
	name string
	// n of total; total is 0 where the bar shows a question mark.
	n, total int64
	// elapsed is seconds since the bar began.
	elapsed sample.Num
	// per is seconds for one count as the bar shows it, unit what it counts ("it",
	// "examples"), empty where it does not say.
	per  sample.Num
	unit string
	// postfix is what stands behind the rate.
	postfix string
}

// findBar reads the last complete drawing in a line: redraws can be glued together,
// and other output behind them.
func findBar(text string) (bar, bool) {
	for end := len(text); ; {
		at := strings.LastIndexByte(text[:end], '[')
		if at <= 0 {
			break
		}
		if text[at-1] == ' ' {
			if b, ok := barAt(text, at-1); ok {
				return b, true
			}
		}
		end = at
	}
	return findRich(text)
}

// barAt reads a tqdm bar whose bracket opens at text[at+1].
func barAt(text string, at int) (bar, bool) {
	var b bar
	i := at
	for i > 0 && isCount(text[i-1]) {
		i--
	}
	var ok bool
	if b.n, b.total, ok = counts(text[i:at]); !ok {
		return b, false
	}
	// Before it: the bar between two |, or nothing but a percentage.
	head := strings.TrimRight(text[:i], " ")
	if strings.HasSuffix(head, "|") {
		head = head[:len(head)-1]
		open := strings.LastIndexByte(head, '|')
		if open < 0 {
			return b, false
		}
		head = strings.TrimRight(head[:open], " ")
	}
	switch {
	case strings.HasSuffix(head, "%"):
		head = strings.TrimRight(head[:len(head)-1], "0123456789.")
	case b.total == 0 && strings.HasSuffix(head, ":"): // no total, no percentage
	default:
		return b, false
	}
	b.name = name(head)
	b.inside(text[at+2:])
	return b, true
}

// name takes a description, which ends in a colon, from what stands in front of a
// bar. What else stands there is output that the bar was glued to, or the prefix of
// a launcher, which ends in a colon too.
func name(head string) string {
	head = strings.TrimRight(head, " ")
	if !strings.HasSuffix(head, ":") {
		return ""
	}
	return strings.TrimSpace(unprefix(head[:len(head)-1]))
}

func isCount(c byte) bool { return c >= '0' && c <= '9' || c == ',' || c == '/' || c == '?' }

// counts reads "7/28" or "7/?".
func counts(text string) (n, total int64, ok bool) {
	a, z, ok := strings.Cut(text, "/")
	if !ok {
		return 0, 0, false
	}
	if n, ok = commaInt(a); !ok {
		return 0, 0, false
	}
	if z == "?" {
		return n, 0, true
	}
	total, ok = commaInt(z)
	return n, total, ok && total > 0 && n <= total
}

// inside reads "00:42<01:46,  5.06s/it, loss=0.9]".
func (b *bar) inside(text string) {
	if shut := strings.IndexByte(text, ']'); shut >= 0 {
		text = text[:shut]
	}
	if lt := strings.IndexAny(text, "<,"); lt > 0 {
		b.elapsed = clockSeconds(text[:lt])
	}
	_, rest, ok := strings.Cut(text, ",")
	if !ok {
		return
	}
	// The first part that is a rate ends the clocks: a remaining time of days has a
	// comma of its own.
	for tail := rest; tail != ""; {
		word, after, _ := strings.Cut(tail, ",")
		if b.rate(strings.TrimSpace(word)) {
			b.postfix = after
			return
		}
		tail = after
	}
	b.postfix = rest
}

// rate reads "5.06s/it", "?it/s" or "2811.64 examples/s".
func (b *bar) rate(word string) bool {
	i := 0
	for i < len(word) && (word[i] >= '0' && word[i] <= '9' || word[i] == '.' || word[i] == '?') {
		i++
	}
	number, rest := word[:i], strings.TrimLeft(word[i:], " ")
	over, under, ok := strings.Cut(rest, "/")
	if !ok || number == "" || strings.ContainsAny(rest, "=: ") {
		return false
	}
	v, err := strconv.ParseFloat(number, 64)
	known := err == nil && v > 0 && v < 1e12
	switch {
	case over == "s":
		b.unit = under
		if known {
			b.per = sample.Known(v)
		}
	case under == "s":
		b.unit = over
		if over == "kit" || over == "kstep" {
			b.unit, v = over[1:], v*1e3
		}
		if known {
			b.per = sample.Known(1 / v)
		}
	default:
		return false
	}
	return true
}

// clockSeconds reads "42", "00:42" or "48:40:44".
func clockSeconds(text string) sample.Num {
	var total float64
	parts := 0
	for text = strings.TrimSpace(text); ; parts++ {
		part, rest, more := strings.Cut(text, ":")
		v, err := strconv.ParseUint(part, 10, 31)
		if err != nil || parts > 2 {
			return sample.Num{}
		}
		total = total*60 + float64(v)
		if !more {
			return sample.Known(total)
		}
		text = rest
	}
}

// findRich reads a bar drawn by the rich library, which has no brackets.
func findRich(text string) (bar, bool) {
	var b bar
	at := strings.IndexRune(text, '━')
	if at < 0 {
		return b, false
	}
	head := strings.TrimRight(text[:at], " ╸╺")
	rest := text[at:]
	for rest != "" {
		r, size := utf8.DecodeRuneInString(rest)
		if r != '━' && r != '╸' && r != '╺' && r != ' ' {
			break
		}
		rest = rest[size:]
	}
	word, rest, _ := strings.Cut(rest, " ")
	var ok bool
	if b.n, b.total, ok = counts(word); !ok {
		return b, false
	}
	b.name = strings.TrimSpace(unprefix(strings.TrimLeft(head, "│ ")))
	// "0:00:01 • 0:00:02 289.04it/s loss: 0.198"
	for range 4 {
		word, after, _ := strings.Cut(rest, " ")
		if b.rate(word) {
			b.postfix = after
			return b, true
		}
		if e := clockSeconds(word); e.OK && !b.elapsed.OK {
			b.elapsed = e
		}
		rest = after
	}
	return b, true
}

// maxCount bounds a number of steps, so that sums of them stay whole.
const maxCount = 1e12

func commaInt(text string) (int64, bool) {
	if strings.IndexByte(text, ',') >= 0 {
		text = strings.ReplaceAll(text, ",", "")
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && n <= maxCount
}
