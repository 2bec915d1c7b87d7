package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// gb10 answers as a healthy, idle GB10 does.
func gb10(context.Context) (sample.Device, sample.GPU, error) {
	return sample.Device{
		Source: "nvml", Name: "NVIDIA GB10", DriverVersion: "580.95.05",
		CUDADriver: 13000, CapMajor: 12, CapMinor: 1, Count: 1,
	}, sample.GPU{TempC: sample.Known(36), PowerW: sample.Known(4)}, nil
}

func noLibrary(context.Context) (sample.Device, sample.GPU, error) {
	return sample.Device{Source: "none", ErrKind: "no-library", Err: "libnvidia-ml.so.1 is not installed"}, sample.GPU{}, nil
}

func env(kv ...string) func(string) string {
	m := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/ada"}
	for i := 0; i+1 < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return func(k string) string { return m[k] }
}

// copyTree returns a copy of a recorded tree with more files in it; a value
// that starts with "-> " is a symbolic link, one of ELF an executable.
func copyTree(t *testing.T, base string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if base != "" {
		if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", base))); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(path)
		var err error
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			mode := os.FileMode(0o644)
			if text == elf {
				mode = 0o755
			}
			err = os.WriteFile(path, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const elf = "\x7fELF"

// torchCUDA12 is a virtual environment with a torch from PyPI's older wheels.
var torchCUDA12 = map[string]string{
	"home/ada/venv/bin/python":  "-> /usr/bin/python3",
	"home/ada/venv/pyvenv.cfg":  "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\n",
	"home/ada/venv/lib64":       "-> lib",
	venvTorch + "/__init__.py":  "",
	venvTorch + "/version.py":   "__version__ = '2.6.0'\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n",
	"home/ada/venv/bin/python3": "-> python",
}

const (
	venvPython = "/home/ada/venv/bin/python"
	venvTorch  = "home/ada/venv/lib/python3.12/site-packages/torch"
)

func pythonJob(interp string) *job.Job {
	return &job.Job{Argv: []string{"python", "train.py"}, Dir: "/home/ada", Interpreter: interp, Script: "train.py"}
}

func TestGoldenReports(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		in      Input
		tree    string
		files   map[string]string
		verdict string
	}{
		{"spark-host", Input{Device: gb10, Machine: "aarch64"}, "spark", nil, Ready},
		{"spark-ngc", Input{Device: gb10, Machine: "aarch64", Job: pythonJob("/usr/bin/python3")}, "spark-ngc", nil, Ready},
		{"spark-docker-run", Input{
			Device: gb10, Machine: "aarch64",
			Job: &job.Job{Argv: []string{"docker", "run"}, Container: &job.Container{Engine: "docker", Verb: "run", Image: "nvcr.io/nvidia/pytorch:25.11-py3"}},
		}, "spark", nil, Ready},
		{"spark-cuda12", Input{Device: gb10, Machine: "aarch64", Job: pythonJob(venvPython)}, "spark", torchCUDA12, Blocked},
		{"laptop", Input{Device: noLibrary, Machine: "x86_64", Job: pythonJob("/usr/bin/python3")}, "laptop", nil, Ready},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.in.Root, c.in.Getenv = copyTree(t, c.tree, c.files), env()
			r := Run(t.Context(), c.in)
			r.Took = 12 * time.Millisecond
			if r.Verdict != c.verdict {
				t.Errorf("verdict %q, want %q", r.Verdict, c.verdict)
			}
			js, err := r.JSON(time.Date(2026, 7, 14, 22, 0, 0, 0, time.FixedZone("CEST", 7200)))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, c.name+".json", string(js))
			golden(t, c.name+".lines", r.Lines())
			golden(t, c.name+".table", r.Table(false))
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata/golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, diff)
	}
}

