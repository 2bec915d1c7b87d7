package sampler

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/sample"
)

const (
	// queueRows is how many rows wait for a disk that hangs, pendingRows how
	// many for one that is full; at one a second each is some minutes.
	queueRows   = 256
	pendingRows = 512
	// retryAfter is how soon rows that a full disk refused are tried again.
	retryAfter = 2 * time.Second
	// syncEvery is the least time between two syncs, slowSync what makes one
	// worth an event.
	syncEvery = time.Second
	slowSync  = 2 * time.Second
	// telemetryPart is the size at which telemetry.csv is put aside as
	// telemetry.001.csv and so on: about three days.
	telemetryPart = 64 << 20
)

// trouble is a way in which a file can fail.
type trouble string

const (
	troubleWrite trouble = "write"
	troubleSync  trouble = "sync"
	troubleSlow  trouble = "slow"
)

// fileNote hears of trouble with a file (err is set) and of its end (err is
// nil). dropped counts rows that are lost for good.
type fileNote func(name string, kind trouble, err error, dropped int)

// csvFile appends rows to one file. Writing happens on a goroutine of its own
// and syncing on another, so that neither a full nor a hung disk is felt by
// those who make rows.
type csvFile struct {
	dir, name string
	header    []byte
	note      fileNote
	// partBytes, if set, is the size at which the file is put aside.
	partBytes int64

	// in is closed under mu; rows that come later are dropped.
	mu      sync.Mutex
	closed  bool
	in      chan []byte
	dropped atomic.Int64
	dirty   chan struct{}
	written chan struct{}
	synced  chan struct{}

	// The rest belongs to the writing goroutine, but for file, which the
	// syncing one borrows.
	file    atomic.Pointer[os.File]
	size    int64
	pending [][]byte
	// rest comes before all rows: the header, or what is left of a row after a
	// write cut short, so that no line is torn.
	rest []byte
}

func newCSVFile(dir, name string, header []byte, note fileNote) *csvFile {
	f := &csvFile{
		dir: dir, name: name, header: header, note: note,
		in:      make(chan []byte, queueRows),
		dirty:   make(chan struct{}, 1),
		written: make(chan struct{}),
		synced:  make(chan struct{}),
	}
	go f.write()
	go f.sync()
	return f
}

// row queues a row, which ends in a newline and belongs to the file from now
// on. It never waits.
func (f *csvFile) row(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	select {
	case f.in <- b:
	default:
		// The writer hangs in a write. It is told from elsewhere: whoever makes
		// rows may hold a lock.
		if f.dropped.Add(1) == 1 {
			go f.note(f.name, troubleWrite, errStalled, 0)
		}
	}
}

var errStalled = errors.New("the disk has taken no row for minutes")

// close ends the file after the rows queued so far; see wait.
func (f *csvFile) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.in)
	}
}

// wait waits, at most for d, until a closed file is on disk.
func (f *csvFile) wait(d time.Duration) {
	select {
	case <-f.synced:
	case <-time.After(d):
	}
}

func (f *csvFile) write() {
	defer close(f.written)
	defer close(f.dirty)
	retry := time.NewTimer(0)
	retry.Stop()
	for open := true; open; {
		select {
		case row, more := <-f.in:
			open = more
			if more {
				f.keep(row)
			}
		case <-retry.C:
		}
		if f.flush() != nil {
			retry.Reset(retryAfter)
		}
	}
}

// keep adds a row to those that wait; the oldest goes when there are too many.
func (f *csvFile) keep(row []byte) {
	if len(f.pending) >= pendingRows {
		f.pending = slices.Delete(f.pending, 0, 1)
		f.dropped.Add(1)
	}
	f.pending = append(f.pending, row)
}

// flush writes what waits.
func (f *csvFile) flush() error {
	if len(f.pending) == 0 && len(f.rest) == 0 {
		return nil
	}
	err := f.append()
	if err != nil {
		f.note(f.name, troubleWrite, err, 0)
		return err
	}
	f.note(f.name, troubleWrite, nil, int(f.dropped.Swap(0)))
	select {
	case f.dirty <- struct{}{}:
	default:
	}
	return nil
}

