package supervisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/ladder/trainer/checkpoint"
	"sparkrun/supervisor/runlog"
)

// copied is a checkpoint in dir/out and a copy of it as an attempt goes on from, noted in
// the run.
func copied(t *testing.T, r *run, dir string) (from, top string) {
	t.Helper()
	from = filepath.Join(dir, "out", "checkpoint-4")
	put(t, filepath.Join(from, "trainer_state.json"), `{"global_step": 4, "train_batch_size": 8}`)
	put(t, filepath.Join(from, "model.safetensors"), "weights")
	put(t, filepath.Join(from, "optim", "rank0.pt"), "momenta")
	c := checkpoint.Checkpoint{Path: from, Step: 4, Complete: true}
	ready, err := checkpoint.ForResume(c, checkpoint.Want{Layout: checkpoint.HF, Micro: 4, WasMicro: 8, Into: checkpoint.Places(c, filepath.Join(dir, "out"), r.dir.ID, 2)})
	if err != nil || len(ready.Made) != 1 {
		t.Fatal(ready, err)
	}
	r.noteMade(ready.Made...)
	return from, ready.Made[0]
}

func whole(t *testing.T, from string) {
	t.Helper()
	for name, want := range map[string]string{"trainer_state.json": `{"global_step": 4, "train_batch_size": 8}`, "model.safetensors": "weights", "optim/rank0.pt": "momenta"} {
		if b, err := os.ReadFile(filepath.Join(from, name)); err != nil || string(b) != want {
			t.Errorf("%s of the user's checkpoint: %v %q", name, err, b)
		}
	}
}

// TestOnlyOurOwnNamesAreRemoved: whatever the training has put into a copy is kept, and
// said; so by the run that made the copy and by the next one after a death.
func TestOnlyOurOwnNamesAreRemoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(t *testing.T, top string)
		kept []string // below what is left, none if nothing is
	}{
		"untouched": {func(*testing.T, string) {}, nil},
		"saved beside it": {func(t *testing.T, top string) {
			put(t, filepath.Join(top, "checkpoint-6", "model.safetensors"), "6")
		}, []string{"checkpoint-6/model.safetensors"}},
		"saved into it": {func(t *testing.T, top string) {
			put(t, filepath.Join(top, "checkpoint-4", "optim", "rank1.pt"), "new")
		}, []string{"checkpoint-4/optim/rank1.pt"}},
		"the state written anew": {func(t *testing.T, top string) {
			put(t, filepath.Join(top, "checkpoint-4", "trainer_state.json"), `{"global_step": 6}`)
		}, []string{"checkpoint-4/trainer_state.json"}},
		"a file replaced": {func(t *testing.T, top string) {
			path := filepath.Join(top, "checkpoint-4", "model.safetensors")
			put(t, path+".tmp", "others")
			if err := os.Rename(path+".tmp", path); err != nil {
				t.Fatal(err)
			}
		}, []string{"checkpoint-4/model.safetensors"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, killed := range []bool{false, true} {
				r, dir := workplace(t, "out")
				from, top := copied(t, r, dir)
				c.do(t, filepath.Join(dir, filepath.Base(top)))
				if killed {
					man := runlog.Manifest{Schema: runlog.ManifestSchema, State: "succeeded", Host: runlog.Host{Name: "here"}}
					b, err := json.Marshal(man)
					if err != nil {
						t.Fatal(err)
					}
					put(t, r.dir.File("run.json"), string(b))
					places := runlog.Places{Getenv: func(string) string { return "" }, Cwd: dir, Home: filepath.Join(dir, "home")}
					removed, kept := removeLeftovers(places, filepath.Dir(top), "here")
					if len(removed)+len(kept) != 1 || (len(kept) == 1) != (c.kept != nil) {
						t.Errorf("removed %v, kept %v", removed, kept)
					}
				} else {
					r.removeOurs()
				}
				there(t, false, top)
				whole(t, from)
				shown := filepath.Join(filepath.Dir(top), "attempt-2-beef-checkpoint-4")
				there(t, c.kept != nil, shown)
				for _, f := range c.kept {
					there(t, true, filepath.Join(shown, f))
				}
			}
		})
	}
}

// TestACopyOfWhichNothingIsNotedStays.
func TestACopyOfWhichNothingIsNotedStays(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "out")
	_, top := copied(t, r, dir)
	if err := os.Remove(r.dir.File(madeRecord)); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(runlog.Manifest{Schema: runlog.ManifestSchema, State: "succeeded", Host: runlog.Host{Name: "here"}})
	if err != nil {
		t.Fatal(err)
	}
	put(t, r.dir.File("run.json"), string(b))
	places := runlog.Places{Getenv: func(string) string { return "" }, Cwd: dir, Home: filepath.Join(dir, "home")}
	if removed, kept := removeLeftovers(places, filepath.Dir(top), "here"); len(removed)+len(kept) > 0 {
		t.Errorf("%v %v", removed, kept)
	}
	there(t, true, top)
}

// TestAChangedConfigCopyIsKept: a trainer may write its settings back.
func TestAChangedConfigCopyIsKept(t *testing.T) {
	t.Parallel()
	r, dir := workplace(t, "out")
	path := filepath.Join(dir, ".sparkrun-"+r.dir.ID+"-a2-c.yaml")
	put(t, path, "a: 1\n")
	r.noteMade(path)
	r.noteMade(path) // written twice after a full disk
	put(t, path, "a: 1\nwritten: by the trainer\n")
	r.removeOurs()
	b, err := os.ReadFile(filepath.Join(dir, "attempt-2-beef-c.yaml"))
	if err != nil || !strings.Contains(string(b), "by the trainer") {
		t.Errorf("%v %q", err, b)
	}
	put(t, path, "a: 1\n")
	r.made = madeList{}
	r.noteMade(path)
	r.removeOurs()
	there(t, false, path)
}
