package acting

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/sample"
	"sparkrun/sampler/throttle"
)

// blocks makes 60 s blocks of an attempt with these ratios; below 0 is unknown, above 100
// is the ratio less 100 of an excused block.
func blocks(attempt int, ratios ...float64) []throttle.Slowness {
	out := make([]throttle.Slowness, 0, len(ratios))
	for i, v := range ratios {
		b := throttle.Slowness{Attempt: attempt, Block: i + 1, Seconds: 60, Steps: 30, Slower: sample.Known(v)}
		switch {
		case v < 0:
			b.Slower = sample.Num{}
		case v > 100:
			b.Slower, b.Excused = sample.Known(v-100), true
		}
		out = append(out, b)
	}
	return out
}

func TestSlowNeedsTheWholeTimeInARow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ratios []float64
		after  int // the block at which it is over the limit, 0 for never
	}{
		"never slow":                    {[]float64{1, 1.4, 1.49, 1, 1.4}, 0},
		"slow throughout":               {[]float64{1, 2, 2, 2, 2, 2, 2}, 6},
		"exactly the factor":            {[]float64{1.5, 1.5, 1.5, 1.5, 1.5, 1.5}, 0},
		"back in between":               {[]float64{2, 2, 2, 2, 1, 2, 2, 2, 2}, 0},
		"unknown in between":            {[]float64{2, 2, -1, 2, 2, -1, 2}, 7},
		"behind checkpoints":            {[]float64{102, 102, 103, 102, 102, 102}, 0},
		"behind a checkpoint for once":  {[]float64{2, 2, 104, 2, 2, 2}, 6},
		"little is known of all blocks": {[]float64{-1, -1, -1, -1, -1, -1, -1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Slow{Factor: 1.5, For: 5 * time.Minute}
			for i, b := range blocks(1, tt.ratios...) {
				over := s.Take(b)
				for range 59 { // the same block is seen in each sample
					if s.Take(b) != over {
						t.Fatal("a block seen again counts again")
					}
				}
				if want := tt.after > 0 && i+1 >= tt.after; over != want {
					t.Fatalf("block %d: over is %v", i+1, over)
				}
			}
		})
	}
}

func TestSlowOneBlockIsNeverEnough(t *testing.T) {
	t.Parallel()
	s := Slow{Factor: 1.5, For: time.Second}
	b := blocks(1, 8, 8)
	if s.Take(b[0]) {
		t.Error("one block was enough")
	}
	if !s.Take(b[1]) {
		t.Error("two blocks are not enough for a second")
	}
}

func TestSlowStartsAnewWithAnAttempt(t *testing.T) {
	t.Parallel()
	s := Slow{Factor: 1.5, For: 3 * time.Minute}
	for _, b := range append(blocks(1, 3, 3), blocks(2, 3, 3)...) {
		if s.Take(b) {
			t.Fatal("two attempts were added up")
		}
	}
	if s.Factor != 1.5 || s.For != 3*time.Minute {
		t.Errorf("the limits are lost: %+v", s)
	}
}

func TestSlowRatio(t *testing.T) {
	t.Parallel()
	s := Slow{Factor: 1.2, For: time.Minute}
	if s.Ratio() != 0 {
		t.Error("a ratio of nothing")
	}
	for _, b := range blocks(1, 2, 4) {
		s.Take(b)
	}
	// 60 s that should have been 30, and 60 that should have been 15.
	if got := s.Ratio(); got < 2.66 || got > 2.67 {
		t.Errorf("ratio %g", got)
	}
	if got, want := s.Words(), "for 2 min of training a step has taken 2.7 times as long as before, and --max-slowdown allows 1.2 times for 60 s"; got != want {
		t.Errorf("words %q", got)
	}
}

// Whatever comes: over the limit means that the last blocks that said something were all
// slow, for the time asked for at least.
func TestSlowHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ratios := rapid.SliceOfN(rapid.SampledFrom([]float64{0.5, 1, 1.49, 1.51, 2, 9, -1, 103}), 1, 60).Draw(t, "ratios")
		s := Slow{Factor: 1.5, For: time.Duration(rapid.IntRange(1, 600).Draw(t, "for")) * time.Second}
		slow := 0.0
		for i, b := range blocks(1, ratios...) {
			over := s.Take(b)
			switch v := ratios[i]; {
			case v < 0 || v > 100:
			case v > 1.5:
				slow += 60
			default:
				slow = 0
			}
			if want := slow >= s.For.Seconds() && slow >= 120; over != want {
				t.Fatalf("block %d: over %v with %g slow seconds", i+1, over, slow)
			}
		}
	})
}
