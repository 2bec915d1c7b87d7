package trainer

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"mvdan.cc/sh/v3/shell"

	"sparkrun/internal/job"
)

var updateCommands = flag.Bool("update", false, "write what the commands under testdata/commands are understood as")

// TestCommands reads real command lines of each trainer's documentation, one
// archive for each profile: CASE/command and CASE/env with files of the case
// below CASE/files, and CASE/want, what sparkrun makes of it all.
func TestCommands(t *testing.T) {
	t.Parallel()
	set, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	archives, err := filepath.Glob("testdata/commands/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]int{}
	for _, name := range archives {
		ar, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		cases, order := splitCases(t, name, ar)
		for _, id := range order {
			c := cases[id]
			tested[strings.TrimSuffix(filepath.Base(name), ".txtar")]++
			t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar")+"/"+id, func(t *testing.T) {
				got := c.run(t, set)
				if *updateCommands {
					c.got = got
					return
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s: %s\n%s", id, c.command, diff)
				}
			})
		}
		if *updateCommands {
			if err := os.WriteFile(name, joinCases(ar, cases), 0o644); err != nil { //nolint:gosec // a test's own golden
				t.Fatal(err)
			}
		}
	}
	for _, name := range set.Names() {
		if least := 3; tested[name] < least {
			t.Errorf("profile %s has %d command lines in testdata/commands, not the %d it needs", name, tested[name], least)
		}
	}
}

// commandCase is one command line with its files.
type commandCase struct {
	command, want, got string
	env                []string
	files              map[string][]byte
}

// splitCases sorts an archive's files into its cases, in the order of the
// archive.
func splitCases(t *testing.T, name string, ar *txtar.Archive) (map[string]*commandCase, []string) {
	t.Helper()
	cases, order := map[string]*commandCase{}, []string(nil)
	for _, f := range ar.Files {
		id, part, ok := strings.Cut(f.Name, "/")
		if !ok {
			t.Fatalf("%s: %s is in no case", name, f.Name)
		}
		c := cases[id]
		if c == nil {
			c = &commandCase{files: map[string][]byte{}}
			cases[id], order = c, append(order, id)
		}
		switch path, isFile := strings.CutPrefix(part, "files/"); {
		case isFile:
			c.files[path] = f.Data
		case part == "command":
			c.command = strings.TrimSpace(string(f.Data))
		case part == "env":
			c.env = strings.Fields(string(f.Data))
		case part == "want":
			c.want = string(f.Data)
		default:
			t.Fatalf("%s: %s is none of command, env, want, files/", name, f.Name)
		}
	}
	return cases, order
}

// joinCases puts the new answers into the archive, each behind the last part of
// its case.
func joinCases(ar *txtar.Archive, cases map[string]*commandCase) []byte {
	out := &txtar.Archive{Comment: ar.Comment}
	for i, f := range ar.Files {
		id, part, _ := strings.Cut(f.Name, "/")
		if part != "want" {
			out.Files = append(out.Files, f)
		}
		last := true
		for _, later := range ar.Files[i+1:] {
			if strings.HasPrefix(later.Name, id+"/") {
				last = false
			}
		}
		if last {
			out.Files = append(out.Files, txtar.File{Name: id + "/want", Data: []byte(cases[id].got)})
		}
	}
	return txtar.Format(out)
}

// run sets the case up in a folder of its own and writes down what is made of
// it. The folder reads $DIR.
func (c *commandCase) run(t *testing.T, set *Set) string {
	t.Helper()
	dir := t.TempDir()
	for path, data := range c.files {
		full := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil { //nolint:gosec // test files
			t.Fatal(err)
		}
		if err := os.WriteFile(full, data, 0o644); err != nil { //nolint:gosec // test files
			t.Fatal(err)
		}
	}
	argv, err := shell.Fields(c.command, func(name string) string {
		switch name {
		case "PWD", "HOME":
			return dir
		case "IFS":
			return ""
		}
		return strings.ToLower(name)
	})
	if err != nil {
		t.Fatal(err)
	}
	env := append([]string{"PATH=" + filepath.Join(dir, "bin"), "HOME=" + dir}, c.env...)
	j, err := set.Understand(argv, dir, env, nil)
	if err != nil {
		return "error: " + strings.ReplaceAll(err.Error(), dir, "$DIR") + "\n"
	}
	var b strings.Builder
	describe(&b, set, j)
	for _, changes := range tries(j) {
		c.try(&b, set, j, env, changes)
	}
	return strings.ReplaceAll(b.String(), dir, "$DIR")
}

