package ladder

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder/trainer"
)

// walk runs a ladder against deaths drawn at random until it stops, and gives
// every decision to see. A plain job has flags only and no wishes of the user's.
func walk(t *rapid.T, l Ladder, plain bool, see func(s Situation, d Decision)) {
	jobKnobs := job.Knobs{}
	number := func(k job.Knob, most int) {
		if rapid.Bool().Draw(t, string(k)+" known") {
			s := strconv.Itoa(rapid.IntRange(1, most).Draw(t, string(k)))
			jobKnobs[k] = job.Setting{Value: s}
		}
	}
	number(job.SeqLen, 40000)
	number(job.MicroBatch, 200)
	number(job.Accumulation, 64)
	number(job.EvalBatch, 64)
	if m := rapid.SampledFrom([]string{"", "full", "lora", "qlora"}).Draw(t, "method"); m != "" {
		jobKnobs[job.Method] = job.Setting{Value: m}
	}
	if rapid.Bool().Draw(t, "rate") {
		jobKnobs[job.LoRALR] = job.Setting{Value: "1e-4"}
	}
	s := Situation{
		Job:         job.Job{Argv: []string{"x"}, Knobs: jobKnobs},
		MaxAttempts: rapid.IntRange(1, 40).Draw(t, "most attempts"),
		Exact:       rapid.Bool().Draw(t, "exact"),
		CanDrop:     rapid.Bool().Draw(t, "can drop"),
		CanResume:   rapid.Bool().Draw(t, "can resume"),
	}
	if rapid.IntRange(0, 9).Draw(t, "container") == 0 {
		s.Job.Container, s.ContainerEnds = &job.Container{Engine: "docker"}, rapid.Bool().Draw(t, "ends")
	}
	number(job.NumWorkers, 2)
	if rapid.Bool().Draw(t, "size known") {
		s.ModelParams, s.BudgetBytes = sample.Known(8e9), sample.Known(rapid.Float64Range(1e9, 3e10).Draw(t, "budget"))
	}
	if !plain {
		drawCommand(t, l, &s)
	}
	d := Decision{Knobs: jobKnobs}
	for n := 1; n <= 41; n++ {
		p := Past{
			Attempt: n, Rungs: d.Rungs, Knobs: d.Knobs,
			Answer:     rapid.SampledFrom([]string{AnswerOOM, AnswerOOM, AnswerOOM, AnswerOOM, AnswerOOM, AnswerOOM, AnswerUnsure, AnswerNotOOM}).Draw(t, "answer"),
			Kind:       rapid.SampledFrom([]string{"cuda-allocator", "kernel-oom", "host-alloc", "cuda-allocator", "co-tenant", "exhausted", "shm"}).Draw(t, "kind"),
			Phase:      rapid.SampledFrom([]string{"train", "train", "train", "eval", "load", "save", "optimizer-init", "unknown"}).Draw(t, "phase"),
			Lever:      rapid.SampledFrom([]string{"", "micro-batch", "micro-batch", "workers", "workers", "wait", "wait", "disk", "pin-memory"}).Draw(t, "lever"),
			Cause:      rapid.SampledFrom([]string{"", "", "worker", "fork"}).Draw(t, "cause"),
			Duration:   time.Duration(rapid.IntRange(0, 60).Draw(t, "minutes")) * time.Minute,
			Progressed: rapid.Bool().Draw(t, "progressed"),
			Finished:   rapid.IntRange(0, 19).Draw(t, "finished") == 0,
			Lost:       rapid.IntRange(0, 9).Draw(t, "lost") == 0,
			Step:       rapid.Int64Range(0, 6).Draw(t, "step"),
			Exception:  rapid.SampledFrom([]string{"", "MemoryError", "TypeError: x"}).Draw(t, "exception"),
		}
		if rapid.Bool().Draw(t, "sizes known") {
			p.PeakKiB, p.RequestedBytes = sample.Known(1e8), sample.Known(float64(rapid.IntRange(1, 3).Draw(t, "GiB"))*gib)
		}
		if !plain {
			s.Job.Knobs = drawShim(t, s, &p, d.Step)
		}
		s.Past = append(s.Past, p)
		s.Drop = nil
		if l.WantsDrop(s) {
			s.Drop = &Drop{Done: rapid.Bool().Draw(t, "dropped"), How: "system", FreedKiB: rapid.Int64Range(0, 20<<20).Draw(t, "freed")}
		}
		d = l.Next(s)
		see(s, d)
		if d.Act == "stop" {
			return
		}
		if len(s.Past) >= s.MaxAttempts {
			t.Fatalf("attempt %d of at most %d", len(s.Past)+1, s.MaxAttempts)
		}
	}
	t.Fatal("the ladder does not end")
}

