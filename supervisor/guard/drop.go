package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sparkrun/internal/meminfo"
)

const (
	// dropEvery is the least distance of two drops: each makes the file system
	// read again what it just had.
	dropEvery = 30 * time.Second
	// maxDrops bounds the drops of an attempt. Where steps are not recognised the
	// load phase never ends: a load of 120 GiB at 200 MiB/s takes ten minutes,
	// which are 20 drops.
	maxDrops = 20
	// idleAfter is how long after a drop it is told that no more are made: who
	// holds what is looked up every 30 s at the slowest.
	idleAfter = 2 * dropEvery
)

// drops is what is remembered of the drops so far.
type drops struct {
	n    int
	last time.Duration // 0 for none
	// most is the greatest memory of the tree at a drop, in KiB.
	most uint64
}

type dropWhat uint8

const (
	dropWait  dropWhat = iota // too soon
	dropNow                   // do it
	dropIdle                  // nothing has been loaded since the last one
	dropSpent                 // there were enough
)

// next says whether to drop. treeKiB is the memory of the tree, 0 for unknown: a
// tree that has not grown by one percent of the total since it was largest at a
// drop loads nothing any more, and what fills the page cache is its data.
func (d drops) next(at time.Duration, treeKiB, totalKiB uint64) dropWhat {
	switch {
	case d.last != 0 && at-d.last < dropEvery:
		return dropWait
	case d.n >= maxDrops:
		return dropSpent
	case d.n > 0 && treeKiB > 0 && d.most > 0 && treeKiB < d.most+totalKiB/100:
		if at-d.last < idleAfter {
			return dropWait
		}
		return dropIdle
	}
	return dropNow
}

// done counts a drop.
func (d *drops) done(treeKiB uint64) {
	d.n++
	d.most = max(d.most, treeKiB)
}

// dropper drops the page cache while the model loads. cudaMemGetInfo of a GB10
// follows MemFree, not MemAvailable, so a load that has filled the page cache
// with its own weights finds no memory that was there.
type dropper struct {
	drop    string
	compact string
	mem     string
	drops
	// toldIdle and toldSpent are whether it has been said that no more are made.
	toldIdle, toldSpent bool
}

func newDropper(root string) *dropper {
	return &dropper{
		drop:    filepath.Join(root, "proc/sys/vm/drop_caches"),
		compact: filepath.Join(root, "proc/sys/vm/compact_memory"),
		mem:     root,
	}
}

// wanted is whether a drop would help: MemFree is low although plenty is
// available. It does not allocate.
func wanted(f *meminfo.Figures, softKiB uint64) bool {
	return f.Free != unknown && f.Available > softKiB &&
		f.Free < f.Total/10 && f.Available > f.Free && f.Available-f.Free > f.Total/20
}

// run drops once, unless it has just been done or nothing is being loaded, and
// tells what that gave. It is slow: it walks every cached inode.
func (d *dropper) run(at time.Duration, treeKiB uint64) (note Note, did bool) {
	before, err := meminfo.Read(d.mem)
	switch d.next(at, treeKiB, before["MemTotal"]) {
	case dropWait:
		return Note{}, false
	case dropIdle:
		told := d.toldIdle
		d.toldIdle = true
		return Note{
			Kind: NoteLoadDrop,
			Text: "MemFree is low, but the training has not grown since the page cache was last dropped: nothing is being loaded, so it is dropped again only if it grows",
			Data: map[string]any{"drops": d.n},
		}, !told
	case dropSpent:
		told := d.toldSpent
		d.toldSpent = true
		return Note{
			Kind: NoteLoadDrop,
			Text: fmt.Sprintf("the page cache was dropped %d times in this attempt, which is enough for a load: it is not dropped again", d.n),
			Data: map[string]any{"drops": d.n},
		}, !told
	}
	first := d.last == 0
	d.last = at
	if err == nil {
		// No sync: a disk that is slow to write would hold the drop up, and
		// what is dirty is not what the load has read.
		err = write(d.drop, "1")
	}
	if err != nil {
		if !first {
			return Note{}, false
		}
		return Note{Kind: NoteLoadDrop, Text: "the page cache cannot be dropped while the model loads: " + err.Error() +
			" (--load-drop-caches needs root, or CAP_SYS_ADMIN and a writable /proc/sys)"}, true
	}
	d.done(treeKiB)
	compacted := write(d.compact, "1") == nil
	now, err := meminfo.Read(d.mem)
	if err != nil {
		return Note{}, false
	}
	gained := int64(now["MemFree"]) - int64(before["MemFree"])
	return Note{
		Kind: NoteLoadDrop,
		Text: fmt.Sprintf("MemFree was low while the model loads: page cache dropped, MemFree %s -> %s", Size(before["MemFree"]), Size(now["MemFree"])),
		Data: map[string]any{
			"mem_free_before_kib": before["MemFree"], "mem_free_after_kib": now["MemFree"], "gained_kib": gained,
			"mem_available_kib": now["MemAvailable"], "compacted": compacted,
		},
	}, true
}

func write(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(s); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func gib(kib uint64) float64 { return float64(kib) / (1 << 20) }