// describe writes what was understood.
func describe(b *strings.Builder, set *Set, j job.Job) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(b, "%s: %s\n", name, value)
		}
	}
	line("profile", j.Profile)
	line("launchers", strings.Join(j.Launchers, " "))
	line("family", j.Family)
	if j.Procs > 0 {
		line("procs", strconv.Itoa(j.Procs))
	}
	if j.Nodes > 1 {
		line("nodes", strconv.Itoa(j.Nodes))
	}
	if j.Image {
		line("image", "yes")
	}
	line("unsure", j.Unsure)
	line("opaque", j.Opaque)
	line("no shim", j.ShimRefused)
	line("self-shrinks", j.SelfShrinks)
	line("resume", strings.TrimSpace(j.Resume.How+" "+j.Resume.Why))
	for _, name := range j.Knobs.Names() {
		s := j.Knobs[name]
		fmt.Fprintf(b, "%s = %s (%s: %s)", name, s.Value, s.Source, s.Where)
		if len(s.Choices) > 0 {
			fmt.Fprintf(b, " of %s", strings.Join(s.Choices, ","))
		}
		b.WriteString("\n")
	}
	fixed := set.Fixed(j)
	for _, name := range slices.Sorted(maps.Keys(fixed)) {
		fmt.Fprintf(b, "%s is not turned: %s\n", name, fixed[name])
	}
	for _, n := range j.Notes {
		line("note", n)
	}
}

// tries are the changes that a rung would ask for: half the length, half the
// micro-batch, and the next method.
func tries(j job.Job) [][]Change {
	var all [][]Change
	half := func(k job.Knob) (Change, bool) {
		s, ok := j.Knobs[k]
		n, err := strconv.ParseInt(s.Value, 10, 64)
		if !ok || err != nil || n < 2 || n%2 != 0 {
			return Change{}, false
		}
		return Change{Knob: k, From: s.Value, To: strconv.FormatInt(n/2, 10)}, true
	}
	if c, ok := half(job.SeqLen); ok {
		all = append(all, []Change{c})
	}
	if c, ok := half(job.MicroBatch); ok {
		batch := []Change{c}
		if s, ok := j.Knobs[job.Accumulation]; ok && j.Family == "per-device" {
			if n, err := strconv.ParseInt(s.Value, 10, 64); err == nil {
				batch = append(batch, Change{Knob: job.Accumulation, From: s.Value, To: strconv.FormatInt(2*n, 10)})
			}
		}
		all = append(all, batch)
	}
	if m := j.Knobs[job.Method].Value; m == "qlora" || m == "full" {
		all = append(all, []Change{{Knob: job.Method, From: m, To: "lora"}})
	}
	return all
}

// try writes the command of one attempt, or why there is none.
func (c *commandCase) try(b *strings.Builder, set *Set, j job.Job, env []string, changes []Change) {
	var what []string
	for _, ch := range changes {
		what = append(what, fmt.Sprintf("%s %s -> %s", ch.Knob, ch.From, ch.To))
	}
	fmt.Fprintf(b, "\n%s\n", strings.Join(what, ", "))
	for _, ch := range set.Companions(j, changes) {
		fmt.Fprintf(b, "with: %s -> %s (%s)\n", ch.Knob, ch.To, ch.Reason)
	}
	r, err := set.Rewrite(j, Request{Changes: changes, RunID: "r1", Attempt: 2, AttemptDir: filepath.Join(j.Dir, "attempt"), Shim: "auto", Env: env})
	if err != nil {
		fmt.Fprintf(b, "refused: %v\n", err)
		return
	}
	if !slices.Equal(r.Argv, j.Argv) {
		fmt.Fprintf(b, "argv: %s\n", quoteWords(r.Argv))
	}
	for _, d := range r.Diff {
		fmt.Fprintf(b, "diff: %s\n", d)
	}
	if r.Shim != nil {
		b.WriteString("shim: yes\n")
	}
	for _, f := range r.Files {
		if f.Original == "" {
			continue // the shim's own files
		}
		fmt.Fprintf(b, "file: %s from %s\n", f.Path, f.Original)
		before, err := os.ReadFile(f.Original)
		if err != nil {
			fmt.Fprintf(b, "original: %v\n", err)
			continue
		}
		changedLines(b, string(before), string(f.Content))
	}
}

// changedLines writes the lines that one text has and the other has not.
func changedLines(b *strings.Builder, before, after string) {
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	for len(old) > 0 && len(now) > 0 && old[0] == now[0] {
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && old[len(old)-1] == now[len(now)-1] {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	for _, l := range old {
		if !slices.Contains(now, l) {
			fmt.Fprintf(b, "- %s\n", l)
		}
	}
	for _, l := range now {
		if !slices.Contains(old, l) {
			fmt.Fprintf(b, "+ %s\n", l)
		}
	}
}

// quoteWords writes words as a person would type them.
func quoteWords(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n'\"$&;|<>(){}*?") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		out[i] = w
	}
	return strings.Join(out, " ")
}
