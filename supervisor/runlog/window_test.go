package runlog

import (
	"bytes"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/clock"
)

// Lines that come at most a window late come out sorted by time, those of one
// time in the order they came, and none is lost, however they are taken.
func TestWindowSortsAndLosesNothing(t *testing.T) {
	zone := time.FixedZone("CEST", 7200)
	base := time.Date(2026, 10, 25, 2, 59, 50, 0, zone)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(t, "n")
		type line struct {
			at  time.Time
			seq int
		}
		var lines []line
		now := base
		w := newWindow(zone)
		var out []byte
		for i := range n {
			now = now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "step")) * time.Millisecond)
			late := time.Duration(rapid.IntRange(0, 1999).Draw(t, "late")) * time.Millisecond
			l := line{now.Add(-late), i}
			lines = append(lines, l)
			w.add(l.at, rapid.Bool().Draw(t, "note"), []byte(strconv.Itoa(i)))
			if rapid.Bool().Draw(t, "flush") {
				out = w.take(out, w.ripe(now.Add(-reorderWindow)))
			}
		}
		out = w.take(out, len(w.entries))
		sort.SliceStable(lines, func(i, j int) bool { return lines[i].at.Before(lines[j].at) })
		var want strings.Builder
		for _, l := range lines {
			fmt.Fprintf(&want, "%s %d\n", clock.Format(l.at), l.seq)
		}
		got := strings.NewReplacer(sepLine, " ", sepNote, " ").Replace(string(out))
		if got != want.String() {
			t.Fatalf("got\n%s\nwant\n%s", got, want.String())
		}
		if w.size() != 0 {
			t.Fatalf("%d bytes are left in an empty window", w.size())
		}
	})
}

// Any input whatever, early half-takes included, comes out sorted and whole.
func TestWindowStaysSortedWhateverComes(t *testing.T) {
	zone := time.UTC
	base := time.Date(2026, 1, 2, 3, 4, 5, 0, zone)
	rapid.Check(t, func(t *rapid.T) {
		w := newWindow(zone)
		var out []byte
		n := rapid.IntRange(1, 300).Draw(t, "n")
		for i := range n {
			at := base.Add(time.Duration(rapid.IntRange(-5000, 5000).Draw(t, "ms")) * time.Millisecond)
			w.add(at, false, bytes.Repeat([]byte{'a'}, i%7))
			if rapid.IntRange(0, 9).Draw(t, "take") == 0 {
				out = w.take(out, (len(w.entries)+1)/2)
			}
		}
		out = w.take(out, len(w.entries))
		lines := strings.SplitAfter(strings.TrimSuffix(string(out), "\n"), "\n")
		if len(lines) != n {
			t.Fatalf("%d lines went in, %d came out", n, len(lines))
		}
		for i := 1; i < n; i++ {
			if lines[i][:stampLen] < lines[i-1][:stampLen] {
				t.Fatalf("line %d is older than the one before: %q, %q", i, lines[i-1], lines[i])
			}
		}
	})
}

func TestWindowLateLineTakesTheTimeOfTheLastWritten(t *testing.T) {
	zone := time.UTC
	at := time.Date(2026, 7, 14, 10, 0, 0, 123e6, zone)
	w := newWindow(zone)
	w.add(at, false, []byte("first"))
	out := w.take(nil, 1)
	w.add(at.Add(-time.Hour), true, []byte("late\nnews"))
	out = w.take(out, 1)
	want := "2026/07/14 10:00:00.123 | first\n2026/07/14 10:00:00.123 # late news\n"
	if string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}
