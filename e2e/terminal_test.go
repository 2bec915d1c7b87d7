package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pane is a real terminal: a shell under tmux, with a server of its own.
type pane struct {
	t    *testing.T
	sock string
}

func newPane(t *testing.T, dir string) *pane {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed (Debian package tmux)")
	}
	p := &pane{t: t, sock: filepath.Join(t.TempDir(), "tmux")}
	cmd := exec.Command("tmux", "-S", p.sock, "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30",
		"bash", "--norc", "--noprofile")
	cmd.Dir = dir
	cmd.Env = append(testEnv(dir), "PS1=ready> ", "TERM=screen", "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", p.sock, "kill-server").Run() })
	p.until("a prompt", func(s string) bool { return strings.Contains(s, "ready>") })
	return p
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", p.sock}, args...)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("tmux %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (p *pane) keys(keys ...string) { p.t.Helper(); p.tmux(append([]string{"send-keys"}, keys...)...) }

// command types a command and Enter.
func (p *pane) command(line string) { p.t.Helper(); p.keys("-l", line); p.keys("Enter") }

func (p *pane) screen() string {
	p.t.Helper()
	return p.tmux("capture-pane", "-p", "-J", "-S", "-200")
}

func (p *pane) until(what string, ok func(string) bool) string {
	p.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		s := p.screen()
		if ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("never on the screen: %s\n%s", what, s)
		}
		time.Sleep(30 * time.Millisecond)
	}
}

func (p *pane) shows(text string) string {
	p.t.Helper()
	return p.until(text, func(s string) bool { return strings.Contains(s, text) })
}

// barScript draws a progress bar, says its window size when that changes, and
// saves on the first Ctrl-C.
const barScript = `
import os, signal, sys, time
def size(*_):
    s = os.get_terminal_size(0); print("\nsize %dx%d" % (s.columns, s.lines), flush=True)
signal.signal(signal.SIGWINCH, size)
def save(*_):
    print("\nsaving once", flush=True); sys.exit(0)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGINT, lambda *_: print("\nnot yet", flush=True))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, save)
size()
for i in range(1, 1000):
    sys.stderr.write("\r\x1b[32m%3d%%|##        |\x1b[0m %d/999 [00:01<00:02]" % (i // 10, i)); sys.stderr.flush()
    time.sleep(0.05)
`

// TestTerminal: the real binary on a real terminal: a bar stays one line, the
// window size follows, Ctrl-C reaches the child, and the terminal is given back
// as it was found.
func TestTerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeScript(t, dir, "bar.py", barScript)
	p := newPane(t, dir)
	p.command("stty -a > before; clear")
	p.command("sparkrun --no-preflight -- python3 bar.py; echo sta''tus $?")
	p.shows("size 100x30")
	p.until("a bar that was drawn again and again", regexp.MustCompile(`[1-9]\d?%\|##`).MatchString)
	if n := strings.Count(p.screen(), "/999 ["); n != 1 {
		t.Errorf("the bar stands %d times on the screen:\n%s", n, p.screen())
	}
	p.tmux("resize-window", "-x", "80", "-y", "24")
	p.shows("size 80x24")
	p.keys("C-c")
	p.shows("saving once")
	s := p.shows("status 0")
	if n := strings.Count(s, "saving once"); n != 1 {
		t.Errorf("one Ctrl-C came %d times", n)
	}
	if strings.Contains(s, "^C") {
		t.Error("the key itself was echoed by our own terminal")
	}
	p.command("stty -a > after")
	// Rows and columns have changed on purpose.
	p.command("diff <(sed 's/rows.*columns [0-9]*//' before) <(sed 's/rows.*columns [0-9]*//' after) && echo restored'' fine")
	p.shows("restored fine")
}

