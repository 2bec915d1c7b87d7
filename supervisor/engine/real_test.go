package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
	"sparkrun/internal/proctree"
	"sparkrun/supervisor/engine/enginetest"
)

func TestMain(m *testing.M) {
	// As the holder is: what a client leaves behind becomes our child.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	os.Exit(m.Run())
}

// podmanBehind says whether the engine is podman, whichever client is in front.
// Its service tells a docker client 0 for a container that was removed (--rm),
// and with cgroup v1 podman 4.3 sees no kill for memory.
func podmanBehind(e *enginetest.Engine) bool {
	return slices.ContainsFunc(e.Env, func(v string) bool { return strings.HasPrefix(v, "CONTAINERS_CONF=") })
}

// clientStatus checks the client's own status, where it can be trusted.
func (s *started) clientStatus(want ...int) {
	s.t.Helper()
	got := s.status()
	if s.e.Name == "docker" && podmanBehind(s.e) && got == 0 {
		return
	}
	if !slices.Contains(want, got) {
		s.t.Errorf("client's status %d, want %d\n%s", got, want, s.out)
	}
}

// started is a client that was started the way an attempt would.
type started struct {
	t    *testing.T
	e    *enginetest.Engine
	plan Plan
	cmd  *exec.Cmd
	out  *lockedBuffer
	done chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func begin(t *testing.T, e *enginetest.Engine, c job.Container, argv ...string) *started {
	t.Helper()
	dir := t.TempDir()
	c.Engine = e.Name
	s := &started{t: t, e: e, out: &lockedBuffer{}, done: make(chan struct{})}
	s.plan = Prepare(Command{Argv: argv, Env: e.Environ(), Dir: dir}, c, strings.ReplaceAll(dir, "/", "-"), 1, dir)
	s.cmd = exec.Command(s.plan.Argv[0], s.plan.Argv[1:]...)
	s.cmd.Env = e.Environ()
	s.cmd.Dir = dir // podman's monitor leaves a file named oom where it was started
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.cmd.WaitDelay = time.Second // conmon may keep the pipe
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait() // read from ProcessState
		close(s.done)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
	})
	return s
}

