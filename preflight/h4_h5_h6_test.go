package preflight

import (
	"strings"
	"testing"

	"sparkrun/internal/job"
)

func TestH4(t *testing.T) {
	t.Parallel()
	model := job.Knobs{job.Model: {Value: "/models/m"}}
	for name, c := range map[string]struct {
		disk   Disk
		files  map[string]string
		knobs  job.Knobs
		nojob  bool
		status Status
		words  []string
	}{
		"ext4":           {Disk{Type: "ext4", FreeInodes: 5e6, Inodes: 6e6}, nil, nil, false, Pass, []string{"ext4 for /"}},
		"btrfs":          {Disk{Type: "btrfs"}, nil, nil, false, Pass, []string{"btrfs"}},
		"unknown kind":   {Disk{}, nil, nil, false, Info, []string{"unknown kind"}},
		"ntfs":           {Disk{Type: "fuseblk"}, nil, nil, false, Warn, []string{"lands on fuseblk", "ext4"}},
		"nfs":            {Disk{Type: "nfs4"}, nil, nil, false, Warn, []string{"lands on nfs4", "local disk"}},
		"tmpfs":          {Disk{Type: "tmpfs"}, nil, nil, false, Warn, []string{"lands on tmpfs"}},
		"tmpfs, no job":  {Disk{Type: "tmpfs"}, nil, nil, true, Pass, []string{"tmpfs"}},
		"overlay inside": {Disk{Type: "overlay"}, map[string]string{".dockerenv": ""}, nil, false, Warn, []string{"lands on overlay", "-v"}},
		"overlay, host":  {Disk{Type: "overlay"}, nil, nil, false, Pass, []string{"outside any container"}},
		"read-only":      {Disk{Type: "ext4", ReadOnly: true}, nil, nil, false, Warn, []string{"read-only", "dmesg"}},
		"few inodes":     {Disk{Type: "ext4", FreeInodes: 900, Inodes: 6e6}, nil, nil, false, Warn, []string{"room for 900 more files", "df -i"}},
		"no inode count": {Disk{Type: "xfs", FreeInodes: 0, Inodes: 0}, nil, nil, false, Pass, nil},
		"weights, ntfs":  {Disk{Type: "ntfs3"}, map[string]string{"models/m/config.json": "{}"}, model, false, Warn, []string{"the weights in /models/m are on ntfs3"}},
		"weights, nfs":   {Disk{Type: "nfs"}, map[string]string{"models/m/config.json": "{}"}, model, false, Warn, []string{"lands on nfs", "!weights in"}},
	} {
		in := Input{Recorded: disks(map[string]Disk{"/": c.disk})}
		if !c.nojob {
			in.Job = savesInto("", c.knobs)
		}
		expect(t, name, onSpark(t, "H4", c.files, in), c.status, c.words...)
	}
	// The disk of a laptop is as real as a Spark's.
	in := Input{Job: savesInto("", nil), Recorded: disks(map[string]Disk{"/": {Type: "vfat"}})}
	expect(t, "laptop", onLaptop(t, "H4", nil, in), Warn, "vfat")
}

