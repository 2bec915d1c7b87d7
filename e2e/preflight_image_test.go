package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/e2e/fakenvml"
	"sparkrun/supervisor/engine/enginetest"
)

// What preflight makes of the image of a container client's command, with real engines
// and a GPU that answers as a GB10.

// imageTar is the file system of an image; a value that starts with "-> " is a link. A
// file is executable.
func imageTar(t *testing.T, files map[string]string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h *tar.Header, text string) {
		h.Mode = 0o755
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	made := map[string]bool{".": true}
	var folder func(string)
	folder = func(dir string) {
		if made[dir] {
			return
		}
		made[dir] = true
		folder(filepath.Dir(dir))
		add(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/"}, "")
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		folder(filepath.Dir(name))
		if to, ok := strings.CutPrefix(files[name], "-> "); ok {
			add(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}, "")
			continue
		}
		add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[name]))}, files[name])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func importImage(t *testing.T, e *enginetest.Engine, name string, files map[string]string, changes ...string) {
	t.Helper()
	args := []string{"import"}
	for _, c := range changes {
		args = append(args, "-c", c)
	}
	cmd := exec.Command(e.Client, append(args, "-", name)...)
	cmd.Env, cmd.Stdin = e.Environ(), imageTar(t, files)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

const imagePackages = "usr/lib/python3/dist-packages/"

// imageTorch is a torch that ends whatever imports it.
func imageTorch(cuda string) map[string]string {
	return map[string]string{
		imagePackages + "torch/__init__.py":                           "raise SystemExit('torch was imported')\n",
		imagePackages + "torch/version.py":                            "__version__ = '2.9.0'\ncuda: Optional[str] = " + cuda + "\n",
		imagePackages + "torch-2.9.0.dist-info/METADATA":              "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n",
		imagePackages + "flash_attn-2.7.4.post1.dist-info/METADATA":   "Metadata-Version: 2.1\nName: flash_attn\nVersion: 2.7.4.post1\n",
		imagePackages + "transformers-4.57.0.dist-info/top_level.txt": "transformers\n",
	}
}

// runnablePython are the files of Debian's Python, enough to start it.
func runnablePython(t *testing.T) map[string]string {
	t.Helper()
	const program = "/usr/bin/python3"
	out, err := exec.Command(program, "-c", "import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'))").Output()
	if err != nil {
		t.Skipf("needs the system's own %s: %v", program, err)
	}
	real, stdlib, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	files := map[string]string{"usr/bin/python3": "-> " + filepath.Base(real)}
	add := func(path string) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(dir, filepath.Base(path))
		}
		files[strings.TrimPrefix(path, "/")] = string(b)
	}
	add(real)
	// Its libraries and the loader, under the names that they are asked for by.
	libs, err := exec.Command("ldd", real).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(libs)) {
		if strings.HasPrefix(word, "/") {
			add(word)
		}
	}
	err = filepath.WalkDir(stdlib, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "test" || name == "__pycache__" || name == "idlelib" || name == "pydoc_data" || strings.HasPrefix(name, "config-")):
			return fs.SkipDir
		case d.Type().IsRegular():
			add(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []string{"bin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + l); err == nil {
			files[l] = "-> " + to
		}
	}
	return files
}

type imageReport struct {
	Checks   map[string]string
	Sparkrun struct {
		Findings []struct {
			ID       string
			Detail   string
			Evidence []string
		}
	}
}

// tooBusy is said of an engine that needs longer than a preflight waits for it, as any
// does on a machine that is busy enough.
const tooBusy = "did not answer within"

// imagePreflight runs sparkrun preflight for a command and returns what G1 says. While the
// engine is too busy it asks again.
func imagePreflight(t *testing.T, env, flags []string, words ...string) (status, evidence string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		status, evidence = imagePreflightOnce(t, env, flags, words...)
		if !strings.Contains(evidence, tooBusy) || time.Now().After(deadline) {
			return status, evidence
		}
	}
}

