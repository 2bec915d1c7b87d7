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
	"unicode/utf8"

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

// The recorded trees, each with what nvidia-smi, statfs and programs said there, give
// exactly these reports. A stock Spark is ready, on the host and in a current container.
func TestGoldenReports(t *testing.T) {
	t.Parallel()
	schema := published(t)
	script := func(interp string) *job.Job {
		j := pythonJob(interp)
		j.TrainerDir = j.Dir
		return j
	}
	tight := &job.Job{
		Argv: []string{"llamafactory-cli", "train", "sft.yaml"}, Dir: "/home/ada", TrainerDir: "/home/ada", ConfigFile: "sft.yaml", Profile: "llama-factory",
		Knobs: job.Knobs{
			job.Model:        {Value: "Qwen/Qwen3-8B", Source: job.FromConfig, Where: "sft.yaml:1"},
			job.Method:       {Value: "full", Source: job.FromConfig, Where: "sft.yaml:3"},
			job.SeqLen:       {Value: "8192", Source: job.FromConfig, Where: "sft.yaml:4"},
			job.MicroBatch:   {Value: "4", Source: job.FromConfig, Where: "sft.yaml:5"},
			job.Accumulation: {Value: "8", Source: job.FromConfig, Where: "sft.yaml:6"},
			job.Optimizer:    {Value: "adamw_torch", Source: job.FromConfig, Where: "sft.yaml:7"},
			job.GradCkpt:     {Value: "true", Source: job.FromDefault},
		},
	}
	inside := script("/usr/bin/python3")
	inside.Dir, inside.TrainerDir = "/workspace", "/workspace"
	for _, c := range []struct {
		name, tree string
		job        *job.Job
		files      map[string]string
		verdict    string
	}{
		{"spark", "spark", nil, nil, Ready},
		{"spark-loaded", "spark-loaded", nil, nil, ReadyWithWarnings},
		{"spark-wedged", "spark-wedged", nil, nil, ReadyWithWarnings},
		{"spark-retained", "spark-retained", nil, nil, ReadyWithWarnings},
		{"spark-ngc", "spark-ngc", inside, nil, Ready},
		{"spark-podman", "spark-podman", inside, nil, Ready},
		{"spark-docker-run", "spark", &job.Job{
			Argv: []string{"docker", "run", "--rm", "--gpus", "all", "--ipc=host", "-v", "/home/ada:/workspace", "nvcr.io/nvidia/pytorch:25.11-py3", "python", "train.py"},
			Dir:  "/home/ada", Container: &job.Container{Engine: "docker", Verb: "run", Image: "nvcr.io/nvidia/pytorch:25.11-py3"},
		}, nil, Ready},
		{"spark-cuda12", "spark", script(venvPython), torchCUDA12, Blocked},
		{"spark-plan", "spark", tight, nil, ReadyWithWarnings},
		{"workstation", "workstation", script("/usr/bin/python3"), nil, Ready},
		{"laptop", "laptop", script("/usr/bin/python3"), nil, Ready},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := Run(t.Context(), recordedInput(t, copyTree(t, c.tree, c.files), c.job))
			r.Took = 12 * time.Millisecond
			if r.Verdict != c.verdict {
				t.Errorf("verdict %q, want %q", r.Verdict, c.verdict)
			}
			js, err := r.JSON(time.Date(2026, 7, 14, 22, 0, 0, 0, time.FixedZone("CEST", 7200)))
			if err != nil {
				t.Fatal(err)
			}
			followsSchema(t, schema, js)
			golden(t, c.name+".json", string(js))
			golden(t, c.name+".lines", r.Lines())
			golden(t, c.name+".table", r.Table(Look{Width: 110}))
		})
	}
}

