package progress

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// stage of a generated stream: what emit is told of a line.
type said int

const (
	training said = iota
	foreign       // an evaluation, preparation, noise: no step may come of it
)

// stream is a long run of one trainer, made up.
type stream struct {
	name string
	o    Options
	// record is set where the lines are of a log file.
	record bool
	// play emits lines; dt is seconds since the line before.
	play func(emit func(what said, dt float64, line string))
	// first, last and total are what it must come to; steps how many advances at
	// least; per the median seconds of a step, within a tenth.
	first, last, total int64
	steps              int
	per                float64
}

// tqdm draws a bar.
func tqdm(name string, n, total int64, elapsed, per float64, unit, postfix string) string {
	if name != "" {
		name += ": "
	}
	rate := "?" + unit + "/s"
	if per > 0 {
		if per > 1 {
			rate = fmt.Sprintf("%.2fs/%s", per, unit)
		} else {
			rate = fmt.Sprintf("%.2f%s/s", 1/per, unit)
		}
	}
	if postfix != "" {
		postfix = ", " + postfix
	}
	e := int(elapsed)
	return fmt.Sprintf("%s%3d%%|%s| %d/%d [%02d:%02d<%02d:%02d, %s%s]", name, n*100/total, "█▌        ", n, total, e/60, e%60, 1, 2, rate, postfix)
}

func hfStream(from, total, evalBars int64, quoted bool, prefix string) func(func(said, float64, string)) {
	return func(emit func(said, float64, string)) {
		emit(foreign, 1, "Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.40s/it]")
		for i := int64(0); i <= 4000; i += 1000 {
			emit(foreign, 0.2, tqdm("Tokenizing train dataset", i, 4000, float64(i)/1000, 0.001, " examples", ""))
		}
		emit(foreign, 1, prefix+tqdm("", 0, total, 0, 0, "it", ""))
		elapsed := 0.0
		for n := from + 1; n <= total; n++ {
			elapsed += 2
			for i := range 3 { // tqdm redraws on other threads' refreshes too
				dt := 0.0
				if i == 0 {
					dt = 2
				}
				emit(training, dt, prefix+tqdm("", n, total, elapsed, 2, "it", ""))
			}
			if n%10 == 0 {
				dict := fmt.Sprintf("{'loss': %.4f, 'grad_norm': 1.25, 'learning_rate': 1e-05, 'epoch': %.2f}", 2-float64(n)/float64(total), float64(n)/100)
				if quoted {
					dict = fmt.Sprintf("{'loss': '%.4g', 'grad_norm': '1.25', 'learning_rate': '1e-05', 'num_tokens': '%.4g', 'epoch': '%.4g'}", 2-float64(n)/float64(total), float64(n)*8192, float64(n)/100)
				}
				emit(training, 0, prefix+dict)
			}
			if n%100 == 0 {
				for i := int64(0); i <= evalBars; i++ {
					elapsed++
					emit(foreign, 1, prefix+tqdm("", i, evalBars, float64(i), 1, "it", ""))
				}
				emit(foreign, 0, prefix+"{'eval_loss': 1.5, 'eval_runtime': 8.0, 'eval_samples_per_second': 3, 'epoch': 1.1}")
			}
			if n%200 == 0 {
				emit(foreign, 0.5, fmt.Sprintf("Saving model checkpoint to out/checkpoint-%d", n))
				elapsed += 3.5
				emit(foreign, 3, "/opt/venv/lib/python3.12/site-packages/torch/utils/checkpoint.py:86: UserWarning: None of the inputs have requires_grad=True")
			}
		}
		emit(training, 0, "{'train_runtime': 485.3, 'train_samples_per_second': 4.7, 'train_loss': 1.095, 'epoch': 3.0}")
		for i := int64(0); i <= evalBars; i++ {
			emit(foreign, 1, prefix+tqdm("", i, evalBars, float64(i), 1, "it", ""))
		}
		emit(foreign, 0, "{'eval_loss': 1.5, 'eval_runtime': 8.0, 'epoch': 3.0}")
	}
}

