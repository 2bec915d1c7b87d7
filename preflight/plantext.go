package preflight

import (
	"fmt"
	"strings"

	"sparkrun/preflight/headroom"
)

// text is the plan for a person, below the checks; "" where nothing is planned. `sparkrun
// plan` tells the same at length.
func (p *Planned) text(l Look) string {
	if p == nil {
		return ""
	}
	t := table{Look: l}
	model := p.Model.Name
	if model == "" {
		model = "the model"
	}
	t.wrapped("", fmt.Sprintf("plan: %s, %s, %s parameters (%s)", oneLine(model), p.Method, billions(p.Model.Params), oneLine(p.Model.From)))
	if p.Budget != nil {
		t.WriteString(strings.TrimRight(p.Estimate.Chart(p.Budget.Bytes, l.Width, l.Colour), "\n") + "\n")
	}
	peak := fmt.Sprintf("peak about %s, most likely %s to %s", headroom.GB(p.Estimate.Peak), headroom.GB(p.Estimate.Low), headroom.GB(p.Estimate.High))
	if p.Outcome != nil {
		word := string(p.Outcome.Verdict)
		if p.Outcome.Blocks {
			word = "cannot fit"
		}
		peak += fmt.Sprintf(", budget %s: %s", headroom.GB(p.Budget.Bytes), t.paint(verdictStatus[p.Outcome.Verdict], word))
	}
	t.wrapped("", peak)
	if p.Anchor != nil {
		t.wrapped("", "closest anchor: "+p.Anchor.String())
	}
	if n := len(p.Estimate.Assumed); n > 0 {
		t.wrapped("", fmt.Sprintf("%s, listed by: sparkrun plan -- COMMAND", plural(n, "assumption")))
	}
	return t.String()
}

// verdictStatus has the colour of a verdict.
var verdictStatus = map[headroom.Verdict]Status{headroom.Fits: Pass, headroom.Tight: Warn, headroom.Over: Warn}
