package holder

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/supervisor/guard"
)

func TestEveryDeathHasABlackBox(t *testing.T) {
	t.Parallel()
	for script, black := range map[string]bool{"exit 0": false, "exit 3": true, "kill -SEGV $$": true} {
		a, e := runSh(t, script, func(s *Spec) { s.Guard.Off = true })
		_, err := os.Stat(filepath.Join(a.dir, blackboxName))
		if black != (err == nil) || e.Guard != nil {
			t.Errorf("%s: %v", script, err)
		}
		if left, _ := filepath.Glob(filepath.Join(a.dir, "*.tmp")); len(left) > 0 {
			t.Errorf("%s left %v", script, left)
		}
	}
}

func TestAPlaceThatRefusesIsLeftClean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "is-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if saveBeside(filepath.Join(dir, "is-file"), "x", []byte("y")) == nil || saveBeside(dir, "a/b", []byte("y")) == nil {
		t.Error("no error")
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
}

// What cannot be kept is told in exit.json.
func TestLostFilesOfTheGuardAreTold(t *testing.T) {
	t.Parallel()
	for name, in := range map[string][]string{"none": nil, "one": {guardName}, "both": {guardName, blackboxName}} {
		a, e := runSh(t, "exit 3", func(s *Spec) {
			for _, n := range in {
				// In their place is what no file can be moved to.
				if err := os.MkdirAll(filepath.Join(s.Dir, n, "x"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		})
		if len(e.Notes) != len(in) {
			t.Errorf("%s: notes %q", name, e.Notes)
			continue
		}
		for i, n := range in {
			if !strings.HasPrefix(e.Notes[i], n) || !strings.Contains(e.Notes[i], "could not be written") {
				t.Errorf("%s: notes %q", name, e.Notes)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(a.dir, "*.tmp")); len(left) > 0 {
			t.Errorf("%s left %v", name, left)
		}
	}
	var e Exit
	for range 100 {
		e.lost("%s", strings.Repeat("\u00e4", 1000))
	}
	if len(e.Notes) != maxNoted || len(e.Notes[0]) > maxNote {
		t.Errorf("%d notes of %d bytes", len(e.Notes), len(e.Notes[0]))
	}
}

// fillDisk leaves nothing free.
func fillDisk(t *testing.T, disk string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(disk, "ballast"), make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling: %v", err)
	}
}

// On a full disk the reserve is given up for what the guard knows, and room is
// left for what comes after it.
func TestAFullDiskKeepsWhatTheGuardKnows(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "4m")
	spec := baseSpec(disk, "sh", "-c", "echo up; exit 3")
	spec.PTY, spec.Stdin, spec.Reserve, spec.MinFree = false, StdinNull, filepath.Join(disk, "reserve"), 0
	if err := os.WriteFile(spec.Reserve, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	fillDisk(t, disk)
	a := start(t, spec, nil)
	e := a.end()
	readBlackbox(t, a.dir)
	if r := readGuard(t, a.dir); r.Polls == 0 || len(e.Notes) > 0 || string(a.log()) != "up\n" {
		t.Errorf("%d looks, notes %q, output %q", r.Polls, e.Notes, a.log())
	}
}

func TestABlackBoxIsShortenedToWhatFits(t *testing.T) {
	t.Parallel()
	minute := make([]guard.Sample, 20000) // 1 MiB and more
	for i := range minute {
		minute[i].At, minute[i].AvailKiB = time.Duration(i)*time.Millisecond, uint64(1e9+i)
	}
	for name, c := range map[string]struct {
		reserve bool
		free    int // bytes
		rows    bool
		all     bool
	}{
		"the disk is full":           {false, 0, false, false},
		"only the last room is left": {false, 500 << 10, false, false},
		"some room":                  {false, 700 << 10, true, false},
		"the reserve":                {true, 0, true, false},
		"plenty":                     {true, 7 << 20, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := smallDisk(t, "8m")
			spec := baseSpec(disk, "true")
			if c.reserve {
				spec.Reserve = filepath.Join(disk, "reserve")
				if err := os.WriteFile(spec.Reserve, make([]byte, 1<<20), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			fillDisk(t, disk)
			st, err := os.Stat(filepath.Join(disk, "ballast"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(disk, "ballast"), max(st.Size()-int64(c.free), 0)); err != nil {
				t.Fatal(err)
			}
			before := roomFor(disk)
			note := saveMinute(spec, minute)
			if (note == "") != c.all || c.rows && !c.all && !strings.Contains(note, "holds only the newest") || !c.rows && !strings.Contains(note, "could not be written") {
				t.Errorf("note %q", note)
			}
			if left, _ := filepath.Glob(filepath.Join(disk, "*.tmp")); len(left) > 0 {
				t.Errorf("left %v", left)
			}
			if !c.rows {
				if _, err := os.Stat(filepath.Join(disk, blackboxName)); !notExist(err) {
					t.Errorf("%v, with room for %d", err, before)
				}
				return
			}
			rows := readBlackbox(t, disk)
			if last := column(t, rows[len(rows)-1], "mem_available_kib"); last != 1e9+19999 {
				t.Errorf("the newest row is %v", last)
			}
			if first := column(t, rows[0], "mem_available_kib"); first != 1e9+20000-float64(len(rows)) || (len(rows) == 20000) != c.all {
				t.Errorf("%d rows from %v", len(rows), first)
			}
			var fs unix.Statfs_t
			if err := unix.Statfs(disk, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < lastRoom {
				t.Errorf("%d KiB left, %v", fs.Bavail*uint64(fs.Bsize)>>10, err)
			}
		})
	}
}
