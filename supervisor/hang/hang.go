// Package hang tells a training that does nothing any more from one that is merely
// silent. It is pure: a Watch is fed with looks at an attempt and says after each how
// things stand. Nothing counts as a hang but the absence of every sign of life at once,
// each of them known: no step, no output, an idle GPU, no computing, no byte read,
// written, received or sent, for a time that is long for this training.
package hang

import (
	"time"

	"sparkrun/internal/sample"
)

// Bytes is a count that never falls; not OK is unknown.
type Bytes struct {
	N  uint64
	OK bool
}

// Usage is what some processes have used so far.
type Usage struct {
	CPU  time.Duration
	Disk Bytes // read and written, pipes and terminals included
}

// Look is what one look at an attempt found.
type Look struct {
	// At is a clock that stands still while the machine is suspended (CLOCK_MONOTONIC),
	// Boot one that does not (CLOCK_BOOTTIME). Age is how long the attempt has run, by At.
	At, Boot, Age time.Duration
	// Step is the newest optimizer step, Stepped says that there was one, Median is the
	// attempt's usual time for one, 0 for unknown. Over says that the last planned step is
	// done, or that the trainer said so.
	Step    int64
	Stepped bool
	Median  time.Duration
	Over    bool
	// Printed counts the bytes of output.
	Printed int64
	// Tree says that the attempt's processes are all known. Stopped says that one of them
	// is stopped (SIGSTOP, a debugger, a frozen group).
	Tree, Stopped bool
	// Work is what the training's processes have used, Reports what those have that only
	// report on it.
	Work, Reports Usage
	// Sockets are the bytes that connections of the training to the outside have carried,
	// Inner those between the tree's own processes, Told those of what reports on it. Net is what interfaces have carried that
	// others use too; it counts where Shared is set: there is more to see of the tree's
	// network than its connections.
	Sockets, Inner, Told, Net Bytes
	Shared                    bool
	// Local says with whom the training talks over sockets of which the kernel counts no
	// bytes: nobody, its own processes, or somebody outside. Received is how often threads
	// were woken that wait in such a socket, Polled how often those that may wait for a
	// time as well.
	Local            Talk
	Received, Polled Bytes
	// NoGPU says that the machine has none; else GPUPct is its mean utilisation since the
	// last look.
	NoGPU  bool
	GPUPct sample.Num
}

// Talk is with whom something talks.
type Talk int

// With whom.
const (
	Nobody Talk = iota
	Inside
	Outside
)

// State is how an attempt stands.
type State int

// The states.
const (
	// Moves: there is a sign of life, or it has been still for less than the limit.
	Moves State = iota
	// Paused: it is stopped, and no time counts.
	Paused
	// Over: the last planned step is done, and nothing is judged any more.
	Over
	// Warned: it stands still for the limit, and is not to be ended: there was no step.
	Warned
	// Elsewhere: it stands still for the limit, but has never worked on this machine.
	Elsewhere
	// Blind: there was no step and no output for the limit, and something of the rest
	// cannot be known.
	Blind
	// Hung: nothing has moved for the limit.
	Hung
)

// Verdict is what a look means.
type Verdict struct {
	State State
	// Still is for how long nothing has moved, the limit is Limit.
	Still, Limit time.Duration
	// Moved names what moved last where something did, Unknown what is not known.
	Moved, Unknown string
	// CPUShare of one core was used while it stood still, GPUPct is the highest mean
	// utilisation of the GPU then.
	CPUShare float64
	GPUPct   sample.Num
}

// Watch follows one attempt. Make one with New.
type Watch struct {
	cfg   Config
	given time.Duration
	every time.Duration

	prev, base Look // the last look, and the one since which nothing moves
	begun      bool
	// still is how long nothing has moved while all was known, blind how long nothing was
	// seen to move while something, unknown, was not; gpu is the GPU's most in that time.
	still, blind time.Duration
	gpu          sample.Num
	unknown      string
}

