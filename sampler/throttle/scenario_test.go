package throttle

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// The files in testdata/*.txt are runs in a few lines and the events they must give,
// exactly these and no others. A line is one of
//
//	gpu NAME                 the device; without it, it is not known
//	every 1s                 a sample so often, from here on
//	for 10m KEY VALUE ...    samples for so long; keys keep their values afterwards
//	noise KEY N              a normally distributed error on each value, N its deviation
//	                         (step: a part of the step time)
//	asleep 2h                no samples at all
//	blocked 400s             samples go on, but the GPU's last answer is repeated
//	lost 10m                 samples go on, nothing is known of the GPU
//	attempt 2, cap 2000      the next attempt; our own limit of the clock
//	repeat 20 ... done       the lines between, so many times
//	expect 1m0s power-cap start info KEY=VALUE ...
//
// Keys are temp power sm util reasons zones step cpu pl1 pl1w syspl1 and the counters
// swthermal hwthermal brake (in seconds). A value is a number, "-" for unknown, or
// "a..b", which goes from a to b over the stretch; zones are numbers with commas
// between. With step, steps of so many seconds are made.
type scenario struct {
	t     *testing.T
	name  string
	d     *Detector
	every time.Duration
	now   time.Duration
	// values and noise by key.
	values  map[string]string
	noise   map[string]float64
	rand    *rand.Rand
	attempt int
	steps   float64
	stepAt  time.Duration
	stepS   sample.Num
	gpuT    time.Duration
	last    sample.GPU

	got, want []string
	events    []event.Event
	keys      [][]string // of Data, which the want line names
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range few(files) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &scenario{
				t: t, name: file, d: New(config(t)), every: time.Second, attempt: 1,
				values: map[string]string{}, noise: map[string]float64{}, rand: rand.New(rand.NewPCG(1, 2)),
			}
			var lines []string
			for scan := bufio.NewScanner(bytes.NewReader(text)); scan.Scan(); {
				line, _, _ := strings.Cut(scan.Text(), "#")
				lines = append(lines, line)
			}
			s.play(lines, 0)
			s.take(s.d.Finish(at(s.now.Seconds())))
			s.compare()
		})
	}
}

// play runs lines, the first of which is number first+1 of the file.
func (s *scenario) play(lines []string, first int) {
	for i := 0; i < len(lines); i++ {
		f := strings.Fields(lines[i])
		if len(f) == 0 {
			continue
		}
		where := fmt.Sprintf("%s:%d", s.name, first+i+1)
		arg := strings.Join(f[1:], " ")
		switch f[0] {
		case "gpu":
			s.d.Device(sample.Device{Name: arg})
		case "every":
			s.every = s.duration(where, f[1])
		case "noise":
			s.noise[f[1]] = s.number(where, f[2])
		case "attempt":
			s.attempt, s.steps, s.stepAt = int(s.number(where, f[1])), 0, s.now
		case "cap":
			s.d.SetClockCap(s.number(where, f[1]))
		case "asleep":
			s.now += s.duration(where, f[1])
		case "for":
			if len(f)%2 != 0 {
				s.t.Fatalf("%s: a key has no value", where)
			}
			for j := 2; j < len(f); j += 2 {
				s.values[f[j]] = f[j+1]
			}
			s.stretch(where, s.duration(where, f[1]))
		case "blocked", "lost":
			for end := s.now + s.duration(where, f[1]); s.now < end; s.now += s.every {
				x := &sample.Sample{T: at(s.now.Seconds()), Mono: s.now, Attempt: s.attempt}
				if f[0] == "blocked" {
					x.GPU = s.last
				}
				s.take(s.d.Sample(x))
			}
		case "repeat":
			end := i + 1
			for depth := 1; ; end++ {
				if end == len(lines) {
					s.t.Fatalf("%s: no done", where)
				}
				switch w := strings.Fields(lines[end] + " ."); w[0] {
				case "repeat":
					depth++
				case "done":
					depth--
				}
				if depth == 0 {
					break
				}
			}
			for range int(s.number(where, f[1])) {
				s.play(lines[i+1:end], first+i+1)
			}
			i = end
		case "expect":
			if len(f) < 5 {
				s.t.Fatalf("%s: expect TIME TYPE start|end|update LEVEL", where)
			}
			s.want = append(s.want, strings.Join(f[1:], " "))
			s.keys = append(s.keys, f[5:])
		default:
			s.t.Fatalf("%s: %q is none of its words", where, f[0])
		}
	}
}

