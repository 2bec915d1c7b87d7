package supervisor

import (
	"testing"

	"sparkrun/ladder/trainer/progress"
)

func TestLastLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "",
		"a\n":                     "",
		"a\nb":                    "b",
		"a\r\n":                   "",
		"\r 1/5\r 2/5":            " 2/5",
		" 1/5\r 2/5\r":            " 2/5",
		" 1/5\r 2/5\r\r":          " 2/5",
		"step 5/5 without an end": "step 5/5 without an end",
	} {
		if got := lastLine([]byte(text)); string(got) != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := lastLine(make([]byte, pendingMost)); len(got) != 0 {
		t.Errorf("%d bytes of a line that has begun before", len(got))
	}
}

// TestPendingIsTakenOnce: a line that was understood before its end tells nothing new with
// its end, and what it has become since is understood anew.
func TestPendingIsTakenOnce(t *testing.T) {
	t.Parallel()
	a := &attempt{}
	step := progress.Step{N: 5, Advance: true}
	a.quiet.early = &early{"5/5", step, true}
	if s, ok, took := a.tookPending("5/5"); !took || !ok || s != step {
		t.Errorf("%+v %v %v", s, ok, took)
	}
	if _, _, took := a.tookPending("5/5"); took {
		t.Error("the same text a second time is another line")
	}
	a.quiet.early = &early{"5/5", step, true}
	if _, _, took := a.tookPending("5/50"); took || a.quiet.early != nil {
		t.Error("a line that went on")
	}
}

// TestSaidOver: the trainer's word that it is over holds until there is another training.
func TestSaidOver(t *testing.T) {
	t.Parallel()
	over, advance, log := progress.Step{Finished: true}, progress.Step{Advance: true}, progress.Step{}
	for name, c := range map[string]struct {
		steps []progress.Step
		want  bool
	}{
		"not yet":                   {[]progress.Step{advance, advance}, false},
		"over":                      {[]progress.Step{advance, over}, true},
		"a late drawing":            {[]progress.Step{advance, over, advance, log, log}, true},
		"a second training":         {[]progress.Step{advance, over, advance, log, advance}, false},
		"that is over too":          {[]progress.Step{over, advance, advance, over}, true},
		"with the last step's line": {[]progress.Step{{Finished: true, Advance: true}}, true},
	} {
		var e saidOver
		for _, s := range c.steps {
			e.step(s)
		}
		if e.over != c.want {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
