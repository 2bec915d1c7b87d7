package main

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These send signals to the whole test process, so none runs beside another.
func TestUntilSignal(t *testing.T) {
	send := func() {
		if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
			t.Error(err)
		}
	}
	grace := func(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
	own := errors.New("its own")
	var status *exitError
	if err := untilSignal(grace(time.Second), func(context.Context) error { return own }); !errors.Is(err, own) {
		t.Errorf("no signal: %v", err)
	}
	never := make(chan struct{})
	defer close(never)
	err := untilSignal(grace(20*time.Millisecond), func(context.Context) error { send(); <-never; return nil })
	if !errors.As(err, &status) || status.status != 129 {
		t.Errorf("deaf to its context: %v", err)
	}
	err = untilSignal(grace(time.Minute), func(ctx context.Context) error { send(); <-ctx.Done(); return own })
	if !errors.As(err, &status) || status.status != 129 || status.text != "its own" {
		t.Errorf("ended with an error of its own: %v", err)
	}
	err = untilSignal(grace(0), func(ctx context.Context) error {
		send()
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond)
		return &exitError{status: 1}
	})
	if !errors.As(err, &status) || status.status != 1 {
		t.Errorf("with its own time to end: %v", err)
	}
}
