package ladder

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder/trainer"
)

func spark(t *testing.T) Ladder {
	t.Helper()
	return named(t, "spark")
}

func named(t *testing.T, name string) Ladder {
	t.Helper()
	l, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// knobs reads "seq_len=4096 micro_batch=8".
func knobs(text string) job.Knobs {
	k := job.Knobs{}
	for _, w := range strings.Fields(text) {
		name, value, _ := strings.Cut(w, "=")
		k[job.Knob(name)] = job.Setting{Value: value, Source: job.FromArgv}
	}
	return k
}

// died is a situation with one attempt that ran out of memory in training.
func died(settings string) Situation {
	return Situation{
		Job:     job.Job{Argv: []string{"trl", "sft", "--x", "a b"}, Knobs: knobs(settings)},
		Past:    []Past{{Attempt: 1, Answer: AnswerOOM, Kind: "cuda-allocator", Phase: "train", Duration: time.Hour}},
		CanDrop: true,
		Drop:    &Drop{Done: true, How: "system", FreedKiB: 100 << 10},
	}
}

// then is the situation after the attempt that d decided on has died as well.
func then(s Situation, d Decision) Situation {
	p := s.Past[len(s.Past)-1]
	p.Attempt++
	p.Rungs, p.Knobs, p.Progressed = d.Rungs, d.Knobs, false
	s.Past = append(slices.Clone(s.Past), p)
	return s
}

func steps(d Decision) string {
	words := make([]string, len(d.Step))
	for i, c := range d.Step {
		words[i] = string(c.Knob) + " " + c.From + "->" + c.To
	}
	return strings.Join(words, ", ")
}

func TestSparkLadderFromTopToBottom(t *testing.T) {
	t.Parallel()
	l, s := spark(t), died("seq_len=4096 micro_batch=6 accumulation=2 packing=true method=full lora_lr=1e-4 learning_rate=1e-5")
	s.Past[0].Duration = time.Minute
	s.Drop.FreedKiB = 8 << 20
	s.MaxAttempts = 20
	var got []string
	for range 20 {
		d := l.Next(s)
		if d.Act == "stop" {
			got = append(got, "stop "+d.Stop)
			if !d.Status75 {
				t.Error("the used-up ladder does not end with 75")
			}
			break
		}
		got = append(got, strings.Join(d.Rungs, "+")+": "+steps(d))
		s = then(s, d)
	}
	want := []string{
		"drop-caches: ",
		"drop-caches+shorter-packing: seq_len 4096->2048",
		"drop-caches+shorter-packing: seq_len 2048->1024",
		"drop-caches+shorter-packing: micro_batch 6->3, accumulation 2->4",
		"drop-caches+shorter-packing: micro_batch 3->1, accumulation 4->12",
		"drop-caches+bf16-lora: method full->lora, learning_rate 1e-5->1e-4",
		"stop used-up",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestChangesAreCumulative(t *testing.T) {
	t.Parallel()
	l, s := spark(t), died("seq_len=4096 micro_batch=8 accumulation=1")
	for range 3 {
		s = then(s, l.Next(s))
	}
	d := l.Next(s)
	want := []trainer.Change{
		{Knob: job.SeqLen, From: "4096", To: "1024", Reason: "from an earlier rung"},
		{Knob: job.MicroBatch, From: "8", To: "2", Reason: "fewer rows at once"},
		{Knob: job.Accumulation, From: "1", To: "4", Reason: "the effective batch stays the same"},
	}
	if diff := cmp.Diff(want, d.Changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if steps(d) != "micro_batch 4->2, accumulation 2->4" || d.Knobs[job.SeqLen].Value != "1024" {
		t.Errorf("step %s, knobs %v", steps(d), d.Knobs)
	}
	// A retry with nothing new keeps what is in force.
	s.Past[len(s.Past)-1].Answer = AnswerUnsure
	if d := l.Next(s); d.Act != "retry" || len(d.Rungs) != 0 || len(d.Step) != 0 || len(d.Changes) != 3 || d.Changes[0].To != "1024" {
		t.Errorf("after an unsure death: %+v", d)
	}
}

func TestDropCaches(t *testing.T) {
	t.Parallel()
	l := spark(t)
	for _, c := range []struct {
		name  string
		set   func(*Situation)
		alone bool
		why   string
	}{
		{"short and enough", func(*Situation) {}, true, "freed 8.0 GiB: the same settings again"},
		{"long", func(s *Situation) { s.Past[0].Duration = 15 * time.Minute }, false, "ran 15 min and cannot resume"},
		{"long but can resume", func(s *Situation) { s.Past[0].Duration = time.Hour; s.CanResume = true }, true, "the same settings"},
		{"less than a GiB", func(s *Situation) { s.Drop.FreedKiB = 1<<20 - 1 }, false, "too little"},
		{"nothing", func(s *Situation) { s.Drop.FreedKiB = -5 }, false, "freed 0.0 GiB, too little"},
		{"less than was missing", func(s *Situation) { s.Drop.MissingKiB = sample.Known(9 << 20) }, false, "less than the 9.0 GiB"},
		{"as much as was missing", func(s *Situation) { s.Drop.MissingKiB = sample.Known(8 << 20) }, true, "same settings"},
		{"only files", func(s *Situation) { s.Drop.How = "files" }, true, "this job's files"},
		{"failed", func(s *Situation) { s.Drop = &Drop{Err: "permission denied"} }, false, ""},
		{"not possible", func(s *Situation) { s.Drop, s.CanDrop = nil, false }, false, ""},
		{"denied", func(s *Situation) { s.Deny = map[string]bool{"drop-caches": true} }, false, ""},
		{"ended by the guard", func(s *Situation) { s.Past[0].Kind = "guard" }, false, "counted as available"},
		{"ended by the guard after progress", func(s *Situation) {
			s.Past[0].Kind, s.Past[0].Progressed, s.CanResume = "guard", true, true
		}, true, "resuming with the same settings"},
		{"tried before", func(s *Situation) {
			s.Past = append(s.Past, s.Past[0])
			s.Past[1].Rungs = []string{"drop-caches"}
		}, false, "did not help by itself"},
		{"again after progress", func(s *Situation) {
			s.Past = append(s.Past, s.Past[0])
			s.Past[0].Rungs, s.Past[1].Rungs, s.Past[1].Progressed = []string{"drop-caches"}, []string{"drop-caches"}, true
			s.CanResume = true
		}, true, "resuming with the same settings"},
		{"progress that cannot be resumed", func(s *Situation) {
			s.Past = append(s.Past, s.Past[0])
			s.Past[1].Rungs, s.Past[1].Progressed = []string{"drop-caches"}, true
		}, false, "did not help by itself"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := died("seq_len=4096")
			s.Past[0].Duration = time.Minute
			s.Drop.FreedKiB = 8 << 20
			c.set(&s)
			d := l.Next(s)
			if d.Act != "retry" || !strings.Contains(d.Why, c.why) {
				t.Fatalf("%+v", d)
			}
			want := []string{"drop-caches", "shorter-packing"}
			switch {
			case c.alone:
				want = want[:1]
			case s.Drop == nil || !s.Drop.Done || s.Deny["drop-caches"]:
				want = want[1:]
				if len(d.Notes) == 0 || d.Notes[0].Rung != "drop-caches" || d.Notes[0].Kind != "refused" || d.Notes[0].Why == "" {
					t.Errorf("no note on the missing drop: %+v", d.Notes)
				}
			}
			if !slices.Equal(d.Rungs, want) || (len(d.Step) == 0) != c.alone {
				t.Errorf("rungs %q steps %q", d.Rungs, steps(d))
			}
		})
	}
}

func TestStops(t *testing.T) {
	t.Parallel()
	l := spark(t)
	for _, c := range []struct {
		name, knobs string
		set         func(*Situation)
		stop        string
		is75        bool
		advice      string
	}{
		{"success", "seq_len=4096", func(s *Situation) { s.Past[0].Answer = AnswerSuccess }, "success", false, ""},
		{"another cause", "seq_len=4096", func(s *Situation) { s.Past[0].Answer = AnswerNotOOM }, "not-oom", false, ""},
		{"an answer of tomorrow", "seq_len=4096", func(s *Situation) { s.Past[0].Answer = "who-knows" }, "not-oom", false, ""},
		{"retries off", "seq_len=4096", func(s *Situation) { s.NoRetry = true }, "no-retry", false, ""},
		{"retries off, unsure", "seq_len=4096", func(s *Situation) { s.NoRetry = true; s.Past[0].Answer = AnswerUnsure }, "no-retry", false, ""},
		{"unsure twice", "seq_len=4096", func(s *Situation) {
			s.Past = append(s.Past, s.Past[0], s.Past[0])
			s.Past[0].Answer, s.Past[2].Answer = AnswerUnsure, AnswerUnsure
		}, "unsure-again", false, ""},
		{"most attempts", "seq_len=4096", func(s *Situation) { s.MaxAttempts = 1 }, "max-attempts", true, ""},
		{"most attempts, one unsure", "seq_len=4096", func(s *Situation) {
			s.Past = append(s.Past, s.Past[0])
			s.Past[0].Answer, s.MaxAttempts = AnswerUnsure, 2
		}, "max-attempts", false, ""},
		{"eight attempts by default", "seq_len=4096", func(s *Situation) { s.Past = slices.Repeat(s.Past, 8) }, "max-attempts", true, ""},
		{"container", "seq_len=4096", func(s *Situation) { s.Job.Container = &job.Container{Engine: "docker"} }, "no-rungs", false, ""},
		{"container, unsure", "", func(s *Situation) { s.Job.Container = &job.Container{}; s.Past[0].Answer = AnswerUnsure }, "no-rungs", false, ""},
		{"two machines", "seq_len=4096", func(s *Situation) { s.Job.Nodes = 2 }, "no-rungs", false, ""},
		{"nothing known", "output_dir=x", func(*Situation) {}, "no-rungs", true, "--knob seq_len=4096"},
		{"shared memory", "seq_len=4096", func(s *Situation) { s.Past[0].Kind = "shm" }, "no-lever", false, "--shm-size"},
		{"disk", "seq_len=4096", func(s *Situation) { s.Past[0].Kind = "disk" }, "no-lever", false, "disk"},
		{"build", "seq_len=4096", func(s *Situation) { s.Past[0].Kind = "build" }, "no-lever", false, "MAX_JOBS"},
		{"exhausted", "micro_batch=8 accumulation=1", func(s *Situation) { s.Past[0].Kind = "exhausted" }, "used-up", true, "one row at a time"},
		{"loading", "seq_len=4096 micro_batch=8 accumulation=1 method=full lora_lr=1", func(s *Situation) { s.Past[0].Phase = "load" }, "nothing-left", true, "close what else"},
		{"evaluation without its batch", "seq_len=4096 micro_batch=8 accumulation=1", func(s *Situation) { s.Past[0].Phase = "eval" }, "nothing-left", true, "fewer or shorter rows"},
		{"lora without a learning rate", "seq_len=1024 micro_batch=1 accumulation=8 method=full learning_rate=2e-05", func(*Situation) {}, "used-up", true, "to go on with LoRA: sparkrun --knob lora_lr=0.0002 -- trl sft --x 'a b'"},
		{"4-bit of unknown size", "seq_len=1024 method=qlora", func(s *Situation) { s.BudgetBytes = sample.Known(1e12) }, "used-up", true, "smaller model"},
		{"micro-batch without accumulation", "seq_len=1024 micro_batch=8", func(*Situation) {}, "used-up", true, "smaller model"},
		{"everything denied", "seq_len=4096", func(s *Situation) {
			s.Deny = map[string]bool{"drop-caches": true, "shorter-packing": true, "bf16-lora": true}
		}, "used-up", true, "smaller model"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := died(c.knobs)
			c.set(&s)
			d := l.Next(s)
			if d.Act != "stop" || d.Stop != c.stop || d.Status75 != c.is75 || d.Why == "" || len(d.Rungs)+len(d.Step)+len(d.Changes) > 0 {
				t.Errorf("%+v", d)
			}
			if advice := strings.Join(d.Advice, "\n"); !strings.Contains(advice, c.advice) {
				t.Errorf("advice %q lacks %q", advice, c.advice)
			}
			if c.stop != "used-up" && c.stop != "nothing-left" && c.name != "nothing known" && l.WantsDrop(s) {
				t.Error("a drop is wanted although nothing will be tried")
			}
		})
	}
	if d := l.Next(Situation{}); d.Act != "stop" {
		t.Errorf("no attempt at all: %+v", d)
	}
}

func TestRungs(t *testing.T) {
	t.Parallel()
	const most = "seq_len=4096 micro_batch=8 accumulation=3 eval_batch=9 packing=false method=qlora load_in_4bit=true"
	for _, c := range []struct {
		name, ladder, knobs string
		set                 func(*Situation)
		steps, why          string
		note                string
	}{
		{"length first", "", most, nil, "seq_len 4096->2048", "tokens per optimizer step at most 98304 -> 49152", ""},
		{"packed", "", "seq_len=4096 micro_batch=1 accumulation=1 packing=true", nil, "seq_len 4096->2048", "tokens per optimizer step 4096 -> 2048", ""},
		{"odd length", "", "seq_len=4095", nil, "seq_len 4095->2047", "length 4095 -> 2047", ""},
		{"half would be below the floor", "", "seq_len=2047 micro_batch=7 accumulation=1", nil, "micro_batch 7->1, accumulation 1->7", "the effective batch stays 7", "half of it is below 1024"},
		{"the profile's floor", "", "seq_len=4096 micro_batch=9 accumulation=1", func(s *Situation) { s.Floor = 4096 }, "micro_batch 9->3, accumulation 1->3", "", "below 4096"},
		{"no length", "", "micro_batch=4 accumulation=1", nil, "micro_batch 4->2, accumulation 1->2", "", "length is not a setting"},
		{"global batch", "", "micro_batch=6 global_batch=24", nil, "micro_batch 6->3", "the effective batch stays 24", ""},
		{"twice halved", "", "seq_len=16384 micro_batch=2 accumulation=1", func(s *Situation) {
			s.Past = append(s.Past, s.Past[0], s.Past[0])
			s.Past[1].Knobs, s.Past[2].Knobs = knobs("seq_len=8192 micro_batch=2 accumulation=1"), knobs("seq_len=4096 micro_batch=2 accumulation=1")
		}, "micro_batch 2->1, accumulation 1->2", "", "halved 2 times already"},
		{"exact", "", most, func(s *Situation) { s.Exact = true }, "micro_batch 8->4, accumulation 3->6", "", "--exact"},
		{"evaluation", "", most, func(s *Situation) { s.Past[0].Phase = "eval" }, "eval_batch 9->3", "the training stays the same", "only the evaluation batch counts"},
		{"host memory uses the same rungs", "", most, func(s *Situation) { s.Past[0].Kind = "host-alloc" }, "seq_len 4096->2048", "", ""},
		{"a kernel kill too", "", most, func(s *Situation) { s.Past[0].Kind = "cgroup" }, "seq_len 4096->2048", "", ""},
		{"denied", "", "seq_len=4096 method=full", func(s *Situation) {
			s.Deny = map[string]bool{"shorter-packing": true}
			s.Allow = map[string]bool{"bf16-lora": true}
		}, "method full->lora", "allowed by --allow", "--deny shorter-packing"},
		{"lora with its rate", "", "method=full learning_rate=1e-5 lora_lr=1e-4", nil, "method full->lora, learning_rate 1e-5->1e-4", "a different experiment", ""},
		{"4-bit to 16-bit where it fits", "", "seq_len=1024 method=qlora load_in_4bit=true", func(s *Situation) {
			s.ModelParams, s.BudgetBytes = sample.Known(8e9), sample.Known(32e9)
		}, "method qlora->lora, load_in_4bit true->false", "LoRA in bfloat16 (8.0 billion parameters x 2 bytes x 2 copies while loading = 32.0 GB of a budget of 32.0 GB; a different experiment)", "not a full fine-tune"},
		{"preserving: checkpointing first", "preserving", most + " grad_checkpoint=false", nil, "grad_checkpoint false->True", "same training", ""},
		{"preserving: batch before length", "preserving", most + " grad_checkpoint=true", nil, "micro_batch 8->4, accumulation 3->6", "", "on already"},
		{"preserving: length last", "preserving", "seq_len=4096 micro_batch=1 accumulation=8", nil, "seq_len 4096->2048", "", "1 already"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := died(c.knobs)
			if c.set != nil {
				c.set(&s)
			}
			d := named(t, c.ladder).Next(s)
			if steps(d) != c.steps || !strings.Contains(d.Why, c.why) {
				t.Errorf("%s: %s", steps(d), d.Why)
			}
			var notes []string
			for _, n := range d.Notes {
				notes = append(notes, n.Rung+" "+n.Kind+": "+n.Why)
			}
			if !strings.Contains(strings.Join(notes, "\n"), c.note) {
				t.Errorf("notes %q lack %q", notes, c.note)
			}
		})
	}
}

func TestForecast(t *testing.T) {
	t.Parallel()
	l := spark(t)
	for _, c := range []struct {
		name, knobs string
		set         func(*Situation)
		want        string
	}{
		{"the whole ladder", "seq_len=4096 micro_batch=4 accumulation=1 method=full lora_lr=1e-4", nil, "may: drop caches, length 4096 -> 2048 -> 1024, micro-batch 4 -> 2 -> 1 (same effective batch), then LoRA (a different experiment; --deny bf16-lora)"},
		{"no rate for lora", "seq_len=4096 method=full", nil, "may: drop caches, length 4096 -> 2048 -> 1024; not bf16-lora: LoRA is a different experiment and needs a learning rate of its own (--knob lora_lr=..., or --allow bf16-lora to keep the present one)"},
		{"cannot drop, lora denied", "seq_len=2048 method=full lora_lr=1", func(s *Situation) { s.CanDrop = false; s.Deny = map[string]bool{"bf16-lora": true} }, "may: length 2048 -> 1024"},
		{"exact", "seq_len=4096 micro_batch=2 accumulation=1 method=full", func(s *Situation) { s.Exact = true }, "may: drop caches, micro-batch 2 -> 1 (same effective batch)"},
		{"unknown", "", nil, "may: drop caches; no setting of the command is known (tell them: --knob seq_len=4096 -- COMMAND --len {seq_len})"},
		{"container", "seq_len=4096", func(s *Situation) { s.Job.Container = &job.Container{Engine: "docker"} }, "no retries: the training runs inside a container of docker, and whether its processes are gone cannot be known"},
		{"container that can be ended", "seq_len=4096", func(s *Situation) {
			s.Job.Container, s.ContainerEnds = &job.Container{Engine: "docker"}, true
		}, "may: drop caches, length 4096 -> 2048 -> 1024"},
		{"two machines", "seq_len=4096", func(s *Situation) { s.Job.Nodes = 2 }, "no retries: the job spans 2 machines, and all of them would have to change together"},
		{"the place is not certain", "seq_len=4096", func(s *Situation) {
			s.Job.Unsure = "option --x of accelerate launch is not known"
		}, "may: drop caches; no setting is changed: option --x of accelerate launch is not known"},
		{"written in the script", "", func(s *Situation) {
			s.Job.Knobs = coded("seq_len=4096 micro_batch=8 accumulation=1 method=qlora load_in_4bit=True")
			s.ModelParams, s.BudgetBytes = sample.Known(8e9), sample.Known(110e9)
		}, "may: drop caches, length 4096 -> 2048 -> 1024 (by the shim), micro-batch 8 -> 4 -> 2 -> 1 (same effective batch; by the shim), then LoRA in 16 bit (by the shim; a different experiment; --deny bf16-lora)"},
		{"written in the script, no shim", "", func(s *Situation) {
			s.Job.Knobs = coded("seq_len=4096")
			s.Shim = ShimNever
		}, "may: drop caches; length stays: the length stands in the script's code (train.py:7), where only the shim reaches it (--shim never)"},
		{"opaque", "", func(s *Situation) { s.Job.Opaque = "train.sh is a shell script" }, "may: drop caches, length / 2 (by the shim), micro-batch / 2 (same effective batch; by the shim)"},
		{"opaque and out of reach", "", func(s *Situation) {
			s.Job.Opaque, s.Job.ShimRefused = "train.sh is a shell script", "env -i would have to be changed"
		}, "may: drop caches; the settings of the command are not seen (train.sh is a shell script); length stays: the length is not seen (train.sh is a shell script), and the shim cannot reach it: env -i would have to be changed; micro-batch stays: the micro-batch is not seen (train.sh is a shell script), and the shim cannot reach it: env -i would have to be changed"},
		{"images", "seq_len=512 micro_batch=4 accumulation=1", func(s *Situation) { s.Job.Image = true }, "may: drop caches, micro-batch 4 -> 2 -> 1 (same effective batch); images: the resolution is never touched"},
		{"shrinks by itself", "seq_len=2048 micro_batch=4 accumulation=1", func(s *Situation) { s.Job.SelfShrinks = "auto_find_batch_size" }, "may: drop caches, length 2048 -> 1024; the batch is left to the trainer: auto_find_batch_size"},
		{"too large in 16 bit", "seq_len=1024 method=qlora", func(s *Situation) {
			s.ModelParams, s.BudgetBytes = sample.Known(70e9), sample.Known(110e9)
		}, "may: drop caches; not bf16-lora: the weights do not fit in 16 bit: 70.0 billion parameters x 2 bytes x 2 copies while loading = 280.0 GB of a budget of 110.0 GB"},
		{"no accumulation", "micro_batch=4", func(s *Situation) { s.Allow = map[string]bool{AllowSmallerBatch: true} }, "may: drop caches, micro-batch 4 -> 2 -> 1 (a smaller effective batch)"},
		{"off", "seq_len=4096", func(s *Situation) { s.NoRetry = true }, "no retries (--no-retry)"},
		{"nothing at all", "seq_len=1024", func(s *Situation) { s.CanDrop = false }, "no rung can fire"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := died(c.knobs)
			s.Past = nil
			if c.set != nil {
				c.set(&s)
			}
			before := s.Job.Knobs.Clone()
			if got := l.Forecast(s.Job, s); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if diff := cmp.Diff(before, s.Job.Knobs); diff != "" {
				t.Errorf("the job was changed: %s", diff)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	if l := named(t, ""); l.Name != "spark" || !slices.Equal(l.RungNames(), []string{"drop-caches", "shorter-packing", "bf16-lora"}) || l.About() == "" {
		t.Errorf("the default is %q %q", l.Name, l.RungNames())
	}
	if got := Names(); !slices.Equal(got, []string{"spark", "preserving"}) {
		t.Errorf("built in: %q", got)
	}
	if _, err := Load("sprak"); err == nil || !strings.Contains(err.Error(), "spark, preserving") {
		t.Errorf("unknown name: %v", err)
	}
	dir := t.TempDir()
	write := func(text string) string {
		f, err := os.CreateTemp(dir, "*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return f.Name()
	}
	mine := write("name: mine\nrungs:\n  - {name: shorter, does: [length], floor: 256, halvings: 3}\n")
	s := died("seq_len=1000")
	if d := named(t, mine).Next(s); steps(d) != "seq_len 1000->500" || !slices.Equal(d.Rungs, []string{"shorter"}) {
		t.Errorf("own ladder: %+v", d)
	}
	for text, want := range map[string]string{
		"name: x\nrung: []\n":  ":2: field rung not found",
		"name: x\nrungs: []\n": ":2: a ladder needs rungs",
		"rungs: [{name: a, does: [length]}]\nattempts: [{seq_len: 1}]\n":             ":2: a ladder has rungs or attempts, not both",
		"rungs:\n  - {does: [length]}\n":                                             ":2: a rung needs a name",
		"rungs:\n  - name: a\n    does: [length]\n  - name: a\n    does: [length]\n": ":4: two rungs",
		"rungs:\n  - name: a\n    does: [shrink]\n":                                  ":3: rung a cannot do",
		"rungs:\n  - name: a\n":                                                      ":2: rung a does nothing",
		"rungs:\n  - name: a\n    does: [length]\n  - name: b\n    does: [length]\n": ":5: length stands in the ladder twice",
		"rungs:\n  - name: a\n    does: [length, drop-caches]\n":                     ":3: drop-caches must be the first",
		"rungs:\n  - name: a\n    does: [length]\n    floor: -1\n":                   ":2: halvings and floor",
		"rungs: 3\n": ":1: ",
	} {
		path := write(text)
		if _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), path+want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := Load(filepath.Join(dir, "gone.yaml")); err == nil || !strings.Contains(err.Error(), "there is no ladder file") {
		t.Errorf("a missing file: %v", err)
	}
}
