package preflight

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
)

// onSpark makes one host check of a Spark with these files and answers.
func onSpark(t *testing.T, id string, files map[string]string, in Input) Finding {
	t.Helper()
	return onTree(t, id, DGXSpark, machineTree(t, files), in)
}

// onLaptop is the same of a machine without a GPU.
func onLaptop(t *testing.T, id string, files map[string]string, in Input) Finding {
	t.Helper()
	return onTree(t, id, Generic, machineTree(t, files), in)
}

// machineTree has what tells a machine from a container, and its memory.
func machineTree(t *testing.T, files map[string]string) string {
	t.Helper()
	return copyTree(t, "", filesOf(map[string]string{"proc/1/cgroup": "0::/init.scope\n", "proc/meminfo": withSwap}, files))
}

func onTree(t *testing.T, id, platform, dir string, in Input) Finding {
	t.Helper()
	if in.Getenv == nil {
		in.Getenv = env("PWD", "/home/ada")
	}
	r := rootOf(dir)
	getenv := environment(in.Job, in.Getenv)
	f := facts{
		job: in.Job, in: in, getenv: getenv, now: in.Now, limit: DefaultLimit, platform: platform,
		memory: readMemory(r), container: readContainer(r), plan: planned{why: "not reckoned here"},
	}
	v := view{root: r, getenv: getenv, job: in.Job, in: in}
	i := slices.IndexFunc(hostChecks, func(c check) bool { return c.id == id })
	return finish(hostChecks[i].judge(hostChecks[i].look(t.Context(), v), f), id, hostChecks[i].title)
}

// expect checks the status and words of a finding; what a person is told to act on has a
// fix and a cost.
func expect(t *testing.T, name string, f Finding, s Status, words ...string) {
	t.Helper()
	all := f.Detail + "\n" + strings.Join(f.Evidence, "\n") + "\n" + f.Fix
	if f.Status != s {
		t.Errorf("%s: %s, want %s: %s", name, f.Status, s, all)
	}
	for _, w := range words {
		if not, ok := strings.CutPrefix(w, "!"); ok == strings.Contains(all, strings.TrimPrefix(w, "!")) {
			t.Errorf("%s: %q (not: %t) in:\n%s", name, not, ok, all)
		}
	}
	if (f.Status == Warn || f.Status == Fail) && (f.Cost == "" || f.Fix == "") {
		t.Errorf("%s: neither cost nor fix may be missing: %+v", name, f)
	}
	if strings.Contains(f.Detail, "\n") {
		t.Errorf("%s: more than one line: %q", name, f.Detail)
	}
}

func disks(at map[string]Disk) *Recorded { return &Recorded{Disks: at} }

func TestHostRules(t *testing.T) {
	t.Parallel()
	h, err := loadHostRules()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.DateOnly, h.AsOf); err != nil {
		t.Errorf("as_of: %v", err)
	}
	for kind, class := range map[string]string{"nfs4": "network", "fuse.sshfs": "network", "fuseblk": "windows", "tmpfs": "memory", "overlay": "layered", "ext4": "", "": ""} {
		if c, _ := h.fileSystem(kind); c.Class != class {
			t.Errorf("%q is %q, want %q", kind, c.Class, class)
		}
	}
	for _, c := range h.FileSystems {
		if c.Checkpoints == "" || c.Weights == "" || c.Fix == "" {
			t.Errorf("class %s: %+v", c.Class, c)
		}
	}
	if h.Disk.LowGiB == 0 || h.Inodes.Low == 0 || h.Shm.Prefetch == 0 || h.Limits.OpenFiles == 0 || h.Killers.GuardPercent != 3 || h.Login.UserSliceMiB == 0 {
		t.Errorf("a zero threshold: %+v", h)
	}
	if n, ok := systemdSize(h.Login.UserSliceAdvised); !ok || n < h.Login.UserSliceMiB<<20 {
		t.Error("what is advised for user.slice is not enough for the check")
	}
	if n, ok := systemdSize(h.Login.SSHAdvised); !ok || n < h.Login.SSHMiB<<20 {
		t.Error("what is advised for ssh is not enough for the check")
	}
	for _, k := range h.Killers.Programs {
		if k.Comm == "" && len(k.Words) == 0 || len(k.Comm) > 15 {
			t.Errorf("nothing can match %+v", k)
		}
	}
}

func TestSystemdSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{"4G": 4 << 30, "192M": 192 << 20, "1.5G": 3 << 29, "0": 0, "4096": 4096, "infinity": math.MaxUint64, "max": math.MaxUint64} {
		if n, ok := systemdSize(text); !ok || n != want {
			t.Errorf("%q: %d %t", text, n, ok)
		}
	}
	for _, text := range []string{"", "G", "-1", "10%", "1e30", "NaN"} {
		if n, ok := systemdSize(text); ok {
			t.Errorf("%q is %d", text, n)
		}
	}
}

