package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// openPTY gives a terminal as sparkrun has one: output post-processing as it is
// by default, and the other end's bytes in a channel.
func openPTY(t *testing.T) (tty *os.File, ptmx *os.File) {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close(); ptmx.Close() })
	return tty, ptmx
}

// collect reads a terminal's other end until it has seen want.
func collect(t *testing.T, from io.Reader, want string) string {
	t.Helper()
	got := make(chan string)
	go func() {
		var b strings.Builder
		buf := make([]byte, 4096)
		for !strings.Contains(b.String(), want) {
			n, err := from.Read(buf)
			b.Write(buf[:n])
			if err != nil {
				break
			}
		}
		got <- b.String()
	}()
	select {
	case s := <-got:
		return s
	case <-time.After(10 * time.Second):
		t.Fatalf("%q never came", want)
		return ""
	}
}

// log is an attempt's output that a test prints to.
type log struct {
	t    *testing.T
	dir  string
	wake chan struct{}
	done atomic.Bool
	n    atomic.Int64
}

func newLog(t *testing.T) *log {
	t.Helper()
	return &log{t: t, dir: t.TempDir(), wake: make(chan struct{}, 1)}
}

func (l *log) print(s string) {
	l.t.Helper()
	appendTo(l.t, filepath.Join(l.dir, outputName), s)
	l.n.Add(int64(len(s)))
	poke(l.wake)
}

func (l *log) end() { l.done.Store(true); poke(l.wake) }

func (l *log) reader() *Reader {
	return NewReader(Source{Dir: l.dir, Wake: l.wake, Final: func() (int64, bool) {
		done := l.done.Load()
		return l.n.Load(), done
	}}, 0)
}

func newTestScreen(t *testing.T, out, errOut *os.File, opts ScreenOptions) *Screen {
	t.Helper()
	s := NewScreen(out, errOut, opts)
	t.Cleanup(s.Close)
	return s
}

// waitPending waits until the screen has something to write.
func waitPending(t *testing.T, s *Screen) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		n := s.pending
		s.mu.Unlock()
		if n > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("nothing was handed over")
		}
	}
}

func TestScreenPassesBytesThrough(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newTestScreen(t, w, w, ScreenOptions{})
	l := newLog(t)
	want := strings.Repeat("\x1b[31m\x00\xff mid\r\n", 100_000)
	l.print(want)
	l.end()
	result := make(chan error, 1)
	go func() {
		result <- s.Child(context.Background(), l.reader())
		w.Close()
	}()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	if string(got) != want {
		t.Errorf("%d bytes came through, want %d the same", len(got), len(want))
	}
}

func TestScreenSaysAtTheStartOfALine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, child, want string
		raw               bool
	}{
		{"fresh", "", "note\r\n", false},
		{"after a line", "abc\n", "abc\r\nnote\r\n", false},
		// The terminal itself adds a CR to each LF: two of them do no harm.
		{"in a bar", "\r 50%", "\r 50%\r\r\nnote\r\n", false},
		{"raw", "\r 50%", "\r 50%\r\r\nnote\r\r\n", true},
		{"after a return", " 50%\r", " 50%\r\r\r\nnote\r\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tty, ptmx := openPTY(t)
			s := newTestScreen(t, tty, tty, ScreenOptions{Raw: func() bool { return c.raw }})
			l := newLog(t)
			l.print(c.child)
			l.end()
			if err := s.Child(context.Background(), l.reader()); err != nil {
				t.Fatal(err)
			}
			s.Say("note")
			if got := collect(t, ptmx, "note\r\n"[:5]); !strings.HasPrefix(c.want, got) && got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if !s.Drain(time.Second) {
				t.Error("not drained")
			}
		})
	}
}

// Our line waits for the end of a sequence or character that was cut in two.
func TestScreenNeverBreaksASequence(t *testing.T) {
	t.Parallel()
	for _, cut := range [][2]string{
		{"\x1b[3", "1mred\n"}, {"\x1b", "[31mred\n"}, {"\x1b]0;ti", "tle\x07\n"}, {"\x1b]0;ti\x1b", "\\\n"}, {"\xe2\x96", "\x88\n"},
	} {
		tty, ptmx := openPTY(t)
		s := newTestScreen(t, tty, tty, ScreenOptions{})
		l := newLog(t)
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- s.Child(ctx, l.reader()) }()
		l.print(cut[0])
		got := collect(t, ptmx, cut[0])
		s.Say("note")
		l.print(cut[1])
		l.end()
		got += collect(t, ptmx, "note")
		cancel()
		if err := <-result; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Child ended with %v", err)
		}
		if !strings.Contains(got, strings.ReplaceAll(cut[0]+cut[1], "\n", "\r\n")) {
			t.Errorf("%q was broken: %q", cut[0]+cut[1], got)
		}
	}
}

// A sequence that the command never ends holds our lines up for a moment only,
// and is cancelled first.
func TestScreenCancelsAnEndlessSequence(t *testing.T) {
	t.Parallel()
	tty, ptmx := openPTY(t)
	s := newTestScreen(t, tty, tty, ScreenOptions{})
	l := newLog(t)
	l.print("\x1b]0;never")
	l.end()
	if err := s.Child(context.Background(), l.reader()); err != nil {
		t.Fatal(err)
	}
	s.Say("note")
	if !s.Drain(5 * time.Second) {
		t.Error("not drained")
	}
	if got := collect(t, ptmx, "note"); !strings.Contains(got, "\x18\r\r\nnote") {
		t.Errorf("got %q", got)
	}
}

