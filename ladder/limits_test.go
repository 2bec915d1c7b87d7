package ladder

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sparkrun/configs"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

const gib = 1 << 30

// deaths makes a situation of attempts, each a function that says what is special
// about it. They all ran out of memory at step 40 with these settings.
func deaths(settings string, each ...func(*Past)) Situation {
	s := Situation{Job: job.Job{Argv: []string{"python", "train.py", "--max_length", "4096", "--bs=8", "--acc", "1"}, Knobs: knobs(settings)}, CanDrop: true}
	s.Drop = &Drop{Done: true, How: "system", FreedKiB: 100 << 10}
	for k, where := range map[job.Knob]string{job.SeqLen: "--max_length", job.MicroBatch: "--bs", job.Accumulation: "--acc"} {
		if set, ok := s.Job.Knobs[k]; ok {
			set.Where = where
			s.Job.Knobs[k] = set
		}
	}
	for i, f := range each {
		p := Past{
			Attempt: i + 1, Answer: AnswerOOM, Kind: "cuda-allocator", Phase: "train", Duration: time.Hour, Step: 40,
			RequestedBytes: sample.Known(2 * gib), PeakKiB: sample.Known(100 << 20), Exception: "torch.OutOfMemoryError: CUDA out of memory",
		}
		if f != nil {
			f(&p)
		}
		s.Past = append(s.Past, p)
	}
	return s
}

// with gives an attempt other settings and the rung that led to them.
func with(settings string, also ...func(*Past)) func(*Past) {
	return func(p *Past) {
		p.Knobs, p.Rungs = knobs(settings), []string{"shorter-packing"}
		for _, f := range also {
			f(p)
		}
	}
}

func unknownSize(p *Past) { p.RequestedBytes = sample.Num{} }

