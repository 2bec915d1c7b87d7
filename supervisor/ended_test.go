package supervisor

import (
	"strings"
	"testing"
	"time"

	"sparkrun/supervisor/runlog"
)

// What a watch saw is told once, and not lost where the loss had diverged or the user
// stopped the run meanwhile.
func TestWordsOfAWatch(t *testing.T) {
	t.Parallel()
	const seen, loss = "the GPU is in the low-power wedge: unplug it", "the loss is no number since step 7"
	for name, tt := range map[string]struct {
		watch    *watchEnd
		ending   runlog.EndedBy
		diverged string
		want     string
	}{
		"nothing":                  {nil, "", "", ""},
		"a watch":                  {&watchEnd{by: runlog.BySparkrun, words: seen}, runlog.BySparkrun, "", seen},
		"too late":                 {&watchEnd{by: runlog.BySparkrun, words: seen}, "", "", ""},
		"the guard was first":      {&watchEnd{by: runlog.BySparkrun, words: seen}, runlog.ByGuard, "", ""},
		"after a divergence":       {&watchEnd{by: runlog.ByLimit, words: seen}, runlog.ByLimit, loss, seen},
		"for the divergence alone": {&watchEnd{by: runlog.BySparkrun, words: loss}, runlog.BySparkrun, loss, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &attempt{ending: tt.ending, diverged: tt.diverged}
			if tt.watch != nil {
				a.watched.Store(tt.watch)
			}
			if got := a.endedWords(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	for name, f := range map[string]Facts{
		"stopped":                  {State: Stopped, Status: 130, Reason: "stopped by SIGINT", Watched: seen},
		"stopped, and it diverged": {State: Stopped, Status: 130, Reason: "stopped by SIGINT", Watched: seen, Diverged: loss},
		"failed":                   {State: Failed, Status: 76, Reason: seen + "; not tried again", Watched: seen, Diverged: loss},
		"failed of the loss":       {State: Failed, Status: 76, Reason: "not tried again", Diverged: loss},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.Attempts, f.Took = []AttemptFacts{{N: 1}}, time.Minute
			line := Summary(f)[0]
			for _, part := range []string{f.Watched, f.Diverged, f.Reason} {
				if part != "" && strings.Count(line, part) != 1 {
					t.Errorf("%d times %q in %q", strings.Count(line, part), part, line)
				}
			}
		})
	}
}
