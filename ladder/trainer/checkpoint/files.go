package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sparkrun/internal/lazyre"
)

// Trainers whose checkpoint is a file, or a few with one number.

// findFiles returns a find that takes files and folders by their name, in the
// output folder and in the folders right below it.
func findFiles(re *lazyre.RE, looker func(l *look, c *Checkpoint)) func(string) []candidate {
	return func(dir string) []candidate {
		budget := maxNames
		list := glance(dir, &budget)
		var out []candidate
		take := func(e entry) bool {
			m := re.FindStringSubmatch(e.name)
			if m == nil {
				return false
			}
			out = append(out, candidate{path: e.path, link: e.link, step: firstNumber(m[1:]), look: looker})
			return true
		}
		deeper := 0
		for _, e := range list {
			if take(e) || !e.dir || strings.HasPrefix(e.name, ".") {
				continue
			}
			if deeper++; deeper > maxWalked {
				break
			}
			for _, b := range glance(e.path, &budget) {
				take(b)
			}
		}
		return out
	}
}

const (
	// maxWalked bounds the folders gone through in search of checkpoints.
	maxWalked = 2000
	// walkDepth is how far below the output folder a logger puts them:
	// project/id/checkpoints/NAME.
	walkDepth = 4
)

// walking returns a find that goes through the folders below the output folder.
func walking(re *lazyre.RE, looker func(l *look, c *Checkpoint)) func(string) []candidate {
	return func(dir string) []candidate {
		var out []candidate
		folders, budget := 0, 2*maxNames
		var walk func(dir string, depth int)
		walk = func(dir string, depth int) {
			if folders++; folders > maxWalked {
				return
			}
			for _, e := range glance(dir, &budget) {
				if m := re.FindStringSubmatch(e.name); m != nil {
					out = append(out, candidate{path: e.path, link: e.link, step: firstNumber(m[1:]), look: looker})
					continue
				}
				if e.dir && depth < walkDepth && (!e.link || depth == 0 && outside(dir, e.path)) && !strings.HasPrefix(e.name, ".") && e.name != "wandb" {
					walk(e.path, depth+1)
				}
			}
		}
		walk(dir, 0)
		return out
	}
}

// atAny returns an at that takes files and folders by their name.
func atAny(re *lazyre.RE, looker func(l *look, c *Checkpoint)) func(string) (candidate, error) {
	return func(path string) (candidate, error) {
		m := re.FindStringSubmatch(filepath.Base(path))
		if m == nil {
			return candidate{}, errors.New("no such name")
		}
		return candidate{path: path, step: firstNumber(m[1:]), look: looker}, nil
	}
}

var lightningName = lazyre.New(`^(?:.*\bstep=(\d{1,18}).*|.+)\.ckpt$`)

// lookLightning tests a checkpoint of Lightning's: a file, which it puts in its
// place when it is whole, or a folder where the weights are sharded.
func lookLightning(l *look, c *Checkpoint) {
	info, err := os.Stat(c.Path)
	if err != nil {
		l.fault("it is a link to nowhere")
		return
	}
	if info.IsDir() {
		t := l.folder(c.Path)
		switch {
		case t.has("latest"):
			l.fault(zero(c.Path, t))
			c.HasOptimizer = zeroOptimizer(t, t.like(trainerFolders))
		case t.has(".metadata"):
			c.HasOptimizer = metadataHas(c.Path, "optimizer")
		default:
			l.fault("neither .metadata nor latest is in it: both are written last")
		}
		if n, ok := pickleInt(torchPickle(filepath.Join(c.Path, "meta.pt")), "global_step"); ok {
			c.Step = n
		}
		return
	}
	l.file(entry{name: filepath.Base(c.Path), path: c.Path, info: info})
	if l.wrong != "" {
		return
	}
	p := torchPickle(c.Path)
	if p == nil && l.note != "" || p != nil && !pickleHas(p, "pytorch-lightning_version") && !pickleHas(p, "loops") {
		c.Path = "" // something else
		return
	}
	if n, ok := pickleInt(p, "global_step"); ok {
		c.Step = n
	}
	c.HasOptimizer = pickleHas(p, "optimizer_states")
}

var nemoName = lazyre.New(`^(?:.*[^a-z])?step=(\d{1,18})(?:[^\d].*)?$`)

