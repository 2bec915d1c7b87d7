package headroom

import (
	"strings"
	"testing"
)

// Words that a user types for a plan are known or refused with the list.
func TestWordsOfFlags(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		check func(string) error
		good  []string
		list  string
	}{
		"optimizer": {CheckOptimizer, []string{"adamw_torch_fused", "paged-adamw-8bit", "Adafactor", "muon", "sgd", "ademamix"}, "adafactor, muon"},
		"attention": {CheckAttention, []string{"eager", "sdpa", "flash_attention_2", "fa2", "FlashAttention3", "xformers", "disabled"}, "eager"},
		"dtype":     {CheckDType, []string{"bf16", "torch.bfloat16", "fp16", "float32", "bf16-mixed"}, "bf16, fp16, fp32"},
	} {
		for _, word := range c.good {
			if err := c.check(word); err != nil {
				t.Errorf("%s %s: %v", name, word, err)
			}
		}
		for _, word := range []string{"nonsense", "auto"} {
			if err := c.check(word); err == nil || !strings.Contains(err.Error(), `"`+word+`"`) || !strings.Contains(err.Error(), c.list) {
				t.Errorf("%s %s: %v", name, word, err)
			}
		}
	}
}

// The step is the first that fits; a plan that fits, if barely, is not sent to another
// experiment; none is none.
func TestPick(t *testing.T) {
	t.Parallel()
	with := func(length int64) Spec {
		return Spec{Model: models["Qwen3-8B"], Method: LoRA, MicroBatch: 4, SeqLen: length, GradCheckpoint: On}
	}
	now := mustEstimate(t, with(8192))
	small := mustEstimate(t, with(1024))
	for _, c := range []struct {
		name   string
		budget int64
		steps  []Candidate
		want   int
	}{
		{"the second fits", small.High + Margin(small.High) + 1e9, []Candidate{{with(4096), false}, {with(1024), false}, {with(512), false}}, 1},
		{"another experiment, where nothing else is enough", small.High + Margin(small.High) + 1e9, []Candidate{{with(4096), false}, {with(1024), true}}, 1},
		{"no other experiment for what fits barely", now.Peak + 1e8, []Candidate{{with(1024), true}}, -1},
		{"none", small.Peak / 2, []Candidate{{with(4096), false}, {with(1024), false}}, -1},
		{"no steps", small.Peak / 2, nil, -1},
	} {
		at, peak, err := Pick(now, c.budget, c.steps)
		if err != nil || at != c.want || (peak > 0) != (at >= 0) {
			t.Errorf("%s: %d, %d, %v", c.name, at, peak, err)
		}
	}
}
