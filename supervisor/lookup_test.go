package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is no program is refused by name and reason before anything is started, wherever it
// lies on the PATH; a program behind it is found all the same.
func TestLookCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	for _, d := range []string{first, second, filepath.Join(first, "folder")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{first + "/plain": 0o644, second + "/program": 0o755, second + "/piped": 0o755} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pipe", "piped"} {
		if err := unix.Mkfifo(filepath.Join(first, name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(first, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=" + first + ":second"}
	for _, c := range []struct {
		name, path string
		status     int
		why        string
	}{
		{"program", second + "/program", 0, ""},
		{"piped", second + "/piped", 0, ""},
		{"second/program", second + "/program", 0, ""},
		{"", "", 127, "the command is empty"},
		{"nosuch", "", 127, "nosuch is not on the PATH"},
		{"./nosuch", "", 127, "./nosuch does not exist"},
		{"first/plain/x", "", 127, "does not exist"},
		{"plain", "", 126, "no permission to be executed"},
		{"folder", "", 126, "it is a folder"},
		{"pipe", "", 126, "it is no regular file"},
		{first + "/pipe", "", 126, "it is no regular file"},
	} {
		got, err := lookCommand(c.name, dir, env)
		if c.status == 0 {
			if err != nil || got != c.path {
				t.Errorf("%q: %q, %v", c.name, got, err)
			}
			continue
		}
		if se, ok := err.(*StatusErr); !ok || se.Status != c.status || !strings.Contains(err.Error(), c.why) { //nolint:errorlint // returned as it is
			t.Errorf("%q: %q, %v", c.name, got, err)
		}
	}
}
