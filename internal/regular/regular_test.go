package regular

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOpensRegularFilesOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link, fifo, sub := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "sub")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(file, link), unix.Mkfifo(fifo, 0o600), os.Mkdir(sub, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		f, info, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(b) != "text" || info.Size() != 4 || f.Name() != path {
			t.Errorf("%s: %q, %d bytes, %v", path, b, info.Size(), err)
		}
	}
	if _, _, err := OpenHere(link); err == nil {
		t.Error("a link was followed")
	}
	for path, want := range map[string]error{fifo: ErrNot, "/dev/null": ErrNot, sub: unix.EISDIR, filepath.Join(dir, "gone"): os.ErrNotExist} {
		if _, _, err := Open(path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if b, err := Read(file, 2); err != nil || string(b) != "te" {
		t.Errorf("the beginning: %q, %v", b, err)
	}
}

// A writer that waits for the training must not be let in by us.
func TestWriterOfAFIFOIsNotLetIn(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	in := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err == nil {
			err = f.Close()
		}
		in <- err
	}()
	for range 200 {
		if _, _, err := Open(fifo); !errors.Is(err, ErrNot) {
			t.Fatal(err)
		}
	}
	select {
	case err := <-in:
		t.Fatal("the writer was let in", err)
	default:
	}
	// The reader it waits for.
	f, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	select {
	case err := <-in:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the writer is not let in by its reader")
	}
}
