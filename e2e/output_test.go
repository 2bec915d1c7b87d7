package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStoppedReader: nobody reads our stdout. The child must not notice, and
// nothing of what it printed is lost.
func TestStoppedReader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := startStdout(t, dir, w, "--no-preflight", "--quiet", "--", "python3", "-c",
		`import sys, time
for i in range(200000): sys.stdout.write("line %06d of many\n" % i)
sys.stdout.flush(); open("done", "w").close()`)
	w.Close()
	until(t, "the child is through although nobody reads", func() bool { _, err := os.Stat(filepath.Join(dir, "done")); return err == nil })
	until(t, "run over on disk", fileHas(p.file("run.json"), `"state": "succeeded"`))
	b, err := os.ReadFile(p.file("attempts/1/output.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n != 200000 {
		t.Errorf("%d lines in output.log", n)
	}
	// And sparkrun itself does not wait for ever.
	if got := p.wait(20 * time.Second); got != 0 {
		t.Errorf("status %d", got)
	}
}

// TestClosedReader: our stdout and stderr are closed in mid-run. The run goes on.
func TestClosedReader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startStdout(t, dir, w, "--no-preflight", "--", "sh", "-c", "echo first; while [ ! -e go ]; do sleep 0.05; done; for i in 1 2 3; do echo more $i; sleep 0.1; done; exit 7")
	w.Close()
	until(t, "child up", fileHas(p.file("attempts/1/output.log"), "first"))
	r.Close()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := p.wait(20 * time.Second); got != 7 {
		t.Errorf("status %d, want the child's 7", got)
	}
	if !fileHas(p.file("attempts/1/output.log"), "more 3")() {
		t.Error("output lost")
	}
	if !fileHas(p.file("events.jsonl"), "terminal.lost")() {
		t.Error("the loss of the terminal is not noted")
	}
}

// smallDisk mounts a tmpfs of the given size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a small disk cannot be mounted here (root is needed): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestFullDiskAtStart: no space for a run directory is a clear sentence, status
// 125, and nothing is started or left half-made.
func TestFullDiskAtStart(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "256k")
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--runs-dir", filepath.Join(disk, "runs"), "--", "touch", filepath.Join(dir, "started"))
	if got := p.wait(20 * time.Second); got != 125 {
		t.Errorf("status %d", got)
	}
	if !strings.Contains(p.err.String(), "no space left") {
		t.Errorf("stderr %q", p.err)
	}
	if _, err := os.Stat(filepath.Join(dir, "started")); err == nil {
		t.Error("the command was started all the same")
	}
	if left, _ := filepath.Glob(filepath.Join(disk, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFullDiskWhileRunning: the disk fills up under a run. The child never
// waits, its status is passed on, the end is on disk and the loss is told.
func TestFullDiskWhileRunning(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "6m")
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--min-free", "0B", "--runs-dir", disk, "--", "python3", "-c",
		`import sys
for i in range(400000): sys.stdout.write("line %06d of far too many\n" % i)
sys.stdout.flush(); open("done", "w").close(); sys.exit(5)`)
	if got := p.wait(60 * time.Second); got != 5 {
		t.Errorf("status %d, want the child's 5; stderr %s", got, p.err)
	}
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		t.Error("the child did not get through")
	}
	run := filepath.Join(disk, "latest")
	m := readJSON(t, filepath.Join(run, "run.json"))
	if m["state"] != "failed" {
		t.Errorf("state %v", m["state"])
	}
	for _, f := range []string{"attempts/1/exit.json", "attempts/1/verdict.json"} {
		readJSON(t, filepath.Join(run, f))
	}
	// The terminal still got the end, from the holder's memory.
	if !strings.Contains(p.out.String(), "line 399999 of far too many") {
		t.Error("the last line did not reach the terminal")
	}
}

// TestFullDiskOverTwoAttempts: the disk is full when the second attempt starts.
// It starts all the same, and the run ends as it should.
func TestFullDiskOverTwoAttempts(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "6m")
	dir := t.TempDir()
	script := writeScript(t, dir, "train.py", `
import argparse, sys
p = argparse.ArgumentParser()
p.add_argument("--max_length", type=int)
n = p.parse_args().max_length
for i in range(300000): sys.stdout.write("line %06d of far too many\n" % i)
sys.stdout.flush()
if n > 2048:
    raise MemoryError
print("fits")
`)
	p := start(t, dir, "--no-preflight", "--min-free", "0B", "--runs-dir", disk, "--", "python3", script, "--max_length", "4096")
	if got := p.wait(90 * time.Second); got != 0 {
		t.Errorf("status %d\nstderr %s", got, p.err)
	}
	run := filepath.Join(disk, "latest")
	m := readJSON(t, filepath.Join(run, "run.json"))
	if m["state"] != "succeeded-changed" || len(m["attempts"].([]any)) != 2 {
		left, _ := exec.Command("ls", "-laR", run).Output()
		t.Errorf("state %v after %d attempts\nstderr %s\n%s", m["state"], len(m["attempts"].([]any)), p.err, left)
	}
	if v := readJSON(t, filepath.Join(run, "attempts/1/verdict.json")); v["verdict"] != "oom" {
		t.Errorf("verdict of attempt 1: %v", v)
	}
	if !strings.HasSuffix(strings.TrimSpace(p.out.String()), "fits") {
		t.Error("the end did not reach the terminal")
	}
	if left, _ := filepath.Glob(filepath.Join(run, ".*")); len(left) > 0 {
		t.Errorf("left in the run directory: %v", left)
	}
}

