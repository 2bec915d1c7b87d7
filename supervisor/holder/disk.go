package holder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
)

const (
	// retryEvery is the wait after the disk refused.
	retryEvery = 500 * time.Millisecond
	// writeMax is the largest single write, batchBelow the size under which
	// the writer waits batchWait for more: a system call per 4 KiB that a
	// terminal hands over would cost more than the copying.
	writeMax = 256 << 10
	// It is longer than grewEvery, so that what is told of the writing has no wait
	// of its own.
	batchBelow = 64 << 10
	batchWait  = grewEvery + time.Millisecond
	// Free space is looked up once per spaceEvery or spaceBytes.
	spaceEvery = 250 * time.Millisecond
	spaceBytes = 16 << 20
	// finalTries is how often a refusing disk is asked at the very end.
	finalTries = 3
	// rescueBytes is the newest output that the reserve is given up for at the
	// very end. Most of the reserve is left for exit.json and run.json.
	rescueBytes = 256 << 10
	// syncEvery is the distance between two syncs of one file: what comes within it is
	// synced at the next beat.
	syncEvery = time.Second
)

// disk appends the ring to output.log and output.idx.
type disk struct {
	ring     *ring
	dir      string
	log, idx *os.File
	minFree  uint64
	// onGap is told of every recorded gap.
	onGap func(Gap)
	// done is closed when the writer has written all it could after finish.
	done chan struct{}

	sync *syncer

	mu       sync.Mutex
	refused  refusal
	gapBytes int64

	// Of the writer goroutine alone.
	buf       []byte
	records   []indexRecord
	idxBytes  []byte
	spaceAt   time.Time
	spaceLeft int64
}

// refusal is why and since when the disk does not take what it is given; its
// errno is 0 while it does.
type refusal struct {
	errno syscall.Errno
	why   string
	since time.Time
}

// lowSpace is a disk that has some room, all of which is to be left free.
type lowSpace struct{ free, min uint64 }

func (e lowSpace) Error() string {
	return fmt.Sprintf("only %d MiB free, less than the %d MiB that are kept free (--min-free)", e.free>>20, e.min>>20)
}

func (lowSpace) Unwrap() error { return unix.ENOSPC }

// noSpace says whether err means that the disk or the quota is used up.
func noSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// openDisk creates the files. They must not hold anything yet: an attempt that
// has been is never overwritten or appended to.
func openDisk(dir string, r *ring, minFree uint64, onGap func(Gap)) (*disk, error) {
	if _, err := os.Lstat(filepath.Join(dir, exitName)); err == nil {
		return nil, &StartError{Stage: StageDir, Path: dir, Detail: "it holds an attempt that is over"}
	}
	d := &disk{ring: r, dir: dir, minFree: minFree, onGap: onGap, done: make(chan struct{}), buf: make([]byte, writeMax)}
	for _, f := range []struct {
		name string
		to   **os.File
	}{{logName, &d.log}, {idxName, &d.idx}} {
		path := filepath.Join(dir, f.name)
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, startError(StageDir, path, err)
		}
		if st, err := file.Stat(); err != nil || st.Size() > 0 {
			return nil, &StartError{Stage: StageDir, Path: path, Detail: "it is there already and not empty"}
		}
		*f.to = file
	}
	// The index first: whoever sees a byte is to see when it came.
	d.sync = newSyncer(d.idx, d.log)
	return d, nil
}

// state returns why the disk refuses now and the bytes lost.
func (d *disk) state() (refused refusal, gapBytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused, d.gapBytes
}

func (d *disk) slowestSync() time.Duration { return d.sync.slowest() }

// run is the writer goroutine.
func (d *disk) run() {
	defer close(d.done)
	tries := 0
	var wrote time.Time // little, and then there may soon be more
	for {
		closing := d.ring.finished()
		if !closing && !d.ring.settled() {
			alarm.Sleep(batchWait - time.Since(wrote))
			d.awaitLine()
		}
		n, err := d.step()
		if err != nil {
			d.refuse(err)
			if closing {
				if tries++; tries >= finalTries {
					return
				}
			}
			d.pause(closing)
			continue
		}
		tries = 0
		d.accept()
		switch {
		case n == 0 && closing:
			return
		case n == 0:
			<-d.ring.work
		case n < batchBelow:
			wrote = time.Now()
		}
	}
}

