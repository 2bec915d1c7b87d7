package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// Change is one repair that a report offers, with the finding it belongs to.
type Change struct {
	// ID and Title are the finding's, Cost is what it costs to leave it.
	ID, Title, Cost string
	Repair
}

// Changes are the repairs of all findings that have one, in the order in which they are
// best made: what blocks first, then what a person should act on, then what holds for every
// machine as it is delivered (information), each in the order of the checks, and within a
// finding its own. A command that two findings ask for is there once. It is empty where
// nothing can be repaired by a machine, which does not mean that nothing is wrong.
func (r Report) Changes() []Change {
	var out []Change
	add := func(list []Finding) {
		for _, f := range list {
			for _, rep := range f.Repairs {
				if strings.TrimSpace(rep.Command) == "" || slices.ContainsFunc(out, func(c Change) bool { return c.Command == rep.Command }) {
					continue
				}
				out = append(out, Change{ID: f.ID, Title: f.Title, Cost: f.Cost, Repair: rep})
			}
		}
	}
	add(r.Blocking())
	add(r.Warnings())
	add(r.Hints())
	for _, f := range r.Host {
		if f.Status == Info {
			add([]Finding{f})
		}
	}
	return out
}

// ListChanges is the numbered list that a person reads before anything is changed:
// command, effect, and whether it needs root. as gives the words that are really run
// for a change; nil shows its command.
func ListChanges(list []Change, as func(Change) string) string {
	var b strings.Builder
	for i, c := range list {
		command := c.Command
		if as != nil {
			command = as(c)
		}
		root := ""
		if c.Root {
			root = " (needs root)"
		}
		fmt.Fprintf(&b, "%2d. %s %s%s\n", i+1, c.ID, oneLine(c.Title), root)
		for line := range strings.Lines(command) {
			fmt.Fprintf(&b, "      $ %s\n", oneLine(strings.TrimRight(line, "\r\n")))
		}
		if c.Effect != "" {
			fmt.Fprintf(&b, "      %s\n", oneLine(c.Effect))
		}
	}
	return b.String()
}
