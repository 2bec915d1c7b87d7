package trainer

import (
	"slices"
	"strings"
)

// Info is a profile for people.
type Info struct {
	Name  string `json:"name"`
	About string `json:"about"`
	// Origin is "built-in" or the file of the user's.
	Origin string `json:"origin"`
	Family string `json:"family"`
	Image  bool   `json:"image,omitempty"`
	// Method says which changes of the training method are known: "full -> lora",
	// "qlora -> lora".
	Method []string `json:"method,omitempty"`
	Resume string   `json:"resume"`
	Floor  int      `json:"floor,omitempty"`
	// Recognised are the signs that the trainer is known by.
	Recognised []string   `json:"recognised"`
	Knobs      []KnobInfo `json:"knobs"`
	Notes      []string   `json:"notes,omitempty"`
}

// KnobInfo is a knob of a profile.
type KnobInfo struct {
	Name string `json:"name"`
	// Spellings are flags and keys as one types them, Calls keywords in code.
	Spellings []string `json:"spellings"`
	Calls     []string `json:"calls,omitempty"`
	Default   string   `json:"default,omitempty"`
	// Config are keys of a config file where they differ.
	Config []string `json:"config,omitempty"`
}

// Profiles tells of every profile, in order of their names.
func (s *Set) Profiles() []Info {
	out := make([]Info, 0, len(s.profiles))
	for _, name := range s.Names() {
		if p := s.profile(name); p != nil {
			out = append(out, p.info())
		}
	}
	return out
}

func (p *profile) info() Info {
	i := Info{
		Name: p.Name, About: p.About, Origin: "built-in", Family: p.Family, Image: p.Image,
		Floor: p.Floor, Notes: slices.Clone(p.Notes), Resume: p.resumeWords(),
	}
	if p.user {
		i.Origin = p.file
	}
	if len(p.Method.ToLoRA) > 0 {
		i.Method = append(i.Method, "full -> lora")
	}
	if len(p.Method.To16Bit) > 0 {
		i.Method = append(i.Method, "qlora -> lora")
	}
	i.Recognised = p.Recognise.words()
	for _, name := range sortedKeys(p.Knobs) {
		k := p.Knobs[name]
		info := KnobInfo{Name: name, Default: k.Default, Calls: slices.Clone(k.Calls), Config: slices.Clone(k.Keys)}
		for _, n := range k.Names {
			info.Spellings = append(info.Spellings, p.typed(n))
		}
		i.Knobs = append(i.Knobs, info)
	}
	return i
}

// typed writes a name as one types it.
func (p *profile) typed(name string) string {
	switch {
	case p.Parser.Style == "none":
		return name
	case !flagStyle(p.Parser.Style):
		return name + "="
	case len(name) == 1:
		return "-" + name
	case hyphenStyle(p.Parser.Style):
		return "--" + strings.ReplaceAll(name, "_", "-")
	case p.Parser.Style == "configurator":
		return "--" + name + "="
	}
	return "--" + name
}

func (p *profile) resumeWords() string {
	r := p.Resume
	switch r.How {
	case "always":
		return "takes a checkpoint's path"
	case "text":
		return "takes a checkpoint's path where the script hands it to the trainer"
	case "auto":
		return "takes up what lies in its output folder by itself"
	}
	if r.Why != "" {
		return "never: " + r.Why
	}
	return "never"
}

// words lists the signs.
func (r recognise) words() []string {
	var out []string
	subs := func(head string, of []string) {
		if len(of) == 0 {
			out = append(out, head)
		}
		for _, s := range of {
			out = append(out, head+" "+s)
		}
	}
	for _, p := range r.Programs {
		subs(p, r.Subcommands)
	}
	for _, m := range r.Modules {
		subs("python -m "+m, r.ModuleSubcommands)
	}
	out = append(out, r.Scripts...)
	for _, t := range r.Text {
		out = append(out, "a script with "+t)
	}
	for _, f := range r.Flags {
		out = append(out, "--"+f)
	}
	for _, k := range r.ConfigKeys {
		out = append(out, "a config with "+k)
	}
	return out
}
