package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/clock"
	"sparkrun/internal/cores"
	"sparkrun/internal/event"
	"sparkrun/internal/proctree"
	"sparkrun/supervisor/holder"
	"sparkrun/supervisor/runlog"
)

// awaitEnd waits for exit.json, which alone is the end of an attempt, and then
// for the readers to have seen all of the output.
func (r *run) awaitEnd(a *attempt) {
	// The holder's word comes first; the file is looked at in case there is no
	// socket or the word got lost.
	look := 5 * time.Second
	if a.client == nil {
		look = 200 * time.Millisecond
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	gone, exited := a.holder.Wait(), a.exited
	var grace <-chan time.Time
	for {
		told := a.pushed.Load() // before the look: the file comes before the word
		e, err := holder.ReadExit(a.dir)
		if err == nil {
			r.attemptOver(a, &e)
			return
		}
		if told != nil {
			// The folder was removed under the run, or the disk takes nothing: the
			// holder's word is as good, and it tries for the file on.
			r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Error, Msg: "the end of the attempt is not on disk yet: " + err.Error()})
			r.attemptOver(a, told)
			return
		}
		select {
		case <-exited:
			exited = nil
		case <-tick.C:
		case <-gone:
			gone = nil
			grace = time.After(time.Second)
		case <-grace:
			r.attemptLost(a)
			return
		}
	}
}

// attemptOver hands the end of an attempt to the loop.
func (r *run) attemptOver(a *attempt, e *holder.Exit) {
	a.exit.Store(e)
	cores.Work()
	r.readToEnd(a)
	if a.client != nil {
		// All is read: the holder need not wait for us.
		go func() { _ = a.client.Goodbye() }()
	}
	if e.SlowestSync > 2*time.Second {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Warn, Msg: fmt.Sprintf("the disk was slow: one sync of output.log took %.1f s", e.SlowestSync.Seconds()), Data: map[string]any{"sync_s": e.SlowestSync.Seconds()}})
	}
	status, by := e.Status(), runlog.EndedBy("")
	if engineStatus, known := r.settle(a, func() (bool, bool) { return endedByUs(a, e) }); known {
		a.engineStatus, status = &engineStatus, engineStatus
	}
	a.box.close()
	end := e.Boot
	if a.box.client || end == 0 { // or it could not be reaped
		end = max(end, clock.Boottime()) // with a container the attempt was its
	}
	if guardEnded(e) {
		by = runlog.ByGuard
	}
	// A child without a signal of ours ended by itself, whatever was asked for
	// in the meantime.
	unasked, escalated := true, false
	for _, sent := range e.Stops {
		if sent.T > e.T || sent.By == holder.ByGuard {
			continue // to what the child left behind (the same format, so text compares), or nobody's wish
		}
		unasked = false
		escalated = escalated || sent.To == holder.ToTree
	}
	if n := a.asked.Load(); a.box.client && n > 0 {
		unasked, escalated = false, escalated || n > 1
	}
	// Who was first: the guard may act while a hang is being ended, and is not why.
	if w := a.watched.Load(); w != nil && !unasked && (by == "" || r.clk.At(e.Guard.Boot).After(w.at)) {
		by = w.by
	}
	a.ending = by
	if left := endedWords(e.Ended); left != "" && by == "" && unasked {
		r.log.Event(event.Event{
			Attempt: a.n, Kind: event.Hygiene, Level: event.Warn,
			Msg:  "ended what the command had left running: " + left + " (a service that is to live on has to be started outside of the run)",
			Data: map[string]any{"ended": len(e.Ended)},
		})
	}
	for _, note := range e.Notes {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Warn, Msg: note})
	}
	for _, p := range e.Survivors {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.RunStop, Level: event.Error, Msg: fmt.Sprintf("process %d (%s) could not be ended, not even by SIGKILL: it hangs in the kernel", p.PID, p.Comm)})
	}
	r.post(Input{Kind: ChildEnded, Status: status, Escalated: escalated, Unasked: unasked, Container: r.job.Container != nil, By: by}, func() {
		a.end = r.clk.At(end)
		a.cancel()
	})
}

