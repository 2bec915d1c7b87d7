package edit

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

func (yamlFormat) replace(d *Doc, at trail, literal string) ([][]byte, error) {
	t := newYAMLText(d.data)
	c := at[len(at)-1].child()
	if isEmpty(c.v) {
		if c.y == nil {
			return nil, errors.New("the item of the list is empty")
		}
		colon, err := t.colon(c.y)
		if err != nil {
			return nil, err
		}
		return [][]byte{splice(d.data, colon, colon, " "+literal)}, nil
	}
	from, to, err := t.word(c.v)
	if err != nil {
		return nil, err
	}
	return [][]byte{splice(d.data, from, to, literal)}, nil
}

// colon returns the offset behind the colon of a key.
func (t *yamlText) colon(key *yaml.Node) (int, error) {
	_, at, err := t.word(key)
	if err != nil {
		return 0, errors.New("the key cannot be found again in the text")
	}
	for at < len(t.data) && (t.data[at] == ' ' || t.data[at] == '\t') {
		at++
	}
	if at >= len(t.data) || t.data[at] != ':' {
		return 0, errors.New("the key is written without a colon behind it")
	}
	return at + 1, nil
}

func (f yamlFormat) add(d *Doc, at trail, keys []string, literal string) ([][]byte, error) {
	n := at.end(d.root)
	switch {
	case n.kind == Null && len(at) > 0:
		return f.replace(d, at, "{"+yamlFlow(keys, literal, yamlKey)+"}")
	case n.y == nil || n.kind != Map || len(n.y.Content) == 0 && n.y.Style&yaml.FlowStyle == 0:
		lines := yamlBlock(keys, literal, "", "  ")
		return [][]byte{insertLines(d.data, len(d.data), lines)}, nil
	case n.y.Style&yaml.FlowStyle != 0:
		return yamlAddFlow(d, n.y, keys, literal)
	}
	return yamlAddBlock(d, n, keys, literal), nil
}

// yamlFlow writes a key and its value on one line, mappings in braces for parents.
func yamlFlow(keys []string, literal string, key func(string) string) string {
	if len(keys) == 1 {
		return key(keys[0]) + ": " + literal
	}
	return key(keys[0]) + ": {" + yamlFlow(keys[1:], literal, key) + "}"
}

// yamlBlock writes a key and its value in lines, parents above.
func yamlBlock(keys []string, literal, indent, step string) []string {
	if len(keys) == 1 {
		return []string{indent + yamlKey(keys[0]) + ": " + literal}
	}
	return append([]string{indent + yamlKey(keys[0]) + ":"}, yamlBlock(keys[1:], literal, indent+step, step)...)
}

// yamlAddBlock offers the places where a line can be added to a mapping: behind its
// last line, before what follows it, and before its last key. Block scalars and
// comments decide which of them are right; the proof finds out.
func yamlAddBlock(d *Doc, n *node, keys []string, literal string) [][]byte {
	t := newYAMLText(d.data)
	indent := strings.Repeat(" ", n.y.Content[0].Column-1)
	lines := yamlBlock(keys, literal, indent, yamlStep(d.root.y))
	places := t.ends(d.root.y, n.y)
	if n == d.root {
		places = append([]int{len(d.data)}, places...)
	}
	last := n.y.Content[len(n.y.Content)-2]
	if start := t.line(last.Line); t.offset(last.Line, last.Column) == start+last.Column-1 {
		places = append(places, start)
	}
	var tries [][]byte
	for i, p := range places {
		if !slices.Contains(places[:i], p) {
			tries = append(tries, insertLines(d.data, p, lines))
		}
	}
	return tries
}

// ends returns the offsets of lines that may be the first behind a value, the
// likeliest first.
func (t *yamlText) ends(top, y *yaml.Node) []int {
	last, next := edges(top, y)
	line := len(t.lines) + 1
	if next != nil {
		line = next.Line
	} else if n := len(t.lines); t.lines[n-1] == len(t.data) {
		line = n // the text ends in a line break
	}
	back := line
	for back > 1 && t.blank(back-1) {
		back--
	}
	var places []int
	if last.Line < line {
		places = append(places, t.line(last.Line+1))
	}
	return append(places, t.line(back), t.line(line))
}

