package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

func deadDriver(kind, text string) ask {
	return answers(sample.Device{Source: "none", ErrKind: kind, Err: text}, sample.GPU{})
}

// lab is one copy of a recorded tree for many cases: copying it is what takes time.
type lab struct {
	t         *testing.T
	base, dir string
	changed   []string
}

func newLab(t *testing.T, base string) *lab {
	t.Helper()
	return &lab{t: t, base: filepath.Join("testdata", base), dir: copyTree(t, base, nil)}
}

// with makes the tree anew, with more files and without some; a text that starts with
// "-> " is a link. It returns the tree's folder.
func (l *lab) with(files map[string]string, remove ...string) string {
	l.t.Helper()
	l.restore()
	for _, name := range remove {
		l.changed = append(l.changed, name)
		l.must(os.RemoveAll(filepath.Join(l.dir, name)))
	}
	for name, text := range files {
		l.changed = append(l.changed, l.firstNew(name))
		path := filepath.Join(l.dir, name)
		l.must(os.MkdirAll(filepath.Dir(path), 0o755))
		l.must(os.RemoveAll(path))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			l.must(os.Symlink(target, path))
		} else {
			l.must(os.WriteFile(path, []byte(text), 0o644))
		}
	}
	return l.dir
}

// firstNew is the outermost part of name that is not there yet.
func (l *lab) firstNew(name string) string {
	at := ""
	for part := range strings.SplitSeq(name, "/") {
		at = filepath.Join(at, part)
		if _, err := os.Lstat(filepath.Join(l.dir, at)); err != nil {
			return at
		}
	}
	return name
}

