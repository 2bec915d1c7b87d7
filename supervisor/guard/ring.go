package guard

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// minute is how much of the past is kept: all of it even at the fastest
	// polling.
	minute   = time.Minute
	ringRows = int(minute/minPoll) + 64
)

// Unknown is the value of a figure of a Sample that was not read.
const Unknown = unknown

// Sample is what the guard saw at one instant. Sizes are in KiB; pressure is in
// hundredths of a percent. A figure that was not read is Unknown.
type Sample struct {
	// At is CLOCK_BOOTTIME.
	At                                                  time.Duration
	AvailKiB, FreeKiB, CachedKiB, ShmemKiB, SwapFreeKiB uint64
	PSISome, PSIFull                                    uint64
	// TreeRSSKiB is the resident memory of the tree's processes of at least
	// 16 MiB, in the row after it was added up.
	TreeRSSKiB uint64
	// GPUTreeKiB and GPUOtherKiB are what the sensors told, in the row after
	// they did.
	GPUTreeKiB, GPUOtherKiB uint64
	// CgroupKiB is what the child's own cgroup uses.
	CgroupKiB uint64
	OOMKills  uint64
	// Missed counts the planned polls that this one came too late for.
	Missed uint64
}

func (s *Sample) clear() {
	*s = Sample{
		At:       s.At,
		AvailKiB: unknown, FreeKiB: unknown, CachedKiB: unknown, ShmemKiB: unknown, SwapFreeKiB: unknown,
		PSISome: unknown, PSIFull: unknown, TreeRSSKiB: unknown, GPUTreeKiB: unknown, GPUOtherKiB: unknown,
		CgroupKiB: unknown, OOMKills: unknown,
	}
}

// ring keeps the last minute outside the Go heap, which has a small limit.
type ring struct {
	mem  []byte
	rows []Sample
	n    int // rows ever
}

func newRing() (*ring, error) {
	size := ringRows * int(unsafe.Sizeof(Sample{}))
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocating the record of the last minute: %w", err)
	}
	for i := 0; i < len(mem); i += unix.Getpagesize() {
		mem[i] = 0 // there before it is needed
	}
	return &ring{mem: mem, rows: unsafe.Slice((*Sample)(unsafe.Pointer(&mem[0])), ringRows)}, nil
}

func (r *ring) add(s *Sample) {
	r.rows[r.n%len(r.rows)] = *s
	r.n++
}

// last returns the rows of the minute before the newest one, the oldest first.
func (r *ring) last() []Sample {
	if r.n == 0 {
		return nil
	}
	from := r.rows[(r.n-1)%len(r.rows)].At - minute
	var out []Sample
	for i := max(r.n-len(r.rows), 0); i < r.n; i++ {
		if s := r.rows[i%len(r.rows)]; s.At >= from {
			out = append(out, s)
		}
	}
	return out
}

func (r *ring) free() { _ = unix.Munmap(r.mem) }
