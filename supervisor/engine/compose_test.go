package engine

import (
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
)

func TestTakeApartCompose(t *testing.T) {
	t.Parallel()
	type want struct {
		Verb, Service string
		Args          []string
		Project, Name string
		RM, Detached  bool
		Sudo          bool
		Program       bool
		Unknown       string
	}
	for _, c := range []struct {
		line, engine string
		want         want
	}{
		{
			"docker compose -f c.yml -p proj --profile gpu run --rm -T -e A=run trainer python train.py --rm -d", "docker",
			want{Verb: "run", Service: "trainer", Args: []string{"python", "train.py", "--rm", "-d"}, Project: "proj", RM: true},
		},
		{
			"docker --context x compose --project-directory /p --env-file=e run -d --name n trainer", "docker",
			want{Verb: "run", Service: "trainer", Args: []string{}, Name: "n", Detached: true},
		},
		{"sudo -u docker docker compose run trainer", "docker", want{Verb: "run", Service: "trainer", Args: []string{}, Sudo: true}},
		{
			"/usr/bin/docker-compose --project-name=run run -v /a:/b trainer sh", "docker",
			want{Verb: "run", Service: "trainer", Args: []string{"sh"}, Project: "run", Program: true},
		},
		{"env A=b podman-compose -f c run -- trainer", "podman", want{Verb: "run", Service: "trainer", Args: []string{}, Program: true}},
		{"podman compose exec -T --index 2 trainer sh -c ls", "podman", want{Verb: "exec", Service: "trainer", Args: []string{"sh", "-c", "ls"}}},
		{"docker compose up trainer", "docker", want{Verb: "up"}},
		{"docker compose run", "docker", want{Verb: "run"}},
		{"docker compose", "docker", want{}},
		{"docker compose -f", "docker", want{}},
		{"docker compose --frob x run trainer", "docker", want{Unknown: "--frob"}},
		{"docker compose run --frob trainer", "docker", want{Verb: "run", Unknown: "--frob"}},
		{"docker-compose run -Z trainer", "docker", want{Verb: "run", Program: true, Unknown: "-Z"}},
	} {
		argv := strings.Fields(c.line)
		got := takeApart(argv, job.Container{Engine: c.engine, Verb: "compose"})
		w := want{
			RM: on(got.options, "--rm"), Detached: on(got.options, "-d", "--detach"), Sudo: got.sudo,
			Program: got.compose == composeProgram, Unknown: got.unknown, Project: got.project(environ{}),
		}
		if got.verb >= 0 {
			w.Verb = argv[got.verb]
		}
		if got.unknown == "" {
			w.Service, w.Args = got.target, got.args
		}
		w.Name, _ = last(got.options, "--name")
		if d := cmp.Diff(c.want, w); d != "" {
			t.Errorf("%s\n%s", c.line, d)
		}
	}
}

func TestPrepareCompose(t *testing.T) {
	t.Parallel()
	good := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/_ping":
			pong(w)
		case "/containers/json":
			_, _ = w.Write([]byte("[]"))
		default:
			http.Error(w, `{"message":"No such container"}`, http.StatusNotFound)
		}
	})
	const name = "--name=sparkrun-20260714-a-b-2"
	for _, c := range []struct {
		engine, line string
		argv, why    string
		again        string
	}{
		{engine: "docker", line: "docker compose -f c.yml run trainer sh", argv: "docker compose -f c.yml run " + name + " trainer sh"},
		{engine: "docker", line: "docker-compose run --rm trainer", argv: "docker-compose run " + name + " --rm trainer"},
		{engine: "docker", line: "docker compose run --rm --name n trainer", argv: "docker compose run --rm --name n trainer"},
		{engine: "docker", line: "docker compose run --name n trainer", argv: "docker compose run --name n trainer", again: "stays taken"},
		{engine: "docker", line: "docker compose exec trainer sh", argv: "docker compose exec trainer sh"},
		{engine: "podman", line: "podman-compose run trainer", argv: "podman-compose run " + name + " trainer"},
		{engine: "podman", line: "podman compose run trainer", argv: "podman compose run " + name + " trainer"},
		{engine: "docker", line: "docker compose up", why: "compose up starts containers of its own choice"},
		{engine: "docker", line: "docker compose", why: "not understood"},
		{engine: "docker", line: "docker compose run", why: "names no image or container"},
		{engine: "docker", line: "docker compose run --frob trainer", why: "option --frob of compose is not known"},
		{engine: "docker", line: "docker -H tcp://far:1 compose run trainer", why: "leads over tcp"},
		{engine: "docker", line: "docker-compose -H tcp://far:1 run trainer", why: "leads over tcp"},
		{engine: "podman", line: "env DOCKER_HOST=tcp://far:1 podman compose run trainer", why: "leads over tcp"},
		{engine: "nerdctl", line: "nerdctl compose run trainer", why: "nerdctl"},
	} {
		cmd := Command{Argv: strings.Fields(c.line), Env: []string{"DOCKER_HOST=unix://" + good, "HOME=/nonexistent", "PATH=/nonexistent"}, Dir: "/w"}
		box := job.Container{Engine: c.engine, Verb: "compose"}
		p := Prepare(cmd, box, "20260714-a b", 2, "/run/dir")
		if c.why == "" {
			if got := strings.Join(p.Argv, " "); got != c.argv || p.Reach == ReachNone {
				t.Errorf("%s: became %q, reach %s, %q", c.line, got, p.Reach, p.Why)
			}
		} else if p.Reach != ReachNone || !strings.Contains(p.Why, c.why) || len(p.Added) > 0 {
			t.Errorf("%s: reach %s, why %q, added %v", c.line, p.Reach, p.Why, p.Added)
		}
		if (c.again == "") != (p.Again == "") || !strings.Contains(p.Again, c.again) {
			t.Errorf("%s: again %q", c.line, p.Again)
		}
		if ok, why := CanRetry(cmd, box); ok != (c.why == "" && c.again == "") || !strings.Contains(why, c.why) || !strings.Contains(why, c.again) {
			t.Errorf("%s: foreseen %v, %q", c.line, ok, why)
		}
	}
}

