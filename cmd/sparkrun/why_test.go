package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// whyRun runs sparkrun why in a folder and returns its status and what it printed.
func whyRun(t *testing.T, env map[string]string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	files := [2]*os.File{}
	for i := range files {
		f, err := os.Create(filepath.Join(dir, string(rune('a'+i))))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	status = run(append([]string{"why"}, args...), environment{
		stdin: os.Stdin, stdout: files[0], stderr: files[1],
		getenv: func(name string) string { return env[name] },
	})
	var text [2]string
	for i, f := range files {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		text[i] = string(b)
	}
	return status, text[0], text[1]
}

// A run.json that is one is a run, and one that is not is a log.
func TestWhyTellsRunsFromLogs(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	env := map[string]string{"XDG_STATE_HOME": dir}
	file := filepath.Join(dir, "run.json")
	if err := os.WriteFile(file, []byte("no JSON at all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, out, errs := whyRun(t, env, file, "--exit", "1"); status != 0 || !strings.Contains(out, "not out of memory") {
		t.Errorf("a log: status %d\n%s%s", status, out, errs)
	}
	manifest := `{"schema":"sparkrun.run/1","id":"20260714-100000-train-abcd","state":"blocked","host":{"name":"elsewhere"}}`
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{file, dir} {
		status, out, errs := whyRun(t, env, what)
		if status != 0 || !strings.Contains(out, "the command was never started") || !strings.Contains(out, "(blocked)") {
			t.Errorf("%s: status %d\n%s%s", what, status, out, errs)
		}
	}
	if status, _, errs := whyRun(t, env, dir, "--attempt", "1"); status != 125 || !strings.Contains(errs, "never started") {
		t.Errorf("attempt 1: status %d, %s", status, errs)
	}
	if status, _, errs := whyRun(t, env, dir, "--attempt", "-1"); status != 125 || !strings.Contains(errs, "count from 1") {
		t.Errorf("attempt -1: status %d, %s", status, errs)
	}
}

func TestWhyCompletion(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	offer := runsAndFiles(environment{getenv: func(name string) string { return map[string]string{"XDG_STATE_HOME": dir}[name] }})
	if names, _ := offer(nil, nil, ""); len(names) != 0 {
		t.Errorf("without runs it offers %q", names)
	}
	id := "20260714-100000-train-abcd"
	if err := os.MkdirAll(filepath.Join(dir, "sparkrun-train", "sparkrun-runs", id), 0o700); err != nil {
		t.Fatal(err)
	}
	names, _ := offer(nil, nil, "")
	if got := strings.Join(names, " "); !strings.Contains(got, "latest") || !strings.Contains(got, id) || !strings.Contains(got, "train") {
		t.Errorf("it offers %q", names)
	}
	if names, _ = offer(nil, nil, "2026"); len(names) != 1 || names[0] != id {
		t.Errorf("for 2026 it offers %q", names)
	}
	if names, _ = offer(nil, []string{"one"}, ""); len(names) != 0 {
		t.Errorf("a second word is offered: %q", names)
	}
}
