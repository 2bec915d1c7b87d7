package sampler

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	// syncEvery is the least time between two syncs, a little less than rows are usually
	// apart; slowSync is what makes one worth an event.
	syncEvery = 900 * time.Millisecond
	slowSync  = 2 * time.Second
	// telemetryPart is the size at which telemetry.csv is put aside as
	// telemetry.001.csv and so on: about two days at a row a second.
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
	// partBytes, if set, is the size at which the file is put aside; toDisk brings it to
	// the disk, and onSync, if set, hears how long that took. All are set before the first
	// row.
	partBytes int64
	toDisk    func(*os.File) error
	onSync    func(name string, took time.Duration)

	// in is closed under mu; rows that come later are dropped.
	mu      sync.Mutex
	closed  bool
	in      chan []byte
	dropped atomic.Int64
	dirty   chan struct{}
	synced  chan struct{}

	// The rest belongs to the writing goroutine, but for file, which the
	// syncing one borrows.
	file    atomic.Pointer[os.File]
	size    int64
	asideAt int64 // the size at which putting the file aside is tried again
	pending [][]byte
	// rest comes before all rows: the header, or what is left of a row after a
	// write cut short, so that no line is torn.
	rest []byte
}

func newCSVFile(dir, name string, header []byte, note fileNote) *csvFile {
	f := &csvFile{
		dir: dir, name: name, header: header, note: note, toDisk: fdatasync,
		in:     make(chan []byte, queueRows),
		dirty:  make(chan struct{}, 1),
		synced: make(chan struct{}),
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
	if file != nil && len(f.rest) == 0 && f.partBytes > 0 && f.size >= max(f.partBytes, f.asideAt) {
		if aside := f.putAside() == nil; !aside {
			// A folder that cannot be changed: a part that grows loses nothing.
			f.asideAt = f.size + f.partBytes/16
			return file, nil
		}
		f.asideAt = 0
		f.file.Store(nil)
		// The syncing goroutine will not see this part again. A sync that is
		// running keeps the descriptor until it is done.
		_ = f.toDisk(file)
		_ = file.Close()
		syncFolder(f.dir)
		file = nil
	}
	if file != nil {
		return file, nil
	}
	file, err := f.open()
	if err != nil {
		return nil, err
	}
	lead, size, err := f.leadIn(file)
	if errors.Is(err, errOtherHeader) {
		// A file of another release: its rows would not fit ours.
		file.Close()
		if err := f.putAside(); err != nil {
			return nil, err
		}
		if file, err = f.open(); err != nil {
			return nil, err
		}
		lead, size, err = f.leadIn(file)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	f.rest, f.size = lead, size
	f.file.Store(file)
	return file, nil
}

func (f *csvFile) open() (*os.File, error) {
	return os.OpenFile(filepath.Join(f.dir, f.name), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
}

var errOtherHeader = errors.New("the file begins with another header")

// leadIn says what has to stand before the next row: the header, or what a crash has left
// out of it, in a new file, a newline after a line that a crash has torn, else nothing.
// What is there is never touched.
func (f *csvFile) leadIn(file *os.File) (lead []byte, size int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	size = info.Size()
	head := make([]byte, min(size, int64(len(f.header))))
	if _, err := file.ReadAt(head, 0); err != nil {
		return nil, 0, err
	}
	switch {
	case !bytes.HasPrefix(f.header, head):
		return nil, 0, errOtherHeader
	case len(head) < len(f.header):
		return f.header[len(head):], size, nil
	case size == 0:
		return nil, 0, nil
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

// putAside gives the file the first free part number. A file that is there already is
// never replaced, whoever made it.
func (f *csvFile) putAside() error {
	ext := filepath.Ext(f.name)
	whole := filepath.Join(f.dir, f.name)
	for n := 1; ; n++ {
		part := filepath.Join(f.dir, fmt.Sprintf("%s.%03d%s", f.name[:len(f.name)-len(ext)], n, ext))
		if _, err := os.Lstat(part); err == nil {
			continue
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		err := unix.Renameat2(unix.AT_FDCWD, whole, unix.AT_FDCWD, part, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EINTR):
			n--
			continue
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
			// A file system or a kernel that does not know the flag.
			return os.Rename(whole, part)
		case err != nil:
			return &os.LinkError{Op: "rename", Old: whole, New: part, Err: err}
		}
		return nil
	}
}

// syncFolder makes new names last. Where it fails, a sync of the files does as well.
func syncFolder(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

// sync brings what is written to the disk, at most about once a second and never two at a
// time. Rows a second apart need no timer for it: each wakes the machine once more.
func (f *csvFile) sync() {
	defer close(f.synced)
	var last time.Time
	var late <-chan time.Time
	for {
		select {
		case _, more := <-f.dirty:
			if !more {
				f.syncOnce()
				if file := f.file.Load(); file != nil {
					_ = file.Close()
				}
				return
			}
		case <-late:
			late = nil
		}
		now := time.Now()
		if wait := syncEvery - now.Sub(last); wait > 0 {
			if late == nil {
				late = time.After(wait)
			}
			continue
		}
		last, late = now, nil
		f.syncOnce()
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
	start := time.Now()
	err := f.toDisk(file)
	if slow.Stop() {
		f.note(f.name, troubleSlow, nil, 0)
	}
	if f.onSync != nil && err == nil {
		f.onSync(f.name, time.Since(start))
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

// telemetryHeader is the first line of each part of telemetry.csv.
func telemetryHeader() []byte { return []byte(strings.Join(sample.Header, ",") + "\n") }