func TestScreenKeepsStdoutCleanWhenItIsNoTerminal(t *testing.T) {
	t.Parallel()
	tty, ptmx := openPTY(t)
	path := filepath.Join(t.TempDir(), "out")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := newTestScreen(t, file, tty, ScreenOptions{})
	l := newLog(t)
	l.print("mid\x1b[")
	l.end()
	if err := s.Child(context.Background(), l.reader()); err != nil {
		t.Fatal(err)
	}
	s.Say("note")
	if got := collect(t, ptmx, "note"); got != "note\r\n" && got != "note" {
		t.Errorf("got %q", got)
	}
	if got, _ := os.ReadFile(path); string(got) != "mid\x1b[" {
		t.Errorf("stdout has %q", got)
	}
}

func TestQuietScreen(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := newTestScreen(t, w, w, ScreenOptions{Quiet: true})
	s.Say("note")
	if !s.Drain(time.Second) {
		t.Error("not drained")
	}
	w.Close()
	if got, _ := io.ReadAll(r); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}

// A stopped reader: nobody but the screen's own goroutine waits, nothing is lost
// but our oldest lines, and it goes on when the reader does.
func TestStoppedTerminal(t *testing.T) {
	t.Parallel()
	for _, nonblock := range []bool{false, true} {
		t.Run(fmt.Sprintf("nonblock=%t", nonblock), func(t *testing.T) {
			t.Parallel()
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			// As when another program sets O_NONBLOCK on the terminal we share:
			// the os package does not know.
			w := os.NewFile(uintptr(fds[1]), "w")
			r := os.NewFile(uintptr(fds[0]), "r")
			defer r.Close()
			if err := unix.SetNonblock(fds[1], nonblock); err != nil {
				t.Fatal(err)
			}
			s := newTestScreen(t, w, w, ScreenOptions{})
			l := newLog(t)
			want := strings.Repeat("0123456789abcde\n", 20_000)
			l.print(want)
			l.end()
			result := make(chan error, 1)
			go func() { result <- s.Child(context.Background(), l.reader()) }()

			waitPending(t, s)
			if s.Drain(50 * time.Millisecond) {
				t.Error("drained into a pipe that nobody reads")
			}
			began := time.Now()
			for i := range 2 * sayMax {
				s.Say(fmt.Sprintf("note %d", i))
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("saying took %s", took)
			}
			select {
			case err := <-result:
				t.Fatalf("the child's copy ended: %v", err)
			case <-s.Lost():
				t.Fatal("a slow terminal is not a lost one")
			default:
			}

			got := make(chan string, 1)
			go func() {
				b, _ := io.ReadAll(r)
				got <- string(b)
			}()
			if err := <-result; err != nil {
				t.Error(err)
			}
			if !s.Drain(time.Second) {
				t.Error("not drained")
			}
			w.Close()
			all := <-got
			var child strings.Builder
			notes := 0
			for _, line := range strings.SplitAfter(all, "\n") {
				switch {
				case strings.HasPrefix(line, "note "):
					notes++
				case strings.HasPrefix(line, "("):
					if !strings.Contains(line, fmt.Sprintf("(%d lines not shown", sayMax)) {
						t.Errorf("got %q", line)
					}
				default:
					child.WriteString(line)
				}
			}
			if child.String() != want {
				t.Errorf("the child's bytes: %d, want %d the same", child.Len(), len(want))
			}
			if notes != sayMax {
				t.Errorf("%d notes, want %d", notes, sayMax)
			}
		})
	}
}

func TestLostTerminal(t *testing.T) {
	t.Parallel()
	closedPipe := func(t *testing.T) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		t.Cleanup(func() { w.Close() })
		return w
	}
	closedTTY := func(t *testing.T) *os.File {
		tty, ptmx := openPTY(t)
		ptmx.Close()
		return tty
	}
	closedFile := func(t *testing.T) *os.File {
		f := closedPipe(t)
		f.Close()
		return f
	}
	for name, open := range map[string]func(*testing.T) *os.File{"pipe": closedPipe, "hang-up": closedTTY, "closed": closedFile} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			s := newTestScreen(t, f, f, ScreenOptions{})
			l := newLog(t)
			l.print("abc\n")
			if err := s.Child(context.Background(), l.reader()); !errors.Is(err, ErrTerminalLost) {
				t.Errorf("got %v", err)
			}
			select {
			case <-s.Lost():
			case <-time.After(10 * time.Second):
				t.Fatal("nobody was told")
			}
			s.Say("note")
			if s.Drain(time.Second) {
				t.Error("drained into nothing")
			}
			if err := s.Child(context.Background(), l.reader()); !errors.Is(err, ErrTerminalLost) {
				t.Errorf("again: got %v", err)
			}
		})
	}
}

// A line of ours alone finds out too, and Abandon is the same without a write.
func TestLostWhileSaying(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := newTestScreen(t, w, w, ScreenOptions{})
	r.Close()
	s.Say("note")
	<-s.Lost()

	s = newTestScreen(t, w, w, ScreenOptions{})
	s.Abandon()
	<-s.Lost()
	l := newLog(t)
	l.print("x")
	if err := s.Child(context.Background(), l.reader()); !errors.Is(err, ErrTerminalLost) {
		t.Errorf("got %v", err)
	}
}

// The end of the context frees the caller even while the terminal is stopped.
func TestChildCanBeLeftWhileTheTerminalIsStopped(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s := newTestScreen(t, w, w, ScreenOptions{})
	l := newLog(t)
	l.print(strings.Repeat("x", 1<<20))
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.Child(ctx, l.reader()) }()
	waitPending(t, s)
	cancel()
	select {
	case err := <-result:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still there")
	}
}