// Scripts that read the original's output know this grammar; ours has all ten
// numbers, and one line for each even where the source printed two or none.
func TestLinesAreOnePerGotchaInOrder(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^(G\d+) (PASS|FAIL|WARN|SKIP|INFO|UNKNOWN): .+$`)
	for name, in := range map[string]Input{
		"answers":     {Root: "testdata/spark", Device: gb10},
		"nothing":     {Root: t.TempDir()},
		"weird image": {Root: "testdata/spark", Job: &job.Job{Container: &job.Container{Verb: "run", Image: "a\nG1 PASS: forged\x1b[2J"}}},
	} {
		var got []string
		for _, line := range strings.Split(strings.TrimSuffix(Run(t.Context(), in).Lines(), "\n"), "\n") {
			m := form.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("%s: line %q has not the runbook's form", name, line)
				continue
			}
			got = append(got, m[1])
		}
		if s := strings.Join(got, " "); s != "G1 G2 G3 G4 G5 G6 G7 G8 G9 G10" {
			t.Errorf("%s: lines are %s", name, s)
		}
	}
}

func TestJSONKeepsTheOrderAndSaysNullForUnknown(t *testing.T) {
	t.Parallel()
	js, err := Run(t.Context(), Input{Root: t.TempDir()}).JSON(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Checks     json.RawMessage
		HeadroomGB *int `json:"headroom_gb"`
		Verdict    string
		Sparkrun   struct{ Schema string }
	}
	if err := json.Unmarshal(js, &r); err != nil {
		t.Fatal(err)
	}
	if r.HeadroomGB != nil || !strings.Contains(string(js), `"headroom_gb": null`) {
		t.Errorf("headroom of a machine without /proc/meminfo: %s", js)
	}
	if r.Verdict != ReadyWithWarnings {
		t.Errorf("verdict %q: a memory that cannot be read must leave warnings", r.Verdict)
	}
	if i, j := strings.Index(string(r.Checks), `"G9"`), strings.Index(string(r.Checks), `"G10"`); i < 0 || j < i {
		t.Errorf("checks out of order: %s", r.Checks)
	}
	if r.Sparkrun.Schema != Schema {
		t.Errorf("schema %q", r.Sparkrun.Schema)
	}
}

func TestVerdictRule(t *testing.T) {
	t.Parallel()
	skip, by := Finding{Status: Skip}, Finding{Status: Skip, ByDesign: true}
	pass, info, warn, fail := Finding{Status: Pass}, Finding{Status: Info}, Finding{Status: Warn}, Finding{Status: Fail}
	for _, c := range []struct {
		want     string
		findings []Finding
		host     []Finding
	}{
		{Ready, []Finding{pass, info, by}, nil},
		{ReadyWithWarnings, []Finding{pass, skip}, nil},
		{ReadyWithWarnings, []Finding{warn, pass}, nil},
		{Blocked, []Finding{warn, fail, pass}, nil},
		{Blocked, []Finding{pass}, []Finding{fail}},
		{Ready, []Finding{pass}, []Finding{warn, skip}},
	} {
		if got := verdict(c.findings, c.host); got != c.want {
			t.Errorf("verdict(%v, %v) = %q, want %q", c.findings, c.host, got, c.want)
		}
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]int{Ready: 0, ReadyWithWarnings: 1, Blocked: 2} {
		if got := (Report{Verdict: v}).ExitStatus(); got != want {
			t.Errorf("%s: %d, want %d", v, got, want)
		}
	}
}

func TestTableSaysTheFixOfWhatBlocksFirst(t *testing.T) {
	t.Parallel()
	in := Input{Root: copyTree(t, "spark", torchCUDA12), Getenv: env(), Device: gb10, Job: pythonJob(venvPython)}
	r := Run(t.Context(), in)
	lines := strings.Split(r.Table(true), "\n")
	if !strings.Contains(lines[0], "\x1b[1;31mblocked\x1b[0m by G1") || !strings.Contains(lines[1], "fix: "+venvPython+" -m pip install") {
		t.Errorf("the table begins:\n%s\n%s", lines[0], lines[1])
	}
	if strings.Contains(r.Table(false), "\x1b") {
		t.Error("colours although none were asked for")
	}
}

func TestWriteReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "env-report.json")
	for _, text := range []string{"{\"a\":1}\n", "{}\n"} {
		if err := WriteReport(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 {
		t.Errorf("the folder holds %v, %v: a temporary file was left", names, err)
	}
	err = WriteReport(filepath.Join(dir, "missing", "env-report.json"), nil)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "preflight report") {
		t.Errorf("error for a missing folder: %v", err)
	}
}
