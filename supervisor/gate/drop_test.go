package gate

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sparkrun/internal/proctree"
)

// cached counts the pages of a file that are in the page cache.
func cached(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	vec := make([]byte, (len(b)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&vec[0]))); errno != 0 {
		t.Fatal(errno)
	}
	n := 0
	for _, v := range vec {
		n += int(v & 1)
	}
	return n
}

func TestDropFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skip("needs a folder on a disk: in a tmpfs the page cache is the file")
	}
	weights, other, fifo := filepath.Join(dir, "weights"), filepath.Join(dir, "other"), filepath.Join(dir, "fifo")
	for _, p := range []string{weights, other} {
		if err := os.WriteFile(p, make([]byte, 4<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A name that stands for a pipe by now would wait for its other end.
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if cached(t, weights) == 0 {
		t.Skip("this file system keeps no page cache")
	}
	res := Drop(t.Context(), "files", []string{filepath.Join(dir, "gone"), fifo, weights})
	if res.Err != nil || res.How != "files" {
		t.Fatalf("%+v", res)
	}
	if n := cached(t, weights); n != 0 {
		t.Errorf("%d pages of the weights are still cached", n)
	}
	if n := cached(t, other); n == 0 {
		t.Error("another's file was dropped too")
	}
}

func TestDropIsCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res := Drop(ctx, "files", []string{"/etc/passwd"}); res.Err == nil {
		t.Errorf("%+v", res)
	}
}

func TestMappedFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "model 1.safetensors")
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 2<<20, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	me, _ := proctree.Read(os.Getpid())
	files := map[string]bool{}
	MappedFiles([]proctree.Proc{me, {PID: 1 << 30}}, files, 1000)
	if !files[path] {
		t.Errorf("%s is not among %v", path, files)
	}
	few := map[string]bool{"a": true}
	MappedFiles([]proctree.Proc{me}, few, 1)
	if len(few) != 1 {
		t.Errorf("more than allowed: %v", few)
	}
}

func TestMapping(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"7f0000000000-7f0000200000 r--s 00000000 08:01 1234    /data/my model.bin":       "/data/my model.bin",
		"7f0000000000-7f0000200000 r--s 00000000 08:01 1234    /data/gone.bin (deleted)": "",
		"7f0000000000-7f0000200000 rw-p 00000000 00:00 0 ":                               "",
		"7f0000000000-7f0000200000 rw-p 00000000 00:00 0       [anon:cache/a]":           "",
		"7f0000000000-7f0000200000 rw-s 00000000 00:1b 9       /dev/shm/torch_1_2_0":     "",
		"7f0000000000-7f0000200000 rw-s 00000000 00:05 9       /dev/nvidia0":             "",
		"x-7f0000200000 r--s 00000000 08:01 1234    /data/a":                             "",
		"torn": "",
	} {
		if got, size := mapping(line); got != want || (got != "" && size != 2<<20) {
			t.Errorf("%q: %q of %d bytes, want %q", line, got, size, want)
		}
	}
}
