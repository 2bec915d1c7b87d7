package supervisor

import (
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"sparkrun/supervisor/follow"
)

// TestTheLastLineIsWaitedFor: what the command printed last is shown although it takes
// its time to be read; output that never comes is given up in the end.
func TestTheLastLineIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		unread time.Duration // before the output can be read
		shown  string
		took   time.Duration
	}{
		"read late":  {unread: 10 * time.Second, shown: "last line\n", took: 10 * time.Second},
		"never read": {unread: time.Hour, took: 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, to, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			took := time.Duration(0)
			synctest.Test(t, func(t *testing.T) {
				const text = "last line\n"
				r := &run{screenq: make(chan *follow.Reader, 1), shown: make(chan struct{})}
				r.screen = follow.NewScreen(to, to, follow.ScreenOptions{})
				r.screenq <- follow.NewReader(follow.Source{
					Dir: t.TempDir(),
					Ring: func(from int64) (int64, []byte, error) {
						time.Sleep(tt.unread)
						return from, []byte(text)[from:], nil
					},
					Final: func() (int64, bool) { return int64(len(text)), true },
				}, 0)
				close(r.screenq)
				go r.showChild()
				began := time.Now()
				r.drain(nil)
				took = time.Since(began)
				r.screen.Close()
				<-r.shown
			})
			to.Close()
			if took < tt.took || took > tt.took+2*drainEvery {
				t.Errorf("given up or done after %v, want %v", took, tt.took)
			}
			if got, _ := io.ReadAll(from); string(got) != tt.shown {
				t.Errorf("shown %q, want %q", got, tt.shown)
			}
		})
	}
}
