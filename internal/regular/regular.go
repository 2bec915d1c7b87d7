// Package regular opens regular files of other people's and nothing else. Opening alone
// does harm to what is no file: it lets a writer into a FIFO that waits for the training,
// and what is read from there the training never gets; it winds a tape back, starts a
// watchdog, takes a terminal. So a path is looked at before it is opened, and what was
// looked at is what is opened. It imports nothing of ours.
package regular

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNot is wrapped by the error of what is no regular file; for a folder the error wraps
// EISDIR.
var ErrNot = errors.New("no regular file")

// Open opens a regular file for reading, following symbolic links. It never waits for a
// writer; a disk that does not answer it waits for.
func Open(path string) (*os.File, fs.FileInfo, error) { return open(path, 0) }

// OpenHere is Open for a path whose last element is no symbolic link; one is refused.
func OpenHere(path string) (*os.File, fs.FileInfo, error) { return open(path, unix.O_NOFOLLOW) }

// Read returns at most so many bytes of the beginning of a regular file.
func Read(path string, most int64) ([]byte, error) {
	f, _, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

func open(path string, flags int) (*os.File, fs.FileInfo, error) {
	// O_PATH finds the file without opening it: nothing happens to a device or FIFO.
	place, err := retried(func() (int, error) {
		return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
	})
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(place)
	var st unix.Stat_t
	if err := unix.Fstat(place, &st); err != nil {
		return nil, nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return nil, nil, &fs.PathError{Op: "read", Path: path, Err: unix.EISDIR}
	default:
		return nil, nil, &fs.PathError{Op: "read", Path: path, Err: ErrNot}
	}
	fd, err := retried(func() (int, error) {
		return unix.Open("/proc/self/fd/"+strconv.Itoa(place), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		// There is no /proc. What was put there meanwhile is not waited for.
		fd, err = retried(func() (int, error) {
			return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
		})
	}
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: ErrNot}
	}
	if err != nil {
		_ = f.Close() // the first error is the one to tell
		return nil, nil, err
	}
	return f, info, nil
}

func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
