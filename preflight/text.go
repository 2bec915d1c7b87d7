package preflight

import (
	"fmt"
	"strings"
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

// Table returns the report for a person. What blocks and how to cure it come
// before anything else; then one line for each check with the fixes below; the
// verdict comes last. colour asks for terminal colours.
func (r Report) Table(colour bool) string {
	paint := func(s Status, text string) string {
		if code := colours[s]; colour && code != "" {
			return "\x1b[" + code + "m" + text + "\x1b[0m"
		}
		return text
	}
	var b strings.Builder
	blocking := r.Blocking()
	for _, f := range blocking {
		fmt.Fprintf(&b, "%s by %s (%s): %s\n", paint(Fail, "blocked"), f.ID, f.Title, f.Detail)
		writeFix(&b, f.Fix)
	}
	if len(blocking) > 0 {
		b.WriteByte('\n')
	}
	width := 0
	for _, f := range append(r.Findings[:len(r.Findings):len(r.Findings)], r.Host...) {
		width = max(width, len(f.Title))
	}
	for _, list := range [][]Finding{r.Findings, r.Host} {
		for _, f := range list {
			fmt.Fprintf(&b, "%-3s  %s  %-*s  %s\n", f.ID, paint(f.Status, string(f.Status)), width, f.Title, f.Detail)
			// The fix of what blocks stands at the top already.
			if f.Status == Warn || f.Status == Skip && !f.ByDesign {
				writeFix(&b, f.Fix)
			}
		}
	}
	fmt.Fprintf(&b, "\n%s: %s, %s\n", paint(verdictColour[r.Verdict], r.Verdict), r.Platform, r.headroom())
	return b.String()
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

func writeFix(b *strings.Builder, fix string) {
	if fix == "" {
		return
	}
	for i, line := range strings.Split(fix, "\n") {
		head := "     "
		if i == 0 {
			head = "fix: "
		}
		fmt.Fprintf(b, "     %s%s\n", head, line)
	}
}
