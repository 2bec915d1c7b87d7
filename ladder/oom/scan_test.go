package oom

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
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
	for i := range 6_000 {
		feed(fmt.Sprintf("[rank%d]: RuntimeError: CUDA error: out of memory, number %d", i%1000, i))
	}
	for range 2 {
		feed(strings.Repeat("x", 3<<20))
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
	cases := slices.DeleteFunc(reducedCases(t), func(c reduced) bool { return !strings.HasPrefix(c.want, string(OOM)) })
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom(cases).Draw(rt, "case")
		before := tab.Decide(c.evidence(tab))
		c.log += "\n" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(benign), 0, 30).Draw(rt, "lines"), "\n")
		if after := tab.Decide(c.evidence(tab)); after.Answer != before.Answer || after.Kind != before.Kind {
			rt.Fatalf("%s: %s %s became %s %s%s", c.name, before.Answer, before.Kind, after.Answer, after.Kind, after.Reason)
		}
	})
}

// What an earlier step survived says nothing about the death.
func TestSurvivedLinesChangeNothing(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	// Exit 0 counts what was done; and a job of which nobody knows whether it lives
	// is judged by what it survived before.
	cases := slices.DeleteFunc(reducedCases(t), func(c reduced) bool {
		return c.exit == "0" || strings.Contains(c.want, "no-exit-status")
	})
	survived := []string{
		cudaDeath, "RuntimeError: CUDA error: out of memory", "MemoryError",
		"[W831 10:32:25.2 CUDACachingAllocator.cpp:508] memory allocation failed with OOM on device 0 while trying to allocate 20971520 bytes (free: 15663104, total: 33671348224).",
		"Error out of memory at line 380 in file /s/ops.cu",
	}
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom(cases).Draw(rt, "case")
		before := tab.Decide(c.evidence(tab))
		head := strings.Join(rapid.SliceOfN(rapid.SampledFrom(survived), 1, 5).Draw(rt, "lines"), "\n")
		for i := range 5 {
			head += fmt.Sprintf("\nwarm up:  %d%%|#   | %d/50 [00:01<00:09, 1.1it/s]", 2*i, i)
		}
		c.log = head + "\n" + c.log
		after := tab.Decide(c.evidence(tab))
		if after.Answer != before.Answer || after.Kind != before.Kind || after.Reason != before.Reason {
			rt.Fatalf("%s: %s %s%s became %s %s%s", c.name, before.Answer, before.Kind, before.Reason, after.Answer, after.Kind, after.Reason)
		}
	})
}

// Noise anywhere may make a verdict less sure; it never turns a sure one round.
func TestNoiseNeverTurnsASureVerdict(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	cases := reducedCases(t)
	noise := append([]string{
		"INFO 02-11 10:11:12 [llm.py:1] If out-of-memory error occurs during cudagraph capture, consider x",
		"{'oom': 0.000, 'out_of_memory': false}", "\x00\x00", "\xff\xfe\xfd", "Traceback", "E", "...",
		"\x1b[2K\r", "Killed by nobody", "warning: something is deprecated",
	}, benign...)
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom(cases).Draw(rt, "case")
		before := tab.Decide(c.evidence(tab))
		lines := strings.Split(c.log, "\n")
		for range rapid.IntRange(1, 10).Draw(rt, "n") {
			at := rapid.IntRange(0, len(lines)).Draw(rt, "at")
			lines = slices.Insert(lines, at, rapid.SampledFrom(noise).Draw(rt, "noise"))
		}
		c.log = strings.Join(lines, "\n")
		after := tab.Decide(c.evidence(tab))
		opposite := before.Answer == OOM && after.Answer == NotOOM || before.Answer == NotOOM && after.Answer == OOM
		if opposite && after.Confidence == High {
			rt.Fatalf("%s: %s became %s %s%s\n%s", c.name, before.Answer, after.Answer, after.Kind, after.Reason, c.log)
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
		by := rapid.SampledFrom([]string{"user", "sparkrun", "guard", "limit"}).Draw(rt, "by")
		ev.Signals = []SignalSent{{
			Name: rapid.SampledFrom([]string{"SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT"}).Draw(rt, "signal"),
			By:   by,
			T:    t0.Add(-time.Duration(rapid.IntRange(0, 3600).Draw(rt, "s")) * time.Second),
		}}
		if by == "guard" && rapid.Bool().Draw(rt, "only guard.json") {
			ev.Guard = &GuardAction{T: ev.Signals[0].T, Why: "predicted"}
			ev.Signals = nil
		}
		ev.Kernel = append(ev.Kernel, KernelRecord{T: t0, Text: k1})
		ev.Container = &ContainerEnd{Known: true, OOMKilled: true}
		want := map[string]string{"user": "not-oom user", "sparkrun": "not-oom user", "guard": "oom guard", "limit": "not-oom limit"}[by]
		if v := tab.Decide(ev); string(v.Answer)+" "+word(v) != want || v.Confidence != High {
			rt.Fatalf("%s: %s %s", c.name, v.Answer, word(v))
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

// Whatever the bytes are, what Read keeps is bounded, in order, and says where it
// stood.
func FuzzRead(f *testing.F) {
	tab := loaded(f)
	for _, kind := range nights {
		f.Add([]byte(night(kind, 400)), 7)
	}
	f.Add([]byte(cudaDeath+"\r\n\x00\xff\n\r\r\n"), 3)
	f.Add([]byte(strings.Repeat("x", maxPiece+10)+"\nKilled"), 4096)
	f.Fuzz(func(t *testing.T, log []byte, chunk int) {
		o, err := tab.Read(&slowReader{data: log, n: 1 + (chunk & 0xffff)})
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Tail) > ringLines || len(o.Hits) > 2*firstHits+lastHits {
			t.Errorf("%d lines and %d hits kept", len(o.Tail), len(o.Hits))
		}
		n, off := 0, int64(-1)
		for _, l := range o.Tail {
			if l.N < n || l.Offset <= off {
				t.Fatalf("line %d at byte %d behind line %d at %d", l.N, l.Offset, n, off)
			}
			n, off = l.N, l.Offset
			if l.Offset >= int64(len(log)) || (len(l.Text) < ringLineMax && !bytes.HasPrefix(log[l.Offset:], []byte(l.Text))) {
				t.Fatalf("line %d is not at byte %d", l.N, l.Offset)
			}
		}
		if len(log) > 0 && len(log) < maxPiece && bytes.Count(log, []byte("\n"))+1 < n {
			t.Errorf("%d lines", n)
		}
	})
}

// slowReader gives n bytes at a time.
type slowReader struct {
	data []byte
	n    int
}

func (r *slowReader) Read(b []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), r.n)], r.data)
	r.data = r.data[n:]
	return n, nil
}

