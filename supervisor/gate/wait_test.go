package gate

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestWaitOpensAtOnce: with memory there, nothing is said, nobody is looked up,
// and no tick goes by.
func TestWaitOpensAtOnce(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	putMemory(t, root, 121, 117, 1)
	synctest.Test(t, func(t *testing.T) {
		res := Wait(t.Context(), Options{
			Goal: Goal{StartKiB: 118 * g}, Root: root,
			Say: func(_ Reading, d Decision) { t.Errorf("said %s", d.Why) },
			GPU: func() []Holder { t.Error("the GPU was asked"); return nil },
		})
		if res.Decision.Verdict != Open || res.Waited != 0 || res.Last.AvailKiB != 117*g || res.First.AvailKiB != 117*g {
			t.Errorf("%+v", res)
		}
	})
	// And on this machine, whose figures are real.
	began := time.Now()
	if res := Wait(t.Context(), Options{Goal: Goal{StartKiB: 1}}); res.Decision.Verdict != Open || time.Since(began) > time.Second {
		t.Errorf("%+v after %v", res, time.Since(began))
	}
}

// TestWaitClimbs plays the usual end: the driver gives the memory back within a
// minute, and the value is told as it climbs.
func TestWaitClimbs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	putMemory(t, root, 121, 10, 110)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		go func() {
			for i := range 45 {
				time.Sleep(time.Second)
				putMemory(t, root, 121, 10+float64(i)*2.5, 110-float64(i)*2.5)
			}
		}()
		var said []string
		res := Wait(t.Context(), Options{
			Goal: Goal{StartKiB: 118 * g, PeakKiB: 100 * g}, Root: root,
			Say: func(r Reading, d Decision) {
				if d.Verdict != Waiting {
					t.Errorf("told after the decision: %v", d.Verdict)
				}
				said = append(said, d.Why)
			},
		})
		synctest.Wait()
		if res.Decision.Verdict != Open || res.Waited < 40*time.Second || res.Waited > 46*time.Second {
			t.Errorf("%+v", res)
		}
		if len(said) < 5 || len(said) > 12 || !strings.Contains(said[0], "10.0 GiB, waiting for 116.0") {
			t.Errorf("told %d times in %v: %q", len(said), time.Since(began), said)
		}
		time.Sleep(10 * time.Second) // the writer's end
	})
}

// TestWaitNamesTheHolder: a model server that somebody started holds the memory;
// it is named, told of now and then for an hour, and the wait ends.
func TestWaitNamesTheHolder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	putMemory(t, root, 121, 50, 68)
	putProcess(t, root, 4242, "VLLM::EngineCor", "VLLM::EngineCore\x00", 2*g, 0)
	putProcess(t, root, 11, "python3", "python3\x00/home/a/train.py\x00--token=hf_secret\x00", 5*g, 0)
	synctest.Test(t, func(t *testing.T) {
		told, asked := 0, 0
		res := Wait(t.Context(), Options{
			Goal: Goal{StartKiB: 118 * g, PeakKiB: 100 * g, StartUnaccountedKiB: g}, Root: root,
			Before: map[int]uint64{11: 5 * g},
			GPU: func() []Holder {
				asked++
				return []Holder{{PID: 4242, KiB: 60 * g}, {PID: 999999, KiB: 4 * g, Comm: "python"}}
			},
			Say: func(Reading, Decision) { told++ },
		})
		if res.Decision.Verdict != Stop || res.Waited < time.Hour || res.Waited > time.Hour+2*time.Second {
			t.Errorf("%v after %v: %s", res.Decision.Verdict, res.Waited, res.Decision.Why)
		}
		if !strings.Contains(res.Decision.Why, "vllm (pid 4242): 60.0 GiB of GPU memory") || strings.Contains(res.Decision.Why, "secret") {
			t.Error(res.Decision.Why)
		}
		if told < 15 || told > 25 {
			t.Errorf("told %d times in an hour of standing still", told)
		}
		if asked < 300 || asked > 400 {
			t.Errorf("asked %d times", asked)
		}
		for _, h := range res.Last.GPUOther {
			if h.Alive != (h.PID == 4242) {
				t.Errorf("%+v", h)
			}
		}
	})
}

// TestWaitWithAGPUThatNeverAnswers: each look-up is bounded, and only one question
// is left hanging.
func TestWaitWithAGPUThatNeverAnswers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	putMemory(t, root, 121, 40, 80)
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		never := make(chan struct{})
		res := Wait(t.Context(), Options{
			Goal: Goal{StartKiB: 118 * g, PeakKiB: 100 * g}, Root: root,
			GPU: func() []Holder { asked.Add(1); <-never; return nil },
		})
		if res.Decision.Verdict != Stop || asked.Load() != 1 || res.Last.GPUKnown || res.Waited < 15*time.Minute || res.Waited > 16*time.Minute {
			t.Errorf("asked %d times; %v after %v: %s", asked.Load(), res.Decision.Verdict, res.Waited, res.Decision.Why)
		}
		close(never)
	})
}

// TestWaitAsksBeforeItDecides: what ends the wait is who holds the memory then,
// not who held it at the last look.
func TestWaitAsksBeforeItDecides(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	putMemory(t, root, 121, 50, 68)
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		res := Wait(t.Context(), Options{
			Goal: Goal{StartKiB: 118 * g, PeakKiB: 100 * g, StartUnaccountedKiB: g, Limit: askEvery - 3*time.Second}, Root: root,
			GPU: func() []Holder { asked++; return []Holder{} },
		})
		if res.Decision.Verdict != Stop || asked != 2 || !res.Last.Asked || !strings.Contains(res.Decision.Why, "reboot needed") {
			t.Errorf("asked %d times: %s", asked, res.Decision.Why)
		}
	})
}

func TestWaitIsCanceled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	putMemory(t, root, 121, 40, 80)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(7*time.Second, cancel)
		res := Wait(ctx, Options{Goal: Goal{StartKiB: 118 * g}, Root: root})
		if !errors.Is(res.Err, context.Canceled) || res.Decision.Verdict != Waiting || res.Waited != 7*time.Second {
			t.Errorf("%+v", res)
		}
	})
}

// TestWaitKeepsLittle: an hour of readings is not kept, but the last holders are.
func TestWaitKeepsLittle(t *testing.T) {
	t.Parallel()
	w := waiter{}
	for i := range 4 * 3600 {
		r := spark(time.Duration(i)*fastPoll, 40, 80)
		r.Asked = i == 0
		w.add(r)
	}
	if len(w.rs) > 400 || !w.rs[0].Asked {
		t.Errorf("%d readings kept, the first asked: %v", len(w.rs), w.rs[0].Asked)
	}
	if climbing(w.rs, w.rs[len(w.rs)-1].At) {
		t.Error("readings that stand still climb")
	}
}
