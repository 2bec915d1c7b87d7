package edit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// jsonFormat reads JSON as Python's json module does: NaN and Infinity are numbers,
// comments and trailing commas are errors.
type jsonFormat struct{}

func (jsonFormat) parse(data []byte) (*node, error) {
	s := &jsonScanner{data: data}
	if bytes.HasPrefix(data, bom) {
		s.at = len(bom)
	}
	s.space()
	if s.at == len(data) {
		return nil, errors.New("not JSON: the file is empty")
	}
	root, err := s.value(0)
	if err != nil {
		return nil, err
	}
	if root.kind != Map {
		return nil, errors.New("the JSON is not an object of settings")
	}
	s.space()
	if s.at < len(data) {
		if s.comment() {
			return nil, s.fault("comments are not JSON")
		}
		return nil, s.fault("there is something behind the end of the object")
	}
	return root, nil
}

type jsonScanner struct {
	data   []byte
	at     int
	line   int // of the offset lineAt, counted on the way
	seen   int
	values int
}

func (s *jsonScanner) fault(what string) error {
	return fmt.Errorf("line %d: not JSON: %s", lineAt(s.data, s.at), what)
}

// lineHere counts only the lines since it was asked last.
func (s *jsonScanner) lineHere() int {
	s.line += bytes.Count(s.data[s.seen:s.at], []byte("\n"))
	s.seen = s.at
	return s.line + 1
}

func (s *jsonScanner) space() {
	for s.at < len(s.data) && strings.IndexByte(" \t\r\n", s.data[s.at]) >= 0 {
		s.at++
	}
}

func (s *jsonScanner) comment() bool {
	return s.at < len(s.data) && (s.data[s.at] == '#' ||
		s.data[s.at] == '/' && s.at+1 < len(s.data) && (s.data[s.at+1] == '/' || s.data[s.at+1] == '*'))
}

// next returns the next byte after white space, 0 at the end.
func (s *jsonScanner) next() byte {
	s.space()
	if s.at < len(s.data) {
		return s.data[s.at]
	}
	return 0
}

func (s *jsonScanner) value(depth int) (*node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("line %d: %w", lineAt(s.data, s.at), errDeep)
	}
	if s.values++; s.values > maxValues {
		return nil, errManyValues
	}
	n := &node{from: s.at}
	var err error
	switch c := s.data[s.at]; {
	case c == '{' || c == '[':
		err = s.container(n, c, depth)
	case c == '"':
		n.typ, n.quote = "str", '"'
		n.text, err = s.str()
	default:
		err = s.word(n)
	}
	n.to = s.at
	return n, err
}

func (s *jsonScanner) container(n *node, open byte, depth int) error {
	n.kind = List
	closing := byte(']')
	if open == '{' {
		n.kind, closing = Map, '}'
	}
	s.at++
	if s.next() == closing {
		s.at++
		return nil
	}
	for {
		c, err := s.item(n.kind, depth)
		if err != nil {
			return err
		}
		n.kids = append(n.kids, c)
		switch b := s.next(); {
		case b == closing:
			s.at++
			return nil
		case b == ',':
			s.at++
			if s.next() == closing {
				return s.fault("there is a comma before the closing bracket")
			}
		case b == 0 && s.at >= len(s.data):
			return s.fault("a bracket is not closed")
		case s.comment():
			return s.fault("comments are not JSON")
		default:
			return s.fault("a comma is missing")
		}
	}
}

func (s *jsonScanner) item(kind Kind, depth int) (c child, err error) {
	if kind == Map {
		if s.next() != '"' {
			if s.comment() {
				return c, s.fault("comments are not JSON")
			}
			return c, s.fault("a key in double quotes is missing")
		}
		c.from = s.at
		if c.key, err = s.str(); err != nil {
			return c, err
		}
		c.to, c.id = s.at, textID(c.key)
		if s.next() != ':' {
			return c, s.fault("a colon is missing")
		}
		s.at++
	}
	if s.space(); s.at >= len(s.data) {
		return c, s.fault("a value is missing")
	}
	if s.comment() {
		return c, s.fault("comments are not JSON")
	}
	c.line = s.lineHere()
	c.node, err = s.value(depth + 1)
	return c, err
}

func (s *jsonScanner) str() (string, error) {
	from := s.at
	for s.at++; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; {
		case c == '\\':
			s.at++
		case c < 0x20:
			return "", s.fault("a line break or control character stands in a string")
		case c == '"':
			s.at++
			var text string
			if err := json.Unmarshal(s.data[from:s.at], &text); err != nil {
				return "", s.fault("a string has an escape that does not exist")
			}
			return text, nil
		}
	}
	return "", s.fault("a string is not closed")
}

// word reads a number, true, false, null and the numbers that Python adds.
func (s *jsonScanner) word(n *node) error {
	from := s.at
	for s.at < len(s.data) && strings.IndexByte(" \t\r\n,:]}[{\"/#", s.data[s.at]) < 0 {
		s.at++
	}
	n.text = string(s.data[from:s.at])
	switch n.text {
	case "true", "false":
		n.typ = "bool"
	case "null":
		n.kind, n.text = Null, ""
	case "NaN", "Infinity", "-Infinity":
		n.typ = "float"
	default:
		if first, _ := utf8.DecodeRuneInString(n.text); !json.Valid([]byte(n.text)) || first == '"' {
			s.at = from
			if len(n.text) > 40 {
				n.text = n.text[:40]
			}
			return s.fault(fmt.Sprintf("%q is not a value", n.text))
		}
		n.typ = "int"
		if strings.ContainsAny(n.text, ".eE") {
			n.typ = "float"
		}
	}
	return nil
}

