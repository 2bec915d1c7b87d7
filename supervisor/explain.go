package supervisor

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/ladder"
	"sparkrun/ladder/trainer"
	"sparkrun/supervisor/gate"
)

// ExplainSchema is the schema of `sparkrun explain --json`.
const ExplainSchema = "sparkrun.explain/1"

// Explanation is what sparkrun makes of a command, and what each rung of its ladder
// would do to it. Keys that are not known are null, never zero.
type Explanation struct {
	Schema  string   `json:"schema"`
	Command []string `json:"command"`
	// Trainer is the profile's name, nil where none fits.
	Trainer   *string  `json:"trainer"`
	About     string   `json:"about,omitempty"`
	Launchers []string `json:"launchers"`
	Script    string   `json:"script,omitempty"`
	Config    string   `json:"config,omitempty"`
	// Knobs always holds the nine names of explainedKnobs.
	Knobs map[string]ExplainedKnob `json:"knobs"`
	// Method is full, lora, qlora or unknown.
	Method string `json:"method"`
	// EffectiveBatch is rows, TokensPerStep tokens at most in one optimizer step over
	// all devices.
	EffectiveBatch *int64 `json:"effective_batch"`
	TokensPerStep  *int64 `json:"tokens_per_step"`
	// PlannedSteps is how many optimizer steps the command asks for.
	PlannedSteps *int64 `json:"planned_steps"`
	Devices      int    `json:"devices,omitempty"`
	Nodes        int    `json:"nodes,omitempty"`
	// Model is the base model with its number of parameters.
	Model *ExplainedModel `json:"model"`
	// Checkpoint is the newest complete one in the output folder, Broken those that
	// are newer and not complete.
	Checkpoint *ExplainedCheckpoint  `json:"checkpoint"`
	Broken     []ExplainedCheckpoint `json:"broken_checkpoints,omitempty"`
	// Resume.How is path, shim, auto or never.
	Resume job.Resume `json:"resume"`
	// SeenIn is the earlier run of this command in which the shim has seen settings
	// that nothing else tells.
	SeenIn string          `json:"seen_in,omitempty"`
	Ladder string          `json:"ladder"`
	Rungs  []ExplainedRung `json:"rungs"`
	Notes  []string        `json:"notes"`
}

// ExplainedKnob is one setting: its value, and where it stands.
type ExplainedKnob struct {
	// Value is a number, a bool or a text; nil is unknown.
	Value any `json:"value"`
	// Source is argv, config:FILE:LINE, script, default or user; empty is unknown.
	Source string `json:"source"`
	Where  string `json:"where,omitempty"`
}

// ExplainedModel is the base model.
type ExplainedModel struct {
	Name string `json:"name"`
	// Params is nil where nothing tells; From says what told.
	Params *int64 `json:"params"`
	From   string `json:"from,omitempty"`
}

// ExplainedCheckpoint is a checkpoint of the output folder.
type ExplainedCheckpoint struct {
	Path string `json:"path"`
	Step int64  `json:"step"`
	Why  string `json:"why,omitempty"`
}

// ExplainedRung is one step of the ladder, in the order in which steps are taken.
type ExplainedRung struct {
	Name   string `json:"name"`
	Action string `json:"action"`
	// Allowed says that it would be taken; Reason says what it does, or why not.
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason"`
	// Argv is the whole command of that attempt, nil where the rung is refused.
	Argv []string `json:"argv"`
	// Files are the changed copies it would need, Env what is added.
	Files []ExplainedFile `json:"files"`
	Env   []string        `json:"env"`
	// Diff is the change against the command as typed, a line each.
	Diff []string `json:"diff"`
	// Shim says that the shim makes some of the change.
	Shim            bool `json:"shim"`
	OtherExperiment bool `json:"other_experiment"`
}

// ExplainedFile is a changed copy of a config file.
type ExplainedFile struct {
	Path     string `json:"path"`
	Original string `json:"original"`
}

