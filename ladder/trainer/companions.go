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
)

// Companions returns the changes that must go with others, each with its reason: the
// policy that truncates rows with a shorter length where the trainer would drop
// them, settings that were worked out from one that changes and so must be written
// out first, and the single settings of a change of method. What is among the changes
// already is left out. Rewrite makes them whether or not they are passed to it.
func (s *Set) Companions(j job.Job, changes []Change) []Change {
	if len(changes) == 0 || j.Unsure != "" {
		return nil
	}
	c, err := s.inJob(j, userKnobs(j.Knobs), nil, nil)
	if err != nil || c.prof == nil {
		return nil
	}
	k := c.knobs()
	asked := map[string]string{}
	for _, ch := range changes {
		asked[string(ch.Knob)] = ch.To
	}
	var out []Change
	add := func(name, to, reason string) {
		if _, is := asked[name]; is {
			return
		}
		asked[name] = to
		f, _, _ := k.get(name)
		out = append(out, Change{Knob: job.Knob(name), From: f.value, To: to, Reason: reason})
	}
	for _, ch := range changes {
		switch ch.Knob {
		case job.Method:
			settings, err := k.switchOf(ch.From, ch.To)
			if err != nil {
				continue // Rewrite says it
			}
			for _, name := range sortedKeys(settings) {
				add(name, settings[name], ch.From+" becomes "+ch.To)
			}
		case job.SeqLen:
			t := c.prof.Truncation
			if f, ok, _ := k.get("truncation"); ok && slices.Contains(t.Drops, f.value) && shorter(j, ch) {
				add("truncation", t.Set, t.Say)
			}
		}
	}
	// A value worked out from others is written out as it was.
	for _, name := range sortedKeys(c.prof.Knobs) {
		spec := c.prof.Knobs[name]
		f, ok, _ := k.get(name)
		if !ok || !f.formula || k.follows(name) {
			continue
		}
		for _, of := range spec.Formula.Of {
			if to, is := asked[of]; is && to != Half {
				add(name, f.value, fmt.Sprintf("written out, since the trainer works it out from %s", of))
				break
			}
		}
	}
	return out
}

// follows says whether a value that is worked out may go on following the settings it
// is worked out from: one that always equals another, and accumulation where the
// effective batch is a setting of its own.
func (k *knobs) follows(name string) bool {
	f := k.c.prof.Knobs[name].Formula
	return f != nil && (f.Op == "same" || name == string(job.Accumulation) && k.family() == "global")
}

// shorter says whether a change of length makes it shorter.
func shorter(j job.Job, ch Change) bool {
	if ch.To == Half {
		return true
	}
	to, err := parseInt(ch.To)
	from, err2 := parseInt(j.Knobs[job.SeqLen].Value)
	return err == nil && (err2 != nil || to < from)
}

// together changes what must agree with the settings that were changed: the numbers of
// a DeepSpeed file, and the same options given to the launcher.
func (w *writer) together() error {
	if w.c.prof == nil {
		return nil
	}
	if err := w.fits(); err != nil {
		return err
	}
	micro, hasMicro := w.asked[string(job.MicroBatch)]
	accum, hasAccum := w.asked[string(job.Accumulation)]
	if !hasMicro && !hasAccum {
		return nil
	}
	if !hasMicro {
		micro = w.valueOf(job.MicroBatch)
	}
	if !hasAccum {
		accum = w.valueOf(job.Accumulation)
	}
	if err := w.launcherSettings(micro, accum, hasAccum); err != nil {
		return err
	}
	if !w.c.prof.DeepSpeed {
		return nil
	}
	return w.deepSpeed(micro, accum)
}

// fits demands what the profile says of numbers that must divide each other.
func (w *writer) fits() error {
	for _, name := range sortedKeys(w.c.prof.Knobs) {
		spec := w.c.prof.Knobs[name]
		_, asked := w.asked[name]
		for _, rule := range []struct {
			other   string
			divides bool
		}{{spec.MultipleOf, false}, {spec.Divides, true}} {
			_, otherAsked := w.asked[rule.other]
			if rule.other == "" || !asked && !otherAsked {
				continue
			}
			a, errA := parseInt(w.valueOf(job.Knob(name)))
			b, errB := parseInt(w.valueOf(job.Knob(rule.other)))
			if errA != nil || errB != nil || a < 1 || b < 1 {
				continue
			}
			if rule.divides && b%a != 0 || !rule.divides && a%b != 0 {
				return fmt.Errorf("%s %d and %s %d do not divide evenly, which the trainer demands", name, a, rule.other, b)
			}
		}
	}
	return nil
}