// What the same death after a cut says, and what it does not.
func TestSmallerSettingsThatChangeNothing(t *testing.T) {
	t.Parallel()
	l := spark(t)
	const typed = "seq_len=4096 micro_batch=8 accumulation=1"
	const half, quarter, eighth = "seq_len=2048 micro_batch=8 accumulation=1", "seq_len=1024 micro_batch=8 accumulation=1", "seq_len=1024 micro_batch=4 accumulation=2"
	at := func(step int64) func(*Past) { return func(p *Past) { p.Step = step } }
	asks := func(bytes float64) func(*Past) {
		return func(p *Past) { p.RequestedBytes = sample.Known(bytes) }
	}
	both := func(fs ...func(*Past)) func(*Past) {
		return func(p *Past) {
			for _, f := range fs {
				f(p)
			}
		}
	}
	for _, c := range []struct {
		name string
		past []func(*Past)
		set  func(*Situation)
		stop bool
	}{
		{"same step, same size", []func(*Past){nil, with(half)}, nil, true},
		{"a step earlier of a hundred", []func(*Past){at(100), with(half, at(99))}, nil, true},
		{"came further", []func(*Past){nil, with(half, at(41))}, nil, false},
		{"much earlier", []func(*Past){nil, with(half, at(30))}, nil, false},
		{"the first steps", []func(*Past){at(2), with(half, at(2))}, nil, false},
		{"no step at all, three times", []func(*Past){at(0), with(half, at(0)), with(quarter, at(0))}, nil, false},
		{"a smaller size", []func(*Past){nil, with(half, asks(gib))}, nil, false},
		{"a larger size, once", []func(*Past){nil, with(half, asks(3*gib))}, nil, false},
		{"a larger size, twice", []func(*Past){nil, with(half, asks(3*gib)), with(quarter, asks(4*gib))}, nil, true},
		{"a size that torch has rounded", []func(*Past){asks(20 << 20), with(half, asks(20<<20))}, nil, false},
		{"a lower peak", []func(*Past){nil, with(half, func(p *Past) { p.PeakKiB = sample.Known(90 << 20) })}, nil, false},
		{"a peak that moved by little", []func(*Past){nil, with(half, func(p *Past) { p.PeakKiB = sample.Known(96 << 20) })}, nil, true},
		{"a small job on a busy machine", []func(*Past){func(p *Past) { p.PeakKiB = sample.Known(600 << 10) }, with(half, func(p *Past) { p.PeakKiB = sample.Known(100 << 10) })}, nil, true},
		{"peak unknown", []func(*Past){nil, with(half, func(p *Past) { p.PeakKiB = sample.Num{} })}, nil, false},
		{"another kind", []func(*Past){nil, with(half, func(p *Past) { p.Kind = "kernel-oom" })}, nil, false},
		{"another phase", []func(*Past){nil, with(half, func(p *Past) { p.Phase = "unknown" })}, nil, false},
		{"caches dropped only", []func(*Past){nil, func(p *Past) { p.Rungs = []string{"drop-caches"} }}, nil, false},
		{"after an unsure death", []func(*Past){nil, with(half, func(p *Past) { p.Answer = AnswerUnsure }), with(half)}, nil, false},
		{"a co-tenant before the cut", []func(*Past){func(p *Past) { p.Lever = "wait" }, with(half)}, nil, false},
		{"size unknown, twice", []func(*Past){unknownSize, with(half, unknownSize), with(quarter, unknownSize)}, nil, false},
		{"size unknown, three times", []func(*Past){unknownSize, with(half, unknownSize), with(quarter, unknownSize), with(eighth, unknownSize)}, nil, true},
		{"a repetition between two cuts", []func(*Past){unknownSize, with(half, unknownSize), with(half, unknownSize), with(quarter, unknownSize), with(eighth, unknownSize)}, nil, true},
		{"one cut of three helped", []func(*Past){both(unknownSize, at(30)), with(half, unknownSize), with(quarter, unknownSize), with(eighth, unknownSize)}, nil, false},
		{"more than the whole budget, in the first step", []func(*Past){both(at(0), asks(500*gib)), with(half, at(0), asks(500*gib))}, func(s *Situation) { s.BudgetBytes = sample.Known(110 * gib) }, true},
		{"more than the budget, but it shrinks", []func(*Past){both(at(0), asks(500*gib)), with(half, at(0), asks(250*gib))}, func(s *Situation) { s.BudgetBytes = sample.Known(110 * gib) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := deaths(typed, c.past...)
			s.MaxAttempts = 20
			if c.set != nil {
				c.set(&s)
			}
			d := l.Next(s)
			if (d.Stop == StopNotMemory) != c.stop || (d.Act == "stop") != c.stop {
				t.Fatalf("%+v", d)
			}
			if c.stop && (d.Status75 || len(d.Advice) == 0 || l.WantsDrop(s)) {
				t.Errorf("not memory, and yet: %+v", d)
			}
		})
	}
}

// The example in the repository dies in its first step, at its limit of memory,
// twice, and fits at the third: the numbers of two real deaths.
func TestALadderThatIsAboutToFitGoesOn(t *testing.T) {
	t.Parallel()
	l := spark(t)
	python := func(p *Past) {
		p.Kind, p.Lever, p.Cause = "host-alloc", "address-limit", "address-limit"
		p.Step, p.RequestedBytes, p.Exception, p.Duration = 0, sample.Num{}, "MemoryError", 2*time.Second
	}
	s := deaths("seq_len=4096 micro_batch=8 accumulation=1", python)
	s.Drop = nil
	s.CanDrop = false
	var lengths []string
	for range 2 {
		d := l.Next(s)
		if d.Act != "retry" {
			t.Fatalf("after attempt %d: %+v", len(s.Past), d)
		}
		lengths = append(lengths, d.Knobs[job.SeqLen].Value)
		s = then(s, d)
	}
	if !slices.Equal(lengths, []string{"2048", "1024"}) {
		t.Errorf("lengths %q", lengths)
	}
}

