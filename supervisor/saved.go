package supervisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/lazyre"
)

// What was saved during the run: a look through folders that is bounded in names and in
// time, and what follows from it.

// checkpointDir and checkpointFile match what trainers call their checkpoints.
// They decide where the output folder is not known, or is one in which the user
// works.
var (
	checkpointDir  = lazyre.New(`(?i)^(checkpoint[-_]?\d+|(step|epoch|iter|global_step)[-_=]?\d+.*|.*-state)$`)
	checkpointFile = lazyre.New(`(?i)\.(safetensors|bin|pt|pth|ckpt|gguf|h5|hdf5|keras|weights|pkl|pickle|joblib|npz|npy|tar|tgz|tar\.(gz|zst|xz)|zip|onnx|msgpack|params|pdparams|pdopt|nemo|distcp|tflite|eqx|model|data-\d+-of-\d+)$`)
	// appended matches what programs add to and do not write anew: logs, tables of
	// results, data bases, and what a person edits.
	appended = lazyre.New(`(?i)(\.(log|txt|out|err|csv|tsv|jsonl|db|sqlite3?|db-wal|db-shm|wandb|lock|ipynb|py|md|ya?ml|toml|html|png|arrow|parquet)|\.tfevents\..*|^nohup\.out)$`)
	// runFolder matches the name of a run of ours.
	runFolder = lazyre.New(`^\d{8}-\d{6}-[a-z0-9-]+-[0-9a-f]{4}$`)
)

// passedOver are folders in which no training saves: caches, installed packages, and
// trackers that make a folder for each start.
var passedOver = map[string]bool{
	".git": true, ".hg": true, ".svn": true, ".cache": true, ".venv": true, ".conda": true, ".tox": true, ".nox": true, ".npm": true, ".nv": true,
	".triton": true, ".local": true, ".config": true, ".mypy_cache": true, ".ruff_cache": true, ".pytest_cache": true, ".vscode": true, ".vscode-server": true, ".idea": true,
	"__pycache__": true, "site-packages": true, "node_modules": true, "wandb": true, "mlruns": true, ".aim": true, ".neptune": true, "sparkrun-train": true,
}

const (
	// scanMost bounds the files that one look reads the state of, namesMost the names
	// that it reads, scanTime how long it may take, scanDepth how deep it goes.
	scanMost  = 100000
	namesMost = 2000000
	scanTime  = 4 * time.Second
	scanDepth = 24
	// crowdMost is how many names make a folder a data set. If none of them came or
	// went during the run, only those in it are looked at that are called like
	// checkpoints.
	crowdMost = 1000
	// largeFile is from what size on a file counts as something saved, whatever its
	// name.
	largeFile = 1 << 20
)

// errScan says that there is too much to look through.
var errScan = errors.New("there is too much to look through")

// find is one file that was written during the run.
type find struct {
	// path is the real one, links resolved.
	path string
	// top is the outermost folder above it that came into being during the run, box
	// the one above it that is a checkpoint by its name; empty where there is none.
	top, box string
	// born says that it came into being during the run, and did not only change; in a
	// file system that keeps no such times it is false where nothing else tells.
	born bool
	// like says that it is a checkpoint by its name or size.
	like  bool
	named bool // by its name
}

// seek is one look through folders.
type seek struct {
	since time.Time
	// before has what was there before the first attempt, in file systems that do not
	// tell when a file came into being; nil where no list was made.
	before map[fileID]bool
	// passed says of a folder that it is not to be looked into.
	passed func(path string) bool
	// holds says of a folder that something must stay in it, so that it is never moved
	// as a whole.
	holds func(path string) bool
	// noBirth takes every file system for one that does not tell when a file came into
	// being.
	noBirth bool
	// enough is asked whether the look may end.
	enough func(find) bool

	finds  []find
	newest time.Time

	deadline time.Time
	stats    int
	names    int
	visited  map[fileID]bool
	queue    []folder
}

type fileID struct{ dev, ino uint64 }

// folder is one that waits to be looked into.
type folder struct {
	path, top, box string
	depth          int
}

// stat is what a look needs to know of a name.
type stat struct {
	id           fileID
	mode         uint32
	size         int64
	mtime, btime time.Time // btime is zero where the file system does not tell
}

