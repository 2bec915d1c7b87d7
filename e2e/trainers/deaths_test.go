package trainers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// verdictFile is what the tests read of verdict.json (schema sparkrun.verdict/1).
type verdictFile struct {
	Verdict    string   `json:"verdict"`
	Kind       string   `json:"kind"`
	Reason     string   `json:"reason"`
	Confidence string   `json:"confidence"`
	Phase      string   `json:"phase"`
	Lever      string   `json:"lever"`
	Advice     []string `json:"advice"`
	Evidence   []struct {
		Source string `json:"source"`
		Weight string `json:"weight"`
		Text   string `json:"text"`
	} `json:"evidence"`
}

// decides says whether evidence from a source decides and says text.
func (v *verdictFile) decides(source, text string) bool {
	for _, e := range v.Evidence {
		if e.Source == source && e.Weight == "decides" && strings.Contains(e.Text, text) {
			return true
		}
	}
	return false
}

// ending is how sparkrun and the attempt end.
type ending struct {
	status   int
	by, kind string // ended_by and end_kind
}

// usedUp is the end of a Python program that ran out of memory and has no settings
// that sparkrun could turn.
var usedUp = ending{status: 75, by: "child", kind: "exited"}

// die runs a death of torch_deaths.py, which must be the only one and end as wanted,
// and returns the verdict. before is what starts sparkrun, if not the test.
func die(t *testing.T, before, flags []string, how string, want ending, meanwhile func(dir string)) verdictFile {
	t.Helper()
	py, bin, dir := python(t), sparkrun(t), t.TempDir()
	if meanwhile != nil {
		done := make(chan struct{})
		go func() { defer close(done); meanwhile(dir) }()
		defer func() { <-done }()
	}
	argv := append(append([]string{}, before...), bin, "--no-preflight", "--no-guard")
	argv = append(append(argv, flags...), "--", py, here(t, "../deaths/torch_deaths.py"), how)
	status, out := run(t, dir, argv...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output of the run:\n%s", out)
		}
	})
	latest := filepath.Join(dir, "runs", "latest")
	var v verdictFile
	raw, err := os.ReadFile(filepath.Join(latest, "attempts", "1", "verdict.json"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("verdict.json: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("verdict.json: %s", raw)
		}
	})
	var r struct {
		ExitStatus int    `json:"exit_status"`
		EndedBy    string `json:"ended_by"`
		Attempts   []struct {
			EndKind string `json:"end_kind"`
		} `json:"attempts"`
	}
	manifest, err := os.ReadFile(filepath.Join(latest, "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(manifest, &r); err != nil {
		t.Fatalf("run.json: %v", err)
	}
	starts, _ := os.ReadFile(filepath.Join(dir, "starts")) // empty where there is none
	if n := strings.Count(string(starts), "\n"); n != 1 || len(r.Attempts) != 1 {
		t.Fatalf("started %d times, %d attempts in run.json, want 1: nothing can be turned here", n, len(r.Attempts))
	}
	if status != want.status || r.ExitStatus != status || r.EndedBy != want.by || r.Attempts[0].EndKind != want.kind {
		t.Errorf("exit status %d, in run.json %d, ended_by %s, end_kind %s; want %+v", status, r.ExitStatus, r.EndedBy, r.Attempts[0].EndKind, want)
	}
	return v
}

// torch's CPU allocator has its own words for what the system refused.
func TestTorchAllocatorDeath(t *testing.T) {
	v := die(t, nil, nil, "allocator", usedUp, nil)
	if v.Verdict != "oom" || v.Kind != "host-alloc" || v.Confidence != "high" || v.Phase != "train" {
		t.Errorf("verdict %s (%s%s), %s, phase %s", v.Verdict, v.Kind, v.Reason, v.Confidence, v.Phase)
	}
	if !v.decides("output", "DefaultCPUAllocator: can't allocate memory") {
		t.Error("torch's message does not decide")
	}
}

