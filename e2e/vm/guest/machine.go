package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// counter reads one number of a file of `name value` lines, as /proc/vmstat or
// memory.events; a name that is not there is an error.
func counter(file, name string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) >= 2 && strings.TrimSuffix(f[0], ":") == name {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// memoryCgroup makes a v2 cgroup with a memory limit.
func memoryCgroup(name string, limit int64) (string, error) {
	const root = "/sys/fs/cgroup"
	if err := os.WriteFile(root+"/cgroup.subtree_control", []byte("+memory"), 0o644); err != nil {
		return "", fmt.Errorf("no memory controller in cgroup v2: %w", err)
	}
	dir := filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return "", err
	}
	return dir, os.WriteFile(dir+"/memory.max", []byte(strconv.FormatInt(limit, 10)), 0o644)
}

// ownCgroup makes a cgroup tree that belongs to a user, as systemd delegates one: host
// for sparkrun itself, job, with a memory limit, for its command.
func ownCgroup(name string, uid int, limit int64) (host, job string, err error) {
	top := filepath.Join("/sys/fs/cgroup", name)
	host, job = top+"/host", top+"/job"
	if _, err := memoryCgroup(name, 4<<30); err != nil {
		return "", "", err
	}
	if err := os.WriteFile(top+"/cgroup.subtree_control", []byte("+memory"), 0o644); err != nil {
		return "", "", err
	}
	for _, dir := range []string{host, job} {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			return "", "", err
		}
	}
	if err := os.WriteFile(job+"/memory.max", []byte(strconv.FormatInt(limit, 10)), 0o644); err != nil {
		return "", "", err
	}
	for _, path := range []string{
		top, top + "/cgroup.procs", top + "/cgroup.subtree_control",
		host, host + "/cgroup.procs", job, job + "/cgroup.procs", job + "/cgroup.kill",
	} {
		if err := os.Chown(path, uid, uid); err != nil {
			return "", "", err
		}
	}
	return host, job, nil
}

// populated says whether a cgroup has a living process.
func populated(dir string) (bool, error) {
	n, err := counter(dir+"/cgroup.events", "populated")
	return n != 0, err
}

// watcher follows MemAvailable as closely as the machine lets it.
type watcher struct {
	low  atomic.Int64 // KiB
	slow atomic.Int64 // longest time between two readings, ns
	stop chan struct{}
	done chan struct{}
}

// watchMemory begins to follow MemAvailable. It reads into a buffer of its own: a
// reader that waits for memory sees nothing of the moment that matters.
func watchMemory() (*watcher, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	w := &watcher{stop: make(chan struct{}), done: make(chan struct{})}
	w.low.Store(1 << 62)
	go func() {
		defer close(w.done)
		defer f.Close()
		buf := make([]byte, 4096)
		last := time.Now()
		for {
			n, err := f.ReadAt(buf, 0)
			if kib, ok := available(buf[:n]); (err == nil || n > 0) && ok && kib < w.low.Load() {
				w.low.Store(kib)
			}
			now := time.Now()
			w.slow.Store(max(w.slow.Load(), int64(now.Sub(last))))
			last = now
			select {
			case <-w.stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return w, nil
}

func available(b []byte) (int64, bool) {
	_, rest, ok := strings.Cut(string(b), "MemAvailable:")
	if !ok {
		return 0, false
	}
	rest, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
	kib, err := strconv.ParseInt(rest, 10, 64)
	return kib, err == nil
}

// end stops the watcher and returns the lowest MemAvailable that it saw, in KiB.
func (w *watcher) end() int64 {
	close(w.stop)
	<-w.done
	return w.low.Load()
}

// stayResident keeps this process in memory, so that its pages need not be read back
// from the disk while the machine is short of memory.
func stayResident() {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		say("LOG the plan's memory cannot be locked: %v", err)
	}
}

// until polls a condition.
func until(limit time.Duration, what string, ok func() bool) error {
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %s", limit, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}
