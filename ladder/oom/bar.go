package oom

import (
	"strconv"
	"strings"
)

// bar is a progress bar as tqdm draws it: "train:  12%|#2   | 124/1000 [31:02<3:39:21]".
type bar struct {
	desc, total string
	n           float64
	// end is where the bar ends, behind its brackets; 0 if the brackets are not
	// there.
	end int
}

// The longest description and the widest bar that are taken for one.
const (
	barDesc  = 120
	barWidth = 300
	barTail  = 400 // "[00:01<00:09, 1.35it/s, loss=...]"
)

// parseBar reads the bar that s begins with. Bars are most of what a night prints,
// and a regular expression costs them ten times as much.
func parseBar(s string) (b bar, ok bool) {
	open := strings.IndexByte(s[:min(len(s), barDesc+1)], '|')
	if open < 0 {
		return b, false
	}
	rest := s[open+1:]
	shut := strings.IndexByte(rest[:min(len(rest), barWidth+1)], '|')
	if shut < 0 {
		return b, false
	}
	at := open + 1 + shut + 1
	for at < len(s) && s[at] == ' ' {
		at++
	}
	n, at := scaled(s, at)
	if at < 0 || at >= len(s) || s[at] != '/' {
		return b, false
	}
	begin := at + 1
	if at = begin; strings.HasPrefix(s[at:], "?") {
		at++ // nobody knows how many there will be
	} else if _, at = scaled(s, begin); at < 0 {
		return b, false
	}
	b.n, b.total = n, s[begin:at]
	b.desc = strings.TrimRight(s[:open], "0123456789%. ")
	if at+1 < len(s) && s[at] == ' ' && s[at+1] == '[' {
		if end := strings.IndexByte(s[at:min(len(s), at+barTail)], ']'); end > 0 {
			b.end = at + end + 1
		}
	}
	return b, true
}

// scaled reads a number with the suffix that tqdm gives large ones. The end is -1
// where there is none.
func scaled(s string, at int) (v float64, end int) {
	begin, dot := at, false
	for at < len(s) && (digit(s[at]) || s[at] == '.' && !dot) {
		dot = dot || s[at] == '.'
		at++
	}
	if at == begin {
		return 0, -1
	}
	if !dot && at-begin < 16 {
		for _, c := range s[begin:at] {
			v = 10*v + float64(c-'0')
		}
	} else {
		var err error
		if v, err = strconv.ParseFloat(s[begin:at], 64); err != nil {
			return 0, -1
		}
	}
	if at < len(s) {
		switch s[at] {
		case 'k':
			v, at = v*1e3, at+1
		case 'M':
			v, at = v*1e6, at+1
		case 'G':
			v, at = v*1e9, at+1
		}
	}
	return v, at
}

// cutBar returns what stands behind a bar, and false if s does not begin with one.
func cutBar(s string) (rest string, ok bool) {
	b, ok := parseBar(s)
	if !ok || b.end == 0 {
		return s, false
	}
	return strings.TrimLeft(s[b.end:], " "), true
}

// The words that a step counter stands behind, and those that say that its line is
// about training.
var (
	stepWords   = []string{"iteration", "iter", "batch", "step"}
	metricWords = []string{"loss", "acc", "ppl", "rmse", "err", "reward", "tok/s", "trn"}
)

// stepReach is how far behind the counter the metric may stand.
const stepReach = 80

// parseStep reads a line such as "step: 20  loss: 8.12" or "iter 144: time 1.7,
// total-loss 0.58": a counter word, its number, and soon after a word of training.
func parseStep(s string) (word string, n float64, ok bool) {
	for at := 0; at < len(s); at++ {
		switch s[at] | 0x20 {
		case 'i', 'b', 's':
		default:
			continue
		}
		if at > 0 && alnum(s[at-1]) {
			continue
		}
		for _, w := range stepWords {
			if !foldPrefix(s[at:], w) {
				continue
			}
			end := at + len(w)
			if end+1 < len(s) && s[end] == 's' && (s[end+1] == ':' || s[end+1] == '=') {
				end++ // "steps: 30"
			}
			if end < len(s) && alnum(s[end]) && s[end] != '_' {
				continue // steps, batches
			}
			gap := end
			for gap < len(s) && gap-end < 6 && (!alnum(s[gap]) || s[gap] == '_' && gap == end) {
				gap++
			}
			n, num := scaled(s, gap)
			if num < 0 || !metric(s[num:min(len(s), num+stepReach)]) {
				continue
			}
			return w, n, true
		}
	}
	return "", 0, false
}

// metric tells whether a word of training stands in s. "loss" may end a longer
// word (total_loss); the others stand alone.
func metric(s string) bool {
	for at := 0; at < len(s); at++ {
		switch s[at] | 0x20 {
		case 'l', 'a', 'p', 'r', 'e', 't':
		default:
			continue
		}
		for i, w := range metricWords {
			if !foldPrefix(s[at:], w) || (i > 0 && at > 0 && alnum(s[at-1])) {
				continue
			}
			if end := at + len(w); i == 0 || end == len(s) || !alnum(s[end]) {
				return true
			}
		}
	}
	return false
}

// alnum tells whether c is part of a word.
func alnum(c byte) bool {
	return digit(c) || c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// foldPrefix tells whether s begins with the lower-case word, in any case.
func foldPrefix(s, word string) bool {
	if len(s) < len(word) {
		return false
	}
	for i := 0; i < len(word); i++ {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}
