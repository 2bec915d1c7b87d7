package progress

import (
	"strconv"
	"strings"
)

// strip takes colours and other control sequences out. The caller cleans its lines;
// a log file's are as they were written.
func strip(text string) string {
	if strings.IndexByte(text, 0x1b) < 0 {
		return text
	}
	b := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != 0x1b || i+1 >= len(text) || text[i+1] != '[' {
			if text[i] != 0x1b {
				b = append(b, text[i])
			}
			continue
		}
		for i += 2; i < len(text) && (text[i] < 0x40 || text[i] > 0x7e); i++ {
		}
	}
	return string(b)
}

// unprefix cuts what launchers and loggers put in front of a line: "[rank0]:",
// "[default0]:", "(RayTrainWorker pid=77)", a time of day, "INFO:root:".
func unprefix(head string) string {
	for _, mark := range []string{"[rank", "[default", "pid="} {
		at := strings.LastIndex(head, mark)
		if at < 0 {
			continue
		}
		end := ")"
		if mark[0] == '[' {
			end = "]"
		}
		rest := head[at:]
		if shut := strings.Index(rest, end); shut >= 0 {
			head = strings.TrimLeft(rest[shut+1:], ": ")
		} else if mark[0] == '[' && digits(rest[len(mark):]) {
			return "" // the name was nothing but the prefix, cut at its colon
		}
	}
	// "2026-01-01 10:00:00,123 INFO" and the like.
	for {
		trimmed := strings.TrimLeft(head, "0123456789-:.,TZ+|[] ")
		for _, level := range []string{"INFO", "DEBUG", "WARNING"} {
			if rest, ok := strings.CutPrefix(trimmed, level); ok {
				trimmed = strings.TrimLeft(strings.TrimPrefix(strings.TrimLeft(rest, ":]- "), "root"), ":- ")
			}
		}
		if len(trimmed) == len(head) || !strings.ContainsAny(head[:len(head)-len(trimmed)], ":-") {
			return head
		}
		head = trimmed
	}
}

func digits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// appendLower appends text with ASCII capitals made small.
func appendLower(b []byte, text string) []byte {
	from := len(b)
	b = append(b, text...)
	for i, c := range b[from:] {
		if 'A' <= c && c <= 'Z' {
			b[from+i] = c | 0x20
		}
	}
	return b
}

// word says whether c can be part of a key.
func word(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '/' || c == '-' || c == '.'
}

// wordStart tells whether one of the words begins a word of the lower-case text.
func wordStart(text string, words []string) bool {
	for _, w := range words {
		for from := 0; ; {
			i := strings.Index(text[from:], w)
			if i < 0 {
				break
			}
			i += from
			if i == 0 || !alnum(text[i-1]) || !alnum(w[0]) {
				return true
			}
			from = i + 1
		}
	}
	return false
}

func alnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// value is a number that stands behind a key.
type value struct {
	v float64
	// over is the number behind a slash or "of" that follows; 0 for none.
	over float64
	// whole is set for a number without a decimal point, rough for one with an
	// exponent, of which some digits are left out.
	whole, rough, ok bool
	// at is where the key stands.
	at int
}

// find returns the number behind the first of the keys that has one:
// "key: 1", "key=1", "key 1", "key #1". Keys and text are lower case.
func find(text string, keys []string) value {
	for _, k := range keys {
		for from := 0; ; {
			i := strings.Index(text[from:], k)
			if i < 0 {
				break
			}
			i += from
			from = i + len(k)
			if i > 0 && word(k[0]) && (word(text[i-1]) && text[i-1] != '-' || text[i-1] == '"' || text[i-1] == '\'') {
				continue // part of a longer word, or of quoted data
			}
			if from < len(text) && word(text[from]) && text[from] != '.' {
				continue
			}
			j := from
			for j < len(text) && strings.IndexByte(" \t:=#'\"", text[j]) >= 0 {
				j++
			}
			if v, _ := number(text, j); v.ok {
				v.at = i
				return scaled(k, v)
			}
		}
	}
	return value{}
}

