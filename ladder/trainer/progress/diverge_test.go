package progress

import (
	"strings"
	"testing"
	"time"

	"sparkrun/internal/sample"
)

func TestDivergence(t *testing.T) {
	t.Parallel()
	// Each case is lines of a trainer; want is the kinds found and the steps they
	// began at.
	hf := Options{Set: "hf", Trusted: true}
	cases := []struct {
		name, want string
		o          Options
		lines      []string
	}{
		{
			name: "three losses in a row that are no numbers", want: "loss-not-finite@2!", o: hf,
			lines: []string{"{'loss': 2.0}", "{'loss': nan}", "{'loss': 'inf'}", "{'loss': 'nan'}", "{'loss': 'nan'}", "{'loss': 'nan'}"},
		},
		{
			name: "one that the scaling of float16 skips", want: "", o: hf,
			lines: []string{"{'loss': 2.0}", "{'loss': nan}", "{'loss': 2.0}", "{'loss': nan}", "{'loss': nan}", "{'loss': 2.0}", "{'loss': nan}"},
		},
		{
			name: "exactly 0 from the start: every label is masked", want: "loss-zero@1!", o: hf,
			lines: []string{"{'loss': 0.0, 'grad_norm': 0.0}", "{'loss': '0', 'grad_norm': '0'}", "{'loss': 0.0, 'grad_norm': 0.0}", "{'loss': 0.0}"},
		},
		{
			name: "exactly 0 out of the blue", want: "loss-zero@3!", o: hf,
			lines: []string{"{'loss': 1.4}", "{'loss': 1.3}", "{'loss': 0.0}", "{'loss': 0.0}", "{'loss': 0.0}"},
		},
		{
			name: "a small loss that is rounded", want: "", o: hf,
			lines: []string{"{'loss': 0.01}", "{'loss': 0.0003}", "{'loss': 0.0}", "{'loss': 0.0}", "{'loss': 0.0}", "{'loss': 0.0}"},
		},
		{
			name: "reinforcement learning begins at 0", want: "", o: hf,
			lines: []string{"{'loss': 0.0, 'reward': 0.1}", "{'loss': 0.0, 'reward': 0.1}", "{'loss': 0.0, 'reward': 0.2}", "{'loss': 0.0, 'reward': 0.3}"},
		},
		{
			name: "a gradient norm beside a finite loss", want: "grad-norm-not-finite@2", o: hf,
			lines: []string{"{'loss': 1.4, 'grad_norm': 2}", "{'loss': 1.3, 'grad_norm': nan}", "{'loss': 1.3, 'grad_norm': 'inf'}", "{'loss': 1.3, 'grad_norm': nan}", "{'loss': 1.3, 'grad_norm': nan}"},
		},
		{
			name: "the note first, then the divergence", want: "grad-norm-not-finite@1 loss-not-finite@4!", o: hf,
			lines: []string{"{'loss': 1.4, 'grad_norm': nan}", "{'loss': 1.3, 'grad_norm': nan}", "{'loss': 1.3, 'grad_norm': nan}", "{'loss': nan, 'grad_norm': nan}", "{'loss': nan}", "{'loss': nan}"},
		},
		{
			name: "one step drawn ten times is one", want: "loss-not-finite@1!", o: Options{Set: "kohya", Trusted: true},
			lines: append(slicesRepeat("steps:   1%| | 1/80 [00:02<02:18,  2.16s/it, avr_loss=nan]", 10), "steps:   1%| | 2/80 [00:04<02:18,  2.16s/it, avr_loss=nan]",
				"steps:   1%| | 3/80 [00:06<02:18,  2.16s/it, avr_loss=nan]"),
		},
		{
			name: "the same step drawn ten times and no more", want: "", o: Options{Set: "kohya", Trusted: true},
			lines: slicesRepeat("steps:   1%| | 1/80 [00:02<02:18,  2.16s/it, avr_loss=nan]", 10),
		},
		{
			name: "evaluations in between change nothing", want: "loss-not-finite@1!", o: hf,
			lines: []string{"{'loss': nan}", "{'eval_loss': 1.2}", "{'loss': nan}", "{'eval_loss': 'nan'}", "{'eval_loss': 'nan'}", "{'loss': nan}"},
		},
		{
			name: "losses of evaluations alone", want: "", o: hf,
			lines: []string{"{'loss': 1}", "{'eval_loss': 'nan'}", "{'eval_loss': 'nan'}", "{'eval_loss': 'nan'}"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, d := New(c.o), Divergence{}
			var got []string
			at := time.Now()
			for _, line := range c.lines {
				at = at.Add(time.Second)
				st, ok := p.Line(line, at)
				if !ok {
					t.Fatalf("not read: %s", line)
				}
				f, found := d.Feed(st)
				if !found {
					continue
				}
				mark := ""
				if f.Diverged {
					mark = "!"
				}
				if f.Diverged != (len(f.Causes) == 3) || !strings.Contains(f.Why, "3 logged steps") {
					t.Errorf("%+v", f)
				}
				got = append(got, f.Kind+"@"+num(f.N)+mark)
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("found %q, want %q", s, c.want)
			}
		})
	}
}

func num(n int64) string { return strings.TrimSpace(sample.Known(float64(n)).CSV(0)) }

func slicesRepeat(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

// TestCauses: in the runbook's order, each with what this run's settings say of it.
func TestCauses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		facts Facts
		want  [3]string
	}{
		{Facts{}, [3]string{"train in bf16", "with warm-up", "without packing"}},
		{
			Facts{DType: "torch.float16", Method: "full", LearningRate: "2e-4", Packing: "True"},
			[3]string{"(this run trains in torch.float16: look here first)", "(this run: 2e-4 for full, which is high)", "(this run packs)"},
		},
		{
			Facts{DType: "bfloat16", Method: "qlora", LearningRate: "2e-4", Packing: "false"},
			[3]string{"(this run trains in bfloat16: not this)", "(this run: 2e-4 for qlora)", "(this run does not pack: look at the labels)"},
		},
		{Facts{DType: "auto", Method: "lora", LearningRate: "1e-4"}, [3]string{"train in bf16", "(this run: 1e-4 for lora)", "without packing"}},
		{Facts{DType: "bf16", Method: "unknown", LearningRate: "some"}, [3]string{"not this)", "with warm-up", "without packing"}},
	} {
		d := Divergence{Facts: c.facts}
		var f Finding
		for n := range int64(3) {
			f, _ = d.Feed(Step{N: n, LossN: n, NonFinite: true})
		}
		if len(f.Causes) != 3 {
			t.Fatalf("%+v: %+v", c.facts, f)
		}
		for i, words := range []string{"1. float16", "2. a learning rate", "3. packing"} {
			if !strings.HasPrefix(f.Causes[i], words) || !strings.HasSuffix(f.Causes[i], c.want[i]) {
				t.Errorf("%+v: cause %d is %q, want %q ... %q", c.facts, i, f.Causes[i], words, c.want[i])
			}
		}
	}
}
