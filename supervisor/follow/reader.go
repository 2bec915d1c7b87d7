package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
	"sparkrun/internal/cores"
)

const (
	readMax = 256 << 10
	// pollEvery is how often a reader without a Wake looks.
	pollEvery = 50 * time.Millisecond
	// wakeCheck is how often one with a Wake looks anyway: a push can be lost
	// with its connection.
	wakeCheck = time.Second
	// ringAfter is how long bytes may be on their way to the disk before they
	// are taken from the holder's memory.
	ringAfter = 20 * time.Millisecond
	// skipAfter is how long bytes may be neither on the disk nor in that memory
	// before a reader goes on without them.
	skipAfter = 2 * time.Second
)

// Source is an attempt's output. Only Dir is needed; the rest makes a reader
// quicker, or lets it see what the disk did not take.
type Source struct {
	// Dir is the attempt's folder.
	Dir string
	// Wake is sent to when there may be more; nil, or closed, means to look
	// every 50 ms.
	Wake <-chan struct{}
	// Total returns how many bytes the command has printed and up to where they
	// are on the disk or named in gaps.jsonl, as the holder says.
	Total func() (printed, written int64, known bool)
	// Ring reads from the holder's memory. off is where data begins: from, or
	// later where from is no longer there.
	Ring func(from int64) (off int64, data []byte, err error)
	// Final is asked whether the attempt is over, and how much was printed: -1
	// where nobody knows. With nil a Reader follows until its context ends.
	Final func() (offset int64, done bool)
}

// Chunk is a piece of the output.
type Chunk struct {
	// Offset is the logical offset of Data.
	Offset int64
	// Data is valid until the next call.
	Data []byte
	// Missing is how many bytes just before Data are lost.
	Missing int64
}

// Reader reads the output of one attempt in order. It is used by one goroutine.
type Reader struct {
	src  Source
	wake <-chan struct{}
	off  int64
	// missing counts the lost bytes not yet told.
	missing int64
	file    *os.File
	gaps    *gapList
	buf     []byte

	behind time.Time // since when nothing came although more was printed
	failed time.Time // since when the file cannot be read
	now    func() time.Time
	poll   time.Duration
	timer  *alarm.Timer
}

// NewReader returns a reader that begins at the logical offset from.
func NewReader(src Source, from int64) *Reader {
	return &Reader{src: src, wake: src.Wake, off: max(from, 0), gaps: newGapList(src.Dir), now: time.Now, poll: pollEvery, timer: alarm.New()}
}

// Offset is where the next chunk begins, lost bytes aside.
func (r *Reader) Offset() int64 { return r.off }

// Close closes the file. A Reader that reached io.EOF has done so.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// Next returns the next piece, waiting for it if need be. It returns io.EOF when
// everything up to the final offset was delivered or can no longer be had, the
// context's error when that ends first, and an error when the disk cannot be
// read and nothing else has the bytes. Bytes lost at the very end come as a
// chunk without data.
func (r *Reader) Next(ctx context.Context) (Chunk, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Chunk{}, err
		}
		// Asked before the file is: what is there after the end is all there
		// will be.
		final, done := int64(-1), false
		if r.src.Final != nil {
			final, done = r.src.Final()
		}
		if done && final >= 0 && r.off >= final {
			return r.end()
		}
		data, err := r.fromDisk()
		if err != nil && r.failed.IsZero() {
			r.failed = r.now()
		}
		if len(data) == 0 {
			data = r.fromRing(done)
		}
		if err != nil && !done && r.now().Sub(r.failed) < skipAfter {
			err = nil // it may be back in a moment
		}
		if len(data) > 0 {
			r.behind, r.failed = time.Time{}, time.Time{}
			c := Chunk{Offset: r.off, Data: data, Missing: r.missing}
			r.off += int64(len(data))
			r.missing = 0
			cores.Moved(len(data))
			return c, nil
		}
		if err != nil {
			return Chunk{}, err
		}
		if done {
			if final > r.off {
				r.missing += final - r.off
				r.off = final
			}
			return r.end()
		}
		if err := r.wait(ctx); err != nil {
			return Chunk{}, err
		}
	}
}

