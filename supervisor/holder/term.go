package holder

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sparkrun/internal/cores"
)

// pipeSize is asked for with --no-pty; a smaller limit of the user is fine.
const pipeSize = 1 << 20

// The size of a terminal where nobody has one to compare with.
const (
	defaultRows = 40
	defaultCols = 120
)

// source is where the command's output comes from: the master of a PTY or the
// reading end of a pipe.
type source struct {
	f     *os.File
	raw   syscall.RawConn
	isPTY bool
	// child is the command's end.
	child *os.File
}

func openSource(spec Spec) (*source, error) {
	if spec.PTY {
		return openPTY(spec.Rows, spec.Cols)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("making a pipe for the output: %w", err)
	}
	_, _ = unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, pipeSize)
	return wrapSource(p[0], os.NewFile(uintptr(p[1]), "output"), false)
}

// openPTY opens a terminal without output processing, which would cost half of
// the throughput and change what the command prints, and without ^S/^Q flow
// control, with which one stray key stops a training for the night.
func openPTY(rows, cols uint16) (*source, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	defer master.Close()
	if rows == 0 || cols == 0 {
		rows, cols = defaultRows, defaultCols
	}
	if err := pty.Setsize(slave, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		slave.Close()
		return nil, fmt.Errorf("setting the size of the terminal: %w", err)
	}
	t, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err == nil {
		t.Iflag &^= unix.IXON
		t.Oflag &^= unix.OPOST
		err = unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, t)
	}
	if err != nil {
		slave.Close()
		return nil, fmt.Errorf("setting the modes of the terminal: %w", err)
	}
	// The library's own descriptor blocks: neither deadlines nor Close would
	// wake a reader of it. A duplicate that is set non-blocking does both.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		slave.Close()
		return nil, err
	}
	return wrapSource(fd, slave, true)
}

func wrapSource(fd int, child *os.File, isPTY bool) (*source, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		child.Close()
		unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "output")
	raw, err := f.SyscallConn()
	if err != nil {
		child.Close()
		f.Close()
		return nil, err
	}
	return &source{f: f, raw: raw, isPTY: isPTY, child: child}, nil
}

var errNoTerminal = errors.New("the command has no terminal (--no-pty)")

// control runs an ioctl on the master. File.Fd would make it blocking.
func (s *source) control(f func(fd int) error) error {
	if !s.isPTY {
		return errNoTerminal
	}
	var inner error
	if err := s.raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func (s *source) resize(rows, cols uint16) error {
	return s.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// lflags returns the local modes; the kernel answers for the command's side.
func (s *source) lflags() (isig, icanon, echo bool) {
	_ = s.control(func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		isig, icanon, echo = t.Lflag&unix.ISIG != 0, t.Lflag&unix.ICANON != 0, t.Lflag&unix.ECHO != 0
		return nil
	})
	return isig, icanon, echo
}

// foreground returns the foreground process group, 0 when there is none.
func (s *source) foreground() int {
	pgrp := 0
	_ = s.control(func(fd int) (err error) {
		pgrp, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return pgrp
}

// signal sends sig to the foreground process group; the error is ESRCH when
// there is none. SIGINT, SIGQUIT and SIGTSTP are sent by the terminal, as for a
// key: that reaches a group of another user too (sudo).
func (s *source) signal(sig syscall.Signal) error {
	pgrp := s.foreground()
	if pgrp <= 1 || errors.Is(syscall.Kill(-pgrp, 0), unix.ESRCH) {
		return unix.ESRCH
	}
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP:
		if s.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TIOCSIG, int(sig)) }) == nil {
			return nil
		}
	}
	return syscall.Kill(-pgrp, sig)
}

// handedOver is called when the command has its end. A pipe is closed here then,
// since its end of file is the end of the output. A terminal is kept open: a
// command may close it and open /dev/tty later, and the reader must not have
// seen an end in between.
func (s *source) handedOver() {
	if !s.isPTY {
		s.child.Close()
	}
}

// release lets the output end: no process of the tree is left.
func (s *source) release() { s.child.Close() }

// drain moves everything from the source to the ring until its end: EIO when
// no process has the terminal open any more, EOF for a pipe. It returns whether
// the end was reached, false after a deadline.
func (s *source) drain(r *ring) bool {
	for {
		b := r.reserve()
		n, err := s.f.Read(b)
		r.commit(max(n, 0))
		cores.Moved(max(n, 0))
		if err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, os.ErrClosed)
		}
	}
}