// scaled turns a value back whose key says by how much it was multiplied, such as
// "train/lr(1e-3)": the number times 1e-3 is what it means.
func scaled(key string, v value) value {
	if open := strings.LastIndexByte(key, '('); open >= 0 && strings.HasSuffix(key, ")") {
		if s, err := strconv.ParseFloat(key[open+1:len(key)-1], 64); err == nil {
			v.v *= s
		}
	}
	return v
}

// number reads a number at text[i], which may be nan or inf, and what follows a
// slash behind it. next is the index behind it.
func number(text string, i int) (v value, next int) {
	from := i
	if i < len(text) && (text[i] == '-' || text[i] == '+') {
		i++
	}
	for _, w := range []string{"nan", "infinity", "inf"} {
		if strings.HasPrefix(text[i:], w) {
			end := i + len(w)
			if end < len(text) && alnum(text[end]) && !strings.HasPrefix(text[end:], "ms") {
				return value{}, from
			}
			f, _ := strconv.ParseFloat(text[from:end], 64)
			return value{v: f, ok: true}, end
		}
	}
	start, commas := i, false
	for i < len(text) {
		c := text[i]
		if c >= '0' && c <= '9' {
			i++
			continue
		}
		// A comma groups thousands only where exactly three digits follow.
		if c == ',' && i > start && i+3 < len(text) && digits(text[i+1:i+4]) && (i+4 == len(text) || text[i+4] < '0' || text[i+4] > '9') {
			commas = true
			i += 4
			continue
		}
		break
	}
	if i == start {
		return value{}, from
	}
	v.whole = true
	if i+1 < len(text) && text[i] == '.' && text[i+1] >= '0' && text[i+1] <= '9' {
		v.whole = false
		for i++; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
		}
	} else if i < len(text) && text[i] == '.' && (i+1 == len(text) || !alnum(text[i+1])) {
		i++ // the full stop of a sentence, or "1."
		if i < len(text) && text[i] != ' ' {
			i--
		}
	}
	if i+1 < len(text) && text[i] == 'e' {
		j := i + 1
		if text[j] == '-' || text[j] == '+' {
			j++
		}
		k := j
		for k < len(text) && text[k] >= '0' && text[k] <= '9' {
			k++
		}
		if k > j {
			i, v.whole, v.rough = k, false, true
		}
	}
	digits := text[from:i]
	if commas {
		digits = strings.ReplaceAll(digits, ",", "")
	}
	f, err := strconv.ParseFloat(strings.TrimSuffix(digits, "."), 64)
	if err != nil {
		return value{}, from
	}
	v.v, v.ok = f, true
	if !v.whole {
		return v, i
	}
	j := spaces(text, i)
	switch {
	case strings.HasPrefix(text[j:], "/"):
		j = spaces(text, j+1)
	case strings.HasPrefix(text[j:], "of "):
		j = spaces(text, j+3)
	default:
		return v, i
	}
	if over, _ := plain(text, j); over > 0 {
		v.over = over
	}
	return v, i
}

// plain reads a whole number that may have commas.
func plain(text string, i int) (float64, int) {
	from := i
	for i < len(text) && (text[i] >= '0' && text[i] <= '9' || text[i] == ',') {
		i++
	}
	n, ok := commaInt(strings.TrimRight(text[from:i], ","))
	if !ok {
		return 0, from
	}
	return float64(n), i
}

// lastNumber returns the last whole number of a text.
func lastNumber(text string) (int64, bool) {
	end := strings.LastIndexAny(text, "0123456789") + 1
	from := end
	for from > 0 && (text[from-1] >= '0' && text[from-1] <= '9' || text[from-1] == ',') {
		from--
	}
	return commaInt(strings.TrimLeft(text[from:end], ","))
}
