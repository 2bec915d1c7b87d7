package checkpoint

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"sparkrun/internal/lazyre"
)

// How the trainers for language models save that do not build on the Hugging Face
// Trainer.

// together is how far apart the files of one save may have been written.
const together = 2 * time.Second

var tuneWeights = lazyre.New(`\.(safetensors|distcp)$|^(hf|meta|torchtune|adapter)_model.*\.pt$|^(adapter|consolidated).*\.(pt|pth|bin)$`)

// lookTorchtune tests a folder of torchtune's. What a resume needs besides, the
// recipe state, lies beside the folders, is written last and holds for the newest
// one alone; after the last epoch none is written.
func lookTorchtune(l *look, c *Checkpoint) {
	t := l.folder(c.Path)
	saved := l.newest
	if len(t.like(tuneWeights)) == 0 && !hasBelow(t, ".metadata") {
		l.fault("there are no weights in it")
	}
	number := c.Step
	epoch := filepath.Base(c.Path)[0] == 'e'
	if epoch {
		// The number is of the epoch.
		c.Step, c.order = Unknown, number
	}
	if t.has(".metadata") || hasBelow(t, ".metadata") {
		c.HasOptimizer = true
		return
	}
	for _, p := range []string{filepath.Join(c.Path, "recipe_state.pt"), filepath.Join(c.Path, "recipe_state", "recipe_state.pt"), filepath.Join(filepath.Dir(c.Path), "recipe_state", "recipe_state.pt")} {
		list, err := readDir(filepath.Dir(p), func(n string) bool { return n == "recipe_state.pt" })
		if err != nil || len(list) == 0 || list[0].info == nil {
			continue
		}
		at := list[0].info.ModTime()
		if why, _ := torchFile(p); why != "" {
			if !at.Before(saved.Add(-together)) {
				l.fault(why)
			}
			break
		}
		data := torchPickle(p)
		if run, ok := pickleInt(data, "epochs_run"); ok && epoch {
			c.HasOptimizer = run == number+1 && at.After(saved.Add(-together))
		} else {
			c.HasOptimizer = at.After(saved.Add(-together)) && at.Before(saved.Add(time.Hour))
		}
		break
	}
	if !c.HasOptimizer {
		c.Why = "weights only: no recipe_state.pt belongs to it, which a resume needs"
	}
}

// hasBelow says whether a folder right below holds a name.
func hasBelow(t tree, name string) bool {
	for _, n := range t.like(anything) {
		if e := t[n]; e.dir {
			if list, err := readDir(e.path, func(n string) bool { return n == name }); err == nil && len(list) > 0 {
				return true
			}
		}
	}
	return false
}

// lookAutoModel tests a folder of NeMo AutoModel's.
func lookAutoModel(l *look, c *Checkpoint) {
	t := l.folder(c.Path)
	parent, base := filepath.Split(c.Path)
	for _, mark := range []string{filepath.Join(c.Path, ".incomplete"), filepath.Join(parent, base+".incomplete"), filepath.Join(parent, "."+base+".incomplete")} {
		if list, err := readDir(filepath.Dir(mark), func(n string) bool { return n == filepath.Base(mark) }); err == nil && len(list) > 0 {
			l.fault("it is marked as incomplete")
		}
	}
	if !filled(t, "model") {
		l.fault("there are no weights in it")
	}
	c.HasOptimizer = filled(t, "optim") || filled(t, "optimizer")
	if !t.has("step_scheduler.pt") && !latestIs(filepath.Clean(parent), base) {
		l.fault("step_scheduler.pt is missing")
	}
}

// filled says whether a folder is there and not empty.
func filled(t tree, name string) bool {
	e, ok := t[name]
	if !ok || !e.dir {
		return false
	}
	list, err := readDir(e.path, nil)
	return err == nil && len(list) > 0
}

// latestIs says whether the link LATEST of a folder leads to a name in it.
func latestIs(dir, base string) bool {
	p, err := filepath.EvalSymlinks(filepath.Join(dir, "LATEST"))
	return err == nil && filepath.Base(p) == base
}

// published holds a step against the file that a trainer writes when a checkpoint
// is complete, and in which it looks for the one to resume from.
func published(l *look, c *Checkpoint) {
	const file = "latest_checkpointed_iteration.txt"
	word, _, err := pointer(filepath.Join(filepath.Dir(c.Path), file))
	if err != nil {
		l.fault(file + " is missing or empty: it is written when a checkpoint is complete")
		return
	}
	last, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		l.fault(file + " names no step but " + quoteShort(word))
		return
	}
	if c.Step > last {
		l.fault(fmt.Sprintf("%s names step %d: it is written when a checkpoint is complete", file, last))
	}
}

var megatronRank = lazyre.New(`^mp_rank_\d+(_\d+)*$`)

