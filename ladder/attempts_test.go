package ladder

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// list loads a ladder that is a list of attempts.
func list(t *testing.T, text string) Ladder {
	t.Helper()
	l, err := Load(listFile(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func listFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "list.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestListOfAttempts(t *testing.T) {
	t.Parallel()
	l := list(t, "attempts: [{seq_len: 2048}, {seq_len: 1024, micro_batch: 1, accumulation: 16}, {method: lora}]\n")
	if got := l.RungNames(); !slices.Equal(got, []string{"step-1", "step-2", "step-3"}) {
		t.Errorf("%q", got)
	}
	for _, c := range []struct {
		name, knobs string
		set         func(*Situation)
		want        []string
		say         string
	}{
		{
			"from top to bottom", "seq_len=4096 micro_batch=8 accumulation=2 method=qlora",
			nil,
			[]string{"step-1: seq_len 4096->2048", "step-2: seq_len 2048->1024, micro_batch 8->1, accumulation 2->16", "step-3: method qlora->lora", StopUsedUp},
			"the effective batch stays 16",
		},
		{
			"another effective batch, as written", "seq_len=4096 micro_batch=8 accumulation=1 method=lora",
			nil,
			[]string{"step-1: seq_len 4096->2048", "step-2: seq_len 2048->1024, micro_batch 8->1, accumulation 1->16", StopUsedUp},
			"the effective batch goes from 8 to 16, as the list says",
		},
		{
			"the job is lower already", "seq_len=1024 micro_batch=8 accumulation=2 method=lora", nil,
			[]string{"step-2: micro_batch 8->1, accumulation 2->16", StopUsedUp},
			"length 2048 is more than the 1024 of the command, and a ladder never goes up",
		},
		{
			"full, without a rate", "seq_len=2048 micro_batch=1 accumulation=16 method=full", nil,
			[]string{"step-2: seq_len 2048->1024", StopUsedUp},
			"needs a learning rate of its own (--knob lora_lr=..., or --allow step-3",
		},
		{
			"full, allowed", "seq_len=1024 micro_batch=1 accumulation=16 method=full",
			func(s *Situation) { s.Allow = map[string]bool{"step-3": true} },
			[]string{"step-3: method full->lora", StopUsedUp},
			"allowed by --allow step-3",
		},
		{
			"a step denied", "seq_len=4096 micro_batch=8 accumulation=2 method=lora",
			func(s *Situation) { s.Deny = map[string]bool{"step-2": true} },
			[]string{"step-1: seq_len 4096->2048", StopUsedUp},
			"--deny step-2",
		},
		{
			"exact", "seq_len=4096 micro_batch=8 accumulation=2 method=lora",
			func(s *Situation) { s.Exact = true },
			[]string{StopUsedUp},
			"--exact: a shorter length",
		},
		{
			"an image trainer", "micro_batch=8 accumulation=2",
			func(s *Situation) { s.Job.Image = true },
			[]string{"step-2: micro_batch 8->1, accumulation 2->16", StopUsedUp},
			"their resolution is never touched",
		},
		{
			"shrinks by itself", "seq_len=4096 micro_batch=8 accumulation=2",
			func(s *Situation) { s.Job.SelfShrinks = "auto_find_batch_size" },
			[]string{"step-1: seq_len 4096->2048", "step-2: seq_len 2048->1024", StopUsedUp},
			"without the rest: the trainer makes its batch smaller by itself",
		},
		{
			"the profile's floor", "seq_len=4096 micro_batch=8 accumulation=2",
			func(s *Situation) { s.Job.Floor = 2048 },
			[]string{"step-1: seq_len 4096->2048", StopUsedUp},
			"length 1024 is below 2048",
		},
		{
			"opaque", "", func(s *Situation) { s.Job.Opaque = "train.sh" },
			[]string{"step-1: seq_len ->2048", "step-2: seq_len 2048->1024, micro_batch ->1, accumulation ->16", StopUsedUp},
			"by the shim",
		},
		{
			"it died in evaluation", "seq_len=4096 micro_batch=8 accumulation=2",
			func(s *Situation) { s.Past[0].Phase = "eval" },
			[]string{StopNothingLeft},
			"only the evaluation batch counts",
		},
		{
			"global family", "seq_len=1024 micro_batch=8 global_batch=16",
			func(s *Situation) { s.Job.Family = "global" },
			[]string{StopUsedUp},
			"the trainer derives accumulation from the global batch",
		},
		{
			"a value that is not taken", "seq_len=4096 micro_batch=1 accumulation=16",
			func(s *Situation) { choose(s, job.SeqLen, "512", "1024", "4096") },
			[]string{"step-2: seq_len 4096->1024", StopUsedUp},
			"the command does not take length 2048, only 512, 1024, 4096",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := died(c.knobs)
			s.MaxAttempts = 20
			s.ModelParams, s.BudgetBytes = sample.Known(1e9), sample.Known(1e11)
			s.Drop, s.CanDrop = nil, false
			if c.set != nil {
				c.set(&s)
			}
			var got []string
			var said strings.Builder
			for range 10 {
				d := l.Next(s)
				said.WriteString(d.Why + "\n" + notes(d) + "\n")
				if d.Act == "stop" {
					got = append(got, d.Stop)
					break
				}
				got = append(got, strings.Join(d.Rungs, "+")+": "+steps(d))
				s = then(s, d)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q", got)
			}
			if !strings.Contains(said.String(), c.say) {
				t.Errorf("%q lacks %q", said.String(), c.say)
			}
		})
	}
}

// An attempt that was passed over because it could not help is open still, and one that
// was taken never comes again.
func TestListGoesBack(t *testing.T) {
	t.Parallel()
	l := list(t, "attempts: [{seq_len: 2048, accumulation: 16}, {eval_batch: 1}, {micro_batch: 1, accumulation: 4}]\n")
	s := died("seq_len=4096 micro_batch=4 accumulation=1 eval_batch=8")
	s.MaxAttempts, s.CanDrop, s.Drop = 20, false, nil
	s.Past[0].Phase = "eval"
	var got []string
	for range 8 {
		d := l.Next(s)
		if d.Act == "stop" {
			got = append(got, d.Stop)
			break
		}
		got = append(got, steps(d))
		s = then(s, d)
		s.Past[len(s.Past)-1].Phase = "train"
	}
	if want := []string{"eval_batch 8->1", "seq_len 4096->2048, accumulation 1->16", "micro_batch 4->1, accumulation 16->4", StopUsedUp}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// What a list does not say of the batch stays as it was.
func TestListKeepsTheBatch(t *testing.T) {
	t.Parallel()
	l := list(t, "attempts: [drop-caches, {micro_batch: 2}, {micro_batch: 1, eval_batch: 1}]\n")
	for _, c := range []struct {
		knobs, steps, say string
		set               func(*Situation)
	}{
		{"micro_batch=8 accumulation=3", "micro_batch 8->2, accumulation 3->12", "accumulation 3 -> 12 (the effective batch stays the same)", nil},
		{"micro_batch=5 accumulation=1 eval_batch=8", "micro_batch 5->1, eval_batch 8->1, accumulation 1->5", "micro-batch 2 leaves no accumulation that keeps the effective batch 5: write accumulation beside it", nil},
		{"micro_batch=8", "", "what the effective batch would become is not known", nil},
		{"micro_batch=8 global_batch=16", "micro_batch 8->2", "", func(s *Situation) { s.Job.Family = "global" }},
		{"micro_batch=9 global_batch=9 eval_batch=1", "micro_batch 9->1", "micro-batch 2 does not divide the global batch 9", func(s *Situation) { s.Job.Family = "global" }},
		{"micro_batch=8 accumulation=1", "", "accumulation cannot be turned: no", func(s *Situation) { s.Fixed = map[job.Knob]string{job.Accumulation: "no"} }},
		{"micro_batch=1 seq_len=1024", "", "the evaluation batch is not a setting", nil},
		{"eval_batch=8 micro_batch=1", "eval_batch 8->1", "", func(s *Situation) { s.Past[0].Phase = "eval" }},
		{"micro_batch=1", "", "its settings are in force already", func(s *Situation) { s.Job.Knobs[job.EvalBatch] = job.Setting{Value: "1"} }},
		{"micro_batch=1 eval_batch=1", "", "micro-batch 2 is more than the 1 of the command, and a ladder never goes up", nil},
	} {
		s := died(c.knobs)
		if c.set != nil {
			c.set(&s)
		}
		d := l.Next(s)
		if steps(d) != c.steps || !strings.Contains(d.Why+"\n"+notes(d), c.say) {
			t.Errorf("%s: %s; %s\n%s", c.knobs, steps(d), d.Why, notes(d))
		}
	}
}

func TestBadLists(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"attempts:\n  - {seq_len: 1024}\n  - {seq_len: 2048}\n":                        ":3: seq_len goes up from 1024 (line 2) to 2048: a ladder never goes up",
		"attempts:\n  - {micro_batch: 1}\n  - {seq_len: 10}\n  - {micro_batch: 2}\n":   ":4: micro_batch goes up from 1 (line 2) to 2",
		"attempts:\n  - {seq_len: 1024}\n  - {seq_len: 1_024}\n":                       ":3: the attempt changes nothing",
		"attempts:\n  - {seqlen: 1024}\n":                                              ":2: an attempt cannot set \"seqlen\": it can set seq_len, micro_batch",
		"attempts:\n  - {output_dir: x}\n":                                             ":2: an attempt cannot set",
		"attempts:\n  - seq_len: 1024\n    micro_batch: [1]\n":                         ":3: micro_batch needs one value",
		"attempts:\n  - seq_len:\n":                                                    ":2: seq_len needs one value",
		"attempts:\n  - {seq_len: 0}\n":                                                ":2: seq_len: \"0\" is no whole number from 1 on",
		"attempts:\n  - {seq_len: -5}\n":                                               ":2: seq_len: \"-5\"",
		"attempts:\n  - {seq_len: 1e3}\n":                                              ":2: seq_len: \"1e3\"",
		"attempts:\n  - {seq_len: 99999999999}\n":                                      ":2: seq_len: ",
		"attempts:\n  - {method: full}\n":                                              ":2: method: a ladder goes to lora only",
		"attempts:\n  - {load_in_4bit: true}\n":                                        ":2: load_in_4bit: a ladder turns it to false only",
		"attempts:\n  - {grad_checkpoint: false}\n":                                    ":2: grad_checkpoint: a ladder turns it to true only",
		"attempts:\n  - {method: lora, learning_rate: NaN}\n":                          ":2: learning_rate: \"NaN\" is no learning rate",
		"attempts:\n  - {learning_rate: 1e-4}\n":                                       ":2: a learning rate goes with method: lora only",
		"attempts:\n  - {accumulation: 4}\n":                                           ":2: accumulation alone saves no memory",
		"attempts:\n  - {}\n":                                                          ":2: the attempt sets nothing",
		"attempts:\n  - {name: x}\n":                                                   ":2: the attempt sets nothing",
		"attempts:\n  - 2048\n":                                                        ":2: an attempt names its settings",
		"attempts:\n  - {seq_len: 1024}\n  - drop-caches\n":                            ":3: drop-caches must come first",
		"attempts: [drop-caches]\n":                                                    ":1: a list of attempts needs one that changes a setting",
		"attempts:\n  - {name: a, seq_len: 1024}\n  - {name: a, seq_len: 512}\n":       ":3: two attempts are called a",
		"attempts:\n  - {grad_accum: 2, accumulation: 3}\n":                            ":2: accumulation stands in the attempt twice",
		"attempts: {seq_len: 1}\n":                                                     ":1: ",
		"a: &a {seq_len: 1024}\nattempts: [*a]\n":                                      ":1: field a not found",
		"attempts:\n  - &a {seq_len: 1024}\n  - *a\n":                                  ": the attempt changes nothing",
		"attempts:\n  - &a {seq_len: 1024}\n  - {<<: *a, seq_len: 512}\n":              ":3: << needs one value",
		"attempts:\n  - {seq_len: 1024}\nrungs:\n  - {name: length, does: [length]}\n": ":1: a ladder has rungs or attempts, not both",
	} {
		path := listFile(t, text)
		_, err := Load(path)
		if err == nil || !strings.HasPrefix(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestListIsForecast(t *testing.T) {
	t.Parallel()
	l := list(t, "attempts: [drop-caches, {seq_len: 2048}, {seq_len: 1024, micro_batch: 1, accumulation: 16}, {name: adapter, method: lora, learning_rate: 1e-4}]\n")
	s := died("seq_len=4096 micro_batch=8 accumulation=2 method=full learning_rate=1e-5")
	const want = "may: drop caches, step-1: length 4096 -> 2048, step-2: length 2048 -> 1024, micro-batch 8 -> 1, accumulation 2 -> 16, adapter: method full -> lora, learning rate 1e-5 -> 1e-4 (a different experiment; --deny adapter)"
	if got := l.Forecast(s.Job, s); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
