package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/job"
)

// Where what was saved is looked for, and how it is moved aside.

// since is when the run began, as file systems tell time: they keep coarser
// times than clocks.
func (r *run) since() time.Time { return r.began.Add(-10 * time.Millisecond) }

// seek prepares a look through folders.
func (r *run) seek() *seek {
	aside := regexp.MustCompile(`^attempt-\d+-` + r.letters() + `$`)
	mine, belongs := real(r.dir.Path), r.belongings()
	r.mu.Lock()
	defer r.mu.Unlock()
	return &seek{since: r.since(), before: r.before, noBirth: r.noBirth, holds: func(path string) bool {
		return slices.ContainsFunc(belongs, func(b string) bool { return within(path, b) })
	}, passed: func(path string) bool {
		name := filepath.Base(path)
		return path == mine || aside.MatchString(name) || runFolder.MatchString(name) && exists(filepath.Join(path, "run.json"))
	}}
}

// holdsFresh says whether any file below a folder was written during the run. Where that
// cannot be told, it may be so.
func (r *run) holdsFresh(root string) bool {
	found := false
	k := r.seek()
	k.enough = func(find) bool { found = true; return true }
	return k.in(root) != nil || found
}

// noteBefore lists what lies where the command may save, in file systems that do not
// tell when a file came into being.
func (r *run) noteBefore() {
	roots := []string{r.o.Dir}
	if path, ok := r.onHost(r.job.Knobs[job.OutputDir].Value); ok {
		roots = append(roots, path)
	}
	roots = slices.DeleteFunc(append(roots, r.job.TrainerDir), func(dir string) bool {
		st, err := statOf(dir, true)
		return dir == "" || err != nil || !st.btime.IsZero() && !r.noBirth
	})
	if len(roots) == 0 {
		return
	}
	list := listNames(roots, r.seek().passed)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = list
}

// moveUnknown moves aside what was saved by a command of which it is not known where it
// saves: below every folder that it was at work in.
func (r *run) moveUnknown(a *attempt) (kept, error) {
	var roots []string
	if r.job.Container == nil {
		cwds, _, _ := a.prints.at()
		roots = append(append(roots, r.o.Dir, r.job.TrainerDir), cwds...)
		if r.changesFolder() != "" {
			if path, ok := r.onHost(r.job.Script); ok {
				roots = append(roots, filepath.Dir(path))
			}
		}
	} else {
		for _, m := range r.set.Mounts(r.job) {
			if !m.ReadOnly {
				roots = append(roots, m.Host)
			}
		}
		if r.job.Container.Verb == "compose" {
			roots = append(roots, r.o.Dir) // its own file says what it mounts
		}
	}
	k, err := r.moveAside(a, roots, false)
	if _, _, said := a.prints.at(); err == nil && len(said) > 0 && len(k.moved) == 0 && r.job.Container == nil {
		err = r.noRetryUnless(a, fmt.Sprintf("attempt %d says that it has saved %s, and that is not found", a.n, said[len(said)-1]))
	}
	if c := r.job.Container; err == nil && c != nil && (c.Verb != "run" || r.hasVolume()) && a.mayHaveSaved() && len(k.moved) == 0 {
		err = r.noRetryUnless(a, fmt.Sprintf("where attempt %d has saved in its container is not known", a.n))
	}
	return k, err
}

// add takes over what another look has arranged.
func (k *kept) add(o kept) {
	k.said = append(k.said, o.said...)
	if k.moved == nil {
		k.moved = o.moved
		return
	}
	for from, to := range o.moved {
		k.moved[from] = to
	}
}

// moveAside renames what was saved during the run below some folders into a folder of
// the attempt's own beside it: everything that came into being, or only what looks like a
// checkpoint.
func (r *run) moveAside(a *attempt, roots []string, all bool) (kept, error) {
	roots = outermost(roots)
	k := r.seek()
	err := k.in(roots...)
	if err != nil {
		if err := r.noRetryUnless(a, fmt.Sprintf("whether attempt %d has saved something cannot be told: %v", a.n, err)); err != nil {
			return kept{}, err
		}
	}
	_, wrote, said := a.prints.at()
	if !all {
		k.finds = append(k.finds, r.strays(k, wrote)...)
	}
	seen := r.seenAt(a, wrote, said)
	var held func(string) bool
	if slices.Contains(r.o.Allow, AllowRestart) {
		open := openFiles()
		held = func(path string) bool {
			return slices.ContainsFunc(open, func(o string) bool { return within0(path, o) })
		}
	}
	plan := decideKeeping(k.finds, all, r.otherThere(a, roots), seen, r.allFresh, held)
	if plan.refuse != "" {
		if err := r.noRetryUnless(a, plan.refuse); err != nil {
			return kept{}, err
		}
	}
	return r.rename(a, plan)
}

