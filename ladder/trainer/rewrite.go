package trainer

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
)

// Rewrite returns the command of an attempt: the job with changes made to it,
// nothing else. Without changes it is the command as typed with its placeholders
// filled in. It writes nothing: the caller creates Files. attemptDir is where a
// changed config file goes if the folder of the original cannot be written.
//
// An error means that a change cannot be made exactly as asked; then none is.
func (s *Set) Rewrite(j job.Job, changes []Change, runID string, attempt int, attemptDir string) (Rewrite, error) {
	user := userKnobs(j.Knobs)
	words, err := Expand(j.Argv, user)
	if err != nil {
		return Rewrite{}, err
	}
	after := j
	after.Knobs = j.Knobs.Clone()
	var own []Change
	var done record
	for _, ch := range changes {
		set := after.Knobs[ch.Knob]
		set.Value = ch.To
		after.Knobs[ch.Knob] = set
		if set.Source != job.FromUser || ch.Knob == job.Method {
			own = append(own, ch)
			continue
		}
		// The user said where this knob goes: into its placeholders, or nowhere
		// but the environment.
		before := user[string(ch.Knob)]
		user[string(ch.Knob)] = ch.To
		layer, name := LayerArgv, set.Where
		if !strings.HasPrefix(name, "{") {
			layer, name = LayerEnv, "SPARKRUN_KNOB_"+strings.ToUpper(string(ch.Knob))
		}
		done.add(Changed{layer, name, before, ch.To}, "%s %s -> %s", name, ch.From, ch.To)
	}
	out := Rewrite{Env: KnobEnv(after)}
	if len(own) > 0 {
		w := &writer{c: s.inspect(words, j.Dir), edits: edits{replace: map[int][]string{}}}
		if w.c.prof != nil {
			w.c.version = installedVersion(j.Interpreter, w.c.prof.Package)
		}
		for _, ch := range own {
			if err := w.change(j, ch, changes); err != nil {
				return Rewrite{}, err
			}
		}
		if w.doc != nil {
			f, err := w.file(runID, attempt, attemptDir)
			if err != nil {
				return Rewrite{}, err
			}
			out.Files = []File{f}
		}
		// Placeholders and edits never meet in one word: a knob with a
		// placeholder is the user's. Each is applied to the typed words.
		if words, err = Expand(j.Argv, user); err != nil {
			return Rewrite{}, err
		}
		words = w.edits.apply(words, w.c.args)
		done.diff = append(done.diff, w.done.diff...)
		done.changes = append(done.changes, w.done.changes...)
	} else if words, err = Expand(j.Argv, user); err != nil {
		return Rewrite{}, err
	}
	out.Argv, out.Diff, out.Changes = words, done.diff, done.changes
	return out, nil
}

// writer collects what the changes of one attempt do to the command.
type writer struct {
	c     *command
	edits edits
	done  record
	// doc is the changed text of the config file, nil while it is unchanged.
	doc []byte
}

// record is what was changed: the same in words and in parts.
type record struct {
	diff    []string
	changes []Changed
}

func (r *record) add(c Changed, format string, args ...any) {
	r.diff = append(r.diff, fmt.Sprintf(format, args...))
	r.changes = append(r.changes, c)
}

// change makes one change of a rung. A change of method is several settings.
func (w *writer) change(j job.Job, ch Change, all []Change) error {
	if ch.Knob != job.Method {
		if w.c.prof == nil {
			return fmt.Errorf("cannot set %s: no trainer profile fits the command", ch.Knob)
		}
		return w.set(string(ch.Knob), ch.To)
	}
	if w.c.prof == nil {
		for _, other := range all {
			if other.Knob == job.LoadIn4Bit {
				return nil // the user's own knob carries the method
			}
		}
		return fmt.Errorf("cannot change the method: no trainer profile fits the command")
	}
	m := w.c.prof.Method
	to := m.ToLoRA
	if ch.From == "qlora" {
		to = m.To16Bit
	}
	if ch.To != "lora" || len(to) == 0 {
		return fmt.Errorf("profile %s does not know how to turn %s into %s", w.c.prof.Name, ch.From, ch.To)
	}
	for _, name := range sortedKeys(to) {
		if slices.ContainsFunc(all, func(c Change) bool { return string(c.Knob) == name }) {
			continue
		}
		if !w.c.takes(name) && slices.Contains(m.Optional, name) {
			continue
		}
		if err := w.set(name, to[name]); err != nil {
			return err
		}
	}
	return nil
}

