package follow

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

func noTime(int64) time.Time { return time.Time{} }

// split cuts chunks and writes each line as text and end.
func split(chunks ...string) string {
	var b strings.Builder
	s := NewSplitter(noTime, func(l Line) {
		end := map[byte]string{'\n': "$", '\r': "^", 0: "~"}[l.End]
		if l.Redraw {
			b.WriteByte('+')
		}
		b.WriteString(string(l.Text) + end + " ")
	})
	var off int64
	for _, c := range chunks {
		s.Write(Chunk{Offset: off, Data: []byte(c)})
		off += int64(len(c))
	}
	s.Close()
	return strings.TrimSuffix(b.String(), " ")
}

func TestSplitter(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                        "",
		"a\nb\n":                  "a$ b$",
		"a\n\nb":                  "a$ $ b~",
		"a\r\nb\r\r\nc\n":         "a$ b$ c$",
		"\r 1%\r 2%\n":            "^ + 1%^ + 2%$",
		"a\rb\rc":                 "a^ +b^ +c~",
		"a\r\rb":                  "a^ +^ +b~",
		"a\r\r\r\n":               "a^ +$",
		"a\r":                     "a^",
		"a\r\r":                   "a^ +^",
		"\n":                      "$",
		"x\r\n\r\ny":              "x$ $ y~",
		"a\rb\nc\n":               "a^ +b$ c$",
		"\x00\xff\n":              "\x00\xff$",
		"a\r\r\nb\r\nc\rd\r\re\n": "a$ b$ c^ +d^ +^ +e$",
	} {
		if got := split(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
		// Wherever the chunks are cut, the lines are the same.
		if got := split(strings.Split(in, "")...); got != want {
			t.Errorf("%q byte by byte: got %q, want %q", in, got, want)
		}
		for i := range in {
			if got := split(in[:i], in[i:]); got != want {
				t.Errorf("%q cut at %d: got %q, want %q", in, i, got, want)
			}
		}
	}
}

func TestSplitterCutsAtMissingBytes(t *testing.T) {
	t.Parallel()
	var got []string
	s := NewSplitter(noTime, func(l Line) { got = append(got, fmt.Sprintf("%d:%s:%d", l.Offset, l.Text, l.End)) })
	s.Write(Chunk{Offset: 10, Data: []byte("ab")})
	s.Write(Chunk{Offset: 17, Data: []byte("cd\ne\r"), Missing: 5})
	s.Write(Chunk{Offset: 25, Missing: 3})
	s.Write(Chunk{Offset: 25, Data: []byte("\nf")})
	s.Close()
	want := "[10:ab:0 17:cd:10 20:e:13 25::10 26:f:0]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSplitterCutsLongLines(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 2*lineMax+5)
	for _, size := range []int{len(long) + 2, 1 << 18, 1000} {
		var lens []int
		next := int64(0)
		s := NewSplitter(noTime, func(l Line) {
			if l.Offset != next {
				t.Errorf("a line at %d, want %d", l.Offset, next)
			}
			next = l.Offset + int64(len(l.Text))
			if l.End != 0 {
				next++
			}
			lens = append(lens, len(l.Text))
		})
		in := append(append([]byte(nil), long...), "\ny"...)
		for off := 0; off < len(in); off += size {
			s.Write(Chunk{Offset: int64(off), Data: in[off:min(off+size, len(in))]})
		}
		s.Close()
		if fmt.Sprint(lens) != fmt.Sprint([]int{lineMax, lineMax, 5, 1}) {
			t.Errorf("chunks of %d: lines of %v bytes", size, lens)
		}
	}
}

// The time of a line is that of its end, and few questions are asked for it.
func TestSplitterTimes(t *testing.T) {
	t.Parallel()
	base := time.Unix(1000, 0)
	asked := 0
	timeAt := func(off int64) time.Time {
		asked++
		return base.Add(time.Duration(off/1000) * time.Second)
	}
	lines := 0
	s := NewSplitter(timeAt, func(l Line) {
		lines++
		end := l.Offset + int64(len(l.Text))
		if want := base.Add(time.Duration(end/1000) * time.Second); !l.T.Equal(want) {
			t.Errorf("the line that ends at %d has %s, want %s", end, l.T, want)
		}
	})
	data := bytes.Repeat([]byte("0123456\n"), 2000)
	for off := 0; off < len(data); off += 3000 {
		s.Write(Chunk{Offset: int64(off), Data: data[off:min(off+3000, len(data))]})
	}
	if lines != 2000 || asked > lines/2 {
		t.Errorf("%d lines took %d questions", lines, asked)
	}
}

// Lines and what stands between them give the input back, and the pieces between
// are ends and nothing else.
func FuzzSplitter(f *testing.F) {
	for _, s := range []string{"a\nb", "\r\r\r\n", "a\r\n\r\r\nb\r", "\x1b[1mx\r\n"} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		step := int(size) + 1
		var out bytes.Buffer
		check := func(between []byte, end byte) {
			switch {
			case end == '\r' && string(between) == "\r",
				end == '\n' && (string(between) == "\n" || string(between) == "\r\n" || string(between) == "\r\r\n"),
				end == 0 && len(between) == 0:
			default:
				t.Fatalf("the end %q of a line is %q", end, between)
			}
		}
		prev := Line{}
		first := true
		s := NewSplitter(noTime, func(l Line) {
			if !first {
				between := in[out.Len():l.Offset]
				check(between, prev.End)
				out.Write(between)
			}
			first, prev = false, l
			if bytes.ContainsAny(l.Text, "\r\n") {
				t.Fatalf("a line has an end inside: %q", l.Text)
			}
			out.Write(l.Text)
		})
		for off := 0; off < len(in); off += step {
			s.Write(Chunk{Offset: int64(off), Data: in[off:min(off+step, len(in))]})
		}
		s.Close()
		if !first {
			between := in[out.Len():]
			check(between, prev.End)
			out.Write(between)
		}
		if !bytes.Equal(out.Bytes(), in) {
			t.Fatalf("in %q, out %q", in, out.Bytes())
		}
	})
}