func TestSettingBrokeIt(t *testing.T) {
	t.Parallel()
	l := spark(t)
	const typed = "seq_len=4096 micro_batch=8 accumulation=1"
	fails := func(step int64, exception string) func(*Past) {
		return func(p *Past) {
			p.Answer, p.Kind, p.Reason, p.Step, p.Exception = AnswerNotOOM, "", "exception", step, exception
		}
	}
	const typeError = "TypeError: truncation_max must be above 128, not 100"
	for _, c := range []struct {
		name string
		past []func(*Past)
		set  func(*Situation)
		stop string
		say  []string // in Why and Advice
	}{
		{
			"new exception at once",
			[]func(*Past){nil, with("seq_len=2048 micro_batch=8 accumulation=1", fails(0, typeError))},
			nil, StopSettingBroke,
			[]string{"length went 4096 -> 2048", typeError, "attempt 1: torch.OutOfMemoryError", "try length 3072, between 2048 and 4096: sparkrun -- python train.py --max_length 3072 --bs=8 --acc 1"},
		},
		{"a few steps beyond", []func(*Past){nil, with("seq_len=2048 micro_batch=8 accumulation=1", fails(43, typeError))}, nil, StopSettingBroke, nil},
		{"far beyond", []func(*Past){nil, with("seq_len=2048 micro_batch=8 accumulation=1", fails(44, typeError))}, nil, StopNotOOM, nil},
		{"micro-batch, with what else was turned", []func(*Past){nil, with("seq_len=1024 micro_batch=8 accumulation=3"), with("seq_len=1024 micro_batch=4 accumulation=6", fails(1, "AssertionError: groups of 6"))}, func(s *Situation) {
			s.Job.Knobs[job.Accumulation] = job.Setting{Value: "3", Source: job.FromArgv, Where: "--acc"}
			s.Job.Argv[6] = "3"
		}, StopSettingBroke, []string{"micro-batch went 8 -> 4, accumulation went 3 -> 6", "try micro-batch 6, between 4 and 8: sparkrun -- python train.py --max_length 1024 --bs=6 --acc 4"}},
		{
			"micro-batch with nothing between",
			[]func(*Past){nil, with("seq_len=4096 micro_batch=4 accumulation=2", fails(1, "AssertionError"))},
			nil, StopSettingBroke,
			[]string{"without that rung: sparkrun --deny shorter-packing -- python train.py"},
		},
		{"found out after a drop with the same settings", []func(*Past){
			nil, with("seq_len=4096 micro_batch=4 accumulation=2", func(p *Past) { p.Step = 0 }),
			with("seq_len=4096 micro_batch=4 accumulation=2", fails(1, "AssertionError"), func(p *Past) { p.Rungs = []string{"drop-caches"} }),
		}, nil, StopSettingBroke, []string{"--deny shorter-packing"}},
		{"told by --knob", []func(*Past){nil, with("seq_len=2048", fails(0, typeError))}, func(s *Situation) {
			s.Job.Argv = []string{"./train", "--len", "{seq_len}"}
			s.Job.Knobs = job.Knobs{job.SeqLen: {Value: "4096", Source: job.FromUser, Where: "{seq_len}"}, job.OutputDir: {Value: "my out", Source: job.FromUser}}
			s.Past[1].Knobs[job.OutputDir] = job.Setting{Value: "my out-a2"}
		}, StopSettingBroke, []string{"sparkrun --knob 'output_dir=my out' --knob seq_len=3072 -- ./train --len '{seq_len}'"}},
		{"in a config file", []func(*Past){nil, with("seq_len=2048", fails(0, typeError))}, func(s *Situation) {
			s.Job.Knobs = job.Knobs{job.SeqLen: {Value: "4096", Source: job.FromConfig, Where: "cfg.yaml:3"}}
		}, StopSettingBroke, []string{"try length 3072, between 2048 and 4096 (cfg.yaml:3)"}},
		{"the same exception as before", []func(*Past){
			func(p *Past) { p.Answer, p.Exception = AnswerUnsure, "ValueError: row 17 at 0x7f01ab" },
			with("seq_len=2048", fails(0, "ValueError: row 190 at 0x7f99cd")),
		}, nil, StopNotOOM, nil},
		{"the settings had carried it further", []func(*Past){nil, with("seq_len=2048"), with("seq_len=2048", fails(10, typeError))}, nil, StopOtherCause, []string{typeError}},
		{"the settings had not come as far", []func(*Past){nil, with("seq_len=2048", func(p *Past) { p.Step, p.Phase = 0, "load" }), with("seq_len=2048", fails(0, typeError))}, nil, StopSettingBroke, nil},
		{"nothing was changed", []func(*Past){nil, fails(5, typeError)}, nil, StopOtherCause, []string{"attempt 2 died of something else before it came to step 40", typeError, "torch.OutOfMemoryError"}},
		{"killed by somebody, earlier", []func(*Past){nil, with("seq_len=2048", fails(5, ""), func(p *Past) { p.Reason = "killed" })}, nil, StopOtherCause, []string{"killed"}},
		{"ended by the user", []func(*Past){nil, with("seq_len=2048", fails(5, typeError), func(p *Past) { p.Reason = "user" })}, nil, StopNotOOM, nil},
		{"the first attempt", []func(*Past){fails(5, typeError)}, nil, StopNotOOM, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := deaths(typed, c.past...)
			if c.set != nil {
				c.set(&s)
			}
			d := l.Next(s)
			if d.Act != "stop" || d.Stop != c.stop || d.Status75 || l.WantsDrop(s) {
				t.Fatalf("%+v", d)
			}
			said := d.Why + "\n" + strings.Join(d.Advice, "\n")
			for _, want := range c.say {
				if !strings.Contains(said, want) {
					t.Errorf("%q lacks %q", said, want)
				}
			}
			if c.stop == StopSettingBroke && d.Knobs[job.SeqLen].Value == s.Past[len(s.Past)-1].Knobs[job.SeqLen].Value && len(c.past) == 2 && c.name != "micro-batch with nothing between" {
				t.Errorf("not one notch back: %v", d.Knobs)
			}
		})
	}
}

