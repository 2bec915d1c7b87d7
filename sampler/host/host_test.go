package host

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sparkrun/internal/sample"
)

// tree writes a sysfs under a temporary root; keys are paths below sys/class.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		put(t, root, name, text)
	}
	return root
}

func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, "sys/class", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// bare are the readings that only a power firmware's driver or cpufreq gives.
var bare = []string{cpuMHz, energySys, capSoC, capSys}

func TestReadings(t *testing.T) {
	t.Parallel()
	unknown := sample.Num{}
	for name, c := range map[string]struct {
		files             map[string]string
		zone, nvme, power sample.Num
		absent            []string
	}{
		"spark with spbm": {
			map[string]string{
				"thermal/thermal_zone0/type": "acpitz", "thermal/thermal_zone0/temp": "76100",
				"thermal/thermal_zone1/type": "acpitz", "thermal/thermal_zone1/temp": "86400",
				"thermal/thermal_zone2/type": "acpitz", "thermal/thermal_zone2/temp": "-273200",
				"hwmon/hwmon0/name": "acpitz", "hwmon/hwmon0/temp1_input": "76100",
				"hwmon/hwmon1/name": "nvme", "hwmon/hwmon1/temp1_input": "61850", "hwmon/hwmon1/temp2_input": "70850",
				"hwmon/hwmon2/name": "mt7925_phy0", "hwmon/hwmon2/temp1_input": "99000",
				"hwmon/hwmon3/name": "spbm", "hwmon/hwmon3/power2_label": "gpu", "hwmon/hwmon3/power2_input": "103000000",
				"hwmon/hwmon3/power10_label": "sys_total", "hwmon/hwmon3/power10_input": "168500000",
			},
			sample.Known(86.4), sample.Known(61.85), sample.Known(168.5), bare,
		},
		"the drive does not hide the zones": {
			map[string]string{
				"thermal/thermal_zone0/type": "x86_pkg_temp", "thermal/thermal_zone0/temp": "55000",
				"hwmon/hwmon1/name": "nvme", "hwmon/hwmon1/temp1_input": "40000",
			},
			sample.Known(55), sample.Known(40), unknown,
			slices.Concat(bare, []string{powerSys}),
		},
		"firmware zones before others": {
			map[string]string{
				"thermal/thermal_zone0/type": "iwlwifi_1", "thermal/thermal_zone0/temp": "90000",
				"thermal/thermal_zone1/type": "acpitz", "thermal/thermal_zone1/temp": "50000",
			},
			sample.Known(50), unknown, unknown,
			slices.Concat(bare, []string{powerSys, nvme}),
		},
		"a dead firmware zone does not hide others": {
			map[string]string{
				"thermal/thermal_zone0/type": "x86_pkg_temp", "thermal/thermal_zone0/temp": "61000",
				"thermal/thermal_zone1/type": "acpitz", "thermal/thermal_zone1/temp": "-274000",
			},
			sample.Known(61), unknown, unknown,
			slices.Concat(bare, []string{powerSys, nvme}),
		},
		"no zones but a processor chip": {
			map[string]string{
				"hwmon/hwmon0/name": "k10temp", "hwmon/hwmon0/temp1_input": "47125", "hwmon/hwmon0/temp3_input": "49000",
			},
			sample.Known(49), unknown, unknown,
			slices.Concat(bare, []string{powerSys, nvme}),
		},
		"spbm says it has no value": {
			map[string]string{
				"hwmon/hwmon3/name": "spbm", "hwmon/hwmon3/power1_label": "sys_total", "hwmon/hwmon3/power1_input": "4294967295",
			},
			unknown, unknown, unknown,
			slices.Concat(bare, []string{nvme, zoneMax}),
		},
		"a machine without sensors": {nil, unknown, unknown, unknown, slices.Concat(bare, []string{powerSys, nvme, zoneMax})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Find(tree(t, c.files))
			var g sample.GPU
			s.Read(&g)
			if g.ZoneMaxC != c.zone || g.NVMeC != c.nvme || g.PowerSys != c.power {
				t.Errorf("zone %+v nvme %+v power %+v, want %+v %+v %+v", g.ZoneMaxC, g.NVMeC, g.PowerSys, c.zone, c.nvme, c.power)
			}
			if got := s.Absent(); !slices.Equal(got, c.absent) {
				t.Errorf("absent %v, want %v", got, c.absent)
			}
		})
	}
}

func TestASensorThatMovesIsFoundAgain(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"hwmon/hwmon1/name": "nvme", "hwmon/hwmon1/temp1_input": "40000"})
	s := Find(root)
	if err := os.RemoveAll(filepath.Join(root, "sys/class/hwmon/hwmon1")); err != nil {
		t.Fatal(err)
	}
	put(t, root, "hwmon/hwmon4/name", "nvme")
	put(t, root, "hwmon/hwmon4/temp1_input", "41000")
	var lost, found sample.GPU
	s.Read(&lost)
	for range rescanLost {
		s.Read(&found)
	}
	if lost.NVMeC.OK || found.NVMeC != sample.Known(41) {
		t.Errorf("lost %+v, found %+v", lost.NVMeC, found.NVMeC)
	}
}

// Chips that change places on a machine that lacks nothing: whatever is there, the values
// have the right names after a while.
func TestChipsThatChangePlaces(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"hwmon/hwmon1/name": "nvme", "hwmon/hwmon1/temp1_input": "40000",
		"hwmon/hwmon2/name": "mlx5", "hwmon/hwmon2/temp1_input": "90000",
		"thermal/thermal_zone0/type": "acpitz", "thermal/thermal_zone0/temp": "50000",
		"hwmon/hwmon3/name":         "spbm",
		"hwmon/hwmon3/power1_label": "sys_total", "hwmon/hwmon3/power1_input": "168500000",
		"hwmon/hwmon3/power2_label": "pl1", "hwmon/hwmon3/power2_input": "100000000", "hwmon/hwmon3/power2_cap": "140000000",
		"hwmon/hwmon3/power3_label": "syspl1", "hwmon/hwmon3/power3_input": "100000000", "hwmon/hwmon3/power3_cap": "231000000",
		"hwmon/hwmon3/energy1_label": "pkg", "hwmon/hwmon3/energy1_input": "1234567000",
	})
	put(t, root, "../devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "2000000")
	put(t, root, "../devices/system/cpu/cpufreq/policy0/affected_cpus", "0 1")
	s := Find(root)
	if lacks := s.Absent(); len(lacks) > 0 {
		t.Fatalf("this machine is to lack nothing, but %v", lacks)
	}
	put(t, root, "hwmon/hwmon1/name", "mlx5")
	put(t, root, "hwmon/hwmon1/temp1_input", "91000")
	put(t, root, "hwmon/hwmon2/name", "nvme")
	put(t, root, "hwmon/hwmon2/temp1_input", "41000")
	var g sample.GPU
	for range rescanAll + 1 {
		g = sample.GPU{}
		s.Read(&g)
	}
	if g.NVMeC != sample.Known(41) {
		t.Errorf("nvme = %+v after %d readings", g.NVMeC, rescanAll)
	}
}

func TestASensorThatComesLateIsFound(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := Find(root)
	put(t, root, "thermal/thermal_zone0/type", "acpitz")
	put(t, root, "thermal/thermal_zone0/temp", "50000")
	var g sample.GPU
	for range rescan {
		s.Read(&g)
	}
	if g.ZoneMaxC != sample.Known(50) {
		t.Errorf("zone = %+v after %d readings", g.ZoneMaxC, rescan)
	}
}
