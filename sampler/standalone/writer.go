package standalone

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// queueRows is how many rows wait for a disk that hangs, pendingRows how many for one
	// that is full.
	queueRows   = 256
	pendingRows = 512
	// retryAfter is how soon rows that a full disk refused are tried again.
	retryAfter = 2 * time.Second
	// syncEvery is the least time between two syncs.
	syncEvery = 900 * time.Millisecond
	// lastWait is how long the end waits for the disk.
	lastWait = 3 * time.Second
)

// writer appends rows to the log, on a goroutine of its own: a full disk costs time, one
// that hangs costs rows, and neither delays a reading.
type writer struct {
	path string
	log  *logFile
	note func(string)
	// in is closed under mu; rows that come later are dropped.
	mu     sync.Mutex
	closed bool
	full   int // rows that a hanging disk did not take
	in     chan []byte
	done   chan struct{}
	// first hears once what became of the first row, fatal why no row can be written any
	// more. abandoned is closed when the first row is not wanted any longer.
	first, fatal chan error
	abandoned    chan struct{}

	// The rest belongs to the goroutine.
	begun   bool
	pending [][]byte
	// rest is what is left of the row that is being written, or what has to stand before
	// it; row is that row as a whole.
	rest, row []byte
	lost      int
	bad       bool
	synced    time.Time
}

func newWriter(l *logFile, note func(string)) *writer {
	w := &writer{
		path: l.path, log: l, note: note, in: make(chan []byte, queueRows), done: make(chan struct{}),
		first: make(chan error, 1), fatal: make(chan error, 1), abandoned: make(chan struct{}),
	}
	go w.run()
	return w
}

// write queues a row, which ends in a newline. It never waits.
func (w *writer) write(row []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	select {
	case w.in <- row:
	default:
		w.full++
	}
}

// abandon ends the writer without its rows.
func (w *writer) abandon() { close(w.abandoned) }

// close writes what waits, at most for lastWait. Until it returns true the log belongs to
// the writer.
func (w *writer) close() bool {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.in)
	}
	w.mu.Unlock()
	select {
	case <-w.done:
		return true
	case <-time.After(lastWait):
		w.note(fmt.Sprintf("%s: the disk does not take the last rows", w.path))
		return false
	}
}

func (w *writer) run() {
	defer close(w.done)
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	for open := true; open; {
		select {
		case row, more := <-w.in:
			open = more
			if more {
				w.keep(row)
			}
		case <-retry.C:
		}
		select {
		case <-w.abandoned:
			return
		default:
		}
		switch err := w.flush(); {
		case err == nil:
		case isFinal(err):
			w.fatal <- err
			return
		case open:
			retry.Reset(retryAfter)
		}
	}
}

// isFinal says that no trying again helps: the path leads to something that is not ours.
func isFinal(err error) bool { return errors.Is(err, errOther) || errors.Is(err, errLocked) }

// keep adds a row to those that wait; the oldest goes when there are too many.
func (w *writer) keep(row []byte) {
	if len(w.pending) >= pendingRows {
		w.pending = slices.Delete(w.pending, 0, 1)
		w.lost++
	}
	w.pending = append(w.pending, row)
}

// flush writes what waits, and tells of trouble when it begins and when it is over.
func (w *writer) flush() error {
	if len(w.pending) == 0 && len(w.row) == 0 {
		return nil
	}
	err := w.append()
	if !w.begun {
		w.begun = true
		w.first <- err
		return err
	}
	switch {
	case isFinal(err):
		// The end is told by whoever hears of it.
	case err != nil && !w.bad:
		w.bad = true
		w.note(fmt.Sprintf("%s cannot be written, and is tried again: %v", w.log.path, err))
	case err == nil:
		w.mu.Lock()
		lost := w.lost + w.full
		w.lost, w.full = 0, 0
		w.mu.Unlock()
		if w.bad || lost > 0 {
			w.bad = false
			w.note(fmt.Sprintf("%s is written again; rows lost: %d", w.log.path, lost))
		}
	}
	return err
}

func (w *writer) append() error {
	if err := w.follow(); err != nil {
		return err
	}
	for len(w.row) > 0 || len(w.pending) > 0 {
		if len(w.row) == 0 {
			lead, err := w.log.lead(w.log.file)
			if err != nil {
				return err
			}
			w.row, w.pending = w.pending[0], w.pending[1:]
			// In one write with what has to stand before it.
			w.rest = slices.Concat(lead, w.row)
		}
		n, err := w.log.file.Write(w.rest)
		w.rest = w.rest[n:]
		if err != nil {
			return bare(err)
		}
		w.row, w.rest = nil, nil
	}
	w.pending = nil
	if now := time.Now(); now.Sub(w.synced) > syncEvery {
		w.synced = now
		if err := fdatasync(int(w.log.file.Fd())); err != nil {
			return fmt.Errorf("bringing it to the disk: %w", err)
		}
	}
	return nil
}

// follow begins a new log where the old one was moved or removed, as those do who keep
// logs small. Rows are never written into something that is no log of ours.
func (w *writer) follow() error {
	if w.log.file != nil && w.log.there() {
		return nil
	}
	fresh := logFile{path: w.log.path, header: w.log.header}
	if err := fresh.open(); err != nil {
		return err
	}
	if w.log.file != nil {
		w.note(fmt.Sprintf("%s was moved or removed: it is begun anew", w.log.path))
		_ = w.log.file.Close() // synced with its last row
	}
	fresh.made = false // a row is about to be in it
	*w.log = fresh
	if len(w.row) > 0 {
		// Begun in the other file: here it comes as a whole.
		w.pending, w.row, w.rest = slices.Insert(w.pending, 0, w.row), nil, nil
	}
	return nil
}

// fdatasync brings a file to the disk; a file system that cannot says nothing about the row.
func fdatasync(fd int) error {
	for {
		switch err := unix.Fdatasync(fd); {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
			return nil
		default:
			return err
		}
	}
}