func TestAFinishedTrainingIsNeverStartedAgain(t *testing.T) {
	t.Parallel()
	l := spark(t)
	for _, f := range []func(*Past){
		func(p *Past) { p.Finished = true },
		func(p *Past) { p.Finished, p.Answer = true, AnswerUnsure },
		func(p *Past) { p.Finished, p.Answer = true, AnswerNotOOM },
		func(p *Past) { p.Lever = "resume" },
	} {
		s := deaths("seq_len=4096", f)
		if d := l.Next(s); d.Stop != StopFinished || d.Status75 || len(d.Advice) == 0 || l.WantsDrop(s) {
			t.Errorf("%+v", d)
		}
	}
}

func TestTheSameSettingsAgain(t *testing.T) {
	t.Parallel()
	l := spark(t)
	unsure := func(p *Past) { p.Answer = AnswerUnsure }
	tenant := func(p *Past) { p.Kind, p.Lever, p.CoTenant = "co-tenant", "wait", "vllm" }
	message := func(p *Past) { p.Lever, p.Cause = "wait", "co-tenant" }
	for _, c := range []struct {
		name        string
		past        []func(*Past)
		again, stop string
		why         string
	}{
		{"unsure", []func(*Past){unsure}, AgainUnsure, "", ""},
		{"unsure twice, with another between", []func(*Past){unsure, with("seq_len=2048", func(p *Past) { p.Step = 50 }), unsure}, "", StopUnsureAgain, ""},
		{"co-tenant", []func(*Past){tenant}, AgainCoTenant, "", "another process (vllm) took the memory"},
		{"of unknown name", []func(*Past){func(p *Past) { p.Kind = "co-tenant" }}, AgainCoTenant, "", "another process took"},
		{"by a message", []func(*Past){message}, AgainCoTenant, "", ""},
		{"by a message, after the guard", []func(*Past){tenant, unsure, message}, AgainCoTenant, "", ""},
		{"three in a row", []func(*Past){tenant, tenant, tenant}, AgainCoTenant, "", ""},
		{"four in a row", []func(*Past){tenant, tenant, tenant, tenant}, "", StopCoTenant, "4 times in a row"},
		{"four, not in a row", []func(*Past){tenant, tenant, tenant, unsure, tenant}, AgainCoTenant, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := deaths("seq_len=4096", c.past...)
			d := l.Next(s)
			if d.Again != c.again || d.Stop != c.stop || !strings.Contains(d.Why, c.why) || len(d.Rungs)+len(d.Step) > 0 || l.WantsDrop(s) {
				t.Errorf("%+v", d)
			}
		})
	}
}

