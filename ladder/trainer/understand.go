package trainer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/job"
)

// named are the knobs of package job that a profile may tell of.
var named = []job.Knob{
	job.SeqLen, job.Packing, job.MicroBatch, job.Accumulation, job.EvalBatch, job.LoadIn4Bit, job.OutputDir,
	job.NumWorkers, job.LearningRate, job.GlobalBatch, job.DType, job.ResumeFrom, job.TruncPolicy, job.MaxSteps,
	job.SaveSteps, job.GradCkpt,
}

// Understand returns what sparkrun makes of a command: argv as typed, its
// working folder (absolute), its environment, and the knobs that the user named
// with --knob. A command that no profile recognises is no error; a --knob that
// cannot be right is.
//
// A knob is in Job.Knobs only if Rewrite can turn it, or if the user named it.
func (s *Set) Understand(argv []string, dir string, env []string, user map[string]string) (job.Job, error) {
	if len(argv) == 0 {
		return job.Job{}, errors.New("no command given: write it behind --, as in sparkrun -- python train.py")
	}
	words, err := Expand(argv, user)
	if err != nil {
		return job.Job{}, err
	}
	c := s.inspect(words, dir)
	around := c.surroundings(environ(env))
	j := job.Job{
		Argv:        slices.Clone(argv),
		Dir:         dir,
		TrainerAt:   c.at,
		Interpreter: c.interpreter(around),
		Container:   c.container,
		Nodes:       s.words.nodes(&c.place, words, around),
		Knobs:       job.Knobs{},
	}
	switch {
	case c.module != "":
		j.Script, j.Module = c.module, true
	case c.script != "":
		j.Script = c.script
		if c.dir != dir {
			j.Script = absolute(c.dir, c.script)
		}
	}
	if c.prof != nil {
		j.Profile = c.prof.Name
		if c.doc != nil {
			j.ConfigFile = c.doc.typed
		}
		c.version = installedVersion(j.Interpreter, c.prof.Package)
		c.fill(&j)
	}
	if err := c.fillUser(&j, user); err != nil {
		return job.Job{}, err
	}
	j.Notes = append(j.Notes, c.remarks(&j)...)
	return j, nil
}

// fill reads every knob of the profile.
func (c *command) fill(j *job.Job) {
	if c.blind != "" {
		j.Notes = append(j.Notes, "the trainer's config file cannot be read, so no setting in it is known: "+c.blind)
	}
	values := c.values(j)
	for _, name := range named {
		f, ok, _ := c.knob(string(name))
		if !ok {
			continue
		}
		if why := c.void(string(name), values); why != "" {
			j.Notes = append(j.Notes, fmt.Sprintf("%s is not turned: %s", name, why))
			continue
		}
		if !c.turnable(string(name), f) {
			continue
		}
		j.Knobs[name] = job.Setting{Value: f.value, Source: job.Source(f.origin), Where: f.where}
	}
	if c.prof.Family == "global" {
		delete(j.Knobs, job.Accumulation)
	}
	if m, where := c.method(values); m != "" {
		j.Knobs[job.Method] = job.Setting{Value: m, Source: job.FromDefault, Where: where}
	}
}

// values returns the settings of all knobs of the profile, for its conditions.
func (c *command) values(j *job.Job) map[string]string {
	values := map[string]string{}
	for _, name := range sortedKeys(c.prof.Knobs) {
		f, ok, why := c.knob(name)
		if ok {
			values[name] = f.value
		}
		if why != "" && j != nil {
			j.Notes = append(j.Notes, fmt.Sprintf("%s is not known: %s", name, why))
		}
	}
	return values
}

// turnable says whether the spots of a knob can all be changed.
func (c *command) turnable(name string, f found) bool {
	if len(f.spots) == 0 {
		return c.takes(name)
	}
	return true
}

// void returns the reason for which a knob must not be turned.
func (c *command) void(name string, values map[string]string) string {
	spec := c.prof.Knobs[name]
	for _, w := range spec.VoidText {
		if strings.Contains(c.text, w) {
			return fmt.Sprintf("the script uses %s, where a batch must fit other settings", w)
		}
	}
	for _, r := range spec.Void {
		if holds(r.When, values) {
			return r.Why
		}
	}
	return ""
}

// holds says whether every setting of the condition is as it says; * is any
// value at all.
func holds(when, values map[string]string) bool {
	for k, want := range when {
		v, ok := values[k]
		if !ok || v == "null" || v == "" || (want != "*" && !strings.EqualFold(v, want)) {
			return false
		}
	}
	return len(when) > 0
}

