package acting

import (
	"strings"
	"testing"

	"sparkrun/internal/event"
)

func told(kind event.Kind, level event.Level, typ, id string, more map[string]any) event.Event {
	data := map[string]any{"type": typ, "id": id}
	for k, v := range more {
		data[k] = v
	}
	return event.Event{Kind: kind, Level: level, Data: data}
}

func TestWedgeIsInFromItsStartToItsEnd(t *testing.T) {
	t.Parallel()
	figures := map[string]any{"util_gpu_pct": 96.0, "clock_sm_mhz": 611.0, "power_w": 12.4}
	var w Wedge
	w.Take([]event.Event{
		told(event.ThrottleStart, event.Warn, "low-cap", "a", nil),
		told(event.ThrottleStart, event.Warn, "thermal-throttle", "b", nil),
		{Kind: event.Hang, Data: map[string]any{"type": "power-wedge"}},
	})
	if w.In {
		t.Fatal("in the wedge by another event")
	}
	w.Take([]event.Event{told(event.ThrottleStart, event.Warn, "power-wedge", "c", figures)})
	w.Take(nil)
	if !w.In || w.ID != "c" {
		t.Fatalf("not in it: %+v", w)
	}
	if got := w.Words(); !strings.Contains(got, "(96 % busy, 611 MHz, 12.4 W)") {
		t.Errorf("words %q", got)
	}
	w.Take([]event.Event{told(event.ThrottleEnd, event.Warn, "power-wedge", "c", nil)})
	if w.In {
		t.Error("still in it after its end")
	}
}

// A clock at our own cap is no wedge, one far below it is.
func TestWedgeAtOurOwnCap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		seen any
		cap  float64
		want bool
	}{
		{1000.0, 0, false},
		{1000.0, 1000, true},
		{900.0, 1000, true},
		{899.0, 1000, false},
		{507.0, 1000, false},
		{507.0, 600, false},
		{560.0, 600, true},
		{1000.0, 2200, false},
		{nil, 1000, false},
	} {
		w := Wedge{In: true, Seen: map[string]any{"clock_sm_mhz": tt.seen}}
		if got := w.Capped(tt.cap, 0.9); got != tt.want {
			t.Errorf("%v MHz at a cap of %g: %v", tt.seen, tt.cap, got)
		}
	}
}
