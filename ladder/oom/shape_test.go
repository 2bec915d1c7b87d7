package oom

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What the shape of a line hides is nothing that a pattern asks for.
func TestShapesHideNothing(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	lines := slices.Clone(benign)
	for i := range tab.Patterns {
		lines = append(append(lines, tab.Patterns[i].Case...), tab.Patterns[i].Not...)
	}
	for _, c := range reducedCases(t) {
		lines = append(lines, strings.Split(c.log, "\n")...)
	}
	all := make([]int32, len(tab.Patterns))
	for i := range all {
		all[i] = int32(i)
	}
	slices.Sort(lines)
	hidden := 0
	for _, l := range slices.Compact(lines) {
		clean, _ := tab.Clean(l)
		masked := string(appendShape(nil, clean, tab.numbers))
		if masked == clean {
			continue
		}
		hidden++
		for _, inside := range []bool{false, true} {
			a, b := tab.tryPatterns(clean, inside, all), tab.tryPatterns(masked, inside, all)
			if !slices.Equal(a.ids, b.ids) || a.ignored != b.ignored || a.finished != b.finished {
				t.Errorf("%q matches %v, as %q it matches %v", clean, a, masked, b)
			}
		}
	}
	if hidden < 100 {
		t.Errorf("only %d lines have a shape of their own", hidden)
	}
}

func TestAppendShape(t *testing.T) {
	t.Parallel()
	named := map[string]bool{"1455": true}
	for in, want := range map[string]string{
		"at 12:00:07 3.50 GiB of 7 (pid 91820)": "at 1:1:1 1.1 GiB of 7 (pid 1111)",
		"exit 137, error 12, 0.000":             "exit 137, error 12, 0.000",
		"WinError 1455, 1456":                   "WinError 1455, 1111",
		"1234567 12345678 a1:2":                 "1111 11111111 a1:2",
		"":                                      "",
		"5.":                                    "5.",
	} {
		if got := string(appendShape(nil, in, named)); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

// The same storms with the shapes remembered and without give the same output.
func TestStormsAreReadAlike(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for name, log := range map[string]string{"warnings": warningStorm(500 << 10), "tracebacks": tracebackStorm(1200 << 10)} {
		o := scanText(tab, log)
		s := tab.NewScanner()
		for i, l := range strings.Split(strings.TrimSuffix(log, "\n"), "\n") {
			clear(s.shapes)
			s.Feed(Line{N: i + 1, Text: l})
		}
		slow := s.Output()
		if len(o.Hits) != len(slow.Hits) || len(o.Hits) < lastHits {
			t.Fatalf("%s: %d and %d hits", name, len(o.Hits), len(slow.Hits))
		}
		for i := range o.Hits {
			a, b := o.Hits[i], slow.Hits[i]
			if a.Text != b.Text || !slices.Equal(a.IDs, b.IDs) || a.Line != b.Line || a.Stream != b.Stream {
				t.Fatalf("%s: %+v and %+v", name, a, b)
			}
		}
		if len(s.shapes) > maxShapes {
			t.Errorf("%d shapes", len(s.shapes))
		}
	}
}

// warningStorm are the allocator's warnings of eight ranks, each with other numbers.
func warningStorm(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "[rank%d]:[W831 %02d:%02d:%02d.%09d CUDACachingAllocator.cpp:508] Warning: expandable_segments: memory mapping failed with OOM on device %d while trying to map %d bytes (free: %d, total: 33671348224). (function operator())\n",
			i%8, i/3600000%24, i/60000%60, i/1000%60, i*7919%1000000000, i%8, 20971520*(1+i%5), 15663104+i*4096)
	}
	return b.String()
}

// tracebackStorm are out-of-memory tracebacks without end.
func tracebackStorm(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `Traceback (most recent call last):
  File "/job/train.py", line %d, in training_step
    loss = self.model(batch)
  File "/venv/torch/nn/modules/module.py", line 1775, in _call_impl
    return forward_call(*args, **kwargs)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %d.%02d GiB. GPU 0 has a total capacity of 119.64 GiB of which %d.%02d GiB is free. Process %d has %d.05 GiB memory in use. Of the allocated memory %d.11 GiB is allocated by PyTorch, and %d.45 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.
`, i%900, i%30, i%100, i%5, i%97, 1000+i%60000, i%110, i%100, i%900)
	}
	return b.String()
}

// Logs in which every line means something.
func BenchmarkStorms(b *testing.B) {
	tab := loaded(b)
	for name, storm := range map[string]func(int) string{"warnings": warningStorm, "tracebacks": tracebackStorm} {
		log := storm(32 << 20)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(log)))
			for b.Loop() {
				if _, err := tab.Read(strings.NewReader(log)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
