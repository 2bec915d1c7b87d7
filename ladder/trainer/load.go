package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
)

// Set is the loaded trainer profiles.
type Set struct {
	// profiles are in order of trust, the user's own first.
	profiles []*profile
	words    prefixTable
}

// profile is one file of configs/trainers.
type profile struct {
	Name  string `yaml:"name"`
	About string `yaml:"about"`
	// Rank orders profiles that recognise a command equally well; the highest
	// wins.
	Rank int `yaml:"rank"`
	// Package is the PyPI distribution whose installed version picks between
	// spellings.
	Package   string    `yaml:"package"`
	Recognise recognise `yaml:"recognise"`
	// Family is "per-device" (effective batch = micro x accumulation) or
	// "global" (the effective batch is a setting of its own).
	Family string              `yaml:"family"`
	Parser parser              `yaml:"parser"`
	Config []configForm        `yaml:"config"`
	Knobs  map[string]knobSpec `yaml:"knobs"`
	// Flags are other flags of the same parser, so that an abbreviation is not
	// taken for a knob.
	Flags  []string   `yaml:"flags"`
	Method methodSpec `yaml:"method"`
	// Floor is the shortest length a rung may go to.
	Floor int `yaml:"floor"`
	// Checkpoints is the layout of the output folder: "hf".
	Checkpoints string `yaml:"checkpoints"`
	// Resume is "always" (the trainer honours resume_from), "text" (only if the
	// script's text speaks of it) or "never".
	Resume string `yaml:"resume"`

	file string
	user bool
}

type recognise struct {
	Programs          []string `yaml:"programs"`
	Subcommands       []string `yaml:"subcommands"`
	Modules           []string `yaml:"modules"`
	ModuleSubcommands []string `yaml:"module_subcommands"`
	Scripts           []string `yaml:"scripts"`
	Text              []string `yaml:"text"`
	Flags             []string `yaml:"flags"`
}

type parser struct {
	// Always and Text say when every flag of the profile is certain to be
	// taken: always, or if the script's text has one of these words.
	Always bool     `yaml:"always"`
	Text   []string `yaml:"text"`
	// Style is "hf" (booleans take a value, both - and _) or "argparse".
	Style         string `yaml:"style"`
	Abbreviations bool   `yaml:"abbreviations"`
}

type configForm struct {
	// Form is "flag" (--Flag FILE), "single" (the only argument) or "first" (the
	// first argument).
	Form       string   `yaml:"form"`
	Flag       string   `yaml:"flag"`
	Extensions []string `yaml:"extensions"`
	// Text, if set, must be in the script for the form to hold.
	Text []string `yaml:"text"`
	// Override is how the command line beats the file: "flags", "dotlist"
	// (key=value), or "none" (the file itself must change).
	Override string `yaml:"override"`
}

type knobSpec struct {
	Names []string          `yaml:"names"`
	Since map[string]string `yaml:"since"`
	Until map[string]string `yaml:"until"`
	// Kind is int, float, bool or str.
	Kind    string `yaml:"kind"`
	Default string `yaml:"default"`
	// Own marks a flag that belongs to the script and not to its parser's
	// library: taken only if it is in argv or the script declares it.
	Own bool `yaml:"own"`
	// Needs lists words of which a script must have one for its parser to take
	// the flag; without any the flag counts as the script's own.
	Needs []string   `yaml:"needs"`
	Void  []voidRule `yaml:"void"`
	// VoidText lists words of the script that forbid turning the knob.
	VoidText []string `yaml:"void_text"`
}

type voidRule struct {
	When map[string]string `yaml:"when"`
	Why  string            `yaml:"why"`
}

type methodSpec struct {
	QuantisedWhen []map[string]string `yaml:"quantised_when"`
	LoRAWhen      []map[string]string `yaml:"lora_when"`
	FullWhen      []map[string]string `yaml:"full_when"`
	Otherwise     string              `yaml:"otherwise"`
	ToLoRA        map[string]string   `yaml:"to_lora"`
	To16Bit       map[string]string   `yaml:"to_16bit"`
	Optional      []string            `yaml:"optional"`
}

const prefixFile = "trainers/_prefixes.yaml"

// Load reads the built-in profiles and then the *.yaml files of userDirs, where
// a profile of the same name replaces the earlier one. A folder that does not
// exist is no error. Errors name the file and line.
func Load(userDirs []string) (*Set, error) {
	s := &Set{}
	if err := configs.BuiltIn(prefixFile, &s.words); err != nil {
		return nil, err
	}
	byName := map[string]*profile{}
	builtIn, err := fs.Glob(configs.FS, "trainers/[a-z]*.yaml")
	if err != nil {
		return nil, fmt.Errorf("listing the built-in profiles: %w", err)
	}
	for _, name := range builtIn {
		data, err := configs.FS.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading the built-in profile %s: %w", name, err)
		}
		p, err := parseProfile("configs/"+name, data)
		if err != nil {
			return nil, err
		}
		byName[p.Name] = p
	}
	for _, dir := range userDirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading trainer profiles: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() || strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), ".yaml") {
				continue
			}
			path := filepath.Join(dir, e.Name())
			data, err := configs.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("reading a trainer profile: %w", err)
			}
			p, err := parseProfile(path, data)
			if err != nil {
				return nil, err
			}
			p.user = true
			byName[p.Name] = p
		}
	}
	for _, p := range byName {
		s.profiles = append(s.profiles, p)
	}
	sort.Slice(s.profiles, func(i, j int) bool {
		a, b := s.profiles[i], s.profiles[j]
		switch {
		case a.user != b.user:
			return a.user
		case a.Rank != b.Rank:
			return a.Rank > b.Rank
		}
		return a.Name < b.Name
	})
	return s, nil
}

