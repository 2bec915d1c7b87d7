package gate

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	// fastPoll is the poll of the first fastFor, slowPoll that afterwards.
	fastPoll = 250 * time.Millisecond
	fastFor  = 2 * time.Minute
	slowPoll = time.Second
	// askEvery is how often the holders are looked up: it reads all of /proc.
	askEvery = 10 * time.Second
	// gpuWait bounds the question to the GPU, which may never be answered.
	gpuWait = 2 * time.Second
	// sayMoved and sayStill: how often the value is told while it moves and while
	// it stands still. moved is the share of MemTotal that counts as moving.
	sayFirst = 5 * time.Second
	sayMoved = 30 * time.Second
	sayStill = 3 * time.Minute
	moved    = 0.01
	// keep is how long readings are kept: what climbing looks at, and some.
	keep = 2 * climbWindow
	// nameMostHolders bounds how many holders of a reading get their name from
	// argv.
	nameMostHolders = 12
)

// Options says what Wait waits for and whom it asks.
type Options struct {
	Goal Goal
	// Root is "/" for this machine; "" is the same.
	Root string
	// Say is told the value as it climbs and who holds it, not too often and at
	// first when the wait begins; nil is nobody. A gate that is open at once says
	// nothing.
	Say func(Reading, Decision)
	// Ours says which pids belong to this run; sparkrun itself always does.
	Ours func(pid int) bool
	// GPU returns what NVML says each process holds: How "gpu", Comm may be left
	// empty, Alive is looked up here. nil is "could not be asked", an empty slice
	// is "nobody". It may be slow, or never return.
	GPU func() []Holder
	// Before (Sizes) and GPUBefore (GPUSizes) are what each pid held before
	// attempt 1; nil is unknown.
	Before, GPUBefore map[int]uint64
}

// Result is how the wait went.
type Result struct {
	Decision Decision
	// First and Last are the first and the last reading.
	First, Last Reading
	Waited      time.Duration
	// Err is the context's where it ended the wait; the decision is Waiting then.
	Err error
}

// Wait reads the machine until the gate opens, stops or ctx ends.
func Wait(ctx context.Context, o Options) Result {
	if o.Root == "" {
		o.Root = "/"
	}
	w := waiter{o: o, began: time.Now()}
	var res Result
	first := true
	for {
		r := Read(o.Root)
		r.At = time.Since(w.began)
		w.add(r)
		d := Judge(o.Goal, w.rs)
		// Whatever ends the wait without the memory being back is decided on who
		// holds it now.
		if d.Verdict != Open && (d.Verdict != Waiting || w.askDue(r.At)) {
			w.ask(ctx, &w.rs[len(w.rs)-1])
			d = Judge(o.Goal, w.rs)
		}
		r = w.rs[len(w.rs)-1]
		if first {
			res.First, first = r, false
		}
		res.Last, res.Decision, res.Waited = r, d, r.At
		if d.Verdict != Waiting {
			return res
		}
		w.say(r, d)
		every := fastPoll
		if r.At >= fastFor {
			every = slowPoll
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
			t.Stop()
			res.Err, res.Waited = ctx.Err(), time.Since(w.began)
			return res
		case <-t.C:
		}
	}
}

// waiter is the state of one wait.
type waiter struct {
	o      Options
	began  time.Time
	rs     []Reading
	asked  bool
	askAt  time.Duration
	gpu    chan []Holder // a question under way
	said   bool
	sayAt  time.Duration
	sayKiB uint64
}

// add keeps a reading, and forgets those that nobody will look at again.
func (w *waiter) add(r Reading) {
	w.rs = append(w.rs, r)
	old := 0
	for old < len(w.rs) && w.rs[old].At < r.At-keep {
		old++
	}
	if old < 64 {
		return // not worth the copying
	}
	// The last one that knew the figures and the last that knew the holders stay.
	kept := make([]Reading, 0, len(w.rs)-old+2)
	known, asked := -1, -1
	for i, q := range w.rs[:old] {
		if q.Known {
			known = i
		}
		if q.Asked {
			asked = i
		}
	}
	for i, q := range w.rs {
		if i >= old || i == known || i == asked {
			kept = append(kept, q)
		}
	}
	w.rs = kept
}

func (w *waiter) askDue(at time.Duration) bool { return !w.asked || at-w.askAt >= askEvery }

// ask looks up the holders and puts them into a reading.
func (w *waiter) ask(ctx context.Context, r *Reading) {
	w.asked, w.askAt = true, r.At
	ours := func(pid int) bool { return pid == os.Getpid() || w.o.Ours != nil && w.o.Ours(pid) }
	r.Others = scan(w.o.Root, ours, w.o.Before)
	for i := range min(len(r.Others), nameMostHolders) {
		r.Others[i].Comm = Name(w.o.Root, r.Others[i].PID)
	}
	var gpu []Holder
	gpu, r.GPUKnown = w.askGPU(ctx)
	for _, h := range gpu {
		h.How, h.Ours, h.Alive = "gpu", ours(h.PID), alive(w.o.Root, h.PID)
		h.GrewKiB = less(h.KiB, w.o.GPUBefore[h.PID])
		if n := Name(w.o.Root, h.PID); n != "?" || h.Comm == "" {
			h.Comm = n
		}
		r.GPUOther = append(r.GPUOther, h)
	}
	r.Asked = true
}

// askGPU asks with a bound. A question that is never answered is not asked again:
// each would leave a goroutine behind.
func (w *waiter) askGPU(ctx context.Context) ([]Holder, bool) {
	if w.o.GPU == nil {
		return nil, false
	}
	if w.gpu == nil {
		answer := make(chan []Holder, 1)
		w.gpu = answer
		go func() { answer <- w.o.GPU() }()
	}
	t := time.NewTimer(gpuWait)
	defer t.Stop()
	select {
	case hs := <-w.gpu:
		w.gpu = nil
		return hs, hs != nil
	case <-t.C:
	case <-ctx.Done():
	}
	return nil, false
}

// initialPIDs is the inode of the machine's own pid namespace.
const initialPIDs = "pid:[4026531836]"

// alive says whether a process NVML names is there. NVML counts by the machine's
// pids: from within a container they cannot be looked up, and then nobody is
// called dead.
func alive(root string, pid int) bool {
	b, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "stat"))
	if err == nil {
		// The state follows the name, which may hold parentheses of its own.
		i := bytes.LastIndexByte(b, ')')
		return i < 0 || i+2 >= len(b) || b[i+2] != 'Z' && b[i+2] != 'X'
	}
	ns, err := os.Readlink(filepath.Join(root, "proc/self/ns/pid"))
	return err == nil && ns != initialPIDs
}

// say tells the value, rate-limited.
func (w *waiter) say(r Reading, d Decision) {
	if w.o.Say == nil {
		return
	}
	since := r.At - w.sayAt
	step := uint64(float64(r.TotalKiB) * moved)
	hasMoved := r.Known && (r.AvailKiB > w.sayKiB+step || r.AvailKiB+step < w.sayKiB)
	every := sayStill
	switch {
	case hasMoved && r.At < settle:
		every = sayFirst
	case hasMoved:
		every = sayMoved
	}
	if w.said && since < every {
		return
	}
	w.said, w.sayAt, w.sayKiB = true, r.At, r.AvailKiB
	w.o.Say(r, d)
}