func (l *lab) restore() {
	l.t.Helper()
	for _, name := range l.changed {
		path := filepath.Join(l.dir, name)
		l.must(os.RemoveAll(path))
		info, err := os.Stat(filepath.Join(l.base, name))
		switch {
		case err != nil:
		case info.IsDir():
			l.must(os.CopyFS(path, os.DirFS(filepath.Join(l.base, name))))
		default:
			b, err := os.ReadFile(filepath.Join(l.base, name))
			l.must(err)
			l.must(os.MkdirAll(filepath.Dir(path), 0o755))
			l.must(os.WriteFile(path, b, 0o644))
		}
	}
	l.changed = nil
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// labs has one of each kind.
type labs map[string]*lab

func (all labs) of(t *testing.T, base string) *lab {
	t.Helper()
	if all[base] == nil {
		all[base] = newLab(t, base)
	}
	return all[base]
}

// check1 compares a finding with what it must say.
func check1(t *testing.T, name string, f Finding, status Status, detail, fix string) {
	t.Helper()
	if f.Status != status || !strings.Contains(f.Detail, detail) || !strings.Contains(f.Fix, fix) {
		t.Errorf("%s: %s: %s\nfix: %s\nwant %s with %q, fix with %q", name, f.Status, f.Detail, f.Fix, status, detail, fix)
	}
	if f.Status == Warn && f.Cost == "" {
		t.Errorf("%s: it does not say what it costs", name)
	}
}

func TestH1Triage(t *testing.T) {
	t.Parallel()
	const rel = "6.17.0-1014-nvidia"
	notLoaded := map[string]string{"proc/modules": "nvme 12345 0 - Live 0x0\n"}
	library := map[string]string{
		"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1":          "-> libnvidia-ml.so.580.142",
		"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.142":    elf,
		"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.142.01": elf,
	}
	module := map[string]string{"lib/modules/" + rel + "/updates/dkms/nvidia.ko.zst": "module"}
	merge := func(maps ...map[string]string) map[string]string {
		out := map[string]string{}
		for _, m := range maps {
			for k, v := range m {
				out[k] = v
			}
		}
		return out
	}
	trees := labs{}
	noDriver := deadDriver("no-driver", "the NVIDIA kernel driver is not loaded")
	for _, c := range []struct {
		name        string
		tree        string
		files       map[string]string
		remove      []string
		device      ask
		status      Status
		detail, fix string
	}{
		{"all is well", "spark", nil, nil, gb10, Pass, "driver 580.95.05 answers for NVIDIA GB10", ""},
		{"not loaded", "spark", merge(notLoaded, module), []string{"proc/driver"}, noDriver, Fail, "its module is not loaded", "sudo modprobe nvidia"},
		{"not loaded and Secure Boot", "spark", merge(notLoaded, module, map[string]string{secureBootVar[1:]: "\x06\x00\x00\x00\x01"}), []string{"proc/driver"}, noDriver, Fail, "Secure Boot is on", "mokutil --import"},
		{"Secure Boot is off", "spark", merge(notLoaded, module, map[string]string{secureBootVar[1:]: "\x06\x00\x00\x00\x00"}), []string{"proc/driver"}, noDriver, Fail, "its module is not loaded", "sudo modprobe nvidia\nif"},
		{"nouveau", "spark", merge(map[string]string{"proc/modules": "nouveau 1 0 - Live 0x0\n"}), []string{"proc/driver"}, noDriver, Fail, "nouveau is loaded in its place", "blacklist nouveau"},
		{"no module for this kernel", "spark", merge(notLoaded, library), []string{"proc/driver"}, noDriver, Fail, "no nvidia module for the running kernel " + rel, "linux-modules-nvidia-580-open-" + rel},
		{"the kernel's modules are gone", "spark", notLoaded, []string{"proc/driver", "lib/modules"}, noDriver, Fail, "an upgrade removed them", "sudo reboot"},
		{"library and module differ", "spark", library, nil, deadDriver("no-driver", "the NVIDIA library and the loaded kernel driver have different versions: reboot after a driver update"), Fail, "module 580.95.05, library 580.142", "sudo reboot"},
		{"fell off the bus", "spark", nil, nil, deadDriver("lost", "the GPU has fallen off the bus"), Fail, "the GPU itself is gone", "unplug"},
		{"in a container, the host was updated", "spark-ngc", nil, nil, deadDriver("other", "Driver/library version mismatch"), Fail, "different versions", "restart the container"},
		{"in a container without --gpus", "spark-ngc", nil, []string{"dev/nvidia0", "dev/nvidiactl"}, noDriver, Warn, "this container was started without the GPU", "--gpus all"},
		{"in a container without the library", "spark-ngc", nil, nil, noLibrary, Warn, "without the driver's library", "--gpus all"},
		{"in a container, the host's module is not loaded", "spark-ngc", notLoaded, []string{"proc/driver"}, noDriver, Fail, "not loaded on the host", "on the host: sudo modprobe nvidia"},
	} {
		r := Run(t.Context(), Input{Root: trees.of(t, c.tree).with(c.files, c.remove...), Device: c.device, Machine: "aarch64"})
		f := find(t, r, "H1")
		check1(t, c.name, f, c.status, c.detail, c.fix)
		if (f.Status == Fail) != (r.Verdict == Blocked) {
			t.Errorf("%s: verdict %s", c.name, r.Verdict)
		}
		if f.Status == Fail && !strings.HasPrefix(f.Fix, "sudo dmesg | grep -i nvidia\nlsmod | grep nvidia\ncat /proc/driver/nvidia/version\n") {
			t.Errorf("%s: the runbook's triage does not come first: %q", c.name, f.Fix)
		}
	}
}

func TestH1DeviceNobodyMayUse(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "spark", nil)
	if err := os.Chmod(filepath.Join(dir, "dev/nvidia0"), 0); err != nil {
		t.Fatal(err)
	}
	// The driver is in order, so nothing is blocked.
	for name, device := range map[string]ask{"answers": gb10, "refuses": deadDriver("other", "Insufficient Permissions")} {
		r := Run(t.Context(), Input{Root: dir, Device: device})
		check1(t, name, find(t, r, "H1"), Warn, "this user may not use /dev/nvidia0", "NVreg_DeviceFileMode")
		if r.Verdict == Blocked {
			t.Errorf("%s: blocked", name)
		}
	}
}

