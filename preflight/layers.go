package preflight

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sparkrun/internal/regular"
	"sparkrun/internal/treefs"
)

// tree is a file system that packages are looked for in: this machine or a recorded
// tree (root), or an image's (layers). Paths are absolute, as a program inside would
// name them, and links never lead out of it.
type tree interface {
	// read returns the first maxRead bytes of a regular file; readMax those that it is
	// told.
	read(path string) ([]byte, error)
	readMax(path string, limit int64) ([]byte, error)
	names(path string) []string
	exists(path string) (bool, error)
	executable(path string) bool
	resolve(path string) (string, error)
}

var (
	_ tree = root("")
	_ tree = (*layers)(nil)
)

// readMax returns the first limit bytes of a regular file.
func (r root) readMax(path string, limit int64) ([]byte, error) {
	real, err := r.resolve(path)
	if err != nil {
		return nil, err
	}
	return readFile(r.host(real), limit)
}

// readFile reads a file that is known to be no symbolic link.
func readFile(path string, limit int64) ([]byte, error) {
	f, _, err := regular.OpenHere(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// layers is the file system of an image as its folders on this machine make it up,
// uppermost first: what a layer has hides what those below have under that name, and a
// whiteout hides it without taking its place. Both forms of whiteout are known, that of
// overlayfs (a device 0/0, an extended attribute on a folder) and that of the image
// format (.wh.NAME, .wh..wh..opq), which some drivers keep.
type layers struct {
	dirs []string

	mu   sync.Mutex
	memo map[string]stacked
}

// maxLayers is more than any engine stacks.
const maxLayers = 256

func newLayers(dirs []string) *layers {
	return &layers{dirs: dirs[:min(len(dirs), maxLayers)], memo: make(map[string]stacked)}
}

// stacked is what is seen under one name: of a folder the folders of all layers that
// have a part in it, uppermost first, of anything else the one file.
type stacked struct {
	paths []string
	st    fs.FileInfo
	err   error
}

// at finds what is seen at path, which must be resolved: its links are not followed.
func (l *layers) at(path string) stacked {
	path = filepath.Clean(path)
	l.mu.Lock()
	known, ok := l.memo[path]
	l.mu.Unlock()
	if ok {
		return known
	}
	var found stacked
	if path == "/" {
		found.paths = l.dirs
		for _, dir := range l.dirs {
			if found.st, found.err = os.Stat(dir); found.err == nil {
				break
			}
		}
		if found.st == nil {
			found = stacked{err: errors.Join(fs.ErrNotExist, found.err)}
		}
	} else if folder := l.at(filepath.Dir(path)); folder.err != nil {
		found.err = folder.err
	} else {
		found = folder.step(filepath.Base(path))
	}
	l.mu.Lock()
	l.memo[path] = found
	l.mu.Unlock()
	return found
}

// step looks up a name in a folder.
func (s stacked) step(name string) stacked {
	missing := stacked{err: &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}}
	if !s.st.IsDir() || strings.HasPrefix(name, ".wh.") {
		return missing
	}
	var next stacked
	for _, dir := range s.paths {
		path := filepath.Join(dir, name)
		st, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			if _, err := os.Lstat(filepath.Join(dir, ".wh."+name)); err == nil {
				return next.or(missing)
			}
			continue
		case err != nil:
			// Below something that cannot be read anything may lie.
			return stacked{err: err}
		case whiteout(st):
			return next.or(missing)
		case !st.IsDir() && len(next.paths) > 0:
			return next
		case !st.IsDir() && hasAttribute(path, "overlay.metacopy"):
			continue // its content is a lower layer's
		case !st.IsDir():
			return stacked{paths: []string{path}, st: st}
		}
		if next.st == nil {
			next.st = st
		}
		next.paths = append(next.paths, path)
		if opaque(path) {
			break
		}
	}
	return next.or(missing)
}

// or is s where there is anything of it.
func (s stacked) or(missing stacked) stacked {
	if len(s.paths) > 0 {
		return s
	}
	return missing
}

// whiteout is what overlayfs writes where a name was taken away.
func whiteout(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && st.Mode()&fs.ModeCharDevice != 0 && sys.Rdev == 0
}

// opaque tells that a layer's folder hides those below it.
func opaque(dir string) bool {
	if _, err := os.Lstat(filepath.Join(dir, ".wh..wh..opq")); err == nil {
		return true
	}
	for _, name := range []string{"trusted.overlay.opaque", "user.overlay.opaque", "user.fuseoverlayfs.opaque"} {
		value := make([]byte, 8)
		n, err := unix.Lgetxattr(dir, name, value)
		if err == nil && bytes.Equal(value[:n], []byte("y")) {
			return true
		}
	}
	return false
}

// hasAttribute tells whether a file carries an attribute of overlayfs.
func hasAttribute(path, name string) bool {
	for _, space := range []string{"trusted.", "user."} {
		if _, err := unix.Lgetxattr(path, space+name, nil); err == nil {
			return true
		}
	}
	return false
}

func (l *layers) read(path string) ([]byte, error) { return l.readMax(path, maxRead) }

func (l *layers) readMax(path string, limit int64) ([]byte, error) {
	real, err := l.resolve(path)
	if err != nil {
		return nil, err
	}
	found := l.at(real)
	if found.err != nil {
		return nil, found.err
	}
	return readFile(found.paths[0], limit)
}

// names lists a folder of the union; an unreadable one has no names.
func (l *layers) names(path string) []string {
	real, err := l.resolve(path)
	if err != nil {
		return nil
	}
	folder := l.at(real)
	if folder.err != nil || !folder.st.IsDir() {
		return nil
	}
	seen := map[string]bool{} // true is there, false taken away
	for _, dir := range folder.paths {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		var gone []string
		for _, e := range entries {
			name := e.Name()
			if hidden, ok := strings.CutPrefix(name, ".wh."); ok {
				gone = append(gone, hidden)
				continue
			}
			if _, known := seen[name]; known {
				continue
			}
			there := true
			if e.Type()&fs.ModeCharDevice != 0 {
				info, err := e.Info()
				there = err != nil || !whiteout(info)
			}
			seen[name] = there
		}
		for _, name := range gone {
			if _, known := seen[name]; !known {
				seen[name] = false
			}
		}
	}
	var names []string
	for name, there := range seen {
		if there {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

func (l *layers) exists(path string) (bool, error) {
	real, err := l.resolve(path)
	if err == nil {
		err = l.at(real).err
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, err
}

func (l *layers) executable(path string) bool {
	real, err := l.resolve(path)
	if err != nil {
		return false
	}
	found := l.at(real)
	return found.err == nil && found.st.Mode().IsRegular() && found.st.Mode().Perm()&0o111 != 0
}

// resolve follows every symbolic link, inside the image. The last element need not
// exist.
func (l *layers) resolve(path string) (string, error) {
	return treefs.Follow(path, func(at string) (string, error) {
		found := l.at(at)
		switch {
		case found.err != nil:
			return "", found.err
		case found.st.Mode()&fs.ModeSymlink == 0:
			return "", nil
		}
		return os.Readlink(found.paths[0])
	})
}
