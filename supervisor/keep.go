package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/ladder/trainer"
)

// An attempt that starts from nothing must not write where an earlier one has
// saved. Its output folder gets a suffix; where that cannot be done, what was
// saved is moved aside; where that cannot be done either, there is no retry.
// Only what came into being during the run is ever moved.

// checkpointDir and checkpointFile match what trainers call their checkpoints.
// They decide where the output folder is not known, or is one in which the user
// works.
var (
	checkpointDir  = regexp.MustCompile(`^(checkpoint-\d+|(step|epoch|iter|global_step)[-_]?\d+.*|.*-state)$`)
	checkpointFile = regexp.MustCompile(`\.(safetensors|bin|pt|pth|ckpt|gguf)$`)
)

// scanMost bounds how many names one look takes; a folder of more than
// crowdMost is a data set and no output.
const (
	scanMost  = 50000
	crowdMost = 5000
)

// errScan says that there is too much to look through.
var errScan = errors.New("too many files to look through")

// kept is what keepOutput has arranged for the next attempt.
type kept struct {
	said    []string        // sentences for the announcement
	change  *trainer.Change // another output folder, or nil
	setting job.Setting
}

// keepOutput prepares the output folder of the next attempt, once.
func (r *run) keepOutput(a *attempt, n int) (kept, error) {
	out, known := r.job.Knobs[job.OutputDir]
	if !known || out.Value == "" {
		return r.moveAside(a, r.o.Dir, 3, true)
	}
	path := r.abs(out.Value)
	if r.userWorksIn(path) {
		return r.moveAside(a, path, 1, true)
	}
	fresh, err := r.holdsFresh(path)
	if err == nil && !fresh {
		return kept{}, nil
	}
	if c, ok := trainer.OutputSuffix(r.job, n); ok {
		free, err := r.claim(c.To, n)
		if err == nil {
			c.To = free
			return kept{
				said:   []string{fmt.Sprintf("it saves in %s, since an earlier attempt has saved in %s", free, out.Value)},
				change: &c, setting: job.Setting{Value: free, Source: out.Source, Where: out.Where},
			}, nil
		}
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Warn, Msg: err.Error()})
	}
	return r.moveAside(a, path, 1, false)
}

// abs returns a path of the command as an absolute one.
func (r *run) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(r.o.Dir, path)
}

// real resolves links, as far as the path exists: two names of one folder must
// not look like two folders.
func real(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return filepath.Clean(path)
}

// within says whether a path is a folder or lies below it.
func within(folder, path string) bool {
	rel, err := filepath.Rel(real(folder), real(path))
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// belongings are what must never be moved, nor a folder around them.
func (r *run) belongings() []string {
	out := []string{r.o.Dir, r.dir.Path}
	for _, f := range []string{r.job.Script, r.job.ConfigFile} {
		if f != "" {
			out = append(out, r.abs(f))
		}
	}
	return out
}

// userWorksIn says whether a folder is more than an output folder: it holds the
// working folder, the script or the runs.
func (r *run) userWorksIn(path string) bool {
	for _, inside := range r.belongings() {
		if within(path, inside) {
			return true
		}
	}
	return false
}

// claim makes a folder that nobody else has, so that two runs at once do not take
// the same: the one wished for, else one with the run's own letters.
func (r *run) claim(wish string, n int) (string, error) {
	base := strings.TrimSuffix(wish, fmt.Sprintf("-a%d", n))
	for i := range 10 {
		name := wish
		if i > 0 {
			name = fmt.Sprintf("%s-%s-a%d", base, r.letters(), n)
		}
		if i > 1 {
			name += fmt.Sprintf("-%d", i)
		}
		err := os.Mkdir(r.abs(name), 0o777)
		if err == nil {
			return name, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("the folder %s for attempt %d cannot be made: %w", name, n, err)
		}
	}
	return "", fmt.Errorf("no free name for the output folder of attempt %d beside %s", n, base)
}

// letters are the four that end the run's ID.
func (r *run) letters() string { return r.dir.ID[len(r.dir.ID)-4:] }

// since is when the run began, as file systems tell time: they keep coarser
// times than clocks.
func (r *run) since() time.Time { return r.began.Add(-10 * time.Millisecond) }

// walk goes through a folder, links of its own name resolved, without what is
// hidden, installed, a run of ours or a data set.
func (r *run) walk(root string, f func(path string, d fs.DirEntry, depth int) error) error {
	root = real(root)
	runs, seen := filepath.Dir(real(r.dir.Path)), 0
	aside := regexp.MustCompile(`^attempt-\d+-` + r.letters() + `$`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return nil //nolint:nilerr // what cannot be read was not written by the run
		}
		if seen++; seen > scanMost {
			return errScan
		}
		name := d.Name()
		if d.IsDir() && (strings.HasPrefix(name, ".") || name == "site-packages" || name == "node_modules" || aside.MatchString(name) || path == runs || path == real(r.dir.Path)) {
			return fs.SkipDir
		}
		if strings.HasPrefix(name, ".") {
			return nil
		}
		err = f(path, d, strings.Count(path[len(root):], string(filepath.Separator)))
		if err == nil && d.IsDir() && crowded(path) {
			return fs.SkipDir
		}
		return err
	})
	if errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

