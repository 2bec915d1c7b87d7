package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func appendTo(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func ended(at int64) func() (int64, bool) { return func() (int64, bool) { return at, true } }

// all reads to the end and gives the bytes with "<n>" for n missing ones.
func all(t testing.TB, r *Reader) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var b bytes.Buffer
	at := r.Offset()
	for {
		c, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if c.Offset != at+c.Missing {
			t.Fatalf("a chunk at %d with %d missing follows offset %d", c.Offset, c.Missing, at)
		}
		at = c.Offset + int64(len(c.Data))
		if c.Missing > 0 {
			fmt.Fprintf(&b, "<%d>", c.Missing)
		}
		b.Write(c.Data)
	}
}

func TestReader(t *testing.T) {
	t.Parallel()
	const gap3 = `{"offset":3,"bytes":4,"t0":"x","t1":"y","errno":28}` + "\n"
	for _, c := range []struct {
		name, output, gaps string
		from, final        int64
		want               string
	}{
		{"whole", "abcdef", "", 0, 6, "abcdef"},
		{"from an offset", "abcdef", "", 4, 6, "ef"},
		{"from behind the end", "abcdef", "", 9, 6, ""},
		{"nothing printed", "", "", 0, 0, ""},
		{"final not known", "abcdef", "", 0, -1, "abcdef"},
		{"cut short", "abc", "", 0, 6, "abc<3>"},
		{"gap", "abchi", gap3, 0, 9, "abc<4>hi"},
		{"from inside a gap", "abchi", gap3, 5, 9, "<2>hi"},
		{"from behind a gap", "abchi", gap3, 8, 9, "i"},
		{"gap at the end", "abc", gap3, 0, 7, "abc<4>"},
		{"torn and foreign gap lines", "abchi", "{\"off\nnull\n" + gap3 + gap3 + `{"offset":0,"bytes":1`, 0, 9, "abc<4>hi"},
		{"two gaps", "abchik", gap3 + `{"offset":9,"bytes":1}` + "\n", 0, 11, "abc<4>hi<1>k"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			appendTo(t, filepath.Join(dir, outputName), c.output)
			if c.gaps != "" {
				appendTo(t, filepath.Join(dir, gapsName), c.gaps)
			}
			if got := all(t, NewReader(Source{Dir: dir, Final: ended(c.final)}, c.from)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestReaderWithoutFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got := all(t, NewReader(Source{Dir: dir, Final: ended(5)}, 0)); got != "<5>" {
		t.Errorf("got %q", got)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := NewReader(Source{Dir: dir}, 0).Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A reader sees what is appended while it waits, woken or polling, and a lost
// connection (a closed Wake) does not end it.
func TestReaderFollows(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	close(closed)
	woken := make(chan struct{}, 1)
	for name, wake := range map[string]chan struct{}{"polling": nil, "woken": woken, "connection lost": closed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var done atomic.Bool
			r := NewReader(Source{Dir: dir, Wake: wake, Final: func() (int64, bool) { return 6, done.Load() }}, 0)
			got := make(chan string, 1)
			go func() {
				var b []byte
				for {
					c, err := r.Next(context.Background())
					if err != nil {
						got <- string(b)
						return
					}
					b = append(b, c.Data...)
					if len(b) == 3 {
						appendTo(t, filepath.Join(dir, outputName), "def")
						done.Store(true)
						poke(woken)
					}
				}
			}()
			appendTo(t, filepath.Join(dir, outputName), "abc")
			poke(woken)
			if s := <-got; s != "abcdef" {
				t.Errorf("got %q", s)
			}
		})
	}
}

// memory is a holder's: the last keep bytes of what was printed.
type memory struct {
	printed string
	keep    int
}

func (m *memory) read(from int64) (int64, []byte, error) {
	off := max(from, int64(len(m.printed)-m.keep))
	if off > int64(len(m.printed)) {
		return off, nil, nil
	}
	return off, []byte(m.printed[off:]), nil
}

// The disk refuses: the reader goes on from memory, and what the disk lost but
// memory has is not missing.
func TestReaderOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, outputName)
	appendTo(t, log, "abc")
	m := &memory{printed: "abcdefgh", keep: 100}
	var done atomic.Bool
	src := Source{
		Dir: dir, Ring: m.read,
		Total: func() (int64, int64, bool) { return int64(len(m.printed)), 3, true },
		Final: func() (int64, bool) { return 10, done.Load() },
	}
	r := NewReader(src, 0)
	ctx := context.Background()
	for _, want := range []string{"abc", "defgh"} {
		c, err := r.Next(ctx)
		if err != nil || string(c.Data) != want {
			t.Fatalf("got %q, %v, want %q", c.Data, err, want)
		}
	}
	// The disk is back; the gap is written down, then what follows it.
	appendTo(t, filepath.Join(dir, gapsName), `{"offset":3,"bytes":5}`+"\n")
	appendTo(t, log, "ij")
	m.printed += "ij"
	done.Store(true)
	if got := all(t, r); got != "ij" {
		t.Errorf("got %q", got)
	}
	// A late reader finds the gap filled as far as memory goes back.
	m.keep = 4
	if got := all(t, NewReader(src, 0)); got != "abc<3>ghij" {
		t.Errorf("got %q", got)
	}
}

// What is neither on the disk nor in memory is waited for, then passed over.
func TestReaderSkipsWhatNobodyHas(t *testing.T) {
	t.Parallel()
	m := &memory{printed: "abcdefgh", keep: 3}
	r := NewReader(Source{
		Dir: t.TempDir(), Ring: m.read,
		Total: func() (int64, int64, bool) { return 8, 0, true },
	}, 0)
	base := time.Unix(0, 0)
	calls := 0
	r.now = func() time.Time {
		calls++
		return base.Add(time.Duration(calls) * 100 * time.Millisecond)
	}
	r.poll = time.Microsecond
	c, err := r.Next(context.Background())
	if err != nil || string(c.Data) != "fgh" || c.Missing != 5 {
		t.Errorf("got %q with %d missing, %v", c.Data, c.Missing, err)
	}
	if waited := time.Duration(calls) * 100 * time.Millisecond; waited < skipAfter {
		t.Errorf("passed over after %s", waited)
	}
}

func TestReaderSaysWhatItCannotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, outputName), 0o700); err != nil {
		t.Fatal(err)
	}
	r := NewReader(Source{Dir: dir, Final: ended(1)}, 0)
	if _, err := r.Next(context.Background()); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// A writer drops bytes now and then as the holder does (gap first, then what
