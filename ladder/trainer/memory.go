package trainer

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
	"sparkrun/internal/pyread"
	"sparkrun/ladder/trainer/place"
)

// forMemory are the settings that no rung turns and only the memory of the training
// depends on.
var forMemory = []string{
	"fused_loss", "load_in_8bit", "quantization_bit", "quant_bits", "quantize", "master_weights", "trained_layers", "block_wise",
	"optimizer_kind", "load_dtype", "deepspeed",
}

// memory reads them.
func (k *knobs) memory() job.Knobs {
	var out job.Knobs
	for _, name := range forMemory {
		f, ok, _ := k.get(name)
		if !ok {
			continue
		}
		if out == nil {
			out = job.Knobs{}
		}
		out[job.Knob(name)] = job.Setting{Value: f.value, Source: f.origin, Where: f.where}
	}
	return out
}

// objectiveWords are the words for one kind of training: in a setting, a subcommand or
// the name of a module, and classes that a script calls.
type objectiveWords struct {
	Name    string   `yaml:"name"`
	Words   []string `yaml:"words"`
	Classes []string `yaml:"classes"`
}

// objectiveKnobs are the settings in which trainers say what they train for.
var objectiveKnobs = []string{"stage", "rl", "rlhf_type"}

// objective is what is trained for: as a setting of the trainer's says, its subcommand,
// recipe or module, the classes that the script calls, or the name of script or profile.
// Values of flags, such as data sets and folders, never tell.
func (c *command) objective() string {
	if !c.place.Seen() {
		return ""
	}
	all := inScripts().Objectives
	named := func(name string) string {
		for part := range strings.FieldsFuncSeq(strings.ToLower(name), func(r rune) bool { return r < 'a' || r > 'z' }) {
			for _, o := range all {
				if slices.Contains(o.Words, part) {
					return part
				}
			}
		}
		return ""
	}
	signs := []string{c.subcommand}
	if p := c.prof; p != nil {
		k := c.knobs()
		for _, name := range objectiveKnobs {
			if _, is := p.Knobs[name]; !is {
				continue
			}
			if f, ok, _ := k.get(name); ok {
				return strings.ToLower(f.value)
			}
			if c.subcommand != "rlhf" {
				return "" // it has a word for it, and none is given
			}
			return "dpo"
		}
		if len(p.Method.Recipes) > 0 && c.args < len(c.words) {
			signs = append(signs, c.words[c.args])
		}
	}
	signs = append(signs, c.place.Module[strings.LastIndexByte(c.place.Module, '.')+1:])
	for _, s := range signs {
		if w := named(s); w != "" {
			return w
		}
	}
	for _, o := range all {
		for _, class := range o.Classes {
			if slices.ContainsFunc(c.consts, func(k pyread.Constant) bool { return k.Is(class) }) {
				return o.Name
			}
		}
	}
	name := c.script()
	if w := named(name[strings.LastIndexByte(name, '/')+1:]); w != "" || c.prof == nil {
		return w
	}
	return named(c.prof.Name)
}

// trainsAll says whether the script loads the model itself and nowhere speaks of adapters
// or of weights that are held.
func (k *knobs) trainsAll(m methodSpec) bool {
	c := k.c
	if len(m.FullText) == 0 || c.text == "" || len(c.text) >= scriptHead {
		return false
	}
	if f, ok, _ := k.get(string(job.Model)); !mentions(c.text, m.FullText) && (!ok || f.origin != job.FromScript) {
		return false
	}
	text := strings.ToLower(c.text)
	return !slices.ContainsFunc(m.DoubtText, func(w string) bool { return strings.Contains(text, w) })
}

// applies says whether a default holds.
func (k *knobs) applies(d defaultRule) bool {
	if d.Since != "" {
		version := k.c.version
		if d.Package != "" {
			version = place.InstalledVersion(k.c.root, k.c.python, d.Package)
		}
		if version == "" || place.Older(version, d.Since) {
			return false
		}
	}
	return (len(d.Text) == 0 || mentions(k.c.text, d.Text)) && (len(d.When) == 0 || k.holds(d.When))
}

