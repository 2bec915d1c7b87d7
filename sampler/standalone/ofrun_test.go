package standalone

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What lies in the directory of a run is refused, by any name, there or not; nothing is made
// and nothing changed. What only looks so is a place like another.
func TestFilesOfARunAreRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	in := func(name string) string { return filepath.Join(root, name) }
	for _, dir := range []string{"run/attempts/1/shim", "run/attempts/1/shim/a/b", "other/logs", "fifo", "folder/run.json", "empty", "deep"} {
		if err := os.MkdirAll(in(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const row = head + "2026/07/14 10:00:00.123, 68, 97.31 W\n"
	write(t, in("run/run.json"), "{\n  \"schema\": \"sparkrun.run/1\",\n  \"id\": \"x\"\n}\n")
	write(t, in("other/run.json"), `{"schema": "somebody.run/1", "note": "made by sparkrun"}`)
	write(t, in("empty/run.json"), "")
	for _, name := range []string{"run/thermal.csv", "run/attempts/1/blackbox.csv", "other/thermal.csv"} {
		write(t, in(name), row)
	}
	if err := errors.Join(unix.Mkfifo(in("fifo/run.json"), 0o600),
		os.Symlink("run/thermal.csv", in("link.log")), os.Symlink("link.log", in("link2.log")), os.Symlink("run/new.log", in("dangling.log")),
		os.Symlink(in("run"), in("latest")), os.Symlink("../other/thermal.csv", in("run/out.log")), os.Symlink("loop.log", in("loop.log")),
	); err != nil {
		t.Fatal(err)
	}
	listing := func() string {
		var names []string
		if err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			names = append(names, path)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return strings.Join(names, "\n")
	}
	before := listing()
	for name, refused := range map[string]bool{
		"run/thermal.csv": true, "run/new.log": true, "run/attempts/1/blackbox.csv": true, "run/attempts/new.log": true, "run/attempts/1/shim/new.log": true,
		"link.log": true, "link2.log": true, "dangling.log": true, "latest/thermal.csv": true, "latest/new.log": true, "run/../run/thermal.csv": true, "loop.log": true,
		"other/thermal.csv": false, "other/new.log": false, "other/logs/new.log": false, "run/out.log": false, "fifo/new.log": false, "folder/new.log": false,
		"empty/new.log": false, "new.log": false,
	} {
		// Joined by hand: the .. must stay.
		l := &logFile{path: root + "/" + name, header: []byte(head)}
		looked, opened := l.look(), l.open()
		if refused {
			if looked == nil || opened == nil || name != "loop.log" && (!errors.Is(looked, errOther) || !errors.Is(opened, errOther)) {
				t.Errorf("%s: looked at: %v; opened: %v", name, looked, opened)
			}
			l.close(true)
			continue
		}
		if looked != nil || opened != nil {
			t.Errorf("%s: looked at: %v; opened: %v", name, looked, opened)
		}
		l.close(true)
	}
	if after := listing(); after != before {
		t.Errorf("files were\n%s\nand are\n%s", before, after)
	}
	if got := read(t, in("run/thermal.csv")); got != row {
		t.Errorf("%q", got)
	}
}

// A sampler whose log becomes a link into a run ends there.
func TestWriterDoesNotFollowIntoARun(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	path, run := filepath.Join(root, "thermal.log"), filepath.Join(root, "run")
	if err := os.Mkdir(run, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(run, "run.json"), `{"schema": "sparkrun.run/1"}`)
	write(t, filepath.Join(run, "thermal.csv"), head)
	var n told
	w := newWriter(opened(t, path), n.note)
	w.write([]byte("one\n"))
	if err := <-w.first; err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.Symlink("run/thermal.csv", path)); err != nil {
		t.Fatal(err)
	}
	w.write([]byte("two\n"))
	if err := <-w.fatal; !errors.Is(err, errOther) || !strings.Contains(err.Error(), "directory of a run") {
		t.Errorf("%v", err)
	}
	w.close()
	if got := read(t, filepath.Join(run, "thermal.csv")); got != head {
		t.Errorf("%q", got)
	}
}
