package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sparkrun/internal/job"
)

// socketPath is a short one.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sre")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// fake serves a handler on a unix socket.
func fake(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	path := socketPath(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }() // ends with Close
	t.Cleanup(func() { s.Close() })
	return path
}

// raw serves connections byte by byte.
func raw(t *testing.T, each func(net.Conn)) string {
	t.Helper()
	path := socketPath(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				each(c)
			}()
		}
	}()
	return path
}

const id64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func pong(w http.ResponseWriter) {
	w.Header().Set("Api-Version", "1.52")
	fmt.Fprint(w, "OK")
}

func prepareAt(socket string) Plan {
	return Prepare(Command{Argv: []string{"docker", "run", "img", "true"}, Env: []string{"DOCKER_HOST=unix://" + socket, "PATH=/nonexistent"}},
		job.Container{Engine: "docker", Verb: "run", Image: "img"}, "20260714-100000-run-abcd", 1, "/nonexistent")
}

func TestPrepareSaysWhatCannotBeEnded(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	plain := filepath.Join(t.TempDir(), "file")
	write(t, plain, "")
	for _, c := range []struct{ name, socket, why string }{
		{"none", "/nonexistent/s", "there is no socket"},
		{"a file", plain, "no engine listens"},
		{"hangs", raw(t, func(net.Conn) { <-hang }), "does not answer"},
		{"garbage", raw(t, func(c net.Conn) { fmt.Fprint(c, "\x00\x1b[31mSSH-2.0-x\r\n\r\n") }), "the engine on"},
		{"hangs in the body", raw(t, func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 9\r\n\r\nOK")
			<-hang
		}), "does not answer"},
		{"ends in the header", raw(t, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nApi-Ver") }), "the engine on"},
		{"another server", fake(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }), "is no container engine"},
		{"refuses", fake(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"message":"not you\u001b[2J"}`)
		}), "status 403: not you?[2J"},
		{"endless", raw(t, func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\n\r\n")
			for {
				if _, err := c.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}), "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			p := prepareAt(c.socket)
			if d := time.Since(began); d > 2*probeLimit {
				t.Errorf("took %s", d)
			}
			if p.Reach != ReachNone || !strings.HasPrefix(p.Why, "cannot end this container: ") || !strings.Contains(p.Why, c.why) || strings.Contains(p.Why, "\x1b") {
				t.Errorf("reach %s, why %q", p.Reach, p.Why)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			if _, err := p.Resolve(ctx); !errors.Is(err, ErrNotFound) {
				t.Errorf("resolved: %v", err)
			}
		})
	}
}

func TestPrepareByCommand(t *testing.T) {
	t.Parallel()
	good := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v") {
			t.Errorf("a version is asked for: %s", r.URL.Path)
		}
		if r.URL.Path == "/_ping" {
			pong(w)
			return
		}
		http.Error(w, `{"message":"No such container"}`, http.StatusNotFound)
	})
	run := func(engine, verb, line string) Plan {
		cmd := Command{Argv: strings.Fields(line), Env: []string{"DOCKER_HOST=unix://" + good, "HOME=/nonexistent"}, Dir: "/work dir"}
		return Prepare(cmd, job.Container{Engine: engine, Verb: verb, Image: "img"}, "ID", 2, "/run/dir")
	}
	for _, c := range []struct {
		engine, verb, line string
		added, why, again  string
		detached           bool
	}{
		{engine: "docker", verb: "run", line: "docker run --rm img", added: "--label=sparkrun.attempt=ID.2"},
		{engine: "docker", verb: "run", line: "docker run -d img", added: "--label=sparkrun.attempt=ID.2", detached: true},
		{engine: "docker", verb: "run", line: "docker run --name n --rm img"},
		{engine: "docker", verb: "run", line: "docker run --name n img", again: "stays taken"},
		{engine: "docker", verb: "run", line: "docker run --cidfile f img", again: "--cidfile f exists"},
		{engine: "docker", verb: "exec", line: "docker exec img sh"},
		{engine: "docker", verb: "start", line: "docker start img", detached: true},
		{engine: "docker", verb: "start", line: "docker start -ai img"},
		{engine: "docker", verb: "compose", line: "docker compose up", why: "compose"},
		{engine: "docker", verb: "build", line: "docker build .", why: "only run, exec and start"},
		{engine: "docker", verb: "", line: "docker --frob", why: "not understood"},
		{engine: "nerdctl", verb: "run", line: "nerdctl run img", why: "nerdctl"},
		{engine: "podman", verb: "exec", line: "podman --remote --connection x exec img sh", why: "another machine"},
	} {
		p := run(c.engine, c.verb, c.line)
		if got := strings.Join(p.Added, " "); got != c.added {
			t.Errorf("%s: added %q", c.line, got)
		}
		if (c.why == "") != (p.Why == "") || !strings.Contains(p.Why, c.why) || (p.Reach == ReachNone) != (c.why != "") {
			t.Errorf("%s: reach %s, why %q", c.line, p.Reach, p.Why)
		}
		if p.Detached != c.detached || (c.again == "") != (p.Again == "") || !strings.Contains(p.Again, c.again) {
			t.Errorf("%s: detached %v, again %q", c.line, p.Detached, p.Again)
		}
		if c.added != "" && (p.Argv[1] != "run" || p.Argv[2] != c.added || len(p.Argv) != len(strings.Fields(c.line))+1) {
			t.Errorf("%s: %v", c.line, p.Argv)
		}
	}
}

// script is a fake engine with one container that a test turns.
type script struct {
	pid     atomic.Int64
	removed atomic.Bool
	events  chan string
	hang    chan struct{}
	gone    chan struct{} // the wait ends with an error
	kills   atomic.Int32
	dead    atomic.Bool // after the first order to end, nothing is answered
}

func (s *script) serve(w http.ResponseWriter, r *http.Request) {
	if s.dead.Load() {
		<-r.Context().Done()
		return
	}
	switch path := r.URL.Path; {
	case path == "/_ping":
		pong(w)
	case path == "/containers/json":
		fmt.Fprintf(w, `[{"Id":"../../etc"},{"Id":%q}]`, id64)
	case path == "/containers/"+id64+"/json":
		if s.removed.Load() {
			http.Error(w, `{"message":"No such container"}`, http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, `{"Id":%q,"Name":"/x","Created":%q,"State":{"Status":"running","Running":true,"Pid":%d,"StartedAt":"2020-01-01T00:00:00Z"}}`,
			id64, time.Now().Format(time.RFC3339Nano), s.pid.Load())
	case path == "/events":
		w.(http.Flusher).Flush()
		for {
			select {
			case e := <-s.events:
				fmt.Fprintln(w, e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	case strings.HasSuffix(path, "/kill"), strings.HasSuffix(path, "/stop"):
		s.kills.Add(1)
		s.dead.Store(true)
		<-s.hang
	case strings.HasSuffix(path, "/wait") && s.removed.Load():
		fmt.Fprint(w, `{"StatusCode":0,"Error":{"Message":"no such container"}}`)
	case strings.HasSuffix(path, "/wait"):
		select {
		case <-s.gone:
			fmt.Fprint(w, `{"StatusCode":0,"Error":{"Message":"no such container"}}`)
		case <-r.Context().Done():
		}
	default:
		<-r.Context().Done()
	}
}

func scripted(t *testing.T, pid int) (*script, *Container) {
	t.Helper()
	s := &script{events: make(chan string, 9), hang: make(chan struct{}), gone: make(chan struct{})}
	s.pid.Store(int64(pid))
	socket := fake(t, s.serve)
	t.Cleanup(func() { close(s.hang) })
	p := prepareAt(socket)
	c, err := p.Resolve(within(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return s, c
}

// An engine that names a process which is not the container's (here the test
// itself) must not get it counted or killed.
func TestForeignPIDIsNotTaken(t *testing.T) {
	t.Parallel()
	s, c := scripted(t, os.Getpid())
	if c.PID != 0 || len(c.Dirs) != 0 {
		t.Fatalf("%+v", c)
	}
	if _, err := c.Processes(within(t)); err == nil {
		t.Error("processes of a container that cannot be seen")
	}
	// The engine hangs at the kill: the wait is bounded and nobody is hit.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := c.Kill(ctx); err == nil {
		t.Error("killed")
	}
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("took %s", d)
	}
	if s.kills.Load() == 0 {
		t.Error("the engine was not asked")
	}
}

// An engine that hangs when it is told to kill is gone around: the processes in
// the container's cgroup are killed without it.
func TestKillAroundAHungEngine(t *testing.T) {
	t.Parallel()
	m := cgroupMounts()
	mount := m.v1
	if mount == "" {
		mount = m.v2
	}
	dir := filepath.Join(mount, "sparkrun-test-"+id64)
	if err := os.Mkdir(dir, 0o755); mount == "" || err != nil {
		t.Skipf("no cgroup can be made here (root is needed): %v", err)
	}
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed
		close(gone)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-gone
		eventually(t, "the cgroup to be empty", func() bool { return os.Remove(dir) == nil })
	})
	write(t, filepath.Join(dir, "cgroup.procs"), fmt.Sprint(cmd.Process.Pid))
	s, c := scripted(t, cmd.Process.Pid)
	if c.PID != cmd.Process.Pid || !strings.HasSuffix(c.Cgroup, "/sparkrun-test-"+id64) {
		t.Fatalf("%+v", c)
	}
	if err := c.Kill(within(t)); err != nil {
		t.Error(err)
	}
	if s.kills.Load() != 1 {
		t.Error("the engine was not asked first")
	}
	select {
	case <-gone:
	default:
		t.Error("the process lives")
	}
}

func TestEndAfterRemoval(t *testing.T) {
	t.Parallel()
	s, c := scripted(t, os.Getpid())
	s.events <- `not json at all`
	s.events <- `{"Type":"container","Action":"oom","Actor":{"ID":"` + id64 + `"}}`
	s.events <- `{"Type":"container","Action":"die","Actor":{"ID":"` + strings.Repeat("f", 64) + `","Attributes":{"exitCode":"3"}}}`
	s.removed.Store(true)
	s.events <- `{"Type":"container","Action":"die","Actor":{"ID":"` + id64 + `","Attributes":{"exitCode":"137"}},"timeNano":` + fmt.Sprint(time.Now().UnixNano()) + `}`
	end, err := c.End(within(t))
	if err != nil || !end.ExitKnown || end.ExitCode != 137 || !end.OOMKilled || !end.OOMKnown || end.Running || end.Finished.IsZero() {
		t.Errorf("%+v, %v", end, err)
	}
}

// Removed, and nobody told how it ended: unknown is not zero.
func TestEndUnknown(t *testing.T) {
	t.Parallel()
	s, c := scripted(t, os.Getpid())
	s.removed.Store(true)
	close(s.gone)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	end, err := c.End(ctx)
	if err != nil || end.ExitKnown || end.OOMKnown || end.Running {
		t.Errorf("%+v, %v", end, err)
	}
}

func TestInspectedForms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text string }{
		{"a list", `[]`},
		{"no id", `{"State":{}}`},
		{"an id with a slash", `{"Id":"../../x"}`},
		{"a pid too large", `{"Id":"` + id64 + `","State":{"Pid":99999999999999999999}}`},
		{"cut", `{"Id":"` + id64},
		{"binary", "\x00\xff\xfe"},
	} {
		a := newAPI(fake(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.text) }))
		if v, err := a.inspect(within(t), "x"); err == nil {
			t.Errorf("%s was taken: %+v", c.name, v)
		}
	}
	// Names go into the path escaped.
	var seen atomic.Pointer[string]
	a := newAPI(fake(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(&r.RequestURI)
		w.WriteHeader(http.StatusNotFound)
	}))
	if _, err := a.inspect(within(t), "a/../b?c=d e\r\nX: y"); !errors.Is(err, errGone) {
		t.Errorf("%v", err)
	}
	if got := *seen.Load(); got != "/containers/a%2F..%2Fb%3Fc=d%20e%0D%0AX:%20y/json" {
		t.Errorf("asked for %s", got)
	}
}

func TestCIDFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "id")
	if _, err := readCIDFile(path); !errors.Is(err, errNotYet) {
		t.Errorf("%v", err)
	}
	for _, text := range []string{"", "../../x", strings.Repeat("a", 10000), id64[:63] + "G"} {
		write(t, path, text)
		if id, err := readCIDFile(path); err == nil {
			t.Errorf("%q gave %s", text, id)
		}
	}
	write(t, path, id64+"\n")
	if id, err := readCIDFile(path); id != id64 || err != nil {
		t.Errorf("%s, %v", id, err)
	}
	if _, err := readCIDFile(filepath.Dir(path)); err == nil {
		t.Error("a folder was read")
	}
}

func TestFromInspect(t *testing.T) {
	t.Parallel()
	var v inspected
	text := `{"Id":"` + id64 + `","State":{"Status":"created","ExitCode":0,"StartedAt":"0001-01-01T00:00:00Z","Error":"exec: not found"}}`
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if e := fromInspect(v); e.ExitKnown || e.OOMKnown || !e.Started.IsZero() || e.Error == "" {
		t.Errorf("a container that never started: %+v", e)
	}
}
