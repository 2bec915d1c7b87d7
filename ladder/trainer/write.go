package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sparkrun/internal/edit"
	"sparkrun/internal/job"
)

// set gives a knob of the profile a value, by the trainer's own override where
// there is one, else in a copy of the config file, else by the shim.
func (w *writer) set(name, value string) error {
	spec, ok := w.c.prof.Knobs[name]
	if !ok {
		if set := w.j.Knobs[job.Knob(name)]; set.Source == job.FromScript {
			return w.clamp(Change{Knob: job.Knob(name), From: set.Value, To: value})
		}
		return fmt.Errorf("profile %s has no knob %s", w.c.prof.Name, name)
	}
	if why := w.k.void(name); why != "" {
		return fmt.Errorf("cannot set %s: %s", name, why)
	}
	f, _, why := w.k.get(name)
	if why != "" {
		return fmt.Errorf("cannot set %s: %s", name, why)
	}
	if !allowed(f.choices, spec.Kind, value) {
		whose := "profile " + w.c.prof.Name
		if f.declared {
			whose = "the script"
		}
		return fmt.Errorf("cannot set %s to %s: %s allows only %s", name, value, whose, strings.Join(f.choices, ", "))
	}
	if n, err := parseInt(value); err == nil {
		if least, why := w.k.least(name); n < least {
			return fmt.Errorf("cannot set %s to %s: it must be at least %d, since %s", name, value, least, why)
		}
	}
	if was, ok := w.byShim(name); ok || w.pairByShim(name) {
		if !ok {
			was = f.value
		}
		return w.clamp(Change{Knob: job.Knob(name), From: was, To: value})
	}
	if value == "null" && spec.Off == "false" {
		value = "false"
	}
	w.asked[name] = value
	f.value, value = f.whole(f.value), f.whole(value)
	if len(f.spots) == 0 {
		if !w.c.accepts(spec) {
			return fmt.Errorf("cannot set %s: the command has no flag for it that is certain to be taken", name)
		}
		return w.add(f, spec, value)
	}
	for i := range f.spots {
		if err := w.put(&f.spots[i], f, spec, value); err != nil {
			return err
		}
	}
	return nil
}

// byShim says whether only the shim can turn a knob, and its value.
func (w *writer) byShim(name string) (value string, ok bool) {
	spec, is := w.c.prof.Knobs[name]
	set := w.j.Knobs[job.Knob(name)]
	f, known, _ := w.k.get(name)
	switch {
	case len(f.spots) > 0:
		return "", false
	case is && known && f.inCode,
		is && shimTurns(name) && (w.k.inCode(spec) || f.computed) && !w.c.accepts(spec) && set.Source != job.FromScript:
		return f.value, true
	case !known && set.Source == job.FromScript:
		return set.Value, true // the shim has seen it
	}
	return "", false
}

// pairByShim says whether a knob is one of micro-batch and accumulation and the shim
// must turn the other. Then it turns both: it raises accumulation with the micro-batch,
// and a plain loop's only then.
func (w *writer) pairByShim(name string) bool {
	other := job.MicroBatch
	switch job.Knob(name) {
	case job.MicroBatch:
		other = job.Accumulation
	case job.Accumulation:
	default:
		return false
	}
	return slices.ContainsFunc(w.rq.Changes, func(ch Change) bool {
		_, ok := w.byShim(string(other))
		return ch.Knob == other && (ok || ch.To == Half)
	})
}

// allowed says whether a value is among the choices, if there are any.
func allowed(choices []string, kind, value string) bool {
	return len(choices) == 0 || value == "null" ||
		slices.ContainsFunc(choices, func(c string) bool { return sameValue(kind, c, value) })
}