// valueOf is the value that a knob has after the changes made so far.
func (w *writer) valueOf(k job.Knob) string {
	if v, ok := w.asked[string(k)]; ok {
		return v
	}
	f, _, _ := w.k.get(string(k))
	return f.value
}

// launcherOption keeps an option that accelerate is given for itself in step with the
// trainer's.
func (w *writer) launcherOption(name, value string) {
	old, flag, put := w.launcherArg(name)
	if put == nil || old == value {
		return
	}
	w.launcher = put(value)
	w.done.add(Changed{LayerArgv, flag, old, value}, "%s %s -> %s (the launcher's own)", flag, old, value)
}

// launcherArg finds an option of the launcher; put returns its options with another
// value. put is nil where the option is not there.
func (w *writer) launcherArg(name string) (value, flag string, put func(string) []string) {
	args := slices.Clone(w.c.place.LauncherArgs)
	if w.launcher != nil {
		args = slices.Clone(w.launcher)
	}
	for i, a := range args {
		flag, value, inline := strings.Cut(a, "=")
		long, ok := strings.CutPrefix(flag, "--")
		switch {
		case !ok || normalise(long) != name:
		case inline:
			return value, flag, func(v string) []string { args[i] = flag + "=" + v; return args }
		case i+1 < len(args):
			return args[i+1], flag, func(v string) []string { args[i+1] = v; return args }
		}
	}
	return "", "", nil
}

// launcherSettings keeps in step what a distributed launcher is told of the batch: its own
// options, its config file and the DeepSpeed file that either names. hasAccum says that
// accumulation changes.
func (w *writer) launcherSettings(micro, accum string, hasAccum bool) error {
	if hasAccum {
		w.launcherOption("gradient_accumulation_steps", accum)
	}
	if typed, _, put := w.launcherArg("deepspeed_config_file"); put != nil {
		word, err := w.deepSpeedFile(typed, micro, accum)
		if err != nil {
			return err
		}
		if word != "" {
			w.launcher = put(word)
		}
	}
	return w.launcherFile(micro, accum, hasAccum)
}

// launcherFile keeps the batch in accelerate's own config file in step: with DeepSpeed
// it must agree with the trainer's.
func (w *writer) launcherFile(micro, accum string, hasAccum bool) error {
	p := w.c.place
	typed, _, put := w.launcherArg("config_file")
	fixed := false
	switch {
	case put != nil:
	case p.LauncherDefault != "":
		typed = p.LauncherDefault
		put = func(word string) []string {
			args := p.LauncherArgs
			if w.launcher != nil {
				args = w.launcher
			}
			return append([]string{"--config_file", word}, args...)
		}
	case p.LauncherFixed != "":
		typed, fixed = p.LauncherFixed, true
	default:
		return nil
	}
	if !edit.Known(typed) {
		return nil
	}
	path, ok := p.HostPath(typed)
	if !ok {
		return nil // it lies inside a container; what is in it is not known
	}
	data, err := w.c.readFile(path)
	if err != nil {
		return nil //nolint:nilerr // the launcher will say it
	}
	doc, err := edit.Parse(path, data)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	d := &document{typed: typed, path: path, doc: doc, companion: true}
	if err := w.launcherKeys(d, micro, accum, hasAccum, fixed); err != nil {
		return err
	}
	if _, changed := w.docs[d]; !changed {
		return nil
	}
	_, word, err := w.copyOf(d)
	if err != nil {
		return err
	}
	w.launcher = put(word)
	return nil
}

