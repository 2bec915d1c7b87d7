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
	if rapid.Bool().Draw(t, "size known") {
		s.ModelParams, s.BudgetBytes = sample.Known(8e9), sample.Known(rapid.Float64Range(1e9, 3e10).Draw(t, "budget"))
	}
	d := Decision{Knobs: jobKnobs}
	for n := 1; n <= 41; n++ {
		s.Past = append(s.Past, Past{
			Attempt: n, Rungs: d.Rungs, Knobs: d.Knobs,
			Answer:     rapid.SampledFrom([]string{AnswerOOM, AnswerOOM, AnswerOOM, AnswerOOM, AnswerUnsure}).Draw(t, "answer"),
			Kind:       rapid.SampledFrom([]string{"cuda-allocator", "kernel", "co-tenant"}).Draw(t, "kind"),
			Phase:      rapid.SampledFrom([]string{"train", "train", "train", "eval", "load", "unknown"}).Draw(t, "phase"),
			Duration:   time.Duration(rapid.IntRange(0, 60).Draw(t, "minutes")) * time.Minute,
			Progressed: rapid.Bool().Draw(t, "progressed"),
		})
		s.Drop = nil
		if l.WantsDrop(s) {
			s.Drop = &Drop{Done: rapid.Bool().Draw(t, "dropped"), How: "system", FreedKiB: rapid.Int64Range(0, 20<<20).Draw(t, "freed")}
		}
		d = l.Next(s)
		see(s, d)
		if d.Act == "stop" {
			return
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
			if d.Knobs[job.Method] != now[job.Method] && value(now, job.MicroBatch) > 1 && value(now, job.Accumulation) > 0 {
				t.Fatal("the method changes while the batch could still be split")
			}
		})
	})
}
