package hostfacts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestThisMachine(t *testing.T) {
	f, err := Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if f.Kernel != strings.TrimSpace(string(release)) || f.CPUs < 1 || f.OS == "" {
		t.Errorf("got %+v", f)
	}
}

// TestBrokenProc: a /proc that says nothing gives an error or empty facts, and
// never a panic.
func TestBrokenProc(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"stat", "cpuinfo", "uptime", "1/stat", "self/status"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("("), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOST_PROC", dir)
	f, err := Read(t.Context())
	if err == nil && f.CPUs == 0 {
		t.Errorf("no error, and yet: %+v", f)
	}
}
