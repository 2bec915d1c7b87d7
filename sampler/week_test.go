package sampler

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // for a zone that changes its offset, wherever the test runs

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

// TestAWeekLosesNoTick runs the sampler for seven days at one row a second: over the end of
// daylight saving time, and with a machine that is suspended for two hours on the third
// day. The clock of time.Now says another year all the while, as after a step: nothing of
// it may show.
func TestAWeekLosesNoTick(t *testing.T) {
	t.Parallel()
	sampleFor(t, weekTicks, nil)
}

// TestMemoryStaysFlat runs alone, since memory is the process's: not a word is kept of each
// row.
func TestMemoryStaysFlat(t *testing.T) {
	const ticks = 40_000
	var early, late uint64
	sampleFor(t, ticks, func(n int) {
		switch n {
		case ticks / 8:
			early = inUse()
		case ticks:
			late = inUse()
		}
	})
	if late > early+ticks*7/8*8 {
		t.Errorf("memory in use grew from %d to %d bytes in %d rows", early, late, ticks*7/8)
	}
}

// sampleFor runs a sampler for so many seconds of its clock and looks at all that it did;
// each, if set, hears the number of each row.
func sampleFor(t *testing.T, ticks int, each func(n int)) {
	t.Helper()
	const suspended = 2*time.Hour + 300*time.Millisecond
	suspendAt := ticks * 3 / 7
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var events []event.Event
	rows, missed := 0, 0
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var slept atomic.Int64
		// Before the real CLOCK_BOOTTIME at all times, so that readings are not from the
		// future.
		base := clock.Boottime() - 8*24*time.Hour
		now := func() time.Duration { return base + time.Since(start) + time.Duration(slept.Load()) }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		over := make(chan struct{})
		var s *Sampler
		ready := make(chan struct{})
		s, err := Start(ctx, Options{
			Clock: clock.Restore(time.Date(2026, 10, 23, 12, 0, 0, 0, berlin), base),
			Dir:   dir,
			Exe:   "sensors",
			Events: func(e event.Event) {
				events = append(events, e)
			},
			OnSample: func(row *sample.Sample) {
				if rows < ticks {
					// On its second to the nanosecond, the suspended ones left out.
					want := time.Duration(rows+missed+row.Missed) * time.Second
					if late := row.Mono - want; late != 0 && row.Missed == 0 || late < 0 || late > time.Second {
						t.Errorf("row %d at %v, want %v", rows, row.Mono, want)
					}
					// The first reading comes after the first row, and after a suspend the
					// timers need a moment.
					if none := rows == 0 || rows == suspendAt || rows == suspendAt+1; !none && (!row.TempC.OK || row.GPUAge != lead) {
						t.Errorf("row %d: a reading %v of %v ago", rows, row.TempC, row.GPUAge)
					}
				}
				missed += row.Missed
				rows++
				if each != nil {
					each(rows)
				}
				switch rows {
				case suspendAt:
					slept.Store(int64(suspended))
				case ticks:
					close(over)
				}
			},
			test: internals{
				now:     now,
				wait:    bubbled,
				figures: func(row *sample.Sample) { row.MemAvailableKiB = sample.Known(float64(rows)) },
				sync:    func(*os.File) error { return nil },
				sensors: func(ctx context.Context) {
					<-ready
					every(ctx, bubbled(), now, base+time.Second-lead, time.Second, func(int) {
						s.hear(&record{GPU: &sample.GPU{T: now(), TempC: sample.Known(68), PowerW: sample.Known(95)}})
					})
				},
				partBytes: 1 << 20,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		close(ready)
		<-over
		s.Stop()
	})
	if want := int(suspended / time.Second); missed < want-1 || missed > want+1 {
		t.Errorf("%d ticks missed in a suspend of %v", missed, suspended)
	}
	if len(events) != 1 || events[0].Kind != event.SensorGap || !strings.Contains(events[0].Msg, "no rows for 2 h") || !strings.Contains(events[0].Msg, "suspended") {
		t.Errorf("events: %+v", events)
	}

	// The files hold every row, once and in order, each part with its header.
	n, parts := 0, 0
	last := -1.0
	for _, name := range partNames(t, dir, "telemetry") {
		parts++
		lines := bytes.Split(bytes.TrimSuffix([]byte(content(t, dir, name)), []byte("\n")), []byte("\n"))
		if string(lines[0])+"\n" != string(telemetryHeader()) {
			t.Fatalf("%s begins with %q", name, lines[0])
		}
		for _, line := range lines[1:] {
			cells := strings.SplitN(string(line), ",", 3)
			mono := number(t, cells[1])
			if !strings.HasSuffix(cells[0], "+02:00") || !strings.HasPrefix(cells[0], "2026-") {
				t.Fatalf("row %d of the run is at %s", n, cells[0])
			}
			if step := mono - last; n < ticks && (step < 0.999 || step > 1.001) && n != suspendAt && n != suspendAt+1 {
				t.Fatalf("row %d comes %.3f s after the one before", n, step)
			}
			last = mono
			n++
		}
	}
	if n != rows || parts < 3 {
		t.Errorf("%d rows in %d parts, want %d", n, parts, rows)
	}
	thermal := strings.Count(content(t, dir, "thermal.csv"), ", 68, 95.00 W\n")
	if want := ticks / 30; thermal < want-1 || thermal > want+3 {
		t.Errorf("%d rows in thermal.csv, want %d", thermal, want)
	}
}

// partNames lists the parts of a file in the order of their rows.
func partNames(t *testing.T, dir, base string) []string {
	t.Helper()
	var names []string
	for n := 1; ; n++ {
		name := fmt.Sprintf("%s.%03d.csv", base, n)
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return append(names, base+".csv")
		}
		names = append(names, name)
	}
}

// inUse is the memory in use after a collection.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
