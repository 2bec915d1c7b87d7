// Package sampler turns sensors into samples and samples into thermal.csv and
// telemetry.csv, on a schedule that does not drift. It owns the sensors process
// (SensorsMain is what runs there, Sampler is what starts it and listens), the
// two files, and what is said when a reading is not to be had: an event when it
// begins and one when it is over, and nothing in between. A reading that is not
// there is unknown; it is never zero and never an old one.
//
// Nothing in here can stop or delay a run: a hung driver costs readings, a full
// or hung disk costs rows, and both are events.
package sampler

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// The schedules of the runbook: one row of telemetry a second, one of
// thermal.csv every half minute.
const (
	DefaultTick     = time.Second
	DefaultInterval = 30 * time.Second
)

// MinTick and MaxTick are the least and the most time between rows of telemetry.csv that
// make sense.
const (
	MinTick = 100 * time.Millisecond
	MaxTick = 10 * time.Minute
)

// maxAge is how old a reading may be to stand in a row.
const maxAge = 2500 * time.Millisecond

// firstRowWait is how long the first row of thermal.csv waits for a reading.
const firstRowWait = 2 * time.Second

// lead is how long before a row its reading is taken: long enough for a slow
// driver, short enough to be called the same instant.
const lead = 200 * time.Millisecond

// windowKept is how far back Window reaches.
const windowKept = 2 * time.Minute

// Options say what a Sampler reads and where it writes. Clock and Dir are
// needed, everything else may be left out.
type Options struct {
	// Exe is our own binary, started as "Exe __sensors". Empty means that no
	// GPU or temperature sensor is read.
	Exe string
	// Clock is the run's time base.
	Clock clock.Clock
	// Dir is the run directory, where thermal.csv and telemetry.csv go.
	Dir string
	// Interval is the time between rows of thermal.csv, Tick that between rows
	// of telemetry.csv.
	Interval, Tick time.Duration
	// Root is where /proc and /sys are, "/" by default.
	Root string
	// Tree returns the pids of the training.
	Tree func() []int
	// Progress returns the attempt that runs, its last optimizer step, how long that took,
	// in seconds, and when it was told of.
	Progress func() (attempt int, step, stepTimeS sample.Num, at time.Time)
	// Tokens returns how many tokens the attempt has trained on so far.
	Tokens func() sample.Num
	// CgroupDir returns the training's memory cgroup, v1 or v2, "" for none.
	CgroupDir func() string
	// Events takes what is worth telling. Calls do not overlap.
	Events event.Sink
	// OnSample sees every sample, on the goroutine that takes them: it must be
	// quick and must not keep the pointer.
	OnSample func(*sample.Sample)
	// OnSync hears how long a file took to reach the disk, on the goroutine that waits for
	// that.
	OnSync func(file string, took time.Duration)

	// test is for tests.
	test internals
}

// internals are the sampler's ways to machine and clock, where they are not the real ones.
type internals struct {
	// now is CLOCK_BOOTTIME.
	now func() time.Duration
	// wait wakes a schedule.
	wait func() waiter
	// figures reads what the kernel says.
	figures func(*sample.Sample)
	// sensors makes readings in place of the sensors process.
	sensors func(ctx context.Context)
	// sync brings a file to the disk.
	sync func(*os.File) error
	// partBytes is the size at which telemetry.csv is put aside.
	partBytes int64
}

// Sampler reads sensors and writes the two CSV files until it is stopped.
type Sampler struct {
	opts   Options
	cancel context.CancelFunc
	// running is done when no goroutine produces rows any more.
	running   sync.WaitGroup
	stop      sync.Once
	telemetry *csvFile
	thermal   *csvFile

	events sync.Mutex
	// figures, tree, slept and bytes are those of the goroutine that makes rows; in Stop
	// they are Stop's.
	figures figures
	tree    treeFigures
	slept   sleeper
	bytes   int

	mu sync.Mutex
	// device is the newest device record; known is closed at the first that is
	// not pending, and reading at the first reading.
	device  *sample.Device
	known   chan struct{}
	reading chan struct{}
	gpu     sample.GPU
	// unread is set while gpu has not stood in a row of telemetry.csv.
	unread  bool
	attempt int
	pid     int
	gaps    gaps
	// noted holds the absent readings that have been told, and the sentence
	// about a device that is not there.
	noted     map[string]bool
	notedNone string
	recent    ring
	heat      thermalRows
}

