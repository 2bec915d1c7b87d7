package preflight

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/newprog"
	"sparkrun/internal/sample"
)

// find returns the finding with that number.
func find(t *testing.T, r Report, id string) Finding {
	t.Helper()
	for _, f := range append(r.Findings[:len(r.Findings):len(r.Findings)], r.Host...) {
		if f.ID == id {
			return f
		}
	}
	t.Fatalf("no finding %s", id)
	return Finding{}
}

func rtx(cudaDriver int) func(context.Context) (sample.Device, sample.GPU, error) {
	return func(context.Context) (sample.Device, sample.GPU, error) {
		return sample.Device{
			Source: "nvml", Name: "NVIDIA GeForce RTX 4090", DriverVersion: "550.90.07",
			CUDADriver: cudaDriver, CapMajor: 8, CapMinor: 9, Count: 1,
		}, sample.GPU{TempC: sample.Known(50), PowerW: sample.Known(30)}, nil
	}
}

func withTorch(versionPy string) map[string]string {
	files := map[string]string{}
	for k, v := range torchCUDA12 {
		files[k] = v
	}
	files[venvTorch+"/version.py"] = versionPy
	return files
}

func metadata(text string) map[string]string {
	files := withTorch("# nothing of use\n")
	files["home/ada/venv/lib/python3.12/site-packages/torch-2.9.0.dist-info/METADATA"] = text
	return files
}

func TestG1Judgement(t *testing.T) {
	t.Parallel()
	noInit := withTorch("cuda = '13.0'\n")
	delete(noInit, venvTorch+"/__init__.py")
	for _, c := range []struct {
		name     string
		tree     string
		files    map[string]string
		device   func(context.Context) (sample.Device, sample.GPU, error)
		status   Status
		byDesign bool
		line     string
	}{
		{"13 passes", "spark", withTorch("__version__ = '2.9.0+cu130'\ncuda = '13.0'\n"), gb10, Pass, false, "G1 PASS: torch built against CUDA 13.0"},
		{"double quotes, annotated", "spark", withTorch("cuda: Optional[str] = \"13.1\"\n"), gb10, Pass, false, "G1 PASS: torch built against CUDA 13.1"},
		// The script tested for the prefix "13".
		{"130.1 does not pass", "spark", withTorch("cuda = '130.1'\n"), gb10, Fail, false, "G1 FAIL: torch built against CUDA 130.1 (need 13.x — see gotcha G1)"},
		{"12 fails", "spark", torchCUDA12, gb10, Fail, false, "G1 FAIL: torch built against CUDA 12.4 (need 13.x — see gotcha G1)"},
		// The script called a CPU-only torch not importable.
		{"CPU-only is not absent", "spark", withTorch("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"), gb10, Fail, false, "G1 FAIL: torch built against CUDA none (need 13.x — see gotcha G1)"},
		{"not installed", "spark", map[string]string{"home/ada/venv/bin/python": elf}, gb10, Skip, false, "G1 SKIP: torch not importable"},
		{"remains of an uninstall", "spark", noInit, gb10, Skip, false, "G1 SKIP: torch not importable"},
		// NGC builds have no cu130 tag; wheels with the tag may lack the file.
		{"tag of the wheel", "spark", metadata("Name: torch\nVersion: 2.9.0+cu130\n"), gb10, Pass, false, "G1 PASS: torch built against CUDA 13.0"},
		{"tag of an old wheel", "spark", metadata("Name: torch\nVersion: 2.1.0+cu118\n"), gb10, Fail, false, "G1 FAIL: torch built against CUDA 11.8 (need 13.x — see gotcha G1)"},
		{"requirement of the wheel", "spark", metadata("Name: torch\nVersion: 2.6.0\nRequires-Dist: nvidia-cuda-runtime-cu12==12.4.127; platform_system == \"Linux\"\n"), gb10, Fail, false, "G1 FAIL: torch built against CUDA 12.4 (need 13.x — see gotcha G1)"},
		{"no source at all", "spark", withTorch("__version__ = '2.9.0'\n"), gb10, Skip, false, "G1 SKIP: torch 2.9.0 is there, but nothing says which CUDA it was built against"},

		{"no GPU, CPU-only", "laptop", withTorch("cuda = None\n"), noLibrary, Skip, true, ""},
		{"no GPU, CUDA 12", "laptop", torchCUDA12, noLibrary, Skip, true, ""},
		{"no GPU, no torch", "laptop", map[string]string{"home/ada/venv/bin/python": elf, "home/ada/venv/pyvenv.cfg": "home = /usr/bin\n"}, noLibrary, Skip, true, "G1 SKIP: torch not importable"},
		{"other GPU, CUDA 12", "laptop", torchCUDA12, rtx(12040), Info, false, "G1 INFO: torch built against CUDA 12.4 (only a DGX Spark needs 13.x)"},
		{"other GPU, CPU-only", "laptop", withTorch("cuda = None\n"), rtx(12040), Fail, false, ""},
		{"other GPU, driver older than torch", "laptop", withTorch("cuda = '13.0'\n"), rtx(12040), Warn, false, ""},
		{"other GPU, 13 with its driver", "laptop", withTorch("cuda = '13.0'\n"), rtx(13000), Pass, false, "G1 PASS: torch built against CUDA 13.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := find(t, Run(t.Context(), Input{
				Root: copyTree(t, c.tree, c.files), Getenv: env(), Device: c.device, Job: pythonJob(venvPython),
			}), "G1")
			if f.Status != c.status || f.ByDesign != c.byDesign || c.line != "" && f.Line != c.line {
				t.Errorf("got %s, by design %t, %q", f.Status, f.ByDesign, f.Line)
			}
			if f.ByDesign != strings.HasSuffix(f.Detail, "(by design)") {
				t.Errorf("detail %q does not say whether it is by design", f.Detail)
			}
			if f.Status == Fail && f.Fix == "" {
				t.Error("a failure without a fix")
			}
		})
	}
}

