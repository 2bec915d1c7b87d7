package postmortem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/sampler/energy"
	"sparkrun/supervisor/acting"
	"sparkrun/supervisor/runlog"
)

const (
	// reckonFor is how long the whole of a run's telemetry may be read: two days of rows
	// are 64 MiB. What takes longer is left unknown.
	reckonFor = 2 * time.Second
	// mostReading is more than any cell of ours: energy in joules is the largest.
	mostReading = 1e15
	// leastGap is the least time between readings over which no energy is estimated,
	// gapRows the number of rows that make a longer one.
	leastGap = 5 * time.Second
	gapRows  = 2.5
	// tickMost is the longest time between rows that a run can ask for.
	tickMost = 10 * time.Minute
)

// reckoned is what the files of a run without an end say of its heat, its energy and its
// pauses. What is not known is unknown: run.json as it was last written is of an earlier
// moment.
type reckoned struct {
	// hottest and used are the last attempt's, the others the whole run's.
	hottest, runHottest, lowestKiB sample.Num
	used, runUsed                  energy.Figures
	// pauses is how often the last attempt was paused, paused for how long.
	pauses int
	paused time.Duration
	// cut is the pause whose end nobody wrote down, nil for none.
	cut *cutPause
	// last is the time of the newest row, zero for none.
	last time.Time
}

// cutPause is a pause that sparkrun's death has ended: the holder wakes the command then.
type cutPause struct {
	end  time.Time
	took time.Duration
}

