package vm

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// payload is the machine's second disk: a tar of the two programs for arm64, which its
// unit unpacks and starts. $SPARKRUN_VM_BIN is a sparkrun built elsewhere.
func payload(t *testing.T, dir string) string {
	t.Helper()
	sparkrun := os.Getenv("SPARKRUN_VM_BIN")
	if sparkrun == "" {
		sparkrun = filepath.Join(dir, "sparkrun")
		compile(t, sparkrun, "sparkrun/cmd/sparkrun")
	}
	guest := filepath.Join(dir, "guest")
	compile(t, guest, "sparkrun/e2e/vm/guest")
	name := filepath.Join(dir, "files")
	if err := pack(name, map[string]string{"sparkrun": sparkrun, "start": guest}); err != nil {
		t.Fatal(err)
	}
	return name
}

func compile(t *testing.T, out, pkg string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=arm64")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %s for arm64: %v\n%s", pkg, err, b)
	}
}

// pack writes the tar, padded to what a disk is made of.
func pack(name string, files map[string]string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for inside, path := range files {
		if err := add(w, inside, path); err != nil {
			return fmt.Errorf("packing %s: %w", path, err)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	const block = 1 << 20
	if err := f.Truncate((size + block - 1) / block * block); err != nil {
		return err
	}
	return f.Close()
}

func add(w *tar.Writer, inside, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: inside, Mode: 0o755, Size: st.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
