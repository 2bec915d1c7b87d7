package holder

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rawClient speaks the protocol by hand.
type rawClient struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func (a *attempt) raw(t *testing.T) *rawClient {
	conn, err := net.Dial("unix", filepath.Join(a.dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rawClient{t: t, conn: conn, in: bufio.NewReader(conn)}
}

func (r *rawClient) say(line string) {
	r.t.Helper()
	if _, err := fmt.Fprintln(r.conn, line); err != nil {
		r.t.Fatal(err)
	}
}

// hear returns the next line that is no push.
func (r *rawClient) hear() map[string]any {
	r.t.Helper()
	_ = r.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		line, err := r.in.ReadBytes('\n')
		if err != nil {
			r.t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			r.t.Fatalf("%q: %v", line, err)
		}
		if m["push"] == nil {
			return m
		}
	}
}

const waits = "echo up; read x; exit 0"

func TestProtocolByHand(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", waits), nil)
	r := a.raw(t)
	for _, x := range []struct{ say, key, want string }{
		{`{"id":1,"req":"status"}`, "error", "hello"},
		{`{"v":99,"id":2,"req":"hello"}`, "error", "version 1"},
		{`{"id":2,"req":"hello"}`, "error", "version 1"},
		{`{"v":1,"id":3,"req":"hello","role":"test"}`, "ok", "true"},
		{`{"id":4,"req":"dance"}`, "error", `"dance"`},
		{`{"id":5,"req":"floors"}`, "error", "without floors"},
		{`{"id":5,"req":"floors","floors":{"phase":"nap"}}`, "error", "nap"},
		{`{"id":5,"req":"container","endpoint":"unix:///x","container":"abc"}`, "error", "no container id"},
		{`no json`, "error", "no request"},
		{`{"id":6,"req":"resize","rows":0,"cols":5}`, "error", "too small"},
		{`{"id":7,"req":"signal","name":"INT","to":"x"}`, "error", "fg, child or tree"},
		{`{"id":8,"req":"stop","signal":"WHAT"}`, "error", "WHAT"},
		{`{"id":9,"req":"stdin","b64":"eAo="}`, "ok", "true"},
	} {
		r.say(x.say)
		m := r.hear()
		if got := fmt.Sprint(m[x.key]); !strings.Contains(got, x.want) {
			t.Errorf("%s: %v, want %s %s", x.say, m, x.key, x.want)
		}
		if strings.HasPrefix(x.say, `{"id":`) {
			want := x.say[len(`{"id":`):strings.Index(x.say, ",")]
			if fmt.Sprint(m["id"]) != want {
				t.Errorf("%s: id %v", x.say, m["id"])
			}
		}
	}
	a.end()
}

func TestClientRequests(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), self(t), "fake-usr1"), nil)
	a.says("ready")
	c := a.dial(RoleSupervisor)
	st, err := c.Status()
	if err != nil {
		t.Fatal(err)
	}
	if st.RunID == "" || st.Attempt != 1 || st.HolderPID != a.st.HolderPID || st.ChildPID != a.st.ChildPID ||
		st.ChildStart != a.st.ChildStart || st.TreeTotal != 1 || st.Tree[0].PID != a.st.ChildPID ||
		st.Offset != 6 || !st.PTY || !st.ISIG || !st.ICANON || !st.Echo || st.Paused || st.Stopping != "" || st.Exited {
		t.Errorf("status %+v", st)
	}
	if err := c.Resize(50, 200); err != nil {
		t.Fatal(err)
	}
	a.says("got SIGWINCH")
	tty, err := os.Open(fmt.Sprintf("/proc/%d/fd/0", a.st.ChildPID))
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	if ws, err := unix.IoctlGetWinsize(int(tty.Fd()), unix.TIOCGWINSZ); err != nil || ws.Row != 50 || ws.Col != 200 {
		t.Errorf("size %+v, %v", ws, err)
	}
	// The command turns signals from keys off.
	tio, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	tio.Lflag &^= unix.ISIG | unix.ICANON
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, tio); err != nil {
		t.Fatal(err)
	}
	if st, err := c.Status(); err != nil || st.ISIG || st.ICANON || !st.Echo {
		t.Errorf("status %+v, %v", st, err)
	}
	tty.Close()

	if off, b, err := c.Read(2); err != nil || off != 2 || !strings.HasPrefix(string(b), "ady\ngot") {
		t.Errorf("read %d %q %v", off, b, err)
	}
	if off, b, err := c.Read(1 << 40); err != nil || off != int64(len(a.log())) || len(b) != 0 {
		t.Errorf("read beyond the end: %d %q %v", off, b, err)
	}
	pushes := collect(c)
	if err := c.Stop("TERM", time.Hour); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	<-pushes.end
	p, ok := pushes.last(PushExited)
	if !ok || !p.Saved || p.Exit == nil || p.Exit.Status() != 7 || p.Exit.Offset != e.Offset || p.Offset != e.Offset {
		t.Errorf("exited push %+v", p)
	}
	if g, ok := pushes.last(PushGrew); !ok || g.Offset != e.Offset {
		t.Errorf("last growth %+v, want offset %d", g, e.Offset)
	}
	if _, err := c.Status(); err == nil {
		t.Error("status of a dead holder succeeds")
	}
}

