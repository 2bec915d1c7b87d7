package oom

import (
	"fmt"
	"time"
)

// memState is what the samples of the last minute say about host memory.
type memState int

const (
	memUnknown memState = iota // no samples, or none near the death
	memClear                   // never low
	memBetween                 // low enough for doubt
	memLow                     // it was running out
)

// The limits. Below memLowPct of MemTotal the machine is at its end; above
// memClearPct it never came near. A fall counts when it would have reached the
// end within fallHorizon: loading a model also eats gigabytes a second, with
// plenty left.
const (
	memLowPct   = 3.0
	memClearPct = 10.0
	psiFull     = 20.0
	fallGiBs    = 1.0
	fallHorizon = 5 * time.Second
	sampleFresh = 15 * time.Second
)

// memory reads the samples; text says what was seen, in one sentence.
func memory(ev *Evidence) (state memState, text string) {
	end := ev.death()
	const gib = 1 << 20 // KiB
	lowPct, lowKiB := 100.0, 0.0
	n, fresh := 0, false
	var fall, swap, psi string
	var prevT time.Time
	var prev float64
	for i := range ev.Samples {
		s := &ev.Samples[i]
		if !s.MemAvailableKiB.OK || !s.MemTotalKiB.OK || s.MemTotalKiB.V <= 0 {
			continue
		}
		if !end.IsZero() && s.T.After(end.Add(time.Second)) {
			continue // after the death memory is free again
		}
		n++
		fresh = fresh || end.IsZero() || s.T.IsZero() || end.Sub(s.T) <= sampleFresh
		v := s.MemAvailableKiB.V
		if pct := 100 * v / s.MemTotalKiB.V; pct < lowPct || n == 1 {
			lowPct, lowKiB = pct, v
		}
		if dt := s.T.Sub(prevT).Seconds(); !prevT.IsZero() && dt > 0 {
			rate := (prev - v) / dt
			near := end.IsZero() || end.Sub(s.T) <= fallHorizon
			if rate > fallGiBs*gib && near && v/rate < fallHorizon.Seconds() {
				fall = fmt.Sprintf("MemAvailable fell by %.1f GiB/s with %s left", rate/gib, sizeText(v))
			}
		}
		prevT, prev = s.T, v
		if s.PSIMemFull10.OK && s.PSIMemFull10.V > psiFull {
			psi = fmt.Sprintf("memory pressure was %.0f %% (full, 10 s)", s.PSIMemFull10.V)
		}
		// Swap that is full is only a sign where memory is tight too: a machine
		// keeps old pages there for weeks.
		if s.SwapTotalKiB.OK && s.SwapTotalKiB.V > 0 && s.SwapFreeKiB.OK &&
			s.SwapFreeKiB.V < 0.02*s.SwapTotalKiB.V && 100*v/s.MemTotalKiB.V < memClearPct {
			swap = fmt.Sprintf("swap was full with %s of memory left", sizeText(v))
		}
	}
	// The guard looks ten times as often, and it acted on what it saw.
	if g := ev.Guard; g != nil && !g.Warned && g.Limit == "" {
		if g.AvailKiB.OK && (n == 0 || g.AvailKiB.V < lowKiB) {
			return memLow, fmt.Sprintf("lowest MemAvailable %s, when the memory guard acted", sizeText(g.AvailKiB.V))
		}
		if n > 0 {
			return memLow, fmt.Sprintf("lowest MemAvailable %s (%.1f %%) before the memory guard acted", sizeText(lowKiB), lowPct)
		}
	}
	if n == 0 {
		return memUnknown, ""
	}
	text = fmt.Sprintf("lowest MemAvailable %s (%.1f %%)", sizeText(lowKiB), lowPct)
	switch {
	case lowPct < memLowPct:
		return memLow, text
	case fall != "":
		return memLow, fall
	case psi != "":
		return memLow, psi
	case swap != "":
		return memLow, swap
	case !fresh:
		return memUnknown, text + ", but no sample near the end"
	case lowPct < memClearPct:
		return memBetween, text
	}
	return memClear, text
}

// hostTotal is MemTotal in bytes, 0 when unknown.
func hostTotal(ev *Evidence) int64 {
	for i := range ev.Samples {
		if s := &ev.Samples[i]; s.MemTotalKiB.OK {
			return int64(s.MemTotalKiB.V) << 10
		}
	}
	return 0
}
