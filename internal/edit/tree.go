package edit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxValues bounds how many values a document may have, those counted again that
// YAML aliases repeat: a few lines of aliases can stand for billions.
const maxValues = 200_000

// maxDepth bounds nesting. No trainer's configuration comes near it.
const maxDepth = 200

var (
	errManyValues = fmt.Errorf("more than %d values: not a configuration file", maxValues)
	errDeep       = fmt.Errorf("nested deeper than %d levels", maxDepth)
)

// node is a value of a document. Values that YAML aliases share are shared here too.
type node struct {
	kind Kind
	// text is the value of a scalar without its quotes; typ says what readers take it
	// for. Two scalars are the same if both agree.
	text, typ string
	kids      []child
	// aliased is set where an alias of YAML refers to this value.
	aliased bool

	// from and to are the bytes of the value, in the formats whose parsers tell.
	from, to int
	// quote is the mark around a string, 0 if there is none.
	quote byte
	// y is the value for YAML, toml says how a mapping came to be.
	y    *yaml.Node
	toml *tomlTable
}

// child is a key of a mapping with its value, or an item of a list, which has no key.
type child struct {
	key string
	// id tells apart keys that are written alike: 1 and "1". Empty in lists.
	id   string
	node *node
	line int
	// alias: the value is written elsewhere and an alias stands here. merged: the whole
	// key comes out of a merge key.
	alias, merged bool
	// from and to are the bytes of the key; y and v are the key and the value as they
	// are written here, for YAML.
	from, to int
	y, v     *yaml.Node
}

// step leads from a mapping or list to one of its values.
type step struct {
	in *node
	i  int
}

func (s step) child() *child { return &s.in.kids[s.i] }

// trail leads from the top of a document to a value; empty, to the top.
type trail []step

// end returns the value at the end of the trail.
func (t trail) end(root *node) *node {
	if len(t) == 0 {
		return root
	}
	return t[len(t)-1].child().node
}

// path writes the trail as Entry.Path does.
func (t trail) path() string {
	var b strings.Builder
	for _, s := range t {
		b.WriteString(joined("", s, b.Len() > 0))
	}
	return b.String()
}

func joined(path string, s step, dot bool) string {
	if s.in.kind == List {
		return path + "[" + strconv.Itoa(s.i) + "]"
	}
	if dot {
		path += "."
	}
	return path + s.child().key
}

// walk visits everything below a node.
func (n *node) walk(path string, shared bool, visit func(Entry)) {
	for i := range n.kids {
		c := &n.kids[i]
		at := joined(path, step{n, i}, path != "")
		shared := shared || c.alias || c.merged || c.node.aliased
		visit(Entry{Path: at, Value: c.node.text, Line: c.line, Kind: c.node.kind, Shared: shared})
		c.node.walk(at, shared, visit)
	}
}

// last returns the index of the last value with the key, which is the one that holds.
func (n *node) last(key string) int {
	for i := len(n.kids) - 1; i >= 0; i-- {
		if n.kids[i].key == key {
			return i
		}
	}
	return -1
}

// find returns the trail to a path.
func (d *Doc) find(path string) (trail, bool) {
	if a, ok := d.f.(argsFormat); ok {
		path = a.name(path)
	}
	at, rest := follow(d.root, path)
	return at, rest == "" && path != ""
}

// deepest returns the trail along the longest part of the path that is there, and
// what is left of the path.
func (d *Doc) deepest(path string) (trail, string) {
	if a, ok := d.f.(argsFormat); ok {
		path = a.name(path)
	}
	return follow(d.root, path)
}

// follow walks a path as far as it goes. A key that is the whole rest of the path
// goes before any dotted reading of it, a longer key before a shorter one.
func follow(n *node, path string) (trail, string) {
	if path == "" {
		return nil, ""
	}
	if n.kind == List {
		index, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]")
		i, err := strconv.Atoi(index)
		if path[0] != '[' || !ok || err != nil || i < 0 || i >= len(n.kids) || strconv.Itoa(i) != index {
			return nil, path
		}
		at, left := follow(n.kids[i].node, strings.TrimPrefix(rest, "."))
		return append(trail{{n, i}}, at...), left
	}
	if n.kind != Map {
		return nil, path
	}
	var best trail
	left := path
	for end := len(path); end > 0; end-- {
		if end < len(path) && path[end] != '.' && path[end] != '[' {
			continue
		}
		i := n.last(path[:end])
		if i < 0 {
			continue
		}
		at, rest := follow(n.kids[i].node, strings.TrimPrefix(path[end:], "."))
		if best == nil || len(rest) < len(left) {
			best, left = append(trail{{n, i}}, at...), rest
		}
		if left == "" {
			break
		}
	}
	return best, left
}

// changeable refuses what cannot be changed alone for a reason that is seen without
// trying.
func (t trail) changeable(path string) error {
	for i, s := range t {
		c := s.child()
		here := t[:i+1].path()
		if s.in.kind == Map {
			for j := range s.in.kids {
				if j != s.i && s.in.kids[j].key == c.key && !s.in.kids[j].merged {
					return fmt.Errorf("line %d: cannot change %s: the key %s stands on line %d too, and readers disagree on which holds",
						c.line, path, here, s.in.kids[j].line)
				}
			}
		}
		if i == len(t)-1 && c.node.kind != Map {
			break // replaced where it is used: that is a change of one place
		}
		if c.alias {
			return fmt.Errorf("line %d: cannot change %s: %s is an alias of a value that is written elsewhere", c.line, path, here)
		}
		if c.merged {
			return fmt.Errorf("line %d: cannot change %s: %s comes through a merge key", c.line, path, here)
		}
	}
	return nil
}

