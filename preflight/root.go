package preflight

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"sparkrun/internal/treefs"
)

// root is the folder that stands for "/": this machine, or a recorded tree.
// Every path given to its methods is absolute as the machine itself would see
// it; symbolic links are followed inside the tree and never lead out of it.
type root string

// rootOf takes the name of a folder; an empty one is this machine.
func rootOf(dir string) root {
	if dir == "" {
		return "/"
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return root(dir)
}

// maxRead bounds how much of any one file is read. The files read here have at
// most some kilobytes.
const maxRead = 256 << 10

// live tells that the tree is this machine, so that processes may be started.
func (r root) live() bool { return r == "/" }

// read returns the first maxRead bytes of a regular file.
func (r root) read(path string) ([]byte, error) { return r.readMax(path, maxRead) }

// names lists a folder; an unreadable one has no names.
func (r root) names(path string) []string {
	real, err := r.resolve(path)
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir(r.host(real))
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// exists tells whether there is anything at path. An error other than "not
// there" is returned: a marker that cannot be looked at is not absent.
func (r root) exists(path string) (bool, error) {
	real, err := r.resolve(path)
	if err == nil {
		_, err = os.Lstat(r.host(real))
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	}
	return false, err
}

// executable tells whether path is a regular file that somebody may execute.
func (r root) executable(path string) bool {
	real, err := r.resolve(path)
	if err != nil {
		return false
	}
	st, err := os.Lstat(r.host(real))
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

// host returns where path lies on this machine, without following links.
func (r root) host(path string) string {
	if r.live() {
		return path
	}
	return filepath.Join(string(r), path)
}

// resolve follows every symbolic link in path and returns the real path, as the
// tree itself sees it. The last element need not exist.
func (r root) resolve(path string) (string, error) { return treefs.Root(r).Resolve(path) }
