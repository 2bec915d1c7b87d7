package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// The files of a run begin as a log of ours does and are locked by nobody, so that only
// where they lie tells them. What is in a run's directory is the run's, also when it has
// ended: it is evidence.
const (
	manifestFile = "run.json"
	// manifestMark is in the first bytes of a manifest, of whatever version: another
	// program's run.json is no reason to refuse.
	manifestMark = `"sparkrun.run/`
	manifestHead = 512
	// below is how deep in a run's directory its files lie: attempts/N/shim/FILE.
	below = 3
	// maxLinks is as many symbolic links as the kernel follows.
	maxLinks = 40
)

// ofRun returns an error that wraps errOther if a file lies in the directory of a run. real
// is where it lies, without links; path is its name for the user.
func ofRun(real, path string) error {
	dir := filepath.Dir(real)
	for range below + 1 {
		is, err := isRunDir(dir)
		if err != nil {
			return fmt.Errorf("%s may be a file of a run of sparkrun, which cannot be told (%w): %w", path, err, errOther)
		}
		if is {
			return fmt.Errorf("%s lies in the directory of a run of sparkrun (%s), which samples by itself: %w", path, dir, errOther)
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

// isRunDir says whether a folder has the manifest of a run.
func isRunDir(dir string) (bool, error) {
	path := filepath.Join(dir, manifestFile)
	// What is no regular file is not opened.
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false, nil // none there, or none that we can see: no run of this user's
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, manifestHead)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, fmt.Errorf("%s cannot be read: %w", path, bare(err))
	}
	return bytes.Contains(head[:n], []byte(manifestMark)), nil
}

// realPath is where an open file lies.
func realPath(f *os.File) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}

// realPlace is where a file would be made whose path may be a link to nothing.
func realPlace(path string) (string, error) {
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err == nil {
			dir, err = filepath.Abs(dir)
		}
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, filepath.Base(path))
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil //nolint:nilerr // no link: this is the place
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		path = to
	}
	return "", unix.ELOOP
}
