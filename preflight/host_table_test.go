package preflight

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestHostTable(t *testing.T) {
	t.Parallel()
	h, err := loadHostTable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.DateOnly, h.AsOf); err != nil {
		t.Errorf("as_of: %v", err)
	}
	for _, list := range [][]string{h.Driver.Nodes, h.Driver.MayBeAbsent, h.Driver.Libraries, {h.Clock.Synchronised}} {
		for _, path := range list {
			if !strings.HasPrefix(path, "/") {
				t.Errorf("%q is no path", path)
			}
		}
	}
	for _, k := range h.Kernel.KnownBad {
		if !regexp.MustCompile(`^\d+\.\d+\.\d+-\d+$`).MatchString(k.Release) || k.What == "" || k.Source == "" || k.Fix == "" {
			t.Errorf("kernel %+v", k)
		}
	}
	w, b := h.Watch, h.Boot
	if len(h.Driver.Nodes) == 0 || len(h.Kernel.KnownBad) == 0 || len(h.Clock.Services) == 0 || h.Clock.EarliestYear < 2025 || h.Clock.SettleS <= 0 ||
		b.NewsH <= 0 || b.Often < 2 || b.OftenDays <= 0 || h.PowerCaps.FloorW["pl1"] <= 20 || h.PowerCaps.FloorW["syspl1"] <= 30 ||
		w.EnoughS < 600 || w.LoadPct <= 0 || w.LowCap.MinW <= 0 || w.LowCap.MaxW <= w.LowCap.MinW || w.LowCap.ForS <= 0 || w.LowCap.ClockMHz <= 0 || w.LowCap.UtilPct <= 0 {
		t.Errorf("table %+v", h)
	}
}

// What preflight takes of the table of package throttle must be there under these names.
func TestThermalTable(t *testing.T) {
	t.Parallel()
	h, err := loadThermalTable()
	if err != nil {
		t.Fatal(err)
	}
	s, p, w := h.Signature, h.PowerCap, h.Wedge
	for i, v := range []float64{
		h.GapS, h.Thermal.CounterMS, h.Thermal.WarnShare, h.Thermal.ShareFloorS, s.PlateauS, s.WindowS, s.UtilPct, s.PowerDrop, s.TempC, s.RiseC, s.ForS,
		p.MinW, p.MaxW, p.UtilPct, p.ClockMHz, p.ForS, w.UtilPct, w.ClockMHz, w.PowerW, w.ForS,
	} {
		if v <= 0 {
			t.Errorf("threshold %d is missing", i)
		}
	}
	if len(h.Platforms) == 0 {
		t.Error("no platforms")
	}
	// The low cap lies between the wedge and the plateau.
	if low := aboutHost().Watch.LowCap; low.MinW != w.PowerW || low.MaxW != p.MinW || low.ClockMHz != p.ClockMHz {
		t.Errorf("low cap %+v leaves a gap between wedge %+v and plateau %+v", low, w, p)
	}
}
