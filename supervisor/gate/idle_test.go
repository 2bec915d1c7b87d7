package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestIdle(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state", "sparkrun-train")
	note := func(boot string, kib uint64) {
		t.Helper()
		if err := NoteIdle(dir, boot, kib); err != nil {
			t.Fatal(err)
		}
	}
	if got := LoadIdle(dir, "a"); got != 0 {
		t.Errorf("before any note: %d", got)
	}
	note("a", 100)
	note("a", 90) // less is no news
	note("b", 50) // another machine on the same home folder
	if a, b := LoadIdle(dir, "a"), LoadIdle(dir, "b"); a != 100 || b != 50 {
		t.Errorf("a %d, b %d", a, b)
	}
	note("a", 120)
	if got := LoadIdle(dir, "a"); got != 120 {
		t.Errorf("a better value was not kept: %d", got)
	}
	if got := LoadIdle(dir, ""); got != 0 || NoteIdle(dir, "", 5) == nil {
		t.Errorf("a boot without an id has %d", got)
	}
	for i := range 100 {
		note(fmt.Sprint("boot", i), 7)
	}
	if st, err := os.Stat(filepath.Join(dir, idleFile)); err != nil || st.Size() > 4096 || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	if a, last := LoadIdle(dir, "a"), LoadIdle(dir, "boot99"); a != 0 || last != 7 {
		t.Errorf("old %d, newest %d", a, last)
	}
}

func TestIdleTornFile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "[]", `{"schema":"other/1","boots":[{"boot_id":"a","available_kib":5}]}`, strings.Repeat("\x00", 200<<10)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, idleFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := LoadIdle(dir, "a"); got != 0 {
			t.Errorf("%.10q: %d", text, got)
		}
		if err := NoteIdle(dir, "a", 9); err != nil || LoadIdle(dir, "a") != 9 {
			t.Errorf("%.10q is not replaced: %v", text, err)
		}
	}
	if err := NoteIdle("/dev/null/x", "a", 9); err == nil {
		t.Error("a folder that cannot be made is no error")
	}
}

// TestIdleTogether: runs that begin at the same moment never tear the file.
func TestIdleTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := NoteIdle(dir, "a", uint64(100+i)); err != nil {
				t.Error(err)
			}
			if got := LoadIdle(dir, "a"); got < 100 || got > 119 {
				t.Errorf("read %d", got)
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v %v", entries, err)
	}
}