// set gives a knob of the profile a value, by the trainer's own override where
// there is one.
func (w *writer) set(name, value string) error {
	spec, ok := w.c.prof.Knobs[name]
	if !ok {
		return fmt.Errorf("profile %s has no knob %s", w.c.prof.Name, name)
	}
	f, _, why := w.c.knob(name)
	if why != "" {
		return fmt.Errorf("cannot set %s: %s", name, why)
	}
	for _, n := range spec.Names {
		if d, ok := w.c.decl[n]; ok && len(d.choices) > 0 && !slices.Contains(d.choices, value) {
			return fmt.Errorf("cannot set %s to %s: the script allows only %s", name, value, strings.Join(d.choices, ", "))
		}
	}
	if len(f.spots) == 0 {
		if !w.c.takes(name) {
			return fmt.Errorf("cannot set %s: the command has no flag for it that is certain to be taken", name)
		}
		return w.add(f, spec, value)
	}
	for _, s := range f.spots {
		if err := w.put(s, f, spec, value); err != nil {
			return err
		}
	}
	return nil
}

// put changes one place where the value stands.
func (w *writer) put(s spot, f found, spec knobSpec, value string) error {
	switch {
	case s.opt != nil && s.opt.at >= 0:
		return w.putFlag(s.opt, f, spec, value)
	case s.opt != nil: // in an .args file, which argv overrides
		w.override(s.flag, f.value, value)
		return nil
	case s.pair >= 0:
		key, old, _ := strings.Cut(w.c.words[s.pair], "=")
		w.edits.replace[s.pair] = []string{key + "=" + value}
		w.done.add(Changed{LayerArgv, key, old, value}, "%s=%s -> %s", key, old, value)
		return nil
	}
	d := w.c.doc
	switch d.form.Override {
	case "flags":
		w.edits.added = append(w.edits.added, "--"+s.flag, value)
		w.done.add(Changed{LayerArgv, "--" + s.flag, "", value},
			"--%s %s (over %s:%d %s: %s)", s.flag, value, d.typed, s.line, s.key, f.value)
		return nil
	case "dotlist":
		w.edits.added = append(w.edits.added, s.key+"="+value)
		w.done.add(Changed{LayerArgv, s.key, "", value},
			"%s=%s (over %s:%d %s: %s)", s.key, value, d.typed, s.line, s.key, f.value)
		return nil
	}
	if err := w.setInFile(s.key, value, spec.Kind); err != nil {
		return err
	}
	was, _ := d.get(s.key)
	w.done.add(Changed{LayerConfig, fmt.Sprintf("%s:%d %s", d.typed, s.line, s.key), was.value, value},
		"%s:%d %s: %s -> %s", d.typed, s.line, s.key, f.value, value)
	return nil
}

// putFlag changes a flag where it stands, so that argv stays readable.
func (w *writer) putFlag(o *option, f found, spec knobSpec, value string) error {
	taken := o.takesNext(spec.Kind, f.toggle)
	old, was := w.c.words[o.at], "true"
	switch {
	case taken:
		old, was = old+" "+o.next, o.next
	case o.inline:
		was = o.next
	case o.negated:
		was = "false"
	}
	drop := func() {
		w.edits.replace[o.at] = nil
		if taken {
			w.edits.replace[o.at+1] = nil
		}
		w.done.add(Changed{LayerArgv, o.typed, was, ""}, "%s (removed)", old)
	}
	switch {
	case value == "null":
		drop()
		return nil
	case f.toggle:
		on, ok := parseBool(value)
		if !ok {
			return fmt.Errorf("cannot set %s to %s", o.typed, value)
		}
		if !on {
			drop()
		}
		return nil
	case o.negated:
		w.edits.replace[o.at] = []string{"--" + o.name, value}
	case o.inline:
		w.edits.replace[o.at] = []string{o.typed + "=" + value}
	case taken:
		w.edits.replace[o.at+1] = []string{value}
	default:
		w.edits.replace[o.at] = []string{o.typed, value}
	}
	now := value
	if !taken && !o.inline {
		now = strings.Join(w.edits.replace[o.at], " ")
	}
	w.done.add(Changed{LayerArgv, o.typed, was, value}, "%s -> %s", old, now)
	return nil
}

// add sets a knob that stands nowhere yet.
func (w *writer) add(f found, spec knobSpec, value string) error {
	if value == "null" {
		return nil
	}
	was := f.value
	if was == "" {
		was = "not set"
	} else {
		was = "default " + was
	}
	if d := w.c.doc; d != nil {
		switch d.form.Override {
		case "dotlist":
			w.edits.added = append(w.edits.added, f.name+"="+value)
			w.done.add(Changed{LayerArgv, f.name, "", value}, "%s=%s (added; %s)", f.name, value, was)
			return nil
		case "none":
			if err := w.setInFile(f.name, value, spec.Kind); err != nil {
				return err
			}
			w.done.add(Changed{LayerConfig, d.typed + " " + f.name, "", value},
				"%s %s: %s (added; %s)", d.typed, f.name, value, was)
			return nil
		}
	}
	name := "--" + f.name
	if !w.c.proven {
		name = w.declaredSpelling(f.name)
	}
	if f.toggle {
		on, ok := parseBool(value)
		if !ok {
			return fmt.Errorf("cannot set --%s to %s", f.name, value)
		}
		if on {
			w.edits.added = append(w.edits.added, name)
			w.done.add(Changed{LayerArgv, name, "", "true"}, "%s (added)", name)
		}
		return nil
	}
	w.edits.added = append(w.edits.added, name, value)
	w.done.add(Changed{LayerArgv, name, "", value}, "%s %s (added; %s)", name, value, was)
	return nil
}

