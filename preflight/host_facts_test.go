package preflight

import (
	"encoding/binary"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
)

func TestH2Identity(t *testing.T) {
	t.Parallel()
	trees := labs{}
	device := func(change func(*sample.Device)) ask {
		d := sample.Device{Source: "nvml", Name: "NVIDIA GB10", DriverVersion: "580.95.05", CUDADriver: 13000, CapMajor: 12, CapMinor: 1, Count: 1}
		change(&d)
		return answers(d, sample.GPU{TempC: sample.Known(40)})
	}
	for _, c := range []struct {
		name, tree  string
		files       map[string]string
		device      ask
		machine     string
		status      Status
		detail, fix string
	}{
		{"a Spark", "spark", nil, gb10, "aarch64", Pass, "aarch64, DGX Spark, DGX OS 7.5.0, NVIDIA GB10, driver 580.95.05, CUDA 13.0, capability (12, 1)", ""},
		{"an OEM box", "spark", map[string]string{"etc/dgx-release": "", "sys/class/dmi/id/product_name": "GX10\n"}, gb10, "aarch64", Pass, "aarch64, GX10, NVIDIA GB10", ""},
		{"an old driver", "spark", nil, device(func(d *sample.Device) { d.CUDADriver, d.DriverVersion = 12080, "570.1" }), "aarch64", Warn, "driver 570.1 supports CUDA 12.8, not 13: this invalidates every check below", "from apt"},
		{"a new driver", "spark", nil, device(func(d *sample.Device) { d.CUDADriver = 14000 }), "aarch64", Warn, "supports CUDA 14.0, not 13", ""},
		{"another capability", "spark", nil, device(func(d *sample.Device) { d.CapMinor = 0 }), "aarch64", Warn, "capability (12, 0), not (12, 1)", "compute_cap"},
		{"an x86 program", "spark", nil, gb10, "x86_64", Warn, "this machine is x86_64, not aarch64", "uname -m"},
		{"two at once", "spark", nil, device(func(d *sample.Device) { d.CapMinor, d.CUDADriver = 0, 12080 }), "x86_64", Warn, "x86_64, not aarch64; driver 580.95.05 supports CUDA 12.8, not 13; the GPU has capability (12, 0)", ""},
		// Unknown is no mismatch.
		{"nothing but the name", "spark", nil, device(func(d *sample.Device) { *d = sample.Device{Source: "nvml", Name: "NVIDIA GB10", Count: 1} }), "", Pass, "NVIDIA GB10", ""},
		{"no answer of the driver", "spark", nil, noLibrary, "aarch64", Info, "told by PCI and DMI only", ""},
		{"another GPU", "laptop", nil, rtx(12040), "x86_64", Info, "not a DGX Spark: x86_64", ""},
		{"no GPU", "laptop", nil, noLibrary, "x86_64", Info, "no NVIDIA GPU", ""},
		{"the maker's word against the GPU's", "laptop", map[string]string{"etc/dgx-release": "DGX_NAME=\"DGX Spark\"\n"}, rtx(12040), "aarch64", Warn, "the maker says DGX Spark, yet the GPU is", ""},
		{"a torn release file", "spark", map[string]string{"etc/dgx-release": "DGX_NAME=\"DGX Sp\x00\xff"}, gb10, "aarch64", Pass, "aarch64, DGX Sp?", ""},
	} {
		r := Run(t.Context(), Input{Root: trees.of(t, c.tree).with(c.files), Device: c.device, Machine: c.machine})
		check1(t, c.name, find(t, r, "H2"), c.status, c.detail, c.fix)
	}
	f := find(t, Run(t.Context(), Input{Root: "testdata/spark", Device: gb10, Machine: "aarch64"}), "H2")
	if all := strings.Join(f.Evidence, "\n"); !strings.Contains(all, "must print: True 13.0") {
		t.Errorf("the runbook's verification is missing:\n%s", all)
	}
}

