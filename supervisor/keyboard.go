package supervisor

import (
	"bytes"
	"context"
	"time"

	"sparkrun/internal/event"

	"golang.org/x/sys/unix"
)

// Keys that mean something to us while the child's terminal makes signals of
// them (ISIG): with ISIG off they are the program's own.
const (
	keyInterrupt = 0x03 // Ctrl-C
	keyQuit      = 0x1c // Ctrl-\
	keySuspend   = 0x1a // Ctrl-Z
	keyEOF       = 0x04 // Ctrl-D
)

// keyboard sorts what the user types into what the child gets and what is meant
// for us. It is a value and touches nothing.
type keyboard struct {
	interrupts []time.Time // of the last second, while ISIG is off
}

// keyEffect is one thing to do, in order.
type keyEffect struct {
	pass   []byte // bytes for the child
	signal string // a wish to end the run
	hint   bool   // Ctrl-Z was typed
}

// sort splits typed bytes. live says that there is a child; isig that its
// terminal turns control keys into signals; engine that the child is a container
// client on a terminal of its own, which passes Ctrl-C on itself.
func (k *keyboard) sort(b []byte, now time.Time, live, isig, engine bool) []keyEffect {
	if live && !isig {
		var out []keyEffect
		if len(b) > 0 {
			out = append(out, keyEffect{pass: b})
		}
		for range bytes.Count(b, []byte{keyInterrupt}) {
			k.interrupts = append(k.interrupts, now)
		}
		for len(k.interrupts) > 0 && now.Sub(k.interrupts[0]) > time.Second {
			k.interrupts = k.interrupts[1:]
		}
		if len(k.interrupts) >= 3 || engine && len(k.interrupts) > 0 {
			k.interrupts = nil
			out = append(out, keyEffect{signal: "SIGINT"})
		}
		return out
	}
	var out []keyEffect
	start := 0
	flush := func(end int) {
		if live && end > start {
			out = append(out, keyEffect{pass: b[start:end]})
		}
		start = end + 1
	}
	for i, c := range b {
		switch c {
		case keyInterrupt:
			flush(i)
			out = append(out, keyEffect{signal: "SIGINT"})
		case keyQuit:
			flush(i)
			out = append(out, keyEffect{signal: "SIGQUIT"})
		case keySuspend:
			flush(i)
			out = append(out, keyEffect{hint: true})
		}
	}
	flush(len(b))
	return out
}

// typed takes what was typed. It runs on the keyboard's goroutine, so that a
// slow holder delays keys and nothing else.
func (r *run) typed(ctx context.Context, b []byte) {
	select {
	case <-r.over:
		// The terminal is still raw: a key that would be a signal is made one.
		if bytes.ContainsAny(b, "\x03\x1c") {
			_ = unix.Kill(unix.Getpid(), unix.SIGINT)
		}
		return
	default:
	}
	a := r.live.Load()
	isig, live := true, false
	if a != nil && a.client != nil {
		if st, err := a.client.Status(); err == nil && !st.Exited {
			live = true
			isig = st.ISIG
		}
	}
	for _, e := range r.keys.sort(b, time.Now(), live, isig, r.job.Container != nil) {
		switch {
		case e.signal != "":
			r.post(Input{}, func() { r.askStop(ctx, e.signal) })
		case e.hint:
			r.hintOnce.Do(func() {
				r.log.Event(event.Event{Kind: event.Hygiene, Level: event.Warn, Msg: "Ctrl-Z does not stop a run: it goes on. To leave it running use tmux or nohup; Ctrl-C ends it"})
			})
		default:
			if err := a.client.Stdin(e.pass); err != nil {
				r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Info, Msg: "typed text was not taken: " + err.Error()})
			}
		}
	}
}

// terminalLost goes on without a terminal. The child's terminal gets one end of
// file if it reads lines, so that nobody waits for typing that cannot come.
func (r *run) terminalLost() {
	r.lostOnce.Do(func() {
		r.term.gone()
		r.screen.Abandon()
		a := r.live.Load()
		if a == nil || a.client == nil {
			return
		}
		go func() {
			if st, err := a.client.Status(); err == nil && st.ICANON && !st.Exited {
				_ = a.client.Stdin([]byte{keyEOF}) // a child that has gone needs none
			}
		}()
	})
}
