package guard

import (
	"fmt"
	"path/filepath"
	"time"

	"sparkrun/internal/meminfo"
)

// slowEvery is how often figures are read that change slowly or cost more:
// pressure and the count of OOM kills.
const slowEvery = 200 * time.Millisecond

// unknown is a figure that was not read; it becomes an empty cell.
const unknown = meminfo.Unknown

// sources are the open files that a reading comes from.
type sources struct {
	mem    *meminfo.Reader
	psi    *meminfo.File
	vmstat *meminfo.File
	limits []limit
	fig    meminfo.Figures
	slowAt time.Duration
	vmAt   time.Duration
	// The last pressure read.
	some, full uint32
	hasPSI     bool
}

// openSources opens everything that can be read; notes say what cannot. The
// error means that there is nothing to guard by.
func openSources(root string, child int) (s *sources, notes []string, err error) {
	s = &sources{}
	if s.mem, err = meminfo.OpenReader(root); err != nil {
		return nil, nil, err
	}
	if s.psi, err = meminfo.OpenFile(filepath.Join(root, "proc/pressure/memory"), 512); err != nil {
		notes = append(notes, "this kernel gives no memory pressure: swap thrash cannot be seen")
	} else if _, _, ok := meminfo.ParsePressure(s.psi.Read()); !ok {
		s.psi.Close()
		s.psi = nil
		notes = append(notes, "memory pressure is turned off on this kernel (psi=1 turns it on): swap thrash cannot be seen")
	}
	if s.vmstat, err = meminfo.OpenFile(filepath.Join(root, "proc/vmstat"), 32<<10); err != nil {
		s.vmstat = nil
	}
	places, v2 := memoryCgroups(root, child)
	for _, at := range places {
		if len(s.limits) == maxSources-1 {
			notes = append(notes, fmt.Sprintf("the memory limits above %s are not watched: there are too many", s.limits[len(s.limits)-1].dir))
			break
		}
		if l, ok := openLimit(at, v2); ok {
			s.limits = append(s.limits, l)
		}
	}
	return s, notes, nil
}

func (s *sources) close() {
	s.mem.Close()
	if s.psi != nil {
		s.psi.Close()
	}
	if s.vmstat != nil {
		s.vmstat.Close()
	}
	for i := range s.limits {
		s.limits[i].close()
	}
}

// name is how source i is called in an Action.
func (s *sources) name(i int) string {
	if i == 0 || i > len(s.limits) {
		return SourceHost
	}
	return s.limits[i-1].dir
}

// read fills r and row at one instant. It does not allocate. ok is false when
// the host's memory could not be read.
func (s *sources) read(at time.Duration, r *Reading, row *Sample) (ok bool) {
	ok = s.mem.Read(&s.fig)
	r.At, row.At = at, at
	r.Levels = [maxSources]Level{}
	r.SwapTotalKiB, r.SwapFreeKiB = unknown, unknown
	row.clear()
	host := uint64(unknown)
	if ok {
		f := &s.fig
		r.Levels[0] = Level{AvailKiB: f.Available, TotalKiB: f.Total, OK: true}
		r.SwapTotalKiB, r.SwapFreeKiB = f.SwapTotal, f.SwapFree
		row.AvailKiB, row.FreeKiB, row.CachedKiB, row.ShmemKiB, row.SwapFreeKiB = f.Available, f.Free, f.Cached, f.Shmem, f.SwapFree
		host = f.Total
	}
	for i := range s.limits {
		level, usage := s.limits[i].read(at, host)
		r.Levels[i+1] = level
		if i == 0 {
			row.CgroupKiB = usage
		}
	}
	if s.psi != nil && at-s.slowAt >= slowEvery {
		s.slowAt = at
		s.some, s.full, s.hasPSI = meminfo.ParsePressure(s.psi.Read())
		if s.hasPSI {
			row.PSISome, row.PSIFull = uint64(s.some), uint64(s.full)
		}
	}
	r.PSIFull, r.HasPSI = s.full, s.hasPSI
	if s.vmstat != nil && at-s.vmAt >= time.Second {
		s.vmAt = at
		if n, ok := meminfo.Line(s.vmstat.ReadLong(), "oom_kill"); ok {
			row.OOMKills = n
		}
	}
	return ok
}
