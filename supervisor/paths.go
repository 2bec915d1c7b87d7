package supervisor

import (
	"path/filepath"
	"strings"
)

// onHost returns a path as the trainer names it as one of this machine. It is not ok
// where the path lies inside a container only.
func (r *run) onHost(path string) (string, bool) {
	if r.job.Container != nil {
		return r.set.HostPath(r.job, path)
	}
	if !filepath.IsAbs(path) && r.job.TrainerDir != "" {
		return filepath.Join(r.job.TrainerDir, path), true
	}
	return r.abs(path), true
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
		if path, ok := r.onHost(f); ok && f != "" {
			out = append(out, path)
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