// follows it), while a reader follows: every byte it gives is the right one.
func TestReaderAgreesWithTheWriter(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		dir := filepath.Join(root, fmt.Sprint(n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		wake := make(chan struct{}, 1)
		var done atomic.Bool
		var off int64
		r := NewReader(Source{Dir: dir, Wake: wake, Final: func() (int64, bool) {
			if done.Load() {
				return off, true
			}
			return 0, false
		}}, 0)
		steps := rapid.SliceOfN(rapid.IntRange(-9, 9), 1, 30).Draw(rt, "steps")
		byteAt := func(off int64) byte { return byte('a' + off%26) }
		go func() {
			for _, s := range steps {
				if s < 0 {
					appendTo(t, filepath.Join(dir, gapsName), fmt.Sprintf(`{"offset":%d,"bytes":%d}`+"\n", off, -s))
					off += int64(-s)
				}
				var b []byte
				for range max(s, 1) {
					b = append(b, byteAt(off))
					off++
				}
				appendTo(t, filepath.Join(dir, outputName), string(b))
				poke(wake)
			}
			done.Store(true)
			poke(wake)
		}()
		var at, missing int64
		for {
			c, err := r.Next(context.Background())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				rt.Fatal(err)
			}
			missing += c.Missing
			at += c.Missing
			for _, got := range c.Data {
				if got != byteAt(at) {
					rt.Fatalf("offset %d gave %q", at, got)
				}
				at++
			}
		}
		want := int64(0)
		for _, s := range steps {
			want += int64(max(-s, 0))
		}
		if at != off || missing != want {
			rt.Fatalf("ended at %d with %d missing, want %d and %d", at, missing, off, want)
		}
	})
}
