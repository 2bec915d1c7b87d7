package trainer

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/edit"
	"sparkrun/internal/job"
	"sparkrun/ladder/trainer/place"
	"sparkrun/ladder/trainer/shim"
)

// named are the knobs of package job that a profile may tell of.
var named = []job.Knob{
	job.SeqLen, job.Packing, job.MicroBatch, job.Accumulation, job.EvalBatch, job.LoadIn4Bit, job.OutputDir,
	job.NumWorkers, job.LearningRate, job.GlobalBatch, job.DType, job.ResumeFrom, job.TruncPolicy, job.MaxSteps,
	job.SaveSteps, job.GradCkpt, job.Optimizer, job.Epochs, job.Model,
	job.Attention, job.LoRARank, job.LoRATargets,
}

// Understand returns what sparkrun makes of a command: argv as typed, its
// working folder (absolute), its environment, and the knobs that the user named
// with --knob. A command that no profile recognises is no error; a --knob that
// cannot be right is.
//
// A knob is in Job.Knobs if its value is known. Fixed tells those that cannot be
// turned.
func (s *Set) Understand(argv []string, dir string, env []string, user map[string]string) (job.Job, error) {
	return s.understand(argv, dir, place.Environ(env), user, nil)
}

func (s *Set) understand(argv []string, dir string, env map[string]string, user map[string]string, over files) (job.Job, error) {
	if len(argv) == 0 {
		return job.Job{}, errors.New("no command given: write it behind --, as in sparkrun -- python train.py")
	}
	words, err := Expand(argv, user)
	if err != nil {
		return job.Job{}, err
	}
	c := s.inspect(words, around{dir: dir, env: env, files: over})
	p := c.place
	j := job.Job{
		Argv:        slices.Clone(argv),
		Dir:         dir,
		TrainerAt:   trainerAt(words, p),
		Interpreter: p.Interpreter(env),
		Container:   p.Container,
		Nodes:       p.Nodes,
		Procs:       p.Procs,
		Launchers:   slices.Clone(p.Launchers),
		TrainerDir:  p.Dir,
		Unsure:      p.Unsure,
		Opaque:      p.Opaque,
		ShimRefused: p.ShimRefused,
		Env:         p.Set,
		EnvUnset:    append(slices.Clone(p.Unset), p.Unclear...),
		EnvCleared:  p.Cleared,
		Resume:      job.Resume{How: "never", Why: "no trainer profile fits, so how to ask for it is not known"},
		Knobs:       job.Knobs{},
		Notes:       slices.Clone(p.Notes),
		Read:        c.read,
	}
	switch {
	case p.Module != "":
		j.Script, j.Module = p.Module, true
	case p.Script != "":
		j.Script = p.Script
		if host, ok := p.HostPath(p.Script); ok && p.Dir != dir {
			j.Script = host
		}
	}
	if c.prof != nil {
		c.fill(&j)
	}
	j.Objective = c.objective()
	if err := c.fillUser(&j, user); err != nil {
		return job.Job{}, err
	}
	j.Notes = append(j.Notes, c.remarks(&j)...)
	if over == nil {
		j.Inner, j.NoInner = s.inner(c, dir, env, user, maxScripts)
	}
	return j, nil
}

// maxScripts is how many scripts that start one another are followed.
const maxScripts = 4

// inner understands the command that a shell script starts, nil where the command is no
// script, or one whose text tells too little; why says so of what shells can be told apart.
func (s *Set) inner(c *command, dir string, env map[string]string, user map[string]string, deep int) (in *job.Job, why string) {
	p := c.place
	file, ok := p.HostPath(p.ShellFile)
	if p.ShellFile == "" || !ok || deep == 0 {
		return nil, ""
	}
	head := c.head(file, scriptHead)
	text := string(head)
	for name := range user {
		// Nobody fills in placeholders of ours in a script.
		text = strings.ReplaceAll(text, "{"+name+"}", "{{"+name+"}}")
	}
	argv, ok := p.Reading(text)
	if len(head) == 0 || len(head) == scriptHead || !ok {
		return nil, ""
	}
	j, err := s.understand(argv, dir, env, user, files{})
	if err != nil || j.Unsure != "" {
		return nil, ""
	}
	if j.Opaque != "" {
		again := s.inspect(argv, around{dir: dir, env: env})
		if again.place.ShellFile == "" {
			_, why, _ = strings.Cut(j.Opaque, " -c is left alone: ")
			return nil, why
		}
		return s.inner(again, dir, env, user, deep-1)
	}
	j.From = p.ShellFile
	return &j, ""
}

