package runlog

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/configs"
	"sparkrun/internal/lazyre"
	"sparkrun/internal/sample"
)

// How fast a job went on this machine before: one small file for each kind of job
// under the state folder, with its latest runs.

// paceSchema is the schema of such a file.
const paceSchema = "sparkrun.pace/1"

const (
	// PaceRunsKept is how many runs of one job are kept, paceJobsKept how many jobs;
	// the ones not written to for longest go first.
	PaceRunsKept = 20
	paceJobsKept = 1000
	// paceLockWait is how long somebody else who writes is waited for: a network
	// file system may never let go.
	paceLockWait = 500 * time.Millisecond
)

// PaceKey is everything that makes two runs the same job on the same machine, as
// far as pace goes: words to values. It must hold no secrets: it is written as it
// stands.
type PaceKey map[string]string

// PaceRun is how fast one run went.
type PaceRun struct {
	// ID is the run's.
	ID string    `json:"id"`
	T  time.Time `json:"t"`
	// StepTimeS is the seconds of a step, TokensPerS the rate where tokens are told.
	StepTimeS  sample.Num `json:"step_time_s"`
	TokensPerS sample.Num `json:"tokens_per_s"`
	// Steps is how many steady steps that rests on.
	Steps int `json:"steps"`
}

type paceFile struct {
	Schema string    `json:"schema"`
	Key    PaceKey   `json:"key"`
	Runs   []PaceRun `json:"runs"`
}

func (p Places) paceDir() string { return filepath.Join(p.State(), "pace") }

// name is the key's file: the same words always give the same one.
func (k PaceKey) name() string {
	// Maps are written in the order of their keys.
	text, err := json.Marshal(k)
	if err != nil { // a map of strings can be written
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]) + ".json"
}

// ErrOtherPace says that a file of pace was written by another version of
// sparkrun: it is left as it is.
var ErrOtherPace = errors.New("written by another version of sparkrun")

// PaceRuns returns the earlier runs of a job on this machine, the newest last:
// none, without an error, where there were none. An error says why a file that is
// there could not be read.
func (p Places) PaceRuns(key PaceKey) ([]PaceRun, error) {
	path := filepath.Join(p.paceDir(), key.name())
	data, err := configs.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the pace of earlier runs: %w", err)
	}
	var f paceFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("reading the pace of earlier runs: %s: %w", path, err)
	}
	if f.Schema != paceSchema {
		return nil, fmt.Errorf("reading the pace of earlier runs: %s has schema %q, this version reads %q: %w", path, f.Schema, paceSchema, ErrOtherPace)
	}
	if f.Key.name() != key.name() {
		return nil, fmt.Errorf("reading the pace of earlier runs: %s is about another job", path)
	}
	runs := f.Runs[:0]
	for _, r := range f.Runs {
		r.StepTimeS, r.TokensPerS = positive(r.StepTimeS), positive(r.TokensPerS)
		if r.StepTimeS.OK || r.TokensPerS.OK {
			runs = append(runs, r)
		}
	}
	return runs[max(0, len(runs)-PaceRunsKept):], nil
}

// positive takes what is no finite number above zero for unknown.
func positive(n sample.Num) sample.Num {
	if !n.OK || !(n.V > 0) || math.IsInf(n.V, 0) {
		return sample.Num{}
	}
	return n
}

// AddPace notes how fast a run went. The file is replaced in one step, so that a
// reader sees the old one or the new one, whole; one that cannot be read (it was
// torn) is made anew, one of another version is left and is an error. Old files of
// other jobs are removed where there are too many.
func (p Places) AddPace(key PaceKey, run PaceRun) error {
	dir := p.paceDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("noting the run's pace: %w", err)
	}
	defer lockPace(dir)()
	runs, err := p.PaceRuns(key)
	path := filepath.Join(dir, key.name())
	switch {
	case errors.Is(err, ErrOtherPace):
		return err
	case err != nil && !isRegular(path):
		return err // a folder or a pipe of that name is none of ours
	case err != nil:
		runs = nil
	}
	for i := range runs {
		if runs[i].ID == run.ID {
			runs = append(runs[:i], runs[i+1:]...)
			break
		}
	}
	run.StepTimeS, run.TokensPerS = positive(run.StepTimeS), positive(run.TokensPerS)
	runs = append(runs, run)
	runs = runs[max(0, len(runs)-PaceRunsKept):]
	data, err := encodeJSON(paceFile{Schema: paceSchema, Key: key, Runs: runs}, " ")
	if err != nil {
		return fmt.Errorf("noting the run's pace: %w", err)
	}
	if err := replaceFile(path, data, 0o600); err != nil {
		return fmt.Errorf("noting the run's pace in %s: %w", path, err)
	}
	trimPace(dir)
	return nil
}

func isRegular(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// lockPace keeps two runs that end together from losing each other's entry, as
// far as the file system has locks. It waits a moment at most: an entry that is
// lost is no harm.
func lockPace(dir string) (unlock func()) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return func() {}
	}
	for end := time.Now().Add(paceLockWait); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			return func() { _ = f.Close() }
		}
		time.Sleep(5 * time.Millisecond)
	}
}

var (
	paceName = lazyre.New(`^[0-9a-f]{32}\.json$`)
	paceTemp = lazyre.New(`^\.[0-9a-f]{32}\.json-[0-9]+$`)
)

// trimPace removes the files that were not written to for longest, where there are
// more than are kept, and what a write that was cut off has left. Files of another
// name are not ours.
func trimPace(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	type old struct {
		path string
		t    time.Time
	}
	var files []old
	for _, d := range list {
		if !d.Type().IsRegular() {
			continue
		}
		info, err := d.Info()
		if err != nil {
			continue
		}
		path := filepath.Join(dir, d.Name())
		switch {
		case paceName.MatchString(d.Name()):
			files = append(files, old{path, info.ModTime()})
		case paceTemp.MatchString(d.Name()) && time.Since(info.ModTime()) > 24*time.Hour:
			_ = os.Remove(path)
		}
	}
	if len(files) <= paceJobsKept {
		return
	}
	sort.Slice(files, func(i, j int) bool {
		if !files[i].t.Equal(files[j].t) {
			return files[i].t.Before(files[j].t)
		}
		return strings.Compare(files[i].path, files[j].path) < 0
	})
	for _, f := range files[:len(files)-paceJobsKept] {
		_ = os.Remove(f.path) // the next run tries again
	}
}
