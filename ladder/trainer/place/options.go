package place

import (
	"slices"
	"strings"

	"sparkrun/internal/lazyre"
)

// option is one option of a command line: words[at:end].
type option struct {
	name, value string
	at, end     int
}

// options is the part of a command line that options stand in.
type options struct {
	list []option
	// next is the index of the first word behind them, dash that of a -- that ends
	// them, or -1.
	next, dash int
	// unknown is a word that looks like an option but is none of them.
	unknown string
	// short is an option whose value is missing.
	short string
}

// last returns the value of the last of the named options.
func (o *options) last(names []string) (string, bool) {
	for i := len(o.list) - 1; i >= 0; i-- {
		if slices.Contains(names, o.list[i].name) {
			return o.list[i].value, true
		}
	}
	return "", false
}

// on says whether one of the named options is given, and not as --x=false.
func (o *options) on(names []string) bool {
	v, ok := o.last(names)
	return ok && !slices.Contains([]string{"false", "False", "FALSE", "0", "f", "F"}, v)
}

// all returns the values of the named options, in order.
func (o *options) all(names []string) []string {
	var values []string
	for _, x := range o.list {
		if slices.Contains(names, x.name) {
			values = append(values, x.value)
		}
	}
	return values
}

var shortNumber = lazyre.New(`^-[0-9]+$`)

// read reads the options that start at words[i].
func (s *optionSet) read(words []string, i int) options {
	o := options{dash: -1}
	for ; i < len(words); i++ {
		w := words[i]
		if w == "--" {
			o.dash = i
			i++
			break
		}
		if w == "" || w[0] != '-' || (w == "-" && !slices.Contains(s.Plain, "-")) {
			break
		}
		n := o.one(s, words, i)
		if o.unknown != "" || o.short != "" {
			break
		}
		i += n - 1
	}
	o.next = min(i, len(words))
	return o
}

// one reads the option at words[i] and returns how many words it takes.
func (o *options) one(s *optionSet, words []string, i int) int {
	w := words[i]
	name, value, inline := w, "", false
	if strings.HasPrefix(w, "--") {
		name, value, inline = strings.Cut(w, "=")
	}
	if s.Fold && strings.HasPrefix(name, "--") {
		name = strings.ReplaceAll(name, "_", "-")
	}
	add := func(name, value string, words int) int {
		o.list = append(o.list, option{name, value, i, i + words})
		return words
	}
	switch {
	case slices.Contains(s.Plain, name), slices.Contains(s.Optional, name):
		return add(name, value, 1)
	case slices.Contains(s.Value, name):
		if inline {
			return add(name, value, 1)
		}
		if i+1 >= len(words) {
			o.short = w
			return 1
		}
		return add(name, words[i+1], 2)
	case slices.Contains(s.Two, name) && !inline:
		if i+2 >= len(words) {
			o.short = w
			return 1
		}
		return add(name, words[i+1]+" "+words[i+2], 3)
	case s.Numbers && shortNumber.MatchString(w):
		return add(w, "", 1)
	case strings.HasPrefix(w, "--"):
		o.unknown = w
		return 1
	}
	// Short options, joined.
	for at := 1; at < len(w); at++ {
		name, rest := "-"+w[at:at+1], w[at+1:]
		switch {
		case slices.Contains(s.Value, name):
			if rest != "" {
				return add(name, strings.TrimPrefix(rest, "="), 1)
			}
			if i+1 >= len(words) {
				o.short = w
				return 1
			}
			return add(name, words[i+1], 2)
		case slices.Contains(s.Optional, name):
			return add(name, rest, 1)
		case slices.Contains(s.Plain, name) && strings.HasPrefix(rest, "="):
			return add(name, rest[1:], 1)
		case slices.Contains(s.Plain, name):
			add(name, "", 1)
		default:
			o.unknown = w
			return 1
		}
	}
	return 1
}
