package ladder

import (
	"slices"
	"strings"
	"testing"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// coded reads settings that stand in the script's code, each in a line of its own.
func coded(text string) job.Knobs {
	k := knobs(text)
	for i, w := range strings.Fields(text) {
		name, _, _ := strings.Cut(w, "=")
		set := k[job.Knob(name)]
		set.Source, set.Where = job.FromScript, "train.py:"+[]string{"7", "8", "9", "10", "11", "12"}[i]
		k[job.Knob(name)] = set
	}
	return k
}

// inCode is a situation of a script with constants in it.
func inCode(settings string) Situation {
	s := died("")
	s.Job.Knobs = coded(settings)
	return s
}

func opaque() Situation {
	s := died("")
	s.Job.Opaque = "train.sh is a shell script"
	return s
}

func notes(d Decision) string {
	var all []string
	for _, n := range d.Notes {
		all = append(all, n.Rung+" "+n.Kind+": "+n.Why)
	}
	return strings.Join(all, "\n")
}

// A script with constants in it walks down the whole ladder.
func TestConstantsInTheScript(t *testing.T) {
	t.Parallel()
	l, s := spark(t), inCode("seq_len=4096 micro_batch=8 accumulation=1 method=qlora load_in_4bit=True")
	s.MaxAttempts = 20
	s.ModelParams, s.BudgetBytes = sample.Known(8e9), sample.Known(110e9)
	var got []string
	for range 10 {
		d := l.Next(s)
		if d.Act == "stop" {
			got = append(got, d.Stop)
			break
		}
		if !strings.Contains(d.Why, "by the shim") {
			t.Errorf("nothing says that it is the shim: %s", d.Why)
		}
		got = append(got, steps(d))
		s = then(s, d)
	}
	want := []string{
		"seq_len 4096->2048", "seq_len 2048->1024",
		"micro_batch 8->4, accumulation 1->2", "micro_batch 4->2, accumulation 2->4", "micro_batch 2->1, accumulation 4->8",
		"method qlora->lora, load_in_4bit True->False", StopUsedUp,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestWhatOnlyTheShimTurns(t *testing.T) {
	t.Parallel()
	l := spark(t)
	for _, c := range []struct {
		name  string
		s     Situation
		set   func(*Situation)
		steps string
		say   string // in the notes, else in Why
		kind  string
	}{
		{"never", inCode("seq_len=4096"), func(s *Situation) { s.Shim = ShimNever }, "", "the length stands in the script's code (train.py:7), where only the shim reaches it (--shim never)", refused},
		{"out of its reach", inCode("seq_len=4096"), func(s *Situation) { s.Job.ShimRefused = "python -I ignores PYTHONPATH" }, "", "and the shim cannot reach it: python -I ignores PYTHONPATH", refused},
		{"a flag needs no shim", died("seq_len=4096"), func(s *Situation) { s.Shim, s.Job.ShimRefused = ShimNever, "x" }, "seq_len 4096->2048", "length 4096 -> 2048 (", ""},
		{"not known, opaque", opaque(), nil, "seq_len ->half", "length / 2, by the shim", ""},
		{"not known, opaque, always", opaque(), func(s *Situation) { s.Shim = ShimAlways }, "seq_len ->half", "length / 2, by the shim", ""},
		{"not known, opaque, never", opaque(), func(s *Situation) { s.Shim = ShimNever }, "", "the length is not seen (train.sh is a shell script), where only the shim reaches it", refused},
		{"not known, opaque, exact", opaque(), func(s *Situation) { s.Exact = true }, "micro_batch ->half", "with accumulation x 2", ""},
		{"not known and not opaque", died("output_dir=x"), nil, "", "the length is not a setting", notApplicable},
		{"evaluation, opaque", opaque(), func(s *Situation) { s.Past[0].Phase = "eval" }, "eval_batch ->half", "evaluation batch / 2, by the shim", ""},
		{"told by the user in an opaque command", opaque(), func(s *Situation) {
			s.Job.Knobs = job.Knobs{job.SeqLen: {Value: "4096", Source: job.FromUser, Where: "{seq_len}"}}
			s.Shim = ShimNever
		}, "seq_len 4096->2048", "length 4096 -> 2048 (", ""},
		{"the trainer's place is not certain", died("seq_len=4096 micro_batch=8 accumulation=1 method=full lora_lr=1"), func(s *Situation) { s.Job.Unsure = "option --x is not known" }, "", "the command is not changed: option --x is not known", notApplicable},
		{"cannot be turned", died("seq_len=4096 micro_batch=2 accumulation=1"), func(s *Situation) {
			s.Fixed = map[job.Knob]string{job.SeqLen: "the config is read-only"}
		}, "micro_batch 2->1, accumulation 1->2", "the length cannot be turned: the config is read-only", refused},
		{"accumulation cannot be turned", died("seq_len=1024 micro_batch=2 accumulation=1"), func(s *Situation) {
			s.Fixed = map[job.Knob]string{job.Accumulation: "it stands behind an anchor"}
		}, "", "accumulation cannot be turned: it stands behind an anchor", refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.set != nil {
				c.set(&c.s)
			}
			d := l.Next(c.s)
			if steps(d) != c.steps {
				t.Errorf("%s: %+v", steps(d), d)
			}
			where := d.Why
			if c.kind != "" {
				where = notes(d)
				c.say = " " + c.kind + ": " + c.say
				if i := strings.Index(c.say, ": and "); i >= 0 {
					c.say = c.say[i+2:]
				}
			}
			if !strings.Contains(where, c.say) {
				t.Errorf("%q lacks %q", where, c.say)
			}
			if c.s.Job.Unsure != "" && (d.Stop != StopNoRungs || d.Status75) {
				t.Errorf("a command that is not changed is called used up: %+v", d)
			}
			if c.s.Shim == ShimNever && d.Act == "stop" && !slices.Contains(d.Advice, reachWithShim) {
				t.Errorf("no word about the shim: %q", d.Advice)
			}
		})
	}
}

// What the shim has seen is known from then on, and the halving counts.
func TestAnOpaqueCommandThatHasBeenSeen(t *testing.T) {
	t.Parallel()
	l, s := spark(t), opaque()
	s.MaxAttempts = 20
	d := l.Next(s)
	if d.Knobs[job.SeqLen].Value != Half {
		t.Fatalf("%+v", d)
	}
	s = then(s, d)
	// Not seen: it is not halved blindly once more.
	if d := l.Next(s); steps(d) != "micro_batch ->half" || !strings.Contains(notes(d), "has not told how long it is") || d.Changes[0].To != Half {
		t.Errorf("%+v", d)
	}
	s.Job.Knobs = coded("seq_len=4096 micro_batch=2 accumulation=4")
	d = l.Next(s)
	if steps(d) != "seq_len 2048->1024" || d.Changes[0].From != "4096" || d.Changes[0].To != "1024" || len(d.Changes) != 1 {
		t.Fatalf("%+v", d)
	}
	s = then(s, d)
	if d = l.Next(s); steps(d) != "micro_batch 2->1, accumulation 4->8" || !strings.Contains(notes(d), "halved 2 times already") {
		t.Errorf("%+v", d)
	}
	// The shim does not go below its floor: nothing was halved.
	s = opaque()
	s = then(s, l.Next(s))
	s.Job.Knobs = coded("seq_len=1500")
	if d := l.Next(s); d.Knobs[job.SeqLen].Value != "1500" || steps(d) != "micro_batch ->half" {
		t.Errorf("%+v", d)
	}
	// A batch that was halved took its accumulation along.
	s = opaque()
	s.Exact = true
	s = then(s, l.Next(s))
	s.Job.Knobs = coded("micro_batch=9 accumulation=2")
	if d := l.Next(s); steps(d) != "micro_batch 3->1, accumulation 6->18" || d.Changes[0].From != "9" || d.Changes[1].From != "2" {
		t.Errorf("%+v", d)
	}
}

// A step that the shim did not carry out counts as not tried, and that way is closed.
func TestNotApplied(t *testing.T) {
	t.Parallel()
	l, s := spark(t), inCode("seq_len=4096 micro_batch=4 accumulation=1")
	missed := func(s Situation, d Decision, ks ...job.Knob) Situation {
		s = then(s, d)
		s.Past[len(s.Past)-1].NotApplied = ks
		return s
	}
	s1 := missed(s, l.Next(s), job.SeqLen)
	d := l.Next(s1)
	if steps(d) != "micro_batch 4->2, accumulation 1->2" || len(d.Changes) != 2 || d.Knobs[job.SeqLen].Value != "4096" {
		t.Fatalf("%+v", d)
	}
	if !strings.Contains(notes(d), "the shim did not reach the length in attempt 2") {
		t.Errorf("%s", notes(d))
	}
	// A step is one thing: accumulation without the batch would be another training.
	s2 := missed(s1, d, job.MicroBatch)
	if d := l.Next(s2); d.Act != "stop" || d.Knobs[job.MicroBatch].Value != "4" || d.Knobs[job.Accumulation].Value != "1" || d.Stop != StopUsedUp || !d.Status75 {
		t.Errorf("%+v", d)
	}
	// The same where the settings of the attempt were taken from what the shim saw.
	s5 := then(s, l.Next(s))
	s5.Past[1].Knobs, s5.Past[1].NotApplied = s.Job.Knobs.Clone(), []job.Knob{job.SeqLen}
	if d := l.Next(s5); steps(d) != "micro_batch 4->2, accumulation 1->2" || !strings.Contains(notes(d), "the shim did not reach the length in attempt 2") {
		t.Errorf("%+v", d)
	}
	// What was applied before stays, whatever a later attempt reports of it.
	s3 := then(s, l.Next(s))
	s3 = then(s3, l.Next(s3))
	s3 = missed(s3, l.Next(s3), job.SeqLen)
	if d := l.Next(s3); steps(d) != "micro_batch 2->1, accumulation 2->4" || d.Knobs[job.SeqLen].Value != "1024" {
		t.Errorf("%+v", d)
	}
	// A death in loading says nothing: the shim had not come to it.
	s4 := missed(s, l.Next(s), job.SeqLen)
	s4.Past[1].Phase = "load"
	s4.Drop.FreedKiB = 8 << 20
	if d := l.Next(s4); d.Again != AgainDropped || d.Knobs[job.SeqLen].Value != "2048" {
		t.Errorf("%+v", d)
	}
	// It is no cut that changed nothing, either.
	at := func(p *Past) { p.Step, p.RequestedBytes, p.PeakKiB = 40, sample.Known(2*gib), sample.Known(100<<20) }
	at(&s1.Past[0])
	at(&s1.Past[1])
	if d := l.Next(s1); d.Stop == StopNotMemory {
		t.Errorf("%+v", d)
	}
	s1.Past[1].NotApplied = nil
	if d := l.Next(s1); d.Stop != StopNotMemory {
		t.Errorf("the same with a real cut: %+v", d)
	}
}

// The steps and the schedule of a loop of the script's own follow from its batch and its
// accumulation, so they are never split another way: the batch falls alone, with leave.
func TestTrainingLoopOfTheScriptsOwn(t *testing.T) {
	t.Parallel()
	l := spark(t)
	profile := func(s *Situation) { s.Job.Profile = "argparse" }
	learned := func(s *Situation) {
		s.Job.Opaque = "train.sh is a shell script"
		for k, where := range map[job.Knob]string{job.MicroBatch: "DataLoader(batch_size=)", job.Accumulation: "Accelerator(gradient_accumulation_steps=)"} {
			s.Job.Knobs[k] = job.Setting{Value: s.Job.Knobs[k].Value, Source: job.FromScript, Where: where}
		}
	}
	allowed := func(s *Situation) { s.Allow = map[string]bool{AllowSmallerBatch: true} }
	exact := func(s *Situation) { allowed(s); s.Exact = true }
	argv := func(s *Situation) {
		set := s.Job.Knobs[job.MicroBatch]
		set.Source = job.FromArgv
		s.Job.Knobs[job.MicroBatch] = set
	}
	const refuses = "refused: the micro-batch is 8, and the script's own training loop works out its steps"
	for _, c := range []struct {
		name  string
		set   []func(*Situation)
		steps string
		say   string
	}{
		{"read in the code", []func(*Situation){profile}, "", refuses},
		{"learned", []func(*Situation){learned}, "", refuses},
		{"only accumulation in the code", []func(*Situation){profile, argv}, "", refuses},
		{"exact", []func(*Situation){profile, exact}, "", "--exact: in the script's own training loop a smaller micro-batch changes the effective batch"},
		{"allowed", []func(*Situation){profile, allowed}, "micro_batch 8->4", "keeps its accumulation: the effective batch falls from 16 to 8, allowed by --allow smaller-batch, tokens per optimizer step at most 16384 -> 8192, planned steps unknown, 2 times as many"},
		{"learned, allowed", []func(*Situation){learned, allowed}, "micro_batch 8->4", "keeps its accumulation"},
		{"only accumulation in the code, allowed", []func(*Situation){profile, argv, allowed}, "micro_batch 8->4", "keeps its accumulation"},
		{"arguments of a library", nil, "micro_batch 8->4, accumulation 2->4", "the effective batch stays 16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := inCode("seq_len=1024 micro_batch=8 accumulation=2")
			for _, set := range c.set {
				set(&s)
			}
			d := l.Next(s)
			if steps(d) != c.steps || !strings.Contains(d.Why+"\n"+notes(d), c.say) {
				t.Errorf("%q: %s\n%s", steps(d), d.Why, notes(d))
			}
		})
	}
	s := inCode("seq_len=4096 micro_batch=1 accumulation=8 packing=true")
	profile(&s)
	s.Allow = map[string]bool{AllowKeepTokens: true}
	if d := l.Next(s); steps(d) != "seq_len 4096->2048" || !strings.Contains(d.Why, "tokens are not kept: accumulation stands in the script's code, and the script's own training loop") {
		t.Errorf("%q: %s", steps(d), d.Why)
	}
	half := opaque()
	half.Job.Knobs, half.Past[0].Knobs = job.Knobs{}, nil
	half.Fixed = map[job.Knob]string{job.SeqLen: "x"}
	allowed(&half)
	if d := l.Next(half); steps(d) != "micro_batch ->half" || !strings.Contains(d.Why, "in a training loop of the script's own it falls") {
		t.Errorf("%q: %s", steps(d), d.Why)
	}
}
