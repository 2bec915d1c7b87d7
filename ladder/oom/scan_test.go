package oom

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestScannerIsBounded(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	s := tab.NewScanner()
	n := 0
	feed := func(text string) {
		n++
		s.Feed(Line{N: n, Text: text})
	}
	feed("RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 15_000 {
		feed(fmt.Sprintf("[rank%d]: RuntimeError: CUDA error: out of memory, number %d", i%1000, i))
	}
	for range 2 {
		feed(strings.Repeat("x", 10<<20))
		feed(strings.Repeat("\r 10%|#  |", 1<<20) + "last")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 24<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	o := s.Output()
	if len(o.Tail) != ringLines || len(o.Hits) != 2*firstHits+lastHits {
		t.Errorf("%d lines and %d hits kept", len(o.Tail), len(o.Hits))
	}
	if o.Hits[0].Line != 1 || o.Lines != n || len(s.streams) > maxStreams+1 {
		t.Errorf("first hit on line %d, %d lines, %d streams", o.Hits[0].Line, o.Lines, len(s.streams))
	}
	if last := o.Tail[len(o.Tail)-1]; last.N != n || len(last.Text) > ringLineMax || !strings.HasSuffix(last.Text, "last") {
		t.Errorf("last line %d of %d bytes", last.N, len(last.Text))
	}
	for i := 1; i < len(o.Hits); i++ {
		if o.Hits[i].Line <= o.Hits[i-1].Line {
			t.Fatalf("hits out of order at %d", i)
		}
	}
}

// The cause at the end of a line that is too long to look at as a whole.
func TestMessageBehindLongRedraws(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	long := strings.Repeat("\r  0%|          | 0/120 [00:00<?, ?it/s]", 1<<16)
	v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, long+"Error out of memory at line 380 in file /s/ops.cu")})
	if v.Answer != OOM {
		t.Errorf("%s, quote %q", v.Answer, v.Quote)
	}
}

// An early cause survives thousands of consequences below it.
func TestCauseFarAboveTheEnd(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	log := cudaDeath + strings.Repeat("\nbroken pipe: Broken pipe", 5000) + strings.Repeat("\nfiller", 5000)
	v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, log)})
	if v.Answer != OOM || v.Sizes["requested"] != 2<<30 || v.Evidence[0].Line != 3 {
		t.Errorf("%s %v %+v", v.Answer, v.Sizes, v.Evidence)
	}
}

func TestScannerKeepsNothingOfTheCaller(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	s := tab.NewScanner()
	b := []byte("RuntimeError: CUDA driver error: out of memory")
	s.Feed(Line{N: 1, Text: string(b)})
	o := s.Output()
	s.Feed(Line{N: 2, Text: "x"})
	if len(o.Tail) != 1 || o.Tail[0].Text != string(b) || o.Hits[0].Text != string(b) {
		t.Errorf("%+v", o)
	}
}

func TestSteps(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	st := tab.NewSteps()
	for i, c := range []struct {
		line string
		grew bool
	}{
		{"Loading checkpoint shards:  50%|##  | 1/2 [00:01<00:01]", false},
		{"Loading checkpoint shards: 100%|####| 2/2 [00:01<00:01]", false},
		{"  0%|    | 0/500 [00:00<?, ?it/s]", false},
		{"  0%|    | 1/500 [00:01<05:00, 1it/s]", true},
		{"  0%|    | 1/500 [00:02<05:00, 1it/s]", false},
		{"{'loss': 1.41, 'epoch': 0.01}", true},
		{"step 100 loss 1.91", true},
		{"step 100 loss 1.91", false},
		{"Training starts at step 1", false},
		{"eval skipped at step 1000 (out of memory), continuing", false},
		{"[rank0]: \x1b[32mstep: 20  loss: 8.12\x1b[0m", true},
		{"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB", false},
	} {
		if _, grew := st.Advance(c.line); grew != c.grew {
			t.Errorf("%d: %q: %v", i, c.line, grew)
		}
	}
}

var benign = []string{
	"", "cleaning up", "wandb: run finished", "  warnings.warn(", "libgomp: thread pool down",
	"W0918 api.py:897] Sending process 2290 closing signal SIGTERM", "\x1b[0m", "Aborted (core dumped)",
	"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "BrokenPipeError: [Errno 32] Broken pipe",
	"  2%|2         | 11/500 [00:09<06:58,  1.17it/s]", "see the log for out of memory hints",
}

func TestBenignLinesNeverFlipTheVerdict(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	cases := reducedCases(t)
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom(cases).Draw(rt, "case")
		if c.file != "oom.txtar" {
			return
		}
		before := tab.Decide(c.evidence(tab))
		c.log += "\n" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(benign), 0, 30).Draw(rt, "lines"), "\n")
		if after := tab.Decide(c.evidence(tab)); after.Answer != before.Answer || after.Kind != before.Kind {
			rt.Fatalf("%s: %s %s became %s %s%s", c.name, before.Answer, before.Kind, after.Answer, after.Kind, after.Reason)
		}
	})
}

