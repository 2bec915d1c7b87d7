package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"sparkrun/supervisor/guard"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestSettingsOrder: flag before environment before ./sparkrun.yaml before the
// user's config.yaml before built-in, each with where it comes from.
func TestSettingsOrder(t *testing.T) {
	t.Parallel()
	dir, conf := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "sparkrun.yaml"), "max-attempts: 3\ngrace: 3s\nknob: {seq_len: 4096, micro_batch: 8}\n")
	write(t, filepath.Join(conf, "sparkrun-train", "config.yaml"), "max-attempts: 4\ngrace: 4s\nname: user\ndeny: [bf16-lora]\n")
	env := map[string]string{"XDG_CONFIG_HOME": conf, "SPARKRUN_GRACE": "2s", "SPARKRUN_MAX_ATTEMPTS": "2"}
	e := environment{getenv: func(n string) string { return env[n] }}
	var f runFlags
	c := &cobra.Command{}
	f.add(c.Flags())
	if err := c.Flags().Parse([]string{"--max-attempts", "1"}); err != nil {
		t.Fatal(err)
	}
	all, err := resolve(c.Flags(), e, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"max-attempts": "1 flag --max-attempts", "grace": "2s SPARKRUN_GRACE",
		"name": "user " + filepath.Join(conf, "sparkrun-train", "config.yaml"), "quiet": "false built-in",
		"knob": "[micro_batch=8,seq_len=4096] " + filepath.Join(dir, "sparkrun.yaml"),
		"deny": "[bf16-lora] " + filepath.Join(conf, "sparkrun-train", "config.yaml"),
	}
	for _, o := range all {
		if w, ok := want[o.name]; ok && w != o.value+" "+o.from {
			t.Errorf("%s is %s %s, want %s", o.name, o.value, o.from, w)
		}
	}
	if f.maxAttempts != 1 || f.name != "user" {
		t.Errorf("the values did not reach the options: %+v", f)
	}
}

// TestSettingsAreTakenWordForWord: what stands in the file is what would be typed,
// not what a number or a truth value of it would print as.
func TestSettingsAreTakenWordForWord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "sparkrun.yaml"), `
knob:
  lora_lr: 1e-4
  learning_rate: 2E-05
  seq_len: 4_096
  micro_batch: 010
  ratio: 0.10
  big: 1e21
  load_in_4bit: True
  packing: yes
  when: 2026-07-14
  text: "on"
deny: [bf16-lora, 1.0]
name: 007
quiet: TRUE
strict: false
min-free: 1e9
grace: &g 45s
interval: *g
max-attempts: 0x10
runs-dir:
cgroup: ~
`)
	var f runFlags
	c := &cobra.Command{}
	f.add(c.Flags())
	if _, err := resolve(c.Flags(), environment{getenv: func(string) string { return "" }}, dir); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"big=1e21", "learning_rate=2E-05", "load_in_4bit=True", "lora_lr=1e-4", "micro_batch=010", "packing=yes",
		"ratio=0.10", "seq_len=4_096", "text=on", "when=2026-07-14",
	}
	if diff := cmp.Diff(want, f.knobs); diff != "" {
		t.Errorf("knobs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"bf16-lora", "1.0"}, f.deny); diff != "" {
		t.Errorf("deny (-want +got):\n%s", diff)
	}
	if f.name != "007" || !f.quiet || f.strict || f.minFree != "1e9" || f.grace != 45*time.Second || f.interval != f.grace || f.maxAttempts != 16 || f.runsDir != "" || f.cgroup != "" {
		t.Errorf("%+v", f)
	}
}

func TestSettingsFileForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                       "",
		"# nothing yet\n":                        "",
		"---\n# nothing yet\n":                   "",
		"knob: [a=1, b=2e-3]\n":                  "a=1 b=2e-3",
		"knob: a=1e-4\n":                         "a=1e-4",
		"knob: []\n":                             "",
		"knob: {<<: {a: 1e-4, b: 1}, b: 2.50}\n": "a=1e-4 b=2.50",
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "sparkrun.yaml"), text)
		var f runFlags
		c := &cobra.Command{}
		f.add(c.Flags())
		if _, err := resolve(c.Flags(), environment{getenv: func(string) string { return "" }}, dir); err != nil || strings.Join(f.knobs, " ") != want {
			t.Errorf("%q: %q, %v, want %q", text, f.knobs, err, want)
		}
	}
}

// A folder of profiles that the user named must be there; the one beside the
// settings need not.
func TestProfileFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write(t, file, "")
	e := environment{getenv: func(n string) string { return map[string]string{"XDG_CONFIG_HOME": filepath.Join(dir, "none")}[n] }}
	if got, err := profileDirs(e, []string{dir}); err != nil || !cmp.Equal(got, []string{filepath.Join(dir, "none/sparkrun-train/trainers"), dir}) {
		t.Errorf("%v %v", got, err)
	}
	for _, c := range []struct{ dir, want string }{
		{filepath.Join(dir, "nodir"), "no such folder"}, {file, "it is no folder"}, {file + "/x", "cannot be looked at"},
	} {
		if got, err := profileDirs(e, []string{dir, c.dir}); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.dir) {
			t.Errorf("%s: %v %v", c.dir, got, err)
		}
	}
}

