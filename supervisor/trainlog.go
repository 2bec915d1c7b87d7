package supervisor

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sparkrun/internal/regular"
)

const (
	// trainLogEvery is how often a trainer's own log files are looked at: they get a
	// record every few steps.
	trainLogEvery = time.Second
	// trainLogLine is the longest record that is passed on, trainLogRead the most
	// that is read of one file at a time, trainLogFiles how many are followed and
	// trainLogNames how many are remembered from before the attempt.
	trainLogLine  = 16 << 10
	trainLogRead  = 1 << 20
	trainLogFiles = 16
	trainLogNames = 4096
	// trainLogReady is how long the attempt's start waits to learn where the files
	// stand: they may lie on a network file system that does not answer.
	trainLogReady = 500 * time.Millisecond
	// trainLogMark is how many bytes before the place read up to are compared, to
	// notice a file that was written anew in place.
	trainLogMark = 32
)

// trainLogs follows the log files that a trainer itself writes (trainer_log.jsonl,
// logging.jsonl, training.jsonl), from where each stood at the attempt's start. They
// are the user's: opened for reading only. Everything runs in a goroutine of its own,
// so that a file system that does not answer holds up nothing but it.
type trainLogs struct {
	patterns []string
	emit     func(record []byte, t time.Time)
	now      func() time.Time

	files map[string]*trainLog
	// before has the size of each file that lay there before the attempt and is not
	// open yet.
	before map[string]oldLog

	buf   []byte
	ready chan struct{}
	halt  chan struct{}
	done  chan struct{}
	once  sync.Once
}

// oldLog is a file as it stood at the attempt's start.
type oldLog struct {
	info os.FileInfo
	size int64
}

// trainLog is one file. It is kept open, so that a file that was deleted and made
// anew cannot come back under the same inode number.
type trainLog struct {
	f      *os.File
	info   os.FileInfo
	offset int64
	// mark are the last bytes before offset.
	mark []byte
	part []byte // a record without its end
	skip bool   // a record that is too long is being passed over
}

// followTrainLogs begins to follow the files of the patterns (absolute paths, which
// may have the wildcards of path/filepath.Match). It is to be called before the
// command is started, and returns within half a second. emit is called from another
// goroutine, one record at a time; record is valid until it returns.
func followTrainLogs(ctx context.Context, patterns []string, now func() time.Time, emit func(record []byte, t time.Time)) *trainLogs {
	l := &trainLogs{
		patterns: patterns, emit: emit, now: now,
		files: map[string]*trainLog{}, before: map[string]oldLog{},
		ready: make(chan struct{}), halt: make(chan struct{}), done: make(chan struct{}),
	}
	if len(patterns) == 0 {
		close(l.ready)
		close(l.done)
		return l
	}
	go l.follow(ctx)
	select {
	case <-l.ready:
	case <-time.After(trainLogReady):
	}
	return l
}

// stop reads what is left and ends it, but waits no longer than that.
func (l *trainLogs) stop(most time.Duration) {
	l.once.Do(func() { close(l.halt) })
	select {
	case <-l.done:
	case <-time.After(most):
	}
}

func (l *trainLogs) follow(ctx context.Context) {
	defer close(l.done)
	l.begin()
	close(l.ready)
	defer func() {
		for _, t := range l.files {
			t.close()
		}
	}()
	tick := time.NewTicker(trainLogEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.halt:
			// The end: everything that is there, and records without a line end.
			for range 64 {
				if !l.poll() {
					break
				}
			}
			for _, t := range l.files {
				l.flush(t)
			}
			return
		case <-tick.C:
			l.poll()
		}
	}
}

// begin notes where the files stand. The newest are opened at once.
func (l *trainLogs) begin() {
	paths := l.paths()
	for i, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if i < trainLogFiles {
			if t, err := openTrainLog(path); err == nil {
				t.offset = t.info.Size()
				t.remember()
				l.files[path] = t
				continue
			}
		}
		if len(l.before) < trainLogNames {
			l.before[path] = oldLog{info: info, size: info.Size()}
		}
	}
}

// paths returns the files that the patterns name, the newest first.
func (l *trainLogs) paths() []string {
	type found struct {
		path string
		t    time.Time
	}
	var all []found
	seen := map[string]bool{}
	add := func(path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			all = append(all, found{path, info.ModTime()})
		}
	}
	for _, p := range l.patterns {
		add(p) // as it stands: a folder may have brackets in its name
		if strings.ContainsAny(p, `*?[`) {
			names, err := filepath.Glob(p)
			if err != nil {
				continue // brackets that are none of a pattern
			}
			for _, n := range names {
				add(n)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return b.t.Compare(a.t) })
	paths := make([]string, len(all))
	for i, f := range all {
		paths[i] = f.path
	}
	return paths
}

