// Package spbm knows the hwmon driver of the power firmware of a GB10 (hwmon
// name "spbm", an out-of-tree module that is used where it is present): what its
// channels are called and what their numbers mean. It reads no file itself; the
// functions are from file names and numbers to values.
//
// Channels are known by their label alone. The number in a file name follows the
// driver's version, power10 sorts before power2, and the number of the hwmon
// folder moves from boot to boot.
package spbm

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/sample"
)

// Name is what the driver writes into hwmonN/name.
const Name = "spbm"

// The labels that have a meaning of their own; the others are passed on.
const (
	// SysTotal is the power of the whole machine on the DC side.
	SysTotal = "sys_total"
	// PL1 is the budget of the SoC (CPU and GPU), SysPL1 that of the machine:
	// 140 and 231 W on a healthy one, 20 and 30 W in the safety mode of a failed
	// USB-PD negotiation.
	PL1    = "pl1"
	SysPL1 = "syspl1"
	// Package is the energy counter of the SoC, the widest that the driver has.
	Package = "pkg"
)

// Kind is what a channel counts.
type Kind string

// The kinds of channels that are read. The driver's temperatures are not among
// them: they stand still at 31 to 35 C whatever the load.
const (
	Power  Kind = "power"
	Energy Kind = "energy"
)

// Channel is one channel of the driver.
type Channel struct {
	Kind  Kind
	Label string
	// Input is the file of the reading in microwatts or microjoules; Cap, where
	// the channel has one, that of the limit in force.
	Input, Cap string
}

// Channels finds the channels of the hwmon folder dir, whose entries are names.
// label reads one label file; a channel without a label is left out. They come
// in the order of their numbers, power before energy.
func Channels(dir string, names []string, label func(path string) string) []Channel {
	type numbered struct {
		Channel
		n int
	}
	var found []numbered
	for _, kind := range []Kind{Power, Energy} {
		first := len(found)
		for _, name := range names {
			n, ok := number(name, string(kind), "_label")
			if !ok {
				continue
			}
			base := filepath.Join(dir, string(kind)+strconv.Itoa(n))
			c := Channel{Kind: kind, Label: label(base + "_label"), Input: base + "_input"}
			if c.Label == "" {
				continue
			}
			if slices.Contains(names, string(kind)+strconv.Itoa(n)+"_cap") {
				c.Cap = base + "_cap"
			}
			found = append(found, numbered{c, n})
		}
		slices.SortFunc(found[first:], func(a, b numbered) int { return cmp.Compare(a.n, b.n) })
	}
	channels := make([]Channel, len(found))
	for i, f := range found {
		channels[i] = f.Channel
	}
	return channels
}

// number returns N of a name that is kind, N and end.
func number(name, kind, end string) (int, bool) {
	s, ok := strings.CutPrefix(name, kind)
	if !ok {
		return 0, false
	}
	if s, ok = strings.CutSuffix(s, end); !ok {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == s
}

// noValue is the firmware's "no value", all ones in 32 bits. The driver hands it
// out as it is or multiplied like any other number (milli to micro).
const noValue = 1<<32 - 1

// Watts is the value of a power reading in microwatts, unknown where it is the
// firmware's "no value" or below zero.
func Watts(microwatts int64) sample.Num {
	// A machine of 300 W at most: whatever is beyond is no power.
	if microwatts < 0 || microwatts >= noValue {
		return sample.Num{}
	}
	return sample.Known(float64(microwatts) / 1e6)
}

// Cap is the value of a limit in microwatts. Zero means that none is set.
func Cap(microwatts int64) sample.Num {
	if microwatts == 0 {
		return sample.Num{}
	}
	return Watts(microwatts)
}

// Caps returns the limits in force of the SoC and of the machine.
func Caps(powers []sample.Power) (soc, sys sample.Num) {
	for _, p := range powers {
		switch p.Label {
		case PL1:
			soc = p.CapW
		case SysPL1:
			sys = p.CapW
		}
	}
	return soc, sys
}

// mostWatts is more than any such machine can draw (the highest limit of the
// firmware is 300 W).
const mostWatts = 400

// Counter makes one rising number of an energy channel. The firmware counts
// millijoules in 32 bits, so that the counter begins anew after 4.29 MJ, about
// nine hours at full power; older drivers may hand out 32 bits of microjoules.
// The zero value is ready for use.
type Counter struct {
	began bool
	raw   int64
	at    time.Duration
	// turns is what has been counted before the last wraps.
	turns int64
}

// Joules takes a reading in microjoules at the instant at (of any clock that
// runs on). A counter that was reset, which is seen from a fall that no wrap
// explains, goes on from its new value: what was lost in between is not made up.
func (c *Counter) Joules(raw int64, at time.Duration) sample.Num {
	if raw < 0 || raw == noValue || raw == noValue*1000 {
		return sample.Num{}
	}
	if c.began && raw < c.raw {
		turn := int64(0)
		for _, size := range []int64{1 << 32, 1000 << 32} {
			most := mostWatts * (at - c.at).Seconds() * 1e6
			if c.raw < size && float64(raw+size-c.raw) <= most {
				turn = size
				break
			}
		}
		if turn == 0 {
			c.turns = 0
		}
		c.turns += turn
	}
	c.began, c.raw, c.at = true, raw, at
	return sample.Known(float64(c.turns+raw) / 1e6)
}
