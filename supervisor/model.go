package supervisor

import (
	"fmt"
	"maps"
	"os"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/sample"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer"
	"sparkrun/preflight/headroom"
)

// modelWait bounds how long explain and plan wait for the model's files: they may lie on
// a network mount. A run waits no longer than for any other look.
const modelWait = 2 * time.Second

// measureModel finds out how many parameters the base model has, where its weights
// lie on this machine or its name tells. It returns after limit at the latest; what comes
// later is known from then on.
func (r *run) measureModel(limit time.Duration) {
	if name := r.job.Knobs[job.Model].Value; name != "" {
		_, _ = r.readModel(name, limit) // a size that is not known is nobody's error here
	}
}

// modelRead takes what the model's files say. It may come at any time.
func (r *run) modelRead(size modelsize.Size) {
	if size.Params > 0 {
		r.modelSeen.Store(&size)
	}
}

// model is what is known of the base model: its parameters, what told, and the format of
// weights that are quantised on disk already.
func (r *run) model() (params sample.Num, from, quantised string) {
	if s := r.modelSeen.Load(); s != nil {
		return sample.Known(float64(s.Params)), s.From, s.Quantised
	}
	return sample.Num{}, "", ""
}

// sixteenBit reckons for the ladder what LoRA on 16-bit weights takes of a budget in
// bytes; nil where nothing is known of the model. A model that is stored quantised counts
// as the 16-bit one that the trainer would take in its place.
func (r *run) sixteenBit(budget int64) func(job.Knobs) (ladder.Reckoned, bool) {
	size := r.modelSeen.Load()
	if size == nil || budget <= 0 {
		return nil
	}
	model, j := *size, trained(r.job)
	if model.Quantised != "" {
		model.Quantised, model.Bytes, model.TensorBytes = "", 0, 0
	}
	return func(knobs job.Knobs) (ladder.Reckoned, bool) {
		with := j
		with.Knobs = j.Knobs.Clone()
		maps.Copy(with.Knobs, knobs)
		spec := headroom.FromJob(&with, model)
		spec.Method, spec.Bits, spec.WeightDType = headroom.LoRA, 0, "bfloat16" // which the step forces
		e, err := spec.Estimate()
		return ladder.Reckoned{Peak: e.Peak, Low: e.Low, High: e.High, Budget: budget}, err == nil
	}
}

// readModel looks for a folder of that name as the trainer would see it, and else for
// a model of that name in the cache. It returns after limit at the latest.
func (r *run) readModel(name string, limit time.Duration) (modelsize.Size, error) {
	type answer struct {
		size modelsize.Size
		err  error
	}
	got := make(chan answer, 1)
	j, set, env := r.job, r.set, r.o.Env
	go func() {
		where := name
		if path := modelFolder(set, j, name); path != "" {
			where = path
		}
		getenv := func(n string) string { return lookupEnv(env, n) }
		if j.Container == nil {
			getenv = j.Getenv(getenv) // the command may set HF_HOME
		}
		at := modelsize.Place{Dir: j.TrainerDir, Getenv: getenv}
		at.NoFolders = j.Container != nil && where == name
		size, err := at.Read(where)
		if err == nil {
			r.modelRead(size)
		}
		got <- answer{size, err}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			return a.size, fmt.Errorf("the size of the base model: %w", a.err)
		}
		return a.size, nil
	case <-time.After(limit):
		return modelsize.Size{}, fmt.Errorf("the model's files gave no answer within %g s (a network mount?)", limit.Seconds())
	}
}

// modelFolder is the folder of a model that a container sees under that name, as this
// machine names it; "" where the command starts no container, or has no such folder
// mounted.
func modelFolder(set *trainer.Set, j job.Job, name string) string {
	if j.Container == nil || name == "" {
		return ""
	}
	path, ok := set.HostPath(j, name)
	if !ok {
		return ""
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return ""
	}
	return path
}