func streams() []stream {
	return []stream{
		{
			name: "hf", o: Options{Set: "hf", Trusted: true},
			play: hfStream(0, 3000, 25, false, ""), first: 1, last: 3000, total: 3000, steps: 3000, per: 2,
		},
		{
			name: "trl resumed", o: Options{Set: "trl", Trusted: true},
			play: hfStream(340, 1000, 25, true, ""), first: 341, last: 1000, total: 1000, steps: 660, per: 2,
		},
		{
			name: "an evaluation as long as the training", o: Options{Set: "hf", Trusted: true},
			play: hfStream(0, 1000, 1000, false, ""), first: 1, last: 1000, total: 1000, steps: 1000, per: 2,
		},
		{
			name: "axolotl under torchrun", o: Options{Set: "axolotl", Trusted: true},
			play: hfStream(0, 1000, 30, true, "[rank0]:"), first: 1, last: 1000, total: 1000, steps: 1000, per: 2,
		},
		{
			name: "no bar, the steps between logs known", o: Options{Set: "llama-factory", Trusted: true, PerLog: 5, Total: 5000},
			play: func(emit func(said, float64, string)) {
				for n := 5; n <= 5000; n += 5 {
					for range 2 { // two machines print it
						emit(training, 2.5, fmt.Sprintf("{'loss': %.4f, 'learning_rate': 1e-05, 'epoch': %.4f}", 1+1/float64(n), float64(n)/1000))
					}
				}
			},
			first: 5, last: 5000, total: 5000, steps: 1000, per: 1,
		},
		{
			name: "LLaMA-Factory's file", o: Options{Set: "llama-factory", Trusted: true}, record: true,
			play: func(emit func(said, float64, string)) {
				for n := 5; n <= 4000; n += 5 {
					emit(training, 10, fmt.Sprintf(`{"current_steps": %d, "total_steps": 4000, "loss": 1.5, "lr": 9e-05, "epoch": 0.5, "percentage": 16.6, "elapsed_time": "0:01:00", "remaining_time": "0:05:00"}`, n))
					if n%500 == 0 {
						emit(foreign, 30, fmt.Sprintf(`{"current_steps": %d, "total_steps": 4000, "eval_loss": 1.2, "epoch": 3.0}`, n))
					}
				}
			},
			first: 5, last: 4000, total: 4000, steps: 800, per: 2,
		},
		{
			name: "torchtune over epochs", o: Options{Set: "torchtune", Trusted: true, Epochs: 3},
			play: func(emit func(said, float64, string)) {
				for e := range int64(3) {
					for n := int64(1); n <= 700; n++ {
						emit(training, 1.5, tqdm(fmt.Sprintf("%d|%d|Loss: %.12f", e+1, e*700+n, 1.9), n, 700, float64(n)*1.5, 1.5, "it", ""))
					}
				}
			},
			first: 1, last: 2100, total: 2100, steps: 2100, per: 1.5,
		},
		{
			name: "Lightning gone on in its third epoch", o: Options{Set: "lightning", Trusted: true, Accumulation: 4, Epochs: 5},
			play: func(emit func(said, float64, string)) {
				for i := range int64(3) {
					emit(foreign, 1, tqdm("Sanity Checking DataLoader 0", i, 2, float64(i), 1, "it", ""))
				}
				for e := int64(2); e < 5; e++ {
					for n := int64(0); n <= 1001; n++ {
						emit(training, 0.5, tqdm(fmt.Sprintf("Epoch %d", e), n, 1001, float64(n)/2, 0.5, "it", "v_num=2, train_loss=1.5"))
					}
					for n := int64(0); n <= 38; n++ {
						emit(foreign, 0.1, tqdm("Validation DataLoader 0", n, 38, float64(n)/10, 0.1, "it", ""))
					}
				}
			},
			first: 502, last: 5 * 251, total: 5 * 251, steps: 3*251 - 1, per: 2,
		},
		{
			name: "OpenRLHF", o: Options{Set: "openrlhf", Trusted: true, Accumulation: 8, Epochs: 2},
			play: func(emit func(said, float64, string)) {
				for e := range int64(2) {
					for n := int64(0); n <= 4001; n++ {
						emit(training, 0.25, tqdm(fmt.Sprintf("Train step of epoch %d", e), n, 4001, float64(n)/4, 0.25, "it", "gpt_loss=0.7, lr=1.25e-6, grad_norm=3"))
						if n%1000 == 0 {
							emit(foreign, 3, tqdm("Eval stage of steps 8", n/1000, 40, 3, 1, "it", "eval gpt_loss=0.8"))
						}
					}
				}
			},
			first: 1, last: 1000, total: 1000, steps: 1000, per: 2,
		},
		{
			name: "litgpt", o: Options{Set: "litgpt", Trusted: true, Total: 1500},
			play: func(emit func(said, float64, string)) {
				for i := 1; i <= 6000; i++ {
					mark := ""
					if i%4 == 0 {
						mark = " (step)"
					}
					emit(training, 0.5, fmt.Sprintf("Epoch 1 | iter %d step %d | loss train: 1.646, val: n/a | iter time: 500.00 ms%s", i, i/4, mark))
					if i%600 == 0 {
						emit(foreign, 60, fmt.Sprintf("iter %d: val loss 1.1, val time: 60000.00 ms", i))
					}
				}
			},
			first: 1, last: 1500, total: 1500, steps: 1500, per: 2,
		},
		{
			name: "Megatron, the last of several ranks, resumed", o: Options{Set: "megatron", Trusted: true},
			play: func(emit func(said, float64, string)) {
				emit(foreign, 1, "  successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration 500")
				for n := 510; n <= 9000; n += 10 {
					emit(training, 40, fmt.Sprintf("[default7]: [2026-05-27 15:23:07] iteration %8d/    9000 | consumed samples: %d | elapsed time per iteration (ms): 4000.0 | learning rate: 1.5E-06 | global batch size:  1024 | lm loss: 1.192634E+00 | loss scale: 1.0 | grad norm: 5.960 | number of skipped iterations:    0 | number of nan iterations:    0 |", n, n*1024))
					if n%1000 == 0 {
						emit(foreign, 100, fmt.Sprintf("[default7]: validation loss at iteration %d on validation set | lm loss value: 1.2E+00 | lm loss PPL: 3.3E+00 |", n))
						emit(foreign, 100, fmt.Sprintf("[default0]: saving checkpoint at iteration %d to /ckpt in torch_dist format", n))
						emit(foreign, 0, fmt.Sprintf("[default0]:  successfully saved checkpoint from iteration %8d to /ckpt", n))
					}
				}
			},
			first: 510, last: 9000, total: 9000, steps: 850, per: 4,
		},
		{
			name: "NeMo 2, two ranks", o: Options{Set: "nemo2", Trusted: true},
			play: func(emit func(said, float64, string)) {
				for n := range 3000 {
					for r := range 2 {
						emit(training, 3.75, fmt.Sprintf("[default%d]:Training epoch 0, iteration %d/2999 | lr: 1.499e-07 | global_batch_size: 512 | global_step: %d | reduced_train_loss: 2.03 | train_step_timing in s: 7.5 | consumed_samples: %d", r, n, n, 512*(n+1)))
					}
				}
			},
			first: 1, last: 3000, total: 3000, steps: 3000, per: 7.5,
		},
		{
			name: "nanochat's three trainings in one script", o: Options{Set: "nanochat", Trusted: true},
			play: func(emit func(said, float64, string)) {
				for n := range 2000 {
					emit(training, 1, fmt.Sprintf("step %05d/02000 (7.14%%) | loss: 3.790014 | lrm: 1.00 | dt: 990.00ms | tok/sec: 528,855 | bf16_mfu: 40.62 | total time: 0.20m", n))
					if n%250 == 0 {
						emit(foreign, 10, fmt.Sprintf("Step %05d | Validation bpb: 0.9", n))
					}
				}
				for n := range 500 {
					emit(training, 1, fmt.Sprintf("step %05d (0.1%%) | loss: 1.790014 | lrm: 1.00 | dt: 990.00ms | tok/sec: 528,855 | mfu: 40.62 | epoch: 1", n))
				}
			},
			first: 1, last: 1999 + 499, total: 0, steps: 2490, per: 0.99,
		},
		{
			name: "nanoGPT", o: Options{Set: "nanogpt", Trusted: true, Total: 5000},
			play: func(emit func(said, float64, string)) {
				for n := 0; n <= 5000; n += 10 {
					if n%250 == 0 {
						emit(foreign, 5, fmt.Sprintf("step %d: train loss 2.2874, val loss 2.2823", n))
						emit(foreign, 0, "saving checkpoint to out-shakespeare-char")
					}
					emit(training, 0.2, fmt.Sprintf("iter %d: loss 2.2654, time 20.00ms, mfu 26.88%%", n))
				}
			},
			first: 10, last: 5000, total: 5000, steps: 500, per: 0.02,
		},
		{
			name: "modded-nanogpt", o: Options{Set: "modded-nanogpt", Trusted: true},
			play: func(emit func(said, float64, string)) {
				for n := 0; n <= 6000; n++ {
					if n%125 == 0 {
						emit(foreign, 2, fmt.Sprintf("step:%d/6000 val_loss:3.28 train_time:%dms step_avg:nanms", n, n*250))
					}
					if n > 0 {
						emit(training, 0.3, fmt.Sprintf("step:%d/6000 train_loss:3.3 train_time:%dms step_avg:250.00ms", n, n*250))
					}
				}
			},
			first: 1, last: 6000, total: 6000, steps: 6000, per: 0.25,
		},
		{
			name: "torchtitan on eight ranks", o: Options{Set: "torchtitan", Trusted: true, Total: 1000},
			play: func(emit func(said, float64, string)) {
				for n := 1; n <= 1000; n++ {
					for r := range 8 {
						emit(training, 0.5, fmt.Sprintf("[rank%d]:[titan] 2026-03-04 10:00:00,000 - root - INFO - \x1b[31mstep: %2d  \x1b[32mloss:  8.1234  \x1b[34mgrad_norm:  1.2  \x1b[33mmemory: 12.34GiB(25.00%%)  \x1b[36mtps: 12,345  tflops: 1.0  mfu: 2%%\x1b[39m", r, n))
					}
				}
			},
			first: 1, last: 1000, total: 1000, steps: 1000, per: 4,
		},
		{
			name: "AutoModel, its epochs", o: Options{Set: "nemo-automodel", Trusted: true, Total: 2000},
			play: func(emit func(said, float64, string)) {
				for n := range 2000 {
					emit(training, 3, fmt.Sprintf("2026-03-04 10:00:00 | INFO | root | step %d | epoch %d | loss 1.2 | grad_norm 3.0 | lr 4.00e-06 | mem 34.45 GiB | tps 210.68(210.68/gpu) | num_label_tokens 4707", n, n/500))
					if n%100 == 0 {
						emit(foreign, 9, fmt.Sprintf("2026-03-04 10:00:00 | INFO | root | [val] step %d | epoch %d | loss 1.24", n, n/500))
					}
				}
			},
			first: 1, last: 1999, total: 2000, steps: 1999, per: 3,
		},
		{
			name: "verl", o: Options{Set: "verl", Trusted: true},
			play: func(emit func(said, float64, string)) {
				for e := range int64(6) {
					for n := range int64(300) {
						emit(training, 8, tqdm(fmt.Sprintf("Epoch %d/6", e+1), n, 300, float64(n)*8, 8, "it", "")+fmt.Sprintf("step:%d - train/loss:1.06 - train/lr(1e-3):0.00027", e*300+n+1))
					}
				}
			},
			first: 1, last: 1800, total: 1800, steps: 1800, per: 8,
		},
		{
			name: "kohya with samples", o: Options{Set: "kohya", Trusted: true},
			play: func(emit func(said, float64, string)) {
				emit(foreign, 1, "    total optimization steps / 学習ステップ数: 4000")
				for n := int64(0); n <= 4000; n++ {
					emit(training, 2, tqdm("steps", n, 4000, float64(n)*2, 2, "it", "avr_loss=0.117"))
					if n%500 == 0 {
						for i := int64(0); i <= 30; i++ {
							emit(foreign, 1, tqdm("", i, 30, float64(i), 1, "it", ""))
						}
					}
				}
			},
			first: 1, last: 4000, total: 4000, steps: 4000, per: 2,
		},
		{
			name: "diffusers gone on", o: Options{Set: "diffusers", Trusted: true},
			play: func(emit func(said, float64, string)) {
				emit(foreign, 1, "Resuming from checkpoint checkpoint-1800")
				for n := int64(1800); n <= 4500; n++ {
					emit(training, 6, tqdm("Steps", n, 4500, float64(n-1800)*6, 6, "it", "loss=0.356, lr=0.0001"))
					if n%500 == 0 {
						for i := int64(0); i <= 28; i++ {
							emit(foreign, 1, tqdm("", i, 28, float64(i), 1, "it", ""))
						}
						emit(foreign, 2, fmt.Sprintf("03/04/2026 10:00:00 - INFO - __main__ - Saved state to out/checkpoint-%d", n))
					}
				}
			},
			first: 1800, last: 4500, total: 4500, steps: 2701, per: 6,
		},
		{
			name: "ai-toolkit", o: Options{Set: "ai-toolkit", Trusted: true},
			play: func(emit func(said, float64, string)) {
				for i := int64(0); i <= 20; i++ {
					emit(foreign, 1, tqdm("Caching latents to disk", i, 20, float64(i), 1, "it", ""))
				}
				for n := int64(0); n <= 3000; n++ {
					emit(training, 0, tqdm("my_lora", n, 3000, float64(n)*10, 10, "it", "lr: 1.0e-04 loss: 6.468e-01"))
					emit(training, 10, tqdm("my_lora", n, 3000, float64(n)*10, 10, "it", "lr: 1.0e-04 loss: 6.468e-01"))
					if n%250 == 0 {
						for i := int64(0); i <= 2; i++ {
							emit(foreign, 10, tqdm("Generating Samples", i, 2, float64(i)*10, 10, "it", ""))
						}
					}
				}
			},
			first: 1, last: 3000, total: 3000, steps: 3000, per: 10,
		},
		{
			name: "Composer", o: Options{Set: "composer", Trusted: true, Epochs: 10},
			play: func(emit func(said, float64, string)) {
				for e := range int64(10) {
					for n := int64(0); n <= 200; n++ {
						emit(training, 0.5, tqdm(fmt.Sprintf("Epoch %d", e), n, 200, float64(n)/2, 0.5, "it", "loss/train=2.3023"))
					}
					for n := int64(0); n <= 20; n++ {
						emit(foreign, 0.1, tqdm(fmt.Sprintf("Epoch %d (val)", e), n, 20, float64(n)/10, 0.1, "it", "accuracy/val=0.0995"))
					}
				}
			},
			first: 1, last: 2000, total: 2000, steps: 2000, per: 0.5,
		},
		{
			name: "a loop without names, with a loss behind the bar", o: Options{Set: "generic"},
			play: func(emit func(said, float64, string)) {
				for i := int64(0); i <= 50; i++ {
					emit(foreign, 0.1, tqdm("", i, 50, float64(i)/10, 0.1, "it", ""))
				}
				for range 4 {
					for n := int64(0); n <= 500; n++ {
						emit(training, 1, tqdm("", n, 500, float64(n), 1, "it", "loss=1.5"))
					}
				}
			},
			first: 1, last: 2000, total: 2000, steps: 2000, per: 1,
		},
		{
			name: "workers that were started again draw a new bar", o: Options{Set: "hf", Trusted: true},
			play: func(emit func(said, float64, string)) {
				for _, from := range []int64{0, 500} {
					emit(training, 1, tqdm("", 0, 1000, 0, 0, "it", ""))
					for n := from + 1; n <= 1000 && (from > 0 || n <= 620); n++ {
						emit(training, 2, tqdm("", n, 1000, float64(n-from)*2, 2, "it", ""))
						if n%10 == 0 {
							emit(training, 0, fmt.Sprintf("{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': %.2f}", float64(n)/100))
						}
					}
				}
			},
			first: 1, last: 1000, total: 1000, steps: 1000, per: 2,
		},
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	for _, s := range streams() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := New(s.o)
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			var (
				last  Step
				first int64
				steps int
				times []float64
			)
			s.play(func(what said, dt float64, line string) {
				at = at.Add(time.Duration(dt * float64(time.Second)))
				read := func() (Step, bool) { return p.Line(line, at) }
				if s.record {
					read = func() (Step, bool) { return p.Record([]byte(line), at) }
				}
				st, ok := read()
				if !ok {
					return
				}
				check(t, st)
				if st.N < last.N || st.Advance != (st.N > last.N) {
					t.Fatalf("%d after %d: %+v\n%s", st.N, last.N, st, line)
				}
				if what == foreign && (st.Advance || st.Loss.OK) {
					t.Fatalf("no step: %+v\n%s", st, line)
				}
				if st.Advance {
					steps++
					if first == 0 {
						first = st.N
					}
					if st.StepTimeS.OK {
						times = append(times, st.StepTimeS.V)
					}
				}
				last = st
			})
			if first != s.first || last.N != s.last || last.Total != s.total || steps < s.steps {
				t.Errorf("from %d to %d/%d in %d steps, want %d to %d/%d in %d", first, last.N, last.Total, steps, s.first, s.last, s.total, s.steps)
			}
			slices.Sort(times)
			if len(times) < steps*8/10 {
				t.Fatalf("%d times of %d steps", len(times), steps)
			}
			if m := times[len(times)/2]; m < s.per*0.9 || m > s.per*1.1 {
				t.Errorf("a step takes %g s, want %g", m, s.per)
			}
			// Nothing that went on beside the training is in a step's time.
			if m := times[len(times)*99/100]; m > s.per*1.5 {
				t.Errorf("one step in a hundred takes %g s, want %g", m, s.per)
			}
		})
	}
}