func TestH1Visibility(t *testing.T) {
	t.Parallel()
	train := func(argv ...string) *job.Job { return &job.Job{Argv: argv, TrainerAt: len(argv)} }
	spark := newLab(t, "spark")
	image := &job.Container{Engine: "docker", Verb: "run", Image: "trainer"}
	sets := func(c *job.Container, name, value string) *job.Job {
		return &job.Job{Container: c, Env: map[string]string{name: value}, EnvCleared: c != nil}
	}
	for _, c := range []struct {
		name string
		env  []string
		// environ is the environment as the kernel has it, where the empty is told from
		// the absent.
		environ     string
		job         *job.Job
		status      Status
		detail, fix string
	}{
		{"unset", nil, "HOME=/home/ada\x00", nil, Pass, "", ""},
		{"the only GPU", []string{"CUDA_VISIBLE_DEVICES", "0"}, "", nil, Pass, "", ""},
		{"set but empty", nil, "HOME=/home/ada\x00CUDA_VISIBLE_DEVICES=\x00PATH=/bin\x00", train("python"), Warn, "set but empty, which hides every GPU", "unset CUDA_VISIBLE_DEVICES"},
		{"blank", []string{"CUDA_VISIBLE_DEVICES", " "}, "", train("python"), Warn, "set but empty", "unset CUDA_VISIBLE_DEVICES"},
		{"a stale index", []string{"CUDA_VISIBLE_DEVICES", "1"}, "", train("python"), Warn, "CUDA_VISIBLE_DEVICES=1 names a GPU that is not there (the only GPU is 0)", "CUDA_VISIBLE_DEVICES=0"},
		{"a stale index behind a good one", []string{"CUDA_VISIBLE_DEVICES", "0,1"}, "", train("python"), Pass, "", ""},
		{"none", []string{"CUDA_VISIBLE_DEVICES", "-1"}, "", train("python"), Warn, "CUDA_VISIBLE_DEVICES=-1 hides every GPU", ""},
		{"a word of another variable", []string{"CUDA_VISIBLE_DEVICES", "all"}, "", train("python"), Warn, "a word of NVIDIA_VISIBLE_DEVICES", ""},
		{"another GPU's UUID", []string{"CUDA_VISIBLE_DEVICES", "GPU-9999"}, "", train("python"), Warn, "names a GPU that is not there", ""},
		{"the beginning of its UUID", []string{"CUDA_VISIBLE_DEVICES", "GPU-1234"}, "", train("python"), Pass, "", ""},
		{"a part of it", []string{"CUDA_VISIBLE_DEVICES", "MIG-1234"}, "", train("python"), Pass, "", ""},
		{"with env in front", nil, "", sets(nil, "CUDA_VISIBLE_DEVICES", "3"), Warn, "names a GPU that is not there", "leave CUDA_VISIBLE_DEVICES out of the command"},
		{"the command's own counts", []string{"CUDA_VISIBLE_DEVICES", "7"}, "", sets(nil, "CUDA_VISIBLE_DEVICES", "0"), Pass, "", ""},
		{"the command takes it away", []string{"CUDA_VISIBLE_DEVICES", "7"}, "", &job.Job{EnvUnset: []string{"CUDA_VISIBLE_DEVICES"}}, Pass, "", ""},
		{"behind sudo", []string{"CUDA_VISIBLE_DEVICES", "7"}, "", &job.Job{EnvCleared: true}, Pass, "", ""},
		// The words of the trainer are its own.
		{"an argument of the trainer", nil, "", &job.Job{Argv: []string{"python", "t.py", "CUDA_VISIBLE_DEVICES="}, TrainerAt: 1}, Pass, "", ""},
		// An engine gives its containers nothing of our environment.
		{"a container", []string{"CUDA_VISIBLE_DEVICES", "7"}, "", &job.Job{Argv: []string{"docker", "run", "trainer"}, Container: image}, Pass, "", ""},
		{"a container that is handed ours", []string{"CUDA_VISIBLE_DEVICES", "7"}, "", sets(image, "CUDA_VISIBLE_DEVICES", "7"), Warn, "names a GPU that is not there", "out of the command"},
		{"a container with it", nil, "", sets(image, "CUDA_VISIBLE_DEVICES", ""), Warn, "set but empty", "out of the command"},
		{"a container without GPU by variable", nil, "", sets(image, "NVIDIA_VISIBLE_DEVICES", "void"), Warn, `NVIDIA_VISIBLE_DEVICES="void"`, "set it to all"},
	} {
		files := map[string]string{}
		if c.environ != "" {
			files["proc/self/environ"] = c.environ
		}
		dev := gb10Device
		dev.UUID = "GPU-12345678-1234-1234-1234-123456789abc"
		r := Run(t.Context(), Input{Root: spark.with(files), Device: answers(dev, sample.GPU{TempC: sample.Known(40)}), Getenv: env(c.env...), Job: c.job})
		check1(t, c.name, find(t, r, "H1"), c.status, c.detail, c.fix)
		if r.Verdict == Blocked {
			t.Errorf("%s: blocked", c.name)
		}
	}
}

