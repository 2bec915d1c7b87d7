package trainer

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/job"
)

// holds says whether every setting of the condition is as it says: * is any value
// at all, the empty word none, and a * inside stands for anything.
func holds(when, values map[string]string) bool {
	for k, want := range when {
		v := values[k]
		if v == "null" {
			v = ""
		}
		switch {
		case (v == "") != (want == ""):
			return false
		case strings.Contains(want, "*"):
			if !wildcard(want, v) {
				return false
			}
		case !strings.EqualFold(v, want):
			return false
		}
	}
	return len(when) > 0
}

// wildcard says whether a text fits a pattern in which * is anything.
func wildcard(pattern, text string) bool {
	parts := strings.Split(strings.ToLower(pattern), "*")
	text = strings.ToLower(text)
	last := len(parts) - 1
	if !strings.HasPrefix(text, parts[0]) || !strings.HasSuffix(text[len(parts[0]):], parts[last]) {
		return false
	}
	text = text[len(parts[0]) : len(text)-len(parts[last])]
	for _, p := range parts[1:last] {
		i := strings.Index(text, p)
		if i < 0 {
			return false
		}
		text = text[i+len(p):]
	}
	return true
}

// firstOf returns the first condition that holds, nil if none does.
func firstOf(conditions []map[string]string, values map[string]string) map[string]string {
	for _, w := range conditions {
		if holds(w, values) {
			return w
		}
	}
	return nil
}

// commandName is what conditions call the subcommand, the last word of the module or
// the script's name: sft, reward.
const commandName = "command"

// name is the value of commandName.
func (c *command) name() string {
	switch {
	case c.subcommand != "":
		return c.subcommand
	case c.place.Module != "":
		return c.place.Module[strings.LastIndexByte(c.place.Module, '.')+1:]
	}
	return strings.TrimSuffix(filepath.Base(c.script()), ".py")
}

// values returns the settings of all knobs of the profile, for its conditions.
func (k *knobs) values() map[string]string {
	values := map[string]string{}
	for name := range k.c.prof.Knobs {
		if f, ok, _ := k.get(name); ok {
			values[name] = f.value
		}
	}
	values[commandName] = k.c.name()
	return values
}

// blind leaves of the conditions those that rest on a setting which tells something
// where the config file cannot be read: of all others the file may say the contrary.
func (m methodSpec) blind(specs map[string]knobSpec) methodSpec {
	told := func(all []map[string]string) (some []map[string]string) {
		for _, w := range all {
			for name := range w {
				if specs[name].WhenBlind {
					some = append(some, w)
					break
				}
			}
		}
		return some
	}
	return methodSpec{Recipes: m.Recipes, FullWhen: told(m.FullWhen), QuantisedWhen: told(m.QuantisedWhen), LoRAWhen: told(m.LoRAWhen)}
}

// method returns how the model is trained: full, lora or qlora; not ok where that
// cannot be told.
func (k *knobs) method() (set job.Setting, ok bool) {
	c, m := k.c, k.c.prof.Method
	values := k.values()
	if c.blind != "" {
		m = m.blind(c.prof.Knobs)
	}
	for _, sign := range []string{filepath.Base(c.script()), c.subcommand} {
		v := m.Scripts[sign]
		if v == "lora" && firstOf(m.QuantisedWhen, values) != nil {
			break // LoRA over a quantised model
		}
		if v != "" {
			return job.Setting{Value: v, Source: job.FromArgv, Where: sign}, true
		}
	}
	for _, w := range c.words[c.args:] {
		if v := m.Recipes[strings.TrimSuffix(filepath.Base(w), ".py")]; v != "" {
			return job.Setting{Value: v, Source: job.FromArgv, Where: w}, true
		}
	}
	set = job.Setting{Source: job.FromDefault, Where: "default of " + c.prof.Name}
	var by map[string]string
	if by = firstOf(m.FullWhen, values); by != nil {
		set.Value = "full"
	} else if by = firstOf(m.QuantisedWhen, values); by != nil {
		set.Value = "qlora"
	} else if by = firstOf(m.LoRAWhen, values); by != nil {
		set.Value = "lora"
	} else if c.blind != "" {
		return set, false
	} else if mentions(c.text, m.LoRAText) {
		return job.Setting{Value: "lora", Source: job.FromScript, Where: c.scriptPath()}, true
	} else if k.trainsAll(m) {
		return job.Setting{Value: "full", Source: job.FromDefault, Where: c.scriptPath() + " has no adapter"}, true
	} else {
		set.Value = m.Otherwise
	}
	for _, name := range sortedKeys(by) {
		f, _, _ := k.get(name)
		if set.Source == job.FromDefault || f.origin != job.FromDefault {
			set.Source, set.Where = f.origin, f.where
		}
	}
	return set, set.Value != ""
}