func TestH5(t *testing.T) {
	t.Parallel()
	small, large := Disk{Type: "tmpfs", FreeBytes: 64 << 20, TotalBytes: 64 << 20}, Disk{Type: "tmpfs", FreeBytes: 60e9, TotalBytes: 60e9}
	knobs := func(workers string, more job.Knobs) *job.Job {
		j := savesInto("", more)
		if workers != "" {
			j.Knobs[job.NumWorkers] = job.Setting{Value: workers, Where: "--workers"}
		}
		return j
	}
	images := knobs("8", job.Knobs{job.MicroBatch: {Value: "64"}})
	images.Image = true
	absurd := knobs("9000000000000000000", job.Knobs{job.MicroBatch: {Value: "9000000000000000000"}, job.SeqLen: {Value: "9000000000000000000"}})
	inImage := knobs("8", nil)
	inImage.Container = &job.Container{Verb: "run", Image: "x"}
	for name, c := range map[string]struct {
		disk   Disk
		job    *job.Job
		inside bool
		status Status
		words  []string
	}{
		"container's default":    {small, knobs("4", nil), true, Warn, []string{"for 4 data loader workers", "--ipc=host"}},
		"default, no workers":    {small, knobs("0", nil), true, Pass, nil},
		"default, not told":      {small, knobs("", nil), true, Info, []string{"not told"}},
		"default, no command":    {small, nil, true, Info, nil},
		"default, small batches": {small, knobs("4", job.Knobs{job.MicroBatch: {Value: "4"}, job.SeqLen: {Value: "2048"}}), true, Pass, []string{"at most 2 MB at once"}},
		"default, large batches": {small, knobs("8", job.Knobs{job.MicroBatch: {Value: "64"}, job.SeqLen: {Value: "32768"}}), true, Warn, []string{"may need 805 MB"}},
		"enough for text":        {large, knobs("8", job.Knobs{job.MicroBatch: {Value: "8"}, job.SeqLen: {Value: "4096"}}), false, Pass, []string{"8 workers x 2 batches of 8 rows of 4096 tokens"}},
		"too little for images":  {Disk{FreeBytes: 8e9, TotalBytes: 8e9}, images, false, Warn, []string{"may need 12.9 GB", "remount"}},
		"numbers that overflow":  {large, absurd, false, Warn, nil},
		"the image has its own":  {small, inImage, false, Skip, []string{"H7"}},
		"not a number of things": {small, knobs("auto", nil), true, Info, nil},
	} {
		files := map[string]string{}
		if c.inside {
			files[".dockerenv"] = ""
		}
		in := Input{Job: c.job, Recorded: disks(map[string]Disk{"/dev/shm": c.disk})}
		expect(t, name, onSpark(t, "H5", files, in), c.status, c.words...)
	}
}

// limits is /proc/self/limits with some values changed.
func limits(changed ...string) string {
	rows := [][4]string{
		{"Max cpu time", "unlimited", "unlimited", "seconds"},
		{"Max file size", "unlimited", "unlimited", "bytes"},
		{"Max data size", "unlimited", "unlimited", "bytes"},
		{"Max stack size", "8388608", "unlimited", "bytes"},
		{"Max core file size", "0", "unlimited", "bytes"},
		{"Max resident set", "unlimited", "unlimited", "bytes"},
		{"Max processes", "490412", "490412", "processes"},
		{"Max open files", "1024", "1048576", "files"},
		{"Max locked memory", "15698944000", "15698944000", "bytes"},
		{"Max address space", "unlimited", "unlimited", "bytes"},
		{"Max nice priority", "0", "0", ""},
	}
	var b strings.Builder
	b.WriteString("Limit                     Soft Limit           Hard Limit           Units     \n")
	for _, r := range rows {
		for i := 0; i+1 < len(changed); i += 2 {
			if changed[i] == r[0] {
				r[1] = changed[i+1]
			}
		}
		b.WriteString(r[0] + strings.Repeat(" ", 26-len(r[0])) + r[1] + strings.Repeat(" ", 21-len(r[1])) + r[2] + "  " + r[3] + "\n")
	}
	return b.String()
}

