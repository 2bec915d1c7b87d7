package preflight

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestH10(t *testing.T) {
	t.Parallel()
	power := map[string]string{"sys/power/state": "freeze mem disk\n", "sys/power/suspend_stats/success": "0\n"}
	gsd := func(pid, uid string) map[string]string {
		return map[string]string{"proc/" + pid + "/comm": "gsd-power\n", "proc/" + pid + "/status": "Name:\tgsd-power\nUid:\t" + uid + "\t" + uid + "\t" + uid + "\t" + uid + "\n"}
	}
	greeter, desktop := gsd("900", "120"), gsd("1900", "1000")
	dconf := func(file, lines string) map[string]string {
		return map[string]string{file: "# [org/gnome/settings-daemon/plugins/power]\n[org/gnome/login-screen]\nlogo='x'\n[org/gnome/settings-daemon/plugins/power]\n" + lines}
	}
	for name, c := range map[string]struct {
		files  map[string]string
		status Status
		words  []string
	}{
		"nothing runs":            {power, Pass, []string{"nothing that is running"}},
		"the login screen is up":  {filesOf(power, greeter), Warn, []string{"login screen", "15 to 20 minutes", "systemctl mask sleep.target suspend.target"}},
		"only a comment":          {filesOf(power, greeter, dconf("etc/gdm3/greeter.dconf-defaults", "# sleep-inactive-ac-type='nothing'\n")), Warn, nil},
		"told not to":             {filesOf(power, greeter, dconf("etc/gdm3/greeter.dconf-defaults", "sleep-inactive-ac-type='nothing'\n")), Pass, nil},
		"timeout 0":               {filesOf(power, greeter, dconf("etc/dconf/db/gdm.d/10-power", "sleep-inactive-ac-timeout=0\n")), Pass, nil},
		"told to":                 {filesOf(power, greeter, dconf("etc/gdm3/greeter.dconf-defaults", "sleep-inactive-ac-type='suspend'\n")), Warn, []string{"greeter.dconf-defaults: sleep-inactive-ac-type=suspend"}},
		"in another section":      {filesOf(power, greeter, map[string]string{"etc/gdm3/greeter.dconf-defaults": "[org/other]\nsleep-inactive-ac-type='nothing'\n"}), Warn, nil},
		"masked":                  {filesOf(power, greeter, map[string]string{"etc/systemd/system/sleep.target": "-> /dev/null"}), Pass, []string{"sleep.target is masked"}},
		"sleep.conf":              {filesOf(power, greeter, map[string]string{"etc/systemd/sleep.conf.d/no.conf": "[Sleep]\nAllowSuspend=no\n"}), Pass, []string{"AllowSuspend=no"}},
		"cannot sleep":            {filesOf(greeter, map[string]string{"sys/power/state": "\n"}), Pass, []string{"cannot sleep"}},
		"logind":                  {filesOf(power, map[string]string{"etc/systemd/logind.conf": "[Login]\nIdleAction=suspend\nIdleActionSec=30min\n"}), Warn, []string{"logind does suspend after 30min"}},
		"logind ignores":          {filesOf(power, map[string]string{"etc/systemd/logind.conf": "[Login]\nIdleAction=ignore\n"}), Pass, nil},
		"it has slept":            {filesOf(power, map[string]string{"sys/power/suspend_stats/success": "3\n"}), Warn, []string{"gone to sleep 3 times"}},
		"a desktop":               {filesOf(power, desktop), Info, []string{"cannot be read from outside"}},
		"a desktop that suspends": {filesOf(power, desktop, dconf("etc/dconf/db/local.d/00-power", "sleep-inactive-ac-type='suspend'\n")), Warn, []string{"the desktop suspends"}},
		"inside":                  {filesOf(power, greeter, map[string]string{".dockerenv": ""}), Skip, []string{"by design"}},
		"not recorded":            {nil, Skip, []string{"by design"}},
	} {
		f := onSpark(t, "H10", c.files, Input{})
		expect(t, name, f, c.status, c.words...)
		if c.status == Warn && (len(f.Repairs) != 1 || !strings.Contains(f.Repairs[0].Effect, "unmask")) {
			t.Errorf("%s: repairs %+v", name, f.Repairs)
		}
	}
	lid := map[string]string{"proc/acpi/button/lid/LID0/state": "state: open\n"}
	expect(t, "laptop", onLaptop(t, "H10", filesOf(power, greeter, lid), Input{}), Info, "closing the lid: suspend (the default)")
}

