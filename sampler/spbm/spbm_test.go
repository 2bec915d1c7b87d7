package spbm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sparkrun/internal/sample"
)

func TestChannelsAreFoundByLabel(t *testing.T) {
	t.Parallel()
	labels := map[string]string{
		"/h/power1_label": "sys_total", "/h/power2_label": "gpu", "/h/power10_label": "pl1",
		"/h/power11_label": "", "/h/energy3_label": "pkg", "/h/temp1_label": "tj_max", "/h/power03_label": "x",
	}
	names := []string{"name", "power10_cap", "power10_max", "power2_input", "uevent"}
	for path := range labels {
		names = append(names, path[len("/h/"):])
	}
	slices.Sort(names)
	got := Channels("/h", names, func(path string) string { return labels[path] })
	want := []Channel{
		{Kind: Power, Label: "sys_total", Input: "/h/power1_input"},
		{Kind: Power, Label: "gpu", Input: "/h/power2_input"},
		{Kind: Power, Label: "pl1", Input: "/h/power10_input", Cap: "/h/power10_cap"},
		{Kind: Energy, Label: "pkg", Input: "/h/energy3_input"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPowers(t *testing.T) {
	t.Parallel()
	unknown := sample.Num{}
	for _, c := range []struct {
		raw        int64
		watts, cap sample.Num
	}{
		{139_700_000, sample.Known(139.7), sample.Known(139.7)},
		{0, sample.Known(0), unknown},
		{10_000, sample.Known(0.01), sample.Known(0.01)},
		{-1, unknown, unknown},
		{0xFFFFFFFF, unknown, unknown},
		{0xFFFFFFFF * 1000, unknown, unknown},
	} {
		if w, l := Watts(c.raw), Cap(c.raw); w != c.watts || l != c.cap {
			t.Errorf("%d: %+v, as a limit %+v", c.raw, w, l)
		}
	}
	soc, sys := Caps([]sample.Power{
		{Label: "pl2", CapW: sample.Known(142)},
		{Label: PL1, W: sample.Known(19.8), CapW: sample.Known(20)},
		{Label: SysPL1, CapW: sample.Known(30)},
	})
	if soc != sample.Known(20) || sys != sample.Known(30) {
		t.Errorf("limits %+v %+v", soc, sys)
	}
	if soc, sys = Caps(nil); soc.OK || sys.OK {
		t.Errorf("limits of nothing: %+v %+v", soc, sys)
	}
}

func TestEnergyCounter(t *testing.T) {
	t.Parallel()
	const mj, turn = 1000, 1 << 32 // microjoules in a millijoule; the firmware's 32 bits
	for name, c := range map[string]struct {
		raw  []int64
		want string
	}{
		"runs on":              {[]int64{5e6, 105e6, 245e6}, "5 105 245"},
		"firmware wraps":       {[]int64{(turn - 100) * mj, 140_000 * mj}, "4294967.196 4295107.296"},
		"driver wraps":         {[]int64{turn - 1e6, 100e6}, "4293.967 4394.967"},
		"reset":                {[]int64{3e12, 5e6, 10e6}, "3000000 5 10"},
		"reset near the end":   {[]int64{(turn - 100) * mj, 2e9, 2.1e9}, "4294967.196 2000 2100"},
		"no value":             {[]int64{5e6, turn - 1, (turn - 1) * 1000, -1, 9e6}, "5    9"},
		"nothing used":         {[]int64{5e6, 5e6}, "5 5"},
		"wraps and then reset": {[]int64{turn - 1e6, 100e6, 1e6}, "4293.967 4394.967 1"},
	} {
		var k Counter
		got := ""
		for i, raw := range c.raw {
			if i > 0 {
				got += " "
			}
			got += k.Joules(raw, time.Duration(i)*time.Second).CSV(3)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Whatever a machine draws, the counter shows all of it and never falls.
func TestEnergyIsCountedThroughWraps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]int64{1, 1000}).Draw(t, "unit")
		total := rapid.Int64Range(0, 1<<33).Draw(t, "start") // in units
		start := total - total%(1<<32)
		var k Counter
		var at time.Duration
		for range rapid.IntRange(1, 60).Draw(t, "readings") {
			got := k.Joules(total%(1<<32)*unit, at)
			want := float64(total-start) * float64(unit) / 1e6
			if raw := total % (1 << 32); raw != 1<<32-1 && (!got.OK || fmt.Sprintf("%.3f", got.V) != fmt.Sprintf("%.3f", want)) {
				t.Fatalf("%+v, want %v", got, want)
			}
			step := rapid.Int64Range(1, 10).Draw(t, "seconds")
			watts := rapid.Int64Range(1, 300).Draw(t, "watts")
			at += time.Duration(step) * time.Second
			total += step * watts * 1e6 / unit
		}
	})
}
