// Package edit reads the configuration files of trainers (YAML, JSON, TOML and the
// .args files of Hugging Face) and makes one exact change in a copy of the text.
//
// A change is a splice: comments, order, quotes, line ends and every other byte stay.
// The result is parsed again as a whole and compared with the original; unless it
// differs in exactly the one setting, the change is refused with the reason. Nothing
// here opens a file of the user's for writing.
package edit

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// MaxSize bounds a configuration file, in bytes. The largest in use have a few
// thousand lines; a data file given by mistake must not fill the memory.
const MaxSize = 4 << 20

// Kind is what stands at a path.
type Kind int

// The kinds of a value.
const (
	// Scalar is one word, number, truth value or text.
	Scalar Kind = iota
	// Null is a key without a value, or with null or ~.
	Null
	// List is a sequence of values.
	List
	// Map is a mapping of keys to values.
	Map
)

func (k Kind) String() string {
	switch k {
	case Scalar:
		return "a value"
	case Null:
		return "null"
	case List:
		return "a list"
	}
	return "a mapping"
}

// Entry is one setting of a document.
type Entry struct {
	// Path leads from the top to the value: keys with dots between them, list items
	// as [0]. config.process[0].train.batch_size
	Path string
	// Value is the scalar as it is written, without its quotes; empty for the other
	// kinds. Numbers and truth values are not normalised.
	Value string
	// Line counts from 1.
	Line int
	Kind Kind
	// Shared is set where the value is the same text as another setting's, through an
	// anchor, an alias or a merge key: changing it in place would change both.
	Shared bool
}

// Doc is a parsed configuration file. It is never changed: Set and Remove return
// another one.
type Doc struct {
	name string
	data []byte
	f    format
	root *node
}

// format is what one file format knows how to do. The candidates that it returns are
// whole texts; the first that turns out to be exactly the change is taken.
type format interface {
	parse(data []byte) (*node, error)
	// spell writes a value so that every reader of the format takes it for one of
	// that kind. old is what stands there now, nil for a key that is added.
	spell(value, kind string, old *node) (literal string, leaf *node, err error)
	replace(d *Doc, at trail, literal string) ([][]byte, error)
	// add writes keys below the mapping at the end of the trail, the last one with
	// the literal, the others as its parents.
	add(d *Doc, at trail, keys []string, literal string) ([][]byte, error)
	remove(d *Doc, at trail) ([][]byte, error)
}

// Parse reads a document. The format follows from the extension of name, which is a
// path: .yaml .yml .json .toml .args. Errors name the line.
func Parse(name string, data []byte) (*Doc, error) {
	f := formatOf(name)
	if f == nil {
		return nil, fmt.Errorf("%s: not a configuration file that can be read (YAML, JSON, TOML or .args)", filepath.Base(name))
	}
	if len(data) > MaxSize {
		return nil, fmt.Errorf("too large for a configuration file (%d bytes, at most %d)", len(data), MaxSize)
	}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("line %d: not UTF-8", lineAt(data, firstInvalid(data)))
	}
	root, err := read(f, data)
	if err != nil {
		return nil, err
	}
	return &Doc{name: name, data: bytes.Clone(data), f: f, root: root}, nil
}

// read parses. The YAML parser has been known to panic on hostile text: that is an
// error as any other.
func read(f format, data []byte) (root *node, err error) {
	defer func() {
		if p := recover(); p != nil {
			root, err = nil, fmt.Errorf("the file cannot be read: %v", p)
		}
	}()
	return f.parse(data)
}

// Known says whether Parse knows the extension of the name.
func Known(name string) bool { return formatOf(name) != nil }

func formatOf(name string) format {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml":
		return yamlFormat{}
	case ".json":
		return jsonFormat{}
	case ".toml":
		return tomlFormat{}
	case ".args":
		return argsFormat{}
	}
	return nil
}

// Bytes returns the text of the document.
func (d *Doc) Bytes() []byte { return bytes.Clone(d.data) }

// Get returns the setting at a path. A key that is the whole path wins over the
// dotted reading of it; of a key that stands twice the last one holds.
func (d *Doc) Get(path string) (Entry, bool) {
	at, ok := d.find(path)
	if !ok || len(at) == 0 {
		return Entry{}, false
	}
	last := at[len(at)-1].child()
	e := Entry{Path: path, Line: last.line, Kind: last.node.kind, Value: last.node.text}
	for _, s := range at {
		c := s.child()
		e.Shared = e.Shared || c.alias || c.merged || c.node.aliased
	}
	return e, true
}

