package preflight

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/newprog"
)

// torchLayer is an image's layer with a Python and a torch as NGC images lay them out.
func torchLayer(versionPy string) map[string]string {
	return map[string]string{
		"bin": "-> usr/bin", "usr/bin/python3": "-> python3.12", "usr/bin/python": "-> python3", "usr/bin/python3.12": elf,
		"usr/local/lib/python3.12/dist-packages/torch/__init__.py":                         "",
		"usr/local/lib/python3.12/dist-packages/torch/version.py":                          "__version__ = '2.9.0'\n" + versionPy,
		"usr/local/lib/python3.12/dist-packages/torch-2.9.0.dist-info/METADATA":            "Name: torch\nVersion: 2.9.0\n",
		"usr/local/lib/python3.12/dist-packages/flash_attn-2.7.4.post1.dist-info/METADATA": "",
	}
}

func imageJob(words ...string) *job.Job {
	j := &job.Job{Argv: append([]string{"docker", "run", "--gpus", "all", "img:1"}, words...), Dir: "/home/ada", TrainerAt: 6, Launchers: []string{"docker"}}
	j.Container = &job.Container{Engine: "docker", Verb: "run", Image: "img:1"}
	for _, w := range words {
		if strings.HasSuffix(w, ".py") {
			j.Script = w[strings.LastIndexByte(w, ' ')+1:]
		}
	}
	if words[0] == "bash" {
		j.Launchers = append(j.Launchers, "bash")
	}
	return j
}

