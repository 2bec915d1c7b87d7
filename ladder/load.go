// Package ladder decides what the next attempt does differently after a death.
// It is a function from values to values: which rung comes next, which settings
// it turns, and why a rung was passed over. What the rungs are is data
// (configs/ladder.yaml); how a setting is turned is package trainer's.
package ladder

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
	"sparkrun/internal/job"
)

// What a rung may do.
const (
	dropCaches  = "drop-caches"
	length      = "length"
	microBatch  = "micro-batch"
	gradCkpt    = "grad-checkpointing"
	fullToLoRA  = "full-to-lora"
	fourTo16Bit = "4bit-to-16bit"
)

// settingsOf is what a rung does that is one attempt of a list.
const settingsOf = "settings"

// defaultFloor is how short a rung makes the length where it does not say.
const defaultFloor = 1024

var actions = []string{dropCaches, length, microBatch, gradCkpt, fullToLoRA, fourTo16Bit}

// Ladder is the order in which settings are given up.
type Ladder struct {
	// Name is "spark", "preserving", or what the user's file says.
	Name  string
	about string
	rungs []rung
	rules rules
}

type rung struct {
	Name string   `yaml:"name"`
	Does []string `yaml:"does"`
	// Halvings bounds how often the length is halved in the whole run, Floor
	// how short it may become.
	Halvings int   `yaml:"halvings"`
	Floor    int64 `yaml:"floor"`
	// set holds the settings of a rung that is one attempt of a list.
	set map[job.Knob]string
}

type ladderFile struct {
	Name  string `yaml:"name"`
	About string `yaml:"about"`
	Rungs []rung `yaml:"rungs"`
	// Attempts is the other form of a ladder: the settings of each attempt.
	Attempts []yaml.Node `yaml:"attempts"`
}

// rules hold for every ladder; configs/ladder.yaml says what each is for.
type rules struct {
	Drop struct {
		MinFreedGiB     float64 `yaml:"min_freed_gib"`
		ShortAttemptMin float64 `yaml:"short_attempt_min"`
		// NeverAlone are kinds of death that a drop alone cannot cure.
		NeverAlone []string `yaml:"never_alone"`
	} `yaml:"drop"`
	Again struct {
		Unsure   int `yaml:"unsure"`
		CoTenant int `yaml:"co_tenant"`
	} `yaml:"again"`
	Lost struct {
		Retries int `yaml:"retries"`
	} `yaml:"lost"`
	CoTenant struct {
		Kinds  []string `yaml:"kinds"`
		Levers []string `yaml:"levers"`
		// ByMessage is how many retries in a row a lever of these earns where the kind
		// is another.
		ByMessage int `yaml:"by_message"`
	} `yaml:"co_tenant"`
	SameDeath    sameDeath `yaml:"same_death"`
	NewException struct {
		Steps int64 `yaml:"steps"`
	} `yaml:"new_exception"`
	Finished struct {
		Levers []string `yaml:"levers"`
	} `yaml:"finished"`
	Phases       map[string]helps  `yaml:"phases"`
	Kinds        map[string]helps  `yaml:"kinds"`
	NoRungKinds  map[string]string `yaml:"no_rung_kinds"`
	NoRungLevers []noRungLever     `yaml:"no_rung_levers"`
}

// sameDeath are the conditions of "smaller settings changed nothing".
type sameDeath struct {
	MinStep            int64   `yaml:"min_step"`
	StepSlackPct       float64 `yaml:"step_slack_pct"`
	PeakSlackPct       float64 `yaml:"peak_slack_pct"`
	PeakSlackMiB       float64 `yaml:"peak_slack_mib"`
	MinRequestMiB      float64 `yaml:"min_request_mib"`
	CutsSameRequest    int     `yaml:"cuts_same_request"`
	CutsLargerRequest  int     `yaml:"cuts_larger_request"`
	CutsUnknownRequest int     `yaml:"cuts_unknown_request"`
}

// helps says which actions help against deaths of a sort.
type helps struct {
	Turns  []string `yaml:"turns"`
	Once   []string `yaml:"once"`
	Why    string   `yaml:"why"`
	Advice string   `yaml:"advice"`
	Alone  bool     `yaml:"alone"`
}

// noRungLever is a lever that leaves a rung nothing to help with.
type noRungLever struct {
	Lever  string   `yaml:"lever"`
	Kinds  []string `yaml:"kinds"`
	Causes []string `yaml:"causes"`
	Advice string   `yaml:"advice"`
}

type builtIn struct {
	Ladders []ladderFile `yaml:"ladders"`
	rules   `yaml:",inline"`
}

// Names returns the names of the built-in ladders, the default one first.
func Names() []string {
	var b builtIn
	if err := configs.BuiltIn("ladder.yaml", &b); err != nil {
		return nil // part of the binary, and a test reads it
	}
	names := make([]string, len(b.Ladders))
	for i, f := range b.Ladders {
		names[i] = f.Name
	}
	return names
}

