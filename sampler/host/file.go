package host

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// file is a small file of the kernel's that is read again and again. On sysfs
// and procfs it stays open, since there a read at the start gives the present
// value and opening costs more than reading; anywhere else (a recorded tree) it
// is opened each time, or a file that was replaced would go on giving its old
// text.
type file struct {
	path string
	fd   int
	// buf is the file's own: a read that hangs keeps it.
	buf [64]byte
}

func newFile(path string) *file { return &file{path: path, fd: -1} }

// read returns what the file says now, without the white space around it. The
// bytes are valid until the next read. It blocks for as long as the device
// behind the file likes.
func (f *file) read() ([]byte, error) {
	kept := f.fd >= 0
	if !kept {
		fd, err := open(f.path)
		if err != nil {
			return nil, err
		}
		f.fd = fd
	}
	n, err := readStart(f.fd, f.buf[:])
	if err != nil || !kept && !refreshes(f.fd) {
		// After an error too: the device may be gone, and another may come back
		// under its name.
		f.close()
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimSpace(f.buf[:n]), nil
}

func (f *file) close() {
	if f.fd >= 0 {
		_ = unix.Close(f.fd) // opened for reading: nothing can be lost
		f.fd = -1
	}
}

// integer reads the file as a decimal number.
func (f *file) integer() (int64, bool) {
	b, err := f.read()
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	return n, err == nil
}

func open(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// readStart reads from the start of the file; what has no start, a pipe, is
// read where it is.
func readStart(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Pread(fd, b, 0)
		if errors.Is(err, unix.ESPIPE) {
			n, err = unix.Read(fd, b)
		}
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// refreshes reports whether a file that stays open gives new values.
func refreshes(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && (st.Type == unix.SYSFS_MAGIC || st.Type == unix.PROC_SUPER_MAGIC)
}
