package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
)

func findAt(t *testing.T, socket, dir string, argv ...string) (Image, error) {
	t.Helper()
	c := job.Container{Engine: "docker", Verb: "run"}
	switch {
	case slices.Contains(argv, "compose"):
		c.Verb = "compose"
	case slices.Contains(argv, "exec"):
		c.Verb = "exec"
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return FindImage(ctx, Command{Argv: argv, Env: []string{"DOCKER_HOST=unix://" + socket, "PATH=/nonexistent", "TAG=7"}, Dir: dir}, c)
}

const imageText = `{"Id":"sha256:` + id64 + `","RepoTags":["img:1"],"RepoDigests":["img@sha256:1"],"Architecture":"arm64",
"Config":{"Env":["CUDA_VERSION=13.0.1","A=1","A=2","broken"],"Labels":{"x":"y"}},
"GraphDriver":{"Name":"overlay2","Data":{"UpperDir":"/var/lib/docker/overlay2/b/diff","LowerDir":"/var/lib/docker/overlay2/l2/diff:/var/lib/docker/overlay2/l1/diff","MergedDir":"/m"}}}`

func TestFindImage(t *testing.T) {
	t.Parallel()
	socket := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/images/nvcr.io/nvidia/pytorch:25.09-py3/json", "/images/img:7/json", "/images/proj-built/json", "/images/" + id64 + "/json":
			fmt.Fprint(w, imageText)
		case "/images/noid/json":
			fmt.Fprint(w, `{"Id":"sha256:../../x"}`)
		case "/images/text/json":
			fmt.Fprint(w, `["x"]`)
		case "/containers/server/json", "/containers/" + id64 + "/json":
			fmt.Fprintf(w, `{"Id":%q,"Image":"sha256:%s","State":{"Running":true,"Status":"running","Pid":77},"Config":{"Image":"nvcr.io/x:1","Env":["CUDA_VERSION=12.4"]},"GraphDriver":null}`, id64, id64)
		case "/containers/json":
			fmt.Fprintf(w, `[{"Id":%q}]`, id64)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message":"no such image"}`)
		}
	})
	layers := []string{"/var/lib/docker/overlay2/b/diff", "/var/lib/docker/overlay2/l2/diff", "/var/lib/docker/overlay2/l1/diff"}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "compose.yaml"), "name: Proj!\nservices:\n  train: {image: \"img:${TAG:-latest}\"}\n  built: {build: .}\n  unset: {image: \"img:${NOWHERE}\"}\n  none: {}\n")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := Image{
		ID: id64, Tags: []string{"img:1"}, Digests: []string{"img@sha256:1"}, Arch: "arm64", Labels: map[string]string{"x": "y"},
		Env: map[string]string{"CUDA_VERSION": "13.0.1", "A": "2"}, Layers: layers,
	}
	with := func(ref string) Image {
		w := want
		w.Ref = ref
		return w
	}
	running := with("nvcr.io/x:1")
	running.Container, running.Env, running.Layers = id64, map[string]string{"CUDA_VERSION": "12.4"}, []string{"/proc/77/root"}
	write(t, filepath.Join(dir, "compose.override.yml"), "services:\n  late: {image: \"img:7\"}\n")
	for _, c := range []struct {
		line string
		want Image
		why  string
	}{
		{line: "docker compose run late python t.py", want: with("img:7")},
		{line: "docker run --rm nvcr.io/nvidia/pytorch:25.09-py3 python t.py", want: with("nvcr.io/nvidia/pytorch:25.09-py3")},
		{line: "docker run gone python", why: ErrNoImage.Error()},
		{line: "docker run noid python", why: "without an id"},
		{line: "docker run text python", why: "something else"},
		{line: "docker run a/../../containers/server python", why: "no name of an image"},
		{line: "docker run a//b python", why: "no name of an image"},
		{line: "docker run a?b=c python", why: "no name of an image"},
		{line: "docker exec server python t.py", want: running},
		{line: "docker exec gone python t.py", why: ErrNoImage.Error()},
		{line: "docker compose run train python t.py", want: with("img:7")},
		{line: "docker compose run built python t.py", want: with("proj-built")},
		{line: "docker compose -p proj run built python t.py", want: with("proj-built")},
		{line: "docker compose run unset python t.py", why: "a variable that is not set"},
		{line: "docker compose run none python t.py", why: "names no image"},
		{line: "docker compose -f nowhere.yml run train python t.py", why: "no such file"},
		{line: "docker compose exec train python t.py", want: running},
		{line: "docker compose up", why: "starts containers of its own choice"},
	} {
		got, err := findAt(t, socket, filepath.Join(dir, "sub"), strings.Fields(c.line)...)
		if c.why != "" {
			if err == nil || !strings.Contains(err.Error(), c.why) || strings.Contains(err.Error(), "cannot end") {
				t.Errorf("%s: %v", c.line, err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", c.line, err, diff)
		}
	}
}

func TestFindImageOfASickEngine(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for name, socket := range map[string]string{
		"none":     "/nonexistent/s",
		"hangs":    raw(t, func(net.Conn) { <-hang }),
		"garbage":  raw(t, func(c net.Conn) { fmt.Fprint(c, "\x00\x1b[31mSSH\r\n\r\n") }),
		"endless":  raw(t, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n["+strings.Repeat("1,", 1<<20)); <-hang }),
		"refusing": fake(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			began := time.Now()
			i, err := FindImage(ctx, Command{Argv: []string{"docker", "run", "img"}, Env: []string{"DOCKER_HOST=unix://" + socket}}, job.Container{Engine: "docker", Verb: "run", Image: "img"})
			if err == nil || errors.Is(err, ErrNoImage) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%+v, %v", i, err)
			}
			if d := time.Since(began); d > 4*time.Second {
				t.Errorf("took %s", d)
			}
		})
	}
}

func TestProbeCommand(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"sudo -E docker -H unix:///s run --gpus all -v /home:/home --name x img python t.py": "sudo -E docker -H unix:///s",
		"podman --root /r exec server python t.py":                                           "podman --root /r",
		"docker-compose -f x.yml run train python t.py":                                      "docker",
	} {
		argv := strings.Fields(line)
		c := job.Container{Engine: "docker", Verb: "run"}
		switch {
		case strings.HasPrefix(line, "podman"):
			c = job.Container{Engine: "podman", Verb: "exec", Image: "server"}
		case strings.HasPrefix(line, "docker-compose"):
			c.Verb = "compose"
		}
		run, remove, err := ProbeCommand(Command{Argv: argv}, c, id64, "probe-1", "python3", "-c", "print(1)")
		wantRun := want + " run --rm --name=probe-1 --pull=never --network=none --cap-drop=ALL --security-opt=no-new-privileges -e NVIDIA_VISIBLE_DEVICES=void --entrypoint=python3 " + id64 + " -c print(1)"
		if got := strings.Join(run.Argv, " "); err != nil || got != wantRun {
			t.Errorf("%v\n got %s\nwant %s", err, got, wantRun)
		}
		if got := strings.Join(remove.Argv, " "); got != want+" rm --force probe-1" {
			t.Errorf("remove: %s", got)
		}
	}
}

func TestInterpolation(t *testing.T) {
	t.Parallel()
	lookup := func(n string) (string, bool) { v, ok := map[string]string{"A": "x", "E": ""}[n]; return v, ok }
	for text, want := range map[string]string{
		"img": "img", "$A:${A}": "x:x", "${N:-d}": "d", "${N-d}": "d", "${E:-d}": "d", "${E-d}": "", "$$A": "$A",
		"${N}": "-", "$N": "-", "${A:?must}": "x", "${N:?must}": "-", "${N:-${A}}": "-",
	} {
		got, ok := interpolate(text, lookup)
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
