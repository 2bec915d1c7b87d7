package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// logFile is the log: whose first line it must have, and the file while it is open.
type logFile struct {
	path   string
	header []byte
	file   *os.File
	// made says that there was none before.
	made bool
}

// errOther is wrapped by the error of a file that is no log of ours.
var errOther = errors.New("nothing is written into it; name another file")

// errLocked is wrapped by the error of a log that another process writes.
var errLocked = errors.New("another sampler writes it")

// look says what is wrong with the path, without making anything.
func (l *logFile) look() error {
	f, err := l.openThere(os.O_RDWR)
	if err == nil {
		defer f.Close()
		if _, err = l.lead(f); err == nil {
			err = l.isFree(f)
		}
		return err
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(l.path)
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("%s cannot be made: %w", l.path, err)
	case !info.IsDir():
		return fmt.Errorf("%s cannot be made: %s is no folder", l.path, dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s cannot be made: the folder %s cannot be written: %w", l.path, dir, err)
	}
	return l.placeIsFree()
}

// placeIsFree refuses to make a file in the directory of a run.
func (l *logFile) placeIsFree() error {
	real, err := realPlace(l.path)
	if err != nil {
		return fmt.Errorf("%s cannot be made: %w", l.path, bare(err))
	}
	return ofRun(real, l.path)
}

// open opens the log, or makes it, and locks it: a second name of the same file must not
// bring a second sampler. The error wraps errLocked where another process has the lock.
func (l *logFile) open() error {
	l.made = false
	f, err := l.openThere(os.O_RDWR | os.O_APPEND)
	if errors.Is(err, os.ErrNotExist) {
		if err := l.placeIsFree(); err != nil {
			return err
		}
		l.made = true
		// Also where a link leads. What was put there since is looked at below.
		f, err = os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOCTTY, 0o644)
		if err == nil {
			err = isRegular(f, l.path)
		} else {
			err = fmt.Errorf("%s cannot be made: %w", l.path, bare(err))
		}
	}
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return err
	}
	if _, err = l.lead(f); err == nil && !l.made {
		err = l.isFree(f)
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	if ok, err := lock(f); err != nil || !ok {
		_ = f.Close()
		if err == nil {
			err = fmt.Errorf("%s: %w", l.path, errLocked)
		}
		return err
	}
	l.file = f
	return nil
}

// openThere opens the file if it is there and a regular one. What it is, is asked before:
// opening a FIFO or a device may do something.
func (l *logFile) openThere(flags int) (*os.File, error) {
	place, err := unix.Open(l.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened: %w", l.path, err)
	}
	defer unix.Close(place)
	var st unix.Stat_t
	if err := unix.Fstat(place, &st); err != nil {
		return nil, fmt.Errorf("%s cannot be looked at: %w", l.path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return nil, fmt.Errorf("%s is a folder: %w", l.path, errOther)
	default:
		return nil, fmt.Errorf("%s is no regular file: %w", l.path, errOther)
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(place), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened for writing: %w", l.path, bare(err))
	}
	return f, nil
}

// isFree refuses a file of a run, by whatever name it is opened.
func (l *logFile) isFree(f *os.File) error {
	real, err := realPath(f)
	if err != nil {
		return fmt.Errorf("%s cannot be looked at: %w", l.path, bare(err))
	}
	return ofRun(real, l.path)
}

// lead returns what has to stand before the next row: the header in an empty file or the
// rest of a torn one, a newline behind a torn row, else nothing. It refuses a file that
// begins with something else.
func (l *logFile) lead(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s cannot be looked at: %w", l.path, bare(err))
	}
	size := info.Size()
	head := make([]byte, min(size, int64(len(l.header))))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s cannot be read: %w", l.path, bare(err))
	}
	switch {
	case size == 0:
		return l.header, nil
	case len(head) < len(l.header) && bytes.HasPrefix(l.header, head) && bytes.IndexByte(head, ',') > 0:
		return l.header[len(head):], nil
	case !bytes.Equal(head, l.header):
		line, _, _ := bytes.Cut(head, []byte("\n"))
		return nil, fmt.Errorf("%s begins with %.60q and not with %.60q, so it is no log of this kind: %w",
			l.path, line, bytes.TrimSpace(l.header), errOther)
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], size-1); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", l.path, bare(err))
	}
	if last[0] != '\n' {
		return []byte{'\n'}, nil
	}
	return nil, nil
}

// there says whether the open file is still the one that the path names.
func (l *logFile) there() bool { return names(l.path, l.file) }

// close closes the log. One that was made for nothing is removed again.
func (l *logFile) close(unmake bool) {
	if l.file == nil {
		return
	}
	if info, err := l.file.Stat(); unmake && l.made && err == nil && info.Size() == 0 && l.there() {
		_ = os.Remove(l.path) // a file without a byte harms nobody
	}
	_ = l.file.Close() // what was written is on the disk: each row is synced
	l.file = nil
}

// names says whether a path leads to an open file.
func names(path string, f *os.File) bool {
	at, err := os.Stat(path)
	if err != nil {
		return false
	}
	is, err := f.Stat()
	return err == nil && os.SameFile(at, is)
}

func isRegular(f *os.File, path string) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%s cannot be looked at: %w", path, bare(err))
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file: %w", path, errOther)
	}
	return nil
}

// lockAgain is longer than a process takes from its fork to its program, also on a busy
// machine.
const lockAgain = 200 * time.Millisecond

// lock takes the file for this process until it ends or closes it. A file system that
// knows no locks gives none to anybody: the pid file has to do there.
//
// A refusal is asked about again for lockAgain: between fork and exec a process that is
// being started has a copy of every open file, with its lock, and a log that is opened anew
// would look like another sampler's.
func lock(f *os.File) (bool, error) {
	for until := time.Now().Add(lockAgain); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			if time.Now().After(until) {
				return false, nil
			}
			time.Sleep(lockAgain / 20)
			continue
		case err == nil, errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK):
			return true, nil
		}
		return false, fmt.Errorf("%s cannot be locked: %w", f.Name(), err)
	}
}

// bare takes the path off an error whose sentence has it already.
func bare(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