// declaredSpelling returns the flag with the hyphens that the script gave it:
// plain argparse does not take the other spelling.
func (w *writer) declaredSpelling(name string) string {
	for _, m := range longFlag.FindAllStringSubmatch(w.c.text, -1) {
		if normalise(m[1]) == name {
			return "--" + m[1]
		}
	}
	return "--" + name
}

// override adds a flag behind all others: the last one wins.
func (w *writer) override(flag, from, to string) {
	w.edits.added = append(w.edits.added, "--"+flag, to)
	w.done.add(Changed{LayerArgv, "--" + flag, "", to}, "--%s %s (added; was %s)", flag, to, from)
}

func (w *writer) setInFile(key, value, kind string) error {
	d := w.c.doc
	if w.doc == nil {
		w.doc = d.data
	}
	data, err := d.set(w.doc, key, value, kind)
	if err != nil {
		return fmt.Errorf("changing a copy of %s: %w", d.typed, err)
	}
	w.doc = data
	return nil
}

// file places the changed copy beside the original, where relative paths and
// includes go on to work, and swaps the word that names it.
func (w *writer) file(runID string, attempt int, attemptDir string) (File, error) {
	d := w.c.doc
	name := ".sparkrun-" + runID + "-a" + strconv.Itoa(attempt) + "-" + filepath.Base(d.path)
	folder := filepath.Dir(d.path)
	word := name
	if dir := filepath.Dir(d.typed); dir != "." || strings.HasPrefix(d.typed, "./") {
		word = strings.TrimSuffix(d.typed, filepath.Base(d.typed)) + name
	}
	if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
		if key := d.refersToNeighbours(); key != "" {
			return File{}, fmt.Errorf("%s must be changed, but its folder cannot be written (%w) and its setting %s is a path relative to that folder", d.typed, err, key)
		}
		if attemptDir == "" {
			return File{}, fmt.Errorf("%s must be changed, but its folder cannot be written: %w", d.typed, err)
		}
		folder = absolute(w.c.dir, attemptDir)
		word = filepath.Join(folder, name)
	}
	w.edits.replace[d.at] = []string{word}
	return File{Path: filepath.Join(folder, name), Content: w.doc, Mode: 0o600, Original: d.path}, nil
}

// OutputSuffix returns the change that gives an attempt that starts over an
// output folder of its own, so that it never writes where an earlier attempt
// saved: X becomes X-a2. It is false where the output folder is not known.
func OutputSuffix(j job.Job, attempt int) (Change, bool) {
	set, ok := j.Knobs[job.OutputDir]
	if !ok || set.Value == "" || attempt < 2 {
		return Change{}, false
	}
	trimmed := strings.TrimRight(set.Value, "/")
	if trimmed == "" || filepath.Base(trimmed) == "." || filepath.Base(trimmed) == ".." {
		return Change{}, false
	}
	return Change{
		Knob: job.OutputDir, From: set.Value, To: trimmed + "-a" + strconv.Itoa(attempt),
		Reason: "this attempt starts over and must not write where an earlier one saved",
	}, true
}

// Floor returns the shortest length that the job's profile allows a rung to go
// to, 0 if it does not say.
func (s *Set) Floor(j job.Job) int64 {
	if p := s.profile(j.Profile); p != nil {
		return int64(p.Floor)
	}
	return 0
}

// CanResume says whether the trainer takes up a checkpoint that ResumeFrom
// names, with settings unchanged. With a smaller micro-batch or length it is not
// to be trusted: transformers 4.36 to 5.1 takes the old batch from the
// checkpoint, and a new length moves every step count.
func (s *Set) CanResume(j job.Job) bool {
	p := s.profile(j.Profile)
	if p == nil || j.Container != nil || j.Nodes > 1 {
		return false
	}
	words, err := Expand(j.Argv, userKnobs(j.Knobs))
	if err != nil {
		return false
	}
	c := s.inspect(words, j.Dir)
	if c.prof != p || !c.takes(string(job.ResumeFrom)) {
		return false
	}
	switch p.Resume {
	case "always":
		return true
	case "text":
		return strings.Contains(c.text, "resume_from_checkpoint")
	}
	return false
}
