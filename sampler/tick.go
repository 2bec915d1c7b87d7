package sampler

import (
	"fmt"
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// tick takes one sample: the newest GPU reading, the kernel's figures, the
// training's place.
func (s *Sampler) tick(missed int) {
	boot := s.opts.test.now()
	row := sample.Sample{T: s.opts.Clock.At(boot), Missed: missed}
	row.Mono = s.opts.Clock.Mono(row.T)
	if s.opts.Progress != nil {
		row.Attempt, row.Step, row.StepTimeS, row.StepT = s.opts.Progress()
	}
	if s.opts.Tokens != nil {
		row.Tokens = s.opts.Tokens()
	}
	s.takeReading(&row, boot)
	if s.opts.test.figures != nil {
		s.opts.test.figures(&row)
	} else {
		s.figures.read(&row)
	}
	var tree []int
	if s.opts.Tree != nil {
		tree = s.opts.Tree()
		s.tree.read(&row, tree)
	}
	splitGPUMemory(&row, tree, s.opts.Tree != nil)
	if s.opts.CgroupDir != nil {
		row.CgroupKiB = cgroupKiB(s.opts.CgroupDir())
	}

	s.mu.Lock()
	s.attempt = row.Attempt
	s.recent.add(row)
	s.mu.Unlock()
	// The row belongs to the file, which writes it later: one allocation of the right size.
	line := row.AppendRow(make([]byte, 0, s.bytes))
	s.bytes = len(line) + 64
	s.telemetry.row(line)
	s.tellSlept(&row, boot)
	if names := s.figures.missing(); len(names) > 0 {
		s.tell(event.Event{
			Kind: event.SensorAbsent, Level: event.Info,
			Msg:  "this kernel does not report: " + strings.Join(names, ", "),
			Data: map[string]any{"absent": names},
		})
	}
	if s.opts.OnSample != nil {
		s.opts.OnSample(&row)
	}
}

// takeReading puts the newest reading into the row. Each reading stands in one
// row: a second time it would be an old one that looks fresh.
func (s *Sampler) takeReading(row *sample.Sample, boot time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := boot - s.gpu.T
	if !s.unread || age > maxAge {
		return
	}
	s.unread = false
	row.GPU, row.GPUAge = s.gpu, age
}

// sleeper tells a suspended machine from a process that was not let run: a suspend moves
// CLOCK_BOOTTIME and not the clock of time.Now.
type sleeper struct {
	boot  time.Duration
	at    time.Time
	row   time.Time
	begun bool
}

// silentFor is how long there may be no rows before that is worth an event.
const silentFor = 5 * time.Second

// since takes the time of a row and says how long the machine was suspended since the one
// before.
func (l *sleeper) since(boot time.Duration, now, row time.Time) (asleep time.Duration, from time.Time) {
	if l.begun {
		asleep, from = (boot-l.boot)-now.Sub(l.at), l.row
	}
	l.boot, l.at, l.row, l.begun = boot, now, row, true
	return asleep, from
}

// tellSlept tells, once, of a time without rows: the machine was suspended, or this process
// was stopped or starved.
func (s *Sampler) tellSlept(row *sample.Sample, boot time.Duration) {
	asleep, from := s.slept.since(boot, time.Now(), row.T)
	gap := row.T.Sub(from)
	if from.IsZero() || row.Missed == 0 || gap < silentFor {
		return
	}
	why, level := "the machine was suspended", event.Info
	if asleep < gap/2 {
		why, level = "sparkrun was stopped, or the machine too busy to let it run", event.Warn
		asleep = 0
	}
	s.tell(event.Event{
		T: row.T, Kind: event.SensorGap, Level: level,
		Msg: fmt.Sprintf("no rows for %s, since %s: %s", clock.Span(gap), clock.Format(from), why),
		Data: map[string]any{
			"source": "sampler", "state": "end", "lost_s": gap.Seconds(), "missed": row.Missed, "suspended_s": max(asleep, 0).Seconds(),
		},
	})
}

// ring keeps the newest samples.
type ring struct {
	rows []sample.Sample
	next int
	full bool
}

func newRing(n int) ring { return ring{rows: make([]sample.Sample, n)} }

func (r *ring) add(row sample.Sample) {
	r.rows[r.next] = row
	r.next = (r.next + 1) % len(r.rows)
	r.full = r.full || r.next == 0
}

func (r *ring) len() int {
	if r.full {
		return len(r.rows)
	}
	return r.next
}

// at returns the i-th newest.
func (r *ring) at(i int) *sample.Sample {
	return &r.rows[(r.next-1-i+2*len(r.rows))%len(r.rows)]
}

func (r *ring) last() (sample.Sample, bool) {
	if r.len() == 0 {
		return sample.Sample{}, false
	}
	return *r.at(0), true
}

func (r *ring) since(t time.Time) []sample.Sample {
	n := 0
	for n < r.len() && !r.at(n).T.Before(t) {
		n++
	}
	out := make([]sample.Sample, n)
	for i := range out {
		out[i] = *r.at(n - 1 - i)
	}
	return out
}
