package hygiene

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/lazyre"
)

// family is a kind of name that libraries used in training give their files in
// shared memory. A file with any other name is never removed: it may be a data
// set that the user put there.
type family struct {
	name *lazyre.RE
	base int // of the pid in the first group; 0: there is none
}

// families are the names seen in the wild, with the library that makes them.
var families = []family{
	{lazyre.New(`^torch_(\d+)_`), 10},                         // torch, DataLoader workers' tensors
	{lazyre.New(`^cuda\.shm\.[0-9a-f]+\.([0-9a-f]+)\.`), 16},  // CUDA, uid and pid in hex
	{lazyre.New(`^nccl-(?:shm-.*|[A-Za-z0-9]{6})$`), 0},       // NCCL between processes of a machine
	{lazyre.New(`^psm_[0-9a-f]{4,}$`), 0},                     // Python multiprocessing.shared_memory
	{lazyre.New(`^sem\.mp-`), 0},                              // Python multiprocessing locks
	{lazyre.New(`^(?:sem\.)?loky-(\d+)-`), 10},                // joblib
	{lazyre.New(`^__KMP_REGISTERED_LIB_(\d+)(?:_\d+)?$`), 10}, // LLVM and Intel OpenMP
}

// maker returns whether a name is of a known family and, where the name tells, the
// pid of the process that made it; else 0.
func maker(name string) (pid int, known bool) {
	for _, f := range families {
		m := f.name.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		if f.base == 0 {
			return 0, true
		}
		n, err := strconv.ParseInt(m[1], f.base, 32)
		return int(n), err == nil && n > 0
	}
	return 0, false
}

const (
	// namesMost bounds how many names of /dev/shm are looked at. With more, what
	// lay there before cannot be told, and nothing is removed.
	namesMost = 100_000
	// worthTelling is how large a file with a foreign name must be to be told of,
	// in KiB: it lies in the same memory as the GPU's.
	worthTelling = 64 << 10
)

func shmPath(root string) string { return filepath.Join(root, "dev/shm") }

func snapshot(root string) Before {
	var b Before
	if names, ok := shmNames(root); ok {
		b.shm = make(map[string]bool, len(names))
		for _, n := range names {
			b.shm[n] = true
		}
	}
	if segs, ok := readSysV(root); ok {
		b.sysv = make(map[int]bool, len(segs))
		for _, s := range segs {
			b.sysv[s.id] = true
		}
	}
	return b
}

// shmNames lists /dev/shm; false where that cannot be done in full.
func shmNames(root string) ([]string, bool) {
	d, err := os.Open(shmPath(root))
	if err != nil {
		return nil, false
	}
	defer d.Close()
	names, err := d.Readdirnames(namesMost + 1)
	if err != nil && !errors.Is(err, io.EOF) || len(names) > namesMost {
		return nil, false
	}
	return names, true
}

// candidate is a file that may be the attempt's.
type candidate struct {
	name string
	kib  uint64
	dev  uint64
	ino  uint64
	mode uint32
	pid  int // of the maker, where the name tells
}

// shm removes the POSIX shared memory that the attempt left.
func (c *cleaner) shm(ctx context.Context) {
	if c.o.Start.IsZero() {
		return
	}
	dir, err := unix.Open(shmPath(c.o.Root), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // none here
	}
	defer unix.Close(dir)
	var fs unix.Statfs_t
	if unix.Fstatfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return // files on a disk hold no memory
	}
	names, ok := shmNames(c.o.Root)
	if !ok {
		return
	}
	slices.Sort(names)
	var cands []candidate
	for _, name := range names {
		if cand, ok := c.candidate(dir, name); ok {
			cands = append(cands, cand)
		}
	}
	if len(cands) == 0 {
		return
	}
	use := c.tab.inUse(cands, c.o.UID)
	for _, cand := range cands {
		if ctx.Err() != nil {
			return
		}
		f := Finding{Kind: "shm", What: filepath.Join("/dev/shm", shown(cand.name)), KiB: cand.kib}
		f.Removed, f.Why = c.remove(dir, cand, use)
		if f.Why != "" {
			c.tell(f)
		}
	}
}