func TestParseApt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string][]string{
		"APT::Periodic::Unattended-Upgrade \"1\";\n":                                            {"apt::periodic::unattended-upgrade": {"1"}},
		"// A::B \"no\";\n# A::B \"no\";\n/* A::B \"no\";\n */ A { B \"x\"; C { D \"y\"; }; };": {"a::b": {"x"}, "a::c::d": {"y"}},
		"U::List { \"a\"; \"b;{\"; // \"c\";\n};\nU::List:: \"d\";":                             {"u::list": {"a", "b;{", "d"}},

		"A \"1\"; A \"2\";":      {"a": {"2"}},
		"A::B \"http://x//y\";":  {"a::b": {"http://x//y"}},
		"A::B \"torn":            {},
		"}}}; A \"1\";":          {},
		"{ A \"1\"; }":           {},
		"A { B \"1\"":            {},
		"/* never ends A \"1\";": {},

		"A::B \"1\" \"2\" \"3\";\nC yes;\nD \"\"": {"c": {"yes"}},
	} {
		out := make(map[string]aptValue)
		parseApt(text, "f", out)
		got := make(map[string][]string)
		for k, v := range out {
			got[k] = v.items
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q:\n%s", text, diff)
		}
	}
}

func TestH11(t *testing.T) {
	t.Parallel()
	on := map[string]string{
		"usr/bin/unattended-upgrade":                                     elf,
		"etc/apt/apt.conf.d/20auto-upgrades":                             "APT::Periodic::Update-Package-Lists \"1\";\nAPT::Periodic::Unattended-Upgrade \"1\";\n",
		"etc/apt/apt.conf.d/50unattended-upgrades":                       "Unattended-Upgrade::Allowed-Origins {\n\t\"Ubuntu:noble-security\";\n};\n//Unattended-Upgrade::Automatic-Reboot \"true\";\n",
		"usr/lib/systemd/system/apt-daily-upgrade.timer":                 "[Timer]\n",
		"etc/systemd/system/timers.target.wants/apt-daily-upgrade.timer": "-> /usr/lib/systemd/system/apt-daily-upgrade.timer",
		"etc/apt/apt.conf.d/50unattended-upgrades.dpkg-old":              "Unattended-Upgrade::Automatic-Reboot \"true\";\n",
		"etc/apt/apt.conf.d/70debconf":                                   "DPkg::Pre-Install-Pkgs {\"/usr/sbin/dpkg-preconfigure --apt || true\";};\n",
	}
	const query = `dpkg-query -W -f=${db:Status-Want} ${Package}\n nvidia-driver-* nvidia-dkms-* linux-image-nvidia* linux-modules-nvidia-* linux-image-generic*`
	packages := func(text string) Input { return Input{Recorded: &Recorded{Commands: map[string]string{query: text}}} }
	install := packages("install nvidia-driver-580-open\ninstall linux-image-nvidia-hwe-24.04\nunknown nvidia-driver-570\ndeinstall linux-image-generic\ninstall a;reboot\n")
	for name, c := range map[string]struct {
		files  map[string]string
		in     Input
		status Status
		words  []string
	}{
		"on":               {on, install, Info, []string{"may replace the driver or the kernel", "apt-mark hold nvidia-driver-580-open linux-image-nvidia-hwe-24.04", "!570", "!reboot"}},
		"held":             {on, packages("hold nvidia-driver-580-open\nhold linux-image-nvidia-hwe-24.04\n"), Pass, []string{"leave the driver and the kernel alone", "held: nvidia-driver-580-open"}},
		"it did it before": {filesOf(on, map[string]string{"var/log/unattended-upgrades/unattended-upgrades.log": "2026-06-02 06:31:00,123 INFO Packages that will be upgraded: curl linux-image-nvidia-hwe-24.04 nvidia-driver-580-open\n2026-07-01 06:30:00,000 INFO Packages that will be upgraded: curl\ntorn INFO Packages that will be upgraded: nvidia-driver-1\n"}), install, Warn, []string{"they replaced linux-image-nvidia-hwe-24.04, nvidia-driver-580-open on 2026-06-02"}},
		"held since":       {filesOf(on, map[string]string{"var/log/unattended-upgrades/unattended-upgrades.log": "2026-06-02 06:31:00,123 INFO Packages that will be upgraded: nvidia-driver-580-open\n"}), packages("hold nvidia-driver-580-open\n"), Pass, nil},
		"one not held":     {on, packages("hold nvidia-driver-580-open\ninstall linux-image-nvidia-hwe-24.04\n"), Info, []string{"training: linux-image-nvidia-hwe-24.04"}},
		"left out":         {filesOf(on, map[string]string{"etc/apt/apt.conf.d/51mine": "Unattended-Upgrade::Package-Blacklist { \"nvidia-\"; \"linux-\"; };\n"}), install, Pass, []string{"leave the driver"}},
		"not asked":        {on, Input{}, Info, []string{"could not be told"}},
		"no driver":        {on, Input{Recorded: &Recorded{Commands: map[string]string{query: "\n"}}}, Pass, []string{"no package of the driver"}},
		"restarts":         {filesOf(on, map[string]string{"etc/apt/apt.conf.d/52r": "Unattended-Upgrade::Automatic-Reboot \"true\";\nUnattended-Upgrade::Automatic-Reboot-Time \"02:00\";\n", "run/reboot-required": ""}), packages("hold nvidia-driver-580-open\n"), Warn, []string{"restart the machine by themselves at 02:00", "already asks", "99sparkrun-no-reboot"}},
		"restarts no more": {filesOf(on, map[string]string{"etc/apt/apt.conf.d/52r": "Unattended-Upgrade::Automatic-Reboot \"true\";\n", "etc/apt/apt.conf.d/99sparkrun-no-reboot": "Unattended-Upgrade::Automatic-Reboot \"false\";\n"}), packages("hold nvidia-driver-580-open\n"), Pass, nil},
		"off":              {filesOf(on, map[string]string{"etc/apt/apt.conf.d/20auto-upgrades": "APT::Periodic::Unattended-Upgrade \"0\";\n"}), install, Pass, []string{"switched off"}},
		"all off":          {filesOf(on, map[string]string{"etc/apt/apt.conf.d/99off": "APT::Periodic::Enable \"0\";\n"}), install, Pass, []string{"switched off"}},
		"masked":           {filesOf(on, map[string]string{"etc/systemd/system/apt-daily-upgrade.timer": "-> /dev/null"}), install, Pass, []string{"is masked"}},
		"not installed":    {map[string]string{"etc/apt/apt.conf.d/20auto-upgrades": "APT::Periodic::Unattended-Upgrade \"1\";\n"}, install, Pass, []string{"not installed"}},
		"needrestart":      {filesOf(on, map[string]string{"etc/needrestart/needrestart.conf": "#$nrconf{restart} = 'l';\n$nrconf{restart} = 'a';\n"}), install, Info, []string{"restarted container engine"}},
		"another system":   {nil, install, Skip, []string{"no apt", "by design"}},
		"inside":           {filesOf(on, map[string]string{".dockerenv": ""}), install, Skip, []string{"by design"}},
	} {
		f := onSpark(t, "H11", c.files, c.in)
		expect(t, name, f, c.status, c.words...)
		for _, r := range f.Repairs {
			if !strings.Contains(r.Effect, "undo") || !r.Root {
				t.Errorf("%s: repair %+v", name, r)
			}
		}
	}
	expect(t, "laptop", onLaptop(t, "H11", on, install), Info, "may replace the driver")
	if !errors.Is(lookUpgrades(t.Context(), view{root: rootOf(copyTree(t, "", on))}).asked, errNotRecorded) {
		t.Error("what was not recorded is not asked of this machine")
	}
}

