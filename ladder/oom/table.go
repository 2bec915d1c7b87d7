package oom

import (
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
)

// role says what a matching line can mean; see configs/oom.yaml.
type role string

const (
	roleFatal       role = "fatal"
	roleMention     role = "mention"
	roleWarning     role = "warning"
	roleWeak        role = "weak"
	roleVeto        role = "veto"
	roleOther       role = "other"
	roleConsequence role = "consequence"
	roleCleanup     role = "cleanup"
	roleHandled     role = "handled"
	roleLauncher    role = "launcher"
	roleIgnore      role = "ignore"
	roleFinished    role = "finished"
)

// rx is a regular expression that remembers the line it was written on, so that
// an error found after decoding can still name it.
type rx struct {
	*regexp.Regexp
	line int
}

// UnmarshalYAML compiles the expression.
func (r *rx) UnmarshalYAML(n *yaml.Node) error {
	var s string
	if err := n.Decode(&s); err != nil {
		return err
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	r.Regexp, r.line = re, n.Line
	return nil
}

// pattern is one entry of the table.
type pattern struct {
	ID     string `yaml:"id"`
	Role   role   `yaml:"role"`
	What   string `yaml:"what"`
	Re     rx     `yaml:"re"`
	Also   []rx   `yaml:"also"` // must match too
	Kind   string `yaml:"kind"`
	Reason string `yaml:"reason"`
	// Cause tells apart what has the same kind and needs another lever.
	Cause string `yaml:"cause"`
	// Scope is of a veto: line, burst or weak.
	Scope string `yaml:"scope"`
	// Needs and With are of a weak sign: which samples confirm it, which second
	// pattern makes it count. Likely says that without samples it is still more
	// likely than not.
	Needs  string `yaml:"needs"`
	With   string `yaml:"with"`
	Likely bool   `yaml:"likely"`
	// Explains names patterns that mean nothing of their own beside this one.
	Explains []string `yaml:"explains"`
	// Bare marks tools that print no traceback.
	Bare bool `yaml:"bare"`
	// Kill marks reports of a kill: a death by SIGKILL confirms them.
	Kill bool `yaml:"kill"`
	Soft bool `yaml:"soft"`
	// Raised makes an other soft in a line that is no exception.
	Raised bool `yaml:"raised"`
	// Vague marks words that an install which does not fit prints too.
	Vague bool `yaml:"vague"`
	// Cleanup marks a weak sign that is no cause when something stands before it.
	Cleanup bool     `yaml:"cleanup"`
	Case    []string `yaml:"case"`
	Not     []string `yaml:"not"`
}

// kernelPattern is one record of the kernel or of a daemon.
type kernelPattern struct {
	ID      string   `yaml:"id"`
	Kind    string   `yaml:"kind"`
	What    string   `yaml:"what"`
	Re      rx       `yaml:"re"`
	Ours    bool     `yaml:"ours"`    // can only be about this job
	Hint    bool     `yaml:"hint"`    // needs a death and low memory beside it
	Against bool     `yaml:"against"` // says that it was something else
	Begins  bool     `yaml:"begins"`  // belongs to the record of a kill that follows
	Unit    bool     `yaml:"unit"`    // path may be the bare name of the job's own unit
	Above   bool     `yaml:"above"`   // path, or a unit's name, may lie above the job's cgroup
	Source  string   `yaml:"source"`  // of the evidence; "kernel" if empty
	Case    []string `yaml:"case"`
	Not     []string `yaml:"not"`
}

type prefix struct {
	What      string `yaml:"what"`
	Re        rx     `yaml:"re"`
	KeepEmpty bool   `yaml:"keep_empty"` // leave the line alone if nothing would remain
	Builtin   string `yaml:"builtin"`    // "bar" or "rank": Go code instead of re
	Case      struct {
		In     string `yaml:"in"`
		Out    string `yaml:"out"`
		Stream string `yaml:"stream"`
	} `yaml:"case"`
	must string // text without letters that is in every match, if there is one
}

type sizePattern struct {
	Name string `yaml:"name"`
	Re   rx     `yaml:"re"`
	Unit string `yaml:"unit"` // where the number stands without one
	Add  bool   `yaml:"add"`

	number, pid int // the groups; pid is 0 where there is none
}

type phasePattern struct {
	Phase Phase `yaml:"phase"`
	Re    rx    `yaml:"re"`
	// Generic frames stand in other phases too: a line that says more outweighs them.
	Generic bool `yaml:"generic"`
}

type progressPattern struct {
	Re rx `yaml:"re"`
	// First: the first sighting is an advance too. Always: every sighting is.
	// Never: none is, whatever later patterns say.
	First  bool `yaml:"first"`
	Always bool `yaml:"always"`
	Never  bool `yaml:"never"`
	// Eval: an evaluation begins, and its bar counts no steps.
	Eval bool `yaml:"eval"`
	// Builtin "bar": Go code instead of re.
	Builtin string `yaml:"builtin"`

	n, desc, total int // groups
}

// choice says to which verdicts an entry applies: its kind or reason is among Kinds
// and its cause among Causes, where they are given, and so on.
type choice struct {
	Kinds  []string `yaml:"kinds"`
	Causes []string `yaml:"causes"`
	When   string   `yaml:"when"`
	Phase  Phase    `yaml:"phase"`
	// NoCause leaves out verdicts whose cause is known: those have something better.
	NoCause bool `yaml:"no_cause"`
}

type adviceEntry struct {
	choice `yaml:",inline"`
	Text   string `yaml:"text"`
}

type leverEntry struct {
	choice `yaml:",inline"`
	Lever  string `yaml:"lever"`
}

type xid struct {
	N    int    `yaml:"n"`
	What string `yaml:"what"`
}

// causeFrame tells a cause from the frames of the deciding traceback.
type causeFrame struct {
	Cause string   `yaml:"cause"`
	Kinds []string `yaml:"kinds"`
	Re    rx       `yaml:"re"`
}

// file is the form of configs/oom.yaml.
type file struct {
	Prefixes      []prefix          `yaml:"prefixes"`
	Opaque        []string          `yaml:"opaque"`
	CleanupFrames []phaseless       `yaml:"cleanup_frames"`
	Patterns      []pattern         `yaml:"patterns"`
	Kernel        []kernelPattern   `yaml:"kernel"`
	Sizes         []sizePattern     `yaml:"sizes"`
	Phases        []phasePattern    `yaml:"phases"`
	PhaseLines    []phasePattern    `yaml:"phase_lines"`
	Progress      []progressPattern `yaml:"progress"`
	Xids          []xid             `yaml:"xids"`
	CauseFrames   []causeFrame      `yaml:"cause_frames"`
	Levers        []leverEntry      `yaml:"levers"`
	Advice        []adviceEntry     `yaml:"advice"`
}

type phaseless struct {
	Re rx `yaml:"re"`
}

// Table is configs/oom.yaml, compiled. It does not change and may be shared.
type Table struct {
	file
	byID   map[string]*pattern
	opaque map[string]bool
	pre    *prefilter
	steps  *prefilter // of the progress patterns
	// both is pre and steps in one; the patterns of steps begin at len(Patterns).
	both    *prefilter
	byFirst [256][]uint8 // prefixes by the byte they can begin with

	kernelPre *prefilter
	xidText   map[int]string
	numbers   map[string]bool // of four digits and more, that patterns name
}

// Load reads the built-in table, then the extra files: an entry with a known id
// takes the place of the built-in one, everything else is added before the
// built-in entries, so that it is tried first. Errors name the file and the line.
func Load(extra ...string) (*Table, error) {
	t := &Table{}
	if err := configs.BuiltIn("oom.yaml", &t.file); err != nil {
		return nil, err
	}
	if err := t.check("configs/oom.yaml"); err != nil {
		return nil, err
	}
	for _, path := range extra {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the signature file: %w", err)
		}
		var f file
		if err := configs.Decode(path, data, &f); err != nil {
			return nil, err
		}
		t.merge(f)
		if err := t.check(path); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Table) merge(f file) {
	added := f.Patterns[:0:0]
next:
	for _, p := range f.Patterns {
		for i := range t.Patterns {
			if t.Patterns[i].ID == p.ID {
				t.Patterns[i] = p
				continue next
			}
		}
		added = append(added, p)
	}
	t.Patterns = append(added, t.Patterns...)
	t.Prefixes = append(f.Prefixes, t.Prefixes...)
	t.Opaque = append(f.Opaque, t.Opaque...)
	t.CleanupFrames = append(f.CleanupFrames, t.CleanupFrames...)
	t.Kernel = append(f.Kernel, t.Kernel...)
	t.Sizes = append(f.Sizes, t.Sizes...)
	t.Phases = append(f.Phases, t.Phases...)
	t.PhaseLines = append(f.PhaseLines, t.PhaseLines...)
	t.Progress = append(f.Progress, t.Progress...)
	t.Xids = append(f.Xids, t.Xids...)
	t.CauseFrames = append(f.CauseFrames, t.CauseFrames...)
	t.Levers = append(f.Levers, t.Levers...)
	t.Advice = append(f.Advice, t.Advice...)
}

// check validates what the YAML decoder cannot and builds the derived tables.
func (t *Table) check(name string) error {
	fail := func(line int, format string, args ...any) error {
		return fmt.Errorf("%s:%d: %w", name, line, fmt.Errorf(format, args...))
	}
	t.byID = make(map[string]*pattern, len(t.Patterns))
	t.numbers = make(map[string]bool)
	ways := make([][]way, len(t.Patterns))
	for i := range t.Patterns {
		p := &t.Patterns[i]
		if p.Re.Regexp == nil {
			return fail(1, "pattern %q has no re", p.ID)
		}
		if p.ID == "" || t.byID[p.ID] != nil {
			return fail(p.Re.line, "pattern id %q is empty or used twice", p.ID)
		}
		t.byID[p.ID] = p
		if err := p.check(); err != nil {
			return fail(p.Re.line, "pattern %s: %w", p.ID, err)
		}
		exprs := []string{p.Re.String()}
		for _, a := range p.Also {
			exprs = append(exprs, a.String())
		}
		for _, expr := range exprs {
			for _, n := range longNumber.FindAllString(expr, -1) {
				t.numbers[n] = true
			}
		}
		if ways[i] = waysOf(exprs...); ways[i] == nil {
			return fail(p.Re.line, "pattern %s: every alternative needs literal text of three letters or more", p.ID)
		}
	}
	for _, p := range t.byID {
		if p.With != "" && t.byID[p.With] == nil {
			return fail(p.Re.line, "pattern %s: there is no pattern %s", p.ID, p.With)
		}
	}
	kernelWays := make([][]way, len(t.Kernel))
	for i := range t.Kernel {
		k := &t.Kernel[i]
		if k.Re.Regexp == nil || k.Kind == "" {
			return fail(k.Re.line, "kernel pattern %q needs re and kind", k.ID)
		}
		if kernelWays[i] = waysOf(k.Re.String()); kernelWays[i] == nil {
			return fail(k.Re.line, "kernel pattern %s: every alternative needs literal text of three letters or more", k.ID)
		}
	}
	t.byFirst = [256][]uint8{}
	for i := range t.Prefixes {
		p := &t.Prefixes[i]
		first := [256]bool{}
		switch {
		case p.Builtin == "bar": // strip knows it
		case p.Builtin == "rank":
			first['['] = true
		case p.Builtin != "":
			return fail(1, "prefix %q: there is no builtin %q", p.What, p.Builtin)
		case p.Re.Regexp == nil:
			return fail(1, "prefix %q has no re", p.What)
		case !strings.HasPrefix(p.Re.String(), "^"):
			return fail(p.Re.line, "prefix %q must begin with ^", p.What)
		default:
			first = firstBytes(p.Re.String())
			if l := literals(p.Re.String()); len(l) == 1 && strings.IndexFunc(l[0], unicode.IsLetter) < 0 {
				p.must = l[0]
			}
		}
		if i > math.MaxUint8 {
			return fail(p.Re.line, "more than %d prefixes", math.MaxUint8)
		}
		for c, can := range first {
			if can {
				t.byFirst[c] = append(t.byFirst[c], uint8(i))
			}
		}
	}
	for i := range t.Sizes {
		s := &t.Sizes[i]
		if s.Re.Regexp == nil || s.Re.NumSubexp() < 1 || s.Re.NumSubexp() > 2 {
			return fail(s.Re.line, "size %s: a group is needed around the number, and none but one named pid besides", s.Name)
		}
		s.number = 1
		if s.pid = max(0, s.Re.SubexpIndex("pid")); s.pid == 1 {
			s.number = 2
		} else if s.pid == 0 && s.Re.NumSubexp() != 1 {
			return fail(s.Re.line, "size %s: one group is needed, around the number", s.Name)
		}
	}
	for _, ps := range [][]phasePattern{t.Phases, t.PhaseLines} {
		for _, p := range ps {
			if p.Re.Regexp == nil || !knownPhase(p.Phase) {
				return fail(p.Re.line, "phase %q: the phases are load, train, eval, save, optimizer-init", p.Phase)
			}
		}
	}
	stepWays := make([][]way, len(t.Progress))
	for i := range t.Progress {
		p := &t.Progress[i]
		switch p.Builtin {
		case "bar":
			stepWays[i] = []way{{{"%|", "| "}}}
			continue
		case "step":
			stepWays[i] = []way{{stepWords}}
			continue
		}
		if p.Re.Regexp == nil || p.Builtin != "" || (!p.Always && !p.Never && !p.Eval && p.Re.SubexpIndex("n") < 0) {
			return fail(p.Re.line, "a progress pattern needs a group n, or always, or builtin: bar or step")
		}
		p.n, p.desc, p.total = p.Re.SubexpIndex("n"), p.Re.SubexpIndex("desc"), p.Re.SubexpIndex("total")
		if p.Never {
			continue // looked at for bars only
		}
		if stepWays[i] = waysOf(p.Re.String()); stepWays[i] == nil {
			return fail(p.Re.line, "a progress pattern needs some literal text")
		}
	}
	for _, c := range t.CleanupFrames {
		if c.Re.Regexp == nil {
			return fail(1, "a cleanup frame has no re")
		}
	}
	if n := len(t.Phases) + len(t.CauseFrames) + len(t.CleanupFrames); n > 64 {
		return fail(1, "%d patterns on frames; 64 can be told apart", n)
	}
	for _, c := range t.CauseFrames {
		if c.Re.Regexp == nil || c.Cause == "" {
			return fail(c.Re.line, "a cause frame needs re and cause")
		}
	}
	for _, a := range t.Advice {
		if err := a.check(); err != nil {
			return fail(1, "advice %q: %w", a.Text, err)
		}
	}
	for _, l := range t.Levers {
		if err := l.check(); err != nil {
			return fail(1, "lever %q: %w", l.Lever, err)
		}
	}
	t.xidText = make(map[int]string, len(t.Xids))
	for _, x := range t.Xids {
		t.xidText[x.N] = x.What
	}
	t.opaque = make(map[string]bool, len(t.Opaque))
	for _, o := range t.Opaque {
		t.opaque[o] = true
	}
	t.pre = newPrefilter(ways, pythonTexts)
	t.steps = newPrefilter(stepWays, nil)
	t.both = newPrefilter(append(slices.Clip(ways), stepWays...), pythonTexts)
	t.kernelPre = newPrefilter(kernelWays, nil)
	return nil
}

// matches tells whether the cleaned line is one of the pattern's.
func (p *pattern) matches(text string) bool {
	if !p.Re.MatchString(text) {
		return false
	}
	for i := range p.Also {
		if !p.Also[i].MatchString(text) {
			return false
		}
	}
	return true
}

func (p *pattern) check() error {
	switch p.Role {
	case roleFatal, roleMention, roleWarning:
		if p.Kind == "" {
			return errors.New("a kind is needed")
		}
	case roleWeak:
		switch p.Needs {
		case "host", "gpu", "shm", "never":
		default:
			return fmt.Errorf("needs is %q; it is host, gpu, shm or never", p.Needs)
		}
		if p.Kind == "" {
			return errors.New("a kind is needed")
		}
	case roleVeto:
		switch p.Scope {
		case "line", "burst", "weak":
		default:
			return fmt.Errorf("scope is %q; it is line, burst or weak", p.Scope)
		}
		if p.Reason == "" {
			return errors.New("a reason is needed")
		}
	case roleOther:
		if p.Reason == "" {
			return errors.New("a reason is needed")
		}
	case roleConsequence, roleCleanup, roleHandled, roleLauncher, roleIgnore, roleFinished:
	default:
		return fmt.Errorf("there is no role %q", p.Role)
	}
	return nil
}

func (c *choice) check() error {
	if c.When != "" && conditions[c.When] == nil {
		return fmt.Errorf("there is no condition %q", c.When)
	}
	if c.Phase != "" && !knownPhase(c.Phase) {
		return fmt.Errorf("there is no phase %q", c.Phase)
	}
	return nil
}

// applies tells whether the entry is about such a verdict.
func (c *choice) applies(v *Verdict, word string) bool {
	return (len(c.Kinds) == 0 || slices.Contains(c.Kinds, word) || v.Reason != "" && slices.Contains(c.Kinds, v.Reason)) &&
		(len(c.Causes) == 0 || slices.Contains(c.Causes, v.Cause)) &&
		(!c.NoCause || v.Cause == "") &&
		(c.Phase == "" || c.Phase == v.Phase) &&
		(c.When == "" || conditions[c.When](v.Sizes))
}

func knownPhase(p Phase) bool {
	switch p {
	case PhaseLoad, PhaseTrain, PhaseEval, PhaseSave, PhaseOptimizer:
		return true
	}
	return false
}
