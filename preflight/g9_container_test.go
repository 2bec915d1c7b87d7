package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// packages are the metadata folders of a virtual environment, for copyTree.
func packages(versions ...string) map[string]string {
	files := map[string]string{
		"usr/bin/python3.12":       elf,
		"usr/bin/python3":          "-> python3.12",
		"home/ada/venv/bin/python": "-> /usr/bin/python3",
		"home/ada/venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\n",
		venvTorch + "/__init__.py": "",
		venvTorch + "/version.py":  "__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\n",
	}
	for _, v := range versions {
		files[venvSite+v+".dist-info/METADATA"] = "Metadata-Version: 2.1\n"
	}
	return files
}

const ngcSite = "usr/local/lib/python3.12/dist-packages/"

const venvSite = "home/ada/venv/lib/python3.12/site-packages/"

func TestG9KnownBadVersions(t *testing.T) {
	t.Parallel()
	const together = "peft 0.19.1 and torchao 0.13.0+git do not work together"
	bare := []string{
		venvPython + ` -m pip install -U "torchao==0.17.0"`,
		"or all versions that were seen to work together on 2026-07-14:",
		venvPython + ` -m pip install --no-deps "unsloth==2026.7.2" "unsloth_zoo==2026.7.2" "bitsandbytes==0.49.2"`,
	}
	for _, c := range []struct {
		name     string
		tree     string
		versions []string
		job      *job.Job
		status   Status
		detail   string
		fix      []string
	}{
		{"old torchao beside a new peft", "spark", []string{"peft-0.19.1", "torchao-0.13.0+git"}, pythonJob(venvPython), Warn, together, bare},
		{"a pre-release is older", "spark", []string{"peft-0.20.0", "torchao-0.16.0a0+git12"}, pythonJob(venvPython), Warn, "peft 0.20.0", bare},
		{"an older peft does not ask", "spark", []string{"peft-0.18.1", "torchao-0.13.0+git"}, pythonJob(venvPython), Info, "unknown: ", nil},
		{"no peft", "spark", []string{"torchao-0.13.0+git"}, pythonJob(venvPython), Info, "unknown: ", nil},
		{"the pins", "spark", []string{"peft-0.19.1", "torchao-0.17.0"}, pythonJob(venvPython), Info, "unknown: no container marker matched, which does not prove a bare host", nil},
		{"on any machine", "laptop", []string{"peft-0.19.1", "torchao-0.13.0+git"}, pythonJob(venvPython), Warn, together, bare},
		{"on other machines only for a command", "laptop", []string{"peft-0.19.1", "torchao-0.13.0+git"}, nil, Info, "unknown: ", nil},
	} {
		device := gb10
		if c.tree == "laptop" {
			device = noLibrary
		}
		r := Run(t.Context(), Input{
			Root: copyTree(t, c.tree, packages(c.versions...)), Getenv: env("PATH", "/home/ada/venv/bin:/usr/bin"), Device: device, Job: c.job,
		})
		f := find(t, r, "G9")
		if f.Status != c.status || !strings.HasPrefix(f.Detail, c.detail) && !strings.Contains(f.Detail, " "+c.detail) {
			t.Errorf("%s: %s, %q", c.name, f.Status, f.Detail)
		}
		for _, line := range c.fix {
			if !strings.Contains(f.Fix+"\n", line+"\n") {
				t.Errorf("%s: the fix lacks %q:\n%s", c.name, line, f.Fix)
			}
		}
		if f.Status != Warn && f.Fix != "" {
			t.Errorf("%s: a fix of nothing: %s", c.name, f.Fix)
		}
	}
}

func TestG9OtherVersionsAreInformation(t *testing.T) {
	t.Parallel()
	in := Input{
		Root:   copyTree(t, "spark", packages("transformers-4.57.0", "trl-1.8.0", "bitsandbytes-0.49.2+cu130", "triton-3.6.0")),
		Getenv: env(), Device: gb10, Job: pythonJob(venvPython),
	}
	r := Run(t.Context(), in)
	f := find(t, r, "G9")
	if f.Status != Info || !strings.HasSuffix(f.Detail, "; 1 version differs from those seen to work on 2026-07-14") || !strings.HasPrefix(f.Line, "G9 UNKNOWN: no container marker") {
		t.Errorf("%s, %q, %q", f.Status, f.Detail, f.Line)
	}
	if all := strings.Join(f.Evidence, "\n"); all != "triton 3.6.0, transformers 4.57.0, trl 1.8.0, bitsandbytes 0.49.2+cu130\ntransformers 4.57.0; 5.13.1 was seen to work on 2026-07-14" {
		t.Errorf("evidence %q", all)
	}
	if r.Verdict != Ready {
		t.Errorf("verdict %s", r.Verdict)
	}
}

