package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/sample"
	"sparkrun/preflight"
	"sparkrun/preflight/headroom"
	"sparkrun/sampler"
	"sparkrun/supervisor/gate"
)

// PlanSchema is the schema of `sparkrun plan --json`.
const PlanSchema = "sparkrun.plan/1"

// Exit statuses of `sparkrun plan`.
const (
	PlanFits   = 0
	PlanTight  = 1 // tight or over, by an estimate
	PlanCannot = 2 // the weights alone, counted, are larger than the budget
)

// probeWait bounds how long the driver may take to tell whether the GPU has memory of
// its own.
const probeWait = 1500 * time.Millisecond

// PlanOptions is one call of `sparkrun plan`.
type PlanOptions struct {
	// Options is the command and how it is understood; Argv may be empty.
	Options
	// Told are the settings given as flags, which go before the command's; the names of
	// the flags are in PlanFlags.
	Told map[job.Knob]string
	// Params is a number of parameters in place of a model, as 70B; "" is none.
	Params string
	// Budget is the memory to plan for in bytes, 0 for what this machine has now.
	Budget int64
	// Fit asks for the largest length and batch of each method.
	Fit bool
}

// fromFlag is the source of a setting that a flag of plan tells.
const fromFlag job.Source = "flag"

// PlanFlags are the flags of `sparkrun plan` that tell a setting.
var PlanFlags = map[job.Knob]string{
	job.Model: "model", job.Method: "method", job.Optimizer: "optimizer", job.LoRARank: "rank",
	job.MicroBatch: "batch", job.SeqLen: "seq-len", job.GradCkpt: "grad-checkpointing",
	job.Attention: "attention", job.DType: "dtype",
}

// Planning is what a training is reckoned to need, and whether that fits. Sizes are in
// bytes; what is not known is null, never zero.
type Planning struct {
	Schema  string   `json:"schema"`
	Command []string `json:"command"`
	// Trainer is the profile's name, nil where there is no command or none fits.
	Trainer *string `json:"trainer"`
	// Inputs are the settings that were told, each with where it stands; what was not is
	// in Assumed.
	Inputs []PlanInput `json:"inputs"`
	// Model, Method, Estimate, Budget, Outcome, Anchor and Start are those of the report of
	// a preflight, by the same names.
	Model    preflight.PlannedModel `json:"model"`
	Method   string                 `json:"method"`
	Estimate headroom.Estimate      `json:"estimate"`
	Budget   preflight.Budget       `json:"budget"`
	// BudgetFrom says what the budget is made of.
	BudgetFrom string           `json:"budget_from"`
	Outcome    headroom.Outcome `json:"outcome"`
	// NeedsCaches says that page cache must make room.
	NeedsCaches bool             `json:"needs_page_cache"`
	Anchor      *headroom.Anchor `json:"anchor"`
	// FarAbove says that the estimate is far above its anchor.
	FarAbove string `json:"far_above_anchor,omitempty"`
	// Start is the rung to start from, nil where nothing has to change.
	Start *preflight.Step `json:"start_from"`
	// Fit is nil where it was not asked for.
	Fit     []headroom.Sized `json:"fit,omitempty"`
	Assumed []string         `json:"assumed"`
	Notes   []string         `json:"notes"`
	// Status is the exit status.
	Status int `json:"exit_status"`
}

// PlanInput is one setting that counts.
type PlanInput struct {
	Knob string `json:"knob"`
	ExplainedKnob
}

// planKnobs are the settings that count, in the order in which they are shown.
var planKnobs = []job.Knob{
	job.Method, job.LoadIn4Bit, job.MicroBatch, job.SeqLen, job.Packing, job.Optimizer, job.DType,
	job.GradCkpt, job.Attention, job.LoRARank, job.LoRATargets,
}