func statOf(path string, follow bool) (stat, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	if err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return stat{}, err
	}
	s := stat{
		id:   fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino},
		mode: uint32(st.Mode), size: int64(min(st.Size, 1<<62)), mtime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)),
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		s.btime = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
	}
	return s, nil
}

func (s stat) dir() bool     { return s.mode&unix.S_IFMT == unix.S_IFDIR }
func (s stat) link() bool    { return s.mode&unix.S_IFMT == unix.S_IFLNK }
func (s stat) regular() bool { return s.mode&unix.S_IFMT == unix.S_IFREG }

// born says whether something came into being during the run.
func (k *seek) born(s stat) bool {
	if !s.btime.IsZero() && !k.noBirth {
		return s.btime.After(k.since)
	}
	return k.before != nil && !k.before[s.id]
}

// in looks through folders, those near the top first. errScan means that not
// everything was seen.
func (k *seek) in(roots ...string) error {
	k.deadline, k.visited = time.Now().Add(scanTime), map[fileID]bool{}
	for _, root := range roots {
		k.queue = append(k.queue, folder{path: real(root)})
	}
	for len(k.queue) > 0 {
		f := k.queue[0]
		k.queue = k.queue[1:]
		if err := k.folder(f); err != nil {
			if errors.Is(err, fs.SkipAll) {
				return nil
			}
			return fmt.Errorf("%w: %s", err, f.path)
		}
	}
	return nil
}

