package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/ladder/trainer/progress"
	"sparkrun/supervisor/follow"
	"sparkrun/supervisor/gate"
	"sparkrun/supervisor/holder"
	"sparkrun/supervisor/hygiene"
)

// mappedMost bounds how many mapped files are remembered.
const mappedMost = 10000

// pump takes what the holder pushes.
func (a *attempt) pump(r *run) {
	over := false
	for p := range a.client.Pushes() {
		if p.Kind == holder.PushExited && !over {
			over = true
			a.pushed.Store(p.Exit)
			a.saveTail(p)
			close(a.exited)
		}
		switch p.Kind {
		case holder.PushGrew, holder.PushExited:
			a.printed.Store(p.Offset)
			a.written.Store(p.Written)
			a.offsetsKnown.Store(true)
			a.wake()
		case holder.PushGuard:
			r.onGuard(a, p)
		case holder.PushGap:
			r.log.Event(event.Event{
				Attempt: a.n, Kind: event.OutputGap, Level: event.Error,
				Msg:  fmt.Sprintf("output could not be written: %d bytes from offset %d on are not in output.log (%s)", p.Gap.Bytes, p.Gap.Offset, p.Gap.Error),
				Data: map[string]any{"offset": p.Gap.Offset, "bytes": p.Gap.Bytes, "errno": p.Gap.Errno},
			})
			r.diskFull.Do(func() {
				r.log.Event(event.Event{
					Attempt: a.n, Kind: event.DiskFull, Level: event.Error,
					Msg: "the disk of the run folder is full or refuses writes; the training goes on, its output is kept only as far as gaps.jsonl says",
				})
			})
		}
	}
	// The holder is gone or has dropped us; files are polled from here on.
	a.offsetsKnown.Store(false)
	a.wakeMu.Lock()
	defer a.wakeMu.Unlock()
	for _, w := range a.wakes {
		close(w)
	}
	a.wakes = nil
}

// saveTail takes what the disk refused from the holder's memory before the holder
// goes: the last MiB is what a person and the verdict need most.
func (a *attempt) saveTail(p holder.Push) {
	if p.Exit == nil || p.Exit.GapBytes == 0 {
		return
	}
	const keep = 1 << 20
	from := max(p.Offset-keep, 0)
	var t tail
	for {
		off, data, err := a.client.Read(from)
		if err != nil || len(data) == 0 {
			break
		}
		if t.data == nil || off != from {
			t = tail{off: off}
		}
		t.data = append(t.data, data...)
		from = off + int64(len(data))
	}
	a.tail.Store(&t)
}

// tail is output kept in memory: data begins at logical offset off.
type tail struct {
	off  int64
	data []byte
}

// fromMemory reads output that is not on the disk: from the holder, and once that
// is gone from what was saved of it.
func (a *attempt) fromMemory(from int64) (int64, []byte, error) {
	if t := a.tail.Load(); t != nil {
		off := max(from, t.off)
		if off-t.off >= int64(len(t.data)) {
			return off, nil, nil
		}
		return off, t.data[off-t.off:], nil
	}
	return a.client.Read(from)
}

// wake tells the readers that there may be something new.
func (a *attempt) wake() {
	a.wakeMu.Lock()
	defer a.wakeMu.Unlock()
	for _, w := range a.wakes {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// followLines is the one reader that understands the output: it writes the
// lines of run.log, follows the steps and collects what the verdict needs.
func (r *run) followLines(ctx context.Context, a *attempt, rd *follow.Reader) {
	defer close(a.linesDone)
	scanner := r.table().NewScanner()
	if r.tableErr != nil {
		r.log.Event(event.Event{Kind: event.Internal, Level: event.Error, Msg: "no crash signatures, verdicts rest on the other evidence alone: " + r.tableErr.Error()})
	}
	idx, err := holder.OpenIndex(a.dir)
	if err != nil {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Warn, Msg: "line times are those of reading, not of printing: " + err.Error()})
	} else {
		defer idx.Close()
	}
	lineNo := 1
	var lastLine time.Time
	var clean []byte
	folder := follow.NewFolder(r.log.Line)
	timeAt := func(off int64) time.Time {
		if idx != nil {
			if boot, ok := idx.BootAt(off); ok {
				return r.clk.At(boot)
			}
		}
		return r.clk.Now()
	}
	emit := func(l follow.Line) {
		clean = follow.Clean(clean[:0], l.Text)
		text := string(clean)
		l.Text = clean
		lastLine = l.T
		ol := oom.Line{N: lineNo, Offset: l.Offset, T: l.T, Text: text}
		if step, ok := r.onLine(a, text, l.T); ok {
			ol.Advance, ol.Step = step.Advance, step.N
		}
		scanner.Feed(ol)
		_, pending := scanner.Pending()
		a.quiet.line(l.T, ol.Advance, pending)
		if l.End == '\n' {
			lineNo++
		}
		folder.Line(l)
	}
	split := follow.NewSplitter(timeAt, emit)
	for {
		c, err := rd.Next(ctx)
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Error, Msg: "reading the child's output: " + err.Error()})
			}
			break
		}
		split.Write(c)
	}
	split.Close()
	folder.Close()
	a.logs.stop(2 * time.Second)
	a.stepMu.Lock()
	r.flushStep(a)
	a.stepMu.Unlock()
	a.mu.Lock()
	a.output, a.lastLine = scanner.Output(), lastLine
	a.mu.Unlock()
}