// missing splits what is left of a path into the keys that are to be added at the end
// of the trail.
func (t trail) missing(root *node, rest string, flat bool) ([]string, error) {
	if rest == "" {
		return nil, errors.New("the path is empty")
	}
	if flat {
		return []string{rest}, nil
	}
	n := t.end(root)
	switch n.kind {
	case List:
		return nil, fmt.Errorf("%s is a list without that item", t.path())
	case Scalar:
		return nil, fmt.Errorf("%s has a value and cannot have keys below it", t.path())
	}
	if strings.ContainsAny(rest, "[]") {
		return nil, errors.New("a list would have to be added")
	}
	keys := strings.Split(rest, ".")
	if slices.Contains(keys, "") {
		return nil, errors.New("the path has an empty key")
	}
	if len(keys) > 1 && n.kind == Map {
		// A flat file with dots in its keys stays flat.
		dotted := false
		for i := range n.kids {
			dotted = dotted || strings.Contains(n.kids[i].key, ".") && n.kids[i].node.kind != Map
		}
		if dotted {
			return []string{rest}, nil
		}
	}
	return keys, nil
}

// changed copies the mappings and lists along the trail and gives the value at its
// end another meaning. Everything else is shared with the original.
func (t trail) changed(root *node, with func(n *node) *node) *node {
	if len(t) == 0 {
		return with(root)
	}
	n := *t[0].in
	n.kids = slices.Clone(n.kids)
	n.kids[t[0].i].node = t[1:].changed(n.kids[t[0].i].node, with)
	return &n
}

func (t trail) replaced(root, leaf *node) *node {
	return t.changed(root, func(*node) *node { return leaf })
}

func (t trail) added(root *node, keys []string, leaf *node) *node {
	for i := len(keys) - 1; i > 0; i-- {
		leaf = &node{kind: Map, kids: []child{newChild(keys[i], leaf)}}
	}
	return t.changed(root, func(n *node) *node {
		m := &node{kind: Map}
		if n.kind == Map {
			m.kids = slices.Clone(n.kids)
		}
		m.kids = append(m.kids, newChild(keys[0], leaf))
		return m
	})
}

func (t trail) removed(root *node) *node {
	last := t[len(t)-1]
	return t[:len(t)-1].changed(root, func(n *node) *node {
		m := *n
		m.kids = slices.Delete(slices.Clone(n.kids), last.i, last.i+1)
		return &m
	})
}

func newChild(key string, n *node) child { return child{key: key, id: textID(key), node: n} }

// textID is the id of a key that is a string.
func textID(key string) string { return "str:" + key }

// difference compares two documents in what they mean. where is the path of the first
// difference.
func difference(a, b *node) (where string, same bool) {
	c := comparison{seen: map[[2]*node]bool{}}
	same = c.same(a, b)
	return c.at.path(), same
}

type comparison struct {
	seen map[[2]*node]bool
	at   trail
}

// same leaves the trail to the first difference behind.
func (c *comparison) same(a, b *node) bool {
	if a == b || c.seen[[2]*node{a, b}] {
		return true
	}
	if a.kind != b.kind || a.text != b.text || a.typ != b.typ {
		return false
	}
	if a.kind == List && len(a.kids) != len(b.kids) {
		return false
	}
	var places map[string][]int
	if a.kind == Map {
		places = make(map[string][]int, len(b.kids))
		for i := range b.kids {
			places[b.kids[i].id] = append(places[b.kids[i].id], i)
		}
	}
	for i := range a.kids {
		j := i
		if a.kind == Map {
			// The order of keys says nothing, but of a key that stands twice.
			id := a.kids[i].id
			if len(places[id]) == 0 {
				c.at = append(c.at, step{a, i})
				return false
			}
			j, places[id] = places[id][0], places[id][1:]
		}
		c.at = append(c.at, step{a, i})
		if !c.same(a.kids[i].node, b.kids[j].node) {
			return false
		}
		c.at = c.at[:len(c.at)-1]
	}
	if a.kind == Map && len(b.kids) > len(a.kids) {
		for j := range b.kids {
			if slices.Contains(places[b.kids[j].id], j) {
				c.at = append(c.at, step{b, j})
				break
			}
		}
		return false
	}
	c.seen[[2]*node{a, b}] = true
	return true
}

// splice returns data with the bytes from..to replaced.
func splice(data []byte, from, to int, with string) []byte {
	out := make([]byte, 0, len(data)-(to-from)+len(with))
	out = append(out, data[:from]...)
	out = append(out, with...)
	return append(out, data[to:]...)
}

// lineAt counts the lines up to a byte offset, from 1.
func lineAt(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(offset, len(data))], []byte("\n"))
}

// lineStart returns the offset of the first byte of the line that holds offset.
func lineStart(data []byte, offset int) int {
	return bytes.LastIndexByte(data[:offset], '\n') + 1
}

// lineEnd returns the offset behind the line break of the line that holds offset, or
// the end of the text.
func lineEnd(data []byte, offset int) int {
	if i := bytes.IndexByte(data[offset:], '\n'); i >= 0 {
		return offset + i + 1
	}
	return len(data)
}

// eol returns the line break that the text uses.
func eol(data []byte) string {
	if i := bytes.IndexByte(data, '\n'); i > 0 && data[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

var bom = []byte("\xef\xbb\xbf")

func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(data)
}

// insertLines returns data with whole lines put in before the line that starts at
// offset. At the end of a text without a last line break there is none afterwards
// either.
func insertLines(data []byte, offset int, lines []string) []byte {
	nl := eol(data)
	text := strings.Join(lines, nl)
	if offset == len(data) && offset > 0 && data[offset-1] != '\n' && !bytes.Equal(data, bom) {
		return splice(data, offset, offset, nl+text)
	}
	return splice(data, offset, offset, text+nl)
}
