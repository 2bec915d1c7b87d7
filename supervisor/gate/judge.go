package gate

import (
	"fmt"
	"strings"
	"time"

	"sparkrun/internal/clock"
)

const (
	// slackKiB and slackShare: memory counts as back when it is within the
	// smaller of the two of what it was. 2 GiB is what a desktop moves by on a
	// 128 GB machine; on one with 8 GB it would be no gate, and a twentieth is.
	slackKiB   = 2 << 20
	slackShare = 0.05
	// unreadable is how long figures that cannot be read are tried again: a
	// machine without memory may refuse a read and grant the next.
	unreadable = 2 * time.Second
	// settle is waited at least unless the driver is known to hold nothing any
	// more: it gives memory back 30 to 60 s after the process died.
	settle = time.Minute
	// patience is waited before memory counts as not coming back, and longer
	// after that where nobody can be named who holds it.
	patience = 5 * time.Minute
	longer   = 10 * time.Minute
	// climbWindow and climbShare: memory is still coming back while it grew by
	// more than this share within the window.
	climbWindow = 20 * time.Second
	climbShare  = 0.01
	// unknownPeak stands in for the peak where it was not measured: a job that
	// died for want of memory had nearly all of it.
	unknownPeak = 0.9
	// bigShare of MemTotal makes a holder worth reckoning with.
	bigShare = 0.01
)

// Judge decides from the readings so far, oldest first. It is pure: the same
// values give the same decision.
func Judge(g Goal, rs []Reading) Decision {
	if g.StartKiB == 0 {
		return Decision{Verdict: Open, Why: "how much memory there was before attempt 1 is not known"}
	}
	last, ok := latest(rs)
	if !ok {
		if len(rs) == 0 {
			return Decision{Verdict: Waiting, Why: "memory has not been looked at yet"}
		}
		if rs[len(rs)-1].At < unreadable {
			return Decision{Verdict: Waiting, Why: "the memory figures of this machine could not be read just now"}
		}
		return Decision{Verdict: Open, Why: "the memory figures of this machine cannot be read"}
	}
	now := rs[len(rs)-1].At
	s := reckon(g, rs, last)
	d := Decision{WantKiB: s.want, Holders: s.holders(), Why: fmt.Sprintf("MemAvailable is %s GiB, waiting for %s", gib(last.AvailKiB), gib(s.want))}

	switch {
	case last.AvailKiB >= s.want:
		d.Verdict, d.Why, d.Holders = Open, fmt.Sprintf("memory is back: MemAvailable is %s GiB", gib(last.AvailKiB)), nil
		return d
	case s.ourStartIsBack && s.idleElsewhere:
		// This boot has seen more, but somebody who lives has it, and had it
		// before this run began.
		d.Verdict = Open
		d.Why = fmt.Sprintf("memory is back: MemAvailable is %s GiB; what is missing to this boot's best %s is held by %s", gib(last.AvailKiB), gib(g.BestIdleKiB), names(s.culprits))
		return d
	}
	if now < limit(g) {
		if s.waits(now, climbing(rs, now)) {
			if now >= settle {
				d.Why += s.heldBy()
			}
			return d
		}
	} else if s.ours != nil {
		d.Verdict = Stop
		d.Why = fmt.Sprintf("a process of this run is still there (%s): end it, then start again", names([]Holder{*s.ours}))
		return d
	}
	if s.fits {
		d.Verdict = OpenTight
		d.Why = fmt.Sprintf("memory is not all back, but enough for %s: MemAvailable is %s GiB", s.peakWords(g), gib(last.AvailKiB)) + s.heldBy()
		return d
	}
	d.Verdict = Stop
	s.stop(&d, g, last, now)
	return d
}

// latest returns the newest reading with figures: a single one that failed, as
// happens on a machine without memory, is no news.
func latest(rs []Reading) (Reading, bool) {
	for i := len(rs) - 1; i >= 0; i-- {
		if rs[i].Known {
			return rs[i], true
		}
	}
	return Reading{}, false
}

func limit(g Goal) time.Duration {
	if g.Limit > 0 {
		return g.Limit
	}
	return DefaultLimit
}

// climbing says whether memory is still coming back, or was not watched for long
// enough to say.
func climbing(rs []Reading, now time.Duration) bool {
	var last Reading
	for i := len(rs) - 1; i >= 0; i-- {
		r := rs[i]
		if !r.Known {
			continue
		}
		if !last.Known {
			last = r
		}
		if r.At <= now-climbWindow {
			return float64(last.AvailKiB) > float64(r.AvailKiB)*(1+climbShare)
		}
	}
	return true
}

// peakWords names what has to fit.
func (s *state) peakWords(g Goal) string {
	if g.PeakKiB == 0 {
		return fmt.Sprintf("a job like the last, whose peak is not known (taken as %s GiB)", gib(s.need))
	}
	if g.ReserveKiB > 0 {
		return fmt.Sprintf("the %s GiB the last attempt used at most and %s GiB to spare", gib(g.PeakKiB), gib(g.ReserveKiB))
	}
	return fmt.Sprintf("the %s GiB the last attempt used at most", gib(g.PeakKiB))
}

// stop fills in why no attempt is started.
func (s *state) stop(d *Decision, g Goal, last Reading, now time.Duration) {
	short := fmt.Sprintf("MemAvailable is %s GiB, too little for %s", gib(last.AvailKiB), s.peakWords(g))
	waited := clock.Span(now)
	switch s.cause {
	case byLiving:
		d.Why = fmt.Sprintf("%s; held by %s, still there after %s: end it, or start again when it is gone", short, names(s.culprits), waited)
	case byDriver:
		d.RebootGiB = float64(s.retained) / (1 << 20)
		d.Why = fmt.Sprintf("reboot needed: %s GiB retained by the GPU driver, with nobody alive who holds it; %s", gib(s.retained), short)
	case byOrphans:
		d.Why = fmt.Sprintf("%s; %s GiB are shared memory that no process has mapped: look at ls -l /dev/shm, other tmpfs mounts and ipcs -m, and remove what nobody needs", short, gib(s.orphans))
	default:
		d.Why = fmt.Sprintf("%s; nobody could be found who holds it (waited %s)", short, waited)
		if s.retained >= s.big {
			d.RebootGiB = float64(s.retained) / (1 << 20)
			d.Why = fmt.Sprintf("reboot needed, most likely: %s GiB are booked to nobody, held by the GPU driver or by a GPU process that cannot be seen from here; %s", gib(s.retained), short)
		}
	}
}

func gib(kib uint64) string { return fmt.Sprintf("%.1f", float64(kib)/(1<<20)) }

func oneName(h Holder) string {
	if h.PID == 0 {
		return h.Comm
	}
	return fmt.Sprintf("%s (pid %d)", h.Comm, h.PID)
}

// names says the holders' names with what each holds, three at most.
func names(hs []Holder) string {
	if len(hs) == 0 {
		return "many small processes"
	}
	var parts []string
	for i, h := range hs {
		if i == 3 {
			parts = append(parts, fmt.Sprintf("%d more", len(hs)-i))
			break
		}
		size := gib(h.KiB) + " GiB"
		switch {
		case h.How == "gpu" && h.KiB == 0:
			size = "GPU memory, NVML does not say how much"
		case h.How == "gpu":
			size += " of GPU memory"
		case h.How == "shmem":
			size += " shared"
		}
		parts = append(parts, oneName(h)+": "+size)
	}
	return strings.Join(parts, ", ")
}
