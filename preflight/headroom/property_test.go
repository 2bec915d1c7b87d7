package headroom

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"sparkrun/internal/modelsize"
)

// anySpec draws a training that could be.
func anySpec(t *rapid.T) Spec {
	s := Spec{
		Method:         rapid.SampledFrom([]Method{Full, LoRA, QLoRA}).Draw(t, "method"),
		WeightDType:    rapid.SampledFrom([]string{"", "bf16", "float32", "auto", "bf16-mixed"}).Draw(t, "dtype"),
		Optimizer:      rapid.SampledFrom([]string{"", "adamw_torch", "paged_adamw_8bit", "adafactor", "muon", "sgd", "lomo", "of-tomorrow"}).Draw(t, "optimizer"),
		Rank:           int64(rapid.IntRange(0, 256).Draw(t, "rank")),
		MicroBatch:     int64(rapid.IntRange(1, 64).Draw(t, "batch")),
		SeqLen:         int64(rapid.IntRange(1, 32768).Draw(t, "length")),
		GradCheckpoint: Switch(rapid.IntRange(0, 2).Draw(t, "checkpointing")),
		MixedPrecision: Switch(rapid.IntRange(0, 2).Draw(t, "mixed")),
		FusedLoss:      Switch(rapid.IntRange(0, 2).Draw(t, "fused")),
		Attention:      rapid.SampledFrom([]string{"", "eager", "sdpa", "flash_attention_2"}).Draw(t, "attention"),
		Objective:      rapid.SampledFrom([]string{"", "sft", "dpo", "orpo", "grpo"}).Draw(t, "objective"),
		Accumulation:   int64(rapid.IntRange(0, 16).Draw(t, "accumulation")),
	}
	if rapid.Bool().Draw(t, "targets") {
		s.Targets = rapid.SampledFrom([][]string{{"q_proj", "v_proj"}, {"all-linear"}, {"down_proj"}, {"x"}}).Draw(t, "which")
	}
	names := []string{"Qwen3-0.6B", "Qwen3-8B", "Mistral-7B", "Llama-70B", "Qwen3-30B-A3B", "DeepSeek-V2-Lite", "MoE-120B", "Dense-9B"}
	s.Model = models[rapid.SampledFrom(names).Draw(t, "model")]
	if rapid.Bool().Draw(t, "of a size") {
		s.Model = modelsize.Size{Params: rapid.Int64Range(1e6, 1e12).Draw(t, "params")}
	}
	return s
}

func peakOf(t *rapid.T, s Spec) Estimate {
	e, err := s.Estimate()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// More of anything never takes less.
func TestMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anySpec(t)
		small := peakOf(t, s)
		if small.Low > small.Peak || small.Peak > small.High || small.Peak < small.Steady || small.Weights < 0 || small.WeightsLeast > small.Weights {
			t.Fatalf("%+v", small)
		}
		var sum int64
		for _, term := range small.Terms {
			if term.Bytes < 0 || term.How == "" {
				t.Fatalf("%+v", term)
			}
			if !term.Loading {
				sum += term.Bytes
			}
		}
		if sum != small.Steady {
			t.Fatalf("the terms make %d, steady is %d", sum, small.Steady)
		}
		more := small.Spec // what was assumed is held
		more.Assumed = nil
		what := rapid.SampledFrom([]string{"length", "batch", "rank", "params", "all"}).Draw(t, "what")
		by := rapid.Int64Range(1, 5000).Draw(t, "by")
		if what == "length" || what == "all" {
			more.SeqLen += by
		}
		if what == "batch" || what == "all" {
			more.MicroBatch += by
		}
		if (what == "rank" || what == "all") && more.Method != Full {
			more.Rank += by
		}
		if (what == "params" || what == "all") && !more.Model.Arch.Known() && more.Model.Quantised == "" {
			more.Model.Params += by * rapid.SampledFrom([]int64{1, 1e4, 1e7}).Draw(t, "times")
		}
		large := peakOf(t, more)
		if large.Peak < small.Peak || large.High < small.High || large.Low < small.Low {
			t.Fatalf("%s: peak %d -> %d, low %d -> %d, high %d -> %d", what, small.Peak, large.Peak, small.Low, large.Low, small.High, large.High)
		}
	})
}

