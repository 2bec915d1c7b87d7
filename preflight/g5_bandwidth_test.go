package preflight

import (
	"context"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/meminfo"
	"sparkrun/internal/sample"
)

func TestBandwidthTable(t *testing.T) {
	t.Parallel()
	b, err := loadBandwidthTable()
	if err != nil {
		t.Fatal(err)
	}
	// These figures stand in the runbook.
	if b.SpecGBps != 273 || b.MeasuredGBps != [2]float64{180, 192} || b.Elements != 1e9 || b.Copies != 20 {
		t.Errorf("table %+v", b)
	}
	if peakCopies*4*b.Elements != 12e9 {
		t.Error("the peak is not the 12 GB that are asked for")
	}
}

func TestG5(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		tree     string
		device   ask
		measured *Bandwidth
		status   Status
		byDesign bool
		detail   string
	}{
		{"not asked for", "spark", gb10, nil, Skip, true, "intrusive: only with --bandwidth (by design)"},
		{"refused", "spark", gb10, &Bandwidth{Refused: "the machine is busy: x"}, Skip, true, "not measured: the machine is busy: x (by design)"},
		{"no figure", "spark", gb10, &Bandwidth{}, Skip, false, "tried and failed: it gave no figure"},
		{"died", "spark", gb10, &Bandwidth{Failed: "/x/python was ended by SIGSEGV"}, Skip, false, "tried and failed: /x/python was ended by SIGSEGV"},
		{"as others", "spark", gb10, &Bandwidth{GBps: 187.26, Copies: 20, Bytes: 4e9}, Pass, false, "187.3 GB/s: reckon with 180 to 192, not with the 273 GB/s of the data sheet"},
		{"more than others", "spark", gb10, &Bandwidth{GBps: 210}, Pass, false, "210.0 GB/s"},
		{"a tenth below", "spark", gb10, &Bandwidth{GBps: 163}, Pass, false, "163.0 GB/s"},
		{"less", "spark", gb10, &Bandwidth{GBps: 120}, Warn, false, "120.0 GB/s, which is less than the 180 to 192 GB/s of others"},
		{"another GPU", "laptop", rtx(12040), &Bandwidth{GBps: 900}, Info, false, "900.0 GB/s"},
	} {
		f := find(t, Run(t.Context(), Input{Root: "testdata/" + c.tree, Device: c.device, Bandwidth: c.measured}), "G5")
		if f.Status != c.status || f.ByDesign != c.byDesign || !strings.Contains(f.Detail, c.detail) {
			t.Errorf("%s: %+v", c.name, f)
		}
		if (f.Status == Warn || f.Status == Skip && !f.ByDesign) && f.Fix == "" {
			t.Errorf("%s: no fix", c.name)
		}
	}
}

