package sampler

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/sampler/host"
	"sparkrun/sampler/nvml"
)

// sensorsSource is the source "the sensors process as a whole" in gaps; the
// others are the keys of sample.GPU.Failed.
const sensorsSource = "sensors"

// noteFailed notes that a source did not answer.
func (s *Sampler) noteFailed(source, reason string, at time.Time) {
	s.mu.Lock()
	began := s.gaps.fail(source, at)
	s.mu.Unlock()
	if began {
		s.tell(event.Event{
			T: at, Kind: event.SensorGap, Level: event.Warn,
			Msg:  sourceName(source) + " stopped: " + reason,
			Data: map[string]any{"source": source, "state": "start"},
		})
	}
}

// noteOK notes that a source answered.
func (s *Sampler) noteOK(source string, at time.Time) {
	s.mu.Lock()
	ended, lasted := s.gaps.ok(source, at)
	s.mu.Unlock()
	if ended {
		s.tell(event.Event{
			T: at, Kind: event.SensorGap, Level: event.Info,
			Msg:  fmt.Sprintf("%s came back after %s", sourceName(source), clock.Span(lasted)),
			Data: map[string]any{"source": source, "state": "end", "lost_s": lasted.Seconds()},
		})
	}
}

// noteReading notes every source that failed at this reading, and those that
// had failed and answer again.
func (s *Sampler) noteReading(g *sample.GPU) {
	at := s.opts.Clock.At(g.T)
	s.mu.Lock()
	var back []string
	for source := range s.gaps {
		if _, failed := g.Failed[source]; failed || strings.HasPrefix(source, filePrefix) {
			continue
		}
		// While the whole does not answer nobody knows about its parts.
		whole := "nvml"
		if strings.HasPrefix(source, hostPrefix) {
			whole = host.Source
		}
		if _, dead := g.Failed[whole]; dead && source != sensorsSource && source != host.Source {
			continue
		}
		back = append(back, source)
	}
	s.mu.Unlock()
	slices.Sort(back)
	for _, source := range back {
		s.noteOK(source, at)
	}
	for source, reason := range g.Failed {
		s.noteFailed(source, reason, at)
	}
}

func sourceName(source string) string {
	switch source {
	case sensorsSource:
		return "sensor readings"
	case "nvml":
		return "GPU readings"
	case host.Source:
		return "host temperature readings"
	}
	return "readings of " + strings.TrimPrefix(source, hostPrefix)
}

// hostPrefix marks single sensors of the host among the sources.
const hostPrefix = host.Source + "/"

// hadGPU and toldSMI are marks among the readings that have been noted.
const (
	hadGPU  = " the GPU has answered"
	toldSMI = " nvidia-smi is read"
)

// noteDevice tells once what there is not.
func (s *Sampler) noteDevice(d *sample.Device) {
	if d.Source == "none" {
		s.noteNoGPU(d)
	} else {
		s.mu.Lock()
		came := s.notedNone != ""
		s.notedNone = ""
		smi := d.Source == "nvidia-smi" && !s.noted[toldSMI]
		s.noted[hadGPU], s.noted[toldSMI] = true, s.noted[toldSMI] || smi
		s.mu.Unlock()
		if smi {
			s.tell(event.Event{
				Kind: event.SensorAbsent, Level: event.Info, Msg: "NVML cannot be read: " + d.Err,
				Data: map[string]any{"source": d.Source},
			})
		}
		if came {
			s.tell(event.Event{
				Kind: event.SensorGap, Level: event.Info, Msg: "GPU readings began: " + d.Name,
				Data: map[string]any{"source": "nvml", "state": "end"},
			})
		}
	}
	var names []string
	s.mu.Lock()
	for _, name := range d.Absent {
		if !s.noted[name] {
			s.noted[name] = true
			names = append(names, name)
		}
	}
	s.mu.Unlock()
	if len(names) > 0 {
		s.tell(event.Event{
			Kind: event.SensorAbsent, Level: event.Info,
			Msg:  "this machine does not report: " + strings.Join(names, ", "),
			Data: map[string]any{"absent": names},
		})
	}
}

func (s *Sampler) noteNoGPU(d *sample.Device) {
	s.mu.Lock()
	// Of a GPU that was there the gap in its readings tells, with the reason.
	had := s.noted[hadGPU]
	news := s.notedNone != d.Err && !had
	if !had {
		s.notedNone = d.Err
	}
	s.mu.Unlock()
	if !news {
		return
	}
	level := event.Info
	switch nvml.Kind(d.ErrKind) {
	case nvml.Lost, nvml.ResetRequired, nvml.Other:
		level = event.Warn
	}
	s.tell(event.Event{
		Kind: event.SensorAbsent, Level: level, Msg: "no GPU readings: " + d.Err,
		Data: map[string]any{"source": "nvml", "err_kind": d.ErrKind},
	})
}

// filePrefix marks the files among the sources in gaps.
const filePrefix = "file:"

// fileNote turns what happens to a file into events, with the same quiet rule
// as for sensors: a disk at its limit is full and not full many times an hour.
func (s *Sampler) fileNote(name string, kind trouble, err error, dropped int) {
	at := s.opts.Clock.Now()
	key := filePrefix + name + ":" + string(kind)
	path := filepath.Join(s.opts.Dir, name)
	if err == nil {
		s.mu.Lock()
		ended, lasted := s.gaps.ok(key, at)
		s.mu.Unlock()
		if !ended && dropped == 0 {
			return
		}
		e := event.Event{
			T: at, Kind: kind.eventKind(nil), Level: event.Info,
			Msg:  fmt.Sprintf("%s is written again after %s", path, clock.Span(lasted)),
			Data: map[string]any{"file": name, "state": "end", "lost_rows": dropped},
		}
		if dropped > 0 {
			e.Level = event.Warn
			e.Msg = fmt.Sprintf("%s is written again; %d rows are lost", path, dropped)
		}
		s.tell(e)
		return
	}
	s.mu.Lock()
	began := s.gaps.fail(key, at)
	s.mu.Unlock()
	if began {
		s.tell(event.Event{
			T: at, Kind: kind.eventKind(err), Level: event.Warn,
			Msg:  fmt.Sprintf("%s cannot be written, the run goes on without it: %v", path, err),
			Data: map[string]any{"file": name, "state": "start"},
		})
	}
}

func (k trouble) eventKind(err error) event.Kind {
	switch {
	case k == troubleSlow:
		return event.Hygiene
	case err == nil, errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return event.DiskFull
	}
	return event.Internal
}
