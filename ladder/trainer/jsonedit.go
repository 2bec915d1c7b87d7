package trainer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// member is one key of a JSON object with the bytes its value takes.
type member struct {
	key        string
	raw        json.RawMessage
	start, end int
}

// jsonMembers reads the top level of a JSON object. close is the offset of the
// closing brace.
func jsonMembers(data []byte) (members []member, closing int, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	open, err := dec.Token()
	if err != nil {
		return nil, 0, fmt.Errorf("not JSON: %w", err)
	}
	if open != json.Delim('{') {
		return nil, 0, errors.New("the JSON is not an object")
	}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, 0, fmt.Errorf("line %d: not JSON: %w", lineAt(data, int(dec.InputOffset())), err)
		}
		key, ok := tok.(string)
		if !ok {
			return nil, 0, errors.New("the JSON has a key that is not a string")
		}
		m := member{key: key}
		if err := dec.Decode(&m.raw); err != nil {
			return nil, 0, fmt.Errorf("line %d: not JSON: %w", lineAt(data, int(dec.InputOffset())), err)
		}
		m.end = int(dec.InputOffset())
		m.start = m.end - len(m.raw)
		if m.start < 0 || !bytes.Equal(data[m.start:m.end], m.raw) {
			return nil, 0, fmt.Errorf("cannot find the value of %q in the JSON text", key)
		}
		members = append(members, m)
	}
	if _, err := dec.Token(); err != nil {
		return nil, 0, fmt.Errorf("line %d: not JSON: %w", lineAt(data, int(dec.InputOffset())), err)
	}
	closing = int(dec.InputOffset()) - 1
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, 0, errors.New("there is more than one JSON value in the file")
	}
	return members, closing, nil
}

func jsonEntries(data []byte) ([]entry, error) {
	members, _, err := jsonMembers(data)
	if err != nil {
		return nil, err
	}
	entries := make([]entry, 0, len(members))
	for _, m := range members {
		e := entry{key: m.key, line: lineAt(data, m.start)}
		switch c := m.raw[0]; c {
		case '{', '[':
		case '"':
			if err := json.Unmarshal(m.raw, &e.value); err != nil {
				return nil, fmt.Errorf("line %d: %w", e.line, err)
			}
			e.plain = true
		case 'n':
			e.null = true
		default:
			e.value, e.plain = string(m.raw), true
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// jsonSet replaces the value of a top-level key, or adds the key behind the
// last one.
func jsonSet(data []byte, key, literal string) ([]byte, error) {
	before, closing, err := jsonMembers(data)
	if err != nil {
		return nil, err
	}
	at := -1
	for i, m := range before {
		if m.key == key {
			at = i
		}
	}
	var out []byte
	if at >= 0 {
		m := before[at]
		out = splice(data, m.start, m.end, literal)
	} else {
		word := strconv.Quote(key) + ": " + literal
		where := closing
		if len(before) > 0 {
			last := before[len(before)-1]
			where = last.end
			word = "," + jsonGap(data, before) + word
		}
		out = splice(data, where, where, word)
		at = len(before)
		before = append(before, member{key: key})
	}
	after, _, err := jsonMembers(out)
	if err != nil || len(after) != len(before) {
		return nil, fmt.Errorf("cannot change %s safely in the JSON text", key)
	}
	for i := range after {
		want := string(before[i].raw)
		if i == at {
			want = literal
		}
		if after[i].key != before[i].key || string(after[i].raw) != want {
			return nil, fmt.Errorf("cannot change %s safely in the JSON text", key)
		}
	}
	return out, nil
}

// jsonGap returns the white space that stands before the last key, so that an
// added one looks like the others.
func jsonGap(data []byte, members []member) string {
	last := members[len(members)-1]
	from := bytes.IndexByte(data, '{') + 1
	if len(members) > 1 {
		from = members[len(members)-2].end
		from += bytes.IndexByte(data[from:last.start], ',') + 1
	}
	quote := bytes.IndexByte(data[from:last.start], '"')
	if quote < 0 {
		return " "
	}
	gap := string(data[from : from+quote])
	if len(members) == 1 && gap == "" {
		return " "
	}
	return gap
}

func jsonLiteral(value, kind string) string {
	if b, ok := parseBool(value); ok && kind == "bool" {
		return strconv.FormatBool(b)
	}
	if kind == "int" || kind == "float" || value == "null" {
		return value
	}
	b, err := json.Marshal(value)
	if err != nil {
		return strconv.Quote(value)
	}
	return string(b)
}

func splice(data []byte, from, to int, with string) []byte {
	out := make([]byte, 0, len(data)-(to-from)+len(with))
	out = append(out, data[:from]...)
	out = append(out, with...)
	return append(out, data[to:]...)
}
