package preflight

import (
	"errors"
	"fmt"
	"math"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
)

// The reserve is what stays with the operating system and the driver. The
// runbook says "a few GB" and no more; 4 GiB is a few, and leaves an idle Spark
// (about 120 GB available) 116 GB. On smaller machines it is the twentieth part
// of the memory, so that a laptop is not left with nothing.
const (
	reserveMaxKiB = 4 << 20
	reserveShare  = 20
)

// memory is /proc/meminfo at one instant.
type memory struct {
	info meminfo.Info
	err  error
}

func readMemory(r root) memory {
	info, err := meminfo.Read(string(r))
	return memory{info: info, err: err}
}

func (m memory) num(name string) sample.Num {
	v, ok := m.info[name]
	if !ok {
		return sample.Num{}
	}
	return sample.Known(float64(v))
}

// report fills in the memory figures of a report.
func (m memory) report(r *Report) {
	r.MemTotalKiB, r.MemAvailableKiB, r.MemFreeKiB = m.num("MemTotal"), m.num("MemAvailable"), m.num("MemFree")
	if r.MemTotalKiB.OK {
		r.ReserveKiB = sample.Known(reserve(r.MemTotalKiB.V))
	}
	if r.MemAvailableKiB.OK && r.ReserveKiB.OK {
		gb := headroomGB(r.MemAvailableKiB.V, r.ReserveKiB.V)
		r.HeadroomGB = &gb
	}
}

func reserve(totalKiB float64) float64 {
	return math.Min(reserveMaxKiB, math.Floor(totalKiB/reserveShare))
}

// headroomGB rounds down to whole decimal gigabytes; less than nothing is
// nothing. MemAvailable already counts the page cache that can be reclaimed, so
// nothing is added for it, and swap never counts.
func headroomGB(availableKiB, reserveKiB float64) int {
	return int(math.Max(0, math.Floor((availableKiB-reserveKiB)*1024/1e9)))
}

// judgeHeadroom is G3: a reading, no judgement. The GPU shares the memory, and
// what the GPU tools say of it counts only what CUDA allocated (or is N/A), so
// only the kernel's own figures are used.
func judgeHeadroom(f facts) Finding {
	m := f.memory
	free, available, total := m.num("MemFree"), m.num("MemAvailable"), m.num("MemTotal")
	if m.err != nil || !free.OK || !available.OK || !total.OK {
		reason := "MemAvailable is not in /proc/meminfo: is this kernel older than 3.14?"
		switch {
		case errors.Is(m.err, errLate):
			reason = fmt.Sprintf("no answer within %g s", f.limit.Seconds())
		case m.err != nil:
			reason = m.err.Error()
		}
		return Finding{Status: Skip, Detail: reason}
	}
	// As free -g prints them: GiB, cut off, used being total less available.
	const gib = 1 << 20
	line := fmt.Sprintf("G3 INFO: free/used (GB): %d %d", int(free.V/gib), int(math.Max(0, total.V-available.V)/gib))
	cache := m.num("Cached").Or(0) + m.num("Buffers").Or(0) + m.num("SReclaimable").Or(0) - m.num("Shmem").Or(0)
	found := Finding{
		Status: Info, Line: line,
		Detail: fmt.Sprintf("%s available of %s, %s of it page cache that the kernel gives back", gb(available.V), gb(total.V), gb(math.Max(0, cache))),
		Evidence: []string{
			"MemAvailable " + gb(available.V),
			"MemFree " + gb(free.V) + " (what cudaMemGetInfo sees)",
			"page cache " + gb(math.Max(0, cache)),
		},
	}
	if n := m.num("HugePages_Total"); n.OK && n.V > 0 {
		found.Evidence = append(found.Evidence, fmt.Sprintf("huge pages set aside %.0f, free %.0f, of %.0f KiB each", n.V, m.num("HugePages_Free").Or(0), m.num("Hugepagesize").Or(0)))
	}
	if swap := m.num("SwapTotal"); swap.OK && swap.V > 0 {
		if left := m.num("SwapFree"); left.OK {
			found.Evidence = append(found.Evidence, "swap in use "+gb(swap.V-left.V)+" of "+gb(swap.V)+" (does not count)")
		}
	}
	return found
}

// gb writes KiB in decimal gigabytes, the unit of headroom_gb.
func gb(kib float64) string { return fmt.Sprintf("%.1f GB", kib*1024/1e9) }