// switchOf returns the settings that change the method, or why it cannot be.
func (k *knobs) switchOf(from, to string) (map[string]string, error) {
	c, m := k.c, k.c.prof.Method
	settings, refused := m.ToLoRA, m.ToLoRARefused
	if from == "qlora" {
		settings, refused = m.To16Bit, m.To16BitRefused
	}
	if refused != "" {
		return nil, fmt.Errorf("%s: %s", c.prof.Name, refused)
	}
	if to != "lora" || from == "lora" || len(settings) == 0 {
		return nil, fmt.Errorf("profile %s does not know how to turn %s into %s", c.prof.Name, from, to)
	}
	out := map[string]string{}
	for _, name := range sortedKeys(settings) {
		if why := k.fixed(name); why != "" {
			if slices.Contains(m.Optional, name) {
				continue
			}
			return nil, fmt.Errorf("%s: %s", name, why)
		}
		f, ok, _ := k.get(name)
		if !ok && len(f.spots) == 0 && settings[name] == "null" || ok && sameValue(c.prof.Knobs[name].Kind, f.value, settings[name]) {
			continue // it is as it should be
		}
		out[name] = settings[name]
	}
	return out, nil
}

// void returns the reason for which a knob must not be turned.
func (k *knobs) void(name string) string {
	spec := k.c.prof.Knobs[name]
	for _, w := range spec.VoidText {
		if mentions(k.c.text, []string{w}) {
			if spec.VoidWhy != "" {
				return spec.VoidWhy
			}
			return fmt.Sprintf("the script uses %s, where a batch must fit other settings", w)
		}
	}
	if words := inScripts(); name == string(job.MicroBatch) && mentions(k.c.text, words.InBatch) {
		return words.InBatchWhy
	}
	values := k.values()
	for _, r := range spec.Void {
		if holds(r.When, values) {
			return r.Why
		}
	}
	return ""
}

// fixed says why a knob cannot be turned in this command, "" if it can. What needs
// the shim can be turned.
func (k *knobs) fixed(name string) string {
	c := k.c
	spec, is := c.prof.Knobs[name]
	if !is {
		return fmt.Sprintf("profile %s has no knob %s", c.prof.Name, name)
	}
	if why := k.void(name); why != "" {
		return why
	}
	f, ok, why := k.get(name)
	switch {
	case spec.Kind == "list":
		return "it is a list, which is never changed"
	case why != "":
		return why
	case len(f.spots) > 0:
		return ""
	case f.inCode && !shimTurns(name):
		return fmt.Sprintf("its value is written in the script's code (%s), where the shim does not reach it", f.where)
	case f.inCode || shimTurns(name) && (k.inCode(spec) || f.computed && !c.accepts(spec)):
		if c.place.ShimRefused != "" {
			return "its value is written in the script's code, and the shim that could change it there does not reach the trainer: " + c.place.ShimRefused
		}
		return ""
	case ok && f.formula && c.prof.Knobs[name].Formula.Op == "same" && !c.accepts(spec):
		return "it follows " + spec.Formula.Of[0]
	case c.blind != "":
		return "the trainer's config file cannot be read: " + c.blind
	case !c.accepts(spec):
		return "the command has no flag for it that is certain to be taken"
	}
	return ""
}

// inCode says whether the script has a call that takes the knob, so that the shim can
// set it there though the script does not.
func (k *knobs) inCode(spec knobSpec) bool {
	if k.c.accepts(spec) {
		return false
	}
	_, ok := k.c.called(spec.Calls)
	return ok
}

// family says how the effective batch comes about.
func (k *knobs) family() string {
	values := k.values()
	for _, f := range k.c.prof.Families {
		if holds(f.When, values) {
			return f.Family
		}
	}
	return k.c.prof.Family
}

// selfShrinks says how the trainer makes its batch smaller by itself.
func (k *knobs) selfShrinks() string {
	p := k.c.prof
	values := k.values()
	for _, r := range p.SelfShrinks {
		if holds(r.When, values) {
			return r.Why
		}
	}
	for _, w := range slices.Concat(p.SelfShrinksText, inScripts().SelfShrinks) {
		if mentions(k.c.text, []string{w}) {
			return fmt.Sprintf("the script uses %s, which shrinks the batch by itself", w)
		}
	}
	return ""
}