func TestOwnSignalAlwaysWins(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	cases := reducedCases(t)
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom(cases).Draw(rt, "case")
		ev := c.evidence(tab)
		ev.Exit.T = t0
		ev.Signals = []SignalSent{{
			Name: rapid.SampledFrom([]string{"SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT"}).Draw(rt, "signal"),
			By:   rapid.SampledFrom([]string{"user", "sparkrun"}).Draw(rt, "by"),
			T:    t0.Add(-time.Duration(rapid.IntRange(0, 3600).Draw(rt, "s")) * time.Second),
		}}
		ev.Kernel = []KernelRecord{{T: t0, Text: k1}}
		if v := tab.Decide(ev); v.Answer != NotOOM || v.Reason != "user" || v.Confidence != High {
			rt.Fatalf("%s: %s %s", c.name, v.Answer, v.Reason)
		}
	})
}

// Which rank dies, and in which order the ranks' lines arrive, is chance.
func TestShufflingRanksChangesNothing(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	dead := strings.Split(cudaDeath, "\n")
	waiting := []string{"Traceback (most recent call last):", `  File "a.py", line 9, in reduce`, "torch.distributed.DistBackendError: NCCL error: remote process exited"}
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.Permutation([]int{0, 1, 2, 3}).Draw(rt, "ranks")
		queues := make([][]string, 4)
		for i, r := range ranks {
			lines := waiting
			if i == 0 {
				lines = dead
			}
			for _, l := range lines {
				queues[r] = append(queues[r], fmt.Sprintf("[rank%d]: %s", r, l))
			}
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		var log []string
		for {
			var open []int
			for i, q := range queues {
				if len(q) > 0 {
					open = append(open, i)
				}
			}
			if len(open) == 0 {
				break
			}
			i := open[rng.IntN(len(open))]
			log, queues[i] = append(log, queues[i][0]), queues[i][1:]
		}
		v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: scanText(tab, strings.Join(log, "\n"))})
		if v.Answer != OOM || v.Confidence != High || v.Kind != "cuda-allocator" {
			rt.Fatalf("%s %s\n%s", v.Answer, v.Confidence, strings.Join(log, "\n"))
		}
	})
}

func FuzzClean(f *testing.F) {
	tab := loaded(f)
	for _, p := range tab.Prefixes {
		f.Add(p.Case.In)
	}
	f.Add("\x1b[\x1b]\x00\r\r\n\xff\xfe")
	f.Fuzz(func(t *testing.T, raw string) {
		text, stream := tab.Clean(raw)
		if len(text) > maxScan || len(stream) > 200+maxScan || strings.ContainsAny(text, "\x00\x1b\r") {
			t.Errorf("%q gives %q", raw, text)
		}
	})
}

func FuzzDecide(f *testing.F) {
	tab := loaded(f)
	for _, c := range reducedCases(f) {
		f.Add(c.log, k1, 1)
	}
	f.Add("\xff\x00Traceback (most recent call last):\n  File \"\n:", "oom-kill:constraint=CONSTRAINT_NONE", 137)
	f.Fuzz(func(t *testing.T, log, system string, code int) {
		ev := Evidence{Exit: Exit{Known: true, Code: code}, Output: scanText(tab, log)}
		SystemLines(&ev, strings.Split(system, "\n"))
		v := tab.Decide(ev)
		if v.Answer != OOM && v.Answer != NotOOM && v.Answer != Unsure {
			t.Errorf("answer %q", v.Answer)
		}
		if v.Answer == OOM && v.Kind == "" || v.Answer == NotOOM && v.Reason == "" || v.Confidence == "" || v.Phase == "" {
			t.Errorf("half a verdict: %+v", v)
		}
		for name, n := range v.Sizes {
			if n < 0 {
				t.Errorf("%s is %d", name, n)
			}
		}
	})
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"1.5 GiB", "0 bytes", "9e99 EiB", "..", "1E"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := parseSize(s); ok && n < 0 {
			t.Errorf("%q is %d", s, n)
		}
	})
}

// Lines that mean nothing, as a training night prints them by the million.
func BenchmarkFeedNothing(b *testing.B) {
	tab := loaded(b)
	lines := []string{
		"2026-07-14 10:00:00,123 INFO trainer: epoch 1 batch 340 lr 1.8e-4 tokens 528855 mfu 26.88",
		"{'loss': 0.812, 'grad_norm': 1.2, 'learning_rate': 0.00018, 'epoch': 0.34}",
		"  2%|##        | 11/500 [00:08<06:01,  1.35it/s, loss=0.812, lr=1.8e-4, mem=71.2GiB]",
		"sample: the quick brown fox jumps over the lazy dog and goes on to write a longer text about nothing in particular",
	}
	s := tab.NewScanner()
	total := 0
	for _, l := range lines {
		total += len(l) + 1
	}
	b.SetBytes(int64(total))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		for _, l := range lines {
			n++
			s.Feed(Line{N: n, Text: l})
		}
	}
	if len(s.Output().Hits) != 0 {
		b.Fatal("these lines should mean nothing")
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		if _, err := Load(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStepsAdvance(b *testing.B) {
	st := loaded(b).NewSteps()
	line := "sample: the quick brown fox jumps over the lazy dog and goes on to write a longer text about nothing"
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		st.Advance(line)
	}
}

// Lines that all mean something, as a broken loader prints them.
func BenchmarkFeedHits(b *testing.B) {
	tab := loaded(b)
	s := tab.NewScanner()
	line := "[rank1]: [W831 10:32:25.2 CUDACachingAllocator.cpp:508] expandable_segments: memory mapping failed with OOM on device 0 while trying to map 20971520 bytes (free: 15663104, total: 33671348224)."
	b.SetBytes(int64(len(line)))
	n := 0
	for b.Loop() {
		n++
		s.Feed(Line{N: n, Text: line})
	}
}
