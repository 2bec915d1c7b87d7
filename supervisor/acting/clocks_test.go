package acting

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/sample"
)

var began = time.Date(2026, 3, 1, 22, 0, 0, 0, time.UTC)

// reading is one at so many minutes, at a clock and utilisation.
func reading(min, mhz, util float64) *sample.Sample {
	s := &sample.Sample{T: began.Add(time.Duration(min * float64(time.Minute)))}
	s.ClockSMMHz, s.UtilPct = sample.Known(mhz), sample.Known(util)
	return s
}

func TestWhatPersists(t *testing.T) {
	t.Parallel()
	const heat = "thermal-throttle"
	start := func(min float64, level event.Level, id string, more map[string]any) event.Event {
		e := told(event.ThrottleStart, level, heat, id, more)
		e.T = reading(min, 0, 0).T
		return e
	}
	end := func(level event.Level, id string) event.Event { return told(event.ThrottleEnd, level, heat, id, nil) }
	update := func(level event.Level, id string, episodes int) event.Event {
		return told(event.ThrottleUpdate, level, heat, id, map[string]any{"episodes": episodes})
	}
	slowdown := told(event.ThrottleStart, event.Warn, "slowdown", "s", map[string]any{"cause": heat})
	for name, tt := range map[string]struct {
		events []event.Event
		at     float64 // minutes
		want   string
	}{
		"nothing":                        {nil, 60, ""},
		"one warned and over":            {[]event.Event{start(1, event.Warn, "a", nil), end(event.Warn, "a")}, 60, ""},
		"two warned":                     {[]event.Event{start(1, event.Warn, "a", nil), end(event.Warn, "a"), start(5, event.Warn, "b", nil)}, 5, "came back (2 times)"},
		"two that are information":       {[]event.Event{start(1, event.Info, "a", nil), end(event.Info, "a"), start(5, event.Info, "b", nil), end(event.Info, "b")}, 60, ""},
		"one seen twice":                 {[]event.Event{start(1, event.Warn, "a", nil), update(event.Warn, "a", 1), end(event.Warn, "a")}, 60, ""},
		"one for ten minutes":            {[]event.Event{start(1, event.Warn, "a", nil)}, 11, ""},
		"one for longer":                 {[]event.Event{start(1, event.Warn, "a", nil)}, 11.1, "gone on for 10 min"},
		"one that had begun long before": {[]event.Event{start(11, event.Warn, "a", map[string]any{"since": clock.Machine(began)})}, 11, "gone on for 11 min"},
		"a long one of no weight":        {[]event.Event{start(1, event.Info, "a", nil), update(event.Info, "a", 1)}, 60, ""},
		"that becomes worse":             {[]event.Event{start(1, event.Info, "a", nil), update(event.Warn, "a", 1)}, 20, "gone on for 19 min"},
		"several in one line":            {[]event.Event{start(1, event.Info, "a", nil), end(event.Info, "a"), update(event.Warn, "a", 7)}, 20, "came back (7 times)"},
		"several of no weight":           {[]event.Event{start(1, event.Info, "a", nil), end(event.Info, "a"), update(event.Info, "a", 7)}, 20, ""},
		"the slowdown has warned":        {[]event.Event{start(1, event.Info, "a", nil), slowdown}, 20, "gone on for 19 min"},
		"the slowdown alone":             {[]event.Event{slowdown}, 20, ""},
		"power alone":                    {[]event.Event{told(event.ThrottleStart, event.Warn, "power-cap", "p", nil), told(event.ThrottleStart, event.Warn, "hw-brake", "h", nil), told(event.ThrottleStart, event.Warn, "hot", "z", nil)}, 60, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c Clocks
			for i := range tt.events {
				c.Take(reading(0.5, 2300, 95), tt.events[i:i+1])
			}
			c.Take(reading(tt.at, 2300, 95), nil)
			if got := c.Why(); tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestCapIsDownwardOnly(t *testing.T) {
	t.Parallel()
	for mhz, ok := range map[int]bool{599: false, 600: true, 2411: true, 2412: false, 3003: false} {
		if err := CheckCap(mhz); (err == nil) != ok {
			t.Errorf("%d MHz: %v", mhz, err)
		}
	}
	var c Clocks
	if got := c.Refuse(2000); !strings.Contains(got, "not known") {
		t.Errorf("nothing is known of the clock: %q", got)
	}
	for i := range 100 {
		c.Take(reading(float64(i)/60, 2405, 3), nil) // idle: says nothing
	}
	if c.Plateau().OK {
		t.Error("an idle clock was taken for one under load")
	}
	// 2200 MHz under load, with dips.
	for i := range 900 {
		mhz := 2200.0
		if i%4 == 0 {
			mhz = 1859
		}
		c.Take(reading(float64(i)/60, mhz, 96), nil)
	}
	c.Take(&sample.Sample{T: began.Add(time.Hour)}, nil)
	if got := c.Plateau(); !got.OK || got.V != 2200 {
		t.Errorf("plateau %v", got)
	}
	if got := c.Refuse(2100); got != "" {
		t.Errorf("2100 MHz refused: %s", got)
	}
	for _, mhz := range []int{2200, 2300} {
		if got := c.Refuse(mhz); !strings.Contains(got, "lower nothing") {
			t.Errorf("%d MHz: %q", mhz, got)
		}
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	left := func(run, boot string) Left { return Left{Path: run, Lease: Lease{Run: run, Boot: boot, MHz: 2000}} }
	live := func(l Left) Left { l.Live = true; return l }
	for name, tt := range map[string]struct {
		found          []Left
		boot           string
		lift           bool
		of, gone, held string
	}{
		"nothing":                   {nil, "b", false, "", "", ""},
		"one that died":             {[]Left{left("a", "b")}, "b", true, "a", "", ""},
		"before the reboot":         {[]Left{left("a", "old")}, "b", false, "", "a", ""},
		"one that lives":            {[]Left{live(left("a", "b"))}, "b", false, "", "", "a"},
		"dead beside one that runs": {[]Left{left("a", "b"), live(left("c", "b"))}, "b", false, "a", "", "c"},
		"all of it":                 {[]Left{left("a", "b"), left("c", "b"), left("d", "old")}, "b", true, "a c", "d", ""},
		"cannot be read":            {[]Left{{Path: "a", Broken: true}}, "b", true, "a", "", ""},
		"this boot has no name":     {[]Left{left("a", "b")}, "", true, "a", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Restore(tt.found, tt.boot)
			paths := func(ls []Left) string {
				var out []string
				for _, l := range ls {
					out = append(out, l.Path)
				}
				return strings.Join(out, " ")
			}
			if got.Lift != tt.lift || paths(got.Of) != tt.of || paths(got.Gone) != tt.gone || strings.Join(got.Held, " ") != tt.held {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Whatever lies there: no lease is in two heaps or none, and nothing is set free under
// a run that lives.
func TestRestoreHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) Left {
			return Left{
				Path: rapid.StringMatching(`[a-z]{6}`).Draw(t, "path"), Live: rapid.Bool().Draw(t, "live"), Broken: rapid.Bool().Draw(t, "broken"),
				Lease: Lease{Boot: rapid.SampledFrom([]string{"", "now", "before"}).Draw(t, "boot"), MHz: rapid.IntRange(0, 3000).Draw(t, "mhz")},
			}
		})
		found := rapid.SliceOfN(one, 0, 8).Draw(t, "found")
		r := Restore(found, "now")
		if len(r.Of)+len(r.Gone)+len(r.Held) != len(found) {
			t.Fatalf("%d leases became %+v", len(found), r)
		}
		anyLive := slices.ContainsFunc(found, func(l Left) bool { return l.Live })
		if r.Lift && anyLive {
			t.Fatal("set free under a run that lives")
		}
		if !anyLive && len(r.Of) > 0 && !r.Lift {
			t.Fatal("nobody lives, and the cap stays")
		}
	})
}

func TestLowestHeld(t *testing.T) {
	t.Parallel()
	if got := LowestHeld([]Left{{Lease: Lease{MHz: 1500}}}); got != 0 {
		t.Errorf("a dead one holds %d", got)
	}
	if got := LowestHeld([]Left{{Live: true, Lease: Lease{MHz: 2100}}, {Live: true, Lease: Lease{MHz: 1900}}, {Live: true}}); got != 1900 {
		t.Errorf("held %d", got)
	}
}

func TestInForce(t *testing.T) {
	t.Parallel()
	of := func(boot string, mhz int) Left { return Left{Lease: Lease{Boot: boot, MHz: mhz}} }
	live := func(l Left) Left { l.Live = true; return l }
	for name, tt := range map[string]struct {
		found []Left
		boot  string
		want  int
	}{
		"nothing":               {nil, "b", 0},
		"one that died":         {[]Left{of("b", 1000)}, "b", 1000},
		"one that lives":        {[]Left{live(of("b", 1000))}, "b", 1000},
		"before the reboot":     {[]Left{of("old", 1000)}, "b", 0},
		"the lowest":            {[]Left{of("b", 1900), live(of("b", 1500)), of("old", 700)}, "b", 1500},
		"cannot be read":        {[]Left{{Broken: true}, of("b", 1500)}, "b", 600},
		"without a clock":       {[]Left{of("b", 0)}, "b", 600},
		"as if all were slow":   {[]Left{of("b", 1)}, "b", 600},
		"this boot has no name": {[]Left{of("old", 1000)}, "", 1000},
		"the lease has no boot": {[]Left{of("", 1000)}, "b", 1000},
	} {
		if got := InForce(tt.found, tt.boot); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

func TestSMISaidIsOneLine(t *testing.T) {
	t.Parallel()
	got := SMISaid("GPU clocks set to \"(gpuClkMin 300)\"\nAll done.\x1b[31m\n" + strings.Repeat("ä", 300))
	if strings.ContainsAny(got, "\n\x1b") || len(got) > 203 || !strings.HasPrefix(got, `GPU clocks set to "(gpuClkMin 300)" All done.`) {
		t.Errorf("%q", got)
	}
}