// poll reads what is new. It tells whether there was anything.
func (l *trainLogs) poll() (more bool) {
	for _, t := range l.files {
		more = l.read(t) || more
	}
	for _, path := range l.paths() {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		t := l.files[path]
		if t != nil && os.SameFile(info, t.info) {
			continue
		}
		old, was := l.before[path]
		was = was && os.SameFile(info, old.info)
		if was && info.Size() == old.size {
			continue // of an earlier run, and nobody writes to it
		}
		next, err := openTrainLog(path)
		if err != nil {
			continue
		}
		if t != nil {
			// It was rotated, or deleted and made anew: first the rest of the old one.
			for range 64 {
				if !l.read(t) {
					break
				}
			}
			l.flush(t)
			t.close()
		} else if !l.makeRoom() {
			next.close()
			continue
		}
		if was && old.size <= next.info.Size() {
			next.offset = old.size
			next.remember()
		}
		delete(l.before, path)
		l.files[path] = next
		more = l.read(next) || more
	}
	return more
}

// makeRoom tells whether another file can be opened, after closing the one that was
// written to the longest ago if need be.
func (l *trainLogs) makeRoom() bool {
	if len(l.files) < trainLogFiles {
		return true
	}
	var (
		path string
		last time.Time
	)
	for p, t := range l.files {
		if info, err := t.f.Stat(); err == nil && (path == "" || info.ModTime().Before(last)) {
			path, last = p, info.ModTime()
		}
	}
	if path == "" {
		return false
	}
	t := l.files[path]
	if len(l.before) < trainLogNames {
		l.before[path] = oldLog{info: t.info, size: t.offset}
	}
	t.close()
	delete(l.files, path)
	return true
}

// read passes on the complete records behind the offset.
func (l *trainLogs) read(t *trainLog) bool {
	info, err := t.f.Stat()
	if err != nil {
		return false
	}
	if info.Size() < t.offset || !t.same() {
		t.offset, t.mark, t.part, t.skip = 0, nil, nil, false // written anew in place
	}
	if l.buf == nil {
		l.buf = make([]byte, 64<<10)
	}
	read := int64(0)
	for read < trainLogRead {
		n, err := t.f.ReadAt(l.buf, t.offset)
		l.take(t, l.buf[:n])
		t.offset += int64(n)
		read += int64(n)
		if err != nil || n == 0 {
			break
		}
	}
	if read > 0 {
		t.remember()
	}
	return read > 0
}

// take cuts what was read into records.
func (l *trainLogs) take(t *trainLog, data []byte) {
	for len(data) > 0 {
		nl := bytes.IndexByte(data, '\n')
		end := nl
		if nl < 0 {
			end = len(data)
		}
		if !t.skip {
			if len(t.part)+end > trainLogLine {
				t.part, t.skip = t.part[:0], true
			} else {
				t.part = append(t.part, data[:end]...)
			}
		}
		if nl < 0 {
			return
		}
		if !t.skip {
			l.flush(t)
		}
		t.skip = false
		data = data[nl+1:]
	}
}

// flush passes the record on that has been gathered.
func (l *trainLogs) flush(t *trainLog) {
	if record := bytes.TrimSpace(t.part); len(record) > 0 {
		l.emit(record, l.now())
	}
	t.part = t.part[:0]
}

// openTrainLog opens a regular file for reading. A pipe is not opened: that would let
// a writer run into one that nobody reads.
func openTrainLog(path string) (*trainLog, error) {
	f, info, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	return &trainLog{f: f, info: info}, nil
}

func (t *trainLog) close() { _ = t.f.Close() }

// remember keeps the bytes before the offset.
func (t *trainLog) remember() {
	n := min(t.offset, trainLogMark)
	mark := make([]byte, n)
	if _, err := t.f.ReadAt(mark, t.offset-n); err != nil && err != io.EOF {
		mark = nil
	}
	t.mark = mark
}

// same tells whether the bytes before the offset are still what they were.
func (t *trainLog) same() bool {
	if len(t.mark) == 0 {
		return true
	}
	now := make([]byte, len(t.mark))
	n, err := t.f.ReadAt(now, t.offset-int64(len(t.mark)))
	if err != nil && n < len(now) {
		return err != io.EOF // one that cannot be read now is not a new one
	}
	return bytes.Equal(now, t.mark)
}
