package supervisor

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"sparkrun/preflight/headroom"
)

// planColours are the colours of the verdicts, as SGR parameters.
var planColours = map[headroom.Verdict]string{headroom.Fits: "32", headroom.Tight: "33", headroom.Over: "1;31"}

// Text is the plan for a person, in lines of at most width characters where words allow
// it; 0 does not wrap. A command is never broken: it is to be copied.
func (p Planning) Text(width int, colour bool) string {
	t := &sheet{width: width}
	if len(p.Command) > 0 {
		t.raw("command", shellLine(p.Command))
		trainer := "not recognised"
		if p.Trainer != nil {
			trainer = *p.Trainer
		}
		t.line("trainer", "%s", trainer)
	}
	t.line("model", "%s", printable(p.modelWords()))
	if !p.told("method") {
		t.line("method", "%s  (assumed)", p.Method)
	}
	for _, in := range p.Inputs {
		t.line(in.Knob, "%s  (%s)", printable(fmt.Sprint(in.Value)), printable(knobPlace(in.ExplainedKnob)))
	}
	for _, a := range p.Assumed {
		t.line("assumed", "%s", printable(a))
	}
	for _, n := range p.Notes {
		t.line("note", "%s", printable(n))
	}
	t.b.WriteByte('\n')
	t.b.WriteString(strings.TrimRight(p.Estimate.Chart(p.Budget.Bytes, t.chartWidth(), colour), "\n") + "\n\n")
	t.terms(p)
	t.line("peak", "about %s, most likely %s to %s", headroom.GB(p.Estimate.Peak), headroom.GB(p.Estimate.Low), headroom.GB(p.Estimate.High))
	t.line("while loading", "%s, the pages of the model's files included", headroom.GB(p.Estimate.Load))
	t.budget(p)
	t.verdict(p, colour)
	if p.Estimate.Checkpoint > 0 {
		t.line("a checkpoint", "%s on disk (%s)", headroom.GB(p.Estimate.Checkpoint), p.Estimate.CheckpointHow)
	}
	t.anchor(p)
	t.start(p)
	t.fit(p)
	return t.b.String()
}

func (p Planning) told(knob string) bool {
	for _, in := range p.Inputs {
		if in.Knob == knob {
			return true
		}
	}
	return false
}

func (p Planning) modelWords() string {
	m := p.Model
	if m.Name == "" {
		return params(m.Params) + " parameters, whose shape is assumed  (--params)"
	}
	words := fmt.Sprintf("%s: %s parameters (%s)", m.Name, params(m.Params), m.From)
	switch {
	case m.Quantised != "":
		words += ", stored as " + m.Quantised
	case m.DType != "":
		words += ", stored as " + m.DType
	}
	return words
}

// chartWidth is how wide the chart may be.
func (t *sheet) chartWidth() int {
	if t.width <= 0 {
		return 100
	}
	return t.width
}

// terms says how each part came about.
func (t *sheet) terms(p Planning) {
	for _, term := range p.Estimate.Terms {
		t.line(term.Name, "%s: %s", headroom.GB(term.Bytes), term.How)
	}
}

func (t *sheet) budget(p Planning) {
	b := p.Budget
	if b.Reserve > 0 {
		t.line("budget", "%s: MemAvailable %s less %s for the system and the driver", headroom.GB(b.Bytes), headroom.GB(b.Available), headroom.GB(b.Reserve))
	} else {
		t.line("budget", "%s: %s", headroom.GB(b.Bytes), p.BudgetFrom)
	}
	if b.GPU || b.Free == nil {
		return
	}
	words := "MemFree " + headroom.GB(*b.Free) + " (what cudaMemGetInfo sees)"
	if b.Cache != nil {
		words += "; page cache " + headroom.GB(*b.Cache) + ", which the kernel gives back and MemAvailable counts already"
	}
	t.line("", "%s", words)
}

func (t *sheet) verdict(p Planning, colour bool) {
	word := string(p.Outcome.Verdict)
	if p.Outcome.Blocks {
		word = "cannot fit"
	}
	text := word + ": " + p.Outcome.Why
	before := t.b.Len()
	t.line("verdict", "%s", text)
	if code := planColours[p.Outcome.Verdict]; colour && code != "" {
		// Painted afterwards: an escape has no width.
		out := t.b.String()
		t.b.Reset()
		t.b.WriteString(out[:before] + strings.Replace(out[before:], word, "\x1b["+code+"m"+word+"\x1b[0m", 1))
	}
	if p.NeedsCaches {
		t.line("", "%s", "page cache must make room for it: drop it before the start (sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'), or run with --load-drop-caches as root")
	}
}

func (t *sheet) anchor(p Planning) {
	a := p.Anchor
	if a == nil {
		t.line("closest anchor", "none: nobody has told of a training like this on this machine")
		return
	}
	t.line("closest anchor", "%s", a.String())
	if p.FarAbove != "" {
		t.line("", "%s", p.FarAbove)
	}
}

// start is the rung to start from.
func (t *sheet) start(p Planning) {
	s := p.Start
	if s == nil {
		return
	}
	t.line("start from", "%s", printable(s.Text()))
	if s.Line == "" && len(s.Changes) > 0 {
		t.line("", "%s", "to be changed by hand:")
	}
	for _, c := range s.Changes {
		t.line("", "%s", printable(c))
	}
	if s.Line != "" {
		fmt.Fprintf(&t.b, "%*s$ %s\n", explainLabel+1, "", s.Line)
	}
}

// fit is the table of --fit: of each method the longest row and the largest batch.
func (t *sheet) fit(p Planning) {
	if len(p.Fit) == 0 {
		return
	}
	rows := [][]string{{"method", "longest row", "peak", "largest batch", "peak"}}
	notes := []string{}
	for _, f := range p.Fit {
		if f.Why != "" {
			notes = append(notes, string(f.Method)+": "+f.Why)
		}
		row := []string{string(f.Method), "none", "", "none", ""}
		if f.SeqLen > 0 {
			row[1], row[2] = fmt.Sprintf("%d tokens at batch %d", f.SeqLen, f.AtBatch), headroom.GB(f.PeakSeqLen)
			if f.LimitSeqLen != "" {
				row[1] += " (" + f.LimitSeqLen + ")"
			}
		}
		if f.Batch > 0 {
			row[3], row[4] = fmt.Sprintf("%d rows of %d tokens", f.Batch, f.AtSeqLen), headroom.GB(f.PeakBatch)
		}
		rows = append(rows, row)
	}
	t.b.WriteByte('\n')
	t.wrap("", "", fmt.Sprintf("what fits %s, the other settings as they are:", headroom.GB(p.Budget.Bytes)))
	widths, total := make([]int, len(rows[0])), 0
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i] + 2
	}
	for i, row := range rows {
		switch {
		case t.width <= 0 || total <= t.width:
			line := "  "
			for c, cell := range row {
				line += fmt.Sprintf("%-*s  ", widths[c], cell)
			}
			t.b.WriteString(strings.TrimRight(line, " ") + "\n")
		case i > 0: // too narrow for columns
			t.wrap("  ", "    ", strings.TrimRight(fmt.Sprintf("%s: %s %s; %s %s", row[0], row[1], row[2], row[3], row[4]), " "))
		}
	}
	for _, n := range notes {
		t.wrap("  ", "    ", n)
	}
}

// printable keeps control characters of a command and its files off the terminal.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, text)
}
