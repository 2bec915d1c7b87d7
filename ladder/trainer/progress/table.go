package progress

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
)

// tableFile holds the pattern sets.
const tableFile = "progress.yaml"

// table is configs/progress.yaml. All its texts are compared in lower case.
type table struct {
	Schema string `yaml:"schema"`
	// Bars are the words in the descriptions of progress bars.
	Bars struct {
		Training   []string `yaml:"training"`
		Never      []string `yaml:"never"`
		Evaluation []string `yaml:"evaluation"`
		Units      []string `yaml:"units"`
		Loss       []string `yaml:"loss"`
		LR         []string `yaml:"lr"`
		GradNorm   []string `yaml:"grad_norm"`
	} `yaml:"bars"`
	// Keys are those of printed dicts and of records of log files.
	Keys keys `yaml:"keys"`
	// EvalLines are words of lines whose step is an evaluation's.
	EvalLines []string `yaml:"eval_lines"`
	// Checkpoints are the words in front of the path of a checkpoint.
	Checkpoints []string `yaml:"checkpoints"`
	// Sets are the pattern sets by name.
	Sets map[string]*set `yaml:"sets"`
	// Divergence is what the watch over the losses goes by.
	Divergence divergence `yaml:"divergence"`
}

// keys are the names of fields, in order of preference.
type keys struct {
	Loss       []string `yaml:"loss"`
	Step       []string `yaml:"step"`
	Total      []string `yaml:"total"`
	Fraction   []string `yaml:"fraction"` // "5/94"
	LR         []string `yaml:"lr"`
	GradNorm   []string `yaml:"grad_norm"`
	Tokens     []string `yaml:"tokens"`
	TokensPerS []string `yaml:"tokens_per_s"`
	Seconds    []string `yaml:"seconds"`        // of one step
	Millis     []string `yaml:"millis"`         // of one step
	PerStep    []string `yaml:"mean_seconds"`   // of one step, smoothed
	PerSecond  []string `yaml:"mean_rate"`      // steps a second, smoothed
	ElapsedMs  []string `yaml:"elapsed_millis"` // since the start
	MicroMs    []string `yaml:"micro_millis"`   // of one micro-batch
	Epoch      []string `yaml:"epoch"`
	Epochs     []string `yaml:"epochs"`
	Finished   []string `yaml:"finished"`
	Eval       []string `yaml:"eval"`    // prefixes
	ZeroOK     []string `yaml:"zero_ok"` // prefixes of keys beside which a loss of 0 is nothing bad
}

// signs are the keys of which a printed dict has one if it is about training.
func (k *keys) signs() []string {
	return slices.Concat(k.Loss, k.Total, k.Fraction, k.Finished, k.Eval)
}

// set is how one trainer shows its progress.
type set struct {
	About string `yaml:"about"`
	// Like names a set whose patterns this one has as well, behind its own.
	Like string `yaml:"like"`
	// Bars is absent where no bar of the trainer is about training.
	Bars *bars `yaml:"bars"`
	// NoBars takes away those of Like.
	NoBars bool   `yaml:"no_bars"`
	Lines  []line `yaml:"lines"`

	triggers []string
}

// bars says which progress bars are the training's and what they count.
type bars struct {
	// Plain is set where the training's bar may have no description.
	Plain bool `yaml:"plain"`
	// Template is the shape of the description: texts and the numbers {epoch},
	// {step} and {loss}.
	Template string `yaml:"template"`
	// AnyName is set where the description can be anything: a bar with a loss behind
	// it is the training's.
	AnyName bool `yaml:"any_name"`
	// TotalOnly is set where the steps stand elsewhere and the bar tells the total.
	TotalOnly bool `yaml:"total_only"`
	// Micro is set for bars that count micro-batches, Carried where an epoch's
	// left-over ones count towards the next epoch's first step.
	Micro   bool `yaml:"micro"`
	Carried bool `yaml:"carried"`
	// FirstEpoch is the number of the first epoch; absent is found out.
	FirstEpoch *int64 `yaml:"first_epoch"`

	pieces []string // of Template: text, field, text, field...
}

// What a line pattern is about.
const (
	kindStep     = "step"
	kindEval     = "eval"
	kindTotal    = "total"
	kindResume   = "resume"
	kindFinished = "finished"
)

// line is one kind of line.
type line struct {
	// Kind is step (the default), eval, total (a header), resume (the step that it
	// goes on from) or finished.
	Kind string `yaml:"kind"`
	// All must be in the line, None must not. The first of All is looked for in
	// every line of output.
	All  []string `yaml:"all"`
	None []string `yaml:"none"`
	// Last takes the last number of the line, for headers with words in between.
	Last bool `yaml:"last"`
	// ZeroBased is set where the first step is 0 and the total is that of the last.
	ZeroBased bool `yaml:"zero_based"`
	// MayBeZero is set where a loss of 0 is nothing bad.
	MayBeZero bool `yaml:"may_be_zero"`
	keys      `yaml:",inline"`
}

// divergence is what the watch over the losses goes by.
type divergence struct {
	// Logged is how many logged steps in a row make a finding.
	Logged int `yaml:"logged_steps"`
	// Memorised is the loss below which zeros that follow are rounding.
	Memorised float64 `yaml:"memorised_below"`
	// HighLR is, by method, the learning rate from which it is the first suspect.
	HighLR map[string]float64 `yaml:"high_learning_rate"`
	// Causes are the three to check, in order.
	Causes []cause `yaml:"causes"`
}

