package runlog

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

func TestManifestComesBackAsItWas(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	wall := time.Date(2026, 7, 14, 10, 0, 0, 123e6, time.FixedZone("", 7200))
	clk := clock.Restore(wall, 5*time.Hour)
	code, dirty, status := 1, true, 75
	end := MomentOf(clk, wall.Add(90*time.Second))
	m := &Manifest{
		ID: d.ID, Name: "train", Argv: []string{"python", "train.py"}, Cwd: "/p", Env: map[string]string{"A": "<b>"},
		Git: &GitState{Commit: "abc", Dirty: &dirty}, Hashes: map[string]string{"train.py": "00"},
		Host:  Host{Name: "h", BootID: "b", MemTotalKiB: 128 << 20, CPUs: 20},
		Start: StartOf(clk), State: StateExhausted,
		Pending: &Pending{Attempt: 2, Rungs: []string{"shorter-packing"}, Effect: "start"},
		Attempts: []AttemptRecord{{
			N: 1, Knobs: job.Knobs{job.SeqLen: {Value: "4096", Source: job.FromArgv, Where: "--max_length"}},
			Start: MomentOf(clk, wall), End: &end, DurationS: sample.Known(90), EndKind: EndExited,
			Exit: &Exit{Code: &code, Status: 1}, Verdict: &VerdictSummary{Verdict: "oom", Kind: "cuda"},
			Loss: Span{First: sample.Known(2.5)}, Log: "attempts/1/output.log",
		}},
		ExitStatus: &status, EndedBy: ByChild, Summary: Summary{HottestC: sample.Known(91)}, SupervisorPID: 7,
	}
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	got, err := ReadManifest(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	m.Schema = ManifestSchema
	eq := cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })
	if diff := cmp.Diff(m, got, eq); diff != "" {
		t.Error(diff)
	}
	if back := got.Start.Clock(); !back.Wall.Equal(wall) || back.Boot != clk.Boot || clock.Format(back.Wall) != clock.Format(wall) {
		t.Errorf("the clock came back as %+v", back)
	}
	data := string(read(t, d.File(ManifestFile)))
	for _, want := range []string{`"t": "2026-07-14T10:01:30.123+02:00"`, `"mono_s": 90`, `"last": null`, `"<b>"`} {
		if !strings.Contains(data, want) {
			t.Errorf("run.json has no %s:\n%s", want, data)
		}
	}
	if info, err := os.Stat(d.File(ManifestFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestReadManifestSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), ManifestFile)
	for data, want := range map[string]string{
		"": "is empty", "{": "unexpected end", `{"schema":"sparkrun.run/9"}`: `schema "sparkrun.run/9"`,
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadManifest(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: got %v", data, err)
		}
	}
}

func gitIn(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "git", append([]string{"-c", "user.name=n", "-c", "user.email=e@example.org"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func TestGit(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	dir := t.TempDir()
	if _, ok := Git(dir); ok {
		t.Error("a plain folder is no repository")
	}
	gitIn(t, dir, "init", "-q", "-b", "main")
	if _, ok := Git(dir); ok {
		t.Error("a repository without a commit has no state to name")
	}
	write := func(name string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(time.Now().String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("train.py")
	gitIn(t, dir, "add", ".")
	gitIn(t, dir, "commit", "-qm", "first")
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	state := func() GitState {
		t.Helper()
		var s GitState
		// On a machine busy with other tests 300 ms may not be enough.
		eventually(t, "git's answer", func() bool {
			var ok bool
			s, ok = Git(sub)
			return ok && s.Dirty != nil
		})
		return s
	}
	if s := state(); *s.Dirty || s.Branch != "main" || len(s.Commit) != 40 {
		t.Errorf("clean: %+v", s)
	}
	write("sub/sparkrun-runs/x/run.json")
	if s := state(); *s.Dirty {
		t.Error("a run directory counts as dirty")
	}
	write("train.py")
	if s := state(); !*s.Dirty {
		t.Error("a changed file does not count as dirty")
	}
}

func TestHashFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := HashFile(path)
	// FIPS 180-2, appendix B.1.
	if err != nil || got != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("got %s, %v", got, err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{fifo, dir, filepath.Join(dir, "none")} {
		if _, err := HashFile(bad); err == nil {
			t.Errorf("%s was hashed", bad)
		}
	}
}

// A pipe in the place of run.json must not hold whoever looks for runs.
func TestReadManifestOfAPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, ManifestFile), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := ReadManifest(dir)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("a pipe was read as a manifest")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("reading hangs")
	}
}
