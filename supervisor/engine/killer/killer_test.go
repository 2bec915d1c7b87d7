package killer

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/proctree"
)

const id64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// listen accepts connections and hands them over.
func listen(t *testing.T) (path string, conns chan net.Conn, again func()) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "srk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "s")
	conns = make(chan net.Conn, 64)
	var l net.Listener
	again = func() {
		if l != nil {
			l.Close()
		}
		_ = os.Remove(path)
		if l, err = net.Listen("unix", path); err != nil {
			t.Fatal(err)
		}
		go func(l net.Listener) {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				conns <- c
			}
		}(l)
	}
	again()
	t.Cleanup(func() { l.Close() })
	return path, conns, again
}

func take(t *testing.T, conns chan net.Conn) net.Conn {
	t.Helper()
	select {
	case c := <-conns:
		t.Cleanup(func() { c.Close() })
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("no connection came")
		return nil
	}
}

func request(t *testing.T, c net.Conn) *http.Request {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestKillIsOneRequest(t *testing.T) {
	t.Parallel()
	path, conns, _ := listen(t)
	k, err := Open(path, id64)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	a, _ := take(t, conns), take(t, conns)
	if err := k.Kill(); err != nil {
		t.Fatal(err)
	}
	r := request(t, a)
	if r.Method != http.MethodPost || r.URL.String() != "/containers/"+id64+"/kill?signal=KILL" {
		t.Errorf("%s %s", r.Method, r.URL)
	}
	_, _ = a.Write([]byte("HTTP/1.1 204 No Content\r\n\r\n"))
	if code, err := k.Answer(5 * time.Second); code != 204 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
}

func TestExecTarget(t *testing.T) {
	t.Parallel()
	path, conns, _ := listen(t)
	k, err := Open(path, "exec/"+id64)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	a := take(t, conns)
	if err := k.Kill(); err != nil {
		t.Fatal(err)
	}
	r := request(t, a)
	if r.URL.Path != "/exec/"+id64+"/start" || r.ContentLength == 0 {
		t.Errorf("%s with %d bytes", r.URL, r.ContentLength)
	}
}

// The engine closes an idle connection: it is opened again before it is needed.
func TestReopens(t *testing.T) {
	t.Parallel()
	path, conns, _ := listen(t)
	k, err := Open(path, id64)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	take(t, conns).Close()
	take(t, conns).Close()
	a := take(t, conns)
	if err := k.Kill(); err != nil {
		t.Fatal(err)
	}
	request(t, a)
}

// The engine was started again and nobody has looked since.
func TestKillConnectsItself(t *testing.T) {
	t.Parallel()
	path, conns, again := listen(t)
	k, err := Open(path, id64)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	a, b := take(t, conns), take(t, conns)
	again()
	k.mu.Lock() // look must not come first
	a.Close()
	b.Close()
	k.mu.Unlock()
	if err := k.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c := take(t, conns)
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			return
		}
	}
	t.Error("no request came")
}

func TestAnswerIsBounded(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"silence": "", "garbage": "SSH-2.0-x\r\n", "endless": strings.Repeat("x", 4096), "odd": "HTTP/1.1 \xff\r\n",
	} {
		path, conns, _ := listen(t)
		k, err := Open(path, id64)
		if err != nil {
			t.Fatal(err)
		}
		a := take(t, conns)
		if err := k.Kill(); err != nil {
			t.Fatal(err)
		}
		_, _ = a.Write([]byte(text))
		if code, err := k.Answer(50 * time.Millisecond); err == nil {
			t.Errorf("%s: %d", name, code)
		}
		k.Close()
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	path, _, _ := listen(t)
	for _, c := range []struct{ endpoint, what string }{
		{path, ""},
		{path, "x/../y"},
		{path, "name"},
		{path, "exec/"},
		{path, id64 + "\r\nX: y"},
		{"", id64},
		{"/nonexistent/s", id64},
		{"/" + strings.Repeat("x", 200), id64},
		{"", "pid/1/1"},
		{"", "pid/x/1"},
		{"", "pid/-5/1"},
		{"", "pid/" + strconv.Itoa(os.Getpid()) + "/1"},
		{"", "pid/"},
	} {
		if k, err := Open(c.endpoint, c.what); err == nil {
			k.Close()
			t.Errorf("%q %q was opened", c.endpoint, c.what)
		}
	}
}

func TestKillAllocatesNothing(t *testing.T) {
	path, conns, _ := listen(t)
	k, err := Open(path, id64)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	take(t, conns)
	if n := testing.AllocsPerRun(20, func() {
		if k.Kill() != nil {
			t.Error("not sent")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestProcesses(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 300 & wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, ok := proctree.Read(cmd.Process.Pid)
	if !ok {
		t.Fatal("gone")
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(proctree.Walk(p.PID)) == 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	children := proctree.Walk(p.PID)
	if len(children) != 1 {
		t.Fatalf("%v", children)
	}
	k, err := Open("", "pid/"+strconv.Itoa(p.PID)+"/"+strconv.FormatUint(p.Start, 10))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if n := testing.AllocsPerRun(20, func() { _ = k.Kill() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	_ = cmd.Wait() // killed
	for time.Now().Before(deadline) {
		now, ok := proctree.Read(children[0].PID)
		if !ok || now.Start != children[0].Start || now.State == 'Z' {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("the child lives")
}
