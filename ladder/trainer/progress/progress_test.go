package progress

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// play feeds lines one second apart and returns what they said, one line each.
func play(t *testing.T, p *Progress, text string) string {
	t.Helper()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var b strings.Builder
	for _, line := range strings.Split(text, "\n") {
		at = at.Add(time.Second)
		if st, ok := p.Line(line, at); ok {
			check(t, st)
			b.WriteString(show(st) + "\n")
		}
	}
	return b.String()
}

func TestLines(t *testing.T) {
	t.Parallel()
	hf := Options{Set: "hf", Trusted: true}
	cases := []struct {
		name       string
		o          Options
		text, want string
	}{
		{
			name: "a header, a bar of an evaluation, the end", o: Options{Set: "hf", Trusted: true, PerLog: 10},
			text: `[INFO|trainer.py:2104] 2026-01-01 10:00:00,000 >>   Total optimization steps = 1,028
  0%|          | 0/1028 [00:00<?, ?it/s]
  1%|          | 7/1028 [00:42<01:46,  5.06s/it]
{'loss': 1.2364, 'grad_norm': 22.58, 'learning_rate': 4.0e-06, 'epoch': 1.07}
  1%|          | 8/1028 [00:46<01:38,  4.92s/it]
Saving model checkpoint to out/checkpoint-8
 50%|█████     | 5/10 [00:01<00:01,  5.00it/s]
{'eval_loss': 1.5, 'eval_runtime': 8.0, 'epoch': 1.1}
  1%|          | 8/1028 [00:55<01:38,  4.92s/it]
  1%|          | 9/1028 [00:59<01:38,  4.92s/it]
{'train_runtime': 485.3, 'train_loss': 6.095, 'epoch': 3.0}
`,
			want: `0/1028
0/1028 bar
7/1028+ bar t=5.06
7/1028 loss=1.2364 lr=4e-06 grad=22.58
8/1028+ bar t=2
8/1028 saving out/checkpoint-8
8/1028 eval
8/1028 bar
9/1028+ bar
9/1028 finished
`,
		},
		{
			name: "glued drawings, glued dicts, returns inside a line", o: hf,
			text: "  5%|▌| 1/20 [00:01<00:19,  1.00s/it] 10%|█| 2/20 [00:02<00:18,  1.00s/it]{'loss': '1.5', 'epoch': '0.1'}\n" +
				" 15%|█| 3/20 [00:03<00:17,  1.00s/it]\r 20%|██| 4/20 [00:04<00:16,  1.00s/it]\r{'loss': '1.25', 'epoch': '0.2'}",
			want: "2/20+ bar loss=1.5 t=1\n4/20+ bar loss=1.25 t=1\n",
		},
		{
			name: "prefixes of launchers, colours", o: hf,
			text: "[rank0]:  5%|▌| 1/20 [00:01<00:19,  1.00s/it]\n" +
				"[default0]: 10%|█| 2/20 [00:02<00:18,  1.00s/it]\n" +
				"(RayTrainWorker pid=77, ip=10.0.0.1)  15%|█| 3/20 [00:03<00:17,  1.00s/it]\n" +
				"\x1b[32mtrainer-1  | \x1b[0m 20%|██| 4/20 [00:04<00:16,  1.00s/it]\n" +
				"2026-03-04 10:00:00,123 INFO:  25%|██| 5/20 [00:05<00:15,  1.00s/it]\n" +
				"[rank0]:{'loss': \x1b[31m'1.5'\x1b[0m, 'epoch': '0.2'}\n",
			want: "1/20+ bar t=1\n2/20+ bar t=1\n3/20+ bar t=1\n4/20+ bar t=1\n5/20+ bar t=1\n5/20 loss=1.5\n",
		},
		{
			name: "a bar that is not the training's comes first, in a script of unknown make", o: Options{},
			text: ` 50%|█████     | 2/4 [00:00<00:00,  1.00it/s]
100%|██████████| 4/4 [00:00<00:00,  1.00it/s]
 10%|█         | 1/10 [00:01<00:09,  1.00s/it]
{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1}
 20%|██        | 2/10 [00:02<00:08,  1.00s/it]
`,
			want: "1/10+ bar loss=2.5 lr=5e-05 t=1\n2/10+ bar t=1\n",
		},
		{
			name: "the same in a script with a Trainer: the first bar gives way", o: hf,
			text: ` 50%|█████     | 2/4 [00:02<00:02,  1.00it/s]
100%|██████████| 4/4 [00:04<00:00,  1.00it/s]
 10%|█         | 1/10 [00:01<00:09,  1.00s/it]
{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1}
 20%|██        | 2/10 [00:02<00:08,  1.00s/it]
`,
			want: "2/4+ bar t=1\n4/4+ bar t=0.5\n1/10+ bar t=1\n1/10 loss=2.5 lr=5e-05\n2/10+ bar t=2\n",
		},
		{
			name: "a loss that is none", o: Options{Set: "hf", Trusted: true, PerLog: 10},
			text: "{'loss': nan, 'learning_rate': 1e-4}\n{'loss': 'inf', 'epoch': 1}\n{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0}\n",
			want: "10/0+ nonfinite lr=0.0001\n20/0+ nonfinite t=0.1\n30/0+ gradnonfinite loss=0 lr=0 t=0.1\n",
		},
		{
			name: "no bar: two ranks that print the same", o: Options{Set: "hf", PerLog: 5, Total: 20},
			text: "{'loss': 2.0, 'epoch': 1}\n{'loss': 2.0, 'epoch': 1}\n{'loss': 1.0, 'epoch': 2}\n", want: "5/20+ loss=2\n5/20 loss=2\n10/20+ loss=1 t=0.4\n",
		},
		{
			name: "no bar: a header tells how far an epoch is", o: hf,
			text: ">>   Num Epochs = 2\n>>   Total optimization steps = 2,000\n>>   Continuing training from global step 500\n{'loss': 2.0, 'epoch': 0.625}\n{'loss': 2.0, 'epoch': 0.75}\n",
			want: "0/2000\n625/2000+ loss=2\n750/2000+ loss=2 t=0.008\n",
		},
		{
			name: "no bar: the steps end within the first epoch", o: hf,
			text: ">>   Num Epochs = 1\n>>   Total optimization steps = 100\n{'loss': 2.0, 'epoch': 0.01}\n{'loss': 2.1, 'epoch': 0.02}\n{'loss': 2.1, 'epoch': 0.02}\n",
			want: "0/100\n1/100+ loss=2\n2/100+ loss=2.1 t=1\n2/100 loss=2.1\n",
		},
		{
			name: "a bar behind losses that were counted", o: hf,
			text: "{'loss': 2.0, 'epoch': 0.1}\n{'loss': 1.9, 'epoch': 0.2}\n 50%|█| 10/20 [00:10<00:10,  1.00s/it]\n 55%|█| 11/20 [00:11<00:10,  1.00s/it]\n",
			want: "1/0+ loss=2\n2/0+ loss=1.9 t=1\n10/20+ bar t=1\n11/20+ bar t=1\n",
		},
		{
			name: "the known number of steps binds the bar", o: Options{Set: "hf", Trusted: true, Total: 20},
			text: " 50%|█████     | 2/4 [00:00<00:00,  1.00it/s]\n  5%|          | 1/20 [00:00<00:00,  2.00it/s]\n",
			want: "1/20+ bar t=0.5\n",
		},
		{
			name: "gone on from a checkpoint: the rate counts what was skipped", o: hf,
			text: "  0%|          | 0/1000 [00:00<?, ?it/s]\n 34%|███▍      | 341/1000 [00:03<00:06, 105.1it/s]\n 34%|███▍      | 342/1000 [00:04<00:09, 70.0it/s]\n",
			want: "0/1000 bar\n341/1000+ bar\n342/1000+ bar t=1\n",
		},
		{
			name: "two trainings in one script", o: hf,
			text: ">>   Total optimization steps = 2\n 50%|█| 1/2 [00:01<00:01,  1.00s/it]\n100%|█| 2/2 [00:02<00:00,  1.00s/it]\n{'train_runtime': 2}\n" +
				">>   Total optimization steps = 3\n 33%|█| 1/3 [00:01<00:02,  1.00s/it]\n 67%|█| 2/3 [00:02<00:01,  1.00s/it]\n",
			want: "0/2\n1/2+ bar t=1\n2/2+ bar t=1\n2/2 finished\n2/5\n3/5+ bar t=1\n4/5+ bar t=1\n",
		},
		{
			name: "plain lines", o: Options{},
			text: `step 12/2520 loss=0.5 lr=1e-3
Step: 13, train loss: 0.25
[step 14] loss nan
iter 15: loss 3.1462, time 13.86ms
| epoch 1 | step 16 | loss 1.0e-2 | lr 2e-4
step 00017/02520 (0.7%) | loss: 2.5 | dt: 991.36ms
step 17/2520 loss=0.5
│ step 18 of 2,520 │ loss -0.5 │ grad_norm inf │
global step 19: training loss 1
`,
			want: `12/2520+ loss=0.5 lr=0.001
13/2520+ loss=0.25 t=1
14/2520+ nonfinite t=1
15/2520+ loss=3.1462 t=1
16/2520+ loss=0.01 lr=0.0002 t=1
17/2520+ loss=2.5 t=1
17/2520 loss=0.5
18/2520+ gradnonfinite loss=-0.5 t=2
19/2520+ loss=1 t=1
`,
		},
		{
			name: "lines that count something else beside the steps", o: Options{Total: 7},
			text: "step 1/4 loss=9\nstep 2/4 loss=9\nstep 3/4 loss=9\nstep 4/4 loss=9\nstep 1/1000 loss=3\nstep 1/4 loss=9\nstep 6/1000 loss=2 eval_loss=3\n" +
				"eval step 7/20 loss=3\n[val] step 8 loss=3\n",
			want: "1/4+ loss=9\n2/4+ loss=9 t=1\n3/4+ loss=9 t=1\n4/4+ loss=9 t=1\n4/1000 loss=3 of=1\n6/1000+ loss=2 t=1.5\n6/1000 eval\n6/1000 eval\n",
		},
		{
			name: "an evaluation of as many batches from the first step on", o: hf,
			text: "  0%|          | 0/3 [00:00<?, ?it/s]\n 33%|█| 1/3 [00:01<00:02,  1.00s/it]\n  0%|          | 0/3 [00:00<?, ?it/s]\n 67%|█| 2/3 [00:01<00:01,  1.00s/it]\n" +
				"100%|█| 3/3 [00:02<00:00,  1.00s/it]\n{'eval_loss': 1.0, 'epoch': 1}\n 67%|█| 2/3 [00:05<00:02,  1.00s/it]\n",
			want: "0/3 bar\n1/3+ bar t=1\n1/3 eval\n2/3+ bar\n",
		},
		{
			name: "the command's number of steps was not meant so: the bar is right", o: Options{Set: "hf", Trusted: true, Total: 7},
			text: "  5%|▌| 1/20 [00:01<00:19,  1.00s/it]\n{'loss': 2.0, 'epoch': 1}\n 50%|█| 10/20 [00:10<00:10,  1.00s/it]\n",
			want: "1/20+ bar loss=2 t=1\n10/20+ bar t=0.111111\n",
		},
		{
			name: "a bar of preparation before the header", o: hf,
			text: " 50%|█| 2/4 [00:02<00:02,  1.00it/s]\n100%|█| 4/4 [00:04<00:00,  1.00it/s]\n>>   Total optimization steps = 30\n  3%|█| 1/30 [00:01<00:29,  1.00s/it]\n",
			want: "2/4+ bar t=1\n4/4+ bar t=0.5\n0/30\n1/30+ bar t=1\n",
		},
		{
			name: "a step far beyond the total is none of the training's", o: hf,
			text: "  5%|▌| 1/20 [00:01<00:19,  1.00s/it]\n>> Total optimization steps = 20\nread step 5000 loss=3\n",
			want: "1/20+ bar t=1\n1/20\n",
		},
		{
			name: "checkpoints in other words", o: Options{},
			text: `saving checkpoint at iteration     500 to /ckpt/a in torch_dist format
Recipe checkpoint of size 1.2 GiB saved to /tmp/tune/recipe_state/recipe_state.pt
saving checkpoint: out/lora-000001.safetensors
Saving checkpoint to 'out/pretrain/step-00001000/lit_model.pth'
Checkpoint saved in /a/b.
Finished saving the checkpoint in 12.3 seconds
Saving checkpoint in 3.2s
`,
			want: "0/0 saving /ckpt/a\n0/0 saving /tmp/tune/recipe_state/recipe_state.pt\n0/0 saving out/lora-000001.safetensors\n" +
				"0/0 saving out/pretrain/step-00001000/lit_model.pth\n0/0 saving /a/b\n",
		},
		{
			name: "a reward beside the loss: 0 is nothing bad", o: hf,
			text: "{'loss': 0.0, 'grad_norm': 0.4, 'reward': 0.5, 'reward_std': 0.2, 'completion_length': 120.0, 'epoch': 0.1}\n",
			want: "1/0+ zero-ok loss=0 grad=0.4\n",
		},
		{
			name: "lines that say nothing", o: hf,
			text: `Downloading: 100%|██████████| 4/4 [00:05<00:00,  1.40s/it]
Generating train split: 5000 examples [00:00, 100000 examples/s]
  0%|          | 5/4000 [00:00<?, 3000.00 examples/s]
model.safetensors:  50%|█████     | 1.2G/2.4G [00:05<00:05, 240MB/s]
{"role": "user", "content": "step 5/10 loss=3"}
{'a': {'loss': 3}}
{'loss': 'cross entropy', 'step': 3}
step 5 of the recipe: stir
the next step is 10
warning: loss of step size
Total steps = many
[1/2] compiling [00:01<00:01]
100%
{'loss': 1
 120%|█| 12/10 [00:01<00:00, 1.0it/s]
step 1.5 loss=2
`,
			want: "",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := play(t, New(c.o), c.text); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

// TestRecords: what Python writes into a log file, and what is not whole.
func TestRecords(t *testing.T) {
	t.Parallel()
	p := New(Options{Set: "llama-factory", Trusted: true})
	at := time.Now()
	for i, c := range []struct{ record, want string }{
		{`{"current_steps": 5, "total_steps": 30, "loss": 2.5, "lr": 9e-05}` + "\n", "5/30+ loss=2.5 lr=9e-05"},
		{`{"current_steps": 6, "total_steps": 30, "lo`, ""},
		{`{ "current_steps": 7, "total_steps": 30, "loss": NaN, "log": "a \"quoted\" }", "nested": {"a": [1, "}"]}}`, "7/30+ nonfinite t=0.5"},
		{`{"current_steps": 30, "total_steps": 30, "eval_loss": 1.2}`, "7/30 eval"},
		{`{"step": "many", "loss": "none"}`, ""},
		{`null`, ""},
		{`{}`, ""},
		{`[1, 2, 3]`, ""},
	} {
		got := ""
		if st, ok := p.Record([]byte(c.record), at.Add(time.Duration(i/2)*time.Second)); ok {
			got = show(st)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.record, got, c.want)
		}
	}
}

// TestLateRecord: a record that is read after the bar has gone on belongs to its own
// step and moves nothing back.
func TestLateRecord(t *testing.T) {
	t.Parallel()
	p := New(Options{Set: "llama-factory", Trusted: true})
	at := time.Now()
	for n := range 15 {
		p.Line(tqdm("", int64(n), 40, float64(n), 1, "it", ""), at.Add(time.Duration(n)*time.Second))
	}
	st, ok := p.Record([]byte(`{"current_steps": 10, "total_steps": 40, "loss": 2.5}`), at.Add(15*time.Second))
	if !ok || st.N != 14 || st.LossN != 10 || st.Advance {
		t.Errorf("%+v", st)
	}
}

func TestETA(t *testing.T) {
	t.Parallel()
	p := New(Options{Set: "hf", Trusted: true})
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, ok := p.ETA(at); ok {
		t.Error("before the first step nobody knows")
	}
	p.Line("  5%|▌| 1/40 [00:05<00:19,  5.00s/it]", at)
	if d, ok := p.ETA(at); !ok || d != 39*5*time.Second {
		t.Errorf("by the bar's rate: %v %v", d, ok)
	}
	for n := 2; n <= 20; n++ {
		at = at.Add(4 * time.Second)
		if n == 11 {
			// One evaluation of 40 s in ten steps: it will come again.
			p.Line("{'eval_loss': 1.5, 'epoch': 1.1}", at)
			at = at.Add(40 * time.Second)
		}
		st, _ := p.Line(tqdm("", int64(n), 40, 5*float64(n), 5, "it", ""), at)
		if st.StepTimeS.OK == (n == 11) || st.StepTimeS.OK && st.StepTimeS.V != 4 {
			t.Errorf("step %d: %+v", n, st.StepTimeS)
		}
	}
	d, ok := p.ETA(at)
	if want := 20 * 6 * time.Second; !ok || d < want*9/10 || d > want*11/10 {
		t.Errorf("%v %v, want about %v", d, ok, want)
	}
	p.Line(tqdm("", 40, 40, 200, 5, "it", ""), at)
	if d, ok := p.ETA(at); !ok || d != 0 {
		t.Errorf("at the end: %v %v", d, ok)
	}
}

// TestHeldBack: output that a pipe held back comes in a rush, and its times are none
// of the steps'.
func TestHeldBack(t *testing.T) {
	t.Parallel()
	p := New(Options{Set: "hf", Trusted: true})
	at := time.Now()
	for n := int64(1); n < 400; n++ {
		st, _ := p.Line(tqdm("", n, 400, float64(n)*5, 5, "it", ""), at.Add(time.Duration(n)*time.Millisecond))
		if st.StepTimeS.V != 5 {
			t.Fatalf("step %d takes %v", n, st.StepTimeS)
		}
	}
}

var fragments = []string{
	" 50%|█████     | 5/10 [00:01<00:01,  1.00it/s, loss=1.5]", "  1%|▌| 1/1000 [00:02<00:19,  1.00s/it]", "Epoch 1/3: ", "Epoch 0: ", "[rank1]: ",
	"{'loss': '1.5', 'epoch': '0.1'}", `{"current_steps": 5, "total_steps": 30, "loss": 2.5}`, "{'eval_loss': 1}", "{'train_runtime': 1}",
	"step 5/10 loss=2", "iter 7: loss nan, time 3ms", "step:9 - train/loss:1 - train/lr(1e-3):2", "Total optimization steps = 1,028", "Num Epochs = 3 | Total steps = 300",
	"1|52|Loss: 2.36:   1%|▏| 5/80 [00:24<3:55:01,  1.83it/s]", "iteration 3/4 | elapsed time per iteration (ms): 3.9 | lm loss: 1", "Training epoch 0, iteration 3/19 | global_step: 3 | reduced_train_loss: 1",
	"Epoch 1 | iter 2 step 1 | loss train: 1.6, val: n/a | iter time: 548.72 ms (step)", "step 00180/02520 (7%) | loss: 3.7 | dt: 991.36ms", "step:6/6000 train_loss:10.8 train_time:25542ms",
	"Saving model checkpoint to out/checkpoint-8", "Epoch 0/9 ━━━╺━ 307/938 0:00:01 • 0:00:02 289.04it/s loss: 0.1", "999999999999999999999", "\r", "\x1b[31m", " ", "0/?", "[", "{", "'", "%|", "1e999", "nan",
	"steps:   1%| | 395/48600 [02:37<5:20:51,  2.50it/s, avr_loss=0.1]", "Epoch 1048576: 100%|█| 999999999999/999999999999 [00:01<00:00, 5it/s]",
}

// TestNeverMovesBack: whatever is printed, nothing panics, the step never falls once
// a loss was logged (before that a bar without a name may turn out to be another's),
// and the total is never below it.
func TestNeverMovesBack(t *testing.T) {
	t.Parallel()
	sets, err := Sets()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := New(Options{
			Set: rapid.SampledFrom(sets).Draw(t, "set"), Trusted: rapid.Bool().Draw(t, "trusted"),
			PerLog: rapid.Int64Range(-1, 500).Draw(t, "perlog"), Total: rapid.SampledFrom([]int64{-1, 0, 10, 1000, 1 << 62}).Draw(t, "total"),
			Epochs: rapid.SampledFrom([]int64{0, 3, 1 << 62}).Draw(t, "epochs"), Accumulation: rapid.SampledFrom([]int64{0, 4, 1 << 62}).Draw(t, "accumulation"),
		})
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var last int64
		for range rapid.IntRange(1, 60).Draw(t, "lines") {
			line := strings.Join(rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(fragments), rapid.String(),
				rapid.Custom(func(t *rapid.T) string {
					total := rapid.Int64Range(1, 12).Draw(t, "of")
					n := rapid.Int64Range(0, total).Draw(t, "n")
					return tqdm(rapid.SampledFrom([]string{"", "", "Epoch 1", "Epoch 2/4", "train", "steps"}).Draw(t, "name"), n, total, float64(n), 1, "it", rapid.SampledFrom([]string{"", "loss=1"}).Draw(t, "post"))
				})), 1, 3).Draw(t, "line"), "")
			at = at.Add(time.Duration(rapid.IntRange(-5, 5000).Draw(t, "ms")) * time.Millisecond)
			settled := !p.bar.on || p.bar.confirmed
			st, ok := p.Line(line, at)
			if rapid.Bool().Draw(t, "record") {
				st, ok = p.Record([]byte(line), at)
			}
			if !ok {
				if st != (Step{}) {
					t.Fatalf("refused, but %+v", st)
				}
				continue
			}
			check(t, st)
			if settled && p.bar.confirmed && st.N < last {
				t.Fatalf("%d after %d: %q", st.N, last, line)
			}
			last = st.N
			if d, ok := p.ETA(at); ok && d < 0 {
				t.Fatalf("ETA %v", d)
			}
		}
	})
}

