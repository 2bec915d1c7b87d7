package sampler

import (
	"strconv"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/internal/sample"
)

// thermalHeader is the runbook's header, to the letter.
const thermalHeader = "timestamp,temperature.gpu,power.draw\n"

// thermalRow writes a row as nvidia-smi does with --format=csv.
func thermalRow(t time.Time, temp, power sample.Num) []byte {
	b := clock.AppendFormat(make([]byte, 0, 64), t)
	b = append(b, ", "...)
	if temp.OK {
		b = strconv.AppendFloat(b, temp.V, 'f', 0, 64)
	} else {
		b = append(b, "[N/A]"...)
	}
	b = append(b, ", "...)
	if power.OK {
		b = strconv.AppendFloat(b, power.V, 'f', 2, 64)
		b = append(b, " W"...)
	} else {
		b = append(b, "[N/A]"...)
	}
	return append(b, '\n')
}

// thermalRows decides when a row of thermal.csv is written. A row that is due
// takes the newest reading, or waits a little for the next one, and says [N/A]
// when none comes. Guarded by Sampler.mu.
type thermalRows struct {
	due   bool
	began bool
	// last is the time of the last row: rows are strictly in time order, so
	// that the file can be merged as it is.
	last time.Time
	// late gives up waiting.
	late *time.Timer
}

// thermalDue is called when the schedule wants a row.
func (s *Sampler) thermalDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := maxAge
	if !s.heat.began {
		s.heat.began, wait = true, firstRowWait
	}
	s.heat.due = true
	if s.opts.Exe == "" {
		s.writeNotAvailable()
		return
	}
	if s.writeThermal() {
		return
	}
	if s.heat.late != nil {
		s.heat.late.Stop()
	}
	s.heat.late = time.AfterFunc(min(wait, max(s.opts.Interval, s.opts.Tick)), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.heat.due && !s.writeThermal() {
			s.writeNotAvailable()
		}
	})
}

// writeThermal writes the row that is due if there is a reading for it: a
// fresh one that is newer than the last row. Call with the lock held.
func (s *Sampler) writeThermal() bool {
	t := s.opts.Clock.At(s.gpu.T)
	if !s.heat.due || s.gpu.T == 0 || s.opts.test.now()-s.gpu.T > maxAge || !rowAfter(t, s.heat.last) {
		return false
	}
	s.heat.due, s.heat.last = false, t
	s.thermal.row(thermalRow(t, s.gpu.TempC, s.gpu.PowerW))
	return true
}

func (s *Sampler) writeNotAvailable() {
	t := s.now()
	s.heat.due = false
	if !rowAfter(t, s.heat.last) {
		return
	}
	s.heat.last = t
	s.thermal.row(thermalRow(t, sample.Num{}, sample.Num{}))
}

// thermalLast writes the last row of a run, if there is something newer to say.
func (s *Sampler) thermalLast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heat.late != nil {
		s.heat.late.Stop()
	}
	began := !s.heat.last.IsZero()
	s.heat.due = true
	if !s.writeThermal() && !began {
		s.writeNotAvailable()
	}
	s.heat.due = false
}

// rowAfter compares as the file shows times, in milliseconds.
func rowAfter(t, last time.Time) bool {
	return t.Truncate(time.Millisecond).After(last.Truncate(time.Millisecond))
}