// TestFullDiskTakenByOthers: whatever the run gives back or has not taken yet, another
// writer takes at once. Both attempts run, and their ends are on disk all the same.
func TestFullDiskTakenByOthers(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "4m")
	dir := t.TempDir()
	script := writeScript(t, dir, "train.py", `
import argparse, os, sys, time
p = argparse.ArgumentParser()
p.add_argument("--max_length", type=int)
n = p.parse_args().max_length
open(f"at-{n}", "w").close()
while not os.path.exists("full"): time.sleep(0.01)
if n > 2048:
    raise MemoryError
print("fits")
`)
	p := start(t, dir, "--no-preflight", "--min-free", "0B", "--runs-dir", disk, "--", "python3", script, "--max_length", "4096")
	until(t, "the first attempt runs", func() bool { _, err := os.Stat(filepath.Join(dir, "at-4096")); return err == nil })
	hog, err := os.Create(filepath.Join(disk, "hog"))
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer hog.Close()
		block := make([]byte, 4096)
		for told := false; ; {
			if _, err := hog.Write(block); err == nil {
				continue
			}
			if !told {
				told = os.WriteFile(filepath.Join(dir, "full"), nil, 0o644) == nil
			}
			select {
			case <-p.done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	if got := p.wait(90 * time.Second); got != 0 {
		t.Errorf("status %d\nstderr %s", got, p.err)
	}
	<-over
	run := filepath.Join(disk, "latest")
	m := readJSON(t, filepath.Join(run, "run.json"))
	if m["state"] != "succeeded-changed" || len(m["attempts"].([]any)) != 2 {
		t.Errorf("state %v after %d attempts\nstderr %s", m["state"], len(m["attempts"].([]any)), p.err)
	}
	if v := readJSON(t, filepath.Join(run, "attempts/1/verdict.json")); v["verdict"] != "oom" {
		t.Errorf("verdict of attempt 1: %v", v)
	}
	if left, _ := filepath.Glob(filepath.Join(run, ".*")); len(left) > 0 {
		t.Errorf("left in the run directory: %v", left)
	}
	// Nobody has waited for them, and they are written when there is room.
	if err := os.Remove(hog.Name()); err != nil {
		t.Fatal(err)
	}
	for n, status := range []int{1, 0} {
		path := filepath.Join(run, fmt.Sprintf("attempts/%d/exit.json", n+1))
		until(t, path, func() bool { _, err := os.Stat(path); return err == nil })
		if e := readJSON(t, path); e["code"] != float64(status) {
			t.Errorf("attempt %d: %v", n+1, e)
		}
	}
}

// TestHungDisk: the file system of the run stops answering. A signal is passed on
// to the child at once, and when the disk is back the end is written.
func TestHungDisk(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"mkfs.ext4", "fsfreeze", "losetup"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("a disk that hangs cannot be made here: %v", err)
		}
	}
	image, disk := filepath.Join(t.TempDir(), "image"), t.TempDir()
	run := func(name string, args ...string) error {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, out)
		}
		return nil
	}
	for _, c := range [][]string{{"truncate", "-s", "64M", image}, {"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, disk}} {
		if err := run(c[0], c[1:]...); err != nil {
			t.Skipf("a disk that hangs cannot be made here (root and loop devices are needed): %v", err)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	thaw := func() { _ = run("fsfreeze", "-u", disk) } // thawed already is as good
	dir := t.TempDir()
	p := start(t, dir, "--no-preflight", "--min-free", "0B", "--runs-dir", disk, "--", "python3", writeScript(t, dir, "train.py", `
import signal, sys, time
def got(*_):
    open("got", "w").close(); sys.exit(3)
signal.signal(signal.SIGINT, got)
print("up", flush=True)
while True:
    print("tick", flush=True); time.sleep(0.05)
`))
	t.Cleanup(thaw) // first of all, else nothing that writes there can be ended
	until(t, "state running", fileHas(filepath.Join(disk, "latest", "run.json"), `"state": "running"`))
	until(t, "child up", func() bool { return strings.Contains(p.out.String(), "up") })
	if err := run("fsfreeze", "-f", disk); err != nil {
		t.Skipf("the disk cannot be made to hang: %v", err)
	}
	before := strings.Count(p.out.String(), "tick")
	until(t, "the terminal goes on", func() bool { return strings.Count(p.out.String(), "tick") > before+20 })
	asked := time.Now()
	_ = p.cmd.Process.Signal(unix.SIGINT)
	until(t, "the signal reaches the child", func() bool { _, err := os.Stat(filepath.Join(dir, "got")); return err == nil })
	if d := time.Since(asked); d > 3*time.Second {
		t.Errorf("the signal took %s", d)
	}
	thaw()
	if got := p.wait(60 * time.Second); got != 3 {
		t.Errorf("status %d, want the child's 3; stderr %s", got, p.err)
	}
	if m := readJSON(t, filepath.Join(disk, "latest", "run.json")); m["state"] != "stopped" {
		t.Errorf("state %v", m["state"])
	}
}