// put changes one place where the value stands.
func (w *writer) put(s *spot, f found, spec knobSpec, value string) error {
	if n, err := parseInt(s.value); err == nil && spec.Kind == "bool" && n > 1 {
		// A size that is also the switch.
		if on, ok := edit.AsBool(value); !ok || on {
			return fmt.Errorf("cannot set %s: it is a number there (%s)", s.name, s.value)
		}
		spec.Kind, value = "int", "0"
	}
	switch {
	case s.m != nil && s.m.at < 0: // in an .args file, which argv overrides
		return w.over(s, f, spec, value)
	case s.m != nil && s.m.pair:
		w.putPair(s.m, spec, value)
		return nil
	case s.m != nil:
		return w.putFlag(s, spec, value)
	}
	if s.doc.form.Override == "none" || s.doc.form.Wins || value == "null" && s.doc.form.Override != "dotlist" && s.doc.form.Override != "hydra" {
		return w.putKey(s.doc, s.entry, spec, value)
	}
	return w.over(s, f, spec, value)
}

// over adds the setting behind all others, where it beats the file it stands in.
func (w *writer) over(s *spot, f found, spec knobSpec, value string) error {
	was := "was " + f.value
	if s.doc != nil {
		_, where := s.origin()
		was = fmt.Sprintf("over %s %s: %s", where, s.entry.Path, s.entry.Value)
	}
	if s.doc != nil && (s.doc.form.Override == "dotlist" || s.doc.form.Override == "hydra") {
		name := s.name
		if len(spec.Names) == 0 {
			name = s.entry.Path
		}
		w.addPair(name, s.doc.form.Override == "hydra", spec, value, was)
		return nil
	}
	if s.m != nil {
		return w.addFlag(s.name, s.shape, spec, value, "added; "+was)
	}
	return w.addFlag(s.name, s.shape, spec, value, was)
}

// putPair changes a key=value word.
func (w *writer) putPair(m *mention, spec knobSpec, value string) {
	old := w.c.words[m.at]
	if value == "null" && spec.Off == "remove" {
		for _, o := range w.c.found {
			if o.name == m.name {
				w.edits.replace[o.at] = nil
			}
		}
		w.done.add(Changed{LayerArgv, m.typed, m.next, ""}, "%s (removed)", old)
		return
	}
	value = spell("dotlist", spec.Kind, value)
	prefix := m.prefix
	if prefix == "~" {
		prefix = "++"
	}
	w.edits.replace[m.at] = []string{prefix + m.typed + "=" + value}
	w.done.add(Changed{LayerArgv, m.typed, m.next, value}, "%s -> %s", old, value)
}

// addPair adds a key=value word.
func (w *writer) addPair(name string, hydra bool, spec knobSpec, value, was string) {
	value = spell("dotlist", spec.Kind, value)
	word := name + "=" + value
	if hydra {
		word = "++" + word // of a key that the config has and of one it lacks
	}
	w.edits.added = append(w.edits.added, word)
	w.done.add(Changed{LayerArgv, name, "", value}, "%s (%s)", word, was)
}

// putFlag changes a flag where it stands, so that argv stays readable.
func (w *writer) putFlag(s *spot, spec knobSpec, value string) error {
	m := s.m
	taken := m.takesNext(s.shape)
	old, was := w.c.words[m.at], "true"
	switch {
	case taken:
		old, was = old+" "+m.next, m.next
	case m.inline:
		was = m.next
	case m.negated:
		was = "false"
	}
	drop := func() {
		for i := range w.c.found {
			if o := &w.c.found[i]; o.name == m.name && o.at >= 0 {
				w.edits.replace[o.at] = nil
				if o.takesNext(s.shape) {
					w.edits.replace[o.at+1] = nil
				}
			}
		}
		w.done.add(Changed{LayerArgv, m.typed, was, ""}, "%s (removed)", old)
	}
	value = spell(w.c.style, spec.Kind, value)
	on, isBool := edit.AsBool(value)
	bare := !taken && !m.inline
	switch {
	case value == "null":
		drop()
		return nil
	case s.shape == toggle || s.shape == loose && bare:
		if !isBool {
			return fmt.Errorf("cannot set %s to %s", m.typed, value)
		}
		if !on {
			drop()
		}
		return nil
	case s.shape == dual && bare:
		if !isBool {
			return fmt.Errorf("cannot set %s to %s", m.typed, value)
		}
		if on == !m.negated {
			return nil
		}
		now := w.dual(s.name, on)
		w.edits.replace[m.at] = []string{now}
		w.done.add(Changed{LayerArgv, m.typed, was, strconv.FormatBool(on)}, "%s -> %s", old, now)
		return nil
	case m.negated:
		w.edits.replace[m.at] = []string{w.c.flag(s.name), value}
		if w.c.style == "fire" {
			w.edits.replace[m.at] = []string{w.c.flag(s.name) + "=" + value}
		}
	case m.inline:
		w.edits.replace[m.at] = []string{m.typed + m.sep + value}
	case taken:
		w.edits.replace[m.at+1] = []string{value}
	default:
		w.edits.replace[m.at] = []string{m.typed, value}
	}
	now := value
	if bare {
		now = strings.Join(w.edits.replace[m.at], " ")
	}
	w.done.add(Changed{LayerArgv, m.typed, was, value}, "%s -> %s", old, now)
	return nil
}

