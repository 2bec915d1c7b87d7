package trainer

import (
	"strconv"
	"strings"

	"sparkrun/internal/sample"
)

// bar is one drawing of a tqdm progress bar:
//
//	name: 25%|███▌    | 7/28 [00:42<01:46,  5.06s/it, loss=0.9]
type bar struct {
	n, total int64
	// named is set for a bar with a description, training for a description
	// that says so.
	named, training bool
	// perStep is seconds per step as the bar shows it.
	perStep sample.Num
	// postfix is what stands behind the rate.
	postfix string
}

// findBar reads the last complete drawing in a line: redraws can be glued
// together, and other output behind them.
func findBar(text string) (bar, bool) {
	if strings.IndexByte(text, '%') < 0 {
		return bar{}, false
	}
	for end := len(text); ; {
		at := strings.LastIndexByte(text[:end], '[')
		if at <= 0 {
			return bar{}, false
		}
		if text[at-1] == ' ' {
			if b, ok := barAt(text, at-1); ok {
				return b, true
			}
		}
		end = at
	}
}

// barAt reads a bar whose bracket opens at text[at+1].
func barAt(text string, at int) (bar, bool) {
	var b bar
	// n/total stands before the bracket.
	i := at
	for i > 0 && isCount(text[i-1]) {
		i--
	}
	n, total, ok := fraction(text[i:at])
	if !ok || n > total {
		return b, false
	}
	b.n, b.total = n, total
	// Before it: the bar between two |, or nothing but a percentage.
	head := strings.TrimRight(text[:i], " ")
	if strings.HasSuffix(head, "|") {
		head = head[:len(head)-1]
		open := strings.LastIndexByte(head, '|')
		if open < 0 {
			return b, false
		}
		head = head[:open]
	}
	if !strings.HasSuffix(head, "%") {
		return b, false
	}
	head = strings.TrimRight(head[:len(head)-1], "0123456789.")
	// A description ends in a colon. What else stands there is output that the
	// bar was glued to.
	head = strings.TrimRight(head, " ")
	if strings.HasSuffix(head, ":") {
		b.named = true
		head = strings.ToLower(head)
		for _, w := range []string{"train", "step", "epoch"} {
			if strings.Contains(head, w) {
				b.training = true
			}
		}
		for _, w := range []string{"dataset", "tokeniz", "val", "map", "generat", "example"} {
			if strings.Contains(head, w) {
				b.training = false
			}
		}
	}
	b.rate(text[at+2:])
	return b, true
}

func isCount(c byte) bool { return c >= '0' && c <= '9' || c == ',' || c == '/' }

// rate reads "00:42<01:46,  5.06s/it, loss=0.9]".
func (b *bar) rate(inside string) {
	if shut := strings.IndexByte(inside, ']'); shut >= 0 {
		inside = inside[:shut]
	}
	_, rest, ok := strings.Cut(inside, ",")
	if !ok {
		return
	}
	word, postfix, _ := strings.Cut(rest, ",")
	b.postfix = postfix
	word = strings.TrimSpace(word)
	number, unit := word, ""
	for i := 0; i < len(word); i++ {
		if (word[i] < '0' || word[i] > '9') && word[i] != '.' {
			number, unit = word[:i], word[i:]
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v <= 0 {
		return
	}
	switch unit {
	case "s/it":
		b.perStep = sample.Known(v)
	case "it/s":
		b.perStep = sample.Known(1 / v)
	}
}