// Names returns the names of the profiles, sorted.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.profiles))
	for _, p := range s.profiles {
		names = append(names, p.Name)
	}
	sort.Strings(names)
	return names
}

func (s *Set) profile(name string) *profile {
	for _, p := range s.profiles {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// parseProfile decodes and checks one profile.
func parseProfile(file string, data []byte) (*profile, error) {
	var p profile
	if err := configs.Decode(file, data, &p); err != nil {
		return nil, err
	}
	p.file = file
	if path, why := p.check(); why != "" {
		return nil, fmt.Errorf("%s:%d: %s", file, lineOf(data, path), why)
	}
	return &p, nil
}

// check returns the place and nature of the first thing wrong with a profile.
func (p *profile) check() (path []string, why string) {
	if p.Name == "" {
		return []string{"name"}, "a profile needs a name"
	}
	r := p.Recognise
	if len(r.Programs)+len(r.Modules)+len(r.Scripts)+len(r.Text)+len(r.Flags) == 0 {
		return []string{"recognise"}, "nothing to recognise the trainer by: give programs, modules, scripts, text or flags"
	}
	for _, f := range []struct {
		value string
		path  []string
		of    []string
	}{
		{p.Family, []string{"family"}, []string{"per-device", "global"}},
		{p.Parser.Style, []string{"parser", "style"}, []string{"hf", "argparse"}},
		{p.Checkpoints, []string{"checkpoints"}, []string{"", "hf"}},
		{p.Resume, []string{"resume"}, []string{"", "never", "text", "always"}},
		{p.Method.Otherwise, []string{"method", "otherwise"}, []string{"", "full", "lora", "qlora"}},
	} {
		if !slices.Contains(f.of, f.value) {
			return f.path, fmt.Sprintf("%s is %q, but must be one of %s", strings.Join(f.path, "."), f.value,
				strings.Join(slices.DeleteFunc(slices.Clone(f.of), func(s string) bool { return s == "" }), ", "))
		}
	}
	for _, c := range p.Config {
		if !slices.Contains([]string{"flag", "single", "first"}, c.Form) {
			return []string{"config"}, fmt.Sprintf("form is %q, but must be flag, single or first", c.Form)
		}
		if (c.Form == "flag") != (c.Flag != "") {
			return []string{"config"}, "flag belongs to form: flag, and only there"
		}
		if !slices.Contains([]string{"flags", "dotlist", "none"}, c.Override) {
			return []string{"config"}, fmt.Sprintf("override is %q, but must be flags, dotlist or none", c.Override)
		}
	}
	for _, name := range sortedKeys(p.Knobs) {
		k, path := p.Knobs[name], []string{"knobs", name}
		if !validName(name) {
			return path, fmt.Sprintf("knob name %q: use lower case letters, digits and _", name)
		}
		if len(k.Names) == 0 {
			return path, fmt.Sprintf("knob %s has no names", name)
		}
		if !slices.Contains([]string{"int", "float", "bool", "str"}, k.Kind) {
			return path, fmt.Sprintf("knob %s has kind %q, but must be int, float, bool or str", name, k.Kind)
		}
		if k.Default != "" {
			if _, err := parseValue(k.Kind, k.Default); err != nil {
				return path, fmt.Sprintf("knob %s: default: %v", name, err)
			}
		}
	}
	for _, m := range []map[string]string{p.Method.ToLoRA, p.Method.To16Bit} {
		for _, name := range sortedKeys(m) {
			if _, ok := p.Knobs[name]; !ok {
				return []string{"method"}, fmt.Sprintf("method names %s, which is not among the knobs", name)
			}
		}
	}
	if p.Floor < 0 {
		return []string{"floor"}, "floor is negative"
	}
	return nil, ""
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// lineOf returns the line of the key at path, or of the nearest parent there
// is.
func lineOf(data []byte, path []string) int {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) == 0 {
		return 1
	}
	node, line := doc.Content[0], 1
	for _, key := range path {
		if node.Kind != yaml.MappingNode {
			break
		}
		var next *yaml.Node
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == key {
				line, next = node.Content[i].Line, node.Content[i+1]
			}
		}
		if next == nil {
			break
		}
		node = next
	}
	return line
}