// dual writes a flag that has a --no- form.
func (w *writer) dual(name string, on bool) string {
	flag := w.c.flag(name)
	if on {
		return flag
	}
	no := "--no-"
	if w.c.style == "hf" {
		no = "--no_"
	}
	return no + strings.TrimPrefix(flag, "--")
}

// addFlag adds a flag behind all others: the last one wins.
func (w *writer) addFlag(name string, sh shape, spec knobSpec, value, was string) error {
	flag := w.c.flag(name)
	if value == "null" {
		return fmt.Errorf("cannot take %s away: no flag does that", flag)
	}
	value = spell(w.c.style, spec.Kind, value)
	if sh == toggle || sh == loose || sh == dual {
		on, ok := edit.AsBool(value)
		switch {
		case !ok:
			return fmt.Errorf("cannot set %s to %s", flag, value)
		case sh == dual:
			word := w.dual(name, on)
			w.edits.added = append(w.edits.added, word)
			w.done.add(Changed{LayerArgv, flag, "", strconv.FormatBool(on)}, "%s (%s)", word, was)
		case on:
			w.edits.added = append(w.edits.added, flag)
			w.done.add(Changed{LayerArgv, flag, "", "true"}, "%s (added)", flag)
		case !strings.HasPrefix(was, "added"):
			return fmt.Errorf("cannot switch %s off: the flag has no form for that", flag)
		}
		return nil
	}
	words := []string{flag, value}
	if w.c.style == "configurator" || w.c.style == "fire" {
		words = []string{flag + "=" + value}
	}
	w.edits.added = append(w.edits.added, words...)
	w.done.add(Changed{LayerArgv, flag, "", value}, "%s (%s)", strings.Join(words, " "), was)
	return nil
}

// add sets a knob that stands nowhere yet.
func (w *writer) add(f found, spec knobSpec, value string) error {
	if value == "null" {
		return nil
	}
	was := "added; not set"
	if f.value != "" {
		was = "added; default " + f.value
	}
	names := []string{f.name}
	if spec.All {
		names = spec.Names
	}
	if d := w.c.editable(); d != nil && (!d.form.OnlyKeys || len(spec.Keys) > 0) {
		keys := spec.keys()
		if !spec.All {
			keys = []string{w.keyOf(d, spec, f.name)}
		}
		for _, key := range keys {
			if strings.Contains(key, "[*]") {
				return fmt.Errorf("cannot set %s: %s has no entry for it", key, d.typed)
			}
			if err := w.setIn(d, d.at(key), spec, value); err != nil {
				return err
			}
			w.done.add(Changed{LayerConfig, d.typed + " " + d.at(key), "", value}, "%s %s: %s (%s)", d.typed, d.at(key), value, was)
		}
		return nil
	}
	for _, name := range names {
		switch {
		case w.c.pairs || w.c.style == "dotlist":
			w.addPair(name, false, spec, value, was)
		case w.c.style == "hydra":
			w.addPair(name, true, spec, value, was)
		default:
			if err := w.addFlag(name, w.c.shapeOf(spec, name), spec, value, was); err != nil {
				return err
			}
		}
	}
	return nil
}