func TestGrowthIsToldInMeasure(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), "sh", "-c", "read x; "+self(t)+" fake-flood 6000000")
	a := start(t, spec, nil)
	c := a.dial("test")
	n, seen := 0, Push{}
	done := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		for p := range c.Pushes() {
			if p.Kind != PushGrew {
				continue
			}
			if n++; p.Offset < seen.Offset || p.Written < seen.Written || p.Written > p.Offset {
				t.Errorf("growth from %+v to %+v", seen, p)
			}
			seen = p
		}
	}()
	if err := c.Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	e := a.end()
	<-done
	if limit := int(time.Since(began)/grewEvery) + 3; n == 0 || n > limit {
		t.Errorf("%d pushes in %s, want 1 to %d", n, time.Since(began), limit)
	}
	if seen.Offset != e.Offset {
		t.Errorf("last growth %+v of %d", seen, e.Offset)
	}
}

func TestNewestTypistWins(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", "stty -echo; echo up; cat"), nil)
	a.says("up")
	older, newer := a.dial("a"), a.dial("b")
	if err := older.Stdin([]byte("one\n")); err != nil {
		t.Fatal(err)
	}
	if err := newer.Stdin([]byte("two\n")); err != nil {
		t.Fatal(err)
	}
	if err := older.Stdin([]byte("lost\n")); err == nil {
		t.Error("an older client still types")
	}
	if err := newer.Goodbye(); err != nil {
		t.Fatal(err)
	}
	until(t, "the older client may type again", func() bool { return older.Stdin([]byte("three\n\x04")) == nil })
	a.end()
	if got := string(a.log()); got != "up\none\ntwo\nthree\n" {
		t.Errorf("output %q", got)
	}
}

func TestTypingNeverBlocks(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), self(t), "fake-deaf"), nil)
	a.says("deaf")
	c := a.dial("test")
	var err error
	block := bytes.Repeat([]byte("x\n"), 32<<10)
	for range 40 {
		if err = c.Stdin(block); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "does not read") {
		t.Errorf("err = %v", err)
	}
	if st, err := c.Status(); err != nil || st.Exited {
		t.Errorf("status %+v, %v", st, err)
	}
	if err := c.Stop("KILL", 0); err != nil {
		t.Fatal(err)
	}
	a.end()
}

func TestNoTerminalNoTyping(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), "sleep", "1000")
	spec.PTY, spec.Stdin = false, StdinNull
	a := start(t, spec, nil)
	c := a.dial("test")
	for _, err := range []error{c.Stdin([]byte("x")), c.Resize(10, 10)} {
		if err == nil || !strings.Contains(err.Error(), "no terminal") {
			t.Errorf("err = %v", err)
		}
	}
	if st, err := c.Status(); err != nil || st.PTY || st.ISIG {
		t.Errorf("status %+v, %v", st, err)
	}
	// Without a terminal the foreground group is the command's own.
	if err := c.Stop("INT", time.Hour); err != nil {
		t.Fatal(err)
	}
	if e := a.end(); e.Signal != "SIGINT" {
		t.Errorf("exit %+v", e)
	}
}

// A client that asks and does not read is held back; the command and the other
// clients do not notice.
func TestDeafAskerIsHeldBack(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", self(t)+" fake-flood 3000000; echo; echo done; read x"), nil)
	a.says("done")
	deaf := a.raw(t)
	deaf.say(`{"v":1,"req":"hello"}`)
	// Far more than the socket and the reader's buffer take.
	_ = deaf.conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	line := []byte(`{"req":"read","from":0}` + "\n")
	if n, err := deaf.conn.Write(bytes.Repeat(line, 100000)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes of requests were taken: %v", n, err)
	}
	c := a.dial("test")
	if err := c.Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	a.end()
}

// What a client is told unasked counts against it, whether or not it has asked
// for something too; nothing waits for it.
func TestDeafPeerIsDroppedForPushes(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "true"), nil)
	a.end()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		defer c.Close()
	}
	p := newPeer(&server{peers: map[*peer]bool{}, empty: make(chan struct{})}, ends[0], 1)
	go p.write()
	p.send(reply{B64: make([]byte, maxRead)})
	p.wait()
	p.send(reply{B64: make([]byte, maxRead)})
	dropped := false
	for range 100000 {
		p.push(push{Push: PushGap, Gap: &Gap{Bytes: 1}})
		p.mu.Lock()
		dropped = p.dropped
		p.mu.Unlock()
		if dropped {
			break
		}
	}
	if !dropped {
		t.Error("pushes without end are kept for a client that does not read")
	}
	p.wait() // a request under way does not hang on a dropped client
}

