package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkrun/preflight"
)

const testImage = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// probed prepares a command whose client is a script and whose engine knows one image.
func probed(t *testing.T, script string) (Options, string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sre") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/images/img:1/json" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, `{"Id":"sha256:%s","Architecture":"arm64","Config":{"Env":["A=1"]}}`, testImage)
	})}
	go func() { _ = s.Serve(l) }() // ends with Close
	t.Cleanup(func() { s.Close() })
	script = "#!/bin/sh\necho \"$@\" >>" + dir + "/calls\n" + script
	writeProgram(t, filepath.Join(dir, "docker"), script)
	return Options{
		Argv: []string{"docker", "run", "--gpus", "all", "img:1", "python", "train.py"}, Dir: dir,
		Env: []string{"PATH=" + dir + ":/usr/bin:/bin", "DOCKER_HOST=unix://" + dir + "/s", "XDG_CACHE_HOME=" + dir + "/cache", "HOME=" + dir},
	}, dir
}

func TestProbeImageKeepsTheAnswer(t *testing.T) {
	t.Parallel()
	o, dir := probed(t, `case "$*" in *--entrypoint=python3*) ;; *) echo "exec: python: not found" >&2; exit 127 ;; esac
echo a banner
echo 'sparkrun-image:{"interpreter":"/usr/bin/python3","torch":"/x/torch","torch_version_py":"cuda = '"'13.0'"'","packages":{"torch":"2.9.0"}}'
`)
	p, err := ProbeImage(t.Context(), o)
	if err != nil || p.ID != testImage || p.Asked != "python3" || p.Image != "img:1" {
		t.Fatalf("%+v, %v", p, err)
	}
	st, err := os.Stat(filepath.Join(dir, "cache/sparkrun-train/images", testImage+".json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	set, err := loadProfiles(o)
	if err != nil {
		t.Fatal(err)
	}
	j, err := set.Understand(o.Argv, o.Dir, o.Env, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := imagesOf(set, o, &j)(t.Context(), "docker", "img:1")
	if err != nil || f.ID != testImage || f.Machine != "aarch64" || f.Env["A"] != "1" || f.Probe == nil || f.Probe.Torch != "/x/torch" {
		t.Errorf("%+v, %v", f, err)
	}
	// An image that the engine does not have is no error: it may be pulled at the start.
	o.Argv[4] = "gone:1"
	if j, err = set.Understand(o.Argv, o.Dir, o.Env, nil); err != nil {
		t.Fatal(err)
	}
	if f, err := imagesOf(set, o, &j)(t.Context(), "docker", "gone:1"); err != nil || f.ID != "" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := ProbeImage(t.Context(), o); err == nil || !strings.Contains(err.Error(), "pull it first") {
		t.Errorf("%v", err)
	}
	if imagesOf(set, o, nil) != nil {
		t.Error("a command without a container has no image")
	}
}

// A Python that hangs in its container is given up, and the container removed.
func TestProbeImageThatHangs(t *testing.T) {
	t.Parallel()
	o, dir := probed(t, "[ \"$1\" = run ] && exec sleep 300\n")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := ProbeImage(ctx, o)
		done <- err
	}()
	calls := func() string {
		b, _ := os.ReadFile(filepath.Join(dir, "calls"))
		return string(b)
	}
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(calls(), "run --rm"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the image was not started")
		}
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it still waits")
	}
	lines := strings.Split(strings.TrimSpace(calls()), "\n")
	_, name, _ := strings.Cut(lines[0], "--name=")
	name, _, _ = strings.Cut(name, " ")
	// The script that Python is given has several lines.
	if name == "" || lines[len(lines)-1] != "rm --force "+name || strings.Count(calls(), "run --rm") != 1 {
		t.Errorf("%q", lines)
	}
}

func TestKeptProbeThatIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := Options{Env: []string{"XDG_CACHE_HOME=" + dir}}
	path, err := probeFile(o, testImage)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"schema":"sparkrun.image/2"}`, `{"schema":"` + preflight.ProbeSchema + `","id":"` + strings.Repeat("f", 64) + `","interpreter":"/x"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := readProbe(o, testImage); err == nil {
			t.Errorf("%q: %+v", text, p)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if p, err := readProbe(o, testImage); err == nil {
		t.Errorf("a folder: %+v", p)
	}
	for _, env := range []string{"HOME=", "HOME=relative", "XDG_CACHE_HOME=relative"} {
		if path, err := probeFile(Options{Env: []string{env}}, testImage); err == nil {
			t.Errorf("%s: %s", env, path)
		}
	}
}