// drawCommand gives the job all that a command may have: settings in the script's code,
// values it takes, what cannot be turned, and what the user allows.
func drawCommand(t *rapid.T, l Ladder, s *Situation) {
	some := func(what string, n int) bool { return rapid.IntRange(0, n-1).Draw(t, what) == 0 }
	j := &s.Job
	for _, k := range j.Knobs.Names() {
		set := j.Knobs[k]
		set.Source = rapid.SampledFrom([]job.Source{job.FromArgv, job.FromScript, job.FromDefault}).Draw(t, string(k)+" source")
		if some(string(k)+" has choices", 5) {
			for n := 1; n <= 32768; n *= 2 {
				set.Choices = append(set.Choices, strconv.Itoa(n))
			}
		}
		j.Knobs[k] = set
		if some(string(k)+" is fixed", 8) {
			if s.Fixed == nil {
				s.Fixed = map[job.Knob]string{}
			}
			s.Fixed[k] = "so it is"
		}
	}
	j.Family = rapid.SampledFrom([]string{"", "per-device", "global"}).Draw(t, "family")
	j.Procs = rapid.IntRange(0, 4).Draw(t, "procs")
	if some("global batch", 3) {
		j.Knobs[job.GlobalBatch] = job.Setting{Value: rapid.SampledFrom([]string{"-1", "24", "64", "128"}).Draw(t, "global batch")}
	}
	if some("packed", 2) {
		j.Knobs[job.Packing] = job.Setting{Value: "True"}
	}
	words := func(what string, n int) string {
		if some(what, n) {
			return what
		}
		return ""
	}
	j.Opaque, j.Unsure, j.ShimRefused, j.SelfShrinks = words("opaque", 3), words("unsure", 12), words("refused", 8), words("shrinks", 8)
	j.Image = some("image", 8)
	j.Floor = int64(rapid.SampledFrom([]int{0, 0, 2048}).Draw(t, "floor"))
	s.Shim = rapid.SampledFrom([]string{"", ShimAuto, ShimAlways, ShimNever}).Draw(t, "shim")
	s.Allow, s.Deny = map[string]bool{}, map[string]bool{}
	for _, w := range append(Allowances(), l.RungNames()...) {
		s.Allow[w] = some("allow "+w, 4)
	}
	for _, r := range l.RungNames() {
		s.Deny[r] = some("deny "+r, 8)
	}
}

// drawShim is what the shim did in an attempt that was to have this step: it missed
// some, and what it saw is known from then on.
func drawShim(t *rapid.T, s Situation, p *Past, step []trainer.Change) job.Knobs {
	st := &state{s: s}
	for _, c := range step {
		if st.byShim(c.Knob) && rapid.IntRange(0, 3).Draw(t, "missed") == 0 {
			p.NotApplied = append(p.NotApplied, c.Knob)
		}
	}
	if rapid.Bool().Draw(t, "settings as the shim saw them") {
		p.Knobs = p.Knobs.Clone()
		for _, k := range p.NotApplied {
			p.Knobs[k] = s.Job.Knobs[k]
		}
	}
	k := s.Job.Knobs.Clone()
	for _, c := range step {
		if c.To == Half && !slices.Contains(p.NotApplied, c.Knob) && rapid.Bool().Draw(t, "seen") {
			k[c.Knob] = job.Setting{Value: strconv.Itoa(rapid.IntRange(2, 9000).Draw(t, "saw")), Source: job.FromScript}
			if c.Knob == job.MicroBatch && k[job.Accumulation].Value == "" {
				k[job.Accumulation] = job.Setting{Value: "1", Source: job.FromScript}
			}
		}
	}
	return k
}

