// Package host reads the sensors of the machine itself: temperatures from
// /sys/class/thermal and from /sys/class/hwmon, the power firmware's channels
// where its driver is loaded (see sampler/spbm), and the clocks of the
// processors. Both trees of temperatures are read, since either alone misses
// something: on a Spark the zones are the hottest figures there are and the
// drive's temperature is in hwmon only.
//
// Every file has a deadline of its own, since a read may hang for as long as the
// device behind it likes: a drive that is being reset, a network card whose
// firmware is gone. A file that hangs costs its own reading and no other.
package host

import (
	"fmt"
	"slices"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/sampler/spbm"
)

// Source is the name of all this in sample.GPU.Failed, alone for the whole and
// with "/" and the sensor's name for one.
const Source = "host"

// The names of the readings, as in telemetry.csv.
const (
	zoneMax   = "temp_zone_max_c"
	nvme      = "temp_nvme_c"
	powerSys  = "power_sys_w"
	cpuMHz    = "cpu_mhz"
	capSoC    = "power_cap_pl1_w"
	capSys    = "power_cap_sys_w"
	energySys = "energy_soc_j"
)

// rescan is after how many readings a machine that lacks something is looked
// at again: a driver may be loaded late, and hwmon numbers may move.
const rescan = 60

// rescanAll is the same where nothing is missing.
const rescanAll = 600

// rescanLost is after how many readings something that was there and no longer
// answers is looked for, or what was missed for want of time.
const rescanLost = 10

// Sensors knows where a machine's sensors are. It belongs to one goroutine.
type Sensors struct {
	root  string
	pool  *pool
	reads int
	// scanned is the count of reads at the last scan; missed is set if something
	// took too long in it.
	scanned int
	missed  bool

	// zones hold the best kind of temperature there is, chips the others.
	zones, chips []temperature
	// nvme are those of chips that are a drive's own temperature.
	nvme   []*sensor
	powers []power
	// hasSys tells that the power of the whole machine is among them.
	hasSys bool
	energy []energy
	cpus   clocks
	// all is everything that is read at every reading but the clocks.
	all []*sensor

	// known holds every sensor by its name, wanted the names of the last scan.
	known    map[string]*sensor
	wanted   map[string]bool
	counters map[string]*spbm.Counter
}

// Find looks for the sensors under root ("/" for this machine).
func Find(root string) *Sensors {
	s := newSensors(root)
	s.scan()
	return s
}

func newSensors(root string) *Sensors {
	return &Sensors{root: root, pool: newPool(), known: make(map[string]*sensor), counters: make(map[string]*spbm.Counter)}
}

// Absent names the readings this machine does not have.
func (s *Sensors) Absent() []string {
	limited := func(label string) bool {
		return slices.ContainsFunc(s.powers, func(p power) bool { return p.label == label && p.cap != nil })
	}
	var names []string
	for _, r := range []struct {
		name string
		have bool
	}{
		{cpuMHz, s.cpus.there},
		{energySys, len(s.energy) > 0},
		{capSoC, limited(spbm.PL1)},
		{capSys, limited(spbm.SysPL1)},
		{powerSys, s.hasSys},
		{nvme, len(s.nvme) > 0},
		{zoneMax, len(s.zones) > 0},
	} {
		if !r.have {
			names = append(names, r.name)
		}
	}
	return names
}

// Read fills the host readings of g, within about a second whatever hangs. A
// file that has vanished or makes no sense leaves its reading unknown; one that
// hangs is named in g.Failed as well.
func (s *Sensors) Read(g *sample.GPU) {
	s.reads++
	// Also where nothing is missing: after a module was loaded anew another chip may have
	// the number of one that answered.
	if s.reads >= s.scanned+rescanAll || s.reads >= s.scanned+rescan && len(s.Absent()) > 0 {
		s.scan()
	}
	now := time.Now()
	s.pool.read(s.all)
	if s.cpus.due(now) {
		g.CPUMHz = s.cpus.read(s.pool, now)
	}
	g.Zones, g.ZoneMaxC = temperatures(s.zones)
	g.Chips, _ = temperatures(s.chips)
	for _, in := range s.nvme {
		g.NVMeC = higher(g.NVMeC, celsius(in))
	}
	s.readPowers(g)
	s.blame(g, now)
	lost := !g.ZoneMaxC.OK && len(s.zones) > 0 || !g.NVMeC.OK && len(s.nvme) > 0 || !g.PowerSys.OK && s.hasSys
	if (lost || s.missed) && s.reads >= s.scanned+rescanLost {
		s.scan()
	}
}

func (s *Sensors) readPowers(g *sample.GPU) {
	if len(s.powers) > 0 {
		g.Powers = make([]sample.Power, 0, len(s.powers))
	}
	for _, p := range s.powers {
		out := sample.Power{Label: p.label}
		if p.in.ok {
			out.W = spbm.Watts(p.in.value)
		}
		if p.cap != nil && p.cap.ok {
			out.CapW = spbm.Cap(p.cap.value)
		}
		if p.label == spbm.SysTotal {
			g.PowerSys = out.W
		}
		g.Powers = append(g.Powers, out)
	}
	g.CapSoCW, g.CapSysW = spbm.Caps(g.Powers)
	for _, e := range s.energy {
		if e.in.ok {
			g.EnergySoCJ = e.count.Joules(e.in.value, clock.Boottime())
		}
	}
}

// many is from how many sensors on trouble is the host's and no longer theirs: when
// all of sysfs hangs, one sentence says more than a hundred.
const many = 6

// blame names the sensors that hang.
func (s *Sensors) blame(g *sample.GPU, now time.Time) {
	var failed map[string]string
	for _, list := range [][]*sensor{s.all, s.cpus.in} {
		for _, in := range list {
			if in.ok {
				continue
			}
			if why := s.pool.trouble(in, now); why != "" {
				if failed == nil {
					failed = make(map[string]string)
				}
				failed[in.name] = why
			}
		}
	}
	if len(failed) >= many {
		failed = map[string]string{Source: fmt.Sprintf("%d sensors do not answer", len(failed))}
	}
	g.Failed = failed
}

func temperatures(from []temperature) (to []sample.Temperature, hottest sample.Num) {
	if len(from) == 0 {
		return nil, hottest
	}
	to = make([]sample.Temperature, len(from))
	for i, t := range from {
		c := celsius(t.in)
		to[i] = sample.Temperature{Name: t.name, Label: t.label, C: c, CritC: t.crit}
		hottest = higher(hottest, c)
	}
	return to, hottest
}

func higher(a, b sample.Num) sample.Num {
	if b.OK && (!a.OK || b.V > a.V) {
		return b
	}
	return a
}

func celsius(in *sensor) sample.Num {
	if !in.ok {
		return sample.Num{}
	}
	return millidegrees(in.value)
}

// millidegrees drops what is no temperature. Zones of firmware that has no
// sensor answer with absurd values, often absolute zero.
func millidegrees(n int64) sample.Num {
	if n < -40_000 || n > 150_000 {
		return sample.Num{}
	}
	return sample.Known(float64(n) / 1000)
}
