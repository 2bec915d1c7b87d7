package sampler

import (
	"encoding/json"
	"time"

	"sparkrun/internal/sample"
)

// sensorsPart is the size at which sensors.jsonl is put aside as
// sensors.001.jsonl and so on: at a line of 3 kB each half minute, a week.
const sensorsPart = 64 << 20

// sensorsFile writes sensors.jsonl: every single temperature and power, once per
// interval and whenever a sensor comes or goes. telemetry.csv has the hottest of
// each kind only; which zone it was, and how the others were, is here. It
// belongs to the goroutine that listens to the sensors process.
type sensorsFile struct {
	s *Sampler
	// base is an instant at which a line is due.
	base time.Duration
	// file is nil as long as there is no sensor at all.
	file *csvFile
	next time.Duration
	last sensorsLine
}

// sensorsLine is one line. Where a sensor does not answer its number is null.
type sensorsLine struct {
	T      string               `json:"t"`
	MonoS  float64              `json:"mono_s"`
	Zones  []sample.Temperature `json:"zones"`
	Chips  []sample.Temperature `json:"chips"`
	Powers []sample.Power       `json:"powers"`
}

func newSensorsFile(s *Sampler, base time.Duration) *sensorsFile {
	return &sensorsFile{s: s, base: base - s.ahead()}
}

// take files a reading. One in which the host as a whole did not answer says
// nothing about which sensors there are.
func (f *sensorsFile) take(g *sample.GPU) {
	line := sensorsLine{Zones: g.Zones, Chips: g.Chips, Powers: g.Powers}
	if len(line.Zones)+len(line.Chips)+len(line.Powers) == 0 || g.T < f.next && line.sameSensors(&f.last) {
		return
	}
	f.last = line
	// A line for a change does not move the others.
	if g.T >= f.next {
		f.next = align(g.T+1, f.base, f.s.opts.Interval)
	}
	t := f.s.opts.Clock.At(g.T)
	line.T = t.Format("2006-01-02T15:04:05.000Z07:00")
	line.MonoS = f.s.opts.Clock.Mono(t).Round(time.Millisecond).Seconds()
	for _, list := range []*[]sample.Temperature{&line.Zones, &line.Chips} {
		if *list == nil {
			*list = []sample.Temperature{}
		}
	}
	if line.Powers == nil {
		line.Powers = []sample.Power{}
	}
	b, err := json.Marshal(line)
	if err != nil {
		return // a number that is none: nothing a reading can hold
	}
	if f.file == nil {
		f.file = newCSVFile(f.s.opts.Dir, "sensors.jsonl", nil, f.s.fileNote)
		f.file.partBytes = sensorsPart
	}
	f.file.row(append(b, '\n'))
}

// sameSensors reports whether two lines are about the same sensors.
func (l *sensorsLine) sameSensors(m *sensorsLine) bool {
	if len(l.Zones) != len(m.Zones) || len(l.Chips) != len(m.Chips) || len(l.Powers) != len(m.Powers) {
		return false
	}
	for i := range l.Zones {
		if l.Zones[i].Name != m.Zones[i].Name || l.Zones[i].Label != m.Zones[i].Label {
			return false
		}
	}
	for i := range l.Chips {
		if l.Chips[i].Name != m.Chips[i].Name || l.Chips[i].Label != m.Chips[i].Label {
			return false
		}
	}
	for i := range l.Powers {
		if l.Powers[i].Label != m.Powers[i].Label {
			return false
		}
	}
	return true
}

// close finishes the file.
func (f *sensorsFile) close() {
	if f.file != nil {
		f.file.close()
		f.file.wait(sensorsClose)
	}
}

// sensorsClose is how long the end of a run waits for the disk: the end of the
// sampler waits longer.
const sensorsClose = 2 * time.Second