// keyOf is the key under which a setting is added to a file: one that is there with
// null, else the first.
func (w *writer) keyOf(d *document, spec knobSpec, name string) string {
	for _, key := range spec.keys() {
		if _, ok := d.get(key); ok {
			return key
		}
	}
	if len(spec.Keys) > 0 {
		return spec.Keys[0]
	}
	return normalise(name)
}

// putKey changes a key in a copy of a config file.
func (w *writer) putKey(d *document, e edit.Entry, spec knobSpec, value string) error {
	at := fmt.Sprintf("%s:%d %s", d.typed, e.Line, e.Path)
	if value == "null" && spec.Off == "remove" {
		doc, err := w.docOf(d).Remove(e.Path)
		if err != nil {
			return fmt.Errorf("changing a copy of %s: %w", d.typed, err)
		}
		w.keep(d, doc)
		w.done.add(Changed{LayerConfig, at, e.Value, ""}, "%s: %s (removed)", at, e.Value)
		return nil
	}
	if err := w.setIn(d, e.Path, spec, value); err != nil {
		return err
	}
	w.done.add(Changed{LayerConfig, at, e.Value, value}, "%s: %s -> %s", at, e.Value, value)
	return nil
}

func (w *writer) setIn(d *document, path string, spec knobSpec, value string) error {
	kind := spec.Kind
	if kind == "bool" {
		value = strings.ToLower(spell("", "bool", value))
	}
	doc, err := w.docOf(d).Set(path, value, kind)
	if err != nil {
		return fmt.Errorf("changing a copy of %s: %w", d.typed, err)
	}
	w.keep(d, doc)
	return nil
}

// docOf is the text of a config file as changed so far.
func (w *writer) docOf(d *document) *edit.Doc {
	if doc, ok := w.docs[d]; ok {
		return doc
	}
	return d.doc
}

func (w *writer) keep(d *document, doc *edit.Doc) {
	if _, ok := w.docs[d]; !ok {
		w.order = append(w.order, d)
	}
	w.docs[d] = doc
}

// writeFiles places the changed copies and swaps the words that name them.
func (w *writer) writeFiles() error {
	for _, d := range w.order {
		f, word, err := w.copyOf(d)
		if err != nil {
			return err
		}
		f.Content = w.docs[d].Bytes()
		w.files = append(w.files, f)
		if !d.companion {
			w.edits.replace[d.word] = []string{d.lead + word}
		}
	}
	return nil
}

// copyOf places the changed copy beside the original, where relative paths and
// includes go on to work, and returns the way to name it.
func (w *writer) copyOf(d *document) (File, string, error) {
	name := ".sparkrun-" + w.rq.RunID + "-a" + strconv.Itoa(w.rq.Attempt) + "-" + filepath.Base(d.path)
	folder := filepath.Dir(d.path)
	word := name
	if i := strings.LastIndexByte(d.typed, '/'); i >= 0 {
		word = d.typed[:i+1] + name
	}
	if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
		if key := d.doc.RelativeRef(); key != "" {
			return File{}, "", fmt.Errorf("%s must be changed, but its folder cannot be written (%w) and its setting %s is a path relative to that folder", d.typed, err, key)
		}
		if w.rq.AttemptDir == "" {
			return File{}, "", fmt.Errorf("%s must be changed, but its folder cannot be written: %w", d.typed, err)
		}
		folder = w.rq.AttemptDir
		inner, ok := w.c.place.InnerPath(filepath.Join(folder, name))
		if !ok {
			return File{}, "", fmt.Errorf("%s must be changed, but its folder cannot be written (%w) and no mount of the container reaches the run's folder", d.typed, err)
		}
		word = inner
	}
	mode := os.FileMode(0o600)
	if w.c.place.Container != nil {
		// A container's user is often another one: who could read the original must be
		// able to read the copy.
		if info, err := os.Stat(d.path); err == nil {
			mode |= info.Mode().Perm() & 0o644
		}
	}
	return File{Path: filepath.Join(folder, name), Mode: mode, Original: d.path}, word, nil
}
