package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"sparkrun/e2e/fakenvml"
	"sparkrun/internal/newprog"
)

// bars draws a progress bar of ten steps, whose last drawing has no end.
const bars = `
import time
def draw(last, end=""):
    for i in range(1, last + 1):
        print(f"\rSteps: {10 * i:3d}%|#####     | {i}/10 [00:0{i}<00:03,  3.30it/s, lr=0.0001, step_loss=0.{i}]", end="" if i < last else end, flush=True)
        time.sleep(0.1)
`

// TestWatchdogSparesMore: signs of life that are hard to see.
func TestWatchdogSparesMore(t *testing.T) {
	t.Parallel()
	const rest = "\nprint('done', flush=True)\n"
	for name, script := range map[string]string{
		"a bar at its end":                    bars + "draw(10)\ntime.sleep(6)",
		"a bar at its end, a carriage return": bars + "draw(10, end='\\r')\ntime.sleep(6)",
		"it talks to its child by unix socket": threeSteps + `
a, b = socket.socketpair()
pid = os.fork()
if pid == 0:
    for _ in range(120): b.send(b.recv(65536))
    os._exit(0)
for _ in range(120):
    a.send(b"x" * 1000)
    a.recv(65536)
    time.sleep(0.05)
os.waitpid(pid, 0)`,
		"it is told by UDP over loopback": threeSteps + `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 0))
pid = os.fork()
if pid == 0:
    for _ in range(20):
        s.sendto(b"x", s.getsockname())
        time.sleep(0.3)
    os._exit(0)
for _ in range(20): s.recv(10)
os.waitpid(pid, 0)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := watched(t, t.TempDir(), 0, script+rest)
			if got := p.wait(60 * time.Second); got != 0 {
				t.Errorf("status %d\nstderr %s", got, p.err)
			}
			if !fileHas(p.file("attempts/1/output.log"), "done")() {
				t.Error("it did not come to its end")
			}
		})
	}
}

// TestWatchdogEnds: what looks like a reason to wait, and is none, is ended all the same.
func TestWatchdogEnds(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"a child nobody waits for": threeSteps + "p = subprocess.Popen(['true'])\ntime.sleep(300)",
		"a bar amid its steps":     bars + "draw(5)\ntime.sleep(300)",
		"silent local sockets":     threeSteps + "a, b = socket.socketpair()\nif os.fork() == 0: b.recv(1)\na.recv(1)",
		"a colon, but no terminal": threeSteps + "print('Saving to hub:', end=' ', flush=True)\ntime.sleep(300)",
		"in its second training": `
import time
def stage(n, of):
    for i in range(1, n + 1):
        time.sleep(0.1)
        print("{'loss': 1.%d, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': %.2f}" % (i, i / of), flush=True)
        print("\r %d%%|##   | %d/%d [00:0%d<00:10,  3.3it/s]" % (100 * i / of, i, of, i), end="", flush=True)
stage(5, 5)
print("\n{'train_runtime': 12.3, 'train_samples_per_second': 5.3, 'train_steps_per_second': 1.3, 'train_loss': 1.2, 'epoch': 1.0}", flush=True)
stage(4, 50)
print(flush=True)
time.sleep(300)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := watched(t, t.TempDir(), 0, script+"\n")
			if got := p.wait(60 * time.Second); got != 124 {
				t.Errorf("status %d\nstderr %s", got, p.err)
			}
		})
	}
}

// TestWatchdogZombie: a child that has ended and that nobody waits for belongs to root for
// everybody but root, and does not hide whether the rest of the command hangs.
func TestWatchdogZombie(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sparkrun-hang-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for name, from := range map[string]string{"sparkrun": filepath.Join(bin, "sparkrun"), "nvml.so": fakenvml.Build(t)} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := newprog.Write(filepath.Join(dir, name), data); err != nil {
			t.Fatal(err)
		}
	}
	script := writeScript(t, dir, "train.sh", `i=1
while [ $i -le 3 ]; do
    j=0; while [ $j -lt 100000 ]; do j=$((j+1)); done
    echo "step $i/10 loss 2.$i"; i=$((i+1))
done
true &
sleep 1 &
exec sleep 300
`)
	cmd := exec.Command(filepath.Join(dir, "sparkrun"), "--no-preflight", "--no-retry", "--telemetry-interval", "200ms", "--hang-timeout", "2s", "--", "sh", script)
	cmd.Dir = dir
	cmd.Env = append(testEnv(dir), append(gpuWith(t, dir, 0), "SPARKRUN_NVML_LIBRARY="+filepath.Join(dir, "nvml.so"))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	p := begin(t, cmd, dir)
	if got := p.wait(60 * time.Second); got != 124 {
		t.Errorf("status %d\nstderr %s", got, p.err)
	}
	if said := p.events("hang"); len(said) != 1 || !strings.Contains(said[0], "ending it") {
		t.Errorf("hang: %q", said)
	}
}

