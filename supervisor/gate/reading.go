package gate

import "sparkrun/internal/meminfo"

// Read takes one reading of the memory figures under root ("/" for this
// machine), without holders. Known is false where that fails.
func Read(root string) Reading {
	info, err := meminfo.Read(root)
	if err != nil {
		return Reading{}
	}
	avail, ok := info.Available()
	r := Reading{AvailKiB: avail, FreeKiB: info["MemFree"], TotalKiB: info["MemTotal"], ShmemKiB: info["Shmem"], Known: ok}
	r.UnaccountedKiB, r.UnaccountedKnown = unaccounted(info)
	return r
}

// unaccounted is MemTotal less everything the kernel names (facts: gb10 3.2).
// Zswap, SecPageTables and Balloon are not in that formula; they too are memory
// in use that stands under no other heading, and none of it is the GPU driver's.
func unaccounted(info meminfo.Info) (uint64, bool) {
	for _, must := range []string{"MemTotal", "MemFree", "Cached", "AnonPages"} {
		if _, ok := info[must]; !ok {
			return 0, false
		}
	}
	slab, ok := info["Slab"]
	if !ok {
		reclaimable, ok1 := info["SReclaimable"]
		if !ok1 {
			reclaimable, ok1 = info["KReclaimable"]
		}
		unreclaimable, ok2 := info["SUnreclaim"]
		if !ok1 || !ok2 {
			return 0, false
		}
		slab = reclaimable + unreclaimable
	}
	named := slab
	for _, name := range []string{
		"MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "KernelStack", "PageTables", "Percpu", "Hugetlb",
		"Zswap", "SecPageTables", "Balloon",
	} {
		named += info[name] // a figure this kernel does not have is no memory
	}
	// The figures are not from one instant: the sum may come out above the total.
	return less(info["MemTotal"], named), true
}

// less is a - b, and 0 where b is larger.
func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
