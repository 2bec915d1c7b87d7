package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sparkrun/e2e/fakenvml"
)

// gpuWith is the environment for a GPU of one utilisation.
func gpuWith(t *testing.T, dir string, util int) []string {
	t.Helper()
	path := filepath.Join(dir, "scenario")
	line := fmt.Sprintf("at 0s temp 60 power 20 sm 2300 util %d reasons 0x0 pstate 0\n", util)
	if err := os.WriteFile(path, []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"SPARKRUN_NVML_LIBRARY=" + fakenvml.Build(t), "FAKENVML_SCENARIO=" + path}
}

// watched runs a script under a watch that is content with two seconds of stillness.
func watched(t *testing.T, dir string, util int, script string, args ...string) *proc {
	t.Helper()
	path := writeScript(t, dir, "train.py", script)
	args = append([]string{"--no-preflight", "--no-retry", "--telemetry-interval", "200ms", "--hang-timeout", "2s", "--", "python3", path}, args...)
	return startEnv(t, dir, gpuWith(t, dir, util), args...)
}

// threeSteps are the beginning of a training of ten.
const threeSteps = `
import os, socket, subprocess, sys, time
for i in range(1, 4):
    print(f"step {i}/10 loss 2.{i}", flush=True)
    time.sleep(0.1)
`

// TestWatchdogHang: a training in which nothing moves any more is ended, with what it
// stood in and why, and without what is secret.
func TestWatchdogHang(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tools := filepath.Join(dir, "tools")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	writeScript(t, tools, "py-spy", "#!/bin/sh\nprintf 'Thread of %s: all_reduce (dist.py:12)\\033[2J\\377\\n' \"$*\"\n")
	if err := os.Chmod(filepath.Join(tools, "py-spy"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := writeScript(t, dir, "train.py", threeSteps+"time.sleep(300)\n")
	env := append(gpuWith(t, dir, 0), "PATH="+tools+":"+os.Getenv("PATH"), "HF_TOKEN=hf_aaaabbbbccccddddeeee")
	p := startEnv(t, dir, env, "--no-preflight", "--telemetry-interval", "200ms", "--hang-timeout", "2s", "--", "python3", script, "--token", "hf_aaaabbbbccccddddeeee")
	if got := p.wait(60 * time.Second); got != 124 {
		t.Fatalf("status %d\nstderr %s", got, p.err)
	}
	m := p.manifest()
	if a := m.Attempts; len(a) != 1 || a[0].EndKind != "hang" || a[0].Verdict.Verdict != "not-oom" || a[0].Verdict.Reason != "hang" || m.EndedBy != "limit" {
		t.Errorf("%+v", m)
	}
	said := p.events("hang")
	if len(said) != 1 || !strings.Contains(said[0], "GPU at 0 %") || !strings.Contains(said[0], "attempts/1/hang.txt") || !strings.Contains(said[0], "the limit is 2 s") {
		t.Errorf("hang: %q", said)
	}
	b, err := os.ReadFile(p.file("attempts/1/hang.txt"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if !strings.Contains(text, "newest step: 3") || !regexp.MustCompile(`process \d+, child of \d+, state S: .*train.py`).MatchString(text) ||
		!regexp.MustCompile(`Thread of dump --nonblocking --pid \d+: all_reduce`).MatchString(text) || !strings.Contains(text, "  thread ") {
		t.Errorf("hang.txt:\n%s", text)
	}
	if !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\ufffd") || !strings.Contains(text, "(dist.py:12)?[2J?\n") {
		t.Errorf("what py-spy printed could reach a terminal as it is:\n%q", text)
	}
	if strings.Contains(text, "hf_aaaa") {
		t.Errorf("a secret is in hang.txt:\n%s", text)
	}
	if b, err := os.ReadFile(p.file("attempts/1/verdict.json")); err != nil || !strings.Contains(string(b), "neither a step nor any output") {
		t.Errorf("the verdict does not say what was idle: %v %s", err, b)
	}
	// What a person finds in the morning.
	b, err = os.ReadFile(p.file("summary.txt"))
	for _, want := range []string{"exit status 124: nothing moved any more and it was ended", "--hang-restart", "/attempts/1/hang.txt\n"} {
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%q is not in the summary: %v\n%s", want, err, b)
		}
	}
}

// TestWatchdogSpares: whoever shows one sign of life is silent, and not hung.
func TestWatchdogSpares(t *testing.T) {
	t.Parallel()
	const rest = "\nprint('done', flush=True)\n"
	for name, c := range map[string]struct {
		util   int
		script string
	}{
		"it computes":              {0, threeSteps + "end = time.time() + 6\nwhile time.time() < end: pass" + rest},
		"the GPU computes":         {90, threeSteps + "time.sleep(6)" + rest},
		"it reads a file slowly":   {0, threeSteps + "f = os.open(sys.argv[0], os.O_RDONLY)\nfor _ in range(12):\n    os.read(f, 1)\n    time.sleep(0.5)" + rest},
		"it writes a file slowly":  {0, threeSteps + "f = os.open('out', os.O_CREAT | os.O_WRONLY)\nfor _ in range(12):\n    os.write(f, b'x')\n    time.sleep(0.5)" + rest},
		"past its last step":       {0, "import time\nfor i in range(1, 4):\n    print(f'step {i}/3 loss 2.{i}', flush=True)\n    time.sleep(0.1)\ntime.sleep(6)" + rest},
		"before its first step":    {0, "import time\nprint('loading', flush=True)\ntime.sleep(6)" + rest},
		"a grandchild computes":    {0, threeSteps + "subprocess.run(['sh', '-c', sys.executable + ' -c \"import time; end = time.time() + 6\\nwhile time.time() < end: pass\"; true'])" + rest},
		"it prints without a line": {0, threeSteps + "for _ in range(12):\n    print('.', end='', flush=True)\n    time.sleep(0.5)" + rest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := watched(t, t.TempDir(), c.util, c.script)
			if got := p.wait(60 * time.Second); got != 0 {
				t.Errorf("status %d\nstderr %s", got, p.err)
			}
			if said := p.events("hang"); len(said) > 0 {
				t.Errorf("a false alarm: %q", said)
			}
			if !fileHas(p.file("attempts/1/output.log"), "done")() {
				t.Error("it did not come to its end")
			}
		})
	}
}

// TestWatchdogSlowDownload: bytes that come over a connection, which no file of /proc
// counts, are a sign of life; when they cease the training is hung.
func TestWatchdogSlowDownload(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := watched(t, t.TempDir(), 0, threeSteps+`
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while s.recv(1): pass
`, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for range 15 {
		select {
		case <-p.done:
			t.Fatalf("ended while it received\nstderr %s", p.err)
		case <-tick.C:
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.wait(60 * time.Second); got != 124 {
		t.Errorf("status %d after the last byte\nstderr %s", got, p.err)
	}
}

// TestWatchdogStopped: no time counts while the command is stopped, nor does it go on
// counting from before.
func TestWatchdogStopped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := watched(t, dir, 0, threeSteps+`
open("pid", "w").write(str(os.getpid()))
while not os.path.exists("go"):
    time.sleep(0.2)
    sum(range(100000))
print("done", flush=True)
`)
	var pid int
	until(t, "the command works", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "pid"))
		_, scan := fmt.Sscan(string(b), &pid)
		return err == nil && scan == nil
	})
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.done:
		t.Errorf("ended while it was stopped\nstderr %s", p.err)
	case <-time.After(5 * time.Second): // the absence of an end is what is tested
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := p.wait(60 * time.Second); got != 0 {
		t.Errorf("status %d\nstderr %s", got, p.err)
	}
	if said := p.events("hang"); len(said) > 0 {
		t.Errorf("a false alarm: %q", said)
	}
}

// TestWatchdogAsks: who waits for somebody to type is told of and not ended.
func TestWatchdogAsks(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]string{"input": "input('go on? ')", "debugger": "import readline; input('(Pdb) ')"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, tty := onTerminal(t, threeSteps+ask+"\nprint('done', flush=True)\n")
			until(t, "the warning", fileHas(p.file("events.jsonl"), "waits for input"))
			if _, err := tty.WriteString("\r"); err != nil {
				t.Fatal(err)
			}
			if got := p.wait(60 * time.Second); got != 0 {
				t.Errorf("status %d\n%s", got, p.out)
			}
		})
	}
}