func TestH12(t *testing.T) {
	t.Parallel()
	base := map[string]string{
		"sys/fs/cgroup/cgroup.controllers":                    "cpu io memory pids\n",
		"sys/fs/cgroup/user.slice/memory.min":                 "0\n",
		"sys/fs/cgroup/system.slice/memory.min":               "0\n",
		"sys/fs/cgroup/system.slice/ssh.service/memory.min":   "0\n",
		"sys/fs/cgroup/system.slice/ssh.service/cgroup.procs": "912\n",
		"proc/912/oom_score_adj":                              "-1000\n",
		"usr/lib/systemd/system/ssh.service":                  "[Service]\n",
	}
	set := func(kv ...string) map[string]string {
		m := filesOf(base)
		for i := 0; i+1 < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	now := time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC)
	ago := func(hours int) time.Time { return now.Add(-time.Duration(hours) * time.Hour) }
	boot := func(hours int) wtmpRecord { return wtmpRecord{utmpBoot, "reboot", ago(hours)} }
	down := func(hours int) wtmpRecord { return wtmpRecord{utmpRunLevel, "shutdown", ago(hours)} }
	past := func(records ...wtmpRecord) string { return wtmpOf(layoutOf(""), records...) }
	for name, c := range map[string]struct {
		files  map[string]string
		status Status
		words  []string
	}{
		"stock":        {base, Info, []string{"no memory is kept for the login", "set-property user.slice MemoryMin=4G", "set-property ssh.service MemoryMin=192M", "oom_score_adj: -1000"}},
		"switched off": {set("var/log/wtmp", past(boot(50), boot(20))), Warn, []string{"no memory is kept for the login, and 1 of the 2 boots of the last 7 days came without a shutdown", "user.slice MemoryMin=4G"}},
		"shut down":    {set("var/log/wtmp", past(boot(50), down(21), boot(20))), Info, nil},
		"long ago":     {set("var/log/wtmp", past(boot(500), boot(400), down(21), boot(20))), Info, nil},
		"kept":         {set("sys/fs/cgroup/user.slice/memory.min", "4294967296\n"), Pass, []string{"4.3 GB stays"}},
		"ssh alone":    {set("sys/fs/cgroup/system.slice/ssh.service/memory.min", "201326592\n"), Warn, []string{"kept for ssh.service alone", "let through 0 bytes", "user.slice MemoryMin=4G"}},
		"ssh is there": {set("sys/fs/cgroup/system.slice/ssh.service/memory.min", "201326592\n", "sys/fs/cgroup/system.slice/memory.min", "201326592\n"), Warn, []string{"!system.slice MemoryMin=192M"}},
		"not in force": {set("etc/systemd/system/user.slice.d/mem.conf", "[Slice]\nMemoryMin=4G\n"), Warn, []string{"not in force", "daemon-reload"}},
		"unreadable":   {set("sys/fs/cgroup/user.slice/memory.min", "what\n"), Info, []string{"could not be read"}},
		"version 1":    {map[string]string{"sys/fs/cgroup/memory/x": ""}, Skip, []string{"by design"}},
		"inside":       {set(".dockerenv", ""), Skip, []string{"by design"}},
	} {
		expect(t, name, onSpark(t, "H12", c.files, Input{Now: now}), c.status, c.words...)
	}
	expect(t, "laptop", onLaptop(t, "H12", base, Input{}), Skip, "by design")
	r := onSpark(t, "H12", base, Input{}).Repairs
	if len(r) != 1 || strings.Contains(r[0].Command, "sudo") || !strings.Contains(r[0].Effect, "undo: systemctl set-property user.slice MemoryMin=0") {
		t.Errorf("%+v", r)
	}
}

