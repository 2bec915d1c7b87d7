package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"sparkrun/configs"
	"sparkrun/internal/event"
	"sparkrun/internal/lazyre"
	"sparkrun/supervisor/runlog"
)

// What a run makes among the user's files (a changed copy of a config file, a copy of a
// checkpoint) is taken away again, but nothing else: a training may save in the very
// folder that it was told to go on from. So every name that was made is remembered, and
// only a name that is still what was made is removed, one by one. What is left then is
// somebody's work, and is kept under a name that can be seen.

// madeName is one name of ours, as it was made.
type madeName struct {
	// Rel is its path below the top, "." for the top itself.
	Rel  string      `json:"rel"`
	Mode fs.FileMode `json:"mode"` // type bits only
	Dev  uint64      `json:"dev"`
	Ino  uint64      `json:"ino"`
	Size int64       `json:"size"`
	// MTime is in nanoseconds since 1970.
	MTime int64 `json:"mtime_ns"`
}

// made is a file or folder of ours with all that lay in it when it was ready.
type made struct {
	Top   string     `json:"top"`
	Names []madeName `json:"names"`
}

// madeFile is RUN/made.json, by which a later run knows what one that was killed has left.
type madeFile struct {
	Schema string `json:"schema"`
	Made   []made `json:"made"`
}

const (
	madeSchema = "sparkrun.made/1"
	madeRecord = "made.json"
	// madeMost bounds the names of one copy.
	madeMost = 20000
)

// madeList is what a run has made.
type madeList struct {
	mu  sync.Mutex
	all []made
}

// identity says what a name stands for.
func identity(rel string, info fs.FileInfo, path string) (madeName, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return madeName{}, err
	}
	n := madeName{Rel: rel, Mode: info.Mode().Type(), Dev: st.Dev, Ino: st.Ino, MTime: info.ModTime().UnixNano()}
	if info.Mode().IsRegular() {
		n.Size = info.Size()
	}
	return n, nil
}

// listMade lists a file or folder that has just been made.
func listMade(top string) (made, error) {
	m := made{Top: top}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if len(m.Names) == madeMost {
			return fmt.Errorf("%s has more than %d names", top, madeMost)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		n, err := identity(rel, info, path)
		m.Names = append(m.Names, n)
		return err
	})
	return m, err
}

// noteMade remembers what was made, here and in the run folder.
func (r *run) noteMade(tops ...string) {
	if len(tops) == 0 {
		return
	}
	r.made.mu.Lock()
	defer r.made.mu.Unlock()
	for _, top := range tops {
		m, err := listMade(top)
		if err != nil {
			r.log.Event(event.Event{Kind: event.Hygiene, Level: event.Warn, Msg: "what was made cannot be listed, so it stays: " + err.Error()})
			continue
		}
		r.made.all = append(slices.DeleteFunc(slices.Clone(r.made.all), func(old made) bool { return old.Top == top }), m)
	}
	b, err := json.Marshal(madeFile{Schema: madeSchema, Made: r.made.all})
	if err == nil {
		err = runlog.WriteFile(r.dir.File(madeRecord), b)
	}
	if err != nil {
		r.log.Event(event.Event{Kind: event.Internal, Level: event.Warn, Msg: "what was made is not noted on disk: a copy would be left if sparkrun were killed: " + err.Error()})
	}
}

// readMade reads what a run has made, none where it has noted nothing.
func readMade(runDir string) []made {
	b, err := configs.ReadFile(filepath.Join(runDir, madeRecord))
	if err != nil {
		return nil
	}
	var f madeFile
	if json.Unmarshal(b, &f) != nil || f.Schema != madeSchema {
		return nil
	}
	return f.Made
}

// remove takes away what is as it was made, at the place where it lies now. It returns
// where something is kept that was not, "" where nothing was.
func (m made) remove(top string) (kept string, err error) {
	for _, n := range slices.Backward(m.Names) { // what is inside comes behind its folder
		path := filepath.Join(top, n.Rel)
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		now, err := identity(n.Rel, info, path)
		if err != nil || now.Mode != n.Mode || now.Dev != n.Dev || now.Ino != n.Ino {
			continue
		}
		if !info.IsDir() && (now.Size != n.Size || now.MTime != n.MTime) && !otherName(path) {
			continue
		}
		if info.IsDir() {
			_ = unix.Rmdir(path) // one that is not empty stays
			continue
		}
		_ = unix.Unlink(path)
	}
	if _, err := os.Lstat(top); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return show(top)
}

// otherName says whether a regular file has another name, under which it stays.
func otherName(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1
}

// show gives what is left of a copy a name that can be seen.
func show(top string) (string, error) {
	name := filepath.Base(top)
	if m := leftover.FindStringSubmatch(name); m != nil {
		name = fmt.Sprintf("attempt-%s-%s-%s", m[2], m[1][len(m[1])-4:], name[len(m[0]):])
	}
	for i := range 100 {
		to := filepath.Join(filepath.Dir(top), name)
		if i > 0 {
			to += fmt.Sprintf("-%d", i+1)
		}
		err := renameNew(top, to)
		if err == nil {
			return to, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return top, fmt.Errorf("%s has something in it that is not ours, and keeps its hidden name: %w", top, err)
		}
	}
	return top, nil
}

// renameNew renames only to a name that is free.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		// A file system without it, such as NFS.
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrExist}
		}
		return os.Rename(from, to)
	}
	return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
}

// removeOurs takes away what the run has made among the user's files, and the output
// folders that no attempt has used.
func (r *run) removeOurs() {
	r.made.mu.Lock()
	all, claimed := r.made.all, r.claimed
	r.made.mu.Unlock()
	for _, m := range all {
		kept, err := m.remove(m.Top)
		if err != nil {
			r.log.Event(event.Event{Kind: event.Hygiene, Level: event.Warn, Msg: err.Error()})
		} else if kept != "" {
			r.log.Event(event.Event{Kind: event.Hygiene, Level: event.Warn, Msg: keptWords(m.Top, kept), Data: map[string]any{"path": m.Top, "to": kept}})
		}
	}
	r.unmark()
	for _, dir := range claimed {
		_ = unix.Rmdir(dir) // one that was used is not empty
	}
}

func keptWords(top, kept string) string {
	return fmt.Sprintf("the training has written to %s, a copy of ours; what is not ours is kept as %s", filepath.Base(top), kept)
}

// leftover is the name of a changed copy of a config file or of a checkpoint, with its
// run's ID and attempt.
var leftover = lazyre.New(`^\.sparkrun-(\d{8}-\d{6}-[a-z0-9-]+-[0-9a-f]{4})-a(\d+)-`)
