package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
	"unicode"

	"sparkrun/internal/alarm"
	"sparkrun/internal/clock"
	"sparkrun/internal/event"
)

const (
	// flushEvery is the longest that a line older than the window waits.
	flushEvery = time.Second
	// lineWait bounds how long Line waits for a disk that does not answer.
	lineWait = 2 * time.Second
	// tellAgain keeps a disk on the edge from filling the log with its state.
	tellAgain = 10 * time.Minute
	// spaceEvery is how often the free space is looked at.
	spaceEvery = time.Second
)

// Log writes events.jsonl and run.log. Its methods may be called from several
// goroutines.
type Log struct {
	clk clock.Clock

	events *jsonl

	subMu sync.Mutex
	subs  []func(event.Event)

	mu     sync.Mutex
	room   *sync.Cond // the window got smaller, or the writer is alive
	win    *window
	beat   int64 // counts what the writer has finished
	lost   int64 // lines given up while the writer hung
	hung   bool
	closed bool
	// minFree is the space to leave on the disk.
	minFree int64
	red     *Redactor

	toldMu   sync.Mutex
	toldDisk time.Time
	toldSlow time.Time

	kick chan struct{}
	stop chan struct{}
	done chan struct{}
	file *logFile // the writer goroutine's until done
	err  error    // of the last append; read after done
}

