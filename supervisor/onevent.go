package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/leash"
	"sparkrun/internal/sample"
	"sparkrun/supervisor/acting"
)

const (
	// onEventLimit is how long the command of --on-event may take for one event.
	onEventLimit = 30 * time.Second
	// onEventEnd is how long the end of the run waits for it. After half of it what is
	// under way is ended, so that the word of the run's end gets its turn.
	onEventEnd = 5 * time.Second
	// onEventKept is how much of what it prints is kept for one event.
	onEventKept = 4 << 10
)

// onEvent hands events to the user's command, one at a time, on a goroutine of its own:
// a command that is slow, hangs or fails costs the run nothing.
type onEvent struct {
	r *run
	// run runs the command for one letter.
	run func(ctx context.Context, l acting.Letter, dropped int) error

	mu      sync.Mutex
	queue   acting.Queue
	open    bool       // the run's end may go out, and then it is over
	now     event.Kind // of what is being told
	stopNow context.CancelFunc
	failed  bool // was told

	wake chan struct{}
	done chan struct{}
}

// dataOwn marks our own words about the command, which it is not given.
const dataOwn = "on_event"

// startOnEvent starts what --on-event asks for.
func (r *run) startOnEvent(life context.Context) {
	if strings.TrimSpace(r.o.OnEvent) == "" {
		return
	}
	o := &onEvent{r: r, wake: make(chan struct{}, 1), done: make(chan struct{})}
	o.run = o.shell
	r.actors = append(r.actors, o)
	r.log.Subscribe(o.take)
	go o.loop(life)
}

// take queues an event; it is called by whoever reports it.
func (o *onEvent) take(e event.Event) {
	if !acting.Told(e) || e.Data[dataOwn] != nil {
		return
	}
	l := acting.Letter{Kind: e.Kind, Level: e.Level, Attempt: e.Attempt, Line: o.r.log.EventLine(e)}
	o.mu.Lock()
	o.queue.Put(l)
	o.mu.Unlock()
	o.poke()
}

func (o *onEvent) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *onEvent) loop(life context.Context) {
	defer close(o.done)
	for {
		o.mu.Lock()
		l, dropped, ok := o.queue.Take(o.open)
		open := o.open
		ctx, cancel := context.WithTimeout(life, onEventLimit)
		o.now, o.stopNow = l.Kind, cancel
		o.mu.Unlock()
		if ok {
			err := o.run(ctx, l, dropped)
			cancel()
			o.failure(l, err)
			continue
		}
		cancel()
		if open {
			return
		}
		select {
		case <-life.Done():
			return
		case <-o.wake:
		}
	}
}

// shell runs the command for one letter.
func (o *onEvent) shell(ctx context.Context, l acting.Letter, dropped int) error {
	cmd := exec.Command("sh", "-c", o.r.o.OnEvent)
	cmd.Dir = o.r.o.Dir
	cmd.Env = overlay(o.r.o.Env, []string{
		"SPARKRUN_EVENT_KIND=" + string(l.Kind), "SPARKRUN_EVENT_LEVEL=" + string(l.Level),
		"SPARKRUN_EVENTS_DROPPED=" + strconv.Itoa(dropped), "SPARKRUN_ATTEMPT=" + strconv.Itoa(l.Attempt),
		"SPARKRUN_RUN_DIR=" + o.r.dir.Path,
	})
	cmd.Stdin = bytes.NewReader(l.Line)
	said := &headOf{most: onEventKept}
	cmd.Stdout, cmd.Stderr = said, said
	began := time.Now()
	err := leash.Run(ctx, cmd)
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // something in the background holds its output; it is ended
	}
	o.r.diag.Info("on-event", "kind", l.Kind, "took", time.Since(began).Round(time.Millisecond), "dropped", dropped, "err", err, "output", o.r.secrets.Text(said.String()))
	if ctx.Err() != nil {
		return fmt.Errorf("ended after %s", human(time.Since(began)))
	}
	return err
}

// failure tells of the first failure; the others are in sparkrun.log.
func (o *onEvent) failure(l acting.Letter, err error) {
	if err == nil {
		return
	}
	o.mu.Lock()
	first := !o.failed
	o.failed = true
	o.mu.Unlock()
	if first {
		o.r.log.Event(event.Event{
			Kind: event.Internal, Level: event.Warn, Data: map[string]any{dataOwn: true},
			Msg: fmt.Sprintf("the command of --on-event failed for %s: %v (its output is in sparkrun.log; told only once)", l.Kind, err),
		})
	}
}

// tellEnd hands out the word of the run's end and waits for it, until leave is closed or
// the time is up.
func (r *run) tellEnd(leave <-chan struct{}) {
	for _, a := range r.actors {
		if o, ok := a.(*onEvent); ok {
			o.end(leave, onEventEnd)
		}
	}
}

// sampled and stop make it an actor like the others. It lives longer than they do: the
// run's end is yet to be told.
func (o *onEvent) sampled(*sample.Sample, []event.Event) {}

func (o *onEvent) stop() {}

func (o *onEvent) end(leave <-chan struct{}, limit time.Duration) {
	o.mu.Lock()
	o.open = true
	o.mu.Unlock()
	o.poke()
	wait := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-o.done:
			return true
		case <-leave:
		case <-t.C:
		}
		return false
	}
	if wait(limit / 2) {
		return
	}
	o.mu.Lock()
	o.queue.Cut()
	if o.now != event.RunEnd {
		o.stopNow()
	}
	o.mu.Unlock()
	if wait(limit - limit/2) {
		return
	}
	o.mu.Lock()
	left := o.queue.Left()
	o.stopNow()
	o.mu.Unlock()
	o.r.diag.Warn("on-event: not waited for any longer", "left", left)
}

// headOf keeps the first bytes of what is written to it and counts the others. It refuses
// nothing: a command must not die of what it prints.
type headOf struct {
	mu   sync.Mutex
	b    []byte
	most int
	more int
}

func (h *headOf) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := min(len(p), h.most-len(h.b))
	h.b = append(h.b, p[:n]...)
	h.more += len(p) - n
	return len(p), nil
}

func (h *headOf) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := strings.TrimSpace(string(h.b))
	if h.more > 0 {
		s += fmt.Sprintf(" ... (%d bytes more)", h.more)
	}
	return s
}
