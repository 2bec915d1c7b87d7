package acting

import (
	"sparkrun/internal/event"
	"sparkrun/sampler/throttle"
)

// WedgeCure is what helps against the low-power wedge, and what does not.
const WedgeCure = "shut down, unplug from the wall and from the unit for a minute; a reboot does not help"

// Wedge follows whether the GPU is in the low-power wedge.
type Wedge struct {
	// In is set while it is.
	In bool
	// ID is the episode's, Seen what was measured when it was told.
	ID   string
	Seen map[string]any
}

// Take takes the events of a sample.
func (w *Wedge) Take(events []event.Event) {
	for i := range events {
		e := &events[i]
		if typeOf(e) != throttle.PowerWedge {
			continue
		}
		switch e.Kind {
		case event.ThrottleStart:
			id, _ := e.Data["id"].(string)
			*w = Wedge{In: true, ID: id, Seen: e.Data}
		case event.ThrottleEnd:
			*w = Wedge{}
		}
	}
}

// Capped says whether the clock that was seen is that of our own cap at mhz (0 for none):
// at part of it, or above.
func (w *Wedge) Capped(mhz, part float64) bool {
	seen, ok := w.Seen["clock_sm_mhz"].(float64)
	return ok && mhz > 0 && seen >= part*mhz
}

// Words are the figures, in a sentence's part.
func (w *Wedge) Words() string {
	return "the GPU is in the low-power wedge" + figures(w.Seen)
}

// typeOf is the type of a throttle event, "" of any other.
func typeOf(e *event.Event) string {
	switch e.Kind {
	case event.ThrottleStart, event.ThrottleUpdate, event.ThrottleEnd:
		typ, _ := e.Data["type"].(string)
		return typ
	}
	return ""
}
