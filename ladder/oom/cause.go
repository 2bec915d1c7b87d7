package oom

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/lazyre"
)

// The causes that Go code finds; others are named by the table.
const (
	causeAfterTraining = "after-training"
	causeFragmentation = "fragmentation"
	causeNoMapping     = "no-mapping"
	causeCoTenant      = "co-tenant"
	causeDriverMemory  = "driver-memory"
	causeFraction      = "fraction"
	causeAddressLimit  = "address-limit"
	causeWorker        = "worker"
)

// gpuKinds are the kinds whose message has an allocator's numbers.
var gpuKinds = []string{"cuda-allocator", "cuda-driver", "hip", "xpu", "unified-driver"}

// cause tells apart deaths of one kind that need different levers.
func (d *decision) cause(word string) string {
	v := &d.v
	if v.Answer == NotOOM {
		return d.otherCause()
	}
	if v.Answer == OOM && (d.ev.TrainingFinished || d.ev.Output.Finished) {
		return causeAfterTraining
	}
	h := d.text.hit
	if h != nil && d.text.kind == word {
		if p := d.t.classify(h).p; p != nil && p.Cause != "" {
			return p.Cause
		}
	}
	gpu := slices.Contains(gpuKinds, word)
	if gpu && capped(v.Sizes) {
		return causeFraction
	}
	if gpu && coTenant(v.Sizes) {
		return causeCoTenant
	}
	if gpu && d.mappingRefused() {
		return causeNoMapping
	}
	if gpu && fragmented(v.Sizes) && !d.expandable() {
		return causeFragmentation
	}
	if h != nil && h.Cause != "" && d.text.kind == word && d.t.causeFor(h.Cause, word) {
		return h.Cause
	}
	switch word {
	case "host-alloc":
		switch {
		case d.workerRaised():
			return causeWorker
		case d.addressLimit():
			return causeAddressLimit
		}
	case "kernel-oom", "cgroup-oom":
		shmem, anon := v.Sizes["shmem_rss"], v.Sizes["anon_rss"]
		switch {
		case d.kernel.forGPU && d.killed != nil:
			// The victim is whoever was largest; the memory is the driver's.
			return causeDriverMemory
		case d.workerKilled():
			return causeWorker
		case shmem > anon && shmem > 1<<30:
			return causeDriverMemory
		}
	}
	return ""
}

// otherCause tells apart deaths of one reason that are not for memory, where the line
// that decided does.
func (d *decision) otherCause() string {
	if d.text.state != other || d.text.hit == nil || d.v.Reason != d.text.reason {
		return ""
	}
	if p := d.t.classify(d.text.hit).p; p != nil {
		return p.Cause
	}
	return ""
}

// workerDied is torch's report of data workers that are gone: killed by SIGKILL, or by
// something that it does not know. The pids stand in group 1.
var workerDied = lazyre.New(`DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is killed by signal: Killed|exited unexpectedly)`)

// workerKilled tells that the victim of the kill was a data worker: what it holds is the
// data's, and neither length nor batch of the training makes that smaller.
func (d *decision) workerKilled() bool {
	named := false
	for i := range d.ev.Output.Hits {
		h := &d.ev.Output.Hits[i]
		m := workerDied.FindStringSubmatch(h.Text)
		if m == nil || past(&d.ev.Output, h) {
			continue
		}
		pids := strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })
		if d.killed == nil {
			// Only a count tells of the kill, or the output itself; unexpectedly says
			// nothing about the signal.
			named = named || strings.Contains(m[0], "Killed")
		} else if slices.Contains(pids, strconv.Itoa(d.killed.pid)) {
			named = true
		}
	}
	if named || d.killed == nil {
		return named
	}
	// torch names the process of a worker, and threads of the command, in this way.
	return strings.HasPrefix(d.killed.comm, "pt_data_") && !d.commandKilled()
}

// commandKilled tells that the victim may be the command itself: it was ended by
// SIGKILL, and no other process is known to have been.
func (d *decision) commandKilled() bool {
	if signalOf(d.ev.Exit) != "SIGKILL" {
		return false
	}
	return !slices.ContainsFunc(d.ev.Reaped, func(r Reaped) bool { return r.PID == d.killed.pid })
}

// workerRaised tells that the allocation failed in a data worker, which hands its
// exception on: that line stands above the worker's own traceback.
func (d *decision) workerRaised() bool {
	h := d.text.hit
	if h == nil || d.text.kind != "host-alloc" {
		return false
	}
	const apart = 400 // lines that the worker's traceback may take
	return slices.ContainsFunc(d.ev.Output.Hits, func(c Hit) bool {
		near := c.seq <= h.seq && h.seq-c.seq <= apart
		return near && c.Stream == h.Stream && strings.Contains(c.Text, "in DataLoader worker process") && !past(&d.ev.Output, &c)
	})
}

