package engine

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// mounts are the mount points of the memory hierarchies: v1 "memory" and v2.
type mounts struct{ v1, v2 string }

var cgroupMounts = sync.OnceValue(func() mounts {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mounts{}
	}
	return parseMounts(string(b))
})

// parseMounts reads mountinfo: the mount point is field 5, and behind " - "
// stand the type, the source and the options of the file system.
func parseMounts(text string) mounts {
	var m mounts
	for _, line := range strings.Split(text, "\n") {
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		switch {
		case g[0] == "cgroup" && slices.Contains(strings.Split(g[2], ","), "memory"):
			m.v1 = f[4]
		case g[0] == "cgroup2":
			m.v2 = f[4]
		}
	}
	return m
}

// cgroupOf finds the cgroup of a container's first process: the path as the
// kernel names it in its records, and the folders that have memory counters. A
// cgroup counts as the container's own only if its path names the container:
// one that it shares with others must neither be counted nor ended.
func cgroupOf(pid int, id string) (path string, dirs []string, named bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return "", nil, false
	}
	v1, v2 := parseCgroup(string(b), id)
	m := cgroupMounts()
	for _, c := range []struct{ mount, path string }{{m.v1, v1}, {m.v2, v2}} {
		if c.path == "" {
			continue
		}
		named = true
		if path == "" {
			path = c.path
		}
		// Seen from a cgroup namespace the path may climb out of the mount.
		if c.mount == "" || strings.Contains(c.path, "..") {
			continue
		}
		dir := filepath.Join(c.mount, c.path)
		for _, counter := range []string{"memory.events", "memory.current", "memory.oom_control", "memory.usage_in_bytes"} {
			if _, err := os.Stat(filepath.Join(dir, counter)); err == nil {
				dirs = append(dirs, dir)
				break
			}
		}
	}
	return path, dirs, named
}

// parseCgroup returns the v1 memory path and the v2 path in /proc/PID/cgroup
// that name the container. What lies below the container's own level (an init
// system inside) is cut off.
func parseCgroup(text, id string) (v1, v2 string) {
	for _, line := range strings.Split(text, "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 || id == "" || !strings.Contains(f[2], id) {
			continue
		}
		end := strings.LastIndex(f[2], id) + len(id)
		if i := strings.IndexByte(f[2][end:], '/'); i >= 0 {
			end += i
		} else {
			end = len(f[2])
		}
		path := f[2][:end]
		switch {
		case f[1] == "" && f[0] == "0":
			v2 = path
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			v1 = path
		}
	}
	return v1, v2
}

// cgroupProcs returns the pids in a cgroup folder and below it.
func cgroupProcs(dir string) []int {
	var pids []int
	seen := 0
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // removed while it is read
		}
		if !d.IsDir() {
			return nil
		}
		if seen++; seen > 4096 {
			return fs.SkipAll
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil //nolint:nilerr // a threaded cgroup has no list of its own
		}
		for _, f := range strings.Fields(string(b)) {
			// 0 is a process of a pid namespace that is not below ours.
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// pidColumn picks the host's pids out of a process list. podman's own titles
// call the host's column HPID, and its PID is the number inside.
func pidColumn(titles []string, rows [][]string, host bool) []int {
	want := "PID"
	if host {
		want = "HPID"
	}
	at := slices.Index(titles, want)
	if at < 0 {
		return nil
	}
	var pids []int
	for _, row := range rows {
		if at >= len(row) {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(row[at])); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}
