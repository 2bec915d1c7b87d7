package trainer

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// maxConfig bounds a config file that is read into memory.
const maxConfig = 4 << 20

// entry is one setting of a config file.
type entry struct {
	key, value string
	line       int
	// plain is false for lists, maps and null: the first two are there but not
	// turned, null is as good as absent.
	plain, null bool
}

// document is a trainer's config file. It is only ever read; set returns a
// changed copy.
type document struct {
	// typed is the path in argv; path is absolute.
	typed, path string
	// at is the index in argv of the word that names it.
	at      int
	form    configForm
	data    []byte
	entries []entry
	json    bool
}

// openDocument reads a config file's settings.
func openDocument(typed, dir string, at int, form configForm) (*document, error) {
	d := &document{typed: typed, path: absolute(dir, typed), at: at, form: form}
	info, err := os.Stat(d.path)
	if err != nil {
		return d, fmt.Errorf("reading %s: %w", typed, err)
	}
	if !info.Mode().IsRegular() {
		return d, fmt.Errorf("%s is not a regular file", typed)
	}
	if info.Size() > maxConfig {
		return d, fmt.Errorf("%s is too large for a config file (%d bytes)", typed, info.Size())
	}
	if d.data, err = os.ReadFile(d.path); err != nil {
		return d, fmt.Errorf("reading %s: %w", typed, err)
	}
	d.json = filepath.Ext(d.path) == ".json"
	if d.json {
		d.entries, err = jsonEntries(d.data)
	} else {
		d.entries, err = yamlEntries(d.data)
	}
	if err != nil {
		return d, fmt.Errorf("%s: %w", typed, err)
	}
	return d, nil
}

// get returns the entry that holds for key: the last one.
func (d *document) get(key string) (entry, bool) {
	for i := len(d.entries) - 1; i >= 0; i-- {
		if d.entries[i].key == key {
			return d.entries[i], true
		}
	}
	return entry{}, false
}

// set returns data with key at value. Every byte but the value's stays, and the
// result is read again to prove that nothing else changed its meaning.
func (d *document) set(data []byte, key, value, kind string) ([]byte, error) {
	if d.json {
		return jsonSet(data, key, jsonLiteral(value, kind))
	}
	return yamlSet(data, key, yamlLiteral(value, kind))
}

// lineAt counts the lines up to a byte offset, from 1.
func lineAt(data []byte, offset int) int {
	return 1 + bytes.Count(data[:offset], []byte("\n"))
}

// refersToNeighbours names the first value of the file that is a path relative
// to its folder: such a file cannot move.
func (d *document) refersToNeighbours() string {
	folder := filepath.Dir(d.path)
	for _, e := range d.entries {
		switch e.key {
		case "base", "_base_", "defaults", "include", "includes", "extends":
			return e.key
		}
		if e.value == "" || filepath.IsAbs(e.value) || strings.ContainsAny(e.value, "\n\x00") || len(e.value) > 1024 {
			continue
		}
		if strings.HasPrefix(e.value, "./") || strings.HasPrefix(e.value, "../") {
			return e.key
		}
		if _, err := os.Lstat(filepath.Join(folder, e.value)); err == nil && e.plain {
			return e.key
		}
	}
	return ""
}
