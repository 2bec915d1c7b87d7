package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
)

// Two runs that save in one folder take each other's checkpoints for their own. So every
// run marks its output folder, in our state folder and not in the user's: a folder for
// the output folder's device and inode, in it a locked file for each run.

// marks are the locks that a run holds.
type marks struct {
	mu   sync.Mutex
	held map[string]*os.File // by path
	// with names who else saves in a folder, by its name in the command.
	with map[string]string
}

// markOutput marks the output folder of an attempt, and tells if another run saves there.
// It is called before the attempt starts and again when it is over: the other one may
// have come later.
func (r *run) markOutput(a *attempt) {
	j := r.job
	if a.knobs != nil {
		j.Knobs = a.knobs
	}
	out := j.Knobs[job.OutputDir].Value
	if out == "" {
		return
	}
	path, ok := r.onHost(out)
	if !ok || r.userWorksIn(path) {
		return
	}
	dir, err := r.markFolder(path)
	if err != nil {
		r.diag.Debug("the output folder is not marked", "err", err)
		return
	}
	r.marks.mu.Lock()
	mine := filepath.Join(dir, r.dir.ID)
	if r.marks.held[mine] == nil {
		if f := lockNew(mine); f != nil {
			if r.marks.held == nil {
				r.marks.held = map[string]*os.File{}
			}
			r.marks.held[mine] = f
		}
	}
	r.marks.mu.Unlock()
	if other := otherMark(dir, r.dir.ID); other != "" {
		r.share(a, out, "run "+other)
	}
}

// share notes, once, that somebody else saves in an output folder.
func (r *run) share(a *attempt, out, who string) {
	r.marks.mu.Lock()
	defer r.marks.mu.Unlock()
	if r.marks.with[out] != "" {
		return
	}
	if r.marks.with == nil {
		r.marks.with = map[string]string{}
	}
	r.marks.with[out] = who
	r.log.Event(event.Event{
		Attempt: a.n, Kind: event.Checkpoint, Level: event.Warn,
		Msg: fmt.Sprintf("%s saves in %s too: whose a checkpoint there is cannot be told, so a retry takes up none of them and saves in a folder of its own", who, out),
	})
}

// lockNew makes and locks a mark; nil where that cannot be done.
func lockNew(path string) *os.File {
	for range 5 {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil
		}
		locked := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
		mine, err1 := f.Stat()
		named, err2 := os.Stat(path)
		if locked && err1 == nil && err2 == nil && os.SameFile(mine, named) {
			return f
		}
		f.Close() // somebody took it for one that was left, just before it was locked
	}
	return nil
}

// markFolder is the folder of the marks of an output folder, which is known by the folder
// above it and its name there: it may not have been made yet. Of what is missing above
// it too, the names count.
func (r *run) markFolder(path string) (string, error) {
	path = real(path)
	name, up := filepath.Base(path), filepath.Dir(path)
	for {
		st, err := statOf(up, true)
		if err == nil {
			dir := filepath.Join(r.stateDir(), "outputs", fmt.Sprintf("%d-%d-%s", st.id.dev, st.id.ino, strings.ReplaceAll(name, "/", "_")))
			return dir, os.MkdirAll(dir, 0o700)
		}
		if !errors.Is(err, fs.ErrNotExist) || up == "/" {
			return "", err
		}
		name, up = filepath.Base(up)+"/"+name, filepath.Dir(up)
	}
}

// otherMark names a run other than id that holds a mark; marks that nobody holds are
// removed.
func otherMark(dir, id string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if e.Name() == id {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		locked := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if locked == nil {
			_ = os.Remove(path)
		}
		f.Close()
		if locked != nil {
			return e.Name()
		}
	}
	return ""
}

// sharedWith names who else saves in an output folder; "" for nobody.
func (r *run) sharedWith(out string) string {
	r.marks.mu.Lock()
	defer r.marks.mu.Unlock()
	return r.marks.with[out]
}

// unmark gives the marks back.
func (r *run) unmark() {
	r.marks.mu.Lock()
	defer r.marks.mu.Unlock()
	for path, f := range r.marks.held {
		_ = os.Remove(path)
		_ = os.Remove(filepath.Dir(path)) // where it was the last one
		f.Close()
	}
	r.marks.held = nil
}