// reckon reads all of telemetry.csv and of events.jsonl; over is when the last attempt
// ended.
func (f *attemptFiles) reckon(ctx context.Context, over time.Time) reckoned {
	limit := reckonFor
	if at, ok := ctx.Deadline(); ok {
		// A run that takes too long is left for the next time: this must not be why.
		limit = min(limit, time.Until(at)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l, toldErr := readPauses(ctx, filepath.Join(f.run, runlog.EventsFile), f.n)
	p := &replay{man: f.man, n: f.n, over: over}
	var r reckoned
	if p.readAll(ctx, filepath.Join(f.run, "telemetry.csv")) == nil {
		r = p.reckoned()
	}
	if toldErr != nil || f.n == 0 {
		return r
	}
	r.pauses, r.paused = l.n, l.took
	if l.since != nil {
		// The command may have gone on for hours; rows end with sparkrun.
		end := over
		if !r.last.IsZero() && r.last.Before(over) {
			end = r.last
		}
		if end.Before(*l.since) {
			end = *l.since
		}
		r.cut = &cutPause{end: end, took: end.Sub(*l.since)}
		r.paused += r.cut.took
	}
	if r.hottest.OK {
		// The row of that reading need not have come to the disk.
		r.hottest, r.runHottest = higher(r.hottest, l.hottest), higher(r.runHottest, l.hottest)
	}
	return r
}

// into puts it into run.json. Of an attempt whose end stands there already, what was
// written with that end stays.
func (r *reckoned) into(man *runlog.Manifest, attempt int, ended bool) {
	for i := range man.Attempts {
		a := &man.Attempts[i]
		if a.N != attempt {
			continue
		}
		a.Pauses, a.PausedS = r.pauses, math.Round(r.paused.Seconds()*1000)/1000
		switch {
		case !ended:
			a.Heat, a.Energy = heatOf(r.hottest), runlog.EnergyOf(r.used)
		case a.Heat == nil:
			a.Heat = heatOf(r.hottest)
		default:
			h := *a.Heat
			h.HottestC = higher(h.HottestC, r.hottest)
			a.Heat = &h
		}
		if a.Energy == nil {
			a.Energy = runlog.EnergyOf(r.used)
		}
	}
	man.Summary = runlog.Summary{
		LowestMemAvailableKiB: r.lowestKiB, HottestC: r.runHottest,
		Heat: heatOf(r.runHottest), Energy: runlog.EnergyOf(r.runUsed),
	}
}

// heatOf is a record of which only the hottest reading is known, nil without it.
func heatOf(hottest sample.Num) *runlog.Heat {
	if !hottest.OK {
		return nil
	}
	return &runlog.Heat{HottestC: hottest}
}

func higher(a, b sample.Num) sample.Num {
	if !a.OK || b.OK && b.V > a.V {
		return b
	}
	return a
}

// event is the end that nobody has told; wentOn says that the command lived longer.
func (c *cutPause) event(attempt int, wentOn bool) event.Event {
	why := acting.WhyEnds
	if wentOn {
		why = acting.WhyOther
	}
	return event.Event{
		T: c.end, Attempt: attempt, Kind: event.Continue, Level: event.Warn,
		Msg:  fmt.Sprintf("the pause is over, after %.1f s, since sparkrun was killed: the holder wakes the command then", c.took.Seconds()),
		Data: map[string]any{"why": why, "paused_s": c.took.Seconds()},
	}
}

// pauses are those of one attempt in events.jsonl.
type pauses struct {
	n     int
	took  time.Duration
	since *time.Time // of one without an end
	// hottest is what the events say of the temperature.
	hottest sample.Num
}

func readPauses(ctx context.Context, path string, attempt int) (pauses, error) {
	var p pauses
	f, err := os.Open(path)
	if err != nil {
		return p, err
	}
	defer f.Close()
	err = eachLine(until(ctx, f), rowMax, func(line []byte, whole bool) {
		var e struct {
			T       time.Time  `json:"t"`
			Attempt int        `json:"attempt"`
			Kind    event.Kind `json:"kind"`
			Data    struct {
				PausedS sample.Num `json:"paused_s"`
				Zone    sample.Num `json:"temp_zone_max_c"`
				Die     sample.Num `json:"temp_gpu_c"`
			} `json:"data"`
		}
		if !whole || !bytes.Contains(line, []byte(event.Pause)) && !bytes.Contains(line, []byte(event.Continue)) {
			return
		}
		if json.Unmarshal(line, &e) != nil || e.Attempt != attempt {
			return
		}
		switch {
		case e.Kind == event.Pause:
			p.n++
			p.since = &e.T
		case e.Kind == event.Continue && p.since != nil:
			took := e.T.Sub(*p.since)
			if s := e.Data.PausedS; s.OK && s.V >= 0 && s.V < tooLongS {
				took = time.Duration(s.V * float64(time.Second))
			}
			p.took, p.since = p.took+max(0, took), nil
		default:
			return
		}
		p.hottest = higher(higher(p.hottest, e.Data.Zone), e.Data.Die)
	})
	return p, err
}

// tooLongS is a pause that no run has had, in seconds.
const tooLongS = 365 * 24 * 3600

// replay gives the rows of telemetry to what has counted them while the run went on.
type replay struct {
	man  *runlog.Manifest
	n    int
	over time.Time

	cols  []int // by cell: which of the readings it is, -1 for none
	meter *energy.Meter
	// first waits for the second row, which tells how far apart rows are.
	first *sample.Sample
	row   sample.Sample
	r     reckoned
}

// The cells that are looked at.
const (
	cellMono = iota
	cellAttempt
	cellStep
	cellTokens
	cellDie
	cellZone
	cellPower
	cellPowerSys
	cellUtil
	cellEnergy
	cellEnergySoC
	cellGPUTree
	cellAvailable
	cells
)

var cellNames = [cells]string{
	cellMono: "mono_s", cellAttempt: "attempt", cellStep: "step", cellTokens: "tokens", cellDie: "temp_gpu_c", cellZone: "temp_zone_max_c",
	cellPower: "power_gpu_w", cellPowerSys: "power_sys_w", cellUtil: "util_gpu_pct", cellEnergy: "energy_j", cellEnergySoC: "energy_soc_j",
	cellGPUTree: "gpu_tree_mib", cellAvailable: "mem_available_kib",
}

// readAll reads the full parts, oldest first, and then the file itself.
func (p *replay) readAll(ctx context.Context, path string) error {
	files := append(allParts(path), path)
	for _, name := range files {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) && len(files) > 1 {
			continue // it was just put aside
		}
		if err != nil {
			return err
		}
		p.cols = nil
		in := readAhead(until(ctx, io.Reader(f)))
		err = eachLine(in, rowMax, p.line)
		in.Close()
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *replay) line(line []byte, whole bool) {
	line = bytes.TrimRight(line, "\r")
	if p.cols == nil {
		p.header(line)
		return
	}
	// A row cut short has a last cell that looks like a number and is none.
	if !whole || bytes.IndexByte(line, 0) >= 0 {
		return
	}
	var v [cells]sample.Num
	i := 0
	for rest, more := line, true; more; i++ {
		var cell []byte
		cell, rest, more = bytes.Cut(rest, []byte(","))
		if i < len(p.cols) && p.cols[i] >= 0 && len(cell) > 0 {
			v[p.cols[i]] = reading(cell)
		}
	}
	if i != len(p.cols) || !v[cellMono].OK || v[cellMono].V < 0 || v[cellMono].V > math.MaxInt32 {
		return
	}
	s := &p.row
	*s = sample.Sample{
		Mono: time.Duration(v[cellMono].V * float64(time.Second)), Attempt: int(v[cellAttempt].Or(0)),
		Step: v[cellStep], Tokens: v[cellTokens], GPUTreeMiB: v[cellGPUTree], MemAvailableKiB: v[cellAvailable],
	}
	s.T = p.man.Start.T.Add(s.Mono)
	s.TempC, s.ZoneMaxC, s.PowerW, s.PowerSys = v[cellDie], v[cellZone], v[cellPower], v[cellPowerSys]
	s.UtilPct, s.EnergyJ, s.EnergySoCJ = v[cellUtil], v[cellEnergy], v[cellEnergySoC]
	p.take(s)
}

func (p *replay) header(line []byte) {
	names := strings.Split(string(line), ",")
	if !slices.Contains(names, cellNames[cellMono]) || !slices.Contains(names, cellNames[cellAttempt]) {
		return
	}
	p.cols = make([]int, len(names))
	for i, name := range names {
		p.cols[i] = slices.Index(cellNames[:], name)
	}
}

// reading is the number in a cell, unknown where that is none that a sensor can give.
func reading(cell []byte) sample.Num {
	v, err := strconv.ParseFloat(string(cell), 64)
	if err != nil || math.IsNaN(v) || math.Abs(v) > mostReading {
		return sample.Num{}
	}
	return sample.Known(v)
}

func (p *replay) take(s *sample.Sample) {
	if s.T.After(p.r.last) {
		p.r.last = s.T
	}
	for _, t := range []sample.Num{s.TempC, s.ZoneMaxC} {
		p.r.runHottest = higher(p.r.runHottest, t)
		if p.n > 0 && s.Attempt == p.n {
			p.r.hottest = higher(p.r.hottest, t)
		}
	}
	if a := s.MemAvailableKiB; a.OK && (!p.r.lowestKiB.OK || a.V < p.r.lowestKiB.V) {
		p.r.lowestKiB = a
	}
	switch {
	case p.meter != nil:
		p.meter.Sample(s)
	case p.first == nil:
		first := *s
		p.first = &first
	default:
		apart := min(max(0, s.Mono-p.first.Mono), tickMost)
		p.meter = p.newMeter(max(leastGap, time.Duration(gapRows*float64(apart))))
		p.meter.Sample(p.first)
		p.meter.Sample(s)
	}
}

// newMeter knows when each attempt began and ended.
func (p *replay) newMeter(gap time.Duration) *energy.Meter {
	m := energy.New(gap)
	for i := range p.man.Attempts {
		a := &p.man.Attempts[i]
		m.Begin(a.N, a.Start.T)
		switch {
		case a.End != nil:
			m.End(a.End.T)
		case a.N == p.n && !p.over.IsZero():
			m.End(p.over)
		}
	}
	return m
}

// reckoned is what the rows were worth.
func (p *replay) reckoned() reckoned {
	if p.meter != nil {
		p.r.used, p.r.runUsed = p.meter.Attempt(p.n), p.meter.Total()
	}
	return p.r
}
