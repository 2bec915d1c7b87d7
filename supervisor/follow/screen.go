package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sayMax is how many lines of ours wait for a slow terminal.
	sayMax = 1024
	// unsafeMax is how long a line of ours waits for the end of an escape
	// sequence that the command left half written.
	unsafeMax = time.Second
	// ttyPiece and pipePiece bound one write, so that progress on a slow
	// terminal can be seen; a serial line takes some 10 KiB a second.
	ttyPiece  = 4 << 10
	pipePiece = 64 << 10
	// stuckPoll is how often a wait for a full, non-blocking terminal looks
	// whether the screen was closed.
	stuckPoll = 200
)

// ErrTerminalLost is what Child returns once writing to the terminal has failed.
var ErrTerminalLost = errors.New("the terminal is gone")

// ScreenOptions say how a Screen behaves.
type ScreenOptions struct {
	// Raw says whether the terminal is in raw mode now: our lines then end in
	// CR LF. nil means never.
	Raw func() bool
	// Quiet leaves out our own lines.
	Quiet bool
}

// Screen is the only writer to our terminal: the command's bytes go to stdout as
// they are, our own lines to stderr, never into the middle of an escape sequence
// or of a character. A goroutine of its own does all writing, so that only it
// waits for a terminal that is slow, stopped or gone.
type Screen struct {
	opts   ScreenOptions
	out    *stream
	err    *stream
	shared bool // both are the same terminal: what one leaves the other meets

	bytes chan piece
	wake  chan struct{}
	quit  chan struct{}
	lost  chan struct{}
	moved chan struct{} // poked when something was written or nothing is left

	mu      sync.Mutex
	queue   []string
	skipped int
	pending int   // lines queued and pieces handed over, not yet written
	written int64 // counts pieces, for Drain
	force   bool  // write our lines whatever state the terminal is in
	closing sync.Once
	losing  sync.Once

	// Only the goroutine uses these.
	state   escState
	midLine bool
	since   time.Time // when our oldest line began to wait for a safe place
}

// piece is a part of the command's output, owned by the screen until done.
type piece struct {
	data []byte
	done chan struct{}
}

// NewScreen returns a screen that writes the command's bytes to out and our lines
// to errOut. Neither is closed, and their mode is left as it is.
func NewScreen(out, errOut *os.File, opts ScreenOptions) *Screen {
	s := &Screen{
		opts: opts, out: newStream(out), err: newStream(errOut),
		bytes: make(chan piece), wake: make(chan struct{}, 1), quit: make(chan struct{}),
		lost: make(chan struct{}), moved: make(chan struct{}, 1),
	}
	s.shared = s.out.tty && s.err.tty && s.out.dev == s.err.dev
	go s.loop()
	return s
}

// Say shows a line of ours, without its end, at the start of a line. It never
// waits: a terminal that takes nothing costs the oldest lines.
func (s *Screen) Say(line string) {
	if s.opts.Quiet || s.isLost() {
		return
	}
	s.mu.Lock()
	if len(s.queue) >= sayMax {
		s.queue = s.queue[1:]
		s.skipped++
		s.pending--
	}
	s.queue = append(s.queue, line)
	s.pending++
	s.mu.Unlock()
	poke(s.wake)
}