// TestTerminalCtrlCTwice: a child that ignores Ctrl-C is ended by the second
// one, within seconds and not after the grace.
func TestTerminalCtrlCTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeScript(t, dir, "bar.py", barScript)
	p := newPane(t, dir)
	p.command("stty -a > before; clear")
	p.command("sparkrun --no-preflight --grace 60s -- python3 bar.py stubborn; echo sta''tus $?")
	p.shows("size 100x30")
	p.keys("C-c")
	p.shows("not yet")
	begin := time.Now()
	p.keys("C-c")
	p.shows("status 130")
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("the second Ctrl-C took %s", d)
	}
	p.command("stty -a > after; cmp before after && echo restored'' fine")
	p.shows("restored fine")
}

// TestTerminalBackground: started with &, sparkrun is never stopped for touching
// the terminal, and leaves its settings alone.
func TestTerminalBackground(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newPane(t, dir)
	p.command("stty tostop; stty -a > before; clear")
	p.command("sparkrun --no-preflight -- sh -c 'echo from the child; sleep 0.5; echo done\"\" here' &")
	p.shows("done here")
	p.command("wait; stty -a > after; cmp before after && echo restored'' fine")
	p.shows("restored fine")
	p.command("jobs; echo end of'' jobs")
	if s := p.shows("end of jobs\n"); strings.Contains(s, "Stopped") {
		t.Errorf("sparkrun was stopped:\n%s", s)
	}
}

// TestTerminalHangup: the terminal goes away under the run. It goes on.
func TestTerminalHangup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newPane(t, dir)
	p.command("sparkrun --no-preflight -- sh -c 'echo started; while [ ! -e go ]; do sleep 0.1; done; echo finished'")
	run := filepath.Join(dir, "sparkrun-runs", "latest")
	until(t, "child up", fileHas(filepath.Join(run, "attempts/1/output.log"), "started"))
	p.tmux("kill-server")
	until(t, "terminal lost noted", fileHas(filepath.Join(run, "events.jsonl"), "terminal.lost"))
	writeScript(t, dir, "go", "")
	until(t, "run over", fileHas(filepath.Join(run, "run.json"), `"state": "succeeded"`))
	pid := int(readJSON(t, filepath.Join(run, "run.json"))["supervisor_pid"].(float64))
	until(t, "supervisor gone", func() bool { _, err := os.Stat("/proc/" + strconv.Itoa(pid)); return err != nil })
	if !fileHas(filepath.Join(run, "attempts/1/output.log"), "finished")() {
		t.Error("output lost")
	}
}

// TestTerminalSuspend: without a PTY of our own Ctrl-Z is the shell's. After fg
// the run is there and Ctrl-C ends it.
func TestTerminalSuspend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newPane(t, dir)
	p.command("stty -a > before; clear")
	p.command("sparkrun --no-preflight --no-pty -- sh -c 'echo up; while :; do sleep 0.1; done'; echo sta''tus $?")
	run := filepath.Join(dir, "sparkrun-runs", "latest")
	until(t, "child up", fileHas(filepath.Join(run, "attempts/1/output.log"), "up"))
	until(t, "state running", fileHas(filepath.Join(run, "run.json"), `"state": "running"`))
	pid := int(readJSON(t, filepath.Join(run, "run.json"))["supervisor_pid"].(float64))
	// A key that meets a start half-way is a test of its own.
	alone := 0
	until(t, "nothing more is being started", func() bool {
		if alone++; groupOf(pid) > 1 {
			alone = 0
		}
		return alone > 20
	})
	p.keys("C-z")
	p.shows("Stopped")
	p.command("fg")
	until(t, "the terminal is given back to the run", func() bool { return ownsTerminal(pid) })
	p.keys("C-c")
	p.until("the end", func(s string) bool { return strings.Contains(s, "stopped by SIGINT after 1 attempt") })
	p.command("stty -a > after; cmp before after && echo restored'' fine")
	p.shows("restored fine")
}

// groupOf counts the processes in the group of one.
func groupOf(pid int) int {
	out, _ := exec.Command("pgrep", "-c", "-g", strconv.Itoa(pid)).Output()
	n, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return n
}

// ownsTerminal says whether a process runs, in the foreground of its terminal.
func ownsTerminal(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	// State, ppid, pgrp, session, tty, tpgid.
	return len(f) > 5 && f[0] != "T" && f[2] == f[5]
}
