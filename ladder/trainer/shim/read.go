package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/regular"
)

// Bounds of what is read of one attempt. The training can write into the record
// folder whatever it likes.
const (
	maxRecordFile = 1 << 20
	maxRecords    = 1024
	maxNamed      = 20
	maxEntries    = 2000 // of each kind, over all processes
	maxText       = 4096 // bytes of one text
)

// loadedFile is left by the first Python process that loads the shim.
const loadedFile = "loaded"

var (
	recordName = lazyre.New(`^[0-9]{1,10}-[0-9]{1,20}(-[0-9a-f]{8})?\.json$`)
	knobName   = lazyre.New(`^[a-z][a-z0-9_]{0,63}$`)
)

// written is one process's file, as configs/shim/sparkrun_shim/record.py writes it.
type written struct {
	Process
	Seen       []Seen      `json:"seen"`
	Exceptions []Exception `json:"exceptions"`
	Trouble    []string    `json:"trouble"`
}

// Read merges the record files of an attempt. An attempt in which no process has
// loaded the shim gives a Record with Loaded false and no error; a file that
// cannot be read or understood is named in Skipped.
func Read(attemptDir string) (Record, error) {
	rec := Record{Schema: RecordSchema}
	dir := filepath.Join(attemptDir, RecordDir)
	names, err := list(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil
	}
	if err != nil {
		return rec, fmt.Errorf("the shim's records: %w", err)
	}
	var files []written
	skipped := 0
	skip := func(name string, why any) {
		if skipped++; skipped <= maxNamed {
			rec.Skipped = append(rec.Skipped, fmt.Sprintf("%s: %v", name, why))
		}
	}
	for _, name := range names {
		switch {
		case name == loadedFile:
			rec.Loaded = true
		case !recordName.MatchString(name):
			// Half-written ones (.tmp) of a process that was killed have an older
			// whole one beside them.
		case len(files) == maxRecords:
			skip(name, fmt.Sprintf("more than %d records", maxRecords))
		default:
			w, err := readFile(filepath.Join(dir, name))
			if err != nil {
				skip(name, err)
				continue
			}
			files = append(files, w)
		}
	}
	if skipped > maxNamed {
		rec.Skipped = append(rec.Skipped, fmt.Sprintf("and %d more", skipped-maxNamed))
	}
	rec.Loaded = rec.Loaded || len(files) > 0
	rec.merge(files)
	return rec, nil
}

// list returns the names in a folder, sorted, and no more than a hostile one may
// cost.
func list(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(16 * maxRecords)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

func readFile(path string) (written, error) {
	var w written
	// A link could lead anywhere, and a pipe would never end.
	f, info, err := regular.OpenHere(path)
	switch {
	case errors.Is(err, regular.ErrNot), errors.Is(err, unix.EISDIR):
		return w, errors.New("not a regular file")
	case err != nil:
		return w, errors.Unwrap(err)
	}
	defer f.Close()
	switch {
	case info.Size() > maxRecordFile:
		return w, fmt.Errorf("%d bytes, more than %d", info.Size(), maxRecordFile)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecordFile+1))
	if err != nil {
		return w, err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return w, errors.New("empty")
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return w, fmt.Errorf("not a record: %w", err)
	}
	return w, nil
}

// merge puts the records of all processes together.
func (r *Record) merge(files []written) {
	slices.SortStableFunc(files, func(a, b written) int {
		if a.Start != b.Start {
			return int(min(max(a.Start-b.Start, -1), 1))
		}
		return a.PID - b.PID
	})
	seen, trouble := map[Seen]bool{}, map[string]bool{}
	for _, w := range files {
		r.Processes = append(r.Processes, w.clean())
		for _, s := range w.Seen {
			s.Where, s.Before, s.After, s.Why = short(s.Where), short(s.Before), short(s.After), short(s.Why)
			if !seen[s] && knobName.MatchString(string(s.Knob)) && len(r.Seen) < maxEntries {
				seen[s] = true
				r.Seen = append(r.Seen, s)
			}
		}
		for _, t := range w.Trouble {
			if t = short(t); !trouble[t] && t != "" && len(r.Trouble) < maxEntries {
				trouble[t] = true
				r.Trouble = append(r.Trouble, t)
			}
		}
		for _, e := range w.Exceptions {
			if len(r.Exceptions) < maxEntries {
				r.Exceptions = append(r.Exceptions, e.clean(w.Process))
			}
		}
	}
	slices.SortStableFunc(r.Exceptions, func(a, b Exception) int { return a.Time.Compare(b.Time) })
	for i := range r.Exceptions {
		if r.Exceptions[i].Thread == "" {
			e := r.Exceptions[i]
			r.Exception = &e
			break
		}
	}
}

func (w written) clean() Process {
	p := w.Process
	p.Python, p.Rank = short(p.Python), short(p.Rank)
	p.Argv = shorts(p.Argv, 200)
	libraries := map[string]string{}
	for name, version := range p.Libraries {
		if len(libraries) < 64 {
			libraries[short(name)] = short(version)
		}
	}
	p.Libraries = libraries
	return p
}

func (e Exception) clean(p Process) Exception {
	e.PID, e.Rank = p.PID, short(p.Rank)
	e.Type, e.Message, e.Thread = short(e.Type), short(e.Message), short(e.Thread)
	e.Frames = shorts(e.Frames, 32)
	e.Time = e.Time.Round(time.Millisecond)
	memory := map[string]int64{}
	for name, n := range e.Memory {
		if knobName.MatchString(name) && n >= 0 && len(memory) < 64 {
			memory[name] = n
		}
	}
	e.Memory = memory
	return e
}

func shorts(texts []string, most int) []string {
	out := make([]string, 0, min(len(texts), most))
	for _, t := range texts[:min(len(texts), most)] {
		out = append(out, short(t))
	}
	return out
}

// short bounds a text that the training's own processes wrote.
func short(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "")
}
