package acting

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/sample"
	"sparkrun/sampler/throttle"
)

const (
	// ClockFloorMHz is the lower end of the range that the clock is locked to, as
	// people do it on this machine (nvidia-smi -lgc 300,2200).
	ClockFloorMHz = 300
	// capLowest and capHighest bound a cap: below 600 MHz is where the wedge is, and
	// from 2411 MHz on the machine idles, so that it would cap nothing. Locking to a
	// higher clock than it runs at does nothing (measured: 2476 to 2522 MHz).
	capLowest, capHighest = 600, 2411
	// persistEpisodes of thermal throttling that were worth a warning, or one of
	// persistFor, are what persists.
	persistEpisodes = 2
	persistFor      = 10 * time.Minute
	// loadedPct is from which utilisation on a clock is one under load, loadedKept how
	// many of those are looked at and loadedLeast how many there must be.
	loadedPct   = 90
	loadedKept  = 600
	loadedLeast = 10
	// warnedMost bounds the episodes that are remembered.
	warnedMost = 16
)

// CheckCap says why the clock is not to be capped at so many MHz, whatever the GPU does.
func CheckCap(mhz int) error {
	switch {
	case mhz < capLowest:
		return fmt.Errorf("%d MHz is below %d: that slow is the low-power wedge itself", mhz, capLowest)
	case mhz > capHighest:
		return fmt.Errorf("%d MHz is above %d, what the GPU runs at by itself: a cap only works downwards", mhz, capHighest)
	}
	return nil
}

// Clocks follows whether thermal throttling persists, and at which clock the GPU works.
type Clocks struct {
	// open are the episodes that go on, by id with their beginning; warned those that
	// were worth a warning.
	open   map[string]time.Time
	warned []string
	// why says in words what persists, "" before it does.
	why string

	loaded []float64 // ring of clocks under load
	next   int
}

// Take takes a reading and the events made of it. Afterwards Why may say that throttling
// persists.
func (c *Clocks) Take(s *sample.Sample, events []event.Event) {
	if s.UtilPct.OK && s.UtilPct.V >= loadedPct && s.ClockSMMHz.OK && s.ClockSMMHz.V > 0 {
		if len(c.loaded) < loadedKept {
			c.loaded = append(c.loaded, s.ClockSMMHz.V)
		} else {
			c.loaded[c.next] = s.ClockSMMHz.V
			c.next = (c.next + 1) % loadedKept
		}
	}
	for i := range events {
		c.event(&events[i])
	}
	if c.why != "" {
		return
	}
	for _, id := range c.warned {
		if since, ok := c.open[id]; ok && s.T.Sub(since) > persistFor {
			c.why = fmt.Sprintf("thermal throttling has gone on for %.0f min", s.T.Sub(since).Minutes())
		}
	}
}

func (c *Clocks) event(e *event.Event) {
	id, _ := e.Data["id"].(string)
	if id == "" {
		return
	}
	episodes := 0
	switch typeOf(e) {
	case throttle.ThermalThrottle:
		switch e.Kind {
		case event.ThrottleStart:
			c.begin(id, e)
		case event.ThrottleEnd:
			delete(c.open, id)
		case event.ThrottleUpdate:
			episodes, _ = e.Data["episodes"].(int)
		}
		if e.Level == event.Warn {
			c.warn(id)
		}
	case throttle.Slowdown:
		// Where a slowdown warns of the heat, the heat's own lines are information.
		cause, _ := e.Data["cause"].(string)
		if cause != throttle.ThermalThrottle || e.Kind != event.ThrottleStart || e.Level != event.Warn {
			return
		}
		for open := range c.open {
			c.warn(open)
		}
		if len(c.open) == 0 {
			c.warn(id)
		}
	default:
		return
	}
	if e.Level != event.Warn {
		episodes = 0
	}
	if n := max(len(c.warned), episodes); n >= persistEpisodes && c.why == "" {
		c.why = fmt.Sprintf("thermal throttling came back (%d times)", n)
	}
}

// warn notes an episode that was worth a warning.
func (c *Clocks) warn(id string) {
	if !slices.Contains(c.warned, id) && len(c.warned) < warnedMost {
		c.warned = append(c.warned, id)
	}
}

// begin notes an episode that goes on.
func (c *Clocks) begin(id string, e *event.Event) {
	if len(c.open) >= warnedMost {
		return
	}
	if c.open == nil {
		c.open = map[string]time.Time{}
	}
	since := e.T
	if text, ok := e.Data["since"].(string); ok {
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil && t.Before(since) {
			since = t
		}
	}
	c.open[id] = since
}