// A message that names other processes does not say that they grew: after one retry as
// it was, the job has to need less.
func TestACoTenantByMessageDoesNotHoldTheLadderUp(t *testing.T) {
	t.Parallel()
	l := spark(t)
	message := func(p *Past) { p.Lever, p.Cause, p.Duration = "wait", "co-tenant", time.Minute }
	s := deaths("seq_len=4096", message)
	d := l.Next(s)
	if d.Again != AgainCoTenant {
		t.Fatalf("%+v", d)
	}
	var got []string
	for range 3 {
		s = then(s, d)
		if d = l.Next(s); d.Act != "retry" {
			break
		}
		got = append(got, steps(d))
		if d.Again != "" {
			t.Errorf("not a rung: %+v", d)
		}
	}
	if !slices.Equal(got, []string{"seq_len 4096->2048", "seq_len 2048->1024"}) || d.Stop != StopUsedUp {
		t.Errorf("%q, then %+v", got, d)
	}
	// What the guard saw is waited for as before, whatever stood in front.
	s = deaths("seq_len=4096", message, message, func(p *Past) { p.Kind, p.Lever = "co-tenant", "wait" })
	if d := l.Next(s); d.Again != AgainCoTenant {
		t.Errorf("%+v", d)
	}
}

// The lever decides: no rung is spent on what none can help. One that is merely better
// elsewhere bars nothing.
func TestLevers(t *testing.T) {
	t.Parallel()
	l := spark(t)
	for _, c := range []struct {
		lever, kind, cause, knobs string
		advice                    string // empty: a rung is taken
	}{
		{"length", "cuda-allocator", "", "", ""},
		{"micro-batch", "cuda-allocator", "", "", ""},
		{"drop-caches", "cuda-allocator", "", "", ""},
		{"none", "guard", "", "", ""},
		{"address-limit", "host-alloc", "address-limit", "", ""},
		{"", "hang", "", "", ""},
		{"workers", "host-alloc", "", "", ""},
		{"workers", "host-alloc", "", "num_workers=0", ""},
		{"workers", "host-alloc", "", "num_workers=4", ""},
		{"workers", "cgroup-oom", "", "num_workers=4", ""},
		{"workers", "kernel-oom", "", "num_workers=4", ""},
		{"workers", "host-alloc", "worker", "", "fewer workers"},
		{"workers", "cgroup-oom", "worker", "num_workers=4", "fewer workers"},
		{"workers", "kernel-oom", "worker", "num_workers=4", ""},
		{"micro-batch", "cuda-allocator", "", "num_workers=4", ""},
		{"workers", "host-alloc", "fork", "", "vm.overcommit_memory"},
		{"shm", "shm", "", "", "--shm-size"},
		{"disk", "disk", "", "", "TMPDIR"},
		{"expandable-segments", "cuda-allocator", "fragmentation", "", ""},
		{"pin-memory", "cuda-driver", "pinned", "", ""},
		{"offload", "host-alloc", "offload", "", ""},
		{"map-count", "host-alloc", "", "", "max_map_count"},
		{"max-jobs", "kernel-oom", "build", "", "MAX_JOBS"},
		{"vllm-utilisation-up", "startup-check", "", "", "raise gpu_memory_utilization"},
		{"vllm-utilisation-down", "startup-check", "", "", "lower gpu_memory_utilization"},
		{"memory-growth", "tf-allocator", "", "", ""},
	} {
		s := deaths("seq_len=4096 "+c.knobs, func(p *Past) { p.Lever, p.Kind, p.Cause = c.lever, c.kind, c.cause })
		d := l.Next(s)
		switch {
		case c.advice == "":
			if d.Act != "retry" || steps(d) != "seq_len 4096->2048" {
				t.Errorf("%s/%s/%s: %+v", c.lever, c.kind, c.cause, d)
			}
		case d.Stop != StopNoLever || d.Status75 || !strings.Contains(strings.Join(d.Advice, " "), c.advice) || len(d.Notes) != 3 || l.WantsDrop(s):
			t.Errorf("%s/%s/%s: %+v", c.lever, c.kind, c.cause, d)
		}
	}
}

