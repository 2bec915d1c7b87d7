package holder

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
	"sparkrun/internal/proctree"
	"sparkrun/supervisor/guard"
)

const (
	// killEvery is how often the tree is scanned again after SIGKILL.
	killEvery = 20 * time.Millisecond
	// flushLimit bounds the wait for the writer at the end, persistLimit that
	// for exit.json, syncLimit that for the last sync.
	flushLimit   = 30 * time.Second
	persistLimit = 30 * time.Second
	syncLimit    = 200 * time.Millisecond
	// tellAfter is how long a disk that refuses exit.json keeps the clients from
	// hearing of the end, saveEvery how often it is asked again.
	tellAfter = time.Second
	saveEvery = 100 * time.Millisecond
	// maxRead is the most one read request returns.
	maxRead = 128 << 10
	// maxTree bounds the processes of one status reply.
	maxTree = 512
)

// hold is one attempt. Its state belongs to the goroutine in run; others hand
// it functions through calls.
type hold struct {
	spec   Spec
	ring   *ring
	disk   *disk
	src    *source
	input  *input
	srv    *server // nil without a socket
	cgroup cgroup
	child  child
	guard  *guard.Guard
	// guardAction is what the guard did, or the warning it gave.
	guardAction *guard.Action
	guardNotes  []guard.Note

	calls chan func()
	// over is closed when run returns.
	over chan struct{}
	// gone is closed when the tree is empty or given up.
	gone chan struct{}

	stop    stopState
	stopSig syscall.Signal
	// stopBy is ByGuard while the guard is whom the stop order works for.
	stopBy string
	// killAt is when the tree is scanned again. An instant, not a wait: a tree
	// that dies in a storm of SIGCHLD must not put it off for ever.
	killAt time.Duration
	paused bool
	// leash bounds the pause, nil for one without a bound.
	leash *leash
	// still is what the pause has stopped, and found stopped.
	still still
	exit  Exit
	// ended are the descendants that were signalled, by identity, in order.
	ended   map[[2]uint64]int
	exited  *push
	drained bool
	// orphanKilled is whether a descendant without a parent died of SIGKILL.
	orphanKilled bool
}

func newHold(spec Spec, r *ring) *hold {
	return &hold{
		spec: spec, ring: r, stop: stopState{awaitTree: spec.AwaitTree},
		calls: make(chan func()), over: make(chan struct{}), gone: make(chan struct{}),
		ended: map[[2]uint64]int{},
		exit: Exit{
			Schema: ExitSchema, RunID: spec.RunID, Attempt: spec.Attempt, Code: -1,
			Stops: []Sent{}, Ended: []Ended{}, Survivors: []Ended{}, Orphans: []Orphan{},
		},
	}
}

// onGap tells every client of a gap.
func (h *hold) onGap(g Gap) {
	if h.srv == nil {
		return
	}
	head, written := h.ring.offsets()
	h.srv.broadcast(push{Push: PushGap, Offset: head, Written: written, Gap: &g})
}

func (h *hold) serve(ln *net.UnixListener) {
	h.srv = newServer(ln)
	h.srv.handle = h.request
	h.srv.greet = func() (m *push) {
		_ = h.do(func() error {
			m = h.exited
			return nil
		})
		return m
	}
}

// run is the life of the attempt after the command has been started. It
// returns whether exit.json was written.
func (h *hold) run(sigs, chld <-chan os.Signal) bool {
	defer close(h.over)
	go h.disk.run()
	go h.disk.sync.run()
	drained := make(chan struct{})
	go func() {
		h.drained = h.src.drain(h.ring)
		close(drained)
	}()
	if h.src.isPTY {
		h.input = newInput(h.src.f)
		go h.input.run()
	}
	if h.srv != nil {
		go h.srv.accept()
		go h.tellGrowth()
		defer h.srv.close()
	}

	h.reap()
	h.await(h.gone, 0, sigs, chld)
	h.src.release()
	write := h.guardFiles()
	// What is still in the terminal comes out at once, or somebody outside the
	// tree holds it open.
	if !h.await(drained, h.spec.Waits.Drain, sigs, chld) {
		_ = h.src.f.SetReadDeadline(time.Unix(1, 0))
		<-drained // the reader waits for nothing else
	}
	h.exit.Drained = h.drained
	h.ring.finish()
	if h.await(h.disk.done, flushLimit, sigs, chld) {
		rescued := make(chan struct{})
		go func() {
			h.disk.rescue(h.spec.Reserve)
			close(rescued)
		}()
		h.await(rescued, flushLimit, sigs, chld)
	}
	// Before exit.json, which tells every reader that all is there; after the
	// output, which would take the room of a reserve that is given up for these.
	saved := save(write)
	if h.await(saved.done, guardSave, sigs, chld) {
		for _, s := range saved.lost {
			h.exit.lost("%s", s)
		}
	} else {
		h.exit.lost("%s and %s were not written within %s: the disk is slow or hangs", guardName, blackboxName, guardSave)
	}
	return h.conclude(sigs, chld)
}

