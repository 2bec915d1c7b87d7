package preflight

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/deadmount"
	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/newprog"
	"sparkrun/internal/sample"
)

// A look that was late counts against the machine, but not where whatever it had seen
// would not.
func TestLateLooks(t *testing.T) {
	t.Parallel()
	alone, two := pythonJob(""), pythonJob("")
	two.Nodes = 2
	for _, c := range []struct {
		name    string
		f       facts
		counts  string
		nothing string
	}{
		{"a Spark, one machine", facts{platform: DGXSpark, job: alone}, "G2 G3 G6 G7", "G5 G8 G10"},
		{"a Spark, no command", facts{platform: DGXSpark}, "G2 G3 G6 G7", "G5 G8 G10"},
		{"two Sparks", facts{platform: DGXSpark, job: two}, "G2 G3 G6 G7 G10", "G5 G8"},
		{"another GPU, two machines", facts{platform: GenericNVIDIA, job: two}, "G2 G3 G6", "G5 G7 G8 G10"},
		{"no GPU", facts{platform: Generic, job: alone}, "G3 G6", "G2 G5 G7 G8 G10"},
	} {
		c.f.limit, c.f.in.LookLimit = time.Second, 250*time.Millisecond
		for _, check := range checks {
			if check.look == nil {
				continue
			}
			f := judgeOne(check, map[string]any{}, c.f)
			counted := strings.Contains(c.counts+" ", check.id+" ")
			if !counted && !strings.Contains(c.nothing+" ", check.id+" ") {
				t.Errorf("%s: no word on %s", c.name, check.id)
			}
			if f.Status != Skip || f.ByDesign == counted || !strings.HasPrefix(f.Detail, "no answer within 0.25 s") {
				t.Errorf("%s, %s: %s by design %t: %s", c.name, check.id, f.Status, f.ByDesign, f.Detail)
			}
			if want := map[bool]string{true: ReadyWithWarnings, false: Ready}[counted]; verdict([]Finding{f}, nil) != want {
				t.Errorf("%s, %s: verdict is not %s", c.name, check.id, want)
			}
		}
	}
}

// On a busy machine a look gets the whole limit, and a late one says why.
func TestBusyMachine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		loadavg string
		busy    bool
	}{
		{"0.20 0.10 0.05 2/900 4711\n", false},
		{"4.00 3.00 2.00 4/900 4711\n", false},
		{"4.01 3.00 2.00 1/900 4711\n", true},
		{"0.20 0.10 0.05 5/900 4711\n", true},
		{"", false},
		{"many 0 0 x/y 1\n", false},
	} {
		dir := t.TempDir()
		if c.loadavg != "" {
			if err := os.MkdirAll(filepath.Join(dir, "proc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "proc/loadavg"), []byte(c.loadavg), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := busyNow(rootOf(dir), 4); got != c.busy {
			t.Errorf("%q on 4 processors: busy %t", c.loadavg, got)
		}
	}
	f := facts{limit: DefaultLimit, busy: true, in: Input{LookLimit: 250 * time.Millisecond}}
	if got := f.noAnswer(); f.lookLimit() != DefaultLimit || got.Detail != "no answer within 0.9 s, on a machine that has more to do than processors" {
		t.Errorf("%v: %s", f.lookLimit(), got.Detail)
	}
}

// A library whose call does not come back is a driver, also where neither the PCI bus nor
// /proc can be seen; nothing at all that answers is none.
func TestPlatformOfADriverThatHangs(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context) (sample.Device, sample.GPU, error) {
		<-ctx.Done()
		return sample.Device{Source: "none"}, sample.GPU{}, ctx.Err()
	}
	const library = "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"
	for _, c := range []struct {
		name     string
		files    map[string]string
		env      []string
		platform string
	}{
		{"nothing", nil, nil, Generic},
		{"a library", map[string]string{library: ""}, nil, GenericNVIDIA},
		{"a library named in the environment", map[string]string{"opt/x/libnvidia-ml.so.1": ""}, []string{"SPARKRUN_NVML_LIBRARY", "/opt/x/libnvidia-ml.so.1"}, GenericNVIDIA},
		{"one that is not there", map[string]string{library: ""}, []string{"SPARKRUN_NVML_LIBRARY", "/nowhere.so"}, Generic},
		{"the maker's name", map[string]string{library: "", "sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n"}, nil, DGXSpark},
	} {
		r := Run(t.Context(), Input{Root: copyTree(t, "laptop", c.files), Getenv: env(c.env...), Device: hangs, Limit: 300 * time.Millisecond})
		if r.Platform != c.platform || (r.Verdict == Ready) != (c.platform == Generic) {
			t.Errorf("%s: %s, %s\n%s", c.name, r.Platform, r.Verdict, r.Lines())
		}
		if h := find(t, r, "H1"); (h.Status == Warn) != (c.platform != Generic) {
			t.Errorf("%s: H1 %s: %s", c.name, h.Status, h.Detail)
		}
	}
}

