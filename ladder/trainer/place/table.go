package place

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/configs"
)

const tableFile = "trainers/_prefixes.yaml"

// Table is what the words in front of trainers mean, configs/trainers/_prefixes.yaml.
// It is never changed after Load and may be used by several goroutines.
type Table struct {
	Prefixes      []front     `yaml:"prefixes"`
	PythonModules []front     `yaml:"python_modules"`
	Shells        []shellWord `yaml:"shells"`
	// Sourced are files that a shell takes its commands from and that leave its folder
	// alone; Hooks are programs whose output for eval does.
	Sourced []string `yaml:"sourced"`
	Hooks   []string `yaml:"hooks"`
	// Harmless are programs, and Python modules, that change no file of the trainer's.
	Harmless      []string `yaml:"harmless"`
	NoTrainers    []string `yaml:"no_trainers"`
	Unseen        []unseen `yaml:"unseen"`
	Elsewhere     []unseen `yaml:"elsewhere"`
	TrainerNodes  []string `yaml:"trainer_nodes"`
	TrainerProcs  []string `yaml:"trainer_procs"`
	TrainerTotal  []string `yaml:"trainer_total"`
	TrainerConfig []string `yaml:"trainer_config"`
	// TrainerConfigs is the folder, of the installed packages, in which a TrainerConfig
	// without a path is looked up.
	TrainerConfigs string `yaml:"trainer_configs"`
	// TrainerDefault are trainers whose subcommands start accelerate, with the config
	// file that it reads unless one of the flags is given.
	TrainerDefault trainerDefault    `yaml:"trainer_default"`
	NodeEnv        []nodeEnv         `yaml:"node_env"`
	ProcEnv        []string          `yaml:"proc_env"`
	Workdirs       map[string]string `yaml:"workdirs"`
	Engines        []engine          `yaml:"engines"`
	Compose        compose           `yaml:"compose"`

	// byName and byModule find prefixes.
	byName, byModule map[string]*front
}

// optionSet says which options of a program take how many words.
type optionSet struct {
	Plain    []string `yaml:"plain"`
	Value    []string `yaml:"value"`
	Two      []string `yaml:"two"`
	Optional []string `yaml:"optional"`
	Fold     bool     `yaml:"fold"`
	Numbers  bool     `yaml:"numbers"`
}

// front is a word that runs another command; the table explains the fields.
type front struct {
	optionSet   `yaml:",inline"`
	Name        string   `yaml:"name"`
	Also        []string `yaml:"also"`
	Sub         string   `yaml:"sub"`
	GlobalPlain []string `yaml:"global_plain"`
	GlobalValue []string `yaml:"global_value"`
	Modules     []string `yaml:"modules"`
	ModuleSub   []string `yaml:"module_sub"`
	Words       int      `yaml:"words"`

	Assignments bool     `yaml:"assignments"`
	Clears      []string `yaml:"clears"`
	Unset       []string `yaml:"unset"`
	Chdir       []string `yaml:"chdir"`
	DirKeeps    []string `yaml:"dir_keeps"`
	Resets      bool     `yaml:"resets"`
	Keeps       []string `yaml:"keeps"`
	Export      []string `yaml:"export"`
	Setenv      string   `yaml:"setenv"`
	OtherPath   bool     `yaml:"other_path"`
	EnvName     []string `yaml:"env_name"`
	EnvPrefix   []string `yaml:"env_prefix"`
	Venv        bool     `yaml:"venv"`
	VenvUnless  []string `yaml:"venv_unless"`

	Scripts     string            `yaml:"scripts"`
	Module      []string          `yaml:"module"`
	Script      []string          `yaml:"script"`
	Program     []string          `yaml:"program"`
	Distributed bool              `yaml:"distributed"`
	Tasks       []string          `yaml:"tasks"`
	Prefixed    string            `yaml:"prefixed"`
	Opaque      map[string]string `yaml:"opaque"`
	Note        string            `yaml:"note"`
	NoteUnless  []string          `yaml:"note_unless"`

	Nodes           []string `yaml:"nodes"`
	Procs           []string `yaml:"procs"`
	Total           []string `yaml:"total"`
	Rank            []string `yaml:"rank"`
	Hosts           []string `yaml:"hosts"`
	Hostfile        []string `yaml:"hostfile"`
	HostfileDefault string   `yaml:"hostfile_default"`
	Include         []string `yaml:"include"`
	Config          []string `yaml:"config"`
	ConfigDefault   string   `yaml:"config_default"`
	ConfigUnless    []string `yaml:"config_unless"`
	OneProc         bool     `yaml:"one_proc"`
}

type shellWord struct {
	Name    string   `yaml:"name"`
	Dialect string   `yaml:"dialect"`
	Plain   []string `yaml:"plain"`
	Value   []string `yaml:"value"`
	// Letters are the options of one letter besides c, o, O and s.
	Letters string `yaml:"letters"`
}

type unseen struct {
	Name string `yaml:"name"`
	Why  string `yaml:"why"`
	// Reach says why the environment does not get through, "" if it does.
	Reach string `yaml:"reach"`
}

type trainerDefault struct {
	Config   string              `yaml:"config"`
	Programs map[string][]string `yaml:"programs"`
	Unless   []string            `yaml:"unless"`
}

type nodeEnv struct {
	Name string `yaml:"name"`
	Per  string `yaml:"per"`
	Rank bool   `yaml:"rank"`
}

