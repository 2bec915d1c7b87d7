package checkpoint

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/regular"
)

const (
	// maxNames bounds what is read of one folder; an output folder has hundreds.
	maxNames = 50000
	// maxState bounds the state files that are read whole; a trainer_state.json of
	// a long run with a step a line has some tens of MB.
	maxState = 256 << 20
	// maxText bounds the JSON files that are parsed whole; of larger ones (the
	// tokenizer's) only both ends are looked at.
	maxText = 2 << 20
)

// entry is one name in a folder, links followed.
type entry struct {
	name string
	path string
	dir  bool
	link bool
	info fs.FileInfo // nil if it cannot be looked at
}

// size is 0 where it is not known.
func (e entry) size() int64 {
	if e.info == nil {
		return 0
	}
	return e.info.Size()
}

// readDir returns what keep lets through of a folder, in no order. Names that no
// longer are there when they are looked at come back without info.
func readDir(dir string, keep func(name string) bool) ([]entry, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s is no folder", dir)
	}
	var out []entry
	for seen := 0; seen < maxNames; {
		list, err := f.ReadDir(1024)
		seen += len(list)
		for _, d := range list {
			if keep != nil && !keep(d.Name()) {
				continue
			}
			e := entry{name: d.Name(), path: filepath.Join(dir, d.Name()), link: d.Type()&fs.ModeSymlink != 0}
			if info, err := os.Stat(e.path); err == nil {
				e.info, e.dir = info, info.IsDir()
			}
			out = append(out, e)
		}
		if errors.Is(err, io.EOF) || len(list) == 0 {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("reading %s: %w", dir, err)
		}
	}
	return out, nil
}

// glance returns the names in a folder, at most budget of them, which it lowers.
// Only links are looked at more closely, so that a folder of a million files, such
// as the one somebody works in, costs little.
func glance(dir string, budget *int) []entry {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		return nil
	}
	var out []entry
	for *budget > 0 {
		list, err := f.ReadDir(min(1024, *budget))
		*budget -= len(list)
		for _, d := range list {
			e := entry{name: d.Name(), path: filepath.Join(dir, d.Name()), link: d.Type()&fs.ModeSymlink != 0, dir: d.IsDir()}
			if e.link {
				if info, err := os.Stat(e.path); err == nil {
					e.dir = info.IsDir()
				}
			}
			out = append(out, e)
		}
		if err != nil || len(list) == 0 {
			break
		}
	}
	return out
}

// openFile opens a regular file.
func openFile(path string) (*os.File, int64, error) {
	f, info, err := regular.Open(path)
	switch {
	case errors.Is(err, regular.ErrNot), errors.Is(err, syscall.EISDIR):
		return nil, 0, errors.New("it is no regular file")
	case err != nil:
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// readSmall reads a whole regular file that is not larger than most.
func readSmall(path string, most int64) ([]byte, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > most {
		return nil, fmt.Errorf("it has %d bytes, more than such a file has", size)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// nonFinite matches the bare words that Python's json writes for numbers that
// JSON does not have, where a value stands.
var nonFinite = lazyre.New(`([:,\[]\s*)(?:NaN|-?Infinity)(\s*[,\]}])`)

// lenient makes Python's JSON strict: a NaN in the loss history must not make a
// good checkpoint a broken one.
func lenient(data []byte) []byte {
	if !bytes.Contains(data, []byte("NaN")) && !bytes.Contains(data, []byte("Infinity")) {
		return data
	}
	// Twice, since two neighbours share a comma.
	data = nonFinite.ReplaceAll(data, []byte("${1}null${2}"))
	return nonFinite.ReplaceAll(data, []byte("${1}null${2}"))
}

// readJSON reads a state file into v. The error is a clause for Why.
func readJSON(path string, v any) error {
	name := filepath.Base(path)
	data, err := readSmall(path, maxState)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is missing: %w", name, err)
	case err != nil:
		return fmt.Errorf("%s cannot be read: %w", name, err)
	case len(data) == 0:
		return fmt.Errorf("%s is empty", name)
	}
	if err := json.Unmarshal(lenient(data), v); err != nil {
		return fmt.Errorf("%s is torn or no JSON of the expected kind", name)
	}
	return nil
}

// jsonFile returns what is wrong with a JSON file, "" if nothing is.
func jsonFile(path string) string {
	name := filepath.Base(path)
	f, size, err := openFile(path)
	if err != nil {
		return name + " cannot be read: " + reason(err)
	}
	defer f.Close()
	if size > maxText {
		return bothEnds(f, size, name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxText))
	if err != nil {
		return name + " cannot be read: " + reason(err)
	}
	if !json.Valid(lenient(data)) {
		return name + " is torn"
	}
	return ""
}

// bothEnds says whether a large JSON text begins and ends as one.
func bothEnds(f io.ReaderAt, size int64, name string) string {
	head, tail := make([]byte, 64), make([]byte, 64)
	if _, err := f.ReadAt(head, 0); err != nil {
		return name + " cannot be read: " + reason(err)
	}
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil {
		return name + " cannot be read: " + reason(err)
	}
	head, tail = bytes.TrimSpace(head), bytes.TrimSpace(tail)
	if len(head) == 0 || len(tail) == 0 {
		return name + " is torn"
	}
	switch first, last := head[0], tail[len(tail)-1]; {
	case first == '{' && last == '}', first == '[' && last == ']':
		return ""
	}
	return name + " is torn"
}

// reason takes the path out of an error: it stands beside it already.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// pointer reads the one word of a small text file, such as the step that
// latest_checkpointed_iteration.txt names.
func pointer(path string) (word string, t time.Time, err error) {
	f, size, err := openFile(path)
	if err != nil {
		return "", t, err
	}
	defer f.Close()
	if size > 4096 {
		return "", t, fmt.Errorf("%s is too large to name a checkpoint", filepath.Base(path))
	}
	if info, err := f.Stat(); err == nil {
		t = info.ModTime()
	}
	s := bufio.NewScanner(io.LimitReader(f, 4096))
	s.Split(bufio.ScanWords)
	if s.Scan() {
		return s.Text(), t, nil
	}
	return "", t, fmt.Errorf("%s is empty", filepath.Base(path))
}
