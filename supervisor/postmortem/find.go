package postmortem

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sparkrun/internal/lazyre"
	"sparkrun/supervisor/runlog"
)

// search finds runs without an end.
type search struct {
	o    RecoverOptions
	m    machine
	done chan struct{}

	mu    sync.Mutex
	dirs  []string
	taken bool
}

// take returns what was found so far and ends the search.
func (s *search) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = true
	return s.dirs
}

func (s *search) run() {
	defer close(s.done)
	var ps processes
	seen := map[string]bool{}
	for _, dir := range candidates(s.o.Places) {
		if seen[dir] || s.o.Skip != "" && filepath.Base(dir) == s.o.Skip {
			continue
		}
		seen[dir] = true
		man := openRun(dir)
		if man == nil || man.ID == s.o.Skip || lifeOf(s.o.Places, man, dir, s.m, &ps) != dead {
			continue
		}
		s.mu.Lock()
		if !s.taken {
			s.dirs = append(s.dirs, dir)
		}
		stop := s.taken || len(s.dirs) >= recoverMost
		s.mu.Unlock()
		if stop {
			return
		}
	}
}

// runID is the shape of a run's ID; it begins with its time.
var runID = lazyre.New(`^\d{8}-\d{6}-[a-z0-9-]{1,32}-[0-9a-f]{4}$`)

// candidates are the newest run directories, from the index and from the folders
// that runs lie in: the index is written beside the run and may lack it.
func candidates(p runlog.Places) []string {
	var dirs []string
	index := filepath.Join(p.State(), "runs")
	for _, id := range newest(index, ".json") {
		b, err := readSmall(filepath.Join(index, id+".json"), 0)
		if err != nil {
			continue
		}
		var e struct {
			Path string `json:"path"`
		}
		if json.Unmarshal(b, &e) == nil && filepath.IsAbs(e.Path) {
			dirs = append(dirs, filepath.Clean(e.Path))
		}
	}
	folders := []string{filepath.Join(p.State(), runlog.RunsFolder)}
	if p.Cwd != "" {
		folders = append(folders, filepath.Join(p.Cwd, runlog.RunsFolder))
	}
	if p.Getenv != nil {
		if dir := p.Getenv("SPARKRUN_RUNS_DIR"); filepath.IsAbs(dir) {
			folders = append(folders, dir)
		} else if dir != "" && p.Cwd != "" {
			folders = append(folders, filepath.Join(p.Cwd, dir))
		}
	}
	for _, folder := range folders {
		for _, id := range newest(folder, "") {
			dirs = append(dirs, filepath.Join(folder, id))
		}
	}
	return dirs
}

// newest lists the run IDs among the names of a folder, newest first.
func newest(folder, suffix string) []string {
	d, err := os.Open(folder)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // what could be read counts
	var ids []string
	for _, n := range names {
		if id, ok := strings.CutSuffix(n, suffix); ok && runID.MatchString(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	return ids[:min(len(ids), lookAt)]
}

// stateLine is the state in run.json as runlog writes it.
var stateLine = []byte("\n  \"state\": \"")

// openRun returns the manifest of a run that has no end, nil for every other.
func openRun(dir string) *runlog.Manifest {
	b, err := readSmall(filepath.Join(dir, runlog.ManifestFile), manifestMost)
	if err != nil {
		return nil
	}
	// Most runs have an end, and that is seen without taking the file apart.
	if _, rest, ok := bytes.Cut(b, stateLine); ok {
		word, _, _ := bytes.Cut(rest, []byte{'"'})
		if runlog.State(word).Final() {
			return nil
		}
	}
	man, err := runlog.ReadManifest(dir)
	if err != nil || man.State.Final() || !runID.MatchString(man.ID) {
		return nil
	}
	return man
}