func (jsonFormat) spell(value, kind string, old *node) (string, *node, error) {
	switch kind {
	case "null":
		return "null", &node{kind: Null}, nil
	case "str":
		return jsonString(value), &node{text: value, typ: "str"}, nil
	}
	before := ""
	if old != nil && old.quote == 0 {
		before = old.text
	}
	word, err := plainValue(value, kind, before)
	if err != nil {
		return "", nil, err
	}
	if old != nil && old.quote != 0 && readsAs(kind, old.text) {
		if word, err = plainValue(value, kind, old.text); err != nil {
			return "", nil, err
		}
		return jsonString(word), &node{text: word, typ: "str"}, nil
	}
	typ := kind
	if kind == "float" && !strings.ContainsAny(word, ".e") {
		typ = "int"
	}
	return word, &node{text: word, typ: typ}, nil
}

// jsonString writes a string without the escapes for HTML that encoding/json adds.
func jsonString(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(s) != nil {
		return `""`
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (jsonFormat) replace(d *Doc, at trail, literal string) ([][]byte, error) {
	n := at.end(d.root)
	return [][]byte{splice(d.data, n.from, n.to, literal)}, nil
}

func (jsonFormat) add(d *Doc, at trail, keys []string, literal string) ([][]byte, error) {
	n := at.end(d.root)
	gap, step := jsonGap(d.data, n), jsonStep(d)
	if n.kind == Null {
		gap = ""
	}
	if len(n.kids) == 0 {
		gap = ""
		if outer := jsonGap(d.data, d.root); strings.Contains(outer, "\n") {
			gap = eol(d.data) + lineIndent(d.data, n.from) + step
		}
	}
	text := jsonMember(keys, literal, gap, step, jsonColon(d.data, n))
	if len(n.kids) > 0 {
		end := n.kids[len(n.kids)-1].node.to
		if gap == "" {
			gap = jsonPlainGap(d.data, n)
		}
		return [][]byte{splice(d.data, end, end, ","+gap+text)}, nil
	}
	if gap != "" {
		text = gap + text
		if n.kind == Null || !bytes.Contains(d.data[n.from:n.to], []byte("\n")) {
			text += strings.TrimSuffix(gap, step)
		}
	}
	if n.kind == Null {
		return [][]byte{splice(d.data, n.from, n.to, "{"+text+"}")}, nil
	}
	return [][]byte{splice(d.data, n.from+1, n.from+1, text)}, nil
}

// jsonMember writes a key and its value, with mappings between them for parents. gap
// is the line break and indentation before the key, empty for one line.
func jsonMember(keys []string, literal, gap, step, colon string) string {
	head := jsonString(keys[0]) + colon
	if len(keys) == 1 {
		return head + literal
	}
	if !strings.Contains(gap, "\n") {
		return head + "{" + jsonMember(keys[1:], literal, gap, step, colon) + "}"
	}
	return head + "{" + gap + step + jsonMember(keys[1:], literal, gap+step, step, colon) + gap + "}"
}

// jsonColon returns the colon as it stands behind the last key, with its spaces.
func jsonColon(data []byte, n *node) string {
	if len(n.kids) > 0 {
		last := n.kids[len(n.kids)-1]
		if sign := string(data[last.to:last.node.from]); len(sign) <= 3 && !strings.Contains(sign, "\n") {
			return sign
		}
	}
	return ": "
}

// jsonGap returns the white space before the last key of an object if it holds a line
// break.
func jsonGap(data []byte, n *node) string {
	if gap := jsonPlainGap(data, n); strings.Contains(gap, "\n") {
		// A blank line before the last key is not repeated.
		nl := eol(data)
		return nl + gap[strings.LastIndexByte(gap, '\n')+1:]
	}
	return ""
}

// jsonPlainGap returns the white space before the last key of an object, or a space
// if there is one key only.
func jsonPlainGap(data []byte, n *node) string {
	if len(n.kids) == 0 {
		return " "
	}
	end := n.kids[len(n.kids)-1].from
	from := end
	for from > 0 && strings.IndexByte(" \t\r\n", data[from-1]) >= 0 {
		from--
	}
	gap := string(data[from:end])
	if len(n.kids) == 1 && !strings.Contains(gap, "\n") {
		return " "
	}
	return gap
}

// jsonStep returns by how much the file indents.
func jsonStep(d *Doc) string {
	gap := jsonGap(d.data, d.root)
	step := gap[strings.LastIndexByte(gap, '\n')+1:]
	if step == "" {
		return "  "
	}
	return step
}

// lineIndent returns the white space at the beginning of the line that holds offset.
func lineIndent(data []byte, offset int) string {
	line := data[lineStart(data, offset):]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

func (jsonFormat) remove(d *Doc, at trail) ([][]byte, error) {
	last := at[len(at)-1]
	kids := last.in.kids
	from, to := kids[last.i].from, kids[last.i].node.to
	switch {
	case last.i > 0: // with the comma and the space before it
		from = kids[last.i-1].node.to
	case len(kids) > 1:
		to = kids[1].from
	default:
		from, to = last.in.from+1, last.in.to-1
	}
	return [][]byte{splice(d.data, from, to, "")}, nil
}
