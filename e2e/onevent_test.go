package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// letters are what the command of a test has written to a file, one event a line.
func letters(t *testing.T, path string) []heatEvent {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []heatEvent
	for _, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
		var e heatEvent
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		out = append(out, e)
	}
	return out
}

// TestOnEvent: the command gets what events.jsonl has, in order, one at a time, with the
// run's end when run.json has it; what it prints is in sparkrun.log, secrets in neither.
func TestOnEvent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command := `mkdir lock || echo at the same time >>trouble
cat >>letters
echo "$SPARKRUN_EVENT_KIND $SPARKRUN_EVENT_LEVEL $SPARKRUN_RUN_DIR" >>kinds
[ "$SPARKRUN_EVENT_KIND" != run.end ] || cp "$SPARKRUN_RUN_DIR"/run.json "$SPARKRUN_RUN_DIR"/summary.txt .
echo "posted with $HF_TOKEN"
rmdir lock`
	p := startEnv(t, dir, []string{"HF_TOKEN=hf_aaaabbbbccccddddeeee"}, "--no-preflight", "--no-retry", "--on-event", command,
		"--", "sh", "-c", "echo torch.OutOfMemoryError: CUDA out of memory. hf_aaaabbbbccccddddeeee; exit 1")
	status := p.wait(60 * time.Second)
	if status == 0 {
		t.Errorf("status %d", status)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "trouble")); err == nil {
		t.Errorf("two at once: %s", b)
	}
	var want []string
	for _, e := range heatEvents(t, p) {
		if e.Level == "warn" || e.Level == "error" || e.Kind == "attempt.start" || e.Kind == "attempt.end" || e.Kind == "run.end" {
			want = append(want, e.T+" "+e.Kind+" "+e.Msg)
		}
	}
	var got []string
	for _, e := range letters(t, filepath.Join(dir, "letters")) {
		got = append(got, e.T+" "+e.Kind+" "+e.Msg)
	}
	if len(got) < 3 || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the command was given\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	kinds, err := os.ReadFile(filepath.Join(dir, "kinds"))
	if err != nil || !strings.HasSuffix(string(kinds), "run.end info "+filepath.Join(p.runs, p.id())+"\n") {
		t.Errorf("%v: %s", err, kinds)
	}
	if m := readJSON(t, filepath.Join(dir, "run.json")); m["exit_status"] != float64(status) {
		t.Errorf("at the run's end run.json has the status %v", m["exit_status"])
	}
	if b, err := os.ReadFile(filepath.Join(dir, "summary.txt")); err != nil || len(b) == 0 {
		t.Errorf("summary.txt: %v", err)
	}
	if !fileHas(p.file("sparkrun.log"), "posted with ")() {
		t.Error("its output is not in sparkrun.log")
	}
	for _, f := range []string{p.file("sparkrun.log"), filepath.Join(dir, "letters")} {
		if fileHas(f, "hf_aaaabbbb")() {
			t.Errorf("the secret is in %s", f)
		}
	}
}

// TestOnEventIsNoBurden: a command that fails is told of once, one that hangs ends with the
// run, with everything it has started, and the run goes on all the while.
func TestOnEventIsNoBurden(t *testing.T) {
	t.Parallel()
	t.Run("fails", func(t *testing.T) {
		t.Parallel()
		p := start(t, t.TempDir(), "--no-preflight", "--no-retry", "--on-event", "exit 3", "--", "true")
		if got := p.wait(60 * time.Second); got != 0 {
			t.Errorf("status %d", got)
		}
		n := 0
		for _, e := range heatEvents(t, p) {
			if strings.Contains(e.Msg, "--on-event failed") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("told %d times\nstderr %s", n, p.err)
		}
	})
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		command := `echo "$SPARKRUN_EVENT_KIND" >>kinds; [ "$SPARKRUN_EVENT_KIND" = run.end ] || { sleep 1000 & echo $! >>sleepers; wait; }`
		began := time.Now()
		p := start(t, dir, "--no-preflight", "--no-retry", "--on-event", command, "--", "sh", "-c", "until [ -s sleepers ]; do sleep 0.01; done; echo trained")
		if got := p.wait(60 * time.Second); got != 0 || !strings.Contains(p.out.String(), "trained") {
			t.Errorf("status %d, stdout %s", got, p.out)
		}
		if took := time.Since(began); took > 25*time.Second {
			t.Errorf("the run took %s", took)
		}
		b, err := os.ReadFile(filepath.Join(dir, "kinds"))
		if err != nil || !strings.HasSuffix(string(b), "run.end\n") {
			t.Errorf("the run's end was not told: %v %s", err, b)
		}
		b, err = os.ReadFile(filepath.Join(dir, "sleepers"))
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range strings.Fields(string(b)) {
			until(t, "what the command started is gone", func() bool { _, err := os.Stat("/proc/" + pid); return err != nil })
		}
	})
	t.Run("prints without end, reads nothing", func(t *testing.T) {
		t.Parallel()
		p := start(t, t.TempDir(), "--no-preflight", "--no-retry", "--on-event", "head -c 3000000 /dev/zero | tr '\\0' x", "--", "true")
		if got := p.wait(60 * time.Second); got != 0 {
			t.Errorf("status %d", got)
		}
		if st, err := os.Stat(p.file("sparkrun.log")); err != nil || st.Size() > 200<<10 {
			t.Errorf("sparkrun.log: %v bytes, %v", st.Size(), err)
		}
		if !fileHas(p.file("sparkrun.log"), "bytes more)")() {
			t.Error("the first of its output is not in sparkrun.log")
		}
	})
}
