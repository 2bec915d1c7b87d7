package preflight

import (
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/regular"
)

// fileStat is what lstat says of the file behind all links.
type fileStat struct {
	mode     fs.FileMode
	uid, gid uint32
	size     int64
	modTime  time.Time
	// usable tells that this user may read and write it. Git keeps no such modes, so in a
	// recorded tree everything is, but for what nobody may read.
	usable bool
}

// stat looks at a file without opening it: opening a device may wake or hang it.
func (r root) stat(path string) (fileStat, error) {
	real, err := r.resolve(path)
	if err != nil {
		return fileStat{}, err
	}
	info, err := os.Lstat(r.host(real))
	if err != nil {
		return fileStat{}, err
	}
	st := fileStat{mode: info.Mode(), size: info.Size(), modTime: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.uid, st.gid = sys.Uid, sys.Gid
	}
	if r.live() {
		st.usable = unix.Faccessat(unix.AT_FDCWD, real, unix.R_OK|unix.W_OK, unix.AT_EACCESS) == nil
	} else {
		st.usable = st.mode.Perm()&0o444 != 0
	}
	return st, nil
}

// tail returns the last bytes of a regular file, at most n and at most maxRead of them,
// from a place that is a multiple of record on.
func (r root) tail(path string, n, record int64) ([]byte, error) {
	real, err := r.resolve(path)
	if err != nil {
		return nil, err
	}
	f, info, err := regular.OpenHere(r.host(real))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, keep := info.Size()/record, min(n, maxRead)/record
	from := max(0, records-keep) * record
	return io.ReadAll(io.NewSectionReader(f, from, records*record-from))
}

// lookupEnv is a variable around the command, and tells an empty one from one that is not
// set. That environment is this process's, but for what sparkrun adds.
func (v view) lookupEnv(name string) (value string, set bool) {
	if value := v.shell(name); value != "" {
		return value, true
	}
	if v.in.Recorded != nil && v.in.Recorded.Env != nil {
		value, set := v.in.Recorded.Env[name]
		return value, set
	}
	b, err := v.root.read("/proc/self/environ")
	if err != nil {
		return "", false
	}
	for kv := range strings.SplitSeq(string(b), "\x00") {
		if k, value, ok := strings.Cut(kv, "="); ok && k == name && value == "" {
			return "", true
		}
	}
	return "", false
}
