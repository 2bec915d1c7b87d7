package follow

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                  "",
		"plain text, long enough for words": "plain text, long enough for words",
		"a\tb":                              "a\tb",
		"\x1b[31mred\x1b[0m":                "red",
		"\x1b[38:2:1:2:3mx\x1b[K":           "x",
		"\x1b]0;title\x07text":              "text",
		"\x1b]8;;http://h\x1b\\link\x1b]8;;\x1b\\": "link",
		"\x1bPq#0\x1b\\sixel":                      "sixel",
		"\x1b(Bx\x1b7y\x1b=":                       "xy",
		"cut \x1b[3":                               `cut \x1b[3`,
		"cut \x1b":                                 `cut \x1b`,
		"\x1b]0;never ended":                       `\x1b]0;never ended`,
		"nul \x00 del \x7f":                        `nul \x00 del \x7f`,
		"bell\a":                                   "bell",
		"10%\b\b\b20%":                             "20%",
		"abc\bX\b\bY":                              "aYX",
		"é\bx":                                     "x",
		"\b\bx":                                    "x",
		"bar ███ 5/9":                              "bar ███ 5/9",
		"\xff\xfe latin \xe9":                      "\xff\xfe latin \xe9",
		"8-bit \x9b31m":                            `8-bit \x9b31m`,
		"utf-8 csi \u009b31m":                      `utf-8 csi \u009b31m`,
		"long enough text before \x1b[0m it":       "long enough text before  it",
		"line\nend\r":                              `line\x0aend\x0d`,
	} {
		if got := string(Clean(nil, []byte(in))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestCleanLeavesPlainTextWhereItIs(t *testing.T) {
	t.Parallel()
	in := []byte("Epoch 3 ██ loss=0.5\t")
	dst := make([]byte, 0, 64)
	if got := Clean(dst, in); &got[0] != &in[0] {
		t.Error("plain text was copied")
	}
}

// The longest line costs little, however hostile it is: a backspace that moves a
// long text, a sequence that never ends begun over and over.
func TestCleanIsNotSlow(t *testing.T) {
	t.Parallel()
	const n = lineMax / 3
	for _, in := range []string{
		strings.Repeat("é", n/2) + strings.Repeat("\b", n) + strings.Repeat("x", n),
		strings.Repeat("\x1b]", n),
		strings.Repeat("\x1b[", n),
		strings.Repeat("\x1bé", n),
	} {
		began := time.Now()
		Clean(nil, []byte(in))
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("a line of %.10q took %s", in, took)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"a\x1b[1mb", "\x1b]0;x\x07", "\b\x9b\u009b\xc2", "12345678\x7f", "é\bé\b\bab"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		keep := bytes.Clone(in)
		got := bytes.Clone(Clean(nil, in))
		if !bytes.Equal(in, keep) {
			t.Fatalf("the input was changed: %q to %q", keep, in)
		}
		for s := got; len(s) > 0; {
			r, n := utf8.DecodeRune(s)
			switch {
			case r == utf8.RuneError && n == 1:
				if s[0] < 0xa0 {
					t.Fatalf("%q gives the 8-bit control %#x in %q", in, s[0], got)
				}
			case r < ' ' && r != '\t', r >= 0x7f && r < 0xa0:
				t.Fatalf("%q gives the control character %#x in %q", in, r, got)
			}
			s = s[n:]
		}
		if again := Clean(nil, got); !bytes.Equal(again, got) {
			t.Fatalf("not the same when done twice: %q, %q", got, again)
		}
	})
}

// fold runs raw bytes, ms apart per line, through splitter and folder.
func fold(apart time.Duration, in string) []string {
	var out []string
	f := NewFolder(func(_ time.Time, text []byte) { out = append(out, string(text)) })
	at := time.Unix(1000, 0)
	s := NewSplitter(noTime, func(l Line) {
		l.T = at
		at = at.Add(apart)
		f.Line(l)
	})
	s.Write(Chunk{Data: []byte(in)})
	s.Close()
	f.Close()
	return out
}

func TestFolder(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		apart time.Duration
		in    string
		want  string
	}{
		{"lines pass", ms, "a\n\nb\n", "a||b"},
		{
			"one line per step", ms,
			"\r  0%|   | 0/3 [00:00<?, ?it/s]\r 33%|#  | 1/3 [00:01<00:02, 1.0it/s]\r 33%|#  | 1/3 [00:02<00:04, 2.0s/it]" +
				"\r 67%|## | 2/3 [00:03<00:01, 1.0it/s]\r100%|###| 3/3 [00:04<00:00, 1.0it/s]\r100%|###| 3/3 [00:05<00:00, 1.6s/it]\ndone\n",
			"  0%|   | 0/3 [00:00<?, ?it/s]| 33%|#  | 1/3 [00:01<00:02, 1.0it/s]| 67%|## | 2/3 [00:03<00:01, 1.0it/s]" +
				"|100%|###| 3/3 [00:04<00:00, 1.0it/s]|100%|###| 3/3 [00:05<00:00, 1.6s/it]|done",
		},
		{"same count again after another line", ms, "\rt: 1/9 [a\r         \rnews\n\rt: 1/9 [b\rt: 2/9 [c\n", "t: 1/9 [a|news|t: 2/9 [c"},
		{"no total", ms, "\r1it [a\r1it [b\r2it [c\n", "1it [a|2it [c"},
		{"data bar", ms, "\rm: 10%|# | 1.2G/4.9G [x\rm: 10%|# | 1.2G/4.9G [y\rm: 12%|# | 1.3G/4.9G [z\n", "m: 10%|# | 1.2G/4.9G [x|m: 12%|# | 1.3G/4.9G [z"},
		{"two bars in turn", ms, "\ra: 1/9 [\rb: 1/9 [\ra: 1/9 [\rb: 1/9 [\ra: 2/9 [\n", "a: 1/9 [|b: 1/9 [|a: 2/9 ["},
		{"killed in a bar", ms, "\r 1/9 [a\r 1/9 [b", " 1/9 [a| 1/9 [b"},
		{"killed after a return", ms, " 1/9 [a\r 1/9 [b\r", " 1/9 [a| 1/9 [b"},
		{"spinner, fast", 300 * ms, "|\r/\r-\r\\\r|\r/\rok\n", "||/|ok"},
		{"spinner, slow", 1100 * ms, "|\r/\rok\n", "||/|ok"},
		{"text that stays", 5000 * ms, "wait\rwait\rwait\rok\n", "wait|ok"},
		{"state before an empty end", ms, "10%\r20%\r30%\r\x1b[K\n\nx\n", "10%|30%||x"},
		{"colours", ms, "\r\x1b[32m 1/9 [a\x1b[0m\r\x1b[32m 2/9 [b\x1b[0m\n", " 1/9 [a| 2/9 [b"},
		{
			"nested bars", ms,
			"\rA: 0/2 [x\n\rB: 0/2 [x\x1b[A\n\rB: 1/2 [x\x1b[A\n\rB: 1/2 [y\x1b[A\rA: 1/2 [x\n\rB: 2/2 [x\x1b[A\n",
			"A: 0/2 [x|B: 0/2 [x|B: 1/2 [x|A: 1/2 [x|B: 2/2 [x",
		},
		{"not a bar", ms, "x[1/2 [\rx\n", "x[1/2 [|x"},
	} {
		if got := strings.Join(fold(c.apart, c.in), "|"); got != c.want {
			t.Errorf("%s:\ngot  %q\nwant %q", c.name, got, c.want)
		}
	}
}

// A bar redrawn ten times a second all night is as many lines as it has steps.
func TestFolderBoundsANight(t *testing.T) {
	t.Parallel()
	lines := 0
	f := NewFolder(func(time.Time, []byte) { lines++ })
	at := time.Unix(0, 0)
	text := []byte{}
	for i := range 100_000 {
		text = append(text[:0], " 5%|# | "...)
		text = append(text, byte('0'+i/10_000), '/', '9', ' ', '[')
		text = at.AppendFormat(text, time.StampMilli)
		f.Line(Line{T: at, Text: text, End: '\r', Redraw: true})
		at = at.Add(100 * time.Millisecond)
	}
	f.Close()
	if lines != 11 { // ten steps and the last state
		t.Errorf("%d lines", lines)
	}
}
