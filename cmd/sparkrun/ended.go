package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/supervisor"
)

// endGrace is how long a command may take to end after the first signal.
const endGrace = 900 * time.Millisecond

// endSignals are the signals that ask a command to end. Under nohup a hang-up is none.
func endSignals() []os.Signal {
	list := []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT}
	if !signal.Ignored(unix.SIGHUP) {
		list = append(list, unix.SIGHUP)
	}
	return list
}

// untilSignal runs f. The first signal ends the context of f; where f has not returned
// grace later, whatever it waits for, the status is the signal's. grace 0 waits for f as
// long as it takes. A second signal ends the process as if nobody had caught it.
func untilSignal(grace func() time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	got := make(chan os.Signal, 1)
	signal.Notify(got, endSignals()...)
	defer signal.Stop(got)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var sig os.Signal
	select {
	case err := <-done:
		return err
	case sig = <-got:
	}
	signal.Stop(got)
	cancel()
	var late <-chan time.Time
	if g := grace(); g > 0 {
		late = time.After(g)
	}
	n, _ := sig.(syscall.Signal)
	ended := &exitError{status: 128 + int(n), text: "interrupted"}
	select {
	case err := <-done:
		var told *exitError
		if err != nil && !errors.As(err, &told) {
			ended.text = err.Error()
			return ended
		}
		return err
	case <-late:
	}
	return ended
}

// fileLimit bounds reading settings and writing a report: the folder may lie on a mount
// whose server is gone.
const fileLimit = 5 * time.Second

// answered returns what f returns, or an error when it has not returned within fileLimit.
func answered[T any](what string, f func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	got := make(chan answer, 1)
	go func() {
		v, err := f()
		got <- answer{v, err}
	}()
	select {
	case a := <-got:
		return a.v, a.err
	case <-time.After(fileLimit):
		var none T
		return none, &exitError{supervisor.StatusError, fmt.Sprintf("%s gave no answer within %g s: a mount whose server is gone?", what, fileLimit.Seconds())}
	}
}