type cause struct {
	ID   string `yaml:"id"` // dtype, learning-rate, packing
	Text string `yaml:"text"`
}

var loadTable = sync.OnceValues(func() (*table, error) {
	data, err := configs.FS.ReadFile(tableFile)
	if err != nil {
		return nil, fmt.Errorf("no built-in table %s: %w", tableFile, err)
	}
	return readTable("configs/"+tableFile, data)
})

// Sets returns the names of the pattern sets, sorted, for the check of profiles.
func Sets() ([]string, error) {
	t, err := loadTable()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(t.Sets))
	for n := range t.Sets {
		names = append(names, n)
	}
	sort.Strings(names)
	return names, nil
}

// readTable reads and checks a table. Its errors name file and line.
func readTable(name string, data []byte) (*table, error) {
	t := new(table)
	if err := configs.Decode(name, data, t); err != nil {
		return nil, err
	}
	if t.Schema != "sparkrun.progress/1" {
		return nil, fmt.Errorf("%s:1: schema is %q, not sparkrun.progress/1", name, t.Schema)
	}
	for _, text := range slices.Concat(t.Checkpoints, t.Keys.signs()) {
		if len(text) < 4 || text != strings.ToLower(text) {
			return nil, fmt.Errorf("%s:1: checkpoints and keys: %q must be four letters or more, in lower case", name, text)
		}
	}
	names := make([]string, 0, len(t.Sets))
	for n := range t.Sets {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		if err := t.settle(n, nil); err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %w", name, lineOf(data, n), n, err)
		}
	}
	if t.Sets["generic"] == nil {
		return nil, fmt.Errorf("%s:1: there must be a set generic", name)
	}
	if d := t.Divergence; d.Logged < 1 || len(d.Causes) == 0 {
		return nil, fmt.Errorf("%s:1: divergence needs logged_steps and causes", name)
	}
	return t, nil
}

// settle checks a set and takes over what it is like.
func (t *table) settle(name string, chain []string) error {
	s := t.Sets[name]
	switch {
	case s == nil:
		return errors.New("there is no such set")
	case slices.Contains(chain, name):
		return errors.New("it is like itself")
	case s.triggers != nil:
		return nil
	case s.About == "":
		return errors.New("about is missing")
	}
	if s.Bars != nil && s.Bars.Template != "" {
		s.Bars.pieces = pieces(s.Bars.Template)
		if s.Bars.pieces == nil {
			return fmt.Errorf("the template %q is not texts and {epoch}, {step}, {loss} in turn", s.Bars.Template)
		}
	}
	for i := range s.Lines {
		if err := s.Lines[i].check(); err != nil {
			return fmt.Errorf("line pattern %d: %w", i+1, err)
		}
	}
	if s.Like != "" {
		if err := t.settle(s.Like, append(chain, name)); err != nil {
			return fmt.Errorf("like %s: %w", s.Like, err)
		}
		like := t.Sets[s.Like]
		s.Lines = append(slices.Clip(s.Lines), like.Lines...)
		if s.Bars == nil && !s.NoBars {
			s.Bars = like.Bars
		}
	}
	s.triggers = []string{}
	for i := range s.Lines {
		s.triggers = append(s.triggers, s.Lines[i].All[0])
	}
	s.triggers = slices.Clip(s.triggers)
	if len(s.triggers)+len(t.Checkpoints)+len(t.Keys.signs()) > 200 {
		return errors.New("more than 200 line patterns")
	}
	return nil
}

func (l *line) check() error {
	switch l.Kind {
	case "":
		l.Kind = kindStep
	case kindStep, kindEval, kindTotal, kindResume, kindFinished:
	default:
		return fmt.Errorf("kind is %q, not step, eval, total, resume or finished", l.Kind)
	}
	if len(l.All) == 0 || len(l.All[0]) < 4 {
		return errors.New("all needs a text of four letters or more first: it is looked for in every line of output")
	}
	for _, text := range slices.Concat(l.All, l.None, l.Step, l.Loss, l.Total) {
		if text == "" || text != strings.ToLower(text) {
			return fmt.Errorf("%q must be in lower case and not empty", text)
		}
	}
	switch {
	case l.Kind == kindStep && len(l.Step) == 0:
		return errors.New("step is missing")
	case (l.Kind == kindTotal || l.Kind == kindResume) && !l.Last && len(l.Step)+len(l.Total)+len(l.Epochs) == 0:
		return errors.New("say where the number stands: step, total, epochs or last")
	}
	return nil
}

// pieces splits a template into texts and fields in turn.
func pieces(template string) []string {
	var out []string
	for {
		text, rest, ok := strings.Cut(template, "{")
		out = append(out, strings.ToLower(text))
		if !ok {
			return out
		}
		field, after, ok := strings.Cut(rest, "}")
		if !ok || field != "epoch" && field != "step" && field != "loss" {
			return nil
		}
		out = append(out, field)
		template = after
	}
}

// lineOf finds the line of a set in the file, for an error.
func lineOf(data []byte, set string) int {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 {
		return 1
	}
	top := doc.Content[0].Content
	for i := 0; i+1 < len(top); i += 2 {
		if top[i].Value != "sets" {
			continue
		}
		for j := 0; j+1 < len(top[i+1].Content); j += 2 {
			if k := top[i+1].Content[j]; k.Value == set {
				return k.Line
			}
		}
	}
	return 1
}