func TestPhases(t *testing.T) {
	t.Parallel()
	l := spark(t)
	const all = "seq_len=4096 micro_batch=8 accumulation=1 eval_batch=8 method=full lora_lr=1e-4 learning_rate=1e-5"
	for _, c := range []struct {
		name, phase string
		set         func(*Situation)
		steps, stop string
		advice      string
	}{
		{"evaluation", "eval", nil, "eval_batch 8->4", "", ""},
		{"evaluation at its end", "eval", func(s *Situation) { s.Job.Knobs[job.EvalBatch] = job.Setting{Value: "1"} }, "", StopNothingLeft, "fewer or shorter rows"},
		{"saving", "save", nil, "", StopNothingLeft, "save_only_model"},
		{"loading", "load", nil, "", StopNothingLeft, "low_cpu_mem_usage"},
		{"optimizer, first", "optimizer-init", nil, "seq_len 4096->2048", "", ""},
		{"optimizer, after a cut", "optimizer-init", func(s *Situation) {
			p := s.Past[0]
			p.Knobs = knobs("seq_len=2048 micro_batch=8 accumulation=1 eval_batch=8 method=full lora_lr=1e-4 learning_rate=1e-5")
			p.RequestedBytes = sample.Known(gib)
			s.Past = append(s.Past, p)
		}, "method full->lora, learning_rate 1e-5->1e-4", "", ""},
		{"optimizer, nothing left", "optimizer-init", func(s *Situation) {
			p := s.Past[0]
			p.Knobs = knobs("seq_len=2048 micro_batch=8 accumulation=1")
			p.RequestedBytes = sample.Known(gib)
			s.Past = append(s.Past, p)
		}, "", StopUsedUp, "8-bit"},
		{"nobody knows", "unknown", nil, "seq_len 4096->2048", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := deaths(all, func(p *Past) { p.Phase = c.phase })
			if c.set != nil {
				c.set(&s)
			}
			d := l.Next(s)
			if steps(d) != c.steps || d.Stop != c.stop || !strings.Contains(strings.Join(d.Advice, "\n"), c.advice) {
				t.Errorf("%+v", d)
			}
		})
	}
	// Nothing but free memory helps a load, so the drop gets its attempt.
	s := deaths(all, func(p *Past) { p.Phase = "load" })
	s.Drop.FreedKiB = 8 << 20
	if d := l.Next(s); d.Again != AgainDropped || !slices.Equal(d.Rungs, []string{"drop-caches"}) {
		t.Errorf("loading, after a drop: %+v", d)
	}
	// The batch had shrunk to nothing already.
	s = deaths("seq_len=4096 micro_batch=8 accumulation=1", func(p *Past) { p.Kind, p.Lever = "exhausted", "length" })
	if d := l.Next(s); steps(d) != "seq_len 4096->2048" {
		t.Errorf("exhausted: %+v", d)
	}
}