// explainedKnobs are the knobs that explain tells, by the names of its contract.
var explainedKnobs = map[string]job.Knob{
	"seq_len": job.SeqLen, "packing": job.Packing, "micro_batch": job.MicroBatch, "grad_accum": job.Accumulation,
	"load_in_4bit": job.LoadIn4Bit, "grad_checkpointing": job.GradCkpt, "optimizer": job.Optimizer,
	"output_dir": job.OutputDir, "resume": job.ResumeFrom,
}

// ExplainedKnobs returns the names of the knobs that explain tells, in order.
func ExplainedKnobs() []string {
	return []string{"seq_len", "packing", "micro_batch", "grad_accum", "load_in_4bit", "grad_checkpointing", "optimizer", "output_dir", "resume"}
}

// Explain says what sparkrun makes of a command. It runs nothing and writes nothing.
func Explain(o Options) (Explanation, error) {
	r := &run{o: o}
	if err := r.understandCommand(); err != nil {
		return Explanation{}, err
	}
	r.start0 = gate.Read("/")
	seen := r.seenBefore()
	r.measureModel(modelWait)
	r.looked = r.look(r.job)
	if r.resumePath() != "" {
		if c := chooseResume(r.resumeInput(nil, nil, false)); c.Refuse != "" {
			return Explanation{}, failf(StatusError, "--resume %s: %s", r.o.Resume, c.Refuse)
		}
	}
	j := r.job
	e := Explanation{
		Schema: ExplainSchema, Command: o.Argv, Launchers: slices.Clone(j.Launchers), Script: j.Script, Config: j.ConfigFile,
		Knobs: map[string]ExplainedKnob{}, Method: j.TrainingMethod(), Nodes: j.Nodes, Devices: j.Procs, Resume: j.Resume,
		Ladder: r.lad.Name, Rungs: []ExplainedRung{}, Notes: append([]string{}, j.Notes...),
	}
	if e.Launchers == nil {
		e.Launchers = []string{}
	}
	if seen != "" {
		e.SeenIn = seen
	}
	e.Resume = r.explainResume()
	if j.Profile != "" {
		e.Trainer = &j.Profile
		for _, p := range r.set.Profiles() {
			if p.Name == j.Profile {
				e.About = p.About
			}
		}
	}
	for name, k := range explainedKnobs {
		e.Knobs[name] = explainKnob(j.Knobs[k])
	}
	if k := e.Knobs["load_in_4bit"]; k.Value == nil && e.Method != "unknown" {
		// Some trainers say it with another setting: the method tells.
		m := j.Knobs[job.Method]
		e.Knobs["load_in_4bit"] = ExplainedKnob{Value: e.Method == "qlora", Source: sourceWord(m), Where: m.Where}
	}
	e.EffectiveBatch = j.EffectiveBatch()
	if n, err := strconv.ParseInt(j.Knobs[job.SeqLen].Value, 10, 64); err == nil && e.EffectiveBatch != nil {
		tokens := n * *e.EffectiveBatch
		e.TokensPerStep = &tokens
	}
	if n, err := strconv.ParseInt(j.Knobs[job.MaxSteps].Value, 10, 64); err == nil && n > 0 {
		e.PlannedSteps = &n
	}
	if name := j.Knobs[job.Model].Value; name != "" {
		params, from, _ := r.model()
		e.Model = &ExplainedModel{Name: name, From: from}
		if params.OK {
			n := int64(params.V)
			e.Model.Params = &n
		}
	}
	r.explainCheckpoints(&e)
	r.explainRungs(&e)
	return e, nil
}

func sourceWord(s job.Setting) string {
	if s.Source == job.FromConfig {
		return "config:" + s.Where
	}
	return string(s.Source)
}

