package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxPIDText is far more than a pid and a newline have.
const maxPIDText = 32

// pidFile is the file beside the log that has the pid of its sampler. The sampler keeps it
// open and locked for as long as it lives: that, and not the number in it, is what makes a
// second start see the first.
type pidFile struct {
	path string
	file *os.File
	// pid is what stood in it, 0 for nothing.
	pid int
	// mine says that it is locked by us, made that it was made here.
	mine, made bool
}

// openPID opens the pid file, making it if wanted, and tries to lock it. A symbolic link,
// or a file with anything else in it, is refused: it is not ours to write.
func openPID(path string, create bool) (*pidFile, error) {
	for {
		// As with the log, a FIFO or a device is not even opened.
		if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is no regular file, and is left alone: it is where the pid of the sampler would stand; name another log", path)
		}
		p := &pidFile{path: path}
		var err error
		p.file, err = os.OpenFile(path, pidFlags, 0)
		if errors.Is(err, os.ErrNotExist) && create {
			p.made = true
			p.file, err = os.OpenFile(path, pidFlags|os.O_CREATE|os.O_EXCL, 0o644)
			if errors.Is(err, os.ErrExist) {
				continue // another start was quicker
			}
		}
		if err != nil {
			return nil, fmt.Errorf("the pid file %s cannot be opened for writing: %w", path, bare(err))
		}
		if err := p.begin(); err != nil {
			p.close()
			return nil, err
		}
		// One whose owner has just removed it, on its way out, is nobody's.
		if !p.mine || names(path, p.file) {
			return p, nil
		}
		p.close()
	}
}

const pidFlags = os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY

// begin locks and reads it.
func (p *pidFile) begin() (err error) {
	if err := isRegular(p.file, p.path); err != nil {
		return err
	}
	if p.mine, err = lock(p.file); err != nil {
		return err
	}
	p.pid, err = readPID(p.file)
	return err
}

// readPID reads what stands in a pid file, 0 for nothing.
func readPID(f *os.File) (int, error) {
	b := make([]byte, maxPIDText)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("%s cannot be read: %w", f.Name(), bare(err))
	}
	text := bytes.TrimSpace(b[:n])
	if len(text) == 0 && n < maxPIDText {
		return 0, nil
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil || pid <= 0 || n == maxPIDText {
		return 0, fmt.Errorf("%s holds something else than a pid (%.40q), and is left alone; move it away or name another log", f.Name(), text)
	}
	return pid, nil
}

// write puts our pid into the file.
func (p *pidFile) write(pid int) error {
	text := []byte(strconv.Itoa(pid) + "\n")
	_, err := p.file.WriteAt(text, 0)
	if err == nil {
		err = p.file.Truncate(int64(len(text)))
	}
	if err != nil {
		return fmt.Errorf("the pid file %s cannot be written: %w", p.path, bare(err))
	}
	return nil
}

// remove removes the file, if it is still the one that we have locked, and gives up the
// lock, in this order: whoever gets the lock then finds that the file is gone.
func (p *pidFile) remove() {
	if p.mine && names(p.path, p.file) {
		_ = os.Remove(p.path) // one that stays is stale, and is found to be
	}
	p.close()
}

// drop leaves everything as it was.
func (p *pidFile) drop() {
	if p.made {
		p.remove()
	} else {
		p.close()
	}
}

func (p *pidFile) close() {
	_ = p.file.Close() // nothing that was written depends on it
}
