package hygiene

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// segment is one System V shared memory segment.
type segment struct {
	id        int
	bytes     uint64
	cpid      int // who made it
	attached  int
	uid, cuid int
	ctime     time.Time // in whole seconds
}

// readSysV lists the segments of our IPC namespace; false where that cannot be
// done.
func readSysV(root string) ([]segment, bool) {
	f, err := os.Open(filepath.Join(root, "proc/sysvipc/shm"))
	if err != nil {
		return nil, false
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	if !sc.Scan() {
		return nil, false
	}
	col := map[string]int{}
	for i, name := range strings.Fields(sc.Text()) {
		col[name] = i
	}
	var segs []segment
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		bad := false
		number := func(name string) int {
			i, ok := col[name]
			if !ok || i >= len(f) {
				bad = true
				return 0
			}
			n, err := strconv.ParseInt(f[i], 10, 64)
			bad = bad || err != nil
			return int(n)
		}
		s := segment{
			id: number("shmid"), bytes: uint64(number("size")), cpid: number("cpid"), attached: number("nattch"),
			uid: number("uid"), cuid: number("cuid"), ctime: time.Unix(int64(number("ctime")), 0),
		}
		if bad {
			return nil, false // another form of table: nothing in it can be trusted
		}
		segs = append(segs, s)
	}
	return segs, sc.Err() == nil
}

// sysv removes the segments that processes of the attempt made and nobody has
// attached.
func (c *cleaner) sysv() {
	if c.o.Root != "/" || c.o.Start.IsZero() || c.o.Before.sysv == nil {
		return
	}
	segs, ok := readSysV(c.o.Root)
	if !ok {
		return
	}
	for _, s := range segs {
		if !c.left(s) {
			continue
		}
		f := Finding{
			Kind: "sysv", What: fmt.Sprintf("shared memory segment %d", s.id), KiB: s.bytes >> 10, PID: s.cpid,
			Why: fmt.Sprintf("made by process %d (%s) of the attempt and attached by nobody", s.cpid, shown(c.o.Tree[s.cpid])),
		}
		switch {
		case c.o.DryRun:
			f.Why += "; it would be removed"
		default:
			if _, err := unix.SysvShmCtl(s.id, unix.IPC_RMID, nil); err != nil {
				f.Why += fmt.Sprintf(", but it cannot be removed: %v", err)
			} else {
				f.Removed = true
			}
		}
		c.tell(f)
	}
}

// left says whether a segment is the dead attempt's.
func (c *cleaner) left(s segment) bool {
	if _, ours := c.o.Tree[s.cpid]; !ours {
		return false
	}
	maker, there := c.tab.procs[s.cpid]
	return s.attached == 0 && (!there || maker.gone()) && s.uid == c.o.UID && s.cuid == c.o.UID &&
		!c.o.Before.sysv[s.id] && !s.ctime.Before(c.o.Start.Truncate(time.Second)) && !s.ctime.After(c.o.End)
}
