package gate

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// whoMost bounds how many holders are named.
const whoMost = 10

// smallKiB is what a process must hold to be looked at: the shells and daemons
// of a machine are no explanation for a missing GiB.
const smallKiB = 4 << 10

// Who names the processes under root that hold memory of their own, anonymous or
// shared, those first that grew most since before (Sizes), then the largest; ten
// at most. ours says which are this run's and therefore left out. A nil before
// means that nothing is known of that time.
func Who(root string, ours func(pid int) bool, before map[int]uint64) []Holder {
	hs := slices.DeleteFunc(scan(root, ours, before), func(h Holder) bool { return h.Ours })
	if len(hs) > whoMost {
		hs = hs[:whoMost]
	}
	for i := range hs {
		hs[i].Comm = Name(root, hs[i].PID)
	}
	return hs
}

// Sizes returns what every process under root holds, anonymous and shared
// together, in KiB by pid: the measure that Who counts growth from. A pid used
// again by another process meanwhile has its growth understated.
func Sizes(root string) map[int]uint64 {
	sizes := make(map[int]uint64)
	each(root, func(pid int, anon, shmem uint64) { sizes[pid] = anon + shmem })
	return sizes
}

// GPUSizes is Sizes for the processes NVML names.
func GPUSizes(hs []Holder) map[int]uint64 {
	sizes := make(map[int]uint64, len(hs))
	for _, h := range hs {
		sizes[h.PID] += h.KiB
	}
	return sizes
}

// scan returns every holder, this run's marked, without the names that argv
// gives.
func scan(root string, ours func(pid int) bool, before map[int]uint64) []Holder {
	var hs []Holder
	each(root, func(pid int, anon, shmem uint64) {
		if anon+shmem < smallKiB {
			return
		}
		grew := less(anon+shmem, before[pid])
		h := Holder{PID: pid, Alive: true, Ours: ours != nil && ours(pid)}
		if anon > 0 {
			h.KiB, h.GrewKiB, h.How = anon, min(anon, grew), "rss"
			hs = append(hs, h)
		}
		if shmem > 0 {
			h.KiB, h.GrewKiB, h.How = shmem, less(grew, anon), "shmem"
			hs = append(hs, h)
		}
	})
	slices.SortFunc(hs, func(a, b Holder) int {
		if a.GrewKiB != b.GrewKiB {
			return cmpDesc(a.GrewKiB, b.GrewKiB)
		}
		if a.KiB != b.KiB {
			return cmpDesc(a.KiB, b.KiB)
		}
		return a.PID - b.PID
	})
	return hs
}

// each calls f with the anonymous and the shared memory of every process that
// has any. status is read because any user may and because it takes no lock
// that a process stuck in a driver may hold.
func each(root string, f func(pid int, anon, shmem uint64)) {
	d, err := os.Open(filepath.Join(root, "proc"))
	if err != nil {
		return
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	buf := make([]byte, 8192) // no status is nearly as long
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 0 {
			continue
		}
		b := readInto(buf, filepath.Join(root, "proc", name, "status"))
		anon, ok1 := statusKiB(b, "\nRssAnon:")
		shmem, ok2 := statusKiB(b, "\nRssShmem:")
		if ok1 || ok2 {
			f(pid, anon, shmem)
		}
	}
}

// readInto reads the head of a file of /proc with as few system calls as that
// takes: it is done for every process of the machine. It returns nil where the
// process is gone.
func readInto(buf []byte, path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil
		}
		return buf[:n]
	}
}

// statusKiB reads a figure of /proc/PID/status. The name of the process, which
// anybody can choose, has its newlines escaped there.
func statusKiB(b []byte, key string) (uint64, bool) {
	_, rest, ok := bytes.Cut(b, []byte(key))
	if !ok {
		return 0, false
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(line, []byte("kB")))), 10, 64)
	return n, err == nil
}