func value(k job.Knobs, name job.Knob) int64 {
	n, err := strconv.ParseInt(k[name].Value, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func TestLadderDescendsAndEnds(t *testing.T) {
	for _, name := range []string{"spark", "preserving"} {
		l := named(t, name)
		rapid.Check(t, func(t *rapid.T) {
			walk(t, l, true, func(s Situation, d Decision) {
				now := s.Past[len(s.Past)-1].Knobs
				if d.Why == "" {
					t.Fatal("a decision without a reason")
				}
				if d.Act == "stop" {
					if d.Status75 && slices.ContainsFunc(s.Past, func(p Past) bool { return p.Answer != AnswerOOM }) {
						t.Fatal("75 although not every attempt was out of memory")
					}
					return
				}
				for _, k := range []job.Knob{job.SeqLen, job.MicroBatch, job.EvalBatch} {
					if value(d.Knobs, k) > value(now, k) {
						t.Fatalf("%s rises from %d to %d", k, value(now, k), value(d.Knobs, k))
					}
				}
				if value(d.Knobs, job.SeqLen) < 1024 && value(d.Knobs, job.SeqLen) < value(now, job.SeqLen) {
					t.Fatalf("length cut to %d", value(d.Knobs, job.SeqLen))
				}
				if value(d.Knobs, job.MicroBatch)*value(d.Knobs, job.Accumulation) != value(s.Job.Knobs, job.MicroBatch)*value(s.Job.Knobs, job.Accumulation) {
					t.Fatalf("the effective batch changed: %v -> %v", s.Job.Knobs, d.Knobs)
				}
				if s.Exact && (value(d.Knobs, job.SeqLen) != value(s.Job.Knobs, job.SeqLen) || d.Knobs[job.Method].Value != s.Job.Knobs[job.Method].Value) {
					t.Fatal("--exact changed the experiment")
				}
				// The changes lead from the job to the settings in force.
				k := s.Job.Knobs.Clone()
				for _, c := range d.Changes {
					if k[c.Knob].Value != c.From || c.From == c.To {
						t.Fatalf("change %+v does not start at %v", c, k[c.Knob])
					}
					k[c.Knob] = job.Setting{Value: c.To}
				}
				for _, name := range turned {
					if k[name].Value != d.Knobs[name].Value {
						t.Fatalf("changes %v do not lead to %v", d.Changes, d.Knobs)
					}
				}
			})
		})
	}
}

func TestSparkOrderIsNeverSkipped(t *testing.T) {
	l := named(t, "spark")
	rapid.Check(t, func(t *rapid.T) {
		walk(t, l, true, func(s Situation, d Decision) {
			if d.Act == "stop" || len(d.Step) == 0 {
				return
			}
			now := s.Past[len(s.Past)-1].Knobs
			last := d.Rungs[len(d.Rungs)-1]
			order := l.RungNames()
			at := slices.Index(order, last)
			for _, r := range order[:at] {
				if !slices.Contains(d.Rungs, r) && !slices.ContainsFunc(d.Notes, func(n Note) bool { return n.Rung == r && n.Why != "" }) {
					t.Fatalf("rung %s was skipped without a word on the way to %s", r, last)
				}
			}
			// Batch never before the length has come to its end.
			if value(d.Knobs, job.MicroBatch) < value(now, job.MicroBatch) && !s.Exact {
				length, halved := value(s.Job.Knobs, job.SeqLen), 0
				for n := value(now, job.SeqLen); length > n; length /= 2 {
					halved++
				}
				if n := value(now, job.SeqLen); n/2 >= 1024 && halved < 2 {
					t.Fatalf("the batch is cut while the length is still %d (halved %d times)", n, halved)
				}
			}
			p := s.Past[len(s.Past)-1]
			batchHelps := p.Kind != "exhausted" && p.Phase != "optimizer-init"
			if batchHelps && d.Knobs[job.Method].Value != now[job.Method].Value && value(now, job.MicroBatch) > 1 && value(now, job.Accumulation) > 0 {
				t.Fatal("the method changes while the batch could still be split")
			}
		})
	})
}

// What must never be tried again is not, and the same settings are tried again no
// more often than the table says.
func TestRetryLimits(t *testing.T) {
	for _, name := range []string{"spark", "preserving"} {
		l := named(t, name)
		rapid.Check(t, func(t *rapid.T) {
			unsure, tenants, drops, progressed, lost := 0, 0, 0, 0, 0
			walk(t, l, true, func(s Situation, d Decision) {
				p := s.Past[len(s.Past)-1]
				if p.Progressed {
					progressed++
				}
				if (d.Act == "stop") == (d.Stop == "") {
					t.Fatalf("%s with the word %q", d.Act, d.Stop)
				}
				if p.Finished && d.Act != "stop" {
					t.Fatal("a finished training is started again")
				}
				if p.Answer == AnswerNotOOM && (d.Act != "stop" || d.Status75) {
					t.Fatal("a death for another reason is tried again, or called a lack of memory")
				}
				if d.Act == "stop" {
					return
				}
				if s.Job.Container != nil && !s.ContainerEnds {
					t.Fatal("a container that may still live")
				}
				if len(changed(p.Knobs, d.Knobs)) != len(d.Step) {
					t.Fatalf("step %v leads from %v to %v", d.Step, p.Knobs, d.Knobs)
				}
				if len(d.Step) > 0 {
					if d.Again != "" {
						t.Fatal("a step down that calls itself the same again")
					}
					byData := p.Lever == "workers" && (p.Cause == "fork" || p.Cause == "worker" && p.Kind == "host-alloc")
					if p.Answer != AnswerOOM || p.Kind == "co-tenant" || p.Kind == "shm" || p.Lever == "disk" || byData {
						t.Fatalf("a rung is spent on %+v", p)
					}
					if p.Lever == "wait" && (len(s.Past) < 2 || !l.coTenant(s.Past[len(s.Past)-2])) {
						t.Fatal("a rung is spent where another process was named for the first time")
					}
					for _, c := range d.Step {
						eval := p.Phase == "eval"
						if eval != (c.Knob == job.EvalBatch) || p.Phase == "save" || p.Phase == "load" {
							t.Fatalf("%s is turned after a death in %s", c.Knob, p.Phase)
						}
					}
					tenants = 0
					if p.Lost {
						lost++
					}
				} else if p.Lost && d.Again == AgainDropped {
					t.Fatal("a bare drop after a freeze")
				}
				switch d.Again {
				case AgainUnsure:
					unsure++
				case AgainCoTenant:
					tenants++
				case AgainDropped:
					drops++
				default:
					if len(d.Step) == 0 {
						t.Fatal("the same settings again, without a reason")
					}
				}
				if d.Again != AgainCoTenant {
					tenants = 0
				}
				if unsure > 1 || tenants > 3 || drops > 1+progressed || lost > 1 {
					t.Fatalf("again: unsure %d, co-tenant %d in a row, drops %d (progress %d), freezes %d", unsure, tenants, drops, progressed, lost)
				}
			})
		})
	}
}

// Whatever the command and whatever the shim does: the ladder goes down and ends, keeps
// the effective batch, turns nothing that may not or cannot be turned, and decides the
// same when asked twice.
func TestAnyCommand(t *testing.T) {
	list, err := Load("testdata/attempts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []Ladder{named(t, "spark"), named(t, "preserving"), list} {
		rapid.Check(t, func(t *rapid.T) {
			other := false
			walk(t, l, false, func(s Situation, d Decision) {
				typed := s.Job.Knobs.Clone()
				if diff := cmp.Diff(d, l.Next(s)); diff != "" {
					t.Fatalf("decided twice: %s", diff)
				}
				if diff := cmp.Diff(typed, s.Job.Knobs); diff != "" {
					t.Fatalf("the job was changed: %s", diff)
				}
				if other && !d.OtherExperiment {
					t.Fatal("the experiment became the first one again")
				}
				real := s.inForce()
				now := real.Past[len(real.Past)-1].Knobs
				// A decision whose attempt has not run, or did not apply, made nothing else.
				other = slices.ContainsFunc(real.Past, func(p Past) bool { return s.otherMethod(p.Knobs) })
				if d.Act == "stop" {
					if len(d.Changes)+len(d.Step) > 0 {
						t.Fatalf("a stop that changes something: %+v", d)
					}
					return
				}
				if d.StartOver && !d.NewFolder || d.NewFolder && !d.OtherExperiment {
					t.Fatalf("%+v", d)
				}
				for _, r := range d.Rungs {
					if s.Deny[r] {
						t.Fatalf("rung %s was denied", r)
					}
				}
				for _, c := range d.Step {
					set := s.Job.Knobs[c.Knob]
					bad := ""
					switch {
					case s.Job.Unsure != "":
						bad = "the place is not certain"
					case s.Fixed[c.Knob] != "":
						bad = "cannot be turned"
					case s.Job.SelfShrinks != "" && (c.Knob == job.MicroBatch || c.Knob == job.Accumulation && value(d.Knobs, job.SeqLen) == value(now, job.SeqLen)):
						bad = "two ladders at once"
					case s.Job.Image && c.Knob == job.SeqLen:
						bad = "images have no length"
					case s.Exact && (c.Knob == job.SeqLen || c.Knob == job.Method || c.Knob == job.LoadIn4Bit || c.Knob == job.LearningRate):
						bad = "--exact"
					case (set.Source == job.FromScript || c.To == Half) && (s.Shim == ShimNever || s.Job.ShimRefused != ""):
						bad = "no shim"
					case c.To == Half && set.Value != "":
						bad = "half of something known"
					case real.stuck[c.Knob] > 0 && (set.Source == job.FromScript || set.Value == ""):
						bad = "the shim has missed it before"
					case len(set.Choices) > 0 && grows[c.Knob] && !slices.Contains(set.Choices, c.To):
						bad = "not a value that the command takes"
					}
					if bad != "" {
						t.Fatalf("%s is turned to %s: %s", c.Knob, c.To, bad)
					}
					if from, to := value(now, c.Knob), value(d.Knobs, c.Knob); grows[c.Knob] && from > 0 && to >= from {
						t.Fatalf("%s goes up from %d to %d", c.Knob, from, to)
					}
				}
				if n := value(d.Knobs, job.SeqLen); n < value(now, job.SeqLen) && n < max(1024, s.Job.Floor) && l.Name != "list" {
					t.Fatalf("length cut to %d", n)
				}
				st := &state{s: s, now: s.Job.Knobs}
				before, after := value(s.Job.Knobs, job.MicroBatch)*value(s.Job.Knobs, job.Accumulation), value(d.Knobs, job.MicroBatch)*value(d.Knobs, job.Accumulation)
				switch {
				case st.global():
					if value(d.Knobs, job.Accumulation) != value(s.Job.Knobs, job.Accumulation) {
						t.Fatal("accumulation is turned although the global batch is fixed")
					}
					g := value(s.Job.Knobs, job.GlobalBatch)
					if m, to := value(s.Job.Knobs, job.MicroBatch), value(d.Knobs, job.MicroBatch); m > 0 && g > 0 && g%m == 0 && to > 0 && g%to != 0 {
						t.Fatalf("micro-batch %d does not divide %d", to, g)
					}
				case l.Name == "list" || s.Allow[AllowKeepTokens] && !s.Exact || value(s.Job.Knobs, job.Accumulation) == 0 && s.Allow[AllowSmallerBatch] && !s.Exact:
				case value(s.Job.Knobs, job.MicroBatch) > 0 && before != after:
					t.Fatalf("the effective batch changed: %v -> %v", s.Job.Knobs, d.Knobs)
				}
			})
		})
	}
}

// What is said beforehand is what happens: the steps of Preview are those that a run
// takes which always dies in training.
func TestPreviewIsTheWalk(t *testing.T) {
	list, err := Load("testdata/attempts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []Ladder{named(t, "spark"), named(t, "preserving"), list} {
		rapid.Check(t, func(t *rapid.T) {
			k := job.Knobs{}
			for _, name := range []job.Knob{job.SeqLen, job.MicroBatch, job.Accumulation, job.EvalBatch} {
				if rapid.IntRange(0, 4).Draw(t, string(name)) > 0 {
					k[name] = job.Setting{Value: strconv.Itoa(rapid.IntRange(1, 9000).Draw(t, string(name)))}
				}
			}
			k[job.Method] = job.Setting{Value: rapid.SampledFrom([]string{"full", "lora", "qlora"}).Draw(t, "method")}
			k[job.GradCkpt] = job.Setting{Value: rapid.SampledFrom([]string{"True", "false"}).Draw(t, "checkpointing")}
			s := Situation{
				Job: job.Job{Argv: []string{"x"}, Knobs: k}, MaxAttempts: 60, Exact: rapid.IntRange(0, 4).Draw(t, "exact") == 0,
				ModelParams: sample.Known(1e9), BudgetBytes: sample.Known(1e11),
			}
			drawCommand(t, l, &s)
			views := l.Preview(s)
			var want [][]trainer.Change
			for _, v := range views {
				switch {
				case v.Allowed && len(v.Step) > 0:
					want = append(want, v.Changes)
				case !v.Allowed && (v.Kind == "" || v.Reason == ""):
					t.Fatalf("not taken, and nobody says why: %+v", v)
				}
			}
			var got [][]trainer.Change
			var rungs []string
			for {
				p := Past{Rungs: rungs, Attempt: len(s.Past) + 1, Answer: AnswerOOM, Kind: "cuda-allocator", Phase: "train", Duration: time.Hour, Step: int64(len(s.Past))}
				if len(s.Past) > 0 {
					p.Knobs = k
				}
				s.Past = append(s.Past, p)
				d := l.Next(s)
				if d.Act == "stop" {
					break
				}
				k, rungs = d.Knobs, d.Rungs
				got = append(got, d.Changes)
			}
			if diff := cmp.Diff(reasonless(want), reasonless(got)); diff != "" {
				t.Fatalf("(-preview +run):\n%s", diff)
			}
			if l.Forecast(s.Job, s) == "" {
				t.Fatal("no word at the start")
			}
		})
	}
}

// reasonless leaves out the reasons, which say more of a fresh change than of an old one.
func reasonless(all [][]trainer.Change) [][]trainer.Change {
	var out [][]trainer.Change
	for _, changes := range all {
		var c []trainer.Change
		for _, ch := range changes {
			ch.Reason = ""
			c = append(c, ch)
		}
		out = append(out, c)
	}
	return out
}