func TestH8Kernel(t *testing.T) {
	t.Parallel()
	trees := labs{}
	const running = "6.17.0-1014-nvidia"
	release := func(r string) map[string]string { return map[string]string{"proc/sys/kernel/osrelease": r + "\n"} }
	for _, c := range []struct {
		name        string
		tree        string
		files       map[string]string
		remove      []string
		status      Status
		detail, fix string
	}{
		{"a Spark", "spark", nil, nil, Pass, "kernel " + running, ""},
		{"known to panic", "spark", release("6.17.0-1008-nvidia"), nil, Warn, "kernel 6.17.0-1008-nvidia has been seen to panic", "full-upgrade"},
		{"known to hang", "spark", release("7.0.0-1019-nvidia"), nil, Warn, "hangs GB10 for good", "6.17 kernel"},
		{"the same kernel in a container", "spark-ngc", release("6.17.0-1008-nvidia"), nil, Warn, "has been seen to panic", ""},
		// 6.17.0-10080 is another one.
		{"a number that begins alike", "spark", release("6.17.0-10080-nvidia"), []string{"boot", "lib/modules"}, Pass, "kernel 6.17.0-10080-nvidia", ""},
		{"on other machines it is not known", "laptop", release("6.17.0-1008-nvidia"), []string{"boot"}, Pass, "kernel 6.17.0-1008-nvidia", ""},
		{"a newer one is installed", "spark", map[string]string{"boot/vmlinuz-6.17.0-1031-nvidia": ""}, nil, Info, "6.17.0-1031-nvidia is installed: it starts at the next boot", ""},
		{"an older one is installed", "spark", map[string]string{"boot/vmlinuz-6.17.0-998-nvidia": ""}, nil, Pass, "kernel " + running, ""},
		{"one of another flavour is installed", "spark", map[string]string{"boot/vmlinuz-6.18.0-2000-nvidia-64k": ""}, nil, Pass, "kernel " + running, ""},
		{"the system asks for a reboot", "spark", map[string]string{"run/reboot-required": "*** System restart required ***\n", "run/reboot-required.pkgs": "libc6\nlibc6\n"}, nil, Info, "asks for a reboot", ""},
		{"an upgrade pulled the modules away", "spark", map[string]string{"lib/modules/6.17.0-1031-nvidia/modules.dep": "", "boot/vmlinuz-6.17.0-1031-nvidia": ""}, []string{"lib/modules/" + running}, Warn, "its modules are no longer there", "sudo reboot"},
		// A kernel without modules, as in a small virtual machine.
		{"no modules at all", "spark", nil, []string{"lib/modules"}, Pass, "kernel " + running, ""},
		{"no modules on a machine without GPU", "laptop", nil, []string{"lib/modules/6.1.0-37-amd64"}, Pass, "kernel 6.1.0-37-amd64", ""},
		{"in a container the host's files are not seen", "spark-ngc", nil, nil, Pass, "kernel " + running + ", of the host", ""},
		{"not readable", "spark", nil, []string{"proc/sys/kernel/osrelease"}, Skip, "cannot be told", ""},
	} {
		dir := trees.of(t, c.tree).with(c.files, c.remove...)
		device := gb10
		if c.tree == "laptop" {
			device = noLibrary
		}
		r := Run(t.Context(), Input{Root: dir, Device: device})
		check1(t, c.name, find(t, r, "H8"), c.status, c.detail, c.fix)
		if r.Verdict == Blocked {
			t.Errorf("%s: blocked", c.name)
		}
	}
}

func TestReleasesInOrder(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"6.8.0-45-generic", "6.17.0-3-generic"}, {"6.17.0-1008-nvidia", "6.17.0-1014-nvidia"}, {"6.17.0-998-nvidia", "6.17.0-1008-nvidia"}, {"6.17.0-rc3", "6.18.0"}, {"", "1"}} {
		if compareReleases(c[0], c[1]) >= 0 || compareReleases(c[1], c[0]) <= 0 {
			t.Errorf("%q is not before %q", c[0], c[1])
		}
	}
	for release, want := range map[string]string{"6.17.0-1014-nvidia": "nvidia", "6.17.0-1014-nvidia-64k": "nvidia-64k", "6.17.0": "", "": "", "x": ""} {
		if got := flavour(release); got != want {
			t.Errorf("flavour of %q: %q", release, got)
		}
	}
}

