package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// No path of a recorded tree leads to a file of this machine: neither a link to a folder
// here, nor .. in the model's name, nor a link in /proc.
func TestNothingLeadsOutOfATree(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "m")
	writeModel(t, outside, small)
	if err := os.WriteFile(filepath.Join(outside, "meminfo"), []byte(idle), 0o644); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 30) + strings.TrimPrefix(outside, "/")
	dir := copyTree(t, "", map[string]string{
		"models/link":       "-> " + outside,
		"models/up":         "-> " + up,
		"models/inside":     "-> /srv/eight",
		"proc/meminfo":      "-> " + filepath.Join(outside, "meminfo"),
		"home/ada/.profile": "",
	})
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(outside)), 0o755); err != nil {
		t.Fatal(err)
	}
	writeModel(t, filepath.Join(dir, "srv/eight"), small)
	if err := os.WriteFile(filepath.Join(outside, "recorded.json"), []byte(`{"device": {"source": "nvml"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, known := range map[string]bool{
		"/models/link": false, "/models/up": false, up: false, outside: false, "/../.." + outside: false,
		"/models/inside": true, "../../models/inside": true, "/srv/eight": true,
	} {
		v := view{root: rootOf(dir), getenv: env(), job: trainJob("model", name)}
		v.job.TrainerDir, v.job.Dir = "/home/ada", "/home/ada"
		if p := readPlan(t.Context(), v); p.known != known {
			t.Errorf("%s: known %v, want %v (%s)", name, p.known, known, p.why)
		}
	}
	if m := readMemory(rootOf(dir)); m.err == nil {
		t.Errorf("the memory of a file outside the tree was taken: %v", m.info)
	}
	if err := os.Symlink(filepath.Join(outside, "recorded.json"), filepath.Join(dir, RecordedFile)); err != nil {
		t.Fatal(err)
	}
	if rec, err := ReadRecorded(dir); err != nil || rec.Device != nil {
		t.Errorf("answers of a file outside the tree: %+v, %v", rec, err)
	}
	if same := rootOf(dir).sameFile("/models/link", "/models/up"); same {
		t.Error("two links that lead out are of one file")
	}
}

// What the command names inside a container is not looked for under the same name here.
func TestPathsInsideAContainerAreNotOnesOfTheHost(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "spark", map[string]string{
		"x/t.py": "recipe = NVFP4BlockScaling()\n",
	})
	writeModel(t, filepath.Join(dir, "x/m"), small)
	config := filepath.Join(dir, "x/m/config.json")
	b, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	quant := strings.Replace(string(b), "{", `{"quantization_config": {"quant_algo": "NVFP4"}, `, 1)
	for _, c := range []struct {
		name, script, text, where string
		mount                     bool
	}{
		{"a script", "/x/t.py", string(b), "", false},
		{"a script that a mount shares", "/x/t.py", string(b), "/x/t.py:1: NVFP4BlockScaling", true},
		{"a model", "", quant, "", false},
		{"a model that a mount shares", "", quant, "/x/m/config.json", true},
	} {
		if err := os.WriteFile(config, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		argv := []string{"docker", "run"}
		if c.mount {
			argv = append(argv, "--mount", `type=bind,"source=/x",TARGET=/x`)
		}
		j := &job.Job{
			Argv: append(argv, "img", "python", "/x/t.py"), Dir: "/home/ada", Script: c.script,
			Container: &job.Container{Engine: "docker", Verb: "run", Image: "img"},
			Knobs:     job.Knobs{job.Model: {Value: "/x/m", Source: job.FromArgv}},
		}
		v := view{root: rootOf(dir), getenv: env(), job: j}
		if where, _ := nvfp4Asked(v); where != c.where {
			t.Errorf("%s: NVFP4 asked for in %q, want %q", c.name, where, c.where)
		}
		if kind := modelType(v, readAsked(v)); (kind == "llama") != c.mount {
			t.Errorf("%s: the model is of type %q", c.name, kind)
		}
		if p := readPlan(t.Context(), v); p.known != c.mount {
			t.Errorf("%s: the model is known: %v (%s), want %v", c.name, p.known, p.why, c.mount)
		}
	}
}
