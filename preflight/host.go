package preflight

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sparkrun/configs"
	"sparkrun/internal/job"
	"sparkrun/internal/treefs"
)

// hostRules is configs/host.yaml, the table of the checks H3 to H6, H9 to H12 and H15.
type hostRules struct {
	AsOf string `yaml:"as_of"`
	Disk struct {
		LowGiB      uint64 `yaml:"low_gib"`
		AtLeast     int64  `yaml:"at_least"`
		DownloadGiB uint64 `yaml:"download_gib"`
	} `yaml:"disk"`
	FileSystems []fileSystemClass `yaml:"filesystems"`
	Inodes      struct {
		LowPercent float64 `yaml:"low_percent"`
		Low        uint64  `yaml:"low"`
	} `yaml:"inodes"`
	Shm struct {
		ContainerDefaultMiB uint64 `yaml:"container_default_mib"`
		Prefetch            int64  `yaml:"prefetch"`
		BytesPerToken       int64  `yaml:"bytes_per_token"`
		ImageMiB            int64  `yaml:"image_mib"`
	} `yaml:"shm"`
	Limits  limitsTable  `yaml:"limits"`
	Killers killersTable `yaml:"killers"`
	Login   struct {
		UserSliceAdvised string `yaml:"user_slice_advised"`
		UserSliceMiB     uint64 `yaml:"user_slice_mib"`
		SSHAdvised       string `yaml:"ssh_advised"`
		SSHMiB           uint64 `yaml:"ssh_mib"`
	} `yaml:"login"`
}

// fileSystemClass is what kinds of file systems have in common.
type fileSystemClass struct {
	Class string   `yaml:"class"`
	Kinds []string `yaml:"kinds"`
	// Checkpoints and Weights say what it costs to have them there; WeightsHint tells
	// that the latter is worth a word.
	Checkpoints string `yaml:"checkpoints"`
	Weights     string `yaml:"weights"`
	WeightsHint bool   `yaml:"weights_hint"`
	Fix         string `yaml:"fix"`
}

// fileSystem returns the class of a kind.
func (h hostRules) fileSystem(kind string) (fileSystemClass, bool) {
	for _, c := range h.FileSystems {
		for _, k := range c.Kinds {
			if head, ok := strings.CutSuffix(k, "*"); k == kind || ok && strings.HasPrefix(kind, head) {
				return c, true
			}
		}
	}
	return fileSystemClass{}, false
}

// loadHostRules reads the built-in table once; a caller that sees the error has a broken
// build.
var loadHostRules = sync.OnceValues(func() (hostRules, error) {
	var h hostRules
	if err := configs.BuiltIn("host.yaml", &h); err != nil {
		return hostRules{}, fmt.Errorf("reading the built-in host table: %w", err)
	}
	return h, nil
})

// rulesOfHost is the built-in table; a test reads it.
func rulesOfHost() hostRules {
	h, _ := loadHostRules()
	return h
}

// advice gathers what one host check has to say: several things may be wrong at once.
type advice struct {
	status                   Status
	details, evidence, fixes []string
	costs                    []string
	repairs                  []Repair
}

// saw adds a reading.
func (a *advice) saw(format string, args ...any) {
	a.evidence = append(a.evidence, fmt.Sprintf(format, args...))
}

// fail and warn add something to act on.
func (a *advice) fail(detail, cost, fix string) { a.add(Fail, detail, cost, fix) }

func (a *advice) warn(detail, cost, fix string, repairs ...Repair) {
	a.add(Warn, detail, cost, fix)
	a.repairs = append(a.repairs, repairs...)
}

func (a *advice) add(s Status, detail, cost, fix string) {
	if a.status != Fail {
		a.status = s
	}
	a.details = append(a.details, detail)
	if cost != "" && !slices.Contains(a.costs, cost) {
		a.costs = append(a.costs, cost)
	}
	if fix != "" && !slices.Contains(a.fixes, fix) {
		a.fixes = append(a.fixes, fix)
	}
}

// finding is all of it; calm is said where there is nothing to act on, under the status
// of quiet.
func (a *advice) finding(quiet Status, calm string) Finding {
	if len(a.details) == 0 {
		return Finding{Status: quiet, Detail: calm, Evidence: a.evidence}
	}
	return Finding{
		Status: a.status, Detail: strings.Join(a.details, "; "), Evidence: a.evidence,
		Fix: strings.Join(a.fixes, "\n"), Cost: strings.Join(a.costs, "; "), Repairs: a.repairs,
	}
}

// forSparks lowers a warning to information where the machine is no Spark: elsewhere
// these settings are somebody's choice.
func forSparks(f facts, found Finding) Finding {
	if !f.spark() && (found.Status == Warn || found.Status == Info) {
		found.Status, found.Repairs = Info, nil
	}
	return found
}

// hostHidden is the finding of a check of the host's own settings made inside a
// container.
func hostHidden(f facts) (Finding, bool) {
	if !f.inContainer() {
		return Finding{}, false
	}
	return byDesign("inside a container: the host's own setting cannot be seen"), true
}

// unreadable is the finding of a check whose one reading failed: in a recorded tree it
// may never have been taken.
func unreadable(what string, err error) Finding {
	switch {
	case errors.Is(err, errNotRecorded):
		return byDesign(what + " is not in the recorded tree")
	case errors.Is(err, fs.ErrPermission):
		return Finding{Status: Skip, Detail: what + " may not be read by this user"}
	}
	return Finding{Status: Skip, Detail: fmt.Sprintf("%s could not be read: %v", what, err)}
}

