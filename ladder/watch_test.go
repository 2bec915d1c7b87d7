package ladder

import (
	"slices"
	"strings"
	"testing"
)

// TestAfterAWatch: what a watch ended goes on from its checkpoint where that was asked
// for, with the same settings, so often and no more, and never from the beginning.
func TestAfterAWatch(t *testing.T) {
	t.Parallel()
	hung := Past{Answer: AnswerNotOOM, Reason: "hang", Progressed: true}
	slow := Past{Answer: AnswerNotOOM, Reason: "slowdown", Progressed: true}
	oom := Past{Answer: AnswerOOM, Kind: "cuda-allocator", Phase: "train"}
	for name, c := range map[string]struct {
		past   []Past
		change func(*Situation)
		act    string
		why    string
	}{
		"a hang":                            {past: []Past{hung}, act: "retry", why: "once more from the newest checkpoint, with the same settings"},
		"a second hang":                     {past: []Past{hung, hung}, act: "stop", why: "for the same reason (hang) 2 times"},
		"a hang after a death for memory":   {past: []Past{oom, hung}, act: "retry", why: "once more"},
		"slow":                              {past: []Past{slow}, act: "retry", why: "ended by a watch (slowdown)"},
		"slow twice":                        {past: []Past{slow, slow}, act: "retry", why: "once more"},
		"slow three times":                  {past: []Past{slow, slow, slow}, act: "stop", why: "3 times: not started again"},
		"one of each":                       {past: []Past{slow, hung}, act: "retry", why: "ended by a watch (hang)"},
		"no checkpoint":                     {past: []Past{hung}, change: func(s *Situation) { s.CanResume = false }, act: "stop", why: "no complete checkpoint"},
		"slow before its first checkpoint":  {past: []Past{{Answer: AnswerNotOOM, Reason: "slowdown"}}, act: "stop", why: "it had saved nothing since its start"},
		"not asked for":                     {past: []Past{hung}, change: func(s *Situation) { s.AgainAfter = nil }, act: "stop", why: "only --hang-restart starts it again"},
		"another reason":                    {past: []Past{{Answer: AnswerNotOOM, Reason: "power-wedge", Progressed: true}}, act: "stop", why: "not a matter of memory"},
		"retries are off":                   {past: []Past{hung}, change: func(s *Situation) { s.NoRetry = true }, act: "stop", why: "--no-retry"},
		"all attempts are used":             {past: []Past{hung}, change: func(s *Situation) { s.MaxAttempts = 1 }, act: "stop", why: "--max-attempts"},
		"the training was done":             {past: []Past{{Answer: AnswerNotOOM, Reason: "hang", Progressed: true, Finished: true}}, act: "stop", why: "the end of the training"},
		"a hang that was a lack of memory":  {past: []Past{{Answer: AnswerOOM, Reason: "hang", Kind: "cuda-allocator", Phase: "train"}}, act: "retry"},
		"on more than one machine together": {past: []Past{hung}, change: func(s *Situation) { s.Job.Nodes = 2 }, act: "stop", why: "spans 2 machines"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := died("seq_len=4096 micro_batch=8")
			s.CanResume, s.AgainAfter = true, map[string]int{"hang": 1, "slowdown": 2}
			s.Past = slices.Clone(c.past)
			for i := range s.Past {
				s.Past[i].Attempt = i + 1
			}
			if c.change != nil {
				c.change(&s)
			}
			d := spark(t).Next(s)
			if d.Act != c.act || !strings.Contains(d.Why, c.why) {
				t.Fatalf("%s: %s", d.Act, d.Why)
			}
			watched := c.past[len(c.past)-1].Answer == AnswerNotOOM
			if d.Act == "retry" && watched && (d.Again != AgainWatch || len(d.Rungs) != 0 || len(d.Step) != 0 || d.Knobs["seq_len"].Value != "4096") {
				t.Errorf("not the same settings: %+v", d)
			}
		})
	}
}
