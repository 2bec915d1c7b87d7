package trainer

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/pyread"
)

// written finds the value of a knob in the script's code. why says that the code
// gives it two values. f.computed is set where the code works it out.
func (c *command) written(spec knobSpec, f *found) (value, where string, ok bool, why string) {
	type hit struct {
		call string
		c    pyread.Constant
	}
	var hits []hit
	for _, call := range spec.Calls {
		name, keyword := splitCall(call)
		for _, k := range c.consts {
			if k.Keyword != keyword || !k.Is(name) {
				continue
			}
			if spec.Kind == "list" && len(k.Items) > 0 {
				k.Literal, k.Value, k.ValueLine = true, strings.Join(k.Items, ","), k.Line
			}
			if !k.Literal || k.Value == "None" {
				f.computed = true
				continue
			}
			hits = append(hits, hit{call, k})
		}
	}
	if len(hits) == 0 {
		return "", "", false, ""
	}
	best := -1
	for i, h := range hits {
		v, err := parseValue(spec.Kind, h.c.Value)
		if err != nil {
			f.computed = true
			return "", "", false, fmt.Sprintf("%s:%d: %v", c.scriptPath(), h.c.ValueLine, err)
		}
		hits[i].c.Value = v
		for _, o := range hits[:i] {
			if o.call == h.call && o.c.Value != v {
				f.computed = true
				return "", "", false, fmt.Sprintf("%s gives it two values, on lines %d and %d", c.scriptPath(), o.c.ValueLine, h.c.ValueLine)
			}
		}
		switch {
		case best < 0:
			best = i
		case hits[best].c.Value == v:
		case spec.Kind != "int":
			f.computed = true
			return "", "", false, fmt.Sprintf("%s gives it two values, on lines %d and %d", c.scriptPath(), hits[best].c.ValueLine, h.c.ValueLine)
		default:
			// Of two sizes in different calls, such as the model's length and the
			// trainer's, the smaller one holds.
			a, errA := parseInt(v)
			b, errB := parseInt(hits[best].c.Value)
			if errA == nil && errB == nil && a < b {
				best = i
			}
		}
	}
	h := hits[best]
	return h.c.Value, fmt.Sprintf("%s:%d", c.scriptPath(), max(h.c.ValueLine, 1)), true, ""
}

// link follows the script from a flag of its own to the library's keyword:
// SFTConfig(max_length=args.ctx) makes --ctx the flag of the length, whatever it is
// called, and no other.
func (c *command) link() {
	var knobs map[string]knobSpec
	keep := func(name string, spec knobSpec) {
		if knobs == nil {
			knobs = maps.Clone(c.prof.Knobs)
		}
		knobs[name] = spec
	}
	for name, spec := range c.prof.Knobs {
		if _, ok := c.called(spec.Calls); !ok && len(spec.FallbackCalls) > 0 {
			spec.Calls = spec.FallbackCalls
			keep(name, spec)
		}
		var flags []string
		for _, call := range spec.Calls {
			callee, keyword := splitCall(call)
			for _, k := range c.consts {
				if k.Literal || k.Keyword != keyword || !k.Is(callee) {
					continue
				}
				_, flag, ok := strings.Cut(k.Name, ".")
				if _, declared := c.decl[flag]; ok && declared && !slices.Contains(flags, flag) {
					flags = append(flags, flag)
				}
			}
		}
		if len(flags) == 0 {
			continue
		}
		spec.Keys = spec.keys()
		spec.Names, spec.Own = flags, true
		keep(name, spec)
	}
	if knobs != nil {
		p := *c.prof
		p.Knobs = knobs
		c.prof = &p
	}
}

// splitCall takes CALL.keyword apart.
func splitCall(call string) (name, keyword string) {
	i := strings.LastIndexByte(call, '.')
	return call[:max(i, 0)], call[i+1:]
}

// defaultCalls are the calls for which the profile's default holds.
func (s knobSpec) defaultCalls() []string {
	if len(s.DefaultCalls) > 0 {
		return s.DefaultCalls
	}
	return s.Calls
}

// called finds one of the calls, in a script that gives it some arguments.
func (c *command) called(calls []string) (pyread.Constant, bool) {
	for _, call := range calls {
		name, _ := splitCall(call)
		for _, k := range c.consts {
			if k.Is(name) {
				return k, true
			}
		}
	}
	return pyread.Constant{}, false
}

// scriptPath names the script for people: as typed, else the file that was read.
func (c *command) scriptPath() string {
	if c.place.Script != "" {
		return c.place.Script
	}
	return filepath.Base(c.file)
}