// onLine takes one line of output, and says what it tells of the training.
func (r *run) onLine(a *attempt, text string, t time.Time) (progress.Step, bool) {
	a.stepMu.Lock()
	defer a.stepMu.Unlock()
	if s, ok, took := a.tookPending(text); took {
		return s, ok
	}
	s, ok := a.steps.Line(text, t)
	if ok {
		r.onStep(a, s, t)
	}
	return s, ok
}

// onRecord takes one record of the trainer's own log file.
func (r *run) onRecord(a *attempt, record []byte, t time.Time) {
	a.stepMu.Lock()
	defer a.stepMu.Unlock()
	if s, ok := a.steps.Record(record, t); ok {
		r.onStep(a, s, t)
	}
}

// onStep takes one step; a.stepMu is held.
func (r *run) onStep(a *attempt, s progress.Step, t time.Time) {
	r.watchLoss(a, s, t)
	a.mu.Lock()
	if eta, ok := a.steps.ETA(t); ok && s.Advance {
		a.eta = sample.Known(eta.Seconds())
	}
	if s.Loss.OK {
		if !a.lossA.OK {
			a.lossA = s.Loss
		}
		a.lossB = s.Loss
	}
	if s.StepTimeS.OK {
		a.stepTime = s.StepTimeS
	}
	if s.Total > 0 {
		a.total = s.Total
	}
	a.finished = a.finished || s.Finished
	a.quiet.said.step(s)
	if s.Advance {
		if !a.haveStep {
			a.first, a.haveStep = s, true
		}
		a.last = s
	}
	a.mu.Unlock()
	a.quiet.step(s.StepTimeS)
	r.progress(a, s, t)
	r.markPace(s, t)
	if s.Checkpoint != "" {
		a.prints.say(s.Checkpoint)
		r.log.Event(event.Event{T: t, Attempt: a.n, Kind: event.Checkpoint, Level: event.Info, Msg: "checkpoint saved: " + s.Checkpoint, Data: map[string]any{"path": s.Checkpoint, "step": s.N}})
	}
}

// lastMoment is when the attempt was over: its end, or its last line, which may
// have been read from the terminal after the process was gone.
func (a *attempt) lastMoment() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lastLine.After(a.end) {
		return a.lastLine
	}
	return a.end
}

// watchTree remembers every process the training ever had (a kernel record
// names a pid that may be gone by then) and the files it has mapped.
func (r *run) watchTree(ctx context.Context, a *attempt) {
	var lastMaps, lastHeld time.Time
	next := alarm.New()
	defer next.Stop()
	held := false // looked up once after the first second
	for {
		began := time.Now()
		procs := proctree.Walk(a.started.HolderPID)
		a.prints.look(procs)
		procs = append(procs, a.box.processes()...)
		pids := make([]int, 0, len(procs))
		a.mu.Lock()
		for _, p := range procs {
			a.saw(p, r.clk.At(clock.Boottime()))
			pids = append(pids, p.PID)
		}
		a.mu.Unlock()
		a.limits.read(a.started.ChildPID)
		a.tellGuard()
		if time.Since(lastHeld) > mapsEvery || !held && time.Since(a.start) > time.Second {
			held, lastHeld = time.Since(a.start) > time.Second, began
			seen := map[string]bool{}
			hygiene.Held(pids, seen)
			a.mu.Lock()
			for f := range seen {
				if len(a.shm) < mappedMost {
					a.shm[f] = true
				}
			}
			a.mu.Unlock()
		}
		if r.o.DropCaches != "never" && time.Since(lastMaps) > mapsEvery && time.Since(a.start) > time.Second {
			lastMaps = began
			files := map[string]bool{}
			gate.MappedFiles(procs, files, mappedMost)
			a.mu.Lock()
			for f := range files {
				if len(a.mapped) < mappedMost {
					a.mapped[f] = true
				}
			}
			a.mu.Unlock()
		}
		r.treePIDs.Store(&pids)
		// A large tree is looked at less often: one part in a thousand of a core,
		// but never so seldom that a kill could not be told to be ours, nor a short
		// attempt have come and gone between two looks.
		most, least := 5*time.Second, time.Second
		if time.Since(a.start) < 2*most {
			most, least = time.Second, 500*time.Millisecond
		}
		next.Reset(clock.Beat(least) + min(1000*time.Since(began), most).Truncate(least))
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
	}
}

// saw remembers a process of the training with the time it was seen at; a.mu is
// held. A number that comes again with another start is another process.
func (a *attempt) saw(p proctree.Proc, now time.Time) {
	old, known := a.tree[p.PID]
	if !known && len(a.tree) >= treeMost {
		return
	}
	first := now
	if known && a.starts[p.PID] == p.Start {
		first = old.First
	}
	a.tree[p.PID] = oom.TreeProc{Comm: p.Comm, First: first, Last: now}
	a.starts[p.PID] = p.Start
}

// treeMost bounds how many processes are remembered: a job that forks all night
// long must not fill our memory.
const treeMost = 1 << 16

// mapsEvery is how often the training's mapped files are looked up.
const mapsEvery = 30 * time.Second
