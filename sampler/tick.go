package sampler

import (
	"strings"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// tick takes one sample: the newest GPU reading, the kernel's figures, the
// training's place.
func (s *Sampler) tick(missed int) {
	row := sample.Sample{T: s.opts.Clock.Now(), Missed: missed}
	row.Mono = s.opts.Clock.Mono(row.T)
	if s.opts.Progress != nil {
		row.Attempt, row.Step, row.StepTimeS = s.opts.Progress()
	}
	s.takeReading(&row)
	s.figures.read(&row)
	var tree []int
	if s.opts.Tree != nil {
		tree = s.opts.Tree()
		readTree(&row, tree)
	}
	splitGPUMemory(&row, tree, s.opts.Tree != nil)
	if s.opts.CgroupDir != nil {
		row.CgroupKiB = cgroupKiB(s.opts.CgroupDir())
	}

	s.mu.Lock()
	s.attempt = row.Attempt
	s.recent.add(row)
	s.mu.Unlock()
	s.telemetry.row(csvRow(row.Row()))
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
func (s *Sampler) takeReading(row *sample.Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := clock.Boottime() - s.gpu.T
	if !s.unread || age > maxAge {
		return
	}
	s.unread = false
	row.GPU, row.GPUAge = s.gpu, age
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