func imagePreflightOnce(t *testing.T, env, flags []string, words ...string) (status, evidence string) {
	t.Helper()
	dir := t.TempDir()
	scenario := filepath.Join(dir, "scenario")
	if err := os.WriteFile(scenario, []byte("at 0s temp 40 power 5 sm 2300 util 0 reasons 0x0 pstate 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"preflight", "--json", "--no-report"}, flags...)
	cmd := exec.Command(filepath.Join(bin, "sparkrun"), append(append(args, "--"), words...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SPARKRUN_NVML_LIBRARY="+fakenvml.Build(t), "FAKENVML_SCENARIO="+scenario, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	cmd.Env = append(cmd.Env, env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, _ := cmd.Output() // the status is that of the verdict
	var r imageReport
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, errs.String())
	}
	for _, f := range r.Sparkrun.Findings {
		if f.ID == "G1" {
			evidence = f.Detail + "\n" + strings.Join(f.Evidence, "\n")
		}
	}
	return r.Checks["G1"], evidence
}

// imageAnswer is imagePreflight for an engine that answers: where it was late, on a machine
// that has other things to do, it is asked again.
func imageAnswer(t *testing.T, env, flags []string, words ...string) (status, evidence string) {
	t.Helper()
	until(t, "an answer of the engine", func() bool {
		status, evidence = imagePreflight(t, env, flags, words...)
		return !strings.Contains(evidence, "did not answer within")
	})
	return status, evidence
}

func g1Says(t *testing.T, got, evidence, want, because string) {
	t.Helper()
	if !strings.HasPrefix(got, want) || !strings.Contains(evidence, because) {
		t.Errorf("G1 is %q (%s)\nwant %s because of %q", got, evidence, want, because)
	}
}

// imageSuite is what holds for every engine; layers says whether its images' files are
// found on this machine.
func imageSuite(t *testing.T, e *enginetest.Engine, layers bool) {
	python := runnablePython(t)
	with := func(more map[string]string) map[string]string {
		files := map[string]string{}
		for _, m := range []map[string]string{python, more} {
			for name, text := range m {
				files[name] = text
			}
		}
		return files
	}
	importImage(t, e, "with-12:1", with(imageTorch("'12.4'")))
	importImage(t, e, "with-13:1", with(imageTorch("'13.0'")))
	importImage(t, e, "ngc:1", map[string]string{"etc/x": ""}, "ENV NVIDIA_PYTORCH_VERSION=25.09", "ENV PYTORCH_VERSION=2.9.0a0+50eac811a6", "ENV CUDA_VERSION=13.0.1.012")
	run := func(image string) []string { return []string{e.Client, "run", "--rm", image, "python3", "train.py"} }

	t.Run("not there", func(t *testing.T) {
		got, evidence := imageAnswer(t, e.Env, nil, run("not-there:1")...)
		g1Says(t, got, evidence, "skip", "does not have it yet")
	})
	t.Run("environment", func(t *testing.T) {
		got, evidence := imageAnswer(t, e.Env, nil, run("ngc:1")...)
		g1Says(t, got, evidence, "pass", "by the environment of image ngc:1")
	})
	t.Run("files", func(t *testing.T) {
		if !layers {
			got, evidence := imageAnswer(t, e.Env, nil, run("with-12:1")...)
			g1Says(t, got, evidence, "skip", "--probe-image")
			return
		}
		got, evidence := imageAnswer(t, e.Env, nil, run("with-12:1")...)
		g1Says(t, got, evidence, "fail", "read from the files of image with-12:1")
		got, evidence = imageAnswer(t, e.Env, nil, run("with-13:1")...)
		g1Says(t, got, evidence, "pass", "read from the files of image with-13:1")
	})
	t.Run("probe", func(t *testing.T) {
		cache := "XDG_CACHE_HOME=" + t.TempDir()
		env := append(slices.Clone(e.Env), cache)
		got, evidence := imageAnswer(t, env, []string{"--probe-image"}, run("with-12:1")...)
		g1Says(t, got, evidence, "fail", "as image with-12:1 said itself")
		got, evidence = imageAnswer(t, env, nil, run("with-12:1")...)
		g1Says(t, got, evidence, "fail", "as image with-12:1 said itself")
		// The answer is kept for this image and no other.
		got, evidence = imageAnswer(t, env, nil, run("with-13:1")...)
		if strings.HasPrefix(got, "fail") || strings.Contains(evidence, "said itself") {
			t.Errorf("another image: %s %s", got, evidence)
		}
		if left := e.Do(t, "ps", "--all", "--quiet"); left != "" {
			t.Errorf("containers left behind: %s", left)
		}
		kept, err := filepath.Glob(filepath.Join(strings.TrimPrefix(cache, "XDG_CACHE_HOME="), "sparkrun-train/images/*.json"))
		if err != nil || len(kept) != 1 {
			t.Fatalf("%v, %v", kept, err)
		}
		// A torn answer is no answer.
		if err := os.WriteFile(kept[0], []byte(`{"schema":"sparkrun.image/1","id":"`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, evidence = imageAnswer(t, env, nil, run("with-12:1")...); strings.Contains(evidence, "said itself") {
			t.Errorf("a torn answer was taken: %s", evidence)
		}
	})
	t.Run("exec", func(t *testing.T) {
		id := e.Do(t, "run", "-d", "--network=none", "--name=box", "with-13:1", "python3", "-c", "import time; time.sleep(600)")
		t.Cleanup(func() { _, _ = e.Try("rm", "-f", id) })
		exe := []string{e.Client, "exec", "box", "python3", "train.py"}
		got, evidence := imageAnswer(t, e.Env, nil, exe...)
		g1Says(t, got, evidence, "pass", "read from the files of container box")
		// What is installed in it counts, not the image it was made from.
		e.Do(t, "exec", "box", "python3", "-c", fmt.Sprintf("open('/%storch/version.py', 'w').write(\"cuda = '12.8'\\n\")", imagePackages))
		got, evidence = imageAnswer(t, e.Env, nil, exe...)
		g1Says(t, got, evidence, "fail", "12.8")
	})
}

func TestPreflightImageDocker(t *testing.T) {
	t.Parallel()
	e := enginetest.Docker(t)
	imageSuite(t, e, true)

	t.Run("blocks the run", func(t *testing.T) {
		dir := t.TempDir()
		scenario := filepath.Join(dir, "scenario")
		if err := os.WriteFile(scenario, []byte("at 0s temp 40 power 5 sm 2300 util 0 reasons 0x0 pstate 0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		env := append(slices.Clone(e.Env), "SPARKRUN_NVML_LIBRARY="+fakenvml.Build(t), "FAKENVML_SCENARIO="+scenario)
		var p *proc
		got := 0
		until(t, "the engine is quick enough", func() bool {
			p = startEnv(t, dir, env, "--", e.Client, "run", "--rm", "--network=none", "with-12:1", "python3", "train.py")
			got = p.wait(60 * time.Second)
			report, err := os.ReadFile(p.file("env-report.json"))
			return got == 78 || err != nil || !strings.Contains(string(report), tooBusy)
		})
		if got != 78 || !strings.Contains(p.err.String(), "G1 fail: torch 2.9.0 in image with-12:1 is built against CUDA 12.4") {
			t.Errorf("status %d\n%s", got, p.err)
		}
	})
}

func TestPreflightImagePodman(t *testing.T) {
	t.Parallel()
	// The store of the test's podman is of the kind that tells no folders.
	imageSuite(t, enginetest.Podman(t, false), false)
}

// An engine that accepts and never answers holds up nothing.
func TestPreflightImageOfAnEngineThatHangs(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "sre")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	began := time.Now()
	got, evidence := imagePreflightOnce(t, []string{"DOCKER_HOST=unix://" + socket}, nil, "docker", "run", "img:1", "python", "train.py")
	g1Says(t, got, evidence, "skip", "docker "+tooBusy)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %s", took)
	}
}