func TestSettingsErrorsAreSentences(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"max-atempts: 3\n":                   `no setting is called "max-atempts"`,
		"max-attempts: few\n":                `"few" is no value for max-attempts`,
		"max-attempts: [\n":                  "sparkrun.yaml:",
		"- a\n":                              "sparkrun.yaml:1:",
		"quiet: maybe\n":                     `"maybe" is no value for quiet`,
		"deny: [[a]]\n":                      "sparkrun.yaml:1: deny: a list or a map has single values only",
		"\ndeny: [a, ]\nknob: {a: {b: 1}}\n": "sparkrun.yaml:3: knob: a: a list or a map has single values only",
		"deny: [a, ~]\n":                     "sparkrun.yaml:1: deny: an entry is empty",
		"knob: {a: }\n":                      "sparkrun.yaml:1: knob: a: an entry is empty",
		"knob: {a: 1, a: 2}\n":               "already defined",
		"name: a\nname: b\n":                 "sparkrun.yaml:2:",
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "sparkrun.yaml"), text)
		var f runFlags
		c := &cobra.Command{}
		f.add(c.Flags())
		_, err := resolve(c.Flags(), environment{getenv: func(string) string { return "" }}, dir)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{"0B": 0, "0": 0, "1048576": 1 << 20, "2GiB": 2 << 30, "500MB": 500e6, "1.5GiB": 3 << 29, "1 GiB": 1 << 30} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%s: %d %v", text, got, err)
		}
	}
	for _, text := range []string{"", "lots", "-1GiB", "1XB", "NaN", "Inf", "1e99", "GiB", "1 2GiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q read as %d", text, got)
		}
	}
}

func TestKnobs(t *testing.T) {
	t.Parallel()
	got, err := parseKnobs([]string{"seq_len=4096", "x2=a=b"})
	if err != nil || got["seq_len"] != "4096" || got["x2"] != "a=b" {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"seq_len", "=1", "seq_len=", "Seq=1", "seq-len=1", "a b=1"} {
		if got, err := parseKnobs([]string{bad}); err == nil {
			t.Errorf("%q read as %v", bad, got)
		}
	}
}

// A settings file that is a pipe would be waited for without end.
func TestSettingsFromAPipeAreRefused(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "sparkrun.yaml")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSettings(pipe); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Error(err)
	}
}

func TestGuardFlags(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, floor, soft, cotenant string
		want                        guard.Options
		err                         string
	}{
		{"built-in", "3%", "13%", "kill", guard.Options{HardPct: 3, SoftPct: 13, OnCotenant: "kill"}, ""},
		{"sizes", "4GiB", "16GiB", "warn", guard.Options{HardKiB: 4 << 20, SoftKiB: 16 << 20, OnCotenant: "warn"}, ""},
		{"only the floor raised", "20%", "13%", "kill", guard.Options{HardPct: 20, SoftPct: 20, OnCotenant: "kill"}, ""},
		{"soft below hard", "20%", "15%", "kill", guard.Options{}, "soft floor lies below"},
		{"sizes the wrong way round", "16GiB", "4GiB", "kill", guard.Options{}, "soft floor lies below"},
		{"no share", "0%", "13%", "kill", guard.Options{}, "no share"},
		{"a share of everything", "100%", "13%", "kill", guard.Options{}, "no share"},
		{"too large a share", "60%", "13%", "kill", guard.Options{}, "makes no sense"},
		{"not a number", "NaN%", "13%", "kill", guard.Options{}, "no share"},
		{"a bare number", "3", "13%", "kill", guard.Options{}, "--no-guard"},
		{"words", "some", "13%", "kill", guard.Options{}, "--guard-floor"},
		{"soft in words", "3%", "some", "kill", guard.Options{}, "--guard-soft"},
		{"co-tenant", "3%", "13%", "ask", guard.Options{}, "kill or warn"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := runFlags{guardFloor: tt.floor, guardSoft: tt.soft, guardCotenant: tt.cotenant}
			got, err := f.guardOptions()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

// The settings of a run count for every command that judges one, and nothing else does:
// a file that is good for plan must not end a run.
func TestOnlySettingsOfARunAreSettings(t *testing.T) {
	t.Parallel()
	e := environment{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: func(string) string { return "" }}
	root := newRoot(e)
	var run []string
	root.Flags().VisitAll(func(f *pflag.Flag) { run = append(run, f.Name) })
	for _, name := range []string{"run", "explain", "plan", "preflight"} {
		c, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range run {
			if c.Flags().Lookup(flag) == nil && flag != "help" {
				t.Errorf("%s does not know the setting %s, which a settings file may hold", name, flag)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			dir := t.TempDir()
			write(t, filepath.Join(dir, settingsFile), f.Name+":\n")
			_, err := resolve(c.Flags(), e, dir)
			if own := !slices.Contains(run, f.Name); own != (err != nil) {
				t.Errorf("%s --%s, no setting of a run %v: %v", name, f.Name, own, err)
			}
			// Nor does the environment hold what only one command has.
			set := environment{getenv: func(n string) string {
				if n == "SPARKRUN_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")) {
					return "12345"
				}
				return ""
			}}
			before := f.Value.String()
			if _, _ = resolve(c.Flags(), set, t.TempDir()); !slices.Contains(run, f.Name) && f.Value.String() != before {
				t.Errorf("%s --%s came from the environment", name, f.Name)
			}
		})
	}
}

func TestColours(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		terminal bool
		env      map[string]string
		want     bool
	}{
		{true, nil, true},
		{false, nil, false},
		{true, map[string]string{"NO_COLOR": "1"}, false},
		{true, map[string]string{"TERM": "dumb"}, false},
		{true, map[string]string{"TERM": "xterm-256color"}, true},
	} {
		if got := colourful(c.terminal, func(n string) string { return c.env[n] }); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
