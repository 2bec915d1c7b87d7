package ladder

import (
	"strings"
	"testing"

	"sparkrun/internal/job"
)

// choose gives a knob the values that the command allows.
func choose(s *Situation, k job.Knob, values ...string) {
	set := s.Job.Knobs[k]
	set.Choices = values
	s.Job.Knobs[k] = set
}

// least gives a knob the smallest value that the trainer takes.
func least(s *Situation, k job.Knob, n int64, why string) {
	set := s.Job.Knobs[k]
	set.Min, set.MinWhy = n, why
	s.Job.Knobs[k] = set
}

func TestBatchAndLength(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, knobs string
		set         func(*Situation)
		steps, say  string // say stands in Why or in the notes
	}{
		{"planned steps", "seq_len=4096 micro_batch=8 accumulation=2 max_steps=500", nil, "seq_len 4096->2048", "(tokens per optimizer step at most 65536 -> 32768, planned steps 500 as before)"},
		{"planned steps of the trainer", "seq_len=4096 micro_batch=1 accumulation=8 packing=True", func(s *Situation) { s.Past[0].PlannedSteps = 300 }, "seq_len 4096->2048", "planned steps 300 -> about 600"},
		{"planned steps of rows as they are", "seq_len=4096 micro_batch=1 accumulation=8 packing=False", func(s *Situation) { s.Past[0].PlannedSteps = 300 }, "seq_len 4096->2048", "planned steps 300 as before"},
		{"planned steps, and nobody knows whether rows are packed", "seq_len=4096 micro_batch=1 accumulation=8", func(s *Situation) { s.Past[0].PlannedSteps = 300 }, "seq_len 4096->2048", "planned steps 300 -> unknown"},
		{"processes", "seq_len=1024 micro_batch=4 accumulation=2 max_steps=-1", func(s *Situation) { s.Job.Procs = 2 }, "micro_batch 4->2, accumulation 2->4", "(the effective batch stays 16, tokens per optimizer step at most 16384 as before, planned steps unknown, as many as before)"},
		{"packed, one row", "seq_len=4096 micro_batch=1 accumulation=8 packing=true", nil, "seq_len 4096->2048", "tokens per optimizer step 32768 -> 16384, planned steps unknown, about twice as many as before; --allow keep-tokens doubles accumulation with it"},
		{"packed, one row, tokens kept", "seq_len=4096 micro_batch=1 accumulation=8 packing=true", func(s *Situation) { s.Allow = map[string]bool{AllowKeepTokens: true} }, "seq_len 4096->2048, accumulation 8->16", "length 4096 -> 2048 with accumulation 8 -> 16 (tokens per optimizer step 32768 as before, planned steps unknown, as many as before)"},
		{"tokens cannot be kept", "seq_len=4096 micro_batch=1 accumulation=8 packing=true", func(s *Situation) {
			s.Allow = map[string]bool{AllowKeepTokens: true}
			choose(s, job.Accumulation, "4", "8")
		}, "seq_len 4096->2048", "tokens are not kept: the command does not take accumulation 16"},
		{"keep-tokens is for packed rows", "seq_len=4096 micro_batch=1 accumulation=8 packing=false", func(s *Situation) { s.Allow = map[string]bool{AllowKeepTokens: true} }, "seq_len 4096->2048", ""},
		{"keep-tokens is for one row", "seq_len=4096 micro_batch=2 accumulation=8 packing=true", func(s *Situation) { s.Allow = map[string]bool{AllowKeepTokens: true} }, "seq_len 4096->2048", ""},
		{"the job's floor", "seq_len=4096 micro_batch=2 accumulation=1", func(s *Situation) { s.Job.Floor = 3000 }, "micro_batch 2->1, accumulation 1->2", "half of it is below 3000"},
		{"short from the start", "seq_len=1024 micro_batch=2 accumulation=1", nil, "micro_batch 2->1, accumulation 1->2", "length 1024 is at its end"},
		{"no number", "seq_len=None micro_batch=2 accumulation=1", nil, "micro_batch 2->1, accumulation 1->2", "the length is None, which is no number that can be halved"},
		{"images", "seq_len=4096 micro_batch=2 accumulation=1", func(s *Situation) { s.Job.Image = true }, "micro_batch 2->1, accumulation 1->2", "their resolution is never touched"},
		{"shrinks by itself", "seq_len=1024 micro_batch=8 accumulation=1", func(s *Situation) { s.Job.SelfShrinks = "auto_find_batch_size" }, "", "not-applicable: the trainer makes its batch smaller by itself (auto_find_batch_size), and two ladders are never run at once"},
		{"shrinks by itself, length", "seq_len=4096 micro_batch=8 accumulation=1", func(s *Situation) { s.Job.SelfShrinks = "auto_find_batch_size" }, "seq_len 4096->2048", ""},

		{"allowed lengths", "seq_len=4096", func(s *Situation) { choose(s, job.SeqLen, "1024", "2048", "4096") }, "seq_len 4096->2048", ""},
		{"half is not allowed", "seq_len=3072 micro_batch=2 accumulation=1", func(s *Situation) { choose(s, job.SeqLen, "1024", "2048", "3072") }, "micro_batch 2->1, accumulation 1->2", "half of length 3072 is 1536, and the command takes only 1024, 2048, 3072"},
		{"allowed divisors", "micro_batch=12 accumulation=1", func(s *Situation) { choose(s, job.MicroBatch, "1", "4", "8", "12") }, "micro_batch 12->4, accumulation 1->3", ""},
		{"no divisor is allowed", "micro_batch=12 accumulation=1", func(s *Situation) { choose(s, job.MicroBatch, "5", "8", "12") }, "", "refused: the micro-batch 12 cannot be divided: the command takes only 5, 8, 12 for micro-batch"},
		{"rows must be two", "micro_batch=4 accumulation=1", func(s *Situation) { least(s, job.MicroBatch, 2, "rows are compared") }, "micro_batch 4->2, accumulation 1->2", ""},
		{"rows are two", "micro_batch=2 accumulation=1", func(s *Situation) { least(s, job.MicroBatch, 2, "rows are compared") }, "", "refused: the micro-batch 2 cannot be divided: its parts must be at least 2, since rows are compared"},
		{"rows must be two, a prime", "micro_batch=5 accumulation=1", func(s *Situation) { least(s, job.MicroBatch, 2, "rows are compared") }, "", "its parts must be at least 2, since rows are compared"},
		{"rows must be two, global", "micro_batch=2 global_batch=8", func(s *Situation) { s.Job.Family = "global"; least(s, job.MicroBatch, 2, "rows are compared") }, "", "its parts must be at least 2"},
		{"accumulation is not understood", "micro_batch=8", func(s *Situation) { s.Job.Unclear = map[job.Knob]string{job.Accumulation: "0x10 is no number"} }, "", "refused: the micro-batch is 8, and gradient accumulation is set but not understood (0x10 is no number)"},
		{"long rows are told", "seq_len=4096", func(s *Situation) { s.Job.LongRows = "are cut" }, "seq_len 4096->2048", "; rows longer than that are cut"},
		{"long rows are not told", "seq_len=4096", nil, "seq_len 4096->2048", "what becomes of longer rows is the script's affair"},
		{"accumulation has choices", "micro_batch=8 accumulation=1", func(s *Situation) { choose(s, job.Accumulation, "1", "4", "8") }, "micro_batch 8->2, accumulation 1->4", ""},
		{"accumulation has only one", "micro_batch=8 accumulation=1", func(s *Situation) { choose(s, job.Accumulation, "1") }, "", "the micro-batch 8 cannot be divided: the command takes only 1 for accumulation"},
		{"a batch that nobody has", "micro_batch=4611686018427387904 accumulation=1", nil, "", "no number that can be made smaller"},
		{"accumulation is at its end", "micro_batch=2 accumulation=2147483648", nil, "", "too large to be raised"},

		{"global family", "micro_batch=8 global_batch=64 accumulation=8", func(s *Situation) { s.Job.Family = "global" }, "micro_batch 8->4", "the effective batch stays 64"},
		{"global family, by processes", "micro_batch=6 global_batch=24", func(s *Situation) { s.Job.Family, s.Job.Procs = "global", 4 }, "micro_batch 6->3", ""},
		{"global family, uneven", "micro_batch=6 global_batch=28", func(s *Situation) { s.Job.Family, s.Job.Procs = "global", 4 }, "micro_batch 6->2", ""},
		{"global family, models shared", "micro_batch=2 global_batch=2", func(s *Situation) { s.Job.Family, s.Job.Procs = "global", 4 }, "micro_batch 2->1", ""},
		{"global family, worked out by the trainer", "micro_batch=8 global_batch=-1", func(s *Situation) { s.Job.Family = "global" }, "micro_batch 8->4", "the trainer keeps its global batch, -1"},
		{"global family, not told", "micro_batch=8", func(s *Situation) { s.Job.Family = "global" }, "micro_batch 8->4", "(the trainer keeps its global batch; planned"},
		{"per device, with a sum beside it", "micro_batch=8 accumulation=2 global_batch=16", func(s *Situation) { s.Job.Family = "per-device" }, "micro_batch 8->4, accumulation 2->4", "the effective batch stays 16"},
		{"per device, only the sum", "micro_batch=8 global_batch=16", func(s *Situation) { s.Job.Family = "per-device" }, "micro_batch 8->4", "the effective batch stays 16"},
		{"a global batch of tokens", "seq_len=2048 micro_batch=32 global_batch=524288", func(s *Situation) { s.Job.Family = "global" }, "seq_len 2048->1024", "length 2048 -> 1024 (planned steps unknown)"},

		{"no accumulation", "micro_batch=8", nil, "", "refused: the micro-batch is 8, but no gradient accumulation setting is known, so a smaller one would change the effective batch (--allow smaller-batch"},
		{"no accumulation, allowed", "seq_len=1024 micro_batch=8", func(s *Situation) { s.Allow = map[string]bool{AllowSmallerBatch: true} }, "micro_batch 8->4", "the effective batch falls from 8 to 4, allowed by --allow smaller-batch, tokens per optimizer step at most 8192 -> 4096, planned steps unknown, 2 times as many as before"},
		{"no accumulation, allowed and exact", "micro_batch=8", func(s *Situation) {
			s.Allow, s.Exact = map[string]bool{AllowSmallerBatch: true}, true
		}, "", "--exact: without a gradient accumulation setting"},
		{"evaluation has choices", "eval_batch=12", func(s *Situation) { s.Past[0].Phase = "eval"; choose(s, job.EvalBatch, "1", "3", "12") }, "eval_batch 12->3", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := died(c.knobs)
			if c.set != nil {
				c.set(&s)
			}
			d := spark(t).Next(s)
			if steps(d) != c.steps {
				t.Errorf("%s: %s\n%s", steps(d), d.Why, notes(d))
			}
			if said := d.Why + "\n" + notes(d); !strings.Contains(said, c.say) {
				t.Errorf("%q lacks %q", said, c.say)
			}
		})
	}
}

func TestProperDivisors(t *testing.T) {
	t.Parallel()
	for n := int64(1); n < 400; n++ {
		var want []int64
		for d := n - 1; d > 0; d-- {
			if n%d == 0 {
				want = append(want, d)
			}
		}
		got := properDivisors(n)
		if len(got) != len(want) {
			t.Fatalf("%d: %v", n, got)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%d: %v", n, got)
			}
		}
	}
}
