package preflight

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
	"sparkrun/preflight/headroom"
)

// memory is /proc/meminfo at one instant.
type memory struct {
	info meminfo.Info
	err  error
}

func readMemory(r root) memory {
	const path = "/proc/meminfo"
	b, err := r.read(path)
	if err != nil {
		return memory{err: fmt.Errorf("reading memory figures: %w", err)}
	}
	info, err := meminfo.ParseInfo(path, b)
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

// reserve is what stays with the operating system and the driver, in KiB.
func reserve(totalKiB float64) float64 {
	return math.Floor(float64(headroom.Reserve(bytesOf(sample.Known(totalKiB)))) / 1024)
}

// headroomGB rounds down to whole decimal gigabytes; less than nothing is
// nothing. MemAvailable already counts the page cache that can be reclaimed, so
// nothing is added for it, and swap never counts.
func headroomGB(availableKiB, reserveKiB float64) int {
	return int(math.Max(0, math.Floor((availableKiB-reserveKiB)*1024/1e9)))
}

// headroomSeen is what G3 needs beside /proc/meminfo.
type headroomSeen struct {
	table  memoryTable
	blocks blocks
	// swapRate is in pages of a second, in and out together.
	swapRate sample.Num
	// drop tells whether this user may drop the page cache.
	drop dropRight
}

// dropRight is whether the page cache of the machine may be dropped.
type dropRight int

const (
	dropUnknown dropRight = iota
	dropAllowed
	dropRefused
)

func lookHeadroom(_ context.Context, v view) headroomSeen {
	table, _ := loadMemoryTable() // part of the binary, and a test reads it
	seen := headroomSeen{table: table, drop: readDropRight(v)}
	if v.in.NoDrop {
		seen.drop = dropRefused
	}
	if text, err := v.root.read("/proc/buddyinfo"); err == nil {
		seen.blocks = parseBuddy(string(text))
	}
	return seen
}

// SwapReading is the kernel's counters of swapped pages at one instant.
type SwapReading struct {
	counts swapCounts
	at     time.Time
}

// ReadSwap reads the counters of this machine, for Input.SwapBefore. It costs less than a
// millisecond.
func ReadSwap() SwapReading { return readSwap("/") }

func readSwap(r root) SwapReading {
	text, err := r.read("/proc/vmstat")
	if err != nil {
		return SwapReading{}
	}
	return SwapReading{parseSwapCounts(text), time.Now()}
}

// since is the rate between two readings, in pages of a second. Nobody waits for the
// second one: readings that lie closer together than the interval count as if they lay
// that far apart, so that a few pages at once stay a few.
func (s SwapReading) since(before SwapReading, interval time.Duration) sample.Num {
	return s.counts.since(before.counts, max(s.at.Sub(before.at), interval).Seconds())
}

// readDropRight asks the kernel, and in a recorded tree who it was recorded by.
func readDropRight(v view) dropRight {
	if v.live() {
		if unix.Access("/proc/sys/vm/drop_caches", unix.W_OK) == nil {
			return dropAllowed
		}
		return dropRefused
	}
	status, err := v.root.read("/proc/self/status")
	if err != nil {
		return dropUnknown
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			ids := strings.Fields(rest)
			if len(ids) < 2 {
				return dropUnknown
			}
			if n, err := strconv.Atoi(ids[1]); err == nil && n == 0 {
				return dropAllowed
			}
			return dropRefused
		}
	}
	return dropUnknown
}

// remark is one thing that G3 has to say.
type remark struct {
	status Status
	text   string
	fix    string
}

// judgeHeadroom is G3. The GPU shares the memory, and what the GPU tools say of it
// counts only what CUDA allocated (or is N/A), so only the kernel's own figures are
// used.
func judgeHeadroom(seen headroomSeen, f facts) Finding {
	m := f.memory
	free, available, total := m.num("MemFree"), m.num("MemAvailable"), m.num("MemTotal")
	if m.err != nil || !free.OK || !available.OK || !total.OK {
		reason := "MemAvailable is not in /proc/meminfo: is this kernel older than 3.14?"
		switch {
		case errors.Is(m.err, errLate):
			reason = f.noAnswerWithin()
		case m.err != nil:
			reason = m.err.Error()
		}
		return Finding{Status: Skip, Detail: reason}
	}
	found := Finding{
		Status: Info,
		// As free -g prints them: GiB, cut off, used being total less available.
		Line:     fmt.Sprintf("G3 INFO: free/used (GB): %d %d", int(free.V/kibPerGiB), int(math.Max(0, total.V-available.V)/kibPerGiB)),
		Detail:   fmt.Sprintf("%s available of %s", gb(available.V), gb(total.V)),
		Evidence: seen.evidence(f),
	}
	if cache := m.cacheKiB(); cache.OK {
		found.Detail += ", " + gb(cache.V) + " of it page cache that the kernel gives back"
	}
	remarks := slices.Concat(judgePlan(seen, f), judgeRetained(seen, f), judgeSwapping(seen, f), judgeBlocks(seen, f), judgeHuge(seen, f))
	for _, r := range remarks {
		switch r.status {
		case Info:
			found.Detail += "; " + r.text
		case Fail:
			found.Status = Fail
		case Warn:
			if found.Status != Fail {
				found.Status = Warn
			}
		}
	}
	if found.Status == Info {
		return found
	}
	// What is wrong comes first, and the readings become evidence.
	found.Evidence = append([]string{found.Detail, strings.TrimPrefix(found.Line, "G3 INFO: ")}, found.Evidence...)
	var texts, fixes []string
	for _, status := range []Status{Fail, Warn} {
		for _, r := range remarks {
			if r.status != status {
				continue
			}
			texts = append(texts, r.text)
			if r.fix != "" && !slices.Contains(fixes, r.fix) {
				fixes = append(fixes, r.fix)
			}
		}
	}
	found.Line, found.Detail, found.Fix = "", strings.Join(texts, "; "), strings.Join(fixes, "\n")
	return found
}