func anyHolds(conditions []map[string]string, values map[string]string) bool {
	for _, w := range conditions {
		if holds(w, values) {
			return true
		}
	}
	return false
}

// method returns how the model is trained. A method that the profile cannot
// change in this command is not named, except lora, from which nothing leads
// on.
func (c *command) method(values map[string]string) (method, where string) {
	m := c.prof.Method
	where = "settings of " + c.prof.Name
	method = m.Otherwise
	var to map[string]string
	switch {
	case c.blind != "":
		return "", ""
	case anyHolds(m.QuantisedWhen, values):
		method, to = "qlora", m.To16Bit
	case anyHolds(m.LoRAWhen, values):
		return "lora", where
	case anyHolds(m.FullWhen, values):
		method = "full"
	}
	if method == "full" {
		to = m.ToLoRA
	}
	if method == "" || len(to) == 0 {
		return "", ""
	}
	for _, name := range sortedKeys(to) {
		if !c.takes(name) && !slices.Contains(m.Optional, name) {
			return "", ""
		}
	}
	return method, where
}

// fillUser adds the knobs that the user named. They win over what was read,
// except where the user's value has no way into the command and the command
// says another: then the command is right.
func (c *command) fillUser(j *job.Job, user map[string]string) error {
	for _, name := range sortedKeys(user) {
		value := user[name]
		k := job.Knob(name)
		switch k {
		case job.SeqLen, job.MicroBatch, job.Accumulation, job.EvalBatch, job.GlobalBatch:
			n, err := parseInt(value)
			if err != nil || n < 1 {
				return fmt.Errorf("--knob %s=%s: it must be a whole number of at least 1", name, value)
			}
			value = strconv.FormatInt(n, 10)
		case job.LoadIn4Bit, job.Packing:
			if _, ok := parseBool(value); !ok {
				return fmt.Errorf("--knob %s=%s: it must be true or false", name, value)
			}
		case job.LoRALR, job.LearningRate:
			if _, err := parseValue("float", value); err != nil {
				return fmt.Errorf("--knob %s=%s: it must be a number", name, value)
			}
		case job.Method:
			if !slices.Contains([]string{"full", "lora", "qlora"}, value) {
				return fmt.Errorf("--knob method=%s: it must be full, lora or qlora", value)
			}
		}
		placed := hasPlaceholder(j.Argv, name)
		if read, ok := j.Knobs[k]; ok && !placed && read.Source != job.FromDefault {
			if read.Value != value {
				j.Notes = append(j.Notes, fmt.Sprintf("--knob %s=%s: the command itself says %s (%s), which holds", name, value, read.Value, read.Where))
			}
			continue
		}
		where := "SPARKRUN_KNOB_" + strings.ToUpper(name)
		if placed {
			where = "{" + name + "}"
		} else if k != job.LoRALR {
			j.Notes = append(j.Notes, fmt.Sprintf("--knob %s has no {%s} in the command: it reaches it only as the environment variable %s", name, name, where))
		}
		j.Knobs[k] = job.Setting{Value: value, Source: job.FromUser, Where: where}
	}
	if _, ok := j.Knobs[job.Method]; !ok {
		if s, ok := j.Knobs[job.LoadIn4Bit]; ok && s.Source == job.FromUser {
			if on, _ := parseBool(s.Value); on {
				j.Knobs[job.Method] = job.Setting{Value: "qlora", Source: job.FromUser, Where: s.Where}
			}
		}
	}
	return nil
}

// remarks says what was not understood, and why.
func (c *command) remarks(j *job.Job) []string {
	var notes []string
	switch {
	case c.container != nil:
		notes = append(notes, fmt.Sprintf("%s is a container client: the settings of the training inside are not changed", c.container.Engine))
	case c.unsure != "":
		notes = append(notes, c.unsure)
	case c.launcher != nil:
		notes = append(notes, fmt.Sprintf("sparkrun does not look behind %s: its settings are left alone", c.launcher.Name))
	case c.prof == nil && len(j.Knobs) == 0:
		notes = append(notes, "no trainer profile fits this command, so none of its settings is known")
	case c.prof != nil && j.Knobs[job.SeqLen].Value == "" && j.Knobs[job.MicroBatch].Value == "":
		notes = append(notes, fmt.Sprintf("recognised as %s, but neither length nor batch is a flag or config setting that can be turned (values written in the script's code stay as they are)", c.prof.Name))
	}
	if j.Nodes > 1 {
		notes = append(notes, fmt.Sprintf("the job spans %d machines: its settings are not changed", j.Nodes))
	}
	return notes
}