func TestG1LeavesCommandsThatAreNotPythonAlone(t *testing.T) {
	t.Parallel()
	f := find(t, Run(t.Context(), Input{Root: "testdata/spark", Device: gb10, Job: &job.Job{Argv: []string{"./train"}}}), "G1")
	if f.Status != Skip || !f.ByDesign {
		t.Errorf("got %+v", f)
	}
}

// The interpreter that will really run decides, wherever it keeps its packages.
func TestTorchIsFoundInEveryKindOfPython(t *testing.T) {
	t.Parallel()
	torch := func(dir string, more ...string) map[string]string {
		files := map[string]string{dir + "/torch/__init__.py": "", dir + "/torch/version.py": "cuda = '13.0'\n"}
		for i := 0; i+1 < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	const pyenv = "home/ada/.pyenv"
	for _, c := range []struct {
		name   string
		interp string
		env    func(string) string
		files  map[string]string
		found  bool
	}{
		{"apt", "/usr/bin/python3", env(), torch("usr/lib/python3/dist-packages"), true},
		{"pip as root", "/usr/bin/python3", env(), torch("usr/local/lib/python3.12/dist-packages"), true},
		{"pip --user", "/usr/bin/python3", env(), torch("home/ada/.local/lib/python3.12/site-packages"), true},
		{"pip --user of another version", "/usr/bin/python3", env(), torch("home/ada/.local/lib/python3.10/site-packages"), false},
		{"pip --user switched off", "/usr/bin/python3", env("PYTHONNOUSERSITE", "1"), torch("home/ada/.local/lib/python3.12/site-packages"), false},
		{"PYTHONPATH", "/usr/bin/python3", env("PYTHONPATH", "/opt/a:/opt/b"), torch("opt/b"), true},
		{"relative PYTHONPATH", "/usr/bin/python3", env("PYTHONPATH", "src"), torch("home/ada/src"), true},
		{"python.org build", "/usr/local/bin/python3", env(), torch("usr/local/lib/python3.13/site-packages", "usr/local/bin/python3", "-> python3.13", "usr/local/bin/python3.13", elf), true},
		{"conda", "/opt/conda/envs/x/bin/python", env(), torch("opt/conda/envs/x/lib/python3.11/site-packages", "opt/conda/envs/x/bin/python", "-> python3.11", "opt/conda/envs/x/bin/python3.11", elf), true},
		{"venv hides the system", "/home/ada/v/bin/python", env(), torch("usr/lib/python3/dist-packages", "home/ada/v/bin/python", "-> /usr/bin/python3", "home/ada/v/pyvenv.cfg", "home = /usr/bin\n"), false},
		{"venv with the system's packages", "/home/ada/v/bin/python", env(), torch("usr/lib/python3/dist-packages", "home/ada/v/bin/python", "-> /usr/bin/python3", "home/ada/v/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\nversion = 3.12.3\n"), true},
		{"uv venv of a managed Python", "/home/ada/v/bin/python", env(), torch("home/ada/v/lib/python3.13/site-packages", "home/ada/v/bin/python", "-> ../../uv/bin/python3.13", "home/ada/uv/bin/python3.13", elf, "home/ada/v/pyvenv.cfg", "home = /home/ada/uv/bin\nimplementation = CPython\nuv = 0.5\nversion_info = 3.13.1\n"), true},
		{"editable checkout", "/usr/bin/python3", env(), torch("home/ada/src/pytorch", "usr/local/lib/python3.12/dist-packages/torch.pth", "# a comment\nimport os\n/home/ada/src/pytorch\n"), true},
		{
			"pyenv shim, global version", "/" + pyenv + "/shims/python3", env(),
			torch(pyenv+"/versions/3.11.7/lib/python3.11/site-packages", pyenv+"/shims/python3", "#!/bin/sh\n", pyenv+"/version", "3.11\n",
				pyenv+"/versions/3.11.7/bin/python3", "-> python3.11", pyenv+"/versions/3.11.7/bin/python3.11", elf,
				pyenv+"/versions/3.9.18/bin/python3", elf), true,
		},
		{
			"pyenv shim, version of the folder", "/" + pyenv + "/shims/python3", env(),
			torch(pyenv+"/versions/3.9.18/lib/python3.9/site-packages", pyenv+"/shims/python3", "#!/bin/sh\n", pyenv+"/version", "3.11.7\n",
				"home/ada/.python-version", "3.9.18 # for the old wheels\n",
				pyenv+"/versions/3.11.7/bin/python3", elf,
				pyenv+"/versions/3.9.18/bin/python3", "-> python3.9", pyenv+"/versions/3.9.18/bin/python3.9", elf), true,
		},
		{
			"pyenv shim, system", "/" + pyenv + "/shims/python3", env("PYENV_VERSION", "system", "PATH", "/"+pyenv+"/shims:/usr/bin"),
			torch("usr/lib/python3/dist-packages", pyenv+"/shims/python3", "#!/bin/sh\n"), true,
		},
		{"links in a circle", "/home/ada/loop", env(), torch("usr/lib/python3/dist-packages", "home/ada/loop", "-> loop"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := root(copyTree(t, "spark", c.files))
			b := findTorch(r, venueOf(r, c.interp, c.env, "/home/ada", ""))
			if got := b.state == torchFound && b.cuda == "13.0"; got != c.found {
				t.Errorf("found %t, want %t: %+v", got, c.found, b)
			}
		})
	}
}

// realPython returns the interpreter of this machine behind any shim.
func realPython(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skipf("needs python3 on PATH: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// The folders found without starting Python must be those a real Python uses.
func TestRealVirtualEnvironment(t *testing.T) {
	t.Parallel()
	python := realPython(t)
	dir := t.TempDir()
	if out, err := exec.Command(python, "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Skipf("needs the venv module of Python: %v\n%s", err, out)
	}
	interp := filepath.Join(dir, "bin/python")
	out, err := exec.Command(interp, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").Output()
	if err != nil {
		t.Fatal(err)
	}
	writeTorch(t, strings.TrimSpace(string(out)), "12.8")
	start := time.Now()
	f := find(t, Run(t.Context(), Input{Getenv: env(), Device: gb10, Job: pythonJob(interp)}), "G1")
	if f.Line != "G1 FAIL: torch built against CUDA 12.8 (need 13.x — see gotcha G1)" {
		t.Errorf("got %q after %v", f.Line, time.Since(start))
	}
}

// A wrapper script tells nothing of where its Python imports from; the wrapper
// itself is asked, and what a sitecustomize prints must not confuse it.
func TestWrapperScriptIsAskedOnce(t *testing.T) {
	t.Parallel()
	python := realPython(t)
	dir := t.TempDir()
	writeTorch(t, filepath.Join(dir, "lib"), "13.0")
	count := filepath.Join(dir, "count")
	interp := filepath.Join(dir, "python3")
	script := "#!/bin/sh\necho x >>" + count + "\necho hello from the wrapper\nPYTHONPATH=" + dir + "/lib exec " + python + " \"$@\"\n"
	if err := newprog.Write(interp, []byte(script)); err != nil {
		t.Fatal(err)
	}
	f := find(t, Run(t.Context(), Input{Getenv: env(), Device: gb10, Limit: 20 * time.Second, Job: &job.Job{Dir: dir, Interpreter: interp}}), "G1")
	if f.Line != "G1 PASS: torch built against CUDA 13.0" {
		t.Errorf("got %q: %s", f.Line, f.Detail)
	}
	if b, _ := os.ReadFile(count); string(b) != "x\n" {
		t.Errorf("the interpreter was started %d times", len(b)/2)
	}
}

// A wrapper that hangs, with a child that keeps its output open, costs one limit
// and leaves no process behind.
func TestHangingWrapperCostsOneLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	interp, pidFile := filepath.Join(dir, "python3"), filepath.Join(dir, "pid")
	script := "#!/bin/sh\nsleep 300 &\necho $! >" + pidFile + "\nwait\n"
	if err := newprog.Write(interp, []byte(script)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	f := find(t, Run(t.Context(), Input{Getenv: env(), Device: gb10, Limit: 2 * time.Second, Job: &job.Job{Dir: dir, Interpreter: interp}}), "G1")
	if !strings.HasPrefix(f.Line, "G1 SKIP: no answer within 2 s") || f.ByDesign {
		t.Errorf("got %q", f.Line)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the wrapper's child is still running")
		}
	}
}

func writeTorch(t *testing.T, site, cuda string) {
	t.Helper()
	dir := filepath.Join(site, "torch")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		// Importing it would fail the test: nothing may.
		"__init__.py": "raise SystemExit('torch was imported')\n",
		"version.py":  "__version__ = '2.9.0'\ncuda: Optional[str] = '" + cuda + "'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
