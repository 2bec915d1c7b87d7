// Package treefs owns the look at files under a folder that stands for "/": this machine,
// or a tree that was recorded on another one. Paths are absolute as that machine names
// them; in a tree symbolic links are followed inside it and never lead out of it.
package treefs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sparkrun/internal/regular"
)

// Root is the folder that stands for "/". The empty one and "/" are this machine.
type Root string

// Of takes the name of a folder, which may be relative; an empty one is this machine.
func Of(dir string) Root {
	if dir == "" || dir == "/" {
		return ""
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return Root(dir)
}

// Live tells that the root is this machine.
func (r Root) Live() bool { return r == "" || r == "/" }

// Host is where a path lies on this machine, without following links.
func (r Root) Host(path string) string {
	if r.Live() {
		return path
	}
	return filepath.Join(string(r), path)
}

// Resolve follows every symbolic link in path and returns the real path, as the root's
// machine names it. The last element need not exist.
func (r Root) Resolve(path string) (string, error) {
	return Follow(path, func(at string) (string, error) {
		target, err := os.Readlink(r.Host(at))
		if errors.Is(err, syscall.EINVAL) {
			return "", nil // no link
		}
		return target, err
	})
}

// Follow follows every symbolic link in path and returns the real path. link says where
// the link at a path without links leads, "" where it is none; its errors are returned, but
// for fs.ErrNotExist at the last element, which need not exist.
func Follow(path string, link func(at string) (string, error)) (string, error) {
	// Linux gives up after 40 links; so does this.
	links := 0
	todo := strings.Split(path, "/")
	done := "/"
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			done = filepath.Dir(done)
			continue
		}
		next := filepath.Join(done, name)
		target, err := link(next)
		switch {
		case err != nil && !(errors.Is(err, fs.ErrNotExist) && len(todo) == 0):
			return "", err
		case target == "":
			done = next
			continue
		}
		if links++; links > 40 {
			return "", &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
		}
		if filepath.IsAbs(target) {
			done = "/"
		}
		// The target's own ".." are kept: they count from the link's real folder.
		todo = append(strings.Split(target, "/"), todo...)
	}
	return done, nil
}

// Real is path with its links followed; an error where there is nothing.
func (r Root) Real(path string) (string, error) {
	if r.Live() {
		return filepath.EvalSymlinks(path)
	}
	real, err := r.Resolve(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(r.Host(real)); err != nil {
		return "", err
	}
	return real, nil
}

// Stat describes what lies at path behind all links.
func (r Root) Stat(path string) (fs.FileInfo, error) {
	if r.Live() {
		return os.Stat(path)
	}
	real, err := r.Resolve(path)
	if err != nil {
		return nil, err
	}
	return os.Lstat(r.Host(real))
}

// IsFile tells that a regular file lies at path, IsDir a folder.
func (r Root) IsFile(path string) bool {
	info, err := r.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// IsDir tells that a folder lies at path.
func (r Root) IsDir(path string) bool {
	info, err := r.Stat(path)
	return err == nil && info.IsDir()
}

// IsLink tells that path itself is a symbolic link. Links in front of its last element
// are followed.
func (r Root) IsLink(path string) bool {
	if !r.Live() {
		dir, err := r.Resolve(filepath.Dir(path))
		if err != nil {
			return false
		}
		path = r.Host(filepath.Join(dir, filepath.Base(path)))
	}
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// Executable tells that path can be executed: on this machine by this user, in a tree by
// anybody.
func (r Root) Executable(path string) bool {
	info, err := r.Stat(path)
	switch {
	case err != nil || info.IsDir():
		return false
	case r.Live():
		return unix.Access(path, unix.X_OK) == nil
	}
	return info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// Head returns up to n bytes from the start of a regular file, nothing if it cannot be
// read.
func (r Root) Head(path string, n int64) []byte {
	f, err := r.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, n))
	if err != nil {
		return nil
	}
	return data
}

// Open opens a regular file for reading. Anything else is not opened at all: the writer of
// a pipe waits for the training, not for us.
func (r Root) Open(path string) (*os.File, error) {
	at, err := r.Path(path)
	if err != nil {
		return nil, err
	}
	f, _, err := regular.Open(at)
	return f, err
}

// Path is what a file is opened by on this machine: in a tree with every link followed,
// so that the kernel follows none.
func (r Root) Path(path string) (string, error) {
	if r.Live() {
		return path, nil
	}
	real, err := r.Resolve(path)
	if err != nil {
		return "", err
	}
	return r.Host(real), nil
}

// Glob returns the paths that a pattern of path/filepath fits, in order; none where the
// pattern is broken.
func (r Root) Glob(pattern string) []string {
	if r.Live() {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil
		}
		return found
	}
	at := []string{"/"}
	for part := range strings.SplitSeq(pattern, "/") {
		if part == "" {
			continue
		}
		var next []string
		for _, dir := range at {
			if !strings.ContainsAny(part, `*?[\`) {
				if path := filepath.Join(dir, part); r.there(path) {
					next = append(next, path)
				}
				continue
			}
			for _, name := range r.names(dir) {
				if ok, err := filepath.Match(part, name); err == nil && ok {
					next = append(next, filepath.Join(dir, name))
				}
			}
		}
		at = next
	}
	return at
}

// ReadDir lists a folder in order.
func (r Root) ReadDir(dir string) ([]fs.DirEntry, error) {
	at, err := r.Path(dir)
	if err != nil {
		return nil, err
	}
	return os.ReadDir(at)
}

// names lists a folder in order; an unreadable one has no names.
func (r Root) names(dir string) []string {
	entries, err := r.ReadDir(dir)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (r Root) there(path string) bool {
	_, err := r.Stat(path)
	return err == nil
}

// For is the root under which a file of the command itself is read: this one where it has
// such a file, else this machine. A recorded tree seldom has the script that is about to
// run.
func (r Root) For(path string) Root {
	if r.Live() || r.there(path) {
		return r
	}
	return ""
}