// OpenLog opens run.log and events.jsonl of a run for appending, on the run's
// clock. Files that are there are carried on: a torn last line gets its end, and
// run.log stays sorted.
func OpenLog(d *Dir, clk clock.Clock) (*Log, error) {
	zone := clk.Wall.Location()
	file, last, err := openLogFile(d.File(LogFile), zone)
	if err != nil {
		return nil, fmt.Errorf("opening the run's log: %w", err)
	}
	l := &Log{
		clk: clk, win: newWindow(zone), file: file,
		kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if !last.IsZero() {
		l.win.last = last.UnixNano()
	}
	l.room = sync.NewCond(&l.mu)
	l.events, err = openJSONL(d.File(EventsFile), func(err error) { l.diskTrouble(EventsFile, err) }, l.slowSync)
	if err != nil {
		_ = file.close()
		return nil, fmt.Errorf("opening the run's events: %w", err)
	}
	go l.writeLoop()
	return l, nil
}

// SetMinFree sets how many bytes to leave free on the disk: below that the
// child's lines are left out of run.log, as they are out of the raw output.
// Events are still written. 0 is no limit.
func (l *Log) SetMinFree(bytes int64) {
	l.mu.Lock()
	l.minFree = bytes
	l.mu.Unlock()
}

// SetRedactor has events redact the values that r knows too: in events.jsonl, in
// sparkrun's own lines of run.log, and in the message that subscribers get. The
// child's lines stay as they are.
func (l *Log) SetRedactor(r *Redactor) {
	l.mu.Lock()
	l.red = r
	l.mu.Unlock()
}

// Subscribe calls fn for every event from now on, on the goroutine of whoever
// reports the event. fn must be quick and must not report events itself.
func (l *Log) Subscribe(fn func(event.Event)) {
	l.subMu.Lock()
	l.subs = append(l.subs[:len(l.subs):len(l.subs)], fn)
	l.subMu.Unlock()
}

type eventJSON struct {
	T       string         `json:"t"`
	Mono    float64        `json:"mono"`
	Attempt int            `json:"attempt"`
	Kind    event.Kind     `json:"kind"`
	Level   event.Level    `json:"level"`
	Msg     string         `json:"msg"`
	Data    map[string]any `json:"data,omitempty"`
}

// Event records an event (it is an event.Sink): a line of events.jsonl, a line of
// run.log and a call of every subscriber. A zero T is now, an empty level info.
// It waits for no disk. After Close only the subscribers are called.
func (l *Log) Event(e event.Event) {
	if e.T.IsZero() {
		e.T = l.clk.Now()
	}
	e.T = e.T.In(l.clk.Wall.Location())
	if e.Level == "" {
		e.Level = event.Info
	}
	l.mu.Lock()
	red := l.red
	l.mu.Unlock()
	e.Msg = oneLine(red.Text(e.Msg))
	if e.Label != "" {
		e.Label = red.Text(e.Label)
	}

	l.events.put(l.encode(red, e))

	head := e.Label
	if head == "" {
		head = string(e.Kind)
	}
	l.mu.Lock()
	// An event is worth more than the bound, but not without any.
	if !l.closed && l.win.size() < 2*windowMax {
		l.win.add(e.T, true, []byte(oneLine(head)+": "+e.Msg))
	}
	l.mu.Unlock()

	l.subMu.Lock()
	subs := l.subs
	l.subMu.Unlock()
	for _, fn := range subs {
		fn(e)
	}
}

// EventLine is an event that a subscriber was given, as its line of events.jsonl.
func (l *Log) EventLine(e event.Event) []byte {
	l.mu.Lock()
	red := l.red
	l.mu.Unlock()
	return l.encode(red, e)
}

func (l *Log) encode(red *Redactor, e event.Event) []byte {
	return encodeEvent(red, eventJSON{
		T: clock.Machine(e.T), Mono: seconds(l.clk.Mono(e.T)),
		Attempt: e.Attempt, Kind: e.Kind, Level: e.Level, Msg: e.Msg, Data: e.Data,
	})
}

// oneLine keeps s on one line and harmless on a terminal: a quoted line of the
// child may hold anything.
func oneLine(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

func encodeEvent(red *Redactor, e eventJSON) []byte {
	b, err := encodeJSON(e, "")
	if err != nil {
		// A value that JSON does not know (NaN, a channel) must not cost the
		// event: it is written as text.
		data := make(map[string]any, len(e.Data))
		for k, v := range e.Data {
			if _, err := json.Marshal(v); err != nil {
				v = textOf(v)
			}
			data[k] = v
		}
		e.Data = data
		if b, err = encodeJSON(e, ""); err != nil {
			e.Data = nil
			b, _ = encodeJSON(e, "")
		}
	}
	return append(bytes.TrimRight(red.JSON(b), "\n"), '\n')
}

// textOf gives a value as text, or nil for a number that is none.
func textOf(v any) any {
	if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return nil // unknown
	}
	return fmt.Sprint(v)
}

// Line writes a line of the child into run.log, where it is sorted in at t (zero
// is now). text is copied; its control sequences are the caller's business. A
// caller that is faster than the disk is held back; one that meets a disk that
// hangs goes on after 2 s, and the lines it has are counted as missing.
func (l *Log) Line(t time.Time, text []byte) {
	if t.IsZero() {
		t = l.clk.Now()
	}
	l.mu.Lock()
	if l.win.size() >= windowMax && !l.waitForRoom() {
		l.lost++
		l.mu.Unlock()
		return
	}
	if !l.closed {
		l.win.add(t, false, text)
		if l.win.size() >= windowMax {
			poke(l.kick)
		}
	}
	l.mu.Unlock()
}

// waitForRoom waits, with mu held, until the window has room again. It is false
// when the writer has not finished anything for lineWait.
func (l *Log) waitForRoom() bool {
	poke(l.kick)
	beat, since := l.beat, time.Now()
	var timer *time.Timer
	for l.win.size() >= windowMax && !l.closed {
		if l.hung && l.beat == beat {
			return false
		}
		if l.beat != beat {
			beat, since = l.beat, time.Now()
		}
		if time.Since(since) >= lineWait {
			l.hung = true
			return false
		}
		if timer == nil {
			timer = time.AfterFunc(lineWait, l.room.Broadcast)
			defer timer.Stop()
		} else {
			timer.Reset(lineWait - time.Since(since))
		}
		l.room.Wait()
	}
	return true
}

func (l *Log) writeLoop() {
	defer close(l.done)
	tick := alarm.After(clock.Beat(flushEvery))
	defer tick.Stop()
	var batch []byte
	var looked time.Time
	low, full := false, false
	for {
		stopping := false
		select {
		case <-tick.C:
			tick.Reset(clock.Beat(flushEvery))
		case <-l.kick:
		case <-l.stop:
			stopping = true
		}
		for {
			l.mu.Lock()
			n := l.win.ripe(l.clk.Now().Add(-reorderWindow))
			if stopping {
				n = len(l.win.entries)
			} else if l.win.size() >= windowMax {
				// Too much for the window: its older half goes now.
				n = max(n, (len(l.win.entries)+1)/2)
			}
			batch = l.win.take(batch[:0], n)
			again := l.win.size() >= windowMax || stopping && n > 0
			minFree, missed := l.minFree, l.lost
			l.lost = 0
			l.mu.Unlock()
			l.room.Broadcast()

			if l.file.failing != nil && !full {
				// What a full disk gets back is for the last words of the run
				// (see ReserveBytes), not for lines that can be made again.
				full, looked = true, time.Time{}
			}
			floor := minFree
			if full {
				floor = max(floor, 2*ReserveBytes)
			}
			if floor > 0 && time.Since(looked) >= spaceEvery {
				looked = time.Now()
				if free, ok := freeBytes(l.file.f); ok {
					low = free < floor
					full = full && low
				}
			}
			l.file.dropped += missed
			l.put(batch, low)

			l.mu.Lock()
			l.beat++
			l.hung = false
			l.mu.Unlock()
			l.room.Broadcast()
			if !again {
				break
			}
		}
		if stopping {
			return
		}
	}
}

// put writes one batch and tells what the disk made of it.
func (l *Log) put(batch []byte, low bool) {
	was := l.file.failing
	if low {
		l.err = l.file.thin(batch)
	} else {
		l.err = l.file.append(batch)
	}
	if l.err != nil {
		if was == nil {
			l.diskTrouble(LogFile, l.err)
		}
		return
	}
	if low && l.file.dropped > 0 {
		l.tell(event.DiskFull, fmt.Sprintf("less than %d MiB free: %s leaves the command's lines out until there is more; the run goes on, free some space", l.minFreeMiB(), LogFile))
		return
	}
	if n := l.file.missing(); n > 0 {
		l.mu.Lock()
		stamp := l.win.appendStamp(nil, l.win.last)
		l.mu.Unlock()
		note := fmt.Sprintf("%s%s%s: %d lines are missing above; the raw output under %s has what the command printed\n", stamp, sepNote, event.DiskFull, n, AttemptsDir)
		if err := l.file.append([]byte(note)); err != nil {
			l.err = err
		}
	}
}

func (l *Log) minFreeMiB() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.minFree >> 20
}

