//go:build linux && cgo && (amd64 || arm64)

package trampoline

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A symbol that go-nvml uses and that is not in symbols.h would be left to the
// dynamic loader: the program would not start where binding is eager.
func TestSymbolListIsThatOfGoNVML(t *testing.T) {
	t.Parallel()
	fresh := filepath.Join(t.TempDir(), "symbols.h")
	if out, err := exec.Command("go", "run", "./gen", "-out", fresh).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want, err := os.ReadFile(fresh)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("symbols.h")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("symbols.h is not what go-nvml calls: run go generate ./sampler/nvml/...")
	}
	if n := len(Names()); n < 400 {
		t.Errorf("%d symbols in the table", n)
	}
}

func TestWithoutALibraryNothingIsThere(t *testing.T) {
	t.Parallel()
	if Has("nvmlInit_v2") {
		t.Error("nvmlInit_v2 is there before a library is")
	}
	if err := Load("/nonexistent/libnvidia-ml.so.1"); err == nil {
		t.Error("no error for a library that does not exist")
	}
	if Has("nvmlInit_v2") || Has("nvmlNoSuchFunction") {
		t.Error("a symbol is there although no library could be loaded")
	}
}
