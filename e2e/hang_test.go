package e2e

import (
	"testing"
	"time"
)

// TestHangThatComputes: silence after an out-of-memory line is told at once and borne
// ten times as long from a command that computes, which may be an evaluation that
// prints nothing; what it prints then counts as a sign of life.
func TestHangThatComputes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		seconds, end string
		got          int
	}{
		"and comes back":       {"2", "exited", 0},
		"and never comes back": {"60", "hang", 124},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			script := writeScript(t, dir, "train.py", `
import sys, time
print("step 1 loss 2.5", flush=True)
print("Traceback (most recent call last):\n  File \"train.py\", line 3, in step\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    pass
print("step 2 loss 2.4\nstep 3 loss 2.3", flush=True)
`)
			p := start(t, dir, "--no-preflight", "--no-retry", "--hang-after", "700ms", "--", "python3", script, tt.seconds)
			until(t, "the warning", fileHas(p.file("events.jsonl"), "still compute"))
			if got := p.wait(90 * time.Second); got != tt.got {
				t.Errorf("status %d, want %d\nstderr %s", got, tt.got, p.err)
			}
			m := readJSON(t, p.file("run.json"))
			if end := m["attempts"].([]any)[0].(map[string]any)["end_kind"]; end != tt.end {
				t.Errorf("end %v, want %s", end, tt.end)
			}
		})
	}
}