func FuzzLine(f *testing.F) {
	for _, s := range fragments {
		f.Add(s)
	}
	sets, err := Sets()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line string) {
		for _, set := range sets {
			p := New(Options{Set: set, Trusted: true})
			for i := range 2 {
				if st, ok := p.Line(line, time.Unix(int64(i), 0)); ok {
					check(t, st)
				}
				if st, ok := p.Record([]byte(line), time.Unix(int64(i), 0)); ok {
					check(t, st)
				}
			}
		}
	})
}

// TestHostileLines: a long line costs a time in proportion to its length.
func TestHostileLines(t *testing.T) {
	t.Parallel()
	sets, err := Sets()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, part := range []string{" 1/2 [", "%|x| 1/2 [", "{'loss': ", "{\"a\": 1, ", "step ", "step 1/", "iter", "checkpoint to ", "[rank0]:", "━ 1/2 ", "\x1b[", "\r", "1,111", "loss", "{'"} {
		line := strings.Repeat(part, maxLine/len(part))
		for _, set := range sets {
			p := New(Options{Set: set, Trusted: true})
			p.Line(line, began)
			p.Record([]byte(line), began)
		}
	}
	// 345 lines of 16 KiB, twice each: some tenths of a second even with -race.
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("%v", d)
	}
}