// Plan reckons the memory of a training. It runs nothing of the training and writes
// nothing.
func Plan(ctx context.Context, o PlanOptions) (Planning, error) {
	r := &run{o: o.Options}
	r.job = job.Job{Dir: o.Dir, TrainerDir: o.Dir, Knobs: job.Knobs{}}
	seen := ""
	if len(o.Argv) > 0 {
		if err := r.understandCommand(); err != nil {
			return Planning{}, err
		}
		r.start0 = gate.Read("/")
		seen = r.seenBefore()
		r.looked = r.look(r.job)
	}
	command, typed := r.job, trained(r.job)
	r.job = typed
	r.job.Knobs = tell(typed.Knobs, o.Told)
	if r.job.Image {
		return Planning{}, failf(StatusError, "this trainer trains on images: what it takes depends on resolution and model in ways that are not reckoned here")
	}
	model, name, err := r.planModel(o)
	if err != nil {
		return Planning{}, err
	}
	spec := headroom.FromJob(&r.job, model)
	if spec.ModelName == "" {
		spec.ModelName = name
	}
	est, err := spec.Estimate()
	if err != nil {
		return Planning{}, failf(StatusError, "%w", err)
	}
	p := Planning{
		Schema: PlanSchema, Command: append([]string{}, o.Argv...), Inputs: inputs(typed.Knobs, o.Told),
		Model:  preflight.ModelOf(name, model),
		Method: string(est.Spec.Method), Estimate: est, Assumed: append([]string{}, est.Assumed...), Notes: []string{},
	}
	if typed.Profile != "" {
		p.Trainer = &typed.Profile
	}
	p.notes(typed, o, seen)
	if err := p.setBudget(ctx, o); err != nil {
		return Planning{}, err
	}
	p.Outcome = headroom.Judge(est, p.Budget.Bytes)
	if typed.Nodes > 1 || typed.Procs > 1 || p.Budget.GPU {
		p.Outcome.Blocks = false // they may share the weights, or leave some in the machine's memory
	}
	p.NeedsCaches = p.Outcome.Verdict == headroom.Fits && p.Budget.NeedsCaches(est)
	if a, ok := headroom.Closest(est.Spec); ok {
		p.Anchor, p.FarAbove = &a, headroom.FarAbove(est, a)
	}
	switch {
	case p.Outcome.Blocks:
		p.Status = PlanCannot
	case p.Outcome.Verdict != headroom.Fits:
		p.Status = PlanTight
	}
	if p.Status != PlanFits {
		p.Start = r.planStart(command, o, spec, est, p.Budget)
	}
	if o.Fit {
		if p.Fit, err = headroom.Fit(spec, p.Budget.Bytes); err != nil {
			return Planning{}, failf(StatusError, "--fit: %w", err)
		}
	}
	return p, nil
}

// trained is the command whose settings count: the one that a shell script starts, where
// it is known, else the job itself.
func trained(j job.Job) job.Job {
	if j.Inner != nil {
		return *j.Inner
	}
	return j
}

// tell puts the settings of the flags over those of the command. A setting keeps its
// place in the command, which is where a rung turns it.
func tell(knobs job.Knobs, told map[job.Knob]string) job.Knobs {
	out := knobs.Clone()
	for k, value := range told {
		set, known := out[k]
		if !known {
			set = job.Setting{Source: job.FromDefault}
		}
		set.Value = value
		out[k] = set
	}
	if method, ok := told[job.Method]; ok && out[job.LoadIn4Bit].Value != "" {
		set := out[job.LoadIn4Bit]
		set.Value = strconv.FormatBool(method == string(headroom.QLoRA))
		out[job.LoadIn4Bit] = set
	}
	return out
}

// inputs lists the settings that count and are told.
func inputs(typed job.Knobs, told map[job.Knob]string) []PlanInput {
	list := []PlanInput{}
	for _, k := range planKnobs {
		in := PlanInput{Knob: knobName(k), ExplainedKnob: explainKnob(typed[k])}
		switch value, is := told[k]; {
		case is:
			in.ExplainedKnob = explainKnob(job.Setting{Value: value, Source: fromFlag, Where: "--" + PlanFlags[k]})
		case k == job.LoadIn4Bit && told[job.Method] != "":
			continue // the flag has the last word
		}
		if in.Value != nil {
			list = append(list, in)
		}
	}
	return list
}

// knobName is a setting's name in the words of `sparkrun explain`.
func knobName(k job.Knob) string {
	for name, of := range explainedKnobs {
		if of == k {
			return name
		}
	}
	return string(k)
}