// The answers of a recorded tree tell the empty from the absent as well.
func TestH1RecordedEnvironment(t *testing.T) {
	t.Parallel()
	in := Input{Root: "testdata/spark", Device: gb10, Getenv: env(), Job: pythonJob("/usr/bin/python3"), Recorded: &Recorded{Env: map[string]string{"CUDA_VISIBLE_DEVICES": ""}}}
	check1(t, "empty", find(t, Run(t.Context(), in), "H1"), Warn, "set but empty", "")
	in.Recorded = &Recorded{Env: map[string]string{"HOME": "/home/ada"}}
	check1(t, "absent", find(t, Run(t.Context(), in), "H1"), Pass, "", "")
}

func TestH1SoftwareNewerThanTheDriver(t *testing.T) {
	t.Parallel()
	old := gb10Device
	old.CUDADriver = 12080
	torch13 := map[string]string{}
	for k, v := range torchCUDA12 {
		torch13[k] = strings.ReplaceAll(strings.ReplaceAll(v, "12.4", "13.0"), "2.6.0", "2.9.0")
	}
	r := Run(t.Context(), Input{Root: copyTree(t, "spark", torch13), Device: answers(old, sample.GPU{}), Getenv: env(), Job: pythonJob(venvPython)})
	check1(t, "torch", find(t, r, "H1"), Warn, "torch 2.9.0 is for CUDA 13.0 and this driver supports CUDA 12.8 at most", "update the driver")
	r = Run(t.Context(), Input{Root: copyTree(t, "spark-ngc", nil), Device: answers(old, sample.GPU{}), Getenv: env("CUDA_VERSION", "13.0.2.006")})
	check1(t, "container", find(t, r, "H1"), Warn, "CUDA_VERSION of this container is for CUDA 13.0.2.006", "")
	// Within one major version an older driver serves.
	r = Run(t.Context(), Input{Root: copyTree(t, "spark-ngc", nil), Device: gb10, Getenv: env("CUDA_VERSION", "13.2.1")})
	check1(t, "newer minor version", find(t, r, "H1"), Pass, "", "")
}

// What lies in the way of the looks: folders, garbage, loops.
func TestH1SurvivesOddFiles(t *testing.T) {
	t.Parallel()
	dir := newLab(t, "spark").with(map[string]string{
		"proc/modules/x":  "a folder in the way",
		"dev/nvidiactl/x": "a folder in the way",
		"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1": "-> libnvidia-ml.so.1",
		"proc/sys/kernel/osrelease":                   "../../etc\n",
		secureBootVar[1:]:                             "\x06",
		"proc/self/environ":                           strings.Repeat("\xff", 1<<20),
	}, "proc/modules", "dev/nvidiactl")
	for name, device := range map[string]ask{"answers": gb10, "dead": deadDriver("no-driver", "not loaded"), "none": nil} {
		f := find(t, Run(t.Context(), Input{Root: dir, Device: device}), "H1")
		if f.Detail == "" || f.Status == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
