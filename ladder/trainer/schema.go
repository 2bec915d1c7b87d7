package trainer

// profile is one file of configs/trainers. The head of each field says what a
// person who writes a profile must know.
type profile struct {
	Name  string `yaml:"name"`
	About string `yaml:"about"`
	// Rank orders profiles that recognise a command equally well; the highest
	// wins.
	Rank int `yaml:"rank"`
	// Package is the PyPI distribution whose installed version picks between
	// spellings.
	Package string `yaml:"package"`
	// Notes are sentences for `sparkrun trainers NAME`.
	Notes []string `yaml:"notes"`
	// Image marks trainers of images: they have no length to turn.
	Image     bool      `yaml:"image"`
	Recognise recognise `yaml:"recognise"`
	// Family is "per-device" (effective batch = micro x accumulation x devices) or
	// "global" (the effective batch is a setting of its own).
	Family string `yaml:"family"`
	// Families replace it: the first whose condition holds.
	Families []familyRule        `yaml:"families"`
	Parser   parser              `yaml:"parser"`
	Config   []configForm        `yaml:"config"`
	Knobs    map[string]knobSpec `yaml:"knobs"`
	// Flags are other flags of the same parser, so that an abbreviation is not
	// taken for a knob.
	Flags      []string       `yaml:"flags"`
	Truncation truncationSpec `yaml:"truncation"`
	// LongRows say what becomes of rows over a shorter length: the first that holds.
	LongRows []rowsRule `yaml:"long_rows"`
	// LeaveAlone are flags with which nothing of the command is changed.
	LeaveAlone []leaveRule `yaml:"leave_alone"`
	Method     methodSpec  `yaml:"method"`
	// SelfShrinks are settings, SelfShrinksText words of the script, that make the
	// trainer shrink its own batch.
	SelfShrinks     []voidRule `yaml:"self_shrinks"`
	SelfShrinksText []string   `yaml:"self_shrinks_text"`
	// DeepSpeed says that the knob `deepspeed` may name a JSON file whose numbers
	// must agree with the trainer's own.
	DeepSpeed bool `yaml:"deepspeed"`
	// Procs says where the trainer itself is told how many processes to start on
	// this machine.
	Procs procsSpec `yaml:"procs"`
	// Floor is the shortest length a rung may go to.
	Floor  int        `yaml:"floor"`
	Output outputSpec `yaml:"output"`
	// Checkpoints names the layout of the output folder, for package checkpoint.
	Checkpoints string     `yaml:"checkpoints"`
	Resume      resumeSpec `yaml:"resume"`
	// Progress names a pattern set of configs/progress.yaml.
	Progress string    `yaml:"progress"`
	Logs     []logSpec `yaml:"logs"`

	file string
	user bool
}

type recognise struct {
	Programs []string `yaml:"programs"`
	// Subcommands follow a program; one may be several words ("tune run").
	Subcommands       []string `yaml:"subcommands"`
	Modules           []string `yaml:"modules"`
	ModuleSubcommands []string `yaml:"module_subcommands"`
	// Scripts match by base name, or by the end of the path where they contain a
	// slash.
	Scripts []string `yaml:"scripts"`
	// Text are words of the script's source; all of a line "A && B" must be there.
	Text  []string `yaml:"text"`
	Flags []string `yaml:"flags"`
	// ConfigKeys must all be in the config file named on the command line.
	ConfigKeys []string `yaml:"config_keys"`
}

type parser struct {
	// Always and Text say when every flag of the profile is certain to be
	// taken: always, or if the script's text has one of these words.
	Always bool     `yaml:"always"`
	Text   []string `yaml:"text"`
	// Style is one of the styles in style.go. ModuleStyle holds instead where the
	// trainer is started as a module or a script and not by its program.
	Style         string `yaml:"style"`
	ModuleStyle   string `yaml:"module_style"`
	Abbreviations bool   `yaml:"abbreviations"`
}

type configForm struct {
	// Form is "flag" (--Flag FILE), "single" (the only argument), "first" (the
	// first argument), "positional" (the first that is no option, wherever it stands)
	// or "name" (the same, looked up in Folders).
	Form string `yaml:"form"`
	// Required says that the trainer starts with no other settings: without the file
	// nothing is known, and no default holds.
	Required bool `yaml:"required"`
	// Valued are options that take the next word and are no knobs, so that it is not
	// taken for the file.
	Valued []string `yaml:"valued"`
	Flag   string   `yaml:"flag"`
	Flags  []string `yaml:"flags"`
	// TwoWords says that --Flag=FILE is not seen by the trainer.
	TwoWords bool `yaml:"two_words"`
	// Folders are looked in, before the trainer's own folder, for a name that is
	// no path.
	Folders    []string `yaml:"folders"`
	Extensions []string `yaml:"extensions"`
	// Text, if set, must be in the script for the form to hold.
	Text []string `yaml:"text"`
	// Root is the path inside the file below which the keys stand. RootOptional says
	// that they do only where the file has that key.
	Root         string `yaml:"root"`
	RootOptional bool   `yaml:"root_optional"`
	// Env is a key whose entries the trainer puts into its environment, where they are
	// not there already.
	Env string `yaml:"env"`
	// Append is the extension that the trainer puts behind a name without it.
	Append string `yaml:"append"`
	// OnlyKeys says that the file holds nothing but the keys that knobs list under
	// "keys": their names are flags only.
	OnlyKeys bool `yaml:"only_keys"`
	// Override is how the command line beats the file: "flags", "dotlist"
	// (key=value, flags do not mix with it), "dotted" (--a.b v), "click", "hydra" or
	// "none" (the file itself must change).
	Override string `yaml:"override"`
	// Keys is "nested" (a key is a path of names) or "flat" (sections of the file
	// do not count).
	Keys string `yaml:"keys"`
	// Wins says that the file beats the command line.
	Wins bool `yaml:"wins"`
}