// file reads a small file, "" with the error where that fails. In a recorded tree a file
// that is not there was not recorded.
func (v view) file(path string) (string, error) {
	b, err := v.root.read(path)
	if err != nil {
		if !v.live() && errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s: %w", path, errNotRecorded)
		}
		return "", err
	}
	return string(b), nil
}

// place is a folder that a check asks the file system of.
type place struct {
	// path is the folder as this machine sees it, at the nearest parent that exists.
	path, at string
	disk     Disk
	err      error
	// hidden says why it cannot be told which folder of this machine it is; empty where
	// it can.
	hidden string
}

// lookPlace asks for the file system that a folder lies on, or will be made on.
func lookPlace(v view, path string) place {
	p := place{path: path}
	at := path
	for {
		there, err := v.root.exists(at)
		if err != nil {
			p.err = err
			return p
		}
		if there || at == "/" || at == "." {
			break
		}
		at = filepath.Dir(at)
	}
	real, err := v.root.resolve(at)
	if err != nil {
		p.err = err
		return p
	}
	p.at = real
	p.disk, p.err = v.disk(real)
	return p
}

// same tells that two places lie on one file system, as far as statfs tells.
func (p place) same(o place) bool {
	return p.err == nil && o.err == nil && p.disk.Type == o.disk.Type && p.disk.TotalBytes == o.disk.TotalBytes && p.disk.FreeBytes == o.disk.FreeBytes
}

// outputPlace is where the command saves: its output folder, else the folder it starts
// in. named tells that the command says where.
func outputPlace(v view) (p place, named bool) {
	out := outputDir(v)
	named = out != ""
	if v.job != nil && v.job.Container != nil {
		// Without a word it saves where it starts.
		inner := cmp.Or(out, ".")
		path, ok := hostPath(v, inner)
		switch {
		case !ok && out == "":
			return place{hidden: "the command starts a container and does not say where it saves"}, false
		case !ok:
			return place{path: inner, hidden: fmt.Sprintf("the command saves to %s in a container, and which folder of this machine that is cannot be told", inner)}, true
		}
		return lookPlace(v, path), named
	}
	if out == "" {
		out = v.dir()
	}
	if out = v.abs(out); !filepath.IsAbs(out) {
		return place{hidden: "the working folder is not known"}, named
	}
	return lookPlace(v, out), named
}

// hostPath finds the folder of this machine that a path inside the command's container
// lies on, from the mounts that its words name.
func hostPath(v view, inner string) (string, bool) {
	mounts, workdir := containerMounts(v)
	if !filepath.IsAbs(inner) {
		if workdir == "" {
			return "", false
		}
		inner = filepath.Join(workdir, inner)
	}
	inner = filepath.Clean(inner)
	best, found := "", ""
	for target, source := range mounts {
		if (inner == target || target == "/" || strings.HasPrefix(inner, target+"/")) && len(target) > len(best) {
			best, found = target, source
		}
	}
	if found == "" {
		return "", false
	}
	return filepath.Join(found, strings.TrimPrefix(inner, best)), true
}

// onHost is where a path that the trainer uses lies on this machine: inside a container
// only what a mount shares does. A folder of that name here is another one.
func (v view) onHost(path string) (string, bool) {
	switch {
	case path == "" || strings.ContainsAny(path, "\x00\n"):
		return "", false
	case v.job != nil && v.job.Container != nil:
		return hostPath(v, path)
	}
	return v.abs(path), true
}

// containerMounts reads the folders of this machine that docker run or podman run shares
// with the container, by their place inside, and the folder the container starts in.
func containerMounts(v view) (mounts map[string]string, workdir string) {
	mounts = make(map[string]string)
	c := readClient(v)
	if c.verb != "run" || c.elsewhere(v.shell) != "" {
		return mounts, ""
	}
	add := func(source, target string) {
		// What has no slash in front is a volume of the engine's.
		if strings.HasPrefix(source, ".") || strings.HasPrefix(source, "/") {
			if !filepath.IsAbs(source) {
				source = filepath.Join(v.job.Dir, source)
			}
			if filepath.IsAbs(target) {
				mounts[filepath.Clean(target)] = filepath.Clean(source)
			}
		}
	}
	for _, m := range c.mounts() {
		if !m.volume {
			add(m.source, m.inside)
		}
	}
	for _, o := range c.options {
		if o.name == "-w" || o.name == "--workdir" {
			workdir = o.value
		}
	}
	return mounts, workdir
}

// knobNumber is a setting that is a whole number above zero.
func knobNumber(j *job.Job, k job.Knob) (int64, bool) {
	if j == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(j.Knobs[k].Value), 10, 64)
	return n, err == nil && n > 0
}

// sizeWords writes bytes in decimal gigabytes, or smaller units where that says nothing.
func sizeWords(n uint64) string {
	switch {
	case n >= 1e12:
		return fmt.Sprintf("%.1f TB", float64(n)/1e12)
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.0f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d bytes", n)
}

// sameFile tells that two names are of one file, by its inode.
func (r root) sameFile(a, b string) bool {
	x, err1 := treefs.Root(r).Stat(a)
	y, err2 := treefs.Root(r).Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}
