package holder

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays every process: the holder, the exec step, supervisors
// that die, and children with one habit each.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "__hold":
			os.Exit(HoldMain(os.Args[2:]))
		case "__exec":
			os.Exit(ExecMain(os.Args[2:]))
		case wakerArg:
			os.Exit(WakeMain(os.Args[2:]))
		case "fake-supervisor":
			os.Exit(fakeSupervisor(os.Args[2], os.Args[3]))
		case "fake-flood":
			os.Exit(fakeFlood(os.Args[2]))
		case "fake-deaf":
			os.Exit(fakeDeaf(os.Args[2:]))
		case "fake-usr1":
			os.Exit(fakeUSR1())
		case "fake-fill":
			os.Exit(fakeFill(os.Args[2:]))
		case "fake-owner":
			os.Exit(fakeOwner(os.Args[2]))
		}
	}
	os.Exit(m.Run())
}

// fakeFlood prints n bytes of a pattern that has a newline now and then.
func fakeFlood(n string) int {
	left, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		return 2
	}
	block := floodBlock()
	for left > 0 {
		b := block[:min(left, int64(len(block)))]
		k, err := os.Stdout.Write(b)
		if err != nil {
			return 1
		}
		left -= int64(k)
	}
	return 0
}

// floodBlock holds every byte value; its length is prime to all buffer sizes.
func floodBlock() []byte {
	b := make([]byte, 65521)
	for i := range b {
		b[i] = byte(i * 7 / 3)
	}
	return b
}

// fakeDeaf ignores the named signals, says so and waits for ever.
func fakeDeaf(names []string) int {
	for _, n := range names {
		sig, err := parseSignal(n)
		if err != nil {
			return 2
		}
		signal.Ignore(sig)
	}
	fmt.Println("deaf")
	for {
		time.Sleep(time.Hour)
	}
}

// fakeUSR1 prints a line for each of the signals it gets and ends with TERM.
func fakeUSR1() int {
	c := make(chan os.Signal, 8)
	signal.Notify(c, unix.SIGUSR1, unix.SIGINT, unix.SIGWINCH, unix.SIGTERM)
	fmt.Println("ready")
	for s := range c {
		fmt.Println("got", signalName(s.(syscall.Signal)))
		if s == unix.SIGTERM {
			return 7
		}
	}
	return 0
}

// fakeSupervisor starts a holder, prints its pid and waits to be killed.
func fakeSupervisor(dir, script string) int {
	spec := baseSpec(dir, "sh", "-c", script)
	_, st, err := Start(os.Args[0], spec, nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(st.HolderPID)
	for {
		time.Sleep(time.Hour)
	}
}

func baseSpec(dir string, argv ...string) Spec {
	path := argv[0]
	if p, err := exec.LookPath(path); err == nil {
		path = p
	}
	return Spec{
		RunID: "20260101-000000-test-abcd", Attempt: 1, Dir: dir, Socket: filepath.Join(dir, "s"),
		Path: path, Argv: argv, Cwd: "/", Env: []string{"PATH=" + os.Getenv("PATH"), "MARK=1"},
		PTY: true, Rows: 40, Cols: 120, Stdin: StdinPTY, OOMScoreAdj: -1, Grace: 5 * time.Second,
		Waits: Waits{
			Settle: 50 * time.Millisecond, Leftover: 300 * time.Millisecond, Term: 300 * time.Millisecond,
			Short: 200 * time.Millisecond, Kill: 3 * time.Second, Drain: 500 * time.Millisecond,
		},
	}
}

// shortDir is a temporary directory whose path leaves room for a socket name.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// attempt is one running holder of a test.
type attempt struct {
	t   testing.TB
	dir string
	h   *Holder
	st  Started
}

func self(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func start(t testing.TB, spec Spec, stdin *os.File) *attempt {
	t.Helper()
	h, st, err := Start(self(t), spec, stdin)
	if err != nil {
		t.Fatalf("starting: %v", err)
	}
	a := &attempt{t: t, dir: spec.Dir, h: h, st: st}
	t.Cleanup(func() {
		// A test that failed half-way leaves nothing behind.
		if !isClosed(h.gone) {
			_ = unix.Kill(-st.ChildPID, unix.SIGKILL)
			_ = h.Signal(unix.SIGKILL)
			<-h.Wait()
		}
	})
	return a
}

// end waits for the end of the attempt.
func (a *attempt) end() Exit {
	a.t.Helper()
	select {
	case <-a.h.Wait():
	case <-time.After(30 * time.Second):
		a.t.Fatal("the holder does not end")
	}
	e, err := ReadExit(a.dir)
	if err != nil {
		a.t.Fatal(err)
	}
	return e
}

func (a *attempt) log() []byte {
	a.t.Helper()
	b, err := os.ReadFile(filepath.Join(a.dir, logName))
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

func (a *attempt) dial(role string) *Client {
	a.t.Helper()
	c, err := Dial(filepath.Join(a.dir, "s"), role)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { c.Close() })
	return c
}

// says waits until the log holds text.
func (a *attempt) says(text string) {
	a.t.Helper()
	until(a.t, "the output holds "+strconv.Quote(text), func() bool { return bytes.Contains(a.log(), []byte(text)) })
}

// until polls a condition that a process elsewhere brings about.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(3 * time.Millisecond)
	}
}

func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(b[bytes.LastIndexByte(b, ')'):]), ") Z")
}

// runSh runs a script to its end.
func runSh(t testing.TB, script string, change func(*Spec)) (*attempt, Exit) {
	t.Helper()
	spec := baseSpec(shortDir(t), "sh", "-c", script)
	if change != nil {
		change(&spec)
	}
	a := start(t, spec, nil)
	return a, a.end()
}

func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// pushLog collects pushes of a client.
type pushLog struct {
	mu  sync.Mutex
	all []Push
	end chan struct{}
}

func collect(c *Client) *pushLog {
	l := &pushLog{end: make(chan struct{})}
	go func() {
		defer close(l.end)
		for p := range c.Pushes() {
			l.mu.Lock()
			l.all = append(l.all, p)
			l.mu.Unlock()
		}
	}()
	return l
}

func (l *pushLog) last(kind string) (Push, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.all) - 1; i >= 0; i-- {
		if l.all[i].Kind == kind {
			return l.all[i], true
		}
	}
	return Push{}, false
}