// The kernel kills a worker of the DataLoader in a memory cgroup: the record is what
// tells it from the next test. No rung makes a worker smaller, so the status is the
// command's own.
func TestDataLoaderWorkerKilledByKernel(t *testing.T) {
	v := die(t, nil, []string{"--cgroup", memoryCgroup(t, 1500<<20)}, "worker-greedy", ending{status: 1, by: "child", kind: "exited"}, nil)
	if v.Verdict != "oom" || v.Kind != "cgroup-oom" || v.Confidence != "high" {
		t.Errorf("verdict %s (%s%s), %s", v.Verdict, v.Kind, v.Reason, v.Confidence)
	}
	if !v.decides("kernel", "Killed process") {
		t.Error("the kernel's record does not decide")
	}
}

// Somebody kills a worker while there is plenty of memory: the output is the same.
func TestDataLoaderWorkerKilledByStranger(t *testing.T) {
	v := die(t, nil, nil, "worker-waits", ending{status: 1, by: "child", kind: "exited"}, func(dir string) {
		deadline := time.Now().Add(patience)
		for time.Now().Before(deadline) {
			time.Sleep(20 * time.Millisecond)
			text, err := os.ReadFile(filepath.Join(dir, "worker.pid"))
			if err != nil {
				continue
			}
			// What memory there was has to be known.
			rows, err := os.ReadFile(filepath.Join(dir, "runs", "latest", "telemetry.csv"))
			if err != nil || strings.Count(string(rows), "\n") < 2 {
				continue
			}
			pid, err := strconv.Atoi(string(text))
			if err != nil {
				t.Errorf("worker.pid: %v", err)
			} else if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Errorf("killing the worker: %v", err)
			}
			return
		}
		t.Error("the worker never came")
	})
	if v.Verdict != "not-oom" || v.Reason != "killed" {
		t.Errorf("verdict %s (%s%s), %s", v.Verdict, v.Kind, v.Reason, v.Confidence)
	}
	if !strings.Contains(fmt.Sprint(v.Evidence), "is killed by signal: Killed") {
		t.Error("torch's message is not among the evidence")
	}
}

// What a worker hands over does not fit into /dev/shm. A batch is laid there by the
// worker itself, which dies of it; a tensor by a thread of its own, which nobody
// looks after: the parent waits for ever.
func TestDataLoaderSharedMemoryDeath(t *testing.T) {
	small := []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"`, "sh"}
	if out, err := exec.Command(small[0], append(small[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("a small /dev/shm cannot be mounted here (root is needed): %v: %s", err, out)
	}
	for how, want := range map[string]ending{
		"collate": {status: 1, by: "child", kind: "exited"},
		"feeder":  {status: 124, by: "limit", kind: "hang"},
	} {
		t.Run(how, func(t *testing.T) {
			v := die(t, small, []string{"--hang-after", "3s"}, how, want, nil)
			if v.Verdict != "oom" || v.Kind != "shm" || v.Lever != "shm" {
				t.Errorf("verdict %s (%s%s), %s, lever %s", v.Verdict, v.Kind, v.Reason, v.Confidence, v.Lever)
			}
			if !v.decides("output", "shared memory(shm)") {
				t.Error("torch's message does not decide")
			}
			if advice := strings.Join(v.Advice, "\n"); !strings.Contains(advice, "--shm-size") || !strings.Contains(advice, "workers") {
				t.Errorf("advice %q", v.Advice)
			}
		})
	}
}

// memoryCgroup makes a memory cgroup with a limit in bytes, v1 or v2.
func memoryCgroup(t *testing.T, limit int) string {
	t.Helper()
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(root); err != nil {
		root, file = "/sys/fs/cgroup", "memory.max"
		if b, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); err != nil || !strings.Contains(string(b), "memory") {
			t.Skip("no memory cgroup can be made here: no v1 memory hierarchy and no memory controller in the v2 root")
		}
	}
	dir := filepath.Join(root, fmt.Sprintf("sparkrun-trainers-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no memory cgroup can be made here (root is needed): %v", err)
	}
	t.Cleanup(func() {
		for range 100 {
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0o644); err != nil {
		t.Fatal(err)
	}
	// Without this, swap would take what is over the limit.
	_ = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0o644)
	return dir
}
