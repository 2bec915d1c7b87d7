package runlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
)

const (
	// queueMax bounds the lines of a JSON lines file that wait for the disk.
	queueMax = 4 << 20
	// syncEvery is the time between two syncs of one file: what comes within it is synced
	// at the next beat.
	syncEvery = time.Second
	// slowSync is from when a sync is worth an event.
	slowSync = 2 * time.Second
	// closeWait bounds how long the end of a run waits for a hung disk.
	closeWait = 5 * time.Second
)

// jsonl appends lines to a file without ever holding up the caller: a queue, a
// goroutine that writes and one that syncs. While the disk refuses, lines wait
// in the queue; the newest are dropped when it is full, since what led to the
// trouble is worth more than its echo.
type jsonl struct {
	path string
	f    *os.File
	// trouble is told when the disk begins to refuse, slow about slow syncs.
	trouble func(err error)
	slow    func(took time.Duration)
	write   func(f *os.File, b []byte) (int, error)

	mu      sync.Mutex
	queue   []byte
	dropped int64
	closing bool

	wake   chan struct{}
	stop   chan struct{}
	dirty  chan struct{}
	done   chan struct{}
	synced chan struct{}
	err    error // of the last write; read after done
}

func openJSONL(path string, trouble func(error), slow func(time.Duration)) (*jsonl, error) {
	f, _, _, err := openLines(path)
	if err != nil {
		return nil, err
	}
	j := &jsonl{
		path: path, f: f, trouble: trouble, slow: slow, write: writeOnce,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), dirty: make(chan struct{}, 1),
		done: make(chan struct{}), synced: make(chan struct{}),
	}
	go j.writeLoop()
	go j.syncLoop()
	return j, nil
}

// put queues one line, which ends in a newline.
func (j *jsonl) put(line []byte) {
	j.mu.Lock()
	switch {
	case j.closing:
	case len(j.queue)+len(line) > queueMax:
		j.dropped++
	default:
		j.queue = append(j.queue, line...)
	}
	j.mu.Unlock()
	poke(j.wake)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (j *jsonl) writeLoop() {
	defer close(j.done)
	var batch []byte // written from the front; what is left goes before the queue
	var retry <-chan time.Time
	failing := false
	for {
		stopping := false
		if retry == nil {
			select {
			case <-j.wake:
			case <-j.stop:
				stopping = true
			}
		} else {
			select {
			case <-retry:
			case <-j.stop:
				stopping = true
			}
		}
		for {
			if len(batch) == 0 {
				j.mu.Lock()
				batch, j.queue = j.queue, batch[:0]
				j.mu.Unlock()
			}
			if len(batch) == 0 {
				break
			}
			n, err := j.write(j.f, batch)
			if n > 0 {
				batch = batch[:copy(batch, batch[n:])]
				poke(j.dirty)
			}
			j.err = err
			if err != nil {
				break
			}
		}
		switch {
		case j.err == nil:
			retry, failing = nil, false
		case stopping:
		default:
			retry = time.After(retryAfter)
			if !failing && j.trouble != nil {
				failing = true
				j.trouble(j.err)
			}
		}
		if stopping {
			return
		}
	}
}

func (j *jsonl) syncLoop() {
	defer close(j.synced)
	wait := alarm.New()
	defer wait.Stop()
	var last time.Time
	for {
		select {
		case <-j.dirty:
		case <-j.done:
			j.sync()
			return
		}
		// The wait comes before a sync and not behind it: who writes once in a while
		// needs no timer, each of which wakes the machine.
		if time.Since(last) < syncEvery {
			wait.Reset(clock.Beat(syncEvery))
			select {
			case <-wait.C:
			case <-j.done:
			}
		}
		last = time.Now()
		j.sync()
		if took := time.Since(last); took > slowSync && j.slow != nil {
			j.slow(took)
		}
	}
}

func (j *jsonl) sync() {
	for {
		if err := unix.Fdatasync(int(j.f.Fd())); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// lost returns how many lines the full queue has cost since it was last asked.
func (j *jsonl) lost() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := j.dropped
	j.dropped = 0
	return n
}

// close writes and syncs what is queued and closes the file. It gives up on a
// disk that hangs.
func (j *jsonl) close() error {
	j.mu.Lock()
	if j.closing {
		j.mu.Unlock()
		return nil
	}
	j.closing = true
	j.mu.Unlock()
	close(j.stop)
	select {
	case <-j.synced:
	case <-time.After(closeWait):
		// The goroutines keep the file; closing it under them would be worse.
		return fmt.Errorf("writing %s: the disk did not answer for %s", filepath.Base(j.path), closeWait)
	}
	err := j.err
	if cerr := j.f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(j.path), err)
	}
	return nil
}