// saving is the guard's files on their way to the disk. lost, what of them is
// not, may be read when done is closed.
type saving struct {
	done chan struct{}
	lost []string
}

func save(write func() []string) *saving {
	saved := &saving{done: make(chan struct{})}
	go func() {
		defer close(saved.done)
		saved.lost = write()
	}()
	return saved
}

// conclude writes exit.json and tells the clients.
func (h *hold) conclude(sigs, chld <-chan os.Signal) bool {
	h.disk.sync.stop()
	h.await(h.disk.sync.done, syncLimit, sigs, chld)

	h.exit.ChildPID, h.exit.ChildStart = h.child.pid, h.child.start
	h.exit.SlowestSync = h.disk.slowestSync()
	h.exit.Offset, h.exit.Written = h.ring.offsets()
	_, h.exit.GapBytes = h.disk.state()
	lost := h.disk.finalGap()
	if lost != nil {
		// Named in gaps.jsonl before there is an exit.json.
		h.exit.GapBytes += lost.Bytes
		h.exit.Written = h.exit.Offset
	}
	e := h.exit
	type result struct{ named, saved bool }
	results := make(chan result, 1)
	done := make(chan struct{})
	go func() {
		named, saved := persist(h.spec.Dir, h.spec.Reserve, lost, e, persistLimit, func(named bool) {
			// Nobody is kept waiting by a full disk: the clients hear of the end now,
			// and the file is tried for on.
			_ = h.do(func() error {
				h.tellEnd(e, lost, named, false)
				return nil
			})
		})
		results <- result{named, saved}
		close(done)
	}()
	ok, named := false, false
	if h.await(done, persistLimit+flushLimit, sigs, chld) {
		r := <-results
		ok, named = r.saved, r.named
	}
	h.tellEnd(e, lost, named, ok) // those who know do not hear it twice
	if h.srv != nil {
		h.await(h.srv.idle(), h.spec.Waits.Linger, sigs, chld)
	}
	return ok
}

// tellEnd tells every client that the attempt is over: how it ended, the gap at the
// end of the output, and whether each is on disk.
func (h *hold) tellEnd(e Exit, lost *Gap, named, saved bool) {
	if lost != nil && !named {
		e.Written = lost.Offset
	}
	first := h.exited == nil
	h.exited = &push{Push: PushExited, Offset: e.Offset, Written: e.Written, Exit: &e, Saved: saved}
	if h.srv == nil {
		return
	}
	if lost != nil && first {
		h.onGap(*lost)
	}
	h.srv.broadcast(*h.exited)
}

// await serves signals, requests and the stop order until done is closed, which
// it returns, or limit (0: none) is over.
func (h *hold) await(done <-chan struct{}, limit time.Duration, sigs, chld <-chan os.Signal) bool {
	var timeout <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		timeout = t.C
	}
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	for {
		tick.Reset(h.untilTick())
		select {
		case <-done:
			return true
		case <-timeout:
			return false
		case s := <-sigs:
			h.ownSignal(s)
		case <-chld:
			h.reap()
		case f := <-h.calls:
			f()
		case e := <-h.guard.Events():
			h.guardSays(e)
		case <-tick.C:
			h.step(stopEvent{kind: evTime})
			h.holdLeash()
		}
	}
}

// untilTick is how long the stop order, and a pause, have nothing to do.
func (h *hold) untilTick() time.Duration {
	if h.leash != nil {
		return min(h.untilStep(), max(h.leash.look-clock.Boottime(), 0))
	}
	return h.untilStep()
}

