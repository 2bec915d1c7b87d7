package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/regular"
	"sparkrun/internal/sample"
	"sparkrun/internal/treefs"
)

// RecordedFile lies at the top of a recorded tree and holds what is not a file on a
// real machine: answers of the driver, of statfs and of programs.
const RecordedFile = "recorded.json"

// Recorded is what RecordedFile holds.
type Recorded struct {
	// Machine is what uname -m said, Time when the tree was recorded.
	Machine string    `json:"machine"`
	Time    time.Time `json:"time"`
	// Device and GPU are the driver's answer; no device is a driver that does not answer
	// within the limit.
	Device *sample.Device `json:"device"`
	GPU    sample.GPU     `json:"gpu"`
	// Env is the environment.
	Env map[string]string `json:"env"`
	// Disks are the file systems by mount point.
	Disks map[string]Disk `json:"disks"`
	// Commands are answers of programs by their words, joined by single spaces. One that
	// is not here is a program that is not installed.
	Commands map[string]string `json:"commands"`
}

// Disk is what statfs says of a file system.
type Disk struct {
	// Type is the kind in the words of /proc/mounts: ext4, xfs, nfs4, overlay...; "" is
	// not known.
	Type string `json:"type"`
	// FreeBytes and TotalBytes count what a user who is not root can have.
	FreeBytes  uint64 `json:"free_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
	// FreeInodes and Inodes are 0 where the file system has no fixed number.
	FreeInodes uint64 `json:"free_inodes"`
	Inodes     uint64 `json:"inodes"`
	ReadOnly   bool   `json:"read_only"`
}

// sized tells that the file system says how large it is: a tmpfs without a limit and some
// of FUSE say nothing, and nothing is not full.
func (d Disk) sized() bool { return d.TotalBytes > 0 || d.FreeBytes > 0 }

// maxRecorded bounds the recorded answers; those of a machine have some kilobytes.
const maxRecorded = 16 << 20

// ReadRecorded reads the recorded answers of a tree. A tree without them has none.
func ReadRecorded(dir string) (*Recorded, error) {
	at, err := treefs.Of(dir).Path("/" + RecordedFile)
	var data []byte
	if err == nil {
		data, err = regular.Read(at, maxRecorded)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("the recorded tree: %w", err)
		}
		return &Recorded{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the recorded tree: %w", err)
	}
	var rec Recorded
	if err := json.Unmarshal(data, &rec); err != nil {
		return nil, fmt.Errorf("the recorded tree: %s: %w", filepath.Join(dir, RecordedFile), err)
	}
	return &rec, nil
}

// Ask is Input.Device for the recorded tree.
func (r *Recorded) Ask(context.Context) (sample.Device, sample.GPU, error) {
	if r.Device == nil {
		return sample.Device{}, sample.GPU{}, fmt.Errorf("the recorded driver: %w", context.DeadlineExceeded)
	}
	return *r.Device, r.GPU, nil
}

// Environ is the recorded environment, as os.Environ has it.
func (r *Recorded) Environ() []string {
	out := []string{}
	for name, value := range r.Env {
		out = append(out, name+"="+value)
	}
	sort.Strings(out)
	return out
}

func (r *Recorded) disk(path string) (Disk, error) {
	best, found := "", false
	if r != nil {
		for mount := range r.Disks {
			if (path == mount || mount == "/" || strings.HasPrefix(path, mount+"/")) && (!found || len(mount) > len(best)) {
				best, found = mount, true
			}
		}
	}
	if !found {
		return Disk{}, errNotRecorded
	}
	return r.Disks[best], nil
}

func (r *Recorded) output(argv []string) (string, error) {
	if r != nil {
		if text, ok := r.Commands[strings.Join(argv, " ")]; ok {
			return text, nil
		}
	}
	return "", fmt.Errorf("%s: %w", strings.Join(argv, " "), errNotRecorded)
}

// statDisk asks the kernel. It may hang where the file system is a dead server's.
func statDisk(path string) (Disk, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Disk{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
		}
		break
	}
	size := uint64(st.Frsize)
	if size == 0 {
		size = uint64(st.Bsize)
	}
	return Disk{
		Type: mountType(path), FreeBytes: st.Bavail * size, TotalBytes: st.Blocks * size,
		FreeInodes: st.Ffree, Inodes: st.Files, ReadOnly: st.Flags&unix.ST_RDONLY != 0,
	}, nil
}

// mountType finds the kind of the file system that path lies on in /proc/self/mountinfo:
// statfs gives one number to several kinds.
func mountType(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	best, kind := -1, ""
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(data)) {
		before, after, ok := strings.Cut(line, " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(rest) < 1 {
			continue
		}
		mount := unescape.Replace(fields[4])
		// A later mount at the same place hides the one before.
		if (path == mount || mount == "/" || strings.HasPrefix(path, mount+"/")) && len(mount) >= best {
			best, kind = len(mount), rest[0]
		}
	}
	return kind
}
