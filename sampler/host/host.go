// Package host reads the sensors of the machine itself: temperatures from
// /sys/class/thermal and from /sys/class/hwmon, and the power of the whole
// machine where a driver gives it. Both trees are read, since either alone
// misses something: on a Spark the zones are the hottest figures there are and
// the drive's temperature is in hwmon only.
package host

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"sparkrun/internal/sample"
)

// The names of the readings, as in telemetry.csv.
const (
	zoneMax  = "temp_zone_max_c"
	nvme     = "temp_nvme_c"
	powerSys = "power_sys_w"
)

// rescan is after how many readings a machine that lacks something is looked
// at again: a driver may be loaded late, and hwmon numbers may move.
const rescan = 60

// rescanLost is after how many readings something that was there and no longer
// answers is looked for.
const rescanLost = 10

// Sensors knows where a machine's sensors are. It belongs to one goroutine:
// a read of sysfs may block for as long as the device behind it likes.
type Sensors struct {
	root  string
	reads int
	// scanned is the count of reads at the last scan.
	scanned int

	// zones hold the files of the best kind of temperature there is.
	zones, nvme []string
	sysPower    string
}

// Find looks for the sensors under root ("/" for this machine).
func Find(root string) *Sensors {
	s := &Sensors{root: root}
	s.scan()
	return s
}

// Absent names the readings this machine does not have.
func (s *Sensors) Absent() []string {
	var names []string
	if len(s.nvme) == 0 {
		names = append(names, nvme)
	}
	if len(s.zones) == 0 {
		names = append(names, zoneMax)
	}
	if s.sysPower == "" {
		names = append(names, powerSys)
	}
	slices.Sort(names)
	return names
}

// Read fills the host readings of g. A file that has vanished or makes no sense
// leaves its reading unknown.
func (s *Sensors) Read(g *sample.GPU) {
	s.reads++
	if s.reads >= s.scanned+rescan && len(s.Absent()) > 0 {
		s.scan()
	}
	g.ZoneMaxC = hottest(s.zones)
	g.NVMeC = hottest(s.nvme)
	g.PowerSys = watts(s.sysPower)
	lost := !g.ZoneMaxC.OK && len(s.zones) > 0 || !g.NVMeC.OK && len(s.nvme) > 0 || !g.PowerSys.OK && s.sysPower != ""
	if lost && s.reads >= s.scanned+rescanLost {
		s.scan()
	}
}

// cpuChips are the hwmon drivers of processors, for machines without zones.
var cpuChips = []string{"acpitz", "coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "scpi_sensors"}

func (s *Sensors) scan() {
	s.scanned = s.reads
	var acpi, other, chips []string
	for _, dir := range s.glob("sys/class/thermal/thermal_zone*") {
		temp := filepath.Join(dir, "temp")
		if _, ok := celsius(temp); !ok {
			continue
		}
		// On a Spark all seven zones are of this type; elsewhere zones also
		// describe batteries and radios.
		if word(filepath.Join(dir, "type")) == "acpitz" {
			acpi = append(acpi, temp)
		} else {
			other = append(other, temp)
		}
	}
	s.nvme, s.sysPower = nil, ""
	for _, dir := range s.glob("sys/class/hwmon/hwmon*") {
		switch name := word(filepath.Join(dir, "name")); {
		case name == "nvme":
			// temp1 is the composite temperature; the others are single
			// sensors of the drive.
			if temp := filepath.Join(dir, "temp1_input"); readable(temp) {
				s.nvme = append(s.nvme, temp)
			}
		case name == "spbm":
			if p := labelled(dir, "power", "sys_total"); p != "" && s.sysPower == "" {
				s.sysPower = p
			}
		case slices.Contains(cpuChips, name):
			inputs, _ := filepath.Glob(filepath.Join(dir, "temp*_input"))
			chips = append(chips, inputs...)
		}
	}
	s.zones = acpi
	for _, next := range [][]string{other, chips} {
		if len(s.zones) == 0 {
			s.zones = next
		}
	}
}

func (s *Sensors) glob(pattern string) []string {
	// The only error is a bad pattern.
	dirs, _ := filepath.Glob(filepath.Join(s.root, pattern))
	return dirs
}

// labelled finds the input whose label is want. The number in the file name
// says nothing: it moves between boots and versions.
func labelled(dir, kind, want string) string {
	labels, _ := filepath.Glob(filepath.Join(dir, kind+"*_label"))
	for _, l := range labels {
		if word(l) == want {
			return l[:len(l)-len("label")] + "input"
		}
	}
	return ""
}

func hottest(files []string) sample.Num {
	var max sample.Num
	for _, f := range files {
		if c, ok := celsius(f); ok && (!max.OK || c > max.V) {
			max = sample.Known(c)
		}
	}
	return max
}

// celsius reads millidegrees. Zones of firmware that has no sensor answer with
// absurd values, often absolute zero.
func celsius(file string) (float64, bool) {
	n, ok := integer(file)
	if !ok || n < -40_000 || n > 150_000 {
		return 0, false
	}
	return float64(n) / 1000, true
}

// watts reads microwatts. All ones in 32 bits is the driver's "no value".
func watts(file string) sample.Num {
	if file == "" {
		return sample.Num{}
	}
	n, ok := integer(file)
	if !ok || n < 0 || n >= 0xFFFFFFFF {
		return sample.Num{}
	}
	return sample.Known(float64(n) / 1e6)
}

func readable(file string) bool { _, ok := celsius(file); return ok }

func integer(file string) (int64, bool) {
	n, err := strconv.ParseInt(word(file), 10, 64)
	return n, err == nil
}

// word reads a small file and returns it without the white space around it;
// empty when it cannot be read.
func word(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}