func (f configForm) flags() []string {
	if f.Flag != "" {
		return append([]string{f.Flag}, f.Flags...)
	}
	return f.Flags
}

type knobSpec struct {
	// Names are flags, or key=value words, without dashes in front, in the spelling
	// to write them in.
	//
	// A knob without names, keys and calls is a fact: known by its default, never
	// turned.
	Names []string `yaml:"names"`
	// FlagNames are flags that a parser of key=value words takes as well; such a word
	// beats them.
	FlagNames []string `yaml:"flag_names"`
	// Keys are paths in the config file, where they differ from Names. [*] is every
	// entry of a list.
	Keys  []string          `yaml:"keys"`
	Since map[string]string `yaml:"since"`
	Until map[string]string `yaml:"until"`
	// Kind is int, float, bool, str or list: several words, which are shown joined by
	// commas and never turned.
	Kind    string `yaml:"kind"`
	Default string `yaml:"default"`
	// Defaults replace it: the first whose condition holds.
	Defaults []defaultRule `yaml:"defaults"`
	// Own marks a flag that belongs to the script and not to its parser's
	// library: taken only if it is in argv or the script declares it.
	Own bool `yaml:"own"`
	// Needs lists words of which a script must have one for its parser to take
	// the flag; without any the flag counts as the script's own.
	Needs []string   `yaml:"needs"`
	Void  []voidRule `yaml:"void"`
	// Mins are the smallest values that the trainer takes: that of the first rule that
	// holds.
	Mins []minRule `yaml:"mins"`
	// VoidText lists words of the script that forbid turning the knob; VoidWhy says
	// why.
	VoidText []string `yaml:"void_text"`
	VoidWhy  string   `yaml:"void_why"`
	// Calls are keywords in code, as CALL.keyword: what the shim can clamp.
	Calls []string `yaml:"calls"`
	// FallbackCalls hold where the script has none of Calls.
	FallbackCalls []string `yaml:"fallback_calls"`
	// DefaultCalls are those of them for which Default holds; all without it.
	DefaultCalls []string `yaml:"default_calls"`
	// SetBy are other calls that decide it: gradient checkpointing is on where the model
	// was told so, whatever the trainer's arguments say. What switches nothing on, such as
	// a keyword that is False, decides nothing.
	SetBy []setRule `yaml:"set_by"`
	// Positional says that the first bare word behind the subcommand is it, where no flag
	// is.
	Positional bool `yaml:"positional"`
	// All says that every spelling that is there must be set, and all of Names where
	// none is.
	All bool `yaml:"all"`
	// Formula works the default out of other knobs.
	Formula *formulaSpec `yaml:"formula"`
	// Choices are the values allowed, where the script declares none.
	Choices []string `yaml:"choices"`
	// MultipleOf and Divides name another knob.
	MultipleOf string `yaml:"multiple_of"`
	Divides    string `yaml:"divides"`
	// AllProcesses says that the number counts for all processes together, each of
	// which takes its share: that share is the value.
	AllProcesses bool `yaml:"all_processes"`
	// UnknownWhen are conditions under which what the setting says is not what holds.
	UnknownWhen []voidRule `yaml:"unknown_when"`
	// WhenBlind marks a setting that tells something only where the config file cannot
	// be read, such as the name of one that comes with the trainer.
	WhenBlind bool `yaml:"when_blind"`
	// NullIsOff says that null in a file is a value of its own and not the default.
	NullIsOff bool `yaml:"null_is_off"`
	// Off is how "null" is written: "remove" (the flag or key goes away), "null" or
	// "false". Without it a flag is removed and a key=value word or a key in a file
	// gets null.
	Off string `yaml:"off"`
}

// leaveRule are flags of one meaning and the reason why nothing is changed with them.
type leaveRule struct {
	Flags []string `yaml:"flags"`
	Why   string   `yaml:"why"`
}

// minRule is a smallest value, with a condition on other knobs or words of the script
// of which one must hold.
type minRule struct {
	When map[string]string `yaml:"when"`
	Text []string          `yaml:"text"`
	Min  int64             `yaml:"min"`
	Why  string            `yaml:"why"`
}

