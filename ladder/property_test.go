package ladder

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// walk runs a ladder against deaths drawn at random until it stops, and gives
// every decision to see.
func walk(t *rapid.T, l Ladder, see func(s Situation, d Decision)) {
	jobKnobs := job.Knobs{}
	number := func(k job.Knob, most int) {
		if rapid.Bool().Draw(t, string(k)+" known") {
			s := strconv.Itoa(rapid.IntRange(1, most).Draw(t, string(k)))
			jobKnobs[k] = job.Setting{Value: s}
		}
	}
	number(job.SeqLen, 40000)
	number(job.MicroBatch, 200)
	number(job.Accumulation, 64)
	number(job.EvalBatch, 64)
	if m := rapid.SampledFrom([]string{"", "full", "lora", "qlora"}).Draw(t, "method"); m != "" {
		jobKnobs[job.Method] = job.Setting{Value: m}
	}
	if rapid.Bool().Draw(t, "rate") {
		jobKnobs[job.LoRALR] = job.Setting{Value: "1e-4"}
	}
	s := Situation{
		Job:         job.Job{Argv: []string{"x"}, Knobs: jobKnobs},
		MaxAttempts: rapid.IntRange(1, 40).Draw(t, "most attempts"),
		Exact:       rapid.Bool().Draw(t, "exact"),
		CanDrop:     rapid.Bool().Draw(t, "can drop"),
		CanResume:   rapid.Bool().Draw(t, "can resume"),
	}
	if rapid.IntRange(0, 9).Draw(t, "container") == 0 {
		s.Job.Container, s.ContainerEnds = &job.Container{Engine: "docker"}, rapid.Bool().Draw(t, "ends")
	}
	number(job.NumWorkers, 2)
	if rapid.Bool().Draw(t, "size known") {
		s.ModelParams, s.BudgetBytes = sample.Known(8e9), sample.Known(rapid.Float64Range(1e9, 3e10).Draw(t, "budget"))
	}
	d := Decision{Knobs: jobKnobs}
	for n := 1; n <= 41; n++ {
		p := Past{
			Attempt: n, Rungs: d.Rungs, Knobs: d.Knobs,
			Answer:     rapid.SampledFrom([]string{AnswerOOM, AnswerOOM, AnswerOOM, AnswerOOM, AnswerOOM, AnswerOOM, AnswerUnsure, AnswerNotOOM}).Draw(t, "answer"),
			Kind:       rapid.SampledFrom([]string{"cuda-allocator", "kernel-oom", "host-alloc", "cuda-allocator", "co-tenant", "exhausted", "shm"}).Draw(t, "kind"),
			Phase:      rapid.SampledFrom([]string{"train", "train", "train", "eval", "load", "save", "optimizer-init", "unknown"}).Draw(t, "phase"),
			Lever:      rapid.SampledFrom([]string{"", "micro-batch", "micro-batch", "workers", "workers", "wait", "wait", "disk", "pin-memory"}).Draw(t, "lever"),
			Cause:      rapid.SampledFrom([]string{"", "", "worker", "fork"}).Draw(t, "cause"),
			Duration:   time.Duration(rapid.IntRange(0, 60).Draw(t, "minutes")) * time.Minute,
			Progressed: rapid.Bool().Draw(t, "progressed"),
			Finished:   rapid.IntRange(0, 19).Draw(t, "finished") == 0,
			Lost:       rapid.IntRange(0, 9).Draw(t, "lost") == 0,
			Step:       rapid.Int64Range(0, 6).Draw(t, "step"),
			Exception:  rapid.SampledFrom([]string{"", "MemoryError", "TypeError: x"}).Draw(t, "exception"),
		}
		if rapid.Bool().Draw(t, "sizes known") {
			p.PeakKiB, p.RequestedBytes = sample.Known(1e8), sample.Known(float64(rapid.IntRange(1, 3).Draw(t, "GiB"))*gib)
		}
		s.Past = append(s.Past, p)
		s.Drop = nil
		if l.WantsDrop(s) {
			s.Drop = &Drop{Done: rapid.Bool().Draw(t, "dropped"), How: "system", FreedKiB: rapid.Int64Range(0, 20<<20).Draw(t, "freed")}
		}
		d = l.Next(s)
		see(s, d)
		if d.Act == "stop" {
			return
		}
		if len(s.Past) >= s.MaxAttempts {
			t.Fatalf("attempt %d of at most %d", len(s.Past)+1, s.MaxAttempts)
		}
	}
	t.Fatal("the ladder does not end")
}

