package hygiene

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Bounds of one look of Held.
const (
	heldPIDs  = 4096    // processes
	heldFDs   = 16384   // descriptors of one process
	heldBytes = 8 << 20 // of the mappings of one process
	heldMost  = 10_000  // names in all
)

// stuck are the processes whose mappings are still being read: one that hangs in
// a driver may hold the lock for ever, and must not cost a thread with every look.
var stuck sync.Map

// Held adds to into the paths under /dev/shm that the given processes have mapped
// or open now: what Options.Seen is made of. It is meant to be called again and
// again while the attempt runs, at its first second too, since shared memory of
// the libraries is often open for a moment only. A process that hangs costs half
// a second once.
func Held(pids []int, into map[string]bool) { heldUnder("/", pids, into) }

func heldUnder(root string, pids []int, into map[string]bool) {
	shm := shmPath(root)
	var st unix.Stat_t
	if unix.Stat(shm, &st) != nil {
		return
	}
	// Names of files that lost the name they were opened by: glibc makes a
	// semaphore under another name first.
	renamed := map[uint64]bool{}
	for i, pid := range pids {
		if i >= heldPIDs || len(into) >= heldMost {
			break
		}
		if _, still := stuck.Load(pid); still {
			continue
		}
		s, ok := within(readWait, func() seen {
			stuck.Store(pid, true)
			defer stuck.Delete(pid)
			return look(pid, shm+"/", st.Dev)
		})
		if !ok {
			continue
		}
		for _, p := range s.paths {
			if len(into) < heldMost {
				into[p] = true
			}
		}
		for _, ino := range s.renamed {
			renamed[ino] = true
		}
	}
	if len(renamed) > 0 {
		nameAgain(shm, renamed, into)
	}
}

// seen is what one process has in shared memory.
type seen struct {
	paths   []string
	renamed []uint64 // inodes
}

// look reads what a process has mapped and open below the prefix, on that device:
// another container's /dev/shm has the same path.
func look(pid int, prefix string, dev uint64) (s seen) {
	dir := "/proc/" + strconv.Itoa(pid)
	take := func(path string, ino uint64) {
		if strings.HasSuffix(path, " (deleted)") {
			s.renamed = append(s.renamed, ino)
		} else {
			s.paths = append(s.paths, path)
		}
	}
	if f, err := os.Open(dir + "/maps"); err == nil {
		in := bufio.NewScanner(io.LimitReader(f, heldBytes))
		for in.Scan() {
			// from-to rights offset device inode path
			at := strings.Index(in.Text(), " "+prefix)
			if at < 0 {
				continue
			}
			line := in.Text()
			w := strings.Fields(line[:at])
			if len(w) != 5 {
				continue
			}
			ino, err := strconv.ParseUint(w[4], 10, 64)
			if d, ok := parseDev(w[3], 16); ok && err == nil && d == dev {
				take(line[at+1:], ino)
			}
		}
		f.Close()
	}
	d, err := os.Open(dir + "/fd")
	if err != nil {
		return s
	}
	defer d.Close()
	fds, _ := d.Readdirnames(heldFDs)
	for _, fd := range fds {
		link, err := os.Readlink(dir + "/fd/" + fd)
		if err != nil || !strings.HasPrefix(link, prefix) {
			continue
		}
		// Asked of the open file, not of the path.
		var st unix.Stat_t
		if unix.Stat(dir+"/fd/"+fd, &st) == nil && st.Dev == dev {
			take(link, st.Ino)
		}
	}
	return s
}

// nameAgain finds the present names of files by their inodes, among the names
// that libraries give.
func nameAgain(shm string, inodes map[uint64]bool, into map[string]bool) {
	d, err := os.Open(shm)
	if err != nil {
		return
	}
	defer d.Close()
	names, _ := d.Readdirnames(heldMost)
	for _, name := range names {
		if _, known := maker(name); !known || len(into) >= heldMost {
			continue
		}
		var st unix.Stat_t
		if path := filepath.Join(shm, name); unix.Lstat(path, &st) == nil && inodes[st.Ino] {
			into[path] = true
		}
	}
}
