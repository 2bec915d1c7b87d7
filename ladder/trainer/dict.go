package trainer

import (
	"strconv"
	"strings"
)

// dict is a flat Python dict or JSON object as a trainer prints it: keys and
// the text of their scalar values.
type dict []pair

type pair struct{ key, value string }

// findDict reads the first dict in text, which starts with a brace. Values may
// be numbers or, since transformers 5, numbers in quotes. A dict that holds
// another is no log line of a trainer, nor is the inner one.
func findDict(text string) (dict, bool) {
	for {
		d, ok, nested := parseDict(text)
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

func parseDict(s string) (d dict, ok, nested bool) {
	if len(s) < 6 || (s[1] != '\'' && s[1] != '"') {
		return nil, false, false
	}
	i := 1
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
			return nil, false, true
		default:
			from := i
			for i < len(s) && s[i] != ',' && s[i] != '}' {
				i++
			}
			value = strings.TrimRight(s[from:i], " ")
		}
		d = append(d, pair{key, value})
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
	}
}

func quoted(s string, i int) (text string, next int, ok bool) {
	if i >= len(s) || (s[i] != '\'' && s[i] != '"') {
		return "", 0, false
	}
	n := strings.IndexByte(s[i+1:], s[i])
	if n < 0 {
		return "", 0, false
	}
	return s[i+1 : i+1+n], i + n + 2, true
}

func spaces(s string, i int) int {
	for i < len(s) && s[i] == ' ' {
		i++
	}
	return i
}

// get returns the value of the first of the keys that is there.
func (d dict) get(keys ...string) (string, bool) {
	for _, k := range keys {
		for _, p := range d {
			if p.key == k {
				return p.value, true
			}
		}
	}
	return "", false
}

// number is get for finite numbers.
func (d dict) number(keys ...string) (float64, bool) {
	text, ok := d.get(keys...)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v != v || v > 1e300 || v < -1e300 {
		return 0, false
	}
	return v, true
}