// Load returns the built-in ladder of that name ("" is "spark"), or the one in
// a file of the user's: a path has a slash in it or ends in .yaml or .yml.
// Errors of a file name its line.
func Load(nameOrPath string) (Ladder, error) {
	var b builtIn
	if err := configs.BuiltIn("ladder.yaml", &b); err != nil {
		return Ladder{}, err
	}
	if nameOrPath == "" {
		nameOrPath = "spark"
	}
	var names []string
	for i, f := range b.Ladders {
		if f.Name == nameOrPath {
			data, err := configs.FS.ReadFile("ladder.yaml")
			if err != nil {
				return Ladder{}, fmt.Errorf("reading the built-in ladders: %w", err)
			}
			return f.checked("configs/ladder.yaml", data, []any{"ladders", i}, b.rules)
		}
		names = append(names, f.Name)
	}
	isPath := strings.Contains(nameOrPath, "/") || strings.HasSuffix(nameOrPath, ".yaml") || strings.HasSuffix(nameOrPath, ".yml")
	data, err := configs.ReadFile(nameOrPath)
	if !isPath {
		hint := ""
		if err == nil {
			hint = fmt.Sprintf("; for the file of that name write ./%s", nameOrPath)
		}
		return Ladder{}, fmt.Errorf("there is no ladder %q: use %s, or the path of a file%s", nameOrPath, strings.Join(names, ", "), hint)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Ladder{}, fmt.Errorf("there is no ladder file %s (built in: %s)", nameOrPath, strings.Join(names, ", "))
	}
	if err != nil {
		return Ladder{}, fmt.Errorf("reading the ladder: %w", err)
	}
	var f ladderFile
	if err := configs.Decode(nameOrPath, data, &f); err != nil {
		return Ladder{}, err
	}
	if f.Name == "" {
		f.Name = nameOrPath
	}
	return f.checked(nameOrPath, data, nil, b.rules)
}

// checked turns a file's ladder into one that Next can rely on. path leads to
// the ladder in the YAML text.
func (f ladderFile) checked(file string, data []byte, path []any, r rules) (Ladder, error) {
	fail := func(where []any, format string, args ...any) (Ladder, error) {
		return Ladder{}, fmt.Errorf("%s:%d: %s", file, lineAt(data, append(slices.Clone(path), where...)), fmt.Sprintf(format, args...))
	}
	l := Ladder{Name: f.Name, about: f.About, rules: r}
	switch {
	case len(f.Attempts) > 0 && len(f.Rungs) > 0:
		return fail([]any{"attempts"}, "a ladder has rungs or attempts, not both")
	case len(f.Attempts) > 0:
		rungs, err := attemptRungs(f.Attempts)
		var at entryError
		if errors.As(err, &at) {
			return Ladder{}, fmt.Errorf("%s:%d: %w", file, at.line, err)
		}
		if err != nil {
			return fail([]any{"attempts"}, "%v", err)
		}
		l.rungs = rungs
		return l, nil
	case len(f.Rungs) == 0:
		return fail([]any{"rungs"}, "a ladder needs rungs, or a list of attempts")
	}
	names, does := map[string]bool{}, map[string]bool{}
	for i, g := range f.Rungs {
		at := []any{"rungs", i}
		if g.Name == "" {
			return fail(at, "a rung needs a name")
		}
		if names[g.Name] {
			return fail(append(at, "name"), "two rungs are called %s", g.Name)
		}
		names[g.Name] = true
		if len(g.Does) == 0 {
			return fail(at, "rung %s does nothing: give it does: [%s]", g.Name, strings.Join(actions, ", "))
		}
		for _, a := range g.Does {
			if !slices.Contains(actions, a) {
				return fail(append(at, "does"), "rung %s cannot do %q: it can do %s", g.Name, a, strings.Join(actions, ", "))
			}
			if does[a] {
				return fail(append(at, "does"), "%s stands in the ladder twice", a)
			}
			does[a] = true
		}
		if slices.Contains(g.Does, dropCaches) && (i > 0 || len(g.Does) > 1) {
			return fail(append(at, "does"), "drop-caches must be the first rung, by itself: it is the only one that changes nothing")
		}
		if g.Halvings < 0 || g.Floor < 0 {
			return fail(at, "halvings and floor cannot be negative")
		}
		if slices.Contains(g.Does, length) {
			if g.Halvings == 0 {
				g.Halvings = 2
			}
			if g.Floor == 0 {
				g.Floor = defaultFloor
			}
		}
		l.rungs = append(l.rungs, g)
	}
	return l, nil
}

// About says in one line what the ladder is for; "" where its file does not.
func (l Ladder) About() string { return l.about }

// RungNames returns the names of the rungs in order, for --allow and --deny.
func (l Ladder) RungNames() []string {
	names := make([]string, len(l.rungs))
	for i, r := range l.rungs {
		names[i] = r.Name
	}
	return names
}

// lineAt returns the line of the deepest node there is on the way of path: keys
// of mappings and indexes of lists.
func lineAt(data []byte, path []any) int {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 {
		return 1
	}
	node, line := doc.Content[0], doc.Content[0].Line
	for _, step := range path {
		var next *yaml.Node
		switch s := step.(type) {
		case int:
			if node.Kind == yaml.SequenceNode && s < len(node.Content) {
				next = node.Content[s]
				line = next.Line
			}
		case string:
			for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
				if node.Content[i].Value == s {
					line, next = node.Content[i].Line, node.Content[i+1]
				}
			}
		}
		if next == nil {
			break
		}
		node = next
	}
	return line
}
