package shim

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// attempt is an attempt's folder with the shim in it, and a Python to run below it.
type attempt struct {
	t      *testing.T
	plan   Plan
	dir    string   // the attempt's folder
	work   string   // the training's working folder
	python string   // interpreter
	libs   []string // folders with the libraries the training imports
	env    []string
}

// newAttempt installs the shim as a supervisor would.
func newAttempt(t *testing.T, p Plan, libs ...string) *attempt {
	t.Helper()
	a := &attempt{t: t, plan: p, dir: filepath.Join(t.TempDir(), "attempts", "2"), work: t.TempDir(), python: "python3"}
	if _, err := exec.LookPath(a.python); err != nil {
		t.Skip("needs python3")
	}
	for _, lib := range libs {
		dir, err := filepath.Abs(filepath.Join("testdata", lib))
		if err != nil {
			t.Fatal(err)
		}
		a.libs = append(a.libs, dir)
	}
	install(t, p, a.dir)
	return a
}

func install(t *testing.T, p Plan, dir string) {
	t.Helper()
	files, err := p.Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Path, f.Content, f.Mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, RecordDir), 0o755); err != nil {
		t.Fatal(err)
	}
}

// environ is the training's environment: with the shim, or as it would be without.
func (a *attempt) environ(shim bool) []string {
	var env []string
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); name != "PYTHONPATH" && name != PlanVar && name != "RANK" {
			env = append(env, kv)
		}
	}
	path := strings.Join(a.libs, ":")
	env = append(env, "PYTHONDONTWRITEBYTECODE=1")
	if path != "" {
		env = append(env, "PYTHONPATH="+path)
	}
	if shim {
		ours, err := a.plan.Env(a.dir, path)
		if err != nil {
			a.t.Fatal(err)
		}
		env = append(env, ours...)
	}
	return append(env, a.env...)
}

// same compares what two processes did, but for the time they took.
func same(a, b result) string {
	a.took, b.took = 0, 0
	return cmp.Diff(a, b, cmp.AllowUnexported(result{}))
}

// result is what a Python process did.
type result struct {
	status         int
	stdout, stderr string
	took           time.Duration
}

func (a *attempt) run(shim bool, args ...string) result {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.python, args...)
	cmd.Dir, cmd.Env = a.work, a.environ(shim)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		a.t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String(), time.Since(began)}
}

// script writes a training script and returns its path.
func (a *attempt) script(text string) string {
	a.t.Helper()
	path := filepath.Join(a.work, "train.py")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// prints runs a training script with the shim, demands what it prints and that nothing
// went wrong, and returns the record.
func (a *attempt) prints(want, text string) Record {
	a.t.Helper()
	got := a.run(true, a.script(text))
	rec := a.record()
	if got.status != 0 || got.stderr != "" || strings.TrimSpace(got.stdout) != strings.TrimSpace(want) {
		a.t.Errorf("status %d, stderr %q; printed\n%s\nwant\n%s\nrecord %+v", got.status, got.stderr, got.stdout, want, rec)
	}
	if len(rec.Trouble) > 0 || len(rec.Skipped) > 0 {
		a.t.Errorf("trouble %q, skipped %q", rec.Trouble, rec.Skipped)
	}
	if !rec.Loaded {
		a.t.Error("the shim was not loaded")
	}
	return rec
}

func (a *attempt) record() Record {
	a.t.Helper()
	rec, err := Read(a.dir)
	if err != nil {
		a.t.Fatal(err)
	}
	return rec
}

// saw demands one entry of the record.
func saw(t *testing.T, r Record, want Seen) {
	t.Helper()
	for _, s := range r.Seen {
		if s == want {
			return
		}
	}
	t.Errorf("the record has no %+v in\n%+v", want, r.Seen)
}
