package edit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// argsFormat reads the .args file that HfArgumentParser takes beside a script: words
// parted by white space, which argparse then reads. There are no quotes and no
// comments. The paths are the names of the flags with underscores, as both spellings
// are the same flag.
type argsFormat struct{}

// name is the path of a flag.
func (argsFormat) name(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

type argsWord struct {
	text     string
	from, to int
}

// argsWords splits as str.split() of Python does.
func argsWords(data []byte) []argsWord {
	var words []argsWord
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if pythonSpace(r) || i == 0 && r == '\ufeff' {
			i += size
			continue
		}
		from := i
		for i < len(data) {
			if r, size = utf8.DecodeRune(data[i:]); pythonSpace(r) {
				break
			}
			i += size
		}
		words = append(words, argsWord{string(data[from:i]), from, i})
	}
	return words
}

func pythonSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// isFlag says whether argparse takes a word for an option: negative numbers are
// values.
func isFlag(word string) bool {
	if len(word) < 2 || word[0] != '-' || word == "--" {
		return false
	}
	_, err := strconv.ParseFloat(word, 64)
	return err != nil
}

func (f argsFormat) parse(data []byte) (*node, error) {
	words := argsWords(data)
	if len(words) > maxValues {
		return nil, errManyValues
	}
	lines := newLineIndex(data)
	root := &node{kind: Map, from: 0, to: len(data)}
	var loose strings.Builder
	for i := 0; i < len(words); {
		w := words[i]
		i++
		if !isFlag(w.text) {
			loose.WriteString(w.text + " ") // words for no flag; kept and compared
			continue
		}
		name, value, inline := strings.Cut(strings.TrimLeft(w.text, "-"), "=")
		c := child{key: f.name(name), line: lines.at(w.from), from: w.from, to: w.to}
		c.id = textID(c.key)
		var values []*node
		if inline {
			c.to = w.to - len(value)
			values = append(values, &node{text: value, typ: "word", from: c.to, to: w.to, quote: '='})
		}
		for ; i < len(words) && !isFlag(words[i].text) && !inline; i++ {
			v := words[i]
			values = append(values, &node{text: v.text, typ: "word", from: v.from, to: v.to})
		}
		switch len(values) {
		case 0: // a flag alone turns something on
			c.node = &node{text: "true", typ: "flag", from: w.to, to: w.to}
		case 1:
			c.node = values[0]
			c.line = lines.at(values[0].from)
		default:
			c.node = &node{kind: List, from: values[0].from, to: values[len(values)-1].to}
			for _, v := range values {
				c.node.kids = append(c.node.kids, child{node: v, line: lines.at(v.from)})
			}
		}
		root.kids = append(root.kids, c)
	}
	root.text = loose.String()
	return root, nil
}

func (argsFormat) spell(value, kind string, old *node) (string, *node, error) {
	switch kind {
	case "null":
		return "", nil, errNoNull
	case "str":
	default:
		before := "True" // as Hugging Face writes it
		if old != nil && old.typ != "flag" {
			before = old.text
		}
		var err error
		if value, err = plainValue(value, kind, before); err != nil {
			return "", nil, err
		}
	}
	inline := old != nil && old.quote == '='
	switch {
	case strings.ContainsFunc(value, pythonSpace):
		return "", nil, fmt.Errorf("%q has white space, which a file of words cannot quote", value)
	case value == "" && !inline:
		return "", nil, errors.New("an empty value cannot be written in a file of words")
	case !inline && (isFlag(value) || value == "--"):
		return "", nil, fmt.Errorf("%q would be read as a flag", value)
	}
	return value, &node{text: value, typ: "word"}, nil
}

func (argsFormat) replace(d *Doc, at trail, literal string) ([][]byte, error) {
	n := at.end(d.root)
	if n.typ == "flag" {
		literal = " " + literal
	}
	return [][]byte{splice(d.data, n.from, n.to, literal)}, nil
}

func (argsFormat) add(d *Doc, _ trail, keys []string, literal string) ([][]byte, error) {
	text := "--" + keys[0] + " " + literal
	words := argsWords(d.data)
	if len(words) == 0 {
		return [][]byte{insertLines(d.data, len(d.data), []string{text})}, nil
	}
	end := words[len(words)-1].to
	if strings.Contains(string(d.data), "\n") {
		text = eol(d.data) + text
	} else {
		text = " " + text
	}
	return [][]byte{splice(d.data, end, end, text)}, nil
}

func (argsFormat) remove(d *Doc, at trail) ([][]byte, error) {
	c := at[len(at)-1].child()
	from := c.from
	for from > 0 {
		r, size := utf8.DecodeLastRune(d.data[:from])
		if !pythonSpace(r) {
			break
		}
		from -= size
	}
	to := max(c.to, c.node.to)
	if from == 0 { // the first word: take the white space behind it
		for to < len(d.data) {
			r, size := utf8.DecodeRune(d.data[to:])
			if !pythonSpace(r) {
				break
			}
			to += size
		}
	}
	return [][]byte{splice(d.data, from, to, "")}, nil
}
