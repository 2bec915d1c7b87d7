package preflight

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// clockSeen is what sets the clock.
type clockSeen struct {
	// synced tells that a time server has answered since the start, syncedAt when it last
	// did: zero in a recorded tree, whose files have times of their own.
	synced   bool
	syncedAt time.Time
	// service is the running service that sets the clock, "" where none was found;
	// told tells that services could be looked for.
	service string
	told    bool
	// upS is for how long the machine is up, in seconds; unknown is -1.
	upS float64
}

func lookClock(_ context.Context, v view) clockSeen {
	t := aboutHost().Clock
	c := clockSeen{upS: -1}
	if st, err := v.root.stat(t.Synchronised); err == nil {
		c.synced = true
		if v.live() {
			c.syncedAt = st.modTime
		}
	}
	// A service that runs has a control group: of version 2, or of version 1 in systemd's
	// own tree. That costs no look at every process.
	for _, slice := range []string{"/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice"} {
		names := v.root.names(slice)
		c.told = c.told || len(names) > 0
		for _, name := range names {
			service, ok := strings.CutSuffix(name, ".service")
			if !ok || c.service != "" {
				continue
			}
			for _, known := range t.Services {
				if service == known {
					c.service = service
				}
			}
		}
	}
	up, _, _ := strings.Cut(v.root.word("/proc/uptime"), " ")
	if s, err := strconv.ParseFloat(up, 64); err == nil && s >= 0 {
		c.upS = s
	}
	return c
}

// judgeClock is H13: the clock of run.log, telemetry and the trainer's own log, and of
// every certificate that a download checks.
func judgeClock(c clockSeen, f facts) Finding {
	t := aboutHost().Clock
	const setNTP = "sudo timedatectl set-ntp true\ntimedatectl timesync-status"
	if y := f.now.Year(); y < t.EarliestYear || y > t.EarliestYear+75 {
		return Finding{
			Status: Warn, Detail: fmt.Sprintf("the clock says %s", f.now.Format(time.DateOnly)),
			Cost: "downloads fail, since no certificate is valid at that time, and the logs carry wrong dates",
			Fix:  setNTP,
		}
	}
	if found, hidden := hostHidden(f); hidden {
		return found
	}
	found := Finding{Status: Pass}
	switch {
	case c.synced:
		found.Detail = "synchronised by systemd-timesyncd"
		// One from the future says nothing.
		if ago := f.now.Sub(c.syncedAt); !c.syncedAt.IsZero() && ago >= 0 {
			found.Evidence = []string{fmt.Sprintf("a time server answered %s ago", spanWords(ago.Seconds()))}
		}
	case c.service != "" && c.service != "systemd-timesyncd":
		found.Detail = "set by " + c.service
	case c.service != "" && c.upS >= 0 && c.upS < t.SettleS:
		found.Detail = c.service + " runs; no time server has answered yet, " + spanWords(c.upS) + " after the start"
	case c.service == "" && !c.told:
		return byDesign("what sets the clock cannot be told: this system has no control groups of systemd")
	default:
		found.Status, found.Detail = Info, "no service that sets the clock was found"
		if c.service != "" {
			found.Detail = "no time server has answered " + c.service + " since the start"
		}
		if f.spark() {
			found.Status, found.Fix = Warn, setNTP
			found.Cost = "the clock drifts: times in the logs cannot be compared with those of other machines, and after weeks downloads fail"
		}
	}
	return found
}