// otherwiseSet lets give way what another statement of the script decides: a call that
// switches the same thing on, or an attribute that is set once the arguments are made.
func (k *knobs) otherwiseSet(name string, f found, ok bool, why string) (found, bool, string) {
	c := k.c
	spec := c.prof.Knobs[name]
	if c.text == "" || why != "" {
		return f, ok, why
	}
	for _, r := range spec.SetBy {
		value, line, is := c.setBy(spec, r)
		if !is || value == "" || value == "false" || ok && sameValue(spec.Kind, f.value, value) {
			continue
		}
		return found{value: value, origin: job.FromScript, where: fmt.Sprintf("%s:%d, by %s", c.scriptPath(), line, r.Call), inCode: true}, true, ""
	}
	if len(spec.Calls) == 0 || len(f.spots) > 0 || f.origin != job.FromScript {
		return f, ok, why
	}
	for _, call := range spec.Calls {
		class, keyword := splitCall(call)
		value, line, is := c.assigned(class, keyword)
		if !is {
			continue
		}
		where := fmt.Sprintf("%s:%d", c.scriptPath(), line)
		v, err := parseValue(spec.Kind, value)
		if value == "" || err != nil || shimTurns(name) && name != string(job.GradCkpt) {
			// The shim changes the call, and this would change it back.
			return found{computed: true}, false, where + " sets it once more, outside of the call"
		}
		f.value, f.where, f.inCode = v, where, true
		return f, true, ""
	}
	return f, ok, why
}

// setBy finds what a call of the script decides, and where.
func (c *command) setBy(spec knobSpec, r setRule) (value string, line int, ok bool) {
	last := r.Call[strings.LastIndexByte(r.Call, '.')+1:]
	if !strings.Contains(c.text, last+"(") {
		return "", 0, false
	}
	line, ok = pyread.Called(c.text, r.Call)
	if !ok {
		return "", 0, false
	}
	for _, k := range c.consts {
		if r.Keyword == "" || k.Keyword != r.Keyword || !k.Is(r.Call) {
			continue
		}
		v, err := parseValue(spec.Kind, k.Value)
		if !k.Literal || err != nil {
			return "", 0, false // worked out
		}
		return v, k.Line, true
	}
	return r.Value, line, true
}

// attribute is x.name = VALUE on a line of its own.
var attribute = lazyre.New(`(?m)^[ \t]*([A-Za-z_][\w.]*)\.([a-z_]\w*)[ \t]*=[ \t]*([^=#\n][^#\n]*)`)

// assigned finds the last attribute of that name that the script sets of the arguments
// which a call of class made, and its line. The value is "" if it is no literal.
func (c *command) assigned(class, name string) (value string, line int, ok bool) {
	if !strings.HasSuffix(class, "Arguments") && !strings.HasSuffix(class, "Config") || !strings.Contains(c.text, "."+name) {
		return "", 0, false
	}
	for _, at := range attribute.FindAllStringSubmatchIndex(c.text, -1) {
		if c.text[at[4]:at[5]] != name || !c.madeBy(c.text[at[2]:at[3]], class) {
			continue
		}
		value, line, ok = "", 1+strings.Count(c.text[:at[2]], "\n"), true
		if m := pyLiteral.FindStringSubmatch(strings.TrimSpace(c.text[at[6]:at[7]])); m != nil {
			value = literal(m)
		}
	}
	return value, line, ok
}

// madeBy says whether a variable holds what a call of class gave: the variable itself, or
// the arguments of a trainer.
func (c *command) madeBy(variable, class string) bool {
	if strings.HasSuffix(variable, ".args") {
		_, called := c.called([]string{class + ".x"})
		return called
	}
	made, err := regexp.Compile(`(?m)^[ \t]*` + regexp.QuoteMeta(variable) + `[ \t]*(?::[^=\n]*)?=[ \t]*(?:\w+\.)*` + regexp.QuoteMeta(class) + `\(`)
	return err == nil && made.MatchString(c.text)
}

// bareWord is the first word behind the subcommand, if that is no flag.
func (c *command) bareWord() string {
	if c.args >= len(c.words) || strings.HasPrefix(c.words[c.args], "-") {
		return ""
	}
	return c.words[c.args]
}
