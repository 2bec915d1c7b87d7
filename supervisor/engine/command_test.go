package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
)

func TestFlagTablesAreThere(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"docker", "podman"} {
		if f := tableOf(name); len(f.Plain) == 0 || len(f.GlobalPlain) == 0 {
			t.Errorf("no flags of %s in the table of prefixes: %+v", name, f)
		}
	}
}

func TestComposeTableIsThere(t *testing.T) {
	t.Parallel()
	if c := prefixes().Compose; c.Programs["docker-compose"] != "docker" || len(c.GlobalPlain) == 0 || len(c.Run.Value) == 0 {
		t.Errorf("no flags of compose in the table of prefixes: %+v", c)
	}
}

func TestTakeApart(t *testing.T) {
	t.Parallel()
	type want struct {
		Verb, Target string
		Args         []string
		Name, CID    string
		RM, Detached bool
		Sudo         bool
	}
	for _, c := range []struct {
		line, engine, verb, image string
		want                      want
	}{
		{
			"docker run --gpus all -it --rm --ipc=host -v /a:/b -w /w img:1 python train.py --rm -d", "docker", "run", "img:1",
			want{Verb: "run", Target: "img:1", Args: []string{"python", "train.py", "--rm", "-d"}, RM: true},
		},
		{"docker run -itd --name=x img", "docker", "run", "img", want{Verb: "run", Target: "img", Name: "x", Detached: true, Args: []string{}}},
		{"docker run -itePATH=/x --name x img", "docker", "run", "img", want{Verb: "run", Target: "img", Name: "x", Args: []string{}}},
		{"docker run --rm=false --detach=false img", "docker", "run", "img", want{Verb: "run", Target: "img", Args: []string{}}},
		{"docker -H unix:///x --debug container run --cidfile f -- img a", "docker", "run", "img", want{Verb: "run", Target: "img", CID: "f", Args: []string{"a"}}},
		{"docker run --name a --name b img", "docker", "run", "img", want{Verb: "run", Target: "img", Name: "b", Args: []string{}}},
		{"sudo -u docker docker run img", "docker", "run", "img", want{Verb: "run", Target: "img", Sudo: true, Args: []string{}}},
		{"env DOCKER_HOST=unix:///y docker exec -it -e A=b box sh -c ls", "docker", "exec", "box", want{Verb: "exec", Target: "box", Args: []string{"sh", "-c", "ls"}}},
		{"/usr/bin/podman --root /r run -l a=b --rm img", "podman", "run", "img", want{Verb: "run", Target: "img", RM: true, Args: []string{}}},
		{"docker run", "docker", "run", "", want{Verb: "run"}},
		{"docker run --name", "docker", "run", "", want{Verb: "run"}},
		{"docker", "docker", "", "", want{}},
	} {
		argv := strings.Fields(c.line)
		got := takeApart(argv, job.Container{Engine: c.engine, Verb: c.verb, Image: c.image})
		w := want{Target: got.target, Args: got.args, RM: on(got.options, "--rm"), Detached: on(got.options, "-d", "--detach"), Sudo: got.sudo}
		if got.verb >= 0 {
			w.Verb = argv[got.verb]
		}
		w.Name, _ = last(got.options, "--name")
		w.CID, _ = last(got.options, "--cidfile")
		if d := cmp.Diff(c.want, w); d != "" {
			t.Errorf("%s\n%s", c.line, d)
		}
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	context := func(name, host string) {
		sum := sha256.Sum256([]byte(name))
		dir := filepath.Join(home, ".docker", "contexts", "meta", hex.EncodeToString(sum[:]))
		write(t, filepath.Join(dir, "meta.json"), `{"Name":"`+name+`","Endpoints":{"docker":{"Host":"`+host+`"}}}`)
	}
	context("rootless", "unix:///run/user/7/docker.sock")
	context("far", "ssh://box")
	other := t.TempDir()
	write(t, filepath.Join(other, "config.json"), `{"auths":{},"currentContext":"rootless"}`)
	write(t, filepath.Join(home, ".docker", "config.json"), `{"currentContext":"rootless"}`)
	broken := t.TempDir()
	write(t, filepath.Join(broken, "config.json"), `{"currentContext":`)

	for _, c := range []struct {
		line    string
		env     []string
		sockets []string
		why     string
	}{
		{line: "docker run i", env: []string{"HOME=/nonexistent"}, sockets: []string{dockerSocket}},
		{line: "docker run i", env: []string{"HOME=/nonexistent", "XDG_RUNTIME_DIR=/run/user/7"}, sockets: []string{dockerSocket, "/run/user/7/docker.sock"}},
		{line: "docker run i", env: []string{"HOME=" + home}, sockets: []string{"/run/user/7/docker.sock"}},
		{line: "docker run i", env: []string{"HOME=" + home, "DOCKER_HOST=unix:///x"}, sockets: []string{"/x"}},
		{line: "docker run i", env: []string{"HOME=" + home, "DOCKER_CONTEXT=default"}, sockets: []string{dockerSocket}},
		{line: "docker run i", env: []string{"HOME=" + home, "DOCKER_CONTEXT=far"}, why: "leads over ssh"},
		{line: "docker run i", env: []string{"HOME=" + home, "DOCKER_CONTEXT=none"}, why: "cannot be read"},
		{line: "docker --context rootless run i", env: []string{"HOME=" + home, "DOCKER_HOST=tcp://x:1"}, sockets: []string{"/run/user/7/docker.sock"}},
		{line: "docker run i", env: []string{"DOCKER_HOST=tcp://x:1"}, why: "leads over tcp"},
		{line: "docker run i", env: []string{"DOCKER_HOST=unix://relative"}, why: "leads over unix"},
		{line: "docker -Hunix:///z run i", env: []string{"DOCKER_HOST=unix:///x"}, sockets: []string{"/z"}},
		{line: "env DOCKER_HOST=unix:///e docker run i", env: []string{"DOCKER_HOST=unix:///x"}, sockets: []string{"/e"}},
		{line: "sudo docker run i", env: []string{"DOCKER_HOST=unix:///x", "HOME=" + home}, sockets: []string{dockerSocket}},
		{line: "docker --config " + broken + " run i", env: nil, sockets: []string{dockerSocket}},
		{line: "docker run i", env: []string{"HOME=/nonexistent", "DOCKER_CONFIG=" + other}, why: "cannot be read"},
		{line: "podman run i", env: []string{"CONTAINER_HOST=unix:///c"}, sockets: []string{"/c"}},
		{line: "podman --url ssh://box run i", env: nil, why: "leads over ssh"},
		{line: "podman --connection far run i", env: nil, why: "another machine"},
		{line: "sudo podman run i", env: []string{"CONTAINER_HOST=unix:///c"}, sockets: []string{podmanSocket}},
	} {
		engine := "docker"
		if strings.Contains(c.line, "podman") {
			engine = "podman"
		}
		cmd := takeApart(strings.Fields(c.line), job.Container{Engine: engine, Verb: "run", Image: "i"})
		e := environ{list: c.env, set: cmd.set, fresh: cmd.sudo}
		p := dockerPlace(cmd, e)
		if engine == "podman" {
			p = podmanPlace(cmd, e)
		}
		if d := cmp.Diff(c.sockets, p.sockets); d != "" || (c.why == "") != (p.why == "") || !strings.Contains(p.why, c.why) {
			t.Errorf("%s with %v: %v, %q\n%s", c.line, c.env, p.sockets, p.why, d)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestParseCgroup(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, c := range []struct{ name, text, v1, v2 string }{
		{"v1 docker", "9:name=systemd:/docker/" + id + "\n4:memory:/docker/" + id + "\n0::/\n", "/docker/" + id, ""},
		{"v2 docker with systemd", "0::/system.slice/docker-" + id + ".scope\n", "", "/system.slice/docker-" + id + ".scope"},
		{"v2 an init system inside", "0::/system.slice/docker-" + id + ".scope/init.scope\n", "", "/system.slice/docker-" + id + ".scope"},
		{"v2 podman", "0::/machine.slice/libpod-" + id + ".scope/container\n", "", "/machine.slice/libpod-" + id + ".scope"},
		{"not its own", "4:memory:/user.slice\n0::/user.slice\n", "", ""},
		{"from a cgroup namespace", "0::/../../docker-" + id + ".scope\n", "", "/../../docker-" + id + ".scope"},
		{"torn", "4:memory", "", ""},
	} {
		v1, v2 := parseCgroup(c.text, id)
		if v1 != c.v1 || v2 != c.v2 {
			t.Errorf("%s: %q %q", c.name, v1, v2)
		}
	}
	m := parseMounts("30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n31 23 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\nx\n")
	if m.v1 != "/sys/fs/cgroup/memory" || m.v2 != "/sys/fs/cgroup/unified" {
		t.Errorf("%+v", m)
	}
}
