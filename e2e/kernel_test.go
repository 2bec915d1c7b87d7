package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// memoryCgroup makes a memory cgroup with a limit, v1 or v2, whichever the
// machine has. Without one the test cannot be made: the reason is given.
func memoryCgroup(t *testing.T, limit int) string {
	t.Helper()
	name := fmt.Sprintf("sparkrun-e2e-%d", os.Getpid())
	v1 := filepath.Join("/sys/fs/cgroup/memory", name)
	v2 := filepath.Join("/sys/fs/cgroup", name)
	dir, file := v2, "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		dir, file = v1, "memory.limit_in_bytes"
	} else if b, err := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control"); err != nil || !strings.Contains(string(b), "memory") {
		t.Skip("no memory cgroup can be made here: no v1 memory hierarchy and no memory controller in the v2 root")
	}
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
	if err := os.WriteFile(filepath.Join(dir, file), []byte(fmt.Sprint(limit)), 0o644); err != nil {
		t.Fatal(err)
	}
	// Without this, swap would take what is over the limit.
	_ = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0o644)
	return dir
}

const greedyScript = `
import argparse
p = argparse.ArgumentParser()
p.add_argument("--max_length", type=int)
n = p.parse_args().max_length
print("taking", n, flush=True)
b = b"\1" * (n * 100 * 1024)
print("fits", len(b), flush=True)
`

// TestKernelOOMKill: the kernel kills the child in its memory cgroup; the
// verdict names the kernel's record and the next rung fits.
func TestKernelOOMKill(t *testing.T) {
	cg := memoryCgroup(t, 300<<20)
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--no-guard", "--cgroup", cg, "--", "python3", writeScript(t, dir, "train.py", greedyScript), "--max_length", "4096")
	if got := p.wait(60 * time.Second); got != 0 {
		t.Fatalf("status %d\nstdout %s\nstderr %s", got, p.out, p.err)
	}
	v := readJSON(t, p.file("attempts/1/verdict.json"))
	if v["verdict"] != "oom" || v["confidence"] != "high" {
		t.Errorf("verdict %v, confidence %v", v["verdict"], v["confidence"])
	}
	var sources []string
	named := false
	for _, item := range v["evidence"].([]any) {
		e := item.(map[string]any)
		sources = append(sources, e["source"].(string))
		named = named || e["source"] == "kernel" && strings.Contains(e["text"].(string), "Killed process")
	}
	if !named {
		t.Errorf("no kernel record among the evidence: %v\n%v", sources, v["evidence"])
	}
	m := readJSON(t, p.file("run.json"))
	if m["state"] != "succeeded-changed" {
		t.Errorf("state %v", m["state"])
	}
	if !strings.Contains(p.out.String(), "fits") {
		t.Errorf("stdout %q", p.out)
	}
	p.complete(len(m["attempts"].([]any)))
}