// Replies to what a client asks for itself never cost it its connection, however
// many requests it has in flight.
func TestConcurrentReads(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", self(t)+" fake-flood 3000000; echo; echo done; read x"), nil)
	a.says("done")
	c := a.dial("test")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 10 {
				from := int64(i*100000 + k)
				if off, b, err := c.Read(from); err != nil || off != from || len(b) != maxRead {
					t.Errorf("read %d: %d, %d bytes, %v", from, off, len(b), err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := c.Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	a.end()
}

// A client that merely reads nothing while the command prints costs nothing
// and is told of the end.
func TestSilentPeerCostsNothing(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), "sh", "-c", "read x; "+self(t)+" fake-flood 3000000")
	spec.Waits.Linger = 5 * time.Second
	a := start(t, spec, nil)
	silent := a.raw(t)
	silent.say(`{"v":1,"req":"hello"}`)
	silent.say(`{"id":1,"req":"stdin","b64":"Cg=="}`)
	until(t, "the attempt is over", func() bool { _, err := ReadExit(a.dir); return err == nil })
	_ = silent.conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	exited := false
	for {
		line, err := silent.in.ReadString('\n')
		if err != nil {
			break
		}
		if strings.Contains(line, `"push":"exited"`) {
			exited = true
			silent.conn.Close()
		}
	}
	if !exited {
		t.Error("no word of the end")
	}
	if e := a.end(); e.Offset < 3000000 {
		t.Errorf("offset %d", e.Offset)
	}
}

func TestHolderLingersForItsClients(t *testing.T) {
	t.Parallel()
	spec := baseSpec(shortDir(t), "sh", "-c", "read x")
	spec.Waits.Linger = time.Hour
	a := start(t, spec, nil)
	c := a.dial(RoleSupervisor)
	if err := c.Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	for p := range c.Pushes() {
		if p.Kind == PushExited {
			break
		}
	}
	// The end is told, the output can still be fetched, a late client too.
	if off, b, err := c.Read(0); err != nil || off != 0 || string(b) != "\n" {
		t.Errorf("read %d %q %v", off, b, err)
	}
	late := a.dial("late")
	for p := range late.Pushes() {
		if p.Kind == PushExited && p.Exit.Status() == 0 {
			break
		}
	}
	if err := late.Goodbye(); err != nil {
		t.Error(err)
	}
	if err := c.Goodbye(); err != nil {
		t.Error(err)
	}
	a.end()
}

func TestHugeRequestIsRefused(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", waits), nil)
	r := a.raw(t)
	_, _ = r.conn.Write(bytes.Repeat([]byte("x"), maxRequest+1<<20))
	_ = r.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := r.in.ReadByte(); err == nil {
		t.Error("answered instead of dropped")
	}
	if err := a.dial("test").Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	a.end()
}

func TestManyClientsAtOnce(t *testing.T) {
	t.Parallel()
	a := start(t, baseSpec(shortDir(t), "sh", "-c", waits), nil)
	a.says("up")
	var wg sync.WaitGroup
	for i := range 20 {
		c := a.dial("reader" + strconv.Itoa(i))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 5 {
				if _, err := c.Status(); err != nil {
					t.Error(err)
				}
				if _, b, err := c.Read(0); err != nil || string(b) != "up\n" {
					t.Errorf("%q %v", b, err)
				}
			}
		}()
	}
	wg.Wait()
	if err := a.dial("test").Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	a.end()
}

func TestDialRefusesStrangers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to act as another user")
	}
	const python = "/usr/bin/python3" // one that another user may run
	if _, err := os.Stat(python); err != nil {
		t.Skipf("needs a Python for everybody: %v", err)
	}
	dir := shortDir(t)
	path := filepath.Join(dir, "s")
	// SO_PEERCRED of a listener is fixed by listen(2): another user's socket.
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := asNobody(t, python, "-c", `import socket,sys
s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print("up",flush=True); sys.stdin.read()`, path)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, err := Dial(path, "test")
	if err == nil || !strings.Contains(err.Error(), "uid") {
		t.Errorf("err = %v", err)
	}
	in.Close()
	_ = cmd.Wait()

	// And the holder refuses a stranger that can reach its socket.
	spec := baseSpec(dir, "sh", "-c", waits)
	spec.Socket = path + "2"
	a := start(t, spec, nil)
	if err := os.Chmod(spec.Socket, 0o666); err != nil {
		t.Fatal(err)
	}
	got, err := asNobody(t, python, "-c", `import socket,sys
s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
try: s.sendall(b'{"v":1,"req":"hello"}\n'); print(s.recv(100))
except OSError as e: print(b'')`, spec.Socket).CombinedOutput()
	if strings.TrimSpace(string(got)) != "b''" {
		t.Errorf("a stranger got %q, %v", got, err)
	}
	c, err := Dial(spec.Socket, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Stdin([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	a.end()
}
