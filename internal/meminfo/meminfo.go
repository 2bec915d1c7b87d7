// Package meminfo reads the kernel's memory figures: /proc/meminfo, memory
// pressure and the count of OOM kills. It is a leaf that the memory guard can
// use: no allocation beyond one buffer, no dependency, nothing that can hang.
package meminfo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Info is a reading of /proc/meminfo, in KiB. A figure the kernel does not
// give is absent from the map: unknown is never zero.
type Info map[string]uint64

// Read reads /proc/meminfo under root ("/" for this machine).
func Read(root string) (Info, error) {
	path := filepath.Join(root, "proc/meminfo")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading memory figures: %w", err)
	}
	return ParseInfo(path, b)
}

// ParseInfo is Read of a text that was read already; path is what its error names.
func ParseInfo(path string, b []byte) (Info, error) {
	info := parse(b)
	if info["MemTotal"] == 0 {
		return nil, fmt.Errorf("%s has no MemTotal line: it cannot be trusted", path)
	}
	return info, nil
}

func parse(b []byte) Info {
	info := make(Info, 64)
	for len(b) > 0 {
		var line []byte
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			line, b = b, nil
		}
		name, rest, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		v, err := strconv.ParseUint(string(fields[0]), 10, 64)
		if err != nil {
			continue
		}
		info[string(name)] = v
	}
	return info
}

// Available returns MemAvailable in KiB, and whether the kernel gives it.
func (i Info) Available() (uint64, bool) { v, ok := i["MemAvailable"]; return v, ok }

// OOMKills reads how many processes the kernel has killed for want of memory
// since boot (vmstat oom_kill, Linux 4.13 and newer).
func OOMKills(root string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(root, "proc/vmstat"))
	if err != nil {
		return 0, fmt.Errorf("reading the kernel's count of OOM kills: %w", err)
	}
	for _, line := range bytes.Split(b, []byte("\n")) {
		if v, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			return strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 64)
		}
	}
	return 0, fmt.Errorf("this kernel keeps no count of OOM kills (no oom_kill line in vmstat)")
}
