package oom

import (
	"fmt"
	"slices"
	"strings"
)

// causeNotShown is the reason where a launcher reports a death and nobody says
// what it was.
const causeNotShown = "cause-not-shown"

// signals by number, those that end a process.
var signals = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS",
	8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM",
}

// negated are the signals that a status of 256-n is taken for: the deepspeed
// launcher and others hand Python's negative return code on. What programs give
// by themselves is not among them: 255 (also of ssh), 254 and so on are
// sys.exit(-1), sys.exit(-2), and say that something went wrong, no more.
var negated = map[int]bool{6: true, 7: true, 9: true, 11: true, 15: true}

// signalOf returns the signal behind a status: sent by the kernel's account, or
// told by a shell (128+n) or by a launcher (256-n) as an exit code.
func signalOf(e Exit) string {
	if !e.Known {
		return ""
	}
	if e.Signal != "" {
		return e.Signal
	}
	if s, ok := signals[e.Code-128]; ok {
		return s
	}
	if n := 256 - e.Code; negated[n] {
		return signals[n]
	}
	return ""
}

// guessed tells that the signal is read from a status that a program may also
// give by itself.
func guessed(e Exit) bool { return e.Known && e.Signal == "" && negated[256-e.Code] }

func exitText(e Exit) string {
	if e.Signal != "" {
		return "ended by " + e.Signal
	}
	if s := signalOf(e); s != "" {
		return fmt.Sprintf("exited with status %d (%s)", e.Code, s)
	}
	return fmt.Sprintf("exited with status %d", e.Code)
}

// fromText decides from the final burst, the exit status and the samples, when no
// hard rule has.
func (d *decision) fromText() {
	if len(d.kernel.against) > 0 && d.text.state != fatal {
		d.set(NotOOM, "terminated", High)
		return
	}
	sig := signalOf(d.ev.Exit)
	switch d.text.state {
	case fatal:
		d.fatal(sig)
	case doubtful:
		d.addHit(Supports, d.text.hit)
		d.unsure(d.text.kind, "two-causes")
	case other:
		d.other(sig)
	case weak:
		d.addHit(Weak, d.text.hit)
		d.weak(sig)
	default:
		if d.text.hit != nil {
			d.addHit(Note, d.text.hit)
		}
		d.fromStatus(sig)
	}
	if d.text.state != fatal && d.text.state != other && guessed(d.ev.Exit) {
		d.v.Confidence = lower(d.v.Confidence, Medium)
	}
}

// fatal is an out-of-memory line at the end of the output.
func (d *decision) fatal(sig string) {
	conf := d.text.conf
	switch {
	case sig == "SIGINT":
		// Nobody recorded who sent it, but a status of 130 is a person's.
		d.addHit(Supports, d.text.hit)
		d.set(NotOOM, "user", Medium)
		return
	case !d.ev.Exit.Known && conf == Medium:
		// Alive, or lost: a mention is too little for a death nobody saw.
		d.addHit(Supports, d.text.hit)
		if d.level() >= levelMention && !d.stalled() {
			d.unsure(d.text.kind, "no-exit-status")
			if d.level() == levelWarning && d.text.retried {
				// It survived the same before, and nobody saw it die or stand still.
				d.set(NotOOM, "no-sign", Low)
			}
			return
		}
	case sig == "SIGKILL" && d.t.classify(d.text.hit).p.Kill:
		d.addHit(Decides, d.text.hit)
	case !d.ev.Exit.Known, sig == "SIGTERM", sig == "SIGKILL", sig == "SIGSEGV":
		conf = lower(conf, Medium)
		d.addHit(Decides, d.text.hit)
	default:
		d.addHit(Decides, d.text.hit)
	}
	d.set(OOM, d.text.kind, conf)
}

// level is how strong the deciding line is.
func (d *decision) level() int { return d.t.classify(d.text.hit).level }

// stalled tells that others wait for a rank that is gone: the sign of a hang.
func (d *decision) stalled() bool {
	o := &d.ev.Output
	for i := range o.Hits {
		if h := &o.Hits[i]; h.seq > d.text.hit.seq && d.t.classify(h).role == roleConsequence {
			return true
		}
	}
	return false
}

