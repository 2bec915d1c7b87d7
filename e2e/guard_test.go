package e2e

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
)

// fillScript takes a third of a MiB of real memory per token of length, says so
// and ends; "wait" holds until a file named go is there before it takes any.
const fillScript = `
import argparse, os, time
p = argparse.ArgumentParser()
p.add_argument("--max_length", type=int)
p.add_argument("--wait", action="store_true")
a = p.parse_args()
print("up", flush=True)
while a.wait and not os.path.exists("go"):
    time.sleep(0.02)
held, step = [], 8 << 20
for _ in range(a.max_length * 349525 // step):
    held.append(b"\1" * step)
    time.sleep(0.004)
print("fits", len(held), flush=True)
`

// floorBelow is a --guard-floor that lies mib below what is left now, so that a
// test takes a gigabyte and not the whole machine.
func floorBelow(t *testing.T, mib uint64) string {
	t.Helper()
	info, err := meminfo.Read("/")
	if err != nil {
		t.Fatal(err)
	}
	avail, _ := info.Available()
	if avail < (mib+5000)<<10 {
		t.Skipf("filling memory for real needs %d MiB available, there are %d", mib+5000, avail>>10)
	}
	return fmt.Sprintf("%dMiB", avail>>10-mib)
}

// checkBlackbox demands the last minute at full rate.
func checkBlackbox(t *testing.T, p *proc, attempt int) {
	t.Helper()
	f, err := os.Open(p.file(filepath.Join("attempts", strconv.Itoa(attempt), "blackbox.csv")))
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 2 || !slices.Equal(rows[0], sample.Header) {
		t.Errorf("blackbox.csv of attempt %d: %d rows, %v", attempt, len(rows), err)
		return
	}
	at := slices.Index(sample.Header, "mem_available_kib")
	for _, r := range rows[1:] {
		if v, err := strconv.ParseUint(r[at], 10, 64); err != nil || v == 0 {
			t.Errorf("mem_available_kib %q", r[at])
		}
	}
}

// TestGuardEndsAndTheLadderGoesOn: the guard ends attempt 1 at its floor, the
// verdict is its own, and a shorter length fits. Not parallel: what one of these
// tests takes is missing in the floor of another. The last length leaves 2 GiB for
// what else goes on on the machine.
func TestGuardEndsAndTheLadderGoesOn(t *testing.T) {
	dir := t.TempDir()
	script := writeScript(t, dir, "train.py", fillScript)
	p := start(t, dir, "--no-preflight", "--guard-floor", floorBelow(t, 4000), "--", "python3", script, "--max_length", "24576")
	if got := p.wait(90 * time.Second); got != 0 {
		t.Fatalf("status %d\nstdout %s\nstderr %s", got, p.out, p.err)
	}
	v := readJSON(t, p.file("attempts/1/verdict.json"))
	if v["verdict"] != "oom" || v["confidence"] != "high" || v["kind"] != "guard" && v["kind"] != "co-tenant" {
		t.Errorf("verdict %v", v)
	}
	g := readJSON(t, p.file("attempts/1/guard.json"))
	act, _ := g["action"].(map[string]any)
	if g["schema"] != "sparkrun.guard/1" || act["why"] != "hard-floor" || act["first"] == "" {
		t.Errorf("guard.json %v", g)
	}
	e := readJSON(t, p.file("attempts/1/exit.json"))
	for _, s := range e["stops"].([]any) {
		if s.(map[string]any)["by"] != "guard" {
			t.Errorf("stops %v", e["stops"])
		}
	}
	checkBlackbox(t, p, 1)
	if !fileHas(p.file("events.jsonl"), `"guard.act"`)() {
		t.Error("no event of the guard")
	}
	m := readJSON(t, p.file("run.json"))
	last := len(m["attempts"].([]any))
	if last < 2 || m["state"] != "succeeded-changed" {
		t.Errorf("%d attempts, state %v", last, m["state"])
	}
	if _, err := os.Stat(p.file(fmt.Sprintf("attempts/%d/blackbox.csv", last))); !os.IsNotExist(err) {
		t.Errorf("the attempt that succeeded has a black box: %v", err)
	}
}

func TestNoGuardIsNoGuard(t *testing.T) {
	dir := t.TempDir()
	script := writeScript(t, dir, "train.py", fillScript)
	p := start(t, dir, "--no-preflight", "--no-guard", "--guard-floor", floorBelow(t, 200), "--", "python3", script, "--max_length", "2048")
	if got := p.wait(60 * time.Second); got != 0 {
		t.Fatalf("status %d\nstderr %s", got, p.err)
	}
	if g := readJSON(t, p.file("attempts/1/guard.json")); g["action"] != nil {
		t.Errorf("guard.json %v", g)
	}
}

// TestGuardWhileTheSupervisorIsStopped: SIGSTOP to sparkrun, as a shell or a
// debugger sends it, leaves the training guarded; the verdict comes later.
func TestGuardWhileTheSupervisorIsStopped(t *testing.T) {
	dir := t.TempDir()
	script := writeScript(t, dir, "train.py", fillScript)
	p := start(t, dir, "--no-preflight", "--no-retry", "--guard-floor", floorBelow(t, 500), "--", "python3", script, "--wait", "--max_length", "9000")
	until(t, "child up", fileHas(p.file("attempts/1/output.log"), "up"))
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the guard has ended it", fileHas(p.file("attempts/1/exit.json"), `"guard": {`))
	checkBlackbox(t, p, 1)
	if err := p.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := p.wait(30 * time.Second); got != 76 {
		t.Errorf("status %d, want 76\nstderr %s", got, p.err)
	}
	if v := readJSON(t, p.file("attempts/1/verdict.json")); v["verdict"] != "oom" {
		t.Errorf("verdict %v", v)
	}
}

// TestSomebodyElseTookTheMemory: no rung is spent, and the same command goes on
// once the memory is back.
func TestSomebodyElseTookTheMemory(t *testing.T) {
	dir := t.TempDir()
	script := writeScript(t, dir, "train.py", `
import os, time
print("up", flush=True)
if os.environ["SPARKRUN_ATTEMPT"] == "1":
    time.sleep(60)
print("done", flush=True)
`)
	other := writeScript(t, dir, "server.py", fillScript)
	p := start(t, dir, "--no-preflight", "--guard-floor", floorBelow(t, 1500), "--", "python3", script, "--max_length", "8192")
	until(t, "child up", fileHas(p.file("attempts/1/output.log"), "up"))
	server := exec.Command("python3", other, "--max_length", "12000")
	server.Dir = t.TempDir()
	// A session of its own, as any server has.
	server.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		_ = server.Process.Kill()
		_, _ = server.Process.Wait()
	}
	t.Cleanup(stop)
	until(t, "the guard has ended it", fileHas(p.file("attempts/1/exit.json"), `"guard": {`))
	stop()
	if got := p.wait(90 * time.Second); got != 0 {
		t.Fatalf("status %d\nstderr %s", got, p.err)
	}
	if v := readJSON(t, p.file("attempts/1/verdict.json")); v["verdict"] != "oom" || v["kind"] != "co-tenant" {
		t.Errorf("verdict %v", v)
	}
	m := readJSON(t, p.file("run.json"))
	if m["state"] != "succeeded" || len(m["attempts"].([]any)) != 2 {
		t.Errorf("state %v, attempts %v", m["state"], m["attempts"])
	}
}