func TestH15(t *testing.T) {
	t.Parallel()
	python := "#!/home/ada/.local/share/uv/tools/sparkrun/bin/python\nfrom sparkrun.cli import main\nmain()\n"
	ours := map[string]string{"opt/sparkrun": elf, "proc/self/exe": "-> /opt/sparkrun"}
	path := func(p string) Input { return Input{Getenv: env("PATH", p)} }
	for name, c := range map[string]struct {
		files  map[string]string
		path   string
		status Status
		words  []string
	}{
		"alone":         {filesOf(ours, map[string]string{"usr/bin/sparkrun": "-> /opt/sparkrun"}), "/usr/bin", Pass, nil},
		"none":          {ours, "/usr/bin", Pass, nil},
		"the other one": {filesOf(ours, map[string]string{"usr/bin/sparkrun": python}), "/usr/bin", Warn, []string{"inference launcher of the Python package sparkrun", "ln -s /opt/sparkrun", "sparkrun-train"}},
		"it is first":   {filesOf(ours, map[string]string{"a/sparkrun": python, "b/sparkrun": "-> ../opt/sparkrun"}), "/a:/b", Warn, []string{"/a/sparkrun"}},
		"we are first":  {filesOf(ours, map[string]string{"a/sparkrun": python, "b/sparkrun": "-> ../opt/sparkrun"}), "/b:/a:relative:", Info, []string{"hidden behind it"}},
		"a binary":      {filesOf(ours, map[string]string{"a/sparkrun": elf + "other"}), "/a", Info, []string{"perhaps another version"}},
		"replaced":      {map[string]string{"a/sparkrun": elf, "proc/self/exe": "-> /a/sparkrun (deleted)"}, "/a", Pass, nil},
		"who are we":    {map[string]string{"a/sparkrun": python}, "/a", Info, []string{"cannot be told"}},
	} {
		f := onTree(t, "H15", Generic, executables(t, copyTree(t, "", c.files), "usr/bin/sparkrun", "a/sparkrun"), path(c.path))
		expect(t, name, f, c.status, c.words...)
	}
}