// evidence lists the readings.
func (seen headroomSeen) evidence(f facts) []string {
	m := f.memory
	lines := []string{
		"MemAvailable " + gb(m.num("MemAvailable").V),
		"MemFree " + gb(m.num("MemFree").V) + " (what cudaMemGetInfo sees)",
	}
	if cache := m.cacheKiB(); cache.OK {
		lines = append(lines, "page cache "+gb(cache.V))
	}
	if n := m.num("HugePages_Total"); n.OK && n.V > 0 {
		lines = append(lines, fmt.Sprintf("huge pages set aside %.0f, free %.0f, of %.0f KiB each", n.V, m.num("HugePages_Free").Or(0), m.num("Hugepagesize").Or(0)))
	}
	if swap := m.num("SwapTotal"); swap.OK && swap.V > 0 {
		if left := m.num("SwapFree"); left.OK {
			lines = append(lines, "swap in use "+gb(math.Max(0, swap.V-left.V))+" of "+gb(swap.V)+" (does not count)")
		}
	}
	if seen.swapRate.OK && seen.swapRate.V > 0 {
		lines = append(lines, fmt.Sprintf("swapping %.0f pages in a second", seen.swapRate.V))
	}
	fig := m.figures()
	if kib, ok := fig.Unaccounted(); ok && f.spark() {
		lines = append(lines, "counted for nobody "+gb(float64(kib))+" (on unified memory mostly what the GPU driver holds)")
	}
	if b := seen.blocks; b.known {
		lines = append(lines, fmt.Sprintf("free blocks of the largest order (%d): %d, of the next: %d", b.order, b.largest, b.nextLargest))
	}
	return append(lines, f.plan.evidence(f.budget())...)
}

// judgeRetained tells of memory that the driver keeps although no process on the GPU
// has it. On other machines what is counted for nobody is something else: the cache of
// ZFS, the balloon of a virtual machine.
func judgeRetained(seen headroomSeen, f facts) []remark {
	if !f.spark() || !f.gpu.ok() || f.gpu.gpu.Processes == nil {
		return nil // who holds the GPU is not known
	}
	fig := f.memory.figures()
	lost, ok := fig.Unaccounted()
	if !ok {
		return nil
	}
	kept := float64(lost)
	for _, p := range f.gpu.gpu.Processes {
		if !p.UsedMiB.OK {
			return nil // it may be this one that has it
		}
		kept -= p.UsedMiB.V * 1024
	}
	if kept < seen.table.Retained.WarnGiB*kibPerGiB {
		return nil
	}
	whose := "no process on the GPU has it"
	switch seen := len(f.gpu.gpu.Processes) > 0; {
	case f.container.inside() && seen:
		whose = "the processes on the GPU that can be seen from in here do not account for it"
	case f.container.inside():
		whose = "no process that can be seen from in here has it"
	case seen:
		whose = "the processes on the GPU do not account for it"
	}
	fix := "wait a minute and look again: the driver gives memory back some time after a process ends\n" +
		"stop what is left of earlier jobs: fuser -v /dev/nvidia* (as root it shows everybody's)\n" +
		"if it stays: sudo reboot (nothing else is known to free it)"
	if f.container.inside() {
		fix = "look on the host too: a container does not see the processes of others\n" + fix
	}
	return []remark{{Warn, fmt.Sprintf("%s of memory is held by the GPU driver and %s", gb(kept), whose), fix}}
}

// judgeSwapping tells of a machine that swaps before anything was started.
func judgeSwapping(seen headroomSeen, f facts) []remark {
	if !seen.swapRate.OK || seen.swapRate.V < seen.table.Swap.PagesPerS {
		return nil
	}
	text := fmt.Sprintf("the machine is swapping now, %.0f pages in a second", seen.swapRate.V)
	if !f.spark() {
		return []remark{{Info, text, ""}}
	}
	return []remark{{Warn, text, "see who takes the memory (G6, or: ps aux --sort=-rss | head) and stop it, or wait until it is done"}}
}

// judgeBlocks tells of memory in small pieces.
func judgeBlocks(seen headroomSeen, f facts) []remark {
	free := f.memory.num("MemFree")
	if !seen.blocks.known || seen.blocks.largest > 0 || free.V < seen.table.Fragmentation.FreeGiB*kibPerGiB {
		return nil
	}
	return []remark{{Info, fmt.Sprintf("%s are free, but in small pieces (no free block of order %d): large allocations may fail or take long, and a reboot is what cures it", gb(free.V), seen.blocks.order), ""}}
}

// judgeHuge tells of huge pages that nobody else can have.
func judgeHuge(seen headroomSeen, f facts) []remark {
	huge, total := f.memory.hugeKiB(), f.memory.num("MemTotal")
	if !huge.OK || huge.V*100 < seen.table.HugePages.SharePct*total.V {
		return nil
	}
	return []remark{{Info, fmt.Sprintf("%s are set aside as huge pages, which a training does not use (sudo sysctl vm.nr_hugepages=0 gives them back)", gb(huge.V)), ""}}
}
