package runlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// rotateAt is the size from which run.log becomes run.log.N.
	rotateAt = 256 << 20
	// keepNotes bounds sparkrun's own lines that wait for a full disk.
	keepNotes = 1 << 20
	// retryAfter is how long a disk that refused is left alone.
	retryAfter = time.Second
)

// logFile is run.log on the disk: appended to in batches of whole lines,
// rotated, and kept whole when the disk refuses. It is used by one goroutine.
type logFile struct {
	path   string
	f      *os.File
	size   int64
	rotate int64

	// carry is what must be written before anything else: the rest of a line
	// that the disk has taken half of, then notes.
	carry   []byte
	dropped int64
	failing error
	retry   time.Time
	now     func() time.Time
	write   func(f *os.File, b []byte) (int, error)
}

// openLogFile opens path for appending. A last line torn by a crash gets its
// end, and the time of the last whole line is returned.
func openLogFile(path string, zone *time.Location) (lf *logFile, last time.Time, err error) {
	f, size, tail, err := openLines(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	lf = &logFile{path: path, f: f, size: size, rotate: rotateAt, now: time.Now, write: writeOnce}
	for len(tail) > 0 {
		line := tail[bytes.LastIndexByte(tail[:len(tail)-1], '\n')+1:]
		if t, ok := parseStamp(line, zone); ok {
			return lf, t, nil
		}
		tail = tail[:len(tail)-len(line)]
	}
	return lf, time.Time{}, nil
}

// tailMax is how much of an existing file is searched for its last lines: more
// than the longest line.
const tailMax = 2 << 20

// openLines opens a file of lines for appending, ends a torn last line and
// returns its last bytes.
func openLines(path string) (f *os.File, size int64, tail []byte, err error) {
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > 0 {
		size = info.Size()
		tail = make([]byte, min(size, tailMax))
		_, err = f.ReadAt(tail, size-int64(len(tail)))
		if err == nil && tail[len(tail)-1] != '\n' {
			var n int
			n, err = f.WriteString("\n")
			size += int64(n)
			tail = append(tail, '\n')
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, nil, err
	}
	return f, size, tail, nil
}

// writeOnce is one write(2), repeated only while the kernel takes bytes without
// an error.
func writeOnce(f *os.File, b []byte) (int, error) { return f.Write(b) }

// append writes whole lines. What the disk does not take is dropped, except
// sparkrun's own lines, which wait. The error is nil again once the disk takes
// bytes.
func (l *logFile) append(batch []byte) error {
	if l.failing != nil {
		if l.now().Before(l.retry) {
			l.keep(batch)
			return l.failing
		}
		if err := l.flushCarry(); err != nil {
			l.fail(err)
			l.keep(batch)
			return l.failing
		}
		l.failing = nil
	}
	if len(batch) == 0 {
		return nil
	}
	if l.size >= l.rotate {
		l.rotateNow()
	}
	n, err := l.write(l.f, batch)
	l.size += int64(n)
	if err != nil {
		l.fail(err)
		l.torn(batch, n)
		return l.failing
	}
	return nil
}

// thin drops the child's lines from a batch on purpose: there is little space
// left, and what they say is in the raw output.
func (l *logFile) thin(batch []byte) error {
	var notes []byte
	for line := range bytes.Lines(batch) {
		if isNote(line) {
			notes = append(notes, line...)
		} else {
			l.dropped++
		}
	}
	return l.append(notes)
}

func (l *logFile) fail(err error) {
	l.failing = err
	l.retry = l.now().Add(retryAfter)
}

// torn keeps what must follow after the disk has taken only n bytes of batch.
func (l *logFile) torn(batch []byte, n int) {
	rest := batch[n:]
	if n > 0 && batch[n-1] != '\n' {
		end := bytes.IndexByte(rest, '\n') + 1
		l.carry = append(l.carry, rest[:end]...)
		rest = rest[end:]
	}
	l.keep(rest)
}

func (l *logFile) keep(batch []byte) {
	for line := range bytes.Lines(batch) {
		if isNote(line) && len(l.carry)+len(line) <= keepNotes {
			l.carry = append(l.carry, line...)
		} else {
			l.dropped++
		}
	}
}

func (l *logFile) flushCarry() error {
	n, err := l.write(l.f, l.carry)
	l.size += int64(n)
	l.carry = l.carry[:copy(l.carry, l.carry[n:])]
	return err
}

// missing returns how many lines were dropped since it was last asked.
func (l *logFile) missing() int64 {
	n := l.dropped
	l.dropped = 0
	return n
}

// rotateNow moves run.log to the next free run.log.N and begins a new one. Where
// that fails the old file simply grows on.
func (l *logFile) rotateNow() {
	for n := 1; ; n++ {
		old := l.path + "." + strconv.Itoa(n)
		if _, err := os.Lstat(old); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return
			}
			continue
		}
		if os.Rename(l.path, old) != nil {
			return
		}
		f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
		if err != nil {
			// No inode left, say: the file gets its name back.
			_ = os.Rename(old, l.path)
			l.size = 0 // try again after as much again
			return
		}
		_ = l.f.Close()
		l.f, l.size = f, 0
		return
	}
}

func (l *logFile) close() error {
	l.retry = time.Time{} // one last try, whenever the last was
	err := l.append(nil)
	if cerr := l.f.Close(); err == nil {
		err = cerr
	}
	return err
}

// diskWords says what a write error means, for an event.
func diskWords(file string, err error) string {
	if noSpace(err) {
		return fmt.Sprintf("no space left to write %s; the run goes on, free some space", file)
	}
	return fmt.Sprintf("%s cannot be written: %s; the run goes on", file, errnoText(err))
}

// freeBytes is the space an ordinary user may still use where f lies.
func freeBytes(f *os.File) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}
