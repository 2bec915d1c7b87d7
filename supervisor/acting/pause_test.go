package acting

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/sample"
)

var rule = PauseRule{PauseC: 91, ResumeC: 87, Max: 10 * time.Minute, DieBelowC: 20}

// look is one reading: its second, and the temperatures of zone and die, of which none is
// 0; the same reading again where again is set.
type look struct {
	s         float64
	zone, die float64
	again     bool
}

func play(r PauseRule, s PauseState, looks []look) (PauseState, []string) {
	var did []string
	at := time.Duration(0)
	for _, l := range looks {
		h := Heat{T: time.Duration(l.s * float64(time.Second))}
		if !l.again {
			at = h.T + 1
		}
		h.At = at
		if l.zone != 0 {
			h.Zone = sample.Known(l.zone)
		}
		if l.die != 0 {
			h.Die = sample.Known(l.die)
		}
		var act PauseAct
		if s, act = r.Next(s, h); act.Do != Nothing {
			did = append(did, []string{"", "pause", "continue " + act.Why, "blind"}[act.Do])
		}
	}
	return s, did
}

func TestPauseRule(t *testing.T) {
	t.Parallel()
	hot := []look{{s: 1, zone: 92, die: 80}, {s: 2, zone: 92, die: 80}}
	then := func(more ...look) []look { return append(append([]look{}, hot...), more...) }
	for name, tt := range map[string]struct {
		looks []look
		want  string
	}{
		"two readings in a row":             {hot, "pause"},
		"exactly the limit":                 {[]look{{s: 1, zone: 91, die: 75}, {s: 2, zone: 91, die: 75}}, "pause"},
		"one reading":                       {[]look{{s: 1, zone: 95, die: 80}, {s: 2, zone: 90, die: 80}, {s: 3, zone: 95, die: 80}}, ""},
		"the same reading twice":            {[]look{{s: 1, zone: 95, die: 80}, {s: 2, zone: 95, die: 80, again: true}}, ""},
		"a die that is far cooler":          {[]look{{s: 1, zone: 101.5, die: 80}, {s: 2, zone: 101.5, die: 80}}, ""},
		"a die near the limit":              {[]look{{s: 1, zone: 104, die: 82}, {s: 2, zone: 104, die: 82}}, "pause"},
		"a die alone":                       {[]look{{s: 1, die: 95}, {s: 2, die: 95}}, ""},
		"a zone alone":                      {[]look{{s: 1, zone: 95}, {s: 2, zone: 95}}, ""},
		"a zone of no machine":              {[]look{{s: 1, zone: 160, die: 85}, {s: 2, zone: 160, die: 85}}, ""},
		"a gap between":                     {[]look{{s: 1, zone: 95, die: 80}, {s: 2}, {s: 3, zone: 95, die: 80}}, ""},
		"between the limits":                {then(look{s: 3, zone: 88, die: 70}, look{s: 4, zone: 90, die: 70}), "pause"},
		"cool again":                        {then(look{s: 3, zone: 87, die: 70}), "pause, continue cooled"},
		"cool again, the die is gone":       {then(look{s: 3, zone: 87}), "pause, continue cooled"},
		"a gap in a pause":                  {then(look{s: 3}, look{s: 4, zone: 90, die: 80}, look{s: 5}), "pause"},
		"the zone goes":                     {then(look{s: 3, die: 80}, look{s: 4, die: 80}), "pause, continue sensor-gone"},
		"the die goes":                      {then(look{s: 3, zone: 92}, look{s: 4, zone: 92}), "pause, continue sensor-gone"},
		"a sensor goes and is back":         {then(look{s: 3}, look{s: 4}, look{s: 5, zone: 92, die: 80}, look{s: 6, zone: 92, die: 80}), "pause, continue sensor-gone, pause"},
		"late readings, each 0.1 s":         {then(look{s: 2.1}, look{s: 2.2}, look{s: 2.3}, look{s: 3.4}, look{s: 3.45, zone: 90, die: 80}, look{s: 3.6}, look{s: 3.7}), "pause"},
		"none for long, each 0.1 s":         {then(look{s: 2.1}, look{s: 2.2}, look{s: 3.5}), "pause, continue sensor-gone"},
		"too long":                          {then(look{s: 601, zone: 92, die: 80}, look{s: 602, zone: 92, die: 80}), "pause, continue limit"},
		"too long, and not again at once":   {then(look{s: 602, zone: 92, die: 80}, look{s: 603, zone: 92, die: 80}, look{s: 1201, zone: 92, die: 80}), "pause, continue limit"},
		"too long, and again later":         {then(look{s: 602, zone: 92, die: 80}, look{s: 603, zone: 92, die: 80}, look{s: 1202, zone: 92, die: 80}), "pause, continue limit, pause"},
		"too long, cool, and hot again":     {then(look{s: 602, zone: 92, die: 80}, look{s: 610, zone: 86, die: 70}, look{s: 620, zone: 92, die: 80}, look{s: 621, zone: 92, die: 80}), "pause, continue limit, pause"},
		"nothing to judge by":               {[]look{{s: 0, die: 70}, {s: 29, die: 70}, {s: 30, die: 70}, {s: 31, die: 70}, {s: 300, die: 70}}, "blind"},
		"nothing to judge by any more":      {[]look{{s: 0, zone: 60, die: 50}, {s: 29}, {s: 300}}, ""},
		"hot after it was blind is a pause": {[]look{{s: 0}, {s: 40}, {s: 41, zone: 92, die: 80}, {s: 42, zone: 92, die: 80}}, "blind, pause"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, did := play(rule, PauseState{}, tt.looks)
			if got := strings.Join(did, ", "); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestPauseState: what the shell reports is taken into account.
func TestPauseState(t *testing.T) {
	t.Parallel()
	hot := func(from float64) []look {
		return []look{{s: from, zone: 92, die: 80}, {s: from + 1, zone: 92, die: 80}}
	}
	s, _ := play(rule, PauseState{}, hot(1))
	if !s.Paused || s.Since != 2*time.Second || s.Begin.Zone.V != 92 {
		t.Fatalf("%+v", s)
	}
	if _, did := play(rule, s.Failed(2*time.Second), append(hot(3), hot(55)...)); did != nil {
		t.Errorf("tried again at once: %v", did)
	}
	if _, did := play(rule, s.Failed(2*time.Second), hot(61)); len(did) != 1 {
		t.Errorf("never tried again: %v", did)
	}
	if _, did := play(rule, s.Over(), hot(3)); len(did) != 1 {
		t.Errorf("after a pause that somebody else ended: %v", did)
	}
	// An attempt that follows is as hot as the one before: not told twice, and what did
	// not help is not tried again at once.
	limit, _ := play(rule, s, []look{{s: 602, zone: 92, die: 80}})
	if _, did := play(rule, limit.ForAttempt(), hot(700)); did != nil {
		t.Errorf("the next attempt forgets that it did not help: %v", did)
	}
	blind, _ := play(rule, PauseState{}, []look{{s: 0}, {s: 30}})
	if _, did := play(rule, blind.ForAttempt(), []look{{s: 100}, {s: 200}}); did != nil {
		t.Errorf("told twice: %v", did)
	}
}

// TestPauseAlternates: whatever the sensors say, pause and continue take turns, no pause
// is looked at beyond its limit without ending, and none begins without two sources.
func TestPauseAlternates(t *testing.T) {
	t.Parallel()
	temp := rapid.OneOf(rapid.Just(math.NaN()), rapid.Just(math.Inf(1)), rapid.Float64Range(60, 110), rapid.Just(0.0))
	rapid.Check(t, func(t *rapid.T) {
		var s PauseState
		now, paused, since := time.Duration(0), false, time.Duration(0)
		for range rapid.IntRange(1, 200).Draw(t, "looks") {
			now += time.Duration(rapid.IntRange(1, 120).Draw(t, "s")) * time.Second
			h := Heat{T: now, At: now, Zone: sample.Known(temp.Draw(t, "zone")), Die: sample.Known(temp.Draw(t, "die"))}
			h.Zone.OK, h.Die.OK = h.Zone.V != 0, h.Die.V != 0
			var act PauseAct
			s, act = rule.Next(s, h)
			switch act.Do {
			case Pause:
				if paused || !(h.Zone.V >= rule.PauseC) || !h.Zone.OK || !h.Die.OK {
					t.Fatalf("a pause at %+v, paused already: %v", h, paused)
				}
				paused, since = true, now
			case Continue:
				if !paused {
					t.Fatal("what runs was continued")
				}
				paused = false
			default:
				if paused && now-since >= rule.Max {
					t.Fatalf("paused for %s", now-since)
				}
			}
			if s.Paused != paused {
				t.Fatalf("state %v, done %v", s.Paused, paused)
			}
		}
	})
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		procs, nodes int
		uncounted    bool
		most         time.Duration
		want         string
	}{
		{0, 0, false, 10 * time.Minute, ""},
		{1, 1, false, 10 * time.Minute, ""},
		{1, 0, false, 10 * time.Minute, ""},
		{1, 0, true, 10 * time.Minute, ""}, // counted after all, and it is one
		{4, 1, false, 10 * time.Minute, "the 4 processes of this command"},
		{0, 2, false, 10 * time.Minute, "the 2 machines"},
		{8, 2, false, 10 * time.Minute, "only this one is paused"},
		{0, 1, true, 10 * time.Minute, "a process for each GPU"},
		{0, 2, true, 10 * time.Minute, "the 2 machines"},
		{4, 1, false, 5 * time.Minute, ""}, // as the warning itself advises
		{0, 2, true, 5 * time.Minute, ""},
		{4, 1, false, 9*time.Minute - time.Second, ""},
		{4, 1, false, 9 * time.Minute, "the 4 processes"},
		{4, 1, false, 24 * time.Hour, "the 4 processes"},
	} {
		got := Timeouts(tt.procs, tt.nodes, tt.uncounted, tt.most)
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) || got != "" && !strings.Contains(got, "a pause of "+shortly(tt.most)+" counts") {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

func TestUncounted(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]bool{
		"torchrun --nproc_per_node gpu train.py":           true,
		"torchrun --nproc-per-node=auto train.py":          true,
		"torchrun --nproc_per_node=gpu train.py":           true,
		"torchrun --nproc_per_node 2 train.py":             false,
		"torchrun --nproc_per_node":                        false,
		"accelerate launch --multi_gpu train.py":           true,
		"accelerate launch --multi-gpu train.py":           true,
		"accelerate launch train.py":                       false,
		"bash -c 'torchrun --nproc_per_node=gpu train.py'": true,
		"python3 train.py --device auto":                   false,
	} {
		if got := Uncounted([]string{command}); got != want {
			t.Errorf("%s: %v", command, got)
		}
		if got := Uncounted(strings.Fields(command)); got != want {
			t.Errorf("%s, in words: %v", command, got)
		}
	}
}

func TestLate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		c     float64
		every time.Duration
		want  []string
	}{
		{88, time.Second, nil},
		{90, 5 * time.Second, nil},
		{91, time.Second, []string{"91.2 C"}},
		{105, 100 * time.Millisecond, []string{"105 C may come too late"}},
		{88, 30 * time.Second, []string{"up to 1m after"}},
		{104, 10 * time.Minute, []string{"may come too late", "every 10m, two of which must agree, a pause comes up to 20m"}},
	} {
		got := Late(tt.c, tt.every)
		if len(got) != len(tt.want) {
			t.Errorf("%g C every %s: %q", tt.c, tt.every, got)
			continue
		}
		for i, w := range tt.want {
			if !strings.Contains(got[i], w) {
				t.Errorf("%g C every %s: %q, want %q", tt.c, tt.every, got[i], w)
			}
		}
	}
}

// TestWoken: what another program woke is paused again by the next two readings; where it
// does so again within a minute, not before another minute is over.
func TestWoken(t *testing.T) {
	t.Parallel()
	at := func(s float64) look { return look{s: s, zone: 92, die: 80} }
	s, did := play(rule, PauseState{}, []look{at(1), at(2)})
	s, again := s.Woken(10 * time.Second)
	if again || s.Paused {
		t.Errorf("the first time: %v %+v", again, s)
	}
	s, more := play(rule, s, []look{at(11), at(12)})
	s, again = s.Woken(20 * time.Second)
	if !again {
		t.Error("the second time within a minute is none")
	}
	s, rest := play(rule, s, []look{at(21), at(79), at(80)})
	if s, again = s.Woken(200 * time.Second); again {
		t.Error("two minutes later is again")
	}
	s, last := play(rule, s, []look{at(201), at(202)})
	if got := strings.Join(slices.Concat(did, more, rest, last), ", "); got != "pause, pause, pause, pause" || s.Since != 202*time.Second {
		t.Errorf("%s, since %s", got, s.Since)
	}
}
