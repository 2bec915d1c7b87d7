package preflight

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/preflight/headroom"
)

func savesInto(dir string, knobs job.Knobs) *job.Job {
	j := pythonJob("/usr/bin/python3")
	j.Knobs = job.Knobs{}
	if dir != "" {
		j.Knobs[job.OutputDir] = job.Setting{Value: dir}
	}
	for k, v := range knobs {
		j.Knobs[k] = v
	}
	return j
}

// looks runs the look of H3 over a tree of its own.
func looks(t *testing.T, files map[string]string, j *job.Job, rec *Recorded, kv ...string) diskSeen {
	t.Helper()
	v := view{root: rootOf(copyTree(t, "", files)), job: j, getenv: environment(j, env(kv...)), in: Input{Recorded: rec}}
	return lookDisk(t.Context(), v)
}

func TestH3WhereItSaves(t *testing.T) {
	t.Parallel()
	rec := disks(map[string]Disk{"/": {Type: "ext4", FreeBytes: 1}, "/data": {Type: "xfs", FreeBytes: 2}, "/home/ada": {Type: "ext4", FreeBytes: 3}})
	files := map[string]string{"data/runs/x": "", "home/ada/x": "", "home/ada/link": "-> /data/runs"}
	for _, c := range []struct {
		out  string
		at   string
		free uint64
	}{
		{"/data/runs/new/deep", "/data/runs", 2},
		{"out", "/home/ada", 3},
		{"link", "/data/runs", 2},
		{"link/more", "/data/runs", 2},
		{"/elsewhere/x", "/", 1},
		{"", "/home/ada", 3},
	} {
		seen := looks(t, files, savesInto(c.out, nil), rec)
		if seen.output.at != c.at || seen.output.disk.FreeBytes != c.free || seen.output.err != nil {
			t.Errorf("%q: %+v", c.out, seen.output)
		}
	}
	j := savesInto("/workspace/out", nil)
	j.Argv = []string{"docker", "run", "-v", "/data/runs:/workspace", "image", "train"}
	j.Container = &job.Container{Engine: "docker", Verb: "run", Image: "image"}
	if seen := looks(t, files, j, rec); seen.output.at != "/data/runs" {
		t.Errorf("through a mount: %+v", seen.output)
	}
	j.Knobs[job.OutputDir] = job.Setting{Value: "/elsewhere/out"}
	expect(t, "inside the image", judgeDisk(looks(t, files, j, rec), facts{job: j}), Skip, "/elsewhere/out", "cannot be told", "by design")
}

// A folder that may not be looked into is not taken for one that is not there.
func TestH3ForbiddenFolder(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "", map[string]string{"closed/out/x": ""})
	if err := os.Chmod(filepath.Join(dir, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o700) })
	if os.Geteuid() == 0 {
		// Root may look into every folder; this thread becomes nobody for files alone. It
		// is never given back to others.
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setfsuid(0) }()
	}
	v := view{root: rootOf(dir), job: savesInto("/closed/out/deep", nil), getenv: env(), in: Input{Recorded: disks(map[string]Disk{"/": {FreeBytes: 1 << 40}})}}
	f := judgeDisk(lookDisk(t.Context(), v), facts{job: v.job})
	expect(t, "forbidden", f, Skip, "may not be read by this user")
}

func TestH3Saves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		argv  []string
		knobs job.Knobs
		want  int64
		off   bool
	}{
		"steps":            {nil, job.Knobs{job.MaxSteps: {Value: "1000"}, job.SaveSteps: {Value: "300"}}, 4, false},
		"fewer than limit": {[]string{"--save_total_limit", "5"}, job.Knobs{job.MaxSteps: {Value: "1000"}, job.SaveSteps: {Value: "500"}}, 2, false},
		"limit":            {[]string{"--save_total_limit=2"}, job.Knobs{job.MaxSteps: {Value: "1000"}, job.SaveSteps: {Value: "100"}}, 3, false},
		"limit alone":      {[]string{"--save-total-limit", "3"}, nil, 4, false},
		"no limit":         {[]string{"--save_total_limit", "None"}, nil, 0, false},
		"epochs":           {[]string{"--save_strategy", "epoch"}, job.Knobs{job.Epochs: {Value: "3"}}, 3, false},
		"never":            {[]string{"--save_strategy", "no"}, nil, 0, true},
		"garbage":          {[]string{"--save_total_limit", "99999999999999999999"}, job.Knobs{job.MaxSteps: {Value: "many"}, job.SaveSteps: {Value: "0"}}, 0, false},
		"nothing told":     {nil, nil, 0, false},
	} {
		j := savesInto("", c.knobs)
		j.Argv = append([]string{"python", "train.py"}, c.argv...)
		j.TrainerAt = 1
		seen := looks(t, map[string]string{"home/ada/train.py": "pass\n"}, j, disks(map[string]Disk{"/": {FreeBytes: 1 << 40}}))
		if got := seen.saves.most(); got != c.want || (seen.saves.off != "") != c.off {
			t.Errorf("%s: %d, off %q", name, got, seen.saves.off)
		}
	}
}

func planOf(checkpoint int64, exact bool) planned {
	return planned{known: true, est: headroom.Estimate{Checkpoint: checkpoint, CheckpointHow: "weights and optimizer", WeightsExact: exact}, spec: headroom.Spec{}}
}

