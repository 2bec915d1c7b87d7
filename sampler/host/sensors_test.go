package host

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/sample"
)

// spark is the /sys and /proc of a machine under training with every driver
// there can be. The zones are those seen just before a power-off.
func spark(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	zones(root, t, "91200", "79300", "82200", "80300", "89800", "91200", "81800")
	put(t, root, "thermal/thermal_zone0/trip_point_0_type", "passive")
	put(t, root, "thermal/thermal_zone0/trip_point_0_temp", "95000")
	put(t, root, "thermal/thermal_zone0/trip_point_1_type", "critical")
	put(t, root, "thermal/thermal_zone0/trip_point_1_temp", "104000")
	put(t, root, "thermal/thermal_zone1/trip_point_0_type", "critical")
	put(t, root, "thermal/thermal_zone1/trip_point_0_temp", "-273200")
	for name, text := range map[string]string{
		"hwmon0/name": "acpitz", "hwmon0/temp1_input": "91200",
		"hwmon2/name":        "nvme",
		"hwmon2/temp1_label": "Composite", "hwmon2/temp1_input": "61850", "hwmon2/temp1_crit": "84850", "hwmon2/temp1_max": "82850",
		"hwmon2/temp2_label": "Sensor 1", "hwmon2/temp2_input": "70850", "hwmon2/temp2_crit": "65261850",
		"hwmon10/name": "mlx5", "hwmon10/temp1_label": "asic", "hwmon10/temp1_input": "55000", "hwmon10/temp1_crit": "105000",
		"hwmon9/name": "mt7925_phy0", "hwmon9/temp1_input": "48000",
		"hwmon4/name":        "spbm",
		"hwmon4/temp1_label": "gpu", "hwmon4/temp1_input": "31000",
		"hwmon4/energy1_label": "pkg", "hwmon4/energy1_input": "1234567000",
		"hwmon4/energy4_label": "gpu", "hwmon4/energy4_input": "99000",
	} {
		put(t, root, "hwmon/"+name, text)
	}
	for i, c := range []struct{ label, input, cap string }{
		{"sys_total", "170800000", ""},
		{"gpu", "91700000", ""},
		{"pl1", "139700000", "140000000"},
		{"dla", "4294967295", ""},
		{"pl2", "140100000", "0"},
		{"", "1000", ""},
		{"ewma_pl1", "4294967295000", ""},
		{"cpu_e", "4000000", ""},
		{"vcore", "9000000", ""},
		{"syspl1", "153000000", "231000000"},
	} {
		base := fmt.Sprintf("hwmon/hwmon4/power%d_", i+1)
		put(t, root, base+"input", c.input)
		if c.label != "" {
			put(t, root, base+"label", c.label)
		}
		if c.cap != "" {
			put(t, root, base+"cap", c.cap)
		}
	}
	return root
}

func TestEverySensorIsRead(t *testing.T) {
	t.Parallel()
	s := Find(spark(t))
	var g sample.GPU
	s.Read(&g)
	known := sample.Known
	var want []sample.Temperature
	for i, c := range []float64{91.2, 79.3, 82.2, 80.3, 89.8, 91.2, 81.8} {
		want = append(want, sample.Temperature{Name: fmt.Sprintf("thermal_zone%d", i), C: known(c)})
	}
	want[0].CritC = known(104)
	if diff := cmp.Diff(want, g.Zones); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]sample.Temperature{
		{Name: "mlx5", Label: "asic", C: known(55), CritC: known(105)},
		{Name: "mt7925_phy0", Label: "temp1", C: known(48)},
		{Name: "nvme", Label: "Composite", C: known(61.85), CritC: known(84.85)},
		{Name: "nvme", Label: "Sensor 1", C: known(70.85)},
	}, g.Chips); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]sample.Power{
		{Label: "sys_total", W: known(170.8)},
		{Label: "gpu", W: known(91.7)},
		{Label: "pl1", W: known(139.7), CapW: known(140)},
		{Label: "dla"},
		{Label: "pl2", W: known(140.1)},
		{Label: "ewma_pl1"},
		{Label: "cpu_e", W: known(4)},
		{Label: "vcore", W: known(9)},
		{Label: "syspl1", W: known(153), CapW: known(231)},
	}, g.Powers); diff != "" {
		t.Error(diff)
	}
	if g.ZoneMaxC != known(91.2) || g.NVMeC != known(61.85) || g.PowerSys != known(170.8) ||
		g.CapSoCW != known(140) || g.CapSysW != known(231) || g.EnergySoCJ != known(1234.567) || len(g.Failed) != 0 {
		t.Errorf("%+v", g)
	}
	if got := s.Absent(); !cmp.Equal(got, []string{cpuMHz}) {
		t.Errorf("absent %v", got)
	}
}

