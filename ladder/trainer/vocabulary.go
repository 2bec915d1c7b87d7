package trainer

import (
	"slices"
	"strings"
	"sync"

	"sparkrun/configs"
)

// knownKnobs are the names of configs/trainers/_knobs.yaml with what each means. The
// file is part of the binary, and a test reads it.
var knownKnobs = sync.OnceValue(func() map[string]string {
	var t struct {
		Knobs map[string]string `yaml:"knobs"`
	}
	if err := configs.BuiltIn("trainers/_knobs.yaml", &t); err != nil {
		return nil
	}
	return t.Knobs
})

// scriptWords are the words of configs/trainers/_scripts.yaml.
type scriptWords struct {
	SelfShrinks []string `yaml:"self_shrinks"`
	InBatch     []string `yaml:"in_batch"`
	InBatchWhy  string   `yaml:"in_batch_why"`
	// Objectives are what a training is for, those that need most memory first.
	Objectives []objectiveWords `yaml:"objectives"`
}

// inScripts is that table. It is part of the binary, and a test reads it.
var inScripts = sync.OnceValue(func() scriptWords {
	var t scriptWords
	if err := configs.BuiltIn("trainers/_scripts.yaml", &t); err != nil {
		return scriptWords{}
	}
	return t
})

// referred returns the knobs that a rule of the profile speaks of.
func (p *profile) referred() map[string]bool {
	names := map[string]bool{}
	add := func(more ...string) {
		for _, n := range more {
			names[n] = true
		}
	}
	when := func(rules ...map[string]string) {
		for _, r := range rules {
			add(sortedKeys(r)...)
		}
	}
	for _, k := range p.Knobs {
		add(k.MultipleOf, k.Divides)
		for _, r := range slices.Concat(k.Void, k.UnknownWhen) {
			when(r.When)
		}
		for _, d := range k.Defaults {
			when(d.When)
		}
		for _, m := range k.Mins {
			when(m.When)
		}
		if k.Formula != nil {
			add(k.Formula.Of...)
		}
	}
	for _, f := range p.Families {
		when(f.When)
	}
	for _, r := range p.LongRows {
		when(r.When)
	}
	for _, r := range p.SelfShrinks {
		when(r.When)
	}
	m := p.Method
	when(slices.Concat(m.FullWhen, m.QuantisedWhen, m.LoRAWhen)...)
	when(m.ToLoRA, m.To16Bit, p.Resume.Also)
	add(m.Optional...)
	texts := []string{p.Output.Default, p.Output.Folder}
	for _, l := range p.Logs {
		texts = append(texts, l.Path)
	}
	for _, t := range texts {
		for _, found := range placeholder.FindAllStringSubmatch(t, -1) {
			add(found[1])
		}
	}
	return names
}

// knobNames demands that every knob is one that something looks for.
func (c *checker) knobNames() {
	referred := c.p.referred()
	for _, name := range sortedKeys(c.p.Knobs) {
		if _, known := knownKnobs()[name]; known || referred[name] || !validName(name) {
			continue
		}
		hint := "the known names are " + strings.Join(sortedKeys(knownKnobs()), ", ")
		if near := nearest(name, sortedKeys(knownKnobs())); near != "" {
			hint = "did you mean " + near + "?"
		}
		c.wrong([]string{"knobs", name}, "there is no knob %s, and no rule of this profile refers to it, so it would never be looked at: %s", name, hint)
	}
}

// nearest is the one name that differs from a slip by underscores or by one or two
// letters, "" if there is none.
func nearest(slip string, names []string) string {
	best, least := "", 3
	flat := strings.ReplaceAll(slip, "_", "")
	for _, n := range names {
		if d := distance(flat, strings.ReplaceAll(n, "_", "")); d < least && d < len(flat) {
			best, least = n, d
		}
	}
	return best
}

// distance is the number of letters put in, taken out or changed between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		corner := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			corner, row[j] = row[j], min(corner+cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// bareNames demands that flags and key=value words are written without what stands in
// front of them on a command line: with it none is ever found.
func (c *checker) bareNames() {
	bare := func(path []string, names []string) {
		for _, n := range names {
			switch {
			case n == "":
				c.wrong(path, "%s: a name is empty", dotted(path))
			case strings.HasPrefix(n, "-"):
				c.wrong(path, "%s: write %s without the dashes in front: %s", dotted(path), n, strings.TrimLeft(n, "-"))
			case strings.ContainsAny(n[:1], "+~"):
				c.wrong(path, "%s: write %s without what stands in front: %s", dotted(path), n, strings.TrimLeft(n, "+~"))
			case strings.ContainsAny(n, "= \t"):
				c.wrong(path, "%s: %q is no name of a flag: a space or = is in it", dotted(path), n)
			}
		}
	}
	p := c.p
	for _, name := range sortedKeys(p.Knobs) {
		k := p.Knobs[name]
		bare([]string{"knobs", name, "names"}, k.Names)
		bare([]string{"knobs", name, "flag_names"}, k.FlagNames)
	}
	for i, f := range p.Config {
		bare([]string{"config", index(i)}, f.flags())
		bare([]string{"config", index(i), "valued"}, f.Valued)
	}
	for i, r := range p.LeaveAlone {
		bare([]string{"leave_alone", index(i), "flags"}, r.Flags)
	}
	bare([]string{"flags"}, p.Flags)
	bare([]string{"recognise", "flags"}, p.Recognise.Flags)
	bare([]string{"procs", "flags"}, p.Procs.Flags)
}