// other is a cause that is not memory.
func (d *decision) other(sig string) {
	r := &d.text
	switch {
	case sig == "SIGKILL" && r.conf != High && r.reason != "user" && r.reason != "terminated":
		// An error of no clear meaning, then a kill from outside.
		d.addHit(Weak, r.hit)
		d.fromStatus(sig)
	case r.reason == "user", sig == "SIGINT":
		d.addHit(Decides, r.hit)
		d.set(NotOOM, "user", r.conf)
	default:
		d.addHit(Decides, r.hit)
		conf := r.conf
		if !d.ev.Exit.Known || d.mem == memLow || sig == "SIGKILL" {
			conf = lower(conf, Medium)
		}
		d.set(NotOOM, r.reason, conf)
		if free := d.ev.DiskFreeMinKiB; r.reason == "disk" && free.OK {
			d.add("disk", Supports, "least free space where the job writes: %s", sizeText(free.V))
		}
	}
}

// weak is a sign that needs samples.
func (d *decision) weak(sig string) {
	p := d.text.weak
	switch {
	case sig == "SIGINT" && d.interrupted():
		d.set(NotOOM, "user", Medium)
	case p.Needs == "shm":
		d.shm(p.Likely || sig == "SIGBUS", d.text.kind)
	case p.Reason == "machine-lost" && len(d.kernel.hints) > 0:
		d.fromStatus(sig)
	case p.Needs == "never" && p.Reason != "":
		d.unsure(d.text.kind, p.Reason)
	case p.Needs == "never":
		d.unsure(d.text.kind, "cause-cut-off")
	case p.Needs == "host" && sig == "SIGKILL" && d.engineSays():
		d.sigkill()
	case d.mem == memLow:
		d.set(OOM, d.text.kind, Medium)
	case p.Needs == "host" && d.mem == memClear:
		d.set(NotOOM, "killed", Medium)
	default:
		d.unsure(d.text.kind, "needs-samples")
	}
}

// interrupted tells that Python saw the Ctrl-C. Some hosts end a job that takes too
// much memory with a bare SIGINT, which leaves no such line.
func (d *decision) interrupted() bool {
	return slices.ContainsFunc(d.ev.Output.Hits, func(h Hit) bool { return strings.HasSuffix(h.Exception, "KeyboardInterrupt") })
}

// shm settles a bus error: the words guess at shared memory, its use decides.
func (d *decision) shm(likely bool, kind string) {
	use := d.ev.ShmUsedPct
	switch {
	case use.OK && use.V >= 90:
		d.add("shm", Decides, "/dev/shm was %.0f %% full", use.V)
		d.set(OOM, kind, High)
	case use.OK:
		d.add("shm", Decides, "/dev/shm was never more than %.0f %% full", use.V)
		d.set(NotOOM, "bus-error", Medium)
	case likely:
		d.set(OOM, kind, Medium)
	default:
		d.unsure(kind, "needs-samples")
	}
}

// fromStatus decides where the output says nothing: by the status and the
// samples.
func (d *decision) fromStatus(sig string) {
	hint := len(d.kernel.hints) > 0
	switch {
	case d.ev.Lost != nil && d.ev.Lost.BootChanged && !d.ev.Exit.Known:
		d.machineLost()
	case hint && d.mem == memLow, hint && d.mem == memUnknown && (sig == "SIGKILL" || sig == "SIGTERM" || !d.ev.Exit.Known):
		// The driver had no memory, and the job ended without a word.
		d.promoteHint()
		d.set(OOM, "unified-driver", Medium)
	case !d.ev.Exit.Known:
		d.noStatus()
	case sig == "SIGKILL":
		d.sigkill()
	case sig == "SIGBUS":
		d.shm(false, "shm")
	case sig == "SIGINT":
		d.set(NotOOM, "user", High)
	case sig == "SIGTERM", sig == "SIGHUP", sig == "SIGQUIT":
		// Daemons that watch memory also begin with SIGTERM.
		conf := Medium
		if d.ev.KernelReadable && d.mem == memClear {
			conf = High
		}
		d.set(NotOOM, "terminated", conf)
	case sig == "SIGSEGV":
		d.set(NotOOM, "segfault", Medium)
	case sig == "SIGABRT":
		d.set(NotOOM, "abort", Medium)
	case d.text.state == consequence && d.text.reason == causeNotShown:
		d.unsure("", causeNotShown)
	case d.text.state == consequence:
		d.followed()
	default:
		d.set(NotOOM, "error", Medium)
		if d.mem == memLow || hint {
			d.unsure("kernel-oom", "memory-was-low")
		}
	}
}

