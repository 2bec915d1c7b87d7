package host

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/sample"
	"sparkrun/sampler/spbm"
)

// temperature is one sensor of temperature; crit is read when sensors are looked
// for and not again.
type temperature struct {
	name, label string
	in          *sensor
	crit        sample.Num
}

// power and energy are channels of the power firmware.
type power struct {
	label   string
	in, cap *sensor
}

type energy struct {
	in    *sensor
	count *spbm.Counter
}

// cpuChips are the hwmon drivers of processors, for machines without zones.
var cpuChips = []string{"acpitz", "coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "scpi_sensors"}

// scan looks for all sensors. Whatever blocks meanwhile is left out, but for a
// temperature that is known to be there. While no more readers may hang nothing
// can be looked for, and what there was stays.
func (s *Sensors) scan() {
	s.scanned = s.reads
	if s.pool.full() {
		return
	}
	s.missed = false
	s.wanted = make(map[string]bool)

	zones, others := s.findZones()
	var chips, cpu []temperature
	var nvme []*sensor
	s.powers, s.energy, s.hasSys = nil, nil, false
	for _, dir := range s.folders("sys/class/hwmon", "hwmon") {
		names := s.list(dir)
		switch name := s.word(filepath.Join(dir, "name")); name {
		case "":
		case spbm.Name:
			s.addPowers(dir, names)
		default:
			found := s.findTemperatures(dir, name, names)
			if slices.Contains(cpuChips, name) {
				cpu = append(cpu, found...)
			} else {
				chips = append(chips, found...)
			}
			if name == "nvme" {
				nvme = append(nvme, composite(found)...)
			}
		}
	}
	s.settle(&zones, &others, &chips, &cpu)

	// What firmware gives is the best there is: on a Spark all seven zones are
	// of that type, elsewhere zones describe batteries and radios as well.
	s.zones = zones
	if len(s.zones) == 0 {
		s.zones = others
	}
	// hwmon shows firmware's zones a second time.
	cpu = slices.DeleteFunc(cpu, func(t temperature) bool { return t.name == "acpitz" && len(s.zones) > 0 })
	if len(s.zones) == 0 {
		s.zones, cpu = cpu, nil
	}
	s.chips = append(chips, cpu...)
	slices.SortStableFunc(s.chips, func(a, b temperature) int { return strings.Compare(a.name, b.name) })
	s.nvme = slices.DeleteFunc(nvme, func(in *sensor) bool {
		return !slices.ContainsFunc(s.chips, func(t temperature) bool { return t.in == in })
	})
	s.cpus.find(s)
	s.forget()
}

// findZones returns the thermal zones of firmware and the others.
func (s *Sensors) findZones() (acpi, others []temperature) {
	for _, dir := range s.folders("sys/class/thermal", "thermal_zone") {
		kind := s.word(filepath.Join(dir, "type"))
		if kind == "" {
			continue
		}
		t := temperature{name: filepath.Base(dir), in: s.sensor(filepath.Join(dir, "temp"), "")}
		for _, name := range s.list(dir) {
			trip, ok := strings.CutSuffix(name, "_type")
			if ok && strings.HasPrefix(trip, "trip_point_") && s.word(filepath.Join(dir, name)) == "critical" {
				t.crit = s.limit(filepath.Join(dir, trip+"_temp"))
			}
		}
		if kind == "acpitz" {
			acpi = append(acpi, t)
		} else {
			t.label = kind
			others = append(others, t)
		}
	}
	return acpi, others
}

// findTemperatures returns the temperatures of one hwmon folder in the order of
// their numbers.
func (s *Sensors) findTemperatures(dir, name string, names []string) []temperature {
	var numbers []int
	for _, file := range names {
		if n, ok := strings.CutSuffix(file, "_input"); ok {
			if i, err := strconv.Atoi(strings.TrimPrefix(n, "temp")); err == nil && strings.HasPrefix(n, "temp") {
				numbers = append(numbers, i)
			}
		}
	}
	slices.Sort(numbers)
	var found []temperature
	for _, i := range numbers {
		base := filepath.Join(dir, "temp"+strconv.Itoa(i))
		t := temperature{name: name, label: "temp" + strconv.Itoa(i)}
		if slices.Contains(names, t.label+"_label") {
			if label := s.word(base + "_label"); label != "" {
				t.label = label
			}
		}
		if slices.Contains(names, filepath.Base(base)+"_crit") {
			t.crit = s.limit(base + "_crit")
		}
		t.in = s.sensor(base+"_input", name+" "+t.label)
		found = append(found, t)
	}
	return found
}

// composite is the temperature that a drive gives of itself as a whole; the
// others are single sensors of it.
func composite(drive []temperature) []*sensor {
	i := slices.IndexFunc(drive, func(t temperature) bool { return t.label == "Composite" || t.label == "temp1" })
	if i < 0 {
		return nil
	}
	return []*sensor{drive[i].in}
}

func (s *Sensors) addPowers(dir string, names []string) {
	for _, c := range spbm.Channels(dir, names, s.word) {
		what := spbm.Name + " " + string(c.Kind) + " " + c.Label
		in := s.sensor(c.Input, what)
		if c.Kind == spbm.Energy {
			if c.Label == spbm.Package {
				s.energy = append(s.energy, energy{in: in, count: s.counter(c.Input)})
			}
			continue
		}
		p := power{label: c.Label, in: in}
		s.hasSys = s.hasSys || c.Label == spbm.SysTotal
		if c.Cap != "" {
			p.cap = s.sensor(c.Cap, what+" limit")
		}
		s.powers = append(s.powers, p)
	}
}

// settle asks every temperature once and drops those that have never answered
// but with nonsense: zones of firmware that has no sensor say absolute zero, for
// ever. One that hangs is there.
func (s *Sensors) settle(lists ...*[]temperature) {
	var in []*sensor
	for _, list := range lists {
		for _, t := range *list {
			in = append(in, t.in)
		}
	}
	s.missed = !s.pool.read(in) || s.missed
	for _, list := range lists {
		*list = slices.DeleteFunc(*list, func(t temperature) bool {
			t.in.good = t.in.good || celsius(t.in).OK
			return !t.in.good && !s.pool.awaited(t.in)
		})
	}
}

// limit reads a temperature that does not change.
func (s *Sensors) limit(path string) sample.Num {
	n, err := strconv.ParseInt(s.word(path), 10, 64)
	if err != nil || n <= 0 {
		return sample.Num{}
	}
	return millidegrees(n)
}

// sensor returns the sensor of a file of one integer; it is the same one at
// every scan, so that a file that hangs is not asked a second time.
func (s *Sensors) sensor(path, what string) *sensor {
	name := filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
	if what != "" {
		name += " (" + what + ")"
	}
	f := newFile(path)
	return s.know(name, &sensor{ask: f.integer, end: f.close})
}

// know returns the sensor of that name, which is made if there is none yet.
func (s *Sensors) know(name string, made *sensor) *sensor {
	name = Source + "/" + name
	s.wanted[name] = true
	if s.known[name] == nil {
		made.name = name
		s.known[name] = made
	}
	return s.known[name]
}

func (s *Sensors) counter(path string) *spbm.Counter {
	if s.counters[path] == nil {
		s.counters[path] = &spbm.Counter{}
	}
	return s.counters[path]
}

// forget drops the sensors that this scan has not found. One that hangs is kept
// for as long as it does: its path may come back.
func (s *Sensors) forget() {
	for name, in := range s.known {
		if !s.wanted[name] && s.pool.drop(in) {
			delete(s.known, name)
		}
	}
	s.all = s.all[:0]
	for _, list := range [][]temperature{s.zones, s.chips} {
		for _, t := range list {
			s.all = append(s.all, t.in)
		}
	}
	for _, p := range s.powers {
		s.all = append(s.all, p.in)
		if p.cap != nil {
			s.all = append(s.all, p.cap)
		}
	}
	for _, e := range s.energy {
		s.all = append(s.all, e.in)
	}
}

// folders lists the folders of a class by their number.
func (s *Sensors) folders(class, prefix string) []string {
	dir := filepath.Join(s.root, class)
	type numbered struct {
		name string
		n    int
	}
	var found []numbered
	for _, name := range s.list(dir) {
		if n, err := strconv.Atoi(strings.TrimPrefix(name, prefix)); err == nil && strings.HasPrefix(name, prefix) {
			found = append(found, numbered{name, n})
		}
	}
	slices.SortFunc(found, func(a, b numbered) int { return cmp.Compare(a.n, b.n) })
	paths := make([]string, len(found))
	for i, f := range found {
		paths[i] = filepath.Join(dir, f.name)
	}
	return paths
}

func (s *Sensors) list(dir string) []string {
	names, how := ask(s.pool, dir, func() []string {
		f, err := os.Open(dir)
		if err != nil {
			return nil
		}
		defer f.Close()
		names, _ := f.Readdirnames(-1) // what could be read of it
		return names
	})
	s.missed = s.missed || how == late
	return names
}

// word reads a small file and returns it without the white space around it;
// empty when it cannot be read.
func (s *Sensors) word(path string) string {
	w, how := ask(s.pool, path, func() string {
		f := textFile{path: path}
		b, err := f.read()
		if err != nil {
			return ""
		}
		return string(bytes.TrimSpace(b))
	})
	s.missed = s.missed || how == late
	return w
}