// lookMegatron tests an iteration of Megatron-LM and Megatron-Bridge.
func lookMegatron(l *look, c *Checkpoint) {
	published(l, c)
	t := l.folder(c.Path)
	ranks := t.like(megatronRank)
	if !t.has(".metadata") && len(ranks) == 0 && !filled(t, "weights") {
		l.fault("there are no weights in it")
	}
	c.HasOptimizer = metadataHas(c.Path, "optimizer")
	for _, r := range ranks {
		list, err := readDir(t[r].path, nil)
		if err != nil {
			continue
		}
		whole := false
		for _, e := range list {
			switch e.name {
			case "model_optim_rng.pt", "model_rng.pt":
				whole = true
				c.HasOptimizer = c.HasOptimizer || pickleHas(torchPickle(e.path), "optimizer")
			case "distrib_optim.pt", "optim.pt":
				c.HasOptimizer = true
			}
		}
		if !whole {
			l.fault(r + " has no weights")
		}
	}
}

// metadataHas says whether the .metadata of a distributed checkpoint names
// something.
func metadataHas(dir, word string) bool {
	data, err := readSmall(filepath.Join(dir, ".metadata"), maxMetadata)
	return err == nil && bytes.Contains(data, []byte(word))
}

var verlFile = lazyre.New(`^(model|optim|extra_state)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt$`)

// lookVerl tests a step of verl's: files for each rank in the folder, or in those of
// the actor and the critic.
func lookVerl(l *look, c *Checkpoint) {
	published(l, c)
	t := l.folder(c.Path)
	weights := len(t.like(sameWeights)) > 0 || filled(t, "dist_ckpt")
	for _, dir := range []string{"", "actor", "critic"} {
		in := t
		if dir != "" {
			e, ok := t[dir]
			if !ok || !e.dir {
				continue
			}
			list, err := readDir(e.path, nil)
			if err != nil {
				l.fault(dir + " cannot be read: " + reason(err))
				continue
			}
			in = tree{}
			for _, e := range list {
				in[e.name] = e
			}
			weights = weights || filled(in, "dist_ckpt")
		}
		for _, n := range in.like(verlFile) {
			m := verlFile.FindStringSubmatch(n)
			weights = weights || m[1] == "model"
			c.HasOptimizer = c.HasOptimizer || m[1] == "optim"
			world, _ := strconv.Atoi(m[2])
			for r := range min(world, maxFiles) {
				if want := fmt.Sprintf("%s_world_size_%d_rank_%d.pt", m[1], world, r); !in.has(want) {
					l.fault(want + " is missing")
				}
			}
		}
		c.HasOptimizer = c.HasOptimizer || filled(in, "dist_ckpt")
	}
	if !weights {
		l.fault("there are no weights in it")
	}
}

var weightFiles = lazyre.New(`\.safetensors$`)

// lookTorchtitan tests a step of torchtitan's: a distributed checkpoint, or, at the
// end, weights alone.
func lookTorchtitan(l *look, c *Checkpoint) {
	t := l.folder(c.Path)
	if !t.has(".metadata") {
		if len(t.like(weightFiles)) == 0 {
			l.fault(".metadata is missing: it is written last")
		}
		return
	}
	c.HasOptimizer = metadataHas(c.Path, "optimizer")
}

// lookOpenRLHF tests a step of OpenRLHF's: DeepSpeed's files, and the file latest
// beside the steps.
func lookOpenRLHF(l *look, c *Checkpoint) {
	parent := filepath.Dir(c.Path)
	word, _, err := pointer(filepath.Join(parent, "latest"))
	if err != nil {
		l.fault("DeepSpeed's file latest is missing or empty: it is written last")
	} else if m := deepspeed.FindStringSubmatch(word); m != nil {
		if last, _ := strconv.ParseInt(m[1], 10, 64); c.Step > last {
			l.fault("DeepSpeed's file latest names " + word + ": it is written last")
		}
	}
	t := l.folder(c.Path)
	if len(t.like(zeroState)) == 0 {
		l.fault("there are no model states in it")
	}
	c.HasOptimizer = len(t.like(zeroOptim)) > 0
}

// lookLitGPT tests a step of LitGPT's.
func lookLitGPT(l *look, c *Checkpoint) {
	t := l.folder(c.Path)
	weights, folder := false, c.Path
	for _, n := range []string{"lit_model.pth", "lit_model.pth.lora", "lit_model.pth.adapter", "lit_model.pth.adapter_v2"} {
		e, ok := t[n]
		if !ok {
			continue
		}
		// The file is what it wants to be given.
		weights, c.Path = true, filepath.Join(folder, n)
		if e.dir {
			c.HasOptimizer = metadataHas(e.path, "optimizer")
			continue
		}
		if why, _ := torchFile(e.path); why != "" {
			l.fault(why)
		}
		c.HasOptimizer = c.HasOptimizer || pickleHas(torchPickle(e.path), "optimizer")
	}
	if !weights {
		l.fault("lit_model.pth is missing")
	}
}