// outermost drops folders that lie in others, and those that are none of a job's.
func outermost(roots []string) []string {
	var out []string
	for _, root := range roots {
		if root = real(root); root != "/" && root != "." && root != "" && !slices.Contains(out, root) {
			out = append(out, root)
		}
	}
	return slices.DeleteFunc(slices.Clone(out), func(dir string) bool {
		return underCache(dir) || slices.ContainsFunc(out, func(o string) bool { return o != dir && within0(o, dir) })
	})
}

// strays are files like checkpoints that the training was seen to write outside of the
// folders that were looked through.
func (r *run) strays(k *seek, wrote []string) []find {
	var out []find
	for _, path := range wrote {
		st, err := statOf(path, false)
		if err != nil || !st.regular() || !st.mtime.After(k.since) || underCache(path) || within0("/dev/shm", path) ||
			slices.ContainsFunc(k.finds, func(f find) bool { return f.path == path }) || within(r.dir.Path, path) {
			continue
		}
		named := checkpointFile.MatchString(filepath.Base(path))
		f := find{path: path, named: named, like: named || st.size >= largeFile, born: k.born(st)}
		for dir := filepath.Dir(path); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
			if checkpointDir.MatchString(filepath.Base(dir)) {
				f.box, f.named, f.like = dir, true, true
			}
		}
		if f.like && f.named {
			out = append(out, f)
		}
	}
	return out
}

// seenAt says of a path whether the training was seen at it: it had it open for writing,
// or its output names it.
func (r *run) seenAt(a *attempt, wrote, said []string) func(string) bool {
	cwds, _, _ := a.prints.at()
	var known []string
	known = append(known, wrote...)
	for _, name := range said {
		if path, ok := r.onHost(name); ok {
			known = append(known, path)
		}
		for _, dir := range cwds {
			if !filepath.IsAbs(name) {
				known = append(known, filepath.Join(dir, name))
			}
		}
	}
	for i := range known {
		known[i] = real(known[i])
	}
	return func(path string) bool {
		return slices.ContainsFunc(known, func(p string) bool { return within0(p, path) })
	}
}

// otherThere names somebody else who was at work below one of the folders while the run
// went on; "" for nobody.
func (r *run) otherThere(a *attempt, roots []string) string {
	r.lookAtOthers(a)
	for _, past := range append(slices.Clone(r.all), a) {
		for _, root := range roots {
			if who := past.prints.otherAt(root); who != "" {
				return who
			}
		}
	}
	return ""
}

// allFresh says whether every file of a checkpoint was written during the run.
func (r *run) allFresh(dir string) bool {
	ok := true
	since := r.since()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		st, err := statOf(path, false)
		if err == nil && !st.mtime.After(since) && (st.btime.IsZero() || !st.btime.After(since)) {
			ok = false
			return fs.SkipAll
		}
		return err
	})
	return ok && err == nil
}

// rename moves aside what was decided on.
func (r *run) rename(a *attempt, plan keeping) (kept, error) {
	k := kept{moved: map[string]string{}}
	belongs := r.belongings()
	for _, path := range plan.move {
		for _, mine := range belongs {
			if within(path, mine) {
				return kept{}, fmt.Errorf("%s holds %s and came into being during the run: no retry, so that nothing of yours is moved", path, mine)
			}
		}
	}
	aside := map[string]bool{}
	for _, path := range plan.move {
		dir := filepath.Join(filepath.Dir(path), fmt.Sprintf("attempt-%d-%s", a.n, r.letters()))
		to := filepath.Join(dir, filepath.Base(path))
		err := os.Mkdir(dir, 0o777)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = renameNew(path, to)
		}
		if err != nil {
			if err := r.noRetryUnless(a, fmt.Sprintf("attempt %d has saved %s, and that cannot be moved aside (%v)", a.n, path, err)); err != nil {
				return kept{}, err
			}
			plan.left = append([]string{path}, plan.left...)
			continue
		}
		aside[dir], k.moved[path] = true, to
	}
	for _, dir := range sortedFiles(aside) {
		k.said = append(k.said, fmt.Sprintf("what attempt %d saved was moved to %s", a.n, dir))
	}
	if n := len(plan.left); n > 0 {
		more := ""
		if n > 3 {
			more = fmt.Sprintf(" and %d more", n-3)
		}
		k.said = append(k.said, fmt.Sprintf("other files that were written during the run stay where they are and may be overwritten: %s%s", strings.Join(plan.left[:min(n, 3)], ", "), more))
	}
	return k, nil
}