// blank says whether a line holds nothing but a comment or the end of the document.
func (t *yamlText) blank(n int) bool {
	text := bytes.TrimSpace(t.data[t.line(n):t.line(n+1)])
	return len(text) == 0 || text[0] == '#' || string(text) == "..."
}

// edges returns the last thing written below y, and the first one behind it, nil at
// the end.
func edges(top, y *yaml.Node) (last, next *yaml.Node) {
	inside, past := false, false
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		if past {
			if next == nil {
				next = n
			}
			return
		}
		if n == y {
			inside = true
		}
		if inside && !isEmpty(n) {
			last = n
		}
		for _, c := range n.Content {
			visit(c)
		}
		if n == y {
			inside, past = false, true
		}
	}
	visit(top)
	if last == nil {
		last = y
	}
	return last, next
}

// yamlStep returns by how much the file indents: as the first mapping does that lies
// in a mapping.
func yamlStep(y *yaml.Node) string {
	step := 0
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		if step > 0 || n == nil || n.Style&yaml.FlowStyle != 0 {
			return
		}
		if n.Kind == yaml.MappingNode {
			for i := 1; i < len(n.Content); i += 2 {
				v := n.Content[i]
				if v.Kind == yaml.MappingNode && v.Style&yaml.FlowStyle == 0 && len(v.Content) > 0 {
					if step = v.Content[0].Column - n.Content[i-1].Column; step > 0 {
						return
					}
				}
			}
		}
		for _, c := range n.Content {
			visit(c)
		}
	}
	visit(y)
	if step <= 0 || step > 16 {
		step = 2
	}
	return strings.Repeat(" ", step)
}

// flow finds a collection in brackets: where it opens and closes, and where the last
// thing in it ends that is not a comment.
func (t *yamlText) flow(y *yaml.Node) (open, end, closing int, err error) {
	lost := errors.New("the brackets of the mapping cannot be found again in the text")
	open = t.offset(y.Line, y.Column)
	if open < 0 {
		return 0, 0, 0, lost
	}
	if y.Anchor != "" && y.Style&yaml.TaggedStyle == 0 && bytes.HasPrefix(t.data[open:], []byte("&"+y.Anchor)) {
		open += 1 + len(y.Anchor)
		open += len(t.data[open:]) - len(bytes.TrimLeft(t.data[open:], " \t"))
	}
	if open >= len(t.data) || t.data[open] != '{' {
		return 0, 0, 0, lost
	}
	end = open + 1
	depth := 0
	for i := open; i < len(t.data); i++ {
		c := t.data[i]
		before := t.data[max(i-1, open)]
		switch {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			continue
		case c == '#' && strings.IndexByte(" \t\r\n", before) >= 0:
			n := bytes.IndexByte(t.data[i:], '\n')
			if n < 0 {
				return 0, 0, 0, lost
			}
			i += n
			continue
		case (c == '"' || c == '\'') && strings.IndexByte(" \t\r\n,:[{", before) >= 0:
			n := quotedLength(t.data[i:])
			if n == 0 {
				return 0, 0, 0, lost
			}
			i += n - 1
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return open, end, i, nil
			}
		}
		end = i + 1
	}
	return 0, 0, 0, lost
}