// endedWords names processes, three at most; "" for none.
func endedWords(ps []holder.Ended) string {
	var names []string
	for i, p := range ps {
		if i == 3 {
			names = append(names, fmt.Sprintf("%d more", len(ps)-i))
			break
		}
		names = append(names, fmt.Sprintf("%s (pid %d)", p.Comm, p.PID))
	}
	return strings.Join(names, ", ")
}

// readToEnd waits until the line reader has seen all there is; a verdict from
// half the output would be worth nothing, but a sick file system must not hold
// the run either.
func (r *run) readToEnd(a *attempt) {
	a.wake()
	select {
	case <-a.linesDone:
	case <-time.After(2 * time.Minute):
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Error, Msg: "the child's output could not be read to its end within 2 minutes; the verdict uses what was read"})
	}
}

// attemptLost ends what a dead holder left behind.
func (r *run) attemptLost(a *attempt) {
	cgroup := ""
	if a.cgroupOurs {
		cgroup = r.o.Cgroup
	}
	ended, left := sweep("SPARKRUN_RUN_ID="+r.dir.ID, cgroup, 5*time.Second)
	inside := r.endLost(a)
	a.lost.Store(true)
	cores.Work()
	r.readToEnd(a)
	reason := fmt.Sprintf("the holder of attempt %d died without a word; %d processes it left were ended", a.n, ended)
	if left > 0 {
		reason += fmt.Sprintf(", %d could not be", left)
	}
	reason += inside
	r.post(Input{Kind: AttemptLost, Reason: reason}, func() {
		a.end = r.clk.Now()
		a.cancel()
	})
}

// sweep kills every process with an entry in its environment, and those of a
// cgroup that is the job's own, looking again until none is left or the time is
// up. It returns how many it has ended and how many are left.
func sweep(entry, cgroup string, limit time.Duration) (ended, left int) {
	seen := map[proctree.Proc]bool{}
	deadline := time.Now().Add(limit)
	for {
		procs := proctree.WithEnv(entry)
		if cgroup != "" {
			b, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
			if err == nil {
				for _, f := range strings.Fields(string(b)) {
					if pid, err := strconv.Atoi(f); err == nil {
						if p, ok := proctree.Read(pid); ok {
							procs = append(procs, p)
						}
					}
				}
			}
		}
		left = 0
		for _, p := range procs {
			if p.State == 'Z' || p.PID == os.Getpid() || p.PID == os.Getppid() {
				continue
			}
			left++
			key := proctree.Proc{PID: p.PID, Start: p.Start}
			seen[key] = true
			_ = p.Signal(unix.SIGKILL) // the next look tells whether it is gone
		}
		if left == 0 || time.Now().After(deadline) {
			return len(seen) - left, left
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stopOrder is one step of a stop: a signal to pass on, and how long to wait.
type stopOrder struct {
	signal string
	grace  time.Duration
}

// order queues a step; they reach the holder in this order. A queue that is full
// holds more wishes to hurry than there are steps.
func (a *attempt) order(o stopOrder) {
	a.asked.Add(1)
	select {
	case a.orders <- o:
	default:
	}
}

// takeOrders passes the steps of a stop on until the attempt is over.
func (a *attempt) takeOrders(r *run) {
	for {
		select {
		case <-r.over:
			return
		case o := <-a.orders:
			if err := a.stop(o.signal, o.grace, r.endFailed(a)); err != nil {
				r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Error, Msg: err.Error()})
			}
		}
	}
}

// stop sends the order to stop through the socket, or by signal where there is
// none.
func (a *attempt) stop(name string, grace time.Duration, failed func(error)) error {
	if a.exit.Load() != nil && a.box.client {
		// The client has gone before its container.
		a.box.beginEnd(grace, failed)
		return nil
	}
	if a.client != nil {
		if err := a.client.Stop(name, grace); err == nil {
			return nil
		}
	}
	sig := unix.SignalNum(name)
	if sig != unix.SIGINT && sig != unix.SIGQUIT {
		sig = unix.SIGTERM
	}
	if err := a.holder.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the command: %w", err)
	}
	return nil
}
