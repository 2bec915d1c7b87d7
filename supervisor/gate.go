package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/proctree"
)

// The gate between two attempts. On a machine whose driver gives memory back
// only 30 to 60 s after its process died, an attempt that starts at once dies at
// once (facts: gb10 3.6), so MemAvailable is waited for, not the exit.
const (
	// gateSlackShare and gateSlackKiB: memory counts as back when it is within
	// the larger of the two of what it was before the attempt.
	gateSlackShare = 0.05
	gateSlackKiB   = 1 << 20
	// gateMin is waited at least when memory does not come back, gateStall is
	// how long it must have stood still to be given up, gateMax ends the wait.
	gateMin   = 60 * time.Second
	gateStall = 20 * time.Second
	gateMax   = 10 * time.Minute
)

// gateReading is one look at MemAvailable, at a time since the gate was entered.
type gateReading struct {
	at       time.Duration
	availKiB uint64
}

// gateVerdict is what the gate says after a reading.
type gateVerdict int

const (
	gateWaiting gateVerdict = iota
	gateBack
	gateGivenUp
)

// judgeGate decides from all readings so far whether the next attempt may
// start. baseline is MemAvailable before the attempt that died; 0 is unknown,
// and then there is nothing to wait for.
func judgeGate(baselineKiB uint64, readings []gateReading) gateVerdict {
	if baselineKiB == 0 || len(readings) == 0 {
		return gateBack
	}
	last := readings[len(readings)-1]
	slack := uint64(float64(baselineKiB) * gateSlackShare)
	slack = max(slack, gateSlackKiB)
	if last.availKiB+slack >= baselineKiB {
		return gateBack
	}
	if last.at >= gateMax {
		return gateGivenUp
	}
	if last.at < gateMin {
		return gateWaiting
	}
	// Still growing by more than one part in a hundred over the stall window?
	for _, r := range readings {
		if r.at >= last.at-gateStall {
			if float64(last.availKiB) > float64(r.availKiB)*1.01 {
				return gateWaiting
			}
			return gateGivenUp
		}
	}
	return gateWaiting
}

// waitForMemory runs the gate. say is called when the wait begins, with the
// figures; it returns the verdict and how long it took.
func waitForMemory(ctx context.Context, baselineKiB uint64, say func(availKiB uint64)) (gateVerdict, time.Duration) {
	start := time.Now()
	var readings []gateReading
	said := false
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := meminfo.Read("/")
		if err != nil {
			return gateBack, time.Since(start) // nothing to judge by
		}
		avail, ok := info.Available()
		if !ok {
			return gateBack, time.Since(start)
		}
		readings = append(readings, gateReading{time.Since(start), avail})
		v := judgeGate(baselineKiB, readings)
		if v != gateWaiting {
			return v, time.Since(start)
		}
		if !said {
			said = true
			say(avail)
		}
		select {
		case <-ctx.Done():
			return gateGivenUp, time.Since(start)
		case <-tick.C:
		}
	}
}

// dropResult is what dropping caches achieved.
type dropResult struct {
	how      string // "system", "files" or "none"
	freedKiB int64
	err      error
}

// dropTimeout bounds the whole drop: writing back dirty pages to a slow disk can
// take minutes, and the night is not to be spent on it.
const dropTimeout = 60 * time.Second

// canDropSystem says whether this process may drop the page cache of the whole
// machine.
func canDropSystem() bool {
	return unix.Access("/proc/sys/vm/drop_caches", unix.W_OK) == nil
}

// dropCaches frees page cache between two attempts: of the whole machine, or of
// the named files only. It returns how much MemFree grew.
func dropCaches(ctx context.Context, how string, files []string) dropResult {
	before, err := meminfo.Read("/")
	if err != nil {
		return dropResult{how: "none", err: err}
	}
	done := make(chan error, 1)
	go func() {
		switch how {
		case "system":
			unix.Sync()
			err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0)
			if err != nil {
				err = fmt.Errorf("dropping the page cache: %w", err)
			} else {
				// Free pages in large runs are what a GPU driver asks for.
				// Kernels without compaction have no such file.
				_ = os.WriteFile("/proc/sys/vm/compact_memory", []byte("1\n"), 0)
			}
			done <- err
		default:
			done <- evict(files)
		}
	}()
	timeout := time.NewTimer(dropTimeout)
	defer timeout.Stop()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = fmt.Errorf("dropping the page cache was given up: %w", ctx.Err())
	case <-timeout.C:
		err = fmt.Errorf("dropping the page cache took longer than %s; going on without it", dropTimeout)
	}
	res := dropResult{how: how, err: err}
	if after, rerr := meminfo.Read("/"); rerr == nil {
		res.freedKiB = int64(after["MemFree"]) - int64(before["MemFree"])
	}
	return res
}

// evict asks the kernel to forget the cached pages of files. Files that others
// have mapped stay, which is right: only this job's own cache is ours to drop.
func evict(files []string) error {
	var firstErr error
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue // gone meanwhile
		}
		// Dirty pages cannot be dropped before they are written.
		_ = unix.Fdatasync(int(f.Fd()))
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil && firstErr == nil {
			firstErr = fmt.Errorf("dropping the cache of %s: %w", name, err)
		}
		f.Close()
	}
	return firstErr
}

// mappedFiles adds to files the regular files of at least 1 MiB that the
// processes have mapped: model weights and data sets, mostly. It can only be
// asked while they live.
func mappedFiles(procs []proctree.Proc, files map[string]bool) {
	for _, p := range procs {
		f, err := os.Open(filepath.Join("/proc", strconv.Itoa(p.PID), "maps"))
		if err != nil {
			continue
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() && len(files) < mappedMost {
			line := sc.Text()
			i := strings.IndexByte(line, '/')
			if i < 0 || strings.HasSuffix(line, " (deleted)") {
				continue
			}
			path := line[i:]
			if files[path] || strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/") {
				continue
			}
			lo, rest, _ := strings.Cut(line, "-")
			hi, _, _ := strings.Cut(rest, " ")
			a, err1 := strconv.ParseUint(lo, 16, 64)
			b, err2 := strconv.ParseUint(hi, 16, 64)
			if err := errors.Join(err1, err2); err != nil || b-a < 1<<20 {
				continue
			}
			files[path] = true
		}
		f.Close()
	}
}