// The interpreter is asked beside a driver that takes its time, not after it.
func TestInterpreterIsAskedBesideTheDriver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	interp := filepath.Join(dir, "python3")
	if err := newprog.Write(interp, []byte("#!/bin/sh\nexec sleep 300\n")); err != nil {
		t.Fatal(err)
	}
	hangs := func(ctx context.Context) (sample.Device, sample.GPU, error) {
		<-ctx.Done()
		return sample.Device{}, sample.GPU{}, ctx.Err()
	}
	start := time.Now()
	const limit = 2 * time.Second
	r := Run(t.Context(), Input{Getenv: env(), Device: hangs, Limit: limit, Job: &job.Job{Dir: dir, Interpreter: interp}})
	if took := time.Since(start); took > limit*7/4 {
		t.Errorf("took %v: one limit after the other\n%s", took, r.Lines())
	}
}

// A model on a mount whose server is gone costs one look and nothing else.
func TestModelOnADeadMount(t *testing.T) {
	t.Parallel()
	dead := deadmount.New(t)
	inside := pythonJob("/usr/bin/python3")
	inside.Knobs = job.Knobs{job.Model: {Value: filepath.Join(dead, "model")}}
	mounted := imageJob("python", "t.py")
	mounted.Knobs = job.Knobs{job.Model: {Value: "/models/x"}}
	for name, in := range map[string]Input{
		"in the command": {Job: inside},
		"behind a mount of a container": {Job: mounted, ModelPath: func() string {
			if _, err := os.Stat(filepath.Join(dead, "x")); err != nil {
				return ""
			}
			return dead
		}},
	} {
		in.Getenv, in.Device, in.Limit, in.LookLimit = env("PATH", "/usr/bin:/bin"), noLibrary, 3*time.Second, 200*time.Millisecond
		done := make(chan Report, 1)
		go func() { done <- Run(t.Context(), in) }()
		select {
		case r := <-done:
			if r.Took > 5*time.Second {
				t.Errorf("%s: took %v", name, r.Took)
			}
			if f := find(t, r, "G3"); f.Status == Fail {
				t.Errorf("%s: %s", name, f.Line)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: preflight hangs", name)
		}
	}
}

// Whoever needs the model's size is told it, and the files are read once.
func TestModelReadIsTold(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "spark", map[string]string{"models/m/config.json": `{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":128,"vocab_size":1000}`})
	for _, image := range []bool{false, true} {
		j := pythonJob(venvPython)
		j.Knobs, j.Image = job.Knobs{job.Model: {Value: "/models/m"}}, image
		var told []modelsize.Size
		Run(t.Context(), Input{Root: dir, Getenv: env(), Device: gb10, Job: j, ModelRead: func(s modelsize.Size) { told = append(told, s) }})
		if len(told) != 1 || told[0].Params <= 0 {
			t.Errorf("images %t: told %+v", image, told)
		}
	}
}

// A file system that does not tell its size is not full.
func TestNoSizeIsNotFull(t *testing.T) {
	t.Parallel()
	silent := Disk{Type: "fuse.remote"}
	out := place{path: "/o", at: "/o", disk: silent}
	f := judgeDisk(diskSeen{output: out}, facts{job: pythonJob(""), plan: planOf(20e9, true)})
	expect(t, "checkpoints", f, Skip, "cannot be told", "fuse.remote", "!free of")
	room := place{path: "/o", at: "/o", disk: Disk{FreeBytes: 9e11, TotalBytes: 1e12}}
	f = judgeDisk(diskSeen{output: room, model: "org/away", cache: out}, facts{job: pythonJob("")})
	expect(t, "a download", f, Pass, "the room for the model's download in /o could not be told")
	f = judgeDisk(diskSeen{output: out, model: "org/away", cache: place{path: "/c", at: "/c", disk: Disk{FreeBytes: 1, TotalBytes: 1e12}}}, facts{job: pythonJob("")})
	expect(t, "a download to a full disk", f, Warn, "org/away must be downloaded")
	workers := shmSeen{disk: Disk{Type: "tmpfs"}, loaders: loaders{n: 4, told: true}}
	expect(t, "shared memory without a limit", judgeShm(workers, facts{job: pythonJob("")}), Info, "no limit")
}

// What the user ended before it had answered is told in words of its own: it concerns this
// machine, and says nothing against it.
func TestInterruptedIsTold(t *testing.T) {
	t.Parallel()
	f := facts{platform: DGXSpark, limit: time.Second, in: Input{Torch: &TorchAnswer{Refused: Interrupted}, Bandwidth: &Bandwidth{Refused: Interrupted}}}
	for name, found := range map[string]Finding{
		"H19": judgeTorch(f), "G5": judgeBandwidth(bandwidthSeen{}, f),
		"G9": withProbe(byDesign("inside image x"), Interrupted),
	} {
		if found.Status != Info || found.ByDesign || !strings.Contains(found.Detail, "interrupted before") {
			t.Errorf("%s: %+v", name, found)
		}
	}
	if found := withProbe(Finding{Status: Warn, Detail: "old"}, "no such image"); found.Status != Warn || found.Detail != "old" || len(found.Evidence) != 1 {
		t.Errorf("a warning gives way to a probe that failed: %+v", found)
	}
}