func value(k job.Knobs, name job.Knob) int64 {
	n, err := strconv.ParseInt(k[name].Value, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func TestLadderDescendsAndEnds(t *testing.T) {
	for _, name := range []string{"spark", "preserving"} {
		l := named(t, name)
		rapid.Check(t, func(t *rapid.T) {
			walk(t, l, func(s Situation, d Decision) {
				now := s.Past[len(s.Past)-1].Knobs
				if d.Why == "" {
					t.Fatal("a decision without a reason")
				}
				if d.Act == "stop" {
					if d.Status75 && slices.ContainsFunc(s.Past, func(p Past) bool { return p.Answer != AnswerOOM }) {
						t.Fatal("75 although not every attempt was out of memory")
					}
					return
				}
				for _, k := range []job.Knob{job.SeqLen, job.MicroBatch, job.EvalBatch} {
					if value(d.Knobs, k) > value(now, k) {
						t.Fatalf("%s rises from %d to %d", k, value(now, k), value(d.Knobs, k))
					}
				}
				if value(d.Knobs, job.SeqLen) < 1024 && value(d.Knobs, job.SeqLen) < value(now, job.SeqLen) {
					t.Fatalf("length cut to %d", value(d.Knobs, job.SeqLen))
				}
				if value(d.Knobs, job.MicroBatch)*value(d.Knobs, job.Accumulation) != value(s.Job.Knobs, job.MicroBatch)*value(s.Job.Knobs, job.Accumulation) {
					t.Fatalf("the effective batch changed: %v -> %v", s.Job.Knobs, d.Knobs)
				}
				if s.Exact && (value(d.Knobs, job.SeqLen) != value(s.Job.Knobs, job.SeqLen) || d.Knobs[job.Method] != s.Job.Knobs[job.Method]) {
					t.Fatal("--exact changed the experiment")
				}
				// The changes lead from the job to the settings in force.
				k := s.Job.Knobs.Clone()
				for _, c := range d.Changes {
					if k[c.Knob].Value != c.From || c.From == c.To {
						t.Fatalf("change %+v does not start at %v", c, k[c.Knob])
					}
					k[c.Knob] = job.Setting{Value: c.To}
				}
				for _, name := range turned {
					if k[name].Value != d.Knobs[name].Value {
						t.Fatalf("changes %v do not lead to %v", d.Changes, d.Knobs)
					}
				}
			})
		})
	}
}

func TestSparkOrderIsNeverSkipped(t *testing.T) {
	l := named(t, "spark")
	rapid.Check(t, func(t *rapid.T) {
		walk(t, l, func(s Situation, d Decision) {
			if d.Act == "stop" || len(d.Step) == 0 {
				return
			}
			now := s.Past[len(s.Past)-1].Knobs
			last := d.Rungs[len(d.Rungs)-1]
			order := l.RungNames()
			at := slices.Index(order, last)
			for _, r := range order[:at] {
				if !slices.Contains(d.Rungs, r) && !slices.ContainsFunc(d.Notes, func(n Note) bool { return n.Rung == r && n.Why != "" }) {
					t.Fatalf("rung %s was skipped without a word on the way to %s", r, last)
				}
			}
			// Batch never before the length has come to its end.
			if value(d.Knobs, job.MicroBatch) < value(now, job.MicroBatch) && !s.Exact {
				length, halved := value(s.Job.Knobs, job.SeqLen), 0
				for n := value(now, job.SeqLen); length > n; length /= 2 {
					halved++
				}
				if n := value(now, job.SeqLen); n/2 >= 1024 && halved < 2 {
					t.Fatalf("the batch is cut while the length is still %d (halved %d times)", n, halved)
				}
			}
			p := s.Past[len(s.Past)-1]
			batchHelps := p.Kind != "exhausted" && p.Phase != "optimizer-init"
			if batchHelps && d.Knobs[job.Method] != now[job.Method] && value(now, job.MicroBatch) > 1 && value(now, job.Accumulation) > 0 {
				t.Fatal("the method changes while the batch could still be split")
			}
		})
	})
}

// What must never be tried again is not, and the same settings are tried again no
// more often than the table says.
func TestRetryLimits(t *testing.T) {
	for _, name := range []string{"spark", "preserving"} {
		l := named(t, name)
		rapid.Check(t, func(t *rapid.T) {
			unsure, tenants, drops, progressed, lost := 0, 0, 0, 0, 0
			walk(t, l, func(s Situation, d Decision) {
				p := s.Past[len(s.Past)-1]
				if p.Progressed {
					progressed++
				}
				if (d.Act == "stop") == (d.Stop == "") {
					t.Fatalf("%s with the word %q", d.Act, d.Stop)
				}
				if p.Finished && d.Act != "stop" {
					t.Fatal("a finished training is started again")
				}
				if p.Answer == AnswerNotOOM && (d.Act != "stop" || d.Status75) {
					t.Fatal("a death for another reason is tried again, or called a lack of memory")
				}
				if d.Act == "stop" {
					return
				}
				if s.Job.Container != nil && (!s.ContainerEnds || len(d.Changes) > 0) {
					t.Fatal("a container that may still live, or settings inside one that changed")
				}
				if len(changed(p.Knobs, d.Knobs)) != len(d.Step) {
					t.Fatalf("step %v leads from %v to %v", d.Step, p.Knobs, d.Knobs)
				}
				if len(d.Step) > 0 {
					if d.Again != "" {
						t.Fatal("a step down that calls itself the same again")
					}
					byData := p.Lever == "workers" && (p.Cause == "fork" || p.Cause == "worker" && p.Kind == "host-alloc")
					if p.Answer != AnswerOOM || p.Kind == "co-tenant" || p.Kind == "shm" || p.Lever == "disk" || byData {
						t.Fatalf("a rung is spent on %+v", p)
					}
					if p.Lever == "wait" && (len(s.Past) < 2 || !l.coTenant(s.Past[len(s.Past)-2])) {
						t.Fatal("a rung is spent where another process was named for the first time")
					}
					for _, c := range d.Step {
						eval := p.Phase == "eval"
						if eval != (c.Knob == job.EvalBatch) || p.Phase == "save" || p.Phase == "load" {
							t.Fatalf("%s is turned after a death in %s", c.Knob, p.Phase)
						}
					}
					tenants = 0
					if p.Lost {
						lost++
					}
				} else if p.Lost && d.Again == AgainDropped {
					t.Fatal("a bare drop after a freeze")
				}
				switch d.Again {
				case AgainUnsure:
					unsure++
				case AgainCoTenant:
					tenants++
				case AgainDropped:
					drops++
				default:
					if len(d.Step) == 0 {
						t.Fatal("the same settings again, without a reason")
					}
				}
				if d.Again != AgainCoTenant {
					tenants = 0
				}
				if unsure > 1 || tenants > 3 || drops > 1+progressed || lost > 1 {
					t.Fatalf("again: unsure %d, co-tenant %d in a row, drops %d (progress %d), freezes %d", unsure, tenants, drops, progressed, lost)
				}
			})
		})
	}
}