// explainKnob gives a setting its JSON type.
func explainKnob(s job.Setting) ExplainedKnob {
	if s.Value == "" {
		return ExplainedKnob{}
	}
	k := ExplainedKnob{Value: s.Value, Source: sourceWord(s), Where: s.Where}
	if n, err := strconv.ParseInt(s.Value, 10, 64); err == nil {
		k.Value = n
	} else if b, err := strconv.ParseBool(strings.ToLower(s.Value)); err == nil {
		k.Value = b
	}
	return k
}

// explainResume is how a retry is given a checkpoint, as a run would do it.
func (r *run) explainResume() job.Resume {
	res := r.job.Resume
	switch {
	case r.set.CanResume(r.job):
		res.How, res.Why = "path", ""
	case r.o.Shim != ladder.ShimNever && r.set.ResumeByShim(r.job):
		res.How, res.Why = "shim", ""
	}
	return res
}

// explainCheckpoints looks into the output folder.
func (r *run) explainCheckpoints(e *Explanation) {
	out := r.job.Knobs[job.OutputDir].Value
	if out == "" {
		return
	}
	for _, c := range slices.Backward(r.set.Checkpoints(r.job, out)) {
		one := ExplainedCheckpoint{Path: c.Path, Step: c.Step, Why: c.Why}
		if c.Complete {
			e.Checkpoint = &one
			return
		}
		e.Broken = append(e.Broken, one)
	}
}

// explainRungs walks the ladder down, each step made into the command of its attempt.
// A step that cannot be made in this command is refused and the ladder is asked again
// without it, as in a run.
func (r *run) explainRungs(e *Explanation) {
	for again := true; again; {
		e.Rungs, again = r.tryRungs()
	}
}

// tryRungs is one walk. It ends early, and is to be asked again, where a setting was
// found to be one that cannot be turned.
func (r *run) tryRungs() (rungs []ExplainedRung, again bool) {
	rungs = []ExplainedRung{}
	n := 1
	barred := r.noRetry()
	for _, v := range r.lad.Preview(r.situation(nil)) {
		rung := ExplainedRung{
			Name: v.Name, Action: v.Action, Allowed: v.Allowed, Reason: v.Reason, Shim: v.Shim, OtherExperiment: v.OtherExperiment,
			Files: []ExplainedFile{}, Env: []string{}, Diff: []string{},
		}
		if barred != "" {
			rung.Allowed, rung.Reason = false, "no attempt follows the first: "+barred
		}
		if rung.Allowed {
			changes := slices.Clone(v.Changes)
			if methodLeft(changes) {
				if c, ok := trainer.OutputSuffix(r.job, n+1); ok {
					changes = append(changes, c) // a folder of its own
				}
			}
			rw, err := r.set.Rewrite(r.job, trainer.Request{
				Changes: changes, Env: r.o.Env, RunID: "explain", Attempt: n + 1, Shim: r.o.Shim, SmallerBatch: r.smallerBatch(),
				AttemptDir: filepath.Join(r.o.Dir, "sparkrun-runs", "RUN", "attempts", strconv.Itoa(n+1)),
			})
			switch {
			case err != nil && r.refuseStep(v.Step, err):
				return rungs, true
			case err != nil:
				rung.Allowed, rung.Reason = false, err.Error()
			default:
				n++
				rung.Argv, rung.Env, rung.Diff = rw.Argv, append(rung.Env, rw.Env...), append(rung.Diff, rw.Diff...)
				rung.Shim = rw.Shim != nil
				for _, f := range rw.Files {
					if f.Original != "" {
						rung.Files = append(rung.Files, ExplainedFile{f.Path, f.Original})
					}
				}
			}
		}
		rungs = append(rungs, rung)
	}
	return rungs, false
}

// fixedKnobs are the knobs that cannot be turned in this command, with the reason.
func (r *run) fixedKnobs() map[job.Knob]string {
	fixed := map[job.Knob]string{}
	if r.looked != nil {
		fixed = maps.Clone(r.looked.fixed)
	}
	for k, why := range r.refused {
		fixed[k] = why
	}
	return fixed
}
