package preflight

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// bootSeen is when the machine started, and how the boots before ended.
type bootSeen struct {
	// started is the kernel's own time of the start; zero is unknown.
	started time.Time
	// boots are the starts that wtmp notes, oldest first; why says why there are none.
	boots []bootRecord
	why   string
	// crashes are records that a dying kernel left.
	crashes []string
}

// bootRecord is one start.
type bootRecord struct {
	at time.Time
	// clean tells that a shutdown is noted between the start before and this one; known
	// is false for the first start of the file, of which what came before is not in it.
	clean, known bool
}

// wtmpTail is how much of the end of wtmp is read: some hundred records.
const wtmpTail = 128 << 10

func lookBoot(_ context.Context, v view) bootSeen {
	var b bootSeen
	if stat, err := v.root.read("/proc/stat"); err == nil {
		b.started = bootTime(stat)
	}
	layout := layoutOf(v.in.Machine)
	data, err := v.root.tail("/var/log/wtmp", wtmpTail, int64(layout.size))
	switch {
	case err != nil:
		b.why = "/var/log/wtmp: " + reason(err)
	case len(data) == 0:
		b.why = "/var/log/wtmp is empty"
	default:
		b.boots = readBoots(data, layout)
	}
	for _, dir := range []string{"/sys/fs/pstore", "/var/lib/systemd/pstore"} {
		for _, name := range v.root.names(dir) {
			b.crashes = append(b.crashes, dir+"/"+name)
		}
	}
	for _, name := range v.root.names("/var/crash") {
		// Folders with a date are kdump's, linux-image is apport's word for the kernel; the
		// others are programs that crashed.
		if strings.HasPrefix(name, "linux-image") || len(name) == 12 && strings.Trim(name, "0123456789") == "" {
			b.crashes = append(b.crashes, "/var/crash/"+name)
		}
	}
	return b
}

// bootTime reads btime of /proc/stat.
func bootTime(stat []byte) time.Time {
	for line := range strings.Lines(string(stat)) {
		if word, ok := strings.CutPrefix(line, "btime "); ok {
			if s, err := strconv.ParseInt(strings.TrimSpace(word), 10, 64); err == nil && s > 0 {
				return time.Unix(s, 0)
			}
		}
	}
	return time.Time{}
}

// utmpLayout is how the C library lays out a record of wtmp: the type first, the user at
// byte 44; the time is of two 32-bit numbers, or, on machines that never had a 32-bit ABI,
// of two 64-bit ones.
type utmpLayout struct {
	size, timeAt int
	wide         bool
}

func layoutOf(machine string) utmpLayout {
	switch machine {
	case "aarch64", "arm64", "riscv64", "loongarch64":
		return utmpLayout{400, 344, true}
	}
	return utmpLayout{384, 340, false}
}

const (
	utmpRunLevel = 1
	utmpBoot     = 2
	utmpUserAt   = 44
	utmpUserLen  = 32
)

// readBoots goes through the records of wtmp.
func readBoots(b []byte, l utmpLayout) []bootRecord {
	var boots []bootRecord
	down := false
	for ; len(b) >= l.size; b = b[l.size:] {
		// The type is a 16-bit number and two bytes of padding.
		user, _, _ := bytes.Cut(b[utmpUserAt:utmpUserAt+utmpUserLen], []byte{0})
		switch kind := binary.LittleEndian.Uint16(b); {
		case kind == utmpRunLevel && string(user) == "shutdown":
			down = true
		case kind == utmpBoot:
			var s int64
			if l.wide {
				s = int64(binary.LittleEndian.Uint64(b[l.timeAt:]))
			} else {
				s = int64(binary.LittleEndian.Uint32(b[l.timeAt:]))
			}
			boots = append(boots, bootRecord{at: time.Unix(s, 0), clean: down, known: down || len(boots) > 0})
			down = false
		}
	}
	return boots
}

// judgeBoot is H14: how long ago the machine started, and whether the time before ended in
// order. A run of ours that was cut off is told at the next start of sparkrun; this tells
// of boots without one, and of a machine that does it again and again.
func judgeBoot(b bootSeen, f facts) Finding {
	if found, hidden := hostHidden(f); hidden {
		return found
	}
	t := aboutHost().Boot
	up := "the time of the last boot is unknown"
	var upS float64
	if !b.started.IsZero() && f.now.After(b.started) {
		upS = f.now.Sub(b.started).Seconds()
		up = "up for " + spanWords(upS)
	}
	found := Finding{Status: Pass, Evidence: first(b.crashes, 4)}
	why := b.why
	var last bootRecord
	if n := len(b.boots); n > 0 {
		last = b.boots[n-1]
		// A wtmp that nobody writes any more tells of a boot long ago.
		if !b.started.IsZero() && b.started.Sub(last.at).Abs() > 24*time.Hour {
			why = "/var/log/wtmp does not know this boot"
		}
	} else if why == "" {
		why = "/var/log/wtmp knows no boot"
	}
	if why != "" {
		by := byDesign(up + "; how the boot before ended is not noted on this system")
		by.Evidence = append(found.Evidence, why)
		if len(b.crashes) == 0 {
			return by
		}
		found.Evidence, found.Detail = by.Evidence, up
		return b.withCrashes(found, f)
	}
	recent, all := b.cutOff(f.now, t.OftenDays)
	switch {
	case !last.known:
		found.Detail = up + "; how the boot before ended is not in wtmp any more"
	case last.clean:
		found.Detail = up + ", after a shutdown in order"
	default:
		found.Status = Info
		found.Detail = up + "; the boot before ended without a shutdown: a power cut, a reset or a freeze"
	}
	if recent >= t.Often {
		found.Status = Info
		found.Detail = fmt.Sprintf("%s; %d of the %d boots of the last %g days came without a shutdown before them", up, recent, all, t.OftenDays)
	}
	// Elsewhere, as on a laptop whose battery ran out, it is no hint.
	unclean := last.known && !last.clean
	if f.spark() && (recent >= t.Often || unclean && upS < t.NewsH*3600) {
		found.Status = Warn
		found.Cost = "if it happens again, a training loses what it did since its last checkpoint"
		found.Fix = "sparkrun why latest, if a run was under way\njournalctl -b -1 -n 50: a log that stops in the middle is power or firmware, one that goes on was a program"
		if recent >= t.Often {
			found.Fix += "\nagain and again: another wall socket and the power supply that came with the unit, the vents; then sudo apt install dgx-spark-fieldiag && sudo ./partnerdiag --field (Secure Boot off), NVIDIA support"
		}
	}
	return b.withCrashes(found, f)
}

// cutOff counts the boots of so many days, and those of them before which no shutdown is
// noted.
func (b bootSeen) cutOff(now time.Time, days float64) (cut, all int) {
	for _, r := range b.boots {
		if now.Sub(r.at) <= time.Duration(days*24)*time.Hour {
			all++
			if r.known && !r.clean {
				cut++
			}
		}
	}
	return cut, all
}

// withCrashes adds that the kernel itself left word.
func (b bootSeen) withCrashes(found Finding, f facts) Finding {
	if len(b.crashes) == 0 {
		return found
	}
	n := fmt.Sprintf("%d records of a kernel crash", len(b.crashes))
	if len(b.crashes) == 1 {
		n = "a record of a kernel crash"
	}
	found.Detail += "; there is " + n
	if found.Status == Pass {
		found.Status = Info
	}
	if f.spark() && found.Fix != "" {
		found.Fix += "\nsudo cat " + b.crashes[len(b.crashes)-1]
	}
	return found
}
