package preflight

import (
	"strings"
	"testing"

	"sparkrun/internal/sample"
)

// From inside a container the driver names no process of others: that none is seen does
// not mean that there is none.
func TestRetainedMemorySeenFromInside(t *testing.T) {
	t.Parallel()
	files := map[string]string{"proc/meminfo": retainedPool}
	for name, c := range map[string]struct {
		processes []sample.GPUProcess
		want      string
	}{
		"none is named": {[]sample.GPUProcess{}, "no process that can be seen from in here has it"},
		"a small one":   {[]sample.GPUProcess{{PID: 1, UsedMiB: sample.Known(900)}}, "the processes on the GPU that can be seen from in here do not account for it"},
	} {
		f := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark-ngc", files), Getenv: env(), Device: gb10With(c.processes)}), "G3")
		if f.Status != Warn || !strings.Contains(f.Detail, c.want) || !strings.Contains(f.Fix, "look on the host too") {
			t.Errorf("%s: %s: %s", name, f.Status, f.Detail)
		}
	}
}

// What a person is told to type works with the Python that the command has.
func TestTheFixFitsThePython(t *testing.T) {
	t.Parallel()
	with := func(more map[string]string) map[string]string { return filesOf(torchCUDA12, more) }
	const site = "home/ada/venv/lib/python3.12/site-packages/"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"an environment with pip":    {with(map[string]string{site + "pip/__init__.py": ""}), venvPython + " -m pip install --force-reinstall torch"},
		"nothing tells":              {with(nil), venvPython + " -m pip install --force-reinstall torch"},
		"one that uv made":           {with(map[string]string{"home/ada/venv/pyvenv.cfg": "home = /usr/bin\nimplementation = CPython\nuv = 0.8.3\nversion_info = 3.12.3\n"}), "uv pip install --python " + venvPython + " --force-reinstall torch"},
		"one that uv made, with pip": {with(map[string]string{"home/ada/venv/pyvenv.cfg": "home = /usr/bin\nuv = 0.8.3\nversion_info = 3.12.3\n", site + "pip/__init__.py": ""}), venvPython + " -m pip install --force-reinstall torch"},
		"one without pip":            {with(map[string]string{site + "torch-2.6.0.dist-info/METADATA": "Name: torch\nVersion: 2.6.0\n"}), venvPython + " -m ensurepip && " + venvPython + " -m pip install --force-reinstall torch"},
	} {
		f := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark", c.files), Getenv: env(), Device: gb10, Job: pythonJob(venvPython)}), "G1")
		if f.Status != Fail || !strings.HasPrefix(f.Fix, c.want) {
			t.Errorf("%s: %s: fix %q, want %q", name, f.Status, f.Fix, c.want)
		}
	}
	// Ubuntu's own Python refuses to install anything.
	system := map[string]string{"usr/lib/python3.12/EXTERNALLY-MANAGED": "[externally-managed]\n", "usr/lib/python3/dist-packages/apt_pkg.pyi": ""}
	f := find(t, Run(t.Context(), Input{Root: copyTree(t, "spark", system), Getenv: env(), Device: gb10, Job: pythonJob("/usr/bin/python3")}), "G1")
	if want := "/usr/bin/python3 -m venv venv && venv/bin/python -m pip install --force-reinstall torch"; !strings.Contains(f.Fix, want) {
		t.Errorf("the system's Python: %s, fix %q, want %q", f.Status, f.Fix, want)
	}
}