// candidate says whether a name may be the attempt's: of this user, made during
// the attempt, a plain file with one name, and of a known family. It tells of
// what is large and fails only on the last point, or on what it is.
func (c *cleaner) candidate(dir int, name string) (candidate, bool) {
	pid, known := maker(name)
	var st unix.Statx_t
	if unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st) != nil {
		return candidate{}, false // gone meanwhile
	}
	if int(st.Uid) != c.o.UID || c.o.Before.shm[name] || !c.during(&st) {
		return candidate{}, false
	}
	cand := candidate{
		name: name, kib: st.Blocks / 2, dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino,
		mode: uint32(st.Mode), pid: pid,
	}
	left := func(why string) (candidate, bool) {
		if known || cand.kib >= worthTelling {
			c.tell(Finding{Kind: "shm", What: filepath.Join("/dev/shm", shown(name)), KiB: cand.kib, Why: why})
		}
		return candidate{}, false
	}
	switch {
	case c.o.Before.shm == nil:
		return left("what lay there before the attempt is not known, so it was left alone")
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return left("made during the attempt, but it is no plain file, so it was left alone")
	case st.Nlink != 1:
		return left("made during the attempt, but it has another name elsewhere, so it was left alone")
	case !known:
		return left("made by this user during the attempt, but under no name that a training library gives: it was left alone, and its memory is missing to the GPU")
	}
	return cand, true
}

// during says whether a file was made during the attempt: by its birth time, and
// where the file system keeps none only if nothing about it is older.
func (c *cleaner) during(st *unix.Statx_t) bool {
	in := func(ts unix.StatxTimestamp) bool {
		t := time.Unix(ts.Sec, int64(ts.Nsec))
		return !t.Before(c.o.Start) && !t.After(c.o.End)
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		return in(st.Btime)
	}
	return in(st.Ctime) && in(st.Mtime)
}

// remove removes a candidate if it is proven the attempt's and in nobody's use.
// why is empty where it is not worth a word.
func (c *cleaner) remove(dir int, cand candidate, use usage) (removed bool, why string) {
	const leftAlone = ", so it was left alone"
	if user, ok := use.by[cand.name]; ok {
		return false, "in use by " + user + leftAlone
	}
	switch {
	case cand.pid > 0 && len(c.o.Tree) > 0:
		if _, ours := c.o.Tree[cand.pid]; !ours {
			return false, fmt.Sprintf("made by process %d, which was not seen in the attempt%s", cand.pid, leftAlone)
		}
	case use.otherRun != "":
		// Its processes may pass such files to each other between two moments of
		// having them open.
		return false, "may belong to run " + shown(use.otherRun) + ", which is alive" + leftAlone
	}
	if cand.pid == 0 && !c.o.Seen[filepath.Join(shmPath(c.o.Root), cand.name)] {
		// Any program of the user's may have made it meanwhile.
		return false, "made during the attempt, but no process of the attempt was seen to have it open" + leftAlone
	}
	if cand.pid > 0 {
		if p, ok := c.tab.procs[cand.pid]; ok && !p.gone() {
			return false, fmt.Sprintf("its maker, process %d, is alive%s", cand.pid, leftAlone)
		}
	}
	fd, err := unix.Openat(dir, cand.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, ""
	}
	if err != nil {
		return false, fmt.Sprintf("it cannot be opened (%v)%s", err, leftAlone)
	}
	defer unix.Close(fd)
	switch c.lease(fd) {
	case leaseBusy:
		// The kernel knows users that /proc does not show: other users' processes,
		// other containers', descriptors on their way through a socket.
		return false, "somebody who cannot be seen from here has it open" + leftAlone
	case leaseUnknown:
		switch {
		case use.unreadable != "":
			return false, "whether " + use.unreadable + " uses it cannot be read" + leftAlone
		case use.outside:
			return false, "whether somebody outside this container uses it cannot be told" + leftAlone
		case use.foreign && cand.mode&0o077 != 0:
			return false, "others may open it, and not all processes can be looked at" + leftAlone
		}
	}
	// With the lease nobody can have opened it since. That the name still stands
	// for this very file is looked at last.
	var st, named unix.Stat_t
	if unix.Fstat(fd, &st) != nil || unix.Fstatat(dir, cand.name, &named, unix.AT_SYMLINK_NOFOLLOW) != nil ||
		st.Ino != cand.ino || named.Ino != cand.ino || st.Dev != named.Dev || int(st.Uid) != c.o.UID || st.Nlink != 1 {
		return false, "it changed while it was looked at" + leftAlone
	}
	if c.o.DryRun {
		return false, "made during the attempt and used by nobody; it would be removed"
	}
	if err := unix.Unlinkat(dir, cand.name, 0); err != nil {
		return false, fmt.Sprintf("made during the attempt and used by nobody, but it cannot be removed: %v", err)
	}
	return true, "made during the attempt and used by nobody"
}

// leased is what a write lease told.
type leased int

const (
	leaseFree leased = iota
	leaseBusy
	leaseUnknown
)

// lease asks the kernel for a write lease, which it grants only while no other
// open of the file exists, a mapping included, in whatever container or process.
// It is kept until the descriptor is closed.
func lease(fd int) leased {
	for {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
		switch {
		case err == nil:
			return leaseFree
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return leaseBusy
		}
		return leaseUnknown
	}
}
