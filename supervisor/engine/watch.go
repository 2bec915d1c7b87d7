package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// watch keeps what the engine tells of a container's end while it happens:
// with --rm there is nothing left to ask afterwards.
type watch struct {
	mu sync.Mutex
	// connected is whether the engine's events were followed without a break:
	// only then is an event that did not come one that did not happen.
	connected bool
	oom       bool
	end       *End
	ended     chan struct{} // closed once end is set
	cancel    context.CancelFunc
	done      sync.WaitGroup
}

// eventLine is what is used of one of the engine's events.
type eventLine struct {
	Type   string
	Action string
	Actor  struct {
		ID         string
		Attributes map[string]string
	}
	TimeNano int64 `json:"timeNano"`
}

// follow begins to follow a container from since on.
func follow(a *api, id string, since time.Time) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{ended: make(chan struct{}), cancel: cancel}
	w.done.Add(2)
	go func() {
		defer w.done.Done()
		w.events(ctx, a, id, since)
	}()
	go func() {
		defer w.done.Done()
		w.wait(ctx, a, id)
	}()
	return w
}

// close ends the following.
func (w *watch) close() {
	w.cancel()
	w.done.Wait()
}

// settle takes the first account of the end, and what later ones add to it.
func (w *watch) settle(e End) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		w.end = &e
		close(w.ended)
		return
	}
	w.end.add(e)
}

// add fills in what e knows and this account does not.
func (e *End) add(more End) {
	if !e.ExitKnown && more.ExitKnown {
		e.ExitCode, e.ExitKnown = more.ExitCode, true
	}
	if more.OOMKnown && (!e.OOMKnown || more.OOMKilled) {
		e.OOMKilled, e.OOMKnown = more.OOMKilled, true
	}
	if e.Error == "" {
		e.Error = more.Error
	}
	if e.Started.IsZero() {
		e.Started = more.Started
	}
	if e.Finished.IsZero() {
		e.Finished = more.Finished
	}
}

// told returns what is known, nil for an end that was not seen.
func (w *watch) told() (end *End, oom, connected bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end != nil {
		e := *w.end
		end = &e
	}
	return end, w.oom, w.connected
}

// again is how long a broken stream is left alone.
const again = time.Second

// events follows the engine's events. Where the stream breaks it is opened
// again, from the same instant on, since engines replay what they still have.
func (w *watch) events(ctx context.Context, a *api, id string, since time.Time) {
	for ctx.Err() == nil {
		err := readEvents(ctx, a, "container", id, since, time.Time{}, func() {
			w.mu.Lock()
			w.connected = true
			w.mu.Unlock()
		}, func(e eventLine) {
			if e.Actor.ID == id {
				w.event(ctx, a, e)
			}
		})
		_ = err // a break is all it is
		w.mu.Lock()
		w.connected = false
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

func (w *watch) event(ctx context.Context, a *api, e eventLine) {
	switch e.Action {
	case "oom":
		w.mu.Lock()
		w.oom = true
		w.mu.Unlock()
	case "die", "died":
		w.settle(fromDie(e))
		// Between death and removal there is a moment in which it can still be
		// asked.
		if v, err := a.inspect(ctx, e.Actor.ID); err == nil && !v.State.Running {
			w.settle(fromInspect(v))
		}
	}
}

// readEvents reads the engine's events with key=value from since on, until the
// stream ends or, where until is set, up to that instant.
func readEvents(ctx context.Context, a *api, key, value string, since, until time.Time, opened func(), each func(eventLine)) error {
	filters, err := json.Marshal(map[string][]string{"type": {"container"}, key: {value}})
	if err != nil {
		return fmt.Errorf("encoding a filter: %w", err)
	}
	q := url.Values{"filters": {string(filters)}, "since": {strconv.FormatInt(since.Unix(), 10)}}
	if !until.IsZero() {
		q.Set("until", strconv.FormatInt(until.Unix()+1, 10))
	}
	body, _, err := a.open(ctx, http.MethodGet, "/events", q, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	opened()
	in := bufio.NewScanner(body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var e eventLine
		if json.Unmarshal(in.Bytes(), &e) != nil || e.Type != "container" {
			continue
		}
		// since has whole seconds.
		if e.TimeNano != 0 && e.TimeNano < since.UnixNano() {
			continue
		}
		each(e)
	}
	return in.Err()
}

// fromDie reads the end out of an event of a container's death.
func fromDie(e eventLine) End {
	end := End{}
	for _, key := range []string{"exitCode", "containerExitCode"} {
		if n, err := strconv.Atoi(e.Actor.Attributes[key]); err == nil {
			end.ExitCode, end.ExitKnown = n, true
			break
		}
	}
	if e.TimeNano > 0 {
		end.Finished = time.Unix(0, e.TimeNano)
	}
	return end
}

// wait asks the engine to say when the container has ended: one answer, and for
// engines that keep no events the only one.
func (w *watch) wait(ctx context.Context, a *api, id string) {
	for ctx.Err() == nil {
		body, _, err := a.open(ctx, http.MethodPost, "/containers/"+url.PathEscape(id)+"/wait", url.Values{"condition": {"not-running"}}, nil)
		if err == nil {
			var v struct {
				StatusCode *int
				Error      *struct{ Message string }
			}
			err = json.NewDecoder(io.LimitReader(body, 1<<16)).Decode(&v)
			body.Close()
			// With an error the status is none: podman says 0 of a container that
			// was removed while it was waited for.
			if err == nil && v.StatusCode != nil && (v.Error == nil || v.Error.Message == "") {
				w.settle(End{ExitCode: *v.StatusCode, ExitKnown: true})
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-w.ended:
			return
		case <-time.After(again):
		}
	}
}
