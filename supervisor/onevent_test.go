package supervisor

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"sparkrun/internal/event"
	"sparkrun/supervisor/acting"
)

// TestOnEventEnds: the end of the run waits for the command as long as it was told and no
// longer, and the word of it has its turn behind a command that hangs.
func TestOnEventEnds(t *testing.T) {
	t.Parallel()
	const hangs, deaf = "hangs", "deaf"
	for name, tt := range map[string]struct {
		do    map[event.Kind]string
		queue []event.Kind
		leave time.Duration // when a person has had enough
		want  string
		took  time.Duration
	}{
		"nothing to tell":         {want: "", took: 0},
		"all in order":            {queue: []event.Kind{event.Hang, event.AttemptEnd, event.RunEnd}, want: "hang attempt.end run.end", took: 3 * time.Second / 2},
		"one hangs":               {do: map[event.Kind]string{event.Hang: hangs}, queue: []event.Kind{event.Hang, event.AttemptEnd, event.RunEnd}, want: "hang run.end", took: 3 * time.Second},
		"the last hangs":          {do: map[event.Kind]string{event.RunEnd: hangs}, queue: []event.Kind{event.RunEnd}, want: "run.end", took: 5 * time.Second},
		"one cannot be ended":     {do: map[event.Kind]string{event.Hang: deaf}, queue: []event.Kind{event.Hang, event.RunEnd}, want: "hang", took: 5 * time.Second},
		"one hangs, no patience":  {do: map[event.Kind]string{event.Hang: hangs}, queue: []event.Kind{event.Hang}, leave: time.Second, want: "hang", took: time.Second},
		"without a word of a end": {queue: []event.Kind{event.Hang}, want: "hang", took: time.Second / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				free := make(chan struct{})
				var told []string
				o := &onEvent{r: &run{diag: hclog.NewNullLogger()}, wake: make(chan struct{}, 1), done: make(chan struct{}), failed: true}
				o.run = func(ctx context.Context, l acting.Letter, _ int) error {
					told = append(told, string(l.Kind))
					switch tt.do[l.Kind] {
					case hangs:
						<-ctx.Done()
						return ctx.Err()
					case deaf:
						<-free
					default:
						time.Sleep(time.Second / 2)
					}
					return nil
				}
				life, over := context.WithCancel(context.Background())
				go o.loop(life)
				for _, k := range tt.queue {
					o.mu.Lock()
					o.queue.Put(acting.Letter{Kind: k})
					o.mu.Unlock()
					o.poke()
				}
				leave := make(chan struct{})
				if tt.leave > 0 {
					time.AfterFunc(tt.leave, func() { close(leave) })
				}
				began := time.Now()
				o.end(leave, onEventEnd)
				took := time.Since(began)
				close(free)
				over()
				<-o.done
				if got := strings.Join(told, " "); got != tt.want && tt.do[event.Hang] != deaf || !strings.HasPrefix(got, tt.want) {
					t.Errorf("told %q, want %q", got, tt.want)
				}
				if took != tt.took {
					t.Errorf("waited for %s, want %s", took, tt.took)
				}
			})
		})
	}
}

// TestOnEventWaits: the end of the run is kept until it is complete, and a command may not
// take longer than its limit.
func TestOnEventWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		at := map[event.Kind]time.Duration{}
		o := &onEvent{r: &run{diag: hclog.NewNullLogger()}, wake: make(chan struct{}, 1), done: make(chan struct{}), failed: true}
		o.run = func(ctx context.Context, l acting.Letter, _ int) error {
			at[l.Kind] = time.Since(began)
			if l.Kind == event.Hang {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		go o.loop(t.Context())
		for _, k := range []event.Kind{event.Hang, event.AttemptEnd, event.RunEnd} {
			o.mu.Lock()
			o.queue.Put(acting.Letter{Kind: k})
			o.mu.Unlock()
			o.poke()
		}
		time.Sleep(time.Minute)
		o.end(nil, onEventEnd)
		<-o.done
		if at[event.Hang] != 0 || at[event.AttemptEnd] != onEventLimit || at[event.RunEnd] != time.Minute {
			t.Errorf("told at %v", at)
		}
	})
}
