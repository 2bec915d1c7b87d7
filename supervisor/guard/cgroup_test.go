package guard

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// put writes files below a root.
func put(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCgroupsAboveTheChild(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cgroup, mounts string
		want           []string
		v2             bool
	}{
		"v2, a login": {
			"0::/user.slice/user-1000.slice/session-2.scope\n",
			"30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
			[]string{
				"/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope", "/sys/fs/cgroup/user.slice/user-1000.slice",
				"/sys/fs/cgroup/user.slice", "/sys/fs/cgroup",
			},
			true,
		},
		"v2 in a container with a namespace of its own": {
			"0::/\n", "30 24 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n", []string{"/sys/fs/cgroup"}, true,
		},
		"v2 outside the namespace": {
			"0::/../../job\n", "30 24 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n", []string{"/sys/fs/cgroup"}, true,
		},
		"v1 in a container without one": {
			"5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
			"40 24 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n41 24 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			[]string{"/sys/fs/cgroup/memory"},
			false,
		},
		"v1 below what is mounted": {
			"4:memory:/docker/abc/job\n", "41 24 0:31 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			[]string{"/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"},
			false,
		},
		"both, memory is on v1": {
			"4:memory:/a\n0::/b\n",
			"41 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n42 24 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			[]string{"/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"},
			false,
		},
		"a mount point with a space": {
			"0::/a\n", `30 24 0:26 / /my\040cgroups rw - cgroup2 cgroup2 rw` + "\n", []string{"/my cgroups/a", "/my cgroups"}, true,
		},
		"none":    {"", "1 2 3\n", nil, false},
		"garbage": {"::\n4:memory\n\x00", "a - b\n - \n", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			put(t, root, map[string]string{"proc/7/cgroup": c.cgroup, "proc/self/mountinfo": c.mounts})
			places, v2 := memoryCgroups(root, 7)
			var got []string
			for _, p := range places {
				got = append(got, p.dir[len(root):])
			}
			if v2 != c.v2 || !cmp.Equal(got, c.want) {
				t.Errorf("v2 %v: %s", v2, cmp.Diff(got, c.want))
			}
		})
	}
}

func TestRoomBelowALimit(t *testing.T) {
	t.Parallel()
	const m = 1 << 20
	n := func(mib int) string { return strconv.Itoa(mib*m) + "\n" }
	v2 := func(most, high, current, stat string) map[string]string {
		return map[string]string{"memory.max": most, "memory.high": high, "memory.current": current, "memory.stat": stat}
	}
	for name, c := range map[string]struct {
		files map[string]string
		v1    bool
		avail uint64 // MiB
		total uint64
	}{
		"nothing used":            {v2(n(512), "max\n", n(12), ""), false, 500, 512},
		"nearly full":             {v2(n(512), "max\n", n(500), "anon 1\nfile 2\n"), false, 12, 512},
		"full of cache":           {v2(n(512), "max\n", n(500), "inactive_file "+n(300)+"active_file "+n(100)), false, 12 + 300 + 50, 512},
		"reclaimable slab":        {v2(n(512), "max\n", n(500), "inactive_file 0\nslab_reclaimable "+n(100)), false, 12 + 50, 512},
		"above it for a moment":   {v2(n(512), "max\n", n(520), "anon 1\n"), false, 0, 512},
		"held at high, no limit":  {v2("max\n", n(256), n(256), ""), false, 0, 0},
		"held at high below max":  {v2(n(512), n(256), n(256), ""), false, 256, 512},
		"no limit":                {v2("max\n", "max\n", n(12), ""), false, 0, 0},
		"above what there is":     {v2(n(9000), "max\n", n(12), ""), false, 0, 0},
		"unreadable usage":        {v2(n(512), "max\n", "\n", ""), false, 0, 0},
		"v1, full of cache":       {map[string]string{"memory.limit_in_bytes": n(512), "memory.usage_in_bytes": n(500), "memory.stat": "inactive_file 0\ntotal_inactive_file " + n(300) + "total_active_file 0\n"}, true, 312, 512},
		"v1 without a limit":      {map[string]string{"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": n(5), "memory.stat": ""}, true, 0, 0},
		"a limit of one page (0)": {v2("0\n", "max\n", n(1), ""), false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			put(t, dir, c.files)
			l, ok := openLimit(place{dir: dir}, !c.v1)
			if !ok {
				t.Fatal("not opened")
			}
			defer l.close()
			level, _ := l.read(time.Hour, 8<<20)
			want := Level{AvailKiB: c.avail << 10, TotalKiB: c.total << 10, OK: c.total > 0}
			if level != want {
				t.Errorf("%+v, want %+v", level, want)
			}
		})
	}
	if _, ok := openLimit(place{dir: t.TempDir()}, true); ok {
		t.Error("a cgroup without memory files was opened")
	}
}

// TestALimitSetLaterIsSeen: docker update, systemctl set-property.
func TestALimitSetLaterIsSeen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir, map[string]string{"memory.max": "max\n", "memory.current": "1048576\n", "memory.stat": ""})
	l, ok := openLimit(place{dir: dir}, true)
	if !ok {
		t.Fatal("not opened")
	}
	defer l.close()
	if level, _ := l.read(time.Hour, 8<<20); level.OK {
		t.Errorf("%+v", level)
	}
	put(t, dir, map[string]string{"memory.max": "104857600\n"})
	if level, _ := l.read(time.Hour+unlimitedFor, 8<<20); !level.OK || level.TotalKiB != 100<<10 {
		t.Errorf("%+v", level)
	}
}