// What systemd itself makes of a unit, its drop-ins and those of its template.
func TestUnitSettings(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "", map[string]string{
		"usr/lib/systemd/system/user@.service":                  "[Service]\nA=vendor\nB=vendor\n",
		"usr/lib/systemd/system/user@.service.d/10-x.conf":      "[Service]\nB=dropin\nC = spaced \n# C=comment\n",
		"etc/systemd/system/user@.service.d/10-x.conf":          "[Service]\nB=stronger\n",
		"etc/systemd/system/user@1000.service.d/20-y.conf":      "D=own\n",
		"etc/systemd/system.control/user@1000.service.d/50.con": "D=no drop-in\n",
		"run/systemd/system/user@.service.d/15-z.conf":          "garbage\x00\xff\n=\nB\n",
		"etc/systemd/system/gone.target":                        "-> /dev/null",
	})
	v := view{root: rootOf(dir)}
	got := make(map[string]string)
	for name, s := range unitSettings(v, "user@1000.service", templates("user@1000.service")...) {
		got[name] = s.value
	}
	delete(got, "")
	if diff := cmp.Diff(map[string]string{"A": "vendor", "B": "stronger", "D": "own"}, got); diff != "" {
		t.Error(diff)
	}
	if !unitMasked(v, "gone.target") || unitMasked(v, "user@.service") || unitMasked(v, "absent.target") {
		t.Error("masked is a link to /dev/null and nothing else")
	}
	for unit, want := range map[string][]string{
		"user@1000.service": {"user@.service"}, "user-1000.slice": {"user-.slice"}, "app-gnome-x.slice": {"app-gnome-.slice", "app-.slice"}, "user.slice": nil, "-.slice": nil,
	} {
		if got := templates(unit); !slices.Equal(got, want) {
			t.Errorf("%s: %v", unit, got)
		}
	}
}

func TestHostPath(t *testing.T) {
	t.Parallel()
	argv := strings.Fields("docker run --rm -v /data/ada:/workspace -v ./out:/workspace/out:rw --volume=cache:/cache --mount type=bind,src=/models,target=/models,readonly -w /workspace image -v /bad:/bad")
	v := view{getenv: env(), job: &job.Job{Argv: argv, Dir: "/home/ada", Container: &job.Container{Engine: "docker", Verb: "run", Image: "image"}}}
	for inner, want := range map[string]string{
		"/workspace/x": "/data/ada/x", "/workspace": "/data/ada", "/workspace/out/a": "/home/ada/out/a", "runs": "/data/ada/runs",
		"/models/q": "/models/q", "/cache/x": "", "/workspaces": "", "/bad/x": "", "/workspace/../etc": "",
	} {
		got, ok := hostPath(v, inner)
		if got != want || ok != (want != "") {
			t.Errorf("%s: %q %t, want %q", inner, got, ok, want)
		}
	}
	argv[1], v.job.Container.Verb = "exec", "exec"
	if got, ok := hostPath(v, "/workspace/x"); ok {
		t.Errorf("docker exec has no mounts of its own: %s", got)
	}
}

// Whatever lies in the way, every check says something in one line and ends.
func TestHostChecksSurvive(t *testing.T) {
	t.Parallel()
	torn := map[string]string{}
	for _, name := range []string{
		"proc/self/limits", "proc/self/cgroup", "proc/77/comm", "proc/77/cmdline", "proc/sys/vm/overcommit_memory", "etc/systemd/oomd.conf", "etc/systemd/logind.conf",
		"etc/apt/apt.conf.d/20auto-upgrades", "usr/bin/unattended-upgrade", "sys/power/state", "sys/fs/cgroup/cgroup.controllers", "sys/fs/cgroup/user.slice/memory.min",
		"etc/gdm3/greeter.dconf-defaults", "usr/bin/sparkrun", "etc/needrestart/needrestart.conf",
	} {
		torn[name+".d/x.conf"] = "=\n[\x00"
		torn[name] = "\x00\xff{{{\"= \n=\n-> " + strings.Repeat("x", 3000) + "\n"
	}
	folders := map[string]string{}
	for name := range torn {
		if !strings.HasSuffix(name, ".conf") {
			folders[name+"/in-the-way"] = ""
		}
	}
	for what, files := range map[string]map[string]string{"nothing": nil, "torn": torn, "folders": folders} {
		dir := copyTree(t, "", files)
		for _, j := range []*job.Job{nil, {}, pythonJob("/usr/bin/python3"), {Container: &job.Container{Verb: "run"}}} {
			for _, id := range []string{"H3", "H4", "H5", "H6", "H9", "H10", "H11", "H12", "H15"} {
				f := onTree(t, id, DGXSpark, dir, Input{Job: j, Recorded: disks(map[string]Disk{"/": {}})})
				if f.Detail == "" || f.Status == "" || strings.Contains(f.Detail, "\n") {
					t.Errorf("%s, %s: %+v", what, id, f)
				}
			}
		}
	}
}

// executables makes files of a tree executable, where they are there.
func executables(t *testing.T, dir string, names ...string) string {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}