// crowded says whether a folder has more names than an output has.
func crowded(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(crowdMost + 1)
	return len(names) > crowdMost
}

// holdsFresh says whether any file below a folder was written during the run.
func (r *run) holdsFresh(root string) (found bool, err error) {
	err = r.walk(root, func(_ string, d fs.DirEntry, _ int) error {
		if info, err := d.Info(); err == nil && !d.IsDir() && info.ModTime().After(r.since()) {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found, err
}

// bornSince says whether a file or folder came into being after a moment. Where
// the file system does not keep that, its last change stands for it.
func bornSince(path string, info fs.FileInfo, t time.Time) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st)
	if err == nil && st.Mask&unix.STATX_BTIME != 0 {
		return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).After(t)
	}
	return !info.IsDir() && info.ModTime().After(t)
}

// savedIn lists what came into being below a folder during the run: all of it, or
// only what looks like a checkpoint.
func (r *run) savedIn(root string, depth int, onlyCheckpoints bool) ([]string, error) {
	var out []string
	err := r.walk(root, func(path string, d fs.DirEntry, at int) error {
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // gone meanwhile
		}
		like := d.IsDir() && checkpointDir.MatchString(d.Name()) || !d.IsDir() && checkpointFile.MatchString(d.Name())
		if bornSince(path, info, r.since()) && (like || !onlyCheckpoints) {
			out = append(out, path)
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() && onlyCheckpoints && at >= depth {
			return fs.SkipDir
		}
		return nil
	})
	return out, err
}

// moveAside renames what came into being during the run into a folder of the
// attempt's own beside it.
func (r *run) moveAside(a *attempt, root string, depth int, onlyCheckpoints bool) (kept, error) {
	saved, err := r.savedIn(root, depth, onlyCheckpoints)
	if err != nil {
		// The folder of the job may be huge. Nothing is known to be in danger.
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Warn, Msg: fmt.Sprintf("whether attempt %d has saved below %s cannot be told: %v", a.n, root, err)})
		return kept{}, nil
	}
	aside := map[string]bool{}
	for _, path := range saved {
		for _, mine := range r.belongings() {
			if within(path, mine) {
				return kept{}, fmt.Errorf("%s holds %s and came into being during the run: no retry, so that nothing of yours is moved", path, mine)
			}
		}
		dir := filepath.Join(filepath.Dir(path), fmt.Sprintf("attempt-%d-%s", a.n, r.letters()))
		err := os.Mkdir(dir, 0o777)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = os.Rename(path, filepath.Join(dir, filepath.Base(path)))
		}
		if err != nil {
			return kept{}, fmt.Errorf("attempt %d has saved %s, and that cannot be moved aside (%w): no retry, so that nothing is overwritten", a.n, path, err)
		}
		aside[dir] = true
	}
	var k kept
	for _, dir := range sortedFiles(aside) {
		k.said = append(k.said, fmt.Sprintf("what attempt %d saved was moved to %s", a.n, dir))
	}
	return k, nil
}
