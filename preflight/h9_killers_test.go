package preflight

import (
	"maps"
	"math"
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// runs adds a process to a tree.
func runs(pid, comm string, argv ...string) map[string]string {
	dir := "proc/" + pid + "/"
	return map[string]string{dir + "comm": comm + "\n", dir + "cmdline": strings.Join(argv, "\x00") + "\x00", "proc/1/comm": "systemd\n"}
}

func filesOf(list ...map[string]string) map[string]string {
	out := make(map[string]string)
	for _, m := range list {
		maps.Copy(out, m)
	}
	return out
}

func TestReadEarlyoom(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]killer{
		"earlyoom":                                   {percent: 10, swapPercent: 10},
		"earlyoom -m 2 -s 80":                        {percent: 2, swapPercent: 80},
		"earlyoom -m2,1 -s100":                       {percent: 2, swapPercent: 100},
		"earlyoom -M 4194304,2097152":                {percent: math.NaN(), bytes: 4 << 30, swapPercent: 10},
		"earlyoom -r 3600 --avoid ^ssh --prefer=py":  {percent: 10, swapPercent: 10, avoid: "^ssh", prefer: "py"},
		"earlyoom -m nonsense -s":                    {percent: 10, swapPercent: 10},
		"earlyoom -n -g --ignore (python|sshd) -m 5": {percent: 5, swapPercent: 10, ignore: "(python|sshd)"},
		"earlyoom -m -5 -M 99999999999999999999":     {percent: 10, swapPercent: 10},
	} {
		got := readKiller(view{}, killerRule{Name: "earlyoom", Comm: "earlyoom", MemoryPercent: 10, SwapPercent: 10}, 1, strings.Fields(words))
		same := got.percent == want.percent || math.IsNaN(got.percent) && math.IsNaN(want.percent)
		if !same || got.bytes != want.bytes || got.swapPercent != want.swapPercent || got.avoid != want.avoid || got.prefer != want.prefer || got.ignore != want.ignore {
			t.Errorf("%q: %+v", words, got)
		}
	}
}

const (
	noSwap   = "MemTotal: 127600600 kB\nMemFree: 90000000 kB\nMemAvailable: 120000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
	withSwap = "MemTotal: 127600600 kB\nMemFree: 90000000 kB\nMemAvailable: 120000000 kB\nSwapTotal: 16777212 kB\nSwapFree: 16777212 kB\n"
	fullSwap = "MemTotal: 127600600 kB\nMemFree: 90000000 kB\nMemAvailable: 120000000 kB\nSwapTotal: 16777212 kB\nSwapFree: 777212 kB\n"
)