// Why says in words that throttling persists; "" while it does not.
func (c *Clocks) Why() string { return c.why }

// Plateau is the clock in MHz that the GPU works at under load when nothing slows it,
// unknown where too little was seen of it.
func (c *Clocks) Plateau() sample.Num {
	if len(c.loaded) < loadedLeast {
		return sample.Num{}
	}
	sorted := slices.Sorted(slices.Values(c.loaded))
	return sample.Known(sorted[len(sorted)*9/10])
}

// Refuse says why a cap at so many MHz is not set now; "" where it may be.
func (c *Clocks) Refuse(mhz int) string {
	at := c.Plateau()
	switch {
	case !at.OK:
		return "the clock under load is not known, so that it cannot be told whether this would lower it"
	case float64(mhz) >= at.V:
		return fmt.Sprintf("under load the GPU runs at %.0f MHz, so that a cap at %d MHz would lower nothing", at.V, mhz)
	}
	return ""
}

// Lease is a run's claim on a clock cap, kept in a file for as long as the cap is set, so
// that one that died is undone by the next.
type Lease struct {
	Schema string `json:"schema"`
	Run    string `json:"run"`
	PID    int    `json:"pid"`
	// Boot is the machine's boot id: a reboot undoes a cap by itself.
	Boot string `json:"boot_id"`
	MHz  int    `json:"mhz"`
	T    string `json:"t"`
}

// LeaseSchema is that of the file.
const LeaseSchema = "sparkrun.clocks/1"

// Left is a lease that was found, and whether its run lives.
type Left struct {
	Path  string
	Lease Lease
	// Live is set where its run holds it, Broken where it cannot be read.
	Live, Broken bool
}

// Restoring is what becomes of the leases that were found.
type Restoring struct {
	// Lift says that the clocks are to be set free; Of are the leases it is done for,
	// which are removed when it is.
	Lift bool
	Of   []Left
	// Gone are of another boot, and are removed.
	Gone []Left
	// Held names the runs that live and hold one: nothing is set free then.
	Held []string
}

// Restore decides what is left to undo at a start, in this boot. A lease that cannot be
// read counts as one of this boot: to set clocks free that are free does no harm.
func Restore(found []Left, boot string) Restoring {
	var r Restoring
	for _, l := range found {
		switch {
		case l.Live:
			r.Held = append(r.Held, l.Lease.Run)
		case !l.Broken && boot != "" && l.Lease.Boot != "" && l.Lease.Boot != boot:
			r.Gone = append(r.Gone, l)
		default:
			r.Of = append(r.Of, l)
		}
	}
	r.Lift = len(r.Of) > 0 && len(r.Held) == 0
	return r
}

// LowestHeld is the lowest cap in MHz of runs that live; 0 for none.
func LowestHeld(found []Left) int {
	lowest := 0
	for _, l := range found {
		if l.Live && l.Lease.MHz > 0 && (lowest == 0 || l.Lease.MHz < lowest) {
			lowest = l.Lease.MHz
		}
	}
	return lowest
}

// InForce is the lowest cap in MHz that the leases found tell of in this boot, 0 for none:
// of runs that live, and of ones that died whose cap was not lifted, Live or not. One that
// cannot be read may be of any cap, and counts as the lowest.
func InForce(found []Left, boot string) int {
	lowest := 0
	for _, l := range found {
		if !l.Live && !l.Broken && boot != "" && l.Lease.Boot != "" && l.Lease.Boot != boot {
			continue
		}
		if mhz := max(l.Lease.MHz, capLowest); lowest == 0 || mhz < lowest {
			lowest = mhz
		}
	}
	return lowest
}

// SMISaid makes one line of what nvidia-smi printed, at most 200 bytes.
func SMISaid(out string) string {
	out = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, out)), " ")
	if len(out) > 200 {
		out = strings.ToValidUTF8(out[:200], "") + "..."
	}
	return out
}

// figures are temperature, power, clock and utilisation of an event, in brackets.
func figures(data map[string]any) string {
	var out []string
	for _, f := range []struct{ key, form string }{{"util_gpu_pct", "%.0f %% busy"}, {"clock_sm_mhz", "%.0f MHz"}, {"power_w", "%.1f W"}, {"temp_c", "%.0f C"}} {
		if v, ok := data[f.key].(float64); ok {
			out = append(out, fmt.Sprintf(f.form, v))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}
