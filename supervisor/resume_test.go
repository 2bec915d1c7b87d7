package supervisor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sparkrun/internal/job"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer"
	"sparkrun/ladder/trainer/checkpoint"
)

func TestChooseResume(t *testing.T) {
	t.Parallel()
	whole := func(step int64) checkpoint.Checkpoint {
		return checkpoint.Checkpoint{Path: "/o/checkpoint-" + string(rune('0'+step)), Step: step, Complete: true, HasOptimizer: true}
	}
	torn := checkpoint.Checkpoint{Path: "/o/checkpoint-9", Step: 9, Why: "trainer_state.json is missing"}
	weights := checkpoint.Checkpoint{Path: "/o/checkpoint-7", Step: 7, Complete: true, Why: "weights only: the optimizer would start anew"}
	hf := job.Job{Profile: "hf-trainer", Family: "per-device", Resume: job.Resume{How: "path", Layout: "hf"}, Knobs: job.Knobs{job.MicroBatch: {Value: "8"}, job.SeqLen: {Value: "4096"}}}
	as := func(change func(j *job.Job)) job.Job {
		j := hf
		j.Knobs = hf.Knobs.Clone()
		change(&j)
		return j
	}
	auto := as(func(j *job.Job) { j.Resume.How = "auto" })
	never := as(func(j *job.Job) { j.Resume = job.Resume{How: "never", Why: "trl's scripts ignore it", Layout: "hf"} })
	shell := job.Job{Opaque: "a shell script", Knobs: job.Knobs{}}
	micro := []trainer.Change{{Knob: job.MicroBatch, From: "8", To: "4"}, {Knob: job.Accumulation, From: "1", To: "2"}}
	shorter := []trainer.Change{{Knob: job.SeqLen, From: "4096", To: "2048"}}
	both := []checkpoint.Checkpoint{whole(3), whole(5), torn}
	cases := []struct {
		name string
		in   resumeInput
		want resumeChoice // without Say
		say  []string
		not  []string
	}{
		{"the first attempt is as typed", resumeInput{Job: hf, First: true, Found: both, CanPass: true}, resumeChoice{}, nil, nil},
		{
			"the newest complete one, the half-written named",
			resumeInput{Job: hf, Found: both, CanPass: true},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf"}},
			[]string{"checkpoint-9 is skipped: trainer_state.json is missing", "goes on from checkpoint-5 (step 5)"},
			[]string{"loss", "schedule"},
		},
		{
			"a smaller micro-batch",
			resumeInput{Job: hf, Found: both, CanPass: true, Changes: micro},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf", Micro: 4, WasMicro: 8}},
			nil,
			[]string{"effective", "some data"},
		},
		{
			"the same micro-batch as when it was saved",
			resumeInput{Job: hf, Found: both, CanPass: true, Changes: micro, Saved: job.Knobs{job.MicroBatch: {Value: "4"}, job.Accumulation: {Value: "2"}}},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf", Micro: 4, WasMicro: 4}},
			nil, nil,
		},
		{
			"halved by the shim",
			resumeInput{Job: hf, Found: both, Shim: true, Changes: []trainer.Change{{Knob: job.MicroBatch, To: ladder.Half}}},
			resumeChoice{Path: "/o/checkpoint-5", ByShim: true, Want: checkpoint.Want{Layout: "hf", Half: true}},
			nil,
			[]string{"effective"},
		},
		{
			"another effective batch",
			resumeInput{Job: hf, Found: both, CanPass: true, Changes: micro[:1]},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf", Micro: 4, WasMicro: 8}},
			[]string{"effective batch"},
			nil,
		},
		{
			"a shorter length",
			resumeInput{Job: hf, Found: both, CanPass: true, Changes: shorter},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf"}},
			[]string{"number of rows may change"},
			[]string{"packed"},
		},
		{
			"a shorter packed length",
			resumeInput{Job: as(func(j *job.Job) { j.Knobs[job.Packing] = job.Setting{Value: "True"} }), Found: both, CanPass: true, Changes: shorter},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf"}},
			[]string{"packed to another length", "schedule"},
			nil,
		},
		{
			"a length cut before the checkpoint is no news",
			resumeInput{Job: hf, Found: both, CanPass: true, Changes: shorter, Saved: job.Knobs{job.SeqLen: {Value: "2048"}}},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf"}},
			nil,
			[]string{"rows"},
		},
		{
			"nanoGPT and its positions",
			resumeInput{Job: as(func(j *job.Job) { j.Resume.Layout = checkpoint.NanoGPT }), Found: both, CanPass: true, Changes: shorter},
			resumeChoice{StartOver: true},
			[]string{"position table"},
			nil,
		},
		{
			"QLoRA to LoRA keeps the adapter",
			resumeInput{Job: hf, Found: both, CanPass: true, Changes: []trainer.Change{{Knob: job.Method, From: "qlora", To: "lora"}, {Knob: job.LoadIn4Bit, From: "true", To: "false"}}},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf"}},
			[]string{"loss may jump"},
			nil,
		},
		{
			"full to LoRA never",
			resumeInput{Job: hf, Found: both, CanPass: true, Changes: []trainer.Change{{Knob: job.Method, From: "full", To: "lora"}}},
			resumeChoice{StartOver: true},
			[]string{"parameters do not fit"},
			nil,
		},
		{
			"the ladder says so, and the command's own checkpoint goes",
			resumeInput{Job: as(func(j *job.Job) { j.Knobs[job.ResumeFrom] = job.Setting{Value: "x"} }), Found: both, CanPass: true, StartOver: true},
			resumeChoice{StartOver: true, Forget: true},
			[]string{"another training method"},
			nil,
		},
		{
			"another optimizer",
			resumeInput{Job: hf, Found: both, CanPass: true, Changes: []trainer.Change{{Knob: job.Optimizer, From: "adamw_torch", To: "adamw_8bit"}}},
			resumeChoice{StartOver: true},
			[]string{"optimizer is another one"},
			nil,
		},
		{"none saved", resumeInput{Job: hf, CanPass: true, Ran: 9 * time.Hour}, resumeChoice{StartOver: true}, []string{"no checkpoint was saved"}, nil},
		{
			"only torn ones",
			resumeInput{Job: auto, Found: []checkpoint.Checkpoint{torn}, CanPass: true},
			resumeChoice{StartOver: true, NewFolder: true},
			[]string{"checkpoint-9 is skipped", "no checkpoint was saved from which"},
			nil,
		},
		{"the command's own", resumeInput{Job: hf, Asked: ptr(whole(2)), CanPass: true}, resumeChoice{Path: "/o/checkpoint-2", Want: checkpoint.Want{Layout: "hf"}}, []string{"step 2"}, nil},
		{"newer than the command's own", resumeInput{Job: hf, Asked: ptr(whole(2)), Found: both, CanPass: true}, resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf"}}, nil, nil},
		{"weights alone, the Trainer", resumeInput{Job: hf, Found: []checkpoint.Checkpoint{whole(3), weights}, CanPass: true}, resumeChoice{Path: "/o/checkpoint-7", Want: checkpoint.Want{Layout: "hf"}}, []string{"optimizer would start anew"}, nil},
		{
			"weights alone, diffusers",
			resumeInput{Job: as(func(j *job.Job) { j.Resume.Layout = "diffusers" }), Found: []checkpoint.Checkpoint{whole(3), weights}, CanPass: true},
			resumeChoice{Path: "/o/checkpoint-3", Want: checkpoint.Want{Layout: "diffusers"}},
			[]string{"checkpoint-7 is skipped"},
			nil,
		},
		{"a script that ignores it", resumeInput{Job: never, Found: both, Ran: 9 * time.Hour}, resumeChoice{StartOver: true}, []string{"checkpoint-5 is complete, but trl's scripts ignore it"}, nil},
		{"the same through the shim", resumeInput{Job: never, Found: both, Shim: true}, resumeChoice{Path: "/o/checkpoint-5", ByShim: true, Want: checkpoint.Want{Layout: "hf"}}, nil, nil},
		{
			"one that takes the newest by itself and a path",
			resumeInput{Job: auto, Found: both, CanPass: true},
			resumeChoice{Path: "/o/checkpoint-5", MoveAside: []string{"/o/checkpoint-9"}, Want: checkpoint.Want{Layout: "hf"}},
			[]string{"moved aside"},
			nil,
		},
		{
			"one that only takes it by itself",
			resumeInput{Job: auto, Found: both},
			resumeChoice{Itself: true, MoveAside: []string{"/o/checkpoint-9"}, Want: checkpoint.Want{Layout: "hf"}},
			[]string{"moved aside", "goes on from checkpoint-5"},
			nil,
		},
		{"the same with another micro-batch", resumeInput{Job: auto, Found: both, Changes: micro}, resumeChoice{StartOver: true, NewFolder: true}, []string{"old micro-batch"}, nil},
		{
			"one with a pointer takes no torn one",
			resumeInput{Job: as(func(j *job.Job) { j.Resume = job.Resume{How: "auto", Layout: "megatron"} }), Found: both, Changes: micro},
			resumeChoice{Itself: true, Want: checkpoint.Want{Layout: "megatron", Micro: 4, WasMicro: 8}},
			nil,
			[]string{"moved"},
		},
		{
			"Lightning counts micro-batches",
			resumeInput{Job: as(func(j *job.Job) { j.Resume.Layout = "lightning" }), Found: both, CanPass: true, Changes: micro},
			resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "lightning", Micro: 4, WasMicro: 8}},
			[]string{"counts micro-batches"},
			nil,
		},
		{"--resume never", resumeInput{Job: auto, Mode: "never", Found: both, CanPass: true}, resumeChoice{StartOver: true, NewFolder: true}, []string{"--resume never"}, nil},
		{"--resume never, first", resumeInput{Job: hf, Mode: "never", First: true}, resumeChoice{}, nil, nil},
		{"a shell script, short", resumeInput{Job: shell, Ran: 14 * time.Minute}, resumeChoice{StartOver: true}, nil, nil},
		{"a shell script, long", resumeInput{Job: shell, Ran: 16 * time.Minute}, resumeChoice{Refuse: "not started from the beginning unasked"}, nil, nil},
		{"a shell script, long, asked", resumeInput{Job: shell, Mode: "never", Ran: 16 * time.Minute}, resumeChoice{StartOver: true}, nil, nil},
		{"an unknown program, long", resumeInput{Job: job.Job{}, Ran: time.Hour}, resumeChoice{Refuse: "it ran for 60 min"}, nil, nil},
		{"PATH in the first attempt", resumeInput{Job: hf, Mode: "/p", Given: whole(4), First: true, CanPass: true}, resumeChoice{Path: "/o/checkpoint-4", Want: checkpoint.Want{Layout: "hf"}}, []string{"step 4"}, nil},
		{"PATH, and the run got further", resumeInput{Job: hf, Mode: "/p", Given: whole(4), Found: both, CanPass: true}, resumeChoice{Path: "/o/checkpoint-5", Want: checkpoint.Want{Layout: "hf"}}, nil, nil},
		{"PATH, torn", resumeInput{Job: hf, Mode: "/p", Given: torn, First: true, CanPass: true}, resumeChoice{Refuse: "/o/checkpoint-9 is not complete: trainer_state.json is missing"}, nil, nil},
		{"PATH, nothing", resumeInput{Job: hf, Mode: "/p", GivenErr: errors.New("no such folder"), First: true, CanPass: true}, resumeChoice{Refuse: "no such folder"}, nil, nil},
		{"PATH, no way in", resumeInput{Job: never, Mode: "/p", Given: whole(4), First: true}, resumeChoice{Refuse: "cannot be handed over: trl's scripts ignore it"}, nil, nil},
		{"PATH, of another method", resumeInput{Job: hf, Mode: "/p", Given: whole(4), StartOver: true, CanPass: true}, resumeChoice{Refuse: "training method is another one"}, nil, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := chooseResume(c.in)
			if !strings.Contains(got.Refuse, c.want.Refuse) || (got.Refuse == "") != (c.want.Refuse == "") {
				t.Errorf("refuses %q, want %q", got.Refuse, c.want.Refuse)
			}
			said := strings.Join(got.Say, "\n")
			for _, s := range c.say {
				if !strings.Contains(said, s) {
					t.Errorf("%q is not said:\n%s", s, said)
				}
			}
			for _, s := range c.not {
				if strings.Contains(said, s) {
					t.Errorf("%q is said:\n%s", s, said)
				}
			}
			if got.Path != "" && got.From.Path != got.Path || got.Itself && got.From.Path == "" {
				t.Errorf("from %+v, path %q", got.From, got.Path)
			}
			if got.Path != c.want.Path || got.ByShim != c.want.ByShim || got.Itself != c.want.Itself || got.StartOver != c.want.StartOver || got.NewFolder != c.want.NewFolder ||
				got.Forget != c.want.Forget || !slices.Equal(got.MoveAside, c.want.MoveAside) || !sameWant(got.Want, c.want.Want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func sameWant(a, b checkpoint.Want) bool {
	return a.Layout == b.Layout && a.Micro == b.Micro && a.WasMicro == b.WasMicro && a.Half == b.Half
}

// Whatever the situation: exactly one of the ways is taken, nothing that is not
// complete is gone on from, what is moved aside is newer than what is gone on from,
// and the same input gives the same answer.
func TestChooseResumeHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var found []checkpoint.Checkpoint
		for step := range rapid.IntRange(0, 5).Draw(t, "saved") {
			c := checkpoint.Checkpoint{Path: "/o/c-" + string(rune('0'+step)), Step: int64(step), Complete: rapid.Bool().Draw(t, "complete"), Why: "why"}
			c.HasOptimizer = c.Complete && rapid.Bool().Draw(t, "optimizer")
			found = append(found, c)
		}
		var changes []trainer.Change
		for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom([]job.Knob{job.SeqLen, job.MicroBatch, job.Accumulation, job.Method, job.Optimizer, job.Packing, job.LoadIn4Bit}), 0, 4, rapid.ID).Draw(t, "knobs") {
			changes = append(changes, trainer.Change{Knob: k, From: "full", To: rapid.SampledFrom([]string{"1", "lora", ladder.Half}).Draw(t, "to")})
		}
		in := resumeInput{
			Job: job.Job{
				Profile: rapid.SampledFrom([]string{"", "p"}).Draw(t, "profile"), Knobs: job.Knobs{},
				Resume: job.Resume{How: rapid.SampledFrom([]string{"", "path", "auto", "never"}).Draw(t, "how"), Layout: rapid.SampledFrom(append(checkpoint.Layouts(), "?")).Draw(t, "layout")},
			},
			Mode: rapid.SampledFrom([]string{"", "auto", "never", "/p"}).Draw(t, "mode"), Found: found, Changes: changes,
			Given:     checkpoint.Checkpoint{Path: "/p", Step: 2, Complete: rapid.Bool().Draw(t, "given"), HasOptimizer: true, Why: "torn"},
			StartOver: rapid.Bool().Draw(t, "over"), CanPass: rapid.Bool().Draw(t, "pass"), Shim: rapid.Bool().Draw(t, "shim"),
			First: rapid.Bool().Draw(t, "first"), Ran: time.Duration(rapid.IntRange(0, 100).Draw(t, "ran")) * time.Minute,
		}
		got := chooseResume(in)
		ways := 0
		for _, way := range []bool{got.Path != "", got.Itself, got.StartOver, got.Refuse != ""} {
			if way {
				ways++
			}
		}
		if ways > 1 || ways == 0 && !in.First {
			t.Fatalf("%d ways: %+v", ways, got)
		}
		at := int64(-1)
		for _, c := range append(found, in.Given) {
			if c.Path == got.Path {
				at = c.Step
				if !c.Complete {
					t.Fatalf("it goes on from %+v", c)
				}
			}
		}
		for _, c := range found {
			if slices.Contains(got.MoveAside, c.Path) && got.Path != "" && got.Path != "/p" && c.Step <= at {
				t.Fatalf("moved aside: %+v, goes on from %s", c, got.Path)
			}
		}
		if in.StartOver && !in.First && (got.Path != "" || got.Itself) {
			t.Fatalf("the ladder said to start over: %+v", got)
		}
		if again := chooseResume(in); again.Path != got.Path || again.Refuse != got.Refuse || !slices.Equal(again.Say, got.Say) {
			t.Fatal("another answer the second time")
		}
	})
}
