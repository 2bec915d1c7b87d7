package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal owns our side of the user's terminal: raw mode and its restoring,
// the keys, the window size. It never stops the process (SIGTTOU and SIGTTIN
// are ignored by Run) and never touches a terminal whose foreground is not ours:
// "sparkrun ... &" must leave the shell's settings alone.
type terminal struct {
	in *os.File // a terminal, or nil
	// size is the descriptor that window sizes are read from, or -1.
	size int

	mu    sync.Mutex
	saved *unix.Termios // settings to restore; nil while not raw
	keyed bool          // somebody reads the keys: without that, raw mode would make Ctrl-C dead
	lost  bool
	wakeR *os.File
	wakeW *os.File
}

// newTerminal looks at stdin, stdout and stderr. A run without any terminal is
// ordinary.
func newTerminal(stdin, stdout, stderr *os.File) *terminal {
	t := &terminal{size: -1}
	if stdin != nil && term.IsTerminal(int(stdin.Fd())) {
		t.in = stdin
	}
	for _, f := range []*os.File{stdin, stdout, stderr} {
		if f != nil && term.IsTerminal(int(f.Fd())) {
			t.size = int(f.Fd())
			break
		}
	}
	return t
}

// windowSize returns rows and columns, and 40 x 120 where there is no terminal
// or it does not say.
func (t *terminal) windowSize() (rows, cols uint16) {
	if t.size >= 0 {
		if ws, err := unix.IoctlGetWinsize(t.size, unix.TIOCGWINSZ); err == nil && ws.Row > 0 && ws.Col > 0 {
			return ws.Row, ws.Col
		}
	}
	return 40, 120
}

// foreground says whether our process group may use the terminal now.
func (t *terminal) foreground() bool {
	pgrp, err := unix.IoctlGetInt(int(t.in.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// raw puts the terminal into raw mode if we are in its foreground. Output
// processing stays on: the child's own PTY has it off, so the carriage returns
// are added here, once.
func (t *terminal) raw() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.in == nil || t.lost || !t.keyed {
		return false
	}
	if t.saved != nil {
		return true
	}
	if !t.foreground() {
		return false
	}
	fd := int(t.in.Fd())
	tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return false
	}
	saved := *tio
	tio.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	tio.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	tio.Cflag &^= unix.CSIZE | unix.PARENB
	tio.Cflag |= unix.CS8
	tio.Oflag |= unix.OPOST | unix.ONLCR
	tio.Cc[unix.VMIN], tio.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(fd, unix.TCSETS, tio) != nil {
		return false
	}
	t.saved = &saved
	return true
}

// restore gives the terminal back as it was found. It may be called at any time
// and any number of times.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil {
		return
	}
	// Not TCSETSW: it waits for pending output, which a stopped terminal never
	// takes.
	_ = unix.IoctlSetTermios(int(t.in.Fd()), unix.TCSETS, t.saved)
	t.saved = nil
}

// close gives the terminal back for good: whoever still reads keys must not put
// it into raw mode again.
func (t *terminal) close() {
	t.mu.Lock()
	t.keyed = false
	t.mu.Unlock()
	t.restore()
}

// gone marks the terminal as lost: nothing is read from it or set on it again.
func (t *terminal) gone() {
	t.mu.Lock()
	already := t.lost
	t.lost = true
	t.saved = nil
	w := t.wakeW
	t.mu.Unlock()
	if !already && w != nil {
		_, _ = w.Write([]byte{0})
	}
}

// isLost says whether the terminal has gone away.
func (t *terminal) isLost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}

// keys reads what the user types and hands it to got until the terminal is lost
// (lost is called then, once) or stop is closed. It reads only while the
// terminal is raw, which is only while we are in its foreground.
func (t *terminal) keys(stop <-chan struct{}, got func([]byte), lost func()) error {
	if t.in == nil {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.wakeR, t.wakeW = r, w
	t.keyed = true
	t.mu.Unlock()
	go func() {
		<-stop
		_, _ = w.Write([]byte{0})
	}()
	go func() {
		buf := make([]byte, 4096)
		fds := []unix.PollFd{{Fd: int32(t.in.Fd())}, {Fd: int32(r.Fd()), Events: unix.POLLIN}}
		for {
			select {
			case <-stop:
				return
			default:
			}
			// Not in the foreground: look again each second (SIGCONT comes
			// through raw() from the signal loop, a shell's fg does not).
			wait := -1
			fds[0].Events = unix.POLLIN
			if !t.raw() {
				wait, fds[0].Events = 1000, 0
			}
			n, err := unix.Poll(fds, wait)
			if errors.Is(err, unix.EINTR) || n == 0 {
				continue
			}
			if fds[1].Revents != 0 {
				return
			}
			if fds[0].Events == 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) == 0 {
				continue
			}
			k, err := unix.Read(int(t.in.Fd()), buf)
			switch {
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
				continue
			case errors.Is(err, unix.EIO) && t.inBackground():
				// Read from the background: give it up until we are back.
				t.mu.Lock()
				t.saved = nil
				t.mu.Unlock()
				time.Sleep(200 * time.Millisecond)
				continue
			case err != nil, k == 0:
				lost()
				return
			}
			got(append([]byte(nil), buf[:k]...))
		}
	}()
	return nil
}

// inBackground says whether the terminal exists and somebody else is in its
// foreground; a hung-up one answers no ioctl.
func (t *terminal) inBackground() bool {
	_, err := unix.IoctlGetInt(int(t.in.Fd()), unix.TIOCGPGRP)
	return err == nil && !t.foreground()
}

// stdinPlan decides what the child of an attempt gets as its standard input.
type stdinPlan struct {
	mode string   // "pty", "inherit" or "null"
	file *os.File // for inherit
	note string   // to be recorded where the child does not get what was given
	own  bool     // file is ours to close
}

// stdinSource remembers what our own stdin was at the start, so that a second
// attempt can be given the same file from the same place.
type stdinSource struct {
	file   *os.File
	tty    bool
	isFile bool
	offset int64
}

func newStdinSource(f *os.File) stdinSource {
	s := stdinSource{file: f}
	if f == nil {
		return s
	}
	s.tty = term.IsTerminal(int(f.Fd()))
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		s.isFile = true
		s.offset, _ = f.Seek(0, io.SeekCurrent)
	}
	return s
}

// plan returns what attempt n (from 1) gets: the PTY where we have a terminal;
// else the descriptor itself, which from the second attempt on is a regular file
// opened again at its first offset, or /dev/null where it was a pipe that the
// first attempt has read.
func (s stdinSource) plan(n int, pty bool) stdinPlan {
	switch {
	case s.file == nil:
		return stdinPlan{mode: "null"}
	case s.tty && pty:
		return stdinPlan{mode: "pty"}
	case s.tty || n == 1:
		return stdinPlan{mode: "inherit", file: s.file}
	case s.isFile:
		f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", s.file.Fd()))
		if err == nil {
			if _, err = f.Seek(s.offset, io.SeekStart); err == nil {
				return stdinPlan{mode: "inherit", file: f, own: true}
			}
			f.Close()
		}
		return stdinPlan{mode: "null", note: "standard input could not be opened again (" + err.Error() + "): this attempt reads /dev/null"}
	}
	if st, err := s.file.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		return stdinPlan{mode: "inherit", file: s.file} // /dev/null and its kind read the same again
	}
	return stdinPlan{mode: "null", note: "standard input was a pipe that the first attempt has read: this attempt reads /dev/null"}
}
