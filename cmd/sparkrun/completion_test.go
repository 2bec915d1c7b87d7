package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// complete asks as the shell does and returns the values without their
// descriptions, then the directive.
func complete(t *testing.T, env map[string]string, args ...string) []string {
	t.Helper()
	var out bytes.Buffer
	root := newRoot(environment{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: func(n string) string { return env[n] }})
	root.SetArgs(append([]string{"__complete"}, args...))
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		value, _, _ := strings.Cut(l, "\t")
		got = append(got, value)
	}
	return got
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine.yaml")
	write(t, mine, "name: mine\nrungs:\n  - {name: half, does: [length]}\n")
	const files, noFiles, folders = ":0", ":4", ":16"
	for _, c := range []struct {
		env  map[string]string
		args []string
		want []string
	}{
		{nil, []string{"--ladder", ""}, []string{"spark", "preserving", files}},
		{nil, []string{"run", "--ladder", "pre"}, []string{"preserving", files}},
		{nil, []string{"--ladder="}, []string{"spark", "preserving", files}},
		{nil, []string{"--drop-caches", ""}, []string{"auto", "system", "files", "never", noFiles}},
		{nil, []string{"run", "--drop-caches", "s"}, []string{"system", noFiles}},
		{nil, []string{"--deny", ""}, []string{"drop-caches", "shorter-packing", "bf16-lora", noFiles}},
		{nil, []string{"--allow", "b"}, []string{"bf16-lora", noFiles}},
		{nil, []string{"run", "--deny", "bf16-lora,"}, []string{"bf16-lora,drop-caches", "bf16-lora,shorter-packing", noFiles}},
		{nil, []string{"--ladder", "preserving", "--deny", ""}, []string{"drop-caches", "grad-checkpointing", "micro-batch", "shorter-packing", "bf16-lora", noFiles}},
		{nil, []string{"--ladder", mine, "--deny", ""}, []string{"half", noFiles}},
		{map[string]string{"SPARKRUN_LADDER": mine}, []string{"--deny", ""}, []string{"half", noFiles}},
		{nil, []string{"--ladder", "nonsense", "--deny", ""}, []string{noFiles}},
		{nil, []string{"preflight", "--format", ""}, []string{"table", "lines", "json", noFiles}},
		{nil, []string{"preflight", "--watch", ""}, []string{"15m", "1m", noFiles}},
		{nil, []string{"sample", "--for", "1"}, []string{"10m", noFiles}},
		{nil, []string{"plan", "--budget", ""}, []string{"110GB", noFiles}},
		{nil, []string{"--name", ""}, []string{noFiles}},
		{nil, []string{"--hang-after", ""}, []string{"3m", "0", noFiles}},
		{nil, []string{"--max-slowdown", ""}, []string{"1.5:30", noFiles}},
		{nil, []string{"preflight", "--format", "l"}, []string{"lines", noFiles}},
		{nil, []string{"preflight", "--profiles", ""}, []string{folders}},
		{nil, []string{"--runs-dir", ""}, []string{folders}},
		{nil, []string{"sample", ""}, []string{"30", "5", "1", noFiles}},
		{nil, []string{"sample", "30", ""}, []string{files}},
		{nil, []string{"sample", "--stop", ""}, []string{files}},
		// What is behind the command is the command's own: files, as ever.
		{nil, []string{"--", "python", ""}, []string{files}},
	} {
		if diff := cmp.Diff(c.want, complete(t, c.env, c.args...)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
	}
}

// Every flag that takes a word has its values, or an example of their form, completed, or
// is known to take a file: a number is none.
func TestEveryChoiceIsCompleted(t *testing.T) {
	t.Parallel()
	// Files, or a command of the shell.
	free := []string{"thermal-config", "on-event", "system", "telemetry", "report", "report-fd"}
	root := newRoot(environment{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: func(string) string { return "" }})
	for _, c := range append([]*cobra.Command{root}, root.Commands()...) {
		if c.Hidden {
			continue
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			_, has := c.GetFlagCompletionFunc(f.Name)
			if want := f.Value.Type() != "bool" && !slices.Contains(free, f.Name); has != want {
				t.Errorf("%s --%s: completed %v, want %v", c.CommandPath(), f.Name, has, want)
			}
		})
	}
}