// A plan of what Fit finds is said to fit, and one of a step more is not.
func TestFit(t *testing.T) {
	t.Parallel()
	table, err := loadTable()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		s := anySpec(t)
		budget := rapid.Int64Range(-1, 400e9).Draw(t, "budget")
		all, err := Fit(s, budget)
		if err != nil || len(all) != 3 {
			t.Fatalf("%v, %v", all, err)
		}
		longest := s.Model.Arch.MaxPositions
		if longest == 0 {
			longest = table.Assume.MaxPositions
		}
		for _, f := range all {
			at := func(batch, length int64) (fits bool, peak int64) {
				own := s
				own.Method, own.MicroBatch, own.SeqLen = f.Method, batch, length
				e := peakOf(t, own)
				return Judge(e, budget).Verdict == Fits, e.Peak
			}
			if f.SeqLen > longest || f.SeqLen%table.Fit.Tokens != 0 || f.SeqLen < 0 {
				t.Fatalf("%+v, the model's longest row has %d", f, longest)
			}
			if fits, peak := at(f.AtBatch, f.SeqLen); f.SeqLen > 0 && (!fits || peak != f.PeakSeqLen) {
				t.Fatalf("%+v does not fit %d", f, budget)
			}
			next := f.SeqLen + table.Fit.Tokens
			if fits, _ := at(f.AtBatch, next); next <= longest && fits {
				t.Fatalf("%+v: %d tokens fit too", f, next)
			}
			if fits, peak := at(f.Batch, f.AtSeqLen); f.Batch > 0 && (!fits || peak != f.PeakBatch) {
				t.Fatalf("%+v does not fit %d", f, budget)
			}
			next = f.Batch + table.Fit.Rows
			if fits, _ := at(next, f.AtSeqLen); next <= table.Assume.MaxBatch && fits {
				t.Fatalf("%+v: %d rows fit too", f, next)
			}
			if (f.Why != "") != (f.SeqLen == 0 && f.Batch == 0) {
				t.Fatalf("%+v", f)
			}
		}
	})
}

// A recommendation is never worse than what it replaces, and its words stand for something.
func TestRecommendation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anySpec(t)
		budget := rapid.Int64Range(1e9, 400e9).Draw(t, "budget")
		r, err := FirstRung(s, budget)
		if err != nil || r.Words == "" || r.Peak <= 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		e := peakOf(t, s)
		switch r.Name {
		case "":
			if e.Peak > budget || len(r.Knobs) > 0 {
				t.Fatalf("%+v, and it takes %d of %d", r, e.Peak, budget)
			}
		case "smaller-model":
			if e.Peak <= budget && e.Impossible == "" {
				t.Fatalf("%+v, and it takes %d of %d", r, e.Peak, budget)
			}
		default:
			if len(r.Knobs) == 0 || r.Peak > budget {
				t.Fatalf("%+v does not fit %d", r, budget)
			}
		}
	})
}

// The sequences of colours; everything else of a chart is one column wide.
var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// No line is wider than the terminal, whatever that is, and every term is there.
func TestChart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := peakOf(t, anySpec(t))
		width := rapid.IntRange(-1, 200).Draw(t, "width")
		budget := rapid.Int64Range(-1, 400e9).Draw(t, "budget")
		plain, coloured := e.Chart(budget, width, false), e.Chart(budget, width, true)
		if colours.ReplaceAllString(coloured, "") != plain {
			t.Fatalf("colours change the text:\n%s\n%s", plain, coloured)
		}
		for line := range strings.Lines(plain) {
			if w := utf8.RuneCountInString(strings.TrimRight(line, "\n")); w > max(0, width) {
				t.Fatalf("%d columns of %d: %q", w, width, line)
			}
		}
		if width >= 60 {
			for _, term := range e.Terms {
				if !strings.Contains(plain, term.Name) {
					t.Fatalf("%s is missing:\n%s", term.Name, plain)
				}
			}
		}
	})
}

// The chart of one training, to be looked at.
func TestChartLooks(t *testing.T) {
	t.Parallel()
	e := mustEstimate(t, Spec{Model: models["Qwen3-8B"], Method: LoRA, WeightDType: "bf16", Optimizer: "adamw", Rank: 16, Targets: []string{"all"}, MicroBatch: 4, SeqLen: 2048, GradCheckpoint: On, Attention: "sdpa"})
	got := e.Chart(115e9, 72, false)
	t.Log("\n" + got)
	lines := strings.Split(strings.TrimRight(got, "\n"), "\n")
	bar := func(name string) int {
		for _, l := range lines {
			if strings.HasPrefix(l, name) {
				return strings.Count(l, "█")
			}
		}
		return -1
	}
	if bar("budget") <= bar("peak") || bar("peak") <= bar("logits") || bar("logits") <= bar("activations") || bar("weights") < 1 {
		t.Errorf("the bars do not go with the numbers:\n%s", got)
	}
}
