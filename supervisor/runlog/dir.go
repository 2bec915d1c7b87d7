package runlog

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ReserveBytes is the size of the file kept in every run directory so that the
// last words (exit, verdict, run.json) can still be written on a full disk.
const ReserveBytes = 1 << 20

// LastBytes is the size of each of two further reserves, for the very last words: the
// verdict of the present attempt, and run.json. Where other writers take every freed
// byte at once, what the first one gave back is gone before the end of the run.
const LastBytes = 64 << 10

// drawMax bounds how often an ID is drawn again; 65536 suffixes a second make
// even the second draw rare.
const drawMax = 64

// Dir is one run directory.
type Dir struct {
	// Path is absolute.
	Path string
	ID   string
	// Note is a sentence to tell at the start, such as why the run lies in the
	// state folder; empty when there is nothing to tell.
	Note string

	places Places
	mu     sync.Mutex // one Save at a time
	red    *Redactor  // under mu
}

// Create makes a new run directory with everything that must be there before a
// child may start: the folder itself (0700), the two reserve files, the link
// "latest" and the index entry (both best effort).
//
// runsDir is the folder the user named for runs; it is taken as it is, and an
// error says why it cannot be. With "" runs lie in ./sparkrun-runs, or in the
// state folder where the working directory is the home folder, "/", not
// writable or not local; Note then says so. On a disk without space nothing is
// left behind.
func Create(p Places, runsDir, name string, now time.Time) (*Dir, error) {
	if runsDir != "" {
		if !filepath.IsAbs(runsDir) {
			runsDir = filepath.Join(p.Cwd, runsDir)
		}
		return create(p, runsDir, name, now)
	}

	runs := filepath.Join(p.Cwd, RunsFolder)
	why := p.unfit()
	if why == "" {
		d, err := create(p, runs, name, now)
		if err == nil {
			return d, nil
		}
		if !notWritable(err) {
			return nil, err
		}
		why = "cannot be written (" + errnoText(err) + ")"
	}
	if p.Home == "" && !filepath.IsAbs(p.env("XDG_STATE_HOME")) {
		if _, err := p.SocketDir(); err != nil {
			return nil, err
		}
	}
	fallback := filepath.Join(p.State(), RunsFolder)
	d, err := create(p, fallback, name, now)
	if err != nil {
		return nil, fmt.Errorf("%s %s, and the state folder does not take a run either: %w; name a folder with --runs-dir", cwdName(p.Cwd), why, err)
	}
	d.Note = strings.TrimSuffix(fmt.Sprintf("the run is kept in %s, because %s %s; %s", fallback, cwdName(p.Cwd), why, d.Note), "; ")
	return d, nil
}

func cwdName(cwd string) string {
	if cwd == "" {
		return "the working directory"
	}
	return cwd
}

// unfit says why runs should not lie in the working directory, or "".
func (p Places) unfit() string {
	switch {
	case p.Cwd == "":
		return "is gone"
	case filepath.Clean(p.Cwd) == "/":
		return "is the root of the machine"
	case p.Home != "" && sameFolder(p.Cwd, p.Home):
		return "is your home folder"
	}
	if local, what := p.isLocal(p.Cwd); !local {
		return "is " + what
	}
	return ""
}

func sameFolder(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	ia, errA := os.Stat(a)
	ib, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(ia, ib)
}

func notWritable(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) ||
		errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// noSpace says whether err means that the disk or the quota is used up.
func noSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func errnoText(err error) string {
	var no unix.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	return err.Error()
}