// New returns the watch of an attempt. given is the user's own limit, 0 for the one from
// its step time.
func New(cfg Config, given time.Duration) *Watch {
	return &Watch{cfg: cfg, given: given, every: Every(given)}
}

// tick is the grain of the kernel's CPU times.
const tick = 10 * time.Millisecond

// Look takes a look and says how the attempt stands.
func (w *Watch) Look(l Look) Verdict {
	if !w.begun || l.At < w.prev.At {
		w.begun = true
		return w.again(l, "the attempt has begun")
	}
	dt := l.At - w.prev.At
	slept := l.Boot - w.prev.Boot - dt
	keep(&l, w.prev)
	moved := w.moved(l, dt)
	switch {
	case l.Over:
		v := w.again(l, "the last planned step is done")
		v.State = Over
		return v
	case l.Stopped:
		// The work that it has to do is the same after the pause as before.
		v := w.again(l, "it was stopped")
		v.State = Paused
		return v
	case slept > time.Second:
		return w.again(l, "the machine was suspended")
	case moved != "":
		return w.again(l, moved)
	}
	// Where we ourselves were stopped or starved, the time between is not ours to judge.
	credit := min(dt, 2*w.every)
	unknown := w.missing(l)
	if l.Local != Nobody && w.woken(l, l.Polled, w.prev.Polled) {
		// That may have been a sign of life: the silence before it is none for sure.
		w.blind += w.still
		w.still = 0
	}
	w.prev = l
	if unknown != "" {
		w.blind += credit
		w.unknown = unknown
	} else {
		w.still += credit
		if l.GPUPct.OK && (!w.gpu.OK || l.GPUPct.V > w.gpu.V) {
			w.gpu = l.GPUPct
		}
	}
	limit, ends := w.cfg.Limit(w.given, l.Median, l.Stepped)
	v := Verdict{Still: w.still, Limit: limit, GPUPct: w.gpu, Unknown: unknown}
	if w.still > 0 {
		v.CPUShare = float64(l.Work.CPU-w.base.Work.CPU) / float64(l.At-w.base.At)
	}
	switch {
	case w.still+w.blind < limit, w.still < limit && w.blind < limit/4:
	case w.still < limit:
		v.State, v.Unknown = Blind, w.unknown
	case unknown != "":
		// Long enough, but not known at this very moment: nothing is done on that.
	case !ends:
		v.State = Warned
	case w.worked() < w.cfg.WorkedShare:
		v.State = Elsewhere
	default:
		v.State = Hung
	}
	return v
}

// Moves says whether a look has a sign of life already without what it says of
// connections, which costs most to find out.
func (w *Watch) Moves(l Look) bool {
	if !w.begun || l.At < w.prev.At {
		return false
	}
	for _, b := range []*Bytes{&l.Sockets, &l.Inner, &l.Told, &l.Net, &l.Received, &l.Polled} {
		b.OK = false
	}
	keep(&l, w.prev)
	return w.moved(l, l.At-w.prev.At) != ""
}

// again begins anew: something moved.
func (w *Watch) again(l Look, why string) Verdict {
	w.prev, w.base = l, l
	w.still, w.blind, w.gpu, w.unknown = 0, 0, sample.Num{}, ""
	limit, _ := w.cfg.Limit(w.given, l.Median, l.Stepped)
	return Verdict{Limit: limit, Moved: why}
}

// keep carries figures that are not known this time over from the last look, so that
// what comes later is compared with the last known.
func keep(l *Look, prev Look) {
	// A figure that is unknown stays marked so, with the old count.
	for _, p := range []struct{ now, old *Bytes }{
		{&l.Work.Disk, &prev.Work.Disk},
		{&l.Reports.Disk, &prev.Reports.Disk},
		{&l.Sockets, &prev.Sockets},
		{&l.Inner, &prev.Inner},
		{&l.Told, &prev.Told},
		{&l.Net, &prev.Net},
		{&l.Received, &prev.Received},
		{&l.Polled, &prev.Polled},
	} {
		if !p.now.OK {
			p.now.N = p.old.N
		}
	}
	if !l.Tree {
		l.Work.CPU, l.Reports.CPU = prev.Work.CPU, prev.Reports.CPU
	}
}

