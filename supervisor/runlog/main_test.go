package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
)

// testPlaces are places inside a fresh folder: a project, a home and a folder
// for sockets.
func testPlaces(t *testing.T) Places {
	t.Helper()
	root := t.TempDir()
	p := Places{Home: filepath.Join(root, "home"), Cwd: filepath.Join(root, "project"), SocketRoot: root}
	for _, dir := range []string{p.Home, p.Cwd} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func testDir(t *testing.T) *Dir {
	t.Helper()
	d, err := Create(testPlaces(t), "", "train", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// mountTmpfs mounts a small file system of its own, so that "full" and
// "read-only" are real.
func mountTmpfs(t *testing.T, options string, flags uintptr) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip("needs root to mount a tmpfs")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk uses up all space under dir and returns what gives it back.
func fillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		n, err := f.Write(make([]byte, size))
		if err != nil && !noSpace(err) {
			t.Fatal(err)
		}
		if n == 0 {
			size /= 2
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for: %s", what)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// decodeLines parses a JSON lines file and fails on any line that is torn.
func decodeLines(t *testing.T, data []byte) []map[string]any {
	t.Helper()
	var list []map[string]any
	for line := range bytes.Lines(data) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatalf("torn or wrong line %q: %v", line, err)
		}
		list = append(list, m)
	}
	return list
}

// checkSorted fails unless every line of run.log has a timestamp, none older
// than the one before.
func checkSorted(t *testing.T, data []byte, zone *time.Location) {
	t.Helper()
	if len(data) > 0 && data[len(data)-1] != '\n' {
		t.Errorf("the last line is torn: %q", data[max(0, len(data)-80):])
	}
	var last time.Time
	for line := range bytes.Lines(data) {
		at, ok := parseStamp(line, zone)
		if !ok {
			t.Fatalf("no timestamp: %q", line)
		}
		if at.Before(last) {
			t.Fatalf("not sorted: %q after %s", line, clock.Format(last))
		}
		last = at
	}
}
