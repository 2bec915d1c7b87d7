package trainer

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// play feeds lines one second apart and returns what they said.
func play(t *testing.T, p *Progress, text string) []Step {
	t.Helper()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var steps []Step
	for _, line := range strings.Split(text, "\n") {
		at = at.Add(time.Second)
		if st, ok := p.Line(strings.TrimRight(line, "\r"), at); ok {
			steps = append(steps, st)
		}
	}
	return steps
}

func summary(steps []Step) string {
	var b strings.Builder
	num := func(name string, n sample.Num) {
		if n.OK {
			fmt.Fprintf(&b, " %s=%g", name, n.V)
		}
	}
	for _, s := range steps {
		fmt.Fprintf(&b, "%d/%d", s.N, s.Total)
		for _, f := range []struct {
			on   bool
			word string
		}{{s.Advance, "+"}, {s.Bar, " bar"}, {s.NonFinite, " nonfinite"}, {s.Finished, " finished"}} {
			if f.on {
				b.WriteString(f.word)
			}
		}
		num("loss", s.Loss)
		num("lr", s.LR)
		num("t", s.StepTimeS)
		num("tok", s.Tokens)
		if s.Checkpoint != "" {
			b.WriteString(" saving " + s.Checkpoint)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestProgressLines(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, profile, knob string
		text, want          string
	}{
		{
			name: "transformers 4 with its header", profile: "hf-trainer",
			text: `[INFO|trainer.py:2100] 2026-01-01 10:00:00,000 >> ***** Running training *****
[INFO|trainer.py:2104] 2026-01-01 10:00:00,000 >>   Gradient Accumulation steps = 1
[INFO|trainer.py:2105] 2026-01-01 10:00:00,000 >>   Total optimization steps = 1,028
  0%|          | 0/1028 [00:00<?, ?it/s]
  1%|          | 7/1028 [00:42<01:46,  5.06s/it]
{'loss': 1.2364, 'grad_norm': 22.58, 'learning_rate': 4.0e-06, 'epoch': 1.07}
  1%|          | 8/1028 [00:46<01:38,  4.92s/it]
Saving model checkpoint to out/checkpoint-8
 50%|█████     | 5/10 [00:01<00:01,  5.00it/s]
{'eval_loss': 1.5, 'eval_runtime': 8.0, 'epoch': 1.1}
  1%|          | 8/1028 [00:55<01:38,  4.92s/it]
{'train_runtime': 485.3, 'train_loss': 6.095, 'epoch': 3.0}
`,
			want: `0/1028
0/1028 bar
7/1028+ bar t=5.06
7/1028 loss=1.2364 lr=4e-06
8/1028+ bar t=2
8/1028 saving out/checkpoint-8
8/1028 bar t=4.92
8/1028 finished
`,
		},
		{
			name: "transformers 5 with quoted numbers, glued to the bar", profile: "trl",
			text: `Tokenizing train dataset: 100%|██████████| 18/18 [00:00<00:00, 2811.64 examples/s]
Map:  50%|█████     | 9/18 [00:00<00:00, 100.00 examples/s]
Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.40s/it]
 56%|█████▌    | 10/18 [04:14<03:22, 25.27s/it]{'loss': '8.757', 'grad_norm': '1.079', 'learning_rate': '0.0001092', 'num_tokens': '9.289e+04', 'epoch': '1.667'}
100%|██████████| 18/18 [07:38<00:00, 25.32s/it]/site-packages/peft/save.py:386: UserWarning: something
{'train_runtime': '485.3', 'train_loss': '6.095', 'epoch': '3'}
100%|██████████| 18/18 [08:05<00:00
`,
			want: `10/18+ bar loss=8.757 lr=0.0001092 t=25.27 tok=92890
18/18+ bar t=0.125
18/18 finished
18/18 bar
`,
		},
		{
			name: "a bar that is not the training's comes first, in a script of unknown make", profile: "",
			text: ` 50%|█████     | 2/4 [00:00<00:00,  1.00it/s]
100%|██████████| 4/4 [00:00<00:00,  1.00it/s]
 10%|█         | 1/10 [00:01<00:09,  1.00s/it]
{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1}
 20%|██        | 2/10 [00:02<00:08,  1.00s/it]
`,
			want: `1/0+ loss=2.5 lr=5e-05
2/10+ bar t=1
`,
		},
		{
			name: "a loss that is none", profile: "trl",
			text: "{'loss': nan, 'learning_rate': 1e-4}\n{'loss': 'inf', 'epoch': 1}\n{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0}\n",
			want: "10/0+ nonfinite lr=0.0001\n20/0+ nonfinite t=0.1\n30/0+ loss=0 lr=0 t=0.1\n",
		},
		{
			name: "no bar, with the steps between logs", profile: "trl", knob: "--logging_steps=5 --max_steps 20",
			text: "{'loss': 2.0}\n{'loss': 1.0}\n", want: "5/20+ loss=2\n10/20+ loss=1 t=0.2\n",
		},
		{
			name: "the known number of steps binds the bar", profile: "trl", knob: "--max_steps 20",
			text: " 50%|█████     | 2/4 [00:00<00:00,  1.00it/s]\n  5%|          | 1/20 [00:00<00:00,  2.00it/s]\n",
			want: "1/20+ bar t=0.5\n",
		},
		{
			name: "unsloth", profile: "hf-trainer",
			text: `==((====))==  Fast finetuning | Num GPUs used = 1
   \\   /|    Num examples = 39,371 | Num Epochs = 3 | Total steps = 300
  0% 0/300 [00:00<?, ?it/s]
{'loss': 2.149, 'grad_norm': 0.16, 'learning_rate': 0.0002, 'epoch': 0.0}
  1% 3/300 [00:06<09:00,  2.00s/it]
`,
			want: "0/300\n0/300 bar\n0/300 loss=2.149 lr=0.0002\n3/300+ bar t=2\n",
		},
		{
			name: "llama-factory's log and a worker's prefix", profile: "llama-factory",
			text: `{"current_steps": 5, "total_steps": 30, "loss": 2.5, "lr": 9e-05, "epoch": 0.5, "percentage": 16.6, "elapsed_time": "0:01:00"}
{"current_steps": 30, "total_steps": 30, "eval_loss": 1.2, "epoch": 3.0}
(RayTrainWorker pid=77) {'loss': '2.431', 'global_step/max_steps': '6/30', 'learning_rate': '0'}
`,
			want: "5/30+ loss=2.5 lr=9e-05\n6/30+ loss=2.431 lr=0 t=2\n",
		},
		{
			name: "plain lines", profile: "",
			text: `step 12/100 loss=0.5 lr=1e-3
Step: 13, train loss: 0.25
[step 14] loss nan
iter 15: loss 3.1462, time 13.86ms
| epoch 1 | step 16 | loss 1.0e-2 | lr 2e-4
step 00017/02520 (0.7%) | loss: 2.5 | dt: 991.36ms
step 17/100 loss=0.5
`,
			want: `12/100+ loss=0.5 lr=0.001
13/100+ loss=0.25 t=1
14/100+ nonfinite t=1
15/100+ loss=3.1462 t=1
16/100+ loss=0.01 lr=0.0002 t=1
17/2520+ loss=2.5 t=1
17/100 loss=0.5
`,
		},
		{
			name: "postfix of a named training bar", profile: "",
			text: "Steps:  10%|█         | 3/30 [00:46<07:00, 15.54s/it, loss=0.117, lr=1e-4]\n",
			want: "3/30+ bar loss=0.117 lr=0.0001 t=15.54\n",
		},
		{
			name: "lines that say nothing", profile: "hf-trainer",
			text: `Downloading: 100%|██████████| 4/4 [00:05<00:00,  1.40s/it]
Generating train split: 5000 examples [00:00, 100000 examples/s]
{"role": "user", "content": "step 5/10 loss=3"}
{'a': {'loss': 3}}
{'eval_loss': '1.17', 'epoch': '1'}
eval step 5/10 loss=2
INFO:root:[val] step 20 | epoch 0 | loss 0.2469
Epoch 1 (val): 100%|██████████| 20/20 [00:00<00:00, 100.96it/s, accuracy/val=0.0995]
step 5 of the recipe: stir
the next step is 10
warning: loss of step size
Total steps = many
[1/2] compiling [00:01<00:01]
100%
{'loss': 1
 120%|█| 12/10 [00:01<00:00, 1.0it/s]
`,
			want: "",
		},
	}
	s := profiles(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			argv := map[string][]string{
				"": {"./a"}, "hf-trainer": {"python", "x.py", "--max_length", "9"}, "trl": {"trl", "sft"}, "llama-factory": {"llamafactory-cli", "train", "--stage", "sft"},
			}[c.profile]
			j, err := s.Understand(append(argv, strings.Fields(c.knob)...), t.TempDir(), nil, nil)
			if err != nil || j.Profile != c.profile {
				t.Fatal(j.Profile, err)
			}
			if got := summary(play(t, s.NewProgress(j), c.text)); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

func TestProgressNeverMovesBack(t *testing.T) {
	t.Parallel()
	p := profiles(t).NewProgress(job.Job{Profile: "trl"})
	at := time.Now()
	var last int64
	for i := range 2000 {
		n := (i * 7919) % 1000
		st, ok := p.Line(fmt.Sprintf("%3d%%|███| %d/1000 [00:00<00:00, 1.00it/s]", n/10, n), at.Add(time.Duration(i)*time.Second))
		if !ok {
			t.Fatal("a bar was not read")
		}
		if st.Advance != (st.N > last) || st.N < last || math.IsNaN(st.StepTimeS.V) || st.StepTimeS.V < 0 {
			t.Fatalf("step %d after %d: %+v", n, last, st)
		}
		last = st.N
	}
}

func FuzzProgress(f *testing.F) {
	f.Add("{'loss': '1', 'x': nan}")
	f.Add(" 50%|██| 5/10 [00:01<00:01, 1.0s/it, loss=2]{'loss': 1}")
	f.Add("step 1/2 loss=inf lr=1")
	s, err := Load(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line string) {
		p := s.NewProgress(job.Job{Profile: "trl"})
		for range 2 {
			st, ok := p.Line(line, time.Now())
			if !ok && st != (Step{}) {
				t.Fatalf("%q: refused, but %+v", line, st)
			}
			for _, n := range []sample.Num{st.Loss, st.LR, st.StepTimeS, st.Tokens} {
				if math.IsNaN(n.V) || math.IsInf(n.V, 0) || n.V != 0 && !n.OK {
					t.Fatalf("%q: %+v", line, st)
				}
			}
			if st.N < 0 || st.Total < 0 {
				t.Fatalf("%q: %+v", line, st)
			}
		}
	})
}

func BenchmarkProgressLine(b *testing.B) {
	s, err := Load(nil)
	if err != nil {
		b.Fatal(err)
	}
	for name, line := range map[string]string{
		"noise": "2026-01-01 10:00:00,123 INFO worker.py:88 fetched shard 00017 of 02048 from the local cache in 3.2 ms",
		"step":  "INFO the data loader took a step back to index 4711 and read the row again",
		"bar":   "  1%|          | 8/1028 [00:46<01:38,  4.92s/it]",
		"dict":  "{'loss': '8.757', 'grad_norm': '1.079', 'learning_rate': '0.0001092', 'epoch': '1.667'}",
	} {
		b.Run(name, func(b *testing.B) {
			p := s.NewProgress(job.Job{Profile: "trl"})
			at := time.Now()
			for b.Loop() {
				p.Line(line, at)
			}
		})
	}
}