// lookNeMo tests a checkpoint of NeMo 2's: weights and context, and a mark beside
// it for as long as it is being written.
func lookNeMo(l *look, c *Checkpoint) {
	info, err := os.Stat(c.Path)
	if err != nil || !info.IsDir() {
		c.Path = ""
		return
	}
	mark := c.Path + "-unfinished"
	if _, err := os.Lstat(mark); err == nil {
		l.fault(filepath.Base(mark) + " is there: saving was cut short")
	}
	t := l.folder(c.Path)
	e, ok := t["weights"]
	if !ok || !e.dir {
		l.fault("there are no weights in it")
		return
	}
	if list, err := readDir(e.path, func(n string) bool { return n == ".metadata" }); err != nil || len(list) == 0 {
		l.fault("weights/.metadata is missing: it is written last")
	}
	c.HasOptimizer = metadataHas(e.path, "optimizer")
}

// findNanoGPT finds the one file that nanoGPT writes over at each save.
func findNanoGPT(dir string) []candidate {
	list, err := readDir(dir, func(n string) bool { return n == "ckpt.pt" })
	if err != nil || len(list) == 0 {
		return nil
	}
	return []candidate{{path: list[0].path, link: list[0].link, step: Unknown, look: func(l *look, c *Checkpoint) {
		l.file(list[0])
		p := torchPickle(c.Path)
		if n, ok := pickleInt(p, "iter_num"); ok {
			c.Step = n
		}
		c.HasOptimizer = pickleHas(p, "optimizer")
		l.note = join(l.note, "it is written over in place at every save: a death while saving loses it")
	}}}
}

// trainerFolders are what a folder of a trainer's own checkpoints has in it.
var trainerFolders = lazyre.New(`^checkpoint$|^global_step`)

// lookNanoChat tests the files of one step: the model, then its metadata, then the
// optimizer's, one for each rank.
func lookNanoChat(l *look, c *Checkpoint) {
	dir, base := filepath.Split(c.Path)
	number := strings.TrimSuffix(strings.TrimPrefix(base, "model_"), ".pt")
	optim := regexp.MustCompile(`^optim_` + number + `_rank\d{1,6}\.pt$`)
	list, err := readDir(dir, func(n string) bool {
		return n == base || n == "meta_"+number+".json" || optim.MatchString(n)
	})
	if err != nil {
		l.fault(filepath.Base(dir) + " cannot be read: " + reason(err))
		return
	}
	t := tree{}
	for _, e := range list {
		t[e.name] = e
	}
	l.one(t, base)
	l.one(t, "meta_"+number+".json")
	ranks := t.like(optim)
	for _, n := range ranks {
		l.one(t, n)
	}
	for r := range ranks {
		if want := fmt.Sprintf("optim_%s_rank%d.pt", number, r); !t.has(want) {
			l.fault(want + " is missing")
		}
	}
	c.HasOptimizer = len(ranks) > 0
}

// lookAIToolkit tests what ai-toolkit saves: weights, or a folder of them, with
// their step in the name, and then one optimizer.pt beside them for the newest.
func lookAIToolkit(l *look, c *Checkpoint) {
	info, err := os.Stat(c.Path)
	if err != nil {
		l.fault("it is a link to nowhere")
		return
	}
	switch {
	case info.IsDir():
		if t := l.folder(c.Path); len(t) == 0 {
			l.fault("there are no weights in it")
		}
	case filepath.Ext(c.Path) == ".safetensors":
		l.file(entry{name: filepath.Base(c.Path), path: c.Path, info: info})
	default:
		c.Path = ""
		return
	}
	optimizer := filepath.Join(filepath.Dir(c.Path), "optimizer.pt")
	o, err := os.Stat(optimizer)
	if err != nil {
		return
	}
	why, _ := torchFile(optimizer)
	switch {
	case why != "":
		c.Why = why + ": the optimizer would start anew"
	case o.ModTime().Before(l.newest.Add(-together)):
		c.Why = "optimizer.pt is of an earlier save: the optimizer would be that one"
	default:
		c.HasOptimizer = true
	}
}

// lookComposer tests a checkpoint of Composer's: a file of rank 0 and others beside
// it, or a folder where it is sharded.
func lookComposer(l *look, c *Checkpoint) {
	info, err := os.Stat(c.Path)
	if err != nil {
		l.fault("it is a link to nowhere")
		return
	}
	if info.IsDir() {
		if t := l.folder(c.Path); !t.has(".metadata") {
			l.fault(".metadata is missing: it is written last")
		}
		c.HasOptimizer = metadataHas(c.Path, "optim")
		return
	}
	l.file(entry{name: filepath.Base(c.Path), path: c.Path, info: info})
	c.HasOptimizer = pickleHas(torchPickle(c.Path), "optimizers")
}
