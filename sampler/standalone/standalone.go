// Package standalone owns `sparkrun sample`: a sampler without a run, which appends rows
// to one log file until it is stopped. It knows the log and the pid file beside it, finds,
// stops and replaces the sampler that a log has already, and decides when a row is due.
// What is read, and how a row looks, is package sampler's.
//
// A file of somebody else's is never written, and a process is ended only after the kernel
// has said that it is a sampler of this user which has this very log, or its pid file, open.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
	"sparkrun/sampler"
)

// DefaultInterval and DefaultLog are those of the runbook's thermal-sample.sh.
const (
	DefaultInterval = 30 * time.Second
	DefaultLog      = "thermal.log"
)

// MinInterval and MaxInterval are the shortest and the longest time between rows.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = 24 * time.Hour
)

// ErrNoSensor is wrapped by the error of a machine on which nothing can be read. No file
// has been made then.
var ErrNoSensor = errors.New("no sensor answers")

// ErrEnded is wrapped by the error of a sampler that was told to end before its first row.
var ErrEnded = errors.New("ended before the first row")

// PIDFile is the name of the file that has the pid of a log's sampler.
func PIDFile(log string) string { return log + ".pid" }

// Options say what Run does.
type Options struct {
	// Exe is our own binary, which reads the sensors in a process of its own.
	Exe string
	// Log is the file that rows are appended to.
	Log string
	// Interval is the time between rows; For, if positive, how long rows are written.
	Interval, For time.Duration
	// Wide writes rows of telemetry.csv in place of those of thermal.csv.
	Wide bool
	// Say takes what belongs on stdout, Note what belongs on stderr: what is wrong, each
	// once. Note is called by more than one goroutine.
	Say, Note func(string)
	// Ready hears that the first row is in the file. An error ends the sampler.
	Ready func() error
}

// firstRow is how long the disk may take for the first row.
const firstRow = 10 * time.Second

// Run samples until ctx ends, For is over, or the log can be written no more, and removes
// the pid file. It returns an error for what was refused, without having changed anything
// that was there before.
func Run(ctx context.Context, o Options) error {
	l := logFile{path: o.Log, header: sampler.ThermalHeader()}
	if o.Wide {
		l.header = sampler.TelemetryHeader()
	}
	// What is wrong with the path is told at once and not after the sensors have answered.
	if err := l.look(); err != nil {
		return err
	}
	s := newSource(ctx, o.Exe, step(o.Interval), o.Note)
	defer s.close()
	first, err := s.await(ctx, o.Wide)
	if err != nil {
		return err
	}
	place, err := occupy(ctx, &l, o)
	if err != nil {
		return err
	}
	w := newWriter(&l, o.Note)
	defer func() { place.leave(w.close()) }()
	r := rows{write: w.write, wide: o.Wide, begun: clock.Boottime()}
	if o.Wide {
		r.kernel = sampler.NewKernel("/")
		defer r.kernel.Close()
	}
	return o.sample(ctx, s, first, w, &r)
}

// sample writes the first row, then the others.
func (o *Options) sample(ctx context.Context, s *source, first sampler.Answer, w *writer, r *rows) error {
	sch := schedule{interval: o.Interval}
	sch.base = first.GPU.T - first.GPU.T%step(o.Interval)
	r.all(sch.reading(first.GPU.T), &first.GPU)
	select {
	case err := <-w.first:
		if err != nil {
			w.abandon()
			return fmt.Errorf("%s cannot be written: %w", o.Log, err)
		}
	case <-time.After(firstRow):
		w.abandon()
		return fmt.Errorf("%s cannot be written: the disk has not taken the first row for %v", o.Log, firstRow)
	}
	if o.Ready != nil {
		if err := o.Ready(); err != nil {
			return err
		}
	}
	end := time.Duration(0)
	if o.For > 0 {
		end = sch.base + o.For
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := clock.Boottime()
		// The row that is due at the very end belongs to the time as well.
		if end > 0 && now > end && sch.due(sch.next) > end {
			return nil
		}
		wait := sch.wait(now)
		if end > 0 && sch.due(sch.next) > end {
			wait = min(wait, end-now+time.Millisecond)
		}
		// A timer stands still while the machine is suspended.
		timer.Reset(min(wait, 30*time.Second))
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.fatal:
			return err
		case a := <-s.answers:
			if end == 0 || a.GPU.T <= end+step(o.Interval) {
				r.all(sch.reading(a.GPU.T), &a.GPU)
			}
		case <-timer.C:
			r.all(sch.overdue(clock.Boottime()), nil)
		}
	}
}

// rows makes rows of readings.
type rows struct {
	write func([]byte)
	wide  bool
	// begun is when the sampler began.
	begun  time.Duration
	kernel *sampler.Kernel
}

// all writes the rows of the slots; g is the reading of the one that takes it.
func (r *rows) all(slots []slot, g *sample.GPU) {
	for _, s := range slots {
		if s.read {
			r.one(g.T, *g, s.missed)
		} else {
			r.one(s.due, sample.GPU{}, s.missed)
		}
	}
}

func (r *rows) one(at time.Duration, g sample.GPU, missed int) {
	t := wall(at)
	if !r.wide {
		r.write(sampler.ThermalRow(t, g.TempC, g.PowerW))
		return
	}
	age := clock.Boottime() - at
	row := sample.Sample{T: t, Mono: max(at-r.begun, 0), GPU: g, GPUAge: age, Missed: missed}
	// What the kernel says now is nothing that it said long ago.
	if age < late+time.Second {
		r.kernel.Read(&row)
	}
	r.write(row.AppendRow(nil))
}

// wall is the local time of an instant of CLOCK_BOOTTIME, as a clock on the wall shows it
// now: as with nvidia-smi it follows what is done to the machine's clock, since a log that
// goes on for weeks must agree with all others of those days.
func wall(at time.Duration) time.Time {
	now := time.Now().Round(0)
	return now.Add(at - clock.Boottime())
}

// self is the pid that stands in the pid file.
func self() int { return os.Getpid() }
