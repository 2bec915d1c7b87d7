package oom

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// night makes about size bytes of what an ordinary night prints.
func night(kind string, size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		switch kind {
		case "plain":
			fmt.Fprintf(&b, "2026-07-14 10:%02d:%02d,123 INFO trainer: tokens %d mfu 26.88 the quick brown fox jumps over the lazy dog\n", i/60%60, i%60, 528855*i)
		case "tqdm":
			fmt.Fprintf(&b, "  %d%%|##        | %d/500000 [%02d:%02d<06:01,  1.35it/s, loss=0.812, lr=1.8e-4]\n", i/5000, i, i/60%60, i%60)
		case "redraw":
			fmt.Fprintf(&b, "\r  %d%%|##        | %d/500000 [%02d:%02d<06:01,  1.35it/s, loss=0.812, lr=1.8e-4]", i/5000, i, i/60%60, i%60)
		case "hf":
			fmt.Fprintf(&b, "{'loss': %d.812, 'grad_norm': 1.2034, 'learning_rate': 0.00018, 'epoch': %d.34}\n", i%3, i/1000)
		case "steps":
			fmt.Fprintf(&b, "[rank0]: step: %d  loss: 8.12  grad_norm: 1.20  memory: 71.20GiB(59.50%%)  tps: 10,204  mfu: 26.88%%\n", i)
		case "words":
			fmt.Fprintf(&b, "[INFO] no error in batch queue %d, iteration continues, memory ok, worker exited cleanly, exit: 0\n", i)
		}
	}
	return b.String()
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

var nights = []string{"plain", "tqdm", "redraw", "hf", "steps", "words"}

func BenchmarkScan(b *testing.B) {
	tab := loaded(b)
	for _, kind := range nights {
		b.Run(kind, func(b *testing.B) {
			text := night(kind, 4<<20)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			begin := cpuTime()
			for b.Loop() {
				if _, err := tab.Read(strings.NewReader(text)); err != nil {
					b.Fatal(err)
				}
			}
			// What counts on a machine that others use too.
			b.ReportMetric(float64(b.N)*float64(len(text))/1e6/(cpuTime()-begin).Seconds(), "MB/cpu-s")
		})
	}
}

// endless repeats bytes without end.
type endless struct {
	unit []byte
	at   int
}

func (p *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = p.unit[p.at]
		p.at = (p.at + 1) % len(p.unit)
	}
	return len(b), nil
}

// Logs that no trainer should print are read in bounded memory, and the message
// behind them is found.
func TestReadHostileLogs(t *testing.T) {
	tab := loaded(t)
	const size = 8 << 20
	for name, unit := range map[string]string{
		"one line without end": "x",
		"redraws without end":  "\r  2%|##        | 11/500 [00:08<06:01,  1.35it/s]",
		"zeros":                "\x00",
		"bytes of no text":     "\xff\xfe\n",
		"escapes without end":  "\x1b[",
		"empty lines":          "\n",
	} {
		t.Run(name, func(t *testing.T) {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := io.MultiReader(io.LimitReader(&endless{unit: []byte(unit)}, size), strings.NewReader("\nError out of memory at line 380 in file /s/ops.cu\n"))
			o, err := tab.Read(r)
			if err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			if v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: o}); v.Answer != OOM {
				t.Errorf("%s %s, quote %q", v.Answer, v.Reason, v.Quote)
			}
		})
	}
}

type torn struct{}

func (torn) Read([]byte) (int, error) { return 0, errors.New("input/output error") }

func TestReadKeepsWhatCameBeforeAnError(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	o, err := tab.Read(io.MultiReader(strings.NewReader(cudaDeath), torn{}))
	if err == nil || !strings.Contains(err.Error(), "at byte") {
		t.Errorf("error %v", err)
	}
	if v := tab.Decide(Evidence{Exit: Exit{Known: true, Code: 1}, Output: o}); v.Answer != OOM {
		t.Errorf("%s", v.Answer)
	}
}

// The quick way through Read and the line by line one of a run see the same.
func TestReadIsFeedAndAdvance(t *testing.T) {
	t.Parallel()
	tab := loaded(t)
	for _, c := range reducedCases(t) {
		s, steps, off := tab.NewScanner(), tab.NewSteps(), int64(0)
		for i, l := range strings.Split(c.log, "\n") {
			n, grew := steps.Advance(l)
			s.Feed(Line{N: i + 1, Offset: off, Text: l, Advance: grew, Step: n})
			off += int64(len(l)) + 1
		}
		if diff := cmp.Diff(s.Output(), scanText(tab, c.log+"\n"), cmp.AllowUnexported(Output{}, Hit{})); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}
