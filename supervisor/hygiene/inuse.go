package hygiene

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// initialPIDs is the machine's own pid namespace, a constant of the kernel.
const initialPIDs = "pid:[4026531836]"

// usage is who uses the candidates, as far as /proc tells.
type usage struct {
	by         map[string]string // name -> who
	unreadable string            // a process of the same user that cannot be looked at
	foreign    bool              // some process of others cannot
	outside    bool              // processes beyond this pid namespace cannot even be listed
	otherRun   string            // another run of the same user that is alive
}

// held is what a process has mapped or open.
type held struct {
	names  []string // last parts of the names of open files
	mapped []fileID
	open   []openID
	err    error
}

// fileID is a file, whatever it is called.
type fileID struct{ dev, ino uint64 }

// openID is an open file as fdinfo tells it: the mount says the device.
type openID struct {
	mount string
	ino   uint64
}

// inUse looks through the mappings and descriptors of every process.
func (t *table) inUse(cands []candidate, uid int) usage {
	u := usage{by: map[string]string{}}
	ns, err := os.Readlink(filepath.Join(t.root, "proc/self/ns/pid"))
	u.outside = err != nil || ns != initialPIDs
	for _, pid := range t.pids() {
		p, ok := t.procs[pid]
		if !ok {
			if p, ok = t.read(pid); !ok {
				continue
			}
			t.environ(&p) // it came after the table was read
		}
		if p.gone() || p.ppid == 2 || pid == 2 {
			continue // kernel threads have neither
		}
		t.detail(&p)
		same := p.uid == uid || p.uid < 0
		if p.run != "" && same {
			u.otherRun = p.run
		}
		who := fmt.Sprintf("%s (pid %d)", shown(p.comm), pid)
		h, ok := held{err: errGone}, false
		if !t.hung[p.key()] {
			if h, ok = within(readWait, func() held { return t.holds(pid) }); !ok {
				t.hung[p.key()] = true
			}
		}
		for i := range cands {
			if t.uses(pid, &h, &cands[i]) {
				u.by[cands[i].name] = who
			}
		}
		switch {
		case ok && (h.err == nil || isGone(h.err)):
		case same:
			u.unreadable = who
		default:
			u.foreign = true
		}
	}
	return u
}

// uses says whether a process holds a candidate: by name, which follows a file
// that is renamed, or by what it is, which a bind mount cannot hide.
func (t *table) uses(pid int, h *held, c *candidate) bool {
	for _, n := range h.names {
		if n == c.name {
			return true
		}
	}
	for _, m := range h.mapped {
		if m == (fileID{c.dev, c.ino}) {
			return true
		}
	}
	for _, o := range h.open {
		if o.ino != c.ino {
			continue
		}
		// Small numbers are common: the mount tells which file system it is. One
		// that is not listed (detached) may be ours.
		if dev, ok := t.mountDev(pid, o.mount); !ok || dev == c.dev {
			return true
		}
	}
	return false
}

// holds reads what a process has mapped and open. Links are read, never followed:
// what they lead to may lie on a dead network mount.
func (t *table) holds(pid int) (h held) {
	maps, err := os.ReadFile(t.path(pid, "maps"))
	if err != nil {
		h.err = err
		return h
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) < 5 || f[4] == "0" {
			continue
		}
		ino, err := strconv.ParseUint(f[4], 10, 64)
		if dev, ok := parseDev(f[3], 16); ok && err == nil {
			h.mapped = append(h.mapped, fileID{dev, ino})
		}
	}
	dir := t.path(pid, "fd")
	d, err := os.Open(dir)
	if err != nil {
		h.err = err
		return h
	}
	defer d.Close()
	fds, err := d.Readdirnames(-1)
	h.err = err
	for _, fd := range fds {
		link, err := os.Readlink(dir + "/" + fd)
		if err != nil || !strings.HasPrefix(link, "/") {
			continue
		}
		h.names = append(h.names, filepath.Base(link))
		// Kernels since 5.14 tell the inode.
		info, err := os.ReadFile(t.path(pid, "fdinfo/"+fd))
		if err != nil {
			continue
		}
		var o openID
		for line := range strings.Lines(string(info)) {
			name, rest, _ := strings.Cut(line, ":")
			switch name {
			case "mnt_id":
				o.mount = strings.TrimSpace(rest)
			case "ino":
				o.ino, _ = strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
			}
		}
		if o.ino > 0 {
			h.open = append(h.open, o)
		}
	}
	return h
}

// mountDev returns the device of a mount that a process sees.
func (t *table) mountDev(pid int, id string) (uint64, bool) {
	b, ok := within(readWait, func() []byte {
		b, _ := os.ReadFile(t.path(pid, "mountinfo"))
		return b
	})
	if !ok {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		// id parent major:minor root where ...
		if f := strings.Fields(line); len(f) > 2 && f[0] == id {
			return parseDev(f[2], 10)
		}
	}
	return 0, false
}

func parseDev(s string, base int) (uint64, bool) {
	major, minor, ok := strings.Cut(s, ":")
	a, err1 := strconv.ParseUint(major, base, 32)
	b, err2 := strconv.ParseUint(minor, base, 32)
	return unix.Mkdev(uint32(a), uint32(b)), ok && err1 == nil && err2 == nil
}