func (h *hold) untilStep() time.Duration {
	switch {
	case h.stop.phase == phaseRun || h.stop.phase == phaseAwait || h.stop.phase.over():
		return time.Hour
	case h.stop.phase == phaseKill:
		return max(h.killAt-clock.Boottime(), 0)
	}
	return max(h.stop.deadline-clock.Boottime(), 0)
}

// ownSignal is a signal sent to the holder itself: the way to stop an attempt
// without a socket. A connected supervisor gets the same signal when a session
// is ended, and decides; acting here too would be a second stop.
func (h *hold) ownSignal(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if !ok || (h.srv != nil && h.srv.supervised()) {
		return
	}
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGTERM:
		h.requestStop(sig, h.spec.Grace)
	}
}

func (h *hold) requestStop(sig syscall.Signal, grace time.Duration) {
	h.stopSig, h.stopBy = sig, ""
	h.step(stopEvent{kind: evStop, sig: sig, grace: grace})
}

// step moves the stop order on and does what it says.
func (h *hold) step(e stopEvent) {
	before := h.stop.phase
	if e.kind == evGuardTerm || e.kind == evGuardKill {
		h.stopBy = ByGuard
	}
	var acts []stopAction
	h.stop, acts = h.spec.Waits.next(h.stop, e, clock.Boottime())
	for _, a := range acts {
		switch a {
		case actForward:
			h.forward()
		case actTerm:
			h.sent(unix.SIGTERM, ToTree, h.stopBy)
			h.note(signalTree(unix.SIGTERM), unix.SIGTERM)
		case actKill:
			if before != phaseKill { // not for each further scan
				h.sent(unix.SIGKILL, ToTree, h.stopBy)
			}
			h.cgroup.killAll()
			h.guard.KillContainer()
			h.note(killTree(), unix.SIGKILL)
			h.killAt = clock.Boottime() + killEvery
		}
	}
	if len(acts) > 0 && h.paused {
		// A tree that is to end must run to do so, whoever has stopped it.
		h.still.asleep = nil
		h.wake()
	}
	if h.stop.phase == phaseGaveUp {
		h.survivors()
	}
	if h.stop.phase.over() && !isClosed(h.gone) {
		if h.spec.AwaitTree {
			// The end of the work is the end of the attempt.
			h.exit.T, h.exit.Boot = clock.Machine(time.Now()), clock.Boottime()
		}
		close(h.gone)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// forward sends the first signal of a stop: what a terminal would send goes to
// its foreground group, everything else to the command alone, which knows what
// its workers need.
func (h *hold) forward() {
	to := ToChild
	if h.stopSig == unix.SIGINT || h.stopSig == unix.SIGQUIT {
		to = ToForeground
	}
	// One that has just ended is seen by the next reap.
	_ = h.signal(h.stopSig, to)
	wakeTree(nil)
}

// signal sends sig and records it.
func (h *hold) signal(sig syscall.Signal, to string) error {
	var err error
	switch to {
	case ToChild:
		err = h.signalChild(sig)
	case ToForeground:
		err = h.signalForeground(sig)
	case ToTree:
		if len(signalTree(sig)) == 0 {
			err = unix.ESRCH
		}
	default:
		return fmt.Errorf("a signal goes to fg, child or tree, not to %q", to)
	}
	if errors.Is(err, unix.ESRCH) {
		return errors.New("there is no process left to signal")
	}
	if err == nil {
		h.sent(sig, to, "")
	}
	return err
}

func (h *hold) signalChild(sig syscall.Signal) error {
	if h.stop.childGone {
		return unix.ESRCH
	}
	if h.child.pidfd >= 0 {
		if err := unix.PidfdSendSignal(h.child.pidfd, sig, nil, 0); !proctree.NoPidfd(err) {
			return err
		}
	}
	// Not reaped, so the pid is still its own.
	return syscall.Kill(h.child.pid, sig)
}

func (h *hold) signalForeground(sig syscall.Signal) error {
	if h.src.isPTY {
		if err := h.src.signal(sig); !errors.Is(err, unix.ESRCH) {
			return err
		}
	} else if !h.stop.childGone {
		// A session leader leads its group, and not reaped keeps its number.
		if err := syscall.Kill(-h.child.pid, sig); !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return h.signalChild(sig)
}

func (h *hold) sent(sig syscall.Signal, to, by string) {
	if len(h.exit.Stops) < maxStops {
		h.exit.Stops = append(h.exit.Stops, Sent{Signal: signalName(sig), To: to, T: clock.Machine(time.Now()), By: by})
	}
}

// note records the descendants that a signal of the stop order reached.
func (h *hold) note(hit []proctree.Proc, sig syscall.Signal) {
	for _, p := range hit {
		if p.PID == h.child.pid {
			continue
		}
		k := [2]uint64{uint64(p.PID), p.Start}
		if at, ok := h.ended[k]; ok {
			h.exit.Ended[at].Signal = signalName(sig)
			continue
		}
		if len(h.exit.Ended) < maxEnded {
			h.ended[k] = len(h.exit.Ended)
			h.exit.Ended = append(h.exit.Ended, Ended{PID: p.PID, Comm: p.Comm, Signal: signalName(sig)})
		}
	}
}

func (h *hold) survivors() {
	for _, p := range proctree.Descendants(os.Getpid()) {
		if len(h.exit.Survivors) < maxEnded {
			h.exit.Survivors = append(h.exit.Survivors, Ended{PID: p.PID, Comm: p.Comm})
		}
	}
}

// reap takes every ended child.
func (h *hold) reap() {
	for {
		r, ok, childless := reapNext()
		if childless {
			h.step(stopEvent{kind: evEmpty})
			return
		}
		if !ok {
			return
		}
		if r.pid != h.child.pid {
			h.exit.OrphansTotal++
			h.orphanKilled = h.orphanKilled || r.status.Signaled() && r.status.Signal() == unix.SIGKILL
			if len(h.exit.Orphans) < maxReaped {
				h.exit.Orphans = append(h.exit.Orphans, Orphan{PID: r.pid, Comm: r.comm, Status: uint32(r.status)})
			}
			continue
		}
		h.childEnded(r)
		h.step(stopEvent{kind: evChild})
	}
}

func (h *hold) childEnded(r reaped) {
	e := &h.exit
	e.Reaped, e.WaitStatus, e.AddressLimit = true, uint32(r.status), r.address
	e.Code = r.status.ExitStatus() // -1 when signaled
	if r.status.Signaled() {
		e.Signal, e.Core = signalName(r.status.Signal()), r.status.CoreDump()
	}
	e.Rusage = Usage{
		UserS:   time.Duration(r.usage.Utime.Nano()).Seconds(),
		SystemS: time.Duration(r.usage.Stime.Nano()).Seconds(), MaxRSSKiB: r.usage.Maxrss,
	}
	e.T, e.Boot = clock.Machine(time.Now()), clock.Boottime()
	if h.child.pidfd >= 0 {
		unix.Close(h.child.pidfd)
		h.child.pidfd = -1
	}
}

// tellGrowth pushes grew after the output or what is on disk has grown.
func (h *hold) tellGrowth() {
	var told, toldWritten int64
	var last time.Time
	for {
		select {
		case <-h.ring.changed:
		case <-h.over:
			return
		}
		// No wait behind the push: a command that prints now and then would have its
		// holder wake twice for each line.
		h.awaitDisk(toldWritten)
		alarm.Sleep(grewEvery - time.Since(last))
		head, written := h.ring.offsets()
		if head == told && written == toldWritten {
			continue
		}
		told, toldWritten, last = head, written, time.Now()
		h.srv.broadcast(push{Push: PushGrew, Offset: head, Written: written})
	}
}

// awaitDisk waits a moment for what was printed to come to the disk, beyond the offset
// told: readers read there, and one push is enough then.
func (h *hold) awaitDisk(told int64) {
	var late <-chan struct{}
	for {
		head, written := h.ring.offsets()
		if head == written || written > told || h.ring.refused() {
			return
		}
		if late == nil {
			t := alarm.After(2 * batchWait)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-h.ring.changed:
		case <-late:
			return
		case <-h.over:
			return
		}
	}
}

// errOver is the answer when the attempt has ended meanwhile.
var errOver = errors.New("the attempt is over")

// do runs f in the goroutine that owns the state.
func (h *hold) do(f func() error) error {
	done := make(chan error, 1)
	select {
	case h.calls <- func() { done <- f() }:
		return <-done
	case <-h.over:
		return errOver
	}
}