// rowsRule ends the sentence "rows longer than that ...". Without a condition it holds
// always.
type rowsRule struct {
	When map[string]string `yaml:"when"`
	Text []string          `yaml:"text"`
	Say  string            `yaml:"say"`
}

// defaultRule is a default under conditions, all of which must hold.
type defaultRule struct {
	When map[string]string `yaml:"when"`
	// Text are words of which the script must have one.
	Text []string `yaml:"text"`
	// Since is the least version, of Package or else of the profile's own; it must be known.
	Since   string `yaml:"since"`
	Package string `yaml:"package"`
	Value   string `yaml:"value"`
}

// setRule is a call in a script that decides a knob whatever its own setting says: by its
// keyword, and without that by Value.
type setRule struct {
	Call    string `yaml:"call"`
	Keyword string `yaml:"keyword"`
	Value   string `yaml:"value"`
}

type familyRule struct {
	When   map[string]string `yaml:"when"`
	Family string            `yaml:"family"`
}

// voidRule is a condition on other knobs and its sentence. A value of When is *
// (any), empty (not set), a word, or a pattern with * in it.
type voidRule struct {
	When map[string]string `yaml:"when"`
	Why  string            `yaml:"why"`
}

type formulaSpec struct {
	// Op is ceil_div (the first of Of divided by all others, rounded up), divide
	// (the same, exact or unknown), product, or same (follows the one knob: it need
	// not be written out when that one changes).
	Op string `yaml:"op"`
	// Of are knobs, whole numbers, or "world": the processes of the job.
	Of  []string `yaml:"of"`
	Min int64    `yaml:"min"`
}

type truncationSpec struct {
	// Drops are the values of the knob `truncation` under which a shorter length
	// loses rows; Set is what goes with a cut length then, Say the sentence.
	Drops []string `yaml:"drops"`
	Set   string   `yaml:"set"`
	Say   string   `yaml:"say"`
}

type methodSpec struct {
	// Scripts tell the method by the script's base name, or the subcommand. The rest
	// is asked in the order full_when, quantised_when, lora_when, lora_text, full_text,
	// otherwise.
	Scripts map[string]string `yaml:"scripts"`
	// Recipes tell it by a bare word of the command.
	Recipes       map[string]string   `yaml:"recipes"`
	QuantisedWhen []map[string]string `yaml:"quantised_when"`
	LoRAWhen      []map[string]string `yaml:"lora_when"`
	// LoRAText are words of a script that say LoRA.
	LoRAText []string `yaml:"lora_text"`
	// FullText are words of a script that loads and trains the model itself: with one of
	// them, and nowhere one of DoubtText (in any case), it trains all weights.
	FullText  []string            `yaml:"full_text"`
	DoubtText []string            `yaml:"doubt_text"`
	FullWhen  []map[string]string `yaml:"full_when"`
	Otherwise string              `yaml:"otherwise"`
	ToLoRA    map[string]string   `yaml:"to_lora"`
	To16Bit   map[string]string   `yaml:"to_16bit"`
	Optional  []string            `yaml:"optional"`
	// ToLoRARefused and To16BitRefused say why the trainer cannot do it.
	ToLoRARefused  string `yaml:"to_lora_refused"`
	To16BitRefused string `yaml:"to_16bit_refused"`
}

type procsSpec struct {
	Flags []string `yaml:"flags"`
	Env   []string `yaml:"env"`
	// EnvIf are variables of which one must be true for Env to count.
	EnvIf []string `yaml:"env_if"`
}

type outputSpec struct {
	// Default is the folder where the command names none.
	Default string `yaml:"default"`
	// Folder is where the checkpoints lie, of {knob} placeholders; {output_dir}
	// without it.
	Folder string `yaml:"folder"`
	// Versions is a glob of the folders that each start makes below it.
	Versions string `yaml:"versions"`
}

type resumeSpec struct {
	// How is "always" (the trainer honours resume_from), "text" (only if the
	// script's text speaks of it), "auto" (it takes up what lies in its output
	// folder) or "never".
	How string `yaml:"how"`
	// Value is what resume_from is given: path (the checkpoint), name (its base
	// name), step (its number) or dir (the folder it lies in). With none and latest only
	// Also is set, and the trainer takes what lies in its output folder: the only one
	// there, or the one that the file `latest` names.
	Value string `yaml:"value"`
	// Also are other knobs that go with it.
	Also map[string]string `yaml:"also"`
	// Text are the words of "text"; resume_from_checkpoint without it.
	Text []string `yaml:"text"`
	// Source is the file, of the installed packages, that a program of several
	// subcommands runs; {subcommand} stands for it. Its text counts for "text".
	Source string `yaml:"source"`
	Why    string `yaml:"why"`
	// Shim says that the shim can hand the checkpoint to the trainer.
	Shim bool `yaml:"shim"`
}

type logSpec struct {
	// Path is of {knob} placeholders and may be a glob.
	Path string `yaml:"path"`
}

// fromFolder says whether the trainer is handed no checkpoint but told to take the one
// in its output folder.
func (r resumeSpec) fromFolder() bool { return r.Value == "none" || r.Value == "latest" }
