package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/regular"
)

// DropResult is what dropping caches achieved.
type DropResult struct {
	// How is "system", "files" or, where nothing could be tried, "none".
	How string
	// FreedKiB is how much MemFree grew; others may have used memory meanwhile,
	// so it can be negative.
	FreedKiB int64
	Err      error
}

// dropTimeout bounds the whole drop: writing back dirty pages to a slow disk can
// take minutes, and the night is not to be spent on it.
const dropTimeout = 60 * time.Second

// CanDropSystem says whether this process may drop the page cache of the whole
// machine.
func CanDropSystem() bool {
	return unix.Access("/proc/sys/vm/drop_caches", unix.W_OK) == nil
}

// Drop frees page cache between two attempts: with how "system" that of the whole
// machine, else that of the named files only. It returns after a minute at the
// latest, done or not.
func Drop(ctx context.Context, how string, files []string) DropResult {
	if how != "system" {
		how = "files"
	}
	before, err := meminfo.Read("/")
	if err != nil {
		return DropResult{How: "none", Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, dropTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		if how == "system" {
			done <- dropSystem()
		} else {
			done <- evict(ctx, files)
		}
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("dropping the page cache took longer than %s; going on without it", dropTimeout)
	case errors.Is(err, context.Canceled):
		err = fmt.Errorf("dropping the page cache was given up: %w", err)
	}
	res := DropResult{How: how, Err: err}
	if after, rerr := meminfo.Read("/"); rerr == nil {
		res.FreedKiB = int64(after["MemFree"]) - int64(before["MemFree"])
	}
	return res
}

func dropSystem() error {
	unix.Sync() // only clean pages can be dropped
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0); err != nil {
		return fmt.Errorf("dropping the page cache: %w", err)
	}
	// Free pages in large runs are what a GPU driver asks for. Kernels without
	// compaction have no such file.
	_ = os.WriteFile("/proc/sys/vm/compact_memory", []byte("1\n"), 0)
	return nil
}

// evict asks the kernel to forget the cached pages of files. Files that others
// have mapped stay, which is right: only this job's own cache is ours to drop.
func evict(ctx context.Context, files []string) error {
	var firstErr error
	for _, name := range files {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := evictOne(name); err != nil && firstErr == nil {
			firstErr = err
		}
	}
	return firstErr
}

func evictOne(name string) error {
	f, _, err := regular.Open(name)
	if err != nil {
		return nil // gone meanwhile, something else by now, or not ours to read
	}
	defer f.Close()
	fd := int(f.Fd())
	_ = unix.Fdatasync(fd) // dirty pages cannot be dropped before they are written
	if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("dropping the cache of %s: %w", name, err)
	}
	return nil
}