// Start begins sampling: the first row of telemetry.csv is taken at once. It
// fails only for options that make no sense; a file that cannot be written is
// an event, and is tried again for as long as the run lasts. The end of ctx
// ends the sampling; Stop is needed all the same, to finish the files.
func Start(ctx context.Context, opts Options) (*Sampler, error) {
	if opts.Dir == "" {
		return nil, errors.New("the sampler needs a run directory")
	}
	if opts.Clock.Wall.IsZero() {
		return nil, errors.New("the sampler needs the run's clock")
	}
	if opts.Interval < 0 || opts.Tick < 0 {
		return nil, errors.New("the sampling interval must be positive")
	}
	if opts.Interval == 0 {
		opts.Interval = DefaultInterval
	}
	if opts.Tick == 0 {
		opts.Tick = DefaultTick
	}
	if opts.Root == "" {
		opts.Root = "/"
	}
	if opts.test.now == nil {
		opts.test.now = clock.Boottime
	}
	if opts.test.wait == nil {
		opts.test.wait = alarms
	}
	if opts.test.partBytes == 0 {
		opts.test.partBytes = telemetryPart
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Sampler{
		opts:    opts,
		cancel:  cancel,
		known:   make(chan struct{}),
		reading: make(chan struct{}),
		gaps:    make(gaps),
		noted:   make(map[string]bool),
		recent:  newRing(int(windowKept/opts.Tick) + 1),
		figures: newFigures(opts.Root),
	}
	s.telemetry = newCSVFile(opts.Dir, "telemetry.csv", telemetryHeader(), s.fileNote)
	s.telemetry.partBytes = opts.test.partBytes
	s.thermal = newCSVFile(opts.Dir, "thermal.csv", []byte(thermalHeader), s.fileNote)
	s.telemetry.onSync, s.thermal.onSync = opts.OnSync, opts.OnSync
	if opts.test.sync != nil {
		s.telemetry.toDisk, s.thermal.toDisk = opts.test.sync, opts.test.sync
	}

	boot := opts.test.now()
	clock.Lead(boot)
	s.running.Go(func() { every(ctx, opts.test.wait(), opts.test.now, boot, opts.Tick, s.tick) })
	s.running.Go(func() {
		every(ctx, opts.test.wait(), opts.test.now, boot, opts.Interval, func(int) { s.thermalDue() })
	})
	if opts.test.sensors != nil {
		s.running.Go(func() { opts.test.sensors(ctx) })
	} else if opts.Exe == "" {
		s.mu.Lock()
		d := sample.Device{Source: "none", ErrKind: "other", Err: "GPU sensors are off"}
		s.device = &d
		close(s.known)
		s.mu.Unlock()
	} else {
		s.running.Go(func() { s.keepSensors(ctx, boot) })
	}
	return s, nil
}

// Device waits, up to ctx, until it is known what GPU there is, and returns the
// record. When ctx ends first it returns what is known so far, and ctx's error
// if that is nothing.
func (s *Sampler) Device(ctx context.Context) (sample.Device, error) {
	select {
	case <-s.known:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.device == nil {
		return sample.Device{Source: "none"}, ctx.Err()
	}
	return *s.device, nil
}

// First waits, up to ctx, for the first reading and returns the newest one.
func (s *Sampler) First(ctx context.Context) (sample.GPU, bool) {
	if s.opts.Exe == "" {
		return sample.GPU{}, false
	}
	select {
	case <-s.reading:
	case <-ctx.Done():
		return sample.GPU{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gpu, true
}

// Last returns the newest sample; ok is false before the first.
func (s *Sampler) Last() (last sample.Sample, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recent.last()
}

// Window returns the samples of the last d, oldest first. Two minutes are kept.
func (s *Sampler) Window(d time.Duration) []sample.Sample {
	from := s.now().Add(-d)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recent.since(from)
}

// ChildPID returns the pid of the sensors process, 0 while there is none.
func (s *Sampler) ChildPID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// Stop takes the last rows, ends the sensors process, syncs and closes the
// files. It takes a few seconds at most, whatever hangs. It may be called
// again.
func (s *Sampler) Stop() {
	s.stop.Do(func() {
		s.cancel()
		// Tree and Progress are not ours and may hang: the last rows as well as
		// those before are waited for only so long.
		last := make(chan struct{})
		go func() {
			defer close(last)
			s.running.Wait()
			s.tick(0)
			s.thermalLast()
			s.figures.close()
			s.tree.close()
		}()
		select {
		case <-last:
		case <-time.After(stopWait):
		}
		s.telemetry.close()
		s.thermal.close()
		until := time.Now().Add(stopWait)
		s.telemetry.wait(time.Until(until))
		s.thermal.wait(time.Until(until))
	})
}

// sensorStep is the time between readings of the sensors.
func (s *Sampler) sensorStep() time.Duration { return sensorStep(s.opts.Tick, s.opts.Interval) }

// now is the run's time.
func (s *Sampler) now() time.Time { return s.opts.Clock.At(s.opts.test.now()) }

// stopWait bounds each part of Stop.
const stopWait = 3 * time.Second

// tell passes an event on. Zero at means now.
func (s *Sampler) tell(e event.Event) {
	if s.opts.Events == nil {
		return
	}
	if e.T.IsZero() {
		e.T = s.now()
	}
	s.mu.Lock()
	e.Attempt = s.attempt
	s.mu.Unlock()
	s.events.Lock()
	defer s.events.Unlock()
	s.opts.Events(e)
}
