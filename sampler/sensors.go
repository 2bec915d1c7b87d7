package sampler

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/sampler/host"
	"sparkrun/sampler/nvml"
)

// SensorsArg is the name of the hidden subcommand that runs SensorsMain.
const SensorsArg = "__sensors"

// answerDeadline is how long a source may take before its readings are given
// up. Drivers in trouble have been seen to block for minutes.
const answerDeadline = 1500 * time.Millisecond

// record is one line of the sensors process: what the device is, then one
// reading per tick. A device record comes again when something about it has
// changed.
type record struct {
	Device *sample.Device `json:"device,omitempty"`
	// Pending is set while NVML has not answered yet: the device record that
	// says more is still to come.
	Pending bool        `json:"pending,omitempty"`
	GPU     *sample.GPU `json:"gpu,omitempty"`
}

// SensorsMain is the sensors process: it reads NVML and the host's sensors on
// an absolute schedule and writes JSON lines to stdout, until stdout breaks or
// its parent is gone. It is a process of its own since a driver may crash or
// block it for good: that costs readings, and no training. It returns the exit
// status.
func SensorsMain(args []string, stdout io.Writer) int {
	flags := flag.NewFlagSet(SensorsArg, flag.ContinueOnError)
	interval := flags.Duration("interval", time.Second, "time between readings")
	base := flags.Duration("base", 0, "CLOCK_BOOTTIME of any one reading")
	deadline := flags.Duration("deadline", answerDeadline, "how long a source may take")
	root := flags.String("root", "/", "where /proc and /sys are")
	again := flags.Duration("reopen", reopen, "how soon a GPU that is gone is looked for again")
	smiPath := flags.String("nvidia-smi", "", "the nvidia-smi to read when NVML cannot be loaded, or \"off\"; the one on the PATH by default")
	if err := flags.Parse(args); err != nil {
		return 125
	}
	if *interval <= 0 || *deadline <= 0 {
		fmt.Fprintln(os.Stderr, SensorsArg+": -interval and -deadline must be positive")
		return 125
	}
	// Whatever asks the supervisor to stop reaches this process as well, and
	// while the training takes its leave the readings are still wanted.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM)
	debug.SetMemoryLimit(16 << 20)
	debug.SetGCPercent(25) // it makes little garbage, and a heap of a MiB is enough
	p := &sensorsProcess{
		out:      json.NewEncoder(stdout),
		deadline: *deadline,
		parent:   os.Getppid(),
	}
	gpu := &gpuReader{interval: *interval, wait: *deadline * 3 / 4, reopen: *again, smiPath: *smiPath}
	p.gpu = newSource("nvml", gpu.read)
	p.host = newSource(host.Source, (&hostReader{root: *root}).read)
	p.run(*interval, *base)
	return 0
}

// sensorsProcess owns what the sensors process says. Each source is read by a
// goroutine of its own; everything else happens in run.
type sensorsProcess struct {
	out       *json.Encoder
	deadline  time.Duration
	parent    int
	gpu, host *source
	// told is the device record written last, nil before the first.
	told *record
}

func (p *sensorsProcess) run(interval, base time.Duration) {
	// The first reading is taken at once, the others when the schedule says.
	tick := time.NewTimer(0)
	giveUp := time.NewTimer(p.deadline)
	giveUp.Stop()
	waiting := false
	for {
		select {
		case <-tick.C:
			if os.Getppid() != p.parent {
				return
			}
			// From the clock each time, so that a suspended machine or a late
			// tick moves none of those after it.
			now := clock.Boottime()
			tick.Reset(align(now+interval/16, base, interval) - now)
			if waiting {
				// The reading before this one is still being waited for.
				continue
			}
			p.gpu.ask()
			p.host.ask()
			waiting = true
			giveUp.Reset(p.deadline)
		case a := <-p.gpu.answers:
			p.gpu.take(a)
		case a := <-p.host.answers:
			p.host.take(a)
		case <-giveUp.C:
			p.gpu.giveUp()
			p.host.giveUp()
		}
		if waiting && p.gpu.settled() && p.host.settled() {
			waiting = false
			giveUp.Stop()
			if p.write() != nil {
				return
			}
		}
	}
}

