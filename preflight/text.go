package preflight

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"sparkrun/internal/lazyre"
)

// Lines returns the runbook's literal result lines, exactly one for each
// gotcha, in order, without banners.
func (r Report) Lines() string {
	var b strings.Builder
	for _, f := range r.Findings {
		b.WriteString(f.Line)
		b.WriteByte('\n')
	}
	return b.String()
}

// The colours of a status, as SGR parameters; none for what needs no eye.
var colours = map[Status]string{Pass: "32", Fail: "1;31", Warn: "33", Info: "36"}

// Look is how a report is shown to a person.
type Look struct {
	// Width is the number of columns; lines of prose are wrapped there, commands never
	// are. Zero means 100.
	Width int
	// Colour asks for terminal colours.
	Colour bool
	// All shows the host checks that found nothing too.
	All bool
}

// minDetail is how many columns the last column of the table gets at least.
const minDetail = 30

// minRoom is how narrow prose gets at the most.
const minRoom = 16

// Table returns the report for a person. What blocks and how to cure it come
// before anything else; then one line for each check with the fixes below, of the host
// checks those that say something; the verdict comes last.
func (r Report) Table(l Look) string {
	if l.Width <= 0 {
		l.Width = 100
	}
	t := table{Look: l}
	blocking := r.Blocking()
	for _, f := range blocking {
		t.wrapped("", fmt.Sprintf("%s by %s (%s): %s", t.paint(Fail, "blocked"), f.ID, f.Title, f.Detail))
		t.labelled("", "fix: ", f.Fix, true)
	}
	if len(blocking) > 0 {
		t.WriteByte('\n')
	}
	for _, list := range [][]Finding{r.Findings, r.Host} {
		for _, f := range list {
			t.titles = max(t.titles, len(f.Title))
		}
	}
	for _, f := range r.Findings {
		t.row(f)
	}
	var quiet, elsewhere []string
	first := true
	for _, f := range r.Host {
		switch {
		case !l.All && (f.Status == Pass || f.Status == Info):
			quiet = append(quiet, f.ID)
			continue
		case !l.All && f.Status == Skip && f.ByDesign:
			elsewhere = append(elsewhere, f.ID)
			continue
		}
		if first {
			t.WriteByte('\n')
			first = false
		}
		t.row(f)
	}
	if len(quiet)+len(elsewhere) > 0 {
		t.WriteByte('\n')
	}
	if len(quiet) > 0 {
		t.wrapped("", "in order (--all shows them): "+strings.Join(quiet, " "))
	}
	if len(elsewhere) > 0 {
		t.wrapped("", "do not concern this machine or command: "+strings.Join(elsewhere, " "))
	}
	if text := r.Plan.text(l); text != "" {
		t.WriteString("\n" + text)
	}
	by := ""
	if r.Verdict == ReadyWithWarnings {
		by = " (" + strings.Join(ids(r.Warnings()), ", ") + ")"
	}
	t.WriteByte('\n')
	t.wrapped("", fmt.Sprintf("%s%s: %s, %s", t.paint(verdictColour[r.Verdict], r.Verdict), by, r.Platform, r.headroom()))
	if hints := r.Hints(); len(hints) > 0 {
		t.wrapped("", fmt.Sprintf("%s (%s): no part of the verdict", plural(len(hints), "host hint"), strings.Join(ids(hints), ", ")))
	}
	return t.String()
}

func ids(list []Finding) []string {
	var out []string
	for _, f := range list {
		out = append(out, f.ID)
	}
	return out
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// table is text under construction.
type table struct {
	strings.Builder
	Look
	titles int // width of the column of titles
}

func (t *table) paint(s Status, text string) string {
	if code := colours[s]; t.Colour && code != "" {
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	return text
}

// row writes one finding, with what there is to do about it below.
func (t *table) row(f Finding) {
	head := fmt.Sprintf("%-3s  %s%s  ", f.ID, t.paint(f.Status, string(f.Status)), strings.Repeat(" ", 4-len(f.Status)))
	indent := strings.Repeat(" ", 3+2+4+2)
	if t.Width >= len(indent)+t.titles+2+minDetail {
		head += fmt.Sprintf("%-*s  ", t.titles, f.Title)
		indent += strings.Repeat(" ", t.titles+2)
	}
	t.hanging(head, indent, f.Detail)
	// The fix of what blocks stands at the top already.
	if f.Status == Warn || f.Status == Skip && !f.ByDesign {
		t.labelled(indent, "cost: ", f.Cost, false)
		t.labelled(indent, "fix: ", f.Fix, true)
	}
}

// labelled writes a text of one or more lines below a label. Commands are left in one
// piece, however long: a line that is wrapped cannot be pasted.
func (t *table) labelled(indent, label, text string, verbatim bool) {
	if text == "" {
		return
	}
	rest := indent + strings.Repeat(" ", len(label))
	for i, line := range strings.Split(text, "\n") {
		head := rest
		if i == 0 {
			head = indent + label
		}
		if verbatim {
			t.WriteString(head + line + "\n")
			continue
		}
		t.hanging(head, rest, line)
	}
}

func (t *table) wrapped(indent, text string) { t.hanging(indent, indent, text) }

var colourCodes = lazyre.New("\x1b\\[[0-9;]*m")

// columns counts what a word takes of a line.
func columns(word string) int {
	return utf8.RuneCountInString(colourCodes.ReplaceAllString(word, ""))
}

// hanging writes text after head, its further lines after indent.
func (t *table) hanging(head, indent, text string) {
	t.WriteString(head)
	room := max(t.Width-len(indent), minRoom)
	used := 0
	for i, word := range strings.Fields(text) {
		n := columns(word)
		switch {
		case i == 0:
		case used+1+n > room:
			t.WriteString("\n" + indent)
			used = 0
		default:
			t.WriteByte(' ')
			used++
		}
		t.WriteString(word)
		used += n
	}
	t.WriteByte('\n')
}

var verdictColour = map[string]Status{Ready: Pass, ReadyWithWarnings: Warn, Blocked: Fail}

func (r Report) headroom() string {
	if r.HeadroomGB == nil {
		return "headroom unknown"
	}
	return fmt.Sprintf("headroom %d GB (MemAvailable %s less %s for the OS and the driver; MemFree %s)",
		*r.HeadroomGB, gb(r.MemAvailableKiB.V), gb(r.ReserveKiB.V), freeText(r))
}

func freeText(r Report) string {
	if !r.MemFreeKiB.OK {
		return "unknown"
	}
	return gb(r.MemFreeKiB.V)
}
