package holder

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
)

const (
	// ringSize is how much output may wait for the disk.
	ringSize = 8 << 20
	// readMax is the largest single read, and the room beyond ringSize into
	// which it goes, so that a pending read costs no waiting byte.
	readMax = 256 << 10
	// indexEvery is the least distance between two index records.
	indexEvery = 10 * time.Millisecond
	// patience is how long the disk may stand still before unwritten bytes are
	// given up. A command that prints faster than a working disk takes is held
	// back as by any file; a full disk holds nobody back, and a hung one does
	// so once, for this long.
	patience = 250 * time.Millisecond
	// leastRoom is the smallest read worth making when the ring is nearly full.
	leastRoom = 4 << 10
	// maxIndexPending bounds the records that wait for a hung disk.
	maxIndexPending = 8192
)

// ring holds the newest output. One goroutine fills it, one empties it to disk,
// and what is written stays until it is overwritten, to be served from memory.
//
// The filler is never refused: when the disk refuses or stands still, it
// overwrites the oldest bytes, and those of them that were not written yet are
// lost, which the writer then finds.
type ring struct {
	mu  sync.Mutex
	buf []byte
	// head is the number of bytes printed. Bytes [head, head+reserved) are
	// being filled right now.
	head, reserved int64
	// written is the offset of the next byte for the disk: everything before
	// is in output.log or recorded as a gap.
	written int64
	// lostSince is when the byte at written was given up; zero if it was not.
	lostSince time.Time
	index     []indexRecord
	lastIndex int64
	closed    bool
	// refusing is whether the disk has said no; moved is when it last took
	// something, or got its first byte to take.
	refusing bool
	moved    time.Time

	// midLine is when the newest byte came if it ended no line, zero if it did. pairs
	// is whether the end of a line has lately come right after such a beginning.
	midLine time.Time
	pairs   bool

	// work wakes the disk writer, changed whoever tells of growth, room the
	// filler.
	work, changed, room chan struct{}
}