func BenchmarkLine(b *testing.B) {
	lines := []struct{ name, set, text string }{
		{"noise", "trl", "2026-01-01 10:00:00,123 INFO worker.py:88 fetched shard 00017 of 02048 from the local cache in 3.2 ms"},
		{"brackets", "trl", "[INFO|worker.py:88] 2026-01-01 10:00:00,123 >> fetched shard [17/2048] from the local cache in 3.2 ms"},
		{"prose", "generic", "INFO the data loader took a step back to index 4711 and read the row after another iteration"},
		{"data", "trl", `{"role": "user", "content": "` + strings.Repeat("the quick brown fox jumps over the lazy dog ", 10) + `"}`},
		{"bar", "trl", "  1%|          | 8/1028 [00:46<01:38,  4.92s/it]"},
		{"dict", "trl", "{'loss': '8.757', 'grad_norm': '1.079', 'learning_rate': '0.0001092', 'entropy': '1.7', 'num_tokens': '9.289e+04', 'mean_token_accuracy': '0.705', 'epoch': '1.667'}"},
		{"words", "generic", "2026-01-01 10:00:00,123 INFO step 12/100 loss=0.5 lr=1e-3 grad_norm=1.2"},
		{"megatron", "megatron", "[default0]: [2025-05-27 15:23:07] iteration        1/    24000 | consumed samples:          1024 | elapsed time per iteration (ms): 271607.0 | throughput per GPU (TFLOP/s/GPU): 40.4 | learning rate: 1.500000E-06 | global batch size:  1024 | lm loss: 1.192634E+01 | load_balancing_loss: 1.041994E+00 | loss scale: 1.0 | grad norm: 5.960 | num zeros: 0.0 | params norm: 238.330 | number of skipped iterations:    0 | number of nan iterations:    0 |"},
		{"lightning", "lightning", "Epoch 0:   6%|█▍                         | 86/1563 [00:06<01:44, 14.19it/s, v_num=0, train_loss=1.800, train_acc=0.281]"},
	}
	for _, l := range lines {
		b.Run(l.name, func(b *testing.B) {
			p := New(Options{Set: l.set, Trusted: true})
			at := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				p.Line(l.text, at)
			}
		})
	}
}