func TestAChipThatComesAndGoes(t *testing.T) {
	t.Parallel()
	root := spark(t)
	s := Find(root)
	if err := os.RemoveAll(filepath.Join(root, "sys/class/hwmon/hwmon9")); err != nil {
		t.Fatal(err)
	}
	var g sample.GPU
	s.Read(&g)
	if len(g.Chips) != 4 || g.Chips[1].C.OK {
		t.Errorf("a chip that has gone: %+v", g.Chips)
	}
	for range rescan {
		g = sample.GPU{}
		s.Read(&g)
	}
	if len(g.Chips) != 3 || len(g.Failed) != 0 {
		t.Errorf("after looking again: %+v %v", g.Chips, g.Failed)
	}
}

func TestClockOfTheProcessors(t *testing.T) {
	t.Parallel()
	cpufreq := map[string]string{
		"sys/devices/system/cpu/cpufreq/policy0/affected_cpus":     "0 1 2",
		"sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq":  "3000000",
		"sys/devices/system/cpu/cpufreq/policy10/affected_cpus":    "10",
		"sys/devices/system/cpu/cpufreq/policy10/scaling_cur_freq": "1000000",
		"sys/devices/system/cpu/cpufreq/policy19/affected_cpus":    "",
	}
	broken := map[string]string{"sys/devices/system/cpu/cpufreq/policy10/scaling_cur_freq": "<unknown>"}
	for name, c := range map[string]struct {
		files  []map[string]string
		want   sample.Num
		absent bool
	}{
		"cpufreq":                 {[]map[string]string{cpufreq}, sample.Known(2500), false},
		"one says nothing":        {[]map[string]string{cpufreq, broken}, sample.Num{}, false},
		"a machine without both":  {nil, sample.Num{}, true},
		"cpuinfo":                 {[]map[string]string{{"proc/cpuinfo": "processor\t: 0\ncpu MHz\t\t: 2400.000\n\nprocessor\t: 1\ncpu MHz\t\t: 2800.500\n"}}, sample.Known(2600.25), false},
		"cpuinfo of an ARM":       {[]map[string]string{{"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 2000.00\n"}}, sample.Num{}, true},
		"cpuinfo without figures": {[]map[string]string{{"proc/cpuinfo": "cpu MHz\t\t: \n"}}, sample.Num{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for _, files := range c.files {
				for path, text := range files {
					put(t, root, "../../"+path, text)
				}
			}
			s := Find(root)
			var g sample.GPU
			s.Read(&g)
			if g.CPUMHz != c.want {
				t.Errorf("%+v, want %+v", g.CPUMHz, c.want)
			}
			if absent := cmp.Equal(s.Absent()[0], cpuMHz); absent != c.absent {
				t.Errorf("absent: %v", s.Absent())
			}
		})
	}
}

// On this machine's own /proc and /sys the files stay open, give new values and
// cost no reading.
func TestFilesOfTheKernelStayOpen(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/proc/uptime", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		f := newFile(path)
		first, err := f.read()
		if err != nil || len(first) == 0 || f.fd < 0 {
			t.Fatalf("%s: %q %v, descriptor %d", path, first, err, f.fd)
		}
		was, fd := string(first), f.fd
		if path == "/proc/uptime" {
			poll(t, "a new value", func() bool { b, err := f.read(); return err == nil && string(b) != was })
		} else if b, err := f.read(); err != nil || string(b) != was {
			t.Errorf("%s: %q, then %q (%v)", path, was, b, err)
		}
		if f.fd != fd {
			t.Errorf("%s was opened anew", path)
		}
		f.close()
	}
	plain := newFile(filepath.Join(t.TempDir(), "plain"))
	if _, err := plain.read(); err == nil {
		t.Error("a file that is not there was read")
	}
	if err := os.WriteFile(plain.path, []byte(" 42 \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, ok := plain.integer(); !ok || n != 42 || plain.fd >= 0 {
		t.Errorf("%d %v, descriptor %d", n, ok, plain.fd)
	}
}
