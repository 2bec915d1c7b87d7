package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"sparkrun/configs"
	"sparkrun/internal/lazyre"
)

// indexSchema is the schema of an index entry.
const indexSchema = "sparkrun.index/1"

// Entry is one run as the index knows it: where it lies, not what it did.
type Entry struct {
	ID   string
	Name string
	Path string
	// Start is the run's start, in its own zone where the index knows it.
	Start time.Time
}

type indexJSON struct {
	Schema string    `json:"schema"`
	ID     string    `json:"id"`
	Name   string    `json:"name"`
	Path   string    `json:"path"`
	Start  time.Time `json:"start"`
}

func (p Places) indexDir() string { return filepath.Join(p.State(), "runs") }

// writeIndex notes a run in the index: one small file per run, so that no lock
// is needed.
func writeIndex(p Places, d *Dir, now time.Time) error {
	dir := p.indexDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data, err := encodeJSON(indexJSON{Schema: indexSchema, ID: d.ID, Name: nameOf(d.ID), Path: d.Path, Start: now}, "")
	if err != nil {
		return err
	}
	// Not synced: the index can be made again from the folders, and the sync
	// would hold up every start.
	f, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, d.ID+".json"))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// Runs lists every run that can be found, newest first: those of the index whose
// folder is there, and those in the runs folders of the working directory, of
// SPARKRUN_RUNS_DIR and of the state folder. A torn or foreign file is passed
// over.
func Runs(p Places) []Entry {
	byPath := map[string]Entry{}
	files, _ := os.ReadDir(p.indexDir())
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".") || filepath.Ext(f.Name()) != ".json" {
			continue
		}
		data, err := configs.ReadFile(filepath.Join(p.indexDir(), f.Name()))
		if err != nil {
			continue
		}
		var e indexJSON
		if json.Unmarshal(data, &e) != nil || e.ID == "" || !isDir(e.Path) {
			continue
		}
		byPath[e.Path] = Entry{ID: e.ID, Name: e.Name, Path: e.Path, Start: e.Start}
	}
	for _, folder := range p.runsFolders() {
		for _, e := range runsIn(folder) {
			if _, known := byPath[e.Path]; !known {
				byPath[e.Path] = e
			}
		}
	}
	list := make([]Entry, 0, len(byPath))
	for _, e := range byPath {
		list = append(list, e)
	}
	sort.Slice(list, func(i, j int) bool {
		if !list[i].Start.Equal(list[j].Start) {
			return list[i].Start.After(list[j].Start)
		}
		if list[i].ID != list[j].ID {
			return list[i].ID > list[j].ID
		}
		return list[i].Path < list[j].Path
	})
	return list
}

func (p Places) runsFolders() []string {
	var folders []string
	if dir := p.env("SPARKRUN_RUNS_DIR"); dir != "" {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(p.Cwd, dir)
		}
		folders = append(folders, dir)
	}
	if p.Cwd != "" {
		folders = append(folders, filepath.Join(p.Cwd, RunsFolder))
	}
	return append(folders, filepath.Join(p.State(), RunsFolder))
}

func runsIn(folder string) []Entry {
	files, _ := os.ReadDir(folder)
	var list []Entry
	for _, f := range files {
		m := idShape.FindStringSubmatch(f.Name())
		if m == nil || !f.IsDir() {
			continue
		}
		start, err := time.ParseInLocation(idTimeLayout, m[1], time.Local)
		if err != nil {
			continue
		}
		list = append(list, Entry{ID: f.Name(), Name: m[2], Path: filepath.Join(folder, f.Name()), Start: start})
	}
	return list
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// ErrNoRun is in the error of Resolve when nothing matches.
var ErrNoRun = errors.New("no such run")

// AmbiguousError is the error of Resolve when more than one run matches.
type AmbiguousError struct {
	Run        string
	Candidates []Entry // newest first
}

func (e *AmbiguousError) Error() string {
	const show = 8
	var b strings.Builder
	fmt.Fprintf(&b, "run %q is ambiguous, it could be", e.Run)
	for i, c := range e.Candidates {
		if i == show {
			fmt.Fprintf(&b, "\n  and %d more", len(e.Candidates)-show)
			break
		}
		fmt.Fprintf(&b, "\n  %s  (%s)", c.ID, c.Path)
	}
	return b.String()
}

var hexSuffix = lazyre.New(`^[0-9a-f]{4}$`)

// Resolve finds the run directory that a word on a command line means: a path, a
// full ID, an ID prefix or 4-hex suffix that fits one run only, a name (its
// newest run), or "latest". The error is an *AmbiguousError, or holds ErrNoRun.
func Resolve(p Places, run string) (string, error) {
	if run == "" {
		return "", fmt.Errorf("%w: no run was named", ErrNoRun)
	}
	if path, ok := asPath(p, run); ok {
		return path, nil
	}
	if strings.ContainsRune(run, filepath.Separator) {
		return "", fmt.Errorf("%w: %s is no run directory (it has no %s)", ErrNoRun, run, ManifestFile)
	}
	runs := Runs(p)
	if run == "latest" {
		return latest(p, runs)
	}
	var matches []Entry
	for _, e := range runs {
		if e.ID == run {
			return e.Path, nil
		}
		if strings.HasPrefix(e.ID, run) || hexSuffix.MatchString(run) && strings.HasSuffix(e.ID, "-"+run) {
			matches = append(matches, e)
		}
	}
	switch {
	case len(matches) == 1:
		return matches[0].Path, nil
	case len(matches) > 1:
		return "", &AmbiguousError{Run: run, Candidates: matches}
	}
	for _, e := range runs {
		if e.Name == run {
			return e.Path, nil
		}
	}
	if len(runs) == 0 {
		return "", fmt.Errorf("%w: %q (there are no runs yet)", ErrNoRun, run)
	}
	return "", fmt.Errorf("%w: %q (the newest is %s)", ErrNoRun, run, runs[0].ID)
}

// latest prefers the runs of the working directory, as the link there does.
func latest(p Places, runs []Entry) (string, error) {
	if p.Cwd != "" {
		here := filepath.Join(p.Cwd, RunsFolder) + string(filepath.Separator)
		for _, e := range runs {
			if strings.HasPrefix(e.Path, here) {
				return e.Path, nil
			}
		}
	}
	if len(runs) == 0 {
		return "", fmt.Errorf("%w: there are no runs yet", ErrNoRun)
	}
	return runs[0].Path, nil
}

// asPath takes run as a path where it is a folder with a manifest; a bare word
// is first of all a name, so ./train does not hide the run "train".
func asPath(p Places, run string) (string, bool) {
	path := run
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.Cwd, path)
	}
	if !isDir(path) {
		// run.json itself was named
		if filepath.Base(path) == ManifestFile {
			if _, err := os.Stat(path); err == nil {
				return filepath.Dir(path), true
			}
		}
		return "", false
	}
	if _, err := os.Stat(filepath.Join(path, ManifestFile)); errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return path, true
}
