package supervisor

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"

	"sparkrun/configs"
	"sparkrun/ladder/trainer/shim"
	"sparkrun/supervisor/runlog"
)

// seenRuns is how many earlier runs are looked at for what the shim has seen.
const seenRuns = 50

// seenBefore adds to the job what the shim has seen in the newest earlier run of the
// same command: settings in code that nothing else tells. It returns that run's ID, ""
// where there is none. A script or config file that has changed since makes what was
// seen worth nothing.
func (r *run) seenBefore() string {
	p := runlog.Places{Getenv: func(n string) string { return lookupEnv(r.o.Env, n) }, Cwd: r.o.Dir, Home: lookupEnv(r.o.Env, "HOME")}
	for i, e := range runlog.Runs(p) {
		if i == seenRuns {
			return ""
		}
		man, err := runlog.ReadManifest(e.Path)
		if err != nil || man.Cwd != r.o.Dir || !slices.Equal(man.Argv, r.o.Argv) || r.changedSince(man) {
			continue
		}
		for n := len(man.Attempts); n > 0; n-- {
			data, err := configs.ReadFile(filepath.Join(e.Path, runlog.AttemptsDir, strconv.Itoa(n), "shim.json"))
			if err != nil {
				continue
			}
			var rec shim.Record
			if json.Unmarshal(data, &rec) != nil || !rec.Loaded {
				continue
			}
			before := r.job.Knobs
			r.job = r.set.Learn(r.job, rec)
			learned := false
			for k, s := range r.job.Knobs {
				if _, known := before[k]; !known {
					s.Where = "seen by the shim in " + e.ID
					r.job.Knobs[k], learned = s, true
				}
			}
			if learned {
				return e.ID
			}
		}
	}
	return ""
}

// changedSince says whether a file of the command is another one than in that run.
func (r *run) changedSince(man *runlog.Manifest) bool {
	for name, sum := range man.Hashes {
		path, ok := r.onHost(name)
		if !ok {
			continue
		}
		if now, err := runlog.HashFile(path); err != nil || now != sum {
			return true
		}
	}
	return false
}