func TestH13Clock(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC)
	trees := labs{}
	const group = "sys/fs/cgroup/system.slice/"
	for _, c := range []struct {
		name, tree  string
		files       map[string]string
		remove      []string
		now         time.Time
		status      Status
		detail, fix string
	}{
		{"timesyncd", "spark", nil, nil, day, Pass, "synchronised by systemd-timesyncd", ""},
		{"chrony", "spark", map[string]string{group + "chrony.service/cgroup.procs": "1\n"}, []string{"run"}, day, Pass, "set by chrony", ""},
		{"the old kind of control groups", "spark", map[string]string{"sys/fs/cgroup/systemd/system.slice/ntpsec.service/tasks": "1\n"}, []string{"run", "sys/fs/cgroup/system.slice"}, day, Pass, "set by ntpsec", ""},
		{"no server answers", "spark", map[string]string{group + "systemd-timesyncd.service/cgroup.procs": "1\n"}, []string{"run"}, day, Warn, "no time server has answered systemd-timesyncd", "timedatectl set-ntp true"},
		{"just started", "spark", map[string]string{group + "systemd-timesyncd.service/cgroup.procs": "1\n", "proc/uptime": "40.00 1\n"}, []string{"run"}, day, Pass, "no time server has answered yet", ""},
		{"nothing sets it", "spark", map[string]string{group + "ssh.service/cgroup.procs": "1\n"}, []string{"run", group + "systemd-timesyncd.service"}, day, Warn, "no service that sets the clock", "timedatectl"},
		{"nothing sets a laptop's", "laptop", map[string]string{group + "ssh.service/cgroup.procs": "1\n"}, []string{"run"}, day, Info, "no service that sets the clock", ""},
		{"no control groups to tell by", "spark", nil, []string{"run", "sys/fs"}, day, Skip, "cannot be told", ""},
		{"inside a container", "spark-ngc", nil, nil, day, Skip, "inside a container", ""},
		{"the battery is flat", "spark", nil, nil, time.Date(1970, 1, 1, 0, 5, 0, 0, time.UTC), Warn, "the clock says 1970-01-01", "timedatectl"},
		{"flat in a container too", "spark-ngc", nil, nil, time.Date(1970, 1, 1, 0, 5, 0, 0, time.UTC), Warn, "the clock says 1970-01-01", "timedatectl"},
		{"far in the future", "spark", nil, nil, time.Date(2170, 1, 1, 0, 0, 0, 0, time.UTC), Warn, "the clock says 2170", ""},
	} {
		dir := trees.of(t, c.tree).with(c.files, c.remove...)
		device := gb10
		if c.tree == "laptop" {
			device = noLibrary
		}
		f := find(t, Run(t.Context(), Input{Root: dir, Device: device, Now: c.now}), "H13")
		check1(t, c.name, f, c.status, c.detail, c.fix)
		if f.Status == Skip && !f.ByDesign {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

// wtmpOf writes records as the C library of a machine does; each is a type, a user and a
// time.
func wtmpOf(l utmpLayout, records ...wtmpRecord) string {
	var out []byte
	for _, r := range records {
		b := make([]byte, l.size)
		binary.LittleEndian.PutUint16(b, r.kind)
		copy(b[utmpUserAt:], r.user)
		if l.wide {
			binary.LittleEndian.PutUint64(b[l.timeAt:], uint64(r.at.Unix()))
		} else {
			binary.LittleEndian.PutUint32(b[l.timeAt:], uint32(r.at.Unix()))
		}
		out = append(out, b...)
	}
	return string(out)
}

type wtmpRecord struct {
	kind uint16
	user string
	at   time.Time
}

func TestH14LastBoot(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC)
	trees := labs{}
	started := now.Add(-3 * time.Hour)
	stat := "cpu 1 2 3\nbtime " + decimal(started.Unix()) + "\n"
	boot := func(ago time.Duration) wtmpRecord { return wtmpRecord{utmpBoot, "reboot", now.Add(-ago)} }
	down := func(ago time.Duration) wtmpRecord { return wtmpRecord{utmpRunLevel, "shutdown", now.Add(-ago)} }
	level := func(ago time.Duration) wtmpRecord { return wtmpRecord{utmpRunLevel, "runlevel", now.Add(-ago)} }
	login := func(ago time.Duration) wtmpRecord { return wtmpRecord{7, "ada", now.Add(-ago)} }
	const h, day = time.Hour, 24 * time.Hour
	for _, c := range []struct {
		name    string
		tree    string
		machine string
		stat    string
		records []wtmpRecord
		files   map[string]string
		status  Status
		detail  string
		fix     string
	}{
		{"in order", "spark", "aarch64", stat, []wtmpRecord{boot(4 * day), level(4 * day), login(5 * h), down(3*h + time.Minute), boot(3 * h), level(3 * h)}, nil, Pass, "up for 3.0 h, after a shutdown in order", ""},
		{"without a shutdown", "spark", "aarch64", stat, []wtmpRecord{boot(4 * day), level(4 * day), login(5 * h), boot(3 * h), level(3 * h)}, nil, Warn, "ended without a shutdown: a power cut, a reset or a freeze", "why latest"},
		{"the same on another kind of machine", "spark", "x86_64", stat, []wtmpRecord{boot(4 * day), boot(3 * h)}, nil, Warn, "ended without a shutdown", ""},
		{"a laptop whose battery ran out", "laptop", "x86_64", stat, []wtmpRecord{boot(4 * day), boot(3 * h)}, nil, Info, "ended without a shutdown", ""},
		{"days ago it is no news", "spark", "aarch64", "btime " + decimal(now.Add(-4*day).Unix()) + "\n", []wtmpRecord{boot(9 * day), boot(4 * day)}, nil, Info, "ended without a shutdown", ""},
		{"again and again", "spark", "aarch64", stat, []wtmpRecord{boot(20 * day), boot(4 * day), boot(2 * day), down(3*h + time.Minute), boot(3 * h)}, nil, Warn, "2 of the 3 boots of the last 7 days came without a shutdown", "partnerdiag"},
		{"a file that begins with this boot", "spark", "aarch64", stat, []wtmpRecord{boot(3 * h), login(2 * h)}, nil, Pass, "is not in wtmp any more", ""},
		{"nobody writes wtmp", "spark", "aarch64", stat, nil, nil, Skip, "is not noted on this system", ""},
		{"nobody has written it for long", "spark", "aarch64", stat, []wtmpRecord{boot(90 * day), boot(80 * day)}, nil, Skip, "is not noted on this system", ""},
		{"the kernel left word", "spark", "aarch64", stat, []wtmpRecord{boot(4 * day), boot(3 * h)}, map[string]string{"sys/fs/pstore/dmesg-efi-171": "panic"}, Warn, "there is a record of a kernel crash", "/sys/fs/pstore/dmesg-efi-171"},
		{"a program's crash is none of the kernel", "spark", "aarch64", stat, []wtmpRecord{down(4 * h), boot(3 * h)}, map[string]string{"var/crash/_usr_bin_gnome-shell.1000.crash": "x"}, Pass, "after a shutdown in order", ""},
	} {
		files := map[string]string{"proc/stat": c.stat}
		maps.Copy(files, c.files)
		if c.records != nil {
			files["var/log/wtmp"] = wtmpOf(layoutOf(c.machine), c.records...)
		}
		dir := trees.of(t, c.tree).with(files, "var/log/wtmp")
		device := gb10
		if c.tree == "laptop" {
			device = noLibrary
		}
		f := find(t, Run(t.Context(), Input{Root: dir, Device: device, Machine: c.machine, Now: now}), "H14")
		check1(t, c.name, f, c.status, c.detail, c.fix)
		if f.Status == Skip && !f.ByDesign {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// A file that is torn, of another machine's layout, enormous or something else entirely.
func TestH14SurvivesAnyWtmp(t *testing.T) {
	t.Parallel()
	spark := newLab(t, "spark")
	l := layoutOf("aarch64")
	whole := wtmpOf(l, wtmpRecord{utmpBoot, "reboot", time.Unix(1783900000, 0)}, wtmpRecord{utmpBoot, "reboot", time.Unix(1783929600, 0)})
	for name, text := range map[string]string{
		"torn":           whole[:len(whole)-7],
		"one byte":       "x",
		"text":           strings.Repeat("not a record at all\n", 100),
		"all ones":       strings.Repeat("\xff", 4000),
		"another layout": wtmpOf(layoutOf("x86_64"), wtmpRecord{utmpBoot, "reboot", time.Unix(1783929600, 0)}),
		"long":           strings.Repeat(whole, 1000),
	} {
		f := find(t, Run(t.Context(), Input{Root: spark.with(map[string]string{"var/log/wtmp": text}), Device: gb10, Machine: "aarch64", Now: time.Unix(1784059200, 0)}), "H14")
		if f.Detail == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	dir := spark.with(map[string]string{"var/log/wtmp/x": "a folder in the way"}, "var/log/wtmp")
	if f := find(t, Run(t.Context(), Input{Root: dir, Device: gb10, Machine: "aarch64"}), "H14"); f.Status != Skip || !f.ByDesign {
		t.Errorf("a folder: %+v", f)
	}
}