func create(p Places, runs, name string, now time.Time) (*Dir, error) {
	made, err := makeRunsFolder(runs)
	if err != nil {
		return nil, folderError(runs, err)
	}
	d := &Dir{places: p}
	for range drawMax {
		d.ID = NewID(now, name)
		d.Path = filepath.Join(runs, d.ID)
		err = os.Mkdir(d.Path, 0o700)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err == nil {
		if err = d.furnish(); err != nil {
			_ = os.RemoveAll(d.Path)
		}
	}
	if err != nil {
		if made {
			// Only goes if it is still empty.
			_ = os.Remove(filepath.Join(runs, ".gitignore"))
			_ = os.Remove(runs)
		}
		return nil, folderError(runs, err)
	}
	pointLatest(runs, d.ID)
	if err := writeIndex(p, d, now); err != nil {
		d.Note = "this run is not in the index of all runs: " + err.Error()
	}
	return d, nil
}

func folderError(runs string, err error) error {
	if at, to := danglingLink(runs); at != "" {
		return fmt.Errorf("no run directory can be made in %s: %s is a link to %s, which is not there; make that folder or remove the link", runs, at, to)
	}
	switch {
	case noSpace(err):
		return fmt.Errorf("no space left in %s, nothing was started: %w", runs, err)
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("no free run ID in %s after %d tries: %w", runs, drawMax, err)
	}
	return fmt.Errorf("no run directory can be made in %s: %w", runs, err)
}

// danglingLink returns the first part of path that is a link to nothing, and
// where it leads, or "".
func danglingLink(path string) (at, to string) {
	path = filepath.Clean(path)
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		info, err := os.Lstat(path[:i])
		if err != nil {
			return "", ""
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		if _, err := os.Stat(path[:i]); errors.Is(err, fs.ErrNotExist) {
			to, _ = os.Readlink(path[:i])
			return path[:i], to
		}
	}
	return "", ""
}

// makeRunsFolder makes the folder of all runs and says whether it was missing.
// The .gitignore that hides runs from git is written only into a folder that is
// ours: in a folder of the user's own it would hide their work.
func makeRunsFolder(runs string) (made bool, err error) {
	if _, err := os.Stat(runs); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(runs, 0o700); err != nil {
			return false, err
		}
		made = true
	}
	if made || filepath.Base(runs) == RunsFolder {
		// Best effort: git itself is not always there.
		f, err := os.OpenFile(filepath.Join(runs, ".gitignore"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			_, _ = f.WriteString("*\n")
			_ = f.Close()
		}
	}
	return made, nil
}

// furnish fills a new run directory with what must not be missing later.
func (d *Dir) furnish() error {
	// A umask may have taken bits away that the owner needs.
	if err := os.Chmod(d.Path, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(d.Path, AttemptsDir), 0o700); err != nil {
		return err
	}
	if err := makeReserve(d.File(reserveFile), ReserveBytes); err != nil {
		return err
	}
	if err := makeReserve(d.File(verdictFile), LastBytes); err != nil {
		return err
	}
	return makeReserve(d.File(lastFile), LastBytes)
}

// makeReserve makes a file whose blocks are really there, or none. Where the
// file system cannot allocate without writing, random bytes are written, since
// zeros cost nothing on one that compresses.
func makeReserve(path string, size int64) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	for {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil || !(errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)) {
		return err
	}
	block := make([]byte, size)
	_, _ = rand.Read(block)
	if _, err := f.Write(block); err != nil {
		return err
	}
	return f.Sync()
}

// pointLatest makes runs/latest a relative link to the run. Best effort, and
// only over a link: anything else of that name is the user's.
func pointLatest(runs, id string) {
	latest := filepath.Join(runs, "latest")
	if info, err := os.Lstat(latest); err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return
	}
	tmp := filepath.Join(runs, ".latest-"+id)
	if os.Symlink(id, tmp) != nil {
		return
	}
	if os.Rename(tmp, latest) != nil {
		_ = os.Remove(tmp)
	}
}

// Open returns the Dir of a run that is already there; path is its folder.
func Open(p Places, path string) (*Dir, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.Cwd, path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("opening run: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("opening run: %s is not a folder", path)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // latest is a link; the ID is the name behind it
	}
	d := &Dir{Path: path, ID: filepath.Base(path), places: p}
	if m, err := ReadManifest(path); err == nil && m.ID != "" {
		d.ID = m.ID
	}
	return d, nil
}

// SetRedactor has Save redact the values that r knows too.
func (d *Dir) SetRedactor(r *Redactor) {
	d.mu.Lock()
	d.red = r
	d.mu.Unlock()
}

// File returns the path of a file of the run directory.
func (d *Dir) File(name string) string { return filepath.Join(d.Path, name) }

// Attempt returns the path of the folder of attempt n (from 1).
func (d *Dir) Attempt(n int) string {
	return filepath.Join(d.Path, AttemptsDir, strconv.Itoa(n))
}

// MakeAttempt makes the folder of attempt n and returns its path. A folder that
// is already there is an error: no attempt may write over another.
func (d *Dir) MakeAttempt(n int) (string, error) {
	path := d.Attempt(n)
	err := os.Mkdir(path, 0o700)
	if noSpace(err) {
		d.ReleaseReserve()
		err = os.Mkdir(path, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("making the folder of attempt %d: %w", n, err)
	}
	return path, nil
}

// ReleaseReserve gives the reserve's megabyte back to the file system; the last
// two stay. Calling it again does nothing.
func (d *Dir) ReleaseReserve() { _ = os.Remove(d.File(reserveFile)) }

// RefillReserve makes the reserve, and the one for a verdict, anew where they were
// given up and the disk has room for them again. Best effort: without room there is
// none, as before.
func (d *Dir) RefillReserve() {
	_ = makeReserve(d.File(verdictFile), LastBytes)
	_ = makeReserve(d.File(reserveFile), ReserveBytes)
}

// ReleaseLast gives the last two reserves back. It is for the end of the run,
// after the last Save, so that nothing of them is left in a finished run
// directory. Calling it again does nothing.
func (d *Dir) ReleaseLast() {
	_ = os.Remove(d.File(lastFile))
	_ = os.Remove(d.File(verdictFile))
}

// WriteVerdict puts the verdict of an attempt at path. On a full disk the reserve is
// given up for it; where others are quicker, it is written into the blocks that are
// kept for it.
func (d *Dir) WriteVerdict(path string, data []byte) error {
	err := WriteFile(path, data)
	if noSpace(err) {
		d.ReleaseReserve()
		err = WriteFile(path, data)
	}
	if noSpace(err) && fillReserve(d.File(verdictFile), path, data) == nil {
		err = nil
	}
	return err
}
