package holder

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/clock"
)

func TestIndexFollowsAGrowingFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, idxName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	add := func(b []byte) {
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	ix, err := OpenIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ix.Close()
	ask := func(off int64, want time.Duration, ok bool) {
		t.Helper()
		if got, gok := ix.BootAt(off); got != want || gok != ok {
			t.Errorf("BootAt(%d) = %d, %v, want %d, %v", off, got, gok, want, ok)
		}
	}
	ask(0, 0, false)
	add(indexRecord{0, 1, 100}.appendTo(nil))
	ask(0, 100, true)
	ask(50, 100, true)
	rec := indexRecord{10, 2, 200}.appendTo(nil)
	add(rec[:7]) // torn
	ask(50, 100, true)
	add(rec[7:])
	ask(50, 200, true)
	ask(10, 200, true)
	ask(9, 100, true)
	ask(-1, 0, false)
	if real, ok := ix.RealAt(10); !ok || real.UnixNano() != 2 {
		t.Errorf("RealAt = %v %v", real, ok)
	}
}

// The reader with its block agrees with a plain search, in any order of
// questions and while the file grows.
func TestIndexAgreesWithSearch(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(base, "i")
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(dir, idxName))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ix, err := OpenIndex(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer ix.Close()
		var all []indexRecord
		next := int64(rapid.IntRange(0, 3).Draw(t, "first"))
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			var b []byte
			for range rapid.IntRange(0, 2*indexBlock).Draw(t, "records") {
				r := indexRecord{off: next, real: int64(len(all)), boot: int64(len(all)) + 1}
				all = append(all, r)
				b = r.appendTo(b)
				next += int64(rapid.IntRange(1, 5).Draw(t, "step"))
			}
			if _, err := f.Write(b); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				off := int64(rapid.IntRange(-1, int(next)+5).Draw(t, "offset"))
				want, ok := time.Duration(0), false
				for _, r := range all {
					if r.off <= off {
						want, ok = time.Duration(r.boot), true
					}
				}
				if got, gok := ix.BootAt(off); got != want || gok != ok {
					t.Fatalf("BootAt(%d) = %d %v, want %d %v", off, got, gok, want, ok)
				}
			}
		}
	})
}

func TestIndexTellsWhenALineCame(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	a := start(t, baseSpec(dir, "sh", "-c", "stty -echo; echo first; read x; echo second"), nil)
	a.says("first\n")
	ix, err := OpenIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ix.Close()
	first, ok := ix.BootAt(0)
	if !ok {
		t.Fatal("no time for the first byte, though it is in the log")
	}
	// Records are sparse: leave room for a second one.
	until(t, "the index takes another record", func() bool { return clock.Boottime()-first > 2*indexEvery })
	gate := clock.Boottime()
	if err := a.dial("test").Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	a.end()
	second, ok := ix.BootAt(6)
	if now := clock.Boottime(); !ok || first > gate || second < gate || second > now {
		t.Errorf("first %s, asked %s, second %s (%v), now %s", first, gate, second, ok, now)
	}
	if last, _ := ix.BootAt(5); last != first {
		t.Errorf("the end of the first line came at %s, its begin at %s", last, first)
	}
	real, ok := ix.RealAt(6)
	if d := time.Since(real); !ok || d < 0 || d > time.Minute {
		t.Errorf("wall clock %v, %v", real, ok)
	}
}

func TestIndexIsSparse(t *testing.T) {
	t.Parallel()
	r := testRing(t)
	began := time.Now()
	for range 5000 {
		r.reserve()[0] = 'x'
		r.commit(1)
	}
	most := int(time.Since(began)/indexEvery) + 1
	if n := len(r.index); n < 1 || n > most {
		t.Errorf("%d records, want 1 to %d", n, most)
	}
	if r.index[0].off != 0 {
		t.Errorf("first record %+v", r.index[0])
	}
	// A disk that hangs for long.
	r.index = make([]indexRecord, maxIndexPending)
	for i := range r.index {
		r.index[i].off = int64(i)
	}
	r.thinIndex()
	if len(r.index) != maxIndexPending/2 || r.index[0].off != 0 || r.index[1].off != 2 {
		t.Errorf("%d records, %v", len(r.index), r.index[:2])
	}
}