// coTenant tells that other processes hold so much of the GPU's memory that a
// smaller job may not help.
func coTenant(s map[string]int64) bool {
	return s["total"] > 0 && s["other_processes"] > s["total"]/3
}

// capped tells that the process may use only a part of the GPU, and that the rest
// would have been enough.
func capped(s map[string]int64) bool {
	return s["allowed"] > 0 && s["allowed"] < s["total"]/20*19 && s["free"] > s["requested"]
}

// fragmented tells that more is reserved and unused than was asked for, so that it
// is the shape of the free memory that does not fit, not its amount. A request of
// more than half the GPU is plainly too big all the same.
func fragmented(s map[string]int64) bool {
	r := s["requested"]
	// A full GPU has some of it always: a twentieth of the total is a waste that
	// decides.
	waste, total := s["reserved_unallocated"], s["total"]
	return r > 0 && waste > r && (total == 0 || r <= total/2 && waste >= total/20)
}

// mappingRefused tells that expandable segments could not map a small block while
// there was plenty: the mode does not work here.
func (d *decision) mappingRefused() bool {
	s := d.v.Sizes
	if s["requested"] == 0 || s["free"] < 8*s["requested"] {
		return false
	}
	o := &d.ev.Output
	return slices.ContainsFunc(o.Hits, func(h Hit) bool {
		return slices.Contains(h.IDs, "W3") && strings.Contains(h.Text, "mapping failed") && !past(o, &h)
	})
}

// allocConf is a line that shows the environment, as env, set -x or a launcher print it.
// A tip that asks for the setting does not begin so.
var allocConf = lazyre.New(`^(?:\+ |env: |export |declare -x )*PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF["']?[=:] ?(\S+)`)

// expandable tells that expandable segments are known to be on, so that turning them
// on is no advice: by the environment, or by the allocator's own warnings.
func (d *decision) expandable() bool {
	on := func(conf string) bool { return strings.Contains(strings.ToLower(conf), "expandable_segments:true") }
	if on(d.ev.AllocConf) {
		return true
	}
	o := &d.ev.Output
	if slices.ContainsFunc(o.Hits, func(h Hit) bool {
		return slices.Contains(h.IDs, "W3") && strings.Contains(h.Text, "expandable_segments:")
	}) {
		return true
	}
	return slices.ContainsFunc(o.Tail, func(l Line) bool {
		if !strings.Contains(l.Text, "ALLOC_CONF") {
			return false
		}
		text, _ := d.t.Clean(l.Text)
		m := allocConf.FindStringSubmatch(text)
		return m != nil && on(m[1])
	})
}

// addressLimit tells that the process hit its own limit and not the machine's.
func (d *decision) addressLimit() bool {
	return d.ev.AddressLimitKiB.OK && d.mem == memClear
}

// causeFor tells whether frames of this cause say something about such a kind.
func (t *Table) causeFor(cause, kind string) bool {
	for i := range t.CauseFrames {
		if f := &t.CauseFrames[i]; f.Cause == cause && slices.Contains(f.Kinds, kind) {
			return true
		}
	}
	return false
}

// adviceText is the table's advice, with what only this death can say in front.
func (d *decision) adviceText(word string) []string {
	v := d.v
	if v.Sizes["reserved_unallocated"] > 0 && d.expandable() {
		// It is not in pieces for want of the setting that an advice would name.
		v.Sizes = maps.Clone(v.Sizes)
		delete(v.Sizes, "reserved_unallocated")
	}
	out := d.t.advice(&v, word)
	switch {
	case d.outsider != "":
		out = append([]string{fmt.Sprintf("%s took the memory, not this job: end it or wait, then start again unchanged.", d.outsider)}, out...)
	case d.v.Cause == causeAddressLimit, d.v.Cause == causeWorker && word == "host-alloc" && d.addressLimit():
		limit := numText(d.ev.AddressLimitKiB)
		out = append([]string{fmt.Sprintf("The process hit its own limit of %s address space (ulimit -v) while the machine had memory left: raise or remove that limit.", limit)}, out...)
	}
	return out
}

// mine tells whether a pid that a message names is one of the job's: a rank on the
// same GPU is no co-tenant.
func mine(ev *Evidence, pid int) bool {
	if _, ok := ev.Tree[pid]; ok {
		return true
	}
	want := fmt.Sprintf("pid=%d", pid)
	for name := range ev.Output.streams {
		if at := strings.Index(name, want); at >= 0 && (at+len(want) == len(name) || !digit(name[at+len(want)])) {
			return true
		}
	}
	return false
}
