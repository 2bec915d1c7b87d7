package supervisor

import (
	"fmt"
	"os"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/sample"
)

// modelWait bounds how long a look at the model's files may take: they may lie on a
// network mount, and nothing of a run waits for one.
const modelWait = 2 * time.Second

// measureModel finds out how many parameters the base model has, where its weights
// lie on this machine or its name tells.
func (r *run) measureModel() {
	name := r.job.Knobs[job.Model].Value
	if name == "" {
		return
	}
	type answer struct {
		size modelsize.Size
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		size, err := r.readModel(name)
		got <- answer{size, err}
	}()
	var a answer
	select {
	case a = <-got:
	case <-time.After(modelWait):
		return
	}
	if a.err != nil || a.size.Params <= 0 {
		return
	}
	r.modelParams, r.modelFrom, r.modelQuantised = sample.Known(float64(a.size.Params)), a.size.From, a.size.Quantised
}

// readModel looks for a folder of that name as the trainer would see it, and else for
// a model of that name in the cache.
func (r *run) readModel(name string) (modelsize.Size, error) {
	at := modelsize.Place{Dir: r.job.TrainerDir, Getenv: func(n string) string { return lookupEnv(r.o.Env, n) }}
	if path, ok := r.set.HostPath(r.job, name); ok && r.job.Container != nil {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			name = path
		}
	}
	size, err := at.Read(name)
	if err != nil {
		return size, fmt.Errorf("the size of the base model: %w", err)
	}
	return size, nil
}
