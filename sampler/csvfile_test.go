package sampler

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// notes collects what a file says about itself.
type notes struct {
	mu   sync.Mutex
	errs []error
	// wrote is sent to at every write that worked, failed at every other.
	wrote, failed chan struct{}
	dropped       int
}

func newNotes() *notes {
	return &notes{wrote: make(chan struct{}, 10_000), failed: make(chan struct{}, 10_000)}
}

func (n *notes) note(_ string, kind trouble, err error, dropped int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropped += dropped
	if err != nil {
		n.errs = append(n.errs, err)
	}
	if kind != troubleWrite {
		return
	}
	if err == nil {
		n.wrote <- struct{}{}
	} else {
		n.failed <- struct{}{}
	}
}

// receive waits for a gate.
func receive(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("no %s within 10 s", what)
	}
}

func finish(t *testing.T, f *csvFile) {
	t.Helper()
	f.close()
	receive(t, "end of the file", f.synced)
}

func content(t *testing.T, elem ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFileBeginsWithTheHeaderOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, want string }{
		"new":           {"", "a,b\n1,2\n"},
		"taken over":    {"a,b\n0,1\n", "a,b\n0,1\n1,2\n"},
		"torn by crash": {"a,b\n0,1\n0.5,", "a,b\n0,1\n0.5,\n1,2\n"},
		"torn header":   {"a,", "a,b\n1,2\n"},
		"header alone":  {"a,b\n", "a,b\n1,2\n"},
		// What a power cut may leave where the file had grown and the data had not come.
		"torn by power": {"a,b\n0,1\n\x00\x00\x00", "a,b\n0,1\n\x00\x00\x00\n1,2\n"},
	} {
		dir := t.TempDir()
		if c.before != "" {
			if err := os.WriteFile(filepath.Join(dir, "x.csv"), []byte(c.before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := newCSVFile(dir, "x.csv", []byte("a,b\n"), newNotes().note)
		f.row([]byte("1,2\n"))
		finish(t, f)
		if got := content(t, dir, "x.csv"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		f.row([]byte("after the end\n"))
	}
}

func TestAFileOfAnotherReleaseIsPutAside(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"fewer columns": "a\n0\n", "no header": "0,1\n", "nothing we know": "\x00\x00\x00\x00\x00\x00"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "x.csv"), []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		n := newNotes()
		f := newCSVFile(dir, "x.csv", []byte("a,b\n"), n.note)
		f.row([]byte("1,2\n"))
		finish(t, f)
		if old, now := content(t, dir, "x.001.csv"), content(t, dir, "x.csv"); old != before || now != "a,b\n1,2\n" {
			t.Errorf("%s: kept %q, new %q", name, old, now)
		}
		if len(n.errs) > 0 {
			t.Errorf("%s: %v", name, n.errs)
		}
	}
}

// TestSyncsAreASecondApart: rows that come faster wait, the last of them too, and the end
// is not waited for.
func TestSyncsAreASecondApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newCSVFile(dir, "x.csv", nil, func(string, trouble, error, int) {})
		start := time.Now()
		var at []time.Duration
		var sizes []int64
		f.toDisk = func(file *os.File) error {
			info, err := file.Stat()
			at, sizes = append(at, time.Since(start)), append(sizes, info.Size())
			return err
		}
		for range 21 {
			f.row([]byte("x\n"))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		f.row([]byte("x\n"))
		synctest.Wait()
		f.close()
		<-f.synced
		wantAt := []time.Duration{0, syncEvery, 2 * syncEvery, 3 * syncEvery, 7100 * time.Millisecond, 7100 * time.Millisecond}
		if !slices.Equal(at, wantAt) {
			t.Errorf("synced at %v, want %v", at, wantAt)
		}
		if sizes[3] != 42 || sizes[len(sizes)-1] != 44 {
			t.Errorf("sizes when synced: %v", sizes)
		}
	})
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := newCSVFile(dir, "x.csv", nil, newNotes().note)
	f.row([]byte("1\n"))
	finish(t, f)
	info, err := os.Stat(filepath.Join(dir, "x.csv"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
}

func TestAFullFileIsPutAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := newNotes()
	f := newCSVFile(dir, "t.csv", []byte("h\n"), n.note)
	f.partBytes = 8
	if err := os.WriteFile(filepath.Join(dir, "t.001.csv"), []byte("somebody's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		f.row(fmt.Appendf(nil, "%d\n", i))
		receive(t, "row", n.wrote)
	}
	finish(t, f)
	for name, want := range map[string]string{
		"t.001.csv": "somebody's\n", "t.002.csv": "h\n0\n1\n2\n", "t.csv": "h\n3\n4\n5\n",
	} {
		if got := content(t, dir, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

// A part that cannot be put aside, here since its name would be too long, grows on.
func TestAPartThatCannotBePutAsideLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := newNotes()
	name := strings.Repeat("t", 251) + ".csv"
	f := newCSVFile(dir, name, []byte("h\n"), n.note)
	f.partBytes = 32
	want := "h\n"
	for i := range 100 {
		f.row(fmt.Appendf(nil, "%03d\n", i))
		want += fmt.Sprintf("%03d\n", i)
	}
	finish(t, f)
	if got := content(t, dir, name); got != want {
		t.Errorf("%d bytes of %d are there: %q", len(got), len(want), got)
	}
	select {
	case <-n.failed:
		t.Error("told as a failure")
	default:
	}
}

func TestAFileThatCannotBeMadeIsTriedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "gone")
	n := newNotes()
	f := newCSVFile(dir, "x.csv", []byte("h\n"), n.note)
	f.row([]byte("1\n"))
	receive(t, "failure", n.failed)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f.row([]byte("2\n"))
	receive(t, "row", n.wrote)
	finish(t, f)
	if got := content(t, dir, "x.csv"); got != "h\n1\n2\n" {
		t.Errorf("content %q", got)
	}
}

func TestAFullDiskTearsNoLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs root to mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	n := newNotes()
	f := newCSVFile(dir, "x.csv", []byte("header\n"), n.note)
	// A row longer than a page is cut in the middle by the full disk.
	row := func(i int) []byte { return fmt.Appendf(nil, "%04d,%s\n", i, strings.Repeat("x", 4500)) }
	rows := 0
	for full := false; !full; rows++ {
		f.row(row(rows))
		select {
		case <-n.wrote:
		case <-n.failed:
			full = true
		case <-time.After(10 * time.Second):
			t.Fatal("the disk is never full")
		}
		if rows > 100 {
			t.Fatal("64 KiB take no end of rows")
		}
	}
	n.mu.Lock()
	if !errors.Is(n.errs[0], unix.ENOSPC) {
		t.Errorf("error %v", n.errs[0])
	}
	n.mu.Unlock()
	if got := content(t, dir, "x.csv"); strings.HasSuffix(got, "\n") {
		t.Error("the disk was full at the end of a row: this tests nothing")
	}
	for range 3 {
		f.row(row(rows))
		rows++
		receive(t, "failure", n.failed)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	f.row(row(rows))
	rows++
	receive(t, "row", n.wrote)
	finish(t, f)
	want := []byte("header\n")
	for i := range rows {
		want = append(want, row(i)...)
	}
	if got := content(t, dir, "x.csv"); got != string(want) {
		t.Errorf("%d bytes in the file, want %d", len(got), len(want))
	}
}

func TestRowsThatWaitTooLongAreDroppedWhole(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "gone")
	n := newNotes()
	f := newCSVFile(dir, "x.csv", []byte("h\n"), n.note)
	for i := range pendingRows + 10 {
		f.row(fmt.Appendf(nil, "%d\n", i))
		receive(t, "failure", n.failed)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	finish(t, f)
	got := content(t, dir, "x.csv")
	if lines := strings.Split(strings.TrimSpace(got), "\n"); lines[0] != "h" || lines[1] != "10" || len(lines) != pendingRows+1 {
		t.Errorf("%d lines from %q, %q", len(lines), lines[0], lines[1])
	}
	if n.dropped != 10 {
		t.Errorf("%d rows counted as lost", n.dropped)
	}
}