// end tells what was lost at the end, once, and then io.EOF.
func (r *Reader) end() (Chunk, error) {
	if r.missing > 0 {
		c := Chunk{Offset: r.off, Missing: r.missing}
		r.missing = 0
		return c, nil
	}
	_ = r.Close()
	return Chunk{}, io.EOF
}

func (r *Reader) wait(ctx context.Context) error {
	d := r.poll
	if r.wake != nil {
		d = wakeCheck
		if !r.behind.IsZero() {
			d = ringAfter
		}
	}
	if d == wakeCheck {
		d = clock.Beat(d)
	}
	r.timer.Reset(d)
	defer r.timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case _, open := <-r.wake:
		if !open {
			r.wake = nil // the holder is gone; the file still tells the rest
		}
	case <-r.timer.C:
	}
	return nil
}

// fromDisk reads from output.log at the offset, stepping over gaps that nobody
// can fill.
func (r *Reader) fromDisk() ([]byte, error) {
	for {
		end, next, pos := r.gaps.at(r.off)
		if end > 0 {
			// The disk lost these; the holder's memory may still have them.
			if data := r.ring(end - r.off); len(data) > 0 {
				return data, nil
			}
			r.missing += end - r.off
			r.off = end
			continue
		}
		n := int64(readMax)
		if next >= 0 {
			n = min(n, next-r.off)
		}
		data, err := r.readAt(pos, n)
		if err != nil {
			return nil, err
		}
		// A gap is written down before the bytes that follow it. One that came
		// in the meantime may be what these bytes follow: look again.
		changed, err := r.gaps.refresh()
		if err != nil {
			return nil, err
		}
		if !changed {
			return data, nil
		}
	}
}

func (r *Reader) readAt(pos, n int64) ([]byte, error) {
	if r.file == nil {
		f, err := os.Open(filepath.Join(r.src.Dir, outputName))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the output: %w", err)
		}
		r.file = f
	}
	if r.buf == nil {
		r.buf = make([]byte, readMax)
	}
	k, err := r.file.ReadAt(r.buf[:n], pos)
	if err != nil && !errors.Is(err, io.EOF) && k == 0 {
		return nil, fmt.Errorf("reading the output: %w", err)
	}
	return r.buf[:k], nil
}

// fromRing takes bytes that were printed but do not come to the disk. It waits a
// moment for the disk first: the file is the cheaper way, and whole.
func (r *Reader) fromRing(done bool) []byte {
	if r.src.Ring == nil {
		return nil
	}
	if r.src.Total != nil && !done {
		if printed, _, known := r.src.Total(); known && printed <= r.off {
			r.behind = time.Time{}
			return nil
		}
	}
	if r.behind.IsZero() {
		r.behind = r.now()
	}
	waited := r.now().Sub(r.behind)
	if waited < ringAfter && !done {
		return nil
	}
	off, data, err := r.src.Ring(r.off)
	if err != nil || len(data) == 0 {
		return nil
	}
	if off > r.off {
		// What lies between is with the holder's disk writer, or lost.
		if waited < skipAfter && !done {
			return nil
		}
		r.missing += off - r.off
		r.off = off
		return data
	}
	return clip(off, data, r.off)
}

// ring asks the holder's memory for at most n bytes at the offset.
func (r *Reader) ring(n int64) []byte {
	if r.src.Ring == nil {
		return nil
	}
	off, data, err := r.src.Ring(r.off)
	if err != nil {
		return nil
	}
	if off > r.off {
		if off >= r.off+n || len(data) == 0 {
			return nil
		}
		n -= off - r.off
		r.missing += off - r.off
		r.off = off
	}
	data = clip(off, data, r.off)
	return data[:min(int64(len(data)), n)]
}

// clip cuts off what lies before want.
func clip(off int64, data []byte, want int64) []byte {
	if skip := want - off; skip > 0 {
		return data[min(skip, int64(len(data))):]
	}
	return data
}