// Entries returns every setting in the order of the text, mappings and lists before
// what is in them.
func (d *Doc) Entries() []Entry {
	var all []Entry
	d.root.walk("", false, func(e Entry) { all = append(all, e) })
	return all
}

// Set returns the document with the setting at path changed to value, or added with
// the parents that are missing. kind is int, float, bool, str or null; the value null
// is null in every kind. A number or truth value that was written in quotes stays in
// quotes: the trainer took it that way.
func (d *Doc) Set(path, value, kind string) (*Doc, error) {
	if value == "null" {
		kind = "null"
	}
	at, ok := d.find(path)
	if ok && len(at) > 0 {
		last := at[len(at)-1]
		if err := at.changeable(path); err != nil {
			return nil, err
		}
		old := last.child()
		if old.node.kind == List || old.node.kind == Map {
			return nil, fmt.Errorf("line %d: %s is %s, not a single value", old.line, path, old.node.kind)
		}
		literal, leaf, err := d.f.spell(value, kind, old.node)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", old.line, path, err)
		}
		var tries [][]byte
		if old.merged {
			tries, err = d.f.add(d, at[:len(at)-1], []string{old.key}, literal)
		} else {
			tries, err = d.f.replace(d, at, literal)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", old.line, path, err)
		}
		return d.prove(path, tries, at.replaced(d.root, leaf))
	}
	at, rest := d.deepest(path)
	if len(at) > 0 {
		if err := at.changeable(path); err != nil {
			return nil, err
		}
	}
	_, flat := d.f.(argsFormat)
	keys, err := at.missing(d.root, rest, flat)
	if err != nil {
		return nil, fmt.Errorf("cannot add %s: %w", path, err)
	}
	literal, leaf, err := d.f.spell(value, kind, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot add %s: %w", path, err)
	}
	tries, err := d.f.add(d, at, keys, literal)
	if err != nil {
		return nil, fmt.Errorf("cannot add %s: %w", path, err)
	}
	return d.prove(path, tries, at.added(d.root, keys, leaf))
}

// Remove returns the document without the key at path and what belongs to it.
func (d *Doc) Remove(path string) (*Doc, error) {
	at, ok := d.find(path)
	if !ok || len(at) == 0 {
		return nil, fmt.Errorf("cannot remove %s: it is not in the file", path)
	}
	last := at[len(at)-1]
	if err := at.changeable(path); err != nil {
		return nil, err
	}
	switch {
	case last.in.kind != Map:
		return nil, fmt.Errorf("line %d: cannot remove %s: only a key of a mapping can be taken out", last.child().line, path)
	case last.child().merged:
		return nil, fmt.Errorf("line %d: cannot remove %s: it comes through a merge key", last.child().line, path)
	}
	tries, err := d.f.remove(d, at)
	if err != nil {
		return nil, fmt.Errorf("line %d: cannot remove %s: %w", last.child().line, path, err)
	}
	return d.prove(path, tries, at.removed(d.root))
}

// prove takes the first text that reads as want, which differs from the document in
// the one change only.
func (d *Doc) prove(path string, tries [][]byte, want *node) (*Doc, error) {
	var why error
	for _, data := range tries {
		after, err := Parse(d.name, data)
		if err != nil {
			why = errors.Join(why, fmt.Errorf("the text would no longer be read: %w", err))
			continue
		}
		where, same := difference(want, after.root)
		if same {
			return after, nil
		}
		if where == "" {
			where = "the whole file"
		}
		if where == path {
			why = errors.Join(why, errors.New("it would not be read as the value that was asked for"))
		} else {
			why = errors.Join(why, fmt.Errorf("%s would change with it", where))
		}
	}
	if why == nil {
		why = errors.New("no place in the text was found for it")
	}
	return nil, fmt.Errorf("cannot change %s alone: %w", path, firstOf(why))
}

// firstOf returns the first of joined errors: a candidate that comes later is a
// last resort, and what is wrong with it says less.
func firstOf(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok && len(j.Unwrap()) > 0 {
		return firstOf(j.Unwrap()[0])
	}
	return err
}