func TestRestsOn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"memory_bandwidth_gbps: 273":       true,
		"--mem-bandwidth 273":              true,
		"--bandwidth=273.0 --x":            true,
		"peak_bw = 273e9":                  true,
		"hbm_bandwidth: 273_000_000_000":   true,
		"limit: 273 GB/s":                  true,
		"Bandwidth (GB/s) theory: 273":     true,
		"--seed 273":                       false,
		"bandwidth: 2730":                  false,
		"bandwidth: 1273":                  false,
		"bandwidth: 273.5":                 false,
		"bandwidth: 190 # not seed 273":    false,
		"bandwidth_test: true, seeds: 273": false,
		"":                                 false,
	} {
		if got := restsOn(uncommented(text)) != ""; got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

func TestG5TellsAPlanThatRestsOnTheDataSheet(t *testing.T) {
	t.Parallel()
	config := "lr: 1e-4\n# 273 GB/s is the data sheet\nroofline:\n  bandwidth_gbps: 273\n"
	for _, c := range []struct {
		name   string
		argv   []string
		config string
		tree   string
		device ask
		status Status
		where  string
	}{
		{"in the config", []string{"python", "train.py", "plan.yaml"}, config, "spark", gb10, Warn, "/home/ada/plan.yaml:4: bandwidth_gbps: 273"},
		{"in the command", []string{"python", "train.py", "--bandwidth", "273"}, "", "spark", gb10, Warn, "the command line: bandwidth 273"},
		{"in a config that no profile knows", []string{"python", "train.py", "--config", "other.yaml"}, config, "spark", gb10, Warn, "/home/ada/other.yaml:4: bandwidth_gbps: 273"},
		{"in a config that a config names", []string{"python", "train.py", "outer.yaml"}, config, "spark", gb10, Warn, "/home/ada/inner.yaml:4: bandwidth_gbps: 273"},
		{"in a shell script", []string{"bash", "run.sh"}, config, "spark", gb10, Warn, "/home/ada/run.sh:2: bandwidth 273"},
		{"in a file of a container's that this machine has too", []string{"docker", "run", "img", "python", "t.py", "--config", "other.yaml"}, config, "spark", gb10, Skip, ""},
		{"nowhere", []string{"python", "train.py", "--seed", "273"}, "bandwidth: 185\n", "spark", gb10, Skip, ""},
		{"not a Spark", []string{"python", "train.py", "--bandwidth", "273"}, "", "laptop", noLibrary, Skip, ""},
	} {
		files := map[string]string{}
		j := &job.Job{Argv: c.argv, Dir: "/home/ada", Interpreter: "/usr/bin/python3", Script: "train.py"}
		if c.argv[0] == "docker" {
			j.Container, j.Interpreter = &job.Container{Engine: "docker", Verb: "run", Image: "img"}, ""
		}
		if c.config != "" && c.argv[len(c.argv)-1] != "plan.yaml" {
			files["home/ada/other.yaml"], files["home/ada/inner.yaml"] = c.config, c.config
			files["home/ada/outer.yaml"], files["home/ada/run.sh"] = "lr: 1\nconfig: inner.yaml\n", "#!/bin/sh\npython train.py --bandwidth 273\n"
		} else if c.config != "" {
			files["home/ada/plan.yaml"] = c.config
			j.ConfigFile, j.Read = "plan.yaml", map[string]string{"/home/ada/plan.yaml": "x", "/home/ada/gone.yaml": "y"}
		}
		f := find(t, Run(t.Context(), Input{Root: copyTree(t, c.tree, files), Getenv: env(), Device: c.device, Job: j}), "G5")
		proof := strings.Join(f.Evidence, "\n")
		if f.Status != c.status || !strings.Contains(proof, c.where) || c.status == Warn && !strings.Contains(f.Fix, c.where) {
			t.Errorf("%s: %+v", c.name, f)
		}
		if len(f.Evidence) > 1 {
			t.Errorf("%s: named twice:\n%s", c.name, proof)
		}
	}
	// A slow machine stays the finding; the plan is added to it.
	in := Input{Root: "testdata/spark", Device: gb10, Bandwidth: &Bandwidth{GBps: 90}, Job: &job.Job{Argv: []string{"x", "--bandwidth=273"}, Dir: "/"}}
	if f := find(t, Run(t.Context(), in), "G5"); !strings.HasPrefix(f.Detail, "90.0 GB/s") || !strings.Contains(f.Fix, "put 180 in its place") {
		t.Errorf("both: %+v", f)
	}
}

func TestPlanBandwidth(t *testing.T) {
	t.Parallel()
	table, err := loadBandwidthTable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := loadStack()
	if err != nil {
		t.Fatal(err)
	}
	idle := func() facts {
		return facts{
			platform: DGXSpark, stack: s, limit: time.Second, getenv: env("PWD", "/home/ada"),
			gpu: gpuAnswer{
				asked: true, dev: sample.Device{Source: "nvml", Name: "NVIDIA GB10", Count: 1},
				gpu: sample.GPU{UtilPct: sample.Known(0), Processes: []sample.GPUProcess{}},
			},
			torch:  torchBuild{state: torchFound, interp: "/v/bin/python", version: "2.9.0", cuda: "13.0"},
			memory: memory{info: meminfo.Info{"MemTotal": 125829120, "MemFree": 100000000, "MemAvailable": 110000000}},
		}
	}
	quiet := contention{processTable{byPID: map[int]*process{}}}
	trainer := contention{processTable{byPID: map[int]*process{7: {pid: 7, ppid: 1, label: "train.py", rss: 9 << 30}}}}
	for _, c := range []struct {
		name   string
		change func(*facts)
		who    contention
		want   string // "" may be measured
	}{
		{"idle", func(*facts) {}, quiet, ""},
		{"no GPU", func(f *facts) { f.platform = Generic }, quiet, "no NVIDIA GPU on this machine"},
		{"a GPU that does not answer", func(f *facts) { f.gpu.late = true }, quiet, "cannot be asked"},
		{"a CPU torch", func(f *facts) { f.torch.noCUDA = true }, quiet, "torch 2.9.0 of /v/bin/python is built without CUDA"},
		{"no torch", func(f *facts) { f.torch.state = torchAbsent }, quiet, "no torch in /v/bin/python"},
		{"no Python", func(f *facts) { f.torch = torchBuild{state: torchNoPython} }, quiet, "no Python"},
		{"in an image", func(f *facts) { f.job = &job.Job{Container: &job.Container{Image: "x"}} }, quiet, "inside an image"},
		{"GPU in use", func(f *facts) { f.gpu.gpu.UtilPct = sample.Known(6) }, quiet, "in use by 6 %"},
		{"a desktop", func(f *facts) { f.gpu.gpu.UtilPct = sample.Known(5) }, quiet, ""},
		{"another GPU process", func(f *facts) { f.gpu.gpu.Processes = []sample.GPUProcess{mib(7, 1)} }, trainer, "the machine is busy: train.py (pid 7)"},
		{"one that cannot be seen", func(f *facts) { f.gpu.gpu.Processes = []sample.GPUProcess{mib(9, 1)} }, quiet, "the machine is busy"},
		{"nothing is told of the GPU", func(f *facts) { f.gpu.gpu = sample.GPU{} }, quiet, "it may be busy"},
		{"no utilisation, but a list", func(f *facts) { f.gpu.gpu.UtilPct = sample.Num{} }, quiet, ""},
		{"processes not read", func(*facts) {}, contention{processTable{err: errLate}}, "not known who else"},
		{"memory short", func(f *facts) { f.memory.info["MemAvailable"] = 13000000 }, quiet, "12.0 GB for a moment"},
		{"memory unknown", func(f *facts) { f.memory = memory{} }, quiet, "not known how much memory"},
		{"a discrete GPU does not need it", func(f *facts) { f.platform = GenericNVIDIA; f.memory = memory{} }, quiet, ""},
		{"a relative Python", func(f *facts) { f.torch.interp = "python" }, quiet, "was not found"},
	} {
		f := idle()
		c.change(&f)
		p := planBandwidth(c.who, f, table)
		if c.want == "" && p.Refused != "" || c.want != "" && !strings.Contains(p.Refused, c.want) {
			t.Errorf("%s: %q", c.name, p.Refused)
		}
		if p.Refused == "" && (p.Interpreter != "/v/bin/python" || p.Dir != "/home/ada" || p.Copies != 20 || (p.Elements == 0) != (f.platform == GenericNVIDIA)) {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
	if p := PlanBandwidth(context.Background(), Input{Root: "testdata/spark", Device: gb10}); p.Refused == "" {
		t.Error("a recorded tree would be measured")
	}
}
