package hygiene

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func segmentThere(t *testing.T, id int) bool {
	t.Helper()
	segs, ok := readSysV("/")
	if !ok {
		t.Fatal("the list of segments cannot be read")
	}
	for _, s := range segs {
		if s.id == id {
			return true
		}
	}
	return false
}

func TestSysV(t *testing.T) {
	t.Parallel()
	if _, ok := readSysV("/"); !ok {
		t.Skip("this kernel has no System V shared memory")
	}
	remove := func(id int) { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }
	old := start(t, "segment", "")
	before := old.number(t)
	t.Cleanup(func() { remove(before) })
	o := Options{Before: Snapshot(), UID: os.Getuid(), Entry: entry(t), Start: time.Now(), Tree: map[int]string{old.pid: "python3"}}

	maker, living, stranger := start(t, "segment", ""), start(t, "segment", ""), start(t, "segment", "")
	ids := map[string]int{"maker dead": maker.number(t), "maker alive": living.number(t), "a stranger's": stranger.number(t)}
	for _, id := range ids {
		t.Cleanup(func() { remove(id) })
	}
	o.Tree[maker.pid], o.Tree[living.pid] = "python3", "python3"
	for _, p := range []player{old, maker, stranger} {
		p.stop()
	}
	attached, err := unix.SysvShmAttach(ids["maker dead"], 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if fs := Clean(t.Context(), o); len(fs) != 0 {
		t.Errorf("attached by somebody: %+v", fs)
	}
	if err := unix.SysvShmDetach(attached); err != nil {
		t.Fatal(err)
	}
	looked := o
	looked.DryRun = true
	if f := find(t, Clean(t.Context(), looked), "sysv", "segment"); f.Removed || !segmentThere(t, ids["maker dead"]) {
		t.Errorf("only looking: %+v", f)
	}
	fs := Clean(t.Context(), o)
	if f := find(t, fs, "sysv", "segment"); !f.Removed || f.KiB != 1024 || f.PID != maker.pid || !strings.Contains(f.Why, "python3") || len(fs) != 1 {
		t.Errorf("%+v", fs)
	}
	for name, want := range map[string]bool{"maker dead": false, "maker alive": true, "a stranger's": true} {
		if got := segmentThere(t, ids[name]); got != want {
			t.Errorf("%s: there %v, want %v", name, got, want)
		}
	}
	if !segmentThere(t, before) {
		t.Error("a segment from before the attempt is gone")
	}
}
