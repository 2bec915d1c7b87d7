package edit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"sparkrun/internal/lazyre"
)

// yamlFormat reads YAML as both PyYAML (YAML 1.1) and readers of YAML 1.2 do.
type yamlFormat struct{}

func (yamlFormat) parse(data []byte) (*node, error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return nil, fmt.Errorf("line %d: not YAML: there is a zero byte", lineAt(data, i))
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return &node{kind: Map}, nil
	}
	if err != nil {
		return nil, yamlError(err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		return nil, fmt.Errorf("line %d: there is more than one YAML document in the file", more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, yamlError(err)
	}
	b := &yamlBuilder{made: map[*yaml.Node]*node{}, size: map[*node]int{}}
	if len(doc.Content) != 1 {
		return nil, errors.New("the YAML is not a mapping of settings")
	}
	top := doc.Content[0]
	root, err := b.build(top, 0)
	if err != nil {
		return nil, err
	}
	if root.kind == Null && top.Value == "" && top.Anchor == "" {
		root = &node{kind: Map} // comments only
	}
	if root.kind != Map {
		return nil, errors.New("the YAML is not a mapping of settings")
	}
	if b.weigh(root) > maxValues {
		return nil, errManyValues
	}
	return root, nil
}

// yamlLine is how the parser's errors begin; grammarError is what its grammar says,
// with lines counted from 0 where its scanner counts from 1.
var (
	yamlLine     = lazyre.New(`^line ([0-9]+): (.*)`)
	grammarError = lazyre.New(`^did not find expected (?:<|node content|key|'-'|',' or)|^found undefined tag`)
)

// yamlError puts the line to the front as everywhere else.
func yamlError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1])
		if grammarError.MatchString(m[2]) {
			line++
		}
		return fmt.Errorf("line %d: not YAML: %s", line, m[2])
	}
	return fmt.Errorf("not YAML: %s", text)
}

type yamlBuilder struct {
	// made has nil for a value that is being built: meeting it again is a circle.
	made  map[*yaml.Node]*node
	size  map[*node]int
	count int
}

func (b *yamlBuilder) build(y *yaml.Node, depth int) (*node, error) {
	if n, ok := b.made[y]; ok {
		if n == nil {
			return nil, fmt.Errorf("line %d: the anchor &%s contains itself", y.Line, y.Anchor)
		}
		return n, nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("line %d: %w", y.Line, errDeep)
	}
	if b.count++; b.count > maxValues {
		return nil, errManyValues
	}
	b.made[y] = nil
	n := &node{y: y}
	var err error
	switch y.Kind {
	case yaml.MappingNode:
		n.kind = Map
		if y.Style&yaml.TaggedStyle != 0 {
			n.typ = y.Tag
		}
		err = b.mapping(n, y, depth)
	case yaml.SequenceNode:
		n.kind = List
		if y.Style&yaml.TaggedStyle != 0 {
			n.typ = y.Tag
		}
		for _, item := range y.Content {
			c := child{line: item.Line, v: item}
			if c.node, c.alias, err = b.value(item, depth); err != nil {
				break
			}
			n.kids = append(n.kids, c)
		}
	case yaml.ScalarNode:
		b.scalar(n, y)
	default:
		err = fmt.Errorf("line %d: not YAML that can be read", y.Line)
	}
	if err != nil {
		return nil, err
	}
	b.made[y] = n
	return n, nil
}

// value builds a value or what its alias stands for.
func (b *yamlBuilder) value(y *yaml.Node, depth int) (n *node, alias bool, err error) {
	if y.Kind == yaml.AliasNode {
		if y.Alias == nil {
			return nil, false, fmt.Errorf("line %d: unknown alias *%s", y.Line, y.Value)
		}
		y, alias = y.Alias, true
	}
	if n, err = b.build(y, depth+1); err == nil && alias {
		n.aliased = true
	}
	return n, alias, err
}

func (b *yamlBuilder) scalar(n *node, y *yaml.Node) {
	n.text = y.Value
	switch {
	case y.Style&yaml.TaggedStyle != 0:
		n.typ = y.Tag
	case y.Style&yaml.DoubleQuotedStyle != 0:
		n.typ, n.quote = "str/str", '"'
	case y.Style&yaml.SingleQuotedStyle != 0:
		n.typ, n.quote = "str/str", '\''
	case y.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		n.typ, n.quote = "str/str", '|'
	default:
		old, now := yaml11(y.Value), yaml12(y.Value)
		if old == "null" && now == "null" {
			n.kind, n.text = Null, ""
			return
		}
		n.typ = old + "/" + now
	}
}

// mapping reads a mapping's own keys, and behind them those of merge keys that it has
// not itself.
func (b *yamlBuilder) mapping(n *node, y *yaml.Node, depth int) error {
	own := map[string]bool{}
	var merges []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, value := y.Content[i], y.Content[i+1]
		if key.Kind == yaml.ScalarNode && key.Tag == "!!merge" {
			merges = append(merges, value)
			continue
		}
		word := key
		if key.Kind == yaml.AliasNode && key.Alias != nil {
			word = key.Alias
		}
		if word.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: a key is a list or a mapping: not a configuration that can be read", key.Line)
		}
		c := child{key: word.Value, y: key, v: value, line: value.Line}
		var k node
		b.scalar(&k, word)
		c.id = textID(word.Value)
		if k.typ != "str/str" {
			c.id = k.typ + ":" + word.Value
		}
		var err error
		if c.node, c.alias, err = b.value(value, depth); err != nil {
			return err
		}
		if isEmpty(value) {
			c.line = key.Line // the parser gives nothing a place somewhere behind the key
		}
		own[c.id] = true
		n.kids = append(n.kids, c)
	}
	for _, m := range merges {
		sources := []*yaml.Node{m}
		if m.Kind == yaml.SequenceNode {
			sources = m.Content // of several the first wins
		}
		for _, source := range sources {
			from, _, err := b.value(source, depth)
			if err != nil {
				return err
			}
			if from.kind != Map {
				return fmt.Errorf("line %d: a merge key must be given a mapping", source.Line)
			}
			if b.count += len(from.kids); b.count > maxValues {
				return errManyValues
			}
			seen := map[string]bool{}
			for i := len(from.kids) - 1; i >= 0; i-- { // the last of two holds
				c := from.kids[i]
				if own[c.id] || seen[c.id] {
					continue
				}
				seen[c.id] = true
				c.merged = true
				n.kids = append(n.kids, c)
			}
			for id := range seen {
				own[id] = true
			}
		}
	}
	return nil
}

