package guard

import (
	"bytes"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/meminfo"
)

// limit is one cgroup above the child whose memory is limited, or may become
// so: a limit can be set while the job runs.
type limit struct {
	place
	v2 bool
	// idle is until when a cgroup without a limit is not looked at again.
	idle time.Duration
	// max is the hard limit. memory.high is none: the kernel holds a job there by
	// design, taking back what it can, and a job may live at it for good.
	max, usage, stat *meminfo.File
	// inactive and active are the names in memory.stat of this version.
	inactive, active, slab string
}

// unlimitedFor is how long a cgroup without a limit is left alone.
const unlimitedFor = 2 * time.Second

// place is one cgroup: where its files are, and its path in /proc/PID/cgroup.
type place struct{ dir, path string }

// memoryCgroups returns the child's memory cgroup and its ancestors, the nearest
// first, as this process can reach them. root is "/" for this machine.
func memoryCgroups(root string, pid int) (places []place, v2 bool) {
	proc := path.Join(root, "proc", strconv.Itoa(pid))
	own, err := os.ReadFile(path.Join(proc, "cgroup"))
	if err != nil {
		return nil, false
	}
	// Where the child is mounted is where we are: it was started by us.
	mounts, err := os.ReadFile(path.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil, false
	}
	in1, in2 := cgroupPaths(own)
	if in1 != "" {
		if m, ok := cgroupMount(mounts, "cgroup", "memory"); ok {
			return m.upFrom(root, in1), false
		}
	}
	if in2 != "" {
		if m, ok := cgroupMount(mounts, "cgroup2", ""); ok {
			return m.upFrom(root, in2), true
		}
	}
	return nil, false
}

// cgroupPaths returns the path of the v1 memory hierarchy and that of v2 from
// /proc/PID/cgroup; "" for none.
func cgroupPaths(b []byte) (v1, v2 string) {
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) < 3 {
			continue
		}
		if f[0] == "0" && f[1] == "" {
			v2 = f[2]
		}
		for c := range strings.SplitSeq(f[1], ",") {
			if c == "memory" {
				v1 = f[2]
			}
		}
	}
	return v1, v2
}

// mount is where a hierarchy is mounted, and which part of it.
type mount struct{ point, part string }

func cgroupMount(mountinfo []byte, fstype, option string) (mount, bool) {
	for line := range bytes.Lines(mountinfo) {
		// 36 35 98:0 /part /point options optional... - fstype source options
		head, tail, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " - ")
		h, t := strings.Fields(head), strings.Fields(tail)
		if !ok || len(h) < 6 || len(t) < 3 || t[0] != fstype {
			continue
		}
		if option != "" && !strings.Contains(","+t[2]+",", ","+option+",") {
			continue
		}
		return mount{point: unescape(h[4]), part: unescape(h[3])}, true
	}
	return mount{}, false
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// upFrom lists the directories from the cgroup at p up to the mount point. What
// lies outside the part that is mounted cannot be seen: then the mount point
// itself, the top of our container, is all there is.
func (m mount) upFrom(root, p string) []place {
	top := path.Join(root, m.point)
	rel := ""
	switch {
	case m.part == "/":
		rel = p
	case p == m.part:
	case strings.HasPrefix(p, m.part+"/"):
		rel = p[len(m.part):]
	}
	rel = path.Clean("/" + rel)
	if strings.HasPrefix(p, "/..") {
		rel = "/"
	}
	var places []place
	for ; rel != "/"; rel = path.Dir(rel) {
		places = append(places, place{top + rel, path.Join(m.part, rel)})
	}
	return append(places, place{top, m.part})
}

// openLimit opens the files of one cgroup; ok is false where it has no memory
// controller.
func openLimit(at place, v2 bool) (l limit, ok bool) {
	open := func(name string, size int) *meminfo.File {
		f, err := meminfo.OpenFile(path.Join(at.dir, name), size)
		if err != nil {
			return nil
		}
		return f
	}
	l = limit{place: at, v2: v2}
	if v2 {
		l.max, l.usage = open("memory.max", 64), open("memory.current", 64)
		l.inactive, l.active, l.slab = "inactive_file", "active_file", "slab_reclaimable"
	} else {
		l.max, l.usage = open("memory.limit_in_bytes", 64), open("memory.usage_in_bytes", 64)
		l.inactive, l.active = "total_inactive_file", "total_active_file"
	}
	l.stat = open("memory.stat", 8<<10)
	if l.max == nil || l.usage == nil || l.stat == nil {
		l.close()
		return limit{}, false
	}
	return l, true
}

func (l *limit) close() {
	for _, f := range []*meminfo.File{l.max, l.usage, l.stat} {
		if f != nil {
			f.Close()
		}
	}
}

// read returns what is left below the limit, and how much is used, in KiB. The
// level is not OK where there is no limit, or one above what the machine has.
// It does not allocate.
func (l *limit) read(at time.Duration, hostKiB uint64) (level Level, usageKiB uint64) {
	if at < l.idle {
		return Level{}, meminfo.Unknown
	}
	usage, known := meminfo.Number(l.usage.Read())
	if !known {
		return Level{}, meminfo.Unknown
	}
	usageKiB = usage / 1024
	most, limited := meminfo.Number(l.max.Read())
	// "max" is no number; v1 says the largest number of pages instead.
	if !limited || most/1024 >= hostKiB || most < 1<<20 {
		l.idle = at + unlimitedFor
		return Level{}, usageKiB
	}
	total := most / 1024
	avail := total - min(usageKiB, total)
	// Page cache that can be reclaimed is room. It matters only when little
	// else is left, and reading its size costs more than all the rest.
	if avail < total/2 {
		b := l.stat.Read()
		cache, _ := meminfo.Line(b, l.inactive)
		// Half of what was used twice: the kernel takes from it too, more
		// slowly. Without it a data set that is read again and again would
		// look like a full cgroup.
		active, _ := meminfo.Line(b, l.active)
		cache += active / 2
		if l.slab != "" {
			slab, _ := meminfo.Line(b, l.slab)
			cache += slab / 2
		}
		avail = min(avail+cache/1024, total)
	}
	return Level{AvailKiB: avail, TotalKiB: total, OK: true}, usageKiB
}