// TestOutOfOrder: numbers in any order never move the step back.
func TestOutOfOrder(t *testing.T) {
	t.Parallel()
	p := New(Options{Set: "trl", Trusted: true})
	at := time.Now()
	var last int64
	for i, n := range rand.New(rand.NewPCG(1, 2)).Perm(1000) {
		st, ok := p.Line(fmt.Sprintf("%3d%%|███| %d/1000 [00:00<00:00, 1.00it/s]", n/10, n), at.Add(time.Duration(i)*time.Second))
		if ok && (st.Advance != (st.N > last) || st.N < last) {
			t.Fatalf("step %d after %d: %+v", n, last, st)
		}
		last = max(last, st.N)
	}
}

// Losses without a number: counted on from the checkpoint that the attempt was given,
// and never past the steps there are, whatever the trainer's default says.
func TestUnnumberedLosses(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 14, 10, 0, 0, 0, time.UTC)
	read := func(p *Progress, logs int) Step {
		var last Step
		for i := range logs {
			s, ok := p.Line(fmt.Sprintf("{'loss': %d.5, 'learning_rate': 1e-4, 'epoch': %d.0}", 9-i, i), at.Add(time.Duration(i)*time.Second))
			if !ok {
				t.Fatalf("log %d was not read", i)
			}
			last = s
		}
		return last
	}
	p := New(Options{Set: "hf", PerLog: 1, Total: 6, Trusted: true})
	p.GoesOn(2)
	if s := read(p, 4); s.N != 6 {
		t.Errorf("resumed from 2, four logs: step %d, want 6", s.N)
	}
	if s := read(New(Options{Set: "hf", PerLog: 500, Total: 6, Trusted: true}), 6); s.N != 6 {
		t.Errorf("a default of 500 where six steps are planned: step %d, want 6", s.N)
	}
	if s := read(New(Options{Set: "hf", PerLog: 10, Total: 60, Trusted: true}), 3); s.N != 30 {
		t.Errorf("ten steps a log: step %d, want 30", s.N)
	}
}