// diskTrouble tells once that a file cannot be written.
func (l *Log) diskTrouble(file string, err error) {
	kind := event.Internal
	if noSpace(err) {
		kind = event.DiskFull
	}
	l.tell(kind, diskWords(file, err))
}

func (l *Log) tell(kind event.Kind, msg string) {
	l.toldMu.Lock()
	quiet := !l.toldDisk.IsZero() && time.Since(l.toldDisk) < tellAgain
	if !quiet {
		l.toldDisk = time.Now()
	}
	l.toldMu.Unlock()
	if !quiet {
		l.Event(event.Event{Kind: kind, Level: event.Error, Msg: msg})
	}
}

func (l *Log) slowSync(took time.Duration) {
	l.toldMu.Lock()
	quiet := !l.toldSlow.IsZero() && time.Since(l.toldSlow) < tellAgain
	if !quiet {
		l.toldSlow = time.Now()
	}
	l.toldMu.Unlock()
	if !quiet {
		l.Event(event.Event{
			Kind: event.Internal, Level: event.Warn,
			Msg:  fmt.Sprintf("the disk took %.1f s to sync %s; a power cut now would lose that much", took.Seconds(), EventsFile),
			Data: map[string]any{"sync_s": seconds(took)},
		})
	}
}

// Close writes what waits in the reorder window, syncs the events and closes both
// files. It gives up on a disk that does not answer for 5 s. The error is about
// bytes that could not be written.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	l.room.Broadcast()
	close(l.stop)
	var errs []error
	select {
	case <-l.done:
		err := l.err
		if cerr := l.file.close(); cerr != nil {
			err = cerr
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("writing %s: %w", LogFile, err))
		}
	case <-time.After(closeWait):
		errs = append(errs, fmt.Errorf("writing %s: the disk did not answer for %s", LogFile, closeWait))
	}
	if n := l.events.lost(); n > 0 {
		errs = append(errs, fmt.Errorf("writing %s: %d events did not fit in memory while the disk refused them", EventsFile, n))
	}
	if err := l.events.close(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