// begin starts a command of sparkrun that the test has made itself.
func begin(t *testing.T, cmd *exec.Cmd, dir string) *proc {
	t.Helper()
	p := &proc{t: t, cmd: cmd, dir: dir, runs: filepath.Join(dir, "sparkrun-runs"), out: &syncBuffer{}, err: &syncBuffer{}, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = p.out, p.err
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
		for _, line := range processesOf(p.id()) {
			killChild(line)
		}
		until(t, "holder gone", func() bool { return p.id() == "" || !hasHolder(p.id()) })
	})
	return p
}

// onTerminal runs a script on a terminal of its own, under a watch that is content with two
// seconds; what is shown is in p.out.
func onTerminal(t *testing.T, script string) (*proc, *os.File) {
	t.Helper()
	dir := t.TempDir()
	path := writeScript(t, dir, "train.py", script)
	cmd := exec.Command(filepath.Join(bin, "sparkrun"), "--no-preflight", "--no-retry", "--telemetry-interval", "200ms", "--hang-timeout", "2s", "--", "python3", path)
	cmd.Dir, cmd.Env = dir, append(testEnv(dir), append(gpuWith(t, dir, 0), "TERM=xterm")...)
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p := begin(t, cmd, dir)
	tty.Close()
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			_, _ = p.out.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	return p, master
}

// TestWatchdogNoPrompt: what looks like a prompt is none where nothing waits for the
// terminal.
func TestWatchdogNoPrompt(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]string{
		"select": "select.select([a], [], [])",
		"poll":   "p = select.poll(); p.register(a, select.POLLIN); p.poll()",
		"epoll":  "p = select.epoll(); p.register(a, select.EPOLLIN); p.poll()",
		"sleep":  "time.sleep(300)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := onTerminal(t, threeSteps+"import select\na, b = socket.socketpair()\nprint('Saving to hub:', end=' ', flush=True)\n"+waits+"\n")
			if got := p.wait(60 * time.Second); got != 124 {
				t.Errorf("status %d\n%s", got, p.out)
			}
		})
	}
}

// TestWatchdogPipe: a launcher that reads what its child says does not wait for input,
// though it has the pipe that sparkrun was given; one that reads that pipe does.
func TestWatchdogPipe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		ends   bool
	}{
		"reads its child": {`
import subprocess, sys
p = subprocess.Popen([sys.executable, "child.py"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
for line in p.stdout: print(line, end="", flush=True)
`, true},
		"reads its input": {threeSteps + "sys.stdin.readline()\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeScript(t, dir, "child.py", threeSteps+"time.sleep(300)\n")
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { w.Close() })
			cmd := exec.Command(filepath.Join(bin, "sparkrun"), "--no-preflight", "--no-retry", "--telemetry-interval", "200ms", "--hang-timeout", "2s", "--", "python3", writeScript(t, dir, "train.py", c.script))
			cmd.Dir, cmd.Env, cmd.Stdin = dir, append(testEnv(dir), gpuWith(t, dir, 0)...), r
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			p := begin(t, cmd, dir)
			r.Close()
			want := 124
			if !c.ends {
				want = 0
				until(t, "the warning", fileHas(p.file("events.jsonl"), "waits for input"))
				if _, err := w.WriteString("\n"); err != nil {
					t.Fatal(err)
				}
			}
			if got := p.wait(60 * time.Second); got != want {
				t.Errorf("status %d\nstderr %s", got, p.err)
			}
		})
	}
}

// TestWatchdogLocalPeer: what comes over a unix socket from outside the command is a sign of
// life; when it ceases the training is hung.
func TestWatchdogLocalPeer(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]string{"waits in recv": "", "waits in poll": "s.settimeout(200)"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p := watched(t, dir, 0, threeSteps+`
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
`+wait+`
while s.recv(1): pass
`, path)
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
		})
	}
}

// TestWatchdogKilledAtTheStacks: a py-spy that hangs does not outlive sparkrun.
func TestWatchdogKilledAtTheStacks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tools := filepath.Join(dir, "tools")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	writeScript(t, tools, "py-spy", "#!/bin/sh\ntrap '' TERM INT HUP\nsleep 300 &\necho $$ $! >"+dir+"/new\nmv "+dir+"/new "+dir+"/pids\nwait\nsleep 300\n")
	if err := os.Chmod(filepath.Join(tools, "py-spy"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := writeScript(t, dir, "train.py", threeSteps+"time.sleep(300)\n")
	env := append(gpuWith(t, dir, 0), "PATH="+tools+":"+os.Getenv("PATH"))
	p := startEnv(t, dir, env, "--no-preflight", "--no-retry", "--telemetry-interval", "200ms", "--hang-timeout", "2s", "--", "python3", script)
	var pids []string
	until(t, "py-spy is at work", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "pids"))
		pids = strings.Fields(string(b))
		return err == nil && len(pids) == 2
	})
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
	for _, pid := range pids {
		until(t, "it is gone", func() bool {
			b, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(b), ") Z ")
		})
	}
}