type engine struct {
	optionSet   `yaml:",inline"`
	Name        string    `yaml:"name"`
	GlobalPlain []string  `yaml:"global_plain"`
	GlobalValue []string  `yaml:"global_value"`
	Remote      []string  `yaml:"remote"`
	RemoteEnv   []string  `yaml:"remote_env"`
	Exec        optionSet `yaml:"exec"`
}

type compose struct {
	// Files and Overrides are the names that compose looks for, best first; who reads such
	// files takes them from the same table.
	Files       []string          `yaml:"files"`
	Overrides   []string          `yaml:"overrides"`
	Programs    map[string]string `yaml:"programs"`
	GlobalPlain []string          `yaml:"global_plain"`
	GlobalValue []string          `yaml:"global_value"`
	Run         optionSet         `yaml:"run"`
}

// Load reads the built-in table.
func Load() (*Table, error) {
	var t Table
	if err := configs.BuiltIn(tableFile, &t); err != nil {
		return nil, err
	}
	if err := t.index(); err != nil {
		return nil, fmt.Errorf("configs/%s: %w", tableFile, err)
	}
	return &t, nil
}

// index fills the maps and refuses what contradicts itself.
func (t *Table) index() error {
	t.byName, t.byModule = map[string]*front{}, map[string]*front{}
	for i := range t.Prefixes {
		f := &t.Prefixes[i]
		if err := f.check(); err != nil {
			return err
		}
		for _, name := range append([]string{f.Name}, f.Also...) {
			if t.byName[name] != nil {
				return fmt.Errorf("prefix %s is there twice", name)
			}
			t.byName[name] = f
		}
		for _, m := range append(slices.Clone(f.Modules), f.ModuleSub...) {
			if t.byModule[m] != nil {
				return fmt.Errorf("module %s is there twice", m)
			}
			t.byModule[m] = f
		}
	}
	for i := range t.PythonModules {
		f := &t.PythonModules[i]
		f.Scripts = "always"
		if err := f.check(); err != nil {
			return err
		}
		t.byModule[f.Name] = f
	}
	for _, s := range t.Shells {
		if _, ok := dialects[s.Dialect]; !ok {
			return fmt.Errorf("shell %s: dialect %q is not known", s.Name, s.Dialect)
		}
	}
	for _, e := range t.Engines {
		for _, o := range []optionSet{e.optionSet, e.Exec} {
			if err := o.check(e.Name); err != nil {
				return err
			}
		}
	}
	return t.Compose.Run.check("compose run")
}

func (f *front) check() error {
	if f.Name == "" {
		return fmt.Errorf("a prefix has no name")
	}
	if !slices.Contains([]string{"", "py", "always"}, f.Scripts) {
		return fmt.Errorf("prefix %s: scripts is %q, but must be py or always", f.Name, f.Scripts)
	}
	for _, task := range f.Tasks {
		if file, path, ok := strings.Cut(task, ":"); !ok || file == "" || path == "" {
			return fmt.Errorf("prefix %s: task %q must be FILE:path", f.Name, task)
		}
	}
	global := optionSet{Plain: f.GlobalPlain, Value: f.GlobalValue}
	if err := global.check(f.Name); err != nil {
		return err
	}
	if err := f.optionSet.check(f.Name); err != nil {
		return err
	}
	// What an option does must belong to an option that is known.
	for _, names := range [][]string{
		f.Clears, f.Unset, f.Chdir, f.DirKeeps, f.Keeps, f.Export, f.EnvName, f.EnvPrefix, f.VenvUnless, f.Module, f.Script,
		f.Program, f.NoteUnless, f.Nodes, f.Procs, f.Total, f.Rank, f.Hosts, f.Hostfile, f.Include, f.Config,
	} {
		for _, name := range names {
			if !f.has(name) && !slices.Contains(f.GlobalValue, name) {
				return fmt.Errorf("prefix %s: option %s is not among its options", f.Name, name)
			}
		}
	}
	return nil
}

func (s *optionSet) has(name string) bool {
	return slices.Contains(s.Plain, name) || slices.Contains(s.Value, name) || slices.Contains(s.Two, name) || slices.Contains(s.Optional, name)
}

// check refuses an option that is listed twice.
func (s *optionSet) check(of string) error {
	seen := map[string]bool{}
	for _, names := range [][]string{s.Plain, s.Value, s.Two, s.Optional} {
		for _, n := range names {
			if seen[n] {
				return fmt.Errorf("%s: option %s is listed twice", of, n)
			}
			if !strings.HasPrefix(n, "-") {
				return fmt.Errorf("%s: option %s does not start with -", of, n)
			}
			if s.Fold && strings.Contains(n, "_") {
				return fmt.Errorf("%s: write option %s with - where both are allowed", of, n)
			}
			seen[n] = true
		}
	}
	return nil
}

func named[T any](list []T, name func(*T) string, word string) *T {
	base := filepath.Base(word)
	for i := range list {
		if name(&list[i]) == base {
			return &list[i]
		}
	}
	return nil
}

func (t *Table) shellNamed(word string) *shellWord {
	return named(t.Shells, func(s *shellWord) string { return s.Name }, word)
}

func (t *Table) engineNamed(word string) *engine {
	return named(t.Engines, func(e *engine) string { return e.Name }, word)
}

// unseenNamed finds a program of the lists; a file of the user's that happens to
// have such a name (./batch) is none of them.
func unseenNamed(list []unseen, word string) *unseen {
	if strings.Contains(word, "/") && !filepath.IsAbs(word) {
		return nil
	}
	return named(list, func(u *unseen) string { return u.Name }, word)
}