// launcherKeys changes what an accelerate config says of the batch. fixed is set where
// the trainer gives it to its launcher, and no copy can be named.
func (w *writer) launcherKeys(d *document, micro, accum string, hasAccum, fixed bool) error {
	const (
		steps = "deepspeed_config.gradient_accumulation_steps"
		file  = "deepspeed_config.deepspeed_config_file"
	)
	change := func(e edit.Entry, kind, value string) error {
		at := fmt.Sprintf("%s:%d %s", d.typed, e.Line, e.Path)
		if fixed {
			return fmt.Errorf("%s is %s and would have to be %s as well, but the trainer's own launcher reads that file", at, e.Value, value)
		}
		if err := w.setIn(d, e.Path, knobSpec{Kind: kind}, value); err != nil {
			return err
		}
		w.done.add(Changed{LayerConfig, at, e.Value, value}, "%s: %s -> %s (the launcher's own)", at, e.Value, value)
		return nil
	}
	if e, ok := d.doc.Get(steps); ok && hasAccum && e.Kind == edit.Scalar && e.Value != "auto" && !sameValue("int", e.Value, accum) {
		if _, _, put := w.launcherArg("gradient_accumulation_steps"); put == nil {
			if err := change(e, "int", accum); err != nil {
				return err
			}
		}
	}
	if e, ok := d.doc.Get(file); ok && e.Kind == edit.Scalar && e.Value != "" {
		if _, _, put := w.launcherArg("deepspeed_config_file"); put != nil {
			return nil // the option beats the file
		}
		word, err := w.deepSpeedFile(e.Value, micro, accum)
		if err != nil || word == "" {
			return err
		}
		return change(e, "str", word)
	}
	return nil
}

// deepSpeed changes the numbers of the DeepSpeed file that the trainer names.
func (w *writer) deepSpeed(micro, accum string) error {
	f, ok, why := w.k.get("deepspeed")
	if why != "" {
		return fmt.Errorf("a DeepSpeed file may fix the batch: %s", why)
	}
	if !ok {
		return nil
	}
	word, err := w.deepSpeedFile(f.value, micro, accum)
	if err != nil || word == "" {
		return err
	}
	// Naming the copy is no change of its own.
	diff, parts := w.done.diff, w.done.changes
	err = w.set("deepspeed", word)
	w.done.diff, w.done.changes = diff, parts
	return err
}

// deepSpeedFile changes the numbers of a DeepSpeed file that must agree with the
// trainer's, in a copy of it. It returns the way to name the copy, "" without one.
func (w *writer) deepSpeedFile(typed, micro, accum string) (word string, err error) {
	if filepath.Ext(typed) != ".json" {
		return "", nil // one of the trainer's own, whose numbers follow the flags
	}
	path, ok := w.c.place.HostPath(typed)
	if !ok {
		return "", fmt.Errorf("the DeepSpeed file %s may fix the batch, and it lies where it cannot be read", typed)
	}
	data, err := w.c.readFile(path)
	if err != nil {
		return "", fmt.Errorf("the DeepSpeed file may fix the batch: reading %s: %w", typed, err)
	}
	doc, err := edit.Parse(path, data)
	if err != nil {
		return "", fmt.Errorf("the DeepSpeed file may fix the batch: %s: %w", typed, err)
	}
	d := &document{typed: typed, path: path, doc: doc, companion: true}
	total := ""
	if e, ok := doc.Get("train_batch_size"); ok && e.Value != "auto" {
		if total, err = w.total(micro, accum); err != nil {
			return "", fmt.Errorf("%s:%d train_batch_size: %w", typed, e.Line, err)
		}
	}
	for _, n := range []struct{ key, value string }{
		{"train_micro_batch_size_per_gpu", micro}, {"gradient_accumulation_steps", accum}, {"train_batch_size", total},
	} {
		e, ok := doc.Get(n.key)
		if !ok || e.Kind != edit.Scalar || e.Value == "auto" || n.value == "" || sameValue("int", e.Value, n.value) {
			continue
		}
		if err := w.setIn(d, n.key, knobSpec{Kind: "int"}, n.value); err != nil {
			return "", err
		}
		at := fmt.Sprintf("%s:%d %s", d.typed, e.Line, n.key)
		w.done.add(Changed{LayerConfig, at, e.Value, n.value}, "%s: %s -> %s", at, e.Value, n.value)
	}
	if _, changed := w.docs[d]; !changed {
		return "", nil
	}
	_, word, err = w.copyOf(d)
	return word, err
}

// total is micro x accumulation x processes.
func (w *writer) total(micro, accum string) (string, error) {
	m, errM := parseInt(micro)
	a, errA := parseInt(accum)
	if errM != nil || errA != nil {
		return "", errors.New("the batch is not known")
	}
	was := func(k job.Knob) int64 {
		f, _, _ := w.k.get(string(k))
		n, err := parseInt(f.value)
		if err != nil {
			return 0
		}
		return n
	}
	switch {
	case m*a == was(job.MicroBatch)*was(job.Accumulation):
		return "", nil // it stays as it is
	case w.c.world < 1:
		return "", errors.New("it would have to change, and how many processes train is not known")
	}
	return strconv.FormatInt(m*a*w.c.world, 10), nil
}
