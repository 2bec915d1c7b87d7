package sampler

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rowsArg makes the test binary write rows to a folder until it is killed: its arguments
// are the folder and the number of the first one.
const rowsArg = "__rows"

const killHeader = "number,of,a,row\n"

func killRow(n int) []byte {
	s := fmt.Sprintf("%08d,%s", n, strings.Repeat("x", n%23))
	return fmt.Appendf(nil, "%s,%08x\n", s, crc32.ChecksumIEEE([]byte(s)))
}

func writeRows(args []string) {
	f := newCSVFile(args[0], "t.csv", []byte(killHeader), func(string, trouble, error, int) {})
	f.partBytes = 300 // a part each ten rows
	n, err := strconv.Atoi(args[1])
	if err != nil {
		os.Exit(3)
	}
	for ; ; n++ {
		for len(f.in) > queueRows/2 {
			time.Sleep(50 * time.Microsecond)
		}
		f.row(killRow(n))
	}
}

// A process that is killed at any point, in a row, in a header or between two parts,
// leaves each row that it wrote whole, in one part only, and every part with its header;
// the next one goes on behind it.
func TestKillsLoseNoRow(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const kills, each = 30, 100_000
	for i := range kills {
		before := sizes(t, dir)
		c := exec.Command(exe, rowsArg, dir, strconv.Itoa((i+1)*each))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(20 * time.Second); sizes(t, dir) == before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no row within 20 s")
			}
		}
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond) // any point will do
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	// What comes last ends a torn line.
	f := newCSVFile(dir, "t.csv", []byte(killHeader), newNotes().note)
	f.row(killRow((kills + 1) * each))
	finish(t, f)

	parts, err := filepath.Glob(filepath.Join(dir, "t.[0-9]*.csv"))
	if err != nil || len(parts) < kills/2 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	slices.SortStableFunc(parts, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	torn, last, runs := 0, 0, map[int]bool{}
	for _, part := range append(parts, filepath.Join(dir, "t.csv")) {
		text, err := os.ReadFile(part)
		if err != nil {
			t.Fatal(err)
		}
		rows, ok := bytes.CutPrefix(text, []byte(killHeader))
		if !ok {
			t.Fatalf("%s begins with %.40q", filepath.Base(part), text)
		}
		for line := range bytes.Lines(rows) {
			n, err := strconv.Atoi(string(line[:min(8, len(line))]))
			if err != nil || !bytes.Equal(line, killRow(n)) {
				torn++
				continue
			}
			if n != last+1 && (n%each != 0 || n <= last) {
				t.Fatalf("%s: row %d behind %d", filepath.Base(part), n, last)
			}
			last, runs[n/each] = n, true
		}
	}
	if torn > kills {
		t.Errorf("%d torn lines of %d kills", torn, kills)
	}
	if len(runs) < kills/2 {
		t.Errorf("rows of %d writers of %d", len(runs), kills+1)
	}
}

// sizes is how much there is of all parts.
func sizes(t *testing.T, dir string) int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // one may be renamed meanwhile
			sum += info.Size()
		}
	}
	return sum
}