// missing names what is not known of an attempt in which nothing is seen to move; empty
// where all is.
func (w *Watch) missing(l Look) string {
	switch {
	case !l.Tree:
		return "its processes are not known"
	case !l.Work.Disk.OK || !l.Reports.Disk.OK:
		return "what its processes read and write is not ours to see"
	case !l.Sockets.OK || !l.Inner.OK || !l.Told.OK:
		return "what its connections carry is not ours to see"
	case l.Shared && !l.Net.OK:
		return "what its network interfaces carry cannot be read"
	case l.Local != Nobody && (!l.Received.OK || !l.Polled.OK || w.woken(l, l.Polled, w.prev.Polled)):
		return "what its local sockets (unix, UDP over loopback) carry cannot be told"
	case !l.NoGPU && !l.GPUPct.OK:
		return "whether the GPU computes is not known"
	}
	return ""
}

// moved names what has moved since the last look, empty for nothing.
func (w *Watch) moved(l Look, dt time.Duration) string {
	p := w.prev
	whole := l.At - w.base.At
	rate := func(now, before Bytes, d time.Duration) float64 {
		if now.N < before.N {
			return 1e300 // an account that began anew: something came and went
		}
		return float64(now.N-before.N) / max(d.Seconds(), 1e-3)
	}
	computes := func(now, before, base time.Duration, share float64) bool {
		over := func(used, within time.Duration, ticks int) bool {
			return used > max(time.Duration(share*float64(within)), time.Duration(ticks)*tick)
		}
		return now < before || over(now-before, dt, 1) || over(now-base, whole, 2)
	}
	c := w.cfg
	switch {
	case l.Step != p.Step || l.Stepped != p.Stepped:
		return "a step was done"
	case l.Printed != p.Printed:
		return "it printed something"
	case computes(l.Work.CPU, p.Work.CPU, w.base.Work.CPU, c.CPUShare):
		return "its processes compute"
	case l.Work.Disk.N != p.Work.Disk.N:
		return "its processes read or write"
	case computes(l.Reports.CPU, p.Reports.CPU, w.base.Reports.CPU, c.Reporters.CPUShare),
		rate(l.Reports.Disk, p.Reports.Disk, dt) > c.Reporters.BPS,
		rate(l.Told, p.Told, dt) > c.Reporters.NetBPS:
		return "what reports on it works"
	case l.Sockets.N != p.Sockets.N:
		return "its connections carry something"
	case rate(l.Inner, p.Inner, dt) > c.InnerBPS:
		return "its processes talk to each other"
	case l.Local != Nobody && w.woken(l, l.Received, p.Received):
		return "its local sockets carry something"
	case l.Shared && rate(l.Net, p.Net, dt) > c.NetBPS:
		return "the network carries something"
	case !l.NoGPU && l.GPUPct.OK && l.GPUPct.V >= c.GPUPct:
		return "the GPU computes"
	}
	return ""
}

// woken says whether threads were woken since the last look in such a way that something
// came over a local socket, or may have.
func (w *Watch) woken(l Look, now, before Bytes) bool {
	if l.Local == Outside {
		return now.N != before.N
	}
	return now.N < before.N || float64(now.N-before.N) > w.cfg.LocalWPS*(l.At-w.prev.At).Seconds()
}

// worked is the share of one core that the tree had used when it stopped moving.
func (w *Watch) worked() float64 {
	return float64(w.base.Work.CPU) / float64(max(w.base.Age, time.Millisecond))
}
