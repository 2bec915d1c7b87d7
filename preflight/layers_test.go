package preflight

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sparkrun/internal/newprog"
)

// layer writes the files of one layer; a value that starts with "-> " is a link, "dev" a
// whiteout of overlayfs, "dir" a folder.
func layer(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case text == "dir":
			err = os.MkdirAll(path, 0o755)
		case text == "dev":
			if err = unix.Mknod(path, unix.S_IFCHR, 0); errors.Is(err, unix.EPERM) {
				t.Skip("a whiteout of overlayfs needs root to make")
			}
		case len(text) > 3 && text[:3] == "-> ":
			err = os.Symlink(text[3:], path)
		default:
			err = newprog.Write(path, []byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The union is what a program in a container sees.
func TestLayersAreAUnionWithWhiteouts(t *testing.T) {
	t.Parallel()
	bottom := layer(t, map[string]string{
		"usr/lib/a": "bottom a", "usr/lib/b": "bottom b", "usr/lib/gone": "x", "usr/lib/gone2/x": "x", "opt/old/x": "x", "etc/x": "x",
		"bin": "-> usr/bin", "usr/bin/python3": "-> python3.12", "usr/bin/python3.12": "elf", "was/file": "x", "now": "a file",
	})
	middle := layer(t, map[string]string{
		"usr/lib/a": "middle a", "usr/lib/.wh.gone": "", "opt/old/.wh..wh..opq": "", "opt/old/y": "y",
		"abs": "-> /usr/lib", "up": "-> ../../../usr/lib/a", "loop": "-> loop",
	})
	top := layer(t, map[string]string{"usr/lib/c": "top c", "usr/lib/gone2": "dev", "now/inside": "in", "was": "no folder"})
	l := newLayers([]string{top, middle, bottom})
	for path, want := range map[string]string{
		"/usr/lib/a": "middle a", "/usr/lib/b": "bottom b", "/usr/lib/c": "top c", "/bin/python3": "elf", "/abs/b": "bottom b",
		"/up": "middle a", "/now/inside": "in", "/opt/old/y": "y", "/usr/../usr/lib/./c": "top c", "/was": "no folder",
	} {
		if b, err := l.read(path); string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	for _, path := range []string{"/usr/lib/gone", "/usr/lib/gone2", "/usr/lib/gone2/x", "/opt/old/x", "/loop", "/was/file", "/usr/lib/.wh.gone", "/nothing/at/all"} {
		if b, err := l.read(path); err == nil {
			t.Errorf("%s is there: %q", path, b)
		}
		if there, err := l.exists(path); there || err != nil && path != "/loop" {
			t.Errorf("%s exists: %t, %v", path, there, err)
		}
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, l.names("/usr/lib")); diff != "" {
		t.Errorf("names (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"y"}, l.names("/opt/old")); diff != "" {
		t.Errorf("names of an opaque folder (-want +got)\n%s", diff)
	}
	if real, err := l.resolve("/bin/python3"); real != "/usr/bin/python3.12" || err != nil {
		t.Errorf("%q, %v", real, err)
	}
	if !l.executable("/bin/python3") || l.executable("/usr/lib") || l.executable("/nothing") {
		t.Error("executable")
	}
}

// Overlayfs marks an opaque folder with an attribute that only root may set.
func TestLayersOpaqueByAttribute(t *testing.T) {
	t.Parallel()
	bottom := layer(t, map[string]string{"d/x": "x"})
	top := layer(t, map[string]string{"d/y": "y"})
	err := unix.Setxattr(filepath.Join(top, "d"), "trusted.overlay.opaque", []byte("y"), 0)
	if err != nil {
		err = unix.Setxattr(filepath.Join(top, "d"), "user.overlay.opaque", []byte("y"), 0)
	}
	if err != nil {
		t.Skipf("this file system keeps no attributes: %v", err)
	}
	l := newLayers([]string{top, bottom})
	if diff := cmp.Diff([]string{"y"}, l.names("/d")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if there, _ := l.exists("/d/x"); there {
		t.Error("/d/x is there")
	}
}

func TestLayersNeverLeadOut(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLayers([]string{layer(t, map[string]string{
		"a": "-> " + secret, "b": "-> ../../../../../../../.." + secret, "c": "-> " + filepath.Dir(secret),
	})})
	for _, path := range []string{"/a", "/b", "/c/secret", "/../" + secret} {
		if b, err := l.read(path); err == nil {
			t.Errorf("%s: %q", path, b)
		}
	}
	if b, err := newLayers(nil).read("/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no layers: %q, %v", b, err)
	}
	if b, err := newLayers([]string{"/nowhere/at/all"}).read("/a"); err == nil {
		t.Errorf("a layer that is gone: %q", b)
	}
}

// A FIFO in the way is no file to wait for.
func TestLayersDoNotWaitForAFIFO(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "f"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := newLayers([]string{dir}).read("/f"); err == nil {
		t.Errorf("%q", b)
	}
}