// After a freeze the next attempt has to need less, and one such retry is all.
func TestAfterAFreeze(t *testing.T) {
	t.Parallel()
	l := spark(t)
	lost := func(p *Past) { p.Lost, p.Duration = true, time.Minute }
	s := deaths("seq_len=4096", lost)
	s.Drop.FreedKiB = 50 << 20
	d := l.Next(s)
	if steps(d) != "seq_len 4096->2048" {
		t.Fatalf("%+v", d)
	}
	s = deaths("seq_len=4096", lost, with("seq_len=2048", lost, func(p *Past) { p.Step = 50 }))
	if d := l.Next(s); d.Stop != StopLostAgain || d.Status75 || l.WantsDrop(s) {
		t.Errorf("the second freeze: %+v", d)
	}
	// Nothing to turn: a bare drop is no answer to a freeze.
	s = deaths("", lost)
	s.Drop.FreedKiB = 50 << 20
	if d := l.Next(s); d.Act != "stop" {
		t.Errorf("nothing to turn: %+v", d)
	}
}

func TestContainersThatCanBeEnded(t *testing.T) {
	t.Parallel()
	l := spark(t)
	in := func(past ...func(*Past)) Situation {
		s := deaths("seq_len=4096", past...)
		s.Job.Container, s.ContainerEnds = &job.Container{Engine: "docker", Verb: "run"}, true
		s.Past[0].Duration = time.Minute
		return s
	}
	s := in(nil)
	s.Drop.FreedKiB = 8 << 20
	if d := l.Next(s); d.Again != AgainDropped || len(d.Changes) > 0 || !l.WantsDrop(s) {
		t.Errorf("after a drop: %+v", d)
	}
	if d := l.Next(in(func(p *Past) { p.Answer = AnswerUnsure })); d.Again != AgainUnsure {
		t.Errorf("unsure: %+v", d)
	}
	if d := l.Next(in(func(p *Past) { p.Kind = "co-tenant" })); d.Again != AgainCoTenant {
		t.Errorf("co-tenant: %+v", d)
	}
	if d := l.Next(in(nil)); steps(d) != "seq_len 4096->2048" {
		t.Errorf("settings inside a container: %+v", d)
	}
	s = in(func(p *Past) { p.Kind = "co-tenant" })
	s.ContainerEnds = false
	if d := l.Next(s); d.Stop != StopNoRungs {
		t.Errorf("it may still live: %+v", d)
	}
}

// Every word of the table is one that the code knows.
func TestTheTableSpeaksOfWhatThereIs(t *testing.T) {
	t.Parallel()
	var b builtIn
	if err := configs.BuiltIn("ladder.yaml", &b); err != nil {
		t.Fatal(err)
	}
	for _, table := range []map[string]helps{b.Phases, b.Kinds} {
		for name, h := range table {
			for _, a := range append(slices.Clone(h.Turns), h.Once...) {
				if !slices.Contains(actions, a) && a != evalBatch {
					t.Errorf("%s: no action is called %s", name, a)
				}
			}
			if h.Why == "" || h.Advice == "" {
				t.Errorf("%s lacks a reason or an advice", name)
			}
		}
	}
	for _, n := range b.NoRungLevers {
		if n.Lever == "" || n.Advice == "" {
			t.Errorf("an incomplete lever: %+v", n)
		}
	}
	if r := b.SameDeath; r.MinStep < 1 || r.CutsSameRequest < 1 || r.CutsLargerRequest < 1 || r.CutsUnknownRequest < 1 || r.MinRequestMiB <= 0 {
		t.Errorf("same_death: %+v", r)
	}
	if b.Again.Unsure != 1 || b.Again.CoTenant < 1 || b.Lost.Retries < 1 || len(b.CoTenant.Kinds) == 0 {
		t.Errorf("again %+v, lost %+v, co-tenant %+v", b.Again, b.Lost, b.CoTenant)
	}
}
