package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"sparkrun/e2e/fakenvml"
)

// proc is a sparkrun under test.
type proc struct {
	t    *testing.T
	cmd  *exec.Cmd
	dir  string
	runs string // where its runs lie
	out  *syncBuffer
	err  *syncBuffer
	done chan struct{}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs the built binary in a folder of its own and a session of its own.
func start(t *testing.T, dir string, args ...string) *proc {
	t.Helper()
	return startEnv(t, dir, nil, args...)
}

func startEnv(t *testing.T, dir string, env []string, args ...string) *proc {
	t.Helper()
	return launch(t, dir, nil, env, nil, args...)
}

// startUnder starts sparkrun through a program that ends in executing it, so that
// the process is sparkrun's.
func startUnder(t *testing.T, before []string, args ...string) *proc {
	t.Helper()
	return launch(t, t.TempDir(), before, nil, nil, args...)
}

// startStdout gives sparkrun a stdout and stderr of the test's own.
func startStdout(t *testing.T, dir string, out *os.File, args ...string) *proc {
	t.Helper()
	return launch(t, dir, nil, nil, out, args...)
}

func launch(t *testing.T, dir string, before, env []string, out *os.File, args ...string) *proc {
	t.Helper()
	runs := filepath.Join(dir, "sparkrun-runs")
	if i := slices.Index(args, "--runs-dir"); i >= 0 {
		runs = args[i+1]
	}
	p := &proc{t: t, dir: dir, runs: runs, out: &syncBuffer{}, err: &syncBuffer{}, done: make(chan struct{})}
	argv := slices.Concat(before, []string{filepath.Join(bin, "sparkrun")}, args)
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir = dir
	p.cmd.Env = append(testEnv(dir), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	if out != nil {
		p.cmd.Stdout, p.cmd.Stderr = out, out
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the status is read from ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		// What the holder keeps is ended, and then the holder writes its last
		// words into the folder that is about to be removed.
		for _, line := range processesOf(p.id()) {
			killChild(line)
		}
		until(t, "holder gone", func() bool { return p.id() == "" || !hasHolder(p.id()) })
	})
	return p
}

func testEnv(dir string) []string {
	return append(os.Environ(),
		"HOME="+dir+"/home", "XDG_STATE_HOME="+dir+"/state", "XDG_CONFIG_HOME="+dir+"/config",
		"SPARKRUN_DROP_CACHES=never", "SPARKRUN_NVML_LIBRARY=/nonexistent/libnvidia-ml.so.1")
}

// blockedNVML is a GPU library that does not answer for some seconds, which
// holds preflight up (it waits a second at most).
func blockedNVML(t *testing.T, dir string) []string {
	t.Helper()
	path := filepath.Join(dir, "scenario")
	if err := os.WriteFile(path, []byte("at 0s temp 60 power 80 sm 2300 util 90 reasons 0x0 pstate 0\nat 0s block 5s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"SPARKRUN_NVML_LIBRARY=" + fakenvml.Build(t), "FAKENVML_SCENARIO=" + path}
}

// id is the run's ID, "" before there is one.
func (p *proc) id() string {
	name, err := os.Readlink(filepath.Join(p.runs, "latest"))
	if err != nil {
		return ""
	}
	return name
}

func (p *proc) file(name string) string {
	return filepath.Join(p.runs, "latest", name)
}

// wait returns the exit status a shell would show.
func (p *proc) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("still running after %s\nstdout: %s\nstderr: %s", limit, p.out, p.err)
	}
	ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// until polls a condition for 20 s.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func fileHas(path, text string) func() bool {
	return func() bool {
		b, err := os.ReadFile(path)
		return err == nil && bytes.Contains(b, []byte(text))
	}
}

// readJSON reads a JSON file into a map.
func readJSON(t *testing.T, path string) map[string]any {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v\n%s", path, err, b)
	}
	return v
}

// complete demands every file of a run directory that ended.
func (p *proc) complete(attempts int) {
	p.t.Helper()
	for _, f := range []string{"run.json", "events.jsonl", "run.log", "thermal.csv", "telemetry.csv", "env-report.json"} {
		if _, err := os.Stat(p.file(f)); err != nil {
			p.t.Errorf("%v", err)
		}
	}
	for n := 1; n <= attempts; n++ {
		for _, f := range []string{"output.log", "command.json", "verdict.json"} {
			if _, err := os.Stat(p.file(filepath.Join("attempts", string(rune('0'+n)), f))); err != nil {
				p.t.Errorf("%v", err)
			}
		}
	}
}
