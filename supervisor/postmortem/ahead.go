package postmortem

import (
	"io"
	"sync"
)

const (
	// aheadSize is one read, aheadBlocks how many may lie ready.
	aheadSize   = 256 << 10
	aheadBlocks = 4
)

// ahead reads on a goroutine of its own while what was read is being looked at: a
// fifth of the time goes into copying out of the kernel, and there is a second
// core for that.
type ahead struct {
	full chan block
	free chan []byte
	stop chan struct{}
	once sync.Once
	// cur is what is left of the block in hand, whole all of it; err comes after
	// it.
	cur, whole []byte
	err        error
}

type block struct {
	data []byte // its capacity is the whole buffer
	err  error
}

func readAhead(r io.Reader) *ahead {
	a := &ahead{full: make(chan block, aheadBlocks), free: make(chan []byte, aheadBlocks), stop: make(chan struct{})}
	for range aheadBlocks {
		a.free <- nil
	}
	go a.run(r)
	return a
}

func (a *ahead) run(r io.Reader) {
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-a.stop:
			return
		}
		if buf == nil {
			buf = make([]byte, aheadSize)
		}
		n, err := r.Read(buf[:aheadSize])
		select {
		case a.full <- block{buf[:n], err}:
		case <-a.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read gives out what was read, in order.
func (a *ahead) Read(b []byte) (int, error) {
	if len(a.cur) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.whole != nil {
			a.free <- a.whole
		}
		next := <-a.full
		a.cur, a.whole, a.err = next.data, next.data[:0], next.err
	}
	n := copy(b, a.cur)
	a.cur = a.cur[n:]
	if n == 0 && len(b) > 0 {
		return 0, a.err
	}
	return n, nil
}

// Close ends the reading ahead; a read that is under way is not waited for.
func (a *ahead) Close() error {
	a.once.Do(func() { close(a.stop) })
	return nil
}
