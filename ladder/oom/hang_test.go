package oom

import (
	"strings"
	"testing"
	"time"
)

func TestHung(t *testing.T) {
	t.Parallel()
	const m = time.Minute
	for name, c := range map[string]struct {
		q    Quiet
		hung bool
	}{
		"four minutes of nothing":  {Quiet{Pending: true, Since: 4 * m, SinceOutput: 4 * m, SinceAdvance: 5 * m, Alive: true}, true},
		"no out-of-memory line":    {Quiet{Since: 4 * m, SinceOutput: 4 * m, SinceAdvance: 5 * m, Alive: true}, false},
		"dead already":             {Quiet{Pending: true, Since: 4 * m, SinceOutput: 4 * m, SinceAdvance: 5 * m}, false},
		"it still prints":          {Quiet{Pending: true, Since: 40 * m, SinceOutput: m, SinceAdvance: 41 * m, Alive: true}, false},
		"slow steps":               {Quiet{Pending: true, Since: 4 * m, SinceOutput: 4 * m, SinceAdvance: 5 * m, MedianStep: 2 * m, Alive: true}, false},
		"slow steps, much later":   {Quiet{Pending: true, Since: 7 * m, SinceOutput: 7 * m, SinceAdvance: 9 * m, MedianStep: 2 * m, Alive: true}, true},
		"quick steps, too early":   {Quiet{Pending: true, Since: 2 * m, SinceOutput: 2 * m, SinceAdvance: 3 * m, MedianStep: time.Second, Alive: true}, false},
		"an advance without words": {Quiet{Pending: true, Since: 4 * m, SinceOutput: 4 * m, SinceAdvance: m, Alive: true}, false},
	} {
		hung, why := Hung(c.q)
		if hung != c.hung || hung != (why != "") {
			t.Errorf("%s: %v %q", name, hung, why)
		}
	}
	if HangAfter(0) != 3*m || HangAfter(time.Second) != 3*m || HangAfter(2*m) != 6*m {
		t.Error("the limits are wrong")
	}
}

func TestPending(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	const warning = "[W831 10:32:25.2 CUDACachingAllocator.cpp:508] memory allocation failed with OOM on device 0 while trying to allocate 20971520 bytes (free: 15663104, total: 33671348224)."
	for name, c := range map[string]struct {
		log  string
		line int
	}{
		"nothing":            {"step 1 loss 1", 0},
		"a traceback":        {"step 1 loss 1\n" + cudaDeath, 4},
		"a retry warning":    {"step 1 loss 1\n" + warning, 2},
		"gone on since":      {warning + "\nstep 1 loss 1\nstep 2 loss 1\nstep 3 loss 1", 0},
		"one step since":     {cudaDeath + "\nstep 1 loss 1", 0},
		"handled":            {"RuntimeError: CUDA error: out of memory\nretrying with a smaller batch", 0},
		"words only":         {"the trainer says CUDA out of memory. Tried to allocate 1 GiB", 0},
		"vetoed":             {"Traceback (most recent call last):\n  File \"a.py\", line 1, in f\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", 0},
		"others wait for it": {"[rank1]: " + strings.ReplaceAll(cudaDeath, "\n", "\n[rank1]: ") + "\n[rank0]: still here", 3},
	} {
		s := tab.NewScanner()
		if err := s.readAll(strings.NewReader(c.log), tab.NewSteps()); err != nil {
			t.Fatal(err)
		}
		h, ok := s.Pending()
		if ok != (c.line > 0) || h.Line != c.line {
			t.Errorf("%s: line %d, %v", name, h.Line, ok)
		}
	}
}

// Asked after every line or once at the end, the answer is the same.
func TestPendingDoesNotForget(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for _, c := range reducedCases(t) {
		asked, once := tab.NewScanner(), tab.NewScanner()
		a, b := tab.NewSteps(), tab.NewSteps()
		for l := range strings.Lines(c.log) {
			asked.feed(Line{Text: strings.TrimSuffix(l, "\n")}, a)
			asked.Pending()
			once.feed(Line{Text: strings.TrimSuffix(l, "\n")}, b)
		}
		// Which line it is may differ: the first one stays until it is taken back.
		h1, ok1 := asked.Pending()
		h2, ok2 := once.Pending()
		if ok1 != ok2 {
			t.Errorf("%s: line %d %v, and asked at the end line %d %v", c.name, h1.Line, ok1, h2.Line, ok2)
		}
	}
}

// A table that could not be read gives verdicts without text.
func TestEmptyTable(t *testing.T) {
	t.Parallel()
	tab := &Table{}
	s := tab.NewScanner()
	s.Feed(Line{Text: "Traceback (most recent call last):"})
	s.Feed(Line{Text: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB", Advance: true})
	if _, ok := s.Pending(); ok {
		t.Error("it knows a line")
	}
	v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Kernel: []KernelRecord{{Text: k1}}, Output: s.Output()})
	if v.Answer != NotOOM || v.Lever != "none" {
		t.Errorf("%s %s", v.Answer, v.Lever)
	}
}