// folder looks into one folder.
func (k *seek) folder(f folder) error {
	st, err := statOf(f.path, true)
	if err != nil || !st.dir() || k.visited[st.id] {
		return nil // what cannot be read was not written by the run
	}
	k.visited[st.id] = true
	if f.depth > scanDepth {
		return errScan
	}
	d, err := os.Open(f.path)
	if err != nil {
		return nil // as above
	}
	defer d.Close()
	var entries []fs.DirEntry
	for {
		some, err := d.ReadDir(4096)
		entries = append(entries, some...)
		if k.names += len(some); k.names > namesMost || time.Now().After(k.deadline) {
			return errScan
		}
		if err != nil || len(some) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("%w (%w)", errScan, err)
			}
			break
		}
	}
	still := f.depth > 0 && len(entries) > crowdMost && !st.mtime.After(k.since)
	for _, e := range entries {
		if still && e.Type().IsRegular() && !checkpointFile.MatchString(e.Name()) {
			continue
		}
		if err := k.entry(f, e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// entry looks at one name in a folder.
func (k *seek) entry(f folder, name string) error {
	path := filepath.Join(f.path, name)
	if leftover.MatchString(name) {
		return nil
	}
	if k.stats++; k.stats > scanMost || k.stats%64 == 0 && time.Now().After(k.deadline) {
		return errScan
	}
	st, err := statOf(path, false)
	if err != nil {
		return nil //nolint:nilerr // gone meanwhile
	}
	linked := false
	if st.link() {
		// What is saved through a link lies at its other end, and is moved there.
		to, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil //nolint:nilerr // to nowhere
		}
		if st, err = statOf(to, false); err != nil || underCache(to) {
			return nil //nolint:nilerr // gone meanwhile
		}
		path, f, linked = to, folder{path: filepath.Dir(to), depth: f.depth}, true
	}
	switch {
	case st.dir():
		if passedOver[filepath.Base(path)] || k.passed(path) || exists(filepath.Join(path, "pyvenv.cfg")) {
			return nil
		}
		in := folder{path: path, top: f.top, box: f.box, depth: f.depth + 1}
		if in.top == "" && !linked && k.born(st) && !k.holds(path) {
			in.top = path
		}
		if in.box == "" && checkpointDir.MatchString(filepath.Base(path)) {
			in.box = path
		}
		k.queue = append(k.queue, in)
	case st.regular():
		born := k.born(st)
		if !born && !st.mtime.After(k.since) {
			return nil
		}
		if st.mtime.After(k.newest) {
			k.newest = st.mtime
		}
		if slices.ContainsFunc(k.finds, func(o find) bool { return o.path == path }) {
			return nil // by another link
		}
		named := f.box != "" || checkpointFile.MatchString(name)
		found := find{path: path, top: f.top, box: f.box, born: born || f.top != "", named: named, like: named || st.size >= largeFile}
		k.finds = append(k.finds, found)
		if len(k.finds) > findsMost {
			return errScan
		}
		if k.enough != nil && k.enough(found) {
			return fs.SkipAll
		}
	}
	return nil
}

// findsMost bounds what a run may have written for it to be moved.
const findsMost = 5000

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// underCache says whether a path lies in a folder that is passed over.
func underCache(path string) bool {
	for _, part := range strings.Split(path, "/") {
		if passedOver[part] {
			return true
		}
	}
	return within0("/proc", path) || within0("/sys", path) || within0("/dev", path) && !within0("/dev/shm", path)
}

// keeping is what becomes of the finds before an attempt that starts over.
type keeping struct {
	// move are the files and folders to be moved aside.
	move []string
	// left are files that the next attempt may write over.
	left []string
	// refuse says why there must be no next attempt; empty for one.
	refuse string
}

// decideKeeping decides from what was found. All is set where the folder is known to
// be an output folder, of which everything belongs to the training; else only what
// looks like a checkpoint is taken. other names somebody else at work there (""
// for nobody), and seen says of a path that the training was seen at it. held is set where
// the run is started over whatever is refused, and says that a process has a path open for
// writing: what is refused is moved too then, file by file, but for that.
func decideKeeping(finds []find, all bool, other string, seen func(path string) bool, whole func(dir string) bool, held func(path string) bool) keeping {
	var k keeping
	units := map[string]bool{}
	var stays []string
	refuse := func(path, format string, args ...any) {
		if k.refuse == "" {
			k.refuse = fmt.Sprintf(format, args...)
		}
		if held != nil && !held(path) {
			units[path] = true
		} else {
			stays = append(stays, path)
		}
	}
	for _, f := range finds {
		if !f.like && !(all && f.born) {
			if !strings.HasPrefix(filepath.Base(f.path), ".") {
				k.left = append(k.left, f.path)
			}
			continue
		}
		if !f.born && !f.named {
			if appended.MatchString(filepath.Base(f.path)) {
				k.left = append(k.left, f.path)
				continue
			}
			refuse(f.path, "%s was there before the run and was written to during it: whether an attempt has saved in it cannot be told", f.path)
			continue
		}
		if appended.MatchString(filepath.Base(f.path)) && f.box == "" && !all {
			k.left = append(k.left, f.path)
			continue
		}
		unit := f.top
		if other != "" {
			if !seen(f.path) {
				refuse(f.path, "%s came into being or was changed during the run, and %s is at work there too: whose it is cannot be told", f.path, other)
				continue
			}
			unit = ""
		}
		if unit == "" {
			unit = f.path
			if f.box != "" {
				// Never parts of a checkpoint.
				unit = f.box
				if !whole(f.box) {
					refuse(f.path, "%s holds what an attempt has saved beside older files", f.box)
					continue
				}
			}
		}
		units[unit] = true
	}
	for _, path := range stays {
		// Nor is it moved with what lies around it.
		for unit := range units {
			if within0(unit, path) {
				delete(units, unit)
				stays = append(stays, unit)
			}
		}
	}
	k.left = append(stays, k.left...)
	k.move = sortedFiles(units)
	// What lies in another unit goes with it.
	k.move = slices.DeleteFunc(slices.Clone(k.move), func(u string) bool {
		return slices.ContainsFunc(k.move, func(o string) bool { return o != u && within0(o, u) })
	})
	k.left = slices.DeleteFunc(k.left, func(p string) bool {
		return slices.ContainsFunc(k.move, func(u string) bool { return within0(u, p) })
	})
	return k
}

// listNames lists what lies in folders, by device and inode.
func listNames(roots []string, passed func(string) bool) map[fileID]bool {
	out := map[fileID]bool{}
	deadline := time.Now().Add(scanTime / 2)
	for _, root := range roots {
		err := filepath.WalkDir(real(root), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // what cannot be read is not known
			}
			if d.IsDir() && (passedOver[d.Name()] || passed(path)) {
				return fs.SkipDir
			}
			if st, err := statOf(path, false); err == nil {
				out[st.id] = true
			}
			if len(out) > scanMost || time.Now().After(deadline) {
				return errScan
			}
			return nil
		})
		if err != nil {
			return nil // half a list would call old files new
		}
	}
	return out
}
