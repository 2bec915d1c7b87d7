// Package enginetest starts real container engines for tests: dockerd and podman
// from Debian packages, each in a folder of its own, with one image that borrows
// the machine's own /usr. Nothing is pulled and no network is set up. Where an
// engine cannot run, the test is skipped and says why.
package enginetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Image is the name of the image that every engine here has.
const Image = "sparkrun-test:1"

// Engine is a running engine.
type Engine struct {
	// Name is docker or podman.
	Name string
	// Socket is its API, "" for podman without a service.
	Socket string
	// Client is the client's command.
	Client string
	// Env is what the client needs in its environment.
	Env []string
	// RunFlags go behind `run`: they mount /usr and give no network.
	RunFlags []string
}

// Environ is the test's environment with the engine's.
func (e *Engine) Environ() []string { return append(os.Environ(), e.Env...) }

// Run returns the words that run a command in a new container.
func (e *Engine) Run(flags []string, words ...string) []string {
	argv := append([]string{e.Client, "run"}, e.RunFlags...)
	return append(append(append(argv, flags...), Image), words...)
}

// Do runs the client and returns what it prints; a status other than 0 fails the
// test.
func (e *Engine) Do(t testing.TB, args ...string) string {
	t.Helper()
	out, err := e.Try(args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", e.Name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// Try runs the client and returns what it prints.
func (e *Engine) Try(args ...string) (string, error) {
	cmd := exec.Command(e.Client, args...)
	cmd.Env = e.Environ()
	cmd.Dir = os.TempDir() // podman's monitor leaves files where it was started
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// find looks a program up on PATH and in the folders where it may have been
// unpacked without installing it (installing docker.io starts a daemon).
func find(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	if dir := os.Getenv("SPARKRUN_DOCKER_DIR"); dir != "" {
		for _, sub := range []string{"usr/bin", "usr/sbin", ""} {
			if p := filepath.Join(dir, sub, name); exec.Command(p, "--version").Run() == nil {
				return p
			}
		}
	}
	return ""
}

// folder is a short one: sockets lie in it.
func folder(t testing.TB) string {
	dir, err := os.MkdirTemp("/tmp", "sre")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// remove takes a folder away, whatever is mounted below it. Podman's monitors
// outlive what they watch, those of an exec by minutes, and clean up behind it:
// the ones that work in this folder are ended, or it would come back.
func remove(t testing.TB, dir string) {
	for range 5 {
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range files {
			b, err := os.ReadFile(f)
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err == nil && bytes.Contains(b, []byte(dir+"/")) && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	for range 50 {
		b, _ := os.ReadFile("/proc/self/mounts")
		for _, line := range strings.Split(string(b), "\n") {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
				_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
			}
		}
		if os.RemoveAll(dir) == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("%s cannot be removed", dir)
}

// daemon starts a long-lived program and waits until its socket answers.
func daemon(t testing.TB, dir, socket string, env []string, words ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait() // a daemon's status says nothing
		close(gone)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-gone:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-gone
		}
	})
	deadline := time.Now().Add(30 * time.Second)
	for {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return
		}
		b, _ := os.ReadFile(filepath.Join(dir, "log"))
		select {
		case <-gone:
			t.Skipf("%s cannot run on this machine: %s", filepath.Base(words[0]), lastLine(string(b)))
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not start:\n%s", words[0], b)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// needRoot skips where the machine's cgroups and mounts may not be touched.
func needRoot(t testing.TB) {
	if os.Geteuid() != 0 {
		t.Skip("a container engine of the test's own needs root")
	}
}

// Docker starts a dockerd of the test's own.
func Docker(t testing.TB) *Engine {
	t.Helper()
	needRoot(t)
	dockerd, containerd, docker := find("dockerd"), find("containerd"), find("docker")
	if dockerd == "" || containerd == "" || docker == "" {
		t.Skip("no dockerd here (Debian package docker.io, installed or unpacked into $SPARKRUN_DOCKER_DIR)")
	}
	dir := folder(t)
	t.Cleanup(func() { remove(t, dir) })
	socket := filepath.Join(dir, "s")
	e := &Engine{
		Name: "docker", Socket: socket, Client: docker,
		Env:      []string{"DOCKER_HOST=unix://" + socket, "DOCKER_CONFIG=" + filepath.Join(dir, "config")},
		RunFlags: []string{"--network=none", "-v", "/usr:/usr:ro"},
	}
	path := "PATH=" + filepath.Dir(dockerd) + ":" + filepath.Dir(containerd) + ":" + os.Getenv("PATH")
	daemon(t, dir, socket, []string{path}, dockerd, "--data-root", filepath.Join(dir, "d"), "--exec-root", filepath.Join(dir, "e"),
		"--pidfile", filepath.Join(dir, "pid"), "--host", "unix://"+socket, "--bridge=none", "--iptables=false", "--ip6tables=false",
		"--storage-driver=vfs")
	e.load(t)
	if out, err := e.Try(e.Run([]string{"--rm"}, "true")[1:]...); err != nil {
		t.Skipf("dockerd cannot run containers on this machine: %s", lastLine(out))
	}
	t.Cleanup(func() {
		if ids := strings.Fields(e.Do(t, "ps", "-aq")); len(ids) > 0 {
			_, _ = e.Try(append([]string{"rm", "-f"}, ids...)...)
		}
	})
	return e
}

// Podman prepares a podman with a store of the test's own, and with service a
// service that answers on a socket.
func Podman(t testing.TB, service bool) *Engine {
	t.Helper()
	needRoot(t)
	podman, err := exec.LookPath("podman")
	if err != nil {
		t.Skip("no podman here (Debian package podman)")
	}
	dir := folder(t)
	t.Cleanup(func() { remove(t, dir) })
	e := &Engine{
		Name: "podman", Client: podman,
		Env: []string{
			"CONTAINERS_CONF=" + filepath.Join(dir, "containers.conf"), "CONTAINERS_STORAGE_CONF=" + filepath.Join(dir, "storage.conf"),
		},
		RunFlags: []string{"--network=none", "-v", "/usr:/usr:ro"},
	}
	// podman raises limits of open files, which takes a privilege that a virtual
	// machine's root may lack; crun refuses a machine with both kinds of cgroup.
	conf := `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "` + filepath.Join(dir, "tmp") + `"
`
	if runc := find("runc"); runc != "" {
		conf += "runtime = \"runc\"\n"
	}
	storage := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", filepath.Join(dir, "g"), filepath.Join(dir, "r"))
	for name, text := range map[string]string{"containers.conf": conf, "storage.conf": storage} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e.load(t)
	if out, err := e.Try(e.Run([]string{"--rm"}, "true")[1:]...); err != nil {
		t.Skipf("podman cannot run containers on this machine: %s", lastLine(out))
	}
	t.Cleanup(func() { _, _ = e.Try("rm", "--all", "--force", "--time=0") })
	if service {
		e.Socket = filepath.Join(dir, "s")
		daemon(t, dir, e.Socket, e.Env, podman, "system", "service", "--time=0", "unix://"+e.Socket)
	}
	return e
}

// DockerOnPodman is the docker client in front of podman's service.
func DockerOnPodman(t testing.TB) *Engine {
	t.Helper()
	docker := find("docker")
	if docker == "" {
		t.Skip("no docker client here (Debian package docker.io, installed or unpacked into $SPARKRUN_DOCKER_DIR)")
	}
	e := Podman(t, true)
	return &Engine{
		Name: "docker", Socket: e.Socket, Client: docker, RunFlags: e.RunFlags,
		Env: append(e.Env, "DOCKER_HOST=unix://"+e.Socket, "DOCKER_CONFIG="+filepath.Join(filepath.Dir(e.Socket), "config")),
	}
}

// load imports the image: empty folders, and links into the /usr that is
// mounted when it runs.
func (e *Engine) load(t testing.TB) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h *tar.Header) {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"usr", "proc", "sys", "dev", "etc", "tmp", "run"} {
		add(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o777})
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib32", "lib64"} {
		if to, err := os.Readlink("/" + l); err == nil {
			add(&tar.Header{Typeflag: tar.TypeSymlink, Name: l, Linkname: to, Mode: 0o777})
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(e.Client, "import", "-", Image)
	cmd.Env = e.Environ()
	cmd.Stdin = &b
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("%s cannot keep images on this machine: %s", e.Name, lastLine(string(out)))
	}
}