// recordedInput is what `sparkrun preflight --root` gives to Run.
func recordedInput(t *testing.T, dir string, j *job.Job) Input {
	t.Helper()
	rec, err := ReadRecorded(dir)
	if err != nil {
		t.Fatal(err)
	}
	return Input{
		Job: j, Root: dir, Recorded: rec, Machine: rec.Machine, Now: rec.Time, Device: rec.Ask,
		Getenv: func(name string) string { return rec.Env[name] }, Limit: 20 * time.Second,
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
	lines := strings.Split(r.Table(Look{Colour: true}), "\n")
	if !strings.Contains(lines[0], "\x1b[1;31mblocked\x1b[0m by G1") || !strings.Contains(lines[1], "fix: "+venvPython+" -m pip install") {
		t.Errorf("the table begins:\n%s\n%s", lines[0], lines[1])
	}
	if strings.Contains(r.Table(Look{}), "\x1b") {
		t.Error("colours although none were asked for")
	}
	if n := strings.Count(r.Table(Look{All: true}), "\nH"); n != len(hostChecks) {
		t.Errorf("with all, %d of %d host checks are shown", n, len(hostChecks))
	}
}

// Prose is wrapped at the width, whatever it is; commands stay in one piece, so that
// they can be pasted.
func TestTableIsAsWideAsTheTerminal(t *testing.T) {
	t.Parallel()
	long := "a " + strings.Repeat("word ", 60)
	command := "sudo " + strings.Repeat("word ", 60) + "end"
	r := Report{
		Platform: DGXSpark, Verdict: ReadyWithWarnings,
		Findings: []Finding{{ID: "G6", Title: "who else uses the memory", Status: Warn, Detail: long, Fix: command}},
		Host:     []Finding{{ID: "H10", Title: "suspend", Status: Warn, Detail: long, Cost: long, Fix: command}},
	}
	for _, width := range []int{40, 60, 80, 110, 200} {
		for _, line := range strings.Split(r.Table(Look{Width: width, Colour: true}), "\n") {
			if n := columns(line); n > width && !strings.Contains(line, command) {
				t.Errorf("width %d: a line of %d columns: %q", width, n, line)
			}
		}
		if n := strings.Count(r.Table(Look{Width: width}), command+"\n"); n != 2 {
			t.Errorf("width %d: the command is in one piece %d times, want 2", width, n)
		}
	}
}

// Foreign text (titles of issues, names of processes, paths) cannot forge a line or
// move the cursor, wherever a check puts it.
func TestForeignTextIsHarmless(t *testing.T) {
	t.Parallel()
	evil := "x\x1b[2J\rG1 PASS: forged\x07"
	f := finish(Finding{Status: Warn, Detail: evil, Evidence: []string{evil}, Fix: "first\n" + evil, Cost: evil, Line: "G6 WARN: " + evil, Repairs: []Repair{{Command: "true", Effect: evil}}}, "G6", "title")
	for _, text := range append(strings.Split(f.Fix, "\n"), f.Detail, f.Evidence[0], f.Cost, f.Line, f.Repairs[0].Effect) {
		if strings.ContainsAny(text, "\x1b\r\x07\n") {
			t.Errorf("%q", text)
		}
	}
	if !strings.HasPrefix(f.Fix, "first\nx") {
		t.Errorf("the lines of a fix are kept: %q", f.Fix)
	}
	// Nor has it any length: a kernel's name may be a whole file.
	long := strings.Repeat("\u00e9", 5000)
	f = finish(Finding{Status: Info, Detail: long, Evidence: []string{long}}, "H8", "title")
	for _, text := range []string{f.Detail, f.Line, f.Evidence[0]} {
		if n := utf8.RuneCountInString(text); n > evidenceMost+3 || !strings.HasSuffix(text, "\u00e9...") {
			t.Errorf("%d characters, ending %q", n, text[len(text)-5:])
		}
	}
	if n := utf8.RuneCountInString(f.Detail); n != detailMost+3 {
		t.Errorf("a detail of %d characters", n)
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
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "preflight report: no file can be made in "+filepath.Join(dir, "missing")+": ") {
		t.Errorf("error for a missing folder: %v", err)
	}
}

// A report that its owner has made private stays so.
func TestWriteReportKeepsItsMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "env-report.json")
	for _, mode := range []os.FileMode{0o600, 0o640} {
		if err := WriteReport(path, []byte("{}\n")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := WriteReport(path, []byte("{\"a\":1}\n")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("a report of mode %o has %v now, %v", mode, info.Mode().Perm(), err)
		}
	}
}