// TestWatchdogRestart: with --hang-restart a training that hung goes on from its newest
// checkpoint with the same settings, once, and without it is not started again.
func TestWatchdogRestart(t *testing.T) {
	t.Parallel()
	script := strings.Replace(savingScript, "        if step < 4:\n", `        if os.environ["SPARKRUN_ATTEMPT"] in os.environ["HANGS"] and step == 3 + int(os.environ["SPARKRUN_ATTEMPT"]):
            import time
            time.sleep(300)
        if step < 4:
`, 1)
	for name, c := range map[string]struct {
		hangs          string
		args           []string
		status, starts int
		says           string
	}{
		"once":           {hangs: "1", args: []string{"--hang-restart"}, status: 0, starts: 2, says: "once more from the newest checkpoint"},
		"and not twice":  {hangs: "12", args: []string{"--hang-restart"}, status: 124, starts: 2, says: "2 times: not started again"},
		"not unasked":    {hangs: "1", status: 124, starts: 1},
		"no second time": {hangs: "1", args: []string{"--hang-restart", "--no-retry"}, status: 124, starts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := withLibraries(t, folder(t, map[string]string{"train.py": script, "wandb.py": ""}))
			env := append(append(quietPython, "LIMIT=100000000", "HANGS="+c.hangs), gpuWith(t, dir, 0)...)
			args := append([]string{"--no-preflight", "--telemetry-interval", "200ms", "--hang-timeout", "2s"}, c.args...)
			p := startEnv(t, dir, env, append(args, "--", "python3", "train.py", "--max_length", "128", "--per_device_train_batch_size", "2")...)
			if got := p.wait(60 * time.Second); got != c.status {
				t.Errorf("status %d, want %d\nstderr %s", got, c.status, p.err)
			}
			starts := p.begun()
			if len(starts) != c.starts {
				t.Fatalf("%d starts\nstderr %s", len(starts), p.err)
			}
			if c.starts == 2 && (starts[1].FromStep != 4 || sizes(starts) != "128x2x1 128x2x1") {
				t.Errorf("the second start: %+v, %s", starts[1], sizes(starts))
			}
			p.says(c.says)
			if got := p.manifest().Attempts[0].EndKind; got != "hang" {
				t.Errorf("the first attempt's end: %s", got)
			}
		})
	}
}
