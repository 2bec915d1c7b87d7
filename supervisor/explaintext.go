package supervisor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"sparkrun/internal/job"
)

// explainLabel is how wide the names of the settings stand.
const explainLabel = 19

// Text is the explanation for a person, in lines of at most width characters where
// words allow it; 0 does not wrap. A command is never broken: it is to be copied.
func (e Explanation) Text(width int) string {
	t := &sheet{width: width}
	t.raw("command", shellLine(e.Command))
	switch {
	case e.Trainer == nil:
		t.line("trainer", "not recognised")
	case e.About != "":
		t.line("trainer", "%s: %s", *e.Trainer, e.About)
	default:
		t.line("trainer", "%s", *e.Trainer)
	}
	if len(e.Launchers) > 0 {
		t.line("behind", "%s", strings.Join(e.Launchers, " > "))
	}
	// What was not understood comes before what follows from it.
	for _, n := range e.Notes {
		t.line("note", "%s", n)
	}
	t.line("method", "%s", e.Method)
	if m := e.Model; m != nil {
		what := "size not known"
		if m.Params != nil {
			what = fmt.Sprintf("%s parameters (%s)", params(*m.Params), m.From)
		}
		t.line("model", "%s, %s", m.Name, what)
	}
	for _, name := range ExplainedKnobs() {
		k := e.Knobs[name]
		label := name
		if name == "resume" {
			label = "resume_from" // the row below says what a retry does
		}
		if k.Value == nil {
			t.line(label, "not known")
			continue
		}
		t.line(label, "%v  (%s)", k.Value, knobPlace(k))
	}
	t.batch(e)
	t.checkpoints(e)
	if e.SeenIn != "" {
		t.line("seen", "settings in the code as the shim saw them in %s", e.SeenIn)
	}
	t.rungs(e)
	return t.b.String()
}

func (t *sheet) batch(e Explanation) {
	switch {
	case e.EffectiveBatch == nil:
		t.line("batch", "not known")
	case e.TokensPerStep != nil:
		t.line("batch", "%d rows in one optimizer step, at most %d tokens", *e.EffectiveBatch, *e.TokensPerStep)
	default:
		t.line("batch", "%d rows in one optimizer step", *e.EffectiveBatch)
	}
	if e.PlannedSteps != nil {
		t.line("steps", "%d planned", *e.PlannedSteps)
	}
}

func (t *sheet) checkpoints(e Explanation) {
	for _, c := range e.Broken {
		t.line("checkpoint", "%s is not complete: %s", c.Path, c.Why)
	}
	switch c := e.Checkpoint; {
	case c == nil:
		t.line("checkpoint", "none found")
	case c.Why != "":
		t.line("checkpoint", "%s (step %d) is complete, but %s", c.Path, c.Step, c.Why)
	default:
		t.line("checkpoint", "%s (step %d) is complete", c.Path, c.Step)
	}
	switch {
	case e.Resume.Why != "":
		t.line("a retry", "starts over: %s", e.Resume.Why)
	case e.Resume.How == "path":
		t.line("a retry", "goes on from the newest complete checkpoint of the run")
	case e.Resume.How == "shim":
		t.line("a retry", "goes on from the newest complete checkpoint of the run, which the shim hands over")
	case e.Resume.How == "auto":
		t.line("a retry", "takes up by itself what lies in the output folder")
	}
}

// rungs shows the ladder: of each step what is new with it, and the command where it is
// not that of the step before.
func (t *sheet) rungs(e Explanation) {
	fmt.Fprintf(&t.b, "\nladder %s, if every attempt dies for want of memory:\n", e.Ladder)
	t.wrap("  1. ", "     ", "as typed")
	n := 1
	last, said := shellLine(e.Command), []string{}
	for _, g := range e.Rungs {
		if !g.Allowed {
			t.wrap("  -  ", "     ", fmt.Sprintf("%s (%s): no: %s", g.Name, g.Action, g.Reason))
			continue
		}
		n++
		t.wrap(fmt.Sprintf("  %d. ", n), "     ", g.Name+": "+g.Reason)
		for _, d := range g.Diff {
			if !slices.Contains(said, d) {
				t.wrap("       ", "         ", d)
			}
		}
		said = g.Diff
		for _, f := range g.Files {
			t.wrap("       ", "         ", fmt.Sprintf("a changed copy of %s, %s", f.Original, filepath.Base(f.Path)))
		}
		if line := shellLine(g.Argv); g.Argv != nil && line != last {
			fmt.Fprintf(&t.b, "       $ %s\n", line)
			last = line
		}
	}
	if len(e.Rungs) == 0 {
		t.b.WriteString("  no rung can fire\n")
	}
}

// sheet collects lines of a name and a text.
type sheet struct {
	b     strings.Builder
	width int
}

func (t *sheet) raw(name, text string) { fmt.Fprintf(&t.b, "%-*s %s\n", explainLabel, name, text) }

func (t *sheet) line(name, format string, args ...any) {
	t.wrap(fmt.Sprintf("%-*s ", explainLabel, name), strings.Repeat(" ", explainLabel+1), fmt.Sprintf(format, args...))
}

// wrap writes a text behind first, and goes on behind hang where the width is full. A
// word that is longer stands on a line of its own.
func (t *sheet) wrap(first, hang, text string) {
	at, fresh := utf8.RuneCountInString(first), true
	t.b.WriteString(first)
	for i, word := range strings.Split(text, " ") {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case t.width > 0 && !fresh && at+1+n > t.width:
			t.b.WriteString("\n" + hang)
			at = utf8.RuneCountInString(hang)
		default:
			t.b.WriteByte(' ')
			at++
		}
		t.b.WriteString(word)
		at += n
		fresh = false
	}
	t.b.WriteByte('\n')
}

// params writes a number of parameters as people do: 70B, 350M, 3.9K.
func params(n int64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "B"}, {1e6, "M"}, {1e3, "K"}} {
		if float64(n) >= u.size {
			return fmt.Sprintf("%.3g%s", float64(n)/u.size, u.name)
		}
	}
	return fmt.Sprint(n)
}

// knobPlace says in a person's words where a setting stands.
func knobPlace(k ExplainedKnob) string {
	switch {
	case k.Source == string(job.FromScript):
		return "in the code, " + k.Where
	case k.Source == string(job.FromUser):
		return "told by --knob"
	case k.Where != "":
		return k.Where
	}
	return k.Source
}