// stretch makes samples with the present values for so long.
func (s *scenario) stretch(where string, length time.Duration) {
	from := s.now
	for ; s.now < from+length; s.now += s.every {
		part := float64(s.now-from) / float64(length)
		num := func(key string) sample.Num {
			text, there := s.values[key]
			if !there || text == "-" {
				return sample.Num{}
			}
			var v float64
			if a, b, ramp := strings.Cut(text, ".."); ramp {
				from, to := s.number(where, a), s.number(where, b)
				v = from + part*(to-from)
			} else {
				v = s.number(where, text)
			}
			if n := s.noise[key]; n > 0 && key != "step" {
				v = max(0, v+n*s.rand.NormFloat64())
				if key == "util" {
					v = math.Round(min(100, v))
				}
			}
			return sample.Known(v)
		}
		ns := func(key string) sample.Num {
			n := num(key)
			n.V *= 1e9
			return n
		}
		s.gpuT = s.now + time.Hour
		x := &sample.Sample{T: at(s.now.Seconds()), Mono: s.now, Attempt: s.attempt, CPUBusyPct: num("cpu")}
		x.GPU = sample.GPU{
			T: s.gpuT, TempC: num("temp"), PowerW: num("power"), ClockSMMHz: num("sm"), UtilPct: num("util"), ReasonBits: num("reasons"),
			CtrSWThermalNS: ns("swthermal"), CtrHWThermalNS: ns("hwthermal"), CtrHWPowerNS: ns("brake"), CapSoCW: num("pl1"), CapSysW: num("syspl1"),
		}
		if w := num("pl1w"); w.OK {
			x.Powers = []sample.Power{{Label: "gpu", W: x.PowerW}, {Label: "pl1", W: w, CapW: num("pl1")}}
		}
		if zones := s.values["zones"]; zones != "" && zones != "-" {
			for i, c := range strings.Split(zones, ",") {
				z := sample.Temperature{Name: "thermal_zone" + strconv.Itoa(i), C: sample.Known(s.number(where, c))}
				x.Zones = append(x.Zones, z)
				higher(&x.ZoneMaxC, z.C)
			}
		}
		s.last = x.GPU
		s.step(num("step"))
		x.Step, x.StepTimeS = sample.Known(s.steps), s.stepS
		if s.steps == 0 {
			x.Step = sample.Num{}
		}
		s.take(s.d.Sample(x))
	}
}

// step makes the steps that were due.
func (s *scenario) step(stepS sample.Num) {
	if !stepS.OK {
		s.stepAt = s.now
		return
	}
	for {
		v := stepS.V * (1 + s.noise["step"]*s.rand.NormFloat64())
		next := s.stepAt + time.Duration(v*float64(time.Second))
		if next > s.now {
			return
		}
		s.stepAt, s.stepS = next, sample.Known(math.Round(v*1000)/1000)
		s.steps++
	}
}

func (s *scenario) take(events []event.Event) {
	s.events = append(s.events, events...)
}

// compare writes the events as expect lines do, with the data that the line at the
// same place asks for.
func (s *scenario) compare() {
	for i, e := range s.events {
		line := fmt.Sprintf("%v %s %s", e.T.Sub(t0), e.Label, e.Level)
		if i < len(s.keys) {
			for _, key := range s.keys[i] {
				key, _, _ = strings.Cut(key, "=")
				line += fmt.Sprintf(" %s=%v", key, e.Data[key])
			}
		}
		s.got = append(s.got, line)
	}
	if diff := cmp.Diff(s.want, s.got); diff != "" {
		s.t.Errorf("events (- wanted, + found):\n%s", diff)
		for _, e := range s.events {
			s.t.Logf("%v %s %s: %s %v", e.T.Sub(t0), e.Label, e.Level, e.Msg, e.Data)
		}
	}
}

func (s *scenario) duration(where, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatalf("%s: %v", where, err)
	}
	return d
}

func (s *scenario) number(where, text string) float64 {
	if v, err := strconv.ParseInt(text, 0, 64); err == nil {
		return float64(v)
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		s.t.Fatalf("%s: %v", where, err)
	}
	return v
}