func TestH3Judge(t *testing.T) {
	t.Parallel()
	const gb = 1_000_000_000
	at := func(free uint64) place {
		return place{path: "/out", at: "/out", disk: Disk{Type: "ext4", FreeBytes: free, TotalBytes: 4000 * gb}}
	}
	for name, c := range map[string]struct {
		free   uint64
		plan   planned
		saves  saves
		job    bool
		status Status
		words  string
	}{
		"not one, counted":     {40 * gb, planOf(50*gb, true), saves{}, true, Fail, "not even one checkpoint fits"},
		"not one, estimated":   {40 * gb, planOf(50*gb, false), saves{}, true, Warn, "reckoned at 50.0 GB"},
		"not all":              {120 * gb, planOf(50*gb, true), saves{count: 10, limit: 2}, true, Warn, "room for 2 checkpoints of 50.0 GB in /out, and the run keeps up to 3"},
		"all":                  {160 * gb, planOf(50*gb, true), saves{count: 10, limit: 2}, true, Pass, "room for all 3"},
		"number not told, one": {90 * gb, planOf(50*gb, true), saves{}, true, Warn, "room for one checkpoint"},
		"number not told":      {1000 * gb, planOf(50*gb, true), saves{}, true, Pass, "room for 20 checkpoints of 50.0 GB; how many"},
		"size not known":       {100 * gb, planned{}, saves{}, true, Pass, "the size of a checkpoint is not known"},
		"almost full":          {2 * gb, planned{}, saves{}, true, Warn, "only 2.0 GB free"},
		"almost full, fits":    {2 * gb, planOf(1e8, true), saves{limit: 1}, true, Warn, "only 2.0 GB free"},
		"saves nothing":        {40 * gb, planOf(50*gb, true), saves{off: "save_strategy no (train.py:3)"}, true, Pass, "no checkpoints are saved"},
		"no command":           {40 * gb, planned{}, saves{}, false, Info, "40.0 GB free in /out"},
		"no command, full":     {1 * gb, planned{}, saves{}, false, Warn, "only 1.0 GB free in /out"},
	} {
		f := facts{plan: c.plan}
		if c.job {
			f.job = pythonJob("")
		}
		expect(t, name, judgeDisk(diskSeen{output: at(c.free), saves: c.saves}, f), c.status, c.words)
	}
}

func TestH3Download(t *testing.T) {
	t.Parallel()
	rec := disks(map[string]Disk{"/": {Type: "ext4", FreeBytes: 100e9, TotalBytes: 1e12}, "/big": {Type: "xfs", FreeBytes: 4e12, TotalBytes: 8e12}})
	hub := func(name string) *job.Job { return savesInto("", job.Knobs{job.Model: {Value: name}}) }
	local := map[string]string{"home/ada/mine/config.json": "{}", "home/ada/.cache/huggingface/hub/models--org--here/snapshots/abc/config.json": "{}"}
	for name, c := range map[string]struct {
		model string
		kv    []string
		want  string
	}{
		"to download":      {"org/away", nil, "/home/ada/.cache/huggingface/hub"},
		"in the cache":     {"org/here", nil, ""},
		"a folder":         {"mine", nil, ""},
		"an absolute path": {"/models/x", nil, ""},
		"offline":          {"org/away", []string{"HF_HUB_OFFLINE", "1"}, ""},
		"another cache":    {"org/here", []string{"HF_HOME", "/big/hf"}, "/big/hf/hub"},
	} {
		seen := looks(t, local, hub(c.model), rec, c.kv...)
		if seen.cache.path != c.want {
			t.Errorf("%s: %q", name, seen.cache.path)
		}
	}
	// A command that no profile fits names it as well, and may set where the cache is.
	flag := savesInto("", nil)
	flag.Argv = append(flag.Argv, "--model_name_or_path", "org/away")
	flag.Env = map[string]string{"HF_HOME": "/big/hf"}
	if seen := looks(t, local, flag, rec); seen.cache.path != "/big/hf/hub" || seen.model != "org/away" {
		t.Errorf("by a flag: %q in %q", seen.model, seen.cache.path)
	}
	seen := looks(t, local, hub("org/away"), rec)
	seen.output = place{path: "/out", at: "/out", disk: Disk{FreeBytes: 1e12, TotalBytes: 1e12}}
	big := planned{known: true, spec: headroom.Spec{Model: modelsize.Size{Params: 70e9, From: "its name"}}}
	f := judgeDisk(seen, facts{job: hub("org/away"), plan: big})
	expect(t, "too big", f, Warn, "org/away must be downloaded, about 140.0 GB", "100.0 GB free", "HF_HOME", "hf cache ls", "hf cache rm")
	// Both fit, but not together.
	both := seen
	both.output, both.saves = both.cache, saves{count: 3}
	small := planOf(20e9, true)
	small.spec.Model = modelsize.Size{Bytes: 60e9}
	expect(t, "one file system", judgeDisk(both, facts{job: hub("org/away"), plan: small}), Warn, "about 60.0 GB, to the file system of the checkpoints, about 60.0 GB: 100.0 GB free")
	both.saves.off = "save_strategy no (train.py:1)"
	expect(t, "saves nothing", judgeDisk(both, facts{job: hub("org/away"), plan: small}), Pass)
	expect(t, "fits", judgeDisk(seen, facts{job: hub("org/away")}), Pass, "a guess")
}

// Through Run, so that everything is wired: the verdict is blocked.
func TestH3Blocks(t *testing.T) {
	t.Parallel()
	if got := verdict(nil, []Finding{judgeDisk(diskSeen{output: place{path: "/o", at: "/o", disk: Disk{FreeBytes: 1}}}, facts{job: pythonJob(""), plan: planOf(2, true)})}); got != Blocked {
		t.Error(got)
	}
	in := Input{Job: savesInto("out", nil), Recorded: disks(map[string]Disk{"/": {Type: "ext4", FreeBytes: 900e9, TotalBytes: 1e12}})}
	expect(t, "room", onSpark(t, "H3", nil, in), Pass, "900.0 GB free")
	in.Recorded = nil
	expect(t, "not recorded", onSpark(t, "H3", nil, in), Skip, "by design")
}
