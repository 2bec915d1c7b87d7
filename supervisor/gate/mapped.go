package gate

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sparkrun/internal/proctree"
)

// mappedLeast is the size of a mapping that is worth remembering, in bytes:
// model weights and data sets, not shared libraries.
const mappedLeast = 1 << 20

// MappedFiles adds to files the names of the regular files that the processes
// have mapped by at least 1 MiB, up to most names in all. It can only be asked
// while they live; Drop takes the names afterwards.
func MappedFiles(procs []proctree.Proc, files map[string]bool, most int) {
	for _, p := range procs {
		f, err := os.Open(filepath.Join("/proc", strconv.Itoa(p.PID), "maps"))
		if err != nil {
			continue
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() && len(files) < most {
			if path, size := mapping(sc.Text()); path != "" && size >= mappedLeast {
				files[path] = true
			}
		}
		f.Close()
	}
}

// mapping reads a line of /proc/PID/maps: the file, "" where it is none that has
// a name and lies on a disk, and the size in bytes.
func mapping(line string) (path string, size uint64) {
	// from-to perms offset dev inode path
	rest := line
	var span string
	for i := range 5 {
		field, after, ok := strings.Cut(rest, " ")
		if !ok {
			return "", 0
		}
		if i == 0 {
			span = field
		}
		rest = strings.TrimLeft(after, " ")
	}
	if !strings.HasPrefix(rest, "/") || strings.HasSuffix(rest, " (deleted)") ||
		strings.HasPrefix(rest, "/dev/") || strings.HasPrefix(rest, "/proc/") {
		return "", 0
	}
	from, to, _ := strings.Cut(span, "-")
	a, err1 := strconv.ParseUint(from, 16, 64)
	b, err2 := strconv.ParseUint(to, 16, 64)
	if err1 != nil || err2 != nil || b < a {
		return "", 0
	}
	return rest, b - a
}
