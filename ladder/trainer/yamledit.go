package trainer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// yamlMapping returns the one document of a YAML file as its top-level mapping.
func yamlMapping(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return &yaml.Node{Kind: yaml.MappingNode}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one YAML document in the file")
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("the YAML is not a mapping of settings")
	}
	return doc.Content[0], nil
}

// yamlEntries reads the top-level settings, those of merged mappings first:
// they are the weakest.
func yamlEntries(data []byte) ([]entry, error) {
	root, err := yamlMapping(data)
	if err != nil {
		return nil, err
	}
	return mappingEntries(root, 0), nil
}

func mappingEntries(m *yaml.Node, depth int) []entry {
	var merged, own []entry
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		if key.Tag == "!!merge" || key.Value == "<<" {
			if depth < 8 {
				merged = append(merged, mergeEntries(value, depth+1)...)
			}
			continue
		}
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		e := entry{key: key.Value, line: m.Content[i+1].Line}
		if value.Kind == yaml.ScalarNode {
			e.null = value.Tag == "!!null"
			e.value, e.plain = value.Value, !e.null
		}
		own = append(own, e)
	}
	return append(merged, own...)
}

func mergeEntries(value *yaml.Node, depth int) []entry {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch value.Kind {
	case yaml.MappingNode:
		return mappingEntries(value, depth)
	case yaml.SequenceNode:
		// Of several merged mappings the first wins: it comes last here.
		var all []entry
		for i := len(value.Content) - 1; i >= 0; i-- {
			all = append(all, mergeEntries(value.Content[i], depth)...)
		}
		return all
	}
	return nil
}

// yamlSet replaces the scalar at a top-level key, or adds the key as a last
// line.
func yamlSet(data []byte, key, literal string) ([]byte, error) {
	root, err := yamlMapping(data)
	if err != nil {
		return nil, err
	}
	at := -1
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == key {
			at = i + 1
		}
	}
	if at < 0 {
		return yamlAdd(data, root, key, literal)
	}
	node := root.Content[at]
	from, to, err := scalarRange(data, node)
	if err != nil {
		return nil, fmt.Errorf("line %d: %s: %w", node.Line, key, err)
	}
	out := splice(data, from, to, literal)
	after, err := yamlMapping(out)
	if err != nil || len(after.Content) != len(root.Content) {
		return nil, fmt.Errorf("line %d: cannot change %s safely", node.Line, key)
	}
	for i := range after.Content {
		same := sameNode(root.Content[i], after.Content[i], map[*yaml.Node]bool{})
		if i == at {
			same = after.Content[i].Kind == yaml.ScalarNode && sameLiteral(after.Content[i], literal) &&
				after.Content[i].Anchor == ""
		}
		if !same {
			return nil, fmt.Errorf("line %d: cannot change %s safely", node.Line, key)
		}
	}
	return out, nil
}

func yamlAdd(data []byte, root *yaml.Node, key, literal string) ([]byte, error) {
	if root.Style&yaml.FlowStyle != 0 {
		return nil, fmt.Errorf("cannot add %s to settings written in braces", key)
	}
	eol := "\n"
	if bytes.Contains(data, []byte("\r\n")) {
		eol = "\r\n"
	}
	indent := ""
	if len(root.Content) > 0 {
		indent = strings.Repeat(" ", root.Content[0].Column-1)
	}
	line := indent + key + ": " + literal + eol
	if len(data) > 0 && data[len(data)-1] != '\n' {
		line = eol + line
	}
	out := append(bytes.Clone(data), line...)
	after, err := yamlMapping(out)
	n := len(root.Content)
	if err != nil || len(after.Content) != n+2 || after.Content[n].Value != key ||
		after.Content[n+1].Kind != yaml.ScalarNode || !sameLiteral(after.Content[n+1], literal) {
		return nil, fmt.Errorf("cannot add %s to the file safely", key)
	}
	for i := range root.Content {
		if !sameNode(root.Content[i], after.Content[i], map[*yaml.Node]bool{}) {
			return nil, fmt.Errorf("cannot add %s to the file safely", key)
		}
	}
	return out, nil
}

// scalarRange returns the bytes that a scalar or an alias takes in the source.
// Anything it cannot find again word for word it refuses.
func scalarRange(data []byte, node *yaml.Node) (from, to int, err error) {
	if node.Anchor != "" {
		return 0, 0, fmt.Errorf("other settings share this value through the anchor &%s", node.Anchor)
	}
	var want string
	switch {
	case node.Kind == yaml.AliasNode:
		want = "*" + node.Value
	case node.Kind != yaml.ScalarNode:
		return 0, 0, errors.New("the value is not a single word")
	case node.Style&yaml.DoubleQuotedStyle != 0:
		want = `"` + node.Value + `"`
	case node.Style&yaml.SingleQuotedStyle != 0:
		want = "'" + node.Value + "'"
	case node.Style&(yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) != 0:
		return 0, 0, errors.New("the value is written in a form that cannot be changed in place")
	default:
		want = node.Value
	}
	if want == "" {
		return 0, 0, errors.New("the value is empty")
	}
	from = offsetOf(data, node.Line, node.Column)
	if from < 0 || !bytes.HasPrefix(data[from:], []byte(want)) {
		return 0, 0, errors.New("the value cannot be found again in the text")
	}
	return from, from + len(want), nil
}

// offsetOf turns a line and a column, which counts characters, into bytes. -1 if
// there is no such place.
func offsetOf(data []byte, line, column int) int {
	at := 0
	for n := 1; n < line; n++ {
		i := bytes.IndexByte(data[at:], '\n')
		if i < 0 {
			return -1
		}
		at += i + 1
	}
	if at == 0 {
		at = len(data) - len(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	}
	for n := 1; n < column; n++ {
		if at >= len(data) || data[at] == '\n' {
			return -1
		}
		_, size := utf8.DecodeRune(data[at:])
		at += size
	}
	return at
}

// sameNode compares two nodes in what they mean: not in position or comments,
// which cannot change when the bytes around a splice stay.
func sameNode(a, b *yaml.Node, seen map[*yaml.Node]bool) bool {
	if a.Kind != b.Kind || a.Tag != b.Tag || a.Value != b.Value || a.Anchor != b.Anchor || len(a.Content) != len(b.Content) {
		return false
	}
	if seen[a] {
		return true
	}
	seen[a] = true
	for i := range a.Content {
		if !sameNode(a.Content[i], b.Content[i], seen) {
			return false
		}
	}
	if a.Alias != nil || b.Alias != nil {
		return a.Alias != nil && b.Alias != nil && sameNode(a.Alias, b.Alias, seen)
	}
	return true
}

// sameLiteral says whether the node reads as the literal does by itself.
func sameLiteral(node *yaml.Node, literal string) bool {
	var alone yaml.Node
	if yaml.Unmarshal([]byte(literal), &alone) != nil || len(alone.Content) != 1 {
		return false
	}
	return alone.Content[0].Value == node.Value && alone.Content[0].Tag == node.Tag
}

// yamlLiteral writes a value so that YAML reads it as a value of that kind.
func yamlLiteral(value, kind string) string {
	if b, ok := parseBool(value); ok && kind == "bool" {
		return strconv.FormatBool(b)
	}
	if kind == "int" || kind == "float" || value == "null" {
		return value
	}
	plain := value != "" && strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") == "" && value[0] != '-'
	if plain {
		var n yaml.Node
		if yaml.Unmarshal([]byte(value), &n) == nil && len(n.Content) == 1 && n.Content[0].Tag == "!!str" {
			return value
		}
	}
	return strconv.Quote(value)
}
