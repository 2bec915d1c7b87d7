package edit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// tomlFormat reads TOML 1.0.
type tomlFormat struct{}

// tomlTable says how a table came to be, which decides how a key is added to it.
type tomlTable struct {
	// path are the keys that lead to the table from the top, items of arrays left out.
	path []string
	// section is the table with a header of its own that holds the lines of this one;
	// prefix are the keys between the two, in front of every dotted key. Nil for a
	// table that only headers of tables below it imply.
	section *tomlTable
	prefix  []string
	// behind is the offset of the line behind the last key of the section, or behind
	// its header. -1 for the top while there is nothing in it.
	behind int
	// lastFrom, lastKey, lastValue are where that key's line, the end of the key and its
	// value are: a new line looks like it. lastFrom is -1 without one.
	lastFrom, lastKey, lastValue int
	inline                       bool
}

func (tomlFormat) parse(data []byte) (*node, error) {
	// The parser recurses into brackets without a limit.
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > maxValues {
		return nil, errManyValues
	}
	b := &tomlBuilder{data: data, base: len(data) - len(bytes.TrimPrefix(data, bom)), line: newLineIndex(data)}
	root, err := b.build()
	if err != nil {
		return nil, err
	}
	// The builder trusts that no table is defined twice and so on; this checks it.
	var all map[string]any
	if err := toml.Unmarshal(data[b.base:], &all); err != nil {
		var at *toml.DecodeError
		if errors.As(err, &at) {
			line, _ := at.Position()
			return nil, fmt.Errorf("line %d: not TOML: %s", line, strings.TrimPrefix(at.Error(), "toml: "))
		}
		return nil, fmt.Errorf("not TOML: %s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	return root, nil
}

// lineIndex holds the offset of every line break.
type lineIndex []int

func newLineIndex(data []byte) lineIndex {
	var breaks lineIndex
	for i, c := range data {
		if c == '\n' {
			breaks = append(breaks, i)
		}
	}
	return breaks
}

func (l lineIndex) at(offset int) int { return 1 + sort.SearchInts(l, offset) }

type tomlBuilder struct {
	data   []byte
	base   int
	line   lineIndex
	p      unstable.Parser
	values int
	// keyed counts the keys with a value; places has, of large tables, where each key is.
	keyed  int
	places map[*node]map[string]int
}

// maxKeys bounds the keys of a document: checking that none is there twice takes the
// library a time that grows with their square. A large configuration has some hundreds.
const maxKeys = 5000

// last is n.last, which would look through all keys of a table for each of them. The kids
// of n only ever grow here.
func (b *tomlBuilder) last(n *node, key string) int {
	const few = 32
	if len(n.kids) < few {
		return n.last(key)
	}
	if b.places == nil {
		b.places = map[*node]map[string]int{}
	}
	at := b.places[n]
	if at == nil {
		at = map[string]int{}
		b.places[n] = at
	}
	// No key is there twice, so that there are as many as were entered.
	for i := len(at); i < len(n.kids); i++ {
		at[n.kids[i].key] = i
	}
	if i, ok := at[key]; ok {
		return i
	}
	return -1
}

func (b *tomlBuilder) build() (*node, error) {
	section := &tomlTable{behind: -1, lastFrom: -1}
	section.section = section
	root := &node{kind: Map, toml: section}
	here := root
	b.p.Reset(b.data[b.base:])
	for b.p.NextExpression() {
		e := b.p.Expression()
		switch e.Kind {
		case unstable.KeyValue:
			if err := b.keyValue(here, section, e); err != nil {
				return nil, err
			}
			end := b.base + int(e.Raw.Offset) + int(e.Raw.Length)
			section.behind = lineEnd(b.data, end)
		case unstable.Table, unstable.ArrayTable:
			var err error
			if here, err = b.header(root, e); err != nil {
				return nil, err
			}
			section = here.toml
		}
	}
	if err := b.p.Error(); err != nil {
		var at *unstable.ParserError
		if errors.As(err, &at) {
			where := b.base
			if len(at.Highlight) > 0 {
				where += int(b.p.Range(at.Highlight).Offset)
			} else {
				where = len(b.data)
			}
			return nil, fmt.Errorf("line %d: not TOML: %s", b.line.at(where), at.Message)
		}
		return nil, fmt.Errorf("not TOML: %w", err)
	}
	return root, nil
}

func (b *tomlBuilder) range_(n *unstable.Node) (from, to int) {
	from = b.base + int(n.Raw.Offset)
	return from, from + int(n.Raw.Length)
}

// keys returns the parts of a dotted key, and where the whole of it stands.
func (b *tomlBuilder) keys(e *unstable.Node) (keys []string, from, to int, err error) {
	from = -1
	for it := e.Key(); it.Next(); {
		k := it.Node()
		if len(keys) >= maxDepth {
			return nil, 0, 0, errDeep
		}
		keys = append(keys, string(k.Data))
		start, end := b.range_(k)
		if from < 0 {
			from = start
		}
		to = end
	}
	if len(keys) == 0 {
		return nil, 0, 0, errors.New("not TOML: a key is missing")
	}
	return keys, from, to, nil
}

// header goes to the table that a [header] or [[header]] opens.
func (b *tomlBuilder) header(root *node, e *unstable.Node) (*node, error) {
	keys, from, to, err := b.keys(e)
	if err != nil {
		return nil, err
	}
	line := b.line.at(from)
	n := root
	for i, key := range keys {
		last := i == len(keys)-1
		at := b.last(n, key)
		if at < 0 || last && e.Kind == unstable.ArrayTable {
			if err := b.count(); err != nil {
				return nil, err
			}
			m := &node{kind: Map, toml: &tomlTable{path: keys[:i+1]}}
			switch {
			case last && e.Kind == unstable.ArrayTable && at < 0:
				n.kids = append(n.kids, child{key: key, id: textID(key), line: line, node: &node{kind: List, kids: []child{{node: m, line: line}}}})
			case last && e.Kind == unstable.ArrayTable:
				list := n.kids[at].node
				if list.kind != List {
					return nil, fmt.Errorf("line %d: not TOML: %s is not a list of tables", line, key)
				}
				list.kids = append(list.kids, child{node: m, line: line})
			default:
				n.kids = append(n.kids, child{key: key, id: textID(key), line: line, node: m})
			}
			n = m
			continue
		}
		n = n.kids[at].node
		if n.kind == List && len(n.kids) > 0 {
			n = n.kids[len(n.kids)-1].node
		}
		if n.kind != Map || n.toml.inline {
			return nil, fmt.Errorf("line %d: not TOML: %s is not a table that can be opened", line, key)
		}
	}
	n.toml.section, n.toml.prefix = n.toml, nil
	n.toml.behind, n.toml.lastFrom = lineEnd(b.data, to), -1
	return n, nil
}

func (b *tomlBuilder) count() error {
	if b.values++; b.values > maxValues {
		return errManyValues
	}
	return nil
}

// keyValue puts a key and its value into a table. section is nil in inline tables.
func (b *tomlBuilder) keyValue(n *node, section *tomlTable, e *unstable.Node) error {
	keys, from, keyEnd, err := b.keys(e)
	if err != nil {
		return err
	}
	if err := b.count(); err != nil {
		return err
	}
	if b.keyed++; b.keyed > maxKeys {
		return fmt.Errorf("more than %d keys: not a configuration file", maxKeys)
	}
	_, end := b.range_(e)
	equals := keyEnd + bytes.IndexByte(b.data[keyEnd:end], '=')
	start := equals + 1
	for start < end && (b.data[start] == ' ' || b.data[start] == '\t') {
		start++
	}
	line := b.line.at(from)
	for i, key := range keys[:len(keys)-1] {
		at := b.last(n, key)
		if at < 0 {
			m := &node{kind: Map, toml: &tomlTable{inline: section == nil}}
			if section != nil {
				m.toml.path = append(slices.Clone(section.path), keys[:i+1]...)
				m.toml.section, m.toml.prefix = section, append(slices.Clone(n.toml.prefix), key)
			}
			n.kids = append(n.kids, child{key: key, id: textID(key), line: line, node: m})
			n = m
			continue
		}
		if n = n.kids[at].node; n.kind != Map {
			return fmt.Errorf("line %d: not TOML: %s is not a table", line, key)
		}
	}
	key := keys[len(keys)-1]
	if at := b.last(n, key); at >= 0 {
		return fmt.Errorf("line %d: not TOML: %s stands on line %d already", line, key, n.kids[at].line)
	}
	v, err := b.value(e.Value(), start, end, 0)
	if err != nil {
		return err
	}
	n.kids = append(n.kids, child{key: key, id: textID(key), line: b.line.at(start), node: v, from: from, to: keyEnd})
	if section != nil {
		section.lastFrom, section.lastKey, section.lastValue = from, keyEnd, start
	}
	return nil
}

// value reads a value that lies in from..to; to is 0 where it is not known.
func (b *tomlBuilder) value(v *unstable.Node, from, to, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	n := &node{from: from, to: to}
	switch v.Kind {
	case unstable.Array:
		n.kind = List
		for it := v.Children(); it.Next(); {
			item := it.Node()
			if err := b.count(); err != nil {
				return nil, err
			}
			start, end := b.range_(item)
			if item.Raw.Length == 0 || item.Kind == unstable.Array {
				start, end = from, 0
			} else if item.Kind == unstable.InlineTable {
				end = 0
			}
			m, err := b.value(item, start, end, depth+1)
			if err != nil {
				return nil, err
			}
			n.kids = append(n.kids, child{node: m, line: b.line.at(start)})
		}
		return n, nil
	case unstable.InlineTable:
		n.kind, n.toml = Map, &tomlTable{inline: true}
		for it := v.Children(); it.Next(); {
			item := it.Node()
			if item.Kind != unstable.KeyValue {
				continue
			}
			if err := b.keyValue(n, nil, item); err != nil {
				return nil, err
			}
		}
		return n, nil
	case unstable.String:
		n.typ, n.text, n.quote = "str", string(v.Data), b.data[from]
		return n, nil
	case unstable.Bool:
		n.typ = "bool"
	case unstable.Integer:
		n.typ = "int"
	case unstable.Float:
		n.typ = "float"
	default:
		n.typ = "date"
	}
	start, end := b.range_(v)
	n.text, n.from, n.to = string(b.data[start:end]), start, end
	return n, nil
}

func (tomlFormat) spell(value, kind string, old *node) (string, *node, error) {
	var quote byte
	before := ""
	if old != nil {
		before, quote = old.text, old.quote
	}
	if kind == "null" {
		return "", nil, errNoNull
	}
	if kind != "str" {
		word, err := plainValue(value, kind, before)
		if err != nil {
			return "", nil, err
		}
		if quote == 0 || !readsAs(kind, before) {
			typ := kind
			word = strings.ToLower(word)
			if kind == "float" && !strings.ContainsAny(word, ".e") {
				typ = "int"
			}
			return word, &node{text: word, typ: typ}, nil
		}
		value = word
	}
	leaf := &node{text: value, typ: "str"}
	if quote == '\'' && !strings.ContainsFunc(value, func(r rune) bool { return r == '\'' || r < 0x20 || r == 0x7f }) {
		return "'" + value + "'", leaf, nil
	}
	if !utf8.ValidString(value) {
		return "", nil, errors.New("the value is not UTF-8")
	}
	return tomlString(value), leaf, nil
}

func tomlString(s string) string {
	return quoted(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

func (tomlFormat) replace(d *Doc, at trail, literal string) ([][]byte, error) {
	n := at.end(d.root)
	if n.to <= n.from {
		return nil, errors.New("the value cannot be found again in the text")
	}
	return [][]byte{splice(d.data, n.from, n.to, literal)}, nil
}

func tomlKey(keys ...string) string {
	var words []string
	for _, k := range keys {
		if k == "" || strings.Trim(k, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			k = tomlString(k)
		}
		words = append(words, k)
	}
	return strings.Join(words, ".")
}

func (tomlFormat) add(d *Doc, at trail, keys []string, literal string) ([][]byte, error) {
	n := at.end(d.root)
	t := n.toml
	if t == nil {
		return nil, errors.New("a key can be added to a table only")
	}
	if t.inline {
		return tomlInline(d, n, keys, literal)
	}
	var tries [][]byte
	// A table of its own at the end of the file.
	table := func(path []string, key string) {
		lines := []string{"[" + tomlKey(path...) + "]", tomlKey(key) + " = " + literal}
		if len(bytes.TrimSpace(bytes.TrimPrefix(d.data, bom))) > 0 {
			lines = append([]string{""}, lines...)
		}
		tries = append(tries, insertLines(d.data, len(d.data), lines))
	}
	last := keys[len(keys)-1]
	path := append(slices.Clone(t.path), keys[:len(keys)-1]...)
	top := t.section != nil && len(t.section.path) == 0
	if len(keys) > 1 && (t.section == nil || top) {
		table(path, last)
	}
	if s := t.section; s != nil {
		indent, equals := "", " = "
		if s.lastFrom >= 0 {
			indent = lineIndent(d.data, s.lastFrom)
			if sign := string(d.data[s.lastKey:s.lastValue]); len(sign) <= 3 {
				equals = sign // wider ones line up a column
			}
		}
		where := s.behind
		if where < 0 {
			where = len(d.data) - len(bytes.TrimPrefix(d.data, bom))
			if len(d.root.kids) == 0 {
				where = len(d.data) // comments only
			}
		}
		line := indent + tomlKey(append(slices.Clone(t.prefix), keys...)...) + equals + literal
		tries = append(tries, insertLines(d.data, where, []string{line}))
	} else if len(keys) == 1 {
		table(path, last)
	}
	return tries, nil
}

// tomlInline adds a key to a table in braces, behind the last one.
func tomlInline(d *Doc, n *node, keys []string, literal string) ([][]byte, error) {
	end := -1
	for i := range n.kids {
		end = max(end, n.kids[i].node.to)
	}
	text := tomlKey(keys...) + " = " + literal
	switch {
	case end > 0:
		return [][]byte{splice(d.data, end, end, ", "+text)}, nil
	case len(n.kids) == 0 && n.from < len(d.data) && d.data[n.from] == '{':
		closing := bytes.IndexByte(d.data[n.from:], '}')
		if closing > 0 && len(bytes.TrimSpace(d.data[n.from+1:n.from+closing])) == 0 {
			return [][]byte{splice(d.data, n.from+1, n.from+1, " "+text+" ")}, nil
		}
	}
	return nil, errors.New("the table in braces is written in a form that cannot be added to")
}

func (tomlFormat) remove(d *Doc, at trail) ([][]byte, error) {
	last := at[len(at)-1]
	c := last.child()
	if c.to == 0 || c.node.to <= c.node.from {
		return nil, errors.New("it is a table with lines of its own")
	}
	if !last.in.toml.inline {
		from, to := lineStart(d.data, c.from), lineEnd(d.data, c.node.to)
		if from == 0 {
			from = len(d.data) - len(bytes.TrimPrefix(d.data, bom))
		}
		tries := [][]byte{splice(d.data, from, to, "")}
		if to == len(d.data) && from > 0 && d.data[to-1] != '\n' {
			// A text without a last line break keeps none.
			from -= len(eol(d.data))
			tries = append([][]byte{splice(d.data, from, to, "")}, tries...)
		}
		return tries, nil
	}
	kids := last.in.kids
	from, to := c.from, c.node.to
	switch {
	case last.i > 0:
		from = kids[last.i-1].node.to
	case len(kids) > 1:
		to = kids[1].from
	}
	if from <= 0 || to < from {
		return nil, errors.New("the table in braces is written in a form that cannot be changed")
	}
	return [][]byte{splice(d.data, from, to, "")}, nil
}
