package treefs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/newprog"
)

// tree makes files under a new folder; a text that starts with "-> " is a link.
func tree(t *testing.T, files map[string]string) Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case len(text) > 3 && text[:3] == "-> ":
			err = os.Symlink(text[3:], path)
		case text == "program":
			err = newprog.Write(path, []byte(text))
		default:
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return Of(dir)
}

// An absolute link leads to the tree's own file, and one that climbs stays inside.
func TestLinksStayInTheTree(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := tree(t, map[string]string{
		"usr/bin/python3.12":     "program",
		"usr/bin/python3":        "-> python3.12",
		"home/ada/venv/bin/py":   "-> /usr/bin/python3",
		"home/ada/up":            "-> ../../../../../../usr/bin/python3",
		"home/ada/out":           "-> " + outside,
		"home/ada/loop":          "-> loop",
		"home/ada/conf":          "text",
		"home/ada/lib/python3.9": "x",
		"home/ada/lib64":         "-> /home/ada/lib",
	})
	for path, want := range map[string]bool{
		"/home/ada/venv/bin/py": true, "/home/ada/up": true, "/usr/bin/python3": true,
		"/home/ada/out": false, "/home/ada/loop": false, "/home/ada/conf": false, "/usr/bin": false, "/bin/sh": false, "": false,
	} {
		if got := r.Executable(path); got != want {
			t.Errorf("%s: executable %t, want %t", path, got, want)
		}
	}
	if got, err := r.Real("/home/ada/venv/bin/py"); err != nil || got != "/usr/bin/python3.12" {
		t.Errorf("%s %v", got, err)
	}
	if _, err := r.Real("/home/ada/out"); err == nil {
		t.Error("a link led out of the tree")
	}
	if got := r.Head(outside, 10); got != nil {
		t.Errorf("read %q from outside", got)
	}
	if diff := cmp.Diff([]string{"/home/ada/lib64/python3.9"}, r.Glob("/home/ada/lib64/python3*")); diff != "" {
		t.Error(diff)
	}
	if got := r.Glob("/home/ada/[/x"); len(got) > 0 {
		t.Errorf("a broken pattern fits %q", got)
	}
	if !r.IsLink("/home/ada/lib64") || r.IsLink("/home/ada/conf") || !r.IsDir("/home/ada/lib64") || !r.IsFile("/home/ada/conf") {
		t.Error("links, folders and files are mixed up")
	}
	if got := string(r.Head("/home/ada/conf", 2)); got != "te" {
		t.Errorf("head %q", got)
	}
}

func TestFilesOfTheCommandMayLieOnThisMachine(t *testing.T) {
	t.Parallel()
	here := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(here, []byte("here"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := tree(t, map[string]string{"home/ada/train.py": "there"})
	if r.For("/home/ada/train.py") != r || !r.For(here).Live() || !Root("").For(here).Live() {
		t.Error("a file of the command is looked for in the wrong place")
	}
	if got := string(r.For(here).Head(here, 100)); got != "here" {
		t.Errorf("read %q", got)
	}
}