// trainerAt is the index in argv of the trainer's own first word: its script, module
// or program. Where it stands inside another word, such as the string of bash -c, it
// is that word's index.
func trainerAt(argv []string, p *place.Place) int {
	if len(p.Words) <= len(argv) && slices.Equal(argv[len(argv)-len(p.Words):], p.Words) {
		at := len(argv) - len(p.Words)
		if p.Seen() || p.Args < len(p.Words) {
			at += max(0, p.Args-1)
		}
		return min(at, max(0, len(argv)-1))
	}
	for i := len(argv) - 1; i >= 0; i-- {
		for _, w := range []string{p.Script, p.Module, p.Program} {
			if w != "" && strings.Contains(argv[i], w) {
				return i
			}
		}
	}
	return 0
}

// fill reads every knob of the profile, and what else it tells of the job.
func (c *command) fill(j *job.Job) {
	p := c.prof
	j.Profile, j.Image, j.Family, j.Floor = p.Name, p.Image, "", int64(p.Floor)
	j.ConfigFile = c.config
	if len(c.docs) > 0 && c.docs[0].path != absolute(j.Dir, c.docs[0].typed) {
		j.ConfigFile = c.docs[0].path
	}
	if n := c.ownProcs(); n > 0 {
		j.Procs = int(n)
	}
	if c.blind != "" {
		j.Notes = append(j.Notes, "the trainer's config file cannot be read, so no setting in it is known: "+c.blind)
	}
	k := c.knobs()
	j.SelfShrinks, j.Family = k.selfShrinks(), k.family()
	for _, name := range sortedKeys(c.unheard) {
		j.Notes = append(j.Notes, c.unheard[name])
	}
	for _, name := range named {
		f, ok, why := k.get(string(name))
		if why != "" {
			j.Notes = append(j.Notes, fmt.Sprintf("%s is not known: %s", name, why))
			if j.Unclear == nil {
				j.Unclear = map[job.Knob]string{}
			}
			j.Unclear[name] = why
		}
		if !ok {
			continue
		}
		set := job.Setting{Value: f.value, Source: f.origin, Where: f.where, Choices: f.choices}
		set.Min, set.MinWhy = k.least(string(name))
		j.Knobs[name] = set
		if why := k.void(string(name)); why != "" {
			j.Notes = append(j.Notes, fmt.Sprintf("%s is not turned: %s", name, why))
		}
	}
	if j.Family == "global" {
		delete(j.Knobs, job.Accumulation)
	}
	if p.Image {
		delete(j.Knobs, job.SeqLen)
	}
	if m, ok := k.method(); ok {
		j.Knobs[job.Method] = m
	}
	j.Memory = k.memory()
	if _, ok := j.Knobs[job.SeqLen]; ok {
		j.LongRows = k.longRows()
	}
	j.Resume = c.resume(k)
	c.opaque(j, k)
}

// least is the smallest value that the trainer takes for a knob, 0 if any.
func (k *knobs) least(name string) (least int64, why string) {
	for _, m := range k.c.prof.Knobs[name].Mins {
		if k.holds(m.When) || mentions(k.c.text, m.Text) {
			return m.Min, m.Why
		}
	}
	return 0, ""
}

// longRows says what becomes of rows that are longer than a new length.
func (k *knobs) longRows() string {
	for _, r := range k.c.prof.LongRows {
		if len(r.When)+len(r.Text) == 0 || k.holds(r.When) || mentions(k.c.text, r.Text) {
			return r.Say
		}
	}
	return ""
}

// opaque marks a script whose length and batch are worked out in its code: nothing
// tells them beforehand, but the shim sees them.
func (c *command) opaque(j *job.Job, k *knobs) {
	if j.Opaque != "" || j.ShimRefused != "" || len(c.consts) == 0 {
		return
	}
	computed := false
	for _, name := range []job.Knob{job.SeqLen, job.MicroBatch} {
		if _, ok := j.Knobs[name]; ok {
			return
		}
		f, _, _ := k.get(string(name))
		computed = computed || f.computed
	}
	if computed {
		j.Opaque = fmt.Sprintf("length and batch are worked out in the code of %s", c.scriptName())
	}
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
			if _, ok := edit.AsBool(value); !ok {
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
		where := knobVar(k)
		if placed {
			where = "{" + name + "}"
		}
		if k == job.Method && c.prof == nil {
			if _, also := user[string(job.LoadIn4Bit)]; !also {
				j.Notes = append(j.Notes, fmt.Sprintf("--knob method=%s: no trainer profile fits this command, so the method is believed and never changed: which settings change it is not known", value))
			}
		} else if !placed && k != job.LoRALR {
			j.Notes = append(j.Notes, fmt.Sprintf("--knob %s has no {%s} in the command: it reaches it only as the environment variable %s", name, name, where))
		}
		if _, known := knownKnobs()[name]; !known && !placed && k != job.Method && k != job.LoRALR && (c.prof == nil || c.prof.Knobs[name].Kind == "") {
			if near := nearest(name, sortedKeys(knownKnobs())); near != "" {
				j.Notes = append(j.Notes, fmt.Sprintf("--knob %s: sparkrun knows no setting of that name; did you mean %s?", name, near))
			}
		}
		j.Knobs[k] = job.Setting{Value: value, Source: job.FromUser, Where: where}
	}
	if _, ok := j.Knobs[job.Method]; !ok {
		if s, ok := j.Knobs[job.LoadIn4Bit]; ok && s.Source == job.FromUser {
			if on, _ := edit.AsBool(s.Value); on {
				j.Knobs[job.Method] = job.Setting{Value: "qlora", Source: job.FromUser, Where: s.Where}
			}
		}
	}
	return nil
}