func TestH6(t *testing.T) {
	t.Parallel()
	workers := savesInto("", job.Knobs{job.NumWorkers: {Value: "16"}})
	flag := savesInto("", nil)
	flag.Argv = append(flag.Argv, "--dataloader_num_workers", "16")
	two := savesInto("", nil)
	two.Nodes = 2
	const cgroup = "0::/user.slice/user-1000.slice/session-3.scope\n"
	for name, c := range map[string]struct {
		limits string
		files  map[string]string
		job    *job.Job
		status Status
		words  []string
	}{
		"stock":                   {limits(), map[string]string{"proc/self/cgroup": cgroup, "sys/fs/cgroup/user.slice/memory.max": "max\n", "sys/fs/cgroup/user.slice/user-1000.slice/pids.max": "41000\n"}, savesInto("", nil), Pass, []string{"ulimit -n: 1024 (hard 1048576)"}},
		"many workers":            {limits(), nil, workers, Warn, []string{"1024 open files", "ulimit -n 65536"}},
		"by a flag alone":         {limits(), nil, flag, Warn, []string{"1024 open files are allowed, for 16 data loader workers"}},
		"enough files":            {limits("Max open files", "65536"), nil, workers, Pass, nil},
		"two machines":            {limits(), nil, two, Warn, []string{"may be locked", "memlock"}},
		"two machines, unlimited": {limits("Max locked memory", "unlimited"), nil, two, Pass, nil},
		"address space":           {limits("Max address space", "68719476736"), nil, nil, Warn, []string{"address space is limited to 68.7 GB", "ulimit -v unlimited"}},
		"CPU time":                {limits("Max cpu time", "3600"), nil, nil, Warn, []string{"3600 s of CPU time", "ulimit -t unlimited"}},
		"file size":               {limits("Max file size", "1000000000"), nil, nil, Warn, []string{"ulimit -f"}},
		"processes":               {limits("Max processes", "100"), nil, nil, Warn, []string{"100 processes", "nproc"}},
		"small stack":             {limits("Max stack size", "65536"), nil, nil, Warn, []string{"stack", "ulimit -s 8192"}},
		"core file":               {limits("Max core file size", "unlimited"), map[string]string{"proc/sys/kernel/core_pattern": "core\n"}, nil, Pass, []string{"ulimit -c 0"}},
		"core to a program":       {limits("Max core file size", "unlimited"), map[string]string{"proc/sys/kernel/core_pattern": "|/usr/lib/systemd/systemd-coredump\n"}, nil, Pass, []string{"!ulimit -c 0"}},
		"cgroup of systemd":       {limits(), map[string]string{"proc/self/cgroup": cgroup, "sys/fs/cgroup/user.slice/user-1000.slice/memory.max": "34359738368\n", "sys/fs/cgroup/user.slice/memory.max": "max\n"}, nil, Warn, []string{"only use 34.4 GB of 130.7 GB", "set-property --runtime user-1000.slice"}},
		"a unit of the user's":    {limits(), map[string]string{"proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n", "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope/memory.max": "34359738368\n"}, nil, Warn, []string{"systemctl --user set-property --runtime run-1.scope"}},
		"memory.high":             {limits(), map[string]string{"proc/self/cgroup": cgroup, "sys/fs/cgroup/user.slice/memory.high": "34359738368\n"}, nil, Warn, []string{"memory.high"}},
		"cgroup inside docker":    {limits(), map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "68719476736\n", ".dockerenv": ""}, nil, Warn, []string{"only use 68.7 GB", "docker run without --memory"}},
		"cgroup version 1":        {limits(), map[string]string{"proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/jobs\n", "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes": "17179869184\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, nil, Warn, []string{"17.2 GB"}},
		"tasks":                   {limits(), map[string]string{"proc/self/cgroup": cgroup, "sys/fs/cgroup/user.slice/pids.max": "64\n"}, nil, Warn, []string{"64 processes and threads", "TasksMax=infinity"}},
		"not a table":             {"what\n", nil, nil, Pass, nil},
	} {
		files := map[string]string{"proc/self/limits": c.limits}
		for k, v := range c.files {
			files[k] = v
		}
		expect(t, name, onSpark(t, "H6", files, Input{Job: c.job}), c.status, c.words...)
	}
	expect(t, "not recorded", onTree(t, "H6", DGXSpark, t.TempDir(), Input{}), Skip, "by design")
	inImage := savesInto("", nil)
	inImage.Container = &job.Container{Verb: "run", Image: "x"}
	expect(t, "in an image", onSpark(t, "H6", map[string]string{"proc/self/limits": limits("Max cpu time", "1")}, Input{Job: inImage}), Skip, "H7")
}