func TestCanRetry(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	socket := fake(t, func(http.ResponseWriter, *http.Request) { asked <- struct{}{} })
	dir := filepath.Dir(socket)
	for _, c := range []struct {
		name, engine, verb, line string
		cmd                      Command
		why                      string
	}{
		{name: "an engine", engine: "docker", verb: "run", line: "docker run --rm img"},
		{name: "an engine to come", engine: "docker", verb: "run", line: "docker -H unix://" + dir + "/none run img"},
		{name: "podman", engine: "podman", verb: "run", line: "podman run img"},
		{name: "another machine's", engine: "docker", verb: "run", line: "docker -H tcp://x:1 run img", why: "leads over tcp"},
		{name: "another engine", engine: "nerdctl", verb: "run", line: "nerdctl run img", why: "nerdctl is not"},
		{name: "a name of its own", engine: "docker", verb: "run", line: "docker run --name n img", why: "the name n stays taken"},
		{name: "a file of its own", engine: "docker", verb: "run", line: "docker run --cidfile n img", why: "--cidfile n exists"},
		{name: "exec", engine: "docker", verb: "exec", line: "docker exec img sh"},
		{name: "the latest", engine: "podman", verb: "exec", line: "podman exec -l sh", why: "--latest"},
		{name: "another verb", engine: "docker", verb: "create", line: "docker create img", why: "only run, exec and start"},
		{name: "a variable not known", engine: "docker", verb: "run", line: "docker run img", cmd: Command{Unclear: []string{"A", "DOCKER_HOST"}}, why: "sets DOCKER_HOST to a value that is not known"},
		{name: "a variable that does not matter", engine: "docker", verb: "run", line: "docker run img", cmd: Command{Unclear: []string{"A"}}},
	} {
		c.cmd.Argv, c.cmd.Env = strings.Fields(c.line), []string{"DOCKER_HOST=unix://" + socket, "HOME=/nonexistent"}
		ok, why := CanRetry(c.cmd, job.Container{Engine: c.engine, Verb: c.verb})
		if ok != (c.why == "") || ok != (why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %v, %q", c.name, ok, why)
		}
	}
	if len(asked) > 0 {
		t.Errorf("the engine was asked %d times", len(asked))
	}
}

// TestCanRetryForAnotherUser: sudo docker reaches an engine that this user may not ask.
func TestCanRetryForAnotherUser(t *testing.T) {
	t.Parallel()
	socket := fake(t, func(http.ResponseWriter, *http.Request) {})
	if err := os.Chmod(socket, 0o600); err != nil {
		t.Fatal(err)
	}
	var ok bool
	var why string
	done := make(chan error)
	go func() {
		// The thread is another user's from now on, and ends with the goroutine.
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
				done <- e
				return
			}
		} else if err := os.Chmod(socket, 0); err != nil {
			done <- err
			return
		}
		ok, why = CanRetry(Command{Argv: []string{"sudo", "DOCKER_HOST=unix://" + socket, "docker", "run", "--rm", "img"}}, job.Container{Engine: "docker", Verb: "run", Image: "img"})
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if ok || !strings.Contains(why, "cannot end this container: ") || !strings.Contains(why, os.ErrPermission.Error()) {
		t.Errorf("%v, %q", ok, why)
	}
}