// newRing allocates the buffer outside the Go heap: 8 MiB of it would make the
// collector run all the time under a limit of 16 MiB.
func newRing() (*ring, error) {
	buf, err := unix.Mmap(-1, 0, ringSize+readMax, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	return &ring{
		buf: buf, lastIndex: -int64(indexEvery),
		work: make(chan struct{}, 1), changed: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}, nil
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// oldest is the offset of the oldest byte still in memory.
func (r *ring) oldest() int64 {
	return max(0, r.head+r.reserved-int64(len(r.buf)))
}

// reserve returns the place for the next read. It belongs to the caller until
// commit.
func (r *ring) reserve() []byte {
	for {
		b, wait := r.tryReserve()
		if b != nil {
			return b
		}
		timer := time.NewTimer(wait)
		select {
		case <-r.room:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tryReserve returns the place, or how long to wait for a disk that is busy.
func (r *ring) tryReserve() ([]byte, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pos := int(r.head % int64(len(r.buf)))
	n := min(readMax, len(r.buf)-pos)
	if free := int(r.written + int64(len(r.buf)) - r.head); free < n && !r.refusing {
		idle := time.Since(r.moved)
		switch {
		case free >= leastRoom:
			n = free
		case idle < patience:
			return nil, patience - idle
		}
	}
	r.reserved = int64(n)
	r.noteLoss()
	return r.buf[pos : pos+n], 0
}

// commit makes the first n bytes of the reserved place part of the output.
func (r *ring) commit(n int) {
	boot := int64(clock.Boottime())
	r.mu.Lock()
	if n > 0 && (boot-r.lastIndex >= int64(indexEvery) || r.head == 0) {
		r.lastIndex = boot
		if len(r.index) >= maxIndexPending {
			r.thinIndex()
		}
		r.index = append(r.index, indexRecord{off: r.head, real: time.Now().UnixNano(), boot: boot})
	}
	if n > 0 && r.written == r.head {
		r.moved = time.Now()
	}
	if n > 0 {
		r.noteLine(r.buf[(r.head+int64(n)-1)%int64(len(r.buf))], time.Now())
	}
	r.head += int64(n)
	r.reserved = 0
	r.mu.Unlock()
	if n > 0 {
		notify(r.work)
		notify(r.changed)
	}
}

// noteLine learns whether the ends of lines come apart from their beginnings.
func (r *ring) noteLine(last byte, now time.Time) {
	ends := last == '\n' || last == '\r'
	if !r.midLine.IsZero() {
		r.pairs = ends && now.Sub(r.midLine) < batchWait
	}
	r.midLine = now
	if ends {
		r.midLine = time.Time{}
	}
}

// restOfLine is how much of the time most the end of the line that has begun may take
// before it is no longer worth waiting for.
func (r *ring) restOfLine(most time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.pairs || r.midLine.IsZero() || r.head-r.written >= batchBelow {
		return 0
	}
	return most - time.Since(r.midLine)
}

// thinIndex drops every second waiting record, the first one excepted: a disk
// that hangs for hours costs precision, not memory.
func (r *ring) thinIndex() {
	kept := r.index[:0]
	for i, rec := range r.index {
		if i%2 == 0 {
			kept = append(kept, rec)
		}
	}
	r.index = kept
}

func (r *ring) noteLoss() {
	if r.lostSince.IsZero() && r.oldest() > r.written {
		r.lostSince = time.Now()
	}
}

// lost returns the bytes that were overwritten before they were written.
func (r *ring) lost() (off, n int64, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written, max(0, r.oldest()-r.written), r.lostSince
}

// skip marks everything before off as dealt with by a gap record.
func (r *ring) skip(off int64) {
	r.mu.Lock()
	r.written = off
	r.lostSince = time.Time{}
	r.noteLoss()
	r.moved = time.Now()
	r.mu.Unlock()
	notify(r.changed)
	notify(r.room)
}

// next copies unwritten bytes to buf and appends the index records that belong
// before their end to idx. A copy, because a disk that hangs in the middle of
// a write must not hold bytes that the filler needs to overwrite.
//
// n is 0 when there is nothing to write, or when bytes were lost: see lost.
func (r *ring) next(buf []byte, idx []indexRecord) (n int, _ []indexRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.oldest() > r.written {
		return 0, idx
	}
	n = r.copyAt(buf, r.written)
	end := r.written + int64(n)
	k := 0
	for k < len(r.index) && r.index[k].off < end {
		k++
	}
	idx = append(idx, r.index[:k]...)
	r.index = append(r.index[:0], r.index[k:]...)
	return n, idx
}

// dropIndex forgets the records of bytes before off, which are lost, but for the
// last of them.
func (r *ring) dropIndex(off int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := 0
	for k+1 < len(r.index) && r.index[k+1].off <= off {
		k++
	}
	r.index = append(r.index[:0], r.index[k:]...)
}

// advance marks n more bytes as written.
func (r *ring) advance(n int) {
	r.mu.Lock()
	r.written += int64(n)
	if !r.lostSince.IsZero() && r.oldest() <= r.written {
		// What looked lost was in the write that was under way.
		r.lostSince = time.Time{}
	}
	r.moved = time.Now()
	r.mu.Unlock()
	notify(r.changed)
	notify(r.room)
}

// refuse says whether the disk takes what it is given.
func (r *ring) refuse(yes bool) {
	r.mu.Lock()
	r.refusing = yes
	r.mu.Unlock()
	if yes {
		notify(r.room)
	}
}

// copyAt copies the bytes from off on, which must not be before oldest.
func (r *ring) copyAt(buf []byte, off int64) int {
	want := min(int64(len(buf)), r.head-off)
	if want <= 0 {
		return 0
	}
	pos := off % int64(len(r.buf))
	n := copy(buf[:want], r.buf[pos:])
	n += copy(buf[n:want], r.buf)
	return n
}

// read copies output from memory, beginning at from or the oldest byte there.
func (r *ring) read(buf []byte, from int64) (off int64, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	off = min(max(from, r.oldest()), r.head)
	return off, r.copyAt(buf, off)
}

// offsets returns the number of bytes printed and up to where they are dealt
// with.
func (r *ring) offsets() (head, written int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.head, r.written
}

// finish says that no more output will come.
func (r *ring) finish() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	notify(r.work)
}

// settled is whether all that was printed is on the disk, or named as lost.
func (r *ring) settled() bool {
	head, written := r.offsets()
	return head == written
}

// refused is whether the disk has said no.
func (r *ring) refused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusing
}

func (r *ring) finished() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}