func TestH9(t *testing.T) {
	t.Parallel()
	meminfo := func(text string) map[string]string { return map[string]string{"proc/meminfo": text} }
	quiet := map[string]string{"proc/1/comm": "systemd\n"}
	sysctl := func(name, value string) map[string]string {
		return map[string]string{"proc/sys/vm/" + name: value + "\n", "proc/1/comm": "systemd\n"}
	}
	oomd := map[string]string{
		"sys/fs/cgroup/system.slice/systemd-oomd.service/cgroup.procs":                  "700\n",
		"usr/lib/systemd/oomd.conf.d/10-oomd-defaults.conf":                             "[OOM]\nDefaultMemoryPressureDurationSec=20s\n",
		"usr/lib/systemd/system/user@.service.d/10-oomd-user-service-defaults.conf":     "[Service]\nManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=50%\n",
		"usr/lib/systemd/system/-.slice.d/10-oomd-root-slice-defaults.conf":             "[Slice]\nManagedOOMSwap=kill\n",
		"usr/lib/systemd/system/some-other.service.d/10-oomd-user-service-defaults.con": "ManagedOOMSwap=kill\n",
		"proc/1/comm": "systemd\n",
	}
	ssh := map[string]string{"proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n"}
	desktop := map[string]string{"proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n"}
	for name, c := range map[string]struct {
		files  map[string]string
		job    *job.Job
		status Status
		words  []string
	}{
		"stock":                    {quiet, nil, Pass, []string{"nobody ends"}},
		"earlyoom, no swap":        {filesOf(runs("812", "earlyoom", "earlyoom"), meminfo(noSwap)), nil, Warn, []string{"earlyoom ends processes below 10 % of the memory (13.1 GB)", "systemctl stop earlyoom.service"}},
		"earlyoom, swap free":      {filesOf(runs("812", "earlyoom", "earlyoom"), meminfo(withSwap)), nil, Pass, []string{"earlyoom acts later", "the guard acts first"}},
		"earlyoom, swap used up":   {filesOf(runs("812", "earlyoom", "earlyoom"), meminfo(fullSwap)), nil, Warn, nil},
		"earlyoom of the launcher": {filesOf(runs("812", "earlyoom", "earlyoom", "-m", "2", "-s", "80"), meminfo(noSwap)), nil, Pass, []string{"below 2 %"}},
		"earlyoom avoids trainers": {filesOf(runs("812", "earlyoom", "earlyoom", "--avoid", "^python"), meminfo(noSwap)), nil, Pass, []string{"passes a training over"}},
		"earlyoom prefers them":    {filesOf(runs("812", "earlyoom", "earlyoom", "-s", "100", "--prefer", "python"), meminfo(withSwap)), nil, Warn, []string{"trainings first"}},
		"anti-oom at 3 GB":         {filesOf(runs("9", "python3", "python3", "/opt/dgx-anti-oom", "--daemon"), meminfo(noSwap)), nil, Pass, []string{"dgx-anti-oom"}},
		"watchdog at 16 GB":        {filesOf(runs("9", "bash", "bash", "/home/ada/oom_protection.sh"), meminfo(noSwap)), nil, Warn, []string{"oom_protection.sh ends processes below 12.2 %"}},
		"only the word":            {filesOf(runs("9", "vim", "vim", "oom_protection.sh"), runs("10", "python3", "python3", "train.py", "dgx-anti-oom"), meminfo(noSwap)), nil, Pass, []string{"nobody ends"}},
		"nohang's own file":        {filesOf(runs("9", "nohang", "/usr/sbin/nohang", "--config", "/etc/n.conf"), map[string]string{"etc/n.conf": "soft_threshold_min_mem = 8 %\nsoft_threshold_min_swap = 100 %\n"}, meminfo(withSwap)), nil, Warn, []string{"below 8 %", "/etc/n.conf"}},
		"nohang in MiB":            {filesOf(runs("9", "nohang", "/usr/sbin/nohang"), map[string]string{"etc/nohang/nohang.conf": "soft_threshold_min_mem = 512 M\n"}, meminfo(noSwap)), nil, Pass, []string{"0.4 %"}},
		"oomd over ssh":            {filesOf(oomd, ssh, meminfo(withSwap)), nil, Pass, []string{"acts when memory and swap are both 90 %"}},
		"oomd in a terminal":       {filesOf(oomd, desktop, meminfo(withSwap)), nil, Warn, []string{"stalls for 50 % of the time, 20 s long (user@1000.service)", "ssh login", "ManagedOOMMemoryPressure=auto"}},
		"oomd overruled": {filesOf(oomd, desktop, meminfo(withSwap), map[string]string{
			"etc/systemd/system/user@.service.d/10-oomd-user-service-defaults.conf": "[Service]\nManagedOOMMemoryPressure=auto\n",
		}), nil, Pass, nil},
		"oomd, swap in use":   {filesOf(oomd, ssh, meminfo(fullSwap)), nil, Warn, []string{"95 % of the swap is in use"}},
		"oomd, container job": {filesOf(oomd, desktop, meminfo(withSwap)), &job.Job{Container: &job.Container{Verb: "run"}}, Pass, nil},
		"oomd not running":    {filesOf(map[string]string{"usr/lib/systemd/system/user@.service.d/x.conf": "ManagedOOMMemoryPressure=kill\n"}, desktop, quiet), nil, Pass, []string{"!ManagedOOM"}},
		"overcommit 2":        {sysctl("overcommit_memory", "2"), nil, Warn, []string{"sudo sysctl vm.overcommit_memory=0"}},
		"panic":               {sysctl("panic_on_oom", "1"), nil, Warn, []string{"vm.panic_on_oom is 1"}},
		"swappiness":          {sysctl("swappiness", "60"), nil, Pass, []string{"vm.swappiness 60"}},
		"no swap":             {filesOf(quiet, meminfo(noSwap)), nil, Pass, []string{"no swap"}},
		"inside":              {filesOf(runs("812", "earlyoom", "earlyoom"), meminfo(noSwap), map[string]string{".dockerenv": ""}), nil, Skip, []string{"by design"}},
	} {
		f := onSpark(t, "H9", c.files, Input{Job: c.job})
		expect(t, name, f, c.status, c.words...)
		for _, r := range f.Repairs {
			if !strings.Contains(r.Effect, "undo") || !r.Root || strings.Contains(r.Command, "sudo") {
				t.Errorf("%s: repair %+v", name, r)
			}
		}
	}
	// Not the Spark's pool: somebody's choice.
	f := onLaptop(t, "H9", filesOf(runs("812", "earlyoom", "earlyoom"), meminfo(noSwap)), Input{})
	expect(t, "laptop", f, Info, "earlyoom ends")
	if len(f.Repairs) > 0 {
		t.Errorf("a repair is offered on a laptop: %+v", f.Repairs)
	}
	expect(t, "nothing recorded", onTree(t, "H9", DGXSpark, t.TempDir(), Input{}), Skip, "by design")
}