func TestG9InsideNVIDIAsImages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, detail, evidence string
	}{
		{"25.09", "running inside nvcr.io/nvidia/pytorch:25.09-py3", "25.09-py3: verified"},
		{"25.11", "running inside nvcr.io/nvidia/pytorch:25.11-py3", "25.11-py3: the former default"},
		{"25.12", "running inside nvcr.io/nvidia/pytorch:25.12-py3", "25.12-py3 was not looked at"},
		{"", "running inside a container", ""},
	} {
		// Its own torchao is too old for a peft that is not there.
		tree := copyTree(t, "spark-ngc", map[string]string{ngcSite + "torchao-0.13.0+git.dist-info/METADATA": "x"})
		for _, name := range []string{"peft-0.19.1.dist-info", "torchao-0.17.0.dist-info"} {
			if err := os.RemoveAll(filepath.Join(tree, ngcSite, name)); err != nil {
				t.Fatal(err)
			}
		}
		r := Run(t.Context(), Input{Root: tree, Getenv: env("NVIDIA_PYTORCH_VERSION", c.version), Device: gb10, Job: pythonJob("/usr/bin/python3")})
		f := find(t, r, "G9")
		if f.Value() != "pass" || f.Detail != c.detail || !strings.Contains(strings.Join(f.Evidence, "\n"), c.evidence) {
			t.Errorf("%s: %s %q %q", c.version, f.Value(), f.Detail, f.Evidence)
		}
		if f.Line != "G9 PASS: running inside a container (Docker/Podman marker file present)" || r.Verdict != Ready {
			t.Errorf("%s: %q, %s", c.version, f.Line, r.Verdict)
		}
	}
}

func TestG9OfImages(t *testing.T) {
	t.Parallel()
	const digest = "unsloth/unsloth@sha256:0123456789abcdef"
	s := loadedStack(t)
	for _, c := range []struct {
		name        string
		ref         string
		image       imageFacts
		packages    map[string]string
		value       string
		fix, proves string
	}{
		{name: "verified", ref: "nvcr.io/nvidia/pytorch:25.09-py3", value: "info: running inside nvcr.io/nvidia/pytorch:25.09-py3", proves: "verified"},
		{name: "by digest", ref: digest, value: "info: running inside " + digest},
		{
			name: "moving", ref: "docker.io/unsloth/unsloth:dgxspark-latest",
			value: "info: running inside docker.io/unsloth/unsloth:dgxspark-latest, a tag that moves: name it by its digest",
			fix:   "docker inspect --format='{{index .RepoDigests 0}}' docker.io/unsloth/unsloth:dgxspark-latest",
		},
		{
			name: "moving, the digest known", ref: "unsloth/unsloth:dgxspark-latest",
			image: imageFacts{ref: "unsloth/unsloth:dgxspark-latest", known: true, facts: ImageFacts{Digests: []string{"other/x@sha256:1", digest}}},
			value: "info: running inside unsloth/unsloth:dgxspark-latest, a tag that moves: name it by its digest",
			fix:   "pin it: name the image " + digest, proves: "digest " + digest,
		},
		{
			name: "known bad inside", ref: "me/train:1", packages: map[string]string{"peft": "0.19.1", "torchao": "0.13.0+git"},
			value: "warn: peft 0.19.1 and torchao 0.13.0+git do not work together",
			fix:   "pip install -U \"torchao==0.17.0\"\ninside the image, before the training starts", proves: "ImportError",
		},
		{name: "a registry with a port", ref: "host:5000/pytorch", value: "info: running inside host:5000/pytorch"},
	} {
		f := facts{
			stack: s, platform: DGXSpark, image: c.image, getenv: env(), python: pythonFacts{interp: venvPython, packages: c.packages},
			job: &job.Job{Container: &job.Container{Engine: "docker", Verb: "run", Image: c.ref}},
		}
		got := finish(judgeContainer(f), "G9", "")
		if got.Value() != c.value || !strings.Contains(got.Fix, c.fix) || c.fix == "" && got.Fix != "" {
			t.Errorf("%s: %q\n%s", c.name, got.Value(), got.Fix)
		}
		if all := strings.Join(got.Evidence, "\n"); !strings.Contains(all, c.proves) {
			t.Errorf("%s: evidence %q", c.name, all)
		}
	}
}
