package preflight

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"sparkrun/configs"
	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
)

// memoryTable is configs/headroom.yaml.
type memoryTable struct {
	AsOf     string `yaml:"as_of"`
	Refresh  string `yaml:"refresh"`
	Retained struct {
		WarnGiB float64 `yaml:"warn_gib"`
	} `yaml:"retained"`
	Swap struct {
		PagesPerS  float64 `yaml:"pages_per_s"`
		IntervalMS int     `yaml:"interval_ms"`
	} `yaml:"swap"`
	Fragmentation struct {
		FreeGiB float64 `yaml:"free_gib"`
	} `yaml:"fragmentation"`
	HugePages struct {
		SharePct float64 `yaml:"share_pct"`
	} `yaml:"huge_pages"`
}

// loadMemoryTable reads the built-in table once; a test reads it, so that a binary in
// use has it.
var loadMemoryTable = sync.OnceValues(func() (memoryTable, error) {
	var t memoryTable
	if err := configs.BuiltIn("headroom.yaml", &t); err != nil {
		return memoryTable{}, fmt.Errorf("reading the built-in headroom table: %w", err)
	}
	return t, nil
})

const kibPerGiB = 1 << 20

// figures are the lines of /proc/meminfo that the kernel's bookkeeping adds up from.
func (m memory) figures() meminfo.Figures {
	get := func(name string) uint64 {
		if v, ok := m.info[name]; ok {
			return v
		}
		return meminfo.Unknown
	}
	f := meminfo.Figures{
		Total: get("MemTotal"), Free: get("MemFree"), Available: get("MemAvailable"),
		Buffers: get("Buffers"), Cached: get("Cached"), SwapCached: get("SwapCached"),
		SwapTotal: get("SwapTotal"), SwapFree: get("SwapFree"),
		AnonPages: get("AnonPages"), Shmem: get("Shmem"),
		Slab: get("Slab"), KernelStack: get("KernelStack"), PageTables: get("PageTables"),
		Percpu: get("Percpu"), HugePages: get("HugePages_Total"), HugePageKiB: get("Hugepagesize"),
	}
	if f.Slab == meminfo.Unknown {
		// Recorded without the sum: its two parts say the same.
		back := get("SReclaimable")
		if back == meminfo.Unknown {
			back = get("KReclaimable")
		}
		if kept := get("SUnreclaim"); kept != meminfo.Unknown && back != meminfo.Unknown {
			f.Slab = back + kept
		}
	}
	if f.HugePageKiB == meminfo.Unknown && f.HugePages != meminfo.Unknown && f.HugePages > 0 {
		f.HugePages = meminfo.Unknown // a number of pages without their size says nothing
	}
	return f
}

// cacheKiB is the page cache and what else the kernel gives back: what is in /dev/shm
// and tmpfs counts as cache and is none. Unknown where Cached is.
func (m memory) cacheKiB() sample.Num {
	cached := m.num("Cached")
	if !cached.OK {
		return sample.Num{}
	}
	return sample.Known(math.Max(0, cached.V+m.num("Buffers").Or(0)+m.num("SReclaimable").Or(0)-m.num("Shmem").Or(0)))
}

// hugeKiB is what is set aside as huge pages.
func (m memory) hugeKiB() sample.Num {
	n, size := m.num("HugePages_Total"), m.num("Hugepagesize")
	if !n.OK || !size.OK {
		return sample.Num{}
	}
	return sample.Known(n.V * size.V)
}

// blocks is what /proc/buddyinfo tells of free memory in large pieces.
type blocks struct {
	known bool
	// order is the largest there is; largest how many free blocks of it all zones have,
	// and nextLargest those of the order below.
	order                int
	largest, nextLargest uint64
}

// parseBuddy adds up the zones of /proc/buddyinfo. A line that is not of its form makes
// all of it unknown: half a sum would say that there are no blocks.
func parseBuddy(text string) blocks {
	var b blocks
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		_, rest, ok := strings.Cut(line, "zone ")
		fields := strings.Fields(rest)
		if !ok || !strings.HasPrefix(line, "Node ") || len(fields) < 3 {
			return blocks{}
		}
		counts := fields[1:]
		if b.known && len(counts)-1 != b.order {
			return blocks{}
		}
		b.known, b.order = true, len(counts)-1
		for i, c := range counts {
			n, err := strconv.ParseUint(c, 10, 48)
			if err != nil {
				return blocks{}
			}
			switch i {
			case b.order:
				b.largest += n
			case b.order - 1:
				b.nextLargest += n
			}
		}
	}
	return b
}

// swapCounts are the pages swapped in and out since the machine started.
type swapCounts struct {
	in, out uint64
	ok      bool
}

func parseSwapCounts(text []byte) swapCounts {
	in, ok1 := meminfo.Line(text, "pswpin")
	out, ok2 := meminfo.Line(text, "pswpout")
	return swapCounts{in, out, ok1 && ok2}
}

// since is the rate between two readings, in pages of a second.
func (c swapCounts) since(before swapCounts, seconds float64) sample.Num {
	if !c.ok || !before.ok || seconds <= 0 || c.in < before.in || c.out < before.out {
		return sample.Num{}
	}
	return sample.Known(float64(c.in-before.in+c.out-before.out) / seconds)
}

// gb writes KiB in decimal gigabytes, the unit of headroom_gb; gbOf bytes.
func gb(kib float64) string { return fmt.Sprintf("%.1f GB", kib*1024/1e9) }

func gbOf(bytes int64) string { return gb(float64(bytes) / 1024) }