func (f *csvFile) append() error {
	for len(f.rest) > 0 || len(f.pending) > 0 {
		file, err := f.opened()
		if err != nil {
			return err
		}
		if len(f.rest) == 0 {
			f.rest, f.pending = f.pending[0], f.pending[1:]
		}
		n, err := file.Write(f.rest)
		f.size += int64(n)
		f.rest = f.rest[n:]
		if err != nil {
			return err
		}
	}
	// Started anew, or the array behind it would grow for ever.
	f.pending, f.rest = nil, nil
	return nil
}

// opened returns the file, opening it or starting its next part first; what has
// to stand at its beginning is then the rest to be written.
func (f *csvFile) opened() (*os.File, error) {
	file := f.file.Load()
	if file != nil && len(f.rest) == 0 && f.partBytes > 0 && f.size >= f.partBytes {
		if err := f.putAside(); err != nil {
			return nil, err
		}
		f.file.Store(nil)
		// The syncing goroutine will not see this part again. A sync that is
		// running keeps the descriptor until it is done.
		_ = fdatasync(file)
		_ = file.Close()
		file = nil
	}
	if file != nil {
		return file, nil
	}
	file, err := os.OpenFile(filepath.Join(f.dir, f.name), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	lead, size, err := f.leadIn(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	f.rest, f.size = lead, size
	f.file.Store(file)
	return file, nil
}

// leadIn says what has to stand before the next row: the header in a new file,
// a newline after a line that a crash has torn, else nothing.
func (f *csvFile) leadIn(file *os.File) (lead []byte, size int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	size = info.Size()
	if size == 0 {
		return f.header, 0, nil
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], size-1); err != nil {
		return nil, 0, err
	}
	if last[0] != '\n' {
		return []byte{'\n'}, size, nil
	}
	return nil, size, nil
}

// putAside gives the file the first free part number.
func (f *csvFile) putAside() error {
	ext := filepath.Ext(f.name)
	for n := 1; ; n++ {
		part := filepath.Join(f.dir, fmt.Sprintf("%s.%03d%s", f.name[:len(f.name)-len(ext)], n, ext))
		if _, err := os.Lstat(part); errors.Is(err, os.ErrNotExist) {
			return os.Rename(filepath.Join(f.dir, f.name), part)
		} else if err != nil {
			return err
		}
	}
}

// sync brings what is written to the disk, at most once a second and never two
// at a time.
func (f *csvFile) sync() {
	defer close(f.synced)
	for range f.dirty {
		start := time.Now()
		f.syncOnce()
		// When the last row is written the rest of the second is not waited
		// for.
		select {
		case <-time.After(syncEvery - time.Since(start)):
		case <-f.written:
		}
	}
	f.syncOnce()
	if file := f.file.Load(); file != nil {
		_ = file.Close()
	}
}

func (f *csvFile) syncOnce() {
	file := f.file.Load()
	if file == nil {
		return
	}
	slow := time.AfterFunc(slowSync, func() {
		f.note(f.name, troubleSlow, fmt.Errorf("the disk has not written it for %v", slowSync), 0)
	})
	err := fdatasync(file)
	if slow.Stop() {
		f.note(f.name, troubleSlow, nil, 0)
	}
	// A part that was put aside meanwhile has been synced there.
	if !errors.Is(err, os.ErrClosed) {
		f.note(f.name, troubleSync, err, 0)
	}
}

func fdatasync(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		for {
			if serr = unix.Fdatasync(int(fd)); !errors.Is(serr, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, serr)
}

// csvRow encodes one line.
func csvRow(cells []string) []byte {
	var b bytes.Buffer
	b.Grow(256)
	w := csv.NewWriter(&b)
	// Writing to a buffer cannot fail.
	_ = w.Write(cells)
	w.Flush()
	return b.Bytes()
}

func telemetryHeader() []byte { return csvRow(sample.Header) }