func (d *decision) promoteHint() {
	for i := range d.v.Evidence {
		if it := &d.v.Evidence[i]; it.Source == "kernel" && it.Weight == Weak {
			it.Weight = Decides
			return
		}
	}
}

// noStatus is a job that nobody saw end: alive, hung, or gone with the machine.
func (d *decision) noStatus() {
	switch {
	case d.ev.Lost != nil && d.ev.Lost.BootChanged:
		d.machineLost()
	case d.mem == memLow:
		d.set(OOM, "unified-driver", Medium)
	case d.torn():
		d.unsure("unified-driver", "machine-lost")
	case d.text.state == consequence && d.text.reason != causeNotShown:
		d.followed()
	default:
		d.set(NotOOM, "no-sign", Low)
	}
}

// peerLost is the reason where only collectives that waited in vain are seen on a job
// that spans machines: what happened stands in another machine's log.
const peerLost = "peer-lost"

// followed is a death of which only the consequences are seen.
func (d *decision) followed() {
	if d.ev.Nodes < 2 {
		d.set(NotOOM, d.text.reason, Low)
		return
	}
	d.add("command", Supports, "the job spans %d machines, and here ranks only waited for others in vain", d.ev.Nodes)
	d.set(NotOOM, peerLost, Medium)
	d.v.Advice = append(d.v.Advice, "the cause is on another machine: read the log of the rank that was lost first, and its kernel log")
}

// torn tells that the output ends as a file system leaves it after a power loss.
func (d *decision) torn() bool {
	n := d.ev.Output.TornNULs
	if n < 8 {
		return false
	}
	d.add("output", Weak, "the last line ends in %d NUL bytes: the machine went down while it was written", n)
	return true
}

// machineLost is a machine that was started anew under the job: shut down, frozen
// for want of memory, or without power.
func (d *decision) machineLost() {
	l := d.ev.Lost
	torn := d.torn()
	hint := len(d.kernel.hints) > 0
	switch {
	case l.CleanKnown && l.Clean:
		d.add("boot", Decides, "the machine was shut down in good order and started again")
		d.set(NotOOM, "reboot", High)
		if d.mem == memLow {
			d.v.Confidence = Medium
		}
		return
	case d.mem == memLow, hint && d.mem != memClear:
		d.add("boot", Decides, "the machine went away without a shutdown while memory was running out")
		if hint {
			d.promoteHint()
		}
		d.set(OOM, "unified-driver", Medium)
		d.v.Reason = "freeze"
		return
	case l.CleanKnown && (d.mem == memClear || torn):
		d.add("boot", Supports, "the machine went away without a shutdown, and nothing speaks of memory: power, firmware or a crash of the kernel")
		d.unsure("", "power-loss")
	default:
		d.add("boot", Supports, "the machine was started anew since, and nothing tells why")
		d.unsure("unified-driver", "machine-lost")
	}
}

// engineSays tells that a container engine speaks of a kill for memory, and nothing
// that would know better denies it. A count of no kills does so only beside a kernel
// log without one: alone it may be of another cgroup than the container's own, or of
// one that was gone when it was read.
func (d *decision) engineSays() bool {
	c, n := d.ev.Container, d.ev.CgroupOOMKillDelta
	says := len(d.kernel.engine) > 0 || c != nil && c.Known && c.OOMKilled
	return says && !(d.ev.KernelReadable && n.OK && n.V == 0)
}

// sigkill is a death by SIGKILL that no record explains.
func (d *decision) sigkill() {
	vm := d.ev.VMOOMKillDelta
	switch {
	case d.engineSays():
		// Its limit is its own: the machine's memory says nothing against it.
		d.set(OOM, "cgroup-oom", Medium)
		if d.mem == memClear && d.ev.KernelReadable {
			d.unsure("cgroup-oom", "container-only")
		}
	case d.mem == memLow:
		d.set(OOM, "kernel-oom", Medium)
	case vm.OK && vm.V > 0 && !d.ev.KernelReadable && d.mem != memClear:
		d.set(OOM, "kernel-oom", Medium)
	case d.mem == memClear && !(vm.OK && vm.V > 0 && !d.ev.KernelReadable):
		conf := Medium
		if d.ev.KernelReadable {
			conf = High
		}
		d.set(NotOOM, "killed", conf)
	default:
		d.unsure("kernel-oom", "needs-samples")
	}
}

func lower(a, b Confidence) Confidence {
	order := map[Confidence]int{High: 2, Medium: 1, Low: 0}
	if order[a] < order[b] {
		return a
	}
	return b
}