// Child shows what r reads until its end. It returns nil at the end,
// ErrTerminalLost when there is no terminal (any more), the context's error, or
// what r met. Only the calling goroutine waits. It does not close r.
func (s *Screen) Child(ctx context.Context, r *Reader) error {
	// Handed to the writing goroutine, and left to it when ctx ends in a write.
	buf := make([]byte, 0, readMax)
	for {
		if s.isLost() {
			return ErrTerminalLost
		}
		c, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(c.Data) == 0 {
			continue
		}
		p := piece{data: append(buf[:0], c.Data...), done: make(chan struct{})}
		s.addPending(1)
		select {
		case s.bytes <- p:
		case <-s.lost:
			s.addPending(-1)
			return ErrTerminalLost
		case <-s.quit:
			s.addPending(-1)
			return ErrTerminalLost
		case <-ctx.Done():
			s.addPending(-1)
			return ctx.Err()
		}
		select {
		case <-p.done:
		case <-s.lost:
			return ErrTerminalLost
		case <-s.quit:
			return ErrTerminalLost
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Lost is closed when writing to the terminal has failed. Nothing is written any
// more then; everything else goes on.
func (s *Screen) Lost() <-chan struct{} { return s.lost }

// Drain waits until everything handed over is written. It goes on for as long as
// the terminal takes something at least every d, and is false when it stopped
// doing so or is lost.
func (s *Screen) Drain(d time.Duration) bool {
	s.mu.Lock()
	s.force = true
	seen := s.written
	s.mu.Unlock()
	poke(s.wake)
	defer func() {
		s.mu.Lock()
		s.force = false
		s.mu.Unlock()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		if s.isLost() {
			return false
		}
		s.mu.Lock()
		left, now := s.pending, s.written
		s.mu.Unlock()
		if left == 0 {
			return true
		}
		if now != seen {
			seen = now
			timer.Reset(d)
		}
		select {
		case <-s.moved:
		case <-s.lost:
		case <-s.quit:
			return false
		case <-timer.C:
			s.mu.Lock()
			stuck := s.pending > 0 && s.written == seen
			s.mu.Unlock()
			if stuck {
				return false
			}
			timer.Reset(d)
		}
	}
}

// Close ends the goroutine without waiting for it or for what is not written;
// Drain does that.
func (s *Screen) Close() { s.closing.Do(func() { close(s.quit) }) }

func (s *Screen) isLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

func (s *Screen) addPending(n int) {
	s.mu.Lock()
	s.pending += n
	s.mu.Unlock()
	poke(s.moved)
}

func (s *Screen) loop() {
	for {
		var late <-chan time.Time
		if !s.since.IsZero() {
			late = time.After(time.Until(s.since.Add(unsafeMax)))
		}
		select {
		case <-s.quit:
			return
		case <-s.lost:
			return
		case p := <-s.bytes:
			s.child(p.data)
			close(p.done)
			s.addPending(-1)
		case <-s.wake:
		case <-late:
		}
		s.say()
		if s.isLost() {
			return
		}
	}
}

func (s *Screen) child(data []byte) {
	if !s.write(s.out, data) || !s.shared {
		return
	}
	s.state.feed(data)
	s.midLine = data[len(data)-1] != '\n'
}

// say writes our waiting lines, if this is a place for them.
func (s *Screen) say() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.mu.Unlock()
			s.since = time.Time{}
			return
		}
		force := s.force
		s.mu.Unlock()

		var prefix string
		if s.shared && !s.state.ground() {
			if s.since.IsZero() {
				s.since = time.Now()
			}
			if !force && time.Since(s.since) < unsafeMax {
				return
			}
			// CAN is what ends a sequence in a terminal, whichever it is.
			prefix = string(rune(can))
			s.state = escState{}
		}
		s.since = time.Time{}
		if s.shared && s.midLine {
			prefix += "\r\n"
		}
		s.mu.Lock()
		line := s.queue[0]
		s.queue = s.queue[1:]
		skipped := s.skipped
		s.skipped = 0
		s.mu.Unlock()

		end := "\n"
		if s.err.tty && s.opts.Raw != nil && s.opts.Raw() {
			end = "\r\n"
		}
		if skipped > 0 {
			prefix += fmt.Sprintf("(%d lines not shown, the terminal was too slow)", skipped) + end
		}
		ok := s.write(s.err, []byte(prefix+line+end))
		s.midLine = false
		s.addPending(-1)
		if !ok {
			return
		}
	}
}

// write puts all of b on the terminal. It is false when that is not possible any
// more, which is told once.
func (s *Screen) write(to *stream, b []byte) bool {
	for len(b) > 0 {
		n, err := to.write(b)
		if n > 0 {
			b = b[n:]
			s.mu.Lock()
			s.written++
			s.mu.Unlock()
			poke(s.moved)
		}
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			to.wait(stuckPoll)
		default:
			s.losing.Do(func() { close(s.lost) })
			return false
		}
		select {
		case <-s.quit:
			return false
		default:
		}
	}
	return true
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