// isEmpty says whether no value is written at all.
func isEmpty(y *yaml.Node) bool {
	return y.Kind == yaml.ScalarNode && y.Value == "" && y.Style == 0 && y.Anchor == ""
}

// weigh counts the values below a node as if every alias were written out.
func (b *yamlBuilder) weigh(n *node) int {
	if w, ok := b.size[n]; ok {
		return w
	}
	w := 1
	for i := range n.kids {
		w = min(w+b.weigh(n.kids[i].node), maxValues+1)
	}
	b.size[n] = w
	return w
}

// yamlText finds the places that the parser gives as line and column again.
type yamlText struct {
	data []byte
	// lines are the offsets where lines begin, as YAML counts lines: after a line feed,
	// a carriage return, NEL, LS or PS.
	lines []int
}

func newYAMLText(data []byte) *yamlText {
	t := &yamlText{data: data, lines: []int{len(data) - len(bytes.TrimPrefix(data, bom))}}
	for i := 0; i < len(data); i++ {
		if n := lineBreak(data[i:]); n > 0 {
			i += n - 1
			t.lines = append(t.lines, i+1)
		}
	}
	return t
}

// lineBreak returns the length of the line break that the text begins with, 0 if it
// does not.
func lineBreak(text []byte) int {
	switch {
	case bytes.HasPrefix(text, []byte("\r\n")):
		return 2
	case text[0] == '\n' || text[0] == '\r':
		return 1
	case bytes.HasPrefix(text, []byte("\u0085")):
		return 2
	case bytes.HasPrefix(text, []byte("\u2028")), bytes.HasPrefix(text, []byte("\u2029")):
		return 3
	}
	return 0
}

// line returns the offset where a line begins; the end of the text for a line behind
// the last one.
func (t *yamlText) line(n int) int {
	if n < 1 {
		return t.lines[0]
	}
	if n > len(t.lines) {
		return len(t.data)
	}
	return t.lines[n-1]
}

// offset turns a line and a column, which counts characters, into bytes; -1 if there
// is no such place.
func (t *yamlText) offset(line, column int) int {
	if line < 1 || line > len(t.lines) || column < 1 {
		return -1
	}
	at := t.lines[line-1]
	for n := 1; n < column; n++ {
		if at >= len(t.data) || lineBreak(t.data[at:]) > 0 {
			return -1
		}
		_, size := utf8.DecodeRune(t.data[at:])
		at += size
	}
	return at
}

// word returns the bytes that a scalar or an alias takes. What it cannot find again
// word for word it refuses.
func (t *yamlText) word(y *yaml.Node) (from, to int, err error) {
	from = t.offset(y.Line, y.Column)
	if from < 0 {
		return 0, 0, errors.New("the value cannot be found again in the text")
	}
	if y.Style&yaml.TaggedStyle != 0 {
		return 0, 0, fmt.Errorf("the value is written with the tag %s", y.Tag)
	}
	if y.Anchor != "" { // the anchor stays
		head := "&" + y.Anchor
		if !bytes.HasPrefix(t.data[from:], []byte(head)) {
			return 0, 0, errors.New("the value cannot be found again in the text")
		}
		from += len(head)
		for from < len(t.data) && (t.data[from] == ' ' || t.data[from] == '\t') {
			from++
		}
	}
	rest := t.data[from:]
	switch {
	case y.Kind == yaml.AliasNode:
		to = from + 1 + len(y.Value)
		if !bytes.HasPrefix(rest, []byte("*"+y.Value)) {
			return 0, 0, errors.New("the alias cannot be found again in the text")
		}
		return from, to, nil
	case y.Kind != yaml.ScalarNode:
		return 0, 0, errors.New("the value is not a single word")
	case y.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return 0, 0, errors.New("the value is a block of lines")
	case y.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		n := quotedLength(rest)
		if n == 0 {
			return 0, 0, errors.New("the value cannot be found again in the text")
		}
		return from, from + n, nil
	case y.Value == "":
		return 0, 0, errors.New("the value is empty")
	case !bytes.HasPrefix(rest, []byte(y.Value)):
		return 0, 0, errors.New("the value is written over several lines")
	}
	return from, from + len(y.Value), nil
}

// quotedLength returns how many bytes the quoted scalar takes that the text begins
// with, 0 if none does.
func quotedLength(text []byte) int {
	if len(text) == 0 || text[0] != '"' && text[0] != '\'' {
		return 0
	}
	for i := 1; i < len(text); i++ {
		switch {
		case text[0] == '"' && text[i] == '\\':
			i++
		case text[i] != text[0]:
		case text[0] == '\'' && i+1 < len(text) && text[i+1] == '\'':
			i++
		default:
			return i + 1
		}
	}
	return 0
}