// The cheap filter never hides a line from a pattern that matches it.
func FuzzPrefilter(f *testing.F) {
	tab := loaded(f)
	for _, c := range reducedCases(f) {
		for l := range strings.Lines(c.log) {
			f.Add(l)
		}
	}
	f.Fuzz(func(t *testing.T, raw string) {
		text := printable(shorten(raw))
		found, python := tab.both.scan(text, &sieve{}, nil)
		clean, _ := tab.strip(text)
		for i := range tab.Patterns {
			if tab.Patterns[i].matches(clean) && !slices.Contains(found, int32(i)) && !exotic(clean) {
				t.Errorf("%s matches %q, which the filter drops", tab.Patterns[i].ID, clean)
			}
		}
		if m := exceptionLine.FindStringSubmatch(clean); m != nil && exceptionName.MatchString(m[1]) && !python {
			t.Errorf("exception %q is not looked at", clean)
		}
	})
}

// exotic tells of the two letters outside ASCII that Go's case folding takes for
// ones within (long s, Kelvin); the filter does not.
func exotic(s string) bool { return strings.ContainsAny(s, "\u017f\u212a") }

func FuzzCounters(f *testing.F) {
	for _, s := range []string{
		"train:  12%|#2   | 124/1000 [31:02<3:39:21, 15.0s/it]", "99%|#|1.5k/2.0k [", "|||/", "iter 144: time:1.7, total-loss 0.58",
		"step_20 loss 1", "batch ..... 9999999999999999999999 acc", "1e9%|x| 1.2.3/4", "STEP 5 LOSS",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if b, ok := parseBar(s); ok && (b.end > len(s) || b.end < 0 || b.n < 0 || !strings.HasPrefix(s, b.desc) || b.total == "") {
			t.Errorf("%q gives %+v", s, b)
		}
		if rest, ok := cutBar(s); ok && !strings.HasSuffix(s, rest) {
			t.Errorf("%q is cut to %q", s, rest)
		}
		if w, n, ok := parseStep(s); ok && (n < 0 || !strings.Contains(strings.ToLower(s), w)) {
			t.Errorf("%q gives %s %g", s, w, n)
		}
		sizes := map[string]int64{}
		loaded(t).sizes(sizes, s, nil)
		tensorSize(sizes, s)
		for name, n := range sizes {
			if n < 0 {
				t.Errorf("%q: %s is %d", s, name, n)
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

// Lightning and others hand the step to the optimizer as a closure: a death inside of it
// is one of training, one of the optimizer itself is not.
func TestStepInsideTheOptimizer(t *testing.T) {
	t.Parallel()
	const head = `Traceback (most recent call last):
  File "/x/lightning/pytorch/loops/optimization/automatic.py", line 192, in run
  File "/x/torch/optim/optimizer.py", line 516, in wrapper
  File "/x/torch/optim/adam.py", line 226, in step
`
	const inside = `  File "/x/lightning/pytorch/plugins/precision/precision.py", line 108, in _wrap_closure
  File "/x/lightning/fabric/strategies/strategy.py", line 195, in backward
  File "/x/torch/autograd/graph.py", line 825, in _engine_run_backward
`
	const death = "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 16777216 bytes. Error code 12 (Cannot allocate memory)\n"
	for name, c := range map[string]struct {
		log  string
		want Phase
	}{
		"in the closure":      {head + inside + death, PhaseTrain},
		"in the optimizer":    {head + "  File \"/x/torch/optim/adam.py\", line 101, in _init_group\n" + death, PhaseOptimizer},
		"in a step around it": {"Traceback (most recent call last):\n  File \"/x/t.py\", line 9, in train_one_epoch\n" + strings.TrimPrefix(head, "Traceback (most recent call last):\n") + death, PhaseOptimizer},
	} {
		v := loaded(t).Decide(Evidence{Exit: Exit{Known: true, Code: 1, T: t0}, Output: scanText(loaded(t), c.log)})
		if v.Phase != c.want {
			t.Errorf("%s: phase %s, want %s", name, v.Phase, c.want)
		}
	}
}