const someID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestG1JudgesTheImage(t *testing.T) {
	t.Parallel()
	ngc := map[string]string{"NVIDIA_PRODUCT_NAME": "PyTorch", "PYTORCH_VERSION": "2.9.0a0+50eac811a6", "CUDA_VERSION": "13.0.1.012", "NVIDIA_PYTORCH_VERSION": "25.09"}
	probe := func(asked, cuda string) *ImageProbe {
		return &ImageProbe{
			Schema: ProbeSchema, ID: someID, Image: "img:1", Asked: asked, Interpreter: "/usr/bin/python3.12", Time: time.Date(2026, 7, 1, 8, 0, 0, 0, time.UTC),
			Torch: "/opt/x/torch", TorchVersion: "cuda = '" + cuda + "'\n", Packages: map[string]string{"torch": "2.9.1", "flash-attn": "2.7.4"},
		}
	}
	type layersOf []map[string]string
	for _, c := range []struct {
		name     string
		words    []string
		verb     string
		facts    ImageFacts
		layers   layersOf
		tree     string
		status   Status
		byDesign bool
		detail   string
		evidence string
		packages string
	}{
		{name: "not pulled yet", words: []string{"python", "t.py"}, tree: "spark", status: Skip, byDesign: true, detail: "inside image img:1 (by design)", evidence: "docker does not have it yet"},
		{name: "from its layers", words: []string{"python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID}, layers: layersOf{{"etc/x": ""}, torchLayer("cuda = '13.0'\n")}, status: Pass, detail: "torch built against CUDA 13.0 in image img:1", evidence: "read from the files of image img:1", packages: "flash_attn 2.7.4.post1"},
		{name: "CUDA 12 in its layers", words: []string{"python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID}, layers: layersOf{torchLayer("cuda = '12.4'\n")}, status: Fail, detail: "torch 2.9.0 in image img:1 is built against CUDA 12.4, this machine needs 13.x"},
		{name: "CPU-only in its layers", words: []string{"python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID}, layers: layersOf{torchLayer("cuda = None\n")}, status: Fail, detail: "torch 2.9.0 in image img:1 is a CPU-only build: it would train on the CPU without a word"},
		{name: "an upper layer replaced it", words: []string{"python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID, Env: ngc}, layers: layersOf{{"usr/local/lib/python3.12/dist-packages/torch/version.py": "cuda = '12.8'\n"}, torchLayer("cuda = '13.0'\n")}, status: Fail},
		{name: "an upper layer removed it", words: []string{"python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID}, layers: layersOf{{"usr/local/lib/python3.12/dist-packages/.wh.torch": ""}, torchLayer("cuda = '13.0'\n")}, status: Skip, detail: "torch not importable in image img:1"},
		{name: "no torch, but a shell may install it", words: []string{"bash", "-c", "pip install torch && python t.py"}, tree: "spark", facts: ImageFacts{ID: someID}, layers: layersOf{{"usr/bin/python3": elf, "usr/bin/python": elf}}, status: Skip, byDesign: true},
		{name: "a Python that is mounted", words: []string{"/venv/bin/python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID}, layers: layersOf{torchLayer("cuda = '12.4'\n")}, status: Skip, byDesign: true},
		{name: "no Python at all", words: []string{"./train"}, tree: "spark", facts: ImageFacts{ID: someID}, layers: layersOf{{"usr/bin/ls": elf}}, status: Skip, byDesign: true, evidence: "it has no Python"},
		{name: "by its environment", words: []string{"python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID, Env: ngc}, status: Pass, detail: "torch built against CUDA 13.0 in image img:1", evidence: "by the environment of image img:1 (NVIDIA's PyTorch images)", packages: "torch 2.9.0a0+50eac811a6"},
		// What an image was made from may have been replaced in it: no reason to block.
		{name: "by its environment, CUDA 12", words: []string{"python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID, Env: map[string]string{"NVIDIA_PYTORCH_VERSION": "24.10", "PYTORCH_VERSION": "2.5", "CUDA_VERSION": "12.6.2.004"}}, status: Warn},
		{name: "CUDA of a base image says nothing of torch", words: []string{"python", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID, Env: map[string]string{"CUDA_VERSION": "12.6.2"}}, status: Skip, byDesign: true, evidence: "--probe-image"},
		{name: "an earlier probe comes first", words: []string{"python3", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID, Probe: probe("python3", "13.0")}, layers: layersOf{torchLayer("cuda = '12.4'\n")}, status: Pass, evidence: "as image img:1 said itself on 2026-07-01 (/usr/bin/python3.12)", packages: "flash_attn 2.7.4"},
		{name: "an earlier probe of another Python", words: []string{"python3", "t.py"}, tree: "spark", facts: ImageFacts{ID: someID, Probe: probe("/opt/venv/bin/python", "12.4")}, layers: layersOf{torchLayer("cuda = '13.0'\n")}, status: Pass},
		{name: "probe of a command that names no Python", words: []string{"train"}, tree: "spark", facts: ImageFacts{ID: someID, Probe: probe("python3", "12.4")}, status: Fail},
		{name: "a running container's files come first", words: []string{"python3", "t.py"}, verb: "exec", tree: "spark", facts: ImageFacts{ID: someID, Ref: "nvcr.io/x:1", Container: "abc", Probe: probe("python3", "12.4")}, layers: layersOf{torchLayer("cuda = '13.0'\n")}, status: Pass, detail: "torch built against CUDA 13.0 in container img:1"},
		{name: "a program of the image", words: []string{"trl", "sft"}, tree: "spark", facts: ImageFacts{ID: someID, Env: map[string]string{"PATH": "/opt/venv/bin:/usr/bin"}}, layers: layersOf{
			{
				"opt/venv/bin/trl": "#!/opt/venv/bin/python\n", "opt/venv/bin/python": "-> /usr/bin/python3.12", "opt/venv/pyvenv.cfg": "home = /usr/bin\n",
				"opt/venv/lib/python3.12/site-packages/torch/__init__.py": "", "opt/venv/lib/python3.12/site-packages/torch/version.py": "cuda = '13.1'\n",
			}, torchLayer("cuda = '12.4'\n"),
		}, status: Pass, detail: "torch built against CUDA 13.1 in image img:1"},
		{name: "another GPU", words: []string{"python", "t.py"}, tree: "laptop", facts: ImageFacts{ID: someID}, layers: layersOf{torchLayer("cuda = '12.4'\n")}, status: Skip, byDesign: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, files := range c.layers {
				c.facts.Layers = append(c.facts.Layers, layer(t, files))
			}
			j := imageJob(c.words...)
			if c.verb != "" {
				j.Container.Verb = c.verb
			}
			device := gb10
			if c.tree == "laptop" {
				device = noLibrary
			}
			f, _ := gather(t.Context(), Input{
				// The host's own torch must not matter.
				Root:   copyTree(t, c.tree, map[string]string{"usr/lib/python3/dist-packages/torch/__init__.py": "", "usr/lib/python3/dist-packages/torch/version.py": "cuda = '11.8'\n"}),
				Getenv: env(), Device: device, Job: j,
				Images: func(_ context.Context, engine, ref string) (ImageFacts, error) {
					if engine != "docker" || ref != "img:1" {
						t.Errorf("asked for %s of %s", ref, engine)
					}
					return c.facts, nil
				},
			})
			found := judgeCUDAABI(f)
			if found.Status != c.status || found.ByDesign != c.byDesign || c.detail != "" && found.Detail != c.detail {
				t.Errorf("%s, by design %t: %s\n%q", found.Status, found.ByDesign, found.Detail, found.Evidence)
			}
			if c.evidence != "" && !strings.Contains(strings.Join(found.Evidence, "\n"), c.evidence) {
				t.Errorf("evidence %q lacks %q", found.Evidence, c.evidence)
			}
			if (found.Status == Fail || found.Status == Warn) && (found.Fix == "" || strings.Contains(found.Fix, "/usr/bin/python")) {
				t.Errorf("fix %q", found.Fix)
			}
			if name, version, ok := strings.Cut(c.packages, " "); ok && f.python.packages[name] != version {
				t.Errorf("packages %v", f.python.packages)
			}
		})
	}
}

// An engine that accepts and never answers costs its limit and no more.
func TestImageOfAnEngineThatHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	start := time.Now()
	r := Run(t.Context(), Input{
		Root: copyTree(t, "spark", nil), Getenv: env(), Device: gb10, Job: imageJob("python", "t.py"), Limit: 20 * time.Second, LookLimit: 100 * time.Millisecond,
		Images: func(context.Context, string, string) (ImageFacts, error) {
			<-release // deaf to its context
			return ImageFacts{}, nil
		},
	})
	found := find(t, r, "G1")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if !found.ByDesign || !strings.Contains(strings.Join(found.Evidence, "\n"), "docker did not answer within 0.07 s") {
		t.Errorf("%s %q", found.Detail, found.Evidence)
	}
	r = Run(t.Context(), Input{
		Root: copyTree(t, "spark", nil), Getenv: env(), Device: gb10, Job: imageJob("python", "t.py"),
		Images: func(context.Context, string, string) (ImageFacts, error) {
			return ImageFacts{}, errors.New("docker: permission denied")
		},
	})
	if found := find(t, r, "G1"); !found.ByDesign || !slices.Contains(found.Evidence, "docker: permission denied") {
		t.Errorf("%s %q", found.Detail, found.Evidence)
	}
}

// On a busy machine the client of an engine takes its time to start, as everything does.
func TestAnEngineIsWaitedForLongerOnABusyMachine(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var given time.Duration
		readImage(ctx, view{job: imageJob("python", "t.py"), busy: busy, in: Input{
			LookLimit: 250 * time.Millisecond,
			Images: func(ctx context.Context, _, _ string) (ImageFacts, error) {
				end, _ := ctx.Deadline()
				given = time.Until(end)
				return ImageFacts{}, errors.New("none")
			},
		}})
		if longer := given > 250*time.Millisecond; longer != busy || given > DefaultLimit {
			t.Errorf("busy %t: %v", busy, given)
		}
	}
}

func TestPythonThatACommandNamesInside(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"docker run --name python img:1 python3 t.py":          "python3",
		"docker run img:1 /opt/venv/bin/python3.12 -u t.py":    "/opt/venv/bin/python3.12",
		"docker run img:1 torchrun t.py":                       "",
		"bash -c|docker run img:1 python t.py":                 "python",
		"docker run img:1 bash -lc|cd /w && (python3 -u t.py)": "python3",
		"docker run img:1":                                     "",
		"docker run other python":                              "",
		"docker run img:1 my-python-tool":                      "",
	} {
		var argv []string
		before, text, ok := strings.Cut(line, "|")
		argv = strings.Fields(before)
		if ok {
			argv = append(argv, text)
		}
		if got := insidePython(argv, "img:1"); got != want {
			t.Errorf("%s: %q", line, got)
		}
	}
}

// The script that an image is asked with is run by a real Python here, which has a torch
// that must not be imported.
func TestProbeScript(t *testing.T) {
	t.Parallel()
	python := realPython(t)
	dir := t.TempDir()
	writeTorch(t, dir, "13.0")
	meta := filepath.Join(dir, "flash_attn-2.7.4.dist-info")
	if err := os.MkdirAll(meta, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(meta, "METADATA"), []byte("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.7.4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", ProbeScript)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParseProbe(append([]byte("a banner\nsparkrun-image is not it\n"), out...))
	if err != nil {
		t.Fatal(err)
	}
	f := p.facts([]string{"torch", "flash_attn"})
	if f.torch.state != torchFound || f.torch.cuda != "13.0" || f.packages["flash_attn"] != "2.7.4" || f.interp == "" || len(f.sites) == 0 {
		t.Errorf("%+v", f)
	}
	p.ID = someID
	b, err := p.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ReadProbe(b, someID); err != nil || again.Torch != p.Torch || again.Packages["flash-attn"] != "2.7.4" {
		t.Errorf("%v, %+v", err, again)
	}
	if _, err := ReadProbe(b, strings.Repeat("f", 64)); err == nil {
		t.Error("a probe of another image was taken")
	}
	for _, text := range []string{"", "{", "sparkrun-image:", "sparkrun-image:[]", `sparkrun-image:{"interpreter":"python"}`, `sparkrun-image:{"packages":3}`} {
		if p, err := ParseProbe([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, p)
		}
	}
}

func TestG1CUDARuntimes(t *testing.T) {
	t.Parallel()
	const lib = "usr/local/cuda/targets/sbsa-linux/lib/"
	both := string(cacheFile(binary.LittleEndian, false, false, cacheEntry{"libcudart.so.12", "/usr/lib/libcudart.so.12", flagAArch64}, cacheEntry{"libcudart.so.13", "/" + lib + "libcudart.so.13", flagAArch64}))
	none := string(cacheFile(binary.LittleEndian, false, false, cacheEntry{"libm.so.6", "/usr/lib/libm.so.6", flagAArch64}))
	with := func(base map[string]string, more ...string) map[string]string {
		files := map[string]string{}
		for k, v := range base {
			files[k] = v
		}
		for i := 0; i+1 < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	cu13, cu12 := withTorch("__version__ = '2.9.0'\ncuda = '13.0'\n"), withTorch("__version__ = '2.6.0'\ncuda = '12.4'\n")
	const site = "home/ada/venv/lib/python3.12/site-packages/"
	for _, c := range []struct {
		name             string
		files            map[string]string
		status           Status
		detail, evidence string
	}{
		{"both, torch for 13", with(cu13, "etc/ld.so.cache", both, "usr/lib/libcudart.so.12", "", lib+"libcudart.so.13", ""), Pass, "torch built against CUDA 13.0; libcudart.so.12 lies beside it, which this torch does not use", "libcudart.so.12: /usr/lib/libcudart.so.12"},
		{"both, torch for 12", with(cu12, "etc/ld.so.cache", both, "usr/lib/libcudart.so.12", "", lib+"libcudart.so.13", ""), Fail, "torch 2.6.0 is built against CUDA 12.4, this machine needs 13.x", "libcudart.so.12: /usr/lib/libcudart.so.12"},
		{"13 alone", with(cu13, "etc/ld.so.cache", both, lib+"libcudart.so.13", ""), Pass, "torch built against CUDA 13.0", "the loader's cache names /usr/lib/libcudart.so.12, which is gone"},
		{"none, but the wheel brings it", with(cu13, "etc/ld.so.cache", none, site+"nvidia/cu13/lib/libcudart.so.13", ""), Pass, "torch built against CUDA 13.0", "nvidia/cu13/lib/libcudart.so.13"},
		{"none, but the toolkit has it", with(cu13, "etc/ld.so.cache", none, "usr/local/cuda/lib64/libcudart.so.13", ""), Pass, "torch built against CUDA 13.0", ""},
		{"none at all", with(cu13, "etc/ld.so.cache", none), Warn, "torch is built against CUDA 13.0, but libcudart.so.13 is neither beside it nor known to the loader: a gap in the CUDA installation, not in the wheel", ""},
		{"the cache cannot be read", with(cu13, "etc/ld.so.cache", "garbage"), Pass, "torch built against CUDA 13.0", ""},
		{"a torn cache", with(cu13, "etc/ld.so.cache", both[:70]), Pass, "torch built against CUDA 13.0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := copyTree(t, "spark", nil)
			if err := os.RemoveAll(filepath.Join(dir, "usr/local/cuda")); err != nil {
				t.Fatal(err)
			}
			over := copyTree(t, "", c.files)
			if out, err := exec.Command("cp", "-a", over+"/.", dir).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			found := find(t, Run(t.Context(), Input{Root: dir, Getenv: env(), Device: gb10, Machine: "aarch64", Job: pythonJob(venvPython)}), "G1")
			if found.Status != c.status || found.Detail != c.detail {
				t.Errorf("%s: %s\n%q", found.Status, found.Detail, found.Evidence)
			}
			if !strings.Contains(strings.Join(found.Evidence, "\n"), c.evidence) {
				t.Errorf("evidence %q lacks %q", found.Evidence, c.evidence)
			}
			if found.Status == Warn && (strings.Contains(found.Fix, "pip") || found.Fix == "") {
				t.Errorf("fix %q", found.Fix)
			}
		})
	}
}

func TestG1OfEnvironmentsThatCannotBeSeen(t *testing.T) {
	t.Parallel()
	broken := map[string]string{"home/ada/v/bin/python": "-> /opt/gone/bin/python3.11", "home/ada/v/pyvenv.cfg": "home = /opt/gone/bin\n"}
	copied := map[string]string{"home/ada/v/bin/python": elf, "home/ada/v/pyvenv.cfg": "home = /opt/gone/bin\n"}
	inline := map[string]string{"home/ada/t.py": "# /// script\n# dependencies = [\"torch\"]\n# ///\n"}
	for _, c := range []struct {
		name     string
		files    map[string]string
		job      job.Job
		env      func(string) string
		byDesign bool
		detail   string
	}{
		{"broken virtual environment", broken, job.Job{Argv: []string{"v/bin/python", "t.py"}, Script: "t.py", TrainerAt: 1}, env(), false, "the virtual environment /home/ada/v is broken: the Python that it was made with (in /opt/gone/bin) is gone"},
		{"copied Python of a broken one", copied, job.Job{Argv: []string{"v/bin/python", "t.py"}, Script: "t.py", TrainerAt: 1, Interpreter: "/home/ada/v/bin/python"}, env(), false, "the virtual environment /home/ada/v is broken: the Python that it was made with (in /opt/gone/bin) is gone"},
		{"broken one that is switched on", broken, job.Job{Argv: []string{"python", "t.py"}, Script: "t.py", TrainerAt: 1}, env("VIRTUAL_ENV", "/home/ada/v"), false, "the virtual environment /home/ada/v is broken: the Python that it was made with (in /opt/gone/bin) is gone"},
		{"PEP 723", inline, job.Job{Argv: []string{"uv", "run", "t.py"}, Script: "t.py", TrainerAt: 2, Launchers: []string{"uv"}}, env(), true, "t.py names its own packages (PEP 723): uv makes an environment for it alone, which is not seen before it starts (by design)"},
		{"an environment that is not made yet", nil, job.Job{Argv: []string{"poetry", "run", "python", "t.py"}, Script: "t.py", TrainerAt: 3, Launchers: []string{"poetry"}}, env(), true, "the environment that poetry starts the command in does not exist yet, or cannot be told from outside (by design)"},
		{"sudo", nil, job.Job{Argv: []string{"sudo", "python", "t.py"}, Script: "t.py", TrainerAt: 2, Launchers: []string{"sudo"}}, env(), true, "which Python runs the command cannot be told from outside (by design)"},
		{"no Python", nil, job.Job{Argv: []string{"./train"}}, env(), true, "the command is not a Python program (by design)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.job.Dir = "/home/ada"
			found := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark", c.files), Getenv: c.env, Device: gb10, Job: &c.job}), "G1")
			if found.Status != Skip || found.ByDesign != c.byDesign || found.Detail != c.detail {
				t.Errorf("%s, by design %t: %s", found.Status, found.ByDesign, found.Detail)
			}
			if !c.byDesign && found.Fix == "" {
				t.Error("no fix")
			}
		})
	}
}

// Sources of the CUDA version besides torch/version.py, and places of torch besides
// site-packages.
func TestTorchWithoutItsUsualFiles(t *testing.T) {
	t.Parallel()
	const site = "usr/lib/python3/dist-packages/"
	for _, c := range []struct {
		name    string
		files   map[string]string
		cuda    string
		cpuOnly bool
	}{
		{"runtime wheel beside it", map[string]string{site + "torch/__init__.py": "", site + "torch/lib/libtorch_cuda.so": "", site + "nvidia/cu13/lib/libcudart.so.13": ""}, "13", false},
		{"two runtimes", map[string]string{site + "torch/__init__.py": "", site + "torch/lib/libtorch_cuda.so": "", site + "nvidia/cu13/lib/libcudart.so.13": "", site + "nvidia/cuda_runtime/lib/libcudart.so.12": ""}, "", false},
		{"no CUDA library in it", map[string]string{site + "torch/__init__.py": "", site + "torch/lib/libtorch_cpu.so": ""}, "", true},
		{"nothing", map[string]string{site + "torch/__init__.py": ""}, "", false},
		{"toolkit wheel required", map[string]string{site + "torch/__init__.py": "", site + "torch-2.11.0.dist-info/METADATA": "Version: 2.11.0\nRequires-Dist: cuda-toolkit[cublas,cudart]==13.0.2; platform_system == \"Linux\"\n"}, "13.0", false},
		{"editable", map[string]string{site + "__editable___torch_2_9_0_finder.py": "MAPPING: dict[str, str] = {'functorch': '/src/pytorch/functorch', 'torch': '/src/pytorch/torch'}\n", "src/pytorch/torch/__init__.py": "", "src/pytorch/torch/version.py": "cuda = '13.0'\n"}, "13.0", false},
	} {
		r := root(copyTree(t, "spark", c.files))
		b := findTorch(r, venueOf(r, "/usr/bin/python3", env(), "/", ""))
		if b.state != torchFound || b.cuda != c.cuda || b.noCUDA != c.cpuOnly {
			t.Errorf("%s: %+v", c.name, b)
		}
	}
	r := root(copyTree(t, "spark", map[string]string{"opt/p/torch/__init__.py": "", "home/ada/.local/lib/python3.12/site-packages/torch/__init__.py": ""}))
	for options, want := range map[string]torchState{"": torchFound, "E": torchFound, "s": torchFound, "I": torchAbsent, "Es": torchAbsent, "uB": torchFound} {
		v := venueOf(r, "/usr/bin/python3", env("PYTHONPATH", "/opt/p"), "/", options)
		if b := findTorch(r, v); b.state != want {
			t.Errorf("python -%s: %v", options, v.sites)
		}
	}
	for _, c := range []struct {
		argv []string
		at   int
		want string
	}{
		{[]string{"python", "-u", "-I", "t.py"}, 3, "Iu"},
		{[]string{"python", "-Es", "-Wignore", "-mtrain"}, 3, "Es"},
		{[]string{"nohup", "python", "t.py"}, 2, ""},
		{[]string{"trl", "sft"}, 0, ""},
	} {
		got := []byte(pythonOptions(&job.Job{Argv: c.argv, TrainerAt: c.at}))
		slices.Sort(got)
		if string(got) != c.want {
			t.Errorf("%q: %q", c.argv, got)
		}
	}
}

// 300 packages are what a large environment has; all of preflight has 300 ms.
func BenchmarkReadPython(b *testing.B) {
	dir := b.TempDir()
	site := filepath.Join(dir, "home/ada/venv/lib/python3.12/site-packages")
	for n := range 300 {
		for _, folder := range []string{fmt.Sprintf("package_%d", n), fmt.Sprintf("package_%d-1.%d.dist-info", n, n)} {
			if err := os.MkdirAll(filepath.Join(site, folder), 0o755); err != nil {
				b.Fatal(err)
			}
		}
	}
	files := withTorch("cuda = '13.0'\n")
	files["usr/bin/python3.12"], files["usr/bin/python3"] = elf, "-> python3.12"
	for name, text := range files {
		path := filepath.Join(dir, name)
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			_ = os.Symlink(to, path)
		} else if err := newprog.Write(path, []byte(text)); err != nil {
			b.Fatal(err)
		}
	}
	s, err := loadStack()
	if err != nil {
		b.Fatal(err)
	}
	v := view{root: root(dir), getenv: env(), job: pythonJob(venvPython), stack: s}
	for b.Loop() {
		if p := readPython(b.Context(), v); p.torch.state != torchFound {
			b.Fatalf("%+v", p.torch)
		}
	}
}