// awaitLine waits a moment for the end of a line whose beginning came alone, where that
// is how this command writes (Python does, unbuffered): two wakings fewer for each line,
// here and in everybody who reads it.
func (d *disk) awaitLine() {
	rest := d.ring.restOfLine(batchWait)
	if rest <= 0 {
		return
	}
	late := alarm.After(rest)
	defer late.Stop()
	for {
		select {
		case <-d.ring.work:
		case <-late.C:
			return
		}
		if d.ring.finished() || d.ring.restOfLine(batchWait) <= 0 {
			return
		}
	}
}

// pause waits before a retry; the end of the output cuts it short.
func (d *disk) pause(closing bool) {
	if closing {
		time.Sleep(retryEvery / 10)
		return
	}
	timer := time.NewTimer(retryEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-d.ring.work:
			if d.ring.finished() {
				return
			}
		}
	}
}

func (d *disk) refuse(err error) {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = unix.EIO
	}
	why := errno.Error()
	var low lowSpace
	if errors.As(err, &low) {
		why = low.Error()
	}
	d.mu.Lock()
	if d.refused.errno == 0 {
		d.refused.since = time.Now()
	}
	d.refused.errno, d.refused.why = errno, why
	d.mu.Unlock()
	d.ring.refuse(true)
}

func (d *disk) accept() {
	d.mu.Lock()
	was := d.refused.errno
	d.refused = refusal{}
	d.mu.Unlock()
	if was != 0 {
		d.ring.refuse(false)
	}
}

// step writes one piece: a gap record if bytes were lost, else index records
// and then the bytes they describe, so that whoever sees a byte can also see
// when it came. It returns how many bytes were dealt with.
func (d *disk) step() (int, error) {
	if err := d.space(); err != nil {
		return 0, err
	}
	if off, n, since := d.ring.lost(); n > 0 {
		if err := d.giveUp(off, n, since); err != nil {
			return 0, err
		}
		return int(n), nil
	}
	var n int
	n, d.records = d.ring.next(d.buf, d.records[:0])
	for _, rec := range d.records {
		d.idxBytes = rec.appendTo(d.idxBytes)
	}
	if err := d.flushIndex(); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, nil
	}
	done, err := d.log.Write(d.buf[:n])
	if done > 0 {
		d.ring.advance(done)
		d.sync.dirty(d.log)
		d.spaceLeft -= int64(done)
	}
	return done, err
}

// giveUp names n bytes as lost.
func (d *disk) giveUp(off, n int64, since time.Time) error {
	refused, _ := d.state()
	g := newGap(off, n, since, refused)
	if err := appendGap(d.dir, g); err != nil {
		return err
	}
	d.ring.skip(off + n)
	d.mu.Lock()
	d.gapBytes += n
	d.mu.Unlock()
	d.onGap(g)
	return nil
}

// rescue gives the reserve up for the newest output where the disk was full to
// the end: the last lines say why a training died. It may be called when the
// writer is done. What it cannot write either, finalGap names.
func (d *disk) rescue(reserve string) {
	head, written := d.ring.offsets()
	refused, _ := d.state()
	if head == written || !noSpace(refused.errno) || reserve == "" || os.Remove(reserve) != nil {
		return
	}
	d.minFree = 0 // the reserve is more than what is written now
	from, since := max(head-rescueBytes, written), refused.since
	if off, n, lostSince := d.ring.lost(); n > 0 {
		from, since = max(from, off+n), lostSince
	}
	if from > written && d.giveUp(written, from-written, since) != nil {
		return
	}
	d.ring.dropIndex(from)
	for {
		if n, err := d.step(); n == 0 || err != nil {
			return
		}
	}
}

