package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/lazyre"
)

const (
	// maxListed is how many checkpoints of a folder are looked into, the newest.
	maxListed = 50
	// stillWriting is how recent the last write to an unfinished checkpoint must be
	// for it to be called one that may be in the making.
	stillWriting = 15 * time.Second
	// unlike is the share by which two checkpoints of one run differ in size before
	// it is worth a word.
	unlike = 0.1
)

// layout is how one trainer saves.
type layout struct {
	// find lists the candidates in an output folder, unlooked at.
	find func(dir string) []candidate
	// at names the candidate at a path somebody named; nil where find on its folder
	// is the way.
	at func(path string) (candidate, error)
}

// candidate is something that by its name is a checkpoint.
type candidate struct {
	path  string
	link  bool
	step  int64 // Unknown where the name does not tell
	order int64 // between those that do not tell
	// look fills in the rest. It may correct the step, and clear the path of
	// something that is no checkpoint after all.
	look func(l *look, c *Checkpoint)
}

// List returns the checkpoints in an output folder, the one with the most steps
// last, and at most the 50 newest. An unknown layout, the layout None and a folder
// that is not there have none. It may take a moment on a slow disk: some reads for
// each file, of their headers and ends only.
func List(name, dir string) []Checkpoint {
	ly, ok := layouts[canonical(name)]
	if !ok || dir == "" || ly.find == nil {
		return nil
	}
	found := ly.find(dir)
	if len(found) == 0 {
		return nil
	}
	slices.SortStableFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.step, b.step), cmp.Compare(a.order, b.order), strings.Compare(a.path, b.path))
	})
	found = distinct(found)
	if len(found) > maxListed {
		found = found[len(found)-maxListed:]
	}
	now := time.Now()
	out := make([]Checkpoint, 0, len(found))
	for _, f := range found {
		if c := f.read(now); c.Path != "" {
			out = append(out, c)
		}
	}
	sortByStep(out)
	compareSizes(out)
	return out
}

// At looks at one checkpoint that somebody named: a folder or file of the layout,
// or, of a folder that holds some, the newest complete one. The error is a
// sentence for whoever named it.
func At(name, path string) (Checkpoint, error) {
	ly, ok := layouts[canonical(name)]
	if !ok || ly.find == nil {
		return Checkpoint{}, fmt.Errorf("%s: how this trainer saves is not known, so that nothing tells whether it is complete", path)
	}
	if _, err := os.Stat(path); err != nil {
		return Checkpoint{}, fmt.Errorf("the checkpoint %s cannot be looked at: %w", path, err)
	}
	path = filepath.Clean(path)
	if ly.at != nil {
		if c, err := ly.at(path); err == nil {
			if ck := c.read(time.Now()); ck.Path != "" {
				return ck, nil
			}
		}
	}
	inside := List(name, path)
	for _, c := range slices.Concat(List(name, filepath.Dir(path)), List(name, filepath.Dir(filepath.Dir(path)))) {
		if c.Path == path {
			return c, nil
		}
	}
	if c, ok := NewestComplete(inside); ok {
		return c, nil
	}
	if len(inside) > 0 {
		c := inside[len(inside)-1]
		return Checkpoint{}, fmt.Errorf("%s has no complete checkpoint: of %s, %s", path, filepath.Base(c.Path), c.Why)
	}
	return Checkpoint{}, fmt.Errorf("%s is no checkpoint of the kind %q and holds none", path, canonical(name))
}

// read looks at a candidate.
func (f candidate) read(now time.Time) Checkpoint {
	c := Checkpoint{Path: f.path, Step: f.step, order: f.order}
	var l look
	f.look(&l, &c)
	c.Bytes, c.T = l.bytes, l.newest
	if c.T.IsZero() {
		if info, err := os.Stat(f.path); err == nil {
			c.T = info.ModTime()
		}
	}
	c.Note = join(c.Note, l.note)
	if l.wrong != "" {
		c.Complete, c.Why = false, l.wrong
		c.Writing = now.Sub(c.T).Abs() < stillWriting
		return c
	}
	c.Complete = true
	if !c.HasOptimizer && c.Why == "" {
		c.Why = "weights only: the optimizer would start anew"
	}
	return c
}

func join(a, b string) string {
	if a != "" && b != "" {
		return a + "; " + b
	}
	return a + b
}

func sortByStep(all []Checkpoint) {
	slices.SortStableFunc(all, func(a, b Checkpoint) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.order, b.order), a.T.Compare(b.T), strings.Compare(a.Path, b.Path))
	})
}

// compareSizes notes a complete checkpoint that is much smaller or larger than the
// complete one before it. No verdict: an adapter may have been saved beside the
// whole model.
func compareSizes(all []Checkpoint) {
	var last *Checkpoint
	for i := range all {
		c := &all[i]
		if !c.Complete || c.Bytes == 0 {
			continue
		}
		if last != nil && last.HasOptimizer == c.HasOptimizer {
			if d := float64(c.Bytes-last.Bytes) / float64(last.Bytes); d > unlike || d < -unlike {
				c.Note = join(c.Note, fmt.Sprintf("it has %d bytes, %s has %d", c.Bytes, filepath.Base(last.Path), last.Bytes))
			}
		}
		last = c
	}
}

// distinct drops the second name of one checkpoint: a link such as last.ckpt or
// LATEST beside what it leads to.
func distinct(all []candidate) []candidate {
	type key struct{ real string }
	seen := map[key]int{}
	var out []candidate
	for _, f := range all {
		k := key{f.path}
		if p, err := filepath.EvalSymlinks(f.path); err == nil {
			k.real = p
		}
		i, dup := seen[k]
		switch {
		case !dup:
			seen[k] = len(out)
			out = append(out, f)
		case out[i].link && !f.link:
			out[i] = f
		}
	}
	return out
}

// folders returns a find that takes the folders whose name matches re, in the
// output folder and in those folders of it that below lets through; the first
// group of re that is not empty is the step, -1 where it has none.
func folders(re *lazyre.RE, below func(name string) bool, looker func(l *look, c *Checkpoint)) func(string) []candidate {
	return func(dir string) []candidate {
		list, err := readDir(dir, func(n string) bool { return re.MatchString(n) || below != nil && below(n) })
		if err != nil && len(list) == 0 {
			return nil
		}
		var out []candidate
		for _, e := range list {
			if !e.dir {
				continue
			}
			if m := re.FindStringSubmatch(e.name); m != nil {
				out = append(out, candidate{path: e.path, link: e.link, step: firstNumber(m[1:]), look: looker})
				continue
			}
			deeper, err := readDir(e.path, re.MatchString)
			if err != nil {
				continue
			}
			for _, d := range deeper {
				if m := re.FindStringSubmatch(d.name); m != nil && d.dir {
					out = append(out, candidate{path: d.path, link: d.link, step: firstNumber(m[1:]), look: looker})
				}
			}
		}
		return out
	}
}

// atFolder returns an at that takes a folder by its name.
func atFolder(re *lazyre.RE, looker func(l *look, c *Checkpoint)) func(string) (candidate, error) {
	return func(path string) (candidate, error) {
		m := re.FindStringSubmatch(filepath.Base(path))
		info, err := os.Stat(path)
		if m == nil || err != nil || !info.IsDir() {
			return candidate{}, errors.New("no such folder name")
		}
		return candidate{path: path, step: firstNumber(m[1:]), look: looker}, nil
	}
}

func firstNumber(groups []string) int64 {
	for _, g := range groups {
		if g == "" {
			continue
		}
		if n, err := strconv.ParseInt(g, 10, 64); err == nil {
			return n
		}
	}
	return Unknown
}
