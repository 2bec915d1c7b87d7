package hygiene

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func running(pid int) bool {
	p, ok := newTable("/", "").read(pid)
	return ok && !p.gone()
}

// notShm leaves out what others do in the machine's shared memory meanwhile.
func notShm(fs []Finding) []Finding {
	return slices.DeleteFunc(fs, func(f Finding) bool { return f.Kind == "shm" })
}

// reap ends a process that is nobody's child of ours.
func reap(t *testing.T, pid int) {
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
}

func TestLeftoversAreEnded(t *testing.T) {
	t.Parallel()
	mark := entry(t)
	port := start(t, "listen", "", mark)
	deaf := start(t, "deaf", "", mark)
	stopped := start(t, "live", "", mark)
	if err := unix.Kill(stopped.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stranger := start(t, "live", "", mark+"0") // a longer id is another run
	bystander := start(t, "live", "")
	kept := start(t, "live", "", mark)

	o := Options{
		UID: os.Getuid(), Entry: mark, Grace: 300 * time.Millisecond, Protect: func(pid int) bool { return pid == kept.pid },
		Tree: map[int]string{bystander.pid: "hygiene.test"}, Start: time.Now().Add(-time.Hour),
	}
	looked := o
	looked.DryRun = true
	for _, f := range Clean(t.Context(), looked) {
		if f.Removed {
			t.Errorf("only looking: %+v", f)
		}
	}
	for _, p := range []player{port, deaf, stopped} {
		if !running(p.pid) {
			t.Fatal("ended by a look")
		}
	}

	began := time.Now()
	fs := Clean(t.Context(), o)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	for name, p := range map[string]player{"listens": port, "deaf to SIGTERM": deaf, "stopped": stopped} {
		f := find(t, fs, "process", fmt.Sprintf("pid %d", p.pid))
		if !f.Removed || f.PID != p.pid || f.KiB == 0 || running(p.pid) || !strings.Contains(f.Why, mark) {
			t.Errorf("%s: %+v, running %v", name, f, running(p.pid))
		}
	}
	for name, p := range map[string]player{"another run": stranger, "an environment of its own": bystander, "protected": kept} {
		if !running(p.pid) {
			t.Errorf("%s was ended", name)
		}
	}
	if f := find(t, fs, "port", ":"+port.said); !f.Removed || f.PID != port.pid || f.What != "127.0.0.1:"+port.said {
		t.Errorf("%+v", f)
	}
	if fs = notShm(fs); len(fs) != 4 {
		t.Errorf("%d findings: %+v", len(fs), fs)
	}
}

// TestChildrenWithoutAnEnvironment: a program that writes its title over the
// environment is ours by its parent; one with an environment of its own is not.
func TestChildrenWithoutAnEnvironment(t *testing.T) {
	t.Parallel()
	mark := entry(t)
	bare, own := start(t, "parent", "", mark), start(t, "grandparent", "", mark)
	bareChild, grandchild := bare.number(t), own.number(t)
	reap(t, bareChild)
	reap(t, grandchild)
	between, ok := newTable("/", "").read(grandchild)
	if !ok || between.ppid == own.pid {
		t.Fatalf("%+v", between)
	}
	fs := Clean(t.Context(), Options{UID: os.Getuid(), Entry: mark})
	for _, pid := range []int{bare.pid, own.pid, bareChild} {
		if f := find(t, fs, "process", fmt.Sprintf("pid %d)", pid)); !f.Removed || running(pid) {
			t.Errorf("%d: %+v", pid, f)
		}
	}
	for _, f := range fs {
		if f.PID == between.ppid || f.PID == grandchild {
			t.Errorf("below a process with an environment of its own: %+v", f)
		}
	}
}

// TestStoppedProcess: one that is stopped obeys SIGTERM only once it goes on.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	mark := entry(t)
	p := start(t, "live", "", mark)
	if err := unix.Kill(p.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	fs := Clean(t.Context(), Options{UID: os.Getuid(), Entry: mark, Grace: 10 * time.Second})
	if f := find(t, fs, "process", strconv.Itoa(p.pid)); !f.Removed || time.Since(began) > 8*time.Second {
		t.Errorf("%+v after %v", f, time.Since(began))
	}
}

// TestSeenWithoutAnEnvironment: orphaned and without an environment, it is ours
// only if pid, name, user and time of birth agree.
func TestSeenWithoutAnEnvironment(t *testing.T) {
	t.Parallel()
	began := time.Now()
	time.Sleep(2 * tick)
	cmd := exec.Command("sleep", "600")
	cmd.Env = []string{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pid := cmd.Process.Pid
	good := Options{UID: os.Getuid(), Entry: entry(t), Start: began, Tree: map[int]string{pid: "sleep"}}
	for name, change := range map[string]func(*Options){
		"not seen":        func(o *Options) { o.Tree = map[int]string{pid + 1: "sleep"} },
		"another name":    func(o *Options) { o.Tree = map[int]string{pid: "python3"} },
		"another user":    func(o *Options) { o.UID++ },
		"born before":     func(o *Options) { o.Start = time.Now().Add(time.Minute) },
		"born after":      func(o *Options) { o.End = began },
		"no entry":        func(o *Options) { o.Entry = "" },
		"an empty entry":  func(o *Options) { o.Entry = "SPARKRUN_RUN_ID=" },
		"a start unknown": func(o *Options) { o.Start = time.Time{} },
	} {
		o := good
		change(&o)
		if fs := notShm(Clean(t.Context(), o)); !running(pid) || len(fs) > 0 {
			t.Fatalf("%s: %+v", name, fs)
		}
	}
	if f := find(t, Clean(t.Context(), good), "process", strconv.Itoa(pid)); !f.Removed {
		t.Errorf("%+v", f)
	}
}

// TestNeverOurself: an entry that sparkrun itself and its parents carry, as in a
// run inside a run.
func TestNeverOurself(t *testing.T) {
	t.Parallel()
	o := Options{UID: os.Getuid(), Entry: "PATH=" + os.Getenv("PATH"), DryRun: true, Root: "/"}
	c := &cleaner{o: o, tab: newTable("/", o.Entry)}
	c.tab.look()
	if c.tab.procs[os.Getpid()].env != envOurs {
		t.Fatal("this process does not carry the entry")
	}
	if !c.protected(os.Getpid()) || !c.protected(os.Getppid()) || !c.protected(1) || c.protected(dead) {
		t.Error("this process, its parent and process 1 must be safe")
	}
	for _, p := range c.leftovers() {
		if p.pid == os.Getpid() || p.pid == os.Getppid() || p.pid == 1 {
			t.Errorf("would end %+v", p)
		}
	}
}

func TestCleanIsCanceled(t *testing.T) {
	t.Parallel()
	mark := entry(t)
	deaf := start(t, "deaf", "", mark)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	fs := Clean(ctx, Options{UID: os.Getuid(), Entry: mark, Grace: time.Minute})
	if f := find(t, fs, "process", strconv.Itoa(deaf.pid)); f.Removed || time.Since(began) > 2*time.Second {
		t.Errorf("%+v after %v", f, time.Since(began))
	}
}

// TestStrangerOnThePort: the port the job needs is held by somebody else.
func TestStrangerOnThePort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	fs := Clean(t.Context(), Options{UID: os.Getuid(), Entry: entry(t), Ports: []int{port, port}})
	f := find(t, fs, "port", strconv.Itoa(port))
	if f.Removed || f.PID != os.Getpid() || !strings.Contains(f.Why, fmt.Sprintf("hygiene.test (pid %d)", os.Getpid())) || len(fs) != 1 {
		t.Errorf("%+v", fs)
	}
}

func TestTimeWait(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	server.Close() // who closes first waits
	_, _ = client.Read(make([]byte, 1))
	client.Close()
	deadline := time.Now().Add(5 * time.Second)
	for {
		fs := Clean(t.Context(), Options{UID: os.Getuid(), Entry: entry(t), Ports: []int{port}})
		if len(fs) == 1 && strings.Contains(fs[0].Why, "TIME_WAIT") && !fs[0].Removed {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", fs)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestParseSocket(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0 100 0": "127.0.0.1:29500 10 12345",
		"   1: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 77 1":    "[::]:22 10 77",
		"   2: 0000000000000000FFFF00000100007F:0050 0:0 06 0:0 0:0 0 0 0 0 3":                                       "127.0.0.1:80 6 0",
		"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode":           "",
		"   0: 0100007F:7": "",
	} {
		l, ok := parseSocket(line)
		got := ""
		if ok {
			got = fmt.Sprintf("%s %d %d", l, l.state, l.inode)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestAProcessThatHangs: reading its environment never returns, as with a process
// stuck in a driver. A pipe without a writer stands for it.
func TestAProcessThatHangs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := root + "/proc/4242"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"stat":   "4242 (python3) D 1 4242 4242 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0",
		"status": fmt.Sprintf("Name:\tpython3\nUid:\t%d\t0\t0\t0\nRssAnon:\t2048 kB\n", os.Getuid()),
	} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(dir+"/environ", 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // let the reader go
		if f, err := os.OpenFile(dir+"/environ", os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
	})
	began := time.Now()
	fs := Clean(t.Context(), Options{UID: os.Getuid(), Entry: entry(t), Root: root, Tree: map[int]string{4242: "python3"}})
	if f := find(t, fs, "process", "4242"); f.Removed || f.KiB != 2048 || !strings.Contains(f.Why, "hangs in the kernel") {
		t.Errorf("%+v", f)
	}
	if took := time.Since(began); took > 5*readWait {
		t.Errorf("took %v", took)
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"psm_é": "psm_é", "a\nb\x1b[2J": `a\nb\x1b[2J`, "\xff": `\xff`, `"q"`: `"q"`} {
		if got := shown(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