func yamlAddFlow(d *Doc, y *yaml.Node, keys []string, literal string) ([][]byte, error) {
	t := newYAMLText(d.data)
	open, end, _, err := t.flow(y)
	if err != nil {
		return nil, err
	}
	spell := yamlKey
	if len(y.Content) > 0 && y.Content[0].Style&yaml.DoubleQuotedStyle != 0 {
		spell = yamlQuoted
	}
	text := yamlFlow(keys, literal, spell)
	if len(y.Content) == 0 {
		return [][]byte{splice(d.data, open+1, open+1, text)}, nil
	}
	gap := " "
	last := y.Content[len(y.Content)-2]
	start := t.line(last.Line)
	if at := t.offset(last.Line, last.Column); at > start && len(bytes.TrimSpace(d.data[start:at])) == 0 &&
		len(bytes.TrimSpace(d.data[end:lineEnd(d.data, end)])) == 0 {
		gap = eol(d.data) + string(d.data[start:at]) // every key has a line
	}
	if d.data[end-1] == ',' {
		if gap != " " {
			text += ","
		}
		return [][]byte{splice(d.data, end, end, gap+text)}, nil
	}
	return [][]byte{splice(d.data, end, end, ","+gap+text)}, nil
}

func (yamlFormat) remove(d *Doc, at trail) ([][]byte, error) {
	t := newYAMLText(d.data)
	last := at[len(at)-1]
	m, c := last.in.y, last.child()
	i := slices.Index(m.Content, c.y)
	from := t.offset(c.y.Line, c.y.Column)
	if i < 0 || from < 0 {
		return nil, errors.New("the key cannot be found again in the text")
	}
	if m.Style&yaml.FlowStyle != 0 {
		return yamlRemoveFlow(d, t, m, i, from)
	}
	places := t.ends(d.root.y, c.v)
	start := t.line(c.y.Line)
	if len(bytes.TrimSpace(d.data[start:from])) > 0 { // behind the dash of a list
		if i+2 >= len(m.Content) {
			return nil, errors.New("it is the only key of an item of a list")
		}
		to := t.offset(m.Content[i+2].Line, m.Content[i+2].Column)
		if to < places[0] || len(bytes.TrimSpace(d.data[places[0]:to])) > 0 {
			return nil, errors.New("a comment stands between it and the next key")
		}
		return [][]byte{splice(d.data, from, to, "")}, nil
	}
	var tries [][]byte
	for _, to := range places {
		text := d.data
		if to == len(text) && start > 0 && text[to-1] != '\n' {
			text = text[:start-lineBreakBefore(text, start)] // no last line break: there is none afterwards
		} else {
			text = splice(text, start, to, "")
		}
		if len(m.Content) == 2 && len(at) > 1 { // the last key: an empty mapping stays
			parent := at[len(at)-2].child().y
			if parent == nil {
				return nil, errors.New("it is the only key of an item of a list")
			}
			colon, err := t.colon(parent)
			if err != nil || colon > start {
				return nil, errors.New("it is the only key of its mapping")
			}
			text = splice(text, colon, colon, " {}")
		}
		tries = append(tries, text)
	}
	return tries, nil
}

func lineBreakBefore(text []byte, offset int) int {
	switch {
	case bytes.HasSuffix(text[:offset], []byte("\r\n")):
		return 2
	case bytes.HasSuffix(text[:offset], []byte("\n")):
		return 1
	}
	return 0
}

// yamlRemoveFlow takes a key out of braces, with one of the commas beside it.
func yamlRemoveFlow(d *Doc, t *yamlText, m *yaml.Node, i, from int) ([][]byte, error) {
	open, end, closing, err := t.flow(m)
	switch {
	case err != nil:
		return nil, err
	case len(m.Content) == 2:
		return [][]byte{splice(d.data, open+1, closing, "")}, nil
	case i+2 < len(m.Content):
		to := t.offset(m.Content[i+2].Line, m.Content[i+2].Column)
		if to < from {
			return nil, errors.New("the next key cannot be found again in the text")
		}
		return [][]byte{splice(d.data, from, to, "")}, nil
	}
	head := bytes.TrimRight(d.data[:from], " \t\r\n")
	if !bytes.HasSuffix(head, []byte(",")) {
		return nil, errors.New("a comment stands before it")
	}
	if d.data[end-1] == ',' {
		end--
	}
	return [][]byte{splice(d.data, len(head)-1, end, "")}, nil
}