// write tells the device, where there is news about it, and the reading.
func (p *sensorsProcess) write() error {
	d, pending := p.device()
	if p.told == nil || p.told.Pending != pending || !sameDevice(p.told.Device, &d) {
		p.told = &record{Device: &d, Pending: pending}
		if err := p.out.Encode(p.told); err != nil {
			return err
		}
	}
	g := p.gpu.reading()
	h := p.host.reading()
	g.ZoneMaxC, g.NVMeC, g.PowerSys = h.ZoneMaxC, h.NVMeC, h.PowerSys
	g.Zones, g.Chips, g.Powers = h.Zones, h.Chips, h.Powers
	g.CapSoCW, g.CapSysW, g.EnergySoCJ, g.CPUMHz = h.CapSoCW, h.CapSysW, h.EnergySoCJ, h.CPUMHz
	if len(h.Failed) > 0 {
		if g.Failed == nil {
			g.Failed = make(map[string]string, len(h.Failed))
		}
		maps.Copy(g.Failed, h.Failed)
	}
	return p.out.Encode(record{GPU: &g})
}

// device is what is known of the device: pending while NVML has never answered.
func (p *sensorsProcess) device() (d sample.Device, pending bool) {
	d = p.gpu.last.device
	if d.Source == "" {
		pending = true
		d = sample.Device{Source: "none", ErrKind: string(nvml.Other), Err: "the NVIDIA driver has not answered yet"}
	}
	d.Absent = slices.Concat(d.Absent, p.host.last.device.Absent)
	slices.Sort(d.Absent)
	return d, pending
}

func sameDevice(a, b *sample.Device) bool {
	x, y := *a, *b
	x.Absent, y.Absent = nil, nil
	return slices.Equal(a.Absent, b.Absent) && fmt.Sprint(x) == fmt.Sprint(y)
}

// answer is what one source says at one tick.
type answer struct {
	gpu    sample.GPU
	device sample.Device
}

// source is something that is read by a goroutine of its own, so that it can be
// given up: a call into a driver or a read of sysfs cannot be interrupted. There
// is never a second call while the first has not come back.
type source struct {
	name    string
	asks    chan struct{}
	answers chan answer

	busy  bool
	since time.Time
	stuck bool
	// fresh is set when last belongs to the present tick.
	fresh bool
	last  answer
}

func newSource(name string, read func() answer) *source {
	s := &source{name: name, asks: make(chan struct{}, 1), answers: make(chan answer, 1)}
	go func() {
		for range s.asks {
			s.answers <- read()
		}
	}()
	return s
}

// ask starts a reading unless the last one has not come back.
func (s *source) ask() {
	s.fresh = false
	if s.busy {
		return
	}
	s.busy, s.since = true, time.Now()
	s.asks <- struct{}{}
}

// take files an answer. One that comes after it was given up is dropped, but
// for what it says about the device: nobody knows which instant it describes.
func (s *source) take(a answer) {
	s.busy = false
	if s.stuck {
		s.stuck = false
		s.last.device = a.device
		return
	}
	s.last, s.fresh = a, true
}

func (s *source) giveUp() { s.stuck = s.busy }

// settled reports whether there is nothing to wait for at this tick.
func (s *source) settled() bool { return s.fresh || s.stuck || !s.busy }

// reading is what the source says at this tick.
func (s *source) reading() sample.GPU {
	if s.fresh {
		return s.last.gpu
	}
	g := sample.GPU{T: clock.Boottime()}
	why := "the answer came too late"
	if s.stuck {
		why = fmt.Sprintf("no answer for %.0f s", time.Since(s.since).Seconds())
	}
	g.Failed = map[string]string{s.name: why}
	return g
}

// hostReader finds the host's sensors at the first reading, in the goroutine
// that may hang.
type hostReader struct {
	root    string
	sensors *host.Sensors
}

func (r *hostReader) read() answer {
	if r.sensors == nil {
		r.sensors = host.Find(r.root)
	}
	var a answer
	r.sensors.Read(&a.gpu)
	a.device.Absent = r.sensors.Absent()
	return a
}
