package progress

import (
	"strconv"
	"strings"
)

// dict is a flat Python dict or JSON object as a trainer prints it: keys and the
// text of their scalar values.
type dict []pair

type pair struct{ key, value string }

// findDict reads the first dict in text, which starts with a brace. Values may be
// numbers or, since transformers 5, numbers in quotes. A printed dict that holds
// another is no log line of a trainer, nor is the inner one.
func findDict(text string) (dict, bool) {
	for {
		d, ok, nested := parseDict(text, false)
		if ok || nested {
			return d, ok
		}
		i := strings.IndexByte(text[1:], '{')
		if i < 0 {
			return nil, false
		}
		text = text[1+i:]
	}
}

// parseDict reads a dict at the front of s. With deep, values that are no scalars
// are passed over instead of spoiling it.
func parseDict(s string, deep bool) (d dict, ok, nested bool) {
	if len(s) < 6 || (s[1] != '\'' && s[1] != '"' && (!deep || s[1] != ' ')) {
		return nil, false, false
	}
	i := spaces(s, 1)
	for {
		key, next, ok := quoted(s, i)
		if !ok {
			return nil, false, false
		}
		i = spaces(s, next)
		if i >= len(s) || s[i] != ':' {
			return nil, false, false
		}
		i = spaces(s, i+1)
		if i >= len(s) {
			return nil, false, false
		}
		var value string
		switch s[i] {
		case '\'', '"':
			if value, i, ok = quoted(s, i); !ok {
				return nil, false, false
			}
		case '{', '[', '(':
			if !deep {
				return nil, false, true
			}
			if i, ok = past(s, i); !ok {
				return nil, false, false
			}
		default:
			from := i
			for i < len(s) && s[i] != ',' && s[i] != '}' {
				i++
			}
			value = strings.TrimRight(s[from:i], " ")
		}
		if len(d) < maxPairs {
			if d == nil {
				d = make(dict, 0, 16)
			}
			d = append(d, pair{key, value})
		}
		i = spaces(s, i)
		if i >= len(s) {
			return nil, false, false
		}
		if s[i] == '}' {
			return d, true, false
		}
		if s[i] != ',' {
			return nil, false, false
		}
		i = spaces(s, i+1)
		if strings.HasPrefix(s[i:], "...}") { // cut short by whoever showed it
			return d, true, false
		}
	}
}

// maxPairs bounds what is kept of a dict: trainers print some twenty keys, with
// rewards perhaps sixty.
const maxPairs = 200

// past returns the index behind the brackets that open at s[i].
func past(s string, i int) (int, bool) {
	depth := 0
	for i < len(s) {
		switch s[i] {
		case '{', '[', '(':
			depth++
		case '}', ']', ')':
			depth--
			if depth == 0 {
				return i + 1, true
			}
		case '"', '\'':
			_, next, ok := quoted(s, i)
			if !ok {
				return 0, false
			}
			i = next
			continue
		}
		i++
	}
	return 0, false
}

func quoted(s string, i int) (text string, next int, ok bool) {
	if i >= len(s) || (s[i] != '\'' && s[i] != '"') {
		return "", 0, false
	}
	q := s[i]
	for j := i + 1; ; {
		n := strings.IndexByte(s[j:], q)
		if n < 0 {
			return "", 0, false
		}
		j += n
		back := 0
		for j-back > i+1 && s[j-back-1] == '\\' {
			back++
		}
		if back%2 == 0 {
			return s[i+1 : j], j + 1, true
		}
		j++
	}
}

func spaces(s string, i int) int {
	for i < len(s) && s[i] == ' ' {
		i++
	}
	return i
}

// get returns the value of the first of the keys that is there.
func (d dict) get(keys []string) (string, bool) {
	for _, k := range keys {
		for i := range d {
			if d[i].key == k {
				return d[i].value, true
			}
		}
	}
	return "", false
}

// number is get for finite numbers.
func (d dict) number(keys []string) (float64, bool) {
	for _, k := range keys {
		for i := range d {
			if d[i].key != k {
				continue
			}
			if v, err := strconv.ParseFloat(d[i].value, 64); err == nil && finite(v) {
				return v, true
			}
		}
	}
	return 0, false
}

// count is get for a number of steps.
func (d dict) count(keys []string) (int64, bool) {
	v, ok := d.number(keys)
	if !ok || v < 0 || v > maxCount {
		return 0, false
	}
	return int64(v), true
}

// hasPrefix tells whether a key begins with one of the prefixes.
func (d dict) hasPrefix(prefixes []string) bool {
	for i := range d {
		for _, p := range prefixes {
			if strings.HasPrefix(d[i].key, p) {
				return true
			}
		}
	}
	return false
}

func finite(v float64) bool { return v-v == 0 }
