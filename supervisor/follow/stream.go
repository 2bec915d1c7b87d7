package follow

import (
	"os"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// stream is stdout or stderr, written to with plain write(2). os.File would stop
// at the first EAGAIN of a terminal that somebody else made non-blocking, and
// would end the program at a broken pipe.
type stream struct {
	raw syscall.RawConn
	tty bool
	dev uint64 // which terminal
	max int
}

func newStream(f *os.File) *stream {
	st := &stream{max: pipePiece}
	raw, err := f.SyscallConn()
	if err != nil {
		return st // write will say so
	}
	st.raw = raw
	_ = raw.Control(func(fd uintptr) {
		if _, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err != nil {
			return
		}
		var info unix.Stat_t
		if unix.Fstat(int(fd), &info) == nil {
			st.tty, st.dev, st.max = true, uint64(info.Rdev), ttyPiece //nolint:unconvert // 32 bits on some machines
		}
	})
	return st
}

func (st *stream) write(b []byte) (n int, err error) {
	if st.raw == nil {
		return 0, unix.EBADF
	}
	b = b[:min(len(b), st.max)]
	cerr := st.raw.Control(func(fd uintptr) { n, err = unix.Write(int(fd), b) })
	if cerr != nil {
		return 0, cerr
	}
	return max(n, 0), err
}

// wait waits until there is room, for at most ms milliseconds.
func (st *stream) wait(ms int) {
	_ = st.raw.Control(func(fd uintptr) {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, ms)
	})
}

// escState follows the command's bytes far enough to know whether a terminal is
// inside an escape sequence or a character.
type escState struct {
	in   escIn
	last [utf8.UTFMax]byte // the last bytes, newest at the end
}

type escIn byte

const (
	inGround escIn = iota
	inEscape
	inCSI
	inString    // OSC, DCS, SOS, PM, APC: until BEL or ST
	inStringEsc // an ESC inside one
)

// ground says whether other bytes may come now.
func (e *escState) ground() bool {
	if e.in != inGround {
		return false
	}
	for i := len(e.last) - 1; i >= 0; i-- {
		if utf8.RuneStart(e.last[i]) {
			return utf8.FullRune(e.last[i:])
		}
	}
	return true
}

func (e *escState) feed(data []byte) {
	for _, c := range data {
		e.in = e.in.after(c)
	}
	if n := len(data); n >= len(e.last) {
		copy(e.last[:], data[n-len(e.last):])
	} else {
		copy(e.last[:], e.last[n:])
		copy(e.last[len(e.last)-n:], data)
	}
}

func (in escIn) after(c byte) escIn {
	switch {
	case in == inGround && c != esc:
		return inGround
	case c == can || c == sub:
		return inGround
	case in == inGround:
		return inEscape
	}
	switch in {
	case inEscape, inStringEsc:
		switch {
		case in == inStringEsc && c == '\\':
			return inGround
		case c == '[':
			return inCSI
		case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_':
			return inString
		case c == esc:
			return inEscape
		case c >= ' ' && c <= '/':
			return inEscape // an intermediate: ESC ( B
		}
		return inGround
	case inCSI:
		switch {
		case c == esc:
			return inEscape
		case c >= '@' && c <= '~':
			return inGround
		}
		return inCSI // also control characters: terminals obey them and go on
	case inString:
		switch c {
		case esc:
			return inStringEsc
		case '\a':
			return inGround
		}
		return inString
	}
	return inGround
}