// resolve waits for the container; the client's end bounds it, as it does in
// the supervisor.
func (s *started) resolve() *Container {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	go func() {
		select {
		case <-s.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	c, err := s.plan.Resolve(ctx)
	if err != nil {
		s.t.Fatalf("%v\nplan %+v\noutput %s", err, s.plan.Added, s.out)
	}
	s.t.Cleanup(c.Close)
	return c
}

// status waits for the client's own end.
func (s *started) status() int {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(15 * time.Second):
		s.t.Fatalf("the client still runs\n%s", s.out)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *started) says(text string) {
	s.t.Helper()
	eventually(s.t, "output "+text, func() bool { return strings.Contains(s.out.String(), text) })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// twoProcesses is a shell and a child of it, which both go on.
var twoProcesses = []string{"sh", "-c", "sleep 300 & echo ready; wait"}

func names(procs []proctree.Proc) []string {
	var out []string
	for _, p := range procs {
		out = append(out, p.Comm)
	}
	slices.Sort(out)
	return out
}

func hasLine(t *testing.T, path, line string) bool {
	t.Helper()
	b, err := os.ReadFile(path)
	return err == nil && slices.Contains(strings.Split(string(b), "\n"), line)
}

// runSuite is what holds for `run` on every engine.
func runSuite(t *testing.T, e *enginetest.Engine, reach Reach) {
	run := job.Container{Verb: "run", Image: enginetest.Image}

	t.Run("found with its processes and its limit", func(t *testing.T) {
		s := begin(t, e, run, e.Run([]string{"--rm", "--memory=64m"}, twoProcesses...)...)
		if s.plan.Reach != reach || s.plan.Why != "" || len(s.plan.Added) != 1 {
			t.Errorf("reach %s, why %q, added %v", s.plan.Reach, s.plan.Why, s.plan.Added)
		}
		c := s.resolve()
		s.says("ready")
		var procs []proctree.Proc
		eventually(t, "its two processes", func() bool {
			var err error
			procs, err = c.Processes(within(t))
			return err == nil && slices.Equal(names(procs), []string{"sh", "sleep"})
		})
		if c.Limit != 64<<20 || len(c.ID) != 64 || len(c.Dirs) == 0 || !strings.Contains(c.Cgroup, c.ID) {
			t.Errorf("%+v", c)
		}
		for _, p := range procs {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
			if !strings.Contains(string(b), c.Cgroup) {
				t.Errorf("cgroup %s is not %d's:\n%s", c.Cgroup, p.PID, b)
			}
		}
		if end, err := c.End(within(t)); err != nil || !end.Running || end.ExitKnown {
			t.Errorf("end %+v, %v", end, err)
		}
		if err := c.Kill(within(t)); err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			if now, ok := proctree.Read(p.PID); ok && now.Start == p.Start && now.State != 'Z' {
				t.Errorf("%v lives", p)
			}
		}
		s.clientStatus(137)
		if alive, procs := c.Alive(within(t)); alive {
			t.Errorf("alive: %v", procs)
		}
		end, err := c.End(within(t))
		if err != nil || end.Running || reach == ReachAPI && (!end.ExitKnown || end.ExitCode != 137) {
			t.Errorf("end after --rm %+v, %v", end, err)
		}
	})

	t.Run("exit status", func(t *testing.T) {
		s := begin(t, e, run, e.Run(nil, "sh", "-c", "exit 23")...)
		c := s.resolve()
		if got := s.status(); got != 23 {
			t.Errorf("client's status %d: %s", got, s.out)
		}
		end, err := c.End(within(t))
		if err != nil || !end.ExitKnown || end.ExitCode != 23 || end.Running || end.OOMKilled {
			t.Errorf("%+v, %v", end, err)
		}
		e.Do(t, "rm", c.ID)
	})

	t.Run("stop lets it say goodbye", func(t *testing.T) {
		s := begin(t, e, run, e.Run([]string{"--rm"}, "sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")...)
		c := s.resolve()
		s.says("ready")
		if err := c.Stop(within(t), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		s.says("bye")
		s.clientStatus(5)
	})

	t.Run("compose run", func(t *testing.T) {
		s := begin(t, e, job.Container{Verb: "compose"}, append(append(e.Compose(t), "run", "--rm", "-T", enginetest.ComposeService), twoProcesses...)...)
		if s.plan.Reach != reach || s.plan.Why != "" || len(s.plan.Added) != 1 || !strings.HasPrefix(s.plan.Added[0], "--name=sparkrun-") {
			t.Errorf("reach %s, why %q, added %v", s.plan.Reach, s.plan.Why, s.plan.Added)
		}
		c := s.resolve()
		s.says("ready")
		eventually(t, "its two processes", func() bool {
			procs, err := c.Processes(within(t))
			return err == nil && slices.Equal(names(procs), []string{"sh", "sleep"})
		})
		if "--name="+c.Name != s.plan.Added[0] {
			t.Errorf("found %s, added %v", c.Name, s.plan.Added)
		}
		if err := c.Kill(within(t)); err != nil {
			t.Fatal(err)
		}
		s.clientStatus(137)
		if alive, procs := c.Alive(within(t)); alive {
			t.Errorf("alive: %v", procs)
		}
		if end, err := c.End(within(t)); err != nil || end.Running || reach == ReachAPI && (!end.ExitKnown || end.ExitCode != 137) {
			t.Errorf("end after --rm %+v, %v", end, err)
		}
	})

	t.Run("compose exec", func(t *testing.T) {
		words := e.Compose(t)
		up := exec.Command(words[0], append(words[1:], "up", "-d")...)
		up.Env = e.Environ()
		if out, err := up.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		box := e.Do(t, "ps", "-q", "--no-trunc", "--filter", "label=com.docker.compose.service="+enginetest.ComposeService)
		defer func() {
			_, _ = e.Try("kill", box)
			_, _ = e.Try("rm", "-f", box)
		}()
		s := begin(t, e, job.Container{Verb: "compose"}, append(append(words, "exec", "-T", enginetest.ComposeService), twoProcesses...)...)
		if s.plan.Reach != reach || s.plan.Why != "" || len(s.plan.Added) != 0 {
			t.Errorf("reach %s, why %q, added %v", s.plan.Reach, s.plan.Why, s.plan.Added)
		}
		c := s.resolve()
		s.says("ready")
		if c.ID != box || c.ExecID == "" {
			t.Errorf("found %s, exec %q, want one in %s", c.ID, c.ExecID, box)
		}
		if err := c.Kill(within(t)); err != nil {
			t.Fatal(err)
		}
		s.clientStatus(137)
		if alive, procs := c.Alive(within(t)); alive {
			t.Errorf("alive: %v", procs)
		}
		if got := e.Do(t, "inspect", "--format", "{{.State.Running}}", box); got != "true" {
			t.Errorf("the container runs: %s", got)
		}
	})

	if e.Name == "docker" && podmanBehind(e) {
		return // the rest is the same code in front of the same engine
	}
	t.Run("stop kills what does not listen", func(t *testing.T) {
		s := begin(t, e, run, e.Run([]string{"--rm"}, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")...)
		c := s.resolve()
		s.says("ready")
		if err := c.Stop(within(t), time.Second); err != nil {
			t.Fatal(err)
		}
		s.clientStatus(137)
	})

	t.Run("a killed client leaves it alive", func(t *testing.T) {
		s := begin(t, e, run, e.Run([]string{"--rm"}, twoProcesses...)...)
		c := s.resolve()
		s.says("ready")
		_ = s.cmd.Process.Kill()
		<-s.done
		if alive, procs := c.Alive(within(t)); !alive || len(procs) != 2 {
			t.Errorf("alive %v with %v: the kernel killed more than the client?", alive, procs)
		}
		if err := c.Kill(within(t)); err != nil {
			t.Fatal(err)
		}
		if alive, _ := c.Alive(within(t)); alive {
			t.Error("alive after the kill")
		}
	})

	t.Run("the prepared kill", func(t *testing.T) {
		s := begin(t, e, run, e.Run([]string{"--rm"}, twoProcesses...)...)
		c := s.resolve()
		s.says("ready")
		killWith(t, c)
		s.clientStatus(137)
	})

	t.Run("killed with its monitor", func(t *testing.T) {
		s := begin(t, e, run, e.Run([]string{"--rm", "--name=monitored"}, twoProcesses...)...)
		c := s.resolve()
		s.says("ready")
		// As the holder does it: everything below it at once.
		for _, p := range proctree.Descendants(os.Getpid()) {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); p.Comm == "conmon" && strings.Contains(string(b), c.ID) {
				_ = p.Signal(syscall.SIGKILL)
			}
		}
		if err := c.Kill(within(t)); err != nil {
			t.Fatal(err)
		}
		if end, err := c.End(within(t)); err != nil || end.Running {
			t.Errorf("%+v, %v", end, err)
		}
		if err := c.Tidy(within(t)); err != nil {
			t.Error(err)
		}
		// The name is free for the next attempt.
		eventually(t, "the name to be free", func() bool {
			_, err := e.Try("container", "inspect", "monitored")
			return err != nil
		})
	})

	t.Run("killed for memory", func(t *testing.T) {
		s := begin(t, e, run, e.Run([]string{"--memory=32m", "--memory-swap=32m"}, "sh", "-c", "echo ready; sleep 0.3; exec tail /dev/zero")...)
		c := s.resolve()
		if got := s.status(); got != 137 {
			t.Errorf("client's status %d: %s", got, s.out)
		}
		end, err := c.End(within(t))
		if err != nil || end.ExitCode != 137 || !end.OOMKnown {
			t.Errorf("%+v, %v", end, err)
		}
		if !podmanBehind(e) && !end.OOMKilled {
			t.Errorf("docker saw no kill: %+v", end)
		}
		e.Do(t, "rm", c.ID)
	})

	t.Run("the user's own name and file", func(t *testing.T) {
		e.Do(t, e.Run([]string{"-d", "--name=taken"}, "sleep", "300")[1:]...)
		other := e.Do(t, "inspect", "-f", "{{.Id}}", "taken")
		s := begin(t, e, run, e.Run([]string{"--name=taken"}, "sleep", "300")...)
		if len(s.plan.Added) != 0 || s.plan.Again == "" {
			t.Errorf("added %v, again %q", s.plan.Added, s.plan.Again)
		}
		if got := s.status(); got != 125 {
			t.Errorf("client's status %d: %s", got, s.out)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if c, err := s.plan.Resolve(ctx); !errors.Is(err, ErrNotFound) {
			t.Errorf("took somebody else's container %v (%s), %v", c, other, err)
		}
		e.Do(t, "kill", "taken")
		e.Do(t, "rm", "-f", "taken")

		file := filepath.Join(t.TempDir(), "id")
		s = begin(t, e, run, e.Run([]string{"--rm", "--name", "mine", "--cidfile", file}, "sleep", "300")...)
		c := s.resolve()
		if !hasLine(t, file, c.ID) || c.Name != "mine" || len(s.plan.Added) != 0 {
			t.Errorf("id %s, name %s, added %v", c.ID, c.Name, s.plan.Added)
		}
		if err := c.Kill(within(t)); err != nil {
			t.Error(err)
		}
	})
}

// killWith ends a container with its prepared kill.
func killWith(t *testing.T, c *Container) {
	t.Helper()
	what, err := c.Target(within(t))
	if err != nil {
		t.Fatal(err)
	}
	k, err := OpenKiller(c.Endpoint, what)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := k.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "everything killed", func() bool {
		alive, _ := c.Alive(within(t))
		return !alive
	})
	if code, err := k.Answer(5 * time.Second); err != nil || code != 0 && code != 204 && code != 200 {
		t.Errorf("answer %d, %v", code, err)
	}
}

// execSuite is what holds for `exec` on every engine.
func execSuite(t *testing.T, e *enginetest.Engine) {
	e.Do(t, e.Run([]string{"-d", "--name=server"}, "sh", "-c", "sleep 301 & wait")[1:]...)
	t.Cleanup(func() {
		e.Do(t, "kill", "server")
		e.Do(t, "rm", "-f", "server")
	})
	ex := job.Container{Verb: "exec", Image: "server"}
	servers := func() int {
		n, err := strconv.Atoi(e.Do(t, "inspect", "-f", "{{.State.Pid}}", "server"))
		if err != nil {
			t.Fatal(err)
		}
		return len(live(proctree.Descendants(n)))
	}

	ways := []string{"kill", "stop", "prepared"}
	if e.Name == "docker" && podmanBehind(e) {
		ways = ways[:1]
	}
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			// Somebody else's command with the same words was there before.
			before := begin(t, e, ex, append([]string{e.Client, "exec", "server"}, twoProcesses...)...)
			b := before.resolve()
			before.says("ready")

			s := begin(t, e, ex, append([]string{e.Client, "exec", "server"}, twoProcesses...)...)
			if len(s.plan.Added) != 0 {
				t.Errorf("added %v", s.plan.Added)
			}
			c := s.resolve()
			s.says("ready")
			if c.ExecID == "" || c.ExecID == b.ExecID || c.PID == b.PID {
				t.Fatalf("exec %q pid %d, the other %q pid %d", c.ExecID, c.PID, b.ExecID, b.PID)
			}
			var err error
			eventually(t, "its two processes", func() bool {
				var procs []proctree.Proc
				procs, err = c.Processes(within(t))
				return err == nil && slices.Equal(names(procs), []string{"sh", "sleep"})
			})
			switch way {
			case "kill":
				err = c.Kill(within(t))
			case "stop":
				err = c.Stop(within(t), 5*time.Second)
			case "prepared":
				killWith(t, c)
			}
			if err != nil {
				t.Fatal(err)
			}
			if alive, procs := c.Alive(within(t)); alive {
				t.Errorf("alive: %v", procs)
			}
			if alive, procs := b.Alive(within(t)); !alive || len(procs) != 2 {
				t.Errorf("the other command was hit: %v", procs)
			}
			if servers() != 1 {
				t.Error("the container's own processes were hit")
			}
			s.clientStatus(137, 143)
			if err := b.Kill(within(t)); err != nil {
				t.Error(err)
			}
		})
	}

	for name, wait := range map[string]string{
		"exit status and orphans": "while [ ! -e /tmp/go ]; do sleep 0.02; done",
		"over at once":            "true",
	} {
		t.Run(name, func(t *testing.T) {
			if podmanBehind(e) && name == "over at once" {
				return // podman keeps nothing of an exec that is over
			}
			s := begin(t, e, ex, e.Client, "exec", "server", "sh", "-c", "sleep 302 >/dev/null 2>&1 & "+wait+"; exit 9")
			c := s.resolve()
			e.Do(t, "exec", "server", "touch", "/tmp/go")
			if got := s.status(); got != 9 {
				t.Fatalf("client's status %d: %s", got, s.out)
			}
			// The client is gone, and a process of the attempt still lives.
			alive, procs := c.Alive(within(t))
			if !alive || !slices.Equal(names(procs), []string{"sleep"}) {
				t.Errorf("alive %v %v", alive, names(procs))
			}
			if c.Endpoint != "" {
				if end, err := c.End(within(t)); err != nil || !end.ExitKnown || end.ExitCode != 9 {
					t.Errorf("%+v, %v", end, err)
				}
			}
			if err := c.Kill(within(t)); err != nil {
				t.Error(err)
			}
			if alive, procs := c.Alive(within(t)); alive {
				t.Errorf("alive after the kill: %v", procs)
			}
			if servers() != 1 {
				t.Error("the container's own processes were hit")
			}
			e.Do(t, "exec", "server", "rm", "-f", "/tmp/go")
		})
	}
}

func TestDocker(t *testing.T) {
	t.Parallel()
	e := enginetest.Docker(t)
	runSuite(t, e, ReachAPI)
	execSuite(t, e)
	insideSuite(t, e)
}

func TestPodman(t *testing.T) {
	t.Parallel()
	e := enginetest.Podman(t, false)
	runSuite(t, e, ReachTree)
	execSuite(t, e)
}

// The docker client in front of podman's service: the service's answers differ
// from docker's in places.
func TestDockerClientOnPodman(t *testing.T) {
	t.Parallel()
	e := enginetest.DockerOnPodman(t)
	runSuite(t, e, ReachAPI)
	execSuite(t, e)
}

// insideSuite signals from inside the container, as for a user who may not
// signal its processes from outside.
func insideSuite(t *testing.T, e *enginetest.Engine) {
	e.Do(t, e.Run([]string{"-d", "--name=server2"}, "sh", "-c", "sleep 301 & wait")[1:]...)
	t.Cleanup(func() { e.Do(t, "rm", "-f", "server2") })
	ex := job.Container{Verb: "exec", Image: "server2"}
	t.Run("from inside", func(t *testing.T) {
		words := []string{"sh", "-c", "(sleep 303 &); setsid sleep 304 & echo ready; wait"}
		s := begin(t, e, ex, append([]string{e.Client, "exec", "server2"}, words...)...)
		c := s.resolve()
		s.says("ready")
		eventually(t, "three processes", func() bool {
			procs, _ := c.Processes(within(t))
			return slices.Equal(names(procs), []string{"sh", "sleep", "sleep"})
		})
		if err := c.signalInside(within(t), 0); err != nil {
			t.Fatal(err)
		}
		id, err := c.prepareInside(within(t), "KILL")
		if err != nil {
			t.Fatal(err)
		}
		k, err := OpenKiller(c.Endpoint, "exec/"+id)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		if err := k.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "everything killed", func() bool {
			alive, _ := c.Alive(within(t))
			return !alive
		})
		out := e.Do(t, "top", "server2", "-eo", "pid,args")
		if !strings.Contains(out, "sleep 301") || strings.Contains(out, "sleep 303") {
			t.Errorf("left in the container:\n%s", out)
		}
	})
}
