package standalone

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// played is a row as the test sees it: which one it is, and whether it had a reading.
type played struct {
	row    int64
	read   bool
	missed int
}

func play(s *schedule, slots []slot, t time.Duration) []played {
	var out []played
	for _, x := range slots {
		at := x.due
		if x.read {
			at = t
		}
		out = append(out, played{int64((at - s.base) / s.interval), x.read, x.missed})
	}
	return out
}

func TestScheduleOfReadings(t *testing.T) {
	t.Parallel()
	const s = time.Second
	type call struct {
		at   time.Duration
		read bool
		want []played
	}
	for name, calls := range map[string][]call{
		"each row takes the first reading that is due": {
			{100 * s, true, []played{{0, true, 0}}},
			{101 * s, true, nil},
			{129*s + 900*time.Millisecond, true, nil},
			{130*s + 2*time.Millisecond, true, []played{{1, true, 0}}},
			{131 * s, true, nil},
			{160 * s, true, []played{{2, true, 0}}},
		},
		"a row that gets none is written after a while": {
			{100 * s, true, []played{{0, true, 0}}},
			{131 * s, false, nil},
			{132 * s, false, []played{{1, false, 0}}},
			{133 * s, true, nil},
			{160 * s, true, []played{{2, true, 0}}},
		},
		"a late reading belongs to its own row, and those before it have none": {
			{100 * s, true, []played{{0, true, 0}}},
			{160 * s, true, []played{{1, false, 0}, {2, true, 0}}},
		},
		"of the time in which the machine slept there are no rows": {
			{100 * s, true, []played{{0, true, 0}}},
			{100*s + 8*time.Hour, false, []played{{959, false, 958}}},
			{100*s + 8*time.Hour, true, []played{{960, true, 0}}},
			{130*s + 8*time.Hour, true, []played{{961, true, 0}}},
		},
		"nor where a reading comes first after it": {
			{100 * s, true, []played{{0, true, 0}}},
			{105*s + 8*time.Hour, true, []played{{960, true, 959}}},
			{130*s + 8*time.Hour, true, []played{{961, true, 0}}},
		},
	} {
		sch := schedule{base: 100 * s, interval: 30 * s}
		for _, c := range calls {
			var got []played
			if c.read {
				got = play(&sch, sch.reading(c.at), c.at)
			} else {
				got = play(&sch, sch.overdue(c.at), c.at)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(played{})); diff != "" {
				t.Errorf("%s, at %v (-want +got):\n%s", name, c.at, diff)
			}
		}
	}
}

// A week with readings that come late, do not come, and gaps in which the process did not
// run: each row once, in order, none lost without being counted, none later than it may
// be, and no drift.
func TestScheduleLosesNoRow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		interval := rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, 1500 * time.Millisecond, 30 * time.Second, time.Hour}).Draw(t, "interval")
		sch := schedule{base: time.Hour, interval: interval}
		every := step(interval)
		now := sch.base
		next := int64(0)
		take := func(slots []slot) {
			for _, x := range slots {
				at := x.due
				if x.read {
					at = now
				}
				row := int64((at - sch.base) / interval)
				if row != next+int64(x.missed) {
					t.Fatalf("row %d (missed %d) after %d", row, x.missed, next-1)
				}
				if !x.read && x.due != sch.base+time.Duration(row)*interval {
					t.Fatalf("a row at %v is off the schedule", x.due)
				}
				next = row + 1
			}
		}
		for range rapid.IntRange(1, 300).Draw(t, "events") {
			switch rapid.IntRange(0, 20).Draw(t, "what") {
			case 0: // nobody ran
				now += time.Duration(rapid.Int64Range(0, int64(10*time.Hour)).Draw(t, "asleep"))
				take(sch.overdue(now))
			case 1, 2, 3: // no reading comes
				now += min(sch.wait(now), 30*time.Second)
				take(sch.overdue(now))
				if late := now - sch.due(sch.next); late > 2*time.Second {
					t.Fatalf("row %d still waits after %v", sch.next, late)
				}
			default:
				now += every + time.Duration(rapid.Int64Range(0, int64(2*time.Millisecond)).Draw(t, "jitter"))
				take(sch.reading(now))
				if sch.due(sch.next) <= now {
					t.Fatalf("a reading at %v left row %d behind", now, sch.next)
				}
			}
		}
	})
}

func TestReadingsMeetRows(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]time.Duration{
		100 * time.Millisecond:   100 * time.Millisecond,
		500 * time.Millisecond:   500 * time.Millisecond,
		time.Second:              time.Second,
		1500 * time.Millisecond:  1500 * time.Millisecond,
		2500 * time.Millisecond:  1250 * time.Millisecond,
		30 * time.Second:         time.Second,
		24 * time.Hour:           time.Second,
		30001 * time.Millisecond: 30001 * time.Millisecond / 32,
	} {
		if got := step(interval); got != want {
			t.Errorf("rows every %v: readings every %v, want %v", interval, got, want)
		}
	}
}