// flushIndex writes the encoded records. What a refusing disk takes of a record
// is completed by the next call, so the file never has a hole in the middle.
func (d *disk) flushIndex() error {
	if len(d.idxBytes) == 0 {
		return nil
	}
	n, err := d.idx.Write(d.idxBytes)
	if n > 0 {
		d.idxBytes = d.idxBytes[:copy(d.idxBytes, d.idxBytes[n:])]
		d.sync.dirty(d.idx)
	}
	// A disk refusing for a night must not gather records without bound.
	if limit := maxIndexPending * indexRecordSize; len(d.idxBytes) > limit {
		whole := len(d.idxBytes) % indexRecordSize
		d.idxBytes = d.idxBytes[:whole+(limit/2/indexRecordSize)*indexRecordSize]
	}
	return err
}

// space fails with ENOSPC while the file system has less than minFree
// available. It asks at intervals, not per write.
func (d *disk) space() error {
	if d.minFree == 0 {
		return nil
	}
	now := time.Now()
	if d.spaceLeft > 0 && now.Sub(d.spaceAt) < spaceEvery {
		return nil
	}
	var st unix.Statfs_t
	// Where the file system does not say, output is written: unknown is no
	// reason to lose any.
	if unix.Fstatfs(int(d.log.Fd()), &st) == nil {
		if avail := st.Bavail * uint64(st.Bsize); avail < d.minFree {
			d.spaceLeft = 0
			return lowSpace{avail, d.minFree}
		}
		d.spaceAt, d.spaceLeft = now, spaceBytes
	}
	return nil
}

func newGap(off, n int64, since time.Time, why refusal) Gap {
	now := time.Now()
	if since.IsZero() {
		since = now
	}
	return Gap{Offset: off, Bytes: n, T0: clock.Machine(since), T1: clock.Machine(now), Errno: why.errno, Error: why.why}
}

// finalGap names what could not be written when the attempt ended; nil when all
// was.
func (d *disk) finalGap() *Gap {
	head, written := d.ring.offsets()
	if head == written {
		return nil
	}
	refused, _ := d.state()
	g := newGap(written, head-written, refused.since, refused)
	return &g
}

// syncer calls fdatasync on files, on each at most once per syncEvery and only when
// something was written to it, in a goroutine of its own. One after the other, since the
// second one finds most of its work done: they lie on one disk.
type syncer struct {
	files []*unsynced
	kick  chan struct{}
	quit  chan struct{}
	done  chan struct{}

	mu  sync.Mutex
	max time.Duration
}

// unsynced is a file, and whether anything was written to it since its last sync.
type unsynced struct {
	f     *os.File
	dirty atomic.Bool
}

func newSyncer(files ...*os.File) *syncer {
	s := &syncer{kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	for _, f := range files {
		s.files = append(s.files, &unsynced{f: f})
	}
	return s
}

// dirty says that something was written to one of the files.
func (s *syncer) dirty(f *os.File) {
	for _, u := range s.files {
		if u.f == f {
			u.dirty.Store(true)
		}
	}
	notify(s.kick)
}

func (s *syncer) slowest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.max
}

func (s *syncer) run() {
	defer close(s.done)
	wait := alarm.New()
	defer wait.Stop()
	var last time.Time
	for {
		select {
		case <-s.kick:
		case <-s.quit:
			s.sync()
			return
		}
		if time.Since(last) < syncEvery {
			wait.Reset(clock.Beat(syncEvery))
			select {
			case <-wait.C:
			case <-s.quit:
				s.sync()
				return
			}
		}
		last = time.Now()
		s.sync()
	}
}

func (s *syncer) sync() {
	for _, u := range s.files {
		if !u.dirty.Swap(false) {
			continue
		}
		began := time.Now()
		// A failed sync loses nothing that a retry could save: the kernel has
		// already dropped the pages and says so once.
		_ = unix.Fdatasync(int(u.f.Fd()))
		took := time.Since(began)
		s.mu.Lock()
		s.max = max(s.max, took)
		s.mu.Unlock()
	}
}

// stop ends the goroutine after one last sync of what is dirty.
func (s *syncer) stop() { close(s.quit) }
