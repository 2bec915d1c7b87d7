package preflight

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// processStats is the list of processes, with what the kernel tells of each without
// asking the process's own memory: that cannot hang. Several checks look for processes,
// and on a busy machine the walk is most of what a look costs, so there is one for all.
type processStats struct {
	rows []processStat
	page int64
	// hidden counts processes whose stat may not be read; cut tells that time ran out.
	hidden int
	cut    bool
	// err is why there is no list.
	err error
}

// processStat is one process. known is false where its stat could not be read or was not
// as it should be; then only pid and comm count, and comm may be empty.
type processStat struct {
	process
	name  string
	known bool
}

// processes is the list that all looks of a preflight share.
func (v view) processes(ctx context.Context) processStats {
	if v.processesOnce != nil {
		return v.processesOnce()
	}
	return readStats(ctx, v.root)
}

// readStats walks /proc. A process that ends meanwhile is left out.
func readStats(ctx context.Context, r root) processStats {
	s := processStats{page: 4096}
	if r.live() {
		s.page = int64(os.Getpagesize()) // 64 KiB on some kernels of this platform
	}
	names := r.names("/proc")
	base, err := r.resolve("/proc")
	if err != nil || names == nil {
		s.err = errors.New("/proc cannot be listed")
		return s
	}
	files := procFiles{base: r.host(base), buf: make([]byte, 4096)}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 0 {
			continue
		}
		if ctx.Err() != nil {
			s.cut = true
			break
		}
		row := processStat{name: name}
		b, err := files.read(name, "stat")
		if err == nil {
			row.process, row.known = parseProcess(b, s.page)
			row.known = row.known && row.pid == pid
		} else if errors.Is(err, fs.ErrPermission) {
			s.hidden++
		}
		if !row.known {
			row.process = process{pid: pid, comm: r.word("/proc/" + name + "/comm")}
		}
		s.rows = append(s.rows, row)
	}
	return s
}
