package meminfo

import (
	"os"
	"path/filepath"
	"testing"
)

func TestThisMachine(t *testing.T) {
	t.Parallel()
	info, err := Read("/")
	if err != nil {
		t.Fatal(err)
	}
	avail, ok := info.Available()
	if !ok || avail == 0 || avail > info["MemTotal"] {
		t.Errorf("MemAvailable %d of %d (%v)", avail, info["MemTotal"], ok)
	}
}

func tree(t *testing.T, name, text string) string {
	t.Helper()
	root := t.TempDir()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestUnreadableIsAnError: a supervisor that took "unreadable" for "no memory
// left" would kill a healthy training.
func TestUnreadableIsAnError(t *testing.T) {
	t.Parallel()
	for name, root := range map[string]string{
		"missing": t.TempDir(),
		"empty":   tree(t, "proc/meminfo", ""),
		"torn":    tree(t, "proc/meminfo", "MemTo"),
		"no kB":   tree(t, "proc/meminfo", "MemTotal:\nMemAvailable: much\n"),
	} {
		if info, err := Read(root); err == nil {
			t.Errorf("%s: no error, %v", name, info)
		}
	}
	info, err := Read(tree(t, "proc/meminfo", "MemTotal:  127600512 kB\nMemFree: 5 kB\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := info.Available(); ok {
		t.Error("a MemAvailable that the kernel did not give")
	}
}

func TestKills(t *testing.T) {
	t.Parallel()
	n, err := OOMKills(tree(t, "proc/vmstat", "nr_free_pages 1\noom_kill 12\n"))
	if err != nil || n != 12 {
		t.Errorf("%d %v", n, err)
	}
	if n, err := OOMKills(tree(t, "proc/vmstat", "nr_free_pages 1\n")); err == nil {
		t.Errorf("a kernel that keeps no count has %d kills", n)
	}
}