// remarks says what was not understood, and why.
func (c *command) remarks(j *job.Job) []string {
	var notes []string
	if c.prof == nil && c.unread != "" {
		notes = append(notes, c.unread)
	}
	if j.Slip = c.missing(); j.Slip != "" {
		notes = append(notes, j.Slip)
	}
	switch {
	case j.Unsure != "":
		notes = append(notes, j.Unsure)
	case j.Opaque != "" && j.ShimRefused == "":
		notes = append(notes, j.Opaque+"; only the shim can change what it trains with")
	case j.Opaque != "":
		notes = append(notes, j.Opaque+", and the shim does not reach it ("+j.ShimRefused+"): its settings are not changed")
	case c.prof == nil && len(j.Knobs) == 0 && len(notes)+len(j.Notes) == 0:
		notes = append(notes, "no trainer profile fits this command, so none of its settings is known")
	case c.prof != nil && j.Knobs[job.SeqLen].Value == "" && j.Knobs[job.MicroBatch].Value == "" && c.blind == "":
		notes = append(notes, fmt.Sprintf("recognised as %s, but neither length nor batch is a flag, a config setting or a value written in the script that can be turned", c.prof.Name))
	case c.needsShim(j) && j.ShimRefused != "":
		notes = append(notes, "values written in the script's code cannot be changed: "+j.ShimRefused)
	}
	if j.Nodes > 1 {
		notes = append(notes, fmt.Sprintf("the job spans %d machines: its settings are not changed", j.Nodes))
	}
	return notes
}

// needsShim says whether some knob of the job is written in code.
func (c *command) needsShim(j *job.Job) bool {
	for _, set := range j.Knobs {
		if set.Source == job.FromScript {
			return true
		}
	}
	return false
}

// shimTurns says whether the shim knows the knob.
func shimTurns(name string) bool { return slices.Contains(shim.Knobs(), job.Knob(name)) }

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// knobVar is the environment variable that carries a knob to the child.
func knobVar(k job.Knob) string { return "SPARKRUN_KNOB_" + strings.ToUpper(string(k)) }

// asksResume says why the command cannot be made to ask for a checkpoint, "" if it
// can.
func (k *knobs) asksResume() string {
	r := k.c.prof.Resume
	if !r.fromFolder() {
		return k.fixed(string(job.ResumeFrom))
	}
	for _, name := range sortedKeys(r.Also) {
		if why := k.fixed(name); why != "" {
			return name + ": " + why
		}
	}
	return ""
}

// installed is the text of a file of the installed packages, with {subcommand} filled
// in.
func (c *command) installed(name string) string {
	if name == "" || c.subcommand == "" || c.place.Program == "" {
		return ""
	}
	name = strings.ReplaceAll(name, "{subcommand}", c.subcommand)
	for _, dir := range place.SitePackages(c.root, c.python) {
		if head := c.root.Head(filepath.Join(dir, filepath.FromSlash(name)), scriptHead); head != nil {
			return string(head)
		}
	}
	return ""
}

// resume says what the trainer makes of a checkpoint.
func (c *command) resume(k *knobs) job.Resume {
	r := c.prof.Resume
	out := job.Resume{How: "never", Layout: c.prof.Checkpoints, Why: r.Why}
	words := r.Text
	if len(words) == 0 {
		words = []string{"resume_from_checkpoint"}
	}
	flag := k.asksResume()
	switch r.How {
	case "auto":
		out.How = "auto"
	case "always":
		out.How = "path"
		if flag != "" {
			out.How, out.Why = "never", flag
		}
	case "text":
		switch {
		case flag != "":
			out.Why = flag
		case c.text == "" && c.installed(r.Source) == "":
			out.Why = fmt.Sprintf("whether %s hands a checkpoint to its trainer is not known: its code is not at hand", c.scriptName())
		case !handsOn(c.text, words) && !handsOn(c.installed(r.Source), words):
			out.Why = fmt.Sprintf("%s does not hand a checkpoint to its trainer", c.scriptName())
		default:
			out.How = "path"
		}
	}
	if out.How != "never" {
		out.Why = ""
	} else if out.Why == "" {
		out.Why = "profile " + c.prof.Name + " knows no way to ask for it"
	}
	return out
}
