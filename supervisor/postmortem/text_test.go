package postmortem

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sparkrun/ladder/oom"
)

func TestInWords(t *testing.T) {
	t.Parallel()
	step := int64(340)
	for want, v := range map[string]oom.Verdict{
		"out of memory (cuda-allocator), high confidence, in training at step 340":                                                                    {Answer: oom.OOM, Kind: "cuda-allocator", Confidence: oom.High, Phase: oom.PhaseTrain, Step: &step},
		"out of memory (guard), high confidence":                                                                                                      {Answer: oom.OOM, Kind: "guard", Confidence: oom.High, Phase: oom.PhaseUnknown},
		"out of memory (cuda-driver), nothing moved any more, medium confidence, while loading":                                                       {Answer: oom.OOM, Kind: "cuda-driver", Reason: "hang", Confidence: oom.Medium, Phase: oom.PhaseLoad},
		"not out of memory: stopped by the user (user), high confidence":                                                                              {Answer: oom.NotOOM, Reason: "user", Confidence: oom.High},
		"not out of memory: a-new-reason, low confidence":                                                                                             {Answer: oom.NotOOM, Reason: "a-new-reason", Confidence: oom.Low},
		"not out of memory: it succeeded (success)":                                                                                                   {Answer: oom.NotOOM, Reason: "success", Confidence: oom.High},
		"unsure whether it was out of memory (kernel-oom): only memory samples or kernel records can tell, low confidence, in evaluation at step 340": {Answer: oom.Unsure, Kind: "kernel-oom", Reason: "needs-samples", Confidence: oom.Low, Phase: oom.PhaseEval, Step: &step},
	} {
		if got := InWords(v); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestEveryWatchHasWords: what our own watches end an attempt for is told in words, and not
// by its code alone.
func TestEveryWatchHasWords(t *testing.T) {
	t.Parallel()
	tab, err := oom.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []string{"user", "limit", "hang", "power-wedge", "slowdown", "divergence"} {
		v := tab.Decide(oom.Evidence{Signals: []oom.SignalSent{{Name: "SIGTERM", By: by}}, Exit: oom.Exit{Known: true, Signal: "SIGTERM", T: time.Unix(9, 0)}})
		if v.Reason != by || reasons[v.Reason] == "" {
			t.Errorf("%s: %s", by, InWords(v))
		}
	}
}

func sampleAnswer() Answer {
	step := int64(340)
	return Answer{Verdict: oom.Verdict{
		Answer: oom.OOM, Kind: "cuda-allocator", Confidence: oom.High, Phase: oom.PhaseTrain, Step: &step,
		Evidence: []oom.Item{
			{Source: "output", Weight: oom.Decides, Line: 812, Text: "\x1b[31mtorch.OutOfMemoryError\x1b[0m: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 119.60 GiB of which 1.20 GiB is free. " + strings.Repeat("And so on. ", 30)},
			{Source: "kernel", Weight: oom.Supports, T: time.Date(2026, 7, 14, 3, 4, 5, 0, time.UTC), Text: "NVRM: nothing left\x07\r\n"},
			{Source: "memory", Weight: oom.Against, Text: "lowest MemAvailable 50.0 GiB"},
			{Source: "exit", Weight: oom.Note, Text: "exited with status 1"},
		},
		Sizes:      map[string]int64{"requested": 5 << 29, "free": 0, "total": 1284195222 * 100, "weird_size": 12345678},
		Advice:     []string{"First.", "Second.", "Third.", "Fourth."},
		Unreadable: []string{"kernel log: not given"},
	}}
}

func TestPerson(t *testing.T) {
	t.Parallel()
	want := `verdict   out of memory (cuda-allocator), high confidence, in training at step
          340
because   line 812: torch.OutOfMemoryError: CUDA out of memory. Tried to
          allocate 2.50 GiB. GPU 0 has a total capacity of 119.60 GiB of whi...
          kernel at 03:04:05: NVRM: nothing left
          memory: lowest MemAvailable 50.0 GiB (speaks against out of memory)
sizes     requested 2.50 GiB, free 0 bytes, total 119.60 GiB
to do     First.
          Second.
          Third.
`
	if got := sampleAnswer().Person(80, false); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// No width and no content makes a line longer than the screen, or sends anything
// to the terminal but the colours that were asked for.
func TestPersonFits(t *testing.T) {
	t.Parallel()
	a := sampleAnswer()
	a.Verdict.Answer = oom.Unsure
	a.log = true
	a.Verdict.Advice = append([]string{strings.Repeat("ü", 300), "a\x1b]0;title\x07b\xff"}, a.Verdict.Advice...)
	a.Run = &RunInfo{ID: "20260714-100000-" + strings.Repeat("a", 32) + "-abcd", State: "running", Going: true, open: true, Attempt: 2, Attempts: []AttemptLine{
		{N: 1, End: "exit 1", Verdict: "oom (host-alloc)", Rungs: []string{"drop-caches", "shorter-packing", "bf16-lora", "another"}},
		{N: 2, End: "running"},
	}}
	for _, width := range []int{10, 40, 53, 80, 200} {
		for _, colour := range []bool{false, true} {
			text := a.Person(width, colour)
			plain := strings.NewReplacer("\x1b[1;33m", "", "\x1b[0m", "").Replace(text)
			if colour == (plain == text) {
				t.Errorf("width %d, colour %v: colours are wrong", width, colour)
			}
			for line := range strings.Lines(plain) {
				line = strings.TrimSuffix(line, "\n")
				if n := utf8.RuneCountInString(line); n > max(min(width, 100), 40) {
					t.Errorf("width %d: a line of %d: %q", width, n, line)
				}
				if strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) >= 0 {
					t.Errorf("width %d: control characters: %q", width, line)
				}
			}
		}
	}
}

// What is missing is told only where it could settle something.
func TestPersonTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	a := sampleAnswer()
	a.log = true
	if strings.Contains(a.Person(80, false), "not known") {
		t.Error("a sure verdict tells what it did not need")
	}
	a.Verdict.Answer = oom.Unsure
	text := a.Person(80, false)
	for _, want := range []string{"not known", "--exit N", "kernel log (--system FILE)"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}