// planModel finds the model: of --params, else the one that --model or the command
// names.
func (r *run) planModel(o PlanOptions) (modelsize.Size, string, error) {
	name := r.job.Knobs[job.Model].Value
	if o.Params != "" {
		n, err := headroom.ParseParams(o.Params)
		if err != nil {
			return modelsize.Size{}, "", failf(StatusError, "--params: %w", err)
		}
		size, err := headroom.OfParams(n)
		if err != nil {
			return modelsize.Size{}, "", failf(StatusError, "--params %s: %w", o.Params, err)
		}
		r.modelRead(size)
		return size, "", nil
	}
	if name == "" {
		if len(o.Argv) == 0 {
			return modelsize.Size{}, "", failf(StatusError, "nothing to plan: give --model FOLDER, --params 8B, or the training command behind --, as in: %s plan -- llamafactory-cli train sft.yaml", o.Prog)
		}
		why := "the command does not say which model it trains"
		if u := r.job.Unclear[job.Model]; u != "" {
			why = "which model the command trains is not clear: " + u
		}
		switch notes := r.job.Notes; {
		case r.job.Slip != "":
			why += " (" + r.job.Slip + ")"
		case r.job.Opaque != "" && r.job.NoInner != "":
			why += " (" + r.job.Opaque + ", since " + r.job.NoInner + "): plan the training command that it starts"
		case r.job.Opaque != "":
			why += " (" + r.job.Opaque + "): plan the training command that it starts"
		case len(notes) > 0:
			why += " (" + strings.Join(notes, "; ") + ")"
		}
		return modelsize.Size{}, "", failf(StatusError, "%s; give it with --model FOLDER, or its size with --params 8B", why)
	}
	size, err := r.readModel(name, modelWait)
	switch {
	case errors.Is(err, modelsize.ErrUnknown) && r.isFolder(name):
		return modelsize.Size{}, "", failf(StatusError, "%w; name the folder of the model with --model FOLDER, or its size with --params 8B", err)
	case errors.Is(err, modelsize.ErrUnknown):
		fetch := fetchConfig(name)
		if fetch != "" {
			fetch = "; its configuration alone is enough: " + fetch
		}
		return modelsize.Size{}, "", failf(StatusError, "%w; give its size with --params 8B, or name a folder with --model FOLDER%s", err, fetch)
	case err != nil:
		return modelsize.Size{}, "", failf(StatusError, "%w; --params 8B plans without its files", err)
	}
	return size, name, nil
}

// fetchConfig is the command that fetches a model's configuration, which is enough to
// reckon with; "" where the name is none of the hub's.
func fetchConfig(name string) string {
	owner, model, ok := strings.Cut(name, "/")
	if !ok || owner == "" || model == "" || strings.Contains(model, "/") || strings.HasPrefix(owner, ".") || strings.HasPrefix(owner, "~") {
		return ""
	}
	return "hf download " + shellLine([]string{name}) + " config.json"
}

// isFolder says whether a model's name is a folder that the trainer would see.
func (r *run) isFolder(name string) bool {
	if modelFolder(r.set, r.job, name) != "" {
		return true
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(r.job.TrainerDir, name)
	}
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// notes collects what is to be known beside the figures.
func (p *Planning) notes(j job.Job, o PlanOptions, seen string) {
	if j.From != "" {
		p.Notes = append(p.Notes, "the settings are those of the command that "+j.From+" starts")
	}
	p.Notes = append(p.Notes, j.Notes...)
	for _, k := range planKnobs {
		if why := j.Unclear[k]; why != "" && o.Told[k] == "" {
			words := knobName(k) + " is set, but its value is not clear: " + why
			if flag := PlanFlags[k]; flag != "" {
				words += " (--" + flag + " tells it)"
			}
			p.Notes = append(p.Notes, words)
		}
	}
	if fetch := fetchConfig(p.Model.Name); p.Model.From == modelsize.FromName && fetch != "" && j.Container == nil {
		p.Notes = append(p.Notes, "the size of the model is guessed from its name, and its shape assumed: its configuration alone tells both ("+fetch+")")
	}
	if seen != "" {
		p.Notes = append(p.Notes, "settings in the code are as the shim saw them in "+seen)
	}
	if j.Nodes > 1 || j.Procs > 1 {
		p.Notes = append(p.Notes, fmt.Sprintf("the command uses %d devices: this is what one takes that holds everything; how they share it is not reckoned", max(j.Nodes, 1)*max(j.Procs, 1)))
	}
	p.Notes = append(p.Notes, p.Estimate.Notes...) // those of the model are among them
}

// setBudget reads the memory, or takes the word of the user.
func (p *Planning) setBudget(ctx context.Context, o PlanOptions) error {
	if o.Budget > 0 {
		p.Budget, p.BudgetFrom = preflight.Budget{Known: true, Bytes: o.Budget, Available: o.Budget, Total: o.Budget}, "told by --budget"
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	// Where the driver does not answer, the machine's memory is what can be read.
	dev, gpu, err := sampler.Probe(ctx, o.Exe)
	if err != nil {
		dev, gpu = sample.Device{}, sample.GPU{}
	}
	b, err := preflight.BudgetNow("/", dev, gpu)
	if err != nil {
		return failf(StatusError, "the memory of this machine: %w; --budget 110GB plans for a given size", err)
	}
	p.Budget, p.BudgetFrom = b, "MemAvailable less the reserve for the system and the driver"
	if b.GPU {
		p.BudgetFrom = "the memory of the GPU less what its processes hold"
	}
	return nil
}
