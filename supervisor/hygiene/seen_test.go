package hygiene

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAStrangersNameStays: a notebook beside the training makes shared memory
// under the names of the same library, and is dead as well.
func TestAStrangersNameStays(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	o := attempt(t, root, dead)
	o.Seen = map[string]bool{}
	ours, theirs, named := filepath.Join(shm, "psm_0a0a0a0a"), filepath.Join(shm, "psm_0b0b0b0b"), filepath.Join(shm, fmt.Sprintf("torch_%d_1_0", dead))
	for _, path := range []string{ours, theirs, named} {
		write(t, path)
	}
	trainer := start(t, "map", ours)
	Held([]int{trainer.pid}, o.Seen)
	trainer.stop()
	fs := Clean(t.Context(), o)
	if !find(t, fs, "shm", "psm_0a0a0a0a").Removed || there(ours) {
		t.Errorf("one of the attempt's stays: %+v", fs)
	}
	if f := find(t, fs, "shm", "psm_0b0b0b0b"); f.Removed || !strings.Contains(f.Why, "no process of the attempt was seen to have it open") || !there(theirs) {
		t.Errorf("a stranger's: %+v", f)
	}
	if !find(t, fs, "shm", filepath.Base(named)).Removed || there(named) {
		t.Errorf("a name with the pid of the attempt needs nothing else: %+v", fs)
	}
	o.Seen = nil
	write(t, ours)
	if fs := Clean(t.Context(), o); find(t, fs, "shm", "psm_0a0a0a0a").Removed || !there(ours) {
		t.Errorf("nothing was ever looked at: %+v", fs)
	}
}

func TestHeld(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	at := func(name string) string {
		path := filepath.Join(shm, name)
		write(t, path)
		return path
	}
	mapped, open, closed, renamed, gone := at("psm_00000001"), at("a name with spaces"), at("psm_00000003"), at("sem.AbC"), at("psm_00000004")
	elsewhere := filepath.Join(t.TempDir(), "file")
	write(t, elsewhere)
	var pids []int
	for path, role := range map[string]string{mapped: "map", open: "open", renamed: "map", gone: "map", elsewhere: "open"} {
		pids = append(pids, start(t, role, path).pid)
	}
	// As glibc does with a semaphore: made under one name, used under another.
	final := filepath.Join(shm, "sem.mp-abc")
	for _, err := range []error{os.Link(renamed, final), os.Remove(renamed), os.Remove(gone)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]bool{"kept": true}
	heldUnder(root, append(pids, dead, 0, -1), got)
	want := []string{open, "kept", mapped, final}
	slices.Sort(want)
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	heldUnder(filepath.Join(root, "none"), pids, got)
	if len(got) != len(want) || got[closed] {
		t.Errorf("%v", got)
	}
	// The same path on another device is another container's.
	var st unix.Stat_t
	if err := unix.Stat(shm, &st); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if s := look(pid, shm+"/", st.Dev+1); len(s.paths)+len(s.renamed) > 0 {
			t.Errorf("%+v", s)
		}
	}
}

// TestHeldIsBounded: a process whose maps are still being read is left alone, and
// the names have an end.
func TestHeldIsBounded(t *testing.T) {
	t.Parallel()
	root, shm := machine(t)
	path := filepath.Join(shm, "psm_00000001")
	write(t, path)
	p := start(t, "map", path)
	stuck.Store(p.pid, true)
	got := map[string]bool{}
	heldUnder(root, []int{p.pid}, got)
	if len(got) > 0 {
		t.Errorf("asked again: %v", got)
	}
	stuck.Delete(p.pid)
	full := map[string]bool{}
	for i := range heldMost {
		full[fmt.Sprint(i)] = true
	}
	heldUnder(root, []int{p.pid}, full)
	if len(full) != heldMost {
		t.Errorf("%d names", len(full))
	}
	if heldUnder(root, []int{p.pid}, got); !got[path] {
		t.Errorf("%v", got)
	}
}
